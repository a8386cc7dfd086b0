//! The checkpointed index: rows in a B-tree file, with the journal position up to which they go.
//!
//! Invariants
//! * a checkpoint is one transaction: rows and position change together, durably;
//! * every transaction is committed in two phases: its pages are synced before the head names them.
//!   In one phase the engine would take a head on trust whose pages a failed sync lost, since the
//!   page cache shows them until the power goes;
//! * the file is made under another name and renamed when it is whole;
//! * damage that the engine meets becomes an error, also where the engine panics.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redb::{
    Builder, Database, Durability, ReadOnlyTable, ReadableDatabase, StorageBackend,
    TableDefinition, WriteTransaction,
};
use ropewalk_base::disk::{Disk, File, Open};

use crate::error::StoreError;
use crate::meta_store::{KeyRange, Value};
use crate::overlay::Overlay;

const NAME: &str = "index.redb";
const NEW_NAME: &str = "index.new";
const ROWS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("rows");
const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");
const POSITION: &str = "position";
const FORMAT: &str = "format";
const FORMAT_VERSION: u64 = 1;

/// A file of ours as the engine wants it.
///
/// After the first failed write or sync it refuses everything: what a failed sync left out would
/// not be written by a later one, and the engine would take that one for success.
struct Backend {
    file: Arc<dyn File>,
    failed: AtomicBool,
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Backend")
    }
}

impl Backend {
    fn change(&self, change: impl FnOnce(&dyn File) -> io::Result<()>) -> io::Result<()> {
        if self.failed.load(Ordering::Acquire) {
            return Err(io::Error::other("an earlier write of the index failed"));
        }
        let result = change(&*self.file);
        if result.is_err() {
            self.failed.store(true, Ordering::Release);
        }
        result
    }
}

impl StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        let count = self.file.read_at(offset, out)?;
        if count == out.len() { Ok(()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.change(|file| file.set_len(len))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.change(|file| file.sync_data())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.change(|file| file.write_at(offset, data))
    }
}

/// The index of one directory. Its methods block; reads come from a bounded cache where they can.
pub(crate) struct Index {
    database: Database,
    path: PathBuf,
}

/// A consistent view of the rows at one checkpoint.
pub(crate) struct IndexReader {
    rows: ReadOnlyTable<&'static [u8], &'static [u8]>,
    path: PathBuf,
}

/// Runs `work`; an error or panic of the engine becomes an error that names the file.
fn guarded<T>(path: &Path, work: impl FnOnce() -> Result<T, redb::Error>) -> Result<T, StoreError> {
    let cause = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(redb::Error::Io(cause))) => {
            return Err(StoreError::io("cannot access the index", path, cause));
        }
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the engine gave up on what it read: the file is damaged".to_owned(),
    };
    Err(StoreError::Index { path: path.to_path_buf(), cause: cause.into() })
}

/// Where the index of `directory` is.
pub(crate) fn index_path(directory: &Path) -> PathBuf {
    directory.join(NAME)
}

impl Index {
    /// Opens the index; `None` where there is none yet.
    pub(crate) fn open(
        disk: &dyn Disk,
        directory: &Path,
        cache_bytes: usize,
    ) -> Result<Option<Index>, StoreError> {
        let path = index_path(directory);
        let file = match disk.open(&path, Open::Write) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
            result => result.map_err(|cause| StoreError::io("cannot open", &path, cause))?,
        };
        let database = guarded(&path, || build(file, cache_bytes))?;
        let index = Index { database, path };
        let format = index.number(FORMAT)?;
        if format != FORMAT_VERSION {
            let what = format!("format {format}, and this program knows {FORMAT_VERSION}");
            return Err(StoreError::Damaged { path: index.path, what });
        }
        Ok(Some(index))
    }

    /// Makes an empty index that stands at position 0.
    pub(crate) fn create(
        disk: &dyn Disk,
        directory: &Path,
        cache_bytes: usize,
    ) -> Result<Index, StoreError> {
        let (path, new) = (index_path(directory), directory.join(NEW_NAME));
        let fail = |cause| StoreError::io("cannot make", &path, cause);
        let file = disk.open(&new, Open::Create).map_err(fail)?;
        file.set_len(0).map_err(fail)?;
        let database = guarded(&path, || build(file, cache_bytes))?;
        guarded(&path, || {
            let transaction = begin_write(&database)?;
            transaction.open_table(ROWS)?;
            let mut numbers = transaction.open_table(NUMBERS)?;
            numbers.insert(FORMAT, FORMAT_VERSION)?;
            numbers.insert(POSITION, 0)?;
            drop(numbers);
            transaction.commit()?;
            Ok(())
        })?;
        disk.rename(&new, &path).map_err(fail)?;
        disk.sync_directory(directory).map_err(fail)?;
        Ok(Index { database, path })
    }

    fn number(&self, name: &str) -> Result<u64, StoreError> {
        guarded(&self.path, || {
            let transaction = self.database.begin_read()?;
            let numbers = transaction.open_table(NUMBERS)?;
            Ok(numbers.get(name)?.map_or(0, |number| number.value()))
        })
    }

    /// The journal position up to which the index goes.
    pub(crate) fn position(&self) -> Result<u64, StoreError> {
        self.number(POSITION)
    }

    /// Makes all changes of an overlay and moves the position, in one durable transaction.
    pub(crate) fn apply(&self, overlay: &Overlay, position: u64) -> Result<(), StoreError> {
        guarded(&self.path, || {
            let transaction = begin_write(&self.database)?;
            let mut rows = transaction.open_table(ROWS)?;
            for (key, value) in overlay.iter() {
                match value {
                    Some(value) => drop(rows.insert(key, value)?),
                    None => drop(rows.remove(key)?),
                }
            }
            drop(rows);
            let mut numbers = transaction.open_table(NUMBERS)?;
            numbers.insert(POSITION, position)?;
            drop(numbers);
            transaction.commit()?;
            Ok(())
        })
    }

    /// A view of the rows as they are now.
    pub(crate) fn reader(&self) -> Result<IndexReader, StoreError> {
        let rows = guarded(&self.path, || Ok(self.database.begin_read()?.open_table(ROWS)?))?;
        Ok(IndexReader { rows, path: self.path.clone() })
    }
}

fn build(file: Arc<dyn File>, cache_bytes: usize) -> Result<Database, redb::Error> {
    let backend = Backend { file, failed: AtomicBool::new(false) };
    Ok(Builder::new().set_cache_size(cache_bytes).create_with_backend(backend)?)
}

/// A transaction that is durable after its commit, in two phases.
fn begin_write(database: &Database) -> Result<WriteTransaction, redb::Error> {
    let mut transaction = database.begin_write()?;
    transaction.set_durability(Durability::Immediate)?;
    transaction.set_two_phase_commit(true);
    // Pays a little here so that the start after a crash need not walk the whole file.
    transaction.set_quick_repair(true);
    Ok(transaction)
}

impl IndexReader {
    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Value>, StoreError> {
        guarded(&self.path, || Ok(self.rows.get(key)?.map(|value| Value::from(value.value()))))
    }

    /// Hands rows of a non-empty range to `each`, in order, until it says stop.
    pub(crate) fn scan(
        &self,
        range: KeyRange<'_>,
        backward: bool,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), StoreError> {
        guarded(&self.path, || {
            let mut rows = self.rows.range::<&[u8]>((range.start, range.end))?;
            loop {
                let row = if backward { rows.next_back() } else { rows.next() };
                let Some(row) = row else { return Ok(()) };
                let (key, value) = row?;
                if !each(key.value(), value.value()) {
                    return Ok(());
                }
            }
        })
    }
}
