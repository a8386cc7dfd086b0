//! Counters are made, bound to contexts, and waited for.

use std::sync::Arc;
use std::time::Duration;

use ropewalk_base::error::Fault;

use crate::context::{Context, Counts};
use crate::counter::Counter;
use crate::endpoint::Endpoint;

impl Endpoint {
    /// A new counter, of nothing yet: see [`Counter::context`], [`Endpoint::count_completions`] and [`crate::Told`].
    pub fn counter(&self) -> std::io::Result<Counter> {
        let queue = self.locked().contexts.add_counting()?;
        let counts = Arc::new(Counts::of(&queue));
        queue.count_by(counts.clone());
        Ok(Counter { counts, context: Context { queue } })
    }

    /// From now on completions of a context are counted, too: also those that a post returns at once. [`Fault::Invalid`] where
    /// they are counted already.
    pub fn count_completions(&self, context: &Context, counter: &Counter) -> Result<(), Fault> {
        let is_first = context.queue.count_by(counter.counts.clone());
        is_first.then_some(()).ok_or(Fault::Invalid)
    }

    /// Makes passes and sleeps until a counter has this value or a greater one, until an error is counted, or for so long. True:
    /// it has the value. False: it has not, since the time is over, an error was counted, or the endpoint is closed. One thread at a
    /// time may wait for a counter.
    pub fn wait_count(&self, counter: &Counter, value: u64, limit: Duration) -> bool {
        let deadline = (self.shared.clock)() + limit;
        let errors = counter.errors();
        let news = || counter.value() >= value || counter.errors() != errors;
        while !news() && !self.is_closed() {
            let now = (self.shared.clock)();
            if now >= deadline {
                break;
            }
            // Completions that this tests for were counted.
            drop(self.wait_for(&counter.context, deadline.since(now), &news));
        }
        counter.value() >= value
    }
}
