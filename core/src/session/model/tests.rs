use std::collections::VecDeque;

use super::*;

/// A path of a known rate, whose peer acknowledges each span by itself.
struct Pipe {
    model: PathModel,
    rate: u64,
    delay: Duration,
    now: Time,
    free_at: Time,
    /// When each span was sent, and when it is acknowledged.
    under_way: VecDeque<(Time, Time)>,
    delivered: u64,
}

const GIGABIT: u64 = 125_000_000;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

impl Pipe {
    fn new(rate: u64, delay: Duration) -> Pipe {
        let model = PathModel::new(0, Time::ZERO);
        let (now, under_way) = (Time::ZERO, VecDeque::new());
        Pipe { model, rate, delay, now, free_at: now, under_way, delivered: 0 }
    }

    fn has_room(&self) -> bool {
        let in_flight = self.model.in_flight();
        in_flight == 0 || in_flight + SPAN <= self.model.most(self.now)
    }

    fn send(&mut self) {
        let nanos = SPAN * 1_000_000_000 / self.rate;
        self.free_at = self.free_at.max(self.now) + Duration::from_nanos(nanos);
        self.under_way.push_back((self.now, self.free_at + self.delay));
        self.model.send(SPAN, self.now);
    }

    /// Fills it for so long with what it takes, and at most so many spans.
    fn run(&mut self, time: Duration, most: usize) {
        let until = self.now + time;
        while self.now < until {
            while self.under_way.len() < most && self.has_room() {
                self.send();
            }
            let (sent_at, at) = self.under_way.pop_front().expect("an empty path has room");
            self.now = self.now.max(at);
            self.acknowledge(sent_at, 1);
        }
    }

    fn acknowledge(&mut self, sent_at: Time, spans: u64) {
        let bytes = spans * SPAN;
        let sent = Some((sent_at, SPAN));
        let acknowledged =
            Acknowledged { bytes, alone: bytes, sent, over_it: true, is_redundant: false };
        self.model.acknowledge(&acknowledged, self.now);
        self.delivered += bytes;
    }

    fn assert_rate(&self, rate: u64) {
        let found = self.model.rate().expect("it is measured");
        assert!(found.abs_diff(rate) < rate / 8, "{found} for {rate}");
    }
}

#[test]
fn the_rate_is_learned_and_the_queue_stays_short() {
    for rate in [GIGABIT / 20, GIGABIT, 20 * GIGABIT] {
        let mut pipe = Pipe::new(rate, Duration::from_micros(300));
        pipe.run(ms(300), usize::MAX);
        pipe.assert_rate(rate);
        let most = pipe.model.in_flight_max();
        let time = Duration::from_nanos(most * 1_000_000_000 / rate);
        assert!(most == FEW || time < ms(5), "{most} bytes in flight take {time:?}");
        let before = pipe.delivered;
        pipe.run(ms(200), usize::MAX);
        assert!(pipe.delivered - before > rate / 5 * 95 / 100, "it is kept busy");
    }
}

#[test]
fn a_path_that_becomes_slow_or_fast_is_noticed_within_a_tenth_of_a_second() {
    for most in [usize::MAX, 16] {
        let mut pipe = Pipe::new(GIGABIT, Duration::from_micros(300));
        pipe.run(ms(200), most);
        pipe.rate = GIGABIT * 3 / 10;
        pipe.run(ms(100), most);
        pipe.assert_rate(GIGABIT * 3 / 10);
        pipe.rate = GIGABIT;
        pipe.run(ms(100), most);
        pipe.assert_rate(GIGABIT);
    }
}

#[test]
fn a_path_without_enough_to_do_keeps_its_rate() {
    let mut pipe = Pipe::new(GIGABIT, Duration::from_micros(300));
    pipe.run(ms(200), usize::MAX);
    for _ in 0..1000 {
        pipe.run(Duration::from_nanos(1), 1);
        pipe.now = pipe.now + ms(2);
    }
    pipe.assert_rate(GIGABIT);
}

#[test]
fn acknowledgements_that_were_held_up_do_not_look_like_a_fast_path() {
    let mut pipe = Pipe::new(GIGABIT / 10, Duration::from_micros(300));
    pipe.run(ms(300), usize::MAX);
    // They are held up for 300 ms, and come within 4 ms then.
    for _ in 0..60 {
        pipe.now = pipe.now + ms(5);
        pipe.send();
    }
    for _ in 0..4 {
        let sent_at = pipe.under_way.drain(..15).next_back().expect("they are under way").0;
        pipe.now = pipe.now + ms(1);
        pipe.acknowledge(sent_at, 15);
    }
    let found = pipe.model.rate().expect("it is measured");
    assert!(found < GIGABIT / 4, "{found}");
}

#[test]
fn an_unused_path_is_tried_again_and_one_that_was_given_up_is_not_known() {
    let mut pipe = Pipe::new(GIGABIT, Duration::from_micros(300));
    assert!(pipe.model.wants_probe(pipe.now) && pipe.model.in_flight_max() == UNKNOWN_MAX);
    pipe.run(ms(300), usize::MAX);
    let now = pipe.now;
    assert!(!pipe.model.wants_probe(now));
    pipe.model.give_up(pipe.model.in_flight());
    assert_eq!(pipe.model.in_flight(), 0);
    assert!(!pipe.model.wants_probe(now) && pipe.model.wants_probe(now + ms(1001)));
    pipe.model.forget();
    assert_eq!((pipe.model.rate(), pipe.model.round_trip()), (None, None));
    assert!(pipe.model.wants_probe(now));
}

#[test]
fn the_least_round_trip_is_measured_again_in_time() {
    let mut pipe = Pipe::new(GIGABIT, Duration::from_micros(300));
    pipe.run(Duration::from_secs(9), usize::MAX);
    let before = pipe.model.round_trip().expect("it is measured");
    pipe.delay = ms(3);
    pipe.run(Duration::from_secs(21), usize::MAX);
    let after = pipe.model.round_trip().expect("it is measured");
    assert!(before < ms(1) && after >= ms(2) && after < ms(4), "{before:?}, {after:?}");
    pipe.assert_rate(GIGABIT);
}
