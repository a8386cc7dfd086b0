//! Both metadata servers are killed at chosen system calls, as the active one and as the standby: creates go on, nothing
//! that was acknowledged is lost, and a server that was killed catches up.

mod support;

use std::time::{Duration, Instant};

use support::pair::Pair;
use support::shim::{KillAt, arm, first_calls, kills_usable};

/// Calls at which a server dies, counted from the moment at which it has its part.
const CALLS: [(&str, u64, &str); 5] = [
    ("write", 1, "torn"),
    ("write", 20, "before"),
    ("sync", 1, "before"),
    ("send", 3, "before"),
    ("send", 60, "after"),
];
/// The first calls of each kind, at each of which somebody dies in `cargo verify --deep`.
const EACH: u64 = 12;
/// Directories after which the chosen call is not waited for any longer.
const MOST: u32 = 30;

/// Has a server die in its part. `None`: the call did not come, and it was killed there and then.
fn die(pair: &mut Pair, number: usize) -> Option<u32> {
    arm(pair.metas[number].as_ref().expect("it lives").pid());
    for count in 0..MOST {
        pair.make(1);
        if pair.metas[number].as_mut().expect("it was started").is_over() {
            return Some(count);
        }
    }
    pair.metas[number].as_mut().expect("it lives").kill();
    None
}

/// One server after the other dies, in the part of the active server or that of the standby.
fn kills(dies_active: bool, calls: &[(&'static str, u64, &'static str)]) {
    if !kills_usable() {
        return;
    }
    let mut pair = Pair::new();
    let begin = Instant::now();
    // Server 0 serves; now server 1 does, and server 0 follows.
    pair.switch();
    let (mut active, mut chosen) = (1, 0);
    for &(kind, count, how) in calls {
        // It is started anew as the standby, to die later.
        let victim = 1 - active;
        pair.metas[victim].take().expect("it lives").stop();
        let kill = KillAt { kind, number: count, serving: true, how, group: false, sockets: false };
        assert!(pair.start(victim, false, Some(&kill)), "it is not armed yet");
        pair.make(2);
        // The victim serves, and then, where it shall die as the standby, the other one again.
        pair.switch();
        if !dies_active {
            pair.switch();
        }
        let died = die(&mut pair, victim);
        chosen += usize::from(died.is_some());
        println!("{kind} {count} {how}: after {died:?} directories, {:?}", begin.elapsed());
        pair.make(2);
        assert!(pair.start(victim, false, None), "a server that was killed starts again");
        pair.make(2);
        // It is the active one while the next one dies: both die in turn.
        pair.switch();
        pair.check();
        active = victim;
    }
    assert!(2 * chosen > calls.len(), "most die at the call that was chosen, not {chosen}");
    // Each of both has everything.
    pair.switch();
    pair.check();
    pair.switch();
    pair.check();
    let most = Duration::from_secs(24) * calls.len() as u32;
    assert!(begin.elapsed() < most, "{:?}", begin.elapsed());
}

#[test]
fn an_active_server_that_dies_at_a_chosen_call_loses_nothing() {
    kills(true, &CALLS);
}

#[test]
fn a_standby_that_dies_at_a_chosen_call_loses_nothing() {
    kills(false, &CALLS);
}

#[test]
#[ignore = "takes minutes"]
fn active_servers_that_die_at_each_of_the_first_calls_lose_nothing() {
    kills(true, &first_calls(EACH));
}

#[test]
#[ignore = "takes minutes"]
fn standbys_that_die_at_each_of_the_first_calls_lose_nothing() {
    kills(false, &first_calls(EACH));
}
