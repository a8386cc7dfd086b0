//! Compares the statements of an object and an inode about each other.
//!
//! Invariant: the judgement uses only the answers that were read. Whether they were true at one and the same
//! moment is the affair of `check`.

use ropewalk_wire::fs::attributes::Content;
use ropewalk_wire::fs::data::{Condition, ObjectName};
use ropewalk_wire::fs::layout::Layout;
use ropewalk_wire::fs::meta::{InodeFate, InodeInfo};

/// A problem of an object or of metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Problem {
    /// An object without an inode: garbage.
    Orphan,
    /// An object of a generation that was thrown away: garbage.
    Stale,
    /// An object of which its inode does not know, while nobody writes: a client died before it told.
    Unrecorded,
    /// An object of a generation that the inode has not reached: the metadata are older than it.
    Newer,
    /// An object on a server where nobody looks for it.
    Misplaced,
    /// Bytes were written, and their object is not there.
    Absent,
    /// The data under the object's name are not the object.
    Damaged,
    /// This block does not match its checksum; further ones may not, either.
    Corrupt { block: u32 },
    /// The disk does not give the object.
    Unreadable,
    /// Rows of so many inodes, or of one and what it has, cannot be read at the metadata server.
    Metadata { inodes: u64 },
}

impl Problem {
    /// One word.
    pub fn name(self) -> &'static str {
        match self {
            Problem::Orphan => "orphan",
            Problem::Stale => "stale",
            Problem::Unrecorded => "unrecorded",
            Problem::Newer => "newer",
            Problem::Misplaced => "misplaced",
            Problem::Absent => "absent",
            Problem::Damaged => "damaged",
            Problem::Corrupt { .. } => "corrupt",
            Problem::Unreadable => "unreadable",
            Problem::Metadata { .. } => "metadata",
        }
    }

    /// Whether the object can go without a loss, for certain and for ever.
    pub fn is_garbage(self) -> bool {
        matches!(self, Problem::Orphan | Problem::Stale)
    }
}

/// The layout of an inode whose content is in stripes.
pub(super) fn layout(inode: &InodeInfo) -> Option<&Layout> {
    match &inode.content {
        Content::Striped(layout) => Some(layout),
        Content::Inline => None,
    }
}

fn contains(inode: &InodeInfo, stripe: u32) -> bool {
    inode
        .written
        .iter()
        .any(|(first, count)| stripe.checked_sub(*first).is_some_and(|behind| behind < *count))
}

/// The problem of an object of so many bytes that a server has, if any. `homes`: the servers of the object's stripe, where
/// the inode has stripes.
pub(super) fn judge(
    server: u32,
    (name, bytes): (&ObjectName, u64),
    fate: &InodeFate,
    homes: Option<&[u32]>,
) -> Option<Problem> {
    if fate.reaping.is_some_and(|generation| name.generation <= generation) {
        return None;
    }
    let Some(inode) = &fate.inode else { return Some(Problem::Orphan) };
    let generation = inode.attributes.object_generation;
    if name.generation < generation {
        return Some(Problem::Stale);
    }
    if name.generation > generation {
        return Some(Problem::Newer);
    }
    // A cut leaves objects without bytes, whose names stay until the inode goes.
    let explained = inode.changing || bytes == 0;
    let Some(homes) = homes else {
        // Stripes are written before the inode says that its content is there.
        return (!explained).then_some(Problem::Unrecorded);
    };
    if !homes.contains(&server) {
        // One without bytes takes nobody's room: its group went elsewhere, and the server was cleaned.
        return (bytes > 0).then_some(Problem::Misplaced);
    }
    let explained = explained || contains(inode, name.stripe);
    (!explained).then_some(Problem::Unrecorded)
}

/// Whether the inode says that this object was written.
pub(super) fn is_expected(name: &ObjectName, fate: &InodeFate) -> bool {
    fate.inode.as_ref().is_some_and(|inode| {
        layout(inode).is_some()
            && inode.attributes.object_generation == name.generation
            && contains(inode, name.stripe)
    })
}

/// The problem that follows from the condition of an object that has to be there.
pub(super) fn problem_of(condition: Condition) -> Option<Problem> {
    match condition {
        Condition::Present { .. } => None,
        Condition::Absent => Some(Problem::Absent),
        Condition::Damaged => Some(Problem::Damaged),
        Condition::Corrupt { block } => Some(Problem::Corrupt { block }),
        Condition::Unreadable => Some(Problem::Unreadable),
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_wire::fs::attributes::{Attributes, InodeKind};
    use ropewalk_wire::fs::layout::Growth;
    use ropewalk_wire::fs::value::Timestamp;

    use super::*;

    fn fate(striped: bool, changing: bool, written: &[(u32, u32)]) -> InodeFate {
        let at = Timestamp::default();
        let attributes = Attributes {
            inode: 9,
            object_generation: 5,
            kind: InodeKind::File,
            mode: 0o644,
            link_count: 1,
            user: 0,
            group: 0,
            device: 0,
            size: 1,
            blocks: 0,
            accessed: at,
            modified: at,
            changed: at,
            created: at,
            capable: false,
            has_xattrs: false,
            version: 1,
        };
        let layout =
            Layout { pool_version: 1, seed: 3, stripe_bytes: 1 << 20, growth: Growth::Fixed(1) };
        let content = if striped { Content::Striped(layout) } else { Content::Inline };
        let inode = InodeInfo { attributes, content, written: written.to_vec(), changing };
        InodeFate { inode: Some(inode), reaping: None }
    }

    #[test]
    fn objects_are_judged_by_generation_place_and_record() {
        let known = fate(true, false, &[(0, 2), (8, 1)]);
        let (home, copy, other) = (4, 5, 7);
        let homes = [home, copy];
        let object = |generation, stripe| ObjectName { inode: 9, generation, stripe };
        let judge = |server, name, fate: &InodeFate| {
            let striped = fate.inode.as_ref().is_some_and(|inode| layout(inode).is_some());
            judge(server, (&name, 1), fate, striped.then_some(&homes))
        };
        let emptied = super::judge(home, (&object(5, 2), 0), &known, Some(&homes));
        assert_eq!(emptied, None);
        let cleaned = super::judge(other, (&object(5, 1), 0), &known, Some(&homes));
        assert_eq!(cleaned, None);
        assert_eq!(judge(home, object(5, 1), &known), None);
        assert_eq!(judge(home, object(5, 8), &known), None);
        assert_eq!(judge(copy, object(5, 8), &known), None);
        assert_eq!(judge(home, object(5, 2), &known), Some(Problem::Unrecorded));
        assert_eq!(judge(home, object(5, 2), &fate(true, true, &[])), None);
        assert_eq!(judge(home, object(5, 0), &fate(false, true, &[])), None);
        assert_eq!(judge(home, object(5, 0), &fate(false, false, &[])), Some(Problem::Unrecorded));
        assert_eq!(judge(other, object(5, 1), &known), Some(Problem::Misplaced));
        assert_eq!(judge(home, object(4, 1), &known), Some(Problem::Stale));
        assert_eq!(judge(home, object(6, 1), &known), Some(Problem::Newer));
        let reaping = InodeFate { reaping: Some(4), ..known.clone() };
        assert_eq!(judge(home, object(4, 1), &reaping), None);
        let gone = InodeFate { inode: None, reaping: None };
        assert_eq!(judge(home, object(4, 1), &gone), Some(Problem::Orphan));
        let going = InodeFate { inode: None, reaping: Some(4) };
        assert_eq!(judge(home, object(4, 1), &going), None);
        assert_eq!(judge(home, object(5, 1), &going), Some(Problem::Orphan));
        assert!(is_expected(&object(5, 8), &known) && !is_expected(&object(5, 9), &known));
        assert!(!is_expected(&object(4, 8), &known) && !is_expected(&object(5, 8), &gone));
    }
}
