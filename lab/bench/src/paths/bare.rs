//! The stream through plain sockets: TCP, and TCP over several paths (MPTCP).

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};

use anyhow::{Context, anyhow};
use ropewalk_netns::Topology;
use rustix::net::{AddressFamily, SocketType, bind, connect, ipproto, listen, socket};

use crate::host::monotonic_nanos;
use crate::paths::stream::{Arrivals, MESSAGE_BYTES, fill};

/// The receiver, before and after the sender came, or the sender.
pub enum Bare {
    Sender { many: bool, stream: Option<TcpStream> },
    Receiver { listener: TcpListener, address: Ipv4Addr, stream: Option<TcpStream> },
}

fn protocol(many: bool) -> rustix::net::Protocol {
    if many { ipproto::MPTCP } else { ipproto::TCP }
}

impl Bare {
    /// `many`: a socket that may use several paths. The receiver has an address to listen at.
    pub fn open(many: bool, listens: Option<Ipv4Addr>) -> anyhow::Result<Bare> {
        let Some(address) = listens else { return Ok(Bare::Sender { many, stream: None }) };
        let socket = socket(AddressFamily::INET, SocketType::STREAM, Some(protocol(many)))?;
        // Further paths come to other addresses of the host, at the same port.
        let at = if many { Ipv4Addr::UNSPECIFIED } else { address };
        bind(&socket, &SocketAddrV4::new(at, 0))?;
        listen(&socket, 1)?;
        Ok(Bare::Receiver { listener: TcpListener::from(socket), address, stream: None })
    }

    /// Where it listens; nothing of a sender.
    pub fn url(&self) -> anyhow::Result<String> {
        Ok(match self {
            Bare::Sender { .. } => String::new(),
            Bare::Receiver { listener, address, .. } => {
                format!("{address}:{}", listener.local_addr()?.port())
            }
        })
    }

    /// Connects both sides.
    pub fn meet(&mut self, other: &str) -> anyhow::Result<()> {
        match self {
            Bare::Sender { many, stream } => {
                let family = AddressFamily::INET;
                let socket = socket(family, SocketType::STREAM, Some(protocol(*many)))?;
                let address: SocketAddr =
                    other.parse().with_context(|| format!("'{other}' is no address"))?;
                connect(&socket, &address)?;
                *stream = Some(TcpStream::from(socket));
            }
            Bare::Receiver { listener, stream, .. } => *stream = Some(listener.accept()?.0),
        }
        Ok(())
    }

    fn stream(&mut self) -> anyhow::Result<&mut TcpStream> {
        let (Bare::Sender { stream, .. } | Bare::Receiver { stream, .. }) = self;
        stream.as_mut().context("the sides did not meet")
    }

    pub fn pour(&mut self, until: u64) -> anyhow::Result<u64> {
        let stream = self.stream()?;
        let mut message = vec![0; MESSAGE_BYTES];
        for number in 0.. {
            let is_last = monotonic_nanos() >= until;
            fill(&mut message, number, is_last);
            stream.write_all(&message)?;
            if is_last {
                // Where the last message comes damaged, its receiver has to notice the end, too.
                stream.shutdown(Shutdown::Write)?;
                return Ok(number + 1);
            }
        }
        unreachable!("the numbers do not end")
    }

    pub fn drink(&mut self) -> anyhow::Result<Arrivals> {
        let stream = self.stream()?;
        let mut arrivals = Arrivals::default();
        let mut message = vec![0; MESSAGE_BYTES];
        for place in 0.. {
            match stream.read_exact(&mut message) {
                Ok(()) => arrivals.note(place, &message, monotonic_nanos()),
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(arrivals),
                Err(error) => return Err(error.into()),
            }
            if arrivals.is_complete() {
                return Ok(arrivals);
            }
        }
        unreachable!("the numbers do not end")
    }
}

/// The least re-sending time-out of a tuned kernel, in microseconds, instead of 200 ms.
const RESEND_US: &str = "8000";
/// The re-sending time-outs after which a tuned kernel uses another path, instead of 4.
const STALE_COUNT: &str = "1";

/// Lets sockets of several paths use all rails between hosts: every second one tells the others its addresses.
pub fn join_rails(topology: &Topology) -> anyhow::Result<()> {
    let rails = topology.config().rails;
    for host in topology.hosts() {
        let more = (rails - 1).to_string();
        let limits = ["mptcp", "limits", "set", "subflows", &more, "add_addr_accepted", &more];
        ip(host, &limits)?;
    }
    for receiver in topology.hosts().skip(1).step_by(2) {
        for rail in 1..rails {
            let (address, device) = (receiver.address(rail).to_string(), receiver.interface(rail));
            ip(receiver, &["mptcp", "endpoint", "add", &address, "dev", &device, "signal"])?;
        }
    }
    Ok(())
}

fn ip(host: ropewalk_netns::Host<'_>, arguments: &[&str]) -> anyhow::Result<()> {
    let output = host.command("ip").args(arguments).output()?;
    let said = String::from_utf8_lossy(&output.stderr);
    let line = || anyhow!("'ip {}' failed: {}", arguments.join(" "), said.trim());
    output.status.success().then_some(()).ok_or_else(line)
}

/// Lets the kernel of these hosts notice a dead path as early as it can.
pub fn tune(topology: &Topology) -> anyhow::Result<()> {
    for host in topology.hosts() {
        for (name, value) in
            [("ipv4/tcp_rto_min_us", RESEND_US), ("mptcp/stale_loss_cnt", STALE_COUNT)]
        {
            let path = format!("/proc/sys/net/{name}");
            host.within(|| std::fs::write(&path, value))
                .with_context(|| format!("cannot write {path}"))?;
        }
    }
    Ok(())
}
