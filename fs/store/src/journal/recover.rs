//! Reading the journal after a start: the valid, the torn and the missing records.
//!
//! The walk begins at the checkpoint and stops at the first record that does not hold. That is
//! the normal end after a power cut: writes that nobody had synced are gone, in any order. It is
//! damage only where something that was written later testifies that the missing record was
//! durable: every record and header carries the durable mark of its moment for this purpose.
//!
//! Invariants
//! * records are handed out once, in order, without a gap, all above the checkpoint;
//! * a segment of a later epoch voids records of earlier epochs at and above its first position;
//! * records that were handed out are durable when `recover` returns;
//! * memory is bounded by one segment.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ropewalk_base::disk::{Disk, File, Kind, Open};

use super::record::{
    self, NoHeader, RecordHeader, SEGMENT_HEADER_BYTES, SegmentHeader, record_bytes,
};
use super::segment::parse_name;
use crate::error::StoreError;

/// Receives the position and payload of each recovered record.
pub type Replay<'a> = &'a mut dyn FnMut(u64, &[u8]) -> Result<(), StoreError>;

/// The rules of a recovery.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Rules {
    /// The identity of the store.
    pub store: u128,
    /// The last record that the mark calls written or durable.
    pub required: u64,
    /// The index holds everything up to here.
    pub checkpoint: u64,
    /// A journal without any segment is a loss, not a first start.
    pub must_exist: bool,
    /// Go on at the first missing record where durable ones are lost.
    pub accept_loss: bool,
}

/// A segment with a valid header.
pub(super) struct Found {
    pub header: SegmentHeader,
    pub path: PathBuf,
    pub file: Arc<dyn File>,
}

/// The state of the journal after a start.
pub(super) struct Recovered {
    /// Segments that hold records above the checkpoint, in order.
    pub segments: Vec<Found>,
    /// Files without a valid header: they may be used again at once.
    pub blank: Vec<PathBuf>,
    /// Segments that the index covers: they may be used again when a new segment is durable, so
    /// that at every moment some segment proves that there was a journal.
    pub old: Vec<PathBuf>,
    /// The last position that holds, or the checkpoint.
    pub last: u64,
    pub next_sequence: u64,
    /// The highest epoch seen.
    pub epoch: u64,
    /// Records that were handed out.
    pub records: u64,
    /// Records that are missing although they were durable, where that loss was accepted.
    pub lost: Option<(u64, u64)>,
}

/// Reads the journal in `directory`.
pub(super) fn recover(
    disk: &dyn Disk,
    directory: &Path,
    rules: Rules,
    replay: Replay<'_>,
) -> Result<Recovered, StoreError> {
    let seed = record::seed_of(rules.store);
    let Scan { mut found, mut blank, suspects, next_sequence } =
        scan(disk, directory, rules.store)?;
    let suspects = mend(&mut found, suspects, rules.store)?;
    let mut old = Vec::new();
    let epoch = found.iter().map(|segment| segment.header.epoch).max().unwrap_or(0);
    let checkpoint = rules.checkpoint;
    drop_void(&mut found, &mut old);
    let start = found.iter().rposition(|segment| segment.header.first <= checkpoint + 1);
    let claim = rules.required;
    let mut walk = Walk { seed, expected: checkpoint + 1, records: 0, claim };
    let mut used = 0;
    match start {
        Some(start) => {
            old.extend(found.drain(..start).map(|segment| segment.path));
            used = walk.segments(&found, checkpoint, replay)?;
        }
        // The oldest segment begins too late, or there is none where there must be one.
        None if !found.is_empty() || rules.must_exist => {
            let first = found.first().map_or(checkpoint + 1, |segment| segment.header.first);
            walk.claim = walk.claim.max(first);
        }
        None => (),
    }
    for suspect in suspects {
        // It is out of the log, but its records can still testify.
        walk.search(&read_all(&suspect.path, &*suspect.file)?, None, u64::MAX);
        blank.push(suspect.path);
    }
    let last = (walk.expected - 1).max(checkpoint);
    let lost = (walk.claim > last).then_some((last + 1, walk.claim));
    if let (Some((from, through)), false) = (lost, rules.accept_loss) {
        return Err(StoreError::Lost { path: directory.to_path_buf(), from, through });
    }
    if walk.expected <= checkpoint + 1 {
        used = 0;
    }
    old.extend(found.drain(used..).map(|segment| segment.path));
    for segment in &found {
        // They may still be in the page cache only: the server was killed, not the machine.
        segment
            .file
            .sync_data()
            .map_err(|cause| StoreError::io("cannot sync", &segment.path, cause))?;
    }
    let records = walk.records;
    Ok(Recovered { segments: found, blank, old, last, next_sequence, epoch, records, lost })
}

struct Scan {
    found: Vec<Found>,
    /// Files that were never used.
    blank: Vec<PathBuf>,
    /// Segments whose header is neither blank nor valid.
    suspects: Vec<Suspect>,
    next_sequence: u64,
}

struct Suspect {
    /// By its name.
    sequence: u64,
    path: PathBuf,
    file: Arc<dyn File>,
}

/// Finds the segments, sorted by the sequence in their headers, and files that are free for use. A file
/// that was renamed for its next use still has the header of the last one, and is that one until it
/// has another; so are files whose names were exchanged.
fn scan(disk: &dyn Disk, directory: &Path, store: u128) -> Result<Scan, StoreError> {
    let names =
        disk.list(directory).map_err(|cause| StoreError::io("cannot list", directory, cause))?;
    let mut scan =
        Scan { found: Vec::new(), blank: Vec::new(), suspects: Vec::new(), next_sequence: 1 };
    for (name, kind) in names {
        let Some(sequence) = parse_name(&name) else { continue };
        let path = directory.join(name);
        if kind != Kind::File {
            let what = "it is not a regular file (perhaps a link), but the server renames and \
                 removes files of the journal: put the file itself in its place";
            return Err(StoreError::Damaged { path, what: what.to_owned() });
        }
        let fail = |cause| StoreError::io("cannot read the journal segment", &path, cause);
        let file = disk.open(&path, Open::Write).map_err(fail)?;
        let mut bytes = [0; SEGMENT_HEADER_BYTES as usize];
        let count = file.read_at(0, &mut bytes).map_err(fail)?;
        scan.next_sequence = scan.next_sequence.max(sequence.saturating_add(1));
        match SegmentHeader::decode(&bytes[..count]) {
            Ok(header) if header.store != store => {
                let what = "it belongs to the journal of another server: restore the right one";
                return Err(StoreError::Damaged { path, what: what.to_owned() });
            }
            Ok(header) => {
                scan.next_sequence = scan.next_sequence.max(header.sequence.saturating_add(1));
                let same = scan.found.iter().position(|one| one.header.sequence == header.sequence);
                match same {
                    // Of two copies of one segment the one under its own name counts.
                    Some(_) if header.sequence != sequence => scan.blank.push(path),
                    Some(at) => {
                        let other =
                            std::mem::replace(&mut scan.found[at], Found { header, path, file });
                        scan.blank.push(other.path);
                    }
                    None => scan.found.push(Found { header, path, file }),
                }
            }
            Err(NoHeader::Invalid) if bytes.iter().any(|byte| *byte != 0) => {
                scan.suspects.push(Suspect { sequence, path, file });
            }
            Err(NoHeader::Invalid) => {
                // A blank header before records is damage, too.
                let mut first = [0; record::RECORD_HEADER_BYTES];
                file.read_at(SEGMENT_HEADER_BYTES, &mut first).map_err(fail)?;
                match first.iter().any(|byte| *byte != 0) {
                    true => scan.suspects.push(Suspect { sequence, path, file }),
                    false => scan.blank.push(path),
                }
            }
            Err(NoHeader::Newer(version)) => {
                let what = format!("its format {version} is newer than this program: update it");
                return Err(StoreError::Damaged { path, what });
            }
        }
    }
    scan.found.sort_by_key(|segment| segment.header.sequence);
    Ok(scan)
}

/// Makes the headers of segments anew that have none any more, from their names and their first
/// records. The others are left: they are out of the log.
fn mend(
    found: &mut Vec<Found>,
    suspects: Vec<Suspect>,
    store: u128,
) -> Result<Vec<Suspect>, StoreError> {
    let mut left = Vec::new();
    for suspect in suspects {
        let bytes = read_all(&suspect.path, &*suspect.file)?;
        let first = bytes.get(SEGMENT_HEADER_BYTES as usize..).and_then(|rest| {
            let header = RecordHeader::decode(rest)?;
            header.payload(record::seed_of(store), rest).map(|_| header)
        });
        let at = found.partition_point(|one| one.header.sequence < suspect.sequence);
        let (before, behind) = found.split_at(at);
        // Records from an earlier use of the file do not fit in between.
        let fits = |record: &RecordHeader| {
            let after = |one: &Found| {
                one.header.first <= record.position && one.header.epoch <= record.epoch
            };
            let until = |one: &Found| {
                record.position <= one.header.first && record.epoch <= one.header.epoch
            };
            before.last().is_none_or(after) && behind.first().is_none_or(until)
        };
        let Some(record) = first.filter(fits) else {
            left.push(suspect);
            continue;
        };
        let Suspect { sequence, path, file } = suspect;
        let RecordHeader { epoch, position: first, durable, .. } = record;
        let header = SegmentHeader { sequence, epoch, first, durable, store };
        found.insert(at, Found { header, path, file });
    }
    Ok(left)
}

/// Gives up segments all of whose records a later epoch has voided.
fn drop_void(found: &mut Vec<Found>, old: &mut Vec<PathBuf>) {
    let headers: Vec<SegmentHeader> = found.iter().map(|segment| segment.header).collect();
    let mut index = 0;
    found.retain(|segment| {
        let own = headers[index];
        index += 1;
        let void = headers[index..]
            .iter()
            .any(|later| later.epoch > own.epoch && later.first <= own.first);
        if void {
            old.push(segment.path.clone());
        }
        !void
    });
}

struct Walk {
    /// The start value of the checksums of records.
    seed: u32,
    /// The position that comes next.
    expected: u64,
    records: u64,
    /// The highest position that anything behind the end of the walk calls durable.
    claim: u64,
}

impl Walk {
    /// Walks segments in order; returns how many belong to the unbroken log.
    fn segments(
        &mut self,
        found: &[Found],
        checkpoint: u64,
        replay: Replay<'_>,
    ) -> Result<usize, StoreError> {
        self.expected = found[0].header.first;
        let mut index = 0;
        loop {
            let segment = &found[index];
            let limit = found[index + 1..]
                .iter()
                .find(|later| later.header.epoch > segment.header.epoch)
                .map_or(u64::MAX, |later| later.header.first);
            let bytes = read_all(&segment.path, &*segment.file)?;
            let end = self.records(&bytes, segment.header.epoch, limit, checkpoint, replay)?;
            index += 1;
            match found.get(index) {
                Some(next) if next.header.first == self.expected => (),
                rest => {
                    self.search(&bytes[end..], Some(segment.header.epoch), limit);
                    if rest.is_some() {
                        self.testimony(&found[index..])?;
                    }
                    return Ok(index);
                }
            }
        }
    }

    /// Hands out the records of one segment; returns where they end.
    fn records(
        &mut self,
        bytes: &[u8],
        epoch: u64,
        limit: u64,
        checkpoint: u64,
        replay: Replay<'_>,
    ) -> Result<usize, StoreError> {
        let mut at = (SEGMENT_HEADER_BYTES as usize).min(bytes.len());
        loop {
            at = self.unbroken(bytes, at, (epoch, limit), checkpoint, &mut *replay)?;
            match self.skip(&bytes[at..], epoch, checkpoint) {
                Some(skipped) => at += skipped,
                None => return Ok(at),
            }
        }
    }

    /// The end of the consecutive records that begin at `at`.
    fn unbroken(
        &mut self,
        bytes: &[u8],
        mut at: usize,
        (epoch, limit): (u64, u64),
        checkpoint: u64,
        replay: Replay<'_>,
    ) -> Result<usize, StoreError> {
        while self.expected < limit
            && let Some(header) = RecordHeader::decode(&bytes[at..])
            && header.epoch == epoch
            && header.position == self.expected
            && let Some(payload) = header.payload(self.seed, &bytes[at..])
        {
            if header.position > checkpoint {
                replay(header.position, payload)?;
                self.records += 1;
            }
            self.expected += 1;
            at = (at + record_bytes(header.len)).min(bytes.len());
        }
        Ok(at)
    }

    /// Skips damaged records that the index has already. Returns the distance to the next record that holds.
    fn skip(&mut self, bytes: &[u8], epoch: u64, checkpoint: u64) -> Option<usize> {
        if self.expected > checkpoint {
            return None;
        }
        let mut budget = bytes.len().saturating_mul(4);
        for at in (8..bytes.len()).step_by(8) {
            let rest = &bytes[at..];
            let Some(header) = RecordHeader::decode(rest) else { break };
            if header.epoch == epoch
                && (self.expected + 1..=checkpoint + 1).contains(&header.position)
                && header.len <= rest.len().min(budget)
            {
                budget -= header.len;
                if header.payload(self.seed, rest).is_some() {
                    self.expected = header.position;
                    return Some(at);
                }
            }
        }
        None
    }

    /// Looks behind the end for records that testify what was durable.
    fn search(&mut self, bytes: &[u8], epoch: Option<u64>, limit: u64) {
        // Bytes of users may look like records; their checksums must not cost without bound.
        let mut budget = bytes.len().saturating_mul(4);
        let mut at = 0;
        while let Some(rest) = bytes.get(at..)
            && let Some(header) = RecordHeader::decode(rest)
        {
            at += 8;
            if epoch.is_some_and(|epoch| header.epoch != epoch)
                || header.position <= self.expected
                || header.position >= limit
                || header.durable <= self.claim
                || header.len > rest.len()
                || header.len > budget
            {
                continue;
            }
            budget -= header.len;
            if header.payload(self.seed, rest).is_some() {
                self.claim = header.durable;
                at += record_bytes(header.len) - 8;
            }
        }
    }

    /// Takes the durable position from the segments behind a gap.
    fn testimony(&mut self, found: &[Found]) -> Result<(), StoreError> {
        for segment in found {
            self.claim = self.claim.max(segment.header.durable);
            let bytes = read_all(&segment.path, &*segment.file)?;
            let mut expected = segment.header.first;
            let mut at = (SEGMENT_HEADER_BYTES as usize).min(bytes.len());
            while let Some(header) = RecordHeader::decode(&bytes[at..])
                && header.epoch == segment.header.epoch
                && header.position == expected
                && header.payload(self.seed, &bytes[at..]).is_some()
            {
                self.claim = self.claim.max(header.durable);
                expected += 1;
                at = (at + record_bytes(header.len)).min(bytes.len());
            }
        }
        Ok(())
    }
}

fn read_all(path: &Path, file: &dyn File) -> Result<Vec<u8>, StoreError> {
    let fail = |cause| StoreError::io("cannot read the journal segment", path, cause);
    let len = file.len().map_err(fail)?;
    if len > super::SEGMENT_BYTES_MAX {
        let what = format!("{len} bytes are more than a segment can have");
        return Err(StoreError::Damaged { path: path.to_path_buf(), what });
    }
    let mut bytes = vec![0; len as usize];
    let count = file.read_at(0, &mut bytes).map_err(fail)?;
    bytes.truncate(count);
    Ok(bytes)
}
