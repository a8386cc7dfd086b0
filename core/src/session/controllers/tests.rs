use std::collections::VecDeque;

use super::*;

const SPAN: u64 = 64 << 10;
const GIGABIT: u64 = 125_000_000;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A pair of rails with one queue, which carries the spans of some sessions in turn.
struct Cable {
    controllers: Controllers,
    rate: u64,
    now: Time,
    free_at: Time,
    /// The session of each span, when it was sent, and when it is acknowledged.
    under_way: VecDeque<(usize, Time, Time)>,
    sessions: Vec<Session>,
}

struct Session {
    part: Part,
    delivered: u64,
    /// Spans that it has under way at most.
    depth: usize,
}

impl Cable {
    fn new(rate: u64) -> Cable {
        let (controllers, now) = (Controllers::new(), Time::ZERO);
        let (under_way, sessions) = (VecDeque::new(), Vec::new());
        Cable { controllers, rate, now, free_at: now, under_way, sessions }
    }

    fn join(&mut self, depth: usize) {
        let part = self.controllers.join(Some((1, 7)), 0, self.now).unwrap();
        self.sessions.push(Session { part, delivered: 0, depth });
    }

    /// A session sends what it may.
    fn pump(&mut self, number: usize) {
        loop {
            let session = &mut self.sessions[number];
            let count = self.under_way.iter().filter(|span| span.0 == number).count();
            let has_room = self.controllers.has_room(&session.part, SPAN, self.now);
            if count >= session.depth || !has_room {
                return;
            }
            self.controllers.send(&mut session.part, SPAN, self.now);
            self.free_at =
                self.free_at.max(self.now) + Duration::from_nanos(SPAN * 1_000_000_000 / self.rate);
            let at = self.free_at + Duration::from_micros(300);
            self.under_way.push_back((number, self.now, at));
        }
    }

    /// Each session sends when something of its own is acknowledged, and is never called otherwise. Returns the bytes that
    /// each has delivered meanwhile.
    fn run(&mut self, time: Duration) -> Vec<u64> {
        let until = self.now + time;
        let before: Vec<u64> = self.sessions.iter().map(|session| session.delivered).collect();
        (0..self.sessions.len()).for_each(|number| self.pump(number));
        while self.now < until {
            let (number, sent_at, at) = self.under_way.pop_front().expect("somebody sends");
            self.now = self.now.max(at);
            let session = &mut self.sessions[number];
            let sent = Some((sent_at, SPAN));
            let (bytes, alone, over_it) = (SPAN, SPAN, true);
            let acknowledged = Acknowledged { bytes, alone, sent, over_it, is_redundant: false };
            self.controllers.acknowledge(&mut session.part, &acknowledged, self.now);
            session.delivered += SPAN;
            self.pump(number);
            self.controllers.check(self.sessions.iter().map(|session| &session.part));
        }
        let after = self.sessions.iter().map(|session| session.delivered);
        after.zip(before).map(|(after, before)| after - before).collect()
    }

    fn model(&self) -> &PathModel {
        self.controllers.model(&self.sessions[0].part).unwrap()
    }
}

#[test]
fn sessions_share_a_rate_and_each_has_an_equal_part_whoever_came_first() {
    for rate in [GIGABIT / 20, GIGABIT, 20 * GIGABIT] {
        let mut cable = Cable::new(rate);
        cable.join(usize::MAX);
        cable.run(ms(300));
        cable.join(usize::MAX);
        cable.join(usize::MAX);
        cable.run(ms(100));
        let delivered = cable.run(ms(1000));
        let sum: u64 = delivered.iter().sum();
        assert!(sum > rate * 95 / 100, "{sum} of {rate}");
        let least = *delivered.iter().min().unwrap();
        assert!(least > sum * 28 / 100, "{delivered:?}");
        let known = cable.model().rate().unwrap();
        assert!(known.abs_diff(rate) < rate / 8, "{known} for {rate}");
        // The queue is that of one session, or a span for each.
        let time = Duration::from_nanos(cable.model().in_flight() * 1_000_000_000 / rate);
        let most = ms(5).max(Duration::from_nanos(3 * (SPAN + 1024) * 1_000_000_000 / rate));
        assert!(time <= most, "{time:?} of queue at {rate}");
    }
}

#[test]
fn a_session_that_needs_less_leaves_the_rest_to_the_others() {
    let mut cable = Cable::new(GIGABIT);
    cable.join(usize::MAX);
    cable.join(1);
    cable.run(ms(200));
    let delivered = cable.run(ms(500));
    assert!(delivered[0] > 3 * delivered[1] && delivered[1] > 0, "{delivered:?}");
    assert!(delivered.iter().sum::<u64>() > GIGABIT / 2 * 95 / 100, "{delivered:?}");
    cable.sessions[1].depth = 0;
    cable.run(ms(20));
    let delivered = cable.run(ms(500));
    assert!(delivered[0] > GIGABIT / 2 * 95 / 100 && delivered[1] == 0, "{delivered:?}");
}

#[test]
fn a_session_that_leaves_a_path_takes_nothing_from_what_others_know() {
    let mut cable = Cable::new(GIGABIT);
    cable.join(usize::MAX);
    cable.join(usize::MAX);
    cable.run(ms(200));
    let known = cable.model().rate();
    cable.under_way.retain(|span| span.0 == 0);
    cable.controllers.give_up(&mut cable.sessions[1].part);
    assert_eq!((cable.model().rate(), cable.sessions[1].part.in_flight()), (known, 0));
    cable.controllers.give_up(&mut cable.sessions[0].part);
    assert_eq!(cable.model().rate(), None, "nobody delivers anything there");
    for session in std::mem::take(&mut cable.sessions) {
        cable.controllers.leave(session.part);
    }
    assert!(cable.controllers.controllers.is_empty() && cable.controllers.by_route.is_empty());
}

#[test]
fn routes_have_controllers_of_their_own_and_so_have_paths_without_one() {
    let mut controllers = Controllers::new();
    let mut join = |route| controllers.join(route, 100, Time::ZERO).unwrap();
    let parts = [Some((0, 7)), Some((1, 7)), Some((0, 7)), Some((0, 8)), None, None].map(&mut join);
    assert_eq!(parts[0].of, parts[2].of);
    controllers.check(parts.iter());
    assert_eq!(controllers.model(&parts[0]).unwrap().in_flight(), 200);
    assert_eq!(controllers.controllers.len(), 5);
}

#[test]
fn a_span_that_goes_again_is_lost_where_a_later_one_arrived() {
    let mut controllers = Controllers::new();
    let mut part = controllers.join(Some((0, 7)), 0, Time::ZERO).unwrap();
    let at = |millis| Time::ZERO + ms(millis);
    (0..2000).for_each(|_| controllers.send(&mut part, SPAN, at(1)));
    let sent_again = |controllers: &Controllers, part: &mut Part| {
        (0..60).for_each(|_| controllers.note_sent_again(part, at(5)));
    };
    sent_again(&controllers, &mut part);
    controllers.measured(&mut part, None, None, at(10));
    assert_eq!(controllers.quality(&part).loss_ppm, Some(0), "the peer may sleep");
    let acknowledged = Acknowledged { sent: Some((at(6), SPAN)), ..Acknowledged::default() };
    controllers.acknowledge(&mut part, &acknowledged, at(11));
    (0..2000).for_each(|_| controllers.send(&mut part, SPAN, at(12)));
    sent_again(&controllers, &mut part);
    controllers.measured(&mut part, None, None, at(20));
    assert_eq!(controllers.quality(&part).loss_ppm, Some(15_000));
}

fn acknowledged(bytes: u64, sent_at: Time) -> Acknowledged {
    let (alone, sent, over_it) = (bytes, Some((sent_at, bytes)), true);
    Acknowledged { bytes, alone, sent, over_it, is_redundant: false }
}

#[test]
fn a_few_short_spans_count_from_when_something_long_goes() {
    let at = |millis| Time::ZERO + ms(millis);
    let mut controllers = Controllers::new();
    let mut part = controllers.join(Some((1, 7)), 0, at(0)).unwrap();
    let in_flight = |controllers: &Controllers, part: &Part| {
        controllers.check([part].into_iter());
        (controllers.model(part).unwrap().in_flight(), part.in_flight())
    };
    (0..3).for_each(|_| controllers.send(&mut part, 1000, at(0)));
    assert_eq!(in_flight(&controllers, &part), (0, 3000));
    controllers.acknowledge(&mut part, &acknowledged(1000, at(0)), at(2));
    assert_eq!(in_flight(&controllers, &part), (0, 2000));
    assert_eq!(controllers.model(&part).unwrap().round_trip(), Some(ms(2)), "it is measured");
    controllers.send(&mut part, SPAN, at(10));
    assert_eq!(in_flight(&controllers, &part), (SPAN + 2000, SPAN + 2000));
    controllers.acknowledge(&mut part, &acknowledged(SPAN + 2000, at(10)), at(20));
    assert_eq!(in_flight(&controllers, &part), (0, 0));
    let rate = controllers.model(&part).unwrap().rate().unwrap();
    assert_eq!(rate, (SPAN + 2000) * 50, "what was aside went ten milliseconds before");
    // Many short ones count, too.
    (0..20).for_each(|_| controllers.send(&mut part, 1000, at(30)));
    assert_eq!(in_flight(&controllers, &part), (20_000, 20_000));
    controllers.give_up(&mut part);
    controllers.send(&mut part, 1000, at(40));
    controllers.give_up(&mut part);
    assert_eq!(in_flight(&controllers, &part), (0, 0));
}

#[test]
fn what_other_sessions_sent_before_is_waited_for_while_it_comes() {
    let mut controllers = Controllers::new();
    let mut join = |bytes: u64| controllers.join(Some((1, 7)), bytes, Time::ZERO).unwrap();
    let (mut other, part) = (join(2 * SPAN), join(0));
    let at = |millis: u64| Time::ZERO + ms(millis);
    let mut acknowledge = |sent_at: Time, over_it: bool, now: Time| {
        let sent = Some((sent_at, SPAN));
        let acknowledged =
            Acknowledged { bytes: SPAN, alone: SPAN, sent, over_it, is_redundant: false };
        controllers.acknowledge(&mut other, &acknowledged, now);
        controllers.awaited_since(&part, at(2))
    };
    // An acknowledgement by another way tells nothing of when it came; one over the route does.
    assert_eq!(acknowledge(at(0), false, at(8)), at(2));
    assert_eq!(acknowledge(at(1), true, at(9)), at(9), "older things come");
    // A later span has overtaken it: it is late, or lost.
    assert_eq!(acknowledge(at(3), true, at(10)), at(2));
}
