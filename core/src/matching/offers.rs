//! Messages that are to be offered to the user before they wait.

use std::collections::VecDeque;

use ropewalk_base::slots::SlotId;

use crate::api::Channel;

/// The channel whose messages are offered before they wait, and those that were not offered yet, by arrival.
#[derive(Debug, Default)]
pub(super) struct Offers {
    channel: Option<Channel>,
    queue: VecDeque<SlotId>,
}

impl Offers {
    /// Messages of a channel are offered from now on, these first; `None`: of no channel.
    pub fn of(channel: Option<Channel>, waiting: Vec<SlotId>) -> Offers {
        Offers { channel, queue: waiting.into() }
    }

    /// Whether messages of this channel are offered.
    #[inline]
    pub fn are_of(&self, channel: Channel) -> bool {
        self.channel == Some(channel)
    }

    /// Notes that a message waits.
    #[inline]
    pub fn push(&mut self, channel: Channel, found: SlotId) {
        if self.are_of(channel) {
            self.queue.push_back(found);
        }
    }

    pub fn first(&self) -> Option<SlotId> {
        self.queue.front().copied()
    }

    pub fn pop(&mut self) {
        self.queue.pop_front();
    }
}
