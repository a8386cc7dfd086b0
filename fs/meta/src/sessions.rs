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

/// Version of session rows.
pub const SESSION_VERSION: u8 = 2;
/// Version of reply rows.
pub const REPLY_VERSION: u8 = 1;

/// A user to whose rights a session is limited, and the groups that he is in, his own first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    pub user: u32,
    pub groups: Vec<u32>,
}

/// The owner of a session. It outlives restarts of the server: nobody else takes the session up then.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SessionOwner {
    /// The endpoint that opened it, and which life of it.
    pub endpoint: u128,
    pub incarnation: u64,
    /// None: it may act for everybody.
    pub limit: Option<Limit>,
}

impl SessionOwner {
    /// The owner of a session that is opened from `origin`.
    pub fn new(origin: Origin, limit: Option<Limit>) -> SessionOwner {
        let Origin { endpoint, incarnation } = origin;
        SessionOwner { endpoint: endpoint.0, incarnation: incarnation.0, limit }
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
    /// The number of sessions that are limited to the rights of one user.
    limited: usize,
    /// The number of sessions of each endpoint.
    by_endpoint: BTreeMap<u128, usize>,
}

impl Sessions {
    /// Adds a session; `reclaiming` where it comes back from its row.
    pub fn insert(&mut self, id: u64, row: SessionRow, deadline: Time, reclaiming: bool) {
        self.limited += usize::from(row.owner.limit.is_some());
        *self.by_endpoint.entry(row.owner.endpoint).or_default() += 1;
        let called = reclaiming;
        let session = Session { row, deadline, reclaiming, called, slots: Vec::new() };
        self.sessions.insert(id, session);
    }

    /// All sessions have so much longer to be renewed.
    pub fn postpone(&mut self, by: Duration) {
        for session in self.sessions.values_mut() {
            session.deadline = session.deadline + by;
        }
    }

    /// The user to whose rights a session is limited, if it is.
    pub fn limit(&self, id: u64) -> Option<&Limit> {
        if self.limited == 0 {
            return None;
        }
        self.sessions.get(&id)?.row.owner.limit.as_ref()
    }

    /// The number of sessions of an endpoint.
    pub fn of_endpoint(&self, endpoint: u128) -> usize {
        self.by_endpoint.get(&endpoint).copied().unwrap_or(0)
    }

    /// The number of sessions that are limited to the rights of a user.
    pub fn of_user(&self, user: u32) -> usize {
        let his = |session: &&Session| {
            session.row.owner.limit.as_ref().is_some_and(|limit| limit.user == user)
        };
        if self.limited == 0 { 0 } else { self.sessions.values().filter(his).count() }
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

    /// Takes a session out.
    pub fn remove(&mut self, id: u64) -> Option<Session> {
        let session = self.sessions.remove(&id)?;
        let SessionOwner { endpoint, limit, .. } = &session.row.owner;
        self.limited -= usize::from(limit.is_some());
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
    use super::*;

    fn sessions() -> Sessions {
        let mut sessions = Sessions::default();
        let (owner, name) = (SessionOwner::default(), Vec::new());
        let row = SessionRow { client: 1, owner, epoch: 0, fencing: false, name };
        sessions.insert(7, row, Time::NEVER, false);
        sessions
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
