//! The core's state and its entry points; what they do is in the folders beside.

use std::time::Duration;

use ropewalk_base::cipher_random::CipherRandom;
use ropewalk_base::error::Fault;
use ropewalk_base::hash::HashSeed;
use ropewalk_base::memory::Slice;
use ropewalk_base::random::Random;
use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::time::Time;
use ropewalk_base::verb::{Capabilities, FrameOrder, LinkId, Ordered, Token, Urgency};
use ropewalk_wire::frame::{self, Body, Content, Envelope};

use crate::api::*;
use crate::assembly::Assembly;
use crate::credit::Pool;
use crate::incoming::IncomingPayloads;
use crate::matching::Matching;
use crate::operation::{Ending, Kind, Operations};
use crate::orders::{Entry, Named, Order, Orders, Payload};
use crate::outputs::Outputs;
use crate::path::{Evictable, Links, Newcomers, PathRequests, Peers, Routes, Timers, Trust};
use crate::rails::{RailLabel, RailProtection, Rails};
use crate::remote::{Groups, Jobs, Locks, Marks, PutFrame, Regions};
use crate::session::{self, History, PathId};
use crate::streams::BulkBudget;

/// The protocol of one endpoint.
pub struct Core {
    pub(crate) config: Config,
    pub(crate) identity: Identity,
    /// The addresses that peers are told.
    pub(crate) greeting: Slice,
    /// The payload of long probes.
    pub(crate) probe_bytes: Slice,
    pub(crate) rails: Rails,
    /// For all that peers are told.
    pub(crate) random: CipherRandom,
    pub(crate) now: Time,
    pub(crate) peers: Peers,
    pub(crate) links: Links,
    pub(crate) operations: Operations,
    pub(crate) matching: Matching,
    pub(crate) regions: Regions,
    pub(crate) groups: Groups,
    pub(crate) orders: Orders,
    pub(crate) incoming: IncomingPayloads,
    /// The payload of the frame that is being placed is here, too.
    pub(crate) placing_whole: bool,
    /// A put whose payload is here, too: its peer, and how many bytes it has.
    pub(crate) put_here: Option<(PeerId, PutFrame, u32)>,
    /// Buffers with copies of spans, until the copies are at their places.
    pub(crate) copies_staged: u32,
    /// Bytes of puts that are staged until they are verified.
    pub(crate) apart_bytes: u64,
    pub(crate) assemblies: Slots<Assembly>,
    pub(crate) outputs: Outputs,
    /// Peers that are told of applied operations once all outputs were taken.
    pub(crate) marks: Marks,
    /// Updates and atomics of peers that are to be executed.
    pub(crate) jobs: Jobs,
    pub(crate) locks: Locks,
    pub(crate) pool: Pool,
    pub(crate) closing: bool,
    pub(crate) timers: Timers,
    pub(crate) bulk: BulkBudget,
    /// The next look for idle links, where there are too many.
    pub(crate) sweep_at: Time,
    pub(crate) evictable: Evictable,
    pub(crate) newcomers: Newcomers,
    pub(crate) routes: Routes,
    pub(crate) path_requests: PathRequests,
    /// Events of paths, for operators.
    pub(crate) history: History,
    pub(crate) pathless: session::Pathless,
    pub(crate) counters: Counters,
    /// Where the endpoint has keys.
    pub(crate) trust: Option<Box<Trust>>,
    /// Part of each time-out of a path, and whether such were judged since that was asked.
    pub(crate) floor: Duration,
    pub(crate) has_judged: bool,
}

const ORDERS_MAX: usize = 1 << 22;

impl Core {
    /// A core without peers. `greeting`: the text that peers are told about how to reach this endpoint. `random` determines
    /// all that is left to chance: see [`Core::with_random`].
    pub fn new(
        config: Config,
        identity: Identity,
        rails: Vec<Capabilities>,
        greeting: Slice,
        random: Random,
    ) -> Core {
        assert!(
            greeting.len <= u64::from(frame::HELLO_PAYLOAD_BYTES_MAX),
            "the addresses of an endpoint fit a frame"
        );
        let hash = HashSeed::peek(&random);
        Core {
            greeting,
            probe_bytes: Slice::NONE,
            rails: Rails::new(rails),
            random: CipherRandom::peek(&random),
            now: Time::ZERO,
            peers: Peers::new(config.peers_max, hash.clone()),
            links: Links::default(),
            operations: Operations::with_limit(config.operations_max),
            matching: Matching::new(hash, config.eager_bytes(None)),
            regions: Regions::with_limit(config.regions_max),
            groups: Groups::with_limit(config.regions_max),
            orders: Orders::with_limit(ORDERS_MAX),
            incoming: IncomingPayloads::with_limit(ORDERS_MAX),
            placing_whole: false,
            put_here: None,
            copies_staged: 0,
            apart_bytes: 0,
            assemblies: Slots::with_limit(ORDERS_MAX),
            outputs: Outputs::new(),
            marks: Marks::default(),
            jobs: Jobs::default(),
            locks: Locks::default(),
            pool: Pool::new(config.eager_pool_bytes),
            closing: false,
            timers: Timers::new(),
            bulk: BulkBudget::new(),
            sweep_at: Time::NEVER,
            evictable: Evictable::default(),
            newcomers: Newcomers::default(),
            routes: Routes::new(),
            path_requests: PathRequests::default(),
            history: History::default(),
            pathless: session::Pathless::new(),
            counters: Counters::default(),
            trust: None,
            floor: session::FLOOR_FIRST,
            has_judged: false,
            config,
            identity,
        }
    }

    /// Nonces and secrets come from this generator, whose key is the operating system's: a seed is short.
    #[must_use]
    pub fn with_random(mut self, random: CipherRandom) -> Core {
        self.random = random;
        self
    }

    /// Takes the next thing to do or to know, in order; the three functions below have it. What it is
    /// stays where it is until the next one of its kind is taken.
    #[inline]
    pub fn next_output(&mut self) -> Option<Next> {
        let next = self.outputs.next();
        if next.is_none() && !self.marks.is_empty() {
            self.tell_applied();
            return self.outputs.next();
        }
        next
    }

    /// The frame of the last `Next::Frame` or `Next::PatientFrame`.
    #[inline]
    pub fn frame(&mut self) -> &mut FrameOrder {
        self.outputs.frame()
    }

    /// Whether the next output is a frame of the same link as the last one.
    #[inline]
    pub fn is_followed(&self) -> bool {
        self.outputs.is_followed()
    }

    /// The completion of the last `Next::Completed`.
    #[inline]
    pub fn completion(&mut self) -> &Completion {
        self.outputs.completion()
    }

    /// The output of the last `Next::Other`; to be asked for once.
    pub fn take_output(&mut self) -> Output {
        self.outputs.other()
    }

    /// Whether there is something to do or to know.
    #[inline]
    pub fn has_outputs(&self) -> bool {
        !self.outputs.is_empty() || !self.marks.is_empty()
    }

    /// One more rail, behind those that it has.
    pub fn add_rail(&mut self, rail: Capabilities, scheme: &'static str) {
        self.rails.add(rail, scheme);
    }

    /// Tells the protection of all rails, in their order. It counts for endpoints with keys: see [`Core::with_guard`].
    pub fn protect_rails(&mut self, protections: Vec<RailProtection>) {
        self.rails.set_protections(protections);
    }

    /// The same for the rail that was added last.
    pub fn protect_next_rail(&mut self, protection: RailProtection) {
        self.rails.protect_last(protection);
    }

    /// Labels all rails, in their order.
    pub fn label_rails(&mut self, labels: Vec<RailLabel>) {
        self.rails.set_labels(labels);
    }

    /// Sessions that begin from now on may have so many paths at a time.
    pub fn set_paths_max(&mut self, paths_max: usize) {
        self.config.paths_max = paths_max;
    }

    /// Its counters.
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// [`Counters::accesses_served`] alone.
    #[inline]
    pub fn accesses_served(&self) -> u64 {
        self.counters.accesses_served
    }

    /// From now on messages of `channel` that no posted receive accepts are dropped, and what they
    /// occupied goes back to their senders: for users who post before they make anybody send, so that
    /// what comes later is for nobody. Requests always have a taker.
    pub fn drop_unawaited(&mut self, channel: Channel) {
        self.matching.drop_unawaited(channel);
    }

    /// Announced messages whose memory is not given back yet.
    #[inline]
    pub fn announced(&self) -> u32 {
        self.regions.one_shot()
    }

    /// Receives that have room for announced messages: what ends them needs answers of ours.
    #[inline]
    pub fn awaited(&self) -> u32 {
        self.matching.awaited()
    }

    /// Messages that wait for a receive.
    pub fn unmatched_count(&self) -> usize {
        self.matching.message_count()
    }

    /// Sets the clock and does what is due.
    pub fn advance(&mut self, now: Time) {
        self.begin_pass(now);
        self.run_due();
    }

    /// Sets the clock, and leaves the timers that have gone off to [`Core::run_due`]. A driver calls that after it has
    /// told all news of its rails: otherwise a driver that comes late would take a peer for a silent one.
    pub fn begin_pass(&mut self, now: Time) {
        debug_assert!(now >= self.now, "time does not run backwards");
        self.now = now;
        self.refill_bulk();
        if cfg!(debug_assertions) && self.config.plant == Plant::TimeoutBeforeDrain {
            self.run_due();
        }
    }

    /// Whether something is due.
    #[inline]
    pub fn is_due(&self) -> bool {
        self.timers.wake() <= self.now
    }

    /// Does what is due.
    pub fn run_due(&mut self) {
        if self.is_due() {
            self.run_timers();
        }
    }

    /// Whether paths were judged by time-outs since that was asked last.
    pub fn has_judged(&mut self) -> bool {
        std::mem::take(&mut self.has_judged)
    }

    /// How late the driver comes at worst, for what is due: time-outs of paths are longer by that, within bounds.
    pub fn set_lateness(&mut self, lateness: Duration) {
        self.floor = session::floor_of(lateness);
    }

    /// Whether data frames wait for [`Core::begin_pass`]: it bounds what one pass sends of them.
    #[inline]
    pub fn is_throttled(&self) -> bool {
        self.bulk.is_throttled()
    }

    /// The time, as it was told last.
    #[inline]
    pub fn now(&self) -> Time {
        self.now
    }

    /// When [`Core::advance`] has something to do.
    pub fn deadline(&self) -> Option<Time> {
        if self.is_throttled() {
            return Some(self.now);
        }
        let wake = self.timers.wake();
        (wake < Time::NEVER).then_some(wake)
    }

    /// A rail's immediate answer to a verb.
    #[inline(always)]
    pub fn ordered(&mut self, verb_token: Token, answer: Ordered) {
        match answer {
            Ordered::Released => self.ended(verb_token, Ok(())),
            Ordered::Pending => {}
            Ordered::Refused(fault) => self.ended(verb_token, Err(fault)),
        }
    }

    /// An order is done.
    pub fn done(&mut self, token: Token) {
        self.ended(token, Ok(()));
    }

    /// An order failed.
    pub fn failed(&mut self, token: Token, fault: Fault) {
        self.ended(token, Err(fault));
    }

    #[inline(always)]
    fn ended(&mut self, token: Token, outcome: Result<(), Fault>) {
        match Orders::named(token) {
            Named::Eager(operation) => self.eager_left(operation, outcome),
            Named::Entry(slot) => self.entry_ended(slot, outcome),
            Named::Nothing => {}
        }
    }

    /// A rail is done with an order of the table, if it was not before.
    fn entry_ended(&mut self, slot: SlotId, outcome: Result<(), Fault>) {
        let Some(Entry { order, link }) = self.orders.remove(slot) else { return };
        match order {
            Order::Native { operation, peer, bytes } => {
                self.native_ended(operation, peer, link, bytes, outcome);
                self.pump(peer);
            }
            Order::Part { operation, peer, part } => {
                self.part_ended(operation, peer, link, part, outcome);
                self.pump(peer);
            }
            Order::Span { peer, span } => {
                self.mind_payload(link, outcome);
                self.span_released(peer, span, link);
            }
            Order::Shared { with } => self.share_released(with, outcome),
            Order::Eager { operation } => self.eager_left(operation, outcome),
            order => {
                if let Some(peer) = order.peer() {
                    self.frame_left(peer, link, order.is_bulk());
                }
                if !matches!(order, Order::ServeFrame { .. }) {
                    self.mind_payload(link, outcome);
                }
                self.order_ended(order, outcome);
            }
        }
    }

    /// A rail refuses a frame with `BadKey` where the memory of its payload is gone. The peer waits for it: all that is left is
    /// to end the link.
    #[inline]
    pub(crate) fn mind_payload(&mut self, link: LinkId, outcome: Result<(), Fault>) {
        if outcome == Err(Fault::BadKey) {
            self.close_link(link);
        }
    }

    /// The peer has a span, which counted against this path: it does no more, and the memory behind it is free.
    pub(crate) fn span_ended(&mut self, id: PeerId, path: PathId, order: Order) {
        if let Some(session) = self.peers.session_mut(id) {
            session.paths.span_ended(path, order.is_bulk());
        }
        self.order_ended(order, Ok(()));
    }

    /// The memory behind a frame that does not count any more, or never did, is free.
    pub(crate) fn order_ended(&mut self, order: Order, outcome: Result<(), Fault>) {
        match order {
            Order::Eager { operation } => self.eager_released(operation, outcome),
            Order::Fragment { operation, peer } => {
                self.fragment_released(operation, peer, outcome);
                self.pump(peer);
            }
            Order::PutFrame { operation, peer, .. } => {
                self.put_frame_released(operation, outcome);
                self.pump(peer);
            }
            Order::ServeFrame { region, peer, cookie } => {
                if outcome == Err(Fault::BadKey) {
                    self.serve_gone(peer, region, cookie);
                }
                self.release_region(region);
                self.pump(peer);
            }
            Order::Answer { peer, .. } => {
                self.answer_released(order);
                self.pump(peer);
            }
            Order::Detached { peer, .. } => self.pump(peer),
            Order::Greeting { buffer } => self.outputs.push(Output::Release(buffer)),
            Order::Kept { peer, buffer, .. } => {
                self.outputs.push(Output::Release(buffer));
                self.pump(peer);
            }
            Order::Native { .. }
            | Order::Part { .. }
            | Order::Span { .. }
            | Order::Shared { .. } => {
                unreachable!("{order:?} is no payload of a frame")
            }
        }
    }

    /// A rail let go of a frame that went over this link.
    #[inline]
    pub(crate) fn frame_left(&mut self, id: PeerId, link: LinkId, bulk: bool) {
        if let Some(session) = self.peers.session_mut(id) {
            session.paths.frame_left(link, bulk);
        }
    }

    /// Sends a frame of the session with `id`; `order` is ended when the rail lets go of the payload
    /// (mode `Fail`) or the peer has it (mode `Resume`).
    #[inline(always)]
    pub(crate) fn emit<B: Content>(&mut self, id: PeerId, body: B, payload: Option<Payload>) {
        let Some(session) = self.peers.session_mut(id) else {
            debug_assert!(payload.is_none(), "a payload leaves in a session");
            return;
        };
        let payload_bytes = payload.map_or(0, |payload| payload.slice.len as u32);
        let mut envelope =
            Envelope { session: session.name(), payload_bytes, ..Envelope::default() };
        if session.reliable.is_some() {
            return self.emit_span(id, envelope, body.into(), payload);
        }
        let Some(link) = session.paths.control() else { return self.defer(id, body.into()) };
        let (slice, urgency, token) = match payload {
            Some(Payload { slice, urgency, order }) => match self.orders.token_of(order, link) {
                Ok(token) => {
                    let entry = match Orders::named(token) {
                        Named::Entry(slot) => Some(slot),
                        Named::Eager(_) | Named::Nothing => None,
                    };
                    session.paths.frame_begun(link, urgency, entry, &self.orders);
                    (slice, urgency, token)
                }
                Err(order) => return self.order_ended(order, Err(Fault::Busy)),
            },
            None => (Slice::NONE, Urgency::Urgent, Token::NONE),
        };
        if let Some(state) = self.links.get_mut(link) {
            state.packet += 1;
            envelope.packet = state.packet as u32;
        }
        let header = self.outputs.push_frame(link, slice, urgency, token);
        frame::encode_content(header, envelope, &body);
    }

    /// Puts a frame on a link.
    pub(crate) fn emit_on(
        &mut self,
        link: LinkId,
        envelope: Envelope,
        body: &Body,
        payload: Option<Payload>,
        token: Token,
    ) {
        let to = (&mut self.links, &mut self.outputs);
        put_on(to, link, envelope, body, payload.as_ref(), token);
    }

    /// Decides how an operation ends; it does when no rail holds its memory any more.
    pub(crate) fn finish(&mut self, id: OperationId, outcome: Result<(), Fault>, bytes: u64) {
        if let Some(operation) = self.operations.get_mut(id)
            && operation.ending.is_none()
        {
            operation.ending = Some(Ending { outcome, bytes });
        }
        self.try_complete(id);
    }

    /// A rail took hold of an operation's memory.
    pub(crate) fn retain_memory(&mut self, id: OperationId) {
        if let Some(operation) = self.operations.get_mut(id) {
            operation.retained += 1;
        }
    }

    /// A rail let go of an operation's memory.
    #[inline(always)]
    pub(crate) fn release_memory(&mut self, id: OperationId) {
        if let Some(operation) = self.operations.get_mut(id) {
            assert!(operation.retained > 0, "a rail lets go of what it held");
            operation.retained -= 1;
        }
        self.try_complete(id);
    }

    #[inline(always)]
    pub(crate) fn try_complete(&mut self, id: OperationId) {
        let Some(operation) = self.operations.get(id) else { return };
        let Some(Ending { outcome, bytes }) = operation.ending else { return };
        if operation.retained > 0 {
            return;
        }
        let completion = self.outputs.push_completion();
        completion.operation = id;
        completion.outcome = outcome;
        completion.bytes = bytes;
        match &operation.kind {
            Kind::Send(state) => {
                completion.peer = Some(state.send.peer);
                completion.bits = state.send.bits;
                completion.message_bytes = state.send.payload.len;
            }
            Kind::Receive(state) => {
                completion.peer = state.from;
                completion.bits = state.bits;
                completion.message_bytes = state.message_bytes;
                self.matching.end_receive(state.receive.into.len);
            }
            Kind::Access(_) => {
                completion.peer = self.operations.peer(operation);
                completion.bits = self.operations.access(operation).map_or(0, |it| it.value);
                completion.message_bytes = bytes;
            }
        }
        self.operations.forget(id);
    }
}

/// Puts a frame on a link, which counts its frames.
pub(crate) fn put_on(
    (links, outputs): (&mut Links, &mut Outputs),
    link: LinkId,
    mut envelope: Envelope,
    body: &Body,
    payload: Option<&Payload>,
    token: Token,
) {
    if let Some(state) = links.get_mut(link) {
        state.packet += 1;
        envelope.packet = state.packet as u32;
    }
    let (slice, urgency) =
        payload.map_or((Slice::NONE, Urgency::Urgent), |payload| (payload.slice, payload.urgency));
    frame::encode_into(outputs.push_frame(link, slice, urgency, token), envelope, body);
}
