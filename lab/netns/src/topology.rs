//! Hosts in network namespaces of their own, joined by rails.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;

use crate::error::Result;
use crate::fault::Fault;
use crate::inject::Injected;
use crate::layout::{self, TopologyConfig};
use crate::link::Link;
use crate::namespace::Namespace;
use crate::network::Network;
use crate::player::Player;
use crate::tool::Tool;
use crate::wire::Wire;

/// A network, until it and all faults injected into it are dropped.
#[derive(Debug)]
pub struct Topology {
    network: Arc<Network>,
}

/// A host of a network.
#[derive(Debug, Clone, Copy)]
pub struct Host<'a> {
    network: &'a Network,
    number: usize,
}

impl Topology {
    /// Builds it. All interfaces are up and have a carrier when this returns. Fails with an error that
    /// [is a lack](crate::Error::is_lack) where the rights or `ip` are missing.
    pub fn new(config: &TopologyConfig) -> Result<Topology> {
        Ok(Topology { network: Arc::new(Network::new(config)?) })
    }

    /// For tests: as [`new`](Topology::new), but `None`, and the reason behind `SKIP: ` on the standard output, where
    /// this machine lacks the rights or one of the programs for faults. Panics where the network cannot be built though
    /// nothing is missing.
    pub fn or_skip(config: &TopologyConfig) -> Option<Topology> {
        let tools = Tool::ALL.into_iter().try_for_each(|tool| tool.find().map(drop));
        match tools.and_then(|()| Topology::new(config)) {
            Ok(topology) => Some(topology),
            Err(lack) if lack.is_lack() => {
                println!("SKIP: {lack}");
                None
            }
            Err(error) => panic!("{error}"),
        }
    }

    /// The configuration that it was built from.
    pub fn config(&self) -> &TopologyConfig {
        &self.network.layout.config
    }

    /// A host. Panics where the number is too large.
    pub fn host(&self, number: usize) -> Host<'_> {
        assert!(number < self.network.hosts.len(), "the network has no host {number}");
        Host { network: &self.network, number }
    }

    /// All hosts.
    pub fn hosts(&self) -> impl Iterator<Item = Host<'_>> {
        (0..self.network.hosts.len()).map(|number| self.host(number))
    }

    /// The namespace of a rail's switch. The bridge there is `switch`; the cable of host 3 ends at `port3`. `None` where
    /// cables are direct, and where there is no such rail.
    pub fn switch(&self, rail: usize) -> Option<&Namespace> {
        self.network.switches.get(rail)
    }

    /// The wire of a host's cable, which [`Direction::From`](crate::Direction::From) the host leads to the switch. If the
    /// cable has none, one comes in and stays; a few frames are lost meanwhile. Fails with [`Error::Busy`](crate::Error::Busy) while a fault
    /// is there that a new wire would disturb.
    pub fn wire(&self, host: usize, rail: usize) -> Result<Arc<Wire>> {
        self.network.wire(host, rail)
    }

    /// Injects a fault now, whatever its `at` says; it lasts until it is mended or dropped, whatever its `lasts` says.
    /// Fails with [`Error::Unsuited`](crate::Error::Unsuited) where it cannot occur in this network, and with [`Error::Busy`](crate::Error::Busy) where another fault
    /// excludes it.
    pub fn inject(&self, fault: &Fault) -> Result<Injected> {
        Injected::new(self.network.clone(), fault)
    }

    /// Injects and mends faults at their times, in a thread of its own.
    pub fn play(&self, faults: Vec<Fault>) -> Result<Player> {
        Player::start(self.network.clone(), faults)
    }
}

impl Host<'_> {
    /// Its number in the network.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Its namespace.
    pub fn namespace(&self) -> &Namespace {
        &self.network.hosts[self.number]
    }

    /// Runs `what` there; see [`Namespace::within`].
    pub fn within<T: Send>(&self, what: impl FnOnce() -> T + Send) -> T {
        self.namespace().within(what)
    }

    /// Starts a thread there.
    pub fn spawn<T: Send + 'static>(
        &self,
        what: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<T>> {
        self.namespace().spawn(what)
    }

    /// A command that starts a program there; see [`Namespace::command`].
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        self.namespace().command(program)
    }

    /// The name of its interface on a rail.
    pub fn interface(&self, rail: usize) -> String {
        layout::interface(rail)
    }

    /// Its address on a rail, in a network of 24 bits.
    pub fn address(&self, rail: usize) -> IpAddr {
        self.address4(rail).into()
    }

    /// The same by its type.
    pub fn address4(&self, rail: usize) -> Ipv4Addr {
        layout::address(self.number, rail)
    }

    /// Its IPv6 address on a rail, in a network of 64 bits, if the network has such addresses.
    pub fn address6(&self, rail: usize) -> Ipv6Addr {
        layout::address6(self.number, rail)
    }

    /// The Ethernet address of its interface on a rail.
    pub fn station(&self, rail: usize) -> [u8; 6] {
        layout::station(self.number, rail)
    }

    /// The present state of its interface on a rail.
    pub fn link(&self, rail: usize) -> Result<Link> {
        self.namespace().link(&self.interface(rail))
    }
}
