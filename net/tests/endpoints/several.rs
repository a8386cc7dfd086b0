//! Sessions over rails that may fail alone have several paths without being told so.

use std::time::Duration;

use crate::common::{Medium, World, check};
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{Channel, EndpointConfig, Level, Oversize};
use ropewalk_rail::Rail;

const COUNT: u64 = 60;
const BYTES: usize = 5_000;

/// Rails at these addresses.
fn rails(addresses: &[&str]) -> Vec<Box<dyn Rail>> {
    let open = |address: &&str| {
        let listen = Listen::At { address, exactly: true };
        modules::open("tcp", &listen).expect("the loopback interface has it")
    };
    addresses.iter().map(open).collect()
}

/// Two endpoints, each over these two rails, that have sent each other a message.
fn pair(addresses: [&str; 2], set: impl Fn(&mut EndpointConfig)) -> World {
    let mut world = World::new(Medium::Tcp);
    for _ in 0..2 {
        world.add_over_all(rails(&addresses), &set);
    }
    send(&mut world, 0);
    world.take(0, 0);
    take(&mut world, 0);
    world
}

/// The first endpoint sends a message that it may forget once it is posted.
fn send(world: &mut World, bits: u64) {
    let to = world.peer(0, 1);
    let (memory, level) = (world.memory(BYTES, bits as u8), Level::Buffered);
    let node = &world.nodes[0];
    let (channel, context) = (Channel::Tagged, &node.context);
    let posted = node.endpoint.post_send(context, to, channel, bits, memory, level, bits);
    world.posted(0, posted);
}

/// The last endpoint receives it.
fn take(world: &mut World, bits: u64) {
    let last = world.nodes.len() - 1;
    let (memory, cut) = (world.memory(BYTES, 0), Oversize::Truncate);
    let node = &world.nodes[last];
    let (channel, context, mask) = (Channel::Tagged, &node.context, u64::MAX);
    let posted = node.endpoint.post_receive(context, channel, None, bits, mask, memory, cut, bits);
    world.posted(last, posted);
    let got = world.take(last, bits);
    assert_eq!(got.outcome, Ok(()), "{bits}");
    check(got.memory, BYTES, bits as u8);
}

/// Paths that have joined the session, on either side.
fn joined(world: &World) -> u64 {
    world.nodes.iter().map(|node| node.endpoint.counters().0.paths_joined).min().unwrap_or(0)
}

const BOUND: [&str; 2] = ["127.0.0.1:0?source=127.0.0.1", "127.0.0.2:0?source=127.0.0.2"];

#[test]
fn rails_that_are_bound_apart_make_two_paths() {
    let mut world = pair(BOUND, |_| {});
    world.until("a second path", |world| joined(world) == 1);
    (1..COUNT).for_each(|bits| send(&mut world, bits));
    (1..COUNT).for_each(|bits| take(&mut world, bits));
}

#[test]
fn rails_of_one_place_make_one_path_and_so_does_a_user_who_wants_one() {
    let free = pair(["127.0.0.1:0", "127.0.0.2:0"], |_| {});
    let unwanted = pair(BOUND, |config| config.core.paths_max = 1);
    for mut world in [free, unwanted] {
        let (end, mut rounds) = (std::time::Instant::now() + Duration::from_millis(100), 0);
        world.until("some time", |_| {
            rounds += 1;
            std::time::Instant::now() > end
        });
        assert!(rounds > 10 && joined(&world) == 0);
    }
}

#[test]
fn an_endpoint_with_two_paths_that_settled_loses_nothing_when_it_is_closed() {
    let mut world = pair(BOUND, |config| {
        config.service_thread = true;
        config.core.eager_window_bytes = 1 << 20;
    });
    world.until("a second path", |world| joined(world) == 1);
    (1..COUNT).for_each(|bits| send(&mut world, bits));
    world.until("all left", |world| world.nodes[0].done.len() as u64 == COUNT - 1);
    let sender = world.nodes.remove(0);
    sender.endpoint.settle(Duration::from_secs(30));
    sender.endpoint.close();
    drop(sender);
    (1..COUNT).for_each(|bits| take(&mut world, bits));
}

#[test]
fn a_message_that_its_receiver_took_before_it_closed_is_no_failure() {
    for _ in 0..20 {
        let mut world = pair(BOUND, |_| {});
        world.until("a second path", |world| joined(world) == 1);
        send(&mut world, 1);
        take(&mut world, 1);
        // Its word of that is due a little later.
        let receiver = world.nodes.remove(1);
        receiver.endpoint.close();
        assert_eq!(world.take(0, 1).outcome, Ok(()));
    }
}
