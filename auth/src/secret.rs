//! Secrets of 32 bytes: derived by HMAC-SHA-256, wiped when they are dropped, never shown.

use std::fmt;

use hmac::{Hmac, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use zeroize::{Zeroize, ZeroizeOnDrop};

/// Bytes of a secret.
pub(crate) const SECRET_BYTES: usize = 32;

/// A secret of 32 bytes.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub struct Secret([u8; SECRET_BYTES]);

impl Secret {
    /// From random bytes, or from a key file.
    pub fn new(bytes: [u8; SECRET_BYTES]) -> Secret {
        Secret(bytes)
    }

    pub(crate) fn bytes(&self) -> &[u8; SECRET_BYTES] {
        &self.0
    }

    /// Another secret, for this purpose and subject. From it nobody can make this one.
    pub(crate) fn derive(&self, purpose: &str, subject: &[u8]) -> Secret {
        let mut mac =
            Hmac::<Sha256>::new_from_slice(&self.0).expect("keys of any length are taken");
        // Ended by a zero: no purpose is the beginning of another one with what follows it.
        mac.update(purpose.as_bytes());
        mac.update(&[0]);
        mac.update(subject);
        Secret(mac.finalize().into_bytes().into())
    }

    /// A number that tells keys apart, and tells nothing else about them.
    pub(crate) fn key_id(&self) -> [u8; 4] {
        let id = self.derive("ropewalk key id", &[]);
        [id.0[0], id.0[1], id.0[2], id.0[3]]
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.0.ct_eq(&other.0).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The key that both sides of a handshake have afterwards, and nobody else.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionKey(pub(crate) Secret);

impl SessionKey {
    /// The bytes, for keyed hashes in the session.
    pub fn bytes(&self) -> &[u8; SECRET_BYTES] {
        self.0.bytes()
    }
}

impl fmt::Debug for SessionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionKey(..)")
    }
}
