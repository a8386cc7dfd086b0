//! Starting a shard: making an empty one, or taking one up from its rows.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ropewalk_base::random::Random;
use ropewalk_wire::fs::attributes::InodeKind;
use ropewalk_wire::fs::map::Map;
use ropewalk_wire::fs::meta::ROOT;
use ropewalk_wire::fs::orders::Orders;
use ropewalk_wire::fs::value::Errno;
use serde::de::DeserializeOwned;

use super::chores::Reaps;
use super::{Admission, CUT_VERSION, Cut, Moment, Opening, Shard};
use crate::config::Config;
use crate::exports::{DEFAULT_EXPORT, Export, Exports};
use crate::graves::Graves;
use crate::growth::Growth;
use crate::history::Terms;
use crate::inode::{Damaged, Inode, decode_row, encode_row};
use crate::keys::{self, Table};
use crate::leases::Leases;
use crate::locks::{Bounds, Locks};
use crate::names::NameHasher;
use crate::numbers::{FIRST, Generations, Numbers};
use crate::operate::decode_lock;
use crate::parking::Parking;
use crate::pools::{
    Banded, MAP_VERSION, MEMBER_VERSION, NO_STORE, ORDERS_VERSION, Pools, decode_band, decode_pool,
    map_key,
};
use crate::questions::Questions;
use crate::rows::{Batch, Rows, RowsError};
use crate::runs::Runs;
use crate::sessions::{
    REPLY_VERSION, ReplyRow, Session, SessionOwner, SessionRow, Sessions, kept_name,
};
use ropewalk_wire::fs::policy::Policy;

/// Versions of the superblock and of everything in the rows: pools name servers, or bands of groups.
const FIRST_FORMAT: u8 = 1;
pub(crate) const FORMAT: u8 = 2;
/// The superblock's version while objects of the first format still learn their groups. The rows have [`FORMAT`]; a former
/// program knows nothing of the locks of this time, and does not know the number either.
const UNDER_WAY: u8 = 3;
/// Version of the counters row.
pub(crate) const COUNTERS_VERSION: u8 = 1;
/// Numbers of grants that one life of the server can give out.
const GRANTS_PER_BOOT: u32 = 40;

const UNFORMATTED: &str = "there is no file system in it: restore the directory of the metadata \
     from a backup; if it never held data, remove it and run 'ropewalk format' again";

impl<R: Rows> Shard<R> {
    /// Takes a shard up from its rows, or makes an empty one where there are none. `random` decides
    /// session numbers, layouts, and the name hash key of an empty shard.
    pub fn open(
        mut rows: R,
        config: Config,
        mut random: Random,
        now: Moment,
    ) -> Result<Shard<R>, RowsError> {
        let (version, key) = find_superblock(&mut rows, &mut random, &config, now)?;
        let (boots, next_range): (u64, u64) =
            read_counter(&rows, &keys::key(Table::Counters, &[]), "counters")?;
        let inode_count: u64 = read_counter(&rows, &inode_count_key(), "inode count")?;
        let terms = Terms::read(&rows)?;
        let beginning = terms.next(&config.boot, config.server, config.starts, config.start);
        let upgrade = Upgrade { step: read_step(&rows)?, under_way: version == UNDER_WAY };
        let (first, end) = read_generations(&rows)?;
        let first = if beginning.forgetful { end } else { first };
        let banded = (version != FIRST_FORMAT).then(|| read_map(&rows)).transpose()?;
        let mut pools = read_pools(&rows, now)?.mapped(banded);
        if upgrade.step != 0 {
            pools.note_lifted();
        }
        pools.check().map_err(RowsError::Failed)?;
        let exports = read_exports(&rows)?;
        let mut shard = Shard {
            first_map: pools.map().epoch,
            rows,
            config,
            term: beginning.row,
            starts: beginning.starts,
            random,
            names: NameHasher::new(key, config.hash_bits),
            numbers: Numbers::default(),
            generations: Generations::new(first, end),
            leases: Leases::new((boots + 1) << GRANTS_PER_BOOT),
            graves: Graves::default(),
            locks: Locks::new(lock_bounds(&config)),
            questions: Questions::default(),
            growth: Growth::default(),
            sessions: Sessions::default(),
            exports,
            outdated: Vec::new(),
            latest: 0,
            pools,
            grantor: None,
            parking: Parking::default(),
            callbacks: VecDeque::new(),
            cuts: BTreeMap::new(),
            cut_queue: VecDeque::new(),
            reap_waiting: true,
            inode_count,
            inode_count_kept: inode_count,
            next_range,
            admission: Admission::All,
            reaps: Reaps::default(),
            fences: VecDeque::new(),
            later_fences: VecDeque::new(),
            damage: VecDeque::new(),
            ended: VecDeque::new(),
            completed: VecDeque::new(),
            boot: boots + 1,
            position: 0,
            grace: Some(now.time + config.term),
            restored: beginning.restored,
            upgrade,
            stopped: None,
        };
        // The boot count goes into the row of the first range of this life, and the term beside it.
        let mut batch = Batch::default();
        terms.note(&beginning.row, &mut batch);
        shard.reserve_range(batch)?;
        shard.may_use_generation(first)?;
        shard.read_sessions(now)?;
        shard.read_locks()?;
        shard.read_cuts()?;
        shard.later_fences = shard.later_fences()?;
        shard.check_grace(now);
        let stopped = shard.stopped.take();
        stopped.map_or(Ok(shard), Err)
    }

    /// The format of the rows.
    pub fn format(&self) -> u8 {
        if self.pools.has_bands() { FORMAT } else { FIRST_FORMAT }
    }

    /// The client of a session speaks this version and those before.
    pub fn note_client_version(&mut self, session: u64, newest: u16) {
        if let Some(session) = self.sessions.get_mut(session) {
            session.newest = newest;
        }
    }

    /// A data server speaks this version and those before.
    pub fn note_server_version(&mut self, server: u32, newest: u16) {
        self.pools.note_version(server, newest);
    }

    /// Whether the store had the first format before: clients of that time know pools that are no more.
    pub fn was_lifted(&self) -> bool {
        self.upgrade.step != 0
    }

    /// The counters row: boots, and the next inode range.
    pub(super) fn counters(&self) -> Vec<u8> {
        encode_row(COUNTERS_VERSION, &(self.boot, self.next_range))
    }

    fn read_sessions(&mut self, now: Moment) -> Result<(), RowsError> {
        let deadline = now.time + self.config.term;
        for (key, row) in read_rows(&self.rows, Table::Session, SessionRow::decode)? {
            let session = keys::number(&key, 0).unwrap_or(0);
            if row.fencing {
                self.fences.push_back((session, row.epoch));
            }
            self.sessions.insert(session, row, deadline, true);
        }
        for (key, row) in read_table::<ReplyRow, R>(&self.rows, Table::Reply, REPLY_VERSION)? {
            let (session, slot) = (keys::number(&key, 0), keys::number(&key, 1));
            let slot = slot.and_then(|slot| u16::try_from(slot).ok());
            if let (Some(session), Some(slot)) = (session, slot) {
                self.sessions.restore(session, slot, row, self.position);
            }
        }
        Ok(())
    }

    fn read_locks(&mut self) -> Result<(), RowsError> {
        let prefix = [Table::Lock as u8];
        let (locks, mut damaged) = (&mut self.locks, false);
        self.rows.scan(&prefix, &keys::after(&prefix), &mut |key, value| {
            match decode_lock(key, value) {
                Ok((inode, lock)) => locks.restore(inode, lock),
                Err(_) => damaged = true,
            }
            !damaged
        })?;
        if damaged || self.locks.check().is_err() {
            return Err(RowsError::Failed("the rows of locks do not make sense".to_owned()));
        }
        Ok(())
    }

    fn read_cuts(&mut self) -> Result<(), RowsError> {
        for (_, cut) in read_table::<Cut, R>(&self.rows, Table::Shrink, CUT_VERSION)? {
            self.cut_queue.push_back(cut.inode);
            self.cuts.insert(cut.inode, cut);
        }
        Ok(())
    }

    /// The name that the client of a session gave itself; `None` where there is no such session.
    pub fn client_name(&self, session: u64) -> Option<&[u8]> {
        self.sessions.get(session).map(|session| session.row.name.as_slice())
    }

    /// Makes room for one more session of this owner: `EUSERS` where he has as many as he may, or where
    /// there are too many that are all in use.
    pub fn make_room(&mut self, owner: &SessionOwner, now: Moment) -> Result<(), Errno> {
        let (config, sessions) = (self.config, &self.sessions);
        let of_user = owner.identity.limit().map_or(0, |limit| sessions.of_user(limit.user));
        if sessions.of_endpoint(owner.endpoint) >= config.sessions_of_endpoint_max
            || of_user >= config.sessions_of_user_max
        {
            return Err(Errno::EUSERS);
        }
        if sessions.len() < config.sessions_max {
            return Ok(());
        }
        // One that holds nothing loses nothing: it opens another when it needs one. First those that were
        // never used, and of these a plain user's.
        let idle = sessions.iter().filter(|(id, session)| {
            !session.row.fencing && !session.reclaiming && self.leases.count(*id) == 0
        });
        let rank = |session: &Session| {
            (session.called, session.row.owner.identity.limit().is_none(), session.deadline)
        };
        let victim = idle.min_by_key(|(_, session)| rank(session)).map(|(id, _)| id);
        let victim = victim.ok_or(Errno::EUSERS)?;
        self.let_go(victim, now).map_err(|error| {
            self.stop(error);
            Errno::EIO
        })?;
        // One that was used is fenced first, and goes later.
        if self.sessions.len() < config.sessions_max { Ok(()) } else { Err(Errno::EAGAIN) }
    }

    /// Opens a session for `client`, a number that the client chose for this life of it. A session
    /// that the same client had before ends as if its term were over.
    pub fn open_session(
        &mut self,
        client: u128,
        owner: SessionOwner,
        now: Moment,
    ) -> Result<Opening, RowsError> {
        self.open_named_session((client, b""), owner, now)
    }

    /// The same for a client that calls itself so. The owner's export exists.
    pub fn open_named_session(
        &mut self,
        (client, name): (u128, &[u8]),
        owner: SessionOwner,
        now: Moment,
    ) -> Result<Opening, RowsError> {
        if self.is_full() {
            return Err(RowsError::Failed("the disk is full".to_owned()));
        }
        let same = |row: &SessionRow| row.client == client && row.owner.origin() == owner.origin();
        let old: Vec<u64> = self
            .sessions
            .iter()
            .filter(|(_, session)| same(&session.row) && !session.row.fencing)
            .map(|(id, _)| id)
            .collect();
        for session in old {
            self.expire(session)?;
        }
        let mut session = self.random.next_u64();
        while session == 0 || self.sessions.get(session).is_some() {
            session = self.random.next_u64();
        }
        let name = kept_name(name);
        let row = SessionRow { client, owner, epoch: 1, fencing: false, name };
        let mut batch = Batch::default();
        let first_format = !self.pools.has_bands();
        batch.put(keys::key(Table::Session, &[session]), row.encode(first_format));
        self.commit(batch)?;
        self.sessions.insert(session, row, now.time + self.config.term, false);
        Ok(Opening { session, epoch: 1, position: self.position })
    }
}

/// The row of the number of inodes. It goes with every batch that changes the number, so it is right
/// whenever the server dies.
pub(crate) fn inode_count_key() -> Vec<u8> {
    keys::key(Table::Counters, &[0])
}

pub(crate) fn inode_count_row(count: u64) -> Vec<u8> {
    encode_row(COUNTERS_VERSION, &count)
}

/// The row of the object generations of this era: the first one, and the first that is not reserved.
pub(crate) fn generations_key() -> Vec<u8> {
    keys::key(Table::Counters, &[1])
}

pub(crate) fn generations_row(first: u32, end: u32) -> Vec<u8> {
    encode_row(COUNTERS_VERSION, &(first, end))
}

/// Whether this is the row of a superblock.
pub(crate) fn is_superblock(bytes: &[u8]) -> bool {
    decode_row::<(u64, u64)>(version_of(bytes), bytes).is_ok()
}

/// The version that a superblock says; [`FORMAT`] where it says none of those that there are.
fn version_of(bytes: &[u8]) -> u8 {
    match bytes.first() {
        Some(&version) if [FIRST_FORMAT, UNDER_WAY].contains(&version) => version,
        _ => FORMAT,
    }
}

/// Whether a shard starts from these rows, as far as one can say without those of files.
pub(crate) fn check_foundation<R: Rows>(rows: &R, now: Moment) -> Result<(), RowsError> {
    let (version, _) = read_superblock(rows, &keys::key(Table::Superblock, &[]))?;
    let _: (u64, u64) = read_counter(rows, &keys::key(Table::Counters, &[]), "counters")?;
    let _: u64 = read_counter(rows, &inode_count_key(), "inode count")?;
    read_generations(rows)?;
    Terms::read(rows)?;
    let banded = if version == FIRST_FORMAT { None } else { Some(read_map(rows)?) };
    let pools = read_pools(rows, now)?.mapped(banded);
    pools.check().map_err(RowsError::Failed)?;
    read_exports(rows).map(drop)
}

/// The upgrade by which the store left its first format.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Upgrade {
    /// Its number; 0: the store never had that format.
    pub step: u64,
    /// Objects still learn their groups.
    pub under_way: bool,
}

/// The row of the step by which the store left its first format. A store that never had that has none.
pub(crate) fn step_key() -> Vec<u8> {
    keys::key(Table::Counters, &[2])
}

pub(crate) fn step_row(step: u64) -> Vec<u8> {
    encode_row(COUNTERS_VERSION, &step)
}

/// That step; 0 where there was none.
fn read_step<R: Rows>(rows: &R) -> Result<u64, RowsError> {
    match rows.get(&step_key())? {
        Some(bytes) => decode_row(COUNTERS_VERSION, &bytes).map_err(|_| damaged("upgrade")),
        None => Ok(0),
    }
}

/// The row that says that the rows have the newest format. `under_way`: objects still learn their groups.
pub(crate) fn newest_superblock<R: Rows>(
    rows: &R,
    under_way: bool,
) -> Result<(Vec<u8>, Vec<u8>), RowsError> {
    let key = keys::key(Table::Superblock, &[]);
    let (_, hash_key) = read_superblock(rows, &key)?;
    let version = if under_way { UNDER_WAY } else { FORMAT };
    Ok((key, encode_row(version, &hash_key)))
}

/// As [`read_superblock`], of rows that are made where there are none.
fn find_superblock<R: Rows>(
    rows: &mut R,
    random: &mut Random,
    config: &Config,
    now: Moment,
) -> Result<(u8, (u64, u64)), RowsError> {
    let key = keys::key(Table::Superblock, &[]);
    if rows.get(&key)?.is_none() {
        if !config.format {
            return Err(RowsError::Failed(UNFORMATTED.to_owned()));
        }
        format(rows, &key, random, config, now)?;
    }
    read_superblock(rows, &key)
}

/// The version of the superblock, and the key of the name hash.
fn read_superblock<R: Rows>(rows: &R, key: &[u8]) -> Result<(u8, (u64, u64)), RowsError> {
    let bytes = rows.get(key)?.ok_or_else(|| damaged("superblock"))?;
    if let Some(newer) = bytes.first().filter(|format| **format > UNDER_WAY) {
        return Err(RowsError::Failed(format!(
            "its metadata have format {newer}, and this program knows formats up to {UNDER_WAY}: run the \
             version of Ropewalk that wrote them, or a later one"
        )));
    }
    let version = version_of(&bytes);
    let hash_key = decode_row(version, &bytes).map_err(|_| damaged("superblock"))?;
    Ok((version, hash_key))
}

fn read_counter<T: DeserializeOwned, R: Rows>(
    rows: &R,
    key: &[u8],
    what: &str,
) -> Result<T, RowsError> {
    let bytes = rows.get(key)?.ok_or_else(|| damaged(what))?;
    decode_row(COUNTERS_VERSION, &bytes).map_err(|_| damaged(what))
}

fn damaged(what: &str) -> RowsError {
    RowsError::Failed(format!("the row of the {what} does not decode"))
}

/// First and end of the object generations that were reserved; none before the first start.
fn read_generations<R: Rows>(rows: &R) -> Result<(u32, u32), RowsError> {
    let damaged = |_| RowsError::Failed("the row of the object generations does not decode".into());
    match rows.get(&generations_key())? {
        Some(bytes) => decode_row(COUNTERS_VERSION, &bytes).map_err(damaged),
        None => Ok((0, 0)),
    }
}

fn lock_bounds(config: &Config) -> Bounds {
    let in_all = config.locks_in_all_max;
    Bounds { of_session: config.locks_max, in_all, share: config.share(in_all) }
}

/// Makes the rows of an empty file system: the superblock, the counters, the root directory.
fn format<R: Rows>(
    rows: &mut R,
    superblock: &[u8],
    random: &mut Random,
    config: &Config,
    now: Moment,
) -> Result<(), RowsError> {
    let owner = config.root_owner;
    let mut batch = Batch::default();
    let key = (random.next_u64(), random.next_u64());
    let version = if config.first_format { FIRST_FORMAT } else { FORMAT };
    batch.put(superblock.to_vec(), encode_row(version, &key));
    if !config.first_format {
        let (key, row) = Banded::default().head();
        batch.put(key, row);
    }
    let counters = (0u64, FIRST);
    batch.put(keys::key(Table::Counters, &[]), encode_row(COUNTERS_VERSION, &counters));
    batch.put(inode_count_key(), inode_count_row(1));
    let at = now.calendar;
    let root = Inode {
        number: ROOT,
        kind: InodeKind::Directory,
        mode: 0o755,
        links: 2,
        user: owner.0,
        group: owner.1,
        device: 0,
        size: 0,
        accessed: at,
        modified: at,
        changed: at,
        created: at,
        version: 1,
        generation: 0,
        epoch: 0,
        parent: ROOT,
        cookie: 0,
        temporary: false,
        striped: false,
        layout: None,
        written: Runs::default(),
        inline_bytes: 0,
        xattr_bytes: 0,
        capable: false,
        policy: Policy::default(),
    };
    batch.put(keys::key(Table::Inode, &[ROOT]), root.encode());
    rows.commit(batch)?;
    Ok(())
}

fn read_pools<R: Rows>(rows: &R, now: Moment) -> Result<Pools, RowsError> {
    let (mut members, mut admitted) = (BTreeMap::new(), BTreeSet::new());
    let mut starts = BTreeMap::new();
    for (key, store) in read_table::<u128, R>(rows, Table::Member, MEMBER_VERSION)? {
        let server = keys::number(&key, 0).and_then(|number| u32::try_from(number).ok());
        let server =
            server.ok_or_else(|| RowsError::Failed("a data server has no number".to_owned()))?;
        match store {
            start if keys::number(&key, 1).is_some() => drop(starts.insert(server, start as u64)),
            NO_STORE => drop(admitted.insert(server)),
            store => drop(members.insert(server, store)),
        }
    }
    let mut versions = BTreeMap::new();
    let prefix = [Table::Pool as u8];
    let mut damaged = false;
    rows.scan(&prefix, &keys::after(&prefix), &mut |_, value| {
        match decode_pool(value) {
            Ok(pool) => drop(versions.insert(pool.version, pool)),
            Err(_) => damaged = true,
        }
        !damaged
    })?;
    if damaged {
        return Err(RowsError::Failed("a row of the pools does not decode".to_owned()));
    }
    let orders = match rows.get(&keys::key(Table::Orders, &[]))? {
        Some(row) => decode_row(ORDERS_VERSION, &row)
            .map_err(|_| RowsError::Failed("the row of orders does not decode".to_owned()))?,
        None => Orders::default(),
    };
    let pools = Pools::new(members, versions, now.time).admitting(admitted).started(starts);
    Ok(pools.with_orders(orders))
}

fn read_exports<R: Rows>(rows: &R) -> Result<Exports, RowsError> {
    let mut exports = Exports::default();
    for (key, export) in read_rows(rows, Table::Export, Export::decode)? {
        let number = keys::number(&key, 0).and_then(|number| u32::try_from(number).ok());
        match number.filter(|number| *number != DEFAULT_EXPORT) {
            Some(number) => exports.set(number, Some(export)),
            None => {
                return Err(RowsError::Failed(
                    "a row of the exports has no number of one".to_owned(),
                ));
            }
        }
    }
    Ok(exports)
}

fn read_map<R: Rows>(rows: &R) -> Result<Banded, RowsError> {
    let failed = |what: &str| RowsError::Failed(format!("the row of {what} does not decode"));
    let head = rows.get(&map_key())?.ok_or_else(|| failed("the map"))?;
    let (epoch, next): (u32, u32) =
        decode_row(MAP_VERSION, &head).map_err(|_| failed("the map"))?;
    let mut map = Map::at(epoch);
    let mut damaged = None;
    let first = keys::key(Table::Map, &[0]);
    rows.scan(&first, &keys::after(&[Table::Map as u8]), &mut |key, value| {
        let number = keys::number(key, 0).and_then(|number| u32::try_from(number).ok());
        match (number, decode_band(value)) {
            (Some(number), Ok(band))
                if band.number == number && number < next && band.since() <= epoch =>
            {
                map.add(band);
            }
            _ => damaged = Some(number.unwrap_or(u32::MAX)),
        }
        damaged.is_none()
    })?;
    match damaged {
        Some(number) => Err(failed(&format!("band {number} of the map"))),
        None => Ok(Banded { map, next, restless: false }),
    }
}

/// All rows of a table of one version, decoded.
fn read_table<T: DeserializeOwned, R: Rows>(
    rows: &R,
    table: Table,
    version: u8,
) -> Result<Vec<(Vec<u8>, T)>, RowsError> {
    read_rows(rows, table, |value| decode_row(version, value))
}

fn read_rows<T, R: Rows>(
    rows: &R,
    table: Table,
    decode: impl Fn(&[u8]) -> Result<T, Damaged>,
) -> Result<Vec<(Vec<u8>, T)>, RowsError> {
    let prefix = [table as u8];
    let (mut found, mut damaged) = (Vec::new(), false);
    rows.scan(&prefix, &keys::after(&prefix), &mut |key, value| {
        match decode(value) {
            Ok(row) => found.push((key.to_vec(), row)),
            Err(_) => damaged = true,
        }
        !damaged
    })?;
    if damaged {
        return Err(RowsError::Failed(format!("a row of table {table:?} does not decode")));
    }
    Ok(found)
}
