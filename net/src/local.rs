//! The endpoint of an executor, as futures.
//!
//! One context, one owner: completions wake the task that waits for them. A future that is dropped
//! cancels its operation; the memory stays with the operation until that has ended, so nothing ever
//! lands in memory that was freed.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context as TaskContext, Poll, Waker};

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Memory;
use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::task::Notify;
use ropewalk_base::verb::{RemoteKey, RemoteLayout};
use ropewalk_core::{Audience, Channel, Direction, Level, OperationId, Oversize, PeerId};

use crate::context::{Completed, Context};
use crate::endpoint::{Endpoint, PeerEvent, Posted};
use crate::engine::{PeerEvents, Request};

/// An endpoint that tasks of one executor use. Cloning gives another handle.
#[derive(Clone)]
pub struct LocalEndpoint {
    inner: Rc<Inner>,
}

struct Inner {
    endpoint: Endpoint,
    context: Context,
    waiters: RefCell<Slots<Waiter>>,
    requests: RefCell<VecDeque<Request>>,
    request_waiters: RefCell<Vec<Waker>>,
    events: RefCell<PeerEvents>,
    event_notify: Notify,
}

struct Waiter {
    done: Option<Completed>,
    waker: Option<Waker>,
    /// Nobody waits any more; the completion only gives the memory back.
    abandoned: bool,
}

const WAITERS_MAX: usize = 1 << 20;

impl LocalEndpoint {
    /// Takes an endpoint over. It must have no service thread and no other user.
    pub fn new(endpoint: Endpoint) -> std::io::Result<LocalEndpoint> {
        let context = endpoint.context(true)?;
        Ok(LocalEndpoint {
            inner: Rc::new(Inner {
                endpoint,
                context,
                waiters: RefCell::new(Slots::with_limit(WAITERS_MAX)),
                requests: RefCell::new(VecDeque::new()),
                request_waiters: RefCell::new(Vec::new()),
                events: RefCell::new(PeerEvents::default()),
                event_notify: Notify::new(),
            }),
        })
    }

    /// The endpoint itself.
    pub fn endpoint(&self) -> &Endpoint {
        &self.inner.endpoint
    }

    /// One pass: progress, and waking of the tasks whose operations ended. True if anything happened. Called by the
    /// driver of the executor.
    pub fn poll(&self) -> bool {
        let inner = &*self.inner;
        let mut any = inner.endpoint.progress();
        while let Some(completed) = inner.context.queue.pop() {
            any = true;
            let id = SlotId::from_u64(completed.user);
            let mut waiters = inner.waiters.borrow_mut();
            let Some(waiter) = waiters.get_mut(id) else { continue };
            if waiter.abandoned {
                let waiter = waiters.remove(id);
                drop(waiters);
                drop((waiter, completed));
                continue;
            }
            waiter.done = Some(completed);
            if let Some(waker) = waiter.waker.take() {
                drop(waiters);
                waker.wake();
            }
        }
        while let Some(request) = inner.endpoint.next_request() {
            any = true;
            inner.requests.borrow_mut().push_back(request);
            for waker in inner.request_waiters.borrow_mut().drain(..) {
                waker.wake();
            }
        }
        while let Some(event) = inner.endpoint.next_event() {
            any = true;
            inner.events.borrow_mut().push(event);
            inner.event_notify.notify_all();
        }
        any
    }

    fn start(
        &self,
        post: impl FnOnce(&Endpoint, &Context, u64) -> Result<Posted, (Memory, Fault)>,
    ) -> Operation {
        let inner = self.inner.clone();
        let waiter = Waiter { done: None, waker: None, abandoned: false };
        let id = match inner.waiters.borrow_mut().insert(waiter) {
            Ok(id) => id,
            Err(_) => panic!("more than {WAITERS_MAX} operations of one executor"),
        };
        let mut refused = None;
        let mut operation = None;
        match post(&inner.endpoint, &inner.context, id.to_u64()) {
            Ok(Posted::Done(completed)) => {
                if let Some(waiter) = inner.waiters.borrow_mut().get_mut(id) {
                    waiter.done = Some(completed);
                }
            }
            Ok(Posted::Pending(number)) => operation = Some(number),
            Err((memory, fault)) => refused = Some((memory, fault)),
        }
        Operation { inner, id, operation, refused, over: false }
    }

    /// Sends a message.
    pub fn send(
        &self,
        peer: PeerId,
        channel: Channel,
        bits: u64,
        memory: Memory,
        level: Level,
    ) -> Operation {
        self.start(|endpoint, context, user| {
            endpoint.post_send(context, peer, channel, bits, memory, level, user)
        })
    }

    /// Sends a message whose end nobody waits for; its memory is given up when it has ended.
    pub fn send_detached(&self, peer: PeerId, channel: Channel, bits: u64, memory: Memory) {
        let (endpoint, context) = (&self.inner.endpoint, &self.inner.context);
        // A number that no waiter has: the completion is dropped with its memory. One that fails
        // at once is lost like one that fails later.
        drop(endpoint.post_send(context, peer, channel, bits, memory, Level::Buffered, u64::MAX));
    }

    /// Receives a message with exactly these bits.
    pub fn receive(
        &self,
        channel: Channel,
        source: Option<PeerId>,
        bits: u64,
        memory: Memory,
    ) -> Operation {
        self.start(|endpoint, context, user| {
            let (mask, oversize) = (u64::MAX, Oversize::Truncate);
            endpoint.post_receive(context, channel, source, bits, mask, memory, oversize, user)
        })
    }

    /// Reads a peer's region into `memory`, or writes `memory` to it.
    pub fn access(
        &self,
        direction: Direction,
        peer: PeerId,
        key: RemoteKey,
        remote: RemoteLayout,
        memory: Memory,
    ) -> Operation {
        self.start(|endpoint, context, user| {
            endpoint.post_access(context, direction, peer, key, remote, memory, user)
        })
    }

    /// Makes memory accessible.
    pub fn expose(
        &self,
        memory: Memory,
        writable: bool,
        audience: Audience,
    ) -> Result<RemoteKey, (Memory, Fault)> {
        self.inner.endpoint.expose(memory, writable, audience)
    }

    /// Ends an exposure; the completion gives the memory back.
    pub fn unexpose(&self, key: RemoteKey) -> Operation {
        self.start(|endpoint, context, user| match endpoint.unexpose(key, context, user) {
            Ok(()) => Ok(Posted::Pending(OperationId(key.slot))),
            Err(fault) => Err((Memory::empty(), fault)),
        })
        .without_cancel()
    }

    /// The next request; several tasks may wait.
    pub async fn request(&self) -> Request {
        std::future::poll_fn(|context| match self.inner.requests.borrow_mut().pop_front() {
            Some(request) => Poll::Ready(request),
            None => {
                self.inner.request_waiters.borrow_mut().push(context.waker().clone());
                Poll::Pending
            }
        })
        .await
    }

    /// The next change of a peer's session; one task at a time.
    pub async fn event(&self) -> PeerEvent {
        loop {
            let notified = self.inner.event_notify.notified();
            if let Some(event) = self.inner.events.borrow_mut().pop() {
                return event;
            }
            notified.await;
        }
    }

    /// Whether something waits for a pass right now: for drivers about to sleep.
    pub fn has_work(&self) -> bool {
        !self.inner.context.queue.is_empty()
    }
}

/// An operation as a future of its completion.
pub struct Operation {
    inner: Rc<Inner>,
    id: SlotId,
    operation: Option<OperationId>,
    refused: Option<(Memory, Fault)>,
    over: bool,
}

impl Operation {
    fn without_cancel(mut self) -> Operation {
        self.operation = None;
        self
    }
}

impl Future for Operation {
    type Output = Completed;

    fn poll(mut self: Pin<&mut Self>, context: &mut TaskContext<'_>) -> Poll<Completed> {
        if let Some((memory, fault)) = self.refused.take() {
            self.over = true;
            self.inner.waiters.borrow_mut().remove(self.id);
            return Poll::Ready(Completed {
                operation: OperationId(self.id),
                user: 0,
                outcome: Err(fault),
                bytes: 0,
                message_bytes: 0,
                peer: None,
                bits: 0,
                memory,
            });
        }
        let inner = self.inner.clone();
        let mut waiters = inner.waiters.borrow_mut();
        let waiter = waiters.get_mut(self.id).expect("an operation is polled until it is done");
        match waiter.done.take() {
            Some(completed) => {
                waiters.remove(self.id);
                self.over = true;
                Poll::Ready(completed)
            }
            None => {
                waiter.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Operation {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let mut waiters = self.inner.waiters.borrow_mut();
        let done = waiters.get(self.id).is_none_or(|waiter| waiter.done.is_some());
        if done || self.refused.is_some() {
            let waiter = waiters.remove(self.id);
            drop(waiters);
            drop(waiter);
            return;
        }
        if let Some(waiter) = waiters.get_mut(self.id) {
            waiter.abandoned = true;
            waiter.waker = None;
        }
        drop(waiters);
        if let Some(operation) = self.operation {
            self.inner.endpoint.cancel(operation);
        }
    }
}
