//! A store of a dump.
//!
//! The dump is read twice: first as a whole, before anything is written, then row by row into a new store. Numbers that former
//! servers of the history may have given out since the dump are passed over: terms, inode numbers, grants, generations and
//! write epochs of files, and epochs of the map.
//!
//! Invariants:
//! * only an empty directory is written to, or one in which a restore did not come to its end;
//! * no server starts in the directory before all rows are there.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ropewalk_base::disk::{Disk, File, Open};
use ropewalk_base::ids::{ClusterId, ServerId};
use ropewalk_base::time::Time;
use ropewalk_base::world::World;
use ropewalk_store::superblock::{ClaimError, Expect, Identity, LOCK_NAME, Role, claim, look};
use ropewalk_store::{JournaledConfig, MetaStore, Position, Row, StoreCopy, StoreError, Value};
use ropewalk_wire::fs::map::Band;
use ropewalk_wire::fs::value::Timestamp;

use super::format::{DumpedRow, Head, Totals};
use super::parser::{DumpError, Item, Parser};
use crate::history::TermRow;
use crate::inode::{Inode, decode_row, encode_row};
use crate::keys::{self, Table};
use crate::pools::{Banded, MAP_VERSION, decode_band, encode_band, map_key};
use crate::rows::{Batch, Rows, RowsError, VolatileRows};
use crate::shard::{
    COUNTERS_VERSION, Moment, check_foundation, generations_key, generations_row, inode_count_key,
    inode_count_row,
};

/// Bytes of the dump that are read at a time.
const READ_BYTES: usize = 1 << 20;
/// Rows that are made durable together, in bytes.
const BATCH_BYTES: usize = 4 << 20;
/// Numbers that are passed over: more than a server gives out in the life of a dump.
const INODES_STEP: u64 = 1 << 40;
const BOOTS_STEP: u64 = 1 << 12;
const GENERATIONS_STEP: u32 = 1 << 20;
const WRITES_STEP: u32 = 1 << 12;
const MAP_STEP: u32 = 1 << 24;

/// Why a dump is not restored.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RestoreError {
    #[error("{}: {cause}", path.display())]
    Dump { path: PathBuf, cause: DumpError },
    #[error(
        "{} lacks the rows of {lost} places, which could not be read when it was made: restore \
         another one, or restore what is there (--salvage)",
        path.display()
    )]
    Incomplete { path: PathBuf, lost: u64 },
    #[error("{} cannot be restored, even in part: {cause}", path.display())]
    Foundation { path: PathBuf, cause: RowsError },
    #[error("{} cannot be restored: its history has no number left for a new term", path.display())]
    NoTerm { path: PathBuf },
    #[error(
        "{} already holds a metadata store: name an empty directory, or one that does not exist",
        path.display()
    )]
    NotEmpty { path: PathBuf },
    #[error(
        "{} has changed while it was read: restore it again, from a file that stays as it is",
        path.display()
    )]
    Changed { path: PathBuf },
    #[error("cannot read {}: {cause}", path.display())]
    Io { path: PathBuf, cause: std::io::Error },
    #[error("{0}")]
    Claim(#[from] ClaimError),
    #[error("{0}")]
    Store(#[from] StoreError),
    #[error("the program is shutting down")]
    ShuttingDown,
}

/// How far a restore has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Progress {
    /// Bytes of the dump that were read, of both times.
    pub done: u64,
    pub all: u64,
}

/// The contents of a file, as far as it is a dump.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    pub head: Option<Head>,
    /// The frames and rows that are there.
    pub found: Totals,
    /// The first places that the source could not read; `found` counts all.
    pub lost: Vec<super::format::Lost>,
    /// Bytes of the file that are no part of a dump.
    pub skipped_bytes: u64,
    pub skipped_places: u64,
    /// Places where frames are missing.
    pub gaps: u64,
    pub has_end: bool,
    /// Bytes of the file.
    pub bytes: u64,
    /// The rows that say how a shard starts.
    foundation: VolatileRows,
    highest_inode: u64,
    highest_generation: u32,
}

impl Survey {
    /// Whether rows of the source are missing.
    pub fn is_incomplete(&self) -> bool {
        self.found.lost + self.skipped_places + self.gaps > 0 || !self.has_end
    }
}

/// A restored store.
#[derive(Debug, Clone)]
pub struct Restored {
    pub survey: Survey,
    pub head: Head,
    /// The number of the metadata server to which the directory belongs.
    pub number: u32,
    /// The number of the term that was noted. The first start has a higher one.
    pub term: u32,
    pub rows: u64,
    pub inodes: u64,
}

/// Places that are remembered one by one.
const LOST_TOLD_MAX: usize = 1000;

/// A dump and where to restore it.
#[derive(Debug, Clone)]
pub struct Restore {
    pub file: PathBuf,
    pub directory: PathBuf,
    /// The number of the metadata server.
    pub number: u32,
    /// Restore what is good, where something is missing.
    pub salvage: bool,
}

/// Reads a dump to its end, and says what is there. `salvage`: goes on behind what is damaged.
pub async fn survey(
    world: &World,
    path: &Path,
    salvage: bool,
    tell: &dyn Fn(u64, u64),
) -> Result<Survey, RestoreError> {
    let mut dump = Dump::open(world, path, salvage)?;
    let mut survey = Survey { bytes: dump.bytes, ..Survey::default() };
    while let Some(item) = dump.next().await? {
        survey.take(item);
        tell(dump.offset, dump.bytes);
    }
    survey.found = dump.parser.found().clone();
    survey.has_end = dump.parser.has_ended();
    if survey.head.is_none() {
        return Err(dump.fail(DumpError::Headless));
    }
    Ok(survey)
}

impl Survey {
    fn take(&mut self, item: Item) {
        match item {
            Item::Head(head) => self.head = Some(head),
            Item::Rows(rows) => rows.into_iter().for_each(|row| self.note_row(row)),
            Item::Lost(lost) if self.lost.len() < LOST_TOLD_MAX => self.lost.push(lost),
            Item::Skipped { from, to } => {
                self.skipped_bytes += to - from;
                self.skipped_places += 1;
            }
            Item::Gap => self.gaps += 1,
            Item::Lost(_) | Item::End(_) => {}
        }
    }

    fn note_row(&mut self, (key, value): DumpedRow) {
        let first = keys::number(&key, 0).unwrap_or(0);
        match key.first().copied() {
            Some(it) if it == Table::Inode as u8 => {
                self.highest_inode = self.highest_inode.max(first);
                if let Ok(inode) = Inode::decode(first, &value) {
                    self.highest_generation = self.highest_generation.max(inode.generation);
                }
            }
            Some(it) if FOUNDATION.contains(&it) => {
                let mut batch = Batch::default();
                batch.put(key, value);
                let _ = self.foundation.commit(batch);
            }
            _ => {}
        }
    }
}

/// The tables without which no shard starts. They are small.
const FOUNDATION: &[u8] = &[
    Table::Export as u8,
    Table::Superblock as u8,
    Table::Counters as u8,
    Table::Term as u8,
    Table::Member as u8,
    Table::Orders as u8,
    Table::Map as u8,
    Table::Pool as u8,
];

/// The file of a dump, as it is read.
struct Dump {
    world: World,
    path: PathBuf,
    file: Arc<dyn File>,
    bytes: u64,
    offset: u64,
    parser: Parser,
}

impl Dump {
    fn open(world: &World, path: &Path, salvage: bool) -> Result<Dump, RestoreError> {
        let fail = |cause| RestoreError::Io { path: path.to_path_buf(), cause };
        let file = world.disk().open(path, Open::Read).map_err(fail)?;
        let bytes = file.len().map_err(fail)?;
        let parser = if salvage { Parser::lax() } else { Parser::strict() };
        let (world, path) = (world.clone(), path.to_path_buf());
        Ok(Dump { world, path, file, bytes, offset: 0, parser })
    }

    fn fail(&self, cause: DumpError) -> RestoreError {
        RestoreError::Dump { path: self.path.clone(), cause }
    }

    async fn next(&mut self) -> Result<Option<Item>, RestoreError> {
        loop {
            if let Some(item) = self.parser.next_item().map_err(|cause| self.fail(cause))? {
                return Ok(Some(item));
            }
            let (file, offset) = (self.file.clone(), self.offset);
            let read = self.world.offload(move || {
                let mut bytes = vec![0; READ_BYTES];
                let count = file.read_at(offset, &mut bytes)?;
                bytes.truncate(count);
                Ok(bytes)
            });
            let read: std::io::Result<Vec<u8>> = read.await.ok_or(RestoreError::ShuttingDown)?;
            let fail = |cause| RestoreError::Io { path: self.path.clone(), cause };
            let bytes = read.map_err(fail)?;
            if bytes.is_empty() {
                return self.parser.last_item().map_err(|cause| self.fail(cause));
            }
            self.offset += bytes.len() as u64;
            self.parser.push(&bytes);
        }
    }
}

impl Restore {
    /// Makes the store. `tell` hears how far it has come.
    pub async fn run(
        &self,
        world: &World,
        tell: &dyn Fn(Progress),
    ) -> Result<Restored, RestoreError> {
        self.check_directory(&*world.disk())?;
        let told = |done, all| tell(Progress { done, all: 2 * all });
        let survey = survey(world, &self.file, self.salvage, &told).await?;
        if survey.is_incomplete() && !self.salvage {
            let (path, lost) = (self.file.clone(), survey.found.lost);
            return Err(RestoreError::Incomplete { path, lost });
        }
        let head = survey.head.clone().expect("the survey found one");
        let term = self.new_term(&survey, &head, world.random_u64())?;
        let mut making = Making::new(self.first_rows(&survey, &term, world.now())?);
        let copy = self.begin(world, &head).await?;
        let mut dump = Dump::open(world, &self.file, self.salvage)?;
        while let Some(item) = dump.next().await? {
            if let Item::Rows(rows) = item {
                rows.into_iter().for_each(|row| making.take(row));
            }
            if making.bytes >= BATCH_BYTES {
                copy.rows.add(making.batch()).await?;
            }
            tell(Progress { done: dump.bytes + dump.offset, all: 2 * dump.bytes });
        }
        if (dump.parser.found(), dump.parser.has_ended()) != (&survey.found, survey.has_end) {
            // The note in the directory stays.
            return Err(RestoreError::Changed { path: self.file.clone() });
        }
        making.end();
        copy.rows.add(making.batch()).await?;
        let (rows, inodes) = (making.rows, making.inodes);
        copy.end(world).await?;
        let term = term.term().number();
        Ok(Restored { survey, head, number: self.number, term, rows, inodes })
    }

    /// Nothing is written where there is a store.
    fn check_directory(&self, disk: &dyn Disk) -> Result<(), RestoreError> {
        let path = || self.directory.clone();
        if StoreCopy::is_half_restored(disk, &self.directory)? {
            return Ok(());
        }
        if look(disk, &self.directory)?.is_some() {
            return Err(RestoreError::NotEmpty { path: path() });
        }
        let names = match disk.list(&self.directory) {
            Err(cause) if cause.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            listed => listed.map_err(|cause| RestoreError::Io { path: path(), cause })?,
        };
        // Each new file system of the ext family has this directory.
        match names.iter().all(|(name, _)| name == "lost+found" || name == LOCK_NAME) {
            true => Ok(()),
            false => Err(RestoreError::NotEmpty { path: path() }),
        }
    }

    fn new_term(&self, survey: &Survey, head: &Head, random: u64) -> Result<TermRow, RestoreError> {
        let mut newest = head.term >> 32;
        let prefix = [Table::Term as u8];
        let read = survey.foundation.scan(&prefix, &keys::after(&prefix), &mut |key, _| {
            newest = newest.max(keys::number(key, 0).unwrap_or(0));
            true
        });
        let path = || self.file.clone();
        read.map_err(|cause| RestoreError::Foundation { path: path(), cause })?;
        TermRow::restored(newest, head.server, random)
            .ok_or_else(|| RestoreError::NoTerm { path: path() })
    }

    /// The rows with which a shard starts, without those of single files; the inodes are counted later.
    fn first_rows(
        &self,
        survey: &Survey,
        term: &TermRow,
        now: Time,
    ) -> Result<VolatileRows, RestoreError> {
        let fail = |cause| RestoreError::Foundation { path: self.file.clone(), cause };
        let rows = first_rows(survey, term).map_err(fail)?;
        let moment = Moment { time: now, calendar: Timestamp::default() };
        check_foundation(&rows, moment).map_err(fail)?;
        Ok(rows)
    }

    /// Claims the directory. From before that until the end a note in it says that the store is not whole.
    async fn begin(&self, world: &World, head: &Head) -> Result<Copying, RestoreError> {
        let (cluster, server) = (ClusterId(head.cluster), ServerId(self.number));
        let identity = Identity { cluster, server, role: Role::Metadata };
        let random = (world.random_u64(), world.random_u128());
        let (disk, path, history) = (world.disk(), self.directory.clone(), head.history);
        let restore = self.clone();
        let claimed = world.offload(move || -> Result<_, RestoreError> {
            disk.create_directory(&path)
                .map_err(|cause| RestoreError::Io { path: path.clone(), cause })?;
            // A server may have begun here while the dump was read.
            StoreCopy::note_restore(&*disk, &path, || restore.check_directory(&*disk))?;
            let mut claimed = claim(&*disk, &path, identity, Expect::Any, random)?;
            let mut keeper = claimed.keeper();
            keeper.follow(&*disk, history)?;
            claimed.take(keeper);
            Ok(claimed)
        });
        let claimed = claimed.await.ok_or(RestoreError::ShuttingDown)??;
        let (boot, config) = (claimed.boot, JournaledConfig::default());
        let position = Position(head.position);
        let rows = StoreCopy::begin(world, &self.directory, boot, config, position).await?;
        Ok(Copying { rows, claimed })
    }
}

/// A store that is being made.
struct Copying {
    rows: StoreCopy,
    claimed: ropewalk_store::superblock::ClaimedDirectory,
}

impl Copying {
    /// All rows are there: the directory is a store, which ended well.
    async fn end(self, world: &World) -> Result<(), RestoreError> {
        let Copying { rows, claimed } = self;
        let store = rows.finish().await?.begin(None).await?;
        store.wait_durable(store.position()).await?;
        store.checkpoint().await?;
        store.close().await?;
        let (disk, mut keeper) = (world.disk(), claimed.keeper());
        let ended = world.offload(move || keeper.bind(&*disk).and_then(|_| keeper.end(&*disk)));
        ended.await.ok_or(RestoreError::ShuttingDown)??;
        drop(claimed);
        Ok(())
    }
}

/// Rows on their way into the store.
struct Making {
    /// Those that replace rows of the dump.
    first: VolatileRows,
    batch: BTreeMap<Vec<u8>, Vec<u8>>,
    bytes: usize,
    rows: u64,
    inodes: u64,
}

impl Making {
    fn new(first: VolatileRows) -> Making {
        Making { first, batch: BTreeMap::new(), bytes: 0, rows: 0, inodes: 0 }
    }

    fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.bytes += key.len() + value.len();
        self.rows += 1;
        self.batch.insert(key, value);
    }

    fn take(&mut self, (key, value): DumpedRow) {
        match key.first().copied() {
            Some(it) if FOUNDATION.contains(&it) => {}
            Some(it) if it == Table::Inode as u8 => {
                self.inodes += 1;
                let value = renewed(&key, value);
                self.put(key, value);
            }
            _ => self.put(key, value),
        }
    }

    /// The rows that come last.
    fn end(&mut self) {
        let first = std::mem::take(&mut self.first);
        for (key, value) in first.iter() {
            self.put(key.to_vec(), value.to_vec());
        }
        self.put(inode_count_key(), inode_count_row(self.inodes));
    }

    fn batch(&mut self) -> Vec<Row> {
        self.bytes = 0;
        let batch = std::mem::take(&mut self.batch);
        batch.into_iter().map(|(key, value)| (key, Value::from(value))).collect()
    }
}

/// The row of an inode under a new write epoch: data servers may remember a later one than the dump has.
fn renewed(key: &[u8], value: Vec<u8>) -> Vec<u8> {
    let number = keys::number(key, 0).unwrap_or(0);
    match Inode::decode(number, &value) {
        Ok(inode) if inode.striped => {
            let epoch = inode.epoch.saturating_add(WRITES_STEP);
            Inode { epoch, ..inode }.encode()
        }
        _ => value,
    }
}

/// The small tables of a dump, with numbers that were never given out.
fn first_rows(survey: &Survey, term: &TermRow) -> Result<VolatileRows, RowsError> {
    let given = &survey.foundation;
    let mut batch = Batch::default();
    for (key, value) in given.iter() {
        let is_replaced = matches!(key.first(), Some(it)
            if *it == Table::Counters as u8 || *it == Table::Term as u8 || *it == Table::Map as u8);
        if !is_replaced {
            batch.put(key.to_vec(), value.to_vec());
        }
    }
    let counters = given.get(&keys::key(Table::Counters, &[]))?;
    let counted = counters.and_then(|row| decode_row::<(u64, u64)>(COUNTERS_VERSION, &row).ok());
    let (boots, next) = counted.unwrap_or((0, 0));
    let next = next.max(survey.highest_inode.saturating_add(1)).saturating_add(INODES_STEP);
    let counters = encode_row(COUNTERS_VERSION, &(boots.saturating_add(BOOTS_STEP), next));
    batch.put(keys::key(Table::Counters, &[]), counters);
    batch.put(inode_count_key(), inode_count_row(0));
    let reserved = given.get(&generations_key())?;
    let reserved = reserved.and_then(|row| decode_row::<(u32, u32)>(COUNTERS_VERSION, &row).ok());
    let end = reserved.map_or(0, |(_, end)| end).max(survey.highest_generation.saturating_add(1));
    let end = end.saturating_add(GENERATIONS_STEP);
    batch.put(generations_key(), generations_row(end, end));
    put_map(given, &mut batch)?;
    batch.put(keys::key(Table::Term, &[u64::from(term.term().number())]), term.encode());
    let mut rows = VolatileRows::default();
    rows.commit(batch)?;
    Ok(rows)
}

/// The map under a new epoch, in which all groups have changed: whoever knows the map asks for all of it.
fn put_map(given: &VolatileRows, batch: &mut Batch) -> Result<(), RowsError> {
    let head = given.get(&map_key())?;
    let head = head.and_then(|row| decode_row::<(u32, u32)>(MAP_VERSION, &row).ok());
    let mut bands: Vec<Band> = Vec::new();
    given.scan(
        &keys::key(Table::Map, &[0]),
        &keys::after(&[Table::Map as u8]),
        &mut |_, row| {
            bands.extend(decode_band(row).ok());
            true
        },
    )?;
    if head.is_none() && bands.is_empty() {
        // A store of the first format.
        return Ok(());
    }
    let since = bands.iter().map(Band::since).max().unwrap_or(0);
    let after = bands.iter().map(|band| band.number.saturating_add(1)).max().unwrap_or(0);
    let (epoch, next) = head.unwrap_or((since, after));
    let epoch = epoch.max(since).saturating_add(MAP_STEP);
    for mut band in bands {
        band.groups.iter_mut().for_each(|group| group.since = epoch);
        batch.put(keys::key(Table::Map, &[u64::from(band.number)]), encode_band(&band));
    }
    let map = ropewalk_wire::fs::map::Map::at(epoch);
    let (key, row) = Banded { map, next: next.max(after), restless: false }.head();
    batch.put(key, row);
    Ok(())
}
