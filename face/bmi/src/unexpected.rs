//! Unexpected messages: requests of `net`, sorted by class.
//!
//! `net` has one queue of requests. Those of classes that nobody tests for right now are kept here and
//! count against their senders' credit until somebody does, so that they are bounded.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ropewalk_base::pool::PoolBuffer;
use ropewalk_face_common::{Sleep, WaiterElection, wait};
use ropewalk_net::{Context, Endpoint, Request};

/// The longest unexpected message.
pub const UNEXPECTED_BYTES_MAX: i64 = 16 * 1024;

pub struct Unexpected {
    kept: Mutex<HashMap<u8, VecDeque<Request>>>,
    /// Of all classes, and of each.
    kept_count: AtomicUsize,
    kept_by_class: [AtomicUsize; 256],
    /// Threads that take requests out of `net`'s queue, and may be about to keep some.
    sorting: AtomicUsize,
    /// Messages that callers took.
    taken: AtomicUsize,
    /// Buffers that callers have and will free, by their addresses.
    lent: Mutex<HashMap<usize, PoolBuffer>>,
    /// The context that waiters sleep on; nothing completes to it.
    queue: Context,
    election: WaiterElection,
}

/// The match bits of a request: its class above its tag.
pub fn bits_of(tag: i32, class: u8) -> u64 {
    u64::from(tag as u32) | u64::from(class) << 32
}

pub fn tag_of(bits: u64) -> i32 {
    bits as u32 as i32
}

fn class_of(bits: u64) -> u8 {
    (bits >> 32) as u8
}

/// The byte whose address stands for the buffer of a message without bytes.
static NOTHING: u8 = 0;

impl Unexpected {
    pub fn new(endpoint: &Endpoint) -> std::io::Result<Unexpected> {
        Ok(Unexpected {
            kept: Mutex::default(),
            kept_count: AtomicUsize::new(0),
            kept_by_class: [const { AtomicUsize::new(0) }; 256],
            sorting: AtomicUsize::new(0),
            taken: AtomicUsize::new(0),
            lent: Mutex::default(),
            queue: endpoint.context(true)?,
            election: WaiterElection::default(),
        })
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<u8, VecDeque<Request>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lent(&self) -> MutexGuard<'_, HashMap<usize, PoolBuffer>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a message of any class waits, or may.
    pub fn is_any(&self, endpoint: &Endpoint) -> bool {
        // The order matters: a message that is in none of the first two when they are looked at is in the
        // third.
        endpoint.has_requests()
            || self.sorting.load(Ordering::SeqCst) > 0
            || self.kept_count.load(Ordering::SeqCst) > 0
    }

    /// Whether a message of this class waits, or may.
    fn may_be(&self, endpoint: &Endpoint, class: u8) -> bool {
        endpoint.has_requests()
            || self.sorting.load(Ordering::SeqCst) > 0
            || self.kept_by_class[usize::from(class)].load(Ordering::SeqCst) > 0
    }

    /// A number that changes whenever a message comes or is taken.
    pub fn changes(&self, endpoint: &Endpoint) -> usize {
        endpoint.requests_arrived().wrapping_add(self.taken.load(Ordering::Relaxed))
    }

    /// The next message of a class, of those that have arrived.
    fn take(&self, endpoint: &Endpoint, class: u8) -> Option<Request> {
        if !self.may_be(endpoint, class) {
            return None;
        }
        // Under the lock, so that messages of one class stay in order beside another thread's look.
        let mut kept = self.kept();
        let of_class = &self.kept_by_class[usize::from(class)];
        if let Some(request) = kept.get_mut(&class).and_then(VecDeque::pop_front) {
            self.kept_count.fetch_sub(1, Ordering::SeqCst);
            of_class.fetch_sub(1, Ordering::SeqCst);
            return Some(request);
        }
        self.sorting.fetch_add(1, Ordering::SeqCst);
        let mut found = None;
        while let Some(request) = endpoint.take_request() {
            let own = class_of(request.bits);
            if own == class {
                found = Some(request);
                break;
            }
            kept.entry(own).or_default().push_back(request);
            self.kept_count.fetch_add(1, Ordering::SeqCst);
            self.kept_by_class[usize::from(own)].fetch_add(1, Ordering::SeqCst);
        }
        self.sorting.fetch_sub(1, Ordering::SeqCst);
        found
    }

    /// Messages of a class, at most `most`, waiting for the first for at most `idle`.
    pub fn test(
        &self,
        endpoint: &Endpoint,
        class: u8,
        most: usize,
        idle: Duration,
        mut report: impl FnMut(Request),
    ) -> usize {
        let deadline = (!idle.is_zero() && most > 0).then(|| Instant::now() + idle);
        let look = |_: &mut Option<()>| {
            let mut count = 0;
            if !self.may_be(endpoint, class) {
                endpoint.progress();
            }
            while count < most
                && let Some(mut request) = self.take(endpoint, class)
            {
                endpoint.release_request(&mut request);
                self.taken.fetch_add(1, Ordering::Relaxed);
                report(request);
                count += 1;
            }
            (count > 0).then_some(count)
        };
        let sleep = |until| {
            if endpoint.is_closed() {
                return Sleep::Over;
            }
            let news = || self.may_be(endpoint, class);
            let at_context = |limit| endpoint.wait_for(&self.queue, limit, &news);
            self.election.sleep(until, &|| false, at_context);
            Sleep::News(None)
        };
        wait(deadline, look, sleep).unwrap_or(0)
    }

    /// Hands a message's bytes out, until `take_back`.
    pub fn lend(&self, payload: Option<PoolBuffer>) -> *mut c_void {
        let Some(buffer) = payload else { return (&raw const NOTHING).cast_mut().cast() };
        let address = buffer.segment().as_mut_ptr();
        self.lent().insert(address.addr(), buffer);
        address.cast()
    }

    /// The caller needs the bytes no more. False where they are none of ours.
    pub fn take_back(&self, buffer: *mut c_void) -> bool {
        buffer.cast_const().cast() == &raw const NOTHING
            || self.lent().remove(&buffer.addr()).is_some()
    }

    /// The library ends; callers may go on reading what they have.
    pub fn forget_lent(&self) {
        for (_, buffer) in self.lent().drain() {
            std::mem::forget(buffer);
        }
    }
}
