//! The block that a greeting carries behind its addresses.
//!
//! Layout: version 1 (1), kind of keys (1), bytes of the name (1), whose name it is (1), id of the key (4), name, Noise
//! message. The name is that of the node whose derived key both sides use: 0 the caller's, 1 that of the node which a member
//! calls. Without a name both sides use the members' key.

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
    /// The name is that of the node which is called.
    pub is_called: bool,
}

impl Head {
    pub fn encode(&self) -> Vec<u8> {
        let name = self.name.as_ref().map_or(&[][..], |name| name.as_str().as_bytes());
        let mut bytes = vec![VERSION, self.kind as u8, name.len() as u8, self.is_called.into()];
        bytes.extend_from_slice(&self.key_id);
        bytes.extend_from_slice(name);
        bytes
    }

    /// The head, its bytes, and the message behind it.
    pub fn decode(block: &[u8]) -> Option<(Head, &[u8], &[u8])> {
        let head = block.first_chunk::<HEAD_BYTES>().filter(|_| block.len() <= BLOCK_BYTES_MAX)?;
        let [version, kind, name_bytes, whose, a, b, c, d] = *head;
        let kind = match kind {
            1 => KeyKind::Shared,
            2 => KeyKind::Own,
            _ => return None,
        };
        let name_bytes = usize::from(name_bytes);
        let is_known = version == VERSION && whose <= 1 && (whose == 0 || name_bytes > 0);
        if !is_known || name_bytes > NAME_BYTES_MAX {
            return None;
        }
        let (head, message) = block.split_at_checked(HEAD_BYTES + name_bytes)?;
        let name = match &head[HEAD_BYTES..] {
            [] => None,
            name => Some(NodeName::from_bytes(name)?),
        };
        let is_called = whose == 1;
        Some((Head { kind, key_id: [a, b, c, d], name, is_called }, head, message))
    }
}
