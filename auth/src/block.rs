//! The block that a greeting carries behind its addresses.
//!
//! Layout: version 1 (1), kind of keys (1), bytes of the name (1), 0 (1), id of the key (4), name, Noise message. The name
//! is that of the node whose derived key both sides use; without one they use the members' key.

use crate::name::{NAME_BYTES_MAX, NodeName};

/// Bytes of a block, at most.
pub const BLOCK_BYTES_MAX: usize = 512;
const VERSION: u8 = 1;
const HEAD_BYTES: usize = 8;

/// The kind of keys of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum KeyKind {
    Shared = 1,
    Own = 2,
}

/// The open beginning of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub kind: KeyKind,
    pub key_id: [u8; 4],
    pub name: Option<NodeName>,
}

impl Head {
    pub fn encode(&self) -> Vec<u8> {
        let name = self.name.as_ref().map_or(&[][..], |name| name.as_str().as_bytes());
        let mut bytes = vec![VERSION, self.kind as u8, name.len() as u8, 0];
        bytes.extend_from_slice(&self.key_id);
        bytes.extend_from_slice(name);
        bytes
    }

    /// The head, its bytes, and the message behind it.
    pub fn decode(block: &[u8]) -> Option<(Head, &[u8], &[u8])> {
        let head = block.first_chunk::<HEAD_BYTES>().filter(|_| block.len() <= BLOCK_BYTES_MAX)?;
        let [version, kind, name_bytes, zero, a, b, c, d] = *head;
        let kind = match kind {
            1 => KeyKind::Shared,
            2 => KeyKind::Own,
            _ => return None,
        };
        let name_bytes = usize::from(name_bytes);
        if version != VERSION || zero != 0 || name_bytes > NAME_BYTES_MAX {
            return None;
        }
        let (head, message) = block.split_at_checked(HEAD_BYTES + name_bytes)?;
        let name = match &head[HEAD_BYTES..] {
            [] => None,
            name => Some(NodeName::from_bytes(name)?),
        };
        Some((Head { kind, key_id: [a, b, c, d], name }, head, message))
    }
}
