//! Sessions, their slots, and the stored replies that make retries harmless.
//!
//! Invariants:
//! * a slot remembers the sequence number of its last call; the reply of a call that changed rows is
//!   stored in the same batch as the change, so one is never there without the other;
//! * a session row exists before the session's first call, and goes after its leases and locks;
//! * a session that is being fenced is served no more, and holds what it held until the fence is up.

use std::collections::BTreeMap;

use ropewalk_base::time::Time;
use ropewalk_wire::fs::head::SLOTS_MAX;
use ropewalk_wire::fs::status::CLIENT_NAME_BYTES_MAX;
use serde::{Deserialize, Serialize};

/// Version of session rows.
pub const SESSION_VERSION: u8 = 2;
/// Version of reply rows.
pub const REPLY_VERSION: u8 = 1;

/// A session as its row keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionRow {
    /// The client, as it named itself; one session each.
    pub client: u128,
    /// Grows when the session is fenced; data servers refuse calls with a lower one.
    pub epoch: u32,
    /// Being fenced: its term ended.
    pub fencing: bool,
    /// As the client called itself, for people: no longer than `CLIENT_NAME_BYTES_MAX`, and without control
    /// characters.
    pub name: Vec<u8>,
}

/// A client's name as it is kept: what would be long, or steer a terminal, is not.
pub fn kept_name(name: &[u8]) -> Vec<u8> {
    let name = &name[..name.len().min(CLIENT_NAME_BYTES_MAX)];
    name.iter().map(|byte| if byte.is_ascii_control() { b'?' } else { *byte }).collect()
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
    slots: Vec<Slot>,
}

/// What a call's slot and sequence number mean.
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
}

impl Sessions {
    /// Adds a session; `reclaiming` where it comes back from its row.
    pub fn insert(&mut self, id: u64, row: SessionRow, deadline: Time, reclaiming: bool) {
        let session = Session { row, deadline, reclaiming, slots: Vec::new() };
        self.sessions.insert(id, session);
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
        self.sessions.remove(&id)
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
        let row = SessionRow { client: 1, epoch: 0, fencing: false, name: Vec::new() };
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
