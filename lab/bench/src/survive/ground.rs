//! The hosts of servers and clients: network namespaces where this user may make them, else this host alone.

use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::Command;

use anyhow::ensure;
use ropewalk_netns::{Fault, FaultKind, Injected, Tool, Topology, TopologyConfig};

/// The two metadata servers, the data server and the clients, where there is a standby.
pub const HOSTS: usize = 4;
pub const DATA: usize = 2;
pub const CLIENTS: usize = 3;

/// See the module.
pub struct Ground {
    network: Option<Topology>,
    program: PathBuf,
    /// Ports in namespaces: no two servers get the same.
    port: std::cell::Cell<u16>,
}

impl Ground {
    /// Makes so many namespaces, or says on stderr why there are none.
    pub fn make(hosts: usize) -> anyhow::Result<Ground> {
        let config = TopologyConfig { hosts, rails: 1, ..TopologyConfig::default() };
        let nsenter = Tool::Nsenter.find();
        let network = match nsenter.and_then(|_| Topology::new(&config)) {
            Ok(network) => Some(network),
            Err(lack) if lack.is_lack() => {
                eprintln!("servers and clients share this host's network: {lack}");
                None
            }
            Err(error) => return Err(error.into()),
        };
        let (program, port) = (std::env::current_exe()?, std::cell::Cell::new(7700));
        Ok(Ground { network, program, port })
    }

    /// Why no host can be cut off; `None`: it can.
    pub fn lacks_cuts(&self) -> Option<String> {
        match &self.network {
            None => Some("that needs network namespaces".into()),
            Some(_) => Tool::Nft.find().err().map(|lack| lack.to_string()),
        }
    }

    /// Bytes that a host's network has sent and got; `None` where it is that of all processes.
    pub fn crossed(&self, host: usize) -> Option<(u64, u64)> {
        let network = self.network.as_ref()?;
        // A process of that host may have ended by now, so this one looks.
        network.host(host).namespace().within(crate::host::network_bytes)
    }

    /// What this is, for people and programs.
    pub fn name(&self) -> &'static str {
        if self.network.is_some() { "namespaces" } else { "loopback" }
    }

    /// A command that starts this program at a host.
    pub fn command(&self, host: usize) -> Command {
        match &self.network {
            Some(network) => network.host(host).command(&self.program),
            None => Command::new(&self.program),
        }
    }

    /// Orders a host's network by `ip`; false where hosts have none of their own.
    pub fn order(&self, host: usize, words: &[&str]) -> anyhow::Result<bool> {
        let Some(network) = &self.network else { return Ok(false) };
        let done = network.host(host).command("ip").args(words).output()?;
        ensure!(
            done.status.success(),
            "ip {}: {}",
            words.join(" "),
            String::from_utf8_lossy(&done.stderr).trim()
        );
        Ok(true)
    }

    /// A place where a server of a host can listen, also after it was started again.
    pub fn place(&self, host: usize) -> anyhow::Result<SocketAddr> {
        let Some(network) = &self.network else {
            // One that was free a moment ago.
            return Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?);
        };
        self.port.set(self.port.get() + 1);
        Ok(SocketAddr::new(network.host(host).address(0), self.port.get()))
    }

    /// Limits what a host sends and gets, in Gbit/s, until this is mended; `None` where hosts have no network of their own.
    pub fn limit(&self, host: usize, gigabits: u64) -> anyhow::Result<Option<Injected>> {
        let Some(network) = &self.network else { return Ok(None) };
        let kind = FaultKind::Rate { kbit: gigabits * 1_000_000 };
        Ok(Some(network.inject(&Fault::new(kind, host, 0))?))
    }

    /// Cuts a host off, silently, until this is mended.
    pub fn cut(&self, host: usize) -> anyhow::Result<Injected> {
        let network =
            self.network.as_ref().ok_or_else(|| anyhow::anyhow!("there is no network"))?;
        Ok(network.inject(&Fault::new(FaultKind::Cut, host, 0))?)
    }
}
