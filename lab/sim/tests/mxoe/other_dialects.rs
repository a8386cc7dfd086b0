//! Hosts on one wire whose frames have other lengths, or whose fields have another byte order: no packet says so, and
//! the consequences have counters of their own.

use std::time::Duration;

use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_sim::open_mx::{Host, HostConfig};
use ropewalk_transport::mxoe::{Agent, AgentConfig, MxoeConfig};
use ropewalk_wire::mxoe::*;

use crate::room::*;
use crate::world::pattern;

fn native(frame_bytes: u16) -> Dialect {
    Dialect::native(frame_bytes, Order::Big).unwrap()
}

/// He, whose frames are of another length, and one of ours that knows him.
fn met(ours: Dialect, theirs: Dialect) -> (Room, ropewalk_base::slots::SlotId) {
    let mut room = Room::new(1, MxoeConfig { dialect: ours, ..config(200) });
    let link = room.let_him_in();
    room.dialect = theirs;
    (room, link)
}

fn bytes(begin: u64, len: u64) -> Vec<u8> {
    (begin..begin + len).map(|at| pattern(16, at)).collect()
}

const TOTAL: u32 = 20_000;
const LONG: u32 = 400_000;

/// He sends a message in fragments.
fn fragments(ours: Dialect, theirs: Dialect) -> u64 {
    let (mut room, _) = met(ours, theirs);
    let unit = theirs.fragment_bytes();
    for number in 0..TOTAL.div_ceil(unit) {
        let offset = number * unit;
        let len = unit.min(TOTAL - offset);
        let (message, fragment) = (message(1, 16), number as u8);
        let piece = Fragment { message, total_bytes: TOTAL, fragment, offset };
        room.say(HIS_STATION, &Packet::Medium(piece, &bytes(offset.into(), len.into())));
    }
    assert!(room.hosts[0].seen.received.is_empty() || ours == theirs);
    room.counters().misplaced
}

/// He reads a message of ours.
fn pulls(ours: Dialect, theirs: Dialect) -> u64 {
    let (mut room, link) = met(ours, theirs);
    room.hosts[0].send(link, 48, LONG.into(), true);
    let announced = room.next_said(|packet| match packet {
        Packet::Rendezvous(it) => Some(*it),
        _ => None,
    });
    let block = theirs.reply_bytes() * theirs.replies_per_block();
    for number in 0..LONG.div_ceil(block) {
        let begin = number * block;
        room.say(
            HIS_STATION,
            &Packet::Pull(Pull {
                to: ENDPOINT,
                from: HIS,
                session: SESSION,
                total_bytes: LONG,
                region: announced.region.into(),
                region_sequence: announced.region_sequence,
                region_offset: 0,
                handle: 0x23,
                magic: Pull::magic_of(HIS),
                first_offset: 0,
                block_bytes: block.min(LONG - begin),
                frame: number * theirs.replies_per_block(),
            }),
        );
    }
    room.counters().misplaced
}

/// He answers what we read of his.
fn replies(ours: Dialect, theirs: Dialect) -> u64 {
    let (mut room, _) = met(ours, theirs);
    let announced = Rendezvous {
        message: message(1, 16),
        total_bytes: LONG,
        region: 4,
        region_sequence: 23,
        region_offset: 0,
    };
    room.say(HIS_STATION, &Packet::Rendezvous(announced));
    room.read_all();
    let asked = room.next_said(|packet| match packet {
        Packet::Pull(asked) => Some(*asked),
        _ => None,
    });
    let unit = theirs.reply_bytes();
    for number in 0..asked.block_bytes.div_ceil(unit).min(theirs.replies_per_block()) {
        let offset = number * unit;
        let len = unit.min(asked.block_bytes - offset);
        let (handle, magic) = (asked.handle, asked.magic);
        let reply = PullReply { frame: number as u8, offset, handle, magic };
        room.say(HIS_STATION, &Packet::PullReply(reply, &bytes(offset.into(), len.into())));
    }
    room.counters().misplaced
}

#[test]
fn pieces_of_other_frames_are_counted_for_themselves() {
    let all = [native(1500), native(9000), native(1400)];
    for ours in all {
        for theirs in all {
            let counted = [fragments, pulls, replies].map(|of| of(ours, theirs));
            let expected = ours != theirs;
            assert_eq!(counted.map(|it| it > 0), [expected; 3], "{ours:?} and {theirs:?}");
        }
    }
}

fn station(number: u8) -> Station {
    Station([2, 0, 0, 0, 0, number])
}

fn agent(number: u8, order: Order) -> Agent {
    let dialect = Dialect::native(1500, order).unwrap();
    let (station, name) = (station(number), format!("host{number}:0"));
    let config = AgentConfig { station, dialect, name, host: 77 };
    Agent::new(config, Random::from_seed(number.into()), Time(1_000_000_000))
}

const ORDERS: [(Order, Order); 2] = [(Order::Big, Order::Little), (Order::Little, Order::Big)];

#[test]
fn hosts_of_ours_say_in_which_byte_order_they_speak_until_they_are_set_right() {
    for (ours, theirs) in ORDERS {
        let mut one = agent(1, ours);
        let mut now = Time(1_000_000_000);
        let mut hear = |one: &mut Agent, order, from| {
            let mut other = agent(2, order);
            now = now + Duration::from_secs(1);
            other.advance(now);
            let (to, beacon) = other.next().expect("it makes itself known");
            one.packet(station(from), to, &beacon, now, &mut |_| false);
            one.advance(now);
            // Counts its packets to station 2.
            let out = std::iter::from_fn(|| one.next());
            out.filter(|(to, _)| *to == station(2)).count()
        };
        // A beacon that names a station other than its sender is no beacon.
        assert_eq!(hear(&mut one, theirs, 3), 0);
        assert_eq!((one.counters().other_order, one.counters().unasked), (0, 1));
        for heard in 1..=3 {
            assert_eq!(hear(&mut one, theirs, 2), 0, "nobody asks what is not understood");
            assert_eq!(one.counters().other_order, heard);
            let peer = one.peer(station(2)).expect("it is there");
            assert!(peer.order == Some(theirs) && peer.ours.is_some());
        }
        // It was mended.
        assert_eq!(hear(&mut one, ours, 2), 1, "it is asked for its name");
        let peer = one.peer(station(2)).expect("it is there");
        assert!(peer.order == Some(ours) && peer.ours.is_some() && peer.serial.is_some());
        assert_eq!((one.counters().other_order, one.counters().beacons_received), (3, 4));
    }
}

/// An agent and a host with Open-MX hear each other's beacons, and the packets that follow.
fn meet(one: &mut Agent, host: &mut Host, now: &mut Time) {
    let beacon = host.beacon();
    one.packet(station(2), Station::BROADCAST, &beacon, *now, &mut |_| false);
    for _ in 0..100 {
        *now = *now + Duration::from_millis(100);
        let now = *now;
        one.advance(now);
        while let Some((_, body)) = one.next() {
            host.packet(station(1), &body, now);
        }
        host.advance(now);
        while let Some((to, body)) = host.next() {
            one.packet(station(2), to, &body, now, &mut |_| false);
        }
    }
}

fn with_open_mx(order: Order, life: u32) -> Host {
    let dialect = Dialect::native(1500, order).unwrap();
    let mut config = HostConfig::new(station(2), 0, life, dialect);
    (config.name, config.asks_names) = ("theirs:0".to_string(), true);
    Host::new(config)
}

#[test]
fn hosts_with_open_mx_are_found_by_their_beacons_in_either_byte_order() {
    for order in [Order::Big, Order::Little] {
        let (mut one, mut host) = (agent(1, order), with_open_mx(order, 1));
        meet(&mut one, &mut host, &mut Time(1_000_000_000));
        let peer = one.peer(station(2)).expect("it has sent a beacon").clone();
        assert_eq!(peer.name.as_deref(), Some(&b"theirs:0"[..]), "{order:?}");
        assert_eq!((peer.order, peer.reverse, peer.ours), (Some(order), 1, None));
        assert_eq!(host.deadline(), Time::NEVER, "it was told our name");
        assert_eq!(one.counters().other_order, 0);
    }
}

#[test]
fn hosts_with_open_mx_in_the_other_byte_order_are_known_by_what_they_ask() {
    for (ours, theirs) in ORDERS {
        let (mut one, mut host) = (agent(1, ours), with_open_mx(theirs, 1));
        let mut now = Time(1_000_000_000);
        meet(&mut one, &mut host, &mut now);
        let peer = one.peer(station(2)).expect("it has sent a beacon");
        assert_eq!((peer.order, peer.reverse), (Some(theirs), INDEX_UNKNOWN));
        assert!(one.counters().other_order > 0);
        // It was built anew.
        let mut host = with_open_mx(ours, 2);
        meet(&mut one, &mut host, &mut now);
        let peer = one.peer(station(2)).expect("it is there still");
        assert_eq!((peer.order, peer.reverse), (Some(ours), 1));
        assert_eq!(peer.name.as_deref(), Some(&b"theirs:0"[..]));
    }
}
