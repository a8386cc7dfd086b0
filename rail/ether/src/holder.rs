//! The holder of a name in the abstract namespace of Unix sockets. Any process of this host may take any name there.
//! So a name is believed only if its holder is trusted.

use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink, recv, send, socket_with,
};

/// `SOCK_DIAG_BY_FAMILY`, `NLM_F_REQUEST`, `UDIAG_SHOW_UID`, and the attribute that answers it, `UNIX_DIAG_UID`.
const BY_FAMILY: u16 = 20;
const REQUEST: u16 = 1;
const SHOW_USER: u32 = 0x40;
const USER: u16 = 7;
/// Of netlink's header, and of the answer behind it before its attributes.
const HEADER_BYTES: usize = 16;
const ANSWER_BYTES: usize = 16;

/// Whether a name of this user is to be believed: the user is ours, or root.
pub fn is_trusted(user: u32) -> bool {
    user == 0 || user == rustix::process::geteuid().as_raw()
}

/// The user that holds this name; `None` if nobody does, or if the kernel does not tell.
pub fn holder_of(name: &str) -> Option<u32> {
    let table = std::fs::read("/proc/thread-self/net/unix").ok()?;
    user_of(inode_in(&String::from_utf8_lossy(&table), name)?)
}

/// A user who holds this name and is not to be believed.
pub fn stranger_at(name: &str) -> Option<u32> {
    holder_of(name).filter(|user| !is_trusted(*user))
}

/// The number of the socket that has a name, in the kernel's table of them.
fn inode_in(table: &str, name: &str) -> Option<u32> {
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mut named =
        lines.filter(|words| words.get(7).is_some_and(|it| it.strip_prefix('@') == Some(name)));
    named.find_map(|words| words.get(6)?.parse().ok())
}

/// The user whose socket has this number.
fn user_of(inode: u32) -> Option<u32> {
    let flags = SocketFlags::CLOEXEC;
    let kind = SocketType::RAW;
    let socket = socket_with(AddressFamily::NETLINK, kind, flags, Some(netlink::SOCK_DIAG)).ok()?;
    let mut question = Vec::with_capacity(HEADER_BYTES + 24);
    question.extend((HEADER_BYTES as u32 + 24).to_ne_bytes());
    question.extend(BY_FAMILY.to_ne_bytes());
    question.extend(REQUEST.to_ne_bytes());
    // Number and sender of the question, which is the only one here; then family and protocol.
    question.extend([0; 8]);
    question.extend([libc::AF_UNIX as u8, 0, 0, 0]);
    // In all states, with any cookie.
    for word in [u32::MAX, inode, SHOW_USER, u32::MAX, u32::MAX] {
        question.extend(word.to_ne_bytes());
    }
    send(&socket, &question, SendFlags::empty()).ok()?;
    let mut answer = [0; 512];
    // The kernel has answered when the question was taken.
    let (len, _) = recv(&socket, &mut answer, RecvFlags::DONTWAIT).ok()?;
    user_in(answer.get(..len)?)
}

/// The user of whom an answer tells.
fn user_in(answer: &[u8]) -> Option<u32> {
    let kind = u16::from_ne_bytes(*answer.get(4..)?.first_chunk()?);
    let mut rest = answer.get(HEADER_BYTES + ANSWER_BYTES..).filter(|_| kind == BY_FAMILY)?;
    loop {
        let len = usize::from(u16::from_ne_bytes(*rest.first_chunk()?));
        let kind = u16::from_ne_bytes(*rest.get(2..)?.first_chunk()?);
        if kind == USER {
            return Some(u32::from_ne_bytes(*rest.get(4..len)?.first_chunk()?));
        }
        rest = rest.get(len.next_multiple_of(4).max(4)..)?;
    }
}

#[cfg(test)]
mod tests {
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixDatagram};

    use super::*;

    #[test]
    fn the_holder_of_a_name_is_known_while_there_is_one() {
        let name = format!("ropewalk/test/holder/{}", std::process::id());
        assert_eq!(holder_of(&name), None);
        let address = SocketAddr::from_abstract_name(&name).unwrap();
        let _socket = UnixDatagram::bind_addr(&address).unwrap();
        let own = rustix::process::geteuid().as_raw();
        assert_eq!((holder_of(&name), stranger_at(&name)), (Some(own), None));
        assert_eq!(holder_of(&name[1..]), None);
        assert!(is_trusted(0) && is_trusted(own) && !is_trusted(own + 1));
    }

    #[test]
    fn answers_are_read_within_their_bounds() {
        let mut answer = vec![0; HEADER_BYTES + ANSWER_BYTES];
        answer[4] = BY_FAMILY as u8;
        answer.extend([5, 0, 6, 0, 1, 0, 0, 0]);
        answer.extend([8, 0, 7, 0, 0x39, 0x30, 0, 0]);
        if cfg!(target_endian = "little") {
            assert_eq!(user_in(&answer), Some(12345));
        }
        for len in 0..answer.len() {
            assert_eq!(user_in(&answer[..len]), None, "{len}");
        }
        answer[HEADER_BYTES + ANSWER_BYTES] = 0;
        assert_eq!(user_in(&answer[..HEADER_BYTES + ANSWER_BYTES + 4]), None);
    }
}
