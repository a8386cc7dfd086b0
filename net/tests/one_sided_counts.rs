//! The costs of gets and puts of one-sided communication, both ends together: frames, copies, allocations, instructions.
//!
//! Bounds lie a little above the figures of November 2026.

mod common;
mod pipe;
mod valgrind;

use std::alloc::System;
use std::sync::{Arc, Mutex, PoisonError};

use pipe::{Kind, Pair};
use ropewalk_base::descriptor::Descriptor;
use ropewalk_base::memory::{Change, Element, Memory, Operator, Update};
use ropewalk_base::pool::Pool;
use ropewalk_base::verb::{RemoteKey, RemoteLayout, Strided};
use ropewalk_net::{Atomic, Audience, Direction, Raise};
use stats_alloc::{INSTRUMENTED_SYSTEM, StatsAlloc};

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const ACCESSES: u64 = 2000;
const WARMING: u64 = 2000;
const REGION: usize = 1 << 20;
/// Held by each test that makes accesses: allocations of all threads are counted together.
static ALONE: Mutex<()> = Mutex::new(());
/// Which accesses a child under valgrind makes.
const CHILD: &str = "ROPEWALK_ONE_SIDED_COUNTS_CHILD";

/// A pair of which one side accesses a region of the other.
struct Accesses {
    pair: Pair,
    key: RemoteKey,
    memory: Memory,
    access: What,
    strided: Strided,
}

/// An access of a region.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    Get,
    Put,
    Accumulate,
    GetAccumulate,
    FetchAdd,
    Swap,
    /// An exclusive lock, a put, and the unlock.
    LockedPut,
    /// A put, and a word that tells of it.
    Notify,
    /// Of pieces of 64 bytes, with gaps as long.
    StridedPut,
    StridedGet,
}

/// Bytes of a piece of a strided access.
const PIECE: u64 = 64;

/// So many bytes in pieces, with gaps as long as these.
fn strided(len: u64) -> Strided {
    let piece = Descriptor::contiguous(PIECE).expect("a piece");
    let shape = piece.repeated(len / PIECE, 2 * PIECE as i64).expect("a vector");
    Strided { shape: Arc::new(shape), address: 4096, count: 1, from: 0 }
}

impl What {
    /// Bytes that are copied for one with a memory of this length: by the pipe, and by who serves it.
    fn copied(self, len: u64) -> u64 {
        match self {
            What::Get | What::Put | What::LockedPut => 2 * len,
            // The elements are staged before they are combined.
            What::Accumulate => 3 * len,
            // And so are the bytes of a put with gaps, and those that a get with gaps fetches.
            What::StridedPut | What::StridedGet => 3 * len,
            // And come back as they were.
            What::GetAccumulate => 5 * (len / 2),
            // One element is combined.
            What::FetchAdd | What::Swap => 8,
            What::Notify => 2 * len + 8,
        }
    }

    /// Frames for so many of them, credit and acknowledgements apart.
    fn frames(self, count: u64) -> u64 {
        match self {
            // Nobody waits for an answer, and one tells of many.
            What::Notify => count + count / 16,
            _ => 2 * count,
        }
    }
}

impl Accesses {
    /// Some accesses were made before.
    fn new(kind: Kind, access: What, len: usize) -> Accesses {
        Accesses::warmed(kind, access, len, WARMING)
    }

    /// As many as these were made before.
    fn warmed(kind: Kind, access: What, len: usize, warming: u64) -> Accesses {
        let pair = Pair::new(kind);
        let pool = Pool::with_budget(4 << 20);
        let memory = |len| Memory::pooled(pool.take(len).expect("there is room"));
        let exposed = pair.nodes[1].endpoint.expose(memory(REGION), true, Audience::Everybody);
        let key = exposed.expect("a region is exposed");
        let strided = strided(len as u64);
        let mut accesses = Accesses { pair, key, memory: memory(len), access, strided };
        accesses.run(warming);
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
        let (endpoint, context, peer) = (&nodes[0].endpoint, &nodes[0].context, peers[0]);
        let memory = std::mem::replace(&mut self.memory, Memory::empty());
        let sum = Update::new(Element::U64, Operator::Sum).expect("integers have sums");
        let access = |direction, memory| {
            let at = match self.access {
                What::StridedPut | What::StridedGet => RemoteLayout::Strided(self.strided.clone()),
                _ => RemoteLayout::At(4096),
            };
            endpoint.post_access(context, direction, peer, self.key, at, memory, 1)
        };
        let update = |fetch, memory| {
            endpoint.post_update(context, peer, self.key, 4096, (sum, fetch), memory, 1)
        };
        let atomic = |change| {
            let atomic = Atomic { change, fetch: true, token: false };
            let posted = endpoint.post_atomic(context, peer, self.key, 4096, atomic, 1);
            posted.map_err(|fault| (Memory::empty(), fault))
        };
        let (element, [expected, desired]) = (Element::U64, [[0; 8]; 2]);
        let posted = match self.access {
            What::Get | What::StridedGet => access(Direction::Get, memory),
            What::Put | What::StridedPut => access(Direction::Put, memory),
            What::Accumulate => update(false, memory),
            What::GetAccumulate => update(true, memory),
            What::FetchAdd => atomic(Change::One { update: sum, operand: [1; 8] }),
            What::Swap => atomic(Change::Swap { element, expected, desired }),
            What::LockedPut => {
                endpoint.post_locked_put(context, peer, self.key, 4096, true, memory, 1)
            }
            What::Notify => {
                let raise = Raise { word: 0, value: 1, to: false };
                endpoint.post_notify(context, peer, self.key, 4096, (raise, false), memory, 1)
            }
        };
        self.memory = common::ended(&nodes[0], &nodes[1], posted.expect("it is posted"));
        self.pair.step();
    }

    /// Frames that each side sent so far.
    fn frames(&self) -> [u64; 2] {
        [0, 1].map(|side| {
            let rails = self.pair.nodes[side].endpoint.counters().1;
            rails.iter().map(|(_, rail)| rail.frames_sent).sum()
        })
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

/// A session, an access and the length of its memory, and the instructions that it may cost: a twentieth above those of the
/// day.
type Row = (Kind, What, usize, u64);

const ROWS: [Row; 21] = [
    (Kind::Plain, What::Put, 8, 8_970),
    (Kind::Plain, What::Get, 8, 9_270),
    (Kind::Plain, What::Put, 8000, 10_600),
    (Kind::Plain, What::Get, 8000, 10_900),
    (Kind::Plain, What::FetchAdd, 0, 9_720),
    (Kind::Plain, What::Swap, 0, 9_560),
    (Kind::Plain, What::LockedPut, 8, 10_080),
    (Kind::Plain, What::Notify, 8, 7_050),
    (Kind::Plain, What::Accumulate, 8000, 20_240),
    (Kind::Plain, What::GetAccumulate, 16_000, 25_670),
    (Kind::Two, What::Put, 8, 14_930),
    (Kind::Two, What::Get, 8, 15_450),
    (Kind::Two, What::Put, 8000, 17_930),
    (Kind::Two, What::Get, 8000, 18_100),
    (Kind::Two, What::FetchAdd, 0, 15_180),
    (Kind::Two, What::Notify, 8, 12_670),
    (Kind::Two, What::Accumulate, 8000, 27_220),
    (Kind::Plain, What::StridedPut, 65_536, 509_000),
    (Kind::Plain, What::StridedGet, 65_536, 715_000),
    (Kind::Two, What::StridedPut, 65_536, 529_000),
    (Kind::Two, What::StridedGet, 65_536, 731_000),
];

#[test]
fn an_access_is_two_frames_or_one_and_two_copies_and_allocates_nothing() {
    const RUNS: u64 = 5;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (kind, access, len, _) in ROWS {
        let mut accesses = Accesses::new(kind, access, len);
        let before = accesses.so_far();
        let mut allocations = [0; RUNS as usize].map(|_| {
            let before = ALLOCATOR.stats();
            accesses.run(ACCESSES);
            let stats = ALLOCATOR.stats() - before;
            stats.allocations + stats.reallocations
        });
        // The test's harness allocates beside, where it starts the threads of other tests: in a few runs.
        allocations.sort_unstable();
        let after = accesses.so_far();
        let [frames, copied] = [0, 1].map(|it| after[it] - before[it]);
        let what = format!("{kind:?} {access:?} of {len} bytes");
        println!("{what}: {frames} frames, {copied} bytes copied, {allocations:?} allocations");
        let all = RUNS * ACCESSES;
        // The pipe copies what leaves and what comes.
        let one = access.copied(len as u64);
        // Nobody waits for an answer: it may be counted later, and where frames are numbered its bytes are kept.
        let (one, late) = match (access, kind) {
            (What::Notify, Kind::Two) => (one + len as u64, 64 * one),
            (What::Notify, _) => (one, 64 * one),
            _ => (one, 0),
        };
        assert!(copied.abs_diff(all * one) <= late, "{what}: {copied} bytes copied");
        // Where frames are numbered, some acknowledgements go alone, and each 25 ms something looks for paths that stand.
        let (more, kept) = if kind == Kind::Plain { (0, 0) } else { (all / 5, 3) };
        // Credit for elements comes back with half of its window.
        let credit = match access {
            What::Accumulate | What::GetAccumulate => all / 20,
            What::StridedPut | What::StridedGet => all / 7,
            _ => 0,
        };
        let more = more + credit;
        assert!(frames <= access.frames(all) + more, "{what}: {frames} frames");
        assert!(allocations[RUNS as usize / 2] <= kept, "{what}: {allocations:?} allocations");
    }
}

#[test]
fn a_strided_access_is_one_without_gaps_and_its_layout_once() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    const LEN: usize = 65_536;
    let ways = [(What::Put, What::StridedPut), (What::Get, What::StridedGet)];
    for (flat, strided) in ways {
        let frames = |access| {
            let mut accesses = Accesses::warmed(Kind::Plain, flat, LEN, 1);
            accesses.access = access;
            let before = accesses.frames();
            accesses.one();
            let first = accesses.frames();
            accesses.one();
            let second = accesses.frames();
            [0, 1].map(|side| [first[side] - before[side], second[side] - first[side]])
        };
        let (without, with) = (frames(flat), frames(strided));
        println!("{flat:?}: {without:?}, with gaps {with:?} frames of the origin, of the target");
        let [origin, target] = without;
        // The layout, and the word that it is known and that there is room.
        assert_eq!(with[0], [origin[0] + 1, origin[1]], "{strided:?}: frames of the origin");
        assert_eq!(with[1][0], target[0] + 1, "{strided:?}: frames of the target");
        assert!(with[1][1] <= target[1] + 1, "{strided:?}: {with:?}: credit comes back at times");
    }
}

#[test]
fn puts_that_come_together_have_one_mark() {
    const BURST: u64 = 16;
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let accesses = Accesses::new(Kind::Plain, What::Put, 8);
    let Pair { nodes, peers, .. } = &accesses.pair;
    let pool = Pool::with_budget(1 << 20);
    for round in 0..100 {
        let [before, _] = accesses.so_far();
        for user in 0..BURST {
            let memory = Memory::pooled(pool.take(8).expect("there is room"));
            let (endpoint, context) = (&nodes[0].endpoint, &nodes[0].context);
            let at = RemoteLayout::At(8 * user);
            let key = accesses.key;
            let posted =
                endpoint.post_access(context, Direction::Put, peers[0], key, at, memory, user);
            assert!(posted.is_ok(), "a put was refused");
        }
        let mut ended = 0;
        while ended < BURST {
            for node in nodes {
                node.endpoint.progress();
            }
            while let Some(completed) = nodes[0].endpoint.test(&nodes[0].context) {
                assert_eq!(completed.outcome, Ok(()));
                ended += 1;
            }
            accesses.pair.step();
        }
        let [after, _] = accesses.so_far();
        assert_eq!(after - before, BURST + 1, "frames of burst {round}");
    }
}

#[test]
#[ignore = "for --deep: runs under valgrind"]
fn accesses_cost_few_instructions() {
    if let Ok(row) = std::env::var(CHILD) {
        let (kind, access, len, ..) = ROWS[row.parse::<usize>().expect("a row")];
        return counted(&mut Accesses::new(kind, access, len), ACCESSES);
    }
    let mut over = Vec::new();
    for (row, (kind, access, len, .., most)) in ROWS.into_iter().enumerate() {
        let name = "accesses_cost_few_instructions";
        let function = "one_sided_counts::counted";
        let all = valgrind::instructions(function, name, CHILD, &row.to_string());
        let Some(all) = all else { return };
        let each = all / ACCESSES;
        println!("{kind:?} {access:?} {len}: {each} instructions");
        if each > most {
            over.push(format!("{kind:?} {access:?} {len}: {each} instructions, over {most}"));
        }
    }
    assert!(over.is_empty(), "{over:#?}");
}
