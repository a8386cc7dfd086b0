//! The rows of cut streams: what happens to which network, what carries ours, and what the row shall reach.

use std::time::Duration;

use ropewalk_netns::{Direction, Fault, FaultKind, Flap, Impairment};

use crate::paths::presence::Medium;

/// The mean time between two changes of a flapping rail.
const FLAP: Duration = Duration::from_millis(30);
/// What is left of the rate of a slowed rail.
const SLOWED: f64 = 0.3;

/// What happens to the first rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A host's interface loses its carrier.
    Carrier,
    /// No frame passes, and carriers stay.
    Silent,
    /// The same of frames from the sender to the receiver, and of those back.
    Data,
    Acks,
    /// Silent cuts that come and go.
    Flap,
    /// The rail's switch dies silently under four hosts, between which four streams run.
    Switch,
    /// 5 % of the frames are lost.
    Loss,
    /// A bit is flipped in 1 % of the frames.
    Corrupt,
    /// The rate falls to 0.3 of what it was.
    Slowed,
}

impl Kind {
    pub const ALL: [Kind; 9] = [
        Kind::Carrier,
        Kind::Silent,
        Kind::Data,
        Kind::Acks,
        Kind::Flap,
        Kind::Switch,
        Kind::Loss,
        Kind::Corrupt,
        Kind::Slowed,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Kind::Carrier => "carrier",
            Kind::Silent => "silent",
            Kind::Data => "data",
            Kind::Acks => "acks",
            Kind::Flap => "flap",
            Kind::Switch => "switch",
            Kind::Loss => "loss",
            Kind::Corrupt => "corrupt",
            Kind::Slowed => "slowed",
        }
    }

    /// Nothing passes the rail while the fault lasts.
    pub fn is_cut(self) -> bool {
        matches!(self, Kind::Carrier | Kind::Silent | Kind::Data | Kind::Acks | Kind::Switch)
    }

    /// The fault of a rail with this rate in kbit/s, at the sender's end (0) or the receiver's (1).
    fn fault(self, host: usize, kbit: Option<u64>) -> Fault {
        let kind = match self {
            Kind::Carrier => FaultKind::CarrierLoss,
            Kind::Silent | Kind::Data | Kind::Acks => FaultKind::Cut,
            Kind::Flap => FaultKind::Flapping { flap: Flap::Silent, mean: FLAP },
            Kind::Switch => FaultKind::SwitchDeath { silently: true },
            Kind::Loss => FaultKind::Loss { ppm: 50_000 },
            Kind::Corrupt => FaultKind::Impaired(Impairment::corrupt(10_000)),
            Kind::Slowed => {
                let kbit = kbit.unwrap_or(1_000_000) as f64 * SLOWED;
                FaultKind::Rate { kbit: kbit as u64 }
            }
        };
        let direction = match (self, host) {
            (Kind::Data, 0) | (Kind::Acks, 1) => Direction::From,
            (Kind::Data | Kind::Acks, _) => Direction::To,
            _ => Direction::Both,
        };
        Fault::new(kind, host, 0).directed(direction)
    }
}

/// The rate of each rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rate {
    Slow,
    Usual,
    Unlimited,
}

impl Rate {
    pub const ALL: [Rate; 3] = [Rate::Usual, Rate::Slow, Rate::Unlimited];

    pub fn name(self) -> &'static str {
        match self {
            Rate::Slow => "50m",
            Rate::Usual => "1g",
            Rate::Unlimited => "unlimited",
        }
    }

    pub fn kbit(self) -> Option<u64> {
        match self {
            Rate::Slow => Some(50_000),
            Rate::Usual => Some(1_000_000),
            Rate::Unlimited => None,
        }
    }

    /// Nanoseconds of a bin of a timeline, and of a window in which goodput is judged: of some messages at least.
    pub fn bin_and_window(self) -> (u64, u64) {
        match self {
            Rate::Slow => (50_000_000, 250_000_000),
            Rate::Usual | Rate::Unlimited => (5_000_000, 50_000_000),
        }
    }
}

/// What a row looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Look {
    /// The fault, and what follows.
    Fault,
    /// The time after the fault, until the mended rail is used again.
    Return,
    /// The fault, which stays until the end; also MPIs run then.
    Death,
}

/// A row.
#[derive(Debug, Clone, Copy)]
pub struct Row {
    pub look: Look,
    pub kind: Kind,
    pub rate: Rate,
    pub medium: Medium,
}

/// All rows, or those that are measured where it has to be quick.
pub fn rows_of(quick: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for rate in Rate::ALL {
        for medium in Medium::ALL {
            let row = |kind| Row { look: Look::Fault, kind, rate, medium };
            rows.extend(Kind::ALL.map(row).into_iter().filter(|row| !quick || row.is_quick()));
        }
    }
    if !quick {
        for kind in [Kind::Silent, Kind::Carrier] {
            let (look, rate) = (Look::Death, Rate::Usual);
            rows.extend(Medium::ALL.map(|medium| Row { look, kind, rate, medium }));
        }
        let row =
            |medium| Row { look: Look::Return, kind: Kind::Silent, rate: Rate::Usual, medium };
        rows.extend(Medium::ALL.map(row));
    }
    rows
}

impl Row {
    pub fn name(&self) -> String {
        let Row { look, kind, rate, medium } = self;
        let look = match look {
            Look::Fault => "cut",
            Look::Return => "back",
            Look::Death => "dead",
        };
        format!("{look}.{}.{}.{}", kind.name(), rate.name(), medium.name())
    }

    /// Whether it is measured where it has to be quick.
    fn is_quick(&self) -> bool {
        let Row { kind, rate, medium, .. } = *self;
        rate == Rate::Usual
            && (kind == Kind::Silent || (kind, medium) == (Kind::Carrier, Medium::Tcp))
    }

    /// The fault of this run, which is at the sender's end in every other one.
    pub fn fault(&self, run: usize) -> Fault {
        self.kind.fault(run % 2, self.rate.kbit()).seeded(run as u64)
    }

    /// Streams, each from a host with an even number to the next one.
    pub fn streams(&self) -> usize {
        if self.kind == Kind::Switch { 4 } else { 1 }
    }

    /// Hosts, two streams at most between any two.
    pub fn hosts(&self) -> usize {
        2 * self.streams().div_ceil(2)
    }

    /// The longest stall in ms, beyond that of the undisturbed stream, that several paths shall have.
    pub fn stall_reach(&self) -> f64 {
        match (self.kind, self.medium, self.rate) {
            (Kind::Carrier, Medium::Tcp, _) => 10.0,
            (Kind::Carrier, ..) => 5.0,
            (Kind::Silent | Kind::Data | Kind::Acks | Kind::Switch, Medium::Tcp, Rate::Slow) => {
                60.0
            }
            (Kind::Silent | Kind::Switch, Medium::Tcp, _) => 30.0,
            (Kind::Silent | Kind::Switch, ..) => 15.0,
            (Kind::Data | Kind::Acks, Medium::Tcp, _) => 35.0,
            _ => 20.0,
        }
    }

    /// The most milliseconds after which a mended rail shall carry its part.
    pub fn back_reach(&self) -> f64 {
        if self.medium == Medium::Ether { 600.0 } else { 1600.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_one_way_cut_has_the_same_direction_from_either_end() {
        let directions = |kind: Kind| [0, 1].map(|host| kind.fault(host, None).direction);
        assert_eq!(directions(Kind::Data), [Direction::From, Direction::To]);
        assert_eq!(directions(Kind::Acks), [Direction::To, Direction::From]);
        assert_eq!(directions(Kind::Silent), [Direction::Both; 2]);
    }

    #[test]
    fn quick_rows_are_among_all() {
        let names = |quick| rows_of(quick).iter().map(Row::name).collect::<Vec<_>>();
        let (all, quick) = (names(false), names(true));
        assert_eq!((all.len(), quick.len()), (90, 4));
        assert!(quick.iter().all(|name| all.contains(name)));
        assert!(quick.contains(&"cut.silent.1g.tcp".to_string()));
        for name in ["back.silent.1g.ether", "dead.silent.1g.tcp", "cut.switch.1g.tcp"] {
            assert!(all.contains(&name.to_string()), "{name}");
        }
    }

    #[test]
    fn four_streams_run_between_four_hosts() {
        let of = |kind| {
            let row = Row { look: Look::Fault, kind, rate: Rate::Usual, medium: Medium::Tcp };
            (row.streams(), row.hosts())
        };
        assert_eq!((of(Kind::Silent), of(Kind::Switch)), ((1, 2), (4, 4)));
    }
}
