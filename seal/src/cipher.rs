//! One direction of a link: seals or opens texts under keys that follow each other.

use std::fmt;

use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::hmac;
use ropewalk_base::payload::{Cipher, DirectionKey, PayloadMode};

/// Bytes of a tag.
pub const TAG_BYTES: usize = 16;
/// Most records under one key. With records of 16 KiB it is 256 GiB: less than half of what RFC 8446, section 5.5, allows.
pub const RECORDS_PER_KEY: u64 = 1 << 24;

/// The tag does not hold: nothing of the text may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refused;

/// The key of one generation.
struct Generation {
    number: u64,
    secret: DirectionKey,
    key: LessSafeKey,
}

/// What both directions have.
struct Direction {
    mode: PayloadMode,
    cipher: Cipher,
    per_key: u64,
    now: Generation,
}

/// Seals the texts of one direction.
pub struct Sealer {
    direction: Direction,
    /// The lowest number that was not used.
    next: u64,
}

/// Opens the texts of one direction.
pub struct Opener {
    direction: Direction,
    /// The key before this one: packets overtake each other around a change of keys.
    before: Option<Generation>,
}

/// Whether this processor has instructions for AES and its product.
pub fn hardware_aes() -> bool {
    #[cfg(any(target_arch = "x86", target_arch = "x86_64"))]
    return std::arch::is_x86_feature_detected!("aes")
        && std::arch::is_x86_feature_detected!("pclmulqdq");
    #[cfg(target_arch = "aarch64")]
    return std::arch::is_aarch64_feature_detected!("aes")
        && std::arch::is_aarch64_feature_detected!("pmull");
    #[cfg(not(any(target_arch = "x86", target_arch = "x86_64", target_arch = "aarch64")))]
    false
}

impl Generation {
    fn new(cipher: Cipher, number: u64, secret: DirectionKey) -> Generation {
        let algorithm = match cipher {
            Cipher::Aes256Gcm => &AES_256_GCM,
            Cipher::ChaCha20Poly1305 => &CHACHA20_POLY1305,
        };
        let key = derive(&secret, b"ropewalk record key");
        let key = UnboundKey::new(algorithm, &key.0).expect("both ciphers have keys of 32 bytes");
        Generation { number, secret, key: LessSafeKey::new(key) }
    }

    /// The next one. Whoever has it does not get this one from it.
    fn next(&self, cipher: Cipher) -> Generation {
        let secret = derive(&self.secret, b"ropewalk next secret");
        Generation::new(cipher, self.number + 1, secret)
    }
}

fn derive(secret: &DirectionKey, purpose: &[u8]) -> DirectionKey {
    let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &secret.0), purpose);
    DirectionKey(tag.as_ref().try_into().expect("SHA-256 has 32 bytes"))
}

/// The nonce of a number: four zeros, and the number.
fn nonce(number: u64) -> Nonce {
    let mut bytes = [0; NONCE_LEN];
    bytes[NONCE_LEN - 8..].copy_from_slice(&number.to_be_bytes());
    Nonce::assume_unique_for_key(bytes)
}

impl Direction {
    fn new(mode: PayloadMode, cipher: Cipher, secret: DirectionKey, per_key: u64) -> Direction {
        assert!(mode > PayloadMode::Crc, "this mode has no keys");
        Direction { mode, cipher, per_key, now: Generation::new(cipher, 0, secret) }
    }
}

impl Sealer {
    /// Seals with this secret from number 0 on.
    pub fn new(mode: PayloadMode, cipher: Cipher, secret: DirectionKey) -> Sealer {
        Sealer::with_keys_of(mode, cipher, secret, RECORDS_PER_KEY)
    }

    /// The same with another number of records for each key, for tests.
    pub fn with_keys_of(
        mode: PayloadMode,
        cipher: Cipher,
        secret: DirectionKey,
        per_key: u64,
    ) -> Sealer {
        Sealer { direction: Direction::new(mode, cipher, secret, per_key), next: 0 }
    }

    /// The lowest number that was not used.
    pub fn next(&self) -> u64 {
        self.next
    }

    /// Seals the bytes behind the first `head` ones, which stay readable. The number was never used before, nor was a
    /// higher one.
    pub fn seal(&mut self, number: u64, head: usize, bytes: &mut [u8]) -> [u8; TAG_BYTES] {
        assert!(number >= self.next, "a number is used once");
        self.next = number.checked_add(1).expect("2^64 records take longer than any machine lives");
        let Direction { mode, cipher, per_key, now } = &mut self.direction;
        while now.number < number / *per_key {
            *now = now.next(*cipher);
        }
        let sealed = if *mode == PayloadMode::Auth {
            now.key.seal_in_place_separate_tag(nonce(number), Aad::from(&*bytes), &mut [])
        } else {
            let (head, text) = bytes.split_at_mut(head);
            now.key.seal_in_place_separate_tag(nonce(number), Aad::from(&*head), text)
        };
        let tag = sealed.expect("a record is far below the limits of the ciphers");
        tag.as_ref().try_into().expect("both ciphers have tags of 16 bytes")
    }
}

impl Opener {
    /// Opens what a [`Sealer`] with the same arguments sealed.
    pub fn new(mode: PayloadMode, cipher: Cipher, secret: DirectionKey) -> Opener {
        Opener::with_keys_of(mode, cipher, secret, RECORDS_PER_KEY)
    }

    /// The same with another number of records for each key, for tests.
    pub fn with_keys_of(
        mode: PayloadMode,
        cipher: Cipher,
        secret: DirectionKey,
        per_key: u64,
    ) -> Opener {
        Opener { direction: Direction::new(mode, cipher, secret, per_key), before: None }
    }

    /// Opens the bytes behind the first `head` ones; the last 16 are the tag. Returns the bytes of the text, which lies
    /// behind the head then.
    ///
    /// # Errors
    /// The tag does not hold; what lies there is worth nothing.
    pub fn open(&mut self, number: u64, head: usize, bytes: &mut [u8]) -> Result<usize, Refused> {
        let text = bytes.len().checked_sub(head + TAG_BYTES).ok_or(Refused)?;
        let wanted = number / self.direction.per_key;
        if wanted == self.direction.now.number + 1 {
            return self.open_with_next(number, head, bytes).map(|()| text);
        }
        let mode = self.direction.mode;
        let now = &self.direction.now;
        let generations = self.before.iter().chain([now]);
        let mut found = generations.filter(|generation| generation.number == wanted);
        let generation = found.next().ok_or(Refused)?;
        open(&generation.key, mode, number, head, bytes).map(|()| text)
    }

    /// Goes on to the next key, if the text shows that the other side has.
    fn open_with_next(
        &mut self,
        number: u64,
        head: usize,
        bytes: &mut [u8],
    ) -> Result<(), Refused> {
        let Direction { mode, cipher, now, .. } = &mut self.direction;
        let next = now.next(*cipher);
        open(&next.key, *mode, number, head, bytes)?;
        self.before = Some(std::mem::replace(now, next));
        Ok(())
    }
}

fn open(
    key: &LessSafeKey,
    mode: PayloadMode,
    number: u64,
    head: usize,
    bytes: &mut [u8],
) -> Result<(), Refused> {
    if mode == PayloadMode::Auth {
        let (said, tag) = bytes.split_at_mut(bytes.len() - TAG_BYTES);
        return match key.open_in_place(nonce(number), Aad::from(&*said), tag) {
            Ok(_) => Ok(()),
            Err(_) => Err(Refused),
        };
    }
    let (head, sealed) = bytes.split_at_mut(head);
    match key.open_in_place(nonce(number), Aad::from(&*head), sealed) {
        Ok(_) => Ok(()),
        Err(_) => Err(Refused),
    }
}

impl fmt::Debug for Sealer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "Sealer({}, {:?}, next {})",
            self.direction.mode, self.direction.cipher, self.next
        )
    }
}

impl fmt::Debug for Opener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Opener({}, {:?})", self.direction.mode, self.direction.cipher)
    }
}
