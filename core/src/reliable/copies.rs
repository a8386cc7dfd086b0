//! The copies of a span: over which links it went, and which of their rails still have it.
//!
//! Nearly all spans have one, which lies in place.

use std::time::Duration;

use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;

use crate::api::LOOP_LINK;

/// The newest copy of a span that went over a link.
#[derive(Debug, Clone, Copy)]
pub(super) struct SpanCopy {
    pub link: LinkId,
    /// The order by which the link's rail has it.
    pub order: Option<SlotId>,
    /// When the rail got the order, or let go of it: nobody can have answered before.
    sent_at: Time,
    /// `sent_at` was compared with a clock that had surely advanced since.
    looked_at: bool,
    /// The link carries no more; its rail was told to let go.
    lost: bool,
}

/// At most one a link.
#[derive(Debug, Default)]
pub(super) struct Copies {
    first: Option<SpanCopy>,
    more: Vec<SpanCopy>,
}

impl SpanCopy {
    pub fn new(link: LinkId, order: SlotId, now: Time) -> SpanCopy {
        SpanCopy { link, order: Some(order), sent_at: now, looked_at: false, lost: false }
    }
}

impl SpanCopy {
    pub fn sent_at(&self) -> Time {
        self.sent_at
    }
}

impl Copies {
    pub fn iter(&self) -> impl Iterator<Item = &SpanCopy> {
        self.first.iter().chain(&self.more)
    }

    /// Those on links that carry.
    pub fn living(&self) -> impl Iterator<Item = &SpanCopy> {
        self.iter().filter(|copy| !copy.lost)
    }

    fn iter_mut(&mut self) -> impl Iterator<Item = &mut SpanCopy> {
        self.first.iter_mut().chain(&mut self.more)
    }

    /// A copy goes over its link.
    pub fn set(&mut self, copy: SpanCopy) {
        let earlier = self.iter_mut().find(|other| other.link == copy.link);
        if let Some(earlier) = earlier {
            *earlier = copy;
        } else if self.first.is_none() {
            self.first = Some(copy);
        } else {
            self.more.push(copy);
        }
    }

    /// There are none any more; the room for them stays.
    pub fn clear(&mut self) {
        self.first = None;
        self.more.clear();
    }

    /// A link's rail let go.
    pub fn release(&mut self, link: LinkId, now: Time) {
        let Some(copy) = self.iter_mut().find(|copy| copy.link == link) else { return };
        copy.order = None;
        copy.sent_at = copy.sent_at.max(now);
        if copy.lost {
            self.forget(link);
        }
    }

    /// A link carries no more. `None` if there was no copy on it, else the order by which its rail still has it.
    pub fn lose(&mut self, link: LinkId) -> Option<Option<SlotId>> {
        let copy = self.iter_mut().find(|copy| copy.link == link && !copy.lost)?;
        copy.lost = true;
        let order = copy.order;
        if order.is_none() {
            self.forget(link);
        }
        Some(order)
    }

    fn forget(&mut self, link: LinkId) {
        self.more.retain(|copy| copy.link != link);
        if self.first.is_some_and(|copy| copy.link == link) {
            self.first = self.more.pop();
        }
    }

    /// The link that it went over, where there was one, and when.
    pub fn only(&self) -> Option<(LinkId, Time)> {
        let copy = self.first.filter(|copy| self.more.is_empty() && !copy.lost)?;
        Some((copy.link, copy.sent_at))
    }

    /// When it went over a link that carries.
    pub fn sent_over(&self, link: LinkId) -> Option<Time> {
        let copy = self.iter().find(|copy| copy.link == link && !copy.lost)?;
        Some(copy.sent_at)
    }

    /// Whether it went over a link that carries.
    pub fn is_over(&self, link: LinkId) -> bool {
        self.living().any(|copy| copy.link == link)
    }

    /// Whether a rail has one.
    pub fn are_held(&self) -> bool {
        self.iter().any(|copy| copy.order.is_some())
    }

    pub fn is_held_over(&self, link: LinkId) -> bool {
        self.iter().any(|copy| copy.link == link && copy.order.is_some())
    }

    /// The links and orders of rails that have one and were not told to let go.
    pub fn detachable(&self) -> impl Iterator<Item = (LinkId, SlotId)> {
        let told = |copy: &&SpanCopy| copy.lost || copy.link == LOOP_LINK;
        let held = self.iter().filter(move |copy| !told(copy));
        held.filter_map(|copy| Some((copy.link, copy.order?)))
    }

    /// The newest on a link that carries.
    pub fn newest(&self) -> Option<&SpanCopy> {
        self.iter().filter(|copy| !copy.lost).max_by_key(|copy| copy.sent_at)
    }

    /// Looks when the newest was sent. The clock that told it may have stood still for long, since it is read at
    /// the beginning of a pass only. So the first look takes it to have been sent half of `after` ago at the earliest.
    pub fn look(&mut self, now: Time, after: Duration) -> Option<Time> {
        let copy = self.iter_mut().filter(|copy| !copy.lost).max_by_key(|copy| copy.sent_at)?;
        if !std::mem::replace(&mut copy.looked_at, true) {
            copy.sent_at =
                copy.sent_at.max(Time(now.0.saturating_sub((after / 2).as_nanos() as u64)));
        }
        Some(copy.sent_at)
    }
}
