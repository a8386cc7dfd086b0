//! The meeting of two rails of one process: a registry of names, and letters between rails.
//!
//! Letters play the part that sockets play between processes: they begin links and tell of their
//! end. Everything else is the same code and the same memory layout.
//!
//! Invariants: a lock is held for a push or a swap only, and never two at once; a rail that is gone takes no
//! letters, so that the sender learns of its end.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ropewalk_base::slots::SlotId;
use rustix::event::EventfdFlags;
use rustix::io::Errno;

use crate::segment::{Board, Segment};

/// A message from one rail to another of the same process.
#[derive(Debug)]
pub enum Letter {
    /// A new link: its memory, and its connector's link, inbox and bell.
    Connect { segment: Arc<Segment>, from: Peer },
    /// The answer to `Connect`, for the connector's link `link`.
    Accepted { link: SlotId, from: Peer },
    /// The other side of `link` has left.
    Gone { link: SlotId },
}

/// A link of a rail, as its peer needs it.
#[derive(Debug, Clone)]
pub struct Peer {
    pub link: SlotId,
    pub inbox: Arc<Inbox>,
    /// The bell to ring for frames of the link.
    pub bell: Arc<OwnedFd>,
}

/// The place where a rail receives its letters.
#[derive(Debug)]
pub struct Inbox {
    /// The bell to ring for letters: the rail's own.
    pub bell: Arc<OwnedFd>,
    /// The board from which peers see whether the rail sleeps.
    pub board: Arc<Board>,
    /// Whether there are letters; looked at without the lock.
    filled: AtomicBool,
    /// `None` after the rail's end.
    letters: Mutex<Option<Vec<Letter>>>,
}

impl Inbox {
    /// An empty inbox.
    pub fn new(bell: Arc<OwnedFd>, board: Arc<Board>) -> Inbox {
        let letters = Mutex::new(Some(Vec::new()));
        Inbox { bell, board, filled: AtomicBool::new(false), letters }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<Letter>>> {
        // A push or a swap cannot leave the list half-changed, whatever happened to its thread.
        self.letters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a letter in and rings. False where the rail is gone.
    pub fn post(&self, letter: Letter) -> bool {
        match &mut *self.lock() {
            Some(letters) => letters.push(letter),
            None => return false,
        }
        self.filled.store(true, Ordering::Release);
        ring(&self.bell);
        true
    }

    /// Whether there is anything.
    #[inline]
    pub fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Acquire)
    }

    /// Takes all letters out.
    pub fn take(&self) -> Vec<Letter> {
        self.filled.store(false, Ordering::Relaxed);
        self.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The rail ends: takes the remaining letters and accepts nothing more.
    pub fn close(&self) -> Vec<Letter> {
        self.lock().take().unwrap_or_default()
    }
}

/// A bell that nobody has rung. It is never silenced: a waiting thread looks for another ring.
pub fn bell() -> Result<OwnedFd, Errno> {
    rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
}

/// Rings a bell. A counter that is full is as good as rung, so errors do not matter.
pub fn ring(bell: &OwnedFd) {
    let _ = rustix::io::write(bell, &1u64.to_ne_bytes());
}

static NAMES: Mutex<BTreeMap<String, Arc<Inbox>>> = Mutex::new(BTreeMap::new());

fn names() -> MutexGuard<'static, BTreeMap<String, Arc<Inbox>>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes `inbox` reachable as `name`; false where the name is taken.
pub fn register(name: &str, inbox: &Arc<Inbox>) -> bool {
    let mut names = names();
    if names.contains_key(name) {
        return false;
    }
    names.insert(name.to_string(), Arc::clone(inbox));
    true
}

/// Frees a name.
pub fn unregister(name: &str) {
    names().remove(name);
}

/// The inbox behind `name`.
pub fn find(name: &str) -> Option<Arc<Inbox>> {
    names().get(name).cloned()
}
