//! The metadata servers of a cluster: the active one, its standby servers, and the witness.

use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_base::task::join_all;
use ropewalk_wire::fs::head::Service;
pub use ropewalk_wire::fs::standby::{NodeRole, NodeStatus, StandbyStatus};
use ropewalk_wire::fs::standby::{
    REGISTER_WITNESS, StandbyReply, StandbyRequest, StandbyResult, VoterStatus,
};
use ropewalk_wire::fs::value::Errno;
use ropewalk_wire::fs::{decode, encode};

use super::{Operator, Server};

/// The time limit of each server's answer. The others are shown without a server that is down.
const ANSWER: Duration = Duration::from_secs(1);

/// A metadata server of a cluster that has several.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaPlace {
    pub number: u32,
    /// Where it was asked; none of a server that only the active one named.
    pub address: Option<String>,
    /// Its own words; none where it does not answer, or was not asked.
    pub answer: Option<NodeStatus>,
    /// The active server's words about it.
    pub known: Option<VoterStatus>,
}

/// The witness, in the active server's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WitnessState {
    /// The number of the data server that votes; None: an etcd votes.
    pub server: Option<u32>,
    /// None: it has not answered in the active server's life.
    pub silence: Option<Duration>,
}

/// The metadata servers of a cluster that has several.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MetaPlaces {
    /// By number.
    pub servers: Vec<MetaPlace>,
    /// The number of the one that serves, and its term.
    pub active: Option<(u32, u64)>,
    pub witness: Option<WitnessState>,
    /// The time of a promise.
    pub lease: Duration,
    /// Whether the active server goes on without a standby.
    pub alone: bool,
}

impl MetaPlaces {
    /// Puts together the words of servers that were asked at these addresses.
    fn of(answers: Vec<(String, Option<NodeStatus>)>) -> MetaPlaces {
        let told = answers.iter().filter_map(|(_, answer)| answer.as_ref());
        let acts = |it: &&NodeStatus| it.role == NodeRole::Active;
        // An older one that does not know yet that its term is over may answer, too.
        let active = told.clone().filter(acts).max_by_key(|it| it.term).cloned();
        let any = active.as_ref().or(told.clone().next());
        let mut all = MetaPlaces {
            active: active.as_ref().map(|it| (it.server, it.term)),
            lease: Duration::from_millis(any.map_or(0, |it| it.lease.into())),
            alone: any.is_none_or(|it| it.alone),
            ..MetaPlaces::default()
        };
        let mut servers = BTreeMap::new();
        for (place, (address, answer)) in (0..).zip(answers) {
            // The place in the list is the number, by the rule of the configuration.
            let number = answer.as_ref().map_or(place, |it| it.server);
            let address = Some(address);
            servers.insert(number, MetaPlace { number, address, answer, known: None });
        }
        for voter in active.iter().flat_map(|it| &it.voters) {
            if voter.is_witness {
                let silence = voter.silence.map(Duration::from_millis);
                let server = Some(voter.number).filter(|number| *number != REGISTER_WITNESS);
                all.witness = Some(WitnessState { server, silence });
                continue;
            }
            let number = voter.number;
            let none = || MetaPlace { number, address: None, answer: None, known: None };
            servers.entry(number).or_insert_with(none).known = Some(*voter);
        }
        all.servers = servers.into_values().collect();
        all
    }

    /// Records that a standby lacks, if the active server knows that.
    pub fn lag(&self, place: &MetaPlace) -> Option<u64> {
        let (active, _) = self.active?;
        let active = self.servers.iter().find(|it| it.number == active)?.answer.as_ref()?;
        let standby = place.known?.standby.filter(|it| !it.copies)?;
        Some(active.position.saturating_sub(standby.reached.written))
    }

    /// Whether a standby has all, and may be elected.
    pub fn has_standby(&self) -> bool {
        let standbys = self.servers.iter().filter_map(|it| it.known?.standby);
        standbys.into_iter().any(|it| it.has_all && it.may_lead)
    }
}

impl Operator {
    /// Asks the metadata servers for their parts. None: there is one alone, or none answers.
    pub async fn meta_places(&self) -> Option<MetaPlaces> {
        let answers = join_all(self.metas.iter().map(|server| self.meta_place(server))).await;
        if answers.iter().all(Option::is_none) {
            return None;
        }
        let addresses = self.metas.iter().map(|server| server.address.clone());
        Some(MetaPlaces::of(addresses.zip(answers).collect()))
    }

    /// None: it does not answer, or is the only metadata server.
    async fn meta_place(&self, server: &Server) -> Option<NodeStatus> {
        let mut body = Vec::new();
        encode(&StandbyRequest::State, &mut body);
        let asked = self.call(server, Service::Standby, &body);
        let reply = self.world.timeout(ANSWER, asked).await?.ok()?;
        match decode::<StandbyResult<'_>>(reply.body()) {
            Ok(Ok(StandbyReply::State(state))) => Some(state),
            Ok(Err(Errno::ENODEV)) | Ok(_) | Err(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_wire::fs::standby::Reached;

    use super::*;

    fn node(server: u32, role: NodeRole, term: u64) -> NodeStatus {
        let (reached, voters) = (Reached { written: 90, durable: 80 }, Vec::new());
        NodeStatus { server, role, term, lease: 1000, alone: true, position: 100, reached, voters }
    }

    #[test]
    fn the_active_server_tells_of_those_that_were_not_asked() {
        let reached = Reached { written: 93, durable: 80 };
        let standby =
            StandbyStatus { reached, silence: 7, has_all: true, may_lead: true, copies: false };
        let voter = |number, is_witness, standby| VoterStatus {
            number,
            is_witness,
            silence: Some(20),
            standby,
        };
        let mut active = node(1, NodeRole::Active, 5);
        active.voters = vec![voter(0, false, Some(standby)), voter(3, true, None)];
        let asked = vec![("tcp://b:1".to_string(), Some(active))];
        let places = MetaPlaces::of(asked);
        let numbers: Vec<u32> = places.servers.iter().map(|it| it.number).collect();
        assert_eq!((numbers, places.active), (vec![0, 1], Some((1, 5))));
        assert_eq!(places.witness.map(|it| it.server), Some(Some(3)));
        assert_eq!(
            (places.lag(&places.servers[0]), places.lag(&places.servers[1])),
            (Some(7), None)
        );
        assert!(places.has_standby());
    }

    #[test]
    fn of_two_that_think_that_they_serve_the_newer_term_counts() {
        let addresses = ["tcp://a:1", "tcp://b:1", "tcp://c:1"].map(str::to_string);
        let told = [Some(node(0, NodeRole::Active, 4)), Some(node(1, NodeRole::Active, 6)), None];
        let places = MetaPlaces::of(addresses.into_iter().zip(told).collect());
        assert_eq!(places.active, Some((1, 6)));
        assert_eq!(places.servers[2].number, 2);
        assert!(!places.has_standby());
    }
}
