//! What windows by messages send: small operations share messages, and tokens ride with them.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Barrier, Mutex};

use ropewalk_base::ids::ClusterId;
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{Endpoint, EndpointConfig, Group};
use ropewalk_rma::{
    Asserts, Cells, Datatype, Destination, Element, Implementation, LockKind, Source, Target, Team,
    Window, WindowOptions,
};

/// A rank of two, with its endpoint, whose messages are counted.
struct Rank {
    endpoint: Endpoint,
    team: Team,
    window: Window,
}

impl Rank {
    /// Messages that this rank sent within a call.
    fn sent(&self, act: impl FnOnce()) -> u64 {
        let count = || {
            let counters = self.endpoint.counters().0;
            counters.messages_eager_sent + counters.messages_announced
        };
        let before = count();
        act();
        count() - before
    }

    fn put(&self, bytes: u64) {
        let (data, byte) = (vec![5; bytes as usize], Datatype::of(Element::Byte));
        let target = Target::new(1, 0, bytes, &byte);
        self.window.put(Source::slice(&data, bytes, &byte), target).unwrap();
    }
}

fn pair(work: impl Fn(&Rank) + Sync) {
    let addresses = Mutex::new(vec![Vec::new(); 2]);
    let (all_here, all_done) = (Barrier::new(2), Barrier::new(2));
    let run = |rank: usize| {
        let listen = Listen::At { address: "127.0.0.1:0", exactly: true };
        let rail = modules::open("tcp", &listen).expect("the loopback interface has it");
        let endpoint = Endpoint::open(EndpointConfig::new(ClusterId(9)), vec![rail]).unwrap();
        let exchange = |address: &[u8]| {
            addresses.lock().unwrap()[rank] = address.to_vec();
            all_here.wait();
            Ok::<_, Infallible>(addresses.lock().unwrap().clone())
        };
        let group = Group::find(&endpoint, rank as u32, 7 << 48, exchange).unwrap();
        let team = Team::new(&endpoint, &group, 8 << 48).unwrap();
        let implementation = Implementation::Messages;
        let options = WindowOptions { implementation, ..WindowOptions::default() };
        let window = team.allocate(1 << 20, &options).unwrap();
        let own = Rank { endpoint: endpoint.clone(), team, window };
        let worked = catch_unwind(AssertUnwindSafe(|| work(&own)));
        if worked.is_err() {
            // The other rank waits for nobody then.
            endpoint.close();
        }
        all_done.wait();
        endpoint.close();
        worked.unwrap_or_else(|panic| resume_unwind(panic));
    };
    std::thread::scope(|scope| {
        scope.spawn(|| run(1));
        run(0);
    });
}

const NONE: Asserts = Asserts::NONE;

#[test]
fn a_lock_an_operation_and_the_unlock_are_one_message() {
    pair(|own| {
        if own.team.rank() == 0 {
            let sent = own.sent(|| {
                own.window.lock(LockKind::Exclusive, 1, NONE).unwrap();
                (0..10).for_each(|_| own.put(8));
                own.window.unlock(1).unwrap();
            });
            assert_eq!(sent, 1);
            // Nothing is sent for a lock that nobody used.
            let sent = own.sent(|| {
                own.window.lock(LockKind::Shared, 1, NONE).unwrap();
                own.window.flush(1).unwrap();
                own.window.unlock(1).unwrap();
                own.window.lock_all(NONE).unwrap();
                own.window.unlock_all().unwrap();
            });
            assert_eq!(sent, 0);
            // In an epoch that stays open: the request, then one for each flush.
            own.window.lock_all(NONE).unwrap();
            let sent = own.sent(|| {
                own.put(8);
                own.window.flush(1).unwrap();
            });
            assert_eq!(sent, 2);
            let sent = own.sent(|| {
                own.put(8);
                own.window.flush(1).unwrap();
            });
            assert_eq!(sent, 1);
            own.window.unlock_all().unwrap();
        }
        own.team.barrier().unwrap();
    });
}

#[test]
fn a_thread_that_serves_takes_the_place_of_calls_of_the_target() {
    // The target makes no call until the origin's flushes have returned.
    let (served, stops) = (Barrier::new(2), AtomicBool::new(false));
    pair(|own| {
        if own.team.rank() == 0 {
            own.window.lock_all(NONE).unwrap();
            for bytes in [8, 100_000] {
                own.put(bytes);
                own.window.flush(1).unwrap();
            }
            own.window.unlock_all().unwrap();
            served.wait();
        } else {
            std::thread::scope(|scope| {
                let serve = scope.spawn(|| own.team.serve_until(|| stops.load(Ordering::Relaxed)));
                served.wait();
                stops.store(true, Ordering::Relaxed);
                own.team.progress();
                assert_eq!(serve.join().unwrap(), Ok(()));
            });
            assert_eq!(own.window.cells().load::<u8>(99_999), Some(5));
        }
        own.team.barrier().unwrap();
    });
}

#[test]
fn threads_that_wait_beside_each_other_do_not_sleep_through_their_news() {
    // Each wake-up that got lost would cost 100 ms.
    const ROUNDS: usize = 600;
    let begin = std::time::Instant::now();
    pair(|own| {
        let stops = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| own.team.serve_until(|| stops.load(Ordering::Relaxed)).unwrap());
            for _ in 0..ROUNDS {
                if own.team.rank() == 0 {
                    own.window.start(&[1], NONE).unwrap();
                    own.put(8);
                    own.window.complete().unwrap();
                } else {
                    own.window.post(&[0], NONE).unwrap();
                    own.window.wait().unwrap();
                }
            }
            own.team.barrier().unwrap();
            stops.store(true, Ordering::Relaxed);
            own.team.progress();
        });
    });
    assert!(begin.elapsed().as_secs() < 10, "{:?}", begin.elapsed());
}

#[test]
fn small_operations_leave_together_and_many_of_them_early() {
    pair(|own| {
        if own.team.rank() == 0 {
            own.window.start(&[1], NONE).unwrap();
            own.team.barrier().unwrap();
            let sent = own.sent(|| (0..15).for_each(|_| own.put(8)));
            assert_eq!(sent, 0, "they wait for the complete");
            let sent = own.sent(|| own.put(8));
            assert_eq!(sent, 1, "the sixteenth takes all along");
            let sent = own.sent(|| {
                (0..5).for_each(|_| own.put(100));
                own.window.complete().unwrap();
            });
            assert_eq!(sent, 1, "the rest leaves with the complete");
            own.window.start(&[1], NONE).unwrap();
            own.team.barrier().unwrap();
            let sent = own.sent(|| (0..4).for_each(|_| own.put(16_000)));
            assert_eq!(sent, 0, "64 KiB do not wait yet");
            let sent = own.sent(|| own.put(16_000));
            assert_eq!(sent, 2, "they fill two messages");
            own.window.complete().unwrap();
        } else {
            for _ in 0..2 {
                own.window.post(&[0], NONE).unwrap();
                own.team.barrier().unwrap();
                own.window.wait().unwrap();
            }
        }
        own.team.barrier().unwrap();
    });
}

#[test]
fn long_data_go_in_one_message_behind_theirs_and_results_come_so() {
    // The target counts from the first message on.
    let counts = Barrier::new(2);
    pair(|own| {
        if own.team.rank() == 0 {
            counts.wait();
            own.window.lock_all(Asserts::NO_CHECK).unwrap();
            let sent = own.sent(|| {
                own.put(50_000);
                own.window.flush(1).unwrap();
            });
            assert_eq!(sent, 2, "operations with the flush, and the data");
            let sent = own.sent(|| own.put(100_000));
            assert_eq!(sent, 2, "so many leave at once");
            let sent = own.sent(|| own.window.flush(1).unwrap());
            assert_eq!(sent, 1);
            let back = Cells::zeroed(1 << 20);
            let byte = Datatype::of(Element::Byte);
            let sent = own.sent(|| {
                let to = Destination::new(&back, 0, 1 << 20, &byte);
                own.window.get(to, Target::new(1, 0, 1 << 20, &byte)).unwrap();
                own.window.flush(1).unwrap();
            });
            assert_eq!(sent, 1, "the request");
            own.window.unlock_all().unwrap();
            own.team.barrier().unwrap();
        } else {
            let sent = own.sent(|| {
                counts.wait();
                own.team.barrier().unwrap();
            });
            // Two flushes and the get are answered, and the barrier has a token.
            assert_eq!(sent, 4);
        }
    });
}
