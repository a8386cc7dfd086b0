//! What an operator has this process do with a path: `{"do": "drain", "endpoint": ID, "peer": ID, "path": NUMBER}`, or `up`,
//! `weight` (with a `weight`), or `migrate`, whose path may be left out: then it is the armed alternate; or `specify`, with
//! `rail`, `to`, `entropy` and `strict` in place of the path, each of which may be left out.

use std::time::{Duration, Instant};

use ropewalk_net::migration::{MigrationState, Outcome, PathEnds, PathId, Role};
use ropewalk_net::path_status::PathView;
use ropewalk_net::{Endpoint, PeerId};
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

/// Carries an order out. Returns the path that it was about; else why not.
pub fn carry_out(what: &str, asked: &Value) -> Result<u32, String> {
    let text = |name: &str| asked[name].as_str().unwrap_or_default().to_string();
    let (id, peer) = (text("endpoint"), text("peer"));
    let is_meant = |shown: &(Endpoint, String)| shown.0.identity().endpoint.to_string() == id;
    let (endpoint, _) =
        shown::open().into_iter().find(is_meant).ok_or("it has no such endpoint")?;
    let mut paths = endpoint.path_status().paths;
    paths.retain(|view| view.peer.endpoint.to_string() == peer);
    let first = paths.first().ok_or("it has no session with this peer")?;
    if !first.status.is_bundle {
        return Err(
            "the session with this peer has one path only: both sides need rails that are \
                    bound to different interfaces or source addresses"
                .to_string(),
        );
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
        return specify(&endpoint, peer, asked);
    }
    let path = named.ok_or("no path is named")?.status.path;
    let weight = || asked["weight"].as_u64().and_then(|weight| u16::try_from(weight).ok());
    let done = match what {
        "drain" => endpoint.drain_path(peer, PathId(path)),
        "up" => endpoint.up_path(peer, PathId(path)),
        _ => endpoint.weigh_path(peer, PathId(path), weight().unwrap_or(u16::MAX)),
    };
    done.map(|()| path).map_err(|rule| rule.to_string())
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

/// Moves to a path, which is proven first if it is not the armed alternate.
fn migrate(endpoint: &Endpoint, peer: PeerId, to: Option<&PathView>) -> Result<u32, String> {
    let is_armed = endpoint.path_state(peer).migration == MigrationState::Armed;
    match to {
        Some(view) if view.status.role == Some(Role::Primary) => return Ok(view.status.path),
        Some(view) if view.status.role == Some(Role::Alternate) && is_armed => {}
        Some(view) => {
            let path = Some(PathId(view.status.path));
            arm(endpoint, peer, &PathEnds { path, ..PathEnds::default() })?;
        }
        None => {}
    }
    endpoint.migrate_path(peer).map(|path| path.0).map_err(|rule| rule.to_string())
}

/// Makes a path the alternate, in place of another one, and waits for its proof.
fn arm(endpoint: &Endpoint, peer: PeerId, ends: &PathEnds) -> Result<PathId, String> {
    let replaced = endpoint.replace_path_by(peer, ends);
    let (path, mut loads) = replaced.map_err(|error| error.to_string())?;
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
            Err(format!("the path is not proven: {cause:?}"))
        }
        _ => Ok(path),
    }
}
