//! Several threads that wait for completions of one context: one of them waits at the context itself, the
//! others for news of it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Instant;

/// The election of one thread that waits at the context itself; the other threads wait for news of it.
#[derive(Debug, Default)]
pub struct WaiterElection {
    /// Whether somebody has the turn.
    taken: Mutex<bool>,
    news: Condvar,
    /// Threads that have the turn or wait for news.
    present: AtomicU32,
}

impl WaiterElection {
    /// Waits until nobody else waits at the context, or for news, at most until `deadline`. True where the
    /// caller has the turn and gives it back. Does not wait where `news` says that there are some.
    pub fn take(&self, deadline: Instant, news: &dyn Fn() -> bool) -> bool {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        // A thread with news publishes them first and then looks whether others are present.
        self.present.fetch_add(1, Ordering::SeqCst);
        if !*taken {
            *taken = true;
            return true;
        }
        if !news() {
            let limit = deadline.saturating_duration_since(Instant::now());
            let waited = self.news.wait_timeout(taken, limit);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
        // The caller looks at the news, whatever they are, before it waits again.
        self.present.fetch_sub(1, Ordering::SeqCst);
        false
    }

    /// The caller had the turn.
    pub fn give_back(&self) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        *taken = false;
        if self.present.fetch_sub(1, Ordering::SeqCst) > 1 {
            self.news.notify_all();
        }
    }

    /// Whether anybody waits, with the turn or without it.
    #[inline]
    pub fn is_anybody_here(&self) -> bool {
        self.present.load(Ordering::SeqCst) > 0
    }

    /// Wakes the threads that wait for news.
    pub fn tell(&self) {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        self.news.notify_all();
        drop(taken);
    }

    /// Waits for news without the turn, at most until `deadline`: for callers who must not look at the
    /// context.
    pub fn rest(&self, deadline: Instant, news: &dyn Fn() -> bool) {
        let taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        self.present.fetch_add(1, Ordering::SeqCst);
        if !news() {
            let limit = deadline.saturating_duration_since(Instant::now());
            let waited = self.news.wait_timeout(taken, limit);
            drop(waited.unwrap_or_else(PoisonError::into_inner));
        }
        self.present.fetch_sub(1, Ordering::SeqCst);
    }
}
