//! Windows by remote access: their targets need to do nothing.

mod pair;

use std::sync::{Barrier, Mutex};
use std::time::Duration;

use pair::two_of_a_team;
use ropewalk_net::Endpoint;
use ropewalk_rma::{
    Asserts, BadArgument, Cells, Datatype, Destination, Element, Error, Implementation, LockKind,
    Operator, Source, Target, Window, WindowOptions,
};

const NONE: Asserts = Asserts::NONE;

/// Two ranks; rank 1 makes no call between the barriers.
fn beside_one_that_computes(scheme: &str, act: impl Fn(&Window) + Sync) {
    two_ranks(scheme, |window, _, rank| {
        if rank == 0 {
            act(window);
        }
    });
}

/// Two ranks, each in a thread, with what each does between the barriers.
fn two_ranks(scheme: &str, act: impl Fn(&Window, &Endpoint, u32) + Sync) {
    two_of_a_team(scheme, |_, window, endpoint, rank| act(window, endpoint, rank));
}

#[test]
fn everything_of_an_epoch_of_locks_is_done_while_the_target_computes() {
    for scheme in ["tcp", "shm", "udp"] {
        beside_one_that_computes(scheme, |window| {
            let word = Datatype::of(Element::U64);
            let (data, result) = (Cells::zeroed(800_000), Cells::zeroed(800_000));
            (0..100_000).for_each(|at| data.store::<u64>(8 * at, at as u64).expect("it fits"));
            let source = || Source::cells(&data, 0, 100_000, &word);
            let destination = || Destination::new(&result, 0, 100_000, &word);
            let target = || Target::new(1, 0, 100_000, &word);
            for kind in [LockKind::Exclusive, LockKind::Shared] {
                window.lock(kind, 1, NONE).expect("it may");
                window.put(source(), target()).expect("it fits");
                window.flush(1).expect("the target applies it");
                window.accumulate(source(), target(), Operator::Sum).expect("it fits");
                window.flush(1).expect("the target applies it");
                let sum = Operator::Sum;
                let fetched = window.get_accumulate(Some(source()), destination(), target(), sum);
                fetched.expect("it fits");
                window.flush(1).expect("the target answers");
                assert_eq!(result.load::<u64>(8 * 777), Some(2 * 777), "{scheme}");
                window.get(destination(), target()).expect("it fits");
                window.unlock(1).expect("the target answers");
                assert_eq!(result.load::<u64>(8 * 777), Some(3 * 777), "{scheme}");
            }
            window.lock_all(NONE).expect("it may");
            let one = 1u64.to_ne_bytes();
            for count in 0..100 {
                let (source, at) = (Source::slice(&one, 1, &word), Target::new(1, 0, 1, &word));
                let before = Destination::new(&result, 0, 1, &word);
                window.fetch_and_op(Some(source), before, at, Operator::Sum).expect("it fits");
                window.flush(1).expect("the target answers");
                assert_eq!(result.load::<u64>(0), Some(count), "{scheme}");
            }
            let before = Destination::new(&result, 0, 1, &word);
            let (expected, desired) = (100u64.to_ne_bytes(), 7u64.to_ne_bytes());
            let at = Target::new(1, 0, 1, &word);
            window.compare_and_swap(&expected, &desired, before, at).expect("it fits");
            window.unlock_all().expect("the target answers");
            assert_eq!(result.load::<u64>(0), Some(100), "{scheme}");
        });
    }
}

#[test]
fn operations_are_served_without_the_application() {
    for scheme in ["tcp", "udp"] {
        let over = Barrier::new(2);
        two_ranks(scheme, |window, endpoint, rank| {
            let served =
                || (endpoint.counters().0.accesses_served, endpoint.accesses_served_apart());
            let before = served();
            over.wait();
            if rank == 0 {
                let word = Datatype::of(Element::U64);
                let (one, result) = (1u64.to_ne_bytes(), Cells::zeroed(8));
                window.lock(LockKind::Shared, 1, NONE).expect("it may");
                for _ in 0..100 {
                    put_words(window, 1);
                    window.flush(1).expect("the target applies it");
                    let (source, at) = (Source::slice(&one, 1, &word), Target::new(1, 8, 1, &word));
                    let before = Destination::new(&result, 0, 1, &word);
                    window.fetch_and_op(Some(source), before, at, Operator::Sum).expect("it fits");
                    window.flush(1).expect("the target answers");
                }
                window.unlock(1).expect("the target answers");
            }
            over.wait();
            if rank == 1 {
                let (all, apart) = served();
                assert_eq!((all - before.0, apart - before.1), (200, 200), "{scheme}");
            }
        });
    }
}

/// P13: the kernel does not say whether its copy of a word is one store.
#[test]
fn aligned_words_of_private_memory_go_by_frames() {
    let here = Barrier::new(2);
    two_of_a_team("shm", |team, _, endpoint, rank| {
        let cells = Cells::zeroed(4096);
        let options =
            WindowOptions { implementation: Implementation::Direct, ..WindowOptions::default() };
        let mut window = team.create(&cells, 0..4096, &options).expect("all make the same");
        let byte = Datatype::of(Element::U8);
        for (at, bytes, by_frames) in
            [(8, 8, 1), (4, 4, 1), (2, 2, 1), (4, 8, 0), (0, 16, 0), (7, 1, 0)]
        {
            here.wait();
            let before = endpoint.counters().0.accesses_served;
            here.wait();
            if rank == 0 {
                let data = [7; 16];
                window.lock(LockKind::Shared, 1, NONE).expect("it may");
                let source = Source::slice(&data[..bytes as usize], bytes, &byte);
                window.put(source, Target::new(1, at, bytes, &byte)).expect("it fits");
                window.flush(1).expect("the target has it");
                let result = Cells::zeroed(16);
                let to = Destination::new(&result, 0, bytes, &byte);
                window.get(to, Target::new(1, at, bytes, &byte)).expect("it fits");
                window.flush(1).expect("the target answers");
                let mut back = [0; 16];
                result.read(0, &mut back).expect("it has as many");
                assert_eq!(back[..bytes as usize], data[..bytes as usize]);
                window.unlock(1).expect("the target answers");
            }
            here.wait();
            if rank == 1 {
                let served = endpoint.counters().0.accesses_served - before;
                assert_eq!(served, 2 * by_frames, "{bytes} bytes at {at}");
            }
        }
        window.free().expect("nobody is lost");
    });
}

/// Frames that both endpoints sent for something, as their rails count them.
fn frames(endpoint: &Endpoint) -> u64 {
    endpoint.counters().1.iter().map(|(_, rail)| rail.frames_sent).sum()
}

fn put_words(window: &Window, count: u64) {
    let word = Datatype::of(Element::U64);
    for at in 0..count {
        let (bytes, target) = ((at + 1).to_ne_bytes(), Target::new(1, 8 * at, 1, &word));
        window.put(Source::slice(&bytes, 1, &word), target).expect("it fits");
    }
}

/// Frames that each side sent for one of 100 rounds, in hundredths.
fn frames_of(rounds: impl Fn(&Window, u32) + Sync) -> [u64; 2] {
    const ROUNDS: u64 = 100;
    let sent = Mutex::new([0; 2]);
    let warm = Barrier::new(2);
    two_ranks("tcp", |window, endpoint, rank| {
        rounds(window, rank);
        warm.wait();
        let before = frames(endpoint);
        warm.wait();
        (0..ROUNDS).for_each(|_| rounds(window, rank));
        warm.wait();
        let all = frames(endpoint) - before;
        sent.lock().expect("nobody panics")[rank as usize] = all * 100 / ROUNDS;
    });
    sent.into_inner().expect("nobody panics")
}

#[test]
fn short_puts_of_an_epoch_are_one_frame_and_nobody_answers() {
    for count in [1, 2, 16, 200] {
        let [origin, target] = frames_of(|window, rank| match rank {
            0 => {
                window.start(&[1], NONE).expect("it may");
                put_words(window, count);
                window.complete().expect("nobody is lost");
            }
            _ => {
                window.post(&[0], NONE).expect("it may");
                window.wait().expect("nobody is lost");
            }
        });
        // One put goes with the word that tells of it; others go before that. The target posts, and lends memory for records.
        let wanted = if count == 1 { 100 } else { 200 };
        // A sanitizer makes ranks so slow that their timers tell of more; of less than a frame for each round yet.
        let is_slow = std::env::var_os("ROPEWALK_C_SANITIZER").is_some();
        let [more, of_target] = if is_slow { [90; 2] } else { [10, 30] };
        assert!((wanted..wanted + more).contains(&origin), "{count} puts: {origin}");
        assert!((100..100 + of_target).contains(&target), "{count} puts: {target}");
    }
}

#[test]
fn short_puts_behind_one_under_way_are_one_frame() {
    for count in [1, 2, 16, 200] {
        let [origin, target] = frames_of(|window, rank| {
            if rank == 0 {
                window.lock(LockKind::Shared, 1, Asserts::NO_CHECK).expect("it may");
                put_words(window, count);
                window.unlock(1).expect("the target answers");
            }
        });
        let wanted = if count == 1 { 100 } else { 200 };
        assert!((wanted..wanted + 20).contains(&origin), "{count} puts: {origin}");
        assert!((100..wanted + 30).contains(&target), "{count} puts: {target}");
    }
}

#[test]
fn epochs_of_short_puts_end_however_long_the_pauses_between_them_are() {
    two_ranks("tcp", |window, _, rank| {
        let (data, byte) = (Cells::zeroed(4096), Datatype::of(Element::U8));
        for count in [3, 4, 1, 4, 3, 4, 2, 9] {
            // Windows of credit that are asked for seldom do not grow.
            std::thread::sleep(Duration::from_millis(110));
            if rank == 1 {
                window.post(&[0], NONE).expect("it may");
                window.wait().expect("nobody is lost");
                continue;
            }
            window.start(&[1], NONE).expect("it may");
            for at in 0..count {
                let target = Target::new(1, 4096 * at, 4096, &byte);
                window.put(Source::cells(&data, 0, 4096, &byte), target).expect("it fits");
            }
            window.complete().expect("nobody is lost");
        }
    });
}

#[test]
fn a_target_with_all_locks_that_it_keeps_is_asked_again_and_is_not_lost() {
    /// Locks of one peer, at most: those that it has and those that it waits for.
    const LOCKS_MAX: usize = 1024;
    two_of_a_team("tcp", |team, last, _, rank| {
        let options =
            WindowOptions { implementation: Implementation::Direct, ..WindowOptions::default() };
        let make = |_| team.allocate(8, &options).expect("there is room");
        let mut windows: Vec<Window> = (0..LOCKS_MAX).map(make).collect();
        if rank == 0 {
            for window in &windows {
                window.lock(LockKind::Exclusive, 1, NONE).expect("it may");
                put_words(window, 1);
                window.flush(1).expect("the target answers");
            }
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(Duration::from_millis(100));
                    windows[7].unlock(1).expect("the target answers");
                });
                last.lock(LockKind::Exclusive, 1, NONE).expect("it may");
                put_words(last, 1);
                last.unlock(1).expect("it waits for a lock that is given back");
            });
            let left = windows.iter().enumerate().filter(|(number, _)| *number != 7);
            left.for_each(|(_, window)| window.unlock(1).expect("the target answers"));
        }
        windows.iter_mut().for_each(|window| window.free().expect("nobody is lost"));
    });
}

#[test]
fn memory_of_a_window_is_refused_to_one_that_accumulates_in_another_way() {
    two_of_a_team("tcp", |team, window, _, rank| {
        let options = |implementation| WindowOptions { implementation, ..WindowOptions::default() };
        let cells = window.cells();
        let others = [Implementation::DirectAccumulateAtOrigin, Implementation::Messages];
        for other in others {
            let refused = team.create(cells, 64..128, &options(other));
            let error = refused.expect_err("accumulates of one of the two would get lost");
            let regime = BadArgument::Regime { bytes: 64, other: Implementation::Direct };
            assert!(
                matches!(&error, Error::Argument { argument, .. } if *argument == regime),
                "{error}"
            );
            let mut dynamic = team.create_dynamic(&options(other)).expect("it has no memory");
            let refused = dynamic.attach(cells, 0..8).expect_err("the same holds for a region");
            assert_eq!(
                refused.to_string(),
                format!(
                    "window {}, rank {rank}: 8 bytes of this memory are exposed already by a window of another \
                 implementation or team (Direct): accumulates through both would get lost, so free that one first",
                    dynamic.name().number
                )
            );
            dynamic.free().expect("nobody is lost");
        }
        let mut same = team.create(cells, 0..64, &options(Implementation::Direct)).expect("it may");
        same.free().expect("nobody is lost");
        let own = Cells::zeroed(64);
        for other in others {
            let mut alone =
                team.create(&own, 0..64, &options(other)).expect("the one before is freed");
            alone.free().expect("nobody is lost");
        }
    });
}

#[test]
fn what_a_window_left_behind_is_asked_about_after_it_was_freed() {
    for implementation in
        [Implementation::Direct, Implementation::DirectAccumulateAtOrigin, Implementation::Messages]
    {
        two_of_a_team("tcp", |team, _, _, rank| {
            let options = WindowOptions { implementation, counters: 1, ..WindowOptions::default() };
            let mut window = team.allocate(64, &options).expect("all make the same");
            let word = Datatype::of(Element::U64);
            let request = (rank == 0).then(|| {
                window.lock(LockKind::Exclusive, 1, NONE).expect("it may");
                let (bytes, target) = (7u64.to_ne_bytes(), Target::new(1, 0, 1, &word));
                let put = window.rput(Source::slice(&bytes, 1, &word), target).expect("it fits");
                window.unlock(1).expect("nobody is lost");
                put
            });
            window.free().expect("nobody is lost");
            // The unlock has completed it, and the window is not needed for that.
            if let Some(request) = request {
                request.wait().expect("it was done");
            }
            assert!(matches!(window.notices(0), Err(Error::Misuse { .. })));
            assert!(matches!(window.wait_notices(0, 1), Err(Error::Misuse { .. })));
        });
    }
}
