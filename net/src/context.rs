//! Contexts: queues of completions, each of one component or thread.
//!
//! A sleeper arms its context first: after `Armed` the next completion makes the descriptor readable, after `Ready`
//! there is one already. A caller that only polls never pays for that.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Memory;
use ropewalk_base::verb::RemoteKey;
use ropewalk_core::{OperationId, PeerId};

use crate::spin::Spin;

/// The completion of an operation.
#[derive(Debug)]
pub struct Completed {
    pub operation: OperationId,
    /// The caller's number, as it was posted.
    pub user: u64,
    pub outcome: Result<(), Fault>,
    /// Bytes moved. For sends that were announced, or that wait for their match: the bytes that the receiver took,
    /// even if its receive was shorter than the message.
    pub bytes: u64,
    /// The whole length of the message, also where it was cut or refused.
    pub message_bytes: u64,
    /// The other side; of receives the sender.
    pub peer: Option<PeerId>,
    /// Receives: the message's match bits.
    pub bits: u64,
    /// The operation's memory.
    pub memory: Memory,
}

/// The event of a put with immediate data, at the endpoint whose memory it is. The put is at its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written {
    /// The origin of the put.
    pub peer: PeerId,
    /// The region, by the key that its exposure returned.
    pub key: RemoteKey,
    pub bytes: u64,
    pub data: u64,
    pub(crate) session: u32,
}

/// A peer refused an operation of which the completion had said nothing of the peer: see
/// [`Endpoint::next_refusal`](crate::Endpoint::next_refusal).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LateRefusal {
    pub peer: PeerId,
    /// As [`Completed::operation`] had it.
    pub operation: OperationId,
    pub fault: Fault,
}

/// The numbers of a counter.
#[derive(Debug)]
pub(crate) struct Counts {
    pub value: AtomicU64,
    pub errors: AtomicU64,
    /// Their waiter sleeps there.
    ringer: Weak<Queue>,
}

impl Counts {
    pub fn of(queue: &Arc<Queue>) -> Counts {
        Counts {
            value: AtomicU64::new(0),
            errors: AtomicU64::new(0),
            ringer: Arc::downgrade(queue),
        }
    }

    /// An operation is complete.
    pub fn note(&self, outcome: Result<(), Fault>) {
        match outcome {
            Ok(()) => self.change(&self.value, |count| count.wrapping_add(1)),
            Err(_) => self.change(&self.errors, |count| count.wrapping_add(1)),
        }
    }

    pub fn change(&self, count: &AtomicU64, change: impl Fn(u64) -> u64) {
        // In one order with the sleeper's flag, like the count of completions.
        let _ = count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |it| Some(change(it)));
        if let Some(queue) = self.ringer.upgrade() {
            queue.ring();
        }
    }
}

/// The answer of [`crate::Endpoint::arm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arm {
    /// There is something to test for: do not sleep.
    Ready,
    /// The descriptor becomes readable when there is.
    Armed,
}

#[derive(Debug)]
pub(crate) struct Queue {
    /// Its number within its endpoint, by which operations name it.
    pub number: u32,
    completions: Mutex<VecDeque<Completed>>,
    /// The number of completions; a caller that polls an empty queue does not touch its lock.
    count: AtomicUsize,
    armed: AtomicBool,
    /// Rings of which the bell was not written yet when the sleeper was awake again; the waiter alone changes it.
    owed: AtomicU32,
    /// Events of puts with immediate data, and how many they are. Peers' credit bounds them.
    written: Mutex<VecDeque<Written>>,
    written_count: AtomicUsize,
    /// Refusals that came after their operations were complete, and how many they are. The numbers that a session may have open
    /// bound what comes between two looks.
    refused: Mutex<VecDeque<LateRefusal>>,
    refused_count: AtomicUsize,
    /// Completions are counted there, and, if they are `counted_only`, not kept.
    counts: OnceLock<Arc<Counts>>,
    counted_only: bool,
    /// Requests wake this context, too.
    pub wants_requests: bool,
    /// Nobody has the context any more: completions to it are dropped.
    retired: AtomicBool,
    bell: OwnedFd,
    /// The waiter's experience with spinning: for what a peer's program does, for an answer of its endpoint, and for the
    /// rest of a payload.
    spin: AtomicU32,
    answer: AtomicU32,
    follow: AtomicU32,
}

/// The event that a waiter expects. It learns apart for each how long it is worth spinning.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Awaited {
    /// Something that a program does, here or at a peer.
    Program,
    /// An answer that a peer's endpoint gives by itself, also while its program computes.
    Answer,
}

/// A queue of completions. Cloning gives another handle on the same queue; one thread at a time may
/// wait on it (the others would sleep through its bell).
#[derive(Debug, Clone)]
pub struct Context {
    pub(crate) queue: Arc<Queue>,
}

impl Queue {
    pub(crate) fn new(number: u32, wants_requests: bool) -> std::io::Result<Queue> {
        Queue::make(number, wants_requests, false)
    }

    /// One that keeps no completions.
    pub(crate) fn counting(number: u32) -> std::io::Result<Queue> {
        Queue::make(number, false, true)
    }

    fn make(number: u32, wants_requests: bool, counted_only: bool) -> std::io::Result<Queue> {
        use rustix::event::{EventfdFlags, eventfd};
        Ok(Queue {
            number,
            completions: Mutex::new(VecDeque::with_capacity(64)),
            count: AtomicUsize::new(0),
            armed: AtomicBool::new(false),
            owed: AtomicU32::new(0),
            written: Mutex::default(),
            written_count: AtomicUsize::new(0),
            refused: Mutex::default(),
            refused_count: AtomicUsize::new(0),
            counts: OnceLock::new(),
            counted_only,
            wants_requests,
            retired: AtomicBool::new(false),
            bell: eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?,
            spin: AtomicU32::new(Spin::new().to_bits()),
            answer: AtomicU32::new(Spin::eager().to_bits()),
            follow: AtomicU32::new(Spin::eager().to_bits()),
        })
    }

    pub(crate) fn push(&self, completed: Completed) {
        if self.retired.load(Ordering::SeqCst) {
            return;
        }
        self.count(&completed);
        if self.counted_only {
            return;
        }
        {
            let mut completions = self.lock();
            completions.push_back(completed);
            self.count.store(completions.len(), Ordering::SeqCst);
        }
        self.ring();
    }

    /// Counts a completion where somebody wants that, whichever way it goes.
    #[inline]
    pub(crate) fn count(&self, completed: &Completed) {
        if let Some(counts) = self.counts.get() {
            counts.note(completed.outcome);
        }
    }

    /// From now on completions are counted there. False where they are counted already.
    pub(crate) fn count_by(&self, counts: Arc<Counts>) -> bool {
        self.counts.set(counts).is_ok()
    }

    /// An event. False where nobody will take it.
    pub(crate) fn push_written(&self, written: Written) -> bool {
        if self.retired.load(Ordering::SeqCst) {
            return false;
        }
        {
            let mut queue = self.written.lock().expect("never left half-changed");
            queue.push_back(written);
            self.written_count.store(queue.len(), Ordering::SeqCst);
        }
        self.ring();
        true
    }

    pub(crate) fn pop_written(&self) -> Option<Written> {
        if !self.has_written() {
            return None;
        }
        let mut queue = self.written.lock().expect("never left half-changed");
        let written = queue.pop_front();
        self.written_count.store(queue.len(), Ordering::SeqCst);
        written
    }

    #[inline]
    pub(crate) fn has_written(&self) -> bool {
        self.written_count.load(Ordering::SeqCst) > 0
    }

    pub(crate) fn push_refused(&self, refusal: LateRefusal) {
        {
            let mut queue = self.refused.lock().expect("never left half-changed");
            queue.push_back(refusal);
            self.refused_count.store(queue.len(), Ordering::SeqCst);
        }
        self.ring();
    }

    #[inline]
    pub(crate) fn pop_refused(&self) -> Option<LateRefusal> {
        if self.refused_count.load(Ordering::SeqCst) == 0 {
            return None;
        }
        let mut queue = self.refused.lock().expect("never left half-changed");
        let refusal = queue.pop_front();
        self.refused_count.store(queue.len(), Ordering::SeqCst);
        refusal
    }

    /// Wakes the thread that sleeps on this context.
    pub(crate) fn ring(&self) {
        // In one order with the count's store before it, and with the sleeper's, who sets this flag
        // and then looks at the count; see the model in `tests/loom.rs`.
        if self.armed.load(Ordering::SeqCst) && self.armed.swap(false, Ordering::SeqCst) {
            // A full counter means that the bell is ringing already.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
        }
    }

    #[inline]
    pub(crate) fn pop(&self) -> Option<Completed> {
        if self.is_empty() {
            return None;
        }
        let mut completions = self.lock();
        let completed = completions.pop_front();
        self.count.store(completions.len(), Ordering::SeqCst);
        completed
    }

    /// The experience with spinning; a context has one waiter, so that no update is lost.
    pub(crate) fn spin(&self, awaited: Awaited) -> Spin {
        Spin::from_bits(self.experience(awaited).load(Ordering::Relaxed))
    }

    fn experience(&self, awaited: Awaited) -> &AtomicU32 {
        match awaited {
            Awaited::Program => &self.spin,
            Awaited::Answer => &self.answer,
        }
    }

    /// The same about the rest of a payload that is coming in.
    pub(crate) fn follow(&self) -> Spin {
        Spin::from_bits(self.follow.load(Ordering::Relaxed))
    }

    pub(crate) fn set_follow(&self, spin: Spin) {
        self.follow.store(spin.to_bits(), Ordering::Relaxed);
    }

    pub(crate) fn set_spin(&self, awaited: Awaited, spin: Spin) {
        self.experience(awaited).store(spin.to_bits(), Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }

    /// From here on completions are dropped, the waiting ones too.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::SeqCst);
        while let Some(completed) = self.pop() {
            drop(completed);
        }
        self.ring();
    }

    /// Sets the flag; the caller checks for completions afterwards.
    pub(crate) fn set_armed(&self) {
        self.armed.store(true, Ordering::SeqCst);
    }

    pub(crate) fn disarm(&self) {
        let rung = u32::from(!self.armed.swap(false, Ordering::SeqCst));
        let mut owed = self.owed.load(Ordering::Relaxed) + rung;
        if owed == 0 {
            return;
        }
        let mut count = [0u8; 8];
        // A bell that is not written yet is silenced after the next sleep, which it ends.
        if rustix::io::read(&self.bell, &mut count).is_ok() {
            owed = owed.saturating_sub(u64::from_ne_bytes(count) as u32);
        }
        self.owed.store(owed, Ordering::Relaxed);
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, VecDeque<Completed>> {
        self.completions.lock().expect("a completion queue is never left half-changed")
    }
}

impl Context {
    /// Wakes the thread that sleeps on this context, so that it checks its news.
    pub fn wake(&self) {
        self.queue.ring();
    }

    /// The descriptor that becomes readable after [`Arm::Armed`]; for anyone's event loop.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.queue.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A thread rings a context: it takes the flag, and is held up before it writes the bell.
    #[test]
    fn a_bell_that_is_written_late_ends_one_sleep_and_not_all_that_follow() {
        let queue = Queue::new(1, false).expect("there are descriptors");
        let is_rung = || rustix::io::read(&queue.bell, &mut [0u8; 8]).is_ok();
        queue.set_armed();
        assert!(queue.armed.swap(false, Ordering::SeqCst));
        // The sleeper saw the completion, and never slept.
        queue.disarm();
        rustix::io::write(&queue.bell, &1u64.to_ne_bytes()).expect("it has room");
        queue.set_armed();
        queue.disarm();
        assert!(!is_rung(), "the next sleep would end at once, and each after it");
        // From here on all is as before.
        queue.set_armed();
        queue.ring();
        queue.disarm();
        assert!(!is_rung());
        queue.set_armed();
        queue.ring();
        queue.ring();
        assert!(is_rung(), "a ring is heard");
    }
}
