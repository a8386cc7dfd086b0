//! Locks of blocks of objects: the order of the writes of mirrored groups.
//!
//! Invariant: of two changes that touch one block, the later one begins when the earlier one is at all members.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::rc::Rc;

use ropewalk_base::task::Notify;
use ropewalk_store::objects::ObjectId;

/// Blocks of an object.
pub(crate) type Blocks = (ObjectId, Range<u32>);

/// The blocks that are locked, and those that wait.
#[derive(Clone, Default)]
pub(crate) struct Locks {
    inner: Rc<Inner>,
}

#[derive(Default)]
struct Inner {
    held: RefCell<BTreeMap<ObjectId, Vec<Range<u32>>>>,
    /// In the order in which they came.
    waiting: RefCell<BTreeMap<u64, Vec<Blocks>>>,
    next: Cell<u64>,
    /// The numbers of those who hold some.
    holders: RefCell<BTreeSet<u64>>,
    released: Notify,
}

/// Blocks that are locked until this is dropped.
pub(crate) struct Guard {
    locks: Locks,
    number: u64,
    blocks: Vec<Blocks>,
}

/// A place among those who wait, until this is dropped.
struct Turn<'a> {
    inner: &'a Inner,
    number: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.inner.waiting.borrow_mut().remove(&self.number);
        self.inner.released.notify_all();
    }
}

pub(super) fn meet(one: &Range<u32>, other: &Range<u32>) -> bool {
    other.start < one.end && one.start < other.end
}

impl Locks {
    /// Whether nobody holds one of the blocks.
    pub(crate) fn are_free(&self, blocks: &[Blocks]) -> bool {
        let held = self.inner.held.borrow();
        blocks.iter().all(|(object, range)| {
            !held.get(object).is_some_and(|ranges| ranges.iter().any(|other| meet(range, other)))
        })
    }

    /// Completes when nobody holds one of the blocks.
    pub(crate) async fn free(&self, blocks: &[Blocks]) {
        loop {
            let released = self.inner.released.notified();
            if self.are_free(blocks) {
                return;
            }
            released.await;
        }
    }

    /// Completes when nobody holds a block of a file's objects.
    pub(crate) async fn free_of(&self, inode: u64, generation: u32) {
        let of_file = ObjectId { inode, generation, stripe: 0 }..=ObjectId {
            inode,
            generation,
            stripe: u32::MAX,
        };
        loop {
            let released = self.inner.released.notified();
            if self.inner.held.borrow().range(of_file.clone()).next().is_none() {
                return;
            }
            released.await;
        }
    }

    /// Completes when the present holders have given their blocks back. Those that wait now may hold some then.
    pub(crate) async fn rest(&self) {
        let now = self.inner.holders.borrow().clone();
        loop {
            let released = self.inner.released.notified();
            if self.inner.holders.borrow().is_disjoint(&now) {
                return;
            }
            released.await;
        }
    }

    /// Whether somebody who came before `number` waits for one of the blocks.
    fn is_behind(&self, number: u64, blocks: &[Blocks]) -> bool {
        let waiting = self.inner.waiting.borrow();
        let mut before = waiting.range(..number).flat_map(|(_, others)| others);
        before.any(|(object, range)| {
            blocks.iter().any(|(own, wanted)| own == object && meet(wanted, range))
        })
    }

    /// Locks the blocks, all at once, in turn: who waits holds none, and nobody goes before who came first.
    pub(crate) async fn lock(&self, blocks: Vec<Blocks>) -> Guard {
        let inner = &*self.inner;
        let number = inner.next.get();
        inner.next.set(number + 1);
        inner.waiting.borrow_mut().insert(number, blocks.clone());
        let turn = Turn { inner, number };
        loop {
            let released = inner.released.notified();
            if self.are_free(&blocks) && !self.is_behind(number, &blocks) {
                break;
            }
            released.await;
        }
        let mut held = inner.held.borrow_mut();
        for (object, range) in &blocks {
            held.entry(*object).or_default().push(range.clone());
        }
        drop(held);
        inner.holders.borrow_mut().insert(number);
        drop(turn);
        Guard { locks: self.clone(), number, blocks }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut held = self.locks.inner.held.borrow_mut();
        for (object, range) in &self.blocks {
            let ranges = held.get_mut(object).expect("it is held");
            let at = ranges.iter().position(|other| other == range).expect("it is held");
            ranges.swap_remove(at);
            if ranges.is_empty() {
                held.remove(object);
            }
        }
        drop(held);
        self.locks.inner.holders.borrow_mut().remove(&self.number);
        self.locks.inner.released.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn poll<T>(future: std::pin::Pin<&mut impl Future<Output = T>>) -> Poll<T> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn blocks_are_locked_once_and_all_at_once() {
        let object = |stripe| ObjectId { inode: 1, generation: 1, stripe };
        let locks = Locks::default();
        let mut first = pin!(locks.lock(vec![(object(0), 0..4), (object(1), 2..3)]));
        let Poll::Ready(first) = poll(first.as_mut()) else { panic!("nobody holds any") };
        let mut beside = pin!(locks.lock(vec![(object(0), 4..8), (object(1), 0..2)]));
        assert!(poll(beside.as_mut()).is_ready());
        let got = Cell::new(false);
        let mut second = pin!(async {
            let _guard = locks.lock(vec![(object(2), 0..1), (object(1), 2..9)]).await;
            got.set(true);
        });
        assert!(poll(second.as_mut()).is_pending());
        assert!(locks.are_free(&[(object(2), 0..1)]), "who waits holds none");
        // It came later, and does not go before.
        let mut third = pin!(locks.lock(vec![(object(1), 8..10)]));
        assert!(poll(third.as_mut()).is_pending());
        let mut rest = pin!(locks.rest());
        assert!(poll(rest.as_mut()).is_pending());
        drop(first);
        assert!(poll(rest.as_mut()).is_ready(), "who waited then may hold some");
        assert!(poll(second.as_mut()).is_ready() && got.get());
        assert!(poll(third.as_mut()).is_ready());
        assert!(locks.are_free(&[(object(0), 0..4), (object(1), 0..9)]));
    }
}
