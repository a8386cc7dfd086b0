//! Requests: messages that nobody had to post for, on the side that gets them.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ropewalk_base::ids::Origin;
use ropewalk_base::pool::PoolBuffer;
use ropewalk_core::PeerId;

/// A message that nobody had to post for.
#[derive(Debug)]
pub struct Request {
    pub peer: PeerId,
    /// The peer's origin, its endpoint and incarnation, at the time of the send; zeros for a foreign peer.
    pub origin: Origin,
    pub session: u32,
    pub bits: u64,
    pub payload: Option<PoolBuffer>,
    pub(crate) bytes: u32,
    /// It counts against its sender's credit.
    pub(crate) charged: bool,
}

impl Request {
    /// The bytes of the message.
    pub fn bytes(&self) -> &[u8] {
        self.payload.as_deref().unwrap_or(&[])
    }

    /// The memory that it occupies until it is dropped, in bytes.
    pub fn occupied_bytes(&self) -> usize {
        self.payload.as_ref().map_or(0, PoolBuffer::capacity)
    }
}

/// Requests that nobody has taken. Whether there are any is asked all the time, and costs no lock.
#[derive(Debug, Default)]
pub(crate) struct Requests {
    queue: Mutex<VecDeque<Request>>,
    /// Written under the lock. In one order with the arming of sleepers: a sleeper that armed and sees none is rung
    /// for the next one.
    count: AtomicUsize,
    /// Requests that ever came.
    arrived: AtomicUsize,
}

impl Requests {
    pub fn push(&self, request: Request) {
        let mut queue = self.queue.lock().expect("never left half-changed");
        queue.push_back(request);
        self.arrived.fetch_add(1, Ordering::SeqCst);
        self.count.store(queue.len(), Ordering::SeqCst);
    }

    pub fn pop(&self) -> Option<Request> {
        if self.is_empty() {
            return None;
        }
        let mut queue = self.queue.lock().expect("never left half-changed");
        let request = queue.pop_front();
        self.count.store(queue.len(), Ordering::SeqCst);
        request
    }

    /// Requests that ever came.
    pub fn arrived(&self) -> usize {
        self.arrived.load(Ordering::SeqCst)
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }
}
