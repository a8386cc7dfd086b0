//! Spans that go over two paths at once.

use std::time::Duration;

use ropewalk_base::verb::{Ordered, Placement, Token};
use ropewalk_wire::frame::{AckBody, EagerBody, FLAG_REDUNDANT, Prefix};

use super::*;

const SECOND: LinkId = link(1, 1);
const BYTES: u32 = 1000;

struct Sent {
    link: LinkId,
    prefix: Prefix,
    body: Body,
    token: Token,
}

/// Orders of the core.
#[derive(Default)]
struct Ordering {
    frames: Vec<Sent>,
    verbs: Vec<Verb>,
    copied: Vec<(Slice, Slice)>,
    completed: Vec<OperationId>,
}

fn operation(number: u32) -> OperationId {
    OperationId(SlotId { index: number, generation: 1 })
}

fn memory(number: u32) -> Slice {
    Slice { buffer: BufferId(operation(number).0), offset: 0, len: BYTES.into() }
}

impl Rig {
    /// A session with two paths whose untagged messages go over both.
    fn redundant() -> Rig {
        let mut rig = Rig::new();
        rig.tell_key();
        rig.join(SECOND, 1, |_| ());
        let peer = rig.peer.expect("a session");
        rig.core.set_redundant(peer, Channel::Untagged, true);
        rig
    }

    fn ordered(&mut self) -> Ordering {
        let mut all = Ordering::default();
        while let Some(next) = self.core.next_output() {
            match next {
                Next::Frame | Next::PatientFrame => {
                    let frame = *self.core.frame();
                    let (prefix, body) =
                        frame::decode(frame.header.as_bytes()).expect("a legal frame");
                    let (link, token) = (frame.link, frame.token);
                    all.frames.push(Sent { link, prefix: *prefix, body: body.into(), token });
                }
                Next::Completed => all.completed.push(self.core.completion().operation),
                Next::Other => match self.core.take_output() {
                    Output::Verb(verb) => all.verbs.push(verb),
                    Output::Copy { from, to } => all.copied.push((from, to)),
                    Output::Keep { peer, span, .. } => self.core.kept(peer, span, None),
                    _ => {}
                },
            }
        }
        self.core.check();
        all
    }

    /// The copies of a message that is sent.
    fn send_on(&mut self, channel: Channel, number: u32) -> Vec<Sent> {
        let peer = self.peer.expect("a session");
        let (payload, level) = (memory(number), Level::Buffered);
        let send = Send { peer, channel, bits: 1, payload, level };
        assert!(matches!(self.core.post_send(operation(number), send), Sending::Operation));
        let mut frames = self.ordered().frames;
        frames.retain(|frame| matches!(frame.body, Body::Eager(_)));
        frames
    }

    fn acknowledge(&mut self, over: LinkId, cumulative: u64) -> Ordering {
        let body = Body::Ack(AckBody::new(cumulative, Duration::ZERO));
        let mut header = frame::encode(self.envelope(), &body);
        frame::seal(&mut header, None);
        self.core.place(over, header.as_bytes(), 0);
        self.ordered()
    }

    /// A copy of the first message of the peer: where it goes.
    fn copy(&mut self, over: LinkId, attempt: u16) -> Placement {
        self.copy_with(over, attempt, FLAG_REDUNDANT, None)
    }

    fn copy_with(
        &mut self,
        over: LinkId,
        attempt: u16,
        flags: u16,
        checksum: Option<u32>,
    ) -> Placement {
        let (span, payload_bytes) = (2, BYTES);
        let envelope = Envelope { span, attempt, payload_bytes, flags, ..self.envelope() };
        let body = EagerBody::whole(1, 0, Channel::Untagged as u8, Level::Buffered as u8);
        let mut header = frame::encode(envelope, &Body::Eager(body));
        frame::seal(&mut header, checksum);
        match self.core.place(over, header.as_bytes(), BYTES) {
            Placement::Stage { bytes, token } => {
                let buffer = BufferId(operation(1000 + u32::from(attempt)).0);
                let slice = self.core.staged(token, buffer, bytes);
                Placement::Into { slice, token }
            }
            placement => placement,
        }
    }
}

#[test]
fn a_message_goes_over_both_paths_and_ends_when_one_copy_is_acknowledged() {
    let mut rig = Rig::redundant();
    let sent = rig.send_on(Channel::Untagged, 1);
    let copies: Vec<_> = sent.iter().map(|it| (it.link, it.prefix.attempt.get())).collect();
    assert_eq!(copies, [(FIRST, 1), (SECOND, 2)]);
    assert!(sent.iter().all(|it| it.prefix.flags.get() & FLAG_REDUNDANT != 0));
    let counters = rig.core.counters();
    assert_eq!((counters.spans_redundant, counters.frames_re_sent), (1, 0));
    // The rail of the first path is stuck with its copy.
    rig.core.done(sent[1].token);
    assert_eq!(rig.ordered().completed, []);
    let told = rig.acknowledge(SECOND, sent[0].prefix.span.get());
    let is_first = |verb: &&Verb| matches!(verb, Verb::SkipSend { link: FIRST, token } if *token == sent[0].token);
    let verb = told.verbs.iter().find(is_first).expect("nobody needs it");
    rig.core.took_back(verb, Ordered::Released);
    assert_eq!(rig.ordered().completed, [operation(1)]);
    let others = rig.send_on(Channel::Tagged, 2);
    assert_eq!(others.iter().map(|it| it.link).collect::<Vec<_>>(), [FIRST], "nobody asked");
}

#[test]
fn a_path_that_is_suspect_or_alone_gets_one_copy() {
    let mut rig = Rig::redundant();
    rig.core.suspect(SECOND, Suspicion::CarrierLost);
    rig.ordered();
    let links = |sent: Vec<Sent>| sent.iter().map(|it| it.link).collect::<Vec<_>>();
    assert_eq!(links(rig.send_on(Channel::Untagged, 1)), [FIRST]);
    rig.core.link_down(SECOND, Fault::PeerReset);
    rig.ordered();
    assert_eq!(links(rig.send_on(Channel::Untagged, 2)), [FIRST]);
}

#[test]
fn the_copy_that_is_whole_first_counts_whichever_hangs() {
    for hangs in [FIRST, SECOND] {
        let mut rig = Rig::redundant();
        let (channel, oversize) = (Channel::Untagged, Oversize::Truncate);
        let into = memory(50);
        let receive = Receive { channel, source: None, bits: 0, mask: 0, into, oversize };
        rig.core.post_receive(operation(50), receive);
        let Placement::Into { slice, token: first } = rig.copy(FIRST, 1) else { panic!("a place") };
        assert_eq!(slice, memory(50));
        let Placement::Into { slice: staged, token: second } = rig.copy(SECOND, 2) else {
            panic!("a buffer")
        };
        assert_eq!(rig.ordered().verbs.len(), 0);
        rig.core.received(if hangs == FIRST { second } else { first }, &[]);
        let told = rig.ordered();
        let given_up = if hangs == FIRST { first } else { second };
        let [verb @ Verb::CancelReceive { link, token }] = &told.verbs[..] else {
            panic!("{:?}", told.verbs)
        };
        assert_eq!((*link, *token), (hangs, given_up));
        rig.core.took_back(verb, Ordered::Released);
        let last = rig.ordered();
        assert_eq!([told.completed, last.completed].concat(), [operation(50)]);
        let copied = if hangs == FIRST { vec![(staged, memory(50))] } else { Vec::new() };
        assert_eq!(last.copied, copied);
        // The other copy of it comes in vain, and tells nothing; what its sender needs to go on goes over both.
        assert_eq!(rig.copy(hangs, 2), Placement::Drop);
        assert!(rig.ordered().frames.is_empty());
        rig.core.advance(rig.core.now() + Duration::from_millis(1));
        let acks = rig.ordered().frames.into_iter();
        let acks = acks.filter(|it| matches!(it.body, Body::Ack(_))).map(|it| it.link);
        let mut acks: Vec<LinkId> = acks.collect();
        acks.sort_unstable();
        assert_eq!(acks, [FIRST, SECOND]);
    }
}

#[test]
fn the_peer_is_told_at_once_of_a_path_that_spoils_payloads() {
    let mut rig = Rig::redundant();
    rig.ordered();
    let Placement::Into { token, .. } = rig.copy_with(SECOND, 1, 0, Some(7)) else {
        panic!("it is staged")
    };
    rig.core.received_corrupt(token);
    let told = rig.ordered().frames.into_iter().filter_map(|frame| match frame.body {
        Body::Suspect(word) => Some((frame.link, word.cause)),
        _ => None,
    });
    assert_eq!(told.collect::<Vec<_>>(), [(FIRST, 8)]);
}
