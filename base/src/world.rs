//! The outside world as a handle: clock, randomness, disk, tasks, blocking work.
//!
//! A server or client gets a [`World`] and nothing else from outside. Production makes one per
//! executor thread; the simulator makes one per simulated node, with virtual time and disk.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::disk::Disk;
use crate::executor::{Executor, TimerId};
use crate::hash::HashSeed;
use crate::random::Random;
use crate::task::{Receiver, oneshot};
use crate::time::Time;

/// A monotonic clock and the calendar.
pub trait Clock {
    /// Now, on the monotonic clock.
    fn now(&self) -> Time;
    /// Nanoseconds since 1970-01-01 00:00 UTC, for the times of inodes.
    fn unix_nanos(&self) -> i64;
}

/// Blocking work with its result already packed away.
pub type Work = Box<dyn FnOnce() + Send>;

/// Runs blocking work beside the executor: threads in production, an event in the simulator.
pub trait Offload {
    /// Runs `work` on another thread, or later on this one; `work` itself reports its end.
    fn offload(&self, work: Work);
}

/// Clock, randomness, disk, tasks and blocking work of one node. Cloning gives another handle.
#[derive(Clone)]
pub struct World {
    inner: Rc<Inner>,
}

struct Inner {
    executor: Executor,
    clock: Rc<dyn Clock>,
    disk: Arc<dyn Disk>,
    offload: Rc<dyn Offload>,
    random: RefCell<Random>,
}

impl World {
    /// Puts a world together.
    pub fn new(
        executor: Executor,
        clock: Rc<dyn Clock>,
        disk: Arc<dyn Disk>,
        offload: Rc<dyn Offload>,
        random: Random,
    ) -> World {
        let random = RefCell::new(random);
        World { inner: Rc::new(Inner { executor, clock, disk, offload, random }) }
    }

    /// Now, on the monotonic clock.
    pub fn now(&self) -> Time {
        self.inner.clock.now()
    }

    /// Nanoseconds since 1970-01-01 00:00 UTC.
    pub fn unix_nanos(&self) -> i64 {
        self.inner.clock.unix_nanos()
    }

    /// The node's storage.
    pub fn disk(&self) -> Arc<dyn Disk> {
        self.inner.disk.clone()
    }

    /// The executor that runs this node's tasks.
    pub fn executor(&self) -> &Executor {
        &self.inner.executor
    }

    /// 64 uniform bits.
    pub fn random_u64(&self) -> u64 {
        self.inner.random.borrow_mut().next_u64()
    }

    /// For hash maps with keys that others choose; the draws stay what they are.
    pub fn hash_seed(&self) -> HashSeed {
        HashSeed::peek(&self.inner.random.borrow())
    }

    /// 128 uniform bits.
    pub fn random_u128(&self) -> u128 {
        self.inner.random.borrow_mut().next_u128()
    }

    /// Starts a task of this node.
    pub fn spawn(&self, future: impl Future<Output = ()> + 'static) {
        self.inner.executor.spawn(future);
    }

    /// Completes after `duration`.
    pub fn sleep(&self, duration: Duration) -> Sleep {
        self.sleep_until(self.now() + duration)
    }

    /// Completes at `deadline`.
    pub fn sleep_until(&self, deadline: Time) -> Sleep {
        Sleep { world: self.clone(), deadline, timer: None }
    }

    /// `future`'s result, or `None` after `duration`; then the future is dropped.
    pub async fn timeout<T>(
        &self,
        duration: Duration,
        future: impl Future<Output = T>,
    ) -> Option<T> {
        crate::task::race(future, self.sleep(duration)).await.left()
    }

    /// Runs blocking `work` beside the executor and waits for its result.
    ///
    /// The work runs to its end even where the waiting is given up.
    pub fn offload<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Receiver<T> {
        let (sender, receiver) = oneshot();
        self.inner.offload.offload(Box::new(move || {
            sender.send(work());
        }));
        receiver
    }
}

/// Completes at a moment; see [`World::sleep_until`].
pub struct Sleep {
    world: World,
    deadline: Time,
    timer: Option<TimerId>,
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(timer) = self.timer.take() {
            self.world.executor().cancel_timer(timer);
        }
    }
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.world.now() >= self.deadline {
            return Poll::Ready(());
        }
        // A task that was woken by something else polls again with the same waker; one timer is
        // enough then. Combinators keep the task's waker, so this is safe.
        if self.timer.is_none() {
            let timer = self.world.executor().wake_at(self.deadline, context.waker().clone());
            self.timer = Some(timer);
        }
        Poll::Pending
    }
}
