//! The packet machine over networks that lose, double, reorder, cut and corrupt, by seeds.

mod air;
mod hostile;
mod offers;
mod shares;
mod world;

use ropewalk_transport::PacketProtocol;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{Help, RemoteKey, RemoteLayout, RemoteSegment, Token, Urgency, Verb};
use ropewalk_sim::{in_two_processes, seeds};
use world::*;

/// Region bytes, and those of an access at most.
const REGION: u64 = 600_000;
const ACCESS_MAX: u64 = 150_000;

/// Offsets and lengths.
type Parts = Vec<(u64, u64)>;

/// Two nodes and a link between them, with a region of each.
struct Scene {
    world: World,
    links: [SlotId; 2],
    regions: [Slice; 2],
    keys: [RemoteKey; 2],
    /// Frames that were sent, by sender and urgency.
    sent: [[Vec<u64>; 2]; 2],
    next_id: u64,
    /// By token: memory, and which parts of the region it has to hold.
    reads: [BTreeMap<u64, (Slice, Parts)>; 2],
    /// By token: where in the region, how much, and the number of the pattern.
    writes: [BTreeMap<u64, (u64, u64, u64)>; 2],
    /// Memory that was taken back.
    poisoned: Vec<(usize, Slice)>,
    /// Halves of the regions: the first is read only, and holds this pattern.
    next_write: [u64; 2],
}

const READ_PATTERN: u64 = 77;

impl Scene {
    fn new(seed: u64, weather: Weather) -> Scene {
        let mut lengths = ropewalk_base::random::Random::from_seed(seed ^ 0x5eed);
        let packet_bytes = [256, 1486, 1486, 4130, 8986][lengths.below(5) as usize];
        let pieces_max = [8, 64, 1000][lengths.below(3) as usize];
        let mut world = World::new(seed, 2, packet_bytes, pieces_max);
        world.air.weather = weather;
        let (a, b) = world.connect(0, 1);
        let links = [a, b];
        let regions =
            [0, 1].map(|node: usize| world.nodes[node].store.patterned(READ_PATTERN, REGION));
        let keys = [0, 1].map(|node| RemoteKey {
            slot: SlotId { index: node, generation: 9 },
            secret: u64::from(node) + 1234,
        });
        let mut scene = Scene {
            world,
            links,
            regions,
            keys,
            sent: Default::default(),
            next_id: 1,
            reads: Default::default(),
            writes: Default::default(),
            poisoned: Vec::new(),
            next_write: [REGION / 2; 2],
        };
        for node in 0..2 {
            scene.expose(node);
        }
        scene
    }

    fn expose(&mut self, node: usize) {
        let verb = Verb::Expose {
            link: of(self.links[node]),
            key: self.keys[node],
            region: self.regions[node],
            writable: true,
        };
        assert!(self.world.take_back(node, &verb));
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.world.random.below(limit)
    }

    fn frame(&mut self, node: usize) {
        let len = match self.below(4) {
            0 => 0,
            1 => 1 + self.below(200),
            2 => self.below(5000),
            _ => self.below(40_000),
        };
        let bulk = self.below(4) == 0;
        let urgency = match self.below(3) {
            _ if bulk => Urgency::Bulk,
            0 => Urgency::Patient,
            _ => Urgency::Urgent,
        };
        let id = self.next_id;
        self.next_id += 1;
        self.sent[node][usize::from(bulk)].push(id);
        self.world.send(node, self.links[node], id, len, urgency);
    }

    fn read(&mut self, node: usize) {
        let from = |scene: &mut Scene, max: u64| {
            let len = 1 + scene.below(max);
            (scene.below(REGION / 2 - len), len)
        };
        let parts: Vec<(u64, u64)> = match self.below(3) {
            0 => (0..1 + self.below(20)).map(|_| from(self, 5000)).collect(),
            _ => vec![from(self, ACCESS_MAX)],
        };
        let total: u64 = parts.iter().map(|(_, len)| len).sum();
        let local = self.world.nodes[node].store.add(vec![0; total as usize]);
        let key = self.keys[1 - node];
        let remote = layout(&parts);
        let help = Help::None;
        let token = self.world.order(node, self.links[node], |link, token| Verb::Read {
            link,
            key,
            remote,
            local,
            token,
            help,
        });
        self.reads[node].insert(token, (local, parts));
    }

    fn write(&mut self, node: usize) {
        let len = 1 + self.below(ACCESS_MAX.min(REGION - self.next_write[node]));
        let at = self.next_write[node];
        if at + len >= REGION - 1 {
            return;
        }
        self.next_write[node] += len;
        self.next_id += 1;
        let id = self.next_id;
        let local = self.world.nodes[node].store.patterned(id, len);
        let key = self.keys[1 - node];
        let half = len / 2;
        let parts =
            if half > 0 { vec![(at, half), (at + half, len - half)] } else { vec![(at, len)] };
        let remote = layout(&parts);
        let token = self.world.order(node, self.links[node], |link, token| Verb::Write {
            link,
            key,
            remote,
            local,
            token,
        });
        self.writes[node].insert(token, (at, len, id));
    }

    /// Gives up something that is under way.
    fn take_back(&mut self, node: usize) {
        let link = of(self.links[node]);
        let pending: Vec<u64> = self.world.nodes[node].seen.pending.keys().copied().collect();
        if pending.is_empty() {
            return;
        }
        let token = pending[self.below(pending.len() as u64) as usize];
        let verb =
            if self.reads[node].contains_key(&token) || self.writes[node].contains_key(&token) {
                Verb::CancelAccess { link, token: Token(token) }
            } else {
                Verb::DetachSend { link, token: Token(token), later: Token::NONE }
            };
        if !self.world.take_back(node, &verb) {
            return;
        }
        self.world.nodes[node].seen.pending.remove(&token);
        if let Some(payload) = self.world.payloads.remove(&(node, token)) {
            self.world.nodes[node].store.poison(payload);
        }
        if let Some((local, _)) = self.reads[node].remove(&token) {
            self.world.nodes[node].store.poison(local);
            self.poisoned.push((node, local));
        }
        self.writes[node].remove(&token);
    }

    /// Everything came, once, in order, and is what it was.
    fn check(&mut self) {
        self.world.until("the end of all orders", |world| {
            world.nodes.iter().all(|node| node.seen.pending.is_empty())
        });
        let sent: Vec<usize> = self.sent.iter().map(|by| by.iter().map(Vec::len).sum()).collect();
        self.world.until("all frames", |world| {
            (0..2).all(|node| {
                let here: usize = world.nodes[1 - node].seen.frames.iter().map(Vec::len).sum();
                here >= sent[node] + usize::from(node == 0)
            })
        });
        for node in 0..2 {
            let seen = &self.world.nodes[1 - node].seen;
            for urgency in 0..2 {
                let mut frames = seen.frames[urgency].clone();
                frames.retain(|id| *id != 1 << 40);
                assert_eq!(frames, self.sent[node][urgency], "frames of node {node}");
            }
        }
        for node in 0..2 {
            self.check_accesses(node);
        }
        for (node, slice) in &self.poisoned {
            let bytes = self.world.nodes[*node].store.bytes(*slice);
            assert!(bytes.iter().all(|byte| *byte == 0xEE), "late data received");
        }
        assert!(self.world.nodes.iter().all(|node| node.seen.down.is_empty()), "no link is lost");
        assert!(self.world.nodes.iter().all(|node| node.machine.counters().violations == 0));
    }

    fn check_accesses(&self, node: usize) {
        let (here, there) = (&self.world.nodes[node], &self.world.nodes[1 - node]);
        for (token, (local, parts)) in &self.reads[node] {
            assert_eq!(here.seen.ended[token], Ok(()));
            let bytes = here.store.bytes(*local);
            let expected = parts.iter().flat_map(|(at, len)| *at..at + len);
            assert!(expected.zip(&bytes).all(|(at, byte)| *byte == pattern(READ_PATTERN, at)));
        }
        for (token, (at, len, id)) in &self.writes[node] {
            assert_eq!(here.seen.ended[token], Ok(()));
            let bytes = there.store.bytes(self.regions[1 - node].part(*at, *len));
            assert!(
                (0..*len).zip(&bytes).all(|(at, byte)| *byte == pattern(*id, at)),
                "write {id}"
            );
        }
    }
}

fn layout(parts: &[(u64, u64)]) -> RemoteLayout {
    match parts {
        [(offset, _)] => RemoteLayout::At(*offset),
        parts => {
            let list =
                parts.iter().map(|(offset, len)| RemoteSegment { offset: *offset, len: *len });
            RemoteLayout::List(list.collect::<Arc<[_]>>())
        }
    }
}

/// Everything at once, with cancels in between.
fn traffic(seed: u64, weather: Weather, takes_back: bool) -> u64 {
    let mut scene = Scene::new(seed, weather);
    for _ in 0..60 + scene.below(100) {
        let node = scene.below(2) as usize;
        match scene.below(12) {
            0..6 => scene.frame(node),
            6..8 => scene.read(node),
            8..10 => scene.write(node),
            10 if takes_back => scene.take_back(node),
            _ => {
                let time = Duration::from_micros(scene.below(300));
                scene.world.pass(time);
            }
        }
    }
    scene.check();
    scene.world.trace
}

#[test]
fn everything_arrives_once_in_order_and_whole_whatever_the_weather() {
    for seed in seeds(0, 60) {
        let trace = traffic(seed, FOUL, false);
        if seed % 10 == 0 {
            assert_eq!(trace, traffic(seed, FOUL, false), "seed {seed} is not reproduced");
        }
    }
}

#[test]
fn one_seed_has_one_trace_in_two_processes() {
    in_two_processes("one_seed_has_one_trace_in_two_processes", || {
        (0..10).fold(0, |all: u64, seed| {
            let refused = offers::revoked_under_writes(seed);
            all.rotate_left(7) ^ traffic(seed, FOUL, true) ^ refused.rotate_left(31)
        })
    });
}

#[test]
fn what_is_taken_back_is_touched_no_more_and_harms_nothing_else() {
    for seed in seeds(100_000, 60) {
        traffic(seed, FOUL, true);
    }
}

#[test]
fn frames_that_are_in_no_hurry_leave_together_or_with_others_and_soon() {
    let mut world = World::new(5, 2, 1486, 64);
    let (link, _) = world.connect(0, 1);
    world.pass(Duration::from_millis(5));
    let mut id = 0;
    // The number of packets sent for frames of these urgencies, and the time at which all had arrived.
    let mut send = |world: &mut World, urgencies: &[Urgency]| {
        let (begun, before) = (world.now, world.nodes[0].machine.counters().sent);
        let wanted = world.nodes[1].seen.frames[0].len() + urgencies.len();
        let Node { machine, seen, .. } = &mut world.nodes[0];
        machine.drained(begun, seen);
        for urgency in urgencies {
            id += 1;
            world.send(0, link, id, 20, *urgency);
        }
        world.until("all", |world| world.nodes[1].seen.frames[0].len() >= wanted);
        let took = world.now.since(begun);
        let sent = world.nodes[0].machine.counters().sent - before;
        world.pass(Duration::from_millis(5));
        (sent, took)
    };
    use Urgency::{Patient, Urgent};
    let (sent, alone) = send(&mut world, &[Urgent]);
    assert_eq!(sent, 1);
    let (sent, waited) = send(&mut world, &[Patient]);
    assert_eq!(sent, 1);
    let longer = waited.saturating_sub(alone);
    assert!(longer > Duration::from_micros(20) && longer < Duration::from_millis(1), "{longer:?}");
    for together in [&[Patient, Urgent][..], &[Patient, Patient, Patient, Patient]] {
        let (sent, took) = send(&mut world, together);
        assert_eq!(sent, 1, "{together:?}");
        assert!(took < waited, "{together:?}: {took:?}");
    }
    // None of them waits behind another for longer than the first.
    let (_, took) = send(&mut world, &[Patient; 7]);
    assert!(took < waited + Duration::from_millis(1), "{took:?}");
}

/// Sends frames to a peer that is not there any more, until one waits; the frame with the number `left` is in no
/// hurry. Returns the number of frames, and the number of passes in a second after that.
fn passes_beside_the_window(left: u64) -> (u64, u32) {
    let mut world = World::new(6, 2, 1486, 64);
    let (link, _) = world.connect(0, 1);
    world.nodes[1].alive = false;
    let mut out = vec![0; 1486];
    let mut pass = |world: &mut World| {
        let Node { machine, seen, store, .. } = &mut world.nodes[0];
        machine.drained(world.now, seen);
        while machine.next(world.now, store, &mut out).is_some() {}
        machine.deadline()
    };
    // Until the window is full, and one frame waits for it.
    let mut id = 0;
    for window in 1..200 {
        id += 1;
        let before = world.nodes[0].machine.counters().sent;
        let urgency = if window < left { Urgency::Urgent } else { Urgency::Patient };
        world.send(0, link, id, 1000, urgency);
        pass(&mut world);
        if window >= left || world.nodes[0].machine.counters().sent == before {
            break;
        }
    }
    let mut passes = 0;
    let end = world.now + Duration::from_secs(1);
    while world.now < end {
        world.now = pass(&mut world).max(world.now + Duration::from_nanos(200));
        passes += 1;
    }
    (id, passes)
}

#[test]
fn what_waits_for_the_window_wakes_nobody() {
    // The first call finds the frame that waits for the window; the second call sends that frame without urgency.
    let (first_that_waits, _) = passes_beside_the_window(u64::MAX);
    assert!(first_that_waits > 8);
    let (_, passes) = passes_beside_the_window(first_that_waits);
    assert!(passes < 200, "{passes} passes in a second");
}

#[test]
fn in_fair_weather_nothing_goes_twice() {
    for seed in seeds(200_000, 20) {
        let mut scene = Scene::new(seed, Weather::FAIR);
        for _ in 0..50 {
            let node = scene.below(2) as usize;
            scene.frame(node);
            scene.read(node);
        }
        scene.check();
        for node in &scene.world.nodes {
            let counters = node.machine.counters();
            let twice = (counters.resent, counters.asked_again, counters.doubled, counters.early);
            assert_eq!(twice, (0, 0, 0, 0), "seed {seed}: {counters:?}");
        }
    }
}

#[test]
fn over_two_paths_everything_arrives_and_a_small_difference_sends_nothing_again() {
    for (apart, is_small) in [(3, true), (12, true), (90, false), (2000, false)] {
        for seed in seeds(300_000 + apart * 1000, 20) {
            let mut scene = Scene::new(seed, Weather { apart, ..Weather::FAIR });
            for _ in 0..50 {
                let node = scene.below(2) as usize;
                scene.frame(node);
                scene.read(node);
                scene.write(node);
            }
            scene.check();
            let counters = scene.world.nodes.iter().map(|node| node.machine.counters());
            let (early, again) = counters.fold((0, 0), |(early, again), it| {
                (early + it.early, again + it.resent + it.asked_again)
            });
            assert!(early > 0, "seed {seed}: nothing overtook anything");
            assert!(!is_small || again == 0, "seed {seed}: {again} went twice");
        }
    }
}

/// Messages, reads and writes over a path where some packets overtake each other. Returns the number of packets that
/// carried them, and the number that went again or were asked for again though nothing was lost.
fn overtaking(seed: u64, steps: u64) -> (u64, u64) {
    let mut scene = Scene::new(seed, Weather { held: 50, spacing: 3, ..Weather::FAIR });
    for _ in 0..steps {
        let node = scene.below(2) as usize;
        scene.frame(node);
        scene.read(node);
        let time = Duration::from_micros(scene.below(200));
        scene.world.pass(time);
    }
    scene.check();
    let counters = scene.world.nodes.iter().map(|node| node.machine.counters());
    counters.fold((0, 0), |(sent, again), it| (sent + it.sent, again + it.resent + it.asked_again))
}

#[test]
fn packets_that_others_overtake_are_not_taken_for_lost() {
    let (mut sent, mut again) = (0, 0);
    for seed in seeds(310_000, 20) {
        let one = overtaking(seed, 150);
        (sent, again) = (sent + one.0, again + one.1);
        assert!(one.1 * 100 < one.0 * 6, "seed {seed}: {} of {} went again", one.1, one.0);
    }
    assert!(again * 100 < sent * 2, "{again} of {sent} went again");
    println!("{again} of {sent} went again");
}

#[test]
fn a_revoked_region_is_written_no_more_and_its_writers_hear_of_it() {
    for seed in seeds(300_000, 30) {
        let mut scene = Scene::new(seed, FOUL);
        scene.world.room = 2;
        for _ in 0..4 {
            scene.write(0);
            scene.read(0);
        }
        let time = Duration::from_micros(scene.below(300));
        scene.world.pass(time);
        let verb = Verb::Revoke { link: of(scene.links[1]), key: scene.keys[1] };
        assert!(scene.world.take_back(1, &verb));
        assert!(!scene.world.take_back(1, &verb), "it is not there any more");
        scene.world.nodes[1].store.poison(scene.regions[1]);
        scene.world.step();
        scene.world.until("the end of all orders", |world| world.nodes[0].seen.pending.is_empty());
        assert_eq!(scene.world.nodes[1].seen.revoked, [scene.keys[1]]);
        let bytes = scene.world.nodes[1].store.bytes(scene.regions[1]);
        assert!(bytes.iter().all(|byte| *byte == 0xEE), "seed {seed}: late data received");
        let seen = &scene.world.nodes[0].seen;
        assert!(seen.ended.values().all(|it| matches!(it, Ok(()) | Err(Fault::BadKey))));
        // Reads that ended well hold nothing of the bytes that lie there now.
        for (token, (local, parts)) in &scene.reads[0] {
            let bytes = scene.world.nodes[0].store.bytes(*local);
            let expected = parts.iter().flat_map(|(at, len)| *at..at + len);
            let right = expected.zip(&bytes).all(|(at, byte)| *byte == pattern(READ_PATTERN, at));
            assert!(right || seen.ended[token].is_err());
        }
    }
}

#[test]
fn a_close_delivers_what_was_ordered_before_and_then_ends_on_both_sides() {
    for seed in seeds(400_000, 30) {
        let mut scene = Scene::new(seed, FOUL);
        (0..20).for_each(|_| scene.frame(0));
        let close = Verb::Close { link: of(scene.links[0]) };
        assert!(scene.world.take_back(0, &close));
        scene.world.until("two last words", |world| {
            world.nodes.iter().all(|node| !node.seen.down.is_empty())
        });
        let fault =
            |scene: &Scene, node: usize| scene.world.nodes[node].seen.down[&scene.links[node]];
        assert_eq!(fault(&scene, 0), Fault::Closed, "seed {seed}");
        assert_eq!(fault(&scene, 1), Fault::PeerReset, "seed {seed}");
        for urgency in 0..2 {
            let mut frames = scene.world.nodes[1].seen.frames[urgency].clone();
            frames.retain(|id| *id != 1 << 40);
            assert_eq!(frames, scene.sent[0][urgency]);
        }
    }
}

#[test]
fn a_dead_peer_fails_what_is_under_way_and_a_new_life_says_so_at_once() {
    for seed in seeds(500_000, 20) {
        let mut scene = Scene::new(seed, FOUL);
        for _ in 0..10 {
            scene.frame(0);
            scene.read(0);
            scene.write(0);
        }
        let time = Duration::from_micros(scene.below(500));
        scene.world.pass(time);
        let reborn = seed % 2 == 0;
        if reborn {
            let mut random = scene.world.random.clone();
            scene.world.nodes[1] = Node::new(&mut random, 1486, 64);
        } else {
            scene.world.nodes[1].alive = false;
        }
        let begin = scene.world.now;
        // Something has to be owed.
        scene.read(0);
        scene.world.until("a last word", |world| !world.nodes[0].seen.down.is_empty());
        let took = scene.world.now.since(begin);
        assert_eq!(scene.world.nodes[0].seen.down[&scene.links[0]], Fault::PeerReset);
        assert!(scene.world.nodes[0].seen.pending.is_empty());
        let limit = if reborn { Duration::from_secs(1) } else { GIVE_UP_AFTER * 2 };
        assert!(took < limit, "seed {seed}: {took:?}");
    }
}

#[test]
fn an_idle_link_to_a_dead_peer_ends_and_one_to_a_living_peer_does_not() {
    for alive in [true, false] {
        let mut scene = Scene::new(1, FOUL);
        scene.world.nodes[1].alive = alive;
        scene.world.pass(Duration::from_secs(60));
        let down = &scene.world.nodes[0].seen.down;
        assert_eq!(down.is_empty(), alive, "{down:?}");
        let sent = scene.world.nodes[0].machine.counters().sent;
        assert!(sent < 100, "{sent} packets in a minute of silence");
    }
}

#[test]
fn links_are_made_for_what_gets_through_also_where_who_is_called_begins_late() {
    let lengths = [(usize::MAX, 8986), (1486, 1452), (1300, 1232), (1000, 512), (400, 256)];
    for (longest, fits) in lengths {
        for late in [0, 100, 700, 1700, 2300] {
            let mut world = World::new(late, 2, 8986, 1000);
            world.air.weather.longest = longest;
            world.nodes[1].alive = false;
            let link = world.nodes[0].machine.connect(1, 1, world.now).unwrap();
            world.pass(Duration::from_millis(late));
            world.nodes[1].alive = true;
            world.until("a link", |world| world.nodes[0].seen.up.contains(&link));
            let before = world.nodes[0].machine.counters().sent;
            world.send(0, link, 1 << 41, 30_000, Urgency::Urgent);
            world.until("a frame", |world| !world.nodes[1].seen.frames[0].is_empty());
            let sent = (world.nodes[0].machine.counters().sent - before) as usize;
            // A side that comes late finds at least the usual length.
            let least = if late > 50 { fits.min(1452) } else { fits };
            let packets = |bytes: usize| 30_000usize.div_ceil(bytes - 50);
            assert!(
                (packets(fits)..packets(least) * 6 / 5 + 3).contains(&sent),
                "{longest}, {late} ms late: {sent} packets instead of {}",
                packets(least)
            );
        }
    }
}

#[test]
fn a_link_whose_packets_do_not_fit_any_more_ends_and_the_next_one_fits() {
    for seed in seeds(400_000, 20) {
        let mut scene = Scene::new(seed, Weather::FAIR);
        if scene.world.packet_bytes <= 1486 {
            continue;
        }
        scene.world.air.weather.longest = 1486;
        // It waits for long packets, and short ones come all the time.
        match seed % 2 {
            0 => scene.world.send(0, scene.links[0], 1 << 41, 30_000, Urgency::Urgent),
            // Some may be short.
            _ => (0..8).for_each(|_| scene.read(0)),
        }
        scene.world.until("the end of the link", |world| {
            world.nodes.iter().all(|node| !node.seen.down.is_empty())
        });
        let pending = scene.world.nodes.iter().any(|node| !node.seen.pending.is_empty());
        assert!(!pending, "seed {seed}: orders without an outcome");
        let before = scene.world.nodes[1].seen.frames[0].len();
        let (link, _) = scene.world.connect(0, 1);
        scene.world.send(0, link, 1 << 41, 30_000, Urgency::Urgent);
        scene
            .world
            .until("a long frame", |world| world.nodes[1].seen.frames[0].len() >= before + 2);
    }
}

#[test]
fn nobody_there_is_said_after_some_calls() {
    let mut world = World::new(1, 1, 1486, 64);
    let link = world.nodes[0].machine.connect(7, 1, world.now).unwrap();
    world.until("a last word", |world| !world.nodes[0].seen.down.is_empty());
    assert_eq!(world.nodes[0].seen.down[&link], Fault::Unreachable);
    assert!(world.nodes[0].seen.up.is_empty());
}

#[test]
fn two_who_call_each_other_have_two_links() {
    for seed in seeds(600_000, 10) {
        let mut world = World::new(seed, 2, 8986, 64);
        world.air.weather = FOUL;
        let now = world.now;
        let a = world.nodes[0].machine.connect(1, 1, now).unwrap();
        let b = world.nodes[1].machine.connect(0, 1, now).unwrap();
        world.until("both links", |world| {
            world.nodes[0].seen.up.contains(&a) && world.nodes[1].seen.up.contains(&b)
        });
        for id in 0..10 {
            world.send(0, a, 1000 + id, 3000, Urgency::Urgent);
            world.send(1, b, 2000 + id, 3000, Urgency::Urgent);
        }
        world.until("all frames", |world| {
            world.nodes.iter().all(|node| node.seen.frames[0].len() == 10)
        });
        assert!(world.nodes.iter().all(|node| node.seen.up.len() == 2));
    }
}
