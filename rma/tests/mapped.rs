//! Windows whose memory ranks of one host map: they load and store it by themselves, and nobody loses what others do.

#[path = "windows/common.rs"]
mod common;

use std::sync::{Barrier, Mutex};

use common::{Rank, Setup, bytes, pattern, ranks};
use ropewalk_base::random::Random;
use ropewalk_rma::{
    Asserts, Cells, Datatype, Destination, Element, Error, Implementation, LockKind, Operator,
    Source, Target, Window, WindowOptions,
};

const NONE: Asserts = Asserts::NONE;
const SHM: Setup = Setup {
    scheme: "shm",
    implementation: Implementation::Direct,
    eager_bytes: 16 << 10,
    map_memory: true,
    seed: 0,
};

fn put(window: &Window, to: u32, at: u64, value: u64) {
    let (number, bytes) = (Datatype::of(Element::U64), value.to_ne_bytes());
    window.put(Source::slice(&bytes, 1, &number), Target::new(to, at, 1, &number)).unwrap();
}

#[test]
fn a_put_is_there_and_a_get_is_here_when_the_call_returns() {
    let targets = Mutex::new(None);
    let computes = Barrier::new(2);
    ranks(SHM, 2, |own| {
        let window = own.window(1 << 20);
        if own.rank == 1 {
            *targets.lock().unwrap() = Some(window.cells().clone());
            computes.wait();
            // It makes no call, and nobody serves its memory.
            computes.wait();
        } else {
            computes.wait();
            let there = targets.lock().unwrap().clone().unwrap();
            assert_ne!(there.address(), window.cells().address());
            window.lock_all(NONE).unwrap();
            // The first one comes with the lock.
            put(&window, 1, 0, 1);
            window.flush(1).unwrap();
            for turn in 2..1000 {
                put(&window, 1, 8, turn);
                assert_eq!(there.load::<u64>(8), Some(turn));
                there.store::<u64>(16, turn).unwrap();
                let (number, back) = (Datatype::of(Element::U64), Cells::zeroed(8));
                let result = Destination::new(&back, 0, 1, &number);
                window.get(result, Target::new(1, 16, 1, &number)).unwrap();
                assert_eq!(back.load::<u64>(0), Some(turn));
                let one = 1u64.to_ne_bytes();
                let (source, target) =
                    (Source::slice(&one, 1, &number), Target::new(1, 24, 1, &number));
                window.fetch_and_op(Some(source), result, target, Operator::Sum).unwrap();
                assert_eq!((back.load(0), there.load(24)), (Some(turn - 2), Some(turn - 1)));
                window.flush(1).unwrap();
            }
            let (long, byte) = (pattern(5, 700_001), Datatype::of(Element::U8));
            let target = Target::new(1, 1001, long.len() as u64, &byte);
            window.put(Source::slice(&long, long.len() as u64, &byte), target).unwrap();
            let mut found = vec![0; long.len()];
            there.read(1001, &mut found).unwrap();
            assert!(found == long);
            window.unlock_all().unwrap();
            computes.wait();
        }
        own.team.barrier().unwrap();
    });
}

#[test]
fn nothing_is_mapped_by_a_rank_that_does_not_want_it() {
    let cells = Mutex::new(vec![None; 3]);
    ranks(SHM, 3, |own| {
        let options = WindowOptions { map_memory: own.rank != 1, ..own.setup.options("some") };
        let mut window = own.team.allocate(64, &options).unwrap();
        cells.lock().unwrap()[own.rank as usize] = Some(window.cells().clone());
        own.team.barrier().unwrap();
        window.lock_all(NONE).unwrap();
        for to in own.others() {
            put(&window, to, 0, 1);
            window.flush(to).unwrap();
        }
        for to in own.others() {
            put(&window, to, 8 + 8 * u64::from(own.rank), 7);
            let there = cells.lock().unwrap()[to as usize].clone().unwrap();
            let is_there = there.load::<u64>(8 + 8 * own.rank as usize) == Some(7);
            // Two others may be quick, but do not do it within the call.
            assert!(is_there || own.rank == 1 || to == 1);
        }
        window.unlock_all().unwrap();
        own.team.barrier().unwrap();
        for from in own.others() {
            assert_eq!(window.cells().load::<u64>(8 + 8 * from as usize), Some(7));
        }
        window.free().unwrap();
    });
}

/// Elements of all lengths, near and at odd addresses, that ranks add to: type, address, and what is added.
const PLACES: [(Element, u64); 9] = [
    (Element::U8, 0),
    (Element::I16, 2),
    (Element::I32, 4),
    (Element::U64, 8),
    (Element::F64, 16),
    (Element::F32, 24),
    (Element::Complex64, 32),
    (Element::U64, 49),
    (Element::Complex32, 60),
];

fn one(element: Element) -> Vec<u8> {
    match element {
        Element::F32 => 1f32.to_ne_bytes().into(),
        Element::F64 => 1f64.to_ne_bytes().into(),
        Element::Complex64 => [1f64.to_ne_bytes(); 2].concat(),
        Element::Complex32 => [1f32.to_ne_bytes(); 2].concat(),
        other => 1u64.to_ne_bytes()[..other.shape().extent].into(),
    }
}

fn value(element: Element, cells: &Cells, at: usize) -> u64 {
    match element {
        Element::U8 => u64::from(cells.load::<u8>(at).unwrap()),
        Element::I16 => cells.load::<i16>(at).unwrap() as u64,
        Element::I32 => cells.load::<i32>(at).unwrap() as u64,
        Element::F32 | Element::Complex32 => cells.load::<f32>(at).unwrap() as u64,
        Element::F64 | Element::Complex64 => cells.load::<f64>(at).unwrap() as u64,
        _ => cells.load::<u64>(at).unwrap(),
    }
}

/// Three ranks add to all places of all ranks, in one epoch, by operations of all kinds; each knows how often it did.
fn add(own: &Rank, window: &Window, rounds: u64) -> Vec<u64> {
    let mut random = Random::from_seed(77 + u64::from(own.rank));
    let mut done = vec![0; 3 * PLACES.len()];
    let back = Cells::zeroed(16);
    window.lock_all(NONE).unwrap();
    for _ in 0..rounds {
        let (to, which) = (random.below(3) as u32, random.below(PLACES.len() as u64) as usize);
        let (element, at) = PLACES[which];
        let (datatype, own_one) = (Datatype::of(element), one(element));
        let (source, target) =
            (Source::slice(&own_one, 1, &datatype), Target::new(to, at, 1, &datatype));
        let result = Destination::new(&back, 0, 1, &datatype);
        match random.below(3) {
            0 => window.accumulate(source, target, Operator::Sum).unwrap(),
            1 => window.fetch_and_op(Some(source), result, target, Operator::Sum).unwrap(),
            _ => {
                window.get_accumulate(Some(source), result, target, Operator::Sum).unwrap();
                window.flush(to).unwrap();
            }
        }
        done[to as usize * PLACES.len() + which] += 1;
    }
    // What one rank replaces in turn has its last value, whoever does it.
    for turn in 1..=50u64 {
        let number = Datatype::of(Element::U64);
        for (to, at) in [(0, 128), (1, 128), (2, 129)] {
            let (bytes, at) = (turn.to_ne_bytes(), at + 16 * u64::from(own.rank));
            let target = Target::new(to, at, 1, &number);
            let source = Source::slice(&bytes, 1, &number);
            window.accumulate(source, target, Operator::Replace).unwrap();
        }
    }
    window.unlock_all().unwrap();
    done
}

fn nothing_is_lost(maps: [bool; 3]) {
    ranks(SHM, 3, |own| {
        let mut options = own.setup.options("sums");
        options.map_memory = maps[own.rank as usize];
        let mut window = own.team.allocate(256, &options).unwrap();
        let done = add(own, &window, 600);
        let told: Vec<u8> = done.iter().flat_map(|it| it.to_le_bytes()).collect();
        let all = own.team.exchange(&told).unwrap();
        for (which, (element, at)) in PLACES.iter().enumerate() {
            let word = (own.rank as usize * PLACES.len() + which) * 8;
            let count = |of: &Vec<u8>| u64::from_le_bytes(of[word..word + 8].try_into().unwrap());
            let count: u64 = all.iter().map(count).sum();
            let want = if *element == Element::U8 { count & 0xff } else { count };
            assert_eq!(value(*element, window.cells(), *at as usize), want, "{element:?} at {at}");
        }
        for rank in 0..3 {
            let at = 128 + usize::from(own.rank == 2) + 16 * rank;
            assert_eq!(window.cells().load::<u64>(at), Some(50), "of rank {rank}");
        }
        window.free().unwrap();
    });
}

#[test]
fn ranks_that_map_each_other_lose_no_accumulate_of_any_length() {
    nothing_is_lost([true; 3]);
}

#[test]
fn ranks_of_which_one_does_not_map_lose_none_either() {
    nothing_is_lost([true, false, true]);
    nothing_is_lost([false, true, false]);
}

/// Elements of each rank's memory, and additions of each rank to them.
const COUNT: u64 = 3000;
const ADDITIONS: u64 = 300;

/// Adds ones to some elements of a rank: a block of any length, with and without a result, or with gaps, one alone, or by another
/// window over the same memory, whose operations go by frames. Tells the rank and the elements.
fn add_ones(random: &mut Random, [window, frames]: [&Window; 2], back: &Cells) -> (u64, Vec<u64>) {
    let number = Datatype::of(Element::U64);
    let second = number.vector(2, 1, 2).unwrap();
    let ones = 1u64.to_ne_bytes().repeat(COUNT as usize);
    let (to, first) = (random.below(4) as u32, random.below(COUNT));
    let count = match random.below(3) {
        0 => 1,
        _ => 1 + random.below(COUNT - first),
    };
    let source = Source::slice(&ones, count, &number);
    let target = Target::new(to, 8 * first, count, &number);
    match random.below(5) {
        // Each instance has its first and its third element.
        0 if count >= 3 => {
            let many = count / 3;
            let source = Source::slice(&ones, 2 * many, &number);
            let target = Target::new(to, 8 * first, many, &second);
            window.accumulate(source, target, Operator::Sum).unwrap();
            let pair = |instance| [first + 3 * instance, first + 3 * instance + 2];
            return (u64::from(to), (0..many).flat_map(pair).collect());
        }
        1 => {
            let result = Destination::new(back, 0, count, &number);
            window.get_accumulate(Some(source), result, target, Operator::Sum).unwrap();
            window.flush(to).unwrap();
            let seen = back.load::<u64>(8 * (count as usize - 1)).unwrap();
            assert!(seen <= 4 * ADDITIONS, "{seen}");
        }
        2 => frames.accumulate(source, target, Operator::Sum).unwrap(),
        _ => window.accumulate(source, target, Operator::Sum).unwrap(),
    }
    (u64::from(to), (first..first + count).collect())
}

/// Four ranks add to memory of all. `shared`: all memory is one piece with one lock.
fn blocks_lose_nothing(shared: bool) {
    let all = Mutex::new(vec![0u64; 4 * COUNT as usize]);
    ranks(SHM, 4, |own| {
        let (options, bytes) = (own.setup.options("blocks"), 8 * COUNT as usize);
        let mut window = match shared {
            true => own.team.allocate_shared(bytes, &options).unwrap(),
            false => own.team.allocate(bytes, &options).unwrap(),
        };
        let mut frames = own.team.create(window.cells(), 0..bytes, &options).unwrap();
        let (mut random, back) = (Random::from_seed(7 + u64::from(own.rank)), Cells::zeroed(bytes));
        let mut done = vec![0u64; 4 * COUNT as usize];
        window.lock_all(NONE).unwrap();
        frames.lock_all(NONE).unwrap();
        for _ in 0..ADDITIONS {
            let (to, elements) = add_ones(&mut random, [&window, &frames], &back);
            elements.iter().for_each(|element| done[(to * COUNT + element) as usize] += 1);
        }
        frames.unlock_all().unwrap();
        window.unlock_all().unwrap();
        all.lock().unwrap().iter_mut().zip(&done).for_each(|(all, own)| *all += own);
        own.team.barrier().unwrap();
        let all = all.lock().unwrap().clone();
        let part = all.iter().skip(own.rank as usize * COUNT as usize).take(COUNT as usize);
        for (element, want) in part.enumerate() {
            assert_eq!(window.cells().load(8 * element), Some(*want), "element {element}");
        }
        own.team.barrier().unwrap();
        frames.free().unwrap();
        window.free().unwrap();
    });
}

#[test]
fn blocks_and_single_elements_lose_no_accumulate_of_each_other() {
    blocks_lose_nothing(false);
    blocks_lose_nothing(true);
}

fn all_shared(window: &Window, size: u32) -> Vec<(u64, u32, Cells)> {
    (0..size).map(|rank| window.shared_query(Some(rank)).unwrap()).collect()
}

#[test]
fn memory_that_ranks_share_lies_as_they_want_it() {
    ranks(SHM, 4, |own| {
        let sizes = [0, 24, 7, 4097];
        let size = sizes[own.rank as usize];
        for noncontiguous in [false, true] {
            let unit = own.rank + 1;
            let options = own.setup.options("shared");
            let options = WindowOptions { noncontiguous, displacement_unit: unit, ..options };
            let mut window = own.team.allocate_shared(size, &options).unwrap();
            let all = all_shared(&window, 4);
            let mut end = all[0].2.address().addr();
            for (rank, (bytes, unit, cells)) in all.iter().enumerate() {
                assert_eq!((*bytes, *unit), (sizes[rank] as u64, rank as u32 + 1));
                assert_eq!(cells.len(), sizes[rank]);
                let begin = cells.address().addr();
                assert!(if noncontiguous { begin % 4096 == 0 } else { begin == end });
                end = begin + cells.len();
            }
            assert_eq!(all[own.rank as usize].2.address(), window.cells().address());
            // Nobody: the first one that has any.
            let (bytes, unit, cells) = window.shared_query(None).unwrap();
            assert_eq!((bytes, unit, cells.address()), (24, 2, all[1].2.address()));
            let error = window.shared_query(Some(4)).unwrap_err();
            assert!(error.to_string().contains("no rank 4"), "{error}");
            // Each stores a byte behind those of the others, at all ranks.
            for (rank, (_, _, cells)) in all.iter().enumerate().skip(1) {
                cells.store(own.rank as usize, 16 * rank as u8 + own.rank as u8).unwrap();
            }
            window.sync().unwrap();
            own.team.barrier().unwrap();
            window.sync().unwrap();
            for (rank, (_, _, cells)) in all.iter().enumerate().skip(1) {
                let found = bytes_of(cells, 4);
                assert_eq!(found, [0, 1, 2, 3].map(|by| 16 * rank as u8 + by));
            }
            own.team.barrier().unwrap();
            window.free().unwrap();
            assert!(window.shared_query(None).is_err());
            // Who has cells may look at them still.
            assert_eq!(bytes_of(&all[2].2, 2), [32, 33]);
        }
    });
}

fn bytes_of(cells: &Cells, many: usize) -> Vec<u8> {
    bytes(cells)[..many].to_vec()
}

#[test]
fn locks_of_shared_memory_are_here_when_the_call_returns() {
    for implementation in [Implementation::Direct, Implementation::Messages] {
        ranks(Setup { implementation, ..SHM }, 3, locks_of_shared_memory);
    }
}

fn locks_of_shared_memory(own: &Rank) {
    let window = own.team.allocate_shared(64, &own.setup.options("shared")).unwrap();
    let (_, _, first) = window.shared_query(Some(0)).unwrap();
    for turn in 0..60u64 {
        // Loads and stores alone, and beside operations.
        window.lock(LockKind::Exclusive, 0, NONE).unwrap();
        let value: u64 = first.load(0).unwrap();
        std::thread::yield_now();
        if turn % 3 == 0 {
            put(&window, 0, 0, value + 1);
        } else {
            first.store(0, value + 1).unwrap();
        }
        window.unlock(0).unwrap();
    }
    window.lock_all(NONE).unwrap();
    let number = Datatype::of(Element::U64);
    let one = 1u64.to_ne_bytes();
    for to in 0..3 {
        let source = Source::slice(&one, 1, &number);
        window.accumulate(source, Target::new(to, 8, 1, &number), Operator::Sum).unwrap();
        window.accumulate(source, Target::new(to, 17, 1, &number), Operator::Sum).unwrap();
    }
    window.unlock_all().unwrap();
    own.team.barrier().unwrap();
    assert_eq!(first.load::<u64>(0), Some(180));
    for (_, _, cells) in all_shared(&window, 3) {
        assert_eq!((cells.load::<u64>(8), cells.load::<u64>(17)), (Some(3), Some(3)));
    }
    own.team.barrier().unwrap();
}

#[test]
fn operations_on_shared_memory_work_by_each_implementation() {
    for implementation in
        [Implementation::Messages, Implementation::DirectAccumulateAtOrigin, Implementation::Direct]
    {
        for map_memory in [true, false] {
            let setup = Setup { implementation, map_memory, ..SHM };
            ranks(setup, 3, |own| {
                let window = own.team.allocate_shared(64, &own.setup.options("shared")).unwrap();
                window.fence(NONE).unwrap();
                let number = Datatype::of(Element::U64);
                let one = 1u64.to_ne_bytes();
                for to in 0..3 {
                    put(&window, to, 8 * u64::from(own.rank), 5);
                    let target = Target::new(to, 32, 1, &number);
                    let source = Source::slice(&one, 1, &number);
                    window.accumulate(source, target, Operator::Sum).unwrap();
                }
                window.fence(Asserts::NO_SUCCEED).unwrap();
                for (_, _, cells) in all_shared(&window, 3) {
                    let found = [0, 8, 16, 32].map(|at| cells.load::<u64>(at).unwrap());
                    assert_eq!(found, [5, 5, 5, 3], "{implementation:?}");
                }
                own.team.barrier().unwrap();
            });
        }
    }
}

#[test]
fn ranks_that_cannot_share_memory_are_all_told_and_go_on() {
    let tcp = Setup { scheme: "tcp", ..SHM };
    ranks(tcp, 3, |own| {
        let error = own.team.allocate_shared(64, &own.setup.options("far")).map(drop).unwrap_err();
        assert!(matches!(error, Error::NotShared { .. }), "{error}");
        let mut window = own.window(8);
        let error = window.shared_query(Some(0)).unwrap_err();
        assert!(error.to_string().contains("not made for loads and stores"), "{error}");
        window.free().unwrap();
    });
    // One that is alone shares with itself.
    ranks(tcp, 1, |own| {
        let mut window = own.team.allocate_shared(64, &own.setup.options("near")).unwrap();
        let (bytes, _, cells) = window.shared_query(Some(0)).unwrap();
        assert_eq!((bytes, cells.address()), (64, window.cells().address()));
        window.free().unwrap();
    });
}

#[test]
fn ranks_that_want_different_shared_memory_are_told() {
    ranks(SHM, 3, |own| {
        let mut options = own.setup.options("odd");
        options.noncontiguous = own.rank == 2;
        let error = own.team.allocate_shared(8, &options).map(drop).unwrap_err();
        assert!(error.to_string().contains("with another layout"), "{error}");
        let mut options = own.setup.options("unit");
        options.displacement_unit = u32::from(own.rank != 1);
        let error = own.team.allocate_shared(8, &options).map(drop).unwrap_err();
        let is_own = matches!(error, Error::Argument { .. });
        assert!(is_own == (own.rank == 1) && error.to_string().contains("unit"), "{error}");
        let most = if own.rank == 0 { usize::MAX } else { 1 };
        let options = own.setup.options("huge");
        let error = own.team.allocate_shared(most, &options).map(drop).unwrap_err();
        assert!(matches!(error, Error::Room(_)), "{error}");
        let error = own.team.allocate_shared(1 << 61, &options).map(drop).unwrap_err();
        assert!(matches!(error, Error::Room(_)), "{error}");
        // The next one is as good as ever.
        let mut window = own.team.allocate_shared(8, &own.setup.options("good")).unwrap();
        window.free().unwrap();
    });
}

#[test]
fn a_window_over_mapped_memory_keeps_its_accumulates_whole() {
    ranks(SHM, 2, |own| {
        let options = own.setup.options("first");
        let mut first = own.team.allocate(64, &options).unwrap();
        // Nobody offers this memory again: operations of this window go by frames.
        let mut second = own.team.create(first.cells(), 0..64, &options).unwrap();
        let number = Datatype::of(Element::U64);
        let one = 1u64.to_ne_bytes();
        first.lock_all(NONE).unwrap();
        second.lock_all(NONE).unwrap();
        for _ in 0..500 {
            for window in [&first, &second] {
                let source = Source::slice(&one, 1, &number);
                let target = Target::new(own.rank ^ 1, 8, 1, &number);
                window.accumulate(source, target, Operator::Sum).unwrap();
            }
        }
        first.unlock_all().unwrap();
        second.unlock_all().unwrap();
        own.team.barrier().unwrap();
        assert_eq!(first.cells().load::<u64>(8), Some(1000));
        own.team.barrier().unwrap();
        second.free().unwrap();
        first.free().unwrap();
    });
}

#[test]
fn a_shared_window_outlives_a_rank_that_is_lost() {
    ranks(SHM, 3, |own| {
        let window = own.team.allocate_shared(64, &own.setup.options("shared")).unwrap();
        let (_, _, last) = window.shared_query(Some(2)).unwrap();
        if own.rank == 2 {
            last.store::<u64>(8, 6).unwrap();
            own.team.barrier().unwrap();
            own.team.settle(std::time::Duration::from_secs(5));
            return own.endpoint.close();
        }
        own.team.barrier().unwrap();
        let lost = |outcome: Result<(), Error>| {
            let error = outcome.expect_err("rank 2 is gone");
            assert!(matches!(error, Error::Lost { rank: 2, .. }), "{error}");
        };
        // Nobody waits for its lock, and its memory is there.
        window.lock_all(NONE).unwrap();
        while window.flush(2).is_ok() {}
        assert_eq!(last.load::<u64>(8), Some(6));
        let (number, bytes) = (Datatype::of(Element::U64), [0; 8]);
        let target = Target::new(2, 0, 1, &number);
        lost(window.put(Source::slice(&bytes, 1, &number), target));
        put(&window, own.rank ^ 1, 0, 5);
        window.flush(own.rank ^ 1).unwrap();
        lost(window.unlock_all());
        assert!(own.team.barrier().is_err());
        assert_eq!(window.cells().load::<u64>(0), Some(5));
    });
}
