//! Accumulates: all types and operators, their order, and that they are atomic.

use ropewalk_base::memory::{BufferTable, Change, Job, Memory, Places, Slice, Update};
use ropewalk_base::pool::Pool;
use ropewalk_base::random::Random;
use ropewalk_rma::{
    Asserts, Cells, Datatype, Destination, Element, LockKind, Operator, Source, Target,
};

use crate::common::{Setup, bytes, pattern, ranks};

/// What memory and results are after an update of `count` elements, one process alone.
fn model(update: Update, memory: &[u8], sent: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let pool = Pool::with_budget(1 << 30);
    let mut table = BufferTable::with_limit(3);
    let mut insert = |bytes: &[u8]| {
        let buffer = Memory::pooled(pool.copy_of(bytes).unwrap());
        let buffer = table.insert(buffer).unwrap();
        Slice { buffer, offset: 0, len: bytes.len() as u64 }
    };
    let (target, source) = (insert(memory), insert(sent));
    let result = insert(&vec![0; sent.len()]);
    let job = Job { change: Change::Update(update), places: Places::One(target) };
    table.apply(&job, source, Some(result)).unwrap();
    let (mut after, mut before) = (memory.to_vec(), sent.to_vec());
    table.read(target, &mut after);
    table.read(result, &mut before);
    (after, before)
}

/// Bytes of elements that make sense: no number is one that is not.
fn values(element: Element, seed: u64, bytes: usize) -> Vec<u8> {
    let raw = pattern(seed, bytes);
    let double = |at: usize| f64::from(raw[at]) - 100.0;
    match element {
        Element::F32 | Element::Complex32 => {
            (0..bytes / 4).flat_map(|at| (double(at) as f32).to_ne_bytes()).collect()
        }
        Element::F64 | Element::Complex64 => {
            (0..bytes / 8).flat_map(|at| double(at).to_ne_bytes()).collect()
        }
        Element::F32Index => (0..bytes / 8)
            .flat_map(|at| [(double(at) as f32).to_bits(), u32::from(raw[at]) % 3])
            .flat_map(u32::to_ne_bytes)
            .collect(),
        Element::F64Index => (0..bytes / 16)
            .flat_map(|at| [double(at).to_bits(), u64::from(raw[at]) % 3])
            .flat_map(u64::to_ne_bytes)
            .collect(),
        Element::LongDouble => {
            (0..bytes / 16).flat_map(|at| long(u64::from(raw[at]), at % 2 == 0)).collect()
        }
        Element::LongDoubleIndex => (0..bytes / 32)
            .flat_map(|at| [long(u64::from(raw[at]), at % 2 == 0), [raw[at] % 3; 16]])
            .flatten()
            .collect(),
        _ => raw,
    }
}

/// A `long double` of x86-64: 1 and some 256ths, or its negative; with padding.
fn long(value: u64, is_negative: bool) -> [u8; 16] {
    let mut bytes = [3; 16];
    bytes[..8].copy_from_slice(&(1 << 63 | value << 55).to_le_bytes());
    bytes[8..10].copy_from_slice(&(0x3fff | u16::from(is_negative) << 15).to_le_bytes());
    bytes
}

/// Elements without their padding, as an origin without gaps has them.
fn packed(datatype: &Datatype, count: u64, memory: &[u8]) -> Vec<u8> {
    let pieces = datatype.descriptor().pieces(count, 0);
    pieces.flat_map(|it| &memory[it.offset as usize..][..it.bytes as usize]).copied().collect()
}

pub fn all_types_take_all_their_operators_near_and_far(setup: Setup) {
    ranks(setup, 2, |own| {
        let window = own.window(1 << 20);
        let to = own.rank ^ 1;
        for element in Element::ALL {
            let datatype = Datatype::of(element);
            let extent = element.shape().extent;
            for operator in Operator::ALL {
                let Some(update) = Update::new(element, operator) else { continue };
                // One, some, and so many that they go in parts.
                let many = if operator == Operator::Sum || operator == Operator::MaxIndex {
                    600_000 / extent as u64
                } else {
                    3000 / extent as u64
                };
                for count in [1, 7, many] {
                    let bytes_there = count as usize * extent;
                    let begin = values(element, count, bytes_there);
                    window.cells().write(0, &begin).unwrap();
                    let source = values(element, count * 3 + u64::from(own.rank), bytes_there);
                    let back = Cells::zeroed(bytes_there);
                    window.fence(Asserts::NONE).unwrap();
                    let target = Target::new(to, 0, count, &datatype);
                    let from = Source::slice(&source, count, &datatype);
                    let result = Destination::new(&back, 0, count, &datatype);
                    window.get_accumulate(Some(from), result, target, operator).unwrap();
                    window.accumulate(from, target, operator).unwrap();
                    window.fence(Asserts::NONE).unwrap();
                    let what = format!("{count} {element:?} {operator:?}");
                    let sent = packed(&datatype, count, &source);
                    let (once, before) = model(update, &begin, &sent);
                    assert!(packed(&datatype, count, &bytes(&back)) == before, "{what}");
                    // The other rank did the same with its own values.
                    let theirs = values(element, count * 3 + u64::from(to), bytes_there);
                    let theirs = packed(&datatype, count, &theirs);
                    let (once, _) = if theirs == sent {
                        (once, before)
                    } else {
                        model(update, &begin, &theirs)
                    };
                    let (twice, _) = model(update, &once, &theirs);
                    let mut now = vec![0; bytes_there];
                    window.cells().read(0, &mut now).unwrap();
                    assert!(now == twice, "{what}");
                    own.team.barrier().unwrap();
                }
            }
        }
    });
}

pub fn elements_with_gaps_are_combined_where_they_lie(setup: Setup) {
    ranks(setup, 2, |own| {
        let window = own.window(400_000);
        let to = own.rank ^ 1;
        for element in [
            Element::I16,
            Element::F64,
            Element::F64Index,
            Element::I16Index,
            Element::LongDouble,
            Element::LongDoubleIndex,
        ] {
            if !element.is_calculated() {
                continue;
            }
            let one = Datatype::of(element);
            let extent = element.shape().extent;
            for count in [3_u64, 4000, 6000] {
                let count =
                    if crate::is_slow_by_pieces(setup) { count.div_ceil(10) } else { count };
                // Each second one at the target; three of four at the origin.
                let target = one.vector(count, 1, 2).unwrap();
                let source = one.vector(count.div_ceil(3), 3, 4).unwrap();
                let (target, source) = match count % 3 {
                    0 => (target, source),
                    _ => (target, one.contiguous(count).unwrap()),
                };
                let there = (2 * count as usize - 1) * extent;
                let begin = values(element, 5, there);
                window.cells().write(0, &begin).unwrap();
                let reach = source.true_bounds().end as usize;
                let data = values(element, 9, reach.next_multiple_of(16));
                window.fence(Asserts::NONE).unwrap();
                let operator = if element.shape().index_at.is_some() {
                    Operator::MinIndex
                } else {
                    Operator::Sum
                };
                let back = Cells::zeroed(data.len());
                let result = Destination::new(&back, 0, 1, &source);
                let at = Target::new(to, 0, 1, &target);
                let from = Source::slice(&data, 1, &source);
                window.get_accumulate(Some(from), result, at, operator).unwrap();
                window.fence(Asserts::NONE).unwrap();
                let update = Update::new(element, operator).unwrap();
                let mut want = begin.clone();
                let sent = packed(&source, 1, &data);
                let unit = element.shape().sent();
                for number in 0..count as usize {
                    let place = number * 2 * extent..number * 2 * extent + extent;
                    let (after, _) =
                        model(update, &begin[place.clone()], &sent[number * unit..][..unit]);
                    want[place].copy_from_slice(&after);
                }
                let mut now = vec![0; there];
                window.cells().read(0, &mut now).unwrap();
                assert!(now == want, "{count} {element:?}");
                assert_eq!(packed(&source, 1, &bytes(&back)), packed(&target, 1, &begin));
                own.team.barrier().unwrap();
            }
        }
    });
}

pub fn accumulates_of_one_origin_keep_their_order_whatever_their_length(setup: Setup) {
    ranks(setup, 3, |own| {
        let window = own.window(800_000 * 3);
        let (number, to) = (Datatype::of(Element::U32), (own.rank + 1) % own.size);
        let begin = u64::from(own.rank) * 800_000;
        let mut random = Random::from_seed(u64::from(own.rank));
        window.lock(LockKind::Shared, to, Asserts::NONE).unwrap();
        let mut want = vec![0_u32; 200_000];
        for round in 1..60_u32 {
            let count = [1, 5, 900, 9000, 120_000][random.next_u64() as usize % 5];
            let first = random.next_u64() as usize % (200_000 - count);
            let data: Vec<u8> =
                (0..count as u32).flat_map(|at| (round * 7 + at).to_ne_bytes()).collect();
            for (at, value) in (0..count as u32).enumerate() {
                want[first + at] = round * 7 + value;
            }
            let target = Target::new(to, begin + first as u64 * 4, count as u64, &number);
            let from = Source::slice(&data, count as u64, &number);
            window.accumulate(from, target, Operator::Replace).unwrap();
        }
        let back = Cells::zeroed(800_000);
        let target = Target::new(to, begin, 200_000, &number);
        let result = Destination::new(&back, 0, 200_000, &number);
        // A read among accumulates sees all that came before it, without a flush.
        window.get_accumulate(None, result, target, Operator::Nothing).unwrap();
        window.unlock(to).unwrap();
        let want: Vec<u8> = want.into_iter().flat_map(u32::to_ne_bytes).collect();
        assert!(bytes(&back) == want);
        own.team.barrier().unwrap();
    });
}

pub fn counters_of_all_ranks_lose_nothing_and_tell_each_value_once(setup: Setup) {
    const TURNS: u64 = 60;
    ranks(setup, 4, |own| {
        let window = own.window(16);
        let number = Datatype::of(Element::U64);
        let counter = Target::new(0, 0, 1, &number);
        let (old, one) = (Cells::zeroed(8), 1_u64.to_ne_bytes());
        let result = Destination::new(&old, 0, 1, &number);
        window.lock_all(Asserts::NONE).unwrap();
        let mut seen = Vec::new();
        for _ in 0..TURNS {
            let source = Source::slice(&one, 1, &number);
            window.fetch_and_op(Some(source), result, counter, Operator::Sum).unwrap();
            window.flush(0).unwrap();
            seen.extend(old.load::<u64>(0));
        }
        // The same by compare and swap at another place.
        let other = Target::new(0, 8, 1, &number);
        let mut mine = 0;
        let mut expected = 0_u64;
        while mine < TURNS {
            let desired = (expected + 1).to_ne_bytes();
            window.compare_and_swap(&expected.to_ne_bytes(), &desired, result, other).unwrap();
            window.flush(0).unwrap();
            let was = old.load::<u64>(0).unwrap();
            mine += u64::from(was == expected);
            expected = if was == expected { expected + 1 } else { was };
        }
        window.unlock_all().unwrap();
        assert!(seen.is_sorted());
        let told: Vec<u8> = seen.iter().flat_map(|it| it.to_ne_bytes()).collect();
        let all = own.team.exchange(&told).unwrap().concat();
        let mut all: Vec<u64> =
            all.as_chunks().0.iter().map(|it| u64::from_ne_bytes(*it)).collect();
        all.sort_unstable();
        assert_eq!(all, (0..TURNS * 4).collect::<Vec<_>>());
        if own.rank == 0 {
            assert_eq!(window.cells().load::<u64>(0), Some(TURNS * 4));
            assert_eq!(window.cells().load::<u64>(8), Some(TURNS * 4));
        }
    });
}

pub fn swaps_of_all_types_happen_where_all_bytes_are_as_expected(setup: Setup) {
    ranks(setup, 2, |own| {
        let window = own.window(16);
        let to = own.rank ^ 1;
        let comparable = Element::ALL.into_iter().filter(|it| it.is_comparable());
        for element in comparable {
            let (datatype, extent) = (Datatype::of(element), element.shape().extent);
            window.cells().write(8, &[3; 8]).unwrap();
            own.team.barrier().unwrap();
            window.lock(LockKind::Exclusive, to, Asserts::NONE).unwrap();
            let old = Cells::zeroed(8);
            let (result, target) =
                (Destination::new(&old, 0, 1, &datatype), Target::new(to, 8, 1, &datatype));
            let swap = |expected: u8, desired: u8| {
                let (expected, desired) = (vec![expected; extent], vec![desired; extent]);
                window.compare_and_swap(&expected, &desired, result, target).unwrap();
                window.flush(to).unwrap();
                bytes(&old)[..extent].to_vec()
            };
            assert_eq!(swap(4, 9), vec![3; extent]);
            assert_eq!(swap(3, 5), vec![3; extent]);
            assert_eq!(swap(5, 6), vec![5; extent]);
            window.unlock(to).unwrap();
            own.team.barrier().unwrap();
            let mut now = [0; 8];
            window.cells().read(8, &mut now).unwrap();
            assert!(now[..extent].iter().all(|it| *it == 6), "{element:?} {now:?}");
            assert!(now[extent..].iter().all(|it| *it == 3), "{element:?} {now:?}");
        }
        own.team.barrier().unwrap();
    });
}

pub fn accumulates_are_done_before_their_epoch_is_over_for_others(setup: Setup) {
    const TURNS: u64 = 30;
    let word = Datatype::of(Element::U64);
    ranks(setup, 3, |own| {
        let window = own.window(16);
        let one = 1u64.to_ne_bytes();
        let add = |to: u32, at: u64| {
            let (source, target) = (Source::slice(&one, 1, &word), Target::new(to, at, 1, &word));
            window.accumulate(source, target, Operator::Sum).unwrap();
        };
        // Whoever has the lock alone after one that accumulated gets and puts what is there.
        let value = Cells::zeroed(8);
        for turn in 0..TURNS {
            window.lock(LockKind::Exclusive, 0, Asserts::NONE).unwrap();
            if (turn + u64::from(own.rank)) % 2 == 0 {
                add(0, 0);
            } else {
                let target = || Target::new(0, 0, 1, &word);
                window.get(Destination::new(&value, 0, 1, &word), target()).unwrap();
                window.flush(0).unwrap();
                let next = (value.load::<u64>(0).unwrap() + 1).to_ne_bytes();
                window.put(Source::slice(&next, 1, &word), target()).unwrap();
            }
            window.unlock(0).unwrap();
        }
        own.team.barrier().unwrap();
        if own.rank == 0 {
            window.lock(LockKind::Shared, 0, Asserts::NONE).unwrap();
            assert_eq!(window.cells().load::<u64>(0), Some(3 * TURNS));
            window.unlock(0).unwrap();
        }
        // Whoever waited sees what was accumulated.
        for turn in 1..=TURNS {
            if own.rank == 0 {
                window.post(&own.others(), Asserts::NONE).unwrap();
                window.wait().unwrap();
                assert_eq!(window.cells().load::<u64>(8), Some(2 * turn));
            } else {
                window.start(&[0], Asserts::NONE).unwrap();
                add(0, 8);
                window.complete().unwrap();
            }
        }
    });
}
