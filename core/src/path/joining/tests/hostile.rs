//! Frames that overtake each other, that belong to an earlier session, or that nobody asked for.

use ropewalk_base::health::Suspicion;
use ropewalk_wire::frame::{AbortBody, AckBody, EagerBody, RtsBody};

use super::*;

impl Rig {
    fn post_receive(&mut self, number: u32) {
        let slot = SlotId { index: number, generation: 1 };
        let into = Slice { buffer: BufferId(slot), offset: 0, len: 1 << 20 };
        let (channel, oversize) = (Channel::Tagged, Oversize::Truncate);
        let receive = Receive { channel, source: None, bits: 0, mask: 0, into, oversize };
        self.core.post_receive(OperationId(slot), receive);
    }

    /// A span of the peer's.
    fn span(&mut self, span: u64, body: impl Into<Body>) -> Told {
        let envelope = Envelope { span, ..self.envelope() };
        self.place(FIRST, envelope, &body.into())
    }
}

/// Whether a receive asks for a message that was withdrawn before its announce came, in this order: the numbers of the
/// spans of the announce and of its end.
fn asks_for_what_was_withdrawn(plant: Plant, held: bool) -> bool {
    let mut rig = Rig::planted(false, plant);
    rig.post_receive(1);
    let channel = Channel::Tagged as u8;
    let announce = |message: u64| RtsBody {
        bits: 1.into(),
        message: message.into(),
        channel,
        alone: 0,
        reserved: [0; 6],
        total_bytes: 100_000.into(),
        key_slot: 1.into(),
        key_secret: 1.into(),
    };
    let abort = AbortBody { message: 0.into(), channel, reserved: [0; 7] };
    // The second message waits for the first one, or the end of the first one comes before it.
    let number = u64::from(held);
    let abort = AbortBody { message: number.into(), ..abort };
    let mut told = Vec::new();
    if held {
        told.extend(rig.span(2, announce(1)).frames);
        told.extend(rig.span(3, abort).frames);
        // The first one is short, and the receive takes it.
        told.extend(rig.span(1, EagerBody::whole(1, 0, channel, 0)).frames);
        rig.post_receive(2);
        told.extend(rig.told().frames);
    } else {
        told.extend(rig.span(2, abort).frames);
        told.extend(rig.span(1, announce(0)).frames);
    }
    let asks = told.iter().any(|(_, body)| matches!(body, Body::Get(_)));
    let holdings = rig.core.held();
    assert!(asks || (holdings.messages, holdings.operations) == (0, 1), "{holdings:?}");
    asks
}

#[test]
fn an_announce_that_was_withdrawn_before_its_turn_is_taken_by_no_receive() {
    for held in [false, true] {
        assert!(!asks_for_what_was_withdrawn(Plant::Nothing, held), "held: {held}");
        assert!(asks_for_what_was_withdrawn(Plant::SkipOmitted, held), "nobody would notice");
    }
}

#[test]
fn a_peer_that_withdraws_what_it_never_announced_costs_bounded_memory() {
    let mut rig = Rig::new();
    for number in 0..3000 {
        let message = (5000 + number).into();
        let channel = Channel::Tagged as u8;
        rig.span(1 + number, AbortBody { message, channel, reserved: [0; 7] });
    }
    assert_eq!(rig.core.held().messages, 1024);
}

/// A message of an earlier session comes.
fn hear_an_earlier_session(plant: Plant) {
    let mut rig = Rig::planted(false, plant);
    let earlier = Envelope { session: rig.session ^ 4, span: 1, ..Envelope::default() };
    rig.place(FIRST, earlier, &EagerBody::whole(1, 0, Channel::Tagged as u8, 0).into());
    assert_eq!(rig.core.counters().messages_unmatched, 0);
}

#[test]
fn a_frame_of_an_earlier_session_is_not_taken() {
    hear_an_earlier_session(Plant::Nothing);
    let planted = std::panic::catch_unwind(|| hear_an_earlier_session(Plant::OldSessionTaken));
    assert!(planted.is_err(), "nobody would notice");
}

#[test]
fn path_frames_of_strangers_change_nothing() {
    let mut rig = Rig::new();
    rig.tell_key();
    rig.join(link(1, 1), 1, |_| ());
    let before = rig.core.held();
    let proof = rig.proof(1, PathId::of(2, false), 7);
    let (cause, span) = (Suspicion::RouteGone.to_wire(), 1.into());
    let word = SuspectBody { path: 0.into(), cause, reserved: [0; 3], span };
    let bodies: [Body; 5] = [
        proof.into(),
        probe(),
        Body::Ack(AckBody::new(1000, std::time::Duration::ZERO)),
        Body::Suspect(word),
        Body::Key(KeyBody { share: [9; SHARE_BYTES], calls: 0, reserved: [0; 7] }),
    ];
    // Over links of their own, which never greeted, or greeted as somebody else who joins.
    for number in 10..1000 {
        let over = link(1, number);
        rig.core.link_up(over, true);
        let body = &bodies[number as usize % bodies.len()];
        let told = rig.place(over, rig.envelope(), body);
        assert!(told.frames.is_empty() && told.downs == 0, "{body:?}");
        rig.core.link_down(over, Fault::Protocol);
        assert_eq!(rig.told().downs, 0, "{body:?}");
    }
    assert_eq!(rig.core.held(), before);
    let counters = rig.core.counters();
    assert_eq!((counters.paths_joined, counters.paths_suspected), (1, 0));
    assert_eq!(rig.leaves_over(1), Some(FIRST));
}

#[test]
fn callers_that_join_and_prove_nothing_are_a_bounded_number() {
    let mut rig = Rig::new();
    rig.tell_key();
    let open = |rig: &Rig| {
        let links = rig.core.links.iter();
        links.filter(|(_, state)| state.stage != super::super::LinkStage::Closing).count()
    };
    for number in 1..6000 {
        rig.greet(link(1, number), FLAG_JOIN, rig.session).expect("the call is answered");
        assert!(open(&rig) <= 5000, "{number} callers");
    }
    let now = rig.core.now() + std::time::Duration::from_secs(60);
    rig.core.advance(now);
    rig.told();
    assert_eq!((open(&rig), rig.core.counters().paths_joined), (1, 0));
    assert_eq!(rig.leaves_over(1), Some(FIRST));
}

/// The peer joins over a link from a source port, with the next number of a path and of an attempt. Whether it may.
fn joins_from(rig: &mut Rig, entropy: u16, link: LinkId, number: u32) -> bool {
    let before = rig.core.counters().paths_joined;
    let Some(nonce) = rig.greet(link, FLAG_JOIN, rig.session) else { return false };
    let body = rig.proof_from(entropy, nonce, PathId::of(number, false), number);
    rig.place(link, rig.envelope(), &Body::Join(body));
    rig.core.counters().paths_joined > before
}

#[test]
fn a_peer_joins_over_one_rail_once_for_each_source_port_and_no_more_often_than_it_may() {
    let mut rig = Rig::new();
    rig.core.set_paths_max(4);
    rig.tell_key();
    // The session itself is over the first rail.
    assert!(!joins_from(&mut rig, 0, link(0, 2), 1), "the rail carries a path");
    assert!(joins_from(&mut rig, 7, link(0, 3), 2));
    assert!(!joins_from(&mut rig, 7, link(0, 4), 3), "that port has one");
    assert!(!joins_from(&mut rig, 0, link(0, 5), 4));
    assert!(joins_from(&mut rig, 8, link(0, 6), 5) && joins_from(&mut rig, 7, link(1, 7), 6));
    for (number, port) in (100..400).enumerate() {
        let link = link(0, 10 + number as u32);
        assert!(!joins_from(&mut rig, port, link, 10 + number as u32), "four are enough");
    }
    let peer = rig.peer.expect("a session");
    let entries = rig.core.roles_of(peer).expect("several").entries();
    let known: Vec<_> =
        entries.iter().map(|it| (it.record.entropy, it.record.local_rail)).collect();
    assert_eq!(known, [(0, 0), (7, 0), (8, 0), (7, 1)]);
    assert_eq!(rig.leaves_over(1), Some(FIRST));
    assert_eq!(rig.core.counters().violations, 0);
}

#[test]
fn a_link_that_proves_nothing_changes_nothing() {
    let spoils: [fn(&mut JoinBody); 5] = [
        |body| body.proof[31] ^= 1,
        |body| body.path = 5.into(),
        |body| body.counter = 2.into(),
        |body| body.rail = 4,
        |body| body.entropy = 7.into(),
    ];
    let mut rig = Rig::new();
    rig.tell_key();
    for (number, spoil) in (1..).zip(spoils) {
        let told = rig.join(link(1, number), 1, spoil);
        assert_eq!((told.closed, told.downs), (vec![link(1, number)], 0));
        assert_eq!(rig.core.counters().joins_refused, u64::from(number));
        assert_eq!(rig.leaves_over(number), Some(FIRST));
        rig.core.link_down(link(1, number), Fault::Closed);
    }
    assert_eq!(rig.core.counters().paths_joined, 0);
    rig.join(link(1, 9), 1, |_| ());
    assert_eq!(rig.core.counters().paths_joined, 1, "nothing stands in the way of the honest one");
}
