//! Reading the log at a start, and finding the missing parts.
//!
//! A segment is read record by record. Where there is none, the next head or foot that fits its place is
//! looked for: the bytes in between are a *gap*. Whether a gap is damage depends on how the earlier life
//! ended:
//!
//! * after the death of the process alone everything that was acknowledged is in the files, so every
//!   gap is damage. Whom it concerned is known exactly: by the links between an object's records
//!   and by its last one on the board;
//! * after a power loss records that were not durable may be missing, in any order: the log ends at the first
//!   gap that lies behind everything that a later record, or the board, calls durable. A gap before
//!   is damage. The board proves nothing then, so if nobody can say whom it concerned, the
//!   store does not open.
//!
//! Invariants
//! * nothing that was durable, or acknowledged before the death of the process alone, is left out
//!   without being told of, as long as not both the log and the board are damaged;
//! * records behind the end are never read, now or later.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;
use std::sync::Arc;

use ropewalk_base::disk::{Disk, File, Open};

use super::ObjectId;
use super::board::{Chain, Stand};
use super::log::{PAGE_BYTES, read_pages, slot_path};
use super::record::{ALIGNMENT, HEAD_BYTES, Head, Owner, Record};

/// Positions on the board that lie further behind everything found are none.
const PLAUSIBLE_SEGMENTS: u64 = 1024;

/// A record as it was found.
struct Item {
    /// The record's offset in its segment.
    at: usize,
    head: Head,
    /// Its body is as its head says.
    whole: bool,
}

/// A segment as it was found.
struct Found {
    slot: u32,
    sequence: u64,
    bytes: Vec<u8>,
    items: Vec<Item>,
}

/// The content of a segment's first record.
#[derive(Debug, Clone, Copy)]
struct Start {
    tail: u64,
    previous: u64,
    era: u64,
    marks: u64,
}

/// The parameters for reading the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reading {
    pub(super) segment_bytes: u64,
    pub(super) salt: u32,
    /// The era of this start; 0 where unknown.
    pub(super) era: u64,
    /// The file of marks says that the log was durable up to here.
    pub(super) durable: u64,
    /// It also says that nothing of the log is needed that begins before this, where not 0.
    pub(super) clean: u64,
    /// Records that are lost are given up: somebody has ordered so.
    pub(super) give_up: bool,
}

/// The log as a store finds it at its start.
pub(super) struct Scan {
    segments: BTreeMap<u64, Found>,
    pub(super) segment_bytes: u64,
    /// The positions at which replay begins and ends.
    pub(super) tail: u64,
    pub(super) end: u64,
    /// Only the process had died.
    pub(super) process_only: bool,
    /// The least number that the file of marks must have.
    pub(super) marks: u64,
    /// Greater than every sequence on disk.
    pub(super) next_sequence: u64,
    pub(super) slots: Vec<(u32, Arc<dyn File>)>,
    /// Records of objects that are gone, in order.
    pub(super) missing: Vec<(u64, ObjectId)>,
    /// The call that the last batch belongs to was done.
    pub(super) last_done: bool,
    /// Objects that had a durable file before the first of their records.
    pub(super) existed: BTreeSet<ObjectId>,
    /// The damage that was found, in words.
    pub(super) damage: Vec<String>,
    /// The parts of segments that the device does not give back, in words, needed or not.
    pub(super) unread: Vec<String>,
    /// Slot and place of each page of that.
    unread_pages: Vec<(u32, u64)>,
    /// Segments that were there.
    pub(super) found: usize,
    /// The greatest sequence of which any record is on disk, also behind an older segment's start.
    latest: u64,
}

/// The parts of a story, in order.
pub(super) enum Entry<'a> {
    /// Position, position of the batch, record.
    Record(u64, u64, Record<'a>),
    /// Position of the batch, and the head of a record whose body is damaged.
    Lost(u64, Head),
    /// A record of this object was here, nobody knows which.
    Missing(ObjectId),
}

impl Found {
    /// `latest`: see [`base_of`].
    fn new(slot: u32, bytes: Vec<u8>, latest: Option<u64>, reading: Reading) -> Option<Found> {
        let base = match Head::read(&bytes, reading.salt) {
            Some(head) if head.position.is_multiple_of(reading.segment_bytes) => head.position,
            _ => latest?,
        };
        let sequence = base / reading.segment_bytes;
        let items = items_of(&bytes, base, reading.salt);
        (sequence > 0).then_some(Found { slot, sequence, bytes, items })
    }

    fn start(&self) -> Option<Start> {
        let first = self.items.first().filter(|item| item.at == 0)?;
        match first.head.record(&self.bytes)? {
            Record::Start { tail, previous, era, marks } => {
                Some(Start { tail, previous, era, marks })
            }
            _ => None,
        }
    }

    fn record(&self, item: &Item) -> Option<Record<'_>> {
        item.head.record(&self.bytes[item.at..])
    }
}

impl Item {
    fn end(&self) -> u64 {
        self.head.position + self.head.record_bytes() as u64
    }
}

/// The segment's place in the log, from any head in it: the latest, since records left over in a recycled
/// segment are older.
fn base_of(bytes: &[u8], reading: Reading) -> Option<u64> {
    let mut base = None;
    for at in (0..bytes.len().saturating_sub(HEAD_BYTES)).step_by(ALIGNMENT) {
        let Some(position) = position_at(bytes, at) else { continue };
        let own = position - position % reading.segment_bytes;
        let offset = position - own;
        if position != 0 && offset <= at as u64 && Some(own) > base {
            let head = Head::read(&bytes[at..], reading.salt);
            let foot = |head: Head| offset + (head.record_bytes() - HEAD_BYTES) as u64;
            if head.is_some_and(|head| offset == at as u64 || foot(head) == at as u64) {
                base = Some(own);
            }
        }
    }
    base
}

fn position_at(bytes: &[u8], at: usize) -> Option<u64> {
    let word = bytes.get(at + 8..at + 16)?;
    Some(u64::from_le_bytes(word.try_into().ok()?))
}

/// The records of a segment that begins at `base`.
fn items_of(bytes: &[u8], base: u64, salt: u32) -> Vec<Item> {
    let mut items: Vec<Item> = Vec::new();
    let (mut at, mut attempt) = (0, 0);
    while at < bytes.len() {
        let here = Head::read(&bytes[at..], salt)
            .filter(|head| head.position == base + at as u64 && head.attempt >= attempt);
        let found = here.map(|head| (at, head)).or_else(|| next(bytes, at, base, attempt, salt));
        let Some((begin, head)) = found else { break };
        let whole = head.record(&bytes[begin..]).is_some();
        attempt = head.attempt;
        at = begin + head.record_bytes();
        items.push(Item { at: begin, head, whole });
    }
    items
}

/// The next record at or behind `from`, by its head or by its foot. Heads with fewer failed appends than
/// `attempt` are the rest of an append that failed.
fn next(bytes: &[u8], from: usize, base: u64, attempt: u16, salt: u32) -> Option<(usize, Head)> {
    for at in (from..bytes.len().saturating_sub(HEAD_BYTES - 1)).step_by(ALIGNMENT) {
        let begin = position_at(bytes, at)?.wrapping_sub(base);
        if begin < from as u64 || begin > at as u64 {
            continue;
        }
        let Some(head) = Head::read(&bytes[at..], salt) else { continue };
        let foot = begin + (head.record_bytes() - HEAD_BYTES) as u64;
        if (begin == at as u64 || foot == at as u64) && head.attempt >= attempt {
            return Some((begin as usize, head));
        }
    }
    None
}

/// A part of the log that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Gap {
    from: u64,
    to: u64,
}

impl Scan {
    /// Reads all segments. An error text where records are lost and nobody can say which.
    pub(super) fn read(
        disk: &dyn Disk,
        directory: &Path,
        reading: Reading,
        stand: Option<&Stand>,
    ) -> io::Result<Result<Scan, String>> {
        let mut scan = Scan {
            segments: BTreeMap::new(),
            segment_bytes: reading.segment_bytes,
            tail: 0,
            end: 0,
            process_only: false,
            marks: 0,
            next_sequence: 1,
            slots: Vec::new(),
            missing: Vec::new(),
            last_done: false,
            existed: BTreeSet::new(),
            damage: Vec::new(),
            unread: Vec::new(),
            unread_pages: Vec::new(),
            found: 0,
            latest: 0,
        };
        scan.read_segments(disk, directory, reading)?;
        scan.found = scan.segments.len();
        Ok(scan.judge(directory, reading, stand).map(|()| scan))
    }

    fn read_segments(
        &mut self,
        disk: &dyn Disk,
        directory: &Path,
        reading: Reading,
    ) -> io::Result<()> {
        for (name, _) in disk.list(directory)? {
            let slot = name.to_str().and_then(|name| name.strip_prefix("segment."));
            let Some(slot) = slot.and_then(|slot| u32::from_str_radix(slot, 16).ok()) else {
                continue;
            };
            let file = disk.open(&slot_path(directory, slot), Open::Write)?;
            let length = file.len()?.min(reading.segment_bytes) as usize;
            let mut bytes = vec![0; length];
            let (read, unread) = read_pages(&*file, &mut bytes)?;
            bytes.truncate(read);
            for at in unread {
                let path = slot_path(directory, slot);
                self.unread.push(format!(
                    "{}: {PAGE_BYTES} bytes from byte {at} on cannot be read",
                    path.display()
                ));
                self.unread_pages.push((slot, at));
            }
            self.slots.push((slot, file));
            // A power cut may keep records of a recycled segment and lose its start. A segment of the same
            // sequence must not be made over them: after it they would be taken for its own.
            let latest = base_of(&bytes, reading);
            self.latest = self.latest.max(latest.unwrap_or(0) / reading.segment_bytes);
            let Some(found) = Found::new(slot, bytes, latest, reading) else { continue };
            // A copy of another segment stands in for none: the fuller one is the segment.
            let fuller = self.segments.get(&found.sequence);
            if fuller.is_none_or(|other| other.items.len() < found.items.len()) {
                self.segments.insert(found.sequence, found);
            }
        }
        Ok(())
    }

    /// Finds tail and end, and the missing records in between.
    fn judge(
        &mut self,
        directory: &Path,
        reading: Reading,
        stand: Option<&Stand>,
    ) -> Result<(), String> {
        let none = Stand::default();
        let known = stand.unwrap_or(&none);
        self.find_tail(known, reading);
        let found = self.segments.keys().next_back().copied().unwrap_or(0);
        self.tidy();
        let newest = self.segments.values().rev().find_map(Found::start);
        let newest_era = newest.map_or(known.era, |start| start.era);
        self.process_only = reading.era != 0 && newest_era == reading.era;
        let first = self.tail / self.segment_bytes;
        let newest = self.segments.keys().next_back().copied().unwrap_or(0);
        let limit = (newest.max(known.begin).max(first) + PLAUSIBLE_SEGMENTS)
            .saturating_mul(self.segment_bytes);
        let noted = known.owners.iter().flat_map(|(_, last)| *last);
        let noted = noted.filter(|last| *last < limit).max().unwrap_or(0);
        let durable = self.durable(known).max(reading.durable).max(self.tail);
        let mut last = newest.max(durable.saturating_sub(1) / self.segment_bytes);
        if self.process_only {
            last = last.max(noted / self.segment_bytes);
        }
        let latest = Some(self.latest).filter(|latest| *latest < limit / self.segment_bytes);
        let latest = latest.unwrap_or(0);
        let used = [last, noted / self.segment_bytes, known.begin, first, found, latest];
        self.next_sequence = 1 + used.into_iter().max().unwrap_or(0);
        let mut gaps = self.gaps(first, last);
        if self.process_only {
            self.drop_unacknowledged(known, limit);
        } else {
            self.cut(&mut gaps, durable);
        }
        if self.end < durable {
            gaps.push(Gap { from: self.end, to: durable });
        }
        self.name_damage(directory, &gaps);
        // After a power loss a record that was noted need not have reached the disk.
        let proven = if self.process_only { limit } else { durable.min(limit) };
        let marks_missing = self.find_missing(known, proven);
        self.last_done = self.is_last_done(known);
        if gaps.is_empty() && (marks_missing || !self.missing.is_empty()) {
            let end = format!("the intent log in {} has lost its end", directory.display());
            self.damage.push(end);
        }
        // An older copy of the board does not know of everything.
        let stand = stand.filter(|stand| stand.durable >= reading.durable);
        self.admit(directory, reading, stand, &gaps, marks_missing)
    }

    /// Finds the start of replay. The source with the latest tail is right, since a tail was noted only when
    /// it was true.
    fn find_tail(&mut self, known: &Stand, reading: Reading) {
        self.tail = known.tail;
        let newest = self.segments.keys().next_back().copied().unwrap_or(0).max(known.begin);
        if reading.clean != 0 && newest <= reading.clean / self.segment_bytes {
            // Nobody has written since the store was closed.
            self.tail = self.tail.max(reading.clean.next_multiple_of(self.segment_bytes));
        }
        for segment in self.segments.values() {
            if let Some(start) = segment.start() {
                self.tail = self.tail.max(start.tail);
                self.marks = self.marks.max(start.marks);
            }
            for item in &segment.items {
                if let Some(Record::Checkpoint { tail, marks }) = segment.record(item) {
                    self.tail = self.tail.max(tail);
                    self.marks = self.marks.max(marks);
                }
            }
        }
        self.tail -= self.tail % self.segment_bytes;
        self.end = self.tail;
    }

    /// Leaves out records before the tail, and records of a segment behind the place from where the log went
    /// on in the next one: an append failed there. The number of failures tells that case from records that
    /// were appended after the next segment could not be begun.
    fn tidy(&mut self) {
        let first = self.tail / self.segment_bytes;
        self.segments = self.segments.split_off(&first);
        let starts: Vec<_> = self
            .segments
            .values()
            .filter_map(|segment| Some((segment.sequence, segment.start()?, segment.items[0].head)))
            .collect();
        for (sequence, start, head) in starts {
            let Some(before) = self.segments.get_mut(&(sequence - 1)) else { continue };
            let end = start.previous;
            let mut behind = before.items.iter().filter(|item| item.head.position >= end);
            if behind.any(|item| item.head.attempt > head.attempt) {
                // The log did not go on there: beginning the segment had failed.
                self.segments.remove(&sequence);
            } else {
                before.items.retain(|item| item.head.position < end);
            }
        }
    }

    /// Up to where somebody says that the log is durable.
    fn durable(&self, known: &Stand) -> u64 {
        let items = self.segments.values().flat_map(|segment| &segment.items);
        let told = items.filter(|item| item.at > 0).map(|item| item.head.durable);
        told.chain([known.durable]).max().unwrap_or(0)
    }

    /// The ranges that cannot be read from the tail to the end of segment `last`; finds the log's end.
    fn gaps(&mut self, first: u64, last: u64) -> Vec<Gap> {
        let mut gaps = Vec::new();
        let mut gap = |from: u64, to: u64| {
            if from < to {
                gaps.push(Gap { from, to });
            }
        };
        let mut cursor = self.tail;
        for sequence in first..=last.max(first) {
            let begin = sequence * self.segment_bytes;
            let Some(segment) = self.segments.get(&sequence) else {
                if sequence <= last && (first, last) != (0, 0) {
                    gap(cursor, begin + self.segment_bytes);
                    cursor = begin + self.segment_bytes;
                }
                continue;
            };
            if sequence > first {
                // Without its first record nobody knows where the segment before has ended.
                gap(cursor, segment.start().map_or(begin, |start| start.previous));
            }
            cursor = begin;
            for item in &segment.items {
                gap(cursor, item.head.position);
                cursor = item.end();
            }
        }
        self.end = cursor;
        gaps
    }

    /// After a power loss: the log ends where the first thing is missing that need not be there.
    fn cut(&mut self, gaps: &mut Vec<Gap>, durable: u64) {
        let items = self.segments.values().flat_map(|segment| &segment.items);
        let torn = items.filter(|item| !item.whole).map(|item| item.head.position);
        // A link may point to a place where another owner's record lies. Then the record written over is
        // lost: the first of the two appends had failed.
        let broken = self.broken_links().into_iter().map(|(before, _)| before);
        let places = gaps.iter().map(|gap| gap.from).chain(torn).chain(broken);
        let Some(end) = places.filter(|from| *from >= durable).min() else { return };
        self.end = end;
        gaps.retain(|gap| gap.from < end);
        for segment in self.segments.values_mut() {
            segment.items.retain(|item| item.head.position < end);
        }
        let bytes = self.segment_bytes;
        self.segments.retain(|sequence, _| sequence * bytes <= end);
    }

    /// After the death of the process: the last append may have been under way. It was if nobody knows
    /// of it.
    fn drop_unacknowledged(&mut self, known: &Stand, limit: u64) {
        let Some(segment) = self.segments.values_mut().next_back() else { return };
        let Some(last) = segment.items.last().filter(|item| !item.whole) else { return };
        let position = last.head.position;
        let noted = known
            .owners
            .iter()
            .any(|(_, last)| last.iter().any(|last| *last >= position && *last < limit));
        if !noted && position >= known.durable {
            segment.items.pop();
            self.end = position;
        }
    }

    /// Whether the board knows of the last batch.
    fn is_last_done(&self, known: &Stand) -> bool {
        let last = self.segments.values().next_back().and_then(|segment| segment.items.last());
        let Some((owner, position)) =
            last.and_then(|item| Some((item.head.owner()?, item.head.position)))
        else {
            return true;
        };
        known.owners.iter().any(|(of, noted)| *of == owner && noted.contains(&position))
    }

    fn name_damage(&mut self, directory: &Path, gaps: &[Gap]) {
        let place = |position: u64, segments: &BTreeMap<u64, Found>| {
            let (sequence, offset) = (position / self.segment_bytes, position % self.segment_bytes);
            match segments.get(&sequence) {
                Some(found) => {
                    format!("{} from byte {offset} on", slot_path(directory, found.slot).display())
                }
                None => {
                    format!("segment {sequence} of {}, which is not there,", directory.display())
                }
            }
        };
        let mut damage = Vec::new();
        for Gap { from, to } in gaps {
            let place = place(*from, &self.segments);
            damage.push(format!(
                "the intent log is damaged: {place} cannot be read ({} bytes)",
                to - from
            ));
        }
        for segment in self.segments.values() {
            for item in segment.items.iter().filter(|item| !item.whole) {
                damage.push(format!(
                    "the intent log is damaged: {} lies a record of object {} that cannot be read",
                    place(item.head.position, &self.segments).replace(" on", ""),
                    item.head.object()
                ));
            }
        }
        self.damage = damage;
    }

    /// Positions to which a record of an owner points, and where none of it is.
    fn broken_links(&self) -> Vec<(u64, Owner)> {
        let mut last: BTreeMap<Owner, u64> = BTreeMap::new();
        let items = self.segments.values().flat_map(|segment| &segment.items);
        let broken = items.filter_map(|item| {
            let (owner, before) = (item.head.owner()?, item.head.before);
            let seen = last.insert(owner, item.head.position).unwrap_or(0);
            (before >= self.tail && before > seen).then_some((before, owner))
        });
        broken.collect()
    }

    /// Follows the links of each owner: a record that is pointed to and not there is missing. Whether
    /// one of a tombstone or a fence is.
    fn find_missing(&mut self, known: &Stand, proven: u64) -> bool {
        let mut last: BTreeMap<Owner, u64> = BTreeMap::new();
        let mut there = BTreeSet::new();
        let mut missing = self.broken_links();
        for item in self.segments.values().flat_map(|segment| &segment.items) {
            there.insert(item.head.position);
            let Some(owner) = item.head.owner() else { continue };
            let before = item.head.before;
            let seen = last.insert(owner, item.head.position);
            if let (None, Owner::Object(object), Chain::DURABLE) = (seen, owner, before) {
                self.existed.insert(object);
            }
        }
        for (owner, noted) in &known.owners {
            let seen = last.get(owner).copied().unwrap_or(0);
            // One of the two may be damaged, or older by one append: the other one is right.
            if noted.iter().any(|noted| *noted < self.tail || *noted <= seen) {
                continue;
            }
            // A power cut tears between words: then neither need ever have been this owner's.
            if !self.process_only && noted[0] != noted[1] {
                continue;
            }
            // No record is missing at a position that holds one: then the slot's owner field is damaged.
            let absent = |noted: &u64| *noted < proven && !there.contains(noted);
            let latest = noted.iter().copied().filter(absent).max();
            missing.extend(latest.map(|position| (position, *owner)));
        }
        missing.sort_unstable();
        let marks = missing.iter().any(|(_, owner)| *owner == Owner::Marks);
        let objects = missing.into_iter().filter_map(|(position, owner)| match owner {
            Owner::Object(object) => Some((position, object)),
            Owner::Marks => None,
        });
        self.missing = objects.collect();
        marks
    }

    /// Whether the lost records are known well enough to go on.
    fn admit(
        &mut self,
        directory: &Path,
        reading: Reading,
        stand: Option<&Stand>,
        gaps: &[Gap],
        marks_missing: bool,
    ) -> Result<(), String> {
        let overflow = stand.and_then(|stand| stand.overflow);
        let told = stand.is_some() && overflow.is_none_or(|from| from < self.tail);
        let known = gaps.is_empty() || (self.process_only && told);
        if known && !marks_missing {
            return Ok(());
        }
        let what = if marks_missing {
            "it held removals of files, or orders to refuse clients"
        } else {
            "it is unknown which files are affected"
        };
        let order = directory.join(super::open::GIVE_UP);
        let found = self.damage.first().cloned().unwrap_or_default();
        if reading.give_up {
            self.damage.push(format!("{what}: given up, as {} orders", order.display()));
            return Ok(());
        }
        Err(format!(
            "{found}; {what}. Restore the store from a copy, or move the server's directory away and start \
             with --replace; to give up only what the log has lost, unmount all clients, make the empty \
             file {} and start again",
            order.display()
        ))
    }

    /// Makes the found records durable. After the death of the process they may only be in the page cache,
    /// and replay must not write anything that a power cut could then make unexplained.
    pub(super) fn sync(&self, disk: &dyn Disk, directory: &Path) -> io::Result<()> {
        for segment in self.segments.values() {
            let file = self.slots.iter().find(|(slot, _)| *slot == segment.slot);
            let (_, file) = file.expect("a segment was read from its slot");
            // Written again, since a sync of the earlier life may have failed: then the page cache
            // believes that the device has what it has not.
            file.write_at(0, &segment.bytes)?;
            file.sync_data()?;
        }
        // Elsewhere the log goes on: a page that cannot be read takes no record, only a whole page.
        let stale = |slot: &u32| self.slots_in_use().all(|used| used != *slot);
        for (slot, at) in self.unread_pages.iter().filter(|(slot, _)| stale(slot)) {
            if let Some((_, file)) = self.slots.iter().find(|(other, _)| other == slot) {
                file.write_at(*at, &[0; PAGE_BYTES])?;
            }
        }
        disk.sync_directory(directory)
    }

    /// The slots of segments that replay needs.
    pub(super) fn slots_in_use(&self) -> impl Iterator<Item = u32> + '_ {
        self.segments.values().map(|segment| segment.slot)
    }

    /// Visits the present and the missing records from the tail on, in order.
    pub(super) fn visit(&self, mut visitor: impl FnMut(Entry<'_>)) {
        let mut missing = self.missing.iter().peekable();
        let mut batch = 0;
        for segment in self.segments.values() {
            for item in &segment.items {
                let position = item.head.position;
                while let Some((_, object)) = missing.next_if(|(gone, _)| *gone < position) {
                    visitor(Entry::Missing(*object));
                }
                if item.head.first {
                    batch = position;
                }
                match segment.record(item) {
                    Some(record) => visitor(Entry::Record(position, batch, record)),
                    None => visitor(Entry::Lost(batch, item.head)),
                }
            }
        }
        missing.for_each(|(_, object)| visitor(Entry::Missing(*object)));
    }
}
