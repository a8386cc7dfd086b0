//! What an operator has this process do with a path: `{"do": "drain", "endpoint": ID, "peer": ID, "path": NUMBER}`, or `up`,
//! `weight` (with a `weight`), or `migrate`, whose path may be left out: then it is the armed alternate; or `specify`, with
//! `rail`, `to`, `entropy` and `strict` in place of the path, each of which may be left out.

use std::time::{Duration, Instant};

use ropewalk_net::migration::{
    ArmCause, EndsError, MigrationState, Outcome, PathEnds, PathId, ProbeFault, Role, Rule,
};
use ropewalk_net::path_status::{PathStatus, PathView};
use ropewalk_net::{Endpoint, PATHS_VARIABLE, PeerId};
use serde_json::Value;

use crate::shown;

/// How long the proof of a path may take before traffic moves to it.
const PROOF: Duration = Duration::from_secs(3);
/// Between two looks at it.
const LOOK: Duration = Duration::from_millis(2);

/// Whether there is such an order.
pub fn is_one(what: &str) -> bool {
    ["drain", "up", "weight", "migrate", "specify"].contains(&what)
}

/// An order that was carried out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Done {
    /// The path that it was about.
    pub path: u32,
    /// Nothing was to be done: the path carries already.
    pub already: bool,
}

impl From<u32> for Done {
    fn from(path: u32) -> Done {
        Done { path, already: false }
    }
}

/// Carries an order out; else tells why not.
pub fn carry_out(what: &str, asked: &Value) -> Result<Done, String> {
    let text = |name: &str| asked[name].as_str().unwrap_or_default().to_string();
    let (id, peer) = (text("endpoint"), text("peer"));
    let is_meant = |shown: &(Endpoint, String)| shown.0.identity().endpoint.to_string() == id;
    let (endpoint, _) =
        shown::open().into_iter().find(is_meant).ok_or("it has no such endpoint")?;
    let mut paths = endpoint.path_status().paths;
    let came_up = |view: &PathView| view.status.path != PathStatus::NEVER;
    paths.retain(|view| view.peer.endpoint.to_string() == peer && came_up(view));
    let first = paths.first().ok_or("it has no session with this peer")?;
    if !first.status.is_bundle {
        return Err(one_path(std::env::var(PATHS_VARIABLE).ok().as_deref()));
    }
    let peer = first.peer.peer;
    let named = asked["path"].as_u64().map(|number| {
        let view = paths.iter().find(|view| u64::from(view.status.path) == number);
        view.ok_or_else(|| {
            let numbers: Vec<String> =
                paths.iter().map(|view| view.status.path.to_string()).collect();
            format!("there is no path {number}: there are {}", numbers.join(", "))
        })
    });
    let named = named.transpose()?;
    if what == "migrate" {
        return migrate(&endpoint, peer, named);
    }
    if what == "specify" {
        return specify(&endpoint, peer, asked).map(Done::from);
    }
    let path = named.ok_or("no path is named")?.status.path;
    let weight = || asked["weight"].as_u64().and_then(|weight| u16::try_from(weight).ok());
    let done = match what {
        "drain" => endpoint.drain_path(peer, PathId(path)),
        "up" => endpoint.up_path(peer, PathId(path)),
        _ => endpoint.weigh_path(peer, PathId(path), weight().unwrap_or(u16::MAX)),
    };
    done.map(|()| path.into()).map_err(|rule| rule.to_string())
}

/// Why a session has no other path. `allowed`: what the environment of this process says.
fn one_path(allowed: Option<&str>) -> String {
    let only = "the session with this peer has one path only";
    match allowed.map(str::trim) {
        Some("1") => format!(
            "{only}: {PATHS_VARIABLE}=1 in the environment of this process allows no other; start \
             it without"
        ),
        _ => format!(
            "{only}: both sides need rails that are bound to different interfaces or source \
             addresses, and neither may run with {PATHS_VARIABLE}=1"
        ),
    }
}

/// Names the alternate by its ends, and proves it.
fn specify(endpoint: &Endpoint, peer: PeerId, asked: &Value) -> Result<u32, String> {
    let text = |name: &str| asked[name].as_str().map(str::to_string);
    let entropy = asked["entropy"].as_u64();
    let entropy = entropy.map(u16::try_from).transpose().map_err(|_| "an entropy is a port")?;
    let strict = asked["strict"].as_bool().unwrap_or(false);
    let ends = PathEnds { rail: text("rail"), remote: text("to"), entropy, strict, path: None };
    arm(endpoint, peer, &ends).map(|path| path.0)
}

/// Why no path has such ends, in the words in which they were asked for.
fn not_specified(error: &EndsError, ends: &PathEnds) -> String {
    match (error, &ends.rail) {
        (EndsError::Refused(Rule::IsPrimary), Some(rail)) => {
            format!("the path over rail '{rail}' carries already: name another rail")
        }
        (EndsError::Refused(Rule::SameFailureDomain), Some(rail)) if ends.strict => format!(
            "each path over rail '{rail}' shares an interface with the path that carries: name \
             another rail, or leave out --strict"
        ),
        _ => error.to_string(),
    }
}

/// Moves to a path, which is proven first if it is not the armed alternate.
fn migrate(endpoint: &Endpoint, peer: PeerId, to: Option<&PathView>) -> Result<Done, String> {
    let is_armed = endpoint.path_state(peer).migration == MigrationState::Armed;
    match to.map(|view| (view.status.path, view.status.role)) {
        Some((path, Some(Role::Primary))) => return Ok(Done { path, already: true }),
        Some((_, Some(Role::Drained))) => return Err(Rule::IsDrained.to_string()),
        Some((_, Some(Role::Alternate))) if is_armed => {}
        Some((path, _)) => {
            let path = Some(PathId(path));
            arm(endpoint, peer, &PathEnds { path, ..PathEnds::default() })?;
        }
        None => {}
    }
    endpoint.migrate_path(peer).map(|path| path.0.into()).map_err(|rule| rule.to_string())
}

/// Makes a path the alternate, in place of another one, and waits for its proof.
fn arm(endpoint: &Endpoint, peer: PeerId, ends: &PathEnds) -> Result<PathId, String> {
    let replaced = endpoint.replace_path_by(peer, ends);
    let (path, mut loads) = replaced.map_err(|error| not_specified(&error, ends))?;
    let end = Instant::now() + PROOF;
    while endpoint.poll_loads(&mut loads) > 0 {
        if Instant::now() >= end {
            return Err("the path is not proven within 3 s: ask again".to_string());
        }
        std::thread::sleep(LOOK);
    }
    match loads.ends().next() {
        Some((_, Some(Outcome::Refused(rule)))) => Err(rule.to_string()),
        Some((_, Some(Outcome::Failed(cause)))) => {
            Err(format!("the path is not proven: {}", cause_words(cause)))
        }
        _ => Ok(path),
    }
}

/// The end of a proof in words, with what helps.
fn cause_words(cause: ArmCause) -> String {
    let words = match cause {
        ArmCause::Probes(ProbeFault::NoRoute) => {
            "nothing comes back over it: check its network, cables and routes at both ends"
        }
        ArmCause::Probes(ProbeFault::OneWayOut) => {
            "what this side sends over it does not arrive: check the network in that direction"
        }
        ArmCause::Probes(ProbeFault::OneWayIn) => {
            "what the peer sends over it does not arrive: check the network in that direction"
        }
        ArmCause::Probes(ProbeFault::Mtu) => {
            "long packets do not pass: raise the MTU of its network"
        }
        ArmCause::Probes(ProbeFault::Loss) => "it loses too many packets: check its network",
        ArmCause::Probes(ProbeFault::Corrupt) => "it damages packets: check its network",
        ArmCause::StandbyBad => "its probes stay unanswered: check its network",
        ArmCause::PathFailed => "it has failed: mend it, or name another",
        ArmCause::Refused(rule) => return format!("the peer refuses it: {rule}"),
        ArmCause::Withdrawn => "the peer withdrew it: ask again",
        ArmCause::Drained => "it was drained meanwhile: bring it up first",
        ArmCause::Overtaken => "traffic moved to another path meanwhile: ask again",
        ArmCause::NoPath => "no path carries now: wait until one is mended",
        ArmCause::NoneCameUp => {
            "it rested, and did not come up in time: check its network, and ask again"
        }
        ArmCause::ConnectionOver => "the session has ended",
    };
    words.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_speak_of_what_was_asked_for_and_of_what_helps() {
        let rail = PathEnds { rail: Some("eth1".into()), strict: true, ..PathEnds::default() };
        let refused = |rule| not_specified(&EndsError::Refused(rule), &rail);
        assert_eq!(
            refused(Rule::IsPrimary),
            "the path over rail 'eth1' carries already: name another rail"
        );
        assert!(refused(Rule::SameFailureDomain).contains("leave out --strict"));
        assert_eq!(refused(Rule::IsDrained), Rule::IsDrained.to_string());
        assert!(one_path(Some("1")).contains("ROPEWALK_PATHS=1 in the environment of this"));
        assert!(one_path(None).contains("different interfaces"));
        let words = cause_words(ArmCause::Probes(ProbeFault::NoRoute));
        assert!(words.starts_with("nothing comes back over it"), "{words}");
        assert!(!Rule::NotArmed.to_string().contains("load"), "no command is called so");
    }
}
