//! Arenas of a peer that are mapped here: what lies in them is copied without asking the kernel.
//!
//! Invariants: an arena is mapped for reading only, and only where it is sealed against shrinking, so that
//! no access can fault; what a peer says about it is checked against the arena's own first page, and a
//! peer that lies gets the slower way.

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
    /// Where it begins in the peer's memory.
    base: u64,
    bytes: u64,
}

impl Views {
    /// Where the peer's `bytes` bytes at `address` are mapped here, if they lie in the arena `id`, which
    /// its process has as `descriptor`.
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
