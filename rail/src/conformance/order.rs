//! Properties of many frames: queues, urgencies, and the permitted overtaking.

use ropewalk_base::random::Random;
use ropewalk_base::verb::{Ordered, Urgency};

use super::Fixture;
use super::recorder::Event;
use super::scene::{Pair, Scene, pattern, sequence_of};

/// First sequence number of frames that were ordered as `Bulk`.
const BULK: u64 = 1 << 32;

/// An urgent frame waits for at most one data frame that has not left yet.
pub fn urgent_frames_overtake_bulk(fixture: &mut dyn Fixture) {
    const FRAMES: u64 = 96;
    let (mut scene, pair) = Scene::pair(fixture);
    let mut left = 0;
    for number in 0..FRAMES {
        let outcome = scene.send(pair, BULK + number, 256 * 1024, Urgency::Bulk);
        left += u64::from(outcome == Ordered::Released);
    }
    // Only the sender runs for a while, so that its medium is as full as it gets.
    for _ in 0..100 {
        scene.poll(0);
        scene.fixture.step(true);
    }
    let done = |event: &&Event| matches!(event, Event::Done { .. });
    left += scene.recorder(0).events.iter().filter(done).count() as u64;
    scene.send(pair, 1, 64, Urgency::Urgent);
    scene.send(pair, 2, 64, Urgency::Urgent);
    scene.arrived(pair, FRAMES as usize + 2);
    let order: Vec<u64> = scene.nodes[1].recorder.placed(pair.far.1).map(sequence_of).collect();
    let place = order.iter().position(|sequence| *sequence == 1).expect("it arrived") as u64;
    let most = left + scene.fixture.data_frames_ahead() as u64;
    assert!(place <= most, "the urgent frame came {place}th, {left} data frames had left");
    let next = order.iter().position(|sequence| *sequence == 2).expect("it arrived") as u64;
    assert!(next <= most + 1, "the second urgent frame came {next}th");
    check_order(&mut scene, pair, FRAMES, 0);
}

/// A queue of thousands of frames neither fails nor forgets.
pub fn thousands_of_frames_queue_and_arrive(fixture: &mut dyn Fixture) {
    const FRAMES: u64 = 5000;
    let (mut scene, pair) = Scene::pair(fixture);
    for number in 0..FRAMES {
        let bytes = if number % 50 == 0 { 20_000 } else { (number % 600) as usize };
        let outcome = scene.send(pair, number, bytes, Urgency::Urgent);
        assert!(!matches!(outcome, Ordered::Refused(_)), "{outcome:?} for frame {number}");
        let outcome = scene.send(pair.turned(), BULK + number, bytes / 2, Urgency::Bulk);
        assert!(!matches!(outcome, Ordered::Refused(_)), "{outcome:?} for frame {number}");
    }
    scene.arrived(pair, FRAMES as usize);
    scene.arrived(pair.turned(), FRAMES as usize);
    scene.drained(0);
    scene.drained(1);
    check_order(&mut scene, pair, 0, FRAMES);
    check_order(&mut scene, pair.turned(), FRAMES, 0);
}

/// Random sizes, urgencies, directions and polling over several links: all intact, all in order.
pub fn mixed_traffic_arrives_intact_in_order(fixture: &mut dyn Fixture) {
    let mut scene = Scene::new(fixture, 3);
    let links = [scene.link(0, 1), scene.link(1, 0), scene.link(0, 2), scene.link(2, 1)];
    let pairs: Vec<Pair> = links.into_iter().flat_map(|pair| [pair, pair.turned()]).collect();
    let mut random = Random::from_seed(2024);
    let mut sent = vec![[0u64; 2]; pairs.len()];
    for _ in 0..3000 {
        let turn = random.below(pairs.len() as u64) as usize;
        let (urgency, kind, first) =
            if random.below(3) == 0 { (Urgency::Bulk, 0, BULK) } else { (Urgency::Urgent, 1, 0) };
        let most = [10, 300, 3000, 30_000, 262_144][random.below(5) as usize];
        let bytes = random.below(most + 1) as usize;
        scene.send(pairs[turn], first + sent[turn][kind], bytes, urgency);
        sent[turn][kind] += 1;
        for _ in 0..random.below(3) {
            scene.poll(random.below(3) as usize);
        }
        if random.below(20) == 0 {
            scene.round();
        }
    }
    for (pair, [bulk, urgent]) in pairs.into_iter().zip(sent) {
        scene.arrived(pair, (bulk + urgent) as usize);
        scene.drained(pair.near.0);
        check_order(&mut scene, pair, bulk, urgent);
    }
    scene.settle();
}

/// All frames of both urgencies arrived at the far side, once, in order where the rail claims it, and
/// intact.
/// Frames that a rail may keep for those behind them arrive in order, and none stays behind, also where the
/// last of them was said to be followed.
pub fn frames_that_follow_each_other_arrive_like_others(fixture: &mut dyn Fixture) {
    const RUNS: u64 = 60;
    let (mut scene, pair) = Scene::pair(fixture);
    let mut random = Random::from_seed(3);
    let mut sequence = 0;
    for run in 0..RUNS {
        let count = 1 + random.next_u64() % 150;
        for number in 0..count {
            scene.follows = number + 1 < count || run % 3 == 0;
            let bytes = [0, 1, 700, 5000, 60_000][(random.next_u64() % 5) as usize];
            let outcome = scene.send(pair, sequence, bytes, Urgency::Urgent);
            assert!(!matches!(outcome, Ordered::Refused(_)), "{outcome:?} for frame {sequence}");
            sequence += 1;
        }
        scene.push(pair.near.0);
        scene.arrived(pair, sequence as usize);
    }
    check_order(&mut scene, pair, 0, sequence);
    scene.follows = false;
    scene.settle();
}

fn check_order(scene: &mut Scene, pair: Pair, bulk: u64, urgent: u64) {
    let ordered = scene.capabilities(pair.far.0).ordered;
    let recorder = scene.recorder(pair.far.0);
    let all: Vec<u64> = recorder.placed(pair.far.1).map(sequence_of).collect();
    let (mut data, mut control): (Vec<u64>, Vec<u64>) = all.iter().partition(|&&n| n >= BULK);
    if !ordered {
        data.sort_unstable();
        control.sort_unstable();
    }
    assert!(data.iter().copied().eq(BULK..BULK + bulk), "bulk frames of {pair:?}");
    if urgent > 0 {
        assert!(control.iter().copied().eq(0..urgent), "urgent frames of {pair:?}");
    }
    for (header, payload) in recorder.received(pair.far.1) {
        let sequence = sequence_of(header);
        assert!(payload == pattern(sequence, payload.len()), "payload of frame {sequence}");
    }
}
