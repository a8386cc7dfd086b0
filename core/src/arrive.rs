//! The way in: where a frame belongs, and what its payload brings about when it is there.
//!
//! Frames of a running session take the short way through [`Core::place`]; those that make a session,
//! or belong to none, go apart.

use ropewalk_base::error::Fault;
use ropewalk_base::limits::EAGER_BYTES_MAX;
use ropewalk_base::memory::{BufferId, Slice};
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{LinkId, Placement, Token};
use ropewalk_wire::frame::{self, Arrived, FrameError, Prefix, ShortHeader};

use crate::api::*;
use crate::engine::Core;
use crate::incoming::{Incoming, IncomingKind, OF_PUT, OF_RECEIVE};
use crate::operation::{Kind, ReceiveStage};
use crate::path::LinkStage;
use crate::session::Session;

const MALFORMED: &str = "the frame's header is malformed";

impl Core {
    /// Whether frames of this link carry checksums.
    pub fn needs_checksum(&self, link: LinkId) -> bool {
        link != LOOP_LINK && self.rails.of(link).is_none_or(|rail| !rail.intact)
    }

    /// A header whose checksum does not hold: a lossy rail loses the frame, another one its link.
    pub fn corrupt_header(&mut self, link: LinkId) -> Placement {
        self.counters.corrupt_dropped += 1;
        self.note_corrupt(link);
        let lossy = self.rails.of(link).is_some_and(|rail| !rail.reliable);
        if lossy { Placement::Drop } else { self.violation("a header's checksum does not hold") }
    }

    /// Decides the place of a frame's payload; a frame without payload takes effect at once.
    ///
    /// The header's checksum was verified by the driver where the rail needs one. After `Stage` the
    /// driver calls [`Core::staged`] with a buffer of the asked size.
    pub fn place(&mut self, link: LinkId, header: &[u8], payload_bytes: u32) -> Placement {
        let short = frame::decode_short(header);
        if let Some(short) = short
            && let Some(placement) = self.place_short(link, short, payload_bytes)
        {
            return placement;
        }
        let long = short.map(ShortHeader::expand);
        let placement = match &long {
            Some((prefix, body)) => {
                self.place_frame(link, prefix, Arrived::Eager(body), payload_bytes)
            }
            None => match frame::decode(header) {
                Ok((prefix, body)) => self.place_frame(link, prefix, body, payload_bytes),
                Err(FrameError::Version(_)) => {
                    self.malformed(link, "the peer speaks another version of the protocol")
                }
                Err(_) => self.malformed(link, MALFORMED),
            },
        };
        if matches!(placement, Placement::Violation(_)) {
            self.break_link(link);
        }
        placement
    }

    /// [`Core::place`] for a frame whose payload is here with it. What it answers is carried out at
    /// once: the payload is copied and [`Core::received`] called before anything else, so that a small
    /// message on its way to its receive needs no entry in a table.
    #[inline]
    pub fn place_whole(&mut self, link: LinkId, header: &[u8], payload_bytes: u32) -> Placement {
        self.placing_whole = true;
        let placement = self.place(link, header, payload_bytes);
        self.placing_whole = false;
        placement
    }

    /// The peer broke the protocol on this link.
    pub(crate) fn break_link(&mut self, link: LinkId) {
        if let Some(state) = self.links.get_mut(link) {
            state.broken = true;
        }
    }

    /// There is no buffer for a `Stage` placement: the answer for the rail.
    ///
    /// A peer cannot bring this about for another one, as long as the driver has staging memory for what
    /// is lent (`Config::eager_pool_bytes`) and some more for greetings, and gives the pool's memory up
    /// with the credit: then what is staged has credit, whose sum is bounded. Beyond that are links that
    /// are still greeting, with a short payload each, and the least windows of sessions that our own user
    /// asked for when the pool was lent.
    pub fn unstaged(&mut self, token: Token) -> Placement {
        if let Some(incoming) = self.incoming.remove(SlotId::from_u64(token.0)) {
            if incoming.is_dispensable() {
                return Placement::Drop;
            }
            if let IncomingKind::Apart { place } = incoming.kind {
                return self.place_at_once(place, incoming.checksum);
            }
            self.break_link(incoming.link);
            self.incoming_lost(incoming, Fault::PeerReset);
        }
        self.violation("the endpoint's staging memory is used up")
    }

    fn place_frame(
        &mut self,
        link: LinkId,
        prefix: &Prefix,
        body: Arrived<'_>,
        payload_bytes: u32,
    ) -> Placement {
        if prefix.payload_bytes.get() != payload_bytes {
            return self.malformed(link, MALFORMED);
        }
        // A session is up: its frames take the short way.
        if let Some(state) = self.links.get(link)
            && state.stage == LinkStage::Up
            && let Some(id) = state.peer
            && let Some(peer) = self.peers.get(id)
            && let Some(session) = peer.session.as_ref()
            && session.paths.is_up_over(link)
            && self.is_of(session, prefix)
            && !matches!(body, Arrived::Hello(_) | Arrived::Confirm | Arrived::Join(_))
        {
            if session.reliable.is_some() {
                return self.arrive_span(link, id, prefix, body, payload_bytes);
            }
            return self.dispatch(link, id, prefix, body, payload_bytes);
        }
        self.place_apart(link, prefix, body, payload_bytes)
    }

    /// Whether a frame belongs to this session.
    #[inline]
    fn is_of(&self, session: &Session, prefix: &Prefix) -> bool {
        session.is_named(prefix.session.get()) || self.config.plant == Plant::OldSessionTaken
    }

    /// The way of nearly all small messages: whole, expected, and matched by a posted receive that it
    /// fits. `None`, and nothing happened, for any other, which takes the long way.
    #[inline(always)]
    fn place_short(
        &mut self,
        link: LinkId,
        short: &ShortHeader,
        payload_bytes: u32,
    ) -> Option<Placement> {
        let state = self.links.get(link)?;
        let id = state.peer?;
        let peer = self.peers.get_mut(id)?;
        let channel = Channel::from_u8(short.channel).filter(|it| *it != Channel::Request)?;
        let (bytes, bits) = (u64::from(short.payload_bytes.get()), short.bits.get());
        let session = peer.session.as_mut()?;
        let usual = self.placing_whole
            && state.stage == LinkStage::Up
            && session.inline() == Some(link)
            && session.is_named(short.session.get())
            && short.payload_bytes.get() == payload_bytes
            && short.acknowledge == Level::Buffered as u8
            && short.message.get() == session.receive_next[channel as usize]
            && session.lent.has_eager_room(bytes);
        if !usual || bytes == 0 || bytes > u64::from(EAGER_BYTES_MAX) {
            return None;
        }
        let receive = self.matching.first_receive(channel, id, bits)?;
        let operation = self.operations.get_mut(receive.operation)?;
        let Kind::Receive(state) = &mut operation.kind else { return None };
        let into = state.receive.into;
        if bytes > into.len {
            return None;
        }
        self.matching.take(receive);
        session.receive_next[channel as usize] += 1;
        (state.from, state.bits, state.message_bytes) = (Some(id), bits, bytes);
        state.stage = ReceiveStage::Placing;
        if session.lent.pass_eager(bytes) {
            self.tell_credit(id);
        }
        let token = Token(receive.operation.0.to_u64() | OF_RECEIVE);
        Some(Placement::Into { slice: into.part(0, bytes), token })
    }

    #[cold]
    fn malformed(&mut self, link: LinkId, why: &'static str) -> Placement {
        match self.links.get(link) {
            Some(state) if state.stage != LinkStage::Closing => self.violation(why),
            _ => Placement::Drop,
        }
    }

    /// A frame that makes a session, or belongs to none that runs over this link.
    #[cold]
    fn place_apart(
        &mut self,
        link: LinkId,
        prefix: &Prefix,
        body: Arrived<'_>,
        payload_bytes: u32,
    ) -> Placement {
        let Some(state) = self.links.get(link) else { return Placement::Drop };
        let stage = state.stage;
        if stage == LinkStage::Closing {
            return Placement::Drop;
        }
        if let Arrived::Hello(hello) = body {
            return self.arrive_hello(link, prefix, *hello, payload_bytes);
        }
        if let Arrived::Join(join) = body {
            return self.arrive_join(link, prefix, join);
        }
        if let (Arrived::Probe(_), Some(id)) = (&body, state.joins) {
            return self.arrive_welcome(link, id, prefix);
        }
        let Some(id) = state.peer else {
            return self.violation("the first frame of a link is not a greeting");
        };
        if matches!(body, Arrived::Confirm) {
            return self.arrive_confirm(link, id);
        }
        if stage == LinkStage::Agreed && self.is_confirmed_by(link, prefix.session.get()) {
            self.begin_session(id, link);
        }
        // The session may have begun with another record.
        let id = self.links.get(link).and_then(|state| state.peer).unwrap_or(id);
        let session = self.peers.session(id).filter(|session| session.paths.carries(link));
        let Some(session) = session else {
            // A frame of a session that ended meanwhile, or before the link was confirmed.
            return Placement::Drop;
        };
        if !self.is_of(session, prefix) {
            return self.violation("the frame belongs to another session");
        }
        if session.reliable.is_some() {
            return self.arrive_span(link, id, prefix, body, payload_bytes);
        }
        self.dispatch(link, id, prefix, body, payload_bytes)
    }

    /// A frame of a running session, in a mode-independent way.
    #[inline(always)]
    pub(crate) fn dispatch(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: Arrived<'_>,
        payload_bytes: u32,
    ) -> Placement {
        if let Arrived::Eager(eager) = body {
            return self.arrive_eager(link, id, prefix, eager);
        }
        if let Arrived::Fragment(fragment) = body {
            return self.arrive_fragment(link, id, prefix, fragment);
        }
        if payload_bytes > 0 && !body.takes_payload() {
            return self.violation("a control frame has a payload");
        }
        match body {
            Arrived::Data(data) => return self.arrive_data(link, id, prefix, *data),
            Arrived::Put(put) => return self.arrive_put(link, id, prefix, *put),
            Arrived::Update(update) => return self.arrive_update(link, id, prefix, *update),
            Arrived::Strided(strided) => return self.arrive_strided(link, id, prefix, strided),
            Arrived::Layout(layout) => {
                if !self.arrive_layout(id, layout) {
                    return self.violation("a layout of no datatype, or too many");
                }
            }
            Arrived::Reply(reply) if payload_bytes > 0 => {
                return self.arrive_elements(link, id, prefix, *reply);
            }
            Arrived::Atomic(atomic) => {
                if !self.arrive_atomic(id, atomic) {
                    return self.violation("an operation out of its turn");
                }
            }
            Arrived::Immediate(it) => return self.arrive_immediate(link, id, prefix, it),
            Arrived::Notify(notify) => return self.arrive_notify(link, id, prefix, notify),
            Arrived::Lock(lock) if payload_bytes > 0 => {
                return self.arrive_locked_put(link, id, prefix, lock);
            }
            Arrived::Lock(lock) => {
                if !self.arrive_lock(id, lock) {
                    return self.violation("a lock that there is not");
                }
            }
            Arrived::Rts(announce) => return self.arrive_rts(link, id, *announce),
            Arrived::Get(get) => self.arrive_get(id, *get),
            Arrived::Result(result) => self.arrive_result(id, *result),
            Arrived::Fin(finish) => self.arrive_fin(id, *finish),
            Arrived::Abort(abort) => self.arrive_abort(id, *abort),
            Arrived::Credit(credit) => self.arrive_credit(id, prefix.span.get(), *credit),
            Arrived::Reply(_) | Arrived::Applied(_) | Arrived::GiveUp(_) => {
                if !self.arrive_mark(id, body) {
                    return self.violation("a number of an operation that there is not");
                }
            }
            Arrived::Ack(_) => {}
            Arrived::Key(key) => self.arrive_key(link, id, key),
            Arrived::Probe(_) | Arrived::Suspect(_) => {}
            Arrived::Migrate(_) | Arrived::Withdraw(_) => {
                if !self.arrive_of_paths(id, link, body) {
                    return self.violation("a frame about paths names a side that there is not");
                }
            }
            Arrived::Load(_) | Arrived::LoadAnswer(_) | Arrived::Prove(_) => {
                return self.violation("a frame that belongs to a path is no span");
            }
            Arrived::Goodbye => self.arrive_goodbye(link),
            Arrived::CloseIdle => return self.arrive_close_idle(link, id),
            Arrived::KeepOpen => return self.arrive_keep_open(link, id),
            Arrived::Hello(_)
            | Arrived::Confirm
            | Arrived::Join(_)
            | Arrived::Eager(_)
            | Arrived::Fragment(_) => unreachable!("dealt with before"),
        }
        Placement::Drop
    }

    /// Counts a violation and closes the link that it came on (the rail does, at this answer).
    #[cold]
    pub(crate) fn violation(&mut self, why: &'static str) -> Placement {
        self.counters.violations += 1;
        Placement::Violation(why)
    }

    /// Notes a placement and answers with it.
    #[inline]
    pub(crate) fn place_into(
        &mut self,
        link: LinkId,
        peer: Option<PeerId>,
        prefix: &Prefix,
        slice: Slice,
        kind: IncomingKind,
    ) -> Placement {
        let payload_bytes = prefix.payload_bytes.get();
        let (span, session) = (prefix.span.get(), prefix.session.get());
        let mut incoming = Incoming {
            link,
            peer,
            session,
            payload_bytes,
            kind,
            slice,
            checksum: Incoming::checksum_of(prefix),
            span,
            broken_off: false,
        };
        if slice.buffer != Slice::NONE.buffer && !incoming.is_checked_at_place(prefix) {
            // A payload that is cut off cannot be checked; one that fits is checked as a whole.
            incoming.checksum = None;
            if let Some(id) = peer.filter(|_| span != 0) {
                return self.place_apart_first(link, id, prefix, incoming);
            }
        }
        match self.incoming.insert(incoming, self.placing_whole) {
            Ok(slot) if slice.buffer == Slice::NONE.buffer => {
                Placement::Stage { bytes: payload_bytes, token: Token(slot.to_u64()) }
            }
            Ok(slot) => Placement::Into { slice, token: Token(slot.to_u64()) },
            Err(_) => Placement::Violation("more placements than a link can have"),
        }
    }

    /// The buffer for a `Stage` placement.
    pub fn staged(&mut self, token: Token, buffer: BufferId, bytes: u32) -> Slice {
        let whole = Slice { buffer, offset: 0, len: u64::from(bytes) };
        let slot = SlotId::from_u64(token.0);
        let Some(incoming) = self.incoming.get(slot) else { return whole };
        let kind = incoming.kind;
        let slice = match kind {
            IncomingKind::Fragment { assembly, .. } => {
                let first = incoming.payload_bytes;
                self.assembly_staged(assembly, whole, first)
            }
            _ => whole,
        };
        if let Some(incoming) = self.incoming.get_mut(slot) {
            incoming.slice = slice;
        }
        if let IncomingKind::Copy { attempt } = kind {
            self.copy_staged(slot, attempt);
        }
        slice
    }

    /// The work that the driver does on received bytes before it calls [`Core::received`], if there is any.
    #[inline]
    pub fn wants(&self, token: Token) -> Option<Wants> {
        if token.0 & OF_RECEIVE != 0 {
            return None;
        }
        let incoming = self.incoming.get(SlotId::from_u64(token.0))?;
        let (slice, greeting) = (incoming.slice, matches!(incoming.kind, IncomingKind::Hello));
        (greeting || incoming.checksum.is_some()).then_some(Wants {
            slice,
            checksum: incoming.checksum,
            greeting,
        })
    }

    /// A payload arrived; `bytes` where [`Core::wants`] asked for them.
    #[inline]
    pub fn received(&mut self, token: Token, bytes: &[u8]) {
        if token.0 & OF_RECEIVE != 0 {
            if token == OF_PUT {
                return self.put_is_here();
            }
            let receive = SlotId::from_u64(token.0 & !OF_RECEIVE);
            return self.receive_done(OperationId(receive));
        }
        self.incoming_placed(token, bytes);
    }

    fn incoming_placed(&mut self, token: Token, bytes: &[u8]) {
        let Some(incoming) = self.incoming.remove(SlotId::from_u64(token.0)) else { return };
        if let IncomingKind::Copy { attempt } = incoming.kind {
            return self.copy_received(attempt, &incoming);
        }
        if let IncomingKind::Apart { place } = incoming.kind {
            return self.apart_received(place, &incoming);
        }
        if let Some(peer) = incoming.peer
            && !self.peers.has_session(peer, incoming.session)
        {
            // Its session ended while its last bytes were on their way.
            return self.incoming_lost(incoming, Fault::PeerReset);
        }
        self.take_effect(incoming, bytes);
    }

    /// A payload is at its place, in a session that runs.
    pub(crate) fn take_effect(&mut self, incoming: Incoming, bytes: &[u8]) {
        if let Some(peer) = incoming.peer.filter(|_| incoming.span != 0) {
            self.span_placed(peer, incoming.span);
        }
        match incoming.kind {
            IncomingKind::Hello => {
                self.outputs.push(Output::Release(incoming.slice.buffer));
                self.greeted(incoming.link, bytes);
            }
            IncomingKind::Eager { operation, .. } => self.eager_received(operation, &incoming),
            IncomingKind::Unmatched { message } => self.staged_received(message, incoming.slice),
            IncomingKind::Request { bits, bytes, message, asked } => {
                if let Some(peer) = incoming.peer {
                    self.finish_request(peer, message, asked, bytes.into());
                }
                self.request_received(incoming.peer, incoming.session, bits, bytes, incoming.slice);
            }
            IncomingKind::Held { channel, message } => {
                self.held_received(incoming.peer, channel, message, incoming.slice);
            }
            IncomingKind::Fragment { assembly, operation } => {
                self.fragment_received(assembly, operation, incoming.payload_bytes);
            }
            IncomingKind::Data { operation, bytes } => self.data_received(operation, bytes),
            IncomingKind::Update(frame) => self.update_received(&incoming, frame),
            IncomingKind::LockedPut { region, cookie } => {
                let Incoming { peer, session, .. } = incoming;
                self.locked_put_over(peer, session, (region, cookie), Ok(()));
            }
            IncomingKind::Elements { operation, number, applied } => {
                if let Some(peer) = incoming.peer {
                    self.elements_received(peer, number, applied);
                }
                self.release_memory(operation);
            }
            IncomingKind::Put(put) => {
                self.put_received(incoming.peer, put, incoming.payload_bytes);
            }
            IncomingKind::Prove { body } => {
                self.outputs.push(Output::Release(incoming.slice.buffer));
                if let Some(peer) = incoming.peer {
                    self.arrive_prove(peer, incoming.link, body, incoming.payload_bytes);
                }
            }
            IncomingKind::Copy { .. } | IncomingKind::Apart { .. } => {
                unreachable!("a copy has no effect but through its place")
            }
        }
    }

    /// A payload arrived, but its checksum does not hold: it comes again, or the link is closed.
    pub fn received_corrupt(&mut self, token: Token) {
        let slot = SlotId::from_u64(token.0);
        self.counters.corrupt_dropped += 1;
        let Some(incoming) = self.incoming.get(slot) else { return };
        let (link, peer, span) = (incoming.link, incoming.peer, incoming.span);
        self.note_corrupt(link);
        let session = peer.and_then(|peer| self.peers.session(peer));
        let repairable = session.is_some_and(|session| session.reliable.is_some());
        if !repairable {
            self.incoming.list(slot);
            return self.close_link(link);
        }
        if let Some(incoming) = self.incoming.remove(slot) {
            self.undo_incoming(incoming, Fault::PeerReset);
        }
        if !self.is_lossy(link) {
            self.suspect_spoiled(link, span);
        }
    }
}
