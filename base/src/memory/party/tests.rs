use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;

use super::*;
use crate::memory::{BufferTable, Cells, Change, Element, Job, Operator, Places, Slice, Update};
use crate::pool::Pool;

const BLOCKS: u32 = 1 << 30;
const NEVER: u32 = 1 << 31;

/// Memory with a lock in front of it, and the lock.
fn shared(bytes: usize) -> (Cells, NonNull<LockWords>) {
    let all = Cells::zeroed(size_of::<LockWords>() + bytes);
    let lock = NonNull::new(all.address()).unwrap().cast::<LockWords>();
    let cells = map(&all, bytes);
    (cells, lock)
}

/// The same memory as another rank has it.
fn map(all: &Cells, bytes: usize) -> Cells {
    let lock = NonNull::new(all.address()).unwrap().cast::<LockWords>();
    let address = NonNull::new(all.address().wrapping_add(size_of::<LockWords>())).unwrap();
    // SAFETY: both lie in the cells that are kept; references are made to the lock alone.
    let cells = unsafe { Cells::kept_with_lock(address, bytes, lock, all.clone()) };
    cells.share();
    cells
}

fn words(lock: &NonNull<LockWords>) -> &LockWords {
    // SAFETY: the tests keep the cells.
    unsafe { lock.as_ref() }
}

fn sum() -> Update {
    Update::new(Element::U64, Operator::Sum).unwrap()
}

fn ones(count: usize) -> Vec<u8> {
    1u64.to_ne_bytes().repeat(count)
}

/// A process that has ended, and when it began.
fn ended() -> (u32, u64) {
    let mut child = Command::new("sleep").arg("100").stdout(Stdio::null()).spawn().unwrap();
    let process = child.id();
    let began = began(process).unwrap().expect("it lives");
    child.kill().unwrap();
    // It is a zombie until somebody asks for it.
    while super::began(process).unwrap().is_some() {
        std::thread::yield_now();
    }
    child.wait().unwrap();
    assert_eq!(super::began(process).unwrap(), None);
    (process, began)
}

/// Ranks that have maps of their own, one of them with two updaters, and an executor: whole blocks, single words, jobs.
#[test]
fn blocks_words_and_jobs_lose_no_update_of_each_other() {
    const COUNT: usize = 1024;
    let rounds = if cfg!(miri) { 3 } else { 3_000 };
    let all = Cells::zeroed(size_of::<LockWords>() + 8 * COUNT);
    let maps: Vec<Cells> = (0..3).map(|_| map(&all, 8 * COUNT)).collect();
    let blocks = |mut updater: crate::memory::Updater, cells: &Cells| {
        for _ in 0..rounds {
            updater.update(cells, 0, COUNT, sum(), &ones(COUNT), None).unwrap();
        }
    };
    let executed = AtomicBool::new(false);
    let jobs = std::thread::scope(|scope| {
        scope.spawn(|| blocks(maps[0].updater(), &maps[0]));
        scope.spawn(|| blocks(maps[1].updater(), &maps[1]));
        scope.spawn(|| {
            // Words by updates, and by who has no updater; pauses let blocks and words take turns.
            let (mut updater, one) = (maps[2].updater(), ones(1));
            for round in 0..rounds {
                for at in 0..COUNT / 2 {
                    updater.update(&maps[2], 8 * at, 1, sum(), &one, None).unwrap();
                    let mut before = [0; 8];
                    let at = 8 * (at + COUNT / 2);
                    maps[2].update(at, 1, sum(), &one, Some(&mut before)).unwrap();
                }
                if round % 8 == 0 {
                    std::thread::sleep(Duration::from_micros(100));
                }
            }
            executed.store(true, Release);
        });
        let (pool, mut table) = (Pool::with_budget(1 << 20), BufferTable::with_limit(2));
        let source = crate::memory::Memory::pooled(pool.copy_of(&ones(COUNT)).unwrap());
        let (source, target) =
            (table.insert(source).unwrap(), table.insert(maps[2].all()).unwrap());
        let whole = |buffer| Slice { buffer, offset: 0, len: 8 * COUNT as u64 };
        let job = Job { change: Change::Update(sum()), places: Places::One(whole(target)) };
        let mut jobs = 0;
        while !executed.load(Acquire) {
            table.apply(&job, whole(source), None).unwrap();
            jobs += 1;
            std::thread::yield_now();
        }
        jobs
    });
    for at in 0..COUNT {
        assert_eq!(maps[0].load::<u64>(8 * at), Some(3 * rounds + jobs), "element {at}");
    }
}

#[test]
fn words_need_no_lock_again_after_a_while_without_blocks() {
    let (cells, lock) = shared(8192);
    let mut updater = cells.updater();
    let mut block = || updater.update(&cells, 0, 1024, sum(), &ones(1024), None).unwrap();
    assert_eq!(words(&lock).state(), 0);
    block();
    let expected = if barrier::is_there() { BLOCKS } else { NEVER };
    assert_eq!(words(&lock).state(), expected, "blocks are updated under the lock");
    let mut other = cells.updater();
    for turn in 0..100 {
        if barrier::is_there() {
            let expected = if turn < 64 { BLOCKS } else { 0 };
            assert_eq!(words(&lock).state(), expected, "turn {turn}");
        }
        other.update(&cells, 0, 1, sum(), &ones(1), None).unwrap();
    }
    assert_eq!(cells.load::<u64>(0), Some(101));
}

#[test]
fn a_block_beside_somebody_who_updates_words_goes_by_words() {
    let (cells, lock) = shared(8192);
    let (mut updater, other) = (cells.updater(), cells.updater());
    let words = words(&lock);
    if !barrier::is_there() {
        return;
    }
    words.raise(1);
    let mut block = || updater.update(&cells, 0, 1024, sum(), &ones(1024), None).unwrap();
    for _ in 0..3 {
        block();
        assert_eq!(words.state(), 0, "it waits for nobody");
    }
    words.lower(1);
    // After two that met others two more do not even try.
    for state in [0, 0, BLOCKS] {
        block();
        assert_eq!((words.state(), words.is_raised(0)), (state, false));
    }
    drop(other);
}

#[test]
fn who_died_with_the_lock_is_succeeded() {
    let (cells, lock) = shared(8192);
    let mut updater = cells.updater();
    let words = words(&lock);
    if !barrier::is_there() {
        return;
    }
    let (process, began) = ended();
    words.parties[1].process.store(process, Release);
    words.parties[1].began.store(began, Release);
    words.taken.store(2, Release);
    words.set_state(BLOCKS | 2);
    updater.update(&cells, 0, 1, sum(), &ones(1), None).unwrap();
    assert_eq!(words.state(), BLOCKS);
    // It died before it had seen that nobody updates words: somebody still does.
    words.set_state(BLOCKS | 2);
    words.raise(1);
    updater.update(&cells, 0, 1, sum(), &ones(1), None).unwrap();
    assert_eq!(words.state(), 0);
    words.lower(1);
    // Another process has its number now.
    words.parties[1].process.store(std::process::id(), Release);
    words.set_state(BLOCKS | 2);
    updater.update(&cells, 0, 1, sum(), &ones(1), None).unwrap();
    assert_eq!(cells.load::<u64>(0), Some(3));
}

#[test]
fn who_has_the_lock_and_lives_is_waited_for() {
    let (cells, lock) = shared(8192);
    let (mut updater, _other) = (cells.updater(), cells.updater());
    let words = words(&lock);
    if !barrier::is_there() {
        return;
    }
    words.set_state(BLOCKS | 2);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            updater.update(&cells, 0, 1, sum(), &ones(1), None).unwrap();
            is_done.store(true, Release);
        });
        std::thread::sleep(Duration::from_millis(100));
        assert!(!is_done.load(Acquire));
        assert_eq!(cells.load::<u64>(0), Some(0));
        words.set_state(BLOCKS);
    });
    assert_eq!(cells.load::<u64>(0), Some(1));
}

#[test]
fn more_parties_than_there_is_room_for_update_words() {
    let (cells, lock) = shared(8192);
    let mut all: Vec<_> = (0..PARTIES).map(|_| cells.updater()).collect();
    let block = |updater: &mut crate::memory::Updater| {
        updater.update(&cells, 0, 1024, sum(), &ones(1024), None).unwrap();
        words(&lock).state()
    };
    let expected = if barrier::is_there() { BLOCKS } else { NEVER };
    assert_eq!(block(&mut all[PARTIES - 1]), expected);
    // A number that is given back is taken again.
    all.truncate(PARTIES - 1);
    all.push(cells.updater());
    assert_eq!(block(&mut all[PARTIES - 1]), expected);
    let mut more = cells.updater();
    for updater in [&mut more, &mut all[0]] {
        assert_eq!(block(updater), NEVER);
    }
    assert_eq!(cells.load::<u64>(8 * 1023), Some(4));
}

/// An exposed list of memories is changed without a lock that all of them have.
#[test]
fn a_job_over_several_memories_forbids_blocks() {
    let (cells, lock) = shared(8192);
    let mut table = BufferTable::with_limit(2);
    let joined = crate::memory::Memory::joined(vec![Cells::zeroed(8).all(), cells.all()]);
    let target = table.insert(joined).unwrap();
    let pool = Pool::with_budget(1 << 20);
    let source = crate::memory::Memory::pooled(pool.copy_of(&ones(2)).unwrap());
    let source = table.insert(source).unwrap();
    let part = |buffer| Slice { buffer, offset: 0, len: 16 };
    let job = Job { change: Change::Update(sum()), places: Places::One(part(target)) };
    table.apply(&job, part(source), None).unwrap();
    assert_eq!((words(&lock).state(), cells.load::<u64>(0)), (NEVER, Some(1)));
}

#[test]
fn a_process_lives_as_long_as_one_of_its_threads() {
    let line = |state: &str, threads: u32| {
        format!("7 (a) b)) {state} 1 7 7 0 -1 4 0 0 0 0 1 2 0 0 20 0 {threads} 0 8642 9 9")
    };
    for (state, threads, began) in [
        ("S", 1, Some(8642)),
        ("R", 3, Some(8642)),
        ("Z", 2, Some(8642)),
        ("Z", 1, None),
        ("Z", 0, None),
        ("X", 1, None),
    ] {
        assert_eq!(super::began_of(&line(state, threads)), began, "{state}, {threads} threads");
    }
    assert_eq!(super::began_of("7 (a) S 1"), None);
}

#[test]
fn a_job_beside_a_window_leaves_its_blocks_as_they_are() {
    let (cells, lock) = shared(8192);
    let board = Cells::zeroed(64);
    let (pool, mut table) = (Pool::with_budget(1 << 20), BufferTable::with_limit(2));
    let source = crate::memory::Memory::pooled(pool.copy_of(&ones(2)).unwrap());
    let joined = crate::memory::Memory::joined(vec![cells.all(), board.all()]);
    let (source, target) = (table.insert(source).unwrap(), table.insert(joined).unwrap());
    let apply = |table: &BufferTable, offset, len| {
        let place = Slice { buffer: target, offset, len };
        let job = Job { change: Change::Update(sum()), places: Places::One(place) };
        table.apply(&job, Slice { buffer: source, offset: 0, len }, None).unwrap();
    };
    let block = |updater: &mut crate::memory::Updater| {
        updater.update(&cells, 0, 1024, sum(), &ones(1024), None).unwrap();
        words(&lock).state()
    };
    let expected = if barrier::is_there() { BLOCKS } else { NEVER };
    let mut updater = cells.updater();
    apply(&table, 8192, 8);
    assert_eq!(block(&mut updater), expected, "a word of the board");
    apply(&table, 8184, 8);
    assert_eq!(block(&mut updater), expected, "a word of the window");
    apply(&table, 8184, 16);
    assert_eq!(block(&mut updater), NEVER, "words of both at once");
    assert_eq!((cells.load::<u64>(8184), board.load::<u64>(0)), (Some(5), Some(2)));
}
