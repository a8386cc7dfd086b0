//! Messages that overtook earlier ones, until their turn.

use std::collections::BTreeMap;

use ropewalk_base::memory::BufferId;
use ropewalk_wire::frame::{EagerBody, RtsBody};

use crate::api::Channel;
use crate::credit::charge_bytes;

#[derive(Debug)]
pub(super) enum Held {
    Eager { body: EagerBody, bytes: u64, buffer: Option<BufferId>, received: bool },
    Rts(RtsBody),
}

/// By channel and message number.
#[derive(Debug, Default)]
pub(crate) struct HeldMessages {
    pub(super) messages: BTreeMap<(u8, u64), Held>,
}

impl HeldMessages {
    /// Eager credit, without that of requests, and announces of messages whose turn has not come.
    pub fn charges(&self) -> (u64, u64) {
        let (mut eager, mut announces) = (0, 0);
        for ((channel, _), held) in &self.messages {
            match held {
                Held::Rts(_) => announces += 1,
                Held::Eager { bytes, .. } if *channel != Channel::Request as u8 => {
                    eager += charge_bytes(*bytes);
                }
                Held::Eager { .. } => {}
            }
        }
        (eager, announces)
    }

    pub fn len(&self) -> usize {
        self.messages.len()
    }

    /// Whether a message of this number waits for its turn.
    pub fn contains(&self, channel: Channel, message: u64) -> bool {
        self.messages.contains_key(&(channel as u8, message))
    }
}
