//! The decoders of everything that a server keeps on disk, one by one, for fuzzers.
//!
//! Checksums stop most damage before a decoder sees it, but a fuzzer is to test the decoder. So each function
//! here makes the checksum fit first. All of them answer whether the bytes were accepted; none may panic,
//! whatever they are, and none allocates more than a constant beside the input.

use crate::{batch, index, journal, objects, superblock};

/// The blocks that say whose directory it is, and whose part of one.
pub fn superblock(bytes: &[u8]) -> bool {
    superblock::accepts(&mut bytes.to_vec()) | superblock::accepts_starts(&mut bytes.to_vec())
}

/// The header of a segment of the journal.
pub fn journal_segment(bytes: &[u8]) -> bool {
    journal::accepts_header(&mut bytes.to_vec())
}

/// The mark of the journal.
pub fn journal_mark(bytes: &[u8]) -> bool {
    journal::accepts_mark(&mut bytes.to_vec())
}

/// The head of the index.
pub fn index_head(bytes: &[u8]) -> bool {
    index::accepts(&mut bytes.to_vec())
}

/// A record of the journal, and the batch of changes in it.
pub fn journal_record(bytes: &[u8]) -> bool {
    let mut bytes = bytes.to_vec();
    let Some(payload) = journal::accepts_record(&mut bytes) else { return false };
    batch::changes(payload).all(|change| change.is_some())
}

/// A batch of changes, without the record around it.
pub fn changes(bytes: &[u8]) -> bool {
    batch::changes(bytes).all(|change| change.is_some())
}

/// A record of the object store's intent log.
pub fn intent(bytes: &[u8]) -> bool {
    objects::accepts_intent(bytes)
}

/// The description of an object store.
pub fn object_store(bytes: &[u8]) -> bool {
    objects::accepts_description(&mut bytes.to_vec())
}

/// Tombstones and fences of an object store.
pub fn marks(bytes: &[u8]) -> bool {
    objects::accepts_marks(bytes)
}
