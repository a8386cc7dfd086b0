//! The state of one object in memory.
//!
//! Invariants
//! * `entries[b]` describes block b as it is in the file; where `overlay` has b, the block's bytes
//!   are those of the overlay, and the file does not have them yet;
//! * a block is in the overlay only if its whole image, and every change to it since, are in the
//!   log from `imaged_at` on;
//! * an object with `first_position` is not dropped from memory before a checkpoint took it in.

use std::collections::BTreeMap;
use std::sync::Arc;

use ropewalk_base::disk::File;

use super::block::{Block, BlockSet, has_bytes};
use super::board::Chain;
use super::table::{Front, SECTOR_ENTRIES};

/// A block whose bytes are in the log and in memory, not yet in the object's file.
pub(super) struct Patch {
    pub(super) content: Box<Block>,
    pub(super) entry: u32,
    /// Position of its image, and of its last change.
    pub(super) imaged_at: u64,
    pub(super) changed_at: u64,
}

/// An object in memory.
#[derive(Default)]
pub(super) struct Object {
    pub(super) file: Option<Arc<dyn File>>,
    /// The file is there, with its header.
    pub(super) exists: bool,
    /// The content of the head of its file.
    pub(super) front: Front,
    pub(super) entries: Vec<u32>,
    pub(super) overlay: BTreeMap<u32, Patch>,
    /// Written in place since the last sync began.
    pub(super) unsynced: BlockSet,
    /// The blocks that the sync under way covers.
    pub(super) syncing: Option<BlockSet>,
    /// The blocks that a failed sync covered and nobody has written since.
    pub(super) suspects: BlockSet,
    /// The file's name may not survive a power loss yet.
    pub(super) name_unsynced: bool,
    /// The table in the file was written since the last sync began.
    pub(super) table_unsynced: bool,
    /// Syncs of the file that were begun, and that have ended.
    pub(super) sync_started: u64,
    pub(super) sync_finished: u64,
    /// The last one that ended has failed; the number that have failed.
    pub(super) sync_failed: bool,
    pub(super) sync_failures: u64,
    /// Log position at the start of the last successful one.
    pub(super) synced_position: u64,
    /// A failed sync may have lost the header: the next one writes it again.
    pub(super) header_suspect: bool,
    /// Entries that the table in the file lacks: from, to.
    pub(super) table_changed: Option<(u32, u32)>,
    /// While a checkpoint has begun and not yet come to this object: the entries, as they were when
    /// it began, of blocks that have changed since.
    pub(super) as_of: Option<BTreeMap<u32, u32>>,
    /// Table pages of the file that have room: blocks of the first page that has none.
    pub(super) table_pages: u64,
    /// Its records in the log.
    pub(super) chain: Chain,
    /// Oldest log record that is not in place yet.
    pub(super) first_position: Option<u64>,
    /// A checkpoint has written it out and not yet heard how that ended.
    pub(super) flushing: bool,
    /// Was used since the clock hand last came by.
    pub(super) touched: bool,
}

impl Object {
    /// The entry of a block in the file; 0 for a hole.
    pub(super) fn entry(&self, block: u32) -> u32 {
        self.entries.get(block as usize).copied().unwrap_or(0)
    }

    /// Sets the entry of a block in the file; returns how the number of written blocks changes.
    pub(super) fn set_entry(&mut self, block: u32, entry: u32) -> i64 {
        let index = block as usize;
        if self.entries.len() <= index {
            if entry == 0 {
                return 0;
            }
            self.entries.resize(index + 1, 0);
        }
        let before = std::mem::replace(&mut self.entries[index], entry);
        if before != entry {
            self.change_table(block);
            if let Some(as_of) = &mut self.as_of {
                as_of.entry(block).or_insert(before);
            }
        }
        i64::from(has_bytes(entry)) - i64::from(has_bytes(before))
    }

    /// The table in the file no longer has the entry of `block`.
    pub(super) fn change_table(&mut self, block: u32) {
        let (low, high) = self.table_changed.unwrap_or((block, block + 1));
        self.table_changed = Some((low.min(block), high.max(block + 1)));
    }

    /// All of the table, as far as the file has it, is to be written again.
    pub(super) fn change_whole_table(&mut self) {
        let pairs = self.front.pairs * SECTOR_ENTRIES;
        self.table_changed = Some((0, pairs.max(self.entries.len() as u32)));
    }

    /// Behind the last block of which the table in the file may say something.
    pub(super) fn table_end(&self, blocks_max: u32) -> u32 {
        let pairs = (self.entries.len() as u32).div_ceil(SECTOR_ENTRIES).max(self.front.pairs);
        (pairs * SECTOR_ENTRIES).min(blocks_max)
    }

    /// A log record at `position` concerns this object.
    pub(super) fn logged(&mut self, position: u64) {
        self.first_position.get_or_insert(position);
    }

    /// Whether it may be dropped from memory.
    pub(super) fn is_clean(&self) -> bool {
        self.first_position.is_none()
            && !self.flushing
            && self.is_synced()
            && self.suspects.is_empty()
    }

    /// Whether a sync of its file would have nothing to do.
    pub(super) fn is_synced(&self) -> bool {
        self.unsynced.is_empty()
            && self.syncing.is_none()
            && !self.name_unsynced
            && !self.table_unsynced
            && !self.header_suspect
    }

    /// Whether no block was ever written, or all that were are holes again. A lost block is none.
    pub(super) fn is_blank(&self) -> bool {
        self.entries.iter().all(|entry| *entry == 0)
    }

    /// Written blocks that are not lost.
    pub(super) fn written_blocks(&self) -> u64 {
        self.entries.iter().filter(|entry| has_bytes(**entry)).count() as u64
    }
}
