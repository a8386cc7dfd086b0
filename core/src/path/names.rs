//! Names of peers: what users call them by.
//!
//! A peer has a record. Names that lead to it, from other look-ups, are records of their own that point to
//! it (`alias_of`). A name lives from its look-up until it is forgotten; one that a caller has only since
//! its peer called us may end with the session (`Config::separate_sessions`).
//!
//! Invariants
//! * a name that was forgotten, or has ended, reaches nobody, whatever comes later in its peer's place;
//! * forgetting one name ends what was posted under it, and nothing else while there are other names;
//! * with separate sessions names stand for one peer as long as a session with it runs or is being made: after
//!   it each leads to whoever answers at its own address.

use ropewalk_base::error::Fault;
use ropewalk_base::verb::LinkId;

use super::{LinkStage, Peer};
use crate::api::*;
use crate::eager::wanted;
use crate::engine::Core;
use crate::matching::Wanted;
use crate::operation::{Kind, ReceiveStage, SendStage};

/// Whether users may post under a peer's own number.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Name {
    #[default]
    Live,
    /// Its peer had called us, and that session is over.
    Ended,
    /// It was forgotten; other names of the peer are left.
    Forgotten,
}

impl Name {
    /// Why nothing can be posted under it.
    #[inline]
    pub fn fault(self) -> Option<Fault> {
        match self {
            Name::Live => None,
            Name::Ended => Some(Fault::PeerReset),
            Name::Forgotten => Some(Fault::Invalid),
        }
    }
}

/// The records of a peer, and what users call it by.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// Whether users may post under its own number.
    pub own: Name,
    /// It called us: nobody looked its record up.
    pub learnt: bool,
    /// The name that was first looked up for the same address, where that is another one.
    pub leader: Option<PeerId>,
    /// Another record for the same endpoint stands for this one.
    pub alias_of: Option<PeerId>,
    /// The records for which this one stands.
    pub aliases: Vec<PeerId>,
}

/// A receive that waits anew, in its old turn.
type Reposted = (u64, OperationId, Wanted);

impl Core {
    /// Adds another name of a peer, for the same address.
    pub fn add_name(&mut self, peer: PeerId) -> Result<PeerId, Fault> {
        let name = self.add_peer(true)?;
        let leader = self.peers.get(peer).and_then(|peer| peer.names.leader).unwrap_or(peer);
        if let Some(record) = self.peers.get_mut(name) {
            record.names.leader = Some(leader);
        }
        self.alias(name, self.resolve(peer));
        Ok(name)
    }

    /// The peer that this one is an alias of, or itself.
    #[inline]
    pub fn resolve(&self, id: PeerId) -> PeerId {
        match self.peers.get(id) {
            Some(Peer { names: Names { alias_of: Some(other), .. }, .. }) => *other,
            _ => id,
        }
    }

    /// The peer that is meant by a name, and why nothing can be posted under it, if so.
    #[inline]
    pub(crate) fn meant(&self, name: PeerId) -> (PeerId, Option<Fault>) {
        match self.peers.get(name) {
            Some(Peer { names: Names { alias_of: Some(other), .. }, .. }) => (*other, None),
            Some(peer) => (name, peer.names.own.fault()),
            None => (name, Some(Fault::Invalid)),
        }
    }

    /// Whether there is such a name.
    pub fn is_known(&self, id: PeerId) -> bool {
        self.peers.get(id).is_some_and(|peer| peer.names.own != Name::Forgotten)
    }

    /// Whether nothing will ever be sent under this name again.
    pub fn is_over(&self, id: PeerId) -> bool {
        self.peers.get(id).is_none_or(|peer| peer.names.own != Name::Live)
    }

    /// Whether a record is one that no session will ever have again.
    pub(crate) fn has_ended(&self, id: PeerId) -> bool {
        self.peers.get(id).is_none_or(|peer| peer.names.own == Name::Ended)
    }

    /// All names of a peer, its own number among them.
    pub fn names_of(&self, id: PeerId) -> Vec<PeerId> {
        let main = self.resolve(id);
        let aliases = self.peers.get(main).map_or(&[][..], |peer| &peer.names.aliases);
        std::iter::once(main).chain(aliases.iter().copied()).collect()
    }

    /// Forgets one name of a peer that has others: what was posted under it ends as cancelled. The peer's
    /// session and what was posted under other names go on.
    pub fn forget_name(&mut self, name: PeerId) {
        let main = self.resolve(name);
        for operation in self.operations.posted_under(main, name) {
            self.cancel(operation);
        }
        let Some(peer) = self.peers.get_mut(main) else { return };
        if main == name {
            peer.names.own = Name::Forgotten;
        } else {
            peer.names.aliases.retain(|other| *other != name);
            self.drop_record(name);
        }
    }

    /// Two peers are one endpoint: what was posted for `alias` goes to `peer`.
    pub(crate) fn alias(&mut self, alias: PeerId, peer: PeerId) {
        self.peers.unassign(alias);
        let Some(old) = self.peers.get_mut(alias) else { return };
        let mut aliases = std::mem::take(&mut old.names.aliases);
        aliases.push(alias);
        old.calls.end();
        self.timers.stop(alias, &mut old.timer);
        let (waiting, redundant) = (std::mem::take(&mut old.waiting), old.redundant);
        let operations = self.operations.owned_by(alias);
        let reposted = self.readdress(operations, alias, peer);
        if let Some(target) = self.peers.get_mut(peer) {
            target.reachable = true;
            target.redundant.merge(redundant);
            for (to, from) in target.waiting.sends.iter_mut().zip(waiting.sends) {
                self.operations.merge(to, from);
            }
            self.operations.merge(&mut target.waiting.accesses, waiting.accesses);
            target.names.aliases.append(&mut aliases.clone());
        }
        for alias in aliases {
            if let Some(alias) = self.peers.get_mut(alias) {
                alias.names.alias_of = Some(peer);
            }
        }
        self.outputs.push(Output::Aliased { alias, peer });
        self.repost(reposted);
        self.pump(peer);
        if self.peers.get(peer).is_some_and(Peer::is_idle_or_rests) {
            self.connect_if_needed(peer);
        }
    }

    /// Operations about one peer are about another one from here on. Those of them that wait for a message of
    /// it were taken out, and are to be posted anew.
    fn readdress(
        &mut self,
        operations: Vec<OperationId>,
        before: PeerId,
        peer: PeerId,
    ) -> Vec<Reposted> {
        let mut reposted = Vec::new();
        for id in operations {
            self.operations.own(id, peer);
            if let Some(state) = self.operations.access_mut(id)
                && state.access.peer == before
            {
                state.access.peer = peer;
            }
            let Some(operation) = self.operations.get_mut(id) else { continue };
            match &mut operation.kind {
                Kind::Send(state) if state.send.peer == before => state.send.peer = peer,
                Kind::Receive(state) if state.receive.source == Some(before) => {
                    let old = wanted(&state.receive);
                    state.receive.source = Some(peer);
                    let new = wanted(&state.receive);
                    if let ReceiveStage::Posted { post } = state.stage
                        && self.matching.withdraw(post, old)
                    {
                        reposted.push((post, id, new));
                    }
                }
                _ => {}
            }
        }
        reposted
    }

    fn repost(&mut self, mut receives: Vec<Reposted>) {
        receives.sort_unstable_by_key(|(post, ..)| *post);
        for (post, id, wanted) in receives {
            self.match_receive(id, wanted, post);
        }
    }

    /// The session with a peer is over, or the attempt to begin one: with separate sessions each of its names
    /// stands for itself from here on, and a peer that had called us has ended.
    pub(crate) fn part_names(&mut self, id: PeerId, had_session: bool) {
        if !self.config.separate_sessions || self.closing {
            return;
        }
        let Some(peer) = self.peers.get_mut(id) else { return };
        let (live, learnt, endpoint) =
            (peer.names.own == Name::Live, peer.names.learnt, peer.identity.endpoint);
        let ended = learnt && had_session;
        if peer.names.aliases.is_empty() && !ended {
            return;
        }
        let (aliases, told) =
            (std::mem::take(&mut peer.names.aliases), peer.identity.addresses.clone());
        if ended && live {
            peer.names.own = Name::Ended;
            peer.reachable = false;
            peer.identity.addresses = Box::default();
        }
        let keeps = live && !ended;
        let heads = self.stand_alone(id, aliases, keeps);
        if !keeps {
            let heir = heads.first().copied();
            self.inherit(id, endpoint, heir, &told);
        }
        self.take_along(id, &heads);
        if ended {
            self.fail_waiting(id);
        }
        if !live && !learnt {
            self.remove_record(id);
        }
    }

    /// Some names lead elsewhere from here on: waiting operations that were posted under them go along.
    fn take_along(&mut self, id: PeerId, heads: &[PeerId]) {
        let mut reposted = Vec::new();
        for operation in self.operations.owned_by(id) {
            // All others have failed; what rails still hold of them is counted at the peer.
            let Some(name) = self.operations.name_of(operation) else { continue };
            let Some(waits) = self.waits_as(operation) else { continue };
            let mut heads = heads.iter().copied();
            let now = heads.find(|head| self.names_of(*head).iter().any(|it| it.0.index == name));
            let Some(now) = now else { continue };
            if let Some(channel) = waits {
                self.unqueue_send(id, channel, operation);
            }
            reposted.append(&mut self.readdress(vec![operation], id, now));
            if let Some(channel) = waits
                && let Some(peer) = self.peers.get_mut(now)
            {
                self.operations.enqueue(&mut peer.waiting.sends[channel], operation);
            }
        }
        self.repost(reposted);
        for head in heads {
            self.want_waiting(*head);
            if self.is_awaited(*head) {
                self.want_session(*head);
            }
        }
    }

    /// Nobody will come for what waits at a peer that has ended.
    fn fail_waiting(&mut self, id: PeerId) {
        for operation in self.operations.owned_by(id) {
            let Some(waits) = self.waits_as(operation) else { continue };
            if let Some(channel) = waits {
                self.unqueue_send(id, channel, operation);
            }
            self.fail_operation(operation, Fault::PeerReset);
        }
    }

    /// Whether an operation is one that waits for its peer's session or message; a send's channel.
    fn waits_as(&self, id: OperationId) -> Option<Option<usize>> {
        let operation = self.operations.get(id).filter(|it| it.ending.is_none())?;
        match &operation.kind {
            Kind::Send(state) => matches!(state.stage, SendStage::Waiting { .. })
                .then_some(Some(state.send.channel as usize)),
            Kind::Receive(state) => {
                matches!(state.stage, ReceiveStage::Posted { .. }).then_some(None)
            }
            Kind::Access(_) => None,
        }
    }

    /// Names of a peer lead to their own addresses again, those of one address together; the first of each.
    /// `keeps`: names of the peer's own address stay its own.
    fn stand_alone(&mut self, id: PeerId, aliases: Vec<PeerId>, keeps: bool) -> Vec<PeerId> {
        let mut heads: Vec<(PeerId, PeerId)> = Vec::new();
        for alias in aliases {
            let Some(record) = self.peers.get_mut(alias) else { continue };
            let address = record.names.leader.unwrap_or(alias);
            let known = heads.iter().find(|(other, _)| *other == address).map(|(_, head)| *head);
            let head = if keeps && address == id { Some(id) } else { known };
            record.names.alias_of = head;
            record.names.leader = head;
            match head.and_then(|head| self.peers.get_mut(head)) {
                Some(head) => head.names.aliases.push(alias),
                None => heads.push((address, alias)),
            }
        }
        heads.into_iter().map(|(_, head)| head).collect()
    }

    /// The record of an endpoint is no longer one that users know: another name of it, or where a link with it
    /// is being made a new record, takes its place.
    fn inherit(&mut self, id: PeerId, endpoint: u128, heir: Option<PeerId>, told: &[u8]) {
        let agreed = |link: &LinkId| {
            let state = self.links.get(*link);
            state.is_some_and(|it| it.stage == LinkStage::Agreed)
        };
        let begun: Vec<LinkId> = self.links.of_peer(id).into_iter().filter(agreed).collect();
        self.peers.unassign(id);
        let heir = match heir {
            Some(heir) => Some(heir),
            None if !begun.is_empty() => self.peer_of(endpoint),
            None => None,
        };
        let Some(heir) = heir.filter(|_| endpoint != 0) else { return };
        if let Some(peer) = self.peers.get_mut(heir) {
            peer.identity.addresses = told.into();
        }
        self.peers.assign(endpoint, heir);
        for link in begun {
            self.links.set_peer(link, heir);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
    use ropewalk_base::memory::Slice;
    use ropewalk_base::random::Random;
    use ropewalk_base::time::Time;

    use super::*;

    #[test]
    fn the_timer_of_a_name_that_is_gone_never_goes_off() {
        let identity = Identity {
            endpoint: EndpointId(1),
            incarnation: Incarnation(1),
            cluster: ClusterId(1),
            host: 1,
        };
        let random = Random::from_seed(1);
        let mut core = Core::new(Config::default(), identity, Vec::new(), Slice::NONE, random);
        let [peer, alias, other] = [0; 3].map(|_| core.add_peer(true).unwrap());
        let due = Time::ZERO + Duration::from_secs(10);
        for id in [alias, other] {
            core.wake_by(id, due);
        }
        core.alias(alias, peer);
        core.forget_name(alias);
        core.forget_peer(other);
        core.check();
        core.advance(due);
        core.check();
        assert_eq!(core.deadline(), None, "nothing is due any more");
    }
}
