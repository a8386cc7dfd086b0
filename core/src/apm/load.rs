//! The second of the paper's modules: the proof of the alternate before it is armed.

use super::path::{PathId, Side};

/// An arming of an association: the side that began it, and how many that side had begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ArmingId {
    pub by: Side,
    pub number: u32,
}

/// The arming under way, or the one that is complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Arming {
    pub id: ArmingId,
    pub path: PathId,
    /// The peer's challenge came back, or its own `LOAD` is here, over each of the two paths.
    pub heard_on_primary: bool,
    pub heard_on_alternate: bool,
    /// Five of five probes both ways, the last ones as long as the MTU.
    pub probes_good: bool,
    /// The peer acknowledged all eager data that was sent before this arming.
    pub acknowledged: bool,
    /// `LOAD` went out, or the peer sent one.
    pub announced: bool,
    /// A caller wants it in place of another one.
    pub replaces: bool,
}

impl Arming {
    pub fn new(id: ArmingId, path: PathId) -> Arming {
        Arming {
            id,
            path,
            heard_on_primary: false,
            heard_on_alternate: false,
            probes_good: false,
            acknowledged: false,
            announced: false,
            replaces: false,
        }
    }

    /// Notes that the peer was heard over a path.
    pub fn hear(&mut self, over: PathId) {
        match over == self.path {
            true => self.heard_on_alternate = true,
            false => self.heard_on_primary = true,
        }
    }

    /// Whether all is proven. A primary path that failed need not be heard: nobody would answer there.
    pub fn is_complete(&self, primary_failed: bool) -> bool {
        self.heard_on_alternate
            && (self.heard_on_primary || primary_failed)
            && self.probes_good
            && self.acknowledged
    }
}
