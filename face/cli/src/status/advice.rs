//! The faults of a cluster in words, and the remedy of each.

use ropewalk_client::operator::metas::MetaPlaces;
use ropewalk_client::operator::status::{ClusterState, MetaState, ServerState};
use serde_json::{Value, json};

use super::{ago, counted};
use crate::report::bytes;

/// A fault.
#[derive(Debug, PartialEq, Eq)]
pub struct Trouble {
    pub what: String,
    pub remedy: String,
}

impl Trouble {
    fn new(what: impl Into<String>, remedy: impl Into<String>) -> Trouble {
        Trouble { what: what.into(), remedy: remedy.into() }
    }

    /// One sentence for people.
    pub fn sentence(&self) -> String {
        format!("{}: {}", self.what, self.remedy)
    }

    pub fn as_json(&self) -> Value {
        json!({ "what": self.what, "remedy": self.remedy })
    }
}

/// The faults of a cluster whose metadata server answers, the worst first.
pub fn of_cluster(state: &ClusterState, places: Option<&MetaPlaces>) -> Vec<Trouble> {
    let mut found = Vec::new();
    let meta = &state.meta;
    if meta.full {
        let remedy = match meta.missing_bytes {
            0 => "free room there, or remove files".to_string(),
            missing => format!("free {} there, or remove files", bytes(missing)),
        };
        found.push(Trouble::new(
            "the disk of the metadata is nearly full, and nothing new is created",
            remedy,
        ));
    }
    found.extend(state.servers.iter().flat_map(of_data_server));
    found.extend(of_groups(meta));
    found.extend(places.map(of_metas).unwrap_or_default());
    if meta.in_grace {
        found.push(Trouble::new(
            "the metadata server has just started, and waits for its former clients",
            "it serves all calls once they are back, or after the term of a lease",
        ));
    }
    found
}

/// Groups for files of several copies that lack a copy.
fn of_groups(meta: &MetaState) -> Vec<Trouble> {
    let figure = |name| meta.figures.get(name).copied().unwrap_or(0);
    let (groups, short) = (figure("meta_groups_mirrored"), figure("meta_groups_short"));
    let last = match figure("meta_groups_last_copy") {
        0 => String::new(),
        last => format!(", and of {last} the last copy is left"),
    };
    let fault = || {
        Trouble::new(
            format!("{short} of {groups} groups of mirrored files lack a copy{last}"),
            "start the data servers that do not answer; those that are back are brought into step",
        )
    };
    let together = figure("meta_groups_together");
    let near = || {
        Trouble::new(
            format!(
                "{together} of {groups} groups of mirrored files have two copies in one failure domain"
            ),
            "name the domains as they were when the policy was set ('ropewalk serve data --domain')",
        )
    };
    [(short > 0).then(fault), (together > 0).then(near)].into_iter().flatten().collect()
}

fn of_data_server(server: &ServerState) -> Vec<Trouble> {
    let (number, mut found) = (server.server, Vec::new());
    let Some(answer) = &server.answer else {
        let since = server.silence.map_or(String::new(), |it| format!(" since {}", ago(it)));
        found.push(Trouble::new(
            format!(
                "data server {number} does not answer{since}, and stripes that are there alone \
                 cannot be read"
            ),
            format!("start it by 'ropewalk serve data --server {number}', or look at its log"),
        ));
        return found;
    };
    if server.full {
        found.push(Trouble::new(
            format!("data server {number} is nearly full, and gets no new files"),
            "remove files, or add a data server",
        ));
    }
    if answer.corrupt_blocks > 0 {
        let blocks = counted(answer.corrupt_blocks, "damaged block");
        found.push(Trouble::new(
            format!("data server {number} has found {blocks}; reading them is an error"),
            "'ropewalk check --read' names the files; look at the disk",
        ));
    }
    if server.fences_owed > 0 {
        let fences = counted(server.fences_owed.into(), "ended session");
        found.push(Trouble::new(
            format!("data server {number} does not know of {fences} yet"),
            "it is told as soon as it answers the metadata server: check the network between them",
        ));
    }
    found
}

/// The faults of several metadata servers.
pub fn of_metas(places: &MetaPlaces) -> Vec<Trouble> {
    let mut found = Vec::new();
    let witness = places.witness;
    if places.active.is_none() {
        found.push(Trouble::new(
            "no metadata server serves, and the file system stands still",
            "more than half of the metadata servers and the witness have to run and to reach each \
             other: start those that do not answer",
        ));
        return found;
    }
    if !places.has_standby() {
        found.push(without_standby(places));
    } else {
        // Where one standby has all, further ones may still be missed.
        let silent = places.servers.iter().filter(|it| it.answer.is_none() && it.address.is_some());
        found.extend(silent.map(|it| {
            Trouble::new(
                format!("metadata server {} does not answer", it.number),
                format!("start it by 'ropewalk serve meta --number {}'", it.number),
            )
        }));
    }
    // Ballots come several times in a lease.
    if let Some(witness) = witness
        && witness.silence.is_none_or(|silence| silence > places.lease)
    {
        let name = match witness.server {
            Some(number) => format!("data server {number}"),
            None => "etcd".to_string(),
        };
        found.push(Trouble::new(
            format!("the witness, {name}, does not answer"),
            "start it: without it the next death of a metadata server stops the file system",
        ));
    }
    found
}

fn without_standby(places: &MetaPlaces) -> Trouble {
    let what = match places.alone {
        true => "the next death of the metadata server stops the file system",
        false => "calls wait, since the file system goes on with a standby only ('alone = false')",
    };
    let active = places.active.map(|(number, _)| number);
    let mut others = places.servers.iter().filter(|it| Some(it.number) != active);
    let comes = others
        .clone()
        .find(|it| it.known.is_some_and(|it| it.standby.is_some()) || it.answer.is_some());
    let remedy = match (comes, others.next()) {
        (Some(place), _) => match places.lag(place) {
            Some(lag) if lag > 0 => format!(
                "the standby, metadata server {}, lacks {} and catches up: wait",
                place.number,
                counted(lag, "record")
            ),
            _ => format!("metadata server {} copies or joins: wait", place.number),
        },
        (None, Some(place)) => format!(
            "no standby has all: start one by 'ropewalk serve meta --number {}'",
            place.number
        ),
        (None, None) => "add a second metadata server: 'ropewalk serve meta --help'".to_string(),
    };
    Trouble::new(what, remedy)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ropewalk_client::operator::metas::{MetaPlace, NodeRole, NodeStatus, WitnessState};

    use super::*;

    fn places() -> MetaPlaces {
        let node = |server, role| NodeStatus {
            server,
            role,
            term: 3,
            lease: 1000,
            alone: true,
            position: 10,
            reached: Default::default(),
            voters: Vec::new(),
        };
        let place = |number, answer| MetaPlace {
            number,
            address: Some(format!("tcp://n{number}:7700")),
            answer,
            known: None,
        };
        MetaPlaces {
            servers: vec![place(0, Some(node(0, NodeRole::Active))), place(1, None)],
            active: Some((0, 3)),
            witness: Some(WitnessState {
                server: Some(4),
                silence: Some(Duration::from_millis(100)),
            }),
            lease: Duration::from_secs(1),
            alone: true,
        }
    }

    #[test]
    fn a_missing_standby_is_told_with_the_command_that_starts_one() {
        let found = of_metas(&places());
        assert_eq!(found.len(), 1, "{found:?}");
        let sentence = found[0].sentence();
        assert!(sentence.contains("the next death of the metadata server stops"), "{sentence}");
        assert!(sentence.contains("'ropewalk serve meta --number 1'"), "{sentence}");
        let waits = of_metas(&MetaPlaces { alone: false, ..places() });
        assert!(waits[0].what.contains("calls wait"), "{waits:?}");
    }

    #[test]
    fn a_silent_witness_and_a_cluster_without_an_active_server_are_told() {
        let late = WitnessState { server: Some(4), silence: Some(Duration::from_secs(9)) };
        let found = of_metas(&MetaPlaces { witness: Some(late), ..places() });
        assert!(found[1].what.contains("data server 4"), "{found:?}");
        let found = of_metas(&MetaPlaces {
            witness: Some(WitnessState { server: None, ..late }),
            ..places()
        });
        assert!(found[1].what.contains("the witness, etcd, does not"), "{found:?}");
        let found = of_metas(&MetaPlaces { active: None, ..places() });
        assert!(found[0].what.contains("stands still"), "{found:?}");
    }
}
