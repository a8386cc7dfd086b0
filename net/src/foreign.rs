//! Questions about foreign peers of an endpoint, and about what peers over packets owe: rare calls, which the rails
//! with such peers answer.

use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{ForeignName, LinkId};
use ropewalk_core::{OperationId, PeerId};
use ropewalk_rail::foreign::ForeignRail;

use crate::endpoint::Endpoint;
use crate::engine::Engine;

/// The link of a peer with a session, and the rail of that link, if it may have foreign peers.
fn rail_of(engine: &mut Engine, peer: PeerId) -> Option<(LinkId, &mut dyn ForeignRail)> {
    let link = engine.core.peer_link(peer)?;
    Some((link, engine.rails.of_mut(link)?.foreign()?))
}

impl Endpoint {
    /// The name of a foreign peer with a session, in the terms of its protocol; `None` for all others.
    pub fn foreign_name(&self, peer: PeerId) -> Option<ForeignName> {
        let mut engine = self.locked();
        let (link, rail) = rail_of(&mut engine, peer)?;
        rail.name(link)
    }

    /// Shows a key to a foreign peer with a session: `PeerEvent::KeyJudged` reports the peer's answer, unless the
    /// session ends. `PeerReset`: there is no session. `Invalid`: the peer takes no keys.
    pub fn show_key(&self, peer: PeerId, key: u32) -> Result<(), Fault> {
        let mut engine = self.locked();
        if engine.core.peer_link(peer).is_none() {
            return Err(Fault::PeerReset);
        }
        let (link, rail) = rail_of(&mut engine, peer).ok_or(Fault::Invalid)?;
        let shown = rail.show_key(link, key);
        engine.drain();
        shown
    }

    /// The time since which the peer of a pending send owes acknowledgements, perhaps of this message, without
    /// having acknowledged anything. `None` if it owes none, or has the message as far as its rail knows.
    pub fn owed_for(&self, send: OperationId) -> Option<Duration> {
        let mut engine = self.locked();
        let (peer, channel, message) = engine.core.sent_as(send)?;
        let (link, rail) = rail_of(&mut engine, peer)?;
        let since = rail.owed_since(link, message.map(|number| (channel as u8, number)));
        (since != Time::NEVER).then(|| engine.now().since(since))
    }
}
