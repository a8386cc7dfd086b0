//! Assertions about the use of a synchronisation, as MPI names them. They may save work, and never change a result.

use std::ops::BitOr;

/// A set of assertions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Asserts(u8);

impl Asserts {
    /// Nothing is asserted.
    pub const NONE: Asserts = Asserts(0);
    /// Post, start: the matching calls have this assertion, too, and all posts came before any start. Lock: no other rank
    /// holds, or asks for, a lock that conflicts.
    pub const NO_CHECK: Asserts = Asserts(1);
    /// Fence, post: the local window was not written by stores since the last synchronisation.
    pub const NO_STORE: Asserts = Asserts(2);
    /// Fence, post: the local window will not be written by puts and accumulates until the next synchronisation.
    pub const NO_PUT: Asserts = Asserts(4);
    /// Fence: no rank made operations since the last fence. All ranks give it, or none.
    pub const NO_PRECEDE: Asserts = Asserts(8);
    /// Fence: no rank makes operations before the next synchronisation. All ranks give it, or none.
    pub const NO_SUCCEED: Asserts = Asserts(16);

    /// Those that a fence takes.
    pub(crate) const OF_FENCE: Asserts =
        Asserts(Self::NO_STORE.0 | Self::NO_PUT.0 | Self::NO_PRECEDE.0 | Self::NO_SUCCEED.0);
    /// Those that a post takes.
    pub(crate) const OF_POST: Asserts =
        Asserts(Self::NO_CHECK.0 | Self::NO_STORE.0 | Self::NO_PUT.0);
    /// Those that start and lock take.
    pub(crate) const OF_ACCESS: Asserts = Self::NO_CHECK;

    /// Whether all of these are among them.
    pub const fn has(self, these: Asserts) -> bool {
        self.0 & these.0 == these.0
    }
}

impl BitOr for Asserts {
    type Output = Asserts;
    fn bitor(self, other: Asserts) -> Asserts {
        Asserts(self.0 | other.0)
    }
}
