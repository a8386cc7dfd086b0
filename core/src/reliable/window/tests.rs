use std::time::Duration;

use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::LinkId;

use super::*;
use crate::incoming::IncomingKind;

fn link(number: u32) -> LinkId {
    LinkId { rail: 0, slot: SlotId { index: number, generation: 1 } }
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

#[test]
fn each_span_is_taken_once_in_whatever_order_they_come() {
    let mut window = Window::new();
    for span in [3, 1, 2, 5] {
        assert!(window.arrive(span), "{span} is new");
        assert!(!window.arrive(span), "{span} is being placed");
        window.place(span);
        assert!(!window.arrive(span), "{span} is here");
    }
    assert!(!window.arrive(0));
    assert_eq!(window.acknowledge().cumulative.get(), 3);
    assert!(window.arrive(4));
    window.place(4);
    assert_eq!(window.acknowledge().cumulative.get(), 5);
}

#[test]
fn a_span_beyond_the_window_is_not_taken() {
    let mut window = Window::new();
    assert!(!window.arrive(WINDOW + 1) && window.arrive(WINDOW));
    assert!(window.arrive(1));
    window.place(1);
    assert!(window.arrive(WINDOW + 1) && !window.arrive(WINDOW + 2));
    assert!(!window.arrive(u64::MAX));
}

#[test]
fn an_acknowledgement_says_what_is_placed_above_the_first_missing_one() {
    let mut window = Window::new();
    for span in [1, 3, 5, 67] {
        window.arrive(span);
        window.place(span);
    }
    window.arrive(4);
    let ack = window.acknowledge();
    assert_eq!((ack.cumulative.get(), ack.bitmap.get()), (1, 0b101), "not what is beyond 64");
}

#[test]
fn an_acknowledgement_waits_for_its_time_or_for_several_spans() {
    let mut window = Window::new();
    let due = Time::ZERO + Duration::from_millis(1);
    for span in 1..ACKNOWLEDGE_EVERY.into() {
        window.arrive(span);
        assert!(!window.place(span), "{span} can wait");
        window.acknowledge_by(due + Duration::from_millis(span - 1));
    }
    assert_eq!(window.acknowledge_at(), Some(due), "the first one sets the time");
    window.arrive(ACKNOWLEDGE_EVERY.into());
    assert!(window.place(ACKNOWLEDGE_EVERY.into()));
    window.acknowledge();
    assert_eq!(window.acknowledge_at(), None);
    window.arrive(9);
    assert!(!window.place(9), "it counts afresh");
}

#[test]
fn a_placement_that_broke_off_goes_on_when_its_span_comes_again() {
    let mut window = Window::new();
    assert!(window.arrive(1) && window.resume(1).is_none());
    window.keep_broken(1, incoming(1, 1));
    assert_eq!(window.acknowledge().cumulative.get(), 0);
    assert!(window.arrive(1), "it may come again");
    assert_eq!(window.resume(1).map(|incoming| incoming.link), Some(link(1)));
    assert!(!window.arrive(1) && window.broken().count() == 0);
    window.keep_broken(1, incoming(1, 1));
    assert_eq!(window.take_broken(|incoming| incoming.span != 1).len(), 0);
    assert_eq!(window.take_broken(|incoming| incoming.span == 1).len(), 1);
    assert!(window.arrive(1) && window.resume(1).is_none());
}
