//! The selection of the links that a rail looks at in every poll, so that a thousand idle links cost a poll nothing.
//!
//! A rail looks at all active links. While these are few, it also looks at those that were active not long ago, and
//! it always looks at one. The other links *rest*: their peers ring a bell of the link's own for the frames that
//! they send, as they do for a rail that sleeps, and by the same rules (`sleep`). The kernel reports the bells that
//! rang, so that the rail need not check links for nothing. Links are sent to rest together, since a bell needs a
//! barrier, and one barrier serves them all.
//!
//! Invariants: a link that waits for anything but frames is looked at; a link that rests was seen empty
//! after its peer could know that it rests.

use std::time::Duration;

use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;

/// Time without anything after which a link may rest, where more than so many are looked at, and where
/// more than one is.
const MANY: usize = 6;
const IDLE_AMONG_MANY: Duration = Duration::from_millis(1);
const IDLE: Duration = Duration::from_millis(100);
/// Time between two decisions about that.
const DECIDE_AFTER: Duration = Duration::from_micros(500);

/// The links that are looked at.
#[derive(Debug, Default)]
pub struct Attention {
    looked_at: Vec<SlotId>,
    decide_at: Time,
}

impl Attention {
    /// The links that are looked at.
    #[inline]
    pub fn links(&self) -> &[SlotId] {
        &self.looked_at
    }

    /// Looks at a link from now on. It must not be looked at yet.
    pub fn add(&mut self, link: SlotId) {
        debug_assert!(!self.looked_at.contains(&link), "a link is looked at once");
        self.looked_at.push(link);
    }

    /// A link has ended.
    pub fn forget(&mut self, link: SlotId) {
        self.looked_at.retain(|other| *other != link);
    }

    /// Whether it has to be decided now which links shall rest.
    #[inline]
    pub fn is_due(&self, now: Time) -> bool {
        self.looked_at.len() > 1 && now >= self.decide_at
    }

    /// It is decided now.
    pub fn decide(&mut self, now: Time) {
        self.decide_at = now + DECIDE_AFTER;
    }

    /// Whether a link may rest on which nothing happened for so long, beside so many others.
    pub fn may_rest(idle: Duration, others: usize) -> bool {
        (others >= MANY && idle >= IDLE_AMONG_MANY) || (others >= 1 && idle >= IDLE)
    }

    /// Keeps the links that `looks` names.
    pub fn retain(&mut self, mut looks: impl FnMut(SlotId) -> bool) {
        self.looked_at.retain(|link| looks(*link));
    }
}
