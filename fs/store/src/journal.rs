//! The journal: an append-only log of batches, the durability point of metadata.
//!
//! Records are gathered in memory. At the end of the executor's turn they are written as one
//! group (`written`: the kernel has them, they survive kill -9); when somebody waits for
//! `durable`, or after an interval, the files are synced beside the executor while writing goes
//! on. The next sync covers all that was written meanwhile.
//!
//! Invariants
//! * positions grow by one; a group is written only after all groups before it;
//! * `durable` <= `written` < next position, and no mark covers a record that failed;
//! * nobody is told that a record is written or durable before the mark says so, which lies in a file
//!   of its own: a record that is missed later is known to be missing; nor before all members have it
//!   ([`crate::agreement`]);
//! * two files are enough to go on for ever, as long as checkpoints free one of them in turn: with a
//!   journal that is full they are waited for;
//! * a failed write or sync stops the journal for good: nobody is told success afterwards;
//! * after a start, records go to a new segment with a new epoch; recovered bytes are never
//!   written over before a checkpoint has made them superfluous;
//! * a segment is given up only when the checkpoint covers it and its successor's header is
//!   durable, so that a journal is never found without a beginning.
//!
//! It must not know the content of a payload.

mod mark;
mod open;
mod read;
mod record;
mod recover;
mod segment;
#[cfg(test)]
mod tests;

pub(crate) use mark::accepts as accepts_mark;
pub(crate) use record::{accepts_header, accepts_record};

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_base::disk::File;
use ropewalk_base::task::Notify;
use ropewalk_base::timing::{Histogram, Timer};
use ropewalk_base::world::World;

use crate::agreement::{Agreement, Member, Reach};
use crate::error::StoreError;
use crate::marks::{Mark, Position, Reached};
use mark::MarkFile;
use record::{SEGMENT_HEADER_BYTES, SegmentHeader};
use segment::segment_name;

pub(crate) use open::clear;
pub use open::{FoundJournal, OpenJournal, RecoveredJournal, Recovery, recover};
pub use read::JournalReader;
pub use recover::Replay;

/// Longest segment, in bytes.
pub const SEGMENT_BYTES_MAX: u64 = 1 << 30;
/// Shortest segment, in bytes.
pub const SEGMENT_BYTES_MIN: u64 = 16 * 1024;
/// Files that are kept for their next use; more are removed.
const OLD_FILES_MAX: usize = 2;
/// More bytes than this that wait for their write hold new ones back.
const BUFFERED_BYTES_READY: usize = 4 << 20;
/// A group buffer larger than this is given back after its write.
const BUFFER_BYTES_KEPT: usize = 1 << 20;
/// Segments that are kept for readers; whoever is further behind has to copy the index.
const KEPT_SEGMENTS_MAX: usize = 64;
/// Bytes of the newest records that are kept in memory while somebody reads the journal.
const RECENT_BYTES_MAX: usize = 1 << 20;
/// The pause before one looks again whether files are removed.
const REMOVAL_PAUSE: Duration = Duration::from_millis(1);
/// The pause before a full disk is asked again.
const FULL_RETRY: Duration = Duration::from_millis(500);

/// Sizes and times of a journal.
#[derive(Debug, Clone, Copy)]
pub struct JournalConfig {
    /// Bytes of one segment file, all of them written when it is made. The longest record is a
    /// quarter of it.
    pub segment_bytes: u64,
    /// Written records become durable after this time even where nobody waits.
    pub sync_interval: Duration,
}

impl Default for JournalConfig {
    fn default() -> JournalConfig {
        JournalConfig { segment_bytes: 16 << 20, sync_interval: Duration::from_millis(500) }
    }
}

impl JournalConfig {
    /// Bytes of the longest payload.
    pub fn payload_bytes_max(&self) -> usize {
        (self.segment_bytes / 4) as usize - record::RECORD_HEADER_BYTES
    }
}

/// A journal that takes records. Cloning gives another handle; stays on its executor.
#[derive(Clone)]
pub struct Journal {
    shared: Rc<Shared>,
}

struct Shared {
    world: World,
    directory: PathBuf,
    config: JournalConfig,
    epoch: u64,
    store: u128,
    /// The start value of the checksums of records.
    seed: u32,
    mark: MarkFile,
    /// Of the own files.
    own_written: Mark,
    own_durable: Mark,
    /// Of the own files and of all members.
    agreement: Agreement,
    state: RefCell<State>,
    /// Told when a file for further records is there, or is not.
    prepared: Notify,
    /// Told when somebody wants a further record to be durable.
    sync_asked: Notify,
    /// Told when a task beside the executor is over.
    rested: Notify,
    writes: Timer,
    syncs: Timer,
}

struct State {
    next: u64,
    /// The place of the next record, buffered ones counted.
    tail_sequence: u64,
    tail_offset: u64,
    groups: VecDeque<Group>,
    buffered: usize,
    /// A buffer for the next group.
    buffer: Vec<u8>,
    segments: VecDeque<Segment>,
    spare: Option<(u64, Arc<dyn File>)>,
    old: Vec<PathBuf>,
    /// Of each reader: the record that it wants next.
    wanted: BTreeMap<u64, u64>,
    next_reader: u64,
    recent: Recent,
    preparing: bool,
    /// Each removal of files that is under way has a copy.
    removing: Arc<()>,
    full: bool,
    /// The disk is nearly full: files that nobody needs now are given back.
    frugal: bool,
    flush_scheduled: bool,
    sync_running: bool,
    sync_wanted: u64,
    timer_armed: bool,
    /// Written since the journal was opened.
    bytes: u64,
    failed: Option<StoreError>,
}

/// The newest records, for those who read them as they come.
#[derive(Default)]
struct Recent {
    /// The position of the first one.
    first: u64,
    records: VecDeque<RecentRecord>,
    bytes: usize,
}

struct RecentRecord {
    payload: Vec<u8>,
    /// Its segment, and the offset behind it there.
    end: (u64, u64),
}

impl Recent {
    /// The next record is at this position.
    fn push(&mut self, position: u64, payload: &[u8], end: (u64, u64)) {
        if self.records.is_empty() {
            self.first = position;
        }
        debug_assert_eq!(self.first + self.records.len() as u64, position, "none is left out");
        self.bytes += payload.len();
        self.records.push_back(RecentRecord { payload: payload.to_vec(), end });
        while self.bytes > RECENT_BYTES_MAX
            && let Some(oldest) = self.records.pop_front()
        {
            self.bytes -= oldest.payload.len();
            self.first += 1;
        }
    }

    fn get(&self, position: u64) -> Option<&RecentRecord> {
        let index = usize::try_from(position.checked_sub(self.first)?).ok()?;
        self.records.get(index)
    }
}

struct Segment {
    sequence: u64,
    first: u64,
    file: Arc<dyn File>,
    path: PathBuf,
    /// Written since the last sync began.
    dirty: bool,
    header_durable: bool,
}

/// Records that go to one place with one write.
struct Group {
    sequence: u64,
    offset: u64,
    bytes: Vec<u8>,
    first: u64,
    last: u64,
}

impl Journal {
    /// Starts a recovered journal on this executor.
    pub fn start(world: &World, recovered: RecoveredJournal) -> Journal {
        let last = recovered.recovery.last;
        let tail = recovered.segments.back().expect("recovery made a segment");
        let state = State {
            next: last.0 + 1,
            tail_sequence: tail.sequence,
            tail_offset: SEGMENT_HEADER_BYTES,
            groups: VecDeque::new(),
            buffered: 0,
            buffer: Vec::new(),
            segments: recovered.segments,
            spare: None,
            old: recovered.old,
            wanted: BTreeMap::new(),
            next_reader: 0,
            recent: Recent::default(),
            preparing: false,
            removing: Arc::default(),
            full: false,
            frugal: false,
            flush_scheduled: false,
            sync_running: false,
            sync_wanted: 0,
            timer_armed: false,
            bytes: 0,
            failed: None,
        };
        let shared = Rc::new(Shared {
            world: world.clone(),
            directory: recovered.directory,
            config: recovered.config,
            epoch: recovered.open.epoch,
            store: recovered.open.store,
            seed: record::seed_of(recovered.open.store),
            mark: recovered.mark,
            own_written: Mark::new(last),
            own_durable: Mark::new(last),
            agreement: Agreement::new(last),
            state: RefCell::new(state),
            prepared: Notify::new(),
            sync_asked: Notify::new(),
            rested: Notify::new(),
            writes: Timer::default(),
            syncs: Timer::default(),
        });
        shared.prepare();
        Journal { shared }
    }

    /// Appends a record. It is written at the end of the executor's turn.
    pub fn append(&self, payload: &[u8]) -> Result<Position, StoreError> {
        let limit = self.shared.config.payload_bytes_max();
        if payload.len() > limit {
            let what = "a journal record";
            return Err(StoreError::TooLarge { what, bytes: payload.len(), limit });
        }
        let shared = &self.shared;
        let mut state = shared.state.borrow_mut();
        if let Some(error) = &state.failed {
            return Err(error.stopped());
        }
        let need = record::record_bytes(payload.len()) as u64;
        let turn = state.tail_offset + need > shared.config.segment_bytes;
        if turn && state.full && state.spare.is_none() {
            let path = shared.directory.clone();
            let needed = shared.config.segment_bytes;
            return Err(StoreError::Full { path, what: "the journal", needed });
        }
        let position = state.next;
        let durable = shared.own_durable.get().0;
        state.next += 1;
        if turn {
            state.tail_sequence += 1;
            state.tail_offset = 0;
        }
        shared.group_for(&mut state, position);
        let group = state.groups.back_mut().expect("a group was just made");
        group.last = position;
        let before = group.bytes.len();
        record::encode_record(
            &mut group.bytes,
            shared.seed,
            shared.epoch,
            position,
            durable,
            payload,
        );
        let added = group.bytes.len() - before;
        let end = (group.sequence, group.offset + group.bytes.len() as u64);
        if state.wanted.is_empty() {
            state.recent = Recent::default();
        } else {
            state.recent.push(position, payload, end);
        }
        state.tail_offset += added as u64;
        state.buffered += added;
        if !state.flush_scheduled {
            state.flush_scheduled = true;
            drop(state);
            let shared = Rc::downgrade(shared);
            self.shared.world.spawn(async move {
                if let Some(shared) = shared.upgrade() {
                    shared.state.borrow_mut().flush_scheduled = false;
                    shared.flush();
                }
            });
        }
        Ok(Position(position))
    }

    /// Writes the appended records now, not at the end of the turn.
    pub fn flush(&self) {
        self.shared.flush();
    }

    /// The position of the last record that was appended.
    pub fn position(&self) -> Position {
        Position(self.shared.state.borrow().next - 1)
    }

    /// Everything up to here is with the kernel of each member: it survives the death of the processes.
    pub fn written(&self) -> Position {
        self.shared.agreement.written.get()
    }

    /// Everything up to here survives a power loss, at each member.
    pub fn durable(&self) -> Position {
        self.shared.agreement.durable.get()
    }

    /// Completes when `written` covers `position`.
    pub fn wait_written(&self, position: Position) -> Reached {
        self.shared.agreement.written.reached(position)
    }

    /// Completes when `durable` covers `position`; starts a sync where none is on its way.
    pub fn wait_durable(&self, position: Position) -> Reached {
        self.want_sync(position);
        self.shared.agreement.durable.reached(position)
    }

    /// How far the own files have come, whatever the members have.
    pub fn own(&self) -> Reach {
        let (written, durable) = (self.shared.own_written.get(), self.shared.own_durable.get());
        Reach { written, durable }
    }

    /// Completes when the own files have `position`.
    pub fn wait_own_written(&self, position: Position) -> Reached {
        self.shared.own_written.reached(position)
    }

    /// Completes when the own files have `position` durably; starts a sync where none is on its way.
    pub fn wait_own_durable(&self, position: Position) -> Reached {
        self.want_sync(position);
        self.shared.own_durable.reached(position)
    }

    fn want_sync(&self, position: Position) {
        let mut state = self.shared.state.borrow_mut();
        let is_news = position.0 > state.sync_wanted;
        state.sync_wanted = state.sync_wanted.max(position.0);
        drop(state);
        if is_news {
            self.shared.sync_asked.notify_all();
        }
        self.shared.sync();
    }

    /// From now on nothing becomes written or durable that this member has not confirmed.
    pub fn admit(&self, member: Member, reach: Reach) {
        self.shared.agreement.admit(member, reach);
    }

    /// A member starts again, and may have lost something: it counts for nothing until it says how far it has come.
    pub fn begin_anew(&self, member: Member) {
        self.shared.agreement.begin_anew(member);
    }

    /// Whether a store is a member.
    pub fn is_member(&self, member: Member) -> bool {
        self.shared.agreement.is_member(member)
    }

    /// Whether a member has all that is written and durable.
    pub fn has_all(&self, member: Member) -> bool {
        self.shared.agreement.has_all(member)
    }

    /// The last record that somebody wants to be durable.
    pub fn sync_wanted(&self) -> Position {
        Position(self.shared.state.borrow().sync_wanted)
    }

    /// Completes when somebody wants a further record to be durable.
    pub fn sync_asked(&self) -> impl Future<Output = ()> + use<> {
        self.shared.sync_asked.notified()
    }

    /// A member says how far it has come.
    pub fn confirm(&self, member: Member, reach: Reach) {
        self.shared.agreement.confirm(member, reach);
    }

    /// Goes on without a member. Those who elect servers have to know that first, durably.
    pub fn dismiss(&self, member: Member) {
        self.shared.agreement.dismiss(member);
    }

    /// The members beside the own files, and how far each has come.
    pub fn members(&self) -> Vec<(Member, Reach)> {
        self.shared.agreement.members()
    }

    /// Completes when so few bytes wait for their write that more may come.
    pub async fn ready(&self) -> Result<(), StoreError> {
        let waiting = {
            let state = self.shared.state.borrow();
            if let Some(error) = &state.failed {
                return Err(error.stopped());
            }
            (state.buffered > BUFFERED_BYTES_READY).then(|| Position(state.next - 1))
        };
        match waiting {
            Some(last) => self.wait_own_written(last).await,
            None => Ok(()),
        }
    }

    /// Bytes written since the journal was opened.
    pub fn written_bytes(&self) -> u64 {
        self.shared.state.borrow().bytes
    }

    /// Durations of the writes of groups since the journal was opened, and of its syncs with their wait for a thread.
    pub fn times(&self) -> (Histogram, Histogram) {
        (self.shared.writes.read(), self.shared.syncs.read())
    }

    /// The error that stopped the journal.
    pub fn failed(&self) -> Option<StoreError> {
        self.shared.state.borrow().failed.clone()
    }

    /// Stops the journal because the store above it failed.
    pub fn fail(&self, error: StoreError) {
        self.shared.fail(error);
    }

    /// Completes when nothing is done to the files any more, after [`Journal::fail`].
    pub async fn rest(&self) {
        loop {
            let rested = self.shared.rested.notified();
            let (is_busy, removes) = {
                let state = self.shared.state.borrow();
                let removes = Arc::strong_count(&state.removing) > 1;
                (state.preparing || state.sync_running, removes)
            };
            match (is_busy, removes) {
                (true, _) => rested.await,
                (false, true) => self.shared.world.sleep(REMOVAL_PAUSE).await,
                (false, false) => return,
            }
        }
    }

    /// The index holds everything up to `checkpoint`, durably: segments below are used again.
    pub fn cut(&self, checkpoint: Position) {
        self.shared.cut(checkpoint.0);
    }

    /// Whether the longest record finds a place. Where not, a checkpoint has to free a file.
    pub fn has_room(&self) -> bool {
        let state = self.shared.state.borrow();
        let longest = self.shared.config.segment_bytes / 4;
        !state.full
            || state.spare.is_some()
            || state.tail_offset + longest <= self.shared.config.segment_bytes
    }

    /// Completes when a file for further records was made, or could not be made.
    pub fn prepared(&self) -> impl Future<Output = ()> + use<> {
        self.shared.prepared.notified()
    }

    /// Whether to keep no more files than are needed: the disk is nearly full.
    pub fn set_frugal(&self, frugal: bool) {
        self.shared.state.borrow_mut().frugal = frugal;
        self.shared.give_back();
    }

    /// Reads records from `position` on, up to the last one in the own files: the feed of a standby. It does not wait for the
    /// agreement, which waits for it.
    pub fn read_from(&self, position: Position) -> JournalReader {
        JournalReader::new(self.shared.clone(), position.0)
    }

    /// The oldest position that can still be read, where any record was kept.
    pub fn oldest(&self) -> Position {
        Position(self.shared.state.borrow().segments[0].first)
    }
}

impl Shared {
    /// Makes sure that the last group is one that the next record may join.
    fn group_for(&self, state: &mut State, position: u64) {
        if state.groups.back().is_some_and(|group| group.sequence == state.tail_sequence) {
            return;
        }
        let (sequence, offset) = (state.tail_sequence, state.tail_offset);
        let mut bytes = std::mem::take(&mut state.buffer);
        if offset == 0 {
            let durable = self.own_durable.get().0;
            let (epoch, store) = (self.epoch, self.store);
            SegmentHeader { sequence, epoch, first: position, durable, store }.encode(&mut bytes);
            state.tail_offset = SEGMENT_HEADER_BYTES;
            state.buffered += bytes.len();
        }
        state.groups.push_back(Group { sequence, offset, bytes, first: position, last: position });
    }

    fn flush(self: &Rc<Self>) {
        while let Some((group, file)) = self.next_group() {
            let begin = self.world.now();
            let result = file.write_at(group.offset, &group.bytes);
            self.writes.add(self.world.now().since(begin));
            let mut state = self.state.borrow_mut();
            state.buffered -= group.bytes.len();
            if let Err(cause) = result {
                drop(state);
                let path = self.directory.join(segment_name(group.sequence));
                return self.fail(StoreError::io("cannot write the journal", &path, cause));
            }
            state.bytes += group.bytes.len() as u64;
            if group.bytes.capacity() <= BUFFER_BYTES_KEPT {
                state.buffer = group.bytes;
                state.buffer.clear();
            }
            drop(state);
            if let Err(error) = self.mark.set(group.last, self.own_durable.get().0) {
                return self.fail(error);
            }
            self.own_written.advance(Position(group.last));
            self.agree();
        }
        self.arm_timer();
        self.sync();
    }

    /// The next group to write, where its segment is there; else sees to the segment.
    fn next_group(self: &Rc<Self>) -> Option<(Group, Arc<dyn File>)> {
        let mut state = self.state.borrow_mut();
        if state.failed.is_some() {
            return None;
        }
        let group = state.groups.front()?;
        let (sequence, first) = (group.sequence, group.first);
        let current = state.segments.back().expect("a journal has a segment").sequence;
        if sequence != current {
            let Some((_, file)) = state.spare.take_if(|(spare, _)| *spare == sequence) else {
                drop(state);
                self.prepare();
                return None;
            };
            let path = self.directory.join(segment_name(sequence));
            let segment =
                Segment { sequence, first, file, path, dirty: false, header_durable: false };
            state.segments.push_back(segment);
            drop(state);
            self.prepare();
            state = self.state.borrow_mut();
        }
        let group = state.groups.pop_front()?;
        let segment = state.segments.back_mut().expect("a journal has a segment");
        segment.dirty = true;
        let file = segment.file.clone();
        Some((group, file))
    }

    /// Makes the segment after the current one, beside the executor.
    fn prepare(self: &Rc<Self>) {
        let mut state = self.state.borrow_mut();
        if state.preparing || state.spare.is_some() || state.failed.is_some() {
            return;
        }
        state.preparing = true;
        let sequence = state.segments.back().expect("a journal has a segment").sequence + 1;
        let old = state.old.pop();
        drop(state);
        let (disk, directory) = (self.world.disk(), self.directory.clone());
        let bytes = self.config.segment_bytes;
        let prepared = self
            .world
            .offload(move || segment::prepare(&*disk, &directory, sequence, bytes, old.as_deref()));
        let weak = Rc::downgrade(self);
        let world = self.world.clone();
        self.world.spawn(async move {
            let prepared = prepared.await.unwrap_or(Err(StoreError::ShuttingDown));
            let full = matches!(&prepared, Err(error) if error.is_full());
            if let Some(shared) = weak.upgrade() {
                shared.prepared(sequence, prepared);
            }
            if full {
                world.sleep(FULL_RETRY).await;
                if let Some(shared) = weak.upgrade() {
                    shared.prepare();
                }
            }
        });
    }

    fn prepared(self: &Rc<Self>, sequence: u64, prepared: Result<Arc<dyn File>, StoreError>) {
        let mut state = self.state.borrow_mut();
        state.preparing = false;
        self.rested.notify_all();
        match prepared {
            Ok(file) => {
                state.spare = Some((sequence, file));
                state.full = false;
                drop(state);
                self.flush();
            }
            Err(error) if error.is_full() => state.full = true,
            Err(error) => {
                drop(state);
                self.fail(error);
            }
        }
        self.prepared.notify_all();
    }

    /// Starts a sync where one is wanted and none runs.
    fn sync(self: &Rc<Self>) {
        let target = self.own_written.get();
        let mut state = self.state.borrow_mut();
        let durable = self.own_durable.get();
        if state.sync_running
            || state.failed.is_some()
            || state.sync_wanted <= durable.0
            || target <= durable
        {
            return;
        }
        state.sync_running = true;
        let mut files = Vec::new();
        for segment in state.segments.iter_mut().filter(|segment| segment.dirty) {
            segment.dirty = false;
            files.push((segment.sequence, segment.file.clone(), segment.path.clone()));
        }
        drop(state);
        let last_sequence = files.last().map_or(0, |file| file.0);
        let synced = self.world.offload(move || {
            files.iter().try_for_each(|(_, file, path)| {
                file.sync_data()
                    .map_err(|cause| StoreError::io("cannot sync the journal", path, cause))
            })
        });
        let (weak, begin) = (Rc::downgrade(self), self.world.now());
        self.world.spawn(async move {
            let synced = synced.await.unwrap_or(Err(StoreError::ShuttingDown));
            let Some(shared) = weak.upgrade() else { return };
            shared.syncs.add(shared.world.now().since(begin));
            shared.state.borrow_mut().sync_running = false;
            shared.rested.notify_all();
            match synced {
                Ok(()) => shared.synced(target, last_sequence),
                Err(error) => shared.fail(error),
            }
        });
    }

    fn synced(self: &Rc<Self>, target: Position, last_sequence: u64) {
        let mut state = self.state.borrow_mut();
        if state.failed.is_some() {
            return;
        }
        for segment in state.segments.iter_mut() {
            segment.header_durable |= segment.sequence <= last_sequence;
        }
        drop(state);
        if let Err(error) = self.mark.set(self.own_written.get().0, target.0) {
            return self.fail(error);
        }
        self.own_durable.advance(target);
        self.agree();
        self.sync();
    }

    fn agree(&self) {
        let (written, durable) = (self.own_written.get(), self.own_durable.get());
        self.agreement.note_own(Reach { written, durable });
    }

    fn arm_timer(self: &Rc<Self>) {
        let mut state = self.state.borrow_mut();
        if state.timer_armed || self.own_written.get() <= self.own_durable.get() {
            return;
        }
        state.timer_armed = true;
        drop(state);
        let weak = Rc::downgrade(self);
        let sleep = self.world.sleep(self.config.sync_interval);
        self.world.spawn(async move {
            sleep.await;
            let Some(shared) = weak.upgrade() else { return };
            let mut state = shared.state.borrow_mut();
            state.timer_armed = false;
            state.sync_wanted = state.sync_wanted.max(shared.own_written.get().0);
            drop(state);
            shared.sync();
        });
    }

    /// Gives segments up that neither a start nor a reader wants.
    fn cut(self: &Rc<Self>, checkpoint: u64) {
        let mut state = self.state.borrow_mut();
        let wanted = state.wanted.values().min().copied().unwrap_or(u64::MAX);
        while state.segments.len() > 1
            && state.segments[1].first <= checkpoint + 1
            && (state.segments[1].first <= wanted || state.segments.len() > KEPT_SEGMENTS_MAX)
            && state.segments[1].header_durable
        {
            let segment = state.segments.pop_front().expect("there are two");
            state.old.push(segment.path);
        }
        drop(state);
        self.give_back();
        // There may be room for a further file now.
        self.prepare();
    }

    /// Removes files that wait for their next use, beyond those that are soon used.
    fn give_back(&self) {
        let mut state = self.state.borrow_mut();
        let kept = match (state.frugal, state.spare.is_some() || state.preparing) {
            (false, _) => OLD_FILES_MAX,
            (true, false) => 1,
            (true, true) => 0,
        };
        let kept = kept.min(state.old.len());
        let excess = state.old.split_off(kept);
        if excess.is_empty() {
            return;
        }
        let removing = state.removing.clone();
        drop(state);
        let disk = self.world.disk();
        drop(self.world.offload(move || {
            segment::remove(&*disk, &excess);
            drop(removing);
        }));
    }

    fn fail(&self, error: StoreError) {
        let mut state = self.state.borrow_mut();
        if state.failed.is_some() {
            return;
        }
        state.failed = Some(error.clone());
        state.groups.clear();
        state.buffered = 0;
        drop(state);
        self.own_written.fail(error.stopped());
        self.own_durable.fail(error.stopped());
        self.agreement.fail(&error);
        self.prepared.notify_all();
    }
}
