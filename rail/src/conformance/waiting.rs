//! Properties of sleep: a thread that arms a rail and sleeps on its descriptor misses nothing.
//!
//! They hold for rails with a descriptor; the others (virtual time) have nothing to sleep on.

use rustix::event::{PollFd, PollFlags, Timespec};

use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{Help, RemoteKey, RemoteLayout, Urgency, Verb};

use super::Fixture;
use super::recorder::Event;
use super::scene::{Pair, Scene, pattern};

/// The time limit for a wake-up on a busy machine, in milliseconds.
const WAKE_MILLIS: u64 = 5000;
/// The time for which an idle descriptor is watched, in milliseconds.
const IDLE_MILLIS: u64 = 30;
/// The time limit for a sleeper's wait for an event that must come, in milliseconds.
const HANG_MILLIS: u64 = 30_000;

/// `None` where the rail has no descriptor; else whether it became readable in time.
fn readable(scene: &mut Scene, node: usize, millis: u64) -> Option<bool> {
    let descriptor = scene.rail(node).descriptor()?;
    let nanos = (millis % 1000) as i64 * 1_000_000;
    let timeout = Timespec { tv_sec: (millis / 1000) as i64, tv_nsec: nanos };
    let mut set = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    let count = rustix::event::poll(&mut set, Some(&timeout)).expect("poll(2) works");
    Some(count == 1)
}

/// As `readable`, for the first node, while the other goes on; or whether the first was to look anyway by then.
fn readable_or_due(scene: &mut Scene, [node, other]: [usize; 2], millis: u64) -> Option<bool> {
    for _ in 0..millis {
        let due = scene.rail(node).deadline().is_some_and(|due| due <= scene.fixture.now());
        if due || readable(scene, node, 1)? {
            return Some(true);
        }
        scene.poll(other);
    }
    Some(false)
}

/// Polls and arms until the rail is ready to sleep.
fn arm(scene: &mut Scene, node: usize) {
    for _ in 0..10_000 {
        if scene.rail(node).arm() {
            return;
        }
        scene.poll(node);
        scene.fixture.step(true);
    }
    panic!("a rail without traffic never agrees to sleep");
}

/// An arrival after `arm` returned true makes the descriptor readable: a frame, a connect, a farewell.
pub fn an_arrival_wakes_an_armed_rail(fixture: &mut dyn Fixture) {
    let (mut scene, pair) = Scene::pair(fixture);
    scene.settle();
    for round in 0..20 {
        arm(&mut scene, 1);
        scene.send(pair, round, 100, Urgency::Urgent);
        let Some(woken) = readable(&mut scene, 1, WAKE_MILLIS) else { return };
        assert!(woken, "no wake-up for frame {round}");
        scene.rail(1).disarm();
        scene.arrived(pair, round as usize + 1);
    }
    scene.settle();
    arm(&mut scene, 1);
    let address = scene.address(1);
    let now = scene.fixture.now();
    scene.rail(0).connect(&address, now).expect("the address is well formed");
    scene.poll(0);
    assert_eq!(readable(&mut scene, 1, WAKE_MILLIS), Some(true), "no wake-up for a connect");
    scene.rail(1).disarm();
    scene.until("the connect arrives", |scene| scene.counters(1).links_up == 2);
    scene.settle();
    arm(&mut scene, 1);
    if scene.kill(0) {
        assert_eq!(readable(&mut scene, 1, WAKE_MILLIS), Some(true), "no wake-up for a death");
        scene.rail(1).disarm();
        scene.until("the death is seen", |scene| scene.counters(1).links_down == 2);
    }
}

/// An arrival before `arm` either makes `arm` return false or makes the descriptor readable.
pub fn work_before_arming_is_not_lost(fixture: &mut dyn Fixture) {
    let (mut scene, pair) = Scene::pair(fixture);
    scene.settle();
    for round in 0..20 {
        scene.send(pair, round, 100 + round as usize * 5000, Urgency::Urgent);
        for _ in 0..50 {
            scene.poll(0);
        }
        if scene.rail(1).arm() {
            let woken = match scene.fixture.repeats() {
                // It may not have left yet, as the sender waits for acknowledgements.
                true => readable_or_due(&mut scene, [1, 0], WAKE_MILLIS),
                false => readable(&mut scene, 1, WAKE_MILLIS),
            };
            let Some(woken) = woken else { return };
            assert!(woken, "frame {round} came before arm, and nobody woke");
            scene.rail(1).disarm();
        }
        scene.arrived(pair, round as usize + 1);
    }
}

/// Without work the descriptor stays quiet: nobody burns a processor by waiting.
pub fn an_idle_rail_sleeps(fixture: &mut dyn Fixture) {
    let (mut scene, pair) = Scene::pair(fixture);
    scene.send(pair, 1, 300_000 / 2, Urgency::Bulk);
    scene.arrived(pair, 1);
    scene.drained(0);
    scene.settle();
    for node in [0, 1] {
        arm(&mut scene, node);
        let Some(mut woken) = readable(&mut scene, node, IDLE_MILLIS) else { return };
        if woken && scene.fixture.wakes_for_neighbours() {
            scene.rail(node).disarm();
            scene.poll(node);
            arm(&mut scene, node);
            woken = readable(&mut scene, node, IDLE_MILLIS) == Some(true);
        }
        assert!(!woken, "node {node} woke without work");
        scene.rail(node).disarm();
    }
}

/// A sender that sleeps with frames in its queue is woken when the medium has room again.
pub fn queued_frames_go_out_in_sleep(fixture: &mut dyn Fixture) {
    const FRAMES: usize = 64;
    let (mut scene, pair) = Scene::pair(fixture);
    for sequence in 0..FRAMES as u64 {
        scene.send(pair, sequence, 256 * 1024, Urgency::Bulk);
    }
    let mut sleeps = 0;
    while scene.recorder(0).pending() > 0 {
        if scene.rail(0).arm() {
            // The receiver makes room; the sender is polled only when its descriptor says so.
            let mut woken = readable(&mut scene, 0, 0);
            for _ in 0..10_000 {
                match woken {
                    None => return,
                    Some(true) => break,
                    Some(false) => {
                        scene.poll(1);
                        woken = readable(&mut scene, 0, 1);
                    }
                }
            }
            assert_eq!(woken, Some(true), "queued frames, room for them, and no wake-up");
            scene.rail(0).disarm();
            sleeps += 1;
        }
        assert!(sleeps < 100_000, "the sender wakes again and again without progress");
        scene.poll(0);
    }
    scene.arrived(pair, FRAMES);
}

/// The work that an order leaves for the next poll makes the descriptor of an armed rail readable:
/// another thread may have given it, and the one that sleeps looked for work before.
pub fn what_is_ordered_in_sleep_wakes(fixture: &mut dyn Fixture) {
    let (mut scene, pair) = Scene::pair(fixture);
    scene.settle();
    let (nowhere, now) = (scene.fixture.nowhere(), scene.fixture.now());
    arm(&mut scene, 0);
    let link = scene.rail(0).connect(&nowhere, now).expect("the address is well formed");
    if !woken_until(&mut scene, |scene| scene.recorder(0).fault(link).is_some()) {
        return;
    }
    let address = scene.address(1);
    arm(&mut scene, 0);
    let link = scene.rail(0).connect(&address, now).expect("the address is well formed");
    scene.order(0, Verb::Close { link }, None);
    woken_until(&mut scene, |scene| scene.recorder(0).fault(link).is_some());
    scene.settle();
    if scene.capabilities(0).native_read {
        accesses_wake(&mut scene, pair);
    }
    arm(&mut scene, 0);
    let link = pair.near.1;
    scene.order(0, Verb::Close { link }, None);
    woken_until(&mut scene, |scene| scene.recorder(0).fault(link).is_some());
}

/// A read that is larger than one step moves, and the end of an exposure.
fn accesses_wake(scene: &mut Scene, pair: Pair) {
    const BYTES: usize = 4 << 20;
    let key = RemoteKey { slot: SlotId { index: 2, generation: 1 }, secret: 77 };
    let slice = |buffer| Slice { buffer, offset: 0, len: BYTES as u64 };
    for (node, link) in [pair.far, pair.near] {
        let region = slice(scene.recorder(node).memory(&[BYTES], &pattern(1, BYTES)));
        scene.order(node, Verb::Expose { link, key, region, writable: false }, None);
    }
    scene.settle();
    let buffer = scene.recorder(0).memory(&[BYTES], &[]);
    let (link, token) = (pair.near.1, scene.recorder(0).token());
    arm(scene, 0);
    let (remote, local) = (RemoteLayout::At(0), slice(buffer));
    scene.order(0, Verb::Read { link, key, remote, local, token, help: Help::None }, None);
    woken_until(scene, |scene| scene.recorder(0).pending() == 0);
    let bytes = scene.recorder(0).bytes(local);
    assert!(bytes == pattern(1, BYTES), "the read is complete");
    arm(scene, 0);
    scene.order(0, Verb::Revoke { link, key }, None);
    let revoked = Event::Revoked { link, key };
    woken_until(scene, |scene| scene.recorder(0).events.contains(&revoked));
}

/// Node 0, which was armed, is polled only where its descriptor or its deadline says so, until `holds`; false where it
/// has no descriptor.
fn woken_until(scene: &mut Scene, mut holds: impl FnMut(&mut Scene) -> bool) -> bool {
    while !holds(scene) {
        // Others are served as if they had processors of their own.
        let mut millis = 0;
        loop {
            let Some(woken) = readable(scene, 0, 1) else { return false };
            // A sleeper sleeps until the rail's deadline at the latest.
            let now = scene.fixture.now();
            if woken || scene.rail(0).deadline().is_some_and(|due| due <= now) {
                break;
            }
            for node in 1..scene.nodes.len() {
                scene.poll(node);
            }
            millis += 1;
            assert!(millis < HANG_MILLIS, "an order leaves work, and nobody wakes for it");
        }
        scene.rail(0).disarm();
        while scene.poll(0) {}
        if !holds(scene) {
            arm(scene, 0);
        }
    }
    scene.rail(0).disarm();
    true
}
