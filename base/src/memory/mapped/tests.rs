use super::*;
use crate::memory::{BufferTable, Change, Job, Operator, Places, Slice};
use crate::pool::Pool;
use crate::random::Random;

#[test]
fn bytes_go_between_cells_and_memories_in_pieces_and_nowhere_else() {
    let pool = Pool::with_budget(1 << 20);
    let cells = Cells::copy_of(b"0123456789");
    let pieces = [&b"ab"[..], b"", b"cde", b"f"].map(|it| pool.copy_of(it).unwrap());
    let memory = Memory::many(pieces.into());
    assert_eq!(cells.fill(1, &memory, 1, 4), Ok(()));
    let all = |cells: &Cells| {
        let mut all = vec![0; cells.len()];
        cells.read(0, &mut all).unwrap();
        all
    };
    assert_eq!(all(&cells), b"0bcde56789");
    assert_eq!(cells.drain(6, &memory, 2, 4), Ok(()));
    let pieces: Vec<Vec<u8>> = memory.into_many().iter().map(|it| it.to_vec()).collect();
    assert_eq!(pieces.concat(), b"ab6789");
    // As many as there are.
    assert_eq!(cells.fill(0, &Memory::constant(b"xy"), 1, 5), Ok(()));
    assert_eq!(all(&cells), b"ybcde56789");
    let other = Cells::zeroed(4);
    assert_eq!(cells.copy(3, &other, 1, 3), Ok(()));
    assert_eq!(all(&other), b"\0de5");
    for (at, to, bytes) in [(8, 0, 3), (0, 2, 3), (usize::MAX, 0, 2), (0, usize::MAX, 2)] {
        assert!(cells.copy(at, &other, to, bytes).is_err());
    }
    assert!(cells.fill(9, &Memory::constant(b"xy"), 0, 2).is_err());
    assert!(cells.drain(usize::MAX, &Memory::constant(b"xy"), 0, 2).is_err());
    // Memory that may not be written stays as it is.
    assert_eq!(cells.drain(0, &Memory::constant(b"xy"), 0, 2), Ok(()));
    assert_eq!(all(&cells), b"ybcde56789");
}

#[test]
fn a_part_keeps_the_bytes_and_is_shared_with_the_whole() {
    let whole = Cells::copy_of(b"abcdef");
    let part = whole.part(2..5).unwrap();
    let inner = part.part(1..2).unwrap();
    assert!(whole.part(2..7).is_err() && part.part(0..4).is_err() && !part.is_shared());
    drop((whole, part));
    assert_eq!(inner.load::<u8>(0), Some(b'd'));
    let whole = Cells::zeroed(8);
    let parts = [whole.part(0..4).unwrap(), whole.part(4..8).unwrap()];
    parts[0].share();
    assert!(whole.is_shared() && parts[1].is_shared() && whole.all().is_shared());
}

#[test]
fn who_has_no_atomic_operation_changes_nothing() {
    let cells = Cells::zeroed(64);
    let sum = |element| Update::new(element, Operator::Sum).unwrap();
    let one = 1u64.to_ne_bytes();
    assert_eq!(cells.update(0, 1, sum(Element::U64), &one, None), None, "not shared");
    assert_eq!(cells.compare_swap(0, Element::U64, [0; 8], one), None);
    cells.share();
    assert_eq!(cells.update(4, 1, sum(Element::U64), &one, None), None, "at an odd address");
    assert_eq!(cells.compare_swap(4, Element::U64, [0; 8], one), None);
    assert_eq!(cells.update(0, 1, sum(Element::Complex64), &[1; 16], None), None, "too long");
    assert_eq!(cells.update(64, 1, sum(Element::U64), &one, None), None, "outside");
    assert_eq!(cells.update(0, usize::MAX, sum(Element::U64), &one, None), None);
    assert_eq!((0..8).map(|at| cells.load::<u64>(8 * at).unwrap()).sum::<u64>(), 0);
    assert_eq!(cells.update(8, 1, sum(Element::U64), &one, None), Some(()));
    assert_eq!(cells.compare_swap(8, Element::U64, one, [7; 8]), Some(one));
    assert_eq!(cells.load::<u64>(8), Some(u64::from_ne_bytes([7; 8])));
}

#[test]
fn elements_of_cells_are_combined_where_they_lie_unless_they_overlap_the_target() {
    let cells = Cells::zeroed(8 * 100);
    cells.share();
    let (mut updater, own) = (cells.updater(), Cells::zeroed(8 * 100 + 1));
    for at in 0..100u64 {
        cells.store(8 * at as usize, at).unwrap();
        own.store(8 * at as usize + 1, 1000 * at).unwrap();
    }
    let sum = Update::new(Element::U64, Operator::Sum).unwrap();
    assert_eq!(updater.update_from(&cells, 16, 98, sum, (&own, 1)), Some(()));
    for at in 0..98 {
        let want = at + 2 + 1000 * at;
        assert_eq!(cells.load::<u64>(8 * (at as usize + 2)), Some(want));
    }
    let before = Cells::zeroed(800);
    cells.copy(0, &before, 0, 800).unwrap();
    for (at, count, from) in [(0, 2, 8), (8, 1, 1), (0, 100, 0), (400, 50, 396)] {
        let source = (&cells, from);
        assert_eq!(updater.update_from(&cells, at, count, sum, source), None, "{at} {from}");
    }
    assert_eq!(updater.update_from(&cells, 4, 1, sum, (&own, 0)), None, "at an odd address");
    assert_eq!(updater.update_from(&cells, 0, 100, sum, (&own, 2)), None, "outside");
    assert_eq!(updater.update_from(&cells, 8, 100, sum, (&own, 0)), None, "outside");
    for at in 0..100 {
        assert_eq!(cells.load::<u64>(8 * at), before.load(8 * at));
    }
    // Next to each other.
    assert_eq!(updater.update_from(&cells, 0, 50, sum, (&cells, 400)), Some(()));
}

/// Elements of all lengths: three origins update them by themselves, where they can, and the executor does for a fourth one,
/// and for all where they cannot. No update is lost.
#[test]
fn origins_and_the_executor_lose_no_update_of_each_other() {
    let rounds = if cfg!(miri) { 40 } else { 20_000 };
    let elements =
        [Element::U8, Element::I16, Element::F32, Element::U64, Element::F64, Element::Complex64];
    let cells = Cells::zeroed(64 * elements.len() + 1);
    cells.share();
    let mut table = BufferTable::with_limit(64);
    let region = table.insert(cells.all()).expect("there is room");
    let executor = std::sync::Mutex::new(table);
    // The last element of each kind lies at an odd address.
    let place =
        |kind: usize, which: u64| 64 * kind + if which == 3 { 33 } else { 8 * which as usize };
    let one = |element: Element| -> Vec<u8> {
        match element {
            Element::F32 => 1f32.to_ne_bytes().into(),
            Element::F64 => 1f64.to_ne_bytes().into(),
            Element::Complex64 => [1f64.to_ne_bytes(), 2f64.to_ne_bytes()].concat(),
            other => 1u64.to_ne_bytes()[..other.shape().extent].into(),
        }
    };
    let execute = |update: Update, at: usize, own: &[u8]| {
        let pool = Pool::with_budget(1 << 12);
        let mut table = executor.lock().unwrap();
        let memory = Memory::pooled(pool.copy_of(own).unwrap());
        let source = table.insert(memory).expect("there is room");
        let part = Slice { buffer: region, offset: at as u64, len: update.extent() as u64 };
        let job = Job { change: Change::Update(update), places: Places::One(part) };
        let source = Slice { buffer: source, offset: 0, len: own.len() as u64 };
        table.apply(&job, source, None).unwrap();
        table.remove(source.buffer);
    };
    let origin = |number: u64| {
        let mut random = Random::from_seed(number);
        let mut done = vec![[0u64; 4]; elements.len()];
        for _ in 0..rounds {
            let (kind, which) = (random.below(elements.len() as u64) as usize, random.below(4));
            let update = Update::new(elements[kind], Operator::Sum).unwrap();
            let (at, own) = (place(kind, which), one(elements[kind]));
            if number == 3 || cells.update(at, 1, update, &own, None).is_none() {
                execute(update, at, &own);
            }
            done[kind][which as usize] += 1;
        }
        done
    };
    let all: Vec<_> = std::thread::scope(|scope| {
        let origin = &origin;
        let origins: Vec<_> = (0..4).map(|number| scope.spawn(move || origin(number))).collect();
        origins.into_iter().map(|it| it.join().unwrap()).collect()
    });
    for (kind, element) in elements.iter().enumerate() {
        for which in 0..4 {
            // 16-byte elements that lie in each other are not compared.
            if *element == Element::Complex64 && which != 3 {
                continue;
            }
            let count: u64 = all.iter().map(|done| done[kind][which as usize]).sum();
            let at = place(kind, which);
            let found = match element {
                Element::U8 => u64::from(cells.load::<u8>(at).unwrap()),
                Element::I16 => cells.load::<i16>(at).unwrap() as u64,
                Element::F32 => cells.load::<f32>(at).unwrap() as u64,
                Element::U64 => cells.load::<u64>(at).unwrap(),
                _ => cells.load::<f64>(at).unwrap() as u64,
            };
            let want = if *element == Element::U8 { count & 0xff } else { count };
            assert_eq!(found, want, "{element:?} at {at}");
        }
    }
}

/// A job over many elements, which would take blocks of them if it were alone, beside an origin that updates some.
#[test]
fn a_long_job_loses_no_update_of_an_origin() {
    const COUNT: usize = 512;
    let least = if cfg!(miri) { 600 } else { 1_000_000 };
    let cells = Cells::zeroed(8 * COUNT);
    cells.share();
    let (pool, mut table) = (Pool::with_budget(1 << 20), BufferTable::with_limit(2));
    let sum = Update::new(Element::U64, Operator::Sum).unwrap();
    let ones = 1u64.to_ne_bytes().repeat(COUNT);
    let source = table.insert(Memory::pooled(pool.copy_of(&ones).unwrap())).unwrap();
    let target = table.insert(cells.all()).unwrap();
    let whole = |buffer| Slice { buffer, offset: 0, len: 8 * COUNT as u64 };
    let mut jobs = 0;
    let done = std::thread::scope(|scope| {
        let origin = scope.spawn(|| {
            let (mut done, one) = (vec![0u64; COUNT], 1u64.to_ne_bytes());
            for at in (0..COUNT).cycle().take(least) {
                cells.update(8 * at, 1, sum, &one, None).unwrap();
                done[at] += 1;
            }
            done
        });
        let job = Job { change: Change::Update(sum), places: Places::One(whole(target)) };
        while !origin.is_finished() {
            table.apply(&job, whole(source), None).unwrap();
            jobs += 1;
        }
        origin.join().unwrap()
    });
    for (at, own) in done.iter().enumerate() {
        assert_eq!(cells.load::<u64>(8 * at), Some(own + jobs), "element {at}");
    }
}
