//! Faults, as data: what happens, where, when, and for how long.

use std::fmt;
use std::time::Duration;

use crate::direction::Direction;
use crate::wire::Impairment;

/// The answer of a host's own routing to a send.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Route {
    /// `EINVAL`.
    BlackHole,
    /// `EHOSTUNREACH`.
    Unreachable,
}

/// How a link flaps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Flap {
    /// As [`FaultKind::CarrierLoss`].
    Carrier,
    /// As [`FaultKind::Cut`].
    Silent,
}

/// What happens at a host's end of a rail. Where a switch is needed, [`Joint::Switched`](crate::Joint::Switched) has it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum FaultKind {
    /// The host's interface is set down; the far end of its cable loses the carrier.
    InterfaceDown,
    /// The far end of its cable is set down: the host's interface stays up, without carrier.
    CarrierLoss,
    /// No frame passes, and both ends keep their carrier. It has a direction, and needs a switch.
    Cut,
    /// So many of a million frames are lost at random: another choice in each run. [`Impairment::loss`] has a seed.
    /// It has a direction, and needs a switch.
    Loss { ppm: u32 },
    /// Of each so many frames the last is lost. It has a direction, and needs a switch.
    LossOfEach { nth: u32 },
    /// What a [wire](crate::Wire) can do: delay, loss, duplication, reordering, corruption. It has a direction, and
    /// needs a switch. The wire comes into the cable with its first impairment and stays; a few frames are lost
    /// while it comes in. [`TopologyConfig::wires`](crate::TopologyConfig::wires) puts it in at the beginning.
    Impaired(Impairment),
    /// The rate is limited to so many kbit/s. It has a direction. Frames from the host are limited by its own
    /// interface, which does not concern a packet socket that bypasses queue disciplines.
    Rate { kbit: u64 },
    /// The MTU of the host's interface is so small, in bytes: sends of more fail.
    MtuShrink { bytes: u32 },
    /// The switch passes no frames with a longer payload than this, in bytes, and tells nobody. It needs a switch.
    MtuBlackHole { bytes: u32 },
    /// The interface vanishes. It comes back with the same index, Ethernet address and addresses.
    InterfaceRemoved,
    /// The interface has another name; it keeps its index.
    InterfaceRenamed,
    /// The host has no address on the rail.
    AddressRemoved,
    /// The host has another address on the rail: that of a host 100 numbers further.
    AddressChanged,
    /// The host's routing refuses what it sends to the other hosts of the rail.
    Route(Route),
    /// The rail goes and comes, for random times around this mean.
    Flapping { flap: Flap, mean: Duration },
    /// The rail's switch dies under all its hosts. They lose the carrier, or keep it if it dies silently. It needs a
    /// switch.
    SwitchDeath { silently: bool },
}

impl FaultKind {
    /// Whether the kind distinguishes directions; all others concern both.
    pub fn has_direction(self) -> bool {
        use FaultKind::{Cut, Impaired, Loss, LossOfEach, Rate};
        matches!(self, Cut | Loss { .. } | LossOfEach { .. } | Impaired(_) | Rate { .. })
    }

    /// Whether it occurs only where the rail has a switch.
    pub fn needs_switch(self) -> bool {
        use FaultKind::{Cut, Flapping, Impaired, Loss, LossOfEach, MtuBlackHole, SwitchDeath};
        match self {
            Flapping { flap, .. } => flap == Flap::Silent,
            Cut | Loss { .. } | LossOfEach { .. } | Impaired(_) => true,
            kind => matches!(kind, MtuBlackHole { .. } | SwitchDeath { .. }),
        }
    }

    /// One of each kind that a network with switches can have, with usual parameters.
    pub fn examples() -> Vec<FaultKind> {
        const MS: Duration = Duration::from_millis(1);
        vec![
            FaultKind::InterfaceDown,
            FaultKind::CarrierLoss,
            FaultKind::Cut,
            FaultKind::Loss { ppm: 20_000 },
            FaultKind::LossOfEach { nth: 100 },
            FaultKind::Impaired(Impairment::loss(20_000)),
            FaultKind::Impaired(Impairment::delay(5 * MS, 2 * MS)),
            FaultKind::Impaired(Impairment::duplicate(20_000)),
            FaultKind::Impaired(Impairment::reorder(20_000, 2 * MS)),
            FaultKind::Impaired(Impairment::corrupt(10_000)),
            FaultKind::Rate { kbit: 50_000 },
            FaultKind::MtuShrink { bytes: 1280 },
            FaultKind::MtuBlackHole { bytes: 1280 },
            FaultKind::InterfaceRemoved,
            FaultKind::InterfaceRenamed,
            FaultKind::AddressRemoved,
            FaultKind::AddressChanged,
            FaultKind::Route(Route::BlackHole),
            FaultKind::Route(Route::Unreachable),
            FaultKind::Flapping { flap: Flap::Carrier, mean: 50 * MS },
            FaultKind::Flapping { flap: Flap::Silent, mean: 50 * MS },
            FaultKind::SwitchDeath { silently: false },
            FaultKind::SwitchDeath { silently: true },
        ]
    }
}

/// A fault at the cable between a host and a rail.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Fault {
    pub kind: FaultKind,
    pub host: usize,
    pub rail: usize,
    /// [`Direction::Both`] for kinds without directions.
    pub direction: Direction,
    /// The choices of impairments and of flapping follow from it.
    pub seed: u64,
    /// When a [`Player`](crate::Player) injects it, counted from its start, and how long it then lasts.
    pub at: Duration,
    pub lasts: Duration,
}

impl Fault {
    /// In both directions, at once, for a second.
    pub fn new(kind: FaultKind, host: usize, rail: usize) -> Fault {
        let (at, lasts) = (Duration::ZERO, Duration::from_secs(1));
        Fault { kind, host, rail, direction: Direction::Both, seed: 1, at, lasts }
    }

    /// The same in one direction.
    pub fn directed(self, direction: Direction) -> Fault {
        Fault { direction, ..self }
    }

    /// The same with other random choices.
    pub fn seeded(self, seed: u64) -> Fault {
        Fault { seed, ..self }
    }

    /// When a player mends it, counted from its start.
    pub fn end(&self) -> Duration {
        self.at + self.lasts
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { kind, host, rail, direction, .. } = self;
        write!(f, "{kind:?} at host {host}, rail {rail}")?;
        match direction {
            Direction::From => write!(f, ", of frames from the host"),
            Direction::To => write!(f, ", of frames to the host"),
            Direction::Both => Ok(()),
        }
    }
}
