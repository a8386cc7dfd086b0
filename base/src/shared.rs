//! Bytes that several hold at a time: one who keeps them, and one on whose way they are.
//!
//! Invariant: they change only while one alone has them.

use std::ops::{Deref, Range};
use std::sync::Arc;

/// Bytes that a sole holder may change, and that several holders only read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SharedBytes(Arc<Vec<u8>>);

impl SharedBytes {
    /// These bytes, of one holder.
    pub fn new(bytes: Vec<u8>) -> SharedBytes {
        SharedBytes(Arc::new(bytes))
    }

    /// The bytes, where nobody else has them.
    pub fn alone(&mut self) -> Option<&mut Vec<u8>> {
        Arc::get_mut(&mut self.0)
    }

    /// A part of them, held as long as it is wanted; it lies inside.
    pub fn part(&self, range: Range<usize>) -> SharedPart {
        assert!(range.start <= range.end && range.end <= self.0.len(), "a part lies inside");
        SharedPart { bytes: self.clone(), range }
    }
}

impl Deref for SharedBytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// A part of [`SharedBytes`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedPart {
    bytes: SharedBytes,
    range: Range<usize>,
}

impl Deref for SharedPart {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes[self.range.clone()]
    }
}

/// A packet that leaves: the bytes written for it. The last `tail` of these come behind bytes that are kept elsewhere.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaving {
    pub written: usize,
    pub tail: usize,
    pub kept: Option<SharedPart>,
}

impl Leaving {
    /// All of it was written.
    pub fn whole(written: usize) -> Leaving {
        Leaving { written, tail: 0, kept: None }
    }

    /// Bytes of the packet.
    pub fn bytes(&self) -> usize {
        self.written + self.kept.as_ref().map_or(0, |kept| kept.len())
    }

    /// Writes what is kept to its place, where all of it has room; the bytes of the packet.
    pub fn join(&self, slot: &mut [u8]) -> usize {
        if let Some(kept) = &self.kept {
            let begin = self.written - self.tail;
            slot.copy_within(begin..self.written, begin + kept.len());
            slot[begin..begin + kept.len()].copy_from_slice(kept);
        }
        self.bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_change_while_one_alone_has_them() {
        let mut bytes = SharedBytes::new(vec![1, 2, 3, 4]);
        bytes.alone().expect("nobody else").push(5);
        let part = bytes.part(1..3);
        assert_eq!((&*part, bytes.alone()), (&[2, 3][..], None));
        drop(part);
        bytes.alone().expect("nobody else any more").clear();
        assert!(bytes.is_empty());
    }

    #[test]
    fn a_packet_is_joined_where_its_parts_belong() {
        let kept = SharedBytes::new(b"..middle..".to_vec()).part(2..8);
        let mut slot = *b"headTAIL............";
        let leaving = Leaving { written: 8, tail: 4, kept: Some(kept) };
        assert_eq!((leaving.bytes(), leaving.join(&mut slot)), (14, 14));
        assert_eq!(&slot[..14], b"headmiddleTAIL");
        assert_eq!(Leaving::whole(4).join(&mut slot), 4);
        assert_eq!(&slot[..14], b"headmiddleTAIL");
    }
}
