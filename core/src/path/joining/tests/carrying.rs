//! Calls that would carry a session on, or put another one in its place: honest ones, and strangers in the peer's name.

use std::time::Duration;

use ropewalk_wire::frame::AckBody;

use super::*;

/// Longer than a doubt lasts.
const LONG: Duration = Duration::from_secs(3);

impl Rig {
    /// Both sides have the key, and know it of each other.
    pub(super) fn shared() -> Rig {
        let mut rig = Rig::new();
        rig.tell_key();
        let envelope = rig.envelope();
        rig.place(FIRST, envelope, &Body::Ack(AckBody::new(1, Duration::ZERO)));
        rig
    }

    /// The peer's proof that a call of its own, or its answer to ours, carries the session on.
    pub(super) fn carrying_proof(&self, prover: Prover, nonce: u32) -> Body {
        let is_caller = prover == Prover::CarryingCaller;
        let (caller_nonce, acceptor_nonce) =
            if is_caller { (NONCE, nonce) } else { (nonce, NONCE) };
        let session = SessionId::own(self.session);
        let (path, counter, rail) = (0, 0, 3);
        let entropy = 0;
        let claim = Claim {
            prover,
            session,
            caller_nonce,
            acceptor_nonce,
            path,
            counter,
            rail,
            entropy,
            modes: [0; 2],
        };
        let proof = self.bundle.key().expect("both shares are known").prove(&claim);
        Body::Join(JoinBody { rail, ..join_body(0.into(), 0.into(), entropy, proof) })
    }

    pub(super) fn names(&self) -> Envelope {
        Envelope { flags: FLAG_INSIST, ..self.envelope() }
    }

    /// We call the peer, whose only path is lost. The nonce of our greeting.
    pub(super) fn call_again(&mut self, over: LinkId) -> u32 {
        let peer = self.peer.expect("a session");
        let called = Called { way: 0, is_alone: true, is_told: false };
        self.core.connecting(peer, over, called);
        self.core.link_up(over, false);
        let told = self.told();
        let nonce = told.frames.iter().find_map(|(_, body)| match body {
            Body::Hello(hello) => Some(hello.nonce.get()),
            _ => None,
        });
        nonce.expect("we greet")
    }

    /// The session is over its first link, and nothing has befallen it.
    fn check_unharmed(&mut self, number: u32) {
        assert_eq!((self.core.counters().sessions, self.leaves_over(number)), (1, Some(FIRST)));
    }
}

fn proofs(told: &Told) -> usize {
    told.frames.iter().filter(|(_, body)| matches!(body, Body::Join(_))).count()
}

fn names_session(told: &Told) -> usize {
    told.frames.iter().filter(|(_, body)| matches!(body, Body::Hello(_))).count()
}

#[test]
fn a_stranger_in_the_name_of_the_peer_learns_no_session_and_ends_none() {
    let mut rig = Rig::shared();
    let stranger = Envelope { flags: FLAG_INSIST, ..Envelope::default() };
    for number in 1..20 {
        let told = rig.greet_with(link(1, number), stranger, |_| ());
        assert_eq!((told.answered(), told.downs), (None, 0), "a path of the session may answer");
        rig.core.link_down(link(1, number), Fault::Closed);
        // The peer lives: it answers the probe.
        let probes = told.frames.iter().filter(is_question).count();
        assert_eq!(probes, 1, "over the session's only path");
        rig.place(FIRST, rig.envelope(), &probe());
        let later = rig.core.now() + LONG;
        rig.core.advance(later);
        rig.told();
    }
    rig.check_unharmed(1);
}

#[test]
fn a_stranger_that_names_the_session_carries_it_on_nowhere() {
    for confirms in [true, false] {
        let mut rig = Rig::shared();
        let told = rig.greet_with(link(1, 1), rig.names(), |_| ());
        let nonce = told.answered().expect("it may be the peer, which has lost its link");
        assert_eq!((proofs(&told), names_session(&told)), (1, 1), "we prove who we are");
        let body = match confirms {
            true => Body::Confirm,
            false => {
                let mut body = rig.carrying_proof(Prover::CarryingCaller, nonce);
                let Body::Join(proof) = &mut body else { unreachable!() };
                proof.proof[5] ^= 1;
                body
            }
        };
        let told = rig.place(link(1, 1), rig.envelope(), &body);
        assert_eq!((told.closed, told.downs), (vec![link(1, 1)], 0));
        assert_eq!(rig.core.counters().joins_refused, 1);
        rig.check_unharmed(1);
    }
}

#[test]
fn proofs_of_other_links_and_of_other_kinds_carry_nothing_on() {
    let mut rig = Rig::shared();
    let mut nonces = Vec::new();
    for number in 1..4 {
        let told = rig.greet_with(link(1, number), rig.names(), |_| ());
        nonces.push(told.answered().expect("an answer"));
    }
    let joins = rig.proof(nonces[0], PathId::FIRST, 0).into();
    let replayed = rig.carrying_proof(Prover::CarryingCaller, nonces[0]);
    let reflected = rig.carrying_proof(Prover::CarryingAcceptor, nonces[2]);
    for (number, body) in (1..).zip([joins, replayed, reflected]) {
        let told = rig.place(link(1, number), rig.envelope(), &body);
        assert_eq!((told.closed, told.downs), (vec![link(1, number)], 0));
    }
    rig.check_unharmed(1);
}

#[test]
fn the_peer_carries_the_session_on_with_its_proof() {
    let mut rig = Rig::shared();
    rig.core.link_down(FIRST, Fault::PeerReset);
    let told = rig.greet_with(link(1, 1), rig.names(), |_| ());
    let body = rig.carrying_proof(Prover::CarryingCaller, told.answered().expect("an answer"));
    let told = rig.place(link(1, 1), rig.envelope(), &body);
    assert_eq!((told.closed.len(), told.downs, rig.core.counters().sessions), (0, 0, 1));
    assert_eq!(rig.leaves_over(1), Some(link(1, 1)));
}

#[test]
fn a_peer_that_cannot_know_the_key_yet_confirms_without_a_proof() {
    let mut rig = Rig::new();
    rig.tell_key();
    // It has not acknowledged our share.
    rig.core.link_down(FIRST, Fault::PeerReset);
    let told = rig.greet_with(link(1, 1), rig.names(), |_| ());
    assert!(told.answered().is_some());
    let told = rig.place(link(1, 1), Envelope::default(), &Body::Confirm);
    assert_eq!((told.closed.len(), told.downs), (0, 0));
    assert_eq!((rig.leaves_over(1), rig.core.counters().sessions), (Some(link(1, 1)), 1));
}

#[test]
fn a_new_life_takes_the_place_of_one_without_a_path_at_once() {
    let mut rig = Rig::shared();
    rig.core.link_down(FIRST, Fault::PeerReset);
    let insists = Envelope { flags: FLAG_INSIST, ..Envelope::default() };
    let told = rig.greet_with(link(1, 1), insists, |hello| hello.incarnation = 8.into());
    assert!(told.answered().is_some());
    let told = rig.place(link(1, 1), Envelope::default(), &Body::Confirm);
    assert_eq!((told.downs, rig.core.counters().sessions), (1, 2));
}

#[test]
fn a_new_life_takes_the_place_of_one_whose_paths_are_silent() {
    let mut rig = Rig::shared();
    let insists = Envelope { flags: FLAG_INSIST, ..Envelope::default() };
    let newer = |hello: &mut HelloBody| hello.incarnation = 8.into();
    assert_eq!(rig.greet_with(link(1, 1), insists, newer).answered(), None, "the old one may live");
    rig.core.link_down(link(1, 1), Fault::Closed);
    let later = rig.core.now() + LONG;
    rig.core.advance(later);
    rig.told();
    assert!(rig.greet_with(link(1, 2), insists, newer).answered().is_some());
    let told = rig.place(link(1, 2), Envelope::default(), &Body::Confirm);
    assert_eq!((told.downs, rig.core.counters().sessions), (1, 2));
}

#[test]
fn a_link_that_was_to_replace_a_session_does_not_when_another_has_carried_it_on() {
    let mut rig = Rig::shared();
    rig.core.link_down(FIRST, Fault::PeerReset);
    let insists = Envelope { flags: FLAG_INSIST, ..Envelope::default() };
    assert!(rig.greet_with(link(1, 1), insists, |_| ()).answered().is_some());
    let told = rig.greet_with(link(1, 2), rig.names(), |_| ());
    let body = rig.carrying_proof(Prover::CarryingCaller, told.answered().expect("an answer"));
    rig.place(link(1, 2), rig.envelope(), &body);
    let told = rig.place(link(1, 1), Envelope::default(), &Body::Confirm);
    assert_eq!((told.downs, rig.core.counters().sessions), (0, 1));
    assert_eq!(rig.leaves_over(1), Some(link(1, 2)));
}

#[test]
fn who_answers_our_call_in_the_name_of_the_peer_has_to_prove_it() {
    let answers = [
        (FLAG_ANSWER, None),
        (FLAG_ANSWER | FLAG_JOIN, Some(true)),
        (FLAG_ANSWER | FLAG_JOIN, Some(false)),
    ];
    for (flags, proof) in answers {
        let mut rig = Rig::shared();
        rig.core.link_down(FIRST, Fault::PeerReset);
        rig.told();
        let nonce = rig.call_again(link(1, 1));
        let envelope = Envelope { flags, ..rig.envelope() };
        let hello = Body::Hello(rig.hello());
        let mut told = rig.place(link(1, 1), envelope, &hello);
        assert!(told.frames.is_empty(), "we confirm nothing yet");
        if let Some(is_honest) = proof {
            let mut body = rig.carrying_proof(Prover::CarryingAcceptor, nonce);
            if let (false, Body::Join(proof)) = (is_honest, &mut body) {
                proof.proof[0] ^= 1;
            }
            told = rig.place(link(1, 1), rig.envelope(), &body);
            if is_honest {
                assert_eq!(proofs(&told), 1, "our proof in place of a confirmation");
                assert_eq!((rig.leaves_over(1), told.downs), (Some(link(1, 1)), 0));
                continue;
            }
        }
        assert_eq!((told.closed, told.downs), (vec![link(1, 1)], 0));
        assert_eq!((rig.leaves_over(1), rig.core.counters().sessions), (None, 1));
    }
}

#[test]
fn a_caller_that_proves_nothing_is_not_waited_for() {
    let mut rig = Rig::shared();
    rig.greet_with(link(1, 1), rig.names(), |_| ()).answered().expect("an answer");
    let later = rig.core.now() + Duration::from_secs(60);
    rig.core.advance(later);
    assert_eq!(rig.told().closed, [link(1, 1)]);
    rig.check_unharmed(1);
}

#[test]
fn addresses_of_who_has_only_greeted_are_not_the_peers() {
    let mut rig = Rig::shared();
    let peer = rig.peer.expect("a session");
    let known = b"tcp://a:1".to_vec();
    rig.core.peers.get_mut(peer).expect("it is there").identity.addresses = known.clone().into();
    for (number, envelope) in [(1, rig.names()), (2, Envelope::default())] {
        rig.greet_with(link(1, number), envelope, |_| ());
        assert_eq!(
            rig.core.peer_addresses(peer),
            known,
            "a greeting tells no address, or a wrong one"
        );
    }
    let told = rig.greet_with(link(1, 3), rig.names(), |_| ());
    let body = rig.carrying_proof(Prover::CarryingCaller, told.answered().expect("an answer"));
    rig.place(link(1, 3), rig.envelope(), &body);
    assert_eq!(rig.core.peer_addresses(peer), b"", "it has proven itself, and told none");
}

/// Another endpoint answers our call by a way, beside which there are others or not.
fn meet_stranger(rig: &mut Rig, way: u32, is_alone: bool) -> Told {
    let (peer, over) = (rig.peer.expect("a session"), link(1, 1 + way));
    let called = Called { way, is_alone, is_told: false };
    rig.core.connecting(peer, over, called);
    rig.core.link_up(over, false);
    rig.told();
    let hello = HelloBody { endpoint: 77u128.to_le_bytes(), ..rig.hello() };
    let envelope = Envelope { flags: FLAG_ANSWER, ..Envelope::default() };
    let told = rig.place(over, envelope, &Body::Hello(hello));
    if told.closed == [over] {
        rig.core.link_down(over, Fault::Closed);
    }
    told
}

#[test]
fn an_endpoint_at_a_former_address_ends_no_session_that_has_other_ways() {
    let mut rig = Rig::shared();
    let peer = rig.peer.expect("a session");
    rig.core.link_down(FIRST, Fault::PeerReset);
    rig.told();
    let told = meet_stranger(&mut rig, 0, false);
    assert_eq!((told.closed, told.downs), (vec![link(1, 1)], 0));
    // The second way answers nothing, and the round is over.
    let called = Called { way: 1, is_alone: false, is_told: false };
    rig.core.connecting(peer, link(1, 2), called);
    rig.core.link_down(link(1, 2), Fault::Unreachable);
    rig.core.unreachable(peer);
    assert_eq!(rig.told().downs, 0, "it may answer by the second way later");
    for way in 0..2 {
        assert_eq!(meet_stranger(&mut rig, way, false).downs, 0);
    }
    rig.core.unreachable(peer);
    assert_eq!(rig.told().downs, 1, "no way leads to it any more");
}

#[test]
fn an_endpoint_at_the_only_address_takes_the_place_of_the_peer_at_once() {
    let mut rig = Rig::shared();
    rig.core.link_down(FIRST, Fault::PeerReset);
    rig.told();
    assert_eq!(meet_stranger(&mut rig, 0, true).downs, 1);
}
