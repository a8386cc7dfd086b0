//! How much of a session's traffic lies unacknowledged in the kernel's queue of one of several paths over tcp: what a path that dies
//! keeps, and what has to go again.

mod common;
mod wired;

use std::time::{Duration, Instant};

use common::{Medium, World};
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{Channel, Level, Mode, Oversize, PeerId};
use ropewalk_netns::{Fault, FaultKind, Host, Joint, Topology};
use ropewalk_rail::Rail;
use wired::network;

const MS: Duration = Duration::from_millis(1);
/// Of each rail.
const KBIT: u64 = 100_000;
/// The bound of a bundle's path, which is greater than twice its rate in 5 ms; and what may be unsent in the kernel.
const MOST: u64 = (1 << 20) + (64 << 10);

/// The bytes that the kernel has of the fullest connection at this thread's host: those that are not acknowledged, and those that
/// did not leave.
fn fullest() -> u64 {
    let table = std::fs::read_to_string("/proc/thread-self/net/tcp").expect("the kernel tells");
    let connections = table.lines().skip(1).filter_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Of a listener these are calls that wait.
        (words[3] != "0A").then(|| words[4].split(':').next()).flatten()
    });
    connections.map(|bytes| u64::from_str_radix(bytes, 16).expect("a number")).max().unwrap_or(0)
}

fn rails(host: Host<'_>) -> Vec<Box<dyn Rail>> {
    let open = |rail: usize| {
        let address = format!("{}:0?interface={}", host.address(rail), host.interface(rail));
        let listen = Listen::At { address: &address, exactly: true };
        modules::open("tcp", &listen).expect("the interface is there")
    };
    host.within(|| (0..2).map(open).collect())
}

/// Two endpoints with two paths between them, the first one at this thread's host.
fn world(net: &Topology) -> World {
    let mut world = World::new(Medium::Tcp);
    world.mode = Mode::Resume;
    for host in 0..2 {
        world.add_over_all(rails(net.host(host)), |config| {
            (config.host, config.core.paths_max) = (0, 2);
            config.core.operations_max = 1 << 14;
        });
    }
    world
}

/// A message of so many bytes from the first to the second.
fn post(world: &mut World, to: PeerId, number: u64, bytes: usize) {
    let (room, memory) = (world.memory(bytes, 0), world.memory(bytes, number as u8));
    let (node, channel, cut) = (&world.nodes[1], Channel::Tagged, Oversize::Truncate);
    let posted = node.endpoint.post_receive(&node.context, channel, None, 0, 0, room, cut, number);
    world.posted(1, posted);
    let node = &world.nodes[0];
    let level = Level::Delivered;
    let posted = node.endpoint.post_send(&node.context, to, channel, number, memory, level, number);
    world.posted(0, posted);
}

/// Messages of so many bytes, so many at a time, for so long; the most that the kernel had of a connection.
fn run(world: &mut World, bytes: usize, depth: u64, sent: &mut u64, length: Duration) -> u64 {
    let (to, end) = (world.peer(0, 1), Instant::now() + length);
    let mut most = 0;
    while Instant::now() < end {
        while *sent < world.nodes[1].done.len() as u64 + depth {
            post(world, to, *sent, bytes);
            *sent += 1;
        }
        (0..20).for_each(|_| world.step());
        most = most.max(fullest());
    }
    most
}

#[test]
fn a_path_that_dies_keeps_little_however_much_there_is_to_send() {
    let Some(net) = network(Joint::Switched) else { return };
    let slow = |rail| net.inject(&Fault::new(FaultKind::Rate { kbit: KBIT }, 0, rail));
    let slow = [0, 1].map(|rail| slow(rail).expect("it can be injected"));
    for (bytes, depth) in [(1 << 20, 16), (4000, 4000)] {
        let (mut world, mut sent) = (world(&net), 0);
        run(&mut world, bytes, 1, &mut sent, 50 * MS);
        world.until("two paths", |world| {
            world.nodes.iter().all(|node| node.endpoint.counters().0.paths_joined > 0)
        });
        let well = run(&mut world, bytes, depth, &mut sent, 600 * MS);
        let re_sent = |world: &World| world.nodes[0].endpoint.counters().0.frames_re_sent;
        let before = re_sent(&world);
        let cut = net.inject(&Fault::new(FaultKind::Cut, 0, 0)).expect("it can be injected");
        let broken = run(&mut world, bytes, depth, &mut sent, 300 * MS);
        let again = re_sent(&world) - before;
        cut.mend().expect("it can be mended");
        println!("{bytes} bytes: at most {well} in the kernel, {broken} when cut, {again} again");
        world.until("the last one", |world| world.nodes[1].done.len() as u64 == sent);
        assert!(well <= MOST && broken <= MOST, "{bytes} bytes: {well}, {broken}");
        assert!(again * bytes.min(64 << 10) as u64 <= 2 * MOST, "{bytes} bytes: {again} again");
    }
    slow.into_iter().for_each(|slow| slow.mend().expect("it can be mended"));
}
