//! The mount of a cluster: the client's operations behind the kernel's requests.
//!
//! What the kernel may remember is what a lease of the client covers: attributes and pages get a long
//! validity under a lease and none without. Before a lease is given back the kernel is told to forget
//! ([`KernelCaches`]). Entries it asks for each time.
//!
//! Invariant: nothing is answered from here that the client does not answer; there is no cache of
//! its own but listings that one open directory has begun to read.

mod caches;
mod convert;
mod files;
mod handles;
mod held;
mod locks;
mod source;
mod tree;

pub use caches::KernelCaches;
pub use source::{ClusterMount, MountSource};

use std::cell::RefCell;
use std::rc::Rc;

use ropewalk_client::Client;

use handles::Handles;
use locks::Locks;

use crate::errno::Errno;

/// The file system that a mount of a cluster serves.
pub struct ClusterFileSystem {
    pub(crate) client: Client,
    handles: RefCell<Handles>,
    locks: Rc<Locks>,
    /// Every change is refused, whatever the kernel was told of the mount since.
    read_only: bool,
}

impl ClusterFileSystem {
    /// A file system over this client.
    pub fn new(client: Client, read_only: bool) -> ClusterFileSystem {
        let locks = Locks::new(client.clone());
        ClusterFileSystem { client, handles: RefCell::new(Handles::new()), locks, read_only }
    }

    /// Before every change.
    fn may_change(&self) -> Result<(), Errno> {
        if self.read_only { Err(Errno::EROFS) } else { Ok(()) }
    }
}
