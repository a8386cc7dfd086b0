//! What an operator sees of an endpoint's paths, as plain data: their states, and what happened to them.
//!
//! Any thread may ask; a question waits for the engine, so it is not for hot paths.

use std::sync::{Arc, Weak};

use ropewalk_base::health::Health;
use ropewalk_base::ids::EndpointId;
use ropewalk_base::time::Time;
pub use ropewalk_core::{CallFault, NotUsed, PathGrade, PathQuality, PathStatus};
use ropewalk_core::{PathChange, PeerId};

use crate::endpoint::Endpoint;
use crate::shared::Shared;

/// A peer, as people know it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerName {
    pub peer: PeerId,
    pub endpoint: EndpointId,
    /// The address that was looked up for it, else the addresses that it told; `None`: it told none, or is forgotten.
    pub address: Option<String>,
}

/// A rail of this endpoint.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RailName {
    /// Its index.
    pub index: u8,
    pub scheme: &'static str,
    /// The interface and the source address that it is bound to.
    pub interface: Option<String>,
    pub source: Option<String>,
    /// The source port that its user chose.
    pub entropy: Option<u16>,
    /// The first address at which it listens.
    pub address: Option<String>,
}

/// A path of a session, with the names of its peer and its rail.
#[derive(Debug, Clone)]
pub struct PathView {
    pub peer: PeerName,
    pub rail: RailName,
    /// The host at the other end, where the path has a link and its rail knows hosts, or where it never came up.
    pub remote: Option<String>,
    /// What the rail knows of the link.
    pub health: Option<Health>,
    pub status: PathStatus,
}

/// All paths of an endpoint at a moment of its clock.
#[derive(Debug, Clone)]
pub struct PathViews {
    pub now: Time,
    pub paths: Vec<PathView>,
}

/// An event of a path.
#[derive(Debug, Clone)]
pub struct PathEventView {
    /// Counts the events of the endpoint from 1 on.
    pub number: u64,
    pub at: Time,
    pub peer: PeerName,
    pub path: u32,
    pub rail: RailName,
    pub change: PathChange,
}

/// Events of an endpoint, and the time of its clock.
#[derive(Debug, Clone)]
pub struct PathEventViews {
    pub now: Time,
    pub events: Vec<PathEventView>,
}

/// An endpoint that this handle does not keep open.
#[derive(Clone)]
pub struct WeakEndpoint(Weak<Shared>);

impl WeakEndpoint {
    /// The endpoint, unless all its handles are gone.
    pub fn upgrade(&self) -> Option<Endpoint> {
        Some(Endpoint { shared: self.0.upgrade()? })
    }
}

impl Endpoint {
    /// A handle that does not keep the endpoint open.
    pub fn downgrade(&self) -> WeakEndpoint {
        WeakEndpoint(Arc::downgrade(&self.shared))
    }

    /// The paths of all sessions with other endpoints that speak our protocol.
    pub fn path_status(&self) -> PathViews {
        let mut engine = self.locked();
        let now = engine.now();
        let statuses = engine.core.path_statuses();
        let paths = statuses.into_iter().map(|status| engine.path_view(status, now)).collect();
        PathViews { now, paths }
    }

    /// What happened to paths, behind the event of this number: the last events, 128 at most.
    pub fn path_history(&self, after: u64) -> PathEventViews {
        let engine = self.locked();
        let events = engine.core.path_events(after);
        let events = events.into_iter().map(|event| engine.event_view(event)).collect();
        PathEventViews { now: engine.now(), events }
    }
}
