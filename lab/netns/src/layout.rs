//! The parts of a network: names, numbers, addresses, and the commands that make them.
//!
//! Invariants:
//! * nothing is random: the same configuration gives the same indexes, Ethernet addresses and addresses;
//! * the two ends of a cable never have the same index. Where they have, the kernel may report a lost carrier up to a
//!   second late.

use std::net::{Ipv4Addr, Ipv6Addr};

use crate::direction::Direction;
use crate::error::{Error, Result};
use crate::tool::Tool;

/// Hosts and rails of a network.
pub const HOSTS_MAX: usize = 64;
pub const RAILS_MAX: usize = 8;

/// Time that a frame waits at most where the rate is limited, in milliseconds.
const QUEUE_MS: u64 = 20;
/// The bridge of a switch.
pub(crate) const SWITCH: &str = "switch";

/// How the hosts of a rail are joined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Joint {
    /// Two hosts, by a cable.
    Direct,
    /// By a switch for each rail: a bridge in a namespace of its own.
    Switched,
}

/// The configuration of a [`Topology`](crate::Topology).
#[derive(Debug, Clone)]
pub struct TopologyConfig {
    /// 2 to [`HOSTS_MAX`].
    pub hosts: usize,
    /// 1 to [`RAILS_MAX`].
    pub rails: usize,
    pub joint: Joint,
    /// The longest payload of a frame, in bytes: 68 to 65,535, and 1,280 at least with IPv6.
    pub mtu: u32,
    /// The rate of each cable in either direction, in kbit/s; `None`: what the machine can do.
    pub rate_kbit: Option<u64>,
    /// Interfaces have IPv6 addresses, too.
    pub ipv6: bool,
    /// Each cable has a [wire](crate::Wire) from the beginning. It needs switches.
    pub wires: bool,
    /// The kernel may pass long TCP segments and bursts of datagrams as one frame of up to 64 KiB. Then faults act on
    /// them as on one frame.
    pub offload: bool,
}

impl Default for TopologyConfig {
    fn default() -> TopologyConfig {
        TopologyConfig {
            hosts: 2,
            rails: 2,
            joint: Joint::Switched,
            mtu: 1500,
            rate_kbit: None,
            ipv6: false,
            wires: false,
            offload: true,
        }
    }
}

impl TopologyConfig {
    pub(crate) fn check(&self) -> Result<()> {
        let least = if self.ipv6 { 1280 } else { 68 };
        let wrong = if !(2..=HOSTS_MAX).contains(&self.hosts) {
            format!("{} hosts are not 2 to {HOSTS_MAX}", self.hosts)
        } else if !(1..=RAILS_MAX).contains(&self.rails) {
            format!("{} rails are not 1 to {RAILS_MAX}", self.rails)
        } else if self.joint == Joint::Direct && (self.hosts != 2 || self.wires) {
            "more than two hosts, and wires, need Joint::Switched".to_string()
        } else if !(least..=65_535).contains(&self.mtu) {
            format!("an MTU of {} is not {least} to 65535", self.mtu)
        } else if self.rate_kbit == Some(0) {
            "a rate of 0 passes nothing".to_string()
        } else {
            return Ok(());
        };
        Err(Error::Config(wrong))
    }
}

/// The namespace of a host, or that of a rail's switch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    Host(usize),
    Switch(usize),
}

/// A command in a namespace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Order {
    pub place: Place,
    pub tool: Tool,
    pub line: String,
}

impl Order {
    pub fn ip(place: Place, line: impl Into<String>) -> Order {
        Order { place, tool: Tool::Ip, line: line.into() }
    }
}

/// See the module. Methods name a cable by host and rail.
#[derive(Debug)]
pub(crate) struct Layout {
    pub config: TopologyConfig,
    /// The names of the hosts' namespaces.
    pub host_names: Vec<String>,
}

/// A host's interface.
pub(crate) fn interface(rail: usize) -> String {
    format!("rail{rail}")
}

/// The end of a host's cable in the switch.
pub(crate) fn port(host: usize) -> String {
    format!("port{host}")
}

/// Both ends of the cable behind a wire: the wire has the first, the bridge the second.
pub(crate) fn behind_wire(host: usize) -> [String; 2] {
    [format!("wire{host}"), format!("inner{host}")]
}

pub(crate) fn address(host: usize, rail: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, rail as u8, 0, host as u8 + 1)
}

pub(crate) fn address6(host: usize, rail: usize) -> Ipv6Addr {
    Ipv6Addr::new(0xfd00, 0, 0, rail as u16, 0, 0, 0, host as u16 + 1)
}

pub(crate) fn station(host: usize, rail: usize) -> [u8; 6] {
    [0x02, 0x72, 0x77, rail as u8, 0, host as u8]
}

/// The Ethernet address as text.
pub(crate) fn station_text(host: usize, rail: usize) -> String {
    station(host, rail).map(|byte| format!("{byte:02x}")).join(":")
}

fn index(host: usize, rail: usize) -> usize {
    1000 + 100 * rail + host
}

impl Layout {
    /// The far end of a cable.
    pub fn far_end(&self, host: usize, rail: usize) -> (Place, String) {
        match self.config.joint {
            Joint::Direct => (Place::Host(1 - host), interface(rail)),
            Joint::Switched => (Place::Switch(rail), port(host)),
        }
    }

    /// Makes a switch.
    pub fn switch(rail: usize) -> Vec<Order> {
        let bridge = "type bridge mcast_snooping 0 forward_delay 0 stp_state 0";
        let lines = [format!("link add name {SWITCH} {bridge}"), format!("link set {SWITCH} up")];
        lines.map(|line| Order::ip(Place::Switch(rail), line)).into()
    }

    /// Makes a host's cable, whose far end is then up.
    pub fn cable(&self, host: usize, rail: usize) -> Vec<Order> {
        let (place, far) = self.far_end(host, rail);
        let mtu = self.config.mtu;
        let (near, name) = (interface(rail), &self.host_names[host]);
        let (address, near_index) = (station_text(host, rail), index(host, rail));
        let far_index = match self.config.joint {
            Joint::Direct => index(1 - host, rail),
            Joint::Switched => 100 + host,
        };
        let mut lines = vec![format!(
            "link add name {far} index {far_index} mtu {mtu} type veth \
             peer name {near} index {near_index} mtu {mtu} address {address} netns {name}"
        )];
        if let Place::Host(other) = place {
            lines.push(format!("link set {far} address {}", station_text(other, rail)));
        }
        lines.push(format!("link set {far} up"));
        lines.into_iter().map(|line| Order::ip(place, line)).collect()
    }

    /// Joins a cable to the bridge.
    pub fn plug(&self, host: usize, rail: usize) -> Option<Order> {
        let line = format!("link set {} master {SWITCH}", port(host));
        (self.config.joint == Joint::Switched).then(|| Order::ip(Place::Switch(rail), line))
    }

    /// Adds and removes the addresses of `numbered` on a host's interface; usually that is the host itself.
    pub fn addresses(&self, verb: &str, host: usize, numbered: usize, rail: usize) -> Vec<Order> {
        let (interface, v4, v6) =
            (interface(rail), address(numbered, rail), address6(numbered, rail));
        let mut lines = vec![format!("address {verb} {v4}/24 dev {interface}")];
        if self.config.ipv6 {
            lines.push(format!("address {verb} {v6}/64 dev {interface} nodad"));
        }
        lines.into_iter().map(|line| Order::ip(Place::Host(host), line)).collect()
    }

    /// Sets up a host's interface.
    pub fn end(&self, host: usize, rail: usize) -> Vec<Order> {
        let interface = interface(rail);
        let mut orders = self.addresses("add", host, host, rail);
        if !self.config.offload {
            orders.push(self.segments(host, rail, false));
        }
        orders.push(Order::ip(Place::Host(host), format!("link set {interface} up")));
        orders
    }

    /// Lets a host's interface take long segments of TCP as one frame, or not.
    pub fn segments(&self, host: usize, rail: usize, joined: bool) -> Order {
        let most = if joined { 65_535 } else { 1 };
        Order::ip(Place::Host(host), format!("link set {} gso_max_segs {most}", interface(rail)))
    }

    /// Limits the rate of a cable, or no longer; `None` where there was no limit does nothing.
    pub fn rate(
        &self,
        host: usize,
        rail: usize,
        direction: Direction,
        kbit: Option<u64>,
    ) -> Vec<Order> {
        let near = direction.has_from().then(|| (Place::Host(host), interface(rail)));
        let far = direction.has_to().then(|| self.far_end(host, rail));
        let mtu = u64::from(self.config.mtu);
        let line = |device: &str| match kbit {
            Some(kbit) => {
                // A millisecond's worth in one piece, and frames at least. A joined segment that waits since the rate
                // was a greater one would never leave a smaller bucket.
                let before = self.config.rate_kbit.unwrap_or(0);
                let burst = (kbit.max(before) / 8).max(2 * (mtu + 100));
                let limit = burst + (kbit * QUEUE_MS / 8).max(2 * mtu);
                let limits = format!("rate {kbit}kbit burst {burst} limit {limit}");
                format!("qdisc replace dev {device} root tbf {limits}")
            }
            None => format!("qdisc delete dev {device} root"),
        };
        let order =
            |(place, device): (Place, String)| Order { place, tool: Tool::Tc, line: line(&device) };
        near.into_iter().chain(far).map(order).collect()
    }

    /// Limits the rate of a new cable, where the network has limits.
    pub fn first_rate(&self, host: usize, rail: usize) -> Vec<Order> {
        let direction = match self.config.joint {
            Joint::Direct => Direction::From,
            Joint::Switched => Direction::Both,
        };
        match self.config.rate_kbit {
            Some(kbit) => self.rate(host, rail, direction, Some(kbit)),
            None => Vec::new(),
        }
    }

    /// Makes the cable behind a wire.
    pub fn seam(&self, host: usize, rail: usize) -> Vec<Order> {
        let ([wire, inner], mtu) = (behind_wire(host), self.config.mtu);
        let (first, second) = (200 + host, 300 + host);
        let lines = [
            format!(
                "link add name {wire} index {first} mtu {mtu} type veth \
                 peer name {inner} index {second} mtu {mtu}"
            ),
            format!("link set {wire} up"),
            format!("link set {inner} up"),
        ];
        lines.map(|line| Order::ip(Place::Switch(rail), line)).into()
    }

    /// Puts a wire, which already runs, between the host's cable and the bridge.
    pub fn swap(host: usize, rail: usize) -> Vec<Order> {
        let (port, [_, inner]) = (port(host), behind_wire(host));
        let lines =
            [format!("link set {port} nomaster"), format!("link set {inner} master {SWITCH}")];
        lines.map(|line| Order::ip(Place::Switch(rail), line)).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impossible_networks_are_refused_with_the_reason() {
        let usual = TopologyConfig::default();
        assert!(usual.check().is_ok());
        let wrong = [
            TopologyConfig { hosts: 1, ..usual.clone() },
            TopologyConfig { rails: 9, ..usual.clone() },
            TopologyConfig { hosts: 3, joint: Joint::Direct, ..usual.clone() },
            TopologyConfig { wires: true, joint: Joint::Direct, ..usual.clone() },
            TopologyConfig { mtu: 1279, ipv6: true, ..usual.clone() },
            TopologyConfig { rate_kbit: Some(0), ..usual },
        ];
        for config in wrong {
            let said = config.check().expect_err("it is wrong").to_string();
            assert!(said.starts_with("such a network cannot be built: "), "{said}");
        }
    }

    #[test]
    fn both_ends_of_each_cable_have_indexes_of_their_own() {
        for joint in [Joint::Direct, Joint::Switched] {
            let host_names = vec!["a".to_string(), "b".to_string()];
            let config = TopologyConfig { joint, ..TopologyConfig::default() };
            let layout = Layout { config, host_names };
            let line = layout.cable(0, 1).remove(0).line;
            let indexes: Vec<&str> = line.split("index ").skip(1).collect();
            assert_eq!(indexes.len(), 2, "{line}");
            assert_ne!(indexes[0].split(' ').next(), indexes[1].split(' ').next(), "{line}");
        }
    }
}
