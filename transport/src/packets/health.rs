//! The health of a link, from what the machine measures in any case.

use std::hash::Hash;

use ropewalk_base::health::Health;
use ropewalk_base::slots::SlotId;

use super::link::Stage;
use super::machine::Machine;

impl<S: Copy + Eq + Hash + std::fmt::Debug> Machine<S> {
    /// The health of a link that is up or closing. Looks at each packet that is not acknowledged.
    pub fn health(&self, link: SlotId) -> Option<Health> {
        let state = self.links.get(link)?;
        if !matches!(state.stage, Stage::Up | Stage::Closing) {
            return None;
        }
        // A link that only reads measures its asks.
        let round_trips = state.sending.round_trip().seen();
        let kept = state.sending.contents().map(|sent| sent.bytes.len() as u64);
        Some(Health {
            round_trips: round_trips.or_else(|| state.asks.round_trip.seen()),
            delivered_bytes: state.delivered_bytes,
            unacknowledged_bytes: kept.sum(),
            unsent_bytes: state.out.bytes(),
            packets: state.packets,
            losses: state.sent_again,
            received: self.counters.received,
            corrupt: self.counters.corrupt,
            heard_at: state.heard_at,
            is_peer_full: false,
            silence_tells: true,
        })
    }
}
