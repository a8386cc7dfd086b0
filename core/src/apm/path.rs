//! A path as migration sees it: its name, its ends, what it shares with others, and its health.

/// The side of an association, by endpoint id. Both sides know it from the greeting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Side {
    /// The endpoint with the lower id. Of two equal migration counters its own counts.
    Lower,
    Higher,
}

impl Side {
    pub fn other(self) -> Side {
        match self {
            Side::Lower => Side::Higher,
            Side::Higher => Side::Lower,
        }
    }
}

/// A path of an association. The side that adds the path names it; the lowest bit says which side that was (0: the
/// lower endpoint id). An association gives no id twice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PathId(pub u32);

impl PathId {
    /// The id of the `number`th path that a side adds; none beyond 2^31 of them.
    pub fn new(by: Side, number: u32) -> Option<PathId> {
        (number < 1 << 31).then_some(PathId(number << 1 | u32::from(by == Side::Higher)))
    }

    pub fn named_by(self) -> Side {
        if self.0 & 1 == 0 { Side::Lower } else { Side::Higher }
    }
}

/// The family of a path's addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Family {
    V4,
    V6,
    /// Addresses of a link layer: Ethernet, InfiniBand.
    Link,
}

/// A path that the connection could use. Remote addresses and failure domains have numbers: only equality counts here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct PathRecord {
    pub id: PathId,
    pub local_rail: u8,
    pub remote_address: u32,
    /// The UDP source port or flow label, which makes switches choose another way; 0 where there is none.
    pub entropy: u32,
    pub family: Family,
    /// Longest packet that the path takes, in bytes.
    pub mtu_bytes: u32,
    /// What fails together, at this end and at the peer's: an interface, a card, a switch.
    pub local_domain: u32,
    pub remote_domain: u32,
}

impl PathRecord {
    /// At how many ends, 0 to 2, the path shares a failure domain with another one.
    pub fn shared_domains(&self, other: &PathRecord) -> u8 {
        u8::from(self.local_domain == other.local_domain)
            + u8::from(self.remote_domain == other.remote_domain)
    }
}

/// What the health of a path says. Suspicion is early and cheap, failure is late and sure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Health {
    Good,
    Suspect,
    Failed,
}
