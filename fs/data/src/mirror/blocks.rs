//! Blocks of objects, as the servers of a group name them to each other.

use std::ops::Range;

use ropewalk_store::objects::{ObjectError, ObjectId, WriteEpoch};
use ropewalk_wire::fs::data::{BLOCK_BYTES, FileId, ObjectRange};
use ropewalk_wire::fs::group::Group;

use crate::plan::CHUNK_BYTES;

/// Nobody's: the orderer has judged the client's session.
pub(crate) const BY: WriteEpoch = WriteEpoch { session: 0, epoch: 0 };

/// Blocks that travel together.
const RUN_BLOCKS: u32 = CHUNK_BYTES / BLOCK_BYTES;

/// An object that is made equal at one server.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub group: Group,
    pub object: ObjectId,
    pub server: u32,
}

/// Whether an object as a whole is not what was acknowledged, so that no write heals it.
pub(super) fn is_head_damage(error: &ObjectError) -> bool {
    matches!(
        error,
        ObjectError::Header { .. } | ObjectError::Older { .. } | ObjectError::Gone { .. }
    )
}

/// A run of blocks of an object.
pub(super) fn range_of(target: Target, blocks: Range<u32>) -> (FileId, ObjectRange) {
    let ObjectId { inode, generation, stripe } = target.object;
    // In no epoch: it is the state after all that was done here.
    let file = FileId { inode, generation, epoch: u32::MAX };
    let (offset, len) = (blocks.start * BLOCK_BYTES, (blocks.end - blocks.start) * BLOCK_BYTES);
    (file, ObjectRange { stripe, group: target.group, offset, len })
}

/// Numbers in ascending order as runs of at most `RUN_BLOCKS`.
pub(super) fn runs(blocks: &[u32]) -> Vec<Range<u32>> {
    let mut runs: Vec<Range<u32>> = Vec::new();
    for block in blocks {
        match runs.last_mut() {
            Some(run) if run.end == *block && run.end - run.start < RUN_BLOCKS => run.end += 1,
            _ => runs.push(*block..*block + 1),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_sent_in_runs_of_bounded_length() {
        assert_eq!(runs(&[]), []);
        assert_eq!(runs(&[1, 2, 4]), [1..3, 4..5]);
        let many: Vec<u32> = (0..RUN_BLOCKS + 2).collect();
        assert_eq!(runs(&many), [0..RUN_BLOCKS, RUN_BLOCKS..RUN_BLOCKS + 2]);
    }
}
