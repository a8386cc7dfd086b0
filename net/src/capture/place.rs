//! The headers in front of a packet on the wire, rebuilt from its source and destination.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use ropewalk_wire::mxoe::{ETHERTYPE, Ethernet, FRAME_BYTES_MIN, Station};

/// A station of a port that can be captured.
pub trait Place: Copy + Eq {
    /// The link type in capture files of frames that begin with this header.
    const LINK_TYPE: u16;

    /// The address of ours in packets to and from `station`, if the port is at `self`.
    fn towards(self, station: Self) -> Self;

    /// Writes a frame: everything in front of the body, the body, and padding.
    fn header(from: Self, to: Self, body: &[u8], out: &mut Vec<u8>);
}

impl Place for Station {
    /// Ethernet.
    const LINK_TYPE: u16 = 1;

    fn towards(self, _: Station) -> Station {
        self
    }

    fn header(from: Station, to: Station, body: &[u8], out: &mut Vec<u8>) {
        let begin = out.len();
        let ethernet = Ethernet { destination: to, source: from, ethertype: ETHERTYPE };
        out.extend(ethernet.to_bytes());
        out.extend(body);
        out.resize(out.len().max(begin + FRAME_BYTES_MIN), 0);
    }
}

/// Bytes of a UDP header, and its number among protocols.
const UDP_BYTES: usize = 8;
const UDP: u8 = 17;
const HOPS: u8 = 64;

impl Place for SocketAddr {
    /// IP, of either version.
    const LINK_TYPE: u16 = 101;

    fn towards(self, station: SocketAddr) -> SocketAddr {
        if !self.ip().to_canonical().is_unspecified() {
            return self;
        }
        // The kernel says where it would send from; nothing is sent.
        let source = || {
            let any = match station {
                SocketAddr::V4(_) => SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0),
                SocketAddr::V6(_) => SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0),
            };
            let socket = UdpSocket::bind(any)?;
            socket.connect(station)?;
            socket.local_addr()
        };
        source().map_or(self, |source| SocketAddr::new(source.ip(), self.port()))
    }

    fn header(from: SocketAddr, to: SocketAddr, body: &[u8], out: &mut Vec<u8>) {
        let len = (UDP_BYTES + body.len()) as u16;
        let begin = out.len();
        match (from.ip().to_canonical(), to.ip().to_canonical()) {
            (IpAddr::V4(source), IpAddr::V4(destination)) => v4(source, destination, len, out),
            (source, destination) => v6(wide(source), wide(destination), len, out),
        }
        let version = out[begin] >> 4;
        let udp = out.len();
        out.extend(from.port().to_be_bytes());
        out.extend(to.port().to_be_bytes());
        out.extend(len.to_be_bytes());
        out.extend([0, 0]);
        out.extend(body);
        // Version 4 may do without; in version 6 it is a must.
        if version == 6 {
            let ends = sum(&out[begin + 8..begin + 40], u32::from(len) + u32::from(UDP));
            let checksum = match !fold(sum(&out[udp..], ends)) {
                0 => u16::MAX,
                other => other,
            };
            out[udp + 6..udp + 8].copy_from_slice(&checksum.to_be_bytes());
        }
    }
}

fn wide(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => v4.to_ipv6_mapped(),
        IpAddr::V6(v6) => v6,
    }
}

/// A header of IPv4 in front of so many bytes.
fn v4(from: Ipv4Addr, to: Ipv4Addr, len: u16, out: &mut Vec<u8>) {
    let begin = out.len();
    out.extend([0x45, 0]);
    out.extend((len + 20).to_be_bytes());
    // No identification, not to be cut.
    out.extend([0, 0, 0x40, 0, HOPS, UDP, 0, 0]);
    out.extend(from.octets());
    out.extend(to.octets());
    let checksum = !fold(sum(&out[begin..], 0));
    out[begin + 10..begin + 12].copy_from_slice(&checksum.to_be_bytes());
}

/// A header of IPv6 in front of so many bytes.
fn v6(from: Ipv6Addr, to: Ipv6Addr, len: u16, out: &mut Vec<u8>) {
    out.extend([0x60, 0, 0, 0]);
    out.extend(len.to_be_bytes());
    out.extend([UDP, HOPS]);
    out.extend(from.octets());
    out.extend(to.octets());
}

/// The sum of 16-bit numbers that the internet's checksum is made of.
fn sum(bytes: &[u8], before: u32) -> u32 {
    let pairs = bytes
        .chunks(2)
        .map(|pair| u32::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)])));
    // At most 2^15 pairs below 2^16.
    before + pairs.sum::<u32>()
}

fn fold(sum: u32) -> u16 {
    let once = (sum & 0xffff) + (sum >> 16);
    ((once & 0xffff) + (once >> 16)) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_hold_what_a_receiver_checks() {
        let mut out = vec![9];
        let (from, to) =
            ("10.0.0.1:7000".parse().unwrap(), "[::ffff:10.0.0.2]:8000".parse().unwrap());
        SocketAddr::header(from, to, b"abc", &mut out);
        assert_eq!(out[1..5], [0x45, 0, 0, 31]);
        assert_eq!(fold(sum(&out[1..21], 0)), 0xffff, "the header's sum with its checksum");
        assert_eq!(out[13..21], [10, 0, 0, 1, 10, 0, 0, 2]);
        assert_eq!(out[21..], [0x1b, 0x58, 0x1f, 0x40, 0, 11, 0, 0, b'a', b'b', b'c']);

        out.clear();
        let (from, to) = ("[fe80::1]:7000".parse().unwrap(), "[fe80::2]:8000".parse().unwrap());
        SocketAddr::header(from, to, b"abc", &mut out);
        assert_eq!((out.len(), out[0], out[5], out[6]), (40 + 8 + 3, 0x60, 11, 17));
        assert_eq!(fold(sum(&out[40..], sum(&out[8..40], 11 + 17))), 0xffff);

        out.clear();
        Station::header(Station([2; 6]), Station([4; 6]), b"abc", &mut out);
        assert_eq!(
            (out.len(), &out[..17]),
            (60, &[4, 4, 4, 4, 4, 4, 2, 2, 2, 2, 2, 2, 0x86, 0xdf, b'a', b'b', b'c'][..])
        );
    }

    #[test]
    fn an_address_that_stands_for_all_is_that_of_the_way_there() {
        let here: SocketAddr = "[::]:7000".parse().unwrap();
        let there: SocketAddr = "[::ffff:127.0.0.1]:9".parse().unwrap();
        assert_eq!(here.towards(there).to_string(), "[::ffff:127.0.0.1]:7000");
        let exact: SocketAddr = "127.0.0.1:7000".parse().unwrap();
        assert_eq!(exact.towards("127.0.0.2:9".parse().unwrap()), exact);
    }
}
