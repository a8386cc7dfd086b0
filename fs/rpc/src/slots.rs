//! Slots of sessions in memory: for servers whose effects may be repeated across a restart of theirs,
//! but not within one life.

use std::collections::BTreeMap;

use ropewalk_base::ids::Origin;
use ropewalk_wire::fs::head::{CallHead, SLOTS_MAX};

use crate::trust::Grantor;

/// The decision about a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Work on it.
    New,
    /// It was worked on: this is the reply.
    Again(Vec<u8>),
    /// Its number is neither the last one nor a later one: a copy that comes too late.
    Stale,
}

/// Sessions that are remembered: as many as the metadata server has, since a call that is sent again has to
/// find its slot. The one that was silent longest is forgotten first. One takes 2 KiB and its short replies.
const SESSIONS_MAX: usize = 16 * 1024;
/// Longer replies are not kept: their calls read again.
const REPLY_BYTES_MAX: usize = 512;

#[derive(Debug, Default)]
struct Session {
    used: u64,
    /// The proven owner of the session, and the token that proved it.
    owner: Option<Owned>,
    slots: Vec<(u64, Option<Vec<u8>>)>,
}

/// The proven owner of a session, and the token that proved it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owned {
    by: Origin,
    token: u64,
    /// It may act for one user only.
    pub limited: bool,
}

impl Owned {
    /// Whether a call of this session may come from `from`, by the token that it shows; and whether the
    /// table knows that already.
    pub fn checked(
        head: &CallHead,
        from: Origin,
        grantor: &Grantor,
        known: &SlotTable,
    ) -> Option<(Owned, bool)> {
        let (session, token) = (head.session, head.token);
        let owner = known.sessions.get(&session).and_then(|session| session.owner);
        if let Some(owner) = owner.filter(|owner| (owner.by, owner.token) == (from, token)) {
            return Some((owner, true));
        }
        let limited = grantor.check_token(session, from, token)?;
        Some((Owned { by: from, token, limited }, false))
    }
}

/// The last call of each slot and its reply.
#[derive(Debug, Default)]
pub struct SlotTable {
    sessions: BTreeMap<u64, Session>,
    clock: u64,
}

impl SlotTable {
    /// Remembers whose a session is, as was checked. Not to be told of a session that may be over: one of
    /// others would be forgotten for it.
    pub fn own(&mut self, session: u64, owner: Owned) {
        self.place(session).owner = Some(owner);
    }

    /// Judges a call. After `New` its reply is to be stored.
    pub fn judge(&mut self, session: u64, slot: u16, sequence: u64) -> Verdict {
        assert!(slot < SLOTS_MAX, "the head was checked");
        let session = self.place(session);
        if session.slots.len() <= usize::from(slot) {
            session.slots.resize(usize::from(slot) + 1, (0, None));
        }
        let entry = &mut session.slots[usize::from(slot)];
        match &entry.1 {
            _ if sequence > entry.0 => {
                *entry = (sequence, None);
                Verdict::New
            }
            Some(reply) if sequence == entry.0 => Verdict::Again(reply.clone()),
            None if sequence == entry.0 => Verdict::New,
            _ => Verdict::Stale,
        }
    }

    /// The session's place, which is made where it has none.
    fn place(&mut self, session: u64) -> &mut Session {
        self.clock += 1;
        let clock = self.clock;
        if !self.sessions.contains_key(&session) && self.sessions.len() >= SESSIONS_MAX {
            let oldest = self.sessions.iter().min_by_key(|(_, session)| session.used);
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                self.sessions.remove(&oldest);
            }
        }
        let session = self.sessions.entry(session).or_default();
        session.used = clock;
        session
    }

    /// Keeps the reply to a slot's last call.
    pub fn store(&mut self, session: u64, slot: u16, sequence: u64, reply: &[u8]) {
        if reply.len() > REPLY_BYTES_MAX {
            return;
        }
        let entry = self
            .sessions
            .get_mut(&session)
            .and_then(|session| session.slots.get_mut(usize::from(slot)));
        if let Some(entry) = entry.filter(|entry| entry.0 == sequence) {
            entry.1 = Some(reply.to_vec());
        }
    }

    /// Forgets a session.
    pub fn forget(&mut self, session: u64) {
        self.sessions.remove(&session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_call_gets_the_first_reply_and_a_late_copy_nothing() {
        let mut table = SlotTable::default();
        assert_eq!(table.judge(1, 3, 1), Verdict::New);
        assert_eq!(table.judge(1, 3, 1), Verdict::New);
        table.store(1, 3, 1, b"one");
        assert_eq!(table.judge(1, 3, 1), Verdict::Again(b"one".to_vec()));
        assert_eq!(table.judge(1, 3, 2), Verdict::New);
        table.store(1, 3, 1, b"late");
        assert_eq!(table.judge(1, 3, 1), Verdict::Stale);
        assert_eq!(table.judge(1, 3, 2), Verdict::New);
        assert_eq!(table.judge(2, 3, 1), Verdict::New);
    }

    #[test]
    fn a_session_is_its_owners_and_nobody_elses() {
        use ropewalk_base::ids::{EndpointId, Incarnation};
        use ropewalk_wire::fs::head::Service;
        let grantor = Grantor::new(&crate::Secret::new([1; 32]));
        let [owner, other] = [1, 2]
            .map(|number| Origin { endpoint: EndpointId(number), incarnation: Incarnation(1) });
        let mut table = SlotTable::default();
        let mut admit = |from, token| {
            let head = CallHead { session: 7, token, ..CallHead::free(Service::Data) };
            let (owner, _) = Owned::checked(&head, from, &grantor, &table)?;
            table.own(7, owner);
            Some(owner.limited)
        };
        let token = grantor.token(7, owner, false);
        assert_eq!(admit(other, token), None);
        assert_eq!(admit(owner, token), Some(false));
        assert_eq!(admit(owner, token), Some(false));
        assert_eq!(admit(other, token), None);
        assert_eq!(admit(owner, token ^ 8), None);
        let token = grantor.token(7, owner, true);
        assert_eq!(admit(owner, token), Some(true));
        assert_eq!(table.sessions.len(), 1, "a stranger leaves nothing behind");
    }

    #[test]
    fn the_number_of_remembered_sessions_is_bounded() {
        let mut table = SlotTable::default();
        let last = SESSIONS_MAX as u64 + 100;
        for session in 1..=last {
            table.judge(session, 0, 1);
        }
        assert_eq!(table.sessions.len(), SESSIONS_MAX);
        assert!(table.sessions.contains_key(&last) && !table.sessions.contains_key(&1));
    }

    #[test]
    fn with_all_sessions_that_there_may_be_none_is_forgotten() {
        const OF_THE_METADATA_SERVER: u64 = 16 * 1024;
        let mut table = SlotTable::default();
        for session in 1..=OF_THE_METADATA_SERVER {
            assert_eq!(table.judge(session, 0, 1), Verdict::New);
            table.store(session, 0, 1, b"done");
        }
        for session in 1..=OF_THE_METADATA_SERVER {
            assert_eq!(table.judge(session, 0, 1), Verdict::Again(b"done".to_vec()));
        }
    }
}
