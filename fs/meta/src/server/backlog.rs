//! Calls that wait for room in the store: bounded by the memory that they occupy, and shared out.
//!
//! Invariant: a client may occupy as much as is left free, not more. So one alone gets half, `n` get an
//! `n + 1`th each, and there is always room for one more.

use std::collections::{BTreeMap, VecDeque};

use ropewalk_net::PeerId;

/// The bytes that all waiting calls may occupy. The endpoint stages ten times as much.
const BYTES_MAX: usize = 32 << 20;
/// The bytes that a call occupies beside its message.
const CALL_BYTES: usize = 512;

struct Entry<T> {
    call: T,
    peer: PeerId,
    bytes: usize,
}

/// Calls in the order in which they came.
pub(super) struct Backlog<T> {
    entries: VecDeque<Entry<T>>,
    bytes: usize,
    by_peer: BTreeMap<PeerId, usize>,
}

impl<T> Default for Backlog<T> {
    fn default() -> Backlog<T> {
        Backlog { entries: VecDeque::new(), bytes: 0, by_peer: BTreeMap::new() }
    }
}

impl<T> Backlog<T> {
    /// Calls that wait.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Takes a call with a message of so many bytes; false, and the call is dropped, where its client
    /// has its share already.
    pub fn push(&mut self, peer: PeerId, message_bytes: usize, call: T) -> bool {
        let bytes = message_bytes + CALL_BYTES;
        let own = self.by_peer.get(&peer).copied().unwrap_or(0) + bytes;
        if own + self.bytes > BYTES_MAX {
            return false;
        }
        self.by_peer.insert(peer, own);
        self.bytes += bytes;
        self.entries.push_back(Entry { call, peer, bytes });
        true
    }

    pub fn pop(&mut self) -> Option<T> {
        let Entry { call, peer, bytes } = self.entries.pop_front()?;
        self.bytes -= bytes;
        if let Some(own) = self.by_peer.get_mut(&peer) {
            *own -= bytes;
            if *own == 0 {
                self.by_peer.remove(&peer);
            }
        }
        Some(call)
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_base::slots::SlotId;

    use super::*;

    const MESSAGE_BYTES: usize = 32 << 10;

    fn peer(index: u32) -> PeerId {
        PeerId(SlotId { index, generation: 1 })
    }

    /// Pushes the longest calls until one is dropped. Returns the number that were taken.
    fn fill(backlog: &mut Backlog<u32>, index: u32) -> usize {
        (0..).take_while(|_| backlog.push(peer(index), MESSAGE_BYTES, index)).count()
    }

    #[test]
    fn the_memory_is_bounded_and_no_client_takes_the_others_room() {
        let most = BYTES_MAX / (MESSAGE_BYTES + CALL_BYTES);
        let mut backlog = Backlog::default();
        let mut taken = vec![fill(&mut backlog, 0)];
        assert!((most / 2 - 1..=most / 2).contains(&taken[0]), "half of it for one alone");
        for index in 1..6 {
            taken.push(fill(&mut backlog, index));
            assert!(taken[index as usize] > 0, "client {index} has no room beside {taken:?}");
        }
        assert!(taken.iter().sum::<usize>() <= most);
        // In order, and nothing is left behind.
        let order: Vec<u32> = std::iter::from_fn(|| backlog.pop()).collect();
        assert!(order.is_sorted() && order.len() == taken.iter().sum::<usize>());
        assert!(backlog.is_empty() && backlog.bytes == 0 && backlog.by_peer.is_empty());
    }
}
