//! The health of a link, as its rail measures it, and the signs that its path is broken.
//!
//! Rails report both and decide nothing.

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
    /// Packets that were sent again, and pieces that were asked for again, since the link was made.
    pub losses: u64,
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
            losses: 0,
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

impl Suspicion {
    /// Names of the causes, by [`Suspicion::number`].
    const NAMES: [&'static str; 8] = [
        "suspected.carrier_lost",
        "suspected.interface_down",
        "suspected.interface_gone",
        "suspected.address_gone",
        "suspected.route_gone",
        "suspected.send_error",
        "suspected.unacknowledged",
        "suspected.corrupt",
    ];

    /// Its number, from 1 on, as peers tell it to each other: part of the language of frames.
    pub fn to_wire(self) -> u8 {
        self.number() as u8 + 1
    }

    /// The inverse of [`Suspicion::to_wire`]; the number of an error is not told. `None` for numbers of later versions.
    pub fn from_wire(number: u8) -> Option<Suspicion> {
        let all = [
            Suspicion::CarrierLost,
            Suspicion::InterfaceDown,
            Suspicion::InterfaceGone,
            Suspicion::AddressGone,
            Suspicion::RouteGone,
            Suspicion::SendError(0),
            Suspicion::Unacknowledged,
            Suspicion::Corrupt,
        ];
        all.into_iter().find(|it| it.to_wire() == number)
    }

    fn number(self) -> usize {
        match self {
            Suspicion::CarrierLost => 0,
            Suspicion::InterfaceDown => 1,
            Suspicion::InterfaceGone => 2,
            Suspicion::AddressGone => 3,
            Suspicion::RouteGone => 4,
            Suspicion::SendError(_) => 5,
            Suspicion::Unacknowledged => 6,
            Suspicion::Corrupt => 7,
        }
    }
}

/// Suspicions, counted by cause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SuspicionCounts([u64; Suspicion::NAMES.len()]);

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
        Suspicion::NAMES.into_iter().zip(self.0)
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
