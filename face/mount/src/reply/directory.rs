//! The entries of a directory, packed as the kernel reads them.

use zerocopy::{FromBytes, IntoBytes};

use super::Entry;
use crate::abi::NAME_BYTES_MAX;
use crate::abi::replies::{DirectoryRecord, EntryOut};

/// The kind of inode that an entry names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    Unknown,
    Fifo,
    CharacterDevice,
    Directory,
    BlockDevice,
    File,
    SymbolicLink,
    Socket,
}

impl EntryKind {
    /// The kind in the upper bits of `st_mode`.
    pub fn of_mode(mode: u32) -> EntryKind {
        match mode & libc::S_IFMT {
            libc::S_IFIFO => EntryKind::Fifo,
            libc::S_IFCHR => EntryKind::CharacterDevice,
            libc::S_IFDIR => EntryKind::Directory,
            libc::S_IFBLK => EntryKind::BlockDevice,
            libc::S_IFREG => EntryKind::File,
            libc::S_IFLNK => EntryKind::SymbolicLink,
            libc::S_IFSOCK => EntryKind::Socket,
            _ => EntryKind::Unknown,
        }
    }

    fn number(self) -> u32 {
        u32::from(match self {
            EntryKind::Unknown => libc::DT_UNKNOWN,
            EntryKind::Fifo => libc::DT_FIFO,
            EntryKind::CharacterDevice => libc::DT_CHR,
            EntryKind::Directory => libc::DT_DIR,
            EntryKind::BlockDevice => libc::DT_BLK,
            EntryKind::File => libc::DT_REG,
            EntryKind::SymbolicLink => libc::DT_LNK,
            EntryKind::Socket => libc::DT_SOCK,
        })
    }
}

/// A READDIR or READDIRPLUS reply under construction. Never grows over what the request allows.
#[derive(Debug)]
pub struct DirectoryReply {
    bytes: Vec<u8>,
    limit: usize,
    plus: bool,
}

impl DirectoryReply {
    pub(crate) fn new(limit: usize, plus: bool) -> DirectoryReply {
        DirectoryReply { bytes: Vec::new(), limit, plus }
    }

    /// Whether entries want attributes: [`DirectoryReply::add_plus`] rather than
    /// [`DirectoryReply::add`].
    pub fn is_plus(&self) -> bool {
        self.plus
    }

    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Bytes that are free.
    pub fn room_bytes(&self) -> usize {
        self.limit - self.bytes.len()
    }

    /// Adds an entry. `next` is the offset at which the listing goes on behind it (not 0).
    /// False where it has no room; then the reply is full. In a reply with attributes such an entry
    /// is one that the kernel looks up by itself when asked for it.
    #[must_use]
    pub fn add(&mut self, node: u64, next: u64, kind: EntryKind, name: &[u8]) -> bool {
        let record = Self::record(node, next, kind, name);
        if !self.plus {
            return self.append(None, record, name);
        }
        // No node in the entry: the kernel takes name and number and links no inode.
        self.append(Some(Entry::default().to_abi()), record, name)
    }

    /// Adds an entry with attributes; counts as a lookup of its node unless the answer is false.
    /// Not for `.` and `..`, whose nodes the kernel does not count.
    #[must_use]
    pub fn add_plus(&mut self, entry: &Entry, next: u64, name: &[u8]) -> bool {
        let attributes = &entry.attributes;
        let kind = EntryKind::of_mode(attributes.mode);
        let record = Self::record(attributes.node, next, kind, name);
        if !self.plus {
            return self.append(None, record, name);
        }
        self.append(Some(entry.to_abi()), record, name)
    }

    fn record(node: u64, next: u64, kind: EntryKind, name: &[u8]) -> DirectoryRecord {
        assert!(!name.is_empty() && name.len() <= NAME_BYTES_MAX, "a name has 1 to 1024 bytes");
        DirectoryRecord { node, offset: next, name_len: name.len() as u32, kind: kind.number() }
    }

    fn append(&mut self, entry: Option<EntryOut>, record: DirectoryRecord, name: &[u8]) -> bool {
        let entry_bytes = entry.as_ref().map_or(&[][..], EntryOut::as_bytes);
        let bare = entry_bytes.len() + size_of::<DirectoryRecord>() + name.len();
        let padded = bare.next_multiple_of(8);
        if padded > self.room_bytes() {
            return false;
        }
        if self.bytes.capacity() == 0 {
            self.bytes.reserve_exact(self.limit);
        }
        self.bytes.extend_from_slice(entry_bytes);
        self.bytes.extend_from_slice(record.as_bytes());
        self.bytes.extend_from_slice(name);
        self.bytes.resize(self.bytes.len() + (padded - bare), 0);
        assert!(self.bytes.len() <= self.limit, "a listing stays within its limit");
        true
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The nodes whose look-ups this reply counts, as the kernel calls them.
    pub(crate) fn nodes(&self) -> Vec<u64> {
        let (mut nodes, mut rest) = (Vec::new(), &self.bytes[..]);
        while self.plus
            && let Ok((entry, behind)) = EntryOut::read_from_prefix(rest)
            && let Ok((record, _)) = DirectoryRecord::read_from_prefix(behind)
        {
            if entry.node != 0 {
                nodes.push(entry.node);
            }
            let head = size_of::<EntryOut>() + size_of::<DirectoryRecord>();
            rest = &rest[(head + record.name_len as usize).next_multiple_of(8)..];
        }
        nodes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_padded_and_the_limit_holds() {
        let mut reply = DirectoryReply::new(72, false);
        assert!(reply.add(5, 1, EntryKind::File, b"abc"));
        assert_eq!(reply.as_bytes().len(), 32);
        assert!(reply.add(6, 2, EntryKind::Directory, b"12345678"));
        assert_eq!(reply.as_bytes().len(), 64);
        assert!(!reply.add(7, 3, EntryKind::File, b"x"));
        assert_eq!(reply.as_bytes().len(), 64);
        assert_eq!(&reply.as_bytes()[24..32], b"abc\0\0\0\0\0");
    }

    #[test]
    fn attributes_stand_before_the_name() {
        let mut reply = DirectoryReply::new(4096, true);
        let mut entry = Entry::default();
        entry.attributes.node = 9;
        entry.attributes.mode = libc::S_IFDIR | 0o755;
        assert!(reply.add_plus(&entry, 4, b"d"));
        assert!(reply.add(1, 5, EntryKind::Directory, b".."));
        assert_eq!(reply.as_bytes().len(), 2 * (128 + 32));
        assert_eq!(reply.as_bytes()[0], 9);
        assert_eq!(reply.as_bytes()[160], 0);
        assert_eq!(reply.as_bytes()[128 + 20], libc::DT_DIR);
        entry.number = 77;
        assert!(reply.add_plus(&entry, 6, b"a longer name"));
        assert_eq!(reply.nodes(), [9, 77]);
        assert_eq!(reply.as_bytes()[320 + 128], 9);
    }
}
