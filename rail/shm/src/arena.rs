//! Memory for messages that peers on this host can map: they copy data in it without asking the kernel.
//!
//! An arena is sealed memory behind a descriptor; a peer that may reach our memory at all takes a copy of
//! the descriptor and maps the arena for reading. Allocations are page-aligned parts of an arena, kept by
//! size for the next caller, since populating fresh pages costs more than copying them.
//!
//! Invariants: an arena stays mapped while a part of it is allocated; arenas do not overlap; one that is
//! wholly free is given up when more than [`IDLE_BYTES_MAX`] bytes are, or when its users say so.

use std::collections::{BTreeMap, HashMap};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use crate::mapping::{Mapping, Sharing};
use crate::random::random;

/// Allocations are a multiple of this.
const PAGE_BYTES: usize = 4096;
/// The smallest arena; a longer allocation gets one of its own.
const ARENA_BYTES: usize = 32 << 20;
/// Free memory that is kept, beyond the arenas that are in use in part.
const IDLE_BYTES_MAX: usize = 256 << 20;

/// Offsets in an arena's first page, which is for processes that map it: the arena's number, and its first address
/// in the process that made it.
pub(crate) const HEADER_ID: usize = 0;
pub(crate) const HEADER_BASE: usize = 8;

/// The arena of an allocation, as peers need to know it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Whereabouts {
    /// A number that no other arena of this process has or had; never 0.
    pub id: u64,
    /// Of this process.
    pub descriptor: RawFd,
}

#[derive(Debug)]
struct Arena {
    id: u64,
    memory: OwnedFd,
    _mapping: Mapping,
    bytes: usize,
    /// Bytes that were handed out for the first time.
    begun: usize,
    /// Bytes that are allocated.
    used: usize,
}

#[derive(Debug, Default)]
struct Arenas {
    /// By their first addresses.
    by_base: BTreeMap<usize, Arena>,
    /// Free parts by their lengths.
    free: HashMap<usize, Vec<usize>>,
}

static ARENAS: RwLock<Option<Arenas>> = RwLock::new(None);
/// The number of arenas; a process without any need not look.
static COUNT: AtomicUsize = AtomicUsize::new(0);

fn read() -> RwLockReadGuard<'static, Option<Arenas>> {
    ARENAS.read().unwrap_or_else(PoisonError::into_inner)
}

fn write() -> RwLockWriteGuard<'static, Option<Arenas>> {
    ARENAS.write().unwrap_or_else(PoisonError::into_inner)
}

fn rounded(bytes: usize) -> Option<usize> {
    bytes.max(1).checked_next_multiple_of(PAGE_BYTES)
}

/// Memory of at least `bytes` bytes, page-aligned, initialised with anything; `None` where there is none.
pub fn allocate(bytes: usize) -> Option<NonNull<u8>> {
    let bytes = rounded(bytes)?;
    write().get_or_insert_default().allocate(bytes)
}

/// Gives memory of [`allocate`] back. False where it is none.
///
/// # Safety
/// Nobody uses the memory any more, and it was allocated with this length.
pub unsafe fn free(address: NonNull<u8>, bytes: usize) -> bool {
    let Some(bytes) = rounded(bytes) else { return false };
    write().as_mut().is_some_and(|arenas| arenas.free(address.as_ptr().addr(), bytes))
}

/// Gives up all arenas of which nothing is allocated: nobody will allocate for long.
pub fn give_up_idle() {
    if let Some(arenas) = write().as_mut() {
        let idle = arenas.by_base.iter().filter(|(_, arena)| arena.used == 0);
        let idle: Vec<usize> = idle.map(|(base, _)| *base).collect();
        idle.into_iter().for_each(|base| arenas.give_up(base));
    }
}

/// The arena in which all these bytes lie.
pub fn find(address: u64, bytes: u64) -> Option<Whereabouts> {
    if COUNT.load(Ordering::Relaxed) == 0 {
        return None;
    }
    let address = usize::try_from(address).ok()?;
    let arenas = read();
    let (base, arena) = arenas.as_ref()?.by_base.range(..=address).next_back()?;
    let end = (address - base).checked_add(usize::try_from(bytes).ok()?)?;
    let descriptor = arena.memory.as_raw_fd();
    (end <= arena.bytes).then_some(Whereabouts { id: arena.id, descriptor })
}

impl Arenas {
    fn allocate(&mut self, bytes: usize) -> Option<NonNull<u8>> {
        if let Some(address) = self.free.get_mut(&bytes).and_then(Vec::pop) {
            if let Some((_, arena)) = self.by_base.range_mut(..=address).next_back() {
                arena.used += bytes;
            }
            return NonNull::new(std::ptr::with_exposed_provenance_mut(address));
        }
        let roomy = self.by_base.iter_mut().find(|(_, arena)| arena.bytes - arena.begun >= bytes);
        let (base, arena) = match roomy {
            Some((base, arena)) => (*base, arena),
            None => {
                let size = bytes.checked_add(PAGE_BYTES)?.max(ARENA_BYTES);
                let (mapping, memory) = Mapping::create(size, Sharing::ReadOnly).ok()?;
                let base = mapping.at(0).expose_provenance();
                let id = random() | 1;
                mapping.u64(HEADER_ID).store(id, Ordering::Relaxed);
                mapping.u64(HEADER_BASE).store(base as u64, Ordering::Relaxed);
                let begun = PAGE_BYTES;
                let arena = Arena { id, memory, _mapping: mapping, bytes: size, begun, used: 0 };
                COUNT.fetch_add(1, Ordering::Relaxed);
                (base, self.by_base.entry(base).or_insert(arena))
            }
        };
        let address = base + arena.begun;
        arena.begun += bytes;
        arena.used += bytes;
        NonNull::new(std::ptr::with_exposed_provenance_mut(address))
    }

    fn free(&mut self, address: usize, bytes: usize) -> bool {
        let Some((base, arena)) = self.by_base.range_mut(..=address).next_back() else {
            return false;
        };
        if address - base + bytes > arena.begun || arena.used < bytes {
            return false;
        }
        arena.used -= bytes;
        let (base, wholly_free) = (*base, arena.used == 0);
        self.free.entry(bytes).or_default().push(address);
        if wholly_free && self.idle_bytes() > IDLE_BYTES_MAX {
            self.give_up(base);
        }
        true
    }

    /// Bytes of arenas of which nothing is allocated.
    fn idle_bytes(&self) -> usize {
        let idle = self.by_base.values().filter(|arena| arena.used == 0);
        idle.map(|arena| arena.bytes).sum()
    }

    fn give_up(&mut self, base: usize) {
        if let Some(arena) = self.by_base.remove(&base) {
            let inside = base..base + arena.bytes;
            self.free.values_mut().for_each(|list| list.retain(|it| !inside.contains(it)));
            self.free.retain(|_, list| !list.is_empty());
            COUNT.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_apart_aligned_found_and_used_again() {
        let (a, b) = (allocate(10).unwrap(), allocate(100_000).unwrap());
        assert!(a.as_ptr().addr().is_multiple_of(PAGE_BYTES) && a != b);
        // SAFETY: it has as many bytes and is ours.
        unsafe { b.as_ptr().write_bytes(7, 100_000) };
        let at = |address: NonNull<u8>| address.as_ptr().addr() as u64;
        let found = find(at(b), 100_000).unwrap();
        assert_eq!(find(at(a), 10).unwrap().id, found.id);
        assert_eq!(find(at(b), 1 << 40), None);
        let local = 5u64;
        assert_eq!(find((&raw const local).addr() as u64, 8), None);
        // SAFETY: nobody uses it.
        assert!(unsafe { free(b, 100_000) });
        assert_eq!(allocate(99_999), Some(b), "the same pages");
        // SAFETY: nobody uses them, and strangers are refused.
        unsafe {
            assert!(free(a, 10) && free(b, 99_999));
            assert!(!free(NonNull::from(&local).cast(), 8));
        }
    }

    #[test]
    fn long_ones_have_arenas_of_their_own_which_go_when_much_is_free() {
        let long: Vec<NonNull<u8>> = (0..6).map(|_| allocate(64 << 20).unwrap()).collect();
        let id = find(long[0].as_ptr().addr() as u64, 1).unwrap().id;
        assert_ne!(find(long[1].as_ptr().addr() as u64, 1).unwrap().id, id);
        for address in &long {
            // SAFETY: nobody uses it.
            assert!(unsafe { free(*address, 64 << 20) });
        }
        let left = long.iter().filter(|it| find(it.as_ptr().addr() as u64, 1).is_some()).count();
        assert!((1..6).contains(&left), "{left} are kept");
    }
}
