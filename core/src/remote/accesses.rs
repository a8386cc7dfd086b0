//! Gets and puts of ours to one peer, and their limits.

use ropewalk_base::limits::{QUEUED_FRAMES_MAX, REMOTE_SEGMENTS_MAX};

use super::Pulling;
use crate::operation::AccessState;

/// Gets and puts of ours to one peer at a time.
pub(crate) const ACCESSES_MAX: u32 = 256;
/// Segments that they have together: each of a get is asked for by a frame and served as a stream.
pub(crate) const SEGMENTS_MAX: u32 = 4096;

const _: () = assert!(REMOTE_SEGMENTS_MAX <= SEGMENTS_MAX as usize, "any list fits the window");
const _: () = assert!(8 * SEGMENTS_MAX as usize <= QUEUED_FRAMES_MAX, "no window fills a queue");

/// Those of one session that have begun.
#[derive(Debug, Default)]
pub(crate) struct Accesses {
    pub under_way: UnderWay,
    /// How many there have been.
    pub begun: u64,
    /// Gets in parts, from the first one on.
    pub pulling: Option<Box<Pulling>>,
}

/// Gets and puts of ours that one peer has not answered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct UnderWay {
    pub accesses: u32,
    pub segments: u32,
    /// Those of which the peer's core hears nothing, or no number: what rails do by themselves, and gets.
    pub unnumbered: u32,
}

impl Accesses {
    /// Whether the peer has so much to do that a further short operation is in no hurry: it may leave together with others, in
    /// the next pass.
    pub fn are_several(&self) -> bool {
        self.under_way.accesses > 1
    }

    /// An access begins.
    pub fn begin(&mut self, access: &AccessState) {
        self.under_way.begin(access);
        self.begun += 1;
    }
}

impl UnderWay {
    /// Whether an access of so many segments may begin.
    pub fn has_room(&self, segments: u32) -> bool {
        self.accesses < ACCESSES_MAX && self.segments + segments <= SEGMENTS_MAX
    }

    /// An access begins.
    pub fn begin(&mut self, access: &AccessState) {
        self.accesses += 1;
        self.segments += access.segments();
        self.unnumbered += u32::from(access.unnumbered);
    }

    /// An access is over, or begins again later.
    pub fn end(&mut self, access: &AccessState) {
        self.accesses -= 1;
        self.segments -= access.segments();
        self.unnumbered -= u32::from(access.unnumbered);
    }
}
