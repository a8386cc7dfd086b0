//! What is counted and shown of paths.

use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;

use super::{Path, PathId, Paths, Way};
use crate::api::PeerId;
use crate::session::controllers::Controllers;
use crate::session::status::{LinkState, NotUsed, PathCause, PathStatus, PathTally};

impl Paths {
    /// What is counted of the path of a link.
    pub fn tally_over(&mut self, link: LinkId) -> Option<&mut PathTally> {
        self.of_link(link).map(|path| &mut *path.tally)
    }

    /// What is counted of a path.
    pub fn tally_of(&mut self, id: PathId) -> Option<&mut PathTally> {
        self.iter_mut().find(|path| path.id == id).map(|path| &mut *path.tally)
    }

    /// Our rail of a path.
    pub fn rail_of(&self, id: PathId) -> Option<u8> {
        self.iter().find(|path| path.id == id).map(|path| path.rail)
    }

    /// Since when the path of a link is suspect.
    pub fn suspect_since(&self, link: LinkId) -> Option<Time> {
        self.iter().find(|path| path.link() == Some(link))?.health.look().suspect_since
    }

    /// Since when something is awaited over a link.
    pub fn awaited_since(&self, link: LinkId) -> Option<Time> {
        let health = self.iter().find(|path| path.link() == Some(link))?.health.look();
        health.awaited_since.or(health.probed_at)
    }

    /// In which way a link is silent.
    pub fn silence_over(&self, link: LinkId, now: Time) -> PathCause {
        let path = self.iter().find(|path| path.link() == Some(link));
        let Some(health) = path.map(|path| path.health.look()) else { return PathCause::TimeOut };
        let is_late = |since: Time| now.since(since) >= health.time_out;
        match (health.awaited_since, health.probed_at) {
            (Some(since), _) if is_late(since) => PathCause::TimeOut,
            (_, Some(_)) => PathCause::Silence,
            (_, None) => PathCause::TimeOut,
        }
    }

    /// Until when the path of a link is held back.
    pub fn held_until(&self, link: LinkId) -> Option<Time> {
        self.iter().find(|path| path.link() == Some(link))?.health.look().held_until
    }

    /// A link of which the path need not be held back any more.
    pub fn next_ended_hold(&mut self, now: Time) -> Option<LinkId> {
        let is_over =
            |path: &&mut Path| path.health.look().held_until.is_some_and(|until| until <= now);
        let path = self.iter_mut().filter(is_over).find(|path| path.up().is_some())?;
        path.health.end_hold(now);
        path.up()
    }

    /// Each path, of a session with this peer.
    pub fn look(
        &self,
        peer: PeerId,
        endpoint: u128,
        is_bundle: bool,
        controllers: &Controllers,
    ) -> impl Iterator<Item = PathStatus> {
        let used = self.chosen().map(|path| path.id);
        self.iter().map(move |path| {
            let health = path.health.look();
            PathStatus {
                peer,
                endpoint,
                is_bundle,
                path: path.id.name(),
                rail: path.rail,
                way: None,
                link: path.link(),
                state: path.state(),
                cause: path.health.cause().map(|(cause, _)| NotUsed::Path(cause)),
                is_used: used == Some(path.id),
                role: None,
                weight: None,
                migration: None,
                quality: path.part().map(|part| controllers.quality(part)),
                round_trip: health.round_trip,
                delivered_at: Some(health.delivered_at).filter(|at| *at > Time::ZERO),
                tally: *path.tally,
            }
        })
    }
}

impl Path {
    pub(super) fn state(&self) -> LinkState {
        let health = self.health.look();
        match self.way {
            Way::ClosingIdle { .. } => LinkState::Closing,
            Way::Resting { since, .. } => LinkState::Resting { since },
            Way::Lost { since, .. } => LinkState::Lost { since },
            Way::Up { .. } => match (health.suspect_since, health.held_until) {
                (Some(since), _) => LinkState::Suspect { since },
                (None, Some(until)) => LinkState::HeldBack { until },
                // The last path stays in use, whatever is known of it.
                (None, None) => match self.health.cause() {
                    Some((_, since)) => LinkState::Suspect { since },
                    None => LinkState::Up,
                },
            },
        }
    }
}
