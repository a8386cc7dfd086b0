//! Requests to data servers and their replies.
//!
//! Bulk moves at the server's initiative: a write names a region of the client from which
//! the server gets the bytes, a read one into which it puts them. Small pieces travel inside the
//! messages instead. Every 4 KiB block travels with its CRC32C, computed where the bytes come from
//! and checked where they end.

use serde::{Deserialize, Serialize};

use super::group::Group;
use super::status::DataStatus;
use super::value::{Bytes, Errno};

/// Bytes that one checksum covers; blocks begin at multiples of it within a stripe.
pub const BLOCK_BYTES: u32 = 4096;
/// Longest bytes of one read or write, over all its pieces.
pub const TRANSFER_BYTES_MAX: u32 = 8 << 20;
/// Most pieces of one request.
pub const PIECES_MAX: usize = 256;
/// Most objects of one `Examine`.
pub const EXAMINED_MAX: usize = 512;
/// Most groups of one request.
pub const GROUPS_MAX: usize = 1024;
/// Bytes up to which a write travels inside its request, and a read inside its reply.
pub const EMBEDDED_BYTES_MAX: u32 = 16 * 1024;

/// A file's objects, and the right to touch them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct FileId {
    pub inode: u64,
    /// `Attributes::object_generation`.
    pub generation: u32,
    /// The write epoch of the lease; older than what the server has seen of this file: `ESTALE`.
    pub epoch: u32,
}

/// A range within one stripe object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectRange {
    pub stripe: u32,
    /// The stripe's, by the file's layout. A server that is not in it refuses the call.
    pub group: Group,
    pub offset: u32,
    pub len: u32,
}

/// A region of the client for the server to get from or put to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Bulk {
    pub key_slot: u64,
    pub key_secret: u64,
    /// The offset of the first byte of the first piece; the pieces follow each other from there.
    pub offset: u64,
}

/// The source of the bytes of a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Source<'a> {
    Embedded(#[serde(borrow)] Bytes<'a>),
    Bulk(Bulk),
}

/// A request to a data server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataRequest<'a> {
    Write {
        file: FileId,
        pieces: Vec<ObjectRange>,
        #[serde(borrow)]
        source: Source<'a>,
        /// CRC32C of each piece's run of bytes within each block it touches, in order, four bytes
        /// each, little endian.
        #[serde(borrow)]
        checksums: Bytes<'a>,
    },
    Read {
        file: FileId,
        pieces: Vec<ObjectRange>,
        /// None: the bytes come in the reply (at most `EMBEDDED_BYTES_MAX`).
        bulk: Option<Bulk>,
        /// The server compares the bytes with their checksums, and names the object where they
        /// differ. Otherwise that is left to the reader, who has to do it in any case.
        verify: bool,
    },
    /// Throws away the bytes of a range: they read as zeros, and the room of whole blocks is free.
    /// Objects without any bytes left keep their names.
    Punch { file: FileId, pieces: Vec<ObjectRange> },
    /// Cuts the file: objects from `stripe` on are removed, the one before is cut at `offset` (none
    /// where `offset` is 0). Raises the epoch. `groups`: from the orderer of these to their other servers, about objects of
    /// these only; else empty.
    Truncate { file: FileId, stripe: u32, offset: u32, groups: Vec<Group> },
    /// Makes everything durable that was written to these files before. `groups`: those of several members that were written;
    /// the orderer has the other members do the same. At most `GROUPS_MAX`.
    Sync { files: Vec<FileId>, groups: Vec<Group> },
    /// From the metadata server: the inode is gone up to this object generation; a tombstone stays.
    Reap { inodes: Vec<(u64, u32)> },
    /// From the metadata server: calls of this session with an epoch below are refused from now on.
    Fence { session: u64, epoch: u32 },
    /// From the orderer of the ranges' groups to another server of the groups: it has done this change. In a session of the two
    /// servers.
    Copy {
        file: FileId,
        order: Order,
        pieces: Vec<ObjectRange>,
        /// The orderer's; None: the ranges read as zeros.
        #[serde(borrow)]
        source: Option<Source<'a>>,
        #[serde(borrow)]
        checksums: Bytes<'a>,
    },
    /// From a server that begins to order these groups, at most `GROUPS_MAX`: the open writes there.
    Settle { groups: Vec<Group> },
    /// From the orderer of an object's group: the checksums of the object's blocks. `read`: the server reads the blocks, and those
    /// that do not match their checksums count as unknown.
    Table { object: ObjectName, group: Group, read: bool },
    /// Objects after `after`, for `check`.
    List { after: Option<(u64, u32, u32)>, bytes_max: u32 },
    /// Room and counters.
    Status,
    /// Whether these objects are there, and with `read` whether every block has its checksum; at
    /// most `EXAMINED_MAX`. The reply may stop early, after at least one.
    Examine { objects: Vec<ObjectName>, read: bool },
    // Version 11. Later versions add their kinds behind these: docs/design/128-upgrade.md.
    /// From the orderer of groups to another member: changes of theirs with smaller numbers are at all members. At most
    /// `GROUPS_MAX`.
    Ended { ends: Vec<End> },
    /// From a member to the orderer of an object's group: it cannot read the object. The orderer writes it there again.
    Unreadable { object: ObjectName, group: Group },
    /// From a member to the orderer of a group: the file is read in this write epoch. The orderer refuses older ones from then on.
    Seen { file: FileId, group: Group },
    /// From an administrator who knows the map of this epoch: the bytes of objects of groups that the server is not in, some objects
    /// after `after` at a time, are told, and with `remove` thrown away.
    Clean {
        map: u32,
        after: Option<(u64, u32, u32)>,
        remove: bool,
        /// Also where the metadata were restored from a dump while this store had bytes.
        restored: bool,
    },
    /// From an administrator: some objects after `after` are read, compared with their checksums and other copies, and mended. The
    /// server goes on to the next object as long as it has read fewer bytes than this.
    Scrub { after: Option<(u64, u32, u32)>, bytes_max: u64 },
}

/// Members of this version and later ones serve reads of groups that they do not order.
pub const READS_VERSION: u16 = 11;

/// The changes of a group that are at all members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub group: Group,
    /// All changes of smaller numbers.
    pub done: u64,
}

/// The place of a change in the order of its sender's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Order {
    pub number: u64,
    /// Changes of smaller numbers are at all members.
    pub done: u64,
}

/// One stripe of one generation of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectName {
    pub inode: u64,
    pub generation: u32,
    pub stripe: u32,
}

/// The condition of an object, as `Examine` found it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Condition {
    Absent,
    /// Bytes in written blocks.
    Present {
        bytes: u64,
    },
    /// Something other than this object lies under its name.
    Damaged,
    /// The first block that does not match its checksum.
    Corrupt {
        block: u32,
    },
    /// The disk does not give it.
    Unreadable,
}

/// The result for one piece of a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Found {
    /// The object exists: the bytes are there, zeros where nothing was written.
    Present,
    /// There is no such object: the client's written-map says whether these are zeros or a loss.
    Absent,
}

/// One object of `List`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectInfo {
    pub inode: u64,
    pub generation: u32,
    pub stripe: u32,
    pub bytes: u64,
    /// None where the server was not told.
    pub group: Option<Group>,
}

/// The reply to a [`DataRequest`] that succeeded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum DataReply<'a> {
    Done,
    /// The bytes survive the death of the server; `Sync` makes them survive a power loss as long as
    /// the server's boot id (in the head) is still the same then.
    Written,
    Read {
        found: Vec<Found>,
        /// Embedded: the pieces' bytes, one after the other. Empty with bulk.
        #[serde(borrow)]
        bytes: Bytes<'a>,
        /// As in `Write`.
        #[serde(borrow)]
        checksums: Bytes<'a>,
    },
    Objects {
        objects: Vec<ObjectInfo>,
        end: bool,
    },
    Status(#[serde(borrow)] DataStatus<'a>),
    /// In the order in which they were asked for.
    Examined {
        conditions: Vec<Condition>,
    },
    /// Objects with writes that this server did and did not hear to be at all members; may have too many.
    Settled {
        objects: Vec<ObjectName>,
    },
    /// Four bytes for each block up to the last written one, little endian: 0 for a hole, else a form of its CRC32C. None: there is
    /// no such object.
    Table {
        #[serde(borrow)]
        entries: Option<Bytes<'a>>,
    },
    /// Stripes of the request whose objects are there, with no bytes left in them.
    Punched {
        empty: Vec<u32>,
    },
    // Version 11.
    /// The result of `Clean` for some objects.
    Cleaned(Cleaned),
    /// The result of `Scrub` for some objects.
    Scrubbed(Scrubbed),
}

/// The result of `Scrub` for the objects that it looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Scrubbed {
    /// All that were looked at.
    pub seen: u64,
    /// Bytes in written blocks of those that this server compares. Their orderer compares the others.
    pub bytes: u64,
    /// Blocks that were written again, here and at other members.
    pub mended: u64,
    /// Damaged blocks that no member has.
    pub lost: u64,
    /// Objects that could not be compared now: a member is away, or their header is damaged.
    pub passed: u64,
    /// The last one that was looked at; None: there are no further ones.
    pub after: Option<(u64, u32, u32)>,
}

/// The result of `Clean` for the objects that it looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Cleaned {
    /// All that were looked at.
    pub seen: u64,
    /// Of groups that the server is not in.
    pub objects: u64,
    /// Bytes in written blocks of these.
    pub bytes: u64,
    /// Objects that have bytes, and of which nobody knows the group: they stay.
    pub unclear: u64,
    /// The last one that was looked at; None: there are no further ones.
    pub after: Option<(u64, u32, u32)>,
}

/// The body of a reply of the data service.
pub type DataResult<'a> = Result<DataReply<'a>, Errno>;
