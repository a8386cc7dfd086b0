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
        let time = Duration::from_nanos(most.saturating_sub(FEW) * 1_000_000_000 / rate);
        assert!(time < ms(3), "{most} bytes in flight take {time:?}");
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

/// Two models that know nothing of each other, whose spans go one after the other over one path.
struct Shared {
    rate: u64,
    delay: Duration,
    now: Time,
    free_at: Time,
    flows: [Flow; 2],
}

struct Flow {
    model: PathModel,
    /// When it begins.
    from: Time,
    /// When each span was sent, and when it is acknowledged.
    under_way: VecDeque<(Time, Time)>,
    delivered: u64,
}

impl Shared {
    fn new(rate: u64, delay: Duration, from: [u64; 2]) -> Shared {
        let flow = |from: u64| Flow {
            model: PathModel::new(0, Time::ZERO),
            from: Time::ZERO + ms(from),
            under_way: VecDeque::new(),
            delivered: 0,
        };
        Shared { rate, delay, now: Time::ZERO, free_at: Time::ZERO, flows: from.map(flow) }
    }

    /// Both send what they may.
    fn send(&mut self) {
        let mut sends = true;
        while std::mem::take(&mut sends) {
            for flow in &mut self.flows {
                let in_flight = flow.model.in_flight();
                let has_room = in_flight == 0 || in_flight + SPAN <= flow.model.most(self.now);
                if self.now >= flow.from && has_room {
                    let nanos = SPAN * 1_000_000_000 / self.rate;
                    self.free_at = self.free_at.max(self.now) + Duration::from_nanos(nanos);
                    // The peer acknowledges each millisecond.
                    let tick = |at: Time| Time(at.0.next_multiple_of(500_000));
                    flow.under_way.push_back((self.now, tick(self.free_at + self.delay)));
                    flow.model.send(SPAN, self.now);
                    sends = true;
                }
            }
        }
    }

    /// For so long. Returns what each of them delivered meanwhile.
    fn run(&mut self, time: Duration) -> [u64; 2] {
        let until = self.now + time;
        let before = self.flows.each_ref().map(|flow| flow.delivered);
        while self.now < until {
            self.send();
            let next = |flow: &Flow| match flow.under_way.front() {
                Some((_, at)) => *at,
                None => flow.from.max(self.now + ms(1)),
            };
            self.now = self.now.max(next(&self.flows[0]).min(next(&self.flows[1])));
            for flow in &mut self.flows {
                let mut acknowledged = Acknowledged::default();
                while let Some((sent_at, _)) = flow.under_way.pop_front_if(|it| it.1 <= self.now) {
                    acknowledged.add(SPAN, Some(sent_at));
                }
                if acknowledged.bytes > 0 {
                    flow.model.acknowledge(&acknowledged, self.now);
                    flow.delivered += acknowledged.bytes;
                }
            }
        }
        [0, 1].map(|place| self.flows[place].delivered - before[place])
    }
}

#[test]
fn two_models_that_know_nothing_of_each_other_share_a_path_also_when_one_comes_late() {
    for rate in [GIGABIT / 20, GIGABIT / 4, GIGABIT, 4 * GIGABIT] {
        for delay in [100, 300, 1000].map(Duration::from_micros) {
            for late in [0, 7, 200, 503] {
                let mut shared = Shared::new(rate, delay, [0, late]);
                shared.run(ms(late + 150));
                for _ in 0..6 {
                    let [first, second] = shared.run(ms(500));
                    let part = 100 * first / (first + second);
                    let carried = 200 * (first + second) / rate;
                    let all = (rate, delay, late);
                    assert!((33..=67).contains(&part), "{all:?}: {part} %");
                    assert!(carried >= 94, "{all:?}: {carried} % of the rate");
                }
            }
        }
    }
}

#[test]
fn two_models_still_share_a_path_when_the_least_round_trips_of_both_are_old() {
    let mut shared = Shared::new(GIGABIT, Duration::from_micros(300), [0, 200]);
    for _ in 0..30 {
        let [first, second] = shared.run(ms(1000));
        let part = 100 * first / (first + second);
        assert!(shared.now < Time::ZERO + ms(1500) || (33..=67).contains(&part), "{part} %");
    }
    // None took the other one's queue for a longer way.
    let ways = shared.flows.each_ref().map(|flow| flow.model.round_trip());
    assert!(ways.iter().flatten().all(|way| *way < ms(1)), "{ways:?}");
}
