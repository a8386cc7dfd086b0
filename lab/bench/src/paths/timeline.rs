//! Pictures: goodput over time around a fault, a line for each system.

use std::fmt::Write;

use crate::paths::lines;
use crate::report::{self, COLOURS, HEIGHT, LEGEND, MARGIN, Outcome, WIDTH};

/// Timelines of rows that have one, and bars of all others.
pub fn figures(outcomes: &[Outcome]) -> String {
    let mut figures = lines::figures(outcomes);
    let mut drawn: Vec<&str> = Vec::new();
    for outcome in outcomes.iter().filter(|outcome| has_timeline(outcome)) {
        if drawn.contains(&outcome.scenario.as_str()) {
            continue;
        }
        drawn.push(&outcome.scenario);
        let alike = |other: &&Outcome| other.scenario == outcome.scenario;
        figures.push(timeline(&outcomes.iter().filter(alike).collect::<Vec<_>>()));
    }
    let bars: Vec<Outcome> =
        outcomes.iter().filter(|outcome| outcome.metric == "time").cloned().collect();
    if !bars.is_empty() {
        figures.push(report::bars(&bars));
    }
    report::stack(&figures)
}

fn has_timeline(outcome: &Outcome) -> bool {
    !outcome.param("timeline_mbs").is_empty()
}

/// The moments in ms from the fault on, and the goodput of each.
fn points(outcome: &Outcome) -> Vec<(f64, f64)> {
    let number = |name: &str| outcome.param(name).parse::<f64>().unwrap_or(0.0);
    let (from, bin) = (number("timeline_from_ms"), number("timeline_bin_ms"));
    let bins = outcome.param("timeline_mbs").trim_matches(['[', ']']).split(',');
    let rates = bins.filter_map(|rate| rate.parse::<f64>().ok());
    rates.enumerate().map(|(index, rate)| (from + (index as f64 + 0.5) * bin, rate)).collect()
}

fn timeline(outcomes: &[&Outcome]) -> String {
    let lines: Vec<Vec<(f64, f64)>> = outcomes.iter().map(|outcome| points(outcome)).collect();
    let all = || lines.iter().flatten();
    let from = all().map(|point| point.0).fold(f64::MAX, f64::min);
    let to = all().map(|point| point.0).fold(from + 1.0, f64::max);
    let most = all().map(|point| point.1).fold(1.0, f64::max);
    let x = |ms: f64| MARGIN + (ms - from) / (to - from) * (WIDTH - MARGIN - LEGEND);
    let y = |rate: f64| HEIGHT - MARGIN - rate / most * (HEIGHT - 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"white\"/>\n<text x=\"{MARGIN}\" y=\"30\" font-size=\"16\">goodput (MB/s) by time (ms) \
         around the fault, {}</text>\n",
        outcomes[0].scenario
    );
    for part in 0..=4 {
        let (ms, rate) = (from + (to - from) * f64::from(part) / 4.0, most * f64::from(part) / 4.0);
        let (across, up) = (x(ms), y(rate));
        let _ = writeln!(
            svg,
            "<text x=\"{across:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{ms:.0}</text>\
             <line x1=\"{MARGIN}\" x2=\"{:.1}\" y1=\"{up:.1}\" y2=\"{up:.1}\" stroke=\"#ccc\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{rate:.0}</text>",
            HEIGHT - MARGIN + 18.0,
            WIDTH - LEGEND,
            MARGIN - 6.0,
            up + 4.0,
        );
    }
    let mended = outcomes[0].param("timeline_mended_ms").parse().unwrap_or(0.0);
    for (ms, word) in [(0.0, "fault"), (mended, "mended")] {
        let _ = writeln!(
            svg,
            "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{MARGIN}\" y2=\"{1:.1}\" stroke=\"#888\" \
             stroke-dasharray=\"4\"/><text x=\"{0:.1}\" y=\"{2:.1}\" text-anchor=\"middle\" \
             fill=\"#888\">{word}</text>",
            x(ms),
            HEIGHT - MARGIN,
            MARGIN - 6.0,
        );
    }
    for (number, (outcome, points)) in outcomes.iter().zip(&lines).enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let places: Vec<String> =
            points.iter().map(|(ms, rate)| format!("{:.1},{:.1}", x(*ms), y(*rate))).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{} over {}, rails: {}</text>",
            places.join(" "),
            WIDTH - LEGEND + 12.0,
            MARGIN + 18.0 * number as f64,
            outcome.system,
            outcome.medium,
            outcome.param("rails"),
        );
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(system: &'static str, metric: &'static str, bins: &str) -> Outcome {
        let mut params = vec![("rails", "1".to_string())];
        if !bins.is_empty() {
            params.push(("timeline_from_ms", "-10.0".into()));
            params.push(("timeline_bin_ms", "5".into()));
            params.push(("timeline_mbs", bins.into()));
        }
        Outcome {
            scenario: "cut.silent.1g.tcp.stall".into(),
            system,
            version: "1".into(),
            medium: "tcp",
            params,
            metric,
            unit: "ms",
            median: 2.0,
            min: 1.0,
            max: 3.0,
            p99: 3.0,
            runs: 1,
            ratio: None,
        }
    }

    #[test]
    fn each_system_has_a_line_and_what_has_no_timeline_a_bar() {
        let drawn = figures(&[
            outcome("ropewalk", "stall", "[100,50,0]"),
            outcome("mptcp", "stall", "[200,0,100]"),
            Outcome { scenario: "kernels.is.s.tcp.1".into(), ..outcome("ropewalk", "time", "") },
        ]);
        assert_eq!(drawn.matches("<polyline").count(), 2, "{drawn}");
        assert!(drawn.contains(">mended<") && !drawn.contains("NaN"), "{drawn}");
        assert_eq!(points(&outcome("tcp", "stall", "[1,2]")), [(-7.5, 1.0), (-2.5, 2.0)]);
    }
}
