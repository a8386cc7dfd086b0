//! Sessions without a path: why each path is gone, and when those who wait are told.
//!
//! A session without a usable path waits for one for `Config::path_wait`, and then ends: each operation has one outcome.
//!
//! Invariant: why a bounded number of peers were given up is kept until the next session with each of them begins.

use std::collections::VecDeque;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::time::Time;

use crate::api::{Config, Output, PeerId};
use crate::engine::Core;
use crate::session::Session;
use crate::session::status::PathCause;

/// Peers that were given up of which is known why.
const KEPT: usize = 64;
/// Silence alone, of all paths while something is owed, ends no session before.
pub(crate) const SILENCE_MIN: Duration = Duration::from_secs(1);
/// Silence for less is no event: the peer may compute.
const SILENCE_TOLD: Duration = Duration::from_secs(1);

/// A path that is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathLoss {
    /// The number of the path in its session.
    pub path: u32,
    /// Our rail.
    pub rail: u8,
    pub cause: PathCause,
    pub since: Time,
}

/// Why peers were given up, the latest last.
pub(crate) type Pathless = VecDeque<(PeerId, Vec<PathLoss>)>;

impl Config {
    /// How long a session is without a path before it ends.
    pub fn path_wait(&self) -> Duration {
        self.path_wait.unwrap_or(self.give_up_after)
    }

    /// The same for a session that is without one now. One that rested has lost nothing, and is called for at least once.
    pub(crate) fn wait_of(&self, session: &Session) -> Duration {
        match self.path_wait() {
            Duration::ZERO if session.paths.is_woken() => self.give_up_after,
            wait => wait,
        }
    }
}

impl Core {
    /// The paths to a peer that are not used, and why: those of its session, or those of the last one, where it was given up
    /// for want of a path.
    pub fn path_losses(&self, peer: PeerId) -> Vec<PathLoss> {
        let id = self.resolve(peer);
        if let Some(session) = self.peers.session(id) {
            return session.paths.losses();
        }
        let known = self.pathless.iter().rev().find(|(other, _)| *other == id);
        known.map_or(Vec::new(), |(_, losses)| losses.clone())
    }

    /// The session with a peer has no path left, and none came for long enough.
    pub(crate) fn give_up_paths(&mut self, id: PeerId) {
        let Some(session) = self.peers.session(id) else { return };
        let losses = session.paths.losses();
        let links: Vec<_> = session.paths.links().collect();
        if session.paths.has_link() {
            // Silence; of lost links the end of the session tells.
            self.note_ended(id);
        }
        self.forget_losses(id);
        if self.pathless.len() >= KEPT {
            self.pathless.pop_front();
        }
        self.pathless.push_back((id, losses));
        for link in links {
            // Nobody hears it.
            self.close_link(link);
            self.outputs.push(Output::Abandon { link });
        }
        self.end_session(id, Fault::PeerReset);
    }

    /// A session with a peer begins.
    pub(crate) fn forget_losses(&mut self, id: PeerId) {
        self.pathless.retain(|(other, _)| *other != id);
    }

    /// No path of a session is answered, and nothing says that its peer sleeps.
    pub(crate) fn all_are_silent(&mut self, id: PeerId) {
        let now = self.now;
        let Some(session) = self.peers.session(id) else { return };
        // Where paths rest there are other ways, by which it is called.
        let is_brief = session.paths.has_resting() || session.is_early();
        let until = now + self.silence_max(is_brief);
        let Some(session) = self.peers.session_mut(id) else { return };
        let owes = session.reliable.as_ref().is_some_and(|it| it.sent.are_awaited());
        let Some(bundle) = session.bundle_mut().filter(|_| owes) else { return };
        let until = *bundle.silent_until.get_or_insert_with(|| {
            bundle.silent_briefly = is_brief;
            until
        });
        self.wake_by(id, until);
    }

    /// Looks at the only path of a session that has no shared key, without which no other path can join. Where the path is silent
    /// its link counts as lost: then the session is called for, and goes on over another rail.
    pub(crate) fn look_early(&mut self, id: PeerId) {
        let now = self.now;
        let Some(session) = self.peers.session_mut(id) else { return };
        let is_early = session.is_early();
        let next = if is_early { now + SILENCE_MIN } else { Time::NEVER };
        let is_due = session.bundle_mut().is_some_and(|bundle| bundle.takes_early_look(now, next));
        let link = session.paths.control().filter(|_| is_due && is_early);
        let sent = session.reliable.as_ref().map(|reliable| &reliable.sent);
        let since = link.zip(sent).and_then(|(link, sent)| sent.awaited_since(link));
        let Some(link) = link.filter(|link| self.can_be_silent(*link)) else { return };
        if since.is_some_and(|since| now.since(since.min(now)) >= SILENCE_MIN) {
            self.outputs.push(Output::AskHealth { link });
        }
    }

    /// How long a session whose paths are all silent goes on.
    fn silence_max(&self, is_brief: bool) -> Duration {
        if is_brief { SILENCE_MIN } else { self.config.path_wait().max(SILENCE_MIN) }
    }

    /// All paths of a session may be silent for so long that it is without one.
    fn look_at_silence(&mut self, id: PeerId) {
        let Some(session) = self.peers.session(id) else { return };
        let Some(bundle) = session.bundle() else { return };
        let Some(until) = bundle.silent_until else { return };
        let silence = self.silence_max(bundle.silent_briefly).as_nanos() as u64;
        let since = Time(until.0.saturating_sub(silence));
        let owes = session.reliable.as_ref().is_some_and(|it| it.sent.are_awaited());
        if !owes || self.now.since(since.min(self.now)) < SILENCE_TOLD {
            return;
        }
        let used =
            session.paths.control().and_then(|link| Some((link, session.paths.id_over(link)?)));
        if let Some((link, path)) = used {
            self.note_no_path(id, link.rail, path, since);
        }
    }

    /// Ends a session all of whose paths were silent for too long. True if that was so.
    pub(crate) fn end_silent(&mut self, id: PeerId) -> bool {
        let now = self.now;
        self.look_at_silence(id);
        let Some(session) = self.peers.session_mut(id) else { return false };
        let owes = session.reliable.as_ref().is_some_and(|it| it.sent.are_awaited());
        let Some(bundle) = session.bundle_mut() else { return false };
        if !owes && bundle.silent_until.take().is_some() {
            self.note_resumed(id);
            return false;
        }
        if bundle.silent_until.take_if(|until| *until <= now).is_none() {
            return false;
        }
        if !session.paths.has_resting() && !session.is_early() {
            let was_brief =
                session.bundle_mut().is_some_and(|it| std::mem::take(&mut it.silent_briefly));
            if was_brief {
                // The paths that rested are called by now, or are lost as well.
                self.all_are_silent(id);
                return false;
            }
            self.give_up_paths(id);
            return true;
        }
        let links: Vec<_> = session.paths.links().collect();
        links.into_iter().for_each(|link| self.path_dead(id, link));
        true
    }
}
