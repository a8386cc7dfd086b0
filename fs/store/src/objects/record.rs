//! Records of the intent log, byte for byte.
//!
//! A record is `head | body | zeros to a multiple of 8 | head once more`, little endian. The head
//! says everything but the bytes: which object, which blocks, where the object's record before
//! this one lies. It has a CRC of its own and stands at both ends, so that damage to one of them
//! costs nothing, and damage to the body costs the named blocks of the named object and nothing
//! else. The CRCs are seeded with the store's identity, and the position is the record's place in the
//! whole log: neither what a recycled segment still holds nor another store's segment is taken for
//! new. The number of failed appends tells the rest of a batch whose append failed, and whose
//! beginning was overwritten, from what came later.
//!
//! Invariants
//! * parsing never panics and reads only inside the given bytes;
//! * a head is believed only at the place that its position names.

use ropewalk_base::checksum;

use super::block::BLOCK_BYTES;
use super::{GroupTag, ObjectId};

/// Bytes of a head.
pub(super) const HEAD_BYTES: usize = 80;
/// Log records lie at multiples of this.
pub(super) const ALIGNMENT: usize = 8;

/// The content of a record; borrowed from the bytes of its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Record<'a> {
    /// The first of a segment: replay begins at `tail`, with the file of marks of number `marks` or a
    /// later one; the segment before ended at `previous`.
    Start { tail: u64, previous: u64, era: u64, marks: u64 },
    /// Blocks are about to be written in place. Eight bytes each: old entry, new entry. `group` is the object's.
    Write { object: ObjectId, group: GroupTag, first: u32, entries: &'a [u8] },
    /// A block's whole content.
    Image { object: ObjectId, block: u32, bytes: &'a [u8] },
    /// A part of a block whose image came earlier.
    Delta { object: ObjectId, block: u32, offset: u32, bytes: &'a [u8] },
    /// Blocks read as zeros from here on.
    Hole { object: ObjectId, first: u32, count: u32 },
    /// All in-place writes of the object before `position` are durable.
    Mark { object: ObjectId, position: u64 },
    /// A sync failed: these blocks are in the page cache, perhaps not on the device.
    Suspect { object: ObjectId, first: u32, count: u32 },
    /// The inode's objects up to this generation are gone. `mark` is the caller's expiry mark.
    Tombstone { inode: u64, generation: u32, mark: u64 },
    /// The session's calls below `epoch` are refused.
    Fence { session: u64, epoch: u32, mark: u64 },
    /// Everything before `tail` is in place and durable; so are the marks of number `marks`.
    Checkpoint { tail: u64, marks: u64 },
}

const START: u8 = 1;
const WRITE: u8 = 2;
const IMAGE: u8 = 3;
const DELTA: u8 = 4;
const HOLE: u8 = 5;
const MARK: u8 = 6;
const SUSPECT: u8 = 7;
const TOMBSTONE: u8 = 8;
const FENCE: u8 = 9;
const CHECKPOINT: u8 = 10;

/// The owner of a chain of records: one object, or all tombstones and fences.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Owner {
    Object(ObjectId),
    /// Tombstones and fences.
    Marks,
}

/// A record without its body.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Head {
    /// Bytes of the body.
    length: u32,
    pub(super) position: u64,
    body_crc: u32,
    kind: u8,
    /// It opens a batch: the records that one call appended together.
    pub(super) first: bool,
    /// Appends that had failed since the log was opened.
    pub(super) attempt: u16,
    /// Everything before was durable when this was appended.
    pub(super) durable: u64,
    /// The record of the same owner before this one; 0 where there is none, 1 where the object's file has all
    /// earlier changes.
    pub(super) before: u64,
    /// Object, or two keys of other kinds.
    inode: u64,
    generation: u32,
    stripe: u32,
    a: u64,
    b: u64,
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

/// The pair of a `Write` record's entries for its `index`-th block: old, new.
pub(super) fn entry_pair(entries: &[u8], index: usize) -> (u32, u32) {
    (half(entries, index * 8), half(entries, index * 8 + 4))
}

/// Bytes that a record with such a body takes.
pub(super) const fn record_bytes(body: usize) -> usize {
    2 * HEAD_BYTES + body.next_multiple_of(ALIGNMENT)
}

/// Bytes of a `Write` record for so many blocks.
pub(super) const fn write_record_bytes(blocks: usize) -> usize {
    record_bytes(blocks * 8)
}

/// Bytes of an `Image` record.
pub(super) const IMAGE_RECORD_BYTES: usize = record_bytes(BLOCK_BYTES);

impl Head {
    fn to_bytes(self, salt: u32) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[4..8].copy_from_slice(&self.length.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.position.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.body_crc.to_le_bytes());
        bytes[20] = self.kind;
        bytes[21] = u8::from(self.first);
        bytes[22..24].copy_from_slice(&self.attempt.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.durable.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.before.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.inode.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.generation.to_le_bytes());
        bytes[52..56].copy_from_slice(&self.stripe.to_le_bytes());
        bytes[56..64].copy_from_slice(&self.a.to_le_bytes());
        bytes[64..72].copy_from_slice(&self.b.to_le_bytes());
        let crc = checksum::append(salt, &bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    fn fields(bytes: &[u8; HEAD_BYTES]) -> Head {
        Head {
            length: half(bytes, 4),
            position: word(bytes, 8),
            body_crc: half(bytes, 16),
            kind: bytes[20],
            first: bytes[21] != 0,
            attempt: u16::from_le_bytes([bytes[22], bytes[23]]),
            durable: word(bytes, 24),
            before: word(bytes, 32),
            inode: word(bytes, 40),
            generation: half(bytes, 48),
            stripe: half(bytes, 52),
            a: word(bytes, 56),
            b: word(bytes, 64),
        }
    }

    /// The head at the front of `bytes`, where it is one of the store with this salt.
    pub(super) fn read(bytes: &[u8], salt: u32) -> Option<Head> {
        let bytes = bytes.first_chunk::<HEAD_BYTES>()?;
        let right = checksum::append(salt, &bytes[4..]) == half(bytes, 0);
        right.then(|| Head::fields(bytes))
    }

    /// Bytes of the whole record.
    pub(super) fn record_bytes(&self) -> usize {
        record_bytes(self.length as usize)
    }

    pub(super) fn object(&self) -> ObjectId {
        ObjectId { inode: self.inode, generation: self.generation, stripe: self.stripe }
    }

    /// The owner in whose chain the record stands.
    pub(super) fn owner(&self) -> Option<Owner> {
        match self.kind {
            WRITE..=SUSPECT => Some(Owner::Object(self.object())),
            TOMBSTONE | FENCE => Some(Owner::Marks),
            _ => None,
        }
    }

    /// The blocks that the record changes or is about: first, count.
    pub(super) fn blocks(&self) -> (u32, u32) {
        let count = match self.kind {
            WRITE => u64::from(self.length / 8),
            IMAGE | DELTA => 1,
            HOLE | SUSPECT => self.b,
            _ => 0,
        };
        (self.a as u32, count as u32)
    }

    /// Whether the body of the record at the front of `bytes` matches the head.
    fn is_whole(&self, bytes: &[u8]) -> bool {
        let body = bytes.get(HEAD_BYTES..HEAD_BYTES + self.length as usize);
        body.is_some_and(|body| checksum::crc32c(body) == self.body_crc)
    }

    /// The record at the front of `bytes`; `None` where its body is damaged.
    pub(super) fn record<'a>(&self, bytes: &'a [u8]) -> Option<Record<'a>> {
        if !self.is_whole(bytes) {
            return None;
        }
        self.decode(&bytes[HEAD_BYTES..HEAD_BYTES + self.length as usize])
    }

    fn decode<'a>(&self, body: &'a [u8]) -> Option<Record<'a>> {
        let (object, a, b) = (self.object(), self.a, self.b);
        let small = |number: u64| u32::try_from(number).ok();
        let record = match self.kind {
            START => Record::Start { tail: a, previous: b, era: self.durable, marks: self.inode },
            WRITE => {
                let (first, blocks) = (small(a)?, u32::try_from(body.len() / 8).ok()?);
                first.checked_add(blocks)?;
                if !body.len().is_multiple_of(8) {
                    return None;
                }
                return Some(Record::Write { object, group: GroupTag(b), first, entries: body });
            }
            IMAGE if body.len() == BLOCK_BYTES => {
                return Some(Record::Image { object, block: small(a)?, bytes: body });
            }
            DELTA => {
                let (block, offset) = (small(a)?, small(b)?);
                if offset as usize + body.len() > BLOCK_BYTES {
                    return None;
                }
                return Some(Record::Delta { object, block, offset, bytes: body });
            }
            HOLE | SUSPECT => {
                let (first, count) = (small(a)?, small(b)?);
                first.checked_add(count)?;
                if self.kind == HOLE {
                    Record::Hole { object, first, count }
                } else {
                    Record::Suspect { object, first, count }
                }
            }
            MARK => Record::Mark { object, position: a },
            TOMBSTONE => {
                Record::Tombstone { inode: self.inode, generation: self.generation, mark: a }
            }
            FENCE => Record::Fence { session: self.inode, epoch: self.generation, mark: a },
            CHECKPOINT => Record::Checkpoint { tail: a, marks: b },
            _ => return None,
        };
        body.is_empty().then_some(record)
    }
}

impl<'a> Record<'a> {
    /// The head, as far as the record decides it, and the body.
    fn split(&self) -> (Head, &'a [u8]) {
        let of = |object: ObjectId| Head {
            inode: object.inode,
            generation: object.generation,
            stripe: object.stripe,
            ..Head::default()
        };
        let none: &[u8] = &[];
        match *self {
            Record::Start { tail, previous, era, marks } => {
                let head = Head { inode: marks, durable: era, ..Head::default() };
                (Head { kind: START, a: tail, b: previous, ..head }, none)
            }
            Record::Write { object, group, first, entries } => {
                (Head { kind: WRITE, a: first.into(), b: group.0, ..of(object) }, entries)
            }
            Record::Image { object, block, bytes } => {
                (Head { kind: IMAGE, a: block.into(), ..of(object) }, bytes)
            }
            Record::Delta { object, block, offset, bytes } => {
                let head = Head { a: block.into(), b: offset.into(), ..of(object) };
                (Head { kind: DELTA, ..head }, bytes)
            }
            Record::Hole { object, first, count } => {
                (Head { kind: HOLE, a: first.into(), b: count.into(), ..of(object) }, none)
            }
            Record::Suspect { object, first, count } => {
                (Head { kind: SUSPECT, a: first.into(), b: count.into(), ..of(object) }, none)
            }
            Record::Mark { object, position } => {
                (Head { kind: MARK, a: position, ..of(object) }, none)
            }
            Record::Tombstone { inode, generation, mark } => {
                (Head { kind: TOMBSTONE, inode, generation, a: mark, ..Head::default() }, none)
            }
            Record::Fence { session: inode, epoch: generation, mark } => {
                (Head { kind: FENCE, inode, generation, a: mark, ..Head::default() }, none)
            }
            Record::Checkpoint { tail, marks } => {
                (Head { kind: CHECKPOINT, a: tail, b: marks, ..Head::default() }, none)
            }
        }
    }

    /// Appends the record to `into`; [`seal`] fills in the fields that depend on its place.
    pub(super) fn encode(&self, first_of_batch: bool, into: &mut Vec<u8>) {
        let (mut head, body) = self.split();
        head.first = first_of_batch;
        head.length = body.len() as u32;
        into.extend_from_slice(&head.to_bytes(0));
        into.extend_from_slice(body);
        into.resize(into.len() + body.len().next_multiple_of(ALIGNMENT) - body.len(), 0);
        into.extend_from_slice(&[0; HEAD_BYTES]);
    }
}

/// The values that a batch's records have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Seal {
    /// The future position of the batch.
    pub(super) position: u64,
    /// The owner's record before.
    pub(super) before: u64,
    pub(super) durable: u64,
    pub(super) attempt: u16,
    pub(super) salt: u32,
}

/// Fills in positions, links and CRCs of a batch, all of whose records have one owner. Returns the
/// owner and the position of the last record.
pub(super) fn seal(batch: &mut [u8], place: Seal) -> (Option<Owner>, u64) {
    let Seal { mut position, mut before, durable, attempt, salt } = place;
    let mut owner = None;
    let mut rest = batch;
    while let Some(bytes) = rest.first_chunk::<HEAD_BYTES>() {
        let mut head = Head::fields(bytes);
        (head.position, head.attempt) = (position, attempt);
        if head.kind != START {
            head.durable = durable;
        }
        owner = head.owner();
        head.before = if owner.is_some() { before } else { 0 };
        head.body_crc = checksum::crc32c(&rest[HEAD_BYTES..HEAD_BYTES + head.length as usize]);
        let (bytes, taken) = (head.to_bytes(salt), head.record_bytes());
        rest[..HEAD_BYTES].copy_from_slice(&bytes);
        rest[taken - HEAD_BYTES..taken].copy_from_slice(&bytes);
        before = position;
        position += taken as u64;
        rest = &mut rest[taken..];
    }
    (owner, before)
}

/// For fuzzers, see [`crate::decoders`]: whether this is a record, head and body, once its lengths and
/// checksums fit; if so, it is found again where it says it lies.
pub(crate) fn accepts(bytes: &[u8]) -> bool {
    let Some((front, body)) = bytes.split_first_chunk::<HEAD_BYTES>() else { return false };
    let mut head = Head::fields(front);
    (head.length, head.position) = (body.len() as u32, 4096);
    let Some(record) = head.decode(body) else { return false };
    let mut batch = Vec::new();
    record.encode(head.first, &mut batch);
    let place = Seal { position: 4096, before: 5, durable: 6, attempt: 7, salt: 8 };
    seal(&mut batch, place);
    let found = Head::read(&batch, 8).expect("a sealed head");
    assert_eq!(found.record(&batch), Some(record));
    assert_eq!(Head::read(&batch[batch.len() - HEAD_BYTES..], 8), Some(found));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const SALT: u32 = 77;

    fn all() -> Vec<Record<'static>> {
        let object = ObjectId { inode: 1 << 40, generation: 2, stripe: 3 };
        vec![
            Record::Write {
                object,
                group: GroupTag::new(9),
                first: 5,
                entries: &[1, 0, 0, 0, 2, 0, 0, 0],
            },
            Record::Image { object, block: 6, bytes: &[9; BLOCK_BYTES] },
            Record::Delta { object, block: 6, offset: 4090, bytes: b"abcdef" },
            Record::Hole { object, first: 1, count: 2 },
            Record::Suspect { object, first: 1, count: 2 },
            Record::Mark { object, position: 77 },
            Record::Tombstone { inode: 1, generation: 2, mark: 3 },
            Record::Fence { session: 1, epoch: 2, mark: 3 },
            Record::Checkpoint { tail: 99, marks: 4 },
            Record::Start { tail: 1, previous: 2, era: 3, marks: 4 },
        ]
    }

    #[test]
    fn a_batch_is_read_back_and_every_flipped_bit_costs_one_head_or_the_body() {
        let mut batch = Vec::new();
        for (index, record) in all().iter().enumerate() {
            record.encode(index == 0, &mut batch);
        }
        let place = Seal { position: 4096, before: 9, durable: 8, attempt: 2, salt: SALT };
        let (_, last) = seal(&mut batch, place);
        let (mut at, mut before) = (0, 9);
        for record in all() {
            let head = Head::read(&batch[at..], SALT).unwrap();
            assert_eq!(Head::read(&batch[at..], SALT + 1), None);
            assert_eq!(head.record(&batch[at..]), Some(record));
            assert_eq!((head.position, head.first), (4096 + at as u64, at == 0));
            if head.owner().is_some() {
                assert_eq!((head.before, head.durable, head.attempt), (before, 8, 2));
            }
            before = head.position;
            let taken = head.record_bytes();
            for byte in 0..taken {
                let mut damaged = batch[at..at + taken].to_vec();
                damaged[byte] ^= 4;
                let front = Head::read(&damaged, SALT);
                let foot = Head::read(&damaged[taken - HEAD_BYTES..], SALT);
                let padded = byte >= HEAD_BYTES + head.length as usize;
                match byte {
                    _ if byte < HEAD_BYTES => assert_eq!((front, foot), (None, Some(head))),
                    _ if byte >= taken - HEAD_BYTES => {
                        assert_eq!((front, foot), (Some(head), None));
                    }
                    _ => assert_eq!(head.record(&damaged).is_some(), padded),
                }
            }
            at += taken;
        }
        assert_eq!((at, last), (batch.len(), before));
    }

    #[test]
    fn arbitrary_bytes_with_a_right_checksum_never_panic() {
        let mut random = ropewalk_base::random::Random::from_seed(1);
        let mut accepted = 0;
        for _ in 0..20_000 {
            let body = random.below(64) as usize & !7;
            let mut bytes = vec![0; HEAD_BYTES + body];
            bytes.iter_mut().for_each(|byte| *byte = random.next_u64() as u8);
            bytes[20] = random.below(12) as u8;
            if random.below(2) == 0 {
                bytes[56..72].fill(1);
                bytes[58..64].fill(0);
                bytes[66..72].fill(0);
            }
            accepted += u32::from(accepts(&bytes));
        }
        assert!(accepted > 1000, "{accepted}");
    }
}
