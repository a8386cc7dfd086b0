//! Spans: what makes a session survive loss, duplication, reordering and the loss of its link.
//!
//! Every frame with an effect is a span with a number of its own; it is kept until acknowledged and
//! sent again until it is. The receiver knows each span as free, being placed, or placed, and lets a
//! span take effect once (DESIGN 3.6). Messages carry numbers beside, by which those that overtook
//! others are held until their turn.
//!
//! Used in mode `Resume`, and over rails that lose or reorder. Invariant: a span is placed once, and
//! only when all its bytes were verified.

use std::collections::{BTreeMap, VecDeque};

use ropewalk_base::error::Fault;
use ropewalk_base::limits::QUEUED_FRAMES_MAX;
use ropewalk_base::memory::{BufferId, Slice};
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{LinkId, Placement, Token, Urgency};
use ropewalk_wire::frame::{AckBody, AnnounceBody, Arrived, Body, EagerBody, Envelope, Prefix};

use crate::api::*;
use crate::cancel::whole;
use crate::credit::{Charge, charge_bytes};
use crate::engine::Core;
use crate::incoming::{Incoming, IncomingKind};
use crate::matching::{Content, Unmatched};
use crate::orders::{Order, Orders, Payload};

/// Spans beyond the first missing one that a receiver takes.
const WINDOW: u64 = 4096;
/// Placed spans after which an acknowledgement goes without delay.
const ACKNOWLEDGE_EVERY: u32 = 8;
/// How long an acknowledgement may be delayed. A promise to the sender's timer.
const ACKNOWLEDGE_AFTER: std::time::Duration = std::time::Duration::from_millis(1);
/// Spans sent again in one go.
const BURST: usize = 64;
/// Spans, the first ones, that are looked at for whether they have to go again.
const LOOKED_AT: usize = 8 * BURST;
/// Confirmations of a link in a row without an answer before it counts as dead.
const CONFIRMATIONS_MAX: u32 = 10;

/// The spans of one session, both directions.
#[derive(Debug)]
pub(crate) struct Reliable {
    next_span: u64,
    /// Consecutive spans; those that are acknowledged go with the first of all.
    sent: VecDeque<Sent>,
    /// How many of them are not acknowledged; all up to `answered` are.
    unanswered: usize,
    answered: u64,
    /// All spans up to here are placed.
    cumulative: u64,
    /// States of the spans above, the first one's first.
    window: VecDeque<State>,
    unacknowledged: u32,
    acknowledge_at: Option<Time>,
    /// Placements that broke off: they go on when their span comes again.
    broken: BTreeMap<u64, Incoming>,
    held: BTreeMap<(u8, u64), Held>,
    /// When a lost link is tried again.
    pub retry_at: Time,
    /// No unacknowledged span is due before this time.
    resend_at: Option<Time>,
    /// When the link's confirmation goes again, since nothing was heard over the link yet.
    confirm_at: Option<Time>,
    confirmations: u32,
}

#[derive(Debug)]
struct Sent {
    span: u64,
    envelope: Envelope,
    body: Body,
    payload: Option<Payload>,
    sent_at: Time,
    tries: u32,
    /// The order by which a rail holds it: it does not go again before it went.
    in_rail: Option<SlotId>,
    acknowledged: bool,
    /// The payload's memory is wanted back: it is copied as soon as no rail has it, and not sent before.
    leaving: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Placing,
    Placed,
}

#[derive(Debug)]
enum Held {
    Eager { body: EagerBody, bytes: u64, buffer: Option<BufferId>, landed: bool },
    Announce(AnnounceBody),
}

impl Reliable {
    pub fn new() -> Reliable {
        Reliable {
            next_span: 1,
            sent: VecDeque::new(),
            unanswered: 0,
            answered: 0,
            cumulative: 0,
            window: VecDeque::new(),
            unacknowledged: 0,
            acknowledge_at: None,
            broken: BTreeMap::new(),
            held: BTreeMap::new(),
            retry_at: Time::ZERO,
            resend_at: None,
            confirm_at: None,
            confirmations: 0,
        }
    }

    pub fn deadline(&self) -> Option<Time> {
        [self.acknowledge_at, self.resend_at, self.confirm_at].into_iter().flatten().min()
    }

    fn state_mut(&mut self, span: u64) -> Option<&mut State> {
        let index = span.checked_sub(self.cumulative + 1)?;
        if index >= WINDOW {
            return None;
        }
        while self.window.len() as u64 <= index {
            self.window.push_back(State::Free);
        }
        self.window.get_mut(index as usize)
    }

    fn advance(&mut self) {
        while self.window.front() == Some(&State::Placed) {
            self.window.pop_front();
            self.cumulative += 1;
        }
    }

    /// The index of a span among those that are sent and not forgotten.
    fn index_of(&self, span: u64) -> Option<usize> {
        let index = span.checked_sub(self.sent.front()?.span)? as usize;
        (index < self.sent.len()).then_some(index)
    }

    /// The peer has a span: its order, where no rail holds it any more.
    fn acknowledged(&mut self, span: u64) -> Option<Order> {
        let index = self.index_of(span)?;
        let sent = &mut self.sent[index];
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
        while self.sent.front().is_some_and(over) {
            self.sent.pop_front();
        }
    }

    /// The orders of payloads that are not acknowledged.
    pub fn kept_orders(&self) -> impl Iterator<Item = &Order> {
        self.sent.iter().filter_map(|sent| sent.payload.as_ref().map(|payload| &payload.order))
    }

    /// The spans with such a payload.
    pub fn spans_of(&self, of: impl Fn(&Order) -> bool) -> Vec<u64> {
        let such = |sent: &&Sent| sent.payload.is_some_and(|payload| of(&payload.order));
        self.sent.iter().filter(such).map(|sent| sent.span).collect()
    }

    fn sent_mut(&mut self, span: u64) -> Option<&mut Sent> {
        let index = self.sent.binary_search_by_key(&span, |sent| sent.span).ok()?;
        self.sent.get_mut(index)
    }

    /// The payload's memory is wanted back; the order by which a rail has it, where one has.
    pub fn leave(&mut self, span: u64) -> Option<Option<SlotId>> {
        let sent = self.sent_mut(span)?;
        sent.leaving = true;
        Some(sent.in_rail)
    }

    /// The payload that is to be copied now.
    pub fn leaving(&mut self, span: u64) -> Option<Slice> {
        let sent = self.sent_mut(span).filter(|sent| sent.leaving && sent.in_rail.is_none())?;
        sent.payload.map(|payload| payload.slice)
    }

    /// The payload lies in this buffer from now on, or stays where it is; what it was ordered for, in the
    /// first case.
    pub fn stay(&mut self, span: u64, peer: PeerId, buffer: Option<BufferId>) -> Option<Order> {
        let sent = self.sent_mut(span).filter(|sent| sent.leaving && sent.in_rail.is_none())?;
        sent.leaving = false;
        let (payload, buffer) = (sent.payload.as_mut()?, buffer?);
        payload.slice = whole(buffer, payload.slice.len);
        let bulk = payload.urgency == Urgency::Bulk;
        Some(std::mem::replace(&mut payload.order, Order::Kept { peer, bulk, buffer }))
    }

    /// No later than then it is looked what has to go again.
    pub fn resend_by(&mut self, due: Time) {
        self.resend_at = Some(self.resend_at.map_or(due, |at| at.min(due)));
    }

    /// Takes such placements out that wait for their span to come again.
    pub fn take_broken(&mut self, of: impl Fn(&Incoming) -> bool) -> Vec<Incoming> {
        self.broken
            .extract_if(.., |_, incoming| of(incoming))
            .map(|(_, incoming)| incoming)
            .collect()
    }

    /// Placements that wait for their span to come again.
    pub fn broken_incoming(&self) -> impl Iterator<Item = &Incoming> {
        self.broken.values()
    }

    /// Eager credit, without that of requests, and announces of messages whose turn has not come.
    pub fn held_charges(&self) -> (u64, u64) {
        let (mut eager, mut announces) = (0, 0);
        for ((channel, _), held) in &self.held {
            match held {
                Held::Announce(_) => announces += 1,
                Held::Eager { bytes, .. } if *channel != Channel::Request as u8 => {
                    eager += charge_bytes(*bytes);
                }
                Held::Eager { .. } => {}
            }
        }
        (eager, announces)
    }

    /// Whether a message of this number waits for its turn.
    pub fn holds(&self, channel: Channel, message: u64) -> bool {
        self.held.contains_key(&(channel as u8, message))
    }

    fn bitmap(&self) -> u64 {
        // Bit n is span cumulative + 2 + n: the one after `cumulative` is missing by definition.
        self.window
            .iter()
            .skip(1)
            .take(64)
            .enumerate()
            .filter(|(_, state)| **state == State::Placed)
            .fold(0, |bits, (index, _)| bits | (1 << index))
    }
}

impl Core {
    /// Sends a frame as a span.
    pub(crate) fn emit_span(
        &mut self,
        id: PeerId,
        mut envelope: Envelope,
        body: Body,
        payload: Option<Payload>,
    ) {
        let now = self.now;
        let Some(reliable) = self.peers.get_mut(id).and_then(|peer| peer.session.reliable.as_mut())
        else {
            return;
        };
        if payload.is_none() && reliable.sent.len() >= QUEUED_FRAMES_MAX {
            return self.refuse_unacknowledged(id);
        }
        let span = reliable.next_span;
        reliable.next_span += 1;
        envelope.span = span;
        reliable.sent.push_back(Sent {
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
        reliable.unanswered += 1;
        let index = reliable.sent.len() - 1;
        self.transmit(id, index);
    }

    /// A peer that acknowledges nothing, but makes us answer: its session ends with its link, and what
    /// is left out until then does not matter.
    #[cold]
    fn refuse_unacknowledged(&mut self, id: PeerId) {
        let Some(link) = self.peers.get(id).and_then(|peer| peer.link()) else { return };
        self.break_link(link);
        self.close_link(link);
    }

    fn transmit(&mut self, id: PeerId, index: usize) {
        let (now, after) = (self.now, self.config.resend_after);
        let Some(peer) = self.peers.get_mut(id) else { return };
        let Some(link) = peer.link() else { return };
        let session = peer.session.id;
        let Some(reliable) = peer.session.reliable.as_mut() else { return };
        let Some(sent) = reliable.sent.get_mut(index) else { return };
        if sent.in_rail.is_some() || sent.acknowledged || sent.leaving {
            return;
        }
        sent.sent_at = now;
        sent.tries += 1;
        match self.orders.insert(Order::Span { peer: id, span: sent.span }) {
            Ok(slot) => sent.in_rail = Some(slot),
            Err(_) => return,
        }
        let token = sent.in_rail.map_or(Token::NONE, Orders::token);
        sent.envelope.session = session;
        let (envelope, body, payload) = (sent.envelope, sent.body, sent.payload);
        if sent.tries > 1 {
            self.counters.frames_re_sent += 1;
        }
        let due = now + after;
        reliable.resend_by(due);
        self.wake_by(id, due);
        self.emit_on(link, envelope, &body, payload, token);
    }

    /// The rail let go of a span.
    pub(crate) fn span_released(&mut self, id: PeerId, span: u64) {
        let Some(reliable) = self.peers.get_mut(id).and_then(|peer| peer.session.reliable.as_mut())
        else {
            return;
        };
        let Some(index) = reliable.index_of(span) else { return };
        let sent = &mut reliable.sent[index];
        sent.in_rail = None;
        if !sent.acknowledged {
            return self.keep_span(id, span);
        }
        let ended = sent.payload.take();
        reliable.forget_acknowledged();
        if let Some(payload) = ended {
            self.order_ended(payload.order, Ok(()));
        }
    }

    /// The peer acknowledges spans.
    pub(crate) fn arrive_ack(&mut self, id: PeerId, ack: AckBody) {
        let Some(reliable) = self.peers.get_mut(id).and_then(|peer| peer.session.reliable.as_mut())
        else {
            return;
        };
        let (cumulative, bitmap) = (ack.cumulative.get(), ack.bitmap.get());
        let mut ended = Vec::new();
        // Only what is news is looked at, however many spans are under way.
        let last = cumulative.min(reliable.next_span - 1);
        for span in reliable.answered + 1..=last {
            ended.extend(reliable.acknowledged(span));
        }
        reliable.answered = reliable.answered.max(last);
        let above = (0..64).filter(|bit| bitmap >> bit & 1 == 1);
        for span in above.filter_map(|bit| cumulative.checked_add(2 + bit)) {
            ended.extend(reliable.acknowledged(span));
        }
        reliable.forget_acknowledged();
        if reliable.unanswered == 0 {
            reliable.resend_at = None;
        }
        for order in ended {
            self.order_ended(order, Ok(()));
        }
    }

    /// A frame of a session with spans.
    pub(crate) fn arrive_span(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: Arrived<'_>,
        payload_bytes: u32,
    ) -> Placement {
        let span = prefix.span.get();
        if let Some(reliable) =
            self.peers.get_mut(id).and_then(|peer| peer.session.reliable.as_mut())
        {
            reliable.confirm_at = None;
        }
        if span == 0 {
            return match body {
                Arrived::Ack(ack) => {
                    self.arrive_ack(id, *ack);
                    Placement::Drop
                }
                Arrived::Goodbye => self.dispatch(link, id, prefix, body, payload_bytes),
                _ => self.violation("a frame with an effect has no span"),
            };
        }
        let Some(reliable) = self.peers.get_mut(id).and_then(|peer| peer.session.reliable.as_mut())
        else {
            return Placement::Drop;
        };
        let fresh = match reliable.state_mut(span) {
            Some(state @ State::Free) => {
                *state = State::Placing;
                true
            }
            _ => false,
        };
        if !fresh {
            self.counters.duplicates_dropped += 1;
            self.acknowledge_soon(id, true);
            return Placement::Drop;
        }
        if let Some(incoming) = reliable.broken.remove(&span) {
            return self.place_again(link, incoming, payload_bytes);
        }
        let placement = self.dispatch(link, id, prefix, body, payload_bytes);
        if matches!(placement, Placement::Drop) {
            self.span_placed(id, span);
        }
        placement
    }

    fn place_again(
        &mut self,
        link: LinkId,
        mut incoming: Incoming,
        payload_bytes: u32,
    ) -> Placement {
        if incoming.payload_bytes != payload_bytes {
            self.incoming_lost(incoming, Fault::PeerReset);
            return self.violation("a span came again with another length");
        }
        (incoming.link, incoming.broken_off) = (link, false);
        let slice = incoming.slice;
        match self.incoming.insert(incoming) {
            Ok(slot) if slice.buffer == Slice::NONE.buffer => {
                unreachable!("incoming {slot:?} had its buffer before it broke off")
            }
            Ok(slot) => Placement::Into { slice, token: Token(slot.to_u64()) },
            Err(_) => Placement::Violation("more placements than a link can have"),
        }
    }

    /// A span took effect.
    pub(crate) fn span_placed(&mut self, id: PeerId, span: u64) {
        let Some(reliable) = self.peers.get_mut(id).and_then(|peer| peer.session.reliable.as_mut())
        else {
            return;
        };
        if span == 0 {
            return;
        }
        if let Some(state) = reliable.state_mut(span) {
            *state = State::Placed;
        }
        reliable.advance();
        reliable.unacknowledged += 1;
        let now = reliable.unacknowledged >= ACKNOWLEDGE_EVERY;
        self.acknowledge_soon(id, now);
    }

    /// A span broke off in its placement: it may come again.
    pub(crate) fn span_unplaced(&mut self, id: PeerId, span: u64) {
        let reliable = self.peers.get_mut(id).and_then(|peer| peer.session.reliable.as_mut());
        if let Some(state) = reliable.and_then(|reliable| reliable.state_mut(span)) {
            *state = State::Free;
        }
    }

    /// Keeps a placement that broke off for the span's next coming. False where nothing comes.
    pub(crate) fn keep_broken(&mut self, incoming: Incoming) -> Result<(), Incoming> {
        let Some(id) = incoming.peer else { return Err(incoming) };
        let span = incoming.span;
        let ready = incoming.slice.buffer != Slice::NONE.buffer;
        match self.peers.get_mut(id).and_then(|peer| peer.session.reliable.as_mut()) {
            Some(reliable) if span != 0 && ready => {
                reliable.broken.insert(span, incoming);
                self.span_unplaced(id, span);
                Ok(())
            }
            _ => Err(incoming),
        }
    }

    fn acknowledge_soon(&mut self, id: PeerId, at_once: bool) {
        let due = self.now + ACKNOWLEDGE_AFTER;
        if at_once {
            return self.acknowledge_now(id);
        }
        if let Some(reliable) =
            self.peers.get_mut(id).and_then(|peer| peer.session.reliable.as_mut())
        {
            reliable.acknowledge_at.get_or_insert(due);
            self.wake_by(id, due);
        }
    }

    /// Tells the peer which of its spans are here.
    pub(crate) fn acknowledge_now(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id) else { return };
        let Some(link) = peer.link() else { return };
        let session = peer.session.id;
        let Some(reliable) = peer.session.reliable.as_mut() else { return };
        reliable.acknowledge_at = None;
        reliable.unacknowledged = 0;
        let body = Body::Ack(AckBody {
            cumulative: reliable.cumulative.into(),
            bitmap: reliable.bitmap().into(),
        });
        let envelope = Envelope { session, ..Envelope::default() };
        self.emit_on(link, envelope, &body, None, Token::NONE);
    }

    pub(crate) fn run_span_timers(&mut self, id: PeerId) {
        let (now, after) = (self.now, self.config.resend_after);
        let Some(reliable) = self.peers.get_mut(id).and_then(|peer| peer.session.reliable.as_mut())
        else {
            return;
        };
        let confirm = reliable.confirm_at.is_some_and(|at| at <= now);
        let acknowledge = reliable.acknowledge_at.is_some_and(|at| at <= now);
        let mut due = Vec::new();
        if reliable.resend_at.is_some_and(|at| at <= now) {
            // Those behind come when these are acknowledged, so that many under way cost no more.
            let later = reliable.sent.len() > LOOKED_AT;
            reliable.resend_at = later.then_some(now + after / 2);
            for (index, sent) in reliable.sent.iter().take(LOOKED_AT).enumerate() {
                let at = sent.sent_at + after * (1 << sent.tries.min(4)) / 2;
                if sent.acknowledged {
                    continue;
                }
                let idle = sent.in_rail.is_none() && !sent.leaving;
                if at <= now && idle && due.len() < BURST {
                    due.push(index);
                } else {
                    let at = at.max(now + after / 4);
                    reliable.resend_at = Some(reliable.resend_at.map_or(at, |next| next.min(at)));
                }
            }
        }
        if confirm {
            self.confirm_again(id);
        }
        if acknowledge {
            self.acknowledge_now(id);
        }
        for index in due {
            self.transmit(id, index);
        }
    }

    /// A link carries the session from now on. Where its frames may be lost, who confirmed it does so
    /// until the peer is heard over it, and the other side lets itself be heard. Otherwise one could
    /// wait for ever for a confirmation that was lost while the other has nothing to send.
    pub(crate) fn begin_confirmation(&mut self, id: PeerId, outbound: bool, lossy: bool) {
        let due = self.now + self.config.resend_after;
        let Some(reliable) = self.peers.get_mut(id).and_then(|peer| peer.session.reliable.as_mut())
        else {
            return;
        };
        reliable.confirm_at = (outbound && lossy).then_some(due);
        reliable.confirmations = 1;
        if outbound && lossy {
            self.wake_by(id, due);
        } else if lossy {
            self.acknowledge_now(id);
        }
    }

    fn confirm_again(&mut self, id: PeerId) {
        let (now, after) = (self.now, self.config.resend_after);
        let Some(peer) = self.peers.get_mut(id) else { return };
        let Some(link) = peer.link() else { return };
        let Some(reliable) = peer.session.reliable.as_mut() else { return };
        if reliable.confirmations >= CONFIRMATIONS_MAX {
            // The rail's last word suspends the session, which then looks for another link.
            reliable.confirm_at = None;
            return self.close_link(link);
        }
        reliable.confirm_at = Some(now + after * (1 << reliable.confirmations.min(4)));
        reliable.confirmations += 1;
        self.emit_on(link, Envelope::default(), &Body::Confirm, None, Token::NONE);
    }

    /// A new link carries the session on: everything unacknowledged goes again.
    pub(crate) fn resume_spans(&mut self, id: PeerId) {
        let count = self
            .peers
            .get(id)
            .and_then(|peer| peer.session.reliable.as_ref())
            .map_or(0, |reliable| reliable.sent.len());
        for index in 0..count {
            self.transmit(id, index);
        }
        self.acknowledge_now(id);
    }

    /// The session is over: what its spans held is let go.
    pub(crate) fn drop_spans(&mut self, id: PeerId, session: u32, reliable: Reliable) {
        for sent in reliable.sent {
            let in_rail = sent.in_rail.and_then(|slot| self.orders.get_mut(slot));
            match (sent.payload, in_rail, sent.in_rail) {
                // The rail still has it: its release ends the order itself.
                (Some(payload), Some(order), _) => *order = payload.order,
                (Some(payload), None, _) => self.order_ended(payload.order, Err(Fault::PeerReset)),
                (None, _, Some(slot)) => drop(self.orders.remove(slot)),
                (None, _, None) => {}
            }
        }
        for incoming in reliable.broken.into_values() {
            self.incoming_lost(incoming, Fault::PeerReset);
        }
        for ((channel, _), held) in reliable.held {
            // What has not landed is let go with its incoming.
            let Held::Eager { bytes, buffer, landed: true, .. } = held else { continue };
            if let Some(buffer) = buffer {
                self.outputs.push(Output::Release(buffer));
            }
            if let Some(channel) = Channel::from_u8(channel) {
                let charge = Charge::Eager { channel, payload_bytes: bytes };
                self.free_charge(id, session, charge);
            }
        }
    }

    /// A small message that overtook an earlier one.
    pub(crate) fn hold_eager(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: &EagerBody,
        channel: Channel,
    ) -> Placement {
        let bytes = u64::from(prefix.payload_bytes.get());
        let message = body.message.get();
        let held = Held::Eager { body: *body, bytes, buffer: None, landed: bytes == 0 };
        if let Some(reliable) =
            self.peers.get_mut(id).and_then(|peer| peer.session.reliable.as_mut())
        {
            reliable.held.insert((channel as u8, message), held);
        }
        if bytes == 0 {
            return Placement::Drop;
        }
        let kind = IncomingKind::Held { channel, message };
        self.land_into(link, Some(id), prefix, Slice::NONE, kind)
    }

    /// An announce that overtook an earlier message.
    pub(crate) fn hold_announce(&mut self, id: PeerId, channel: Channel, body: AnnounceBody) {
        if let Some(reliable) =
            self.peers.get_mut(id).and_then(|peer| peer.session.reliable.as_mut())
        {
            reliable.held.insert((channel as u8, body.message.get()), Held::Announce(body));
        }
    }

    pub(crate) fn held_landed(
        &mut self,
        id: Option<PeerId>,
        channel: Channel,
        message: u64,
        slice: Slice,
    ) {
        let reliable = id.and_then(|id| self.peers.get_mut(id)?.session.reliable.as_mut());
        match reliable.and_then(|reliable| reliable.held.get_mut(&(channel as u8, message))) {
            Some(Held::Eager { buffer, landed, .. }) => {
                *buffer = Some(slice.buffer);
                *landed = true;
            }
            _ => return self.outputs.push(Output::Release(slice.buffer)),
        }
        if let Some(id) = id {
            self.release_held(id, channel);
        }
    }

    /// Matches held messages whose turn has come.
    pub(crate) fn release_held(&mut self, id: PeerId, channel: Channel) {
        loop {
            let Some(peer) = self.peers.get_mut(id) else { return };
            let message = peer.session.receive_next[channel as usize];
            let Some(reliable) = peer.session.reliable.as_mut() else { return };
            let key = (channel as u8, message);
            match reliable.held.get(&key) {
                Some(Held::Eager { landed: true, .. } | Held::Announce(_)) => {}
                _ => return,
            }
            let Some(held) = reliable.held.remove(&key) else { return };
            peer.session.receive_next[channel as usize] += 1;
            match held {
                Held::Announce(body) => self.match_announce(id, channel, &body),
                Held::Eager { body, bytes, buffer, .. } => {
                    self.match_held(id, channel, &body, bytes, buffer);
                }
            }
        }
    }

    fn match_held(
        &mut self,
        id: PeerId,
        channel: Channel,
        body: &EagerBody,
        bytes: u64,
        buffer: Option<BufferId>,
    ) {
        let (bits, message) = (body.bits.get(), body.message.get());
        if channel == Channel::Request {
            if body.acknowledge != 0 {
                self.emit_finish(id, channel, message, Ok(()), bytes);
            }
            let slice =
                buffer.map_or(Slice::NONE, |buffer| Slice { buffer, offset: 0, len: bytes });
            let session = self.session_of(id);
            return self.request_landed(Some(id), session, bits, bytes as u32, slice);
        }
        if body.acknowledge == Level::Delivered as u8 {
            self.emit_finish(id, channel, message, Ok(()), bytes);
        }
        let session = self.session_of(id);
        self.counters.messages_unmatched += 1;
        self.counters.bytes_unmatched += bytes;
        let unmatched = Unmatched {
            channel,
            peer: id,
            session,
            bits,
            message,
            bytes,
            content: buffer.map_or(Content::Empty, Content::Staged),
            acknowledge: body.acknowledge,
            shown: false,
        };
        match self.matching.arrive(unmatched) {
            Some(found) => {
                self.rematch(found);
                self.offer(channel, found);
                if self.matching.drops_unawaited(channel) {
                    self.discard(found, body);
                }
                self.lend_to_waiting(id);
            }
            None => {
                let charge = Charge::Eager { channel, payload_bytes: bytes };
                self.free_charge(id, session, charge);
            }
        }
    }

    /// Drops a held message that no receive took.
    fn discard(&mut self, found: SlotId, body: &EagerBody) {
        let Some(message) = self.matching.remove_message(found) else { return };
        let (peer, channel, payload_bytes) = (message.peer, message.channel, message.bytes);
        if let Content::Staged(buffer) = message.content {
            self.outputs.push(Output::Release(buffer));
        }
        self.free_charge(peer, message.session, Charge::Eager { channel, payload_bytes });
        self.drop_unmatched(peer, channel, body);
    }
}
