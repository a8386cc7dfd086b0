//! The intent log: preallocated segments, appended to, synced in order, recycled.
//!
//! Invariants
//! * a batch is appended with one write and never crosses a segment;
//! * after a failed append the log's end is where it was, and the next append overwrites the rest;
//! * a segment is overwritten only after a later tail is durable, so the chain from the newest
//!   durable tail to the end is always complete; [`super::scan`] reads it;
//! * all records of a batch have one owner, and each names the owner's one before.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ropewalk_base::disk::{Disk, File, Open};

use super::board::{Board, Chain};
use super::error::{is_full, is_unreadable};
use super::record::{Record, Seal, record_bytes, seal};
use super::scan::Scan;

/// Bytes of a `Start` record.
const START_BYTES: u64 = record_bytes(0) as u64;
/// Free segments that stay for the next opening, which must not fail on a full device.
const KEPT_FOR_OPENING: usize = 1;
/// Those that stay when the log goes on by itself: a checkpoint, which frees room, begins in one more.
const KEPT: usize = KEPT_FOR_OPENING + 1;
/// The least that a device gives back or does not, as far as a file system lets us see.
pub(super) const PAGE_BYTES: usize = 4096;

struct Segment {
    sequence: u64,
    file: Arc<dyn File>,
}

/// The log of one store. Positions grow for ever: sequence of the segment times its size, plus the
/// offset in it.
pub(super) struct Log {
    disk: Arc<dyn Disk>,
    directory: PathBuf,
    segment_bytes: u64,
    era: u64,
    live: VecDeque<Segment>,
    free: Vec<Segment>,
    slots: u32,
    end: u64,
    durable: u64,
    tail: u64,
    batch: Vec<u8>,
    board: Board,
    /// The chain of tombstones and fences, and the number of the file that has the older ones.
    marks: Chain,
    marks_number: u64,
    /// The seed of CRCs; and the number of appends that have failed.
    salt: u32,
    failures: u16,
    closed: bool,
    /// Files were made whose names are not durable yet.
    names_unsynced: bool,
    /// The segment after this one could not be made, for want of room most likely.
    short: bool,
}

/// The values with which a new life of the log begins.
pub(super) struct Beginning {
    pub(super) era: u64,
    /// The number of the file of marks.
    pub(super) marks: u64,
    pub(super) salt: u32,
}

/// The files to sync to make the log durable up to `end`.
pub(super) struct LogSync {
    pub(super) end: u64,
    files: Vec<Arc<dyn File>>,
    directory: Option<PathBuf>,
    /// Segments that had been made by then: those alone have durable names afterwards.
    slots: u32,
    disk: Arc<dyn Disk>,
}

impl LogSync {
    /// Syncs in order. Blocks.
    pub(super) fn run(&self) -> io::Result<()> {
        for file in &self.files {
            file.sync_data()?;
        }
        match &self.directory {
            Some(directory) => self.disk.sync_directory(directory),
            None => Ok(()),
        }
    }
}

pub(super) fn slot_path(directory: &Path, slot: u32) -> PathBuf {
    directory.join(format!("segment.{slot:04x}"))
}

/// Reads a segment, also where the device does not give all of it back. Zeros stand for those pages, and so
/// they are a gap as if they had been overwritten. Returns the number of bytes, and the offsets of those
/// pages.
pub(super) fn read_pages(file: &dyn File, bytes: &mut [u8]) -> io::Result<(usize, Vec<u64>)> {
    let mut unread = Vec::new();
    match file.read_at(0, bytes) {
        Err(error) if is_unreadable(&error) => (),
        result => return Ok((result?, unread)),
    }
    let mut done = 0;
    for page in bytes.chunks_mut(PAGE_BYTES) {
        done += match file.read_at(done as u64, page) {
            Err(error) if is_unreadable(&error) => {
                page.fill(0);
                unread.push(done as u64);
                page.len()
            }
            result => result?,
        };
    }
    Ok((done, unread))
}

impl Log {
    /// A log that goes on after the scanned one, in a fresh segment whose tail is its own start. Nothing of
    /// the old segments is overwritten before [`Log::forget_before`].
    pub(super) fn begin(
        disk: Arc<dyn Disk>,
        directory: PathBuf,
        scan: Scan,
        board: Board,
        Beginning { era, marks, salt }: Beginning,
    ) -> io::Result<Log> {
        let segment_bytes = scan.segment_bytes;
        let tail = scan.next_sequence * segment_bytes;
        let slots = scan.slots.iter().map(|(slot, _)| slot + 1).max().unwrap_or(0);
        let mut log = Log {
            disk,
            directory,
            segment_bytes,
            era,
            live: VecDeque::new(),
            free: Vec::new(),
            slots,
            end: scan.end,
            durable: tail,
            tail,
            batch: Vec::new(),
            board,
            marks: Chain::default(),
            marks_number: marks,
            salt,
            failures: 0,
            closed: false,
            names_unsynced: true,
            short: false,
        };
        // Slots of the chain are needed until the new start is durable; others are not.
        let needed = |slot: u32| scan.slots_in_use().any(|used| used == slot);
        let (old, spare): (Vec<_>, Vec<_>) =
            scan.slots.iter().cloned().partition(|(slot, _)| needed(*slot));
        let segment = |(_, file)| Segment { sequence: 0, file };
        log.free.extend(spare.into_iter().map(segment));
        let first = match log.free.pop() {
            Some(segment) => segment,
            None => log.make_segment()?,
        };
        log.start(first, scan.next_sequence)?;
        log.sync_work().run()?;
        log.durable = log.end;
        log.names_unsynced = false;
        // From here on the earlier life's records are not needed, nor are the board's positions of them.
        log.board.begin(scan.next_sequence, era, tail)?;
        log.board.durable(log.end);
        log.free.extend(old.into_iter().map(segment));
        while log.free.len() < KEPT {
            match log.make_segment() {
                Ok(spare) => log.free.push(spare),
                Err(error) if is_full(&error) && log.free.len() >= KEPT_FOR_OPENING => break,
                Err(error) => return Err(error),
            }
        }
        Ok(log)
    }

    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// The position from which a replay would begin.
    pub(super) fn tail(&self) -> u64 {
        self.tail
    }

    pub(super) fn durable(&self) -> u64 {
        self.durable
    }

    /// Bytes that a crash now would have to replay.
    pub(super) fn live_bytes(&self) -> u64 {
        self.end - self.tail
    }

    /// Adds a record to the batch that the next [`Log::commit`] appends.
    pub(super) fn push(&mut self, record: &Record<'_>) {
        let first = self.batch.is_empty();
        record.encode(first, &mut self.batch);
    }

    /// As [`Log::push`], for a record that settles the batch before: replay sees one batch, which was not
    /// complete where this part is cut off.
    pub(super) fn push_continued(&mut self, record: &Record<'_>) {
        record.encode(false, &mut self.batch);
    }

    /// Nothing more is appended: the next opening has to go by the records that are there.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Appends the batch, which is one of `chain`'s owner; `reserve` more bytes will fit into the same
    /// segment. Returns the batch's position. After an error nothing was appended.
    pub(super) fn commit(&mut self, chain: &mut Chain, reserve: usize) -> io::Result<u64> {
        let position = self.commit_begun(chain, reserve)?;
        self.done(chain);
        Ok(position)
    }

    /// As [`Log::commit`], for an intent: [`Log::done`] follows when the announced action is done.
    pub(super) fn commit_begun(&mut self, chain: &mut Chain, reserve: usize) -> io::Result<u64> {
        let mut batch = std::mem::take(&mut self.batch);
        let result = self.append(&mut batch, chain, reserve);
        batch.clear();
        self.batch = batch;
        result
    }

    /// All records of the chain so far are of calls that may be acknowledged now.
    pub(super) fn done(&mut self, chain: &mut Chain) {
        if let Some(owner) = chain.owner {
            self.board.note(owner, chain);
        }
    }

    /// As [`Log::commit`], for tombstones and fences.
    pub(super) fn commit_marks(&mut self) -> io::Result<u64> {
        let mut chain = std::mem::take(&mut self.marks);
        let result = self.commit(&mut chain, 0);
        self.marks = chain;
        result
    }

    /// Nothing of the chain's owner is in the live part of the log any more.
    pub(super) fn release(&mut self, chain: &mut Chain) {
        self.board.release(chain);
    }

    fn append(&mut self, batch: &mut [u8], chain: &mut Chain, reserve: usize) -> io::Result<u64> {
        if self.closed {
            return Err(io::Error::other("the log was closed after a failure"));
        }
        let needed = (batch.len() + reserve) as u64;
        assert!(
            needed + START_BYTES <= self.segment_bytes,
            "a batch of {needed} bytes cannot fit a log segment: Config::check is wrong"
        );
        let limit = self.current().sequence * self.segment_bytes + self.segment_bytes;
        if self.end + needed > limit {
            self.go_on(KEPT)?;
        }
        let position = self.end;
        let (owner, last) = seal(batch, self.seal(position, chain.last));
        let offset = position % self.segment_bytes;
        if let Err(error) = self.current().file.write_at(offset, batch) {
            self.failures = self.failures.saturating_add(1);
            return Err(error);
        }
        self.end += batch.len() as u64;
        if owner.is_some() {
            (chain.owner, chain.last) = (owner, last);
        }
        self.look_ahead();
        Ok(position)
    }

    /// Makes the next segment in time: where there is no room for it, a checkpoint has to come before this
    /// one is full.
    fn look_ahead(&mut self) {
        let half = self.end % self.segment_bytes > self.segment_bytes / 2;
        if !half || self.short || self.free.len() > KEPT {
            return;
        }
        match self.make_segment() {
            Ok(segment) => self.free.insert(0, segment),
            // Not tried again before that one begins.
            Err(_) => self.short = true,
        }
    }

    /// Whether only a checkpoint makes room for records after this segment is full. Where `times` is greater
    /// it is full sooner.
    pub(super) fn is_short(&self, times: usize) -> bool {
        let used = (self.end % self.segment_bytes) as usize;
        let most = self.segment_bytes as usize;
        self.short && self.free.len() <= KEPT && used * 4 > most * (1 + times).min(3)
    }

    fn seal(&self, position: u64, before: u64) -> Seal {
        let (durable, attempt, salt) = (self.durable, self.failures, self.salt);
        Seal { position, before, durable, attempt, salt }
    }

    fn current(&self) -> &Segment {
        self.live.back().expect("a log always has a current segment")
    }

    /// Appends the batch, where there is one.
    pub(super) fn commit_if_any(&mut self, chain: &mut Chain) -> io::Result<()> {
        if self.batch.is_empty() { Ok(()) } else { self.commit(chain, 0).map(|_| ()) }
    }

    /// Goes on in another segment, for a checkpoint; where that begins.
    pub(super) fn rotate(&mut self) -> io::Result<u64> {
        self.go_on(KEPT_FOR_OPENING)
    }

    /// Goes on in another segment while `kept` free ones stay.
    fn go_on(&mut self, kept: usize) -> io::Result<u64> {
        let segment = match self.free.len() > kept {
            true => self.free.pop().expect("one is there"),
            false => self.make_segment()?,
        };
        let sequence = self.current().sequence + 1;
        self.start(segment, sequence)?;
        Ok(sequence * self.segment_bytes)
    }

    fn start(&mut self, mut segment: Segment, sequence: u64) -> io::Result<()> {
        let mut start = Vec::new();
        let (tail, previous) = (self.tail, self.end);
        let marks = self.marks_number;
        Record::Start { tail, previous, era: self.era, marks }.encode(true, &mut start);
        let position = sequence * self.segment_bytes;
        seal(&mut start, self.seal(position, 0));
        if let Err(error) = segment.file.write_at(0, &start) {
            // The part that was written counts as older than the records with which the log goes on.
            self.failures = self.failures.saturating_add(1);
            // The same slot comes first next time, so no two slots carry one sequence.
            self.free.push(segment);
            return Err(error);
        }
        segment.sequence = sequence;
        self.short = false;
        self.live.push_back(segment);
        self.end = position + start.len() as u64;
        Ok(())
    }

    fn make_segment(&mut self) -> io::Result<Segment> {
        let slot = self.slots;
        let path = slot_path(&self.directory, slot);
        let file = self.disk.open(&path, Open::Create)?;
        if let Err(error) = file.allocate(0, self.segment_bytes) {
            drop(file);
            // Best effort: the name is found and reused by the next start otherwise.
            let _ = self.disk.remove_file(&path);
            return Err(error);
        }
        self.slots += 1;
        self.names_unsynced = true;
        Ok(Segment { sequence: 0, file })
    }

    /// The files and names that have to be synced now.
    pub(super) fn sync_work(&self) -> LogSync {
        let from = self.durable / self.segment_bytes;
        let live = self.live.iter().filter(|segment| segment.sequence >= from);
        LogSync {
            end: self.end,
            files: live.map(|segment| segment.file.clone()).collect(),
            directory: self.names_unsynced.then(|| self.directory.clone()),
            slots: self.slots,
            disk: self.disk.clone(),
        }
    }

    /// The work of [`Log::sync_work`] has succeeded.
    pub(super) fn synced(&mut self, work: &LogSync) {
        self.durable = self.durable.max(work.end);
        self.board.durable(self.durable);
        if work.directory.is_some() && work.slots == self.slots {
            self.names_unsynced = false;
        }
    }

    /// Announces a later tail: everything before it is in place and durable. Appends the record;
    /// when that is durable, [`Log::forget_before`] may follow.
    pub(super) fn advance(&mut self, tail: u64, marks: u64) -> io::Result<u64> {
        self.push(&Record::Checkpoint { tail, marks });
        let position = self.commit(&mut Chain::default(), 0)?;
        self.tail = self.tail.max(tail);
        self.marks_number = marks;
        Ok(position)
    }

    /// Frees the segments that lie wholly before `tail`.
    pub(super) fn forget_before(&mut self, tail: u64) {
        self.board.tail(tail);
        while let Some(first) = self.live.front() {
            if (first.sequence + 1) * self.segment_bytes > tail || self.live.len() == 1 {
                break;
            }
            let segment = self.live.pop_front().expect("just seen");
            // Behind one whose start has failed, which may carry the sequence that comes next.
            self.free.insert(0, segment);
        }
    }
}
