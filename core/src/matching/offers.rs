//! Messages that are to be offered to the user before they wait.

use std::collections::VecDeque;

use ropewalk_base::slots::SlotId;

use crate::api::Channel;

/// The channel whose messages are offered before they wait, and those that were not offered yet, by arrival.
#[derive(Debug, Default)]
pub(super) struct Offers {
    pub(super) channel: Option<Channel>,
    pub(super) queue: VecDeque<SlotId>,
}
