//! `ropewalk paths history`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use serde_json::{Value, json};

use super::found::{Heard, Told, Which, micros, moment, peer_name, rail_name, text};
use crate::remote::text::printable;
use crate::report::{bytes, columns, complain, fits, print, print_json, say, table, wrapped};
use crate::stop::Stop;

/// Between two looks for new events.
const PAUSE: Duration = Duration::from_millis(200);
const HEADER: [&str; 6] = ["time", "process", "peer", "path", "event", "details"];
/// Arguments of `ropewalk paths history`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  ropewalk paths history                  what happened lately
  ropewalk paths history 10.0.0.2:7700    to the paths to one peer
  ropewalk paths history --follow --json  also what happens from now on,
                                          an object for each event

Events:
  joined      a further path is there
  suspected   it delivers nothing, or its network says so: the cause, and the
              detection time since the last delivery
  redirected  others have its traffic, and one of them delivers again: the stall
              since the suspicion or the loss, and what was sent again
  answered    a suspect path is well
  dead        a suspect path was given up: it is lost, and another link is
              sought
  lost        its link ended: it is lost, and another one is sought
  held        it has a link again, and others are preferred for a while
  mended      it may be used as before
  no_path     it was the last path of the session: none delivers now, and
              messages wait
  resumed     a session that was without a path goes on over it
  ended       the session was without a path for too long, and its messages
              failed: for each path why it was not used, and for how long
  degraded    it loses or spoils packets: short messages go over better paths
  standby     it loses so many that it gets nothing while a better one is up
  recovered   it has lost nothing for ten seconds
  drained     an operator keeps it out of use
  raised      and no more
  migrated    traffic moved from it to another path: the cause, and what was
              sent again

Each endpoint of a process keeps its last 128 events, and of older ones the \
last 32 ends of sessions. Times are in UTC.")]
pub struct History {
    #[command(flatten)]
    which: Which,
    /// Print a JSON object for each event, on a line.
    #[arg(long)]
    json: bool,
    /// Show new events as they happen, until Ctrl-C.
    #[arg(long, short)]
    follow: bool,
}

/// An event, and the endpoint that told of it.
type Line<'a> = (&'a Told, &'a Value);

/// Shows events, once or until Ctrl-C.
pub fn run(arguments: &History) -> anyhow::Result<()> {
    let (mut told_of, mut after) = (BTreeSet::new(), BTreeMap::new());
    let which = &arguments.which;
    let heard = look(arguments, &mut after, &mut told_of)?;
    let lines = in_order(&heard.told);
    // A peer that nobody knows has no events either.
    let known = if lines.is_empty() && which.peer.is_some() && !heard.answered.is_empty() {
        which.check(&which.ask(&json!({ "do": "status" }), "paths", &mut told_of)?)
    } else {
        which.check(&heard)
    };
    if !arguments.follow {
        known?;
        if heard.answered.is_empty() && !arguments.json {
            return say!("no process shows paths in this network namespace");
        }
        show(arguments, &lines)?;
        return heard.complete();
    }
    if let Err(error) = known {
        complain!("ropewalk: {error:#}; waiting for it");
    } else if heard.answered.is_empty() {
        complain!("ropewalk: no process shows paths in this network namespace: waiting for one");
    }
    let stop = Stop::watch()?;
    show_lines(arguments, &lines)?;
    while !stop.is_asked() {
        std::thread::sleep(PAUSE);
        let heard = look(arguments, &mut after, &mut told_of)?;
        show_lines(arguments, &in_order(&heard.told))?;
    }
    Ok(())
}

/// The events behind those that were seen: `after` has the number of the last one of each endpoint.
fn look(
    arguments: &History,
    after: &mut BTreeMap<String, u64>,
    told_of: &mut BTreeSet<String>,
) -> anyhow::Result<Heard> {
    let question = json!({ "do": "history", "after": after });
    let heard = arguments.which.ask(&question, "events", told_of)?;
    for endpoint in &heard.told {
        let last = endpoint.objects.iter().filter_map(|event| event["number"].as_u64()).max();
        if let Some(last) = last {
            after.insert(endpoint.endpoint.clone(), last);
        }
    }
    Ok(heard)
}

fn in_order(told: &[Told]) -> Vec<Line<'_>> {
    let mut lines: Vec<Line<'_>> =
        told.iter().flat_map(|it| it.objects.iter().map(move |event| (it, event))).collect();
    let time = |event: &Value| event["time"].as_f64().unwrap_or(0.0);
    lines.sort_by(|one, two| time(one.1).total_cmp(&time(two.1)));
    lines
}

fn show(arguments: &History, lines: &[Line<'_>]) -> anyhow::Result<()> {
    if arguments.json {
        return show_lines(arguments, lines);
    }
    if lines.is_empty() {
        return say!("nothing happened to a path");
    }
    let rows = lines.iter().map(|(told, event)| cells(told, event)).collect();
    print(format!("{}\n", fitting(rows, columns())).as_bytes())
}

/// A table, or lines where it is wider than the terminal.
fn fitting(rows: Vec<[String; 6]>, columns: usize) -> String {
    let whole = table(&HEADER, rows.iter().map(|row| row.to_vec()).collect()).to_string();
    if fits(&whole, columns) {
        return whole;
    }
    let lines: Vec<String> =
        rows.into_iter().map(|row| wrapped(&sentence(row), columns, "    ")).collect();
    lines.join("\n")
}

fn sentence([time, process, peer, path, event, details]: [String; 6]) -> String {
    let details = if details.is_empty() { details } else { format!(": {details}") };
    format!("{time} process {process}, {peer}, path {path} {event}{details}")
}

/// A line for each event.
fn show_lines(arguments: &History, lines: &[Line<'_>]) -> anyhow::Result<()> {
    for (told, event) in lines {
        if arguments.json {
            print_json(&told.named(event))?;
        } else {
            say!("{}", sentence(cells(told, event)))?;
        }
    }
    Ok(())
}

fn cells(told: &Told, event: &Value) -> [String; 6] {
    [
        moment(event["time"].as_f64().unwrap_or(0.0)),
        format!("{} {}", told.process, told.role),
        peer_name(event),
        format!("{} ({})", event["path"], rail_name(&event["rail"])),
        text(&event["event"]),
        details(event),
    ]
}

fn details(event: &Value) -> String {
    let mut details = Vec::new();
    if let Some(to) = event["to"].as_u64() {
        details.push(format!("to path {to}"));
    }
    details.extend(event["cause"].as_str().map(|cause| printable(cause.as_bytes())));
    // A path at rest had nothing to deliver.
    let detection = Some(&event["detection_us"]).filter(|time| **time != 0);
    details.extend(detection.and_then(micros).map(|time| format!("detected in {time}")));
    details.extend(micros(&event["stall_us"]).map(|time| format!("stall {time}")));
    if let Some(spans) = event["spans_re_sent"].as_u64() {
        let sent = bytes(event["bytes_re_sent"].as_u64().unwrap_or(0));
        details.push(format!("{spans} spans with {sent} sent again"));
    }
    if let (None, Some(sent @ 1..)) =
        (event["spans_re_sent"].as_u64(), event["bytes_re_sent"].as_u64())
    {
        details.push(format!("{} sent again", bytes(sent)));
    }
    for (ratio, word) in [("loss_ratio", "lost"), ("corruption_ratio", "spoiled")] {
        let part = event[ratio].as_f64().filter(|part| *part > 0.0);
        details.extend(part.map(|part| format!("{:.3} % {word}", part * 100.0)));
    }
    details.extend(event["score"].as_u64().map(|score| format!("score {score}")));
    details.extend(micros(&event["suspect_us"]).map(|time| format!("suspect for {time}")));
    let without = micros(&event["without_us"]);
    details.extend(without.map(|time| format!("{time} without a path")));
    details.extend(micros(&event["gone_us"]).map(|time| format!("not used for {time}")));
    details.extend(micros(&event["held_us"]).map(|time| format!("for {time}")));
    details.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_says_what_happened_with_units() {
        let told = Told {
            process: 77,
            program: "ropewalk".to_string(),
            endpoint: "12".to_string(),
            role: "metadata server".to_string(),
            objects: Vec::new(),
        };
        let mut event = json!({
            "number": 3,
            "time": 1_785_000_000.123_9,
            "peer": { "endpoint": "1234567890", "address": "tcp://10.0.0.1:7" },
            "path": 0,
            "rail": { "scheme": "tcp", "interface": "eth1" },
            "event": "redirected",
            "to": 2,
            "cause": "time_out",
            "detection_us": 6210,
            "stall_us": 1900,
            "spans_re_sent": 34,
            "bytes_re_sent": 34_000,
        });
        let expected = [
            "2026-07-25 17:20:00.123",
            "77 metadata server",
            "tcp://10.0.0.1:7 (12345678)",
            "0 (tcp eth1)",
            "redirected",
            "to path 2, time_out, detected in 6.2 ms, stall 1.9 ms, 34 spans with 33.2 KiB sent again",
        ];
        assert_eq!(cells(&told, &event), expected);
        let text = |columns| fitting(vec![cells(&told, &event)], columns);
        assert!(text(300).contains('│') && !text(80).contains('│'));
        assert!(fits(&text(80), 80) && text(80).contains("path 0 (tcp eth1) redirected:"));
        event["detection_us"] = 0.into();
        assert!(!cells(&told, &event)[5].contains("detected"), "a path at rest");
        event["event"] = "held".into();
        for gone in ["to", "cause", "detection_us", "stall_us", "spans_re_sent", "bytes_re_sent"] {
            event[gone] = Value::Null;
        }
        event["held_us"] = 250_000.into();
        assert_eq!(cells(&told, &event)[4..], ["held", "for 250 ms"]);
        let event = json!({ "event": "resumed", "without_us": 3_200_000 });
        assert_eq!(cells(&told, &event)[4..], ["resumed", "3.2 s without a path"]);
        let event = json!({ "event": "ended", "cause": "link_lost", "gone_us": 30_000_000 });
        assert_eq!(cells(&told, &event)[4..], ["ended", "link_lost, not used for 30.0 s"]);
        let event = json!({
            "event": "degraded",
            "score": 388,
            "loss_ratio": 0.031,
            "corruption_ratio": 0.0,
        });
        assert_eq!(cells(&told, &event)[4..], ["degraded", "3.100 % lost, score 388"]);
    }
}
