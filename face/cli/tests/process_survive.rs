//! `ropewalk bench survive` as a tool: each kind of row once and small, and nothing is lost.

mod bench_support;
mod support;

use std::path::Path;

use bench_support::{bench, is};
use serde_json::Value;
use support::mounts_usable;

#[test]
fn a_server_is_killed_and_nothing_that_was_acknowledged_is_lost() {
    let place = tempfile::tempdir().unwrap();
    let figure = place.path().join("survive.svg");
    let file = figure.to_str().expect("a path in UTF-8");
    let rows = bench(&["survive", "--only", "meta.killed", "--figure", file]);
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert!(is(row, "ropewalk", "meta.killed", "stall") && row["unit"] == "ms", "{row}");
    let of = |name: &str| row["params"][name].as_f64().unwrap_or_else(|| panic!("{name}: {row}"));
    assert_eq!((of("lost"), of("twice"), of("clients")), (0.0, 0.0, 4.0), "{row}");
    assert!(of("acknowledged") > 100.0, "{row}");
    // Nobody can serve before the dead server's lease is over, which is a second from its last renewal.
    let gap = row["median"].as_f64().expect("a number");
    assert!((100.0..60_000.0).contains(&gap), "{row}");
    assert_eq!(row["params"]["gaps_ms"].as_array().map(Vec::len), Some(1), "{row}");
    let drawn = std::fs::read_to_string(&figure).expect("it was drawn");
    assert_eq!(drawn.matches("<circle").count(), 1, "{drawn}");
}

/// The one line of a system in a row.
fn line<'a>(rows: &'a [Value], system: &str, row: &str, metric: &str) -> &'a Value {
    let found = rows.iter().find(|it| is(it, system, row, metric));
    found.unwrap_or_else(|| panic!("no {metric} of {system} in {row}: {rows:?}"))
}

fn number(line: &Value, name: &str) -> f64 {
    line["params"][name].as_f64().unwrap_or_else(|| panic!("{name}: {line}"))
}

fn figure(line: &Value) -> f64 {
    line["median"].as_f64().unwrap_or_else(|| panic!("{line}"))
}

/// Ours stands beside another party, with a ratio, which is the same in the parameters.
fn beside(rows: &[Value], other: &str, row: &str, metric: &str) {
    let (ours, theirs) = (line(rows, "ropewalk", row, metric), line(rows, other, row, metric));
    assert!(figure(ours) > 0.0 && figure(theirs) > 0.0, "{rows:?}");
    assert_eq!(ours["ratio_to"], other, "{ours}");
    let ratio = ours["ratio"].as_f64().unwrap_or_else(|| panic!("{ours}"));
    assert!(ratio > 0.0, "{ours}");
    let pairs = &ours["params"][format!("ratio_{other}")];
    assert!((pairs[0].as_f64().unwrap() - ratio).abs() < 0.01, "{ours}");
}

/// The picture of a benchmark, drawn into this directory.
fn drawn(place: &Path, arguments: &[&str]) -> (Vec<Value>, String) {
    let file = place.join("survive.svg");
    let path = file.to_str().expect("a path in UTF-8");
    let rows = bench(&[&["survive", "--figure", path], arguments].concat());
    (rows, std::fs::read_to_string(&file).expect("it was drawn"))
}

#[test]
fn a_data_server_dies_and_stops_under_mirrored_files_and_no_block_is_lost() {
    let place = tempfile::tempdir().unwrap();
    let (rows, picture) = drawn(place.path(), &["--only", "data.killed", "--only", "data.stopped"]);
    assert_eq!(rows.len(), 4, "{rows:?}");
    for (fault, kind) in
        ["killed", "stopped"].into_iter().flat_map(|it| [(it, "read"), (it, "write")])
    {
        let row = line(&rows, "ropewalk", &format!("data.{fault}.{kind}"), "stall");
        assert_eq!((number(row, "lost"), number(row, "copies")), (0.0, 2.0), "{row}");
        // A silent server is missed after 1.5 s; a write needs it, or the word that it is gone.
        let least = if kind == "write" { 100.0 } else { 1.0 };
        assert!((least..60_000.0).contains(&figure(row)), "{row}");
        let rates = row["params"]["timeline_rates"].as_array().expect("a list");
        let most = rates.iter().filter_map(Value::as_f64).fold(0.0, f64::max);
        assert!(rates.len() > 10 && most > 0.0, "{row}");
    }
    assert_eq!(picture.matches("<polyline").count(), 4, "{picture}");
    assert_eq!(picture.matches("<circle").count(), 4, "{picture}");
}

#[test]
fn copies_stand_beside_one_and_the_client_sends_each_byte_once() {
    let rows = bench(&["survive", "--only", "copies"]);
    for copies in [2, 3] {
        for kind in ["write", "read"] {
            let row = format!("copies{copies}.{kind}");
            beside(&rows, "one-copy", &row, "bandwidth");
            let ours = line(&rows, "ropewalk", &row, "bandwidth");
            assert_eq!(number(ours, "copies"), f64::from(copies), "{ours}");
            // Without namespaces nobody knows which bytes are the client's.
            if ours["params"]["network"] == "namespaces" {
                let way =
                    if kind == "write" { "sent_of_each_byte" } else { "received_of_each_byte" };
                assert!((0.99..1.5).contains(&number(ours, way)), "{ours}");
            }
        }
    }
}

#[test]
fn a_data_server_dies_under_files_behind_a_mount_and_copies_are_written_there() {
    if !mounts_usable() {
        return;
    }
    let only = ["--only", "mount.killed", "--only", "mirror2"];
    let rows = bench(&[&["survive", "--no-peers"], &only[..]].concat());
    for kind in ["read", "write"] {
        let row = line(&rows, "ropewalk", &format!("mount.killed.{kind}"), "stall");
        assert_eq!((number(row, "lost"), number(row, "over_limit")), (0.0, 0.0), "{row}");
        assert!((1.0..60_000.0).contains(&figure(row)), "{row}");
        let row = line(&rows, "ropewalk", &format!("mirror2.{kind}"), "bandwidth");
        assert!(figure(row) > 0.0, "{row}");
    }
    assert!(rows.iter().all(|row| row["medium"] == "mount"), "{rows:?}");
}

#[test]
fn a_server_is_drained_under_work_and_no_operation_fails() {
    let place = tempfile::tempdir().unwrap();
    let (rows, picture) = drawn(place.path(), &["--only", "drain"]);
    let during = line(&rows, "ropewalk", "drain.p99", "latency");
    assert!(figure(during) > 0.0 && figure(line(&rows, "before", "drain.p99", "latency")) > 0.0);
    assert_eq!((number(during, "errors"), number(during, "lost")), (0.0, 0.0), "{during}");
    assert!(number(during, "operations") > 100.0, "{during}");
    let spread = line(&rows, "ropewalk", "drain.spread", "share");
    let bytes = spread["params"]["server_bytes"].as_array().expect("a list");
    assert_eq!(bytes.len(), 3, "{spread}");
    assert!((0.0..100.0).contains(&figure(spread)), "{spread}");
    let time = line(&rows, "ropewalk", "drain.time", "time");
    assert!(figure(time) < 120.0 && number(time, "moved_bytes") > 1e6, "{time}");
    assert!(picture.contains("drain.spread"), "{picture}");
}

#[test]
fn a_server_that_lost_its_store_gets_it_back_beside_a_bare_copy() {
    let rows = bench(&["survive", "--only", "rebuild"]);
    beside(&rows, "bare-copy", "rebuild.rate", "bandwidth");
    let rate = line(&rows, "ropewalk", "rebuild.rate", "bandwidth");
    assert!(number(rate, "moved_bytes") > 1e6, "{rate}");
    beside(&rows, "undisturbed", "rebuild.beside", "rate");
    assert_eq!(number(line(&rows, "ropewalk", "rebuild.beside", "rate"), "lost"), 0.0);
}

#[test]
fn keys_and_sealed_payloads_stand_beside_none() {
    let rows = bench(&["survive", "--only", "secure", "--only", "handshake"]);
    for row in ["secure.write", "secure.read"] {
        beside(&rows, "crc", row, "bandwidth");
        assert_eq!(line(&rows, "ropewalk", row, "bandwidth")["params"]["payload"], "secure");
    }
    beside(&rows, "without-keys", "handshake", "latency");
    let ours = line(&rows, "ropewalk", "handshake", "latency");
    assert!(number(ours, "round_trip_ms") > 0.0 && number(ours, "more_ms") < 5000.0, "{ours}");
}

#[test]
fn a_flood_is_heard_and_takes_little_memory() {
    let rows = bench(&["survive", "--only", "flood"]);
    let memory = line(&rows, "ropewalk", "flood.memory", "memory");
    assert!(number(memory, "calls") > 100.0, "{memory}");
    // Each call that left a trace would take a packet's room at least: a thousand of them are 1.4 MiB.
    assert!(figure(memory) < 64.0, "{memory}");
    beside(&rows, "without-flood", "flood.rate", "rate");
}

#[test]
fn a_page_of_a_thousand_metrics_is_timed() {
    let rows = bench(&["survive", "--only", "scrape"]);
    let [row] = &rows[..] else { panic!("{rows:?}") };
    assert!(is(row, "ropewalk", "scrape", "latency") && row["unit"] == "ms", "{row}");
    assert!(number(row, "series") >= 1000.0, "{row}");
    assert!((0.01..1000.0).contains(&figure(row)), "{row}");
}
