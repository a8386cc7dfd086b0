//! A packet on its way from a port's arena to the kernel.

use std::ops::Range;

use ropewalk_base::shared::SharedPart;

/// Parts that a packet may have.
pub const PARTS: usize = 3;

/// A packet: a range of an arena, or that around bytes that are kept elsewhere.
#[derive(Debug)]
pub struct Packet {
    written: Range<usize>,
    /// The number of the range's bytes behind the kept bytes.
    tail: usize,
    kept: Option<SharedPart>,
}

impl Packet {
    /// All of it is in the arena.
    pub fn whole(written: Range<usize>) -> Packet {
        Packet { written, tail: 0, kept: None }
    }

    /// The range of the arena surrounds the kept bytes: its last `tail` bytes follow them, the others precede them.
    pub fn around(written: Range<usize>, tail: usize, kept: SharedPart) -> Packet {
        debug_assert!(tail <= written.len());
        Packet { written, tail, kept: Some(kept) }
    }

    /// Its bytes.
    #[allow(clippy::len_without_is_empty, reason = "none is empty")]
    pub fn len(&self) -> usize {
        self.written.len() + self.kept.as_ref().map_or(0, |kept| kept.len())
    }

    /// Its parts; those behind the first may be empty.
    pub fn parts<'a>(&'a self, arena: &'a [u8]) -> [&'a [u8]; PARTS] {
        let written = &arena[self.written.clone()];
        match &self.kept {
            None => [written, &[], &[]],
            Some(kept) => {
                let (head, tail) = written.split_at(written.len() - self.tail);
                [head, kept, tail]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_base::shared::SharedBytes;

    use super::*;

    #[test]
    fn its_parts_are_the_packet() {
        let arena = b"..headTAIL";
        let kept = SharedBytes::new(b"middle".to_vec()).part(0..6);
        let packet = Packet::around(2..10, 4, kept);
        assert_eq!((packet.parts(arena).concat(), packet.len()), (b"headmiddleTAIL".to_vec(), 14));
        let packet = Packet::whole(2..10);
        assert_eq!((packet.parts(arena).concat(), packet.len()), (b"headTAIL".to_vec(), 8));
    }
}
