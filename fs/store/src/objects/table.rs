//! The front of an object's file: whose it is, and the checksums of its blocks.
//!
//! The front is a row of sectors of 512 bytes, each with a CRC of its own and each twice, side by
//! side: a power cut tears between sectors and the death of a process within one, so one of the two
//! is always whole, the older or the newer; and a damaged one costs nothing. The first pair is the
//! head; it says how many pairs of table follow that must be there, so that a table which was cut off
//! or zeroed is not taken for holes. A sector's CRC is seeded with store, object and place.
//!
//! Invariants
//! * the newer of two whole sectors counts, and among equals the first, which is written first;
//! * a pair of the table that the head promises, and that is not whole, makes its blocks
//!   [`UNKNOWN`], never holes. Excepted are pairs of a checkpoint that did not come to its end:
//!   the log still has what they were to say.

use std::collections::BTreeMap;
use std::io;

use ropewalk_base::checksum;
use ropewalk_base::disk::File;

use super::block::UNKNOWN;
use super::layout::Layout;
use super::object::Object;
use super::{GroupTag, ObjectId};

/// The unit in which disks write wholly or not at all.
const SECTOR_BYTES: usize = 512;
/// A sector and its second copy.
pub(super) const PAIR_BYTES: usize = 2 * SECTOR_BYTES;
/// Bytes under a sector's checksum.
const CHECKED_BYTES: usize = 508;
/// The offset in the head at which the changing numbers begin.
const FRONT_AT: usize = 52;
/// The offset of the object's group in the head. Zeros there: it was not told, as in heads from before there were groups.
const GROUP_AT: usize = 68;
/// Table entries of a sector.
pub(super) const SECTOR_ENTRIES: u32 = 126;

const MAGIC: &[u8; 8] = b"RWobject";
const VERSION: u32 = 2;

/// The content of an object's head that describes its table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Front {
    /// Pairs of table that must be there.
    pub(super) pairs: u32,
    /// Those from here on were added by the checkpoint up to `tail`, or those before it that did not
    /// come to their end.
    pub(super) before: u32,
    pub(super) tail: u64,
    /// Grows with each time that table or head are written.
    pub(super) stamp: u32,
    /// The object's.
    pub(super) group: GroupTag,
}

/// The state of the first pair of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum HeadState {
    Good(Front),
    /// The object was being made when a crash came: nothing was ever acknowledged as durable.
    Unfinished,
    Damaged,
}

/// The pair that holds a block's entry.
pub(super) fn pair_of(block: u32) -> u32 {
    block / SECTOR_ENTRIES
}

fn pair_offset(pair: u32) -> u64 {
    (1 + u64::from(pair)) * PAIR_BYTES as u64
}

/// Bytes of head and table for so many blocks.
pub(super) fn front_bytes(blocks: u32) -> u64 {
    pair_offset(blocks.div_ceil(SECTOR_ENTRIES))
}

/// The object whose sectors these are.
#[derive(Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) layout: &'a Layout,
    pub(super) object: ObjectId,
}

/// The tail up to which checkpoints have come to their end, and the tail of this one.
#[derive(Clone, Copy)]
pub(super) struct Tails {
    pub(super) durable: u64,
    pub(super) next: u64,
}

impl Place<'_> {
    fn seed(&self, pair: u32) -> u32 {
        let ObjectId { inode, generation, stripe } = self.object;
        let mut seed = checksum::append(self.layout.salt(), &inode.to_le_bytes());
        for part in [generation, stripe, pair] {
            seed = checksum::append(seed, &part.to_le_bytes());
        }
        seed
    }

    /// Seals a sector and puts it in twice.
    fn put(&self, into: &mut Vec<u8>, pair: u32, stamp: u32, mut sector: [u8; SECTOR_BYTES]) {
        sector[504..508].copy_from_slice(&stamp.to_le_bytes());
        let crc = checksum::append(self.seed(pair), &sector[..CHECKED_BYTES]);
        sector[CHECKED_BYTES..].copy_from_slice(&crc.to_le_bytes());
        into.extend_from_slice(&sector);
        into.extend_from_slice(&sector);
    }

    /// The sector of a pair that counts, with its stamp.
    fn choose<'b>(&self, pair: u32, bytes: &'b [u8]) -> Option<(u32, &'b [u8])> {
        let whole = |sector: &'b [u8]| {
            let crc = checksum::append(self.seed(pair), &sector[..CHECKED_BYTES]);
            (half(sector, CHECKED_BYTES) == crc).then(|| (half(sector, 504), sector))
        };
        let (first, second) = bytes.get(..PAIR_BYTES)?.split_at(SECTOR_BYTES);
        match (whole(first), whole(second)) {
            (Some(first), Some(second)) => Some(if second.0 > first.0 { second } else { first }),
            (first, second) => first.or(second),
        }
    }

    /// The copies of head and table in `bytes`, the file's first ones, that are damaged or older than the
    /// ones beside them: their offsets, and their right content.
    pub(super) fn repairs<'b>(&self, front: Front, bytes: &'b [u8]) -> Vec<(u64, &'b [u8])> {
        let mut repairs = Vec::new();
        for (number, copies) in (0..=front.pairs).zip(bytes.chunks_exact(PAIR_BYTES)) {
            let Some((_, right)) = self.choose(number.wrapping_sub(1), copies) else { continue };
            for (index, copy) in copies.chunks_exact(SECTOR_BYTES).enumerate() {
                if copy != right {
                    let at = number as usize * PAIR_BYTES + index * SECTOR_BYTES;
                    repairs.push((at as u64, right));
                }
            }
        }
        repairs
    }

    /// The head that a file begins with.
    pub(super) fn head(&self, front: Front) -> Vec<u8> {
        let mut sector = [0; SECTOR_BYTES];
        sector[..8].copy_from_slice(MAGIC);
        sector[8..12].copy_from_slice(&VERSION.to_le_bytes());
        sector[12..20].copy_from_slice(&self.object.inode.to_le_bytes());
        sector[20..24].copy_from_slice(&self.object.generation.to_le_bytes());
        sector[24..28].copy_from_slice(&self.object.stripe.to_le_bytes());
        sector[28..36].copy_from_slice(&self.layout.object_bytes().to_le_bytes());
        sector[36..52].copy_from_slice(&self.layout.store().to_le_bytes());
        sector[52..56].copy_from_slice(&front.pairs.to_le_bytes());
        sector[56..60].copy_from_slice(&front.before.to_le_bytes());
        sector[60..68].copy_from_slice(&front.tail.to_le_bytes());
        sector[GROUP_AT..GROUP_AT + 8].copy_from_slice(&front.group.0.to_le_bytes());
        let mut bytes = Vec::with_capacity(PAIR_BYTES);
        self.put(&mut bytes, u32::MAX, front.stamp, sector);
        bytes
    }

    /// Judges the first bytes of a file (fewer where the file is shorter).
    pub(super) fn judge(&self, found: &[u8]) -> HeadState {
        let mut pair = [0; PAIR_BYTES];
        let length = found.len().min(PAIR_BYTES);
        pair[..length].copy_from_slice(&found[..length]);
        if let Some((stamp, sector)) = self.choose(u32::MAX, &pair) {
            let (pairs, before) = (half(sector, 52), half(sector, 56));
            let (tail, group) = (word(sector, 60), GroupTag(word(sector, GROUP_AT)));
            let front = Front { pairs, before, tail, stamp, group };
            let known = &sector[..8] == MAGIC && half(sector, 8) == VERSION;
            let fits = pairs <= self.layout.blocks_max().div_ceil(SECTOR_ENTRIES);
            return if known && fits { HeadState::Good(front) } else { HeadState::Damaged };
        }
        let group = |copy: &[u8]| GroupTag(word(copy, GROUP_AT));
        let fresh = |copy: &[u8]| self.head(Front { group: group(copy), ..Front::default() });
        // Both copies were there since the first sync: with one of them blank there was none, and
        // the other one may be that head with a part of a later one over it.
        let blank = pair.chunks(SECTOR_BYTES).any(|copy| copy.iter().all(|byte| *byte == 0));
        let torn = |copy: &[u8]| {
            let fresh = fresh(copy);
            is_unfinished(copy, &fresh) || (blank && copy[..FRONT_AT] == fresh[..FRONT_AT])
        };
        if pair.chunks(SECTOR_BYTES).all(torn) { HeadState::Unfinished } else { HeadState::Damaged }
    }

    /// The entries of the table in `bytes`, which begin behind the head; blocks of pairs that are
    /// damaged are [`UNKNOWN`].
    pub(super) fn entries(&self, front: Front, bytes: &[u8], durable: u64) -> Vec<u32> {
        let mut entries = Vec::with_capacity((front.pairs * SECTOR_ENTRIES) as usize);
        for pair in 0..front.pairs {
            let pair_bytes = bytes.get(pair as usize * PAIR_BYTES..).unwrap_or(&[]);
            match self.choose(pair, pair_bytes) {
                Some((_, sector)) => {
                    let numbers = (0..SECTOR_ENTRIES as usize).map(|at| half(sector, at * 4));
                    entries.extend(numbers);
                }
                None => {
                    let unfinished = pair >= front.before && front.tail > durable;
                    let entry = if unfinished { 0 } else { UNKNOWN };
                    entries.extend([entry; SECTOR_ENTRIES as usize]);
                }
            }
        }
        entries.truncate(self.layout.blocks_max() as usize);
        while entries.last() == Some(&0) {
            entries.pop();
        }
        entries
    }

    /// Writes the changed part of an object's table into its file, with the entries of `as_of` where
    /// it has any: an entry must not be in the file before its record is durable in the log.
    pub(super) fn write_table(
        &self,
        object: &mut Object,
        file: &dyn File,
        as_of: &BTreeMap<u32, u32>,
        tails: Tails,
    ) -> io::Result<()> {
        let Some((from, to)) = object.table_changed else { return Ok(()) };
        let before = object.front;
        let needed = (object.entries.len() as u32).div_ceil(SECTOR_ENTRIES);
        let mut front = Front { stamp: before.stamp + 1, tail: tails.next, ..before };
        let mut written = pair_of(from)..to.div_ceil(SECTOR_ENTRIES).min(needed.max(before.pairs));
        if needed > before.pairs {
            front.pairs = needed;
            written = written.start.min(before.pairs)..needed;
        }
        if before.tail <= tails.durable {
            // The pairs that the checkpoint before added are there.
            front.before = before.pairs;
        }
        let mut bytes = self.head(front);
        let head = bytes.len();
        for pair in written.clone() {
            let mut sector = [0; SECTOR_BYTES];
            for (index, place) in sector[..504].chunks_exact_mut(4).enumerate() {
                let block = pair * SECTOR_ENTRIES + index as u32;
                let entry = as_of.get(&block).copied().unwrap_or_else(|| object.entry(block));
                place.copy_from_slice(&entry.to_le_bytes());
            }
            self.put(&mut bytes, pair, front.stamp, sector);
        }
        // In any order: the log has what either of them brings until both are durable.
        object.front.stamp = front.stamp;
        if written.start == 0 {
            file.write_at(0, &bytes)?;
        } else {
            file.write_at(0, &bytes[..head])?;
            file.write_at(pair_offset(written.start), &bytes[head..])?;
        }
        object.front = front;
        object.table_changed = None;
        object.table_unsynced = true;
        Ok(())
    }
}

/// Whether the first write of a head was cut short: whose it is comes first in it, and the rest is
/// missing from somewhere before its checksum's end on.
fn is_unfinished(copy: &[u8], fresh: &[u8]) -> bool {
    let same = copy.iter().zip(fresh).take_while(|(a, b)| a == b).count();
    let rest = if same < FRONT_AT { same } else { same.max(CHECKED_BYTES) };
    copy.iter().skip(rest).all(|byte| *byte == 0)
}

fn word(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn half(bytes: &[u8], at: usize) -> u32 {
    let mut half = [0; 4];
    half.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(half)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    const OBJECT: ObjectId = ObjectId { inode: 0xabc, generation: 7, stripe: 9 };

    #[test]
    fn a_head_is_read_back_and_one_of_its_copies_is_enough() {
        let layout = Layout::new(Path::new("/s"), 1 << 20, 5);
        let place = Place { layout: &layout, object: OBJECT };
        let front = Front { pairs: 2, before: 1, tail: 77, stamp: 4, group: GroupTag::new(3) };
        let head = place.head(front);
        for byte in 0..PAIR_BYTES {
            let mut bad = head.clone();
            bad[byte] ^= 16;
            assert_eq!(place.judge(&bad), HeadState::Good(front));
            bad[(byte + SECTOR_BYTES) % PAIR_BYTES] ^= 1;
            assert_eq!(place.judge(&bad), HeadState::Damaged);
        }
        let other = Place { object: ObjectId { stripe: 8, ..OBJECT }, ..place };
        assert_eq!(other.judge(&head), HeadState::Damaged);
        let layout = Layout::new(Path::new("/s"), 1 << 20, 6);
        assert_eq!(Place { layout: &layout, ..place }.judge(&head), HeadState::Damaged);
    }

    #[test]
    fn a_creation_that_was_cut_short_is_told_from_damage() {
        let layout = Layout::new(Path::new("/s"), 1 << 20, 5);
        let place = Place { layout: &layout, object: OBJECT };
        for group in [GroupTag::default(), GroupTag::new(0x0123_4567_89ab)] {
            let fresh = place.head(Front { group, ..Front::default() });
            for cut in [0, 10, 60, 71, 76, 508, 510] {
                assert_eq!(place.judge(&fresh[..cut]), HeadState::Unfinished, "{cut}");
                let mut padded = fresh[..cut].to_vec();
                padded.resize(5000, 0);
                assert_eq!(place.judge(&padded), HeadState::Unfinished, "{cut}");
            }
        }
        let fresh = place.head(Front::default());
        assert_eq!(place.judge(&fresh[..1000]), HeadState::Good(Front::default()));
        let mut torn = fresh.clone();
        torn[..SECTOR_BYTES].fill(0);
        assert_eq!(place.judge(&torn), HeadState::Good(Front::default()));
        // A second head that was cut short over the first one: damage, if that was ever durable.
        let later = place.head(Front { pairs: 1, tail: 77, stamp: 1, ..Front::default() });
        for (at, cut) in [(0, 100), (SECTOR_BYTES, 480)] {
            let other = SECTOR_BYTES - at;
            let mut torn = fresh.clone();
            torn[at..at + cut].copy_from_slice(&later[at..at + cut]);
            assert_eq!(place.judge(&torn), HeadState::Good(Front::default()));
            torn[other] ^= 1;
            assert_eq!(place.judge(&torn), HeadState::Damaged);
            torn[other..other + SECTOR_BYTES].fill(0);
            assert_eq!(place.judge(&torn), HeadState::Unfinished);
            torn[at] ^= 1;
            assert_eq!(place.judge(&torn), HeadState::Damaged);
        }
    }

    #[test]
    fn damaged_pairs_are_unknown_and_unfinished_ones_are_holes() {
        let layout = Layout::new(Path::new("/s"), 1 << 20, 5);
        let place = Place { layout: &layout, object: OBJECT };
        let front = Front { pairs: 2, before: 1, tail: 77, stamp: 4, group: GroupTag::new(3) };
        let mut sector = [0; SECTOR_BYTES];
        sector[..4].copy_from_slice(&9_u32.to_le_bytes());
        let mut bytes = Vec::new();
        place.put(&mut bytes, 0, 3, sector);
        bytes.resize(2 * PAIR_BYTES, 0);
        assert_eq!(place.entries(front, &bytes, 76), [9]);
        let entries = place.entries(front, &bytes, 77);
        assert_eq!((entries.len(), entries[0], entries[125]), (252, 9, 0));
        assert!(entries[126..].iter().all(|entry| *entry == UNKNOWN));
        // The pair of another place is none.
        let (first, second) = bytes.split_at_mut(PAIR_BYTES);
        second.copy_from_slice(first);
        assert_eq!(place.entries(front, &bytes, 77)[126], UNKNOWN);
    }
}
