//! The port: an endpoint at a hub, with an arena for packets to send.

use std::any::Any;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ropewalk_base::error::Fault;
use ropewalk_base::shared::Leaving;
use ropewalk_base::verb::PacketDrops;
use ropewalk_rail::Sight;
use ropewalk_rail::packet::Packet;
use ropewalk_rail::port::{Port, PortCounters, Received, Refusals};
use ropewalk_wire::mxoe::{ETHERNET_BYTES, ETHERTYPE, Ethernet, FRAME_BYTES_MIN, Station};
use ropewalk_wire::packets::PACKET_BYTES_MIN;
use rustix::event::epoll::{self, EventData, EventFlags};

use crate::claim::Claim;
use crate::config::{ENDPOINTS, EtherConfig, EtherError};
use crate::filter::endpoint_of;
use crate::hub::Hub;
use crate::inbox::{Batch, INBOX_BYTES, Inbox};
use crate::interface::{Interface, find};
use crate::socket::FRAMES_MAX;

/// Sleeps without packets after which the socket is asked whether it has something else to say.
const SLEEPS_PER_QUESTION: u32 = 8;

/// Packets without a sleep after which the port is busy: until then it costs less to be told of each than to ask for
/// that again.
const BUSY_AFTER: usize = 32;

/// Places that frames were too long for, of which nobody has asked yet; more are not kept, as each comes again.
const TOO_LONG_MAX: usize = 64;

/// The time for which a frame may be refused for lack of room before it is given up. The frame could be one that
/// nobody behind the card takes, while the frames behind it wait. On a slow line this is the time of a few frames.
const REFUSED_FOR: Duration = Duration::from_millis(10);

/// Packets in Ethernet frames.
#[derive(Debug)]
pub struct EtherPort {
    interface: Interface,
    hub: Arc<Hub>,
    /// An object that is dropped with the port, while the port's number is still its own.
    kept: Option<Box<dyn Any + Send>>,
    claim: Claim,
    inbox: Arc<Inbox>,
    /// Packets that were taken out of the inbox.
    taken: Batch,
    /// Sweeps of the ring that are known.
    sweeps: u64,
    listens: bool,
    body_bytes: usize,
    arena: Box<[u8]>,
    filled: usize,
    frames: Vec<Packet>,
    system_calls: u64,
    unsent: u64,
    /// The time since which the first waiting frame is refused.
    refused_since: Option<Instant>,
    /// The destinations of frames that are longer than the interface now takes.
    too_long: Vec<(Station, u8)>,
    refusals: Refusals<Station>,
    /// Whether the interface was up when it was asked last.
    is_up: bool,
    asleep: bool,
    /// Packets came since the last sleep; sleeps since packets came.
    any: bool,
    sleeps: u32,
    /// Packets that came since the last sleep, as far as it is counted.
    awake_for: usize,
}

/// Whether a text is a station with an endpoint: `02:00:00:00:00:01/3`, or `02:00:00:00:00:01%eth0/3` with the
/// interface of the caller.
pub fn is_address(text: &str) -> bool {
    parse_address(text).is_some()
}

/// The station and the endpoint there that a text names: `02:00:00:00:00:01/3`; `None` where it names none.
pub fn parse_address(text: &str) -> Option<(Station, u8)> {
    let (station, endpoint) = text.trim_end_matches('/').rsplit_once('/')?;
    let endpoint = endpoint.parse().ok().filter(|it| ENDPOINTS.contains(it))?;
    let station = station.split_once('%').map_or(station, |(station, _)| station);
    Some((station.parse().ok()?, endpoint))
}

impl EtherPort {
    /// A port as configured.
    pub fn open(config: &EtherConfig) -> Result<EtherPort, EtherError> {
        let interface = find(config.interface.as_deref(), config.protocol)?;
        if interface.mtu < PACKET_BYTES_MIN {
            let (interface, mtu) = (interface.name, interface.mtu);
            return Err(EtherError::TooNarrow { interface, mtu });
        }
        let hub = Hub::on(&interface, config.protocol, config.sockets)?;
        let claim = Claim::new(&interface, config.protocol, config.endpoint)?;
        let failed = |cause| EtherError::Socket { interface: interface.name.clone(), cause };
        let inbox = Arc::new(Inbox::new().map_err(failed)?);
        hub.enter(claim.endpoint, inbox.clone()).map_err(failed)?;
        // The hub may have been made for shorter frames than the interface takes now.
        let body_bytes = interface.mtu.min(hub.body_bytes());
        Ok(EtherPort {
            hub,
            claim,
            kept: None,
            inbox,
            taken: Batch::default(),
            sweeps: 0,
            listens: config.listens,
            body_bytes,
            arena: vec![0; FRAMES_MAX * (body_bytes + ETHERNET_BYTES)].into_boxed_slice(),
            filled: 0,
            frames: Vec::new(),
            system_calls: 0,
            unsent: 0,
            refused_since: None,
            too_long: Vec::new(),
            refusals: Refusals::default(),
            is_up: true,
            asleep: false,
            any: false,
            sleeps: 0,
            awake_for: 0,
            interface,
        })
    }

    /// The interface of the port.
    pub fn interface(&self) -> &Interface {
        &self.interface
    }

    /// Whether frames come and leave by AF_XDP.
    pub fn has_xdp(&self) -> bool {
        self.hub.has_xdp()
    }

    /// The reason why they do not, if that was wished for.
    pub fn xdp_refused(&self) -> Option<String> {
        self.hub.refused()
    }

    /// A frame was longer than the interface takes: notes for whom it was.
    #[cold]
    fn note_too_long(&mut self, at: usize) {
        let [frame, ..] = self.frames[at].parts(&self.arena);
        let Some((ethernet, body)) = Ethernet::split(frame) else { return };
        let Some(endpoint) = endpoint_of(body, self.hub.protocol()) else { return };
        let place = (ethernet.destination, endpoint);
        if self.too_long.len() < TOO_LONG_MAX && !self.too_long.contains(&place) {
            self.too_long.push(place);
        }
    }

    /// The kernel refused a frame: notes for whom it was.
    #[cold]
    fn note_refused(&mut self, at: usize, number: i32) {
        let [frame, ..] = self.frames[at].parts(&self.arena);
        if let Some((ethernet, _)) = Ethernet::split(frame) {
            self.refusals.note(ethernet.destination, number);
        }
    }

    /// Lets this live as long as the port.
    pub fn keep(&mut self, what: Box<dyn Any + Send>) {
        self.kept = Some(what);
    }
}

impl Drop for EtherPort {
    fn drop(&mut self) {
        // Before the claim ends: another process may have the number then.
        self.hub.leave(self.claim.endpoint);
    }
}

impl Port for EtherPort {
    type Station = Station;

    fn scheme(&self) -> &'static str {
        self.hub.protocol().scheme()
    }

    fn endpoint(&self) -> u8 {
        self.claim.endpoint
    }

    fn packet_bytes(&self) -> usize {
        self.body_bytes
    }

    fn packet_bytes_now(&mut self) -> usize {
        let Some(takes) = self.hub.takes(self.interface.index) else {
            self.hub.is_gone_by_now();
            return self.body_bytes;
        };
        self.is_up = takes.is_up;
        self.body_bytes.min(takes.mtu)
    }

    fn is_down(&self) -> bool {
        !self.is_up
    }

    fn is_gone(&self) -> bool {
        self.hub.is_gone()
    }

    fn too_long(&mut self) -> Option<(Station, u8)> {
        self.too_long.pop()
    }

    fn refused(&mut self) -> Option<(Station, i32)> {
        self.refusals.take()
    }

    fn bound_to(&self) -> Option<String> {
        Some(format!("interface={}", self.interface.name))
    }

    fn packets_max(&self) -> u32 {
        // Packets may have to wait in the inbox, while a neighbour looks at the ring.
        self.hub.slots().min(INBOX_BYTES / self.body_bytes.max(1)) as u32
    }

    fn addresses(&self) -> Vec<String> {
        let own = format!("{}/{}", self.interface.station, self.claim.endpoint);
        if self.listens { vec![own] } else { Vec::new() }
    }

    fn resolve(&mut self, address: &str) -> Result<(Station, u8), Fault> {
        if self.hub.is_gone_by_now() {
            return Err(Fault::Unreachable);
        }
        parse_address(address).ok_or(Fault::Invalid)
    }

    fn host(&self, station: Station) -> Option<String> {
        Some(station.to_string())
    }

    fn receive(&mut self, max: usize, to: &mut dyn FnMut(Station, &[u8])) -> Received {
        let sweeps = self.hub.sweeps();
        let reader = self.hub.try_lock();
        // Packets in the inbox came before those in the ring; only the holder of the ring puts packets there.
        let mut packets = self.taken.show(max, to);
        while packets < max && self.inbox.has_packets() {
            self.inbox.take(&mut self.taken);
            packets += self.taken.show(max - packets, to);
        }
        self.any |= packets > 0;
        let received = match reader {
            Some(reader) => {
                let looked = self.hub.look(reader, self.claim.endpoint, max - packets, to);
                self.any |= looked.any;
                self.sweeps = self.hub.sweeps();
                let Received { packets: more, empty } = looked.received;
                Received { packets: packets + more, empty }
            }
            // The holder of the ring delivers its packets. All packets from before its last sweep have been shown.
            None => {
                let swept = std::mem::replace(&mut self.sweeps, sweeps) != sweeps;
                Received { packets, empty: swept && packets < max }
            }
        };
        if received.packets > 0 && self.awake_for < BUSY_AFTER {
            self.awake_for += received.packets;
            if self.awake_for >= BUSY_AFTER {
                self.hub.busy(self.claim.endpoint);
            }
        }
        received
    }

    fn slot(&mut self) -> Option<&mut [u8]> {
        if self.frames.len() >= FRAMES_MAX {
            return None;
        }
        let begin = self.filled + ETHERNET_BYTES;
        self.arena.get_mut(begin..begin + self.body_bytes)
    }

    fn commit(&mut self, to: Station, bytes: usize) {
        self.commit_around(to, Leaving::whole(bytes));
    }

    fn commit_around(&mut self, to: Station, leaving: Leaving) {
        let ethernet =
            Ethernet { destination: to, source: self.interface.station, ethertype: ETHERTYPE };
        let begin = self.filled;
        self.arena[begin..begin + ETHERNET_BYTES].copy_from_slice(&ethernet.to_bytes());
        let end = begin + ETHERNET_BYTES + leaving.written;
        let padding = FRAME_BYTES_MIN.saturating_sub(ETHERNET_BYTES + leaving.bytes());
        self.arena[end..end + padding].fill(0);
        let written = begin..end + padding;
        self.filled = written.end;
        self.frames.push(match leaving.kept {
            None => Packet::whole(written),
            Some(kept) => Packet::around(written, leaving.tail + padding, kept),
        });
    }

    fn flush(&mut self) -> bool {
        let mut done = 0;
        // The first one that waits may have been refused before; each other one is new.
        let mut refused_since = self.refused_since.take();
        while done < self.frames.len() {
            if self.hub.is_gone() {
                self.unsent += (self.frames.len() - done) as u64;
                break;
            }
            self.system_calls += 1;
            match self.hub.send(&self.arena, &self.frames[done..]) {
                Ok(sent) => (done, refused_since) = (done + sent.max(1), None),
                Err(error) => match error.raw_os_error() {
                    Some(libc::EINTR) => {}
                    Some(libc::EAGAIN) => {
                        self.refused_since = refused_since;
                        self.frames.drain(..done);
                        return false;
                    }
                    // No room; or nobody behind the card takes a frame like this one, and none ever will.
                    Some(libc::ENOBUFS)
                        if refused_since.is_none_or(|since| since.elapsed() < REFUSED_FOR) =>
                    {
                        self.refused_since = refused_since.or_else(|| Some(Instant::now()));
                        self.frames.drain(..done);
                        return false;
                    }
                    // Or the socket has lost its interface only now.
                    Some(libc::ENXIO | libc::ENODEV) => self.hub.set_gone(),
                    // The interface is down, or takes shorter frames now: as good as lost.
                    refused => {
                        match refused {
                            Some(libc::EMSGSIZE) => self.note_too_long(done),
                            Some(number) => self.note_refused(done, number),
                            None => {}
                        }
                        self.unsent += 1;
                        (done, refused_since) = (done + 1, None);
                    }
                },
            }
        }
        self.frames.clear();
        self.filled = 0;
        self.hub.flush()
    }

    fn look(&self) -> Sight {
        let any = self.hub.has_frame() || self.inbox.has_packets() || !self.taken.is_over();
        if any { Sight::Work } else { Sight::Nothing }
    }

    fn attach(&mut self, set: BorrowedFd<'_>) -> std::io::Result<()> {
        epoll::add(set, self.inbox.bell(), EventData::new_u64(0), EventFlags::IN)?;
        self.hub.attach(self.claim.endpoint, set)
    }

    fn arm(&mut self) -> bool {
        if !self.taken.is_over() || !self.inbox.sleep() {
            return false;
        }
        (self.asleep, self.awake_for) = (true, 0);
        self.sleeps = if self.any { 0 } else { self.sleeps + 1 };
        let eager = std::mem::take(&mut self.any);
        if !self.hub.sleep(self.claim.endpoint, eager) {
            // Somebody else is woken by the socket, or looks at the ring now and then.
            return true;
        }
        if self.sleeps >= SLEEPS_PER_QUESTION {
            self.sleeps = 0;
            self.system_calls += 1;
            self.hub.take_error();
        }
        if self.hub.has_frame() {
            self.disarm();
        }
        self.asleep
    }

    fn disarm(&mut self) {
        if std::mem::take(&mut self.asleep) {
            self.inbox.wake();
            self.hub.wake(self.claim.endpoint);
        }
    }

    fn counters(&self) -> PortCounters {
        let (inbox_full, unsent) = (self.inbox.dropped(), self.unsent);
        PortCounters {
            system_calls: self.system_calls,
            bytes_copied: self.inbox.copied(),
            drops: PacketDrops { inbox_full, unsent, ..self.hub.drops() },
        }
    }

    fn interface(&self) -> Option<u32> {
        Some(self.interface.index)
    }

    fn interface_name(&self) -> Option<&str> {
        Some(&self.interface.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_station_and_an_endpoint() {
        let station: Station = "02:00:00:00:00:01".parse().unwrap();
        assert_eq!(parse_address("02:00:00:00:00:01/3"), Some((station, 3)));
        assert_eq!(parse_address("02:00:00:00:00:01/3/"), Some((station, 3)));
        assert_eq!(parse_address("02:00:00:00:00:01%eth0/3"), Some((station, 3)));
        for bad in ["02:00:00:00:00:01", "02:00:00:00:00:01/255", "eth0/3", "/3", ""] {
            assert_eq!(parse_address(bad), None, "{bad}");
        }
    }
}
