//! Answers to questions about this process's paths.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ropewalk_base::time::Time;
use ropewalk_net::migration::{MigrationState, MoveCause, Role};
use ropewalk_net::path_status::{
    NotUsed, PathEventView, PathEventViews, PathQuality, PathStatus, PathView, PathViews, PeerName,
    RailName,
};
use ropewalk_net::{Endpoint, LinkState, PathChange, PathTally};
use serde_json::{Map, Value, json};

use crate::{order, shown};

/// A JSON object that grows.
type Object = Map<String, Value>;

/// The answer to a question: `{"do": "status"}`, or `{"do": "history", "after": {"ENDPOINT": NUMBER}}`; or to an order,
/// see [`order`].
pub fn to(question: &str) -> Value {
    let asked: Value = match serde_json::from_str(question) {
        Ok(asked) => asked,
        Err(error) => return refused(&format!("the question is no JSON object: {error}")),
    };
    match asked["do"].as_str() {
        Some("status") => tell(status),
        Some("history") => tell(|endpoint, object| {
            let id = endpoint.identity().endpoint.to_string();
            history(endpoint, asked["after"][&id].as_u64().unwrap_or(0), object);
        }),
        Some(what) if order::is_one(what) => match order::carry_out(what, &asked) {
            Ok(done) => json!({ "path": done.path, "already": done.already }),
            Err(cause) => refused(&cause),
        },
        _ => refused("this process does not know such a question: it may be of another version"),
    }
}

fn refused(cause: &str) -> Value {
    json!({ "error": cause })
}

/// What all endpoints that are shown tell.
fn tell(of: impl Fn(&Endpoint, &mut Object)) -> Value {
    let endpoints = shown::open().into_iter().map(|(endpoint, role)| {
        let mut object = Object::new();
        object.insert("endpoint".into(), endpoint.identity().endpoint.to_string().into());
        object.insert("role".into(), role.into());
        object.insert("addresses".into(), endpoint.addresses().into());
        of(&endpoint, &mut object);
        Value::from(object)
    });
    json!({ "program": program(), "endpoints": endpoints.collect::<Vec<_>>() })
}

/// The name of this process.
fn program() -> String {
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    name.trim_end().to_string()
}

fn status(endpoint: &Endpoint, object: &mut Object) {
    let PathViews { now, mut paths } = endpoint.path_status();
    shown::remember(endpoint.identity().endpoint, &mut paths);
    let paths: Vec<Value> = paths.iter().map(|path| path_object(path, now)).collect();
    object.insert("paths".into(), paths.into());
}

fn path_object(view: &PathView, now: Time) -> Value {
    let PathView { peer, rail, remote, health, status } = view;
    let (state, since, until) = match status.state {
        LinkState::Up => ("up", None, None),
        LinkState::HeldBack { until } => ("held", None, Some(until)),
        LinkState::Suspect { since } => ("suspect", Some(since), None),
        LinkState::Closing => ("closing", None, None),
        LinkState::Resting { since } => ("resting", Some(since), None),
        LinkState::Lost { since } => ("lost", Some(since), None),
        LinkState::Joining { since } => ("joining", Some(since), None),
        LinkState::Down { since } => ("down", Some(since), None),
    };
    let by_rail = health.and_then(|health| health.round_trips);
    let by_rail = by_rail.map(|trips| (trips.smoothed, trips.variation));
    let round_trip = status.round_trip.or(by_rail);
    let mut object = Object::new();
    let mut put = |name: &str, value: Value| _ = object.insert(name.to_string(), value);
    put("peer", peer_object(peer));
    put("path", json!(Some(status.path).filter(|path| *path != PathStatus::NEVER)));
    put("several", status.is_bundle.into());
    put("rail", rail_object(rail));
    put("remote", json!(remote));
    put("state", state.into());
    put("cause", json!(status.cause.map(NotUsed::name)));
    put("state_seconds", json!(since.map(|since| now.since(since).as_secs_f64())));
    put("held_seconds_left", json!(until.map(|until| until.since(now).as_secs_f64())));
    put("used", status.is_used.into());
    put("score", json!(status.quality.map(|quality| quality.score)));
    put("grade", json!(status.quality.map(|quality| quality.grade.name())));
    let rates = status.quality.map_or([None; 2], rates);
    put("loss_ratio", json!(rates[0]));
    put("corruption_ratio", json!(rates[1]));
    put("path_role", json!(status.role.map(role_name)));
    put("weight", json!(status.weight));
    put("migration", json!(status.migration.map(MigrationState::name)));
    put("round_trip_us", json!(round_trip.map(|(smoothed, _)| micros(smoothed))));
    put("variation_us", json!(round_trip.map(|(_, variation)| micros(variation))));
    put("delivered_seconds_ago", json!(status.delivered_at.map(|at| now.since(at).as_secs_f64())));
    put("unacknowledged_bytes", json!(health.map(|health| health.unacknowledged_bytes)));
    tally_into(&mut object, &status.tally);
    object.into()
}

fn tally_into(object: &mut Object, tally: &PathTally) {
    let suspected: Object = tally
        .suspected()
        .filter(|(_, count)| *count > 0)
        .map(|(name, count)| (name.to_string(), count.into()))
        .collect();
    for (name, count) in tally.counts() {
        object.insert(name.to_string(), count.into());
    }
    object.insert("stalled_us".into(), micros(tally.stalled).into());
    object.insert("suspected".into(), suspected.into());
}

fn history(endpoint: &Endpoint, after: u64, object: &mut Object) {
    let PathEventViews { now, events } = endpoint.path_history(after);
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let events: Vec<Value> = events.iter().map(|event| event_object(event, now, wall)).collect();
    object.insert("events".into(), events.into());
}

/// `wall`: the time of the day at `now`, since 1970.
fn event_object(event: &PathEventView, now: Time, wall: Duration) -> Value {
    let mut object = Object::new();
    let mut put = |name: &str, value: Value| _ = object.insert(name.to_string(), value);
    put("number", event.number.into());
    put("time", wall.saturating_sub(now.since(event.at)).as_secs_f64().into());
    put("peer", peer_object(&event.peer));
    put("path", event.path.into());
    put("rail", rail_object(&event.rail));
    put("event", event.change.name().into());
    match event.change {
        PathChange::Joined | PathChange::Lost | PathChange::Mended => {}
        PathChange::Drained | PathChange::Raised => {}
        PathChange::Migrated { to, cause, detection, bytes } => {
            put("to", to.into());
            put("cause", cause_name(cause).into());
            put("detection_us", json!(detection.map(micros)));
            put("bytes_re_sent", bytes.into());
        }
        PathChange::Suspected { cause, detection } => {
            put("cause", cause.name().into());
            put("detection_us", json!(detection.map(micros)));
        }
        PathChange::Redirected { to, cause, detection, stall, spans, bytes } => {
            put("to", to.into());
            put("cause", cause.name().into());
            put("detection_us", json!(detection.map(micros)));
            put("stall_us", micros(stall).into());
            put("spans_re_sent", spans.into());
            put("bytes_re_sent", bytes.into());
        }
        PathChange::Answered { suspect } | PathChange::Dead { suspect } => {
            put("suspect_us", micros(suspect).into());
        }
        PathChange::Graded(quality) => {
            let [loss, corruption] = rates(quality);
            put("score", quality.score.into());
            put("loss_ratio", json!(loss));
            put("corruption_ratio", json!(corruption));
        }
        PathChange::NoPath { cause } => put("cause", cause.name().into()),
        PathChange::Resumed { without } => put("without_us", micros(without).into()),
        PathChange::Ended { cause, gone } => {
            put("cause", cause.name().into());
            put("gone_us", micros(gone).into());
        }
        PathChange::Held { until } => {
            put("held_us", micros(until.since(event.at)).into());
        }
    }
    object.into()
}

/// The parts of packets that are lost, and spoiled, as far as they are known.
fn rates(quality: PathQuality) -> [Option<f64>; 2] {
    [quality.loss_ppm, quality.corruption_ppm].map(|part| part.map(|part| f64::from(part) / 1e6))
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Primary => "primary",
        Role::Alternate => "alternate",
        Role::Member => "member",
        Role::Drained => "drained",
    }
}

fn cause_name(cause: MoveCause) -> &'static str {
    match cause {
        MoveCause::Manual => "manual",
        MoveCause::PrimarySuspect => "primary_suspect",
        MoveCause::PrimaryFailed => "primary_failed",
        MoveCause::Drained => "drained",
        MoveCause::Decided(_) => "other_side",
    }
}

fn peer_object(peer: &PeerName) -> Value {
    json!({ "endpoint": peer.endpoint.to_string(), "address": peer.address })
}

fn rail_object(rail: &RailName) -> Value {
    json!({
        "index": rail.index,
        "scheme": rail.scheme,
        "interface": rail.interface,
        "source": rail.source,
        "entropy": rail.entropy,
        "address": rail.address,
    })
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
