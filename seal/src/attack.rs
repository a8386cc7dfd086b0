//! Inputs of a fuzzer to a reader of records.
//!
//! The key is the same each time, so there is one good record for each number: whatever else is opened was forged.

use ropewalk_base::payload::{Cipher, DirectionKey, PayloadMode};

use crate::{HEAD_BYTES, Reader, TAG_BYTES, Window, Writer};

/// The texts that the other side has sealed, in order.
const TEXTS: [&[u8]; 3] = [b"the first text", b"?", b"the third text, which is a little longer"];

fn kinds() -> [(PayloadMode, Cipher); 4] {
    let ciphers = [Cipher::Aes256Gcm, Cipher::ChaCha20Poly1305];
    let modes = [PayloadMode::Auth, PayloadMode::Secure];
    [0, 1, 2, 3].map(|kind| (modes[kind % 2], ciphers[kind / 2]))
}

fn stream((mode, cipher): (PayloadMode, Cipher)) -> Vec<u8> {
    let mut writer = Writer::new(mode, cipher, DirectionKey([3; 32]));
    let mut bytes = Vec::new();
    for text in TEXTS {
        let mut record = [&[0; HEAD_BYTES], text, &[0; TAG_BYTES]].concat();
        writer.seal(&mut record);
        bytes.extend(record);
    }
    bytes
}

/// Good streams: the first byte chooses the kind.
pub fn streams() -> Vec<Vec<u8>> {
    let kinds = kinds().into_iter().enumerate();
    kinds.map(|(kind, what)| [&[kind as u8], &stream(what)[..]].concat()).collect()
}

/// Reads a stream as a rail does, and the numbers of packets that it may be taken for.
///
/// # Panics
/// A record is opened that the other side has not sealed, or a number counts twice.
pub fn records(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    let (mode, cipher) = kinds()[usize::from(*kind) % 4];
    let mut reader = Reader::new(mode, cipher, DirectionKey([3; 32]));
    let (mut rest, mut number) = (bytes.to_vec(), 0);
    while let Ok(Some(len)) = Reader::record_bytes(&rest)
        && len <= rest.len()
    {
        let behind = rest.split_off(len);
        let Ok(text) = reader.open(&mut rest) else { break };
        let sealed = TEXTS.get(number).copied();
        assert_eq!(Some(&rest[HEAD_BYTES..HEAD_BYTES + text]), sealed, "record {number}");
        (rest, number) = (behind, number + 1);
    }
    let (mut window, mut taken) = (Window::new(), std::collections::BTreeSet::new());
    for word in bytes.chunks_exact(2) {
        let number = u64::from(u16::from_le_bytes([word[0], word[1]]));
        assert!(!window.take(number) || taken.insert(number), "number {number} counts twice");
    }
}
