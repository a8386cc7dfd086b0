//! `check` and `status` on servers that are processes of their own.

mod support;

use std::time::{Duration, Instant};

use ropewalk_store::objects::ObjectId;
use serde_json::Value;
use support::operator::Servers;
use support::{PROGRAM, run};

/// Waits until what `status` shows is so.
fn wait_for(servers: &Servers, what: &str, so: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let status = servers.status("0");
        if so(&status) {
            return status;
        }
        assert!(Instant::now() < deadline, "{what}: {status}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn states(status: &Value) -> Vec<&str> {
    let servers = status["servers"].as_array().expect("a list");
    servers.iter().map(|server| server["state"].as_str().expect("a word")).collect()
}

#[test]
fn status_shows_the_servers_and_a_killed_one_as_down() {
    let place = tempfile::tempdir().unwrap();
    let mut servers = Servers::start(place.path(), 2);
    let before = wait_for(&servers, "both join", |status| {
        status["servers"].as_array().is_some_and(|list| list.len() == 2)
    });
    assert_eq!(states(&before), ["up", "up"]);
    assert_eq!(before["metadata"]["state"], "up");
    assert_eq!(before["metadata"]["inodes"], 1);
    assert_eq!(before["metadata"]["pool_servers"], 2);
    assert!(
        before["capacity"]["total_bytes"].as_u64() > before["capacity"]["available_bytes"].as_u64()
    );
    // A rate needs two looks; the second one sees at least the first.
    let measured = servers.status("0.2");
    assert!(measured["seconds"].as_f64().expect("a time") >= 0.2);
    let rate = &measured["metadata"]["rates"]["status"]["calls_per_second"];
    assert!(rate.as_f64().expect("a rate") > 0.0);
    let table = run(place.path(), PROGRAM, &["status", "-A", &servers.address]);
    assert!(table.contains("pool version") && table.contains("list servers"), "{table}");
    servers.data[1].take().expect("it runs").kill();
    let during = servers.status("0");
    assert_eq!(states(&during), ["up", "down"]);
    assert_eq!(during["servers"][1]["answer"], Value::Null);
    // Half of the objects cannot be looked at: that is not the same as finding nothing.
    let (code, found, summary) = servers.check(&[]);
    assert_eq!((code, found.len()), (2, 0));
    assert!(summary["unreached"]["1"].as_str().expect("a reason").contains("does not answer"));
    servers.start_data(1);
    let after = wait_for(&servers, "it comes back", |status| states(status) == ["up", "up"]);
    let boot = |status: &Value| status["servers"][1]["answer"]["boot"].clone();
    assert_ne!(boot(&before), boot(&after), "it lives anew");
    assert_eq!(servers.check(&[]).0, 0);
}

#[test]
fn a_check_right_after_a_restart_of_the_metadata_server_waits_for_the_heartbeats() {
    let place = tempfile::tempdir().unwrap();
    let mut servers = Servers::start(place.path(), 2);
    wait_for(&servers, "both join", |status| states(status) == ["up", "up"]);
    servers.meta.take().expect("it runs").kill();
    servers.start_meta();
    let (code, found, summary) = servers.check(&[]);
    assert_eq!((code, found.len()), (0, 0), "{summary}");
    // One that does not come is named by what is known of it: its address is not.
    servers.stop_data(1);
    servers.meta.take().expect("it runs").kill();
    servers.start_meta();
    let (code, _, summary) = servers.check(&["--patience", "1"]);
    assert_eq!(code, 2, "{summary}");
    let reason = summary["unreached"]["1"].as_str().expect("a reason");
    assert!(reason.starts_with("data server 1 has not reported since"), "{reason}");
}

#[test]
fn objects_that_nobody_knows_are_found_and_repaired() {
    let place = tempfile::tempdir().unwrap();
    let mut servers = Servers::start(place.path(), 2);
    wait_for(&servers, "both join", |status| states(status) == ["up", "up"]);
    servers.stop_data(1);
    servers.plant(1, ObjectId { inode: 5, generation: 2, stripe: 3 }, b"planted");
    servers.start_data(1);
    wait_for(&servers, "it is back", |status| states(status) == ["up", "up"]);
    let (code, found, summary) = servers.check(&["--read"]);
    assert_eq!((code, found.len()), (1, 1), "{summary}");
    let (problem, server) = (&found[0]["problem"], &found[0]["server"]);
    assert_eq!((problem, server), (&"orphan".into(), &1.into()));
    let name = ["inode", "generation", "stripe"].map(|part| found[0][part].as_u64());
    assert_eq!(name, [Some(5), Some(2), Some(3)]);
    assert_eq!((&summary["found"]["orphan"], &summary["discarded"]), (&1.into(), &0.into()));
    let (_, _, summary) = servers.check(&["--repair"]);
    assert_eq!(summary["discarded"], 1);
    let objects = |status: &Value| status["capacity"]["objects"].as_u64();
    wait_for(&servers, "the garbage goes", |status| objects(status) == Some(0));
    assert_eq!(servers.check(&[]).0, 0);
}

#[test]
fn a_cluster_that_does_not_answer_is_an_error_with_its_address() {
    for command in ["status", "check"] {
        let asked = std::process::Command::new(PROGRAM)
            .args([command, "-A", "tcp://127.0.0.1:1"])
            .output()
            .expect("it runs");
        let text = String::from_utf8_lossy(&asked.stderr).into_owned();
        let code = if command == "check" { 2 } else { 1 };
        assert_eq!(asked.status.code(), Some(code), "{text}");
        assert!(text.contains("tcp://127.0.0.1:1 does not answer"), "{text}");
    }
}
