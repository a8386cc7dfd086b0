//! Spans that we sent: kept until the peer acknowledges them, and what has to go again.

use std::collections::VecDeque;
use std::time::Duration;

use ropewalk_base::memory::{BufferId, Slice};
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::Urgency;
use ropewalk_wire::frame::{AckBody, Body, Envelope};

use crate::api::PeerId;
use crate::orders::{Order, Payload};

/// Spans sent again in one go.
const BURST: usize = 64;
/// Spans, the first ones, that are looked at for whether they have to go again.
const LOOKED_AT: usize = 8 * BURST;

/// A span that is not acknowledged, or that a rail still has.
#[derive(Debug)]
pub(super) struct Sent {
    pub span: u64,
    pub envelope: Envelope,
    pub body: Body,
    pub payload: Option<Payload>,
    sent_at: Time,
    tries: u32,
    /// The order by which a rail holds it: it does not go again before it went.
    pub in_rail: Option<SlotId>,
    acknowledged: bool,
    /// The payload's memory is wanted back: it is copied as soon as no rail has it, and not sent before.
    leaving: bool,
}

#[derive(Debug)]
pub(crate) struct SentSpans {
    next_span: u64,
    /// Consecutive spans; those that are acknowledged go with the first of all.
    spans: VecDeque<Sent>,
    /// How many of them are not acknowledged; all up to `answered` are.
    unanswered: usize,
    answered: u64,
    /// No unacknowledged span is due before this time.
    resend_at: Option<Time>,
}

impl SentSpans {
    pub fn new() -> SentSpans {
        SentSpans {
            next_span: 1,
            spans: VecDeque::new(),
            unanswered: 0,
            answered: 0,
            resend_at: None,
        }
    }

    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// Adds a span, and returns its index.
    pub(super) fn add(
        &mut self,
        mut envelope: Envelope,
        body: Body,
        payload: Option<Payload>,
        now: Time,
    ) -> usize {
        let span = self.next_span;
        self.next_span += 1;
        envelope.span = span;
        self.spans.push_back(Sent {
            span,
            envelope,
            body,
            payload,
            sent_at: now,
            tries: 0,
            in_rail: None,
            acknowledged: false,
            leaving: false,
        });
        self.unanswered += 1;
        self.spans.len() - 1
    }

    /// The span at an index, if it may go now: no rail has it, and the peer does not.
    pub(super) fn ready(&mut self, index: usize) -> Option<&mut Sent> {
        let sent = self.spans.get_mut(index)?;
        (sent.in_rail.is_none() && !sent.acknowledged && !sent.leaving).then_some(sent)
    }

    /// The index of a span among those that are kept.
    fn index_of(&self, span: u64) -> Option<usize> {
        let index = span.checked_sub(self.spans.front()?.span)? as usize;
        (index < self.spans.len()).then_some(index)
    }

    /// A rail released a span. `Err` if the peer has not acknowledged it; else its payload, if it had one.
    pub(super) fn release(&mut self, span: u64) -> Result<Option<Payload>, ()> {
        let Some(index) = self.index_of(span) else { return Ok(None) };
        let sent = &mut self.spans[index];
        sent.in_rail = None;
        if !sent.acknowledged {
            return Err(());
        }
        let payload = sent.payload.take();
        self.forget_acknowledged();
        Ok(payload)
    }

    /// The peer acknowledges spans. Returns the orders that end: no rail has them any more.
    pub(super) fn acknowledge(&mut self, ack: &AckBody) -> Vec<Order> {
        let (cumulative, bitmap) = (ack.cumulative.get(), ack.bitmap.get());
        let mut ended = Vec::new();
        // Only what is news is looked at, however many spans are under way.
        let last = cumulative.min(self.next_span - 1);
        for span in self.answered + 1..=last {
            ended.extend(self.acknowledge_one(span));
        }
        self.answered = self.answered.max(last);
        let above = (0..64).filter(|bit| bitmap >> bit & 1 == 1);
        for span in above.filter_map(|bit| cumulative.checked_add(2 + bit)) {
            ended.extend(self.acknowledge_one(span));
        }
        self.forget_acknowledged();
        if self.unanswered == 0 {
            self.resend_at = None;
        }
        ended
    }

    fn acknowledge_one(&mut self, span: u64) -> Option<Order> {
        let index = self.index_of(span)?;
        let sent = &mut self.spans[index];
        if std::mem::replace(&mut sent.acknowledged, true) {
            return None;
        }
        self.unanswered -= 1;
        if sent.in_rail.is_some() {
            return None;
        }
        sent.payload.take().map(|payload| payload.order)
    }

    fn forget_acknowledged(&mut self) {
        let over = |sent: &Sent| sent.acknowledged && sent.in_rail.is_none();
        while self.spans.front().is_some_and(over) {
            self.spans.pop_front();
        }
    }

    /// The next look for spans that have to go again.
    pub fn resend_at(&self) -> Option<Time> {
        self.resend_at
    }

    /// No later than then it is looked what has to go again.
    pub fn resend_by(&mut self, due: Time) {
        self.resend_at = Some(self.resend_at.map_or(due, |at| at.min(due)));
    }

    /// The indices of spans that have to go again now. `after`: the time for the first try.
    pub(super) fn due(&mut self, now: Time, after: Duration) -> Vec<usize> {
        let mut due = Vec::new();
        if self.resend_at.is_none_or(|at| at > now) {
            return due;
        }
        // Those behind come when these are acknowledged, so that many under way cost no more.
        let mut next = (self.spans.len() > LOOKED_AT).then_some(now + after / 2);
        for (index, sent) in self.spans.iter().take(LOOKED_AT).enumerate() {
            let at = sent.sent_at + after * (1 << sent.tries.min(4)) / 2;
            if sent.acknowledged {
                continue;
            }
            let idle = sent.in_rail.is_none() && !sent.leaving;
            if at <= now && idle && due.len() < BURST {
                due.push(index);
            } else {
                let at = at.max(now + after / 4);
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        }
        self.resend_at = next;
        due
    }

    /// The orders of payloads that are not acknowledged.
    pub fn orders(&self) -> impl Iterator<Item = &Order> {
        self.spans.iter().filter_map(|sent| sent.payload.as_ref().map(|payload| &payload.order))
    }

    /// The spans with such a payload.
    pub fn spans_of(&self, of: impl Fn(&Order) -> bool) -> Vec<u64> {
        let such = |sent: &&Sent| sent.payload.is_some_and(|payload| of(&payload.order));
        self.spans.iter().filter(such).map(|sent| sent.span).collect()
    }

    fn get_mut(&mut self, span: u64) -> Option<&mut Sent> {
        let index = self.index_of(span)?;
        self.spans.get_mut(index)
    }

    /// The payload's memory is wanted back; the order by which a rail has it, where one has.
    pub fn leave(&mut self, span: u64) -> Option<Option<SlotId>> {
        let sent = self.get_mut(span)?;
        sent.leaving = true;
        Some(sent.in_rail)
    }

    /// The payload that is to be copied now.
    pub fn leaving(&mut self, span: u64) -> Option<Slice> {
        let sent = self.get_mut(span).filter(|sent| sent.leaving && sent.in_rail.is_none())?;
        sent.payload.map(|payload| payload.slice)
    }

    /// The payload lies in this buffer from now on, or stays where it is; what it was ordered for, in the
    /// first case.
    pub fn stay(&mut self, span: u64, peer: PeerId, buffer: Option<BufferId>) -> Option<Order> {
        let sent = self.get_mut(span).filter(|sent| sent.leaving && sent.in_rail.is_none())?;
        sent.leaving = false;
        let (payload, buffer) = (sent.payload.as_mut()?, buffer?);
        payload.slice = Slice { buffer, offset: 0, len: payload.slice.len };
        let bulk = payload.urgency == Urgency::Bulk;
        Some(std::mem::replace(&mut payload.order, Order::Kept { peer, bulk, buffer }))
    }

    pub(super) fn into_spans(self) -> VecDeque<Sent> {
        self.spans
    }
}

impl Sent {
    /// It is tried now. True if it was tried before.
    pub fn try_again(&mut self, now: Time) -> bool {
        self.sent_at = now;
        self.tries += 1;
        self.tries > 1
    }
}

#[cfg(test)]
mod tests;
