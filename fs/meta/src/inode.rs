//! The inode row: all of an inode but its names, inline bytes and extended attributes.
//!
//! Invariants:
//! * directories have no content; `size` is their number of entries, `links` 2 and one for each
//!   subdirectory, 0 when removed;
//! * `parent` and `cookie` name one dentry that points here (the only one of a directory); further
//!   hard links have back pointer rows; both are 0 while no dentry does;
//! * `layout` is there for regular files and never changes within an object generation;
//! * `inline_bytes` is the length of the inline row (which is there unless it is 0): file content or the
//!   target of a symbolic link. It is at most `size`; the bytes in between are zeros.

use ropewalk_wire::fs::attributes::{Attributes, Content, InodeKind};
use ropewalk_wire::fs::layout::Layout;
use ropewalk_wire::fs::value::Timestamp;
use serde::{Deserialize, Serialize};

use crate::runs::Runs;
use ropewalk_wire::fs::policy::Policy;

/// Version of the row's encoding. Inodes with the default policy have it, so that former programs read them.
const VERSION: u8 = 2;
/// Version of rows with a policy behind the other fields.
const POLICY_VERSION: u8 = 3;

/// An inode as its row keeps it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inode {
    #[serde(skip)]
    pub number: u64,
    pub kind: InodeKind,
    /// 12 bits.
    pub mode: u16,
    pub links: u32,
    pub user: u32,
    pub group: u32,
    pub device: u32,
    pub size: u64,
    pub accessed: Timestamp,
    pub modified: Timestamp,
    pub changed: Timestamp,
    pub created: Timestamp,
    pub version: u64,
    /// Of the objects; grows with every truncation to 0.
    pub generation: u32,
    /// The write epoch.
    pub epoch: u32,
    pub parent: u64,
    pub cookie: u64,
    /// Made without a name (`O_TMPFILE`): may be linked although it has no link.
    pub temporary: bool,
    /// The content is in stripes; inline otherwise.
    pub striped: bool,
    pub layout: Option<Layout>,
    /// Stripes that were written, of the present generation.
    pub written: Runs,
    pub inline_bytes: u32,
    /// Bytes of the names of extended attributes, each with a zero byte: the size of a listing.
    pub xattr_bytes: u32,
    /// One of them is `security.capability`.
    pub capable: bool,
    /// Of a directory: how files that are made in it are kept.
    #[serde(skip)]
    pub policy: Policy,
}

/// A row that does not decode: the store is damaged or newer than this program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a metadata row does not decode")]
pub struct Damaged;

impl Inode {
    /// The row's value.
    pub fn encode(&self) -> Vec<u8> {
        let mut row = encode_row(VERSION, self);
        if self.policy != Policy::default() {
            row[0] = POLICY_VERSION;
            row = postcard::to_extend(&self.policy, row).expect("encoding into memory cannot fail");
        }
        row
    }

    /// The inode `number` from its row's value.
    pub fn decode(number: u64, bytes: &[u8]) -> Result<Inode, Damaged> {
        let (version, fields) = bytes.split_first().ok_or(Damaged)?;
        let (mut inode, rest): (Inode, _) =
            postcard::take_from_bytes(fields).map_err(|_| Damaged)?;
        inode.policy = match *version {
            VERSION if rest.is_empty() => Policy::default(),
            POLICY_VERSION => match postcard::take_from_bytes(rest) {
                Ok((policy, [])) => policy,
                _ => return Err(Damaged),
            },
            _ => return Err(Damaged),
        };
        inode.number = number;
        let legal = inode.written.is_valid()
            && inode.policy.is_valid()
            && inode.mode <= 0o7777
            && inode.layout.is_none_or(|layout| layout.is_valid())
            && (!inode.striped || inode.layout.is_some());
        if legal { Ok(inode) } else { Err(Damaged) }
    }

    /// As `stat` reports it.
    pub fn attributes(&self) -> Attributes {
        Attributes {
            inode: self.number,
            object_generation: self.generation,
            kind: self.kind,
            mode: self.mode,
            link_count: self.links,
            user: self.user,
            group: self.group,
            device: self.device,
            size: self.size,
            blocks: self.blocks(),
            accessed: self.accessed,
            modified: self.modified,
            changed: self.changed,
            created: self.created,
            has_xattrs: self.xattr_bytes > 0,
            version: self.version,
            capable: self.capable,
        }
    }

    /// Allocated 512-byte units.
    fn blocks(&self) -> u64 {
        let bytes = match self.layout {
            Some(layout) if self.striped => self.written.bytes(layout.stripe_bytes, self.size),
            _ => u64::from(self.inline_bytes),
        };
        bytes.div_ceil(512)
    }

    /// The place of the bytes: inline or in stripes.
    pub fn content(&self) -> Content {
        match self.layout {
            Some(layout) if self.striped => Content::Striped(layout),
            _ => Content::Inline,
        }
    }

    /// Whether this is a directory.
    pub fn is_directory(&self) -> bool {
        self.kind == InodeKind::Directory
    }

    /// Whether this is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind == InodeKind::File
    }
}

/// Encodes a row's value: a version byte and the fields.
pub fn encode_row<T: Serialize>(version: u8, value: &T) -> Vec<u8> {
    let mut out = Vec::with_capacity(96);
    out.push(version);
    postcard::to_extend(value, out).expect("encoding into memory cannot fail")
}

/// Decodes a row's value of this version from all of `bytes`.
pub fn decode_row<'a, T: Deserialize<'a>>(version: u8, bytes: &'a [u8]) -> Result<T, Damaged> {
    match bytes.split_first() {
        Some((found, fields)) if *found == version => match postcard::take_from_bytes(fields) {
            Ok((value, [])) => Ok(value),
            _ => Err(Damaged),
        },
        _ => Err(Damaged),
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_wire::fs::layout::Growth;

    use super::*;

    fn inode() -> Inode {
        let layout = Layout {
            pool_version: 1,
            seed: 7,
            stripe_bytes: 1 << 20,
            growth: Growth::Stepped { narrow: 1, wide: 64 },
        };
        let mut written = Runs::default();
        assert!(written.add(0, 1) && written.add(3, 1));
        Inode {
            number: 9,
            kind: InodeKind::File,
            mode: 0o644,
            links: 1,
            user: 1,
            group: 2,
            device: 0,
            size: (3 << 20) + 513,
            accessed: Timestamp::default(),
            modified: Timestamp::from_unix_nanos(-1),
            changed: Timestamp::from_unix_nanos(1),
            created: Timestamp::default(),
            version: 3,
            generation: 0,
            epoch: 1,
            parent: 1,
            cookie: 256,
            temporary: false,
            striped: true,
            layout: Some(layout),
            written,
            inline_bytes: 0,
            xattr_bytes: 0,
            capable: false,
            policy: Policy::default(),
        }
    }

    #[test]
    fn rows_survive_the_journey_and_damaged_ones_are_refused() {
        let inode = inode();
        let bytes = inode.encode();
        assert!(bytes.len() < 96, "{} bytes", bytes.len());
        assert_eq!(Inode::decode(9, &bytes), Ok(inode.clone()));
        for cut in 0..bytes.len() {
            assert_eq!(Inode::decode(9, &bytes[..cut]), Err(Damaged));
        }
        let mut newer = bytes.clone();
        newer[0] += 1;
        assert_eq!(Inode::decode(9, &newer), Err(Damaged));
        assert_eq!(inode.attributes().blocks, 2048 + 2);
    }

    #[test]
    fn a_policy_stands_behind_the_other_fields() {
        let plain = inode();
        let with = Inode { policy: Policy::Copies(3), ..plain.clone() };
        let (row, before) = (with.encode(), plain.encode());
        assert_eq!((row[0], before[0]), (POLICY_VERSION, VERSION));
        assert_eq!(row[1..before.len()], before[1..], "former rows are as they were");
        assert_eq!(Inode::decode(9, &row), Ok(with));
        for cut in 0..row.len() {
            assert_eq!(Inode::decode(9, &row[..cut]), Err(Damaged));
        }
        for bad in [&[0, 0][..], &[0, 4], &[1, 2], &[0, 2, 0]] {
            let row = [&row[..before.len()], bad].concat();
            assert_eq!(Inode::decode(9, &row), Err(Damaged), "{bad:?}");
        }
    }
}
