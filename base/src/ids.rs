//! Identities that cross rooms. Plain numbers never travel bare: a newtype says what they count.

use std::fmt;

/// A process's presence on the network: 128 random bits, kept as long as the endpoint's owner wants
/// to be recognised (a server keeps its own on disk).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct EndpointId(pub u128);

/// The number of an endpoint's life; it grows at every start. A peer that knew the old life sees a new one as a
/// `PeerReset`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Incarnation(pub u64);

/// One life of an endpoint, as its greeting names it. A peer that does not know an endpoint's id cannot speak in its
/// name. Every caller of a server knows the server's id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Origin {
    pub endpoint: EndpointId,
    pub incarnation: Incarnation,
}

/// A cluster: peers of different clusters refuse each other in the first exchange.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ClusterId(pub u128);

/// A file system object's number. Never reused within a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct InodeId(pub u64);

/// A server of the file system, as pool and layout name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ServerId(pub u32);

macro_rules! hexadecimal {
    ($name:ident) => {
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }
        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({:08x}..)"), (self.0 >> 96) as u32)
            }
        }
    };
}
hexadecimal!(EndpointId);
hexadecimal!(ClusterId);

impl fmt::Display for InodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for ServerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
