//! The credit that a peer granted us, and our use of it.

use ropewalk_base::limits::EAGER_BYTES_SHORT;
use ropewalk_wire::frame::CreditBody;

use super::{UPDATE_WINDOW, Windows, charge_bytes};
use crate::api::Channel;

/// The credit that the peer granted us, and our use of it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Granted {
    eager_limit: u64,
    eager_used: u64,
    request_limit: u64,
    request_used: u64,
    rts_limit: u64,
    rts_used: u64,
    update_limit: u64,
    update_used: u64,
    /// There is no more for eager messages before some are received.
    eager_ends: bool,
    /// The least that may be outstanding of eager messages.
    eager_window: u64,
    /// The longest message that leaves at once over the present link, and the longest payload of a frame there.
    eager_bytes: u32,
    frame_bytes: u32,
    /// As the first of these, where somebody waits for long messages.
    long_bytes: u32,
    /// Nobody waited for long ones.
    rts_long: bool,
}

impl Granted {
    /// The first credit of a session.
    pub fn begin(windows: Windows, announces: u64) -> Granted {
        Granted {
            eager_limit: windows.eager,
            eager_window: windows.eager,
            request_limit: windows.request,
            rts_limit: announces,
            update_limit: UPDATE_WINDOW,
            ..Granted::default()
        }
    }

    /// The peer allows us more. Limits only grow. `is_newest`: no later frame has said how it is with the rest.
    pub fn extend(&mut self, body: &CreditBody, is_newest: bool) {
        self.eager_limit = self.eager_limit.max(body.eager_limit.get());
        if is_newest {
            self.eager_ends = body.eager_ends == 1;
            self.rts_long = body.rts_long == 1;
            self.choose();
        }
        self.request_limit = self.request_limit.max(body.request_limit.get());
        self.rts_limit = self.rts_limit.max(body.rts_limit.get());
        self.update_limit = self.update_limit.max(body.update_limit.get());
    }

    /// The longest message that leaves at once over the present link.
    #[inline]
    pub fn eager_bytes(&self) -> u64 {
        self.eager_bytes.into()
    }

    /// The longest payload of a frame over the present link.
    #[inline]
    pub fn frame_bytes(&self) -> u64 {
        self.frame_bytes.into()
    }

    /// The link tells how long messages and frames may be.
    pub fn limit(&mut self, eager_bytes: u64, frame_bytes: u64) {
        let narrow = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        (self.frame_bytes, self.long_bytes) = (narrow(frame_bytes), narrow(eager_bytes));
        self.choose();
    }

    fn choose(&mut self) {
        let most = if self.rts_long { EAGER_BYTES_SHORT } else { u32::MAX };
        self.eager_bytes = self.long_bytes.min(most);
    }

    /// Takes credit for an eager message, where there is enough.
    #[inline]
    pub fn take_eager(&mut self, channel: Channel, payload_bytes: u64) -> bool {
        let (limit, used) = match channel {
            Channel::Request => (self.request_limit, &mut self.request_used),
            _ => (self.eager_limit, &mut self.eager_used),
        };
        let charge = charge_bytes(payload_bytes);
        if *used + charge > limit {
            return false;
        }
        *used += charge;
        true
    }

    /// Whether credit for an eager message comes back without being asked for: both sides may reckon with other limits,
    /// and who was sent little tells of it when it is half of the window, or where no message of its own limit has room.
    pub fn comes_back(&self, payload_bytes: u64) -> bool {
        !self.eager_ends && 2 * charge_bytes(payload_bytes) <= self.eager_window
    }

    /// Credit that is left for elements of updates and for their answers, in bytes.
    pub fn update_room(&self) -> u64 {
        self.update_limit - self.update_used
    }

    /// Takes credit for an update. There is enough.
    pub fn take_update(&mut self, charge: u64) {
        debug_assert!(charge <= self.update_room(), "no update goes without credit");
        self.update_used += charge;
    }

    pub fn has_rts(&self) -> bool {
        self.rts_used < self.rts_limit
    }

    /// Takes credit for an announce, where there is some.
    pub fn take_rts(&mut self) -> bool {
        if !self.has_rts() {
            return false;
        }
        self.rts_used += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credit(eager_limit: u64, eager_ends: u8) -> CreditBody {
        CreditBody {
            eager_limit: eager_limit.into(),
            request_limit: 0.into(),
            rts_limit: 0.into(),
            update_limit: 0.into(),
            eager_ends,
            rts_long: 0,
            layouts: 0.into(),
            reserved: [0; 4],
        }
    }

    #[test]
    fn credit_that_was_overtaken_says_nothing_new() {
        let windows = Windows { eager: 64 << 10, request: 64 << 10 };
        let mut granted = Granted::begin(windows, 1);
        granted.extend(&credit(64 << 10, 1), true);
        assert!(!granted.comes_back(1000), "there is no more");
        granted.extend(&credit(65 << 10, 0), false);
        assert!(!granted.comes_back(1000), "an older frame does not undo that");
        granted.extend(&credit(65 << 10, 0), true);
        assert!(granted.comes_back(1000));
    }
}
