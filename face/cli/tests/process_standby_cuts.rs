//! Two metadata servers and a witness in network namespaces, each of which is cut off in turn: creates go on, nothing that
//! was acknowledged is lost, and a server that is cut off acknowledges nothing.

mod support;

use std::time::{Duration, Instant};

use ropewalk_netns::{Fault, FaultKind, Injected};
use support::pair::{Pair, WITNESS};

/// A create that had to wait for another server, on a busy machine.
const LONG: Duration = Duration::from_secs(15);

fn cut(pair: &Pair, host: usize) -> Injected {
    let network = pair.network.as_ref().expect("it has namespaces");
    network.inject(&Fault::new(FaultKind::Cut, host, 0)).expect("a host can be cut off")
}

#[test]
fn an_active_server_that_is_cut_off_acknowledges_nothing_and_follows_later() {
    let Some(mut pair) = Pair::apart() else { return };
    pair.make(5);
    // So there is a standby, and server 1 is the active one.
    pair.switch();
    pair.make(5);
    let injected = cut(&pair, 1);
    let longest = pair.make(10);
    println!("the active server is cut off: {longest:?}");
    assert!(longest < LONG, "{longest:?}");
    // On its own host it can be reached still, and it has been replaced.
    let address = pair.address_of(1);
    let begin = Instant::now();
    let alone = ["mkdir", "-A", &address, "--patience", "3", ":/alone"];
    let error = pair.run(1, &alone).badly();
    assert!(begin.elapsed() < LONG && !error.is_empty(), "{error}");
    pair.check();
    injected.mend().unwrap();
    pair.make(5);
    pair.check();
    // It follows again: it gets the term, with everything.
    pair.switch();
    pair.make(5);
    pair.check();
}

#[test]
fn a_standby_that_is_cut_off_holds_nobody_up_and_catches_up() {
    let Some(mut pair) = Pair::apart() else { return };
    pair.switch();
    pair.make(5);
    // Server 1 serves, server 0 follows once it may take over.
    pair.switch();
    pair.switch();
    pair.make(5);
    let injected = cut(&pair, 0);
    let longest = pair.make(10);
    println!("the standby is cut off: {longest:?}");
    assert!(longest < LONG, "{longest:?}");
    // The one that lacks records cannot be elected.
    let file = pair.cluster_file();
    let order = ["meta", "switch", "--cluster-file", &file];
    let error = pair.run(support::pair::CLIENT, &order).badly();
    assert!(error.contains("no standby"), "{error}");
    injected.mend().unwrap();
    pair.make(5);
    pair.switch();
    pair.make(5);
    pair.check();
}

#[test]
fn without_the_witness_two_servers_go_on_and_change_places() {
    let Some(mut pair) = Pair::apart() else { return };
    pair.switch();
    pair.make(5);
    // The second data server is cut off with the witness: directories need none.
    let injected = cut(&pair, WITNESS);
    let longest = pair.make(10);
    println!("the witness is cut off: {longest:?}");
    assert!(longest < LONG, "{longest:?}");
    pair.switch();
    pair.make(10);
    pair.check();
    injected.mend().unwrap();
    pair.make(5);
    pair.switch();
    pair.make(5);
    pair.check();
}
