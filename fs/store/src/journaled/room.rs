//! Room on the disk: the free space, the reserve, and the changes that are admitted.
//!
//! The index copies what it changes, so that even a removal needs room before it gives some back. A
//! reserve is kept for that, at the end of the index's file, where nobody else can take it.
//!
//! Invariants
//! * creations and growth are refused (`Short`) while the reserve is whole and while everything that was
//!   admitted still finds room: requests that free room, ends of sessions and restarts never wait for it;
//! * a part of a checkpoint is begun only where it finds room, also if others write to the disk.

use std::path::Path;

use crate::error::StoreError;
use crate::index::GROWTH_BYTES;

/// The bytes that a part of a checkpoint may write while the index file can grow for it.
const PART_BYTES: u64 = 2 << 20;
/// The least that a part may write.
const PART_BYTES_MIN: u64 = 512 << 10;

/// The changes that a store can still accept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Room {
    /// Anything.
    Ample,
    /// Changes that free room, and changes that take none. So many bytes must be freed before anything else.
    Short { missing: u64 },
    /// Only changes that free room: half of the reserve is used.
    Tight { missing: u64 },
}

/// The places in which changes of the index find room, in bytes.
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

    /// The bytes that the next part of a checkpoint may write; None where it finds no room.
    pub(super) fn part_bytes(&self) -> Option<u64> {
        if self.may_grow() {
            return Some((self.available / 2).max(PART_BYTES));
        }
        // Pages that one part frees can be used after the next part.
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

    /// The bytes that new changes may take, beside the reserve.
    pub(super) fn excess(&self, reserve: u64) -> u64 {
        self.all().saturating_sub(reserve)
    }

    /// Whether half of the reserve is needed for changes that were admitted already.
    pub(super) fn is_tight(&self, reserve: u64, overlay: usize) -> bool {
        // The other half is for changes that remove and free.
        let half = (reserve / 2).max(GROWTH_BYTES + 3 * PART_BYTES_MIN);
        self.all() < half + 2 * overlay as u64
    }

    /// The same without the free space within the index: its size may no longer be right.
    pub(super) fn excess_outside(&self, reserve: u64) -> u64 {
        Spaces { inside: 0, ..*self }.excess(reserve)
    }
}

/// The bytes that must be left beside the reserve before new changes are admitted. `overlay` bytes are
/// admitted already, and the index grows in steps.
pub(super) fn admission_bytes(overlay: usize) -> u64 {
    GROWTH_BYTES + 2 * overlay as u64
}
