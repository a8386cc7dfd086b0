//! Two metadata servers as processes of their own, and a data server that votes, too: one takes over from the other, and
//! nothing that was acknowledged is lost.

mod support;

use support::Process;
use support::command::ropewalk;
use support::pair::{Pair, free};

#[test]
fn the_standby_takes_over_whatever_becomes_of_the_active_server() {
    let mut pair = Pair::new();
    pair.make(20);
    // Server 1 serves, server 0 follows it, and the other way round.
    pair.switch();
    println!("switched: {:?}", pair.make(20));
    pair.switch();
    pair.make(5);
    pair.switch();
    pair.make(5);
    // Server 1 serves: it is killed, comes back, and follows.
    pair.metas[1].take().expect("it runs").kill();
    println!("killed: {:?}", pair.make(20));
    assert!(pair.start(1, false, None));
    pair.check();
    pair.switch();
    pair.make(5);
    // Server 1 serves again: it is stopped, and goes on later without harm.
    let stopped = pair.metas[1].take().expect("it runs");
    stopped.suspend();
    println!("stopped: {:?}", pair.make(20));
    rustix::process::kill_process(stopped.pid(), rustix::process::Signal::CONT).unwrap();
    pair.metas[1] = Some(stopped);
    pair.make(20);
    pair.check();
    pair.switch();
    pair.make(5);
    pair.check();
    for meta in pair.metas.iter_mut().flatten() {
        meta.stop();
    }
}

#[test]
fn one_metadata_server_has_nobody_to_change_places_with() {
    let place = tempfile::tempdir().unwrap();
    let directory = place.path().join("cluster").display().to_string();
    ropewalk(place.path(), "", &["format", &directory]).well();
    let meta = format!("{directory}/meta");
    let listen = free().to_string();
    let arguments = ["serve", "meta", "--directory", &meta, "--listen", &listen];
    let mut server = Process::start(&arguments, "serving at");
    let address = format!("tcp://{listen}");
    let error = ropewalk(place.path(), &address, &["meta", "switch"]).badly();
    assert!(error.contains("no standby"), "{error}");
    server.stop();
    let arguments = ["serve", "meta", "--directory", &meta, "--join"];
    let error = ropewalk(place.path(), &address, &arguments).badly();
    assert!(error.contains("[election]"), "{error}");
}
