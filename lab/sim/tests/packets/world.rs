//! Machines on stations, and a network between them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Slice;
use ropewalk_base::random::Random;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{
    FrameOrder, Header, LinkId, Ordered, Placement, RemoteKey, Token, Urgency, Verb,
};
use ropewalk_transport::packets::{Machine, PacketConfig};
use ropewalk_transport::{Bytes, LinkEvents, PacketProtocol};

pub use crate::air::*;

pub const FOUL: Weather =
    Weather { loss: 30, doubling: 20, corruption: 10, lateness: 60, ..Weather::FAIR };
pub const GIVE_UP_AFTER: Duration = Duration::from_secs(5);
/// Payloads whose frames the receiver drops.
pub fn is_dropped(id: u64) -> bool {
    id % 19 == 7
}

/// The reports of a machine, with checks of its guarantees.
#[derive(Debug, Default)]
pub struct Seen {
    pub store: Store,
    pub up: BTreeSet<SlotId>,
    pub down: BTreeMap<SlotId, Fault>,
    /// Frames, by urgency, in the order in which they were complete.
    pub frames: [Vec<u64>; 2],
    placed: BTreeMap<u64, (SlotId, u64, Slice)>,
    next_token: u64,
    /// Orders that wait for their outcome, and those that have it.
    pub pending: BTreeMap<u64, SlotId>,
    pub ended: BTreeMap<u64, Result<(), Fault>>,
    pub revoked: Vec<RemoteKey>,
}

/// Number and urgency of a frame.
fn named(header: &[u8]) -> (u64, usize) {
    (u64::from_le_bytes(header[8..16].try_into().unwrap()), usize::from(header[16]))
}

impl Seen {
    fn complete(&mut self, id: u64, urgency: usize, bytes: &[u8]) {
        let right = bytes.iter().enumerate().all(|(at, byte)| *byte == pattern(id, at as u64));
        assert!(right, "frame {id} is not what was sent");
        self.frames[urgency].push(id);
    }

    fn is_up(&self, link: SlotId) {
        assert!(self.up.contains(&link) && !self.down.contains_key(&link), "{link:?} is not up");
    }
}

impl Bytes for Seen {
    fn read(&self, from: Slice, to: &mut [u8]) {
        self.store.read(from, to);
    }

    fn write(&self, to: Slice, from: &[u8]) {
        self.store.write(to, from);
    }
}

impl LinkEvents<u32> for Seen {
    fn link_up(&mut self, link: SlotId, _accepted: bool) {
        assert!(!self.down.contains_key(&link));
        assert!(self.up.insert(link), "{link:?} came up twice");
    }

    fn link_down(&mut self, link: SlotId, fault: Fault) {
        assert!(!self.pending.values().any(|other| *other == link), "orders without an outcome");
        assert!(self.down.insert(link, fault).is_none(), "{link:?} has two last words");
        self.placed.retain(|_, (other, ..)| *other != link);
    }

    fn place(&mut self, link: SlotId, header: &[u8], payload_bytes: u32) -> Placement {
        self.is_up(link);
        let (id, urgency) = named(header);
        if payload_bytes == 0 || is_dropped(id) {
            self.frames[urgency].push(id);
            return Placement::Drop;
        }
        // Some places are shorter than the payload: the rest is cut.
        let fits = if id % 23 == 3 { payload_bytes / 3 } else { payload_bytes };
        let slice = self.store.add(vec![0; fits as usize]);
        self.next_token += 1;
        self.placed.insert(self.next_token, (link, id * 2 + urgency as u64, slice));
        Placement::Into { slice, token: Token(self.next_token) }
    }

    fn arrived(&mut self, link: SlotId, header: &[u8], payload: &[u8]) -> bool {
        self.is_up(link);
        let (id, urgency) = named(header);
        self.complete(id, urgency, payload);
        true
    }

    fn received(&mut self, link: SlotId, token: Token) {
        self.is_up(link);
        let (other, name, slice) = self.placed.remove(&token.0).expect("it was placed");
        assert_eq!(other, link);
        let bytes = self.store.bytes(slice);
        self.complete(name / 2, (name % 2) as usize, &bytes);
    }

    fn ended(&mut self, token: Token, outcome: Result<(), Fault>) {
        assert!(self.pending.remove(&token.0).is_some(), "{token:?} is not awaited");
        assert!(self.ended.insert(token.0, outcome).is_none());
    }

    fn revoked(&mut self, _link: SlotId, key: RemoteKey) {
        self.revoked.push(key);
    }
}

/// A station with one endpoint.
pub struct Node {
    pub machine: Machine<u32>,
    pub seen: Seen,
    pub store: Store,
    pub alive: bool,
}

/// All of it.
pub struct World {
    pub random: Random,
    pub now: Time,
    pub nodes: Vec<Node>,
    pub air: Air,
    /// The most packets that a port takes at a time.
    pub room: u64,
    /// Nodes whose port takes a packet so often and no more: by their number, how often, and when the next one.
    pub slow: BTreeMap<usize, (Duration, Time)>,
    /// Of frames that wait, by sender and token.
    pub payloads: BTreeMap<(usize, u64), Slice>,
    pub packet_bytes: usize,
    next_token: u64,
    pub trace: u64,
}

impl World {
    pub fn new(seed: u64, nodes: u32, packet_bytes: usize, pieces_max: u32) -> World {
        let mut random = Random::from_seed(seed);
        let nodes = (0..nodes).map(|_| Node::new(&mut random, packet_bytes, pieces_max)).collect();
        let random_seed = random.next_u64();
        World {
            random,
            now: Time(1_000_000),
            nodes,
            air: Air::new(random_seed),
            room: 40,
            slow: BTreeMap::new(),
            payloads: BTreeMap::new(),
            packet_bytes,
            next_token: 1 << 32,
            trace: 0,
        }
    }

    /// A link between two nodes, up at both: its names there.
    pub fn connect(&mut self, a: usize, b: usize) -> (SlotId, SlotId) {
        let before = self.nodes[b].seen.up.clone();
        let link = self.nodes[a].machine.connect(b as u32, 1, self.now).unwrap();
        self.until("a link at the caller", |world| world.nodes[a].seen.up.contains(&link));
        // The one who was called knows of the link when the first packet comes over it.
        self.send(a, link, 1 << 40, 0, Urgency::Urgent);
        self.until("a link at the one who is called", |world| {
            world.nodes[b].seen.up.difference(&before).next().is_some()
        });
        let other = *self.nodes[b].seen.up.difference(&before).next().unwrap();
        (link, other)
    }

    pub fn send(&mut self, node: usize, link: SlotId, id: u64, len: u64, urgency: Urgency) {
        self.next_token += 1;
        let token = Token(self.next_token);
        let payload = self.nodes[node].store.patterned(id, len);
        let extra = if id.is_multiple_of(3) { 40 } else { 0 };
        let mut header = vec![3, 17 + extra, 0, 0];
        header.extend((len as u32).to_le_bytes());
        header.extend(id.to_le_bytes());
        header.push(u8::from(urgency == Urgency::Bulk));
        header.extend(vec![0; usize::from(extra)]);
        let frame =
            FrameOrder { link: of(link), header: Header::new(&header), payload, urgency, token };
        let Node { machine, store, seen, .. } = &mut self.nodes[node];
        let payload = if len == 0 { Slice::NONE } else { payload };
        match machine.send(&FrameOrder { payload, ..frame }, store) {
            Ordered::Released => store.poison(payload),
            Ordered::Pending => {
                seen.pending.insert(token.0, link);
                self.payloads.insert((node, token.0), payload);
            }
            Ordered::Refused(fault) => panic!("frame {id} is refused: {fault}"),
        }
    }

    /// Orders something that waits; its token.
    pub fn order(
        &mut self,
        node: usize,
        link: SlotId,
        verb: impl FnOnce(LinkId, Token) -> Verb,
    ) -> u64 {
        self.next_token += 1;
        let token = self.next_token;
        let Node { machine, store, seen, .. } = &mut self.nodes[node];
        match machine.order(&verb(of(link), Token(token)), store) {
            Ordered::Pending => drop(seen.pending.insert(token, link)),
            Ordered::Released => drop(seen.ended.insert(token, Ok(()))),
            Ordered::Refused(fault) => drop(seen.ended.insert(token, Err(fault))),
        }
        token
    }

    /// Gives an order back that takes effect at once; whether it did.
    pub fn take_back(&mut self, node: usize, verb: &Verb) -> bool {
        let Node { machine, store, .. } = &mut self.nodes[node];
        machine.order(verb, store) == Ordered::Released
    }

    /// One moment: arrivals, departures, and then the next moment.
    pub fn step(&mut self) {
        while let Some((to, from, bytes)) = self.air.next(self.now) {
            let Some(node) = self.nodes.get_mut(to as usize).filter(|node| node.alive) else {
                continue;
            };
            let Node { machine, seen, .. } = node;
            machine.packet(from, &bytes, self.now, seen);
            self.trace = traced(self.trace, &bytes);
        }
        for index in 0..self.nodes.len() {
            if !self.nodes[index].alive {
                continue;
            }
            let Node { machine, seen, .. } = &mut self.nodes[index];
            machine.drained(self.now, seen);
            // The port has room for some.
            let room = match self.slow.get_mut(&index) {
                Some((often, next)) if *next <= self.now => {
                    *next = self.now + *often;
                    1
                }
                Some(_) => 0,
                None => 1 + self.random.below(self.room),
            };
            let mut out = vec![0; self.packet_bytes];
            for _ in 0..room {
                let Node { machine, store, .. } = &mut self.nodes[index];
                let Some((to, len)) = machine.next(self.now, store, &mut out) else { break };
                let bytes = out[..len].to_vec();
                self.air.fly(index as u32, to, bytes, self.now);
            }
            let Node { machine, seen, .. } = &mut self.nodes[index];
            if machine.has_work() {
                machine.held_up(self.now);
            }
            machine.report(seen);
        }
        let due = |(index, node): (usize, &Node)| match node.alive {
            true if node.machine.has_work() => {
                let soon = self.now + Duration::from_micros(1);
                self.slow.get(&index).map_or(soon, |(_, next)| soon.max(*next))
            }
            true => node.machine.deadline(),
            false => Time::NEVER,
        };
        let next = self.nodes.iter().enumerate().map(due).min().unwrap_or(Time::NEVER);
        let coming = self.air.due();
        let soon = self.now + Duration::from_millis(5);
        self.now = next.min(coming).min(soon).max(self.now + Duration::from_nanos(200));
    }

    /// Steps until something holds.
    pub fn until(&mut self, what: &str, holds: impl Fn(&World) -> bool) {
        let limit = self.now + Duration::from_secs(60);
        while !holds(self) {
            self.step();
            if self.now > limit {
                let counters = self.nodes.iter().map(|node| node.machine.counters());
                panic!("{what}: not in a minute; {:#?}", counters.collect::<Vec<_>>());
            }
        }
    }

    /// Lets time pass.
    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }
}

pub fn of(slot: SlotId) -> LinkId {
    LinkId { rail: 0, slot }
}

impl Node {
    pub fn new(random: &mut Random, packet_bytes: usize, pieces_max: u32) -> Node {
        let config = PacketConfig {
            endpoint: 1,
            packet_bytes,
            pieces_max,
            accepts: true,
            links_max: 400,
            give_up_after: GIVE_UP_AFTER,
        };
        let machine = Machine::new(config, Random::from_seed(random.next_u64()));
        let store = Store::default();
        store.add(Vec::new());
        let seen = Seen { store: store.clone(), ..Seen::default() };
        Node { machine, seen, store, alive: true }
    }
}
