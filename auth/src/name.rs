//! Names of nodes.

use std::fmt;

use thiserror::Error;

/// Bytes of a name, at most.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// The name of a node: 1 to 64 lower-case letters, digits, dots, hyphens and underscores.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeName(Box<str>);

/// A text is no name of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error(
    "a node's name has 1 to 64 of the characters a-z, 0-9, '.', '-' and '_': choose another one"
)]
pub struct NameError;

impl NodeName {
    /// Checks a name.
    pub fn new(text: &str) -> Result<NodeName, NameError> {
        let allowed =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte);
        let fits = (1..=NAME_BYTES_MAX).contains(&text.len());
        match fits && text.bytes().all(allowed) {
            true => Ok(NodeName(text.into())),
            false => Err(NameError),
        }
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<NodeName> {
        NodeName::new(std::str::from_utf8(bytes).ok()?).ok()
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
