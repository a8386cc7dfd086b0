//! Leases on whole inodes, and the inodes that each session has open.
//!
//! Invariants (checked by [`Leases::check`]):
//! * `Write` is alone: no other session has a mode but `None` on the inode;
//! * `Read` and `Shared` are never held on one inode by different sessions;
//! * a holder without mode and without open does not exist;
//! * numbers of grants never repeat, across restarts too;
//! * appends are under way only for sessions that hold `Shared`.
//!
//! The table is in memory. After a restart sessions reclaim their leases (see `sessions`). It does not know
//! why somebody needs a lease to go: it is told a [`Need`].

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_wire::fs::meta::{Access, Callback, Grant, LeaseMode};

use crate::appends::Appends;

/// The demand of one session's operation on the other sessions' leases on an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Need {
    /// Size and times are known here: nobody else holds `Write`.
    Fresh,
    /// Bytes are to be cached here: nobody else holds `Write` or `Shared`.
    Unwritten,
    /// Data that others cached will change: nobody else holds `Read` or `Write`.
    Quiet,
    /// Bytes vanish: nobody else holds anything; opens stay.
    Alone,
}

impl Need {
    fn conflicts(self, mode: LeaseMode) -> bool {
        match self {
            Need::Fresh => mode == LeaseMode::Write,
            Need::Unwritten => matches!(mode, LeaseMode::Shared | LeaseMode::Write),
            Need::Quiet => mode >= LeaseMode::Read,
            Need::Alone => mode != LeaseMode::None,
        }
    }

    /// The mode that a holder of `mode` may keep. A reader among several may not keep `Shared`: it would
    /// write beside those that have not answered yet.
    fn keep(self, mode: LeaseMode) -> LeaseMode {
        match (self, mode) {
            (Need::Fresh, _) | (Need::Unwritten, LeaseMode::Write) => LeaseMode::Read,
            (Need::Quiet, LeaseMode::Write) => LeaseMode::Shared,
            (Need::Unwritten | Need::Quiet | Need::Alone, _) => LeaseMode::None,
        }
    }
}

/// The lease and open state of one session on one inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    pub mode: LeaseMode,
    /// Of the latest grant.
    pub number: u64,
    /// The session's open mode of the inode, as far as it told.
    pub open: Option<Access>,
    /// The recall under way: the mode to keep, and the deadline.
    recall: Option<Recall>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Recall {
    keep: LeaseMode,
    deadline: Time,
}

impl Holder {
    /// Whether the session was asked to give it back and has not yet.
    pub fn is_recalled(&self) -> bool {
        self.recall.is_some()
    }

    fn writes(&self) -> bool {
        self.open.is_some_and(|open| open.write)
    }
}

/// All leases and opens of a shard.
#[derive(Debug, Default)]
pub struct Leases {
    /// By inode and session.
    holders: BTreeMap<(u64, u64), Holder>,
    /// The number of holders of each session.
    counts: BTreeMap<u64, usize>,
    /// Directories that were recalled lately: no new grants until then, since somebody is changing
    /// them and each grant would cost a recall.
    contended: BTreeMap<u64, Time>,
    /// Ranges that sessions reserved for appends.
    pub(crate) appends: Appends,
    next_number: u64,
}

impl Leases {
    /// An empty table whose grants have numbers from `first_number` on.
    pub fn new(first_number: u64) -> Leases {
        Leases { next_number: first_number, ..Leases::default() }
    }

    /// The lease and open state of `session` on `inode`.
    pub fn holder(&self, inode: u64, session: u64) -> Option<&Holder> {
        self.holders.get(&(inode, session))
    }

    /// The mode that `session` holds on `inode`.
    pub fn mode(&self, inode: u64, session: u64) -> LeaseMode {
        self.holder(inode, session).map_or(LeaseMode::None, |holder| holder.mode)
    }

    /// Whether `session` was asked for `Write` on the inode, and has it yet.
    pub fn gives_writing_back(&self, inode: u64, session: u64) -> bool {
        let gives = |holder: &Holder| holder.mode == LeaseMode::Write && holder.is_recalled();
        self.holder(inode, session).is_some_and(gives)
    }

    /// The session that holds `Write` on the inode.
    pub fn writer(&self, inode: u64) -> Option<u64> {
        self.on(inode).find(|(_, holder)| holder.mode == LeaseMode::Write).map(|(id, _)| id)
    }

    /// Sessions but `session` that have the inode open to read, without a lease that covers its size.
    pub fn onlookers(&self, inode: u64, session: u64) -> Vec<u64> {
        let looks = |holder: &Holder| {
            holder.mode < LeaseMode::Read && holder.open.is_some_and(|open| open.read)
        };
        let others = self.on(inode).filter(|(id, holder)| *id != session && looks(holder));
        others.map(|(id, _)| id).collect()
    }

    /// Whether any session holds a lease on the inode or has it open.
    pub fn is_used(&self, inode: u64) -> bool {
        self.on(inode).next().is_some()
    }

    /// Whether a session may write to the inode, or may have writes that it did not report yet.
    pub fn is_written(&self, inode: u64) -> bool {
        let writing = |mode| matches!(mode, LeaseMode::Write | LeaseMode::Shared);
        self.on(inode).any(|(_, holder)| writing(holder.mode) || holder.writes())
    }

    /// Holders of `session`.
    pub fn count(&self, session: u64) -> usize {
        self.counts.get(&session).copied().unwrap_or(0)
    }

    /// Holders of all sessions.
    pub fn len(&self) -> usize {
        self.holders.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    /// Inodes on which `session` holds something.
    pub fn inodes_of(&self, session: u64) -> Vec<u64> {
        self.holders.keys().filter(|key| key.1 == session).map(|key| key.0).collect()
    }

    /// Every holder: inode, session, holder.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u64, &Holder)> {
        self.holders.iter().map(|(key, holder)| (key.0, key.1, holder))
    }

    fn on(&self, inode: u64) -> impl Iterator<Item = (u64, &Holder)> {
        self.holders.range((inode, 0)..=(inode, u64::MAX)).map(|(key, holder)| (key.1, holder))
    }

    fn others(&self, inode: u64, session: u64) -> impl Iterator<Item = &Holder> {
        self.on(inode).filter(move |(other, _)| *other != session).map(|(_, holder)| holder)
    }

    /// Demands the session's own `Read` back, since it is about to get `Shared`: the session and its kernel
    /// drop their cached data before others may write. True where it has to answer.
    pub fn recall_own(
        &mut self,
        inode: u64,
        session: u64,
        deadline: Time,
        out: &mut VecDeque<(u64, Callback)>,
    ) -> bool {
        let Some(holder) = self.holders.get_mut(&(inode, session)) else { return false };
        if holder.mode != LeaseMode::Read {
            return false;
        }
        let keep = LeaseMode::None;
        if holder.recall.is_none_or(|recall| recall.keep > keep) {
            let deadline = holder.recall.map_or(deadline, |recall| recall.deadline);
            holder.recall = Some(Recall { keep, deadline });
            out.push_back((session, Callback::Recall { inode, number: holder.number, keep }));
        }
        true
    }

    /// Demands `need` from all sessions but `session`; recalls go to `out`. True where somebody still has to
    /// answer.
    pub fn recall(
        &mut self,
        inode: u64,
        session: u64,
        need: Need,
        deadline: Time,
        out: &mut VecDeque<(u64, Callback)>,
    ) -> bool {
        let mut conflict = false;
        for (key, holder) in self.holders.range_mut((inode, 0)..=(inode, u64::MAX)) {
            if key.1 == session || !need.conflicts(holder.mode) {
                continue;
            }
            conflict = true;
            let keep = need.keep(holder.mode);
            if holder.recall.is_some_and(|recall| recall.keep <= keep) {
                continue;
            }
            // A sharper demand does not prolong the time that the first one gave.
            let deadline = holder.recall.map_or(deadline, |recall| recall.deadline);
            holder.recall = Some(Recall { keep, deadline });
            out.push_back((key.1, Callback::Recall { inode, number: holder.number, keep }));
        }
        conflict
    }

    /// Asks a session once more for all that it was asked for and has not given back: another process of its client
    /// goes on with it.
    pub fn recall_again(&self, session: u64, out: &mut VecDeque<(u64, Callback)>) {
        let own = self.holders.iter().filter(|(key, _)| key.1 == session);
        for ((inode, _), holder) in own {
            if let Some(Recall { keep, .. }) = holder.recall {
                let (inode, number) = (*inode, holder.number);
                out.push_back((session, Callback::Recall { inode, number, keep }));
            }
        }
    }

    /// Notes that a directory is being changed by several sessions.
    pub fn set_contended(&mut self, inode: u64, until: Time) {
        self.contended.insert(inode, until);
    }

    /// Forgets contention that is over.
    pub fn forget_contention(&mut self, now: Time) {
        self.contended.retain(|_, until| *until > now);
    }

    /// The mode that `session` can get if it wants `wish`: beside a writer a reader must share, too.
    pub fn attainable(&self, inode: u64, session: u64, wish: LeaseMode) -> LeaseMode {
        let written = |holder: &Holder| holder.writes() || holder.mode == LeaseMode::Shared;
        match wish {
            LeaseMode::Read if self.others(inode, session).any(written) => LeaseMode::Shared,
            _ => wish,
        }
    }

    /// The mode that `session` can have on an inode where it wants the attainable `wish`, with the
    /// others as they are. The `Need` of the wish must have been settled before: nobody else holds
    /// `Write`, and nobody `Read` where `wish` allows writing.
    pub fn possible(&self, inode: u64, session: u64, wish: LeaseMode) -> LeaseMode {
        let own = self.mode(inode, session);
        let in_use = |holder: &Holder| holder.open.is_some() || holder.mode == LeaseMode::Shared;
        match wish {
            LeaseMode::None => own,
            // Its writes may be under way, and `Read` would not cover them.
            LeaseMode::Read if self.writes_shared(inode, session) => own,
            LeaseMode::Read => own.max(LeaseMode::Read),
            LeaseMode::Shared if own != LeaseMode::Write => LeaseMode::Shared,
            // A session that is alone because it insisted stays so: pages of its kernel may have changed.
            LeaseMode::Write
                if own != LeaseMode::Write && self.others(inode, session).any(in_use) =>
            {
                LeaseMode::Shared
            }
            LeaseMode::Shared | LeaseMode::Write => LeaseMode::Write,
        }
    }

    /// Whether `session` holds `Shared` and has the inode open to write.
    pub fn writes_shared(&self, inode: u64, session: u64) -> bool {
        let holder = self.holder(inode, session);
        holder.is_some_and(|holder| holder.mode == LeaseMode::Shared && holder.writes())
    }

    /// Whether `session` may cache the inode without asking anybody: the others neither write nor
    /// have it open for writing, and it is not contended.
    pub fn may_cache(&self, inode: u64, session: u64, now: Time) -> bool {
        let quiet = |holder: &Holder| {
            matches!(holder.mode, LeaseMode::None | LeaseMode::Read)
                && !holder.writes()
                && holder.recall.is_none()
        };
        self.contended.get(&inode).is_none_or(|until| *until <= now)
            && self.others(inode, session).all(quiet)
    }

    /// Gives `session` the mode, which must be compatible with the others' leases.
    pub fn grant(&mut self, inode: u64, session: u64, mode: LeaseMode, epoch: u32) -> Grant {
        let holder = self.entry(inode, session);
        if holder.mode != mode || holder.number == 0 {
            holder.mode = mode;
            // The recall was of an older grant, whose release says nothing about this one. Calls that still
            // wait for it came later than this grant's call, and recall anew after it.
            holder.recall = None;
            let number = self.next_number;
            self.next_number += 1;
            self.entry(inode, session).number = number;
            self.follow_mode(inode, session);
        }
        let number = self.entry(inode, session).number;
        debug_assert_eq!(self.check_inode(inode), Ok(()));
        Grant { mode, epoch, number }
    }

    /// Notes that `session` has the inode open in one more way.
    pub fn open(&mut self, inode: u64, session: u64, access: Access) {
        let holder = self.entry(inode, session);
        let before = holder.open.unwrap_or_default();
        holder.open =
            Some(Access { read: before.read | access.read, write: before.write | access.write });
    }

    fn entry(&mut self, inode: u64, session: u64) -> &mut Holder {
        let counts = &mut self.counts;
        self.holders.entry((inode, session)).or_insert_with(|| {
            *counts.entry(session).or_default() += 1;
            Holder { mode: LeaseMode::None, number: 0, open: None, recall: None }
        })
    }

    /// A session gives back its lease under grant `number`, down to `keep`. An older number says nothing
    /// about the present grant: only `open` is taken. True where something changed for others.
    pub fn release(
        &mut self,
        inode: u64,
        session: u64,
        number: u64,
        keep: LeaseMode,
        open: Option<Access>,
    ) -> bool {
        let shared_needs_alone =
            self.others(inode, session).any(|holder| holder.mode == LeaseMode::Read);
        let Some(holder) = self.holders.get_mut(&(inode, session)) else {
            return false;
        };
        let before = *holder;
        holder.open = open;
        if number >= holder.number {
            let mut left = keep.min(holder.mode);
            if left == LeaseMode::Shared && holder.mode == LeaseMode::Read && shared_needs_alone {
                left = LeaseMode::None;
            }
            holder.mode = left;
            if holder.recall.is_some_and(|recall| left <= recall.keep) {
                holder.recall = None;
            }
        }
        let after = *holder;
        if after.mode == LeaseMode::None && after.open.is_none() {
            self.remove(inode, session);
        }
        self.follow_mode(inode, session);
        before != after
    }

    /// Nobody waits for appends of a session that does not share the inode with other writers any more.
    fn follow_mode(&mut self, inode: u64, session: u64) {
        if self.mode(inode, session) != LeaseMode::Shared {
            self.appends.forget(inode, session);
        }
    }

    /// A session gets a range at the end of the inode. The size that is told goes up to it, until the
    /// session reports it, if it holds `Shared`.
    pub(crate) fn reserve(&mut self, inode: u64, session: u64, offset: u64, end: u64) {
        if self.mode(inode, session) == LeaseMode::Shared {
            self.appends.add((inode, session), offset, end);
        }
    }

    /// Takes everything that a session has on an inode.
    pub fn remove(&mut self, inode: u64, session: u64) -> bool {
        let removed = self.holders.remove(&(inode, session)).is_some();
        if removed {
            let count = self.counts.get_mut(&session).expect("holders are counted");
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&session);
            }
            self.appends.forget(inode, session);
        }
        removed
    }

    /// All recalls have so much longer to be answered.
    pub fn postpone(&mut self, by: Duration) {
        for recall in self.holders.values_mut().filter_map(|holder| holder.recall.as_mut()) {
            recall.deadline = recall.deadline + by;
        }
    }

    /// Sessions that did not answer a recall in time, in order.
    pub fn overdue(&self, now: Time) -> Vec<u64> {
        let late = |holder: &Holder| holder.recall.is_some_and(|recall| recall.deadline <= now);
        let mut sessions: Vec<u64> =
            self.holders.iter().filter(|(_, holder)| late(holder)).map(|(key, _)| key.1).collect();
        sessions.sort_unstable();
        sessions.dedup();
        sessions
    }

    /// Whether a reclaim of `mode` is compatible with the others' leases.
    pub fn is_compatible(&self, inode: u64, session: u64, mode: LeaseMode) -> bool {
        self.others(inode, session).all(|holder| compatible(holder.mode, mode))
    }

    /// Whether the invariants hold on one inode; the sessions that clash otherwise.
    pub fn check_inode(&self, inode: u64) -> Result<(), (u64, u64)> {
        let holders: Vec<_> = self.on(inode).collect();
        for (at, (session, holder)) in holders.iter().enumerate() {
            if holder.mode == LeaseMode::None && holder.open.is_none() {
                return Err((*session, *session));
            }
            for (other, second) in &holders[at + 1..] {
                if !compatible(holder.mode, second.mode) {
                    return Err((*session, *other));
                }
            }
        }
        Ok(())
    }

    /// Whether the invariants hold everywhere; the inode where not.
    pub fn check(&self) -> Result<(), u64> {
        let mut last = None;
        for &(inode, _) in self.holders.keys() {
            if last != Some(inode) {
                self.check_inode(inode).map_err(|_| inode)?;
                last = Some(inode);
            }
        }
        Ok(())
    }

    /// The deadline that a recall given now has.
    pub fn deadline(now: Time, term: Duration) -> Time {
        now + term
    }
}

fn compatible(a: LeaseMode, b: LeaseMode) -> bool {
    use LeaseMode::{None, Read, Shared};
    matches!((a, b), (None, _) | (_, None) | (Read, Read) | (Shared, Shared))
}

#[cfg(test)]
mod tests;
