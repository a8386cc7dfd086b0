//! MXoE over networks that lose, double and reorder, by seeds.

mod agents;
#[path = "../packets/air.rs"]
mod air;
mod broken_off;
mod captures;
mod corruption;
mod crowd;
mod examples;
mod fields;
mod foreign;
mod hostile;
mod keys;
mod other_dialects;
#[path = "../open_mx/recorded.rs"]
mod recorded;
mod room;
mod silence;
mod spoiler;
mod world;

use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::random::Random;
use ropewalk_base::slots::SlotId;
use ropewalk_sim::{in_two_processes, seeds};
use ropewalk_wire::mxoe::{Dialect, Order};
use world::*;

/// Nothing but headers is checked on this wire: payloads arrive as they were sent here.
const ROUGH: Weather =
    Weather { loss: 30, doubling: 20, corruption: 0, lateness: 60, ..Weather::FAIR };
/// Lengths on both sides of every class edge, and longer ones.
const EDGES: [u64; 18] = [
    0, 1, 31, 32, 33, 127, 128, 129, 1452, 1453, 4095, 4096, 4097, 32_767, 32_768, 32_769, 100_000,
    300_000,
];

fn dialect(random: &mut Random) -> Dialect {
    let order = if random.below(2) == 0 { Order::Big } else { Order::Little };
    match random.below(3) {
        0 => Dialect::compatible(),
        1 => Dialect::native(1500, order).unwrap(),
        _ => Dialect::native(9000, order).unwrap(),
    }
}

/// Two endpoints of ours.
struct Scene {
    world: World<Ours, Ours>,
    links: [SlotId; 2],
    sent: [Vec<(u64, u64, u64, bool)>; 2],
}

impl Scene {
    fn new(seed: u64, weather: Weather) -> Scene {
        let mut world = World::new(seed, |random| {
            let dialect = dialect(random);
            (Ours::new(random, 3, dialect), Ours::new(random, 0, dialect))
        });
        world.air.weather = weather;
        let begin = world.now;
        let a = world.nodes.0.machine.connect(1, 0, KEY, begin).unwrap();
        world.until("a link at both", |world| {
            world.nodes.0.seen.up.contains_key(&a) && !world.nodes.1.seen.up.is_empty()
        });
        let b = *world.nodes.1.seen.up.keys().next().unwrap();
        Scene { world, links: [a, b], sent: Default::default() }
    }

    fn node(&mut self, node: usize) -> &mut Ours {
        if node == 0 { &mut self.world.nodes.0 } else { &mut self.world.nodes.1 }
    }

    fn send(&mut self, node: usize, len: u64) {
        let id = (self.sent[0].len() + self.sent[1].len() + 1) as u64;
        let told = self.world.random.below(3) == 0;
        let link = self.links[node];
        let number = self.node(node).send(link, id, len, told);
        self.sent[node].push((id, len, number, told));
    }

    /// Everything came, once, in order, as it was sent; and its sender knows where that was asked.
    fn check(&mut self) {
        let sent = [self.sent[0].len(), self.sent[1].len()];
        self.world.until("all messages", |world| {
            while world.nodes.0.read() || world.nodes.1.read() {}
            world.nodes.0.seen.received.len() >= sent[1]
                && world.nodes.1.seen.received.len() >= sent[0]
        });
        let expected = [0, 1].map(|node: usize| {
            let ends = |(_, len, _, told): &&(u64, u64, u64, bool)| *len > EAGER_BYTES_MAX || *told;
            self.sent[node].iter().filter(ends).copied().collect::<Vec<_>>()
        });
        let counts = [expected[0].len(), expected[1].len()];
        self.world.until("all ends", |world| {
            world.nodes.0.seen.finished.len() >= counts[0]
                && world.nodes.1.seen.finished.len() >= counts[1]
        });
        self.world.pass(Duration::from_millis(700));
        for (node, expected) in expected.into_iter().enumerate() {
            let sent = self.sent[node].clone();
            let other = self.node(1 - node);
            let told: Vec<u64> = other.seen.told.iter().map(|(_, id)| *id).collect();
            assert_eq!(told, sent.iter().map(|it| it.0).collect::<Vec<_>>(), "told, of {node}");
            let mut received: Vec<(u64, u64)> =
                other.seen.received.iter().map(|it| (it.id, it.bytes)).collect();
            received.sort_unstable();
            assert_eq!(received, sent.iter().map(|it| (it.0, it.1)).collect::<Vec<_>>());
            let seen = &self.node(node).seen;
            assert!(seen.pending.is_empty() && seen.down.is_empty(), "{:?}", seen.down);
            let mut ends: Vec<(u64, u64)> =
                seen.finished.iter().map(|(_, end)| (end.number, end.bytes)).collect();
            ends.sort_unstable();
            let announced = |len: u64| len > EAGER_BYTES_MAX;
            let mut wanted: Vec<(u64, u64)> = expected
                .into_iter()
                .map(|(id, len, number, _)| {
                    (number, if announced(len) { room_for(id, len) } else { len })
                })
                .collect();
            wanted.sort_unstable();
            assert_eq!(ends, wanted, "ends, of {node}");
        }
    }
}

/// Messages of many lengths; the trace of all packets.
fn lengths(seed: u64) -> u64 {
    let weather = if seed.is_multiple_of(3) { Weather::FAIR } else { ROUGH };
    let mut scene = Scene::new(seed, weather);
    scene.world.nodes.0.seen.later = [0, 0, 200][(seed % 3) as usize];
    scene.world.nodes.1.seen.later = [0, 100, 0][(seed % 3) as usize];
    let count = 20 + scene.world.random.below(300);
    for _ in 0..count {
        let node = scene.world.random.below(2) as usize;
        let edge = scene.world.random.below(EDGES.len() as u64) as usize;
        let edge = if edge > 14 && scene.world.random.below(3) > 0 { edge - 10 } else { edge };
        scene.send(node, EDGES[edge]);
        for _ in 0..scene.world.random.below(4) {
            scene.world.step();
        }
        if scene.world.random.below(4) == 0 {
            scene.world.nodes.0.read();
            scene.world.nodes.1.read();
        }
    }
    scene.check();
    scene.world.trace
}

#[test]
fn messages_of_every_length_arrive_once_and_in_order() {
    for seed in seeds(0, 60) {
        lengths(seed);
    }
}

#[test]
fn one_seed_has_one_trace_in_two_processes() {
    in_two_processes("one_seed_has_one_trace_in_two_processes", || {
        (0..10).fold(0, |all: u64, seed| all.rotate_left(7) ^ lengths(seed))
    });
}

#[test]
fn packets_that_others_overtake_are_not_taken_for_lost() {
    let (mut sent, mut again) = (0, 0);
    for seed in seeds(20_000, 20) {
        let mut scene = Scene::new(seed, Weather { held: 50, spacing: 3, ..Weather::FAIR });
        for _ in 0..60 {
            let node = scene.world.random.below(2) as usize;
            scene.send(node, 40_000 + node as u64 * 100_000);
            let len = [100, 3000, 32_000][scene.world.random.below(3) as usize];
            scene.send(1 - node, len);
            scene.world.pass(Duration::from_micros(300));
            while scene.world.nodes.0.read() || scene.world.nodes.1.read() {}
        }
        scene.check();
        for counters in [&scene.world.nodes.0, &scene.world.nodes.1].map(|it| it.machine.counters())
        {
            sent += counters.sent;
            again += counters.resent + counters.asked_again;
        }
    }
    assert!(again * 100 < sent * 2, "{again} of {sent} went again");
    println!("{again} of {sent} went again");
}

#[test]
fn both_sides_connect_at_once_and_have_one_link() {
    for seed in seeds(0, 60) {
        let mut world = World::new(seed, |random| {
            let dialect = Dialect::native(1500, Order::Big).unwrap();
            (Ours::new(random, 3, dialect), Ours::new(random, 0, dialect))
        });
        world.air.weather = ROUGH;
        let now = world.now;
        let a = world.nodes.0.machine.connect(1, 0, KEY, now).unwrap();
        let b = world.nodes.1.machine.connect(0, 3, KEY, now).unwrap();
        world.until("both up", |world| {
            world.nodes.0.seen.up.contains_key(&a) && world.nodes.1.seen.up.contains_key(&b)
        });
        world.nodes.0.send(a, 1, 5000, true);
        world.nodes.1.send(b, 2, 20, true);
        world.until("both messages", |world| {
            !world.nodes.0.seen.finished.is_empty() && !world.nodes.1.seen.finished.is_empty()
        });
        world.pass(Duration::from_secs(1));
        for seen in [&world.nodes.0.seen, &world.nodes.1.seen] {
            assert_eq!((seen.up.len(), seen.received.len()), (1, 1), "seed {seed}");
            assert!(seen.down.is_empty(), "seed {seed}");
        }
    }
}

#[test]
fn a_wrong_key_and_an_endpoint_that_is_not_there_are_refused() {
    let mut world = World::new(1, |random| {
        let dialect = Dialect::native(1500, Order::Big).unwrap();
        (Ours::new(random, 3, dialect), Ours::new(random, 0, dialect))
    });
    let now = world.now;
    let link = world.nodes.0.machine.connect(1, 0, KEY + 1, now).unwrap();
    world.until("a refusal", |world| world.nodes.0.seen.down.contains_key(&link));
    assert_eq!(world.nodes.0.seen.down[&link], Fault::NotPermitted);
    assert!(world.nodes.1.seen.up.is_empty());
    let now = world.now;
    let link = world.nodes.0.machine.connect(1, 9, KEY, now).unwrap();
    world.until("silence", |world| world.nodes.0.seen.down.contains_key(&link));
    assert_eq!(world.nodes.0.seen.down[&link], Fault::Unreachable);
}

#[test]
fn a_restart_ends_the_link_and_a_new_one_begins_with_nothing_of_the_old() {
    for seed in seeds(0, 40) {
        let mut scene = Scene::new(seed, ROUGH);
        for _ in 0..30 {
            let len = [10, 3000, 50_000][scene.world.random.below(3) as usize];
            scene.send(0, len);
            scene.send(1, len);
        }
        for _ in 0..scene.world.random.below(200) {
            scene.world.step();
            scene.world.nodes.0.read();
            scene.world.nodes.1.read();
        }
        let reborn = {
            let World { random, nodes, .. } = &mut scene.world;
            nodes.1.reborn(random)
        };
        scene.world.nodes.1 = reborn;
        let now = scene.world.now;
        let b = scene.world.nodes.1.machine.connect(0, 3, KEY, now).unwrap();
        let old = scene.links[0];
        // The new one hears of it by its answer, or by a connect of before its restart.
        scene.world.until("the end of the old link", |world| {
            world.nodes.0.seen.down.contains_key(&old)
                && world.nodes.0.seen.up.len() > 1
                && world.nodes.1.seen.up.contains_key(&b)
        });
        let a = *scene.world.nodes.0.seen.up.keys().find(|link| **link != old).unwrap();
        assert!(!scene.world.nodes.0.seen.down.contains_key(&a), "seed {seed}");
        let before = scene.world.nodes.0.seen.received.len();
        for id in 0..20 {
            scene.world.nodes.0.send(a, 5000 + id, 100 * id, true);
            scene.world.nodes.1.send(b, 6000 + id, 100 * id, true);
        }
        scene.world.until("messages over the new link", |world| {
            world.nodes.0.seen.received.len() >= before + 20
                && world.nodes.1.seen.received.len() >= 20
        });
        let ids: Vec<u64> = scene.world.nodes.1.seen.told.iter().map(|(_, id)| *id).collect();
        assert_eq!(ids, (5000..5020).collect::<Vec<_>>(), "seed {seed}");
        assert!(!scene.world.nodes.0.seen.down.contains_key(&a), "seed {seed}");
    }
}

#[test]
fn a_link_that_was_closed_is_made_again_and_numbers_go_on() {
    for seed in seeds(0, 40) {
        let mut scene = Scene::new(seed, ROUGH);
        for round in 0..4 {
            for _ in 0..10 {
                let len = [0, 100, 3000][scene.world.random.below(3) as usize];
                scene.send(0, len);
                scene.send(1, len);
            }
            scene.world.until("all messages", |world| {
                let wanted = (round + 1) * 10;
                world.nodes.0.seen.received.len() >= wanted
                    && world.nodes.1.seen.received.len() >= wanted
            });
            let old = scene.links[0];
            // Acknowledged messages are not sent again by another link.
            scene.world.pass(Duration::from_secs(1));
            scene.node(0).close(old);
            if round % 2 == 0 {
                let ends =
                    |world: &mut World<Ours, Ours>| world.nodes.0.seen.down.contains_key(&old);
                scene.world.until("a closed link", ends);
            }
            let now = scene.world.now;
            let a = scene.world.nodes.0.machine.connect(1, 0, KEY, now).unwrap();
            scene.world.until("a new link", |world| world.nodes.0.seen.up.contains_key(&a));
            scene.links[0] = a;
        }
        assert!(scene.world.nodes.1.seen.down.is_empty(), "seed {seed}: the other kept its link");
    }
}
