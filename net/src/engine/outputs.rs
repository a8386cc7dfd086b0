//! The outputs of the core: the engine carries them out in order, and tells the core the answers.

use ropewalk_base::error::Fault;
use ropewalk_base::memory::{BufferId, BufferTable, Memory, Slice};
use ropewalk_base::payload::LinkKeys;
use ropewalk_base::pool::PoolBuffer;
use ropewalk_base::verb::{FrameOrder, Header, LinkId, Ordered, Placement, Token, Verb};
use ropewalk_core::apm::PathEvent;
use ropewalk_core::{LOOP_LINK, Next, Output, PeerId};
use ropewalk_rail::{Rail, Report};

use crate::context::{LateRefusal, Written};
use crate::engine::checksums::Checked;
use crate::engine::rail_events::RailEvents;
use crate::engine::{Engine, News, PeerEvent, Request};
use crate::notice;

/// Copies of payloads that peers have not acknowledged are taken while less than this part of the pool is lent.
const COPIES_PART: u64 = 10;

impl Engine {
    /// Carries out the orders of the core, in order. True if there were any.
    #[inline]
    pub fn drain(&mut self) -> bool {
        let any = self.core.has_outputs();
        if any {
            self.drain_all();
            // Last: a rail's answer may have ended some.
            self.signals.set_announced(self.core.announced());
            self.signals.set_awaited(self.core.awaited());
        }
        let arrivals = self.core.arrivals();
        if arrivals != self.arrivals_told {
            self.note_arrivals(arrivals);
        }
        any
    }

    /// Messages came that wait for a receive.
    #[cold]
    fn note_arrivals(&mut self, arrivals: u64) {
        self.arrivals_told = arrivals;
        self.signals.set_arrivals(arrivals);
        self.contexts.ring(News::Arrivals);
    }

    fn drain_all(&mut self) {
        loop {
            while let Some(next) = self.core.next_output() {
                match next {
                    Next::Frame => self.send(false),
                    Next::PatientFrame => self.send(true),
                    Next::Completed => self.completed(),
                    Next::Other => self.act(),
                }
            }
            if self.core.has_jobs() {
                // A placement that was given up lets something go that waited for it.
                let Engine { core, buffers, pool, .. } = self;
                RailEvents { core, buffers, pool }.run_jobs();
                continue;
            }
            // A sleeper on the rails makes no pass before the answer to a patient frame arrives.
            if !self.batch.is_due(self.rails.are_armed()) {
                return;
            }
            self.push_frames();
        }
    }

    /// Lets rails send the frames that they keep.
    pub(super) fn push_frames(&mut self) {
        self.batch.clear();
        let Engine { core, rails, buffers, pool, .. } = self;
        rails.push(&mut RailEvents { core, buffers, pool });
    }

    /// Gives the next frame to its rail.
    #[inline]
    fn send(&mut self, patient: bool) {
        let followed = patient || self.core.is_followed();
        self.batch.add(followed, patient);
        let link = self.core.frame().link;
        let checked = self.checked(link);
        if checked == Checked::HeaderAndPayload {
            self.copy_exposed();
        }
        let frame = self.core.frame();
        let token = frame.token;
        let Some(rail) = self.rails.of_mut(link) else { return self.loop_frame() };
        let answer = hand_over(rail, frame, checked, followed, &self.buffers);
        self.core.ordered(token, answer);
    }

    /// Bytes of exposed memory may change between their checksum and their way: those of a frame that does not come again are
    /// copied first, if there is room.
    fn copy_exposed(&mut self) {
        let payload = self.core.exposed_payload().filter(|it| !self.buffers.is_fleeting(*it));
        if let Some(buffer) = payload.and_then(|payload| self.copy_of(payload)) {
            self.core.payload_copied(buffer);
        }
    }

    /// Gives the frame of a message that leaves at once to its rail.
    #[inline]
    pub(super) fn hand_over_inline(&mut self) -> Ordered {
        if !self.batch.is_empty() {
            self.push_frames();
        }
        let link = self.core.inline_frame().link;
        let checked = self.checked(link);
        let frame = self.core.inline_frame();
        hand_over(self.rails.at(link.rail.into()), frame, checked, false, &self.buffers)
    }

    /// The checksums of a link's frames.
    #[inline]
    fn checked(&self, link: LinkId) -> Checked {
        self.checksums.of(link, || self.core.is_same_host(link))
    }

    /// Does one of the rarer things.
    #[inline(never)]
    fn act(&mut self) {
        match self.core.take_output() {
            Output::Verb(verb) => self.order(&verb),
            Output::Seal { link, keys } => self.seal(link, &keys),
            Output::Greet { link, header, payload } => self.greet(link, &header, &payload),
            Output::Copy { from, to } => {
                self.buffers.copy(from, to);
            }
            Output::Release(buffer) => drop(self.buffers.remove(buffer)),
            Output::Keep { peer, span, from } => {
                let buffer = self.copy_of(from);
                self.core.kept(peer, span, buffer);
            }
            Output::Request { peer, session, bits, payload } => {
                self.request(peer, session, bits, payload);
            }
            Output::Connect { peer, attempt } => self.connect(peer, attempt),
            Output::Upgrade { peer, link } => self.upgrade(peer, link),
            Output::Tune { link } => self.tune(link),
            Output::AskHealth { link } => self.tell_health(link),
            Output::Measure { link } => self.measure(link),
            Output::Abandon { link } => self.abandon(link),
            Output::Join { peer, attempt, rails } => self.join(peer, attempt, rails),
            Output::PeerUp { peer } => self.peer_event(PeerEvent::Up(peer)),
            Output::PeerDown { peer, fault } => self.peer_down(peer, fault),
            Output::KeyJudged { peer, key, right } => {
                self.peer_event(PeerEvent::KeyJudged { peer, key, right });
            }
            Output::Raised => self.raised(),
            Output::Written { peer, session, key, bytes, data } => {
                self.written(Written { peer, key, bytes, data, session });
            }
            Output::Refused { peer, operation, fault } => {
                self.contexts.push_refused(LateRefusal { peer, operation, fault });
            }
            Output::Served { key, what } => self.served(key, what),
            Output::Unexposed { key } => self.unexposed(key),
            Output::Aliased { alias, peer } => self.aliased(alias, peer),
            Output::Path(event) => self.path_event(event),
        }
    }

    /// The rail of a link protects it from here on.
    #[cold]
    fn seal(&mut self, link: LinkId, keys: &LinkKeys) {
        if let Some(rail) = self.rails.of_mut(link) {
            rail.seal(link, keys, &self.buffers);
        }
        // The rail has them, so nobody asks for them any more.
        let _ = self.core.sealing(link);
    }

    /// A greeting whose payload differs from link to link.
    #[cold]
    fn greet(&mut self, link: LinkId, header: &Header, payload: &[u8]) {
        let copy = self.pool.copy_of(payload);
        let buffer = copy.and_then(|copy| self.buffers.insert(Memory::pooled(copy)).ok());
        let len = payload.len() as u64;
        let slice = buffer.map(|buffer| Slice { buffer, offset: 0, len });
        let Some(mut frame) = self.core.greeting_staged(link, *header, slice) else { return };
        if !self.batch.is_empty() {
            self.push_frames();
        }
        let checked = self.checked(link);
        let rail = self.rails.at(link.rail.into());
        let answer = hand_over(rail, &mut frame, checked, false, &self.buffers);
        self.core.ordered(frame.token, answer);
    }

    /// An order that is no frame to a peer.
    fn order(&mut self, verb: &Verb) {
        let (link, token) = match verb {
            Verb::Close { link: LOOP_LINK } => {
                return self.core.link_down(LOOP_LINK, Fault::Closed);
            }
            Verb::Read { link, token, .. } | Verb::Write { link, token, .. } => (*link, *token),
            Verb::DetachSend { link, token, .. }
            | Verb::SkipSend { link, token }
            | Verb::CancelAccess { link, token }
            | Verb::CancelReceive { link, token } => (*link, *token),
            Verb::Expose { link, .. } | Verb::Close { link } | Verb::Revoke { link, .. } => {
                (*link, Token::NONE)
            }
        };
        let answer = self.give(link, verb);
        match (verb, answer) {
            // The rail holds nothing under that key. With any other answer, only its report says that nobody holds
            // the region.
            (Verb::Revoke { link, key }, Ordered::Refused(_)) => self.core.revoked(*link, *key),
            (
                Verb::DetachSend { .. }
                | Verb::SkipSend { .. }
                | Verb::CancelAccess { .. }
                | Verb::CancelReceive { .. },
                answer,
            ) => {
                self.core.took_back(verb, answer);
            }
            _ => self.core.ordered(token, answer),
        }
    }

    /// Gives an order to the rail of a link.
    fn give(&mut self, link: LinkId, verb: &Verb) -> Ordered {
        let rail = self.rails.at(link.rail.into());
        // Of several that are ordered at once the asks may leave together.
        if let Verb::Read { local, .. } = verb {
            if self.follows_fetches {
                self.buffers.follow(local.buffer, (self.clock)());
            }
            self.batch.add_urgent();
            return rail.order_followed(verb, &self.buffers);
        }
        rail.order(verb, &self.buffers)
    }

    /// A buffer of the pool with these bytes, where there is room for one. Copies of what we send take a small part of the
    /// pool only: the rest is lent to peers, who may use it at any time.
    fn copy_of(&mut self, from: Slice) -> Option<BufferId> {
        let lent = self.pool.lent_bytes() as u64;
        if lent + from.len > self.pool.budget_bytes() as u64 / COPIES_PART {
            return None;
        }
        let buffer = self.pool.take(from.len as usize)?;
        let buffer = self.buffers.insert(Memory::pooled(buffer)).ok()?;
        self.buffers.copy(from, Slice { buffer, offset: 0, len: from.len });
        Some(buffer)
    }

    /// A frame from this endpoint to itself: placed like any other, and copied.
    #[cold]
    fn loop_frame(&mut self) {
        let FrameOrder { header, payload, token, .. } = *self.core.frame();
        if is_gone(payload, &self.buffers) {
            return self.core.ordered(token, Ordered::Refused(Fault::BadKey));
        }
        let Engine { core, buffers, pool, .. } = self;
        let mut events = RailEvents { core, buffers, pool };
        match events.place(LOOP_LINK, header.as_bytes(), payload.len as u32) {
            Placement::Into { slice, token } => match events.buffers.try_copy(payload, slice) {
                Ok(_) => events.received(LOOP_LINK, token),
                Err(_) => events.unplaced(LOOP_LINK, token),
            },
            Placement::Drop => {}
            Placement::Stage { .. } => unreachable!("turned into a place by `RailEvents`"),
            Placement::Violation(_) => self.core.link_down(LOOP_LINK, Fault::Protocol),
        }
        self.core.ordered(token, Ordered::Released);
    }

    /// A session ended, or was not reached.
    fn peer_down(&mut self, peer: PeerId, fault: Fault) {
        if let Some(why) = self.why_unreachable(peer) {
            notice::tell(&why);
        }
        self.peer_event(PeerEvent::Down(peer, fault));
    }

    /// A session changed.
    pub(super) fn peer_event(&mut self, event: PeerEvent) {
        self.peer_events.push(event);
        self.signals.count_peer_event();
        self.contexts.ring(News::PeerEvents);
    }

    /// Something happened to the paths of a peer.
    #[cold]
    fn path_event(&mut self, event: PathEvent) {
        self.path_events.push(event);
        self.signals.count_path_event();
        self.contexts.ring(News::PathEvents);
    }

    /// A peer told something by a word of exposed memory.
    fn raised(&mut self) {
        self.signals.count_raise();
        self.contexts.ring(News::Raises);
    }

    fn request(&mut self, peer: PeerId, session: u32, bits: u64, payload: Option<(BufferId, u32)>) {
        let bytes = payload.map_or(0, |(_, bytes)| bytes);
        let payload: Option<PoolBuffer> = payload
            .and_then(|(buffer, _)| self.buffers.remove(buffer))
            .and_then(Memory::into_pooled);
        let origin = self.core.peer_origin(peer).unwrap_or_default();
        let request = Request { peer, origin, session, bits, payload, bytes, charged: true };
        self.requests.push(request);
        self.contexts.ring(News::Requests);
    }
}

/// Whether memory of a payload has gone away.
#[inline(always)]
fn is_gone(payload: Slice, buffers: &BufferTable) -> bool {
    buffers.is_fleeting(payload) && !buffers.is_there(payload)
}

/// Gives a frame with its checksums to a rail. Refused with `BadKey` where memory of its payload is gone.
#[inline(always)]
fn hand_over(
    rail: &mut dyn Rail,
    frame: &mut FrameOrder,
    checked: Checked,
    followed: bool,
    buffers: &BufferTable,
) -> Ordered {
    // The peer is told what is not there, while nothing of the frame has left.
    if is_gone(frame.payload, buffers) {
        return Ordered::Refused(Fault::BadKey);
    }
    checked.seal(frame, buffers);
    if followed { rail.send_followed(frame, buffers) } else { rail.send(frame, buffers) }
}
