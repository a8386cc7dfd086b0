//! Memory of one-sided windows, which processes of this host map to load and store it by themselves.
//!
//! Its owner keeps a descriptor of sealed memory until all peers have mapped it, and tells them by a [`Offer::card`] where it is:
//! the process, the descriptor there, and a secret that lies in front of the bytes. A peer takes a copy of the descriptor, which
//! the kernel allows as it allows attaching to the process: to the same user, or to root.
//!
//! Invariants: memory is mapped only if it is ordinary memory, sealed against shrinking and as long as expected, so that no
//! access can fault, and only if it has the secret, so that no card of a stranger leads to memory that was not offered. It
//! stays mapped as long as cells of it live, whatever becomes of its owner.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::ptr::NonNull;
use std::sync::LazyLock;
use std::sync::atomic::Ordering;

use ropewalk_base::memory::{Cells, LockWords};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags};

use crate::mapping::{Mapping, Sharing};
use crate::random::random;

/// The secret and the lock of those who update elements lie in front of the bytes, in pages of their own: the bytes begin at a
/// page's boundary.
const HEADER_BYTES: usize = 16 * 1024;
const LOCK_AT: usize = 64;
const PAGE_BYTES: usize = 4096;

const _: () = assert!(LOCK_AT + size_of::<LockWords>() <= HEADER_BYTES);
/// Bytes of a card: process and descriptor of 4 bytes each, and the secret.
pub const CARD_BYTES: usize = 24;
/// What the kernel calls file systems of ordinary memory. Others have pages that it may fail to find.
const ORDINARY: i64 = 0x0102_1994;

/// Memory that peers may map as long as this lives.
#[derive(Debug)]
pub struct Offer {
    memory: OwnedFd,
    secret: [u64; 2],
}

/// So many bytes, zeroed, and the offer to map them; `None` where there is no such memory.
pub fn allocate(bytes: usize) -> Option<(Cells, Offer)> {
    if *IS_STRICT {
        return None;
    }
    let (mapping, memory) = Mapping::create(whole(bytes)?, Sharing::ReadWrite).ok()?;
    let secret = [random(), random()];
    for (at, word) in secret.iter().enumerate() {
        mapping.u64(8 * at).store(*word, Ordering::Relaxed);
    }
    Some((cells(mapping, bytes), Offer { memory, secret }))
}

impl Offer {
    /// What a peer needs to know.
    pub fn card(&self) -> [u8; CARD_BYTES] {
        let mut card = [0; CARD_BYTES];
        let pid = rustix::process::getpid().as_raw_nonzero().get();
        card[..4].copy_from_slice(&pid.to_le_bytes());
        card[4..8].copy_from_slice(&self.memory.as_raw_fd().to_le_bytes());
        card[8..16].copy_from_slice(&self.secret[0].to_le_bytes());
        card[16..].copy_from_slice(&self.secret[1].to_le_bytes());
        card
    }
}

/// Maps memory of a peer, of so many bytes. `None`: the card is none, or does not lead to such memory, or this process may not
/// reach it.
pub fn map(card: &[u8; CARD_BYTES], bytes: usize) -> Option<Cells> {
    let (pid, rest) = card.split_first_chunk()?;
    let (descriptor, rest) = rest.split_first_chunk()?;
    let (words, _) = rest.as_chunks::<8>();
    let (pid, descriptor) = (i32::from_le_bytes(*pid), RawFd::from_le_bytes(*descriptor));
    if pid <= 0 || descriptor < 0 {
        return None;
    }
    let process = rustix::process::pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    let flags = PidfdGetfdFlags::empty();
    let memory = rustix::process::pidfd_getfd(&process, descriptor, flags).ok()?;
    if rustix::fs::fstatfs(&memory).ok()?.f_type != ORDINARY {
        return None;
    }
    let mapping = Mapping::receive(&memory, whole(bytes)?, Sharing::ReadWrite)?;
    for (at, word) in words.iter().enumerate() {
        if mapping.u64(8 * at).load(Ordering::Relaxed) != u64::from_le_bytes(*word) {
            return None;
        }
    }
    Some(cells(mapping, bytes))
}

/// The kernel promises no more memory than it has: then it may find none for a page of ours, which it promises at its first
/// use only.
static IS_STRICT: LazyLock<bool> = LazyLock::new(|| {
    let mode = std::fs::read("/proc/sys/vm/overcommit_memory");
    mode.is_ok_and(|mode| mode.first() == Some(&b'2'))
});

fn whole(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(PAGE_BYTES)?.checked_add(HEADER_BYTES)
}

fn cells(mapping: Mapping, bytes: usize) -> Cells {
    let at = |offset| NonNull::new(mapping.at(offset)).expect("it is mapped");
    let (address, lock) = (at(HEADER_BYTES), at(LOCK_AT).cast::<LockWords>());
    // SAFETY: the mapping has as many bytes behind its header, may be written, and lives as long as the cells; references are
    // made to the words of the header only, all of which are atomics. The lock lies inside of the header, at a multiple of its
    // alignment.
    unsafe { Cells::kept_with_lock(address, bytes, lock, mapping) }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, SealFlags};

    use super::*;

    fn card(memory: &OwnedFd) -> [u8; CARD_BYTES] {
        let copy = rustix::io::fcntl_dupfd_cloexec(memory, 0).unwrap();
        let offer = Offer { memory: copy, secret: [0; 2] };
        let card = offer.card();
        // Its descriptor stays open in this process.
        std::mem::forget(offer);
        card
    }

    #[test]
    fn what_is_offered_is_mapped_and_stays_when_the_owner_has_gone() {
        let (own, offer) = allocate(10_001).expect("there is memory");
        let other = map(&offer.card(), 10_001).expect("it is ours");
        assert_ne!(own.address(), other.address(), "another map of the same memory");
        assert_eq!(own.address().addr() % 4096, 0);
        own.store::<u8>(10_000, 7);
        other.store::<u64>(16, 9);
        assert_eq!((other.load::<u8>(10_000), own.load::<u64>(16)), (Some(7), Some(9)));
        assert_eq!(other.load::<u8>(10_001), None);
        let card = offer.card();
        drop((offer, own));
        assert_eq!(other.load::<u8>(10_000), Some(7));
        assert!(map(&card, 10_001).is_none(), "nobody maps it any more");
        let (empty, offer) = allocate(0).expect("there is memory");
        assert!(empty.is_empty() && map(&offer.card(), 0).is_some());
        assert!(allocate(usize::MAX).is_none() && allocate(1 << 60).is_none());
    }

    #[test]
    fn a_card_that_is_wrong_in_any_part_leads_nowhere() {
        let (_own, offer) = allocate(5000).expect("there is memory");
        assert!(map(&offer.card(), 5000).is_some());
        for bytes in [0, 4096, 8193, usize::MAX] {
            assert!(map(&offer.card(), bytes).is_none(), "{bytes} bytes");
        }
        for bit in 0..8 * CARD_BYTES {
            let mut card = offer.card();
            card[bit / 8] ^= 1 << (bit % 8);
            assert!(map(&card, 5000).is_none(), "bit {bit}");
        }
        assert!(map(&[0; CARD_BYTES], 5000).is_none());
        assert!(map(&[0xff; CARD_BYTES], 5000).is_none());
    }

    #[test]
    fn memory_that_could_fault_or_is_read_only_is_not_mapped() {
        let memory = |flags, seals: SealFlags| {
            let memory =
                rustix::fs::memfd_create("test", flags | MemfdFlags::ALLOW_SEALING).ok()?;
            rustix::fs::ftruncate(&memory, (HEADER_BYTES + PAGE_BYTES) as u64).ok()?;
            rustix::fs::fcntl_add_seals(&memory, seals).ok()?;
            Some(card(&memory))
        };
        let whole = memory(MemfdFlags::empty(), SealFlags::SHRINK).expect("there is memory");
        assert!(map(&whole, 4096).is_some(), "all zeros is a secret, too");
        let bare = memory(MemfdFlags::empty(), SealFlags::empty()).expect("there is memory");
        assert!(map(&bare, 4096).is_none(), "it could shrink");
        let fixed = SealFlags::SHRINK | SealFlags::WRITE;
        let fixed = memory(MemfdFlags::empty(), fixed).expect("there is memory");
        assert!(map(&fixed, 4096).is_none(), "it may not be written");
        if let Ok(huge) =
            rustix::fs::memfd_create("huge", MemfdFlags::HUGETLB | MemfdFlags::ALLOW_SEALING)
        {
            // No page of it is there, and none may ever be.
            let _ = rustix::fs::ftruncate(&huge, 2 << 20);
            let _ = rustix::fs::fcntl_add_seals(&huge, SealFlags::SHRINK);
            assert!(map(&card(&huge), (2 << 20) - HEADER_BYTES).is_none());
        }
        let file = std::fs::File::open("/proc/self/exe").expect("a program has a file");
        assert!(map(&card(&file.into()), 4096).is_none());
        let (pipe, _) = rustix::pipe::pipe().expect("there is a pipe");
        assert!(map(&card(&pipe), 4096).is_none());
    }
}
