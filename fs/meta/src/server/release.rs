//! Replies, callbacks and fences that wait for a mark of the store: many things, one waiter.
//!
//! Invariant: things leave in the order of their positions, and of their arrival within one.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use ropewalk_base::task::Notify;
use ropewalk_rpc::Responder;
use ropewalk_wire::fs::meta::Callback;

/// The action when the mark is reached.
pub(super) enum Held {
    Reply { responder: Responder, body: Vec<u8> },
    Callback { session: u64, callback: Callback },
    Fence { session: u64, epoch: u32 },
}

/// Things by the position for which they wait.
#[derive(Default)]
pub(super) struct Releases {
    waiting: RefCell<BTreeMap<(u64, u64), Held>>,
    arrivals: Cell<u64>,
    pub added: Notify,
}

impl Releases {
    pub fn hold(&self, position: u64, held: Held) {
        let arrival = self.arrivals.get();
        self.arrivals.set(arrival + 1);
        let mut waiting = self.waiting.borrow_mut();
        let was_empty = waiting.is_empty();
        waiting.insert((position, arrival), held);
        drop(waiting);
        if was_empty {
            self.added.notify_all();
        }
    }

    /// The number of things that wait.
    pub fn len(&self) -> usize {
        self.waiting.borrow().len()
    }

    /// The position for which the first thing waits.
    pub fn first(&self) -> Option<u64> {
        self.waiting.borrow().keys().next().map(|(position, _)| *position)
    }

    /// Takes out the entries that wait for `mark` or less.
    pub fn take_through(&self, mark: u64) -> impl Iterator<Item = Held> + use<> {
        let mut waiting = self.waiting.borrow_mut();
        let later = match mark.checked_add(1) {
            Some(next) => waiting.split_off(&(next, 0)),
            None => BTreeMap::new(),
        };
        std::mem::replace(&mut *waiting, later).into_values()
    }
}
