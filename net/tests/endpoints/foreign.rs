//! Foreign peers: the messages held for them, the information that they cannot be given, and their end.

use std::net::UdpSocket;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::{Medium, World, check, foreign_rail};
use ropewalk_base::error::Fault;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{RemoteKey, RemoteLayout};
use ropewalk_net::{Channel, Direction, Level, Oversize, PeerId};
use ropewalk_rail::address::Address;
use ropewalk_wire::mxoe::{
    Connect, ConnectReply, Dialect, Fragment, HEADER_BYTES_MAX, Message, Nack, NackMcp, Order,
    Packet, Rendezvous, Sequence,
};

fn send(world: &mut World, peer: PeerId, channel: Channel, len: usize, user: u64) {
    let memory = world.memory(len, user as u8);
    let node = &world.nodes[0];
    let level = Level::Delivered;
    let posted = node.endpoint.post_send(&node.context, peer, channel, user, memory, level, user);
    world.posted(0, posted);
}

fn receive(world: &mut World, len: usize, user: u64) {
    let memory = world.memory(len, 0);
    let node = &world.nodes[1];
    let (any, whole) = (None, Oversize::Truncate);
    let (context, tagged, mask) = (&node.context, Channel::Tagged, u64::MAX);
    let posted = node.endpoint.post_receive(context, tagged, any, user, mask, memory, whole, user);
    world.posted(1, posted);
}

#[test]
fn what_a_foreign_peer_sends_and_nobody_takes_is_bounded_and_nothing_is_lost() {
    const COUNT: u64 = 500;
    const LEN: usize = 4096;
    let mut world = World::new(Medium::Mxoe);
    world.add();
    world.add_with(|config| {
        config.core.eager_window_bytes = 64 << 10;
        config.core.eager_window_bytes_max = 128 << 10;
    });
    let peer = world.peer(0, 1);
    for user in 0..COUNT {
        send(&mut world, peer, Channel::Tagged, LEN, user);
    }
    for _ in 0..20_000 {
        world.step();
    }
    let held = world.nodes[1].endpoint.counters().0.bytes_unmatched;
    assert!((32 << 10..=128 << 10).contains(&held), "{held} bytes are held");
    for user in 0..COUNT {
        receive(&mut world, LEN, user);
        let received = world.take(1, user);
        assert_eq!((received.outcome, received.bytes), (Ok(()), LEN as u64), "{user}");
        check(received.memory, LEN, user as u8);
    }
    for user in 0..COUNT {
        assert_eq!(world.take(0, user).outcome, Ok(()));
    }
}

#[test]
fn what_a_foreign_peer_has_no_word_for_is_refused() {
    let mut world = World::pair(Medium::Mxoe);
    let peer = world.peer(0, 1);
    send(&mut world, peer, Channel::Tagged, 10, 1);
    receive(&mut world, 10, 1);
    world.take(1, 1);
    send(&mut world, peer, Channel::Request, 10, 2);
    assert_eq!(world.take(0, 2).outcome, Err(Fault::NotPermitted));
    let key = RemoteKey { slot: SlotId { index: 0, generation: 1 }, secret: 1 };
    for (user, direction) in [(3, Direction::Get), (4, Direction::Put)] {
        let memory = world.memory(100, 0);
        let node = &world.nodes[0];
        let remote = RemoteLayout::At(0);
        let posted =
            node.endpoint.post_access(&node.context, direction, peer, key, remote, memory, user);
        world.posted(0, posted);
        assert_eq!(world.take(0, user).outcome, Err(Fault::NotPermitted));
    }
    // Nothing of that hurts the others.
    send(&mut world, peer, Channel::Tagged, 100_000, 5);
    receive(&mut world, 100_000, 5);
    assert_eq!(world.take(1, 5).outcome, Ok(()));
    assert_eq!(world.take(0, 5).bytes, 100_000);
}

#[test]
fn a_sender_learns_how_much_was_taken() {
    // A word, too, is fetched by the rail: its peer knows no other way.
    for taken in [60_000, 8, 4, 2, 1] {
        let mut world = World::pair(Medium::Mxoe);
        let peer = world.peer(0, 1);
        receive(&mut world, taken, 1);
        send(&mut world, peer, Channel::Tagged, 100_000, 1);
        let received = world.take(1, 1);
        assert_eq!((received.outcome, received.bytes), (Err(Fault::Truncated), taken as u64));
        let sent = world.take(0, 1);
        assert_eq!((sent.outcome, sent.bytes), (Ok(()), taken as u64));
    }
}

/// A peer that was forgotten may be wanted again at once, also while messages are under way.
#[test]
fn who_was_forgotten_is_reached_again_at_once() {
    for under_way in [0, 1, 20] {
        let mut world = World::pair(Medium::Mxoe);
        let mut next = 0;
        for round in 0..4 {
            let peer = world.peer(0, 1);
            send(&mut world, peer, Channel::Tagged, 10, next);
            receive(&mut world, 10, next);
            assert_eq!(world.take(1, next).outcome, Ok(()), "{under_way} under way, round {round}");
            assert_eq!(world.take(0, next).outcome, Ok(()));
            next += 1;
            for user in next..next + under_way {
                send(&mut world, peer, Channel::Tagged, 50_000, user);
            }
            world.nodes[0].endpoint.forget(peer);
            for user in next..next + under_way {
                assert_eq!(world.take(0, user).outcome, Err(Fault::Cancelled));
            }
            next += under_way;
        }
        let counters = world.nodes[0].endpoint.counters().0;
        assert_eq!(counters.sessions, 4);
    }
}

/// A program that speaks MXoE from a socket of its own.
struct Stranger {
    socket: UdpSocket,
    dialect: Dialect,
}

impl Stranger {
    fn say(&self, packet: &Packet<'_>, payload: &[u8]) {
        let mut header = [0; HEADER_BYTES_MAX];
        let len = packet.emit(1, self.dialect, &mut header);
        let mut body = [&header[..len], payload].concat();
        body.resize(body.len().max(46), 0);
        self.socket.send(&body).expect("it is connected");
    }

    /// Answers who connects, and returns the head of a first message to him.
    fn lets_in(&self, asked: &Connect) -> Message {
        let (to, from) = (asked.from, asked.to);
        let reply = ConnectReply {
            to,
            from,
            index: 1,
            asker: asked.session,
            session: 77,
            receive_next: Sequence(1),
            connect: asked.connect,
            status: 0,
        };
        self.say(&Packet::ConnectReply(reply), b"");
        let (session, sequence, acknowledged) = (asked.session, Sequence(1), Sequence(1));
        Message { to, from, session, sequence, acknowledged, match_info: BITS }
    }

    /// The packet that the stranger is sent, if there is one now.
    fn hears(&self, each: impl FnOnce(&Packet<'_>)) {
        let mut body = [0; 2000];
        let Ok((len, from)) = self.socket.recv_from(&mut body) else { return };
        self.socket.connect(from).expect("an address of this host");
        if let Ok((_, packet)) = Packet::parse(&body[..len], self.dialect) {
            each(&packet);
        }
    }
}

/// An endpoint of MXoE behind UDP that gives up who is silent for a second, and a stranger who is its peer.
fn impatient(world: &mut World) -> (Stranger, PeerId) {
    let dialect = Dialect::native(1466, Order::Big).unwrap();
    let start = Instant::now();
    let clock = Arc::new(move || Time(start.elapsed().as_nanos() as u64));
    world.add_over(foreign_rail(dialect, Duration::from_secs(1), 9, clock), |_| {});
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    let address = Address::parse(&format!("udp://{}", socket.local_addr().unwrap())).unwrap();
    let peer = world.nodes[0].endpoint.lookup(&address).unwrap();
    (Stranger { socket, dialect }, peer)
}

/// Posts a receive of what the stranger says first, and sends to him.
fn begin(world: &mut World, peer: PeerId) {
    let memory = world.memory(LEN, 0);
    let node = &world.nodes[0];
    let (tagged, cut) = (Channel::Tagged, Oversize::Truncate);
    let posted =
        node.endpoint.post_receive(&node.context, tagged, None, BITS, u64::MAX, memory, cut, 1);
    world.posted(0, posted);
    send(world, peer, Channel::Tagged, 10, 2);
}

const LEN: usize = 3000;
const BITS: u64 = 5;

#[test]
fn what_was_half_received_ends_as_its_link_did() {
    let mut world = World::new(Medium::Mxoe);
    let (stranger, peer) = impatient(&mut world);
    begin(&mut world, peer);
    // He lets us in, and says the first half of something; then nothing more, though he was sent something, too.
    let mut said = false;
    world.until("message to him", |_| {
        stranger.hears(|packet| match packet {
            Packet::Connect(it) => {
                let message = stranger.lets_in(it);
                let half = vec![7; stranger.dialect.fragment_bytes() as usize];
                let first = Fragment { message, total_bytes: LEN as u32, fragment: 0, offset: 0 };
                stranger.say(&Packet::Medium(first, &half), &half);
            }
            Packet::Tiny(..) => said = true,
            _ => {}
        });
        said
    });
    let outcomes = [1, 2].map(|user| world.take(0, user).outcome);
    assert_eq!(outcomes, [Err(Fault::Unreachable); 2]);
}

#[test]
fn what_a_stranger_announces_and_does_not_let_us_read_is_over() {
    let mut world = World::new(Medium::Mxoe);
    let (stranger, peer) = impatient(&mut world);
    begin(&mut world, peer);
    let mut refused = false;
    world.until("pull", |_| {
        stranger.hears(|packet| match packet {
            Packet::Connect(it) => {
                let message = stranger.lets_in(it);
                let (region, region_sequence, region_offset) = (3, 4, 0);
                let total_bytes = LEN as u32;
                let announced =
                    Rendezvous { message, total_bytes, region, region_sequence, region_offset };
                stranger.say(&Packet::Rendezvous(announced), b"");
            }
            Packet::Pull(it) => {
                let (endpoint, reason) = (it.to, Nack::BadRegion);
                let nack = NackMcp { endpoint, reason, handle: it.handle, magic: it.magic };
                stranger.say(&Packet::NackMcp(nack), b"");
                refused = true;
            }
            _ => {}
        });
        refused
    });
    assert_eq!(world.take(0, 1).outcome, Err(Fault::Cancelled));
}

#[test]
fn contexts_that_were_told_of_events_are_let_go() {
    const COUNT: usize = 1000;
    let descriptors = || std::fs::read_dir("/proc/self/fd").expect("Linux tells").count();
    let world = World::pair(Medium::SimStream);
    let before = descriptors();
    for _ in 0..COUNT {
        let context = world.nodes[0].endpoint.context(true).expect("there are descriptors");
        world.nodes[0].endpoint.tell_of_events(&context);
        world.nodes[0].endpoint.tell_of_arrivals(&context);
        world.nodes[0].endpoint.retire(&context);
    }
    // Other tests of this process have some, too.
    let more = descriptors().saturating_sub(before);
    assert!(more < COUNT / 2, "{more} descriptors are left");
}
