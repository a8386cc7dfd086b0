//! Ours in the place of a real host with Open-MX: it receives the same packets, its user makes the same calls, and
//! its packets have to be right for the host at the other end.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Slice;
use ropewalk_base::random::Random;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{
    ForeignEnd, ForeignMessage, FrameOrder, Help, Ordered, RemoteKey, RemoteLayout, Token, Urgency,
    Verb,
};
use ropewalk_transport::mxoe::{Mxoe, MxoeConfig};
use ropewalk_transport::{Bytes, LinkEvents, PacketProtocol, Taken, Who};
use ropewalk_wire::frame::{self, Body, EagerBody, Envelope, FinBody, RtsBody};
use ropewalk_wire::mxoe::*;

use crate::recorded::{Frame, capture, dialect, messages, packet};
use crate::world::{KEY, Store, of};

/// Endpoints and sessions of the two hosts.
const ENDPOINTS: [u8; 2] = [3, 0];
const SESSIONS: [u32; 2] = [0xf499_a5a0, 0x08e3_678b];
/// After so long a silence nothing is left to be said.
const PAUSE: Duration = Duration::from_millis(5);

fn station(host: u32) -> Station {
    Station([2, 0, 0, 0, 0, host as u8 + 1])
}

/// The user's view.
#[derive(Default)]
struct User {
    store: Store,
    link: Option<SlotId>,
    /// In the order in which they were told.
    received: Vec<(u64, Slice)>,
    whole: usize,
    announced: Vec<ForeignMessage>,
    reading: BTreeMap<u64, ForeignMessage>,
    /// Large messages that are read and whose ends are to be told.
    ended: Vec<ForeignMessage>,
    finished: Vec<ForeignEnd>,
}

impl Bytes for User {
    fn read(&self, from: Slice, to: &mut [u8]) {
        self.store.read(from, to);
    }

    fn write(&self, to: Slice, from: &[u8]) {
        self.store.write(to, from);
    }
}

impl LinkEvents<u32> for User {
    fn foreign_up(&mut self, link: SlotId, _who: Who<u32>, _accepted: bool) {
        assert_eq!(self.link.replace(link), None, "one link");
    }

    fn link_down(&mut self, _link: SlotId, fault: Fault) {
        panic!("the link ends: {fault:?}");
    }

    fn message(&mut self, _link: SlotId, message: ForeignMessage, _whole: bool) -> Taken {
        let slice = self.store.add(vec![0xEE; message.bytes as usize]);
        self.received.push((message.bits, slice));
        if message.key.is_some() {
            self.announced.push(message);
            return Taken::Nothing;
        }
        if message.bytes == 0 {
            self.whole += 1;
            return Taken::Nothing;
        }
        Taken::Into { slice, token: Token(self.received.len() as u64) }
    }

    fn finished(&mut self, _link: SlotId, end: ForeignEnd) {
        self.finished.push(end);
    }

    fn received(&mut self, _link: SlotId, _token: Token) {
        self.whole += 1;
    }

    fn ended(&mut self, token: Token, outcome: Result<(), Fault>) {
        outcome.expect("it is done");
        if let Some(message) = self.reading.remove(&token.0) {
            self.ended.push(message);
        }
    }

    fn revoked(&mut self, _link: SlotId, _key: RemoteKey) {}
}

/// The messages of the other host so far, with the bytes that are missing.
#[derive(Default)]
struct Heard {
    /// Bytes that are missing of each message.
    missing: BTreeMap<u16, u32>,
}

impl Heard {
    fn packet(&mut self, body: &[u8]) {
        match packet(body).1 {
            Packet::Tiny(message, _) | Packet::Small(message, _) => {
                self.missing.insert(message.sequence.0, 0);
            }
            Packet::Rendezvous(it) => drop(self.missing.insert(it.message.sequence.0, 0)),
            Packet::Notify(it) => drop(self.missing.insert(it.sequence.0, 0)),
            Packet::Medium(piece, bytes) => {
                let all = piece.total_bytes;
                let missing = self.missing.entry(piece.message.sequence.0).or_insert(all);
                *missing -= bytes.len() as u32;
            }
            _ => {}
        }
    }

    /// Everything before this number is here.
    fn next(&self) -> u16 {
        (1..).find(|number| self.missing.get(number) != Some(&0)).unwrap()
    }
}

/// The acknowledgement in a packet, if it has one.
fn acknowledged(packet: &Packet<'_>) -> Option<u16> {
    match packet {
        Packet::Tiny(message, _) | Packet::Small(message, _) => Some(message.acknowledged.0),
        Packet::Medium(piece, _) => Some(piece.message.acknowledged.0),
        Packet::Rendezvous(it) => Some(it.message.acknowledged.0),
        Packet::Notify(it) => Some(it.acknowledged.0),
        Packet::Ack(it) => Some(it.acknowledged.0),
        _ => None,
    }
}

struct Replay {
    me: usize,
    machine: Mxoe<u32>,
    user: User,
    messages: BTreeMap<u16, (u64, Vec<u8>)>,
    begun: BTreeSet<u16>,
    keys: Vec<(u64, RemoteKey)>,
    now: Time,
    said: Vec<Vec<u8>>,
    heard: Heard,
    acknowledged: u16,
    acks: u32,
    /// The number of our attempt to connect, and our handles by the use of the region.
    connect: u8,
    handles: BTreeMap<u8, u32>,
    /// The real host's uses by its handles.
    uses: BTreeMap<u32, u8>,
}

impl Replay {
    fn new(me: usize, frames: &[Frame]) -> Replay {
        let config = MxoeConfig {
            endpoint: ENDPOINTS[me],
            dialect: dialect(),
            key: KEY,
            accepts: true,
            partners_max: 4,
            frames_max: 200,
            give_up_after: Duration::from_secs(20),
            connect_for: Duration::from_secs(20),
        };
        let machine = Mxoe::in_session(config, Random::from_seed(me as u64), SESSIONS[me]);
        Replay {
            me,
            machine,
            user: User::default(),
            messages: messages(frames, station(me as u32)),
            begun: BTreeSet::new(),
            keys: Vec::new(),
            now: frames[0].at,
            said: Vec::new(),
            heard: Heard::default(),
            acknowledged: 1,
            acks: 0,
            connect: 0,
            handles: BTreeMap::new(),
            uses: BTreeMap::new(),
        }
    }

    fn other(&self) -> usize {
        1 - self.me
    }

    fn order(&mut self, body: impl Into<Body>, payload: Slice) {
        let envelope = Envelope { payload_bytes: payload.len as u32, ..Envelope::default() };
        let header = frame::encode(envelope, &body.into());
        let link = of(self.user.link.expect("there is a link"));
        let (urgency, token) = (Urgency::Urgent, Token::NONE);
        let order = FrameOrder { link, header, payload, urgency, token };
        assert_eq!(self.machine.send(&order, &self.user.store), Ordered::Released);
    }

    /// The user sends the message that the real one sent under this number.
    fn send(&mut self, sequence: u16, announced: bool) {
        let (bits, bytes) = self.messages[&sequence].clone();
        let total_bytes = bytes.len() as u64;
        let slice = self.user.store.add(bytes);
        if !announced {
            let body = EagerBody::whole(bits, sequence.into(), 0, 1);
            return self.order(body, slice);
        }
        let key = RemoteKey { slot: SlotId { index: sequence.into(), generation: 1 }, secret: 7 };
        let link = of(self.user.link.unwrap());
        let expose = Verb::Expose { link, key, region: slice, writable: false };
        self.machine.order(&expose, &self.user.store);
        self.keys.push((sequence.into(), key));
        let (key_slot, key_secret) = frame::key_to_wire(key);
        let body = RtsBody {
            bits: bits.into(),
            message: u64::from(sequence).into(),
            channel: 0,
            alone: 0,
            reserved: [0; 6],
            total_bytes: total_bytes.into(),
            key_slot,
            key_secret,
        };
        self.order(body, Slice::NONE);
    }

    /// The user's own actions: it reads announced messages, and reports the end of each read.
    fn user(&mut self) {
        let user = &mut self.user;
        for message in std::mem::take(&mut user.announced) {
            let index = user.received.len() - 1;
            let (local, key) = (user.received[index].1, message.key.unwrap());
            let (link, remote, help) = (of(user.link.unwrap()), RemoteLayout::At(0), Help::None);
            let token = Token(1_000_000 + message.number);
            let read = Verb::Read { link, key, remote, local, token, help };
            match self.machine.order(&read, &user.store) {
                Ordered::Pending => drop(user.reading.insert(token.0, message)),
                Ordered::Released => user.ended.push(message),
                Ordered::Refused(fault) => panic!("{fault:?}"),
            }
        }
        for message in std::mem::take(&mut self.user.ended) {
            self.user.whole += 1;
            let body = FinBody {
                message: message.number.into(),
                channel: 0,
                status: 0,
                reserved: [0; 6],
                bytes: message.bytes.into(),
            };
            self.order(body, Slice::NONE);
        }
        for end in self.user.finished.clone() {
            let of_end = |(number, _): &(u64, RemoteKey)| *number == end.number;
            if let Some(at) = self.keys.iter().position(of_end) {
                let (link, key) = (of(self.user.link.unwrap()), self.keys.remove(at).1);
                self.machine.order(&Verb::Revoke { link, key }, &self.user.store);
            }
        }
    }

    /// Everything that the machine has to say now.
    fn pass(&mut self) {
        self.machine.drained(self.now, &mut self.user);
        self.user();
        let mut out = vec![0; 2000];
        while let Some((to, len)) = self.machine.next(self.now, &self.user.store, &mut out) {
            assert_eq!(to, self.other() as u32);
            let body = out[..len].to_vec();
            self.judge(&body);
            self.said.push(body);
        }
        self.machine.report(&mut self.user);
        self.user();
    }

    /// Lets time pass.
    fn run(&mut self, until: Time) {
        loop {
            self.pass();
            let next = match self.machine.has_work() {
                true => self.now + Duration::from_micros(1),
                false => self.machine.deadline().max(self.now + Duration::from_micros(1)),
            };
            if next > until {
                break;
            }
            self.now = next;
        }
        self.now = self.now.max(until);
    }

    /// A packet of ours, by the rules of who gets it.
    fn judge(&mut self, body: &[u8]) {
        let (index, said) = packet(body);
        assert!(body.len() + ETHERNET_BYTES >= FRAME_BYTES_MIN);
        let (to, from) = (ENDPOINTS[self.other()], ENDPOINTS[self.me]);
        let (theirs, ours) = (SESSIONS[self.other()], SESSIONS[self.me]);
        match said {
            Packet::Connect(it) => {
                assert_eq!((it.to, it.from, it.session, it.index), (to, from, ours, 1));
                self.connect = it.connect;
                return;
            }
            Packet::ConnectReply(it) => {
                assert_eq!((it.to, it.from, it.index, it.status), (to, from, 1, 0));
                assert_eq!((it.asker, it.session), (theirs, ours));
            }
            Packet::Ack(it) => {
                assert_eq!((it.to, it.from, it.session), (to, from, theirs));
                assert!(it.number > self.acks, "each is newer");
                self.acks = it.number;
            }
            Packet::Tiny(it, _)
            | Packet::Small(it, _)
            | Packet::Medium(Fragment { message: it, .. }, _)
            | Packet::Rendezvous(Rendezvous { message: it, .. }) => {
                assert_eq!((it.to, it.from, it.session), (to, from, theirs));
            }
            Packet::Notify(it) => assert_eq!((it.to, it.from, it.session), (to, from, theirs)),
            Packet::Pull(it) => {
                assert_eq!((it.to, it.from, it.session), (to, from, theirs));
                assert_eq!(it.magic, Pull::magic_of(from));
                self.handles.insert(it.region_sequence, it.handle);
            }
            Packet::PullReply(it, _) => {
                assert_eq!((index, it.magic), (0, Pull::magic_of(to)));
                return;
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(index, 1, "{said:?}");
        if let Some(number) = acknowledged(&said) {
            assert!(self.acknowledged <= number && number <= self.heard.next(), "{said:?}");
            self.acknowledged = number;
        }
    }

    /// The other host said this: its numbers and handles become those of this dialogue.
    fn hear(&mut self, frame: &Frame) {
        let (index, mut it) = packet(&frame.body);
        let mut body = frame.body.clone();
        match &mut it {
            Packet::ConnectReply(reply) => reply.connect = self.connect,
            Packet::PullReply(reply, _) => reply.handle = self.handles[&self.uses[&reply.handle]],
            _ => {}
        }
        if matches!(it, Packet::ConnectReply(_) | Packet::PullReply(..)) {
            let mut header = [0; HEADER_BYTES_MAX];
            let len = it.emit(index, dialect(), &mut header);
            body[..len].copy_from_slice(&header[..len]);
        }
        self.heard.packet(&frame.body);
        self.machine.packet(self.other() as u32, &body, self.now, &mut self.user);
        self.user();
    }

    /// The real host said this in our place: if it was its user's doing, ours does the same.
    fn instead(&mut self, frame: &Frame) {
        let (sequence, announced) = match packet(&frame.body).1 {
            Packet::Connect(it) if self.user.link.is_none() => {
                let (to, now) = (self.other(), self.now);
                self.machine.connect(to as u32, ENDPOINTS[to], it.key, now).unwrap();
                return;
            }
            Packet::Pull(it) => {
                self.uses.insert(it.handle, it.region_sequence);
                return;
            }
            Packet::Tiny(message, _) | Packet::Small(message, _) => (message.sequence.0, false),
            Packet::Medium(piece, _) => (piece.message.sequence.0, false),
            Packet::Rendezvous(it) => (it.message.sequence.0, true),
            _ => return,
        };
        if self.begun.insert(sequence) {
            self.send(sequence, announced);
        }
    }
}

/// The packets with sequence numbers, each once and without its acknowledgement: all parts of messages.
fn numbered(bodies: &[Vec<u8>]) -> BTreeMap<(u16, u8), String> {
    let mut all = BTreeMap::new();
    for body in bodies {
        let (_, mut it) = packet(body);
        let fragment = if let Packet::Medium(piece, _) = it { piece.fragment } else { 0 };
        let sequence = match &mut it {
            Packet::Tiny(message, _)
            | Packet::Small(message, _)
            | Packet::Medium(Fragment { message, .. }, _)
            | Packet::Rendezvous(Rendezvous { message, .. }) => {
                message.acknowledged = Sequence(0);
                message.sequence.0
            }
            Packet::Notify(notify) => {
                notify.acknowledged = Sequence(0);
                notify.sequence.0
            }
            _ => continue,
        };
        all.insert((sequence, fragment), format!("{it:?}"));
    }
    all
}

#[test]
fn in_the_place_of_a_real_host_ours_says_what_that_one_said() {
    for (me, name) in [(0, "open-mx-first-host.pcap"), (1, "open-mx-second-host.pcap")] {
        for other_view in [false, true] {
            let names = ["open-mx-first-host.pcap", "open-mx-second-host.pcap"];
            let name = if other_view { names[1 - me] } else { name };
            one_side(me, name);
        }
    }
}

fn one_side(me: usize, name: &str) {
    let frames = capture(name);
    let mut replay = Replay::new(me, &frames);
    let (mine, theirs) = (station(me as u32), station(1 - me as u32));
    let mut real = Vec::new();
    for (position, frame) in frames.iter().enumerate() {
        let kind = Type::from_u8(frame.body[INDEX_BYTES]).unwrap();
        if [Type::Raw, Type::HostQuery, Type::HostReply].contains(&kind) {
            continue;
        }
        if replay.now < frame.at {
            replay.run(frame.at);
        }
        if frame.ethernet.source == mine {
            real.push(frame.body.clone());
            replay.instead(frame);
        } else {
            assert_eq!(frame.ethernet.source, theirs);
            replay.hear(frame);
        }
        replay.pass();
        let silent = frames.get(position + 1).is_none_or(|next| next.at.since(frame.at) > PAUSE);
        if silent && replay.user.link.is_some() {
            replay.run(frame.at + PAUSE);
            assert_eq!(replay.acknowledged, replay.heard.next(), "{name}, frame {position}");
        }
    }
    replay.run(replay.now + Duration::from_secs(1));
    let (said, wanted) = (numbered(&replay.said), numbered(&real));
    for (number, packet) in &wanted {
        assert_eq!(said.get(number), Some(packet), "{name}, number {number:?}");
    }
    assert_eq!(said.len(), wanted.len());
    assert!(wanted.len() >= 80, "{}", wanted.len());
    let replies = |bodies: &[Vec<u8>]| -> Vec<Vec<u8>> {
        let is_reply = |body: &&Vec<u8>| body[INDEX_BYTES] == Type::PullReply as u8;
        bodies.iter().filter(is_reply).cloned().collect()
    };
    let (said, wanted) = (replies(&replay.said), replies(&real));
    let packets = |bodies: &[Vec<u8>]| {
        bodies.iter().map(|it| format!("{:?}", packet(it).1)).collect::<Vec<_>>()
    };
    assert!(packets(&said) == packets(&wanted) && said.len() > 350, "{} replies", said.len());
    // All that the other one sent is here, and all that was sent has come to its end.
    let expected: Vec<(u64, Vec<u8>)> = messages(&frames, theirs).into_values().collect();
    let user = &replay.user;
    let received: Vec<(u64, Vec<u8>)> =
        user.received.iter().map(|(bits, slice)| (*bits, user.store.bytes(*slice))).collect();
    assert!(received == expected, "{name}: {} of {}", received.len(), expected.len());
    assert_eq!((user.whole, user.finished.len()), (expected.len(), replay.messages.len()));
    assert!(!replay.machine.owes() && user.reading.is_empty());
    let counters = replay.machine.counters();
    assert_eq!((counters.malformed, counters.nacks_sent), (0, 0), "{counters:?}");
}
