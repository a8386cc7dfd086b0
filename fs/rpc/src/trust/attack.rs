//! For fuzzers: a server of a cluster, members that are honest, and somebody who sees and changes all
//! that they say, as the input orders it.

use std::collections::BTreeSet;

use ropewalk_base::ids::{EndpointId, Incarnation};
use ropewalk_wire::fs::head::{CallHead, HEAD_BYTES, Service};
use ropewalk_wire::fs::trust::Role;

use super::*;

const SERVER: u64 = 100;
const STEPS_MAX: usize = 64;
const CALLS_MAX: usize = 32;
const MEMBERS: [Member; 3] = [
    Member { role: Role::Metadata, number: 0 },
    Member { role: Role::Data, number: 3 },
    Member { role: Role::Administrator, number: 0 },
];

fn origin(number: u64) -> Origin {
    Origin { endpoint: EndpointId(u128::from(number)), incarnation: Incarnation(number) }
}

fn proof(byte: u8, member: Member) -> Proof {
    Proof { secret: Secret::new([byte; SECRET_BYTES]), member }
}

/// A channel, and what the server has to have noticed of it.
struct Made {
    from: u64,
    caller: Caller,
    accepted: Time,
    admitted: BTreeSet<u64>,
}

impl Made {
    /// Whether a call of this counter has to be let in.
    fn lets(&self, counter: u64, now: Time) -> bool {
        match self.admitted.last() {
            None => now.since(self.accepted) <= FRESH,
            Some(newest) => !self.admitted.contains(&counter) && counter + WINDOW > *newest,
        }
    }
}

/// A call as it leaves its member.
struct Call {
    channel: usize,
    counter: u64,
    bytes: Vec<u8>,
}

struct World<'a> {
    gate: Gate,
    now: Time,
    channels: Vec<Made>,
    calls: Vec<Call>,
    nonces: u128,
    input: &'a [u8],
}

/// Runs what the input orders; panics where something is let in that no member said, or is let in twice, or
/// where an honest call is not.
pub fn channel(input: &[u8]) {
    let secret = Secret::new([1; SECRET_BYTES]);
    let mut world = World {
        gate: Gate::new(secret, origin(SERVER), 7),
        now: Time(1_000_000_000),
        channels: Vec::new(),
        calls: Vec::new(),
        nonces: 0,
        input,
    };
    for _ in 0..STEPS_MAX {
        let Some(step) = world.byte() else { return };
        match step % 7 {
            0 => world.introduce(),
            1 => world.seal(),
            2 => world.deliver(),
            3 => world.deliver_changed(),
            4 => world.deliver_from_elsewhere(),
            5 => world.invent(),
            _ => {
                let pause = u64::from(world.byte().unwrap_or(0));
                world.now = world.now + Duration::from_millis(pause * 250);
            }
        }
        let begun = world.channels.iter().filter(|made| !made.admitted.is_empty()).count();
        assert_eq!(world.gate.channels.borrow().len(), begun, "who only talks is not remembered");
    }
}

impl World<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.input.split_first()?;
        self.input = rest;
        Some(*first)
    }

    /// One of so many, if there are any.
    fn choice(&mut self, count: usize) -> Option<usize> {
        let choice = usize::from(self.byte()?);
        choice.checked_rem(count)
    }

    fn admit(&self, from: u64, bytes: &[u8]) -> Option<Proven> {
        let (message, seal) = Seal::split(bytes).ok()?;
        self.gate.admit(origin(from), message, &seal, self.now)
    }

    /// Somebody introduces himself: a member, one with another secret, or a member whose word is changed
    /// or comes from elsewhere.
    fn introduce(&mut self) {
        let (Some(how), Some(who)) = (self.byte(), self.byte()) else { return };
        let (from, member) = (u64::from(who % 4), MEMBERS[usize::from(who / 4 % 3)]);
        self.nonces += 1;
        let nonce = self.nonces;
        let proof = proof(if how % 8 == 1 { 2 } else { 1 }, member);
        let mut word = proof.introduce(origin(from), nonce);
        let mut came_from = from;
        match how % 8 {
            2 => word.tag[usize::from(how / 8)] ^= 1,
            3 => word.nonce ^= 1 << (how / 8),
            4 => word.member.number ^= 1 << (how / 8),
            5 => word.member = MEMBERS[usize::from((who / 4 + 1) % 3)],
            6 => came_from += 1,
            _ => {}
        }
        let answer = self.gate.accept(origin(came_from), &word, self.now);
        assert_eq!(
            answer.is_some(),
            matches!(how % 8, 0 | 7),
            "whoever knows the secret is a member"
        );
        let Some(answer) = answer else { return };
        let ends = (origin(from), origin(SERVER));
        for forged in [
            Acceptance { time: answer.time ^ 1, ..answer },
            Acceptance { cookie: answer.cookie ^ 1 << (how / 8), ..answer },
        ] {
            assert!(proof.accepted(ends, nonce, &forged).is_none(), "a changed answer is taken");
        }
        assert!(proof.accepted((ends.0, origin(SERVER + 1)), nonce, &answer).is_none());
        let caller = proof.accepted(ends, nonce, &answer).expect("it is the server's answer");
        let (accepted, admitted) = (self.now, BTreeSet::new());
        self.channels.push(Made { from, caller, accepted, admitted });
    }

    fn seal(&mut self) {
        let Some(channel) = self.choice(self.channels.len()) else { return };
        let len = usize::from(self.byte().unwrap_or(0) % 9).min(self.input.len());
        let (message, rest) = self.input.split_at(len);
        self.input = rest;
        if self.calls.len() < CALLS_MAX {
            let mut bytes = message.to_vec();
            let counter = self.channels[channel].caller.seal(&mut bytes);
            self.calls.push(Call { channel, counter, bytes });
        }
    }

    /// A call comes as it was sent, for the first time or once more.
    fn deliver(&mut self) {
        let Some(at) = self.choice(self.calls.len()) else { return };
        let call = &self.calls[at];
        let made = &self.channels[call.channel];
        let proven = self.admit(made.from, &call.bytes);
        assert_eq!(proven.is_some(), made.lets(call.counter, self.now), "call {}", call.counter);
        let Some(proven) = proven else { return };
        assert_eq!((proven.member, proven.counter), (made.caller.terms.member, call.counter));
        let tag = proven.key.tag_reply(proven.counter, b"done");
        assert!(made.caller.is_answer(call.counter, b"done", &tag));
        assert!(!made.caller.is_answer(call.counter, b"fail", &tag));
        assert!(!made.caller.is_answer(call.counter + 1, b"done", &tag));
        let (channel, counter) = (call.channel, call.counter);
        self.channels[channel].admitted.insert(counter);
    }

    /// A call of which somebody changed a bit, or cut off the beginning.
    fn deliver_changed(&mut self) {
        let Some(at) = self.choice(self.calls.len()) else { return };
        let (place, bit) = (self.byte().unwrap_or(0), self.byte().unwrap_or(0));
        let call = &self.calls[at];
        let mut bytes = call.bytes.clone();
        if bit >= 128 {
            bytes.drain(..1 + usize::from(place) % bytes.len());
        } else {
            let place = usize::from(place) % bytes.len();
            bytes[place] ^= 1 << (bit % 8);
        }
        let from = self.channels[call.channel].from;
        assert!(self.admit(from, &bytes).is_none(), "a changed call is let in");
    }

    fn deliver_from_elsewhere(&mut self) {
        let Some(at) = self.choice(self.calls.len()) else { return };
        let step = 1 + u64::from(self.byte().unwrap_or(0) % 3);
        let call = &self.calls[at];
        let from = (self.channels[call.channel].from + step) % 4;
        assert!(self.admit(from, &call.bytes).is_none(), "somebody else's call is let in");
    }

    /// Bytes of nobody's, with the numbers of a channel that is there.
    fn invent(&mut self) {
        let Some(at) = self.choice(self.channels.len()) else { return };
        let made = &self.channels[at];
        let Terms { member, nonce, time, cookie, .. } = made.caller.terms;
        let mut tag = [0; 32];
        let len = self.input.len().min(tag.len());
        tag[..len].copy_from_slice(&self.input[..len]);
        let counter = u64::from(self.input.first().copied().unwrap_or(1));
        let seal = Seal { member, nonce, time, cookie, counter, tag };
        let proven = self.gate.admit(origin(made.from), self.input, &seal, self.now);
        assert!(proven.is_none(), "an invented call is let in");
        assert!(self.admit(made.from, self.input).is_none());
        self.input = &self.input[len..];
    }
}

/// A data server judges capabilities: one that was made for something else, or was changed in any way, is none.
pub fn capability(input: &[u8]) {
    let Some((given, rest)) = input.split_first_chunk::<18>() else { return };
    let number = |at: usize| u64::from(given[at]);
    let grantor = Grantor::new(&Secret::new([7; SECRET_BYTES]));
    let of = (number(0), (number(1), given[2].into()));
    let rights = (given[3] & 1 != 0, given[3] & 2 != 0);
    let expires = u32::from_le_bytes([given[4], given[5], given[6], given[7]]);
    let good = grantor.capability(of.0, of.1, rights, expires);
    // A call's head carries it to the server.
    let head = CallHead { session: of.0, capability: Some(good), ..CallHead::free(Service::Data) };
    let mut bytes = Vec::new();
    head.encode(&mut bytes);
    for (at, change) in (8..).zip(&given[8..]).chain((HEAD_BYTES..).zip(rest)) {
        if let Some(byte) = bytes.get_mut(at) {
            *byte ^= change;
        }
    }
    let Ok((head, _)) = CallHead::decode(&bytes) else { return };
    let Some(shown) = head.capability else { return };
    let asked = (head.session, of.1);
    let is_same = asked == of && shown == good;
    assert_eq!(grantor.check_capability(asked.0, asked.1, &shown), is_same);
    let other = (of.1.0 ^ 1, of.1.1);
    assert!(!grantor.check_capability(of.0, other, &good), "of another file");
}
