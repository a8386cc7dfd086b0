//! How long messages may be that leave at once: what rails want, what peers take, what is configured.

use ropewalk_base::limits::{
    EAGER_BYTES, EAGER_BYTES_LONG, FRAME_PAYLOAD_BYTES_MAX, SPAN_BYTES_MAX,
};
use ropewalk_base::verb::{Capabilities, LinkId};

use crate::api::*;
use crate::engine::Core;

impl Config {
    /// Up to how many bytes messages leave at once over a rail; without one, what no rail wants less than.
    #[inline]
    pub(crate) fn eager_bytes(&self, rail: Option<&Capabilities>) -> u64 {
        let wanted = || rail.map_or(EAGER_BYTES, |rail| rail.eager_bytes).max(self.eager_bytes_min);
        u64::from(self.eager_bytes_max.unwrap_or_else(wanted))
    }
}

/// Whether messages go in fragments over such a rail.
fn takes_fragments(rail: &Capabilities) -> bool {
    rail.eager_bytes > rail.frame_payload_bytes_max
}

impl Core {
    /// The longest message that a peer may count on sending at once, over whatever rail: its first window has room
    /// for it. Longer ones are sent in fragments as far as its window has grown.
    pub(crate) fn eager_bytes_sure(&self) -> u32 {
        let Config { eager_bytes_max, eager_bytes_min, .. } = self.config;
        let sure = |rail: &Capabilities| match takes_fragments(rail) {
            true => rail.eager_bytes.min(EAGER_BYTES),
            false => rail.eager_bytes,
        };
        let wanted = || self.rails.iter().map(sure).max().unwrap_or(EAGER_BYTES);
        eager_bytes_max.unwrap_or_else(|| wanted().max(eager_bytes_min)).min(EAGER_BYTES_LONG)
    }

    /// The longest message that this endpoint takes at once over a link; longer ones are to be announced.
    pub(crate) fn eager_bytes_over(&self, link: LinkId, spans: bool) -> u64 {
        let rail = self.rails.of(link);
        let bytes = self.config.eager_bytes(rail);
        match rail {
            Some(rail) if takes_fragments(rail) && !spans => bytes,
            // A message in one frame, of those that are kept until they are acknowledged.
            Some(rail) => bytes.min(rail.frame_payload_bytes_max.min(EAGER_BYTES_LONG).into()),
            None => bytes.min(EAGER_BYTES_LONG.into()),
        }
    }

    /// A session begins, or has other links than before: how long its messages and frames may be, over each of them.
    pub(crate) fn begin_lengths(&mut self, id: PeerId) {
        let Some(session) = self.peers.session(id) else { return };
        let spans = session.reliable.is_some();
        let all = session.paths.links().map(|link| self.lengths_over(link, spans));
        let least = all.reduce(|(eager, frame), (other_eager, other_frame)| {
            (eager.min(other_eager), frame.min(other_frame))
        });
        if let (Some((eager_bytes, frame_bytes)), Some(session)) =
            (least, self.peers.session_mut(id))
        {
            session.granted.limit(eager_bytes, frame_bytes);
        }
    }

    /// How long messages may be that leave at once over a link, and payloads of frames.
    fn lengths_over(&self, link: LinkId, spans: bool) -> (u64, u64) {
        let hello = self.links.get(link).and_then(|state| state.hello);
        let accepted = hello.map(|hello| u64::from(hello.eager_max.get()) * 1024);
        let accepted = match accepted {
            Some(0) => u64::from(EAGER_BYTES_LONG),
            Some(bytes) => bytes,
            None => u64::MAX,
        };
        let eager_bytes = self.eager_bytes_over(link, spans).min(accepted);
        let rail = self.rails.of(link);
        let frame = rail.map_or(FRAME_PAYLOAD_BYTES_MAX, |rail| rail.frame_payload_bytes_max);
        let most = if spans { SPAN_BYTES_MAX } else { FRAME_PAYLOAD_BYTES_MAX };
        (eager_bytes, u64::from(frame.min(most)))
    }
}
