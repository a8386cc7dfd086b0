//! The board: a small file beside the log in which each owner's last record is noted. It lies outside of
//! the log's directory, so that an older copy of that whole directory is noticed.
//!
//! A log alone cannot say that its own end is missing, or whom records concerned that nobody can read
//! any more. The board can: after each append the owner's slot gets the position of the owner's last
//! record, two stores into a mapped file and no system call. Together with the links from each
//! record to the owner's one before, the records of each object are a list of which nothing is lost
//! unseen. The board also has a second copy of where replay begins and of how far the log is durable.
//!
//! Invariants
//! * a position is noted after its record was appended and what the record announces was done, and
//!   before the call is acknowledged;
//! * every word has a second one beside it that must fit: one damaged word is never believed;
//! * nothing is ever lost with the board alone. It is not synced, so that after a power loss it may
//!   be of any age: positions in it then prove nothing, but its tail and durable end stay true.

use std::io;
use std::path::Path;
use std::sync::Arc;

use ropewalk_base::disk::{Disk, File, Open};

use super::ObjectId;
use super::error::is_unreadable;
use super::record::Owner;

const NAME: &str = "board";
const MAGIC: u64 = u64::from_le_bytes(*b"RWoboard");
/// Numbers at the front, each beside its complement.
const BEGIN: u64 = 1;
const ERA: u64 = 2;
const TAIL: u64 = 3;
const DURABLE: u64 = 4;
const OVERFLOW: u64 = 5;
const HEAD_BYTES: u64 = 256;
const SLOT_BYTES: u64 = 32;
/// Most slots that are read, whatever the file's length says.
const SLOTS_MAX: u64 = 1 << 20;

/// The position of an owner's last record.
#[derive(Debug, Default)]
pub(super) struct Chain {
    slot: Option<u32>,
    pub(super) owner: Option<Owner>,
    pub(super) last: u64,
}

/// The board of a log at work.
pub(super) struct Board {
    /// `None` where it could not be made: then nothing is noted.
    file: Option<Arc<dyn File>>,
    store: u128,
    slots: u32,
    used: u32,
    free: Vec<u32>,
}

/// The board's content from an earlier life of the store.
#[derive(Debug, Default)]
pub(super) struct Stand {
    /// First segment of that life.
    pub(super) begin: u64,
    pub(super) era: u64,
    pub(super) tail: u64,
    pub(super) durable: u64,
    /// From here on there was no slot for some owner.
    pub(super) overflow: Option<u64>,
    /// Owners, and the candidates for their last position: either, where they differ.
    pub(super) owners: Vec<(Owner, [u64; 2])>,
}

/// The two words that stand for an owner.
fn key(owner: Owner) -> [u64; 2] {
    match owner {
        Owner::Object(ObjectId { inode, generation, stripe }) => {
            [inode, u64::from(generation) << 32 | u64::from(stripe)]
        }
        Owner::Marks => [u64::MAX; 2],
    }
}

fn owner(key: [u64; 2]) -> Owner {
    if key == [u64::MAX; 2] {
        return Owner::Marks;
    }
    let [inode, low] = key;
    Owner::Object(ObjectId { inode, generation: (low >> 32) as u32, stripe: low as u32 })
}

/// The difference between a slot's guard and its position.
fn blind(key: [u64; 2], store: u128) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    let mixed = (key[0] ^ store as u64).wrapping_mul(ODD).rotate_left(29);
    (mixed ^ key[1] ^ (store >> 64) as u64).wrapping_mul(ODD) | 1 << 63
}

impl Chain {
    /// Instead of a position: all earlier changes are durable in the object's file.
    pub(super) const DURABLE: u64 = 1;

    pub(super) fn of_durable() -> Chain {
        Chain { last: Chain::DURABLE, ..Chain::default() }
    }
}

impl Stand {
    /// Reads the board. `None` where there is no board of this store, or the device does not give it back
    /// whole: an entry that cannot be read might be that of the owner of lost records.
    pub(super) fn read(
        disk: &dyn Disk,
        directory: &Path,
        store: u128,
    ) -> io::Result<Option<Stand>> {
        let file = match disk.open(&directory.join(NAME), Open::Read) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) if is_unreadable(&error) => return Ok(None),
            Err(error) => return Err(error),
        };
        let length = file.len()?.min(HEAD_BYTES + SLOTS_MAX * SLOT_BYTES) as usize;
        let mut bytes = vec![0; length];
        let read = match file.read_at(0, &mut bytes) {
            Err(error) if is_unreadable(&error) => return Ok(None),
            result => result?,
        };
        let mut words = [0; 8];
        let number = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        if read < HEAD_BYTES as usize {
            return Ok(None);
        }
        for (index, word) in words.iter_mut().enumerate() {
            let (value, complement) = (number(index * 16), number(index * 16 + 8));
            *word = if value == !complement { value } else { 0 };
        }
        if words[0] != MAGIC ^ store as u64 || words[BEGIN as usize] == 0 {
            return Ok(None);
        }
        let overflow = words[OVERFLOW as usize];
        let mut stand = Stand {
            begin: words[BEGIN as usize],
            era: words[ERA as usize],
            tail: words[TAIL as usize],
            durable: words[DURABLE as usize],
            overflow: (overflow != 0).then_some(overflow),
            owners: Vec::new(),
        };
        let slots = (read - HEAD_BYTES as usize) / SLOT_BYTES as usize;
        for slot in 0..slots {
            let at = HEAD_BYTES as usize + slot * SLOT_BYTES as usize;
            let key = [number(at), number(at + 8)];
            let (last, guard) = (number(at + 16), number(at + 24));
            if last != 0 || guard != 0 {
                stand.owners.push((owner(key), [last, guard ^ blind(key, store)]));
            }
        }
        Ok(Some(stand))
    }
}

impl Board {
    /// Takes the file for a new life of the log; its numbers follow with [`Board::begin`].
    pub(super) fn open(
        disk: &dyn Disk,
        directory: &Path,
        store: u128,
        slots: u32,
    ) -> io::Result<Board> {
        let make = || -> io::Result<Arc<dyn File>> {
            let path = directory.join(NAME);
            let readable = disk.open(&path, Open::Create).and_then(|file| {
                file.read_at(0, &mut vec![0; file.len()? as usize])?;
                Ok(file)
            });
            let file = match readable {
                Err(error) if is_unreadable(&error) => {
                    // A store into a mapped page that cannot be read would kill the process.
                    disk.remove_file(&path)?;
                    disk.open(&path, Open::Create)?
                }
                result => result?,
            };
            let wanted = HEAD_BYTES + u64::from(slots) * SLOT_BYTES;
            let length = file.len()?;
            if length < wanted {
                // Written, not reserved: a mapped page must never need room.
                file.write_at(length, &vec![0; (wanted - length) as usize])?;
            }
            Ok(file)
        };
        let file = match make() {
            Ok(file) => Some(file),
            // A store opens on a full device, too.
            Err(error) if super::error::is_full(&error) => None,
            Err(error) => return Err(error),
        };
        Ok(Board { file, store, slots, used: 0, free: Vec::new() })
    }

    /// A new life of the log begins at segment `begin`.
    pub(super) fn begin(&self, begin: u64, era: u64, tail: u64) -> io::Result<()> {
        self.clear()?;
        self.number(OVERFLOW, 0)?;
        self.number(TAIL, tail)?;
        self.number(ERA, era)?;
        self.number(BEGIN, begin)?;
        self.number(0, MAGIC ^ self.store as u64)
    }

    /// Takes away what earlier lives have noted: where the head was damaged nobody has judged it, and it
    /// must not come to life with the new one.
    fn clear(&self) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let length = file.len()?.min(HEAD_BYTES + SLOTS_MAX * SLOT_BYTES);
        let mut slots = vec![0; length.saturating_sub(HEAD_BYTES) as usize];
        file.read_at(HEAD_BYTES, &mut slots)?;
        if slots.iter().any(|byte| *byte != 0) {
            slots.fill(0);
            file.write_at(HEAD_BYTES, &slots)?;
        }
        Ok(())
    }

    /// Replay begins here now: the log says so durably.
    pub(super) fn tail(&self, tail: u64) {
        let _ = self.number(TAIL, tail);
    }

    /// The log is durable up to here.
    pub(super) fn durable(&self, durable: u64) {
        let _ = self.number(DURABLE, durable);
    }

    fn number(&self, index: u64, value: u64) -> io::Result<()> {
        match &self.file {
            Some(file) => file.note(index * 16, &[value, !value]),
            None => Ok(()),
        }
    }

    /// The owner's calls are done up to its last record.
    pub(super) fn note(&mut self, of: Owner, chain: &mut Chain) {
        // A position that cannot be noted is not needed as long as nothing is damaged.
        let _ = self.try_note(of, chain, chain.last);
    }

    fn try_note(&mut self, of: Owner, chain: &mut Chain, position: u64) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let key = key(of);
        let guard = position ^ blind(key, self.store);
        if let Some(slot) = chain.slot {
            return file.note(HEAD_BYTES + u64::from(slot) * SLOT_BYTES + 16, &[position, guard]);
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None if self.used < self.slots => {
                self.used += 1;
                self.used - 1
            }
            None => return self.number(OVERFLOW, position),
        };
        chain.slot = Some(slot);
        let at = HEAD_BYTES + u64::from(slot) * SLOT_BYTES;
        // In this order a death in between leaves nothing that could be taken for a position.
        file.note(at + 16, &[0, 0])?;
        file.note(at, &[key[0], key[1], position, guard])
    }

    /// Nothing of the owner is in the log's live part any more.
    pub(super) fn release(&mut self, chain: &mut Chain) {
        chain.last = 0;
        self.free.extend(chain.slot.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_disk::HostDisk;

    #[test]
    fn owners_are_read_back_and_one_damaged_word_leaves_the_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let object = |inode| Owner::Object(ObjectId { inode, generation: 1, stripe: 2 });
        let mut board = Board::open(&HostDisk, path, 99, 3).unwrap();
        board.begin(4, 5, 6).unwrap();
        board.durable(7);
        let mut chains: Vec<Chain> = (0..5).map(|_| Chain::default()).collect();
        let mut note = |board: &mut Board, of, chain: usize, position| {
            chains[chain].last = position;
            board.note(of, &mut chains[chain]);
        };
        for inode in 0..3 {
            note(&mut board, object(inode), inode as usize, 100 + inode);
        }
        note(&mut board, object(1), 1, 200);
        board.free.push(0);
        note(&mut board, Owner::Marks, 4, 300);
        let read = || Stand::read(&HostDisk, path, 99).unwrap();
        let stand = read().unwrap();
        assert_eq!((stand.begin, stand.era, stand.tail, stand.durable), (4, 5, 6, 7));
        let expected = [(Owner::Marks, [300; 2]), (object(1), [200; 2]), (object(2), [102; 2])];
        assert_eq!((stand.owners, stand.overflow), (expected.to_vec(), None));
        note(&mut board, object(3), 3, 400);
        assert_eq!(read().unwrap().overflow, Some(400));
        let file = HostDisk.open(&path.join(NAME), Open::Write).unwrap();
        file.write_at(HEAD_BYTES + SLOT_BYTES + 16, &[1]).unwrap();
        file.write_at(DURABLE * 16, &[1]).unwrap();
        let stand = read().unwrap();
        assert_eq!((stand.owners[1], stand.durable), ((object(1), [1, 200]), 0));
        assert!(Stand::read(&HostDisk, path, 98).unwrap().is_none());
    }
}
