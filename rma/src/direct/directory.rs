//! Directories of dynamic windows: what a rank has attached, as it tells others, and what others know of it.
//!
//! An entry carries a check of its words: one that was read while its rank changed it is no entry.

use ropewalk_base::memory::Cells;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::RemoteKey;

/// Regions that a rank may have attached at a time.
pub(crate) const REGIONS_MAX: usize = 1024;
const WORD: usize = size_of::<u64>();
/// Address, length, the two words of a key, and their check.
const ENTRY_WORDS: usize = 5;
const ENTRY_BYTES: usize = ENTRY_WORDS * WORD;
/// How many entries were ever in use, then entries.
const DIRECTORY_BYTES: usize = WORD + REGIONS_MAX * ENTRY_BYTES;
/// A first read has so many entries.
const ENTRIES_FIRST: usize = 100;
/// Reads in a row that find entries half written. Then these are left out.
const TORN_MAX: u32 = 1000;

/// Memory that a rank attached.
#[derive(Debug)]
pub(super) struct Attached {
    pub address: u64,
    pub key: RemoteKey,
    /// Nobody reaches it any more.
    pub is_returned: bool,
}

/// What a rank has attached, as others read it.
#[derive(Debug)]
pub(crate) struct Directory {
    cells: Cells,
    pub(super) entries: Vec<Option<Attached>>,
}

impl Directory {
    pub fn new() -> Directory {
        Directory { cells: Cells::zeroed(DIRECTORY_BYTES), entries: Vec::new() }
    }

    /// The cells that others read.
    pub fn cells(&self) -> &Cells {
        &self.cells
    }

    fn write(&self, entry: usize, words: [u64; ENTRY_WORDS]) {
        let at = WORD + entry * ENTRY_BYTES;
        for (number, word) in words.into_iter().enumerate() {
            self.cells.store(at + number * WORD, word).expect("the directory has all entries");
        }
    }

    /// Takes an entry out: others do not find it any more.
    pub(super) fn clear(&self, entry: usize) {
        self.write(entry, [0; ENTRY_WORDS]);
    }

    /// Adds a region. False: there are too many.
    pub(super) fn add(&mut self, attached: Attached, bytes: u64) -> bool {
        let free = self.entries.iter().position(Option::is_none);
        let entry = free.unwrap_or(self.entries.len());
        if entry >= REGIONS_MAX {
            return false;
        }
        let Attached { address, key, .. } = attached;
        let words = [address, bytes, key.slot.to_u64(), key.secret];
        let [address, bytes, slot, secret] = words;
        self.write(entry, [address, bytes, slot, secret, check(words)]);
        match self.entries.get_mut(entry) {
            Some(place) => *place = Some(attached),
            None => self.entries.push(Some(attached)),
        }
        self.cells.store(0, self.entries.len() as u64).expect("the directory has a first word");
        true
    }

    pub(super) fn find(&mut self, address: u64) -> Option<(usize, &mut Attached)> {
        let mut entries = self.entries.iter_mut().enumerate();
        entries.find_map(|(at, entry)| {
            entry.as_mut().filter(|it| it.address == address).map(|it| (at, it))
        })
    }

    pub(super) fn addresses(&self) -> Vec<u64> {
        self.entries.iter().flatten().map(|it| it.address).collect()
    }
}

/// Tells an entry from one that was read while it changed.
fn check(words: [u64; ENTRY_WORDS - 1]) -> u64 {
    words.into_iter().fold(0x9e37_79b9_7f4a_7c15, |sum: u64, word| {
        let mixed = (sum ^ word).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ (mixed >> 32)
    })
}

/// A region of a target, as its directory says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Region {
    pub start: u64,
    pub bytes: u64,
    pub key: RemoteKey,
}

/// What an origin knows of a target's directory.
#[derive(Debug)]
pub(crate) struct Known {
    /// Sorted by address.
    pub(super) regions: Vec<Region>,
    /// Entries that a read asks for.
    pub(super) entries: usize,
    /// It is being read.
    pub(super) is_asked: bool,
    /// How often it was read.
    pub(super) reads: u64,
    torn: u32,
}

/// What a directory said.
enum Read {
    Regions(Vec<Region>),
    /// It has so many entries.
    Longer(usize),
}

impl Known {
    pub fn new() -> Known {
        let (regions, entries) = (Vec::new(), ENTRIES_FIRST);
        Known { regions, entries, is_asked: false, reads: 0, torn: 0 }
    }

    /// The region that a whole range lies in.
    pub(super) fn find(&self, address: i64, bytes: u64) -> Option<Region> {
        let address = u64::try_from(address).ok()?;
        let behind = self.regions.partition_point(|region| region.start <= address);
        let region = *self.regions.get(behind.checked_sub(1)?)?;
        let end = address.checked_add(bytes)?;
        (end - region.start <= region.bytes).then_some(region)
    }

    /// Bytes of a directory that a read asks for.
    pub(super) fn bytes(&self) -> usize {
        WORD + self.entries * ENTRY_BYTES
    }

    /// A directory came, or a part of it. An incomplete one is read again.
    pub(super) fn learn(&mut self, bytes: &[u8]) {
        let (read, torn) = self.read(bytes);
        match read {
            Read::Longer(entries) => self.entries = entries,
            Read::Regions(_) if torn && self.torn < TORN_MAX => self.torn += 1,
            Read::Regions(regions) => {
                (self.regions, self.torn) = (regions, 0);
                self.reads += 1;
            }
        }
    }

    /// Takes a directory apart; and whether an entry of it is half written.
    fn read(&self, bytes: &[u8]) -> (Read, bool) {
        let words: Vec<u64> =
            bytes.as_chunks::<WORD>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let count = words.first().map_or(0, |count| (*count).min(REGIONS_MAX as u64) as usize);
        if count > self.entries {
            return (Read::Longer(count), false);
        }
        let (mut regions, mut torn) = (Vec::new(), false);
        let entries = words.get(1..).unwrap_or(&[]).as_chunks::<ENTRY_WORDS>().0;
        for &[start, bytes, slot, secret, sum] in entries.iter().take(count) {
            if [start, bytes, slot, secret, sum] == [0; ENTRY_WORDS] {
                continue;
            }
            if sum != check([start, bytes, slot, secret]) {
                torn = true;
                continue;
            }
            let key = RemoteKey { slot: SlotId::from_u64(slot), secret };
            regions.push(Region { start, bytes, key });
        }
        regions.sort_by_key(|region| region.start);
        (Read::Regions(regions), torn)
    }
}

#[cfg(test)]
mod tests;
