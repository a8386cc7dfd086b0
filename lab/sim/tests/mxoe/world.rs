//! Endpoints of ours that speak MXoE, and a network between them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Slice;
use ropewalk_base::random::Random;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{
    ForeignEnd, ForeignMessage, FrameOrder, Help, LinkId, Ordered, RemoteKey, RemoteLayout, Token,
    Urgency, Verb,
};
use ropewalk_transport::mxoe::{Mxoe, MxoeConfig, MxoeCounters};
use ropewalk_transport::{LinkEvents, PacketProtocol, Taken, Who};
use ropewalk_wire::frame::{self, Body, CreditBody, EagerBody, Envelope, FinBody, RtsBody};
use ropewalk_wire::mxoe::Dialect;

pub use crate::air::*;

pub const GIVE_UP_AFTER: Duration = Duration::from_secs(20);
pub const KEY: u32 = 0x1234_5678;
/// Longer messages are announced.
pub const EAGER_BYTES_MAX: u64 = 32_768;

pub fn of(slot: SlotId) -> LinkId {
    LinkId { rail: 0, slot }
}

/// A message as it was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    pub link: SlotId,
    pub id: u64,
    /// Bytes of the message, and of the memory that it went to.
    pub bytes: u64,
    pub room: u64,
    /// Its bytes are those that a message of this number has.
    pub right: bool,
}

/// The reports of a machine, with checks of its guarantees.
#[derive(Debug, Default)]
pub struct Seen {
    pub store: Store,
    pub up: BTreeMap<SlotId, (Who<u32>, bool)>,
    pub down: BTreeMap<SlotId, Fault>,
    /// Keys that were shown, and whether they are right.
    pub judged: Vec<(SlotId, u32, bool)>,
    /// Messages in the order in which they were told.
    pub told: Vec<(SlotId, u64)>,
    /// Those that are here.
    pub received: Vec<Received>,
    placed: BTreeMap<u64, (Received, Slice)>,
    next_token: u64,
    /// Announced messages that nobody reads yet, and those that are read, by token.
    pub announced: VecDeque<(SlotId, ForeignMessage)>,
    pub reading: BTreeMap<u64, (ForeignMessage, Received, Slice)>,
    /// Those of which the reading failed.
    pub failed: Vec<(Received, Fault)>,
    /// Orders that wait for their outcome.
    pub pending: BTreeSet<u64>,
    pub ended: Vec<(u64, Result<(), Fault>)>,
    pub finished: Vec<(SlotId, ForeignEnd)>,
    pub revoked: u64,
    /// Of a thousand messages so many find no room at first.
    pub later: u64,
    pub postponed: u64,
    full: bool,
    random: Option<Random>,
    /// Messages may be others than those that were sent.
    pub anything: bool,
    /// The memory that may be written to: that of messages that are not here yet.
    open: BTreeSet<u32>,
}

/// By what memory is known to be open.
fn index_of(slice: Slice) -> u32 {
    slice.buffer.0.index
}

/// The longest message that anybody has room for.
const ROOM_MAX: u64 = 1 << 20;

/// The part of a message for which its receiver has room.
pub fn room_for(id: u64, bytes: u64) -> u64 {
    if id % 23 == 3 { bytes / 3 } else { bytes.min(ROOM_MAX) }
}

impl Seen {
    fn place(&mut self, link: SlotId, id: u64, bytes: u64) -> (Received, Slice) {
        let room = room_for(id, bytes);
        let slice = self.store.add(vec![0; room as usize]);
        self.open.insert(index_of(slice));
        (Received { link, id, bytes, room, right: true }, slice)
    }

    fn complete(&mut self, received: Received, slice: Slice) {
        let bytes = self.store.bytes(slice);
        self.open.remove(&index_of(slice));
        let id = received.id;
        let right = bytes.iter().enumerate().all(|(at, byte)| *byte == pattern(id, at as u64));
        assert!(
            right || self.anything,
            "message {id} of {} bytes is not what was sent",
            received.bytes
        );
        self.received.push(Received { right, ..received });
    }

    fn is_up(&self, link: SlotId) {
        let up = self.up.contains_key(&link) && !self.down.contains_key(&link);
        assert!(up, "{link:?} is not up");
    }
}

impl ropewalk_transport::Bytes for Seen {
    fn read(&self, from: Slice, to: &mut [u8]) {
        self.store.read(from, to);
    }

    fn write(&self, to: Slice, from: &[u8]) {
        assert!(self.open.contains(&index_of(to)), "it writes to memory that it has no more");
        self.store.write(to, from);
    }
}

impl LinkEvents<u32> for Seen {
    fn foreign_up(&mut self, link: SlotId, who: Who<u32>, accepted: bool) {
        assert!(!self.down.contains_key(&link));
        assert!(self.up.insert(link, (who, accepted)).is_none(), "{link:?} came up twice");
    }

    fn key_judged(&mut self, link: SlotId, key: u32, right: bool) {
        assert!(!self.down.contains_key(&link));
        self.judged.push((link, key, right));
    }

    fn link_down(&mut self, link: SlotId, fault: Fault) {
        assert!(self.down.insert(link, fault).is_none(), "{link:?} has two last words");
        let Seen { placed, open, .. } = self;
        placed.retain(|_, (received, slice)| {
            let stays = received.link != link;
            if !stays {
                open.remove(&index_of(*slice));
            }
            stays
        });
        self.announced.retain(|(other, _)| *other != link);
    }

    fn message(&mut self, link: SlotId, message: ForeignMessage, whole: bool) -> Taken {
        self.is_up(link);
        let later = self.later;
        if self.random.as_mut().is_some_and(|random| random.below(1000) < later) {
            self.postponed += 1;
            self.full = true;
            return Taken::Later;
        }
        self.told.push((link, message.bits));
        if message.key.is_some() {
            self.announced.push_back((link, message));
            return Taken::Nothing;
        }
        let (received, slice) = self.place(link, message.bits, message.bytes);
        if message.bytes == 0 {
            self.received.push(received);
            return Taken::Nothing;
        }
        self.next_token += 1;
        let token = Token(self.next_token);
        self.placed.insert(token.0, (received, slice));
        assert!(whole || message.bytes > 32, "short messages are whole");
        Taken::Into { slice, token }
    }

    fn finished(&mut self, link: SlotId, end: ForeignEnd) {
        self.is_up(link);
        self.finished.push((link, end));
    }

    fn received(&mut self, link: SlotId, token: Token) {
        self.is_up(link);
        let (received, slice) = self.placed.remove(&token.0).expect("it was placed");
        assert_eq!(received.link, link);
        self.complete(received, slice);
    }

    fn ended(&mut self, token: Token, outcome: Result<(), Fault>) {
        assert!(self.pending.remove(&token.0), "{token:?} is not awaited");
        if let Some((_, _, slice)) = self.reading.get(&token.0) {
            // Nothing is written behind a read's end.
            self.open.remove(&index_of(*slice));
        }
        self.ended.push((token.0, outcome));
    }

    fn revoked(&mut self, _link: SlotId, _key: RemoteKey) {
        self.revoked += 1;
    }
}

/// An endpoint of ours at a station.
pub struct Ours {
    pub machine: Mxoe<u32>,
    pub seen: Seen,
    pub store: Store,
    next_token: u64,
    /// Keys of announced messages, by number.
    pub exposed: BTreeMap<u64, (SlotId, RemoteKey)>,
    next_number: u64,
    endpoint: u8,
    dialect: Dialect,
}

impl Ours {
    pub fn new(random: &mut Random, endpoint: u8, dialect: Dialect) -> Ours {
        let session = 1 + random.below(1 << 31) as u32;
        Ours::in_session(random, endpoint, dialect, session)
    }

    pub fn in_session(random: &mut Random, endpoint: u8, dialect: Dialect, session: u32) -> Ours {
        let config = MxoeConfig {
            endpoint,
            dialect,
            key: KEY,
            accepts: true,
            partners_max: 64,
            frames_max: 200,
            give_up_after: GIVE_UP_AFTER,
            connect_for: GIVE_UP_AFTER,
        };
        Ours::configured(random, config, session)
    }

    pub fn configured(random: &mut Random, config: MxoeConfig, session: u32) -> Ours {
        let MxoeConfig { endpoint, dialect, .. } = config;
        let machine = Mxoe::in_session(config, Random::from_seed(random.next_u64()), session);
        let store = Store::default();
        store.add(Vec::new());
        let seen = Seen {
            store: store.clone(),
            random: Some(Random::from_seed(random.next_u64())),
            ..Seen::default()
        };
        let (exposed, next_token, next_number) = (BTreeMap::new(), 1 << 32, 0);
        Ours { machine, seen, store, next_token, exposed, next_number, endpoint, dialect }
    }

    /// The same endpoint after a restart.
    pub fn reborn(&self, random: &mut Random) -> Ours {
        Ours::new(random, self.endpoint, self.dialect)
    }

    pub fn dialect(&self) -> Dialect {
        self.dialect
    }

    pub fn close(&mut self, link: SlotId) {
        self.machine.order(&Verb::Close { link: of(link) }, &self.store);
    }

    fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    fn order(&mut self, link: SlotId, body: impl Into<Body>, payload: Slice, token: Token) {
        let envelope = Envelope { payload_bytes: payload.len as u32, ..Envelope::default() };
        let header = frame::encode(envelope, &body.into());
        let urgency = Urgency::Urgent;
        let frame = FrameOrder { link: of(link), header, payload, urgency, token };
        match self.machine.send(&frame, &self.store) {
            Ordered::Released => self.store.poison(payload),
            Ordered::Pending => drop(self.seen.pending.insert(token.0)),
            // Its link is over by now.
            Ordered::Refused(_) => {}
        }
    }

    /// Sends a message; its number. `told`: its end is told also if it is short.
    pub fn send(&mut self, link: SlotId, id: u64, len: u64, told: bool) -> u64 {
        let payload = if len == 0 { Slice::NONE } else { self.store.patterned(id, len) };
        self.send_slice(link, id, payload, told)
    }

    /// Sends these bytes.
    pub fn send_bytes(&mut self, link: SlotId, id: u64, bytes: Vec<u8>) -> u64 {
        let payload = self.store.add(bytes);
        self.send_slice(link, id, payload, false)
    }

    fn send_slice(&mut self, link: SlotId, id: u64, payload: Slice, told: bool) -> u64 {
        let len = payload.len;
        self.next_number += 1;
        let number = self.next_number;
        if len <= EAGER_BYTES_MAX {
            let body = EagerBody::whole(id, number, 0, u8::from(told));
            let token = self.token();
            self.order(link, body, payload, token);
            return number;
        }
        let slot = SlotId { index: number as u32, generation: 5 };
        let key = RemoteKey { slot, secret: number + 99 };
        let verb = Verb::Expose { link: of(link), key, region: payload, writable: false };
        self.machine.order(&verb, &self.store);
        self.exposed.insert(number, (link, key));
        let (key_slot, key_secret) = frame::key_to_wire(key);
        let body = RtsBody {
            bits: id.into(),
            message: number.into(),
            channel: 0,
            alone: 0,
            reserved: [0; 6],
            total_bytes: len.into(),
            key_slot,
            key_secret,
        };
        self.order(link, body, Slice::NONE, Token::NONE);
        number
    }

    /// Reads the next announced message; false if there is none.
    pub fn read(&mut self) -> bool {
        let Some((link, message)) = self.seen.announced.pop_front() else { return false };
        let (received, slice) = self.seen.place(link, message.bits, message.bytes);
        let token = self.token();
        let key = message.key.expect("it is announced");
        let (remote, help) = (RemoteLayout::At(0), Help::None);
        let verb = Verb::Read { link: of(link), key, remote, local: slice, token, help };
        match self.machine.order(&verb, &self.store) {
            Ordered::Pending => {
                self.seen.pending.insert(token.0);
                self.seen.reading.insert(token.0, (message, received, slice));
            }
            Ordered::Released => self.finish(link, message, received, slice),
            Ordered::Refused(_) => {}
        }
        true
    }

    /// Reads an announced message, whatever is in it; the order's token.
    pub fn read_into_nothing(&mut self, link: SlotId, message: ForeignMessage) -> u64 {
        let local = self.store.add(vec![0; message.bytes as usize]);
        self.seen.open.insert(index_of(local));
        let (token, key) = (self.token(), message.key.expect("it is announced"));
        let (remote, help) = (RemoteLayout::At(0), Help::None);
        let verb = Verb::Read { link: of(link), key, remote, local, token, help };
        if self.machine.order(&verb, &self.store) == Ordered::Pending {
            self.seen.pending.insert(token.0);
        }
        token.0
    }

    /// Says that an announced message was taken.
    pub fn tell_end(&mut self, link: SlotId, message: ForeignMessage) {
        let body = FinBody {
            message: message.number.into(),
            channel: 0,
            status: 0,
            reserved: [0; 6],
            bytes: message.bytes.into(),
        };
        self.order(link, body, Slice::NONE, Token::NONE);
    }

    fn finish(&mut self, link: SlotId, message: ForeignMessage, received: Received, slice: Slice) {
        let bytes = received.room;
        self.seen.complete(received, slice);
        let body = FinBody {
            message: message.number.into(),
            channel: 0,
            status: 0,
            reserved: [0; 6],
            bytes: bytes.into(),
        };
        self.order(link, body, Slice::NONE, Token::NONE);
    }

    /// Handles ended operations: grants room again, finishes reads, revokes exposures.
    fn settle(&mut self) {
        if std::mem::take(&mut self.seen.full) {
            // There is room now.
            let links: Vec<SlotId> = self.seen.up.keys().copied().collect();
            for link in links {
                let body = CreditBody {
                    eager_limit: 1.into(),
                    eager_ends: 0,
                    rts_long: 0,

                    layouts: 0.into(),
                    reserved: [0; 4],
                    request_limit: 1.into(),
                    rts_limit: 1.into(),
                    update_limit: 0.into(),
                };
                self.order(link, body, Slice::NONE, Token::NONE);
            }
        }
        for (token, outcome) in std::mem::take(&mut self.seen.ended) {
            let Some((message, received, slice)) = self.seen.reading.remove(&token) else {
                continue;
            };
            match outcome {
                Ok(()) => self.finish(received.link, message, received, slice),
                Err(fault) => self.seen.failed.push((received, fault)),
            }
        }
        let done: Vec<u64> = self.seen.finished.iter().map(|(_, end)| end.number).collect();
        for number in done {
            if let Some((link, key)) = self.exposed.remove(&number) {
                self.machine.order(&Verb::Revoke { link: of(link), key }, &self.store);
            }
        }
    }
}

/// Somebody with a station, however he works.
pub trait Node {
    fn packet(&mut self, from: u32, body: &[u8], now: Time);
    /// Time passes; `room` packets may go.
    fn pass(&mut self, now: Time, room: u64) -> Vec<(u32, Vec<u8>)>;
    fn due(&self, now: Time) -> Time;
    fn describe(&self) -> String;
}

impl Node for Ours {
    fn packet(&mut self, from: u32, body: &[u8], now: Time) {
        let counted =
            |it: &MxoeCounters| it.received + it.wrong_endpoint + it.wrong_length + it.wrong_type;
        let before = self.machine.counters();
        self.machine.packet(from, body, now, &mut self.seen);
        let after = self.machine.counters();
        let malformed = after.received == before.received && after.malformed > before.malformed;
        let all = counted(&before) + u64::from(!malformed);
        assert_eq!(counted(&after), all, "a packet is counted once");
    }

    fn pass(&mut self, now: Time, room: u64) -> Vec<(u32, Vec<u8>)> {
        self.machine.drained(now, &mut self.seen);
        self.settle();
        let mut out = vec![0; 70_000];
        let mut packets = Vec::new();
        while (packets.len() as u64) < room
            && let Some((to, len)) = self.machine.next(now, &self.store, &mut out)
        {
            packets.push((to, out[..len].to_vec()));
        }
        self.machine.report(&mut self.seen);
        self.settle();
        packets
    }

    fn due(&self, now: Time) -> Time {
        if self.machine.has_work() {
            return now + Duration::from_micros(1);
        }
        self.machine.deadline()
    }

    fn describe(&self) -> String {
        format!("{:?}", self.machine.counters())
    }
}

/// Two of them.
pub struct World<A, B> {
    pub random: Random,
    pub now: Time,
    pub nodes: (A, B),
    pub air: Air,
    pub trace: u64,
    seed: u64,
}

impl<A: Node, B: Node> World<A, B> {
    pub fn new(seed: u64, nodes: impl FnOnce(&mut Random) -> (A, B)) -> World<A, B> {
        let mut random = Random::from_seed(seed);
        let air = Air::new(random.next_u64());
        let nodes = nodes(&mut random);
        World { random, now: Time(1_000_000), nodes, air, trace: 0, seed }
    }

    /// One moment: arrivals, departures, and then the next moment.
    pub fn step(&mut self) {
        let now = self.now;
        while let Some((to, from, bytes)) = self.air.next(now) {
            match to {
                0 => self.nodes.0.packet(from, &bytes, now),
                _ => self.nodes.1.packet(from, &bytes, now),
            }
            self.trace = traced(self.trace, &bytes);
        }
        let rooms = [1 + self.random.below(40), 1 + self.random.below(40)];
        for (to, bytes) in self.nodes.0.pass(now, rooms[0]) {
            self.air.fly(0, to, bytes, now);
        }
        for (to, bytes) in self.nodes.1.pass(now, rooms[1]) {
            self.air.fly(1, to, bytes, now);
        }
        let next = self.nodes.0.due(now).min(self.nodes.1.due(now)).min(self.air.due());
        let soon = now + Duration::from_millis(5);
        self.now = next.min(soon).max(now + Duration::from_nanos(200));
    }

    /// Steps until something holds.
    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&mut World<A, B>) -> bool) {
        let limit = self.now + Duration::from_secs(300);
        while !holds(self) {
            self.step();
            let told = || (self.nodes.0.describe(), self.nodes.1.describe());
            assert!(
                self.now <= limit,
                "seed {}, {what}: not in five minutes; {:#?}",
                self.seed,
                told()
            );
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
