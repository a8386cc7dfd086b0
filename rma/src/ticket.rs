//! The state of an operation with a request.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::Error;

/// Shared by a request and by the parts of its operation that are under way.
#[derive(Debug)]
pub(crate) struct Ticket {
    /// Parts under way, and one for the call that issues them.
    parts: AtomicU32,
    error: Mutex<Option<Error>>,
}

impl Ticket {
    /// Of a call that is about to issue parts.
    pub fn new() -> Ticket {
        Ticket { parts: AtomicU32::new(1), error: Mutex::new(None) }
    }

    /// One more part is under way.
    pub fn add(&self) {
        self.parts.fetch_add(1, Ordering::Relaxed);
    }

    /// A part is over, or all were issued.
    pub fn end(&self) {
        self.parts.fetch_sub(1, Ordering::Release);
    }

    /// A part failed; it has to end, too. The first error stays.
    pub fn fail(&self, error: Error) {
        self.error.lock().expect("never left half-changed").get_or_insert(error);
    }

    /// Whether the operation is complete at the origin.
    pub fn is_done(&self) -> bool {
        self.parts.load(Ordering::Acquire) == 0
    }

    /// Its error, once.
    pub fn take_error(&self) -> Option<Error> {
        self.error.lock().expect("never left half-changed").take()
    }
}
