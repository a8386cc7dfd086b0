//! The decoders of the notes that a data server keeps beside its objects, for fuzzers.
//!
//! Each function makes the checksum fit first, and says whether the bytes were accepted.

use ropewalk_base::checksum;

use crate::{map_note, membership, told};

/// The bytes, with a checksum of all others at their end.
fn sealed<const BYTES: usize>(bytes: &[u8]) -> Option<[u8; BYTES]> {
    let mut sealed: [u8; BYTES] = bytes.get(..BYTES)?.try_into().ok()?;
    let (body, sum) = sealed.split_at_mut(BYTES - 4);
    sum.copy_from_slice(&checksum::crc32c(body).to_le_bytes());
    Some(sealed)
}

/// The history that a server joined, in both forms.
pub fn joined(bytes: &[u8]) -> bool {
    membership::accepts(sealed::<{ membership::BYTES }>(bytes).as_ref().map(|it| &it[..]))
        | membership::accepts(
            sealed::<{ membership::SHORT_BYTES }>(bytes).as_ref().map(|it| &it[..]),
        )
}

/// The newest map that a server has known.
pub fn map(bytes: &[u8]) -> bool {
    sealed(bytes).is_some_and(|bytes| map_note::accepts(&bytes))
}

/// The upgrade since when objects know their group.
pub fn told(bytes: &[u8]) -> bool {
    sealed::<{ told::BYTES }>(bytes).is_some_and(|bytes| told::accepts(&bytes))
}
