//! The side that gets and puts: accesses wait for their turn, begin, and end once.

use ropewalk_base::error::Fault;
use ropewalk_base::limits::{LOCKED_PUT_BYTES_MAX, RECORDS_BYTES_MAX, REMOTE_SEGMENTS_MAX};
use ropewalk_base::memory::{Change, Operator, Update};
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{Help, LinkId, RemoteLayout, Strided};
use ropewalk_wire::frame::{ResultBody, status_from_wire};

use crate::api::*;
use crate::engine::Core;
use crate::operation::{AccessState, Kind};
use crate::path::LinkStage;
use crate::rails::Rails;
use crate::remote::{NUMBERS_MAX, Pieces};
use crate::session::Session;
use crate::streams::{Stream, StreamKind};

impl Core {
    /// Starts a get or put. It may complete within this call.
    pub fn post_access(&mut self, id: OperationId, mut access: Access) {
        let name = access.peer;
        let (peer, barred) = self.meant(name);
        access.peer = peer;
        let legal = is_legal(&access);
        let moves = matches!(access.action, Action::Get | Action::Put | Action::Update { .. });
        let empty = access.local.len == 0 && moves;
        let access = self.operations.add_access(access, Help::None);
        self.operations.insert(id, Kind::Access(access));
        if barred != Some(Fault::Invalid) {
            self.operations.own_as(id, peer, name);
        }
        if !legal || barred.is_some() || self.closing {
            let fault = if self.closing { Fault::Closed } else { barred.unwrap_or(Fault::Invalid) };
            return self.finish(id, Err(fault), 0);
        }
        if empty {
            return self.finish(id, Ok(()), 0);
        }
        self.begin_access(id);
        self.want_session(peer);
    }

    /// Queues or starts the access of an operation.
    pub(crate) fn begin_access(&mut self, id: OperationId) {
        let operation = self.operations.get(id);
        let Some(state) = operation.and_then(|it| self.operations.access(it)) else { return };
        let peer = state.access.peer;
        let is_first = self.peers.get(peer).is_some_and(|it| it.waiting.accesses.is_empty());
        if state.is_strided() && is_first && !self.is_layout_ready(id) {
            return self.queue_access(id, peer);
        }
        let operation = self.operations.get(id);
        let Some(state) = operation.and_then(|it| self.operations.access(it)) else { return };
        let has_room = self.peers.get(peer).is_some_and(|peer| {
            let session = peer.session.as_ref();
            peer.waiting.accesses.is_empty()
                && session.is_some_and(|session| session.has_access_room(state))
                && peer.link().is_some_and(|link| self.is_live(link))
        });
        if has_room {
            return self.start_access(id);
        }
        self.queue_access(id, peer);
    }

    pub(super) fn queue_access(&mut self, id: OperationId, peer: PeerId) {
        if let Some(state) = self.access_mut(id) {
            state.waiting = true;
        }
        if let Some(peer) = self.peers.get_mut(peer) {
            self.operations.enqueue(&mut peer.waiting.accesses, id);
        }
    }

    pub(crate) fn access_mut(&mut self, id: OperationId) -> Option<&mut AccessState> {
        self.operations.access_mut(id)
    }

    /// Whether a link carries its session and is not being closed.
    pub(super) fn is_live(&self, link: LinkId) -> bool {
        self.links.get(link).is_some_and(|state| state.stage == LinkStage::Up)
    }

    pub(crate) fn pump_accesses(&mut self, id: PeerId) {
        while let Some(peer) = self.peers.get(id) {
            let Some(first) = self.operations.first_of(&peer.waiting.accesses) else { return };
            if !self.is_layout_ready(first) {
                return;
            }
            let Some(peer) = self.peers.get(id) else { return };
            let (Some(link), Some(session)) = (peer.link(), peer.session.as_ref()) else { return };
            let operation = self.operations.get(first);
            let access = operation.and_then(|it| self.operations.access(it));
            let has_room = access.is_none_or(|access| session.has_access_room(access));
            if !has_room || !self.is_live(link) {
                return;
            }
            self.unqueue_access(id, first);
            if let Some(state) = self.access_mut(first) {
                state.waiting = false;
            }
            self.start_access(first);
        }
    }

    fn start_access(&mut self, id: OperationId) {
        let Core { operations, peers, rails, .. } = self;
        let is_receive = !operations.is_access(id);
        let Some(state) = operations.access_mut(id) else { return };
        let (is_get, is_put) = match state.access.action {
            Action::Get => (!state.is_strided(), false),
            Action::Put => (false, !state.is_strided()),
            Action::Immediate { .. } => return self.start_immediate(id),
            _ => (false, false),
        };
        let Some(peer) = peers.get_mut(state.access.peer) else { return };
        let (Some(link), Some(session)) = (peer.link(), peer.session.as_mut()) else { return };
        // Nobody writes to a message meanwhile, and a receive has no other way where its peer is foreign.
        let may_tear = !is_receive && state.is_word();
        let by_rail = !state.is_strided() && !may_tear && state.goes_by_rail(session, link, rails);
        let forgets = self.config.plant == Plant::TokenPassesGet;
        state.unnumbered = (is_get || by_rail) && !forgets;
        session.accesses.begin(state);
        let (name, len, by_frames) = (state.access.peer, state.access.local.len, state.by_frames);
        if session.is_foreign() && self.operations.is_access(id) {
            // It announces what may be read, and knows no other memory.
            return self.access_ended(id, Err(Fault::NotPermitted));
        }
        if is_put && !by_rail {
            self.counters.puts += 1;
            return self.start_put(id);
        }
        let Some(access) = self.access_mut(id).map(|state| state.access.clone()) else { return };
        match access.action {
            Action::Get if !is_get => {
                self.counters.gets += 1;
                self.start_update(id, name);
            }
            Action::Put if !is_put => {
                self.counters.puts += 1;
                self.start_update(id, name);
            }
            Action::Get => {
                self.counters.gets += 1;
                if !by_frames && self.pulls_parts(name, len) {
                    return self.start_pulls(id, name);
                }
                if !by_rail {
                    return self.ask(id, &access);
                }
                self.start_native(id, link, access);
            }
            Action::Put => {
                self.counters.puts += 1;
                self.start_native(id, link, access);
            }
            Action::Immediate { .. } => unreachable!("it began before"),
            Action::Update { .. } | Action::Records => self.start_update(id, name),
            Action::Atomic(atomic) => self.send_atomic(id, &access, atomic),
            Action::Lock { exclusive } | Action::LockedPut { exclusive } => {
                self.ask_for_lock(id, &access, exclusive);
            }
            Action::Notify { raise, applied } => {
                self.send_notify(id, &access, raise, applied);
            }
            Action::Unlock { lock } => {
                self.release_lock(&access, lock, Some(id));
                self.access_ended(id, Ok(()));
            }
        }
    }

    /// The peer refuses a get of ours, or says whether we have a lock.
    pub(crate) fn arrive_result(&mut self, id: PeerId, body: ResultBody) {
        let operation = OperationId(SlotId::from_u64(body.cookie.get()));
        let outcome = status_from_wire(body.status);
        let Some(state) = self.access_mut(operation) else { return };
        let asked = state.access.action == Action::Get && !state.waiting && !state.is_strided();
        let is_ours = state.access.peer == id && !state.waiting;
        let is_lock = is_ours && state.is_lock();
        if is_lock && !self.is_under_way(operation) {
            // It was given up, and the peer has heard of that.
            return;
        }
        if is_lock {
            return self.lock_answered(operation, &body);
        }
        if is_ours && asked && outcome.is_err() {
            self.access_ended(operation, outcome);
        }
    }

    /// An access has left as a whole: it is complete by that, if its user wants no more.
    #[cold]
    pub(in crate::remote) fn has_left(&mut self, id: OperationId) {
        let Some(state) = self.access_mut(id) else { return };
        if !state.access.terms.local || state.tells_after {
            return;
        }
        state.moved = state.bytes();
        let peer = state.access.peer;
        self.keep_when_sent(peer);
        self.access_ended(id, Ok(()));
    }

    /// All frames of a put were made.
    pub(crate) fn put_has_left(&mut self, kind: &StreamKind) {
        if let StreamKind::Put(put) = kind {
            self.has_left(put.operation());
        }
    }

    /// A piece of a put is applied.
    pub(crate) fn piece_applied(&mut self, id: OperationId, bytes: u32) {
        self.bytes_moved(id, bytes.into());
    }

    /// A put's data frame was released by the rail; the peer's result is still awaited.
    pub(crate) fn put_frame_released(&mut self, id: OperationId, outcome: Result<(), Fault>) {
        if let Err(fault) = outcome {
            let state = self.access_mut(id);
            if let Some(peer) = state.map(|state| state.access.peer) {
                // A frame that no rail has: its number, at least, is among these.
                self.give_numbers_up(peer, id, 1);
            }
            self.access_ended(id, Err(fault));
        }
        self.release_memory(id);
    }

    /// A get or put ended, one way or the other; nothing more lands.
    pub(crate) fn access_ended(&mut self, id: OperationId, outcome: Result<(), Fault>) {
        let Some(operation) = self.operations.get(id) else { return };
        if operation.ending.is_some() {
            return;
        }
        let receive = matches!(operation.kind, Kind::Receive(_));
        let Some(state) = self.access_mut(id) else { return };
        let (peer, moved) = (state.access.peer, state.moved);
        let is_immediate = matches!(state.access.action, Action::Immediate { .. });
        let streaming = std::mem::take(&mut state.streaming);
        if std::mem::take(&mut state.waiting) {
            self.unqueue_access(peer, id);
        } else if let (Some(session), Some(state)) =
            (self.peers.session_mut(peer), self.operations.access_mut(id))
        {
            session.accesses.under_way.end(state);
            if streaming {
                self.streams_no_more(id, peer);
            }
        }
        if is_immediate {
            self.immediate_ended(id, peer);
        }
        self.end_pulls(id, peer, outcome);
        if receive {
            self.fetched(id, outcome);
        } else {
            self.finish(id, outcome, moved);
        }
        self.pump_accesses(peer);
    }

    /// No further frames of a put or an update are made; a request for a lock is given up.
    fn streams_no_more(&mut self, id: OperationId, peer: PeerId) {
        let lock = self.access_mut(id).filter(|state| state.is_lock());
        if let Some(access) = lock.map(|state| state.access.clone()) {
            return self.release_lock(&access, id, None);
        }
        let Some(session) = self.peers.session_mut(peer) else { return };
        session.one_sided().updates.remove(id);
        let of = |it: &Stream| matches!(&it.kind, StreamKind::Put(put) if put.operation() == id);
        let unmade = match session.streams.take(of).map(|stream| stream.kind) {
            Some(StreamKind::Put(put)) => put.unmade(),
            _ => None,
        };
        if let Some(from) = unmade {
            self.give_numbers_up(peer, id, from);
        }
    }

    fn unqueue_access(&mut self, peer: PeerId, id: OperationId) {
        if let Some(peer) = self.peers.get_mut(peer) {
            self.operations.unqueue(&mut peer.waiting.accesses, id);
        }
    }
}

impl AccessState {
    /// Whether a rail reads or writes by itself for it. A rail's write that breaks off with its link may have happened;
    /// frames of a session that goes on happen once.
    pub(in crate::remote) fn goes_by_rail(
        &self,
        session: &Session,
        link: LinkId,
        rails: &Rails,
    ) -> bool {
        let direction = match self.access.action {
            Action::Get => Direction::Get,
            Action::Put if session.reliable.is_none() => Direction::Put,
            _ => return false,
        };
        !self.by_frames && rails.does(link, direction)
    }

    /// Whether it is about one aligned word, of which nobody may see a half (P13). No rail says whether its copy of a word is one
    /// load and one store (the kernel's is a string operation), so words go by frames.
    fn is_word(&self) -> bool {
        let len = self.access.local.len;
        let is_aligned = |offset: u64| offset.is_multiple_of(len);
        matches!(len, 2 | 4 | 8)
            && matches!(self.access.remote, RemoteLayout::At(offset) if is_aligned(offset))
    }
}

/// Whether an access is one that there can be.
fn is_legal(access: &Access) -> bool {
    let len = access.local.len;
    match (access.action, &access.remote) {
        (_, RemoteLayout::Strided(it)) if !it.shape.may_travel() => false,
        (Action::Get | Action::Put, RemoteLayout::At(offset)) => {
            let most = Pieces::count_of(&access.remote, len);
            offset.checked_add(len).is_some()
                && (access.action == Action::Get || most <= NUMBERS_MAX)
        }
        (Action::Get | Action::Put, RemoteLayout::List(list)) => {
            let sum = list.iter().try_fold(0u64, |sum, segment| sum.checked_add(segment.len));
            let most = Pieces::count_of(&access.remote, len);
            list.len() <= REMOTE_SEGMENTS_MAX
                && sum == Some(len)
                && (access.action == Action::Get || most <= NUMBERS_MAX)
        }
        (Action::Update { update, fetch }, RemoteLayout::At(offset)) => {
            elements(update, fetch, len).is_some_and(|bytes| offset.checked_add(bytes).is_some())
        }
        (Action::Get, RemoteLayout::Strided(it)) => {
            len <= u64::from(u32::MAX) && it.range(len).is_some()
        }
        (Action::Put, RemoteLayout::Strided(it)) => {
            len <= u64::from(u32::MAX) && may_write(it) && it.range(len).is_some()
        }
        (Action::Update { update, fetch }, RemoteLayout::Strided(it)) => {
            let reads = update.operator() == Operator::Nothing;
            let bytes = elements(update, fetch, len).and_then(|bytes| it.range(bytes));
            (reads || may_write(it)) && bytes.is_some()
        }
        (Action::Atomic(atomic), RemoteLayout::At(_)) => {
            let is_one = match atomic.change {
                Change::One { update, .. } => update.sent(1) <= 8,
                Change::Swap { element, .. } => !atomic.token && element.is_comparable(),
                Change::Store | Change::Records | Change::Update(_) => false,
            };
            is_one && len == 0 && !(atomic.token && atomic.fetch)
        }
        (Action::Immediate { .. }, RemoteLayout::At(offset)) => {
            let most = Pieces::count_of(&access.remote, len);
            offset.checked_add(len).is_some() && most < NUMBERS_MAX
        }
        (Action::Immediate { .. }, RemoteLayout::List(list)) => {
            let sum = list.iter().try_fold(0u64, |sum, segment| sum.checked_add(segment.len));
            let most = Pieces::count_of(&access.remote, len);
            list.len() <= REMOTE_SEGMENTS_MAX && sum == Some(len) && len > 0 && most < NUMBERS_MAX
        }
        (Action::Records, RemoteLayout::At(_)) => (1..=u64::from(RECORDS_BYTES_MAX)).contains(&len),
        (Action::LockedPut { .. } | Action::Notify { .. }, RemoteLayout::At(offset)) => {
            let may_go = (1..=u64::from(LOCKED_PUT_BYTES_MAX)).contains(&len);
            may_go && offset.checked_add(len).is_some()
        }
        (Action::Lock { .. } | Action::Unlock { .. }, RemoteLayout::At(_)) => len == 0,
        (_, RemoteLayout::List(_) | RemoteLayout::Strided(_)) => false,
    }
}

/// Bytes that the elements of an update have in a region, padding included; `None` where its memory is of no update.
fn elements(update: Update, fetch: bool, len: u64) -> Option<u64> {
    let sent = update.sent(1) as u64;
    let halves = if fetch && update.operator() != Operator::Nothing { 2 } else { 1 };
    let count = len / halves / sent;
    let fits = len.is_multiple_of(halves * sent) && count * sent <= u64::from(u32::MAX);
    fits.then_some(count * update.extent() as u64)
}

/// Whether no byte is written twice, as the peer will find.
fn may_write(strided: &Strided) -> bool {
    strided.shape.is_plainly_apart(strided.count)
}
