//! `ropewalk bench` in a very small form, and the keys that each of its lines has to have.

use std::process::Command;

use serde_json::Value;

use crate::support::PROGRAM;

const MEDIA: [&str; 10] = [
    "shm",
    "tcp",
    "mount",
    "library",
    "ether",
    "ether-xdp",
    "mxoe",
    "mxoe-compatible",
    "udp",
    "frames",
];
const METRICS: [&str; 13] = [
    "latency",
    "bandwidth",
    "overlap",
    "rate",
    "cpu",
    "memory",
    "count",
    "stall",
    "share",
    "time",
    "server_calls",
    "server_time",
    "server_syncs",
];

/// Runs it with these arguments; every line is checked to be what was agreed upon.
pub fn bench(arguments: &[&str]) -> Vec<Value> {
    let output = Command::new("timeout")
        .args(["--signal=INT", "--kill-after=10", "120", PROGRAM, "bench"])
        .args(arguments)
        .args(["--json", "--quick", "--runs", "1", "--scale", "0.02"])
        .output()
        .expect("it runs");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {}: {told}", output.status);
    let text = String::from_utf8(output.stdout).expect("JSON is UTF-8");
    let rows: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    assert!(!rows.is_empty(), "{arguments:?} printed nothing: {told}");
    rows.iter().for_each(check);
    rows
}

/// Whether a line is this figure.
pub fn is(row: &Value, system: &str, scenario: &str, metric: &str) -> bool {
    row["system"] == system && row["scenario"] == scenario && row["metric"] == metric
}

fn check(row: &Value) {
    for key in ["scenario", "system", "version", "unit"] {
        assert!(row[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {row}");
    }
    assert!(row["medium"].as_str().is_some_and(|medium| MEDIA.contains(&medium)), "{row}");
    assert!(row["metric"].as_str().is_some_and(|metric| METRICS.contains(&metric)), "{row}");
    assert!(row["params"].is_object(), "{row}");
    assert_eq!(row["runs"], 1, "{row}");
    let number = |key: &str| row[key].as_f64().unwrap_or_else(|| panic!("{key}: {row}"));
    assert!(number("min") <= number("median") && number("median") <= number("max"), "{row}");
    assert!(number("p99") >= 0.0 && number("min") >= 0.0, "{row}");
}
