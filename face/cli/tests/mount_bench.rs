//! The benchmarks of a mount as a tool: their output, not the speed of anything.

mod bench_support;
mod support;

use bench_support::{bench, is};
use support::mounts_usable;

#[test]
fn mount_synced_writes_are_measured_and_their_syncs_counted() {
    if !mounts_usable() {
        return;
    }
    let rows = bench(&["io", "--only", "mount.synced.append", "--no-peers"]);
    let rate = rows.iter().find(|row| row["metric"] == "rate").expect("there is a rate");
    assert!(rate["system"] == "ropewalk" && rate["medium"] == "mount", "{rate}");
    let syncs = rows.iter().find(|row| row["scenario"] == "mount.synced.append.syncs");
    let syncs = syncs.and_then(|row| row["min"].as_f64()).expect("they were counted");
    // A sync of a file that grew reaches at least one disk.
    assert!(syncs >= 1.0, "{syncs}");
}

#[test]
fn mount_names_are_measured_beside_the_peer_where_there_is_one() {
    if !mounts_usable() {
        return;
    }
    let rows = bench(&["meta", "--only", "mount.shared"]);
    for name in ["mount.shared.create", "mount.shared.read", "mount.shared.unlink"] {
        let ours = |metric: &str| rows.iter().any(|row| is(row, "ropewalk", name, metric));
        assert!(ours("rate") && ours("latency") && ours("cpu"), "{name}: {rows:?}");
    }
    // A peer that is there is compared with.
    if rows.iter().any(|row| row["system"] == "passthrough_ll") {
        let compared = rows.iter().filter(|row| row["ratio_to"] == "passthrough_ll").count();
        assert_eq!(compared, 3, "{rows:?}");
    }
}
