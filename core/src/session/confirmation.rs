//! Confirming a link over which frames may be lost, until the peer is heard over it.

use std::time::Duration;

use ropewalk_base::time::Time;

/// Confirmations of a link in a row without an answer before it counts as dead.
const CONFIRMATIONS_MAX: u32 = 10;

#[derive(Debug, Default)]
pub(crate) struct Confirmation {
    /// When the link's confirmation goes again, since nothing was heard over the link yet.
    again_at: Option<Time>,
    sent: u32,
}

impl Confirmation {
    pub fn again_at(&self) -> Option<Time> {
        self.again_at
    }

    /// The link was confirmed once; again then, if at all.
    pub fn begin(&mut self, again_at: Option<Time>) {
        *self = Confirmation { again_at, sent: 1 };
    }

    /// It is time to confirm again. False if the link counts as dead instead. `after`: the time for the first try.
    pub fn again(&mut self, now: Time, after: Duration) -> bool {
        if self.sent >= CONFIRMATIONS_MAX {
            self.end();
            return false;
        }
        self.again_at = Some(now + after * (1 << self.sent.min(4)));
        self.sent += 1;
        true
    }

    /// The peer was heard over the link.
    pub fn end(&mut self) {
        self.again_at = None;
    }
}
