//! The row of metrics: the time of a page of a cluster's figures, as Prometheus asks for it.

use std::time::Instant;

use anyhow::ensure;

use crate::counters::{REST, free, page};

use crate::lab::{Options, quoted};
use crate::report::Outcome;
use crate::series::{direct, spread};
use crate::servers::Serving;
use crate::survive::outage::tail;
use crate::survive::site::{pause, scratch, text};

const SCRAPE: &str = "scrape";
const SERVERS: u32 = 8;
const SERIES_MIN: usize = 1000;
const REACH_MS: f64 = 10.0;

/// The names of all rows.
pub fn rows() -> Vec<String> {
    vec![SCRAPE.into()]
}

/// Measures the row, where it is wanted.
///
/// # Errors
/// Servers do not start, or have fewer series than a thousand.
pub fn scrapes(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    if !options.wanted(SCRAPE) {
        return Ok(());
    }
    let place = scratch(&options.disk)?;
    let metrics = free()?;
    let (folder, servers) = (text(&place.path().join("cluster"))?, SERVERS.to_string());
    let metrics_text = metrics.to_string();
    let words = ["up", &folder, "--listen", "127.0.0.1:0", "--data-servers", &servers];
    let up = Serving::start(&[&words[..], &["--metrics", &metrics_text]].concat())?;
    up.wait_for("serves at")?;
    let pages = options.amount(200, 50);
    let (mut times, mut series) = (Vec::new(), 0);
    for turn in 0..=pages {
        pause(options, REST)?;
        let begin = Instant::now();
        let page = page(metrics)?;
        let spent = begin.elapsed();
        series = page.lines().filter(|line| !line.starts_with('#')).count();
        // The first one finds nothing prepared.
        if turn > 0 {
            times.push(spent.as_secs_f64() * 1e3);
        }
    }
    ensure!(series >= SERIES_MIN, "the page has {series} series: fewer than {SERIES_MIN}");
    emit(&told(times, series));
    Ok(())
}

/// All pages are one run: the figure is that of a page.
fn told(times: Vec<f64>, series: usize) -> Outcome {
    let (pages, worst) = (times.len(), tail(times.clone()));
    let kept = spread(times.clone()).0 <= REACH_MS;
    let said = if kept { "kept" } else { "missed" };
    let params = vec![
        ("servers", SERVERS.to_string()),
        ("placement", quoted("one process")),
        ("series", series.to_string()),
        ("pages", pages.to_string()),
        ("reach", REACH_MS.to_string()),
        ("kept", kept.to_string()),
        ("verdict", quoted(&format!("{series} series, reach {REACH_MS} ms: {said}"))),
    ];
    let mut outcome = direct(SCRAPE, "tcp", params, ("latency", "ms"), times);
    (outcome.p99, outcome.runs) = (worst, 1);
    outcome
}
