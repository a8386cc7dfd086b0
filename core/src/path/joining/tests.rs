//! A core whose peer a test plays: calls that join its session, honest and forged ones.

use ropewalk_base::error::Fault;
use ropewalk_base::health::{Health, Suspicion};
use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::limits::EAGER_BYTES;
use ropewalk_base::memory::{BufferId, Slice};
use ropewalk_base::random::Random;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{Capabilities, LinkId, RemoteKey, Verb};
use ropewalk_wire::frame::{
    self, AckBody, Body, Envelope, FLAG_ANSWER, FLAG_INSIST, FLAG_JOIN, HelloBody, JoinBody,
    KeyBody, MODE_PATHS, MODE_RESUME, PROOF_BYTES, ProbeBody, Refusal, SHARE_BYTES, SuspectBody,
};

use zerocopy::little_endian::U32;

use crate::api::*;
use crate::engine::Core;
use crate::session::{Bundle, Claim, PathId, Prover, SessionId};

mod carrying;
mod deciding;
mod hostile;
mod redundant;
mod resting;
mod spoiled;

pub(in crate::path) const FIRST: LinkId = link(0, 1);
const NONCE: u32 = 11;
const SHARE: [u8; SHARE_BYTES] = [7; SHARE_BYTES];

pub(in crate::path) const fn link(rail: u8, index: u32) -> LinkId {
    LinkId { rail, slot: SlotId { index, generation: 1 } }
}

/// What the core told.
#[derive(Default)]
pub(in crate::path) struct Told {
    pub(in crate::path) frames: Vec<(LinkId, Body)>,
    pub(in crate::path) closed: Vec<LinkId>,
    exposed: Vec<(LinkId, RemoteKey)>,
    pub(in crate::path) downs: usize,
    tuned: Vec<LinkId>,
    /// How often the peer is to be called.
    calls: usize,
}

impl Told {
    /// The nonce of our answer to a greeting, unless that refuses.
    fn answered(&self) -> Option<u32> {
        self.frames.iter().find_map(|(_, body)| match body {
            Body::Hello(hello) if hello.refusal == Refusal::None as u8 => Some(hello.nonce.get()),
            _ => None,
        })
    }
}

pub(in crate::path) struct Rig {
    pub(in crate::path) core: Core,
    pub(in crate::path) session: u32,
    pub(in crate::path) peer: Option<PeerId>,
    /// The key, as the peer makes it.
    bundle: Bundle,
}

fn join_body(path: U32, counter: U32, entropy: u16, proof: [u8; PROOF_BYTES]) -> JoinBody {
    let (reserved, salt, entropy) = (0, [0; 4], entropy.into());
    JoinBody { path, counter, rail: 3, reserved, entropy, salt, proof }
}

impl Rig {
    /// A session over the first rail whose peer can tell its share of the key.
    pub(in crate::path) fn new() -> Rig {
        Rig::over(false)
    }

    /// The same over rails that read, or do not.
    fn over(native_read: bool) -> Rig {
        Rig::planted(native_read, Plant::Nothing)
    }

    /// The same with a bug.
    fn planted(native_read: bool, plant: Plant) -> Rig {
        let rail = Capabilities {
            reliable: true,
            ordered: true,
            intact: true,
            native_read,
            native_write: native_read,
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
        let config = Config { mode: Mode::Resume, paths_max: 2, plant, ..Config::default() };
        let random = Random::from_seed(1);
        let core = Core::new(config, identity, vec![rail; 2], Slice::NONE, random);
        let mut rig = Rig { core, session: 0, peer: None, bundle: Bundle::new(SHARE) };
        let nonce = rig.greet(FIRST, 0, 0).expect("the call is answered");
        rig.session = SessionId::agreed(NONCE, nonce).name();
        let told = rig.place(FIRST, Envelope::default(), &Body::Confirm);
        let ours = told.frames.iter().find_map(|(_, body)| match body {
            Body::Key(key) => Some(key.share),
            _ => None,
        });
        let (number, ours) = (SessionId::own(rig.session), ours.expect("our share"));
        rig.bundle.agree(number, &ours, false, true, rig.core.now());
        rig
    }

    pub(in crate::path) fn tell_key(&mut self) {
        self.tell_key_and(1);
    }

    /// The peer acknowledges our share of the key.
    fn has_our_share(&mut self) {
        let ack = Body::Ack(AckBody::new(1, std::time::Duration::ZERO));
        self.place(FIRST, self.envelope(), &ack);
    }

    /// Tells the peer's share, and whether it can add paths.
    fn tell_key_and(&mut self, calls: u8) {
        let envelope = Envelope { session: self.session, span: 1, ..Envelope::default() };
        let key = KeyBody { share: SHARE, calls, reserved: [0; 7] };
        self.place(FIRST, envelope, &Body::Key(key));
    }

    /// The peer calls over a link, and greets. The nonce of the answer, unless that refuses.
    pub(in crate::path) fn greet(&mut self, link: LinkId, flags: u16, session: u32) -> Option<u32> {
        let told =
            self.greet_with(link, Envelope { flags, session, ..Envelope::default() }, |_| ());
        told.answered()
    }

    /// The same with what this makes of the greeting, and all that we answer.
    fn greet_with(
        &mut self,
        link: LinkId,
        envelope: Envelope,
        spoil: impl FnOnce(&mut HelloBody),
    ) -> Told {
        self.core.link_up(link, true);
        let mut hello = self.hello();
        spoil(&mut hello);
        self.place(link, envelope, &Body::Hello(hello))
    }

    /// The greeting of the peer.
    fn hello(&self) -> HelloBody {
        HelloBody {
            endpoint: 9u128.to_le_bytes(),
            cluster: 1u128.to_le_bytes(),
            incarnation: 7.into(),
            host: 0.into(),
            nonce: NONCE.into(),
            mode: MODE_RESUME | MODE_PATHS,
            refusal: 0,
            address_bytes: 0.into(),
            eager_credit: 1024.into(),
            request_credit: 64.into(),
            rts_credit: 64.into(),
            eager_max: 0.into(),
        }
    }

    /// We call the peer for a further path, which answers with its greeting; the nonce of ours.
    fn call(&mut self, link: LinkId) -> u32 {
        let peer = self.peer.expect("a session");
        self.core.peers.get_mut(peer).expect("it is there").reachable = true;
        self.tell_key_and(0);
        let now = self.core.now();
        self.core.advance(now);
        self.told();
        self.core.joining(peer, link, 0);
        self.core.link_up(link, false);
        let nonce = self.told().frames.iter().find_map(|(_, body)| match body {
            Body::Hello(hello) => Some(hello.nonce.get()),
            _ => None,
        });
        let flags = FLAG_ANSWER | FLAG_JOIN;
        let envelope = Envelope { flags, session: self.session, ..Envelope::default() };
        self.place(link, envelope, &Body::Hello(self.hello()));
        nonce.expect("we greet")
    }

    /// The peer proves that it accepted our call.
    fn accept(
        &mut self,
        link: LinkId,
        caller_nonce: u32,
        spoil: impl FnOnce(&mut JoinBody),
    ) -> Told {
        let claim = Claim {
            prover: Prover::Acceptor,
            session: SessionId::own(self.session),
            caller_nonce,
            acceptor_nonce: NONCE,
            path: 0,
            counter: 0,
            rail: 3,
            entropy: 0,
            modes: [0; 2],
        };
        let proof = self.bundle.key().expect("both shares are known").prove(&claim);
        let (path, counter) = (0.into(), 0.into());
        let mut body = join_body(path, counter, 0, proof);
        spoil(&mut body);
        self.place(link, self.envelope(), &Body::Join(body))
    }

    fn envelope(&self) -> Envelope {
        Envelope { session: self.session, ..Envelope::default() }
    }

    pub(in crate::path) fn place(&mut self, link: LinkId, envelope: Envelope, body: &Body) -> Told {
        let mut header = frame::encode(envelope, body);
        frame::seal(&mut header, None);
        self.core.place(link, header.as_bytes(), 0);
        self.told()
    }

    pub(in crate::path) fn told(&mut self) -> Told {
        let mut told = Told::default();
        while let Some(next) = self.core.next_output() {
            match next {
                Next::Frame | Next::PatientFrame => {
                    let (link, header) = (self.core.frame().link, self.core.frame().header);
                    let (_, body) = frame::decode(header.as_bytes()).expect("a legal frame");
                    told.frames.push((link, body.into()));
                }
                Next::Completed => {}
                Next::Other => match self.core.take_output() {
                    Output::Verb(Verb::Close { link }) => told.closed.push(link),
                    Output::Verb(Verb::Expose { link, key, .. }) => told.exposed.push((link, key)),
                    Output::PeerUp { peer } => self.peer = Some(peer),
                    Output::PeerDown { .. } => told.downs += 1,
                    Output::AskHealth { link } => self.core.path_health(link, None),
                    Output::Measure { link } => self.core.path_measured(link, None),
                    Output::Tune { link } => told.tuned.push(link),
                    Output::Connect { .. } => told.calls += 1,
                    _ => {}
                },
            }
        }
        self.core.check();
        told
    }

    /// The proof of the peer for a link whose greeting had this nonce.
    fn proof(&self, acceptor_nonce: u32, path: PathId, counter: u32) -> JoinBody {
        self.proof_from(0, acceptor_nonce, path, counter)
    }

    /// The same, where the peer calls from a source port that its user chose.
    fn proof_from(
        &self,
        entropy: u16,
        acceptor_nonce: u32,
        path: PathId,
        counter: u32,
    ) -> JoinBody {
        let claim = Claim {
            prover: Prover::Caller,
            session: SessionId::own(self.session),
            caller_nonce: NONCE,
            acceptor_nonce,
            path: path.name(),
            counter,
            rail: 3,
            entropy,
            modes: [0; 2],
        };
        let proof = self.bundle.key().expect("both shares are known").prove(&claim);
        let (path, counter) = (path.name().into(), counter.into());
        join_body(path, counter, entropy, proof)
    }

    /// The peer joins over a link, with what this makes of an honest proof.
    pub(in crate::path) fn join(
        &mut self,
        link: LinkId,
        counter: u32,
        spoil: impl FnOnce(&mut JoinBody),
    ) -> Told {
        let nonce = self.greet(link, FLAG_JOIN, self.session).expect("the call is answered");
        let mut body = self.proof(nonce, PathId::of(1, false), counter);
        spoil(&mut body);
        let envelope = Envelope { session: self.session, ..Envelope::default() };
        self.place(link, envelope, &Body::Join(body))
    }

    /// The link that a message leaves over.
    pub(in crate::path) fn leaves_over(&mut self, number: u32) -> Option<LinkId> {
        let slot = SlotId { index: number, generation: 1 };
        let payload = Slice { buffer: BufferId(slot), offset: 0, len: 100 };
        let (peer, channel) = (self.peer.expect("a session"), Channel::Untagged);
        let send = Send { peer, channel, bits: 1, payload, level: Level::Buffered };
        assert!(matches!(self.core.post_send(OperationId(slot), send), Sending::Operation));
        let told = self.told();
        told.frames.iter().find_map(|(link, body)| match body {
            Body::Eager(_) => Some(*link),
            _ => None,
        })
    }
}

#[test]
fn a_proven_link_carries_the_session_when_the_first_one_is_lost() {
    let mut rig = Rig::new();
    rig.tell_key();
    let told = rig.join(link(1, 1), 1, |_| ());
    let welcome = |frame: &(LinkId, Body)| {
        let is_answer = matches!(frame.1, Body::Probe(ProbeBody { is_answer: 1, .. }));
        frame.0 == link(1, 1) && is_answer
    };
    assert!(told.frames.iter().any(welcome), "the peer is told that the path counts");
    assert_eq!(told.tuned, [FIRST, link(1, 1)], "both are paths of several now");
    assert_eq!((rig.core.counters().paths_joined, rig.leaves_over(1)), (1, Some(FIRST)));
    rig.core.link_down(FIRST, Fault::PeerReset);
    let told = rig.told();
    assert_eq!(told.downs, 0, "the session goes on");
    let again =
        |(over, body): &(LinkId, Body)| *over == link(1, 1) && matches!(body, Body::Eager(_));
    assert!(told.frames.iter().any(again), "what was under way goes over the other path at once");
    assert_eq!(rig.leaves_over(2), Some(link(1, 1)));
}

#[test]
fn a_proof_that_was_heard_is_of_no_use_again() {
    let mut rig = Rig::new();
    rig.tell_key();
    let nonce = rig.greet(link(1, 1), FLAG_JOIN, rig.session).expect("an answer");
    let heard = rig.proof(nonce, PathId::of(1, false), 1);
    let envelope = Envelope { session: rig.session, ..Envelope::default() };
    rig.place(link(1, 1), envelope, &Body::Join(heard));
    assert_eq!(rig.core.counters().paths_joined, 1);
    rig.core.link_down(link(1, 1), Fault::Closed);
    rig.told();
    // Over another link the other side drew another nonce.
    let told = rig.join(link(1, 2), 1, |body| *body = heard);
    assert_eq!((told.closed, rig.core.counters().paths_joined), (vec![link(1, 2)], 1));
    // And an attempt that is not newer than one that was proven is none.
    let told = rig.join(link(1, 3), 1, |_| ());
    assert_eq!((told.closed, rig.core.counters().paths_joined), (vec![link(1, 3)], 1));
    rig.join(link(1, 4), 2, |_| ());
    assert_eq!(rig.core.counters().paths_joined, 2);
}

#[test]
fn links_of_sessions_that_are_never_idle_closed_are_not_looked_at_in_vain() {
    let mut rig = Rig::new();
    rig.core.config.links_max = 0;
    rig.core.close_surplus();
    assert_eq!((rig.core.counters().links_over, rig.core.sweep_at), (1, Time::NEVER));
}

#[test]
fn a_session_numbers_from_its_beginning_where_both_greetings_said_so() {
    for (before, after) in [(1, 2), (2, 1)] {
        for calls in [true, false] {
            let mut rig = Rig::new();
            rig.core.forget_peer(rig.peer.expect("a session"));
            rig.told();
            rig.core.set_paths_max(before);
            let over = link(0, 7);
            let told = if calls {
                let peer = rig.core.add_peer(true).expect("there is room");
                let called = Called { way: 0, is_alone: true, is_told: false };
                rig.core.connecting(peer, over, called);
                rig.core.link_up(over, false);
                rig.told();
                // An endpoint that gets another rail may have several paths from then on.
                rig.core.set_paths_max(after);
                let hello = Body::Hello(rig.hello());
                rig.place(over, Envelope { flags: FLAG_ANSWER, ..Envelope::default() }, &hello)
            } else {
                rig.greet(over, 0, 0).expect("the call is answered");
                rig.core.set_paths_max(after);
                rig.place(over, Envelope::default(), &Body::Confirm)
            };
            let keys = told.frames.iter().filter(|(_, body)| matches!(body, Body::Key(_)));
            assert_eq!(keys.count(), usize::from(before > 1), "calls: {calls}, {before} at first");
        }
    }
}

#[test]
fn a_peer_names_a_bounded_number_of_paths() {
    let mut rig = Rig::new();
    rig.tell_key();
    for number in 1..=100 {
        let over = link(1, number);
        let nonce = rig.greet(over, FLAG_JOIN, rig.session).expect("the call is answered");
        let body = rig.proof(nonce, PathId::of(number, false), number);
        let envelope = Envelope { session: rig.session, ..Envelope::default() };
        rig.place(over, envelope, &Body::Join(body));
        rig.core.link_down(over, Fault::PeerReset);
        assert_eq!(rig.told().downs, 0, "the session goes on over the first path");
    }
    assert_eq!(rig.core.counters().paths_joined, 63);
}

#[test]
fn calls_that_name_no_session_that_takes_paths_are_refused() {
    let mut rig = Rig::new();
    assert_eq!(rig.greet(link(1, 1), FLAG_JOIN, rig.session), None, "its share is not known");
    rig.tell_key();
    assert_eq!(rig.greet(link(1, 2), FLAG_JOIN, rig.session ^ 2), None, "another session");
    assert_eq!(rig.greet(link(1, 3), FLAG_JOIN, 0), None);
    // Proofs and welcomes on links that nobody asked for end these, and no others.
    for (number, body) in [(4, rig.proof(1, PathId::of(1, false), 1).into()), (5, probe())] {
        rig.core.link_up(link(1, number), true);
        let envelope = Envelope { session: rig.session, ..Envelope::default() };
        rig.place(link(1, number), envelope, &body);
    }
    let envelope = Envelope { session: rig.session, ..Envelope::default() };
    let told = rig.place(FIRST, envelope, &probe());
    assert!(told.frames.is_empty(), "an answer to what nobody asked");
    assert_eq!((rig.core.counters().paths_joined, rig.leaves_over(1)), (0, Some(FIRST)));
}

fn probe() -> Body {
    Body::Probe(ProbeBody { is_answer: 1, reserved: [0; 7] })
}

/// The peer says over a link that a path is broken; frames by which we react.
fn say_broken(rig: &mut Rig, over: LinkId, path: PathId, cause: u8) -> Vec<(LinkId, Body)> {
    let envelope = Envelope { session: rig.session, ..Envelope::default() };
    let path = path.name().into();
    let body = SuspectBody { path, cause, reserved: [0; 3], span: 0.into() };
    let mut frames = rig.place(over, envelope, &Body::Suspect(body)).frames;
    rig.core.run_due();
    frames.extend(rig.told().frames);
    frames
}

fn is_question((_, body): &&(LinkId, Body)) -> bool {
    matches!(body, Body::Probe(ProbeBody { is_answer: 0, .. }))
}

fn at(rig: &mut Rig, millis: u64) {
    rig.core.advance(Time::ZERO + std::time::Duration::from_millis(millis));
    rig.told();
}

#[test]
fn a_path_that_the_peer_says_is_broken_is_left_and_probed_at_once() {
    let mut rig = Rig::new();
    rig.tell_key();
    rig.join(link(1, 1), 1, |_| ());
    at(&mut rig, 1000);
    assert_eq!(rig.leaves_over(1), Some(FIRST));
    let frames = say_broken(&mut rig, link(1, 1), PathId::FIRST, Suspicion::CarrierLost.to_wire());
    let again =
        |(over, body): &(LinkId, Body)| *over == link(1, 1) && matches!(body, Body::Eager(_));
    assert!(frames.iter().any(again), "what was under way goes over the other path");
    assert!(frames.iter().filter(is_question).any(|(over, _)| *over == FIRST));
    assert_eq!((rig.leaves_over(2), rig.core.counters().paths_suspected), (Some(link(1, 1)), 1));
    // The path answers: it was a mistake, or over.
    let envelope = Envelope { session: rig.session, ..Envelope::default() };
    rig.place(FIRST, envelope, &probe());
    assert_eq!((rig.leaves_over(3), rig.core.counters().paths_lost), (Some(FIRST), 0));
}

#[test]
fn words_about_broken_paths_that_are_wrong_change_nothing() {
    let mut rig = Rig::new();
    rig.tell_key();
    assert!(say_broken(&mut rig, FIRST, PathId::FIRST, 1).is_empty(), "there is one path");
    rig.join(link(1, 1), 1, |_| ());
    at(&mut rig, 1000);
    let second = PathId::of(1, false);
    // About the path that it comes over; about paths that nobody named; of another session.
    for (over, path) in [(FIRST, PathId::FIRST), (link(1, 1), second), (FIRST, PathId::named(77))] {
        assert!(say_broken(&mut rig, over, path, 1).is_empty());
    }
    let known = rig.session;
    rig.session ^= 2;
    say_broken(&mut rig, link(1, 1), PathId::FIRST, 1);
    rig.session = known;
    assert_eq!(rig.core.counters().paths_suspected_by_peers, 0);
    // Said all the time, it costs a probe each 25 ms and nothing else. Causes of later versions are causes.
    rig.join(link(1, 2), 2, |_| ());
    let envelope = Envelope { session: rig.session, ..Envelope::default() };
    let mut questions = 0;
    for milli in 2000..2100 {
        at(&mut rig, milli);
        let frames = say_broken(&mut rig, FIRST, second, milli as u8);
        questions += frames.iter().filter(is_question).filter(|(over, _)| over.rail == 1).count();
        for over in [FIRST, link(1, 2)] {
            rig.place(over, envelope, &probe());
        }
    }
    assert_eq!(rig.core.counters().paths_suspected_by_peers, 4);
    assert!((1..=4).contains(&questions), "{questions}");
    assert_eq!((rig.core.counters().paths_dead, rig.leaves_over(9)), (0, Some(FIRST)));
}

#[test]
fn what_a_rail_sees_of_a_path_is_told_over_the_others() {
    let mut rig = Rig::new();
    rig.tell_key();
    rig.core.suspect(FIRST, Suspicion::CarrierLost);
    assert!(rig.told().frames.is_empty(), "there is one path");
    rig.join(link(1, 1), 1, |_| ());
    rig.core.suspect(FIRST, Suspicion::RouteGone);
    rig.core.suspect(link(1, 1), Suspicion::InterfaceGone);
    let told: Vec<_> = rig
        .told()
        .frames
        .into_iter()
        .filter_map(|(over, body)| match body {
            Body::Suspect(word) => Some((over, word.path.get(), word.cause)),
            _ => None,
        })
        .collect();
    assert_eq!(told, [(link(1, 1), 0, 5), (FIRST, PathId::of(1, false).name(), 3)]);
}

#[test]
fn a_rail_that_carries_a_path_carries_no_other() {
    let mut rig = Rig::new();
    rig.tell_key();
    let told = rig.join(link(0, 2), 1, |_| ());
    assert_eq!((told.closed, told.downs), (vec![link(0, 2)], 0));
    assert_eq!((rig.core.counters().paths_joined, rig.leaves_over(1)), (0, Some(FIRST)));
}

#[test]
fn a_link_that_joins_is_welcome_before_anything_else_comes_over_it() {
    let mut rig = Rig::new();
    rig.tell_key();
    rig.join(link(1, 1), 1, |_| ());
    rig.core.link_down(FIRST, Fault::PeerReset);
    rig.told();
    assert_eq!(rig.leaves_over(1), Some(link(1, 1)), "it waits for an acknowledgement");
    // The peer has lost that link, and we do not know it yet.
    let told = rig.join(link(1, 2), 2, |_| ());
    let over: Vec<&Body> =
        told.frames.iter().filter(|frame| frame.0 == link(1, 2)).map(|frame| &frame.1).collect();
    assert!(matches!(over[0], Body::Probe(ProbeBody { is_answer: 1, .. })), "{over:?}");
    assert!(over.iter().any(|body| matches!(body, Body::Eager(_))), "{over:?}");
}

#[test]
fn a_region_that_is_made_while_a_welcome_is_awaited_is_known_over_that_link_too() {
    let mut rig = Rig::over(true);
    let nonce = rig.call(link(1, 1));
    let slice = Slice { buffer: BufferId(SlotId { index: 7, generation: 1 }), offset: 0, len: 9 };
    let expose = |rig: &mut Rig, audience| {
        let key = rig.core.expose(slice, true, audience).expect("there is room");
        let told = rig.told();
        let over = |link| told.exposed.iter().filter(|it| **it == (link, key)).count();
        [over(FIRST), over(link(1, 1))]
    };
    let audiences = [Audience::Everybody, Audience::One(rig.peer.expect("a session"))];
    let before = audiences.map(|audience| expose(&mut rig, audience));
    assert_eq!(before, [[1, 0]; 2], "nobody has proven anything");
    let told = rig.accept(link(1, 1), nonce, |_| ());
    assert_eq!(told.exposed.iter().filter(|(over, _)| *over == link(1, 1)).count(), 2);
    // The peer may use the link as soon as it has our proof.
    let meanwhile = audiences.map(|audience| expose(&mut rig, audience));
    assert_eq!(meanwhile, [[1, 1]; 2]);
    let told = rig.place(link(1, 1), rig.envelope(), &probe());
    assert_eq!((rig.core.counters().paths_joined, told.exposed.len()), (1, 0));
    assert_eq!(audiences.map(|audience| expose(&mut rig, audience)), [[1, 1]; 2]);
}

#[test]
fn a_peer_that_accepts_a_call_without_a_proof_gets_no_path() {
    let spoils: [fn(&mut JoinBody); 4] = [
        |body| body.proof[0] ^= 1,
        |body| body.path = 2.into(),
        |body| body.counter = 1.into(),
        |body| body.rail = 4,
    ];
    for spoil in spoils {
        let mut rig = Rig::over(true);
        let key = rig.core.expose(Slice::NONE, true, Audience::Everybody);
        rig.told();
        let nonce = rig.call(link(1, 1));
        let told = rig.accept(link(1, 1), nonce, spoil);
        assert_eq!((told.closed, told.downs), (vec![link(1, 1)], 0));
        assert!(told.exposed.is_empty(), "{key:?} is for peers that have proven themselves");
        // A welcome behind it comes too late.
        let told = rig.place(link(1, 1), rig.envelope(), &probe());
        assert!(told.frames.is_empty());
        rig.core.link_down(link(1, 1), Fault::Closed);
        assert_eq!((rig.told().downs, rig.core.counters().paths_joined), (0, 0));
        assert_eq!(rig.leaves_over(1), Some(FIRST));
    }
}

#[test]
fn a_path_whose_welcome_comes_too_late_keeps_its_number_for_the_next_attempt() {
    let mut rig = Rig::new();
    rig.has_our_share();
    let mut named = Vec::new();
    for number in 1..80 {
        let over = link(1, number);
        let nonce = rig.call(over);
        let told = rig.accept(over, nonce, |_| ());
        named.extend(told.frames.iter().filter_map(|(_, body)| match body {
            Body::Join(join) => Some((join.path.get(), join.counter.get())),
            _ => None,
        }));
        let late = rig.core.now() + std::time::Duration::from_secs(1);
        rig.core.advance(late);
        assert_eq!(rig.told().closed, [over]);
        rig.core.link_down(over, Fault::Closed);
        let again = rig.core.now() + std::time::Duration::from_secs(11);
        rig.core.advance(again);
        rig.told();
    }
    // The peer has joined each of them, and knows one path that has lost its link.
    let path = PathId::of(1, true).name();
    let expected: Vec<(u32, u32)> = (1..80).map(|counter| (path, counter)).collect();
    assert_eq!(named, expected);
}

/// No other path can join before both have the key, so that nothing else finds out that a rail has died just then.
#[test]
fn the_only_path_is_lost_if_it_is_silent_before_the_key_is_shared() {
    for is_known in [false, true] {
        let mut rig = Rig::new();
        let peer = rig.peer.expect("a session");
        rig.core.peers.get_mut(peer).expect("it is there").reachable = true;
        if is_known {
            rig.tell_key_and(0);
        }
        let begin = rig.core.now();
        let mut lost = None;
        for millis in (100..5_000).step_by(100) {
            rig.core.advance(begin + std::time::Duration::from_millis(millis));
            let told = rig.told();
            assert_eq!(told.downs, 0, "the session goes on");
            if told.closed.contains(&FIRST) {
                lost = Some((millis, told.calls));
                break;
            }
        }
        assert_eq!(lost, Some((2_000, 1)), "the peer is called again");
    }
    let mut rig = Rig::new();
    rig.tell_key();
    rig.has_our_share();
    let after = rig.core.now() + std::time::Duration::from_secs(20);
    assert!(rig.leaves_over(1).is_some());
    rig.core.advance(after);
    assert_eq!(rig.told().closed, [], "a path that has shown the key is judged beside others");
}

#[test]
fn the_only_path_stays_if_its_peer_has_not_read_yet_before_the_key_is_shared() {
    let mut rig = Rig::new();
    let begin = rig.core.now();
    for millis in (100..20_000).step_by(100) {
        rig.core.advance(begin + std::time::Duration::from_millis(millis));
        while let Some(next) = rig.core.next_output() {
            if let Next::Other = next
                && let Output::AskHealth { link } = rig.core.take_output()
            {
                let health = Health { silence_tells: true, ..Health::of_memory(begin) };
                rig.core.path_health(link, Some(&health));
            }
        }
    }
    assert!(rig.leaves_over(1).is_some());
    assert_eq!(rig.core.counters().paths_dead, 0);
}

#[test]
fn a_welcome_without_a_proof_makes_no_path() {
    let mut rig = Rig::new();
    rig.call(link(1, 1));
    rig.place(link(1, 1), rig.envelope(), &probe());
    rig.core.link_down(link(1, 1), Fault::Protocol);
    assert_eq!((rig.told().downs, rig.core.counters().paths_joined), (0, 0));
    assert_eq!(rig.leaves_over(1), Some(FIRST));
}

#[test]
fn a_region_that_is_made_between_greeting_and_confirmation_is_known_over_that_link_too() {
    let mut rig = Rig::over(true);
    let (peer, session) = (rig.peer.expect("a session"), rig.session);
    // The peer has lost the first link, and we do not know it yet.
    rig.greet(link(1, 1), FLAG_INSIST, session).expect("the call is answered");
    let slice = Slice { buffer: BufferId(SlotId { index: 7, generation: 1 }), offset: 0, len: 9 };
    let key = rig.core.expose(slice, false, Audience::One(peer)).expect("there is room");
    assert_eq!(rig.told().exposed, [(FIRST, key), (link(1, 1), key)]);
    rig.place(link(1, 1), Envelope::default(), &Body::Confirm);
    assert_eq!(rig.core.counters().sessions, 1);
}

#[test]
fn a_call_that_reaches_nobody_ends_no_session_that_another_path_carries() {
    let mut rig = Rig::new();
    rig.tell_key();
    let peer = rig.peer.expect("a session");
    // The only path is lost, the peer is called, and meanwhile a path joins.
    let nonce = rig.greet(link(1, 1), FLAG_JOIN, rig.session).expect("the call is answered");
    rig.core.link_down(FIRST, Fault::PeerReset);
    let body = rig.proof(nonce, PathId::of(1, false), 1);
    rig.place(link(1, 1), rig.envelope(), &Body::Join(body));
    assert_eq!(rig.core.counters().paths_joined, 1);
    rig.core.unreachable(peer);
    assert_eq!((rig.told().downs, rig.leaves_over(1)), (0, Some(link(1, 1))));
}

#[test]
fn a_session_whose_peer_breaks_the_protocol_on_one_path_keeps_no_link() {
    let mut rig = Rig::new();
    rig.tell_key();
    rig.join(link(1, 1), 1, |_| ());
    let envelope = rig.envelope();
    // A frame with an effect has a span.
    rig.place(
        link(1, 1),
        envelope,
        &Body::Key(KeyBody { share: SHARE, calls: 1, reserved: [0; 7] }),
    );
    rig.core.link_down(link(1, 1), Fault::Protocol);
    let told = rig.told();
    assert_eq!((told.closed, told.downs), (vec![FIRST], 1));
}
