//! The object store of a data server: stripes of files as sparse objects on a local file system.
//!
//! A write appends an intent to the log (old and new checksum of every block; for small and
//! unaligned pieces the bytes themselves), then writes in place, then is acknowledged. Checkpoints
//! bring what only the log has into the object files and recycle the log. docs/design/020-object-store.md
//! has the reasons.
//!
//! Invariants
//! * an acknowledged write survives the death of the process; after `sync` it survives power loss;
//! * bytes that were synced and not written since are never endangered by a later write beside
//!   them: a partial block reaches its file only when its log record is durable;
//! * no byte is returned whose block does not match the checksum of an acknowledged write;
//! * a removed inode's objects never come back while its tombstone lives;
//! * a failed sync is never followed by a successful one unless the bytes were written again.
//!
//! It must not know: clients, leases, layouts, sizes of files, the network.

mod block;
mod board;
mod cache;
mod checkpoint;
mod error;
mod give_up;
mod layout;
mod list;
mod log;
mod marks;
mod object;
mod open;
mod punch;
mod read;
mod record;
mod remove;
mod replay;
mod reserve;
mod resolve;
mod roll;
mod scan;
mod sync;
mod table;
mod write;

pub(crate) use layout::accepts as accepts_description;
pub(crate) use record::accepts as accepts_intent;

/// For fuzzers, see [`crate::decoders`].
pub(crate) fn accepts_marks(bytes: &[u8]) -> bool {
    marks::Marks::accepts(bytes)
}

#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use ropewalk_base::disk::{Disk, Space};
use ropewalk_base::task::Notify;
use ropewalk_base::world::World;

pub use block::{BLOCK_BYTES, UNKNOWN};
pub use error::ObjectError;
pub use list::{Listing, ObjectInfo};
pub use read::ReadOutcome;
pub use replay::Recovery;

use layout::Layout;
use log::Log;
use marks::Marks;
use object::Object;
use roll::Roll;
use write::Scratch;

/// One stripe of one generation of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectId {
    pub inode: u64,
    pub generation: u32,
    pub stripe: u32,
}

/// The group of an object, as the caller numbers groups, or nothing where it was not told. The store only keeps it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupTag(u64);

impl GroupTag {
    /// The group of this number; `u64::MAX` is none.
    pub fn new(group: u64) -> GroupTag {
        GroupTag(group.wrapping_add(1))
    }

    /// The group's number, where it was told.
    pub fn get(self) -> Option<u64> {
        self.0.checked_sub(1)
    }

    /// This one where it was told, else the other.
    fn or(self, other: GroupTag) -> GroupTag {
        if self.0 == 0 { other } else { self }
    }
}

/// An object that is written, with its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grouped {
    pub object: ObjectId,
    pub group: GroupTag,
}

/// Nobody told its group.
impl From<ObjectId> for Grouped {
    fn from(object: ObjectId) -> Grouped {
        Grouped { object, group: GroupTag::default() }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.inode, self.generation, self.stripe)
    }
}

/// The session and epoch in whose name a change comes: refused where the session is fenced at a later epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteEpoch {
    pub session: u64,
    pub epoch: u32,
}

/// The log position and era of an acknowledged write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// The log's position after the write; durable positions are compared with it.
    pub position: u64,
    /// The era of the store. A sync in another one does not cover the write.
    pub era: u64,
}

/// Sizes and limits of a store. `object_bytes` and `segment_bytes` are fixed when it is made.
#[derive(Debug, Clone)]
pub struct Config {
    /// Most bytes of one object, a multiple of 4096.
    pub object_bytes: u64,
    /// Bytes of one log segment.
    pub segment_bytes: u64,
    /// Log bytes that start a checkpoint; at twice as many [`ObjectStore::room`] waits.
    pub checkpoint_bytes: u64,
    /// Bytes held only by log and memory that start a checkpoint; at twice as many `room` waits.
    pub overlay_bytes: usize,
    /// Objects (and so descriptors) kept in memory; dirty ones may exceed it up to twice.
    pub objects_cached: usize,
    /// Writes of whole blocks up to this length go through the log, which makes them whole or
    /// absent after a power loss and cheap to sync.
    pub logged_bytes: usize,
    /// Equal after a mere restart of the process, different after a power loss
    /// ([`crate::superblock::Boot::era`]). 0 where unknown: every crash is then treated as a power
    /// loss, which accepts more of what may legitimately be on disk.
    pub era: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            object_bytes: 64 << 20,
            segment_bytes: 8 << 20,
            checkpoint_bytes: 24 << 20,
            overlay_bytes: 16 << 20,
            objects_cached: 1024,
            logged_bytes: 16 << 10,
            era: 0,
        }
    }
}

impl Config {
    /// The error in the sizes, if any.
    fn check(&self) -> Result<(), String> {
        let blocks = self.object_bytes / BLOCK_BYTES as u64;
        if blocks == 0 || !self.object_bytes.is_multiple_of(BLOCK_BYTES as u64) || blocks > 1 << 22
        {
            return Err("object_bytes must be a multiple of 4096, at most 16 GiB".to_owned());
        }
        let images = self.logged_bytes / BLOCK_BYTES + 2;
        // A write's intent, as much again to settle a failed one, and its images.
        let needed = 2 * record::write_record_bytes(blocks as usize)
            + 2 * record::write_record_bytes(1) * 2
            + images * record::IMAGE_RECORD_BYTES
            + 1024;
        if !self.segment_bytes.is_multiple_of(4096) || self.segment_bytes < needed as u64 {
            return Err(format!("segment_bytes must be a multiple of 4096, at least {needed}"));
        }
        Ok(())
    }
}

/// The contents and activity of a store, for status displays.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Objects, and bytes in written blocks. Exact while the store lives; changes of the last moments before
    /// a crash are not counted until `check` corrects it.
    pub objects: u64,
    pub object_bytes: u64,
    /// Objects in memory, and how many of them the log still protects.
    pub objects_cached: usize,
    pub objects_dirty: usize,
    /// Bytes that only log and memory hold.
    pub overlay_bytes: usize,
    /// Log bytes that a crash would replay.
    pub log_bytes: u64,
    pub tombstones: usize,
    pub fences: usize,
    /// Blocks that were found damaged since the store was opened.
    pub corrupt_blocks: u64,
    pub checkpoints: u64,
}

/// A store of objects. Cloning gives another handle; all live on one executor.
#[derive(Clone)]
pub struct ObjectStore {
    inner: Rc<Inner>,
}

struct Inner {
    world: World,
    disk: Arc<dyn Disk>,
    config: Config,
    layout: Layout,
    store: u128,
    boot: u64,
    era: u64,
    state: RefCell<State>,
    /// A sync, a checkpoint or a failure has settled.
    settled: Notify,
    /// Held until the store is dropped.
    _lock: Arc<dyn ropewalk_base::disk::File>,
}

struct State {
    log: Log,
    log_syncing: bool,
    marks: Marks,
    marks_changed: bool,
    roll: Roll,
    objects: BTreeMap<ObjectId, Object>,
    /// The cached objects in the order in which eviction looks at them.
    clock: VecDeque<ObjectId>,
    directories: Vec<DirectoryState>,
    /// Positions of tombstones whose names are not gone yet.
    removing: BTreeSet<u64>,
    /// Directories from which names were removed since the last checkpoint.
    removed_from: BTreeSet<u32>,
    /// Images in the log before this position no longer serve as a base of deltas.
    image_floor: u64,
    overlay_blocks: usize,
    checkpointing: bool,
    /// Checkpoints that ended, well or not, and how the last one failed.
    checkpoints_ended: u64,
    checkpoint_error: Option<String>,
    /// Why the store refuses changes, once it does.
    failed: Option<String>,
    corrupt_blocks: u64,
    checkpoints: u64,
    scratch: Scratch,
}

/// The known state of one of the hashed directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DirectoryState {
    Unknown,
    Present,
    /// Made by us; its own name may not survive a power loss yet.
    NameUnsynced,
}

impl ObjectStore {
    /// The identity given to the store when it was made.
    pub fn store_id(&self) -> u128 {
        self.inner.store
    }

    /// This life of the store: other at each start.
    pub fn boot(&self) -> u64 {
        self.inner.boot
    }

    /// The era of the store; part of every [`Written`].
    pub fn era(&self) -> u64 {
        self.inner.era
    }

    /// Most bytes of one object, as fixed when the store was made.
    pub fn object_bytes(&self) -> u64 {
        self.inner.layout.object_bytes()
    }

    /// The present end of the log: everything before it survives the death of the process.
    pub fn log_end(&self) -> u64 {
        self.inner.state.borrow().log.end()
    }

    /// The least epoch of a session whose changes are not refused. Reads are not checked here: who
    /// wants them refused as well asks for this.
    pub fn minimum_epoch(&self, session: u64) -> u32 {
        self.inner.state.borrow().marks.minimum(session)
    }

    /// Up to where writes survive a power loss, as far as the log alone decides.
    pub fn log_durable(&self) -> u64 {
        self.inner.state.borrow().log.durable()
    }

    /// Room on the store's file system.
    pub fn space(&self) -> Result<Space, ObjectError> {
        let root = self.inner.layout.root();
        self.inner.disk.space(root).map_err(self.inner.failed_doing("ask for free space"))
    }

    /// Objects that the roll of the store could not take since it was opened: that the file of one is gone,
    /// or an older copy, goes unnoticed until the object is next used.
    pub fn unwatched(&self) -> u64 {
        self.inner.state.borrow().roll.unwatched()
    }

    /// Counters.
    pub fn usage(&self) -> Usage {
        let state = self.inner.state.borrow();
        let (tombstones, fences) = state.marks.counts();
        Usage {
            objects: state.marks.objects,
            object_bytes: state.marks.object_bytes,
            objects_cached: state.objects.len(),
            objects_dirty: state.objects.values().filter(|object| !object.is_clean()).count(),
            overlay_bytes: state.overlay_blocks * BLOCK_BYTES,
            log_bytes: state.log.live_bytes(),
            tombstones,
            fences,
            corrupt_blocks: state.corrupt_blocks,
            checkpoints: state.checkpoints,
        }
    }
}

impl Inner {
    fn directory_name(&self) -> String {
        self.layout.root().display().to_string()
    }

    /// Wraps an operating system error about the store as a whole.
    fn failed_doing(&self, doing: &'static str) -> impl Fn(std::io::Error) -> ObjectError {
        let directory = self.directory_name();
        move |source| ObjectError::Store { directory: directory.clone(), doing, source }
    }

    /// Refuses where the store has failed.
    fn admit(&self, state: &State) -> Result<(), ObjectError> {
        match &state.failed {
            None => Ok(()),
            Some(cause) => Err(ObjectError::LogFailed {
                directory: self.directory_name(),
                cause: cause.clone(),
            }),
        }
    }

    /// Refuses a fenced session.
    fn admit_epoch(&self, state: &State, by: WriteEpoch) -> Result<(), ObjectError> {
        let minimum = state.marks.minimum(by.session);
        if by.epoch < minimum {
            let WriteEpoch { session, epoch } = by;
            return Err(ObjectError::Fenced { session, epoch, minimum });
        }
        Ok(())
    }

    /// Checks a byte range of an object.
    fn check_range(&self, object: ObjectId, offset: u64, length: u64) -> Result<(), ObjectError> {
        let limit = self.layout.object_bytes();
        match offset.checked_add(length) {
            Some(end) if end <= limit => Ok(()),
            _ => Err(ObjectError::Range { object, offset, length, limit }),
        }
    }
}

impl State {
    /// From now on the store refuses changes: it could not keep changes that it acknowledged.
    fn fail(&mut self, cause: String) {
        self.failed.get_or_insert(cause);
        self.log.close();
    }

    fn count_bytes(&mut self, blocks: i64) {
        let bytes = blocks * BLOCK_BYTES as i64;
        self.marks.object_bytes = self.marks.object_bytes.saturating_add_signed(bytes);
    }
}
