//! Puts and gets: lengths, types, ranks, synchronisations.

use ropewalk_base::random::Random;
use ropewalk_rma::{
    Asserts, Cells, Datatype, Destination, Element, LockKind, Operator, PROC_NULL, Source, Target,
    WindowOptions,
};

use crate::common::{Setup, bytes as bytes_of, pattern, ranks};

const LENGTHS: [usize; 12] =
    [0, 1, 8, 63, 64, 65, 1000, 16 << 10, (16 << 10) + 1, 100_000, 300_000, 1_200_001];

pub fn puts_and_gets_of_all_lengths_between_all_ranks(setup: Setup) {
    for size in [1, 2, 3] {
        ranks(setup, size, |own| {
            let slot = 1_300_000;
            let mut window = own.window(slot * size as usize);
            let byte = Datatype::of(Element::Byte);
            for (round, length) in LENGTHS.into_iter().enumerate() {
                let seed = |from: u32, to: u32| u64::from(from * 16 + to) + round as u64 * 1000;
                window.fence(Asserts::NONE).unwrap();
                let displacement = own.rank as usize * slot;
                for to in 0..size {
                    let data = pattern(seed(own.rank, to), length);
                    let (count, displacement) = (length as u64, displacement as u64);
                    let target = Target::new(to, displacement, count, &byte);
                    window.put(Source::slice(&data, count, &byte), target).unwrap();
                }
                window.fence(Asserts::NONE).unwrap();
                for from in 0..size {
                    let mut came = vec![0; length];
                    window.cells().read(from as usize * slot, &mut came).unwrap();
                    assert!(came == pattern(seed(from, own.rank), length), "{length} bytes");
                }
                // What each rank put to its neighbour comes back.
                let (to, result) = ((own.rank + 1) % size, Cells::zeroed(length + 2));
                let target = Target::new(to, displacement as u64, length as u64, &byte);
                window.get(Destination::new(&result, 1, length as u64, &byte), target).unwrap();
                window.fence(Asserts::NONE).unwrap();
                let all = bytes_of(&result);
                assert!(all[1..=length] == pattern(seed(own.rank, to), length), "{length} bytes");
                assert_eq!((all[0], all[length + 1]), (0, 0));
            }
            window.free().unwrap();
        });
    }
}

/// A random type whose data are so many bytes, without overlaps, and how many instances that takes.
fn shape(random: &mut Random, bytes: u64) -> (Datatype, u64) {
    let below = |random: &mut Random, limit: u64| random.next_u64() % limit;
    let byte = Datatype::of(Element::Byte);
    let block = 1 + below(random, bytes.min(40));
    let gap = below(random, 9) as i64;
    let (count, rest) = (bytes / block, bytes % block);
    let part = byte.contiguous(block).unwrap();
    match below(random, 5) {
        0 => (byte, bytes),
        1 => {
            let vector = byte.vector(count, block, block as i64 + gap).unwrap();
            let at = (block as i64 + gap) * count as i64;
            (Datatype::structure(&[(1, 0, &vector), (rest, at, &byte)]).unwrap(), 1)
        }
        2 => {
            // Backwards, from a positive displacement.
            let step = -(block as i64 + gap);
            let vector = part.hvector(count, 1, step).unwrap();
            let at = block as i64;
            (Datatype::structure(&[(rest, at, &byte), (1, 0, &vector)]).unwrap(), 1)
        }
        3 if rest == 0 => (part.resized(-3, block as i64 + gap).unwrap(), count),
        _ => {
            let first = 1 + below(random, bytes);
            let after = 5 + first as i64;
            (byte.indexed(&[(first, 0), (bytes - first, after)]).unwrap(), 1)
        }
    }
}

/// The places of the bytes of instances, in their order.
fn places(datatype: &Datatype, count: u64, address: i64) -> Vec<usize> {
    let pieces = datatype.descriptor().pieces(count, 0);
    let bytes = pieces.flat_map(|it| it.offset..it.offset + it.bytes as i64);
    bytes.map(|at| (address + at) as usize).collect()
}

pub fn data_of_any_types_go_to_the_places_of_a_model(setup: Setup) {
    const WINDOW: usize = 2_000_000;
    ranks(setup, 2, |own| {
        let unit = if own.rank == 0 { 1 } else { 4 };
        let options = WindowOptions { displacement_unit: unit, ..setup.options("types") };
        let window = own.team.allocate(WINDOW, &options).unwrap();
        let mut random = Random::from_seed(u64::from(own.rank) + 77);
        let mut model = vec![0; WINDOW];
        for round in 0..120 {
            let to = random.next_u64() as u32 % 2;
            let unit = u64::from(window.extent_of(to).1);
            let most = if round % 20 == 0 { 400_000 } else { 3000 };
            let bytes = 1 + random.next_u64() % most;
            let (origin, origin_count) = shape(&mut random, bytes);
            let (target, target_count) = shape(&mut random, bytes);
            let reach = |it: &Datatype, count| it.descriptor().bounds(count).unwrap();
            let (near, far) = (reach(&origin, origin_count), reach(&target, target_count));
            // Each rank has half of each window, so that nobody else writes there.
            let begin = WINDOW as u64 / 2 * u64::from(own.rank) + 4 * unit;
            let displacement = (begin as i64 - far.start) as u64 / unit + 1;
            let address = (displacement * unit) as i64;
            let at = (-near.start).max(0) as usize;
            let source = Cells::copy_of(&pattern(round, at + near.end.max(0) as usize));
            let at_target = Target::new(to, displacement, target_count, &target);
            window.lock(LockKind::Shared, to, Asserts::NONE).unwrap();
            if random.next_u64().is_multiple_of(2) && near.start >= 0 {
                let from = bytes_of(&source);
                window.put(Source::slice(&from, origin_count, &origin), at_target).unwrap();
            } else {
                let from = Source::cells(&source, at, origin_count, &origin);
                window.put(from, at_target).unwrap();
            }
            window.flush(to).unwrap();
            let back = Cells::zeroed(source.len());
            let result = Destination::new(&back, at, origin_count, &origin);
            window.get(result, at_target).unwrap();
            window.unlock(to).unwrap();
            let (sent, came) = (bytes_of(&source), bytes_of(&back));
            let mut want = vec![0; came.len()];
            let from = places(&origin, origin_count, at as i64);
            for (from, to) in from.into_iter().zip(places(&target, target_count, address)) {
                want[from] = sent[from];
                model[to] = sent[from];
            }
            assert!(came == want, "round {round}: {bytes} bytes of {origin:?} to {target:?}");
            // The whole half of the window at the target, gaps too.
            let (half, byte) = (Cells::zeroed(WINDOW / 2), Datatype::of(Element::Byte));
            let count = WINDOW as u64 / 2;
            let begin = u64::from(own.rank) * count / unit;
            window.lock(LockKind::Shared, to, Asserts::NONE).unwrap();
            let all = Target::new(to, begin, count, &byte);
            window.get(Destination::new(&half, 0, count, &byte), all).unwrap();
            window.unlock(to).unwrap();
            let from = own.rank as usize * WINDOW / 2;
            assert!(bytes_of(&half) == model[from..from + WINDOW / 2], "round {round}");
            // Both targets have the same model: what is in the one goes to the other.
            let other = Target::new(
                1 - to,
                from as u64 / u64::from(window.extent_of(1 - to).1),
                count,
                &byte,
            );
            window.lock(LockKind::Shared, 1 - to, Asserts::NONE).unwrap();
            window.put(Source::cells(&half, 0, count, &byte), other).unwrap();
            window.unlock(1 - to).unwrap();
        }
        own.team.barrier().unwrap();
    });
}

pub fn requests_end_alone_and_in_any_order(setup: Setup) {
    ranks(setup, 3, |own| {
        let window = own.window(1 << 20);
        let number = Datatype::of(Element::U64);
        window.lock_all(Asserts::NONE).unwrap();
        let to = (own.rank + 1) % own.size;
        let mut requests = Vec::new();
        for at in 0..20_u64 {
            let value = (u64::from(own.rank) << 32 | at).to_ne_bytes();
            let target = Target::new(to, at * 8, 1, &number);
            requests.push(window.rput(Source::slice(&value, 1, &number), target).unwrap());
        }
        let long = Cells::copy_of(&pattern(own.rank.into(), 500_000));
        let target = Target::new(to, 1000, 62_500, &number);
        requests.push(window.rput(Source::cells(&long, 0, 62_500, &number), target).unwrap());
        for request in requests.into_iter().rev() {
            request.wait().unwrap();
        }
        window.flush_all().unwrap();
        let back = Cells::zeroed(500_000);
        let got = window.rget(Destination::new(&back, 0, 62_500, &number), target).unwrap();
        while !got.test().unwrap() {
            std::thread::yield_now();
        }
        assert!(bytes_of(&back) == bytes_of(&long));
        let old = Cells::zeroed(8);
        let (one, result) = (1_u64.to_ne_bytes(), Destination::new(&old, 0, 1, &number));
        let first = Target::new(to, 0, 1, &number);
        let source = Source::slice(&one, 1, &number);
        window.raccumulate(source, first, Operator::Sum).unwrap().wait().unwrap();
        let fetch = window.rget_accumulate(Some(source), result, first, Operator::Sum).unwrap();
        fetch.wait().unwrap();
        assert_eq!(old.load::<u64>(0), Some((u64::from(own.rank) << 32) + 1));
        // A request on nobody is done.
        let nobody = Target::new(PROC_NULL, 0, 1, &number);
        assert!(window.rput(source, nobody).unwrap().test().unwrap());
        window.unlock_all().unwrap();
        own.team.barrier().unwrap();
    });
}

pub fn nothing_is_legal_and_still_needs_an_epoch(setup: Setup) {
    ranks(setup, 2, |own| {
        let window = own.window(16 * own.rank as usize);
        let (byte, number) = (Datatype::of(Element::Byte), Datatype::of(Element::F64));
        let empty = number.contiguous(0).unwrap();
        let none = Cells::zeroed(0);
        let bytes = u64::from(own.rank ^ 1) * 16;
        let act = || {
            let to = Target::new(own.rank ^ 1, bytes, 0, &byte);
            window.put(Source::slice(&[], 0, &byte), to)?;
            window.put(Source::slice(&[], 5, &empty), Target::new(own.rank ^ 1, 0, 9, &empty))?;
            window.get(Destination::new(&none, 0, 0, &byte), to)?;
            window.accumulate(Source::slice(&[], 0, &number), to, Operator::Sum)?;
            let nobody = Target::new(PROC_NULL, 0, 1, &number);
            window.put(Source::slice(&[0; 8], 1, &number), nobody)?;
            window.get(Destination::new(&none, 0, 1, &number), nobody)?;
            let word = [0; 8];
            window.compare_and_swap(&word, &word, Destination::new(&none, 0, 1, &number), nobody)
        };
        assert!(act().is_err());
        window.fence(Asserts::NONE).unwrap();
        act().unwrap();
        window.fence(Asserts::NO_SUCCEED).unwrap();
        assert!(act().is_err());
        window.lock_all(Asserts::NONE).unwrap();
        act().unwrap();
        window.unlock_all().unwrap();
        own.team.barrier().unwrap();
    });
}
