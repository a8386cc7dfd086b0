//! Jobs and copies on memory of which the end is gone. The tests of [`super::super`] have jobs on memory that is there.

use super::*;
use crate::error::Fault;
use crate::memory::guard::tests::Pages;
use crate::memory::{
    BufferTable, Cells, Change, Element, Gone, Job, Memory, Places, Slice, record,
};

const PAGE: usize = 4096;
/// Bytes that are there.
const THERE: usize = 2 * PAGE;

/// A region of which the second half is gone, and a memory of as many bytes beside it.
struct Bench {
    table: BufferTable,
    region: Slice,
    own: Slice,
    pages: Pages,
}

impl Bench {
    fn new() -> Bench {
        Bench::of(Pages::of_file(4, 2))
    }

    fn of(pages: Pages) -> Bench {
        let mut table = BufferTable::with_limit(4);
        // SAFETY: the pages are mapped as long as the table is there, or are known to be gone.
        let cells = unsafe { Cells::fleeting(pages.at(0), 2 * THERE) };
        assert!(cells.is_fleeting() && cells.is_there(0, THERE));
        assert!(!cells.is_there(THERE - 1, 2) && !cells.is_there(0, 2 * THERE + 1));
        assert!(cells.part(0..8).is_ok_and(|part| part.is_fleeting()));
        let board = Cells::zeroed(64);
        assert!(!board.is_fleeting() && board.is_there(0, 64));
        let memory = Memory::joined(vec![cells.all(), board.all()]);
        let mut insert = |memory: Memory| {
            let len = memory.len();
            Slice { buffer: table.insert(memory).expect("there is room"), offset: 0, len }
        };
        let region = insert(memory);
        let own = insert(Cells::copy_of(&[2; 2 * THERE]).all());
        assert!(table.is_fleeting(region) && !table.is_fleeting(own));
        Bench { table, region, own, pages }
    }

    fn apply(
        &self,
        change: Change,
        place: Slice,
        source: Slice,
        result: Option<Slice>,
    ) -> Result<[u8; 8], Fault> {
        self.table.apply(&Job { change, places: Places::One(place) }, source, result)
    }

    fn byte(&self, at: usize) -> u8 {
        let mut byte = [0];
        assert_eq!(self.table.read(self.region.part(at as u64, 1), &mut byte), 1);
        byte[0]
    }
}

#[test]
fn jobs_on_memory_that_is_gone_fail_and_those_beside_it_do_not() {
    for pages in [Pages::of_file(4, 2), Pages::new(2)] {
        let bench = Bench::of(pages);
        let (region, own) = (bench.region, bench.own);
        let nothing = own.part(0, 0);
        for element in Element::ALL {
            for operator in Operator::ALL {
                let Some(update) = Update::new(element, operator) else { continue };
                let bytes = update.extent() as u64;
                for count in [1, 3, 500.min(THERE / update.extent())] {
                    let sent = own.part(0, update.sent(count) as u64);
                    let result = own.part(THERE as u64, sent.len);
                    let len = bytes * count as u64;
                    for (at, is_there) in [
                        (THERE as u64 - len, true),
                        (THERE as u64 - len / bytes / 2 * bytes, false),
                        (THERE as u64, false),
                    ] {
                        // Half of one element is none.
                        let is_there = is_there || at + len == THERE as u64;
                        let place = region.part(at, len);
                        let done = bench.apply(Change::Update(update), place, sent, Some(result));
                        assert_eq!(done.is_ok(), is_there, "{update:?} {count} {done:?}");
                        if operator != Operator::Nothing {
                            let done = bench.apply(Change::Update(update), place, sent, None);
                            assert_eq!(done.is_ok(), is_there, "{update:?} {count} {done:?}");
                        }
                    }
                }
                if update.sent(1) <= 8 {
                    let one = Change::One { update, operand: [1; 8] };
                    for (at, expected) in [(THERE as u64 - bytes, true), (THERE as u64, false)] {
                        let done = bench.apply(one, region.part(at, bytes), nothing, None);
                        assert_eq!(done.is_ok(), expected, "{update:?} {done:?}");
                    }
                }
            }
            if element.is_comparable() {
                let bytes = element.shape().extent as u64;
                let swap = Change::Swap { element, expected: [0; 8], desired: [9; 8] };
                for (at, is_there) in [(THERE - 16, true), (THERE, false), (THERE + 8, false)] {
                    let done = bench.apply(swap, region.part(at as u64, bytes), nothing, None);
                    assert_eq!(done.is_ok(), is_there, "{element:?}");
                    let odd = region.part(at as u64 + 1, bytes);
                    assert_eq!(bench.apply(swap, odd, nothing, None).is_ok(), is_there);
                }
            }
        }
    }
}

#[test]
fn bytes_before_the_gap_are_stored_and_the_store_fails() {
    let bench = Bench::new();
    let over = bench.region.part(THERE as u64 - 100, 200);
    let own = bench.own.part(0, 200);
    assert_eq!(bench.apply(Change::Store, over, own, None), Err(Fault::BadKey));
    assert_eq!(bench.apply(Change::Store, bench.region.part(8, 200), own, None), Ok([0; 8]));
    assert_eq!((bench.byte(8), bench.byte(207), bench.byte(208)), (2, 2, 1));
    // The board behind the memory that is gone is as good as ever.
    let board = bench.region.part(2 * THERE as u64 + 8, 8);
    let sum = Update::new(Element::U64, Operator::Sum).expect("it is defined");
    let add = Change::One { update: sum, operand: 5_u64.to_ne_bytes() };
    for before in [0_u64, 5] {
        let was = bench.apply(add, board, own.part(0, 0), None).map(u64::from_ne_bytes);
        assert_eq!(was, Ok(before));
    }
}

#[test]
fn records_of_which_one_has_no_place_fail() {
    let mut bench = Bench::new();
    for (at, is_there) in [(16, true), (THERE as u64 - 1, false), (THERE as u64 + 5, false)] {
        let mut bytes = record(0, 1).to_vec();
        bytes.push(7);
        bytes.extend(record(at, 3));
        bytes.extend([8, 8, 8]);
        let memory = Cells::copy_of(&bytes).all();
        let buffer = bench.table.insert(memory).expect("there is room");
        let source = Slice { buffer, offset: 0, len: bytes.len() as u64 };
        let done = bench.apply(Change::Records, bench.region, source, None);
        assert_eq!(done, if is_there { Ok([0; 8]) } else { Err(Fault::BadKey) });
        bench.table.remove(buffer);
    }
    assert_eq!((bench.byte(0), bench.byte(16), bench.byte(18), bench.byte(19)), (7, 8, 8, 1));
}

#[test]
fn copies_say_where_memory_is_gone() {
    let bench = Bench::new();
    let Bench { table, region, own, .. } = &bench;
    let mut bytes = [0; 64];
    for len in [1, 2, 3, 4, 8, 64] {
        let there = region.part(THERE as u64 - len, len);
        for (place, is_there) in [(there, true), (region.part(THERE as u64, len), false)]
            .into_iter()
            .chain((len > 1).then(|| (region.part(THERE as u64 - len / 2, len), false)))
        {
            let (source, space) = (own.part(0, len), &mut bytes[..len as usize]);
            assert_eq!(table.is_there(place), is_there);
            assert_eq!(table.try_copy(*own, place).is_ok(), is_there);
            assert_eq!(table.try_copy(place, source).is_ok(), is_there);
            assert_eq!(table.try_read(place, space).is_ok(), is_there);
            assert_eq!(table.try_write(place, space).is_ok(), is_there);
            let outside = Segment::new(space.as_mut_ptr(), space.len());
            // SAFETY: a local array, in no table.
            assert_eq!(unsafe { table.fill(place, outside) }.is_ok(), is_there);
            let (right, told) = (crate::checksum::crc32c(space), table.crc32c(place));
            assert_eq!(right == told, is_there, "a checksum of {len} bytes");
        }
    }
    // Whole segments count: all of the memory is one.
    assert_eq!(table.try_copy(*region, *own), Err(Gone { done: 0 }));
    assert_eq!((table.copy(*region, *own), table.write(*region, &[1; THERE + 1])), (0, 0));
    assert!(table.is_there(own.part(0, 1)) && table.is_there(region.part(THERE as u64, 0)));
}

/// An origin swaps while the program adds, at the same word of memory that may go away.
#[test]
fn swaps_by_jobs_lose_no_addition_of_the_program() {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    const ROUNDS: u64 = 50_000;
    let bench = Bench::new();
    let place = bench.pages.at(64).expose_provenance();
    // SAFETY: the word is mapped as long as the bench is there, and is accessed atomically.
    let word = unsafe { AtomicU64::from_ptr(std::ptr::with_exposed_provenance_mut(place)) };
    word.store(0, Relaxed);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                word.fetch_add(1, Relaxed);
            }
        });
        let mut seen = 0_u64;
        let mut done = 0;
        while done < ROUNDS {
            let (expected, desired) = (seen.to_ne_bytes(), (seen + 1).to_ne_bytes());
            let swap = Change::Swap { element: Element::U64, expected, desired };
            let was = bench.apply(swap, bench.region.part(64, 8), bench.own.part(0, 0), None);
            let was = u64::from_ne_bytes(was.expect("it is there"));
            done += u64::from(was == seen);
            seen = if was == seen { seen + 1 } else { was };
        }
    });
    assert_eq!(word.load(Relaxed), 2 * ROUNDS);
}
