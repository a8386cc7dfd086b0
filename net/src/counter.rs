//! Counters: completions of contexts, and what peers do to regions. Reading one costs no lock and no system call.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use ropewalk_base::error::Fault;

use crate::context::{Context, Queue};
use crate::endpoint::Endpoint;

/// A number that grows with completions of operations, or with what peers do to a region, and another one that grows with
/// operations that failed. Cloning gives another handle.
#[derive(Debug, Clone)]
pub struct Counter {
    pub(crate) counts: Arc<Counts>,
    context: Context,
}

#[derive(Debug, Default)]
pub(crate) struct Counts {
    value: AtomicU64,
    errors: AtomicU64,
    /// Who waits for them sleeps there.
    ringer: OnceLock<Weak<Queue>>,
}

impl Counts {
    /// An operation is complete.
    pub fn note(&self, outcome: Result<(), Fault>) {
        match outcome {
            Ok(()) => self.change(&self.value, |count| count.wrapping_add(1)),
            Err(_) => self.change(&self.errors, |count| count.wrapping_add(1)),
        }
    }

    fn change(&self, count: &AtomicU64, change: impl Fn(u64) -> u64) {
        // In one order with the sleeper's flag, like the count of completions.
        let _ = count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |it| Some(change(it)));
        if let Some(queue) = self.ringer.get().and_then(Weak::upgrade) {
            queue.ring();
        }
    }
}

impl Counter {
    /// Operations that are complete, or accesses of peers.
    #[inline]
    pub fn value(&self) -> u64 {
        self.counts.value.load(Ordering::SeqCst)
    }

    /// Operations that failed.
    #[inline]
    pub fn errors(&self) -> u64 {
        self.counts.errors.load(Ordering::SeqCst)
    }

    /// Adds to the value, as so many completions would.
    pub fn add(&self, count: u64) {
        self.counts.change(&self.counts.value, |it| it.wrapping_add(count));
    }

    /// Sets the value.
    pub fn set(&self, value: u64) {
        self.counts.change(&self.counts.value, |_| value);
    }

    /// Adds to the errors.
    pub fn add_errors(&self, count: u64) {
        self.counts.change(&self.counts.errors, |it| it.wrapping_add(count));
    }

    /// Sets the errors.
    pub fn set_errors(&self, errors: u64) {
        self.counts.change(&self.counts.errors, |_| errors);
    }

    /// A context for operations that are to be counted and not to be tested for: their completions are not kept, and their
    /// memory is dropped.
    pub fn context(&self) -> &Context {
        &self.context
    }
}

impl Endpoint {
    /// A new counter, of nothing yet: see [`Counter::context`], [`Endpoint::count_completions`] and [`crate::Told`].
    pub fn counter(&self) -> std::io::Result<Counter> {
        let queue = self.locked().contexts.add_counting()?;
        let counts = Arc::new(Counts::default());
        let _ = counts.ringer.set(Arc::downgrade(&queue));
        queue.count_by(counts.clone());
        Ok(Counter { counts, context: Context { queue } })
    }

    /// From now on completions of a context are counted, too: also those that a post returns at once. [`Fault::Invalid`] where
    /// they are counted already.
    pub fn count_completions(&self, context: &Context, counter: &Counter) -> Result<(), Fault> {
        let is_first = context.queue.count_by(counter.counts.clone());
        is_first.then_some(()).ok_or(Fault::Invalid)
    }

    /// Makes passes and sleeps until a counter has this value or a greater one, until an error is counted, or for so long. Whether
    /// it has the value. One thread at a time may wait for a counter.
    pub fn wait_count(&self, counter: &Counter, value: u64, limit: Duration) -> bool {
        let deadline = (self.shared.clock)() + limit;
        let errors = counter.errors();
        let news = || counter.value() >= value || counter.errors() != errors;
        while !news() && !self.is_closed() {
            let now = (self.shared.clock)();
            if now >= deadline {
                break;
            }
            // What is tested for here was counted.
            drop(self.wait_for(&counter.context, deadline.since(now), &news));
        }
        counter.value() >= value
    }
}
