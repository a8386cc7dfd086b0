//! Results of a benchmark, in the forms for its readers.

use std::fmt::Write;

/// Metrics of the servers' part in an operation: calls to them, their time, and their syncs.
pub const CALLS: &str = "server_calls";
pub const SERVED: &str = "server_time";
pub const SYNCS: &str = "server_syncs";

/// One figure.
#[derive(Debug, Clone)]
pub struct Outcome {
    pub scenario: String,
    /// `ropewalk`, `raw` for a bare medium in the same tool, or a peer by its name.
    pub system: &'static str,
    /// Of the system.
    pub version: String,
    pub medium: &'static str,
    /// Names and values of the conditions of the measurement; values are JSON already.
    pub params: Vec<(&'static str, String)>,
    pub metric: &'static str,
    pub unit: &'static str,
    pub median: f64,
    pub min: f64,
    pub max: f64,
    pub p99: f64,
    pub runs: usize,
    /// Ours as a multiple of the named system's result, run by run: the median.
    pub ratio: Option<(f64, &'static str)>,
}

impl Outcome {
    /// The value of a parameter, without quotes.
    pub fn param(&self, name: &str) -> &str {
        let found = self.params.iter().find(|(other, _)| *other == name);
        found.map_or("", |(_, value)| value.trim_matches('"'))
    }

    /// One line of JSON.
    pub fn json(&self) -> String {
        let params: Vec<String> =
            self.params.iter().map(|(name, value)| format!("\"{name}\":{value}")).collect();
        let ratio = self.ratio.map_or(String::new(), |(ratio, to)| {
            format!(",\"ratio\":{ratio:.4},\"ratio_to\":\"{to}\"")
        });
        format!(
            "{{\"scenario\":\"{}\",\"system\":\"{}\",\"version\":\"{}\",\"medium\":\"{}\",\
             \"params\":{{{}}},\"metric\":\"{}\",\"unit\":\"{}\",\"median\":{:.4},\"min\":{:.4},\
             \"max\":{:.4},\"p99\":{:.4},\"runs\":{}{ratio}}}",
            self.scenario,
            self.system,
            self.version,
            self.medium,
            params.join(","),
            self.metric,
            self.unit,
            self.median,
            self.min,
            self.max,
            self.p99,
            self.runs
        )
    }
}

/// The columns of the table.
const COLUMNS: usize = 80;

/// A table for people. Each scenario has a line with its name. Below it each system has one with the conditions of
/// the measurement, and one with the main figure, the time of the slowest operations and the processor time.
#[derive(Default)]
pub struct Table {
    /// The scenario of the last row.
    scenario: Option<String>,
    pending: Option<Pending>,
}

/// A row that is not printed yet.
struct Pending {
    /// The main figure, and the tail and processor time beside it.
    main: Outcome,
    tail: String,
    cpu: String,
    /// The servers' part.
    served: Vec<String>,
}

impl Table {
    /// Takes a figure; the text that can be printed now.
    pub fn add(&mut self, outcome: &Outcome) -> String {
        if let Some(Pending { main, tail, cpu, served }) = &mut self.pending
            && (&main.scenario, main.system, &main.params)
                == (&outcome.scenario, outcome.system, &outcome.params)
        {
            let median = number(outcome.median);
            match outcome.metric {
                "latency" => *tail = number(outcome.p99),
                "cpu" => *cpu = format!("{median} {}", outcome.unit),
                CALLS => served.push(format!("{median} calls")),
                SERVED => served.push(format!("{median} us")),
                SYNCS => served.push(format!("{median} syncs")),
                _ => {}
            }
            return String::new();
        }
        let text = self.finish();
        let tail = match outcome.metric {
            "latency" => number(outcome.p99),
            _ => String::new(),
        };
        let (main, cpu, served) = (outcome.clone(), String::new(), Vec::new());
        self.pending = Some(Pending { main, tail, cpu, served });
        text
    }

    /// The lines that were not printed yet.
    pub fn finish(&mut self) -> String {
        let Some(Pending { main, tail, cpu, served }) = self.pending.take() else {
            return String::new();
        };
        let mut text = String::new();
        if self.scenario.is_none() {
            let (median, min, max, unit) = ("median", "min", "max", "unit");
            text += &row([median, min, max, unit, "p99 us", "cpu", "ratio"]);
        }
        if self.scenario.as_ref() != Some(&main.scenario) {
            let _ = writeln!(text, "{}", main.scenario);
            self.scenario = Some(main.scenario.clone());
        }
        let mut line = format!("  {}:", main.system);
        let conditions = conditions(&main);
        let last = conditions.len().saturating_sub(1);
        for (index, condition) in conditions.iter().enumerate() {
            if line.chars().count() + condition.chars().count() + 2 > COLUMNS {
                let _ = writeln!(text, "{line}");
                line = "   ".to_string();
            }
            line += &format!(" {condition}{}", if index < last { "," } else { "" });
        }
        let _ = writeln!(text, "{line}");
        let ratio = main.ratio.map_or(String::new(), |(ratio, to)| format!("{ratio:.2} x {to}"));
        let (median, min, max) = (number(main.median), number(main.min), number(main.max));
        text += &row([&median, &min, &max, main.unit, &tail, &cpu, &ratio]);
        if !served.is_empty() {
            let _ = writeln!(text, "    servers, each operation: {}", served.join(", "));
        }
        text
    }
}

fn row([median, min, max, unit, tail, cpu, ratio]: [&str; 7]) -> String {
    let line = format!("{median:>10} {min:>8} {max:>8} {unit:<10} {tail:>7} {cpu:>11}  {ratio}");
    format!("{}\n", line.trim_end())
}

/// Parameters that are shown behind their values, with the words for them.
const SHOWN: [(&str, &str); 20] = [
    ("loops_alone_us", "us alone"),
    ("loops_beside_us", "us beside an origin"),
    ("service_us", "us of them served"),
    ("operations", "operations"),
    ("acknowledged", "acknowledged"),
    ("lost", "lost"),
    ("twice", "twice"),
    ("frames", "frames"),
    ("longest_gap_ms", "ms gap"),
    ("slowest_ms", "ms for the slowest"),
    ("sent_of_each_byte", "x sent"),
    ("received_of_each_byte", "x received"),
    ("moved_mib_s", "MiB/s moved"),
    ("first_bytes_ms", "ms until the first bytes"),
    ("calls_a_second", "calls a second"),
    ("cpu_us_a_call", "us of its processor for a call"),
    ("computing", "x computing"),
    ("outage_ms", "ms outage"),
    ("control_gap_ms", "ms gap without fault"),
    ("not_back", "not back"),
];

/// The conditions of a measurement in words: a number has its name before it.
fn conditions(main: &Outcome) -> Vec<String> {
    let names = [
        "wait",
        "cores",
        "placement",
        "client",
        "bytes",
        "posted",
        "buffers",
        "eager",
        "gigabits",
        "rails",
        "fault",
        "channels",
        "coalescing",
        "endpoints",
        "neighbours",
        "servers",
        "clients",
        "copies",
        "payload",
        "modules",
        "receives",
        "service",
        "lost_ppm",
        "network",
        "storage",
    ];
    let mut all = Vec::new();
    for name in names {
        let value = main.param(name);
        let is_word = value.starts_with(|first: char| first.is_ascii_alphabetic());
        let speaks = is_word && !matches!(value, "true" | "false" | "none" | "one" | "two");
        match value.is_empty() {
            true => {}
            false if speaks && !matches!(name, "wait" | "cores") => all.push(value.to_string()),
            false => all.push(format!("{name} {value}")),
        }
    }
    let journal = main.param("journal");
    if journal != main.param("storage") && !journal.is_empty() {
        all.push(format!("journal {journal}"));
    }
    all.extend(costs(main));
    // A sentence already.
    let verdict = main.param("verdict");
    all.extend((!verdict.is_empty()).then(|| verdict.to_string()));
    for (name, unit) in SHOWN {
        let value = main.param(name);
        let speaks = !value.is_empty() && (name, value) != ("not_back", "0");
        all.extend(speaks.then(|| format!("{value} {unit}")));
    }
    all
}

/// The costs of two ranks for a round, the bytes on the wire for it, and intervals of ratios to others.
fn costs(main: &Outcome) -> Vec<String> {
    let value = |name: &str| main.param(name).parse::<f64>().ok();
    let pair = |(name, unit): (&str, &str)| {
        let [first, second] = [0, 1].map(|rank| value(&format!("{name}_{rank}")));
        Some(format!("{} + {} {unit}", count(first?), count(second?)))
    };
    let both = [
        ("cpu_us", "us of processors"),
        ("copied_bytes", "bytes copied"),
        ("registrations", "registered"),
    ];
    let mut all: Vec<String> = both.into_iter().filter_map(pair).collect();
    all.extend(value("wire_bytes").map(|bytes| format!("{} bytes on the wire", count(bytes))));
    for (name, told) in &main.params {
        let numbers = told.trim_matches(['[', ']']).split(',').map(|number| number.parse().ok());
        let numbers: Option<Vec<f64>> = numbers.collect();
        if let (Some(other), Some([middle, from, to])) =
            (name.strip_prefix("ratio_"), numbers.as_deref())
        {
            all.push(format!("{middle:.2} x {other} [{from:.2} to {to:.2}]"));
        }
    }
    all
}

/// Whole numbers are whole.
fn count(value: f64) -> String {
    if (value - value.round()).abs() < 5e-4 { format!("{value:.0}") } else { number(value) }
}

/// With as many places as say something.
fn number(value: f64) -> String {
    match value.abs() {
        large if large >= 100.0 => format!("{value:.0}"),
        middle if middle >= 1.0 => format!("{value:.2}"),
        _ => format!("{value:.4}"),
    }
}

pub(crate) const WIDTH: f64 = 860.0;
pub(crate) const HEIGHT: f64 = 460.0;
pub(crate) const MARGIN: f64 = 60.0;
pub(crate) const LEGEND: f64 = 240.0;
pub(crate) const COLOURS: [&str; 8] =
    ["#1b6ca8", "#d1495b", "#2e933c", "#8a508f", "#e07a1f", "#3d3d3d", "#00838f", "#a67c00"];

/// A figure of one metric over the size of the messages, both axes logarithmic.
pub fn figure(outcomes: &[Outcome], metric: &str) -> String {
    figure_of(outcomes, metric, "")
}

/// The name that distinguishes a line of a figure from the others.
fn line_name(outcome: &Outcome) -> String {
    let params = ["wait", "cores", "posted", "buffers"].map(|name| outcome.param(name));
    let words = [outcome.medium, outcome.system].into_iter().chain(params);
    let mut name = words.filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ");
    for setting in ["eager", "coalescing", "neighbours"] {
        let value = outcome.param(setting);
        if !value.is_empty() {
            let _ = write!(name, ", {setting} {value}");
        }
    }
    name
}

/// The same with a title.
pub fn figure_of(outcomes: &[Outcome], metric: &str, of: &str) -> String {
    figure_by(outcomes, metric, ("bytes", "message size (bytes)"), of)
}

/// The same by another parameter than the size, which is given with its words.
pub fn figure_by(
    outcomes: &[Outcome],
    metric: &str,
    (parameter, words): (&str, &str),
    of: &str,
) -> String {
    let mut lines: Vec<(String, Vec<(f64, f64)>)> = Vec::new();
    let mut unit = "";
    for outcome in outcomes.iter().filter(|outcome| outcome.metric == metric) {
        let name = line_name(outcome);
        let Ok(bytes) = outcome.param(parameter).parse::<f64>() else { continue };
        // Nothing has no place on this axis: it stands where one byte would.
        let bytes = bytes.max(1.0);
        unit = outcome.unit;
        match lines.iter_mut().find(|(other, _)| *other == name) {
            Some((_, points)) => points.push((bytes, outcome.median)),
            None => lines.push((name, vec![(bytes, outcome.median)])),
        }
    }
    let all = || lines.iter().flat_map(|(_, points)| points.iter());
    let low_x = all().map(|point| point.0).fold(f64::MAX, f64::min).log2();
    let high_x = all().map(|point| point.0).fold(1.0, f64::max).log2().max(low_x + 1.0);
    let low_y = all().map(|point| point.1).fold(f64::MAX, f64::min).max(1e-3).log10().floor();
    let high_y = all().map(|point| point.1).fold(1e-3, f64::max).log10().ceil().max(low_y + 1.0);
    let x =
        |bytes: f64| MARGIN + (bytes.log2() - low_x) / (high_x - low_x) * (WIDTH - MARGIN - LEGEND);
    let y = |value: f64| {
        let part = (value.max(1e-3).log10() - low_y) / (high_y - low_y);
        HEIGHT - MARGIN - part * (HEIGHT - 2.0 * MARGIN)
    };
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" \
         font-family=\"sans-serif\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"white\"/>\n<text x=\"{MARGIN}\" y=\"30\" font-size=\"16\">{metric} ({unit}) by \
         {words}{of}</text>\n"
    );
    let has_nothing = outcomes.iter().any(|it| it.metric == metric && it.param(parameter) == "0");
    for power in (low_x.ceil() as i32)..=(high_x as i32) {
        let at = x(f64::from(power).exp2());
        let label = match (power, has_nothing) {
            (0, true) => "0, 1".to_string(),
            _ => short(1u64 << power),
        };
        let _ = writeln!(
            svg,
            "<text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            HEIGHT - MARGIN + 18.0,
            label
        );
    }
    for power in (low_y as i32)..=(high_y as i32) {
        let at = y(10f64.powi(power));
        let _ = writeln!(
            svg,
            "<line x1=\"{MARGIN}\" x2=\"{:.1}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ccc\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            WIDTH - LEGEND,
            MARGIN - 6.0,
            at + 4.0,
            10f64.powi(power)
        );
    }
    for (number, (name, points)) in lines.iter().enumerate() {
        let places: Vec<_> = points.iter().map(|(a, b)| (x(*a), y(*b))).collect();
        draw(&mut svg, number, name, &places);
    }
    svg.push_str("</svg>\n");
    svg
}

/// A line through places in the figure, with its name beside the figure.
fn draw(svg: &mut String, number: usize, name: &str, places: &[(f64, f64)]) {
    let colour = COLOURS[number % COLOURS.len()];
    let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    let at = MARGIN + 18.0 * number as f64;
    let _ = writeln!(
        svg,
        "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\
         <text x=\"{:.1}\" y=\"{at:.1}\" fill=\"{colour}\">{name}</text>",
        path.join(" "),
        WIDTH - LEGEND + 12.0
    );
    // A line of a single size would be nothing to look at.
    for (x, y) in places {
        let _ = writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>");
    }
}

/// A size in few digits.
fn short(bytes: u64) -> String {
    match bytes {
        many if many >= 1 << 20 => format!("{}M", many >> 20),
        some if some >= 1 << 10 => format!("{}K", some >> 10),
        few => few.to_string(),
    }
}

/// Several figures below each other.
pub fn stack(figures: &[String]) -> String {
    let height_of = |figure: &String| -> f64 {
        let view = figure.split("viewBox=\"").nth(1).and_then(|rest| rest.split('"').next());
        view.and_then(|view| view.split(' ').nth(3))
            .and_then(|it| it.parse().ok())
            .unwrap_or(HEIGHT)
    };
    let total: f64 = figures.iter().map(height_of).sum();
    let mut svg =
        format!("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {total}\">\n");
    let mut top = 0.0;
    for figure in figures {
        let height = height_of(figure);
        let place = format!("<svg y=\"{top}\" width=\"{WIDTH}\" height=\"{height}\" ");
        svg.push_str(&figure.replacen("<svg ", &place, 1));
        top += height;
    }
    svg.push_str("</svg>\n");
    svg
}

/// The label that distinguishes a bar from others of its scenario.
fn bar_name(outcome: &Outcome, all: &[&Outcome]) -> String {
    let of = |it: &Outcome| (it.scenario.clone(), it.metric);
    let alike: Vec<&&Outcome> = all.iter().filter(|it| of(it) == of(outcome)).collect();
    let mut label = outcome.scenario.clone();
    if alike.iter().any(|it| it.system != outcome.system) {
        let _ = write!(label, " {}", outcome.system);
    }
    if outcome.param("placement") == "embedded" {
        label.push_str(" embedded");
    }
    for name in ["bytes", "endpoints", "posted", "service", "lost_ppm", "fault"] {
        let value = outcome.param(name);
        if !value.is_empty() && alike.iter().any(|it| it.param(name) != value) {
            let _ = write!(label, " {name} {value}");
        }
    }
    label
}

/// A figure of rates and bandwidths: a bar for each system in each scenario, as long as its share
/// of the best one.
pub fn bars(outcomes: &[Outcome]) -> String {
    let all: Vec<&Outcome> = outcomes
        .iter()
        .filter(|one| !matches!(one.metric, "cpu") && (one.metric, one.unit) != ("latency", "us"))
        .collect();
    let height = 50.0 + 18.0 * all.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" \
         font-family=\"sans-serif\" font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" \
         fill=\"white\"/>\n"
    );
    for (index, outcome) in all.iter().enumerate() {
        let same = all
            .iter()
            .filter(|other| (&other.scenario, other.metric) == (&outcome.scenario, outcome.metric));
        let best = same.map(|other| other.median).fold(f64::MIN_POSITIVE, f64::max);
        let (at, long) = (30.0 + 18.0 * index as f64, 300.0 * (outcome.median / best).max(0.0));
        let colour = match outcome.system {
            "ropewalk" if outcome.param("placement") == "embedded" => COLOURS[6],
            "ropewalk" => COLOURS[0],
            _ => COLOURS[4],
        };
        let label = bar_name(outcome, &all);
        let _ = writeln!(
            svg,
            "<text x=\"10\" y=\"{at:.1}\">{label}</text><rect x=\"380\" y=\"{:.1}\" \
             width=\"{long:.1}\" height=\"12\" fill=\"{colour}\"/><text x=\"690\" \
             y=\"{at:.1}\">{} {}</text>",
            at - 10.0,
            number(outcome.median),
            outcome.unit
        );
    }
    svg.push_str("</svg>\n");
    svg
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_and_a_line_hold_what_was_measured() {
        let outcome = Outcome {
            scenario: "pingpong".into(),
            system: "ropewalk",
            version: "1.2".into(),
            medium: "tcp",
            params: vec![("bytes", "8".into()), ("wait", "\"spin\"".into())],
            metric: "latency",
            unit: "us",
            median: 5.5,
            min: 5.0,
            max: 9.0,
            p99: 8.0,
            runs: 5,
            ratio: Some((0.5, "raw")),
        };
        let line = outcome.json();
        assert!(line.contains("\"params\":{\"bytes\":8,\"wait\":\"spin\"}"), "{line}");
        assert!(line.contains("\"median\":5.5000"), "{line}");
        assert!(line.ends_with(",\"runs\":5,\"ratio\":0.5000,\"ratio_to\":\"raw\"}"), "{line}");
        let figure = figure(std::slice::from_ref(&outcome), "latency");
        assert!(figure.contains("tcp ropewalk spin") && figure.contains("<polyline"), "{figure}");
        let mut table = Table::default();
        let cpu = Outcome { metric: "cpu", unit: "s/1000", ..outcome.clone() };
        assert_eq!(table.add(&outcome) + &table.add(&cpu), "");
        let text = table.finish();
        assert!(text.contains("5.50") && text.contains("0.50 x raw"), "{text}");
        assert!(text.contains("  ropewalk: wait spin, bytes 8\n"), "{text}");
        assert!(text.contains("5.50 s/1000") && text.lines().count() == 4, "{text}");
        assert!(text.lines().all(|line| line.len() <= COLUMNS), "{text}");
        for (late, is_told) in [("0", false), ("2", true)] {
            let params = vec![("not_back", late.to_string())];
            let mut table = Table::default();
            let text = table.add(&Outcome { params, ..outcome.clone() }) + &table.finish();
            assert_eq!(text.contains("not back"), is_told, "{text}");
        }
        let params = [
            ("cpu_us_0", "5.123"),
            ("cpu_us_1", "0.500"),
            ("copied_bytes_0", "4096.000"),
            ("copied_bytes_1", "0.000"),
            ("registrations_0", "0.000"),
            ("registrations_1", "0.000"),
            ("wire_bytes", "4321.5"),
            ("ratio_messages", "[0.5012,0.4512,0.6000]"),
        ];
        let params = params.map(|(name, value)| (name, value.to_string())).into();
        let mut table = Table::default();
        let text = table.add(&Outcome { params, ..outcome.clone() }) + &table.finish();
        for told in [
            "5.12 + 0.5000 us of processors",
            "4096 + 0 bytes copied",
            "0 + 0 registered",
            "4322 bytes on the wire",
            "0.50 x messages [0.45 to 0.60]",
        ] {
            assert!(text.contains(told), "{told}: {text}");
        }
        assert!(text.lines().all(|line| line.len() <= COLUMNS), "{text}");
        let other = Outcome { metric: "rate", unit: "1/s", median: 12_345.0, ..outcome };
        let bars = bars(&[other]);
        assert!(bars.contains("12345 1/s") && bars.contains("width=\"300.0\""), "{bars}");
    }
}
