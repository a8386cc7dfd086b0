//! Rows that compare several settings of ours with each other, and those over shaped lines.

use crate::lab::quoted;
use crate::mx::rows::{Kind, NAMES, Network, Row};
use crate::mx::wire::Waits;

/// The setting that differs from party to party.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sweep {
    Nothing,
    /// The longest message that is sent eagerly.
    Eager,
    /// The time that a card waits after a reception before it interrupts.
    Coalescing,
    /// Endpoints of one process that receive at once.
    Endpoints,
    /// Idle endpoints beside the one that answers.
    Neighbours,
}

const EAGER: [usize; 4] = [4096, 8192, 16_384, 32_768];
/// As a pair of virtual cards is by itself: without NAPI, each frame is received as it is sent; with NAPI; with
/// NAPI that looks again after 20 or 75 us, and lets the card interrupt only after so many looks in vain.
const COALESCING: [(&str, Option<Waits>); 4] = [
    ("none", None),
    ("0 us", Some(Waits { looks: 0, nanos: 0 })),
    ("20 us", Some(Waits { looks: 8, nanos: 20_000 })),
    ("75 us", Some(Waits { looks: 8, nanos: 75_000 })),
];
const ENDPOINTS: [usize; 3] = [1, 2, 4];
/// In the process that answers, and processes with [`CROWD`] endpoints each.
const NEIGHBOURS: [(&str, usize, usize); 3] =
    [("none", 0, 0), ("63 in its process", 63, 0), ("16 processes of 4", 3, 15)];
/// Endpoints of a process that is a neighbour.
pub const CROWD: usize = 4;

impl Sweep {
    /// The number of settings.
    pub fn len(self) -> usize {
        match self {
            Sweep::Nothing => 0,
            Sweep::Eager => EAGER.len(),
            Sweep::Coalescing => COALESCING.len(),
            Sweep::Endpoints => ENDPOINTS.len(),
            Sweep::Neighbours => NEIGHBOURS.len(),
        }
    }

    /// The names of the ratio and of the first setting, with which the others are compared.
    pub fn first(self) -> (&'static str, &'static str) {
        match self {
            Sweep::Nothing => ("ratio", "nothing"),
            Sweep::Eager => ("ratio_4096", "eager 4096"),
            Sweep::Coalescing => ("ratio_plain", "no NAPI"),
            Sweep::Endpoints => ("ratio_one", "one endpoint"),
            Sweep::Neighbours => ("ratio_alone", "alone"),
        }
    }

    /// A setting as a parameter of a figure.
    pub fn param(self, at: usize) -> Option<(&'static str, String)> {
        match self {
            Sweep::Nothing => None,
            Sweep::Eager => Some(("eager", EAGER[at].to_string())),
            Sweep::Coalescing => Some(("coalescing", quoted(COALESCING[at].0))),
            Sweep::Endpoints => Some(("endpoints", ENDPOINTS[at].to_string())),
            Sweep::Neighbours => Some(("neighbours", quoted(NEIGHBOURS[at].0))),
        }
    }

    /// Bytes of the longest message that is not announced; 0: as usual.
    pub fn eager(self, at: usize) -> usize {
        if self == Sweep::Eager { EAGER[at] } else { 0 }
    }

    pub fn waits(self, at: usize) -> Option<Waits> {
        if self == Sweep::Coalescing { COALESCING[at].1 } else { None }
    }

    /// Endpoints that take part; 0: one, which is not counted.
    pub fn endpoints(self, at: usize) -> usize {
        if self == Sweep::Endpoints { ENDPOINTS[at] } else { 0 }
    }

    /// Neighbours in the process that answers, and other processes.
    pub fn neighbours(self, at: usize) -> (usize, usize) {
        if self == Sweep::Neighbours { (NEIGHBOURS[at].1, NEIGHBOURS[at].2) } else { (0, 0) }
    }
}

/// Around each threshold of a sweep, where messages are as long as that.
const AROUND: [usize; 9] = [2048, 4096, 4097, 8192, 8193, 16_384, 16_385, 32_768, 32_769];
const AROUND_QUICK: [usize; 4] = [4096, 8192, 16_384, 32_768];
/// Of shaped lines.
const SHAPED: [usize; 11] = [0, 32, 33, 128, 129, 4096, 4097, 32_768, 32_769, 131_072, 1 << 20];
const SHAPED_QUICK: [usize; 2] = [32, 1 << 20];
/// Bytes of messages whose copies are counted.
const COPIED: [usize; 5] = [32, 4096, 16_384, 32_769, 1 << 20];

/// Amounts of work.
struct Amounts {
    quick: bool,
    scale: f64,
}

impl Amounts {
    fn of(&self, quick: usize, full: usize) -> usize {
        let amount = if self.quick { quick } else { full };
        ((amount as f64 * self.scale) as usize).max(1)
    }
}

fn row(kind: Kind, name: String, network: Network, mtu: usize, amount: usize) -> Row {
    let (sizes, sweep) = (Vec::new(), Sweep::Nothing);
    Row { name, kind, network, mtu, spins: true, sizes, amount, gigabits: 0, sweep }
}

/// All rows of this kind.
pub fn rows_of(quick: bool, scale: f64) -> Vec<Row> {
    let amounts = Amounts { quick, scale };
    let mut rows = Vec::new();
    for mtu in [1500, 9000] {
        for (network, name) in NAMES {
            if network == Network::Compatible && mtu < 9000 {
                continue;
            }
            // AF_XDP makes no difference to the swept settings, and little to the other rows.
            let by_xdp = network == Network::EtherXdp;
            if by_xdp && quick {
                continue;
            }
            let frames = !matches!(network, Network::Tcp | Network::Udp);
            // A quick run measures the rows that depend on the network only for a few networks.
            if !quick || (mtu == 9000 && !matches!(network, Network::Ether | Network::Udp)) {
                shaped(&amounts, network, name, mtu, &mut rows);
            }
            if !quick || (mtu == 9000 && frames) {
                both_ways(&amounts, network, name, mtu, &mut rows);
            }
            if !quick || mtu == 9000 {
                let amount = amounts.of(20, 100).max(5);
                let copies =
                    row(Kind::Copies, format!("copies.{name}.{mtu}"), network, mtu, amount);
                rows.push(Row { spins: false, sizes: COPIED.to_vec(), ..copies });
            }
            if frames && !by_xdp && (!quick || network == Network::Ether) {
                swept(&amounts, network, name, mtu, &mut rows);
            }
        }
    }
    rows
}

fn shaped(amounts: &Amounts, network: Network, name: &str, mtu: usize, rows: &mut Vec<Row>) {
    let sizes = if amounts.quick { &SHAPED_QUICK[..] } else { &SHAPED };
    for gigabits in [1, 10] {
        for (kind, what, sizes, amount) in [
            (Kind::Latency, "latency", sizes, amounts.of(1_000_000, 10_000_000)),
            (Kind::Bandwidth, "bandwidth", &sizes[1..], amounts.of(10_000_000, 100_000_000)),
        ] {
            let name = format!("{what}.{name}.{mtu}.{gigabits}g.spin");
            let sizes = sizes.to_vec();
            rows.push(Row { gigabits, sizes, ..row(kind, name, network, mtu, amount) });
        }
    }
}

fn both_ways(amounts: &Amounts, network: Network, name: &str, mtu: usize, rows: &mut Vec<Row>) {
    let all = [32, 33, 128, 129, 4096, 4097, 32_768, 32_769, 131_072, 1 << 20, 4 << 20];
    let sizes = if amounts.quick { vec![32, 4096, 1 << 20] } else { all.to_vec() };
    let waits = if amounts.quick { &[".spin"][..] } else { &[".spin", ".block"] };
    for wait in waits {
        let name = format!("sendrecv.{name}.{mtu}{wait}");
        let amount = amounts.of(5_000_000, 50_000_000);
        let row = row(Kind::BothWays, name, network, mtu, amount);
        rows.push(Row { spins: *wait == ".spin", sizes: sizes.clone(), ..row });
    }
}

fn swept(amounts: &Amounts, network: Network, name: &str, mtu: usize, rows: &mut Vec<Row>) {
    let mut add = |kind, sweep, what: &str, spins, sizes: &[usize], amount| {
        let row = row(kind, format!("{what}.{name}.{mtu}"), network, mtu, amount);
        rows.push(Row { spins, sizes: sizes.to_vec(), sweep, ..row });
    };
    // Native MX announces at a length of its own.
    if network != Network::Compatible && (!amounts.quick || mtu == 9000) {
        let sizes = if amounts.quick { &AROUND_QUICK[..] } else { &AROUND };
        let amount = amounts.of(1_000_000, 20_000_000);
        add(Kind::Latency, Sweep::Eager, "threshold.latency", true, sizes, amount);
        let amount = amounts.of(4_000_000, 100_000_000);
        add(Kind::Bandwidth, Sweep::Eager, "threshold.bandwidth", true, sizes, amount);
    }
    if !amounts.quick || mtu == 1500 {
        let (some, much) = (amounts.of(500_000, 5_000_000), amounts.of(10_000_000, 100_000_000));
        let (latency, bandwidth) = ("coalescing.latency", "coalescing.bandwidth");
        let sizes = if amounts.quick { &[32][..] } else { &[0, 128, 4096] };
        add(Kind::Latency, Sweep::Coalescing, latency, true, sizes, some);
        let sizes = if amounts.quick { &[1 << 20][..] } else { &[4096, 32_768, 1 << 20] };
        add(Kind::Bandwidth, Sweep::Coalescing, bandwidth, true, sizes, much);
    }
    if mtu == 1500 {
        let amount = amounts.of(5_000_000, 50_000_000);
        add(Kind::Rate, Sweep::Endpoints, "endpoints", false, &[32], amount);
        let amount = amounts.of(1_000_000, 20_000_000);
        add(Kind::Latency, Sweep::Neighbours, "neighbours.spin", true, &[32, 1024], amount);
        if !amounts.quick {
            add(Kind::Latency, Sweep::Neighbours, "neighbours.block", false, &[32, 1024], amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_setting_of_a_sweep_says_what_it_is() {
        for sweep in [Sweep::Eager, Sweep::Coalescing, Sweep::Endpoints, Sweep::Neighbours] {
            let mut params: Vec<_> = (0..sweep.len()).map(|at| sweep.param(at)).collect();
            assert!(params.iter().all(Option::is_some) && params.len() > 1, "{sweep:?}");
            params.dedup();
            assert_eq!(params.len(), sweep.len());
        }
        assert_eq!((Sweep::Nothing.len(), Sweep::Eager.eager(0)), (0, 4096));
        assert_eq!(Sweep::Endpoints.eager(0), 0);
    }

    #[test]
    fn every_class_has_its_edges_on_both_sides() {
        let rows = crate::mx::rows::rows_of(false, 1.0);
        let sizes = |name: &str| {
            rows.iter().find(|row| row.name == name).expect("it is there").sizes.clone()
        };
        let both_ways = sizes("sendrecv.mxoe.9000.spin");
        for sizes in
            [both_ways, sizes("latency.mxoe.9000.1g.spin"), sizes("bandwidth.ether.1500.spin")]
        {
            for edge in [32, 128, 4096, 32_768] {
                assert!(sizes.contains(&edge) && sizes.contains(&(edge + 1)), "{edge}");
            }
        }
        for threshold in EAGER {
            for what in ["latency", "bandwidth"] {
                let sizes = sizes(&format!("threshold.{what}.ether.9000"));
                assert!(sizes.contains(&(threshold + 1)), "{what} {threshold}");
            }
        }
        assert!(rows.iter().any(|row| row.name == "bandwidth.mxoe-compatible.9000.10g.spin"));
    }
}
