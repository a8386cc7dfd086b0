//! The intent log: preallocated segments, appended to, synced in order, recycled.
//!
//! Invariants
//! * a batch is appended with one write and never crosses a segment;
//! * after a failed append the log's end is where it was, and the next append overwrites the rest;
//! * a segment is overwritten only after a later tail is durable, so the chain from the newest
//!   durable tail to the end is always complete;
//! * what lies behind a gap is never read: the records before it were not durable.

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ropewalk_base::disk::{Disk, File, Open};

use super::record::{Parsed, Record, record_bytes, seal};

/// Bytes of a `Start` record.
const START_BYTES: u64 = record_bytes(4 + 32) as u64;

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
    /// CRC of the last record, which the next one continues; and how many appends have failed.
    chain: u32,
    failures: u16,
    closed: bool,
    /// Files were made whose names are not durable yet.
    names_unsynced: bool,
}

/// What must be synced to make the log durable up to `end`.
pub(super) struct LogSync {
    pub(super) end: u64,
    files: Vec<Arc<dyn File>>,
    directory: Option<PathBuf>,
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

fn slot_path(directory: &Path, slot: u32) -> PathBuf {
    directory.join(format!("segment.{slot:04x}"))
}

/// A segment as it was found.
struct Found {
    slot: u32,
    sequence: u64,
    tail: u64,
    previous: u64,
    era: u64,
    /// Where its records end, at the latest.
    limit: u64,
    bytes: Vec<u8>,
}

/// The log as a store finds it at its start.
pub(super) struct Scan {
    chain: Vec<Found>,
    segment_bytes: u64,
    /// Where replay begins and ends.
    pub(super) tail: u64,
    pub(super) end: u64,
    /// The era that wrote the last segment.
    pub(super) era: u64,
    /// Greater than every sequence on disk.
    pub(super) next_sequence: u64,
    slots: Vec<(u32, Arc<dyn File>)>,
}

impl Scan {
    /// Reads all segments. An error text where the chain has lost its beginning.
    pub(super) fn read(
        disk: &dyn Disk,
        directory: &Path,
        segment_bytes: u64,
    ) -> io::Result<Result<Scan, String>> {
        let mut found = Vec::new();
        let mut slots = Vec::new();
        for (name, _) in disk.list(directory)? {
            let slot = name.to_str().and_then(|name| name.strip_prefix("segment."));
            let Some(slot) = slot.and_then(|slot| u32::from_str_radix(slot, 16).ok()) else {
                continue;
            };
            let file = disk.open(&slot_path(directory, slot), Open::Write)?;
            let length = file.len()?.min(segment_bytes) as usize;
            let mut bytes = vec![0; length];
            let read = file.read_at(0, &mut bytes)?;
            bytes.truncate(read);
            found.extend(Found::new(slot, bytes, segment_bytes));
            slots.push((slot, file));
        }
        found.sort_by_key(|segment| segment.sequence);
        let next_sequence = found.last().map_or(1, |segment| segment.sequence + 1);
        let mut tail = 0;
        for segment in &found {
            tail = tail.max(segment.tail);
            segment.visit(segment_bytes, |_, _, record| {
                if let Record::Checkpoint { tail: later } = record {
                    tail = tail.max(later);
                }
            });
        }
        let mut scan = Scan {
            chain: Vec::new(),
            segment_bytes,
            tail,
            end: tail,
            era: 0,
            next_sequence,
            slots,
        };
        if found.is_empty() {
            return Ok(Ok(scan));
        }
        for segment in found {
            if segment.sequence < tail / segment_bytes {
                continue;
            }
            let follows = match scan.chain.last() {
                None => segment.sequence == tail / segment_bytes,
                Some(last) => segment.sequence == last.sequence + 1 && segment.previous == scan.end,
            };
            if !follows {
                break;
            }
            scan.end = segment.visit(segment_bytes, |_, _, _| ());
            scan.era = segment.era;
            scan.chain.push(segment);
        }
        if scan.chain.is_empty() {
            return Ok(Err(format!(
                "the intent log in {} lacks its beginning",
                directory.display()
            )));
        }
        Ok(Ok(scan))
    }

    /// Makes what was found durable: after the death of the process it may only be in the page
    /// cache, and replay must not write anywhere what a power cut could then make unexplained.
    pub(super) fn sync(&self, disk: &dyn Disk, directory: &Path) -> io::Result<()> {
        for segment in &self.chain {
            let file = self.slots.iter().find(|(slot, _)| *slot == segment.slot);
            let (_, file) = file.expect("a segment was read from its slot");
            // Written again, since a sync of the earlier life may have failed: then the page cache
            // believes that the device has what it has not.
            file.write_at(0, &segment.bytes)?;
            file.sync_data()?;
        }
        disk.sync_directory(directory)
    }

    /// Visits the records from the tail on: position, position of the batch, record.
    pub(super) fn visit(&self, mut visitor: impl FnMut(u64, u64, Record<'_>)) {
        for segment in &self.chain {
            segment.visit(self.segment_bytes, |position, batch, record| {
                if position >= self.tail {
                    visitor(position, batch, record);
                }
            });
        }
    }
}

impl Found {
    fn new(slot: u32, bytes: Vec<u8>, segment_bytes: u64) -> Option<Found> {
        let mut word = [0; 8];
        word.copy_from_slice(bytes.get(8..16)?);
        let position = u64::from_le_bytes(word);
        if position % segment_bytes != 0 {
            return None;
        }
        match Record::parse(&bytes, position, 0)?.record {
            Record::Start { tail, previous, era } => {
                let (sequence, limit) = (position / segment_bytes, u64::MAX);
                Some(Found { slot, sequence, tail, previous, era, limit, bytes })
            }
            _ => None,
        }
    }

    /// Visits the segment's records; returns where they end.
    fn visit(&self, segment_bytes: u64, mut visitor: impl FnMut(u64, u64, Record<'_>)) -> u64 {
        let start = self.sequence * segment_bytes;
        let (mut at, mut batch, mut chain) = (0, start, 0);
        while start + (at as u64) < self.limit {
            let position = start + at as u64;
            let Some(parsed) = Record::parse(&self.bytes[at..], position, chain) else { break };
            let Parsed { record, taken, first, chain: next } = parsed;
            if first {
                batch = position;
            }
            visitor(position, batch, record);
            at += taken;
            chain = next;
        }
        start + at as u64
    }
}

impl Log {
    /// A log that goes on after what was scanned, in a fresh segment whose tail is its own start.
    /// Nothing of the old segments is overwritten before [`Log::forget_before`].
    pub(super) fn begin(
        disk: Arc<dyn Disk>,
        directory: PathBuf,
        scan: Scan,
        era: u64,
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
            chain: 0,
            failures: 0,
            closed: false,
            names_unsynced: true,
        };
        // Slots of the chain are needed until the new start is durable; others are not.
        let needed = |slot: u32| scan.chain.iter().any(|segment| segment.slot == slot);
        let (old, spare): (Vec<_>, Vec<_>) =
            scan.slots.into_iter().partition(|(slot, _)| needed(*slot));
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
        log.free.extend(old.into_iter().map(segment));
        if log.free.is_empty() {
            // The spare that lets a store open on a full device.
            let spare = log.make_segment()?;
            log.free.push(spare);
        }
        Ok(log)
    }

    pub(super) fn end(&self) -> u64 {
        self.end
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

    /// As [`Log::push`], for what settles the batch before: replay sees one batch, which was not
    /// complete where this part is cut off.
    pub(super) fn push_continued(&mut self, record: &Record<'_>) {
        record.encode(false, &mut self.batch);
    }

    /// Nothing more is appended: what is there is what the next opening has to go by.
    pub(super) fn close(&mut self) {
        self.closed = true;
    }

    /// Appends the batch; `reserve` more bytes will fit into the same segment. Returns the batch's
    /// position. After an error nothing was appended.
    pub(super) fn commit(&mut self, reserve: usize) -> io::Result<u64> {
        let mut batch = std::mem::take(&mut self.batch);
        let result = self.append(&mut batch, reserve);
        batch.clear();
        self.batch = batch;
        result
    }

    fn append(&mut self, batch: &mut [u8], reserve: usize) -> io::Result<u64> {
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
            self.rotate()?;
        }
        let position = self.end;
        let chain = seal(batch, position, self.chain, self.failures);
        let offset = position % self.segment_bytes;
        if let Err(error) = self.current().file.write_at(offset, batch) {
            self.failures = self.failures.wrapping_add(1);
            return Err(error);
        }
        self.chain = chain;
        self.end += batch.len() as u64;
        Ok(position)
    }

    fn current(&self) -> &Segment {
        self.live.back().expect("a log always has a current segment")
    }

    /// Appends the batch, where there is one.
    pub(super) fn commit_if_any(&mut self) -> io::Result<()> {
        if self.batch.is_empty() { Ok(()) } else { self.commit(0).map(|_| ()) }
    }

    /// Goes on in another segment; where that begins.
    pub(super) fn rotate(&mut self) -> io::Result<u64> {
        // One free segment always stays for the next opening, which must not fail on a full device.
        let segment = match self.free.len() {
            0 | 1 => self.make_segment()?,
            _ => self.free.pop().expect("two are there"),
        };
        let sequence = self.current().sequence + 1;
        self.start(segment, sequence)?;
        Ok(sequence * self.segment_bytes)
    }

    fn start(&mut self, mut segment: Segment, sequence: u64) -> io::Result<()> {
        let mut start = Vec::new();
        let (tail, previous) = (self.tail, self.end);
        Record::Start { tail, previous, era: self.era }.encode(true, &mut start);
        let position = sequence * self.segment_bytes;
        let chain = seal(&mut start, position, 0, self.failures);
        if let Err(error) = segment.file.write_at(0, &start) {
            // The same slot comes first next time, so no two slots carry one sequence.
            self.free.push(segment);
            return Err(error);
        }
        segment.sequence = sequence;
        self.chain = chain;
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

    /// What has to be synced now.
    pub(super) fn sync_work(&self) -> LogSync {
        let from = self.durable / self.segment_bytes;
        let live = self.live.iter().filter(|segment| segment.sequence >= from);
        LogSync {
            end: self.end,
            files: live.map(|segment| segment.file.clone()).collect(),
            directory: self.names_unsynced.then(|| self.directory.clone()),
            disk: self.disk.clone(),
        }
    }

    /// The work of [`Log::sync_work`] has succeeded.
    pub(super) fn synced(&mut self, work: &LogSync) {
        self.durable = self.durable.max(work.end);
        let newest = self.current().sequence * self.segment_bytes;
        if work.directory.is_some() && work.end >= newest {
            self.names_unsynced = false;
        }
    }

    /// Announces a later tail: everything before it is in place and durable. Appends the record;
    /// when that is durable, [`Log::forget_before`] may follow.
    pub(super) fn advance(&mut self, tail: u64) -> io::Result<u64> {
        self.push(&Record::Checkpoint { tail });
        let position = self.commit(0)?;
        self.tail = self.tail.max(tail);
        Ok(position)
    }

    /// Frees the segments that lie wholly before `tail`.
    pub(super) fn forget_before(&mut self, tail: u64) {
        while let Some(first) = self.live.front() {
            if (first.sequence + 1) * self.segment_bytes > tail || self.live.len() == 1 {
                break;
            }
            let segment = self.live.pop_front().expect("just seen");
            self.free.push(segment);
        }
    }
}
