//! A thousand peers and ten thousand posted receives: the cost of idle ones, and that they cost nothing to the
//! traffic beside them. Counts, not seconds.

mod common;
mod valgrind;

use std::alloc::System;
use std::time::{Duration, Instant};

use common::{Medium, Node, World, message};
use ropewalk_base::error::Fault;
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_net::{Channel, Level, Oversize, PeerId, Posted};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const PEERS: usize = 1000;
/// User memory of a connected peer that does nothing.
const IDLE_BYTES_MAX: u64 = 4096;

/// Descriptors for both ends of so many links; false where this process may not have them.
fn allow_descriptors(wanted: u64) -> bool {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current.is_none_or(|current| current >= wanted) {
        return true;
    }
    let allowed = maximum.is_none_or(|maximum| maximum >= wanted);
    allowed && setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }).is_ok()
}

fn balance() -> i64 {
    let stats = ALLOCATOR.stats();
    stats.bytes_allocated as i64 - stats.bytes_deallocated as i64
}

/// One pass of the first node; returns the growth of its memory.
fn hub_pass(world: &mut World) -> i64 {
    let before = balance();
    let node = &mut world.nodes[0];
    node.endpoint.progress();
    balance() - before
}

/// Adds a node that sends one small message to the first one, which receives it; returns the growth of the first
/// one's memory.
fn join(world: &mut World) -> i64 {
    let own = world.add();
    let hub = world.peer(own, 0);
    let into = world.memory(64, 1);
    let (tagged, cut) = (Channel::Tagged, Oversize::Truncate);
    let mut grown = -balance();
    let node = &world.nodes[0];
    let posted =
        node.endpoint.post_receive(&node.context, tagged, None, 1, u64::MAX, into, cut, 1).unwrap();
    grown += balance();
    assert!(matches!(posted, Posted::Pending(_)));
    let node = &world.nodes[own];
    let (bytes, level) = (Memory::constant(b"here"), Level::Buffered);
    let _ = node.endpoint.post_send(&node.context, hub, tagged, 1, bytes, level, 1).unwrap();
    loop {
        world.nodes[own].endpoint.progress();
        grown += hub_pass(world);
        let before = balance();
        let node = &world.nodes[0];
        if let Some(completed) = node.endpoint.test(&node.context) {
            assert_eq!((completed.outcome, completed.bytes), (Ok(()), 4));
            // Its memory is the caller's.
            grown += balance() - before;
            return grown;
        }
        grown += balance() - before;
    }
}

#[test]
fn an_idle_peer_costs_little_memory() {
    if !allow_descriptors(10 * PEERS as u64) {
        println!("SKIP: {} descriptors are not allowed", 10 * PEERS);
        return;
    }
    for medium in [Medium::Tcp, Medium::Loop, Medium::Udp, Medium::Mxoe] {
        let mut world = World::new(medium);
        world.add();
        join(&mut world);
        let grown: i64 = (1..PEERS).map(|_| join(&mut world)).sum();
        let each = grown as u64 / (PEERS - 1) as u64;
        println!("{medium:?}: {each} bytes of an idle peer");
        assert!(each <= IDLE_BYTES_MAX, "{medium:?}: {each} bytes, over {IDLE_BYTES_MAX}");
        world.nodes[0].endpoint.check();
        world.nodes.clear();
    }
}

const CHILD: &str = "ROPEWALK_SCALE_CHILD";
const MESSAGES: u64 = 1000;

/// Instructions beside few peers and receives, and beside many: at most so many tenths.
const TENTHS_MAX: u64 = 12;

#[test]
#[ignore = "for --deep: runs under valgrind"]
fn what_goes_on_costs_the_same_beside_many() {
    if let Ok(scene) = std::env::var(CHILD) {
        return child(&scene);
    }
    for medium in ["tcp", "loop"] {
        for work in ["common::message", "idle_pass", "cancelled"] {
            let few = instructions(&format!("{medium} few"), work);
            let many = instructions(&format!("{medium} many"), work);
            let (Some(few), Some(many)) = (few, many) else { return };
            println!("{medium}, {work}: {few} instructions beside few, {many} beside many");
            assert!(10 * many <= TENTHS_MAX * few, "{medium}, {work}: {few} and {many}");
        }
    }
}

/// Instructions of one run of `work`.
fn instructions(scene: &str, work: &str) -> Option<u64> {
    let name = "what_goes_on_costs_the_same_beside_many";
    let all = valgrind::instructions(&format!("scale::{work}"), name, CHILD, scene);
    all.map(|all| all / MESSAGES)
}

/// A first node with as many peers and posted receives as the scene says, and one peer who sends.
fn child(scene: &str) {
    let medium = if scene.starts_with("tcp") { Medium::Tcp } else { Medium::Loop };
    let (peers, receives) = if scene.ends_with("many") { (PEERS, 10_000) } else { (1, 10) };
    assert!(allow_descriptors(10 * PEERS as u64), "the descriptors that this needs");
    let mut world = World::new(medium);
    world.add();
    for _ in 0..peers {
        join(&mut world);
    }
    let known = [world.peer(0, 1), world.peer(1, 0)];
    post_others(&mut world, receives, known[0]);
    // Whom these receives are from is found out by calling there.
    while world.nodes[0].endpoint.peer_endpoint(known[0]).is_none() {
        for node in &world.nodes[..2] {
            node.endpoint.progress();
        }
    }
    let mut memories = [world.memory(8, 1), world.memory(8, 1)];
    // Links that carry nothing are not looked at after a while.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_millis(200) {
        world.nodes[0].endpoint.progress();
    }
    for _ in 0..MESSAGES {
        memories = message(&world.nodes[1], &world.nodes[0], known[1], memories);
    }
    for _ in 0..MESSAGES {
        idle_pass(&world.nodes[0]);
    }
    for _ in 0..MESSAGES {
        cancelled(&world.nodes[0], known[0], &world.pool);
    }
    world.nodes.clear();
}

/// Receives that nothing comes for: from one peer and from any, with all bits and without some, alike
/// and each for itself.
fn post_others(world: &mut World, count: u64, peer: PeerId) {
    for number in 0..count {
        let source = (number % 2 == 0).then_some(peer);
        let mask = if number % 3 == 0 { !0xff } else { u64::MAX };
        let alike = number % 5 == 0;
        let (bits, cut) = (if alike { 256 } else { (2 + number) << 8 }, Oversize::Truncate);
        let into = world.memory(8, 1);
        let node = &world.nodes[0];
        let (endpoint, tagged) = (&node.endpoint, Channel::Tagged);
        let posted = endpoint.post_receive(&node.context, tagged, source, bits, mask, into, cut, 9);
        assert!(matches!(posted, Ok(Posted::Pending(_))));
    }
}

/// A receive among others that are like it, and its end.
#[inline(never)]
fn cancelled(node: &Node, peer: PeerId, pool: &Pool) {
    let (tagged, cut) = (Channel::Tagged, Oversize::Truncate);
    let into = Memory::pooled(pool.take(8).unwrap());
    let (endpoint, context) = (&node.endpoint, &node.context);
    let posted =
        endpoint.post_receive(context, tagged, Some(peer), 256, u64::MAX, into, cut, 9).unwrap();
    let Posted::Pending(id) = posted else { panic!("nothing comes for it") };
    endpoint.cancel(id);
    let completed = endpoint.test(context).expect("it has ended");
    assert_eq!((completed.operation, completed.outcome), (id, Err(Fault::Cancelled)));
}

/// A pass that finds nothing. A function of its own, so that profilers can find it.
#[inline(never)]
fn idle_pass(node: &Node) {
    assert!(node.endpoint.test(&node.context).is_none());
}
