//! A slab whose keys carry a generation: a stale key is answered `None`, never with a stranger.

/// Names an entry of a [`Slots`]: index and generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SlotId {
    pub index: u32,
    pub generation: u32,
}

impl SlotId {
    /// Both halves in one number, generation in the upper half; never 0, since generations start at 1.
    #[inline]
    pub fn to_u64(self) -> u64 {
        (u64::from(self.generation) << 32) | u64::from(self.index)
    }

    /// The inverse of [`SlotId::to_u64`]. Any number is accepted; one that names nothing finds nothing.
    #[inline]
    pub fn from_u64(value: u64) -> SlotId {
        SlotId { index: value as u32, generation: (value >> 32) as u32 }
    }
}

#[derive(Debug)]
struct Slot<T> {
    generation: u32,
    next_free: u32,
    value: Option<T>,
}

const NONE: u32 = u32::MAX;

/// A slab with generation-checked keys and a limit.
///
/// Invariants: an index is on the free list exactly while its value is `None`; a generation is used
/// by one value only (after 2^32 - 1 uses a slot is retired rather than reused).
#[derive(Debug)]
pub struct Slots<T> {
    slots: Vec<Slot<T>>,
    free: u32,
    len: usize,
    limit: usize,
    /// The generation of what an index names first.
    first: u32,
}

impl<T> Slots<T> {
    /// An empty slab that never holds more than `limit` values.
    pub fn with_limit(limit: usize) -> Slots<T> {
        Slots::counting_from(limit, 1)
    }

    /// The same, with generations that begin with `first`, which is not 0. Keys of another slab are stale here, too, if
    /// its generations began elsewhere.
    pub fn counting_from(limit: usize, first: u32) -> Slots<T> {
        assert!(limit < NONE as usize, "a slab index is 32 bits wide");
        assert!(first > 0, "no key is 0");
        Slots { slots: Vec::new(), free: NONE, len: 0, limit, first }
    }

    /// A slab that holds these values under these keys, as another one did. None where there are too many, a key names an
    /// index beyond the limit, or two name one.
    pub fn of_entries(
        limit: usize,
        entries: impl IntoIterator<Item = (SlotId, T)>,
    ) -> Option<Slots<T>> {
        let mut slots = Slots::with_limit(limit);
        for (id, value) in entries {
            if id.index as usize >= limit || id.generation == 0 {
                return None;
            }
            while slots.slots.len() <= id.index as usize {
                slots.slots.push(Slot { generation: 1, next_free: NONE, value: None });
            }
            let slot = &mut slots.slots[id.index as usize];
            if slot.value.is_some() {
                return None;
            }
            (slot.generation, slot.value) = (id.generation, Some(value));
            slots.len += 1;
        }
        for index in (0..slots.slots.len()).rev() {
            if slots.slots[index].value.is_none() {
                slots.slots[index].next_free = slots.free;
                slots.free = index as u32;
            }
        }
        Some(slots)
    }

    /// The number of values.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether the limit is reached.
    pub fn is_full(&self) -> bool {
        self.len >= self.limit
    }

    /// Adds a value; gives it back where the limit is reached.
    #[inline(always)]
    pub fn insert(&mut self, value: T) -> Result<SlotId, T> {
        if self.is_full() {
            return Err(value);
        }
        if self.free == NONE {
            self.grow();
        }
        let index = self.free;
        let slot = &mut self.slots[index as usize];
        assert!(slot.value.is_none(), "a slot on the free list holds a value");
        self.free = slot.next_free;
        slot.value = Some(value);
        self.len += 1;
        Ok(SlotId { index, generation: slot.generation })
    }

    /// Puts a fresh slot on the free list, which is empty.
    #[cold]
    fn grow(&mut self) {
        // Retired slots count, too: a slab that went through so many keys has had its day.
        assert!(self.slots.len() < NONE as usize, "a slab index is 32 bits wide");
        self.free = self.slots.len() as u32;
        self.slots.push(Slot { generation: self.first, next_free: NONE, value: None });
    }

    /// The value that `id` names.
    #[inline]
    pub fn get(&self, id: SlotId) -> Option<&T> {
        let slot = self.slots.get(id.index as usize)?;
        if slot.generation == id.generation { slot.value.as_ref() } else { None }
    }

    /// The value that `id` names, to change.
    #[inline]
    pub fn get_mut(&mut self, id: SlotId) -> Option<&mut T> {
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation == id.generation { slot.value.as_mut() } else { None }
    }

    /// The value at an index, whatever its generation.
    #[inline]
    pub fn at_mut(&mut self, index: u32) -> Option<&mut T> {
        self.slots.get_mut(index as usize)?.value.as_mut()
    }

    /// The key of the value at an index.
    #[inline]
    pub fn id_at(&self, index: u32) -> Option<SlotId> {
        let slot = self.slots.get(index as usize)?;
        slot.value.as_ref().map(|_| SlotId { index, generation: slot.generation })
    }

    /// Takes the value that `id` names out; its key is stale from now on.
    #[inline]
    pub fn remove(&mut self, id: SlotId) -> Option<T> {
        let slot = self.slots.get_mut(id.index as usize)?;
        if slot.generation != id.generation {
            return None;
        }
        let value = slot.value.take()?;
        self.freed(id.index);
        Some(value)
    }

    /// Drops the value that `id` names where it lies: as [`Self::remove`], for long values that nobody wants.
    #[inline]
    pub fn discard(&mut self, id: SlotId) {
        let Some(slot) = self.slots.get_mut(id.index as usize) else { return };
        if slot.generation != id.generation || slot.value.is_none() {
            return;
        }
        slot.value = None;
        self.freed(id.index);
    }

    /// The value of a slot is gone: its key is stale, and the slot is free.
    #[inline]
    fn freed(&mut self, index: u32) {
        self.len -= 1;
        let slot = &mut self.slots[index as usize];
        if slot.generation < u32::MAX {
            slot.generation += 1;
            slot.next_free = self.free;
            self.free = index;
        }
    }

    /// All values with their keys, in index order.
    pub fn iter(&self) -> impl Iterator<Item = (SlotId, &T)> {
        self.slots.iter().enumerate().filter_map(|(index, slot)| {
            let id = SlotId { index: index as u32, generation: slot.generation };
            slot.value.as_ref().map(|value| (id, value))
        })
    }

    /// All values with their keys, to change, in index order.
    pub fn iter_mut(&mut self) -> impl Iterator<Item = (SlotId, &mut T)> {
        self.slots.iter_mut().enumerate().filter_map(|(index, slot)| {
            let id = SlotId { index: index as u32, generation: slot.generation };
            slot.value.as_mut().map(|value| (id, value))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slab_of_entries_has_their_keys_and_fills_the_gaps() {
        let id = |index, generation| SlotId { index, generation };
        let entries = [(id(2, 7), 'c'), (id(0, 1), 'a')];
        let mut slots = Slots::of_entries(4, entries).unwrap();
        assert_eq!(
            (slots.len(), slots.get(id(2, 7)), slots.get(id(0, 1))),
            (2, Some(&'c'), Some(&'a'))
        );
        assert_eq!(slots.insert('b').map(|it| it.index), Ok(1));
        assert_eq!(slots.insert('d').map(|it| it.index), Ok(3));
        assert_eq!(slots.insert('e'), Err('e'));
        assert_eq!(slots.remove(id(2, 7)), Some('c'));
        assert_eq!(slots.insert('e'), Ok(id(2, 8)));
        for bad in [[id(4, 1), id(0, 1)], [id(0, 0), id(1, 1)], [id(1, 1), id(1, 2)]] {
            assert!(Slots::of_entries(4, bad.map(|id| (id, ()))).is_none());
        }
    }

    #[test]
    fn a_stale_key_finds_nothing_and_the_limit_holds() {
        let mut slots = Slots::with_limit(2);
        let a = slots.insert('a').unwrap();
        let b = slots.insert('b').unwrap();
        assert_eq!(slots.at_mut(1).copied().zip(slots.id_at(1)), Some(('b', b)));
        assert!(slots.at_mut(2).is_none() && slots.id_at(2).is_none());
        assert_eq!(slots.insert('c'), Err('c'));
        assert_eq!(slots.remove(a), Some('a'));
        assert_eq!(slots.remove(a), None);
        let c = slots.insert('c').unwrap();
        assert_eq!(c.index, a.index);
        assert_eq!(slots.get(a), None);
        assert_eq!(slots.get(c), Some(&'c'));
        assert_eq!(SlotId::from_u64(b.to_u64()), b);
        assert_eq!(slots.get(SlotId::from_u64(u64::MAX)), None);
        assert_eq!(slots.len(), 2);
        slots.discard(a);
        assert_eq!(slots.len(), 2, "the key is stale");
        slots.discard(c);
        slots.discard(c);
        assert_eq!((slots.len(), slots.get(c)), (1, None));
        assert_eq!(slots.insert('d').map(|it| it.index), Ok(a.index));
    }
}
