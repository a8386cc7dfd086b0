//! The file `vote` in a server's directory: the memory of its voter. `docs/spec/vote.md` has its format.
//!
//! Invariants
//! * the record is there twice, each copy in a sector of its own. One is written when the other one is durable, so a whole
//!   copy of all that was answered is always there;
//! * the file is written in its place, so that a disk that is full takes it;
//! * a copy whose checksum fits and whose fields do not is refused like a damaged one.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};

use ropewalk_base::checksum::crc32c;
use ropewalk_base::disk::{Disk, Open, write_twice};
use ropewalk_wire::fs::election::MEMBERS_MAX;

use crate::ballot::Set;
use crate::voter::Record;

const NAME: &str = "vote";
const NEW_NAME: &str = "vote.new";
const MAGIC: &[u8; 8] = b"RWVOTE\0\0";
const FORMAT: u32 = 1;
/// Magic, format, server, term, `whole`, the set's term and number, the count of its members.
const HEAD_BYTES: usize = 52;
/// The checksum stands behind room for all members.
const SUM_AT: usize = HEAD_BYTES + 4 * MEMBERS_MAX;
/// Bytes of a copy.
const BYTES: usize = SUM_AT + 4;
/// The offset of the second copy.
const SECOND_AT: usize = 512;
const FILE_BYTES: usize = SECOND_AT + BYTES;

const _: () = assert!(BYTES <= SECOND_AT, "a copy fits into a sector");

/// A voter's record, and one more number that its server keeps beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Noted {
    pub record: Record,
    /// The era of the metadata store in which that store has all that was acknowledged; 0: none.
    pub whole: u64,
}

/// Why a voter cannot start, or does not answer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VoteError {
    #[error(
        "{} is damaged: restore it; or, if the other voters have theirs, remove it: this voter then takes part as a new one",
        path.display()
    )]
    Damaged { path: PathBuf },
    #[error("cannot {doing} {}: {cause}", path.display())]
    Io { doing: &'static str, path: PathBuf, cause: io::Error },
    #[error(
        "no ballot is answered, because {} could not be written before: repair the disk, and start the server again",
        path.display()
    )]
    Failed { path: PathBuf },
    #[error("the executor ended while a vote was stored")]
    Closed,
}

/// Whether a directory has a voter's record. Blocks.
pub fn has_record(disk: &dyn Disk, directory: &Path) -> io::Result<bool> {
    Ok(disk.kind(&directory.join(NAME))?.is_some())
}

/// The path of the file.
pub(crate) fn path(directory: &Path) -> PathBuf {
    directory.join(NAME)
}

/// The record in a directory; None: there is no file. Blocks.
pub(crate) fn read(disk: &dyn Disk, directory: &Path) -> Result<Option<Noted>, VoteError> {
    let path = path(directory);
    let fail = |cause| VoteError::Io { doing: "read", path: path.clone(), cause };
    let file = match disk.open(&path, Open::Read) {
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.map_err(fail)?,
    };
    let mut bytes = [0; FILE_BYTES];
    let count = file.read_at(0, &mut bytes).map_err(fail)?;
    decode(&bytes[..count]).map(Some).ok_or(VoteError::Damaged { path })
}

/// Stores a record durably. Blocks.
pub(crate) fn write(disk: &dyn Disk, directory: &Path, noted: &Noted) -> io::Result<()> {
    write_twice(disk, directory, (NAME, NEW_NAME), SECOND_AT as u64, &encode(noted))
}

/// Makes durable what a start has read: a former life may have died before it did so. Blocks.
pub(crate) fn confirm(disk: &dyn Disk, directory: &Path, noted: &Noted) -> io::Result<()> {
    // Written again, since a sync that failed may have left unwritten bytes that no later sync writes.
    write(disk, directory, noted)?;
    disk.sync_directory(directory)
}

/// The record in the bytes of a file: that of the newer whole copy. None: no copy is whole.
pub fn decode(bytes: &[u8]) -> Option<Noted> {
    let copy = |at: usize| decode_copy(bytes.get(at..at + BYTES)?);
    match (copy(0), copy(SECOND_AT)) {
        (Some(first), Some(second)) => {
            let age = |noted: &Noted| (noted.record.term, noted.record.set.clone());
            // The second one is written first.
            Some(if age(&first) > age(&second) { first } else { second })
        }
        (first, second) => first.or(second),
    }
}

/// The bytes of one copy.
///
/// # Panics
/// The set has more than 16 members.
pub fn encode(noted: &Noted) -> Vec<u8> {
    let Record { term, server, set } = &noted.record;
    let count = set.members.len();
    assert!(count <= MEMBERS_MAX, "a set of {count} members");
    let mut bytes = MAGIC.to_vec();
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(&server.to_le_bytes());
    for number in [*term, noted.whole, set.term, set.number] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(&(count as u32).to_le_bytes());
    set.members.iter().for_each(|member| bytes.extend_from_slice(&member.to_le_bytes()));
    bytes.resize(SUM_AT, 0);
    bytes.extend_from_slice(&crc32c(&bytes).to_le_bytes());
    bytes
}

fn decode_copy(bytes: &[u8]) -> Option<Noted> {
    let (body, sum) = bytes.split_at(SUM_AT);
    if !body.starts_with(MAGIC) || crc32c(body).to_le_bytes() != sum || word(body, 8) != FORMAT {
        return None;
    }
    let count = word(body, 48) as usize;
    if count > MEMBERS_MAX {
        return None;
    }
    let (members, rest) = body[HEAD_BYTES..].split_at(4 * count);
    let numbers: Vec<u32> = (0..count).map(|at| word(members, 4 * at)).collect();
    if !numbers.is_sorted_by(|one, next| one < next) || rest.iter().any(|byte| *byte != 0) {
        return None;
    }
    let set = Set {
        term: number(body, 32),
        number: number(body, 40),
        members: BTreeSet::from_iter(numbers),
    };
    let record = Record { term: number(body, 16), server: word(body, 12), set };
    Some(Noted { record, whole: number(body, 24) })
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn number(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// For fuzzers: makes the checksums fit, and answers whether a copy was whole. A record that is accepted has to survive a round
/// trip.
pub fn accepts(bytes: &[u8]) -> bool {
    let mut bytes = bytes.to_vec();
    for at in [0, SECOND_AT] {
        if let Some(copy) = bytes.get_mut(at..at + BYTES) {
            let (body, sum) = copy.split_at_mut(SUM_AT);
            sum.copy_from_slice(&crc32c(body).to_le_bytes());
        }
    }
    let Some(noted) = decode(&bytes) else { return false };
    assert_eq!(decode(&encode(&noted)), Some(noted), "the journey changes it");
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(term: u64, set: (u64, u64), members: &[u32], whole: u64) -> Noted {
        let members = members.iter().copied().collect();
        let set = Set { term: set.0, number: set.1, members };
        Noted { record: Record { term, server: 2, set }, whole }
    }

    fn file(first: &Noted, second: &Noted) -> Vec<u8> {
        let mut bytes = encode(first);
        bytes.resize(SECOND_AT, 0);
        bytes.extend_from_slice(&encode(second));
        bytes
    }

    #[test]
    fn a_copy_survives_the_journey_and_any_flipped_bit_is_noticed() {
        let full: Vec<u32> = (1..=MEMBERS_MAX as u32).collect();
        for members in [&[][..], &[1, 2], &full] {
            let noted = noted(7, (6, 1), members, u64::MAX);
            let bytes = encode(&noted);
            assert_eq!((bytes.len(), decode(&bytes)), (BYTES, Some(noted)));
            for bit in 0..8 * BYTES {
                let mut damaged = bytes.clone();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(decode(&damaged), None, "bit {bit}");
            }
        }
    }

    #[test]
    fn the_newer_whole_copy_counts() {
        let old = noted(7, (6, 1), &[1, 2], 5);
        let newer =
            [noted(8, (6, 1), &[1, 2], 5), noted(7, (7, 0), &[1, 2], 5), noted(7, (6, 2), &[1], 5)];
        for new in &newer {
            assert_eq!(decode(&file(&old, new)).as_ref(), Some(new));
            assert_eq!(decode(&file(new, &old)).as_ref(), Some(new));
            let mut damaged = file(&old, new);
            damaged[SECOND_AT + 20] ^= 1;
            assert_eq!(decode(&damaged).as_ref(), Some(&old));
            damaged[20] ^= 1;
            assert_eq!(decode(&damaged), None, "no copy is whole");
        }
        let (old, new) = (noted(7, (6, 1), &[1], 5), noted(7, (6, 1), &[1], 4));
        assert_eq!(decode(&file(&old, &new)), Some(new), "the second copy is written first");
    }

    #[test]
    fn fields_that_do_not_go_together_are_refused() {
        let mut bytes = encode(&noted(7, (6, 1), &[1, 2], 5));
        assert!(accepts(&bytes));
        for (at, byte) in [(8, 2), (48, 17), (48, 1), (52, 2), (52, 3), (60, 1)] {
            let before = std::mem::replace(&mut bytes[at], byte);
            assert!(!accepts(&bytes), "byte {at} is {byte}");
            bytes[at] = before;
        }
        assert!(!accepts(&bytes[..BYTES - 1]));
    }
}
