//! Opening a journal: first read, then begin a new segment.
//!
//! Invariant: the new segment has a higher epoch than all that was found, and its header is
//! durable before any older file is used again.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ropewalk_base::disk::{Disk, File};

use super::mark::{self, MarkFile};
use super::record::SegmentHeader;
use super::recover::{self, Replay};
use super::segment::{self, segment_name};
use super::{JournalConfig, OLD_FILES_MAX, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, Segment};
use crate::error::StoreError;
use crate::marks::Position;

/// The rules for opening a journal.
#[derive(Debug, Clone, Copy, Default)]
pub struct OpenJournal {
    /// Greater than at every earlier start: the boot counter.
    pub epoch: u64,
    /// The identity of the store.
    pub store: u128,
    /// The era, in which nothing that was written can be lost.
    pub era: u64,
    /// The index holds everything up to here.
    pub checkpoint: Position,
    /// A journal without any segment is a loss, not a first start.
    pub must_exist: bool,
    /// Go on at the first missing record where durable ones are lost.
    pub accept_loss: bool,
}

/// The result of a journal's recovery at a start.
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
    open: OpenJournal,
    directory: PathBuf,
}

/// A journal that is ready for [`super::Journal::start`].
pub struct RecoveredJournal {
    pub recovery: Recovery,
    pub(super) config: JournalConfig,
    pub(super) open: OpenJournal,
    pub(super) directory: PathBuf,
    pub(super) mark: MarkFile,
    pub(super) segments: VecDeque<Segment>,
    pub(super) old: Vec<PathBuf>,
}

/// Removes all that belongs to a journal. Blocks; meant for `World::offload`.
pub(crate) fn clear(disk: &dyn Disk, directory: &Path) -> Result<(), StoreError> {
    let fail = |cause| StoreError::io("cannot clear the journal in", directory, cause);
    for (name, _) in disk.list(directory).map_err(fail)? {
        if segment::parse_name(&name).is_some() {
            disk.remove_file(&directory.join(name)).map_err(fail)?;
        }
    }
    disk.sync_directory(directory).map_err(fail)?;
    mark::remove(disk, directory)
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
        store: open.store,
        required: mark::required(disk, directory, open.store, open.era)?,
        checkpoint: open.checkpoint.0,
        must_exist: open.must_exist,
        accept_loss: open.accept_loss,
    };
    let found = recover::recover(disk, directory, rules, replay)?;
    // A superblock that is an older copy counts too few starts; the journal knows better.
    let epoch = open.epoch.max(found.epoch + 1);
    let recovery = Recovery {
        last: Position(found.last),
        records: found.records,
        lost: found.lost.map(|(from, through)| (Position(from), Position(through))),
    };
    let directory = directory.to_path_buf();
    Ok(FoundJournal { recovery, found, config, open: OpenJournal { epoch, ..open }, directory })
}

impl FoundJournal {
    /// Records behind `through` are given up: the new segment takes their place.
    pub(crate) fn forget_after(&mut self, through: Position) {
        let last = self.recovery.last.min(through);
        let forgotten = self.recovery.last.0 - last.0;
        self.recovery.records -= self.recovery.records.min(forgotten);
        (self.recovery.last, self.found.last) = (last, last.0);
    }

    /// Starts a new segment behind the recovered records. `covered`: the owner has brought all of them into
    /// its index, durably, so that the files are free for use. Blocks; meant for `World::offload`.
    ///
    /// The recovered records may be in the page cache only, if a sync failed before the restart. An owner
    /// that promises their durability first writes them to another place.
    pub fn begin(mut self, disk: &dyn Disk, covered: bool) -> Result<RecoveredJournal, StoreError> {
        if covered {
            let segments = self.found.segments.drain(..);
            self.found.old.extend(segments.map(|segment| segment.path));
        }
        let sequence = self.found.next_sequence;
        let file = self.take_file(disk, covered)?;
        let path = self.directory.join(segment_name(sequence));
        let OpenJournal { epoch, store, era, .. } = self.open;
        let (first, durable) = (self.found.last + 1, self.found.last);
        // Before the new segment voids records that were given up: nobody may miss them later.
        let mark = MarkFile::begin(disk, &self.directory, store, era, self.found.last)?;
        let mut bytes = Vec::new();
        SegmentHeader { sequence, epoch, first, durable, store }.encode(&mut bytes);
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
        if segments.len() + old.len() == 1 {
            // Two files take turns for good, however full the disk becomes.
            let path = self.directory.join(segment_name(sequence + 1));
            segment::prepare(disk, &self.directory, sequence + 1, self.config.segment_bytes, None)?;
            old.push(path);
        }
        Ok(RecoveredJournal {
            recovery: self.recovery,
            config: self.config,
            open: self.open,
            directory: self.directory,
            mark,
            segments,
            old,
        })
    }

    /// The file of the new segment. Where the index covers everything, a full disk is no hindrance: a
    /// file is taken that is there already.
    fn take_file(&mut self, disk: &dyn Disk, covered: bool) -> Result<Arc<dyn File>, StoreError> {
        let (sequence, bytes) = (self.found.next_sequence, self.config.segment_bytes);
        let prepare =
            |old: Option<&Path>| segment::prepare(disk, &self.directory, sequence, bytes, old);
        while let Some(blank) = self.found.blank.pop() {
            match prepare(Some(&blank)) {
                // One that was being made when the server died takes more room, and is gone now.
                Err(error) if error.is_full() => {}
                result => return result,
            }
        }
        // The others prove meanwhile that there was a journal.
        if covered && self.found.old.len() > 1 {
            return prepare(Some(&self.found.old.remove(0)));
        }
        match prepare(None) {
            Err(error) if error.is_full() && covered && !self.found.old.is_empty() => {
                prepare(Some(&self.found.old.remove(0)))
            }
            result => result,
        }
    }
}
