use ropewalk_base::health::Suspicion;

use super::*;
use crate::session::Controllers;
use crate::session::model::Acknowledged;
use crate::session::status::{LinkState, PathCause};

const SECOND: Duration = Duration::from_secs(1);

fn link(index: u32) -> LinkId {
    LinkId { rail: 0, slot: SlotId { index, generation: 1 } }
}

fn at(seconds: u32) -> Time {
    Time::ZERO + SECOND * seconds
}

/// Paths over links of these numbers; their ids are twice the places.
fn over(links: &[u32]) -> Paths {
    let mut paths = Paths::over(link(links[0]));
    for (place, index) in links.iter().enumerate().skip(1) {
        paths.more.push(Path::over(PathId(2 * place as u32), link(*index)));
    }
    paths
}

fn counts(paths: &Paths) -> Vec<(u32, u32)> {
    paths.iter().map(|path| path.in_flight().counts()).collect()
}

#[test]
fn a_path_that_loses_its_link_leaves_the_others_alone_and_gets_the_next_link() {
    let mut paths = over(&[1, 2, 3]);
    assert_eq!((paths.control(), paths.sole_up()), (Some(link(1)), None));
    paths.lose(link(1), at(1), at(5));
    paths.lose(link(3), at(2), at(4));
    assert_eq!(paths.links().collect::<Vec<_>>(), [link(2)]);
    assert_eq!((paths.control(), paths.sole_up()), (Some(link(2)), Some(link(2))));
    assert!(paths.is_up() && paths.has_lost() && !paths.carries(link(1)));
    assert_eq!((paths.lost_since(), paths.due(None)), (None, at(4)));
    assert_eq!((paths.retry(at(4), at(8)), paths.due(None)), (1, at(5)));
    paths.lose(link(2), at(3), at(9));
    assert_eq!(paths.lost_since(), Some(at(3)), "since the last one is lost");
    assert!(!paths.is_up() && !paths.has_link());
    assert_eq!(paths.due(Some(at(1))), at(5), "no span goes without a link");
    paths.begin(link(4));
    assert_eq!(paths.links().collect::<Vec<_>>(), [link(4)], "the others join anew");
    assert_eq!((paths.has_lost(), paths.sole_up()), (false, Some(link(4))));
    assert_eq!((paths.due(None), paths.due(Some(at(1)))), (Time::NEVER, at(1)));
}

#[test]
fn what_is_known_of_the_last_path_is_shown_although_it_stays_in_use() {
    let mut paths = over(&[1, 2]);
    let shown =
        |paths: &Paths| -> Vec<LinkState> { paths.iter().map(|path| path.state()).collect() };
    let carrier = PathCause::Rail(Suspicion::CarrierLost);
    for (number, first) in [(1, PathCause::TimeOut), (2, PathCause::Peer)] {
        paths.note_cause(link(number), first, at(number));
        paths.note_cause(link(number), carrier, at(3));
        paths.note_cause(link(number), PathCause::Peer, at(4));
    }
    assert!(paths.suspect(link(1), at(1)), "another one can do its work");
    assert!(!paths.suspect(link(2), at(2)), "no other one can");
    let since = |seconds| LinkState::Suspect { since: at(seconds) };
    assert_eq!(shown(&paths), [since(1), since(2)]);
    let causes: Vec<PathCause> = paths.losses().iter().map(|loss| loss.cause).collect();
    assert_eq!(causes, [carrier; 2], "our own rail knows best");
    let sent = Some((at(5), 128));
    let acknowledged = Acknowledged { bytes: 128, sent, over_it: true, ..Default::default() };
    paths.delivered(link(2), &acknowledged, &mut Controllers::new(), at(5));
    assert_eq!(shown(&paths)[1], LinkState::Up);
}

#[test]
fn a_link_joins_under_the_number_of_its_path() {
    let over = |rail, index| LinkId { rail, ..link(index) };
    let mut paths = Paths::over(over(0, 1));
    let second = PathId::of(1, true);
    assert_eq!((second.name(), PathId::of(1, false).name()), (2, 3));
    assert_eq!(paths.join(second, over(1, 2), at(0)), None);
    assert_eq!(paths.links().collect::<Vec<_>>(), [over(0, 1), over(1, 2)]);
    assert!(paths.is_up_beside(second, 0) && !paths.is_up_beside(second, 1));
    assert_eq!(paths.lost_over(1), None);
    paths.lose(over(1, 2), at(1), Time::NEVER);
    assert_eq!((paths.lost_over(1), paths.lost_over(0)), (Some(second), None));
    assert_eq!(paths.join(second, over(1, 3), at(0)), None);
    assert_eq!(paths.join(second, over(1, 4), at(0)), Some(over(1, 3)));
    paths.lose(over(0, 1), at(2), Time::NEVER);
    assert_eq!(paths.control(), Some(over(1, 4)));
    assert_eq!((paths.lost_over(0), paths.lost_since()), (Some(PathId::FIRST), None));
}

#[test]
fn frames_count_against_the_path_of_their_link_and_spans_against_their_path() {
    let mut paths = over(&[1, 2]);
    let orders = Orders::with_limit(1);
    for (index, urgency) in [(1, Urgency::Urgent), (2, Urgency::Bulk), (2, Urgency::Urgent)] {
        paths.frame_begun(link(index), urgency, None, &orders);
    }
    paths.frame_begun(link(9), Urgency::Urgent, None, &orders);
    assert_eq!(counts(&paths), [(1, 0), (2, 1)]);
    paths.frame_left(link(2), true);
    paths.frame_left(link(9), true);
    assert_eq!(counts(&paths), [(1, 0), (1, 0)]);
    let (span, _) = paths.span_begun(Some(Urgency::Bulk));
    paths.lose(link(1), at(1), at(2));
    assert_eq!((span, counts(&paths)), (PathId::FIRST, vec![(2, 1), (1, 0)]));
    let (other, over) = paths.span_begun(Some(Urgency::Urgent));
    assert_eq!(over, Some(link(2)));
    paths.frame_left(link(1), false);
    assert_eq!(counts(&paths), [(2, 1), (2, 0)], "the link that was lost is no path's");
    paths.begin(link(3));
    paths.span_ended(span, true);
    paths.span_ended(other, false);
    assert_eq!(counts(&paths), [(1, 0)], "a span of a path that is gone counts no more");
    assert!(!paths.is_settled());
    while paths.first.in_flight.has_room() {
        paths.frame_begun(link(3), Urgency::Urgent, None, &orders);
    }
    assert!(paths.with_room().is_none() && !paths.has_bulk_room(1));
    paths.join(PathId(2), link(2), at(0));
    assert_eq!(paths.with_room(), Some(link(2)), "the other path has room");
}

#[test]
fn an_idle_path_waits_for_the_answer_and_rests_after_it() {
    let mut paths = over(&[1, 2]);
    let patience = [SECOND, 10 * SECOND];
    paths.ask_idle(link(2), at(1));
    assert!(paths.is_closing() && paths.is_up() && paths.carries(link(2)));
    assert!(!paths.is_up_over(link(2)) && paths.sole_up().is_none());
    assert_eq!(paths.unanswered(at(1), patience, true), None, "one more second");
    assert_eq!(paths.due(None), at(2));
    assert_eq!(paths.unanswered(at(2), patience, false), None, "nothing waits");
    assert_eq!(paths.due(None), at(12));
    paths.defer(Body::KeepOpen).unwrap();
    assert_eq!(paths.unanswered(at(12), patience, false), None);
    assert_eq!(paths.unanswered(at(13), patience, false), Some(link(2)));
    assert!(paths.keep_open(link(1)).is_none(), "it was not asked about this one");
    assert_eq!(paths.keep_open(link(2)).map(|deferred| deferred.len()), Some(1));
    assert!(paths.is_up_over(link(2)) && !paths.is_closing());
    paths.ask_idle(link(1), at(20));
    for _ in 0..QUEUED_FRAMES_MAX {
        paths.defer(Body::KeepOpen).unwrap();
    }
    assert_eq!(paths.defer(Body::KeepOpen), Err(link(1)), "a bounded number waits");
    assert_eq!(paths.resting_since_post(), None);
    paths.rest(at(30), 7);
    paths.rest(at(40), 9);
    assert_eq!((paths.resting_since(), paths.resting_since_post()), (Some(at(40)), Some(7)));
    assert!(!paths.has_link() && !paths.has_lost());
    paths.begin(link(5));
    assert!(!paths.is_resting() && paths.is_up());
}

#[test]
fn a_path_that_rests_beside_others_is_no_lost_one() {
    let mut paths = over(&[1, 2]);
    paths.rest_over(link(2), at(1), 3);
    assert_eq!((paths.resting_since(), paths.resting_since_post()), (None, None));
    assert!(paths.has_resting() && !paths.is_resting() && !paths.has_lost() && paths.is_up());
    assert_eq!((paths.sole_up(), paths.due(None)), (Some(link(1)), Time::NEVER));
    paths.lose(link(1), at(5), at(6));
    assert_eq!((paths.lost_since(), paths.is_resting()), (Some(at(5)), false));
    assert!(!paths.is_woken(), "nobody knows that its peer may rest");
    paths.wake(at(5), at(6), 9);
    assert!(paths.is_woken() && !paths.has_resting());
    assert_eq!((paths.resting_since_post(), paths.due(None)), (Some(9), at(6)));
    paths.begin(link(3));
    assert!(!paths.is_woken() && paths.resting_since_post().is_none());
    paths.rest(at(7), 11);
    paths.wake(at(8), at(9), 12);
    assert_eq!((paths.resting_since_post(), paths.lost_since()), (Some(11), Some(at(8))));
}

#[test]
fn a_link_is_confirmed_until_the_peer_is_heard_over_it() {
    let mut paths = over(&[1, 2]);
    paths.confirmed(link(2), Some(at(1)));
    assert_eq!((paths.confirm_again(at(0), SECOND), paths.due(None)), (None, at(1)));
    assert_eq!(paths.confirm_again(at(1), SECOND), Some((link(2), true)));
    paths.heard(link(1));
    assert_eq!(paths.due(None), at(3), "twice as long");
    paths.heard(link(2));
    assert_eq!(paths.due(None), Time::NEVER);
    paths.confirmed(link(1), Some(at(4)));
    let tries = (4..400).filter_map(|second| paths.confirm_again(at(second), SECOND));
    let alive: Vec<bool> = tries.map(|(_, alive)| alive).collect();
    assert_eq!(alive.iter().filter(|alive| !**alive).count(), 1, "it is dead once");
    assert!(!alive[alive.len() - 1]);
}

#[test]
fn a_path_that_is_late_while_the_others_are_suspect_is_judged_again() {
    let ms = |millis: u64| Time::ZERO + Duration::from_millis(millis);
    let mut paths = over(&[1, 2]);
    let span = Going { bytes: 128, payload_bytes: 0, is_again: false, was_there: false };
    paths.goes(link(1), span, &mut Controllers::new(), ms(0));
    assert!(paths.suspect(link(2), ms(1)), "the peer said so");
    let late = (1..200).find(|millis| !paths.late(ms(*millis)).is_empty()).expect("it is late");
    assert!(!paths.suspect(link(1), ms(late)), "no other could do its work");
    // The other one answers a moment later.
    assert!(paths.answered(link(2), ms(late + 1)));
    let again = (late + 1..400).find(|millis| !paths.late(ms(*millis)).is_empty());
    let again = again.expect("what went over it is still awaited");
    assert!(again <= 2 * late && paths.suspect(link(1), ms(again)), "{late} and {again}");
}

#[test]
fn a_path_that_carried_an_answer_just_now_needs_no_standing_probe() {
    let mut paths = over(&[1, 2]);
    let (every, heard) = (SECOND, at(10) + SECOND / 4);
    paths.note_carried(link(2), heard);
    assert_eq!(paths.quiet(every, heard + every / 4), [link(1)]);
    assert_eq!(paths.quiet(every, heard + every / 2), [link(1), link(2)]);
    // An answer to another question does not end a suspicion: the path's own probes do.
    assert!(paths.suspect(link(2), at(11)));
    paths.note_carried(link(2), at(12));
    assert!(paths.is_suspect(link(2)) && !paths.has_delivered(link(2), at(12), SECOND));
}
