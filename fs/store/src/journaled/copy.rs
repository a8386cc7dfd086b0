//! The copy of a store at another server: rows of its index as of one position, then records of its journal from there on.
//!
//! Invariants
//! * a snapshot shows the rows of one position, whatever is committed meanwhile;
//! * a copy that did not come to its end is no store: a file beside it says so, from before the first change until after the last
//!   one. A start that meets that file copies anew.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ropewalk_base::disk::{Disk, Open};
use ropewalk_base::world::World;

use super::open::{self, FoundStore, JOURNAL_NAME, index_config, take_in};
use super::{JournaledConfig, JournaledStore};
use crate::batch::Change;
use crate::error::StoreError;
use crate::index::{Index, IndexReader};
use crate::journal::{self, JournalReader, OpenJournal};
use crate::marks::Position;
use crate::meta_store::{KeyRange, Row, Value};
use crate::overlay::Overlay;
use crate::superblock::{Boot, ClaimError, UNFINISHED_NAME};

/// The rows of a store's index, in order, at one position.
pub struct Snapshot {
    reader: IndexReader,
    position: Position,
    after: Option<Vec<u8>>,
}

impl JournaledStore {
    /// A snapshot, and a reader of the records behind it, which keeps them.
    pub async fn snapshot(&self) -> Result<(Snapshot, JournalReader), StoreError> {
        let shared = &self.shared;
        loop {
            let changed = shared.changed.notified();
            if !shared.state.borrow().applying {
                break;
            }
            shared.check_going()?;
            changed.await;
        }
        // One that failed may have written a part.
        shared.check_going()?;
        // No checkpoint writes: the index has all rows of its position, and none of later ones. One that waits for the members is
        // not waited for: it may wait for the member that wants this copy.
        let position = shared.state.borrow().checkpoint;
        let records = shared.journal.read_from(Position(position.0 + 1));
        let reader = shared.index.reader()?;
        Ok((Snapshot { reader, position, after: None }, records))
    }
}

impl Snapshot {
    /// The rows are those after this record.
    pub fn position(&self) -> Position {
        self.position
    }

    /// The next rows, up to about so many bytes, one at least; none at the end.
    pub fn next_rows(&mut self, bytes: usize) -> Result<Vec<Row>, StoreError> {
        let begin = self.after.as_deref();
        let start = begin.map_or(std::ops::Bound::Unbounded, std::ops::Bound::Excluded);
        let range = KeyRange { start, end: std::ops::Bound::Unbounded };
        let mut rows: Vec<Row> = Vec::new();
        let mut sum = 0;
        self.reader.scan(range, false, &mut |key, value| {
            sum += key.len() + value.len();
            if sum > bytes && !rows.is_empty() {
                return false;
            }
            rows.push((key.to_vec(), Value::from(value)));
            true
        })?;
        if let Some((key, _)) = rows.last() {
            self.after = Some(key.clone());
        }
        Ok(rows)
    }
}

impl Snapshot {
    /// The rows of a range that is not empty, up to about so many bytes. Rows in front of an error are there, too.
    pub fn scan_some(
        &self,
        range: KeyRange<'_>,
        bytes: usize,
    ) -> (Vec<Row>, Result<(), StoreError>) {
        let (mut rows, mut sum): (Vec<Row>, usize) = (Vec::new(), 0);
        let scanned = self.reader.scan(range, false, &mut |key, value| {
            sum += key.len() + value.len();
            rows.push((key.to_vec(), Value::from(value)));
            sum < bytes
        });
        (rows, scanned)
    }

    /// The value of a key.
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>, StoreError> {
        self.reader.get(key)
    }
}

/// A copy that is being made.
pub struct StoreCopy {
    world: World,
    directory: PathBuf,
    boot: Boot,
    config: JournaledConfig,
    index: Arc<Index>,
    position: Position,
}

impl StoreCopy {
    /// Begins a copy in a claimed directory, of rows at `position`. The store that was there is given up.
    pub async fn begin(
        world: &World,
        directory: &Path,
        boot: Boot,
        config: JournaledConfig,
        position: Position,
    ) -> Result<StoreCopy, StoreError> {
        let (disk, path) = (world.disk(), directory.to_path_buf());
        let made = world.offload(move || empty(&*disk, &path, boot, config, position));
        let index = Arc::new(made.await.unwrap_or(Err(StoreError::ShuttingDown))?);
        let (world, directory) = (world.clone(), directory.to_path_buf());
        Ok(StoreCopy { world, directory, boot, config, index, position })
    }

    /// Notes that a restore from a dump begins in a directory, which is made where it does not exist. Until
    /// the copy ends, no server starts there. To be called before the directory is claimed. Blocks.
    pub fn note_restore<E: From<StoreError> + From<ClaimError>>(
        disk: &dyn Disk,
        directory: &Path,
        check: impl FnOnce() -> Result<(), E>,
    ) -> Result<(), E> {
        open::note_restore(disk, directory, check)
    }

    /// Whether a restore into this directory began and did not come to its end. Blocks.
    pub fn is_half_restored(disk: &dyn Disk, directory: &Path) -> Result<bool, StoreError> {
        open::is_half_restored(disk, directory)
    }

    /// Adds rows, durably.
    pub async fn add(&self, rows: Vec<Row>) -> Result<(), StoreError> {
        let (disk, directory) = (self.world.disk(), self.directory.clone());
        let (index, position) = (self.index.clone(), self.position.0);
        let added = self.world.offload(move || {
            let mut overlay = Overlay::default();
            for (key, value) in &rows {
                overlay.apply(Change::Put { key, value });
            }
            take_in(&*disk, &directory, &index, &overlay, position)
        });
        added.await.unwrap_or(Err(StoreError::ShuttingDown))
    }

    /// All rows are there: the copy is a store.
    pub async fn finish(self) -> Result<FoundStore, StoreError> {
        // Also a copy without rows gets its position.
        self.add(Vec::new()).await?;
        let StoreCopy { world, directory, boot, config, index, .. } = self;
        let (disk, path) = (world.disk(), directory.clone());
        let ended = world.offload(move || {
            drop(index);
            let mark = path.join(UNFINISHED_NAME);
            disk.remove_file(&mark)
                .and_then(|()| disk.sync_directory(&path))
                .map_err(|cause| StoreError::io("cannot remove", &mark, cause))
        });
        ended.await.unwrap_or(Err(StoreError::ShuttingDown))?;
        JournaledStore::find(&world, &directory, boot, config, false).await
    }
}

/// Clears the directory, and makes an index without rows and a journal that begins behind `position`.
fn empty(
    disk: &dyn Disk,
    directory: &Path,
    boot: Boot,
    config: JournaledConfig,
    position: Position,
) -> Result<Index, StoreError> {
    let mark = directory.join(UNFINISHED_NAME);
    disk.open(&mark, Open::Create)
        .and_then(|file| file.sync_data())
        .and_then(|()| disk.sync_directory(directory))
        .map_err(|cause| StoreError::io("cannot make", &mark, cause))?;
    Index::remove(disk, directory)?;
    let journal = directory.join(JOURNAL_NAME);
    disk.create_directory(&journal)
        .and_then(|()| disk.hold(&journal))
        .and_then(|()| disk.sync_directory(directory))
        .map_err(|cause| StoreError::io("cannot make", &journal, cause))?;
    journal::clear(disk, &journal)?;
    let open = OpenJournal {
        epoch: boot.counter,
        store: boot.store,
        era: boot.era,
        checkpoint: position,
        must_exist: false,
        accept_loss: false,
    };
    let found = journal::recover(disk, &journal, config.journal, open, &mut |_, _| Ok(()))?;
    drop(found.begin(disk, false)?);
    Index::create(disk, directory, index_config(boot, config))
}
