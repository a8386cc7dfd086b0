//! Paths in the text form of Prometheus, version 0.0.4.
//!
//! Times are in seconds, as Prometheus has them. Counters of a path begin anew when its session does.

use std::collections::BTreeSet;
use std::fmt::Write;

use ropewalk_host_paths::AskError;
use ropewalk_net::PathTally;
use serde_json::Value;

use super::found::{Heard, Told, short};

/// How a value of a path is found.
enum Of {
    /// A number, or none, and how many of it make one in the text.
    Number(&'static str, f64),
    /// 1 where the field has this value, else 0.
    Is(&'static str, fn(&Value) -> bool),
    /// An object with a number for each cause.
    ByCause(&'static str),
}

/// Microseconds of a second.
const MICROS: f64 = 1e6;

struct Metric {
    name: &'static str,
    kind: &'static str,
    help: &'static str,
    of: Of,
}

const fn gauge(name: &'static str, help: &'static str, of: Of) -> Metric {
    Metric { name, kind: "gauge", help, of }
}

const fn counter(name: &'static str, help: &'static str, of: Of) -> Metric {
    Metric { name, kind: "counter", help, of }
}

const METRICS: &[Metric] = &[
    gauge(
        "up",
        "Whether the path has a link that carries, suspect or not.",
        Of::Is("state", |state| {
            ["up", "held", "suspect"].contains(&state.as_str().unwrap_or_default())
        }),
    ),
    gauge("suspect", "Whether the path is suspect.", Of::Is("state", |state| state == "suspect")),
    gauge(
        "held_back",
        "Whether the path came back and is held back.",
        Of::Is("state", |state| state == "held"),
    ),
    gauge(
        "idle",
        "Whether the path has no link since it was idle.",
        Of::Is("state", |state| state == "closing" || state == "resting"),
    ),
    gauge("used", "Whether traffic goes over the path now.", Of::Is("used", |used| used == true)),
    gauge("round_trip_seconds", "Smoothed round trip.", Of::Number("round_trip_us", MICROS)),
    gauge(
        "round_trip_variation_seconds",
        "Variation of the round trip.",
        Of::Number("variation_us", MICROS),
    ),
    gauge(
        "last_delivery_age_seconds",
        "Time since the peer acknowledged something that went over the path.",
        Of::Number("delivered_seconds_ago", 1.0),
    ),
    gauge(
        "unacknowledged_bytes",
        "Bytes that left the rail and are not acknowledged.",
        Of::Number("unacknowledged_bytes", 1.0),
    ),
    gauge(
        "primary",
        "Whether the path is the primary one of its session.",
        Of::Is("path_role", |role| role == "primary"),
    ),
    gauge(
        "drained",
        "Whether an operator keeps the path out of use.",
        Of::Is("path_role", |role| role == "drained"),
    ),
    gauge(
        "score",
        "Score of the path's route by loss, corruption and round trip, 0 to 1000.",
        Of::Number("score", 1.0),
    ),
    gauge(
        "degraded",
        "Whether the path loses packets, and short messages go over better ones.",
        Of::Is("grade", |grade| grade == "degraded"),
    ),
    gauge(
        "standby",
        "Whether the path loses so much that it gets nothing while a better one is up.",
        Of::Is("grade", |grade| grade == "standby"),
    ),
    gauge(
        "loss_ratio",
        "Part of the packets that were lost lately.",
        Of::Number("loss_ratio", 1.0),
    ),
    gauge(
        "corruption_ratio",
        "Part of the packets that were spoiled lately, in the worse direction.",
        Of::Number("corruption_ratio", 1.0),
    ),
    gauge("weight", "Weight of the path, 0 to 1000.", Of::Number("weight", 1.0)),
    counter("frames_total", "Numbered frames that went over the path.", Of::Number("frames", 1.0)),
    counter("bytes_total", "Bytes of their payloads.", Of::Number("bytes", 1.0)),
    counter(
        "resent_frames_total",
        "Those of the frames that had gone before.",
        Of::Number("frames_re_sent", 1.0),
    ),
    counter("resent_bytes_total", "Bytes of their payloads.", Of::Number("bytes_re_sent", 1.0)),
    counter("probes_sent_total", "Probes of the path.", Of::Number("probes_sent", 1.0)),
    counter(
        "probes_answered_total",
        "Those of the probes that were answered.",
        Of::Number("probes_answered", 1.0),
    ),
    counter("joined_total", "Times that the path got a link.", Of::Number("joined", 1.0)),
    counter("lost_total", "Times that the link of the path ended.", Of::Number("lost", 1.0)),
    counter("dead_total", "Times that the path was given up.", Of::Number("dead", 1.0)),
    counter(
        "migrated_total",
        "Times that traffic migrated away from the path.",
        Of::Number("migrated", 1.0),
    ),
    counter("suspected_total", "Suspicions, by cause.", Of::ByCause("suspected")),
    counter(
        "stalls_total",
        "Times that traffic of the path went over others.",
        Of::Number("stalls", 1.0),
    ),
    counter(
        "stall_seconds_total",
        "Time from suspicions and losses to the next delivery over another path.",
        Of::Number("stalled_us", MICROS),
    ),
];

/// The paths of all sessions with several that were told of, and the processes that did not answer.
pub fn text(heard: &Heard) -> String {
    let mut text = String::new();
    silent(heard, &mut text);
    let all = || heard.told.iter().flat_map(|it| it.objects.iter().map(move |path| (it, path)));
    // Rails that never led to a peer are no faults to be told of for ever.
    let several = || all().filter(|(_, it)| it["several"] == true && !it["path"].is_null());
    let paths: Vec<(String, &Value)> =
        several().map(|(told, path)| (labels(told, path), path)).collect();
    if paths.is_empty() {
        return text;
    }
    let _ = writeln!(
        text,
        "# HELP ropewalk_path_info Names of the path, of its process and of its peer."
    );
    let _ = writeln!(text, "# TYPE ropewalk_path_info gauge");
    for ((labels, _), (told, path)) in paths.iter().zip(several()) {
        let _ = writeln!(text, "ropewalk_path_info{{{labels},{}}} 1", names(told, path));
    }
    for metric in METRICS {
        samples(metric, &paths, &mut text);
    }
    text
}

/// Whether each process answered; those whose number is not known are left out.
fn silent(heard: &Heard, text: &mut String) {
    let unheard: BTreeSet<u32> = heard
        .unheard
        .iter()
        .filter(|error| !matches!(error, AskError::Foreign { .. }))
        .map(|error| error.process().unwrap_or(0))
        .collect();
    if unheard.is_empty() && heard.answered.is_empty() {
        return;
    }
    let name = "ropewalk_path_process_silent";
    let _ = writeln!(
        text,
        "# HELP {name} Whether the process did not answer; 0 is one of unknown number."
    );
    let _ = writeln!(text, "# TYPE {name} gauge");
    for (processes, value) in [(&heard.answered, 0), (&unheard, 1)] {
        for process in processes {
            let _ = writeln!(text, "{name}{{process=\"{process}\"}} {value}");
        }
    }
}

fn samples(metric: &Metric, paths: &[(String, &Value)], text: &mut String) {
    let Metric { name, kind, help, of } = metric;
    let _ = writeln!(text, "# HELP ropewalk_path_{name} {help}");
    let _ = writeln!(text, "# TYPE ropewalk_path_{name} {kind}");
    for (labels, path) in paths {
        let mut sample = |more: &str, value: f64| {
            let _ = writeln!(text, "ropewalk_path_{name}{{{labels}{more}}} {value}");
        };
        match of {
            Of::Number(field, unit) => {
                path[field].as_f64().into_iter().for_each(|it| sample("", it / unit));
            }
            Of::Is(field, is) => sample("", f64::from(u8::from(is(&path[field])))),
            Of::ByCause(field) => {
                // All causes from the beginning on, so that the first suspicion is an increase.
                let known = PathTally::default();
                let known = known.suspected().map(|(cause, _)| cause);
                let told = path[field].as_object().into_iter().flat_map(|it| it.keys());
                let causes: BTreeSet<&str> = known.chain(told.map(String::as_str)).collect();
                for cause in causes {
                    let more = format!(",cause=\"{}\"", escaped(cause));
                    sample(&more, path[field][cause].as_f64().unwrap_or(0.0));
                }
            }
        }
    }
}

/// What tells a path from all others, and stays while it is there.
fn labels(told: &Told, path: &Value) -> String {
    let rail = &path["rail"];
    written(&[
        ("process", told.process.to_string()),
        ("role", told.role.clone()),
        ("endpoint", short(&told.endpoint)),
        ("peer", short(&plain(&path["peer"]["endpoint"]))),
        ("path", path["path"].to_string()),
        ("interface", plain(&rail["interface"])),
        ("source", plain(&rail["source"])),
    ])
}

/// Further names. The host at the other end is not among them: it may be known later.
fn names(told: &Told, path: &Value) -> String {
    let (peer, rail) = (&path["peer"], &path["rail"]);
    written(&[
        ("program", told.program.clone()),
        ("endpoint_id", told.endpoint.clone()),
        ("peer_id", plain(&peer["endpoint"])),
        ("peer_address", plain(&peer["address"])),
        ("scheme", plain(&rail["scheme"])),
    ])
}

fn plain(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_string()
}

/// Labels; one without a value is none.
fn written(labels: &[(&str, String)]) -> String {
    let labels = labels.iter().filter(|(_, value)| !value.is_empty());
    let labels: Vec<String> =
        labels.map(|(name, value)| format!("{name}=\"{}\"", escaped(value))).collect();
    labels.join(",")
}

/// A value of a label: what would end it, and what a terminal would obey, is written otherwise.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for letter in text.chars() {
        match letter {
            '\\' => escaped.push_str("\\\\"),
            '"' => escaped.push_str("\\\""),
            '\n' => escaped.push_str("\\n"),
            letter if letter.is_control() => escaped.push('?'),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn each_metric_has_a_type_and_a_sample_for_each_path() {
        let path = json!({
            "peer": { "endpoint": "ab", "address": "tcp://[::1]:7\"\\\n" },
            "path": 2,
            "several": true,
            "rail": { "scheme": "tcp", "interface": "eth1" },
            "state": "suspect",
            "used": false,
            "score": 412,
            "grade": "degraded",
            "loss_ratio": 0.031,
            "round_trip_us": 612,
            "frames": 7,
            "suspected": { "time_out": 2, "send_error": 1 },
            "stalled_us": 1500,
        });
        let told = Told {
            process: 77,
            program: "ropewalk".to_string(),
            endpoint: "12".to_string(),
            role: "data server 1".to_string(),
            objects: vec![path],
        };
        let mut single = told.objects[0].clone();
        single["path"] = 0.into();
        single["several"] = false.into();
        let objects = vec![told.objects[0].clone(), single];
        let mut heard = Heard { told: vec![Told { objects, ..told }], ..Heard::default() };
        heard.answered.insert(77);
        heard.unheard = vec![AskError::Silent(78), AskError::Foreign { process: 79, user: 0 }];
        let text = text(&heard);
        let labels = "process=\"77\",role=\"data server 1\",endpoint=\"12\",peer=\"ab\",\
             path=\"2\",interface=\"eth1\"";
        let names = "program=\"ropewalk\",endpoint_id=\"12\",peer_id=\"ab\",\
             peer_address=\"tcp://[::1]:7\\\"\\\\\\n\",scheme=\"tcp\"";
        for line in [
            "# TYPE ropewalk_path_suspected_total counter".to_string(),
            "ropewalk_path_process_silent{process=\"77\"} 0".to_string(),
            "ropewalk_path_process_silent{process=\"78\"} 1".to_string(),
            format!("ropewalk_path_info{{{labels},{names}}} 1"),
            format!("ropewalk_path_suspected_total{{{labels},cause=\"carrier_lost\"}} 0"),
            format!("ropewalk_path_idle{{{labels}}} 0"),
            format!("ropewalk_path_up{{{labels}}} 1"),
            format!("ropewalk_path_suspect{{{labels}}} 1"),
            format!("ropewalk_path_used{{{labels}}} 0"),
            format!("ropewalk_path_score{{{labels}}} 412"),
            format!("ropewalk_path_degraded{{{labels}}} 1"),
            format!("ropewalk_path_standby{{{labels}}} 0"),
            format!("ropewalk_path_loss_ratio{{{labels}}} 0.031"),
            format!("ropewalk_path_round_trip_seconds{{{labels}}} 0.000612"),
            format!("ropewalk_path_frames_total{{{labels}}} 7"),
            format!("ropewalk_path_suspected_total{{{labels},cause=\"time_out\"}} 2"),
            format!("ropewalk_path_stall_seconds_total{{{labels}}} 0.0015"),
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        }
        for unknown in ["last_delivery_age_seconds{", "corruption_ratio{"] {
            assert!(!text.contains(unknown), "what is not known is left out");
        }
        assert!(!text.contains("path=\"0\""), "a session with one path is left out");
        assert!(!text.contains("\"79\""), "a process of another user is his");
        heard.told[0].objects[0]["remote"] = "10.0.0.2".into();
        assert_eq!(super::text(&heard), text, "a series goes on where a path is lost");
        assert_eq!(super::text(&Heard::default()), "");
    }

    #[test]
    fn names_are_those_of_prometheus_and_counters_say_total() {
        for metric in METRICS {
            let letters = metric.name.bytes().all(|it| it.is_ascii_lowercase() || it == b'_');
            assert!(letters && metric.help.ends_with('.'), "{}", metric.name);
            assert_eq!(
                metric.name.ends_with("_total"),
                metric.kind == "counter",
                "{}",
                metric.name
            );
        }
    }
}
