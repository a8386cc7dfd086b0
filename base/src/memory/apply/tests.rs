//! Jobs on memory in pieces against the same operations on one array.

use super::*;
use crate::descriptor::Descriptor;
use crate::memory::{BufferId, Cells, Element, Memory, Operator, record};
use crate::pool::Pool;
use crate::random::Random;
use std::sync::Arc;

const REGION: usize = 600;

struct Bench {
    table: BufferTable,
    pool: Pool,
    random: Random,
    /// Memory may go away, though it does not.
    is_fleeting: bool,
    kept: Vec<Box<[u8]>>,
}

impl Bench {
    fn new(seed: u64) -> Bench {
        let pool = Pool::with_budget(1 << 20);
        let (table, random) = (BufferTable::with_limit(8), Random::from_seed(seed));
        let is_fleeting = seed / 4 % 3 == 1;
        Bench { table, pool, random, is_fleeting, kept: Vec::new() }
    }

    /// Memory with these bytes, cut into pieces at random.
    fn place(&mut self, bytes: &[u8]) -> Slice {
        let (mut pieces, mut rest) = (Vec::new(), bytes);
        while !rest.is_empty() {
            let most = if self.random.below(3) == 0 { 9 } else { bytes.len() as u64 };
            let many = (1 + self.random.below(most)).min(rest.len() as u64) as usize;
            let (piece, after) = rest.split_at(many);
            pieces.push(piece);
            rest = after;
        }
        let memory = match self.is_fleeting {
            true => Memory::joined(pieces.iter().map(|piece| self.fleeting(piece)).collect()),
            false => {
                let copy = |piece: &&[u8]| self.pool.copy_of(piece).expect("the pool has room");
                Memory::many(pieces.iter().map(copy).collect())
            }
        };
        let buffer = self.table.insert(memory).expect("the table has room");
        Slice { buffer, offset: 0, len: bytes.len() as u64 }
    }

    fn fleeting(&mut self, bytes: &[u8]) -> Memory {
        let mut kept: Box<[u8]> = bytes.into();
        // SAFETY: the bytes are as old as the table at least, and are not named again.
        let cells = unsafe { Cells::fleeting(kept.as_mut_ptr(), kept.len()) };
        self.kept.push(kept);
        cells.all()
    }

    fn bytes(&self, slice: Slice) -> Vec<u8> {
        let mut bytes = vec![0; slice.len as usize];
        self.table.read(slice, &mut bytes);
        bytes
    }

    /// Bytes of which integers, numbers and indices are small, so that some are equal.
    fn some(&mut self, bytes: usize) -> Vec<u8> {
        (0..bytes).map(|_| self.random.below(4) as u8).collect()
    }

    /// Some of the region: the job's places, and the offset of each byte.
    fn places(&mut self, region: Slice, extent: usize) -> (Places, Vec<usize>) {
        let count = 1 + self.random.below(6) as usize;
        let bytes = count * extent;
        if self.random.below(2) == 0 {
            let from = self.random.below((REGION - bytes) as u64 + 1);
            let slice = region.part(from, bytes as u64);
            return (Places::One(slice), (from as usize..from as usize + bytes).collect());
        }
        // Rows of some bytes, which need not be whole elements.
        loop {
            let row = 1 + self.random.below(2 * extent as u64);
            let stride = self.random.below(80) as i64 - 40;
            let turns = 1 + self.random.below(9);
            let row = Descriptor::contiguous(row).expect("a row is short");
            let shape = row.repeated(turns, stride).expect("few of them are near");
            let (data, bounds) = (shape.len() as usize, shape.bounds(1).expect("it is small"));
            if shape.may_overlap(1) || bounds.end - bounds.start > REGION as i64 || data < extent {
                continue;
            }
            let left = REGION as u64 - (bounds.end - bounds.start) as u64;
            let address = self.random.below(left + 1) as i64 - bounds.start;
            let many = 1 + self.random.below((data / extent) as u64) as usize;
            let from = self.random.below((data - many * extent) as u64 + 1);
            let pieces = shape.pieces(1, from);
            let all = pieces.flat_map(|it| it.offset..it.offset + it.bytes as i64);
            let offsets = all.map(|at| (address + at) as usize).take(many * extent).collect();
            let shape = Arc::new(shape);
            let bytes = (many * extent) as u64;
            return (Places::Shaped { region, address, shape, count: 1, from, bytes }, offsets);
        }
    }
}

fn segment(bytes: &mut [u8]) -> Segment {
    Segment::new(bytes.as_mut_ptr(), bytes.len())
}

fn updates() -> Vec<Update> {
    let all = Element::ALL.into_iter();
    let each = all.flat_map(|element| Operator::ALL.map(|operator| Update::new(element, operator)));
    each.flatten().collect()
}

#[test]
fn updates_of_memory_in_pieces_are_those_of_one_array() {
    let updates = updates();
    for seed in 0..if cfg!(miri) { 30 } else { 6000 } {
        let mut bench = Bench::new(seed);
        let update = updates[seed as usize % updates.len()];
        let mut want = bench.some(REGION);
        let region = bench.place(&want);
        let (places, offsets) = bench.places(region, update.extent());
        let count = offsets.len() / update.extent();
        let mut own = bench.some(update.sent(count));
        let source = bench.place(&own);
        let result = match bench.random.below(3) {
            0 => None,
            1 => Some(source),
            _ => Some(bench.place(&vec![9; own.len()])),
        };
        let mut target: Vec<u8> = offsets.iter().map(|at| want[*at]).collect();
        let mut before = vec![0; own.len()];
        let was = segment(&mut before);
        // SAFETY: arrays of this test.
        unsafe { update.apply(segment(&mut target), segment(&mut own), Some(was)) };
        offsets.iter().zip(&target).for_each(|(at, byte)| want[*at] = *byte);
        let job = Job { change: Change::Update(update), places };
        bench.table.apply(&job, source, result).expect("it fits");
        assert_eq!(bench.bytes(region), want, "seed {seed}: {job:?}");
        if let Some(result) = result {
            assert_eq!(bench.bytes(result), before, "seed {seed}: {job:?}");
        }
    }
}

#[test]
fn bytes_are_stored_in_pieces_in_their_order() {
    for seed in 0..if cfg!(miri) { 30 } else { 2000 } {
        let mut bench = Bench::new(seed);
        let mut want = bench.some(REGION);
        let region = bench.place(&want);
        let (places, offsets) = bench.places(region, 1 + seed as usize % 9);
        let mut own: Vec<u8> = (0..offsets.len()).map(|at| at as u8 + 100).collect();
        offsets.iter().zip(&own).for_each(|(at, byte)| want[*at] = *byte);
        let job = Job { change: Change::Store, places };
        if seed % 2 == 0 {
            let source = bench.place(&own);
            bench.table.apply(&job, source, None).expect("it fits");
        } else {
            // SAFETY: an array of this test, in no table.
            let done = unsafe { bench.table.apply_outside(&job, segment(&mut own), None) };
            done.expect("it fits");
        }
        assert_eq!(bench.bytes(region), want, "seed {seed}: {job:?}");
    }
}

#[test]
fn records_are_stored_in_their_order_or_none_of_them() {
    for seed in 0..if cfg!(miri) { 30 } else { 2000 } {
        let mut bench = Bench::new(seed);
        let mut want = bench.some(REGION);
        let region = bench.place(&want);
        let mut records = Vec::new();
        for _ in 0..bench.random.below(6) {
            let bytes = bench.random.below(20) as usize;
            let at = bench.random.below((REGION - bytes) as u64 + 1);
            let data = bench.some(bytes);
            records.extend(record(at, bytes as u32));
            records.extend(&data);
            want[at as usize..][..bytes].copy_from_slice(&data);
        }
        let job = Job { change: Change::Records, places: Places::One(region) };
        let refused = match seed % 4 {
            0 => None,
            1 => Some((record(REGION as u64, 1).to_vec(), Fault::BadKey)),
            2 => Some((record(u64::MAX, 1).to_vec(), Fault::BadKey)),
            _ => Some((record(0, 2).to_vec(), Fault::Invalid)),
        };
        if let Some((last, fault)) = refused {
            let mut wrong = records.clone();
            wrong.extend(&last);
            wrong.push(7);
            let (source, before) = (bench.place(&wrong), bench.bytes(region));
            assert_eq!(bench.table.apply(&job, source, None), Err(fault), "seed {seed}");
            let cut = Slice { len: source.len - 2, ..source };
            assert_eq!(bench.table.apply(&job, cut, None), Err(Fault::Invalid), "seed {seed}");
            assert_eq!(bench.bytes(region), before, "seed {seed}");
        }
        let source = bench.place(&records);
        assert_eq!(bench.table.apply(&job, source, None), Ok([0; 8]), "seed {seed}");
        assert_eq!(bench.bytes(region), want, "seed {seed}");
    }
}

#[test]
fn single_elements_tell_what_they_were_wherever_they_lie() {
    let mut bench = Bench::new(1);
    let region = bench.place(&[0; 64]);
    let none = Slice::NONE;
    let none = Slice { len: 0, ..none };
    for at in 0..56 {
        let places = Places::One(region.part(at, 8));
        let update = Update::new(Element::U64, Operator::Sum).expect("it is defined");
        let operand = 7u64.to_ne_bytes();
        let add = Job { change: Change::One { update, operand }, places: places.clone() };
        let first = bench.table.apply(&add, none, None).expect("it fits");
        let before = u64::from_ne_bytes(first);
        let now = before.wrapping_add(7);
        let swap = |expected: u64, desired: u64| {
            let (expected, desired) = (expected.to_ne_bytes(), desired.to_ne_bytes());
            let change = Change::Swap { element: Element::U64, expected, desired };
            let job = Job { change, places: places.clone() };
            u64::from_ne_bytes(bench.table.apply(&job, none, None).expect("it fits"))
        };
        assert_eq!(swap(before, 1), now, "byte {at}: it is not what was expected");
        assert_eq!(swap(now, 0), now, "byte {at}");
        assert_eq!(swap(0, 0), 0, "byte {at}");
    }
    let pair = Update::new(Element::I32Index, Operator::MinIndex).expect("it is defined");
    let [low, high] = [3i32, 4].map(i32::to_ne_bytes);
    let operand = [low, high].concat().try_into().expect("eight bytes");
    let job = Job {
        change: Change::One { update: pair, operand },
        places: Places::One(region.part(3, 8)),
    };
    assert_eq!(bench.table.apply(&job, none, None), Ok([0; 8]));
}

#[test]
fn what_does_not_fit_changes_nothing() {
    let mut bench = Bench::new(2);
    let before = bench.some(REGION);
    let region = bench.place(&before);
    let own = bench.place(&[1; 32]);
    let sum = Change::Update(Update::new(Element::I32, Operator::Sum).expect("it is defined"));
    let one = |offset, len| Places::One(Slice { buffer: region.buffer, offset, len });
    let row = Arc::new(Descriptor::contiguous(16).expect("it is short"));
    let rows = Arc::new(row.repeated(2, 100).expect("they are near"));
    let shaped = |address, count, from, bytes| Places::Shaped {
        region,
        address,
        shape: rows.clone(),
        count,
        from,
        bytes,
    };
    static CONSTANT: [u8; 32] = [5; 32];
    let constant = bench.table.insert(Memory::constant(&CONSTANT)).expect("there is room");
    let constant = Slice { buffer: constant, offset: 0, len: 32 };
    let gone = bench.place(&[0; 32]);
    bench.table.remove(gone.buffer);
    let refused = [
        (Change::Store, one(REGION as u64 - 31, 32), own, None, Fault::BadKey),
        (Change::Store, one(u64::MAX - 3, 32), own, None, Fault::BadKey),
        (Change::Store, Places::One(gone), own, None, Fault::BadKey),
        (Change::Store, Places::One(constant), own, None, Fault::BadKey),
        (Change::Store, one(0, 32), gone, None, Fault::Invalid),
        (Change::Store, one(0, 31), own, None, Fault::Invalid),
        (Change::Store, one(0, 32), own, Some(own), Fault::Invalid),
        (sum, one(0, 30), own, None, Fault::BadKey),
        (sum, one(0, 28), own, None, Fault::Invalid),
        (sum, one(0, 32), own, Some(own.part(0, 28)), Fault::Invalid),
        (sum, one(0, 32), own, Some(constant), Fault::Invalid),
        (sum, shaped(-1, 1, 0, 32), own, None, Fault::BadKey),
        (sum, shaped(REGION as i64 - 115, 1, 0, 32), own, None, Fault::BadKey),
        (sum, shaped(0, 1, 4, 32), own, None, Fault::BadKey),
        (sum, shaped(0, 1, u64::MAX, 32), own, None, Fault::BadKey),
        (sum, shaped(i64::MAX, 1, 0, 32), own, None, Fault::BadKey),
        (sum, shaped(0, u64::MAX, 0, 32), own, None, Fault::BadKey),
        (sum, shaped(0, 0, 0, 32), own, None, Fault::BadKey),
    ];
    for (change, places, source, result, fault) in refused {
        let job = Job { change, places };
        assert_eq!(bench.table.apply(&job, source, result), Err(fault), "{job:?}");
    }
    let element = Element::F64;
    let swap = Change::Swap { element, expected: [0; 8], desired: [0; 8] };
    let wide = Update::new(Element::Complex64, Operator::Sum).expect("it is defined");
    let wide = Change::One { update: wide, operand: [0; 8] };
    let nothing = Slice { len: 0, ..own };
    for (change, bytes) in [(swap, 8), (wide, 16)] {
        let job = Job { change, places: one(0, bytes) };
        assert_eq!(bench.table.apply(&job, nothing, None), Err(Fault::Invalid), "{job:?}");
        let job = Job { change, places: one(0, bytes + 1) };
        assert_eq!(bench.table.apply(&job, nothing, None), Err(Fault::BadKey), "{job:?}");
    }
    assert_eq!(bench.bytes(region), before);
    assert_eq!(bench.bytes(own), [1; 32]);
}

#[test]
fn nothing_at_all_is_done_at_once() {
    let mut bench = Bench::new(3);
    let region = bench.place(&[0; 8]);
    let nowhere = BufferId(Slice::NONE.buffer.0);
    let nothing = Slice { buffer: nowhere, offset: 0, len: 0 };
    let sum = Change::Update(Update::new(Element::I32, Operator::Sum).expect("it is defined"));
    for change in [Change::Store, sum] {
        let job = Job { change, places: Places::One(region.part(8, 0)) };
        assert_eq!(bench.table.apply(&job, nothing, None), Ok([0; 8]));
    }
}
