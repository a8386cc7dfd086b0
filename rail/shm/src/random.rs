//! Numbers that nobody can guess.

/// 64 bits that nobody can guess.
pub fn random() -> u64 {
    let mut bytes = [0u8; 8];
    // SAFETY: the pointer is to a live local of 8 bytes.
    let read = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    assert!(read == 8, "the kernel gives 8 random bytes at once");
    u64::from_ne_bytes(bytes)
}
