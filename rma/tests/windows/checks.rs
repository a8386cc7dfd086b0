//! The checking mode: misuse is told in words, and what MPI allows is not.

use ropewalk_base::error::Class;
use ropewalk_rma::{
    Asserts, Cells, Datatype, Destination, Element, Error, LockKind, Operator, Source, Target,
    Window, WindowOptions,
};

use crate::common::{Rank, Setup, ranks};

const NONE: Asserts = Asserts::NONE;

fn window(own: &Rank, bytes: usize, same_op: bool) -> Window {
    let options = WindowOptions { check: true, same_op, ..own.setup.options("checked") };
    own.team.allocate(bytes, &options).expect("all ranks make the same")
}

/// Two ranks, of which rank 0 works on rank 1.
fn origin(setup: Setup, same_op: bool, work: impl Fn(&Window) + Sync) {
    ranks(setup, 2, |own| {
        let window = window(own, 4096, same_op);
        if own.rank == 0 {
            work(&window);
        }
        own.team.barrier().unwrap();
    });
}

/// Operations of one epoch, each on some bytes of rank 1.
#[derive(Debug, Clone, Copy)]
enum Step {
    Put(u64, u64),
    Get(u64, u64),
    Add(Element, u64),
    Max(Element, u64),
    Read(Element, u64),
    Swap(u64),
}

use Step::{Add, Get, Max, Put, Read, Swap};

/// Takes a step, whose results go to bytes of their own.
fn step(window: &Window, step: Step, back: &Cells, at: usize) -> Result<(), Error> {
    let byte = Datatype::of(Element::U8);
    let data = [1_u8; 64];
    let reduce = |element: Element, to: u64, operator: Operator| {
        let datatype = Datatype::of(element);
        let source = Source::slice(&data[..element.shape().extent], 1, &datatype);
        window.accumulate(source, Target::new(1, to, 1, &datatype), operator)
    };
    match step {
        Put(to, bytes) => {
            let source = Source::slice(&data[..bytes as usize], bytes, &byte);
            window.put(source, Target::new(1, to, bytes, &byte))
        }
        Get(from, bytes) => {
            let result = Destination::new(back, at, bytes, &byte);
            window.get(result, Target::new(1, from, bytes, &byte))
        }
        Add(element, to) => reduce(element, to, Operator::Sum),
        Max(element, to) => reduce(element, to, Operator::Max),
        Read(element, from) => {
            let datatype = Datatype::of(element);
            let result = Destination::new(back, at, 1, &datatype);
            let target = Target::new(1, from, 1, &datatype);
            window.fetch_and_op(None, result, target, Operator::Nothing)
        }
        Swap(to) => {
            let word = Datatype::of(Element::U64);
            let result = Destination::new(back, at, 1, &word);
            window.compare_and_swap(&[0; 8], &[1; 8], result, Target::new(1, to, 1, &word))
        }
    }
}

/// Pairs that may not be in one epoch, how that is told, and why.
fn wrong() -> [(Step, Step, &'static str, &'static str); 8] {
    let (word, float) = (Element::U64, Element::F64);
    let first = "complete that one first";
    [
        (
            Put(0, 8),
            Put(4, 8),
            "put on rank 1, bytes 4 to 11, overlaps put on rank 1, bytes 0 to 7, at bytes 4 to 7",
            first,
        ),
        (
            Put(0, 8),
            Get(7, 4),
            "get on rank 1, bytes 7 to 10, overlaps put on rank 1, bytes 0 to 7, at bytes 7 to 7",
            first,
        ),
        (
            Get(16, 8),
            Put(16, 8),
            "put on rank 1, bytes 16 to 23, overlaps get on rank 1, bytes 16 to 23, at bytes 16 to 23",
            first,
        ),
        (
            Put(0, 64),
            Add(word, 8),
            "accumulate (Sum of U64) on rank 1, bytes 8 to 15, overlaps put on rank 1, bytes 0 to 63, at bytes 8 to 15",
            first,
        ),
        (
            Add(word, 8),
            Get(0, 9),
            "get on rank 1, bytes 0 to 8, overlaps accumulate (Sum of U64) on rank 1, bytes 8 to 15, at bytes 8 to 8",
            first,
        ),
        (
            Read(word, 8),
            Put(8, 8),
            "put on rank 1, bytes 8 to 15, overlaps get_accumulate (Nothing of U64) on rank 1, bytes 8 to 15, at bytes 8 to 15",
            first,
        ),
        (
            Add(word, 8),
            Add(float, 8),
            "accumulate (Sum of F64) on rank 1, bytes 8 to 15, overlaps accumulate (Sum of U64) on rank 1, bytes 8 to 15, at bytes 8 to 15",
            "accumulates of one epoch have one type at a byte",
        ),
        (
            Add(word, 8),
            Add(word, 12),
            "accumulate (Sum of U64) on rank 1, bytes 12 to 19, overlaps accumulate (Sum of U64) on rank 1, bytes 8 to 15, at bytes 12 to 15",
            "their elements overlap in part",
        ),
    ]
}

pub fn operations_that_overlap_are_told(setup: Setup) {
    let word = Element::U64;
    let right = [
        (Put(0, 8), Put(8, 8)),
        (Get(0, 8), Get(4, 8)),
        (Get(0, 8), Read(word, 0)),
        (Add(word, 0), Add(word, 0)),
        (Add(word, 0), Max(word, 0)),
        (Add(word, 0), Swap(0)),
        (Read(word, 0), Swap(0)),
    ];
    origin(setup, false, |window| {
        let back = Cells::zeroed(64);
        for (one, two, words, why) in wrong() {
            window.lock(LockKind::Exclusive, 1, NONE).unwrap();
            step(window, one, &back, 0).unwrap();
            let error = step(window, two, &back, 32).unwrap_err();
            assert_eq!(error.to_string(), format!("window 0 (checked), rank 0: {words}: {why}"));
            assert_eq!(error.class(), Class::Caller);
            // It did not happen. Behind a flush it may.
            window.flush(1).unwrap();
            step(window, two, &back, 32).unwrap();
            window.unlock(1).unwrap();
            // So it may in an epoch of its own.
            window.lock_all(NONE).unwrap();
            step(window, one, &back, 0).unwrap();
            window.unlock_all().unwrap();
            window.lock_all(NONE).unwrap();
            step(window, two, &back, 32).unwrap();
            window.flush_local(1).unwrap();
            let is_get = matches!(two, Get(..));
            assert!(is_get || step(window, one, &back, 0).is_err(), "{one:?}: only here complete");
            window.unlock_all().unwrap();
        }
        for (one, two) in right {
            window.lock(LockKind::Exclusive, 1, NONE).unwrap();
            step(window, one, &back, 0).unwrap();
            step(window, two, &back, 32).unwrap();
            window.unlock(1).unwrap();
        }
        assert_eq!(window.unchecked(), 0);
    });
}

pub fn operators_of_a_window_that_promises_one_are_told(setup: Setup) {
    let word = Element::U64;
    origin(setup, true, |window| {
        let back = Cells::zeroed(64);
        window.lock(LockKind::Exclusive, 1, NONE).unwrap();
        step(window, Add(word, 0), &back, 0).unwrap();
        step(window, Read(word, 0), &back, 0).unwrap();
        let error = step(window, Max(word, 0), &back, 0).unwrap_err();
        assert_eq!(
            error.to_string(),
            "window 0 (checked), rank 0: accumulate (Max of U64) on rank 1, bytes 0 to 7, overlaps \
             accumulate (Sum of U64) on rank 1, bytes 0 to 7, at bytes 0 to 7: the window promises one \
             operator (same_op)"
        );
        window.unlock(1).unwrap();
    });
}

pub fn memory_that_two_operations_use_is_told(setup: Setup) {
    origin(setup, false, |window| {
        let (cells, byte) = (Cells::zeroed(256), Datatype::of(Element::U8));
        let base = cells.address().addr();
        let get = |at: usize, from: u64| {
            window.get(Destination::new(&cells, at, 16, &byte), Target::new(1, from, 16, &byte))
        };
        let put = |at: usize, to: u64| {
            window.put(Source::cells(&cells, at, 16, &byte), Target::new(1, to, 16, &byte))
        };
        let told = |outcome: Result<(), Error>, words: &str, from: usize, to: usize| {
            let (from, to) = (base + from, base + to - 1);
            let wanted = format!(
                "addresses {from:#x} to {to:#x} of this rank, as does {words}, and one of them writes there"
            );
            let error = outcome.unwrap_err().to_string();
            assert!(error.contains(&wanted), "{error} in place of {wanted}");
        };
        window.lock_all(NONE).unwrap();
        put(0, 0).unwrap();
        put(8, 100).unwrap();
        told(get(20, 200), "put on rank 1, bytes 100 to 115", 20, 24);
        get(32, 200).unwrap();
        told(get(40, 300), "get on rank 1, bytes 200 to 215", 40, 48);
        told(put(47, 400), "get on rank 1, bytes 200 to 215", 47, 48);
        window.flush_local(1).unwrap();
        put(47, 400).unwrap();
        get(20, 500).unwrap();
        window.flush(1).unwrap();
        // A request says when.
        let (result, target) =
            (Destination::new(&cells, 0, 16, &byte), Target::new(1, 0, 16, &byte));
        let request = window.rget(result, target).unwrap();
        told(put(0, 600), "get on rank 1, bytes 0 to 15", 0, 16);
        request.wait().unwrap();
        put(0, 600).unwrap();
        window.unlock_all().unwrap();
    });
}

pub fn columns_side_by_side_are_apart(setup: Setup) {
    origin(setup, false, |window| {
        let word = Datatype::of(Element::U64);
        let column = word.vector(32, 1, 4).unwrap();
        let data = vec![7; 32 * 32];
        window.lock(LockKind::Shared, 1, NONE).unwrap();
        let put = |number: u64| {
            let source = Source::slice(&data, 1, &column);
            window.put(source, Target::new(1, 8 * number, 1, &column))
        };
        (0..4).for_each(|number| put(number).unwrap());
        let error = put(2).unwrap_err().to_string();
        assert!(
            error.contains("overlaps put on rank 1, bytes 16 to 1015, at bytes 16 to 23"),
            "{error}"
        );
        window.unlock(1).unwrap();
    });
}

pub fn assertions_that_are_untrue_are_told(setup: Setup) {
    ranks(setup, 2, |own| {
        let mut window = window(own, 64, false);
        let (rank, other) = (own.rank, own.rank ^ 1);
        let byte = Datatype::of(Element::U8);
        let put = |window: &Window, to: u32| {
            window.put(Source::slice(&[1; 8], 8, &byte), Target::new(to, 0, 8, &byte))
        };
        let told = |outcome: Result<(), Error>, words: String| {
            let wanted = format!("window 0 (checked), rank {rank}: {words}");
            assert_eq!(outcome.unwrap_err().to_string(), wanted);
        };
        window.fence(NONE).unwrap();
        put(&window, other).unwrap();
        told(
            window.fence(Asserts::NO_PRECEDE),
            "a fence says that nothing precedes it (NO_PRECEDE), but operations were made since the last one: leave that out"
                .into(),
        );
        window.fence(Asserts::NO_SUCCEED).unwrap();
        told(
            put(&window, other),
            format!(
                "put on rank {other}, bytes 0 to 7, comes behind a fence that said NO_SUCCEED: leave that out"
            ),
        );
        let denied = format!(
            "put on rank {rank}, bytes 0 to 7, writes memory that nobody writes, as NO_PUT says: leave that out"
        );
        window.fence(Asserts::NO_PUT).unwrap();
        told(put(&window, rank), denied.clone());
        window.fence(Asserts::NO_SUCCEED).unwrap();
        window.post(&[0, 1], Asserts::NO_PUT).unwrap();
        window.start(&[rank], NONE).unwrap();
        told(put(&window, rank), denied);
        window.complete().unwrap();
        window.start(&[other], NONE).unwrap();
        window.complete().unwrap();
        window.wait().unwrap();
        window.start(&[], NONE).unwrap();
        window.complete().unwrap();
        // There is another reason now.
        let error = put(&window, other).unwrap_err();
        assert!(error.to_string().contains("needs an access epoch"), "{error}");
        window.lock(LockKind::Shared, other, NONE).unwrap();
        told(
            window.free(),
            format!("free within the epoch of lock of ranks [{other}]: end that one first"),
        );
        put(&window, other).unwrap();
        told(
            window.free(),
            format!(
                "free within the epoch of lock of ranks [{other}]: operations that are not complete: 1, the last \
                 one put on rank {other}, bytes 0 to 7"
            ),
        );
        window.unlock(other).unwrap();
        window.free().unwrap();
    });
}
