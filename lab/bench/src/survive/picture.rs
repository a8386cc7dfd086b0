//! Pictures: operations a second over time around faults, with and without a standby; the gaps of all runs.

use std::fmt::Write;

use crate::paths::ticks;
use crate::report::{self, COLOURS, LEGEND, MARGIN, Outcome, WIDTH};
use crate::series::OURS;

/// The height of the picture of one kind of operations.
const HEIGHT: f64 = 230.0;
/// The space above a picture for its title, and the words for events.
const TOP: f64 = 56.0;
const BOTTOM: f64 = 34.0;
/// The height of a row in the picture of gaps.
const ROW: f64 = 40.0;

/// All of them, below each other.
pub fn figures(outcomes: &[Outcome]) -> String {
    let mut figures = Vec::new();
    let mut drawn: Vec<&str> = Vec::new();
    for outcome in outcomes.iter().filter(|it| !it.param("timeline_rates").is_empty()) {
        if !drawn.contains(&outcome.scenario.as_str()) {
            drawn.push(&outcome.scenario);
            let alike = outcomes.iter().filter(|other| other.scenario == outcome.scenario);
            figures.push(timeline(&alike.collect::<Vec<_>>()));
        }
    }
    let outages: Vec<&Outcome> = outcomes.iter().filter(|it| it.metric == "stall").collect();
    if !outages.is_empty() {
        figures.push(gaps(&outages));
    }
    let is_drawn = |it: &&Outcome| it.metric == "stall" || !it.param("timeline_rates").is_empty();
    let others: Vec<Outcome> = outcomes.iter().filter(|it| !is_drawn(it)).cloned().collect();
    if !others.is_empty() {
        figures.push(report::bars(&others));
    }
    report::stack(&figures)
}

/// Seconds from the begin, and operations a second then.
fn points(outcome: &Outcome) -> Vec<(f64, f64)> {
    let bin = outcome.param("timeline_bin_ms").parse::<f64>().unwrap_or(100.0) / 1e3;
    let rates = outcome.param("timeline_rates").trim_matches(['[', ']']).split(',');
    let rates = rates.filter_map(|rate| rate.parse::<f64>().ok());
    rates.enumerate().map(|(index, rate)| ((index as f64 + 0.5) * bin, rate)).collect()
}

/// Seconds from the begin, and the word for what happened then.
fn events(outcome: &Outcome) -> Vec<(f64, String)> {
    let found = outcome.params.iter().find(|(name, _)| *name == "timeline_events");
    let texts = found.map_or("", |(_, value)| value.trim_matches(['[', ']'])).split(',');
    let event = |text: &str| {
        let (ms, word) = text.trim_matches('"').split_once(' ')?;
        Some((ms.parse::<f64>().ok()? / 1e3, word.to_string()))
    };
    texts.filter_map(event).collect()
}

fn head(height: f64, title: &str) -> String {
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"white\"/>\n<text x=\"{MARGIN}\" y=\"20\" font-size=\"14\">{title}</text>\n"
    )
}

/// One kind of operations: a line for each party, events of the first one.
fn timeline(outcomes: &[&Outcome]) -> String {
    let lines: Vec<Vec<(f64, f64)>> = outcomes.iter().map(|outcome| points(outcome)).collect();
    let all = || lines.iter().flatten();
    let to = all().map(|point| point.0).fold(1.0, f64::max);
    let most = all().map(|point| point.1).fold(1.0, f64::max);
    let x = |seconds: f64| MARGIN + seconds / to * (WIDTH - MARGIN - LEGEND);
    let y = |rate: f64| HEIGHT - BOTTOM - rate / most * (HEIGHT - TOP - BOTTOM);
    let scenario = outcomes[0].scenario.as_str();
    let kind = scenario.strip_prefix("timeline.").unwrap_or(scenario);
    let mut svg = head(HEIGHT, &format!("{kind}: operations a second, by seconds"));
    for seconds in ticks(0.0, to, 10.0) {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{seconds:.0}</text>",
            x(seconds),
            HEIGHT - BOTTOM + 16.0
        );
    }
    for rate in ticks(0.0, most, 4.0) {
        let up = y(rate);
        let _ = writeln!(
            svg,
            "<line x1=\"{MARGIN}\" x2=\"{:.1}\" y1=\"{up:.1}\" y2=\"{up:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{rate:.0}</text>",
            WIDTH - LEGEND,
            MARGIN - 6.0,
            up + 4.0
        );
    }
    for (number, (outcome, points)) in outcomes.iter().zip(&lines).enumerate() {
        draw(&mut svg, number, outcome, points, (&x, &y));
    }
    svg.push_str("</svg>\n");
    svg
}

/// The line of a party, its name, and what happened to it, in a row of its own.
fn draw(
    svg: &mut String,
    number: usize,
    outcome: &Outcome,
    points: &[(f64, f64)],
    (x, y): (&dyn Fn(f64) -> f64, &dyn Fn(f64) -> f64),
) {
    let colour = COLOURS[number % COLOURS.len()];
    let places: Vec<String> =
        points.iter().map(|(at, rate)| format!("{:.1},{:.1}", x(*at), y(*rate))).collect();
    let (name, gap) = match outcome.metric {
        "stall" => ("all clients", format!("{:.1}", outcome.median)),
        _ if outcome.system == OURS => ("with a standby", outcome.param("longest_gap_ms").into()),
        _ => ("without a standby", outcome.param("longest_gap_ms").into()),
    };
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.4\"/>\
         <text x=\"{1:.1}\" y=\"{2:.1}\" fill=\"{colour}\">{name}</text>\
         <text x=\"{1:.1}\" y=\"{3:.1}\" fill=\"{colour}\">longest gap {4} ms</text>",
        places.join(" "),
        WIDTH - LEGEND + 12.0,
        TOP + 34.0 * number as f64,
        TOP + 34.0 * number as f64 + 14.0,
        gap,
    );
    let line = TOP - 18.0 + 11.0 * number as f64;
    for (at, word) in events(outcome) {
        let _ = writeln!(
            svg,
            "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{line:.1}\" y2=\"{1:.1}\" stroke=\"{colour}\" \
             stroke-dasharray=\"2 4\"/><text x=\"{2:.1}\" y=\"{line:.1}\" font-size=\"9\" \
             fill=\"{colour}\">{word}</text>",
            x(at),
            HEIGHT - BOTTOM,
            x(at) + 2.0
        );
    }
}

/// The gaps of all runs, a row of points for each fault, with what they shall reach.
fn gaps(outcomes: &[&Outcome]) -> String {
    let listed = |outcome: &Outcome| -> Vec<f64> {
        let values = outcome.param("gaps_ms").trim_matches(['[', ']']).split(',');
        values.filter_map(|value| value.parse().ok()).collect()
    };
    let number = |outcome: &Outcome, name: &str| outcome.param(name).parse::<f64>().ok();
    let most = |outcome: &&Outcome| outcome.max.max(number(outcome, "reach").unwrap_or(0.0));
    let to = outcomes.iter().map(most).fold(1.0, f64::max) * 1.05;
    let x = |ms: f64| 130.0 + ms / to * (WIDTH - 130.0 - 190.0);
    let height = 50.0 + ROW * outcomes.len() as f64 + BOTTOM;
    let mut svg = head(height, "longest time without an acknowledged operation (ms), of each run");
    for ms in ticks(0.0, to, 8.0) {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{ms:.0}</text>",
            x(ms),
            height - BOTTOM + 16.0
        );
    }
    for (index, outcome) in outcomes.iter().enumerate() {
        let at = 50.0 + ROW * (index as f64 + 0.5);
        let _ = writeln!(
            svg,
            "<text x=\"10\" y=\"{:.1}\">{}</text><text x=\"{:.1}\" y=\"{:.1}\">median {:.0}, worst \
             {:.0}, {} runs</text>",
            at + 4.0,
            outcome.scenario,
            WIDTH - 180.0,
            at + 4.0,
            outcome.median,
            outcome.max,
            outcome.runs
        );
        for (name, colour) in [("reach_median_ms", COLOURS[2]), ("reach", COLOURS[1])] {
            if let Some(ms) = number(outcome, name) {
                let _ = writeln!(
                    svg,
                    "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{1:.1}\" y2=\"{2:.1}\" stroke=\"{colour}\"/>",
                    x(ms),
                    at - 14.0,
                    at + 14.0
                );
            }
        }
        for ms in listed(outcome) {
            let _ = writeln!(
                svg,
                "<circle cx=\"{:.1}\" cy=\"{at:.1}\" r=\"3.5\" fill=\"{}\" fill-opacity=\"0.5\"/>",
                x(ms),
                COLOURS[0]
            );
        }
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(scenario: &str, system: &'static str, metric: &'static str) -> Outcome {
        let params = match metric {
            "rate" => vec![
                ("timeline_bin_ms", "100".to_string()),
                ("timeline_rates", "[100,0,200]".into()),
                ("timeline_events", "[\"120 killed\",\"240 back\"]".into()),
                ("longest_gap_ms", "101.5".into()),
            ],
            _ => vec![
                ("gaps_ms", "[900.000,1100.500]".into()),
                ("reach", "4000".into()),
                ("reach_median_ms", "1500".into()),
            ],
        };
        Outcome {
            scenario: scenario.into(),
            system,
            version: "1".into(),
            medium: "library",
            params,
            metric,
            unit: "1/s",
            median: 1000.0,
            min: 900.0,
            max: 1100.5,
            p99: 1100.5,
            runs: 2,
            ratio: None,
        }
    }

    #[test]
    fn a_timeline_has_points_and_events_in_seconds() {
        let one = outcome("timeline.create", "ropewalk", "rate");
        let near = |found: Vec<f64>, wanted: &[f64]| {
            found.len() == wanted.len()
                && found.iter().zip(wanted).all(|(a, b)| (a - b).abs() < 1e-9)
        };
        let (at, rates): (Vec<f64>, Vec<f64>) = points(&one).into_iter().unzip();
        assert!(near(at, &[0.05, 0.15, 0.25]) && near(rates, &[100.0, 0.0, 200.0]));
        assert_eq!(events(&one), [(0.12, "killed".to_string()), (0.24, "back".to_string())]);
        let nothing = Outcome { params: Vec::new(), ..one };
        assert!(points(&nothing).is_empty() && events(&nothing).is_empty());
    }

    #[test]
    fn each_party_has_a_line_and_each_run_a_point() {
        let all = [
            outcome("timeline.create", "ropewalk", "rate"),
            outcome("timeline.create", "without-standby", "rate"),
            outcome("timeline.stat", "ropewalk", "rate"),
            outcome("meta.killed", "ropewalk", "stall"),
        ];
        let drawn = figures(&all);
        assert_eq!(drawn.matches("<polyline").count(), 3, "{drawn}");
        assert_eq!(drawn.matches("<circle").count(), 2, "{drawn}");
        assert!(drawn.contains(">without a standby<") && drawn.contains(">killed<"), "{drawn}");
        assert!(drawn.contains("create: operations a second"), "{drawn}");
        assert!(
            drawn.contains("median 1000, worst 1100, 2 runs") && !drawn.contains("NaN"),
            "{drawn}"
        );
    }
}
