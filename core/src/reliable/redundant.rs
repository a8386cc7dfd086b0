//! Spans that go over two paths at once, for who asks for it: the first copy that is whole counts.
//!
//! Asked for by peer and channel. Messages that are spans go twice, and the control frames without which they would not
//! go on: announces, their ends, credit, acknowledgements. Data frames and reads go once, and again where their path
//! breaks.

use ropewalk_wire::frame::Body;

use crate::api::Channel;

/// The channels whose messages to a peer go over two paths at once.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct RedundantChannels(u8);

impl RedundantChannels {
    pub fn set(&mut self, channel: Channel, redundant: bool) {
        let bit = 1 << channel as u8;
        self.0 = if redundant { self.0 | bit } else { self.0 & !bit };
    }

    /// These, and those of another name of the peer.
    pub fn merge(&mut self, other: RedundantChannels) {
        self.0 |= other.0;
    }

    #[inline]
    pub fn has(self, channel: Channel) -> bool {
        self.0 & 1 << channel as u8 != 0
    }

    /// Whether a span with this body goes over two paths. `answers`: the peer's spans come over two.
    #[inline]
    pub(super) fn covers(self, body: &Body, answers: bool) -> bool {
        if self.0 == 0 && !answers {
            return false;
        }
        match body {
            Body::Eager(eager) => Channel::from_u8(eager.channel).is_some_and(|it| self.has(it)),
            Body::Fragment(_) | Body::Data(_) | Body::Put(_) | Body::Strided(_) => false,
            _ => true,
        }
    }
}
