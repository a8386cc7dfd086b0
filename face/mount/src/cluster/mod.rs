//! The mount of a cluster: the client's operations behind the kernel's requests.
//!
//! The kernel may cache only data that a lease of the client covers: attributes and pages get a long validity
//! under a lease and none without. Before a lease is given back, the mount tells the kernel to forget them
//! ([`KernelCaches`]). The kernel asks for entries each time.
//!
//! Invariant: every answer from here is the client's. The mount caches only names that one open directory has
//! begun to list, and the kernel's places of directories ([`places`]). Methods are called with inodes, whatever
//! number the kernel uses.

mod caches;
mod change;
mod convert;
mod files;
mod handles;
mod held;
mod locks;
mod places;
mod source;
mod tree;

pub use change::{Busy, HandOver};
pub use source::{ClusterMount, MountSource};

use std::cell::RefCell;
use std::rc::Rc;

use ropewalk_client::Client;

use crate::errno::Errno;
use crate::notify::Notifier;
use caches::KernelCaches;
use handles::Handles;
use locks::Locks;
use places::Places;

/// The file system that a mount of a cluster serves.
pub struct ClusterFileSystem {
    pub(crate) client: Client,
    handles: RefCell<Handles>,
    locks: Rc<Locks>,
    /// Every change is refused, whatever the kernel was told of the mount since.
    read_only: bool,
    places: Rc<RefCell<Places>>,
    notifier: Notifier,
}

impl ClusterFileSystem {
    /// A file system over this client, for the kernel of this notifier: it is told to forget what
    /// the client's leases do not cover any more.
    pub fn new(client: Client, notifier: Notifier, read_only: bool) -> ClusterFileSystem {
        let places = Rc::new(RefCell::new(Places::new()));
        client.set_invalidate(Rc::new(KernelCaches::new(notifier.clone(), places.clone())));
        let locks = Locks::new(client.clone());
        let handles = RefCell::new(Handles::new());
        ClusterFileSystem { client, handles, locks, read_only, places, notifier }
    }

    /// Before every change.
    fn may_change(&self) -> Result<(), Errno> {
        if self.read_only { Err(Errno::EROFS) } else { Ok(()) }
    }
}
