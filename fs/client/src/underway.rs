//! Names that are looked up or removed at this moment.
//!
//! A client that takes the last name of an inode may say that it does not use the inode any more: the
//! server then destroys it at once. Nothing of this client may be on the way to it at that moment.
//!
//! Invariants
//! * a look-up that asks the server is noted until it has its answer: a removal of the name meanwhile does
//!   not say that the inode is unused;
//! * a look-up does not answer from memory while a removal of the name is under way: it waits for that;
//! * a future that is dropped leaves no note.

use std::cell::RefCell;
use std::collections::BTreeMap;

use ropewalk_base::task::Notify;

type Name = (u64, Vec<u8>);

#[derive(Default)]
struct Counts {
    lookups: u32,
    removals: u32,
}

/// The names of one client.
#[derive(Default)]
pub(crate) struct UnderWay {
    names: RefCell<BTreeMap<Name, Counts>>,
    removed: Notify,
}

/// A look-up or a removal of a name; it ends when this is dropped.
pub(crate) struct Note<'a> {
    of: &'a UnderWay,
    name: Name,
    field: fn(&mut Counts) -> &mut u32,
}

impl UnderWay {
    fn note(&self, parent: u64, name: &[u8], field: fn(&mut Counts) -> &mut u32) -> Note<'_> {
        let name = (parent, name.to_vec());
        *field(self.names.borrow_mut().entry(name.clone()).or_default()) += 1;
        Note { of: self, name, field }
    }

    /// The name is looked up at the server.
    pub(crate) fn look_up(&self, parent: u64, name: &[u8]) -> Note<'_> {
        self.note(parent, name, |counts| &mut counts.lookups)
    }

    /// The name is removed, or comes to mean something else.
    pub(crate) fn remove(&self, parent: u64, name: &[u8]) -> Note<'_> {
        self.note(parent, name, |counts| &mut counts.removals)
    }

    fn has(&self, parent: u64, name: &[u8], count: impl Fn(&Counts) -> u32) -> bool {
        let names = self.names.borrow();
        // Mostly there is nothing: no key is made for that.
        !names.is_empty() && names.get(&(parent, name.to_vec())).is_some_and(|it| count(it) > 0)
    }

    pub(crate) fn is_looked_up(&self, parent: u64, name: &[u8]) -> bool {
        self.has(parent, name, |counts| counts.lookups)
    }

    /// Completes when no removal of the name is under way.
    pub(crate) async fn settled(&self, parent: u64, name: &[u8]) {
        loop {
            let removed = self.removed.notified();
            if !self.has(parent, name, |counts| counts.removals) {
                return;
            }
            removed.await;
        }
    }
}

impl Drop for Note<'_> {
    fn drop(&mut self) {
        let mut names = self.of.names.borrow_mut();
        let counts = names.get_mut(&self.name).expect("it is noted");
        *(self.field)(counts) -= 1;
        let removed = counts.removals == 0;
        if counts.lookups == 0 && removed {
            names.remove(&self.name);
        }
        drop(names);
        if removed {
            self.of.removed.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_end_when_they_are_dropped() {
        let names = UnderWay::default();
        let (first, second) = (names.look_up(1, b"a"), names.look_up(1, b"a"));
        let removal = names.remove(1, b"a");
        drop(first);
        assert!(names.is_looked_up(1, b"a") && !names.is_looked_up(1, b"b"));
        drop(second);
        assert!(!names.is_looked_up(1, b"a") && !names.names.borrow().is_empty());
        drop(removal);
        assert!(names.names.borrow().is_empty());
    }
}
