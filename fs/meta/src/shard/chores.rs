//! The outputs of a shard beside replies, and the answers to them.

use std::collections::{BTreeSet, VecDeque};

use ropewalk_wire::fs::meta::Callback;

use super::{Completed, Cut, Moment, OWED_VERSION, REAP_VERSION, Shard};
use crate::identity::show_callback;
use crate::inode::{decode_row, encode_row};
use crate::keys::{self, Table};
use crate::parking::WaitOn;
use crate::rows::{Batch, Rows, RowsError};

/// Owed fences have this number where they are for data servers that join later.
const LATER: u32 = u32::MAX;
/// Fences that such servers are told at most, the latest ones.
const LATER_MAX: usize = 4096;

/// Reaps that are given out and not confirmed, at most.
const REAPS_MAX: usize = 1024;

/// An inode whose objects up to a generation are garbage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reap {
    pub inode: u64,
    pub generation: u32,
    /// The pool version on whose servers the objects can be.
    pub pool_version: u32,
}

/// Reaps on their way.
#[derive(Debug, Default)]
pub(super) struct Reaps {
    queue: VecDeque<Reap>,
    /// Given out, or in the queue.
    under_way: BTreeSet<(u64, u32)>,
}

impl<R: Rows> Shard<R> {
    /// The next report of unreadable rows, for people.
    pub fn poll_damage(&mut self) -> Option<String> {
        self.damage.pop_front()
    }

    /// The reply to a call that waited.
    pub fn poll_reply(&mut self) -> Option<Completed> {
        self.completed.pop_front()
    }

    /// A message to a client: its session and what to say.
    pub fn poll_callback(&mut self) -> Option<(u64, Callback)> {
        let (session, mut callback) = self.callbacks.pop_front()?;
        if let Some(standing) = self.standing(session) {
            show_callback(standing.export, &mut callback);
        }
        Some((session, callback))
    }

    /// A session that all data servers shall refuse below this epoch; then `handle_fenced`.
    pub fn poll_fence(&mut self) -> Option<(u64, u32)> {
        self.fences.pop_front()
    }

    /// A file to be cut at its data servers; then `handle_cut`. The intent is written at the
    /// shard's newest position.
    pub fn poll_cut(&mut self) -> Option<Cut> {
        while let Some(inode) = self.cut_queue.pop_front() {
            if let Some(cut) = self.cuts.get(&inode) {
                return Some(*cut);
            }
        }
        None
    }

    /// A cut came to its end, or (`done` false) could not be made and has to be tried again.
    pub fn handle_cut(&mut self, cut: Cut, done: bool, now: Moment) {
        if self.cuts.get(&cut.inode) != Some(&cut) {
            return;
        }
        if !done || self.is_full() {
            self.cut_queue.push_back(cut.inode);
            return;
        }
        self.cuts.remove(&cut.inode);
        let mut batch = Batch::default();
        batch.remove(keys::key(Table::Shrink, &[cut.inode]));
        if let Err(error) = self.commit(batch) {
            self.stop(error);
        }
        self.parking.wake(WaitOn::Inode(cut.inode));
        self.run_woken(now);
    }

    /// Objects to be removed from data servers; then `handle_reaped`. The row that says so is
    /// written at the shard's newest position.
    pub fn poll_reap(&mut self) -> Result<Option<Reap>, RowsError> {
        if self.reaps.queue.is_empty() && self.reap_waiting {
            self.fill_reaps()?;
        }
        Ok(self.reaps.queue.pop_front())
    }

    fn fill_reaps(&mut self) -> Result<(), RowsError> {
        let prefix = [Table::Reap as u8];
        let (reaps, mut more) = (&mut self.reaps, false);
        self.rows.scan(&prefix, &keys::after(&prefix), &mut |key, value| {
            let generation = keys::number(key, 1).and_then(|number| u32::try_from(number).ok());
            let inode = keys::number(key, 0);
            let (Some(inode), Some(generation)) = (inode, generation) else { return true };
            // A row that does not decode stays for `check`: nobody knows where its objects are.
            let Ok(pool_version) = decode_row(REAP_VERSION, value) else { return true };
            if reaps.under_way.contains(&(inode, generation)) {
                return true;
            }
            if reaps.under_way.len() >= REAPS_MAX {
                more = true;
                return false;
            }
            reaps.under_way.insert((inode, generation));
            reaps.queue.push_back(Reap { inode, generation, pool_version });
            true
        })?;
        self.reap_waiting = more;
        Ok(())
    }

    /// Objects are gone, with tombstones in their place; or (`done` false) they have to be tried
    /// again.
    pub fn handle_reaped(&mut self, reap: Reap, done: bool) {
        if !self.reaps.under_way.remove(&(reap.inode, reap.generation)) {
            return;
        }
        self.reap_waiting = true;
        if done && !self.is_full() {
            let mut batch = Batch::default();
            let key = keys::key(Table::Reap, &[reap.inode, u64::from(reap.generation)]);
            batch.remove(key);
            if let Err(error) = self.commit(batch) {
                self.stop(error);
            }
        }
    }

    /// Reaps that were looked at and are not done.
    pub fn reaps_under_way(&self) -> usize {
        self.reaps.under_way.len()
    }

    /// Data servers that were silent for too long have yet to be told of a session's fence, which is
    /// no reason to wait with its end. Kept until `handle_fence_paid`, over restarts too. Servers that join later, and stores
    /// that take the place of others, are to be told, too.
    pub fn owe_fence(&mut self, servers: &[u32], session: u64, epoch: u32) {
        let mut batch = Batch::default();
        for server in servers.iter().chain(&[LATER]) {
            let key = keys::key(Table::Owed, &[u64::from(*server), session]);
            batch.put(key, encode_row(OWED_VERSION, &epoch));
        }
        self.later_fences.push_back(session);
        if self.later_fences.len() > LATER_MAX
            && let Some(oldest) = self.later_fences.pop_front()
            && oldest != session
        {
            batch.remove(keys::key(Table::Owed, &[u64::from(LATER), oldest]));
        }
        self.conclude_alone(Ok(batch));
    }

    /// A store joins now: it is to be told the fences that servers which join later are to be told.
    pub fn inherit_fences(&self, server: u32, batch: &mut Batch) -> Result<(), RowsError> {
        for (session, epoch) in self.fences_owed_by(LATER)? {
            let key = keys::key(Table::Owed, &[u64::from(server), session]);
            batch.put(key, encode_row(OWED_VERSION, &epoch));
        }
        Ok(())
    }

    /// The fences that servers which join later are to be told, when the server starts: their age is not known.
    pub(super) fn later_fences(&self) -> Result<VecDeque<u64>, RowsError> {
        Ok(self.fences_owed_by(LATER)?.into_iter().map(|(session, _)| session).collect())
    }

    /// A data server refuses the session from now on, or nobody needs it to any more.
    pub fn handle_fence_paid(&mut self, server: u32, session: u64) {
        let key = keys::key(Table::Owed, &[u64::from(server), session]);
        // On a full disk it stays, and is paid once more after the next start.
        if self.is_full() || !self.rows.get(&key).is_ok_and(|row| row.is_some()) {
            return;
        }
        let mut batch = Batch::default();
        batch.remove(key);
        self.conclude_alone(Ok(batch));
    }

    /// Fences that data servers have yet to be told: server, session, epoch.
    pub fn fences_owed(&self) -> Result<Vec<(u32, u64, u32)>, RowsError> {
        let prefix = [Table::Owed as u8];
        let mut owed = Vec::new();
        self.rows.scan(&prefix, &keys::after(&prefix), &mut |key, value| {
            let server = keys::number(key, 0).and_then(|server| u32::try_from(server).ok());
            let epoch = decode_row(OWED_VERSION, value);
            if let (Some(server), Some(session), Ok(epoch)) = (server, keys::number(key, 1), epoch)
            {
                owed.push((server, session, epoch));
            }
            true
        })?;
        Ok(owed)
    }

    /// The fences that one data server has yet to be told: session, epoch.
    pub fn fences_owed_by(&self, server: u32) -> Result<Vec<(u64, u32)>, RowsError> {
        let owed = self.fences_owed()?.into_iter().filter(|(it, ..)| *it == server);
        Ok(owed.map(|(_, session, epoch)| (session, epoch)).collect())
    }

    /// The store's durable mark moved.
    pub fn handle_durable(&mut self, now: Moment) {
        self.parking.wake(WaitOn::Durable);
        self.run_woken(now);
    }

    /// The position of the newest commit.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Calls that wait.
    pub fn waiting(&self) -> usize {
        self.parking.count()
    }
}
