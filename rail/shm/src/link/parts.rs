//! The parts that two sides agree on before their link is up.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::barrier;
use crate::local::Peer;
use crate::native::PeerMemory;
use crate::segment::{Board, Segment, Side};

/// The means by which a side learns the end of its peer, and tells its own.
#[derive(Debug)]
pub enum Presence {
    /// By the socket between two processes, and the peer's process where the kernel lets us watch it
    /// (a child of the peer may hold its end of the socket open).
    Socket { socket: OwnedFd, process: Option<OwnedFd> },
    /// By letters within one process.
    Local(Peer),
}

impl Presence {
    /// The descriptor that becomes readable once the peer has ended.
    pub(super) fn watched(&self) -> Option<&OwnedFd> {
        match self {
            Presence::Socket { socket, process } => Some(process.as_ref().unwrap_or(socket)),
            Presence::Local(_) => None,
        }
    }

    /// The peer's process, where it is another one that the kernel lets us watch.
    pub(super) fn process(&self) -> Option<&OwnedFd> {
        match self {
            Presence::Socket { process, .. } => process.as_ref(),
            Presence::Local(_) => None,
        }
    }
}

/// The parts of a link.
pub struct Parts {
    pub segment: Arc<Segment>,
    pub side: Side,
    pub board: Arc<Board>,
    /// Rings at the peer.
    pub bell: Arc<OwnedFd>,
    /// Rings here.
    pub own_bell: Arc<OwnedFd>,
    /// Both sides registered for the asymmetric barrier.
    pub asymmetric: bool,
    pub memory: PeerMemory,
    pub presence: Presence,
}

impl Parts {
    /// Between the publication of work and a look at whether the peer sleeps.
    #[inline]
    pub(super) fn barrier(&self) {
        // The flag is read after everything was published: see `barrier`.
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        barrier::light(self.asymmetric && self.board.fenced().load(Ordering::Relaxed) == 0);
    }
}
