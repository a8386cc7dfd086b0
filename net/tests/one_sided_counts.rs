//! The costs of gets and puts of one-sided communication, both ends together: frames, copies, allocations, instructions.
//!
//! Bounds lie a little above the figures of November 2026: the one-sided channel may not make anything dearer.

mod common;
mod pipe;
mod valgrind;

use std::alloc::System;

use pipe::{Kind, Pair};
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_base::verb::{RemoteKey, RemoteLayout};
use ropewalk_net::{Audience, Direction};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const ACCESSES: u64 = 2000;
const WARMING: u64 = 2000;
const REGION: usize = 1 << 20;
/// Which accesses a child under valgrind makes.
const CHILD: &str = "ROPEWALK_ONE_SIDED_COUNTS_CHILD";

/// A pair of which one side accesses a region of the other.
struct Accesses {
    pair: Pair,
    key: RemoteKey,
    memory: Memory,
    direction: Direction,
}

impl Accesses {
    /// Some accesses were made before.
    fn new(kind: Kind, direction: Direction, len: usize) -> Accesses {
        let pair = Pair::new(kind);
        let pool = Pool::with_budget(4 << 20);
        let memory = |len| Memory::pooled(pool.take(len).expect("there is room"));
        let exposed = pair.nodes[1].endpoint.expose(memory(REGION), true, Audience::Everybody);
        let key = exposed.expect("a region is exposed");
        let mut accesses = Accesses { pair, key, memory: memory(len), direction };
        accesses.run(WARMING);
        accesses
    }

    fn run(&mut self, count: u64) {
        for _ in 0..count {
            self.one();
        }
    }

    /// One access, and a test of both sides until it is complete.
    fn one(&mut self) {
        let Pair { nodes, peers, .. } = &self.pair;
        let (endpoint, context) = (&nodes[0].endpoint, &nodes[0].context);
        let memory = std::mem::replace(&mut self.memory, Memory::empty());
        let (at, direction) = (RemoteLayout::At(4096), self.direction);
        let posted = endpoint.post_access(context, direction, peers[0], self.key, at, memory, 1);
        self.memory = common::ended(&nodes[0], &nodes[1], posted.expect("it is posted"));
        self.pair.step();
    }

    /// Frames and copied bytes of both sides so far.
    fn so_far(&self) -> [u64; 2] {
        let mut sums = [0; 2];
        for node in &self.pair.nodes {
            let rails = node.endpoint.counters().1;
            sums[0] += rails.iter().map(|(_, rail)| rail.frames_sent).sum::<u64>();
            sums[1] += node.endpoint.bytes_copied();
        }
        sums
    }
}

/// The same accesses, in a function of their own for valgrind.
#[inline(never)]
fn counted(accesses: &mut Accesses, count: u64) {
    accesses.run(count);
}

/// A session, a direction and a length, and the instructions that such an access may cost: a twentieth above those of the day.
type Row = (Kind, Direction, usize, u64);

const ROWS: [Row; 8] = [
    (Kind::Plain, Direction::Put, 8, 8_700),
    (Kind::Plain, Direction::Get, 8, 8_700),
    (Kind::Plain, Direction::Put, 8000, 10_350),
    (Kind::Plain, Direction::Get, 8000, 10_300),
    (Kind::Two, Direction::Put, 8, 14_950),
    (Kind::Two, Direction::Get, 8, 15_450),
    (Kind::Two, Direction::Put, 8000, 17_600),
    (Kind::Two, Direction::Get, 8000, 18_100),
];

#[test]
fn a_get_and_a_put_are_two_frames_and_two_copies_and_allocate_nothing() {
    for (kind, direction, len, _) in ROWS {
        let mut accesses = Accesses::new(kind, direction, len);
        let before = accesses.so_far();
        let mut allocations = [0; 3].map(|_| {
            let before = ALLOCATOR.stats();
            accesses.run(ACCESSES);
            let stats = ALLOCATOR.stats() - before;
            stats.allocations + stats.reallocations
        });
        // The test's harness allocates beside, once in a while.
        allocations.sort_unstable();
        let after = accesses.so_far();
        let [frames, copied] = [0, 1].map(|it| after[it] - before[it]);
        let what = format!("{kind:?} {direction:?} of {len} bytes");
        println!("{what}: {frames} frames, {copied} bytes copied, {allocations:?} allocations");
        let all = 3 * ACCESSES;
        // The pipe copies what leaves and what comes.
        assert_eq!(copied, all * 2 * len as u64, "{what}");
        // Where frames are numbered, some acknowledgements go alone, and each 25 ms something looks for paths that stand.
        let (more, kept) = if kind == Kind::Plain { (0, 0) } else { (all / 5, 3) };
        assert!(frames <= all * 2 + more, "{what}: {frames} frames");
        assert!(allocations[1] <= kept, "{what}: {allocations:?} allocations");
    }
}

#[test]
#[ignore = "for --deep: runs under valgrind"]
fn a_get_and_a_put_cost_few_instructions() {
    if let Ok(row) = std::env::var(CHILD) {
        let (kind, direction, len, ..) = ROWS[row.parse::<usize>().expect("a row")];
        return counted(&mut Accesses::new(kind, direction, len), ACCESSES);
    }
    for (row, (kind, direction, len, .., most)) in ROWS.into_iter().enumerate() {
        let name = "a_get_and_a_put_cost_few_instructions";
        let function = "one_sided_counts::counted";
        let all = valgrind::instructions(function, name, CHILD, &row.to_string());
        let Some(all) = all else { return };
        let each = all / ACCESSES;
        println!("{kind:?} {direction:?} {len}: {each} instructions");
        assert!(each <= most, "{kind:?} {direction:?} {len}: {each} instructions, over {most}");
    }
}
