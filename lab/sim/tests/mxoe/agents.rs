//! Agents of interfaces: with each other, and with a host that runs Open-MX.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Slice;
use ropewalk_base::random::Random;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{Placement, RemoteKey, Token};
use ropewalk_sim::open_mx::{Address, Host, HostConfig, Status};
use ropewalk_sim::seeds;
use ropewalk_transport::mxoe::{Agent, AgentConfig, Map, Named};
use ropewalk_transport::packets::{Machine, PacketConfig};
use ropewalk_transport::{Bytes, LinkEvents, PacketProtocol};
use ropewalk_wire::mxoe::{
    Beacon, Connect, Dialect, ETHERNET_BYTES, FRAME_BYTES_MIN, HEADER_BYTES_MAX, HOST_QUERY_MAGIC,
    HostQuery, HostReply, INDEX_UNKNOWN, Message, Nack, NackLib, NackMcp, Order, Packet, Pull,
    Sequence, Station,
};

fn dialect(seed: u64) -> Dialect {
    crate::dialect(&mut Random::from_seed(seed))
}

const LATENCY: Duration = Duration::from_micros(20);

fn station(number: usize) -> Station {
    Station([2, 0, 0, 0, (number >> 8) as u8, number as u8])
}

fn config(number: usize, dialect: Dialect) -> AgentConfig {
    AgentConfig { station: station(number), dialect, name: format!("host{number}:0"), host: 77 }
}

enum Node {
    Ours { agent: Box<Agent>, taken: BTreeSet<u8> },
    Theirs(Box<Host>),
    Dead,
}

/// Interfaces on one wire, which loses some packets.
struct Wire {
    random: Random,
    now: Time,
    dialect: Dialect,
    nodes: Vec<Node>,
    loss_of_thousand: u64,
    air: BTreeMap<(Time, u64), (Station, Station, Vec<u8>)>,
    /// When who sent a beacon.
    beacons: Vec<(Time, usize, Beacon)>,
}

impl Wire {
    fn new(seed: u64, ours: usize, dialect: Dialect) -> Wire {
        let mut wire = Wire {
            random: Random::from_seed(seed),
            now: Time(1_000_000_000),
            dialect,
            nodes: Vec::new(),
            loss_of_thousand: 0,
            air: BTreeMap::new(),
            beacons: Vec::new(),
        };
        for number in 0..ours {
            wire.nodes.push(Node::Dead);
            wire.start(number);
        }
        wire
    }

    fn start(&mut self, number: usize) {
        let agent = Agent::new(config(number, self.dialect), self.random.fork(), self.now);
        self.nodes[number] = Node::Ours { agent: Box::new(agent), taken: BTreeSet::new() };
    }

    /// A host with Open-MX, in whose table are all who are there.
    fn add_theirs(&mut self) -> usize {
        let number = self.nodes.len();
        let mut config = HostConfig::new(station(number), 0, 0xa1b2_c3d4, self.dialect);
        config.peers = vec![station(number)];
        config.peers.extend((0..number).map(station));
        (config.name, config.asks_names) = (format!("host{number}:0"), true);
        self.nodes.push(Node::Theirs(Box::new(Host::new(config))));
        number
    }

    fn agent(&mut self, number: usize) -> &mut Agent {
        let Node::Ours { agent, .. } = &mut self.nodes[number] else { panic!("one of ours") };
        agent
    }

    fn host(&mut self, number: usize) -> &mut Host {
        let Node::Theirs(host) = &mut self.nodes[number] else { panic!("one of theirs") };
        host
    }

    fn fly(&mut self, from: usize, to: Station, body: Vec<u8>) {
        if let Ok((_, Packet::Raw(rest))) = Packet::parse(&body, self.dialect) {
            let beacon = Beacon::parse(rest).expect("a beacon");
            self.beacons.push((self.now, from, beacon));
        }
        if self.random.below(1000) >= self.loss_of_thousand {
            let at = (self.now + LATENCY, self.random.next_u64());
            self.air.insert(at, (station(from), to, body));
        }
    }

    fn deliver(&mut self, from: Station, to: Station, body: &[u8]) {
        let now = self.now;
        for (number, node) in self.nodes.iter_mut().enumerate() {
            if station(number) == from || (to != Station::BROADCAST && to != station(number)) {
                continue;
            }
            match node {
                Node::Ours { agent, taken } => {
                    agent.packet(from, to, body, now, &mut |endpoint| taken.contains(&endpoint));
                }
                Node::Theirs(host) => host.packet(from, body, now),
                Node::Dead => {}
            }
        }
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        loop {
            while let Some(entry) = self.air.first_entry().filter(|it| it.key().0 <= self.now) {
                let (from, to, body) = entry.remove();
                self.deliver(from, to, &body);
            }
            let (mut next, mut sent) = (Time::NEVER, Vec::new());
            for (number, node) in self.nodes.iter_mut().enumerate() {
                match node {
                    Node::Ours { agent, .. } => {
                        agent.advance(self.now);
                        assert!(agent.deadline() > self.now, "it would never sleep");
                        sent.extend(std::iter::from_fn(|| agent.next()).map(|it| (number, it)));
                        next = next.min(agent.deadline());
                    }
                    Node::Theirs(host) => {
                        host.advance(self.now);
                        sent.extend(std::iter::from_fn(|| host.next()).map(|it| (number, it)));
                        next = next.min(host.deadline());
                    }
                    Node::Dead => {}
                }
            }
            for (from, (to, body)) in sent {
                self.fly(from, to, body);
            }
            let coming = self.air.keys().next().map_or(Time::NEVER, |(at, _)| *at);
            let next = next.min(coming).max(self.now + Duration::from_nanos(100));
            if next > end {
                self.now = end;
                return;
            }
            self.now = next;
        }
    }

    /// The packets that an agent sends at once to the sender of `packet`.
    fn ask(&mut self, number: usize, from: Station, packet: &Packet<'_>) -> Vec<Vec<u8>> {
        let body = body(packet, self.dialect);
        let (now, to) = (self.now, station(number));
        let Node::Ours { agent, taken } = &mut self.nodes[number] else { panic!("one of ours") };
        agent.packet(from, to, &body, now, &mut |endpoint| taken.contains(&endpoint));
        std::iter::from_fn(|| agent.next()).filter(|(to, _)| *to == from).map(|it| it.1).collect()
    }

    fn assert_all_know_all(&mut self) {
        for number in 0..self.nodes.len() {
            if !matches!(self.nodes[number], Node::Ours { .. }) {
                continue;
            }
            for other in (0..self.nodes.len()).filter(|other| *other != number) {
                let is_ours = matches!(self.nodes[other], Node::Ours { .. });
                let peer = self.agent(number).peer(station(other)).cloned();
                let peer = peer.unwrap_or_else(|| panic!("{number} has not found {other}"));
                assert_eq!(peer.name.as_deref(), Some(format!("host{other}:0").as_bytes()));
                assert_eq!(peer.ours.map(|ours| ours.host), is_ours.then_some(77));
                if is_ours {
                    let back = self.agent(other).peer(station(number)).expect("it knows").index;
                    assert_eq!(peer.reverse, back, "{number} knows its index with {other}");
                }
            }
        }
    }
}

fn body(packet: &Packet<'_>, dialect: Dialect) -> Vec<u8> {
    let mut header = [0; HEADER_BYTES_MAX];
    let len = packet.emit(INDEX_UNKNOWN, dialect, &mut header);
    let mut body = header[..len].to_vec();
    match packet {
        Packet::Tiny(_, bytes) | Packet::Raw(bytes) => body.extend_from_slice(bytes),
        Packet::HostReply(reply) => body.extend_from_slice(reply.name),
        _ => {}
    }
    body.resize(body.len().max(FRAME_BYTES_MIN - ETHERNET_BYTES), 0);
    body
}

fn message(to: u8, sequence: u16) -> Message {
    let sequence = Sequence(sequence);
    Message { to, from: 9, session: 1, sequence, acknowledged: Sequence(1), match_info: 0 }
}

#[test]
fn agents_find_each_other_tell_their_names_and_fall_silent() {
    for seed in seeds::seeds(1, 20) {
        let mut wire = Wire::new(seed, 5, dialect(seed));
        wire.loss_of_thousand = if seed % 2 == 0 { 0 } else { 100 };
        wire.run_for(Duration::from_secs(40));
        wire.assert_all_know_all();
        // From then on three minutes pass between two beacons of one, and nobody asks any more.
        wire.beacons.clear();
        let asked = |wire: &mut Wire| wire.agent(0).counters().queries_sent;
        let before = asked(&mut wire);
        wire.run_for(Duration::from_secs(400));
        assert!(wire.beacons.len() <= 5 * 3, "{} beacons", wire.beacons.len());
        assert_eq!(asked(&mut wire), before);
    }
}

#[test]
fn a_burst_is_eight_beacons_one_second_apart_and_a_newcomer_starts_another() {
    let mut wire = Wire::new(1, 1, dialect(0));
    wire.run_for(Duration::from_secs(700));
    let times: Vec<u64> = wire.beacons.iter().map(|(at, ..)| at.0 / 1_000_000_000 - 1).collect();
    assert_eq!(times, [0, 1, 2, 3, 4, 5, 6, 7, 187, 367, 547]);
    wire.nodes.push(Node::Dead);
    wire.start(1);
    wire.beacons.clear();
    wire.run_for(Duration::from_secs(20));
    let of = |number| wire.beacons.iter().filter(|it| it.1 == number).map(|it| it.0).collect();
    let (first, second): (Vec<Time>, Vec<Time>) = (of(0), of(1));
    assert_eq!(first.len(), 8, "it heard somebody new");
    assert!((8..=9).contains(&second.len()), "{second:?}");
    assert!(first.windows(2).all(|it| it[1].since(it[0]) >= Duration::from_secs(1)));
    wire.assert_all_know_all();
}

#[test]
fn who_began_anew_is_asked_again_and_told_its_index() {
    let mut wire = Wire::new(3, 3, dialect(0));
    wire.run_for(Duration::from_secs(30));
    let serial = wire.agent(0).peer(station(1)).unwrap().serial;
    wire.nodes[1] = Node::Dead;
    wire.run_for(Duration::from_secs(100));
    let age = |wire: &mut Wire| {
        let now = wire.now;
        now.since(wire.agent(0).peer(station(1)).unwrap().heard)
    };
    assert!(age(&mut wire) >= Duration::from_secs(100));
    wire.start(1);
    wire.run_for(Duration::from_secs(10));
    wire.assert_all_know_all();
    assert_ne!(wire.agent(0).peer(station(1)).unwrap().serial, serial);
    assert!(age(&mut wire) < Duration::from_secs(10));
}

#[test]
fn another_name_is_heard_of_and_one_that_two_have_names_nobody() {
    let mut wire = Wire::new(4, 3, dialect(0));
    wire.run_for(Duration::from_secs(20));
    assert_eq!(wire.agent(0).named("host1:0"), Named::One(station(1)));
    let now = wire.now;
    wire.agent(1).set_name("host2:0", now);
    wire.run_for(Duration::from_secs(20));
    assert_eq!(wire.agent(0).named("host1:0"), Named::Nobody);
    assert_eq!(wire.agent(0).named("host2:0"), Named::Several);
    assert_eq!(wire.agent(2).named("host2:0"), Named::Several, "its own name counts");
    let now = wire.now;
    // Longer than a packet takes, and cut where a letter ends.
    wire.agent(1).set_name(&"ä".repeat(60), now);
    wire.run_for(Duration::from_secs(20));
    assert_eq!(wire.agent(0).named(&"ä".repeat(39)), Named::One(station(1)));
    assert_eq!(wire.agent(0).named("host2:0"), Named::One(station(2)));
}

#[test]
fn a_name_from_before_the_first_beacon_may_be_an_older_one() {
    let mut wire = Wire::new(12, 1, dialect(0));
    wire.run_for(Duration::from_secs(20));
    let other = station(1);
    // It has heard us, which we have not it, and asks; so do we.
    let magic = HOST_QUERY_MAGIC;
    wire.ask(0, other, &Packet::HostQuery(HostQuery { index: 5, magic }));
    let reply = HostReply { index: 5, magic, name: b"old" };
    wire.run_for(Duration::from_millis(1));
    wire.ask(0, other, &Packet::HostReply(reply));
    assert_eq!(wire.agent(0).named("old"), Named::One(other));
    // Now it is called otherwise, and has another serial, as its beacon says: the first one that comes.
    let beacon = Beacon { station: other, serial: 2, ours: None }.emit();
    let now = wire.now;
    let mut asked = || {
        wire.agent(0).packet(other, Station::BROADCAST, &beacon, now, &mut |_| false);
        let before = wire.agent(0).counters().queries_sent;
        wire.agent(0).advance(now);
        wire.agent(0).counters().queries_sent - before
    };
    assert_eq!((asked(), asked()), (1, 0), "the next beacon says nothing new");
    assert_eq!(wire.agent(0).named("old"), Named::One(other), "until it answers");
    assert_eq!(wire.agent(0).peer(other).map(|peer| peer.reverse), Some(5));
}

#[test]
fn a_host_with_open_mx_learns_our_index_and_name_and_we_learn_its() {
    for order in [Order::Big, Order::Little] {
        let mut wire = Wire::new(5, 2, Dialect::native(1500, order).unwrap());
        let theirs = wire.add_theirs();
        wire.run_for(Duration::from_secs(12));
        wire.assert_all_know_all();
        // In its own table the host is 0, and we are 1 and 2.
        for number in 0..2 {
            let peer = wire.agent(number).peer(station(theirs)).unwrap().clone();
            assert_eq!((peer.reverse, peer.ours), (number as u16 + 1, None));
            assert_eq!(peer.serial, None, "its driver sends no beacons");
        }
        // It asks nobody any more: everybody has told a name.
        assert_eq!(wire.host(theirs).deadline(), Time::NEVER);
    }
}

#[test]
fn a_connect_of_open_mx_to_an_endpoint_that_nobody_has_is_refused_at_once() {
    let mut wire = Wire::new(6, 1, dialect(0));
    let theirs = wire.add_theirs();
    wire.run_for(Duration::from_secs(6));
    for (endpoint, expected) in [(7, Status::EndpointClosed), (255, Status::BadEndpoint)] {
        let to = Address { station: station(0), endpoint };
        let request = wire.host(theirs).connect(to, 1);
        wire.run_for(Duration::from_millis(10));
        let events = wire.host(theirs).take_events();
        let [event] = events.as_slice() else { panic!("{events:?}") };
        assert_eq!((event.request, event.status), (request, expected));
    }
    // One that somebody has is that one's to answer.
    if let Node::Ours { taken, .. } = &mut wire.nodes[0] {
        taken.insert(7);
    }
    let request = wire.host(theirs).connect(Address { station: station(0), endpoint: 7 }, 1);
    wire.run_for(Duration::from_millis(10));
    assert_eq!(wire.host(theirs).take_events(), []);
    assert!(wire.host(theirs).cancel(request));
}

#[test]
fn what_is_refused_names_what_it_refuses_and_a_flood_is_answered_a_little() {
    let mut wire = Wire::new(7, 1, dialect(0));
    let dialect = wire.dialect;
    let stranger = station(500);
    let answer = wire.ask(0, stranger, &Packet::Tiny(message(5, 0x4003), b"abc"));
    let nack = NackLib {
        from: 5,
        to: 9,
        reason: Nack::Closed,
        index: INDEX_UNKNOWN,
        sequence: Sequence(0x4003),
    };
    assert_eq!(Packet::parse(&answer[0], dialect), Ok((INDEX_UNKNOWN, Packet::NackLib(nack))));
    let pull = Pull {
        to: 5,
        from: 9,
        session: 1,
        total_bytes: 10,
        region: 3,
        region_sequence: 23,
        region_offset: 0,
        handle: 0xabcd,
        magic: Pull::magic_of(9),
        first_offset: 0,
        block_bytes: 10,
        frame: 0,
    };
    let nack =
        NackMcp { endpoint: 9, reason: Nack::Closed, handle: 0xabcd, magic: Pull::magic_of(9) };
    let answer = wire.ask(0, stranger, &Packet::Pull(pull));
    assert_eq!(Packet::parse(&answer[0], dialect), Ok((INDEX_UNKNOWN, Packet::NackMcp(nack))));
    // Refusals are not refused, or two agents would never end.
    assert_eq!(wire.ask(0, stranger, &Packet::NackMcp(nack)), [[0u8; 0]; 0]);
    let mut answers = 0;
    for _ in 0..10_000 {
        answers += wire.ask(0, stranger, &Packet::Tiny(message(5, 1), b"")).len();
    }
    assert!((1..=256).contains(&answers), "{answers}");
    wire.run_for(Duration::from_secs(1));
    assert_eq!(wire.ask(0, stranger, &Packet::Tiny(message(5, 1), b"")).len(), 1);
    assert_eq!(wire.agent(0).peer(stranger), None, "it was never introduced");
}

#[test]
fn beacons_of_made_up_stations_fill_the_table_and_no_more_and_names_outlive_them() {
    let mut wire = Wire::new(8, 2, dialect(0));
    wire.run_for(Duration::from_secs(10));
    let now = wire.now;
    for number in 0..70_000u32 {
        let [_, a, b, c] = number.to_be_bytes();
        let station = Station([6, 0, 0, a, b, c]);
        let body = Beacon { station, serial: number, ours: None }.emit();
        let agent = wire.agent(0);
        agent.packet(station, Station::BROADCAST, &body, now, &mut |_| false);
        // A beacon that speaks of somebody else.
        agent.packet(Station([6, 1, 0, a, b, c]), Station::BROADCAST, &body, now, &mut |_| false);
    }
    assert_eq!(wire.agent(0).peers(0).count(), 65_534);
    assert_eq!(wire.agent(0).named("host1:0"), Named::One(station(1)));
    let before = wire.agent(0).counters();
    wire.run_for(Duration::from_secs(1));
    let after = wire.agent(0).counters();
    assert!(after.queries_sent - before.queries_sent < 2000);
    assert!(after.beacons_sent - before.beacons_sent <= 2);
}

#[test]
fn whom_a_mapper_names_is_a_peer_until_it_is_taken_out() {
    let mut wire = Wire::new(9, 1, dialect(0));
    wire.run_for(Duration::from_secs(20));
    let now = wire.now;
    let (named, nameless) = (station(7), station(8));
    assert!(wire.agent(0).add_peer(named, Some("switch:0"), now));
    assert!(wire.agent(0).add_peer(nameless, None, now));
    for no_card in [Station::BROADCAST, Station([0; 6]), Station([3, 0, 0, 0, 0, 1])] {
        assert!(!wire.agent(0).add_peer(no_card, None, now) && !wire.agent(0).remove_peer(no_card));
    }
    assert_eq!(wire.agent(0).named("switch:0"), Named::One(named));
    // Only the one is asked, each 5 s; both are to hear of this interface.
    let before = wire.agent(0).counters();
    wire.run_for(Duration::from_millis(5500));
    let after = wire.agent(0).counters();
    assert_eq!(after.queries_sent - before.queries_sent, 2);
    assert!(after.beacons_sent - before.beacons_sent >= 5);
    // Its route once more says nothing of its name.
    let now = wire.now;
    assert!(wire.agent(0).add_peer(named, None, now));
    assert_eq!(wire.agent(0).named("switch:0"), Named::One(named));
    assert!(wire.agent(0).remove_peer(nameless) && !wire.agent(0).remove_peer(nameless));
    let before = wire.agent(0).counters().queries_sent;
    wire.run_for(Duration::from_secs(20));
    assert_eq!(wire.agent(0).counters().queries_sent, before, "nobody is asked any more");
    assert_eq!(wire.agent(0).peers(0).count(), 1);
    // The interface itself is in the table already, and may be called otherwise.
    let now = wire.now;
    assert!(wire.agent(0).add_peer(station(0), Some("mapper:0"), now));
    assert_eq!(wire.agent(0).name(), "mapper:0");
    assert_eq!(wire.agent(0).peers(0).count(), 1);
}

#[test]
fn a_map_that_is_complete_has_names_asked_for_at_once() {
    let mut wire = Wire::new(10, 1, dialect(0));
    let now = wire.now;
    wire.agent(0).add_peer(station(7), None, now);
    wire.run_for(Duration::from_secs(2));
    let map = Map { mapper: 7, version: 3, hosts: 2, is_complete: false };
    let before = wire.agent(0).counters().queries_sent;
    let mut asked = |map| {
        let now = wire.now;
        wire.agent(0).set_map(map, now);
        assert_eq!(wire.agent(0).map(), Some(map));
        wire.run_for(Duration::from_millis(100));
        wire.agent(0).counters().queries_sent - before
    };
    assert_eq!(asked(map), 0);
    assert_eq!(asked(Map { is_complete: true, ..map }), 1);
}

#[test]
fn a_card_that_is_sought_is_known_if_it_is_there_and_nobody_who_was_not_asked() {
    let mut wire = Wire::new(13, 1, dialect(0));
    // It knows us, as by a table that somebody wrote, and says nothing unless it is asked.
    let theirs = wire.add_theirs();
    wire.host(theirs).hold_names();
    wire.run_for(Duration::from_secs(10));
    let (there, gone) = (station(theirs), station(7));
    assert_eq!(wire.agent(0).peer(there), None);
    let now = wire.now;
    let before = wire.agent(0).counters().queries_sent;
    for station in [there, gone, Station::BROADCAST, station(0)] {
        wire.agent(0).seek(station, now);
    }
    assert_eq!(wire.agent(0).counters().queries_sent - before, 2);
    wire.run_for(Duration::from_millis(10));
    let known = |wire: &mut Wire, at| wire.agent(0).peer(at).and_then(|it| it.name.clone());
    assert_eq!(known(&mut wire, there).as_deref(), Some(&b"host1:0"[..]));
    assert_eq!(wire.agent(0).peer(gone), None);
    // Nor does an answer that comes too late, or that nobody wanted, make a peer.
    let name = HostReply { index: 3, magic: HOST_QUERY_MAGIC, name: b"late" };
    let late = body(&Packet::HostReply(name), wire.dialect);
    wire.run_for(Duration::from_secs(6));
    let now = wire.now;
    for from in [gone, station(8)] {
        wire.agent(0).packet(from, station(0), &late, now, &mut |_| false);
        assert_eq!(wire.agent(0).peer(from), None);
    }
    let before = wire.agent(0).counters().queries_sent;
    (0..2000).for_each(|_| wire.agent(0).seek(gone, now));
    assert!(wire.agent(0).counters().queries_sent - before <= 512);
}

#[test]
fn raw_packets_that_are_no_beacons_are_a_mappers() {
    let mut wire = Wire::new(11, 1, dialect(0));
    let (now, body) = (wire.now, body(&Packet::Raw(&[7; 40]), wire.dialect));
    let mut unasked = |taken: bool| {
        let agent = wire.agent(0);
        let mut is_taken = |endpoint| taken && endpoint == 255;
        agent.packet(station(1), Station::BROADCAST, &body, now, &mut is_taken);
        agent.packet(station(1), station(0), &body, now, &mut is_taken);
        agent.counters().unasked
    };
    assert_eq!((unasked(true), unasked(false)), (0, 2));
    assert_eq!(wire.agent(0).peers(0).count(), 0, "who sends them is not known by that");
}

/// A caller in our own protocol, and the outcome of its call.
#[derive(Default)]
struct Caller(Option<Fault>);

impl Bytes for Caller {
    fn read(&self, _from: Slice, _to: &mut [u8]) {}

    fn write(&self, _to: Slice, _from: &[u8]) {}
}

impl LinkEvents<u32> for Caller {
    fn link_up(&mut self, _link: SlotId, _accepted: bool) {
        panic!("there is nobody");
    }

    fn link_down(&mut self, _link: SlotId, fault: Fault) {
        self.0 = Some(fault);
    }

    fn place(&mut self, _link: SlotId, _header: &[u8], _payload_bytes: u32) -> Placement {
        Placement::Drop
    }

    fn arrived(&mut self, _link: SlotId, _header: &[u8], _payload: &[u8]) -> bool {
        true
    }

    fn received(&mut self, _link: SlotId, _token: Token) {}

    fn ended(&mut self, _token: Token, _outcome: Result<(), Fault>) {}

    fn revoked(&mut self, _link: SlotId, _key: RemoteKey) {}
}

#[test]
fn calls_of_our_own_language_are_refused_where_nobody_takes_them() {
    let mut wire = Wire::new(12, 1, dialect(0));
    wire.run_for(Duration::from_secs(1));
    let now = wire.now;
    // Somebody calls endpoint 3 from his 4.
    let config = PacketConfig {
        endpoint: 4,
        packet_bytes: 1452,
        pieces_max: 64,
        accepts: false,
        links_max: 4,
        give_up_after: Duration::from_secs(5),
    };
    let mut caller = Machine::<u32>::new(config, Random::from_seed(1));
    let mut seen = Caller::default();
    caller.connect(0, 3, now).unwrap();
    let mut call = vec![0; 1452];
    let (_, len) = caller.next(now, &seen, &mut call).expect("it calls");
    call.truncate(len);
    let mut answers = |to: Station, call: &[u8], taken: bool| {
        let agent = wire.agent(0);
        agent.called(station(1), to, call, now, &mut |endpoint| taken && endpoint == 3);
        std::iter::from_fn(|| agent.next()).map(|(_, body)| body).collect::<Vec<_>>()
    };
    assert!(answers(station(0), &call, true).is_empty(), "whoever has it answers");
    assert!(answers(station(2), &call, false).is_empty(), "it is for another one");
    assert!(answers(station(0), &call[..100], false).is_empty(), "it is cut");
    let refusals = answers(station(0), &call, false);
    assert!(refusals.len() == 1 && refusals[0].len() < call.len());
    caller.packet(0, &refusals[0], now, &mut seen);
    caller.drained(now, &mut seen);
    assert_eq!(seen.0, Some(Fault::Unreachable));
    // Many at a time are not answered.
    let many: usize = (0..10_000).map(|_| answers(station(0), &call, false).len()).sum();
    assert!(many < 1000, "{many}");
}

#[test]
fn nothing_that_comes_makes_an_agent_fall() {
    for seed in seeds::seeds(1, 20) {
        let mut wire = Wire::new(seed, 2, dialect(seed));
        wire.run_for(Duration::from_secs(3));
        let (now, dialect) = (wire.now, wire.dialect);
        let connect = Connect {
            to: 3,
            from: 4,
            index: 1,
            session: 7,
            key: 0,
            receive_next: Sequence(1),
            connect: 1,
        };
        for _ in 0..2000 {
            let mut body = body(&Packet::Connect(connect), dialect);
            body.truncate(wire.random.below(body.len() as u64 + 1) as usize);
            for _ in 0..wire.random.below(8) {
                let at = wire.random.below(body.len() as u64 + 1) as usize;
                if let Some(byte) = body.get_mut(at) {
                    *byte = wire.random.next_u64() as u8;
                }
            }
            let kinds = [1, 3, 4, 0x23, 0x24, 0x25, 0x27, 0x29, 0x2b, 0x2c];
            if let Some(kind) = body.get_mut(2) {
                *kind = kinds[wire.random.below(kinds.len() as u64) as usize];
            }
            let from = station(wire.random.below(4) as usize);
            wire.agent(0).packet(from, station(0), &body, now, &mut |_| false);
        }
        wire.run_for(Duration::from_secs(60));
        let _ = wire.agent(0).peers(0).count();
    }
}
