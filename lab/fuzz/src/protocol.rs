//! The protocol core fed with sequences of hostile frames between calls of its own user.
//!
//! The input is a program: each instruction is a frame (of a running session, with fields out of the
//! input), a word of the rail (landed, corrupt, done, failed, link lost) or a call of the user. After
//! each of them everything that the core counts is recounted.

use std::collections::VecDeque;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::limits::{EAGER_BYTES, EAGER_BYTES_MAX};
use ropewalk_base::memory::{BufferId, Slice};
use ropewalk_base::random::Random;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{
    Capabilities, FrameOrder, LinkId, Ordered, Placement, RemoteKey, RemoteLayout, Token, Verb,
};
use ropewalk_core::{
    Access, Audience, Channel, Config, Core, Direction, Identity, Level, Mode, Next, OperationId,
    Output, Oversize, PeerId, Receive, Send, Sending,
};
use ropewalk_wire::frame::{self, Arrived, Body, Envelope, HelloBody};

/// The kind of frames with a further fragment of a message.
const FRAGMENT: u8 = frame::Kind::Fragment as u8;
const KEY: u8 = frame::Kind::Key as u8;
/// Bytes of a header behind its prefix, by kind: from `Eager` to `Suspect`.
const BODY_BYTES: [usize; 24] =
    [24, 48, 48, 16, 40, 16, 24, 16, 24, 64, 0, 0, 0, 0, 24, 24, 48, 8, 24, 8, 16, 12, 8, 16];
const PROBE: u8 = frame::Kind::Probe as u8;
const MIGRATE: u8 = frame::Kind::Migrate as u8;
const WITHDRAW: u8 = frame::Kind::Withdraw as u8;
const STEPS_MAX: usize = 400;
/// The address at which the peer accepts calls, as it announces it.
const ADDRESS: &[u8] = b"sim://peer";

struct Player<'a> {
    core: Core,
    input: &'a [u8],
    link: LinkId,
    links: u32,
    session: u32,
    peer: Option<PeerId>,
    now: Time,
    operations: u32,
    buffers: u32,
    orders: VecDeque<Token>,
    landings: VecDeque<Token>,
    keys: Vec<RemoteKey>,
    requests: Vec<(PeerId, u32, u32)>,
    messages: [u64; 3],
    spans: u64,
    parks: bool,
    /// Messages come in fragments: channel, number, offset of the next one, bytes left.
    fragments: bool,
    rest: Option<(u64, u64, u64, u64)>,
    /// The core closed the link, or wants one: the peer calls.
    calls: bool,
}

/// The payload limit of a frame when messages are sent in fragments.
const FRAGMENT_BYTES: u32 = 8 * 1024;

/// The target.
pub fn frames(input: &[u8]) {
    let Some((&first, rest)) = input.split_first() else { return };
    let mode = if first & 1 == 0 { Mode::Fail } else { Mode::Resume };
    // Sessions that are parked whenever they are idle, and called back by either side.
    let parks = first & 4 != 0;
    let fragments = first & 8 != 0;
    let mut player = Player::new(mode, first & 2 != 0, parks, fragments, rest);
    player.meet();
    for _ in 0..STEPS_MAX {
        if player.input.is_empty() {
            break;
        }
        player.play();
        player.drain();
        player.core.check();
    }
    player.core.close();
    player.drain();
}

impl<'a> Player<'a> {
    fn new(mode: Mode, native: bool, parks: bool, fragments: bool, input: &'a [u8]) -> Player<'a> {
        let rail = Capabilities {
            reliable: true,
            ordered: true,
            intact: true,
            native_read: native,
            native_write: native,
            frame_payload_bytes_max: if fragments { FRAGMENT_BYTES } else { 256 * 1024 },
            eager_bytes: if fragments { EAGER_BYTES_MAX } else { EAGER_BYTES },
            preference: 1,
            same_host_only: false,
            foreign: false,
        };
        let identity = Identity {
            endpoint: EndpointId(5),
            incarnation: Incarnation(1),
            cluster: ClusterId(1),
            host: 0,
        };
        let links_max = if parks { 0 } else { usize::MAX };
        let mut config = Config { mode, operations_max: 4096, links_max, ..Config::default() };
        if fragments {
            config.eager_window_bytes = 2 << 20;
        }
        let buffer = BufferId(SlotId { index: 0, generation: 1 });
        let address = Slice { buffer, offset: 0, len: ADDRESS.len() as u64 };
        let greeting = if parks { address } else { Slice::NONE };
        let core = Core::new(config, identity, vec![rail], greeting, Random::from_seed(1));
        let link = LinkId { rail: 0, slot: SlotId { index: 0, generation: 1 } };
        Player {
            core,
            input,
            link,
            links: 0,
            session: 0,
            peer: None,
            now: Time(1),
            operations: 0,
            buffers: 0,
            orders: VecDeque::new(),
            landings: VecDeque::new(),
            keys: Vec::new(),
            requests: Vec::new(),
            messages: [0; 3],
            spans: 0,
            parks,
            fragments,
            rest: None,
            calls: false,
        }
    }

    fn byte(&mut self) -> u8 {
        match self.input.split_first() {
            Some((&byte, rest)) => {
                self.input = rest;
                byte
            }
            None => 0,
        }
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

    /// Greets and confirms on a fresh link.
    fn meet(&mut self) {
        self.links += 1;
        self.link = LinkId { rail: 0, slot: SlotId { index: self.links, generation: 1 } };
        self.core.link_up(self.link, true);
        let hello = Body::Hello(HelloBody {
            endpoint: 9u128.to_le_bytes(),
            cluster: 1u128.to_le_bytes(),
            incarnation: 7.into(),
            host: 0.into(),
            nonce: 11.into(),
            mode: 1,
            refusal: 0,
            address_bytes: (if self.parks { ADDRESS.len() } else { 0 } as u16).into(),
            eager_credit: if self.fragments { 2048 } else { 64 }.into(),
            request_credit: 64.into(),
            rts_credit: 64.into(),
            eager_max: if self.fragments { 1024 } else { 0 }.into(),
        });
        let session = if self.links > 1 { self.session } else { 0 };
        let payload_bytes = if self.parks { ADDRESS.len() as u32 } else { 0 };
        let flags = if self.parks { 0 } else { frame::FLAG_INSIST };
        let envelope = Envelope { flags, session, payload_bytes, ..Envelope::default() };
        self.place(envelope, &hello);
        if self.parks
            && let Some(token) = self.landings.pop_back()
        {
            self.core.received(token, ADDRESS);
        }
        self.drain();
        self.place(Envelope::default(), &Body::Confirm);
        self.drain();
    }

    fn place(&mut self, envelope: Envelope, body: &Body) {
        let header = frame::encode(envelope, body);
        self.place_bytes(header.as_bytes(), envelope.payload_bytes);
    }

    fn place_bytes(&mut self, header: &[u8], payload_bytes: u32) {
        match self.core.place(self.link, header, payload_bytes) {
            Placement::Stage { bytes, token } => {
                if bytes & 31 == 31 {
                    let answer = self.core.unstaged(token);
                    assert!(matches!(answer, Placement::Violation(_)));
                    return self.lose_link(Fault::Protocol);
                }
                let buffer = self.buffer();
                self.core.staged(token, buffer, bytes);
                self.landings.push_back(token);
            }
            Placement::Into { token, slice } => {
                assert!(slice.len <= u64::from(payload_bytes), "a place longer than its payload");
                self.landings.push_back(token);
            }
            Placement::Drop => {}
            Placement::Violation(_) => self.lose_link(Fault::Protocol),
        }
    }

    fn buffer(&mut self) -> BufferId {
        self.buffers += 1;
        BufferId(SlotId { index: self.buffers, generation: 1 })
    }

    fn lose_link(&mut self, fault: Fault) {
        // As rails promise: pending orders first, the link's last word after them.
        for token in std::mem::take(&mut self.orders) {
            self.core.failed(token, Fault::PeerReset);
        }
        self.drain();
        self.core.link_down(self.link, fault);
        self.landings.clear();
        self.orders.clear();
        self.drain();
        self.messages = [0; 3];
        self.spans = 0;
        self.rest = None;
        self.meet();
    }

    fn drain(&mut self) {
        while let Some(next) = self.core.next_output() {
            match next {
                Next::Frame | Next::PatientFrame => {
                    let FrameOrder { header, token, .. } = *self.core.frame();
                    if let Ok((prefix, Arrived::Hello(hello))) = frame::decode(header.as_bytes()) {
                        let fresh = hello.nonce.get().wrapping_add(11) | 1;
                        let resumed = prefix.session.get();
                        self.session = if resumed != 0 { resumed } else { fresh };
                    }
                    if token != Token::NONE {
                        self.orders.push_back(token);
                    }
                }
                Next::Completed => {}
                Next::Other => self.act(),
            }
        }
    }

    /// Posts a message; the rail keeps each other frame that leaves within its post.
    fn send(&mut self, id: OperationId, send: Send) {
        let Sending::Inline(send) = self.core.post_send(id, send) else { return };
        let kept = id.0.index.is_multiple_of(2);
        if kept {
            let token = self.core.inline_frame().token;
            self.orders.push_back(token);
        }
        let answer = if kept { Ordered::Pending } else { Ordered::Released };
        assert_eq!(self.core.inline_sent(id, send, answer).is_none(), kept, "{id:?} is over once");
    }

    fn act(&mut self) {
        match self.core.take_output() {
            Output::Verb(Verb::Read { token, .. } | Verb::Write { token, .. }) => {
                self.orders.push_back(token);
            }
            Output::Verb(Verb::Revoke { link, key }) => self.core.revoked(link, key),
            Output::Verb(
                verb @ (Verb::DetachSend { .. }
                | Verb::SkipSend { .. }
                | Verb::CancelAccess { .. }
                | Verb::CancelReceive { .. }),
            ) => self.let_go(&verb),
            Output::Keep { peer, span, .. } => {
                let buffer = (self.byte() & 3 > 0).then(|| self.buffer());
                self.core.kept(peer, span, buffer);
            }
            Output::PeerUp { peer } => self.peer = Some(peer),
            Output::Request { peer, session, payload, .. } => {
                let bytes = payload.map_or(0, |(_, bytes)| bytes);
                self.requests.push((peer, session, bytes));
            }
            Output::Verb(Verb::Close { link }) if link == self.link => self.calls = self.parks,
            Output::Connect { .. } if self.parks && self.byte() & 1 == 0 => self.calls = true,
            Output::Connect { peer, .. } => self.core.unreachable(peer),
            Output::Upgrade { peer, link } => self.core.no_upgrade(peer, link),
            Output::AskHealth { link } => self.core.path_health(link, None),
            Output::Measure { link } => self.core.path_measured(link, None),
            _ => {}
        }
    }

    /// The last word about a link that the core closed; the peer's next one names the session.
    fn call_again(&mut self) {
        for token in std::mem::take(&mut self.orders) {
            self.core.failed(token, Fault::Closed);
        }
        self.drain();
        self.core.link_down(self.link, Fault::Closed);
        self.landings.clear();
        self.drain();
        self.calls = false;
        self.meet();
    }

    /// The rail releases the verb's buffers, in most cases.
    fn let_go(&mut self, verb: &Verb) {
        let (queue, token, later) = match *verb {
            Verb::DetachSend { token, later, .. } => (&mut self.orders, token, later),
            Verb::SkipSend { token, .. } => (&mut self.orders, token, Token::NONE),
            Verb::CancelAccess { token, .. } => (&mut self.orders, token, Token::NONE),
            Verb::CancelReceive { token, .. } => (&mut self.landings, token, Token::NONE),
            _ => unreachable!("an order to let go"),
        };
        let position = queue.iter().position(|other| *other == token);
        let willing = self.input.first().is_none_or(|byte| byte & 7 > 0);
        let Some(position) = position.filter(|_| willing) else {
            return self.core.took_back(verb, Ordered::Refused(Fault::Invalid));
        };
        match later {
            Token::NONE => drop(queue.remove(position)),
            later => queue[position] = later,
        }
        self.core.took_back(verb, Ordered::Released);
    }

    fn play(&mut self) {
        if self.calls && self.byte() & 3 == 0 {
            return self.call_again();
        }
        match self.byte() % 16 {
            0..=7 => self.frame(),
            8 => {
                if let Some(token) = self.landings.pop_front() {
                    self.core.received(token, &[]);
                }
            }
            9 => {
                if let Some(token) = self.landings.pop_front() {
                    self.core.received_corrupt(token);
                }
            }
            10 => {
                if let Some(token) = self.orders.pop_front() {
                    self.core.done(token);
                }
            }
            11 => self.lose_link(Fault::PeerReset),
            12 => {
                self.now = self.now + Duration::from_millis(self.byte().into());
                self.core.advance(self.now);
            }
            13 => {
                if let Some((peer, session, bytes)) = self.requests.pop() {
                    self.core.request_taken(peer, session, bytes);
                }
            }
            _ => self.call(),
        }
    }

    fn frame(&mut self) {
        let Some(_) = self.peer else { return };
        let kind = match self.byte() {
            // Park and stay, more often than others: they come in pairs.
            byte @ 0xf0.. if self.parks => 15 + (byte & 1),
            0xc0.. if self.fragments => FRAGMENT,
            byte @ 0xb7..0xc0 => KEY + (byte - 0xb7),
            byte => 3 + byte % 11,
        };
        let shape = self.byte();
        let payload_bytes = match shape & 3 {
            0 => 0,
            1 => u32::from(self.byte()),
            _ => self.number() as u32 % 40_000,
        };
        self.spans += 1;
        let of_link = kind == 12 || (kind >= PROBE && kind != MIGRATE && kind != WITHDRAW);
        let span = if of_link || self.parks { 0 } else { self.spans };
        let session = if shape & 0x80 == 0 { self.session } else { self.number() as u32 };
        let number = self.number() as u32;
        let envelope = Envelope {
            flags: 0,
            payload_bytes: if matches!(kind, 3 | 6 | 7 | FRAGMENT) { payload_bytes } else { 0 },
            session,
            packet: number,
            attempt: u16::from(shape & 3),
            acknowledged: number,
            span: if shape & 0x40 == 0 { span } else { self.number() },
        };
        let channel = self.byte() % 4;
        // Bodies are built from numbers; the right message number and key come often enough.
        let message = match self.messages.get_mut(usize::from(channel)) {
            Some(next) if shape & 0x20 == 0 && matches!(kind, 3 | 4) => {
                *next += 1;
                *next - 1
            }
            _ => self.number(),
        };
        let key = match self.keys.get(usize::from(shape >> 3 & 3)) {
            Some(key) => (key.slot.to_u64(), key.secret),
            None => (self.number(), self.number()),
        };
        let mut words: [u64; 8] = std::array::from_fn(|_| self.number());
        let acknowledge = u64::from(self.byte() % 4) << 8;
        match kind {
            3 => {
                let more = self.begin(channel.into(), message, payload_bytes, words[3]);
                let flags = u64::from(channel) | acknowledge | more << 32;
                words[1..3].copy_from_slice(&[message, flags]);
            }
            4 => words[1..3].copy_from_slice(&[message, u64::from(channel)]),
            5 | 7 => words[..2].copy_from_slice(&[key.0, key.1]),
            FRAGMENT => {
                let other = [message, words[2], channel.into()];
                let next = self.next_fragment(payload_bytes).filter(|_| shape & 0x10 == 0);
                words[..3].copy_from_slice(&next.unwrap_or(other));
            }
            12 => words[1] = u64::from(words[1] as u32) | (words[7] % 16) << 32,
            9 | 10 => words[..2].copy_from_slice(&[message, u64::from(channel)]),
            _ => {}
        }
        if matches!(kind, 6 | 8) {
            // Cookies are operation numbers.
            words[0] = 1 << 32 | u64::from(self.byte());
        }
        let mut header = frame::encode(envelope, &Body::Goodbye).as_bytes().to_vec();
        let body = words.map(u64::to_le_bytes);
        header.extend_from_slice(&body.as_flattened()[..BODY_BYTES[usize::from(kind - 3)]]);
        header[0] = kind;
        header[1] = header.len() as u8;
        self.place_bytes(&header, envelope.payload_bytes);
    }

    /// Begins a message; the number of bytes that may follow later.
    fn begin(&mut self, channel: u64, message: u64, bytes: u32, number: u64) -> u64 {
        let more = if self.fragments { number % 50_000 } else { 0 };
        if more > 0 {
            self.rest = Some((channel, message, bytes.into(), more));
        }
        more
    }

    /// The words of the fragment that comes next.
    fn next_fragment(&mut self, bytes: u32) -> Option<[u64; 3]> {
        let (channel, message, offset, left) = self.rest?;
        let (bytes, left) = (u64::from(bytes), left.saturating_sub(bytes.into()));
        self.rest = (left > 0).then_some((channel, message, offset + bytes, left));
        Some([message, offset, channel])
    }

    fn call(&mut self) {
        let Some(peer) = self.peer else { return };
        let buffer = self.buffer();
        let len = [0, 10, 3000, 100_000][usize::from(self.byte() & 3)];
        let slice = Slice { buffer, offset: 0, len };
        let choice = self.byte();
        let channel = [Channel::Tagged, Channel::Untagged, Channel::Request][choice as usize % 3];
        let levels = [Level::Buffered, Level::Delivered, Level::Matched, Level::Unseen];
        let level = levels[choice as usize / 3 % 4];
        let id = OperationId(SlotId { index: self.operations, generation: 1 });
        let kind = self.byte() % 6;
        if kind < 4 {
            self.operations += 1;
            if self.operations >= 4000 {
                return;
            }
        }
        match kind {
            0 => self.send(id, Send { peer, channel, bits: 1, payload: slice, level }),
            1 => {
                let source = (choice & 1 == 0).then_some(peer);
                let oversize = if choice & 2 == 0 { Oversize::Truncate } else { Oversize::Refuse };
                let mask = if choice & 4 == 0 { 0 } else { u64::MAX };
                let receive = Receive { channel, source, bits: 1, mask, into: slice, oversize };
                self.core.post_receive(id, receive);
            }
            2 | 3 => {
                let direction = if kind == 2 { Direction::Get } else { Direction::Put };
                let key = RemoteKey { slot: SlotId { index: 1, generation: 1 }, secret: 5 };
                let remote = RemoteLayout::At(self.number());
                self.core.post_access(id, Access { direction, peer, key, remote, local: slice });
            }
            4 => match self.keys.len() {
                4 => drop(self.core.unexpose(self.keys.remove(0))),
                _ => self.keys.extend(self.core.expose(slice, true, Audience::Everybody)),
            },
            _ => {
                let index = u32::from(self.byte()) % (self.operations + 1);
                self.core.cancel(OperationId(SlotId { index, generation: 1 }));
            }
        }
    }
}
