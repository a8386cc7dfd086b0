//! The health of links. Acknowledgements take no time, and get through where a frame in the other direction would.

use std::time::Duration;

use ropewalk_base::health::{Health, RoundTrips};
use ropewalk_base::verb::LinkId;

use crate::network::Network;

impl Network {
    /// Something arrived at `side`, with the end of a frame of so many bytes.
    pub(crate) fn note_arrival(&mut self, id: u64, side: usize, bytes: u64) {
        let now = self.now;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let (from, to) = (connection.ends[1 - side].rail, connection.ends[side].rail);
        let traffic = &mut connection.ends[side].traffic;
        traffic.heard_at = now;
        traffic.received += u64::from(bytes > 0);
        if self.path(to, from).blocked {
            return;
        }
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.ends[1 - side].traffic.acknowledged(bytes, now);
    }

    /// The health of a link that is up.
    pub(crate) fn health(&self, rail: usize, link: LinkId) -> Option<Health> {
        let (id, side) = self.find_link(rail, link).ok()?;
        let ends = &self.connections.get(&id)?.ends;
        let (here, there) = (ends[side].rail, ends[1 - side].rail);
        let smoothed = self.path(here, there).latency + self.path(there, here).latency;
        let traffic = ends[side].traffic;
        let variation = Duration::ZERO;
        Some(Health {
            round_trips: Some(RoundTrips { smoothed, variation, least: smoothed, p95: None }),
            delivered_bytes: traffic.delivered_bytes,
            unacknowledged_bytes: traffic.unacknowledged_bytes(),
            unsent_bytes: ends[side].lane.queued_bytes(),
            packets: traffic.frames,
            losses: traffic.losses,
            received: traffic.received,
            corrupt: 0,
            heard_at: traffic.heard_at,
            is_peer_full: false,
            silence_tells: true,
        })
    }
}
