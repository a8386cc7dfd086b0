//! Hosts with Open-MX, and a network between them that loses, doubles and delays packets.

use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_sim::open_mx::{Address, Event, Host, HostConfig, Kind, Request, Status};
use ropewalk_wire::mxoe::{Dialect, ETHERNET_BYTES, INDEX_BYTES, Station, Type};

/// Of the network, in parts of a thousand; lateness in microseconds.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    pub loss: u64,
    pub doubling: u64,
    pub lateness: u64,
}

impl Weather {
    pub const FAIR: Weather = Weather { loss: 0, doubling: 0, lateness: 0 };
    pub const FOUL: Weather = Weather { loss: 30, doubling: 20, lateness: 60 };
}

const LATENCY: Duration = Duration::from_micros(15);
pub const KEY: u32 = 0x1234_5678;
/// Everything within a mask.
pub const ALL: u64 = u64::MAX;

pub struct World {
    pub random: Random,
    pub now: Time,
    pub hosts: Vec<Host>,
    pub weather: Weather,
    /// The events of each host, by request.
    pub ended: Vec<BTreeMap<Request, Event>>,
    /// The number of packets of each type that were sent, by host.
    pub types: Vec<BTreeMap<u8, u64>>,
    /// Every body that was sent, if it is wanted.
    pub log: Option<Vec<(usize, Vec<u8>)>>,
    /// The fragment of every medium message that gets lost.
    pub lost_fragment: Option<u8>,
    /// No step goes beyond.
    horizon: Time,
    air: BTreeMap<(Time, u64), (Station, Station, Vec<u8>)>,
    count: u64,
}

pub fn station(host: usize) -> Station {
    Station([2, 0, 0, 0, 0, host as u8 + 1])
}

/// The bytes of the message with this number.
pub fn pattern(id: u64, len: usize) -> Vec<u8> {
    (0..len).map(|at| (id as usize * 37 + at * 11 + at / 251) as u8).collect()
}

impl World {
    pub fn new(seed: u64, hosts: usize, dialect: Dialect) -> World {
        World::with(seed, hosts, dialect, |_| {})
    }

    pub fn with(
        seed: u64,
        hosts: usize,
        dialect: Dialect,
        change: impl Fn(&mut HostConfig),
    ) -> World {
        let make = |host: usize| {
            let session = 0x1000 * (host as u32 + 1) + seed as u32 % 0x1000;
            let mut config = HostConfig::new(station(host), endpoint(host), session, dialect);
            // Each has itself as number 0, and the others in an order of its own.
            config.peers.extend((1..hosts).map(|other| station((host + other) % hosts)));
            config.key = KEY;
            change(&mut config);
            Host::new(config)
        };
        World {
            random: Random::from_seed(seed),
            now: Time(1_000_000),
            hosts: (0..hosts).map(make).collect(),
            weather: Weather::FAIR,
            ended: vec![BTreeMap::new(); hosts],
            types: vec![BTreeMap::new(); hosts],
            log: None,
            lost_fragment: None,
            horizon: Time::NEVER,
            air: BTreeMap::new(),
            count: 0,
        }
    }

    pub fn address(&self, host: usize) -> Address {
        self.hosts[host].address()
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.random.below(limit)
    }

    /// One moment, and the next.
    pub fn step(&mut self) {
        while let Some(entry) = self.air.first_entry().filter(|entry| entry.key().0 <= self.now) {
            let (to, from, body) = entry.remove();
            for host in self.hosts.iter_mut().filter(|host| host.address().station == to) {
                host.packet(from, &body, self.now);
            }
        }
        for index in 0..self.hosts.len() {
            self.hosts[index].advance(self.now);
            while let Some((to, body)) = self.hosts[index].next() {
                self.fly(index, to, body);
            }
            for event in self.hosts[index].take_events() {
                let request = event.request;
                let before = self.ended[index].insert(request, event);
                assert!(before.is_none(), "{request:?} ended twice");
            }
        }
        let coming = self.air.keys().next().map_or(Time::NEVER, |(at, _)| *at);
        let next = self.hosts.iter().map(Host::deadline).min().unwrap_or(Time::NEVER);
        let soon = self.now + Duration::from_millis(100);
        self.now =
            next.min(coming).min(soon).min(self.horizon).max(self.now + Duration::from_nanos(200));
    }

    fn fly(&mut self, from: usize, to: Station, body: Vec<u8>) {
        *self.types[from].entry(body[INDEX_BYTES]).or_default() += 1;
        if let Some(log) = &mut self.log {
            log.push((from, body.clone()));
        }
        let is_medium = body[INDEX_BYTES] == Type::Medium as u8;
        let is_lost = is_medium && self.lost_fragment == Some(body[42 - ETHERNET_BYTES]);
        if is_lost || self.below(1000) < self.weather.loss {
            return;
        }
        let copies = if self.below(1000) < self.weather.doubling { 2 } else { 1 };
        for _ in 0..copies {
            let late = Duration::from_micros(self.random.below(self.weather.lateness + 1));
            self.count += 1;
            let at = (self.now + LATENCY + late, self.count);
            self.air.insert(at, (to, station(from), body.clone()));
        }
    }

    pub fn until(&mut self, what: &str, holds: impl Fn(&World) -> bool) {
        let limit = self.now + Duration::from_secs(900);
        while !holds(self) {
            self.step();
            if self.now > limit {
                let counters: Vec<_> = self.hosts.iter().map(Host::counters).collect();
                panic!("{what}: not in a quarter of an hour; {counters:#?}");
            }
        }
    }

    pub fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.horizon = end;
        while self.now < end {
            self.step();
        }
        self.horizon = Time::NEVER;
    }

    /// Waits for the end of a request.
    pub fn end(&mut self, host: usize, request: Request) -> Event {
        self.until("the end of a request", |world| world.ended[host].contains_key(&request));
        self.ended[host][&request].clone()
    }

    /// Connects one host to another, in this direction only.
    pub fn connect(&mut self, from: usize, to: usize) {
        let status = self.try_connect(from, to);
        assert_eq!(status, Status::Success);
    }

    /// Connects; the status of the connect.
    fn try_connect(&mut self, from: usize, to: usize) -> Status {
        let address = self.address(to);
        let request = self.hosts[from].connect(address, KEY);
        let event = self.end(from, request);
        assert_eq!((event.kind, event.peer), (Kind::Connect, address));
        event.status
    }

    /// Sends a connect, and does not wait for its outcome.
    pub fn send_connect(&mut self, from: usize, to: usize) {
        let address = self.address(to);
        self.hosts[from].connect(address, KEY);
        self.step();
    }

    /// Connects two hosts in both directions.
    pub fn join(&mut self, a: usize, b: usize) {
        self.connect(a, b);
        self.connect(b, a);
    }

    /// Likewise after one of them began anew. A message to its former life that is late is refused, and ends
    /// the connect that is under way.
    pub fn join_anew(&mut self, a: usize, b: usize) {
        for (from, to) in [(a, b), (b, a)] {
            let status = |_| self.try_connect(from, to);
            let ended = (0..20).map(status).find(|status| *status != Status::BadSession);
            assert_eq!(ended, Some(Status::Success));
        }
    }

    pub fn send(&mut self, from: usize, to: usize, id: u64, len: usize) -> Request {
        let address = self.address(to);
        self.hosts[from].advance(self.now);
        self.hosts[from].send(address, id, pattern(id, len), false)
    }
}

/// Endpoints differ, so that a mistake is seen.
fn endpoint(host: usize) -> u8 {
    host as u8 * 3 + 1
}
