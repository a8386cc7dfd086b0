//! Counters: completions of contexts, and what peers do to regions. Reading one costs no lock and no system call.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use ropewalk_core::Served;

use crate::context::{Context, Counts};

/// A number that grows with completions of operations, or with what peers do to a region, and another one that grows with
/// operations that failed. Cloning gives another handle.
#[derive(Debug, Clone)]
pub struct Counter {
    pub(crate) counts: Arc<Counts>,
    pub(crate) context: Context,
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

/// The receivers of news about a region: what peers do to it.
#[derive(Debug, Clone, Default)]
pub struct Told {
    /// Takes the events of puts with immediate data ([`crate::Endpoint::next_written`]). `None`: such puts are refused.
    pub written: Option<Context>,
    /// Count what peers did: each operation once, when it is applied, or a get when its bytes are on their way. Peers then use
    /// the region by frames over each medium. Operations in several pieces (lists, more than a GiB, long updates) count with
    /// their last piece.
    pub counters: Vec<(Served, Counter)>,
}
