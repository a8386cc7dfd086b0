//! The accessing side: it checks the peer's table, and copies.
//!
//! Invariant: all values that the origin reads from the table are checked, or handed to the kernel, which checks
//! them.

use std::os::fd::OwnedFd;
use std::sync::atomic::{Ordering, fence};

use ropewalk_base::error::Fault;
use ropewalk_base::memory::BufferTable;
use ropewalk_base::verb::{RemoteKey, RemoteLayout};
use rustix::process::Pid;

use crate::native::access::Access;
use crate::native::{PIECE_BYTES, PeerMemory, Piece, REGION_PIECES_MAX, is_readable, vector};
use crate::segment::{EXPOSURES_MAX, Entry, PIECES_ONE, Segment, Side};
use crate::views::Views;

/// Most vector elements that the kernel takes in a call, on either side.
const VECTORS_MAX: usize = 1024;

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
        if slot.generation == 0 {
            return Err(Fault::BadKey);
        }
        if slot.index >= EXPOSURES_MAX {
            // The peer's table has no place for it.
            return Err(Fault::NotPermitted);
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
            RemoteLayout::Strided(_) => unreachable!("no consistent access"),
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
