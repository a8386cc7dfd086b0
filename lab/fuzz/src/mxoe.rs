//! The machine of MXoE under arbitrary input: bodies from a few stations, orders of the layer above, and time. Its
//! guarantees are asserted on the way.

use std::collections::{BTreeMap, BTreeSet};
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
use ropewalk_wire::mxoe::{Dialect, Order, Packet};

use crate::memory::{Nowhere, in_memory};

const ENDPOINT: u8 = 3;
const SESSION: u32 = 0x1122_3344;
const KEY: u32 = 0x1234_5678;
/// All memory that there is.
const MEMORY: Nowhere = Nowhere::of(100_000);

#[derive(Default)]
struct Seen {
    up: BTreeSet<SlotId>,
    down: BTreeSet<SlotId>,
    /// Number and key of the announced messages that nobody has read.
    announced: Vec<(SlotId, ForeignMessage)>,
    placed: BTreeMap<u64, SlotId>,
    pending: BTreeSet<u64>,
    next: BTreeMap<SlotId, u64>,
    tokens: u64,
    /// Messages find no room.
    full: bool,
}

impl Seen {
    fn is_up(&self, link: SlotId) {
        assert!(self.up.contains(&link) && !self.down.contains(&link), "{link:?} is not up");
    }
}

in_memory!(Seen, MEMORY);

impl LinkEvents<u8> for Seen {
    fn foreign_up(&mut self, link: SlotId, _who: Who<u8>, _accepted: bool) {
        assert!(self.up.insert(link) && !self.down.contains(&link), "{link:?} is up twice");
    }

    fn link_down(&mut self, link: SlotId, _fault: Fault) {
        assert!(self.down.insert(link), "two last words");
        self.announced.retain(|(other, _)| *other != link);
        self.placed.retain(|_, other| *other != link);
    }

    fn message(&mut self, link: SlotId, message: ForeignMessage, _whole: bool) -> Taken {
        self.is_up(link);
        if self.full {
            return Taken::Later;
        }
        let next = self.next.entry(link).or_insert(message.number);
        assert!(message.number >= *next, "it was told before");
        *next = message.number + 1;
        if message.key.is_some() {
            self.announced.push((link, message));
            return Taken::Nothing;
        }
        if message.bytes == 0 || message.bits & 1 == 1 {
            return Taken::Nothing;
        }
        self.tokens += 1;
        self.placed.insert(self.tokens, link);
        Taken::Into { slice: MEMORY.slice(message.bytes / 2 + 1), token: Token(self.tokens) }
    }

    fn finished(&mut self, link: SlotId, _end: ForeignEnd) {
        self.is_up(link);
    }

    fn received(&mut self, link: SlotId, token: Token) {
        self.is_up(link);
        assert_eq!(self.placed.remove(&token.0), Some(link), "it was not placed");
    }

    fn ended(&mut self, token: Token, _outcome: Result<(), Fault>) {
        assert!(self.pending.remove(&token.0), "{token:?} is not awaited");
    }

    fn revoked(&mut self, _link: SlotId, _key: RemoteKey) {}
}

struct Scene {
    machine: Mxoe<u8>,
    seen: Seen,
    now: Time,
    dialect: Dialect,
    number: u64,
    keys: Vec<(SlotId, RemoteKey)>,
}

impl Scene {
    fn frame(&mut self, slot: SlotId, body: impl Into<Body>, payload: Slice) {
        let envelope = Envelope { payload_bytes: payload.len as u32, ..Envelope::default() };
        let header = frame::encode(envelope, &body.into());
        let (link, urgency) = (LinkId { rail: 0, slot }, Urgency::Urgent);
        self.number += 1;
        let token = Token(1 << 40 | self.number);
        let order = FrameOrder { link, header, payload, urgency, token };
        if self.machine.send(&order, &MEMORY) == Ordered::Pending {
            self.seen.pending.insert(token.0);
        }
    }

    fn announce(&mut self, slot: SlotId, len: u64) {
        let (index, secret) = (self.number as u32, 5);
        let key = RemoteKey { slot: SlotId { index, generation: 1 }, secret };
        let link = LinkId { rail: 0, slot };
        let expose = Verb::Expose { link, key, region: MEMORY.slice(len), writable: false };
        self.machine.order(&expose, &MEMORY);
        self.keys.push((slot, key));
        let (key_slot, key_secret) = frame::key_to_wire(key);
        let body = RtsBody {
            bits: 2.into(),
            message: self.number.into(),
            channel: 0,
            alone: 0,
            reserved: [0; 6],
            total_bytes: len.into(),
            key_slot,
            key_secret,
        };
        self.frame(slot, body, Slice::NONE);
    }

    fn read(&mut self) {
        let Some((slot, message)) = self.seen.announced.pop() else { return };
        let (link, Some(key)) = (LinkId { rail: 0, slot }, message.key) else { return };
        let (remote, help, local) = (RemoteLayout::At(0), Help::None, MEMORY.slice(message.bytes));
        self.number += 1;
        let token = Token(1 << 40 | self.number);
        let read = Verb::Read { link, key, remote, local, token, help };
        if self.machine.order(&read, &MEMORY) == Ordered::Pending {
            self.seen.pending.insert(token.0);
        }
        if self.number.is_multiple_of(3)
            && self.machine.order(&Verb::CancelAccess { link, token }, &MEMORY) == Ordered::Released
        {
            self.seen.pending.remove(&token.0);
        }
        if self.number.is_multiple_of(2) {
            let body = FinBody {
                message: message.number.into(),
                channel: 0,
                status: 0,
                reserved: [0; 6],
                bytes: message.bytes.into(),
            };
            self.frame(slot, body, Slice::NONE);
        }
    }

    /// One action of the layer above.
    fn order(&mut self, what: u8, which: u8) {
        if what.is_multiple_of(10) {
            let _ = self.machine.connect(which % 4, which >> 2, KEY, self.now);
            return;
        }
        let links: Vec<SlotId> = self.seen.up.difference(&self.seen.down).copied().collect();
        if links.is_empty() {
            return;
        }
        let slot = links[usize::from(which) % links.len()];
        match what % 10 {
            1..=3 => {
                let len = [0, 20, 100, 3000][usize::from(which % 4)];
                let body = EagerBody::whole(1, self.number, 0, which & 1);
                self.frame(slot, body, MEMORY.slice(len));
            }
            4 => self.announce(slot, 40_000),
            5 => self.read(),
            6 => {
                if let Some((slot, key)) = self.keys.pop() {
                    let link = LinkId { rail: 0, slot };
                    self.machine.order(&Verb::Revoke { link, key }, &MEMORY);
                }
            }
            7 => {
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
                self.seen.full = which & 1 == 1;
                self.frame(slot, body, Slice::NONE);
            }
            8 => {
                let (link, placed) = (LinkId { rail: 0, slot }, self.seen.placed.pop_first());
                if let Some((token, of)) = placed {
                    let (link, token) = (LinkId { slot: of, ..link }, Token(token));
                    if self.machine.order(&Verb::CancelReceive { link, token }, &MEMORY)
                        != Ordered::Released
                    {
                        self.seen.placed.insert(token.0, of);
                    }
                }
            }
            _ if which < 32 => {
                self.machine.order(&Verb::Close { link: LinkId { rail: 0, slot } }, &MEMORY);
            }
            _ => {}
        }
    }

    /// Everything that leaves; most of it is legal.
    fn flush(&mut self) {
        self.machine.drained(self.now, &mut self.seen);
        let mut out = vec![0; self.dialect.body_bytes_max().max(64)];
        for _ in 0..200 {
            let Some((_, len)) = self.machine.next(self.now, &MEMORY, &mut out) else { break };
            assert!(Packet::parse(&out[..len], self.dialect).is_ok(), "it speaks otherwise");
        }
        self.machine.report(&mut self.seen);
    }
}

/// The input: a dialect, then bodies behind a byte that names the sender (below 128), each with its length in a byte,
/// and filled up with zeroes to a length that fragments and replies have; orders; and time.
pub fn bodies(input: &[u8]) {
    play(input);
}

fn play(input: &[u8]) -> MxoeCounters {
    let Some((choice, mut rest)) = input.split_first() else { return MxoeCounters::default() };
    let dialect = match choice % 3 {
        0 => Dialect::native(1500, Order::Big),
        1 => Dialect::native(1500, Order::Little),
        _ => Ok(Dialect::compatible()),
    };
    let Ok(dialect) = dialect else { unreachable!("they are legal") };
    let config = MxoeConfig {
        endpoint: ENDPOINT,
        dialect,
        key: KEY,
        accepts: true,
        partners_max: 6,
        frames_max: 40,
        give_up_after: Duration::from_secs(5),
        connect_for: Duration::from_secs(5),
    };
    let machine = Mxoe::in_session(config, Random::from_seed(1), SESSION);
    let (seen, now) = (Seen::default(), Time(1_000_000));
    let mut scene = Scene { machine, seen, now, dialect, number: 0, keys: Vec::new() };
    let mut body = vec![0; dialect.body_bytes_max()];
    while let [kind, len, tail @ ..] = rest {
        rest = tail;
        match *kind {
            0..128 => {
                let (bytes, tail) = tail.split_at(usize::from(*len).min(tail.len()));
                rest = tail;
                body.fill(0);
                body[..bytes.len().min(200)].copy_from_slice(&bytes[..bytes.len().min(200)]);
                let len = if kind & 64 == 0 { bytes.len().min(200) } else { body.len() };
                scene.machine.packet(kind % 4, &body[..len], scene.now, &mut scene.seen);
                scene.flush();
            }
            128..240 => scene.order(*kind, *len),
            _ => {
                let time = Duration::from_micros(10) * (1 << (len % 22));
                scene.now = scene.now + time;
                scene.flush();
            }
        }
    }
    // Nobody says anything any more: everything comes to an end.
    for _ in 0..400 {
        scene.now = scene.now + Duration::from_millis(50);
        scene.flush();
    }
    assert!(scene.seen.pending.is_empty(), "an order without an outcome");
    scene.machine.counters()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_inputs_reach_behind_the_beginning() {
        let of = |name: &str| {
            let path = crate::corpus::folder("mxoe_machine").join(name);
            play(&std::fs::read(path).expect("it is kept"))
        };
        for order in ["big", "little"] {
            let it = of(&format!("messages_{order}"));
            assert_eq!((it.messages_received, it.messages_sent, it.early), (4, 2, 1), "{it:?}");
            assert_eq!(of(&format!("large_theirs_{order}")).bytes_native, 2000);
            assert_eq!(of(&format!("large_ours_{order}")).bytes_native, 40_000);
            let it = of(&format!("refusals_{order}"));
            assert_eq!((it.nacks_received, it.messages_sent), (2, 1), "{it:?}");
        }
        let it = of("compatible");
        assert_eq!((it.messages_received, it.postponed), (2, 1), "{it:?}");
    }
}
