//! The loop: takes requests from a source, starts a task for each, and lets interrupts through.
//!
//! A driver (the reactor of `net`, or a small one over epoll) calls [`DeviceLoop::poll`] when the
//! descriptor is readable, runs the executor, and sleeps until either has work.
//!
//! Invariants:
//! * nothing here waits; `poll` does a bounded amount of work;
//! * every request is answered exactly once, also where its task is dropped (then with EIO);
//! * FORGET and INTERRUPT are done at once, in their order of arrival, without a task.
//!
//! It must not know what a file system does.

use std::cell::Cell;
use std::os::fd::BorrowedFd;
use std::rc::Rc;
use std::sync::{Arc, OnceLock};

use ropewalk_base::executor::Executor;
use ropewalk_base::slots::SlotId;
use ropewalk_base::task::Notify;
use ropewalk_base::time::Time;
use zerocopy::FromBytes;

use crate::abi::Opcode;
use crate::abi::requests::InHeader;
use crate::caller::Groups;
use crate::decode::{DecodeError, Dialect, Operation, Request};
use crate::dispatch;
use crate::errno::Errno;
use crate::filesystem::{Context, Filesystem};
use crate::interrupt::{Mailbox, Registry, Siblings};
use crate::negotiate::{Agreement, Settings, kernel_max_pages, negotiate};
use crate::response::{Reply, Response};
use crate::source::{Body, Bytes, Device, Incoming, Next, RequestSource};

/// Most requests that one `poll` takes.
const BATCH: usize = 32;

/// State that all loops of one mount share: the agreement with the kernel, and the routing of interrupts from
/// loop to loop. Cloning gives another handle.
#[derive(Clone, Default)]
pub struct Connection {
    agreement: Arc<OnceLock<Agreement>>,
    siblings: Siblings,
}

impl Connection {
    /// For a new mount.
    pub fn new() -> Connection {
        Connection::default()
    }

    /// The agreement with the kernel, once its first request was answered.
    pub fn agreement(&self) -> Option<Agreement> {
        self.agreement.get().copied()
    }
}

/// The counters of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counters {
    /// Requests that were given to the file system.
    pub requests: u64,
    /// INTERRUPTs.
    pub interrupts: u64,
    /// Requests that were not understood.
    pub malformed: u64,
    /// Replies that the kernel did not take: the caller was gone, or the mount.
    pub refused: u64,
    /// Times that nothing was read for want of buffers.
    pub starved: u64,
}

/// State that the requests of one loop share.
pub(crate) struct Shared {
    pub(crate) registry: Rc<Registry>,
    pub(crate) groups: Groups,
    pub(crate) now: Cell<Time>,
    pub(crate) dialect: Cell<Dialect>,
    pub(crate) max_write_bytes: Cell<u32>,
    pub(crate) counters: Cell<Counters>,
    /// Operations that go on although their callers were answered.
    left: Cell<usize>,
    /// Requests that are not answered are another process's.
    pub(crate) silent: Cell<bool>,
}

/// An operation that goes on without its caller; it is over when this is dropped.
pub(crate) struct Left<'a>(&'a Shared);

impl Drop for Left<'_> {
    fn drop(&mut self) {
        self.0.left.set(self.0.left.get() - 1);
    }
}

impl Shared {
    pub(crate) fn note_left(&self) -> Left<'_> {
        self.left.set(self.left.get() + 1);
        Left(self)
    }

    pub(crate) fn count(&self, change: impl FnOnce(&mut Counters)) {
        let mut counters = self.counters.get();
        change(&mut counters);
        self.counters.set(counters);
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Greeting,
    Running,
    Closed,
}

/// The loop of one descriptor and one thread.
pub struct DeviceLoop<F: Filesystem, S: RequestSource = Device> {
    filesystem: Rc<F>,
    source: S,
    executor: Executor,
    shared: Rc<Shared>,
    connection: Connection,
    mailbox: Arc<Mailbox>,
    settings: Settings,
    state: State,
    starved: bool,
    /// Nothing is read: another process may be about to take over.
    resting: bool,
    emptied: Rc<Notify>,
}

impl<F: Filesystem, S: RequestSource> DeviceLoop<F, S> {
    /// Told each time when there is no request that was not taken.
    pub fn emptied(&self) -> Rc<Notify> {
        self.emptied.clone()
    }

    /// A loop that serves `filesystem` with tasks of `executor`. The loops of one mount (over cloned
    /// descriptors) get clones of one `connection`.
    pub fn new(
        filesystem: Rc<F>,
        source: S,
        executor: Executor,
        connection: Connection,
        settings: Settings,
    ) -> DeviceLoop<F, S> {
        let shared = Rc::new(Shared {
            registry: Rc::new(Registry::new()),
            groups: Groups::default(),
            now: Cell::new(Time::ZERO),
            dialect: Cell::new(Dialect::MODERN),
            max_write_bytes: Cell::new(settings.max_write_bytes),
            counters: Cell::new(Counters::default()),
            left: Cell::new(0),
            silent: Cell::new(false),
        });
        let mailbox = connection.siblings.join();
        let (letters, registry) = (mailbox.clone(), shared.clone());
        executor.spawn(async move {
            // Ends with the loop, which closes the mailbox.
            while let Some(unique) = letters.next().await {
                if !registry.registry.interrupt(unique, registry.now.get()) {
                    registry.registry.remember(unique);
                }
            }
        });
        DeviceLoop {
            filesystem,
            source,
            executor,
            shared,
            connection,
            mailbox,
            settings,
            state: State::Greeting,
            starved: false,
            resting: false,
            emptied: Rc::default(),
        }
    }

    /// Readable while there are requests; for an epoll set, level triggered.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.source.descriptor()
    }

    /// False while there are no buffers (requests in work have them all): the driver should then
    /// not listen to the descriptor, and poll again after the executor ran.
    pub fn wants_input(&self) -> bool {
        !self.starved
    }

    /// Whether the mount is gone. Requests in work may still be ending.
    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// The number of requests in progress.
    pub fn in_work(&self) -> usize {
        self.shared.registry.len()
    }

    /// Reads no more requests, or reads them again.
    pub fn rest(&mut self, rests: bool) {
        self.resting = rests;
    }

    /// The requests that another process can take over, as the kernel sent them. `None` while others are in work.
    pub fn kept(&self) -> Option<Vec<Vec<u8>>> {
        if self.shared.left.get() > 0 || self.state != State::Running {
            return None;
        }
        self.shared.registry.kept()
    }

    /// The agreement with the kernel, if there is one.
    pub fn agreement(&self) -> Option<Agreement> {
        self.connection.agreement()
    }

    /// Goes on with what another process agreed with the kernel.
    pub fn go_on(&mut self, agreement: Agreement) {
        self.adopt(&agreement);
        let _ = self.connection.agreement.set(agreement);
    }

    /// Another process answers what is not answered yet.
    pub fn fall_silent(&mut self) {
        self.shared.silent.set(true);
        self.resting = true;
    }

    /// The counters so far.
    pub fn counters(&self) -> Counters {
        self.shared.counters.get()
    }

    /// The time at which the loop wants to be polled even without a request.
    pub fn deadline(&self) -> Option<Time> {
        self.shared.registry.deadline()
    }

    /// Takes up to a batch of requests and starts their tasks. True where there was any; then there
    /// may be more.
    pub fn poll(&mut self, now: Time) -> bool {
        self.shared.now.set(now);
        self.shared.registry.look(now);
        self.starved = false;
        if self.state == State::Closed || self.resting {
            return false;
        }
        for taken in 0..BATCH {
            match self.source.next() {
                Next::Request(incoming) => self.take(incoming),
                Next::Empty => {
                    self.emptied.notify_all();
                    return taken > 0;
                }
                Next::Starved => {
                    self.starved = true;
                    self.shared.count(|counters| counters.starved += 1);
                    return taken > 0;
                }
                Next::Closed => {
                    self.close();
                    return true;
                }
            }
        }
        true
    }

    fn close(&mut self) {
        self.state = State::Closed;
        let filesystem = self.filesystem.clone();
        self.executor.spawn(async move { filesystem.destroy().await });
    }

    fn take(&mut self, incoming: Incoming<S::Ticket>) {
        let Incoming { header, body, ticket } = incoming;
        if self.state == State::Greeting
            && let Some(agreement) = self.connection.agreement()
        {
            self.adopt(&agreement);
        }
        let body = match body {
            Body::Whole(bytes) if is_immediate(header.opcode) => {
                let reply = Reply::unregistered(ticket, header.unique, self.shared.clone());
                self.immediate(&bytes, reply);
                return;
            }
            body => body,
        };
        let now = self.shared.now.get();
        let slot = self.shared.registry.register(header.unique, header.pid, now);
        let Some(slot) = slot else {
            let reply = Reply::unregistered(ticket, header.unique, self.shared.clone());
            reply.send(&Err(Errno::EAGAIN));
            return;
        };
        let reply = Reply::registered(ticket, header.unique, self.shared.clone(), slot);
        if Opcode::from_number(header.opcode).is_none() {
            reply.send(&Err(Errno::ENOSYS));
            return;
        }
        self.shared.count(|counters| counters.requests += 1);
        if let (Body::Whole(bytes), true) = (&body, header.opcode == Opcode::SetLockWait as u32) {
            self.shared.registry.keep(slot, bytes);
        }
        let context = self.context(&header, slot);
        let filesystem = self.filesystem.clone();
        match body {
            Body::Whole(bytes) => self.executor.spawn(async move {
                let work = dispatch::serve(&*filesystem, &context, &bytes);
                dispatch::answer(&*filesystem, &context, &header, work, reply).await;
            }),
            Body::Write { fixed, data } => self.executor.spawn(async move {
                let work = dispatch::serve_write(&*filesystem, &context, &header, &fixed, data);
                dispatch::answer(&*filesystem, &context, &header, work, reply).await;
            }),
        }
    }

    fn context(&self, header: &InHeader, slot: SlotId) -> Context {
        Context {
            uid: header.uid,
            gid: header.gid,
            pid: header.pid,
            unique: header.unique,
            node: header.node,
            parent_group: Cell::new(None),
            slot,
            shared: self.shared.clone(),
        }
    }

    /// Handles operations that need no task.
    fn immediate(&mut self, bytes: &[u8], reply: Reply<S::Ticket>) {
        let request = match Request::parse_dialect(bytes, self.shared.dialect.get()) {
            Ok(request) => request,
            Err(error) => {
                self.shared.count(|counters| counters.malformed += 1);
                reply.send(&Err(error_of(error)));
                return;
            }
        };
        match request.operation {
            Operation::Forget { lookups } => {
                self.filesystem.forget(request.header.node, lookups);
                reply.none();
            }
            Operation::BatchForget(list) => {
                for (node, lookups) in list.iter() {
                    self.filesystem.forget(node, lookups);
                }
                reply.none();
            }
            Operation::Interrupt { unique } => {
                self.interrupt(unique);
                reply.none();
            }
            Operation::Init(offer) => {
                let outcome = match negotiate(&offer, &self.settings, kernel_max_pages()) {
                    Ok(Some(agreement)) => {
                        self.adopt(&agreement);
                        let _ = self.connection.agreement.set(agreement);
                        Ok(Response::Init(agreement.reply))
                    }
                    Ok(None) => Ok(Response::Init(crate::abi::replies::InitOut {
                        major: crate::abi::MAJOR,
                        minor: crate::abi::MINOR,
                        ..Default::default()
                    })),
                    Err(_) => Err(Errno::EPROTO),
                };
                reply.send(&outcome);
            }
            _ => {
                reply.send(&Err(Errno::ENOSYS));
            }
        }
    }

    fn adopt(&mut self, agreement: &Agreement) {
        self.shared.dialect.set(agreement.dialect);
        self.shared.max_write_bytes.set(agreement.max_write_bytes);
        self.state = State::Running;
    }

    fn interrupt(&self, unique: u64) {
        self.shared.count(|counters| counters.interrupts += 1);
        if self.shared.registry.interrupt(unique, self.shared.now.get()) {
            return;
        }
        // Another loop has the request, or it was answered a moment ago. A request of this loop
        // cannot come after its interrupt, but one of another loop may be on its way there.
        self.connection.siblings.forward(&self.mailbox, unique);
    }
}

impl<F: Filesystem> DeviceLoop<F, Device> {
    /// Whether these bytes are a request that another process can hand over.
    pub fn can_take_over(bytes: &[u8]) -> bool {
        let header = InHeader::read_from_prefix(bytes);
        header.is_ok_and(|(header, _)| header.opcode == Opcode::SetLockWait as u32)
    }

    /// Takes requests over that another process read and did not answer. False where one is none.
    pub fn take_over(&mut self, requests: Vec<Vec<u8>>, now: Time) -> bool {
        self.shared.now.set(now);
        for bytes in requests {
            let Ok((header, _)) = InHeader::read_from_prefix(&bytes) else { return false };
            if !Self::can_take_over(&bytes) {
                return false;
            }
            let ticket = self.source.ticket();
            self.take(Incoming { header, body: Body::Whole(Bytes::Heap(bytes)), ticket });
        }
        true
    }
}

impl<F: Filesystem, S: RequestSource> Drop for DeviceLoop<F, S> {
    fn drop(&mut self) {
        self.connection.siblings.leave(&self.mailbox);
    }
}

fn is_immediate(opcode: u32) -> bool {
    const LIST: [Opcode; 4] =
        [Opcode::Forget, Opcode::BatchForget, Opcode::Interrupt, Opcode::Init];
    LIST.iter().any(|one| *one as u32 == opcode)
}

/// The answer to a request that is not understood.
pub(crate) fn error_of(error: DecodeError) -> Errno {
    match error {
        DecodeError::UnknownOpcode(_) => Errno::ENOSYS,
        DecodeError::Unterminated => Errno::ENAMETOOLONG,
        DecodeError::BadField | DecodeError::BadName => Errno::EINVAL,
        DecodeError::Short | DecodeError::Length { .. } | DecodeError::BadExtension => Errno::EIO,
    }
}
