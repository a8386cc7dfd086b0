//! Contexts and their tests.
//!
//! `net` hands a context's completions out in their order. A test of a single operation looks for one of them.
//! It keeps the others that it meets here, in order, for the tests that ask for them.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ropewalk_base::slots::SlotId;
use ropewalk_net::election::WaiterElection;
use ropewalk_net::{Completed, Context, Endpoint, OperationId};

use crate::errors::{EBUSY, EINVAL, EMFILE, ErrorCode};

/// Most contexts of a process.
pub const CONTEXTS_MAX: usize = 1024;

/// Looks for an operation that is not under way, before it counts as unknown.
const LOOKS_IN_VAIN: u32 = 64;

/// The contexts by their numbers.
#[derive(Default)]
pub struct Contexts {
    slots: Mutex<Vec<Option<Arc<ContextSlot>>>>,
    /// Changes with every open and close.
    version: AtomicU64,
}

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
    fn slots(&self) -> MutexGuard<'_, Vec<Option<Arc<ContextSlot>>>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number that is never 0: threads that have seen nothing have seen 0.
    #[inline]
    pub fn version(&self) -> u64 {
        self.version.load(Ordering::Acquire) + 1
    }

    pub fn all(&self) -> Vec<Option<Arc<ContextSlot>>> {
        self.slots().clone()
    }

    /// A new context with the smallest free number.
    pub fn open(&self, endpoint: &Endpoint) -> Result<i64, ErrorCode> {
        let mut slots = self.slots();
        let free = slots.iter().position(Option::is_none).unwrap_or(slots.len());
        if free >= CONTEXTS_MAX {
            return Err(-EBUSY);
        }
        let queue = endpoint.context(true).map_err(|_| -EMFILE)?;
        let slot = Arc::new(ContextSlot {
            queue,
            kept: Mutex::default(),
            kept_count: AtomicUsize::new(0),
            election: WaiterElection::default(),
            unexpected_seen: AtomicUsize::new(usize::MAX),
        });
        if free == slots.len() {
            slots.push(None);
        }
        slots[free] = Some(slot);
        self.version.fetch_add(1, Ordering::Release);
        Ok(free as i64)
    }

    /// Ends a context; its completions are dropped.
    pub fn close(&self, endpoint: &Endpoint, id: i64) {
        let mut slots = self.slots();
        let Some(place) = usize::try_from(id).ok().and_then(|id| slots.get_mut(id)) else { return };
        if let Some(slot) = place.take() {
            self.version.fetch_add(1, Ordering::Release);
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

    /// Waits for a completion, at most until `deadline`. `None` also where there may be news that another
    /// thread met, and where `news` says so.
    fn wait(
        &self,
        endpoint: &Endpoint,
        deadline: Instant,
        news: &dyn Fn() -> bool,
    ) -> Option<Completed> {
        if !self.election.take(deadline, &|| false) {
            return None;
        }
        let limit = deadline.saturating_duration_since(Instant::now());
        let completed = endpoint.wait_for(&self.queue, limit, news);
        self.election.give_back();
        completed
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
        let mut next = endpoint.test(&self.queue);
        let deadline = (!idle.is_zero()).then(|| Instant::now() + idle);
        let mut looks_in_vain = 0;
        loop {
            while let Some(completed) = next {
                if ids.len() == 1 && completed.operation == operation(ids[0]) {
                    report(0, completed);
                    return Ok(1);
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
            let Some(deadline) = deadline.filter(|_| count == 0) else { break Ok(count) };
            // Nobody waits for what will never come. Another thread may be about to keep it.
            if !self.any_pending(endpoint, ids) {
                next = endpoint.take(&self.queue);
                if next.is_none() && looks_in_vain == LOOKS_IN_VAIN {
                    break Err(-EINVAL);
                }
                looks_in_vain += 1;
                std::thread::yield_now();
                continue;
            }
            if Instant::now() >= deadline || endpoint.is_closed() {
                break Ok(0);
            }
            if next.is_none() {
                next = self.wait(endpoint, deadline, &|| false);
            }
        }
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
        let deadline = (!idle.is_zero()).then(|| Instant::now() + idle);
        loop {
            let mut count = 0;
            while count < most
                && let Some(completed) = self.first_kept()
            {
                report(completed);
                count += 1;
            }
            // A pass is made where nothing is there.
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
            let Some(deadline) = deadline.filter(|_| count == 0 && most > 0) else { return count };
            if news() || Instant::now() >= deadline || endpoint.is_closed() {
                return 0;
            }
            if let Some(completed) = self.wait(endpoint, deadline, news) {
                report(completed);
                count = 1;
                while count < most
                    && let Some(completed) = endpoint.take(&self.queue)
                {
                    report(completed);
                    count += 1;
                }
                return count;
            }
        }
    }
}
