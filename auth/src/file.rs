//! Key files: text, one key a line.
//!
//! The first line is `ropewalk key 1 KIND`; each other one is a word, a blank and a value. Empty lines and lines that begin
//! with `#` say nothing. A word that the kind does not have is an error, and so is one that is missing or comes too often.

use std::fmt::Write;

use thiserror::Error;
use zeroize::Zeroizing;

use crate::certificate::Certificate;
use crate::keyring::{ACCEPTED_MAX, Authority, Keyring, NodeKeys, PskKeys, Trusted};
use crate::name::NodeName;
use crate::noise;
use crate::secret::Secret;

/// Bytes of a key file, at most.
pub const FILE_BYTES_MAX: usize = 16 << 10;
const TITLE: &str = "ropewalk key 1 ";

/// A text is no key file. The text itself is not in the error.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FileError {
    #[error(
        "the first line is not `ropewalk key 1 KIND`: this is no key file, or one of a later version"
    )]
    NoTitle,
    #[error("the file is longer than {FILE_BYTES_MAX} bytes: this is no key file")]
    TooLong,
    #[error(
        "line {line}: `{word}` does not belong here, or its value is not sound: make the file anew"
    )]
    BadLine { line: usize, word: &'static str },
    #[error("line {0} has an unknown word: make the file anew, or use a later version")]
    UnknownWord(usize),
    #[error("the line `{0}` is missing: make the file anew")]
    Missing(&'static str),
    #[error("the private key and the certificate do not belong together: sign the node's key anew")]
    Mismatch,
}

/// The lines of a key file, read.
#[derive(Default)]
struct Lines {
    secrets: Vec<Secret>,
    name: Option<NodeName>,
    certificate: Option<Certificate>,
    trusted: Vec<Trusted>,
    epoch_min: Option<u32>,
}

impl Keyring {
    /// Reads a key file.
    pub fn parse(text: &str) -> Result<Keyring, FileError> {
        if text.len() > FILE_BYTES_MAX {
            return Err(FileError::TooLong);
        }
        let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
        let kind = lines.next().and_then(|(_, line)| line.strip_prefix(TITLE));
        let kind = kind.ok_or(FileError::NoTitle)?;
        let mut told = Lines::default();
        for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
            told.take(kind, number, line)?;
        }
        told.into_keyring(kind)
    }

    /// The text of its file. It has secrets: only their owner may read it.
    pub fn to_text(&self) -> Zeroizing<String> {
        let mut text = Zeroizing::new(String::with_capacity(2048));
        let mut line = |word: &str, value: &str| {
            text.push_str(word);
            text.push(' ');
            text.push_str(value);
            text.push('\n');
        };
        let keys = |line: &mut dyn FnMut(&str, &str), keys: &PskKeys| {
            keys.keys.iter().for_each(|key| line("key", &hex(key.bytes())));
        };
        match self {
            Keyring::Cluster(shared) => {
                line("ropewalk key 1", "cluster");
                keys(&mut line, shared);
            }
            Keyring::Derived(shared, name) => {
                line("ropewalk key 1", "derived");
                line("name", name.as_str());
                keys(&mut line, shared);
            }
            Keyring::Authority(authority) => {
                line("ropewalk key 1", "authority");
                line("key", &hex(authority.seed.bytes()));
            }
            Keyring::Node(node) => {
                line("ropewalk key 1", "node");
                line("key", &hex(node.private.bytes()));
                line("certificate", &hex(&node.certificate.encode()));
                for trusted in &node.trusted {
                    line("trust", &hex(&[trusted.public, *trusted.door.bytes()].concat()));
                }
                line("epoch", &node.epoch_min.to_string());
            }
        }
        text
    }
}

impl Lines {
    fn take(&mut self, kind: &str, number: usize, line: &str) -> Result<(), FileError> {
        let (word, value) = line.split_once(' ').ok_or(FileError::UnknownWord(number))?;
        let value = value.trim();
        let bad = |word: &'static str| FileError::BadLine { line: number, word };
        let keys_max = if matches!(kind, "cluster" | "derived") { ACCEPTED_MAX } else { 1 };
        match word {
            "key" if self.secrets.len() < keys_max => {
                let bytes = unhex(value).ok_or(bad("key"))?;
                let bytes = bytes.as_slice().try_into().map_err(|_| bad("key"))?;
                self.secrets.push(Secret::new(bytes));
            }
            "name" if kind == "derived" && self.name.is_none() => {
                self.name = Some(NodeName::new(value).map_err(|_| bad("name"))?);
            }
            "certificate" if kind == "node" && self.certificate.is_none() => {
                let decoded = unhex(value).and_then(|bytes| Certificate::decode(&bytes));
                self.certificate = Some(decoded.ok_or(bad("certificate"))?);
            }
            "trust" if kind == "node" && self.trusted.len() < ACCEPTED_MAX => {
                let bytes = unhex(value).ok_or(bad("trust"))?;
                let (public, door) = bytes.split_first_chunk::<32>().ok_or(bad("trust"))?;
                let door = door.try_into().map_err(|_| bad("trust"))?;
                self.trusted.push(Trusted { public: *public, door: Secret::new(door) });
            }
            "epoch" if kind == "node" && self.epoch_min.is_none() => {
                self.epoch_min = Some(value.parse().map_err(|_| bad("epoch"))?);
            }
            "key" => return Err(bad("key")),
            "name" => return Err(bad("name")),
            "certificate" => return Err(bad("certificate")),
            "trust" => return Err(bad("trust")),
            "epoch" => return Err(bad("epoch")),
            _ => return Err(FileError::UnknownWord(number)),
        }
        Ok(())
    }

    fn into_keyring(mut self, kind: &str) -> Result<Keyring, FileError> {
        if self.secrets.is_empty() {
            return Err(FileError::Missing("key"));
        }
        match kind {
            "cluster" => Ok(Keyring::Cluster(PskKeys { keys: self.secrets })),
            "derived" => {
                let name = self.name.ok_or(FileError::Missing("name"))?;
                Ok(Keyring::Derived(PskKeys { keys: self.secrets }, name))
            }
            "authority" => Ok(Keyring::Authority(Authority::new(self.secrets.remove(0)))),
            "node" => {
                let private = self.secrets.remove(0);
                let certificate = self.certificate.ok_or(FileError::Missing("certificate"))?;
                let epoch_min = self.epoch_min.ok_or(FileError::Missing("epoch"))?;
                if self.trusted.is_empty() {
                    return Err(FileError::Missing("trust"));
                }
                if noise::public_of(&private) != certificate.public {
                    return Err(FileError::Mismatch);
                }
                let trusted = self.trusted;
                Ok(Keyring::Node(NodeKeys { private, certificate, trusted, epoch_min }))
            }
            _ => Err(FileError::NoTitle),
        }
    }
}

fn hex(bytes: &[u8]) -> Zeroizing<String> {
    let mut text = Zeroizing::new(String::with_capacity(bytes.len() * 2));
    for byte in bytes {
        write!(text, "{byte:02x}").expect("a string takes everything");
    }
    text
}

fn unhex(text: &str) -> Option<Zeroizing<Vec<u8>>> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let pairs = text.as_bytes().chunks_exact(2);
    if !pairs.remainder().is_empty() {
        return None;
    }
    let mut bytes = Zeroizing::new(Vec::with_capacity(text.len() / 2));
    for pair in pairs {
        bytes.push(digit(pair[0])? << 4 | digit(pair[1])?);
    }
    Some(bytes)
}
