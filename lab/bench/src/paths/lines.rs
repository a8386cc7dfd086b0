//! Pictures of latencies: of every iteration in order, and by the size of messages.

use std::fmt::Write;

use crate::paths::pair::Many;
use crate::report::{COLOURS, HEIGHT, LEGEND, MARGIN, Outcome, WIDTH};

/// A line: its name, and its points.
type Line = (String, Vec<(f64, f64)>);

/// The pictures of all rows of latencies.
pub fn figures(outcomes: &[Outcome]) -> Vec<String> {
    let mut figures = Vec::new();
    let has_iterations = |it: &&Outcome| !it.param("iterations_us").is_empty();
    let mut counts: Vec<&str> = Vec::new();
    for outcome in outcomes.iter().filter(has_iterations) {
        let channels = outcome.param("channels");
        if counts.contains(&channels) {
            continue;
        }
        counts.push(channels);
        let alike = outcomes.iter().filter(has_iterations);
        let lines = alike.filter(|it| it.param("channels") == channels).map(|it| {
            let values = numbers(it.param("iterations_us"));
            let points = values.into_iter().enumerate().map(|(at, us)| (at as f64, us));
            (it.param("beside").to_string(), points.collect())
        });
        let bytes = outcome.param("bytes");
        let title = format!("latency (us) of every iteration, {bytes} bytes, {channels} channels");
        figures.push(picture(&title, &lines.collect::<Vec<Line>>(), false));
    }
    for many in Many::ALL {
        figures.extend(by_size(many, outcomes));
    }
    figures
}

/// Figure 8: the iteration that meets the cut of a rail, and the others, beside those without a cut.
fn by_size(many: Many, outcomes: &[Outcome]) -> Option<String> {
    let count = |it: &Outcome| it.param(many.name()).to_string();
    let is_such = |it: &&Outcome| it.scenario.starts_with("latency.cut") && !count(it).is_empty();
    let first = outcomes.iter().find(is_such)?;
    let number = |it: &Outcome, name: &str| it.param(name).parse().unwrap_or(0.0);
    let line = |beside: &str, of: &dyn Fn(&Outcome) -> f64| -> Vec<(f64, f64)> {
        let such = outcomes.iter().filter(is_such).filter(|it| it.param("beside") == beside);
        such.map(|it| (number(it, "bytes"), of(it))).collect()
    };
    let lines: Vec<Line> = [
        ("mean, no cut", line("none", &|it| it.median)),
        ("mean of the others", line("cut", &|it| it.median)),
        ("the middle one, no cut", line("none", &|it| number(it, "at_cut_us"))),
        ("the one that meets the cut", line("cut", &|it| number(it, "at_cut_us"))),
    ]
    .map(|(name, points)| (name.to_string(), points))
    .into_iter()
    .filter(|(_, points)| !points.is_empty())
    .collect();
    let title =
        format!("latency (us) by bytes while a rail is cut, {} {}", count(first), many.name());
    Some(picture(&title, &lines, true))
}

fn numbers(list: &str) -> Vec<f64> {
    let words = list.trim_matches(['[', ']']).split(',');
    words.filter_map(|word| word.trim().parse().ok()).collect()
}

/// Lines over a logarithmic scale of latencies; `is_log`: sizes have one, too.
fn picture(title: &str, lines: &[Line], is_log: bool) -> String {
    let across = |value: f64| if is_log { value.max(1.0).log2() } else { value };
    let up = |us: f64| us.max(0.1).log10();
    let all = || lines.iter().flat_map(|(_, points)| points);
    let most = |of: &dyn Fn(&(f64, f64)) -> f64| all().map(of).fold(f64::MIN, f64::max);
    let least = |of: &dyn Fn(&(f64, f64)) -> f64| all().map(of).fold(f64::MAX, f64::min);
    let (from, to) = (least(&|it| across(it.0)), most(&|it| across(it.0)));
    let (low, high) = (least(&|it| up(it.1)).floor(), most(&|it| up(it.1)).ceil());
    let (width, height) = ((to - from).max(1.0), (high - low).max(1.0));
    let x = |value: f64| MARGIN + (across(value) - from) / width * (WIDTH - MARGIN - LEGEND);
    let y = |us: f64| HEIGHT - MARGIN - (up(us) - low) / height * (HEIGHT - 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"white\"/>\n<text x=\"{MARGIN}\" y=\"30\" font-size=\"16\">{title}</text>\n"
    );
    for power in 0..=height as i32 {
        let us = 10f64.powf(low + f64::from(power));
        let _ = writeln!(
            svg,
            "<line x1=\"{MARGIN}\" x2=\"{:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\" stroke=\"#ccc\"/>\
             <text x=\"{2:.1}\" y=\"{1:.1}\" text-anchor=\"end\">{us}</text>",
            WIDTH - LEGEND,
            y(us),
            MARGIN - 6.0,
        );
    }
    for part in 0..=4 {
        let place = from + width * f64::from(part) / 4.0;
        let value = if is_log { place.exp2() } else { place };
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{value:.0}</text>",
            x(value),
            HEIGHT - MARGIN + 18.0,
        );
    }
    for (number, (name, points)) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let places: Vec<String> =
            points.iter().map(|(at, us)| format!("{:.1},{:.1}", x(*at), y(*us))).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{name}</text>",
            places.join(" "),
            WIDTH - LEGEND + 12.0,
            MARGIN + 18.0 * number as f64,
        );
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::series::OURS;

    fn outcome(scenario: &str, params: &[(&'static str, &str)]) -> Outcome {
        let params = params.iter().map(|(name, value)| (*name, value.to_string())).collect();
        let (median, min, max) = (12.0, 11.0, 13.0);
        Outcome {
            scenario: scenario.into(),
            system: OURS,
            version: "1".into(),
            medium: "tcp",
            params,
            metric: "latency",
            unit: "us",
            median,
            min,
            max,
            p99: 5000.0,
            runs: 1,
            ratio: None,
        }
    }

    #[test]
    fn each_count_of_channels_has_a_picture_and_all_sizes_have_one() {
        let every = |channels: &str, beside: &str| {
            let list = ("iterations_us", "[10.0,12.5,900.0]");
            let common = [("channels", channels), ("bytes", "128"), ("beside", beside), list];
            outcome("latency.transition.tcp", &common)
        };
        let cut = |many: &'static str, bytes: &str, beside: &str| {
            let at_cut = ("at_cut_us", "9000");
            let common = [(many, "512"), ("bytes", bytes), ("beside", beside), at_cut];
            outcome(&format!("latency.cut.{many}.tcp"), &common)
        };
        let drawn = figures(&[
            every("1", "none"),
            every("1", "transitions"),
            every("512", "none"),
            cut("channels", "1", "none"),
            cut("channels", "1", "cut"),
            cut("channels", "1024", "cut"),
            cut("endpoints", "1", "cut"),
        ]);
        assert_eq!(drawn.len(), 4);
        let lines: Vec<usize> = drawn.iter().map(|svg| svg.matches("<polyline").count()).collect();
        assert_eq!(lines, [2, 1, 4, 2]);
        assert!(drawn[3].contains("512 endpoints"), "{}", drawn[3]);
        assert!(drawn.iter().all(|svg| !svg.contains("NaN") && !svg.contains("inf")), "{drawn:?}");
        assert!(figures(&[]).is_empty());
    }
}
