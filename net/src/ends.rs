//! The alternate of a peer, given as people write it: the local rail, the address at the other end, the source port.

use ropewalk_core::apm::path::PathId;
use ropewalk_core::apm::{By, LoadList, Rule, Wanted};
use ropewalk_core::{Core, PeerId};

use crate::endpoint::Endpoint;
use crate::engine::Engine;
use crate::entropy::has_ports;

/// The ends of a path, each given or left to the choice by failure domain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PathEnds {
    /// The interface, the source address or the scheme of the rail of this side: `eth1`, `10.0.0.1`, `udp`.
    pub rail: Option<String>,
    /// The host at the other end, without a port: `10.0.0.2`.
    pub remote: Option<String>,
    /// The source port: that of a rail that was opened with `entropy=`, here or at the peer. 0: the one that the kernel chose.
    pub entropy: Option<u16>,
    /// The path shares no interface with the primary one.
    pub strict: bool,
    /// The path's number in the session.
    pub path: Option<PathId>,
}

/// The reason why a path with such ends cannot be the alternate. Class: usage.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EndsError {
    #[error("no path to this peer leaves by '{0}'; `ropewalk paths status` lists them")]
    NoRail(String),
    #[error("no path to this peer ends at '{0}'; `ropewalk paths status` lists them")]
    NoRemote(String),
    #[error(
        "{0} has no entropy: its packets have no source port by which switches choose a way; leave it \
         out, or name a rail of tcp or udp"
    )]
    NoEntropy(&'static str),
    #[error(
        "no path to this peer has the entropy {0}; open a rail with entropy={0} behind its address, \
         and let both sides have more paths (ROPEWALK_PATHS)"
    )]
    UnknownEntropy(u16),
    #[error(transparent)]
    Refused(#[from] Rule),
}

/// A path as far as its ends are known.
struct Candidate {
    wanted: Wanted,
    path: PathId,
    scheme: &'static str,
    /// What may name its rail.
    rails: [Option<String>; 3],
    remote: Option<String>,
}

impl Endpoint {
    /// Names the alternate path of a peer by its ends, as [`Endpoint::specify_path`] does by numbers. Of several that fit it
    /// is the one that shares least with the primary path, then the heaviest. Returns the path.
    ///
    /// # Errors
    /// No path has such an end, or the rule that refuses.
    pub fn specify_path_by(&self, peer: PeerId, ends: &PathEnds) -> Result<PathId, EndsError> {
        let mut engine = self.locked();
        engine.tell_time();
        let answer = engine.choose_by(peer, ends, Core::specify_path);
        engine.drain();
        drop(engine);
        self.wake_service();
        answer
    }

    /// Names the alternate path of a peer by its ends, and loads it in place of one that is armed or being armed. Returns the
    /// path, and the load for [`Endpoint::poll_loads`].
    ///
    /// # Errors
    /// As [`Endpoint::specify_path_by`]; the alternate stays as it was then.
    pub fn replace_path_by(
        &self,
        peer: PeerId,
        ends: &PathEnds,
    ) -> Result<(PathId, LoadList), EndsError> {
        let mut engine = self.locked();
        engine.tell_time();
        let answer = engine
            .choose_by(peer, ends, |core, peer, wanted| core.replace_path(peer, wanted, By::Poll));
        engine.drain();
        drop(engine);
        self.wake_service();
        answer.map(|(path, ticket)| (path, LoadList::begin(&[peer], |_| ticket)))
    }
}

impl Engine {
    fn choose_by<T>(
        &mut self,
        peer: PeerId,
        ends: &PathEnds,
        mut specify: impl FnMut(&mut Core, PeerId, Wanted) -> Result<T, Rule>,
    ) -> Result<T, EndsError> {
        let mut all = self.candidates(peer);
        if all.is_empty() {
            return Ok(specify(&mut self.core, peer, Wanted::default())?);
        }
        if let Some(path) = ends.path {
            all.retain(|it| it.path == path);
            if all.is_empty() {
                return Err(Rule::UnknownPath.into());
            }
        }
        if let Some(name) = &ends.rail {
            all.retain(|it| it.rails.iter().flatten().any(|rail| rail == name));
            if all.is_empty() {
                return Err(EndsError::NoRail(name.clone()));
            }
        }
        if let Some(host) = &ends.remote {
            all.retain(|it| it.remote.as_ref() == Some(host));
            if all.is_empty() {
                return Err(EndsError::NoRemote(host.clone()));
            }
        }
        if let Some(entropy) = ends.entropy {
            let without = |it: &Candidate| !has_ports(it.scheme);
            if let Some(candidate) = all.first().filter(|_| entropy > 0 && all.iter().all(without))
            {
                return Err(EndsError::NoEntropy(candidate.scheme));
            }
            all.retain(|it| it.wanted.entropy == Some(entropy.into()));
            if all.is_empty() {
                return Err(EndsError::UnknownEntropy(entropy));
            }
        }
        // The candidates come with those first that share least.
        let mut refused = Rule::NoRoute;
        for candidate in all {
            let wanted = Wanted { strict: ends.strict, ..candidate.wanted };
            match specify(&mut self.core, peer, wanted) {
                Ok(answer) => return Ok(answer),
                // Each path but one is another than the primary one.
                Err(Rule::IsPrimary) if refused != Rule::NoRoute => {}
                Err(rule) => refused = rule,
            }
        }
        Err(refused.into())
    }

    /// The paths of a peer: those that share least with the primary one first, of these the heavier ones.
    fn candidates(&self, peer: PeerId) -> Vec<Candidate> {
        let Some(roles) = self.core.roles_of(peer) else { return Vec::new() };
        let primary = roles.primary().and_then(|path| roles.get(path)).map(|entry| entry.record);
        let mut entries: Vec<_> = roles.entries().iter().collect();
        entries.sort_by_key(|entry| {
            let shared = primary.map_or(0, |it| entry.record.shared_domains(&it));
            (shared, std::cmp::Reverse(entry.weight))
        });
        let candidate = |record: ropewalk_core::apm::path::PathRecord| {
            let link = self.core.path_link(peer, record.id);
            let name = self.rail_name(record.local_rail);
            Candidate {
                wanted: Wanted {
                    local_rail: Some(record.local_rail),
                    remote_address: Some(record.remote_address),
                    entropy: Some(record.entropy),
                    ..Wanted::default()
                },
                path: record.id,
                scheme: name.scheme,
                rails: [name.interface, name.source, Some(name.scheme.to_string())],
                remote: link.and_then(|link| self.rails.of(link)?.peer_host(link)),
            }
        };
        entries.into_iter().map(|entry| candidate(entry.record)).collect()
    }
}
