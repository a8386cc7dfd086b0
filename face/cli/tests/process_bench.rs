//! The benchmarks as a tool: their output, not the speed of anything.

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
    // As the servers count: each file is one call, and those of the session beside them.
    let served = |metric: &str| {
        let row = found("ropewalk", name, metric).unwrap_or_else(|| panic!("{metric}: {rows:?}"));
        row["median"].as_f64().expect("a number")
    };
    assert!((1.0..1.5).contains(&served("server_calls")), "{rows:?}");
    assert!(served("server_time") > 0.0 && served("server_syncs") < 0.5, "{rows:?}");
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
fn process_the_figures_of_bmi_are_measured_without_peers() {
    let mut arguments = vec!["bmi", "--no-peers"];
    let names = ["roundtrip.tcp.block", "bandwidth.shm.late", "pattern.tcp.1x1", "flood.shm"];
    let crowded = ["testcontext.shm.empty", "testcontext.shm.roundtrip"];
    arguments.extend(names.iter().chain(&crowded).flat_map(|name| ["--only", name]));
    let rows = bench(&arguments);
    let found = |scenario: &str, metric: &str| -> Vec<&serde_json::Value> {
        rows.iter().filter(|row| is(row, "ropewalk", scenario, metric)).collect()
    };
    let [round_trip, bandwidth, pattern, flood] = names;
    // Of each size with plain and with allocated buffers; sends of at most 1 KiB are counted, and receives
    // of what was sent without asking.
    for (name, metric, sizes, param) in [
        (round_trip, "latency", &[24, 400, 1200][..], ("immediate_sends", 1024)),
        (
            bandwidth,
            "bandwidth",
            &[1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20],
            ("immediate_receives", 16 << 10),
        ),
    ] {
        assert_eq!(found(name, "cpu").len(), 2 * sizes.len(), "{name}: {rows:?}");
        for bytes in sizes {
            let both: Vec<_> = found(name, metric)
                .into_iter()
                .filter(|row| row["params"]["bytes"].as_i64() == Some(*bytes))
                .collect();
            let buffers: Vec<_> =
                both.iter().map(|row| row["params"]["buffers"].as_str()).collect();
            assert_eq!(buffers, [Some("plain"), Some("allocated")], "{name} {bytes}");
            for row in both {
                let part = row["params"][param.0].as_f64();
                let fits = part.map(|part| (0.0..=1.0).contains(&part));
                assert_eq!(fits, (*bytes <= param.1).then_some(true), "{row}");
                assert!(row["median"].as_f64().is_some_and(|value| value > 0.0), "{row}");
            }
        }
    }
    let [shape] = found(pattern, "bandwidth")[..] else { panic!("{rows:?}") };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let wait = if cores >= 2 { "spin" } else { "block" };
    assert_eq!((&shape["params"]["wait"], &shape["params"]["clients"]), (&wait.into(), &1.into()));
    assert_eq!(found(pattern, "cpu").len(), 1);
    for (name, to) in [(flood, "undisturbed"), (crowded[0], "few"), (crowded[1], "few")] {
        let [usual, changed] = found(name, "latency")[..] else { panic!("{name}: {rows:?}") };
        assert!(usual["ratio"].is_null() && changed["ratio_to"] == to, "{usual} {changed}");
    }
    assert!(found(flood, "latency")[1]["params"]["server_grew_mib"].is_number(), "{rows:?}");
    let receives: Vec<_> =
        found(crowded[0], "latency").iter().map(|row| row["params"]["receives"].as_u64()).collect();
    assert_eq!(receives, [Some(10), Some(10_000)]);
    assert!(rows.iter().all(|row| row["system"] == "ropewalk"), "{rows:?}");
}

/// Whether this process may make network namespaces.
fn makes_namespaces() -> bool {
    let made = std::process::Command::new("unshare").args(["--net", "ip", "link"]).output();
    let makes = made.is_ok_and(|output| output.status.success());
    if !makes {
        println!("SKIP: network namespaces cannot be made: run as root, with iproute2");
    }
    makes
}

#[test]
fn process_the_figures_of_mx_are_measured_between_namespaces_and_drawn() {
    if !makes_namespaces() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let figure = place.path().join("mx.svg");
    let file = figure.to_str().expect("a path in UTF-8");
    let [latency, overlap] = ["latency.ether.1500.block", "overlap.mxoe-compatible.9000"];
    let rows = bench(&["mx", "--only", latency, "--only", overlap, "--figure", file]);
    let found = |system: &str, scenario: &str, metric: &str| -> Vec<&serde_json::Value> {
        rows.iter().filter(|row| is(row, system, scenario, metric)).collect()
    };
    // Of each size; a reference has round trips of what fits one frame.
    let sizes = |rows: &[&serde_json::Value]| -> Vec<Option<u64>> {
        rows.iter().map(|row| row["params"]["bytes"].as_u64()).collect()
    };
    let (ours, raw) = (found("ropewalk", latency, "latency"), found("raw", latency, "latency"));
    let all = [0, 32, 129, 4096, 32_768, 32_769, 1 << 20].map(Some);
    assert_eq!((&sizes(&ours)[..], &sizes(&raw)[..]), (&all[..], &all[..3]));
    for row in ours.iter().chain(&raw) {
        let frames = row["params"]["frames"].as_f64();
        let least = row["params"]["bytes"].as_f64().map(|bytes| (bytes / 1500.0).max(1.0));
        assert!(frames >= least, "{row}");
        assert_eq!(row["ratio"].is_null(), row["system"] == "raw" || least > Some(1.0), "{row}");
    }
    let overlaps = found("ropewalk", overlap, "overlap");
    let service: Vec<_> = overlaps.iter().map(|row| row["params"]["service"].as_bool()).collect();
    assert_eq!(service, [Some(true), Some(false)], "{rows:?}");
    let drawn = std::fs::read_to_string(&figure).expect("it was drawn");
    assert_eq!(drawn.matches("<polyline").count(), 2, "{drawn}");
}

#[test]
fn process_settings_of_mx_are_compared_and_copies_are_counted() {
    if !makes_namespaces() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let figure = place.path().join("mx.svg");
    let file = figure.to_str().expect("a path in UTF-8");
    let [shaped, both_ways] = ["latency.mxoe.9000.1g.spin", "sendrecv.mxoe.9000.spin"];
    let [threshold, waits] = ["threshold.latency.ether.9000", "coalescing.latency.ether.1500"];
    let [rate, neighbours] = ["endpoints.ether.1500", "neighbours.spin.ether.1500"];
    let mut arguments = vec!["mx", "--figure", file];
    let names = [shaped, both_ways, threshold, waits, rate, neighbours, "copies."];
    arguments.extend(names.iter().flat_map(|name| ["--only", name]));
    let rows = bench(&arguments);
    let found = |scenario: &str, metric: &str| -> Vec<&serde_json::Value> {
        rows.iter().filter(|row| row["scenario"] == scenario && row["metric"] == metric).collect()
    };
    let values = |rows: &[&serde_json::Value], param: &str| -> Vec<String> {
        let mut all: Vec<_> = rows.iter().map(|row| row["params"][param].to_string()).collect();
        all.dedup();
        all
    };
    let all = found(shaped, "latency");
    // Of 1 MiB, 1 Gbit/s takes 8.4 ms.
    let slow = all.iter().filter(|row| row["params"]["bytes"] == 1 << 20);
    let slow: Vec<_> = slow.map(|row| row["median"].as_f64().expect("a number")).collect();
    assert!(slow.len() == 1 && slow[0] > 7000.0, "{all:?}");
    let systems: Vec<_> =
        found(both_ways, "bandwidth").iter().map(|row| row["system"].as_str()).collect();
    assert_eq!(systems, [Some("ropewalk"), Some("raw")].repeat(3), "{rows:?}");
    for (name, metric, param, settings) in [
        (threshold, "latency", "eager", &["4096", "8192", "16384", "32768"][..]),
        (waits, "latency", "coalescing", &["\"none\"", "\"0 us\"", "\"20 us\"", "\"75 us\""]),
        (rate, "rate", "endpoints", &["1", "2", "4"]),
        (
            neighbours,
            "latency",
            "neighbours",
            &["\"none\"", "\"63 in its process\"", "\"16 processes of 4\""],
        ),
    ] {
        let all = found(name, metric);
        let each = all.len() / values(&all[..], "bytes").len().max(1);
        assert_eq!(values(&all, param)[..settings.len()], *settings, "{name}: {rows:?}");
        assert!(each >= settings.len() || name == threshold, "{name}: {rows:?}");
        for row in all {
            let setting = row["params"][param].to_string();
            assert_eq!(row["ratio"].is_null(), setting == settings[0], "{row}");
            assert!(row["median"].as_f64() > Some(0.0), "{row}");
        }
    }
    let drawn = std::fs::read_to_string(&figure).expect("it was drawn");
    // Two of messages both ways and one of the shaped line with its reference, four of thresholds and of waits.
    assert_eq!(drawn.matches("<polyline").count(), 2 + 2 + 4 + 4 + 3, "{drawn}");
    for name in ["ether", "mxoe", "mxoe-compatible", "udp", "tcp"] {
        copies_are_few(&rows, name);
    }
}

/// Bytes that are sent are copied once, to be kept or for their packet; the shortest messages are copied for
/// both. Bytes that are received are copied once if they were awaited. They are copied twice if they came
/// before their receive without being announced.
fn copies_are_few(rows: &[serde_json::Value], network: &str) {
    for (side, posted) in
        [("send", "before"), ("send", "late"), ("receive", "before"), ("receive", "late")]
    {
        let name = format!("copies.{network}.9000.{side}");
        let all: Vec<_> = rows
            .iter()
            .filter(|row| row["scenario"] == name && row["params"]["posted"] == posted)
            .collect();
        assert_eq!(all.len(), 5, "{name}: {rows:?}");
        // With long packets more bytes leave at once; MXoE's fragments hold no more.
        let announced_from = if network.starts_with("mxoe") { 32 << 10 } else { 64 << 10 };
        for row in all {
            let bytes = row["params"]["bytes"].as_u64().expect("a number");
            let copies = row["median"].as_f64().expect("a number");
            let most = match (side, posted) {
                ("send", _) if bytes > 32 => 1.0,
                ("send", _) => 2.0,
                (_, "before") => 1.0,
                _ if bytes > announced_from => 1.0,
                _ => 2.0,
            };
            assert!(copies <= most, "{row}");
            let least = if network == "tcp" { 0.0 } else { 1.0 };
            assert!(copies >= least, "{row}");
        }
    }
}

#[test]
fn process_of_mx_single_sizes_can_be_measured() {
    if !makes_namespaces() {
        return;
    }
    let rows = bench(&["mx", "--only", "latency.udp.1500.block", "--sizes", "32,4K"]);
    let sizes = rows.iter().filter(|row| is(row, "ropewalk", "latency.udp.1500.block", "latency"));
    let sizes: Vec<_> = sizes.map(|row| row["params"]["bytes"].as_u64()).collect();
    assert_eq!(sizes, [Some(32), Some(4096)]);
    let arguments = ["bench", "io", "--sizes", "32"];
    let output = std::process::Command::new(support::PROGRAM).args(arguments).output();
    let output = output.expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("--only"), "{text}");
}

#[test]
fn process_a_row_over_namespaces_says_what_it_needs() {
    // Without a path nobody finds what makes them.
    let output = std::process::Command::new(support::PROGRAM)
        .args(["bench", "mx", "--only", "latency.ether.1500.block"])
        .env("PATH", "")
        .output()
        .expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(!output.status.success() && text.contains("run as root"), "{text}");
}

fn refused(words: &[&str]) -> String {
    let output = std::process::Command::new(support::PROGRAM).arg("bench").args(words).output();
    let output = output.expect("it runs");
    assert_eq!(output.status.code(), Some(1), "{words:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn process_a_directory_that_does_not_exist_is_named_once() {
    let text = refused(&["io", "--memory", "/nonexistent"]);
    assert_eq!(text, "ropewalk: --memory /nonexistent: no such directory\n");
}

#[test]
fn process_a_row_that_does_not_exist_is_an_error() {
    for more in [&[][..], &["--list"]] {
        let text = refused(&[&["meta", "--only", "no.such.row"], more].concat());
        assert!(text.contains("no row matches: 'ropewalk bench NAME --list'"), "{text}");
    }
    let text = refused(&["net", "--sizes", "64", "--list"]);
    assert!(text.contains("--sizes is only for 'ropewalk bench mx'"), "{text}");
}

#[test]
fn process_a_stream_over_a_rail_that_is_cut_is_measured_beside_tcp_and_drawn() {
    if !makes_namespaces() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let figure = place.path().join("paths.svg");
    let file = figure.to_str().expect("a path in UTF-8");
    let row = "cut.silent.1g.tcp";
    let rows = bench(&["paths", "--only", row, "--figure", file]);
    let found = |figure: &str| -> Vec<&serde_json::Value> {
        let name = format!("{row}.{figure}");
        rows.iter().filter(|row| row["scenario"] == name.as_str()).collect()
    };
    let systems = |rows: &[&serde_json::Value]| -> Vec<String> {
        rows.iter().map(|row| row["system"].as_str().unwrap_or("").to_string()).collect()
    };
    let all = ["ropewalk", "tcp", "mptcp", "mptcp-tuned"];
    // What fails over has another rail.
    let several = ["ropewalk", "mptcp", "mptcp-tuned"];
    for (figure, wanted) in [
        ("stall", &all[..]),
        ("failover", &several),
        ("left", &several),
        ("back", &all),
        ("goodput", &all),
    ] {
        assert_eq!(systems(&found(figure)), wanted, "{figure}: {rows:?}");
    }
    for row in found("stall") {
        let number = |name: &str| row["params"][name].as_f64().expect("a number");
        for damage in ["lost", "doubled", "reordered"] {
            assert_eq!(number(damage), 0.0, "{row}");
        }
        assert!(number("outage_ms") >= 200.0 && number("control_gap_ms") > 0.0, "{row}");
        // One rail is silent for as long as it is cut.
        let stall = row["median"].as_f64().expect("a number");
        assert!(number("rails") > 1.0 || stall >= 0.9 * number("outage_ms"), "{row}");
        assert!(row["params"]["timeline_mbs"].as_array().is_some_and(|bins| bins.len() > 50));
        assert_eq!(row["params"]["trials"].as_array().map(Vec::len), Some(1), "{row}");
        let verdict = row["params"]["verdict"].as_str().unwrap_or_default();
        assert!(verdict.starts_with("reach 30 ms: "), "{row}");
    }
    let drawn = std::fs::read_to_string(&figure).expect("it was drawn");
    assert_eq!(drawn.matches("<polyline").count(), all.len(), "{drawn}");
}

#[test]
fn process_the_iteration_that_meets_a_cut_is_told_apart_for_channels_and_for_endpoints() {
    if !makes_namespaces() {
        return;
    }
    let place = tempfile::tempdir().unwrap();
    let figure = place.path().join("latency.svg");
    let file = figure.to_str().expect("a path in UTF-8");
    let rows = bench(&["paths", "--only", "latency.cut", "--figure", file]);
    let names = ["channels", "endpoints"].map(|many| (many, format!("latency.cut.{many}.tcp")));
    for (many, name) in &names {
        let own: Vec<_> = rows.iter().filter(|row| row["scenario"] == name.as_str()).collect();
        let beside: Vec<_> = own.iter().map(|row| row["params"]["beside"].as_str()).collect();
        assert_eq!(beside, [Some("none"), Some("cut")], "{rows:?}");
        let number = |row: &serde_json::Value, of: &str| row["params"][of].as_f64().unwrap_or(-1.0);
        for row in &own {
            assert!(number(row, many) >= 64.0 && number(row, "at_cut_us") > 0.0, "{row}");
            assert!(row["median"].as_f64().is_some_and(|mean| mean > 0.0), "{row}");
        }
        // A path was cut, and the message that met that waited for its time-out.
        let [without, with] = own[..] else { unreachable!("there are two") };
        assert!(number(with, "suspected") > 0.0, "{with}");
        assert!(number(with, "at_cut_us") > 1000.0, "{with}, {without}");
        let verdict = with["params"]["verdict"].as_str().unwrap_or_default();
        assert!(verdict.starts_with("reach 30 ms: "), "{with}");
    }
    let drawn = std::fs::read_to_string(&figure).expect("it was drawn");
    assert_eq!(drawn.matches("<polyline").count(), 4 * names.len(), "{drawn}");
}

#[test]
fn process_kernels_are_verified_while_a_rail_and_a_switch_fail() {
    if !makes_namespaces() {
        return;
    }
    let names = ["is", "ft", "lu"].map(|kernel| format!("kernels.{kernel}.s.tcp.1"));
    let mut arguments = vec!["paths"];
    arguments.extend(names.iter().flat_map(|name| ["--only", name.as_str()]));
    let rows = bench(&arguments);
    for name in &names {
        let own: Vec<_> = rows.iter().filter(|row| row["scenario"] == name.as_str()).collect();
        let faults: Vec<_> = own.iter().map(|row| row["params"]["fault"].as_str()).collect();
        let wanted = ["none", "drains", "cuts", "switch-drains", "switch"].map(Some);
        assert_eq!(faults, wanted, "{rows:?}");
        for fault in ["cuts", "switch"] {
            let cost = format!("{name}.each-fault");
            let is_it = |row: &&serde_json::Value| {
                row["scenario"] == cost.as_str() && row["params"]["fault"] == fault
            };
            assert_eq!(rows.iter().filter(is_it).count(), 1, "{rows:?}");
        }
        for row in own {
            let count = u64::from(row["params"]["fault"] != "none");
            assert_eq!(row["params"]["faults"].as_u64(), Some(count), "{row}");
            assert_eq!(
                (&row["params"]["verified"], &row["metric"]),
                (&true.into(), &"time".into())
            );
        }
    }
}

/// The output of a small run of `bench rma` for people, and its progress.
fn told_of_windows(names: &[&str], path: Option<&str>) -> (bool, String, String) {
    let mut command = std::process::Command::new(support::PROGRAM);
    command.args(["bench", "rma", "--quick", "--runs", "1", "--scale", "0.02", "--no-peers"]);
    command.args(names.iter().flat_map(|name| ["--only", name]));
    if let Some(path) = path {
        command.env("PATH", path);
    }
    let output = command.output().expect("it runs");
    let [out, err] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    (output.status.success(), out.into_owned(), err.into_owned())
}

#[test]
fn process_windows_between_namespaces_are_measured_with_what_they_cost() {
    if !makes_namespaces() {
        return;
    }
    let names = ["latency.ether.8", "flush.put.netns-tcp.8", "flush.put.netns-udp.8"];
    let long = "origins.ether.1";
    let mut arguments = vec!["rma", "--no-peers", "--only", long];
    arguments.extend(names.iter().flat_map(|name| ["--only", name]));
    let rows = bench(&arguments);
    for (name, medium) in names.into_iter().chain([long]).zip(["ether", "tcp", "udp", "ether"]) {
        let own: Vec<_> = rows.iter().filter(|row| row["scenario"] == name).collect();
        let systems: Vec<_> = own.iter().map(|row| row["system"].as_str().unwrap_or("")).collect();
        assert_eq!(systems, ["direct", "messages-progress", "messages"], "{rows:?}");
        for row in own {
            let params = &row["params"];
            let number = |name: &str| {
                params[name].as_f64().unwrap_or_else(|| panic!("{name} is no number: {row}"))
            };
            assert_eq!(
                (&row["medium"], &params["placement"]),
                (&medium.into(), &"namespaces".into())
            );
            // The interfaces counted that the data crossed the wire, with the headers of their frames.
            assert!(number("wire_bytes") > number("moved_bytes"), "{row}");
            assert!(number("moved_bytes") >= 16.0, "{row}");
            for cost in ["cpu_us", "frames", "system_calls", "copied_bytes"] {
                assert!(number(&format!("{cost}_0")) + number(&format!("{cost}_1")) > 0.0, "{row}");
            }
            let registered = number("registrations_0") + number("registrations_1");
            // Only messages that are announced register their memory, and in the steady state no window does.
            assert_eq!(registered > 0.0, name == long && row["system"] != "direct", "{row}");
            let interval = params["ratio_messages"].as_array();
            assert_eq!(interval.map(Vec::len), (row["system"] == "direct").then_some(3), "{row}");
        }
    }
}

#[test]
fn process_an_open_window_is_measured_beside_none() {
    let [idle, latency] = ["open.idle.tcp", "open.latency.shm"];
    let place = tempfile::tempdir().unwrap();
    let figure = place.path().join("open.svg");
    let file = figure.to_str().expect("a path in UTF-8");
    let rows = bench(&["rma", "--only", idle, "--only", latency, "--figure", file]);
    for (name, metric, unit, reach) in [
        (idle, "cpu", "%", "reach 0.5 % of a processor: "),
        (latency, "latency", "us", "reach 1.05 x without a window: "),
    ] {
        let own: Vec<_> = rows.iter().filter(|row| row["scenario"] == name).collect();
        let systems: Vec<_> = own.iter().map(|row| row["system"].as_str().unwrap_or("")).collect();
        // No MPI takes part.
        assert_eq!(systems, ["direct", "messages", "no-window"], "{rows:?}");
        for row in own {
            assert_eq!((&row["metric"], &row["unit"]), (&metric.into(), &unit.into()), "{row}");
            assert!(row["median"].as_f64().is_some_and(|it| it > 0.0), "{row}");
            let is_beside = row["system"] != "no-window";
            assert_eq!(row["ratio_to"] == "no-window", is_beside, "{row}");
            let verdict = row["params"]["verdict"].as_str().unwrap_or_default();
            assert_eq!(verdict.starts_with(reach), row["system"] == "direct", "{row}");
            let millis = row["params"]["idle_ms"].as_u64();
            assert_eq!(millis.is_some_and(|it| it >= 200), name == idle, "{row}");
        }
    }
    let drawn = std::fs::read_to_string(&figure).expect("it was drawn");
    assert_eq!(drawn.matches("<polyline").count(), 6, "{drawn}");
}

#[test]
fn process_several_origins_are_measured_beside_one() {
    let name = "origins.tcp.2";
    let rows = bench(&["rma", "--only", name, "--no-peers"]);
    let own: Vec<_> = rows.iter().filter(|row| row["scenario"] == name).collect();
    let systems: Vec<_> = own.iter().map(|row| row["system"].as_str().unwrap_or("")).collect();
    assert_eq!(systems, ["direct", "one-origin", "messages-progress", "messages"], "{rows:?}");
    for row in own {
        let params = &row["params"];
        let origins = if row["system"] == "one-origin" { 1 } else { 2 };
        assert_eq!((&params["ranks"], &params["origins"]), (&3.into(), &origins.into()), "{row}");
        let is_ours = row["system"] == "direct";
        let interval = params["ratio_one-origin"].as_array().map(Vec::len);
        assert_eq!(interval, is_ours.then_some(3), "{row}");
        let verdict = params["verdict"].as_str().unwrap_or_default();
        assert_eq!(verdict.starts_with("reach 0.9 x one origin: "), is_ours, "{row}");
    }
}

#[test]
fn process_the_loops_of_a_target_that_serves_are_measured_and_drawn() {
    let place = tempfile::tempdir().unwrap();
    let figure = place.path().join("served.svg");
    let file = figure.to_str().expect("a path in UTF-8");
    let names = ["served.put.tcp.8", "served.fetch_add.tcp.8", "served.put.shm.8"];
    let mut arguments = vec!["rma", "--figure", file];
    arguments.extend(names.iter().flat_map(|name| ["--only", name]));
    let rows = bench(&arguments);
    for name in names {
        let own: Vec<_> = rows.iter().filter(|row| row["scenario"] == name).collect();
        let systems: Vec<_> = own.iter().map(|row| row["system"].as_str().unwrap_or("")).collect();
        // No MPI takes part.
        assert_eq!(systems, ["direct", "messages-progress"], "{rows:?}");
        for row in own {
            let params = &row["params"];
            let number = |name: &str| {
                params[name].as_f64().unwrap_or_else(|| panic!("{name} is no number: {row}"))
            };
            assert_eq!((&row["metric"], &row["unit"]), (&"time".into(), &"x alone".into()));
            let [alone, beside] = ["loops_alone_us", "loops_beside_us"].map(number);
            assert!(alone > 1000.0 && beside > 0.0 && number("operations") > 0.0, "{row}");
            // Only operations on mapped memory need nobody at the target.
            let is_mapped = name == names[2] && row["system"] == "direct";
            assert!(is_mapped || number("service_us") > 0.0, "{row}");
            let verdict = params["verdict"].as_str().unwrap_or_default();
            assert_eq!(verdict.starts_with("reach 1.05 x alone: "), row["system"] == "direct");
        }
    }
    let drawn = std::fs::read_to_string(&figure).expect("it was drawn");
    assert_eq!(drawn.matches("<polyline").count(), 2 * names.len(), "{drawn}");
}

#[test]
fn process_our_messages_stand_beside_those_of_open_mpi() {
    if !support::installed("mpicc.openmpi") {
        return;
    }
    let names = ["latency.tcp.8", "flush.put.shm.8"];
    let mut arguments = vec!["rma"];
    arguments.extend(names.iter().flat_map(|name| ["--only", name]));
    let rows = bench(&arguments);
    for name in names {
        let of = |system: &str| {
            let row = rows.iter().find(|row| is(row, system, name, "latency"));
            row.unwrap_or_else(|| panic!("no {system}: {rows:?}"))
        };
        let peer = of("openmpi4-pt2pt");
        assert!(peer["version"].as_str().is_some_and(|version| version.starts_with("4.")));
        for (system, other, is_told) in [
            ("messages", "openmpi4-pt2pt", true),
            ("direct", "openmpi4-pt2pt", true),
            ("messages", "openmpi4-create", false),
        ] {
            let interval = of(system)["params"][format!("ratio_{other}")].as_array().map(Vec::len);
            assert_eq!(interval, is_told.then_some(3), "{rows:?}");
        }
    }
}

#[test]
fn process_people_see_costs_and_intervals_of_windows_in_eighty_columns() {
    if !makes_namespaces() {
        return;
    }
    let (success, text, errors) = told_of_windows(&["latency.ether.8"], None);
    assert!(success, "{errors}");
    for told in
        ["us of processors", "bytes copied", "0 + 0 registered", "on the wire", " x messages ["]
    {
        assert!(text.contains(told), "{told}: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
}

#[test]
fn process_rows_of_windows_between_namespaces_are_left_out_with_the_reason() {
    // Without a path nobody finds what makes them. The others are measured all the same.
    let names = ["latency.ether.8", "latency.netns-tcp.8", "latency.shm.8"];
    let (success, text, errors) = told_of_windows(&names, Some(""));
    assert!(success && text.contains("latency.shm.8"), "{errors}");
    assert!(!text.contains("latency.ether.8") && !text.contains("latency.netns-tcp.8"), "{text}");
    let reason = "rows between network namespaces are left out: ";
    assert_eq!(errors.matches(reason).count(), 1, "{errors}");
    let (success, _, errors) = told_of_windows(&names[..1], Some(""));
    assert!(!success && errors.contains("nothing was measured"), "{errors}");
}
