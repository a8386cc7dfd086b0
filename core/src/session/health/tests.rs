use super::*;

const EVERY: Duration = Duration::from_millis(25);

fn at(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(millis)
}

/// A path whose round trips all took a millisecond.
fn steady() -> PathHealth {
    let mut health = PathHealth::default();
    for millis in 1..100 {
        health.awaits(at(millis - 1));
        health.delivered(at(millis - 1), true, at(millis));
    }
    assert_eq!(health.round_trip.map(|it| it.as_micros()), Some(1000));
    health
}

#[test]
fn a_path_that_delivers_nothing_for_a_time_out_is_late() {
    let mut health = steady();
    let time_out = health.time_out();
    assert!((6..7).contains(&time_out.as_millis()), "{time_out:?}");
    assert_eq!(health.due(), at(99) + time_out);
    assert!(!health.is_late(at(104)) && health.is_late(at(106)));
    health.delivered(at(105), true, at(106));
    assert!(!health.is_late(at(111)));
    health.rests();
    assert!(!health.is_late(at(1000)) && health.due() == Time::NEVER);
}

#[test]
fn a_thread_that_comes_late_has_longer_time_outs() {
    let mut health = steady();
    let before = health.time_out();
    health.set_floor(floor_of(Duration::from_micros(250)), PROMISED_MIN);
    assert_eq!(before - health.time_out(), FLOOR_FIRST - FLOOR_MIN);
    health.set_floor(floor_of(Duration::from_millis(9)), PROMISED_MIN);
    assert_eq!(health.time_out() - before, Duration::from_millis(5));
    health.lose(at(99));
    health.measure(Duration::from_millis(1));
    assert_eq!(health.time_out(), Duration::from_millis(1 + 2 + 1 + 9), "for its next link, too");
    health.set_floor(floor_of(Duration::from_secs(9)), PROMISED_MIN);
    assert_eq!(health.time_out(), Duration::from_millis(1 + 2 + 1) + FLOOR_MAX);
}

#[test]
fn an_acknowledgement_over_another_path_is_no_life_of_this_one() {
    let mut health = steady();
    let time_out = health.time_out();
    // Sent before the path broke at 100 ms; the peer found out, and acknowledges over another path.
    health.delivered(at(99), false, at(105));
    assert_eq!((health.delivered_at(), health.silent_since()), (at(100), at(100)));
    assert!(health.is_late(at(100) + health.time_out()));
    assert!(health.time_out() < time_out + Duration::from_millis(2), "{:?}", health.time_out());
    // What came over the path itself later stays.
    health.delivered(at(104), true, at(106));
    health.delivered(at(99), false, at(107));
    assert_eq!((health.delivered_at(), health.silent_since()), (at(106), at(106)));
}

#[test]
fn a_path_all_of_whose_acknowledgements_come_over_another_one_is_well() {
    let mut health = steady();
    // Its round trips grow from one to thirty milliseconds, as of a rail that has become slow.
    for millis in 100..1000 {
        health.awaits(at(millis));
        assert!(!health.is_late(at(millis)), "{millis}");
        let round_trip = (1 + (millis - 100) / 4).min(30);
        health.delivered(at(millis - round_trip), false, at(millis));
    }
    health.rests();
    assert!(health.round_trip > Some(Duration::from_millis(25)), "{:?}", health.round_trip);
}

#[test]
fn a_peer_that_delays_acknowledgements_is_given_time() {
    let mut health = steady();
    let before = health.time_out();
    health.set_floor(FLOOR_FIRST, Duration::from_millis(9));
    assert_eq!(health.time_out() - before, Duration::from_millis(8));
    health.lose(at(99));
    assert_eq!(health.promised, Duration::from_millis(9), "for its next link, too");
}

#[test]
fn a_wait_that_began_by_an_old_clock_is_no_long_one() {
    let mut health = steady();
    health.rests();
    health.awaits(at(99));
    assert!(!health.is_late(at(500)), "nobody has looked since");
    assert!(!health.is_late(at(502)) && health.is_late(at(504)));
}

#[test]
fn a_path_that_rested_is_late_by_what_was_sent_since() {
    let mut health = steady();
    // Nothing was under way until just before the time-out of the last delivery.
    health.awaits(at(104));
    assert!(health.is_late(at(106)) && !health.is_awaited(Some(at(104)), at(106)));
    assert!(!health.is_late(at(109)));
    assert!(health.is_late(at(111)) && health.is_awaited(Some(at(104)), at(111)));
    assert!(!health.is_awaited(None, at(112)) && health.due() == Time::NEVER);
}

#[test]
fn a_path_whose_peer_sleeps_is_not_late_for_a_second() {
    let mut health = steady();
    let late: Vec<u64> = (100..2000)
        .filter(|millis| health.is_late(at(*millis)) && !health.excuse(at(*millis)))
        .collect();
    assert!((1100..1120).contains(&late[0]), "{}", late[0]);
    health.delivered(at(1999), true, at(2000));
    assert!(health.is_late(at(2010)) && health.excuse(at(2010)) && !health.is_late(at(2015)));
}

#[test]
fn a_suspect_path_is_probed_until_it_answers_or_is_dead() {
    let mut health = steady();
    health.suspect(at(200));
    health.suspect(at(210));
    assert!(health.is_suspect() && !health.is_good());
    // Where it is the only one left, spans go over it all the same.
    health.awaits(at(201));
    health.delivered(at(201), true, at(202));
    assert!(health.due() == at(200) && !health.is_late(at(900)));
    // Another path answers each probe a millisecond later.
    let mut dead_at = None;
    let probes = (200..=300).filter(|millis| {
        let is_probed = health.take_probe(at((millis - 1) / 25 * 25 + 1), EVERY, at(*millis));
        dead_at = dead_at.or(health.is_dead().then_some(*millis));
        is_probed
    });
    assert_eq!(probes.collect::<Vec<_>>(), [200, 225, 250, 275, 300]);
    assert_eq!(dead_at, Some(300));
    health.answered(at(300));
    assert!(health.is_good() && !health.is_dead());
}

#[test]
fn a_path_is_not_dead_while_all_are_silent_nor_when_another_one_is_heard_first() {
    let mut health = steady();
    health.suspect(at(200));
    // The other path has delivered a moment later; then the peer sleeps for some seconds.
    for millis in 200..5000 {
        health.take_probe(at(203), EVERY, at(millis));
        assert!(!health.is_dead(), "{millis}");
    }
    // It wakes, and the answers by the other path come first.
    for millis in 5000..5030 {
        health.take_probe(at(5000), EVERY, at(millis));
    }
    assert!(!health.is_dead());
}

#[test]
fn a_suspect_path_of_an_idle_session_is_probed_ever_more_rarely() {
    let mut health = steady();
    health.suspect(at(0));
    let idle = Duration::from_secs(10);
    let probes = (0..60_000).filter(|millis| health.take_probe(at(0), idle, at(*millis)));
    let probes: Vec<u64> = probes.collect();
    assert_eq!(probes[..9], [0, 25, 50, 75, 100, 125, 150, 175, 10_175]);
    assert_eq!(probes.len(), 13);
    health.probe_by(at(60_001));
    assert_eq!(health.due(), at(60_001));
}

#[test]
fn a_path_whose_rail_reads_is_probed_meanwhile() {
    let mut health = steady();
    health.rests();
    health.watch(at(200));
    health.watch(at(203));
    assert_eq!(health.due(), at(205));
    assert!(!health.take_watch(at(204)) && health.take_watch(at(205)));
    health.probed(at(205));
    assert!(!health.is_silent(at(210)) && health.is_silent(at(212)));
    health.answered(at(206));
    assert!(!health.is_silent(at(300)) && health.due() == at(230), "the next probe");
    assert!(health.take_watch(at(230)) && health.due() == Time::NEVER, "it reads no more");
}

#[test]
fn a_path_that_carries_probes_alone_is_held_back_ever_longer() {
    let mut health = steady();
    let (mut now, mut holds) = (at(1000), Vec::new());
    for _ in 0..6 {
        health.suspect(now);
        now = now + Duration::from_millis(1);
        health.answered(now);
        holds.push(health.held_until.map_or(0, |until| until.since(now).as_millis()));
        now = health.held_until.unwrap_or(now) + Duration::from_millis(10);
        health.end_hold(now);
        assert!(health.is_good());
    }
    assert_eq!(holds, [0, 250, 500, 1000, 2000, 4000]);
    health.suspect(now + FLAPS_FORGOTTEN);
    health.answered(now + FLAPS_FORGOTTEN);
    assert!(health.is_good(), "that is long ago");
}

#[test]
fn a_path_that_carries_and_repairs_losses_is_not_held_back() {
    let (mut health, mut now) = (steady(), at(1000));
    let mut hold_after = |silent: u64| {
        health.carries();
        health.suspect(now);
        now = now + Duration::from_millis(silent);
        health.answered(now);
        let hold = health.held_until.map_or(0, |until| until.since(now).as_millis());
        now = health.held_until.unwrap_or(now) + Duration::from_millis(10);
        health.end_hold(now);
        hold
    };
    assert_eq!([16, 16, 16, 16].map(&mut hold_after), [0; 4]);
    assert_eq!([60, 60, 60].map(&mut hold_after), [250, 500, 1000], "it was cut");
}

#[test]
fn a_path_that_comes_and_goes_is_held_back_ever_longer() {
    let mut health = PathHealth::default();
    health.hold(at(0));
    assert!(health.is_good(), "it never lost its link");
    let mut holds = Vec::new();
    for _ in 0..12 {
        health.lose(at(0));
        health.hold(at(0));
        assert!(!health.is_good());
        holds.push(health.due().since(Time::ZERO).as_millis());
        health.end_hold(health.due());
        assert!(health.is_good());
    }
    assert_eq!(holds[..4], [250, 500, 1000, 2000]);
    assert_eq!(holds[11], 64_000);
}

#[test]
fn losses_of_long_ago_hold_a_path_back_no_longer() {
    let mut health = PathHealth::default();
    let mut lost_after = |seconds: u64, now: Time| {
        let now = now + Duration::from_secs(seconds);
        health.lose(now);
        health.hold(now);
        (health.due().since(now).as_millis(), health.due())
    };
    let (mut holds, mut now) = (Vec::new(), at(0));
    for seconds in [1000, 1, 1, 1, 59, 61, 1, 61] {
        let (hold, until) = lost_after(seconds, now);
        (holds, now) = ([holds, vec![hold]].concat(), until);
    }
    assert_eq!(holds, [250, 500, 1000, 2000, 4000, 250, 500, 250]);
}

#[test]
fn a_slow_path_that_carries_probes_alone_is_held_back_too() {
    let mut health = PathHealth::default();
    health.measure(Duration::from_millis(300));
    let time_out = health.time_out();
    assert!(time_out > FLAP);
    let (mut now, mut holds) = (at(1000), Vec::new());
    for _ in 0..4 {
        health.suspect(now);
        health.answered(now + Duration::from_millis(300));
        now = now + Duration::from_millis(300);
        holds.push(health.held_until.map_or(0, |until| until.since(now).as_millis()));
        now = health.held_until.unwrap_or(now);
        health.end_hold(now);
        // What goes over it now is late after a time-out.
        now = now + time_out + Duration::from_millis(5);
    }
    assert_eq!(holds, [0, 250, 500, 1000]);
}

#[test]
fn of_short_spans_that_follow_each_other_one_is_measured_each_millisecond() {
    let mut health = steady();
    let soon = at(99) + Duration::from_micros(900);
    assert_eq!(health.awaits(at(99)), Time::NEVER, "something is awaited already");
    assert!(health.delivered_again(false, soon));
    assert_eq!((health.delivered_at(), health.due()), (soon, soon + health.time_out()));
    assert!(!health.delivered_again(false, at(100)));
    for change in [
        (|health| health.awaits_nothing()) as fn(&mut PathHealth),
        |health| _ = health.excuse(at(100)),
        |health| health.note_cause(PathCause::Peer, at(100)),
        |health| health.suspect(at(100)),
    ] {
        let mut health = steady();
        health.delivered(at(99), true, at(100));
        change(&mut health);
        assert!(!health.delivered_again(false, at(100)), "{health:?}");
    }
    health.delivered(at(99), true, at(100));
    assert!(health.delivered_again(true, at(100)) && health.due() == Time::NEVER);
    assert_eq!(health.awaits(at(101)), at(101) + health.time_out());
}
