//! Signs of broken paths: rails tell of them within milliseconds, and the links live on.

mod common;
mod wired;

use std::thread;
use std::time::{Duration, Instant};

use common::{Medium, World, message};
use ropewalk_base::health::Suspicion;
use ropewalk_base::verb::{LinkId, Urgency};
use ropewalk_netns::{Direction, Fault, FaultKind, Joint, Route, Topology};
use ropewalk_rail::conformance::Fixture;
use ropewalk_rail::conformance::recorder::Event;
use ropewalk_rail::conformance::scene::{Pair, Scene};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use wired::{Wired, network};

const MS: Duration = Duration::from_millis(1);
/// Rounds of each fault.
const ROUNDS: usize = 5;

/// Suspicions of a link, in order.
fn suspicions(scene: &mut Scene, wanted: LinkId) -> Vec<Suspicion> {
    let told = scene.recorder(0).events.iter().filter_map(|event| match event {
        Event::Suspect { link, cause } if *link == wanted => Some(*cause),
        _ => None,
    });
    told.collect()
}

/// Sleeps on the first rail, as its endpoint would, for a short time at most.
fn sleep(scene: &mut Scene) {
    let rail = scene.rail(0);
    if rail.arm() {
        let set = rail.descriptor().expect("it has one");
        let limit = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };
        let _ = poll(&mut [PollFd::from_borrowed_fd(set, PollFlags::IN)], Some(&limit));
    }
    rail.disarm();
}

/// Injects a fault beside the rails' thread, which spins or sleeps, until one more suspicion is told; the time from the end
/// of the command to that, zero if it came first.
fn told_after(
    net: &Topology,
    scene: &mut Scene,
    pair: Pair,
    fault: Fault,
    sleeps: bool,
) -> Duration {
    let before = suspicions(scene, pair.near.1).len();
    let (told, fault, injected) = thread::scope(|scope| {
        let injects = scope.spawn(|| {
            let fault = net.inject(&fault).expect("it can be injected");
            (fault, Instant::now())
        });
        while suspicions(scene, pair.near.1).len() == before {
            assert!(scene.fixture.now().0 < 60_000_000_000, "nothing was told of {fault}");
            if sleeps {
                sleep(scene);
            }
            scene.round();
        }
        let told = Instant::now();
        let (fault, injected) = injects.join().expect("no panic");
        (told, fault, injected)
    });
    fault.mend().expect("it can be mended");
    // News of the mending comes, and suspects nobody.
    let end = Instant::now() + 30 * MS;
    while Instant::now() < end {
        scene.round();
    }
    told.saturating_duration_since(injected)
}

#[test]
fn a_carrier_that_is_lost_at_the_far_end_is_told_within_milliseconds() {
    let Some(net) = network(Joint::Direct) else { return };
    for (scheme, by_source) in
        [("tcp", false), ("tcp", true), ("udp", false), ("udp", true), ("ether", false)]
    {
        let mut wire = Wired::new(&net, scheme, 0);
        wire.by_source = by_source;
        let (mut scene, pair) = Scene::pair(&mut wire);
        let mut late = Vec::new();
        for round in 0..ROUNDS {
            let fault = Fault::new(FaultKind::InterfaceDown, 1, 0);
            late.push(told_after(&net, &mut scene, pair, fault, round % 2 == 1));
        }
        let told = suspicions(&mut scene, pair.near.1);
        assert_eq!(told, [Suspicion::CarrierLost; ROUNDS], "{scheme}");
        late.sort_unstable();
        println!("{scheme}: {:?} late (median), {:?} at most", late[ROUNDS / 2], late[ROUNDS - 1]);
        assert!(late[ROUNDS / 2] < 20 * MS, "{scheme}: {late:?}");
        // The other end has seen its own interface.
        let far = pair.far.1;
        let down = Event::Suspect { link: far, cause: Suspicion::InterfaceDown };
        assert!(scene.recorder(1).events.contains(&down), "{scheme}");
        // Nothing was lost but time.
        scene.send(pair, 1, 1000, Urgency::Urgent);
        scene.arrived(pair, 1);
    }
}

#[test]
fn each_cause_is_told_by_its_name() {
    use Suspicion::{AddressGone, InterfaceDown, InterfaceGone, RouteGone};
    let Some(net) = network(Joint::Switched) else { return };
    let unreachable = FaultKind::Route(Route::Unreachable);
    for (kind, by_source, cause) in [
        (FaultKind::InterfaceDown, false, InterfaceDown),
        (FaultKind::AddressRemoved, true, AddressGone),
        (unreachable, true, RouteGone),
        (FaultKind::CarrierLoss, false, Suspicion::CarrierLost),
        // The last one, since its rails are of no use afterwards.
        (FaultKind::InterfaceRemoved, false, InterfaceGone),
    ] {
        for scheme in ["tcp", "udp"] {
            let mut wire = Wired::new(&net, scheme, 0);
            wire.by_source = by_source;
            let (mut scene, pair) = Scene::pair(&mut wire);
            told_after(&net, &mut scene, pair, Fault::new(kind, 0, 0), false);
            let all = suspicions(&mut scene, pair.near.1);
            // The kernel sets an interface down, and takes its routes, before it removes it. Each step may be seen.
            let steps: &[Suspicion] = match kind {
                FaultKind::InterfaceRemoved => &[InterfaceDown, RouteGone],
                _ => &[],
            };
            let mut told = &all[..];
            for step in steps {
                told = told.strip_prefix(&[*step][..]).unwrap_or(told);
            }
            assert_eq!(told, [cause], "{scheme}, {kind:?}: {all:?}");
        }
    }
}

#[test]
fn a_send_that_the_kernel_refuses_is_told_with_its_error() {
    let Some(net) = network(Joint::Switched) else { return };
    let mut wire = Wired::new(&net, "udp", 0);
    wire.by_source = true;
    let (mut scene, pair) = Scene::pair(&mut wire);
    let fault = Fault::new(FaultKind::Route(Route::Unreachable), 0, 0);
    let fault = net.inject(&fault).expect("it can be injected");
    scene.send(pair, 1, 1000, Urgency::Urgent);
    let refused = Suspicion::SendError(rustix::io::Errno::HOSTUNREACH.raw_os_error());
    scene.until("it is told", |scene| suspicions(scene, pair.near.1).contains(&refused));
    fault.mend().expect("it can be mended");
    scene.arrived(pair, 1);
}

#[test]
fn an_endpoint_counts_suspicions_by_cause() {
    let Some(net) = network(Joint::Direct) else { return };
    for scheme in ["tcp", "udp"] {
        let mut wire = Wired::new(&net, scheme, 1);
        let mut world = World::new(Medium::Tcp);
        (0..2).for_each(|_| world.add_over(wire.rail(), |_| {}));
        let peer = world.peer(0, 1);
        let memories = [world.memory(8, 1), world.memory(8, 2)];
        let memories = message(&world.nodes[0], &world.nodes[1], peer, memories);
        let fault = Fault::new(FaultKind::InterfaceDown, 1, 1);
        let fault = net.inject(&fault).expect("it can be injected");
        let count = |world: &World, node: usize, cause| {
            world.nodes[node].endpoint.counters().0.suspected.of(cause)
        };
        world.until("count", |world| {
            count(world, 0, Suspicion::CarrierLost) == 1
                && count(world, 1, Suspicion::InterfaceDown) == 1
        });
        fault.mend().expect("it can be mended");
        message(&world.nodes[0], &world.nodes[1], peer, memories);
        assert_eq!(count(&world, 0, Suspicion::CarrierLost), 1);
        assert_eq!(count(&world, 0, Suspicion::RouteGone), 0);
        assert_eq!(world.nodes[0].endpoint.counters().0.resets, 0);
    }
}

/// Tunes both ends of a pair as one of several paths.
fn tune(scene: &mut Scene, pair: Pair) {
    for (rail, link) in [pair.near, pair.far] {
        assert!(scene.rail(rail).tune_as_path(link));
    }
}

/// Both ends do what is to be done for so long.
fn rounds(scene: &mut Scene, length: Duration) {
    let end = Instant::now() + length;
    while Instant::now() < end {
        scene.round();
    }
}

#[test]
fn a_peer_that_acknowledges_nothing_beside_an_open_window_is_told_of() {
    let Some(net) = network(Joint::Switched) else { return };
    for direction in [Direction::From, Direction::To, Direction::Both] {
        let mut wire = Wired::new(&net, "tcp", 0);
        let (mut scene, pair) = Scene::pair(&mut wire);
        tune(&mut scene, pair);
        scene.send(pair, 1, 1000, Urgency::Urgent);
        scene.arrived(pair, 1);
        rounds(&mut scene, 60 * MS);
        assert_eq!(suspicions(&mut scene, pair.near.1), [], "all is acknowledged");
        let fault = Fault::new(FaultKind::Cut, 0, 0).directed(direction);
        let fault = net.inject(&fault).expect("it can be injected");
        // Nobody at the near end awaits an answer of the far end's program.
        scene.send(pair, 2, 1000, Urgency::Urgent);
        let sent = Instant::now();
        scene.until("it is told", |scene| !suspicions(scene, pair.near.1).is_empty());
        let late = sent.elapsed();
        println!("{direction:?}: told after {late:?}");
        rounds(&mut scene, 200 * MS);
        assert_eq!(suspicions(&mut scene, pair.near.1), [Suspicion::Unacknowledged], "once");
        assert!(late < 200 * MS, "{direction:?}: {late:?}");
        fault.mend().expect("it can be mended");
        scene.arrived(pair, 2);
    }
}

#[test]
fn a_peer_that_does_not_read_is_not_suspect() {
    let Some(net) = network(Joint::Switched) else { return };
    let mut wire = Wired::new(&net, "tcp", 0);
    let (mut scene, pair) = Scene::pair(&mut wire);
    tune(&mut scene, pair);
    let near = pair.near;
    for tag in 0..64 {
        scene.send(pair, tag, 200_000, Urgency::Bulk);
    }
    // The far end makes no pass: its machine takes what it has room for.
    let end = Instant::now() + 1200 * MS;
    while Instant::now() < end {
        scene.poll(near.0);
    }
    let health = |scene: &mut Scene| {
        let now = scene.fixture.now();
        scene.rail(near.0).health(near.1, now).expect("it is up")
    };
    let full = health(&mut scene);
    assert!(full.is_peer_full && full.unsent_bytes > 0, "{full:?}");
    assert_eq!(suspicions(&mut scene, near.1), []);
    scene.arrived(pair, 64);
    let round_trips = health(&mut scene).round_trips.expect("measured");
    assert!(round_trips.p95 >= Some(round_trips.smoothed), "{round_trips:?}");
}
