//! Answers of a file system, as types of its own, and their conversion into the kernel's structures.

mod data;
mod directory;

pub use data::Data;
pub use directory::{DirectoryReply, EntryKind};

use std::time::Duration;

use crate::abi::flags::opened;
use crate::abi::replies as abi;
use crate::decode::Timestamp;

/// The attributes of an inode that the kernel may remember.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Attributes {
    pub node: u64,
    /// Bytes.
    pub size: u64,
    /// Units of 512 bytes that are allocated.
    pub blocks: u64,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    /// Kind and permissions, as `st_mode`.
    pub mode: u32,
    pub links: u32,
    pub uid: u32,
    pub gid: u32,
    /// Of device files, as `st_rdev`.
    pub device: u32,
    /// The preferred size of requests, in bytes.
    pub block_bytes: u32,
}

impl Attributes {
    /// Whether it is a directory.
    pub fn is_directory(&self) -> bool {
        self.mode & libc::S_IFMT == libc::S_IFDIR
    }

    pub(crate) fn to_abi(self) -> abi::Attr {
        abi::Attr {
            node: self.node,
            size: self.size,
            blocks: self.blocks,
            atime: self.atime.seconds as u64,
            mtime: self.mtime.seconds as u64,
            ctime: self.ctime.seconds as u64,
            atime_nanos: self.atime.nanos,
            mtime_nanos: self.mtime.nanos,
            ctime_nanos: self.ctime.nanos,
            mode: self.mode,
            links: self.links,
            uid: self.uid,
            gid: self.gid,
            device: self.device,
            block_bytes: self.block_bytes,
            flags: 0,
        }
    }
}

/// Attributes and how long the kernel may rely on them: as long as the lease behind them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AttributesReply {
    pub attributes: Attributes,
    pub valid: Duration,
}

impl AttributesReply {
    pub(crate) fn to_abi(self) -> abi::AttrOut {
        abi::AttrOut {
            valid: self.valid.as_secs(),
            valid_nanos: self.valid.subsec_nanos(),
            dummy: 0,
            attr: self.attributes.to_abi(),
        }
    }
}

/// A directory entry and the inode that it names.
///
/// Every entry in a reply counts as one lookup of its node, until the kernel forgets it.
/// An entry whose node is 0 says that the name does not exist, and how long that holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Entry {
    pub attributes: Attributes,
    /// The number that the kernel uses for the node from now on, if it is not the inode's own number; else 0.
    /// Two numbers of one inode are two inodes for the kernel. Programs see only the inode's own number.
    pub number: u64,
    /// Tells two inodes apart that had the same number at different times.
    pub generation: u64,
    pub attributes_valid: Duration,
    pub entry_valid: Duration,
}

impl Entry {
    /// The name does not exist, and that holds for so long.
    pub fn absent(valid: Duration) -> Entry {
        Entry { entry_valid: valid, ..Entry::default() }
    }

    /// The number that the kernel uses for the node.
    pub fn node(&self) -> u64 {
        if self.number == 0 { self.attributes.node } else { self.number }
    }

    pub(crate) fn to_abi(self) -> abi::EntryOut {
        abi::EntryOut {
            node: self.node(),
            generation: self.generation,
            entry_valid: self.entry_valid.as_secs(),
            attr_valid: self.attributes_valid.as_secs(),
            entry_valid_nanos: self.entry_valid.subsec_nanos(),
            attr_valid_nanos: self.attributes_valid.subsec_nanos(),
            attr: self.attributes.to_abi(),
        }
    }
}

/// An open file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Opened {
    /// Comes back with every request about this open file.
    pub handle: u64,
    /// Bypass the page cache: for files that several clients write.
    pub direct: bool,
    /// Keep cached pages from earlier opens: they are still covered by a lease.
    pub keep_cache: bool,
    /// Cache the listing of this directory.
    pub cache_directory: bool,
    /// Direct writes of one file may run side by side.
    pub parallel_direct_writes: bool,
    /// No FLUSH at close.
    pub no_flush: bool,
    /// The file has no position.
    pub stream: bool,
}

impl Opened {
    pub(crate) fn to_abi(self) -> abi::OpenOut {
        let bits = [
            (self.direct, opened::DIRECT_IO),
            (self.keep_cache, opened::KEEP_CACHE),
            (self.cache_directory, opened::CACHE_DIR),
            (self.parallel_direct_writes, opened::PARALLEL_DIRECT_WRITES),
            (self.no_flush, opened::NO_FLUSH),
            (self.stream, opened::STREAM | opened::NONSEEKABLE),
        ];
        let flags = bits.iter().filter(|(on, _)| *on).map(|(_, bit)| bit).sum();
        abi::OpenOut { handle: self.handle, flags, backing: 0 }
    }
}

/// The result of `statfs`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatFs {
    /// Units of `fragment_bytes`.
    pub blocks: u64,
    pub blocks_free: u64,
    pub blocks_available: u64,
    pub files: u64,
    pub files_free: u64,
    /// The preferred size of requests.
    pub block_bytes: u32,
    pub name_bytes_max: u32,
    pub fragment_bytes: u32,
}

impl StatFs {
    pub(crate) fn to_abi(self) -> abi::StatFsOut {
        abi::StatFsOut {
            blocks: self.blocks,
            blocks_free: self.blocks_free,
            blocks_available: self.blocks_available,
            files: self.files,
            files_free: self.files_free,
            block_bytes: self.block_bytes,
            name_bytes_max: self.name_bytes_max,
            fragment_bytes: self.fragment_bytes,
            ..abi::StatFsOut::default()
        }
    }
}

/// Attributes with the time of birth, for `statx`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StatxReply {
    pub attributes: Attributes,
    pub birth: Timestamp,
    pub valid: Duration,
}

impl StatxReply {
    pub(crate) fn to_abi(self) -> abi::StatxOut {
        let time =
            |at: Timestamp| abi::StatxTime { seconds: at.seconds, nanos: at.nanos, reserved: 0 };
        let attributes = self.attributes;
        abi::StatxOut {
            valid: self.valid.as_secs(),
            valid_nanos: self.valid.subsec_nanos(),
            body: abi::StatxBody {
                mask: libc::STATX_BASIC_STATS | libc::STATX_BTIME,
                block_bytes: attributes.block_bytes,
                links: attributes.links,
                uid: attributes.uid,
                gid: attributes.gid,
                mode: attributes.mode as u16,
                node: attributes.node,
                size: attributes.size,
                blocks: attributes.blocks,
                atime: time(attributes.atime),
                btime: time(self.birth),
                ctime: time(attributes.ctime),
                mtime: time(attributes.mtime),
                rdev_major: libc::major(attributes.device.into()),
                rdev_minor: libc::minor(attributes.device.into()),
                ..abi::StatxBody::default()
            },
            ..abi::StatxOut::default()
        }
    }
}

/// The answer to an ioctl.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IoctlReply {
    /// The return value of `ioctl`.
    pub result: i32,
    /// Bytes for the caller's argument; no more than the request allows.
    pub output: Vec<u8>,
}
