//! Ranks that are threads of this process.
#![allow(dead_code)]

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::Duration;

use ropewalk_base::ids::ClusterId;
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{Endpoint, EndpointConfig, Group};
use ropewalk_rma::{Implementation, Team, Window, WindowOptions};

/// Each of some ranks does this with its endpoint, its group and its team.
pub fn ranks(scheme: &str, size: usize, act: impl Fn(Endpoint, Group, Team, u32) + Sync) {
    ranks_that_see(scheme, size, |_, addresses| addresses, act);
}

/// The same. `seen` says which addresses a rank takes for those of all ranks.
pub fn ranks_that_see(
    scheme: &str,
    size: usize,
    seen: impl Fn(u32, Vec<Vec<u8>>) -> Vec<Vec<u8>> + Sync,
    act: impl Fn(Endpoint, Group, Team, u32) + Sync,
) {
    static NUMBER: AtomicU32 = AtomicU32::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let addresses = Mutex::new(vec![Vec::new(); size]);
    let here = Barrier::new(size);
    let run = |rank: u32| {
        let endpoint = endpoint(scheme, &format!("ranks{}-{number}-{rank}", std::process::id()));
        let exchange = |own: &[u8]| {
            addresses.lock().expect("nobody panics")[rank as usize] = own.to_vec();
            here.wait();
            Ok::<_, Infallible>(seen(rank, addresses.lock().expect("nobody panics").clone()))
        };
        let group = Group::find(&endpoint, rank, 7 << 48, exchange).expect("all are here");
        let team = Team::new(&endpoint, &group, 8 << 48).expect("there is room");
        act(endpoint, group, team, rank);
    };
    std::thread::scope(|scope| {
        let run = &run;
        (0..size as u32).for_each(|rank| {
            scope.spawn(move || run(rank));
        });
    });
}

/// An endpoint of one rail; `name` is its address over shared memory.
pub fn endpoint(scheme: &str, name: &str) -> Endpoint {
    let address = if scheme == "shm" { name } else { "127.0.0.1:0" };
    let rail = modules::open(scheme, &Listen::At { address, exactly: true });
    let rails = vec![rail.expect("this host has it")];
    Endpoint::open(EndpointConfig::new(ClusterId(9)), rails).expect("it opens")
}

/// Each of two ranks does this with a window by remote access.
pub fn two_of_a_team(scheme: &str, act: impl Fn(&Team, &Window, &Endpoint, u32) + Sync) {
    let (begun, done) = (Barrier::new(2), Barrier::new(2));
    ranks(scheme, 2, |endpoint, group, team, rank| {
        let options =
            WindowOptions { implementation: Implementation::Direct, ..WindowOptions::default() };
        let mut window = team.allocate(1 << 20, &options).expect("all make the same");
        begun.wait();
        let worked = catch_unwind(AssertUnwindSafe(|| act(&team, &window, &endpoint, rank)));
        if worked.is_err() {
            // The other rank waits for nobody then.
            endpoint.close();
        }
        // Here a rank waits without any call on its window or its endpoint.
        done.wait();
        worked.unwrap_or_else(|panic| resume_unwind(panic));
        window.free().expect("nobody is lost");
        team.settle(Duration::from_secs(5));
        group.leave(&endpoint);
        endpoint.close();
    });
}
