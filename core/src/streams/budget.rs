//! How many bytes of data frames one pass makes, and who waits for the next pass.

use std::collections::VecDeque;

use super::Throttled;
use crate::api::PeerId;
use crate::path::Peers;

/// Bytes of data frames in one pass, to all peers together: some 200 us of the processor's time.
const BYTES_PER_PASS: u64 = 1 << 20;

#[derive(Debug)]
pub(crate) struct BulkBudget {
    left: u64,
    /// Peers that wait for the next pass, in turn.
    throttled: VecDeque<PeerId>,
}

impl BulkBudget {
    pub fn new() -> BulkBudget {
        BulkBudget { left: BYTES_PER_PASS, throttled: VecDeque::new() }
    }

    /// A pass begins. Peers that waited stay in their turns: see [`BulkBudget::next_throttled`].
    #[inline]
    pub fn refill(&mut self) {
        self.left = BYTES_PER_PASS;
    }

    #[inline]
    pub fn is_spent(&self) -> bool {
        self.left == 0
    }

    /// A data frame with so many bytes is made.
    pub fn spend(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(bytes);
    }

    /// A peer's streams wait for the next pass. It keeps its turn there, whatever becomes of its session.
    pub fn wait(&mut self, id: PeerId, mark: &mut Throttled) {
        if !std::mem::replace(&mut mark.0, true) {
            self.throttled.push_back(id);
        }
    }

    #[inline]
    pub fn is_throttled(&self) -> bool {
        !self.throttled.is_empty()
    }

    /// Takes out the next peer that waited, if there are bytes left for it.
    #[inline]
    pub fn next_throttled(&mut self, peers: &mut Peers) -> Option<PeerId> {
        if self.is_spent() {
            return None;
        }
        let id = self.throttled.pop_front()?;
        if let Some(peer) = peers.get_mut(id) {
            peer.throttled.0 = false;
        }
        Some(id)
    }
}
