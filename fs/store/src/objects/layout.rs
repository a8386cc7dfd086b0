//! The layout of a store on disk: names of object files, their headers, and the store's own description.
//!
//! An object file is `head | checksum table | padding | data` ([`super::table`]), with data from a
//! multiple of 4096 on. The table is in the same file so that one descriptor and one fdatasync serve
//! both. A store directory holds `store` (the description), `log/`, `board`, `roll`, `marks` and its
//! copy, and `objects/XYZ/` (4096 directories by hash of the inode, made when needed).

use std::path::{Path, PathBuf};

use ropewalk_base::checksum;

use super::ObjectId;
use super::block::BLOCK_BYTES;
use super::table::front_bytes;

/// Directories over which objects are spread.
pub(super) const DIRECTORIES: u32 = 4096;
/// Bytes of the store's description.
pub(super) const DESCRIPTION_BYTES: usize = 48;

const STORE_MAGIC: &[u8; 8] = b"RWostore";
const VERSION: u32 = 2;

/// The store's description: the values that never change after it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Description {
    pub(super) store: u128,
    /// Most bytes of one object.
    pub(super) object_bytes: u64,
    /// Bytes of one log segment.
    pub(super) segment_bytes: u64,
}

impl Description {
    pub(super) fn encode(&self) -> [u8; DESCRIPTION_BYTES] {
        let mut bytes = [0; DESCRIPTION_BYTES];
        bytes[..8].copy_from_slice(STORE_MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..28].copy_from_slice(&self.store.to_le_bytes());
        bytes[28..36].copy_from_slice(&self.object_bytes.to_le_bytes());
        bytes[36..44].copy_from_slice(&self.segment_bytes.to_le_bytes());
        let crc = checksum::crc32c(&bytes[..44]);
        bytes[44..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads a description; the error says what is wrong with it.
    pub(super) fn decode(bytes: &[u8]) -> Result<Description, &'static str> {
        let bytes: &[u8; DESCRIPTION_BYTES] =
            bytes.try_into().map_err(|_| "its file `store` has a wrong length: restore it from a copy, or move the server's directory away and start with --replace")?;
        if &bytes[..8] != STORE_MAGIC {
            return Err(
                "its file `store` is damaged: restore it from a copy, or move the server's directory away and start with --replace",
            );
        }
        if checksum::crc32c(&bytes[..44]).to_le_bytes() != bytes[44..] {
            return Err(
                "its file `store` is damaged: restore it from a copy, or move the server's directory away and start with --replace",
            );
        }
        if bytes[8..12] != VERSION.to_le_bytes() {
            return Err("it was made by another version of this program");
        }
        let mut store = [0; 16];
        store.copy_from_slice(&bytes[12..28]);
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        let (object_bytes, segment_bytes) = (word(28), word(36));
        Ok(Description { store: u128::from_le_bytes(store), object_bytes, segment_bytes })
    }
}

/// For fuzzers, see [`crate::decoders`]: whether these bytes, with a checksum that fits, describe a
/// store; the journey must not change it.
pub(crate) fn accepts(bytes: &mut [u8]) -> bool {
    if bytes.len() == DESCRIPTION_BYTES {
        let crc = checksum::crc32c(&bytes[..44]);
        bytes[44..].copy_from_slice(&crc.to_le_bytes());
    }
    let Ok(description) = Description::decode(bytes) else { return false };
    assert_eq!(&description.encode(), bytes);
    true
}

/// Names and offsets of one store.
#[derive(Debug, Clone)]
pub(super) struct Layout {
    directory: PathBuf,
    object_bytes: u64,
    store: u128,
}

impl Layout {
    pub(super) fn new(directory: &Path, object_bytes: u64, store: u128) -> Layout {
        Layout { directory: directory.to_path_buf(), object_bytes, store }
    }

    /// The store's identity.
    pub(super) fn store(&self) -> u128 {
        self.store
    }

    /// The start value of checksums, so that no data of another store is taken for this one's.
    pub(super) fn salt(&self) -> u32 {
        checksum::crc32c(&self.store.to_le_bytes())
    }

    pub(super) fn root(&self) -> &Path {
        &self.directory
    }

    /// Blocks of an object at most.
    pub(super) fn blocks_max(&self) -> u32 {
        (self.object_bytes / BLOCK_BYTES as u64) as u32
    }

    pub(super) fn object_bytes(&self) -> u64 {
        self.object_bytes
    }

    /// The offset of the data in an object file.
    pub(super) fn data_offset(&self) -> u64 {
        front_bytes(self.blocks_max()).next_multiple_of(BLOCK_BYTES as u64)
    }

    /// The offset of a block in its file.
    pub(super) fn block_offset(&self, block: u32) -> u64 {
        self.data_offset() + u64::from(block) * BLOCK_BYTES as u64
    }

    pub(super) fn description(&self) -> PathBuf {
        self.directory.join("store")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.directory.join("log")
    }

    pub(super) fn objects(&self) -> PathBuf {
        self.directory.join("objects")
    }

    /// The directory of an inode's objects, as a number.
    pub(super) fn directory_of(inode: u64) -> u32 {
        // Fibonacci hashing: the top bits of the product depend on all bits of the inode.
        (inode.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 52) as u32
    }

    pub(super) fn directory_path(&self, directory: u32) -> PathBuf {
        self.directory.join("objects").join(format!("{directory:03x}"))
    }

    pub(super) fn path(&self, object: ObjectId) -> PathBuf {
        let ObjectId { inode, generation, stripe } = object;
        self.directory_path(Layout::directory_of(inode))
            .join(format!("{inode:016x}.{generation:08x}.{stripe:08x}"))
    }

    /// The number of a hashed directory; `None` for names that are not ours.
    pub(super) fn parse_directory(name: &std::ffi::OsStr) -> Option<u32> {
        let name = name.to_str()?;
        let number = u32::from_str_radix(name, 16).ok()?;
        (format!("{number:03x}") == name && number < DIRECTORIES).then_some(number)
    }

    /// The object of a file name; `None` for names that are not ours.
    pub(super) fn parse(name: &std::ffi::OsStr) -> Option<ObjectId> {
        let name = name.to_str()?;
        let lower = |part: &str| part.bytes().all(|c| matches!(c, b'0'..=b'9' | b'a'..=b'f'));
        let mut parts = name.split('.');
        let (inode, generation, stripe) = (parts.next()?, parts.next()?, parts.next()?);
        let shaped = parts.next().is_none()
            && (inode.len(), generation.len(), stripe.len()) == (16, 8, 8)
            && lower(inode)
            && lower(generation)
            && lower(stripe);
        if !shaped {
            return None;
        }
        Some(ObjectId {
            inode: u64::from_str_radix(inode, 16).ok()?,
            generation: u32::from_str_radix(generation, 16).ok()?,
            stripe: u32::from_str_radix(stripe, 16).ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_and_others_refused() {
        let layout = Layout::new(Path::new("/s"), 1 << 20, 5);
        assert_eq!(layout.data_offset(), 4096);
        let object = ObjectId { inode: 0xabc, generation: 7, stripe: 9 };
        let path = layout.path(object);
        assert_eq!(Layout::parse(path.file_name().unwrap()), Some(object));
        let directory = path.parent().and_then(Path::file_name).unwrap();
        assert_eq!(Layout::parse_directory(directory), Some(Layout::directory_of(0xabc)));
        for name in ["1000", "ff", "0FF", "+ff", "", "lost+found"] {
            assert_eq!(Layout::parse_directory(name.as_ref()), None, "{name}");
        }
        for name in
            ["x", "0000000000000abc.00000007.0000000G", "0000000000000abc.00000007.+0000009"]
        {
            assert_eq!(Layout::parse(name.as_ref()), None);
        }
    }

    #[test]
    fn a_description_is_read_back_and_damage_is_seen() {
        let description = Description { store: 5, object_bytes: 1 << 20, segment_bytes: 1 << 22 };
        let mut bytes = description.encode();
        assert_eq!(Description::decode(&bytes), Ok(description));
        bytes[20] ^= 4;
        assert!(Description::decode(&bytes).is_err());
        assert!(Description::decode(&bytes[..40]).is_err());
    }
}
