//! Positions in the journal, and marks that move along it with tasks waiting for them.
//!
//! Invariants: a mark never moves back; a waiter is woken once, when its position is reached or
//! the mark has failed; a dropped waiter leaves nothing behind.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use crate::error::StoreError;

/// The number of a batch in the journal: 1 is the first, 0 is before everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Position(pub u64);

impl std::fmt::Display for Position {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A position that moves forward; cloning gives another handle.
#[derive(Clone, Default)]
pub struct Mark {
    inner: Rc<Inner>,
}

#[derive(Default)]
struct Inner {
    position: Cell<u64>,
    next_ticket: Cell<u64>,
    /// By position, then by order of arrival.
    waiting: RefCell<BTreeMap<(u64, u64), Waker>>,
    failed: RefCell<Option<StoreError>>,
}

impl Mark {
    /// A mark at `position`.
    pub fn new(position: Position) -> Mark {
        let mark = Mark::default();
        mark.inner.position.set(position.0);
        mark
    }

    /// The position of the mark.
    pub fn get(&self) -> Position {
        Position(self.inner.position.get())
    }

    /// Moves the mark forward and wakes those who waited; an earlier position changes nothing.
    pub fn advance(&self, position: Position) {
        if position.0 <= self.inner.position.get() {
            return;
        }
        self.inner.position.set(position.0);
        let reached = {
            let mut waiting = self.inner.waiting.borrow_mut();
            let later = waiting.split_off(&(position.0 + 1, 0));
            std::mem::replace(&mut *waiting, later)
        };
        for waker in reached.into_values() {
            waker.wake();
        }
    }

    /// Fails everybody who waits for a position that is not reached, now and later.
    pub fn fail(&self, error: StoreError) {
        self.inner.failed.borrow_mut().get_or_insert(error);
        let waiting = std::mem::take(&mut *self.inner.waiting.borrow_mut());
        for waker in waiting.into_values() {
            waker.wake();
        }
    }

    /// Completes when the mark covers `position`.
    pub fn reached(&self, position: Position) -> Reached {
        Reached { inner: self.inner.clone(), position: position.0, ticket: None }
    }
}

/// See [`Mark::reached`].
#[must_use = "a wait does nothing unless awaited"]
pub struct Reached {
    inner: Rc<Inner>,
    position: u64,
    ticket: Option<u64>,
}

impl Future for Reached {
    type Output = Result<(), StoreError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.position <= self.inner.position.get() {
            return Poll::Ready(Ok(()));
        }
        if let Some(error) = &*self.inner.failed.borrow() {
            return Poll::Ready(Err(error.clone()));
        }
        let inner = self.inner.clone();
        let ticket = *self.ticket.get_or_insert_with(|| {
            let ticket = inner.next_ticket.get();
            inner.next_ticket.set(ticket + 1);
            ticket
        });
        let key = (self.position, ticket);
        inner.waiting.borrow_mut().insert(key, context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Reached {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            self.inner.waiting.borrow_mut().remove(&(self.position, ticket));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_base::executor::Executor;

    #[test]
    fn waiters_are_woken_by_position_and_fail_together() {
        let executor = Executor::new(Box::new(|| ()));
        let mark = Mark::new(Position(3));
        let log = Rc::new(RefCell::new(Vec::new()));
        for position in [9, 2, 5, 6] {
            let (reached, log) = (mark.reached(Position(position)), log.clone());
            executor.spawn(async move {
                let result = reached.await;
                log.borrow_mut().push((position, result.is_ok()));
            });
        }
        drop(mark.reached(Position(5)));
        executor.run();
        assert_eq!(*log.borrow(), [(2, true)]);
        mark.advance(Position(5));
        mark.advance(Position(4));
        executor.run();
        assert_eq!(*log.borrow(), [(2, true), (5, true)]);
        assert_eq!(mark.inner.waiting.borrow().len(), 2);
        mark.fail(StoreError::Busy);
        executor.run();
        assert_eq!(log.borrow()[2..], [(6, false), (9, false)]);
        assert_eq!(mark.get(), Position(5));
    }
}
