//! Several threads that wait for completions of one context: one of them waits at the context itself, the
//! others for news of it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

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
    /// One sleep of a thread that found nothing, at most until `until`. If no other thread is here, this one sleeps at
    /// the context, by `at_context`, which gets the time that is left; its result is returned. Else this one sleeps
    /// until that thread has come back, or somebody has told news; then, and where `news` says that there are some
    /// already, it returns `None`. The caller looks in any case.
    pub fn sleep<R>(
        &self,
        until: Instant,
        news: &dyn Fn() -> bool,
        at_context: impl FnOnce(Duration) -> R,
    ) -> Option<R> {
        if !self.take(until, news) {
            return None;
        }
        let result = at_context(until.saturating_duration_since(Instant::now()));
        self.give_back();
        Some(result)
    }

    /// Waits until nobody else waits at the context, or for news, at most until `deadline`. True where the
    /// caller has the turn and gives it back. Does not wait where `news` says that there are some.
    fn take(&self, deadline: Instant, news: &dyn Fn() -> bool) -> bool {
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
    fn give_back(&self) {
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::sync::{Arc, Barrier};

    use super::*;

    fn far() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    /// Begins to sleep at the context in another thread, until the barrier lets it go.
    fn sleeper(election: &Arc<WaiterElection>) -> (Arc<Barrier>, std::thread::JoinHandle<()>) {
        let (election, gate) = (election.clone(), Arc::new(Barrier::new(2)));
        let (inside, own) = (Arc::new(Barrier::new(2)), gate.clone());
        let begun = inside.clone();
        let thread = std::thread::spawn(move || {
            let at_context = |_| {
                begun.wait();
                own.wait();
            };
            assert!(election.sleep(far(), &|| false, at_context).is_some());
        });
        inside.wait();
        (gate, thread)
    }

    #[test]
    fn one_thread_sleeps_at_the_context_and_the_others_until_it_is_back() {
        let election = Arc::new(WaiterElection::default());
        assert!(!election.is_anybody_here());
        let (gate, first) = sleeper(&election);
        assert!(election.is_anybody_here());
        let own = election.clone();
        let other = std::thread::spawn(move || own.sleep(far(), &|| false, |_| ()));
        while election.present.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
        gate.wait();
        first.join().unwrap();
        assert_eq!(other.join().unwrap(), None, "it looks before it sleeps again");
        assert!(!election.is_anybody_here());
        assert_eq!(election.sleep(far(), &|| false, |_| 7), Some(7), "the place is free again");
    }

    #[test]
    fn news_and_the_end_of_the_time_end_the_sleep_of_the_others() {
        let election = Arc::new(WaiterElection::default());
        let (gate, first) = sleeper(&election);
        assert_eq!(election.sleep(far(), &|| true, |_| ()), None, "there are news already");
        let soon = Instant::now() + Duration::from_millis(20);
        assert_eq!(election.sleep(soon, &|| false, |_| ()), None);
        assert!(Instant::now() >= soon);
        let (own, told) = (election.clone(), Arc::new(AtomicBool::new(false)));
        let news = told.clone();
        let other = std::thread::spawn(move || {
            while !news.load(Ordering::SeqCst) {
                own.rest(far(), &|| news.load(Ordering::SeqCst));
            }
        });
        while election.present.load(Ordering::SeqCst) < 2 {
            std::thread::yield_now();
        }
        told.store(true, Ordering::SeqCst);
        election.tell();
        other.join().unwrap();
        gate.wait();
        first.join().unwrap();
    }
}
