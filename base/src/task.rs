//! Small primitives for tasks of one executor.
//!
//! All of them also work where the other side is on another thread only if their documentation
//! says so: [`oneshot`] does, the rest is local.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};

use pin_project_lite::pin_project;

/// One value from one sender to one receiver, across threads.
pub fn oneshot<T>() -> (Sender<T>, Receiver<T>) {
    let shared = Arc::new(Mutex::new(Shared { state: State::Empty, waker: None }));
    (Sender { shared: shared.clone() }, Receiver { shared })
}

enum State<T> {
    Empty,
    Full(T),
    Closed,
}

struct Shared<T> {
    state: State<T>,
    waker: Option<Waker>,
}

/// The sending half of [`oneshot`].
pub struct Sender<T> {
    shared: Arc<Mutex<Shared<T>>>,
}

/// The receiving half of [`oneshot`]: a future of the value, `None` where the sender was dropped.
pub struct Receiver<T> {
    shared: Arc<Mutex<Shared<T>>>,
}

impl<T> Sender<T> {
    /// Delivers the value. A receiver that is gone loses it.
    pub fn send(self, value: T) {
        self.finish(State::Full(value));
    }

    fn finish(&self, state: State<T>) {
        let waker = {
            let mut shared = self.shared.lock().expect("a oneshot is never left half-changed");
            if !matches!(shared.state, State::Empty) {
                return;
            }
            shared.state = state;
            shared.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.finish(State::Closed);
    }
}

impl<T> Future for Receiver<T> {
    type Output = Option<T>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<T>> {
        let mut shared = self.shared.lock().expect("a oneshot is never left half-changed");
        match std::mem::replace(&mut shared.state, State::Closed) {
            State::Full(value) => Poll::Ready(Some(value)),
            State::Closed => Poll::Ready(None),
            State::Empty => {
                shared.state = State::Empty;
                shared.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Wakes waiting tasks; a wake-up with nobody waiting is not remembered.
#[derive(Clone, Default)]
pub struct Notify {
    inner: Rc<NotifyInner>,
}

#[derive(Default)]
struct NotifyInner {
    round: Cell<u64>,
    wakers: RefCell<Vec<Waker>>,
}

impl Notify {
    /// A fresh one.
    pub fn new() -> Notify {
        Notify::default()
    }

    /// Wakes all that wait now.
    pub fn notify_all(&self) {
        self.inner.round.set(self.inner.round.get() + 1);
        let wakers = std::mem::take(&mut *self.inner.wakers.borrow_mut());
        for waker in wakers {
            waker.wake();
        }
    }

    /// Completes at the first `notify_all` after this call (not after the first poll).
    pub fn notified(&self) -> Notified {
        Notified { inner: self.inner.clone(), round: self.inner.round.get() }
    }
}

/// See [`Notify::notified`].
pub struct Notified {
    inner: Rc<NotifyInner>,
    round: u64,
}

impl Future for Notified {
    type Output = ();
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if self.inner.round.get() != self.round {
            return Poll::Ready(());
        }
        let mut wakers = self.inner.wakers.borrow_mut();
        if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
            wakers.push(context.waker().clone());
        }
        Poll::Pending
    }
}

/// Permits that tasks take and give back, first come first served.
#[derive(Clone)]
pub struct Semaphore {
    inner: Rc<SemaphoreInner>,
}

struct SemaphoreInner {
    free: Cell<usize>,
    next_ticket: Cell<u64>,
    /// Tickets of those who wait, in order, with the waker of each.
    queue: RefCell<VecDeque<(u64, Option<Waker>)>>,
}

impl Semaphore {
    /// With so many permits. With one permit it is a fair lock.
    pub fn new(permits: usize) -> Semaphore {
        Semaphore {
            inner: Rc::new(SemaphoreInner {
                free: Cell::new(permits),
                next_ticket: Cell::new(0),
                queue: RefCell::new(VecDeque::new()),
            }),
        }
    }

    /// Waits for a permit; it goes back when the result is dropped.
    pub fn acquire(&self) -> Acquire {
        Acquire { inner: self.inner.clone(), ticket: None, done: false }
    }

    /// A permit, where one is free and nobody waits.
    pub fn try_acquire(&self) -> Option<Permit> {
        if self.inner.free.get() == 0 || !self.inner.queue.borrow().is_empty() {
            return None;
        }
        self.inner.free.set(self.inner.free.get() - 1);
        Some(Permit { inner: self.inner.clone() })
    }

    /// Free permits.
    pub fn available(&self) -> usize {
        self.inner.free.get()
    }
}

impl SemaphoreInner {
    fn wake_first(&self) {
        if self.free.get() > 0
            && let Some((_, Some(waker))) = self.queue.borrow().front()
        {
            waker.wake_by_ref();
        }
    }
}

/// See [`Semaphore::acquire`].
pub struct Acquire {
    inner: Rc<SemaphoreInner>,
    ticket: Option<u64>,
    done: bool,
}

impl Future for Acquire {
    type Output = Permit;
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Permit> {
        let inner = self.inner.clone();
        let mut queue = inner.queue.borrow_mut();
        let ticket = *self.ticket.get_or_insert_with(|| {
            let ticket = inner.next_ticket.get();
            inner.next_ticket.set(ticket + 1);
            queue.push_back((ticket, None));
            ticket
        });
        let first = queue.front().is_some_and(|(first, _)| *first == ticket);
        if first && inner.free.get() > 0 {
            inner.free.set(inner.free.get() - 1);
            queue.pop_front();
            drop(queue);
            self.done = true;
            inner.wake_first();
            return Poll::Ready(Permit { inner });
        }
        if let Some(entry) = queue.iter_mut().find(|(other, _)| *other == ticket) {
            entry.1 = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl Drop for Acquire {
    fn drop(&mut self) {
        if let (Some(ticket), false) = (self.ticket, self.done) {
            self.inner.queue.borrow_mut().retain(|(other, _)| *other != ticket);
            self.inner.wake_first();
        }
    }
}

/// A taken permit of a [`Semaphore`].
pub struct Permit {
    inner: Rc<SemaphoreInner>,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.inner.free.set(self.inner.free.get() + 1);
        self.inner.wake_first();
    }
}

/// The result of [`race`].
pub enum Either<A, B> {
    Left(A),
    Right(B),
}

impl<A, B> Either<A, B> {
    /// The left result, where it was first.
    pub fn left(self) -> Option<A> {
        match self {
            Either::Left(value) => Some(value),
            Either::Right(_) => None,
        }
    }

    /// The right result, where it was first.
    pub fn right(self) -> Option<B> {
        match self {
            Either::Left(_) => None,
            Either::Right(value) => Some(value),
        }
    }
}

pin_project! {
    /// See [`race`].
    pub struct Race<A, B> {
        #[pin]
        left: A,
        #[pin]
        right: B,
    }
}

/// The first of two futures to complete, the left one in a draw; the other goes with the race.
///
/// Not an `async fn`: that would have room for both futures twice, and futures nest.
#[must_use = "futures do nothing unless they are awaited"]
pub fn race<A: Future, B: Future>(left: A, right: B) -> Race<A, B> {
    Race { left, right }
}

impl<A: Future, B: Future> Future for Race<A, B> {
    type Output = Either<A::Output, B::Output>;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if let Poll::Ready(value) = this.left.poll(context) {
            return Poll::Ready(Either::Left(value));
        }
        this.right.poll(context).map(Either::Right)
    }
}

pin_project! {
    /// See [`join`].
    pub struct Join<A: Future, B: Future> {
        #[pin]
        left: A,
        #[pin]
        right: B,
        first: Option<A::Output>,
        second: Option<B::Output>,
    }
}

/// Both results; both futures run at the same time.
#[must_use = "futures do nothing unless they are awaited"]
pub fn join<A: Future, B: Future>(left: A, right: B) -> Join<A, B> {
    Join { left, right, first: None, second: None }
}

impl<A: Future, B: Future> Future for Join<A, B> {
    type Output = (A::Output, B::Output);

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        if this.first.is_none()
            && let Poll::Ready(value) = this.left.poll(context)
        {
            *this.first = Some(value);
        }
        if this.second.is_none()
            && let Poll::Ready(value) = this.right.poll(context)
        {
            *this.second = Some(value);
        }
        match (this.first.take(), this.second.take()) {
            (Some(first), Some(second)) => Poll::Ready((first, second)),
            (first, second) => {
                (*this.first, *this.second) = (first, second);
                Poll::Pending
            }
        }
    }
}

/// All results, in order, when the last is there.
pub async fn join_all<F: Future>(futures: impl IntoIterator<Item = F>) -> Vec<F::Output> {
    let mut futures: Vec<Pin<Box<F>>> = futures.into_iter().map(Box::pin).collect();
    let mut results: Vec<Option<F::Output>> = futures.iter().map(|_| None).collect();
    std::future::poll_fn(move |context| {
        let mut all = true;
        for (future, result) in futures.iter_mut().zip(results.iter_mut()) {
            if result.is_none() {
                match future.as_mut().poll(context) {
                    Poll::Ready(value) => *result = Some(value),
                    Poll::Pending => all = false,
                }
            }
        }
        if all {
            Poll::Ready(std::mem::take(&mut results).into_iter().flatten().collect())
        } else {
            Poll::Pending
        }
    })
    .await
}

/// Lets other ready tasks run before this one goes on.
pub async fn yield_now() {
    let mut yielded = false;
    std::future::poll_fn(move |context| {
        if yielded {
            return Poll::Ready(());
        }
        yielded = true;
        context.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::executor::Executor;

    #[test]
    fn a_semaphore_is_fair_and_survives_dropped_waiters() {
        let executor = Executor::new(Box::new(|| ()));
        let semaphore = Semaphore::new(1);
        let order = Rc::new(RefCell::new(Vec::new()));
        let held = semaphore.try_acquire().unwrap();
        for number in 0..3 {
            let (semaphore, order) = (semaphore.clone(), order.clone());
            executor.spawn(async move {
                if number == 1 {
                    // Gives up before its turn.
                    let _ = race(semaphore.acquire(), yield_now()).await;
                    return;
                }
                let _permit = semaphore.acquire().await;
                order.borrow_mut().push(number);
                yield_now().await;
            });
        }
        executor.run();
        assert!(order.borrow().is_empty());
        drop(held);
        executor.run();
        assert_eq!(*order.borrow(), [0, 2]);
        assert_eq!(semaphore.available(), 1);
    }

    #[test]
    fn join_all_keeps_the_order() {
        let executor = Executor::new(Box::new(|| ()));
        let result = Rc::new(RefCell::new(Vec::new()));
        let out = result.clone();
        executor.spawn(async move {
            let futures = (0..4).map(|number| async move {
                for _ in number..4 {
                    yield_now().await;
                }
                number
            });
            *out.borrow_mut() = join_all(futures).await;
        });
        executor.run();
        assert_eq!(*result.borrow(), [0, 1, 2, 3]);
    }
}
