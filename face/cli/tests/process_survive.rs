//! `ropewalk bench survive` as a tool: one run of a killed server, in which nothing is lost.

mod bench_support;
mod support;

use bench_support::{bench, is};

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
