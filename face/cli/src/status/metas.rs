//! The metadata servers of a cluster that has several, in words and as JSON.

use ropewalk_client::operator::metas::{MetaPlace, MetaPlaces, NodeRole};
use serde_json::{Value, json};

/// The part of a metadata server, in a few words.
pub fn part(places: &MetaPlaces, place: &MetaPlace) -> String {
    let is_active = places.active.is_some_and(|(number, _)| number == place.number);
    let standby = place.known.and_then(|it| it.standby);
    if is_active {
        return "active".to_string();
    }
    match (standby, &place.answer) {
        (Some(it), _) if it.copies => "standby, copies the metadata".to_string(),
        (Some(it), _) if it.has_all && it.may_lead => "standby, has all".to_string(),
        (Some(_), Some(_)) => match places.lag(place) {
            Some(lag) if lag > 0 => format!("standby, lacks {lag} records"),
            _ => "standby, not taken in yet".to_string(),
        },
        (None, Some(answer)) => match answer.role {
            NodeRole::Copies => "standby, copies the metadata".to_string(),
            NodeRole::Follows => "standby".to_string(),
            NodeRole::Seeks | NodeRole::Active => "up, follows nobody".to_string(),
        },
        (_, None) => "no answer".to_string(),
    }
}

/// The metadata servers as JSON; `role` is one of five words.
pub fn as_json(places: &MetaPlaces) -> Value {
    let servers: Vec<Value> = places.servers.iter().map(|it| server_json(places, it)).collect();
    json!({
        "active": places.active.map(|(number, _)| number),
        "term": places.active.map(|(_, term)| term),
        "has_standby": places.has_standby(),
        "lease_seconds": places.lease.as_secs_f64(),
        "alone": places.alone,
        "witness": places.witness.map(|witness| json!({
            "kind": if witness.server.is_some() { "data_server" } else { "etcd" },
            "server": witness.server,
            "silent_seconds": witness.silence.map(|silence| silence.as_secs_f64()),
        })),
        "servers": servers,
    })
}

fn server_json(places: &MetaPlaces, place: &MetaPlace) -> Value {
    let is_active = places.active.is_some_and(|(number, _)| number == place.number);
    let (answer, standby) = (place.answer.as_ref(), place.known.and_then(|it| it.standby));
    let role = match (is_active, answer.map(|it| it.role), standby) {
        (true, ..) => "active",
        (_, Some(NodeRole::Copies), _) => "copies",
        (_, Some(NodeRole::Follows), _) | (_, None, Some(_)) => "standby",
        (_, Some(NodeRole::Seeks | NodeRole::Active), _) => "seeks",
        (_, None, None) => "silent",
    };
    json!({
        "server": place.number,
        "address": place.address,
        "role": role,
        "answers": answer.is_some(),
        "term": answer.map(|it| it.term),
        "position": answer.map(|it| it.position),
        "written": answer.map(|it| it.reached.written),
        "durable": answer.map(|it| it.reached.durable),
        "lag_records": places.lag(place),
        "has_all": standby.map(|it| it.has_all),
        "may_lead": standby.map(|it| it.may_lead),
        "silent_seconds": standby.map(|it| it.silence as f64 / 1e3),
    })
}
