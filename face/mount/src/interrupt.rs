//! The running requests, and the callers that gave up waiting for them.
//!
//! A process that gets a signal while it waits for a request makes the kernel send INTERRUPT with the request's
//! number. The kernel then still waits for the reply, even of a process that is being killed. So this module
//! decides whether Ctrl-C works.
//!
//! Invariants:
//! * a request is registered from before its task first runs until its reply is written;
//! * an interrupt finds its request on any loop, even if it overtakes the request;
//! * levels only rise.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::time::Time;

use crate::caller;

/// Most requests in work at once on one loop.
const REQUESTS_MAX: usize = 1 << 18;
/// Interrupts that are remembered because their request is not (yet, or any more) known.
const EARLY_MAX: usize = 64;
/// The interval between two checks of a process with a signal. Its next signal, which may be the fatal one,
/// makes no second INTERRUPT.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// The time that a caller with a signal waits before its operation counts as stuck.
const PATIENCE: Duration = Duration::from_secs(2);

/// The urgency with which a request's caller wants to stop waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Level {
    None,
    /// It has a signal to handle.
    Signal,
    /// It has had a signal to handle for longer than any healthy operation takes.
    Waited,
    /// It is being killed; it will never see the reply.
    Killed,
}

struct Running {
    unique: u64,
    pid: u32,
    level: Level,
    /// The time at which it reached `Level::Signal`.
    since: Time,
    waker: Option<Waker>,
    /// The request, where another process could answer it.
    kept: Option<Box<[u8]>>,
}

impl Running {
    /// Whether its caller has to be looked at again.
    fn is_open(&self) -> bool {
        matches!(self.level, Level::Signal | Level::Waited)
    }
}

/// The requests of one loop.
pub(crate) struct Registry {
    running: RefCell<Slots<Running>>,
    early: RefCell<VecDeque<u64>>,
    /// The number of requests whose callers have to be looked at again.
    signalled: Cell<usize>,
    look_again: Cell<Time>,
}

impl Registry {
    pub(crate) fn new() -> Registry {
        Registry {
            running: RefCell::new(Slots::with_limit(REQUESTS_MAX)),
            early: RefCell::new(VecDeque::new()),
            signalled: Cell::new(0),
            look_again: Cell::new(Time::NEVER),
        }
    }

    /// Notes a request; `None` where there are too many.
    pub(crate) fn register(&self, unique: u64, pid: u32, now: Time) -> Option<SlotId> {
        let since = Time::NEVER;
        let running = Running { unique, pid, level: Level::None, since, waker: None, kept: None };
        let slot = self.running.borrow_mut().insert(running).ok()?;
        if !self.early.borrow().is_empty() {
            let mut early = self.early.borrow_mut();
            if let Some(at) = early.iter().position(|other| *other == unique) {
                early.remove(at);
                drop(early);
                self.raise(slot, now);
            }
        }
        Some(slot)
    }

    /// Keeps the bytes of a request that waits for long: another process can take it over.
    pub(crate) fn keep(&self, slot: SlotId, request: &[u8]) {
        if let Some(one) = self.running.borrow_mut().get_mut(slot) {
            one.kept = Some(request.into());
        }
    }

    /// The kept requests, where there are no others; `None` while others run, or the caller of a kept one has a signal.
    pub(crate) fn kept(&self) -> Option<Vec<Vec<u8>>> {
        let running = self.running.borrow();
        let kept = |one: &Running| {
            one.kept.as_ref().filter(|_| one.level == Level::None).map(|bytes| bytes.to_vec())
        };
        running.iter().map(|(_, one)| kept(one)).collect()
    }

    /// The reply is written.
    pub(crate) fn finish(&self, slot: SlotId) {
        let done = self.running.borrow_mut().remove(slot);
        if done.is_some_and(|done| done.is_open()) {
            self.signalled.set(self.signalled.get() - 1);
        }
    }

    /// The number of requests in progress.
    pub(crate) fn len(&self) -> usize {
        self.running.borrow().len()
    }

    /// Takes an interrupt for a request of this loop; false where it is not known here.
    pub(crate) fn interrupt(&self, unique: u64, now: Time) -> bool {
        // Interrupts are rare, requests are not: a search here beats an index that every request
        // would have to keep.
        let found = self.running.borrow().iter().find(|(_, one)| one.unique == unique).map(|f| f.0);
        let Some(slot) = found else { return false };
        self.raise(slot, now);
        true
    }

    /// Remembers an interrupt that no loop could place: its request may be about to be registered.
    pub(crate) fn remember(&self, unique: u64) {
        let mut early = self.early.borrow_mut();
        if early.len() == EARLY_MAX {
            early.pop_front();
        }
        early.push_back(unique);
    }

    /// The time at which [`Registry::look`] wants to be called.
    pub(crate) fn deadline(&self) -> Option<Time> {
        Some(self.look_again.get()).filter(|at| *at != Time::NEVER)
    }

    /// Looks again at processes that had a signal: a fatal one may have followed.
    pub(crate) fn look(&self, now: Time) {
        if now < self.look_again.get() {
            return;
        }
        let signalled: Vec<SlotId> = {
            let running = self.running.borrow();
            let waiting = running.iter().filter(|(_, one)| one.is_open());
            waiting.map(|(slot, _)| slot).collect()
        };
        for slot in signalled {
            self.raise(slot, now);
        }
        let again = self.signalled.get() > 0;
        self.look_again.set(if again { now + LOOK_AGAIN } else { Time::NEVER });
    }

    fn raise(&self, slot: SlotId, now: Time) {
        let waker = {
            let mut running = self.running.borrow_mut();
            let Some(one) = running.get_mut(slot) else { return };
            let level = if caller::is_being_killed(one.pid) {
                Level::Killed
            } else if one.is_open() && now.since(one.since) >= PATIENCE {
                Level::Waited
            } else {
                Level::Signal
            };
            if level <= one.level {
                return;
            }
            let before = usize::from(one.is_open());
            one.level = level;
            one.since = one.since.min(now);
            self.signalled.set(self.signalled.get() + usize::from(one.is_open()) - before);
            one.waker.take()
        };
        if self.signalled.get() > 0 && self.look_again.get() == Time::NEVER {
            self.look_again.set(now + LOOK_AGAIN);
        }
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    pub(crate) fn level(&self, slot: SlotId) -> Level {
        self.running.borrow().get(slot).map_or(Level::None, |one| one.level)
    }

    fn poll_level(&self, slot: SlotId, wanted: Level, context: &mut Context<'_>) -> Poll<()> {
        let mut running = self.running.borrow_mut();
        match running.get_mut(slot) {
            Some(one) if one.level >= wanted => Poll::Ready(()),
            Some(one) => {
                // All futures of a request are polled by its one task: one waker is enough.
                one.waker = Some(context.waker().clone());
                Poll::Pending
            }
            None => Poll::Pending,
        }
    }
}

/// Completes when the caller of a request reaches a level; see
/// [`Context::interrupted`](crate::filesystem::Context::interrupted).
pub struct Interrupted {
    pub(crate) registry: Rc<Registry>,
    pub(crate) slot: SlotId,
    pub(crate) wanted: Level,
}

impl Future for Interrupted {
    type Output = ();
    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.registry.poll_level(self.slot, self.wanted, context)
    }
}

/// Joins the loops of one mount: the kernel hands an INTERRUPT to any of them, whichever of them
/// runs the request. Cloning gives another handle.
#[derive(Clone, Default)]
pub struct Siblings {
    mailboxes: Arc<Mutex<Vec<Arc<Mailbox>>>>,
}

/// Interrupts on their way to one loop.
#[derive(Default)]
pub(crate) struct Mailbox {
    letters: Mutex<Letters>,
}

#[derive(Default)]
struct Letters {
    queue: VecDeque<u64>,
    waker: Option<Waker>,
    closed: bool,
}

impl Siblings {
    /// For a new mount.
    pub fn new() -> Siblings {
        Siblings::default()
    }

    pub(crate) fn join(&self) -> Arc<Mailbox> {
        let mailbox = Arc::new(Mailbox::default());
        self.mailboxes
            .lock()
            .expect("the list of loops is never left half-changed")
            .push(mailbox.clone());
        mailbox
    }

    pub(crate) fn leave(&self, own: &Arc<Mailbox>) {
        let mut mailboxes =
            self.mailboxes.lock().expect("the list of loops is never left half-changed");
        mailboxes.retain(|other| !Arc::ptr_eq(other, own));
        drop(mailboxes);
        own.close();
    }

    /// Passes an interrupt to all loops but the one with `own`.
    pub(crate) fn forward(&self, own: &Arc<Mailbox>, unique: u64) {
        let mailboxes =
            self.mailboxes.lock().expect("the list of loops is never left half-changed");
        for mailbox in mailboxes.iter().filter(|other| !Arc::ptr_eq(other, own)) {
            mailbox.put(unique);
        }
    }
}

impl Mailbox {
    fn put(&self, unique: u64) {
        self.change(|letters| {
            if letters.queue.len() == EARLY_MAX {
                letters.queue.pop_front();
            }
            letters.queue.push_back(unique);
        });
    }

    fn close(&self) {
        self.change(|letters| letters.closed = true);
    }

    fn change(&self, change: impl FnOnce(&mut Letters)) {
        let waker = {
            let mut letters = self.letters.lock().expect("a mailbox is never left half-changed");
            change(&mut letters);
            letters.waker.take()
        };
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// The next interrupt; `None` when the loop is gone.
    pub(crate) async fn next(&self) -> Option<u64> {
        std::future::poll_fn(|context| {
            let mut letters = self.letters.lock().expect("a mailbox is never left half-changed");
            if letters.closed {
                return Poll::Ready(None);
            }
            if let Some(unique) = letters.queue.pop_front() {
                return Poll::Ready(Some(unique));
            }
            letters.waker = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that does not exist counts as killed.
    const NOBODY: u32 = u32::MAX;

    #[test]
    fn an_interrupt_finds_its_request_even_where_it_comes_first() {
        let registry = Registry::new();
        let slot = registry.register(10, NOBODY, Time::ZERO).unwrap();
        assert!(!registry.interrupt(12, Time::ZERO));
        registry.remember(12);
        assert_eq!(registry.level(slot), Level::None);
        assert!(registry.interrupt(10, Time::ZERO));
        assert_eq!(registry.level(slot), Level::Killed);
        let late = registry.register(12, NOBODY, Time::ZERO).unwrap();
        assert_eq!(registry.level(late), Level::Killed);
        registry.finish(slot);
        assert!(!registry.interrupt(10, Time::ZERO));
        assert_eq!(registry.len(), 1);
    }

    #[test]
    fn a_living_caller_is_looked_at_again_until_it_is_answered() {
        let registry = Registry::new();
        let slot = registry.register(2, std::process::id(), Time::ZERO).unwrap();
        assert!(registry.interrupt(2, Time::ZERO));
        assert_eq!(registry.level(slot), Level::Signal);
        let due = registry.deadline().unwrap();
        registry.look(due);
        assert!(registry.deadline().unwrap() > due);
        registry.look(Time::ZERO + PATIENCE);
        assert_eq!(registry.level(slot), Level::Waited);
        registry.finish(slot);
        registry.look(registry.deadline().unwrap());
        assert_eq!(registry.deadline(), None);
    }

    #[test]
    fn requests_are_handed_over_only_where_all_of_them_can_be() {
        let registry = Registry::new();
        assert_eq!(registry.kept(), Some(vec![]));
        let waits = registry.register(2, std::process::id(), Time::ZERO).unwrap();
        assert_eq!(registry.kept(), None);
        registry.keep(waits, b"request");
        assert_eq!(registry.kept(), Some(vec![b"request".to_vec()]));
        let other = registry.register(4, 0, Time::ZERO).unwrap();
        assert_eq!(registry.kept(), None);
        registry.finish(other);
        assert!(registry.interrupt(2, Time::ZERO));
        assert_eq!(registry.kept(), None, "it is about to give up");
    }

    #[test]
    fn remembered_interrupts_are_bounded() {
        let registry = Registry::new();
        for unique in 0..1000 {
            registry.remember(unique);
        }
        assert_eq!(registry.early.borrow().len(), EARLY_MAX);
    }
}
