//! Gets and puts over two real rails, one of which is cut in the middle of them.

mod common;
mod wired;

use std::time::{Duration, Instant};

use common::{Medium, Node, World};
use ropewalk_base::memory::Memory;
use ropewalk_base::verb::{RailCounters, RemoteKey, RemoteLayout};
use ropewalk_core::Counters;
use ropewalk_net::{Audience, Channel, Direction, Endpoint, Level, Mode, Oversize, PeerId};
use ropewalk_netns::{Fault, FaultKind, Joint, Topology};
use ropewalk_rail::conformance::Fixture;
use wired::{Wired, network};

const LEN: usize = 64 << 20;
/// A link of a session has no more under way than this.
const WINDOW_MAX: u64 = 8 << 20;

/// Two endpoints with a rail on each wire, and a session over both.
fn pair(net: &Topology, scheme: &'static str) -> World {
    let mut world = World::new(Medium::Udp);
    let mut wires = [0, 1].map(|rail| Wired::new(net, scheme, rail));
    for number in 0..2 {
        let mut config = world.config(number);
        // Two machines: neither tries memory that both have.
        config.host = 0;
        (config.core.mode, config.core.paths_max) = (Mode::Resume, 2);
        let rails = wires.each_mut().map(|wire| wire.rail()).into();
        let endpoint = Endpoint::open(config, rails).expect("the rails are open");
        let context = endpoint.context(true).expect("there is room");
        world.nodes.push(Node { endpoint, context, done: Vec::new() });
    }
    let peer = world.peer(0, 1);
    let memories = [world.memory(8, 1), world.memory(8, 2)];
    let node = &world.nodes[0];
    let (channel, [out, into]) = (Channel::Tagged, memories);
    let posted = node.endpoint.post_send(&node.context, peer, channel, 3, out, Level::Matched, 1);
    world.posted(0, posted);
    let node = &world.nodes[1];
    let posted =
        node.endpoint.post_receive(&node.context, channel, None, 3, 0, into, Oversize::Truncate, 2);
    world.posted(1, posted);
    world.take(0, 1);
    world.take(1, 2);
    world.until("second path", |world| (0..2).all(|node| counters(world, node).paths_joined == 1));
    world
}

fn counters(world: &World, node: usize) -> Counters {
    world.nodes[node].endpoint.counters().0
}

/// The rail of the first endpoint that has carried most.
fn busiest(world: &World, carried: impl Fn(&RailCounters) -> u64) -> usize {
    let rails = world.nodes[0].endpoint.counters().1;
    (0..2).max_by_key(|rail| carried(&rails[*rail].1)).expect("there are two")
}

/// The first endpoint reads or writes a region of the second one's.
fn access(
    world: &mut World,
    direction: Direction,
    (peer, key): (PeerId, RemoteKey),
    memory: Memory,
    user: u64,
) {
    let (node, remote) = (&world.nodes[0], RemoteLayout::At(0));
    let posted =
        node.endpoint.post_access(&node.context, direction, peer, key, remote, memory, user);
    world.posted(0, posted);
}

/// Cuts a rail in the middle of a get, and, mended, one in the middle of a put.
fn cut_within(scheme: &'static str, native: bool) {
    let Some(net) = network(Joint::Switched) else { return };
    let mut world = pair(&net, scheme);
    let peer = world.peer(0, 1);
    let region = world.memory(LEN, 9);
    let key = world.nodes[1].endpoint.expose(region, true, Audience::Everybody).unwrap();
    let native_bytes = |world: &World| {
        let rails = world.nodes[0].endpoint.counters().1;
        rails.iter().map(|(_, counters)| counters.bytes_native).collect::<Vec<_>>()
    };
    let memory = world.memory(LEN, 0);
    access(&mut world, Direction::Get, (peer, key), memory, 1);
    let here = |world: &World| {
        let rails = world.nodes[0].endpoint.counters().1;
        rails.iter().map(|(_, it)| it.bytes_native + it.bytes_received).sum::<u64>()
    };
    let before = here(&world);
    world.until("an eighth", |world| here(world) > before + (8 << 20));
    assert!(world.nodes[0].done.is_empty(), "{scheme}: it is over too soon");
    let rail = busiest(&world, |counters| counters.bytes_received);
    let fault = net.inject(&Fault::new(FaultKind::Cut, 0, rail)).expect("it can be cut");
    let begin = Instant::now();
    let got = world.take(0, 1);
    let took = begin.elapsed();
    assert_eq!(got.outcome, Ok(()), "{scheme}");
    common::check(got.memory, LEN, 9);
    let (own, theirs) = (counters(&world, 0), counters(&world, 1));
    println!(
        "{scheme}: {took:?} after the cut; {} parts, {} again; by rails {:?}; {} spans again",
        own.parts_read,
        own.parts_returned,
        native_bytes(&world),
        theirs.frames_re_sent,
    );
    assert_eq!((own.sessions, own.resets, own.gets), (1, 0, 1), "{scheme}");
    assert_eq!(theirs.gets_served, u64::from(!native), "{scheme}");
    assert!(took < Duration::from_secs(10), "{scheme}: {took:?}");
    if native {
        // The rails count what came whole: what is beyond the get's bytes came twice.
        let read = native_bytes(&world).iter().sum::<u64>();
        assert!((LEN as u64..=LEN as u64 + WINDOW_MAX).contains(&read), "{scheme}: {read} bytes");
        assert!(own.parts_returned > 0, "{scheme}: the cut path had nothing");
    } else {
        // Far less than all of it, in spans of 64 KiB.
        let again = theirs.frames_re_sent;
        assert!((1..LEN as u64 >> 17).contains(&again), "{scheme}: {again} spans");
        assert_eq!(theirs.spans_kept, 0, "{scheme}");
    }
    fault.mend().expect("it can be mended");
    put_and_cut(&net, &mut world, peer, key, scheme);
}

/// A put, in the middle of which a rail is cut once both carry again.
fn put_and_cut(net: &Topology, world: &mut World, peer: PeerId, key: RemoteKey, scheme: &str) {
    world.until("path again", |world| {
        // A side whose path got another link before it missed the first one has lost nothing.
        (0..2).all(|node| {
            let counters = counters(world, node);
            counters.paths_joined > counters.paths_lost
        })
    });
    let memory = world.memory(LEN, 5);
    let sent = |world: &World| {
        let rails = world.nodes[0].endpoint.counters().1;
        rails.iter().map(|(_, counters)| counters.bytes_sent).sum::<u64>()
    };
    let before = sent(world);
    access(world, Direction::Put, (peer, key), memory, 2);
    world.until("bytes of the put", |world| sent(world) > before + (8 << 20));
    let rail = busiest(world, |counters| counters.bytes_sent);
    let fault = net.inject(&Fault::new(FaultKind::Cut, 0, rail)).expect("it can be cut");
    assert_eq!(world.take(0, 2).outcome, Ok(()), "{scheme}");
    fault.mend().expect("it can be mended");
    let node = &world.nodes[1];
    node.endpoint.unexpose(key, &node.context, 3).unwrap();
    common::check(world.take(1, 3).memory, LEN, 5);
    assert_eq!((counters(world, 0).sessions, counters(world, 0).violations), (1, 0), "{scheme}");
}

#[test]
fn a_get_and_a_put_over_two_rails_of_udp_survive_the_cut_of_one() {
    cut_within("udp", true);
}

#[test]
fn a_get_and_a_put_over_two_rails_of_ethernet_frames_survive_the_cut_of_one() {
    cut_within("ether", true);
}

#[test]
fn a_get_and_a_put_over_two_rails_of_tcp_survive_the_cut_of_one() {
    cut_within("tcp", false);
}
