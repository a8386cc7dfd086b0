//! The rows of the MX figures: the metric, the network and the amount of work of each.

use crate::mx::sweeps::{self, Sweep};

/// The metric of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Latency,
    Bandwidth,
    /// The part of a message's time that passes while its receiver computes.
    Overlap,
    /// Bandwidth while frames are lost.
    Loss,
    /// Bandwidth of both directions together, a message of each side at a time.
    BothWays,
    /// Bytes that are copied for each byte.
    Copies,
    /// Messages in a second.
    Rate,
}

/// The network that carries the messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Network {
    Ether,
    /// The same by AF_XDP.
    EtherXdp,
    Mxoe,
    /// MXoE as native MX speaks it.
    Compatible,
    Udp,
    Tcp,
}

/// The name of each network in options and rows.
pub const NAMES: [(Network, &str); 6] = [
    (Network::Ether, "ether"),
    (Network::EtherXdp, "ether-xdp"),
    (Network::Mxoe, "mxoe"),
    (Network::Compatible, "mxoe-compatible"),
    (Network::Udp, "udp"),
    (Network::Tcp, "tcp"),
];

impl Network {
    pub fn name(self) -> &'static str {
        NAMES.iter().find(|(network, _)| *network == self).map_or("", |(_, name)| name)
    }

    pub fn named(name: &str) -> Option<Network> {
        NAMES.iter().find(|(_, other)| *other == name).map(|(network, _)| *network)
    }

    /// The name of the reference's carrier.
    pub fn bare_name(self) -> &'static str {
        match self {
            Network::Ether | Network::EtherXdp | Network::Mxoe | Network::Compatible => "frames",
            Network::Udp => "udp",
            Network::Tcp => "tcp",
        }
    }
}

/// A row: one launch of each system measures all its sizes.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    pub name: String,
    pub kind: Kind,
    pub network: Network,
    pub mtu: usize,
    pub spins: bool,
    pub sizes: Vec<usize>,
    /// Of each size: bytes in all, each message counted with [`MESSAGE_COST`]; of overlaps: rounds.
    pub amount: usize,
    /// The rate limit of the link, in Gbit/s; 0: no limit.
    pub gigabits: u32,
    /// The setting in which parties differ.
    pub sweep: Sweep,
}

/// The cost of a message beside its bytes, in bytes: it limits the time of small messages.
const MESSAGE_COST: usize = 1000;
/// Messages of a measurement.
const COUNTS: std::ops::RangeInclusive<usize> = 20..=20_000;

impl Row {
    /// Messages of this size that make up the amount.
    pub fn count(&self, bytes: usize) -> usize {
        let count = (self.amount / (MESSAGE_COST + bytes)).clamp(*COUNTS.start(), *COUNTS.end());
        // A sleeper's message takes many times longer.
        if self.kind == Kind::Latency && !self.spins { count / 4 + 10 } else { count }
    }
}

/// Sizes on both sides of the class limits and of our own limit, 16 KiB, and longer ones. From 4 to 64 KiB none is
/// more than twice as long as the one before: a size that falls behind its neighbours is visible.
const SIZES: [usize; 18] = [
    0,
    32,
    33,
    128,
    129,
    1024,
    4096,
    4097,
    8192,
    16_384,
    16_385,
    32_768,
    32_769,
    65_536,
    131_072,
    524_288,
    1 << 20,
    4 << 20,
];
const SIZES_QUICK: [usize; 7] = [0, 32, 129, 4096, 32_768, 32_769, 1 << 20];
/// Of bandwidth where it is judged whether one falls behind its neighbours: as above, from 4 to 64 KiB.
const BANDWIDTH_QUICK: [usize; 9] = [32, 129, 4096, 8192, 16_384, 32_768, 32_769, 65_536, 1 << 20];
const OVERLAPPED: usize = 1_000_000;

/// All rows.
pub fn rows_of(quick: bool, scale: f64) -> Vec<Row> {
    let scaled = |amount: usize| ((amount as f64 * scale) as usize).max(1);
    let either = |short: usize, long: usize| scaled(if quick { short } else { long });
    let sizes = if quick { &SIZES_QUICK[..] } else { &SIZES };
    let sizes_of_bandwidth = |network| match network {
        Network::Ether | Network::Udp if quick => &BANDWIDTH_QUICK[..],
        _ => &sizes[1..],
    };
    let mut rows = Vec::new();
    for mtu in [1500, 9000] {
        for (network, name) in NAMES {
            if network == Network::Compatible && mtu < 9000 {
                continue;
            }
            let mut add = |kind, what: &str, wait: &str, sizes: &[usize], amount| {
                let (name, spins) = (format!("{what}.{name}.{mtu}{wait}"), wait == ".spin");
                let sizes = sizes.to_vec();
                let (gigabits, sweep) = (0, Sweep::Nothing);
                let plain = Row { name, kind, network, mtu, spins, sizes, amount, gigabits, sweep };
                rows.push(plain);
            };
            for wait in [".spin", ".block"] {
                add(Kind::Latency, "latency", wait, sizes, either(2_000_000, 20_000_000));
            }
            for wait in [".spin", ".block"] {
                let amount = either(10_000_000, 200_000_000);
                if wait == ".spin" || !quick {
                    let sizes = sizes_of_bandwidth(network);
                    add(Kind::Bandwidth, "bandwidth", wait, sizes, amount);
                }
            }
            // Overlap and loss are the same whether or not frames come by AF_XDP.
            if network == Network::EtherXdp {
                continue;
            }
            if !quick || mtu == 9000 {
                add(Kind::Overlap, "overlap", "", &[OVERLAPPED], either(5, 30).max(3));
            }
            if !quick || network != Network::Tcp {
                let amount = either(8_000_000, 64_000_000);
                add(Kind::Loss, "loss", "", &[32_769, 1 << 20], amount);
            }
        }
    }
    rows.extend(sweeps::rows_of(quick, scale));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_names_of_their_own() {
        for quick in [true, false] {
            let mut names: Vec<String> =
                rows_of(quick, 1.0).into_iter().map(|row| row.name).collect();
            let count = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), count);
            assert!(names.contains(&"latency.mxoe-compatible.9000.block".to_string()));
            assert!(!names.contains(&"latency.mxoe-compatible.1500.spin".to_string()));
            assert!(names.contains(&"latency.ether-xdp.1500.spin".to_string()));
            assert!(!names.iter().any(|name| name.starts_with("overlap.ether-xdp")));
        }
    }

    #[test]
    fn who_is_in_a_hurry_sees_losses_in_long_frames_and_sizes_beside_their_neighbours() {
        let rows = rows_of(true, 1.0);
        let row = |name: &str| rows.iter().find(|row| row.name == name).expect("its row");
        for name in ["ether", "mxoe", "udp"] {
            assert_eq!(row(&format!("loss.{name}.9000")).kind, Kind::Loss);
            assert_eq!(row(&format!("loss.{name}.1500")).kind, Kind::Loss);
        }
        for name in ["ether.1500", "ether.9000", "udp.1500", "udp.9000"] {
            let sizes = &row(&format!("bandwidth.{name}.spin")).sizes;
            let judged: Vec<usize> =
                sizes.iter().copied().filter(|bytes| (4096..=65_536).contains(bytes)).collect();
            assert!(judged.windows(2).all(|pair| pair[1] <= 2 * pair[0]), "{name}: {judged:?}");
            assert_eq!((judged[0], judged[judged.len() - 1]), (4096, 65_536));
        }
    }

    #[test]
    fn networks_are_found_by_their_names() {
        for (network, name) in NAMES {
            assert_eq!((network.name(), Network::named(name)), (name, Some(network)));
        }
        assert_eq!(Network::named("gm"), None);
    }
}
