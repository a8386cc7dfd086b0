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

/// Bins of a picture in ms at least: what a queue lets go at once, in one of 5 ms, hides the rest.
const BIN_MS: f64 = 20.0;
/// So much of what the rails carry has a place in a picture.
const CLIP: f64 = 1.2;

/// The moments in ms from the fault on, and the goodput of each. No bin has moments before and after the fault.
fn points(outcome: &Outcome) -> Vec<(f64, f64)> {
    let number = |name: &str| outcome.param(name).parse::<f64>().unwrap_or(0.0);
    let (from, bin) = (number("timeline_from_ms"), number("timeline_bin_ms"));
    let wide = bin.max(BIN_MS);
    let bins = outcome.param("timeline_mbs").trim_matches(['[', ']']).split(',');
    let rates = bins.filter_map(|rate| rate.parse::<f64>().ok());
    let mut points: Vec<(f64, f64, u32)> = Vec::new();
    for (index, rate) in rates.enumerate() {
        let middle = ((from + (index as f64 + 0.5) * bin) / wide).floor() * wide + wide / 2.0;
        match points.last_mut().filter(|point| point.0 == middle) {
            Some((_, sum, count)) => (*sum, *count) = (*sum + rate, *count + 1),
            None => points.push((middle, rate, 1)),
        }
    }
    points.into_iter().map(|(middle, sum, count)| (middle, sum / f64::from(count))).collect()
}

/// What the rails carry together in MB/s, as the name of a row and the number of its rails say it.
fn rate_of(outcomes: &[&Outcome]) -> Option<f64> {
    let each = outcomes[0].scenario.split('.').find_map(|word| match word {
        "1g" => Some(125.0),
        "50m" => Some(6.25),
        _ => None,
    })?;
    let rails = outcomes.iter().filter_map(|outcome| outcome.param("rails").parse::<f64>().ok());
    Some(each * rails.fold(1.0, f64::max))
}

/// A row in words.
fn words(scenario: &str) -> String {
    let parts: Vec<&str> = scenario.split('.').collect();
    let fault = match parts.get(1).copied().unwrap_or_default() {
        "carrier" => "a rail loses its carrier",
        "silent" => "a rail is cut silently",
        "data" => "a rail is cut towards the receiver",
        "acks" => "a rail is cut towards the sender",
        "flap" => "a rail comes and goes",
        "switch" => "a switch dies silently",
        "loss" => "a rail loses packets",
        "corrupt" => "a rail damages packets",
        "slowed" => "a rail becomes slow",
        _ => return scenario.to_string(),
    };
    let rate = match parts.get(2).copied().unwrap_or_default() {
        "1g" => ", rails of 1 Gbit/s",
        "50m" => ", rails of 50 Mbit/s",
        _ => "",
    };
    let medium = parts.get(3).map(|medium| format!(", {medium}")).unwrap_or_default();
    format!("{fault}{rate}{medium}")
}

/// Round numbers from one to another, 0 among them, about so many.
pub(crate) fn ticks(from: f64, to: f64, many: f64) -> Vec<f64> {
    let least = ((to - from) / many).max(1e-3);
    let power = 10.0_f64.powf(least.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|it| it * power).into_iter().find(|it| *it >= least);
    let step = step.unwrap_or(least);
    let (first, last) = ((from / step).ceil() as i64, (to / step).floor() as i64);
    (first..=last).map(|index| index as f64 * step).collect()
}

/// Lines and numbers of both axes, and what the rails carry.
fn axes(
    (from, to, most): (f64, f64, f64),
    rate: Option<f64>,
    x: impl Fn(f64) -> f64,
    y: impl Fn(f64) -> f64,
) -> String {
    let mut svg = String::new();
    for ms in ticks(from, to, 8.0) {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{ms:.0}</text>",
            x(ms),
            HEIGHT - MARGIN + 18.0,
        );
    }
    let line = |at: f64, colour: &str| {
        let up = y(at);
        format!(
            "<line x1=\"{MARGIN}\" x2=\"{:.1}\" y1=\"{up:.1}\" y2=\"{up:.1}\" stroke=\"{colour}\"/>",
            WIDTH - LEGEND,
        )
    };
    for tick in ticks(0.0, most, 5.0) {
        let (at, up) = (MARGIN - 6.0, y(tick) + 4.0);
        let _ = writeln!(
            svg,
            "{}<text x=\"{at:.1}\" y=\"{up:.1}\" text-anchor=\"end\">{tick:.0}</text>",
            line(tick, "#ccc"),
        );
    }
    if let Some(rate) = rate {
        let (at, up) = (WIDTH - LEGEND - 4.0, y(rate) - 4.0);
        let _ = writeln!(
            svg,
            "{}<text x=\"{at:.1}\" y=\"{up:.1}\" text-anchor=\"end\" fill=\"#888\">what the rails carry</text>",
            line(rate, "#888"),
        );
    }
    svg
}

fn timeline(outcomes: &[&Outcome]) -> String {
    let lines: Vec<Vec<(f64, f64)>> = outcomes.iter().map(|outcome| points(outcome)).collect();
    let all = || lines.iter().flatten();
    let from = all().map(|point| point.0).fold(0.0, f64::min);
    let to = all().map(|point| point.0).fold(from + 1.0, f64::max);
    let rate = rate_of(outcomes);
    let most = rate.map_or_else(|| all().map(|it| it.1).fold(1.0, f64::max), |rate| rate * CLIP);
    let x = |ms: f64| MARGIN + (ms - from) / (to - from) * (WIDTH - MARGIN - LEGEND);
    let y = |rate: f64| HEIGHT - MARGIN - rate.min(most) / most * (HEIGHT - 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"white\"/>\n<text x=\"{MARGIN}\" y=\"30\" font-size=\"16\">goodput (MB/s) by time (ms) \
         from the fault on: {}</text>\n",
        words(&outcomes[0].scenario)
    );
    svg += &axes((from, to, most), rate, x, y);
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
        assert!(drawn.contains("a rail is cut silently, rails of 1 Gbit/s, tcp"), "{drawn}");
        assert!(drawn.contains("what the rails carry") && drawn.contains(">0</text>"), "{drawn}");
        // The bins before the fault, and those after it.
        let drawn = points(&outcome("tcp", "stall", "[1,3,5,7,9,11]"));
        assert_eq!(drawn, [(-10.0, 2.0), (10.0, 8.0)]);
    }

    #[test]
    fn ticks_are_round_and_what_a_queue_lets_go_at_once_is_clipped() {
        assert_eq!(
            ticks(-1014.0, 2144.0, 8.0),
            [-1000.0, -500.0, 0.0, 500.0, 1000.0, 1500.0, 2000.0]
        );
        assert_eq!(ticks(0.0, 150.0, 5.0), [0.0, 50.0, 100.0, 150.0]);
        let one = outcome("ropewalk", "stall", "[100,100,9000]");
        assert_eq!(rate_of(&[&one]), Some(125.0));
        let drawn = timeline(&[&one]);
        let top = format!(",{MARGIN:.1}");
        assert!(drawn.contains(&top), "the highest point is at the top: {drawn}");
        assert_eq!(words("fair.shared"), "fair.shared");
    }
}
