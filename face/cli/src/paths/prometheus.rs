//! Paths in the text form of Prometheus, version 0.0.4.
//!
//! Times are in seconds, as Prometheus has them. Counters of a path begin anew when its session does.

use std::fmt::Write;

use serde_json::Value;

use super::found::Told;

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

/// All paths that were told of.
pub fn text(told: &[Told]) -> String {
    let mut text = String::new();
    if told.iter().all(|it| it.objects.is_empty()) {
        return text;
    }
    for Metric { name, kind, help, of } in METRICS {
        let _ = writeln!(text, "# HELP ropewalk_path_{name} {help}");
        let _ = writeln!(text, "# TYPE ropewalk_path_{name} {kind}");
        let paths = told.iter().flat_map(|it| it.objects.iter().map(move |path| (it, path)));
        for (endpoint, path) in paths {
            let labels = labels(endpoint, path);
            let mut sample = |more: &str, value: f64| {
                let _ = writeln!(text, "ropewalk_path_{name}{{{labels}{more}}} {value}");
            };
            match of {
                Of::Number(field, unit) => {
                    path[field].as_f64().into_iter().for_each(|it| sample("", it / unit));
                }
                Of::Is(field, is) => sample("", f64::from(u8::from(is(&path[field])))),
                Of::ByCause(field) => {
                    for (cause, count) in path[field].as_object().into_iter().flatten() {
                        let cause = format!(",cause=\"{}\"", escaped(cause));
                        sample(&cause, count.as_f64().unwrap_or(0.0));
                    }
                }
            }
        }
    }
    text
}

fn labels(told: &Told, path: &Value) -> String {
    let (peer, rail) = (&path["peer"], &path["rail"]);
    let plain = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let labels = [
        ("process", told.process.to_string()),
        ("program", told.program.clone()),
        ("role", told.role.clone()),
        ("endpoint", told.endpoint.clone()),
        ("peer", plain(&peer["endpoint"])),
        ("peer_address", plain(&peer["address"])),
        ("path", path["path"].to_string()),
        ("scheme", plain(&rail["scheme"])),
        ("interface", plain(&rail["interface"])),
        ("source", plain(&rail["source"])),
        ("remote", plain(&path["remote"])),
    ];
    let labels = labels.map(|(name, value)| format!("{name}=\"{}\"", escaped(&value)));
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
        let text = text(std::slice::from_ref(&told));
        let labels = "process=\"77\",program=\"ropewalk\",role=\"data server 1\",endpoint=\"12\",\
             peer=\"ab\",peer_address=\"tcp://[::1]:7\\\"\\\\\\n\",path=\"2\",scheme=\"tcp\",\
             interface=\"eth1\",source=\"\",remote=\"\"";
        for line in [
            "# TYPE ropewalk_path_suspected_total counter".to_string(),
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
        assert_eq!(super::text(&[Told { objects: Vec::new(), ..told }]), "");
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
