//! Faults of the simulated network, and the reactions of a rail to them. The recorder of the conformance suite
//! checks the standing promises of every rail all the while.

use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Slice;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{Ordered, Urgency, Verb};
use ropewalk_rail::conformance::recorder::Event;
use ropewalk_rail::conformance::scene::{HEADER_BYTES, Scene, header, pattern, sequence_of};
use ropewalk_rail_sim::{Cut, Kill, Path, SimConfig};

mod fixture;
use fixture::SimFixture;

/// Polls all rails for so long.
fn pass(scene: &mut Scene, duration: Duration) {
    let end = scene.fixture.now() + duration;
    while scene.fixture.now() < end {
        scene.round();
    }
}

const SECOND: Duration = Duration::from_secs(1);
const FRAMES: u64 = 4000;

fn bad_weather() -> Path {
    Path {
        loss: 100_000,
        duplication: 50_000,
        reordering: 100_000,
        payload_corruption: 50_000,
        header_corruption: 50_000,
        ..Path::default()
    }
}

/// Sends `FRAMES` frames; headers as they arrived, and how many payloads came intact.
fn storm(seed: u64, config: SimConfig) -> (Vec<Vec<u8>>, usize, u64) {
    let mut fixture = SimFixture::new(seed, config).with_path(bad_weather());
    let network = fixture.network.clone();
    let (mut scene, pair) = Scene::pair(&mut fixture);
    for sequence in 0..FRAMES {
        scene.send(pair, sequence, 64, Urgency::Bulk);
        scene.round();
    }
    scene.drained(0);
    pass(&mut scene, SECOND);
    let recorder = &scene.nodes[1].recorder;
    let placed = recorder.placed(pair.far.1).map(<[u8]>::to_vec).collect();
    let intact = recorder.received(pair.far.1).filter(|(head, payload)| {
        let sequence = sequence_of(head);
        *head == header(HEADER_BYTES, sequence, 64).as_bytes() && *payload == pattern(sequence, 64)
    });
    let intact = intact.count();
    assert_eq!(scene.nodes[0].recorder.fault(pair.near.1), None, "no fault ends a link");
    (placed, intact, network.trace_hash())
}

#[test]
fn datagrams_are_lost_doubled_reordered_and_corrupted_in_the_given_measure() {
    let (placed, intact, _) = storm(1, SimConfig::datagram());
    // 90 % arrive, 5 % of them twice; of 41 header bytes 5 hold lengths, which are found out.
    assert!((3650..3850).contains(&placed.len()), "{} frames arrived", placed.len());
    assert!((3250..3550).contains(&intact), "{intact} frames arrived intact");
    let mut numbers: Vec<u64> = placed.iter().map(|head| sequence_of(head)).collect();
    let turned = numbers.windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert!((150..900).contains(&turned), "{turned} frames overtook another one");
    numbers.sort_unstable();
    let doubled = numbers.windows(2).filter(|pair| pair[0] == pair[1]).count();
    assert!((100..250).contains(&doubled), "{doubled} frames came twice");
}

#[test]
fn a_stream_keeps_its_promises_in_the_same_weather() {
    let (placed, intact, _) = storm(1, SimConfig::stream());
    let numbers: Vec<u64> = placed.iter().map(|head| sequence_of(head)).collect();
    assert_eq!(numbers, (0..FRAMES).collect::<Vec<_>>());
    assert_eq!(intact, FRAMES as usize);
}

#[test]
fn a_seed_is_a_run() {
    assert_eq!(storm(7, SimConfig::datagram()), storm(7, SimConfig::datagram()));
    assert_ne!(storm(7, SimConfig::datagram()).2, storm(8, SimConfig::datagram()).2);
}

#[test]
fn a_stream_survives_a_partition_that_heals_in_time() {
    let mut fixture = SimFixture::new(1, SimConfig::stream());
    let network = fixture.network.clone();
    let (mut scene, pair) = Scene::pair(&mut fixture);
    for round in 0..4 {
        // Cut while frames are under way; the far side's answers wait, too.
        for sequence in 0..40 {
            scene.send(pair, round * 40 + sequence, 20_000, Urgency::Bulk);
        }
        pass(&mut scene, Duration::from_micros(130));
        match round % 2 {
            0 => network.partition("a", "b"),
            _ => network.partition_one_way("a", "b"),
        }
        let before = scene.nodes[1].recorder.placed(pair.far.1).count();
        pass(&mut scene, 2 * SECOND);
        let held = scene.nodes[1].recorder.placed(pair.far.1).count();
        assert!(held <= before + 1 && held < 40 * (round as usize + 1), "a partition lets through");
        assert!(scene.nodes[0].recorder.pending() > 0, "a partition lets buffers go");
        network.heal("a", "b");
        scene.arrived(pair, 40 * (round as usize + 1));
    }
    scene.drained(0);
    pass(&mut scene, 20 * SECOND);
    let placed = scene.nodes[1].recorder.placed(pair.far.1);
    assert_eq!(placed.map(sequence_of).collect::<Vec<_>>(), (0..160).collect::<Vec<_>>());
    assert!(scene.nodes[1].recorder.is_up(pair.far.1), "a healed link went down");
}

#[test]
fn a_long_partition_downs_both_ends_and_the_late_frames_never_arrive() {
    for one_way in [false, true] {
        let mut fixture = SimFixture::new(1, SimConfig::stream());
        let network = fixture.network.clone();
        let (mut scene, pair) = Scene::pair(&mut fixture);
        if one_way {
            network.partition_one_way("a", "b");
        } else {
            network.partition("a", "b");
        }
        for sequence in 0..20 {
            scene.send(pair, sequence, 1000, Urgency::Bulk);
        }
        pass(&mut scene, 4 * SECOND);
        assert!(scene.nodes[0].recorder.is_up(pair.near.1), "the timeout is five seconds");
        pass(&mut scene, 2 * SECOND);
        assert_eq!(scene.nodes[0].recorder.fault(pair.near.1), Some(Fault::PeerReset));
        assert_eq!(scene.nodes[1].recorder.fault(pair.far.1), Some(Fault::PeerReset));
        assert_eq!(scene.nodes[0].recorder.pending(), 0);
        network.heal("a", "b");
        pass(&mut scene, SECOND);
        assert_eq!(scene.nodes[1].recorder.placed(pair.far.1).count(), 0);
        let again = scene.link(0, 1);
        scene.send(again, 1, 100, Urgency::Urgent);
        scene.arrived(again, 1);
    }
}

#[test]
fn cuts_show_at_both_ends_at_one_end_first_or_after_the_timeout() {
    let mut fixture = SimFixture::new(1, SimConfig::stream());
    let network = fixture.network.clone();
    let mut scene = Scene::new(&mut fixture, 2);
    let moment = Duration::from_micros(10);

    let pair = scene.link(0, 1);
    assert_eq!(network.cut("b", "a", Cut::Both), 1);
    pass(&mut scene, moment);
    assert!(!scene.nodes[0].recorder.is_up(pair.near.1));
    assert!(!scene.nodes[1].recorder.is_up(pair.far.1));

    let pair = scene.link(0, 1);
    network.cut("b", "a", Cut::FirstThenOther(SECOND));
    pass(&mut scene, moment);
    assert!(!scene.nodes[1].recorder.is_up(pair.far.1));
    assert!(scene.nodes[0].recorder.is_up(pair.near.1), "half open");
    let outcome = scene.send(pair, 1, 100, Urgency::Urgent);
    assert_eq!(outcome, Ordered::Pending, "whoever does not know sends on");
    pass(&mut scene, 2 * SECOND);
    assert!(!scene.nodes[0].recorder.is_up(pair.near.1));
    assert_eq!(scene.nodes[0].recorder.pending(), 0);

    let pair = scene.link(0, 1);
    network.cut("a", "b", Cut::Silent);
    scene.send(pair, 1, 100, Urgency::Urgent);
    pass(&mut scene, 4 * SECOND);
    assert!(
        scene.nodes[0].recorder.is_up(pair.near.1) && scene.nodes[1].recorder.is_up(pair.far.1)
    );
    pass(&mut scene, 2 * SECOND);
    assert!(!scene.nodes[0].recorder.is_up(pair.near.1));
    assert!(!scene.nodes[1].recorder.is_up(pair.far.1));
    assert_eq!(scene.nodes[1].recorder.placed(pair.far.1).count(), 0);
}

#[test]
fn a_slot_goes_to_another_link_only_when_the_end_of_its_last_one_was_reported() {
    let mut fixture = SimFixture::new(1, SimConfig::stream());
    let network = fixture.network.clone();
    let mut scene = Scene::new(&mut fixture, 2);
    let lost = scene.link(0, 1).near.1;
    network.cut("a", "b", Cut::Both);
    let now = scene.fixture.now();
    let next = scene.rail(0).connect("b", now).unwrap();
    assert_ne!(next.slot.index, lost.slot.index, "nobody was told yet that it is free");
    scene.until("the end is reported", |scene| !scene.nodes[0].recorder.is_up(lost));
    let now = scene.fixture.now();
    let third = scene.rail(0).connect("b", now).unwrap();
    assert_eq!(third.slot.index, lost.slot.index, "slots are used again");
}

#[test]
fn connects_are_refused_at_once_or_time_out() {
    let mut fixture = SimFixture::new(1, SimConfig::stream());
    let network = fixture.network.clone();
    let mut scene = Scene::new(&mut fixture, 2);
    let mut attempt = |prepare: &dyn Fn()| {
        prepare();
        let now = scene.fixture.now();
        let link = scene.rail(0).connect("b", now).unwrap();
        scene.until("the connect fails", |scene| scene.nodes[0].recorder.fault(link).is_some());
        assert_eq!(scene.nodes[0].recorder.fault(link), Some(Fault::Unreachable));
        scene.fixture.now().since(now)
    };
    assert!(attempt(&|| network.change_path("a", "b", |path| path.refuse = true)) < SECOND);
    network.change_path("a", "b", |path| path.refuse = false);
    assert!(attempt(&|| network.partition("a", "b")) >= 2 * SECOND);
    network.heal("a", "b");
    // Only the way back is closed: the acceptor sees a link that its peer gives up.
    assert!(attempt(&|| network.partition_one_way("b", "a")) >= 2 * SECOND);
    pass(&mut scene, SECOND);
    let events = &scene.nodes[1].recorder.events;
    assert!(matches!(events[..], [Event::Up { .. }, Event::Down { .. }]), "{events:?}");
    network.heal("a", "b");
    scene.link(0, 1);
}

#[test]
fn the_dead_know_nothing_and_a_new_life_under_the_name_starts_afresh() {
    for (kill, config) in [
        (Kill::Process(Duration::from_millis(3)), SimConfig::stream()),
        (Kill::Process(Duration::ZERO), SimConfig::datagram()),
        (Kill::Power, SimConfig::stream()),
    ] {
        let told = kill != Kill::Power && config.capabilities.reliable;
        let mut fixture = SimFixture::new(1, config);
        let (network, names) = (fixture.network.clone(), fixture.names.clone());
        let (mut scene, pair) = Scene::pair(&mut fixture);
        scene.send(pair, 1, 100_000, Urgency::Bulk);
        network.kill("b", kill);
        assert!(!network.is_alive("b"));
        let heard = scene.nodes[1].recorder.events.len();
        let died = scene.fixture.now();
        scene.until("the peer notices", |scene| !scene.nodes[0].recorder.is_up(pair.near.1));
        let noticed = scene.fixture.now().since(died);
        assert_eq!(noticed < SECOND, told, "noticed after {noticed:?}");
        // The old life gets no report and no order through.
        assert_eq!(scene.nodes[1].recorder.events.len(), heard);
        let turned = pair.turned();
        assert_eq!(scene.send(turned, 1, 10, Urgency::Urgent), Ordered::Refused(Fault::Closed));
        assert_eq!(scene.rail(1).connect("a", Time::ZERO), Err(Fault::Closed));
        names.borrow_mut().push_front("b".into());
        let reborn = scene.add();
        let again = scene.link(0, reborn);
        scene.send(again, 5, 1000, Urgency::Urgent);
        scene.arrived(again, 1);
        scene.kill(1);
        assert!(network.is_alive("b"), "dropping the old rail killed the new one");
    }
}

#[test]
fn the_send_window_pushes_back_and_a_rate_is_kept() {
    let path = Path { bytes_per_second: 1_000_000, ..Path::default() };
    let config = SimConfig { window_frames: 2, ..SimConfig::stream() };
    let mut fixture = SimFixture::new(1, config).with_path(path);
    let network = fixture.network.clone();
    let (mut scene, pair) = Scene::pair(&mut fixture);
    for sequence in 0..10 {
        let outcome = scene.send(pair, sequence, 100_000, Urgency::Bulk);
        assert_eq!(outcome, Ordered::Pending);
    }
    pass(&mut scene, SECOND / 2);
    let pending = scene.nodes[0].recorder.pending();
    assert!((5..=7).contains(&pending), "{pending} of 10 frames pending at half time");
    network.change_path("a", "b", |path| path.bytes_per_second = 0);
    pass(&mut scene, SECOND / 5);
    assert_eq!(scene.nodes[0].recorder.pending(), 0, "a live change of the rate holds");
}

#[test]
#[should_panic(expected = "a buffer was given back while rail a held it")]
fn a_buffer_that_is_given_back_too_early_is_found_out() {
    let mut fixture = SimFixture::new(1, SimConfig::stream());
    let (mut scene, pair) = Scene::pair(&mut fixture);
    let buffer = scene.recorder(0).memory(&[100], &[1; 100]);
    let payload = Slice { buffer, offset: 0, len: 100 };
    let head = header(HEADER_BYTES, 1, 100);
    assert_eq!(scene.send_slice(pair, head, payload, Urgency::Bulk), Ordered::Pending);
    scene.recorder(0).buffers.remove(buffer);
    pass(&mut scene, SECOND);
}

#[test]
fn a_receiver_that_dies_between_header_and_payload_leaves_an_unfinished_placement() {
    let path = Path { bytes_per_second: 1_000_000, ..Path::default() };
    let mut fixture = SimFixture::new(1, SimConfig::stream()).with_path(path);
    let network = fixture.network.clone();
    let (mut scene, pair) = Scene::pair(&mut fixture);
    scene.send(pair, 1, 200_000, Urgency::Bulk);
    pass(&mut scene, SECOND / 10);
    assert_eq!(scene.nodes[1].recorder.open_placements(pair.far.1), 1);
    network.cut("a", "b", Cut::Both);
    pass(&mut scene, SECOND);
    assert_eq!(scene.nodes[1].recorder.received(pair.far.1).count(), 0);
    // The recorder poisoned the place at the link's end: nothing may have landed since.
    scene.settle();
    assert!(matches!(scene.nodes[0].recorder.events.last(), Some(Event::Down { .. })));
    let outcome = scene.order(0, Verb::Close { link: pair.near.1 }, None);
    assert_eq!(outcome, Ordered::Refused(Fault::PeerReset));
}

#[test]
fn what_a_partition_held_back_is_not_overtaken_by_what_was_still_under_way() {
    let millis = Duration::from_millis;
    let path = Path { latency: millis(10), ..Path::default() };
    let mut fixture = SimFixture::new(1, SimConfig::stream()).with_path(path);
    let network = fixture.network.clone();
    let (mut scene, pair) = Scene::pair(&mut fixture);
    for sequence in 0..40 {
        scene.send(pair, sequence, 100, Urgency::Urgent);
        pass(&mut scene, Duration::from_micros(200));
    }
    // Eight milliseconds of frames are under way; some of them arrive during the partition.
    network.partition("a", "b");
    pass(&mut scene, millis(5));
    network.heal("a", "b");
    scene.arrived(pair, 40);
    let placed = scene.nodes[1].recorder.placed(pair.far.1);
    assert_eq!(placed.map(sequence_of).collect::<Vec<_>>(), (0..40).collect::<Vec<_>>());
}
