//! Descriptors against plain lists of the offsets of their bytes.

use super::*;
use crate::random::Random;

/// The offset of each byte, in order.
fn flat(descriptor: &Descriptor, count: u64, from: u64) -> Vec<i64> {
    let pieces = descriptor.pieces(count, from);
    pieces.flat_map(|piece| piece.offset..piece.offset + piece.bytes as i64).collect()
}

/// The same by runs.
fn flat_runs(descriptor: &Descriptor, count: u64, from: u64) -> Vec<i64> {
    let turns = |run: Run| {
        (0..run.times as i64).map(move |turn| (run.offset + turn * run.stride, run.bytes))
    };
    let pieces = descriptor.runs(count, from).flat_map(turns);
    pieces.flat_map(|(offset, bytes)| offset..offset + bytes as i64).collect()
}

/// A type made at random, and the offsets of its bytes as MPI says them.
fn random(random: &mut Random, depth: u32) -> (Descriptor, Vec<i64>) {
    let (descriptor, bytes) = match random.below(if depth == 0 { 1 } else { 4 }) {
        0 => {
            let bytes = random.below(9);
            (Descriptor::contiguous(bytes).unwrap(), (0..bytes as i64).collect())
        }
        1 => {
            let (inner, own) = self::random(random, depth - 1);
            let (count, stride) = (random.below(5), random.below(60) as i64 - 20);
            let turns = (0..count as i64).flat_map(|turn| {
                own.iter().map(move |at| at + turn * stride).collect::<Vec<i64>>()
            });
            (inner.repeated(count, stride).unwrap(), turns.collect())
        }
        2 => {
            let parts: Vec<_> = (0..random.below(4))
                .map(|_| {
                    let by = random.below(100) as i64 - 50;
                    (by, self::random(random, depth - 1))
                })
                .collect();
            let named: Vec<(i64, &Descriptor)> =
                parts.iter().map(|(by, (part, _))| (*by, part)).collect();
            let bytes = parts.iter().flat_map(|(by, (_, own))| own.iter().map(move |at| at + by));
            (Descriptor::joined(&named).unwrap(), bytes.collect())
        }
        _ => {
            let (inner, own) = self::random(random, depth - 1);
            (inner.resized(random.below(40) as i64 - 10).unwrap(), own)
        }
    };
    (descriptor, bytes)
}

#[test]
fn a_walk_meets_the_bytes_of_a_type_in_order_from_wherever_it_begins() {
    let mut overlapping = [0; 2];
    for seed in 0..3000 {
        let mut dice = Random::from_seed(seed);
        let (descriptor, own) = random(&mut dice, 4);
        let count = dice.below(4);
        let extent = descriptor.extent();
        let turns = (0..count as i64).flat_map(|turn| own.iter().map(move |at| at + turn * extent));
        let all: Vec<i64> = turns.collect();
        assert_eq!(descriptor.len(), own.len() as u64, "seed {seed}");
        for from in 0..=all.len() + 1 {
            let rest = all.get(from..).unwrap_or_default();
            assert_eq!(flat(&descriptor, count, from as u64), rest, "seed {seed} from {from}");
            let runs = flat_runs(&descriptor, count, from as u64);
            assert_eq!(runs, rest, "seed {seed} from {from}");
        }
        let bounds = descriptor.bounds(count).expect("it is small");
        match (all.iter().min(), all.iter().max()) {
            (Some(least), Some(most)) => assert_eq!(bounds, *least..most + 1, "seed {seed}"),
            _ => assert_eq!(bounds, 0..0, "seed {seed}"),
        }
        let mut sorted = all.clone();
        sorted.sort_unstable();
        sorted.dedup();
        let overlaps = sorted.len() < all.len();
        assert_eq!(descriptor.may_overlap(count), overlaps, "seed {seed}");
        overlapping[usize::from(overlaps)] += 1;
        let sent = descriptor.encode();
        assert_eq!(Descriptor::decode(&sent).as_ref(), Ok(&descriptor), "seed {seed}");
    }
    assert!(overlapping.iter().all(|many| *many > 300), "{overlapping:?}");
}

#[test]
fn what_touches_is_one_piece() {
    let double = Descriptor::contiguous(8).unwrap();
    let row = double.repeated(100, 8).unwrap();
    assert_eq!(row.encode().len(), 8 + shape::NODE_BYTES, "one run");
    let matrix = row.repeated(50, 800).unwrap();
    assert_eq!(matrix.pieces(1, 0).collect::<Vec<_>>(), [Piece { offset: 0, bytes: 40_000 }]);
    let column = double.repeated(50, 800).unwrap();
    assert_eq!((column.len(), column.extent()), (400, 49 * 800 + 8));
    assert_eq!(column.pieces(1, 0).count(), 50);
    let columns = column.resized(8).unwrap();
    assert_eq!(columns.bounds(100), Some(0..40_000));
    assert!(!columns.may_overlap(100) && columns.clone().resized(4).unwrap().may_overlap(2));
    let halves = Descriptor::joined(&[(0, &double), (8, &double)]).unwrap();
    assert_eq!(halves.pieces(2, 4).collect::<Vec<_>>(), [Piece { offset: 4, bytes: 28 }]);
}

#[test]
fn what_reaches_too_far_or_is_too_large_is_none() {
    let byte = Descriptor::contiguous(1).unwrap();
    assert_eq!(Descriptor::contiguous(u64::MAX), Err(Malformed::TooFar));
    assert_eq!(byte.repeated(u64::MAX, 2), Err(Malformed::TooFar));
    assert_eq!(byte.repeated(2, i64::MIN), Err(Malformed::TooFar));
    assert_eq!(byte.repeated(u64::MAX, 0), Err(Malformed::TooFar), "as many bytes");
    assert_eq!(Descriptor::joined(&[(i64::MAX, &byte)]), Err(Malformed::TooFar));
    assert_eq!(byte.clone().resized(i64::MIN), Err(Malformed::TooFar));
    let far = byte.clone().resized(1 << 40).unwrap();
    assert_eq!((far.bounds(1 << 15).is_some(), far.bounds(1 << 17)), (true, None));
    let mut deep = byte.repeated(2, 3).unwrap();
    for level in 1..DEPTH_MAX {
        deep = deep.repeated(2, 3_i64.pow(level as u32 + 1)).unwrap();
    }
    assert_eq!(deep.pieces(1, 0).count(), 1 << DEPTH_MAX);
    assert_eq!(deep.repeated(2, 1 << 30), Err(Malformed::TooDeep));
    let scattered: Vec<(i64, &Descriptor)> = (0..1000).map(|at| (2 * at, &byte)).collect();
    let many = Descriptor::joined(&scattered).unwrap();
    assert_eq!(many.pieces(1, 0).count(), 1000);
    let most = NODES_HERE_MAX as u64 / 1000;
    let longest = Descriptor::blocks((0..most).map(|at| (at as i64 * 2000, 1, &many))).unwrap();
    assert_eq!(longest.pieces(1, 0).count() as u64, most * 1000);
    let both = [(0, &longest), (most as i64 * 2000, &many)];
    assert_eq!(Descriptor::joined(&both), Err(Malformed::TooMany));
    assert!(many.may_travel() && !longest.may_travel());
    // A peer sends no such one.
    let mut sent = many.encode();
    sent.extend_from_within(8..);
    assert_eq!(Descriptor::decode(&sent), Err(Malformed::TooLong));
}

/// The bytes of sections, in their order.
fn flat_sections(sections: &[Section], base: i64, found: &mut Vec<i64>) {
    for section in sections {
        match section {
            Section::Part(part) => {
                assert!(part.may_travel());
                found.extend(flat(part, 1, 0).into_iter().map(|at| base + at));
            }
            Section::Loop { offset, count, stride, turn } => (0..*count as i64)
                .for_each(|at| flat_sections(turn, base + offset + at * stride, found)),
        }
    }
}

#[test]
fn a_long_descriptor_is_walked_from_anywhere_and_cut_into_sections() {
    let mut random = Random::from_seed(11);
    let mut longest = 0;
    for round in 0..60 {
        // Lists of other descriptors, and loops around these.
        let parts: Vec<(Descriptor, Vec<i64>)> =
            (0..5).map(|_| self::random(&mut random, 2)).collect();
        let blocks: Vec<(i64, u64, usize)> = (0..200 * (round % 10))
            .map(|at| (at * 90, random.below(3), random.below(5) as usize))
            .collect();
        let list =
            Descriptor::blocks(blocks.iter().map(|&(at, many, of)| (at, many, &parts[of].0)));
        let list = list.unwrap();
        let turns = |&(at, many, of): &(i64, u64, usize)| {
            let (part, own) = &parts[of];
            let extent = part.extent();
            let turn = move |turn| own.iter().map(move |it| at + turn * extent + it);
            (0..many as i64).flat_map(turn)
        };
        let own: Vec<i64> = blocks.iter().flat_map(turns).collect();
        let twice = list.repeated(2, 1 << 20).unwrap();
        let both: Vec<i64> =
            [0, 1 << 20].iter().flat_map(|by| own.iter().map(move |at| by + at)).collect();
        for (descriptor, all) in [(&list, &own), (&twice, &both)] {
            assert!(flat(descriptor, 1, 0) == *all, "round {round}");
            for _ in 0..20 {
                let from = random.below(all.len() as u64 + 1);
                let some = descriptor.pieces(1, from).next();
                assert_eq!(some.map(|it| it.offset), all.get(from as usize).copied());
                assert!(flat(descriptor, 1, from) == all[from as usize..], "round {round}");
            }
            let mut found = Vec::new();
            flat_sections(&descriptor.sections(), 0, &mut found);
            assert!(found == *all, "round {round}");
            longest = longest.max(descriptor.sections().len());
        }
    }
    assert!(longest > 2, "{longest}");
}

#[test]
fn bytes_that_a_peer_makes_up_are_a_descriptor_that_holds_or_none() {
    let mut random = Random::from_seed(7);
    let mut found = [0; 2];
    for round in 0..40_000 {
        let (descriptor, _) = self::random(&mut random, 3);
        let mut bytes = descriptor.encode();
        for _ in 0..=random.below(3) {
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] = random.next_u64() as u8;
        }
        if round % 5 == 0 {
            bytes.truncate(random.below(bytes.len() as u64 + 1) as usize);
        }
        let Ok(descriptor) = Descriptor::decode(&bytes) else {
            found[0] += 1;
            continue;
        };
        found[1] += 1;
        let Some(bounds) = descriptor.bounds(2) else { continue };
        let from = random.below(descriptor.len().saturating_mul(2).max(1));
        for piece in descriptor.pieces(2, from).take(500) {
            let end = piece.offset + piece.bytes as i64;
            assert!(piece.bytes > 0 && bounds.start <= piece.offset && end <= bounds.end);
        }
        let _ = descriptor.may_overlap(2);
    }
    assert!(found.iter().all(|many| *many > 3000), "{found:?}");
}

#[test]
fn instances_without_gaps_are_one_piece_however_many_they_are() {
    let of = Descriptor::contiguous(8).unwrap();
    let pieces: Vec<Piece> = of.pieces(1 << 40, 20).collect();
    assert_eq!(pieces, [Piece { offset: 20, bytes: (8 << 40) - 20 }]);
}

#[test]
fn a_vector_is_one_run_from_its_second_piece_on() {
    let vector = Descriptor::contiguous(64).unwrap().repeated(1000, 128).unwrap();
    let run = |offset, bytes, stride, times| Run { offset, bytes, stride, times };
    assert_eq!(vector.runs(1, 0).collect::<Vec<_>>(), [run(0, 64, 128, 1000)]);
    let begun: Vec<Run> = vector.runs(1, 10).collect();
    assert_eq!(begun, [run(10, 54, 0, 1), run(128, 64, 128, 999)]);
}
