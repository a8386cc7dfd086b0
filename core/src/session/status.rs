//! What an operator sees of paths: their states, and what each has carried and suffered.
//!
//! Invariant: a path of a session that never had two, and never lost a link, counts nothing and has no allocation.

use std::ops::{Deref, DerefMut};
use std::sync::LazyLock;
use std::time::Duration;

use ropewalk_base::health::Suspicion;
use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;

use crate::api::PeerId;
use crate::apm::{MigrationState, PathId as Named, Role};
use crate::engine::Core;
use crate::session::quality::PathQuality;
use crate::session::sought::{CallFault, SoughtPath};

/// Why a path became suspect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PathCause {
    /// Nothing of what went over it was acknowledged for a time-out.
    TimeOut,
    /// A probe stayed unanswered for a time-out.
    Silence,
    /// Its rail said so.
    Rail(Suspicion),
    /// The peer said so of its own rail.
    Peer,
    /// The path of another session over the same rail to the same host is dead.
    Route,
    /// Its link ended without a word before.
    LinkLost,
}

impl PathCause {
    /// Names of the causes that no rail tells, by [`PathCause::number`]; those of rails follow
    /// ([`Suspicion::names`]).
    const NAMES: [&'static str; 5] =
        ["time_out", "silence", "link_lost", "peer_told", "same_route"];
    const COUNT: usize = PathCause::NAMES.len() + Suspicion::COUNT;

    fn number(self) -> usize {
        match self {
            PathCause::TimeOut => 0,
            PathCause::Silence => 1,
            PathCause::LinkLost => 2,
            PathCause::Peer => 3,
            PathCause::Route => 4,
            PathCause::Rail(cause) => Self::NAMES.len() + cause.number(),
        }
    }

    /// The names of all causes for people and machines, in the order of their numbers.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::NAMES.into_iter().chain(Suspicion::names())
    }

    /// Its name: `time_out`, `carrier_lost`.
    pub fn name(self) -> &'static str {
        match self {
            PathCause::Rail(cause) => cause.name(),
            own => Self::NAMES[own.number()],
        }
    }
}

/// Why a path is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NotUsed {
    /// It came up before.
    Path(PathCause),
    /// It never did.
    Call(CallFault),
}

impl NotUsed {
    /// Its name for people and machines.
    pub fn name(self) -> &'static str {
        match self {
            NotUsed::Path(cause) => cause.name(),
            NotUsed::Call(fault) => fault.name(),
        }
    }
}

/// What a path has carried and suffered since its session has had several paths, or lost a link for the first time.
/// Bytes are those of payloads; headers, and what rails read and write by themselves, do not count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PathTally {
    /// Numbered frames that went over it, those that went before over this or another path included.
    pub frames: u64,
    pub bytes: u64,
    /// Those of them that had gone before.
    pub frames_re_sent: u64,
    pub bytes_re_sent: u64,
    pub probes_sent: u64,
    pub probes_answered: u64,
    /// How often it got a link, lost one, and was given up.
    pub joined: u64,
    pub lost: u64,
    pub dead: u64,
    /// How often this side's traffic migrated away from it.
    pub migrated: u64,
    /// How often what went over it was sent over others instead, and how long it took these to deliver again.
    pub stalls: u64,
    pub stalled: Duration,
    suspected: [u64; PathCause::COUNT],
}

impl PathTally {
    /// A span goes over it, with a payload of so many bytes.
    #[inline]
    pub fn carry(&mut self, bytes: u64, is_again: bool) {
        self.frames += 1;
        self.bytes += bytes;
        if is_again {
            self.frames_re_sent += 1;
            self.bytes_re_sent += bytes;
        }
    }

    pub fn note_suspected(&mut self, cause: PathCause) {
        self.suspected[cause.number()] += 1;
    }

    /// All that is counted but the causes of suspicions, with names for people and machines.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = [
            ("frames", self.frames),
            ("bytes", self.bytes),
            ("frames_re_sent", self.frames_re_sent),
            ("bytes_re_sent", self.bytes_re_sent),
            ("probes_sent", self.probes_sent),
            ("probes_answered", self.probes_answered),
            ("joined", self.joined),
            ("lost", self.lost),
            ("dead", self.dead),
            ("migrated", self.migrated),
            ("stalls", self.stalls),
        ];
        counts.into_iter()
    }

    /// How often it was suspected, by the names of the causes.
    pub fn suspected(&self) -> impl Iterator<Item = (&'static str, u64)> {
        PathCause::names().zip(self.suspected)
    }
}

/// A tally that is kept from when something is counted on.
#[derive(Debug, Default)]
pub(crate) struct KeptTally(Option<Box<PathTally>>);

static NOTHING_COUNTED: LazyLock<PathTally> = LazyLock::new(PathTally::default);

impl Deref for KeptTally {
    type Target = PathTally;

    fn deref(&self) -> &PathTally {
        self.0.as_deref().unwrap_or(&NOTHING_COUNTED)
    }
}

impl DerefMut for KeptTally {
    fn deref_mut(&mut self) -> &mut PathTally {
        self.0.get_or_insert_default()
    }
}

/// The state of the link of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkState {
    /// It has a link that delivers, as far as is known.
    Up,
    /// It got a link again, and is used before this time only where no other path is there.
    HeldBack { until: Time },
    /// It delivers nothing: it is probed, and used only where no other path is there.
    Suspect { since: Time },
    /// The peer was asked to do without the link, which is idle.
    Closing,
    /// Its link was closed since it was idle; it gets one when somebody wants something.
    Resting { since: Time },
    /// It lost its link, and is to get another.
    Lost { since: Time },
    /// It never had a link, and no call for it is over.
    Joining { since: Time },
    /// It never had a link, and calls for it came to nothing.
    Down { since: Time },
}

/// A path of a session, at a moment.
#[derive(Debug, Clone, Copy)]
pub struct PathStatus {
    pub peer: PeerId,
    /// The peer's endpoint id.
    pub endpoint: u128,
    /// The session may have further paths: both sides agreed on a key.
    pub is_bundle: bool,
    /// The number of the path in its session, never given again; [`PathStatus::NEVER`] of one that never came up.
    pub path: u32,
    /// Our rail.
    pub rail: u8,
    /// The way by which a path that never came up was called for last.
    pub way: Option<u32>,
    /// The link, where it has one.
    pub link: Option<LinkId>,
    pub state: LinkState,
    /// Why it is not used, or was called in vain.
    pub cause: Option<NotUsed>,
    /// What is sent now goes over it.
    pub is_used: bool,
    /// Its role and its weight, and how far the migration of its session is; `None`: the session never had several paths.
    pub role: Option<Role>,
    pub weight: Option<u16>,
    pub migration: Option<MigrationState>,
    /// The quality of its route, a rail of ours and a remote host, which all sessions share; `None`: the path has no link,
    /// or was always the only one.
    pub quality: Option<PathQuality>,
    /// Smoothed, and its variation, as RFC 6298 has them; `None`: none was measured by numbered frames.
    pub round_trip: Option<(Duration, Duration)>,
    /// When the peer acknowledged something that had gone over it, or answered a probe, last.
    pub delivered_at: Option<Time>,
    pub tally: PathTally,
}

impl PathStatus {
    /// The number of paths that never came up, of which there is one for each rail at most.
    pub const NEVER: u32 = u32::MAX;

    /// A path that never came up, of a session with this peer.
    fn never(peer: PeerId, endpoint: u128, sought: &SoughtPath) -> PathStatus {
        let SoughtPath { rail, way, since, fault } = *sought;
        let state = match fault {
            None => LinkState::Joining { since },
            Some(_) => LinkState::Down { since },
        };
        PathStatus {
            peer,
            endpoint,
            is_bundle: true,
            path: PathStatus::NEVER,
            rail,
            way: Some(way),
            link: None,
            state,
            cause: fault.map(NotUsed::Call),
            is_used: false,
            role: None,
            weight: None,
            migration: None,
            quality: None,
            round_trip: None,
            delivered_at: None,
            tally: PathTally::default(),
        }
    }
}

impl Core {
    /// The paths of all sessions with other endpoints that speak our protocol, by peer. Not for hot paths.
    pub fn path_statuses(&self) -> Vec<PathStatus> {
        let mut found = Vec::new();
        for (id, peer) in self.peers.iter() {
            let Some(session) = peer.session.as_ref().filter(|it| !it.is_foreign()) else {
                continue;
            };
            let endpoint = peer.identity.endpoint;
            if endpoint == self.identity.endpoint.0 {
                continue;
            }
            let is_bundle = session.bundle().is_some_and(|bundle| bundle.key().is_some());
            let machine = self.machine(id);
            let controllers = &self.routes.controllers;
            let paths = session.paths.look(id, endpoint, is_bundle, controllers);
            found.extend(paths.map(|mut status| {
                if let Some(machine) = machine {
                    let (roles, path) = (machine.roles(), Named(status.path));
                    status.role = roles.role(path);
                    status.weight = roles.get(path).map(|entry| entry.weight);
                    status.migration = Some(machine.state());
                }
                status
            }));
            let has_path = |rail: u8| session.paths.iter().any(|path| path.rail() == rail);
            let sought = session.bundle().into_iter().flat_map(|bundle| bundle.sought.iter());
            let never = sought.filter(|it| !has_path(it.rail));
            found.extend(never.map(|it| PathStatus::never(id, endpoint, it)));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn causes_have_names_of_their_own_and_are_counted_by_them() {
        let mut tally = KeptTally::default();
        assert!(tally.0.is_none() && *tally == PathTally::default());
        for cause in [
            PathCause::TimeOut,
            PathCause::Rail(Suspicion::SendError(101)),
            PathCause::Rail(Suspicion::SendError(113)),
        ] {
            tally.note_suspected(cause);
        }
        let counted: Vec<_> = tally.suspected().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [("time_out", 1), ("send_error", 2)]);
        let own = [
            PathCause::TimeOut,
            PathCause::Silence,
            PathCause::LinkLost,
            PathCause::Peer,
            PathCause::Route,
        ];
        let rails = (1..=Suspicion::COUNT as u8).filter_map(Suspicion::from_wire);
        let all: Vec<_> = own.into_iter().chain(rails.map(PathCause::Rail)).collect();
        let numbers: Vec<_> = all.iter().map(|cause| cause.number()).collect();
        assert!(numbers.into_iter().eq(0..PathCause::COUNT), "each has a number of its own");
        assert!(all.iter().map(|cause| cause.name()).eq(PathCause::names()));
        assert_eq!(PathCause::LinkLost.name(), "link_lost");
        assert_eq!(PathCause::Rail(Suspicion::CarrierLost).name(), "carrier_lost");
    }
}
