//! A link that is lost before its confirmation arrives: the session that its caller has begun goes on.

use crate::common::{Medium, World, check, keyed};
use ropewalk_base::ids::{EndpointId, Incarnation};
use ropewalk_base::time::Time;
use ropewalk_net::{Channel, Endpoint, Level, Mode, Oversize, PeerId};
use ropewalk_rail::Rail;
use ropewalk_rail_sim::{Cut, SimConfig, SimNetwork};

const LEN: usize = 3000;

/// Two endpoints, the first one of which calls.
fn pair(seed: u64, mode: Mode, rails: usize, caller_is_low: bool) -> World {
    pair_with(seed, mode, rails, caller_is_low, "")
}

/// The same with keys of this kind.
fn pair_with(seed: u64, mode: Mode, rails: usize, caller_is_low: bool, keys: &str) -> World {
    let mut world = World::new(Medium::SimStream);
    world.network = SimNetwork::new(seed);
    for node in 0..2 {
        let rail = |rail| -> Box<dyn Rail> {
            Box::new(world.network.rail(&format!("n{node}r{rail}"), SimConfig::stream()))
        };
        let rails_of_node = (0..rails).map(rail).collect();
        world.add_over_all(rails_of_node, |config| {
            let low = (node == 0) == caller_is_low;
            config.endpoint = EndpointId(if low { 5 } else { 9 });
            config.incarnation = Incarnation(1);
            config.seed = seed * 10 + node as u64;
            config.core.mode = mode;
            config.core.paths_max = rails;
            if !keys.is_empty() {
                config.security = keyed(keys, node as u64);
            }
        });
    }
    world
}

fn sessions(endpoint: &Endpoint) -> u64 {
    endpoint.counters().0.sessions
}

fn send(world: &mut World, (from, to): (usize, PeerId), bits: u64) {
    let memory = world.memory(LEN, bits as u8);
    let node = &world.nodes[from];
    let (channel, level) = (Channel::Tagged, Level::Matched);
    let posted = node.endpoint.post_send(&node.context, to, channel, bits, memory, level, bits);
    world.posted(from, posted);
}

fn receive(world: &mut World, at: usize, bits: u64) {
    let memory = world.memory(LEN, 0);
    let node = &world.nodes[at];
    let (channel, mask, cut) = (Channel::Tagged, u64::MAX, Oversize::Truncate);
    let posted =
        node.endpoint.post_receive(&node.context, channel, None, bits, mask, memory, cut, bits);
    world.posted(at, posted);
}

#[test]
fn what_was_sent_behind_a_confirmation_that_was_lost_arrives_once() {
    let mut lost = 0;
    for (seed, case) in (0..40).flat_map(|seed| (0..6).map(move |case| (seed, case))) {
        let (mode, rails) = [(Mode::Resume, 1), (Mode::Resume, 2), (Mode::Fail, 2)][case / 2];
        let mut world = pair(seed, mode, rails, case % 2 == 0);
        let [there, back] = [world.peer(0, 1), world.peer(1, 0)];
        (0..6).for_each(|bits| receive(&mut world, usize::from(bits < 3), bits));
        (0..3).for_each(|bits| send(&mut world, (0, there), bits));
        world.until("session", |world| sessions(&world.nodes[0].endpoint) == 1);
        if sessions(&world.nodes[1].endpoint) == 0 {
            lost += 1;
        }
        for (near, far) in (0..rails).flat_map(|near| (0..rails).map(move |far| (near, far))) {
            world.network.cut(&format!("n0r{near}"), &format!("n1r{far}"), Cut::Both);
        }
        // The other side may call first.
        (3..6).for_each(|bits| send(&mut world, (1, back), bits));
        for bits in 0..6 {
            let (from, to) = if bits < 3 { (0, 1) } else { (1, 0) };
            let sent = world.take(from, bits);
            assert_eq!(sent.outcome, Ok(()), "seed {seed}, case {case}: message {bits}");
            let received = world.take(to, bits);
            assert_eq!(received.outcome, Ok(()), "seed {seed}, case {case}: message {bits}");
            check(received.memory, LEN, bits as u8);
        }
        assert!(world.now() < Time(5_000_000_000), "seed {seed}, case {case}: {:?}", world.now());
        for node in &world.nodes {
            let counters = node.endpoint.counters().0;
            assert_eq!((counters.resets, counters.sessions), (0, 1), "seed {seed}, case {case}");
            node.endpoint.check();
        }
    }
    assert!(lost > 100, "{lost} confirmations were lost");
}

/// A rail is silent from such a moment on, after a session has begun over one of two: before its confirmation came, before the key
/// of its paths is there, or later. Nothing tells the ends that the rail is dead. With keys both sides have the session by then.
fn outlive_silence(seed: u64, case: usize, steps: u64, keys: &str) -> (usize, Time) {
    let mut world = pair_with(seed, Mode::Fail, 2, case.is_multiple_of(2), keys);
    let [there, back] = [world.peer(0, 1), world.peer(1, 0)];
    (0..6).for_each(|bits| receive(&mut world, usize::from(bits < 3), bits));
    (0..3).for_each(|bits| send(&mut world, (0, there), bits));
    let nodes = if keys.is_empty() { 0..1 } else { 0..2 };
    world.until("session", |world| {
        world.nodes[nodes.clone()].iter().all(|node| sessions(&node.endpoint) == 1)
    });
    (0..steps).for_each(|_| world.step());
    let paths = world.nodes[0].endpoint.counters().0.paths_joined;
    let (gone, last) = (case / 2 % 2, if case < 4 { 6 } else { 3 });
    for other in 0..2 {
        world.network.partition(&format!("n0r{gone}"), &format!("n1r{other}"));
        world.network.partition(&format!("n0r{other}"), &format!("n1r{gone}"));
    }
    let begin = world.now();
    // In the second half of all cases only the caller sends.
    (3..last).for_each(|bits| send(&mut world, (1, back), bits));
    for bits in 0..last {
        let (from, to) = if bits < 3 { (0, 1) } else { (1, 0) };
        let sent = world.take(from, bits);
        assert_eq!(sent.outcome, Ok(()), "seed {seed}, case {case}, {steps} steps: message {bits}");
        let received = world.take(to, bits);
        assert_eq!(received.outcome, Ok(()), "seed {seed}, case {case}, {steps} steps: {bits}");
        check(received.memory, LEN, bits as u8);
    }
    for node in &world.nodes {
        let counters = node.endpoint.counters().0;
        let has_lived = (counters.resets, counters.sessions) == (0, 1);
        assert!(has_lived, "seed {seed}, case {case}, {steps} steps: {counters:?}");
        node.endpoint.check();
    }
    (paths as usize, Time(world.now().0 - begin.0))
}

#[test]
fn a_rail_that_falls_silent_before_there_is_a_second_path_costs_no_session() {
    let (mut alone, mut longest) = (0, Time(0));
    for (seed, case, steps) in (0..10).flat_map(|seed| {
        (0..8).flat_map(move |case| [0, 1, 2, 3, 4, 6, 8, 12, 16].map(|steps| (seed, case, steps)))
    }) {
        for keys in ["", "psk", "keys"] {
            let (paths, took) = outlive_silence(seed, case, steps, keys);
            alone += usize::from(paths == 0);
            longest = longest.max(took);
        }
    }
    assert!(alone > 200, "{alone} sessions had one path only");
    assert!(longest < Time(5_000_000_000), "{longest:?}");
}
