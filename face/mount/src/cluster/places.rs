//! The places and numbers of the directories that the kernel knows.
//!
//! The kernel gives each inode of a directory one place. If a look-up finds the inode elsewhere, because
//! another mount moved it, the kernel has to move it, too. It cannot while it holds the locks of a rename, or
//! while a process works in the old parent. The look-up then fails with ESTALE, and with ELOOP if the new place
//! lies below the old one. So a directory that is found below another parent than the kernel has it in gets
//! another number there. The old number stays valid for processes that stand in the directory or have it open.
//! See docs/design/040-client-caches.md.
//!
//! Invariants:
//! * the kernel has a number in one directory at most, the one that is recorded here; a number whose
//!   name was seen to mean another inode is never answered again (it is retired);
//! * a record lives for as long as the kernel counts look-ups of its number;
//! * numbers other than the inode's own are at or above `OTHER_FIRST`, which no inode reaches, and are
//!   never used twice.
//!
//! Only directories are recorded: the kernel may have any other inode in many places.

use std::collections::BTreeMap;

use ropewalk_client::handover::Place;

/// The first number that is not the number of an inode.
const OTHER_FIRST: u64 = 1 << 63;

/// A directory that the kernel knows under one number.
#[derive(Debug)]
struct Known {
    inode: u64,
    /// The number of the directory in which the kernel has it.
    parent: u64,
    /// Its name there; none where it is retired.
    name: Option<Box<[u8]>>,
    lookups: u64,
}

/// The directories that the kernel of one mount knows.
#[derive(Debug)]
pub(super) struct Places {
    /// By the kernel's numbers.
    known: BTreeMap<u64, Known>,
    /// By parent and name: the kernel's node there.
    names: BTreeMap<u64, BTreeMap<Box<[u8]>, u64>>,
    /// Numbers of an inode beside its own, the newest last.
    others: BTreeMap<u64, Vec<u64>>,
    next: u64,
}

impl Places {
    pub fn new() -> Places {
        Places {
            known: BTreeMap::new(),
            names: BTreeMap::new(),
            others: BTreeMap::new(),
            next: OTHER_FIRST,
        }
    }

    /// All records, and the next number, for another process.
    pub fn to_state(&self) -> (Vec<Place>, u64) {
        let place = |(node, known): (&u64, &Known)| Place {
            node: *node,
            inode: known.inode,
            parent: known.parent,
            name: known.name.as_ref().map(|name| name.to_vec()),
            lookups: known.lookups,
        };
        (self.known.iter().map(place).collect(), self.next)
    }

    /// The records of another process. Numbers of an inode were given out in their order.
    pub fn of_state(state: &[Place], next: u64) -> Places {
        let mut places = Places { next: next.max(OTHER_FIRST), ..Places::new() };
        for place in state {
            let Place { node, inode, parent, lookups, .. } = *place;
            if node != inode {
                places.next = places.next.max(node.saturating_add(1));
                places.others.entry(inode).or_default().push(node);
            }
            places.known.insert(node, Known { inode, parent, name: None, lookups });
            if let Some(name) = &place.name {
                places.place(node, parent, name);
            }
        }
        places.others.values_mut().for_each(|nodes| nodes.sort_unstable());
        places
    }

    /// The inode behind a number of the kernel.
    pub fn inode(&self, node: u64) -> u64 {
        if node < OTHER_FIRST {
            return node;
        }
        self.known.get(&node).map_or(node, |known| known.inode)
    }

    /// Numbers of an inode beside its own.
    pub fn others(&self, inode: u64) -> &[u64] {
        self.others.get(&inode).map_or(&[], Vec::as_slice)
    }

    /// The kernel is told that `inode` is at this place: under which number, and whether that is a new
    /// one beside others. Counts as a look-up.
    pub fn found(&mut self, parent: u64, name: &[u8], inode: u64) -> (u64, bool) {
        let at = |known: &Known| known.parent == parent && known.name.as_deref() == Some(name);
        if let Some(known) = self.known.get_mut(&inode)
            && at(known)
        {
            known.lookups += 1;
            return (inode, false);
        }
        let numbers = || self.others(inode).iter().rev().copied().chain([inode]);
        let known = |node: &u64| self.known.get(node).filter(|known| known.inode == inode);
        let here = numbers().find(|node| known(node).is_some_and(at));
        // Within one directory the kernel moves it without any lock.
        let beside = || {
            numbers().find(|node| {
                known(node).is_some_and(|known| known.parent == parent && known.name.is_some())
            })
        };
        match here.or_else(beside) {
            Some(node) => {
                self.place(node, parent, name);
                self.known.get_mut(&node).expect("it was found").lookups += 1;
                (node, false)
            }
            None => {
                let node = self.add(parent, name, inode);
                (node, node != inode)
            }
        }
    }

    fn add(&mut self, parent: u64, name: &[u8], inode: u64) -> u64 {
        let node = if self.known.contains_key(&inode) {
            let node = self.next;
            self.next += 1;
            self.others.entry(inode).or_default().push(node);
            node
        } else {
            inode
        };
        self.known.insert(node, Known { inode, parent, name: None, lookups: 1 });
        self.place(node, parent, name);
        node
    }

    /// Records a number at a place; the number that was there before is retired.
    fn place(&mut self, node: u64, parent: u64, name: &[u8]) {
        self.unplace(node);
        let names = self.names.entry(parent).or_default();
        if let Some(before) = names.insert(name.into(), node)
            && let Some(known) = self.known.get_mut(&before)
        {
            known.name = None;
        }
        let known = self.known.get_mut(&node).expect("what is placed is known");
        known.parent = parent;
        known.name = Some(name.into());
    }

    /// Takes a number from its place.
    fn unplace(&mut self, node: u64) {
        let Some(known) = self.known.get_mut(&node) else { return };
        let Some(name) = known.name.take() else { return };
        if let Some(names) = self.names.get_mut(&known.parent) {
            names.remove(&name);
            if names.is_empty() {
                self.names.remove(&known.parent);
            }
        }
    }

    fn at(&self, parent: u64, name: &[u8]) -> Option<u64> {
        self.names.get(&parent)?.get(name).copied()
    }

    /// The kernel took a name away, or is told that something else than a directory is there. The number that
    /// it has there is retired: after a removal it is dead for the kernel, though the server may have removed
    /// another inode.
    pub fn removed(&mut self, parent: u64, name: &[u8]) {
        if let Some(node) = self.at(parent, name) {
            self.unplace(node);
        }
    }

    /// The kernel moved what it has at `from`, over what it has at `to`.
    pub fn moved(&mut self, from: (u64, &[u8]), to: (u64, &[u8])) {
        let node = self.at(from.0, from.1);
        self.removed(to.0, to.1);
        if let Some(node) = node {
            self.place(node, to.0, to.1);
        }
    }

    /// The kernel exchanged what it has at two places.
    pub fn exchanged(&mut self, one: (u64, &[u8]), two: (u64, &[u8])) {
        let (first, second) = (self.at(one.0, one.1), self.at(two.0, two.1));
        self.removed(one.0, one.1);
        self.removed(two.0, two.1);
        if let Some(node) = first {
            self.place(node, two.0, two.1);
        }
        if let Some(node) = second {
            self.place(node, one.0, one.1);
        }
    }

    /// The kernel counts so many look-ups less. Whether it still knows the number, as far as this
    /// knows.
    pub fn forgotten(&mut self, node: u64, lookups: u64) -> bool {
        let Some(known) = self.known.get_mut(&node) else { return false };
        known.lookups = known.lookups.saturating_sub(lookups);
        if known.lookups > 0 {
            return true;
        }
        self.unplace(node);
        let inode = self.known.remove(&node).map_or(node, |known| known.inode);
        if let Some(others) = self.others.get_mut(&inode) {
            others.retain(|other| *other != node);
            if others.is_empty() {
                self.others.remove(&inode);
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Places {
        fn look_up(&mut self, parent: u64, name: &[u8], inode: u64) -> u64 {
            self.found(parent, name, inode).0
        }
    }

    #[test]
    fn a_directory_keeps_its_number_where_the_kernel_has_it() {
        let mut places = Places::new();
        assert_eq!(places.look_up(1, b"d", 7), 7);
        assert_eq!(places.look_up(1, b"d", 7), 7);
        // Another mount renamed it within the directory: the kernel follows without a lock.
        assert_eq!(places.look_up(1, b"e", 7), 7);
        // Our own renames are the kernel's.
        assert_eq!(places.look_up(1, b"p", 8), 8);
        places.moved((1, b"e"), (8, b"f"));
        assert_eq!(places.look_up(8, b"f", 7), 7);
        places.exchanged((8, b"f"), (1, b"none"));
        assert_eq!(places.look_up(1, b"none", 7), 7);
        assert_eq!(places.others(7), &[] as &[u64]);
    }

    #[test]
    fn a_directory_found_elsewhere_gets_another_number_there() {
        let mut places = Places::new();
        assert_eq!(places.look_up(1, b"d", 7), 7);
        let (other, first) = places.found(2, b"d", 7);
        assert!(first && other >= OTHER_FIRST);
        assert_eq!(places.found(2, b"d", 7), (other, false));
        assert_eq!((places.inode(other), places.inode(7), places.others(7)), (7, 7, &[other][..]));
        // And back: the kernel still has it there under the first one.
        assert_eq!(places.look_up(1, b"d", 7), 7);
        assert_eq!(places.look_up(2, b"d", 7), other);
        // Entries below the directory have their places below one number or the other.
        assert_eq!(places.look_up(7, b"below", 9), 9);
        assert_ne!(places.look_up(other, b"below", 9), 9);
    }

    #[test]
    fn what_was_replaced_or_removed_is_not_answered_again() {
        let mut places = Places::new();
        places.look_up(1, b"d", 7);
        // Another mount moved 7 away and made 8 in its place; then 7 is found beside it.
        assert_eq!(places.look_up(1, b"d", 8), 8);
        let other = places.look_up(1, b"e", 7);
        assert_ne!(other, 7);
        // The kernel removes what it takes for 8, while the server removes another.
        places.removed(1, b"d");
        places.moved((1, b"d"), (1, b"f"));
        assert_ne!(places.look_up(1, b"d", 8), 8);
        // A rename over a directory kills the one that the kernel had there.
        places.moved((1, b"none"), (1, b"e"));
        assert_ne!(places.look_up(1, b"e", 7), other);
    }

    #[test]
    fn another_process_knows_the_same_places() {
        let mut places = Places::new();
        places.look_up(1, b"d", 7);
        let other = places.look_up(2, b"d", 7);
        places.look_up(2, b"e", 8);
        places.look_up(2, b"e", 9);
        let (state, next) = places.to_state();
        let mut again = Places::of_state(&state, next);
        assert_eq!(again.to_state(), (state, next));
        assert_eq!((again.inode(other), again.others(7)), (7, &[other][..]));
        assert_eq!(again.look_up(2, b"d", 7), other);
        assert_eq!(again.look_up(3, b"d", 7), places.look_up(3, b"d", 7));
        assert_ne!(again.look_up(2, b"e", 8), 8, "it was replaced");
    }

    #[test]
    fn records_go_when_the_kernel_forgets() {
        let mut places = Places::new();
        places.look_up(1, b"d", 7);
        places.look_up(1, b"d", 7);
        let other = places.look_up(2, b"d", 7);
        assert!(places.forgotten(7, 1));
        assert!(!places.forgotten(7, 1));
        assert_eq!(places.others(7), &[other][..]);
        assert!(!places.forgotten(other, 1));
        assert!(places.known.is_empty() && places.names.is_empty() && places.others.is_empty());
        assert_eq!(places.look_up(2, b"d", 7), 7);
        assert!(!places.forgotten(99, 3));
    }
}
