//! Partners between which a packet is missing for good: the side that notices it, and the new beginning of both in
//! the session that they have.

use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::slots::SlotId;
use ropewalk_sim::open_mx::Kind;
use ropewalk_sim::seeds;
use ropewalk_wire::mxoe::*;

use crate::foreign::{First, Scene, THEIRS, ours};
use crate::room::*;
use crate::world::*;

/// The interval at which Open-MX resends unacknowledged packets.
const AGAIN: Duration = Duration::from_millis(500);

fn tiny(number: u16, bytes: &[u8]) -> Packet<'_> {
    Packet::Tiny(message(number, u64::from(number)), bytes)
}

/// He sends these once more, for so long.
fn repeat(room: &mut Room, packets: &[Packet<'_>], time: Duration) {
    let end = room.now + time;
    while room.now < end {
        packets.iter().for_each(|packet| room.say(HIS_STATION, packet));
        room.run(AGAIN);
    }
}

fn told(room: &Room) -> Vec<u64> {
    room.hosts[0].seen.told.iter().map(|(_, bits)| *bits).collect()
}

/// We notice before the partner itself may give up.
const STUCK_AFTER: Duration = Duration::from_millis(GIVE_UP_AFTER.as_millis() as u64 * 3 / 4);

#[test]
fn a_partner_that_goes_on_without_what_is_missing_is_given_up() {
    let fragment =
        |total_bytes| Fragment { message: message(1, 1), total_bytes, fragment: 1, offset: 1452 };
    let begun = Packet::Medium(fragment(3000), &[1; 1452]);
    let other = Packet::Medium(fragment(4000), &[1; 1452]);
    let far = tiny(1000, b"far");
    let (early, missing) = (tiny(2, b"early"), tiny(1, b"missing"));
    // The packets in place of the missing one: later messages, or fragments that contradict the message.
    for (before, again) in [(None, &early), (None, &far), (Some(&begun), &other)] {
        let mut room = Room::new(1, config(200));
        let link = room.let_him_in();
        before.iter().for_each(|packet| room.say(HIS_STATION, packet));
        let again = std::slice::from_ref(again);
        repeat(&mut room, again, STUCK_AFTER - AGAIN);
        assert!(room.hosts[0].seen.down.is_empty(), "{again:?}: it may come yet");
        repeat(&mut room, again, 2 * AGAIN);
        assert_eq!(room.hosts[0].seen.down.get(&link), Some(&Fault::Unreachable), "{again:?}");
        assert_eq!(room.counters().stuck, 1);
    }
    let mut room = Room::new(1, config(200));
    room.let_him_in();
    repeat(&mut room, &[early], STUCK_AFTER - AGAIN);
    room.say(HIS_STATION, &missing);
    repeat(&mut room, &[early], STUCK_AFTER - AGAIN);
    assert_eq!(told(&room), [1, 2]);
    assert!(room.hosts[0].seen.down.is_empty(), "it came");
}

#[test]
fn one_that_waits_for_room_or_computes_is_not_given_up() {
    let mut room = Room::new(1, config(200));
    room.let_him_in();
    room.hosts[0].seen.later = 1000;
    let both = [tiny(1, b"first"), tiny(2, b"second")];
    repeat(&mut room, &both, GIVE_UP_AFTER * 2);
    assert!(room.hosts[0].seen.told.is_empty() && room.hosts[0].seen.down.is_empty());
    room.hosts[0].seen.later = 0;
    repeat(&mut room, &both, AGAIN * 2);
    assert_eq!(told(&room), [1, 2]);
    // It says something, and nothing for long.
    for _ in 0..4 {
        room.say(HIS_STATION, &tiny(4, b"fourth"));
        room.run(GIVE_UP_AFTER);
    }
    repeat(&mut room, &[tiny(3, b"third"), tiny(4, b"fourth")], AGAIN);
    assert_eq!(told(&room), [1, 2, 3, 4]);
    assert!(room.hosts[0].seen.down.is_empty());
}

#[test]
fn what_waited_for_its_turn_for_long_is_believed_only_when_it_comes_again() {
    let mut room = Room::new(1, config(200));
    room.let_him_in();
    // Under the number of another, and an end that is none.
    let notify = Notify {
        to: ENDPOINT,
        from: HIS,
        session: SESSION,
        sequence: Sequence(4),
        acknowledged: Sequence(1),
        bytes: 5,
        region: 9,
        region_sequence: 23,
    };
    let stray = Packet::Tiny(message(3, 99), b"stray");
    room.say(HIS_STATION, &stray);
    room.say(HIS_STATION, &Packet::Notify(notify));
    room.run(Duration::from_secs(3));
    for number in 1..6 {
        room.say(HIS_STATION, &tiny(number, b"right"));
    }
    assert_eq!(told(&room), [1, 2, 3, 4, 5]);
    // As long as it may only have been overtaken it counts.
    room.say(HIS_STATION, &tiny(7, b"seventh"));
    room.run(AGAIN);
    room.say(HIS_STATION, &tiny(6, b"sixth"));
    assert_eq!(told(&room), [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn numbers_begin_where_the_answer_says_though_a_connect_was_late() {
    let mut room = Room::new(1, config(200));
    let late = Connect { receive_next: Sequence(102), ..connect(1) };
    room.say(HIS_STATION, &Packet::Connect(late));
    room.run(Duration::from_millis(1));
    room.let_us_in(Sequence(106));
    let dialect = room.dialect;
    let link = *room.hosts[0].seen.up.keys().next().expect("it is up");
    room.hosts[0].send(link, 1, 20, false);
    room.run(Duration::from_millis(1));
    let sent = room.others.iter().find_map(|(_, body)| match Packet::parse(body, dialect) {
        Ok((_, Packet::Tiny(message, _))) => Some(message.sequence),
        _ => None,
    });
    assert_eq!(sent, Some(Sequence(106)));
}

#[test]
fn a_pull_that_is_refused_for_its_session_goes_on_when_that_is_right() {
    let mut room = Room::new(1, config(200));
    room.let_him_in();
    let announced = Rendezvous {
        message: message(1, 16),
        total_bytes: 1000,
        region: 4,
        region_sequence: 23,
        region_offset: 0,
    };
    room.say(HIS_STATION, &Packet::Rendezvous(announced));
    room.read_all();
    room.run(Duration::from_millis(1));
    let dialect = room.dialect;
    let parsed = |body: &[u8]| match Packet::parse(body, dialect) {
        Ok((_, Packet::Pull(pull))) => Some((pull.handle, pull.magic)),
        _ => None,
    };
    let (handle, magic) =
        room.others.drain(..).find_map(|(_, body)| parsed(&body)).expect("it is asked for");
    let refused = |reason| Packet::NackMcp(NackMcp { endpoint: HIS, reason, handle, magic });
    for reason in [Nack::BadSession, Nack::Closed, Nack::BadEndpoint] {
        room.say(HIS_STATION, &refused(reason));
    }
    room.run(Duration::from_millis(1));
    room.let_us_in(Sequence(1));
    room.run(AGAIN);
    assert!(room.others.iter().any(|(_, body)| parsed(body) == Some((handle, magic))));
    let bytes: Vec<u8> = (0..1000).map(|at| pattern(16, at)).collect();
    let piece = PullReply { frame: 0, offset: 0, handle, magic };
    room.say(HIS_STATION, &Packet::PullReply(piece, &bytes));
    room.run(Duration::from_millis(1));
    assert_eq!(room.hosts[0].seen.received.len(), 1);
    assert!(room.hosts[0].seen.failed.is_empty() && room.hosts[0].seen.down.is_empty());
}

/// Messages both ways over a link; all of them are new, and come.
fn flows(scene: &mut Scene, link: SlotId) {
    let before = scene.world.nodes.0.seen.finished.len();
    let lens = [0, 20, 100, 5000, 100_000];
    for (id, len) in (0..).zip(lens) {
        scene.world.nodes.1.receive(500_000 + id, len);
        scene.world.nodes.0.send(link, 500_000 + id, len, true);
        scene.world.nodes.1.send(600_000 + id, len, true);
    }
    scene.world.until("messages both ways", |world| {
        while world.nodes.0.read() {}
        let of = |it: &&u64| **it / 100_000 == 5;
        let ended = world.nodes.1.ended(Kind::Receive).map(|event| &event.match_info);
        let here = world.nodes.0.seen.received.iter().filter(|it| it.id / 100_000 == 6).count();
        let finished = world.nodes.0.seen.finished.len() - before;
        (finished, ended.filter(of).count(), here) == (lens.len(), lens.len(), lens.len())
    });
}

#[test]
fn who_gave_up_in_the_midst_of_messages_goes_on_with_nothing_of_them() {
    for seed in seeds(0, 40) {
        let mut scene = Scene::new(seed, Weather { loss: 300, ..Weather::FAIR }, First::Both);
        // Some of them are there in part, and some before their turn.
        for _ in 0..30 {
            scene.send();
            scene.send_back();
        }
        scene.world.pass(Duration::from_micros(500));
        scene.world.air.weather.loss = 1000;
        let old = scene.link;
        scene.world.until("its end", |world| world.nodes.0.seen.down.contains_key(&old));
        assert_eq!(scene.world.nodes.0.seen.down[&old], Fault::Unreachable);
        scene.world.air.weather = Weather::FAIR;
        if seed % 2 == 0 {
            // They give up, too, or hear from us that something else begins.
            scene.world.pass(GIVE_UP_AFTER);
        }
        let now = scene.world.now;
        let link = scene.world.nodes.0.machine.connect(1, THEIRS, KEY, now).unwrap();
        scene.world.until("a link", |world| world.nodes.0.seen.up.contains_key(&link));
        scene.world.pass(Duration::from_secs(2));
        flows(&mut scene, link);
        assert!(!scene.world.nodes.0.seen.down.contains_key(&link), "seed {seed}");
    }
}

#[test]
fn one_that_gave_us_up_and_connects_again_begins_anew_with_us() {
    for seed in seeds(0, 40) {
        let mut scene = Scene::new(seed, Weather::FAIR, First::Both);
        // Also where we have never sent anything.
        scene.traffic(seed % 4);
        scene.check();
        // Only they send, so that only they find that nothing comes back.
        scene.world.air.weather.loss = 1000;
        (0..5).for_each(|_| scene.send_back());
        scene.world.pass(GIVE_UP_AFTER + Duration::from_secs(2));
        let old = scene.link;
        assert!(scene.world.nodes.0.seen.down.is_empty());
        scene.world.air.weather.loss = 0;
        scene.world.nodes.1.host.connect(ours(), KEY);
        scene.world.pass(Duration::from_secs(2));
        let seen = &scene.world.nodes.0.seen;
        // Without earlier messages there is nothing to mistake.
        let said = seen.finished.len() + seen.received.len() > 0;
        assert_eq!(seen.down.contains_key(&old), said, "seed {seed}");
        let link = *seen.up.keys().find(|link| !seen.down.contains_key(link)).expect("a link");
        scene.world.pass(Duration::from_secs(2));
        flows(&mut scene, link);
        assert!(!scene.world.nodes.0.seen.down.contains_key(&link), "seed {seed}");
    }
}
