//! Takes spans in, each once, and acknowledges them.

use ropewalk_base::error::Fault;
use ropewalk_base::limits::SPAN_BYTES_MAX;
use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{LinkId, Placement, Token};
use ropewalk_wire::frame::{Arrived, Body, Envelope, FLAG_REDUNDANT, Prefix, RECORDS};

use super::KEPT_BYTES_MAX;
use super::window::{Arrival, Try};
use crate::api::{PeerId, Plant};
use crate::engine::Core;
use crate::incoming::Incoming;

const NO_MACHINE: &str = "a frame about paths names a side that there is not";
/// How long an acknowledgement may be delayed. A promise to the sender's timer.
const ACKNOWLEDGE_AFTER: std::time::Duration = std::time::Duration::from_millis(1);

impl Core {
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
        if let Some(session) = self.peers.session_mut(id) {
            session.paths.heard(link);
        }
        if span == 0 {
            return self.arrive_beside(link, id, prefix, body);
        }
        if payload_bytes > SPAN_BYTES_MAX {
            return self.violation("a span over the limit");
        }
        let of = Try::of(prefix, link);
        let is_redundant = prefix.flags.get() & FLAG_REDUNDANT != 0;
        self.arrive_acknowledged(id, link, prefix.acknowledged.get());
        let Some(reliable) = self.reliable_mut(id) else { return Placement::Drop };
        reliable.hear(link);
        reliable.answers_redundantly |= is_redundant;
        if payload_bytes > KEPT_BYTES_MAX
            && matches!(body, Arrived::Eager(_) | Arrived::Fragment(_))
        {
            reliable.awaited = span;
        }
        match reliable.window.arrive(of) {
            Arrival::New => {}
            Arrival::Again(incoming) => return self.place_again(link, id, prefix, incoming),
            Arrival::Elsewhere(slot) => return self.take_over(link, id, prefix, slot),
            Arrival::Known if self.config.plant == Plant::DuplicatesTaken => {}
            Arrival::Known
                if match (self.config.plant, &body) {
                    (Plant::PutTwice, Arrived::Put(_))
                    | (Plant::AtomicTwice, Arrived::Update(_) | Arrived::Atomic(_)) => true,
                    (Plant::RecordsTwice, Arrived::Update(it)) => it.flags.get() & RECORDS != 0,
                    _ => false,
                } => {}
            Arrival::Known => {
                self.counters.duplicates_dropped += 1;
                // One of two copies comes in vain, and asks for nothing.
                if !is_redundant {
                    self.acknowledge_soon(id, true);
                }
                return Placement::Drop;
            }
            Arrival::Unwanted => {
                self.counters.duplicates_dropped += 1;
                return Placement::Drop;
            }
        }
        let placement = self.dispatch(link, id, prefix, body, payload_bytes);
        match placement {
            // Its payload comes again, since there was no room for it.
            Placement::Drop if self.awaits(id, span) => {}
            Placement::Drop => self.span_placed(id, span),
            Placement::Into { token, .. } | Placement::Stage { token, .. } => {
                self.span_begun(id, of, token);
            }
            Placement::Violation(_) => {}
        }
        placement
    }

    /// A frame of a session with spans that is none: it is lost with its link.
    fn arrive_beside(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: Arrived<'_>,
    ) -> Placement {
        match body {
            Arrived::Ack(ack) => {
                self.arrive_ack(id, link, ack);
                Placement::Drop
            }
            Arrived::Probe(probe) => {
                self.arrive_probe(id, link, *probe);
                Placement::Drop
            }
            Arrived::Suspect(word) => {
                self.arrive_suspect(id, link, *word);
                Placement::Drop
            }
            Arrived::Prove(prove) => self.place_prove(id, link, prefix, prove),
            Arrived::Load(_) | Arrived::LoadAnswer(_) => {
                if self.arrive_of_paths(id, link, body) {
                    return Placement::Drop;
                }
                self.violation(NO_MACHINE)
            }
            Arrived::Goodbye | Arrived::CloseIdle | Arrived::KeepOpen => {
                self.dispatch(link, id, prefix, body, prefix.payload_bytes.get())
            }
            _ => self.violation("a frame with an effect has no span"),
        }
    }

    fn awaits(&mut self, id: PeerId, span: u64) -> bool {
        self.reliable_mut(id).is_some_and(|reliable| reliable.window.awaits(span))
    }

    /// The payload of a span is on the way to its place, or to a buffer of its own before that.
    fn span_begun(&mut self, id: PeerId, of: Try, token: Token) {
        let slot = SlotId::from_u64(token.0);
        if self.config.plant == Plant::PlacedAtStart {
            return self.span_placed(id, of.span);
        }
        let copy = self.incoming.get(slot).is_some_and(Incoming::is_copy);
        if let Some(reliable) = self.reliable_mut(id).filter(|_| !copy) {
            reliable.window.begin(of, slot);
        }
    }

    /// A span comes again whose placement broke off.
    fn place_again(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        mut incoming: Incoming,
    ) -> Placement {
        if incoming.payload_bytes != prefix.payload_bytes.get() {
            self.incoming_lost(incoming, Fault::PeerReset);
            return self.violation("a span came again with another length");
        }
        let slice = incoming.slice;
        if !incoming.is_checked_at_place(prefix) {
            return self.place_apart_first(link, id, prefix, incoming);
        }
        (incoming.link, incoming.broken_off) = (link, false);
        incoming.checksum = Incoming::checksum_of(prefix);
        match self.incoming.insert(incoming, self.placing_whole) {
            Ok(slot) if slice.buffer == Slice::NONE.buffer => {
                unreachable!("incoming {slot:?} had its buffer before it broke off")
            }
            Ok(slot) => {
                let token = Token(slot.to_u64());
                self.span_begun(id, Try::of(prefix, link), token);
                Placement::Into { slice, token }
            }
            Err(_) => Placement::Violation("more placements than a link can have"),
        }
    }

    /// A span took effect.
    pub(crate) fn span_placed(&mut self, id: PeerId, span: u64) {
        let Some(reliable) = self.reliable_mut(id) else {
            return;
        };
        if span == 0 {
            return;
        }
        let is_awaited = reliable.awaited == span;
        let now = reliable.window.place(span);
        while let Some(copy) = self.reliable_mut(id).and_then(|it| it.window.next_unneeded(span)) {
            self.drop_copy(copy);
        }
        self.acknowledge_soon(id, now || is_awaited);
    }

    fn acknowledge_soon(&mut self, id: PeerId, at_once: bool) {
        let due = self.now + ACKNOWLEDGE_AFTER;
        if at_once {
            return self.acknowledge_now(id);
        }
        if let Some(reliable) = self.reliable_mut(id) {
            reliable.window.acknowledge_by(due);
            self.wake_by(id, due);
        }
    }

    /// Tells the peer over this link which of its spans are here, where it awaits that.
    pub(crate) fn acknowledge_over(&mut self, id: PeerId, link: LinkId) {
        let Some(session) = self.peers.session_mut(id) else { return };
        let name = session.name();
        let Some(reliable) = session.reliable.as_mut() else { return };
        let body = Body::Ack(reliable.window.acknowledge(std::time::Duration::ZERO));
        let envelope = Envelope { session: name, ..Envelope::default() };
        self.emit_on(link, envelope, &body, None, Token::NONE);
    }

    /// Tells the peer which of its spans are here.
    pub(crate) fn acknowledge_now(&mut self, id: PeerId) {
        self.look_soon(id);
        let Some(session) = self.peers.session_mut(id) else { return };
        let Some(control) = session.paths.control() else { return };
        let name = session.name();
        let Some(reliable) = session.reliable.as_mut() else { return };
        // The first span since the last acknowledgement set the time.
        let since =
            reliable.window.acknowledge_at().map(|at| (self.now + ACKNOWLEDGE_AFTER).since(at));
        reliable.heard_before = None;
        let mut ack = reliable.window.acknowledge(since.unwrap_or_default());
        if self.config.plant == Plant::WindowOffByOne {
            ack.cumulative += 1;
        }
        let body = Body::Ack(ack);
        let envelope = Envelope { session: name, ..Envelope::default() };
        // Over the path of the newest span: the peer uses it. If that path may be broken in our direction, over another, too.
        let heard_over = reliable.heard_over.filter(|link| session.paths.is_up_over(*link));
        let link = heard_over.unwrap_or(control);
        let other = match session.paths.have_suspects() {
            true => Some(control).filter(|control| *control != link),
            false if reliable.answers_redundantly => {
                session.paths.beside(link, 0, &self.routes.controllers)
            }
            false => None,
        };
        self.emit_on(link, envelope, &body, None, Token::NONE);
        if let Some(other) = other {
            self.emit_on(other, envelope, &body, None, Token::NONE);
        }
    }
}
