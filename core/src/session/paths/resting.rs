//! Paths that rest: links of idle sessions that were closed with the consent of both sides.
//!
//! Invariant: a path that rests has no link, and is neither suspect nor held back.

use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;

use super::{KeptHealth, Path, Paths, Way};
use crate::session::PathCause;

impl Paths {
    /// Whether no path has a link since all were idle.
    pub fn is_resting(&self) -> bool {
        self.iter().all(Path::rests)
    }

    /// Since when that is so.
    pub fn resting_since(&self) -> Option<Time> {
        let since = |path: &Path| match path.way {
            Way::Resting { since, .. } => Some(since),
            _ => None,
        };
        self.iter().map(since).reduce(|latest, time| Some(latest?.max(time?))).flatten()
    }

    /// After how many posts of receives the session was idle-closed, where it is, or was until somebody sent.
    pub fn resting_since_post(&self) -> Option<u64> {
        let rested = |path: &Path| match path.way {
            Way::Resting { since_post, .. } => Some(since_post),
            Way::Lost { rested, .. } => rested,
            _ => None,
        };
        self.iter().map(rested).reduce(|first, post| Some(first?.min(post?))).flatten()
    }

    /// Whether the session looks for a link, and its peer rests, or may: it did so itself until somebody sent.
    pub fn is_woken(&self) -> bool {
        !self.has_link()
            && self.iter().any(|path| matches!(path.way, Way::Lost { rested: Some(_), .. }))
    }

    /// Whether a path rests, perhaps beside others that do not.
    pub fn has_resting(&self) -> bool {
        self.iter().any(Path::rests)
    }

    /// Whether an operator keeps a path out of use.
    pub fn has_drained(&self) -> bool {
        self.iter().any(|path| path.is_drained)
    }

    /// No path needs a link from now on. What waited for an answer is for a peer that waits for none of it.
    pub(in crate::session) fn rest(&mut self, now: Time, posts: u64) {
        let since_post = self.resting_since_post().unwrap_or(posts);
        for path in self.iter_mut() {
            (path.way, path.health) =
                (Way::Resting { since: now, since_post }, KeptHealth::default());
        }
    }

    /// The path of a link needs none from now on; others stay.
    pub(in crate::session) fn rest_over(&mut self, link: LinkId, now: Time, posts: u64) {
        if let Some(path) = self.of_link(link) {
            let way = Way::Resting { since: now, since_post: posts };
            (path.way, path.health) = (way, KeptHealth::default());
        }
    }

    /// Somebody sends in a session that rests, or the last link is lost of one whose peer may rest: it looks for a link from
    /// now on, as if all had been lost now. `posts`: those of receives so far.
    pub(in crate::session) fn wake(&mut self, now: Time, retry_at: Time, posts: u64) {
        let rested = Some(self.resting_since_post().unwrap_or(posts));
        for path in self.iter_mut() {
            if path.rests() {
                path.health.note_cause(PathCause::TimeOut, now);
            }
            path.way = Way::Lost { since: now, retry_at, rested };
        }
    }
}

impl Path {
    pub(super) fn rests(&self) -> bool {
        matches!(self.way, Way::Resting { .. })
    }
}
