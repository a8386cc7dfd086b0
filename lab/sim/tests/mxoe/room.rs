//! A room: several of ours, and somebody who says to the first of them whatever he likes.

use std::time::Duration;

use ropewalk_base::random::Random;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_transport::mxoe::{MxoeConfig, MxoeCounters};
use ropewalk_wire::mxoe::*;

use crate::world::*;

pub const SESSION: u32 = 0x00c0_ffee;
/// The endpoint of everybody of ours, and that of the hostile one.
pub const ENDPOINT: u8 = 3;
pub const HIS: u8 = 8;
/// His station: behind those of ours.
pub const HIS_STATION: u32 = 100;

pub fn config(frames_max: u32) -> MxoeConfig {
    MxoeConfig {
        endpoint: ENDPOINT,
        dialect: Dialect::native(1500, Order::Big).unwrap(),
        key: KEY,
        accepts: true,
        partners_max: 64,
        frames_max,
        give_up_after: GIVE_UP_AFTER,
        connect_for: GIVE_UP_AFTER,
    }
}

/// Several of ours, by their stations, between which packets arrive at once; and the packets to others.
pub struct Room {
    pub hosts: Vec<Ours>,
    pub now: Time,
    pub others: Vec<(u32, Vec<u8>)>,
    pub dialect: Dialect,
}

impl Room {
    pub fn new(hosts: usize, config: MxoeConfig) -> Room {
        let mut random = Random::from_seed(7);
        let dialect = config.dialect;
        let host = |host| Ours::configured(&mut random, config.clone(), SESSION + host as u32);
        let hosts = (0..hosts).map(host).collect();
        Room { hosts, now: Time(1_000_000), others: Vec::new(), dialect }
    }

    pub fn run(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            for host in 0..self.hosts.len() {
                for (to, body) in self.hosts[host].pass(self.now, 10_000) {
                    match self.hosts.get_mut(to as usize) {
                        Some(other) => other.packet(host as u32, &body, self.now),
                        None => self.others.push((to, body)),
                    }
                }
            }
            self.now = self.now + Duration::from_micros(100);
        }
    }

    /// A link between two of ours, as both know it.
    pub fn join(&mut self, a: usize, b: usize) -> [SlotId; 2] {
        let now = self.now;
        let link = self.hosts[a].machine.connect(b as u32, ENDPOINT, KEY, now).unwrap();
        self.run(Duration::from_millis(1));
        let of = |(link, (who, _)): (&SlotId, &(_, bool))| {
            let who: &ropewalk_transport::Who<u32> = who;
            (who.station == a as u32 && !self.hosts[b].seen.down.contains_key(link))
                .then_some(*link)
        };
        let other = self.hosts[b].seen.up.iter().find_map(of).expect("a link");
        [link, other]
    }

    pub fn read_all(&mut self) {
        for host in &mut self.hosts {
            while host.read() {}
        }
    }

    /// A packet as it travels.
    pub fn body(&self, packet: &Packet<'_>) -> Vec<u8> {
        let mut header = [0; HEADER_BYTES_MAX];
        let len = packet.emit(1, self.dialect, &mut header);
        let mut body = header[..len].to_vec();
        match packet {
            Packet::Tiny(_, bytes)
            | Packet::Small(_, bytes)
            | Packet::Medium(_, bytes)
            | Packet::PullReply(_, bytes) => body.extend_from_slice(bytes),
            _ => {}
        }
        body
    }

    /// Somebody says something to the first of ours.
    pub fn say(&mut self, from: u32, packet: &Packet<'_>) {
        let body = self.body(packet);
        self.hosts[0].packet(from, &body, self.now);
    }

    pub fn counters(&self) -> MxoeCounters {
        self.hosts[0].machine.counters()
    }

    /// The size of the first host's state: the length of its debug output.
    pub fn size(&self) -> usize {
        format!("{:?}", self.hosts[0].machine).len()
    }

    /// He answers our connecting, which is under way: the message that he expects next.
    pub fn let_us_in(&mut self, receive_next: Sequence) {
        let asked =
            self.others.drain(..).find_map(|(_, body)| match Packet::parse(&body, self.dialect) {
                Ok((_, Packet::Connect(asked))) => Some(asked),
                _ => None,
            });
        let reply = ConnectReply {
            to: ENDPOINT,
            from: HIS,
            index: 1,
            asker: SESSION,
            session: 77,
            receive_next,
            connect: asked.expect("we connect").connect,
            status: 0,
        };
        self.say(HIS_STATION, &Packet::ConnectReply(reply));
    }

    /// The first packet from host 0 to another station that `wanted` accepts.
    pub fn next_said<T>(&mut self, wanted: impl Fn(&Packet<'_>) -> Option<T>) -> T {
        self.run(Duration::from_millis(1));
        let dialect = self.dialect;
        let said = self.others.drain(..).find_map(|(_, body)| {
            Packet::parse(&body, dialect).ok().and_then(|(_, packet)| wanted(&packet))
        });
        said.expect("it is said")
    }

    /// He connects; how he is called then.
    pub fn let_him_in(&mut self) -> SlotId {
        self.say(HIS_STATION, &Packet::Connect(connect(1)));
        self.run(Duration::from_millis(1));
        self.let_us_in(Sequence(1));
        self.hosts[0].seen.anything = true;
        let links = &self.hosts[0].seen.up;
        let (link, _) = links.iter().find(|(_, (who, _))| who.station == HIS_STATION).unwrap();
        *link
    }

    /// Innocent traffic goes on: two of ours exchange messages of every kind.
    pub fn innocent(&mut self, links: [SlotId; 2]) {
        self.innocent_between([0, 1], links);
    }

    /// The same between these two.
    pub fn innocent_between(&mut self, hosts: [usize; 2], links: [SlotId; 2]) {
        for (host, link) in hosts.into_iter().zip(links) {
            for (number, len) in [5, 100, 5000, 100_000].into_iter().enumerate() {
                let id = 10_000 + self.hosts[host].seen.finished.len() * 10 + number;
                self.hosts[host].send(link, id as u64, len, true);
            }
        }
        let finished = |room: &Room| hosts.map(|host| room.hosts[host].seen.finished.len());
        let wanted = finished(self).map(|it| it + 4);
        for _ in 0..200 {
            self.run(Duration::from_millis(1));
            self.read_all();
        }
        assert_eq!(finished(self), wanted);
    }
}

pub fn connect(connect: u8) -> Connect {
    Connect {
        to: ENDPOINT,
        from: HIS,
        index: 1,
        session: 77,
        key: KEY,
        receive_next: Sequence(1),
        connect,
    }
}

pub fn message(sequence: u16, match_info: u64) -> Message {
    Message {
        to: ENDPOINT,
        from: HIS,
        session: SESSION,
        sequence: Sequence(sequence),
        acknowledged: Sequence(1),
        match_info,
    }
}
