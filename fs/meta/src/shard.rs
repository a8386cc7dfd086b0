//! The shard: the life of a call from its slot to its reply, and everything that comes out beside.
//!
//! Invariants:
//! * calls are executed one after the other; a call's changes and its stored reply are one batch;
//! * a reply's position covers everything that the call can have seen;
//! * a session's leases, opens and locks go to others only after it closed, or after the fence that
//!   `poll_fence` asked for is up;
//! * during the grace period after a restart only requests that sessions need to reclaim are served, and
//!   requests that concern no inode.

mod chores;
mod ending;
pub(crate) mod opening;

use std::collections::{BTreeMap, VecDeque};

use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_rpc::Grantor;
use ropewalk_store::superblock::Starts;
use ropewalk_wire::fs::exports::Asker;
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::head::Status;
use ropewalk_wire::fs::layout::Layout;
use ropewalk_wire::fs::meta::{Callback, Clock, MetaReply, MetaRequest, MetaResult};
use ropewalk_wire::fs::term::Term;
use ropewalk_wire::fs::value::{Errno, Timestamp};
use ropewalk_wire::fs::{decode, encode};
use serde::{Deserialize, Serialize};

use crate::config::Config;
use crate::exports::{DEFAULT_EXPORT, Export, Exports};
use crate::graves::Graves;
use crate::growth::Growth;
use crate::history::TermRow;
use crate::identity::{Mapped, Standing};
use crate::inode::{Inode, encode_row};
use crate::keys::{self, Table};
use crate::leases::Leases;
use crate::locks::Locks;
use crate::names::NameHasher;
use crate::numbers::{Generations, Numbers};
use crate::operate::{Operation, Stop};
use crate::parking::{Parked, Parking, WaitOn};
use crate::pools::Pools;
use crate::questions::Questions;
use crate::rows::{Batch, Rows, RowsError};
use crate::sessions::{REPLY_VERSION, ReplyRow, Sessions, Verdict};

pub use chores::Reap;
pub(crate) use opening::{
    COUNTERS_VERSION, check_foundation, generations_key, generations_row, inode_count_key,
    inode_count_row, is_superblock,
};

/// Version of reap rows.
pub(crate) const REAP_VERSION: u8 = 1;
/// Version of the rows of owed fences.
pub(crate) const OWED_VERSION: u8 = 1;
/// Version of shrink rows.
pub(crate) const CUT_VERSION: u8 = 1;

/// Now, on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// Monotonic: terms and deadlines.
    pub time: Time,
    /// Calendar: times of inodes.
    pub calendar: Timestamp,
}

/// A call of a client. `session` 0: outside a session, for requests that change nothing there.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    pub session: u64,
    pub slot: u16,
    pub sequence: u64,
    pub request: MetaRequest<'a>,
    pub now: Moment,
}

/// A reply to be sent when the store's mark covers its position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// The encoded `MetaResult`.
    pub bytes: Vec<u8>,
    pub position: u64,
    /// The durable mark has to cover it, not only the written one.
    pub durable: bool,
}

/// The outcome of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    Reply(Reply),
    /// It waits; `poll_reply` has its reply under this ticket later.
    Wait(u64),
    /// Not served; the status for the reply's head.
    Refused(Status),
    /// The session may not make this request. Nothing was done, and its slot is as it was.
    Denied(Errno),
}

/// A call that waited and is done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Completed {
    pub ticket: u64,
    pub session: u64,
    pub slot: u16,
    pub sequence: u64,
    pub outcome: Outcome,
}

/// A session as it was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    pub session: u64,
    pub epoch: u32,
    pub position: u64,
}

/// A file whose stripe objects shall be cut, as `DataRequest::Truncate` says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cut {
    pub inode: u64,
    pub generation: u32,
    /// The write epoch from which on data servers serve the file again.
    pub epoch: u32,
    pub layout: Layout,
    pub stripe: u32,
    pub offset: u32,
}

/// The changes that the store admits, from all to none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Admission {
    All,
    /// Nothing new, and nothing longer: the disk is nearly full.
    NoGrowth,
    /// Only requests that free room, end something, or change no row: half of the room kept for them is used.
    Freeing,
    /// No change.
    Nothing,
}

/// One shard of the metadata.
#[derive(Debug)]
pub struct Shard<R> {
    pub(crate) rows: R,
    pub(crate) config: Config,
    /// The term that this start began.
    pub(crate) term: TermRow,
    /// The terms of the history, and the starts of its disk from before there were terms.
    pub(crate) starts: Starts,
    pub(crate) random: Random,
    pub(crate) names: NameHasher,
    pub(crate) numbers: Numbers,
    pub(crate) generations: Generations,
    pub(crate) leases: Leases,
    pub(crate) graves: Graves,
    pub(crate) locks: Locks,
    pub(crate) questions: Questions,
    pub(crate) growth: Growth,
    pub(crate) sessions: Sessions,
    pub(crate) exports: Exports,
    /// Exports whose terms have changed under their sessions.
    outdated: Vec<u32>,
    /// The newest second that data servers were told.
    latest: u32,
    pub(crate) pools: Pools,
    /// Makes the rights of limited sessions.
    pub(crate) grantor: Option<Grantor>,
    pub(crate) parking: Parking,
    pub(crate) callbacks: VecDeque<(u64, Callback)>,
    /// Files that are being cut; they take no writer until it is done.
    pub(crate) cuts: BTreeMap<u64, Cut>,
    pub(crate) cut_queue: VecDeque<u64>,
    /// There may be reap rows that were not given out.
    pub(crate) reap_waiting: bool,
    pub(crate) inode_count: u64,
    /// The number of inodes in its row.
    inode_count_kept: u64,
    pub(crate) next_range: u64,
    pub(crate) admission: Admission,
    reaps: chores::Reaps,
    fences: VecDeque<(u64, u32)>,
    /// Sessions whose fences servers are to be told that join later, in the order of their ends.
    later_fences: VecDeque<u64>,
    /// Reports of unreadable rows, for people.
    damage: VecDeque<String>,
    ended: VecDeque<u64>,
    completed: VecDeque<Completed>,
    boot: u64,
    position: u64,
    /// The time until which sessions may reclaim.
    grace: Option<Time>,
    /// The rows come from a dump, and were not served since.
    restored: bool,
    /// The epoch of the map with which this term began.
    first_map: u32,
    pub(crate) upgrade: opening::Upgrade,
    stopped: Option<RowsError>,
}

impl<R: Rows> Shard<R> {
    /// Whether these rows are an older copy, as a data server shows that has met the term `met`, and has known a map of this epoch
    /// by then: all that was told of the map before this term is in the rows with which it began. Rows that were restored from a dump need
    /// not have it.
    pub fn is_older_copy(&self, history: u128, met: Term, map: u32) -> bool {
        let own = self.term.term();
        history == self.config.boot.history
            && own.number() > met.number()
            && !own.is_restored_since(met)
            && map > self.first_map
    }

    /// Executes a call, and the calls that waited for its effects.
    pub fn execute(&mut self, call: Call<'_>) -> Outcome {
        let outcome = self.judge(&call);
        if let Err(error) = self.end_sessions() {
            self.stop(error);
        }
        self.run_woken(call.now);
        outcome
    }

    fn judge(&mut self, call: &Call<'_>) -> Outcome {
        if self.stopped.is_some() {
            return Outcome::Refused(Status::Unavailable);
        }
        if call.session == 0 {
            if self.grace.is_some() && !serves_in_grace(&call.request) {
                // Without a session nothing bounds how many would wait here.
                return Outcome::Refused(Status::Unavailable);
            }
            return match call.request {
                MetaRequest::Heartbeat(_)
                | MetaRequest::GetPool { .. }
                | MetaRequest::GetMap { .. }
                | MetaRequest::StatFileSystem
                | MetaRequest::ListInodes { .. }
                | MetaRequest::GetInodes { .. }
                | MetaRequest::GetPath { .. }
                | MetaRequest::Inspect { .. }
                | MetaRequest::Discard { .. }
                | MetaRequest::Vouch { .. }
                | MetaRequest::SetStep(_)
                | MetaRequest::Admit { .. }
                | MetaRequest::Order(_)
                | MetaRequest::Upgrade(_)
                | MetaRequest::TellGroups(_)
                | MetaRequest::MayClean { .. }
                | MetaRequest::Export(_) => {
                    let ticket = self.parking.ticket();
                    let mut groups = Vec::new();
                    match Standing::OUTSIDE.admit(&call.request, &mut groups) {
                        Ok(request) => self.run(0, call.slot, 0, &request, call.now, ticket),
                        Err(errno) => Outcome::Denied(errno),
                    }
                }
                _ => Outcome::Refused(Status::NoSession),
            };
        }
        let term = self.config.term;
        match self.sessions.get_mut(call.session) {
            None => return Outcome::Refused(Status::NoSession),
            Some(session) if session.row.fencing => return Outcome::Refused(Status::Fenced),
            Some(session) => {
                session.deadline = call.now.time + term;
                session.called = true;
            }
        }
        let mut groups = Vec::new();
        let admitted = match self.standing(call.session) {
            Some(standing) => standing.admit(&call.request, &mut groups),
            None => Err(Errno::EACCES),
        };
        match admitted {
            Ok(request) => self.judge_slot(call, &request),
            Err(errno) => Outcome::Denied(errno),
        }
    }

    /// The terms of a session; none where its export is no more.
    pub(crate) fn standing(&self, session: u64) -> Option<Standing<'_>> {
        let (limit, export) = self.sessions.terms(session);
        Some(Standing { limit, export: self.exports.get(export)? })
    }

    fn judge_slot(&mut self, call: &Call<'_>, request: &Mapped<'_>) -> Outcome {
        match self.sessions.judge(call.session, call.slot, call.sequence) {
            Verdict::Bad => return Outcome::Refused(Status::BadSequence),
            Verdict::Parked(ticket) => return Outcome::Wait(ticket),
            Verdict::Stored(reply, _) if self.is_lost_temporary(request.request(), &reply) => {}
            Verdict::Stored(..) if self.config.execute_duplicates => {}
            Verdict::Stored(reply, position) => {
                let (id, ticket) =
                    ((call.session, call.slot, call.sequence), self.parking.ticket());
                return self.answer_again(id, request, (reply, position), (ticket, call.now));
            }
            Verdict::New { abandoned: Some(ticket) } => self.drop_parked(ticket),
            Verdict::New { abandoned: None } | Verdict::Again => {}
        }
        let ticket = self.parking.ticket();
        self.run(call.session, call.slot, call.sequence, request, call.now, ticket)
    }

    /// Runs a request once: to its reply, or into the car park.
    fn run(
        &mut self,
        session: u64,
        slot: u16,
        sequence: u64,
        mapped: &Mapped<'_>,
        now: Moment,
        ticket: u64,
    ) -> Outcome {
        let request = mapped.request();
        let early = serves_in_grace(request) && !self.awaits_reclaim(session, request);
        let stop = if self.grace.is_some() && !early {
            Stop::Wait { on: vec![WaitOn::Grace] }
        } else if !self.admits(request) {
            Stop::Errno(Errno::ENOSPC)
        } else {
            let mut operation = Operation::new(self, session, ticket, now);
            match operation.dispatch(mapped) {
                Ok(()) => {
                    let after_cut = operation.told_after_cut;
                    let after_growth = operation.told_after_growth;
                    let (batch, bytes, durable) = operation.finish();
                    let outcome = self.conclude(session, slot, sequence, batch, bytes, durable);
                    match (outcome, after_cut, after_growth) {
                        (Outcome::Reply(_), Some(inode), _) => {
                            Stop::Wait { on: vec![WaitOn::Inode(inode)] }
                        }
                        (Outcome::Reply(_), None, Some(inode)) => {
                            Stop::Wait { on: vec![WaitOn::Grown(inode)] }
                        }
                        (outcome, ..) => return outcome,
                    }
                }
                // Requests for other rows are served as before.
                Err(Stop::Rows(RowsError::Damaged(text))) if operation.is_blank() => {
                    self.note_damage(text);
                    Stop::Errno(Errno::EIO)
                }
                Err(stop) => stop,
            }
        };
        match stop {
            Stop::Errno(errno) => {
                let result: MetaResult<'_> = Err(errno);
                let mut bytes = Vec::new();
                encode(&result, &mut bytes);
                Outcome::Reply(Reply { bytes, position: self.position, durable: false })
            }
            Stop::Wait { on } => self.park((session, slot, sequence), mapped, on, ticket),
            Stop::Rows(error) => self.stop(error),
        }
    }

    /// Whether a request may be executed with the room that there is. An operation that makes something new
    /// or longer checks on its way, since it may turn out to do neither.
    fn admits(&self, request: &MetaRequest<'_>) -> bool {
        match self.admission {
            Admission::All | Admission::NoGrowth => true,
            Admission::Freeing => frees(request) || serves_when_full(request),
            Admission::Nothing => serves_when_full(request),
        }
    }

    /// The store takes no change: its disk is full.
    pub(crate) fn is_full(&self) -> bool {
        self.admission == Admission::Nothing
    }

    /// Answers a call that was executed before from its stored reply: at once, or when the cut that
    /// it ordered is done.
    fn answer_again(
        &mut self,
        (session, slot, sequence): (u64, u16, u64),
        mapped: &Mapped<'_>,
        (reply, position): (Vec<u8>, u64),
        (ticket, now): (u64, Moment),
    ) -> Outcome {
        let request = mapped.request();
        if let MetaRequest::SetAttributes { inode, .. } = *request
            && self.cuts.contains_key(&inode)
        {
            let on = vec![WaitOn::Inode(inode)];
            return self.park((session, slot, sequence), mapped, on, ticket);
        }
        let mut waits = |(inode, size): &(u64, u64)| {
            self.leases.appends.wait(*inode, session, *size, now.time)
                || self.growth.is_awaited(*inode)
        };
        if let Some((inode, _)) = grows(request).filter(|it| waits(it)) {
            let on = vec![WaitOn::Grown(inode)];
            return self.park((session, slot, sequence), mapped, on, ticket);
        }
        let bytes = self.refresh(session, request, reply);
        Outcome::Reply(Reply { bytes, position, durable: false })
    }

    /// Lets a call wait.
    fn park(
        &mut self,
        (session, slot, sequence): (u64, u16, u64),
        request: &Mapped<'_>,
        on: Vec<WaitOn>,
        ticket: u64,
    ) -> Outcome {
        let request = request.keep();
        self.parking.park(ticket, Parked { session, slot, sequence, request, on });
        self.sessions.set_parked(session, slot, Some(ticket));
        Outcome::Wait(ticket)
    }

    /// Whether the request tells of a lease that the session has yet to reclaim: one that was under
    /// way when the server died, and comes before the reclaim.
    fn awaits_reclaim(&self, session: u64, request: &MetaRequest<'_>) -> bool {
        let (MetaRequest::Release { inode, .. }
        | MetaRequest::Report { inode, .. }
        | MetaRequest::RenewEpoch { inode }
        | MetaRequest::Allow { inode }) = request
        else {
            return false;
        };
        let reclaiming = self.sessions.get(session).is_some_and(|session| session.reclaiming);
        reclaiming && self.leases.holder(*inode, session).is_none()
    }

    /// Commits the changes of an operation, with its reply.
    fn conclude(
        &mut self,
        session: u64,
        slot: u16,
        sequence: u64,
        mut batch: Batch,
        bytes: Vec<u8>,
        durable: bool,
    ) -> Outcome {
        let changes = !batch.is_empty();
        let stored = changes && session != 0;
        if stored {
            let key = keys::key(Table::Reply, &[session, u64::from(slot)]);
            let row = ReplyRow { sequence, reply: bytes };
            batch.put(key, encode_row(REPLY_VERSION, &row));
            if let Err(error) = self.commit(batch) {
                return self.stop(error);
            }
            let bytes = row.reply;
            self.sessions.store(session, slot, bytes.clone(), self.position);
            return Outcome::Reply(Reply { bytes, position: self.position, durable });
        }
        if let Err(error) = self.commit(batch) {
            return self.stop(error);
        }
        Outcome::Reply(Reply { bytes, position: self.position, durable })
    }

    fn commit(&mut self, mut batch: Batch) -> Result<(), RowsError> {
        if !batch.is_empty() {
            if self.inode_count != self.inode_count_kept {
                batch.put(opening::inode_count_key(), opening::inode_count_row(self.inode_count));
                self.inode_count_kept = self.inode_count;
            }
            self.position = self.rows.commit(batch)?;
        }
        Ok(())
    }

    /// Gives groups of the map these servers, which have their bytes. False where a group is not in the map.
    pub fn set_groups(&mut self, groups: &[(Group, Vec<u32>)]) -> Result<bool, RowsError> {
        let (mut batch, mut known) = (Batch::default(), true);
        // Each row once, as it is at last.
        let mut last = BTreeMap::new();
        for (group, servers) in groups {
            let rows = self.pools.set_group(*group, servers);
            known &= rows.is_some();
            last.extend(rows.into_iter().flatten());
        }
        last.into_iter().for_each(|(key, row)| batch.put(key, row));
        self.commit(batch).map(|()| known)
    }

    /// Makes an export, changes its terms, or takes it away (`None`). The root stays for the export's sessions, who
    /// know it by its number. False where the terms do not make sense, of the
    /// export that every store has, and in a store of the first format, whose sessions cannot say theirs.
    pub fn set_export(&mut self, number: u32, export: Option<Export>) -> Result<bool, RowsError> {
        let sensible = export.as_ref().is_none_or(|export| export.check().is_ok());
        if number == DEFAULT_EXPORT || !sensible || !self.pools.has_bands() {
            return Ok(false);
        }
        if let Some(Export { root, .. }) = export {
            if self.exports.get(number).is_some_and(|before| before.root != root) {
                return Ok(false);
            }
            let row = self.rows.get(&keys::key(Table::Inode, &[root]))?;
            let inode = row.and_then(|bytes| Inode::decode(root, &bytes).ok());
            if !inode.is_some_and(|inode| inode.is_directory() && inode.links > 0) {
                return Ok(false);
            }
        }
        let (mut batch, key) = (Batch::default(), keys::key(Table::Export, &[u64::from(number)]));
        match &export {
            Some(export) => batch.put(key, export.encode()),
            None => batch.remove(key),
        }
        self.commit(batch)?;
        self.note_export(number, export);
        self.end_sessions().map(|()| true)
    }

    /// An export's row has changed: sessions under other terms are to end.
    pub(crate) fn note_export(&mut self, number: u32, export: Option<Export>) {
        let before = self.exports.get(number);
        let same = before.zip(export.as_ref()).is_some_and(|(before, it)| before.acts_like(it));
        if before.is_some() && !same {
            self.outdated.push(number);
        }
        self.exports.set(number, export);
    }

    /// Ends the sessions of exports whose terms have changed.
    fn end_sessions(&mut self) -> Result<(), RowsError> {
        std::mem::take(&mut self.outdated).into_iter().try_for_each(|it| self.end_sessions_of(it))
    }

    /// The time by which data servers judge capabilities.
    pub(crate) fn clock(&mut self, now: Moment) -> Clock {
        Clock { seconds: self.seconds(now), revocations: self.sessions.revocations }
    }

    /// Seconds since 1970. They never go back while this server serves.
    pub(crate) fn seconds(&mut self, now: Moment) -> u32 {
        let seconds = u32::try_from(now.calendar.seconds.max(0)).unwrap_or(u32::MAX);
        self.latest = self.latest.max(seconds);
        self.latest
    }

    /// The terms of an export, if there is one of this number.
    pub fn export(&self, number: u32) -> Option<&Export> {
        self.exports.get(number)
    }

    /// The export for a client; none where there are only exports for others.
    pub fn choose_export(&self, asker: &Asker<'_>) -> Option<u32> {
        self.exports.choose(asker)
    }

    /// Has people told of unreadable rows.
    pub(crate) fn note_damage(&mut self, text: String) {
        self.damage.push_back(text);
    }

    fn stop(&mut self, error: RowsError) -> Outcome {
        self.stopped = Some(error);
        Outcome::Refused(Status::Unavailable)
    }

    /// The term of the history that began when this shard was opened. It is told once its row is durable.
    pub fn term(&self) -> &TermRow {
        &self.term
    }

    /// Why the shard serves no more, if it stopped.
    pub fn failure(&self) -> Option<&RowsError> {
        self.stopped.as_ref()
    }

    /// Executes calls whose wait conditions came about meanwhile, in the order in which they came.
    fn run_woken(&mut self, now: Moment) {
        self.check_grace(now);
        loop {
            self.settle_appends(now);
            let Some(ticket) = self.parking.next_woken() else { return };
            let Some(parked) = self.parking.take(ticket) else { continue };
            let Parked { session, slot, sequence, request, on } = parked;
            self.sessions.set_parked(session, slot, None);
            let outcome = match request.request() {
                Some(request) => match self.sessions.stored(session, slot, sequence) {
                    Some(stored) => self.answer_again(
                        (session, slot, sequence),
                        &request,
                        stored,
                        (ticket, now),
                    ),
                    None => self.run(session, slot, sequence, &request, now, ticket),
                },
                None => Outcome::Refused(Status::Malformed),
            };
            // Calls that stood behind it are tried when it is done, and also when it goes on to wait for
            // something else: a name may mean another inode by now.
            for on in on {
                if !self.parking.waits(on, ticket) {
                    self.parking.wake(on);
                }
            }
            if !matches!(outcome, Outcome::Wait(_)) {
                let done = Completed { ticket, session, slot, sequence, outcome };
                self.completed.push_back(done);
            }
            self.check_grace(now);
        }
    }

    /// Forgets a call that waits. Calls that wait behind it are tried again.
    fn drop_parked(&mut self, ticket: u64) {
        if let Some(parked) = self.parking.take(ticket) {
            self.sessions.set_parked(parked.session, parked.slot, None);
            parked.on.into_iter().for_each(|on| self.parking.wake(on));
        }
    }

    /// The next inode number; None while the range that has it is not durable.
    pub(crate) fn next_inode(&mut self) -> Result<Option<u64>, RowsError> {
        if self.numbers.wants_range(self.config.inode_range) {
            self.reserve_range(Batch::default())?;
        }
        Ok(self.numbers.next(self.rows.durable()))
    }

    /// Reserves more inode numbers, in a batch with other changes.
    fn reserve_range(&mut self, mut batch: Batch) -> Result<(), RowsError> {
        let range = self.next_range..self.next_range + self.config.inode_range;
        self.next_range = range.end;
        batch.put(keys::key(Table::Counters, &[]), self.counters());
        self.commit(batch)?;
        self.numbers.add(range, self.position);
        Ok(())
    }

    /// Whether `next` may be the generation of an inode's content: else the call has to wait until
    /// more of them are durably reserved.
    pub(crate) fn may_use_generation(&mut self, next: u32) -> Result<bool, RowsError> {
        self.generations.settle(self.rows.durable());
        if let Some(end) = self.generations.wanted(next) {
            self.reserve_generations(end)?;
        }
        Ok(self.generations.may_use(next))
    }

    fn reserve_generations(&mut self, end: u32) -> Result<(), RowsError> {
        let mut batch = Batch::default();
        let row = opening::generations_row(self.generations.first(), end);
        batch.put(opening::generations_key(), row);
        self.commit(batch)?;
        self.generations.add(end, self.position);
        Ok(())
    }

    /// A stored reply once more. Leases that it granted and that are gone since are taken out; a file that it
    /// opened is open.
    fn refresh(&mut self, session: u64, request: &MetaRequest<'_>, reply: Vec<u8>) -> Vec<u8> {
        let Ok(Ok(mut result)) = decode::<MetaResult<'_>>(&reply) else { return reply };
        let (_, export) = self.sessions.terms(session);
        let leases = &mut self.leases;
        let opened = matches!(result, MetaReply::Opened { .. });
        let (inode, grant) = match &mut result {
            MetaReply::Entry(entry) | MetaReply::Opened { entry, .. } => {
                entry.entry_cached = false;
                (entry.attributes.inode, &mut entry.grant)
            }
            MetaReply::Attributes { attributes, grant } => (attributes.inode, grant),
            _ => return reply,
        };
        // The reply has the numbers of the session's client.
        let inode = self.exports.get(export).map_or(inode, |export| export.inner_inode(inode));
        let held = leases.holder(inode, session).filter(|holder| !holder.is_recalled());
        *grant = grant.filter(|grant| {
            held.is_some_and(|held| held.number == grant.number && held.mode == grant.mode)
        });
        if let MetaRequest::Create { access, .. }
        | MetaRequest::Temporary { access, .. }
        | MetaRequest::Open { access, .. } = request
            && opened
        {
            leases.open(inode, session, *access);
        }
        let mut bytes = Vec::new();
        encode(&MetaResult::Ok(result), &mut bytes);
        bytes
    }

    /// Whether a stored reply names a file without a name that is gone: the server restarted before
    /// the client learned of it, so nobody reclaimed it. Of that call no effect is left, and it may
    /// be executed anew.
    fn is_lost_temporary(&self, request: &MetaRequest<'_>, reply: &[u8]) -> bool {
        if !matches!(request, MetaRequest::Temporary { .. }) {
            return false;
        }
        let Ok(Ok(MetaReply::Opened { entry, .. })) = decode::<MetaResult<'_>>(reply) else {
            return false;
        };
        let key = keys::key(Table::Inode, &[entry.attributes.inode]);
        self.rows.get(&key).is_ok_and(|row| row.is_none())
    }

    /// Rights of limited sessions are made by this one; without, they have none.
    pub fn set_grantor(&mut self, grantor: Grantor) {
        self.grantor = Some(grantor);
    }

    /// The rows, for inspection.
    pub fn rows(&self) -> &R {
        &self.rows
    }

    /// The rows, for moving the durable mark and for taking the shard apart.
    pub fn rows_mut(&mut self) -> &mut R {
        &mut self.rows
    }

    /// The rows, without the shard, as a restart finds them.
    pub fn into_rows(self) -> R {
        self.rows
    }

    /// The leases, for looking at them.
    pub fn leases(&self) -> &Leases {
        &self.leases
    }

    /// Whether an inode without a name and without a user is kept for a moment.
    pub fn keeps(&self, inode: u64) -> bool {
        self.graves.keeps(inode)
    }

    /// The locks, for looking at them.
    pub fn locks(&self) -> &Locks {
        &self.locks
    }
}

/// The requests that a session needs to take its leases up again, and those that concern no inode.
fn serves_in_grace(request: &MetaRequest<'_>) -> bool {
    matches!(
        request,
        MetaRequest::Reclaim { .. }
            | MetaRequest::ReclaimDone
            | MetaRequest::Release { .. }
            | MetaRequest::Report { .. }
            | MetaRequest::RenewEpoch { .. }
            | MetaRequest::Allow { .. }
            | MetaRequest::Heartbeat(_)
            | MetaRequest::GetPool { .. }
            | MetaRequest::GetMap { .. }
            | MetaRequest::Vouch { .. }
            | MetaRequest::SetStep(_)
            | MetaRequest::StatFileSystem
    )
}

/// The requests that free room, or end something that takes some.
fn frees(request: &MetaRequest<'_>) -> bool {
    matches!(
        request,
        MetaRequest::MayClean { .. }
            | MetaRequest::Unlink { .. }
            | MetaRequest::RemoveDirectory { .. }
            | MetaRequest::Rename { .. }
            | MetaRequest::SetAttributes { .. }
            | MetaRequest::Open { .. }
            | MetaRequest::Report { .. }
            | MetaRequest::RenewEpoch { .. }
            | MetaRequest::LeaveInline { .. }
            | MetaRequest::RemoveXattr { .. }
            | MetaRequest::CancelLock { .. }
            | MetaRequest::ReleaseOwner { .. }
            | MetaRequest::Discard { .. }
            | MetaRequest::SetStep(_)
    )
}

/// The file that a request can make longer, and the size that it has to be told of after this.
fn grows(request: &MetaRequest<'_>) -> Option<(u64, u64)> {
    match *request {
        MetaRequest::Report { inode, report } => Some((inode, report.size.unwrap_or(0))),
        MetaRequest::SetAttributes { inode, change, .. } => Some((inode, change.size.unwrap_or(0))),
        MetaRequest::WriteInline { inode, .. } | MetaRequest::ReserveAppend { inode, .. } => {
            Some((inode, 0))
        }
        _ => None,
    }
}

/// The requests that change no row, or can leave their change for later.
fn serves_when_full(request: &MetaRequest<'_>) -> bool {
    matches!(
        request,
        MetaRequest::Lookup { .. }
            | MetaRequest::GetAttributes { .. }
            | MetaRequest::Open { truncate: false, .. }
            | MetaRequest::Acquire { .. }
            | MetaRequest::Allow { .. }
            | MetaRequest::Release { .. }
            | MetaRequest::Reclaim { .. }
            | MetaRequest::ReclaimDone
            | MetaRequest::ReadDirectory { .. }
            | MetaRequest::ReadLink { .. }
            | MetaRequest::ReadInline { .. }
            | MetaRequest::GetXattr { .. }
            | MetaRequest::ListXattr { .. }
            | MetaRequest::TestLock { .. }
            | MetaRequest::ToldUnlocked { .. }
            | MetaRequest::ToldGrown { .. }
            | MetaRequest::StatFileSystem
            | MetaRequest::Sync
            | MetaRequest::GetPool { .. }
            | MetaRequest::GetMap { .. }
            | MetaRequest::Heartbeat(_)
            | MetaRequest::ListInodes { .. }
            | MetaRequest::GetInodes { .. }
            | MetaRequest::GetPath { .. }
            | MetaRequest::Inspect { .. }
            | MetaRequest::Vouch { .. }
    )
}
