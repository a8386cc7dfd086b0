//! Properties of single frames: every byte at its place, and no byte anywhere else.

use ropewalk_base::limits::{FRAME_PAYLOAD_BYTES_MAX, HEADER_BYTES_MAX};
use ropewalk_base::memory::Slice;
use ropewalk_base::random::Random;
use ropewalk_base::verb::{Ordered, Urgency};

use super::Fixture;
use super::recorder::{Answer, Event};
use super::scene::{HEADER_BYTES, Pair, Scene, header, pattern};

/// Payload lengths at which buffers, rings and packets begin and end.
const SIZES: [usize; 13] =
    [0, 1, 8, 63, 64, 1000, 4095, 4096, 4097, 32 * 1024, 64 * 1024, 65_537, 256 * 1024];

/// Frames without payload up to the longest arrive whole, in both directions and urgencies.
pub fn frames_of_every_size_arrive_both_ways(fixture: &mut dyn Fixture) {
    let (mut scene, pair) = Scene::pair(fixture);
    let limit = scene.capabilities(0).frame_payload_bytes_max as usize;
    for pair in [pair, pair.turned()] {
        let mut sequence = 0;
        for urgency in [Urgency::Urgent, Urgency::Bulk] {
            for bytes in SIZES.into_iter().filter(|bytes| *bytes <= limit) {
                scene.send(pair, sequence, bytes, urgency);
                sequence += 1;
                scene.arrived(pair, sequence as usize);
                expect_last(&mut scene, pair, sequence - 1, bytes);
            }
        }
        scene.drained(pair.near.0);
    }
    scene.settle();
}

/// Headers from 8 to 104 bytes arrive byte for byte, with and without payload.
pub fn headers_of_every_length_arrive_whole(fixture: &mut dyn Fixture) {
    let (mut scene, pair) = Scene::pair(fixture);
    let mut sent = Vec::new();
    for header_bytes in 8..=HEADER_BYTES_MAX {
        for payload_bytes in [0, 33] {
            let header = header(header_bytes, 99, payload_bytes);
            let payload = if payload_bytes == 0 {
                Slice::NONE
            } else {
                let bytes = pattern(99, payload_bytes);
                let buffer = scene.recorder(0).memory(&[payload_bytes], &bytes);
                Slice { buffer, offset: 0, len: payload_bytes as u64 }
            };
            scene.send_slice(pair, header, payload, Urgency::Urgent);
            sent.push(header.as_bytes().to_vec());
        }
    }
    scene.arrived(pair, sent.len());
    let placed: Vec<_> = scene.nodes[1].recorder.placed(pair.far.1).collect();
    assert_eq!(placed, sent, "headers as they were sent");
    for (_, payload) in scene.nodes[1].recorder.received(pair.far.1) {
        assert_eq!(payload, pattern(99, 33));
    }
}

/// Lists of empty, tiny and many segments are read and written in order at both ends.
pub fn payloads_scatter_and_gather_over_many_segments(fixture: &mut dyn Fixture) {
    let (mut scene, pair) = Scene::pair(fixture);
    let limit = scene.capabilities(0).frame_payload_bytes_max as usize;
    let mut random = Random::from_seed(5);
    let mut lists: Vec<Vec<usize>> = vec![
        vec![0, 1, 0, 0, 7, 1, 1, 0, 4096, 3],
        vec![1; 2500],
        (0..1500).map(|number| number % 5).collect(),
        vec![60_000, 1, 60_000, 0, 60_000],
    ];
    lists.extend((0..6).map(|_| {
        let count = 1 + random.below(200) as usize;
        (0..count).map(|_| random.below(1300) as usize).collect()
    }));
    let mut count = 0;
    for gather in &lists {
        let bytes = gather.iter().sum::<usize>().min(limit);
        // At the receiver the same bytes lie in another list, reversed, with room to spare.
        let mut scatter: Vec<usize> = gather.iter().rev().copied().collect();
        scatter.push(17);
        for (from, to) in [(&gather[..], &scatter), (&[bytes][..], &scatter)] {
            let content = pattern(count, bytes);
            scene.recorder(1).script.push_back(Answer::Scattered(to.clone()));
            let buffer = scene.recorder(0).memory(from, &content);
            let payload = Slice { buffer, offset: 0, len: bytes as u64 };
            let head = header(HEADER_BYTES, count, bytes);
            scene.send_slice(pair, head, payload, Urgency::Bulk);
            count += 1;
            scene.arrived(pair, count as usize);
            expect_last(&mut scene, pair, count - 1, bytes);
        }
    }
    scene.drained(0);
}

/// A slice that begins and ends inside its segments sends exactly its bytes.
pub fn a_part_of_a_memory_is_sent_and_no_byte_more(fixture: &mut dyn Fixture) {
    let (mut scene, pair) = Scene::pair(fixture);
    let content = pattern(77, 10_000);
    let segments = [1000, 0, 3000, 1, 999, 5000];
    let mut count = 0;
    for (offset, len) in [(0, 10_000), (999, 2), (1000, 3000), (3999, 3), (4500, 501), (9999, 1)] {
        let buffer = scene.recorder(0).memory(&segments, &content);
        let payload = Slice { buffer, offset, len };
        scene.send_slice(pair, header(HEADER_BYTES, 1, len as usize), payload, Urgency::Urgent);
        count += 1;
        scene.arrived(pair, count);
        let (_, received) = scene.nodes[1].recorder.received(pair.far.1).last().expect("arrived");
        assert_eq!(received, &content[offset as usize..(offset + len) as usize]);
    }
}

/// Of a payload that is longer than its place the beginning lands, and the next frame is in step.
pub fn a_short_placement_drops_the_rest(fixture: &mut dyn Fixture) {
    let (mut scene, pair) = Scene::pair(fixture);
    let mut count = 0;
    for bytes in [100usize, 5000, 60_000, 200_000] {
        for place in [0, 1, bytes as u64 / 2, bytes as u64 - 1] {
            let script = &mut scene.recorder(1).script;
            script.extend([Answer::Short(place), Answer::Whole]);
            scene.send(pair, count, bytes, Urgency::Bulk);
            scene.send(pair, count + 1, 50, Urgency::Bulk);
            count += 2;
            scene.arrived(pair, count as usize);
            let received: Vec<_> = scene.nodes[1].recorder.received(pair.far.1).collect();
            let [.., (_, cut), (_, next)] = received[..] else { panic!("both frames received") };
            assert_eq!(cut, &pattern(count - 2, bytes)[..place as usize]);
            assert_eq!(next, pattern(count - 1, 50));
        }
    }
    scene.drained(0);
}

/// A dropped payload costs only its own time: the next frames arrive whole.
pub fn dropped_payloads_leave_the_link_in_step(fixture: &mut dyn Fixture) {
    let (mut scene, pair) = Scene::pair(fixture);
    let mut count = 0;
    for bytes in SIZES.into_iter().filter(|bytes| *bytes > 0) {
        scene.recorder(1).script.extend([Answer::Drop, Answer::Whole]);
        scene.send(pair, count, bytes, Urgency::Urgent);
        scene.send(pair, count + 1, 77, Urgency::Urgent);
        count += 2;
        scene.arrived(pair, count as usize);
        expect_last(&mut scene, pair, count - 1, 77);
    }
    scene.settle();
    let received = scene.nodes[1].recorder.received(pair.far.1).count();
    assert_eq!(received as u64, count / 2, "what is dropped does not land");
}

/// Frames and bytes are counted at both ends, and payload bytes are never counted twice.
pub fn counters_move_with_the_traffic(fixture: &mut dyn Fixture) {
    let (mut scene, pair) = Scene::pair(fixture);
    let before = [scene.counters(0), scene.counters(1)];
    let sizes = [0usize, 10, 5000, 200_000];
    for (sequence, bytes) in (0..).zip(sizes) {
        scene.send(pair, sequence, bytes, Urgency::Bulk);
    }
    scene.arrived(pair, sizes.len());
    scene.drained(0);
    let after = [scene.counters(0), scene.counters(1)];
    let payload: usize = sizes.iter().sum();
    let with_headers = (payload + sizes.len() * HEADER_BYTES) as u64;
    assert_eq!(after[0].frames_sent - before[0].frames_sent, 4);
    assert_eq!(after[1].frames_received - before[1].frames_received, 4);
    let sent = after[0].bytes_sent - before[0].bytes_sent;
    let received = after[1].bytes_received - before[1].bytes_received;
    // A rail may count its own framing, which is small; it may not leave bytes out. Repeated frames count twice.
    let most = match fixture.repeats() {
        true => u64::MAX,
        false => with_headers + with_headers / 8 + 1024,
    };
    for bytes in [sent, received] {
        assert!((with_headers..=most).contains(&bytes), "{bytes} of {with_headers} bytes counted");
    }
    let staged = after[1].bytes_staged - before[1].bytes_staged;
    assert!(staged <= payload as u64, "{staged} of {payload} payload bytes staged");
}

/// A payload beyond the limit, or one that contradicts its header, never leaves.
pub fn an_illegal_frame_is_refused(fixture: &mut dyn Fixture) {
    let (mut scene, pair) = Scene::pair(fixture);
    let long = FRAME_PAYLOAD_BYTES_MAX as usize + 1;
    for (claimed, bytes) in [(long, long), (10, 11), (10, 9), (5, 0)] {
        let payload = if bytes == 0 {
            Slice::NONE
        } else {
            let buffer = scene.recorder(0).memory(&[bytes], &[]);
            Slice { buffer, offset: 0, len: bytes as u64 }
        };
        let head = header(HEADER_BYTES, 1, claimed);
        let outcome = scene.send_slice(pair, head, payload, Urgency::Urgent);
        assert!(matches!(outcome, Ordered::Refused(_)), "{claimed} and {bytes}: {outcome:?}");
    }
    scene.send(pair, 2, 10, Urgency::Urgent);
    scene.arrived(pair, 1);
    scene.settle();
    assert_eq!(scene.recorder(1).placed(pair.far.1).count(), 1);
}

/// The last event of the far side that concerns a payload is that of frame `sequence`.
fn expect_last(scene: &mut Scene, pair: Pair, sequence: u64, bytes: usize) {
    let (node, link) = pair.far;
    let recorder = scene.recorder(node);
    let expected = header(HEADER_BYTES, sequence, bytes);
    let head = recorder.placed(link).last().expect("a frame was placed");
    assert_eq!(head, expected.as_bytes(), "the header of frame {sequence}");
    let Some(Event::Received { payload, .. }) = recorder.events.last() else {
        assert_eq!(bytes, 0, "a payload of frame {sequence} lands");
        return;
    };
    let first_wrong = payload.iter().zip(pattern(sequence, bytes)).position(|(a, b)| *a != b);
    assert_eq!((payload.len(), first_wrong), (bytes, None), "payload of frame {sequence}");
}
