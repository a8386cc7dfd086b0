use super::*;

const AFTER: Duration = Duration::from_millis(4);
const PEER: PeerId = PeerId(SlotId { index: 1, generation: 1 });

fn slot(index: u32) -> SlotId {
    SlotId { index, generation: 1 }
}

fn link(number: u8) -> LinkId {
    LinkId { rail: number, slot: slot(1) }
}

const ONE: u8 = 1;
const TWO: u8 = 2;
const THREE: u8 = 3;

fn at(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(millis)
}

/// A payload of an order that this number tells from others.
fn payload(number: u32) -> Payload {
    let slice = Slice { buffer: BufferId(slot(number)), offset: 0, len: 10 };
    let order = Order::ServeFrame { region: slot(number), peer: PEER, cookie: 0 };
    Payload { slice, urgency: Urgency::Bulk, order }
}

fn order(number: u32) -> Order {
    payload(number).order
}

/// So many spans, each with a payload.
fn spans(count: u32) -> SentSpans {
    let mut spans = SentSpans::new();
    for number in 1..=count {
        let span = spans.add(
            Envelope::default(),
            Body::Confirm,
            Some(payload(number)),
            PathId::FIRST,
            false,
        );
        assert_eq!(span, u64::from(number));
    }
    spans
}

/// Bit n: span `cumulative + 2 + n`.
fn ack(cumulative: u64, bitmap: u64) -> AckBody {
    let mut ack = AckBody::new(cumulative, Duration::ZERO);
    let (mut bits, mut missing) = (bitmap, 1);
    while bits != 0 {
        missing += bits.trailing_zeros() as u16;
        bits >>= bits.trailing_zeros();
        let placed = bits.trailing_ones();
        assert!(ack.push(missing, placed as u16));
        bits = bits.checked_shr(placed).unwrap_or(0);
        missing = 0;
    }
    ack
}

/// The peer acknowledges spans over a link; what that brings about.
fn acknowledge(spans: &mut SentSpans, over: u8, ack: &AckBody) -> Vec<Ended> {
    spans.acknowledge(link(over), ack);
    std::iter::from_fn(|| spans.next_ended()).collect()
}

fn ended(numbers: impl IntoIterator<Item = u32>) -> Vec<Ended> {
    numbers.into_iter().map(|number| Ended::Order(order(number), PathId::FIRST)).collect()
}

/// The order of a copy: it tells links and spans apart.
fn copy(span: u64, over: u8) -> SlotId {
    slot(span as u32 * 10 + u32::from(over))
}

fn detached(span: u64, over: u8) -> Ended {
    Ended::Detach { link: link(over), order: copy(span, over) }
}

fn send(spans: &mut SentSpans, span: u64, over: u8, now: Time) {
    assert!(spans.may_go(span, link(over)));
    let attempt = spans.get(span).expect("it is kept").attempt;
    let sent = spans.send(span, link(over), copy(span, over), now).expect("it is kept");
    assert_eq!((sent.span, sent.attempt), (span, attempt + 1), "tries grow");
    spans.resend_by(SentSpans::first_look(now, AFTER));
}

fn is_awaited(spans: &mut SentSpans, span: u64, over: u8) -> bool {
    matches!(spans.released(span, link(over), Time::ZERO), Released::Awaited)
}

/// The order of a span that is over with a release.
fn over(spans: &mut SentSpans, span: u64, over: u8) -> Option<Order> {
    match spans.released(span, link(over), Time::ZERO) {
        Released::Over(payload) => payload.map(|(payload, _)| payload.order),
        released => panic!("{released:?}"),
    }
}

#[test]
fn a_span_goes_when_its_rail_does_not_have_it_until_the_peer_has_it() {
    let mut spans = spans(2);
    send(&mut spans, 1, ONE, Time::ZERO);
    assert!(!spans.may_go(1, link(ONE)) && spans.may_go(2, link(ONE)));
    assert!(is_awaited(&mut spans, 1, ONE), "it is kept");
    send(&mut spans, 1, ONE, Time::ZERO);
    assert_eq!(acknowledge(&mut spans, ONE, &ack(1, 0)), [], "a rail has it");
    assert!(!spans.may_go(1, link(ONE)) && !spans.may_go(1, link(TWO)));
    assert_eq!(over(&mut spans, 1, ONE), Some(order(1)));
    assert_eq!((spans.len(), over(&mut spans, 1, ONE)), (1, None));
}

#[test]
fn each_order_ends_once_whatever_is_acknowledged_again() {
    let mut spans = spans(5);
    // Spans 1, 3 and 5.
    assert_eq!(acknowledge(&mut spans, ONE, &ack(1, 0b101)), ended([1, 3, 5]));
    assert_eq!(acknowledge(&mut spans, ONE, &ack(1, 0b101)), []);
    assert_eq!(spans.len(), 4, "from the first that is not acknowledged");
    assert_eq!(acknowledge(&mut spans, TWO, &ack(5, 0)), ended([2, 4]));
    assert_eq!(acknowledge(&mut spans, ONE, &ack(u64::MAX, 1)), [], "never sent");
    assert_eq!((spans.len(), spans.resend_at()), (0, None));
}

#[test]
fn runs_are_looked_at_where_they_tell_news() {
    let mut spans = spans(20);
    assert_eq!(acknowledge(&mut spans, ONE, &ack(1, 0b1111_0000)), ended([1, 7, 8, 9, 10]));
    assert_eq!(spans.known, (7, 10));
    assert_eq!(acknowledge(&mut spans, ONE, &ack(1, 0b11_1111_1000)), ended([6, 11, 12]));
    assert_eq!(spans.known, (6, 12));
    assert_eq!(acknowledge(&mut spans, ONE, &ack(2, 0b1_1111_1111)), ended([2, 4, 5]));
    // An older acknowledgement comes late.
    assert_eq!(acknowledge(&mut spans, ONE, &ack(0, 0b1_0000_0011)), ended([3]));
    assert_eq!(acknowledge(&mut spans, ONE, &ack(12, 0b101)), ended([14, 16]));
    assert_eq!(acknowledge(&mut spans, ONE, &ack(18, 0)), ended([13, 15, 17, 18]));
    assert_eq!(spans.numbers(), 19..21);
}

#[test]
fn the_lower_half_of_a_number_that_rides_on_frames_never_takes_back_or_invents() {
    let mut spans = spans(6);
    let low = |spans: &mut SentSpans, low: u32| {
        let news = spans.acknowledge_low(link(ONE), low);
        let all: Vec<Ended> = std::iter::from_fn(|| spans.next_ended()).collect();
        assert_eq!(news, !all.is_empty());
        all
    };
    assert_eq!(low(&mut spans, 4), ended([1, 2, 3, 4]));
    for older in [4, 3, 0, 7, u32::MAX] {
        assert_eq!(low(&mut spans, older), [], "{older}");
    }
    assert_eq!(low(&mut spans, 6), ended([5, 6]));
    // The numbers pass 32 bits.
    let mut spans = SentSpans::new();
    let beyond = 1 << 32;
    (spans.next_span, spans.answered) = (beyond - 1, beyond - 2);
    for number in 1..=3 {
        spans.add(Envelope::default(), Body::Confirm, Some(payload(number)), PathId::FIRST, false);
    }
    assert_eq!(low(&mut spans, 0), ended([1, 2]));
    assert_eq!(low(&mut spans, 1), ended([3]));
}

#[test]
fn spans_beyond_the_window_wait() {
    let mut spans = spans(WINDOW as u32 + 3);
    for span in 1..WINDOW + 4 {
        assert_eq!(spans.hold_back(span), span > WINDOW, "{span}");
    }
    acknowledge(&mut spans, ONE, &ack(0, 1));
    assert_eq!(spans.let_go(), 0..0, "the first one is missing");
    acknowledge(&mut spans, ONE, &ack(2, 0));
    assert_eq!(spans.let_go(), WINDOW + 1..WINDOW + 3, "two are acknowledged");
    assert_eq!(spans.let_go(), 0..0);
    acknowledge(&mut spans, ONE, &ack(WINDOW, 0));
    assert_eq!((spans.let_go(), spans.let_go()), (WINDOW + 3..WINDOW + 4, 0..0));
    assert!(!spans.hold_back(WINDOW + 4));
}

#[test]
fn operations_wait_before_the_window_is_full_so_that_control_frames_have_room() {
    let mut spans = spans((WINDOW - RESERVED) as u32 - 1);
    assert!(spans.has_room());
    spans.add(Envelope::default(), Body::Confirm, None, PathId::FIRST, false);
    assert!(!spans.has_room() && !spans.hold_back(WINDOW - RESERVED));
    acknowledge(&mut spans, ONE, &ack(1, 0));
    assert!(spans.has_room());
}

#[test]
fn data_frames_are_bounded_by_their_bytes() {
    let mut spans = SentSpans::new();
    let len = u64::from(SPAN_BYTES_MAX);
    let slice = Slice { buffer: BufferId(slot(1)), offset: 0, len };
    for number in 0..16 {
        assert!(spans.has_bulk_room(1 << 20), "{number}");
        let payload = Payload { slice, ..payload(number) };
        spans.add(Envelope::default(), Body::Confirm, Some(payload), PathId::FIRST, false);
        spans.add(Envelope::default(), Body::Confirm, None, PathId::FIRST, false);
    }
    assert!(!spans.has_bulk_room(1 << 20) && spans.has_room());
    acknowledge(&mut spans, ONE, &ack(0, 1));
    assert!(!spans.has_bulk_room(1 << 20), "that was no data frame");
    send(&mut spans, 1, ONE, Time::ZERO);
    acknowledge(&mut spans, ONE, &ack(1, 0));
    assert!(spans.has_bulk_room(1 << 20), "also while its rail has it");
}

#[test]
fn a_span_ends_with_the_last_rail_that_has_it_in_whatever_order_they_let_go() {
    for (first, second) in [(ONE, TWO), (TWO, ONE)] {
        let mut spans = spans(1);
        send(&mut spans, 1, ONE, Time::ZERO);
        send(&mut spans, 1, TWO, Time::ZERO);
        assert!(is_awaited(&mut spans, 1, first));
        assert!(spans.may_go(1, link(first)) && !spans.may_go(1, link(second)));
        assert_eq!(acknowledge(&mut spans, second, &ack(1, 0)), [], "it lets go by itself");
        assert_eq!(over(&mut spans, 1, second), Some(order(1)));
        assert_eq!(spans.len(), 0);
    }
}

#[test]
fn an_acknowledgement_detaches_the_copies_of_other_links() {
    let mut spans = spans(3);
    for (span, over) in [(1, ONE), (1, TWO), (1, THREE), (2, ONE), (3, TWO)] {
        send(&mut spans, span, over, Time::ZERO);
    }
    let news = acknowledge(&mut spans, TWO, &ack(3, 0));
    assert_eq!(news, [detached(1, ONE), detached(1, THREE), detached(2, ONE)]);
    assert!(is_awaited(&mut spans, 1, THREE) && is_awaited(&mut spans, 1, TWO));
    assert_eq!(over(&mut spans, 2, ONE), Some(order(2)));
    assert_eq!(over(&mut spans, 1, ONE), Some(order(1)));
    assert_eq!(acknowledge(&mut spans, ONE, &ack(3, 0)), [], "of what was detached");
    assert_eq!(spans.len(), 1, "its own link's rail still has the third");
    assert_eq!(over(&mut spans, 3, TWO), Some(order(3)));
    assert_eq!(spans.len(), 0);
}

#[test]
fn what_was_on_a_lost_link_alone_goes_over_another() {
    let mut spans = spans(4);
    for (span, over) in [(1, ONE), (2, ONE), (2, TWO), (3, ONE)] {
        send(&mut spans, span, over, Time::ZERO);
    }
    assert!(is_awaited(&mut spans, 1, ONE), "sent, and not acknowledged");
    let mut links = spans.links_but(link(TWO));
    links.sort_unstable();
    assert_eq!(links, [link(ONE)]);
    let lost = spans.lost(link(ONE));
    assert_eq!(lost, Lost { spans: vec![1, 3], orders: vec![copy(2, ONE), copy(3, ONE)] });
    assert_eq!(spans.lost(link(ONE)), Lost { spans: vec![], orders: vec![] }, "once");
    send(&mut spans, 1, TWO, Time::ZERO);
    send(&mut spans, 3, TWO, Time::ZERO);
    // The lost link's rail answers late: the memory is in use until then.
    assert_eq!(acknowledge(&mut spans, TWO, &ack(3, 0)), [], "those were told to let go before");
    for span in [1, 2, 3] {
        let done = spans.released(span, link(TWO), Time::ZERO);
        assert_eq!(matches!(done, Released::Over(Some(_))), span == 1, "{span}: {done:?}");
    }
    assert_eq!(over(&mut spans, 3, ONE), Some(order(3)));
    assert_eq!(over(&mut spans, 2, ONE), Some(order(2)));
    assert_eq!(spans.numbers(), 4..5);
}

#[test]
fn a_link_that_comes_back_is_another_one() {
    let mut spans = spans(1);
    send(&mut spans, 1, ONE, Time::ZERO);
    assert_eq!(spans.lost(link(ONE)).spans, [1]);
    // A link that went down is never named again: this is the path's next one.
    send(&mut spans, 1, THREE, Time::ZERO);
    assert!(is_awaited(&mut spans, 1, ONE), "the old link's rail let go");
    assert!(!spans.may_go(1, link(THREE)));
    assert_eq!(spans.links_but(link(THREE)), []);
    assert_eq!(acknowledge(&mut spans, THREE, &ack(1, 0)), []);
    assert_eq!(over(&mut spans, 1, THREE), Some(order(1)));
}

#[test]
fn time_outs_double_and_are_judged_when_no_rail_has_the_span() {
    let mut spans = spans(2);
    send(&mut spans, 1, ONE, Time::ZERO);
    send(&mut spans, 2, ONE, Time::ZERO);
    assert!(is_awaited(&mut spans, 1, ONE));
    assert_eq!(spans.due(link(ONE), at(1), AFTER), [], "no look before its time");
    assert_eq!(spans.due(link(ONE), at(2), AFTER), []);
    assert_eq!(spans.due(link(ONE), at(4), AFTER), [1], "the one that no rail has");
    acknowledge(&mut spans, ONE, &ack(0, 1));
    let mut now = 4;
    for after in [8, 16, 32, 32, 32] {
        send(&mut spans, 1, ONE, at(now));
        assert!(is_awaited(&mut spans, 1, ONE));
        assert_eq!(spans.due(link(ONE), at(now + 2), AFTER), [], "the first look");
        assert_eq!(spans.due(link(ONE), at(now + after - 1), AFTER), [], "after {after}");
        assert_eq!(spans.due(link(ONE), at(now + after), AFTER), [1], "after {after}");
        now += after;
    }
    acknowledge(&mut spans, ONE, &ack(2, 0));
    assert_eq!((spans.due(link(ONE), at(1000), AFTER), spans.resend_at()), (vec![], None));
}

#[test]
fn a_clock_that_stood_still_when_a_span_was_sent_makes_it_not_late() {
    let mut spans = spans(1);
    send(&mut spans, 1, ONE, Time::ZERO);
    assert!(is_awaited(&mut spans, 1, ONE));
    // Its sender computed for a second, and then sent it.
    assert_eq!(spans.due(link(ONE), at(1000), AFTER), []);
    assert_eq!(spans.due(link(ONE), at(1001), AFTER), []);
    assert_eq!(spans.due(link(ONE), at(1002), AFTER), [1]);
    send(&mut spans, 1, ONE, at(1002));
    assert_eq!(spans.due(link(ONE), at(1004), AFTER), []);
    // A slow rail let go of it just now.
    assert!(matches!(spans.released(1, link(ONE), at(1020)), Released::Awaited));
    assert_eq!(spans.due(link(ONE), at(1027), AFTER), []);
    assert_eq!(spans.due(link(ONE), at(1028), AFTER), [1]);
}

#[test]
fn a_burst_is_bounded_and_the_rest_comes_soon() {
    let mut spans = spans(BURST as u32 + 3);
    spans.resend_by(at(8));
    assert_eq!(spans.due(link(ONE), at(8), AFTER).len(), BURST);
    assert_eq!(spans.resend_at(), Some(at(9)));
}

#[test]
fn a_payload_whose_memory_is_wanted_back_moves_before_its_span_goes_again() {
    let mut spans = spans(2);
    send(&mut spans, 1, ONE, Time::ZERO);
    send(&mut spans, 1, TWO, Time::ZERO);
    assert_eq!(spans.spans_of(|of| *of == order(1)), [1]);
    let held = vec![(link(ONE), copy(1, ONE)), (link(TWO), copy(1, TWO))];
    assert_eq!(spans.leave(1), Some(held));
    assert!(spans.leaving(1).is_none() && spans.stay(1, PEER, None).is_none(), "rails have it");
    assert!(is_awaited(&mut spans, 1, ONE) && spans.leaving(1).is_none());
    assert!(!spans.may_go(1, link(ONE)), "it does not go before it has moved");
    assert!(matches!(spans.released(1, link(TWO), Time::ZERO), Released::Leaving));
    assert_eq!(spans.leaving(1), Some(payload(1).slice));
    let buffer = BufferId(slot(9));
    assert_eq!(spans.stay(1, PEER, Some(buffer)), Some(order(1)));
    assert!(spans.may_go(1, link(ONE)));
    let moved = spans.get(1).and_then(|sent| sent.payload).expect("a payload");
    assert_eq!((moved.slice.buffer, moved.slice.len), (buffer, 10));
    assert_eq!(moved.order, Order::Kept { peer: PEER, bulk: true, buffer });
    assert_eq!(spans.leave(2), Some(vec![]));
    assert_eq!(spans.stay(2, PEER, None), None, "no room: it stays where it is");
    assert!(spans.may_go(2, link(ONE)));
    assert_eq!(spans.leave(3), None);
}

#[test]
fn a_span_that_is_acknowledged_while_its_memory_is_wanted_back_is_over() {
    let mut spans = spans(1);
    send(&mut spans, 1, ONE, Time::ZERO);
    assert_eq!(spans.leave(1).map(|held| held.len()), Some(1));
    assert_eq!(acknowledge(&mut spans, ONE, &ack(1, 0)), []);
    assert_eq!(over(&mut spans, 1, ONE), Some(order(1)), "nothing is copied");
}
