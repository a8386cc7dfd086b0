//! The hand-over of a mount: what the process that serves a mount tells the process that takes it over.
//!
//! Both are on one host and talk over a Unix socket: frames, each a head and a body. The page
//! `docs/spec/handover.md` has the layout and the order of the frames.
//!
//! Invariants: a frame's length is checked before memory is taken for it; a frame of another version, of an
//! unknown kind, or with a wrong checksum is refused; a body has exactly one value.

use ropewalk_base::checksum::crc32c;
use serde::{Deserialize, Serialize};

use super::attributes::Attributes;
use super::encode;
use super::layout::Pool;
use super::map::Band;
use super::meta::{Access, LeaseMode, LockRange};
use super::trust::Capability;

/// The version of frames and bodies. A process of another version does not take over.
pub const VERSION: u16 = 1;
/// The first bytes of each frame.
pub const MAGIC: [u8; 4] = *b"RWho";
/// Bytes of a frame's head.
pub const HEAD_BYTES: usize = 16;
/// Longest body of every frame but the state.
pub const WORD_BYTES_MAX: u32 = 16 << 10;
/// Longest body of the state: a mount with a million open files has less.
pub const STATE_BYTES_MAX: u32 = 256 << 20;

/// The kind of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// To the serving process: somebody asks for the mount. No body.
    Hello = 1,
    /// The answer: [`Facts`].
    Facts = 2,
    /// The new process is ready for the state. No body.
    Go = 3,
    /// [`State`], with the descriptor of /dev/fuse beside its first byte.
    State = 4,
    /// The new process has understood the state. No body.
    Ready = 5,
    /// The mount is the new process's as soon as the session is. No body.
    Yours = 6,
    /// The new process serves; the old one may end. No body.
    Serving = 7,
    /// There is no hand-over: the reason, as UTF-8.
    Refused = 8,
}

impl Kind {
    const ALL: [Kind; 8] = [
        Kind::Hello,
        Kind::Facts,
        Kind::Go,
        Kind::State,
        Kind::Ready,
        Kind::Yours,
        Kind::Serving,
        Kind::Refused,
    ];

    /// The longest body of such a frame.
    fn bytes_max(self) -> u32 {
        match self {
            Kind::State => STATE_BYTES_MAX,
            Kind::Facts | Kind::Refused => WORD_BYTES_MAX,
            _ => 0,
        }
    }
}

/// Why bytes are no frame of a hand-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    #[error("it does not speak the protocol of a hand-over")]
    Foreign,
    #[error(
        "it hands mounts over by version {0} of the protocol, and this program by version {VERSION}"
    )]
    Version(u16),
    #[error("it sent a message that is damaged, or too long")]
    Damaged,
}

/// The head of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameHead {
    pub kind: Kind,
    /// Bytes of the body.
    pub bytes: u32,
    /// CRC32C of the body.
    checksum: u32,
}

impl FrameHead {
    /// The head in front of a body.
    pub fn of(kind: Kind, body: &[u8]) -> FrameHead {
        let bytes = u32::try_from(body.len()).unwrap_or(u32::MAX);
        FrameHead { kind, bytes, checksum: crc32c(body) }
    }

    /// Its bytes; none where the body is too long for its kind.
    pub fn encode(&self) -> Option<[u8; HEAD_BYTES]> {
        let mut head = [0; HEAD_BYTES];
        head[..4].copy_from_slice(&MAGIC);
        head[4..6].copy_from_slice(&VERSION.to_le_bytes());
        head[6] = self.kind as u8;
        head[8..12].copy_from_slice(&self.bytes.to_le_bytes());
        head[12..].copy_from_slice(&self.checksum.to_le_bytes());
        (self.bytes <= self.kind.bytes_max()).then_some(head)
    }

    /// The head that these bytes are.
    pub fn decode(head: &[u8; HEAD_BYTES]) -> Result<FrameHead, FrameError> {
        let word =
            |at: usize| u32::from_le_bytes([head[at], head[at + 1], head[at + 2], head[at + 3]]);
        if head[..4] != MAGIC {
            return Err(FrameError::Foreign);
        }
        let version = u16::from_le_bytes([head[4], head[5]]);
        if version != VERSION {
            return Err(FrameError::Version(version));
        }
        let kind = Kind::ALL.into_iter().find(|kind| *kind as u8 == head[6]);
        let kind = kind.filter(|_| head[7] == 0).ok_or(FrameError::Damaged)?;
        let (bytes, checksum) = (word(8), word(12));
        if bytes > kind.bytes_max() {
            return Err(FrameError::Damaged);
        }
        Ok(FrameHead { kind, bytes, checksum })
    }

    /// Whether a body is the one of this head.
    pub fn is_of(&self, body: &[u8]) -> bool {
        body.len() == self.bytes as usize && crc32c(body) == self.checksum
    }
}

/// What the new process has to know to get ready, while the old one serves.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Bytes of the mount point's absolute path.
    pub path: Vec<u8>,
    /// The kernel's number of the mount.
    pub mount: u64,
    /// The metadata server's address.
    pub address: String,
    pub patience_milliseconds: u64,
    /// Every change is refused.
    pub read_only: bool,
    /// The key file, if there is one.
    pub key_file: Option<Vec<u8>>,
    /// The process's number, and the version of its program.
    pub process: u32,
    pub program: String,
}

/// All that goes from process to process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// When the old process stopped to read requests, in nanoseconds of the host's monotonic clock.
    pub stopped_at: u64,
    pub kernel: Kernel,
    pub client: ClientState,
}

/// What the kernel was told, and what it knows by numbers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// The agreement of INIT.
    pub flags: u64,
    pub minor: u32,
    pub max_write_bytes: u32,
    pub handles: Vec<Handle>,
    /// Directories, the newest number of each last.
    pub places: Vec<Place>,
    /// The next number for a directory that is found elsewhere.
    pub next_place: u64,
    pub holders: Vec<Holder>,
    /// Requests that wait for a lock, as the kernel sent them.
    pub waiting: Vec<Vec<u8>>,
}

/// An open file or directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Handle {
    pub handle: u64,
    /// None: a directory.
    pub file: Option<OpenFile>,
}

/// An open file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenFile {
    pub inode: u64,
    pub access: Access,
    pub append: bool,
    /// It was opened to go past the kernel's pages.
    pub direct: bool,
    /// Owners of locks that were taken through it.
    pub owners: Vec<u64>,
    /// Losses of the inode that it was told of.
    pub losses: u64,
}

/// A directory that the kernel knows under one number.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    pub node: u64,
    pub inode: u64,
    pub parent: u64,
    /// None: the number is retired.
    pub name: Option<Vec<u8>>,
    pub lookups: u64,
}

/// An owner of locks of one family on one inode, as the kernel names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub node: u64,
    pub whole_file: bool,
    pub owner: u64,
    /// First and last byte of what it holds.
    pub ranges: Vec<(u64, u64)>,
    /// It may hold more.
    pub unsure: bool,
    pub handles: Vec<u64>,
}

/// The client: its session, and what that covers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClientState {
    /// The client's number for itself.
    pub number: u128,
    pub session: u64,
    pub epoch: u32,
    /// The secret by which the session is proven.
    pub recognition: u128,
    /// The endpoint whose session it is, and which life of it.
    pub endpoint: u128,
    pub incarnation: u64,
    /// The life of the metadata server that knows all that is held, and its newest proven term.
    pub boot: u64,
    pub term: u64,
    /// The highest number of a call in any slot of any server.
    pub sequence: u64,
    /// How far the metadata server's history is known: era and position.
    pub position: (u64, u64),
    /// The durable position of each era.
    pub durable: Vec<(u64, u64)>,
    /// The map of groups, and the pools and data servers that are known.
    pub map_epoch: u32,
    pub bands: Vec<Band>,
    pub pools: Vec<Pool>,
    pub servers: Vec<(u32, String)>,
    pub inodes: Vec<InodeState>,
    /// Locks by inode; true: it was lost with an earlier session.
    pub locks: Vec<(u64, LockRange, bool)>,
    /// Inodes without a name, as they were when this client removed the last one.
    pub nameless: Vec<Attributes>,
}

/// The client's knowledge of an inode that it cannot ask for.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct InodeState {
    pub number: u64,
    pub mode: LeaseMode,
    /// The write epoch of the lease.
    pub epoch: u32,
    /// The newest grant, the newest that was recalled, and the newest that a reply told.
    pub grant: u64,
    pub recalled: u64,
    pub told: u64,
    pub generation: u32,
    pub version: u64,
    /// The lease was insisted on.
    pub insisted: bool,
    /// Changes that were lost, and how many of these losses somebody was told of.
    pub losses: (u64, u64),
    /// Places of bytes that are not durable: a server or (true) a group, with its era or losses.
    pub unsynced: Vec<(bool, u64, u64)>,
    pub in_doubt: bool,
    pub shared_before: bool,
    pub promised: bool,
    /// Era and position of the newest change that no sync covered.
    pub changed: Option<(u64, u64)>,
    /// The capability that data servers are shown.
    pub capability: Option<Capability>,
    /// The attributes as they were last known.
    pub last: Option<Attributes>,
}

/// A frame's bytes without a body.
pub fn word(kind: Kind) -> [u8; HEAD_BYTES] {
    FrameHead::of(kind, &[]).encode().expect("an empty body fits every frame")
}

/// A frame's bytes: head and encoded value. None where that is too long.
pub fn frame<T: Serialize>(kind: Kind, value: &T) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    encode(value, &mut body);
    let head = FrameHead::of(kind, &body).encode()?;
    Some([&head[..], &body].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_is_of_its_version_kind_and_body_only() {
        let facts = b"some body";
        let head = FrameHead::of(Kind::Facts, facts).encode().unwrap();
        let read = FrameHead::decode(&head).unwrap();
        assert!(read.is_of(facts) && !read.is_of(b"some bodx") && !read.is_of(b"some"));
        let with = |at: usize, byte: u8| {
            let mut changed = head;
            changed[at] = byte;
            FrameHead::decode(&changed)
        };
        assert_eq!(with(0, b'X'), Err(FrameError::Foreign));
        assert_eq!(with(4, 2), Err(FrameError::Version(2)));
        assert_eq!(with(6, 0), Err(FrameError::Damaged));
        assert_eq!(with(6, 9), Err(FrameError::Damaged));
        assert_eq!(with(7, 1), Err(FrameError::Damaged));
        assert_eq!(with(10, 1), Err(FrameError::Damaged), "more than such a frame may have");
        assert_eq!(FrameHead::of(Kind::Go, b"x").encode(), None);
        assert!(frame(Kind::Refused, &vec![0u8; WORD_BYTES_MAX as usize]).is_none());
        assert_eq!(FrameHead::decode(&word(Kind::Yours)).unwrap().kind, Kind::Yours);
    }
}
