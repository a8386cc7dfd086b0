//! CRC32C (Castagnoli), the one checksum of frames, blocks and journal records.

/// The CRC32C of `bytes`.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes)
}

/// Continues the CRC32C `crc` over `bytes`: `append(crc32c(a), b) == crc32c(a ++ b)`.
pub fn append(crc: u32, bytes: &[u8]) -> u32 {
    crc32c::crc32c_append(crc, bytes)
}

/// The CRC32C of a concatenation from those of its parts: the second part has `second_bytes` bytes.
pub fn combine(first: u32, second: u32, second_bytes: usize) -> u32 {
    crc32c::crc32c_combine(first, second, second_bytes)
}
