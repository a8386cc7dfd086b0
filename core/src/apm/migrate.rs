//! The third of the paper's modules: which of two migrations counts.

use super::path::{PathId, Side};

/// A migration: its counter, who decided it, and the roles after it. A fresh association has counter 0 on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Move {
    pub counter: u32,
    pub by: Side,
    pub primary: PathId,
    pub alternate: Option<PathId>,
}

impl Move {
    /// Whether this migration decides against another one: the larger counter, of equal ones the lower endpoint id's.
    pub fn beats(&self, other: &Move) -> bool {
        let rank = |it: &Move| (it.counter, it.by == Side::Lower);
        rank(self) > rank(other)
    }
}
