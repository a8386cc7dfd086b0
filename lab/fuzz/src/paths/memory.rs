//! The bytes of messages, and memory that one input leaves to the next.

use std::cell::RefCell;
use std::sync::LazyLock;

use ropewalk_base::random::Random;

/// Messages of a side, and the bytes of the longest one.
pub(super) const SENT_MAX: usize = 500;
pub(super) const MESSAGE_BYTES_MAX: usize = 70_000;
/// Bytes between the beginnings of two messages in the block of their bytes.
const STRIDE: usize = 61;

/// The bytes of a message: a stretch of one random block, so that each message differs from the others in all places.
pub(super) fn content(message: u64, len: usize) -> &'static [u8] {
    static BLOCK: LazyLock<Vec<u8>> = LazyLock::new(|| {
        let mut random = Random::from_seed(3);
        let words = (MESSAGE_BYTES_MAX + SENT_MAX * STRIDE) / 8 + 1;
        (0..words).flat_map(|_| random.next_u64().to_le_bytes()).collect()
    });
    &BLOCK[message as usize * STRIDE..][..len]
}

thread_local! {
    /// Memory of inputs before: what the kernel would have to clear for each of them anew.
    static SPARE: RefCell<Vec<Vec<u8>>> = const { RefCell::new(Vec::new()) };
}

fn spare() -> Vec<u8> {
    let mut bytes = SPARE.with_borrow_mut(Vec::pop).unwrap_or_default();
    bytes.clear();
    bytes
}

pub(super) fn memory(content: &[u8]) -> Vec<u8> {
    let mut bytes = spare();
    bytes.extend_from_slice(content);
    bytes
}

pub(super) fn zeros(len: usize) -> Vec<u8> {
    let mut bytes = spare();
    bytes.resize(len, 0);
    bytes
}

/// The next input has this memory again.
pub(super) fn leave(memory: impl Iterator<Item = Vec<u8>>) {
    SPARE.with_borrow_mut(|spare| spare.extend(memory));
}
