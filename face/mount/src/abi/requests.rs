//! Structures that the kernel sends.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident[$bytes:literal] { $($(#[$note:meta])* $field:ident: $kind:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
        #[derive(FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name { $($(#[$note])* pub $field: $kind,)* }
        const _: () = assert!(size_of::<$name>() == $bytes);
    )*};
}
pub(super) use structures;

structures! {
    /// Before every request.
    InHeader[40] {
        len: u32, opcode: u32, unique: u64, node: u64, uid: u32, gid: u32, pid: u32,
        /// Length of the extensions behind the body, in units of 8 bytes.
        extension_words: u16,
        padding: u16,
    }
    ForgetIn[8] { lookups: u64, }
    ForgetOne[16] { node: u64, lookups: u64, }
    BatchForgetIn[8] { count: u32, dummy: u32, }
    GetAttributesIn[16] { flags: u32, dummy: u32, handle: u64, }
    StatxIn[24] { getattr_flags: u32, reserved: u32, handle: u64, flags: u32, mask: u32, }
    MakeNodeIn[16] { mode: u32, device: u32, umask: u32, padding: u32, }
    MakeDirectoryIn[8] { mode: u32, umask: u32, }
    RenameIn[8] { new_parent: u64, }
    Rename2In[16] { new_parent: u64, flags: u32, padding: u32, }
    LinkIn[8] { old_node: u64, }
    SetAttributesIn[88] {
        valid: u32, padding: u32, handle: u64, size: u64, lock_owner: u64,
        atime: u64, mtime: u64, ctime: u64,
        atime_nanos: u32, mtime_nanos: u32, ctime_nanos: u32,
        mode: u32, unused4: u32, uid: u32, gid: u32, unused5: u32,
    }
    OpenIn[8] { flags: u32, open_flags: u32, }
    CreateIn[16] { flags: u32, mode: u32, umask: u32, open_flags: u32, }
    ReleaseIn[24] { handle: u64, flags: u32, release_flags: u32, lock_owner: u64, }
    FlushIn[24] { handle: u64, unused: u32, padding: u32, lock_owner: u64, }
    ReadIn[40] {
        handle: u64, offset: u64, size: u32, read_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    WriteIn[40] {
        handle: u64, offset: u64, size: u32, write_flags: u32, lock_owner: u64, flags: u32,
        padding: u32,
    }
    FsyncIn[16] { handle: u64, flags: u32, padding: u32, }
    /// As it was before SETXATTR_EXT.
    SetXattrShortIn[8] { size: u32, flags: u32, }
    SetXattrIn[16] { size: u32, flags: u32, setxattr_flags: u32, padding: u32, }
    GetXattrIn[8] { size: u32, padding: u32, }
    FileLock[24] { start: u64, end: u64, kind: u32, pid: u32, }
    LockIn[48] { handle: u64, owner: u64, lock: FileLock, flags: u32, padding: u32, }
    AccessIn[8] { mask: u32, padding: u32, }
    /// The part that all kernels send; a second word of flags follows where INIT_EXT is set.
    InitIn[16] { major: u32, minor: u32, max_readahead: u32, flags: u32, }
    InterruptIn[8] { unique: u64, }
    IoctlIn[32] {
        handle: u64, flags: u32, command: u32, argument: u64, in_size: u32, out_size: u32,
    }
    PollIn[24] { handle: u64, kernel_handle: u64, flags: u32, events: u32, }
    FallocateIn[32] { handle: u64, offset: u64, length: u64, mode: u32, padding: u32, }
    SeekIn[24] { handle: u64, offset: u64, whence: u32, padding: u32, }
    CopyFileRangeIn[56] {
        handle_in: u64, offset_in: u64, node_out: u64, handle_out: u64, offset_out: u64, len: u64,
        flags: u64,
    }
    ExtensionHeader[8] { size: u32, kind: u32, }
}
