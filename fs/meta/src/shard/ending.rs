//! The end of sessions: closed by their clients, or expired, fenced, and then taken apart.

use std::time::Duration;

use ropewalk_base::ids::Origin;
use ropewalk_wire::fs::meta::LeaseMode;
use ropewalk_wire::fs::value::Errno;

use super::{Admission, Moment, Shard};
use crate::keys::{self, Table};
use crate::locks::Effects;
use crate::operate::{Operation, Step, Stop};
use crate::parking::WaitOn;
use crate::rows::{Batch, Rows, RowsError};
use crate::sessions::Sessions;

/// Inodes that one batch collects, or takes from a session that ends.
const INODES_PER_BATCH: usize = 1000;
/// Rows of locks in one batch, beside those of its last inode.
const LOCKS_PER_BATCH: usize = 4096;

impl<R: Rows> Shard<R> {
    /// The client lives. False where the session is not (any more): it has to open another.
    pub fn renew_session(&mut self, session: u64, now: Moment) -> bool {
        let term = self.config.term;
        match self.sessions.get_mut(session) {
            Some(session) if !session.row.fencing => {
                session.deadline = now.time + term;
                true
            }
            _ => false,
        }
    }

    /// Ends the sessions of an export by fences: its terms have changed, or it is no more. Their clients begin others.
    pub(crate) fn end_sessions_of(&mut self, export: u32) -> Result<(), RowsError> {
        let his = self.sessions.iter().filter(|(_, session)| session.row.owner.export == export);
        let sessions: Vec<u64> = his.map(|(number, _)| number).collect();
        sessions.into_iter().try_for_each(|session| self.expire(session))
    }

    /// Whether the client of a session has to be looked at: exports have changed since that was done last.
    pub fn is_unjudged(&self, session: u64) -> bool {
        let judged = self.sessions.get(session).map(|session| session.judged);
        judged.is_some_and(|judged| judged != self.exports.changes())
    }

    /// The export that the client of a session would get now. A session of another one ends; false then.
    pub fn judge_client(&mut self, session: u64, export: Option<u32>) -> Result<bool, RowsError> {
        let changes = self.exports.changes();
        let Some(state) = self.sessions.get_mut(session) else { return Ok(false) };
        if export == Some(state.row.owner.export) {
            state.judged = changes;
            return Ok(true);
        }
        self.expire(session).map(|()| false)
    }

    /// The client is done, and reported everything. The position of the end, if there was a session
    /// that could be ended; on a full disk it expires later.
    pub fn close_session(&mut self, session: u64, now: Moment) -> Option<u64> {
        self.sessions.get(session).filter(|session| !session.row.fencing && !self.is_full())?;
        self.end(session, false, now);
        self.run_woken(now);
        Some(self.position)
    }

    /// The client has a new connection: its calls that wait go nowhere. It sends them again.
    pub fn drop_unfinished(&mut self, session: u64, now: Moment) {
        for ticket in self.parking.of_session(session) {
            self.drop_parked(ticket);
        }
        self.run_woken(now);
    }

    /// The session goes on at another endpoint. Calls of the old one that wait go nowhere, and the new one is asked
    /// for the leases that the old one was asked for. The position of the change; none where there is no such session, or it
    /// is being fenced.
    pub fn move_session(
        &mut self,
        session: u64,
        to: Origin,
        now: Moment,
    ) -> Result<Option<u64>, RowsError> {
        let Some(state) = self.sessions.get(session).filter(|state| !state.row.fencing) else {
            return Ok(None);
        };
        let mut row = state.row.clone();
        row.owner.endpoint = to.endpoint.0;
        row.owner.incarnation = to.incarnation.0;
        let mut batch = Batch::default();
        let first_format = !self.pools.has_bands();
        batch.put(keys::key(Table::Session, &[session]), row.encode(first_format));
        self.commit(batch)?;
        self.sessions.move_to(session, to);
        let position = self.position;
        if let Some(state) = self.sessions.get_mut(session) {
            state.deadline = now.time + self.config.term;
        }
        self.drop_unfinished(session, now);
        self.leases.recall_again(session, &mut self.callbacks);
        Ok(Some(position))
    }

    /// The server stood still for so long (stopped, suspended, or its machine was): messages from that time
    /// wait to be read, and the terms of sessions begin where they had been.
    pub fn postpone(&mut self, stood_still: Duration) {
        self.sessions.postpone(stood_still);
        self.leases.postpone(stood_still);
        self.pools.postpone(stood_still);
        if let Some(until) = &mut self.grace {
            *until = *until + stood_still;
        }
    }

    /// Every second or so: ends sessions that were silent for too long, and follows the data servers.
    pub fn tick(&mut self, now: Moment) {
        if self.stopped.is_some() {
            return;
        }
        for inode in self.growth.overdue(now.time) {
            self.parking.wake(WaitOn::Grown(inode));
        }
        self.leases.appends.give_up_overdue(now.time);
        if self.is_full() {
            return self.run_woken(now);
        }
        let grace_over = self.grace.is_some_and(|until| until <= now.time);
        let mut late: Vec<u64> = self
            .sessions
            .iter()
            .filter(|(_, session)| {
                session.deadline <= now.time || (grace_over && session.reclaiming)
            })
            .map(|(id, _)| id)
            .collect();
        late.extend(self.leases.overdue(now.time));
        for session in late {
            if let Err(error) = self.let_go(session, now) {
                self.stop(error);
            }
        }
        self.leases.forget_contention(now.time);
        for inode in self.questions.overdue(now.time) {
            self.parking.wake(WaitOn::Locks(inode));
        }
        self.collect_kept(now);
        self.follow_data_servers(now);
        self.run_woken(now);
    }

    /// Takes data servers that are silent out of groups that have another member.
    fn follow_data_servers(&mut self, now: Moment) {
        let mut operation = Operation::new(self, 0, u64::MAX, now);
        operation.drop_silent();
        operation.renew_pool();
        let (batch, ..) = operation.finish();
        if let Err(error) = self.commit(batch) {
            self.stop(error);
        }
    }

    /// These data servers were silent for so long, and have no link any more.
    pub fn handle_linkless(&mut self, servers: &[u32], silence: Duration, now: Moment) {
        servers.iter().for_each(|server| self.pools.note_linkless(*server, silence));
        if self.stopped.is_none() && !self.is_full() {
            self.follow_data_servers(now);
            self.run_woken(now);
        }
    }

    /// Ends a session by itself. One in which nothing was ever called has nothing to be fenced: data
    /// servers are not bothered with it, and need not remember it.
    pub(super) fn let_go(&mut self, session: u64, now: Moment) -> Result<(), RowsError> {
        let unused = self.sessions.get(session).is_some_and(|it| !it.called && !it.row.fencing);
        if !unused {
            return self.expire(session);
        }
        self.end(session, false, now);
        self.ended.push_back(session);
        Ok(())
    }

    /// The next session that ended without a word of its client and without a fence.
    pub fn poll_ended(&mut self) -> Option<u64> {
        self.ended.pop_front()
    }

    /// A session's term is over: from now on it is refused, and data servers shall refuse it, too.
    pub(super) fn expire(&mut self, session: u64) -> Result<(), RowsError> {
        let Some(state) = self.sessions.get_mut(session).filter(|state| !state.row.fencing) else {
            return Ok(());
        };
        state.row.fencing = true;
        state.row.epoch += 1;
        let is_bound = state.row.owner.is_bound();
        let (epoch, row) = (state.row.epoch, state.row.encode(!self.pools.has_bands()));
        self.sessions.revocations += u64::from(is_bound);
        let mut batch = Batch::default();
        batch.put(keys::key(Table::Session, &[session]), row);
        self.commit(batch)?;
        self.fences.push_back((session, epoch));
        for ticket in self.parking.of_session(session) {
            self.drop_parked(ticket);
        }
        Ok(())
    }

    /// All data servers refuse the session: its leases and locks go to others.
    pub fn handle_fenced(&mut self, session: u64, now: Moment) {
        let Some(state) = self.sessions.get(session).filter(|state| state.row.fencing) else {
            return;
        };
        if self.is_full() {
            // Ending it takes room; the fence stays, and is asked for once more.
            self.fences.push_back((session, state.row.epoch));
            return;
        }
        self.end(session, true, now);
        self.run_woken(now);
    }

    /// Sets the changes that the store admits. Others are refused (`ENOSPC`). If it admits none, the shard's
    /// own changes wait.
    pub fn set_admission(&mut self, admission: Admission, now: Moment) {
        let freed = self.is_full() && admission != Admission::Nothing;
        self.admission = admission;
        if freed && self.grace.is_none() {
            self.collect_all(now);
            self.run_woken(now);
        }
    }

    /// Appends ended: calls that waited for them go on, and sessions that look at the file hear of its size.
    pub(super) fn settle_appends(&mut self, now: Moment) {
        for (inode, told) in self.leases.appends.take_ended() {
            self.parking.wake(WaitOn::Grown(inode));
            if told {
                continue;
            }
            let ticket = self.parking.ticket();
            let mut operation = Operation::new(self, 0, ticket, now);
            match operation.tell_size(inode) {
                Ok(()) | Err(Stop::Errno(_)) => {}
                Err(Stop::Rows(RowsError::Damaged(text))) => self.note_damage(text),
                outcome => self.conclude_alone(outcome.map(|()| Batch::default())),
            }
        }
    }

    /// Takes a session apart: leases, opens, locks, stored replies, files that only it had open.
    fn end(&mut self, session: u64, expired: bool, now: Moment) {
        for ticket in self.parking.of_session(session) {
            self.drop_parked(ticket);
        }
        let inodes = self.leases.inodes_of(session);
        // A crash between the batches leaves the session's row, and so its end to be repeated.
        for some in inodes.chunks(INODES_PER_BATCH) {
            let mut operation = Operation::new(self, session, u64::MAX, now);
            let outcome = operation.give_up(some, expired).map(|()| operation.finish().0);
            self.conclude_alone(outcome);
        }
        let mut locked = self.locks.inodes_of(session).into_iter().peekable();
        while locked.peek().is_some() {
            let mut operation = Operation::new(self, session, u64::MAX, now);
            operation.give_up_locks(&mut locked);
            let batch = operation.finish().0;
            self.conclude_alone(Ok(batch));
        }
        let mut operation = Operation::new(self, session, u64::MAX, now);
        operation.end_session();
        let batch = operation.finish().0;
        self.conclude_alone(Ok(batch));
    }

    /// Commits the shard's own changes.
    pub(super) fn conclude_alone(&mut self, outcome: Step<Batch>) {
        let result = match outcome {
            Ok(batch) => self.commit(batch),
            Err(Stop::Rows(error)) => Err(error),
            Err(stop) => {
                Err(RowsError::Failed(format!("a row that must be there does not serve: {stop:?}")))
            }
        };
        if let Err(error) = result {
            self.stop(error);
        }
    }

    /// Ends the grace period once no session has anything left to reclaim. Rows that were restored do not know all
    /// sessions that may still count on leases: then it lasts its whole time.
    pub(super) fn check_grace(&mut self, now: Moment) {
        if self.restored && self.grace.is_some_and(|until| now.time < until) {
            return;
        }
        if self.grace.is_none() || self.sessions.iter().any(|(_, session)| session.reclaiming) {
            return;
        }
        self.grace = None;
        self.parking.wake(WaitOn::Grace);
        self.collect_all(now);
    }

    /// Destroys all orphans that nobody uses.
    fn collect_all(&mut self, now: Moment) {
        let mut after = vec![Table::Orphan as u8];
        while let Some(last) = self.collect_orphans(&after, now) {
            after = keys::key(Table::Orphan, &[last + 1]);
        }
    }

    /// Destroys inodes that were kept for a moment which is over.
    fn collect_kept(&mut self, now: Moment) {
        loop {
            let due: Vec<u64> =
                std::iter::from_fn(|| self.graves.due(now.time)).take(INODES_PER_BATCH).collect();
            if due.is_empty() {
                return;
            }
            let mut operation = Operation::new(self, 0, u64::MAX, now);
            let collected = due.into_iter().try_for_each(|inode| match operation.collect(inode) {
                // It went with its last user.
                Err(Stop::Errno(Errno::ESTALE)) => Ok(()),
                collected => collected,
            });
            let outcome = collected.map(|()| operation.finish().0);
            self.conclude_alone(outcome);
        }
    }

    /// Destroys orphans from `from` on that no session reclaimed; the last one that was looked at.
    fn collect_orphans(&mut self, from: &[u8], now: Moment) -> Option<u64> {
        let (to, mut orphans) = (keys::after(&[Table::Orphan as u8]), Vec::new());
        let scanned = self.rows.scan(from, &to, &mut |key, _| {
            orphans.extend(keys::number(key, 0));
            orphans.len() < INODES_PER_BATCH
        });
        if let Err(error) = scanned {
            self.stop(error);
            return None;
        }
        let last = *orphans.last()?;
        let mut operation = Operation::new(self, 0, u64::MAX, now);
        let outcome = orphans.into_iter().try_for_each(|orphan| operation.collect(orphan));
        let outcome = outcome.map(|()| operation.finish().0);
        self.conclude_alone(outcome);
        Some(last)
    }

    /// Whether sessions may still reclaim, and nothing else is served.
    pub fn is_in_grace(&self) -> bool {
        self.grace.is_some()
    }
}

impl<R: Rows> Operation<'_, R> {
    /// Takes the session's leases and opens on some inodes from it.
    fn give_up(&mut self, inodes: &[u64], expired: bool) -> Step<()> {
        let session = self.session;
        for &inode in inodes {
            let mode = self.shard.leases.mode(inode, session);
            self.shard.leases.remove(inode, session);
            self.shard.parking.wake(WaitOn::Inode(inode));
            if expired && matches!(mode, LeaseMode::Write | LeaseMode::Shared) {
                self.disown(inode)?;
            }
            match self.collect(inode) {
                Ok(()) | Err(Stop::Errno(ropewalk_wire::fs::value::Errno::ESTALE)) => {}
                Err(stop) => return Err(stop),
            }
        }
        Ok(())
    }

    /// Takes away the session's locks on the next inodes: as many as go into one batch.
    fn give_up_locks(&mut self, inodes: &mut impl Iterator<Item = u64>) {
        let mut effects = Effects::default();
        while effects.rows.len() < LOCKS_PER_BATCH
            && let Some(inode) = inodes.next()
        {
            self.shard.locks.release_session(inode, self.session, &mut effects);
        }
        self.apply_locks(effects);
    }

    /// Takes away the session's stored replies and its row.
    fn end_session(&mut self) {
        let session = self.session;
        self.shard.questions.forget(session);
        for inode in self.shard.growth.forget(session) {
            self.shard.parking.wake(WaitOn::Grown(inode));
        }
        if let Some(state) = self.shard.sessions.remove(session) {
            for slot in Sessions::stored_slots(&state) {
                self.batch.remove(keys::key(Table::Reply, &[session, slot]));
            }
        }
        self.batch.remove(keys::key(Table::Session, &[session]));
    }

    /// A writer died. If its file is inline, it may have begun to write stripes of which nobody
    /// knows: these go, and the next ones get names of their own.
    fn disown(&mut self, inode: u64) -> Step<()> {
        match self.inode(inode) {
            Ok(found) if found.is_file() && !found.striped => {
                // The session is refused everywhere by now: the objects that it wrote can go.
                let found = found.clone();
                self.queue_reap(&found);
                let next = self.shard.generations.after(found.generation).ok_or(Errno::EIO)?;
                // Nothing can wait here. Generations reserved by the start were durable before anything was
                // served, and the reserve is tens of thousands ahead of any file.
                self.shard.may_use_generation(next)?;
                self.change(inode)?.generation = next;
                Ok(())
            }
            Ok(_) | Err(Stop::Errno(_)) => Ok(()),
            Err(stop) => Err(stop),
        }
    }
}
