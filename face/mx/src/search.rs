//! Searches for cards that no agent knows and that an endpoint connects to. The search runs while the connect
//! is under way. So the connect does not wait for its time-out if nobody can answer.
//!
//! A card counts as missing on two conditions. An agent that has heard of all hosts that answer beacons does
//! not know the card, and the card itself was asked several times without an answer. A host whose driver knows
//! us answers that, whatever its programs do. A host whose driver does not know us answers no connect.

use std::collections::BTreeMap;
use std::time::Instant;

use ropewalk_host_mx::nics::{SEEK_EVERY, SEEKS};

use crate::codes::NIC_NOT_FOUND;
use crate::endpoint::{Ep, State};

/// Cards that are looked for, by their numbers.
#[derive(Debug, Default)]
pub struct Searches(BTreeMap<u64, Search>);

#[derive(Debug)]
struct Search {
    next_at: Instant,
    /// The number of times that the card was asked for and did not answer.
    missed: u32,
}

impl Searches {
    /// Somebody connects to this card.
    pub fn begin(&mut self, nic_id: u64) {
        self.0.entry(nic_id).or_insert(Search { next_at: Instant::now(), missed: 0 });
    }

    /// Cards that are to be asked for.
    fn due(&self, now: Instant) -> Vec<u64> {
        let due = self.0.iter().filter(|(_, search)| search.next_at <= now);
        due.map(|(nic_id, _)| *nic_id).collect()
    }

    /// Takes the agent's answer about a card; true if the search is over and the card is missing.
    fn told(&mut self, nic_id: u64, is_missing: Option<bool>, now: Instant) -> bool {
        let Some(search) = self.0.get_mut(&nic_id) else { return false };
        search.next_at = now + SEEK_EVERY;
        search.missed += u32::from(is_missing == Some(true));
        let is_over = is_missing == Some(false) || search.missed > SEEKS;
        if is_over {
            self.0.remove(&nic_id);
        }
        is_over && is_missing == Some(true)
    }

    fn next(&self) -> Option<Instant> {
        self.0.values().map(|search| search.next_at).min()
    }
}

impl Ep {
    /// Looks for cards, without the endpoint's lock. Returns the time of the next look, `due` at the latest.
    pub fn search(&self, due: Instant) -> Instant {
        let nic_ids = self.lock().searches.due(Instant::now());
        for nic_id in nic_ids {
            let is_asked = !self.unanswered(&self.lock(), nic_id).is_empty();
            let nic = self.process.nics.nics.get(self.nic_number as usize).filter(|_| is_asked);
            // Without a NIC to ask, or a request that connects, the search ends.
            let answer = nic.map_or(Ok(Some(false)), |nic| nic.is_missing(nic_id));
            let mut state = self.lock();
            if state.searches.told(nic_id, answer.unwrap_or(Some(false)), Instant::now()) {
                self.is_nowhere(&mut state, nic_id);
            }
        }
        self.lock().searches.next().map_or(due, |next| due.min(next))
    }

    /// Connects to a card that is not there end.
    fn is_nowhere(&self, state: &mut State, nic_id: u64) {
        for number in self.unanswered(state, nic_id) {
            self.connected(state, number, NIC_NOT_FOUND);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_not_there_when_it_was_asked_often_enough_and_nothing_else() {
        let mut searches = Searches::default();
        let now = Instant::now();
        searches.begin(7);
        searches.begin(8);
        assert_eq!(searches.due(Instant::now()), [7, 8]);
        // As long as the agent cannot tell nothing counts.
        (0..20).for_each(|_| assert!(!searches.told(7, None, now)));
        assert!(searches.next().is_some_and(|next| next <= now + SEEK_EVERY));
        assert!(!searches.told(8, Some(true), now) && !searches.told(8, Some(false), now));
        let missed = (0..).take_while(|_| !searches.told(7, Some(true), now)).count();
        assert_eq!((missed, searches.next()), (SEEKS as usize, None));
    }
}
