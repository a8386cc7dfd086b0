//! Contexts and their tests.
//!
//! `net` hands a context's completions out in their order. A test of a single operation looks for one of them.
//! It keeps the others that it meets here, in order, for the tests that ask for them.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ropewalk_base::slots::SlotId;
use ropewalk_face_common::{Places, Sleep, ThreadCopy, Versioned, WaiterElection, wait};
use ropewalk_net::{Completed, Context, Endpoint, OperationId};

use crate::errors::{EBUSY, EINVAL, EMFILE, ErrorCode};

/// Most contexts of a process.
pub const CONTEXTS_MAX: usize = 1024;

/// Looks for an operation that is not under way, before it counts as unknown.
const LOOKS_IN_VAIN: u32 = 64;

/// The contexts by their numbers. The interface's numbers are small ones, without a generation.
pub struct Contexts(Versioned<ByNumber>);

type ByNumber = Places<Arc<ContextSlot>>;

/// The contexts that a thread remembers.
pub type Copied = ThreadCopy<ByNumber>;

/// One context.
pub struct ContextSlot {
    pub queue: Context,
    kept: Mutex<Kept>,
    kept_count: AtomicUsize,
    election: WaiterElection,
    /// Comings and goings of unexpected messages when one of them ended a wait last: another wait ends only
    /// after more of them. A message that nobody takes would end all.
    pub unexpected_seen: AtomicUsize,
}

/// Completions that a test met while it looked for others.
#[derive(Default)]
struct Kept {
    by_id: HashMap<OperationId, Completed>,
    /// The earliest first; numbers that are gone are skipped.
    order: VecDeque<OperationId>,
}

/// The operation that a caller's number names.
pub fn operation(id: i64) -> OperationId {
    OperationId(SlotId::from_u64(id as u64))
}

/// The number that a caller gets for an operation.
pub fn number(id: OperationId) -> i64 {
    id.0.to_u64() as i64
}

impl Contexts {
    pub fn new() -> Contexts {
        Contexts(Versioned::new(Places::with_limit(CONTEXTS_MAX)))
    }

    /// The context of this number, in what a thread remembers.
    #[inline]
    pub fn find<'a>(&self, copied: &'a mut Copied, id: i64) -> Option<&'a ContextSlot> {
        let renew = |copy: &mut ByNumber| *copy = self.0.look(ByNumber::clone);
        let slot = copied.of(&self.0, renew).at(usize::try_from(id).ok()?)?;
        Some(slot)
    }

    /// A new context with the smallest free number.
    pub fn open(&self, endpoint: &Endpoint) -> Result<i64, ErrorCode> {
        let make = |_| {
            let queue = endpoint.context(true).map_err(|_| -EMFILE)?;
            Ok(Arc::new(ContextSlot {
                queue,
                kept: Mutex::default(),
                kept_count: AtomicUsize::new(0),
                election: WaiterElection::default(),
                unexpected_seen: AtomicUsize::new(usize::MAX),
            }))
        };
        let id = self.0.change(|contexts| contexts.add(-EBUSY, make))?;
        Ok(id.index.into())
    }

    /// Ends a context; its completions are dropped.
    pub fn close(&self, endpoint: &Endpoint, id: i64) {
        let Ok(number) = u32::try_from(id) else { return };
        let taken = self.0.change(|contexts| contexts.remove(contexts.id_at(number)?));
        if let Some(slot) = taken {
            endpoint.retire(&slot.queue);
        }
    }
}

impl ContextSlot {
    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep(&self, completed: Completed) {
        let mut kept = self.kept();
        kept.order.push_back(completed.operation);
        kept.by_id.insert(completed.operation, completed);
        self.kept_count.store(kept.by_id.len(), Ordering::Release);
    }

    fn take_kept(&self, id: OperationId) -> Option<Completed> {
        if self.kept_count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut kept = self.kept();
        let found = kept.by_id.remove(&id)?;
        if kept.by_id.is_empty() {
            kept.order.clear();
        } else if kept.order.len() > 64 && kept.order.len() > 4 * kept.by_id.len() {
            let Kept { by_id, order } = &mut *kept;
            order.retain(|id| by_id.contains_key(id));
        }
        self.kept_count.store(kept.by_id.len(), Ordering::Release);
        Some(found)
    }

    fn first_kept(&self) -> Option<Completed> {
        if self.kept_count.load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut kept = self.kept();
        while let Some(id) = kept.order.pop_front() {
            if let Some(found) = kept.by_id.remove(&id) {
                self.kept_count.store(kept.by_id.len(), Ordering::Release);
                return Some(found);
            }
        }
        None
    }

    /// Sleeps until there is a completion, another thread met one, or `news` says that there is something else
    /// to look at.
    fn sleep(
        &self,
        endpoint: &Endpoint,
        until: Instant,
        news: &dyn Fn() -> bool,
    ) -> Sleep<Completed> {
        if endpoint.is_closed() {
            return Sleep::Over;
        }
        let at_context = |limit| endpoint.wait_for(&self.queue, limit, news);
        Sleep::News(self.election.sleep(until, &|| false, at_context).flatten())
    }

    /// The completions of those operations that have ended, by their places among `ids`, waiting for the
    /// first of them for at most `idle`. Numbers of 0 are passed over.
    pub fn test_some(
        &self,
        endpoint: &Endpoint,
        ids: &[i64],
        idle: Duration,
        mut report: impl FnMut(usize, Completed),
    ) -> Result<usize, ErrorCode> {
        let first = endpoint.test(&self.queue);
        let count = self.find_some(endpoint, ids, first, &mut report);
        if count > 0 || idle.is_zero() {
            return Ok(count);
        }
        let deadline = Instant::now() + idle;
        let mut looks_in_vain = 0;
        let look = |met: &mut Option<Completed>| {
            let mut next = met.take();
            loop {
                let count = self.find_some(endpoint, ids, next, &mut report);
                if count > 0 {
                    return Some(Ok(count));
                }
                if self.any_pending(endpoint, ids) {
                    return None;
                }
                // Nobody waits for what will never come. Another thread may be about to keep it.
                next = endpoint.take(&self.queue);
                if next.is_none() && looks_in_vain == LOOKS_IN_VAIN {
                    return Some(Err(-EINVAL));
                }
                looks_in_vain += 1;
                std::thread::yield_now();
            }
        };
        let sleep = |until| self.sleep(endpoint, until, &|| false);
        wait(Some(deadline), look, sleep).unwrap_or(Ok(0))
    }

    /// Reports those of these operations that have ended, by their places; how many. Keeps all other completions
    /// that it meets, the first of which is `next`.
    #[inline]
    fn find_some(
        &self,
        endpoint: &Endpoint,
        ids: &[i64],
        mut next: Option<Completed>,
        report: &mut impl FnMut(usize, Completed),
    ) -> usize {
        while let Some(completed) = next {
            if ids.len() == 1 && completed.operation == operation(ids[0]) {
                report(0, completed);
                return 1;
            }
            self.keep(completed);
            next = endpoint.take(&self.queue);
        }
        let mut count = 0;
        for (place, id) in ids.iter().enumerate().filter(|(_, id)| **id != 0) {
            if let Some(completed) = self.take_kept(operation(*id)) {
                report(place, completed);
                count += 1;
            }
        }
        count
    }

    fn any_pending(&self, endpoint: &Endpoint, ids: &[i64]) -> bool {
        ids.iter().any(|id| endpoint.is_pending(operation(*id), &self.queue))
    }

    /// Reports completed operations, at most `most` of them. Waits for the first one for at most `idle`, or
    /// until `news` says that there is something else to look at.
    pub fn test_context(
        &self,
        endpoint: &Endpoint,
        idle: Duration,
        most: usize,
        news: &dyn Fn() -> bool,
        mut report: impl FnMut(Completed),
    ) -> usize {
        let deadline = (!idle.is_zero() && most > 0).then(|| Instant::now() + idle);
        let look = |met: &mut Option<Completed>| {
            let mut count = 0;
            if met.is_some()
                && let Some(completed) = met.take()
            {
                report(completed);
                count = 1;
            }
            while count < most
                && let Some(completed) = self.first_kept()
            {
                report(completed);
                count += 1;
            }
            // A pass is made where nothing is there. What it finds is not moved before it is known to be something: an
            // empty test would pay for that.
            let mut next = match count {
                0 if most > 0 => endpoint.test(&self.queue),
                count if count < most => endpoint.take(&self.queue),
                _ => None,
            };
            while let Some(completed) = next {
                report(completed);
                count += 1;
                next = if count < most { endpoint.take(&self.queue) } else { None };
            }
            (count > 0).then_some(count)
        };
        let sleep = |until| if news() { Sleep::Over } else { self.sleep(endpoint, until, news) };
        wait(deadline, look, sleep).unwrap_or(0)
    }
}
