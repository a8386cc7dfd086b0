//! The life of links: opening, refusal, cuts, partitions, timeouts, death.
//!
//! Invariants:
//! * an end that went down has failed all its orders and confirmed all its revocations first;
//! * its link's slot goes to another link only when its owner was told;
//! * messages of a reliable connection never overtake each other, also where a partition held some
//!   of them back.

use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::verb::LinkId;

use crate::access::Exposure;
use crate::config::{Cut, Kill};
use crate::frames::Lane;
use crate::network::{Event, Item, Message, Network};
use crate::traffic::Traffic;

/// The state of an end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum EndState {
    /// The accepting end before it heard of the connection.
    Absent,
    Connecting,
    Up,
    /// Its owner ordered the close; frames that were ordered before are still sent.
    Closing,
    Down,
}

#[derive(Debug)]
pub(crate) struct End {
    pub rail: usize,
    pub link: Option<LinkId>,
    pub state: EndState,
    /// Grows when the peer is heard again after a partition, which ends older suspicions.
    pub epoch: u64,
    /// The frames that it sends.
    pub lane: Lane,
    pub traffic: Traffic,
    /// The memory that its peer may access, by slot and secret of the key.
    pub exposures: BTreeMap<crate::access::KeyName, Exposure>,
}

impl End {
    fn new(rail: usize, state: EndState) -> End {
        let (lane, traffic) = (Lane::default(), Traffic::default());
        End { rail, link: None, state, epoch: 0, lane, traffic, exposures: BTreeMap::new() }
    }

    /// Whether its owner still knows the link.
    pub(crate) fn is_alive(&self) -> bool {
        matches!(self.state, EndState::Connecting | EndState::Up | EndState::Closing)
    }
}

#[derive(Debug)]
pub(crate) struct Connection {
    /// Nothing is lost but by a cut.
    pub reliable: bool,
    /// Frames stay in order.
    pub ordered: bool,
    /// Cut without a word: nothing gets through any more.
    pub mute: bool,
    pub ends: [End; 2],
    /// The messages that a partition holds back before each side, in order.
    pub stalled: [Vec<Message>; 2],
}

impl Network {
    /// Begins a connection from `rail` to the rail called `name`.
    pub(crate) fn connect(&mut self, rail: usize, name: &str) -> Result<LinkId, Fault> {
        let peer = self.rail_index(name);
        let id = self.connection_count;
        let state = &mut self.rails[rail];
        let Ok(slot) = state.links.insert((id, 0)) else { return Err(Fault::Busy) };
        let link = LinkId { rail: state.index, slot };
        let config = &state.config;
        let (reliable, ordered) = (config.capabilities.reliable, config.capabilities.ordered);
        let deadline = self.now + config.connect_timeout;
        let mut ends = [End::new(rail, EndState::Connecting), End::new(peer, EndState::Absent)];
        ends[0].link = Some(link);
        let stalled = [Vec::new(), Vec::new()];
        self.connections.insert(id, Connection { reliable, ordered, mute: false, ends, stalled });
        self.connection_count += 1;
        self.send(id, 1, Message::Open, Duration::ZERO);
        self.schedule(deadline, Event::ConnectTimeout { connection: id });
        Ok(link)
    }

    /// A message is at `side`, unless something on the way holds it back.
    pub(crate) fn handle_arrival(&mut self, id: u64, side: usize, message: Message) {
        let Some(connection) = self.connections.get(&id) else { return };
        let (from, to) = (connection.ends[1 - side].rail, connection.ends[side].rail);
        if connection.mute || self.rails[to].dark {
            return;
        }
        let blocked = self.path(from, to).blocked;
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.reliable && (blocked || !connection.stalled[side].is_empty()) {
            connection.stalled[side].push(message);
        } else if !blocked {
            self.handle_message(id, side, message);
        }
    }

    /// Delivers the messages that a partition held back, in order.
    pub(crate) fn handle_resume(&mut self, id: u64, side: usize) {
        let Some(connection) = self.connections.get(&id) else { return };
        if self.path(connection.ends[1 - side].rail, connection.ends[side].rail).blocked {
            return;
        }
        let Some(connection) = self.connections.get_mut(&id) else { return };
        for message in std::mem::take(&mut connection.stalled[side]) {
            self.handle_message(id, side, message);
        }
    }

    fn handle_message(&mut self, id: u64, side: usize, message: Message) {
        let Some(connection) = self.connections.get(&id) else { return };
        let end = &connection.ends[side];
        match (message, end.state) {
            (Message::Open, EndState::Absent) => self.handle_open(id),
            (Message::Accept, EndState::Connecting) => self.handle_accept(id),
            (Message::Refuse, _) => self.end_down(id, side, Fault::Unreachable, false),
            (Message::Reset(fault), _) => {
                // A reset may overtake frames that the receiver has not read yet, but need not.
                let discard = fault != Fault::Closed && self.random.below(2) == 0;
                self.end_down(id, side, Fault::PeerReset, discard);
            }
            (message, EndState::Up | EndState::Closing) => self.handle_data(id, side, message),
            (_, EndState::Down) if connection.reliable => {
                self.send(id, 1 - side, Message::Reset(Fault::PeerReset), Duration::ZERO);
            }
            _ => {}
        }
    }

    fn handle_data(&mut self, id: u64, side: usize, message: Message) {
        let Some(connection) = self.connections.get(&id) else { return };
        let end = &connection.ends[side];
        let (rail, Some(link)) = (end.rail, end.link) else { return };
        let bytes = match &message {
            Message::Whole(frame) | Message::Tail(frame) => frame.bytes(),
            _ => 0,
        };
        self.note_arrival(id, side, bytes);
        match message {
            Message::Whole(frame) => self.push(rail, Item::Whole { link, frame }),
            Message::Head(frame) => self.push(rail, Item::Head { link, frame }),
            Message::Tail(frame) => self.push(rail, Item::Tail { link, frame }),
            Message::Access(access) => self.handle_access(id, side, access),
            Message::Reply(reply) => self.handle_reply(id, side, reply),
            Message::Open | Message::Accept | Message::Refuse | Message::Reset(_) => {}
        }
    }

    fn handle_open(&mut self, id: u64) {
        let Some(connection) = self.connections.get(&id) else { return };
        let (from, to) = (connection.ends[0].rail, connection.ends[1].rail);
        let target = &self.rails[to];
        let promises = (target.config.capabilities.reliable, target.config.capabilities.ordered);
        let fits = promises == (connection.reliable, connection.ordered);
        let welcome = target.alive && target.config.accepts && fits && !self.path(from, to).refuse;
        let slot = if welcome { self.rails[to].links.insert((id, 1)).ok() } else { None };
        let Some(slot) = slot else {
            self.send(id, 0, Message::Refuse, Duration::ZERO);
            return;
        };
        let link = LinkId { rail: self.rails[to].index, slot };
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.ends[1].state = EndState::Up;
        connection.ends[1].link = Some(link);
        self.rails[to].counters.links_up += 1;
        self.push(to, Item::Up { link, accepted: true });
        self.send(id, 0, Message::Accept, Duration::ZERO);
        if self.path(to, from).blocked {
            self.suspect(id, 1);
        }
    }

    fn handle_accept(&mut self, id: u64) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let end = &mut connection.ends[0];
        let (rail, Some(link)) = (end.rail, end.link) else { return };
        end.state = EndState::Up;
        self.rails[rail].counters.links_up += 1;
        self.push(rail, Item::Up { link, accepted: false });
        self.pump(id, 0);
    }

    pub(crate) fn handle_connect_timeout(&mut self, id: u64) {
        let Some(connection) = self.connections.get(&id) else { return };
        if connection.ends[0].state == EndState::Connecting {
            self.hang_up(id, 0, Fault::Unreachable);
        }
    }

    /// `side` goes down by its own decision; the other one is told if it can be reached.
    pub(crate) fn hang_up(&mut self, id: u64, side: usize, fault: Fault) {
        self.send(id, 1 - side, Message::Reset(fault), Duration::ZERO);
        self.end_down(id, side, fault, true);
    }

    /// Ends one end: fails its orders, confirms its revocations, says the last word.
    pub(crate) fn end_down(&mut self, id: u64, side: usize, fault: Fault, discard: bool) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let end = &mut connection.ends[side];
        if !end.is_alive() {
            return;
        }
        end.state = EndState::Down;
        let lane = std::mem::take(&mut end.lane);
        // The order on the wire outlives the end: its reset must not overtake its frames.
        end.lane.last_arrival = lane.last_arrival;
        let exposures = std::mem::take(&mut end.exposures);
        let (rail, Some(link)) = (end.rail, end.link) else { return };
        if discard {
            self.discard_frames(rail, link);
        }
        for (_, order) in lane.unfinished {
            self.push(rail, Item::Failed { token: order.token, held: order.held, fault });
        }
        for exposure in exposures.into_values().filter(|exposure| exposure.revoking) {
            self.push(rail, Item::Revoked { link, key: exposure.key });
        }
        self.push(rail, Item::Down { link, fault });
        self.rails[rail].counters.links_down += 1;
        self.forget_if_over(id);
    }

    fn forget_if_over(&mut self, id: u64) {
        let over = self
            .connections
            .get(&id)
            .is_some_and(|connection| connection.ends.iter().all(|end| !end.is_alive()));
        if over {
            self.connections.remove(&id);
        }
    }

    /// `side` cannot hear its peer from now on.
    fn suspect(&mut self, id: u64, side: usize) {
        let Some(connection) = self.connections.get(&id) else { return };
        let end = &connection.ends[side];
        let epoch = end.epoch;
        if let (true, Some(timeout)) = (end.is_alive(), self.rails[end.rail].config.link_timeout) {
            self.schedule(self.now + timeout, Event::Suspect { connection: id, side, epoch });
        }
    }

    pub(crate) fn handle_suspect(&mut self, id: u64, side: usize, epoch: u64) {
        let Some(connection) = self.connections.get(&id) else { return };
        if connection.ends[side].epoch == epoch {
            self.hang_up(id, side, Fault::PeerReset);
        }
    }

    fn connections_between(&self, a: usize, b: usize) -> Vec<u64> {
        let between = |rails: [usize; 2]| rails == [a, b] || rails == [b, a];
        let all = self.connections.iter();
        all.filter(|(_, connection)| between([connection.ends[0].rail, connection.ends[1].rail]))
            .map(|(&id, _)| id)
            .collect()
    }

    pub(crate) fn handle_blocked(&mut self, from: usize, to: usize) {
        for id in self.connections_between(from, to) {
            self.suspect(id, 0);
            self.suspect(id, 1);
        }
    }

    pub(crate) fn handle_healed(&mut self, from: usize, to: usize) {
        let both_ways = !self.path(to, from).blocked;
        let latency = self.path(from, to).latency;
        for id in self.connections_between(from, to) {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            let Connection { ends, .. } = connection;
            let side = usize::from(ends[1].rail == to);
            let dead = ends.iter().position(|end| end.state == EndState::Down);
            if both_ways && !connection.mute && dead.is_none() {
                ends[0].epoch += 1;
                ends[1].epoch += 1;
            }
            let reliable = connection.reliable;
            self.schedule(self.now + latency, Event::Resume { connection: id, side });
            // The survivor's next probe is answered by a host that knows nothing of the link.
            if let (true, Some(dead)) = (reliable && both_ways, dead) {
                self.send(id, 1 - dead, Message::Reset(Fault::PeerReset), Duration::ZERO);
            }
            self.pump(id, 1 - side);
        }
    }

    /// Cuts all links between two rails; returns how many there were.
    pub(crate) fn cut(&mut self, first: usize, other: usize, cut: Cut) -> usize {
        let cut_links = self.connections_between(first, other);
        for &id in &cut_links {
            let Some(connection) = self.connections.get_mut(&id) else { continue };
            connection.mute = true;
            let near = usize::from(connection.ends[0].rail != first);
            match cut {
                Cut::Silent => {
                    self.suspect(id, 0);
                    self.suspect(id, 1);
                }
                Cut::Both => {
                    self.end_down(id, near, Fault::PeerReset, true);
                    self.end_down(id, 1 - near, Fault::PeerReset, true);
                }
                Cut::FirstThenOther(delay) => {
                    self.end_down(id, near, Fault::PeerReset, true);
                    let at = self.now + delay;
                    self.schedule(at, Event::Cut { connection: id, side: 1 - near });
                }
            }
        }
        cut_links.len()
    }

    /// Ends the process behind a name: all that it knew is gone, its peers learn of it in time.
    pub(crate) fn kill(&mut self, rail: usize, kill: Kill) {
        self.trace.mix(rail as u64);
        let ids: Vec<u64> = self.connections.keys().copied().collect();
        for id in ids {
            for side in 0..2 {
                let Some(connection) = self.connections.get(&id) else { continue };
                let end = &connection.ends[side];
                if end.rail != rail || !end.is_alive() {
                    continue;
                }
                let told = connection.reliable;
                self.end_down(id, side, Fault::Closed, true);
                match kill {
                    Kill::Process(delay) if told => {
                        self.send(id, 1 - side, Message::Reset(Fault::PeerReset), delay);
                    }
                    _ => self.suspect(id, 1 - side),
                }
            }
        }
        let state = &mut self.rails[rail];
        state.alive = false;
        state.dark = kill == Kill::Power;
        // Its owner hears no last word any more.
        for item in state.inbox.drain(..) {
            if let Item::Down { link, .. } = item {
                state.links.remove(link.slot);
            }
        }
    }
}
