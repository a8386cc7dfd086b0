//! A gate in front of several connections: it counts their calls, and stops them where they are to rest.
//!
//! A client that hands its session to another process closes it: what it does later must not reach a server.
//!
//! Invariants: no message leaves while the gate is closed; a call that waits there counts as under way; calls go on
//! where they waited when it is opened.

use std::cell::Cell;
use std::rc::Rc;

use ropewalk_base::task::Notify;

/// The gate of all connections of a client.
#[derive(Default)]
pub struct Gate {
    closed: Cell<bool>,
    opened: Notify,
    under_way: Cell<usize>,
}

impl Gate {
    /// Lets no more messages leave.
    pub fn close(&self) {
        self.closed.set(true);
    }

    /// Lets messages leave again.
    pub fn open(&self) {
        self.closed.set(false);
        self.opened.notify_all();
    }

    /// Whether no call is under way, and none waits to leave.
    pub fn is_quiet(&self) -> bool {
        self.under_way.get() == 0
    }

    pub(crate) fn note(self: &Rc<Gate>) -> UnderWay {
        self.under_way.set(self.under_way.get() + 1);
        UnderWay(self.clone())
    }

    pub(crate) async fn pass(&self) {
        while self.closed.get() {
            self.opened.notified().await;
        }
    }
}

/// A call; it is over when this is dropped.
pub(crate) struct UnderWay(Rc<Gate>);

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.under_way.set(self.0.under_way.get() - 1);
    }
}
