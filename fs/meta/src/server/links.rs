//! Members of groups of several servers that have no link any more.
//!
//! The end of a link proves no death: a firewall, or a host on the way, can end it, too. So it is a hint. The server leaves
//! its groups when its lease of reads is over, and need not be silent for as long as one that may stand still.

use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_wire::fs::map::COPY_SILENCE;

use super::MetaServer;
use crate::pools::LINKLESS_SILENCE;

/// The pause between two looks at the link of a server that is late.
const LOOK: Duration = Duration::from_millis(50);
/// The pause where no group has several members.
const REST: Duration = Duration::from_secs(1);
/// A server that wakes up so late stood still, and heard nobody.
const LATE: Duration = Duration::from_millis(200);

impl MetaServer {
    /// Takes servers without a link out of groups that have another member, when their leases are over.
    pub(super) async fn watch_links(self: Rc<Self>) {
        let mut next = self.world.now();
        loop {
            let now = self.world.now();
            let has_mirrored = match self.shard() {
                Some(shard) => shard.pools.has_mirrored(),
                None => return,
            };
            let is_late = now.since(next) >= LATE;
            let pause = match has_mirrored {
                true if is_late => LOOK,
                true => self.look_at_links(now),
                false => REST,
            };
            next = now + pause;
            self.world.sleep_until(next).await;
        }
    }

    /// Looks at the links of servers that are late. Returns the pause until the next look.
    fn look_at_links(self: &Rc<Self>, now: Time) -> Duration {
        let limit = if self.config.shard.hasty { Duration::ZERO } else { LINKLESS_SILENCE };
        let (mut pause, mut linkless) = (REST, Vec::new());
        for (server, heard, caller) in self.data_servers.callers() {
            let silence = now.since(heard);
            if silence < limit {
                pause = pause.min(limit.saturating_sub(silence));
            } else if silence < COPY_SILENCE {
                pause = pause.min(LOOK);
                if self.endpoint.endpoint().peer_rail(caller).is_none() {
                    linkless.push(server);
                }
            }
        }
        if let Some(shard) = self.shard() {
            // Of the others the shard knows it already.
            linkless.retain(|server| shard.pools.is_heard(*server, now));
        }
        if !linkless.is_empty() {
            let now = self.now();
            if let Some(mut shard) = self.shard() {
                shard.handle_linkless(&linkless, limit, now);
            }
            self.tell_events();
            self.drain();
        }
        pause
    }
}
