//! The head of the index file: whose it is, how long the engine's file in it is, and the engine's own
//! header. It is kept twice, a page apart, since the engine writes its header in place.
//!
//! | head | bytes |
//! |---|---|
//! | magic "RWINDEX\n" | 8 |
//! | format version | 4 |
//! | CRC32C of the other fields | 4 |
//! | sequence | 8 |
//! | identity of the store | 16 |
//! | length of the engine's file | 8 |
//! | header of the engine | 320 |
//!
//! Invariant: a head fits one sector, so a write of it that the power cuts leaves the old one or the new
//! one; both copies are the same at every sync.

use ropewalk_base::checksum;

/// Bytes of the engine's header.
pub(super) const ENGINE_BYTES: usize = 320;
/// Bytes of a head as it is written.
pub(super) const HEAD_BYTES: usize = 512;
const MAGIC: &[u8; 8] = b"RWINDEX\n";
const VERSION: u32 = 1;
const USED: usize = 48 + ENGINE_BYTES;
const _: () = assert!(USED <= HEAD_BYTES);

/// One copy of the head.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Head {
    /// Grows with every write.
    pub sequence: u64,
    pub store: u128,
    /// Bytes of the file that the engine believes to have.
    pub len: u64,
    pub engine: [u8; ENGINE_BYTES],
}

/// Why bytes are no head.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NoHead {
    Damaged,
    Newer(u32),
}

impl Head {
    pub(super) fn encode(&self) -> [u8; HEAD_BYTES] {
        let mut bytes = [0; HEAD_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.sequence.to_le_bytes());
        bytes[24..40].copy_from_slice(&self.store.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.len.to_le_bytes());
        bytes[48..USED].copy_from_slice(&self.engine);
        let crc = crc_of(&bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<Head, NoHead> {
        if bytes.len() < HEAD_BYTES || &bytes[..8] != MAGIC {
            return Err(NoHead::Damaged);
        }
        let four = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four"));
        let eight = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight"));
        if crc_of(bytes) != four(12) {
            return Err(NoHead::Damaged);
        }
        if four(8) > VERSION {
            return Err(NoHead::Newer(four(8)));
        }
        let mut engine = [0; ENGINE_BYTES];
        engine.copy_from_slice(&bytes[48..USED]);
        Ok(Head {
            sequence: eight(16),
            store: u128::from(eight(32)) << 64 | u128::from(eight(24)),
            len: eight(40),
            engine,
        })
    }
}

fn crc_of(bytes: &[u8]) -> u32 {
    checksum::append(checksum::crc32c(&bytes[..12]), &bytes[16..HEAD_BYTES])
}

/// For fuzzers, see [`crate::decoders`]: whether these bytes, with a checksum that fits, are a head.
pub(crate) fn accepts(bytes: &mut [u8]) -> bool {
    if bytes.len() >= HEAD_BYTES {
        let crc = crc_of(bytes);
        bytes[12..16].copy_from_slice(&crc.to_le_bytes());
    }
    let Ok(head) = Head::decode(bytes) else { return false };
    assert_eq!(Head::decode(&head.encode()), Ok(head));
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_come_back_and_any_flipped_bit_is_noticed() {
        let engine = std::array::from_fn(|at| at as u8);
        let head = Head { sequence: 7, store: 5 << 70 | 9, len: 4096 * 9, engine };
        let bytes = head.encode();
        assert_eq!(Head::decode(&bytes), Ok(head));
        for bit in 0..HEAD_BYTES * 8 {
            let mut damaged = bytes;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Head::decode(&damaged), Err(NoHead::Damaged), "bit {bit}");
        }
        assert_eq!(Head::decode(&bytes[..500]), Err(NoHead::Damaged));
    }
}
