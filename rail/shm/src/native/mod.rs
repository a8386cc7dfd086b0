//! Native access to a peer's memory, guarded so that late data never lands.
//!
//! The exposing side keeps a table in shared memory; the accessing side (the origin) checks it and
//! copies, with cross-memory attach between processes, or `memcpy` where it has the peer's memory mapped
//! (`crate::arena`) or is another thread of its process.
//!
//! The guard of writes: the origin announces which entry it is about to use, passes a fence, and looks whether the
//! entry is live; the exposing side marks it dead, passes a fence, and looks whether it is announced. The second of
//! the two sees the first one's write. So after the announcement is gone, nobody touches the region any more. An
//! origin announces for each piece anew, so that a revocation waits for one piece at most, however long the access
//! is. If a peer is stopped in the middle of a write, the revocation waits until the peer goes on or dies: nothing
//! else keeps late bytes out.
//!
//! Reads from another process announce nothing, and no revocation waits for them: the origin looks again after the
//! copy whether the entry is the same; if it is not, the bytes do not count. Two threads of one process announce
//! reads, too: memory that one gives back could be unmapped under the other's hands, and neither can be stopped alone.
//!
//! Invariants: an entry's fields change only while it is dead, and, if it could be written, not announced; so the
//! values that an origin found in an entry count only if that is still live afterwards. All values that the origin
//! reads from the table are checked or handed to the kernel, which checks them; the exposing side never reads its
//! table, only its own notes, so that a peer's scribbling harms the peer's access alone.

use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};

use ropewalk_base::error::Fault;
use ropewalk_base::hash::{HashMap, HashSeed};
use ropewalk_base::memory::{BufferTable, Slice};
use ropewalk_base::verb::{Help, RemoteKey, RemoteLayout, Token};
use rustix::process::Pid;

use crate::arena;
use crate::segment::{EXPOSURES_MAX, Entry, PIECES_ONE, Segment, Side};
use crate::views::Views;

/// Most pieces of one exposed region.
pub const REGION_PIECES_MAX: usize = 8192;
/// Bytes that one announcement covers, and so about the longest wait of a revocation (50 us).
pub const PIECE_BYTES: u64 = 512 * 1024;
/// Most vector elements that the kernel takes in a call, on either side.
const VECTORS_MAX: usize = 1024;
/// Free lists that a link keeps for reuse.
const LISTS_KEPT_MAX: usize = 16;

/// Address and length of a piece, as it lies in shared lists.
type Piece = [u64; 2];

/// The regions that this side exposes over one link.
#[derive(Debug)]
pub struct Exposures {
    /// Reads are announced, too.
    within_process: bool,
    live: HashMap<u32, Exposure>,
    /// Indices that were marked dead, but may still be announced.
    revoking: Vec<u32>,
    spare: Vec<Vec<Piece>>,
}

#[derive(Debug)]
struct Exposure {
    key: RemoteKey,
    list: Vec<Piece>,
    revoked: bool,
    /// An announcement is waited for.
    guarded: bool,
}

impl Exposures {
    /// Nothing exposed to a peer so reached.
    pub fn to(peer: PeerMemory) -> Exposures {
        let within_process = peer == PeerMemory::Own;
        let live = HashMap::with_hasher(HashSeed::OWN_KEYS);
        Exposures { within_process, live, revoking: Vec::new(), spare: Vec::new() }
    }

    /// Makes `region` accessible.
    pub fn expose(
        &mut self,
        segment: &Segment,
        side: Side,
        key: RemoteKey,
        region: Slice,
        writable: bool,
        buffers: &BufferTable,
    ) -> Result<(), Fault> {
        let index = key.slot.index;
        if index >= EXPOSURES_MAX || self.live.contains_key(&index) {
            return Err(Fault::Busy);
        }
        let segments =
            if writable { buffers.resolve_writable(region) } else { buffers.resolve(region) };
        let (mut pieces, mut bytes, mut address) = (0, 0u64, 0u64);
        let mut arena = None;
        for piece in segments.clone() {
            if pieces == 0 {
                address = piece.address() as u64;
                arena = arena::find(address, piece.len() as u64);
            }
            pieces += 1;
            bytes += piece.len() as u64;
        }
        if key.slot.generation == 0 || bytes != region.len || pieces > REGION_PIECES_MAX {
            return Err(Fault::Invalid);
        }
        let mut list = Vec::new();
        if pieces > 1 {
            list = self.spare.pop().unwrap_or_default();
            list.extend(segments.map(|piece| [piece.address() as u64, piece.len() as u64]));
            address = list.as_ptr().expose_provenance() as u64;
        }
        let entry = segment.entry(side, index);
        entry.secret().store(key.secret, Ordering::Relaxed);
        entry.address().store(address, Ordering::Relaxed);
        entry.bytes().store(bytes, Ordering::Relaxed);
        let count = if pieces > 1 { pieces as u64 } else { PIECES_ONE };
        entry.pieces().store(count, Ordering::Relaxed);
        entry.writable().store(u64::from(writable), Ordering::Relaxed);
        let (id, descriptor) = arena.map_or((0, 0), |arena| (arena.id, arena.descriptor as u64));
        entry.arena().store(id, Ordering::Relaxed);
        entry.descriptor().store(descriptor, Ordering::Relaxed);
        entry.live().store(u64::from(key.slot.generation), Ordering::Release);
        let guarded = writable || self.within_process;
        self.live.insert(index, Exposure { key, list, revoked: false, guarded });
        Ok(())
    }

    /// Ends access under `key`. True where nobody holds the region any more; otherwise
    /// [`Exposures::settled`] will name the key.
    pub fn revoke(&mut self, segment: &Segment, side: Side, key: RemoteKey) -> Result<bool, Fault> {
        let index = key.slot.index;
        let exposure = self.live.get_mut(&index).filter(|exposure| exposure.key == key);
        let Some(exposure) = exposure.filter(|exposure| !exposure.revoked) else {
            return Err(Fault::BadKey);
        };
        exposure.revoked = true;
        let guarded = exposure.guarded;
        segment.entry(side, index).live().store(0, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if !(guarded && announced(segment, side, index)) {
            self.forget(index);
            return Ok(true);
        }
        self.revoking.push(index);
        self.publish_revoking(segment, side);
        Ok(false)
    }

    /// A key whose revocation is complete now. To be asked until it answers `None`.
    pub fn settled(&mut self, segment: &Segment, side: Side) -> Option<RemoteKey> {
        let position = self.revoking.iter().position(|index| !announced(segment, side, *index))?;
        let index = self.revoking.swap_remove(position);
        self.publish_revoking(segment, side);
        self.forget(index)
    }

    /// Ends access under all keys of this link; [`Exposures::is_held`] tells when it is over. Each may still be
    /// revoked, by a caller that wants to know when the peer has left that one.
    pub fn withdraw(&mut self, segment: &Segment, side: Side) {
        for index in self.live.keys() {
            segment.entry(side, *index).live().store(0, Ordering::Relaxed);
        }
        fence(Ordering::SeqCst);
    }

    /// Whether the peer may still hold any region that was exposed over this link.
    pub fn is_held(&self, segment: &Segment, side: Side) -> bool {
        let accessing = segment.accessing(side.other()).load(Ordering::Acquire);
        // Anything else than the number of an entry of ours is garbage, and guards nothing.
        let index = accessing.checked_sub(1).and_then(|index| u32::try_from(index).ok());
        let exposure = index.and_then(|index| self.live.get(&index));
        exposure.is_some_and(|exposure| exposure.guarded)
    }

    /// Whether `settled` would name a key.
    pub fn has_settled(&self, segment: &Segment, side: Side) -> bool {
        self.revoking.iter().any(|index| !announced(segment, side, *index))
    }

    /// Whether revocations wait.
    pub fn is_revoking(&self) -> bool {
        !self.revoking.is_empty()
    }

    /// The peer is gone: a key whose revocation is complete thereby, until there is none.
    pub fn released(&mut self) -> Option<RemoteKey> {
        let index = self.revoking.pop()?;
        self.forget(index)
    }

    fn publish_revoking(&self, segment: &Segment, side: Side) {
        segment.revoking(side).store(self.revoking.len() as u32, Ordering::Relaxed);
    }

    fn forget(&mut self, index: u32) -> Option<RemoteKey> {
        let mut exposure = self.live.remove(&index)?;
        if exposure.list.capacity() > 0 && self.spare.len() < LISTS_KEPT_MAX {
            exposure.list.clear();
            self.spare.push(exposure.list);
        }
        Some(exposure.key)
    }
}

fn announced(segment: &Segment, side: Side, index: u32) -> bool {
    segment.accessing(side.other()).load(Ordering::Acquire) == u64::from(index) + 1
}

/// The way to access the memory of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerMemory {
    /// In another process: by the kernel.
    Process(Pid),
    /// In this process.
    Own,
}

/// A native read or write under way.
#[derive(Debug)]
pub struct Access {
    pub key: RemoteKey,
    pub remote: RemoteLayout,
    pub local: Slice,
    pub token: Token,
    pub write: bool,
    /// The help that the target would give, if it were asked by frames.
    pub help: Help,
    done: u64,
    /// For lists: the segment that comes next, and how much of it is done.
    segment: usize,
    within: u64,
}

impl Access {
    /// An access that has not begun.
    pub fn new(
        key: RemoteKey,
        remote: RemoteLayout,
        local: Slice,
        token: Token,
        write: bool,
    ) -> Access {
        let (done, segment, within, help) = (0, 0, 0, Help::None);
        Access { key, remote, local, token, write, help, done, segment, within }
    }

    /// Whether the layout has as many bytes as the local slice.
    pub fn is_consistent(&self) -> bool {
        match &self.remote {
            RemoteLayout::At(_) => true,
            RemoteLayout::List(list) => {
                let sum = list.iter().try_fold(0u64, |sum, part| sum.checked_add(part.len));
                sum == Some(self.local.len)
            }
        }
    }

    /// Whether all of it lies within a region of `bytes` bytes.
    fn fits(&self, bytes: u64) -> bool {
        let inside =
            |offset: u64, len: u64| offset.checked_add(len).is_some_and(|end| end <= bytes);
        match &self.remote {
            RemoteLayout::At(offset) => inside(*offset, self.local.len),
            RemoteLayout::List(list) => list.iter().all(|part| inside(part.offset, part.len)),
        }
    }

    fn advance(&mut self, mut bytes: u64) {
        self.done += bytes;
        let RemoteLayout::List(list) = &self.remote else { return };
        while let Some(part) = list.get(self.segment) {
            let left = part.len - self.within;
            if bytes < left {
                self.within += bytes;
                return;
            }
            bytes -= left;
            self.segment += 1;
            self.within = 0;
        }
    }
}

/// Reused memory of the origin: vectors for the kernel, and the list of the region read last.
#[derive(Debug, Default)]
pub struct Scratch {
    local: Vec<libc::iovec>,
    remote: Vec<libc::iovec>,
}

// SAFETY: the vectors are filled and used within one call; between calls they are dead numbers.
unsafe impl Send for Scratch {}

/// The list of a region's pieces, kept for the next access under the same key.
#[derive(Debug, Default)]
pub struct RegionList {
    key: Option<RemoteKey>,
    pieces: Vec<Piece>,
    /// The offset in the region at which each piece begins.
    starts: Vec<u64>,
}

/// The accessing side of a link.
pub struct Origin<'a> {
    pub segment: &'a Segment,
    pub side: Side,
    pub memory: PeerMemory,
    /// Readable once the peer has ended, where it is another process.
    pub watched: Option<&'a OwnedFd>,
    /// The peer's process, where it is another one that lets us reach its descriptors.
    pub process: Option<&'a OwnedFd>,
    pub views: &'a mut Views,
    pub list: &'a mut RegionList,
    pub scratch: &'a mut Scratch,
    pub system_calls: &'a mut u64,
}

impl Origin<'_> {
    /// Moves the next at most `budget` bytes. Returns their number; the access is complete if nothing of it is left.
    /// Bytes that were read while the region was taken back are not counted: their values are unknown.
    pub fn step(
        &mut self,
        access: &mut Access,
        buffers: &BufferTable,
        budget: u64,
    ) -> Result<u64, Fault> {
        let slot = access.key.slot;
        if slot.generation == 0 || slot.index >= EXPOSURES_MAX {
            return Err(Fault::BadKey);
        }
        let announces = access.write || self.memory == PeerMemory::Own;
        if announces {
            let announcement = self.segment.accessing(self.side);
            announcement.store(u64::from(slot.index) + 1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
        let mut result = self.step_begun(access, buffers, budget.min(PIECE_BYTES));
        if let Err(fault) = self.check_live(access.key) {
            // The data that was read of the region, and of its list, may be anything.
            self.list.key = None;
            result = Err(fault);
        }
        if announces {
            self.segment.accessing(self.side).store(0, Ordering::Release);
        }
        let bytes = result?;
        access.advance(bytes);
        Ok(bytes)
    }

    /// Whether the entry is still the key's, after all that was read before.
    fn check_live(&self, key: RemoteKey) -> Result<(), Fault> {
        fence(Ordering::Acquire);
        let other = self.side.other();
        let live = self.segment.entry(other, key.slot.index).live().load(Ordering::Acquire);
        if live == u64::from(key.slot.generation) {
            return Ok(());
        }
        let left = self.segment.left(other).load(Ordering::Relaxed) != 0;
        Err(if left { Fault::PeerReset } else { Fault::BadKey })
    }

    fn step_begun(
        &mut self,
        access: &Access,
        buffers: &BufferTable,
        budget: u64,
    ) -> Result<u64, Fault> {
        self.check_live(access.key)?;
        let entry = self.segment.entry(self.side.other(), access.key.slot.index);
        if entry.secret().load(Ordering::Relaxed) != access.key.secret {
            return Err(Fault::BadKey);
        }
        if access.write && entry.writable().load(Ordering::Relaxed) != 1 {
            return Err(Fault::BadKey);
        }
        let bytes = entry.bytes().load(Ordering::Relaxed);
        // The peer could change the number between two pieces, so the end is checked each time; the
        // kernel would refuse an address that is none, and other memory of the peer is the peer's.
        if !access.fits(bytes) {
            return Err(Fault::BadKey);
        }
        let left = access.local.len - access.done;
        if left == 0 {
            return Ok(0);
        }
        let whole = self.find_pieces(&entry, access.key, bytes)?;
        // A write goes where the entry said only if it said so while it was the key's: under the
        // announcement it stays that then.
        self.check_live(access.key)?;
        self.scratch.local.clear();
        let local = access.local.part(access.done, left.min(budget));
        let segments =
            if access.write { buffers.resolve(local) } else { buffers.resolve_writable(local) };
        for segment in segments {
            if self.scratch.local.len() == VECTORS_MAX {
                break;
            }
            self.scratch.local.push(vector(segment.address() as u64, segment.len() as u64));
        }
        self.gather_remote(access, whole, left.min(budget));
        let mapped = !access.write && self.memory != PeerMemory::Own && self.is_mapped(&entry);
        let moved = match self.memory {
            PeerMemory::Process(pid) if !mapped => self.attach(pid, access.write)?,
            _ => self.copy(access.write),
        };
        if moved == 0 { Err(Fault::BadKey) } else { Ok(moved) }
    }

    /// Whether all that the remote vector names is mapped here; then it names that.
    fn is_mapped(&mut self, entry: &Entry<'_>) -> bool {
        let id = entry.arena().load(Ordering::Relaxed);
        let descriptor = entry.descriptor().load(Ordering::Relaxed);
        let Ok(descriptor) = i32::try_from(descriptor) else { return false };
        if id == 0 {
            return false;
        }
        let mut find = |part: &libc::iovec| {
            let (address, bytes) = (part.iov_base.addr() as u64, part.iov_len as u64);
            self.views.find(self.process, id, descriptor, address, bytes)
        };
        if !self.scratch.remote.iter().all(|part| find(part).is_some()) {
            return false;
        }
        for part in &mut self.scratch.remote {
            if let Some(here) = find(part) {
                part.iov_base = here.cast();
            }
        }
        true
    }

    /// Finds the region's memory: returns its address if it is in one piece; otherwise its list is loaded.
    fn find_pieces(
        &mut self,
        entry: &Entry<'_>,
        key: RemoteKey,
        bytes: u64,
    ) -> Result<Option<u64>, Fault> {
        let address = entry.address().load(Ordering::Relaxed);
        let count = entry.pieces().load(Ordering::Relaxed);
        if count == PIECES_ONE {
            return Ok(Some(address));
        }
        if self.list.key == Some(key) {
            return Ok(None);
        }
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        if count > REGION_PIECES_MAX {
            return Err(Fault::Protocol);
        }
        self.list.key = None;
        self.list.pieces.clear();
        self.list.pieces.resize(count, [0; 2]);
        let list_bytes = (count * size_of::<Piece>()) as u64;
        let to = self.list.pieces.as_mut_ptr().expose_provenance() as u64;
        self.scratch.local.clear();
        self.scratch.local.push(vector(to, list_bytes));
        self.scratch.remote.clear();
        self.scratch.remote.push(vector(address, list_bytes));
        let read = match self.memory {
            PeerMemory::Process(pid) => self.attach(pid, false)?,
            PeerMemory::Own => self.copy(false),
        };
        self.list.starts.clear();
        let mut start = 0u64;
        for [_, len] in &self.list.pieces {
            self.list.starts.push(start);
            start = start.checked_add(*len).ok_or(Fault::Protocol)?;
        }
        if read != list_bytes || start != bytes {
            return Err(Fault::Protocol);
        }
        self.list.key = Some(key);
        Ok(None)
    }

    /// Fills the remote vector with the next bytes of the access, at most `budget` bytes.
    fn gather_remote(&mut self, access: &Access, whole: Option<u64>, budget: u64) {
        self.scratch.remote.clear();
        match &access.remote {
            RemoteLayout::At(offset) => self.push_range(whole, offset + access.done, budget),
            RemoteLayout::List(list) => {
                let mut left = budget;
                let mut within = access.within;
                for part in &list[access.segment..] {
                    let bytes = (part.len - within).min(left);
                    self.push_range(whole, part.offset + within, bytes);
                    within = 0;
                    left -= bytes;
                    if left == 0 || self.scratch.remote.len() >= VECTORS_MAX {
                        return;
                    }
                }
            }
        }
    }

    fn push_range(&mut self, whole: Option<u64>, mut offset: u64, mut bytes: u64) {
        let Self { scratch, list, .. } = self;
        if let Some(address) = whole {
            if bytes > 0 {
                scratch.remote.push(vector(address.wrapping_add(offset), bytes));
            }
            return;
        }
        // The last piece that begins at or before the offset.
        let mut index = list.starts.partition_point(|start| *start <= offset).saturating_sub(1);
        while bytes > 0 && scratch.remote.len() < VECTORS_MAX {
            let (Some([address, len]), Some(start)) =
                (list.pieces.get(index), list.starts.get(index))
            else {
                return;
            };
            let within = offset - start;
            let part = len.saturating_sub(within).min(bytes);
            if part > 0 {
                scratch.remote.push(vector(address.wrapping_add(within), part));
            }
            offset += part;
            bytes -= part;
            index += 1;
        }
    }

    fn attach(&mut self, pid: Pid, write: bool) -> Result<u64, Fault> {
        *self.system_calls += 2;
        if self.watched.is_some_and(is_readable) {
            return Err(Fault::PeerReset);
        }
        let (local, remote) = (&self.scratch.local, &self.scratch.remote);
        let call = if write { libc::process_vm_writev } else { libc::process_vm_readv };
        // SAFETY: the local vector names memory that the buffer table (or our list) keeps alive, for
        // reading or for writing as the direction asks; the remote one is the kernel's to check.
        let moved = unsafe {
            call(
                pid.as_raw_nonzero().get(),
                local.as_ptr(),
                local.len() as libc::c_ulong,
                remote.as_ptr(),
                remote.len() as libc::c_ulong,
                0,
            )
        };
        if moved >= 0 {
            return Ok(moved as u64);
        }
        Err(match std::io::Error::last_os_error().raw_os_error() {
            Some(libc::ESRCH) => Fault::PeerReset,
            Some(libc::EPERM) => Fault::NotPermitted,
            // The peer exposed memory that it had not mapped, or unmapped it: its key is worth nothing.
            _ => Fault::BadKey,
        })
    }

    /// The same between threads.
    fn copy(&mut self, write: bool) -> u64 {
        let (mut near, mut far) = (self.scratch.local.iter(), self.scratch.remote.iter());
        let (mut a, mut b) = (vector(0, 0), vector(0, 0));
        let mut moved = 0;
        loop {
            if a.iov_len == 0 {
                let Some(next) = near.next() else { return moved };
                a = *next;
            }
            if b.iov_len == 0 {
                let Some(next) = far.next() else { return moved };
                b = *next;
            }
            let bytes = a.iov_len.min(b.iov_len);
            let (from, to) = if write { (&a, &b) } else { (&b, &a) };
            // SAFETY: the near side is alive by the buffer table; the far side is mapped here by
            // `views`, or is a region of a rail of this process, which stays alive while it is announced
            // and was live after that (the guard). `copy` allows that both are the same memory.
            unsafe { std::ptr::copy(from.iov_base.cast::<u8>(), to.iov_base.cast(), bytes) };
            for vector in [&mut a, &mut b] {
                vector.iov_base = vector.iov_base.wrapping_byte_add(bytes);
                vector.iov_len -= bytes;
            }
            moved += bytes as u64;
        }
    }
}

impl Access {
    /// Whether all bytes were moved.
    pub fn is_done(&self) -> bool {
        self.done == self.local.len
    }
}

fn vector(address: u64, bytes: u64) -> libc::iovec {
    let base = std::ptr::with_exposed_provenance_mut(address as usize);
    libc::iovec { iov_base: base, iov_len: bytes as usize }
}

/// Whether a descriptor has something to say: of a process, that it ended.
pub fn is_readable(descriptor: &OwnedFd) -> bool {
    let mut set = [rustix::event::PollFd::new(descriptor, rustix::event::PollFlags::IN)];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut set, Some(&now)).is_ok_and(|count| count > 0)
}

/// Whether the number at `address` of the process `pid` can be read from here, and is `expected`.
pub fn probe(pid: Pid, address: u64, expected: u64) -> bool {
    let mut value = [0u8; 8];
    let read = read_process(pid, address, &mut value);
    read.is_ok_and(|read| read == 8) && u64::from_ne_bytes(value) == expected
}

/// Reads another process's memory by the bare system call, for references of measurements. How many
/// bytes were read; an error where the kernel does not let us, or nothing is there.
pub fn read_process(pid: Pid, address: u64, into: &mut [u8]) -> std::io::Result<usize> {
    let local = vector(into.as_mut_ptr().expose_provenance() as u64, into.len() as u64);
    let remote = vector(address, into.len() as u64);
    // SAFETY: the local vector names a slice that is borrowed for writing; the remote one is the
    // kernel's to check.
    let read = unsafe {
        libc::process_vm_readv(
            pid.as_raw_nonzero().get(),
            &raw const local,
            1,
            &raw const remote,
            1,
            0,
        )
    };
    usize::try_from(read).map_err(|_| std::io::Error::last_os_error())
}
