//! The way of orders from the thread at the door to the mount's thread.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::os::fd::OwnedFd;
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

/// A mount at rest: the bytes of its state's frame, and the descriptor of /dev/fuse.
pub struct Parcel {
    pub frame: Vec<u8>,
    pub device: OwnedFd,
}

/// An order to the mount's thread.
pub enum Order {
    /// Come to rest, and say what another process has to know; or why not.
    Rest(mpsc::Sender<Result<Parcel, String>>),
    /// Serve on.
    GoOn,
    /// The other process serves, and this one ends.
    Leave,
}

/// Orders that were not taken yet.
#[derive(Default)]
pub struct Desk {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    /// The mount is the other process's, as long as that lives.
    given: bool,
    orders: VecDeque<Order>,
    waker: Option<Waker>,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        // Orders are put in whole.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The mount is given away, or it is not.
    pub fn set_given(&self, given: bool) {
        self.lock().given = given;
    }

    /// Whether the mount is given away: nobody here ends it.
    pub fn is_given(&self) -> bool {
        self.lock().given
    }

    /// Gives an order.
    pub fn give(&self, order: Order) {
        let mut inner = self.lock();
        inner.orders.push_back(order);
        let waker = inner.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The next order.
    pub async fn next(&self) -> Order {
        poll_fn(|context| {
            let mut inner = self.lock();
            if let Some(order) = inner.orders.pop_front() {
                return Poll::Ready(order);
            }
            inner.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}
