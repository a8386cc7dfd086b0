//! A core whose peer and rails a test plays: spans over two links.

use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::limits::EAGER_BYTES;
use ropewalk_base::memory::{BufferId, Element, Operator, Slice};
use ropewalk_base::random::Random;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{Capabilities, FrameOrder, LinkId, Ordered, Placement, Token, Verb};
use ropewalk_wire::frame::{
    self, AckBody, Body, EagerBody, Envelope, HelloBody, Prefix, UpdateBody,
};

use crate::api::*;
use crate::engine::Core;

mod strided;
mod telling;

/// What both sides drew for their greetings makes the session's number.
const NONCE: u32 = 11;
const ONE: LinkId = LinkId { rail: 0, slot: slot(1) };
const TWO: LinkId = LinkId { rail: 0, slot: slot(2) };

const fn slot(index: u32) -> SlotId {
    SlotId { index, generation: 1 }
}

fn memory(index: u32, len: u64) -> Slice {
    Slice { buffer: BufferId(slot(index)), offset: 0, len }
}

fn operation(index: u32) -> OperationId {
    OperationId(slot(index))
}

/// A frame that the core ordered.
struct Sent {
    link: LinkId,
    prefix: Prefix,
    body: Body,
    token: Token,
}

struct Rig {
    core: Core,
    session: u32,
    frames: Vec<Sent>,
    verbs: Vec<Verb>,
    copied: Vec<(Slice, Slice)>,
    released: Vec<BufferId>,
    completed: Vec<(OperationId, Result<(), Fault>)>,
    peer: Option<PeerId>,
    buffers: u32,
    /// There is no room for staged payloads.
    is_full: bool,
    now: Time,
}

impl Rig {
    /// A session in mode `Resume` over link `ONE`.
    fn new() -> Rig {
        Rig::with(Config::default())
    }

    fn with(config: Config) -> Rig {
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
            endpoint: EndpointId(5),
            incarnation: Incarnation(1),
            cluster: ClusterId(1),
            host: 0,
        };
        let config = Config { mode: Mode::Resume, operations_max: 4096, ..config };
        let core = Core::new(config, identity, vec![rail], Slice::NONE, Random::from_seed(1));
        let mut rig = Rig {
            core,
            session: 0,
            frames: Vec::new(),
            verbs: Vec::new(),
            copied: Vec::new(),
            released: Vec::new(),
            completed: Vec::new(),
            peer: None,
            buffers: 1000,
            is_full: false,
            now: Time(1),
        };
        rig.meet(ONE);
        assert!(rig.peer.is_some(), "a session");
        rig
    }

    /// The peer greets and confirms on a link.
    fn meet(&mut self, link: LinkId) {
        self.core.link_up(link, true);
        let hello = Body::Hello(HelloBody {
            endpoint: 9u128.to_le_bytes(),
            cluster: 1u128.to_le_bytes(),
            incarnation: 7.into(),
            host: 0.into(),
            nonce: NONCE.into(),
            mode: 1,
            refusal: 0,
            address_bytes: 0.into(),
            eager_credit: 1024.into(),
            request_credit: 64.into(),
            rts_credit: 64.into(),
            eager_max: 0.into(),
        });
        let (flags, session) = (frame::FLAG_INSIST, self.session);
        self.place(link, Envelope { flags, session, ..Envelope::default() }, &hello);
        let answer = self.frames.pop().expect("an answer");
        let Body::Hello(hello) = answer.body else { panic!("no greeting: {:?}", answer.body) };
        assert_eq!(hello.refusal, 0);
        match answer.prefix.session.get() {
            0 => self.session = hello.nonce.get().wrapping_add(NONCE) | 1,
            resumed => assert_eq!(resumed, self.session),
        }
        self.place(link, Envelope::default(), &Body::Confirm);
    }

    fn place(&mut self, link: LinkId, envelope: Envelope, body: &Body) -> Placement {
        self.place_checked(link, envelope, body, None)
    }

    fn place_checked(
        &mut self,
        link: LinkId,
        envelope: Envelope,
        body: &Body,
        checksum: Option<u32>,
    ) -> Placement {
        let mut header = frame::encode(envelope, body);
        frame::seal(&mut header, checksum);
        let mut placement = self.core.place(link, header.as_bytes(), envelope.payload_bytes);
        if let Placement::Stage { bytes, token } = placement {
            if self.is_full {
                placement = self.core.unstaged(token);
            } else {
                self.buffers += 1;
                let buffer = BufferId(slot(self.buffers));
                let slice = self.core.staged(token, buffer, bytes);
                placement = Placement::Into { slice, token };
            }
        }
        self.drain();
        placement
    }

    /// The header of a message of 1000 bytes, as the `attempt`-th try of the first span.
    fn eager(&mut self, link: LinkId, attempt: u16, checksum: Option<u32>) -> Placement {
        let (session, span, payload_bytes) = (self.session, 1, 1000);
        let envelope = Envelope { session, span, attempt, payload_bytes, ..Envelope::default() };
        let body = EagerBody::whole(1, 0, Channel::Untagged as u8, Level::Buffered as u8);
        self.place_checked(link, envelope, &Body::Eager(body), checksum)
    }

    /// The verbs that take this place back.
    fn taken_back(&self, token: Token) -> Vec<Verb> {
        let such =
            |verb: &&Verb| matches!(verb, Verb::CancelReceive { token: it, .. } if *it == token);
        self.verbs.iter().filter(such).cloned().collect()
    }

    /// The highest span up to which all are acknowledged.
    fn acknowledged(&mut self) -> u64 {
        self.pass(1);
        let acks = self.frames.iter().filter_map(|frame| match frame.body {
            Body::Ack(ack) => Some(ack.cumulative.get()),
            _ => None,
        });
        acks.max().unwrap_or(0)
    }

    fn acknowledge(&mut self, link: LinkId, cumulative: u64) {
        let envelope = Envelope { session: self.session, ..Envelope::default() };
        let body = AckBody::new(cumulative, Duration::ZERO);
        self.place(link, envelope, &Body::Ack(body));
    }

    fn drain(&mut self) {
        while let Some(next) = self.core.next_output() {
            match next {
                Next::Frame | Next::PatientFrame => {
                    let FrameOrder { link, header, token, .. } = *self.core.frame();
                    let (prefix, body) = frame::decode(header.as_bytes()).expect("a legal frame");
                    self.frames.push(Sent { link, prefix: *prefix, body: body.into(), token });
                }
                Next::Completed => {
                    let Completion { operation, outcome, .. } = *self.core.completion();
                    self.completed.push((operation, outcome));
                }
                Next::Other => match self.core.take_output() {
                    Output::Verb(verb) => self.verbs.push(verb),
                    Output::Copy { from, to } => self.copied.push((from, to)),
                    // There is no room for copies.
                    Output::Keep { peer, span, .. } => self.core.kept(peer, span, None),
                    Output::Release(buffer) => self.released.push(buffer),
                    Output::PeerUp { peer } => self.peer = Some(peer),
                    _ => {}
                },
            }
        }
        self.core.check();
    }

    fn send(&mut self, number: u32) {
        let (peer, channel) = (self.peer.expect("a session"), Channel::Untagged);
        let payload = memory(number, 1000);
        let send = Send { peer, channel, bits: 1, payload, level: Level::Buffered };
        assert!(matches!(self.core.post_send(operation(number), send), Sending::Operation));
        self.drain();
    }

    fn receive(&mut self, number: u32, len: u64) {
        let receive = Receive {
            channel: Channel::Untagged,
            source: None,
            bits: 0,
            mask: 0,
            into: memory(number, len),
            oversize: Oversize::Truncate,
        };
        self.core.post_receive(operation(number), receive);
        self.drain();
    }

    /// The copies of spans that were ordered over a link: their numbers and tokens.
    fn spans_over(&self, link: LinkId) -> Vec<(u64, Token)> {
        let spans = self.frames.iter().filter(|frame| frame.link == link);
        spans
            .filter(|frame| frame.prefix.span.get() != 0)
            .map(|frame| (frame.prefix.span.get(), frame.token))
            .collect()
    }

    /// A rail answers an order to let go.
    fn took_back(&mut self, verb: &Verb, answer: Ordered) {
        self.core.took_back(verb, answer);
        self.drain();
    }

    fn pass(&mut self, millis: u64) {
        self.now = self.now + Duration::from_millis(millis);
        self.core.advance(self.now);
        self.drain();
    }

    fn received(&mut self, token: Token) {
        self.core.received(token, &[]);
        self.drain();
    }
}

#[test]
fn spans_of_a_link_that_hangs_go_over_the_next_one_and_end_there() {
    let mut rig = Rig::new();
    rig.send(1);
    rig.send(2);
    let first: Vec<(u64, Token)> = rig.spans_over(ONE);
    assert_eq!(first.iter().map(|(span, _)| *span).collect::<Vec<_>>(), [1, 2]);
    // The first one left; the second one stays with the rail, which hears nothing.
    rig.core.done(first[0].1);
    rig.pass(1);
    rig.meet(TWO);
    let second = rig.spans_over(TWO);
    assert_eq!(second.iter().map(|(span, _)| *span).collect::<Vec<_>>(), [1, 2], "at once");
    let detached = rig.verbs.iter().position(
        |verb| matches!(verb, Verb::SkipSend { link: ONE, token } if *token == first[1].1),
    );
    let detached = rig.verbs[detached.expect("the rail is told to let go")].clone();
    second.iter().for_each(|(_, token)| rig.core.done(*token));
    rig.drain();
    rig.acknowledge(TWO, 2);
    assert_eq!(rig.completed, [(operation(1), Ok(()))], "a rail still has the second");
    rig.took_back(&detached, Ordered::Released);
    assert_eq!(rig.completed[1..], [(operation(2), Ok(()))]);
    rig.core.link_down(ONE, Fault::PeerReset);
    rig.drain();
    assert_eq!(rig.completed.len(), 2);
}

#[test]
fn memory_that_two_rails_have_is_in_use_until_both_let_go_although_the_session_ends() {
    for order in [[0, 1], [1, 0]] {
        let mut rig = Rig::new();
        rig.send(1);
        rig.meet(TWO);
        let tokens = [rig.spans_over(ONE)[0].1, rig.spans_over(TWO)[0].1];
        let envelope = Envelope { session: rig.session, ..Envelope::default() };
        rig.place(TWO, envelope, &Body::Goodbye);
        assert_eq!(rig.completed, []);
        rig.core.failed(tokens[order[0]], Fault::PeerReset);
        rig.drain();
        assert_eq!(rig.completed, [], "the other rail still has it");
        rig.core.failed(tokens[order[1]], Fault::PeerReset);
        rig.drain();
        assert_eq!(rig.completed, [(operation(1), Err(Fault::PeerReset))]);
    }
}

/// Where a payload goes.
fn into(placement: Placement) -> (Slice, Token) {
    let Placement::Into { slice, token } = placement else { panic!("{placement:?}") };
    (slice, token)
}

/// A receive of 1000 bytes whose message is being placed by link `ONE`, which hangs, while `TWO` carries the session on.
fn hanging() -> (Rig, Token) {
    let mut rig = Rig::new();
    rig.receive(50, 1000);
    let (place, first) = into(rig.eager(ONE, 1, None));
    assert_eq!(place, memory(50, 1000));
    rig.meet(TWO);
    assert_eq!(rig.taken_back(first).len(), 1, "the link closes");
    (rig, first)
}

#[test]
fn a_copy_over_a_healthy_link_takes_over_from_one_that_hangs() {
    for answer_first in [true, false] {
        let (mut rig, first) = hanging();
        let (staged, second) = into(rig.eager(TWO, 2, None));
        assert_ne!(staged.buffer, memory(50, 0).buffer, "a rail may still write there");
        let verb = rig.taken_back(first)[0].clone();
        if answer_first {
            rig.took_back(&verb, Ordered::Released);
            assert_eq!(rig.copied, []);
            rig.received(second);
        } else {
            rig.received(second);
            assert_eq!((rig.copied.len(), rig.completed.len(), rig.acknowledged()), (0, 0, 0));
            rig.took_back(&verb, Ordered::Released);
        }
        assert_eq!(rig.copied, [(staged, memory(50, 1000))]);
        assert_eq!(rig.released, [staged.buffer]);
        assert_eq!(rig.completed, [(operation(50), Ok(()))]);
        assert_eq!(rig.acknowledged(), 1);
        assert_eq!(rig.eager(TWO, 3, None), Placement::Drop, "it is known");
        assert_eq!(rig.core.counters().spans_taken_over, 1);
    }
}

#[test]
fn elements_that_a_copy_brings_are_taken_from_where_they_are() {
    let mut rig = Rig::new();
    let key = rig.core.expose(memory(60, 64), true, Audience::Everybody).expect("there is room");
    let (key_slot, key_secret) = frame::key_to_wire(key);
    let update = Body::Update(UpdateBody {
        key_slot,
        key_secret,
        offset: 0.into(),
        number: 1.into(),
        total: 8.into(),
        within: 0.into(),
        count: 8.into(),
        operator: Operator::Sum as u8,
        element: Element::U8 as u8,
        flags: frame::TELL.into(),
    });
    let place = |rig: &mut Rig, link, attempt| {
        let (session, span, payload_bytes) = (rig.session, 1, 8);
        let envelope = Envelope { session, span, attempt, payload_bytes, ..Envelope::default() };
        into(rig.place(link, envelope, &update))
    };
    let (hangs, first) = place(&mut rig, ONE, 1);
    rig.meet(TWO);
    let (staged, second) = place(&mut rig, TWO, 2);
    let verb = rig.taken_back(first)[0].clone();
    rig.took_back(&verb, Ordered::Released);
    rig.core.received(second, &[]);
    // The driver executes jobs before it carries out what was ordered.
    assert_eq!(rig.core.next_job().map(|task| task.source), Some(staged));
    rig.core.job_done(Ok([0; 8]), None);
    rig.drain();
    assert_eq!((rig.copied.len(), &rig.released[..]), (0, &[hangs.buffer, staged.buffer][..]));
    assert_eq!(rig.core.counters().updates_served, 1);
}

#[test]
fn the_last_word_of_a_link_counts_as_the_answer() {
    let (mut rig, _) = hanging();
    let (staged, second) = into(rig.eager(TWO, 2, None));
    rig.received(second);
    rig.core.link_down(ONE, Fault::PeerReset);
    rig.drain();
    assert_eq!((rig.copied.len(), rig.released.clone()), (1, vec![staged.buffer]));
    assert_eq!(rig.completed, [(operation(50), Ok(()))]);
}

#[test]
fn a_copy_that_is_whole_takes_the_place_back_unless_the_other_is_there_first() {
    let mut rig = Rig::new();
    rig.receive(50, 1000);
    let (_, first) = into(rig.eager(ONE, 1, None));
    assert_eq!(rig.eager(ONE, 1, None), Placement::Drop, "a doubled one");
    let (_, second) = into(rig.eager(ONE, 2, None));
    assert_eq!(rig.eager(ONE, 1, None), Placement::Drop, "an earlier one");
    assert_eq!(rig.taken_back(first).len(), 0, "nobody knows which one hangs");
    rig.received(second);
    let verb = rig.taken_back(first)[0].clone();
    // All bytes were there.
    rig.received(first);
    rig.took_back(&verb, Ordered::Refused(Fault::Invalid));
    assert_eq!((rig.completed.clone(), rig.copied.len()), (vec![(operation(50), Ok(()))], 0));
    assert_eq!((rig.released.len(), rig.core.counters().spans_taken_over), (1, 0));
}

#[test]
fn a_copy_that_hangs_never_costs_the_one_that_is_being_placed() {
    let mut rig = Rig::new();
    rig.receive(50, 1000);
    let (_, first) = into(rig.eager(ONE, 1, None));
    let (staged, second) = into(rig.eager(ONE, 2, None));
    rig.received(first);
    assert_eq!(rig.completed, [(operation(50), Ok(()))]);
    assert_eq!(rig.acknowledged(), 1);
    let verb = rig.taken_back(second)[0].clone();
    rig.took_back(&verb, Ordered::Released);
    assert_eq!((rig.copied.len(), rig.released.clone()), (0, vec![staged.buffer]));
}

#[test]
fn a_copy_without_room_is_dropped_and_not_acknowledged() {
    let mut rig = Rig::new();
    rig.receive(50, 1000);
    let (_, first) = into(rig.eager(ONE, 1, None));
    rig.is_full = true;
    assert_eq!(rig.eager(ONE, 2, None), Placement::Drop);
    assert_eq!((rig.taken_back(first).len(), rig.acknowledged()), (0, 0));
    rig.is_full = false;
    let (_, second) = into(rig.eager(ONE, 2, None));
    rig.received(second);
    let verb = rig.taken_back(first)[0].clone();
    rig.took_back(&verb, Ordered::Released);
    assert_eq!(rig.completed, [(operation(50), Ok(()))]);
}

#[test]
fn what_is_cut_off_is_verified_as_a_whole_before_it_counts_as_placed() {
    let mut rig = Rig::new();
    rig.receive(50, 400);
    let (staged, first) = into(rig.eager(ONE, 1, Some(7)));
    assert_eq!((staged.len, rig.core.wants(first).and_then(|it| it.checksum)), (1000, Some(7)));
    rig.core.received_corrupt(first);
    rig.drain();
    assert_eq!((rig.released.len(), rig.acknowledged()), (1, 0));
    rig.is_full = true;
    assert_eq!(rig.eager(ONE, 2, Some(8)), Placement::Drop);
    assert_eq!(rig.acknowledged(), 0);
    rig.is_full = false;
    let (staged, third) = into(rig.eager(ONE, 3, Some(9)));
    assert_eq!(rig.core.wants(third).and_then(|it| it.checksum), Some(9), "its own header's");
    rig.received(third);
    assert_eq!(rig.copied, [(staged.part(0, 400), memory(50, 400))]);
    assert_eq!(rig.completed, [(operation(50), Err(Fault::Truncated))]);
    assert_eq!(rig.acknowledged(), 1);
}

#[test]
fn a_cancelled_receive_ends_while_a_copy_takes_over() {
    for here in [true, false] {
        let (mut rig, first) = hanging();
        let (staged, second) = into(rig.eager(TWO, 2, None));
        if here {
            rig.received(second);
        }
        assert!(rig.core.cancel(operation(50)));
        rig.drain();
        assert_eq!(rig.completed, [], "a rail may still write");
        for verb in rig.taken_back(first) {
            rig.took_back(&verb, Ordered::Released);
        }
        assert_eq!(rig.completed, [(operation(50), Err(Fault::Cancelled))]);
        for verb in rig.taken_back(second) {
            rig.took_back(&verb, Ordered::Released);
        }
        assert_eq!((rig.copied.len(), rig.released.clone()), (0, vec![staged.buffer]));
        assert_eq!(rig.acknowledged(), 1);
    }
}

#[test]
fn a_session_that_ends_while_a_copy_takes_over_keeps_no_buffer() {
    for here in [true, false] {
        let (mut rig, _) = hanging();
        let (staged, second) = into(rig.eager(TWO, 2, None));
        if here {
            rig.received(second);
        }
        let envelope = Envelope { session: rig.session, ..Envelope::default() };
        rig.place(TWO, envelope, &Body::Goodbye);
        rig.core.link_down(ONE, Fault::PeerReset);
        rig.core.link_down(TWO, Fault::PeerReset);
        rig.drain();
        assert_eq!(rig.released, [staged.buffer]);
        assert_eq!(rig.completed, [(operation(50), Err(Fault::PeerReset))]);
    }
}
