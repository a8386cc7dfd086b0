//! Room on the disk: what is left, what is kept, and what is admitted.
//!
//! The index copies what it changes, so that even a removal needs room before it gives some back. A
//! reserve is kept for that, at the end of the index's file, where nobody else can take it.
//!
//! Invariants
//! * creations and growth are refused (`Short`) while the reserve is whole and while everything that was
//!   admitted still finds room: what frees room, ends sessions and restarts never waits for it;
//! * a part of a checkpoint is begun only where it finds room, whoever else writes to the disk.

use std::path::Path;

use crate::error::StoreError;
use crate::index::GROWTH_BYTES;

/// What a part of a checkpoint may write where the file of the index can grow for it.
const PART_BYTES: u64 = 2 << 20;
/// The least that a part may write.
const PART_BYTES_MIN: u64 = 512 << 10;

/// What a store may still take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Anything.
    Ample,
    /// What frees room, and what takes none. So many bytes must be freed before anything else.
    Short { missing: u64 },
    /// What frees room, and no more: half of the reserve is used.
    Tight { missing: u64 },
}

/// Where changes of the index find room, in bytes.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Spaces {
    /// Free on the disk.
    pub available: u64,
    /// Kept at the end of the index's file.
    pub reserve: u64,
    /// Known to be free within the index.
    pub inside: u64,
}

impl Spaces {
    fn all(&self) -> u64 {
        self.available.saturating_add(self.reserve).saturating_add(self.inside)
    }

    /// Whether the file of the index may grow by a step.
    pub(super) fn may_grow(&self) -> bool {
        self.available.saturating_add(self.reserve) >= GROWTH_BYTES
    }

    /// What the next part of a checkpoint may write; None where it finds no room.
    pub(super) fn part_bytes(&self) -> Option<u64> {
        if self.may_grow() {
            return Some((self.available / 2).max(PART_BYTES));
        }
        // What one part frees is free after the next one.
        Some(self.inside / 3).filter(|bytes| *bytes >= PART_BYTES_MIN)
    }

    /// The store cannot go on.
    pub(super) fn full(&self, directory: &Path) -> StoreError {
        StoreError::Full {
            path: directory.to_path_buf(),
            what: "the metadata store",
            needed: GROWTH_BYTES - self.available.saturating_add(self.reserve).min(GROWTH_BYTES),
        }
    }

    /// What new things may take, beside the reserve.
    pub(super) fn excess(&self, reserve: u64) -> u64 {
        self.all().saturating_sub(reserve)
    }

    /// Whether half of the reserve is needed for what was admitted already.
    pub(super) fn is_tight(&self, reserve: u64, overlay: usize) -> bool {
        // What removes and frees goes on with the other half.
        let half = (reserve / 2).max(GROWTH_BYTES + 3 * PART_BYTES_MIN);
        self.all() < half + 2 * overlay as u64
    }

    /// The same without what is free within the index, of which it is not known how long it is.
    pub(super) fn excess_outside(&self, reserve: u64) -> u64 {
        Spaces { inside: 0, ..*self }.excess(reserve)
    }
}

/// What has to be left beside the reserve so that new things are admitted: `overlay` bytes are admitted
/// already, and the index grows in steps.
pub(super) fn admission_bytes(overlay: usize) -> u64 {
    GROWTH_BYTES + 2 * overlay as u64
}
