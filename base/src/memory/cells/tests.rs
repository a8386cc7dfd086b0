use super::*;
use crate::memory::{BufferTable, Slice};

fn all<T: Value + PartialEq + fmt::Debug>(value: T) {
    let bytes = size_of::<T>();
    let cells = Cells::zeroed(bytes + 9);
    for at in 0..=9 {
        assert_eq!(cells.load::<T>(at), Some(T::default()), "byte {at}");
        assert_eq!(cells.store(at, value), Some(()));
        assert_eq!(cells.load::<T>(at), Some(value), "byte {at}");
        // Nothing beside it changed.
        let mut left = vec![0; cells.len()];
        cells.read(0, &mut left).unwrap();
        left.drain(at..at + bytes);
        assert_eq!(left, [0; 9]);
        cells.write(at, &vec![0; bytes]).unwrap();
    }
    for at in [10, 11, usize::MAX - 1, usize::MAX] {
        assert_eq!(cells.load::<T>(at), None);
        assert_eq!(cells.store(at, value), None);
    }
}

#[test]
fn values_of_all_types_come_back_from_each_place() {
    all(0x81_u8);
    all(-7_i8);
    all(0x8102_u16);
    all(-30_000_i16);
    all(0x8102_0304_u32);
    all(i32::MIN + 5);
    all(-1.5e10_f32);
    all(0x8102_0304_0506_0708_u64);
    all(i64::MIN + 9);
    all(-2.75e100_f64);
}

#[test]
fn what_lies_outside_is_refused_in_words_and_changes_nothing() {
    let cells = Cells::copy_of(b"abcdefgh");
    let mut bytes = *b"....";
    let outside = cells.read(5, &mut bytes).unwrap_err();
    assert_eq!(outside.to_string(), "4 bytes from byte 5 on do not lie in memory of 8 bytes");
    assert_eq!(&bytes, b"....");
    assert!(cells.write(usize::MAX, b"x").is_err());
    assert!(cells.write(6, b"xyz").is_err());
    assert!(cells.memory(4..9).is_err());
    let mut whole = [0; 8];
    cells.read(0, &mut whole).unwrap();
    assert_eq!(&whole, b"abcdefgh");
    // No bytes at the end are inside, as for a slice.
    cells.write(8, b"").unwrap();
    assert!(cells.memory(8..8).unwrap().is_empty());
    assert!(cells.write(9, b"").is_err());
}

#[test]
fn no_bytes_are_cells_too() {
    let cells = Cells::zeroed(0);
    assert!(cells.is_empty());
    assert_eq!(cells.load::<u8>(0), None);
    assert!(cells.all().is_empty());
    cells.read(0, &mut []).unwrap();
}

#[test]
fn memory_of_cells_is_written_through_a_table_and_outlives_its_handle() {
    let cells = Cells::zeroed(64);
    assert_eq!(cells.all().segments()[0].address() % ALIGNMENT, 0);
    let other = cells.clone();
    assert!(cells.is_same(&other) && !cells.is_same(&Cells::zeroed(64)));
    let mut table = BufferTable::with_limit(2);
    let memory = cells.memory(8..24).unwrap();
    assert!(memory.is_writable() && memory.len() == 16);
    let buffer = table.insert(memory).unwrap();
    assert_eq!(table.write(Slice { buffer, offset: 3, len: 13 }, &[7; 20]), 13);
    assert_eq!((other.load::<u8>(10), other.load::<u8>(11)), (Some(0), Some(7)));
    assert_eq!((other.load::<u8>(23), other.load::<u8>(24)), (Some(7), Some(0)));
    cells.store(8, 9_u8).unwrap();
    drop((cells, other));
    let mut bytes = [0; 16];
    assert_eq!(table.read(Slice { buffer, offset: 0, len: 16 }, &mut bytes), 16);
    assert_eq!(bytes, [9, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7]);
}

#[test]
fn threads_never_see_a_part_of_an_aligned_value() {
    let rounds = if cfg!(miri) { 100 } else { 100_000 };
    let cells = Cells::zeroed(16);
    std::thread::scope(|scope| {
        for value in [0, u64::MAX] {
            let cells = cells.clone();
            scope.spawn(move || (0..rounds).for_each(|_| cells.store(8, value).unwrap()));
        }
        for _ in 0..rounds {
            let seen = cells.load::<u64>(8).unwrap();
            assert!(seen == 0 || seen == u64::MAX, "{seen:x}");
        }
    });
}

#[test]
fn what_was_written_before_a_store_is_seen_after_its_load() {
    let rounds: u32 = if cfg!(miri) { 50 } else { 2_000 };
    let (cells, back) = (Cells::zeroed(8), Cells::zeroed(4));
    std::thread::scope(|scope| {
        let (writer, answers) = (cells.clone(), back.clone());
        scope.spawn(move || {
            for round in 1..=rounds {
                writer.store(0, round * 3).unwrap();
                writer.store(4, round).unwrap();
                while answers.load::<u32>(0) != Some(round) {
                    std::thread::yield_now();
                }
            }
        });
        for round in 1..=rounds {
            while cells.load::<u32>(4) != Some(round) {
                std::thread::yield_now();
            }
            assert_eq!(cells.load::<u32>(0), Some(round * 3));
            back.store(0, round).unwrap();
        }
    });
}

#[test]
fn memory_that_is_not_there_is_none() {
    assert!(Cells::try_zeroed(usize::MAX).is_none());
    assert!(Cells::try_zeroed(isize::MAX as usize - ALIGNMENT).is_none());
    let cells = Cells::try_zeroed(100).expect("so little is there");
    assert_eq!((cells.len(), cells.load::<u64>(92)), (100, Some(0)));
    assert!(Cells::try_zeroed(0).is_some_and(|cells| cells.is_empty()));
}

#[test]
fn promised_memory_is_read_and_written_where_it_lies_and_stays_when_its_cells_are_gone() {
    let mut owned = *b"0123456789";
    let address = owned.as_mut_ptr();
    // SAFETY: the array outlives the cells and what is made of them, and is not named meanwhile.
    let cells = unsafe { Cells::promised(address.wrapping_add(2), 6) };
    assert_eq!(cells.address(), address.wrapping_add(2));
    assert_eq!((cells.len(), cells.load::<u8>(0), cells.load::<u8>(6)), (6, Some(b'2'), None));
    assert!(cells.write(3, b"xyzw").is_err());
    cells.write(3, b"xyz").unwrap();
    let mut table = BufferTable::with_limit(1);
    let buffer = table.insert(cells.memory(1..3).unwrap()).unwrap();
    drop(cells);
    assert_eq!(table.write(Slice { buffer, offset: 0, len: 2 }, b"ab"), 2);
    drop(table);
    assert_eq!(&owned, b"012abxyz89");
}

#[test]
fn nothing_may_be_promised() {
    // SAFETY: no byte is accessed.
    let cells = unsafe { Cells::promised(std::ptr::null_mut(), 0) };
    assert!(cells.is_empty() && cells.all().is_empty());
    assert_eq!(cells.load::<u8>(0), None);
}
