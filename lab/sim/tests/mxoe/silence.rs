//! Partners that send nothing any more: we ask for the answers that they owe, and the end of a link is reported.

use ropewalk_transport::PacketProtocol;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_wire::mxoe::*;

use crate::room::*;
use crate::world::*;

const SECOND: Duration = Duration::from_secs(1);

fn down(room: &Room, link: SlotId) -> Option<Fault> {
    room.hosts[0].seen.down.get(&link).copied()
}

/// Our connects to him since the last look.
fn asked(room: &mut Room) -> Vec<Connect> {
    let dialect = room.dialect;
    let of = |(_, body): (u32, Vec<u8>)| match Packet::parse(&body, dialect) {
        Ok((_, Packet::Connect(connect))) => Some(connect),
        _ => None,
    };
    room.others.drain(..).filter_map(of).collect()
}

/// He has a large message of ours, of which he has not asked for anything.
fn announced() -> (Room, SlotId) {
    let mut room = Room::new(1, config(200));
    let link = room.let_him_in();
    room.hosts[0].send(link, 5, 100_000, true);
    room.run(Duration::from_millis(1));
    room.say(HIS_STATION, &Packet::Ack(ack(2)));
    asked(&mut room);
    (room, link)
}

fn ack(acknowledged: u16) -> Ack {
    Ack {
        to: ENDPOINT,
        from: HIS,
        session: SESSION,
        number: acknowledged.into(),
        acknowledged: Sequence(acknowledged),
    }
}

#[test]
fn one_that_has_a_large_message_and_is_gone_is_noticed() {
    let (mut room, link) = announced();
    room.run(GIVE_UP_AFTER);
    assert_eq!(down(&room, link), None, "it may be computing");
    assert!(asked(&mut room).len() > 20, "it is asked whether it is there");
    room.run(2 * SECOND);
    assert_eq!(down(&room, link), Some(Fault::Unreachable));
}

#[test]
fn one_that_has_a_large_message_and_answers_is_asked_now_and_then_only() {
    let (mut room, link) = announced();
    let mut questions = 0;
    for _ in 0..600 {
        room.run(SECOND / 10);
        let connects = asked(&mut room);
        questions += connects.len();
        if let Some(connect) = connects.first() {
            let reply = ConnectReply {
                to: ENDPOINT,
                from: HIS,
                index: 1,
                asker: connect.session,
                session: 77,
                receive_next: Sequence(2),
                connect: connect.connect,
                status: 0,
            };
            room.say(HIS_STATION, &Packet::ConnectReply(reply));
        }
    }
    assert_eq!(down(&room, link), None);
    assert!((20..=200).contains(&questions), "{questions} questions in a minute");
    assert_eq!(room.hosts[0].seen.judged, [], "it is not asked for the user");
}

#[test]
fn a_key_is_judged_each_time_by_who_is_there() {
    let mut room = Room::new(1, config(200));
    let link = room.let_him_in();
    asked(&mut room);
    for _ in 0..2 {
        let now = room.now;
        assert_eq!(room.hosts[0].machine.connect(HIS_STATION, HIS, KEY, now), Ok(link));
        room.hosts[0].machine.show_key(link, KEY).unwrap();
        room.run(GIVE_UP_AFTER - SECOND);
        assert!(!asked(&mut room).is_empty());
        // A silent peer has not judged the key, and may be computing.
        assert_eq!((down(&room, link), room.hosts[0].seen.judged.as_slice()), (None, &[][..]));
        room.hosts[0].machine.show_key(link, KEY).unwrap();
        room.run(2 * SECOND);
        if down(&room, link) == Some(Fault::Unreachable) {
            return;
        }
    }
    panic!("it is gone");
}

#[test]
fn how_a_link_ended_is_told() {
    // Its endpoint was closed: its host says so, first of a message, and then of our connecting.
    let mut room = Room::new(1, config(200));
    let link = room.let_him_in();
    room.hosts[0].send(link, 5, 10, true);
    room.run(Duration::from_millis(1));
    let nack = |number| {
        Packet::NackLib(NackLib {
            from: HIS,
            to: ENDPOINT,
            reason: Nack::Closed,
            index: INDEX_UNKNOWN,
            sequence: Sequence(number),
        })
    };
    room.say(HIS_STATION, &nack(1));
    assert_eq!(down(&room, link), None, "it may be late");
    room.run(Duration::from_millis(1));
    // A refusal of our connect may be late, too, and belong to an attempt before there was a link: we connect again
    // at once.
    asked(&mut room);
    room.say(HIS_STATION, &nack(0));
    room.run(Duration::from_micros(200));
    assert_eq!((down(&room, link), asked(&mut room).len()), (None, 1));
    room.say(HIS_STATION, &nack(0));
    assert_eq!(down(&room, link), Some(Fault::Closed));
    // It began anew.
    let mut room = Room::new(1, config(200));
    let link = room.let_him_in();
    room.say(HIS_STATION, &Packet::Connect(Connect { session: 78, ..connect(2) }));
    room.run(Duration::from_millis(1));
    assert_eq!(down(&room, link), Some(Fault::PeerReset));
    // It says nothing.
    let mut room = Room::new(1, config(200));
    let link = room.let_him_in();
    room.hosts[0].send(link, 5, 10, true);
    room.run(GIVE_UP_AFTER + SECOND);
    assert_eq!(down(&room, link), Some(Fault::Unreachable));
}

/// The number of messages sent to him since the last look.
fn messages(room: &mut Room) -> usize {
    let dialect = room.dialect;
    let is_message = |(_, body): &(u32, Vec<u8>)| {
        matches!(Packet::parse(body, dialect), Ok((_, Packet::Tiny(..) | Packet::Notify(_))))
    };
    room.others.drain(..).filter(is_message).count()
}

/// It answers connects when its program calls, and that may wait for a message of ours.
#[test]
fn one_that_is_asked_something_goes_on_getting_messages() {
    for shows_key in [false, true] {
        let (mut room, link) = announced();
        if shows_key {
            room.hosts[0].machine.show_key(link, KEY).unwrap();
            room.run(Duration::from_millis(1));
        } else {
            room.run(GIVE_UP_AFTER / 16 + Duration::from_millis(10));
        }
        assert_eq!(asked(&mut room).len(), 1);
        let number = room.hosts[0].send(link, 6, 10, true);
        room.run(Duration::from_millis(1));
        assert_eq!(messages(&mut room), 1, "shows a key: {shows_key}");
        // It has it, and has answered nothing else.
        room.say(HIS_STATION, &Packet::Ack(ack(3)));
        let finished = room.hosts[0].seen.finished.iter().map(|(_, end)| end.number);
        assert!(finished.eq([number]));
        // It refuses another one: perhaps it does not know us any more, and the question is one that messages wait for.
        room.hosts[0].send(link, 7, 10, true);
        room.run(Duration::from_millis(1));
        assert_eq!(messages(&mut room), 1);
        let refusal = NackLib {
            from: HIS,
            to: ENDPOINT,
            reason: Nack::BadSession,
            index: INDEX_UNKNOWN,
            sequence: Sequence(3),
        };
        room.say(HIS_STATION, &Packet::NackLib(refusal));
        room.hosts[0].send(link, 8, 10, true);
        room.run(SECOND);
        assert!(!asked(&mut room).is_empty());
        room.run(SECOND);
        assert_eq!(messages(&mut room), 0);
        assert_eq!(down(&room, link), None);
    }
}

#[test]
fn one_whose_host_answers_is_not_gone_though_its_program_computes() {
    let (mut room, link) = announced();
    let announce = Rendezvous {
        message: message(1, 9),
        total_bytes: 10_000_000,
        region: 1,
        region_sequence: 1,
        region_offset: 0,
    };
    room.say(HIS_STATION, &Packet::Rendezvous(announce));
    room.read_all();
    room.run(Duration::from_millis(1));
    let dialect = room.dialect;
    // Its driver answers a piece a second, and nobody answers anything else.
    for _ in 0..60 {
        let of = |(_, body): (u32, Vec<u8>)| match Packet::parse(&body, dialect) {
            Ok((_, Packet::Pull(pull))) => Some(pull),
            _ => None,
        };
        let pull = room.others.drain(..).filter_map(of).next_back().expect("it is asked again");
        let len = pull.block_bytes.min(dialect.reply_bytes()) as usize;
        let piece = PullReply {
            frame: pull.frame as u8,
            offset: pull.frame * dialect.reply_bytes(),
            handle: pull.handle,
            magic: pull.magic,
        };
        room.say(HIS_STATION, &Packet::PullReply(piece, &vec![0; len]));
        room.run(SECOND);
        assert_eq!(down(&room, link), None);
    }
    room.run(GIVE_UP_AFTER + SECOND);
    assert_eq!(down(&room, link), Some(Fault::Unreachable), "now nothing answers");
}

#[test]
fn since_when_a_message_is_owed_is_known_for_each() {
    let (mut room, link) = announced();
    let owed = |room: &Room, number| room.hosts[0].machine.owed_since(link, Some((0, number)));
    let large = 1;
    assert_eq!(owed(&room, large), Time::NEVER, "it has it");
    let second = room.hosts[0].send(link, 6, 100_000, true);
    let short = room.hosts[0].send(link, 7, 10, true);
    let since = room.now;
    room.run(SECOND);
    assert_eq!([second, short].map(|number| owed(&room, number)), [since; 2]);
    assert_eq!(owed(&room, large), Time::NEVER);
    assert_eq!(room.hosts[0].machine.owed_since(link, None), since);
    room.say(HIS_STATION, &Packet::Ack(ack(3)));
    assert_eq!(owed(&room, second), Time::NEVER);
    assert_eq!(owed(&room, short), room.now);
    room.say(HIS_STATION, &Packet::Ack(ack(4)));
    assert_eq!(owed(&room, short), Time::NEVER);
    // It refused something, and messages wait for its answer.
    let third = room.hosts[0].send(link, 8, 10, true);
    room.run(Duration::from_millis(1));
    let refusal = NackLib {
        from: HIS,
        to: ENDPOINT,
        reason: Nack::BadSession,
        index: INDEX_UNKNOWN,
        sequence: Sequence(4),
    };
    room.say(HIS_STATION, &Packet::NackLib(refusal));
    let fourth = room.hosts[0].send(link, 9, 10, true);
    room.run(Duration::from_millis(1));
    assert!(owed(&room, third) > since && owed(&room, third) < Time::NEVER);
    assert_eq!(owed(&room, fourth), Time::ZERO, "it has not left");
}
