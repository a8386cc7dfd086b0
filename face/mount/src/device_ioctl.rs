//! The one ioctl of /dev/fuse that is needed.

use std::os::fd::{AsFd, RawFd};

use rustix::io::Result;
use rustix::ioctl::{Opcode, Setter, opcode};

/// `FUSE_DEV_IOC_CLONE`: "read" in the kernel's naming, though it hands a number in.
const CLONE: Opcode = opcode::read::<u32>(229, 0);

/// Makes `device`, freshly opened, a further descriptor of the connection that `original` has.
pub(crate) fn clone_into(device: impl AsFd, original: RawFd) -> Result<()> {
    let original = original as u32;
    // SAFETY: the opcode reads one 32-bit number through the pointer, which `Setter` points at a
    // `u32` that lives for the call; it writes nothing there.
    unsafe { rustix::ioctl::ioctl(device, Setter::<CLONE, u32>::new(original)) }
}
