//! The protection of payloads: the modes, the ciphers, and the keys of one link.
//!
//! The core agrees on a mode with the peer and derives the keys. The rail of the link seals what leaves, and opens what
//! arrives.
//!
//! Invariants: `Debug` shows no key; a key is wiped when it is dropped.

use std::fmt;
use std::str::FromStr;

use zeroize::{Zeroize, ZeroizeOnDrop};

/// The protection of the payloads of a link against others on the way. The greater mode is the stronger one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PayloadMode {
    /// Checksums against accidents; none against attackers.
    #[default]
    Crc,
    /// Nobody changes, repeats, inserts or reorders bytes unnoticed. All can read them.
    Auth,
    /// The same, and nobody else can read them.
    Secure,
}

impl PayloadMode {
    /// All modes, the weakest first.
    pub const ALL: [PayloadMode; 3] = [PayloadMode::Crc, PayloadMode::Auth, PayloadMode::Secure];

    /// As people write it.
    pub fn name(self) -> &'static str {
        match self {
            PayloadMode::Crc => "crc",
            PayloadMode::Auth => "auth",
            PayloadMode::Secure => "secure",
        }
    }
}

impl fmt::Display for PayloadMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for PayloadMode {
    type Err = String;

    fn from_str(text: &str) -> Result<PayloadMode, String> {
        let found = PayloadMode::ALL.into_iter().find(|mode| mode.name() == text);
        found.ok_or_else(|| format!("'{text}' is not a payload mode: write crc, auth or secure"))
    }
}

/// The algorithm that seals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Cipher {
    /// Fast where the processor has instructions for AES.
    Aes256Gcm,
    /// Fast enough everywhere.
    ChaCha20Poly1305,
}

/// The secret of one direction of one link.
#[derive(Clone, PartialEq, Eq, Zeroize, ZeroizeOnDrop)]
pub struct DirectionKey(pub [u8; 32]);

impl fmt::Debug for DirectionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DirectionKey(..)")
    }
}

/// All that a rail needs to protect a link. No two links have the same keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkKeys {
    /// `Auth` or `Secure`.
    pub mode: PayloadMode,
    pub cipher: Cipher,
    pub send: DirectionKey,
    pub receive: DirectionKey,
    /// All of our part of the greeting was ordered before: what leaves from here on is sealed. Else our proof is still to be
    /// ordered, and what follows it is sealed.
    pub has_greeted: bool,
}

/// The core's answer to a rail that is about to take a frame from a link.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Sealing {
    /// Both sides still greet: ask again before the next frame.
    Undecided,
    /// This link stays as it is.
    Plain,
    /// All that follows is sealed.
    Sealed(Box<LinkKeys>),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_names_and_an_order() {
        for mode in PayloadMode::ALL {
            assert_eq!(mode.to_string().parse(), Ok(mode));
        }
        assert!(PayloadMode::Crc < PayloadMode::Auth && PayloadMode::Auth < PayloadMode::Secure);
        assert!("none".parse::<PayloadMode>().unwrap_err().contains("crc, auth or secure"));
    }

    #[test]
    fn no_key_is_shown() {
        assert_eq!(format!("{:?}", DirectionKey([7; 32])), "DirectionKey(..)");
    }
}
