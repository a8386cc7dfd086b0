//! The references: bare frames, datagrams and streams, as a program would use them that has the network for
//! itself and believes that nothing is lost.
//!
//! * Round trips of messages that fit a frame or a datagram; of any length over TCP.
//! * Bandwidth of frames and datagrams in a window: bursts of [`BURST`], and a credit for each of them. The
//!   kernel cuts and joins datagrams.

use std::io::{Error, ErrorKind, Result};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use anyhow::Context;
use ropewalk_rail_ether::bare::frames_of;
use ropewalk_rail_udp::bare::{cut, join};
use ropewalk_wire::mxoe::Dialect;
use rustix::io::Errno;
use rustix::net::sockopt::{self, Timeout};
use rustix::net::{RecvFlags, SendFlags, recv, send};

use crate::mx::rows::Network;
use crate::mx::side::{Role, Side, say, warm};
use crate::mx::wire::{CARD, host};
use crate::net::WARM;
use crate::raw::Stream;

/// For experiments within a local network (IEEE 802).
const ETHERTYPE: u16 = 0x88b5;
const HEADER_BYTES: usize = 14;
const FRAME_BYTES_MIN: usize = 60;
/// Headers of IPv4 and UDP.
const DATAGRAM_HEADER_BYTES: usize = 28;
/// The most bytes that the kernel segments at a time (UDP GSO).
const CUT_BYTES_MAX: usize = 65_507;
/// Datagrams at a time, and as many again for which there may be no credit yet.
const BURST: usize = 32;
const WINDOW: usize = 128;
/// Datagrams wait in as much memory as it takes: none shall be lost.
const QUEUE_BYTES: usize = 32 << 20;
/// Nothing of a reference takes longer.
const LIMIT: Duration = Duration::from_secs(10);
/// Buffers of a stream over TCP, as many as ours has messages under way.
const BUFFERS: usize = 16;

/// Opens the reference of a network.
pub fn open(role: &Role) -> anyhow::Result<Box<dyn Side>> {
    Ok(match role.network {
        Network::Tcp => Box::new(Tcp::open(role)?),
        Network::Udp => Box::new(Windowed { carrier: Datagrams::open(role)? }),
        Network::Ether | Network::EtherXdp | Network::Mxoe | Network::Compatible => {
            Box::new(Windowed { carrier: Frames::open(role)? })
        }
    })
}

/// Something that carries datagrams to one place.
trait Carrier {
    fn url(&self) -> String;
    fn meet(&mut self, other: &str) -> anyhow::Result<()>;
    /// The longest.
    fn bytes_max(&self) -> usize;
    /// Sends so many of them, each with so many bytes and this number in front.
    fn send(&mut self, bytes: usize, count: usize, number: u64) -> Result<()>;
    /// Waits for one, or for several that came together: all their bytes.
    fn receive(&mut self) -> Result<&[u8]>;
    /// The number of datagrams of `each` bytes in `bytes` bytes that came together.
    fn parts(&self, bytes: usize, each: usize) -> usize;
}

/// A socket, and the way of waiting for it.
struct Waiter {
    spins: bool,
}

impl Waiter {
    fn new(role: &Role, socket: BorrowedFd<'_>) -> Result<Waiter> {
        rustix::io::ioctl_fionbio(socket, role.spins)?;
        sockopt::set_socket_timeout(socket, Timeout::Recv, Some(LIMIT))?;
        sockopt::set_socket_recv_buffer_size_force(socket, QUEUE_BYTES)?;
        Ok(Waiter { spins: role.spins })
    }

    fn receive(&self, socket: BorrowedFd<'_>, into: &mut [u8]) -> Result<usize> {
        let mut begin = None;
        loop {
            match recv(socket, &mut *into, RecvFlags::empty()) {
                Ok((bytes, _)) => return Ok(bytes),
                Err(Errno::AGAIN) if self.spins => {
                    let begin = *begin.get_or_insert_with(Instant::now);
                    if begin.elapsed() > LIMIT {
                        return Err(ErrorKind::TimedOut.into());
                    }
                }
                Err(Errno::AGAIN) => return Err(ErrorKind::TimedOut.into()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn send(socket: BorrowedFd<'_>, bytes: &[u8]) -> Result<()> {
        loop {
            match send(socket, bytes, SendFlags::NOSIGNAL) {
                Ok(_) => return Ok(()),
                Err(Errno::AGAIN | Errno::NOBUFS | Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Frames of an EtherType of their own.
struct Frames {
    socket: OwnedFd,
    waiter: Waiter,
    station: String,
    body_bytes_max: usize,
    out: Vec<u8>,
    into: Vec<u8>,
}

impl Frames {
    /// Frames of the same length as those of the compared network: wire-compatible ones end at 4 KiB, whatever the
    /// MTU.
    fn body_bytes_max(network: Network, mtu: usize) -> usize {
        match network {
            Network::Compatible => mtu.min(Dialect::compatible().body_bytes_max()),
            _ => mtu,
        }
    }

    fn open(role: &Role) -> anyhow::Result<Frames> {
        let all = ropewalk_rail_ether::interfaces();
        let card = all.into_iter().find(|it| it.name == CARD).context("there is no card")?;
        let socket = frames_of(CARD, ETHERTYPE)?;
        let waiter = Waiter::new(role, socket.as_fd())?;
        let body_bytes_max = Frames::body_bytes_max(role.network, role.mtu);
        let mut out = vec![7; HEADER_BYTES + body_bytes_max];
        out[6..12].copy_from_slice(&card.station.0);
        out[12..HEADER_BYTES].copy_from_slice(&ETHERTYPE.to_be_bytes());
        let into = vec![0; out.len()];
        let station = card.station.to_string();
        Ok(Frames { socket, waiter, station, body_bytes_max, out, into })
    }
}

impl Carrier for Frames {
    fn url(&self) -> String {
        self.station.clone()
    }

    fn meet(&mut self, other: &str) -> anyhow::Result<()> {
        let station: ropewalk_wire::mxoe::Station = other.parse().ok().context("no station")?;
        self.out[..6].copy_from_slice(&station.0);
        Ok(())
    }

    fn bytes_max(&self) -> usize {
        self.body_bytes_max
    }

    fn send(&mut self, bytes: usize, count: usize, number: u64) -> Result<()> {
        self.out[HEADER_BYTES..HEADER_BYTES + 8].copy_from_slice(&number.to_le_bytes());
        let frame = &self.out[..(HEADER_BYTES + bytes).max(FRAME_BYTES_MIN)];
        (0..count).try_for_each(|_| Waiter::send(self.socket.as_fd(), frame))
    }

    fn receive(&mut self) -> Result<&[u8]> {
        let bytes = self.waiter.receive(self.socket.as_fd(), &mut self.into)?;
        self.into.get(HEADER_BYTES..bytes).ok_or(ErrorKind::InvalidData.into())
    }

    /// Short ones are padded.
    fn parts(&self, _bytes: usize, _each: usize) -> usize {
        1
    }
}

/// Datagrams of UDP.
struct Datagrams {
    socket: UdpSocket,
    waiter: Waiter,
    mtu: usize,
    /// The segment size to which the kernel cuts sends; 0: it does not cut.
    cut: usize,
    out: Vec<u8>,
    into: Vec<u8>,
}

impl Datagrams {
    fn open(role: &Role) -> anyhow::Result<Datagrams> {
        let socket = UdpSocket::bind((host(role.side), 0))?;
        let waiter = Waiter::new(role, socket.as_fd())?;
        anyhow::ensure!(join(&socket), "the kernel does not join datagrams");
        let (out, into) = (vec![7; CUT_BYTES_MAX], vec![0; 1 << 16]);
        Ok(Datagrams { socket, waiter, mtu: role.mtu, cut: 0, out, into })
    }
}

impl Carrier for Datagrams {
    fn url(&self) -> String {
        self.socket.local_addr().map(|address| address.to_string()).unwrap_or_default()
    }

    fn meet(&mut self, other: &str) -> anyhow::Result<()> {
        Ok(self.socket.connect(other)?)
    }

    fn bytes_max(&self) -> usize {
        self.mtu - DATAGRAM_HEADER_BYTES
    }

    fn send(&mut self, bytes: usize, count: usize, number: u64) -> Result<()> {
        self.out[..8].copy_from_slice(&number.to_le_bytes());
        let wanted = if count > 1 { bytes } else { 0 };
        if wanted != self.cut {
            if !cut(&self.socket, wanted as u16) {
                return Err(Error::other("the kernel does not cut datagrams"));
            }
            self.cut = wanted;
        }
        let at_once = (CUT_BYTES_MAX / bytes.max(1)).clamp(1, BURST);
        let mut left = count;
        while left > 0 {
            let now = left.min(at_once);
            Waiter::send(self.socket.as_fd(), &self.out[..now * bytes])?;
            left -= now;
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<&[u8]> {
        let bytes = self.waiter.receive(self.socket.as_fd(), &mut self.into)?;
        Ok(&self.into[..bytes])
    }

    fn parts(&self, bytes: usize, each: usize) -> usize {
        bytes.div_ceil(each)
    }
}

/// Round trips and windows over a carrier.
struct Windowed<C> {
    carrier: C,
}

/// The length of each datagram of `count` messages, and the number of datagrams.
fn datagrams(bytes: usize, count: usize, bytes_max: usize) -> (usize, usize) {
    let each = bytes.clamp(1, bytes_max);
    (each, (bytes * count).div_ceil(each))
}

/// The number in front of a datagram.
fn number(bytes: &[u8]) -> Result<u64> {
    let bytes = bytes.get(..8).and_then(|bytes| bytes.try_into().ok());
    bytes.map(u64::from_le_bytes).ok_or(ErrorKind::InvalidData.into())
}

/// Runs rounds, of which the first ones do not count; nanoseconds of the others.
fn timed(rounds: usize, mut round: impl FnMut() -> Result<()>) -> Result<u64> {
    (0..warm(rounds)).try_for_each(|_| round())?;
    let begin = Instant::now();
    (0..rounds).try_for_each(|_| round())?;
    Ok(begin.elapsed().as_nanos() as u64)
}

impl<C: Carrier> Windowed<C> {
    fn pour(&mut self, each: usize, total: usize) -> Result<()> {
        let (mut sent, mut taken) = (0, 0);
        while taken < total {
            let room = (WINDOW - (sent - taken)).min(total - sent);
            if room >= BURST || (room > 0 && room == total - sent) {
                let burst = room.min(BURST);
                self.carrier.send(each, burst, 0)?;
                sent += burst;
            } else {
                taken = taken.max(number(self.carrier.receive()?)? as usize);
            }
        }
        Ok(())
    }

    fn drink(&mut self, each: usize, total: usize) -> Result<()> {
        let (mut got, mut told) = (0, 0);
        while got < total {
            let bytes = self.carrier.receive()?.len();
            got += self.carrier.parts(bytes, each);
            if got / BURST > told / BURST || got >= total {
                self.carrier.send(8, 1, got as u64)?;
                told = got;
            }
        }
        Ok(())
    }
}

impl<C: Carrier> Side for Windowed<C> {
    fn url(&self) -> String {
        self.carrier.url()
    }

    fn meet(&mut self, other: &str) -> anyhow::Result<()> {
        self.carrier.meet(other)
    }

    fn ping(&mut self, bytes: usize, rounds: usize) -> anyhow::Result<Option<Vec<u64>>> {
        if bytes > self.carrier.bytes_max() {
            return Ok(None);
        }
        let mut samples = Vec::with_capacity(rounds);
        for round in 0..rounds + warm(rounds) {
            let begin = Instant::now();
            self.carrier.send(bytes, 1, 0)?;
            self.carrier.receive()?;
            if round >= warm(rounds) {
                samples.push(begin.elapsed().as_nanos() as u64);
            }
        }
        Ok(Some(samples))
    }

    fn pong(&mut self, bytes: usize, rounds: usize) -> anyhow::Result<()> {
        say("ready")?;
        if bytes > self.carrier.bytes_max() {
            return Ok(());
        }
        for _ in 0..rounds + warm(rounds) {
            self.carrier.receive()?;
            self.carrier.send(bytes, 1, 0)?;
        }
        Ok(())
    }

    fn pour(&mut self, bytes: usize, count: usize) -> anyhow::Result<u64> {
        let mut nanos = 0;
        for count in [count.min(WARM), count] {
            let (each, total) = datagrams(bytes, count, self.carrier.bytes_max());
            let begin = Instant::now();
            Windowed::pour(self, each, total)?;
            nanos = begin.elapsed().as_nanos() as u64;
        }
        Ok(nanos)
    }

    fn drink(&mut self, bytes: usize, count: usize) -> anyhow::Result<u64> {
        say("ready")?;
        for count in [count.min(WARM), count] {
            let (each, total) = datagrams(bytes, count, self.carrier.bytes_max());
            Windowed::drink(self, each, total)?;
        }
        Ok(0)
    }

    /// A side sends its next message when it has all of the other's: neither is more than one message ahead.
    fn exchange(&mut self, bytes: usize, rounds: usize) -> anyhow::Result<u64> {
        let (each, total) = datagrams(bytes, 1, self.carrier.bytes_max());
        let mut ahead = 0;
        let nanos = timed(rounds, || {
            for begin in (0..total).step_by(BURST) {
                self.carrier.send(each, BURST.min(total - begin), 0)?;
            }
            while ahead < total {
                let bytes = self.carrier.receive()?.len();
                ahead += self.carrier.parts(bytes, each);
            }
            ahead -= total;
            Ok(())
        })?;
        Ok(nanos)
    }
}

/// A stream of TCP.
struct Tcp {
    wait: &'static str,
    listener: Option<TcpListener>,
    stream: Option<Stream>,
}

impl Tcp {
    fn open(role: &Role) -> anyhow::Result<Tcp> {
        let listens = role.side == 1;
        let listener = listens.then(|| TcpListener::bind((host(role.side), 0))).transpose()?;
        let wait = if role.spins { "spin" } else { "block" };
        Ok(Tcp { wait, listener, stream: None })
    }

    fn stream(&mut self) -> anyhow::Result<&mut Stream> {
        self.stream.as_mut().context("there is no stream")
    }
}

impl Side for Tcp {
    fn url(&self) -> String {
        let address = self.listener.as_ref().and_then(|it| it.local_addr().ok());
        address.map_or("none".into(), |address| address.to_string())
    }

    fn meet(&mut self, other: &str) -> anyhow::Result<()> {
        let socket = match &self.listener {
            Some(listener) => listener.accept()?.0,
            None => TcpStream::connect(other)?,
        };
        self.stream = Some(Stream::new(socket, self.wait)?);
        Ok(())
    }

    /// A message of nothing is one of a byte here.
    fn ping(&mut self, bytes: usize, rounds: usize) -> anyhow::Result<Option<Vec<u64>>> {
        let mut buffer = vec![7; bytes.max(1)];
        let stream = self.stream()?;
        let mut samples = Vec::with_capacity(rounds);
        for round in 0..rounds + warm(rounds) {
            let begin = Instant::now();
            stream.write(&buffer)?;
            stream.read(&mut buffer)?;
            if round >= warm(rounds) {
                samples.push(begin.elapsed().as_nanos() as u64);
            }
        }
        Ok(Some(samples))
    }

    fn pong(&mut self, bytes: usize, rounds: usize) -> anyhow::Result<()> {
        let mut buffer = vec![7; bytes.max(1)];
        say("ready")?;
        let stream = self.stream()?;
        for _ in 0..rounds + warm(rounds) {
            stream.read(&mut buffer)?;
            stream.write(&buffer)?;
        }
        Ok(())
    }

    fn pour(&mut self, bytes: usize, count: usize) -> anyhow::Result<u64> {
        let buffers = vec![vec![7u8; bytes]; BUFFERS];
        let stream = self.stream()?;
        let mut nanos = 0;
        for count in [count.min(WARM), count] {
            let begin = Instant::now();
            for message in 0..count {
                stream.write(&buffers[message % BUFFERS])?;
            }
            stream.read(&mut [0])?;
            nanos = begin.elapsed().as_nanos() as u64;
        }
        Ok(nanos)
    }

    fn drink(&mut self, bytes: usize, count: usize) -> anyhow::Result<u64> {
        let mut buffers = vec![vec![0u8; bytes]; BUFFERS];
        say("ready")?;
        let stream = self.stream()?;
        for count in [count.min(WARM), count] {
            for message in 0..count {
                stream.read(&mut buffers[message % BUFFERS])?;
            }
            stream.write(&[0])?;
        }
        Ok(0)
    }

    fn exchange(&mut self, bytes: usize, rounds: usize) -> anyhow::Result<u64> {
        let (out, mut into) = (vec![7; bytes], vec![0; bytes]);
        let stream = self.stream()?;
        Ok(timed(rounds, || stream.swap(&out, &mut into))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_become_datagrams_that_hold_all_their_bytes() {
        assert_eq!(datagrams(32, 10, 1500), (32, 10));
        assert_eq!(datagrams(1500, 3, 1500), (1500, 3));
        assert_eq!(datagrams(4000, 3, 1500), (1500, 8));
    }

    #[test]
    fn a_reference_has_frames_as_long_as_what_it_is_a_reference_of() {
        let of = Frames::body_bytes_max;
        assert_eq!((of(Network::Ether, 9000), of(Network::Compatible, 9000)), (9000, 4130));
        assert_eq!(of(Network::Compatible, 1500), 1500);
    }
}
