//! The mount as a source of a reactor: the kernel's requests beside the message layer.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::pool::Pool;
use ropewalk_base::task::{Notify, race, yield_now};
use ropewalk_base::time::Time;
use ropewalk_base::world::World;
use ropewalk_client::Client;
use ropewalk_net::reactor::{Reactor, Source};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::ClusterFileSystem;
use crate::notify::Notifier;
use crate::session::{MountError, Unmounter};
use crate::{Connection, Device, DeviceLoop, Mount, MountOptions, Settings};

/// Memory for the kernel's requests.
const REQUEST_POOL_BYTES: usize = 256 << 20;

/// Whether the kernel has asked for more is looked at again after so long.
const LOOK_AGAIN: Duration = Duration::from_millis(2);
/// All that it had asked for at a moment was taken after so long.
const TAKEN_WITHIN: Duration = Duration::from_millis(200);

/// The loop of a mount, for a reactor.
pub struct MountSource {
    pub(super) served: RefCell<DeviceLoop<ClusterFileSystem>>,
    pub(super) descriptor: OwnedFd,
    world: World,
}

impl Source for MountSource {
    fn poll(&self) -> bool {
        self.served.borrow_mut().poll(self.world.now())
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.descriptor.as_fd())
    }

    fn arm(&self) -> (bool, Option<Time>) {
        (true, self.served.borrow().deadline())
    }

    fn disarm(&self) {}
}

/// Knows when everything was taken that the kernel had asked for at a moment.
struct Taken {
    descriptor: OwnedFd,
    emptied: Rc<Notify>,
    world: World,
}

impl Taken {
    /// Completes when what was there is being served. The kernel tells of a closed file behind the
    /// back of the program that closes it.
    async fn all(&self) {
        let end = self.world.now() + TAKEN_WITHIN;
        while is_readable(&self.descriptor) && self.world.now() < end {
            // Requests may come without end; those that were there come first.
            race(self.emptied.notified(), self.world.sleep(LOOK_AGAIN)).await;
        }
        // The tasks of the last ones begin before this one goes on.
        yield_now().await;
    }
}

fn is_readable(descriptor: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(descriptor, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut polled, Some(&now)).is_ok_and(|ready| ready > 0)
}

fn system(path: &Path, cause: std::io::Error) -> MountError {
    MountError::System { action: "serve", path: path.to_path_buf(), cause }
}

/// A cluster, mounted.
pub struct ClusterMount {
    pub(super) source: Rc<MountSource>,
    pub(super) file_system: Rc<ClusterFileSystem>,
    pub(super) mount: Option<Mount>,
    pub(super) world: World,
}

impl ClusterMount {
    /// Mounts the client's cluster; `reactor` serves it from now on.
    pub fn new(
        reactor: &Reactor,
        world: &World,
        client: &Client,
        path: &Path,
        options: &MountOptions,
    ) -> Result<ClusterMount, MountError> {
        let mount = Mount::new(path, options)?;
        let settings = ClusterMount::SETTINGS;
        ClusterMount::serve(reactor, world, client, mount, (settings, options.read_only))
    }

    /// What the mount of a cluster wants of the kernel.
    pub(super) const SETTINGS: Settings = Settings { export: false, ..Settings::USUAL };

    /// Has the reactor serve a mount.
    pub(super) fn serve(
        reactor: &Reactor,
        world: &World,
        client: &Client,
        mount: Mount,
        (settings, read_only): (Settings, bool),
    ) -> Result<ClusterMount, MountError> {
        let path = mount.path();
        let descriptor = mount.device()?;
        let pool = Pool::with_budget(REQUEST_POOL_BYTES);
        let device = Device::new(mount.device()?, pool, settings.max_write_bytes)
            .map_err(|errno| system(path, std::io::Error::from_raw_os_error(errno.number())))?;
        let notifier = Notifier::new(mount.device()?);
        client.set_processes(Rc::new(crate::caller::process_of));
        let file_system = Rc::new(ClusterFileSystem::new(client.clone(), notifier, read_only));
        let locks = file_system.locks.clone();
        let served = DeviceLoop::new(
            file_system.clone(),
            device,
            world.executor().clone(),
            Connection::new(),
            settings,
        );
        let source =
            Rc::new(MountSource { served: RefCell::new(served), descriptor, world: world.clone() });
        let taken = Taken {
            descriptor: mount.device()?,
            emptied: source.served.borrow().emptied(),
            world: world.clone(),
        };
        let taken = Rc::new(taken);
        client.set_unlocks(Rc::new(move |inode| {
            let (taken, locks) = (taken.clone(), locks.clone());
            Box::pin(async move {
                taken.all().await;
                locks.settled(inode).await;
            })
        }));
        reactor.add(source.clone()).map_err(|error| system(path, error))?;
        Ok(ClusterMount { source, file_system, mount: Some(mount), world: world.clone() })
    }

    /// Unmounts from any thread.
    pub fn unmounter(&self) -> Option<Unmounter> {
        self.mount.as_ref().map(Mount::unmounter)
    }

    /// Its client.
    pub fn client(&self) -> &Client {
        &self.file_system.client
    }

    /// Whether the mount is gone.
    pub fn is_closed(&self) -> bool {
        self.source.served.borrow().is_closed()
    }
}
