//! Ours with a host that runs Open-MX, as its model has it: fixed timers, no checksums, defects included.

use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::random::Random;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_sim::open_mx::{
    Address, Event, Host, HostConfig, Kind, RESEND_AFTER, Request, Status,
};
use ropewalk_sim::seeds;
use ropewalk_wire::mxoe::{Dialect, Station};

use crate::world::*;
use crate::{EDGES, ROUGH, dialect};

/// A station by its number in the world.
pub fn station(number: u32) -> Station {
    Station([2, 0, 0, 0, 0, number as u8 + 1])
}

fn number(station: Station) -> u32 {
    u32::from(station.0[5]) - 1
}

/// The endpoints: ours at station 0, the foreign one at station 1.
pub const OURS: u8 = 3;
pub const THEIRS: u8 = 0;

/// A foreign host.
pub struct Theirs {
    pub host: Host,
    pub events: Vec<Event>,
    /// Posted requests, with the number of the message.
    pub receives: BTreeMap<u64, u64>,
    pub sends: BTreeMap<u64, u64>,
    pub next_session: u32,
}

impl Theirs {
    pub fn new(random: &mut Random, dialect: Dialect) -> Theirs {
        let session = random.next_u64() as u32 >> 1 | 1;
        let mut config = HostConfig::new(station(1), THEIRS, session, dialect);
        config.peers = vec![station(1), station(0)];
        config.key = KEY;
        // It gives up when ours does: so both sides take the same time where the defaults differ.
        config.resends_max = (GIVE_UP_AFTER.as_millis() / RESEND_AFTER.as_millis()) as u32;
        config.seed = random.next_u64();
        let (receives, sends) = (BTreeMap::new(), BTreeMap::new());
        let events = Vec::new();
        Theirs { host: Host::new(config), events, receives, sends, next_session: session + 1 }
    }

    pub fn send(&mut self, id: u64, len: u64, synchronous: bool) {
        let bytes = (0..len).map(|at| pattern(id, at)).collect();
        let request = self.host.send(ours(), id, bytes, synchronous);
        self.sends.insert(request.0, id);
    }

    pub fn receive(&mut self, id: u64, room: u64) {
        let Request(request) = self.host.receive(id, u64::MAX, room as u32);
        self.receives.insert(request, id);
    }

    /// Receives and sends that are over, and how.
    pub fn ended(&self, kind: Kind) -> impl Iterator<Item = &Event> {
        self.events.iter().filter(move |event| event.kind == kind)
    }
}

pub fn ours() -> Address {
    Address { station: station(0), endpoint: OURS }
}

impl Node for Theirs {
    fn packet(&mut self, from: u32, body: &[u8], now: Time) {
        self.host.packet(station(from), body, now);
    }

    fn pass(&mut self, now: Time, _room: u64) -> Vec<(u32, Vec<u8>)> {
        self.host.advance(now);
        self.events.extend(self.host.take_events());
        std::iter::from_fn(|| self.host.next()).map(|(to, body)| (number(to), body)).collect()
    }

    fn due(&self, _now: Time) -> Time {
        self.host.deadline()
    }

    fn describe(&self) -> String {
        format!("{:?}", self.host.counters())
    }
}

/// The side that connects first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum First {
    Ours,
    Theirs,
    Both,
}

pub struct Scene {
    pub world: World<Ours, Theirs>,
    pub link: SlotId,
    /// Number and length of the messages sent.
    pub sent: Vec<(u64, u64)>,
    pub returned: Vec<(u64, u64)>,
}

impl Scene {
    pub fn new(seed: u64, weather: Weather, first: First) -> Scene {
        let mut world = World::new(seed, |random| {
            let dialect = dialect(random);
            (Ours::new(random, OURS, dialect), Theirs::new(random, dialect))
        });
        world.air.weather = weather;
        let now = world.now;
        if first != First::Theirs {
            world.nodes.0.machine.connect(1, THEIRS, KEY, now).unwrap();
        }
        if first != First::Ours {
            world.nodes.1.host.connect(ours(), KEY);
        }
        world.until("a link", |world| {
            let theirs = world.nodes.1.ended(Kind::Connect).count();
            !world.nodes.0.seen.up.is_empty() && (first == First::Ours || theirs == 1)
        });
        // It knows whom to send to when we have connected, which we do by ourselves.
        world.pass(Duration::from_secs(2));
        let link = *world.nodes.0.seen.up.keys().next().unwrap();
        Scene { world, link, sent: Vec::new(), returned: Vec::new() }
    }

    pub fn len(&mut self) -> u64 {
        let edge = self.world.random.below(EDGES.len() as u64) as usize;
        EDGES[if edge > 14 && self.world.random.below(3) > 0 { edge - 10 } else { edge }]
    }

    pub fn send(&mut self) {
        let (id, len) = (1 + self.sent.len() as u64, self.len());
        self.world.nodes.0.send(self.link, id, len, true);
        self.sent.push((id, len));
        if self.world.random.below(2) == 0 {
            self.receive();
        }
    }

    /// The foreign host posts its next receive.
    pub fn receive(&mut self) {
        let posted = self.world.nodes.1.receives.len();
        if let Some(&(id, len)) = self.sent.get(posted) {
            self.world.nodes.1.receive(id, room_for(id, len));
        }
    }

    pub fn send_back(&mut self) {
        let (id, len) = (1_000_000 + self.returned.len() as u64, self.len());
        let synchronous = self.world.random.below(4) == 0;
        self.world.nodes.1.send(id, len, synchronous);
        self.returned.push((id, len));
    }

    /// Everything came once, as it was sent, and both sides know how much was taken.
    pub fn check(&mut self) {
        while self.world.nodes.1.receives.len() < self.sent.len() {
            self.receive();
        }
        let (sent, returned) = (self.sent.len(), self.returned.len());
        self.world.until("all messages and ends", |world| {
            while world.nodes.0.read() {}
            world.nodes.0.seen.received.len() == returned
                && world.nodes.0.seen.finished.len() == sent
                && world.nodes.1.ended(Kind::Receive).count() == sent
                && world.nodes.1.ended(Kind::Send).count() == returned
        });
        self.world.pass(Duration::from_secs(3));
        let Ours { seen, .. } = &self.world.nodes.0;
        assert!(seen.down.is_empty() && seen.pending.is_empty(), "{:?}", seen.down);
        let told: Vec<u64> = seen.told.iter().map(|(_, id)| *id).collect();
        assert_eq!(told, self.returned.iter().map(|it| it.0).collect::<Vec<_>>());
        let theirs = &self.world.nodes.1;
        let taken = |id, len| (room_for(id, len), room_for(id, len) < len);
        for event in theirs.ended(Kind::Receive) {
            let id = theirs.receives[&event.request.0];
            let len = self.sent[id as usize - 1].1;
            let (room, truncated) = taken(id, len);
            assert_eq!((event.bytes, event.transferred), (len as u32, room as u32));
            let status = if truncated { Status::Truncated } else { Status::Success };
            assert_eq!(event.status, status, "{id}");
            let right =
                event.data.iter().enumerate().all(|(at, byte)| *byte == pattern(id, at as u64));
            assert!(right && event.data.len() == room as usize, "message {id} of {len} bytes");
        }
        for event in theirs.ended(Kind::Send) {
            let id = theirs.sends[&event.request.0];
            assert!(matches!(event.status, Status::Success | Status::Truncated), "{event:?}");
            let len = self.returned[(id - 1_000_000) as usize].1;
            assert!(
                event.transferred == len as u32 || u64::from(event.transferred) == taken(id, len).0
            );
        }
        let ends: BTreeMap<u64, u64> =
            seen.finished.iter().map(|(_, end)| (end.number, end.bytes)).collect();
        assert_eq!(ends.len(), sent, "each message has one end");
    }

    pub fn traffic(&mut self, count: u64) {
        for _ in 0..count {
            match self.world.random.below(2) {
                0 => self.send(),
                _ => self.send_back(),
            }
            for _ in 0..self.world.random.below(4) {
                self.world.step();
            }
            if self.world.random.below(3) == 0 {
                self.world.nodes.0.read();
            }
        }
    }
}

#[test]
fn messages_of_every_length_go_to_a_foreign_host_and_come_from_it() {
    for seed in seeds(0, 60) {
        let weather = if seed.is_multiple_of(3) { Weather::FAIR } else { ROUGH };
        let first = [First::Ours, First::Theirs, First::Both][(seed % 3) as usize];
        let mut scene = Scene::new(seed, weather, first);
        scene.world.nodes.0.seen.later = [0, 0, 100][(seed % 3) as usize];
        let count = 10 + scene.world.random.below(100);
        scene.traffic(count);
        scene.check();
    }
}

#[test]
fn a_foreign_host_that_computes_gets_everything_afterwards() {
    for seed in seeds(0, 20) {
        let mut scene = Scene::new(seed, ROUGH, First::Both);
        for _ in 0..4 {
            let until = scene.world.now + Duration::from_millis(20 + scene.world.random.below(900));
            scene.world.nodes.1.host.computes_until(until);
            for _ in 0..20 {
                scene.send();
                scene.world.pass(Duration::from_micros(300));
            }
            scene.world.pass(Duration::from_secs(1));
        }
        scene.check();
    }
}

#[test]
fn a_foreign_host_that_restarts_is_another_partner_whoever_connects_first() {
    // In the last two seeds copies of attempts come late. One copy is of an attempt in the session before, and comes
    // after those in the next one. The other is of an answered attempt, and the new life receives it first.
    for seed in seeds(0, 40).chain([84, 6883]) {
        let mut scene = Scene::new(seed, ROUGH, First::Both);
        scene.traffic(20);
        let old = scene.link;
        let theirs = &mut scene.world.nodes.1;
        theirs.next_session += 1;
        let session = theirs.next_session;
        theirs.host.restart(session);
        let they_connect = seed.is_multiple_of(2);
        if they_connect {
            scene.world.nodes.1.host.connect(ours(), KEY);
        } else {
            // Only its answer to a message tells us.
            scene.world.nodes.0.send(old, 900_000, 10, true);
        }
        scene
            .world
            .until("the end of the old link", |world| world.nodes.0.seen.down.contains_key(&old));
        assert_eq!(scene.world.nodes.0.seen.down[&old], Fault::PeerReset);
        let now = scene.world.now;
        let link = scene.world.nodes.0.machine.connect(1, THEIRS, KEY, now).unwrap();
        scene.world.until("a new link", |world| world.nodes.0.seen.up.contains_key(&link));
        scene.world.pass(Duration::from_secs(3));
        assert!(!scene.world.nodes.0.seen.down.contains_key(&link), "seed {seed}");
        let before = scene.world.nodes.0.seen.finished.len();
        for id in 0..20 {
            scene.world.nodes.1.receive(500_000 + id, 1000);
            scene.world.nodes.0.send(link, 500_000 + id, 40 * id, true);
            scene.world.nodes.1.send(600_000 + id, 40 * id, false);
        }
        scene.world.until("messages both ways", |world| {
            let theirs: Vec<u64> = world
                .nodes
                .1
                .ended(Kind::Receive)
                .filter(|event| event.match_info / 100_000 == 5)
                .map(|event| event.match_info)
                .collect();
            let here = world.nodes.0.seen.received.iter().filter(|it| it.id / 100_000 == 6).count();
            world.nodes.0.seen.finished.len() >= before + 20 && theirs.len() == 20 && here == 20
        });
    }
}
