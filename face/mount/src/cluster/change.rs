//! The hand-over of a mount from process to process, without the messages between the two.
//!
//! The old process reads no more requests, and ends those that it has. Requests that wait for a lock go along. The
//! new one goes on with the same descriptor, so the kernel keeps all that it has: open files, caches, places.
//!
//! Invariants
//! * a request is answered by one of the two processes, once;
//! * a process that rests neither reads requests nor calls servers;
//! * programs wait for a bounded time where requests do not end: then the old process goes on, and there is no
//!   hand-over.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::rc::Rc;
use std::time::{Duration, Instant};

use ropewalk_base::task::{race, yield_now};
use ropewalk_base::time::Time;
use ropewalk_base::world::World;
use ropewalk_client::Client;
use ropewalk_client::handover::{ClientState, Kernel};
use ropewalk_net::reactor::{Reactor, Source};

use super::ClusterFileSystem;
use super::handles::Handles;
use super::places::Places;
use super::source::ClusterMount;
use crate::negotiate::{Agreement, MAX_WRITE_LIMIT};
use crate::session::MountError;
use crate::{DeviceLoop, Mount, Settings};

/// Programs wait at a stretch, at most, for requests under way to end.
const REST: Duration = Duration::from_millis(200);
/// Between two stretches requests are served for so long.
const BREATH: Duration = Duration::from_millis(50);
/// All stretches together.
const PATIENCE: Duration = Duration::from_secs(5);
const LOOK_AGAIN: Duration = Duration::from_micros(300);

/// Requests do not end: a server is away, or they wait for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "requests of programs are under way on the mount and do not end within 5 s: check that the servers answer \
     ('ropewalk status'), and try again"
)]
pub struct Busy;

/// A mount at rest, for another process.
pub struct HandOver {
    pub kernel: Kernel,
    pub client: ClientState,
    /// The descriptor of /dev/fuse.
    pub device: OwnedFd,
    /// Since then no request was read.
    pub since: Instant,
}

impl ClusterMount {
    /// Brings the mount to rest, and gives its state. It rests until [`ClusterMount::go_on`] or
    /// [`ClusterMount::leave`].
    pub async fn hand_over(&self, reactor: &Reactor) -> Result<HandOver, Busy> {
        let end = self.world.now() + PATIENCE;
        while self.world.now() < end {
            self.rest(reactor, true);
            let since = Instant::now();
            let until = (self.world.now() + REST).min(end);
            if let Some(waiting) = self.settle(until).await
                && let Ok(device) = self.source.descriptor.try_clone()
            {
                let kernel = self.kernel(waiting);
                let client = self.file_system.client.hand_over();
                return Ok(HandOver { kernel, client, device, since });
            }
            self.rest(reactor, false);
            self.world.sleep(BREATH).await;
        }
        Err(Busy)
    }

    /// Waits until nothing is under way but requests for locks; these.
    async fn settle(&self, until: Time) -> Option<Vec<Vec<u8>>> {
        let client = &self.file_system.client;
        loop {
            // The tasks of requests that ended get their turn first.
            yield_now().await;
            if self.is_quiet().is_some() {
                yield_now().await;
                self.world.sleep(LOOK_AGAIN).await;
                if let Some(waiting) = self.is_quiet() {
                    return Some(waiting);
                }
            }
            let now = self.world.now();
            if now >= until {
                return None;
            }
            if self.source.served.borrow().kept().is_some() {
                let left = until.since(now);
                let _ = race(client.report_before_hand_over(), self.world.sleep(left)).await;
            }
            self.world.sleep(LOOK_AGAIN).await;
        }
    }

    /// The requests for locks, where nothing else is under way.
    fn is_quiet(&self) -> Option<Vec<Vec<u8>>> {
        let quiet = self.file_system.locks.is_quiet() && self.file_system.client.is_quiet();
        self.source.served.borrow().kept().filter(|_| quiet)
    }

    fn kernel(&self, waiting: Vec<Vec<u8>>) -> Kernel {
        let served = self.source.served.borrow();
        let agreement = served.agreement();
        let (places, next_place) = self.file_system.places.borrow().to_state();
        Kernel {
            flags: agreement.map_or(0, |it| it.flags),
            minor: agreement.map_or(0, |it| it.minor),
            max_write_bytes: agreement.map_or(0, |it| it.max_write_bytes),
            handles: self.file_system.handles.borrow().to_state(),
            places,
            next_place,
            holders: self.file_system.locks.to_state(),
            waiting,
        }
    }

    /// There is no hand-over (any more): this process serves on.
    pub fn go_on(&self, reactor: &Reactor) {
        self.file_system.client.go_on();
        self.rest(reactor, false);
    }

    fn rest(&self, reactor: &Reactor, rests: bool) {
        self.source.served.borrow_mut().rest(rests);
        let source: Rc<dyn Source> = self.source.clone();
        // Where that fails the thread wakes more often than it has to.
        let _ = reactor.watch(&source, !rests);
    }

    /// The mount is another process's: it stays when this is dropped, and nothing is answered any more.
    pub fn leave(&mut self) {
        self.source.served.borrow_mut().fall_silent();
        self.file_system.client.leave();
        if let Some(mount) = &mut self.mount {
            mount.leave();
        }
    }

    /// A mount that another process hands over, at rest. Dropped before [`ClusterMount::take_over`], it leaves
    /// everything as it is.
    pub fn adopt(
        reactor: &Reactor,
        world: &World,
        client: &Client,
        (device, path, number): (OwnedFd, &Path, u64),
        read_only: bool,
        kernel: &Kernel,
    ) -> Result<ClusterMount, MountError> {
        let unusable = || MountError::Unusable(path.to_path_buf());
        let (bytes, names) = (kernel.max_write_bytes, kernel.flags);
        let waits = |bytes: &Vec<u8>| DeviceLoop::<ClusterFileSystem>::can_take_over(bytes);
        if !kernel.waiting.iter().all(waits)
            || kernel.minor == 0
            || bytes == 0
            || bytes > MAX_WRITE_LIMIT
        {
            return Err(unusable());
        }
        let mount = Mount::adopt(device, path, number)?;
        let settings = Settings { max_write_bytes: bytes, ..ClusterMount::SETTINGS };
        let adopted = ClusterMount::serve(reactor, world, client, mount, (settings, read_only))?;
        adopted.rest(reactor, true);
        let agreement = Agreement::of_state(names, kernel.minor, bytes);
        adopted.source.served.borrow_mut().go_on(agreement);
        let handles = Handles::of_state(client, &kernel.handles).ok_or_else(unusable)?;
        let ClusterFileSystem { handles: own, places, locks, .. } = &*adopted.file_system;
        *own.borrow_mut() = handles;
        *places.borrow_mut() = Places::of_state(&kernel.places, kernel.next_place);
        locks.take_state(&kernel.holders);
        Ok(adopted)
    }

    /// The session is this process's: it serves, beginning with the requests that the other one left.
    pub fn take_over(&mut self, reactor: &Reactor, waiting: Vec<Vec<u8>>) {
        if let Some(mount) = &mut self.mount {
            mount.own();
        }
        let now = self.world.now();
        let understood = self.source.served.borrow_mut().take_over(waiting, now);
        debug_assert!(understood, "they were looked at before");
        self.rest(reactor, false);
    }
}
