//! The bytes of one virtual file: sparse pages, and the changes that a power cut may lose.
//!
//! Invariants: an absent page reads as zeros; bytes at and after the length are zero, so growing
//! never shows old bytes; cloning an image shares its pages until one side writes.

use std::collections::BTreeMap;
use std::sync::Arc;

use ropewalk_base::random::Random;

/// Bytes of one page, the unit in which room is counted.
pub(super) const PAGE_BYTES: u64 = 4096;
/// The unit in which a write may be torn by a power cut.
pub(super) const SECTOR_BYTES: u64 = 512;

type Page = [u8; PAGE_BYTES as usize];

/// A sparse file image.
#[derive(Clone, Default)]
pub(super) struct Image {
    pages: BTreeMap<u64, Arc<Page>>,
    len: u64,
}

/// One change of a file since it was last synced.
#[derive(Clone)]
pub(super) enum Change {
    Write { offset: u64, bytes: Arc<[u8]> },
    SetLen(u64),
    Allocate { offset: u64, len: u64 },
    Punch { offset: u64, len: u64 },
}

/// The page numbers that a range touches.
pub(super) fn pages_of(offset: u64, len: u64) -> std::ops::Range<u64> {
    if len == 0 {
        return 0..0;
    }
    offset / PAGE_BYTES..offset.saturating_add(len).div_ceil(PAGE_BYTES)
}

impl Image {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Pages that take room.
    pub(super) fn page_count(&self) -> u64 {
        self.pages.len() as u64
    }

    /// Pages of a range that take no room yet.
    pub(super) fn missing(&self, offset: u64, len: u64) -> u64 {
        let range = pages_of(offset, len);
        let present = self.pages.range(range.clone()).count() as u64;
        (range.end - range.start) - present
    }

    /// Reads up to the end of the file; returns how many bytes were read.
    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> usize {
        let available = self.len.saturating_sub(offset).min(bytes.len() as u64) as usize;
        let mut done = 0;
        while done < available {
            let position = offset + done as u64;
            let start = (position % PAGE_BYTES) as usize;
            let part = (PAGE_BYTES as usize - start).min(available - done);
            let target = &mut bytes[done..done + part];
            match self.pages.get(&(position / PAGE_BYTES)) {
                Some(page) => target.copy_from_slice(&page[start..start + part]),
                None => target.fill(0),
            }
            done += part;
        }
        available
    }

    fn page_mut(&mut self, number: u64) -> &mut Page {
        let page = self.pages.entry(number).or_insert_with(|| Arc::new([0; PAGE_BYTES as usize]));
        Arc::make_mut(page)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) {
        let mut done = 0;
        while done < bytes.len() {
            let position = offset + done as u64;
            let start = (position % PAGE_BYTES) as usize;
            let part = (PAGE_BYTES as usize - start).min(bytes.len() - done);
            let page = self.page_mut(position / PAGE_BYTES);
            page[start..start + part].copy_from_slice(&bytes[done..done + part]);
            done += part;
        }
        if !bytes.is_empty() {
            self.len = self.len.max(offset + bytes.len() as u64);
        }
    }

    fn set_len(&mut self, len: u64) {
        if len < self.len {
            let tail = len % PAGE_BYTES;
            if let Some(page) = self.pages.get_mut(&(len / PAGE_BYTES)) {
                Arc::make_mut(page)[tail as usize..].fill(0);
            }
            self.pages.split_off(&len.div_ceil(PAGE_BYTES));
        }
        self.len = len;
    }

    fn allocate(&mut self, offset: u64, len: u64) {
        if len == 0 {
            return;
        }
        let zeros = Arc::new([0; PAGE_BYTES as usize]);
        for number in pages_of(offset, len) {
            self.pages.entry(number).or_insert_with(|| zeros.clone());
        }
        self.len = self.len.max(offset + len);
    }

    fn punch(&mut self, offset: u64, len: u64) {
        let end = offset.saturating_add(len);
        for number in pages_of(offset, len) {
            let (first, last) = (number * PAGE_BYTES, (number + 1) * PAGE_BYTES);
            if offset <= first && last <= end {
                self.pages.remove(&number);
            } else if let Some(page) = self.pages.get_mut(&number) {
                let from = offset.max(first) - first;
                let to = end.min(last) - first;
                Arc::make_mut(page)[from as usize..to as usize].fill(0);
            }
        }
    }

    /// Flips one bit at rest; false if the byte lies behind the end.
    pub(super) fn flip(&mut self, offset: u64, bit: u8) -> bool {
        if offset >= self.len {
            return false;
        }
        self.page_mut(offset / PAGE_BYTES)[(offset % PAGE_BYTES) as usize] ^= 1 << (bit % 8);
        true
    }

    /// Makes one change.
    pub(super) fn apply(&mut self, change: &Change) {
        match change {
            Change::Write { offset, bytes } => self.write(*offset, bytes),
            Change::SetLen(len) => self.set_len(*len),
            Change::Allocate { offset, len } => self.allocate(*offset, *len),
            Change::Punch { offset, len } => self.punch(*offset, *len),
        }
    }

    /// Makes what a power cut leaves of one change: all, nothing, or some sectors of a write.
    pub(super) fn apply_by_chance(&mut self, change: &Change, random: &mut Random) {
        match (random.below(4), change) {
            (0, _) => (),
            (1, Change::Write { offset, bytes }) => self.write_torn(*offset, bytes, random),
            _ => self.apply(change),
        }
    }

    /// Keeps an arbitrary set of the sectors that a write touches.
    fn write_torn(&mut self, offset: u64, bytes: &[u8], random: &mut Random) {
        // A writer that trusts the order of sectors survives a torn prefix; a scattered set is worse.
        let prefix = random.below(2) == 0;
        let end = offset + bytes.len() as u64;
        let keep = random.below(bytes.len() as u64 / SECTOR_BYTES + 2);
        let mut start = offset;
        let mut sector = 0;
        while start < end {
            let stop = (start / SECTOR_BYTES * SECTOR_BYTES + SECTOR_BYTES).min(end);
            let kept = if prefix { sector < keep } else { random.below(2) == 0 };
            if kept {
                self.write(start, &bytes[(start - offset) as usize..(stop - offset) as usize]);
            }
            sector += 1;
            start = stop;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_behave_like_a_flat_array() {
        let mut random = Random::from_seed(3);
        let mut image = Image::default();
        let mut flat: Vec<u8> = Vec::new();
        for round in 0..3000u64 {
            let offset = random.below(40_000);
            let len = random.below(9000);
            let change = match random.below(8) {
                0 => Change::SetLen(offset),
                1 => Change::Allocate { offset, len },
                2 => Change::Punch { offset, len },
                _ => Change::Write { offset, bytes: vec![round as u8; len as usize].into() },
            };
            image.apply(&change);
            let end = (offset + len) as usize;
            match change {
                Change::SetLen(len) => flat.resize(len as usize, 0),
                Change::Allocate { len, .. } | Change::Punch { len, .. } if len == 0 => (),
                Change::Allocate { .. } => flat.resize(flat.len().max(end), 0),
                Change::Punch { .. } => {
                    let stop = end.min(flat.len());
                    if (offset as usize) < stop {
                        flat[offset as usize..stop].fill(0);
                    }
                }
                Change::Write { bytes, .. } if !bytes.is_empty() => {
                    flat.resize(flat.len().max(end), 0);
                    flat[offset as usize..end].copy_from_slice(&bytes);
                }
                Change::Write { .. } => (),
            }
            assert_eq!(image.len(), flat.len() as u64, "round {round}");
            let mut read = vec![1; flat.len() + 10];
            assert_eq!(image.read(0, &mut read), flat.len());
            assert_eq!(read[..flat.len()], flat[..], "round {round}");
        }
    }
}
