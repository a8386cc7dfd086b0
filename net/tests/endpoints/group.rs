//! Groups of endpoints in threads, over real sockets.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use ropewalk_base::ids::ClusterId;
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{Endpoint, EndpointConfig, Group, GroupError};

const LIMIT: Duration = Duration::from_secs(30);
const TAG: u64 = 0x6772_6f75_7000_0000;

fn endpoint() -> Endpoint {
    let listen = Listen::At { address: "127.0.0.1:0", exactly: true };
    let rail = modules::open("tcp", &listen).expect("the loopback interface has it");
    Endpoint::open(EndpointConfig::new(ClusterId(7)), vec![rail]).expect("it opens")
}

/// Runs ranks, each in a thread with its endpoint and group.
fn ranks(size: u32, work: impl Fn(&Endpoint, Group) + Sync) {
    let addresses = Mutex::new(vec![Vec::new(); size as usize]);
    let all_here = Barrier::new(size as usize);
    std::thread::scope(|scope| {
        for rank in 0..size {
            let (addresses, all_here, work) = (&addresses, &all_here, &work);
            scope.spawn(move || {
                let endpoint = endpoint();
                let exchange = |own: &[u8]| {
                    addresses.lock().expect("nobody panics")[rank as usize] = own.to_vec();
                    all_here.wait();
                    Ok::<_, Infallible>(addresses.lock().expect("nobody panics").clone())
                };
                let group = Group::find(&endpoint, rank, TAG, exchange).expect("all are here");
                work(&endpoint, group);
            });
        }
    });
}

#[test]
fn nobody_leaves_a_barrier_before_all_have_come() {
    for size in [1, 2, 3, 5, 8] {
        let came = AtomicU64::new(0);
        ranks(size, |endpoint, mut group| {
            assert_eq!(group.size(), size);
            assert_eq!(group.peer(group.rank()), endpoint.own_peer().expect("there is room"));
            // More rounds than the messages' tags can tell apart.
            for round in 0..600 {
                came.fetch_add(1, Ordering::SeqCst);
                group.barrier(endpoint).expect("all are here");
                let sum = came.load(Ordering::SeqCst);
                let (least, most) = (u64::from(size) * (round + 1), u64::from(size) * (round + 2));
                assert!((least..=most).contains(&sum), "{sum} in round {round} of {size}");
            }
            group.leave(endpoint);
        });
        assert_eq!(came.into_inner(), 600 * u64::from(size));
    }
}

#[test]
fn who_waits_for_a_rank_that_is_gone_is_told() {
    let begin = Instant::now();
    ranks(3, |endpoint, mut group| {
        group.barrier(endpoint).expect("all are here");
        if group.rank() == 1 {
            return endpoint.close();
        }
        let error = loop {
            if let Err(error) = group.barrier(endpoint) {
                break error;
            }
        };
        assert!(matches!(error, GroupError::Rank { .. }), "{error}");
        assert!(begin.elapsed() < LIMIT, "{:?}", begin.elapsed());
        // The other one may wait for this one.
        endpoint.close();
    });
}

#[test]
fn what_is_no_address_is_told_with_its_rank() {
    let endpoint = endpoint();
    let find = |rank, answer: &[&str]| {
        let all: Vec<Vec<u8>> = answer.iter().map(|it| it.as_bytes().to_vec()).collect();
        let group = Group::find(&endpoint, rank, TAG, |_| Ok::<_, std::io::Error>(all));
        group.map(drop).expect_err("it is none").to_string()
    };
    let why = find(0, &["", "not an address"]);
    assert!(why.starts_with("rank 1 has no address"), "{why}");
    assert_eq!(find(2, &["", ""]), "a group of 2 ranks has no rank 2");
    let broken = || Err::<Vec<Vec<u8>>, _>(std::io::Error::other("no job"));
    let why = Group::find(&endpoint, 0, TAG, |_| broken()).map(drop).expect_err("it breaks");
    assert_eq!(why.to_string(), "ranks cannot exchange their addresses: no job");
}
