//! The benchmarks as a tool: what they print, not how fast anything is.

mod bench_support;
mod support;

use bench_support::{bench, is};

#[test]
fn process_names_are_measured_beside_bare_calls_and_ask_no_data_server() {
    let kinds = ["create", "stat", "open", "rename", "unlink"];
    let names = kinds.map(|kind| format!("messages.{kind}.large"));
    let mut arguments = vec!["meta", "--only", "library.create.depth1"];
    arguments.extend(names.iter().flat_map(|name| ["--only", name]));
    let rows = bench(&arguments);
    let found = |system: &str, scenario: &str, metric: &str| {
        rows.iter().find(|row| is(row, system, scenario, metric))
    };
    let name = "library.create.depth1";
    for system in ["ropewalk", "raw"] {
        for metric in ["rate", "latency", "cpu"] {
            assert!(found(system, name, metric).is_some(), "{system} {metric}: {rows:?}");
        }
    }
    let ours = found("ropewalk", name, "rate").expect("it was found above");
    assert_eq!(ours["ratio_to"], "raw");
    assert!(ours["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{ours}");
    // With 1, 2, 4 and 8 data servers, on files of several blocks: none of them hears of it. What
    // was removed they are told later, in bundles.
    for (kind, name) in kinds.iter().zip(&names) {
        let what = if *kind == "unlink" { "asked" } else { "received" };
        let counted: Vec<_> =
            rows.iter().filter(|row| row["scenario"] == format!("{name}.{what}")).collect();
        let servers: Vec<_> = counted.iter().map(|row| row["params"]["servers"].as_u64()).collect();
        assert_eq!(servers, [1, 2, 4, 8].map(Some), "{name}");
        assert!(counted.iter().all(|row| row["max"].as_f64() == Some(0.0)), "{counted:?}");
    }
}

#[test]
fn process_data_through_the_library_is_measured_embedded_and_by_processes() {
    let rows = bench(&["io", "--only", "library.read.depth4", "--data-servers", "2"]);
    let bandwidths = rows.iter().filter(|row| row["metric"] == "bandwidth");
    let found: Vec<_> = bandwidths
        .map(|row| (row["system"].as_str(), row["params"]["placement"].as_str()))
        .collect();
    let ours = Some("ropewalk");
    assert_eq!(found, [(ours, Some("processes")), (Some("raw"), None), (ours, Some("embedded"))]);
    assert!(rows.iter().all(|row| row["scenario"] == "library.read.depth4"), "{rows:?}");
}

#[test]
fn process_messages_are_measured_and_drawn() {
    let place = tempfile::tempdir().unwrap();
    let figure = place.path().join("net.svg");
    let file = figure.to_str().expect("a path in UTF-8");
    let rows = bench(&["net", "--only", "pingpong.tcp.block.two.8", "--figure", file]);
    let systems: Vec<_> = rows.iter().map(|row| row["system"].as_str().unwrap_or("")).collect();
    assert_eq!(systems, ["ropewalk", "raw", "raw"]);
    assert_eq!(rows[0]["ratio_to"], "raw");
    let drawn = std::fs::read_to_string(&figure).expect("it was drawn");
    assert!(drawn.starts_with("<svg") && drawn.contains("<polyline"), "{drawn}");
}

#[test]
fn process_a_row_that_does_not_exist_is_an_error() {
    let output = std::process::Command::new(support::PROGRAM)
        .args(["bench", "meta", "--only", "no.such.row"])
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("--list"), "{text}");
}
