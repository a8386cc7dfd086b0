//! The checkpointed index: rows in a B-tree file, with the journal position up to which they go.
//!
//! Invariants
//! * a checkpoint is one transaction, or several where the disk has no room for one: the position
//!   changes with the last of them, and until then whoever starts replays the records again, which
//!   brings the same rows about;
//! * no transaction is begun for which there may be no room;
//! * every transaction is committed in two phases: its pages are synced before the head names them.
//!   In one phase the engine would take a head on trust whose pages a failed sync lost, since the
//!   page cache shows them until the power goes;
//! * the file is made under another name and renamed when it is whole;
//! * damage that the engine meets becomes an error, also where the engine panics.

mod blocks;
mod guard;
mod head;

use std::io;
use std::ops::Bound;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redb::{
    Builder, Database, Durability, ReadOnlyTable, ReadableDatabase, TableDefinition,
    WriteTransaction,
};
use ropewalk_base::disk::{Disk, Open};

use crate::error::StoreError;
use crate::meta_store::{KeyRange, Value};
use crate::overlay::Overlay;
use blocks::{BLOCK_BYTES, Backend, Blocks, STRIDE, Unfit};
use guard::guarded;

pub(crate) use blocks::GROWTH_BYTES;
pub(crate) use head::accepts;

const NAME: &str = "index.redb";
const NEW_NAME: &str = "index.new";
const ROWS: TableDefinition<&[u8], &[u8]> = TableDefinition::new("rows");
const NUMBERS: TableDefinition<&str, u64> = TableDefinition::new("numbers");
const POSITION: &str = "position";
/// Rows may be of records up to here, since a checkpoint in parts was under way.
const THROUGH: &str = "through";
const FORMAT: &str = "format";
const FORMAT_VERSION: u64 = 2;
/// Blocks that a transaction writes beside those of its rows.
const OVERHEAD_BLOCKS: u64 = 64;

/// The settings with which an index is opened.
#[derive(Debug, Clone, Copy)]
pub(crate) struct IndexConfig {
    /// The identity of the store.
    pub store: u128,
    /// Memory for pages, in bytes.
    pub cache_bytes: usize,
    /// Bytes of the file that are kept for changes while the disk is full.
    pub reserve_bytes: u64,
}

/// The index of one directory. Its methods block; reads come from a bounded cache where they can.
pub(crate) struct Index {
    /// There until the end: its own end reads and writes, too.
    database: Option<Database>,
    blocks: Arc<Blocks>,
    path: PathBuf,
}

/// A consistent view of the rows at one checkpoint.
pub(crate) struct IndexReader {
    /// There until the end, as in [`Index`].
    rows: Option<ReadOnlyTable<&'static [u8], &'static [u8]>>,
    path: PathBuf,
}

/// The extent of the overlay that a transaction brought into the index.
pub(crate) enum Part {
    /// Everything, and the position with it.
    Last,
    /// The rows up to this key.
    Through(Box<[u8]>),
}

/// The path of the index in `directory`.
pub(crate) fn index_path(directory: &Path) -> PathBuf {
    directory.join(NAME)
}

impl Index {
    /// Opens the index; `None` where there is none yet.
    pub(crate) fn open(
        disk: &dyn Disk,
        directory: &Path,
        config: IndexConfig,
    ) -> Result<Option<Index>, StoreError> {
        let path = index_path(directory);
        let file = match disk.open(&path, Open::Write) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
            result => result.map_err(|cause| StoreError::io("cannot open", &path, cause))?,
        };
        let blocks = Blocks::open(file, config.store, config.reserve_bytes)
            .map_err(|unfit| unfit_index(&path, unfit))?;
        let index = Index::build(path, blocks, config)?;
        let format = index.number(FORMAT)?;
        if format != FORMAT_VERSION {
            let what =
                format!("it has format {format}, but this program knows format {FORMAT_VERSION}");
            return Err(StoreError::Damaged { path: index.path.clone(), what });
        }
        index.replenish()?;
        Ok(Some(index))
    }

    /// Removes the index of a directory. It must not be open.
    pub(crate) fn remove(disk: &dyn Disk, directory: &Path) -> Result<(), StoreError> {
        let path = index_path(directory);
        let fail = |cause| StoreError::io("cannot remove", &path, cause);
        match disk.remove_file(&path) {
            Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.and_then(|()| disk.sync_directory(directory)).map_err(fail),
        }
    }

    /// Makes an empty index that stands at position 0.
    pub(crate) fn create(
        disk: &dyn Disk,
        directory: &Path,
        config: IndexConfig,
    ) -> Result<Index, StoreError> {
        let (path, new) = (index_path(directory), directory.join(NEW_NAME));
        let fail = |cause| StoreError::io("cannot make", &path, cause);
        let file = disk.open(&new, Open::Create).map_err(fail)?;
        let blocks = Blocks::create(file, config.store, config.reserve_bytes).map_err(fail)?;
        let index = Index::build(path.clone(), blocks, config)?;
        guarded(&path, || {
            let transaction = begin_write(index.database())?;
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
        Ok(index)
    }

    fn build(path: PathBuf, blocks: Blocks, config: IndexConfig) -> Result<Index, StoreError> {
        let blocks = Arc::new(blocks);
        let backend = Backend(blocks.clone());
        let database = guarded(&path, || {
            let mut builder = Builder::new();
            Ok(builder.set_cache_size(config.cache_bytes).create_with_backend(backend)?)
        })?;
        Ok(Index { database: Some(database), blocks, path })
    }

    fn database(&self) -> &Database {
        self.database.as_ref().expect("only dropping takes it")
    }

    fn number(&self, name: &str) -> Result<u64, StoreError> {
        guarded(&self.path, || {
            let transaction = self.database().begin_read()?;
            let numbers = transaction.open_table(NUMBERS)?;
            Ok(numbers.get(name)?.map_or(0, |number| number.value()))
        })
    }

    /// The journal position up to which the index goes.
    pub(crate) fn position(&self) -> Result<u64, StoreError> {
        self.number(POSITION)
    }

    /// The position of which rows may be known already. Nobody knows them whole where the journal no
    /// longer has it.
    pub(crate) fn through(&self) -> Result<u64, StoreError> {
        self.number(THROUGH)
    }

    /// Brings changes of an overlay behind `after` into the index, in one durable transaction, as many
    /// as `room` bytes allow. With the last of them the position moves.
    pub(crate) fn apply(
        &self,
        overlay: &Overlay,
        after: Option<&[u8]>,
        position: u64,
        room: u64,
    ) -> Result<Part, StoreError> {
        let blocks = (room / STRIDE).saturating_sub(OVERHEAD_BLOCKS + self.map_blocks());
        // More than every block of the file, and what the rows add, is never written.
        let whole = self.blocks.engine_bytes() / STRIDE + 4 * overlay.bytes() as u64 / BLOCK_BYTES;
        let mut left = if blocks >= whole { u64::MAX } else { blocks };
        guarded(&self.path, || {
            let transaction = begin_write(self.database())?;
            let mut rows = transaction.open_table(ROWS)?;
            let mut part = Part::Last;
            let begin = after.map_or(Bound::Unbounded, Bound::Excluded);
            let range = KeyRange { start: begin, end: Bound::Unbounded };
            let mut through: Option<&[u8]> = None;
            for (key, value) in overlay.range(&range) {
                let bytes = key.len() + value.as_ref().map_or(0, |value| value.len());
                let cost = 2 + 2 * (bytes as u64).div_ceil(BLOCK_BYTES);
                if left < cost
                    && let Some(through) = through
                {
                    part = Part::Through(through.into());
                    break;
                }
                left = left.saturating_sub(cost);
                match value {
                    Some(value) => drop(rows.insert(&**key, &**value)?),
                    None => drop(rows.remove(&**key)?),
                }
                through = Some(key);
            }
            drop(rows);
            let mut numbers = transaction.open_table(NUMBERS)?;
            match part {
                Part::Last => drop(numbers.insert(POSITION, position)?),
                Part::Through(_) => drop(numbers.insert(THROUGH, position)?),
            }
            drop(numbers);
            transaction.commit()?;
            Ok(part)
        })
    }

    /// Blocks in which a transaction notes which blocks are free.
    fn map_blocks(&self) -> u64 {
        self.blocks.engine_bytes() / (BLOCK_BYTES * 2048)
    }

    /// Bytes in the file in which changes find room while the disk has none. Measuring walks the whole
    /// index, and lets go of what former transactions freed.
    pub(crate) fn measure(&self) -> Result<u64, StoreError> {
        // Pages that a transaction frees can be used after the next one.
        for _ in 0..2 {
            guarded(&self.path, || Ok(begin_write(self.database())?.commit()?))?;
        }
        let used = guarded(&self.path, || {
            let transaction = begin_write(self.database())?;
            let pages = transaction.stats()?.allocated_pages();
            transaction.abort()?;
            Ok(pages)
        })?;
        Ok(self.blocks.engine_bytes().saturating_sub(used * STRIDE))
    }

    /// Bytes of the reserve that are there.
    pub(crate) fn reserve_bytes(&self) -> u64 {
        self.blocks.reserve_bytes()
    }

    /// Takes the reserve up again where it was used, as far as the disk has room.
    pub(crate) fn replenish(&self) -> Result<(), StoreError> {
        let fail = |cause| StoreError::io("cannot reserve room in", &self.path, cause);
        self.blocks.replenish().map_err(fail)
    }

    /// A view of the rows as they are now.
    pub(crate) fn reader(&self) -> Result<IndexReader, StoreError> {
        let rows = guarded(&self.path, || Ok(self.database().begin_read()?.open_table(ROWS)?))?;
        Ok(IndexReader { rows: Some(rows), path: self.path.clone() })
    }
}

impl Drop for Index {
    fn drop(&mut self) {
        // The engine tidies up; without that the next start does, and finds the damage.
        let database = self.database.take();
        let _ = guarded(&self.path, || {
            drop(database);
            Ok(())
        });
    }
}

fn unfit_index(path: &Path, unfit: Unfit) -> StoreError {
    let what = match unfit {
        Unfit::Io(cause) => return StoreError::io("cannot read", path, cause),
        Unfit::Headless => return StoreError::damaged_index(path.to_path_buf(), Some(0)),
        Unfit::Foreign => "it is the index of another server: restore the right one".to_owned(),
        Unfit::Newer(version) => {
            format!("its format {version} is newer than this program: update it")
        }
    };
    StoreError::Damaged { path: path.to_path_buf(), what }
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

impl Drop for IndexReader {
    fn drop(&mut self) {
        let rows = self.rows.take();
        let _ = guarded(&self.path, || {
            drop(rows);
            Ok(())
        });
    }
}

impl IndexReader {
    fn rows(&self) -> &ReadOnlyTable<&'static [u8], &'static [u8]> {
        self.rows.as_ref().expect("only dropping takes it")
    }

    pub(crate) fn get(&self, key: &[u8]) -> Result<Option<Value>, StoreError> {
        guarded(&self.path, || Ok(self.rows().get(key)?.map(|value| Value::from(value.value()))))
    }

    /// Hands rows of a non-empty range to `each`, in order, until it says stop.
    pub(crate) fn scan(
        &self,
        range: KeyRange<'_>,
        backward: bool,
        each: &mut dyn FnMut(&[u8], &[u8]) -> bool,
    ) -> Result<(), StoreError> {
        guarded(&self.path, || {
            let mut rows = self.rows().range::<&[u8]>((range.start, range.end))?;
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
