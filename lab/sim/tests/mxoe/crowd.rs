//! Operations that wait for one another: reads of many, ends of large messages, room above, acknowledgements of
//! before.

use ropewalk_transport::PacketProtocol;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::slots::SlotId;
use ropewalk_wire::mxoe::*;

use crate::room::*;
use crate::world::*;

#[test]
fn those_who_read_from_many_get_everything_with_little_under_way() {
    let mut room = Room::new(4, config(32));
    let links: Vec<SlotId> = (1..4).map(|host| room.join(host, 0)[0]).collect();
    for (host, link) in links.iter().enumerate() {
        for id in 0..3 {
            room.hosts[host + 1].send(*link, (host as u64 + 1) * 100 + id, 300_000, true);
        }
    }
    for _ in 0..300 {
        room.run(Duration::from_millis(1));
        room.read_all();
    }
    assert_eq!(room.hosts[0].seen.received.len(), 9);
    let ends = |host: usize| room.hosts[host].seen.finished.len();
    assert_eq!([ends(1), ends(2), ends(3)], [3; 3]);
}

#[test]
fn others_do_not_wait_for_the_replies_of_one_who_is_silent() {
    let mut room = Room::new(2, config(64));
    let links = room.join(0, 1);
    room.let_him_in();
    for number in 1..4 {
        let rendezvous = Rendezvous {
            message: message(number, 6),
            total_bytes: 200_000,
            region: number as u8,
            region_sequence: 23,
            region_offset: 0,
        };
        room.say(HIS_STATION, &Packet::Rendezvous(rendezvous));
    }
    room.read_all();
    room.run(Duration::from_millis(1));
    room.innocent(links);
}

#[test]
fn as_many_large_messages_may_be_read_as_there_are() {
    let mut room = Room::new(1, config(64));
    room.let_him_in();
    for number in 1..2001 {
        let rendezvous = Rendezvous {
            message: message(number, 6),
            total_bytes: 40_000,
            region: number as u8,
            region_sequence: 23,
            region_offset: 0,
        };
        room.say(HIS_STATION, &Packet::Rendezvous(rendezvous));
    }
    room.read_all();
    assert_eq!(room.hosts[0].seen.reading.len(), 2000);
}

#[test]
fn ends_overtake_messages_that_wait_for_a_region() {
    let mut room = Room::new(2, config(200));
    let links = room.join(0, 1);
    for id in 0..300 {
        for (host, link) in links.into_iter().enumerate() {
            room.hosts[host].send(link, 1 + id, 40_000, true);
        }
    }
    for _ in 0..600 {
        room.run(Duration::from_millis(1));
        room.read_all();
    }
    let ends = |host: usize| room.hosts[host].seen.finished.len();
    assert_eq!([ends(0), ends(1)], [300; 2]);
}

#[test]
fn ends_overtake_messages_that_the_partner_has_no_room_for() {
    let mut room = Room::new(2, config(200));
    let [a, b] = room.join(0, 1);
    room.hosts[1].seen.later = 1000;
    for id in 0..600 {
        room.hosts[0].send(a, 1 + id, 20, true);
    }
    for id in 0..100 {
        room.hosts[1].send(b, 1000 + id, 40_000, true);
    }
    for _ in 0..200 {
        room.run(Duration::from_millis(1));
        room.read_all();
    }
    assert_eq!(room.hosts[1].seen.finished.len(), 100, "it hears of its ends");
    assert!(room.hosts[1].seen.told.is_empty() && room.hosts[0].seen.finished.is_empty());
    room.hosts[1].seen.later = 0;
    room.run(Duration::from_secs(3));
    assert_eq!(room.hosts[0].seen.finished.len(), 600);
}

#[test]
fn room_for_everything_is_used_in_passes_that_nothing_else_wakes() {
    let mut room = Room::new(2, config(200));
    let [a, _] = room.join(0, 1);
    room.hosts[1].seen.later = 1000;
    for id in 0..120 {
        room.hosts[0].send(a, 1 + id, 20, true);
    }
    room.run(Duration::from_millis(1));
    room.hosts[1].seen.later = 0;
    room.run(Duration::from_millis(3));
    assert_eq!(room.hosts[1].seen.received.len(), 120, "without a message that comes again");
}

#[test]
fn acknowledgements_are_believed_after_one_side_has_closed_its_link() {
    let mut room = Room::new(2, config(200));
    let [mut a, b] = room.join(0, 1);
    for id in 0..60 {
        room.hosts[1].send(b, 1 + id, 20, true);
        room.run(Duration::from_millis(3));
    }
    room.hosts[0].close(a);
    room.run(Duration::from_millis(5));
    assert_eq!(room.hosts[0].seen.down.get(&a), Some(&Fault::Closed));
    let now = room.now;
    a = room.hosts[0].machine.connect(1, ENDPOINT, KEY, now).unwrap();
    room.run(Duration::from_millis(5));
    assert!(room.hosts[0].seen.up.contains_key(&a) && room.hosts[1].seen.down.is_empty());
    room.hosts[1].send(b, 100, 20, true);
    room.run(Duration::from_millis(5));
    assert_eq!(room.hosts[1].seen.finished.len(), 61);
    assert_eq!(room.hosts[1].machine.counters().resent, 0);
}

#[test]
fn a_closed_link_is_over_when_its_last_message_is_acknowledged() {
    let mut room = Room::new(2, config(200));
    let [a, b] = room.join(0, 1);
    room.hosts[0].send(a, 1, 20, true);
    room.hosts[0].close(a);
    // A message carries the news, not a separate acknowledgement.
    for (_, body) in room.hosts[0].pass(room.now, 10) {
        room.hosts[1].packet(0, &body, room.now);
    }
    room.hosts[1].send(b, 2, 20, false);
    room.run(Duration::from_millis(1));
    assert_eq!(room.hosts[0].seen.down.get(&a), Some(&Fault::Closed));
}

#[test]
fn those_who_only_connect_make_room_for_those_who_say_more() {
    let mut room = Room::new(3, config(200));
    let links = room.join(1, 0);
    for station in 1000..1300 {
        room.say(station, &Packet::Connect(connect(1)));
    }
    let half_open = room.counters().half_open;
    assert_eq!(half_open, 300 - 63, "as many partners as there may be");
    // Either side may begin.
    let others = [room.join(2, 0), room.join(0, 2)];
    assert_eq!(others[0][1], others[1][0], "one link");
    room.innocent_between([1, 0], links);
    room.innocent_between([2, 0], others[0]);
    for station in 2000..2300 {
        room.say(station, &Packet::Connect(connect(1)));
    }
    assert_eq!(room.counters().half_open, half_open + 301);
    // Those who said more stay.
    room.innocent_between([1, 0], links);
    room.innocent_between([2, 0], others[0]);
}

#[test]
fn who_closes_says_first_what_has_arrived() {
    let mut room = Room::new(2, config(200));
    let [a, b] = room.join(0, 1);
    room.hosts[0].send(a, 1, 20, false);
    for (_, body) in room.hosts[0].pass(room.now, 10) {
        room.hosts[1].packet(0, &body, room.now);
    }
    assert!(room.hosts[0].machine.owes());
    room.hosts[1].close(b);
    // Sooner than an acknowledgement would be due.
    room.run(Duration::from_micros(400));
    assert_eq!(room.hosts[1].seen.down.get(&b), Some(&Fault::Closed));
    assert_eq!(room.hosts[0].machine.counters().resent, 0);
    assert!(!room.hosts[0].machine.owes(), "what arrived was not acknowledged");
}

#[test]
fn room_for_what_waits_is_work_for_a_pass() {
    let mut room = Room::new(2, config(200));
    let [a, _] = room.join(0, 1);
    room.hosts[1].seen.later = 1000;
    room.hosts[0].send(a, 1, 20, true);
    for (_, body) in room.hosts[0].pass(room.now, 10) {
        room.hosts[1].packet(0, &body, room.now);
    }
    room.hosts[1].seen.later = 0;
    // It looks at nothing that waits after it heard that there is room.
    room.hosts[1].pass(room.now, 10);
    assert!(room.hosts[1].seen.received.is_empty());
    assert!(room.hosts[1].machine.has_work(), "a sleeper would not be woken");
    room.hosts[1].pass(room.now, 10);
    assert_eq!(room.hosts[1].seen.received.len(), 1);
    assert!(!room.hosts[1].machine.has_work());
}
