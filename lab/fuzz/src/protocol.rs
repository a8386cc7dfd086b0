//! The protocol core fed with sequences of hostile frames between calls of its own user.
//!
//! The input is a program: each instruction is a frame (of a running session, with fields out of the
//! input), a word of the rail (landed, corrupt, done, failed, link lost) or a call of the user. After
//! each of them everything that the core counts is recounted.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_base::descriptor::Descriptor;
use ropewalk_base::error::Fault;
use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::limits::{EAGER_BYTES, EAGER_BYTES_MAX};
use ropewalk_base::memory::{BufferId, Change, Element, Operator, Slice, Update};
use ropewalk_base::random::Random;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{
    Capabilities, FrameOrder, LinkId, Ordered, Placement, RemoteKey, RemoteLayout, Strided, Token,
    Verb,
};
use ropewalk_core::{
    Access, Action, Atomic, Audience, Channel, Config, Core, Direction, Exposing, Identity, Level,
    Member, Mode, Naming, Next, OperationId, Output, Oversize, PeerId, Raise, Receive, Send,
    Sending, Terms,
};
use ropewalk_wire::frame::{self, Arrived, Body, Envelope, HelloBody};

/// The kind of frames with a further fragment of a message.
const FRAGMENT: u8 = frame::Kind::Fragment as u8;
const KEY: u8 = frame::Kind::Key as u8;
/// Bytes of a header behind its prefix, by kind: from `Eager` to `Immediate`.
const BODY_BYTES: [usize; 34] = [
    24, 48, 48, 16, 48, 16, 24, 16, 40, 64, 0, 0, 0, 0, 24, 24, 48, 8, 24, 8, 16, 12, 8, 16, 32, 8,
    16, 48, 56, 48, 64, 64, 48, 56,
];
const SUSPECT: u8 = frame::Kind::Suspect as u8;
const REPLY: u8 = frame::Kind::Reply as u8;
const GIVE_UP: u8 = frame::Kind::GiveUp as u8;
const UPDATE: u8 = frame::Kind::Update as u8;
const ATOMIC: u8 = frame::Kind::Atomic as u8;
const LOCK: u8 = frame::Kind::Lock as u8;
const IMMEDIATE: u8 = frame::Kind::Immediate as u8;
const NOTIFY: u8 = frame::Kind::Notify as u8;
const LAYOUT: u8 = frame::Kind::Layout as u8;
const STRIDED: u8 = frame::Kind::Strided as u8;
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
    /// The number of the put that was begun last.
    puts: u64,
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
            puts: 0,
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

    /// Does what peers want done with exposed memory, or fails to.
    fn run_jobs(&mut self) {
        while let Some(task) = self.core.next_job() {
            let result_bytes = task.result_bytes;
            let result = (result_bytes > 0 && self.byte() & 7 > 0).then(|| self.buffer());
            let outcome = if self.byte() & 7 > 0 { Ok([7; 8]) } else { Err(Fault::BadKey) };
            self.core.job_done(outcome, result);
        }
    }

    fn drain(&mut self) {
        self.run_jobs();
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
            Output::Written { peer, session, .. } => self.requests.push((peer, session, 0)),
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
            byte @ 0xb4..0xc0 => KEY + (byte - 0xb4),
            byte @ 0xa8..0xb4 => UPDATE + (byte - 0xa8) % 3,
            byte @ 0xa4..0xa8 => LAYOUT + byte % 2,
            byte @ 0xa0..0xa4 => NOTIFY + byte % 2,
            byte => 3 + byte % 11,
        };
        let shape = self.byte();
        let payload_bytes = match shape & 3 {
            0 => 0,
            1 => u32::from(self.byte()),
            _ => self.number() as u32 % 40_000,
        };
        self.spans += 1;
        let of_link = kind == 12
            || ((PROBE..=SUSPECT).contains(&kind) && kind != MIGRATE && kind != WITHDRAW);
        let span = if of_link || self.parks { 0 } else { self.spans };
        let session = if shape & 0x80 == 0 { self.session } else { self.number() as u32 };
        let number = self.number() as u32;
        let envelope = Envelope {
            flags: 0,
            payload_bytes: if matches!(
                kind,
                3 | 6 | 7 | FRAGMENT | REPLY | UPDATE | LOCK | STRIDED | NOTIFY | IMMEDIATE
            ) {
                payload_bytes
            } else {
                0
            },
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
        self.fill_in(kind, shape, (key, message, channel), payload_bytes, &mut words);
        self.place_words(kind, envelope, words);
    }

    /// Writes what makes sense into the words of a body, most of the time.
    fn fill_in(
        &mut self,
        kind: u8,
        shape: u8,
        (key, message, channel): ((u64, u64), u64, u8),
        payload_bytes: u32,
        words: &mut [u64; 8],
    ) {
        let acknowledge = u64::from(self.byte() % 4) << 8;
        match kind {
            3 => {
                let more = self.begin(channel.into(), message, payload_bytes, words[3]);
                let flags = u64::from(channel) | acknowledge | more << 32;
                words[1..3].copy_from_slice(&[message, flags]);
            }
            4 => words[1..3].copy_from_slice(&[message, u64::from(channel)]),
            5 => words[..2].copy_from_slice(&[key.0, key.1]),
            7 => {
                words[..2].copy_from_slice(&[key.0, key.1]);
                if shape & 0x20 == 0 {
                    self.number_put(words, payload_bytes);
                }
            }
            UPDATE | ATOMIC | LOCK | NOTIFY | IMMEDIATE => {
                words[..2].copy_from_slice(&[key.0, key.1]);
                if shape & 0x20 == 0 {
                    self.number_update(kind, words, payload_bytes);
                }
            }
            LAYOUT if shape & 0x20 == 0 => self.layout(words),
            STRIDED => {
                words[..2].copy_from_slice(&[key.0, key.1]);
                if shape & 0x20 == 0 {
                    self.strided(words, payload_bytes);
                }
            }
            // Numbers of operations are small.
            REPLY..=GIVE_UP => *words = words.map(|word| word % 40),
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
    }

    fn place_words(&mut self, kind: u8, envelope: Envelope, words: [u64; 8]) {
        let mut header = frame::encode(envelope, &Body::Goodbye).as_bytes().to_vec();
        let body = words.map(u64::to_le_bytes);
        header.extend_from_slice(&body.as_flattened()[..BODY_BYTES[usize::from(kind - 3)]]);
        header[0] = kind;
        header[1] = header.len() as u8;
        self.place_bytes(&header, envelope.payload_bytes);
    }

    /// A put's number and length: those of the next operation, or of another part of one that is under way.
    fn number_put(&mut self, words: &mut [u64; 8], payload_bytes: u32) {
        self.puts += words[3] & 1;
        let within = words[4] % 50;
        let total = within + u64::from(payload_bytes) + words[4] / 50 % 2 * 100;
        words[3..5].copy_from_slice(&[self.puts, total | within << 32]);
    }

    /// An update of bytes, an atomic of one, a put with a notice, or a word about a lock, with the number of the next operation.
    fn number_update(&mut self, kind: u8, words: &mut [u64; 8], payload_bytes: u32) {
        self.puts += 1;
        let bytes = u64::from(payload_bytes);
        let flags = words[7] % 8;
        match kind {
            UPDATE => {
                let (offset, within) = (words[2] % 64, words[4] % 3);
                let total = (within + bytes) | within << 32;
                let what = bytes | 1 << 32 | 2 << 40 | (flags & 3) << 48;
                words[2..6].copy_from_slice(&[offset, self.puts, total, what]);
                if words[7] & 8 > 0 {
                    let kind = (Operator::Replace as u64) << 32 | (Element::Byte as u64) << 40;
                    let flags = u64::from(frame::TELL | frame::RECORDS) << 48;
                    words[4..6].copy_from_slice(&[bytes, bytes | kind | flags]);
                }
            }
            ATOMIC => {
                let (operator, element) = (1 + words[6] % 16, 1 + words[6] / 16 % 20);
                let offset = words[2] % 64;
                words[2..4].copy_from_slice(&[offset, self.puts]);
                words[6] = operator | element << 8 | flags << 16;
            }
            NOTIFY => {
                let (offset, value) = (words[2] % 64, words[4]);
                let what = (words[5] % 80) | (flags & 1) << 32 | (flags & 2) << 34;
                words[2..6].copy_from_slice(&[offset, self.puts, value, what]);
            }
            IMMEDIATE => {
                let (offset, len) = (words[2] % 64, if bytes > 0 { bytes } else { words[5] });
                let data = words[4];
                words[2..7].copy_from_slice(&[offset, self.puts, data, len, flags & 1]);
            }
            _ => {
                let number = if flags & 4 == 0 { self.puts } else { 0 };
                let cookie = words[2] % 4;
                let offset = words[6] % 64;
                words[2..6].copy_from_slice(&[cookie, number, offset, 1 + flags % 3]);
            }
        }
    }

    /// One datatype of two nodes, or a number that is free: runs in a loop, near each other or not.
    fn layout(&mut self, words: &mut [u64; 8]) {
        let run = Descriptor::contiguous(1 + words[3] % 40).expect("a short run");
        let stride = words[4] as i64 % 200;
        let Ok(made) = run.repeated(2 + words[5] % 30, stride) else { return };
        let bytes = made.encode();
        let (number, count) = (words[1] as u8 % 4, (bytes.len() - 8) / frame::NODE_BYTES);
        let nodes = if words[2] & 3 == 3 { 0 } else { count as u32 };
        let place = frame::LayoutBody::placed(number, nodes, 0).get();
        let mut body = [0; 64];
        body[..8].copy_from_slice(&bytes[..8]);
        body[8..12].copy_from_slice(&place.to_le_bytes());
        body[12..12 + bytes.len() - 8].copy_from_slice(&bytes[8..]);
        let (chunks, _) = body.as_chunks();
        words.iter_mut().zip(chunks).for_each(|(word, chunk)| *word = u64::from_le_bytes(*chunk));
    }

    /// A put, a get or an update by a layout, with the number of the next operation.
    fn strided(&mut self, words: &mut [u64; 8], payload_bytes: u32) {
        self.puts += 1;
        let fetches = words[6] & 1 > 0;
        let (operator, count) = match payload_bytes {
            0 => (Operator::Nothing, words[6] % 300),
            bytes => ([Operator::Replace, Operator::Sum][words[6] as usize & 1], bytes.into()),
        };
        let flags = u64::from(frame::TELL) | if fetches { u64::from(frame::FETCH) } else { 0 };
        let (address, instances, from) = (words[2] % 500, words[4] % 40, words[5] % 100);
        words[2..6].copy_from_slice(&[address, self.puts, instances, from]);
        words[6] = count | (operator as u64) << 32 | (Element::U8 as u64) << 40 | flags << 48;
        words[7] %= 4;
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

    /// The place of an access of ours: now and then in instances of a datatype.
    fn remote(&mut self, choice: u8, len: u64) -> RemoteLayout {
        let number = self.number();
        if choice & 8 == 0 {
            return RemoteLayout::At(number);
        }
        let run = Descriptor::contiguous(1 + number % 90).expect("a short run");
        let shape = run.repeated(3, 100 + number as i64 % 7).expect("a short loop");
        let (count, address) = (1 + len / 2, number as i64 % 1000);
        RemoteLayout::Strided(Strided { shape: Arc::new(shape), address, count, from: number % 3 })
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
        let kind = self.byte() % 8;
        if !matches!(kind, 4 | 5) {
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
                let remote = self.remote(choice, len);
                let action = direction.into();
                let terms = terms(choice);
                let access = Access { action, peer, key, remote, local: slice, terms };
                self.core.post_access(id, access);
            }
            4 => match self.keys.len() {
                4 => drop(self.core.unexpose(self.keys.remove(0))),
                _ => self.expose(slice, choice),
            },
            6 | 7 => self.change(id, peer, slice, choice),
            _ => {
                let index = u32::from(self.byte()) % (self.operations + 1);
                self.core.cancel(OperationId(SlotId { index, generation: 1 }));
            }
        }
    }

    /// A region, of which peers may know the name; now and then it is for a group, takes events, or counts.
    fn expose(&mut self, slice: Slice, choice: u8) {
        let naming = match choice & 3 {
            0 => Naming::Given(u64::from(choice >> 6)),
            1 => Naming::Chosen,
            _ => Naming::Nameless,
        };
        let mut terms = Exposing { naming, ..Exposing::to(Audience::Everybody, true) };
        (terms.events, terms.counts) = (choice & 4 > 0, choice & 8 > 0);
        if choice & 16 > 0 {
            let member = Member::Endpoint(EndpointId(9 + u128::from(choice >> 5 & 1)));
            let Ok(group) = self.core.add_group(&[member]) else { return };
            terms.audience = Audience::Group(group);
            self.keys.extend(self.core.expose_as(slice, terms).map(|(key, _)| key));
            return self.core.drop_group(group);
        }
        let Ok((key, name)) = self.core.expose_as(slice, terms) else { return };
        let name = name.filter(|_| choice & 32 > 0);
        // By its name it cannot be ended.
        self.keys.push(name.map_or(key, RemoteKey::named));
    }

    /// Elements are combined, a word is told, a lock is taken or given back.
    fn change(&mut self, id: OperationId, peer: PeerId, slice: Slice, choice: u8) {
        let element = Element::U8;
        let operator = [Operator::Sum, Operator::Nothing][usize::from(choice & 1)];
        let update = Update::new(element, operator).expect("it is defined");
        let action = match choice >> 1 & 3 {
            0 => Action::Update { update, fetch: choice & 16 > 0 },
            1 if choice & 0x60 == 0x60 => Action::Immediate { data: 9 },
            1 if choice & 64 > 0 => Action::Records,
            1 if choice & 8 > 0 => {
                let raise = Raise { word: 1, value: 1, to: choice & 16 > 0 };
                Action::Notify { raise, applied: choice & 32 > 0 }
            }
            1 => Action::Lock { exclusive: choice & 16 > 0 },
            2 => {
                let index = u32::from(self.byte()) % (self.operations + 1);
                Action::Unlock { lock: OperationId(SlotId { index, generation: 1 }) }
            }
            _ => {
                let change = Change::One { update, operand: [3; 8] };
                let (fetch, token) = (choice & 16 > 0, choice & 32 > 0);
                Action::Atomic(Atomic { change, fetch, token })
            }
        };
        let moves = matches!(
            action,
            Action::Update { .. }
                | Action::Notify { .. }
                | Action::Immediate { .. }
                | Action::Records
        );
        let len = if moves { slice.len } else { 0 };
        let key = RemoteKey { slot: SlotId { index: 1, generation: 1 }, secret: 5 };
        let (remote, local) = (RemoteLayout::At(self.number()), Slice { len, ..slice });
        let terms = terms(choice);
        self.core.post_access(id, Access { action, peer, key, remote, local, terms });
    }
}

/// Order and end of an access.
fn terms(choice: u8) -> Terms {
    let has = |bits| choice & bits == bits;
    Terms { fenced: has(0x84), local: has(0x82), quiet: has(0x81), more: has(0x88) }
}
