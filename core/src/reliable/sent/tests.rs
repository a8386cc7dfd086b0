use super::*;

const AFTER: Duration = Duration::from_millis(4);
const PEER: PeerId = PeerId(SlotId { index: 1, generation: 1 });

fn slot(index: u32) -> SlotId {
    SlotId { index, generation: 1 }
}

fn at(millis: u64) -> Time {
    Time::ZERO + Duration::from_millis(millis)
}

/// A payload of an order that this number tells from others.
fn payload(number: u32) -> Payload {
    let slice = Slice { buffer: BufferId(slot(number)), offset: 0, len: 10 };
    let order = Order::ServeFrame { region: slot(number), peer: PEER };
    Payload { slice, urgency: Urgency::Bulk, order }
}

fn order(number: u32) -> Order {
    payload(number).order
}

/// So many spans, each with a payload, at time 0.
fn spans(count: u32) -> SentSpans {
    let mut spans = SentSpans::new();
    for number in 1..=count {
        spans.add(Envelope::default(), Body::Confirm, Some(payload(number)), Time::ZERO);
    }
    spans
}

fn ack(cumulative: u64, bitmap: u64) -> AckBody {
    AckBody { cumulative: cumulative.into(), bitmap: bitmap.into() }
}

fn send(spans: &mut SentSpans, index: usize, order: u32, now: Time) {
    let sent = spans.ready(index).expect("it may go");
    sent.try_again(now);
    sent.in_rail = Some(slot(order));
    spans.resend_by(now + AFTER);
}

#[test]
fn a_span_goes_when_no_rail_has_it_until_the_peer_has_it() {
    let mut spans = spans(2);
    send(&mut spans, 0, 1, Time::ZERO);
    assert!(spans.ready(0).is_none() && spans.ready(1).is_some_and(|sent| sent.span == 2));
    assert_eq!(spans.release(1).err(), Some(()), "it is kept");
    send(&mut spans, 0, 1, Time::ZERO);
    assert_eq!(spans.acknowledge(&ack(1, 0)), [], "a rail has it");
    assert!(spans.ready(0).is_none());
    let released = spans.release(1).expect("it is over").expect("a payload");
    assert_eq!((released.order, spans.len()), (order(1), 1));
}

#[test]
fn each_order_ends_once_whatever_is_acknowledged_again() {
    let mut spans = spans(5);
    // Spans 1, 3 and 5.
    assert_eq!(spans.acknowledge(&ack(1, 0b101)), [order(1), order(3), order(5)]);
    assert_eq!(spans.acknowledge(&ack(1, 0b101)), []);
    assert_eq!(spans.len(), 4, "from the first that is not acknowledged");
    assert_eq!(spans.acknowledge(&ack(5, 0)), [order(2), order(4)]);
    assert_eq!(spans.acknowledge(&ack(u64::MAX, u64::MAX)), [], "what was never sent");
    assert_eq!((spans.len(), spans.resend_at()), (0, None));
}

#[test]
fn time_outs_double_and_are_judged_when_no_rail_has_the_span() {
    let mut spans = spans(2);
    send(&mut spans, 0, 1, Time::ZERO);
    assert_eq!(spans.due(at(3), AFTER), [], "too early");
    assert_eq!(spans.due(at(4), AFTER), [1], "the one that no rail has");
    assert!(spans.release(1).is_err());
    assert_eq!(spans.due(at(8), AFTER), [0, 1]);
    spans.acknowledge(&ack(0, 1));
    let mut now = 8;
    for after in [8, 16, 32, 32, 32] {
        send(&mut spans, 0, 1, at(now));
        assert!(spans.release(1).is_err());
        assert_eq!(spans.due(at(now + after - 1), AFTER), [], "after {after}");
        assert_eq!(spans.due(at(now + after), AFTER), [0], "after {after}");
        now += after;
    }
    spans.acknowledge(&ack(2, 0));
    assert_eq!((spans.due(at(1000), AFTER), spans.resend_at()), (vec![], None));
}

#[test]
fn a_burst_is_bounded_and_the_rest_comes_soon() {
    let mut spans = spans(BURST as u32 + 3);
    spans.resend_by(at(8));
    assert_eq!(spans.due(at(8), AFTER).len(), BURST);
    assert_eq!(spans.resend_at(), Some(at(9)));
}

#[test]
fn a_payload_whose_memory_is_wanted_back_moves_before_its_span_goes_again() {
    let mut spans = spans(2);
    send(&mut spans, 0, 7, Time::ZERO);
    assert_eq!(spans.spans_of(|of| *of == order(1)), [1]);
    assert_eq!(spans.leave(1), Some(Some(slot(7))));
    assert!(spans.leaving(1).is_none() && spans.stay(1, PEER, None).is_none(), "a rail has it");
    assert!(spans.release(1).is_err());
    assert!(spans.ready(0).is_none(), "it does not go before it has moved");
    assert_eq!(spans.leaving(1), Some(payload(1).slice));
    let buffer = BufferId(slot(9));
    assert_eq!(spans.stay(1, PEER, Some(buffer)), Some(order(1)));
    let sent = spans.ready(0).expect("it may go");
    let moved = sent.payload.expect("a payload");
    assert_eq!((moved.slice.buffer, moved.slice.len), (buffer, 10));
    assert_eq!(moved.order, Order::Kept { peer: PEER, bulk: true, buffer });
    assert_eq!(spans.leave(2), Some(None));
    assert_eq!(spans.stay(2, PEER, None), None, "no room: it stays where it is");
    assert!(spans.ready(1).is_some());
    assert_eq!(spans.leave(3), None);
}
