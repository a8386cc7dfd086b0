//! Reads over many links at once share what the reader's ring can take.

use std::time::Duration;

use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{Help, RemoteKey, RemoteLayout, Token, Urgency, Verb};

use crate::world::{GIVE_UP_AFTER, World, of};

/// Node 0, which reads from all others, each over a link of its own.
struct Readers {
    world: World,
    links: Vec<SlotId>,
    begun: Time,
    /// Of each read.
    tokens: Vec<u64>,
}

impl Readers {
    /// As many bytes as `lens` says from each; those that `silent` names are there no more when they are asked.
    fn new(seed: u64, pieces_max: u32, lens: &[u64], silent: &[usize]) -> Readers {
        let mut world = World::new(seed, 1 + lens.len() as u32, 1486, pieces_max);
        let links: Vec<SlotId> = (1..=lens.len())
            .map(|owner| {
                let (ours, theirs) = world.connect(0, owner);
                let region = world.nodes[owner].store.patterned(owner as u64, lens[owner - 1]);
                let (link, key) = (of(theirs), key(owner));
                let expose = Verb::Expose { link, key, region, writable: false };
                assert!(world.take_back(owner, &expose));
                ours
            })
            .collect();
        world.pass(Duration::from_millis(5));
        silent.iter().for_each(|at| world.nodes[1 + at].alive = false);
        let mut readers = Readers { begun: world.now, world, links, tokens: Vec::new() };
        (0..lens.len()).for_each(|at| readers.read(at, lens[at]));
        readers
    }

    /// Another read over that link.
    fn read(&mut self, at: usize, bytes: u64) {
        let local = self.world.nodes[0].store.add(vec![0; bytes as usize]);
        self.tokens.push(self.world.order(0, self.links[at], |link, token| Verb::Read {
            link,
            key: key(at + 1),
            remote: RemoteLayout::At(0),
            local,
            token,
            help: Help::None,
        }));
    }

    /// Waits for the end of a read; the time of its end since the beginning.
    fn end(&mut self, at: usize) -> Duration {
        let token = self.tokens[at];
        self.world
            .until("the end of a read", |world| world.nodes[0].seen.ended.contains_key(&token));
        assert_eq!(self.world.nodes[0].seen.ended[&token], Ok(()));
        self.world.now.since(self.begun)
    }
}

/// The time of each read's end since the beginning.
fn read_from_all(seed: u64, pieces_max: u32, lens: &[u64]) -> Vec<Duration> {
    let mut readers = Readers::new(seed, pieces_max, lens, &[]);
    // The shorter ones are behind the first, and are waited for first.
    let mut ends: Vec<Duration> = (1..lens.len()).map(|at| readers.end(at)).collect();
    ends.insert(0, readers.end(0));
    let again = readers.world.nodes[0].machine.counters().asked_again;
    assert_eq!(again, 0, "seed {seed}: nothing was lost");
    ends
}

fn key(owner: usize) -> RemoteKey {
    RemoteKey { slot: SlotId { index: owner as u32, generation: 9 }, secret: 77 }
}

#[test]
fn who_finds_no_room_in_the_ring_reads_as_soon_as_there_is() {
    for seed in 0..10 {
        for pieces_max in [8, 64, 95, 1000] {
            let mut lens = vec![65_536; 12];
            lens[0] = 1 << 20;
            let ends = read_from_all(seed, pieces_max, &lens);
            let last = ends.iter().max().unwrap();
            assert!(*last < Duration::from_millis(100), "{pieces_max} pieces: {ends:?}");
        }
    }
}

#[test]
fn a_long_read_leaves_their_turns_to_short_ones() {
    for seed in 0..10 {
        let ends = read_from_all(seed, 64, &[1 << 21, 30_000, 30_000, 30_000]);
        let (long, short) = ends.split_first().unwrap();
        assert!(short.iter().all(|end| *end < *long / 4), "{ends:?}");
    }
}

#[test]
fn who_is_silent_keeps_nobody_from_reading() {
    for seed in 0..10 {
        let mut lens = vec![65_536; 8];
        (lens[0], lens[1]) = (1 << 20, 1 << 20);
        let mut readers = Readers::new(seed, 64, &lens, &[0, 1]);
        let end = (2..lens.len()).map(|at| readers.end(at)).max().unwrap();
        assert!(end < Duration::from_millis(200), "seed {seed}: {end:?}");
    }
}

#[test]
fn who_answers_slowly_keeps_nobody_from_reading() {
    for seed in 0..10 {
        for pieces_max in [128, 1000] {
            let mut readers =
                Readers::new(seed, pieces_max, &[8 << 20, 8 << 20, 300_000, 300_000], &[]);
            // A piece in half a millisecond: slow, but never silent.
            for owner in [1, 2] {
                readers.world.slow.insert(owner, (Duration::from_micros(500), readers.begun));
            }
            let end = (2..4).map(|at| readers.end(at)).max().unwrap();
            assert!(end < Duration::from_millis(25), "seed {seed}, {pieces_max} pieces: {end:?}");
        }
    }
}

#[test]
fn a_long_read_of_a_link_does_not_keep_short_ones_of_it_waiting() {
    for seed in 0..10 {
        let mut readers = Readers::new(seed, 1000, &[8 << 20], &[]);
        readers.world.slow.insert(1, (Duration::from_micros(10), readers.begun));
        readers.read(0, 60_000);
        // Behind what is under way already, which are pieces of 5 ms.
        let (short, long) = (readers.end(1), readers.end(0));
        assert!(short < Duration::from_millis(12) && long > 4 * short, "{short:?} {long:?}");
    }
}

#[test]
fn reads_of_one_length_are_over_one_after_the_other() {
    let mut readers = Readers::new(1, 1000, &[1 << 20], &[]);
    (1..8).for_each(|_| readers.read(0, 1 << 20));
    let ends: Vec<Duration> = (0..8).map(|at| readers.end(at)).collect();
    assert!(ends[0] * 4 < ends[7], "{ends:?}");
    let gaps = ends.windows(2).map(|pair| pair[1].saturating_sub(pair[0]));
    assert!(gaps.max().unwrap() < ends[7] / 4, "{ends:?}");
}

#[test]
fn a_lost_ask_is_known_by_answers_to_later_ones_whatever_they_are_for() {
    for seed in 0..20 {
        let mut readers = Readers::new(seed, 1000, &[30_000], &[]);
        readers.world.slow.insert(1, (Duration::from_micros(5), readers.begun));
        readers.world.air.weather.loss = 10;
        let mut begun = vec![readers.begun];
        let mut longest = Duration::ZERO;
        for at in 0..300 {
            // Twelve are under way.
            while readers.tokens.len() < at + 12 {
                begun.push(readers.world.now);
                readers.read(0, 30_000);
            }
            readers.end(at);
            longest = longest.max(readers.world.now.since(begun[at]));
        }
        // One takes 100 us and all twelve 1.3 ms. So a time-out is at least three times that, and 16 times as much
        // beside others that are answered.
        assert!(longest < Duration::from_millis(12), "seed {seed}: {longest:?}");
    }
}

#[test]
fn a_long_read_does_not_delay_what_is_acknowledged() {
    for seed in 0..10 {
        let mut readers = Readers::new(seed, 1000, &[8 << 20], &[]);
        readers.world.room = 1;
        readers.world.slow.insert(1, (Duration::from_micros(20), readers.begun));
        for id in 1..50 {
            readers.world.pass(Duration::from_millis(1));
            readers.world.send(0, readers.links[0], id, 100, Urgency::Urgent);
        }
        readers.end(0);
        let counters = readers.world.nodes[0].machine.counters();
        assert_eq!((counters.resent, counters.asked_again), (0, 0), "seed {seed}: {counters:?}");
    }
}

#[test]
fn who_takes_a_read_back_leaves_the_turn_to_others() {
    for seed in 0..10 {
        let mut readers = Readers::new(seed, 8, &[200_000; 6], &[]);
        readers.world.pass(Duration::from_micros(20));
        for at in [0, 1, 2] {
            let (link, token) = (of(readers.links[at]), Token(readers.tokens[at]));
            // It has something else to say before it sees that it has nothing to ask for.
            readers.world.send(0, readers.links[at], 1, 30_000, Urgency::Urgent);
            assert!(readers.world.take_back(0, &Verb::CancelAccess { link, token }));
        }
        let end = (3..6).map(|at| readers.end(at)).max().unwrap();
        assert!(end < Duration::from_millis(100), "seed {seed}: {end:?}");
    }
}

#[test]
fn where_the_port_has_no_room_who_is_silent_is_given_up_all_the_same() {
    let mut readers = Readers::new(1, 1000, &[300_000], &[0]);
    readers.world.pass(Duration::from_millis(1));
    // Its card takes nothing any more.
    let never = Time(u64::MAX / 2);
    readers.world.slow.insert(0, (Duration::from_secs(1), never));
    let link = readers.links[0];
    readers.world.until("the end of a link", |world| world.nodes[0].seen.down.contains_key(&link));
    let waited = readers.world.now.since(readers.begun);
    assert!(waited < 2 * GIVE_UP_AFTER + Duration::from_secs(1), "{waited:?}");
}
