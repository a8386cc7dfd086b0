//! The owner of the process at the other end of a connection within this host. The kernel knows the user that opened
//! the socket, and tells it (`sock_diag`; if that is missing, the table of connections in /proc).
//!
//! Invariants:
//! * an answer is about a connection that stands in both directions, from that address to ours: if its process
//!   has closed it, the kernel may say that it is root's;
//! * `Unknown` is only a peer from an address that the kernel says is not this host's. In doubt, also
//!   if there are no descriptors left to ask with, the peer is on this host and untold.

use std::fmt::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use ropewalk_rail::Owner;
use rustix::io::Errno;
use rustix::net::{
    self, AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, netlink,
};

/// `SOCK_DIAG_BY_FAMILY`, `RTM_GETROUTE`, `RTM_NEWROUTE`, `NLMSG_ERROR`, `NLM_F_REQUEST` of the kernel.
const BY_FAMILY: u16 = 20;
const GET_ROUTE: u16 = 26;
const ROUTE: u16 = 24;
const ERROR: u16 = 2;
const REQUEST: u16 = 1;
/// `RTA_DST`, and the kind of routes to this host's own addresses (`RTN_LOCAL`).
const DESTINATION: u16 = 1;
const LOCAL: u8 = 2;
const TCP: u8 = 6;
const ESTABLISHED: u8 = 1;
const HEADER_BYTES: usize = 16;
const REQUEST_BYTES: usize = HEADER_BYTES + 56;
/// Offsets in an answer: the fields of `inet_diag_msg` behind the header.
const STATE_AT: usize = HEADER_BYTES + 1;
const PORTS_AT: usize = HEADER_BYTES + 4;
const USER_AT: usize = HEADER_BYTES + 64;
/// `rtmsg` behind the header, and the kind of route within it.
const ROUTE_BYTES: usize = HEADER_BYTES + 12;
const KIND_AT: usize = HEADER_BYTES + 7;

/// The user who opened the socket at `peer` that is connected to `own`.
pub fn owner_of(peer: SocketAddr, own: SocketAddr) -> Owner {
    let canonical = |it: SocketAddr| SocketAddr::new(it.ip().to_canonical(), it.port());
    let (peer, own) = (canonical(peer), canonical(own));
    if !is_here(peer.ip(), own.ip()) {
        return Owner::Unknown;
    }
    let user = ask(peer, own).unwrap_or_else(|| look(peer, own));
    user.map_or(Owner::Untold, Owner::User)
}

/// Whether this host tells who opens connections within it.
pub fn is_told() -> bool {
    let tried = || {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
        let client = TcpStream::connect(listener.local_addr().ok()?).ok()?;
        Some(owner_of(client.local_addr().ok()?, client.peer_addr().ok()?))
    };
    tried() == Some(Owner::User(rustix::process::geteuid().as_raw()))
}

/// Whether a peer that connects from there to `own` is on this host; in doubt it is. A program chooses freely among
/// the host's addresses for its connects.
fn is_here(peer: IpAddr, own: IpAddr) -> bool {
    // Nobody else reaches a loopback address.
    if peer.is_loopback() || own.is_loopback() || peer == own {
        return true;
    }
    routed_here(peer).unwrap_or_else(|| {
        let elsewhere = Err(Some(Errno::ADDRNOTAVAIL.raw_os_error()));
        UdpSocket::bind((peer, 0)).map(|_| ()).map_err(|error| error.raw_os_error()) != elsewhere
    })
}

/// Whether the kernel takes packets to an address for its own; `None` if it cannot be asked.
fn routed_here(address: IpAddr) -> Option<bool> {
    let octets = match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let mut bytes = vec![0; ROUTE_BYTES];
    bytes[HEADER_BYTES] = family_of(address);
    bytes[HEADER_BYTES + 1] = 8 * octets.len() as u8;
    bytes.extend_from_slice(&(4 + octets.len() as u16).to_ne_bytes());
    bytes.extend_from_slice(&DESTINATION.to_ne_bytes());
    bytes.extend_from_slice(&octets);
    begin(&mut bytes, GET_ROUTE);
    let answer = exchange(None, &bytes)?;
    match kind_of(&answer)? {
        ROUTE => Some(*answer.get(KIND_AT)? == LOCAL),
        ERROR => {
            let error = answer.get(HEADER_BYTES..HEADER_BYTES + 4)?.try_into().ok()?;
            let error = Errno::from_raw_os_error(-i32::from_ne_bytes(error));
            // There is no way to it: it is not here. Other errors say nothing.
            matches!(error, Errno::NETUNREACH | Errno::HOSTUNREACH).then_some(false)
        }
        _ => None,
    }
}

/// The answer of `sock_diag`; `None` if it cannot be asked.
fn ask(peer: SocketAddr, own: SocketAddr) -> Option<Option<u32>> {
    let answer = exchange(Some(netlink::SOCK_DIAG), &request(peer, own))?;
    match kind_of(&answer)? {
        BY_FAMILY => Some(judge(&answer, peer, own)),
        // An error: there is no such socket, or the kernel has no part that knows.
        _ => None,
    }
}

/// The kernel's answer to a request; without a protocol, of that for routes.
fn exchange(protocol: Option<Protocol>, request: &[u8]) -> Option<Vec<u8>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = net::socket_with(AddressFamily::NETLINK, SocketType::DGRAM, flags, protocol);
    let socket = socket.ok()?;
    // The answer is there when the request was taken.
    net::send(&socket, request, SendFlags::empty()).ok()?;
    let mut bytes = vec![0; 1024];
    let (count, _) = net::recv(&socket, &mut bytes[..], RecvFlags::empty()).ok()?;
    bytes.truncate(count);
    Some(bytes)
}

fn kind_of(answer: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes(answer.get(4..6)?.try_into().ok()?))
}

fn begin(request: &mut [u8], kind: u16) {
    let length = request.len() as u32;
    request[..4].copy_from_slice(&length.to_ne_bytes());
    request[4..6].copy_from_slice(&kind.to_ne_bytes());
    request[6..8].copy_from_slice(&REQUEST.to_ne_bytes());
}

fn family_of(address: IpAddr) -> u8 {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    family.as_raw() as u8
}

fn request(peer: SocketAddr, own: SocketAddr) -> [u8; REQUEST_BYTES] {
    let mut bytes = [0; REQUEST_BYTES];
    begin(&mut bytes, BY_FAMILY);
    let body = &mut bytes[HEADER_BYTES..];
    body[0] = family_of(peer.ip());
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

/// The user according to the kernel's tables of connections.
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

    /// Both ends of a connection: the address of the connecting end, and of the accepting end.
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
            assert_eq!(owner_of(peer, own), Owner::User(own_user), "{at}");
            assert_eq!(look(peer, own), Some(own_user), "{at}");
            // The other direction is another socket, and a socket that only listens is nobody's peer.
            let elsewhere = SocketAddr::new(peer.ip(), own.port());
            let other = SocketAddr::new(own.ip(), 9);
            assert_eq!(owner_of(elsewhere, other), Owner::Untold, "{at}");
            // Half of a connection may be one whose process is gone.
            client.shutdown(std::net::Shutdown::Write).unwrap();
            assert_eq!(owner_of(peer, own), Owner::Untold, "{at}");
        }
        let [far, here, loopback] =
            ["203.0.113.9:7", "198.51.100.1:9", "127.0.0.1:9"].map(|it| it.parse().unwrap());
        assert_eq!(owner_of(far, here), Owner::Unknown);
        // Nobody else reaches a loopback address.
        assert_eq!(owner_of(far, loopback), Owner::Untold);
    }

    #[test]
    fn whoever_connects_from_another_address_of_this_host_is_known() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = listener.local_addr().unwrap();
        let own_user = rustix::process::geteuid().as_raw();
        let other = own_address().unwrap_or(IpAddr::V4([127, 0, 0, 2].into()));
        assert_eq!(routed_here(other), Some(true));
        let socket = net::socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
        net::bind(&socket, &SocketAddr::new(other, 0)).unwrap();
        net::connect(&socket, &own).unwrap();
        let (_server, peer) = listener.accept().unwrap();
        assert_eq!(peer.ip(), other);
        assert_eq!(owner_of(peer, own), Owner::User(own_user));
        // Both addresses are other than loopback's, and not the same.
        assert!(is_here(other, "198.51.100.1".parse().unwrap()));
    }

    /// An address of this host that is not loopback's, where it has one.
    fn own_address() -> Option<IpAddr> {
        let table = std::fs::read_to_string("/proc/thread-self/net/fib_trie").ok()?;
        let lines: Vec<&str> = table.lines().collect();
        lines.windows(2).find_map(|pair| {
            let address: IpAddr = pair[0].split_once("|-- ")?.1.trim().parse().ok()?;
            (pair[1].contains("/32 host LOCAL") && !address.is_loopback()).then_some(address)
        })
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
