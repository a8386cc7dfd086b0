//! The kernel's FUSE protocol 7.31 to 7.45 as data: opcodes, flags, and the structures that cross
//! /dev/fuse.
//!
//! Invariants: every structure has the kernel's layout (sizes are asserted at compile time) and no
//! padding of its own; numbers are in the machine's byte order; nothing here interprets anything.
//! It must not know the loop, the decoder or any file system.

pub mod flags;
pub mod opcode;
pub mod replies;
pub mod requests;

pub use opcode::Opcode;

/// The protocol's major version.
pub const MAJOR: u32 = 7;
/// The newest minor version whose structures are described here (Linux 6.18).
pub const MINOR: u32 = 45;
/// The oldest minor version that is served (Linux 5.4): earlier versions have other lengths.
pub const MINOR_OLDEST: u32 = 31;
/// The node of the mount's root.
pub const ROOT_NODE: u64 = 1;
/// Smallest buffer that the kernel accepts for reading a request.
pub const READ_BUFFER_BYTES_MIN: usize = 8192;
/// Longest name in a request, without its terminator.
pub const NAME_BYTES_MAX: usize = 1024;
/// Longest path in a request (symbolic links), without its terminator.
pub const PATH_BYTES_MAX: usize = 4096;

/// Codes of messages that the daemon sends unasked; they travel in the `error` field.
pub mod notify_code {
    pub const POLL: i32 = 1;
    pub const INVAL_INODE: i32 = 2;
    pub const INVAL_ENTRY: i32 = 3;
    pub const STORE: i32 = 4;
    pub const DELETE: i32 = 6;
}

/// Extension records behind a request's body.
pub mod extension {
    /// Supplementary groups (at most one: the one that matches the parent directory).
    pub const GROUPS: u32 = 32;
}
