//! Locks of regions: a fair queue of readers and writers, at the region's owner.
//!
//! Requests are served in the order in which they come: those that share the lock enter together, and none of them passes
//! one that waits to have it alone. A request is named by its peer's session and a cookie. It ends by a release, by the end of
//! the session, or by the end of the region, and never by time.

use std::collections::{BTreeMap, VecDeque};

use ropewalk_base::error::Fault;
use ropewalk_base::limits::LOCKED_PUT_BYTES_MAX;
use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{LinkId, Placement, RemoteKey, RemoteLayout, Urgency};
use ropewalk_wire::frame::{
    LOCK_EXCLUSIVE, LOCK_RELEASE, LOCK_SHARED, LockBody, NOTE_OWNER_DIED, NOTE_PUT, Prefix,
    ResultBody, key_to_wire, status_from_wire, status_to_wire,
};

use super::channel::{Held, TOKENS_MAX};
use crate::api::*;
use crate::engine::Core;
use crate::incoming::IncomingKind;
use crate::orders::{Order, Payload};

/// Requests of a session for locks, at a time.
const REQUESTS_MAX: u32 = 1024;

/// A request for a lock, waiting or granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Request {
    peer: PeerId,
    session: u32,
    cookie: u64,
    exclusive: bool,
    /// Its bytes are on their way to their place; it ends with them.
    places: bool,
}

/// The lock of a region.
#[derive(Debug, Default)]
struct RegionLock {
    holders: Vec<Request>,
    queue: VecDeque<Request>,
    /// A session ended while it had the lock; the next one to have it is told.
    died: bool,
}

/// The locks of all regions that anybody ever wanted; they end with their regions.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    by_region: BTreeMap<SlotId, RegionLock>,
}

impl RegionLock {
    /// The next request that has the lock from now on, and whether an owner died before it.
    fn next(&mut self) -> Option<(Request, bool)> {
        let first = self.queue.front()?;
        let enters = match self.holders.first() {
            None => true,
            Some(holder) => !holder.exclusive && !first.exclusive,
        };
        let request = if enters { self.queue.pop_front()? } else { return None };
        self.holders.push(request);
        Some((request, std::mem::take(&mut self.died)))
    }

    /// Whether a request has the lock at once, and nobody has to be told of anything.
    fn lets_in(&self, exclusive: bool) -> bool {
        let is_shared = !exclusive && self.holders.iter().all(|it| !it.exclusive);
        self.queue.is_empty() && !self.died && (self.holders.is_empty() || is_shared)
    }

    /// Such requests are over. Returns how many there were.
    fn end(&mut self, is_such: impl Fn(&Request) -> bool) -> u32 {
        let before = self.holders.len() + self.queue.len();
        self.holders.retain(|it| !is_such(it));
        self.queue.retain(|it| !is_such(it));
        (before - self.holders.len() - self.queue.len()) as u32
    }
}

impl Core {
    /// A lock of a peer's region is asked for.
    pub(super) fn ask_for_lock(&mut self, id: OperationId, access: &Access, exclusive: bool) {
        if let Some(session) = self.peers.session_mut(access.peer) {
            session.one_sided().locks += 1;
        }
        if let Some(state) = self.access_mut(id) {
            state.streaming = true;
        }
        let action = if exclusive { LOCK_EXCLUSIVE } else { LOCK_SHARED };
        let peer = access.peer;
        let body = lock_body(access.key, id.0.to_u64(), 0, action);
        let RemoteLayout::At(offset) = access.remote else { return };
        if access.local.len == 0 {
            return self.emit_control(peer, body);
        }
        self.retain_memory(id);
        let order = Order::PutFrame { operation: id, peer, bulk: false };
        let payload = Payload { slice: access.local, urgency: Urgency::Urgent, order };
        self.emit(peer, LockBody { offset: offset.into(), ..body }, Some(payload));
    }

    /// A request for a lock is over. Where it was granted an operation releases it, after all that was begun before.
    pub(super) fn release_lock(
        &mut self,
        access: &Access,
        lock: OperationId,
        by: Option<OperationId>,
    ) {
        let Some(session) = self.peers.session_mut(access.peer) else { return };
        let one_sided = session.one_sided();
        one_sided.locks = one_sided.locks.saturating_sub(1);
        let number = by.map_or(0, |by| one_sided.issued.issue_token(by));
        let body = lock_body(access.key, lock.0.to_u64(), number, LOCK_RELEASE);
        self.emit_control(access.peer, body);
    }

    /// A request for a lock is answered.
    pub(super) fn lock_answered(&mut self, id: OperationId, body: &ResultBody) {
        let outcome = status_from_wire(body.status);
        let Some(state) = self.access_mut(id) else { return };
        (state.streaming, state.value) = (false, body.note.into());
        let (peer, is_over) = (state.access.peer, outcome.is_err() || body.note == NOTE_PUT);
        if let (true, Some(session)) = (is_over, self.peers.session_mut(peer)) {
            session.one_sided().locks -= 1;
        }
        self.access_ended(id, outcome);
    }

    /// A peer wants a lock of ours, or no more. False: it breaks the protocol.
    pub(crate) fn arrive_lock(&mut self, id: PeerId, body: &LockBody) -> bool {
        let cookie = body.cookie.get();
        let exclusive = match body.action {
            LOCK_SHARED => false,
            LOCK_EXCLUSIVE => true,
            LOCK_RELEASE if body.number.get() == 0 => {
                if self.end_lock_request(id, body) == 0 {
                    self.note_early_end(id, cookie);
                }
                return true;
            }
            LOCK_RELEASE => return self.take_token(id, Held::Release(*body)),
            _ => return false,
        };
        let key = self.key_of(body.key_slot, body.key_secret);
        // A reader shares the lock: with it alone it could keep all others from writing.
        if self.check_key(id, key, 0, 0, exclusive).is_none() {
            self.emit_result(id, cookie, Err(Fault::BadKey));
            return true;
        }
        if let Some((lock, request)) = self.take_request(id, key.slot, cookie, exclusive) {
            lock.queue.push_back(request);
            self.grant_locks(key.slot);
        }
        true
    }

    /// Notes a request; `None`: there are too many, and the peer is told.
    fn take_request(
        &mut self,
        id: PeerId,
        slot: SlotId,
        cookie: u64,
        exclusive: bool,
    ) -> Option<(&mut RegionLock, Request)> {
        let session = self.peers.session_mut(id)?;
        let name = session.name();
        let one_sided = session.one_sided();
        if let Some(at) = one_sided.locks_ended.iter().position(|ended| *ended == cookie) {
            one_sided.locks_ended.remove(at);
            return None;
        }
        if one_sided.lent_locks >= REQUESTS_MAX {
            self.emit_result(id, cookie, Err(Fault::Busy));
            return None;
        }
        one_sided.lent_locks += 1;
        let request = Request { peer: id, session: name, cookie, exclusive, places: false };
        Some((self.locks.by_region.entry(slot).or_default(), request))
    }

    /// A peer wants to put under a lock, and no more: the bytes come with the request.
    pub(crate) fn arrive_locked_put(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: &LockBody,
    ) -> Placement {
        let (bytes, cookie) = (prefix.payload_bytes.get(), body.cookie.get());
        let exclusive = body.action == LOCK_EXCLUSIVE;
        let is_request = exclusive || body.action == LOCK_SHARED;
        if !is_request || bytes > LOCKED_PUT_BYTES_MAX {
            return self.violation("a lock with a payload that there is not");
        }
        let key = self.key_of(body.key_slot, body.key_secret);
        let Some(slice) = self.check_key(id, key, body.offset.get(), bytes.into(), true) else {
            self.emit_result(id, cookie, Err(Fault::BadKey));
            return Placement::Drop;
        };
        let region = key.slot;
        let Some((lock, mut request)) = self.take_request(id, region, cookie, exclusive) else {
            return Placement::Drop;
        };
        if !lock.lets_in(exclusive) {
            // The bytes come again when it is its turn.
            lock.queue.push_back(request);
            self.grant_locks(region);
            if self.config.plant == Plant::LockedPutEarly {
                return self.place_early(link, id, prefix, (region, slice));
            }
            return Placement::Drop;
        }
        request.places = true;
        lock.holders.push(request);
        if let Some(region) = self.regions.get_mut(region) {
            region.retained += 1;
        }
        let kind = IncomingKind::LockedPut { region, cookie };
        self.place_exposed(link, id, prefix, slice, kind)
    }

    /// The bytes of a put under a lock are at their place, or do not come: the lock is given back.
    pub(crate) fn locked_put_over(
        &mut self,
        peer: Option<PeerId>,
        session: u32,
        (region, cookie): (SlotId, u64),
        outcome: Result<(), Fault>,
    ) {
        let is_it = |it: &Request| {
            let is_its = peer.is_none_or(|id| it.peer == id);
            it.places && is_its && it.session == session && it.cookie == cookie
        };
        let ended = self.locks.by_region.get_mut(&region).map_or(0, |lock| lock.end(is_it));
        if let Some(id) = peer.filter(|id| self.peers.has_session(*id, session)) {
            if let Some(session) = self.peers.session_mut(id) {
                session.one_sided().lent_locks -= ended;
            }
            let (cookie, status) = (cookie.into(), status_to_wire(outcome));
            let note = if outcome.is_ok() { NOTE_PUT } else { 0 };
            self.emit_control(id, ResultBody { cookie, status, note, reserved: [0; 6] });
        }
        if outcome.is_ok() {
            self.note_served(region, Served::Put);
        }
        self.grant_locks(region);
        self.release_region(region);
    }

    /// A peer gives a lock back, after all that it did before.
    pub(super) fn lock_released(&mut self, id: PeerId, body: &LockBody) {
        self.end_lock_request(id, body);
        if self.config.plant == Plant::UnlockTwice {
            self.free_lock(self.key_of(body.key_slot, body.key_secret).slot);
        }
        let number = body.number.get();
        // Nobody waits for that, but for room for more.
        let tells = number.is_multiple_of(u64::from(TOKENS_MAX) / 2);
        self.operation_over(id, number, Ok(()), tells);
    }

    /// [`Plant::LockedPutEarly`]: the bytes go to their place as those of a cookie that nobody has.
    #[cold]
    fn place_early(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        (region, slice): (SlotId, Slice),
    ) -> Placement {
        let Some(retained) = self.regions.get_mut(region) else { return Placement::Drop };
        retained.retained += 1;
        let kind = IncomingKind::LockedPut { region, cookie: u64::MAX };
        self.place_into(link, Some(id), prefix, slice, kind)
    }

    /// [`Plant::UnlockTwice`].
    #[cold]
    fn free_lock(&mut self, slot: SlotId) {
        let lock = self.locks.by_region.get_mut(&slot);
        for holder in lock.map_or(Vec::new(), |lock| std::mem::take(&mut lock.holders)) {
            let id = self.resolve(holder.peer);
            if let Some(session) = self.peers.session_mut(id) {
                session.one_sided().lent_locks -= 1;
            }
        }
        self.grant_locks(slot);
    }

    /// A request was given up, and is not known. Where frames pass each other it may be on its way still.
    fn note_early_end(&mut self, id: PeerId, cookie: u64) {
        let session = self.peers.session_mut(id);
        if let Some(session) = session.filter(|session| session.reliable.is_some()) {
            let ended = &mut session.one_sided().locks_ended;
            ended.truncate(REQUESTS_MAX as usize - 1);
            ended.push_front(cookie);
        }
    }

    /// Returns how many requests ended: one, or none.
    fn end_lock_request(&mut self, id: PeerId, body: &LockBody) -> u32 {
        let (slot, cookie) = (self.key_of(body.key_slot, body.key_secret).slot, body.cookie.get());
        let mut ended = 0;
        if let Some(session) = self.peers.session_mut(id)
            && let Some(lock) = self.locks.by_region.get_mut(&slot)
        {
            let name = session.name();
            let is_it = |it: &Request| it.peer == id && it.session == name && it.cookie == cookie;
            if lock.holders.iter().any(|it| is_it(it) && it.places) {
                // It ends with its bytes.
                return 1;
            }
            ended = lock.end(is_it);
            session.one_sided().lent_locks -= ended;
        }
        self.grant_locks(slot);
        ended
    }

    /// Tells those whose turn it is that they have the lock.
    fn grant_locks(&mut self, slot: SlotId) {
        while let Some(lock) = self.locks.by_region.get_mut(&slot) {
            let Some((request, died)) = lock.next() else { return };
            let id = self.resolve(request.peer);
            debug_assert!(self.peers.has_session(id, request.session), "{request:?} has ended");
            let (cookie, status) = (request.cookie.into(), status_to_wire(Ok(())));
            let note = if died { NOTE_OWNER_DIED } else { 0 };
            self.emit_control(id, ResultBody { cookie, status, note, reserved: [0; 6] });
        }
    }

    /// A session ended: its requests end, and who has a lock after it is told.
    pub(crate) fn drop_locks_of(&mut self, id: PeerId, session: u32) {
        // Before anybody else has the lock: their bytes must not come after it.
        self.drop_locked_puts(id, session);
        let mut locks = std::mem::take(&mut self.locks);
        let is_its = |it: &Request| it.session == session && self.resolve(it.peer) == id;
        let mut changed = Vec::new();
        for (slot, lock) in &mut locks.by_region {
            lock.died |= lock.holders.iter().any(is_its);
            if lock.end(is_its) > 0 {
                changed.push(*slot);
            }
        }
        self.locks = locks;
        changed.into_iter().for_each(|slot| self.grant_locks(slot));
    }

    /// A region ends: nobody gets its lock any more.
    pub(super) fn end_lock(&mut self, slot: SlotId) {
        let Some(lock) = self.locks.by_region.remove(&slot) else { return };
        for request in lock.holders.iter().chain(&lock.queue) {
            let id = self.resolve(request.peer);
            if let Some(session) = self.peers.session_mut(id) {
                session.one_sided().lent_locks -= 1;
            }
        }
        for request in lock.queue {
            let id = self.resolve(request.peer);
            self.emit_result(id, request.cookie, Err(Fault::BadKey));
        }
    }
}

/// A word about the lock of a region.
fn lock_body(key: RemoteKey, cookie: u64, number: u64, action: u8) -> LockBody {
    let (key_slot, key_secret) = key_to_wire(key);
    let (cookie, number, offset) = (cookie.into(), number.into(), 0.into());
    LockBody { key_slot, key_secret, cookie, number, offset, action, reserved: [0; 7] }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(cookie: u64, exclusive: bool) -> Request {
        let peer = PeerId(SlotId { index: 1, generation: 1 });
        Request { peer, session: 5, cookie, exclusive, places: false }
    }

    fn granted(lock: &mut RegionLock) -> Vec<(u64, bool)> {
        std::iter::from_fn(|| lock.next()).map(|(it, died)| (it.cookie, died)).collect()
    }

    #[test]
    fn readers_enter_together_and_pass_no_writer_that_waits() {
        let mut lock = RegionLock::default();
        for (cookie, exclusive) in [(1, false), (2, false), (3, true), (4, false), (5, true)] {
            lock.queue.push_back(request(cookie, exclusive));
        }
        assert_eq!(granted(&mut lock), [(1, false), (2, false)]);
        assert_eq!(lock.end(|it| it.cookie == 1), 1);
        assert_eq!(granted(&mut lock), [], "another reader is there");
        assert_eq!(lock.end(|it| it.cookie == 2), 1);
        assert_eq!(granted(&mut lock), [(3, false)]);
        assert_eq!((lock.end(|it| it.cookie == 3), lock.end(|it| it.cookie == 3)), (1, 0));
        assert_eq!(granted(&mut lock), [(4, false)]);
        lock.end(|it| it.cookie == 4);
        assert_eq!(granted(&mut lock), [(5, false)]);
        assert!(!lock.lets_in(false));
        lock.end(|it| it.cookie == 5);
        assert!(lock.lets_in(true));
    }

    #[test]
    fn the_next_one_is_told_once_that_an_owner_died() {
        let mut lock = RegionLock { died: true, ..RegionLock::default() };
        assert!(!lock.lets_in(false), "somebody is still to be told");
        lock.queue.extend([request(1, false), request(2, false)]);
        assert_eq!(granted(&mut lock), [(1, true), (2, false)]);
    }
}
