//! The operations that a copy needs of the place that it reads from or writes to: the host's files, or a
//! cluster's.

use std::ops::Range;

use ropewalk_base::pool::PoolBuffer;
use ropewalk_client::{InodeKind, Timestamp};

/// The metadata that a copy needs of an entry, and keeps of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    pub kind: InodeKind,
    /// Permission bits with setuid, setgid and sticky.
    pub mode: u16,
    pub user: u32,
    pub group: u32,
    /// Bytes of a file.
    pub size: u64,
    /// Whether fewer bytes are allocated than the size says: it has holes.
    pub sparse: bool,
    pub device: u32,
    pub accessed: Timestamp,
    pub modified: Timestamp,
    /// Names the inode within its place: the volume, and the number there.
    pub volume: u64,
    pub inode: u64,
    /// The number of names of the inode.
    pub links: u32,
}

/// Extended attributes of an entry.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Extended {
    /// Names and values of those of users, sorted.
    pub users: Vec<(Vec<u8>, Vec<u8>)>,
    /// Names of all others: they mean something to one system only, and are not copied.
    pub others: Vec<Vec<u8>>,
}

/// The prefix of attribute names that belong to users.
const USERS: &[u8] = b"user.";

impl Extended {
    /// The names that belong to users; the others are kept aside. `names`: each ended by a zero byte.
    pub fn sort(&mut self, names: &[u8]) -> Vec<Vec<u8>> {
        let names = names.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        let (mut users, others): (Vec<_>, Vec<_>) =
            names.map(<[u8]>::to_vec).partition(|name| name.starts_with(USERS));
        self.others = others;
        users.sort();
        users
    }
}

/// An entry to be made that has no content to be copied.
#[derive(Debug, Clone, Copy)]
pub enum Made<'a> {
    Directory,
    Link(&'a [u8]),
    /// A fifo, socket or device node.
    Special(InodeKind, u32),
}

/// The attributes to be set of an entry that was copied.
#[derive(Debug, Clone, Copy)]
pub struct Dress {
    /// Permission bits.
    pub mode: Option<u16>,
    /// Owner and group, if the user may give files away.
    pub owner: Option<(u32, u32)>,
    /// The times of its last access and its last change.
    pub times: Option<(Timestamp, Timestamp)>,
}

impl Dress {
    /// Whether nothing is to be set.
    pub fn is_empty(&self) -> bool {
        self.mode.is_none() && self.owner.is_none() && self.times.is_none()
    }
}

/// The contents of a directory, as far as they can be told.
#[derive(Debug, Default)]
pub struct Listing {
    /// Names and kinds of its entries, in any order.
    pub entries: Vec<(Vec<u8>, Meta)>,
    /// The errors for the other entries. Each error names its entry, or the directory if the entry cannot be
    /// told.
    pub failures: Vec<anyhow::Error>,
}

/// A place to copy from or to. Errors name the path and the cause.
pub trait End {
    type File;

    /// Whether a server of this place left calls unanswered: the next failure has that reason, too.
    fn is_silent(&self) -> bool {
        false
    }

    /// A path as people write it.
    fn shown(&self, path: &[u8]) -> String;

    /// The metadata of the entry at a path; `None` if there is none.
    async fn look(&self, path: &[u8], follow: bool) -> anyhow::Result<Option<Meta>>;

    /// The contents of a directory. An error if nothing of it can be told.
    async fn list(&self, path: &[u8]) -> anyhow::Result<Listing>;

    /// The target of a symbolic link.
    async fn read_link(&self, path: &[u8]) -> anyhow::Result<Vec<u8>>;

    /// Opens a file for reading.
    async fn open(&self, path: &[u8]) -> anyhow::Result<Self::File>;

    /// Makes a file, or empties the one that is there, and opens it for writing.
    async fn create(&self, path: &[u8], mode: u16) -> anyhow::Result<Self::File>;

    /// Makes something else than a file; false where this user may make no such thing.
    async fn make(&self, path: &[u8], made: Made<'_>, mode: u16) -> anyhow::Result<bool>;

    /// The first range of written bytes that ends behind `offset`; `None` where there is none.
    async fn data(&self, file: &Self::File, offset: u64) -> anyhow::Result<Option<Range<u64>>>;

    /// Reads up to the buffer's length; less only at the end of the file.
    async fn read(
        &self,
        file: &Self::File,
        offset: u64,
        buffer: PoolBuffer,
    ) -> anyhow::Result<(PoolBuffer, usize)>;

    /// Writes the first `len` bytes of the buffer.
    async fn write(
        &self,
        file: &Self::File,
        offset: u64,
        buffer: PoolBuffer,
        len: usize,
    ) -> anyhow::Result<()>;

    /// Ends the writing of a file: it is `size` bytes long, and what was written outlives this
    /// process.
    async fn finish(&self, file: &Self::File, size: u64) -> anyhow::Result<()>;

    /// Gives an inode another name; false where the place knows no such thing.
    async fn link(&self, original: &[u8], path: &[u8]) -> anyhow::Result<bool>;

    /// The extended attributes of an entry; a link is not followed.
    async fn extended(&self, path: &[u8]) -> anyhow::Result<Extended>;

    /// Sets an extended attribute; false where the place does not take it.
    async fn set_extended(&self, path: &[u8], name: &[u8], value: &[u8]) -> anyhow::Result<bool>;

    /// Sets attributes of an entry that was made. `kind`: the kind of the copied entry; only a link is not
    /// followed. False if owner and group were refused.
    async fn dress(&self, path: &[u8], kind: InodeKind, dress: Dress) -> anyhow::Result<bool>;
}
