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
use ropewalk_net::{Context, Endpoint, Request};

use crate::contexts::Turn;

/// The longest unexpected message.
pub const UNEXPECTED_BYTES_MAX: i64 = 16 * 1024;

pub struct Unexpected {
    kept: Mutex<HashMap<u8, VecDeque<Request>>>,
    kept_count: AtomicUsize,
    /// Buffers that callers have and will free, by their addresses.
    lent: Mutex<HashMap<usize, PoolBuffer>>,
    /// What waiters sleep on; nothing completes to it.
    queue: Context,
    turn: Turn,
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

/// What stands for the buffer of a message without bytes.
static NOTHING: u8 = 0;

impl Unexpected {
    pub fn new(endpoint: &Endpoint) -> std::io::Result<Unexpected> {
        Ok(Unexpected {
            kept: Mutex::default(),
            kept_count: AtomicUsize::new(0),
            lent: Mutex::default(),
            queue: endpoint.context(true)?,
            turn: Turn::default(),
        })
    }

    fn kept(&self) -> MutexGuard<'_, HashMap<u8, VecDeque<Request>>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lent(&self) -> MutexGuard<'_, HashMap<usize, PoolBuffer>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether a message of any class waits.
    pub fn is_any(&self, endpoint: &Endpoint) -> bool {
        self.kept_count.load(Ordering::Acquire) > 0 || endpoint.has_requests()
    }

    fn take_kept(&self, class: u8) -> Option<Request> {
        if self.kept_count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let request = self.kept().get_mut(&class)?.pop_front()?;
        self.kept_count.fetch_sub(1, Ordering::AcqRel);
        Some(request)
    }

    /// The next message of a class, of those that have arrived.
    fn take(&self, endpoint: &Endpoint, class: u8) -> Option<Request> {
        if !self.is_any(endpoint) {
            return None;
        }
        if let Some(request) = self.take_kept(class) {
            return Some(request);
        }
        // Under the lock, so that messages of one class stay in order beside another thread's look.
        let mut kept = self.kept();
        if let Some(request) = kept.get_mut(&class).and_then(VecDeque::pop_front) {
            self.kept_count.fetch_sub(1, Ordering::AcqRel);
            return Some(request);
        }
        while let Some(request) = endpoint.take_request() {
            let own = class_of(request.bits);
            if own == class {
                return Some(request);
            }
            kept.entry(own).or_default().push_back(request);
            self.kept_count.fetch_add(1, Ordering::AcqRel);
        }
        None
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
        let deadline = (!idle.is_zero()).then(|| Instant::now() + idle);
        loop {
            let mut count = 0;
            if !self.is_any(endpoint) {
                endpoint.progress();
            }
            while count < most
                && let Some(mut request) = self.take(endpoint, class)
            {
                endpoint.release_request(&mut request);
                report(request);
                count += 1;
            }
            let Some(deadline) = deadline.filter(|_| count == 0 && most > 0) else { return count };
            if Instant::now() >= deadline || endpoint.is_closed() {
                return 0;
            }
            if self.turn.take(deadline) {
                let limit = deadline.saturating_duration_since(Instant::now());
                endpoint.wait_for(&self.queue, limit, true);
                self.turn.give_back();
            }
        }
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
