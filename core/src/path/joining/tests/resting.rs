//! Sessions with spans that are idle while there are too many links, and what crosses their coming to rest.

use std::time::Duration;

use ropewalk_base::verb::Placement;
use ropewalk_wire::frame::{AckBody, EagerBody};

use super::*;
use crate::apm::Policy;

const SECOND: LinkId = link(1, 1);
const SOME_TIME: Duration = Duration::from_millis(100);

impl Rig {
    /// Both sides have the key, and each can call the other. `paths`: one, or two.
    fn crowded(paths: usize) -> Rig {
        let mut rig = Rig::shared();
        let peer = rig.peer.expect("a session");
        rig.core.peers.get_mut(peer).expect("it is there").reachable = true;
        rig.core.greeting =
            Slice { buffer: BufferId(SlotId { index: 9, generation: 1 }), offset: 0, len: 1 };
        rig.core.config.path_policy = Policy::Nothing;
        if paths == 2 {
            rig.join(SECOND, 1, |_| ());
        }
        // What is due is acknowledged.
        rig.core.advance(rig.core.now() + SOME_TIME / 10);
        rig.told();
        rig
    }

    /// There are too many links, and time for a look at them. The links that we offer to do without.
    fn pass(&mut self) -> Vec<LinkId> {
        let mut asked = Vec::new();
        for _ in 0..10 {
            let later = self.core.now() + SOME_TIME / 10;
            self.core.advance(later);
            let told = self.told();
            asked.extend(links_with(&told, &Body::CloseIdle));
            for (over, _) in told.frames.iter().filter(is_question) {
                // The peer lives.
                self.says(*over, &probe());
            }
        }
        self.core.config.links_max = 0;
        self.core.close_surplus();
        asked.extend(links_with(&self.told(), &Body::CloseIdle));
        asked
    }

    fn says(&mut self, over: LinkId, body: &Body) -> Told {
        self.place(over, self.envelope(), body)
    }

    /// The peer agrees to do without a link, which ends.
    fn agrees(&mut self, over: LinkId) -> Told {
        let told = self.says(over, &Body::CloseIdle);
        assert_eq!((&told.closed, told.downs), (&vec![over], 0));
        self.core.link_down(over, Fault::Closed);
        told
    }

    /// It has come to rest over its only path.
    fn at_rest() -> Rig {
        let mut rig = Rig::crowded(1);
        assert_eq!(rig.pass(), [FIRST]);
        rig.agrees(FIRST);
        rig.check_rest();
        rig
    }

    fn check_rest(&mut self) {
        let peer = self.core.peers.get(self.peer.expect("a session")).expect("it is there");
        assert!(peer.session.as_ref().expect("it goes on").paths.is_resting());
        assert_eq!(peer.due(), Time::NEVER, "nothing is due");
        self.core.advance(self.core.now() + Duration::from_secs(1000));
        let told = self.told();
        assert_eq!((told.calls, told.frames.len(), told.downs), (0, 0, 0));
    }

    /// The peer answers our call and proves itself. What we say over the link.
    fn answers(&mut self, over: LinkId, nonce: u32) -> Told {
        let envelope = Envelope { flags: FLAG_ANSWER | FLAG_JOIN, ..self.envelope() };
        let hello = Body::Hello(self.hello());
        self.place(over, envelope, &hello);
        let body = self.carrying_proof(Prover::CarryingAcceptor, nonce);
        self.says(over, &body)
    }

    /// The peer calls, and carries the session on.
    fn calls(&mut self, over: LinkId) -> Told {
        let told = self.greet_with(over, self.names(), |_| ());
        let body = self.carrying_proof(Prover::CarryingCaller, told.answered().expect("an answer"));
        self.says(over, &body)
    }
}

/// The links over which we say that.
fn links_with(told: &Told, body: &Body) -> Vec<LinkId> {
    let kind = std::mem::discriminant(body);
    let such = told.frames.iter().filter(|(_, it)| std::mem::discriminant(it) == kind);
    such.map(|(link, _)| *link).collect()
}

fn has_eager(told: &Told, over: LinkId) -> bool {
    told.frames.iter().any(|(link, body)| *link == over && matches!(body, Body::Eager(_)))
}

#[test]
fn an_idle_session_leaves_its_second_path_first_and_then_the_one_that_carries() {
    let mut rig = Rig::crowded(2);
    assert_eq!(rig.pass(), [SECOND]);
    assert_eq!(rig.pass(), [], "it was asked");
    rig.agrees(SECOND);
    assert_eq!(
        (rig.core.counters().paths_rested, rig.core.counters().sessions_idle_closed),
        (1, 0)
    );
    let asked: Vec<LinkId> = (0..4).flat_map(|_| rig.pass()).collect();
    assert_eq!(asked, [FIRST]);
    rig.agrees(FIRST);
    rig.check_rest();
    let counters = rig.core.counters();
    assert_eq!(
        (counters.sessions_idle_closed, counters.paths_lost, counters.violations),
        (1, 0, 0)
    );
    assert_eq!((counters.sessions, counters.resets), (1, 0));
}

#[test]
fn a_session_with_something_under_way_keeps_its_links() {
    for paths in [1, 2] {
        let mut rig = Rig::crowded(paths);
        assert_eq!(rig.leaves_over(1), Some(FIRST));
        let asked: Vec<LinkId> = (0..9).flat_map(|_| rig.pass()).collect();
        assert_eq!(asked, [], "its message is not acknowledged");
        let over = if paths == 2 { SECOND } else { FIRST };
        let told = rig.says(over, &Body::CloseIdle);
        assert_eq!((links_with(&told, &Body::KeepOpen), told.closed), (vec![over], vec![]));
    }
}

#[test]
fn the_path_that_carries_is_not_left_before_the_others() {
    let mut rig = Rig::crowded(2);
    let told = rig.says(FIRST, &Body::CloseIdle);
    assert_eq!((links_with(&told, &Body::KeepOpen), told.closed), (vec![FIRST], vec![]));
    let told = rig.agrees(SECOND);
    assert_eq!(links_with(&told, &Body::CloseIdle), [SECOND], "we agree");
    let told = rig.agrees(FIRST);
    assert_eq!(links_with(&told, &Body::CloseIdle), [FIRST]);
    rig.check_rest();
}

#[test]
fn who_is_told_to_keep_a_link_goes_on_over_it() {
    let mut rig = Rig::crowded(1);
    assert_eq!(rig.pass(), [FIRST]);
    let told = rig.says(FIRST, &Body::KeepOpen);
    assert!(told.closed.is_empty());
    assert_eq!((rig.core.counters().idle_closes_refused, rig.leaves_over(1)), (1, Some(FIRST)));
    let mut rig = Rig::crowded(1);
    rig.says(FIRST, &Body::KeepOpen);
    assert_eq!(rig.core.counters().violations, 1, "nobody asked");
}

#[test]
fn a_message_wakes_a_session_which_goes_on_over_a_proven_call() {
    let mut rig = Rig::at_rest();
    assert_eq!(rig.leaves_over(1), None);
    let nonce = rig.call_again(link(0, 2));
    let told = rig.answers(link(0, 2), nonce);
    assert!(has_eager(&told, link(0, 2)));
    let counters = rig.core.counters();
    assert_eq!((counters.sessions, counters.resets, counters.sessions_resumed), (1, 0, 1));
}

#[test]
fn a_message_after_the_offer_goes_again_when_the_peer_has_agreed() {
    let mut rig = Rig::crowded(1);
    assert_eq!(rig.pass(), [FIRST]);
    assert_eq!(rig.leaves_over(1), Some(FIRST), "an offer binds nobody");
    let told = rig.agrees(FIRST);
    assert_eq!(told.calls, 1, "the message was lost with the link");
    let nonce = rig.call_again(link(0, 2));
    assert!(has_eager(&rig.answers(link(0, 2), nonce), link(0, 2)));
    let told = rig.says(link(0, 2), &Body::Ack(AckBody::new(2, Duration::ZERO)));
    assert_eq!((told.downs, rig.core.counters().violations), (0, 0));
}

#[test]
fn a_message_over_a_path_that_was_left_goes_again_over_the_other_one() {
    let mut rig = Rig::crowded(2);
    assert_eq!(rig.pass(), [SECOND]);
    rig.core.peers.session_mut(rig.peer.expect("a session")).expect("it is up").paths.prefer(3);
    assert_eq!(rig.leaves_over(1), Some(SECOND));
    assert!(has_eager(&rig.agrees(SECOND), FIRST));
}

#[test]
fn an_answer_that_is_lost_costs_a_call() {
    // We agreed, and the peer does not know that.
    let mut rig = Rig::at_rest();
    assert_eq!(rig.calls(link(0, 2)).downs, 0);
    assert_eq!(rig.leaves_over(1), Some(link(0, 2)));
    // The peer agreed, perhaps, and we do not know that: it would call nobody, so that we call by what it has told us.
    let mut rig = Rig::crowded(1);
    let peer = rig.peer.expect("a session");
    assert_eq!(rig.pass(), [FIRST]);
    rig.core.peers.get_mut(peer).expect("it is there").reachable = false;
    rig.core.link_down(FIRST, Fault::PeerReset);
    rig.core.advance(rig.core.now() + SOME_TIME);
    assert_eq!(rig.told().calls, 1);
}

#[test]
fn a_call_that_overtakes_the_answer_carries_the_session_on() {
    let mut rig = Rig::crowded(1);
    assert_eq!(rig.pass(), [FIRST]);
    let told = rig.calls(link(1, 7));
    assert_eq!((told.closed, told.downs), (vec![FIRST], 0));
    let late = rig.says(FIRST, &Body::CloseIdle);
    assert!(late.closed.is_empty() && late.frames.is_empty());
    assert_eq!(rig.leaves_over(1), Some(link(1, 7)));
}

/// The peer sends a request, which waits here.
fn request(rig: &mut Rig, message: u64, bytes: u32) {
    let (channel, level) = (Channel::Request as u8, Level::Buffered as u8);
    let body = Body::Eager(EagerBody::whole(1, message, channel, level));
    let (span, payload_bytes) = (2 + message, bytes);
    let mut header = frame::encode(Envelope { span, payload_bytes, ..rig.envelope() }, &body);
    frame::seal(&mut header, None);
    match rig.core.place(FIRST, header.as_bytes(), bytes) {
        Placement::Stage { token, .. } => {
            rig.core.staged(token, BufferId(SlotId { index: 3, generation: 1 }), bytes);
            rig.core.received(token, &[]);
        }
        other => panic!("{other:?}"),
    }
    rig.told();
}

#[test]
fn credit_that_comes_back_while_it_rests_wakes_nobody_and_is_told_later() {
    const BYTES: u32 = 16_000;
    let mut rig = Rig::crowded(1);
    (0..3).for_each(|message| request(&mut rig, message, BYTES));
    let asked: Vec<LinkId> = (0..4).flat_map(|_| rig.pass()).collect();
    assert_eq!(asked, [FIRST], "a message that waits here holds nothing up");
    rig.agrees(FIRST);
    let peer = rig.peer.expect("a session");
    (0..3).for_each(|_| rig.core.request_taken(peer, rig.session, BYTES));
    let told = rig.told();
    assert_eq!((told.calls, told.frames.len()), (0, 0));
    let told = rig.calls(link(0, 2));
    let credit = told.frames.iter().filter(|(_, body)| matches!(body, Body::Credit(_)));
    assert_eq!(credit.count(), 1);
}

#[test]
fn who_calls_for_a_further_path_of_a_session_that_rests_wakes_it() {
    let mut rig = Rig::at_rest();
    let told = rig.greet_with(SECOND, Envelope { flags: FLAG_JOIN, ..rig.envelope() }, |_| ());
    assert_eq!((told.answered(), told.calls), (None, 1));
    let mut rig = Rig::at_rest();
    let told = rig.greet_with(SECOND, Envelope { flags: FLAG_JOIN, ..Envelope::default() }, |_| ());
    assert_eq!((told.answered(), told.calls), (None, 0), "a stranger, who knows no session");
}

#[test]
fn a_join_that_was_begun_before_a_session_came_to_rest_makes_no_path() {
    let mut rig = Rig::crowded(1);
    let nonce = rig.greet(SECOND, FLAG_JOIN, rig.session).expect("the call is answered");
    let proof = rig.proof(nonce, PathId::of(1, false), 1);
    rig.agrees(FIRST);
    let told = rig.says(SECOND, &Body::Join(proof));
    assert_eq!((told.closed, rig.core.counters().paths_joined), (vec![SECOND], 0));
    rig.check_rest();
}

#[test]
fn paths_that_rest_come_back_under_their_numbers_with_the_next_message() {
    let mut rig = Rig::crowded(2);
    rig.agrees(SECOND);
    rig.join(link(1, 2), 2, |_| ());
    let peer = rig.peer.expect("a session");
    let session = rig.core.peers.session(peer).expect("it is up");
    let paths: Vec<u32> = session.paths.views().map(|view| view.path.0).collect();
    assert_eq!((paths, session.paths.links().count()), (vec![0, 3], 2));
}

#[test]
fn a_session_rests_only_where_each_side_can_call_the_other() {
    let mut rig = Rig::crowded(1);
    let peer = rig.peer.expect("a session");
    rig.core.peers.get_mut(peer).expect("it is there").reachable = false;
    let told = rig.says(FIRST, &Body::CloseIdle);
    assert_eq!(links_with(&told, &Body::KeepOpen), [FIRST]);
    assert_eq!((0..9).map(|_| rig.pass().len()).sum::<usize>(), 0);
}
