use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::Urgency;

use super::*;

const SPAN: u64 = 64 << 10;
const GIGABIT: u64 = 125_000_000;
const LONG: Going = Going { bytes: SPAN, payload_bytes: SPAN, is_again: false, was_there: false };

fn link(rail: u8) -> LinkId {
    LinkId { rail, slot: SlotId { index: 1, generation: 1 } }
}

/// The paths of a session, with its controllers and the present time.
struct Session {
    paths: Paths,
    controllers: Controllers,
    now: Time,
}

/// Paths of these rates, measured and idle.
fn session(rates: &[u64]) -> Session {
    let (mut paths, mut controllers) = (Paths::over(link(0)), Controllers::new());
    let mut now = Time::ZERO;
    for rail in 1..rates.len() as u8 {
        paths.join(PathId(2 * u32::from(rail)), link(rail), now);
    }
    let without_part = if rates.len() > 1 { rates.len() } else { 0 };
    assert_eq!(paths.without_part().len(), without_part);
    for (rail, rate) in rates.iter().enumerate() {
        let part = controllers.join(Some((rail as u8, 1)), 0, now).unwrap();
        paths.take_part(link(rail as u8), part);
        for _ in 0..10 {
            paths.goes(link(rail as u8), LONG, &mut controllers, now);
            let sent_at = now;
            now = now + Duration::from_nanos(SPAN * 1_000_000_000 / rate);
            let sent = Some((sent_at, SPAN));
            let (bytes, alone, over_it) = (SPAN, SPAN, true);
            let acknowledged = Acknowledged { bytes, alone, sent, over_it, is_redundant: false };
            paths.delivered(link(rail as u8), &acknowledged, &mut controllers, now);
        }
    }
    // The least round trips were measured again meanwhile.
    Session { paths, controllers, now: now + Duration::from_millis(100) }
}

impl Session {
    fn send(&mut self, rail: u8, spans: u64) {
        for _ in 0..spans {
            self.paths.goes(link(rail), LONG, &mut self.controllers, self.now);
        }
    }

    fn plan(&mut self, bytes: u64, backlog: u64) -> bool {
        self.paths.plan(bytes, backlog, &self.controllers, self.now)
    }

    /// The rail that a span of a payload takes, of so many spans that wait.
    fn choice(&mut self, waiting: u64) -> Option<u8> {
        if !self.plan(SPAN, waiting * SPAN) {
            return None;
        }
        let (id, _) = self.paths.span_begun(Some(Urgency::Bulk));
        self.paths.span_ended(id, true);
        self.paths.usable_link(id).map(|link| link.rail)
    }

    fn for_bytes(&self) -> Option<LinkId> {
        self.paths.for_bytes(SPAN, &self.controllers)
    }
}

#[test]
fn a_span_takes_another_path_where_that_gains_enough() {
    let mut session = session(&[GIGABIT, GIGABIT]);
    assert_eq!(session.choice(1), Some(0));
    session.send(0, 1);
    assert_eq!(session.choice(1), Some(1));
    session.send(1, 1);
    assert_eq!(session.choice(1), Some(0), "no other one gains anything");
    assert_eq!(session.for_bytes(), Some(link(0)));
    session.send(0, 1);
    assert_eq!(session.for_bytes(), Some(link(1)));
}

#[test]
fn a_slow_path_gets_a_span_only_where_a_fast_one_would_be_later() {
    let mut session = session(&[GIGABIT, GIGABIT / 10]);
    session.send(0, 4);
    assert_eq!(session.choice(16), Some(0), "3 ms, and 5 over the slow path");
    session.send(0, 8);
    assert_eq!(session.choice(1), Some(1));
    session.send(1, 1);
    assert_eq!(session.choice(4), None, "it waits: 8 ms, and 10 over the slow path");
    assert_eq!(session.choice(16), Some(1), "15 ms over the fast one");
    assert_eq!(session.for_bytes(), Some(link(0)));
}

#[test]
fn short_spans_and_those_of_suspect_paths_go_elsewhere() {
    let mut session = session(&[GIGABIT, GIGABIT]);
    session.send(0, 4);
    assert!(session.plan(100, 100));
    assert_eq!(session.paths.span_begun(Some(Urgency::Urgent)).0, PathId::FIRST);
    assert_eq!(session.choice(1), Some(1));
    assert!(session.paths.suspect(link(1), session.now));
    assert_eq!(session.paths.usable_link(PathId(2)), None);
    assert_eq!(session.choice(1), Some(0));
}

#[test]
fn a_path_that_nobody_has_measured_gets_two_spans() {
    let mut session = session(&[GIGABIT]);
    session.paths.leave_parts(&mut session.controllers);
    assert_eq!(session.paths.join(PathId(2), link(1), session.now), None);
    for rail in [0, 1] {
        let part = session.controllers.join(None, 0, session.now).unwrap();
        session.paths.take_part(link(rail), part);
    }
    for rail in [0, 0, 1, 1] {
        assert_eq!(session.choice(9), Some(rail));
        session.send(rail, 1);
    }
    assert_eq!(session.choice(9), None);
}
