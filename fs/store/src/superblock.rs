//! The owner of a directory, and the boot of the server.
//!
//! The file `superblock` is one sector: identity, format version, boot counter, the last starts, checksum. The file
//! `superblock.second` is a copy of it: one of them may be damaged or lost. The file `lock` is locked
//! while a server has the directory; the kernel lets go of it when the process dies.
//!
//! Invariants
//! * the boot counter and boot id of a start are durable before the start goes on;
//! * an era goes on only where every byte that earlier starts in it wrote is still seen;
//! * a directory of another cluster, server, role or a later format is never written to;
//! * data without a superblock is never taken for an empty directory;
//! * a part of another directory, or an older copy of one, is never taken for this one's ([`part`]);
//! * a start on a directory that exists needs no room on its disk.

mod copies;
mod keeper;
mod part;
mod starts;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ropewalk_base::checksum;
use ropewalk_base::disk::{Disk, File, Open};
use ropewalk_base::error::Class;
use ropewalk_base::ids::{ClusterId, ServerId};

use crate::host_disk::cause_at;

pub use keeper::Keeper;
pub(crate) use part::accepts as accepts_starts;
pub use starts::Starts;

const NAME: &str = "superblock";
const SECOND_NAME: &str = "superblock.second";
const NEW_NAME: &str = "superblock.new";
/// The file that a process locks while it uses a directory.
pub const LOCK_NAME: &str = "lock";
/// Says that a copy of another store, or a restore, has begun here and has not ended.
pub(crate) const UNFINISHED_NAME: &str = "copy.unfinished";
const MAGIC: &[u8; 8] = b"RWSUPERB";
/// The formats that this program writes: the second where the history is not the one that began on this store.
const VERSION: u32 = 2;
const HISTORY_VERSION: u32 = 3;
const BYTES: usize = 512;
const STARTS_AT: usize = 96;
const PART_AT: usize = STARTS_AT + starts::BYTES;
const HISTORY_AT: usize = PART_AT + 8;

/// The purpose of a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Rows of a metadata server.
    Metadata,
    /// Objects of a data server.
    Data,
}

impl Role {
    fn number(self) -> u32 {
        match self {
            Role::Metadata => 1,
            Role::Data => 2,
        }
    }

    /// The part of the directory that holds the data.
    fn part(self) -> &'static str {
        match self {
            Role::Metadata => "journal",
            Role::Data => "objects",
        }
    }

    fn name(number: u32) -> &'static str {
        match number {
            1 => "metadata",
            2 => "data",
            _ => "unknown",
        }
    }
}

/// The server that claims a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Identity {
    pub cluster: ClusterId,
    pub server: ServerId,
    pub role: Role,
}

/// Whether the cluster has seen this server before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expect {
    /// A new server: an empty directory is formatted, a formatted one is used.
    Any,
    /// A known server: an empty directory means that its data is gone.
    Existing,
    /// A known server whose data is given up by order of a person: an empty directory is formatted.
    Replace,
}

/// One start of a server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Boot {
    /// Counts the starts on this directory, from 1.
    pub counter: u64,
    /// Never 0: others see by it that the server was restarted. The upper half is the counter's lower
    /// one, the rest is random: they see, too, that a directory is an older copy of itself.
    pub id: u64,
    /// The id of the first start since when nothing that was acknowledged can be lost: a start after
    /// a power loss begins a new era, one after a mere death of the process goes on with it.
    pub era: u64,
    /// Random, chosen when the directory was formatted.
    pub store: u128,
    /// Whose rows a metadata server's directory holds: the store on which they began.
    pub history: u128,
}

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    #[error("{} is in use by another server process: stop it, or choose another directory", path.display())]
    InUse { path: PathBuf },
    #[error("{} belongs to cluster {found}, not to {wanted}: choose another directory", path.display())]
    OtherCluster { path: PathBuf, found: ClusterId, wanted: ClusterId },
    #[error("{} belongs to server {found}, not to {wanted}: choose another directory", path.display())]
    OtherServer { path: PathBuf, found: ServerId, wanted: ServerId },
    #[error("{} holds {found} data, and this is a {wanted} server: choose another directory", path.display())]
    OtherRole { path: PathBuf, found: &'static str, wanted: &'static str },
    #[error("{} has format {found}; this program knows formats up to {HISTORY_VERSION}: update it", path.display())]
    Newer { path: PathBuf, found: u32 },
    #[error(
        "{} is damaged, and its second copy {} cannot replace it: restore one of them from a \
         backup; a data server can also start empty: move its directory away and use --replace", path.display(),
        second.display()
    )]
    Damaged { path: PathBuf, second: PathBuf },
    #[error(
        "{} and {} are of two stores: remove the one that does not belong here",
        path.display(), second.display()
    )]
    Disagree { path: PathBuf, second: PathBuf },
    #[error(
        "{} has no superblock but holds {found}: it is not a store, or its superblock was lost; \
         choose an empty directory or restore the superblock", path.display()
    )]
    NotEmpty { path: PathBuf, found: String },
    #[error(
        "{} is empty, but server {server} had data: mount the right disk, or give up the data of a \
         data server by --replace", path.display()
    )]
    Emptied { path: PathBuf, server: ServerId },
    #[error(
        "{} is of another directory than {}, as its file 'starts' says: put each of them back where it came \
         from", part.display(), path.display()
    )]
    OtherPart { path: PathBuf, part: PathBuf },
    #[error(
        "{} is an older copy than {} beside it: it does not know the last start, or how that \
         ended. Restore the newer one{remedy}", part.display(), path.display()
    )]
    OlderPart { path: PathBuf, part: PathBuf, remedy: &'static str },
    #[error(
        "{} is an older copy than {} beside it, which had later starts: restore the newer \
         one{remedy}",
        path.display(), part.display()
    )]
    OlderSuperblock { path: PathBuf, part: PathBuf, remedy: &'static str },
    #[error(
        "there is no room for {}: free at least 64 KiB on its disk (df), or a file where it has no inode \
         left (df -i)", path.display()
    )]
    Full { path: PathBuf },
    #[error(
        "{} cannot be written ({}): check owner, rights and mount options",
        path.display(), cause_at(path, cause)
    )]
    ReadOnly { path: PathBuf, cause: io::Error },
    #[error("cannot {doing} {}: {}", path.display(), cause_at(path, cause))]
    Io { doing: &'static str, path: PathBuf, cause: io::Error },
}

impl ClaimError {
    /// The class by which recovery is decided.
    pub fn class(&self) -> Class {
        match self {
            ClaimError::Damaged { .. }
            | ClaimError::Disagree { .. }
            | ClaimError::OtherPart { .. }
            | ClaimError::OlderPart { .. }
            | ClaimError::OlderSuperblock { .. }
            | ClaimError::Emptied { .. } => Class::Data,
            ClaimError::Full { .. } | ClaimError::ReadOnly { .. } | ClaimError::Io { .. } => {
                Class::Node
            }
            _ => Class::Caller,
        }
    }

    fn io(doing: &'static str, path: &Path, cause: io::Error) -> ClaimError {
        let path = path.to_path_buf();
        match cause.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ClaimError::Full { path },
            io::ErrorKind::ReadOnlyFilesystem | io::ErrorKind::PermissionDenied => {
                ClaimError::ReadOnly { path, cause }
            }
            _ => ClaimError::Io { doing, path, cause },
        }
    }
}

/// A directory that this process owns until it is dropped.
pub struct ClaimedDirectory {
    pub path: PathBuf,
    pub identity: Identity,
    pub boot: Boot,
    /// This start and those before it.
    pub starts: Starts,
    /// The directory did not exist before.
    pub made: bool,
    /// A copy of the superblock that was damaged or missing, and was made anew from the other one.
    pub mended: Option<PathBuf>,
    keeper: Keeper,
    _lock: Arc<dyn File>,
}

/// Takes a directory for a server: locks it, checks or writes its superblock, counts the boot.
///
/// `random` is fresh randomness for the boot id and, where the directory is formatted, the
/// store's. Blocks; meant for the start of a server or `World::offload`.
pub fn claim(
    disk: &dyn Disk,
    path: &Path,
    identity: Identity,
    expect: Expect,
    random: (u64, u128),
) -> Result<ClaimedDirectory, ClaimError> {
    let hold = || disk.hold(path).map_err(|cause| ClaimError::io("use", path, cause));
    hold()?;
    if expect == Expect::Existing && read(disk, path)?.is_none() {
        // Nothing is made where something should be: it may be below the mount point of a disk.
        check_empty(disk, path, identity.server, expect)?;
    }
    let made = disk.kind(path).map_err(|cause| ClaimError::io("look for", path, cause))?.is_none();
    disk.create_directory(path).map_err(|cause| ClaimError::io("make", path, cause))?;
    if made {
        hold()?;
    }
    let lock_path = path.join(LOCK_NAME);
    let lock = lock_directory(disk, path)?;
    // The lock file stays the same for as long as the directory does.
    let memory = disk.memory_of(&lock_path).unwrap_or(0);
    let copies::Copies { found, broken: mended } = copies::read(disk, path)?;
    let id_of = |counter: u64| counter << 32 | random.0 >> 32;
    let (boot, starts, asked) = match found {
        Some(found) => {
            check(path, &found, identity)?;
            let Boot { counter, era, store, history, .. } = found.boot;
            let counter = counter + 1;
            let id = id_of(counter).max(1);
            let era = if memory != 0 && memory == found.memory { era } else { id };
            (Boot { counter, id, era, store, history }, found.starts, found.part)
        }
        None => {
            check_empty(disk, path, identity.server, expect)?;
            sync_ancestors(disk, path)?;
            let id = id_of(1);
            let (store, history) = (random.1, random.1);
            (Boot { counter: 1, id, era: id, store, history }, Starts::default(), 0)
        }
    };
    let starts = starts.and(boot.id);
    let path = path.to_path_buf();
    let mut keeper = Keeper { path: path.clone(), identity, boot, memory, starts, part: asked };
    keeper.begin(disk)?;
    Ok(ClaimedDirectory { path, identity, boot, starts, made, mended, keeper, _lock: lock })
}

impl ClaimedDirectory {
    /// Tells the part that holds the data of this start and of its end.
    pub fn keeper(&self) -> Keeper {
        self.keeper.clone()
    }

    /// Goes on with what a keeper has written.
    pub fn take(&mut self, keeper: Keeper) {
        self.boot = keeper.boot;
        self.keeper = keeper;
    }

    /// A note about the start, for people.
    pub fn note(&self) -> Option<String> {
        let mended = self.mended.as_ref()?;
        let path = mended.display();
        Some(format!("{path} was damaged or missing, and was made anew from its second copy"))
    }

    /// Takes back the files that [`claim`] made of an empty directory: for a server that is not allowed to
    /// begin. Blocks.
    pub fn forget(disk: &dyn Disk, path: &Path, made: bool) -> io::Result<()> {
        for name in [NAME, SECOND_NAME, LOCK_NAME] {
            disk.remove_file(&path.join(name))?;
        }
        disk.sync_directory(path)?;
        if made { disk.remove_directory(path) } else { Ok(()) }
    }
}

/// The owner of a directory, by its superblock; None where it has none. Nothing is locked or changed.
pub fn look(disk: &dyn Disk, path: &Path) -> Result<Option<(ClusterId, ServerId)>, ClaimError> {
    Ok(read(disk, path)?.map(|found| (found.cluster, found.server)))
}

/// A directory that no other process uses for as long as this lives. It is read only.
pub struct HeldDirectory {
    pub identity: Identity,
    /// As the next start would find it.
    pub boot: Boot,
    _lock: Arc<dyn File>,
}

/// Locks a directory for as long as the file is kept; [`ClaimError::InUse`] where another process has it. Blocks for the disk only.
pub(crate) fn lock_directory(disk: &dyn Disk, path: &Path) -> Result<Arc<dyn File>, ClaimError> {
    let lock_path = path.join(LOCK_NAME);
    let lock = disk
        .open(&lock_path, Open::Create)
        .map_err(|cause| ClaimError::io("open", &lock_path, cause))?;
    lock.lock().map_err(|cause| match cause.kind() {
        io::ErrorKind::WouldBlock => ClaimError::InUse { path: path.to_path_buf() },
        _ => ClaimError::io("lock", &lock_path, cause),
    })?;
    Ok(lock)
}

/// Locks a directory to read it; None where it has no superblock. Counts no start. Blocks.
pub fn hold(
    disk: &dyn Disk,
    path: &Path,
    role: Role,
    random: u64,
) -> Result<Option<HeldDirectory>, ClaimError> {
    disk.hold(path).map_err(|cause| ClaimError::io("use", path, cause))?;
    let Some(found) = read(disk, path)? else { return Ok(None) };
    let (cluster, server) = (found.cluster, found.server);
    let identity = Identity { cluster, server, role };
    check(path, &found, identity)?;
    let lock_path = path.join(LOCK_NAME);
    let lock = lock_directory(disk, path)?;
    let memory = disk.memory_of(&lock_path).unwrap_or(0);
    // A server may have started and ended before the lock was taken.
    let Some(found) = read(disk, path)? else { return Ok(None) };
    let Boot { counter, era, store, history, .. } = found.boot;
    let counter = counter + 1;
    let id = (counter << 32 | random >> 32).max(1);
    let era = if memory != 0 && memory == found.memory { era } else { id };
    let boot = Boot { counter, id, era, store, history };
    Ok(Some(HeldDirectory { identity, boot, _lock: lock }))
}

struct Found {
    cluster: ClusterId,
    server: ServerId,
    role: u32,
    boot: Boot,
    /// The value of [`Disk::memory_of`] at that start, or 0.
    memory: u128,
    starts: Starts,
    /// The last start or end of which the part that holds the data was told; 0 where of none.
    part: u64,
}

impl Found {
    fn is_same_store(&self, other: &Found) -> bool {
        self.cluster == other.cluster
            && self.server == other.server
            && self.role == other.role
            && self.boot.store == other.boot.store
    }
}

fn read(disk: &dyn Disk, directory: &Path) -> Result<Option<Box<Found>>, ClaimError> {
    Ok(copies::read(disk, directory)?.found)
}

/// Why bytes are no superblock for this program.
#[derive(Debug, PartialEq, Eq)]
enum Unreadable {
    Damaged,
    Newer(u32),
}

fn parse(bytes: &[u8]) -> Result<Found, Unreadable> {
    if bytes.len() != BYTES || &bytes[..8] != MAGIC {
        return Err(Unreadable::Damaged);
    }
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let wide = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    let wider = |at: usize| (u128::from(wide(at + 8)) << 64) | u128::from(wide(at));
    if crc_of(bytes) != number(12) {
        return Err(Unreadable::Damaged);
    }
    // The checksum holds in every format, so this number can be believed.
    if number(8) > HISTORY_VERSION {
        return Err(Unreadable::Newer(number(8)));
    }
    let store = wider(56);
    let history = if number(8) == HISTORY_VERSION { wider(HISTORY_AT) } else { store };
    Ok(Found {
        cluster: ClusterId(wider(16)),
        server: ServerId(number(32)),
        role: number(36),
        boot: Boot { counter: wide(40), id: wide(48), era: wide(72), store, history },
        memory: wider(80),
        starts: Starts::decode(
            wide(48),
            bytes[STARTS_AT..][..starts::BYTES].try_into().expect("so many bytes"),
        ),
        part: wide(PART_AT),
    })
}

/// For fuzzers, see [`crate::decoders`]: whether these bytes, with a checksum that fits, are read.
pub(crate) fn accepts(bytes: &mut [u8]) -> bool {
    if bytes.len() >= 16 {
        let crc = crc_of(bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    }
    parse(bytes).is_ok()
}

fn crc_of(bytes: &[u8]) -> u32 {
    checksum::append(checksum::crc32c(&bytes[..12]), &bytes[16..])
}

fn check(directory: &Path, found: &Found, wanted: Identity) -> Result<(), ClaimError> {
    let path = directory.to_path_buf();
    if found.cluster != wanted.cluster {
        let (found, wanted) = (found.cluster, wanted.cluster);
        return Err(ClaimError::OtherCluster { path, found, wanted });
    }
    if found.role != wanted.role.number() {
        let found = Role::name(found.role);
        let wanted = Role::name(wanted.role.number());
        return Err(ClaimError::OtherRole { path, found, wanted });
    }
    if found.server != wanted.server {
        let (found, wanted) = (found.server, wanted.server);
        return Err(ClaimError::OtherServer { path, found, wanted });
    }
    Ok(())
}

fn check_empty(
    disk: &dyn Disk,
    path: &Path,
    server: ServerId,
    expect: Expect,
) -> Result<(), ClaimError> {
    let names = match disk.list(path) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Vec::new(),
        names => names.map_err(|cause| ClaimError::io("list", path, cause))?,
    };
    // A restore notes that it began before the directory gets its owner. Every new file system of the ext family comes with lost+found.
    let ours = [LOCK_NAME, NEW_NAME, UNFINISHED_NAME, "lost+found"];
    if let Some((name, _)) = names.iter().find(|(name, _)| !ours.iter().any(|our| name == our)) {
        let found = name.to_string_lossy().into_owned();
        return Err(ClaimError::NotEmpty { path: path.to_path_buf(), found });
    }
    match expect {
        Expect::Any | Expect::Replace => Ok(()),
        Expect::Existing => Err(ClaimError::Emptied { path: path.to_path_buf(), server }),
    }
}

/// Makes the directory's own name durable, and those of the directories on the way to it.
fn sync_ancestors(disk: &dyn Disk, path: &Path) -> Result<(), ClaimError> {
    for parent in path.ancestors().skip(1) {
        match disk.sync_directory(parent) {
            // A directory that this process may not even open, it has not made either.
            Err(cause) if cause.kind() == io::ErrorKind::PermissionDenied => (),
            result => result.map_err(|cause| ClaimError::io("sync", parent, cause))?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
