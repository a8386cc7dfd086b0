use ropewalk_base::slots::SlotId;

use super::*;

fn at(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(millis)
}

fn link(rail: u8) -> LinkId {
    LinkId { rail, slot: SlotId { index: 0, generation: 1 } }
}

fn event(path: u32) -> HistoryEvent {
    let peer = PeerId(SlotId { index: 0, generation: 1 });
    let (number, at, endpoint, rail) = (0, at(1), 7, 0);
    HistoryEvent { number, at, peer, endpoint, path, rail, change: PathChange::Joined }
}

fn stall(rail: u8, since: u64) -> Stall {
    Stall {
        peer: event(0).peer,
        session: SessionId::own(5),
        endpoint: 7,
        path: PathId::named(u32::from(rail) * 2),
        link: link(rail),
        since: at(since),
        cause: PathCause::TimeOut,
        detection: Some(Duration::from_millis(6)),
        spans: 0,
        bytes: 0,
    }
}

#[test]
fn the_last_events_are_kept_and_those_behind_a_number_are_found() {
    let mut history = History::default();
    assert_eq!(history.events.capacity(), 0, "nothing happened yet");
    (0..EVENTS_MAX as u32 + 5).for_each(|path| history.note(event(path)));
    let kept: Vec<_> = history.after(0).map(|it| (it.number, it.path)).collect();
    assert_eq!((kept.len(), kept[0]), (EVENTS_MAX, (6, 5)));
    let last = EVENTS_MAX as u64 + 5;
    assert_eq!(history.after(last - 2).map(|it| it.number).collect::<Vec<_>>(), [last - 1, last]);
    assert_eq!(history.after(last).count(), 0);
}

#[test]
fn the_last_ends_of_sessions_stay_when_other_events_go() {
    let mut history = History::default();
    let change = PathChange::Ended { cause: PathCause::LinkLost, gone: Duration::ZERO };
    let end = |path| HistoryEvent { change, ..event(path) };
    (0..ENDS_MAX as u32 + 2).for_each(|path| history.note(end(path)));
    (0..3 * EVENTS_MAX as u32).for_each(|path| history.note(event(path)));
    let kept: Vec<_> = history.after(0).map(|it| it.number).collect();
    assert_eq!((kept.len(), kept[0]), (ENDS_MAX + EVENTS_MAX, 3));
    assert!(kept.is_sorted());
    assert_eq!(history.after(kept[ENDS_MAX - 1]).count(), EVENTS_MAX);
}

#[test]
fn a_session_is_without_a_path_once_and_few_are_remembered() {
    let mut history = History::default();
    let (peer, session) = (event(0).peer, SessionId::own);
    assert!(history.begin_without(peer, session(5), at(1)));
    assert!(!history.begin_without(peer, session(5), at(2)));
    assert_eq!(history.end_without(session(5)), Some(at(1)));
    assert_eq!(history.end_without(session(5)), None);
    for number in 0..2 * WITHOUT_MAX as u32 {
        history.begin_without(peer, session(2 * number + 1), at(3));
    }
    assert_eq!((history.without.len(), history.end_without(session(1))), (WITHOUT_MAX, None));
}

#[test]
fn a_stall_ends_with_the_first_delivery_of_what_another_path_was_given_since() {
    let mut history = History::default();
    let mut paths = Paths::over(link(0));
    paths.join(PathId::named(2), link(1), at(0));
    let session = SessionId::own(5);
    history.begin_stall(stall(0, 100));
    history.begin_stall(Stall { cause: PathCause::LinkLost, ..stall(0, 150) });
    history.moved(link(0), 3, 200_000);
    history.moved(link(1), 9, 9);
    history.delivered(&mut paths, (session, link(0)), at(101), at(102));
    history.delivered(&mut paths, (SessionId::own(8), link(1)), at(101), at(102));
    history.delivered(&mut paths, (session, link(1)), at(99), at(102));
    assert_eq!(history.after(0).count(), 0, "that says nothing about what was moved");
    history.delivered(&mut paths, (session, link(1)), at(100), at(103));
    let [event] = history.after(0).copied().collect::<Vec<_>>()[..] else { panic!("one") };
    let expected = PathChange::Redirected {
        to: 2,
        cause: PathCause::TimeOut,
        detection: Some(Duration::from_millis(6)),
        stall: Duration::from_millis(3),
        spans: 3,
        bytes: 200_000,
    };
    assert_eq!((event.path, event.at, event.change), (0, at(103), expected));
    let tally = *paths.tally_of(PathId::FIRST).expect("the first path");
    assert_eq!((tally.stalls, tally.stalled), (1, Duration::from_millis(3)));
    assert!(history.stalls.is_empty());
}

#[test]
fn a_path_over_which_nothing_was_under_way_stalls_nothing() {
    let mut history = History::default();
    let mut paths = Paths::over(link(0));
    paths.join(PathId::named(2), link(1), at(0));
    history.begin_stall(stall(0, 100));
    history.delivered(&mut paths, (SessionId::own(5), link(1)), at(400), at(401));
    assert_eq!((history.after(0).count(), history.stalls.len()), (0, 0));
    (0..=STALLS_MAX as u8).for_each(|rail| history.begin_stall(stall(rail, 1)));
    assert_eq!((history.stalls.len(), history.stalls[0].link), (STALLS_MAX, link(1)));
}
