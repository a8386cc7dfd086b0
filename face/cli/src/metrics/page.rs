//! A page of figures in the text form of Prometheus, version 0.0.4.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};

use ropewalk_base::timing::{BUCKETS, Histogram};

use super::catalogue::{Kind, METRICS, find};

/// The first bucket of a page: shorter durations are counted in it, too.
const FIRST: usize = 4;

/// Figures that are put together, by metric.
#[derive(Default)]
pub struct Page {
    samples: BTreeMap<&'static str, String>,
}

impl Page {
    /// Adds a figure. One without a place in the catalogue is left out: a newer server may tell more.
    pub fn put(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        if let Some(metric) = find(name).filter(|metric| metric.kind != Kind::Histogram) {
            let text = self.samples.entry(metric.name).or_default();
            sample(text, &format!("ropewalk_{name}"), labels, None, &value);
        }
    }

    /// Adds a yes or a no.
    pub fn flag(&mut self, name: &str, labels: &[(&str, &str)], value: bool) {
        self.put(name, labels, u8::from(value));
    }

    /// Adds durations.
    pub fn times(&mut self, name: &str, labels: &[(&str, &str)], times: &Histogram) {
        let Some(metric) = find(name).filter(|metric| metric.kind == Kind::Histogram) else {
            return;
        };
        let text = self.samples.entry(metric.name).or_default();
        let mut sum: u64 = 0;
        let buckets = format!("ropewalk_{name}_bucket");
        for (bucket, count) in times.counts.iter().enumerate() {
            sum = sum.saturating_add(*count);
            let bound = Histogram::bound(bucket).filter(|_| bucket + 1 < BUCKETS);
            if bucket < FIRST && bound.is_some() {
                continue;
            }
            let bound = bound.map_or("+Inf".to_string(), |micros| seconds(micros).to_string());
            sample(text, &buckets, labels, Some(&bound), &sum);
        }
        sample(text, &format!("ropewalk_{name}_sum"), labels, None, &seconds(times.micros));
        sample(text, &format!("ropewalk_{name}_count"), labels, None, &sum);
    }

    /// The page.
    pub fn text(self) -> String {
        let mut text = String::new();
        for metric in METRICS {
            let Some(samples) = self.samples.get(metric.name) else { continue };
            let (name, kind) = (metric.name, metric.kind.word());
            let _ = writeln!(text, "# HELP ropewalk_{name} {}", metric.help);
            let _ = writeln!(text, "# TYPE ropewalk_{name} {kind}");
            text.push_str(samples);
        }
        text
    }
}

fn seconds(micros: u64) -> f64 {
    micros as f64 / 1e6
}

fn sample(
    text: &mut String,
    name: &str,
    labels: &[(&str, &str)],
    bound: Option<&str>,
    value: &dyn Display,
) {
    text.push_str(name);
    let bound = bound.map(|bound| ("le", bound));
    let mut between = '{';
    for (label, value) in labels.iter().copied().chain(bound) {
        text.push(between);
        between = ',';
        let _ = write!(text, "{label}=\"");
        value.chars().for_each(|letter| escape(text, letter));
        text.push('"');
    }
    if between == ',' {
        text.push('}');
    }
    let _ = writeln!(text, " {value}");
}

/// Writes a letter of a label's value: what would end it is written otherwise.
fn escape(text: &mut String, letter: char) {
    match letter {
        '\\' => text.push_str("\\\\"),
        '"' => text.push_str("\\\""),
        '\n' => text.push_str("\\n"),
        letter if letter.is_control() => text.push('?'),
        letter => text.push(letter),
    }
}

#[cfg(test)]
pub mod tests {
    use std::time::Duration;

    use ropewalk_base::timing::Timer;

    use super::*;

    /// A page that was read back: series with their values. Panics where it breaks the form.
    pub fn parse(text: &str) -> BTreeMap<String, f64> {
        let mut series = BTreeMap::new();
        let (mut helped, mut typed) = (String::new(), String::new());
        assert!(text.is_empty() || text.ends_with('\n'), "the last line has an end");
        for line in text.lines() {
            if let Some(help) = line.strip_prefix("# HELP ") {
                helped = help.split(' ').next().expect("a name").to_string();
                continue;
            }
            if let Some(kind) = line.strip_prefix("# TYPE ") {
                let (name, kind) = kind.split_once(' ').expect("a name and a type");
                assert_eq!(name, helped, "help stands before the type");
                assert!(["gauge", "counter", "histogram"].contains(&kind), "{line}");
                typed = name.to_string();
                continue;
            }
            let (name, value) = line.rsplit_once(' ').expect("a name and a value");
            assert!(name.starts_with(&typed) && !typed.is_empty(), "{line} stands below {typed}");
            let value: f64 = value.parse().expect("a number");
            if let Some((_, labels)) = name.split_once('{') {
                let labels = labels.strip_suffix('}').expect("an end of the labels");
                assert!(labels.split("\",").all(|it| it.contains("=\"")), "{line}");
            }
            assert!(series.insert(name.to_string(), value).is_none(), "{name} is there twice");
        }
        series
    }

    #[test]
    fn a_page_is_read_back_as_it_was_written() {
        let (mut page, timer) = (Page::default(), Timer::default());
        for micros in [3, 15, 16, 900, 5_000_000] {
            timer.add(Duration::from_micros(micros));
        }
        let labels = [("server", "meta0"), ("op", "get\"at\\tri\nbutes")];
        page.times("call_seconds", &labels, &timer.read());
        page.put("calls_total", &labels, 5);
        page.put("meta_journal_position", &[], u64::MAX);
        page.flag("meta_active", &[("server", "meta0")], true);
        page.put("no_such_metric", &[], 1);
        let text = page.text();
        let series = parse(&text);
        let labels = "server=\"meta0\",op=\"get\\\"at\\\\tri\\nbutes\"";
        let value = |name: &str| series.get(name).copied();
        let bucket =
            |le: &str| value(&format!("ropewalk_call_seconds_bucket{{{labels},le=\"{le}\"}}"));
        assert_eq!((bucket("0.000016"), bucket("0.000032")), (Some(2.0), Some(3.0)), "{text}");
        assert_eq!((bucket("0.001024"), bucket("4.194304")), (Some(4.0), Some(4.0)), "{text}");
        assert_eq!(bucket("+Inf"), Some(5.0), "{text}");
        assert_eq!(value(&format!("ropewalk_call_seconds_count{{{labels}}}")), Some(5.0));
        assert_eq!(value(&format!("ropewalk_call_seconds_sum{{{labels}}}")), Some(5.000934));
        assert_eq!(value("ropewalk_meta_active{server=\"meta0\"}"), Some(1.0));
        assert!(text.contains(&format!("ropewalk_meta_journal_position {}\n", u64::MAX)));
        assert!(!text.contains("no_such_metric"));
    }

    #[test]
    fn a_page_of_a_thousand_series_takes_less_than_ten_milliseconds() {
        let timer = Timer::default();
        timer.add(Duration::from_micros(100));
        let begin = std::time::Instant::now();
        let mut page = Page::default();
        for number in 0..50 {
            let op = format!("op{number}");
            page.times("call_seconds", &[("server", "meta0"), ("op", &op)], &timer.read());
        }
        let text = page.text();
        let took = begin.elapsed();
        let count = parse(&text).len();
        assert!(count >= 1000, "{count}");
        println!("{count} series in {took:?}");
        // Builds without optimisation on a busy machine get more.
        let limit = if cfg!(debug_assertions) { 100 } else { 10 };
        assert!(took < Duration::from_millis(limit), "{took:?}");
    }
}
