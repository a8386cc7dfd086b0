//! Requests: messages that nobody had to post for, on the side that gets them.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use ropewalk_base::ids::Origin;
use ropewalk_base::pool::PoolBuffer;
use ropewalk_core::PeerId;

use crate::endpoint::Endpoint;
use crate::engine::Command;

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

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.count.load(Ordering::SeqCst) == 0
    }
}

impl Endpoint {
    /// The next request, if one arrived. From here on its memory is the taker's: it counts neither against the
    /// peer's credit nor against the staging memory. So a taker that keeps requests costs no peer its link, but has
    /// to bound the requests that it keeps.
    pub fn next_request(&self) -> Option<Request> {
        let mut request = self.take_request()?;
        self.release_request(&mut request);
        Some(request)
    }

    /// The number of requests that have ever arrived.
    pub fn requests_arrived(&self) -> usize {
        self.shared.requests.arrived.load(Ordering::SeqCst)
    }

    /// The next request, for a caller that sorts requests before somebody takes them. It counts against its peer's
    /// credit, which bounds such requests, until [`Endpoint::release_request`].
    pub fn take_request(&self) -> Option<Request> {
        self.shared.requests.pop()
    }

    /// The user has the request now: see [`Endpoint::next_request`].
    pub fn release_request(&self, request: &mut Request) {
        if !std::mem::replace(&mut request.charged, false) {
            return;
        }
        if let Some(payload) = &mut request.payload {
            payload.make_over();
        }
        self.leave(Command::RequestTaken {
            peer: request.peer,
            session: request.session,
            bytes: request.bytes,
        });
    }
}
