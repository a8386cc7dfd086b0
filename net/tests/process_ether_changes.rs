//! Interfaces that take shorter frames, or go, while messages are under way: links that cannot go on end, and the next
//! ones fit. Once with a patience that is short, and in `--deep` with the one that users have.

mod common;
mod namespace;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::Node;
use namespace::{Namespace, card, ip};
use ropewalk_base::error::Fault;
use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_net::modules::{Listen, open};
use ropewalk_net::packets::PacketRail;
use ropewalk_net::{Channel, Endpoint, EndpointConfig, Level, Oversize, PeerId, Posted};
use ropewalk_rail::Rail;
use ropewalk_rail::address::Address;
use ropewalk_rail::port::Port;
use ropewalk_rail_ether::{EtherConfig, EtherPort, SocketKind, Sockets};
use ropewalk_transport::packets::{Machine, PacketConfig};

/// Nothing that is waited for takes longer.
const LIMIT: Duration = Duration::from_secs(40);
/// A peer that owes an answer for so long is gone.
const SOON: Duration = Duration::from_millis(500);

/// The sockets for frames, and the time for which peers may owe an answer, if it differs from the users' default.
#[derive(Clone, Copy)]
struct Way {
    kind: SocketKind,
    patience: Option<Duration>,
}

const QUICK: Way = Way { kind: SocketKind::Packet, patience: Some(SOON) };
const XDP: Way = Way { kind: SocketKind::Xdp, ..QUICK };
const USUAL: Way = Way { patience: None, ..QUICK };

/// A rail on a card.
fn rail(card: &str, way: Way) -> Box<dyn Rail> {
    let Some(give_up_after) = way.patience else {
        return open("ether", &Listen::At { address: card, exactly: true }).expect("it is up");
    };
    let sockets = Sockets { kind: way.kind, ..Sockets::default() };
    let config = EtherConfig { sockets, ..EtherConfig::listening(card).expect("an address") };
    let port = EtherPort::open(&config).expect("the card is up");
    assert_eq!(port.has_xdp(), way.kind == SocketKind::Xdp);
    let start = Instant::now();
    let clock = Arc::new(move || Time(start.elapsed().as_nanos() as u64));
    let config = PacketConfig {
        endpoint: port.endpoint(),
        packet_bytes: port.packet_bytes(),
        pieces_max: (port.packets_max() / 2).max(1),
        accepts: true,
        links_max: 100,
        give_up_after,
    };
    let machine = Machine::new(config, Random::from_seed(port.endpoint().into()));
    Box::new(PacketRail::speaking(machine, port, clock).expect("there are descriptors"))
}

/// An endpoint that nobody reaches but by its card.
fn node(card: &str, way: Way) -> Node {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let mut config = EndpointConfig::new(ClusterId(1));
    config.endpoint = EndpointId(number.into());
    config.incarnation = Incarnation(number);
    config.host = 0;
    config.service_thread = false;
    let rails = vec![rail(card, way)];
    let endpoint = Endpoint::open(config, rails).expect("there are descriptors");
    let context = endpoint.context(true).expect("there are descriptors");
    Node { endpoint, context, done: Vec::new() }
}

fn peer(of: &Node, other: &Node) -> PeerId {
    let address = Address::parse(other.endpoint.addresses()).expect("it listens");
    of.endpoint.lookup(&address).expect("an address of its rail")
}

/// Sends a message of so many bytes; how it ended for the sender, in the end.
fn send_long(own: &Node, other: &Node, to: PeerId, bytes: usize) -> Result<(), Fault> {
    let pool = Pool::with_budget(8 << 20);
    let memory = || Memory::pooled(pool.take(bytes).expect("the pool is large"));
    let (tagged, cut) = (Channel::Tagged, Oversize::Truncate);
    let receive =
        other.endpoint.post_receive(&other.context, tagged, None, 3, u64::MAX, memory(), cut, 1);
    assert!(receive.is_ok());
    let posted = own.endpoint.post_send(&own.context, to, tagged, 3, memory(), Level::Delivered, 2);
    let sent = match posted {
        Ok(Posted::Done(completed)) => completed,
        Ok(Posted::Pending(_)) => loop {
            other.endpoint.progress();
            if let Some(completed) = own.endpoint.test(&own.context) {
                break completed;
            }
        },
        Err((_, fault)) => return Err(fault),
    };
    // Cancels the receive that was posted for the message.
    if let Ok(Posted::Pending(id)) = receive {
        other.endpoint.cancel(id);
        while other.endpoint.test(&other.context).is_none() {
            own.endpoint.progress();
        }
    }
    sent.outcome
}

/// The interface takes shorter frames, and then as long ones as before.
fn narrow(way: Way) {
    let Some(_namespace) = Namespace::enter() else { return };
    let (here, there) = (card(9000), card(9000));
    let (own, other) = (node(&here, way), node(&there, way));
    let to = peer(&own, &other);
    assert_eq!(send_long(&own, &other, to, 400_000), Ok(()));
    assert!(ip(&format!("link set {here} mtu 1500")));
    let begin = Instant::now();
    let mut faults = Vec::new();
    while let Err(fault) = send_long(&own, &other, to, 400_000) {
        faults.push((begin.elapsed(), fault));
        assert!(begin.elapsed() < 3 * LIMIT, "{faults:?}");
    }
    println!("in between, {:?}: {faults:?}", begin.elapsed());
    let drops = own.endpoint.counters().1[0].1.drops;
    assert!(drops.unsent > 0, "{drops:?}");
    // And one that takes longer ones again.
    assert!(ip(&format!("link set {here} mtu 9000")));
    assert_eq!(send_long(&own, &other, to, 400_000), Ok(()));
}

/// The interface is removed.
fn remove(way: Way) {
    let Some(_namespace) = Namespace::enter() else { return };
    let (here, there) = (card(1500), card(1500));
    let (own, other) = (node(&here, way), node(&there, way));
    let to = peer(&own, &other);
    assert_eq!(send_long(&own, &other, to, 1000), Ok(()));
    assert!(ip(&format!("link del {here}")));
    let begin = Instant::now();
    let fault = send_long(&own, &other, to, 1000).expect_err("there is no way");
    println!("{fault} after {:?}", begin.elapsed());
    assert!(begin.elapsed() < LIMIT);
    assert_eq!(send_long(&own, &other, to, 1000), Err(Fault::Unreachable));
}

#[test]
fn cards_that_take_shorter_frames_than_those_of_their_peers_are_reached() {
    let Some(_namespace) = Namespace::enter() else { return };
    let (here, there) = (card(1500), card(1500));
    assert!(ip(&format!("link set {there} mtu 1000")));
    for (calls, called) in [(&here, &there), (&there, &here)] {
        let (own, other) = (node(calls, USUAL), node(called, USUAL));
        let to = peer(&own, &other);
        assert_eq!(send_long(&own, &other, to, 400_000), Ok(()), "{calls} calls");
    }
}

#[test]
fn an_interface_that_takes_shorter_frames_ends_its_links_and_new_ones_fit() {
    narrow(QUICK);
}

#[test]
fn links_over_an_interface_that_is_gone_end() {
    remove(QUICK);
}

#[test]
fn links_by_af_xdp_end_with_what_their_interface_takes_and_new_ones_fit() {
    narrow(XDP);
    remove(XDP);
}

#[test]
#[ignore = "for --deep: waits until links are given up"]
fn links_end_with_their_interface_also_where_nobody_shortens_their_patience() {
    narrow(USUAL);
    remove(USUAL);
}
