//! The mount as a source of a reactor: the kernel's requests beside the message layer.

use std::cell::RefCell;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::rc::Rc;

use ropewalk_base::pool::Pool;
use ropewalk_base::time::Time;
use ropewalk_base::world::World;
use ropewalk_client::Client;
use ropewalk_net::reactor::{Reactor, Source};

use super::{ClusterFileSystem, KernelCaches};
use crate::notify::Notifier;
use crate::session::{MountError, Unmounter};
use crate::{Connection, Device, DeviceLoop, Mount, MountOptions, Settings};

/// Memory for the kernel's requests.
const REQUEST_POOL_BYTES: usize = 256 << 20;

/// The loop of a mount, for a reactor.
pub struct MountSource {
    served: RefCell<DeviceLoop<ClusterFileSystem>>,
    descriptor: OwnedFd,
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

fn system(path: &Path, cause: std::io::Error) -> MountError {
    MountError::System { action: "serve", path: path.to_path_buf(), cause }
}

/// A cluster, mounted.
pub struct ClusterMount {
    source: Rc<MountSource>,
    mount: Option<Mount>,
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
        let settings = Settings { export: false, ..Settings::default() };
        let descriptor = mount.device()?;
        let pool = Pool::with_budget(REQUEST_POOL_BYTES);
        let device = Device::new(mount.device()?, pool, settings.max_write_bytes)
            .map_err(|errno| system(path, std::io::Error::from_raw_os_error(errno.number())))?;
        client.set_invalidate(Rc::new(KernelCaches::new(Notifier::new(mount.device()?))));
        let served = DeviceLoop::new(
            Rc::new(ClusterFileSystem::new(client.clone())),
            device,
            world.executor().clone(),
            Connection::new(),
            settings,
        );
        let source =
            Rc::new(MountSource { served: RefCell::new(served), descriptor, world: world.clone() });
        reactor.add(source.clone()).map_err(|error| system(path, error))?;
        Ok(ClusterMount { source, mount: Some(mount) })
    }

    /// Unmounts from any thread.
    pub fn unmounter(&self) -> Option<Unmounter> {
        self.mount.as_ref().map(Mount::unmounter)
    }

    /// Whether the mount is gone.
    pub fn is_closed(&self) -> bool {
        self.source.served.borrow().is_closed()
    }
}
