//! Properties of sleep: whoever arms a rail and sleeps on its descriptor misses nothing.
//!
//! They hold for rails with a descriptor; the others (virtual time) have nothing to sleep on.

use rustix::event::{PollFd, PollFlags, Timespec};

use ropewalk_base::verb::Urgency;

use super::Fixture;
use super::scene::Scene;

/// How long a wake-up may take on a busy machine, in milliseconds.
const WAKE_MILLIS: u64 = 5000;
/// How long an idle descriptor is watched, in milliseconds.
const IDLE_MILLIS: u64 = 30;

/// `None` where the rail has no descriptor; else whether it became readable in time.
fn readable(scene: &mut Scene, node: usize, millis: u64) -> Option<bool> {
    let descriptor = scene.rail(node).descriptor()?;
    let nanos = (millis % 1000) as i64 * 1_000_000;
    let timeout = Timespec { tv_sec: (millis / 1000) as i64, tv_nsec: nanos };
    let mut set = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    let count = rustix::event::poll(&mut set, Some(&timeout)).expect("poll(2) works");
    Some(count == 1)
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

/// What arrives after `arm` said true makes the descriptor readable: frames, connects, farewells.
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

/// What arrived before `arm` either makes it say false or makes the descriptor readable.
pub fn work_before_arming_is_not_lost(fixture: &mut dyn Fixture) {
    let (mut scene, pair) = Scene::pair(fixture);
    scene.settle();
    for round in 0..20 {
        scene.send(pair, round, 100 + round as usize * 5000, Urgency::Urgent);
        for _ in 0..50 {
            scene.poll(0);
        }
        if scene.rail(1).arm() {
            let Some(woken) = readable(&mut scene, 1, WAKE_MILLIS) else { return };
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
        let Some(woken) = readable(&mut scene, node, IDLE_MILLIS) else { return };
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
