//! The meeting of two processes: sockets in the abstract namespace, and the notes they exchange there.
//!
//! Abstract names belong to a network namespace and vanish with their owner: namespaces stay apart,
//! and there are no stale names. The connector sends `Hello` with its descriptors, the acceptor
//! answers `Welcome` with its own, the connector ends with `Confirm`; either may `Refuse` instead.
//! After that nothing is ever sent: the socket stays open so that its end is the peer's.
//!
//! Invariants: nothing blocks; a note is a fixed number of bytes, anything else ends the attempt;
//! descriptors that were not asked for are closed.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketAddrUnix, SocketFlags, SocketType,
};
use rustix::process::{Pid, Uid};

use crate::segment::{BOARD_BYTES, SEGMENT_BYTES};

/// Longest name of a rail, in bytes.
pub const NAME_BYTES_MAX: usize = 64;

const MAGIC: u64 = 0x006b_6c61_7765_706f;
/// Changes with every change of notes, segment or board, and of the frame format on this rail.
const VERSION: u32 = 4;
const NOTE_BYTES: usize = 64;
const DESCRIPTORS_MAX: usize = 3;
const BACKLOG: i32 = 256;

/// A name, and the user that it belongs to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    pub user: Uid,
    pub name: String,
}

impl Name {
    /// Reads `name`, or `user id/name` for callers that may reach other users (root).
    pub fn parse(text: &str) -> Option<Name> {
        let (user, name) = match text.split_once('/') {
            Some((user, name)) => (Uid::from_raw(user.parse().ok()?), name),
            None => (rustix::process::geteuid(), text),
        };
        let legal = !name.is_empty()
            && name.len() <= NAME_BYTES_MAX
            && name.bytes().all(|byte| byte.is_ascii_graphic() && !b"/,".contains(&byte));
        legal.then(|| Name { user, name: name.to_string() })
    }

    fn socket_address(&self) -> Result<SocketAddrUnix, Errno> {
        let path = format!("ropewalk/{}/{}", self.user.as_raw(), self.name);
        SocketAddrUnix::new_abstract_name(path.as_bytes())
    }
}

fn socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// A listening socket under `name`; `ADDRINUSE` where somebody has it.
pub fn listen(name: &Name) -> Result<OwnedFd, Errno> {
    let socket = socket()?;
    rustix::net::bind(&socket, &name.socket_address()?)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket)
}

/// A socket connected to `name`; `AGAIN` where the listener's queue is full at the moment.
pub fn connect(name: &Name) -> Result<OwnedFd, Errno> {
    let socket = socket()?;
    rustix::net::connect(&socket, &name.socket_address()?)?;
    Ok(socket)
}

/// The next peer that connected to a listening socket.
pub fn accept(listener: &OwnedFd) -> Result<OwnedFd, Errno> {
    rustix::net::accept_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
}

/// Process and user at the other end, as the kernel vouches for it.
pub fn peer_of(socket: &OwnedFd) -> Option<(Pid, Uid)> {
    // A process of a foreign pid namespace has the number 0 here, which the checked conversion
    // below turns into nothing: such a peer's memory cannot be named.
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut bytes = size_of::<libc::ucred>() as libc::socklen_t;
    let address = (&raw mut credentials).cast();
    use std::os::fd::AsRawFd;
    // SAFETY: both pointers are to live locals of the sizes that the call is told.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            address,
            &raw mut bytes,
        )
    };
    let pid = Pid::from_raw(credentials.pid)?;
    (result == 0).then(|| (pid, Uid::from_raw(credentials.uid)))
}

/// A user of whom a process listens under this name: our own one, where there is one of ours. `None`: nobody does.
pub fn user_of(name: &str) -> Option<u32> {
    let table = std::fs::read("/proc/thread-self/net/unix").ok()?;
    user_in(&String::from_utf8_lossy(&table), name, rustix::process::geteuid().as_raw())
}

/// The same of the kernel's table of sockets.
fn user_in(table: &str, name: &str, own: u32) -> Option<u32> {
    let words = table.lines().filter_map(|line| line.split_whitespace().nth(7));
    let named = words.filter_map(|word| word.strip_prefix("@ropewalk/")?.split_once('/'));
    let users = named.filter(|it| it.1 == name).filter_map(|it| it.0.parse().ok());
    users.min_by_key(|user| (*user != own, *user))
}

/// The kind of a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// With segment, board and the connector's bell of the link.
    Hello,
    /// With board and the acceptor's bell of the link.
    Welcome,
    /// The connector is content, too.
    Confirm,
    /// Memory cannot be reached from one side.
    Refuse,
}

/// A message of the exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Note {
    pub kind: Kind,
    /// The sender registered for the asymmetric barrier.
    pub asymmetric: bool,
    /// The number that the sender wrote into the segment.
    pub nonce: u64,
    /// The address of `probe` in the sender's memory, to try cross-memory attach with.
    pub probe_address: u64,
    pub probe: u64,
}

impl Note {
    fn encode(&self) -> [u8; NOTE_BYTES] {
        let mut bytes = [0; NOTE_BYTES];
        bytes[0..8].copy_from_slice(&MAGIC.to_le_bytes());
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12] = self.kind as u8;
        bytes[13] = u8::from(self.asymmetric);
        bytes[16..24].copy_from_slice(&(SEGMENT_BYTES as u64).to_le_bytes());
        bytes[24..32].copy_from_slice(&(BOARD_BYTES as u64).to_le_bytes());
        bytes[32..40].copy_from_slice(&self.nonce.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.probe_address.to_le_bytes());
        bytes[48..56].copy_from_slice(&self.probe.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Note> {
        let number = |at: usize| -> Option<u64> {
            Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
        };
        let version = u32::from_le_bytes(bytes.get(8..12)?.try_into().ok()?);
        let sizes = (number(16)?, number(24)?);
        let ours = (SEGMENT_BYTES as u64, BOARD_BYTES as u64);
        if bytes.len() != NOTE_BYTES || number(0)? != MAGIC || version != VERSION || sizes != ours {
            return None;
        }
        let kind = match bytes[12] {
            0 => Kind::Hello,
            1 => Kind::Welcome,
            2 => Kind::Confirm,
            3 => Kind::Refuse,
            _ => return None,
        };
        Some(Note {
            kind,
            asymmetric: bytes[13] == 1,
            nonce: number(32)?,
            probe_address: number(40)?,
            probe: number(48)?,
        })
    }
}

/// Sends a note with descriptors. The socket's buffer is empty when we do, so it does not fill.
pub fn send(socket: &OwnedFd, note: &Note, descriptors: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        let fits = control.push(SendAncillaryMessage::ScmRights(descriptors));
        assert!(fits, "the space is made for all descriptors of a note");
    }
    let bytes = note.encode();
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    rustix::net::sendmsg(socket, &[IoSlice::new(&bytes)], &mut control, flags)?;
    Ok(())
}

/// The result of a look into a socket.
#[derive(Debug)]
pub enum Received {
    Nothing,
    Note(Note, Vec<OwnedFd>),
    /// The end, an error, or something that is no note of ours.
    Broken,
}

/// Takes the next note out of a socket.
pub fn receive(socket: &OwnedFd) -> Received {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    // One byte more than a note has, so that a longer message is seen to be longer.
    let mut bytes = [0u8; NOTE_BYTES + 1];
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let mut into = [IoSliceMut::new(&mut bytes)];
    let result = rustix::net::recvmsg(socket.as_fd(), &mut into, &mut control, flags);
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    match result {
        Err(Errno::AGAIN | Errno::INTR) => Received::Nothing,
        Err(_) => Received::Broken,
        Ok(message) => match Note::decode(&bytes[..message.bytes]) {
            Some(note) => Received::Note(note, descriptors),
            None => Received::Broken,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_survive_the_wire_and_foreign_ones_are_refused() {
        let note = Note {
            kind: Kind::Welcome,
            asymmetric: true,
            nonce: 3,
            probe_address: u64::MAX,
            probe: 5,
        };
        let bytes = note.encode();
        assert_eq!(Note::decode(&bytes), Some(note));
        for at in [0, 8, 12, 16, 24] {
            let mut broken = bytes;
            broken[at] ^= 0x80;
            assert_eq!(Note::decode(&broken), None, "byte {at}");
        }
        for len in 0..NOTE_BYTES {
            assert_eq!(Note::decode(&bytes[..len]), None);
        }
    }

    #[test]
    fn whose_a_name_is_stands_in_the_table_of_sockets() {
        let table = "\
Num       RefCount Protocol Flags    Type St Inode Path
0000000000000000: 00000002 00000000 00010000 0005 01   501 @ropewalk/1000/build
0000000000000000: 00000002 00000000 00010000 0005 01   502 @ropewalk/7/both
0000000000000000: 00000002 00000000 00010000 0005 01   503 @ropewalk/1000/both
0000000000000000: 00000002 00000000 00010000 0005 01   504 /run/ropewalk/1000/other
0000000000000000: 00000002 00000000 00010000 0005 01   505 @ropewalk/ether/3/1
0000000000000000: 00000002 00000000 00000000 0002 01   506
";
        let of = |name, own| user_in(table, name, own);
        assert_eq!([of("build", 7), of("build", 1000)], [Some(1000); 2]);
        assert_eq!([7, 1000, 0].map(|own| of("both", own)), [Some(7), Some(1000), Some(7)]);
        assert_eq!([of("other", 7), of("3/1", 7), of("nobody", 7)], [None; 3]);
    }

    #[test]
    fn names_are_checked_before_they_reach_the_kernel() {
        let own = rustix::process::geteuid();
        assert_eq!(Name::parse("build"), Some(Name { user: own, name: "build".into() }));
        assert_eq!(Name::parse("17/build").unwrap().user.as_raw(), 17);
        let long = "x".repeat(NAME_BYTES_MAX + 1);
        for bad in ["", "a b", "x/y", "1/", "1/2/3", "\0", long.as_str()] {
            assert_eq!(Name::parse(bad), None, "{bad:?}");
        }
    }
}
