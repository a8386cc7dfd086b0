//! Puts by frames: how they leave, and how a peer's arrive.

use ropewalk_base::error::Fault;
use ropewalk_base::limits::LOCKED_PUT_BYTES_MAX;
use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{LinkId, Placement, RemoteKey, RemoteLayout, Urgency};
use ropewalk_wire::frame::{
    FLAG_PAYLOAD_CHECKSUM, MORE, NotifyBody, Prefix, PutBody, RAISE_TO, TELL, key_to_wire,
};

use super::issued::{Class, Issue};
use super::numbers::Known;
use super::pieces::{Piece, Pieces};
use super::taken::{Come, Effect, Held, Notice};
use crate::api::*;
use crate::engine::Core;
use crate::incoming::{IncomingKind, OF_PUT};
use crate::orders::{Order, Payload};
use crate::streams::{Stream, StreamKind};

/// A put of so many bytes, in one piece, leaves before data frames that wait, where its path has few frames in flight: so
/// messages wait for 64 KiB of such puts at most.
const URGENT_BYTES_MAX: u64 = 4 << 10;

/// A put of which frames are still to be made: the piece that is next, and those behind it.
#[derive(Debug)]
pub(crate) struct PutStream {
    operation: OperationId,
    key: RemoteKey,
    /// The number of the piece that is next, and that of the last one.
    number: u64,
    last: u64,
    piece: Piece,
    /// Bytes of it for which frames were made.
    within: u32,
    rest: Pieces,
}

/// A put of one piece, which may leave at once.
#[derive(Debug, Clone, Copy)]
struct WholePut {
    operation: OperationId,
    peer: PeerId,
    key: RemoteKey,
    offset: u64,
    local: Slice,
    /// It is complete once it has left.
    is_local: bool,
    /// Others follow at once.
    more: bool,
    /// Of its frame: `MORE` where immediate data follows; `TELL` unless its user waits for nothing.
    flags: u16,
}

/// A frame of a put of a peer's.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PutFrame {
    pub region: SlotId,
    pub number: u64,
    part: Part,
}

/// The part of a put that a frame has, packed: many are kept while their bytes are on their way.
#[derive(Debug, Clone, Copy)]
struct Part {
    kind: PartKind,
    /// Of the frame: `TELL`, `MORE`, `RAISE_TO`.
    flags: u16,
    /// Bytes of the whole, or the word that grows.
    total: u32,
    /// By or to which that grows, or the data for whoever takes the events of the region.
    value: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PartKind {
    /// Some bytes, or all.
    Bytes,
    /// All of it; a word of the region grows then.
    Growth,
    /// All of it, with immediate data.
    Event,
}

const _: () = assert!(size_of::<PutFrame>() == 32, "as small as it was");

impl PutFrame {
    /// All of a put, with immediate data.
    pub(super) fn with_data(region: SlotId, number: u64, data: u64, flags: u16) -> PutFrame {
        let part = Part { kind: PartKind::Event, flags, total: 0, value: data };
        PutFrame { region, number, part }
    }
}

impl PutStream {
    pub fn operation(&self) -> OperationId {
        self.operation
    }

    /// The number of the first piece of which not all frames were made; `None` where all were.
    pub fn unmade(&self) -> Option<u64> {
        if self.within < self.piece.bytes {
            return Some(self.number);
        }
        self.rest.clone().next().map(|_| self.number + 1)
    }

    /// The header of the next frame with at most `len` bytes, and how many it has; moves on.
    pub fn next(&mut self, len: u64) -> (PutBody, u64) {
        if self.within == self.piece.bytes
            && let Some(piece) = self.rest.next()
        {
            (self.piece, self.within) = (piece, 0);
            self.number += 1;
        }
        let here = len.min(u64::from(self.piece.bytes - self.within));
        let flags = if self.number < self.last { TELL | MORE } else { TELL };
        let body = put_body(self.key, self.piece, self.number, (self.within, flags));
        self.within += here as u32;
        (body, here)
    }
}

/// The header of a frame of a piece.
#[inline]
fn put_body(key: RemoteKey, piece: Piece, number: u64, (within, flags): (u32, u16)) -> PutBody {
    let (key_slot, key_secret) = key_to_wire(key);
    PutBody {
        key_slot,
        key_secret,
        offset: piece.offset.into(),
        number: number.into(),
        total_bytes: piece.bytes.into(),
        within: within.into(),
        flags: flags.into(),
        reserved: [0; 6],
    }
}

impl Core {
    /// A put by frames begins: its pieces have their numbers from now on.
    pub(in crate::remote) fn start_put(&mut self, id: OperationId) {
        let Some(state) = self.operations.access_mut(id) else { return };
        let Access { peer, key, local, .. } = state.access;
        if let RemoteLayout::At(offset) = state.access.remote {
            let terms = state.access.terms;
            let is_local = terms.local && !state.tells_after;
            let flags = match (state.tells_after, terms.tells()) {
                (true, _) => TELL | MORE,
                (false, true) => TELL,
                (false, false) => 0,
            };
            let more = terms.more;
            let put = WholePut { operation: id, peer, key, offset, local, is_local, more, flags };
            if let Some(urgency) = self.leaves_whole(&put) {
                return self.send_whole(&put, urgency);
            }
        }
        let Some(state) = self.operations.access_mut(id) else { return };
        let Some(session) = self.peers.session_mut(peer) else { return };
        let mut rest = Pieces::of(&state.access.remote, local.len);
        let number = session.one_sided().issued.issue_all(id, rest.clone());
        let last = match state.tells_after {
            false => number + Pieces::count_of(&state.access.remote, local.len) - 1,
            // It counts with its data.
            true => u64::MAX,
        };
        let Some(piece) = rest.next() else { return };
        let put = PutStream { operation: id, key, number, last, piece, within: 0, rest };
        session.streams.push(Stream { kind: StreamKind::Put(put), left: local });
        if let Some(state) = self.access_mut(id) {
            state.streaming = true;
        }
        self.pump_streams(peer);
    }

    /// Whether a put leaves at once, in one frame, and how urgently.
    fn leaves_whole(&mut self, put: &WholePut) -> Option<Urgency> {
        let session = self.peers.session_mut(put.peer)?;
        let len = put.local.len;
        if len > session.granted.frame_bytes() {
            return None;
        }
        if len <= URGENT_BYTES_MAX
            && session.reliable.as_ref().is_none_or(|it| it.sent.has_room())
            && !session.paths.wants_plan(len)
            && session.paths.has_few_frames()
        {
            return Some(Urgency::Urgent);
        }
        let leaves = session.streams.is_empty()
            && !self.bulk.is_spent()
            && session.has_data_room(len, &self.routes.controllers, self.now);
        leaves.then_some(Urgency::Bulk)
    }

    fn send_whole(&mut self, put: &WholePut, urgency: Urgency) {
        let WholePut { operation, peer, key, offset, local, is_local, more, flags } = *put;
        let Some(session) = self.peers.session_mut(peer) else { return };
        let piece = Piece { offset, bytes: local.len as u32 };
        let waits = more || (urgency == Urgency::Urgent && session.accesses.are_several());
        let issued = &mut session.one_sided().issued;
        let number = issued.issue(Issue::put(operation, piece.bytes));
        let flags = if issued.are_many() { flags | TELL } else { flags };
        let bulk = urgency == Urgency::Bulk;
        if bulk {
            self.bulk.spend(local.len);
        }
        self.retain_memory(operation);
        let order = Order::PutFrame { operation, peer, bulk };
        let payload = Payload { slice: local, urgency, order };
        self.emit(peer, put_body(key, piece, number, (0, flags)), Some(payload));
        if waits && (more || !is_local) {
            self.outputs.last_is_patient();
        }
        if is_local {
            self.has_left(operation);
        }
    }

    /// Bytes for a region of ours arrive.
    pub(crate) fn arrive_put(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: PutBody,
    ) -> Placement {
        let (bytes, within) = (prefix.payload_bytes.get(), body.within.get());
        let (number, total) = (body.number.get(), body.total_bytes.get());
        if bytes == 0 || within.checked_add(bytes).is_none_or(|end| end > total) {
            return self.violation("a put outside of its own length");
        }
        let Some(session) = self.peers.session_mut(id) else { return Placement::Drop };
        match session.one_sided().taken.known(number) {
            Known::Open => {}
            // The rest of one that was refused, or given up.
            Known::Done if self.config.plant != Plant::PutTwice => return Placement::Drop,
            Known::Done => {}
            Known::Beyond => return self.violation("an operation too far ahead of others"),
        }
        let key = self.key_of(body.key_slot, body.key_secret);
        let Some(slice) = self.check_key(id, key, body.offset.get(), total.into(), true) else {
            self.operation_over(id, number, Err(Fault::BadKey), true);
            return Placement::Drop;
        };
        let slice = slice.part(within.into(), bytes.into());
        if self.config.plant == Plant::AppliedEarly && within + bytes == total {
            self.tell_early(id, number);
        }
        let part = Part { kind: PartKind::Bytes, flags: body.flags.get(), total, value: 0 };
        self.place_put(link, id, prefix, slice, PutFrame { region: key.slot, number, part })
    }

    /// A put that tells of itself leaves, in one frame.
    pub(in crate::remote) fn send_notify(
        &mut self,
        id: OperationId,
        access: &Access,
        raise: Raise,
        applied: bool,
    ) {
        let Access { peer, key, local, .. } = *access;
        let RemoteLayout::At(offset) = access.remote else { return };
        let Some(session) = self.peers.session_mut(peer) else { return };
        let issued = &mut session.one_sided().issued;
        let tells = applied || issued.are_many();
        let issue = Issue { class: Class::Token, ..Issue::put(id, local.len as u32) };
        let number = issued.issue(issue);
        let flag = |flag, is_set| if is_set { flag } else { 0 };
        let (key_slot, key_secret) = key_to_wire(key);
        let body = NotifyBody {
            key_slot,
            key_secret,
            offset: offset.into(),
            number: number.into(),
            value: raise.value.into(),
            word: raise.word.into(),
            flags: (flag(TELL, tells) | flag(RAISE_TO, raise.to)).into(),
            reserved: [0; 2],
        };
        self.retain_memory(id);
        let order = Order::PutFrame { operation: id, peer, bulk: false };
        let payload = Payload { slice: local, urgency: Urgency::Urgent, order };
        self.emit(peer, body, Some(payload));
        if !applied {
            self.keep_when_sent(peer);
            self.access_ended(id, Ok(()));
        }
    }

    /// Whether a peer's operation with this number is still to come. If not: what becomes of the frame's payload.
    pub(super) fn is_to_come(&mut self, id: PeerId, number: u64) -> Result<(), Placement> {
        let session = self.peers.session_mut(id).ok_or(Placement::Drop)?;
        match session.one_sided().taken.known(number) {
            Known::Open => Ok(()),
            Known::Done => Err(Placement::Drop),
            Known::Beyond => Err(self.violation("an operation too far ahead of others")),
        }
    }

    /// Bytes for a region of ours arrive, and a word of it is to grow after them.
    pub(crate) fn arrive_notify(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: &NotifyBody,
    ) -> Placement {
        let (total, number) = (prefix.payload_bytes.get(), body.number.get());
        if !(1..=LOCKED_PUT_BYTES_MAX).contains(&total) {
            return self.violation("a put with a notice that has no payload, or a long one");
        }
        if let Err(placement) = self.is_to_come(id, number) {
            return placement;
        }
        let key = self.key_of(body.key_slot, body.key_secret);
        let (word, flags) = (body.word.get(), body.flags.get());
        let slice = self.check_key(id, key, body.offset.get(), total.into(), true);
        let has_word = self.word_of(key.slot, word).is_some();
        let Some(slice) = slice.filter(|_| has_word) else {
            self.operation_over(id, number, Err(Fault::BadKey), true);
            return Placement::Drop;
        };
        let value = body.value.get();
        if self.config.plant == Plant::NoticeEarly {
            let effect = Effect::Growth { value, word, to: flags & RAISE_TO != 0 };
            let held = Held::Notice(Notice {
                region: key.slot,
                number,
                tells: flags & TELL != 0,
                is_refused: false,
                effect,
            });
            self.take_token(id, held);
        }
        let part = Part { kind: PartKind::Growth, flags, total: word, value };
        self.place_put(link, id, prefix, slice, PutFrame { region: key.slot, number, part })
    }

    /// A word of a region, counted from its end.
    pub(super) fn word_of(&self, region: SlotId, word: u32) -> Option<Slice> {
        const WORD: u64 = size_of::<u64>() as u64;
        let region = self.regions.get(region).filter(|region| !region.closing)?;
        let at = region.slice.len.checked_sub((u64::from(word) + 1) * WORD)?;
        Some(region.slice.part(at, WORD))
    }

    pub(super) fn place_put(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        slice: Slice,
        put: PutFrame,
    ) -> Placement {
        if self.placing_whole
            && prefix.span.get() == 0
            && prefix.flags.get() & FLAG_PAYLOAD_CHECKSUM == 0
        {
            self.put_here = Some((id, put, prefix.payload_bytes.get()));
            return Placement::Into { slice, token: OF_PUT };
        }
        let Some(region) = self.regions.get_mut(put.region) else { return Placement::Drop };
        region.retained += 1;
        self.place_exposed(link, id, prefix, slice, IncomingKind::Put(put))
    }

    /// The payload that came with its frame is at its place.
    pub(crate) fn put_is_here(&mut self) {
        if let Some((id, put, bytes)) = self.put_here.take() {
            self.put_arrived(id, put, bytes);
        }
    }

    /// Bytes of a put of a peer's are at their place.
    pub(crate) fn put_received(&mut self, peer: Option<PeerId>, put: PutFrame, bytes: u32) {
        if let Some(id) = peer {
            self.put_arrived(id, put, bytes);
        }
        self.release_region(put.region);
    }

    fn put_arrived(&mut self, id: PeerId, put: PutFrame, bytes: u32) {
        let PutFrame { region, number, part } = put;
        let Part { kind, flags, total, .. } = part;
        if kind != PartKind::Bytes {
            return self.effect_arrived(id, put, bytes);
        }
        let come = match bytes >= total {
            true => Come::All,
            false => self.part_arrived(id, put, bytes),
        };
        match come {
            Come::All => {
                if flags & MORE == 0 {
                    self.note_served(region, Served::Put);
                }
                self.operation_over(id, number, Ok(()), flags & TELL != 0);
            }
            Come::Some => {}
            Come::Elsewhere => self.operation_over(id, number, Err(Fault::BadKey), true),
        }
    }

    /// Some of a put's place is gone.
    #[cold]
    pub(in crate::remote) fn put_unplaced(&mut self, id: PeerId, put: PutFrame) {
        let PutFrame { region, number, part } = put;
        let Part { kind, flags, total: word, value } = part;
        if kind == PartKind::Event {
            return self.refuse_immediate(id, number, Fault::BadKey);
        }
        if kind == PartKind::Growth {
            // Its owner may wait for the word, and would for ever.
            let effect = Effect::Growth { value, word, to: flags & RAISE_TO != 0 };
            let notice = Notice { region, number, tells: true, is_refused: true, effect };
            if self.take_token(id, Held::Notice(notice)) {
                return;
            }
        }
        self.refuse_gone(id, number);
    }

    /// Some bytes of a put are at their place.
    fn part_arrived(&mut self, id: PeerId, put: PutFrame, bytes: u32) -> Come {
        let PutFrame { region, number, part } = put;
        let session = self.peers.session_mut(id);
        session
            .map_or(Come::Some, |it| it.one_sided().taken.arrive(number, region, bytes, part.total))
    }

    /// A put is at its place that has an effect.
    #[cold]
    fn effect_arrived(&mut self, id: PeerId, put: PutFrame, bytes: u32) {
        let PutFrame { region, number, part } = put;
        let Part { kind, flags, total: word, value } = part;
        let effect = match kind {
            PartKind::Event => Effect::Event { data: value, bytes: bytes.into() },
            _ => Effect::Growth { value, word, to: flags & RAISE_TO != 0 },
        };
        let tells = flags & TELL != 0;
        if !self.take_token(
            id,
            Held::Notice(Notice { region, number, tells, is_refused: false, effect }),
        ) {
            // No origin has so many under way.
            self.operation_over(id, number, Err(Fault::Busy), true);
        }
    }
}
