//! Two hosts with two rails between them. The test's thread is at the first host; rails of the suite are at both.
#![allow(dead_code)]

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use ropewalk_base::time::Time;
use ropewalk_net::modules::{self, Listen};
use ropewalk_netns::{Joint, Topology, TopologyConfig};
use ropewalk_rail::Rail;
use ropewalk_rail::conformance::Fixture;

/// Whether `ip` does so at the first host.
pub fn ip(line: &str) -> bool {
    let words = line.split_whitespace();
    let status = Command::new("ip").args(words).stdin(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

/// A network whose first host this thread enters. `None`, with the reason on the standard output, where this machine does
/// not allow it.
pub fn network(joint: Joint) -> Option<Topology> {
    let net = Topology::or_skip(&TopologyConfig { joint, ..TopologyConfig::default() })?;
    net.host(0).namespace().enter().expect("this thread may go there");
    Some(net)
}

/// Bytes that left the first host by a rail so far.
pub fn sent_bytes(net: &Topology, rail: usize) -> u64 {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").expect("the kernel tells");
    let name = format!("{}:", net.host(0).interface(rail));
    let line = table.lines().find(|line| line.trim_start().starts_with(&name));
    let words: Vec<&str> = line.expect("it is there").split_whitespace().collect();
    words[9].parse().expect("a number")
}

/// Rails on one wire of a network: the first at the first host, the second at the second.
pub struct Wired<'n> {
    net: &'n Topology,
    scheme: &'static str,
    rail: usize,
    /// Addresses name the source address beside the interface.
    pub names_source: bool,
    /// Addresses name the source address alone.
    pub by_source: bool,
    opened: usize,
    start: Instant,
}

impl<'n> Wired<'n> {
    pub fn new(net: &'n Topology, scheme: &'static str, rail: usize) -> Wired<'n> {
        let (names_source, by_source, opened) = (false, false, 0);
        Wired { net, scheme, rail, names_source, by_source, opened, start: Instant::now() }
    }
}

impl Fixture for Wired<'_> {
    fn rail(&mut self) -> Box<dyn Rail> {
        let host = self.net.host(self.opened % 2);
        self.opened += 1;
        let (interface, source) = (host.interface(self.rail), host.address(self.rail));
        let address = match self.scheme {
            "ether" => interface,
            _ if self.by_source => format!("{source}:0?source={source}"),
            _ if self.names_source => format!("{source}:0?interface={interface}&source={source}"),
            _ => format!("{source}:0?interface={interface}"),
        };
        let listen = Listen::At { address: &address, exactly: true };
        host.within(|| modules::open(self.scheme, &listen).expect("the interface is there"))
    }

    fn nowhere(&mut self) -> String {
        unreachable!("no test calls nobody")
    }

    fn now(&self) -> Time {
        Time(self.start.elapsed().as_nanos() as u64)
    }

    fn step(&mut self, busy: bool) {
        if !busy {
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}
