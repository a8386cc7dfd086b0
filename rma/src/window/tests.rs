//! A rank dies within the creation of a window, after its last words went to one rank and not to the other.

use std::convert::Infallible;
use std::sync::mpsc;
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use ropewalk_base::ids::ClusterId;
use ropewalk_base::memory::{Element, Operator};
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::RemoteKey;
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{Endpoint, EndpointConfig, Group};

use super::*;
use crate::direct::posting;
use crate::error::Loss;
use crate::{Asserts, Datatype, Destination, LockKind, Source, Target, Team};

const BYTES: usize = 1 << 20;
const WORDS: u64 = BYTES as u64 / 8;
const NONE: Asserts = Asserts::NONE;

/// Closes an endpoint after a time, unless the sender that it returns is dropped before: then calls that hang fail.
fn close_late(endpoint: &Endpoint) -> mpsc::Sender<()> {
    let (ends, ended) = mpsc::channel::<()>();
    let endpoint = endpoint.clone();
    std::thread::spawn(move || {
        if ended.recv_timeout(Duration::from_secs(30)) == Err(mpsc::RecvTimeoutError::Timeout) {
            endpoint.close();
        }
    });
    ends
}

/// Three ranks, which are threads.
fn three(act: impl Fn(&Team, u32) + Sync) {
    let addresses = Mutex::new(vec![Vec::new(); 3]);
    let here = Barrier::new(3);
    let run = |rank: u32| {
        let listen = Listen::At { address: "127.0.0.1:0", exactly: true };
        let rails = vec![modules::open("tcp", &listen).expect("this host has it")];
        let endpoint = Endpoint::open(EndpointConfig::new(ClusterId(9)), rails).expect("it opens");
        let exchange = |own: &[u8]| {
            addresses.lock().expect("nobody panics")[rank as usize] = own.to_vec();
            here.wait();
            Ok::<_, Infallible>(addresses.lock().expect("nobody panics").clone())
        };
        let group = Group::find(&endpoint, rank, 7 << 48, exchange).expect("all are here");
        let team = Team::new(&endpoint, &group, 8 << 48).expect("there is room");
        let _hangs = close_late(&endpoint);
        act(&team, rank);
        team.settle(Duration::from_secs(5));
        endpoint.close();
    };
    std::thread::scope(|scope| {
        let run = &run;
        (0..3).for_each(|rank| {
            scope.spawn(move || run(rank));
        });
    });
}

/// The rank that dies: all hear its card, and in the last exchange rank 0 alone hears of it.
fn dies(team: &Team, options: &WindowOptions) {
    let card = Card::new(0, BYTES as u64, options, false).encode();
    let key = posting::encode(RemoteKey { slot: SlotId { index: 0, generation: 1 }, secret: 1 });
    let shared = &team.shared;
    let done: Result<(), Error> = shared.call(|| {
        if options.implementation == Implementation::Messages {
            shared.give(&card, [0]);
            return Ok(());
        }
        shared.give(&card, [0, 1, 2]);
        shared.taken()?;
        shared.give(&key, [0]);
        Ok(())
    });
    done.expect("all are there");
}

/// Rank 0 works on a window that rank 1 does not have: every call ends, and the last one of each epoch tells of it.
fn works(window: &mut Window) {
    let (word, value) = (Datatype::of(Element::U64), 1u64.to_ne_bytes());
    let at = |count| Target::new(1, 0, count, &word);
    let one = || Source::slice(&value, 1, &word);
    let (data, back) = (Cells::zeroed(BYTES), Cells::zeroed(BYTES));
    let all = || Source::cells(&data, 0, WORDS, &word);
    let into = || Destination::new(&back, 0, WORDS, &word);
    // Each of them may have been told before that the rank has no window.
    drop(window.lock(LockKind::Exclusive, 1, NONE));
    drop(window.put(one(), at(1)).and_then(|()| window.flush(1)));
    drop(window.rget(into(), at(WORDS)).map(|request| request.wait()));
    drop(window.accumulate(all(), at(WORDS), Operator::Sum).and_then(|()| window.flush(1)));
    drop(window.put(all(), at(WORDS)));
    window.unlock(1).expect_err("rank 1 has no window");
    let gone = |told: Result<(), Error>| {
        let is_told = matches!(told, Err(Error::Lost { rank: 1, loss: Loss::Without, .. }));
        assert!(is_told, "{told:?}");
    };
    window.lock(LockKind::Shared, 1, NONE).expect("it may");
    gone(window.put(one(), at(1)).and_then(|()| window.flush(1)));
    drop(window.unlock(1));
    window.start(&[1], NONE).expect("it may");
    gone(window.complete());
    window.post(&[1], NONE).expect("it may");
    gone(window.wait());
    window.fence(Asserts::NO_SUCCEED).expect_err("two ranks are not there");
    window.lock_all(NONE).expect("it may");
    window.unlock_all().expect_err("two ranks are not there");
    window.free().expect_err("two ranks are not there");
}

/// How far it is known that rank 1 gave up, when rank 0 begins to work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// Rank 0 has heard it.
    ByAll,
    /// Rank 1 has told it.
    Told,
    /// Rank 1 tells it later: what rank 0 asks for is on its way then.
    ByOne,
}

fn one_has_it(implementation: Implementation, known: Known) {
    let is_made = AtomicBool::new(false);
    let options = WindowOptions { implementation, map_memory: false, ..WindowOptions::default() };
    three(|team, rank| {
        let is_lost = |told: &Error| matches!(told, Error::TeamLost { rank: 2, .. });
        match rank {
            0 => {
                let mut window = team.allocate(BYTES, &options).expect("it heard of all");
                is_made.store(true, Ordering::SeqCst);
                let until = Instant::now() + Duration::from_millis(300);
                while Instant::now() < until {
                    if known == Known::ByAll {
                        team.progress();
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
                works(&mut window);
            }
            1 => {
                let cells = Cells::zeroed(BYTES);
                let told = team.shared.call(|| {
                    let shared = &team.shared;
                    let made = Window::create(shared, &cells, 0..BYTES, &options, Sharing::Not);
                    if known == Known::ByOne {
                        std::thread::sleep(Duration::from_millis(800));
                    }
                    made.map(drop)
                });
                let told = told.expect_err("rank 2 is lost");
                assert!(is_lost(&told), "{told}");
            }
            _ => {
                dies(team, &options);
                while !is_made.load(Ordering::SeqCst) {
                    team.progress();
                }
                return;
            }
        }
        // They have not lost each other.
        for _ in 0..3 {
            let met = team.barrier().expect_err("rank 2 is lost");
            let exchanged = team.exchange(&[0]).map(drop).expect_err("rank 2 is lost");
            let are_lost = is_lost(&met) && is_lost(&exchanged);
            assert!(are_lost, "{implementation:?}, {known:?}: {met}; {exchanged}");
        }
    });
}

#[test]
fn who_has_a_window_that_another_one_gave_up_is_told_and_loses_nobody() {
    for implementation in
        [Implementation::Direct, Implementation::Messages, Implementation::DirectAccumulateAtOrigin]
    {
        for known in [Known::ByAll, Known::Told, Known::ByOne] {
            one_has_it(implementation, known);
        }
    }
}
