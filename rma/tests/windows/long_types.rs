//! Types of more pieces than travel at a time: they go in sections, and no call shows it.

use ropewalk_rma::{
    Asserts, Cells, Datatype, Destination, Element, Error, LockKind, Operator, Refusal, Source,
    Target, Window,
};

use crate::common::{Rank, Setup, bytes, ranks};

/// Blocks of the types here: more than a peer keeps of one type.
fn blocks(setup: Setup) -> i64 {
    if crate::is_slow_by_pieces(setup) { 2500 } else { 10_000 }
}

const WORD: usize = size_of::<u32>();
/// Words of a window. The longer types here reach over three quarters of it.
const WORDS: usize = 80_000;

/// Blocks of one to three words with gaps that differ.
fn target_type(setup: Setup) -> Datatype {
    let block = |it: i64| (1 + it as u64 % 3, it * 5 + it * it % 3 % 2);
    let blocks: Vec<(u64, i64)> = (0..blocks(setup)).map(block).collect();
    Datatype::of(Element::U32).indexed(&blocks).expect("there are not too many")
}

/// As many words in other blocks, of which the last ones come first.
fn origin_type(elements: u64) -> Datatype {
    let (mut blocks, mut left, mut at) = (Vec::new(), elements, 75_000);
    while left > 0 {
        let many = left.min(1 + at as u64 % 4);
        at -= many as i64 + 1;
        blocks.push((many, at));
        left -= many;
    }
    assert!(blocks.len() as u64 > elements / 4 && at >= 0);
    Datatype::of(Element::U32).indexed(&blocks).expect("there are not too many")
}

/// The places of a type's words, in their order.
fn places(datatype: &Datatype, count: u64) -> Vec<usize> {
    let pieces = datatype.descriptor().pieces(count, 0);
    let words = pieces.flat_map(|it| (it.offset..it.offset + it.bytes as i64).step_by(WORD));
    words.map(|at| at as usize / WORD).collect()
}

fn words(cells: &Cells) -> Vec<u32> {
    bytes(cells).as_chunks().0.iter().map(|it| u32::from_ne_bytes(*it)).collect()
}

fn cells(words: impl Iterator<Item = u32>) -> Cells {
    Cells::copy_of(&words.flat_map(u32::to_ne_bytes).collect::<Vec<u8>>())
}

/// A window of which each word has its number, and what becomes of it.
struct Bench {
    window: Window,
    model: Vec<u32>,
    to: u32,
}

impl Bench {
    fn new(own: &Rank) -> Bench {
        let window = own.window(WORDS * WORD);
        let model: Vec<u32> = (0..WORDS as u32).collect();
        let begin = cells(model.iter().copied());
        window.cells().write(0, &bytes(&begin)).expect("it is as long");
        own.team.barrier().expect("nobody is lost");
        Bench { window, model, to: own.rank ^ 1 }
    }

    /// Both ranks did the same to each other.
    fn compare(&self, own: &Rank, what: &str) {
        own.team.barrier().expect("nobody is lost");
        self.window.sync().expect("it is there");
        assert!(words(self.window.cells()) == self.model, "{what}");
        own.team.barrier().expect("nobody is lost");
    }
}

pub fn types_of_many_blocks_are_put_got_and_combined_at_their_places(setup: Setup) {
    ranks(setup, 2, |own| {
        let mut bench = Bench::new(own);
        let there = target_type(setup);
        let elements = there.elements().expect("they are of one kind");
        let here = origin_type(elements);
        let (at, from) = (places(&there, 1), places(&here, 1));
        let data = cells((0..WORDS as u32).map(|it| it * 7 + 3));
        let sent = words(&data);
        let to = bench.to;
        let source = Source::cells(&data, 0, 1, &here);
        let target = Target::new(to, 0, 1, &there);
        bench.window.lock_all(Asserts::NONE).expect("no epoch");
        // Without a flush between them: accumulates keep their order.
        bench.window.accumulate(source, target, Operator::Replace).expect("it may");
        bench.window.accumulate(source, target, Operator::Sum).expect("it may");
        bench.window.flush(to).expect("it was done");
        at.iter().zip(&from).for_each(|(at, from)| bench.model[*at] = 2 * sent[*from]);
        bench.compare(own, "accumulates");
        // The former values come back into another type.
        let back = Cells::zeroed(WORDS * WORD);
        let result = Destination::new(&back, 0, 1, &here);
        bench.window.get_accumulate(Some(source), result, target, Operator::Max).expect("it may");
        bench.window.flush(to).expect("it was done");
        let mut want = vec![0; WORDS];
        at.iter().zip(&from).for_each(|(at, from)| {
            want[*from] = bench.model[*at];
            bench.model[*at] = bench.model[*at].max(sent[*from]);
        });
        assert!(words(&back) == want, "what it was");
        bench.compare(own, "get_accumulate");
        // From words side by side, and back to such.
        let flat = Datatype::of(Element::U32);
        bench.window.put(Source::cells(&data, 0, elements, &flat), target).expect("it may");
        bench.window.flush(to).expect("it was done");
        at.iter().zip(&sent).for_each(|(at, value)| bench.model[*at] = *value);
        bench.compare(own, "put");
        let result = Destination::new(&back, 0, elements, &flat);
        bench.window.get(result, target).expect("it may");
        bench.window.flush(to).expect("it was done");
        let many = elements as usize;
        assert!(words(&back)[..many] == sent[..many], "get");
        bench.window.unlock_all().expect("it was done");
        own.team.barrier().expect("nobody is lost");
    });
}

pub fn requests_with_types_of_many_blocks_end_with_their_last_part(setup: Setup) {
    ranks(setup, 2, |own| {
        let mut bench = Bench::new(own);
        let there = target_type(setup);
        let elements = there.elements().expect("they are of one kind");
        let here = origin_type(elements);
        let (at, from) = (places(&there, 1), places(&here, 1));
        let data = cells((0..WORDS as u32).map(|it| it * 11 + 1));
        let sent = words(&data);
        let to = bench.to;
        let (source, target) = (Source::cells(&data, 0, 1, &here), Target::new(to, 0, 1, &there));
        let back = Cells::zeroed(WORDS * WORD);
        let result = Destination::new(&back, 0, 1, &here);
        let came = |want: &dyn Fn(usize, usize) -> u32| {
            let found = words(&back);
            at.iter().zip(&from).all(|(at, from)| found[*from] == want(*at, *from))
        };
        bench.window.lock(LockKind::Exclusive, to, Asserts::NONE).expect("no epoch");
        bench.window.rget(result, target).expect("it may").wait().expect("it was done");
        assert!(came(&|at, _| at as u32), "rget");
        bench.window.rput(source, target).expect("it may").wait().expect("it was done");
        bench.window.flush(to).expect("it was done");
        let sum = bench.window.rget_accumulate(Some(source), result, target, Operator::Sum);
        sum.expect("it may").wait().expect("it was done");
        assert!(came(&|_, from| sent[from]), "rget_accumulate");
        bench
            .window
            .raccumulate(source, target, Operator::Sum)
            .expect("it may")
            .wait()
            .expect("it was");
        // A read among accumulates.
        let read = bench.window.rget_accumulate(None, result, target, Operator::Nothing);
        read.expect("it may").wait().expect("it was done");
        assert!(came(&|_, from| 3 * sent[from]), "a read");
        bench.window.unlock(to).expect("it was done");
        at.iter().zip(&from).for_each(|(at, from)| bench.model[*at] = 3 * sent[*from]);
        bench.compare(own, "all of them");
    });
}

pub fn long_types_are_judged_as_a_whole(setup: Setup) {
    ranks(setup, 2, |own| {
        let bench = Bench::new(own);
        let there = target_type(setup);
        let elements = there.elements().expect("they are of one kind");
        let flat = Datatype::of(Element::U32);
        let data = Cells::zeroed(WORDS * WORD);
        let source = Source::cells(&data, 0, elements, &flat);
        // All blocks but the last ones lie inside.
        let beyond = (WORDS * WORD) as u64 - there.true_bounds().end as u64 + 4;
        let target = Target::new(bench.to, beyond, 1, &there);
        bench.window.lock(LockKind::Exclusive, bench.to, Asserts::NONE).expect("no epoch");
        let refused = |ended: Result<(), Error>| match ended {
            Err(Error::Refused { refusal: Refusal::Bounds { bytes, .. }, .. }) => {
                assert_eq!(bytes as i64, there.true_bounds().end - there.true_bounds().start);
            }
            other => panic!("{other:?}"),
        };
        bench.window.put(source, target).expect("it is refused later");
        refused(bench.window.flush(bench.to));
        bench.window.accumulate(source, target, Operator::Replace).expect("it is refused later");
        refused(bench.window.flush(bench.to));
        let back = Cells::copy_of(&[9; 4 * WORDS]);
        let result = Destination::new(&back, 0, elements, &flat);
        let request = bench.window.rget(result, target).expect("it is refused later");
        refused(request.wait());
        bench.window.flush(bench.to).err().into_iter().for_each(|error| refused(Err(error)));
        assert!(bytes(&back).iter().all(|it| *it == 9), "nothing was fetched");
        bench.window.unlock(bench.to).expect("the rest was done");
        bench.compare(own, "nothing was written");
    });
}

pub fn loops_instances_and_pairs_of_long_types_keep_their_places(setup: Setup) {
    ranks(setup, 2, |own| {
        let mut bench = Bench::new(own);
        let to = bench.to;
        let flat = Datatype::of(Element::U32);
        let blocks: Vec<(u64, i64)> = (0..1500).map(|it| (1, it * 4 + it % 2)).collect();
        let long = flat.indexed(&blocks).expect("there are not too many");
        let long = long.resized(0, 7000 * WORD as i64).expect("it is near");
        let turns = long.hvector(3, 1, 24_008).expect("it is near");
        let data = cells((0..WORDS as u32).map(|it| it + 500_000));
        let sent = words(&data);
        bench.window.lock_all(Asserts::NONE).expect("no epoch");
        let all = [(&long, 5), (&turns, 1), (&turns, 2)];
        let few = [(&long, 1)];
        let is_slow = crate::is_slow_by_pieces(setup);
        for &(datatype, count) in if is_slow { &few[..] } else { &all } {
            let at = places(datatype, count);
            let source = Source::cells(&data, 0, at.len() as u64, &flat);
            let target = Target::new(to, 4 * WORD as u64, count, datatype);
            bench.window.put(source, target).expect("it may");
            bench.window.flush(to).expect("it was done");
            at.iter().zip(&sent).for_each(|(at, value)| bench.model[at + 4] = *value);
            bench.compare(own, "a put");
            bench.window.accumulate(source, target, Operator::Sum).expect("it may");
            bench.window.flush(to).expect("it was done");
            at.iter().zip(&sent).for_each(|(at, value)| bench.model[at + 4] = 2 * value);
            bench.compare(own, "an accumulate");
        }
        // Pairs with padding: two words of value, one of the index, and one that stays.
        let many = if is_slow { 1100_u64 } else { 3000 };
        let pair = Datatype::of(Element::F64Index);
        let at: Vec<i64> = (0..many as i64).map(|it| it * 2 + it % 2).collect();
        let pairs = pair.indexed_block(1, &at).expect("there are not too many");
        let own_pairs: Vec<u8> =
            (0..many).flat_map(|it| [[0; 8], (it << 32 | it).to_ne_bytes()]).flatten().collect();
        let target = Target::new(to, 0, 1, &pairs);
        let source = Source::slice(&own_pairs, many, &pair);
        bench.window.accumulate(source, target, Operator::Replace).expect("it may");
        bench.window.unlock_all().expect("it was done");
        for (number, place) in at.iter().enumerate() {
            bench.model[*place as usize * 4..][..3].copy_from_slice(&[0, 0, number as u32]);
        }
        bench.compare(own, "pairs");
    });
}

/// The first sections lie in one region, the last ones in another one beside it.
pub fn long_types_lie_in_one_region_of_a_dynamic_window(setup: Setup) {
    ranks(setup, 2, |own| {
        let to = own.rank ^ 1;
        let mut window = own.team.create_dynamic(&setup.options("dynamic")).expect("all make it");
        let memory = Cells::zeroed(WORDS * WORD);
        let here = memory.address().addr() as u64;
        let all = own.team.exchange(&here.to_le_bytes()).expect("nobody is lost");
        let far = u64::from_le_bytes(all[to as usize][..].try_into().expect("8 bytes"));
        let there = target_type(setup);
        let elements = there.elements().expect("they are of one kind");
        let flat = Datatype::of(Element::U32);
        let data = cells((0..elements as u32).map(|it| it + 1));
        let source = Source::cells(&data, 0, elements, &flat);
        let target = Target::new(to, far, 1, &there);
        // The type reaches from one region into the other.
        let half = (there.true_bounds().end as usize / 2).next_multiple_of(8);
        window.attach(&memory, 0..half).expect("there is room");
        window.attach(&memory, half..WORDS * WORD).expect("there is room");
        own.team.barrier().expect("nobody is lost");
        window.lock(LockKind::Shared, to, Asserts::NONE).expect("no epoch");
        for operator in [None, Some(Operator::Sum)] {
            match operator {
                None => window.put(source, target),
                Some(operator) => window.accumulate(source, target, operator),
            }
            .expect("it is refused later");
            let refused = window.flush(to);
            let is_unattached = |it: &Error| {
                matches!(it, Error::Refused { refusal: Refusal::Unattached { .. }, .. })
            };
            assert!(refused.as_ref().is_err_and(is_unattached), "{refused:?}");
        }
        own.team.barrier().expect("nobody is lost");
        assert!(bytes(&memory).iter().all(|it| *it == 0), "nothing was written");
        window.detach(here).expect("it is attached");
        window.detach(here + half as u64).expect("it is attached");
        window.attach(&memory, 0..WORDS * WORD).expect("there is room");
        own.team.barrier().expect("nobody is lost");
        window.put(source, target).expect("it may");
        window.flush(to).expect("it was done");
        window.accumulate(source, target, Operator::Sum).expect("it may");
        window.unlock(to).expect("it was done");
        own.team.barrier().expect("nobody is lost");
        let (found, sent) = (words(&memory), words(&data));
        assert!(places(&there, 1).iter().zip(&sent).all(|(at, it)| found[*at] == 2 * it));
        window.free().expect("nobody is lost");
    });
}
