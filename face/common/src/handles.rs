//! Handles of 64 bits: who has a handle has a number, and nothing is ever read through it.

use ropewalk_base::slots::SlotId;

/// The layout of a handle: its owner in the lowest bits (the endpoint of a request, for instance), the index of its
/// object above, and the generation of the object in the rest, cut to the bits that are left.
///
/// If no bits of generations are cut, no handle is 0.
#[derive(Debug, Clone, Copy)]
pub struct HandleBits {
    owner_bits: u32,
    index_bits: u32,
}

impl HandleBits {
    /// Owners below `2^owner_bits` with objects below `2^index_bits`; `owner_bits` is 0 for objects without an owner.
    pub const fn new(owner_bits: u32, index_bits: u32) -> HandleBits {
        assert!(owner_bits + index_bits < 64 && index_bits <= 32, "bits are left for generations");
        HandleBits { owner_bits, index_bits }
    }

    /// The handle of an object of an owner.
    #[inline]
    pub const fn handle(self, owner: usize, id: SlotId) -> u64 {
        let generation = (id.generation as u64) << (self.owner_bits + self.index_bits);
        generation | (id.index as u64) << self.owner_bits | owner as u64
    }

    /// The owner in a handle.
    #[inline]
    pub const fn owner(self, handle: u64) -> usize {
        (handle & ((1 << self.owner_bits) - 1)) as usize
    }

    /// The key of the object that a handle of this owner names, if there is one. `id_at` finds the key of the object at
    /// an index.
    #[inline]
    pub fn find(
        self,
        owner: usize,
        handle: u64,
        id_at: impl FnOnce(u32) -> Option<SlotId>,
    ) -> Option<SlotId> {
        let index = (handle >> self.owner_bits) & ((1 << self.index_bits) - 1);
        let id = id_at(index as u32)?;
        (self.handle(owner, id) == handle).then_some(id)
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_base::slots::Slots;

    use super::*;

    const BITS: HandleBits = HandleBits::new(12, 22);

    #[test]
    fn a_handle_names_one_object_of_one_owner_until_that_is_gone() {
        let mut slots = Slots::counting_from(8, 0xffff_fff0);
        let id = slots.insert("first").unwrap();
        let handle = BITS.handle(5, id);
        assert_eq!(BITS.owner(handle), 5);
        assert_eq!(BITS.find(5, handle, |index| slots.id_at(index)), Some(id));
        assert_eq!(BITS.find(4, handle, |index| slots.id_at(index)), None);
        for stranger in [0, u64::MAX, handle + (1 << 12), handle ^ (1 << 63)] {
            assert_eq!(BITS.find(5, stranger, |index| slots.id_at(index)), None, "{stranger:#x}");
        }
        slots.remove(id).unwrap();
        assert_eq!(BITS.find(5, handle, |index| slots.id_at(index)), None);
        let second = slots.insert("second").unwrap();
        assert_eq!(second.index, id.index);
        assert_eq!(BITS.find(5, handle, |index| slots.id_at(index)), None, "another has its slot");
    }

    #[test]
    fn a_handle_without_an_owner_has_index_and_generation() {
        let bits = HandleBits::new(0, 12);
        let id = SlotId { index: 3, generation: 7 };
        assert_eq!(bits.handle(0, id), 7 << 12 | 3);
        assert_eq!(bits.owner(u64::MAX), 0);
        assert_eq!(bits.find(0, 7 << 12 | 3, |index| (index == 3).then_some(id)), Some(id));
    }
}
