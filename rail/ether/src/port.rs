//! The port: a packet socket with a receive ring, and an arena for what leaves.

use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ropewalk_base::error::Fault;
use ropewalk_rail::Sight;
use ropewalk_rail::port::{Port, PortCounters, Received};
use ropewalk_wire::mxoe::{ETHERNET_BYTES, ETHERTYPE, Ethernet, FRAME_BYTES_MIN, Station};

use crate::claim::Claim;
use crate::config::{ENDPOINTS, EtherConfig, EtherError};
use crate::interface::{Interface, find};
use crate::ring::Ring;
use crate::socket::{self, FRAMES_MAX};

/// Longest body, whatever the interface takes.
const BODY_BYTES_MAX: usize = 9000;
/// Passes between two questions after dropped frames.
const PASSES_PER_QUESTION: u32 = 4096;

/// Packets in Ethernet frames.
#[derive(Debug)]
pub struct EtherPort {
    interface: Interface,
    claim: Claim,
    listens: bool,
    ring: Ring,
    socket: OwnedFd,
    body_bytes: usize,
    arena: Box<[u8]>,
    filled: usize,
    frames: Vec<Range<usize>>,
    counters: PortCounters,
    passes: u32,
}

/// Whether a text is a station with an endpoint: `02:00:00:00:00:01/3`, or `02:00:00:00:00:01%eth0/3` with the
/// interface of whoever calls.
pub fn is_address(text: &str) -> bool {
    parse(text).is_some()
}

fn parse(text: &str) -> Option<(Station, u8)> {
    let (station, endpoint) = text.trim_end_matches('/').rsplit_once('/')?;
    let endpoint = endpoint.parse().ok().filter(|it| ENDPOINTS.contains(it))?;
    let station = station.split_once('%').map_or(station, |(station, _)| station);
    Some((station.parse().ok()?, endpoint))
}

impl EtherPort {
    /// A port as configured.
    pub fn open(config: &EtherConfig) -> Result<EtherPort, EtherError> {
        let interface = find(config.interface.as_deref())?;
        let failed = |cause| match socket::is_right(&cause) {
            true => EtherError::NotPermitted(interface.name.clone()),
            false => EtherError::Socket { interface: interface.name.clone(), cause },
        };
        let socket = socket::open().map_err(failed)?;
        let claim = Claim::new(&interface, config.endpoint)?;
        let body_bytes = interface.mtu.min(BODY_BYTES_MAX);
        let fd = socket.as_fd();
        socket::filter(fd, interface.station, claim.endpoint).map_err(failed)?;
        // Frames that leave are not shown to those who sent them, where the kernel knows of that.
        let _ = socket::set(fd, libc::SOL_PACKET, libc::PACKET_IGNORE_OUTGOING, &1i32);
        let ring = Ring::new(fd, body_bytes + ETHERNET_BYTES).map_err(failed)?;
        socket::bind(fd, &interface).map_err(failed)?;
        Ok(EtherPort {
            claim,
            listens: config.listens,
            ring,
            socket,
            body_bytes,
            arena: vec![0; FRAMES_MAX * (body_bytes + ETHERNET_BYTES)].into_boxed_slice(),
            filled: 0,
            frames: Vec::new(),
            counters: PortCounters::default(),
            passes: 0,
            interface,
        })
    }

    /// What it runs on.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }
}

impl Port for EtherPort {
    type Station = Station;

    fn scheme(&self) -> &'static str {
        "ether"
    }

    fn endpoint(&self) -> u8 {
        self.claim.endpoint
    }

    fn packet_bytes(&self) -> usize {
        self.body_bytes
    }

    fn packets_max(&self) -> u32 {
        self.ring.slots() as u32
    }

    fn addresses(&self) -> Vec<String> {
        let own = format!("{}/{}", self.interface.station, self.claim.endpoint);
        if self.listens { vec![own] } else { Vec::new() }
    }

    fn resolve(&mut self, address: &str) -> Result<(Station, u8), Fault> {
        parse(address).ok_or(Fault::Invalid)
    }

    fn host(&self, station: Station) -> Option<String> {
        Some(station.to_string())
    }

    fn receive(&mut self, max: usize, to: &mut dyn FnMut(Station, &[u8])) -> Received {
        self.passes += 1;
        if self.passes >= PASSES_PER_QUESTION {
            self.passes = 0;
            self.counters.system_calls += 1;
            self.counters.dropped += socket::dropped(self.socket.as_fd());
        }
        let mut packets = 0;
        let mut show = |frame: &[u8]| {
            if let Some((ethernet, body)) = Ethernet::split(frame)
                && ethernet.ethertype == ETHERTYPE
            {
                to(ethernet.source, body);
            }
        };
        while packets < max {
            if !self.ring.show(&mut show) {
                return Received { packets, empty: true };
            }
            packets += 1;
        }
        Received { packets, empty: false }
    }

    fn slot(&mut self) -> Option<&mut [u8]> {
        if self.frames.len() >= FRAMES_MAX {
            return None;
        }
        let begin = self.filled + ETHERNET_BYTES;
        self.arena.get_mut(begin..begin + self.body_bytes)
    }

    fn commit(&mut self, to: Station, bytes: usize) {
        let ethernet =
            Ethernet { destination: to, source: self.interface.station, ethertype: ETHERTYPE };
        let begin = self.filled;
        self.arena[begin..begin + ETHERNET_BYTES].copy_from_slice(&ethernet.to_bytes());
        let end = begin + ETHERNET_BYTES + bytes;
        let padded = end.max(begin + FRAME_BYTES_MIN);
        self.arena[end..padded].fill(0);
        self.frames.push(begin..padded);
        self.filled = padded;
    }

    fn flush(&mut self) -> bool {
        let mut done = 0;
        while done < self.frames.len() {
            self.counters.system_calls += 1;
            match socket::send(self.socket.as_fd(), &self.arena, &self.frames[done..]) {
                Ok(sent) => done += sent.max(1),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN | libc::ENOBUFS) => {
                        self.frames.drain(..done);
                        return false;
                    }
                    // The interface is down, or takes shorter frames now: as good as lost.
                    _ => {
                        self.counters.dropped += 1;
                        done += 1;
                    }
                },
            }
        }
        self.frames.clear();
        self.filled = 0;
        true
    }

    fn look(&self) -> Sight {
        if self.ring.has_frame() { Sight::Work } else { Sight::Nothing }
    }

    fn arm(&mut self) -> bool {
        !self.ring.has_frame()
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.socket.as_fd())
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_station_and_an_endpoint() {
        let station: Station = "02:00:00:00:00:01".parse().unwrap();
        assert_eq!(parse("02:00:00:00:00:01/3"), Some((station, 3)));
        assert_eq!(parse("02:00:00:00:00:01/3/"), Some((station, 3)));
        assert_eq!(parse("02:00:00:00:00:01%eth0/3"), Some((station, 3)));
        for bad in ["02:00:00:00:00:01", "02:00:00:00:00:01/255", "eth0/3", "/3", ""] {
            assert_eq!(parse(bad), None, "{bad}");
        }
    }
}
