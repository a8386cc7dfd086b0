//! CRC32C (Castagnoli), the one checksum of frames, blocks and journal records.

use crc_fast::CrcAlgorithm::Crc32Iscsi;
use crc_fast::Digest;

/// The CRC32C of `bytes`.
#[inline]
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Continues the CRC32C `crc` over `bytes`: `append(crc32c(a), b) == crc32c(a ++ b)`.
#[inline]
pub fn append(crc: u32, bytes: &[u8]) -> u32 {
    let mut digest = Digest::new_with_init_state(Crc32Iscsi, u64::from(!crc));
    digest.update(bytes);
    digest.finalize() as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_the_castagnoli_of_the_catalogue_in_whatever_parts() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        let bytes: Vec<u8> = (0..10_000u32).map(|at| ((at * 31) >> 3) as u8).collect();
        for at in [0, 1, 7, 63, 64, 255, 256, 4095, 9_999, 10_000] {
            assert_eq!(append(crc32c(&bytes[..at]), &bytes[at..]), crc32c(&bytes));
        }
    }
}
