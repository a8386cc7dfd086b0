//! Opening a journal: first read, then begin a new segment.
//!
//! Invariant: the new segment has a higher epoch than all that was found, and its header is
//! durable before any older file is used again.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use ropewalk_base::disk::Disk;

use super::record::SegmentHeader;
use super::recover::{self, Replay};
use super::segment::{self, segment_name};
use super::{JournalConfig, OLD_FILES_MAX, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, Segment};
use crate::error::StoreError;
use crate::marks::Position;

/// How to open a journal.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenJournal {
    /// Greater than at every earlier start: the boot counter.
    pub epoch: u64,
    /// The index holds everything up to here.
    pub checkpoint: Position,
    /// A journal without any segment is a loss, not a first start.
    pub must_exist: bool,
    /// Go on at the first missing record where durable ones are lost.
    pub accept_loss: bool,
}

/// What a start found in the journal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recovery {
    /// The last position that holds.
    pub last: Position,
    /// Records above the checkpoint.
    pub records: u64,
    /// Durable records that are missing, where that was accepted: from, through.
    pub lost: Option<(Position, Position)>,
}

/// A journal that was read, before anything is written to it.
pub struct FoundJournal {
    pub recovery: Recovery,
    found: recover::Recovered,
    config: JournalConfig,
    epoch: u64,
    directory: PathBuf,
}

/// A journal that is ready for [`super::Journal::start`].
pub struct RecoveredJournal {
    pub recovery: Recovery,
    pub(super) config: JournalConfig,
    pub(super) epoch: u64,
    pub(super) directory: PathBuf,
    pub(super) segments: VecDeque<Segment>,
    pub(super) old: Vec<PathBuf>,
}

/// Reads the journal in `directory` and hands each record above the checkpoint to `replay`.
/// Blocks; meant for `World::offload`.
pub fn recover(
    disk: &dyn Disk,
    directory: &Path,
    config: JournalConfig,
    open: OpenJournal,
    replay: Replay<'_>,
) -> Result<FoundJournal, StoreError> {
    let sizes = SEGMENT_BYTES_MIN..=SEGMENT_BYTES_MAX;
    assert!(sizes.contains(&config.segment_bytes), "segments of {} bytes", config.segment_bytes);
    let rules = recover::Rules {
        checkpoint: open.checkpoint.0,
        must_exist: open.must_exist,
        accept_loss: open.accept_loss,
    };
    let found = recover::recover(disk, directory, rules, replay)?;
    if found.epoch >= open.epoch {
        return Err(StoreError::Damaged {
            path: directory.to_path_buf(),
            what: format!(
                "it was written at boot {}, and this is boot {}: the superblock is an older copy",
                found.epoch, open.epoch
            ),
        });
    }
    let recovery = Recovery {
        last: Position(found.last),
        records: found.records,
        lost: found.lost.map(|(from, through)| (Position(from), Position(through))),
    };
    let directory = directory.to_path_buf();
    Ok(FoundJournal { recovery, found, config, epoch: open.epoch, directory })
}

impl FoundJournal {
    /// Starts a new segment behind what was found. Blocks; meant for `World::offload`.
    ///
    /// What was found may be in the page cache only, where a sync failed before the restart. An
    /// owner who promises that it is durable first writes it to another place.
    pub fn begin(mut self, disk: &dyn Disk) -> Result<RecoveredJournal, StoreError> {
        let (sequence, bytes) = (self.found.next_sequence, self.config.segment_bytes);
        let blank = self.found.blank.pop();
        let file = segment::prepare(disk, &self.directory, sequence, bytes, blank.as_deref())?;
        let path = self.directory.join(segment_name(sequence));
        let (first, durable) = (self.found.last + 1, self.found.last);
        let mut bytes = Vec::new();
        SegmentHeader { sequence, epoch: self.epoch, first, durable }.encode(&mut bytes);
        file.write_at(0, &bytes)
            .and_then(|()| file.sync_data())
            .map_err(|cause| StoreError::io("cannot start the journal segment", &path, cause))?;
        let kept = self.found.segments.into_iter().map(|segment| Segment {
            sequence: segment.header.sequence,
            first: segment.header.first,
            file: segment.file,
            path: segment.path,
            dirty: false,
            header_durable: true,
        });
        let mut segments: VecDeque<Segment> = kept.collect();
        let header_durable = true;
        segments.push_back(Segment { sequence, first, file, path, dirty: false, header_durable });
        let mut old = self.found.old;
        old.append(&mut self.found.blank);
        let excess = old.split_off(old.len().min(OLD_FILES_MAX));
        segment::remove(disk, &excess);
        Ok(RecoveredJournal {
            recovery: self.recovery,
            config: self.config,
            epoch: self.epoch,
            directory: self.directory,
            segments,
            old,
        })
    }
}
