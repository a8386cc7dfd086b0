//! Defects of Open-MX, and its refusals.

use std::time::Duration;

use ropewalk_base::random::Random;
use ropewalk_sim::open_mx::{Address, HostConfig, Kind, Status};
use ropewalk_wire::mxoe::*;

use crate::world::*;

fn dialect() -> Dialect {
    Dialect::native(1500, Order::Big).unwrap()
}

/// Every packet that a host has sent, with its index.
fn sent_by(world: &World, host: usize) -> Vec<(u16, Packet<'_>)> {
    let log = world.log.as_ref().expect("it is written");
    let of = log.iter().filter(|(from, _)| *from == host);
    of.map(|(_, body)| Packet::parse(body, dialect()).expect("a packet")).collect()
}

fn logged(seed: u64) -> World {
    let mut world = World::new(seed, 2, dialect());
    world.log = Some(Vec::new());
    world
}

#[test]
fn who_connected_one_way_acknowledges_in_vain() {
    let mut world = logged(1);
    world.connect(0, 1);
    let got = world.hosts[0].receive(0, 0, 100);
    world.send(1, 0, 7, 10);
    assert_eq!(world.end(0, got).data, pattern(7, 10));
    world.pass(Duration::from_millis(700));
    let acks: Vec<Ack> = sent_by(&world, 0)
        .iter()
        .filter_map(|(_, packet)| if let Packet::Ack(ack) = packet { Some(*ack) } else { None })
        .collect();
    assert_eq!(acks.len(), 2, "the copy is acknowledged as one that must have been lost");
    assert!(acks.iter().all(|ack| ack.session == SESSION_UNKNOWN));
    assert_eq!((acks[0].number, acks[1].number), (1, 2));
    assert_eq!(world.hosts[1].counters().resent, 1);
    assert_eq!(world.hosts[0].counters().obsolete, 1);
}

#[test]
fn a_large_message_to_one_who_connected_one_way_is_lost() {
    let mut world = World::with(1, 2, dialect(), |config| config.resends_max = 4);
    world.connect(0, 1);
    let got = world.hosts[0].receive(0, 0, 100_000);
    let sent = world.send(1, 0, 7, 100_000);
    let event = world.end(0, got);
    assert_eq!((event.status, event.transferred), (Status::BadSession, 0));
    assert_eq!(world.end(1, sent).status, Status::EndpointUnreachable);
    assert!(world.hosts[1].counters().refused >= 2, "the pull and the notify");
}

#[test]
fn a_first_connect_sets_the_numbers_back_and_what_is_held_waits_for_a_repetition() {
    let mut world = logged(2);
    world.connect(0, 1);
    let got = world.hosts[1].receive(1, ALL, 100);
    let address = world.address(1);
    let sent = world.hosts[0].send(address, 1, pattern(1, 44), true);
    assert_eq!(world.end(1, got).data, pattern(1, 44));
    // The notify was number 1; the connect makes the other side expect it again.
    assert_eq!(world.end(0, sent).status, Status::Success);
    let begin = world.now;
    world.connect(1, 0);
    let got = world.hosts[0].receive(2, ALL, 100);
    world.send(1, 0, 2, 10);
    assert_eq!(world.end(0, got).data, pattern(2, 10));
    assert!(world.now.since(begin) > Duration::from_millis(450), "it waited for the notify");
    let starts: Vec<u16> = sent_by(&world, 0)
        .iter()
        .filter_map(|(_, packet)| match packet {
            Packet::ConnectReply(reply) => Some(reply.receive_next.0),
            _ => None,
        })
        .collect();
    assert_eq!(starts, [1], "and not 2");
}

#[test]
fn after_a_disconnect_the_other_direction_hangs() {
    let mut world = World::new(3, 2, dialect());
    world.join(0, 1);
    for id in 0..10 {
        let got = world.hosts[0].receive(id, ALL, 100);
        world.send(1, 0, id, 10);
        world.end(0, got);
    }
    world.pass(Duration::from_millis(100));
    let address = world.address(1);
    world.hosts[0].disconnect(address);
    world.join(0, 1);
    let there = world.hosts[1].receive(20, ALL, 100);
    let here = world.hosts[0].receive(21, ALL, 100);
    world.send(0, 1, 20, 10);
    world.send(1, 0, 21, 10);
    assert_eq!(world.end(1, there).data, pattern(20, 10), "this direction goes on");
    world.pass(Duration::from_secs(30));
    assert!(!world.ended[0].contains_key(&here));
    assert!(world.hosts[0].cancel(here));
}

#[test]
fn connects_that_are_wrong_are_refused_each_in_its_way() {
    let mut world = World::with(4, 2, dialect(), |config| config.resends_max = 5);
    let right = world.address(1);
    let nobody = Address { station: Station([9; 6]), ..right };
    let cases = [
        (right, KEY + 1, Status::BadKey),
        (Address { endpoint: right.endpoint + 1, ..right }, KEY, Status::EndpointClosed),
        (Address { endpoint: 40, ..right }, KEY, Status::BadEndpoint),
        (nobody, KEY, Status::EndpointUnknown),
    ];
    for (to, key, status) in cases {
        let request = world.hosts[0].connect(to, key);
        let event = world.end(0, request);
        assert_eq!((event.kind, event.status), (Kind::Connect, status));
    }
    world.weather.loss = 1000;
    let request = world.hosts[0].connect(right, KEY);
    assert_eq!(world.end(0, request).status, Status::Timeout);
    let request = world.hosts[0].connect(right, KEY);
    assert!(world.hosts[0].cancel(request));
    assert!(!world.hosts[0].cancel(request));
}

#[test]
fn a_closed_endpoint_refuses_messages_and_pulls() {
    let mut world = World::new(5, 3, dialect());
    world.log = Some(Vec::new());
    world.join(0, 1);
    let address = world.address(1);
    world.hosts[1].close();
    let sent = world.hosts[0].send(address, 1, vec![0; 100], true);
    let event = world.end(0, sent);
    assert_eq!((event.status, event.transferred), (Status::EndpointClosed, 0));
    let packets = sent_by(&world, 1);
    let (index, Packet::NackLib(nack)) = packets[packets.len() - 1] else { panic!("{packets:?}") };
    assert_eq!((index, nack.index, nack.sequence.0), (1, 1, 1));
    assert_eq!((nack.from, nack.to), (address.endpoint, world.address(0).endpoint));
    // The owner of a region goes while it is pulled from.
    let mut world = logged(6);
    world.join(0, 1);
    let got = world.hosts[1].receive(1, ALL, 1 << 20);
    world.send(0, 1, 1, 1 << 20);
    world.until("a pull", |world| world.types[1].contains_key(&(Type::Pull as u8)));
    world.hosts[0].close();
    assert_eq!(world.end(1, got).status, Status::EndpointClosed);
}

#[test]
fn a_silent_peer_is_given_up_and_its_numbers_change() {
    let mut world = World::with(7, 2, dialect(), |config| config.resends_max = 6);
    world.join(0, 1);
    world.weather.loss = 1000;
    let address = world.address(1);
    let eager = world.send(0, 1, 1, 10);
    let large = world.hosts[0].send(address, 2, vec![0; 10], true);
    assert_eq!(world.end(0, eager).status, Status::Success, "it was buffered");
    assert_eq!(world.end(0, large).status, Status::EndpointUnreachable);
    let later = world.send(0, 1, 3, 10);
    assert_eq!(world.end(0, later).status, Status::EndpointUnreachable);
}

#[test]
fn names_tell_the_index_in_the_other_table() {
    let mut world = World::with(8, 3, dialect(), |config: &mut HostConfig| {
        config.asks_names = true;
    });
    world.log = Some(Vec::new());
    world.pass(Duration::from_secs(20));
    for host in 0..3 {
        let packets = sent_by(&world, host);
        assert_eq!(packets.len(), 4, "each is asked once and answers once: {packets:?}");
    }
    // Host 0 is number 2 with host 1.
    world.send_connect(0, 1);
    let packets = sent_by(&world, 0);
    let (index, Packet::Connect(connect)) = packets[packets.len() - 1] else {
        panic!("{packets:?}")
    };
    assert_eq!((index, connect.index), (2, 1));
}

#[test]
fn an_owner_does_not_look_at_the_sequence_of_a_region() {
    let mut world = logged(9);
    world.join(0, 1);
    let (owner, asker) = (world.address(0), world.address(1));
    world.send(0, 1, 1, 100_000);
    world.pass(Duration::from_millis(1));
    let pull = Pull {
        to: owner.endpoint,
        from: asker.endpoint,
        session: world.hosts[0].session(),
        total_bytes: 100_000,
        region: 0,
        region_sequence: 99,
        region_offset: 0,
        handle: 5,
        magic: Pull::magic_of(asker.endpoint),
        first_offset: 700,
        block_bytes: 1468,
        frame: 3,
    };
    let ask = |world: &mut World, pull: Pull| {
        let mut header = [0; HEADER_BYTES_MAX];
        let len = Packet::Pull(pull).emit(1, dialect(), &mut header);
        let now = world.now;
        world.hosts[0].packet(asker.station, &header[..len], now);
        let first = world.log.as_ref().unwrap().len();
        world.step();
        let mut answers = world.log.as_ref().unwrap()[first..].to_vec();
        answers.retain(|(host, _)| *host == 0);
        answers
    };
    let replies = ask(&mut world, pull);
    let bytes = pattern(1, 100_000);
    for (reply, (frame, begin, end)) in replies.iter().zip([(3, 5104, 5872), (4, 5872, 6572)]) {
        let (index, Packet::PullReply(reply, piece)) = Packet::parse(&reply.1, dialect()).unwrap()
        else {
            panic!("{reply:?}")
        };
        assert_eq!((index, reply.frame, reply.offset as usize), (0, frame, begin));
        assert_eq!(piece, &bytes[begin..end]);
    }
    assert_eq!(replies.len(), 2);
    for wrong in [
        Pull { block_bytes: 46_977, ..pull },
        Pull { frame: 68, ..pull },
        Pull { first_offset: 1468, ..pull },
        Pull { region_offset: 99_000, ..pull },
        Pull { frame: u32::MAX, first_offset: u32::MAX, block_bytes: u32::MAX, ..pull },
    ] {
        assert_eq!(ask(&mut world, wrong), [], "{wrong:?}");
    }
    for (refused, reason) in [
        (Pull { region: 1, ..pull }, Nack::BadRegion),
        (Pull { region: u32::MAX, ..pull }, Nack::BadRegion),
        (Pull { session: SESSION_UNKNOWN, ..pull }, Nack::BadSession),
        (Pull { to: 31, ..pull }, Nack::Closed),
    ] {
        let answers = ask(&mut world, refused);
        let nack = NackMcp { endpoint: pull.from, reason, handle: pull.handle, magic: pull.magic };
        let parsed = answers.iter().map(|(_, body)| Packet::parse(body, dialect()).unwrap().1);
        assert_eq!(parsed.collect::<Vec<_>>(), [Packet::NackMcp(nack)]);
    }
}

#[test]
fn acknowledgements_that_are_old_or_of_another_session_are_passed_over() {
    let mut world = logged(11);
    world.join(0, 1);
    world.weather.loss = 1000;
    world.send(0, 1, 1, 10);
    let (to, from) = (world.address(0).endpoint, world.address(1).endpoint);
    let session = world.hosts[0].session();
    let tell = |world: &mut World, packet: Packet<'_>| {
        let mut header = [0; HEADER_BYTES_MAX];
        let len = packet.emit(1, dialect(), &mut header);
        let now = world.now;
        world.hosts[0].packet(station(1), &header[..len], now);
        let before = world.hosts[0].counters();
        world.pass(Duration::from_millis(600));
        let after = world.hosts[0].counters();
        (after.resent - before.resent, after.obsolete - before.obsolete)
    };
    let ack = |number, bits| {
        let acknowledged = Sequence::new(bits, 2);
        Packet::Ack(Ack { to, from, session, acknowledged, number })
    };
    assert_eq!(tell(&mut world, ack(0, 0)), (1, 0));
    assert_eq!(tell(&mut world, ack(1, 1)), (1, 0));
    let acknowledged = Sequence::new(2, 2);
    let sequence = Sequence(1);
    let message = Message { to, from, session, sequence, acknowledged, match_info: 0 };
    assert_eq!(tell(&mut world, Packet::Tiny(message, &[])), (1, 1));
    assert_eq!(tell(&mut world, ack(2, 0)), (0, 0));
}

#[test]
fn whatever_comes_it_goes_on() {
    let mut random = Random::from_seed(10);
    for seed in 0..20 {
        let mut world = logged(seed);
        world.join(0, 1);
        for id in 0..20 {
            world.send(0, 1, id, [5, 100, 5000, 60_000][id as usize % 4]);
            world.send(1, 0, id, [5, 100, 5000, 60_000][id as usize % 4]);
        }
        for _ in 0..20 {
            world.hosts[1].receive(0, 0, 50_000);
        }
        world.pass(Duration::from_millis(50));
        let bodies = world.log.take().unwrap();
        for _ in 0..3000 {
            let (from, mut body) = bodies[random.below(bodies.len() as u64) as usize].clone();
            for _ in 0..1 + random.below(3) {
                let at = random.below(body.len().min(50) as u64) as usize;
                body[at] = [0, 0xff, random.next_u64() as u8][random.below(3) as usize];
            }
            body.truncate(body.len() - random.below(4) as usize);
            let now = world.now;
            world.hosts[1 - from].packet(station(from), &body, now);
            if random.below(10) == 0 {
                world.step();
                world.ended[0].clear();
                world.ended[1].clear();
            }
        }
        let counters = [0, 1].map(|host| world.hosts[host].counters());
        assert!(counters.iter().all(|it| it.dropped > 0 && it.obsolete > 0), "{counters:?}");
    }
}
