//! Lists through the entries of a table: what is listed is added and taken out without a walk, and
//! without memory beside the table.
//!
//! Invariant: an entry is in at most one list through the same neighbours; who takes it out says which.

/// Before and behind an entry of a list, by index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Neighbours {
    previous: u32,
    next: u32,
}

/// The ends of a list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct List {
    first: u32,
    last: u32,
}

/// A table whose entries are links of lists.
pub(crate) trait Table {
    /// Those of the entry with this index, which is in a list.
    fn neighbours(&mut self, index: u32) -> &mut Neighbours;
}

impl Default for List {
    fn default() -> List {
        List::EMPTY
    }
}

/// No entry has this index.
const END: u32 = u32::MAX;

impl Neighbours {
    /// Those of an entry in no list.
    pub const NONE: Neighbours = Neighbours { previous: END, next: END };

    /// The entry behind.
    #[inline]
    pub fn next(self) -> Option<u32> {
        (self.next != END).then_some(self.next)
    }
}

impl List {
    /// A list of nothing.
    pub const EMPTY: List = List { first: END, last: END };

    /// Whether it has no entry.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.first == END
    }

    /// Its first entry.
    #[inline]
    pub fn first(&self) -> Option<u32> {
        (self.first != END).then_some(self.first)
    }

    /// Its last entry.
    pub fn last(&self) -> Option<u32> {
        (self.last != END).then_some(self.last)
    }

    /// Adds an entry behind all others.
    #[inline]
    pub fn push_back(&mut self, table: &mut impl Table, index: u32) {
        *table.neighbours(index) = Neighbours { previous: self.last, next: END };
        match self.last {
            END => self.first = index,
            last => table.neighbours(last).next = index,
        }
        self.last = index;
    }

    /// Adds an entry before all others.
    pub fn push_front(&mut self, table: &mut impl Table, index: u32) {
        *table.neighbours(index) = Neighbours { previous: END, next: self.first };
        match self.first {
            END => self.last = index,
            first => table.neighbours(first).previous = index,
        }
        self.first = index;
    }

    /// Takes one of its entries out.
    #[inline]
    pub fn take(&mut self, table: &mut impl Table, index: u32) {
        let Neighbours { previous, next } =
            std::mem::replace(table.neighbours(index), Neighbours::NONE);
        debug_assert!(previous != END || self.first == index, "an entry leaves its own list");
        match previous {
            END => self.first = next,
            previous => table.neighbours(previous).next = next,
        }
        match next {
            END => self.last = previous,
            next => table.neighbours(next).previous = previous,
        }
    }

    /// Adds all entries of another list of the same table behind its own.
    pub fn append(&mut self, table: &mut impl Table, other: List) {
        if other.first == END {
            return;
        }
        match self.last {
            END => self.first = other.first,
            last => {
                table.neighbours(last).next = other.first;
                table.neighbours(other.first).previous = last;
            }
        }
        self.last = other.last;
    }

    /// Its entries, the first one first.
    pub fn collect(&self, table: &mut impl Table) -> Vec<u32> {
        let mut all = Vec::new();
        let mut at = self.first();
        while let Some(index) = at {
            all.push(index);
            at = table.neighbours(index).next();
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Table for [Neighbours; 6] {
        fn neighbours(&mut self, index: u32) -> &mut Neighbours {
            &mut self[index as usize]
        }
    }

    #[test]
    fn entries_leave_from_anywhere_and_lists_join() {
        let mut table = [Neighbours::NONE; 6];
        let (mut list, mut other) = (List::EMPTY, List::EMPTY);
        [3, 0, 5].into_iter().for_each(|index| list.push_back(&mut table, index));
        list.push_front(&mut table, 1);
        [4, 2].into_iter().for_each(|index| other.push_back(&mut table, index));
        assert_eq!(list.collect(&mut table), [1, 3, 0, 5]);
        list.take(&mut table, 0);
        list.take(&mut table, 1);
        list.append(&mut table, other);
        assert_eq!(list.collect(&mut table), [3, 5, 4, 2]);
        for index in [2, 3, 4, 5] {
            list.take(&mut table, index);
        }
        assert_eq!((list, list.is_empty()), (List::EMPTY, true));
        list.append(&mut table, List::EMPTY);
        list.push_front(&mut table, 2);
        assert_eq!(list.collect(&mut table), [2]);
        assert_eq!(table[0], Neighbours::NONE);
    }
}
