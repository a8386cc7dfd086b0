//! Dynamic windows: memory that ranks attach and detach, named by its addresses.

use std::sync::atomic::{AtomicBool, Ordering};

use ropewalk_rma::{
    Asserts, BadArgument, Cells, Datatype, Destination, Element, Error, LockKind, Operator,
    Refusal, Source, Target, Window, WindowOptions,
};

use crate::common::{Rank, Setup, bytes, pattern, ranks};

const NONE: Asserts = Asserts::NONE;

fn window(own: &Rank) -> Window {
    let options = WindowOptions { counters: 1, ..own.setup.options("dynamic") };
    own.team.create_dynamic(&options).expect("all ranks make the same")
}

/// Tells all ranks an address, and learns theirs.
fn addresses(own: &Rank, address: u64) -> Vec<u64> {
    let all = own.team.exchange(&address.to_le_bytes()).expect("nobody is lost");
    all.iter().map(|it| u64::from_le_bytes(it[..].try_into().expect("8 bytes"))).collect()
}

fn put(window: &Window, to: u32, at: u64, data: &[u8]) -> Result<(), Error> {
    let byte = Datatype::of(Element::U8);
    let count = data.len() as u64;
    window.put(Source::slice(data, count, &byte), Target::new(to, at, count, &byte))
}

fn add(window: &Window, to: u32, at: u64, value: u64) -> Result<(), Error> {
    let word = Datatype::of(Element::U64);
    let bytes = value.to_ne_bytes();
    let source = Source::slice(&bytes, 1, &word);
    window.accumulate(source, Target::new(to, at, 1, &word), Operator::Sum)
}

fn is_unattached(outcome: &Result<(), Error>, rank: u32) -> bool {
    matches!(outcome, Err(Error::Refused { rank: it, refusal: Refusal::Unattached { .. }, .. }) if *it == rank)
}

pub fn operations_of_all_kinds_find_their_addresses(setup: Setup) {
    const LONG: usize = 400_000;
    ranks(setup, 3, |own| {
        let mut window = window(own);
        let (left, right) = ((own.rank + 2) % 3, (own.rank + 1) % 3);
        let cells = Cells::zeroed(LONG + 4096);
        // It begins within the cells.
        let at = addresses(own, window.attach(&cells, 64..cells.len()).unwrap());
        let (byte, word) = (Datatype::of(Element::U8), Datatype::of(Element::U64));
        let data = Cells::copy_of(&pattern(u64::from(own.rank), LONG));
        let to = at[right as usize];
        let gaps = word.vector(1000, 1, 2).unwrap();
        for round in 0..3 {
            window.fence(NONE).unwrap();
            put(&window, right, to, &[own.rank as u8 + 1; 24]).unwrap();
            let target = Target::new(right, to + 4096 - 64, LONG as u64, &byte);
            window.put(Source::cells(&data, 0, LONG as u64, &byte), target).unwrap();
            window.fence(NONE).unwrap();
            assert!(bytes(&cells)[64..88] == [left as u8 + 1; 24], "round {round}");
            assert!(bytes(&cells)[4096..] == pattern(u64::from(left), LONG), "round {round}");
            // With gaps at the target, then gaps at both sides, in an epoch of start.
            window.fence(Asserts::NO_SUCCEED).unwrap();
            window.post(&[left], NONE).unwrap();
            window.start(&[right], NONE).unwrap();
            let spread = pattern(99 + u64::from(own.rank), 8000);
            let target = Target::new(right, to + 128, 1, &gaps);
            window.put(Source::slice(&spread, 1000, &word), target).unwrap();
            window.complete().unwrap();
            window.wait().unwrap();
            let wanted = pattern(99 + u64::from(left), 8000);
            let here = bytes(&cells);
            let all = (0..1000).all(|it| here[192 + 16 * it..][..8] == wanted[8 * it..][..8]);
            assert!(all, "round {round}");
            own.team.barrier().unwrap();
            window.lock(LockKind::Shared, right, NONE).unwrap();
            let back = Cells::zeroed(16_000);
            let target = Target::new(right, to + 128, 1, &gaps);
            window.get(Destination::new(&back, 0, 1, &gaps), target).unwrap();
            window.flush(right).unwrap();
            let all = (0..1000).all(|it| bytes(&back)[16 * it..][..8] == spread[8 * it..][..8]);
            assert!(all, "round {round}");
            window.unlock(right).unwrap();
            own.team.barrier().unwrap();
            cells.write(64, &[0; 8192]).unwrap();
        }
        let total = accumulates(own, &window, &at);
        window.fence(NONE).unwrap();
        window.fence(Asserts::NO_SUCCEED).unwrap();
        let here = cells.load::<u64>(64).unwrap();
        assert_eq!(here, if own.rank == 0 { total } else { 0 });
        assert_eq!(window.extent_of(right), (0, 1));
        // What is attached goes with the window.
        window.free().unwrap();
    });
}

/// All ranks add at rank 0, by every call. Gives what is there at the end.
fn accumulates(own: &Rank, window: &Window, at: &[u64]) -> u64 {
    let word = Datatype::of(Element::U64);
    let (to, back) = (at[0], Cells::zeroed(80));
    own.team.barrier().unwrap();
    window.lock_all(NONE).unwrap();
    for _ in 0..20 {
        add(window, 0, to, 1).unwrap();
        let one = 1u64.to_ne_bytes();
        let (source, target) = (Source::slice(&one, 1, &word), Target::new(0, to, 1, &word));
        let result = Destination::new(&back, 0, 1, &word);
        window.fetch_and_op(Some(source), result, target, Operator::Sum).unwrap();
        let many = [1u64; 10].map(u64::to_ne_bytes).concat();
        let (source, target) = (Source::slice(&many, 10, &word), Target::new(0, to, 10, &word));
        let result = Destination::new(&back, 0, 10, &word);
        window.get_accumulate(Some(source), result, target, Operator::Sum).unwrap();
    }
    window.flush(0).unwrap();
    loop {
        let target = Target::new(0, to, 1, &word);
        let result = Destination::new(&back, 0, 1, &word);
        window.fetch_and_op(None, result, target, Operator::Nothing).unwrap();
        window.flush(0).unwrap();
        let seen = back.load::<u64>(0).unwrap();
        let (expected, desired) = (seen.to_ne_bytes(), (seen + 1).to_ne_bytes());
        window.compare_and_swap(&expected, &desired, result, target).unwrap();
        window.flush(0).unwrap();
        if back.load::<u64>(0) == Some(seen) {
            break;
        }
    }
    window.unlock_all().unwrap();
    3 * (3 * 20 + 1)
}

pub fn a_range_has_to_lie_in_one_region(setup: Setup) {
    ranks(setup, 2, |own| {
        let window = window(own);
        let cells = Cells::zeroed(256);
        // Side by side, which makes them no single one.
        let first = window.attach(&cells, 64..128).unwrap();
        assert_eq!(window.attach(&cells, 128..192).unwrap(), first + 64);
        let at = addresses(own, first);
        if own.rank == 0 {
            let (word, twice) = (Datatype::of(Element::U64), Datatype::of(Element::U64));
            let twice = twice.hvector(2, 1, 64).unwrap();
            window.lock(LockKind::Exclusive, 1, NONE).unwrap();
            put(&window, 1, at[1], &[1; 64]).unwrap();
            put(&window, 1, at[1] + 64, &[2; 64]).unwrap();
            window.flush(1).unwrap();
            let wrong: [&dyn Fn() -> Result<(), Error>; 6] = [
                &|| put(&window, 1, at[1] + 60, &[9; 8]),
                &|| put(&window, 1, at[1] - 1, &[9; 8]),
                &|| put(&window, 1, at[1] + 125, &[9; 4]),
                &|| put(&window, 1, 8, &[9; 4]),
                &|| add(&window, 1, at[1] + 128, 9),
                &|| {
                    let source = Source::slice(&[9; 16], 2, &word);
                    window.put(source, Target::new(1, at[1], 1, &twice))
                },
            ];
            for operation in wrong {
                operation().unwrap();
                // It is refused by itself.
                add(&window, 1, at[1] + 64, 0).unwrap();
                let refused = window.flush(1);
                assert!(is_unattached(&refused, 1), "{refused:?}");
            }
            put(&window, 1, at[1] + 60, &[9; 8]).unwrap();
            let words = window.unlock(1).unwrap_err().to_string();
            let from = at[1] + 60;
            assert_eq!(
                words,
                format!(
                    "window 0 (dynamic): rank 1 refused a put of 8 bytes from address {from:#x} on: \
                     they are not in one region that it has attached"
                )
            );
            // A request tells of its own. No bytes lie anywhere.
            window.lock(LockKind::Shared, 1, NONE).unwrap();
            let (back, byte) = (Cells::zeroed(80), Datatype::of(Element::U8));
            let target = Target::new(1, at[1], 80, &byte);
            let request = window.rget(Destination::new(&back, 0, 80, &byte), target).unwrap();
            assert!(is_unattached(&request.wait(), 1));
            put(&window, 1, 5, &[]).unwrap();
            assert!(is_unattached(&window.unlock(1), 1));
        }
        own.team.barrier().unwrap();
        if own.rank == 1 {
            let wanted = [vec![0; 64], vec![1; 64], vec![2; 64], vec![0; 64]].concat();
            assert_eq!(bytes(&cells), wanted);
        }
        own.team.barrier().unwrap();
    });
}

pub fn memory_that_is_attached_anew_is_found_again(setup: Setup) {
    ranks(setup, 3, |own| {
        let window = window(own);
        let (cells, other) = (Cells::zeroed(8 << 10), Cells::zeroed(64));
        let word = Datatype::of(Element::U64);
        let keeps = window.attach(&other, 0..64).unwrap();
        let keeps = addresses(own, keeps)[0];
        let mut address = window.attach(&cells, 0..cells.len()).unwrap();
        let at = addresses(own, address)[0];
        let operators = [Operator::Sum, Operator::Replace, Operator::Max];
        for round in 0..20_u64 {
            if own.rank == 0 {
                // The same addresses, by another key; sometimes within a longer region.
                window.detach(address).unwrap();
                let begin = if round % 2 == 0 { 0 } else { 8 };
                address = window.attach(&cells, begin..cells.len()).unwrap();
                cells.write(0, &vec![0; cells.len()]).unwrap();
            }
            own.team.barrier().unwrap();
            if own.rank > 0 {
                let back = Cells::zeroed(8 * 50);
                window.lock_all(NONE).unwrap();
                let place = at + 512 * u64::from(own.rank);
                for step in 0..50_u64 {
                    let operand = (step * 7 + round).to_ne_bytes();
                    let (source, target) =
                        (Source::slice(&operand, 1, &word), Target::new(0, place, 1, &word));
                    let operator = operators[step as usize % 3];
                    let result = Destination::new(&back, 8 * step as usize, 1, &word);
                    window.get_accumulate(Some(source), result, target, operator).unwrap();
                    // The others do not have to go again, and add up.
                    add(&window, 0, keeps, 1).unwrap();
                }
                window
                    .put_notify(
                        Source::slice(&[7; 8], 1, &word),
                        Target::new(0, place + 8, 1, &word),
                        0,
                    )
                    .unwrap();
                window.unlock_all().unwrap();
                let mut value = 0_u64;
                for step in 0..50_u64 {
                    assert_eq!(back.load::<u64>(8 * step as usize), Some(value), "step {step}");
                    let operand = step * 7 + round;
                    value = match step % 3 {
                        0 => value + operand,
                        1 => operand,
                        _ => value.max(operand),
                    };
                }
            } else {
                window.wait_notices(0, 2 * (round + 1)).unwrap();
                for rank in [1, 2] {
                    assert_eq!(cells.load::<u64>(512 * rank + 8), Some(0x0707_0707_0707_0707));
                }
                // Both are out of their epochs.
            }
            own.team.barrier().unwrap();
        }
        assert_eq!(other.load::<u64>(0), Some(if own.rank == 0 { 20 * 2 * 50 } else { 0 }));
        own.team.barrier().unwrap();
    });
}

pub fn nothing_is_written_after_a_detach(setup: Setup) {
    const BYTES: usize = 100_000;
    // Rank 1 has detached its memory for good; rank 0 was refused; rank 1 has attached it for good.
    let [gone, refused_once, back] = [const { AtomicBool::new(false) }; 3];
    ranks(setup, 2, |own| {
        let window = window(own);
        let cells = Cells::zeroed(BYTES);
        let at = addresses(own, cells.address().addr() as u64)[1];
        if own.rank == 0 {
            window.lock(LockKind::Shared, 1, NONE).unwrap();
            let (mut refused, mut done, mut number) = (0, 0, 0_u8);
            // While memory comes and goes an update may be too late each time, or never.
            while !back.load(Ordering::Relaxed) || done == 0 {
                number = number.wrapping_add(1);
                put(&window, 1, at, &vec![number; if number % 2 == 0 { 8 } else { BYTES }])
                    .unwrap();
                add(&window, 1, at + 512, 1).unwrap();
                match window.flush(1) {
                    Ok(()) => done += 1,
                    outcome => {
                        let is_gone = matches!(
                            &outcome,
                            Err(Error::Refused { refusal: Refusal::Window { .. }, .. })
                        );
                        assert!(is_gone || is_unattached(&outcome, 1), "{outcome:?}");
                        refused += 1;
                    }
                }
                refused_once.store(gone.load(Ordering::Relaxed) && refused > 0, Ordering::Relaxed);
            }
            window.unlock(1).unwrap();
        } else {
            for _ in 0..40 {
                let address = window.attach(&cells, 0..BYTES).unwrap();
                assert_eq!(address, at);
                let before = bytes(&cells);
                // Something comes.
                while bytes(&cells) == before {
                    own.team.progress();
                }
                window.detach(address).unwrap();
                let after = bytes(&cells);
                (0..50).for_each(|_| {
                    own.team.progress();
                    std::thread::yield_now();
                });
                assert!(bytes(&cells) == after, "it was written after it was detached");
            }
            gone.store(true, Ordering::Relaxed);
            while !refused_once.load(Ordering::Relaxed) {
                own.team.progress();
            }
            window.attach(&cells, 0..BYTES).unwrap();
            back.store(true, Ordering::Relaxed);
        }
        own.team.barrier().unwrap();
    });
}

pub fn many_regions_come_and_go(setup: Setup) {
    const REGIONS: usize = 1024;
    ranks(setup, 2, |own| {
        let window = window(own);
        let cells = Cells::zeroed(REGIONS * 32 + 32);
        let region = |number: usize| 32 * number..32 * number + 16;
        let base = cells.address().addr() as u64;
        for number in 0..REGIONS {
            window.attach(&cells, region(number)).unwrap();
        }
        let most = BadArgument::Regions { most: REGIONS };
        let refused = window.attach(&cells, region(REGIONS)).unwrap_err();
        assert!(matches!(refused, Error::Argument { argument, .. } if argument == most));
        let at = addresses(own, base)[own.rank as usize ^ 1];
        window.lock_all(NONE).unwrap();
        for number in 0..REGIONS as u64 {
            put(&window, own.rank ^ 1, at + 32 * number, &number.to_ne_bytes()).unwrap();
        }
        window.unlock_all().unwrap();
        own.team.barrier().unwrap();
        let all = (0..REGIONS).all(|it| cells.load::<u64>(32 * it) == Some(it as u64));
        assert!(all);
        for number in (0..REGIONS).step_by(2) {
            window.detach(base + 32 * number as u64).unwrap();
        }
        own.team.barrier().unwrap();
        window.lock_all(NONE).unwrap();
        for number in 0..REGIONS as u64 {
            put(&window, own.rank ^ 1, at + 32 * number, &[255; 8]).unwrap();
        }
        let refused = window.unlock_all();
        let further = REGIONS as u64 / 2 - 1;
        assert!(is_unattached(&refused, own.rank ^ 1), "{refused:?}");
        assert!(matches!(refused, Err(Error::Refused { further: it, .. }) if it == further));
        own.team.barrier().unwrap();
        for number in 0..REGIONS {
            let wanted = if number % 2 == 0 { number as u64 } else { u64::MAX };
            assert_eq!(cells.load::<u64>(32 * number), Some(wanted));
        }
        own.team.barrier().unwrap();
    });
}

pub fn wrong_attachments_are_told(setup: Setup) {
    ranks(setup, 2, |own| {
        let plain = own.window(64);
        let mut window = window(own);
        let cells = Cells::zeroed(100);
        let base = cells.address().addr() as u64;
        let told = |outcome: Result<(), Error>, wanted: BadArgument| match outcome {
            Err(Error::Argument { argument, .. }) => assert_eq!(argument, wanted),
            other => panic!("{other:?} in place of {wanted:?}"),
        };
        told(plain.attach(&cells, 0..8).map(drop), BadArgument::NotDynamic);
        told(plain.detach(base), BadArgument::NotDynamic);
        told(window.detach(base), BadArgument::NotAttached(base));
        window.attach(&cells, 8..16).unwrap();
        let twice = BadArgument::Attached { address: base + 15, bytes: 8 };
        told(window.attach(&cells, 15..23).map(drop), twice);
        told(window.detach(base + 9), BadArgument::NotAttached(base + 9));
        assert!(matches!(
            window.attach(&cells, 99..101),
            Err(Error::Argument { argument: BadArgument::Range(_), .. })
        ));
        window.detach(base + 8).unwrap();
        told(window.detach(base + 8), BadArgument::NotAttached(base + 8));
        // Nothing may be attached, too.
        assert_eq!(window.attach(&cells, 4..4), Ok(base + 4));
        window.detach(base + 4).unwrap();
        own.team.barrier().unwrap();
        window.free().unwrap();
        assert!(matches!(window.attach(&cells, 0..8), Err(Error::Misuse { .. })));
        let units = WindowOptions { displacement_unit: 8, ..own.setup.options("units") };
        told(own.team.create_dynamic(&units).map(drop), BadArgument::DynamicUnit(8));
        let options = own.setup.options("kinds");
        let made = match own.rank {
            0 => own.team.create_dynamic(&options),
            _ => own.team.create(&cells, 0..0, &options),
        };
        let words = made.map(drop).unwrap_err().to_string();
        let other = own.rank ^ 1;
        assert_eq!(
            words,
            format!("window 3 (kinds): rank {other} made it with another kind: dynamic, or not")
        );
    });
}

pub fn a_rank_that_is_lost_holds_no_memory_back(setup: Setup) {
    let met = std::sync::Barrier::new(3);
    ranks(setup, 3, |own| {
        let window = window(own);
        let cells = Cells::zeroed(1 << 20);
        let address = window.attach(&cells, 0..1 << 20).unwrap();
        let at = addresses(own, address);
        window.lock_all(NONE).unwrap();
        for to in 0..3 {
            put(&window, to, at[to as usize] + 8 * u64::from(own.rank), &[1; 8]).unwrap();
        }
        window.flush_all().unwrap();
        own.team.barrier().unwrap();
        // What says so to others may be lost on its way, and lost with its sender.
        met.wait();
        if own.rank == 2 {
            // It goes with operations under way to the others.
            for to in 0..2 {
                put(&window, to, at[to as usize], &vec![7; 1 << 20]).unwrap();
            }
            return own.endpoint.close();
        }
        let lost = loop {
            put(&window, 2, at[2] + 64, &[9; 8]).and(window.flush(2)).unwrap_or_else(|error| {
                assert!(matches!(error, Error::Lost { rank: 2, .. }), "{error}");
            });
            if let Err(error) = window.flush(2) {
                break error;
            }
        };
        assert!(matches!(lost, Error::Lost { rank: 2, .. }), "{lost}");
        window.detach(address).unwrap();
        let after = bytes(&cells);
        own.team.progress();
        assert!(bytes(&cells) == after);
    });
}
