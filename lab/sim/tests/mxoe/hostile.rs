//! Peers that send arbitrary packets: nothing breaks, the kept state is bounded, and the traffic of others goes on.

use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_base::random::Random;
use ropewalk_base::slots::SlotId;
use ropewalk_sim::seeds;
use ropewalk_transport::mxoe::{MxoeConfig, MxoeCounters};
use ropewalk_wire::mxoe::*;

use crate::room::*;
use crate::world::*;

#[test]
fn connects_by_the_thousand_leave_little_behind() {
    let mut room = Room::new(2, config(200));
    let links = room.join(0, 1);
    for (round, key) in [(0u32, KEY + 1), (1, KEY)] {
        for station in 0..100_000 {
            let from = 1000 + round * 200_000 + station;
            let asked = Connect { key, session: station + 1, ..connect(1) };
            room.say(from, &Packet::Connect(asked));
            if station % 500 == 0 {
                room.run(Duration::from_millis(1));
            }
        }
        // The numbers of all hosts to which we sent a packet are kept.
        let limit = [30_000, 600_000][round as usize];
        assert!(room.size() < limit, "{} after round {round}", room.size());
    }
    let there = |room: &Room| room.hosts[0].seen.up.len() - room.hosts[0].seen.down.len();
    assert_eq!(there(&room), 64, "as many partners as there may be");
    room.innocent(links);
    // They never answer, and are forgotten.
    room.run(GIVE_UP_AFTER + Duration::from_secs(1));
    assert_eq!(there(&room), 1);
    room.innocent(links);
    let link = room.let_him_in();
    assert!(!room.hosts[0].seen.down.contains_key(&link));
}

#[test]
fn partners_that_come_and_go_by_the_thousand_are_forgotten() {
    let mut room = Room::new(1, config(200));
    for station in 0..70_000u32 {
        room.say(1000 + station, &Packet::Connect(connect(1)));
        let link = *room.hosts[0].seen.up.keys().next().unwrap();
        room.hosts[0].pass(room.now, 10);
        // It says that it began anew under another key, and is gone.
        let asked = Connect { key: KEY + 1, session: 78, ..connect(2) };
        room.say(1000 + station, &Packet::Connect(asked));
        assert!(room.hosts[0].seen.down.contains_key(&link));
        room.hosts[0].seen.up.clear();
        room.hosts[0].seen.down.clear();
    }
    // A table of hosts has 65,534 entries; of partners some thousands are remembered.
    assert!(room.size() < 2_500_000, "{}", room.size());
}

#[test]
fn a_message_that_is_never_completed_holds_back_no_more_than_half_of_the_numbers() {
    let mut room = Room::new(2, config(200));
    let links = room.join(0, 1);
    room.let_him_in();
    let piece = Fragment { message: message(1, 1), total_bytes: 2000, fragment: 0, offset: 0 };
    room.say(HIS_STATION, &Packet::Medium(piece, &[0; 1452]));
    for number in 0..40_000u32 {
        let sequence = Sequence::new(0, u64::from(number) + 2).0;
        room.say(HIS_STATION, &Packet::Tiny(message(sequence, 2), b"x"));
    }
    assert_eq!(room.hosts[0].seen.told.len(), 8191, "with the first one");
    let counters = room.counters();
    // Numbers come around: two seem to be parts of the message, and are none.
    let of_the_message = counters.doubled + counters.malformed + counters.misplaced;
    assert_eq!(counters.beyond + of_the_message, 40_000 - 8190);
    let rest = Fragment { fragment: 1, offset: 1452, ..piece };
    room.say(HIS_STATION, &Packet::Medium(rest, &[0; 548]));
    room.say(HIS_STATION, &Packet::Tiny(message(8192, 2), b"x"));
    assert_eq!(room.hosts[0].seen.told.len(), 8192, "it goes on where it was");
    room.innocent(links);
}

#[test]
fn what_comes_early_from_many_is_bounded_together() {
    let mut room = Room::new(1, MxoeConfig { partners_max: 1000, ..config(200) });
    room.hosts[0].seen.anything = true;
    for station in 1000..1400 {
        room.say(station, &Packet::Connect(connect(1)));
    }
    for station in 1000..1400 {
        for number in 3..200u16 {
            for fragment in 0..2 {
                let offset = 1452 * u32::from(fragment);
                let message = message(number, 1);
                let piece = Fragment { message, total_bytes: 10_000, fragment, offset };
                room.say(station, &Packet::Medium(piece, &[0; 1452]));
            }
        }
    }
    let early = room.counters().early - room.counters().beyond;
    assert!((20_000..30_000).contains(&early), "{early} packets of 1.5 KB are kept");
    // Everybody has a little.
    for station in 1000..1400 {
        for number in 1..3 {
            room.say(station, &Packet::Tiny(message(number, 2), b"x"));
        }
    }
    assert!(room.hosts[0].seen.told.len() >= 1200, "{}", room.hosts[0].seen.told.len());
}

#[test]
fn fragments_that_overlap_or_belong_elsewhere_are_passed_over() {
    let mut room = Room::new(2, config(200));
    let links = room.join(0, 1);
    room.let_him_in();
    let piece = |total_bytes, fragment| Fragment {
        message: message(1, 1),
        total_bytes,
        fragment,
        offset: 1452 * u32::from(fragment),
    };
    // The fragment in the middle begins: fragments that contradict it, or are here already, count for nothing.
    room.say(HIS_STATION, &Packet::Medium(piece(4000, 1), &[1; 1452]));
    let before = room.counters();
    for (total, fragment, len) in
        [(4000, 1, 1452), (4000, 0, 1000), (4000, 2, 1000), (5000, 0, 1452), (3000, 0, 1452)]
    {
        room.say(HIS_STATION, &Packet::Medium(piece(total, fragment), &vec![2; len]));
    }
    let after = room.counters();
    let counted = |it: &MxoeCounters| [it.doubled, it.malformed, it.misplaced];
    let [old, new] = [counted(&before), counted(&after)];
    assert_eq!([0, 1, 2].map(|at| new[at] - old[at]), [1, 2, 2], "one is here already");
    let wrong_length = room.counters().wrong_length;
    room.say(HIS_STATION, &Packet::Medium(piece(4000, 2), &[2; 1452]));
    room.say(HIS_STATION, &Packet::Medium(piece(4000, 31), &[2; 1]));
    assert_eq!(room.counters().wrong_length, wrong_length + 2, "they lie outside");
    assert!(room.hosts[0].seen.received.is_empty());
    room.say(HIS_STATION, &Packet::Medium(piece(4000, 2), &[1; 1096]));
    room.say(HIS_STATION, &Packet::Medium(piece(4000, 0), &[1; 1452]));
    assert_eq!(room.hosts[0].seen.received.len(), 1);
    room.innocent(links);
}

/// The number of packets of each type that answer a pull.
fn answers(room: &mut Room, pull: Pull) -> BTreeMap<u8, u32> {
    room.say(HIS_STATION, &Packet::Pull(pull));
    room.run(Duration::from_micros(300));
    let mut count = BTreeMap::new();
    room.others.drain(..).for_each(|(_, body)| *count.entry(body[INDEX_BYTES]).or_insert(0) += 1);
    count
}

#[test]
fn pulls_that_nobody_may_send_are_refused() {
    let mut room = Room::new(2, config(200));
    let links = room.join(0, 1);
    let link = room.let_him_in();
    room.hosts[0].send(link, 5, 100_000, true);
    room.run(Duration::from_millis(1));
    let announced = room.others.drain(..).find_map(|(_, body)| {
        match Packet::parse(&body, Dialect::native(1500, Order::Big).unwrap()) {
            Ok((_, Packet::Rendezvous(announced))) => Some(announced),
            _ => None,
        }
    });
    let Rendezvous { region, region_sequence, .. } = announced.expect("it is announced");
    let pull = Pull {
        to: ENDPOINT,
        from: HIS,
        session: SESSION,
        total_bytes: 100_000,
        region: region.into(),
        region_sequence,
        region_offset: 0,
        handle: 1,
        magic: Pull::magic_of(HIS),
        first_offset: 0,
        block_bytes: 46_976,
        frame: 0,
    };
    let count = |kind: Type, count| BTreeMap::from([(kind as u8, count)]);
    for wrong in [
        Pull { region: 9, ..pull },
        Pull { region: 256, ..pull },
        Pull { region: u32::MAX, ..pull },
        Pull { region_sequence: region_sequence + 1, ..pull },
        Pull { from: HIS + 1, ..pull },
    ] {
        assert_eq!(answers(&mut room, wrong), count(Type::NackMcp, 1), "{wrong:?}");
    }
    for wrong in [
        // He knows ours, so that something has changed on the way.
        Pull { session: SESSION + 5, ..pull },
        Pull { block_bytes: 0, ..pull },
        Pull { block_bytes: u32::MAX, ..pull },
        Pull { block_bytes: 46_977, ..pull },
        Pull { frame: u32::MAX, ..pull },
        Pull { frame: 64, ..pull },
        Pull { first_offset: 1468, ..pull },
        Pull { first_offset: u32::MAX, ..pull },
        Pull { region_offset: u32::MAX, ..pull },
        Pull { region_offset: 100, ..pull },
    ] {
        assert!(answers(&mut room, wrong).is_empty(), "{wrong:?}");
    }
    assert_eq!(answers(&mut room, pull), count(Type::PullReply, 32));
    // By the hundred: some are answered, others have to be asked for again.
    for _ in 0..1000 {
        room.say(HIS_STATION, &Packet::Pull(pull));
    }
    room.run(Duration::from_millis(1));
    assert_eq!(room.others.drain(..).count(), 64 * 32);
    room.innocent(links);
}

#[test]
fn replies_that_nobody_asked_for_land_nowhere() {
    let mut room = Room::new(2, config(200));
    let links = room.join(0, 1);
    room.let_him_in();
    let rendezvous = Rendezvous {
        message: message(1, 6),
        total_bytes: 50_000,
        region: 0,
        region_sequence: 23,
        region_offset: 0,
    };
    room.say(HIS_STATION, &Packet::Rendezvous(rendezvous));
    room.read_all();
    room.run(Duration::from_micros(300));
    let asked = room.others.drain(..).find_map(|(_, body)| {
        match Packet::parse(&body, Dialect::native(1500, Order::Big).unwrap()) {
            Ok((_, Packet::Pull(asked))) => Some(asked),
            _ => None,
        }
    });
    let (handle, magic) = asked.map(|it| (it.handle, it.magic)).expect("it is read");
    let right = PullReply { frame: 0, offset: 0, handle, magic };
    let before = room.counters();
    room.say(HIS_STATION + 1, &Packet::PullReply(right, &[1; 1468]));
    room.say(
        HIS_STATION,
        &Packet::PullReply(PullReply { handle: handle ^ 1, ..right }, &[1; 1468]),
    );
    room.say(
        HIS_STATION,
        &Packet::NackMcp(NackMcp {
            endpoint: HIS,
            reason: Nack::BadRegion,
            handle: handle ^ 1,
            magic,
        }),
    );
    assert_eq!(room.counters().unasked, before.unasked + 3);
    for (wrong, len) in [
        (right, 1467),
        (right, 0),
        (PullReply { frame: 1, ..right }, 1468),
        (PullReply { offset: 1, ..right }, 1468),
        (PullReply { offset: 1468, ..right }, 1468),
        (PullReply { offset: u32::MAX, frame: 255, ..right }, 1468),
        (PullReply { offset: 35 * 1468, frame: 35, ..right }, 1468),
    ] {
        room.say(HIS_STATION, &Packet::PullReply(wrong, &vec![1; len]));
    }
    assert_eq!(room.counters().misplaced, before.misplaced + 7);
    assert_eq!(room.counters().bytes_native, before.bytes_native);
    room.say(HIS_STATION, &Packet::PullReply(right, &[1; 1468]));
    assert_eq!(room.counters().bytes_native, before.bytes_native + 1468);
    room.innocent(links);
}

#[test]
fn what_nobody_sent_is_not_acknowledged_and_forged_refusals_end_nothing() {
    let mut room = Room::new(2, config(200));
    let links = room.join(0, 1);
    let link = room.let_him_in();
    let ack = |acknowledged, number| {
        let acknowledged = Sequence(acknowledged);
        Packet::Ack(Ack { to: ENDPOINT, from: HIS, session: SESSION, acknowledged, number })
    };
    for (number, acknowledged) in (1..).zip([2, 3, 200, 8000, 8193, 16_383, 0, 0x4002, 0xffff]) {
        room.say(HIS_STATION, &ack(acknowledged, number));
    }
    room.hosts[0].send(link, 1, 20, true);
    // It has a number, and has not left.
    room.say(HIS_STATION, &ack(2, 100));
    assert!(room.hosts[0].seen.finished.is_empty());
    room.run(Duration::from_millis(1));
    room.say(HIS_STATION, &ack(3, 101));
    assert!(room.hosts[0].seen.finished.is_empty(), "one more than there is");
    room.say(HIS_STATION, &ack(2, 101));
    assert!(room.hosts[0].seen.finished.is_empty(), "not newer than the last");
    let nack = |from, sequence| {
        let (reason, index) = (Nack::BadSession, 1);
        let sequence = Sequence(sequence);
        Packet::NackLib(NackLib { from, to: ENDPOINT, reason, index, sequence })
    };
    // From elsewhere, for others, for packets that never left.
    room.say(HIS_STATION + 1, &nack(HIS, 1));
    room.say(HIS_STATION, &nack(HIS + 1, 1));
    for sequence in [0, 2, 9, 16_383, 0x4001] {
        room.say(HIS_STATION, &nack(HIS, sequence));
    }
    room.run(Duration::from_millis(1));
    let is_connect = |(_, body): &(u32, Vec<u8>)| body[INDEX_BYTES] == Type::Connect as u8;
    assert!(!room.others.iter().any(is_connect) && room.hosts[0].seen.down.is_empty());
    room.say(HIS_STATION, &ack(2, 102));
    room.run(Duration::from_millis(1));
    assert_eq!(room.hosts[0].seen.finished.len(), 1);
    room.innocent(links);
}

#[test]
fn whatever_is_said_by_whomever_the_innocent_get_their_messages() {
    for seed in seeds(0, 20) {
        let mut random = Random::from_seed(seed);
        let dialects = [
            Dialect::native(1500, Order::Big).unwrap(),
            Dialect::native(9000, Order::Little).unwrap(),
            Dialect::compatible(),
        ];
        let dialect = dialects[(seed % 3) as usize];
        let mut room = Room::new(2, MxoeConfig { dialect, ..config(64) });
        let links = room.join(0, 1);
        room.hosts[0].seen.anything = true;
        for round in 0..4 {
            for _ in 0..3000 {
                let from = HIS_STATION + random.below(3) as u32;
                let packet = anything(&mut random);
                room.say(from, &packet);
                let his: Vec<SlotId> = room.hosts[0].seen.up.keys().copied().collect();
                let link = his[random.below(his.len() as u64) as usize];
                let is_his = link != links[0] && !room.hosts[0].seen.down.contains_key(&link);
                match random.below(100) {
                    0 if is_his => drop(room.hosts[0].send(link, 1, 50_000, true)),
                    1 if is_his => drop(room.hosts[0].send(link, 1, 3000, true)),
                    2 if is_his && random.below(5) == 0 => room.hosts[0].close(link),
                    3 => drop(room.hosts[0].read()),
                    4 => room.run(Duration::from_micros(random.below(3000))),
                    _ => {}
                }
            }
            assert!(room.size() < 60_000_000, "{}", room.size());
            room.innocent(links);
            assert!(!room.hosts[0].seen.down.contains_key(&links[0]), "seed {seed}, {round}");
        }
        // A link that is closed leaves nothing behind.
        let all: Vec<SlotId> = room.hosts[0].seen.up.keys().copied().collect();
        for link in all.into_iter().filter(|link| *link != links[0]) {
            room.hosts[0].close(link);
        }
        room.run(Duration::from_secs(2));
        room.innocent(links);
        let fresh = {
            let mut room = Room::new(2, MxoeConfig { dialect, ..config(64) });
            let links = room.join(0, 1);
            room.innocent(links);
            room.size()
        };
        assert!(room.size() < fresh + 5000, "{} after all, {fresh} before", room.size());
    }
}

const BYTES: &[u8] = &[7; 10_000];

/// A number that is often the usual one.
fn odd(random: &mut Random, usual: u32) -> u32 {
    match random.below(6) {
        0 => random.next_u64() as u32,
        1 => u32::MAX,
        2 => 0,
        _ => usual,
    }
}

/// A packet of any kind, with fields that are often nearly right.
fn anything(random: &mut Random) -> Packet<'static> {
    let small = random.below(6) as u16;
    let number = [small, small, small + 300, 16_380 + small, 0x4000 + small];
    let sequence = Sequence(number[random.below(5) as usize]);
    let acknowledged = Sequence(random.below(8) as u16);
    let session = if random.below(10) == 0 { random.next_u64() as u32 } else { SESSION };
    let his = if random.below(10) == 0 { SESSION_UNKNOWN } else { 70 + random.below(3) as u32 };
    let from = HIS + random.below(2) as u8;
    let message = Message { to: ENDPOINT, from, session, sequence, acknowledged, match_info: 23 };
    match random.below(14) {
        0 | 1 => {
            let key = KEY + u32::from(random.below(20) == 0);
            let (connect, index) = (random.below(256) as u8, 1);
            let receive_next = acknowledged;
            let to = ENDPOINT;
            Packet::Connect(Connect { to, from, index, session: his, key, receive_next, connect })
        }
        2 => Packet::ConnectReply(ConnectReply {
            to: ENDPOINT,
            from,
            index: 1,
            asker: session,
            session: his,
            receive_next: acknowledged,
            connect: random.below(256) as u8,
            status: if random.below(10) == 0 { 11 } else { 0 },
        }),
        3 | 4 => Packet::Tiny(message, &BYTES[..random.below(33) as usize]),
        5 => Packet::Small(message, &BYTES[..random.below(129) as usize]),
        6 | 7 => {
            let (fragment, offset) = (random.below(4) as u8, 0);
            let len = [1452, 8192, 4096, 100][random.below(4) as usize];
            let total_bytes = odd(random, 3000);
            Packet::Medium(Fragment { message, total_bytes, fragment, offset }, &BYTES[..len])
        }
        8..12 => large(random, message),
        12 => {
            let number = odd(random, 1);
            Packet::Ack(Ack { to: ENDPOINT, from, session, acknowledged, number })
        }
        _ => {
            let (reason, index) = (Nack::BadSession, 1);
            Packet::NackLib(NackLib { from, to: ENDPOINT, reason, index, sequence })
        }
    }
}

/// One that belongs to a large message.
fn large(random: &mut Random, message: Message) -> Packet<'static> {
    let Message { from, session, sequence, acknowledged, .. } = message;
    let region = random.below(4) as u8;
    let region_sequence = 23 + random.below(3) as u8;
    let handle = random.below(4) as u32;
    match random.below(4) {
        0 => {
            let total_bytes = 40_000 + random.below(3) as u32;
            let region_offset = random.below(3) as u16 * 700;
            Packet::Rendezvous(Rendezvous {
                message,
                total_bytes,
                region,
                region_sequence,
                region_offset,
            })
        }
        1 => Packet::Pull(Pull {
            to: ENDPOINT,
            from,
            session,
            total_bytes: odd(random, 50_000),
            region: odd(random, region.into()),
            region_sequence,
            region_offset: odd(random, 0),
            handle,
            magic: Pull::magic_of(from),
            first_offset: odd(random, 0),
            block_bytes: odd(random, 10_000),
            frame: odd(random, 0),
        }),
        2 => {
            let (frame, offset) = (random.below(4) as u8, odd(random, 0));
            let magic = Pull::magic_of(ENDPOINT);
            let len = [1468, 8968, 4096][random.below(3) as usize];
            Packet::PullReply(PullReply { frame, offset, handle, magic }, &BYTES[..len])
        }
        _ => {
            let (to, bytes) = (ENDPOINT, odd(random, 50_000));
            Packet::Notify(Notify {
                to,
                from,
                session,
                sequence,
                acknowledged,
                bytes,
                region,
                region_sequence,
            })
        }
    }
}
