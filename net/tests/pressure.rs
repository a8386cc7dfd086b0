//! Messages that nobody receives: memory stays bounded, and the other peers keep their rate. And of
//! several rails the best one that is proven to work carries a peer.

mod common;

use common::{Medium, World, check};
use ropewalk_base::ids::ClusterId;
use ropewalk_base::memory::Memory;
use ropewalk_net::{Channel, Endpoint, EndpointConfig, Level, Oversize};
use ropewalk_rail::Rail;
use ropewalk_rail::address::Address;
use ropewalk_rail_shm::{ShmConfig, ShmRail};
use ropewalk_rail_tcp::{TcpConfig, TcpRail};

/// Messages from one node to another, one after the other; the passes of the receiver that it took.
fn exchange(world: &mut World, from: usize, at: usize, rounds: u64) -> u64 {
    let to = world.peer(from, at);
    let before = world.nodes[at].endpoint.passes();
    for round in 0..rounds {
        let (memory, out) = (world.memory(100, 0), world.memory(100, 9));
        let (channel, mask, cut) = (Channel::Tagged, u64::MAX, Oversize::Truncate);
        let node = &world.nodes[at];
        let source = None;
        let posted = node.endpoint.post_receive(
            &node.context,
            channel,
            source,
            1,
            mask,
            memory,
            cut,
            5000 + round,
        );
        world.posted(at, posted);
        let node = &world.nodes[from];
        let level = Level::Buffered;
        let posted = node.endpoint.post_send(&node.context, to, channel, 1, out, level, round);
        world.posted(from, posted);
        let received = world.take(at, 5000 + round);
        assert_eq!(received.outcome, Ok(()));
        check(received.memory, 100, 9);
        assert_eq!(world.take(from, round).outcome, Ok(()));
    }
    world.nodes[at].endpoint.passes() - before
}

#[test]
fn announces_that_nobody_pulls_wait_at_their_sender_and_slow_nobody_down() {
    const ANNOUNCES: u64 = 100_000;
    static BYTES: [u8; 64 * 1024] = [7; 64 * 1024];
    for medium in [Medium::Loop, Medium::Tcp] {
        let mut world = World::pair(medium);
        let third = world.add();
        let quiet = exchange(&mut world, third, 1, 500);
        let to = world.peer(0, 1);
        for number in 0..ANNOUNCES {
            let node = &world.nodes[0];
            let memory = Memory::constant(&BYTES);
            let (channel, level) = (Channel::Tagged, Level::Buffered);
            let posted =
                node.endpoint.post_send(&node.context, to, channel, 2, memory, level, number);
            world.posted(0, posted);
            if number % 1000 == 0 {
                world.step();
            }
        }
        let flooded = exchange(&mut world, third, 1, 500);
        // The window of announces; nothing of their bytes is here.
        let waiting = world.nodes[1].endpoint.unmatched_count();
        assert_eq!(waiting, 1024, "{medium:?}: announces at the receiver");
        assert!(
            flooded * 9 <= quiet * 10 + 90,
            "{medium:?}: {flooded} passes of the receiver instead of {quiet}"
        );
        world.nodes.iter().for_each(|node| node.endpoint.check());
        // The sender gives up: all end, each once.
        world.nodes[0].endpoint.close();
        let mut ended = 0;
        while let Some(completed) = world.nodes[0].endpoint.test(&world.nodes[0].context) {
            assert!(completed.outcome.is_err());
            ended += 1;
        }
        assert_eq!(ended + world.nodes[0].done.len() as u64, ANNOUNCES);
    }
}

/// An endpoint with a rail for this host and one for any, known by its tcp address alone.
fn two_rails(world: &mut World, name: &str, host: Option<u64>) -> usize {
    let name = format!("{name}-{}", std::process::id());
    let rails: Vec<Box<dyn Rail>> = vec![
        Box::new(ShmRail::open(ShmConfig::named(name)).unwrap()),
        Box::new(TcpRail::open(TcpConfig::listening("127.0.0.1:0".parse().unwrap())).unwrap()),
    ];
    let mut config = EndpointConfig::new(ClusterId(1));
    config.service_thread = false;
    config.host = host.unwrap_or(config.host);
    let endpoint = Endpoint::open(config, rails).unwrap();
    let context = endpoint.context(true).unwrap();
    world.nodes.push(common::Node { endpoint, context, done: Vec::new() });
    world.nodes.len() - 1
}

/// The rail that carries messages between two such endpoints, of which one knows the other by tcp.
fn rail_between(hosts: [Option<u64>; 2], names: [&str; 2]) -> Option<&'static str> {
    let mut world = World::new(Medium::Tcp);
    two_rails(&mut world, names[0], hosts[0]);
    two_rails(&mut world, names[1], hosts[1]);
    let addresses = world.nodes[1].endpoint.addresses().to_string();
    let tcp = addresses.split(',').find(|address| address.starts_with("tcp://")).unwrap();
    let to = world.nodes[0].endpoint.lookup(&Address::parse(tcp).unwrap()).unwrap();
    for number in 0..20 {
        let memory = world.memory(100, 3);
        let node = &world.nodes[0];
        let (channel, level) = (Channel::Request, Level::Delivered);
        let posted = node.endpoint.post_send(&node.context, to, channel, 0, memory, level, number);
        world.posted(0, posted);
        assert_eq!(world.take(0, number).outcome, Ok(()));
    }
    world.nodes[0].endpoint.peer_rail(to)
}

#[test]
fn of_two_rails_the_shared_memory_is_taken_where_it_is_proven_to_be_shared() {
    assert_eq!(rail_between([None, None], ["same-a", "same-b"]), Some("shm"));
    // Another host, or another network namespace on this one.
    assert_eq!(rail_between([Some(1), Some(2)], ["other-a", "other-b"]), Some("tcp"));
    // Hosts that do not know who they are do not look for shared memory.
    assert_eq!(rail_between([Some(0), Some(0)], ["none-a", "none-b"]), Some("tcp"));
}

#[test]
fn one_pass_sends_a_bounded_amount_to_a_peer_that_reads_as_fast_as_it_can() {
    static BYTES: [u8; 32 << 20] = [7; 32 << 20];
    let mut world = World::pair(Medium::Tcp);
    exchange(&mut world, 0, 1, 10);
    let to = world.peer(0, 1);
    let memory = world.memory(32 << 20, 0);
    let (channel, mask, cut) = (Channel::Tagged, u64::MAX, Oversize::Truncate);
    let node = &world.nodes[1];
    let posted = node.endpoint.post_receive(&node.context, channel, None, 7, mask, memory, cut, 7);
    world.posted(1, posted);
    let node = &world.nodes[0];
    let (out, level) = (Memory::constant(&BYTES), Level::Buffered);
    let posted = node.endpoint.post_send(&node.context, to, channel, 7, out, level, 8);
    world.posted(0, posted);
    // The receiver reads all the time, on a thread of its own.
    let (sender, receiver) = (world.nodes[0].endpoint.clone(), world.nodes[1].endpoint.clone());
    let context = world.nodes[1].context.clone();
    let sent = |endpoint: &Endpoint| endpoint.counters().1[0].1.bytes_sent;
    let most = std::thread::scope(|scope| {
        let reader = scope.spawn(|| while receiver.test(&context).is_none() {});
        let mut most = 0;
        while !reader.is_finished() {
            let before = sent(&sender);
            sender.progress();
            most = most.max(sent(&sender) - before);
        }
        most
    });
    assert!(most < 3 << 20, "{most} bytes in one pass");
}
