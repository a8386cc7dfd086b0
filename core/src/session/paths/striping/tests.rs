use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::Urgency;

use super::*;

const SPAN: u64 = 64 << 10;
const GIGABIT: u64 = 125_000_000;

fn link(rail: u8) -> LinkId {
    LinkId { rail, slot: SlotId { index: 1, generation: 1 } }
}

/// Paths of these rates, measured and idle, and the present time.
fn paths(rates: &[u64]) -> (Paths, Time) {
    let mut paths = Paths::over(link(0));
    let mut now = Time::ZERO;
    for rail in 1..rates.len() as u8 {
        paths.join(PathId(2 * u32::from(rail)), link(rail), now);
    }
    let without_model = if rates.len() > 1 { rates.len() } else { 0 };
    assert_eq!(paths.without_model().len(), without_model);
    for (rail, rate) in rates.iter().enumerate() {
        paths.begin_model(link(rail as u8), 0, now);
        for _ in 0..10 {
            send(&mut paths, rail as u8, 1, now);
            let sent_at = now;
            now = now + Duration::from_nanos(SPAN * 1_000_000_000 / rate);
            let sent = Some((sent_at, SPAN));
            let (bytes, alone, over_it) = (SPAN, SPAN, true);
            let acknowledged = Acknowledged { bytes, alone, sent, over_it, is_redundant: false };
            paths.bytes_acknowledged(link(rail as u8), &acknowledged, now);
        }
    }
    (paths, now)
}

fn send(paths: &mut Paths, rail: u8, spans: u64, now: Time) {
    (0..spans).for_each(|_| paths.bytes_begun(link(rail), SPAN, now));
}

/// The rail that a span of a payload takes, of so many spans that wait.
fn choice(paths: &mut Paths, waiting: u64, now: Time) -> Option<u8> {
    if !paths.plan(SPAN, waiting * SPAN, now) {
        return None;
    }
    let id = paths.span_begun(Some(Urgency::Bulk));
    paths.span_ended(id, true);
    paths.usable_link(id).map(|link| link.rail)
}

#[test]
fn a_span_takes_another_path_where_that_gains_enough() {
    let (mut paths, now) = paths(&[GIGABIT, GIGABIT]);
    assert_eq!(choice(&mut paths, 1, now), Some(0));
    send(&mut paths, 0, 1, now);
    assert_eq!(choice(&mut paths, 1, now), Some(1));
    send(&mut paths, 1, 1, now);
    assert_eq!(choice(&mut paths, 1, now), Some(0), "no other one gains anything");
    assert_eq!(paths.for_bytes(SPAN), Some(link(0)));
    send(&mut paths, 0, 1, now);
    assert_eq!(paths.for_bytes(SPAN), Some(link(1)));
}

#[test]
fn a_slow_path_gets_a_span_only_where_a_fast_one_would_be_later() {
    let (mut paths, now) = paths(&[GIGABIT, GIGABIT / 10]);
    send(&mut paths, 0, 4, now);
    assert_eq!(choice(&mut paths, 16, now), Some(0), "3 ms, and 5 over the slow path");
    send(&mut paths, 0, 8, now);
    assert_eq!(choice(&mut paths, 1, now), Some(1));
    send(&mut paths, 1, 1, now);
    assert_eq!(choice(&mut paths, 16, now), Some(0));
    assert_eq!(paths.for_bytes(SPAN), Some(link(0)));
}

#[test]
fn short_spans_and_those_of_suspect_paths_go_elsewhere() {
    let (mut paths, now) = paths(&[GIGABIT, GIGABIT]);
    send(&mut paths, 0, 4, now);
    assert!(paths.plan(100, 100, now));
    assert_eq!(paths.span_begun(Some(Urgency::Urgent)), PathId::FIRST);
    assert_eq!(choice(&mut paths, 1, now), Some(1));
    assert!(paths.suspect(link(1), now));
    assert_eq!(paths.usable_link(PathId(2)), None);
    assert_eq!(choice(&mut paths, 1, now), Some(0));
}

#[test]
fn a_path_that_nobody_has_measured_gets_two_spans() {
    let (mut paths, now) = paths(&[GIGABIT]);
    assert_eq!(paths.join(PathId(2), link(1), now), None);
    paths.begin_model(link(0), 0, now);
    paths.begin_model(link(1), 0, now);
    for rail in [0, 0, 1, 1] {
        assert_eq!(choice(&mut paths, 9, now), Some(rail));
        send(&mut paths, rail, 1, now);
    }
    assert_eq!(choice(&mut paths, 9, now), None);
}
