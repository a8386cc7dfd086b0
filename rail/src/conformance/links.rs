//! Properties of links: their birth, their end, and that one does not hurt another.

use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Slice;
use ropewalk_base::verb::{FrameOrder, Ordered, Token, Urgency, Verb};

use super::Fixture;
use super::recorder::{Answer, Event};
use super::scene::{HEADER_BYTES, Pair, Scene, header, pattern, sequence_of};

/// Both the connecting and the accepting side learn of a link, once, with the right role.
pub fn connect_and_accept_report_up_on_both_sides(fixture: &mut dyn Fixture) {
    let (mut scene, pair) = Scene::pair(fixture);
    scene.settle();
    let (near, far) = (pair.near.1, pair.far.1);
    let up = |link, accepted| Event::Up { link, accepted };
    assert_eq!(scene.recorder(0).events, [up(near, false)]);
    assert_eq!(scene.recorder(1).events, [up(far, true)]);
    assert_eq!(scene.counters(0).links_up, 1);
    assert_eq!(scene.counters(1).links_up, 1);
    assert_eq!(scene.counters(1).links_down, 0);
}

/// A connect that nobody answers ends in `link_down`, and never in `link_up`.
pub fn connect_to_nobody_reports_unreachable(fixture: &mut dyn Fixture) {
    let mut scene = Scene::new(fixture, 1);
    let nowhere = scene.fixture.nowhere();
    let now = scene.fixture.now();
    let link = scene.rail(0).connect(&nowhere, now).expect("the address is well formed");
    scene.until("the connect fails", |scene| scene.recorder(0).fault(link).is_some());
    scene.settle();
    let expected = [Event::Down { link, fault: Fault::Unreachable }];
    assert_eq!(scene.recorder(0).events, expected);
}

/// A link's name is never used again.
pub fn a_new_link_never_has_an_old_name(fixture: &mut dyn Fixture) {
    let mut scene = Scene::new(fixture, 2);
    let mut names = Vec::new();
    for _ in 0..5 {
        let pair = scene.link(0, 1);
        for name in [pair.near, pair.far] {
            assert!(!names.contains(&name), "{name:?} was used before");
            names.push(name);
        }
        close_and_wait(&mut scene, pair);
    }
}

/// Orders on a link that is down, or that never was, are refused at once and never spoken of again.
pub fn orders_on_a_dead_link_are_refused(fixture: &mut dyn Fixture) {
    let (mut scene, pair) = Scene::pair(fixture);
    close_and_wait(&mut scene, pair);
    for pair in [pair, pair.turned()] {
        let outcome = scene.send(pair, 1, 100, Urgency::Urgent);
        assert!(matches!(outcome, Ordered::Refused(_)), "{outcome:?} on a dead link");
        let outcome = scene.order(pair.near.0, Verb::Close { link: pair.near.1 }, None);
        assert!(!matches!(outcome, Ordered::Pending), "{outcome:?} for closing a dead link");
    }
    scene.settle();
}

/// All frames that were ordered before a close arrive, even while the peer sends as well. Then both sides see
/// the link go down, once.
pub fn close_flushes_then_both_sides_go_down(fixture: &mut dyn Fixture) {
    for crossing in [0, 1, 24] {
        close_flushes(fixture, crossing);
    }
}

fn close_flushes(fixture: &mut dyn Fixture, crossing: u64) {
    let (mut scene, pair) = Scene::pair(fixture);
    let count = 24;
    // The peer's frames may be lost with the link; this must not cost our own frames.
    for sequence in 0..crossing {
        scene.send(pair.turned(), sequence, 200_000, Urgency::Bulk);
    }
    for sequence in 0..count {
        scene.send(pair, sequence, 200_000, Urgency::Bulk);
    }
    let outcome = scene.order(0, Verb::Close { link: pair.near.1 }, None);
    assert!(!matches!(outcome, Ordered::Refused(_)), "{outcome:?} for a close");
    scene.until("both sides are down", |scene| down_on_both_sides(scene, pair));
    scene.settle();
    let received: Vec<_> = scene.nodes[1].recorder.received(pair.far.1).collect();
    assert_eq!(received.len() as u64, count, "frames before a close arrive");
    for (sequence, (_, payload)) in (0..).zip(received) {
        assert_eq!(payload, pattern(sequence, 200_000));
    }
    let done = |event: &&Event| matches!(event, Event::Failed { .. });
    assert_eq!(scene.recorder(0).events.iter().filter(done).count(), 0, "flushed, not failed");
}

/// When a peer dies its links go down once, after every pending order got its outcome.
pub fn peer_death_fails_pending_orders_and_downs_once(fixture: &mut dyn Fixture) {
    let (mut scene, pair) = Scene::pair(fixture);
    let other = scene.link(0, 1);
    for sequence in 0..64 {
        scene.send(pair, sequence, 256 * 1024, Urgency::Bulk);
        // Frames may also be under way to the surviving node.
        scene.send(other.turned(), sequence, 100, Urgency::Urgent);
    }
    if !scene.kill(1) {
        return;
    }
    // The recorder checks that no outcome is missing at link_down, and none comes twice.
    scene.until("the links of the dead are down", |scene| {
        let recorder = scene.recorder(0);
        recorder.fault(pair.near.1).is_some() && recorder.fault(other.near.1).is_some()
    });
    scene.settle();
    assert_eq!(scene.recorder(0).pending(), 0);
    assert_eq!(scene.counters(0).links_down, 2);
    // The survivor serves others as before.
    let fresh = scene.add();
    let next = scene.link(0, fresh);
    scene.send(next, 7, 1000, Urgency::Urgent);
    scene.arrived(next, 1);
}

/// `Violation` ends its link at both sides; another link of the same rails lives on.
pub fn a_violation_closes_the_link_and_harms_no_other(fixture: &mut dyn Fixture) {
    let (mut scene, pair) = Scene::pair(fixture);
    let other = scene.link(0, 1);
    scene.recorder(1).script.push_back(Answer::Violation);
    scene.send(pair, 1, 5000, Urgency::Urgent);
    scene.send(pair, 2, 5000, Urgency::Urgent);
    scene.until("the violation closes the link", |scene| down_on_both_sides(scene, pair));
    assert_eq!(scene.recorder(1).fault(pair.far.1), Some(Fault::Protocol));
    assert_eq!(scene.recorder(1).placed(pair.far.1).count(), 1, "nothing after the violation");
    scene.send(other, 3, 5000, Urgency::Urgent);
    scene.arrived(other, 1);
    scene.settle();
    assert!(scene.recorder(1).is_up(other.far.1));
}

/// A flood on one link does not starve the others.
pub fn links_are_served_in_turn(fixture: &mut dyn Fixture) {
    const SENDERS: usize = 4;
    const FRAMES: usize = 48;
    let mut scene = Scene::new(fixture, 1);
    let mut pairs = Vec::new();
    for _ in 0..SENDERS {
        let sender = scene.add();
        pairs.push(scene.link(sender, 0));
    }
    for sequence in 0..FRAMES as u64 {
        for &pair in &pairs {
            scene.send(pair, sequence, 64 * 1024, Urgency::Bulk);
        }
    }
    for &pair in &pairs {
        scene.arrived(pair, FRAMES);
    }
    // When the first link is through, every other one has had a fair part.
    let mut served = [0usize; SENDERS];
    for event in &scene.recorder(0).events {
        if let Event::Placed { link, .. } = event {
            let turn = pairs.iter().position(|pair| pair.far.1 == *link).expect("one of ours");
            served[turn] += 1;
            if served[turn] == FRAMES {
                break;
            }
        }
    }
    let least = served.into_iter().min().unwrap_or(0);
    assert!(least >= FRAMES / 8, "frames served when the first link was through: {served:?}");
}

/// Bytes that nobody of ours would send cost a link at most; everybody else is served as before.
pub fn garbage_on_the_medium_harms_nobody(fixture: &mut dyn Fixture) {
    let (mut scene, pair) = Scene::pair(fixture);
    let address = scene.address(1);
    let mut frame = header(HEADER_BYTES, 1, 100).as_bytes().to_vec();
    frame.extend(pattern(1, 100));
    let mut samples = vec![vec![0u8; 64], vec![0xFF; 4096], b"GET / HTTP/1.1\r\n\r\n".to_vec()];
    samples.extend((1..frame.len()).map(|cut| frame[..cut].to_vec()));
    let mut random = ropewalk_base::random::Random::from_seed(11);
    samples.extend((0..50).map(|length| {
        let bytes = (0..length * 7).map(|_| random.next_u64() as u8);
        bytes.collect::<Vec<u8>>()
    }));
    for (sequence, sample) in (0..).zip(&samples) {
        if !scene.fixture.garbage(&address, sample) {
            return;
        }
        scene.send(pair, sequence, 300, Urgency::Urgent);
        scene.arrived(pair, sequence as usize + 1);
    }
    scene.settle();
    assert!(scene.recorder(1).is_up(pair.far.1), "the honest link lives");
    let sequences = scene.nodes[1].recorder.placed(pair.far.1).map(sequence_of);
    assert!(sequences.eq(0..samples.len() as u64), "the honest link lost or repeated a frame");
    let again = scene.link(0, 1);
    scene.send(again, 1, 10, Urgency::Urgent);
    scene.arrived(again, 1);
}

fn down_on_both_sides(scene: &mut Scene, pair: Pair) -> bool {
    let near = scene.recorder(pair.near.0).fault(pair.near.1).is_some();
    near && scene.recorder(pair.far.0).fault(pair.far.1).is_some()
}

fn close_and_wait(scene: &mut Scene, pair: Pair) {
    let (node, link) = pair.near;
    // A farewell without an outcome goes first: nobody waits for it, and nobody is told.
    let header = header(HEADER_BYTES, 0, 0);
    let (payload, urgency, token) = (Slice::NONE, Urgency::Urgent, Token::NONE);
    let farewell = FrameOrder { link, header, payload, urgency, token };
    let outcome = scene.send_frame(node, &farewell, None);
    assert!(!matches!(outcome, Ordered::Refused(_)), "{outcome:?} on a living link");
    scene.order(node, Verb::Close { link }, None);
    scene.until("a closed link goes down", |scene| down_on_both_sides(scene, pair));
}

/// A rail that measures the health of its links counts the bytes of frames that its peer has acknowledged, and no
/// others. It says nothing about links that are down.
pub fn health_tells_what_was_delivered(fixture: &mut dyn Fixture) {
    const FRAMES: u64 = 100;
    const PAYLOAD_BYTES: usize = 1000;
    // A kernel may tell how long a link has been silent in steps of its tick, which has up to 10 ms.
    const TICK: Duration = Duration::from_millis(10);
    let (mut scene, pair) = Scene::pair(fixture);
    let begin = scene.fixture.now();
    scene
        .until("the link has been up for a while", |scene| scene.fixture.now() >= begin + 2 * TICK);
    let reliable = scene.capabilities(0).reliable;
    let health = |scene: &mut Scene, pair: Pair| {
        let now = scene.fixture.now();
        scene.rail(pair.near.0).health(pair.near.1, now)
    };
    for pair in [pair, pair.turned()] {
        let Some(before) = health(&mut scene, pair) else { break };
        for number in 0..FRAMES {
            scene.send(pair, number, PAYLOAD_BYTES, Urgency::Urgent);
        }
        if !reliable {
            // Nothing is acknowledged there.
            continue;
        }
        scene.arrived(pair, FRAMES as usize);
        let frame_bytes = (PAYLOAD_BYTES + HEADER_BYTES) as u64;
        let wanted = before.delivered_bytes + FRAMES * frame_bytes;
        if !before.silence_tells {
            assert_eq!(before.round_trips, None);
            continue;
        }
        scene.until("all is acknowledged", |scene| {
            let health = health(scene, pair).expect("the link is up");
            assert!(health.delivered_bytes <= wanted, "more than was sent: {health:?}");
            health.delivered_bytes == wanted && health.unacknowledged_bytes == 0
        });
        let after = health(&mut scene, pair).expect("the link is up");
        assert_eq!(after.unsent_bytes, 0);
        let now = scene.fixture.now();
        assert!((begin + TICK..=now).contains(&after.heard_at), "{begin:?} {after:?} {now:?}");
        let round_trips = after.round_trips.expect("something was acknowledged");
        assert!(round_trips.least <= round_trips.smoothed, "{round_trips:?}");
        assert!(!after.is_peer_full);
    }
    close_and_wait(&mut scene, pair);
    for pair in [pair, pair.turned()] {
        assert_eq!(health(&mut scene, pair), None, "of a link that is down");
    }
}

/// A link that is abandoned ends with the next poll, with its orders, though its peer does not read. Other links go on.
pub fn an_abandoned_link_ends_at_once_and_harms_no_other(fixture: &mut dyn Fixture) {
    let (mut scene, pair) = Scene::pair(fixture);
    let other = scene.link(0, 1);
    let (node, link) = pair.near;
    // More than any medium takes while nobody polls the peer.
    for number in 0..64 {
        scene.send(pair, number, 1 << 16, Urgency::Bulk);
    }
    if !scene.rail(node).abandon(link) {
        return;
    }
    let outcome = scene.send(pair, 100, 100, Urgency::Urgent);
    assert!(matches!(outcome, Ordered::Refused(_)), "{outcome:?} on a link that was abandoned");
    scene.poll(node);
    assert_eq!(scene.recorder(node).fault(link), Some(Fault::Closed));
    assert!(!scene.rail(node).abandon(link), "it is gone");
    if scene.capabilities(node).reliable {
        scene.until("its peer is told", |scene| {
            let (far, link) = pair.far;
            scene.send(pair.turned(), 200, 100, Urgency::Urgent);
            scene.nodes[far].recorder.fault(link).is_some()
        });
        for pair in [other, other.turned()] {
            scene.send(pair, 1, 1000, Urgency::Urgent);
            scene.arrived(pair, 1);
        }
    }
    scene.settle();
}
