//! Counters of what operations cost: bytes that ranks copy, and regions that they register.

use ropewalk_rma::{Asserts, Cells, Datatype, Destination, Element, LockKind, Source, Target};

use crate::common::{Rank, Setup, pattern, ranks};
use crate::{DIRECT_TCP, MAPPED, TCP};

const NONE: Asserts = Asserts::NONE;
const BYTES: u64 = 4096;
const COUNT: u64 = 100;

/// A setup, and how often the origin and the target copy each byte of a put, and of a get.
const SETUPS: [(Setup, [u64; 2], [u64; 2]); 3] = [
    // The origin stores and loads by itself.
    (MAPPED, [1, 0], [1, 0]),
    // Short data of a put are kept, those of a get come to their place.
    (DIRECT_TCP, [1, 0], [0, 0]),
    // They go into a message and out of it.
    (TCP, [1, 1], [1, 1]),
];

/// Bytes that the windows of this rank copied, and regions that its endpoint registered.
fn so_far(own: &Rank) -> [u64; 2] {
    [own.team.bytes_copied(), own.endpoint.counters().0.regions_opened]
}

#[test]
fn copies_of_each_byte_are_counted_and_no_operation_registers_memory() {
    for (setup, put, get) in SETUPS {
        ranks(setup, 2, |own| {
            let mut window = own.window(1 << 16);
            let (byte, data) = (Datatype::of(Element::U8), pattern(3, BYTES as usize));
            let result = Cells::zeroed(BYTES as usize);
            let target = Target::new(1, 0, BYTES, &byte);
            for (puts, wanted) in [(true, put), (false, get)] {
                let operate = |count: u64| {
                    for _ in 0..count {
                        if puts {
                            window.put(Source::slice(&data, BYTES, &byte), target).unwrap();
                        } else {
                            let to = Destination::new(&result, 0, BYTES, &byte);
                            window.get(to, target).unwrap();
                        }
                        window.flush(1).unwrap();
                    }
                };
                if own.rank == 0 {
                    window.lock(LockKind::Shared, 1, NONE).unwrap();
                    // The first one is kept until the lock is here.
                    operate(1);
                }
                own.team.barrier().unwrap();
                let before = so_far(own);
                own.team.barrier().unwrap();
                if own.rank == 0 {
                    operate(COUNT);
                }
                own.team.barrier().unwrap();
                let after = so_far(own);
                // The next operation of rank 0 would come to the target within its barrier.
                own.team.barrier().unwrap();
                if own.rank == 0 {
                    window.unlock(1).unwrap();
                }
                let what = format!("{setup:?}, puts {puts}, rank {}", own.rank);
                let wanted = COUNT * BYTES * wanted[own.rank as usize];
                assert_eq!(after[0] - before[0], wanted, "{what}");
                assert_eq!(after[1], before[1], "{what}: regions were registered");
            }
            // Without it rank 1 could leave before it has answered the last unlock.
            window.free().unwrap();
            let mut found = vec![0; BYTES as usize];
            result.read(0, &mut found).unwrap();
            assert!(own.rank == 1 || found == data, "{setup:?}");
        });
    }
}
