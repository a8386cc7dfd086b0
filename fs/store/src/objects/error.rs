//! The errors of the object store: each variant names the thing, the cause and the remedy.

use std::io;

use ropewalk_base::error::Class;

use super::ObjectId;
use crate::host_disk::system_number;

/// Why a call of the object store failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ObjectError {
    /// The bytes on disk are not those that were acknowledged. Only a full overwrite heals it.
    #[error("object {object}, block {block}: the bytes on disk do not match their checksum")]
    Corrupt { object: ObjectId, block: u32 },
    /// The file under an object's name is not that object's.
    #[error("object {object}: its header is damaged; remove the file or restore it")]
    Header { object: ObjectId },
    /// The object was there, and its file is not: its bytes are lost, and nothing may take its place.
    #[error(
        "object {object}: its file is gone; restore it, or remove the file that it is a part of"
    )]
    Gone { object: ObjectId },
    /// The file under an object's name is the object's, of an earlier day.
    #[error(
        "object {object}: its file is an older copy than the last one; restore that, or remove the \
         file that it is a part of"
    )]
    Older { object: ObjectId },
    /// The caller's bytes do not match the caller's checksum: damaged on the way; send again.
    #[error("object {object}, block {block}: the bytes to write do not match their checksum")]
    Checksum { object: ObjectId, block: u32 },
    /// The range or the checksum count makes no sense; nothing changed.
    #[error("object {object}: {length} bytes at {offset} are not a valid range (limit {limit})")]
    Range { object: ObjectId, offset: u64, length: u64, limit: u64 },
    /// The file was removed; a delayed write must not bring it back.
    #[error("object {object}: its file was removed")]
    Removed { object: ObjectId },
    /// Nobody can use the objects any more, but files of theirs cannot be removed.
    #[error(
        "inode {inode}: it is removed, but files of its objects are not: {source}; they take room until \
         'ropewalk check --repair' removes them, a day later"
    )]
    Left { inode: u64, source: io::Error },
    /// The session's epoch lies below its fence.
    #[error("session {session}: epoch {epoch} is fenced, {minimum} is the least allowed")]
    Fenced { session: u64, epoch: u32, minimum: u32 },
    /// The device is full. Nothing that was acknowledged is lost; free room and try again.
    #[error("object {object}: no space left on the device, or no inode (df, df -i)")]
    NoSpace { object: ObjectId },
    /// The operating system refused.
    #[error("object {object}: {doing}: {source}")]
    Io { object: ObjectId, doing: &'static str, source: io::Error },
    /// Bytes of this object may not be durable; they must be written again before a sync succeeds.
    #[error("object {object}: a sync failed, its last writes must be repeated")]
    SyncFailed { object: ObjectId },
    /// The intent log cannot be written or synced: the store refuses changes until a restart.
    #[error("the intent log in {directory} failed ({cause}): check the device and restart")]
    LogFailed { directory: String, cause: String },
    /// Something of the store as a whole failed.
    #[error("object store {directory}: {doing}: {source}")]
    Store { directory: String, doing: &'static str, source: io::Error },
    /// The directory holds something that this version cannot use.
    #[error("object store {directory}: {reason}")]
    Format { directory: String, reason: String },
    /// The store was closed while the call waited.
    #[error("the object store is closed")]
    Closed,
}

impl ObjectError {
    /// The largest thing that is hurt.
    pub fn class(&self) -> Class {
        match self {
            ObjectError::Corrupt { .. }
            | ObjectError::Header { .. }
            | ObjectError::Gone { .. }
            | ObjectError::Older { .. }
            | ObjectError::SyncFailed { .. } => Class::Data,
            ObjectError::Range { .. } | ObjectError::Removed { .. } => Class::Caller,
            ObjectError::Checksum { .. }
            | ObjectError::Fenced { .. }
            | ObjectError::NoSpace { .. }
            | ObjectError::Left { .. }
            | ObjectError::Io { .. } => Class::Operation,
            ObjectError::LogFailed { .. }
            | ObjectError::Store { .. }
            | ObjectError::Format { .. }
            | ObjectError::Closed => Class::Node,
        }
    }
}

/// Whether the device was full.
pub(super) fn is_full(error: &io::Error) -> bool {
    const ENOSPC: i32 = 28;
    const EDQUOT: i32 = 122;
    matches!(system_number(error), Some(ENOSPC | EDQUOT))
        || error.kind() == io::ErrorKind::StorageFull
}

/// Whether a read met bytes that the device, or the file system's own checksum, does not give back. To be
/// asked of reads alone: after a write it says nothing about the bytes on the device.
pub(super) fn is_unreadable(error: &io::Error) -> bool {
    const EIO: i32 = 5;
    /// The errors of block devices for a bad medium and for bytes whose protection does not fit.
    const ENODATA: i32 = 61;
    const EILSEQ: i32 = 84;
    /// The errors of file systems for damage to their own structures.
    const EBADMSG: i32 = 74;
    const EUCLEAN: i32 = 117;
    matches!(system_number(error), Some(EIO | ENODATA | EILSEQ | EBADMSG | EUCLEAN))
}

/// Whether the system lacked something that it may have again in a moment.
pub(super) fn is_for_now(error: &io::Error) -> bool {
    const EINTR: i32 = 4;
    const ENOMEM: i32 = 12;
    const ENFILE: i32 = 23;
    const EMFILE: i32 = 24;
    is_full(error) || matches!(system_number(error), Some(EINTR | ENOMEM | ENFILE | EMFILE))
}

/// An operating system error about one object.
pub(super) fn about(object: ObjectId, doing: &'static str) -> impl Fn(io::Error) -> ObjectError {
    move |source| {
        if is_full(&source) {
            ObjectError::NoSpace { object }
        } else {
            ObjectError::Io { object, doing, source }
        }
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_base::disk::{Disk, Open};

    use super::*;
    use crate::host_disk::HostDisk;

    #[test]
    fn the_number_of_an_error_is_found_behind_call_and_path() {
        const EISDIR: i32 = 21;
        let directory = tempfile::tempdir().unwrap();
        let error = HostDisk.open(directory.path(), Open::Write).err().expect("no file");
        assert_eq!((error.raw_os_error(), system_number(&error)), (None, Some(EISDIR)));
        assert!(error.to_string().contains(&directory.path().display().to_string()), "{error}");
        // A caller that prints an error with its sources prints the system's own once.
        assert!(std::error::Error::source(&error).is_none());
        assert!(!is_unreadable(&error) && is_unreadable(&io::Error::from_raw_os_error(5)));
    }
}
