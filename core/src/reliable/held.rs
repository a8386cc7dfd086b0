//! Messages that overtook earlier ones, until their turn.

use std::collections::{BTreeMap, BTreeSet};

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
    /// Announces that their sender withdrew before their turn: they come, and only their numbers count.
    withdrawn: BTreeSet<(u8, u64)>,
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

    /// The sender withdrew an announce whose turn has not come. At most so many are noted: it has credit for no more.
    pub fn withdraw(&mut self, channel: Channel, message: u64, most: usize) {
        if self.withdrawn.len() < most {
            self.withdrawn.insert((channel as u8, message));
        }
    }

    /// Whether an announce, whose turn it is, was withdrawn.
    pub fn take_withdrawn(&mut self, channel: Channel, message: u64) -> bool {
        self.withdrawn.remove(&(channel as u8, message))
    }

    pub fn len(&self) -> usize {
        self.messages.len() + self.withdrawn.len()
    }

    /// Whether a message of this number waits for its turn.
    pub fn contains(&self, channel: Channel, message: u64) -> bool {
        self.messages.contains_key(&(channel as u8, message))
    }
}
