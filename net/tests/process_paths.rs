//! Rails as paths: sockets on an interface of their own, between namespaces with several wires.

mod wired;

use std::io::ErrorKind;
use std::net::TcpStream;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::health::Health;
use ropewalk_base::verb::Urgency;
use ropewalk_net::modules::{self, Listen};
use ropewalk_netns::{Fault as NetFault, FaultKind, Joint, Topology};
use ropewalk_rail::conformance::recorder::Event;
use ropewalk_rail::conformance::scene::{Pair, Scene};
use wired::{Wired, network};

/// Frames of a test, and the bytes of each; a packet has no more than one.
const FRAMES: u64 = 100;
const FRAME_BYTES: usize = 1400;
const MS: Duration = Duration::from_millis(1);
/// Packets of calls, and of other protocols.
const FEW: u64 = 40;

/// Packets that left the first host by each rail.
fn sent(net: &Topology) -> [u64; 2] {
    [0, 1].map(|rail| net.host(0).link(rail).expect("it is there").sent)
}

/// Has the kernel send packets for the second host's addresses by the other rail each, if nobody says otherwise.
fn cross_routes(net: &Topology) {
    for rail in 0..2 {
        let (to, other) = (net.host(1).address(rail), net.host(0).interface(1 - rail));
        assert!(wired::ip(&format!("route add {to}/32 dev {other}")));
    }
}

#[test]
fn each_rail_has_its_own_wire_whatever_the_routes_say() {
    let Some(net) = network(Joint::Direct) else { return };
    cross_routes(&net);
    for scheme in ["tcp", "udp"] {
        for by_source in [false, true] {
            let mut wires = [0, 1].map(|rail| Wired::new(&net, scheme, rail));
            for (rail, wire) in wires.iter_mut().enumerate() {
                wire.names_source = by_source;
                let before = sent(&net);
                let bytes_before = wired::sent_bytes(&net, 1 - rail);
                let (mut scene, pair) = Scene::pair(wire);
                for number in 0..FRAMES {
                    scene.send(pair, number, FRAME_BYTES, Urgency::Bulk);
                }
                scene.arrived(pair, FRAMES as usize);
                let after = sent(&net);
                let [own, other] = [rail, 1 - rail].map(|rail| after[rail] - before[rail]);
                // The kernel passes several segments, or datagrams, as one packet.
                assert!(own > 2 && other < FEW, "{scheme}, rail {rail}: {own} and {other} packets");
                let bytes = wired::sent_bytes(&net, 1 - rail) - bytes_before;
                assert!(bytes < FRAMES * FRAME_BYTES as u64 / 2, "{scheme}, rail {rail}: {bytes}");
            }
        }
    }
}

#[test]
fn a_call_leaves_by_its_interface_or_not_at_all() {
    let Some(net) = network(Joint::Direct) else { return };
    let mut wire = Wired::new(&net, "tcp", 0);
    let mut scene = Scene::new(&mut wire, 2);
    let other = net.host(1).within(|| {
        let listen = Listen::At { address: "0.0.0.0:0", exactly: true };
        modules::open("tcp", &listen).expect("ports are free")
    });
    let before = sent(&net);
    // The second host answers for this address on the other wire only.
    let port = other.addresses()[0].rsplit_once(':').expect("it has a port").1.to_string();
    let address = format!("{}:{port}", net.host(1).address(1));
    let now = scene.fixture.now();
    let link = scene.rail(0).connect(&address, now).expect("it is an address");
    scene.until("nobody answers", |scene| scene.nodes[0].recorder.fault(link).is_some());
    let down = Event::Down { link, fault: Fault::Unreachable };
    assert_eq!(scene.recorder(0).events, [down]);
    assert_eq!(sent(&net)[1] - before[1], 0);
}

#[test]
fn a_listener_is_reached_by_its_interface_only() {
    let Some(net) = network(Joint::Direct) else { return };
    let far = net.host(1);
    // The kernel lists the addresses of the namespace in which it is asked.
    let open = |address: &str| {
        let listen = Listen::At { address, exactly: true };
        far.within(|| {
            let rail = modules::open("tcp", &listen).expect("it can be bound");
            let addresses = rail.addresses();
            (rail, addresses)
        })
    };
    let (_rail, addresses) = open("0.0.0.0:0?interface=rail0");
    let [only] = &addresses[..] else { panic!("{addresses:?}") };
    let port: u16 = only.rsplit_once(':').expect("it has a port").1.parse().expect("a number");
    assert_eq!(*only, format!("{}:{port}", far.address(0)));
    TcpStream::connect((far.address(0), port)).expect("it listens there");
    let refused = TcpStream::connect((far.address(1), port)).expect_err("it does not listen there");
    assert_eq!(refused.kind(), ErrorKind::ConnectionRefused);
    // Of all addresses, the source address is the one to listen at.
    let (_rail, addresses) = open(&format!("0.0.0.0:0?source={}", far.address(1)));
    assert!(addresses[0].starts_with(&far.address(1).to_string()));
}

#[test]
fn what_cannot_be_bound_is_refused_with_a_remedy() {
    let Some(net) = network(Joint::Direct) else { return };
    for (settings, said) in [
        ("interface=rail9", "`ip link` lists"),
        ("source=10.9.9.9", "`ip address` lists"),
        ("source=fd00::1", "no interface of this host has the source address"),
        ("device=rail0", "interface=NAME"),
    ] {
        for scheme in ["tcp", "udp"] {
            let address = format!("{}:0?{settings}", net.host(0).address(0));
            let error = modules::open(scheme, &Listen::At { address: &address, exactly: true });
            let error = error.err().expect("it cannot be bound").to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}

/// The health of the first host's link.
fn health(scene: &mut Scene, pair: Pair) -> Health {
    let now = scene.fixture.now();
    scene.rail(0).health(pair.near.1, now).expect("the link is up")
}

/// Lets time pass.
fn pass(scene: &mut Scene, length: Duration) {
    let end = scene.fixture.now() + length;
    while scene.fixture.now() < end {
        scene.round();
    }
}

#[test]
fn health_shows_a_silent_cut_and_its_end() {
    let Some(net) = network(Joint::Switched) else { return };
    for scheme in ["tcp", "udp", "ether"] {
        let mut wire = Wired::new(&net, scheme, 0);
        let (mut scene, pair) = Scene::pair(&mut wire);
        let send = |scene: &mut Scene, from: u64, to: u64| {
            for number in from..to {
                scene.send(pair, number, FRAME_BYTES, Urgency::Urgent);
            }
        };
        send(&mut scene, 0, FRAMES);
        scene.arrived(pair, FRAMES as usize);
        scene.until("all is acknowledged", |scene| health(scene, pair).unacknowledged_bytes == 0);
        let well = health(&mut scene, pair);
        let round_trips = well.round_trips.expect("there were some");
        assert!(round_trips.smoothed > Duration::ZERO, "{scheme}: {well:?}");
        assert!(
            round_trips.smoothed < 50 * MS && round_trips.least < 50 * MS,
            "{scheme}: {well:?}"
        );
        let cut = net.inject(&NetFault::new(FaultKind::Cut, 0, 0)).expect("it can be cut");
        send(&mut scene, FRAMES, FRAMES + 10);
        pass(&mut scene, 50 * MS);
        let begin = health(&mut scene, pair);
        pass(&mut scene, 400 * MS);
        let end = health(&mut scene, pair);
        assert!(begin.unacknowledged_bytes >= 10 * FRAME_BYTES as u64, "{scheme}: {begin:?}");
        assert!(end.unacknowledged_bytes >= begin.unacknowledged_bytes, "{scheme}: {end:?}");
        assert_eq!(end.delivered_bytes, begin.delivered_bytes, "{scheme}");
        assert!(end.losses > well.losses, "{scheme}: {end:?}");
        // The kernel counts its own ticks.
        assert!(end.heard_at.since(begin.heard_at) < 20 * MS, "{scheme}: {begin:?} {end:?}");
        cut.mend().expect("it can be mended");
        scene.until("all is acknowledged", |scene| {
            let health = health(scene, pair);
            health.unacknowledged_bytes == 0 && health.heard_at.since(end.heard_at) > 300 * MS
        });
        assert!(health(&mut scene, pair).delivered_bytes > end.delivered_bytes);
    }
}

/// Whether the kernel has time-outs for single sockets of TCP, as far as its version tells.
fn has_short_timeouts() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|word| word.parse::<u32>().ok());
    (numbers.next(), numbers.next()) >= (Some(6), Some(15))
}

#[test]
fn a_link_that_is_tuned_as_a_path_sends_again_sooner() {
    let Some(net) = network(Joint::Switched) else { return };
    if !has_short_timeouts() {
        println!("SKIP: this kernel has no time-outs for single sockets (Linux 6.15 has)");
        return;
    }
    let losses = [false, true].map(|is_tuned| {
        let mut wire = Wired::new(&net, "tcp", 0);
        let (mut scene, pair) = Scene::pair(&mut wire);
        assert!(!is_tuned || scene.rail(0).tune_as_path(pair.near.1));
        for number in 0..FRAMES {
            scene.send(pair, number, FRAME_BYTES, Urgency::Urgent);
        }
        scene.arrived(pair, FRAMES as usize);
        let before = health(&mut scene, pair).losses;
        let cut = net.inject(&NetFault::new(FaultKind::Cut, 0, 0)).expect("it can be cut");
        scene.send(pair, FRAMES, FRAME_BYTES, Urgency::Urgent);
        pass(&mut scene, 350 * MS);
        let losses = health(&mut scene, pair).losses - before;
        cut.mend().expect("it can be mended");
        scene.arrived(pair, FRAMES as usize + 1);
        losses
    });
    let [usual, tuned] = losses;
    assert!(tuned > usual, "it sent again {tuned} times, and {usual} times untuned");
}

/// Connections of TCP that the kernel has at the first host.
fn connections() -> usize {
    let table = std::fs::read_to_string("/proc/thread-self/net/tcp").expect("the kernel tells");
    let listens = |line: &str| line.split_whitespace().nth(3) == Some("0A");
    table.lines().skip(1).filter(|line| !listens(line)).count()
}

#[test]
fn nothing_of_a_link_stays_in_the_kernel_when_it_is_abandoned() {
    let Some(net) = network(Joint::Switched) else { return };
    let mut wire = Wired::new(&net, "tcp", 0);
    let (mut scene, pair) = Scene::pair(&mut wire);
    let link = pair.near.1;
    assert_eq!(connections(), 1);
    let cut = net.inject(&NetFault::new(FaultKind::Cut, 0, 0)).expect("it can be cut");
    for number in 0..FRAMES {
        scene.send(pair, number, FRAME_BYTES, Urgency::Bulk);
    }
    assert!(health(&mut scene, pair).unacknowledged_bytes > 0);
    assert!(scene.rail(0).abandon(link));
    scene.poll(0);
    assert_eq!(scene.recorder(0).fault(link), Some(Fault::Closed));
    assert_eq!(connections(), 0);
    cut.mend().expect("it can be mended");
    // A fresh call is answered at once.
    let pair = scene.link(0, 1);
    scene.send(pair, 1, FRAME_BYTES, Urgency::Bulk);
    scene.arrived(pair, 1);
}
