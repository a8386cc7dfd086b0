//! Starting a store: index, then journal, then the journal's records above the index.
//!
//! Invariant: the journal's records are in the index, written anew and synced, before the start goes on.
//! Reading them back proves nothing: had a sync failed before the restart, they would be in the page cache
//! and nowhere else.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use ropewalk_base::disk::Disk;
use ropewalk_base::task::Notify;
use ropewalk_base::world::World;

use super::room::{Room, Spaces};
use super::{JournaledConfig, JournaledCounts, JournaledStore, Shared, State};
use crate::batch;
use crate::error::StoreError;
use crate::index::{Index, IndexConfig, IndexReader, Part, index_path};
use crate::journal::{self, Journal, OpenJournal, RecoveredJournal};
use crate::marks::Position;
use crate::overlay::Overlay;
use crate::superblock::Boot;

const JOURNAL_NAME: &str = "journal";
/// Bytes of an index without rows.
const INDEX_BYTES_MIN: u64 = 2 << 20;

/// The parts of the store that a helper thread reads.
struct Parts {
    index: Index,
    reader: IndexReader,
    journal: RecoveredJournal,
}

impl JournaledStore {
    /// Opens the store in a claimed directory; makes it where the directory is new.
    ///
    /// `accept_loss`: go on at the first missing record where durable ones are lost.
    pub async fn open(
        world: &World,
        directory: &Path,
        boot: Boot,
        config: JournaledConfig,
        accept_loss: bool,
    ) -> Result<JournaledStore, StoreError> {
        let (disk, path) = (world.disk(), directory.to_path_buf());
        let parts = world
            .offload(move || read(&*disk, path, boot, config, accept_loss))
            .await
            .unwrap_or(Err(StoreError::ShuttingDown))?;
        let recovery = parts.journal.recovery;
        let state = State {
            active: Overlay::default(),
            frozen: None,
            reader: parts.reader,
            checkpoint: recovery.last,
            journal_mark: 0,
            running: false,
            full: false,
            room: Room::Ample,
            spaces: Spaces::default(),
            measured: false,
            overlay_goal: config.overlay_bytes,
            counts: JournaledCounts::default(),
        };
        let shared = Rc::new(Shared {
            world: world.clone(),
            directory: directory.to_path_buf(),
            config,
            boot,
            journal: Journal::start(world, parts.journal),
            recovery,
            index: Arc::new(parts.index),
            state: RefCell::new(state),
            changed: Notify::new(),
        });
        shared.look()?;
        Ok(JournaledStore { shared })
    }
}

fn read(
    disk: &dyn Disk,
    directory: PathBuf,
    boot: Boot,
    config: JournaledConfig,
    accept_loss: bool,
) -> Result<Parts, StoreError> {
    let journal_path = directory.join(JOURNAL_NAME);
    // It may be on a disk of its own.
    disk.create_directory(&journal_path)
        .and_then(|()| disk.hold(&journal_path))
        .and_then(|()| disk.sync_directory(&directory))
        .map_err(|cause| StoreError::io("cannot make", &journal_path, cause))?;
    let (cache_bytes, reserve_bytes) = (config.cache_bytes, config.reserve_bytes);
    let index_config = IndexConfig { store: boot.store, cache_bytes, reserve_bytes };
    let index = Index::open(disk, &directory, index_config)?;
    let checkpoint = index.as_ref().map_or(Ok(0), Index::position)?;
    let open = OpenJournal {
        epoch: boot.counter,
        store: boot.store,
        era: boot.era,
        checkpoint: Position(checkpoint),
        must_exist: index.is_some(),
        accept_loss,
    };
    let mut overlay = Overlay::default();
    let replay = &mut |_: u64, payload: &[u8]| {
        for change in batch::stored_changes(payload, &journal_path) {
            overlay.apply(change?);
        }
        Ok(())
    };
    let found = journal::recover(disk, &journal_path, config.journal, open, replay)?;
    let last = found.recovery.last.0;
    let (index, journal) = match index {
        Some(index) => {
            check_through(&index, &directory, last)?;
            // Also where nothing was replayed: the commit writes the index's own head anew.
            take_in(disk, &directory, &index, &overlay, last)?;
            (index, found.begin(disk, true)?)
        }
        None => {
            check_begin(disk, &directory, config)?;
            // Only in this order does an index prove that the journal had its first segment.
            let journal = found.begin(disk, false)?;
            let index = Index::create(disk, &directory, index_config)?;
            take_in(disk, &directory, &index, &overlay, last)?;
            (index, journal)
        }
    };
    let reader = index.reader()?;
    Ok(Parts { index, reader, journal })
}

/// A new store takes all that it needs on a full disk at once.
fn check_begin(
    disk: &dyn Disk,
    directory: &Path,
    config: JournaledConfig,
) -> Result<(), StoreError> {
    let fail = |cause| StoreError::io("cannot ask for the room of", directory, cause);
    let available = disk.space(directory).map_err(fail)?.available;
    let wanted = 2 * config.journal.segment_bytes + config.reserve_bytes + INDEX_BYTES_MIN;
    if available >= wanted {
        return Ok(());
    }
    let (path, what) = (directory.to_path_buf(), "a new metadata store");
    Err(StoreError::Full { path, what, needed: wanted - available })
}

/// A checkpoint in parts that did not come to its end left rows of later records than the position
/// says. They make sense together with those records only.
fn check_through(index: &Index, directory: &Path, last: u64) -> Result<(), StoreError> {
    let through = index.through()?;
    if through <= last {
        return Ok(());
    }
    let what = format!(
        "it holds rows of records up to {through}, but the journal ends with record {last}: \
         restore the directory of the metadata from a backup"
    );
    Err(StoreError::Damaged { path: index_path(directory), what })
}

/// Brings the journal's records into the index, in as many parts as the disk has room for.
fn take_in(
    disk: &dyn Disk,
    directory: &Path,
    index: &Index,
    overlay: &Overlay,
    last: u64,
) -> Result<(), StoreError> {
    let fail = |cause| StoreError::io("cannot ask for the room of", directory, cause);
    let mut after: Option<Box<[u8]>> = None;
    loop {
        let available = disk.space(directory).map_err(fail)?.available;
        let mut spaces = Spaces { available, reserve: index.reserve_bytes(), inside: 0 };
        if !spaces.may_grow() {
            spaces.inside = index.measure()?;
        }
        let room = spaces.part_bytes().ok_or_else(|| spaces.full(directory))?;
        match index.apply(overlay, after.as_deref(), last, room)? {
            Part::Last => return index.replenish(),
            Part::Through(key) => after = Some(key),
        }
    }
}
