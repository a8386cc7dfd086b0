//! Native access beside revocation and death: late data never lands.

use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::{BufferId, Slice};
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{Ordered, RemoteKey, RemoteLayout, Token, Verb};
use ropewalk_rail::conformance::recorder::Event;
use ropewalk_rail::conformance::scene::{Pair, Scene};
use ropewalk_rail_sim::{Cut, Path, SimConfig, SimNetwork};

mod fixture;
use fixture::SimFixture;

const BYTES: usize = 100_000;
const KEY: RemoteKey = RemoteKey { slot: SlotId { index: 1, generation: 1 }, secret: 77 };
/// An access of `BYTES` takes a tenth of a second at the target.
const RATE: u64 = 1_000_000;

fn fixture() -> SimFixture {
    let path = Path { bytes_per_second: RATE, ..Path::default() };
    SimFixture::new(9, SimConfig::native()).with_path(path)
}

/// Node 1 exposes a region of zeros, and node 0 begins to write ones to it.
fn begin_write(scene: &mut Scene, pair: Pair) -> BufferId {
    let buffer = scene.recorder(1).memory(&[BYTES], &[0; BYTES]);
    let region = Slice { buffer, offset: 0, len: BYTES as u64 };
    let expose = Verb::Expose { link: pair.far.1, key: KEY, region, writable: true };
    assert_eq!(scene.order(1, expose, None), Ordered::Released);
    order_write(scene, pair);
    pass(scene, Duration::from_millis(50));
    buffer
}

fn order_write(scene: &mut Scene, pair: Pair) -> Token {
    let source = scene.recorder(0).memory(&[BYTES], &[1; BYTES]);
    let local = Slice { buffer: source, offset: 0, len: BYTES as u64 };
    let token = scene.recorder(0).token();
    let (link, remote) = (pair.near.1, RemoteLayout::At(0));
    let write = Verb::Write { link, key: KEY, remote, local, token };
    assert_eq!(scene.order(0, write, Some(source)), Ordered::Pending);
    token
}

fn ones(scene: &mut Scene, buffer: BufferId) -> usize {
    let region = Slice { buffer, offset: 0, len: BYTES as u64 };
    scene.recorder(1).bytes(region).into_iter().filter(|byte| *byte == 1).count()
}

fn pass(scene: &mut Scene, duration: Duration) {
    let end = scene.fixture.now() + duration;
    while scene.fixture.now() < end {
        scene.round();
    }
}

#[test]
fn a_revocation_waits_for_accesses_in_flight_and_refuses_later_ones() {
    let mut fixture = fixture();
    let (mut scene, pair) = Scene::pair(&mut fixture);
    let buffer = begin_write(&mut scene, pair);
    let link = pair.far.1;
    assert_eq!(scene.order(1, Verb::Revoke { link, key: KEY }, None), Ordered::Pending);
    let late = order_write(&mut scene, pair);
    let revoked = Event::Revoked { link, key: KEY };
    pass(&mut scene, Duration::from_millis(20));
    assert!(!scene.recorder(1).events.contains(&revoked), "an access is still in flight");
    assert_eq!(ones(&mut scene, buffer), 0);
    scene.until("the revoke is confirmed", |scene| scene.recorder(1).events.contains(&revoked));
    assert_eq!(ones(&mut scene, buffer), BYTES, "the access in flight was carried out first");
    // From here on the owner may use the region freely: nothing lands in it any more.
    let region = Slice { buffer, offset: 0, len: BYTES as u64 };
    scene.recorder(1).buffers.write(region, &[2; BYTES]);
    scene.drained(0);
    pass(&mut scene, Duration::from_secs(1));
    assert_eq!(ones(&mut scene, buffer), 0);
    let refused = Event::Failed { token: late, fault: Fault::BadKey };
    assert!(scene.recorder(0).events.contains(&refused));
}

fn die(kill: impl Fn(&SimNetwork)) {
    let mut fixture = fixture();
    let network = fixture.network.clone();
    let (mut scene, pair) = Scene::pair(&mut fixture);
    let buffer = begin_write(&mut scene, pair);
    kill(&network);
    scene.drained(0);
    pass(&mut scene, Duration::from_secs(10));
    assert_eq!(ones(&mut scene, buffer), 0, "an access outlived its link");
    assert!(!scene.recorder(0).is_up(pair.near.1));
}

#[test]
fn accesses_in_flight_die_with_the_link_or_the_target() {
    die(|network| assert_eq!(network.cut("a", "b", Cut::Both), 1));
    die(|network| network.kill("b", ropewalk_rail_sim::Kill::Process(Duration::ZERO)));
    die(|network| network.kill("b", ropewalk_rail_sim::Kill::Power));
}

#[test]
fn a_link_that_dies_confirms_its_pending_revocations_first() {
    let mut fixture = fixture();
    let network = fixture.network.clone();
    let (mut scene, pair) = Scene::pair(&mut fixture);
    let buffer = begin_write(&mut scene, pair);
    let link = pair.far.1;
    scene.order(1, Verb::Revoke { link, key: KEY }, None);
    network.cut("a", "b", Cut::Both);
    pass(&mut scene, Duration::from_secs(1));
    let events = &scene.recorder(1).events;
    let fault = Fault::PeerReset;
    assert!(events.ends_with(&[Event::Revoked { link, key: KEY }, Event::Down { link, fault }]));
    assert_eq!(ones(&mut scene, buffer), 0);
}
