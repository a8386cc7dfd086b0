//! Starting a store: index, then journal, then the journal's records above the index.
//!
//! The store is read first. Then the owner says where it goes on, and only then anything is written.
//!
//! Invariant: the journal's records are in the index, written anew and synced, before the start goes on.
//! Reading them back proves nothing: had a sync failed before the restart, they would be in the page cache
//! and nowhere else.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use ropewalk_base::disk::{Disk, Open};
use ropewalk_base::task::Notify;
use ropewalk_base::world::World;

use super::room::{Room, Spaces};
use super::{JournaledConfig, JournaledCounts, JournaledStore, Shared, State, scan};
use crate::batch;
use crate::error::StoreError;
use crate::index::{Index, IndexConfig, IndexReader, Part, index_path};
use crate::journal::{self, FoundJournal, Journal, OpenJournal, RecoveredJournal};
use crate::marks::Position;
use crate::meta_store::{KeyRange, Order, Row, Value};
use crate::overlay::Overlay;
use crate::superblock::{Boot, ClaimError, UNFINISHED_NAME, lock_directory};

pub(super) const JOURNAL_NAME: &str = "journal";
/// The content of that file, where the copy comes from a dump.
const RESTORE: &[u8] = b"restore\n";
/// Bytes of an index without rows.
const INDEX_BYTES_MIN: u64 = 2 << 20;

/// A store that was read, before anything is written to it.
///
/// A server that is one of several asks the others now: what they lack of its last records was never acknowledged, and may have
/// to go.
pub struct FoundStore {
    world: World,
    directory: PathBuf,
    boot: Boot,
    config: JournaledConfig,
    accept_loss: bool,
    found: Found,
}

/// The parts of a store that a thread beside the executor read.
struct Found {
    index: Option<Index>,
    reader: Option<IndexReader>,
    /// The journal's records above the index.
    overlay: Overlay,
    journal: FoundJournal,
}

/// A store that is ready to be used.
struct Parts {
    index: Index,
    reader: IndexReader,
    journal: RecoveredJournal,
}

impl FoundStore {
    /// The position of the last record.
    pub fn position(&self) -> Position {
        self.found.journal.recovery.last
    }

    /// The value of a key, as of the last record.
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>, StoreError> {
        match (self.found.overlay.get(key), &self.found.reader) {
            (Some(known), _) => Ok(known.clone()),
            (None, Some(reader)) => reader.get(key),
            (None, None) => Ok(None),
        }
    }

    /// The rows of a range, as of the last record.
    pub fn scan(&self, range: KeyRange<'_>, limit: usize) -> Result<Vec<Row>, StoreError> {
        match &self.found.reader {
            _ if range.is_empty() || limit == 0 => Ok(Vec::new()),
            Some(reader) => {
                scan::merged(&self.found.overlay, None, reader, range, Order::Forward, limit)
            }
            None => Ok(Vec::new()),
        }
    }

    /// As `scan`. Rows in front of an error are there, too.
    pub fn scan_some(
        &self,
        range: KeyRange<'_>,
        limit: usize,
    ) -> (Vec<Row>, Result<(), StoreError>) {
        let mut rows = Vec::new();
        let scanned = match &self.found.reader {
            Some(reader) if !range.is_empty() && limit > 0 => {
                let asked = (range, Order::Forward, limit);
                scan::merge((&self.found.overlay, None), reader, asked, &mut rows)
            }
            _ => Ok(()),
        };
        (rows, scanned)
    }

    /// Goes on from here, or from an earlier record: what is behind it is given up for good.
    ///
    /// # Errors
    /// `Beyond`, if the index holds more than that.
    pub async fn begin(self, through: Option<Position>) -> Result<JournaledStore, StoreError> {
        let FoundStore { world, directory, boot, config, accept_loss, found } = self;
        let (disk, path) = (world.disk(), directory.clone());
        let parts = world
            .offload(move || {
                let found = match through.filter(|it| *it < found.journal.recovery.last) {
                    None => found,
                    // It is read once more, without what goes.
                    Some(through) => {
                        drop(found);
                        read(&*disk, path.clone(), boot, config, accept_loss, through)?
                    }
                };
                begin(&*disk, path, boot, config, found)
            })
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
            applying: false,
            full: false,
            room: Room::Ample,
            spaces: Spaces::default(),
            measured: false,
            overlay_goal: config.overlay_bytes,
            counts: JournaledCounts::default(),
        };
        let shared = Rc::new(Shared {
            world: world.clone(),
            directory,
            config,
            journal: Journal::start(&world, parts.journal),
            recovery,
            index: Arc::new(parts.index),
            state: RefCell::new(state),
            changed: Notify::new(),
        });
        shared.look()?;
        Ok(JournaledStore { shared })
    }
}

impl JournaledStore {
    /// Reads the store in a claimed directory; nothing is written yet.
    ///
    /// `accept_loss`: go on at the first missing record where durable ones are lost.
    pub async fn find(
        world: &World,
        directory: &Path,
        boot: Boot,
        config: JournaledConfig,
        accept_loss: bool,
    ) -> Result<FoundStore, StoreError> {
        let (disk, path) = (world.disk(), directory.to_path_buf());
        let found = world
            .offload(move || read(&*disk, path, boot, config, accept_loss, Position(u64::MAX)))
            .await
            .unwrap_or(Err(StoreError::ShuttingDown))?;
        let (world, directory) = (world.clone(), directory.to_path_buf());
        Ok(FoundStore { world, directory, boot, config, accept_loss, found })
    }

    /// Opens the store in a claimed directory; makes it where the directory is new. See [`JournaledStore::find`].
    pub async fn open(
        world: &World,
        directory: &Path,
        boot: Boot,
        config: JournaledConfig,
        accept_loss: bool,
    ) -> Result<JournaledStore, StoreError> {
        let found = JournaledStore::find(world, directory, boot, config, accept_loss).await?;
        found.begin(None).await
    }
}

pub(super) fn index_config(boot: Boot, config: JournaledConfig) -> IndexConfig {
    let (cache_bytes, reserve_bytes) = (config.cache_bytes, config.reserve_bytes);
    IndexConfig { store: boot.store, cache_bytes, reserve_bytes }
}

/// Reads index and journal; of the latter nothing behind `through`.
fn read(
    disk: &dyn Disk,
    directory: PathBuf,
    boot: Boot,
    config: JournaledConfig,
    accept_loss: bool,
    through: Position,
) -> Result<Found, StoreError> {
    check_finished(disk, &directory)?;
    let journal_path = directory.join(JOURNAL_NAME);
    // It may be on a disk of its own.
    disk.create_directory(&journal_path)
        .and_then(|()| disk.hold(&journal_path))
        .and_then(|()| disk.sync_directory(&directory))
        .map_err(|cause| StoreError::io("cannot make", &journal_path, cause))?;
    let index = Index::open(disk, &directory, index_config(boot, config))?;
    let checkpoint = Position(index.as_ref().map_or(Ok(0), Index::position)?);
    let open = OpenJournal {
        epoch: boot.counter,
        store: boot.store,
        era: boot.era,
        checkpoint,
        must_exist: index.is_some(),
        accept_loss,
    };
    let mut overlay = Overlay::default();
    let replay = &mut |position: u64, payload: &[u8]| {
        for change in batch::stored_changes(payload, &journal_path) {
            let change = change?;
            if position <= through.0 {
                overlay.apply(change);
            }
        }
        Ok(())
    };
    let mut journal = journal::recover(disk, &journal_path, config.journal, open, replay)?;
    journal.forget_after(through);
    if let Some(index) = &index {
        check_through(index, &directory, checkpoint, journal.recovery.last, through)?;
    }
    let reader = index.as_ref().map(Index::reader).transpose()?;
    Ok(Found { index, reader, overlay, journal })
}

/// Whether a directory holds a whole store.
///
/// # Errors
/// `Unfinished` or `HalfRestored`, where it does not.
fn check_finished(disk: &dyn Disk, directory: &Path) -> Result<(), StoreError> {
    let path = || directory.to_path_buf();
    let mark = directory.join(UNFINISHED_NAME);
    match disk.kind(&mark) {
        Ok(None) => Ok(()),
        Ok(Some(_)) if is_half_restored(disk, directory)? => {
            Err(StoreError::HalfRestored { path: path() })
        }
        Ok(Some(_)) => Err(StoreError::Unfinished { path: path() }),
        Err(cause) => Err(StoreError::io("cannot look for", &mark, cause)),
    }
}

/// Whether a restore into this directory began and did not come to its end.
pub(super) fn is_half_restored(disk: &dyn Disk, directory: &Path) -> Result<bool, StoreError> {
    let mark = directory.join(UNFINISHED_NAME);
    let fail = |cause| StoreError::io("cannot read", &mark, cause);
    let file = match disk.open(&mark, Open::Read) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened.map_err(fail)?,
    };
    let mut bytes = [0; RESTORE.len()];
    let count = file.read_at(0, &mut bytes).map_err(fail)?;
    Ok(&bytes[..count] == RESTORE)
}

/// Notes durably that a restore into this directory begins.
pub(super) fn note_restore<E: From<StoreError> + From<ClaimError>>(
    disk: &dyn Disk,
    directory: &Path,
    check: impl FnOnce() -> Result<(), E>,
) -> Result<(), E> {
    // Nobody claims the directory between the look and the note.
    let lock = lock_directory(disk, directory)?;
    check()?;
    let mark = directory.join(UNFINISHED_NAME);
    let noted = disk
        .open(&mark, Open::Create)
        .and_then(|file| file.write_at(0, RESTORE).and_then(|_| file.sync_data()))
        .and_then(|()| disk.sync_directory(directory));
    noted.map_err(|cause| StoreError::io("cannot make", &mark, cause))?;
    drop(lock);
    Ok(())
}

/// Brings the records that were found into the index, and begins a new segment of the journal.
fn begin(
    disk: &dyn Disk,
    directory: PathBuf,
    boot: Boot,
    config: JournaledConfig,
    found: Found,
) -> Result<Parts, StoreError> {
    let Found { index, reader, overlay, journal } = found;
    // The blocks that it still shows are wanted now.
    drop(reader);
    let last = journal.recovery.last.0;
    let (index, journal) = match index {
        Some(index) => {
            // Also where nothing was replayed: the commit writes the index's own head anew.
            take_in(disk, &directory, &index, &overlay, last)?;
            (index, journal.begin(disk, true)?)
        }
        None => {
            check_begin(disk, &directory, config)?;
            // Only in this order does an index prove that the journal had its first segment.
            let journal = journal.begin(disk, false)?;
            let index = Index::create(disk, &directory, index_config(boot, config))?;
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
fn check_through(
    index: &Index,
    directory: &Path,
    checkpoint: Position,
    last: Position,
    through: Position,
) -> Result<(), StoreError> {
    let holds = Position(index.through()?).max(checkpoint);
    if holds <= last {
        return Ok(());
    }
    if last == through {
        let path = index_path(directory);
        return Err(StoreError::Beyond { path, holds: holds.0, through: through.0 });
    }
    let what = format!(
        "it holds rows of records up to {holds}, but the journal ends with record {last}: \
         restore the directory of the metadata from a backup"
    );
    Err(StoreError::Damaged { path: index_path(directory), what })
}

/// Brings the journal's records into the index, in as many parts as the disk has room for.
pub(super) fn take_in(
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
