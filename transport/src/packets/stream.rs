//! The stream: records cut into packets, and packets made into records again.
//!
//! A record is a frame, or what machines tell each other reliably. Its header is never cut. A packet
//! holds the bytes of records that follow each other, and says which record, and which byte of it, is the first.
//!
//! Invariant: records are delivered in order; the bytes of the one whose place is known may come past a
//! hole, those of later ones wait for it.

use std::hash::Hash;

use ropewalk_base::error::Fault;
use ropewalk_base::limits::HEADER_BYTES_MAX;
use ropewalk_base::memory::Slice;
use ropewalk_base::shared::Leaving;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{FrameOrder, Header, Ordered, Placement, Token, Urgency};
use ropewalk_wire::packets::{
    self, AckBody, Kind, OfferRecord, RecordKind, RecordPrefix, StreamBody, TakenRecord,
    WithdrawnRecord,
};
use zerocopy::{FromBytes, IntoBytes};

use super::link::{Link, Stage};
use super::machine::{Event, Machine};
use super::outgoing::{Cutting, FULL_MAX, Queued, Sent};
use super::receiving::Arrival;
use crate::driver::Driven;
use crate::memory::{APART_BYTES_MIN, Bytes, Payload, SPARE_MAX, recycle};
use crate::protocol::LinkEvents;

/// Bytes of early packets of one link beside which another one has room: where all links together have fewer than so
/// many, and where they have them.
const EARLY_BYTES_EACH: usize = 2 << 20;
const EARLY_BYTES_ALL: usize = 32 << 20;
const EARLY_BYTES_CROWDED: usize = 4096;

/// A packet that came before its turn.
#[derive(Debug)]
pub(super) struct Early {
    number: u32,
    record: u32,
    offset: u32,
    /// Bytes that are at their place already, and what follows them.
    placed: usize,
    rest: Vec<u8>,
}

/// A record of which some is here.
#[derive(Debug)]
pub(super) struct Incoming {
    header_bytes: usize,
    total: usize,
    done: usize,
    place: Option<(Slice, Token)>,
    /// Some of the place has gone away.
    is_gone: bool,
}

impl<S> Link<S> {
    /// Bytes of records in a packet.
    fn room(&self) -> usize {
        usize::from(self.packet_bytes) - packets::overhead(Kind::Stream)
    }
}

impl<S: Copy + Eq + Hash + std::fmt::Debug> Machine<S> {
    /// Takes a frame, as a rail does.
    pub fn send(&mut self, frame: &FrameOrder, memory: &dyn Bytes) -> Ordered {
        let id = frame.link.slot;
        let Some(state) = self.links.get_mut(id) else { return Ordered::Refused(Fault::PeerReset) };
        if !state.is_up() {
            return Ordered::Refused(Fault::Closed);
        }
        self.counters.frames_sent += 1;
        let payload = Payload::Held(frame.payload);
        let queued = Queued { header: frame.header, payload, token: frame.token };
        let held = frame.payload.len > 0;
        let first = state.out.is_cut();
        state.out.push(queued, frame.urgency, self.driver.now);
        if state.out.overflown {
            // Told with the link's end.
            self.end(id, Fault::PeerReset);
            return if held { Ordered::Pending } else { Ordered::Released };
        }
        if first {
            self.cut(id, memory, true);
            if self.links.get(id).is_none() {
                // Told with the link's end, too.
                return if held { Ordered::Pending } else { Ordered::Released };
            }
        }
        self.touch(id);
        let waits = self.links.get(id).is_some_and(|state| !state.out.is_cut());
        if held && waits { Ordered::Pending } else { Ordered::Released }
    }

    /// Sends a record of the machine's own.
    pub(super) fn tell(&mut self, id: SlotId, record: &[u8]) {
        let Some(state) = self.links.get_mut(id) else { return };
        let header = Header::new(record);
        let payload = Payload::Own(Vec::new());
        let queued = Queued { header, payload, token: Token::NONE };
        state.out.push(queued, Urgency::Urgent, self.driver.now);
        if state.out.overflown {
            // A peer that makes us answer and does not read.
            return self.end(id, Fault::PeerReset);
        }
        self.touch(id);
    }

    /// Nothing more is ordered on this link.
    pub(super) fn close(&mut self, id: SlotId) -> Ordered {
        let Some(state) = self.links.get_mut(id) else { return Ordered::Released };
        match state.stage {
            Stage::Up => {
                state.stage = Stage::Closing;
                // After everything else, bulk included.
                let prefix = prefix_of(RecordKind::Bye, size_of::<RecordPrefix>());
                let header = Header::new(prefix.as_bytes());
                let payload = Payload::Own(Vec::new());
                state.out.bulk.push_back(Queued { header, payload, token: Token::NONE });
                state.out.hurry();
                // Nothing is written to memory here any more: what was under way may go another way by now.
                let takings: Vec<SlotId> = state.takings.drain().map(|(_, it)| it).collect();
                takings.into_iter().for_each(|reading| self.end_taking(reading));
                self.note_closing(id);
                self.touch(id);
            }
            Stage::Closing => {}
            Stage::Calling { .. } | Stage::Answered { .. } => self.end(id, Fault::Closed),
        }
        Ordered::Released
    }

    /// Lets go of a frame's payload; bytes that have not left go from a copy.
    pub(super) fn detach(
        &mut self,
        id: SlotId,
        token: Token,
        later: Token,
        memory: &dyn Bytes,
    ) -> Ordered {
        let refused = Ordered::Refused(Fault::Invalid);
        let Some(state) = self.links.get_mut(id) else { return refused };
        let Some(queued) = state.out.find(token).filter(|_| token != Token::NONE) else {
            return refused;
        };
        let Payload::Held(slice) = queued.payload else { return refused };
        queued.payload = Payload::Own(Payload::Held(slice).into_bytes(memory));
        queued.token = later;
        Ordered::Released
    }

    /// Forgets a frame, or lets go of its payload where its record has begun.
    pub(super) fn skip(&mut self, id: SlotId, token: Token, memory: &dyn Bytes) -> Ordered {
        let state = self.links.get_mut(id).filter(|_| token != Token::NONE);
        if state.is_some_and(|state| state.out.forget(token)) {
            return Ordered::Released;
        }
        self.detach(id, token, Token::NONE, memory)
    }

    /// Gives up the place of a payload that has not arrived completely.
    pub(super) fn unplace(&mut self, id: SlotId, token: Token) -> Ordered {
        let incoming = self.links.get_mut(id).and_then(|state| state.incoming.as_mut());
        let place = incoming.map(|incoming| &mut incoming.place);
        match place {
            Some(place @ Some(_)) if place.is_some_and(|(_, other)| other == token) => {
                *place = None;
                Ordered::Released
            }
            _ => Ordered::Refused(Fault::Invalid),
        }
    }

    /// Cuts all that waits, for packets in clear. A greeting is short.
    pub(super) fn cut_all(&mut self, id: SlotId, memory: &dyn Bytes) {
        self.cut_up_to(id, memory, false, usize::MAX);
        let Some(state) = self.links.get_mut(id) else { return };
        state.out.end_plain();
        // The peer takes packets in clear up to the one that ends its greeting. What only asked for a sign of life behind it
        // goes again under the seal.
        let greeting = state.sending.contents_mut().filter(|sent| !sent.bytes.is_empty()).count();
        let mut seen = 0;
        for sent in state.sending.contents_mut() {
            sent.is_plain = seen < greeting;
            seen += usize::from(!sent.bytes.is_empty());
        }
    }

    fn cut(&mut self, id: SlotId, memory: &dyn Bytes, at_once: bool) {
        self.cut_up_to(id, memory, at_once, FULL_MAX);
    }

    /// Cuts records into packets, as long as there is room for these. `at_once`: within the order itself,
    /// where the first record's outcome is its answer.
    fn cut_up_to(&mut self, id: SlotId, memory: &dyn Bytes, at_once: bool, most: usize) {
        loop {
            let buffer = self.buffer();
            let Some(state) = self.links.get_mut(id) else { return };
            let room = state.room();
            let out = &mut state.out;
            if out.full.len() >= most {
                return self.recycle(buffer);
            }
            if out.current.is_none() {
                let Some(next) = out.urgent.pop_front().or_else(|| out.bulk.pop_front()) else {
                    return self.recycle(buffer);
                };
                if next.header.as_bytes().first() == Some(&(RecordKind::Taken as u8)) {
                    state.listed.untold -= 1;
                    self.untold_all -= 1;
                }
                out.begin(&next, room);
                out.current = Some(Cutting { queued: next, begun: false, done: 0 });
            }
            let spare = out.append(buffer, room, memory);
            if let Some(spare) = spare {
                self.recycle(spare);
            }
            let Some(state) = self.links.get_mut(id) else { return };
            if state.out.is_spoiled {
                return self.end(id, Fault::PeerReset);
            }
            let current = &mut state.out.current;
            if let Some(Cutting { queued, .. }) = current.take_if(|it| it.is_done()) {
                state.out.next_record = state.out.next_record.wrapping_add(1);
                let held = queued.payload.len() > 0;
                if held && !at_once && queued.token != Token::NONE {
                    self.driver.tell(Event::Ended { token: queued.token, outcome: Ok(()) });
                }
            }
        }
    }

    /// The next packet of the stream: one that was lost, or a new one.
    pub(super) fn next_stream(
        &mut self,
        id: SlotId,
        memory: &dyn Bytes,
        out: &mut [u8],
    ) -> Option<(Leaving, bool)> {
        let (now, route) = (self.driver.now, self.route(id)?);
        let state = self.links.get_mut(id)?;
        // The content is borrowed from the window, which the acknowledgement is not part of.
        let Link { sending, receiving, sent_again, packets, secret, seal, .. } = state;
        let plain_secret = seal.sealed().map_or(*secret, |sealed| sealed.plain_secret);
        let secret = |sent: &Sent| if sent.is_plain { plain_secret } else { *secret };
        if let Some((number, sent)) = sending.again(now) {
            let ack = receiving.tell(now).into();
            self.counters.resent += 1;
            *sent_again += 1;
            *packets += 1;
            let leaving = write(out, route, ack, (number, secret(sent)), sent);
            if leaving.kept.is_none() {
                self.counters.bytes_copied += u64::from(sent.payload_bytes);
            }
            return Some((leaving, sent.is_plain));
        }
        if !state.sending.has_room() {
            return None;
        }
        if state.receiving.due() <= now || state.probes {
            // Something goes in any case: an acknowledgement, or a question.
            state.out.hurry_if_any();
        }
        if !state.out.is_empty() && !state.out.is_due(now) {
            return None;
        }
        self.cut(id, memory, false);
        let state = self.links.get_mut(id)?;
        let probes = std::mem::take(&mut state.probes);
        let sent = state.out.next(probes)?;
        let ack = state.receiving.tell(now).into();
        let number = state.sending.next_number();
        let secret = if sent.is_plain { plain_secret } else { state.secret };
        let is_plain = sent.is_plain;
        let leaving = write(out, route, ack, (number, secret), &sent);
        if leaving.kept.is_none() {
            self.counters.bytes_copied += u64::from(sent.payload_bytes);
        }
        state.sending.push(sent, now);
        state.packets += 1;
        Some((leaving, is_plain))
    }

    /// The other side says what it has. False where that was never sent, so that somebody else says it.
    pub(super) fn acknowledged(&mut self, id: SlotId, ack: &AckBody) -> bool {
        let now = self.driver.now;
        let Some(state) = self.links.get_mut(id) else { return false };
        let delay = ack.delay();
        if ack.again != 0 {
            state.sending.doubled(ack.again);
        }
        let spare = &mut self.spare;
        let delivered = &mut state.delivered_bytes;
        let mut ended = |sent: Sent| {
            *delivered += sent.bytes.len() as u64;
            recycle(spare, SPARE_MAX, sent.bytes);
        };
        let (next, early) = (ack.next.get(), ack.early.get());
        if state.sending.acknowledged(next, early, delay, now, &mut ended).is_err() {
            self.counters.never_sent += 1;
            return false;
        }
        if state.stage == Stage::Closing && state.out.is_empty() && state.sending.is_empty() {
            self.end(id, Fault::Closed);
        }
        true
    }

    /// A packet of the stream came.
    pub(super) fn streamed(
        &mut self,
        id: SlotId,
        body: &StreamBody,
        bytes: &[u8],
        above: &mut dyn LinkEvents<S>,
    ) {
        if !self.acknowledged(id, &body.ack) {
            return;
        }
        let (now, number) = (self.driver.now, body.number.get());
        let Some(state) = self.links.get_mut(id) else { return };
        self.their_secret = body.secret.get();
        let (record, offset) = (body.record.get(), body.offset.get());
        match state.receiving.look(number) {
            Arrival::Next => {
                state.receiving.taken(number, now);
                let packet = Early { number, record, offset, placed: 0, rest: Vec::new() };
                self.consume(id, &packet, bytes, above);
                self.consume_early(id, number, above);
            }
            // A greeting is a few packets, and they go again. Nobody else's are kept for it.
            Arrival::Early if state.is_undecided() => self.counters.too_early += 1,
            Arrival::Early => {
                self.counters.early += 1;
                let room = match self.early_bytes < EARLY_BYTES_ALL {
                    true => EARLY_BYTES_EACH,
                    false => EARLY_BYTES_CROWDED,
                };
                match state.take_early(number, record, offset, bytes, above, room, now) {
                    Some(kept) => {
                        self.early_bytes += kept;
                        self.counters.bytes_copied += kept as u64;
                    }
                    None => self.counters.beyond += 1,
                }
            }
            Arrival::Again => {
                self.counters.doubled += 1;
                state.receiving.came_again(number, now);
            }
            Arrival::Beyond => self.counters.beyond += 1,
        }
    }

    /// The packets whose turn came with `number`.
    fn consume_early(&mut self, id: SlotId, number: u32, above: &mut dyn LinkEvents<S>) {
        let mut number = number.wrapping_add(1);
        while let Some(state) = self.links.get_mut(id)
            && number != state.receiving.next()
        {
            let Some(index) = state.early.iter().position(|early| early.number == number) else {
                return;
            };
            let early = state.early.swap_remove(index);
            self.early_bytes -= early.rest.len();
            self.consume(id, &early, &early.rest, above);
            number = number.wrapping_add(1);
        }
    }

    /// Bytes that are next in order: some that are placed already, and `bytes`.
    fn consume(
        &mut self,
        id: SlotId,
        packet: &Early,
        mut bytes: &[u8],
        above: &mut dyn LinkEvents<S>,
    ) {
        let Some(state) = self.links.get_mut(id) else { return };
        let done = state.incoming.as_ref().map_or(0, |incoming| incoming.done);
        if packet.record != state.record || packet.offset as usize != done {
            return self.violated(id);
        }
        self.advance(id, packet.placed, above);
        while !bytes.is_empty() {
            let Some(state) = self.links.get_mut(id) else { return };
            if let Some(incoming) = &mut state.incoming {
                let taken = bytes.len().min(incoming.total - incoming.done);
                incoming.write(incoming.done, &bytes[..taken], above);
                self.advance(id, taken, above);
                bytes = &bytes[taken..];
                continue;
            }
            if state.is_undecided() && !self.may_begin(id, above) {
                return;
            }
            match self.begin(id, bytes, above) {
                Some(taken) => bytes = &bytes[taken..],
                None => return,
            }
        }
    }

    /// So many more bytes of the incoming record are where they belong.
    fn advance(&mut self, id: SlotId, bytes: usize, above: &mut dyn LinkEvents<S>) {
        let Some(state) = self.links.get_mut(id) else { return };
        let Some(incoming) = &mut state.incoming else { return };
        incoming.done += bytes;
        if incoming.done < incoming.total {
            return;
        }
        let (place, is_gone) = (incoming.place, incoming.is_gone);
        state.incoming = None;
        state.record = state.record.wrapping_add(1);
        match place {
            Some((_, token)) if is_gone => above.unplaced(id, token),
            Some((_, token)) => above.received(id, token),
            None => {}
        }
    }

    /// A record begins; the number of its bytes that were taken. `None` if the link ended.
    fn begin(&mut self, id: SlotId, bytes: &[u8], above: &mut dyn LinkEvents<S>) -> Option<usize> {
        let lengths = RecordPrefix::ref_from_prefix(bytes).ok().map(|(prefix, _)| {
            (prefix.kind, usize::from(prefix.header_bytes), prefix.payload_bytes.get())
        });
        let legal = lengths.filter(|(_, header, payload)| {
            (size_of::<RecordPrefix>()..=HEADER_BYTES_MAX.min(bytes.len())).contains(header)
                && *payload <= ropewalk_base::limits::FRAME_PAYLOAD_BYTES_MAX
        });
        let Some((kind, header_bytes, payload_bytes)) = legal else {
            self.violated(id);
            return None;
        };
        let (header, rest) = bytes.split_at(header_bytes);
        if let Some(kind) = RecordKind::from_u8(kind) {
            let state = self.links.get_mut(id)?;
            state.record = state.record.wrapping_add(1);
            self.told(id, kind, header, payload_bytes);
            return self.links.get(id).map(|_| header_bytes);
        }
        self.counters.frames_received += 1;
        if payload_bytes > 0 && rest.len() >= payload_bytes as usize {
            let state = self.links.get_mut(id)?;
            state.record = state.record.wrapping_add(1);
            let payload = &rest[..payload_bytes as usize];
            if !above.arrived(id, header, payload) {
                self.violated(id);
                return None;
            }
            return Some(header_bytes + payload.len());
        }
        let place = match above.place(id, header, payload_bytes) {
            Placement::Into { slice, token } => Some((slice, token)),
            Placement::Drop => None,
            Placement::Violation(_) | Placement::Stage { .. } => {
                self.violated(id);
                return None;
            }
        };
        let total = header_bytes + payload_bytes as usize;
        let state = self.links.get_mut(id)?;
        let is_gone = false;
        state.incoming = Some(Incoming { header_bytes, total, done: 0, place, is_gone });
        self.advance(id, header_bytes, above);
        Some(header_bytes)
    }

    /// A record of the other machine's.
    fn told(&mut self, id: SlotId, kind: RecordKind, header: &[u8], payload_bytes: u32) {
        let offer = OfferRecord::ref_from_bytes(header).ok();
        let taken = TakenRecord::ref_from_bytes(header).ok();
        let withdrawn = WithdrawnRecord::ref_from_bytes(header).ok();
        match (kind, offer, taken, withdrawn) {
            _ if payload_bytes > 0 => self.violated(id),
            (RecordKind::Offer, Some(offer), ..) => self.offered(id, offer),
            (RecordKind::Taken, _, Some(taken), _) => self.offer_taken(id, taken),
            (RecordKind::Withdrawn, .., Some(it)) => self.offer_withdrawn(id, it.offer.get()),
            (RecordKind::Bye, ..) => self.left(id),
            _ => self.violated(id),
        }
    }

    /// The other side closes the link: it hears at once that we know.
    fn left(&mut self, id: SlotId) {
        let Some(state) = self.links.get(id) else { return };
        let fault = if state.stage == Stage::Closing { Fault::Closed } else { Fault::PeerReset };
        let (station, endpoint) = (state.station, state.endpoint);
        let tag = state.ours;
        self.send_away(station, endpoint, tag, self.their_secret);
        self.end(id, fault);
    }
}

impl Incoming {
    /// Writes bytes of the record, from `at` on, to the payload's place. None of them are the header's.
    fn write(&mut self, at: usize, bytes: &[u8], memory: &dyn Bytes) {
        if let Some((slice, _)) = self.place {
            let at = (at - self.header_bytes) as u64;
            // Bytes beyond the end of their place are cut.
            let at = at.min(slice.len);
            let fits = (slice.len - at).min(bytes.len() as u64);
            let is_there = memory.try_write(slice.part(at, fits), &bytes[..fits as usize]);
            self.is_gone |= !is_there;
        }
    }
}

impl<S> Link<S> {
    /// Bytes that wait for their turn.
    pub(super) fn early_bytes(&self) -> usize {
        self.early.iter().map(|early| early.rest.len()).sum()
    }

    /// Takes a packet that others are missing before; the number of bytes that were copied to wait for their turn.
    /// `None` if there is no room for it.
    #[expect(clippy::too_many_arguments, reason = "what a packet is, and where it goes")]
    fn take_early(
        &mut self,
        number: u32,
        record: u32,
        offset: u32,
        bytes: &[u8],
        memory: &dyn Bytes,
        room: usize,
        now: ropewalk_base::time::Time,
    ) -> Option<usize> {
        let at = offset as usize;
        let placed = match &mut self.incoming {
            Some(incoming)
                if record == self.record && (incoming.done..incoming.total).contains(&at) =>
            {
                let placed = bytes.len().min(incoming.total - at);
                incoming.write(at, &bytes[..placed], memory);
                placed
            }
            _ => 0,
        };
        let rest = &bytes[placed..];
        // One packet always has room: its acknowledgement behind a loss tells the peer of the loss.
        if self.early_bytes() >= room {
            return None;
        }
        let (kept, rest) = (rest.len(), rest.to_vec());
        self.early.push(Early { number, record, offset, placed, rest });
        self.receiving.taken(number, now);
        Some(kept)
    }
}

/// Writes a packet of the stream, all of it or what is around the bytes that are kept.
fn write(
    out: &mut [u8],
    route: packets::Route,
    ack: AckBody,
    (number, secret): (u32, u32),
    sent: &Sent,
) -> Leaving {
    let body = StreamBody {
        ack,
        number: number.into(),
        record: sent.record.into(),
        offset: sent.offset.into(),
        secret: secret.into(),
    };
    let (bytes, body) = (&sent.bytes, body.as_bytes());
    if bytes.len() >= APART_BYTES_MIN {
        let written = packets::seal_around(out, Kind::Stream, route, body, bytes);
        let kept = Some(bytes.part(0..bytes.len()));
        return Leaving { written, tail: packets::TAIL_BYTES, kept };
    }
    let fill = |to: &mut [u8]| to.copy_from_slice(bytes);
    Leaving::whole(packets::seal(out, Kind::Stream, route, body, bytes.len(), fill))
}

/// The beginning of a record of so many bytes.
pub(super) fn prefix_of(kind: RecordKind, bytes: usize) -> RecordPrefix {
    RecordPrefix {
        kind: kind as u8,
        header_bytes: bytes as u8,
        flags: 0.into(),
        payload_bytes: 0.into(),
    }
}
