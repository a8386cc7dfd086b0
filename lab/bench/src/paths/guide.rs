//! The parts of names of rows of `bench paths`.

pub use crate::guide::{Kin, Value};

/// The parts of names, and the words for each.
pub const VALUES: [Value; 9] = [
    ("CHANNELS", "1, 8, 64: of each association"),
    ("CLASS", "s, w, a, b: the size of the problem"),
    ("FAULT", "carrier, silent, data, acks (one way), flap, switch, loss, corrupt, slowed"),
    ("KERNEL", "is, ft, lu"),
    ("MANY", "channels, endpoints"),
    ("MEDIUM", "tcp, udp, ether"),
    ("PAIR", "equal, unequal, slowed, loss1, loss5 (per cent)"),
    ("RATE", "1g, 50m, unlimited: of each rail"),
    ("WHOSE", "shared, late (of one endpoint), apart, apart-late (of two processes)"),
];
