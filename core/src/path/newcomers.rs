//! Accepted links whose callers have not greeted yet.

use std::collections::VecDeque;

use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;

/// Accepted links that may be silent at a time.
const NEWCOMERS_MAX: usize = 4096;

/// In the order in which they were accepted. A link stays listed for a while after its greeting.
#[derive(Debug, Default)]
pub(crate) struct Newcomers {
    links: VecDeque<(Time, LinkId)>,
}

impl Newcomers {
    /// Adds a link that may be silent until then. Returns the link to close if too many are silent: the oldest one.
    pub fn add(
        &mut self,
        link: LinkId,
        until: Time,
        is_silent: impl Fn(LinkId) -> bool,
    ) -> Option<LinkId> {
        self.links.push_back((until, link));
        if self.links.len() <= NEWCOMERS_MAX {
            return None;
        }
        self.links.retain(|(_, link)| is_silent(*link));
        let over = self.links.len() > NEWCOMERS_MAX;
        over.then(|| self.links.pop_front()).flatten().map(|(_, link)| link)
    }

    /// Takes out the first link whose time is over.
    pub fn next_due(&mut self, now: Time) -> Option<LinkId> {
        self.links.pop_front_if(|(until, _)| *until <= now).map(|(_, link)| link)
    }

    /// When the next link's time is over.
    pub fn deadline(&self) -> Time {
        self.links.front().map_or(Time::NEVER, |(until, _)| *until)
    }
}
