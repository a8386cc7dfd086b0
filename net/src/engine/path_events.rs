//! Path events: what happened to the paths of peers, kept until somebody takes it.

use std::collections::VecDeque;

use ropewalk_core::apm::PathEvent;

/// Events that are kept for a caller who does not ask for them.
const EVENTS_MAX: usize = 4096;

/// The latest events that nobody has taken.
#[derive(Debug, Default)]
pub(crate) struct PathEvents {
    events: VecDeque<PathEvent>,
    lost: u64,
}

impl PathEvents {
    /// Adds an event; the earliest is lost where they are too many.
    pub fn push(&mut self, event: PathEvent) {
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
            self.lost += 1;
        }
        self.events.push_back(event);
    }

    /// The earliest event.
    pub fn pop(&mut self) -> Option<PathEvent> {
        self.events.pop_front()
    }

    /// Events that nobody took in time.
    pub fn lost(&self) -> u64 {
        self.lost
    }
}
