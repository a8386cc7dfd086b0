//! The errors of a store's operations.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use ropewalk_base::error::Class;

use crate::host_disk::cause_at;

/// The error of a store's operation. Cloning is cheap: one error answers many waiters.
#[derive(Debug, Clone, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// A call to the disk failed.
    #[error("{doing} {}: {}", path.display(), cause_at(path, cause))]
    Io { doing: &'static str, path: PathBuf, cause: Arc<io::Error> },
    /// An earlier error stopped the store for good: the set of durable bytes is no longer known.
    #[error("{0}; since then the server accepts no changes")]
    Stopped(Arc<StoreError>),
    /// The file system has no room for data that must be kept.
    #[error("{what} has no room in {}: free {} there", path.display(), bytes(*needed))]
    Full { path: PathBuf, what: &'static str, needed: u64 },
    /// Bytes on the disk are not those that were written.
    #[error("{} is damaged: {what}", path.display())]
    Damaged { path: PathBuf, what: String },
    /// Records that were durable are missing from the journal.
    #[error(
        "the journal in {} lost records {from} to {through}, which were written: restore the \
         directory of the metadata from a backup, or start with --accept-loss, which goes back to \
         the state after record {} and loses all later changes",
        path.display(), from - 1
    )]
    Lost { path: PathBuf, from: u64, through: u64 },
    /// Somebody asked for journal records that were already cut off.
    #[error("journal records from {asked} are gone; the oldest kept is {oldest}: copy the index")]
    Cut { asked: u64, oldest: u64 },
    /// A store cannot go back behind rows of its index.
    #[error(
        "{} holds rows of records up to {holds}, but the others agree on records up to {through} only: \
         copy the store of another server",
        path.display()
    )]
    Beyond { path: PathBuf, holds: u64, through: u64 },
    /// A copy of another server's store did not come to its end.
    #[error(
        "{} holds an unfinished copy of another server's metadata: start this server beside that one",
        path.display()
    )]
    Unfinished { path: PathBuf },
    /// A restore from a dump did not come to its end.
    #[error(
        "{} holds an unfinished restore, which is no metadata store: run 'ropewalk meta restore' once more, \
         or empty the directory",
        path.display()
    )]
    HalfRestored { path: PathBuf },
    /// A record of another store is not the next one here.
    #[error("record {got} came from another server, but record {next} is next: ask for that one")]
    Gap { next: u64, got: u64 },
    /// A record of another store makes no sense.
    #[error("record {position} from another server holds no batch: both have to run one version")]
    Senseless { position: u64 },
    /// A key, value or batch is over its limit.
    #[error("{what} has {bytes} bytes, the limit is {limit}")]
    TooLarge { what: &'static str, bytes: usize, limit: usize },
    /// Too much waits for the disk: a caller must wait for `ready` before it commits.
    #[error("too many changes wait for a checkpoint: wait until the store is ready")]
    Busy,
    /// The index engine failed.
    #[error("the index {}: {cause}", path.display())]
    Index { path: PathBuf, cause: Arc<str> },
    /// The node is going down and drops its work.
    #[error("the server is shutting down")]
    ShuttingDown,
}

/// A number of bytes as people read it, rounded up.
pub fn bytes(count: u64) -> String {
    match count {
        0..1024 => format!("{count} bytes"),
        1024..1_048_576 => format!("{} KiB", count.div_ceil(1024)),
        _ => format!("{} MiB", count.div_ceil(1 << 20)),
    }
}

impl StoreError {
    /// An error of a call to the disk.
    pub fn io(doing: &'static str, path: &Path, cause: io::Error) -> StoreError {
        StoreError::Io { doing, path: path.to_path_buf(), cause: Arc::new(cause) }
    }

    /// Bytes of the index at `offset` are not those that were written. Of the index there is one copy.
    pub fn damaged_index(path: PathBuf, offset: Option<u64>) -> StoreError {
        let place = match offset {
            Some(at) => format!("the block at byte {at} does not match its checksum"),
            None => "the engine cannot read it".to_owned(),
        };
        let what = format!(
            "{place}, and there is no second copy of its rows: restore the directory of the \
             metadata from a backup"
        );
        StoreError::Damaged { path, what }
    }

    /// The class by which recovery is decided.
    pub fn class(&self) -> Class {
        match self {
            StoreError::Io { cause, .. } => match cause.kind() {
                io::ErrorKind::StorageFull
                | io::ErrorKind::QuotaExceeded
                | io::ErrorKind::PermissionDenied
                | io::ErrorKind::ReadOnlyFilesystem
                | io::ErrorKind::NotFound
                | io::ErrorKind::WouldBlock => Class::Node,
                _ => Class::Data,
            },
            StoreError::Stopped(cause) => cause.class(),
            StoreError::Full { .. } | StoreError::Busy | StoreError::ShuttingDown => Class::Node,
            StoreError::Damaged { .. }
            | StoreError::Lost { .. }
            | StoreError::Index { .. }
            | StoreError::Beyond { .. }
            | StoreError::Unfinished { .. }
            | StoreError::HalfRestored { .. } => Class::Data,
            StoreError::Cut { .. }
            | StoreError::Gap { .. }
            | StoreError::Senseless { .. }
            | StoreError::TooLarge { .. } => Class::Caller,
        }
    }

    /// The same error as everybody after the first sees it.
    pub fn stopped(&self) -> StoreError {
        match self {
            StoreError::Stopped(_) => self.clone(),
            other => StoreError::Stopped(Arc::new(other.clone())),
        }
    }

    /// Whether the cause is a full file system.
    pub fn is_full(&self) -> bool {
        match self {
            StoreError::Full { .. } => true,
            StoreError::Io { cause, .. } => {
                matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            StoreError::Stopped(cause) => cause.is_full(),
            _ => false,
        }
    }
}
