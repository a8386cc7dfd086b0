//! Partners that say nothing any more: what they owe is asked after, and how a link ended is told.

use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::slots::SlotId;
use ropewalk_wire::mxoe::*;

use crate::room::*;
use crate::world::*;

const SECOND: Duration = Duration::from_secs(1);

fn down(room: &Room, link: SlotId) -> Option<Fault> {
    room.hosts[0].seen.down.get(&link).copied()
}

/// What he was asked since it was looked at last: connects of ours.
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
        // Who is silent has said nothing about it, and may be computing.
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
