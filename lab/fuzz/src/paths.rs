//! Two cores with a session over two or three rails, and an input that disposes of what is between them.
//!
//! The input is a program: which link delivers its next frame, how far a payload has come, which link is lost, what the users
//! post, and which frames of others are slipped in: of the kinds of paths with any body, and any frame that came to that
//! side before, over any link. So both sides are honest, and the network is not.
//!
//! Invariants:
//! * after each few steps everything that the core of that side counts is recounted, and what both count at the end;
//! * no message is delivered twice, and what a receive gets is the message as it was sent;
//! * no operation ends twice;
//! * the memory that a core borrows is bounded.

mod forged;
mod memory;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::limits::EAGER_BYTES;
use ropewalk_base::memory::{BufferId, Slice};
use ropewalk_base::random::Random;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{Capabilities, Header, LinkId, Ordered, Placement, Token, Verb};
use ropewalk_core::{
    Called, Channel, Config, Core, Identity, Level, Mode, Next, OperationId, Output, Oversize,
    PeerId, Receive, Send, Sending,
};

use memory::{MESSAGE_BYTES_MAX, SENT_MAX, content, memory, zeros};

const STEPS_MAX: usize = 300;
/// Pieces of memory of a side that the next input has again.
const SPARE_MAX: usize = 64;
/// Frames that a link holds, and that are remembered to come again.
const SEEN_MAX: usize = 64;
/// Bytes of messages that nobody has received, and of copies that a core keeps.
const BORROWED_MAX: usize = 24 << 20;

/// A frame under way, or one that was seen.
#[derive(Clone)]
struct Frame {
    header: Header,
    payload: Rc<[u8]>,
}

/// A payload on its way to its place.
struct Landing {
    wire: usize,
    token: Token,
    into: Slice,
    payload: Rc<[u8]>,
}

/// A link, with its name at each side.
struct Wire {
    ends: [LinkId; 2],
    to: [VecDeque<Frame>; 2],
    /// Which side closes it.
    closing: [bool; 2],
    is_up: bool,
}

struct Side {
    core: Core,
    peer: Option<PeerId>,
    memory: BTreeMap<u32, Vec<u8>>,
    buffers: u32,
    /// Buffers that the core has borrowed.
    borrowed: BTreeMap<u32, usize>,
    orders: VecDeque<(LinkId, Token)>,
    landings: VecDeque<Landing>,
    operations: u32,
    /// Messages that are under way or were sent: their lengths.
    sent: Vec<usize>,
    /// Receives: where they put it. Ended operations leave.
    receives: BTreeMap<u32, u32>,
    open: BTreeSet<u32>,
}

struct Player<'a> {
    input: &'a [u8],
    sides: [Side; 2],
    wires: Vec<Wire>,
    rails: usize,
    /// Frames that came to each side.
    seen: [VecDeque<Frame>; 2],
    delivered: [BTreeSet<u64>; 2],
    now: Time,
}

/// The target.
pub fn paths(input: &[u8]) {
    run(input);
}

fn run(input: &[u8]) -> Option<Player<'_>> {
    let (&first, rest) = input.split_first()?;
    let mut player = Player::new(2 + usize::from(first & 1), rest);
    player.meet(first & 2 != 0);
    for _ in 0..STEPS_MAX {
        if player.input.is_empty() {
            break;
        }
        player.play();
    }
    player.check();
    // Left alone, what is under way comes to its end.
    player.rest(12);
    Some(player)
}

impl Drop for Side {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory).into_values();
        memory::leave(memory.take(SPARE_MAX));
    }
}

impl Side {
    fn new(number: usize, rails: usize) -> Side {
        let rail = Capabilities {
            reliable: true,
            ordered: true,
            intact: true,
            native_read: false,
            native_write: false,
            frame_payload_bytes_max: 256 * 1024,
            eager_bytes: EAGER_BYTES,
            preference: 1,
            same_host_only: false,
            foreign: false,
        };
        let identity = Identity {
            endpoint: EndpointId(5 + number as u128),
            incarnation: Incarnation(1),
            cluster: ClusterId(1),
            host: 0,
        };
        let config = Config {
            mode: Mode::Resume,
            paths_max: rails,
            operations_max: 1024,
            ..Config::default()
        };
        let random = Random::from_seed(1 + number as u64);
        let mut core = Core::new(config, identity, vec![rail; rails], Slice::NONE, random);
        let peer = (number == 0).then(|| core.add_peer(true).expect("there is room"));
        Side {
            core,
            peer,
            memory: BTreeMap::new(),
            buffers: 0,
            borrowed: BTreeMap::new(),
            orders: VecDeque::new(),
            landings: VecDeque::new(),
            operations: 0,
            sent: Vec::new(),
            receives: BTreeMap::new(),
            open: BTreeSet::new(),
        }
    }

    fn buffer(&mut self, bytes: Vec<u8>) -> BufferId {
        self.buffers += 1;
        self.memory.insert(self.buffers, bytes);
        BufferId(SlotId { index: self.buffers, generation: 1 })
    }

    fn borrow(&mut self, bytes: Vec<u8>) -> BufferId {
        let len = bytes.len();
        let buffer = self.buffer(bytes);
        self.borrowed.insert(buffer.0.index, len);
        let sum: usize = self.borrowed.values().sum();
        assert!(sum <= BORROWED_MAX, "{sum} bytes are borrowed");
        buffer
    }

    fn read(&self, from: Slice) -> &[u8] {
        if from.len == 0 {
            return &[];
        }
        let bytes = self.memory.get(&from.buffer.0.index).expect("it is not given back");
        &bytes[from.offset as usize..][..from.len as usize]
    }

    fn write(&mut self, into: Slice, bytes: &[u8]) {
        let len = bytes.len().min(into.len as usize);
        if len > 0 {
            let memory = self.memory.get_mut(&into.buffer.0.index).expect("it is not given back");
            memory[into.offset as usize..][..len].copy_from_slice(&bytes[..len]);
        }
    }

    fn operation(&mut self) -> OperationId {
        self.operations += 1;
        self.open.insert(self.operations);
        OperationId(SlotId { index: self.operations, generation: 1 })
    }
}

impl<'a> Player<'a> {
    fn new(rails: usize, input: &'a [u8]) -> Player<'a> {
        Player {
            input,
            sides: [Side::new(0, rails), Side::new(1, rails)],
            wires: Vec::new(),
            rails,
            seen: Default::default(),
            delivered: Default::default(),
            now: Time(1),
        }
    }

    fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.input.split_first() else { return 0 };
        self.input = rest;
        byte
    }

    /// Numbers near zero, near the top, or anything: by the first byte.
    fn number(&mut self) -> u64 {
        let value = u64::from(self.byte());
        match value & 3 {
            0 | 1 => value >> 2,
            2 => u64::MAX - (value >> 2),
            _ => (0..8).fold(0, |number, _| number << 8 | u64::from(self.byte())),
        }
    }

    /// The first message brings the session about; and, if all is to be well at first, all its paths.
    fn meet(&mut self, all: bool) {
        self.send(0, 100, Level::Buffered);
        self.rest(4);
        let rails = self.rails as u64;
        let lacks = |side: &Side| side.core.counters().paths_joined < rails - 1;
        for _ in 0..14 {
            if all && self.sides.iter().any(lacks) {
                self.rest(4);
            }
        }
    }

    /// Time passes and everything arrives.
    fn rest(&mut self, rounds: usize) {
        for _ in 0..rounds {
            self.now = self.now + Duration::from_millis(2);
            for side in 0..2 {
                self.sides[side].core.advance(self.now);
                self.drain(side);
            }
            for wire in 0..self.wires.len() {
                for side in 0..2 {
                    while self.deliver(wire, side) {}
                    while self.land(side, false) {}
                    while self.finish(side) {}
                }
            }
        }
        self.check();
    }

    fn check(&self) {
        self.sides.iter().for_each(|side| side.core.check());
    }

    /// A wire between both sides over the rail of this number.
    fn wire(&mut self, rail: usize) -> usize {
        let slot = SlotId { index: self.wires.len() as u32 + 1, generation: 1 };
        let ends = [LinkId { rail: rail as u8, slot }; 2];
        let to = [VecDeque::new(), VecDeque::new()];
        self.wires.push(Wire { ends, to, closing: [false; 2], is_up: true });
        self.wires.len() - 1
    }

    fn wire_of(&self, side: usize, link: LinkId) -> Option<usize> {
        self.wires.iter().position(|wire| wire.is_up && wire.ends[side] == link)
    }

    /// The next frame of a wire arrives at a side.
    fn deliver(&mut self, wire: usize, side: usize) -> bool {
        if !self.wires[wire].is_up {
            return false;
        }
        let Some(frame) = self.wires[wire].to[side].pop_front() else {
            if self.wires[wire].closing[1 - side] {
                self.lose(wire, Fault::Closed);
            }
            return false;
        };
        let seen = &mut self.seen[side];
        if seen.len() == SEEN_MAX {
            seen.pop_front();
        }
        seen.push_back(frame.clone());
        self.place(wire, side, frame);
        true
    }

    fn place(&mut self, wire: usize, side: usize, frame: Frame) {
        let Frame { header, payload } = frame;
        let link = self.wires[wire].ends[side];
        let it = &mut self.sides[side];
        let (into, token) = match it.core.place(link, header.as_bytes(), payload.len() as u32) {
            Placement::Stage { bytes, token } => {
                let buffer = it.borrow(zeros(bytes as usize));
                (it.core.staged(token, buffer, bytes), token)
            }
            Placement::Into { slice, token } => {
                assert!(slice.len <= payload.len() as u64, "a place longer than its payload");
                (slice, token)
            }
            Placement::Drop => return self.drain(side),
            Placement::Violation(_) => {
                self.drain(side);
                return self.lose(wire, Fault::Protocol);
            }
        };
        it.landings.push_back(Landing { wire, token, into, payload });
        self.drain(side);
    }

    /// The oldest payload of a side arrives, or a half of it.
    fn land(&mut self, side: usize, is_half: bool) -> bool {
        let it = &mut self.sides[side];
        if is_half {
            let Some(landing) = it.landings.front() else { return false };
            let (into, payload) = (landing.into, landing.payload.clone());
            it.write(into, &payload[..payload.len() / 2]);
            return true;
        }
        let Some(landing) = it.landings.pop_front() else { return false };
        it.write(landing.into, &landing.payload);
        let greeting = it.core.wants(landing.token).is_some_and(|wants| wants.greeting);
        it.core.received(landing.token, if greeting { &landing.payload } else { &[] });
        self.drain(side);
        true
    }

    /// The oldest order of a side is done.
    fn finish(&mut self, side: usize) -> bool {
        let Some((_, token)) = self.sides[side].orders.pop_front() else { return false };
        self.sides[side].core.done(token);
        self.drain(side);
        true
    }

    fn lose(&mut self, wire: usize, fault: Fault) {
        if !std::mem::replace(&mut self.wires[wire].is_up, false) {
            return;
        }
        for side in 0..2 {
            let link = self.wires[wire].ends[side];
            self.wires[wire].to[side].clear();
            let it = &mut self.sides[side];
            it.landings.retain(|landing| landing.wire != wire);
            let (gone, left): (VecDeque<_>, _) =
                it.orders.drain(..).partition(|(over, _)| *over == link);
            it.orders = left;
            for (_, token) in gone {
                self.sides[side].core.failed(token, Fault::PeerReset);
            }
            self.drain(side);
            self.sides[side].core.link_down(link, fault);
            self.drain(side);
        }
    }

    fn send(&mut self, side: usize, len: usize, level: Level) {
        let it = &mut self.sides[side];
        let Some(peer) = it.peer else { return };
        if it.sent.len() >= SENT_MAX {
            return;
        }
        let bits = it.sent.len() as u64;
        it.sent.push(len);
        let bytes = memory(content(bits, len));
        let payload = Slice { buffer: it.buffer(bytes), offset: 0, len: len as u64 };
        let id = it.operation();
        let send = Send { peer, channel: Channel::Tagged, bits, payload, level };
        if let Sending::Inline(send) = it.core.post_send(id, send) {
            let (link, header, payload) = {
                let frame = it.core.inline_frame();
                (frame.link, frame.header, frame.payload)
            };
            let payload = it.read(payload).into();
            if it.core.inline_sent(id, send, Ordered::Released).is_some() {
                it.open.remove(&id.0.index);
            }
            self.leave(side, link, Frame { header, payload });
        }
        self.drain(side);
    }

    fn receive(&mut self, side: usize, len: usize) {
        let it = &mut self.sides[side];
        if it.receives.len() >= 100 || it.operations >= 1000 {
            return;
        }
        let buffer = it.buffer(zeros(len));
        let into = Slice { buffer, offset: 0, len: len as u64 };
        let id = it.operation();
        it.receives.insert(id.0.index, buffer.0.index);
        let (channel, source, oversize) = (Channel::Tagged, None, Oversize::Truncate);
        it.core.post_receive(id, Receive { channel, source, bits: 0, mask: 0, into, oversize });
        self.drain(side);
    }

    fn leave(&mut self, side: usize, link: LinkId, frame: Frame) {
        if let Some(wire) = self.wire_of(side, link) {
            self.wires[wire].to[1 - side].push_back(frame);
        }
    }

    fn drain(&mut self, side: usize) {
        // Nobody updates anything but by forged frames.
        while self.sides[side].core.next_job().is_some() {
            self.sides[side].core.job_done(Err(Fault::BadKey), None);
        }
        while let Some(next) = self.sides[side].core.next_output() {
            match next {
                Next::Frame | Next::PatientFrame => {
                    let it = &mut self.sides[side];
                    let order = it.core.frame();
                    let (link, header, from, token) =
                        (order.link, order.header, order.payload, order.token);
                    let payload = it.read(from).into();
                    if token != Token::NONE {
                        it.orders.push_back((link, token));
                    }
                    self.leave(side, link, Frame { header, payload });
                }
                Next::Completed => self.completed(side),
                Next::Other => self.act(side),
            }
        }
    }

    fn completed(&mut self, side: usize) {
        let completion = *self.sides[side].core.completion();
        let index = completion.operation.0.index;
        let ended = self.sides[side].open.remove(&index);
        assert!(ended, "operation {index} ended twice");
        let Some(buffer) = self.sides[side].receives.remove(&index) else { return };
        if !matches!(completion.outcome, Ok(()) | Err(Fault::Truncated)) {
            return;
        }
        let message = completion.bits;
        let len = self.sides[1 - side].sent.get(message as usize).copied();
        let len = len.unwrap_or_else(|| panic!("message {message} of nobody"));
        assert_eq!(completion.message_bytes, len as u64, "message {message}");
        let bytes = &self.sides[side].memory[&buffer];
        let len = len.min(bytes.len());
        assert!(bytes[..len] == *content(message, len), "message {message} is torn");
        let first = self.delivered[side].insert(message);
        assert!(first, "message {message} came twice");
    }

    fn act(&mut self, side: usize) {
        let output = self.sides[side].core.take_output();
        match output {
            Output::Connect { peer, attempt } => {
                let wire = self.wire(attempt as usize % self.rails);
                let link = self.wires[wire].ends[side];
                let called =
                    Called { way: attempt % self.rails as u32, is_alone: false, is_told: false };
                self.sides[side].core.connecting(peer, link, called);
                self.connect(wire, side);
            }
            Output::Join { peer, attempt, rails } => {
                let free = (0..self.rails).find(|rail| rails & 1 << rail == 0);
                let Some(rail) = free.filter(|_| attempt == 0) else {
                    return self.sides[side].core.no_way_to_join(peer);
                };
                let wire = self.wire(rail);
                let link = self.wires[wire].ends[side];
                self.sides[side].core.joining(peer, link, attempt);
                self.connect(wire, side);
            }
            Output::Verb(Verb::Close { link }) => {
                if let Some(wire) = self.wire_of(side, link) {
                    self.wires[wire].closing[side] = true;
                }
            }
            Output::Abandon { link } => {
                if let Some(wire) = self.wire_of(side, link) {
                    self.lose(wire, Fault::PeerReset);
                }
            }
            Output::Verb(verb) => self.let_go(side, &verb),
            Output::Copy { from, to } => {
                let bytes = memory(self.sides[side].read(from));
                self.sides[side].write(to, &bytes);
            }
            Output::Release(buffer) => {
                self.sides[side].borrowed.remove(&buffer.0.index);
                self.sides[side].memory.remove(&buffer.0.index);
            }
            Output::Keep { peer, span, from } => {
                let bytes = memory(self.sides[side].read(from));
                let buffer = self.sides[side].borrow(bytes);
                self.sides[side].core.kept(peer, span, Some(buffer));
            }
            Output::PeerUp { peer } => self.sides[side].peer = Some(peer),
            Output::Aliased { peer, .. } => self.sides[side].peer = Some(peer),
            Output::Upgrade { peer, link } => self.sides[side].core.no_upgrade(peer, link),
            Output::AskHealth { link } => self.sides[side].core.path_health(link, None),
            Output::Measure { link } => self.sides[side].core.path_measured(link, None),
            _ => {}
        }
    }

    fn connect(&mut self, wire: usize, caller: usize) {
        let ends = self.wires[wire].ends;
        self.sides[1 - caller].core.link_up(ends[1 - caller], true);
        self.sides[caller].core.link_up(ends[caller], false);
        self.drain(1 - caller);
    }

    fn let_go(&mut self, side: usize, verb: &Verb) {
        let it = &mut self.sides[side];
        let answer = match *verb {
            Verb::DetachSend { token, later, .. } => {
                match it.orders.iter().position(|(_, other)| *other == token) {
                    Some(at) if later == Token::NONE => {
                        it.orders.remove(at);
                        Ordered::Released
                    }
                    Some(at) => {
                        it.orders[at].1 = later;
                        Ordered::Released
                    }
                    None => Ordered::Refused(Fault::Invalid),
                }
            }
            Verb::CancelReceive { token, .. } => {
                match it.landings.iter().position(|landing| landing.token == token) {
                    Some(at) => {
                        it.landings.remove(at);
                        Ordered::Released
                    }
                    None => Ordered::Refused(Fault::Invalid),
                }
            }
            Verb::Revoke { link, key } => return it.core.revoked(link, key),
            _ => return,
        };
        it.core.took_back(verb, answer);
    }

    fn play(&mut self) {
        let choice = self.byte();
        let side = usize::from(choice >> 7);
        let up: Vec<usize> = (0..self.wires.len()).filter(|wire| self.wires[*wire].is_up).collect();
        let pick = usize::from(self.byte());
        let wire = (!up.is_empty()).then(|| up[pick % up.len().max(1)]);
        match (choice % 16, wire) {
            (0..=3, Some(wire)) => _ = self.deliver(wire, side),
            (4, _) => _ = self.land(side, false),
            (5, _) => _ = self.land(side, true),
            (6, _) => _ = self.finish(side),
            (7, Some(wire)) if pick > 100 => self.lose(wire, Fault::PeerReset),
            (7 | 8, _) => {
                self.now = self.now + Duration::from_micros(40 * pick as u64);
                self.sides[side].core.advance(self.now);
                self.drain(side);
            }
            (9, _) => self.receive(side, [10, 3000, 40_000, MESSAGE_BYTES_MAX][pick & 3]),
            (10, _) => {
                let level = [Level::Buffered, Level::Delivered, Level::Matched][pick / 4 % 3];
                self.send(side, [1, 3000, 20_000, MESSAGE_BYTES_MAX][pick & 3], level);
            }
            (11, Some(wire)) if !self.seen[side].is_empty() => {
                let at = usize::from(self.byte()) % self.seen[side].len();
                let frame = self.seen[side][at].clone();
                self.place(wire, side, frame);
            }
            (12, Some(wire)) => {
                // Overtaking, which no ordered rail does within a link: the order of links is free.
                for other in up.iter().filter(|other| **other != wire) {
                    self.deliver(*other, side);
                }
            }
            (13, _) => self.rest(1),
            (_, Some(wire)) => self.slip_in(wire, side),
            (_, None) => self.rest(1),
        }
        // Each few steps: what is counted wrongly stays wrong.
        if self.input.len().is_multiple_of(4) {
            self.sides[side].core.check();
        }
    }
}

#[cfg(test)]
mod tests;
