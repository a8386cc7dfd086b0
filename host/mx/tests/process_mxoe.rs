//! MXoE in raw Ethernet frames: endpoints on two cards of a network namespace, in both modes and byte orders.

#[path = "../../../net/tests/common/mod.rs"]
mod common;
#[path = "../../../net/tests/namespace/mod.rs"]
mod namespace;

use common::{Medium, World, check};
use namespace::{Namespace, card};
use ropewalk_base::error::Fault;
use ropewalk_host_mx::module::register;
use ropewalk_net::modules::{self, Listen, ModuleError};
use ropewalk_net::{Channel, Level, Oversize};
use ropewalk_rail::Rail;
use ropewalk_rail::address::Address;

/// On both sides of every class edge, and longer than one block of pulls.
const LENGTHS: [usize; 15] =
    [0, 1, 32, 33, 128, 129, 1452, 1453, 4096, 4097, 16_384, 16_385, 32_769, 300_000, 2_000_000];

fn rail(address: &str) -> Result<Box<dyn Rail>, ModuleError> {
    register();
    modules::open("mxoe", &Listen::At { address, exactly: true })
}

/// Two endpoints, each on a card of its own.
fn pair(mtu: u32, wire: &str) -> World {
    let mut world = World::new(Medium::Mxoe);
    for endpoint in [3, 0] {
        let address = format!("{}/{endpoint}?{wire}", card(mtu));
        world.add_over(rail(&address).unwrap(), |_| {});
    }
    world
}

fn receive(world: &mut World, at: usize, len: usize, user: u64) {
    let memory = world.memory(len, 0);
    let node = &world.nodes[at];
    let (any, whole) = (None, Oversize::Truncate);
    let posted = node.endpoint.post_receive(
        &node.context,
        Channel::Tagged,
        any,
        user,
        u64::MAX,
        memory,
        whole,
        user,
    );
    world.posted(at, posted);
}

/// Messages of all lengths there and back; every second one before its receive is posted.
fn exchange(world: &mut World) {
    for (from, to) in [(0, 1), (1, 0)] {
        let peer = world.peer(from, to);
        for (number, len) in LENGTHS.into_iter().enumerate() {
            let (user, late) = (100 + number as u64, number % 2 == 1);
            if !late {
                receive(world, to, len, user);
            }
            let memory = world.memory(len, number as u8);
            let level = [Level::Buffered, Level::Delivered, Level::Matched][number % 3];
            let node = &world.nodes[from];
            let (context, tagged) = (&node.context, Channel::Tagged);
            let posted =
                node.endpoint.post_send(context, peer, tagged, user, memory, level, user + 1000);
            world.posted(from, posted);
            if late {
                (0..50).for_each(|_| world.step());
                receive(world, to, len, user);
            }
            let received = world.take(to, user);
            assert_eq!((received.outcome, received.bytes), (Ok(()), len as u64));
            check(received.memory, len, number as u8);
            let sent = world.take(from, user + 1000);
            assert_eq!((sent.outcome, sent.bytes), (Ok(()), len as u64), "{len} bytes");
        }
    }
}

#[test]
fn messages_go_both_ways_in_both_modes_and_byte_orders() {
    let Some(_namespace) = Namespace::enter() else { return };
    for (mtu, wire) in [
        (1500, "key=0x12345678"),
        (1500, "order=little"),
        (9000, "key=7"),
        (9000, "frame=1500&order=little"),
        (9000, "mode=compatible"),
    ] {
        let mut world = pair(mtu, wire);
        exchange(&mut world);
    }
}

#[test]
fn a_wrong_key_is_refused_at_once_and_the_right_one_may_be_in_the_address() {
    let Some(_namespace) = Namespace::enter() else { return };
    let mut world = World::new(Medium::Mxoe);
    world.add_over(rail(&format!("{}/1?key=1", card(1500))).unwrap(), |_| {});
    world.add_over(rail(&format!("{}/2?key=2", card(1500))).unwrap(), |_| {});
    let own = world.nodes[1].endpoint.addresses().to_string();
    for (query, outcome) in [("", Err(Fault::NotPermitted)), ("?key=2", Ok(()))] {
        let address = Address::parse(&format!("{own}{query}")).unwrap();
        let peer = world.nodes[0].endpoint.lookup(&address).unwrap();
        let memory = world.memory(10, 1);
        let node = &world.nodes[0];
        let level = Level::Delivered;
        let posted =
            node.endpoint.post_send(&node.context, peer, Channel::Tagged, 5, memory, level, 1);
        world.posted(0, posted);
        assert_eq!(world.take(0, 1).outcome, outcome, "{query}");
    }
}

#[test]
fn what_a_wire_cannot_be_is_said() {
    let Some(_namespace) = Namespace::enter() else { return };
    let card = card(1500);
    for (wire, says) in [
        ("mode=compatible", "do not fit"),
        ("frame=9000", "do not fit"),
        ("frame=10", "is not a valid setting for MXoE"),
        ("order=middle", "is not a valid setting for MXoE"),
        ("secret=1", "is not a valid setting for MXoE"),
        ("silence=0", "is not a valid setting for MXoE"),
        ("silence=-1", "is not a valid setting for MXoE"),
        ("silence=nan", "is not a valid setting for MXoE"),
        ("silence=1e30", "is not a valid setting for MXoE"),
    ] {
        let error = rail(&format!("{card}/1?{wire}")).err().expect("it cannot be").to_string();
        assert!(error.contains(says), "{wire}: {error}");
    }
}
