//! Two metadata servers as processes of their own, and a data server that votes, too: one takes over from the other, and
//! nothing that was acknowledged is lost.

mod support;

use support::Process;
use support::command::ropewalk;
use support::pair::{CLIENT, Pair, free};
use support::scrape::{scrape, sum};

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
    pair.wait_for_standby();
    pair.metas[1].take().expect("it runs").kill();
    println!("killed: {:?}", pair.make(20));
    assert!(pair.start(1, false, None));
    pair.check();
    pair.switch();
    pair.make(5);
    // Server 1 serves again: it is stopped, and goes on later without harm.
    pair.wait_for_standby();
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
fn status_tells_who_serves_who_follows_and_what_is_missing() {
    let mut pair = Pair::new();
    pair.make(3);
    let status = pair.wait_for_standby();
    let metas = &status["metadata_servers"];
    assert_eq!(metas["witness"]["server"], 0, "{metas}");
    assert!(metas["witness"]["silent_seconds"].as_f64() < Some(5.0), "{metas}");
    assert!(metas["term"].as_u64() > Some(0), "{metas}");
    let active = metas["active"].as_u64().expect("one serves") as usize;
    let standby = &metas["servers"][1 - active];
    assert_eq!(metas["servers"][active]["role"], "active", "{metas}");
    assert_eq!((&standby["role"], &standby["has_all"]), (&"standby".into(), &true.into()));
    assert!(standby["lag_records"].as_u64() < Some(10), "{standby}");
    assert_eq!(status["problems"].as_array().map(Vec::len), Some(0), "{status}");
    let table = pair.run(CLIENT, &["status", "--interval", "0"]).well();
    assert!(table.contains("up, active") && table.contains("standby, has all"), "{table}");
    let (page, other) = (scrape(pair.metrics[active]), scrape(pair.metrics[1 - active]));
    for (metric, value) in [
        ("ropewalk_meta_active", 1.0),
        ("ropewalk_meta_standbys_ready", 1.0),
        ("ropewalk_meta_standbys_wanted", 1.0),
    ] {
        assert_eq!(sum(&page, metric, ""), value, "{page}");
    }
    assert!(sum(&page, "ropewalk_meta_standby_lag_records", "") < 10.0, "{page}");
    assert_eq!(sum(&other, "ropewalk_meta_active", ""), 0.0, "{other}");
    assert_eq!(sum(&other, "ropewalk_server_up", ""), 1.0, "{other}");
    assert!(sum(&other, "ropewalk_work_seconds_count", "disk_write") > 0.0, "{other}");
    assert!(sum(&other, "ropewalk_room_bytes", "") > 0.0, "{other}");
    // The active server is killed: the other one takes over, and has nobody.
    pair.metas[active].take().expect("it runs").kill();
    let status = pair.status_with(|it| it["metadata_servers"]["active"] == 1 - active);
    let problems = status["problems"].as_array().expect("a list").clone();
    let sought = format!("'ropewalk serve meta --number {active}'");
    assert!(
        problems.iter().any(|it| {
            let (what, remedy) = (it["what"].as_str(), it["remedy"].as_str());
            what.is_some_and(|it| it.contains("the next death of the metadata server"))
                && remedy.is_some_and(|it| it.contains(&sought))
        }),
        "{status}"
    );
    let table = pair.run(CLIENT, &["status", "--interval", "0"]).well();
    assert!(table.contains("no answer") && table.contains("! the next death"), "{table}");
    // Nobody serves: the error names what answers.
    let other = pair.metas[1 - active].take().expect("it runs");
    other.suspend();
    assert!(pair.start(active, false, None));
    let arguments = ["status", "--interval", "0", "--patience", "1"];
    let said = pair.run(CLIENT, &arguments);
    assert!(said.success || said.error.contains("does not answer"), "{}", said.error);
    pair.metas[1 - active] = Some(other);
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
