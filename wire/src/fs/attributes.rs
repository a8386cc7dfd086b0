//! The attributes of an inode, as clients see them.

use serde::{Deserialize, Serialize};

use super::layout::Layout;
use super::value::Timestamp;

/// The type of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum InodeKind {
    File,
    Directory,
    Symlink,
    Fifo,
    Socket,
    CharacterDevice,
    BlockDevice,
}

/// Attributes of an inode, as `stat` reports them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Attributes {
    pub inode: u64,
    /// Grows each time the file's bytes are thrown away (truncate to 0): names the objects.
    pub object_generation: u32,
    pub kind: InodeKind,
    /// Permission bits with setuid, setgid and sticky: 12 bits.
    pub mode: u16,
    pub link_count: u32,
    pub user: u32,
    pub group: u32,
    /// Device number of device nodes, as `makedev` makes it.
    pub device: u32,
    /// Bytes. For directories: number of entries.
    pub size: u64,
    /// Allocated 512-byte units.
    pub blocks: u64,
    pub accessed: Timestamp,
    pub modified: Timestamp,
    pub changed: Timestamp,
    pub created: Timestamp,
    /// Whether it has extended attributes.
    pub has_xattrs: bool,
    /// Grows with every change of the inode; lets a client order two views of it.
    pub version: u64,
    /// The file has capabilities (the attribute `security.capability`), which fall before the next
    /// change of its bytes.
    pub capable: bool,
}

/// The place of a file's bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Content {
    /// In the inode row itself, followed by zeros up to the size. The reply that says so carries the bytes, if the
    /// request asked for them.
    Inline,
    /// In stripe objects on data servers.
    Striped(Layout),
}
