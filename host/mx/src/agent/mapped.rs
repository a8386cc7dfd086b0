//! The statements of this process's mapper about the peers of an interface. The process remembers them as
//! long as it has the raw endpoint, so that it can tell them to an agent that starts later.
//!
//! Invariant: there are no more peers than an agent's table has.

use std::collections::BTreeMap;

use ropewalk_transport::mxoe::Map;
use ropewalk_wire::mxoe::INDEX_UNKNOWN;

use super::protocol::Question;

/// Peers of a table.
const PEERS_MAX: usize = INDEX_UNKNOWN as usize - 1;

/// See the module.
#[derive(Debug, Clone, Default)]
pub(crate) struct Mapped {
    /// By the numbers of their cards, with the names that were told.
    peers: BTreeMap<u64, Option<String>>,
    pub map: Option<Map>,
}

impl Mapped {
    /// A card is there, and perhaps called so; false where there is no room for it.
    pub fn add(&mut self, nic_id: u64, name: Option<&str>) -> bool {
        let has_room = self.peers.len() < PEERS_MAX || self.peers.contains_key(&nic_id);
        if has_room {
            let known = self.peers.entry(nic_id).or_default();
            *known = name.map(str::to_string).or(known.take());
        }
        has_room
    }

    pub fn remove(&mut self, nic_id: u64) {
        self.peers.remove(&nic_id);
    }

    /// The questions that tell an agent all of these statements.
    pub fn questions(&self) -> impl Iterator<Item = Question<'_>> {
        let peers =
            self.peers.iter().map(|(nic_id, name)| Question::AddPeer(*nic_id, name.as_deref()));
        peers.chain(self.map.map(Question::SetMap))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_word_on_each_card_is_remembered() {
        let mut mapped = Mapped::default();
        for (nic_id, name) in [(1, None), (2, Some("b")), (3, Some("c")), (1, Some("a")), (2, None)]
        {
            assert!(mapped.add(nic_id, name));
        }
        mapped.remove(3);
        mapped.remove(4);
        let map = Map { mapper: 1, version: 2, hosts: 3, is_complete: true };
        mapped.map = Some(map);
        let expected = [
            Question::AddPeer(1, Some("a")),
            Question::AddPeer(2, Some("b")),
            Question::SetMap(map),
        ];
        assert_eq!(mapped.questions().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn there_are_no_more_than_a_table_has() {
        let mut mapped = Mapped::default();
        assert!((0..PEERS_MAX as u64).all(|nic_id| mapped.add(nic_id, None)));
        assert!(!mapped.add(PEERS_MAX as u64, None) && mapped.add(0, Some("a")));
        mapped.remove(1);
        assert!(mapped.add(PEERS_MAX as u64, None));
    }
}
