//! The exchange between two processes before a link is up.
//!
//! Each side proves three things to the other: that both see the same memory (a nonce written by one
//! is read by the other), that it is a process of the same user or of root (the kernel says so), and
//! that its memory can be reached by cross-memory attach. Where one fails there is no link, and the
//! layer above takes another rail.
//!
//! Invariants: nothing blocks; objects of a stranger are checked before they are mapped or written to; an attempt
//! ends within `MEETING_PATIENCE`.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::time::Time;
use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Uid};

use crate::link::{Parts, Presence};
use crate::local;
use crate::mapping::{Mapping, Sharing};
use crate::native::{self, PeerMemory};
use crate::random::random;
use crate::segment::{BOARD_BYTES, Board, SEGMENT_BYTES, Segment, Side};
use crate::socket::{self, Kind, Name, Note, Received};

/// The time limit for an exchange.
pub const MEETING_PATIENCE: Duration = Duration::from_secs(5);
/// When a connector tries again whose acceptor's queue was full.
pub const RETRY_AFTER: Duration = Duration::from_millis(1);

/// The data of a rail for all its meetings.
pub struct Host<'a> {
    pub board: &'a OwnedFd,
    pub asymmetric: bool,
    /// A number in this process's private memory, for the peer to read.
    pub probe: &'a u64,
}

impl Host<'_> {
    fn note(&self, kind: Kind, nonce: u64) -> Note {
        let probe_address = std::ptr::from_ref(self.probe).expose_provenance() as u64;
        let asymmetric = self.asymmetric;
        Note { kind, asymmetric, nonce, probe_address, probe: *self.probe }
    }
}

/// An attempt that is under way.
#[derive(Debug)]
pub struct Meeting {
    pub since: Time,
    pub stage: Stage,
}

impl Meeting {
    /// When it has to be looked at again although nothing happened.
    pub fn deadline(&self) -> Time {
        match &self.stage {
            Stage::Retry { at, .. } => *at,
            _ => self.since + MEETING_PATIENCE,
        }
    }
}

/// The event that a meeting waits for.
#[derive(Debug)]
pub enum Stage {
    /// Connector: room in the acceptor's queue, at this time.
    Retry { name: Name, at: Time },
    /// Connector: the acceptor's note.
    Welcome { socket: OwnedFd, segment: Segment, pid: Pid, own_bell: OwnedFd },
    /// Acceptor: the connector's first note.
    Hello { socket: OwnedFd, pid: Pid },
    /// Acceptor: the connector's second note.
    Confirm { socket: OwnedFd, found: Found, pid: Pid },
    /// Connector within one process: the answer to a letter.
    Letter { segment: Arc<Segment>, own_bell: Arc<OwnedFd> },
    /// The attempt failed and is to be reported.
    Failed,
}

/// The objects that an acceptor got from a connector.
#[derive(Debug)]
pub struct Found {
    segment: Segment,
    board: Board,
    bell: OwnedFd,
    own_bell: OwnedFd,
    process: Option<OwnedFd>,
    asymmetric: bool,
}

/// The result of a step of a meeting.
pub enum Outcome {
    /// It waits.
    Waits(Stage),
    /// Both are content.
    Up(Box<Parts>),
    /// It ended.
    Failed(Fault),
}

/// Begins to connect to `name`.
pub fn connect(name: Name, host: &Host<'_>, now: Time) -> Outcome {
    let socket = match socket::connect(&name) {
        Ok(socket) => socket,
        Err(Errno::AGAIN) => return Outcome::Waits(Stage::Retry { name, at: now + RETRY_AFTER }),
        Err(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => return Outcome::Failed(Fault::Busy),
        Err(_) => return Outcome::Failed(Fault::Unreachable),
    };
    // A name is free for everyone to take, so the kernel has to say who took it.
    let Some((pid, user)) = socket::peer_of(&socket) else {
        return Outcome::Failed(Fault::NotPermitted);
    };
    if user != name.user && user != Uid::ROOT {
        return Outcome::Failed(Fault::NotPermitted);
    }
    let mapping = Mapping::create(SEGMENT_BYTES, Sharing::ReadWrite);
    let (Ok((mapping, memory)), Ok(own_bell)) = (mapping, local::bell()) else {
        return Outcome::Failed(Fault::Busy);
    };
    let segment = Segment(mapping);
    let nonce = random();
    segment.nonce().store(nonce, Ordering::Release);
    let descriptors = [memory.as_fd(), host.board.as_fd(), own_bell.as_fd()];
    if socket::send(&socket, &host.note(Kind::Hello, nonce), &descriptors).is_err() {
        return Outcome::Failed(Fault::Unreachable);
    }
    Outcome::Waits(Stage::Welcome { socket, segment, pid, own_bell })
}

/// Looks at who connected; `None` for those with whom nothing is shared.
pub fn accept(socket: OwnedFd) -> Option<Stage> {
    let (pid, user) = socket::peer_of(&socket)?;
    let welcome = user == rustix::process::geteuid() || user == Uid::ROOT;
    welcome.then_some(Stage::Hello { socket, pid })
}

/// Something lies in the socket of a meeting.
pub fn proceed(stage: Stage, host: &Host<'_>) -> Outcome {
    match stage {
        Stage::Hello { socket, pid } => match socket::receive(&socket) {
            Received::Nothing => Outcome::Waits(Stage::Hello { socket, pid }),
            Received::Note(note, descriptors) if note.kind == Kind::Hello => {
                answer(socket, pid, &note, descriptors, host)
            }
            _ => Outcome::Failed(Fault::Protocol),
        },
        Stage::Welcome { socket, segment, pid, own_bell } => match socket::receive(&socket) {
            Received::Nothing => Outcome::Waits(Stage::Welcome { socket, segment, pid, own_bell }),
            Received::Note(note, descriptors) if note.kind == Kind::Welcome => {
                confirm((socket, segment, own_bell), pid, &note, descriptors, host)
            }
            Received::Note(note, _) if note.kind == Kind::Refuse => {
                Outcome::Failed(Fault::NotPermitted)
            }
            Received::Note(..) => Outcome::Failed(Fault::Protocol),
            Received::Broken => Outcome::Failed(Fault::Unreachable),
        },
        Stage::Confirm { socket, found, pid } => match socket::receive(&socket) {
            Received::Nothing => Outcome::Waits(Stage::Confirm { socket, found, pid }),
            Received::Note(note, _) if note.kind == Kind::Confirm => {
                let asymmetric = host.asymmetric && found.asymmetric;
                Outcome::Up(parts(socket, found, pid, Side(1), asymmetric))
            }
            _ => Outcome::Failed(Fault::Protocol),
        },
        other => Outcome::Waits(other),
    }
}

/// The acceptor's part: checks the connector's note, and sends its own.
fn answer(
    socket: OwnedFd,
    pid: Pid,
    note: &Note,
    descriptors: Vec<OwnedFd>,
    host: &Host<'_>,
) -> Outcome {
    let Ok([memory, board, bell]) = <[OwnedFd; 3]>::try_from(descriptors) else {
        return Outcome::Failed(Fault::Protocol);
    };
    let segment = Mapping::receive(&memory, SEGMENT_BYTES, Sharing::ReadWrite).map(Segment);
    let board = Mapping::receive(&board, BOARD_BYTES, Sharing::ReadOnly).map(Board);
    let (Some(segment), Some(board), true) = (segment, board, is_bell(&bell)) else {
        return Outcome::Failed(Fault::Protocol);
    };
    let process = watch(pid);
    let shared = segment.nonce().load(Ordering::Acquire) == note.nonce;
    if !shared || !native::probe(pid, note.probe_address, note.probe) {
        let _ = socket::send(&socket, &host.note(Kind::Refuse, 0), &[]);
        return Outcome::Failed(Fault::NotPermitted);
    }
    let Ok(own_bell) = local::bell() else { return Outcome::Failed(Fault::Busy) };
    let nonce = random();
    segment.answer().store(nonce, Ordering::Release);
    let descriptors = [host.board.as_fd(), own_bell.as_fd()];
    if socket::send(&socket, &host.note(Kind::Welcome, nonce), &descriptors).is_err() {
        return Outcome::Failed(Fault::Unreachable);
    }
    let asymmetric = note.asymmetric;
    let found = Found { segment, board, bell, own_bell, process, asymmetric };
    Outcome::Waits(Stage::Confirm { socket, found, pid })
}

/// The connector's second part.
fn confirm(
    (socket, segment, own_bell): (OwnedFd, Segment, OwnedFd),
    pid: Pid,
    note: &Note,
    descriptors: Vec<OwnedFd>,
    host: &Host<'_>,
) -> Outcome {
    let Ok([board, bell]) = <[OwnedFd; 2]>::try_from(descriptors) else {
        return Outcome::Failed(Fault::Protocol);
    };
    let board = Mapping::receive(&board, BOARD_BYTES, Sharing::ReadOnly).map(Board);
    let (Some(board), true) = (board, is_bell(&bell)) else {
        return Outcome::Failed(Fault::Protocol);
    };
    let process = watch(pid);
    let shared = segment.answer().load(Ordering::Acquire) == note.nonce;
    if !shared || !native::probe(pid, note.probe_address, note.probe) {
        return Outcome::Failed(Fault::NotPermitted);
    }
    if socket::send(&socket, &host.note(Kind::Confirm, 0), &[]).is_err() {
        return Outcome::Failed(Fault::Unreachable);
    }
    let asymmetric = note.asymmetric;
    let found = Found { segment, board, bell, own_bell, process, asymmetric };
    let asymmetric = host.asymmetric && found.asymmetric;
    Outcome::Up(parts(socket, found, pid, Side(0), asymmetric))
}

/// Watches a process, where the kernel lets us. To be called before the probe: a process that lives
/// after it is the one that was probed.
fn watch(pid: Pid) -> Option<OwnedFd> {
    rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok()
}

fn parts(socket: OwnedFd, found: Found, pid: Pid, side: Side, asymmetric: bool) -> Box<Parts> {
    Box::new(Parts {
        segment: Arc::new(found.segment),
        side,
        board: Arc::new(found.board),
        bell: Arc::new(found.bell),
        own_bell: Arc::new(found.own_bell),
        asymmetric,
        memory: PeerMemory::Process(pid),
        presence: Presence::Socket { socket, process: found.process },
    })
}

/// Whether a descriptor is such that writing a number to it cannot block: no file, pipe or socket,
/// and non-blocking.
fn is_bell(bell: &OwnedFd) -> bool {
    let kind = rustix::fs::fstat(bell).map(|stat| FileType::from_raw_mode(stat.st_mode));
    let flags = rustix::fs::fcntl_getfl(bell);
    let anonymous = kind.is_ok_and(|kind| kind == FileType::Unknown);
    anonymous && flags.is_ok_and(|flags| flags.contains(OFlags::NONBLOCK | OFlags::RDWR))
}
