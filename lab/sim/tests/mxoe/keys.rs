//! Keys: each connect names one, and the connected side judges it each time.

use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::random::Random;
use ropewalk_sim::seeds;
use ropewalk_transport::mxoe::MxoeConfig;
use ropewalk_wire::mxoe::*;

use crate::room::*;
use crate::world::*;

const WRONG: u32 = KEY + 1;
const MOMENT: Duration = Duration::from_millis(100);

/// Two endpoints with a key each: the first one's is `KEY + 2`.
fn two() -> Room {
    let mut room = Room::new(2, config(200));
    let own = MxoeConfig { key: KEY + 2, ..config(200) };
    room.hosts[0] = Ours::configured(&mut Random::from_seed(3), own, SESSION);
    room
}

#[test]
fn a_key_is_judged_beside_a_link_that_there_is() {
    let mut room = two();
    let links = room.join(0, 1);
    let judged = |room: &Room, host: usize| room.hosts[host].seen.judged.clone();
    assert_eq!(judged(&room, 0), [(links[0], KEY, true)], "the key of the first connect");
    assert_eq!(judged(&room, 1), [], "it did not ask");
    // The side that connected, and the one to which it did; each knows the other's own key only as right.
    for (host, right) in [(0, KEY), (1, KEY + 2)] {
        room.hosts[host].seen.judged.clear();
        for key in [WRONG, right, KEY + 4 - (right - KEY) - 2] {
            room.hosts[host].machine.show_key(links[host], key).unwrap();
        }
        room.run(MOMENT);
        let wanted = [(WRONG, false), (right, true), (KEY + 4 - (right - KEY) - 2, false)];
        let mut told = judged(&room, host);
        told.sort();
        let mut wanted = wanted.map(|(key, it)| (links[host], key, it));
        wanted.sort();
        assert_eq!(told, wanted, "host {host}");
    }
    assert!(room.hosts.iter().all(|host| host.seen.down.is_empty()));
    room.innocent(links);
}

#[test]
fn keys_beside_a_link_are_judged_though_packets_are_lost_and_messages_go_on() {
    for seed in seeds(0, 50) {
        let mut random = Random::from_seed(seed);
        let mut room = two();
        let links = room.join(0, 1);
        room.hosts[0].seen.judged.clear();
        for id in 0..20 {
            room.hosts[0].send(links[0], 1 + id, 100, true);
            room.hosts[1].send(links[1], 100 + id, 5000, true);
        }
        for key in 0..5 {
            room.hosts[0].machine.show_key(links[0], WRONG + 10 + key).unwrap();
        }
        // A third is lost: of many seeds one is unlucky for seconds.
        for round in 0..6000 {
            let [first, second] = &room.hosts[..] else { unreachable!("there are two") };
            let finished = [first, second].map(|host| host.seen.finished.len());
            if round >= 600 && first.seen.judged.len() == 5 && finished == [20; 2] {
                break;
            }
            for host in 0..2usize {
                for (_, body) in room.hosts[host].pass(room.now, 100) {
                    if random.below(3) > 0 {
                        room.hosts[1 - host].packet(host as u32, &body, room.now);
                    }
                }
            }
            room.now = room.now + Duration::from_millis(10);
        }
        let judged = &room.hosts[0].seen.judged;
        let keys: Vec<u32> = judged.iter().map(|it| it.1 - WRONG - 10).collect();
        assert_eq!(keys, [0, 1, 2, 3, 4], "seed {seed}");
        assert!(judged.iter().all(|it| !it.2));
        room.innocent(links);
    }
}

#[test]
fn who_connects_to_us_under_a_wrong_key_is_refused_though_we_connect_to_it() {
    let mut room = Room::new(1, config(200));
    let now = room.now;
    room.hosts[0].machine.connect(HIS_STATION, HIS, 5, now).unwrap();
    room.run(Duration::from_millis(1));
    room.others.clear();
    let status = |room: &mut Room, key, number| {
        room.others.clear();
        room.say(HIS_STATION, &Packet::Connect(Connect { key, ..connect(number) }));
        room.run(Duration::from_millis(1));
        let dialect = room.dialect;
        let of = |(_, body): (u32, Vec<u8>)| match Packet::parse(&body, dialect) {
            Ok((_, Packet::ConnectReply(reply))) => Some((reply.connect, reply.status)),
            _ => None,
        };
        room.others.drain(..).find_map(of)
    };
    assert_eq!(status(&mut room, WRONG, 1), Some((1, 11)));
    assert_eq!(status(&mut room, KEY, 2), Some((2, 0)));
    // In the session that is known, too.
    assert_eq!(status(&mut room, WRONG, 3), Some((3, 11)));
    assert_eq!(status(&mut room, 5, 4), Some((4, 11)), "the key of its own");
    assert_eq!(status(&mut room, KEY, 5), Some((5, 0)));
    // Under the right key it has a link as soon as it has heard of us, whatever its verdict on our key.
    room.hosts[0].seen.anything = true;
    room.say(HIS_STATION, &Packet::Tiny(message(1, 5), b"first"));
    assert!(room.hosts[0].seen.up.len() == 1 && room.hosts[0].seen.down.is_empty());
}

#[test]
fn the_first_of_several_keys_that_is_right_connects() {
    let mut room = two();
    let now = room.now;
    let machine = &mut room.hosts[0].machine;
    let link = machine.connect(1, ENDPOINT, WRONG, now).unwrap();
    assert_eq!(machine.connect(1, ENDPOINT, KEY, now), Ok(link));
    assert_eq!(machine.connect(1, ENDPOINT, 9, now), Ok(link));
    room.run(MOMENT);
    let judged = [(WRONG, false), (KEY, true), (9, false)].map(|(key, it)| (link, key, it));
    assert_eq!(room.hosts[0].seen.judged, judged);
    assert!(room.hosts[0].seen.up.contains_key(&link) && room.hosts[0].seen.down.is_empty());
}

#[test]
fn both_connect_at_once_and_one_of_them_under_a_wrong_key() {
    for wrong in 0..2 {
        let mut room = two();
        let now = room.now;
        let mut keys = [KEY, KEY + 2];
        keys[wrong] = WRONG;
        let of = |host: usize| 1 - host as u32;
        let links = [0, 1].map(|host: usize| {
            let machine = &mut room.hosts[host].machine;
            machine.connect(of(host), ENDPOINT, keys[host], now).unwrap()
        });
        room.run(MOMENT);
        let judged = |host: usize| room.hosts[host].seen.judged.clone();
        // Its own connect failed; if the other side was first, its link is the same.
        let failed = room.hosts[wrong].seen.down.get(&links[wrong]);
        match failed {
            Some(fault) => assert_eq!(*fault, Fault::NotPermitted),
            None => assert_eq!(judged(wrong), [(links[wrong], WRONG, false)]),
        }
        assert_eq!(judged(1 - wrong), [(links[1 - wrong], keys[1 - wrong], true)]);
        let links = [0, 1].map(|host: usize| {
            let seen = &room.hosts[host].seen;
            *seen.up.keys().find(|link| !seen.down.contains_key(link)).expect("a link")
        });
        room.innocent(links);
    }
}

#[test]
fn who_connects_while_we_do_is_heard_before_it_answers() {
    for key in [KEY, WRONG] {
        let mut room = Room::new(1, config(200));
        let now = room.now;
        let link = room.hosts[0].machine.connect(HIS_STATION, HIS, key, now).unwrap();
        room.run(Duration::from_millis(1));
        room.hosts[0].seen.anything = true;
        // His answer to ours is lost, and that to his is not.
        room.say(HIS_STATION, &Packet::Connect(connect(1)));
        room.say(HIS_STATION, &Packet::Tiny(message(1, 5), b"first"));
        assert_eq!(room.hosts[0].seen.told, [(link, 5)], "key {key:#x}");
        assert_eq!(room.counters().unready, 0);
        // Ours waits until it knows our session.
        let named = room.hosts[0].send(link, 6, 10, true);
        room.run(Duration::from_millis(1));
        let is_tiny = |(_, body): &(u32, Vec<u8>)| {
            matches!(Packet::parse(body, room.dialect), Ok((_, Packet::Tiny(..))))
        };
        assert!(!room.others.iter().any(is_tiny), "message {named}");
        room.let_us_in(Sequence(1));
        room.run(Duration::from_millis(1));
        let is_tiny = |(_, body): &(u32, Vec<u8>)| {
            matches!(Packet::parse(body, room.dialect), Ok((_, Packet::Tiny(..))))
        };
        assert!(room.others.iter().any(is_tiny));
        assert_eq!(room.hosts[0].seen.up.len(), 1, "it is one link");
    }
}

#[test]
fn an_endpoint_that_began_anew_is_refused_under_a_wrong_key() {
    let mut room = Room::new(1, config(200));
    let link = room.let_him_in();
    room.others.clear();
    room.say(HIS_STATION, &Packet::Connect(Connect { key: WRONG, session: 78, ..connect(2) }));
    room.run(Duration::from_millis(1));
    assert_eq!(room.hosts[0].seen.down.get(&link), Some(&Fault::PeerReset));
    let reply = room.others.iter().find_map(|(_, body)| match Packet::parse(body, room.dialect) {
        Ok((_, Packet::ConnectReply(reply))) => Some(reply),
        _ => None,
    });
    assert_eq!(reply.map(|reply| (reply.asker, reply.status)), Some((78, 11)));
}

/// It was killed while it connected, and began anew; packets of its former life come late.
#[test]
fn who_connects_while_we_do_may_be_a_former_life() {
    for late in [1, 2] {
        let mut room = Room::new(1, config(200));
        let now = room.now;
        let link = room.hosts[0].machine.connect(HIS_STATION, HIS, KEY, now).unwrap();
        room.run(Duration::from_millis(1));
        for session in 0..late {
            let former = Connect { session: 70 + session, ..connect(1) };
            room.say(HIS_STATION, &Packet::Connect(former));
        }
        assert!(room.hosts[0].seen.up.is_empty(), "nobody has named our session");
        room.let_us_in(Sequence(1));
        let seen = &room.hosts[0].seen;
        assert!(seen.up.contains_key(&link) && seen.down.is_empty(), "{:?}", seen.down);
        assert_eq!(seen.up[&link].0.session, 77);
        room.hosts[0].send(link, 6, 10, true);
        room.others.clear();
        room.run(Duration::from_millis(1));
        let dialect = room.dialect;
        let session = room.others.iter().find_map(|(_, body)| match Packet::parse(body, dialect) {
            Ok((_, Packet::Tiny(message, _))) => Some(message.session),
            _ => None,
        });
        assert_eq!(session, Some(77));
    }
}

/// An attempt that is repeated says what has arrived by now: an old number would look as if we had begun anew.
#[test]
fn messages_that_come_before_an_attempt_is_repeated_are_not_lost() {
    let mut room = Room::new(2, config(200));
    let now = room.now;
    let link = room.hosts[1].machine.connect(0, ENDPOINT, KEY, now).unwrap();
    // The first one is called, and calls: its own first attempt is lost.
    let mut lost = 0;
    let mut exchange = |room: &mut Room, deaf: bool, rounds: u32| {
        for _ in 0..rounds {
            for host in [1, 0usize] {
                for (_, body) in room.hosts[host].pass(room.now, 100) {
                    let parsed = Packet::parse(&body, room.dialect);
                    let is_connect = matches!(parsed, Ok((_, Packet::Connect(_))));
                    if host == 0 && is_connect && lost == 0 {
                        lost += 1;
                    } else if host == 0 || !deaf {
                        room.hosts[1 - host].packet(host as u32, &body, room.now);
                    }
                }
            }
            room.now = room.now + Duration::from_millis(1);
        }
    };
    exchange(&mut room, false, 3);
    for id in 0..3 {
        room.hosts[1].send(link, 1 + id, 10, true);
    }
    exchange(&mut room, false, 10);
    assert_eq!(room.hosts[1].seen.finished.len(), 3);
    // The next attempt arrives; then the first one hears nothing for a while.
    room.hosts[1].send(link, 4, 10, true);
    exchange(&mut room, true, 400);
    for id in 0..3 {
        room.hosts[1].send(link, 5 + id, 10, true);
    }
    exchange(&mut room, false, 2000);
    let mut told: Vec<u64> = room.hosts[0].seen.told.iter().map(|it| it.1).collect();
    told.sort_unstable();
    assert_eq!(told, [1, 2, 3, 4, 5, 6, 7]);
}

/// A restarted side begins with the number that it receives first. That may be a copy of an attempt before the
/// latest.
#[test]
fn one_that_began_anew_beside_two_attempts_meets_another_session() {
    let mut room = Room::new(1, config(200));
    let link = room.let_him_in();
    room.others.clear();
    room.hosts[0].machine.show_key(link, KEY).unwrap();
    room.run(Duration::from_millis(1));
    for number in 1..4 {
        room.say(HIS_STATION, &Packet::Tiny(message(number, number.into()), b"of his former life"));
    }
    room.run(Duration::from_millis(50));
    let connects = |room: &mut Room| -> Vec<Connect> {
        let dialect = room.dialect;
        let of = |(_, body): (u32, Vec<u8>)| match Packet::parse(&body, dialect) {
            Ok((_, Packet::Connect(connect))) => Some(connect),
            _ => None,
        };
        room.others.drain(..).filter_map(of).collect()
    };
    let mut attempts = connects(&mut room);
    attempts.dedup_by_key(|attempt| attempt.receive_next);
    assert_eq!(attempts.len(), 2, "two numbers: {attempts:?}");
    assert!(attempts.iter().all(|attempt| attempt.session == SESSION));
    room.say(HIS_STATION, &Packet::Connect(Connect { session: 78, ..connect(1) }));
    room.run(Duration::from_millis(1));
    let back = connects(&mut room);
    assert!(!back.is_empty() && back.iter().all(|it| it.session != SESSION), "{back:?}");
    // One that heard of one number only goes on with it.
    let mut room = Room::new(1, config(200));
    room.let_him_in();
    room.run(Duration::from_secs(1));
    room.others.clear();
    room.say(HIS_STATION, &Packet::Connect(Connect { session: 78, ..connect(1) }));
    room.run(Duration::from_millis(1));
    assert!(connects(&mut room).iter().all(|it| it.session == SESSION));
}
