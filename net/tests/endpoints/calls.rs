//! Calls of peers that have several addresses, some of which do not answer.

use std::time::Duration;

use crate::common::{Medium, World, check};
use ropewalk_base::error::Fault;
use ropewalk_base::ids::EndpointId;
use ropewalk_base::time::Time;
use ropewalk_net::{Address, Channel, Level, Oversize, PeerId};
use ropewalk_rail::Rail;
use ropewalk_rail_sim::{Cut, Kill, SimConfig};

const BYTES: usize = 5_000;

/// Adds an endpoint whose rails have these names.
fn add(world: &mut World, names: &[&str]) {
    let rail =
        |name: &&str| -> Box<dyn Rail> { Box::new(world.network.rail(name, SimConfig::stream())) };
    let (rails, paths_max) = (names.iter().map(rail).collect(), names.len());
    world.add_over_all(rails, |config| config.core.paths_max = paths_max);
}

fn look_up(world: &World, address: &str) -> PeerId {
    let address = Address::parse(address).expect("a list of URLs");
    world.nodes[0].endpoint.lookup(&address).expect("there is room")
}

fn now(world: &World) -> Time {
    world.network.now()
}

/// The first endpoint sends, and the second receives; how long that took.
fn passes(world: &mut World, to: PeerId, bits: u64) -> Duration {
    let begin = now(world);
    post(world, to, bits);
    let (memory, cut, mask) = (world.memory(BYTES, 0), Oversize::Truncate, u64::MAX);
    let node = &world.nodes[1];
    let (channel, context) = (Channel::Tagged, &node.context);
    let posted = node.endpoint.post_receive(context, channel, None, bits, mask, memory, cut, bits);
    world.posted(1, posted);
    let got = world.take(1, bits);
    assert_eq!(got.outcome, Ok(()));
    check(got.memory, BYTES, bits as u8);
    assert_eq!(world.take(0, bits).outcome, Ok(()));
    now(world).since(begin)
}

fn post(world: &mut World, to: PeerId, bits: u64) {
    let memory = world.memory(BYTES, bits as u8);
    let node = &world.nodes[0];
    let (channel, level) = (Channel::Tagged, Level::Delivered);
    let posted = node.endpoint.post_send(&node.context, to, channel, bits, memory, level, bits);
    world.posted(0, posted);
}

fn joined(world: &World) -> bool {
    world.nodes.iter().all(|node| node.endpoint.counters().0.paths_joined > 0)
}

#[test]
fn an_address_that_is_silent_is_passed_over_for_the_next() {
    for silent in [0, 1] {
        let mut world = World::new(Medium::SimStream);
        add(&mut world, &["a"]);
        add(&mut world, &["b0", "b1"]);
        world.network.partition("a", ["b0", "b1"][silent]);
        let peer = look_up(&world, "sim://b0,sim://b1");
        let took = passes(&mut world, peer, 1);
        assert!(took < Duration::from_millis(500), "{silent}: {took:?}");
    }
}

#[test]
fn a_slow_network_is_given_more_time_in_the_next_round() {
    let mut world = World::new(Medium::SimStream);
    add(&mut world, &["a"]);
    add(&mut world, &["b0", "b1"]);
    for name in ["b0", "b1"] {
        world.network.change_paths("a", name, |path| path.latency = Duration::from_millis(250));
    }
    let peer = look_up(&world, "sim://b0,sim://b1");
    let took = passes(&mut world, peer, 1);
    assert!(took < Duration::from_secs(4), "{took:?}");
}

/// A session over two paths, where the peer was looked up by its first address.
fn two_paths() -> (World, PeerId) {
    let mut world = World::new(Medium::SimStream);
    add(&mut world, &["a0", "a1"]);
    add(&mut world, &["b0", "b1"]);
    let peer = look_up(&world, "sim://b0");
    passes(&mut world, peer, 1);
    world.until("a second path", |world| joined(world));
    (world, peer)
}

#[test]
fn a_session_that_lost_its_paths_goes_on_over_whichever_is_mended() {
    for mended in [0, 1] {
        let (mut world, peer) = two_paths();
        for (own, other) in [("a0", "b0"), ("a1", "b1"), ("a0", "b1"), ("a1", "b0")] {
            world.network.cut(own, other, Cut::Both);
            world.network.partition(own, other);
        }
        let end = now(&world) + Duration::from_secs(10);
        world.until("ten seconds without a path", |world| now(world) > end);
        world.network.heal(["a0", "a1"][mended], ["b0", "b1"][mended]);
        let took = passes(&mut world, peer, 2);
        assert!(took < Duration::from_secs(12), "{mended}: {took:?}");
        let counters = world.nodes[0].endpoint.counters().0;
        assert_eq!((counters.sessions, counters.violations), (1, 0), "{mended}");
    }
}

#[test]
fn whoever_else_has_an_address_that_the_peer_told_is_left_alone() {
    let (mut world, peer) = two_paths();
    world.network.kill("b0", Kill::Power);
    world.network.kill("b1", Kill::Power);
    world.nodes.remove(1);
    let rail = Box::new(world.network.rail("b1", SimConfig::stream()));
    world.add_over_all(vec![rail], |config| config.endpoint = EndpointId(99));
    post(&mut world, peer, 2);
    let failed = world.take(0, 2);
    assert!(matches!(failed.outcome, Err(Fault::PeerReset | Fault::Unreachable)), "{failed:?}");
    assert_eq!(world.nodes[1].endpoint.counters().0.sessions, 0);
    assert_eq!(world.nodes[1].endpoint.unmatched_count(), 0);
}
