//! The bytes of a journal segment: one header, then records, each rounded up to 8 bytes.
//!
//! All numbers are little-endian.
//!
//! | segment header | bytes | record | bytes |
//! |---|---|---|---|
//! | magic "RWJOURNL" | 8 | payload length | 4 |
//! | format version | 4 | CRC32C of what follows in header and payload | 4 |
//! | CRC32C of the other fields | 4 | epoch | 8 |
//! | sequence of the segment | 8 | position | 8 |
//! | epoch | 8 | durable mark when written | 8 |
//! | position of the first record | 8 | payload | |
//! | durable mark when written | 8 | zeros to a multiple of 8 | |
//! | identity of the store | 16 | | |
//!
//! A record's CRC begins with that of the store's identity: records of another store's journal are none of
//! this one.
//!
//! Invariants: a record is believed only where CRC, epoch and position all fit, so that what a
//! recycled file held before is never read as new; no length is trusted before it is compared
//! with the bytes that are there.

use ropewalk_base::checksum;

/// Bytes of a segment's header, padded to a sector so that a torn record leaves it alone.
pub(super) const SEGMENT_HEADER_BYTES: u64 = 512;
/// Bytes of a record before its payload.
pub(super) const RECORD_HEADER_BYTES: usize = 32;
const MAGIC: &[u8; 8] = b"RWJOURNL";
const VERSION: u32 = 2;
const HEADER_USED: usize = 64;

/// The content of a segment's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SegmentHeader {
    /// Grows by one per segment; part of the file's name.
    pub sequence: u64,
    /// The boot counter of the server that wrote it.
    pub epoch: u64,
    /// Position of its first record.
    pub first: u64,
    /// The durable position when the header was written.
    pub durable: u64,
    /// The store that it belongs to.
    pub store: u128,
}

/// Why bytes are no header of a segment.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoHeader {
    /// Never written, torn, or damaged.
    Invalid,
    /// Written by a later version of this program.
    Newer(u32),
}

/// A record without its payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RecordHeader {
    pub len: usize,
    pub crc: u32,
    pub epoch: u64,
    pub position: u64,
    pub durable: u64,
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

impl SegmentHeader {
    /// Appends the header with its padding.
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        bytes.extend_from_slice(MAGIC);
        bytes.extend_from_slice(&VERSION.to_le_bytes());
        bytes.extend_from_slice(&[0; 4]);
        for number in [self.sequence, self.epoch, self.first, self.durable] {
            bytes.extend_from_slice(&number.to_le_bytes());
        }
        bytes.extend_from_slice(&self.store.to_le_bytes());
        let crc = header_crc(&bytes[start..]);
        bytes[start + 12..start + 16].copy_from_slice(&crc.to_le_bytes());
        bytes.resize(start + SEGMENT_HEADER_BYTES as usize, 0);
    }

    /// Reads a header.
    pub(super) fn decode(bytes: &[u8]) -> Result<SegmentHeader, NoHeader> {
        if bytes.len() < HEADER_USED || &bytes[..8] != MAGIC {
            return Err(NoHeader::Invalid);
        }
        if header_crc(bytes) != u32_at(bytes, 12) {
            return Err(NoHeader::Invalid);
        }
        // The checksum is the same in every format, so this number can be believed.
        let version = u32_at(bytes, 8);
        if version > VERSION {
            return Err(NoHeader::Newer(version));
        }
        Ok(SegmentHeader {
            sequence: u64_at(bytes, 16),
            epoch: u64_at(bytes, 24),
            first: u64_at(bytes, 32),
            durable: u64_at(bytes, 40),
            store: u128::from(u64_at(bytes, 56)) << 64 | u128::from(u64_at(bytes, 48)),
        })
    }
}

fn header_crc(bytes: &[u8]) -> u32 {
    checksum::append(checksum::crc32c(&bytes[..12]), &bytes[16..HEADER_USED])
}

/// Bytes that a record with so long a payload takes.
pub(super) fn record_bytes(payload: usize) -> usize {
    (RECORD_HEADER_BYTES + payload).next_multiple_of(8)
}

/// The start value of the checksums of a store's records.
pub(super) fn seed_of(store: u128) -> u32 {
    checksum::crc32c(&store.to_le_bytes())
}

/// Appends a record.
pub(super) fn encode_record(
    bytes: &mut Vec<u8>,
    seed: u32,
    epoch: u64,
    position: u64,
    durable: u64,
    payload: &[u8],
) {
    let start = bytes.len();
    bytes.reserve(record_bytes(payload.len()));
    bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&[0; 4]);
    for number in [epoch, position, durable] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    bytes.extend_from_slice(payload);
    let crc = crc_of(seed, payload.len(), &bytes[start + 8..]);
    bytes[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    bytes.resize(start + record_bytes(payload.len()), 0);
}

/// The checksum covers the length too: a damaged length never selects other bytes that fit.
fn crc_of(seed: u32, len: usize, rest: &[u8]) -> u32 {
    checksum::append(checksum::append(seed, &(len as u32).to_le_bytes()), rest)
}

impl RecordHeader {
    /// Reads the header at the start of `bytes`; `None` where they are too few.
    pub(super) fn decode(bytes: &[u8]) -> Option<RecordHeader> {
        if bytes.len() < RECORD_HEADER_BYTES {
            return None;
        }
        Some(RecordHeader {
            len: u32_at(bytes, 0) as usize,
            crc: u32_at(bytes, 4),
            epoch: u64_at(bytes, 8),
            position: u64_at(bytes, 16),
            durable: u64_at(bytes, 24),
        })
    }

    /// The payload behind the header at the start of `bytes`; `None` where it does not hold.
    pub(super) fn payload<'a>(&self, seed: u32, bytes: &'a [u8]) -> Option<&'a [u8]> {
        let end = RECORD_HEADER_BYTES.checked_add(self.len)?;
        let whole = bytes.get(8..end)?;
        (crc_of(seed, self.len, whole) == self.crc).then(|| &bytes[RECORD_HEADER_BYTES..end])
    }
}

/// For fuzzers, see [`crate::decoders`]: whether these bytes, with a checksum that fits, are a
/// segment's header; the journey must not change it.
pub(crate) fn accepts_header(bytes: &mut [u8]) -> bool {
    if bytes.len() >= HEADER_USED {
        let crc = header_crc(bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    }
    let Ok(header) = SegmentHeader::decode(bytes) else { return false };
    let mut again = Vec::new();
    header.encode(&mut again);
    assert_eq!(SegmentHeader::decode(&again), Ok(header));
    true
}

/// The same for a record: its payload, where the bytes hold one.
pub(crate) fn accepts_record(bytes: &mut [u8]) -> Option<&[u8]> {
    let header = RecordHeader::decode(bytes)?;
    let end = RECORD_HEADER_BYTES.checked_add(header.len)?;
    let seed = seed_of(0);
    let crc = crc_of(seed, header.len, bytes.get(8..end)?);
    bytes[4..8].copy_from_slice(&crc.to_le_bytes());
    RecordHeader::decode(bytes)?.payload(seed, bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_and_records_come_back_and_damage_is_seen() {
        let header =
            SegmentHeader { sequence: 7, epoch: 3, first: 100, durable: 90, store: 6 << 90 | 1 };
        let mut bytes = Vec::new();
        header.encode(&mut bytes);
        assert_eq!(bytes.len() as u64, SEGMENT_HEADER_BYTES);
        assert_eq!(SegmentHeader::decode(&bytes), Ok(header));
        for bit in 0..HEADER_USED * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(SegmentHeader::decode(&damaged), Ok(header), "bit {bit}");
        }

        let mut bytes = Vec::new();
        encode_record(&mut bytes, 5, 3, 100, 90, b"hello");
        assert_eq!(bytes.len(), record_bytes(5));
        let record = RecordHeader::decode(&bytes).unwrap();
        assert_eq!((record.epoch, record.position, record.durable), (3, 100, 90));
        assert_eq!(record.payload(5, &bytes), Some(&b"hello"[..]));
        assert_eq!(record.payload(6, &bytes), None, "of another store");
        for bit in 0..(RECORD_HEADER_BYTES + 5) * 8 {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let record = RecordHeader::decode(&damaged).unwrap();
            assert_eq!(record.payload(5, &damaged), None, "bit {bit}");
        }
        assert_eq!(RecordHeader::decode(&bytes[..31]), None);
    }
}
