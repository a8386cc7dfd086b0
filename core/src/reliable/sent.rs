//! Spans that we sent: kept until the peer acknowledges them and no rail has them, and what has to go again.
//!
//! A span may be on several links at once, with a copy on each. It is known by its number.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use ropewalk_base::limits::SPAN_BYTES_MAX;
use ropewalk_base::memory::{BufferId, Slice};
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{LinkId, Urgency};
use ropewalk_wire::frame::{AckBody, Body, Envelope};

use super::copies::{Copies, SpanCopy};
use crate::api::PeerId;
use crate::orders::{Order, Payload};
use crate::session::{Acknowledged, PathId};

/// Spans sent again in one go.
const BURST: usize = 64;
/// Spans, the first ones, that are looked at for whether they have to go again.
const LOOKED_AT: usize = 8 * BURST;

/// Spans beyond the first that is not acknowledged, which go at most. The receiver takes as many.
const WINDOW: u64 = 4096;
/// Those of them that are kept for control frames: what an operation begins with waits.
const RESERVED: u64 = WINDOW / 4;
/// Room for copies of redundant spans that is kept for the next ones.
const SPARE_MAX: usize = 64;
/// Bytes that a span counts beside its payload.
const OVERHEAD_BYTES: u64 = 128;

/// A span that is not acknowledged, or that a rail still has.
#[derive(Debug)]
pub(super) struct Sent {
    pub span: u64,
    pub envelope: Envelope,
    pub body: Body,
    pub payload: Option<Payload>,
    /// The path that it counts against.
    path: PathId,
    /// How often it was sent.
    pub attempt: u32,
    /// It goes over two paths at once.
    pub redundant: bool,
    acknowledged: bool,
    /// The payload's memory is wanted back: it is copied as soon as no rail has it, and not sent before.
    leaving: bool,
    /// The same from when its rails let go; until then it goes also over other links.
    leaves_when_sent: bool,
    copies: Copies,
}

#[derive(Debug)]
pub(crate) struct SentSpans {
    next_span: u64,
    /// Consecutive spans; those that are acknowledged go with the first of all.
    spans: VecDeque<Sent>,
    /// How many of them are not acknowledged; all up to `answered` are.
    unanswered: usize,
    answered: u64,
    /// Bytes of data frames that are not acknowledged.
    bulk_bytes: u64,
    /// The first span that waits until the window has room for it.
    held_back: Option<u64>,
    /// A long run of acknowledged spans beyond: the first and the last.
    known: (u64, u64),
    /// No unacknowledged span is due before this time.
    resend_at: Option<Time>,
    /// What acknowledgements brought about, until it is taken.
    ended: VecDeque<Ended>,
    /// What was acknowledged since this was taken, by link.
    delivered: Vec<(LinkId, Acknowledged)>,
    /// What copies of spans lay in that are forgotten.
    spare: Vec<Copies>,
    /// See `Plant::EndsBeforeRelease`.
    pub(super) ends_early: bool,
}

/// What an acknowledgement brings about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// The peer has what was ordered, and no rail does.
    Order(Order, PathId),
    /// The rail of another link still has a copy, which nobody needs.
    Detach { link: LinkId, order: SlotId },
}

/// What it means that a rail let go of a copy.
#[derive(Debug, Clone, Copy)]
pub(super) enum Released {
    /// The peer has not acknowledged the span, or another rail still has it.
    Awaited,
    /// No rail has it any more: its payload is to be copied.
    Leaving,
    /// The span is over; its payload, if it had one, and the path that it counted against.
    Over(Option<(Payload, PathId)>),
}

/// What a link that carries no more had of the spans.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Lost {
    /// Spans that are on no other link, and not acknowledged.
    pub spans: Vec<u64>,
    /// The orders by which the link's rail still has copies.
    pub orders: Vec<SlotId>,
}

impl SentSpans {
    pub fn new() -> SentSpans {
        SentSpans {
            next_span: 1,
            spans: VecDeque::new(),
            unanswered: 0,
            answered: 0,
            bulk_bytes: 0,
            held_back: None,
            known: (0, 0),
            resend_at: None,
            ended: VecDeque::new(),
            delivered: Vec::new(),
            spare: Vec::new(),
            ends_early: false,
        }
    }

    pub fn len(&self) -> usize {
        self.spans.len()
    }

    /// The number of the next span.
    pub(super) fn next_number(&self) -> u64 {
        self.next_span
    }

    /// Whether the peer has not acknowledged all.
    pub fn are_awaited(&self) -> bool {
        self.unanswered > 0
    }

    /// The last span of all; 0 if there was none.
    pub fn last(&self) -> u64 {
        self.next_span - 1
    }

    /// The peer has all spans up to this one.
    pub fn answered(&self) -> u64 {
        self.answered
    }

    /// The numbers of the spans that are kept.
    pub(super) fn numbers(&self) -> Range<u64> {
        self.spans.front().map_or(self.next_span, |sent| sent.span)..self.next_span
    }

    /// Adds a span, and returns its number.
    pub(super) fn add(
        &mut self,
        mut envelope: Envelope,
        body: Body,
        payload: Option<Payload>,
        path: PathId,
        redundant: bool,
    ) -> u64 {
        let span = self.next_span;
        self.next_span += 1;
        envelope.span = span;
        self.bulk_bytes += payload.map_or(0, |payload| payload.bulk_bytes());
        let copies = if redundant { self.spare.pop() } else { None };
        self.spans.push_back(Sent {
            span,
            envelope,
            body,
            payload,
            path,
            attempt: 0,
            redundant,
            acknowledged: false,
            leaving: false,
            leaves_when_sent: false,
            copies: copies.unwrap_or_default(),
        });
        self.unanswered += 1;
        span
    }

    /// Whether an operation may begin: the window has room besides that for control frames.
    pub fn has_room(&self) -> bool {
        self.next_span <= self.answered + WINDOW - RESERVED
    }

    /// Whether a data frame may go, where so many bytes of such may be unacknowledged.
    pub fn has_bulk_room(&self, bytes_max: u64) -> bool {
        self.has_room() && self.bulk_bytes + u64::from(SPAN_BYTES_MAX) <= bytes_max
    }

    /// The path that a span counts against, if it was not sent before.
    pub(super) fn first_path(&self, span: u64) -> Option<PathId> {
        self.get(span).filter(|sent| sent.attempt == 0).map(|sent| sent.path)
    }

    /// The bytes of spans that went over a link, and are neither acknowledged nor lost there.
    pub fn bytes_over(&self, link: LinkId) -> u64 {
        let counts = |sent: &&Sent| !sent.acknowledged && sent.copies.is_over(link);
        self.spans.iter().filter(counts).map(Sent::bytes).sum()
    }

    /// The first span that is not acknowledged, where half of the window waits for it.
    pub(super) fn oldest_hole(&self) -> Option<u64> {
        let is_half = self.next_span > self.answered + WINDOW / 2;
        (is_half && self.unanswered > 0).then_some(self.answered + 1)
    }

    /// The span goes when the window has room for it. False if it has.
    pub(super) fn hold_back(&mut self, span: u64) -> bool {
        let beyond = span > self.answered.saturating_add(WINDOW);
        if beyond {
            self.held_back = Some(self.held_back.map_or(span, |first| first.min(span)));
        }
        beyond
    }

    /// The spans that the window has room for by now.
    pub(super) fn let_go(&mut self) -> Range<u64> {
        let last = (self.answered + WINDOW).min(self.next_span - 1);
        match self.held_back.take_if(|first| *first <= last) {
            Some(first) => {
                self.held_back = (last + 1 < self.next_span).then_some(last + 1);
                first..last + 1
            }
            None => 0..0,
        }
    }

    /// Whether a span may go over a link now: the peer lacks it, and the link's rail has no copy.
    pub(super) fn may_go(&self, span: u64, link: LinkId) -> bool {
        self.get(span).is_some_and(|sent| sent.may_go(link))
    }

    /// The same: if it may, whether it went there before, and is not lost there.
    #[inline]
    pub(super) fn may_go_where(&self, span: u64, link: LinkId) -> Option<bool> {
        let sent = self.get(span).filter(|sent| sent.may_go(link))?;
        Some(sent.copies.is_over(link))
    }

    /// Whether a span goes over two paths at once.
    pub(super) fn is_redundant(&self, span: u64) -> bool {
        self.get(span).is_some_and(|sent| sent.redundant)
    }

    /// Whether a span went over a link, and is not lost there.
    pub(super) fn went_over(&self, span: u64, link: LinkId) -> bool {
        self.get(span).is_some_and(|sent| sent.copies.is_over(link))
    }

    /// Whether a span is not acknowledged, and went last over a link.
    pub(super) fn went_last_over(&self, span: u64, link: LinkId) -> bool {
        let newest = |sent: &Sent| sent.copies.newest().map(|copy| copy.link);
        self.get(span).filter(|sent| !sent.acknowledged).and_then(newest) == Some(link)
    }

    /// A copy of a span goes over a link now, under this order.
    pub(super) fn send(
        &mut self,
        span: u64,
        link: LinkId,
        order: SlotId,
        now: Time,
    ) -> Option<&mut Sent> {
        let sent = self.get_mut(span)?;
        sent.attempt += 1;
        sent.copies.set(SpanCopy::new(link, order, now));
        Some(sent)
    }

    /// The index of a span among those that are kept.
    fn index_of(&self, span: u64) -> Option<usize> {
        let index = span.checked_sub(self.spans.front()?.span)? as usize;
        (index < self.spans.len()).then_some(index)
    }

    /// A link's rail let go of its copy of a span.
    pub(super) fn released(&mut self, span: u64, link: LinkId, now: Time) -> Released {
        let Some(sent) = self.get_mut(span) else { return Released::Over(None) };
        sent.copies.release(link, now);
        if sent.copies.are_held() {
            return Released::Awaited;
        }
        if !sent.acknowledged {
            sent.leaving |= std::mem::take(&mut sent.leaves_when_sent);
            return if sent.leaving { Released::Leaving } else { Released::Awaited };
        }
        let payload = sent.payload.take().map(|payload| (payload, sent.path));
        self.forget_acknowledged();
        Released::Over(payload)
    }

    /// A link carries no more, and its copies count for nothing.
    pub(super) fn lost(&mut self, link: LinkId) -> Lost {
        let mut lost = Lost { spans: Vec::new(), orders: Vec::new() };
        for sent in &mut self.spans {
            let Some(order) = sent.copies.lose(link) else { continue };
            lost.orders.extend(order);
            if !sent.acknowledged && sent.copies.newest().is_none() {
                lost.spans.push(sent.span);
            }
        }
        lost
    }

    /// The links that spans went over, but for this one.
    pub(super) fn links_but(&self, link: LinkId) -> Vec<LinkId> {
        let mut links = Vec::new();
        for copy in self.spans.iter().flat_map(|sent| sent.copies.iter()) {
            if copy.link != link && !links.contains(&copy.link) {
                links.push(copy.link);
            }
        }
        links
    }

    /// The peer acknowledges spans over a link. What that ends is taken with [`SentSpans::next_ended`].
    pub(super) fn acknowledge(&mut self, link: LinkId, ack: &AckBody) {
        self.acknowledge_to(link, ack.cumulative.get());
        for range in ack.ranges() {
            let first = (*range.start()).max(self.answered + 1);
            let last = (*range.end()).min(self.next_span - 1);
            // Only what is news is looked at, however many spans are under way.
            let (known, known_last) = self.known;
            if first <= known && known_last <= last {
                (first..known).for_each(|span| self.acknowledge_one(link, span));
                (known_last + 1..=last).for_each(|span| self.acknowledge_one(link, span));
            } else {
                (first..=last).for_each(|span| self.acknowledge_one(link, span));
            }
            if first <= last && last - first >= known_last.saturating_sub(known) {
                self.known = (first, last);
            }
        }
        self.forget_acknowledged();
    }

    /// The peer has all spans up to the one with this lower half of a number. False where that is no news.
    pub(super) fn acknowledge_low(&mut self, link: LinkId, low: u32) -> bool {
        let ahead = low.wrapping_sub(self.answered as u32);
        let under_way = self.next_span - 1 - self.answered;
        let news = ahead > 0 && u64::from(ahead) <= under_way;
        if news {
            self.acknowledge_to(link, self.answered + u64::from(ahead));
            self.forget_acknowledged();
        }
        news
    }

    fn acknowledge_to(&mut self, link: LinkId, cumulative: u64) {
        let last = cumulative.min(self.next_span - 1);
        for span in self.answered + 1..=last {
            self.acknowledge_one(link, span);
        }
        self.answered = self.answered.max(last);
    }

    fn acknowledge_one(&mut self, link: LinkId, span: u64) {
        let Some(index) = self.index_of(span) else { return };
        let sent = &mut self.spans[index];
        if std::mem::replace(&mut sent.acknowledged, true) {
            return;
        }
        self.unanswered -= 1;
        self.bulk_bytes -= sent.payload.map_or(0, |payload| payload.bulk_bytes());
        let (bytes, only) = (sent.bytes(), sent.copies.only());
        for copy in sent.copies.living() {
            let at = self.delivered.iter().position(|(link, _)| *link == copy.link);
            let at = at.unwrap_or_else(|| {
                self.delivered.push((copy.link, Acknowledged::default()));
                self.delivered.len() - 1
            });
            let sent_at = only.map(|(_, sent_at)| sent_at);
            let acknowledged = &mut self.delivered[at].1;
            acknowledged.add(bytes, sent_at);
            acknowledged.over_it |= copy.link == link;
            acknowledged.is_redundant |= sent.redundant;
        }
        if sent.copies.are_held() {
            // What the peer answered over lets go by itself.
            let others = sent.copies.detachable().filter(|(other, _)| *other != link);
            self.ended.extend(others.map(|(link, order)| Ended::Detach { link, order }));
        }
        if (self.ends_early || !sent.copies.are_held())
            && let Some(payload) = sent.payload.take()
        {
            self.ended.push_back(Ended::Order(payload.order, sent.path));
        }
    }

    /// What was acknowledged since this was asked last, by link.
    pub(super) fn take_delivered(&mut self) -> impl Iterator<Item = (LinkId, Acknowledged)> {
        self.delivered.drain(..)
    }

    /// When the oldest span went over a link that is awaited, as far as the first spans show.
    pub(crate) fn awaited_since(&self, link: LinkId) -> Option<Time> {
        let mut awaited = self.spans.iter().take(LOOKED_AT).filter(|sent| !sent.acknowledged);
        awaited.find_map(|sent| sent.copies.sent_over(link))
    }

    /// The next thing that acknowledgements brought about, in the order of the spans.
    pub(super) fn next_ended(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }

    fn forget_acknowledged(&mut self) {
        let over = |sent: &Sent| sent.acknowledged && !sent.copies.are_held();
        while self.spans.front().is_some_and(over) {
            let sent = self.spans.pop_front();
            if let Some(mut sent) = sent.filter(|it| it.redundant && self.spare.len() < SPARE_MAX) {
                sent.copies.clear();
                self.spare.push(sent.copies);
            }
        }
        if self.unanswered == 0 {
            self.resend_at = None;
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

    /// The time of the first look after a span was sent. It is the second one that sends it again, see
    /// [`Copies::look`].
    pub fn first_look(now: Time, after: Duration) -> Time {
        now + after / 2
    }

    /// The spans that have to go again over a link now. `after`: the time for the first try.
    pub(super) fn due(&mut self, link: LinkId, now: Time, after: Duration) -> Vec<u64> {
        let mut due = Vec::new();
        if self.resend_at.is_none_or(|at| at > now) {
            return due;
        }
        // Those behind come when these are acknowledged, so that many under way cost no more.
        let mut next = (self.spans.len() > LOOKED_AT).then_some(now + after / 2);
        for sent in self.spans.iter_mut().take(LOOKED_AT) {
            if sent.acknowledged {
                continue;
            }
            let at = sent.due_at(now, after);
            if at <= now && sent.may_go(link) && due.len() < BURST {
                due.push(sent.span);
            } else {
                let at = at.max(now + after / 4);
                next = Some(next.map_or(at, |next| next.min(at)));
            }
        }
        self.resend_at = next;
        due
    }

    /// The orders of payloads that are not acknowledged, and the paths that these count against.
    pub fn orders(&self) -> impl Iterator<Item = (&Order, PathId)> {
        self.spans.iter().filter_map(|sent| Some((&sent.payload.as_ref()?.order, sent.path)))
    }

    /// All spans count against this path from now on. `took`: called with the order of each payload that counted against
    /// another one.
    pub fn count_against(&mut self, path: PathId, mut took: impl FnMut(&Order)) {
        for sent in self.spans.iter_mut().filter(|sent| sent.path != path) {
            sent.path = path;
            sent.payload.iter().for_each(|payload| took(&payload.order));
        }
    }

    /// The spans with such a payload.
    pub fn spans_of(&self, of: impl Fn(&Order) -> bool) -> Vec<u64> {
        let such = |sent: &&Sent| sent.payload.is_some_and(|payload| of(&payload.order));
        self.spans.iter().filter(such).map(|sent| sent.span).collect()
    }

    /// Bytes of a span's payload.
    pub(super) fn bytes_of(&self, span: u64) -> u64 {
        self.get(span).and_then(|sent| sent.payload).map_or(0, |payload| payload.slice.len)
    }

    fn get(&self, span: u64) -> Option<&Sent> {
        self.spans.get(self.index_of(span)?)
    }

    fn get_mut(&mut self, span: u64) -> Option<&mut Sent> {
        let index = self.index_of(span)?;
        self.spans.get_mut(index)
    }

    /// The payload's memory is wanted back. Where rails have it: the links and orders of those that were not told so
    /// before.
    pub fn leave(&mut self, span: u64) -> Option<Vec<(LinkId, SlotId)>> {
        let sent = self.get_mut(span)?;
        sent.leaving = true;
        Some(sent.copies.detachable().collect())
    }

    /// The payload of a span is to be copied as soon as the rails that have it let go.
    pub fn leave_when_sent(&mut self, span: u64) {
        if let Some(sent) = self.get_mut(span) {
            sent.leaves_when_sent = true;
        }
    }

    /// The link over which a span went last, of those that carry, and when.
    pub(super) fn newest_over(&self, span: u64) -> Option<(LinkId, Time)> {
        let copy = self.get(span)?.copies.newest()?;
        Some((copy.link, copy.sent_at()))
    }

    /// Whether a span that is not acknowledged goes over no link.
    pub fn is_nowhere(&self, span: u64) -> bool {
        let nowhere = |sent: &Sent| !sent.acknowledged && sent.copies.newest().is_none();
        self.get(span).is_some_and(nowhere)
    }

    /// The payload that is to be copied now.
    pub fn leaving(&mut self, span: u64) -> Option<Slice> {
        let sent = self.get_mut(span).filter(|sent| sent.leaving && !sent.copies.are_held())?;
        sent.payload.map(|payload| payload.slice)
    }

    /// The payload lies in this buffer from now on, or stays where it is; what it was ordered for, in the
    /// first case.
    pub fn stay(&mut self, span: u64, peer: PeerId, buffer: Option<BufferId>) -> Option<Order> {
        let sent = self.get_mut(span).filter(|sent| sent.leaving && !sent.copies.are_held())?;
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
    pub fn bytes(&self) -> u64 {
        self.payload.map_or(0, |payload| payload.slice.len) + OVERHEAD_BYTES
    }

    fn may_go(&self, link: LinkId) -> bool {
        !self.acknowledged && !self.leaving && !self.copies.is_held_over(link)
    }

    /// When it has to go again; a span that is on no link goes now.
    fn due_at(&mut self, now: Time, after: Duration) -> Time {
        let tries = self.attempt.saturating_sub(u32::from(self.redundant)).max(1);
        let wait = after * (1 << tries.min(4)) / 2;
        self.copies.look(now, after).map_or(now, |sent_at| sent_at + wait)
    }

    /// The orders by which rails have it.
    pub fn held(&self) -> impl Iterator<Item = SlotId> {
        self.copies.iter().filter_map(|copy| copy.order)
    }
}

#[cfg(test)]
mod tests;
