//! Directions of frames.

/// Frames that a fault concerns, as seen by the host at whose cable it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Those that the host sends.
    From,
    /// Those that are sent to the host.
    To,
    Both,
}

impl Direction {
    /// Frames that the host sends are concerned.
    pub fn has_from(self) -> bool {
        self != Direction::To
    }

    /// Frames that are sent to the host are concerned.
    pub fn has_to(self) -> bool {
        self != Direction::From
    }
}
