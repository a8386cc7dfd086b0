use ropewalk_base::memory::BufferId;
use ropewalk_base::verb::LinkId;

use super::*;
use crate::incoming::IncomingKind;

fn slot(index: u32) -> SlotId {
    SlotId { index, generation: 1 }
}

fn link(number: u32) -> LinkId {
    LinkId { rail: 0, slot: slot(number) }
}

fn incoming(span: u64, over: u32) -> Incoming {
    Incoming {
        link: link(over),
        peer: None,
        session: 1,
        payload_bytes: 10,
        kind: IncomingKind::Hello,
        slice: Slice::NONE,
        checksum: None,
        span,
        broken_off: false,
    }
}

/// The `attempt`-th try of a span, over a link.
fn of(span: u64, attempt: u16, over: u32) -> Try {
    Try { span, attempt, link: link(over) }
}

fn is_new(window: &mut Window, span: u64) -> bool {
    matches!(window.arrive(of(span, 1, 1)), Arrival::New)
}

fn is_known(window: &mut Window, span: u64) -> bool {
    matches!(window.arrive(of(span, 9, 1)), Arrival::Known)
}

/// A span whose payload is here with it.
fn place(window: &mut Window, span: u64) -> bool {
    assert!(is_new(window, span), "{span} is new");
    window.place(span)
}

fn acknowledge(window: &mut Window) -> AckBody {
    window.acknowledge(Duration::ZERO)
}

fn cumulative(window: &mut Window) -> u64 {
    acknowledge(window).cumulative.get()
}

/// A copy that is here.
fn copy(number: u32) -> Slice {
    Slice { buffer: BufferId(slot(number)), offset: 0, len: 10 }
}

#[test]
fn each_span_is_taken_once_in_whatever_order_they_come() {
    let mut window = Window::new();
    for span in [3, 1, 2, 5] {
        place(&mut window, span);
        assert!(is_known(&mut window, span), "{span} is here");
    }
    assert!(is_known(&mut window, 0));
    assert_eq!(cumulative(&mut window), 3);
    place(&mut window, 4);
    assert_eq!(cumulative(&mut window), 5);
}

#[test]
fn a_span_beyond_the_window_is_neither_taken_nor_known() {
    let unwanted =
        |window: &mut Window, span| matches!(window.arrive(of(span, 1, 1)), Arrival::Unwanted);
    let mut window = Window::new();
    assert!(unwanted(&mut window, WINDOW + 1) && is_new(&mut window, WINDOW));
    place(&mut window, 1);
    assert!(is_new(&mut window, WINDOW + 1) && unwanted(&mut window, WINDOW + 2));
    assert!(unwanted(&mut window, u64::MAX));
}

#[test]
fn an_acknowledgement_says_what_is_placed_above_the_first_missing_one() {
    let mut window = Window::new();
    [1, 3, 5, 6, 4000].into_iter().for_each(|span| _ = place(&mut window, span));
    assert!(is_new(&mut window, 4));
    let ack = acknowledge(&mut window);
    assert_eq!(ack.cumulative.get(), 1);
    assert_eq!(ack.ranges().collect::<Vec<_>>(), [3..=3, 5..=6, 4000..=4000]);
    // More runs than there is room for.
    (10..60).step_by(2).for_each(|span| _ = place(&mut window, span));
    let ranges: Vec<_> = acknowledge(&mut window).ranges().collect();
    assert_eq!((ranges.len(), ranges[0].clone(), ranges[11].clone()), (12, 3..=3, 28..=28));
    [2, 7, 8, 9].into_iter().for_each(|span| _ = place(&mut window, span));
    window.place(4);
    assert_eq!(cumulative(&mut window), 10);
}

#[test]
fn an_acknowledgement_waits_for_its_time_or_for_several_spans() {
    let mut window = Window::new();
    let due = Time::ZERO + Duration::from_millis(1);
    for span in 1..ACKNOWLEDGE_EVERY.into() {
        assert!(!place(&mut window, span), "{span} can wait");
        window.acknowledge_by(due + Duration::from_millis(span - 1));
    }
    assert_eq!(window.acknowledge_at(), Some(due), "the first one sets the time");
    assert!(place(&mut window, ACKNOWLEDGE_EVERY.into()));
    acknowledge(&mut window);
    assert_eq!(window.acknowledge_at(), None);
    assert!(!place(&mut window, 9), "it counts afresh");
    window.acknowledge_by(due);
    assert_eq!((window.ride(), window.acknowledge_at()), (9, None), "a frame takes it along");
    place(&mut window, 11);
    window.acknowledge_by(due);
    assert_eq!((window.ride(), window.acknowledge_at()), (9, Some(due)), "there is more to say");
}

#[test]
fn a_placement_that_broke_off_goes_on_when_its_span_comes_again() {
    let mut window = Window::new();
    assert!(is_new(&mut window, 1));
    window.begin(of(1, 1, 1), slot(1));
    assert!(matches!(window.arrive(of(1, 1, 1)), Arrival::Unwanted), "the same try, doubled");
    assert!(window.break_off(1, incoming(1, 1)).is_ok_and(|copy| copy.is_none()));
    assert_eq!((cumulative(&mut window), window.broken().count()), (0, 1));
    let Arrival::Again(again) = window.arrive(of(1, 1, 1)) else { panic!("it may come again") };
    assert_eq!((again.link, window.broken().count()), (link(1), 0));
    window.begin(of(1, 1, 1), slot(2));
    assert!(window.break_off(1, again).is_ok());
    assert_eq!(window.take_broken(|incoming| incoming.span != 1).len(), 0);
    assert_eq!(window.take_broken(|incoming| incoming.span == 1).len(), 1);
    assert!(!window.place(1) && window.next_unneeded(1).is_none());
    assert!(is_known(&mut window, 1));
    assert!(window.break_off(1, incoming(1, 1)).is_err(), "nothing of it is awaited");
}

#[test]
fn a_copy_takes_over_whichever_of_copy_and_place_is_ready_first() {
    // A later try over the same link, one over another link, and an earlier one that was overtaken there.
    for copied in [of(1, 3, 1), of(1, 3, 2), of(1, 1, 2)] {
        for place_first in [true, false] {
            let mut window = Window::new();
            assert!(matches!(window.arrive(of(1, 2, 1)), Arrival::New));
            window.begin(of(1, 2, 1), slot(1));
            let arrival = window.arrive(copied);
            assert!(matches!(arrival, Arrival::Elsewhere(other) if other == slot(1)));
            assert_eq!(window.stage(copied, slot(2)), None);
            for known in [of(1, 2, 1), copied] {
                assert!(matches!(window.arrive(known), Arrival::Unwanted), "{known:?}");
            }
            if place_first {
                assert!(window.break_off(1, incoming(1, 1)).is_ok_and(|copy| copy.is_none()));
                let place = window.copy_here(copied, copy(2));
                assert!(matches!(place, WholeCopy::To(place) if place.link == link(1)));
            } else {
                let waits = window.copy_here(copied, copy(2));
                assert!(matches!(waits, WholeCopy::Waits(place) if place == slot(1)));
                assert!(matches!(window.arrive(of(1, 9, 3)), Arrival::Unwanted), "all is here");
                assert_eq!(window.waiting_copies(), 1);
                let both = window.break_off(1, incoming(1, 1)).expect("it is awaited");
                assert_eq!(both.map(|(place, here)| (place.link, here)), Some((link(1), copy(2))));
            }
            assert!(!window.place(1) && window.next_unneeded(1).is_none());
            assert_eq!((cumulative(&mut window), window.waiting_copies()), (1, 0));
        }
    }
}

#[test]
fn what_was_being_placed_may_be_there_before_it_is_given_up() {
    let mut window = Window::new();
    assert!(is_new(&mut window, 1));
    window.begin(of(1, 1, 1), slot(1));
    window.stage(of(1, 2, 2), slot(2));
    window.place(1);
    assert_eq!(window.next_unneeded(1), Some(StagedCopy::Arriving(slot(2))));
    assert!(matches!(window.copy_here(of(1, 2, 2), copy(2)), WholeCopy::Unneeded));
    assert!(is_new(&mut window, 2));
    window.begin(of(2, 1, 1), slot(3));
    window.stage(of(2, 2, 2), slot(4));
    assert!(matches!(window.copy_here(of(2, 2, 2), copy(4)), WholeCopy::Waits(_)));
    window.place(2);
    assert_eq!(window.next_unneeded(2), Some(StagedCopy::Here(copy(4))));
    assert_eq!(window.next_unneeded(2), None);
}

#[test]
fn of_several_copies_over_several_links_the_first_that_is_whole_counts() {
    let mut window = Window::new();
    assert!(is_new(&mut window, 1));
    window.begin(of(1, 1, 1), slot(1));
    window.stage(of(1, 2, 2), slot(2));
    assert!(matches!(window.arrive(of(1, 3, 3)), Arrival::Elsewhere(_)));
    assert_eq!(window.stage(of(1, 3, 3), slot(3)), None, "each link has its own");
    let older = Some(StagedCopy::Arriving(slot(2)));
    assert!(matches!(window.arrive(of(1, 4, 2)), Arrival::Elsewhere(_)));
    assert_eq!(window.stage(of(1, 4, 2), slot(4)), older, "a link has one");
    assert!(matches!(window.copy_here(of(1, 2, 2), copy(2)), WholeCopy::Unneeded));
    window.copy_lost(of(1, 2, 2));
    assert!(matches!(window.copy_here(of(1, 4, 2), copy(4)), WholeCopy::Waits(_)));
    let late = window.copy_here(of(1, 3, 3), copy(3));
    assert!(matches!(late, WholeCopy::Unneeded), "another one waits for the place");
    assert!(window.break_off(1, incoming(1, 1)).is_ok_and(|both| both.is_some()));
    window.place(1);
    assert_eq!(window.next_unneeded(1), None);
}

#[test]
fn the_next_copy_takes_an_open_place_while_others_are_on_the_way() {
    let mut window = Window::new();
    assert!(is_new(&mut window, 1));
    window.begin(of(1, 1, 1), slot(1));
    window.stage(of(1, 2, 2), slot(2));
    assert!(window.break_off(1, incoming(1, 1)).is_ok());
    assert!(matches!(window.arrive(of(1, 2, 2)), Arrival::Unwanted));
    let Arrival::Again(place) = window.arrive(of(1, 3, 3)) else { panic!("the place is open") };
    assert_eq!(place.link, link(1));
    window.begin(of(1, 3, 3), slot(5));
    assert!(
        matches!(window.copy_here(of(1, 2, 2), copy(2)), WholeCopy::Waits(it) if it == slot(5))
    );
    assert!(window.break_off(1, place).is_ok_and(|both| both.is_some()));
}

#[test]
fn a_copy_that_is_lost_leaves_the_place_to_the_next() {
    let mut window = Window::new();
    assert!(is_new(&mut window, 1));
    window.begin_apart(of(1, 1, 1), incoming(1, 1));
    assert!(window.awaits(1));
    assert_eq!(window.stage(of(1, 1, 1), slot(1)), None);
    assert!(matches!(window.arrive(of(1, 1, 1)), Arrival::Unwanted));
    window.copy_lost(of(1, 1, 1));
    assert!(matches!(window.arrive(of(1, 1, 1)), Arrival::Again(_)));
    window.begin_apart(of(1, 1, 1), incoming(1, 1));
    window.stage(of(1, 1, 1), slot(2));
    assert_eq!(window.take_copies(), [StagedCopy::Arriving(slot(2))]);
    assert_eq!(window.take_broken(|_| true).len(), 1);
}
