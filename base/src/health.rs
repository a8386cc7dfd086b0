//! The health of a link, as its rail measures it, and the signs that its path is broken.
//!
//! Rails report both and decide nothing.

use std::mem::discriminant;
use std::time::Duration;

use crate::time::Time;

/// Round trips of a link, as far as they were measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RoundTrips {
    /// Smoothed as in RFC 6298, and the smoothed distance of measurements from that.
    pub smoothed: Duration,
    pub variation: Duration,
    /// The least of late.
    pub least: Duration,
    /// About 95 of 100 are no longer. `None`: the rail does not know.
    pub p95: Option<Duration>,
}

/// The health of a link. Bytes are those of frames, headers included; a rail may add some of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Health {
    /// `None`: none was measured so far.
    pub round_trips: Option<RoundTrips>,
    /// Bytes whose arrival the other end has acknowledged, since the link was made. Pieces of native reads are not
    /// acknowledged.
    pub delivered_bytes: u64,
    /// Bytes that left and are not acknowledged.
    pub unacknowledged_bytes: u64,
    /// Bytes that wait in the rail, or in the kernel, to leave.
    pub unsent_bytes: u64,
    /// Packets that were sent, those that went again included, and pieces that were asked for, since the link was made.
    /// 0: the rail does not count them.
    pub packets: u64,
    /// Those of them that were sent, or asked for, again.
    pub losses: u64,
    /// Packets that came whole, since the link was made; of all links of the rail where `corrupt` counts those of all.
    pub received: u64,
    /// Corrupt packets of all links of the rail: such a packet does not say whose it is. 0 where the layer above
    /// verifies frames.
    pub corrupt: u64,
    /// When anything came from the other end last, acknowledgements included. The kernel tells it in milliseconds.
    pub heard_at: Time,
    /// The other end has no room for more: it is there, and does not read.
    pub is_peer_full: bool,
    /// The other end's machine answers even if its program does nothing, so that silence is a sign of a broken path.
    /// False in shared memory, where silence means nothing.
    pub silence_tells: bool,
}

impl Health {
    /// The health of a link that nothing can break but the end of a process.
    pub fn of_memory(now: Time) -> Health {
        Health {
            round_trips: None,
            delivered_bytes: 0,
            unacknowledged_bytes: 0,
            unsent_bytes: 0,
            packets: 0,
            losses: 0,
            received: 0,
            corrupt: 0,
            heard_at: now,
            is_peer_full: false,
            silence_tells: false,
        }
    }
}

/// A sign that the path of a link is broken. The link may live on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Suspicion {
    /// The other end of the interface's wire is not there.
    CarrierLost,
    /// Somebody has set the interface down.
    InterfaceDown,
    /// The interface was removed, for good.
    InterfaceGone,
    /// The source address was removed.
    AddressGone,
    /// The kernel has no route to the peer.
    RouteGone,
    /// The kernel refuses to send, with this number of an error.
    SendError(i32),
    /// The peer's machine has room for what was sent, and acknowledges none of it.
    Unacknowledged,
    /// It spoils what goes over it, and no rail noticed: a payload failed its checksum.
    Corrupt,
}

/// The beginning of the names of counters.
const COUNTED: &str = "suspected.";

impl Suspicion {
    /// All causes in the order of their numbers, and the names of their counters: the one table of causes. The order is
    /// part of the language of frames.
    const ALL: [(Suspicion, &'static str); 8] = [
        (Suspicion::CarrierLost, "suspected.carrier_lost"),
        (Suspicion::InterfaceDown, "suspected.interface_down"),
        (Suspicion::InterfaceGone, "suspected.interface_gone"),
        (Suspicion::AddressGone, "suspected.address_gone"),
        (Suspicion::RouteGone, "suspected.route_gone"),
        (Suspicion::SendError(0), "suspected.send_error"),
        (Suspicion::Unacknowledged, "suspected.unacknowledged"),
        (Suspicion::Corrupt, "suspected.corrupt"),
    ];
    /// How many causes there are.
    pub const COUNT: usize = Suspicion::ALL.len();

    /// The names of all causes for people and machines, by [`Suspicion::number`].
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::ALL.into_iter().map(|(_, counted)| counted.trim_start_matches(COUNTED))
    }

    /// Its name for people and machines: `carrier_lost`.
    pub fn name(self) -> &'static str {
        Self::ALL[self.number()].1.trim_start_matches(COUNTED)
    }

    /// Its number, from 1 on, as peers tell it to each other: part of the language of frames.
    pub fn to_wire(self) -> u8 {
        self.number() as u8 + 1
    }

    /// The inverse of [`Suspicion::to_wire`]; the number of an error is not told. `None` for numbers of later versions.
    pub fn from_wire(number: u8) -> Option<Suspicion> {
        let place = usize::from(number).checked_sub(1)?;
        Self::ALL.get(place).map(|(cause, _)| *cause)
    }

    /// Its place among all causes, from 0 on; errors of sends have one.
    pub fn number(self) -> usize {
        let kind = discriminant(&self);
        let place = Self::ALL.iter().position(|(cause, _)| discriminant(cause) == kind);
        place.unwrap_or_default()
    }
}

/// Suspicions, counted by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SuspicionCounts([u64; Suspicion::COUNT]);

impl SuspicionCounts {
    pub fn note(&mut self, cause: Suspicion) {
        self.0[cause.number()] += 1;
    }

    /// The suspicions of this cause; errors of sends count together.
    pub fn of(&self, cause: Suspicion) -> u64 {
        self.0[cause.number()]
    }

    /// All of them, under names for people.
    pub fn by_name(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Suspicion::ALL.into_iter().map(|(_, name)| name).zip(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspicion_is_told_by_its_number() {
        for number in 0..=u8::MAX {
            let told = Suspicion::from_wire(number);
            assert_eq!(told.is_some(), (1..=8).contains(&number));
            assert!(told.is_none_or(|it| it.to_wire() == number));
        }
        let all = [
            Suspicion::CarrierLost,
            Suspicion::InterfaceDown,
            Suspicion::InterfaceGone,
            Suspicion::AddressGone,
            Suspicion::RouteGone,
            Suspicion::SendError(101),
            Suspicion::Unacknowledged,
            Suspicion::Corrupt,
        ];
        let numbers = all.map(Suspicion::to_wire);
        assert_eq!(numbers, [1, 2, 3, 4, 5, 6, 7, 8], "each has a number of its own");
        assert!(all.map(Suspicion::name).into_iter().eq(Suspicion::names()));
        assert_eq!(Suspicion::RouteGone.name(), "route_gone");
        assert_eq!(Suspicion::SendError(101).to_wire(), 6);
        assert_eq!((Suspicion::Unacknowledged.to_wire(), Suspicion::Corrupt.to_wire()), (7, 8));
    }

    #[test]
    fn suspicions_are_counted_by_their_causes() {
        let mut counts = SuspicionCounts::default();
        for cause in [Suspicion::SendError(101), Suspicion::RouteGone, Suspicion::SendError(113)] {
            counts.note(cause);
        }
        assert_eq!((counts.of(Suspicion::SendError(0)), counts.of(Suspicion::CarrierLost)), (2, 0));
        let shown: Vec<_> = counts.by_name().filter(|(_, count)| *count > 0).collect();
        assert_eq!(shown, [("suspected.route_gone", 1), ("suspected.send_error", 2)]);
    }
}
