//! Models of what threads and ranks share without a lock: waiting, requests, and flushes of mapped memory.
//!
//! They are models: the same steps in the same order as `rma/src/team/shared.rs`, `rma/src/ticket.rs` and `rma/src/direct.rs`
//! take, with loom's locks and atomics, since descriptors and mapped memory cannot be modelled. Loom orders sequentially
//! consistent accesses like acquire and release only, so that fences stand here for their one order.

use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;

/// The context of a team, as far as threads wait on it: `net/src/context.rs` and `net/src/waiting.rs`.
struct Context {
    armed: AtomicBool,
    /// The count of the bell, and what wakes its reader.
    rung: Mutex<u32>,
    bell: Condvar,
    owed: AtomicU32,
}

impl Context {
    fn ring(&self) {
        if self.armed.load(Ordering::SeqCst) && self.armed.swap(false, Ordering::SeqCst) {
            *self.rung.lock().unwrap() += 1;
            self.bell.notify_one();
        }
    }

    /// One sleep of `Endpoint::wait_ready`. Without a limit: a wake-up that is lost is a deadlock, which loom reports.
    fn doze(&self, is_news: impl Fn() -> bool) {
        self.armed.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if !is_news() {
            let mut rung = self.rung.lock().unwrap();
            while *rung == 0 {
                rung = self.bell.wait(rung).unwrap();
            }
        }
        let rung = u32::from(!self.armed.swap(false, Ordering::SeqCst));
        let mut owed = self.owed.load(Ordering::Relaxed) + rung;
        if owed > 0 {
            owed -= std::mem::take(&mut *self.rung.lock().unwrap());
        }
        self.owed.store(owed, Ordering::Relaxed);
    }
}

/// `Shared` of `rma/src/team/shared.rs`.
struct Shared {
    context: Context,
    /// What threads wait for, and what the owner of the lock knows.
    hub: Mutex<u32>,
    /// A word of exposed memory, and how often peers raised some.
    word: AtomicU64,
    raises: AtomicU64,
    news: AtomicU64,
    led: Mutex<bool>,
    leads: AtomicBool,
    followers: AtomicU32,
    passed: Condvar,
}

impl Shared {
    fn new() -> Arc<Shared> {
        let (armed, rung) = (AtomicBool::new(false), Mutex::new(0));
        let (bell, owed) = (Condvar::new(), AtomicU32::new(0));
        Arc::new(Shared {
            context: Context { armed, rung, bell, owed },
            hub: Mutex::new(0),
            word: AtomicU64::new(0),
            raises: AtomicU64::new(0),
            news: AtomicU64::new(0),
            led: Mutex::new(false),
            leads: AtomicBool::new(false),
            followers: AtomicU32::new(0),
            passed: Condvar::new(),
        })
    }

    fn tell(&self) {
        self.news.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        if self.leads.load(Ordering::SeqCst) {
            self.context.ring();
        }
        self.wake_followers();
    }

    fn wake_followers(&self) {
        if self.followers.load(Ordering::SeqCst) > 0 {
            drop(self.led.lock().unwrap());
            self.passed.notify_all();
        }
    }

    fn seen(&self) -> (u64, u64) {
        (self.news.load(Ordering::SeqCst), self.raises.load(Ordering::SeqCst))
    }

    fn rest(&self, seen: (u64, u64)) {
        let is_news = || self.seen() != seen;
        let mut led = self.led.lock().unwrap();
        if *led {
            self.followers.fetch_add(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            while *led && !is_news() {
                led = self.passed.wait(led).unwrap();
            }
            drop(led);
            self.followers.fetch_sub(1, Ordering::SeqCst);
            return;
        }
        *led = true;
        drop(led);
        self.leads.store(true, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        self.context.doze(is_news);
        self.leads.store(false, Ordering::SeqCst);
        *self.led.lock().unwrap() = false;
        self.wake_followers();
    }

    fn until(&self, look: impl Fn(u32) -> bool) {
        loop {
            let seen = self.seen();
            let answer = look(*self.hub.lock().unwrap());
            if answer {
                return self.tell();
            }
            self.rest(seen);
        }
    }
}

/// Three threads with several locks each have too many orders; most bugs need few switches.
fn bounded(switches: usize) -> loom::model::Builder {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(switches);
    builder
}

/// Another thread does what both wait for. One of them leads, and the other one may follow.
#[test]
fn what_one_thread_does_reaches_all_that_wait() {
    bounded(3).check(|| {
        let shared = Shared::new();
        let waiters: Vec<_> = (0..2)
            .map(|_| {
                let shared = shared.clone();
                thread::spawn(move || shared.until(|state| state == 1))
            })
            .collect();
        *shared.hub.lock().unwrap() = 1;
        shared.tell();
        waiters.into_iter().for_each(|waiter| waiter.join().unwrap());
    });
}

/// The service thread takes tokens of a peer: each grows a word, and rings the context, which wakes the leader alone. One
/// thread waits for the first token, the other one for the second, which comes when the first thread has gone on.
#[test]
fn a_word_that_a_peer_raises_reaches_whoever_waits_for_it() {
    bounded(3).check(|| {
        let shared = Shared::new();
        let waiters = [1, 2].map(|least| {
            let shared = shared.clone();
            thread::spawn(move || {
                let words = shared.clone();
                shared.until(move |_| words.word.load(Ordering::Acquire) >= least);
            })
        });
        for waiter in waiters {
            shared.word.fetch_add(1, Ordering::AcqRel);
            shared.raises.fetch_add(1, Ordering::SeqCst);
            fence(Ordering::SeqCst);
            shared.context.ring();
            waiter.join().unwrap();
        }
    });
}

/// `Ticket` of `rma/src/ticket.rs`: whoever finds a request done may read all that its parts brought.
#[test]
fn a_request_that_is_done_has_all_its_results() {
    loom::model(|| {
        struct Ticket {
            parts: AtomicU32,
            results: [AtomicU32; 2],
        }
        let ticket = Arc::new(Ticket {
            parts: AtomicU32::new(1),
            results: std::array::from_fn(|_| AtomicU32::new(0)),
        });
        let parts: Vec<_> = (0..2)
            .map(|part: usize| {
                ticket.parts.fetch_add(1, Ordering::Relaxed);
                let ticket = ticket.clone();
                thread::spawn(move || {
                    ticket.results[part].store(7, Ordering::Relaxed);
                    ticket.parts.fetch_sub(1, Ordering::Release);
                })
            })
            .collect();
        ticket.parts.fetch_sub(1, Ordering::Release);
        if ticket.parts.load(Ordering::Acquire) == 0 {
            let results = ticket.results.iter().map(|result| result.load(Ordering::Relaxed));
            assert!(results.eq([7, 7]), "a part is over, and its result is not there");
        }
        parts.into_iter().for_each(|part| part.join().unwrap());
    });
}

/// `Direct::flush_ranks`: two ranks put to memory that both map, flush, and get what the other one puts.
#[test]
fn of_two_ranks_that_put_flush_and_get_one_sees_the_other() {
    loom::model(|| {
        let words = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
        let rank = |own: usize, words: &[AtomicU64; 2]| {
            words[own].store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            words[1 - own].load(Ordering::Relaxed)
        };
        let there = words.clone();
        let other = thread::spawn(move || rank(1, &there));
        let seen = (rank(0, &words), other.join().unwrap());
        assert_ne!(seen, (0, 0), "each read before the other one's put");
    });
}
