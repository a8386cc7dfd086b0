//! One endpoint under several names: messages posted under all of them arrive in the order of the posts.

use crate::common::{Medium, WITH_TAGS, World};
use ropewalk_base::error::Fault;
use ropewalk_base::memory::Memory;
use ropewalk_net::{Channel, Level, Oversize, PeerId};
use ropewalk_rail::address::Address;

const LEN: usize = 8 << 10;

fn send(world: &mut World, to: PeerId, number: u64) {
    let memory = world.memory(LEN, number as u8);
    let (channel, level) = (Channel::Tagged, Level::Buffered);
    let node = &world.nodes[0];
    let posted = node.endpoint.post_send(&node.context, to, channel, number, memory, level, number);
    world.posted(0, posted);
}

/// The bits of the next messages at the second endpoint, with any bits.
fn receive(world: &mut World, count: u64) -> Vec<u64> {
    let mut numbers = Vec::new();
    for user in 0..count {
        let memory = world.memory(LEN, 0);
        let node = &world.nodes[1];
        let (channel, cut) = (Channel::Tagged, Oversize::Truncate);
        let posted =
            node.endpoint.post_receive(&node.context, channel, None, 0, 0, memory, cut, user);
        world.posted(1, posted);
        numbers.push(world.take(1, user).bits);
    }
    numbers
}

#[test]
fn a_lookup_for_each_message_changes_no_order() {
    const COUNT: u64 = 48;
    for medium in WITH_TAGS {
        let mut world = World::pair(medium);
        let first = world.peer(0, 1);
        for number in 0..COUNT {
            // Everybody has its own, and some use theirs again.
            let peer = if number % 3 == 0 { first } else { world.peer(0, 1) };
            send(&mut world, peer, number);
        }
        assert_eq!(receive(&mut world, COUNT), Vec::from_iter(0..COUNT), "{medium:?}");
        for number in COUNT..2 * COUNT {
            let peer = world.peer(0, 1);
            send(&mut world, peer, number);
            if number % 5 == 0 {
                world.step();
            }
        }
        assert_eq!(receive(&mut world, COUNT), Vec::from_iter(COUNT..2 * COUNT), "{medium:?}");
    }
}

#[test]
fn what_waits_under_two_names_is_sent_in_the_order_of_its_posts() {
    /// More than there is credit for.
    const BEFORE: u64 = 2000;
    const ALL_OF_THEM: u64 = BEFORE + 40;
    for medium in WITH_TAGS {
        let mut world = World::pair(medium);
        let known = world.peer(0, 1);
        for number in 0..BEFORE {
            send(&mut world, known, number);
        }
        world.until("session", |world| world.nodes[0].endpoint.peer_endpoint(known).is_some());
        let text = world.nodes[1].endpoint.addresses().to_string();
        let other = Address::parse(&format!("{text},{text}")).unwrap();
        let other = world.nodes[0].endpoint.lookup(&other).unwrap();
        assert!(!world.nodes[0].endpoint.same_peer(known, other), "nobody knows yet");
        for number in BEFORE..ALL_OF_THEM {
            send(&mut world, if number % 2 == 0 { other } else { known }, number);
        }
        world.until("one name", |world| world.nodes[0].endpoint.same_peer(known, other));
        let numbers = receive(&mut world, ALL_OF_THEM).split_off(BEFORE as usize);
        assert_eq!(numbers, Vec::from_iter(BEFORE..ALL_OF_THEM), "{medium:?}");
    }
}

/// A message to an address; how it ended.
fn ended_at(world: &mut World, text: &str) -> Result<(), Fault> {
    let peer = world.nodes[0].endpoint.lookup(&Address::parse(text).unwrap()).unwrap();
    let (bytes, node) = (Memory::constant(b"here"), &world.nodes[0]);
    let (tagged, level) = (Channel::Tagged, Level::Matched);
    let posted = node.endpoint.post_send(&node.context, peer, tagged, 1, bytes, level, 7);
    world.posted(0, posted);
    world.take(0, 7).outcome
}

#[test]
fn hosts_have_names() {
    for medium in [Medium::Tcp, Medium::Udp] {
        let mut world = World::pair(medium);
        let text = world.nodes[1].endpoint.addresses().to_string();
        let (scheme, rest) = text.split_once("://").unwrap();
        let port = rest.split(',').next().unwrap().rsplit_once(':').unwrap().1;
        let (memory, node) = (world.memory(8, 1), &world.nodes[1]);
        let (tagged, cut) = (Channel::Tagged, Oversize::Truncate);
        let posted =
            node.endpoint.post_receive(&node.context, tagged, None, 1, u64::MAX, memory, cut, 8);
        world.posted(1, posted);
        let outcome = ended_at(&mut world, &format!("{scheme}://localhost:{port}"));
        assert_eq!(outcome, Ok(()), "{medium:?}");
        assert_eq!(world.take(1, 8).bytes, 4);
        // No name server gives that one to anybody (RFC 6761).
        let outcome = ended_at(&mut world, &format!("{scheme}://nobody.invalid:{port}"));
        assert_eq!(outcome, Err(Fault::Unreachable), "{medium:?}");
    }
}
