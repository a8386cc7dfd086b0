//! `ropewalk paths status`.

use std::collections::BTreeSet;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::found::{Heard, Told, Which, duration, micros, moment, peer_name, rail_name, text};
use super::prometheus;
use crate::remote::text::printable;
use crate::report::{bytes, columns, fits, print, print_json, say, table, wrapped};
use crate::stop::Stop;

/// The interval at which a waiting command checks whether it shall end.
const LOOK: Duration = Duration::from_millis(50);
const HEADER: [&str; 11] = [
    "path",
    "role",
    "rail",
    "to",
    "state",
    "score",
    "round trip",
    "last delivery",
    "carried",
    "re-sent",
    "suspected",
];

/// Arguments of `ropewalk paths status`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk paths status                        all processes of this host
  ropewalk paths status 10.0.0.2               the paths to peers of one host
  ropewalk paths status --several              without peers with one path
  ropewalk paths status --process 4711 --json  an object for each path
  ropewalk paths status --watch 1              again each second, until Ctrl-C
  ropewalk paths status --prometheus           for the text collector of
                                               Prometheus

A path is a pair of network rails of this process and its peer. A star marks the paths that are used now. \
States: up; held (it came back, and others are preferred for a while); suspect (it delivers nothing, \
and traffic goes over others); lost (it has no link; another is sought); joining (it is called for the first time); down (it never came up: \
calls over that rail come to nothing, with the cause); closing and resting (it was idle).

The score, 0 to 1000, falls with packets that are lost or spoiled, and with a round trip that is longer than those of other paths. Degraded: short messages go over better paths. Standby: everything does, as long as there is one.

Servers, mounts and benchmarks of Ropewalk show their paths, to root and to their own user. Traffic counts the \
payloads of messages since there have been several paths; a path that is the only one counts nothing ('-'). \
Ask in the network namespace of the process: ip netns exec NAME ropewalk paths status.")]
pub struct Status {
    #[command(flatten)]
    which: Which,
    /// Print a JSON object for each path, on a line.
    #[arg(long)]
    json: bool,
    /// Print counters and gauges as Prometheus reads them.
    #[arg(long, conflicts_with = "json")]
    prometheus: bool,
    /// Show only sessions with several paths.
    #[arg(long)]
    several: bool,
    /// Show the paths again after every SECONDS, until Ctrl-C.
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds, conflicts_with = "prometheus")]
    watch: Option<f64>,
}

fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.1..=86400.0).contains(&seconds) => Ok(seconds),
        _ => Err("give a number of seconds from 0.1 to 86400".to_string()),
    }
}

/// Shows how paths are, once or until Ctrl-C.
pub fn run(arguments: &Status) -> anyhow::Result<()> {
    let mut told_of = BTreeSet::new();
    let Some(pause) = arguments.watch.map(Duration::from_secs_f64) else {
        let heard = show(arguments, &mut told_of)?;
        // Prometheus reads of a silent process in a metric.
        return if arguments.prometheus { Ok(()) } else { heard.complete() };
    };
    let stop = Stop::watch()?;
    loop {
        let begin = Instant::now();
        if !arguments.json {
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            say!("---- {} UTC", moment(now.as_secs_f64()))?;
        }
        show(arguments, &mut told_of)?;
        while !stop.is_asked() && begin.elapsed() < pause {
            std::thread::sleep(LOOK.min(pause.saturating_sub(begin.elapsed())));
        }
        if stop.is_asked() {
            return Ok(());
        }
    }
}

fn show(arguments: &Status, told_of: &mut BTreeSet<String>) -> anyhow::Result<Heard> {
    let mut heard = arguments.which.ask(&json!({ "do": "status" }), "paths", told_of)?;
    if arguments.prometheus {
        print(prometheus::text(&heard).as_bytes())?;
        arguments.which.check(&heard)?;
        return Ok(heard);
    }
    arguments.which.check(&heard)?;
    if arguments.several {
        for endpoint in &mut heard.told {
            endpoint.objects.retain(|path| path["several"] == true);
        }
        heard.told.retain(|endpoint| !endpoint.is_empty());
    }
    if arguments.json {
        let told = &heard.told;
        let paths = told.iter().flat_map(|it| it.objects.iter().map(|path| it.named(path)));
        paths.into_iter().try_for_each(|path| print_json(&path))?;
    } else if heard.answered.is_empty() {
        say!("no process shows paths in this network namespace")?;
    } else if heard.told.is_empty() {
        say!("no session here has several paths")?;
    } else {
        heard.told.iter().try_for_each(print_endpoint)?;
    }
    Ok(heard)
}

fn print_endpoint(told: &Told) -> anyhow::Result<()> {
    if told.objects.is_empty() {
        return say!("{}: no session with another endpoint", told.name());
    }
    let mut left = &told.objects[..];
    while let Some(first) = left.first() {
        let of_peer = |path: &&Value| path["peer"]["endpoint"] == first["peer"]["endpoint"];
        let paths = left.iter().take_while(of_peer).count();
        let (of_peer, others) = left.split_at(paths);
        let only = if first["several"] == true { "" } else { " by one path" };
        say!("{}, to {}{only}:", told.name(), peer_name(first))?;
        let rows = of_peer.iter().map(row).collect();
        print(format!("{}\n", fitting(rows, columns())).as_bytes())?;
        left = others;
    }
    Ok(())
}

/// The columns that stand in the table also where it has to be narrow; the others stand below it.
const BRIEF: [&str; 5] = ["path", "role", "rail", "state", "carried"];

/// The table in so many columns of the terminal.
fn fitting(rows: Vec<Vec<String>>, columns: usize) -> String {
    let whole = table(&HEADER, rows.clone()).to_string();
    if fits(&whole, columns) {
        return whole;
    }
    let is_brief = |column: &usize| BRIEF.contains(&HEADER[*column]);
    let brief = |row: &Vec<String>| {
        (0..HEADER.len()).filter(is_brief).map(|column| row[column].clone()).collect()
    };
    let header: Vec<&str> = (0..HEADER.len()).filter(is_brief).map(|it| HEADER[it]).collect();
    let mut text = table(&header, rows.iter().map(brief).collect()).to_string();
    for row in rows {
        let others = (0..HEADER.len()).filter(|column| !is_brief(column) && row[*column] != "-");
        let others = others.map(|column| format!("{} {}", HEADER[column], row[column]));
        let line = format!("path {}: {}", row[0], others.collect::<Vec<_>>().join("; "));
        text += &format!("\n{}", wrapped(&line, columns, "    "));
    }
    text
}

fn row(path: &Value) -> Vec<String> {
    let none = || "-".to_string();
    let count = |name: &str| path[name].as_u64().unwrap_or(0);
    let carried = count("frames") > 0 || path["several"] == true;
    let of_bytes = |name: &str| if carried { bytes(count(name)) } else { none() };
    let used = if path["used"] == true { " *" } else { "" };
    let ago = path["delivered_seconds_ago"].as_f64();
    let ago = ago.map(|seconds| format!("{} ago", duration(Duration::from_secs_f64(seconds))));
    let round_trip = micros(&path["round_trip_us"]).map(|smoothed| {
        let variation = micros(&path["variation_us"]).unwrap_or_default();
        format!("{smoothed} ± {variation}")
    });
    vec![
        path["path"].as_u64().map_or_else(none, |number| format!("{number}{used}")),
        path["path_role"].as_str().map_or_else(none, |role| printable(role.as_bytes())),
        rail_name(&path["rail"]),
        path["remote"].as_str().map_or_else(none, |remote| printable(remote.as_bytes())),
        state(path),
        score(path),
        round_trip.unwrap_or_else(none),
        ago.unwrap_or_else(none),
        of_bytes("bytes"),
        of_bytes("bytes_re_sent"),
        suspected(&path["suspected"]),
    ]
}

/// The state with its time.
fn state(path: &Value) -> String {
    let time = |name: &str| {
        let seconds = path[name].as_f64().filter(|seconds| (0.0..1e12).contains(seconds))?;
        Some(duration(Duration::from_secs_f64(seconds)))
    };
    let state = text(&path["state"]);
    let cause = path["cause"].as_str().filter(|_| ["down", "lost", "suspect"].contains(&&*state));
    let cause = cause.map_or(String::new(), |cause| format!(", {}", printable(cause.as_bytes())));
    match (time("state_seconds"), time("held_seconds_left")) {
        (Some(since), _) => format!("{state} for {since}{cause}"),
        (None, Some(left)) => format!("{state}, {left} left"),
        (None, None) => state,
    }
}

/// The score, with the word for a path that others are preferred to.
fn score(path: &Value) -> String {
    let Some(score) = path["score"].as_u64() else { return "-".to_string() };
    match path["grade"].as_str() {
        None | Some("good") => score.to_string(),
        Some(grade) => format!("{score} {}", printable(grade.as_bytes())),
    }
}

/// How often, with the causes.
fn suspected(counts: &Value) -> String {
    let counts = counts.as_object().into_iter().flatten().filter(|(_, count)| **count != 0);
    let counts: Vec<String> =
        counts.map(|(cause, count)| format!("{} {count}", printable(cause.as_bytes()))).collect();
    if counts.is_empty() { "0".to_string() } else { counts.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_units_and_a_path_that_counts_nothing_has_dashes() {
        let path = json!({
            "peer": { "endpoint": "12", "address": null },
            "path": 2,
            "several": true,
            "rail": { "scheme": "tcp", "interface": "eth1", "source": null },
            "remote": "10.1.0.2",
            "state": "suspect",
            "state_seconds": 0.0312,
            "held_seconds_left": null,
            "used": false,
            "path_role": "member",
            "score": 412,
            "grade": "degraded",
            "round_trip_us": 612,
            "variation_us": 98,
            "delivered_seconds_ago": 0.25,
            "bytes": 3 << 20,
            "bytes_re_sent": 512,
            "suspected": { "time_out": 2, "carrier_lost": 1 },
        });
        let expected = [
            "2",
            "member",
            "tcp eth1",
            "10.1.0.2",
            "suspect for 31.2 ms",
            "412 degraded",
            "612 us ± 98 us",
            "250 ms ago",
            "3.0 MiB",
            "512 B",
            "carrier_lost 1, time_out 2",
        ];
        assert_eq!(row(&path), expected);
        let path = json!({ "path": 0, "used": true, "state": "up", "rail": { "scheme": "tcp" } });
        let row = row(&path);
        assert_eq!(row, ["0 *", "-", "tcp", "-", "up", "-", "-", "-", "-", "-", "0"]);
        assert!(fits(&fitting(vec![row.clone()], 200), 200));
        let narrow = fitting(vec![row; 2], 80);
        assert!(fits(&narrow, 80) && narrow.contains("path 0 *: suspected 0"), "{narrow}");
        let path = json!({
            "path": null,
            "several": true,
            "rail": { "scheme": "tcp" },
            "remote": "10.1.0.2",
            "state": "down",
            "state_seconds": 31.0,
            "cause": "no_answer",
        });
        let expected = ["-", "-", "tcp", "10.1.0.2", "down for 31.0 s, no_answer"];
        assert_eq!(self::row(&path)[..5], expected);
        let path = json!({ "score": 1000, "grade": "good" });
        assert_eq!(score(&path), "1000");
        assert!(seconds("0").is_err() && seconds("x").is_err() && seconds("0.5") == Ok(0.5));
    }
}
