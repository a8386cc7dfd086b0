//! The agent of an interface, sans I/O: it makes the interface known, knows the others, and refuses what is for
//! endpoints that nobody has.
//!
//! It is driven like a machine: bodies that came by [`Agent::packet`], the time by [`Agent::advance`], and
//! [`Agent::next`] for the packets that go. It asks for the owner of an endpoint when it has to know.
//!
//! Invariants:
//! * a peer is a station that was heard, or that a mapper has named; it keeps its index as long as it is in the table,
//!   and is told it;
//! * a beacon, a query or a reply is believed about the station that it comes from, and about no other;
//! * the output is bounded, whatever comes: beacons by one a second, queries, replies and refusals by a budget each,
//!   and the table by its length. A packet that found no budget was never seen: its sender sends it again.

mod map;
mod peers;

use std::collections::VecDeque;
use std::time::Duration;

use ropewalk_base::hash::HashSeed;
use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_wire::mxoe::{
    Announcement, Beacon, Connect, ConnectReply, Dialect, ETHERNET_BYTES, FRAME_BYTES_MIN,
    Fragment, HEADER_BYTES_MAX, HOST_NAME_BYTES_MAX, HOST_QUERY_MAGIC, HostQuery, HostReply,
    INDEX_UNKNOWN, Message, Nack, NackLib, Notify, Order, Packet, PacketError, Rendezvous,
    Sequence, Station,
};
use ropewalk_wire::packets::{self, CallBody, Kind, REFUSAL_NOBODY, Route};
use zerocopy::IntoBytes;

use super::machine::{emit, nack_of};
pub use map::Map;
pub use peers::Peer;
use peers::{PEERS_MAX, Table};

/// Beacons when something is new, how far they are from each other, and the others.
const BURST: u32 = 8;
const BURST_EVERY: Duration = Duration::from_secs(1);
const BEACON_EVERY: Duration = Duration::from_secs(180);
/// A peer that has not told its name is asked again.
const ASK_EVERY: Duration = Duration::from_secs(5);
/// A peer that was not heard for so long is not asked any more.
const SILENT_AFTER: Duration = Duration::from_secs(600);
/// The first number that no endpoint has: the raw endpoint is taken by it.
const ENDPOINTS: u8 = 255;
/// Magics of questions from the first one on.
const MAGICS: u32 = 1 << 16;
/// The time for which the answer of a station counts that was asked and is in no table; and the most such stations.
const SOUGHT_FOR: Duration = Duration::from_secs(5);
const SOUGHT_MAX: usize = 256;
/// Packets that wait for being sent; more are not made.
const OUT_MAX: usize = 4096;

/// The configuration of an agent.
#[derive(Debug, Clone)]
pub struct AgentConfig {
    /// The interface.
    pub station: Station,
    pub dialect: Dialect,
    /// Its name among other stations: host and board.
    pub name: String,
    /// Identifies host and network namespace.
    pub host: u64,
}

/// So many packets at once, and one more after each of these times.
#[derive(Debug)]
struct Budget {
    left: u32,
    max: u32,
    every: Duration,
    since: Time,
}

/// Always-on counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AgentCounters {
    pub beacons_sent: u64,
    pub beacons_received: u64,
    pub queries_sent: u64,
    pub replies_sent: u64,
    pub nacks_sent: u64,
    /// Packets that it looked at, and that went or wait for it.
    pub received: u64,
    pub sent: u64,
    /// Of a length that their type has not, of a type that there is not, with fields that make no sense.
    pub wrong_length: u64,
    pub wrong_type: u64,
    pub malformed: u64,
    /// Packets that show that their sender uses the other byte order: beacons of ours, and questions for the name.
    pub other_order: u64,
    /// For another station, or from a group or from ourselves.
    pub astray: u64,
    /// For endpoints that nobody has: refused, or of a kind that is not refused.
    pub closed: u64,
    /// For numbers that no endpoint can have.
    pub bad_endpoint: u64,
    /// News that nobody asked for, and RAW packets that are no beacon where nobody has the raw endpoint.
    pub unasked: u64,
    /// Packets that were not sent, since their budget was spent or too many packets wait.
    pub unanswered: u64,
}

/// The owner of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    Nobody,
    One(Station),
    /// Nobody can say which one is meant.
    Several,
}

/// The agent of one interface.
#[derive(Debug)]
pub struct Agent {
    config: AgentConfig,
    random: Random,
    now: Time,
    /// Of this life, and of this name.
    serial: u32,
    /// Beacons of the burst that are left, when the next one goes, and when the last one went.
    burst: u32,
    beacon_at: Time,
    beaconed_at: Option<Time>,
    table: Table,
    map: Option<Map>,
    /// Stations that are in no table and were asked, the latest last, and until when their answers count.
    sought: VecDeque<(Station, Time)>,
    out: VecDeque<(Station, Vec<u8>)>,
    queries: Budget,
    replies: Budget,
    nacks: Budget,
    counters: AgentCounters,
}

impl Budget {
    fn new(max: u32, every: Duration) -> Budget {
        Budget { left: max, max, every, since: Time::ZERO }
    }

    fn gain(&mut self, now: Time) {
        let gained = now.since(self.since).as_nanos() / self.every.as_nanos();
        let gained = u32::try_from(gained).unwrap_or(u32::MAX);
        if gained > 0 {
            self.since = if gained >= self.max { now } else { self.since + self.every * gained };
            self.left = self.left.saturating_add(gained).min(self.max);
        }
    }

    fn take(&mut self, now: Time) -> bool {
        self.gain(now);
        let any = self.left > 0;
        self.left -= u32::from(any);
        any
    }

    /// When there is something left.
    fn ready_at(&self) -> Time {
        if self.left > 0 { Time::ZERO } else { self.since + self.every }
    }
}

/// Whether hosts ask for names with this magic: it counts how often they forgot them.
fn is_magic(magic: u32) -> bool {
    magic.wrapping_sub(HOST_QUERY_MAGIC) < MAGICS
}

/// A name as it fits a packet: without zero bytes, and not too long.
fn fitting(mut name: String) -> String {
    name.retain(|c| c != '\0');
    while name.len() >= HOST_NAME_BYTES_MAX {
        name.pop();
    }
    name
}

impl Agent {
    /// An agent that knows nobody.
    pub fn new(mut config: AgentConfig, mut random: Random, now: Time) -> Agent {
        config.name = fitting(config.name);
        let table = Table::with_limit(PEERS_MAX, HashSeed::peek(&random));
        Agent {
            serial: random.next_u64() as u32,
            config,
            random,
            now,
            burst: BURST,
            beacon_at: now,
            beaconed_at: None,
            table,
            map: None,
            sought: VecDeque::new(),
            out: VecDeque::new(),
            queries: Budget::new(512, Duration::from_millis(1)),
            replies: Budget::new(2048, Duration::from_micros(500)),
            nacks: Budget::new(256, Duration::from_millis(1)),
            counters: AgentCounters::default(),
        }
    }

    /// Its name among other stations.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// The interface.
    pub fn station(&self) -> Station {
        self.config.station
    }

    /// The byte order of all that it says and understands.
    pub fn order(&self) -> Order {
        self.config.dialect.order()
    }

    /// Of this life, and of this name.
    pub fn serial(&self) -> u32 {
        self.serial
    }

    /// The announcement in its beacons.
    pub fn announcement(&self) -> Announcement {
        let (version, features) = (packets::VERSION, Announcement::TAKES_OURS);
        Announcement { version, features, host: self.config.host }.in_order(self.order())
    }

    /// Its counters.
    pub fn counters(&self) -> AgentCounters {
        self.counters
    }

    /// Others shall call it so. They ask, since it has another serial from now on.
    pub fn set_name(&mut self, name: &str, now: Time) {
        self.now = self.now.max(now);
        let name = fitting(name.to_string());
        if name != self.config.name {
            self.config.name = name;
            self.serial = self.serial.wrapping_add(1);
            self.begin_burst();
        }
    }

    /// Peers from an index on, in order.
    pub fn peers(&self, from: u16) -> impl Iterator<Item = &Peer> {
        self.table.from(from)
    }

    /// The peer at a station.
    pub fn peer(&self, station: Station) -> Option<&Peer> {
        self.table.get(self.table.find(station)?)
    }

    /// The owner of this name among all stations, this interface included.
    pub fn named(&self, name: &str) -> Named {
        let own = (name == self.config.name).then_some(self.config.station);
        let others =
            self.table.from(0).filter(|peer| peer.name.as_deref() == Some(name.as_bytes()));
        let mut found = own.into_iter().chain(others.map(|peer| peer.station));
        match (found.next(), found.next()) {
            (None, _) => Named::Nobody,
            (Some(station), None) => Named::One(station),
            (Some(_), Some(_)) => Named::Several,
        }
    }

    /// When [`Agent::advance`] has something to do.
    pub fn deadline(&self) -> Time {
        self.beacon_at.min(self.table.next_question().max(self.queries.ready_at()))
    }

    /// It is `now`: beacons and questions that are due.
    pub fn advance(&mut self, now: Time) {
        self.now = self.now.max(now);
        if self.beacon_at <= self.now {
            self.send_beacon();
        }
        while self.table.next_question() <= self.now && self.queries.take(self.now) {
            let Some(index) = self.table.question() else { break };
            let again_at = self.now + ASK_EVERY;
            let Some(peer) = self.table.get(index) else { break };
            let asks = self.now.since(peer.heard) < SILENT_AFTER;
            let (station, reverse) = (peer.station, peer.reverse);
            self.table.change(index, |peer| {
                peer.ask_at = if asks { again_at } else { Time::NEVER };
            });
            if asks {
                let query = Packet::HostQuery(HostQuery { index, magic: HOST_QUERY_MAGIC });
                self.send(station, reverse, &query);
                self.counters.queries_sent += 1;
            }
        }
    }

    /// Somebody looks for a station. If it is in no table, the agent asks it for its name. A station that is there
    /// answers, unless it does not know this interface; and then it does not answer calls either.
    pub fn seek(&mut self, station: Station, now: Time) {
        self.now = self.now.max(now);
        let is_known = station == self.config.station || self.table.find(station).is_some();
        if is_known || !map::is_card(station) || !self.queries.take(self.now) {
            return;
        }
        self.sought.retain(|(other, _)| *other != station);
        if self.sought.len() >= SOUGHT_MAX {
            self.sought.pop_front();
        }
        self.sought.push_back((station, self.now + SOUGHT_FOR));
        let query = HostQuery { index: INDEX_UNKNOWN, magic: HOST_QUERY_MAGIC };
        self.send(station, INDEX_UNKNOWN, &Packet::HostQuery(query));
        self.counters.queries_sent += 1;
    }

    /// A packet that goes.
    #[allow(clippy::should_implement_trait, reason = "what a port asks for, as of our machine")]
    pub fn next(&mut self) -> Option<(Station, Vec<u8>)> {
        self.out.pop_front()
    }

    /// A body came from a station, for this interface or for everybody. `is_taken`: whether somebody here has that
    /// endpoint; 255 is the raw one.
    pub fn packet(
        &mut self,
        from: Station,
        to: Station,
        body: &[u8],
        now: Time,
        is_taken: &mut dyn FnMut(u8) -> bool,
    ) {
        self.now = self.now.max(now);
        self.counters.received += 1;
        let packet = match Packet::parse(body, self.config.dialect) {
            Ok((_, packet)) => packet,
            Err(PacketError::Short | PacketError::Long) => return self.counters.wrong_length += 1,
            Err(PacketError::Type(_)) => return self.counters.wrong_type += 1,
            Err(PacketError::Field) => return self.counters.malformed += 1,
        };
        let is_own = from == self.config.station;
        match packet {
            _ if from.0[0] & 1 == 1 => self.counters.astray += 1,
            Packet::Raw(rest) if !is_own => {
                match Beacon::parse(rest).filter(|it| it.station == from) {
                    Some(beacon) => self.heard_beacon(&beacon),
                    // A mapper's, who sees it, too.
                    None if is_taken(ENDPOINTS) => {}
                    None => self.counters.unasked += 1,
                }
            }
            _ if to != self.config.station => self.counters.astray += 1,
            Packet::HostQuery(query) if !is_own => self.answer(from, query),
            Packet::HostReply(reply) if !is_own => self.answered(from, reply),
            // From ourselves.
            Packet::Raw(_) | Packet::HostQuery(_) | Packet::HostReply(_) => {
                self.counters.astray += 1;
            }
            packet => self.refuse(from, &packet, is_taken),
        }
    }

    /// A body of our own protocol came: a call to an endpoint that nobody has is refused, so that nobody waits for its
    /// answer. `is_taken`: whether somebody here takes calls under that number.
    pub fn called(
        &mut self,
        from: Station,
        to: Station,
        body: &[u8],
        now: Time,
        is_taken: &mut dyn FnMut(u8) -> bool,
    ) {
        self.now = self.now.max(now);
        self.counters.received += 1;
        let opened = match packets::open(body) {
            Ok(opened) => opened,
            Err(packets::PacketError::Foreign) => return self.counters.wrong_type += 1,
            Err(packets::PacketError::Shape) => return self.counters.wrong_length += 1,
            Err(packets::PacketError::Checksum) => return self.counters.malformed += 1,
        };
        let packets::Packet::Call(call) = opened.packet else {
            return self.counters.wrong_type += 1;
        };
        if to != self.config.station || from.0[0] & 1 == 1 {
            return self.counters.astray += 1;
        }
        if !self.nacks.take(self.now) || self.out.len() >= OUT_MAX {
            return self.counters.unanswered += 1;
        }
        if is_taken(opened.head.to) {
            return;
        }
        self.counters.closed += 1;
        // Any name of a link will do, as there is none.
        let answer = CallBody { tag: 1.into(), refusal: REFUSAL_NOBODY, ..*call };
        let route = Route { to: opened.head.from, from: opened.head.to, tag: call.tag.get() };
        let mut out = vec![0; packets::overhead(Kind::Answer)];
        let len = packets::seal(&mut out, Kind::Answer, route, answer.as_bytes(), 0, |_| ());
        out.truncate(len);
        self.out.push_back((from, out));
        self.counters.sent += 1;
        self.counters.nacks_sent += 1;
    }

    fn send_beacon(&mut self) {
        let (station, serial) = (self.config.station, self.serial);
        let beacon = Beacon { station, serial, ours: Some(self.announcement()) };
        let body = beacon.emit().to_vec();
        if self.out.len() < OUT_MAX {
            self.out.push_back((Station::BROADCAST, body));
            self.counters.sent += 1;
            self.counters.beacons_sent += 1;
        }
        self.burst = self.burst.saturating_sub(1);
        self.beaconed_at = Some(self.now);
        self.beacon_at = self.now + if self.burst > 0 { BURST_EVERY } else { BEACON_EVERY };
    }

    /// Something is new: beacons again, at a moment of one's own, since everybody else has heard it, too.
    fn begin_burst(&mut self) {
        self.burst = BURST;
        let moment = Duration::from_nanos(self.random.below(BURST_EVERY.as_nanos() as u64));
        let soonest = self.beaconed_at.map_or(self.now, |it| it + BURST_EVERY);
        self.beacon_at = self.beacon_at.min((self.now + moment).max(soonest));
    }

    /// A station speaks MXoE in this order. Of one that understands nothing that is said here nobody asks anything, and
    /// people are told of it; one that was set right is asked.
    fn speaks_in(&mut self, index: u16, order: Order) {
        let (now, is_other) = (self.now, order != self.order());
        self.counters.other_order += u64::from(is_other);
        self.table.change(index, |peer| {
            let was_other = peer.order.replace(order) == Some(order.other());
            if is_other {
                (peer.reverse, peer.ask_at) = (INDEX_UNKNOWN, Time::NEVER);
            } else if was_other {
                peer.ask_at = now;
            }
        });
    }

    fn heard_beacon(&mut self, beacon: &Beacon) {
        self.counters.beacons_received += 1;
        let (index, is_new) = self.hear(beacon.station);
        let (now, mut began_anew) = (self.now, false);
        self.table.change(index, |peer| {
            let is_first = peer.serial.is_none();
            began_anew = !is_first && peer.serial != Some(beacon.serial);
            (peer.serial, peer.ours) = (Some(beacon.serial), beacon.ours);
            if began_anew {
                // It has another table, and perhaps another name and another order.
                (peer.reverse, peer.order) = (INDEX_UNKNOWN, None);
            }
            // A name that came before the first beacon may be of an earlier serial, too.
            if began_anew || is_first && peer.name.is_some() {
                peer.ask_at = now;
            }
        });
        if let Some(ours) = beacon.ours {
            self.speaks_in(index, ours.order());
        }
        if is_new || began_anew {
            self.begin_burst();
        }
    }

    /// A station was heard: its index, and whether it was not known before.
    fn hear(&mut self, station: Station) -> (u16, bool) {
        let (now, other) = (self.now, self.order().other());
        if let Some(index) = self.table.find(station) {
            self.table.change(index, |peer| {
                peer.heard = now;
                let is_understood = peer.order != Some(other);
                if is_understood && peer.name.is_none() && peer.ask_at == Time::NEVER {
                    peer.ask_at = now;
                }
            });
            return (index, false);
        }
        (self.table.add(station, now), true)
    }

    /// A station asks for the name, and so knows this interface. The magic of its question tells the order of its
    /// fields.
    fn answer(&mut self, from: Station, query: HostQuery) {
        if !self.replies.take(self.now) {
            return self.counters.unanswered += 1;
        }
        let (index, is_new) = self.hear(from);
        if is_magic(query.magic.swap_bytes()) && !is_magic(query.magic) {
            return self.speaks_in(index, self.order().other());
        }
        self.speaks_in(index, self.order());
        self.table.change(index, |peer| peer.reverse = query.index);
        if is_new {
            self.begin_burst();
        }
        let name = std::mem::take(&mut self.config.name);
        let reply = HostReply { index, magic: query.magic, name: name.as_bytes() };
        self.send(from, query.index, &Packet::HostReply(reply));
        self.config.name = name;
        self.counters.replies_sent += 1;
    }

    fn answered(&mut self, from: Station, reply: HostReply<'_>) {
        let now = self.now;
        let is_sought = self.sought.iter().any(|(station, until)| *station == from && now < *until);
        let known = self.table.find(from);
        let known = known.or_else(|| is_sought.then(|| self.hear(from).0));
        let Some(index) = known.filter(|_| reply.magic == HOST_QUERY_MAGIC) else {
            return self.counters.unasked += 1;
        };
        self.sought.retain(|(station, _)| *station != from);
        self.table.change(index, |peer| {
            (peer.heard, peer.reverse, peer.ask_at) = (now, reply.index, Time::NEVER);
            peer.name = Some(reply.name.into());
        });
    }

    /// Refuses a packet to an endpoint that nobody has.
    fn refuse(&mut self, from: Station, packet: &Packet<'_>, is_taken: &mut dyn FnMut(u8) -> bool) {
        let no_message = Sequence::new(0, 0);
        let (to, endpoint, sequence) = match *packet {
            Packet::Tiny(message, _)
            | Packet::Small(message, _)
            | Packet::Medium(Fragment { message, .. }, _)
            | Packet::Rendezvous(Rendezvous { message, .. }) => {
                let Message { to, from, sequence, .. } = message;
                (to, from, sequence)
            }
            Packet::Notify(Notify { to, from, sequence, .. }) => (to, from, sequence),
            Packet::Connect(Connect { to, from, .. })
            | Packet::ConnectReply(ConnectReply { to, from, .. }) => (to, from, no_message),
            Packet::Pull(pull) => (pull.to, pull.from, no_message),
            // Acknowledgements, replies and refusals are refused by nobody.
            _ => return self.counters.closed += 1,
        };
        if !self.nacks.take(self.now) {
            return self.counters.unanswered += 1;
        }
        let reason = match to {
            ENDPOINTS.. => Nack::BadEndpoint,
            _ if is_taken(to) => return,
            _ => Nack::Closed,
        };
        match reason {
            Nack::BadEndpoint => self.counters.bad_endpoint += 1,
            _ => self.counters.closed += 1,
        }
        let peer = self.table.find(from).and_then(|index| self.table.get(index));
        let index = peer.map_or(INDEX_UNKNOWN, |peer| peer.reverse);
        let nack = match packet {
            Packet::Pull(pull) => nack_of(pull, reason),
            _ => Packet::NackLib(NackLib { from: to, to: endpoint, reason, index, sequence }),
        };
        self.send(from, index, &nack);
        self.counters.nacks_sent += 1;
    }

    fn send(&mut self, to: Station, index: u16, packet: &Packet<'_>) {
        if self.out.len() >= OUT_MAX {
            return self.counters.unanswered += 1;
        }
        let mut body = vec![0; HEADER_BYTES_MAX];
        let len = emit(packet, index, self.config.dialect, &mut body);
        body.truncate(len);
        if let Packet::HostReply(reply) = packet {
            body.extend_from_slice(reply.name);
            // As long as Open-MX makes them: the name and its zero come on top of the shortest frame.
            body.resize(FRAME_BYTES_MIN - ETHERNET_BYTES + reply.name.len() + 1, 0);
        }
        self.out.push_back((to, body));
        self.counters.sent += 1;
    }
}
