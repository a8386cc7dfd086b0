//! A long run with one fault after the other: operations of four clients in each tenth of a second, with a standby and
//! without one.

use std::time::Duration;

use crate::host::monotonic_nanos;
use crate::lab::{Options, version};
use crate::report::Outcome;
use crate::series::{OURS, spread};
use crate::survive::bar::Bar;
use crate::survive::crowd::{COUNT, Crowd, Record};
use crate::survive::gaps;
use crate::survive::ground::Ground;
use crate::survive::names::Kind;
use crate::survive::outage::params;
use crate::survive::site::Site;
use crate::survive::trial::{Fault, strike, verify};

/// The names of the two parties.
const PARTIES: [&str; 2] = [OURS, "without-standby"];
const BIN_NS: u64 = 100_000_000;
/// The pause of the paused server is that of this run: shorter than a lease.
const PAUSE: usize = 1;

/// The name of the row of a kind.
fn name(kind: Kind) -> String {
    format!("timeline.{}", kind.name())
}

/// The names of all rows.
pub fn rows() -> Vec<String> {
    Kind::ALL.iter().map(|kind| name(*kind)).collect()
}

/// Times of the run: before the first fault and between two; from a fault to the return of the server.
struct Times {
    calm: Duration,
    outage: Duration,
}

/// An event in a run, in nanoseconds from its begin.
#[derive(Debug, Clone)]
struct Event {
    nanos: u64,
    word: String,
}

/// What came of a run.
struct Told {
    records: Vec<Record>,
    events: Vec<Event>,
    span: (u64, u64),
}

/// Measures it, where any of the rows is wanted.
///
/// # Errors
/// Something that was acknowledged is missing, was done twice, or clients did not go on.
pub fn timeline(
    ground: &Ground,
    options: &Options,
    emit: &mut dyn FnMut(&Outcome),
) -> anyhow::Result<()> {
    if !Kind::ALL.iter().any(|kind| options.wanted(&name(*kind))) {
        return Ok(());
    }
    let seconds = |full, quick| Duration::from_secs(if options.quick { quick } else { full });
    let times = Times { calm: seconds(4, 2), outage: seconds(4, 3) };
    let mut faults = Fault::ALL.to_vec();
    faults.retain(|fault| *fault != Fault::Cut || ground.lacks_cuts().is_none());
    let bar = Bar::new("timeline", 2 * faults.len());
    let mut all = Vec::new();
    for (turn, party) in PARTIES.into_iter().enumerate() {
        let mut site = Site::start(ground, options, 2 - turn)?;
        let mut show = |done| bar.show(turn * faults.len() + done, party);
        let told = run(ground, &mut site, &faults, &times, &mut show);
        if options.is_interrupted() {
            return Ok(());
        }
        let told = told.inspect_err(|_| site.show_logs())?;
        let folders: Vec<(String, u64)> =
            told.records.iter().map(|it| (it.folder.clone(), it.creates)).collect();
        let names = verify(ground, &mut site, &folders)?;
        all.push((party, told, names));
    }
    for kind in Kind::ALL.into_iter().filter(|kind| options.wanted(&name(*kind))) {
        for (party, told, names) in &all {
            let params = [params(ground, &options.disk), told.params(kind, *names)].concat();
            emit(&told.outcome(kind, party, params));
        }
    }
    Ok(())
}

fn run(
    ground: &Ground,
    site: &mut Site<'_>,
    faults: &[Fault],
    times: &Times,
    show: &mut dyn FnMut(usize),
) -> anyhow::Result<Told> {
    let mut crowd = Crowd::start(ground, site, "timeline", true)?;
    let begin = monotonic_nanos();
    let mut events = Vec::new();
    let mut note = |word: &str| {
        events.push(Event { nanos: monotonic_nanos() - begin, word: word.to_string() });
    };
    for (done, fault) in faults.iter().enumerate() {
        show(done);
        // A server alone has nobody to change places with.
        if *fault == Fault::Switched && !site.has_standby() {
            continue;
        }
        site.pause(times.calm)?;
        let victim = site.active()?;
        note(fault.name());
        let mend = strike(ground, site, *fault, victim, PAUSE)?;
        let before = crowd.counts()?;
        if matches!(fault, Fault::Killed | Fault::Stopped | Fault::Cut) {
            site.pause(times.outage)?;
            note("back");
        }
        mend.apply(site, victim)?;
        crowd.await_progress(site.options(), &before)?;
        if site.has_standby() {
            site.await_standby(1 - site.active()?)?;
        }
    }
    site.pause(times.calm)?;
    let end = monotonic_nanos();
    Ok(Told { records: crowd.stop()?, events, span: (begin, end) })
}

impl Told {
    fn times(&self, kind: Kind) -> Vec<u64> {
        let each: Vec<Vec<u64>> = self.records.iter().map(|it| it.times(kind)).collect();
        gaps::together(&each)
    }

    /// The longest time in ms in which a client got no operation of a kind acknowledged.
    fn gap(&self, kind: Kind) -> f64 {
        let (begin, _) = self.span;
        let gaps = self.records.iter().filter_map(|it| gaps::longest_after(&it.times(kind), begin));
        gaps.fold(0.0, f64::max)
    }

    fn params(&self, kind: Kind, names: u64) -> Vec<(&'static str, String)> {
        let rates = gaps::rates(&self.times(kind), self.span, BIN_NS);
        let rates: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}")).collect();
        let events =
            self.events.iter().map(|it| format!("\"{:.0} {}\"", it.nanos as f64 / 1e6, it.word));
        vec![
            ("clients", COUNT.to_string()),
            ("acknowledged", names.to_string()),
            ("lost", "0".into()),
            ("twice", "0".into()),
            ("longest_gap_ms", format!("{:.1}", self.gap(kind))),
            ("timeline_bin_ms", (BIN_NS / 1_000_000).to_string()),
            ("timeline_rates", format!("[{}]", rates.join(","))),
            ("timeline_events", format!("[{}]", events.collect::<Vec<_>>().join(","))),
        ]
    }

    fn outcome(
        &self,
        kind: Kind,
        party: &'static str,
        params: Vec<(&'static str, String)>,
    ) -> Outcome {
        let rates = gaps::rates(&self.times(kind), self.span, BIN_NS);
        let (median, min, max) = if rates.is_empty() { (0.0, 0.0, 0.0) } else { spread(rates) };
        Outcome {
            scenario: name(kind),
            system: party,
            version: version(),
            medium: "library",
            params,
            metric: "rate",
            unit: "1/s",
            median,
            min,
            max,
            p99: min,
            runs: 1,
            ratio: None,
        }
    }
}
