//! Structures that the daemon sends.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use super::requests::{FileLock, structures};

structures! {
    /// Before every reply and notification.
    OutHeader[16] { len: u32, error: i32, unique: u64, }
    Attr[88] {
        node: u64, size: u64, blocks: u64, atime: u64, mtime: u64, ctime: u64,
        atime_nanos: u32, mtime_nanos: u32, ctime_nanos: u32,
        mode: u32, links: u32, uid: u32, gid: u32, device: u32, block_bytes: u32, flags: u32,
    }
    EntryOut[128] {
        node: u64, generation: u64, entry_valid: u64, attr_valid: u64,
        entry_valid_nanos: u32, attr_valid_nanos: u32, attr: Attr,
    }
    AttrOut[104] { valid: u64, valid_nanos: u32, dummy: u32, attr: Attr, }
    StatxTime[16] { seconds: i64, nanos: u32, reserved: i32, }
    StatxBody[256] {
        mask: u32, block_bytes: u32, attributes: u64, links: u32, uid: u32, gid: u32,
        mode: u16, spare0: u16, node: u64, size: u64, blocks: u64, attributes_mask: u64,
        atime: StatxTime, btime: StatxTime, ctime: StatxTime, mtime: StatxTime,
        rdev_major: u32, rdev_minor: u32, dev_major: u32, dev_minor: u32, spare2: [u64; 14],
    }
    StatxOut[288] { valid: u64, valid_nanos: u32, flags: u32, spare: [u64; 2], body: StatxBody, }
    OpenOut[16] { handle: u64, flags: u32, backing: u32, }
    WriteOut[8] { size: u32, padding: u32, }
    CopyFileRangeOut[8] { bytes: u64, }
    StatFsOut[80] {
        blocks: u64, blocks_free: u64, blocks_available: u64, files: u64, files_free: u64,
        block_bytes: u32, name_bytes_max: u32, fragment_bytes: u32, padding: u32, spare: [u32; 6],
    }
    GetXattrOut[8] { size: u32, padding: u32, }
    LockOut[24] { lock: FileLock, }
    InitOut[64] {
        major: u32, minor: u32, max_readahead: u32, flags: u32,
        max_background: u16, congestion_threshold: u16, max_write: u32, time_granularity: u32,
        max_pages: u16, map_alignment: u16, flags2: u32, max_stack_depth: u32,
        request_timeout: u16, unused: [u16; 11],
    }
    IoctlOut[16] { result: i32, flags: u32, in_vectors: u32, out_vectors: u32, }
    PollOut[8] { events: u32, padding: u32, }
    SeekOut[8] { offset: u64, }
    /// Before each name of a directory listing; the record is padded to 8 bytes.
    DirectoryRecord[24] { node: u64, offset: u64, name_len: u32, kind: u32, }
    NotifyPollOut[8] { kernel_handle: u64, }
    NotifyInodeOut[24] { node: u64, offset: i64, len: i64, }
    NotifyStoreOut[24] { node: u64, offset: u64, size: u32, padding: u32, }
    NotifyEntryOut[16] { parent: u64, name_len: u32, flags: u32, }
    NotifyDeleteOut[24] { parent: u64, child: u64, name_len: u32, padding: u32, }
}
