//! Windows by remote access: their targets need to do nothing.

use std::convert::Infallible;
use std::sync::{Barrier, Mutex};
use std::time::Duration;

use ropewalk_base::ids::ClusterId;
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{Endpoint, EndpointConfig, Group};
use ropewalk_rma::{
    Asserts, Cells, Datatype, Destination, Element, Implementation, LockKind, Operator, Source,
    Target, Team, Window, WindowOptions,
};

const NONE: Asserts = Asserts::NONE;

/// Two ranks, each in a thread; rank 1 makes no call between the barriers.
fn beside_one_that_computes(scheme: &str, act: impl Fn(&Window) + Sync) {
    let addresses = Mutex::new(vec![Vec::new(); 2]);
    let (here, begun, done) = (Barrier::new(2), Barrier::new(2), Barrier::new(2));
    let run = |rank: u32| {
        let name = format!("direct{}-{scheme}-{rank}", std::process::id());
        let address = if scheme == "shm" { name.as_str() } else { "127.0.0.1:0" };
        let rail = modules::open(scheme, &Listen::At { address, exactly: true });
        let rails = vec![rail.expect("this host has it")];
        let endpoint = Endpoint::open(EndpointConfig::new(ClusterId(9)), rails).expect("it opens");
        let exchange = |own: &[u8]| {
            addresses.lock().expect("nobody panics")[rank as usize] = own.to_vec();
            here.wait();
            Ok::<_, Infallible>(addresses.lock().expect("nobody panics").clone())
        };
        let group = Group::find(&endpoint, rank, 7 << 48, exchange).expect("all are here");
        let team = Team::new(&endpoint, &group, 8 << 48).expect("there is room");
        let options =
            WindowOptions { implementation: Implementation::Direct, ..WindowOptions::default() };
        let mut window = team.allocate(1 << 20, &options).expect("all make the same");
        begun.wait();
        if rank == 0 {
            act(&window);
        }
        // The other one waits here without any call on its window or its endpoint.
        done.wait();
        window.free().expect("nobody is lost");
        team.settle(Duration::from_secs(5));
        group.leave(&endpoint);
        endpoint.close();
    };
    std::thread::scope(|scope| {
        let run = &run;
        (0..2).for_each(|rank| {
            scope.spawn(move || run(rank));
        });
    });
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
