//! Whose process is at the other end of a connection within this host: the kernel knows who opened the
//! socket, and tells it (`sock_diag`; where that is missing, the table of connections in /proc).
//!
//! Invariant: an answer is about a connection that stands, from that address to ours; in doubt there is
//! none.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use rustix::net::{self, AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netlink};

/// `SOCK_DIAG_BY_FAMILY`, `NLM_F_REQUEST` of the kernel.
const BY_FAMILY: u16 = 20;
const REQUEST: u16 = 1;
const TCP: u8 = 6;
const ESTABLISHED: u8 = 1;
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
/// Where the parts of an answer are: `inet_diag_msg` behind the header.
const STATE_AT: usize = HEADER_BYTES + 1;
const PORTS_AT: usize = HEADER_BYTES + 4;
const USER_AT: usize = HEADER_BYTES + 64;

/// The user who opened the socket at `peer`, where that is on this host and connected to `own`.
pub fn user_of(peer: SocketAddr, own: SocketAddr) -> Option<u32> {
    let canonical = |it: SocketAddr| SocketAddr::new(it.ip().to_canonical(), it.port());
    let (peer, own) = (canonical(peer), canonical(own));
    if !peer.ip().is_loopback() && peer.ip() != own.ip() {
        return None;
    }
    ask(peer, own).unwrap_or_else(|| look(peer, own))
}

/// Whether this host tells who opens connections within it.
pub fn is_told() -> bool {
    let tried = || {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
        let client = TcpStream::connect(listener.local_addr().ok()?).ok()?;
        user_of(client.local_addr().ok()?, client.peer_addr().ok()?)
    };
    tried() == Some(rustix::process::geteuid().as_raw())
}

/// What `sock_diag` says; None where it cannot be asked.
fn ask(peer: SocketAddr, own: SocketAddr) -> Option<Option<u32>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let kind = SocketType::DGRAM;
    let diag = Some(netlink::SOCK_DIAG);
    let socket = net::socket_with(AddressFamily::NETLINK, kind, flags, diag).ok()?;
    // The answer is there when the request was taken.
    net::send(&socket, &request(peer, own), SendFlags::empty()).ok()?;
    let mut bytes = [0; 1024];
    let (count, _) = net::recv(&socket, &mut bytes, RecvFlags::empty()).ok()?;
    let answer = &bytes[..count];
    let kind = u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?);
    match kind {
        BY_FAMILY => Some(judge(answer, peer, own)),
        // An error: there is no such socket, or the kernel has no part that knows.
        _ => None,
    }
}

fn request(peer: SocketAddr, own: SocketAddr) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    bytes[..4].copy_from_slice(&(REQUEST_BYTES as u32).to_ne_bytes());
    bytes[4..6].copy_from_slice(&BY_FAMILY.to_ne_bytes());
    bytes[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
    let body = &mut bytes[HEADER_BYTES..];
    body[0] = family.as_raw() as u8;
    body[1] = TCP;
    body[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
    let id = &mut body[8..];
    id[..2].copy_from_slice(&peer.port().to_be_bytes());
    id[2..4].copy_from_slice(&own.port().to_be_bytes());
    place(&mut id[4..20], peer.ip());
    place(&mut id[20..36], own.ip());
    // No cookie: whichever socket it is.
    id[40..48].fill(0xff);
    bytes
}

fn place(into: &mut [u8], address: IpAddr) {
    match address {
        IpAddr::V4(address) => into[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => into.copy_from_slice(&address.octets()),
    }
}

/// The user of an answer that is about this connection. Where there is none, the kernel names who listens
/// at the port.
fn judge(answer: &[u8], peer: SocketAddr, own: SocketAddr) -> Option<u32> {
    let port = |at: usize| {
        let bytes = answer.get(PORTS_AT + at..PORTS_AT + at + 2)?;
        Some(u16::from_be_bytes(bytes.try_into().ok()?))
    };
    let stands = *answer.get(STATE_AT)? == ESTABLISHED;
    let same = port(0)? == peer.port() && port(2)? == own.port();
    let user = answer.get(USER_AT..USER_AT + 4)?.try_into().ok()?;
    (stands && same).then(|| u32::from_ne_bytes(user))
}

/// What the tables of connections say.
fn look(peer: SocketAddr, own: SocketAddr) -> Option<u32> {
    ["tcp", "tcp6"].into_iter().find_map(|table| {
        let text = std::fs::read_to_string(format!("/proc/thread-self/net/{table}")).ok()?;
        find(&text, peer, own)
    })
}

/// The user of a connection in a table.
fn find(table: &str, peer: SocketAddr, own: SocketAddr) -> Option<u32> {
    let [peers, owns] = [names(peer), names(own)];
    table.lines().skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let (local, remote) = (fields.nth(1)?, fields.next()?);
        let here = peers.iter().zip(&owns).any(|(peer, own)| peer == local && own == remote);
        // Its state, and then queues, timers and retransmissions.
        let stands = fields.next()? == "01";
        (here && stands).then(|| fields.nth(3)?.parse().ok())?
    })
}

/// An address as the tables write it: as one of IPv4, and as the one of IPv6 that means it.
fn names(address: SocketAddr) -> Vec<String> {
    let words = |octets: &[u8]| {
        octets.chunks_exact(4).fold(String::new(), |mut text, word| {
            let word = u32::from_ne_bytes(word.try_into().expect("four bytes"));
            let _ = write!(text, "{word:08X}");
            text
        })
    };
    let port = address.port();
    let named = |octets: &[u8]| format!("{}:{port:04X}", words(octets));
    match address.ip() {
        IpAddr::V4(ip) => vec![named(&ip.octets()), named(&ip.to_ipv6_mapped().octets())],
        IpAddr::V6(ip) => vec![named(&ip.octets())],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Both ends of a connection: the address of who connected, and of who accepted.
    fn connected(at: &str) -> Option<(SocketAddr, SocketAddr, TcpStream, TcpStream)> {
        let listener = TcpListener::bind(at).ok()?;
        let client = TcpStream::connect(listener.local_addr().ok()?).ok()?;
        let server = listener.accept().ok()?.0;
        Some((client.local_addr().ok()?, server.local_addr().ok()?, client, server))
    }

    #[test]
    fn the_kernel_says_who_connected() {
        assert!(is_told());
        let own_user = rustix::process::geteuid().as_raw();
        for at in ["127.0.0.1:0", "[::1]:0", "[::]:0"] {
            let Some((peer, own, client, _server)) = connected(at) else {
                assert_ne!(at, "127.0.0.1:0", "loopback can be connected to");
                continue;
            };
            assert_eq!(user_of(peer, own), Some(own_user), "{at}");
            assert_eq!(look(peer, own), Some(own_user), "{at}");
            // The other direction is another socket, and who only listens is nobody's peer.
            let elsewhere = SocketAddr::new(peer.ip(), own.port());
            assert_eq!(user_of(elsewhere, SocketAddr::new(own.ip(), 9)), None, "{at}");
            drop(client);
        }
        let far = "192.0.2.1:7".parse().unwrap();
        assert_eq!(user_of(far, "127.0.0.1:9".parse().unwrap()), None);
    }

    #[test]
    fn tables_are_read_as_the_kernel_writes_them() {
        let table = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid\n   \
            0: 0100007F:1E14 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1\n   \
            1: 0100007F:A1B2 0100007F:1E14 01 00000000:00000000 00:00000000 00000000  1000        0 2\n   \
            2: 0100007F:A1B3 0100007F:1E14 06 00000000:00000000 00:00000000 00000000     0        0 0\n";
        let find =
            |peer: &str| find(table, peer.parse().unwrap(), "127.0.0.1:7700".parse().unwrap());
        if cfg!(target_endian = "little") {
            assert_eq!(find("127.0.0.1:41394"), Some(1000));
            assert_eq!(find("127.0.0.1:41395"), None, "it is over");
            assert_eq!(find("127.0.0.1:7700"), None);
        }
    }
}
