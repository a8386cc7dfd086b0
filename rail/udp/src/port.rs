//! The port: a socket, an arena for packets to send, and buffers for received ones.

use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use ropewalk_base::error::Fault;
use ropewalk_base::shared::Leaving;
use ropewalk_rail::binding::Binding;
use ropewalk_rail::interfaces::LocalSide;
use ropewalk_rail::names::{Lookups, Target, parse};
use ropewalk_rail::packet::Packet;
use ropewalk_rail::port::{Found, Port, PortCounters, Received, Refusals};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::net::sockopt::{self, Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};

use crate::batch::{self, Incoming, MESSAGES_MAX, PACKETS_MAX, Run};
use crate::config::{PACKET_BYTES_USUAL, UdpConfig, UdpError};

/// Datagrams that the kernel cuts out of one message, at most.
const SEGMENTS_MAX: usize = 44;
/// Bytes of such a message, at most: the payload of a datagram of IPv4.
const RUN_BYTES_MAX: usize = 65_507;
/// Hosts for which the kernel does not cut that are remembered, at most.
const NARROW_MAX: usize = 256;
/// The overhead that the kernel counts for a packet beside its bytes.
const OVERHEAD_BYTES: usize = 768;
/// A receive buffer that is smaller takes few long packets, and so few of any length under way.
const ROOMY_BYTES: usize = 4 << 20;
/// Headers of UDP behind those of IP.
const UDP_BYTES: usize = 8;
/// The endpoint of a socket: each has its own port number.
const ENDPOINT: u8 = 0;

/// Packets over UDP.
pub struct UdpPort {
    config: UdpConfig,
    socket: UdpSocket,
    local: SocketAddr,
    receive_buffer: usize,
    incoming: Incoming,
    arena: Box<[u8]>,
    /// Bytes of the arena that are taken.
    filled: usize,
    packets: Vec<Packet>,
    runs: Vec<Run>,
    counters: PortCounters,
    refusals: Refusals<SocketAddr>,
    /// The kernel cuts messages.
    cuts: bool,
    /// But not for these: their paths take less than a packet, or encrypt.
    narrow: Vec<IpAddr>,
    /// The kernel splits single packets that are too long for their path; until there is such a path of usual packets
    /// it refuses them, so that long packets are tried out whole.
    splits: bool,
    /// Names that are looked up, from the first one on; tickets count.
    lookups: Option<Lookups>,
    tickets: u64,
    /// The epoll set of the sleeper.
    set: Option<OwnedFd>,
}

impl UdpPort {
    /// A port as configured.
    pub fn open(config: UdpConfig) -> Result<UdpPort, UdpError> {
        let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0);
        let address = config.listen.unwrap_or_else(|| config.local.call_from().unwrap_or(any));
        let address = config.local.send_from(address)?;
        let socket = match open_at(address, &config.local) {
            Err(_) if address.ip() == any.ip() && config.listen.is_none() => {
                // No IPv6 here.
                let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), address.port());
                open_at(any, &config.local)
            }
            socket => socket,
        };
        let socket = socket.map_err(|cause| match cause.kind() {
            ErrorKind::AddrInUse => UdpError::PortInUse(address),
            ErrorKind::AddrNotAvailable => UdpError::NoSuchAddress(address),
            _ => UdpError::Socket { address, cause },
        })?;
        let failed = |cause| UdpError::Socket { address, cause };
        let local = socket.local_addr().map_err(failed)?;
        socket.set_nonblocking(true).map_err(failed)?;
        let wanted = config.receive_buffer_bytes as i32;
        let forced = batch::set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, wanted);
        if !forced {
            batch::set(socket.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUF, wanted);
        }
        let receive_buffer = sockopt::socket_recv_buffer_size(&socket).unwrap_or(212_992);
        let packet_bytes = match receive_buffer < ROOMY_BYTES {
            true => config.packet_bytes.min(PACKET_BYTES_USUAL),
            false => config.packet_bytes,
        };
        let config = UdpConfig { packet_bytes, ..config };
        let splits = !set_splits(&socket, false);
        let joins = config.offload && batch::set(socket.as_fd(), libc::SOL_UDP, libc::UDP_GRO, 1);
        Ok(UdpPort {
            socket,
            local,
            receive_buffer,
            incoming: Incoming::new(),
            arena: vec![0; PACKETS_MAX * config.packet_bytes].into_boxed_slice(),
            filled: 0,
            packets: Vec::with_capacity(PACKETS_MAX),
            runs: Vec::new(),
            counters: PortCounters::default(),
            refusals: Refusals::default(),
            cuts: joins,
            narrow: Vec::new(),
            splits,
            lookups: None,
            tickets: 0,
            set: None,
            config,
        })
    }

    /// The address at which it is bound.
    pub fn local_address(&self) -> SocketAddr {
        self.local
    }

    /// An address as the socket's family has it; none where it has no such addresses.
    fn usable(&self, address: SocketAddr) -> Option<SocketAddr> {
        let reached = self.local.is_ipv6() || address.is_ipv4();
        reached.then(|| self.to_family(address))
    }

    /// An address as the socket's family has it.
    fn to_family(&self, address: SocketAddr) -> SocketAddr {
        match address {
            SocketAddr::V4(v4) if self.local.is_ipv6() => {
                SocketAddr::new(v4.ip().to_ipv6_mapped().into(), v4.port())
            }
            other => other,
        }
    }

    /// Whether the kernel cuts messages to there.
    fn may_cut(&self, to: SocketAddr) -> bool {
        self.cuts && (self.narrow.is_empty() || !self.narrow.contains(&to.ip()))
    }

    /// Whether a packet of usual length is refused for that, where the kernel could split it.
    fn is_too_narrow(&self, run: usize, error: &std::io::Error) -> bool {
        let is_usual = self.runs[run].bytes <= PACKET_BYTES_USUAL;
        !self.splits && is_usual && error.raw_os_error() == Some(libc::EMSGSIZE)
    }

    /// The kernel does not cut the first message: not for that host, though it may for others, or not at all.
    fn cut_here(&mut self, is_for_host: bool) {
        match self.runs.first() {
            Some(run) if is_for_host && self.narrow.len() < NARROW_MAX => {
                self.narrow.push(run.to.ip());
            }
            _ => self.cuts = false,
        }
        let runs = std::mem::take(&mut self.runs);
        for run in runs {
            if self.may_cut(run.to) {
                self.runs.push(run);
                continue;
            }
            for index in run.packets {
                let bytes = self.packets[index].len();
                let packets = index..index + 1;
                self.runs.push(Run { to: run.to, packets, bytes, segment: bytes });
            }
        }
    }
}

/// A socket at this address, which is bound to an interface where the binding names one.
fn open_at(address: SocketAddr, local: &Binding) -> std::io::Result<UdpSocket> {
    if local.interface().is_none() {
        return UdpSocket::bind(address);
    }
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = net::socket_with(family, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    local.bind_interface(socket.as_fd())?;
    net::bind(&socket, &address)?;
    Ok(UdpSocket::from(socket))
}

/// Whether the kernel splits packets that are longer than their path takes; true where it could be told.
fn set_splits(socket: &UdpSocket, splits: bool) -> bool {
    let (v4, v6) = match splits {
        true => (Ipv4PathMtuDiscovery::WANT, Ipv6PathMtuDiscovery::WANT),
        false => (Ipv4PathMtuDiscovery::DO, Ipv6PathMtuDiscovery::DO),
    };
    // A socket of IPv6 carries packets of IPv4, too.
    let is_v6 = socket.local_addr().is_ok_and(|local| local.is_ipv6());
    let told = sockopt::set_ip_mtu_discover(socket, v4).is_ok();
    told && (!is_v6 || sockopt::set_ipv6_mtu_discover(socket, v6).is_ok())
}

/// Longest packet that the way to an address takes from a socket with such a binding, as this host knows it now.
fn bytes_to(address: SocketAddr, local: &Binding) -> Option<usize> {
    let host = address.ip().to_canonical();
    let any: IpAddr = match host {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let own = local.call_from().filter(|from| from.is_ipv4() == host.is_ipv4());
    let scout = open_at(own.unwrap_or((any, 0).into()), local).ok()?;
    match address {
        SocketAddr::V6(v6) if host.is_ipv6() => scout.connect(v6).ok()?,
        _ => scout.connect((host, address.port())).ok()?,
    }
    let (whole, header) = match host {
        IpAddr::V4(_) => (sockopt::ip_mtu(&scout).ok()?, 20),
        IpAddr::V6(_) => (sockopt::ipv6_mtu(&scout).ok()?, 40),
    };
    (whole as usize).checked_sub(header + UDP_BYTES)
}

/// Whether the kernel reports with this error that it does not cut messages, at all or for a path. Such a path is
/// too narrow for the pieces (the error code changed between kernel versions), or encrypts.
fn is_about_cutting(error: &std::io::Error) -> bool {
    let known = [libc::EIO, libc::EINVAL, libc::ENOPROTOOPT, libc::EMSGSIZE];
    error.raw_os_error().is_some_and(|number| known.contains(&number))
}

impl Port for UdpPort {
    type Station = SocketAddr;

    fn scheme(&self) -> &'static str {
        "udp"
    }

    fn endpoint(&self) -> u8 {
        ENDPOINT
    }

    fn packet_bytes(&self) -> usize {
        self.config.packet_bytes
    }

    fn packet_bytes_to(&mut self, station: SocketAddr) -> usize {
        // If the path is unknown, the length that nearly all networks take.
        let known = bytes_to(station, &self.config.local).unwrap_or(PACKET_BYTES_USUAL);
        known.min(self.config.packet_bytes)
    }

    fn bound_to(&self) -> Option<String> {
        let local = &self.config.local;
        (!local.is_free()).then(|| local.to_string())
    }

    fn entropy(&self) -> u16 {
        self.config.local.entropy()
    }

    fn packets_max(&self) -> u32 {
        (self.receive_buffer / (self.config.packet_bytes + OVERHEAD_BYTES)) as u32
    }

    fn addresses(&self) -> Vec<String> {
        match self.config.listen {
            None => Vec::new(),
            Some(_) if !self.config.advertise.is_empty() => self.config.advertise.clone(),
            Some(_) => {
                let interface = self.config.local.interface().map(|(_, name)| name);
                ropewalk_rail::host::reachable_by(self.local, interface)
            }
        }
    }

    fn resolve(&mut self, address: &str) -> Result<(SocketAddr, u8), Fault> {
        let Some(Target::Numeric(address)) = parse(address) else { return Err(Fault::Invalid) };
        if address.port() == 0 {
            return Err(Fault::Invalid);
        }
        self.usable(address).map(|address| (address, ENDPOINT)).ok_or(Fault::Unreachable)
    }

    fn look_up(&mut self, address: &str) -> Result<(u64, SocketAddr), Fault> {
        let Some(Target::Name(host, port)) = parse(address) else { return Err(Fault::Invalid) };
        if self.lookups.is_none() {
            let lookups = Lookups::new().map_err(|_| Fault::Busy)?;
            if let Some(set) = &self.set {
                let watched =
                    epoll::add(set, lookups.bell(), EventData::new_u64(0), EventFlags::IN);
                watched.map_err(|_| Fault::Busy)?;
            }
            self.lookups = Some(lookups);
        }
        let lookups = self.lookups.as_mut().ok_or(Fault::Busy)?;
        self.tickets += 1;
        lookups.begin(self.tickets, host, port)?;
        Ok((self.tickets, SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), 0)))
    }

    fn found(&mut self) -> Option<Found<SocketAddr>> {
        let lookups = self.lookups.as_mut()?;
        lookups.quiet();
        let (ticket, found) = lookups.answer()?;
        let mut usable = found.iter().rev().filter_map(|address| self.usable(*address));
        Some(Found { ticket, place: usable.next().map(|address| (address, ENDPOINT)) })
    }

    fn host(&self, station: SocketAddr) -> Option<String> {
        Some(station.ip().to_canonical().to_string())
    }

    fn receive(&mut self, max: usize, to: &mut dyn FnMut(SocketAddr, &[u8])) -> Received {
        let mut packets = 0;
        while packets < max {
            self.counters.system_calls += 1;
            let (count, all) = match self.incoming.receive(self.socket.as_fd()) {
                Ok(received) => received,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // A peer that is not there: its silence is the machine's to judge.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => continue,
                Err(_) => return Received { packets, empty: true },
            };
            for index in 0..count {
                let Some((from, datagrams)) = self.incoming.message(index) else { continue };
                // A sender without a port cannot be answered.
                if from.port() == 0 {
                    continue;
                }
                for datagram in datagrams {
                    packets += 1;
                    to(from, datagram);
                }
            }
            if all || count < MESSAGES_MAX {
                // If there may be more, a caller that waits for these packets does not wait for another look.
                return Received { packets, empty: all };
            }
        }
        Received { packets, empty: false }
    }

    fn slot(&mut self) -> Option<&mut [u8]> {
        if self.packets.len() >= PACKETS_MAX {
            return None;
        }
        self.arena.get_mut(self.filled..self.filled + self.config.packet_bytes)
    }

    fn commit(&mut self, to: SocketAddr, bytes: usize) {
        self.commit_around(to, Leaving::whole(bytes));
    }

    fn commit_around(&mut self, to: SocketAddr, leaving: Leaving) {
        let bytes = leaving.bytes();
        let written = self.filled..self.filled + leaving.written;
        let index = self.packets.len();
        self.filled = written.end;
        self.packets.push(match leaving.kept {
            None => Packet::whole(written),
            Some(kept) => Packet::around(written, leaving.tail, kept),
        });
        // All datagrams of a run but the last have one length.
        let cuts = self.may_cut(to);
        if let Some(run) = self.runs.last_mut()
            && cuts
            && run.to == to
            && run.bytes % run.segment == 0
            && bytes <= run.segment
            && run.bytes / run.segment < SEGMENTS_MAX
            && run.bytes + bytes <= RUN_BYTES_MAX
        {
            run.bytes += bytes;
            run.packets.end += 1;
            return;
        }
        self.runs.push(Run { to, packets: index..index + 1, bytes, segment: bytes });
    }

    fn flush(&mut self) -> bool {
        let mut done = 0;
        while done < self.runs.len() {
            self.counters.system_calls += 1;
            match batch::send(self.socket.as_fd(), &self.arena, &self.packets, &self.runs[done..]) {
                Ok(sent) => done += sent.max(1),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    self.runs.drain(..done);
                    return false;
                }
                Err(error) if self.runs[done].is_cut() && is_about_cutting(&error) => {
                    self.runs.drain(..done);
                    done = 0;
                    self.cut_here(error.raw_os_error() != Some(libc::ENOPROTOOPT));
                }
                Err(error) if self.is_too_narrow(done, &error) => {
                    set_splits(&self.socket, true);
                    self.splits = true;
                }
                // A packet that cannot leave is as good as lost.
                Err(error) => {
                    let number = error.raw_os_error().unwrap_or_default();
                    self.refusals.note(self.runs[done].to, number);
                    self.counters.drops.unsent += 1;
                    done += 1;
                }
            }
        }
        self.runs.clear();
        self.packets.clear();
        self.filled = 0;
        true
    }

    fn attach(&mut self, set: BorrowedFd<'_>) -> std::io::Result<()> {
        epoll::add(set, &self.socket, EventData::new_u64(0), EventFlags::IN)?;
        self.set = Some(set.try_clone_to_owned()?);
        Ok(())
    }

    fn counters(&self) -> PortCounters {
        self.counters
    }

    fn local_side(&self) -> Option<LocalSide<'_>> {
        self.config.local.side()
    }

    fn has_route(&self, station: SocketAddr) -> bool {
        self.config.local.reaches(station.ip())
    }

    fn refused(&mut self) -> Option<(SocketAddr, i32)> {
        self.refusals.take()
    }

    fn interface(&self) -> Option<u32> {
        self.config.local.interface().map(|(index, _)| index)
    }
}
