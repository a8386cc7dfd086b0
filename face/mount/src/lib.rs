//! The FUSE mount: the kernel's requests as futures on a single-threaded executor.
//!
//! * [`session`] mounts and unmounts, and clears what dead daemons left;
//! * [`abi`] describes the kernel's structures, [`decode`] takes requests apart;
//! * [`filesystem`] is the trait that a file system implements, [`reply`] what it answers;
//! * [`source`] is the seam to the kernel, [`dev_loop`] the loop, [`negotiate`] the agreement;
//! * [`notify`] takes back what the kernel was told;
//! * [`cluster`] stands on all of this: the mount of a cluster, over its client.
//!
//! Invariants: nothing blocks the loop's thread; every request is answered exactly once; an
//! interrupt reaches its request; the kernel believes nothing longer than it was told to.
//!
//! All but [`cluster`] know neither servers nor leases nor the message layer: those are behind the
//! trait.

#![deny(unsafe_code)]

pub mod abi;
mod caller;
pub mod cluster;
pub mod decode;
pub mod dev_loop;
#[allow(unsafe_code)]
mod device_ioctl;
mod dispatch;
pub mod errno;
pub mod filesystem;
pub mod interrupt;
pub mod negotiate;
pub mod notify;
pub mod reply;
mod response;
pub mod session;
pub mod source;
#[allow(unsafe_code)]
mod withheld;

pub use dev_loop::{Connection, DeviceLoop};
pub use errno::Errno;
pub use filesystem::{Context, Filesystem};
pub use negotiate::Settings;
pub use notify::Notifier;
pub use session::{Mount, MountOptions, check_mount_point, clear_dead_mount};
pub use source::Device;
