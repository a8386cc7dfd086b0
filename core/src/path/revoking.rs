//! Nodes that are revoked, or whose certificates expire, while a session with them runs.
//!
//! A session depends on the certificate by which its peer proved itself, for as long as it lasts. So it ends when the node is
//! revoked, when its certificate has expired, or when the key that signed it is believed no more. A node with a renewed
//! certificate begins another one. Shared keys have no epoch: sessions under them go on.
//!
//! Invariants: no link carries on or joins a session whose peer this process would not believe any more; such a session
//! ends within [`LOOK`] after the guard got other keys.

use std::time::Duration;

use ropewalk_auth::Standing;
use ropewalk_base::error::Fault;
use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;

use super::Link;
use crate::api::PeerId;
use crate::engine::Core;

/// Between two looks at the guard, while there are sessions that can be revoked.
const LOOK: Duration = Duration::from_secs(5);

/// When sessions are looked at.
#[derive(Debug)]
pub(super) struct Review {
    /// The next look at the guard; `NEVER`: no session can be revoked.
    at: Time,
    /// The keys of the guard that sessions were compared with, by their number.
    changes: u64,
    /// The second, since 1970, at which the first certificate will have expired.
    ends_at: u64,
}

impl Review {
    pub fn new(changes: u64) -> Review {
        Review { at: Time::NEVER, changes, ends_at: u64::MAX }
    }
}

impl Core {
    /// A session began whose proof depends on this.
    pub(super) fn watch_standing(&mut self, standing: Option<Standing>) {
        let (Some(standing), Some(trust)) = (standing, &mut self.trust) else { return };
        let review = &mut trust.review;
        review.ends_at = review.ends_at.min(standing.ends_at());
        review.at = review.at.min(self.now + LOOK);
        self.timers.wake_by(review.at);
    }

    /// Whether what the peer of a link has proven in its handshake still counts, before a session begins over it.
    pub(super) fn stands(&mut self, link: LinkId) -> bool {
        let standing = self.links.get(link).and_then(Link::proven).and_then(|it| it.standing);
        let (Some(standing), Some(trust)) = (standing, &self.trust) else { return true };
        let judged = trust.guard.stands(&standing);
        judged.map_err(|why| self.note_untrusted(why)).is_ok()
    }

    /// Ends the session with a peer that this process would not believe any more. True if it did.
    pub(super) fn end_if_revoked(&mut self, id: PeerId) -> bool {
        let peer = self.peers.get(id).filter(|peer| peer.session.is_some());
        let standing = peer.and_then(|peer| peer.identity.standing());
        let (Some(standing), Some(trust)) = (standing, &self.trust) else { return false };
        let Err(why) = trust.guard.stands(&standing) else { return false };
        self.note_untrusted(why);
        if let Some(peer) = self.peers.get_mut(id) {
            peer.identity.set_standing(None);
        }
        let links = self.links.of_peer(id);
        self.end_session(id, Fault::Untrusted);
        links.into_iter().for_each(|link| self.close_link(link));
        true
    }

    /// Ends the sessions with nodes that were revoked, or whose certificates have expired; the time of the next look.
    pub(crate) fn review_standings(&mut self) -> Time {
        let now = self.now;
        let Some(trust) = &mut self.trust else { return Time::NEVER };
        let review = &mut trust.review;
        if now < review.at {
            return review.at;
        }
        review.at = now + LOOK;
        let changes = trust.guard.changes();
        if changes == review.changes && trust.guard.unix_seconds() < review.ends_at {
            return review.at;
        }
        (review.changes, review.ends_at, review.at) = (changes, u64::MAX, Time::NEVER);
        let standing = self.peers.iter().filter(|(_, peer)| peer.session.is_some());
        let standing = standing.filter_map(|(id, peer)| Some((id, peer.identity.standing()?)));
        let all: Vec<(PeerId, Standing)> = standing.collect();
        for (id, standing) in all {
            if !self.end_if_revoked(id) {
                self.watch_standing(Some(standing));
            }
        }
        self.trust.as_ref().map_or(Time::NEVER, |trust| trust.review.at)
    }
}
