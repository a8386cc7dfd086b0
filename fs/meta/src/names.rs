//! Name hashes and directory cookies.
//!
//! A dentry's cookie is `hash * 128 + number`: a keyed 56-bit hash of the name and, among names of
//! the same hash in one directory, the first number that was free. It is fixed for the entry's life
//! and unique in its directory, so a scan that goes on behind a cookie meets every entry that stays
//! exactly once, whatever comes and goes meanwhile. The key comes from the superblock, so that
//! nobody can make names collide on purpose.

/// Entries of one directory with the same hash.
pub const COLLISIONS_MAX: u64 = 128;
/// Bits of the hash; with 7 bits of number, cookies have 63 and are never negative.
pub const HASH_BITS: u32 = 56;

/// Hashes names under a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameHasher {
    key: (u64, u64),
    bits: u32,
}

impl NameHasher {
    /// Hashes of `bits` bits (fewer than `HASH_BITS` only to provoke collisions).
    pub fn new(key: (u64, u64), bits: u32) -> NameHasher {
        assert!((2..=HASH_BITS).contains(&bits), "a name hash has 2 to {HASH_BITS} bits");
        NameHasher { key, bits }
    }

    /// The first cookie that a dentry of this name can have; `COLLISIONS_MAX` follow.
    pub fn first_cookie(&self, name: &[u8]) -> u64 {
        let hash = sip(self.key, name) >> (64 - self.bits);
        // Cookies below 256 are left to clients (`.`, `..` and the beginning).
        hash.max(2) * COLLISIONS_MAX
    }
}

/// SipHash-2-4 of `bytes`.
fn sip(key: (u64, u64), bytes: &[u8]) -> u64 {
    let mut v = [
        key.0 ^ 0x736f_6d65_7073_6575,
        key.1 ^ 0x646f_7261_6e64_6f6d,
        key.0 ^ 0x6c79_6765_6e65_7261,
        key.1 ^ 0x7465_6462_7974_6573,
    ];
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        absorb(&mut v, u64::from_le_bytes(chunk.try_into().expect("eight bytes")));
    }
    let mut last = [0u8; 8];
    last[..chunks.remainder().len()].copy_from_slice(chunks.remainder());
    last[7] = bytes.len() as u8;
    absorb(&mut v, u64::from_le_bytes(last));
    v[2] ^= 0xff;
    (0..4).for_each(|_| round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn absorb(v: &mut [u64; 4], word: u64) {
    v[3] ^= word;
    round(v);
    round(v);
    v[0] ^= word;
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[2] = v[2].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[1]);
    v[0] = v[0].wrapping_add(v[3]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_the_published_one() {
        // The test vectors of SipHash-2-4's authors: key 00..0f, input 00, 01, 02, ...
        let key = (0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908);
        let input: Vec<u8> = (0..15).collect();
        assert_eq!(sip(key, &input[..0]), 0x726f_db47_dd0e_0e31);
        assert_eq!(sip(key, &input), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn cookies_are_positive_and_leave_the_first_ones_free() {
        for bits in [2, 3, HASH_BITS] {
            let hasher = NameHasher::new((1, 2), bits);
            for name in 0..1000u32 {
                let first = hasher.first_cookie(&name.to_le_bytes());
                assert!(first >= 256 && first + COLLISIONS_MAX <= 1 << 63);
            }
        }
    }
}
