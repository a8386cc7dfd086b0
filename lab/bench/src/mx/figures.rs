//! Pictures of the rows' results.

use crate::report::{self, Outcome};
use crate::series::OURS;

/// The figures drawn by message size: the prefix of the rows' names, the metric, and whether one figure has all
/// networks.
const BY_SIZE: [(&str, &str, bool); 8] = [
    ("latency.", "latency", true),
    ("bandwidth.", "bandwidth", true),
    ("sendrecv.", "bandwidth", true),
    ("threshold.latency.", "latency", false),
    ("threshold.bandwidth.", "bandwidth", false),
    ("coalescing.latency.", "latency", false),
    ("coalescing.bandwidth.", "bandwidth", false),
    ("neighbours.", "latency", false),
];

/// The title of a figure of all networks, or of one row.
fn title(scenario: &str, what: &str, together: bool) -> Option<String> {
    let rest = scenario.strip_prefix(what)?;
    if !together {
        return Some(scenario.into());
    }
    let (_, under) = rest.split_once('.')?;
    Some(format!("MTU {}", under.replace('.', ", ")))
}

/// Figures by message size, and bars for results without a size.
pub fn figures(outcomes: &[Outcome]) -> String {
    let mut figures = Vec::new();
    for (what, metric, together) in BY_SIZE {
        let mut drawn: Vec<(String, Vec<Outcome>)> = Vec::new();
        for outcome in outcomes.iter().filter(|it| it.metric == metric) {
            let Some(title) = title(&outcome.scenario, what, together) else { continue };
            let known = drawn.iter().position(|(other, _)| *other == title);
            let at = known.unwrap_or_else(|| {
                drawn.push((title, Vec::new()));
                drawn.len() - 1
            });
            // A reference stands beside several of ours.
            let key = |it: &Outcome| (it.medium, it.system, it.param("bytes").to_string());
            let found = &mut drawn[at].1;
            if outcome.system == OURS || found.iter().all(|it| key(it) != key(outcome)) {
                found.push(outcome.clone());
            }
        }
        for (title, found) in drawn {
            figures.push(report::figure_of(&found, metric, &format!(", {title}")));
        }
    }
    let by_size = |it: &&Outcome| BY_SIZE.iter().any(|(what, ..)| it.scenario.starts_with(what));
    let bars: Vec<Outcome> = outcomes.iter().filter(|it| !by_size(it)).cloned().collect();
    if !bars.is_empty() {
        figures.push(report::bars(&bars));
    }
    report::stack(&figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_beside_several_of_ours_is_drawn_once() {
        let outcome = |scenario: &str, system, medium, bytes: usize| Outcome {
            scenario: scenario.into(),
            system,
            version: "1".into(),
            medium,
            params: vec![("bytes", bytes.to_string())],
            metric: "latency",
            unit: "us",
            median: 2.0,
            min: 1.0,
            max: 3.0,
            p99: 3.0,
            runs: 1,
            ratio: None,
        };
        let mut all = Vec::new();
        for (scenario, medium) in
            [("latency.ether.1500.spin", "ether"), ("latency.mxoe.1500.spin", "mxoe")]
        {
            for bytes in [0, 32] {
                all.push(outcome(scenario, "ropewalk", medium, bytes));
                all.push(outcome(scenario, "raw", "frames", bytes));
            }
        }
        let drawn = figures(&all);
        assert_eq!(drawn.matches("<polyline").count(), 3, "{drawn}");
        assert!(drawn.contains("MTU 1500") && !drawn.contains("inf"), "{drawn}");
    }

    #[test]
    fn settings_are_lines_of_their_own_and_what_has_no_size_has_bars() {
        let outcome = |scenario: &str, metric, name, value: &str| Outcome {
            scenario: scenario.into(),
            system: "ropewalk",
            version: "1".into(),
            medium: "ether",
            params: vec![("bytes", "32".into()), (name, value.into())],
            metric,
            unit: "us",
            median: 2.0,
            min: 1.0,
            max: 3.0,
            p99: 3.0,
            runs: 1,
            ratio: None,
        };
        let drawn = figures(&[
            outcome("threshold.latency.ether.9000", "latency", "eager", "4096"),
            outcome("threshold.latency.ether.9000", "latency", "eager", "8192"),
            outcome("latency.ether.9000.10g.spin", "latency", "gigabits", "10"),
            outcome("endpoints.ether.1500", "rate", "endpoints", "1"),
            outcome("endpoints.ether.1500", "rate", "endpoints", "4"),
        ]);
        assert_eq!(drawn.matches("<polyline").count(), 3, "{drawn}");
        assert!(drawn.contains("eager 8192") && drawn.contains("MTU 9000, 10g, spin"), "{drawn}");
        assert!(drawn.contains("endpoints 4"), "{drawn}");
    }
}
