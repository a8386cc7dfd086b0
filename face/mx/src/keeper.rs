//! The keeper: a thread of each endpoint. It answers and takes answers of connects, and gives up operations
//! that waited too long, whatever the program does meanwhile. It calls no function of the program's.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use ropewalk_base::slots::SlotId;

use crate::codes::*;
use crate::endpoint::{Ep, State};
use crate::requests::{Kind, Stage};

/// It looks at least as often: an endpoint that is being closed rings it.
const LOOK_AFTER: Duration = Duration::from_secs(5);

/// Starts the keeper.
pub fn start(endpoint: &Arc<Ep>) -> std::io::Result<JoinHandle<()>> {
    let weak = Arc::downgrade(endpoint);
    std::thread::Builder::new().name("ropewalk-mx".into()).spawn(move || keep(&weak))
}

fn keep(weak: &Weak<Ep>) {
    while let Some(endpoint) = weak.upgrade() {
        if endpoint.is_closing.load(Ordering::SeqCst) {
            return;
        }
        let (events, calls) = (endpoint.net.event_count(), endpoint.calls.load(Ordering::SeqCst));
        let due = endpoint.keep();
        let limit = due.saturating_duration_since(Instant::now()).min(LOOK_AFTER);
        let is_closing = || endpoint.is_closing.load(Ordering::SeqCst);
        let called = || endpoint.calls.load(Ordering::SeqCst) != calls;
        let news = || is_closing() || called() || endpoint.net.event_count() != events;
        endpoint.net.sleep_beside(&endpoint.control, limit, &news);
    }
}

impl Ep {
    /// One round of the keeper's; when the next one is due.
    fn keep(&self) -> Instant {
        let mut state = self.lock();
        self.take_events(&mut state);
        self.take_letters(&mut state);
        let due = self.run_timers(&mut state);
        drop(state);
        self.search(due)
    }

    /// Gives up what waited too long; when that is due the next time.
    fn run_timers(&self, state: &mut State) -> Instant {
        let now = Instant::now();
        let mut due = self.run_connects(state, now, now + LOOK_AFTER);
        let timed = state.requests.iter().filter(|(_, request)| {
            request.kind != Kind::Connect && request.stage == Stage::Pending
        });
        let timed: Vec<(SlotId, Instant)> =
            timed.filter_map(|(id, request)| Some((id, request.deadline?))).collect();
        for (id, deadline) in timed {
            if deadline > now {
                due = due.min(deadline);
                continue;
            }
            let next = self.late(state, id, now);
            if let Some(request) = state.requests.get_mut(id) {
                request.deadline = next;
            }
            due = due.min(next.unwrap_or(due));
        }
        due
    }

    /// Ends a request whose time is over; else returns the time of the next look. A send is late unless its
    /// peer has it: messages that the peer has, and does not receive, are not late. The time of a receive is
    /// the time in which nothing more of its long message came; a receive that has none waits.
    fn late(&self, state: &mut State, id: SlotId, now: Instant) -> Option<Instant> {
        let request = state.requests.get(id)?;
        let (operation, limit) = (request.operation?, request.limit?);
        if request.kind == Kind::Receive {
            let still = self.net.fetch_still_for(operation).unwrap_or_default();
            if still < limit {
                return Some(now + (limit - still));
            }
        } else if !self.net.is_unsent(operation) {
            let owed = self.net.owed_for(operation)?;
            if owed < limit {
                // It has acknowledged others meanwhile.
                return Some(now + (limit - owed));
            }
        }
        state.requests.get_mut(id)?.ending = Some(TIMEOUT);
        self.net.cancel(operation);
        None
    }
}
