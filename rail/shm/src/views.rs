//! Arenas of a peer that are mapped here: data in them is copied without asking the kernel.
//!
//! Invariants: an arena is mapped for reading only, and only if it is sealed against shrinking, so that no access
//! can fault; a peer's statements about it are checked against the arena's own first page, and a peer that lies gets
//! the slower way.

use std::os::fd::{OwnedFd, RawFd};
use std::sync::atomic::Ordering;

use rustix::process::PidfdGetfdFlags;

use crate::arena::{HEADER_BASE, HEADER_ID};
use crate::mapping::{Mapping, Sharing};

/// Arenas of one peer that are mapped at a time.
const VIEWS_MAX: usize = 32;

/// The arenas of one peer, the one used last at the end.
#[derive(Debug, Default)]
pub struct Views {
    known: Vec<View>,
}

#[derive(Debug)]
struct View {
    id: u64,
    /// `None`: it cannot be mapped.
    mapped: Option<Mapped>,
}

#[derive(Debug)]
struct Mapped {
    mapping: Mapping,
    /// Its first address in the peer's memory.
    base: u64,
    bytes: u64,
}

impl Views {
    /// The local address at which the peer's `bytes` bytes at `address` are mapped, if they lie in the arena `id`.
    /// The peer's process has the arena as `descriptor`.
    pub fn find(
        &mut self,
        process: Option<&OwnedFd>,
        id: u64,
        descriptor: RawFd,
        address: u64,
        bytes: u64,
    ) -> Option<*mut u8> {
        let last = self.known.len().wrapping_sub(1);
        match self.known.iter().rposition(|view| view.id == id) {
            Some(index) if index == last => {}
            Some(index) => self.known.swap(index, last),
            None => {
                if self.known.len() == VIEWS_MAX {
                    self.known.remove(0);
                }
                let mapped = process.and_then(|process| Mapped::open(process, id, descriptor));
                self.known.push(View { id, mapped });
            }
        }
        let mapped = self.known.last()?.mapped.as_ref()?;
        let offset = address.checked_sub(mapped.base)?;
        let end = offset.checked_add(bytes)?;
        (end <= mapped.bytes).then(|| mapped.mapping.at(offset as usize))
    }
}

impl Mapped {
    fn open(process: &OwnedFd, id: u64, descriptor: RawFd) -> Option<Mapped> {
        if descriptor < 0 {
            return None;
        }
        let flags = PidfdGetfdFlags::empty();
        let memory = rustix::process::pidfd_getfd(process, descriptor, flags).ok()?;
        let size = rustix::fs::fstat(&memory).ok()?.st_size;
        let bytes = usize::try_from(size).ok().filter(|bytes| *bytes >= HEADER_BASE + 8)?;
        let mapping = Mapping::receive(&memory, bytes, Sharing::ReadOnly)?;
        let said = mapping.u64(HEADER_ID).load(Ordering::Relaxed);
        let base = mapping.u64(HEADER_BASE).load(Ordering::Relaxed);
        (said == id).then_some(Mapped { mapping, base, bytes: bytes as u64 })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;

    use rustix::fs::MemfdFlags;
    use rustix::process::PidfdFlags;

    use super::*;
    use crate::arena;

    #[test]
    fn only_an_arena_that_is_what_the_peer_says_is_mapped() {
        let own = rustix::process::getpid();
        let process = rustix::process::pidfd_open(own, PidfdFlags::empty()).unwrap();
        let there = arena::allocate(10_000).unwrap().as_ptr();
        // SAFETY: it has as many bytes and is ours.
        unsafe { there.write_bytes(9, 10_000) };
        let address = there.addr() as u64;
        let arena = arena::find(address, 10_000).unwrap();
        let mut views = Views::default();
        let mut find = |id, descriptor, address, bytes| {
            views.find(Some(&process), id, descriptor, address, bytes)
        };
        let here = find(arena.id, arena.descriptor, address, 10_000).unwrap();
        assert_ne!(here, there, "another map of the same memory");
        // SAFETY: it is mapped for as long as `views` lives.
        assert_eq!(unsafe { here.add(9999).read() }, 9);
        // Outside of it, however far.
        for (address, bytes) in [(address, 1 << 40), (0, 8), (u64::MAX, 8), (address, u64::MAX)] {
            assert_eq!(find(arena.id, arena.descriptor, address, bytes), None);
        }
        // Another number, no descriptor, one of something else, memory that could shrink.
        assert_eq!(find(arena.id ^ 2, arena.descriptor, address, 8), None);
        assert_eq!(find(77, -1, address, 8), None);
        assert_eq!(find(78, process.as_raw_fd(), address, 8), None);
        let bare = rustix::fs::memfd_create("bare", MemfdFlags::ALLOW_SEALING).unwrap();
        rustix::fs::ftruncate(&bare, 8192).unwrap();
        assert_eq!(find(79, bare.as_raw_fd(), 0, 8), None);
        assert_eq!(Views::default().find(None, arena.id, arena.descriptor, address, 8), None);
    }
}
