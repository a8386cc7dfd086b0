//! Sessions, their slots, and the stored replies that make retries harmless.
//!
//! Invariants:
//! * a slot remembers the sequence number of its last call; the reply of a call that changed rows is
//!   stored in the same batch as the change, so one is never there without the other;
//! * a session row exists before the session's first call, and goes after its leases and locks;
//! * a session that is being fenced is served no more, and keeps its leases and locks until the fence is up.

use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_base::ids::{EndpointId, Incarnation, Origin};
use ropewalk_base::text::printable;
use ropewalk_base::time::Time;
use ropewalk_wire::fs::head::SLOTS_MAX;
use ropewalk_wire::fs::status::CLIENT_NAME_BYTES_MAX;
use serde::{Deserialize, Serialize};

use crate::exports::DEFAULT_EXPORT;
use crate::identity::{Identity, Limit};
use crate::inode::{Damaged, decode_row, encode_row};

/// Version of session rows.
pub const SESSION_VERSION: u8 = 3;
/// Version of session rows in stores of the first format: without an export, and of all identities they know a user's
/// only.
const FIRST_SESSION_VERSION: u8 = 2;
/// Version of reply rows.
pub const REPLY_VERSION: u8 = 1;

/// The owner of a session. It outlives restarts of the server: nobody else takes the session up then.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SessionOwner {
    /// The endpoint that opened it, and which life of it.
    pub endpoint: u128,
    pub incarnation: u64,
    /// As it was proven when the session was opened.
    pub identity: Identity,
    /// The terms of the session, for its whole life.
    pub export: u32,
}

impl SessionOwner {
    /// The owner of a session that is opened from `origin`.
    pub fn new(origin: Origin, identity: Identity, export: u32) -> SessionOwner {
        let Origin { endpoint, incarnation } = origin;
        SessionOwner { endpoint: endpoint.0, incarnation: incarnation.0, identity, export }
    }

    /// Whether its sessions are bound: not all that they ask for is allowed, so they show data servers a right for each
    /// file.
    pub fn is_bound(&self) -> bool {
        self.identity.limit().is_some() || self.export != DEFAULT_EXPORT
    }

    /// The endpoint of its calls, and its incarnation.
    pub fn origin(&self) -> Origin {
        let endpoint = EndpointId(self.endpoint);
        Origin { endpoint, incarnation: Incarnation(self.incarnation) }
    }
}

/// A session as its row keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRow {
    /// The client, as it named itself; one session each.
    pub client: u128,
    pub owner: SessionOwner,
    /// Grows when the session is fenced; data servers refuse calls with a lower one.
    pub epoch: u32,
    /// Being fenced: its term ended.
    pub fencing: bool,
    /// As the client called itself, for people: no longer than `CLIENT_NAME_BYTES_MAX`, and without control
    /// characters.
    pub name: Vec<u8>,
}

/// A session's row in a store of the first format.
#[derive(Debug, Serialize, Deserialize)]
struct FirstRow {
    client: u128,
    endpoint: u128,
    incarnation: u64,
    limit: Option<Limit>,
    epoch: u32,
    fencing: bool,
    name: Vec<u8>,
}

impl SessionRow {
    /// The row's value, for a store of the first format, or of a later one.
    pub fn encode(&self, first_format: bool) -> Vec<u8> {
        if !first_format {
            return encode_row(SESSION_VERSION, self);
        }
        let SessionRow { client, owner, epoch, fencing, name } = self.clone();
        let SessionOwner { endpoint, incarnation, identity, export } = owner;
        debug_assert_eq!(export, DEFAULT_EXPORT, "stores of the first format have no exports");
        let limit = identity.limit().cloned();
        let row = FirstRow { client, endpoint, incarnation, limit, epoch, fencing, name };
        encode_row(FIRST_SESSION_VERSION, &row)
    }

    /// A session's row from its value, of either version.
    pub fn decode(bytes: &[u8]) -> Result<SessionRow, Damaged> {
        if bytes.first() != Some(&FIRST_SESSION_VERSION) {
            return decode_row(SESSION_VERSION, bytes);
        }
        let FirstRow { client, endpoint, incarnation, limit, epoch, fencing, name } =
            decode_row(FIRST_SESSION_VERSION, bytes)?;
        let identity = limit.map_or(Identity::Unproven, Identity::User);
        let owner = SessionOwner { endpoint, incarnation, identity, export: DEFAULT_EXPORT };
        Ok(SessionRow { client, owner, epoch, fencing, name })
    }
}

/// A client's name as it is kept: shortened, and without characters that steer a terminal.
pub fn kept_name(name: &[u8]) -> Vec<u8> {
    let mut name = printable(name, CLIENT_NAME_BYTES_MAX);
    name.truncate(name.floor_char_boundary(CLIENT_NAME_BYTES_MAX));
    name.into_bytes()
}

/// A stored reply as its row keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplyRow {
    pub sequence: u64,
    pub reply: Vec<u8>,
}

/// A slot of a session.
#[derive(Debug, Clone, Default)]
struct Slot {
    sequence: u64,
    /// The reply to that call, where it changed something, and its position.
    reply: Option<(Vec<u8>, u64)>,
    /// That call waits.
    parked: Option<u64>,
}

/// One client's session.
#[derive(Debug, Clone)]
pub struct Session {
    pub row: SessionRow,
    /// When it ends unless it is renewed.
    pub deadline: Time,
    /// After a restart: it has not yet said that it reclaimed everything.
    pub reclaiming: bool,
    /// It did something with its session, in this life of the server or may have in an earlier one.
    pub called: bool,
    /// The changes of exports after which its client was looked at.
    pub judged: u64,
    /// The newest version that its client speaks; 0: it has not said so in this life of the server.
    pub newest: u16,
    slots: Vec<Slot>,
}

/// The meaning of a call's slot and sequence number.
#[derive(Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The slot's next call. The number of an abandoned call that still waits, if any.
    New { abandoned: Option<u64> },
    /// A retry of a call that changed nothing: executed again.
    Again,
    /// A retry of a call that was executed: its reply and position.
    Stored(Vec<u8>, u64),
    /// A retry of a call that waits under this ticket.
    Parked(u64),
    /// Older than the last call.
    Bad,
}

/// All sessions of a shard.
#[derive(Debug, Default)]
pub struct Sessions {
    sessions: BTreeMap<u64, Session>,
    /// The number of bound sessions.
    bound: usize,
    /// Counts the ends of bound sessions.
    pub revocations: u64,
    /// The number of sessions of each endpoint.
    by_endpoint: BTreeMap<u128, usize>,
}

impl Sessions {
    /// Adds a session; `reclaiming` where it comes back from its row.
    pub fn insert(&mut self, id: u64, row: SessionRow, deadline: Time, reclaiming: bool) {
        self.bound += usize::from(row.owner.is_bound());
        *self.by_endpoint.entry(row.owner.endpoint).or_default() += 1;
        let called = reclaiming;
        let (judged, newest, slots) = Default::default();
        let session = Session { row, deadline, reclaiming, called, judged, newest, slots };
        self.sessions.insert(id, session);
    }

    /// All sessions have so much longer to be renewed.
    pub fn postpone(&mut self, by: Duration) {
        for session in self.sessions.values_mut() {
            session.deadline = session.deadline + by;
        }
    }

    /// The owner of a session, if it is bound.
    fn bound(&self, id: u64) -> Option<&SessionOwner> {
        if self.bound == 0 {
            return None;
        }
        let owner = &self.sessions.get(&id)?.row.owner;
        owner.is_bound().then_some(owner)
    }

    /// Whether a session is bound to the rights of one user, or to an export of its own.
    pub fn is_bound(&self, id: u64) -> bool {
        self.bound(id).is_some()
    }

    /// The user to whose rights a session is limited, if it is, and its export.
    pub fn terms(&self, id: u64) -> (Option<&Limit>, u32) {
        self.bound(id).map_or((None, DEFAULT_EXPORT), |it| (it.identity.limit(), it.export))
    }

    /// The number of sessions of an endpoint.
    pub fn of_endpoint(&self, endpoint: u128) -> usize {
        self.by_endpoint.get(&endpoint).copied().unwrap_or(0)
    }

    /// The number of sessions that are limited to the rights of a user.
    pub fn of_user(&self, user: u32) -> usize {
        let his = |session: &&Session| {
            session.row.owner.identity.limit().is_some_and(|limit| limit.user == user)
        };
        if self.bound == 0 { 0 } else { self.sessions.values().filter(his).count() }
    }

    /// The number of sessions.
    pub fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.sessions.is_empty()
    }

    /// Puts back a stored reply at start. Its position is the newest: nothing older is known.
    pub fn restore(&mut self, id: u64, slot: u16, row: ReplyRow, position: u64) {
        if let Some(slot) = self.slot(id, slot) {
            slot.sequence = row.sequence;
            slot.reply = Some((row.reply, position));
        }
    }

    /// The session, if it exists.
    pub fn get(&self, id: u64) -> Option<&Session> {
        self.sessions.get(&id)
    }

    /// The session, to be changed.
    pub fn get_mut(&mut self, id: u64) -> Option<&mut Session> {
        self.sessions.get_mut(&id)
    }

    /// The session is another endpoint's from now on, with the same rights.
    pub fn move_to(&mut self, id: u64, to: Origin) {
        let Some(mut session) = self.remove(id) else { return };
        session.row.owner.endpoint = to.endpoint.0;
        session.row.owner.incarnation = to.incarnation.0;
        self.bound += usize::from(session.row.owner.is_bound());
        *self.by_endpoint.entry(to.endpoint.0).or_default() += 1;
        self.sessions.insert(id, session);
    }

    /// Takes a session out.
    pub fn remove(&mut self, id: u64) -> Option<Session> {
        let session = self.sessions.remove(&id)?;
        let endpoint = &session.row.owner.endpoint;
        if session.row.owner.is_bound() {
            self.bound -= 1;
            self.revocations += u64::from(!session.row.fencing);
        }
        if let Some(count) = self.by_endpoint.get_mut(endpoint) {
            *count -= 1;
            if *count == 0 {
                self.by_endpoint.remove(endpoint);
            }
        }
        Some(session)
    }

    /// All sessions in order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &Session)> {
        self.sessions.iter().map(|(id, session)| (*id, session))
    }

    /// Sessions with larger ids, in order.
    pub fn after(&self, id: u64) -> impl Iterator<Item = (u64, &Session)> {
        let after = (std::ops::Bound::Excluded(id), std::ops::Bound::Unbounded);
        self.sessions.range(after).map(|(id, session)| (*id, session))
    }

    /// The slots of a session that have a stored reply, as its rows must be removed with it.
    pub fn stored_slots(session: &Session) -> impl Iterator<Item = u64> + '_ {
        (0..).zip(&session.slots).filter(|(_, slot)| slot.sequence > 0).map(|(at, _)| at)
    }

    fn slot(&mut self, id: u64, slot: u16) -> Option<&mut Slot> {
        if slot >= SLOTS_MAX {
            return None;
        }
        let session = self.sessions.get_mut(&id)?;
        let needed = usize::from(slot) + 1;
        if session.slots.len() < needed {
            session.slots.resize_with(needed, Slot::default);
        }
        session.slots.get_mut(usize::from(slot))
    }

    /// Judges a call. A new one takes the slot.
    pub fn judge(&mut self, id: u64, slot: u16, sequence: u64) -> Verdict {
        let Some(slot) = self.slot(id, slot) else { return Verdict::Bad };
        if sequence == slot.sequence && sequence > 0 {
            return match (&slot.parked, &slot.reply) {
                (Some(ticket), _) => Verdict::Parked(*ticket),
                (None, Some((reply, position))) => Verdict::Stored(reply.clone(), *position),
                (None, None) => Verdict::Again,
            };
        }
        // Calls that were given up before they left may be missing in between: the slot is the
        // client's, who has one call in it at a time.
        if sequence <= slot.sequence {
            return Verdict::Bad;
        }
        slot.sequence = sequence;
        slot.reply = None;
        Verdict::New { abandoned: slot.parked.take() }
    }

    /// The reply to a call, and its position, where it is stored.
    pub fn stored(&self, id: u64, slot: u16, sequence: u64) -> Option<(Vec<u8>, u64)> {
        let slot = self.sessions.get(&id)?.slots.get(usize::from(slot))?;
        slot.reply.clone().filter(|_| slot.sequence == sequence)
    }

    /// Notes the reply to the slot's call, which changed rows.
    pub fn store(&mut self, id: u64, slot: u16, reply: Vec<u8>, position: u64) {
        if let Some(slot) = self.slot(id, slot) {
            slot.reply = Some((reply, position));
        }
    }

    /// Notes that the slot's call waits, or no longer does.
    pub fn set_parked(&mut self, id: u64, slot: u16, ticket: Option<u64>) {
        if let Some(slot) = self.slot(id, slot) {
            slot.parked = ticket;
        }
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_wire::fs::trust::Role;

    use super::*;

    fn sessions() -> Sessions {
        let mut sessions = Sessions::default();
        let (owner, name) = (SessionOwner::default(), Vec::new());
        let row = SessionRow { client: 1, owner, epoch: 0, fencing: false, name };
        sessions.insert(7, row, Time::NEVER, false);
        sessions
    }

    #[test]
    fn rows_of_both_versions_are_read_and_the_first_format_keeps_its_own() {
        let limit = Limit { user: 1000, groups: vec![1000, 5] };
        let row = |identity: &Identity, export| {
            let identity = identity.clone();
            let owner = SessionOwner { endpoint: 3, incarnation: 4, identity, export };
            SessionRow { client: 1, owner, epoch: 9, fencing: true, name: b"tool".to_vec() }
        };
        let member = Identity::Member { role: Role::Data, number: 7 };
        for identity in [Identity::Unproven, Identity::Own, member, Identity::User(limit)] {
            let session = row(&identity, 5);
            let bytes = session.encode(false);
            assert_eq!((bytes[0], SessionRow::decode(&bytes)), (3, Ok(session)));
            let bytes = row(&identity, 0).encode(true);
            let kept = match &identity {
                Identity::User(_) => identity,
                _ => Identity::Unproven,
            };
            assert_eq!((bytes[0], SessionRow::decode(&bytes)), (2, Ok(row(&kept, 0))));
            for cut in 0..bytes.len() {
                assert_eq!(SessionRow::decode(&bytes[..cut]), Err(Damaged));
            }
        }
        // As a server of the former version wrote it: client 1, endpoint 3, life 4, user 1000 in groups 1000 and 5.
        let old = [&[2, 1, 3, 4, 1][..], &[0xe8, 7, 2, 0xe8, 7, 5], &[9, 1, 4], b"tool"].concat();
        let limit = Limit { user: 1000, groups: vec![1000, 5] };
        assert_eq!(SessionRow::decode(&old), Ok(row(&Identity::User(limit), 0)));
    }

    #[test]
    fn a_session_that_moves_keeps_its_slots_and_is_counted_at_its_new_endpoint() {
        let mut sessions = sessions();
        assert_eq!(sessions.judge(7, 3, 1), Verdict::New { abandoned: None });
        sessions.store(7, 3, vec![9], 5);
        let to = Origin { endpoint: EndpointId(5), incarnation: Incarnation(6) };
        sessions.move_to(7, to);
        assert_eq!(sessions.get(7).map(|it| it.row.owner.origin()), Some(to));
        assert_eq!((sessions.of_endpoint(0), sessions.of_endpoint(5)), (0, 1));
        assert_eq!(sessions.judge(7, 3, 1), Verdict::Stored(vec![9], 5));
        sessions.remove(7);
        assert_eq!(sessions.of_endpoint(5), 0);
    }

    #[test]
    fn slots_take_later_calls_repeat_the_last_and_refuse_older_ones() {
        let mut sessions = sessions();
        let new = || Verdict::New { abandoned: None };
        assert_eq!(sessions.judge(7, 3, 0), Verdict::Bad);
        assert_eq!(sessions.judge(7, 3, 1), new());
        assert_eq!(sessions.judge(7, 3, 1), Verdict::Again);
        sessions.store(7, 3, vec![9], 5);
        assert_eq!(sessions.judge(7, 3, 1), Verdict::Stored(vec![9], 5));
        assert_eq!(sessions.judge(7, 3, 2), new());
        assert_eq!(sessions.judge(7, 3, 1), Verdict::Bad);
        sessions.set_parked(7, 3, Some(4));
        assert_eq!(sessions.judge(7, 3, 2), Verdict::Parked(4));
        assert_eq!(sessions.judge(7, 3, 3), Verdict::New { abandoned: Some(4) });
        assert_eq!(sessions.judge(7, SLOTS_MAX, 1), Verdict::Bad);
        assert_eq!(sessions.judge(8, 0, 1), Verdict::Bad);
        // A call that its client gave up before it left takes its number along.
        assert_eq!(sessions.judge(7, 3, 7), new());
        assert_eq!(sessions.judge(7, 3, 6), Verdict::Bad);
        sessions.restore(7, 0, ReplyRow { sequence: 5, reply: vec![1] }, 9);
        assert_eq!(sessions.judge(7, 0, 4), Verdict::Bad);
        assert_eq!(sessions.judge(7, 0, 5), Verdict::Stored(vec![1], 9));
        assert_eq!(sessions.judge(7, 0, 9), new());
    }
}
