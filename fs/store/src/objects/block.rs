//! Blocks of 4 KiB: their checksums as table entries, and sets of them.
//!
//! Invariants
//! * table entry 0 means a hole: the block reads as zeros whatever the file holds there;
//! * entry 2 stands for no content: the block's content is not known, and every read says so;
//! * any other entry stands for one content checksum (two checksums share entry 1, two entry 3, which
//!   costs a 2^-31 part of the detection for those blocks and nothing for others);
//! * a set never has bits beyond the last block that was put in.

use ropewalk_base::checksum;

/// Bytes that one checksum covers.
pub const BLOCK_BYTES: usize = 4096;

/// The CRC32C of a block of zeros.
pub(super) const ZERO_CHECKSUM: u32 = 0x98f9_4189;

/// A block's bytes.
pub(super) type Block = [u8; BLOCK_BYTES];

/// The table entry of a block whose content is not known: it matches none.
pub const UNKNOWN: u32 = 2;

/// Whether a block with this entry was written, and is not lost.
pub(super) fn has_bytes(entry: u32) -> bool {
    entry != 0 && entry != UNKNOWN
}

/// The table entry of a block that was written, never 0 and never [`UNKNOWN`].
pub(super) fn entry_of(checksum: u32) -> u32 {
    match checksum ^ ZERO_CHECKSUM {
        0 => 1,
        UNKNOWN => 3,
        entry => entry,
    }
}

/// The checksum that a table entry stands for. Two of them share the entry 1, and two the entry 3:
/// for these only the content tells.
pub(super) fn checksum_of(entry: u32) -> Option<u32> {
    (entry > 3).then_some(entry ^ ZERO_CHECKSUM)
}

/// The table entry of a block's content, never 0.
pub(super) fn entry(block: &[u8]) -> u32 {
    entry_of(checksum::crc32c(block))
}

/// The blocks that a byte range touches.
pub(super) fn blocks_of(offset: u64, length: u64) -> std::ops::Range<u32> {
    let block = BLOCK_BYTES as u64;
    (offset / block) as u32..(offset + length).div_ceil(block) as u32
}

/// A set of block numbers of one object.
#[derive(Debug, Clone, Default)]
pub(super) struct BlockSet {
    words: Vec<u64>,
    count: usize,
}

impl BlockSet {
    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    pub(super) fn insert(&mut self, block: u32) {
        let (word, bit) = (block as usize / 64, 1 << (block % 64));
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.count += usize::from(self.words[word] & bit == 0);
        self.words[word] |= bit;
    }

    pub(super) fn remove(&mut self, block: u32) {
        let (word, bit) = (block as usize / 64, 1 << (block % 64));
        if let Some(word) = self.words.get_mut(word) {
            self.count -= usize::from(*word & bit != 0);
            *word &= !bit;
        }
    }

    #[cfg(test)]
    pub(super) fn contains(&self, block: u32) -> bool {
        self.words.get(block as usize / 64).is_some_and(|word| word & (1 << (block % 64)) != 0)
    }

    pub(super) fn extend(&mut self, other: &BlockSet) {
        for block in other.iter() {
            self.insert(block);
        }
    }

    /// Empties the set and keeps its memory.
    pub(super) fn clear(&mut self) {
        self.words.fill(0);
        self.count = 0;
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let words = self.words.iter().enumerate().filter(|(_, word)| **word != 0);
        words.flat_map(|(index, word)| {
            (0..64)
                .filter(move |bit| word & (1 << bit) != 0)
                .map(move |bit| index as u32 * 64 + bit)
        })
    }

    /// The smallest run (first, count) that covers the set.
    pub(super) fn span(&self) -> Option<(u32, u32)> {
        let first = self.iter().next()?;
        let last = self.iter().last()?;
        Some((first, last - first + 1))
    }
}

/// A position in a list of byte slices that is read from front to back.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    segments: &'a [&'a [u8]],
    within: usize,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(segments: &'a [&'a [u8]]) -> Cursor<'a> {
        Cursor { segments, within: 0 }
    }

    /// The next bytes that lie together, at most `limit` of them; empty only at the end.
    pub(super) fn next(&mut self, limit: usize) -> &'a [u8] {
        while let Some(segment) = self.segments.first() {
            let rest = &segment[self.within..];
            if !rest.is_empty() {
                let part = &rest[..rest.len().min(limit)];
                self.within += part.len();
                return part;
            }
            self.segments = &self.segments[1..];
            self.within = 0;
        }
        &[]
    }

    /// The CRC32C of the next `length` bytes.
    pub(super) fn checksum(&mut self, mut length: usize) -> u32 {
        let mut crc = 0;
        while length > 0 {
            let part = self.next(length);
            crc = checksum::append(crc, part);
            length -= part.len();
        }
        crc
    }

    /// Copies the next bytes until `into` is full.
    pub(super) fn copy(&mut self, into: &mut [u8]) {
        let mut done = 0;
        while done < into.len() {
            let part = self.next(into.len() - done);
            into[done..done + part.len()].copy_from_slice(part);
            done += part.len();
        }
    }

    /// Leaves out `length` bytes.
    pub(super) fn skip(&mut self, mut length: usize) {
        while length > 0 {
            length -= self.next(length).len();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn holes_and_written_blocks_have_different_entries() {
        assert_eq!(checksum::crc32c(&[0; BLOCK_BYTES]), ZERO_CHECKSUM);
        assert_eq!(entry(&[0; BLOCK_BYTES]), 1);
        assert_eq!((0..4).filter_map(checksum_of).next(), None);
        assert_eq!(entry_of(ZERO_CHECKSUM ^ UNKNOWN), 3);
        let content = [7; BLOCK_BYTES];
        assert_eq!(checksum_of(entry(&content)), Some(checksum::crc32c(&content)));
        assert_ne!(entry(&[7; BLOCK_BYTES]), entry(&[8; BLOCK_BYTES]));
    }

    #[test]
    fn a_set_counts_and_gives_its_span() {
        let mut set = BlockSet::default();
        for block in [3, 4, 5, 64, 65, 200, 4] {
            set.insert(block);
        }
        set.remove(200);
        set.remove(999);
        assert_eq!(set.iter().collect::<Vec<_>>(), [3, 4, 5, 64, 65]);
        assert_eq!(set.span(), Some((3, 63)));
        assert!(set.contains(64) && !set.contains(200));
        for block in [3, 4, 5, 64, 65] {
            set.remove(block);
        }
        assert!(set.is_empty() && set.span().is_none());
    }

    #[test]
    fn a_cursor_crosses_segments() {
        let segments: [&[u8]; 4] = [b"ab", b"", b"cde", b"f"];
        let mut cursor = Cursor::new(&segments);
        cursor.skip(1);
        let mut bytes = [0; 3];
        cursor.copy(&mut bytes);
        assert_eq!(&bytes, b"bcd");
        assert_eq!(cursor.checksum(2), checksum::crc32c(b"ef"));
        assert!(cursor.next(5).is_empty());
    }
}
