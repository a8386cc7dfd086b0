//! Records of the intent log, byte for byte.
//!
//! A record is `crc u32 | length u32 | position u64 | payload | zeros to a multiple of 8`, little
//! endian. The CRC continues that of the record before (0 at the start of a segment) over everything
//! after itself up to the end of the payload. The position is the record's place in the whole log,
//! so what a recycled segment still holds is never taken for new; and since the CRCs are a chain,
//! neither is the rest of a batch whose append failed and whose beginning was overwritten. The
//! payload begins with its kind, whether the record opens a batch (what one call appended
//! together), and a number of two bytes that grows at every failed append.
//!
//! Invariant: parsing never panics and reads only inside the given bytes.

use ropewalk_base::checksum;

use super::ObjectId;
use super::block::BLOCK_BYTES;

/// Bytes before a record's payload.
pub(super) const HEAD_BYTES: usize = 16;
const OBJECT_BYTES: usize = 16;

/// What a record says; borrowed from the bytes of its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Record<'a> {
    /// The first of a segment: replay begins at `tail`; the segment before ended at `previous`.
    Start { tail: u64, previous: u64, era: u64 },
    /// Blocks are about to be written in place. Eight bytes each: old entry, new entry.
    Write { object: ObjectId, first: u32, entries: &'a [u8] },
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
    /// Everything before `tail` is in place and durable.
    Checkpoint { tail: u64 },
}

/// Reads numbers off the front of a slice.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(front)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.bytes(N)?.try_into().ok()
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn object(&mut self) -> Option<ObjectId> {
        Some(ObjectId { inode: self.u64()?, generation: self.u32()?, stripe: self.u32()? })
    }
}

/// The pair of a `Write` record's entries for its `index`-th block: old, new.
pub(super) fn entry_pair(entries: &[u8], index: usize) -> (u32, u32) {
    let at = |from: usize| {
        let mut word = [0; 4];
        word.copy_from_slice(&entries[from..from + 4]);
        u32::from_le_bytes(word)
    };
    (at(index * 8), at(index * 8 + 4))
}

/// Bytes that a record with such a payload takes.
pub(super) const fn record_bytes(payload: usize) -> usize {
    (HEAD_BYTES + payload).next_multiple_of(8)
}

/// Bytes of a `Write` record for so many blocks.
pub(super) const fn write_record_bytes(blocks: usize) -> usize {
    record_bytes(4 + OBJECT_BYTES + 4 + blocks * 8)
}

/// Bytes of an `Image` record.
pub(super) const IMAGE_RECORD_BYTES: usize = record_bytes(4 + OBJECT_BYTES + 4 + BLOCK_BYTES);

impl<'a> Record<'a> {
    fn kind(&self) -> u8 {
        match self {
            Record::Start { .. } => 1,
            Record::Write { .. } => 2,
            Record::Image { .. } => 3,
            Record::Delta { .. } => 4,
            Record::Hole { .. } => 5,
            Record::Mark { .. } => 6,
            Record::Suspect { .. } => 7,
            Record::Tombstone { .. } => 8,
            Record::Fence { .. } => 9,
            Record::Checkpoint { .. } => 10,
        }
    }

    /// Appends the record to `into`; position and CRC are filled in by [`seal`].
    pub(super) fn encode(&self, first_of_batch: bool, into: &mut Vec<u8>) {
        let start = into.len();
        into.extend_from_slice(&[0; HEAD_BYTES]);
        into.extend_from_slice(&[self.kind(), u8::from(first_of_batch), 0, 0]);
        self.encode_fields(into);
        let length = (into.len() - start - HEAD_BYTES) as u32;
        into[start + 4..start + 8].copy_from_slice(&length.to_le_bytes());
        into.resize(start + (into.len() - start).next_multiple_of(8), 0);
    }

    fn encode_fields(&self, into: &mut Vec<u8>) {
        let object = |into: &mut Vec<u8>, object: &ObjectId| {
            into.extend_from_slice(&object.inode.to_le_bytes());
            into.extend_from_slice(&object.generation.to_le_bytes());
            into.extend_from_slice(&object.stripe.to_le_bytes());
        };
        match self {
            Record::Start { tail, previous, era } => {
                into.extend_from_slice(&tail.to_le_bytes());
                into.extend_from_slice(&previous.to_le_bytes());
                into.extend_from_slice(&era.to_le_bytes());
                into.extend_from_slice(&[0; 8]);
            }
            Record::Write { object: id, first, entries } => {
                object(into, id);
                into.extend_from_slice(&first.to_le_bytes());
                into.extend_from_slice(entries);
            }
            Record::Image { object: id, block, bytes } => {
                object(into, id);
                into.extend_from_slice(&block.to_le_bytes());
                into.extend_from_slice(bytes);
            }
            Record::Delta { object: id, block, offset, bytes } => {
                object(into, id);
                into.extend_from_slice(&block.to_le_bytes());
                into.extend_from_slice(&offset.to_le_bytes());
                into.extend_from_slice(bytes);
            }
            Record::Hole { object: id, first, count }
            | Record::Suspect { object: id, first, count } => {
                object(into, id);
                into.extend_from_slice(&first.to_le_bytes());
                into.extend_from_slice(&count.to_le_bytes());
            }
            Record::Mark { object: id, position } => {
                object(into, id);
                into.extend_from_slice(&position.to_le_bytes());
            }
            Record::Tombstone { inode: key, generation: low, mark }
            | Record::Fence { session: key, epoch: low, mark } => {
                into.extend_from_slice(&key.to_le_bytes());
                into.extend_from_slice(&low.to_le_bytes());
                into.extend_from_slice(&mark.to_le_bytes());
            }
            Record::Checkpoint { tail } => into.extend_from_slice(&tail.to_le_bytes()),
        }
    }

    fn decode(payload: &'a [u8]) -> Option<(Record<'a>, bool)> {
        let mut reader = Reader(payload);
        let [kind, first, _, _] = reader.array::<4>()?;
        let record = match kind {
            1 => {
                let (tail, previous, era) = (reader.u64()?, reader.u64()?, reader.u64()?);
                reader.bytes(8)?;
                Record::Start { tail, previous, era }
            }
            2 => {
                let (object, first) = (reader.object()?, reader.u32()?);
                let entries = reader.bytes(reader.0.len())?;
                let blocks = u32::try_from(entries.len() / 8).ok()?;
                first.checked_add(blocks)?;
                if entries.len() % 8 != 0 {
                    return None;
                }
                Record::Write { object, first, entries }
            }
            3 => {
                let (object, block) = (reader.object()?, reader.u32()?);
                Record::Image { object, block, bytes: reader.bytes(BLOCK_BYTES)? }
            }
            4 => {
                let (object, block, offset) = (reader.object()?, reader.u32()?, reader.u32()?);
                let bytes = reader.bytes(reader.0.len())?;
                if offset as usize + bytes.len() > BLOCK_BYTES {
                    return None;
                }
                Record::Delta { object, block, offset, bytes }
            }
            5 | 7 => {
                let (object, first, count) = (reader.object()?, reader.u32()?, reader.u32()?);
                first.checked_add(count)?;
                if kind == 5 {
                    Record::Hole { object, first, count }
                } else {
                    Record::Suspect { object, first, count }
                }
            }
            6 => Record::Mark { object: reader.object()?, position: reader.u64()? },
            8 => {
                let (inode, generation) = (reader.u64()?, reader.u32()?);
                Record::Tombstone { inode, generation, mark: reader.u64()? }
            }
            9 => {
                let (session, epoch) = (reader.u64()?, reader.u32()?);
                Record::Fence { session, epoch, mark: reader.u64()? }
            }
            10 => Record::Checkpoint { tail: reader.u64()? },
            _ => return None,
        };
        reader.0.is_empty().then_some((record, first != 0))
    }

    /// The record at the front of `bytes`, which must be the one of `position` and follow a record
    /// with the CRC `chain`. `None` where there is none, or a torn one.
    pub(super) fn parse(bytes: &'a [u8], position: u64, chain: u32) -> Option<Parsed<'a>> {
        let mut reader = Reader(bytes);
        let crc = reader.u32()?;
        let length = reader.u32()? as usize;
        if reader.u64()? != position {
            return None;
        }
        let payload = reader.bytes(length)?;
        if checksum::append(chain, &bytes[4..HEAD_BYTES + length]) != crc {
            return None;
        }
        let (record, first) = Record::decode(payload)?;
        let taken = record_bytes(length);
        (taken <= bytes.len()).then_some(Parsed { record, taken, first, chain: crc })
    }
}

/// For fuzzers, see [`crate::decoders`]: whether this is the payload of a record; if so, it is found
/// again behind a head that fits.
pub(crate) fn accepts(payload: &[u8]) -> bool {
    let Some((record, first)) = Record::decode(payload) else { return false };
    let mut batch = vec![0; HEAD_BYTES];
    batch[4..8].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    batch.extend_from_slice(payload);
    batch.resize(batch.len().next_multiple_of(8), 0);
    let position = 4096;
    batch[8..16].copy_from_slice(&u64::to_le_bytes(position));
    let crc = checksum::append(7, &batch[4..HEAD_BYTES + payload.len()]);
    batch[..4].copy_from_slice(&crc.to_le_bytes());
    let parsed = Record::parse(&batch, position, 7).expect("a record with a fitting head");
    assert_eq!((parsed.record, parsed.first), (record, first));
    true
}

/// A record as it was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Parsed<'a> {
    pub(super) record: Record<'a>,
    /// Bytes it takes.
    pub(super) taken: usize,
    /// It opens a batch.
    pub(super) first: bool,
    /// What the next record's CRC continues.
    pub(super) chain: u32,
}

/// Fills in positions and CRCs of a batch that will lie at `position` after a record with the CRC
/// `chain`, at the log's `attempt`-th failure; returns the CRC of the last record.
pub(super) fn seal(batch: &mut [u8], mut position: u64, mut chain: u32, attempt: u16) -> u32 {
    let mut rest = batch;
    while !rest.is_empty() {
        let mut word = [0; 4];
        word.copy_from_slice(&rest[4..8]);
        let length = u32::from_le_bytes(word) as usize;
        rest[8..16].copy_from_slice(&position.to_le_bytes());
        rest[HEAD_BYTES + 2..HEAD_BYTES + 4].copy_from_slice(&attempt.to_le_bytes());
        chain = checksum::append(chain, &rest[4..HEAD_BYTES + length]);
        rest[..4].copy_from_slice(&chain.to_le_bytes());
        let taken = record_bytes(length);
        position += taken as u64;
        rest = &mut rest[taken..];
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<Record<'static>> {
        let object = ObjectId { inode: 1 << 40, generation: 2, stripe: 3 };
        vec![
            Record::Start { tail: 1, previous: 2, era: 3 },
            Record::Write { object, first: 5, entries: &[1, 0, 0, 0, 2, 0, 0, 0] },
            Record::Image { object, block: 6, bytes: &[9; BLOCK_BYTES] },
            Record::Delta { object, block: 6, offset: 4090, bytes: b"abcdef" },
            Record::Hole { object, first: 1, count: 2 },
            Record::Suspect { object, first: 1, count: 2 },
            Record::Mark { object, position: 77 },
            Record::Tombstone { inode: 1, generation: 2, mark: 3 },
            Record::Fence { session: 1, epoch: 2, mark: 3 },
            Record::Checkpoint { tail: 99 },
        ]
    }

    #[test]
    fn a_batch_is_read_back_and_every_flipped_bit_is_seen() {
        let mut batch = Vec::new();
        for (index, record) in all().iter().enumerate() {
            record.encode(index == 0, &mut batch);
        }
        let last = seal(&mut batch, 4096, 9, 2);
        let (mut at, mut chain) = (0, 9);
        for record in all() {
            let parsed = Record::parse(&batch[at..], 4096 + at as u64, chain).unwrap();
            assert_eq!((parsed.record, parsed.first), (record, at == 0));
            let taken = parsed.taken;
            for bit in [0, 40, 70, 130, 150] {
                let mut damaged = batch[at..at + taken].to_vec();
                damaged[bit / 8] ^= 1 << (bit % 8);
                assert!(Record::parse(&damaged, 4096 + at as u64, chain).is_none());
            }
            assert!(Record::parse(&batch[at..at + taken], 1, chain).is_none());
            assert!(Record::parse(&batch[at..at + taken], 4096 + at as u64, chain + 1).is_none());
            chain = parsed.chain;
            at += taken;
        }
        assert_eq!((at, chain), (batch.len(), last));
    }

    #[test]
    fn arbitrary_bytes_with_a_right_checksum_never_panic() {
        let mut random = ropewalk_base::random::Random::from_seed(1);
        for _ in 0..20_000 {
            let length = random.below(64) as usize;
            let mut bytes = vec![0; record_bytes(length)];
            bytes[4..8].copy_from_slice(&(length as u32).to_le_bytes());
            for byte in &mut bytes[HEAD_BYTES..HEAD_BYTES + length] {
                *byte = random.next_u64() as u8;
            }
            if length < 4 {
                continue;
            }
            bytes[HEAD_BYTES] = 1 + random.below(11) as u8;
            seal(&mut bytes, 0, 0, 0);
            let cut = random.below(bytes.len() as u64 + 1) as usize;
            let _ = Record::parse(&bytes[..cut], 0, 0);
            if let Some(Parsed { record, taken, .. }) = Record::parse(&bytes, 0, 0) {
                assert_eq!(taken, bytes.len());
                let mut again = Vec::new();
                record.encode(bytes[HEAD_BYTES + 1] != 0, &mut again);
                assert_eq!(again.len(), bytes.len());
            }
        }
    }
}
