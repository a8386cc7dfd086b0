//! Properties of letting go: memory is free at once, whatever the peer does, and the link stays in step.
//!
//! Memory that a rail has let go of is overwritten at once. So the suite detects a rail that still sends from it, or
//! writes to it.

use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{Help, LinkId, Ordered, RemoteKey, RemoteLayout, Token, Urgency, Verb};

use super::Fixture;
use super::scene::{Pair, Scene, pattern, sequence_of};

const FRAMES: u64 = 64;
const FRAME_BYTES: usize = 200_000;

/// Node 0 sends data frames, and every fourth time a short urgent one, to a peer that does not read.
fn fill(scene: &mut Scene, pair: Pair) {
    for sequence in 0..FRAMES {
        let (bytes, urgency) = match sequence % 4 {
            3 => (3000, Urgency::Urgent),
            _ => (FRAME_BYTES, Urgency::Bulk),
        };
        scene.send(pair, sequence, bytes, urgency);
    }
    // The medium takes as much as it can, perhaps only a part of one frame.
    for _ in 0..10 {
        scene.poll(0);
    }
}

/// Has the rail of node 0 let go of all pending orders; returns the number of payloads that it let go of.
fn detach_all(scene: &mut Scene, link: LinkId) -> usize {
    let mut detached = 0;
    for token in scene.recorder(0).pending_on(link) {
        let later = scene.recorder(0).token();
        match scene.order(0, Verb::DetachSend { link, token, later }, None) {
            Ordered::Released => {
                scene.recorder(0).let_go(token, Some(later));
                detached += 1;
            }
            Ordered::Refused(_) => {}
            Ordered::Pending => panic!("an order to let go is carried out at once"),
        }
    }
    detached
}

/// The peer of frames whose memory was taken back sees them as they were ordered, and their outcomes
/// come under their new tokens.
pub fn detached_frames_arrive_as_they_were_ordered(fixture: &mut dyn Fixture) {
    let (mut scene, pair) = Scene::pair(fixture);
    fill(&mut scene, pair);
    let detached = detach_all(&mut scene, pair.near.1);
    assert!(detached > 10, "{detached} of so many frames were let go of");
    scene.send(pair, FRAMES, 100, Urgency::Bulk);
    scene.arrived(pair, FRAMES as usize + 1);
    scene.drained(0);
    let recorder = &scene.nodes[1].recorder;
    let mut seen: Vec<u64> = recorder.placed(pair.far.1).map(sequence_of).collect();
    seen.sort_unstable();
    assert!(seen.into_iter().eq(0..=FRAMES), "each frame once");
    for (header, payload) in recorder.received(pair.far.1) {
        let sequence = sequence_of(header);
        assert!(payload == pattern(sequence, payload.len()), "payload of frame {sequence}");
    }
    scene.settle();
}

/// The memory of frames that nobody needs any more is free at once, also where the peer reads nothing. It sees each of them
/// once and whole, or not at all, and those behind them.
pub fn forgotten_frames_arrive_whole_or_not_at_all(fixture: &mut dyn Fixture) {
    let (mut scene, pair) = Scene::pair(fixture);
    fill(&mut scene, pair);
    let link = pair.near.1;
    let mut forgotten = 0;
    for token in scene.recorder(0).pending_on(link) {
        if scene.order(0, Verb::SkipSend { link, token }, None) == Ordered::Released {
            scene.recorder(0).let_go(token, None);
            forgotten += 1;
        }
    }
    assert!(forgotten > 10, "{forgotten} of so many frames");
    scene.send(pair, FRAMES, 100, Urgency::Bulk);
    scene.until("the frame behind them", |scene| {
        scene.nodes[1].recorder.received(pair.far.1).any(|(it, _)| sequence_of(it) == FRAMES)
    });
    scene.drained(0);
    let recorder = &scene.nodes[1].recorder;
    let mut seen: Vec<u64> = recorder.placed(pair.far.1).map(sequence_of).collect();
    seen.sort_unstable();
    let count = seen.len();
    seen.dedup();
    assert_eq!(seen.len(), count, "no frame twice");
    assert!(count + forgotten > FRAMES as usize, "the others all arrive");
    for (header, payload) in recorder.received(pair.far.1) {
        assert!(payload == pattern(sequence_of(header), payload.len()));
    }
    scene.settle();
}

/// Frames whose memory was taken back fail like others when the peer dies, and go out when their link
/// is closed.
pub fn detached_frames_go_with_their_link(fixture: &mut dyn Fixture) {
    let mut scene = Scene::new(fixture, 3);
    let pair = scene.link(0, 1);
    fill(&mut scene, pair);
    scene.order(0, Verb::Close { link: pair.near.1 }, None);
    assert!(detach_all(&mut scene, pair.near.1) > 10, "also while the link closes");
    scene.arrived(pair, FRAMES as usize);
    scene.until("the link is down", |scene| scene.recorder(0).fault(pair.near.1).is_some());
    assert_eq!(scene.recorder(0).pending(), 0);
    for (header, payload) in scene.nodes[1].recorder.received(pair.far.1) {
        assert!(payload == pattern(sequence_of(header), payload.len()));
    }
    let pair = scene.link(0, 2);
    fill(&mut scene, pair);
    assert!(detach_all(&mut scene, pair.near.1) > 10);
    if scene.kill(2) {
        scene.until("the death is seen", |scene| scene.recorder(0).fault(pair.near.1).is_some());
        assert_eq!(scene.recorder(0).pending(), 0, "outcomes come before the last word");
    }
}

/// Of a payload whose place was given up nothing lands any more; frames around it arrive whole.
pub fn a_place_is_given_up_while_its_payload_arrives(fixture: &mut dyn Fixture) {
    let (mut scene, pair) = Scene::pair(fixture);
    let (near, far) = (pair.near.1, pair.far.1);
    let mut sequence = 0;
    let mut given_up = 0;
    for round in 0..200 {
        for _ in 0..4 {
            scene.send(pair, sequence, FRAME_BYTES, Urgency::Bulk);
            sequence += 1;
        }
        while scene.recorder(0).pending_on(near).len() > 4 && given_up < 5 {
            scene.poll(0);
            scene.fixture.step(true);
            scene.poll(1);
            for token in scene.recorder(1).placements_on(far) {
                let link = far;
                let outcome = scene.order(1, Verb::CancelReceive { link, token }, None);
                assert_eq!(outcome, Ordered::Released, "the payload has not arrived");
                scene.recorder(1).unplaced(token);
                given_up += 1;
                let again = scene.order(1, Verb::CancelReceive { link, token }, None);
                assert!(matches!(again, Ordered::Refused(_)), "given up already");
            }
        }
        if given_up >= 5 || (round > 20 && !scene.fixture.payloads_arrive_in_parts()) {
            break;
        }
    }
    assert_eq!(given_up >= 5, scene.fixture.payloads_arrive_in_parts(), "{given_up} given up");
    scene.arrived(pair, sequence as usize);
    scene.drained(0);
    let received: Vec<_> = scene.nodes[1].recorder.received(far).collect();
    assert_eq!(received.len() as u64 + given_up, sequence, "all others received");
    for (header, payload) in received {
        assert!(payload == pattern(sequence_of(header), FRAME_BYTES));
    }
    scene.settle();
}

/// A read that was given up touches its memory no more, and those beside it are complete.
pub fn a_read_that_was_stopped_never_lands(fixture: &mut dyn Fixture) {
    const BYTES: usize = 4 << 20;
    let (mut scene, pair) = Scene::pair(fixture);
    if !scene.capabilities(0).native_read {
        return;
    }
    let key = RemoteKey { slot: SlotId { index: 2, generation: 1 }, secret: 77 };
    let slice = |buffer| Slice { buffer, offset: 0, len: BYTES as u64 };
    let link = pair.far.1;
    let region = slice(scene.recorder(1).memory(&[BYTES], &pattern(1, BYTES)));
    scene.order(1, Verb::Expose { link, key, region, writable: false }, None);
    scene.send(pair.turned(), 0, 0, Urgency::Urgent);
    scene.arrived(pair.turned(), 1);
    let link = pair.near.1;
    let reads: Vec<(Token, Slice)> = (0..6)
        .map(|_| {
            let local = slice(scene.recorder(0).memory(&[BYTES], &[]));
            let (token, remote) = (scene.recorder(0).token(), RemoteLayout::At(0));
            scene.order(0, Verb::Read { link, key, remote, local, token, help: Help::None }, None);
            (token, local)
        })
        .collect();
    scene.poll(0);
    let pending = scene.recorder(0).pending_on(link);
    let mut stopped = 0;
    for (number, (token, local)) in reads.iter().enumerate() {
        let token = *token;
        if number % 2 == 0 || !pending.contains(&token) {
            continue;
        }
        if scene.order(0, Verb::CancelAccess { link, token }, None) == Ordered::Released {
            scene.recorder(0).let_go(token, None);
            scene.recorder(0).abandon(*local);
            stopped += 1;
        }
    }
    assert!(stopped > 0, "reads of so many bytes are pending for a while");
    scene.drained(0);
    for (_, local) in reads.iter().step_by(2) {
        let bytes = scene.recorder(0).bytes(*local);
        assert!(bytes == pattern(1, BYTES), "the reads beside are complete");
    }
    scene.settle();
}

/// A rail refuses orders for tokens and links that it does not hold, or no longer holds; these change nothing.
pub fn what_a_rail_does_not_hold_is_refused(fixture: &mut dyn Fixture) {
    let (mut scene, pair) = Scene::pair(fixture);
    let elsewhere = LinkId { slot: SlotId { index: 900, generation: 3 }, ..pair.near.1 };
    fill(&mut scene, pair);
    let held = scene.recorder(0).pending_on(pair.near.1);
    for link in [pair.near.1, elsewhere] {
        for token in [Token(1 << 40), Token::NONE] {
            for verb in [
                Verb::DetachSend { link, token, later: Token::NONE },
                Verb::SkipSend { link, token },
                Verb::CancelAccess { link, token },
                Verb::CancelReceive { link, token },
            ] {
                let outcome = scene.order(0, verb, None);
                assert!(matches!(outcome, Ordered::Refused(_)), "{outcome:?} for {token:?}");
            }
        }
    }
    for token in held {
        let (link, later) = (elsewhere, Token::NONE);
        let outcome = scene.order(0, Verb::DetachSend { link, token, later }, None);
        assert!(matches!(outcome, Ordered::Refused(_)), "{outcome:?} on another link");
    }
    scene.arrived(pair, FRAMES as usize);
    scene.drained(0);
    for (header, payload) in scene.nodes[1].recorder.received(pair.far.1) {
        assert!(payload == pattern(sequence_of(header), payload.len()));
    }
}
