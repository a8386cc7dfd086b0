//! Updates and atomics of ours: they leave in their order, as the peer lends room for their elements.

use std::collections::VecDeque;

use ropewalk_base::limits::UPDATE_BYTES_MAX;
use ropewalk_base::memory::{Change, Operator, Slice, Update};
use ropewalk_base::verb::{LinkId, Placement, RemoteKey, RemoteLayout, Strided, Urgency};
use ropewalk_wire::frame::{
    AtomicBody, COMPARE_SWAP, FETCH, MORE, Prefix, RECORDS, ReplyBody, StridedBody, TELL, TOKEN,
    UpdateBody, key_to_wire, status_from_wire,
};

use super::OneSided;
use super::issued::{Class, Issue};
use super::whole::Whole;
use crate::api::*;
use crate::credit::update_charge;
use crate::engine::Core;
use crate::incoming::IncomingKind;
use crate::operation::AccessState;
use crate::orders::{Order, Payload};
use crate::remote::UnderWay;

/// The shortest piece that an update is cut into for lack of room, in bytes: a first window has room for two.
const PIECE_BYTES_MIN: u64 = 2 << 10;

/// Updates of which frames are still to be made, in their order.
#[derive(Debug, Default)]
pub(crate) struct Updates {
    queue: VecDeque<Unmade>,
}

#[derive(Debug, Clone, Copy)]
struct Unmade {
    operation: OperationId,
    /// Elements for which frames were made.
    done: u64,
    /// The layout, by its number at the peer, where it is about instances of a datatype.
    layout: Option<u8>,
}

/// Some elements of an update.
#[derive(Debug, Clone, Copy)]
struct Piece {
    update: Update,
    fetch: bool,
    /// The peer is to say at once that it is applied.
    tells: bool,
    class: Class,
    key: RemoteKey,
    /// Of the whole.
    place: Whole,
    /// Elements of the whole; the first one of the piece, and how many it has.
    total: u64,
    within: u64,
    count: u64,
    /// They, in memory.
    source: Slice,
}

impl Updates {
    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// No further frames of an operation are made.
    pub fn remove(&mut self, id: OperationId) {
        self.queue.retain(|it| it.operation != id);
    }

    /// Whether one of them names a layout.
    pub fn names(&self, layout: u8) -> bool {
        self.queue.iter().any(|it| it.layout == Some(layout))
    }

    /// Bytes of an operation for which frames are still to be made. For tests.
    pub fn left(&self, id: OperationId, access: &AccessState) -> u64 {
        let unmade = self.queue.iter().find(|it| it.operation == id);
        let Some((update, _)) = access.combines() else { return 0 };
        unmade.map_or(0, |it| access.bytes() - it.done * update.sent(1) as u64)
    }
}

impl OneSided {
    /// Whether the peer has told of all that is ours, neither side has a lock of the other's, and no layout is on its way.
    pub fn is_settled(&self) -> bool {
        let has_locks = self.locks + self.lent_locks > 0;
        let layouts = self.taught.is_settled() && self.learned.is_settled();
        self.issued.is_settled() && !has_locks && layouts
    }

    /// Whether updates, answers or immediate data wait for their turn.
    pub fn has_waiting(&self) -> bool {
        !self.updates.is_empty() || !self.answers.is_empty() || !self.immediates.is_empty()
    }

    /// Whether all is over that an access has to follow. `in_order`: frames of a class keep their order.
    pub fn is_turn_of(&self, access: &AccessState, in_order: bool, under_way: UnderWay) -> bool {
        let Some(class) = access.class() else { return true };
        let may_pass = match class {
            Class::Put => true,
            Class::Update => in_order || self.updates.is_empty(),
            Class::Atomic => self.updates.is_empty(),
            // Immediate data that waits has no number yet.
            Class::Token => {
                self.updates.is_empty() && self.immediates.is_empty() && under_way.unnumbered == 0
            }
        };
        may_pass && self.issued.follows(class, in_order)
    }
}

impl AccessState {
    /// The class of its numbers; a get has none.
    pub fn class(&self) -> Option<Class> {
        match self.access.action {
            // It has numbers like a put, and follows nothing.
            Action::Get if self.is_strided() => Some(Class::Put),
            Action::Get | Action::Lock { .. } | Action::LockedPut { .. } => None,
            Action::Put => Some(Class::Put),
            // Its frames have no payload, and keep their order with those of atomics.
            Action::Update { update, .. } if update.operator() == Operator::Nothing => {
                Some(Class::Atomic)
            }
            Action::Update { .. } => Some(Class::Update),
            // It follows nothing.
            Action::Records => Some(Class::Put),
            Action::Unlock { .. }
            | Action::Notify { .. }
            | Action::Immediate { .. }
            | Action::Atomic(Atomic { token: true, .. }) => Some(Class::Token),
            Action::Atomic(_) => Some(Class::Atomic),
        }
    }
}

impl Core {
    /// An update begins.
    pub(in crate::remote) fn start_update(&mut self, id: OperationId, peer: PeerId) {
        let Core { operations, peers, .. } = self;
        let Some(state) = operations.access_mut(id) else { return };
        let Some(session) = peers.session_mut(peer) else { return };
        let one_sided = session.one_sided();
        let layout = match &state.access.remote {
            RemoteLayout::Strided(strided) => one_sided.taught.number_of(&strided.shape),
            _ => None,
        };
        state.streaming = true;
        one_sided.updates.queue.push_back(Unmade { operation: id, done: 0, layout });
        self.pump_updates(peer);
    }

    /// Makes the frames of updates for which there is room.
    pub(crate) fn pump_updates(&mut self, id: PeerId) {
        while let Some((operation, piece)) = self.next_piece(id) {
            self.send_piece(id, operation, &piece);
        }
    }

    /// The next piece of an update, if it may leave now.
    fn next_piece(&mut self, id: PeerId) -> Option<(OperationId, Piece)> {
        let peer = self.peers.get_mut(id)?;
        let session = peer.session.as_mut()?;
        let one_sided = session.one_sided.as_mut()?;
        let Unmade { operation, done, layout } = *one_sided.updates.queue.front()?;
        let state = self.operations.access_mut(operation)?;
        let (update, fetch) = state.combines()?;
        let are_records = state.access.action == Action::Records;
        let place = match (&state.access.remote, layout) {
            _ if are_records => Whole::Records,
            (RemoteLayout::At(offset), _) => Whole::Flat(*offset),
            (RemoteLayout::Strided(it), Some(layout)) => {
                let Strided { address, count: instances, from, .. } = *it;
                Whole::Strided { layout, address, instances, from }
            }
            _ => return None,
        };
        let sent = update.sent(1) as u64;
        let total = state.bytes() / sent;
        let frame = session.granted.frame_bytes().min(u64::from(UPDATE_BYTES_MAX));
        let takes = update.operator() != Operator::Nothing;
        let bytes = ((total - done) * sent).min(frame / sent * sent);
        let room = session.granted.update_room();
        let bytes = fitting(bytes, sent, |bytes| update_charge(bytes, takes, fetch) <= room)?;
        if are_records && bytes < total {
            return None;
        }
        let class = state.class()?;
        let in_order = session.reliable.is_none();
        let is_turn = done > 0 || one_sided.issued.follows(class, in_order);
        if !is_turn || !one_sided.issued.has_room(1) {
            return None;
        }
        if takes && self.bulk.is_spent() {
            self.bulk.wait(id, &mut peer.throttled);
            return None;
        }
        let tells = fetch || state.access.terms.tells() || one_sided.issued.are_many();
        let has_room = match takes {
            true => session.has_data_room(bytes, &self.routes.controllers, self.now),
            false => session.paths.control().is_some(),
        };
        let (within, count) = (done, bytes / sent);
        let source = state.halves().0;
        let source = if takes { source.part(within * sent, bytes) } else { source };
        let key = state.access.key;
        let piece = Piece { update, fetch, tells, class, key, place, total, within, count, source };
        has_room.then_some((operation, piece))
    }

    fn send_piece(&mut self, id: PeerId, operation: OperationId, piece: &Piece) {
        let Piece { update, fetch, class, place, within, count, source, total, .. } = *piece;
        let Some(session) = self.peers.session_mut(id) else { return };
        let takes = update.operator() != Operator::Nothing;
        let sent = update.sent(1) as u64;
        session.granted.take_update(update_charge(count * sent, takes, fetch));
        let one_sided = session.one_sided();
        let (bytes, at) = ((count * sent) as u32, (within * sent) as u32);
        let layout = match place {
            Whole::Flat(_) | Whole::Records => None,
            Whole::Strided { layout, .. } => Some(layout),
        };
        let issue = Issue { operation, bytes, within: at, class, fetches: fetch, layout };
        let number = one_sided.issued.issue(issue);
        let is_last = within + count == total;
        if is_last {
            one_sided.updates.queue.pop_front();
        } else if let Some(front) = one_sided.updates.queue.front_mut() {
            front.done += count;
        }
        let mut waits = false;
        if let Some(state) = self.access_mut(operation).filter(|_| is_last) {
            state.streaming = false;
            waits = state.access.terms.more;
        }
        let more = !is_last;
        let payload = takes.then(|| {
            self.bulk.spend(source.len);
            self.retain_memory(operation);
            let order = Order::PutFrame { operation, peer: id, bulk: true };
            Payload { slice: source, urgency: Urgency::Bulk, order }
        });
        match place {
            Whole::Flat(offset) => {
                self.emit(id, update_body(piece, offset, number, more), payload);
            }
            Whole::Records => {
                let body = update_body(piece, 0, number, false);
                let flags = (body.flags.get() | RECORDS).into();
                self.emit(id, UpdateBody { flags, ..body }, payload);
            }
            Whole::Strided { layout, address, instances, from } => {
                let (key_slot, key_secret) = key_to_wire(piece.key);
                let from = from + within * update.extent() as u64;
                let body = StridedBody {
                    key_slot,
                    key_secret,
                    address: address.into(),
                    number: number.into(),
                    instances: instances.into(),
                    from: from.into(),
                    count: (count as u32).into(),
                    operator: update.operator() as u8,
                    element: update.element() as u8,
                    flags: flags_of(piece, more).into(),
                    layout,
                    reserved: [0; 7],
                };
                self.emit(id, body, payload);
            }
        }
        if waits {
            self.outputs.last_is_patient();
        }
        if is_last && !fetch {
            self.has_left(operation);
        }
    }

    /// An atomic leaves.
    pub(in crate::remote) fn send_atomic(
        &mut self,
        id: OperationId,
        access: &Access,
        atomic: Atomic,
    ) {
        let RemoteLayout::At(offset) = access.remote else { return };
        let Some(session) = self.peers.session_mut(access.peer) else { return };
        let terms = access.terms;
        let waits = terms.more || session.accesses.are_several();
        let issued = &mut session.one_sided().issued;
        let class = if atomic.token { Class::Token } else { Class::Atomic };
        let fetches = atomic.fetch;
        let is_asked = fetches || (!atomic.token && terms.tells());
        let tells = is_asked || issued.are_many();
        let number = issued.issue(Issue { class, fetches, ..Issue::put(id, 0) });
        let (operator, element, operand, compare) = match atomic.change {
            Change::One { update, operand } => {
                (update.operator() as u8, update.element() as u8, operand, [0; 8])
            }
            Change::Swap { element, expected, desired } => {
                (COMPARE_SWAP, element as u8, desired, expected)
            }
            Change::Store | Change::Records | Change::Update(_) => {
                unreachable!("an atomic changes one element")
            }
        };
        let flag = |flag, is_set| if is_set { flag } else { 0 };
        let flags = flag(TELL, tells) | flag(FETCH, atomic.fetch) | flag(TOKEN, atomic.token);
        let (key_slot, key_secret) = key_to_wire(access.key);
        let body = AtomicBody {
            key_slot,
            key_secret,
            offset: offset.into(),
            number: number.into(),
            operand,
            compare,
            operator,
            element,
            flags: flags.into(),
            reserved: [0; 4],
        };
        self.emit_control(access.peer, body);
        let is_over = atomic.token || (terms.local && !fetches);
        if waits && (terms.more || !is_over) {
            self.outputs.last_is_patient();
        }
        if is_over {
            self.access_ended(id, Ok(()));
        }
    }

    /// The peer answers with what elements were.
    pub(crate) fn arrive_elements(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: ReplyBody,
    ) -> Placement {
        let number = body.number.get();
        let issue = self.peers.session_mut(id).and_then(|session| {
            let issued = &session.one_sided.as_ref()?.issued;
            issued.was_given(number).then(|| issued.get(number))
        });
        let is_told = self.was_given(id, body.applied.get());
        let Some(issue) = issue.filter(|it| is_told && it.is_none_or(|it| it.awaits_elements()))
        else {
            return self.violation("an answer to what nobody asked for");
        };
        let issue = issue.filter(|it| self.is_under_way(it.operation));
        let Some((issue, state)) =
            issue.and_then(|it| Some((it, self.operations.access_mut(it.operation)?)))
        else {
            // Its operation was cancelled; its number is over all the same.
            self.elements_received(id, number, body.applied.get());
            return Placement::Drop;
        };
        let result = state.halves().1.part(issue.within.into(), issue.bytes.into());
        let is_whole = prefix.payload_bytes.get() == issue.bytes && result.len > 0;
        if !is_whole || status_from_wire(body.status) != Ok(()) {
            return self.violation("an answer with other elements than were asked for");
        }
        let operation = issue.operation;
        self.retain_memory(operation);
        let kind = IncomingKind::Elements { operation, number, applied: body.applied.get() };
        self.place_into(link, Some(id), prefix, result, kind)
    }

    /// The former values of elements are here, or do not come any more: the operation with this number is over.
    pub(crate) fn elements_received(&mut self, id: PeerId, number: u64, applied: u64) {
        let issued = self.peers.session_mut(id).and_then(|it| it.one_sided.as_mut());
        if let Some(issue) = issued.and_then(|it| it.issued.end(number)) {
            self.piece_applied(issue.operation, issue.bytes);
        }
        self.arrive_applied(id, applied);
    }

    /// The former value of an atomic's element.
    pub(super) fn note_value(&mut self, id: OperationId, value: [u8; 8]) {
        if let Some(state) = self.access_mut(id) {
            state.value = u64::from_le_bytes(value);
        }
    }
}

fn flags_of(piece: &Piece, more: bool) -> u16 {
    let flag = |flag, is_set| if is_set { flag } else { 0 };
    flag(TELL, piece.tells) | flag(FETCH, piece.fetch) | flag(MORE, more)
}

fn update_body(piece: &Piece, offset: u64, number: u64, more: bool) -> UpdateBody {
    let (key_slot, key_secret) = key_to_wire(piece.key);
    UpdateBody {
        key_slot,
        key_secret,
        offset: offset.into(),
        number: number.into(),
        total: (piece.total as u32).into(),
        within: (piece.within as u32).into(),
        count: (piece.count as u32).into(),
        operator: piece.update.operator() as u8,
        element: piece.update.element() as u8,
        flags: flags_of(piece, more).into(),
    }
}

/// The most bytes of `bytes` that fit: all, or a power of two in whole elements. `None`: none do.
fn fitting(bytes: u64, sent: u64, fits: impl Fn(u64) -> bool) -> Option<u64> {
    if fits(bytes) {
        return Some(bytes);
    }
    let mut piece = bytes.next_power_of_two() / 2;
    while piece >= PIECE_BYTES_MIN {
        if fits(piece) {
            return Some(piece / sent * sent);
        }
        piece /= 2;
    }
    None
}
