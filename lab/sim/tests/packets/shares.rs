//! Reads over many links at once share what the reader's ring can take.

use std::time::Duration;

use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{Help, RemoteKey, RemoteLayout, Verb};

use crate::world::{World, of};

/// Node 0 reads from all others, each over a link of its own, as many bytes as `lens` says; how long after the
/// beginning each read had ended.
fn read_from_all(seed: u64, pieces_max: u32, lens: &[u64]) -> Vec<Duration> {
    let mut world = World::new(seed, 1 + lens.len() as u32, 1486, pieces_max);
    let links: Vec<SlotId> = (1..=lens.len())
        .map(|owner| {
            let (ours, theirs) = world.connect(0, owner);
            let region = world.nodes[owner].store.patterned(owner as u64, lens[owner - 1]);
            let expose =
                Verb::Expose { link: of(theirs), key: key(owner), region, writable: false };
            assert!(world.take_back(owner, &expose));
            ours
        })
        .collect();
    world.pass(Duration::from_millis(5));
    let begun = world.now;
    let tokens: Vec<u64> = (0..lens.len())
        .map(|at| {
            let local = world.nodes[0].store.add(vec![0; lens[at] as usize]);
            world.order(0, links[at], |link, token| Verb::Read {
                link,
                key: key(at + 1),
                remote: RemoteLayout::At(0),
                local,
                token,
                help: Help::None,
            })
        })
        .collect();
    let after = |token: &u64, world: &mut World| {
        world.until("the end of a read", |world| world.nodes[0].seen.ended.contains_key(token));
        assert_eq!(world.nodes[0].seen.ended[token], Ok(()), "seed {seed}");
        world.now.since(begun)
    };
    // The shorter ones are behind the first, and are waited for first.
    let mut ends: Vec<Duration> =
        tokens[1..].iter().map(|token| after(token, &mut world)).collect();
    ends.insert(0, after(&tokens[0], &mut world));
    let again: u64 = world.nodes[0].machine.counters().asked_again;
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
