//! Kernels of parallel programs in four namespaces with two processes each and two rails: undisturbed, with planned drains
//! of rails, and while rails fail at the same moments.
//!
//! * [`sort`], [`fourier`], [`wavefront`]: the kernels IS, FT, and one like LU; [`class`]: their sizes; [`random`];
//! * [`group`]: messages and operations of all; [`rank`]: the processes; [`mod@moments`]: when what fails.
//!
//! Each result is verified in the processes: against published values, and the wavefront bit by bit against one process.

mod class;
mod fourier;
mod group;
mod moments;
mod random;
pub(super) mod rank;
mod sort;
mod wavefront;

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Context;
use ropewalk_netns::{Topology, TopologyConfig};
use tempfile::NamedTempFile;

use crate::lab::{Options, alternate, quoted, version};
use crate::paths::guide::Kin;
use crate::paths::kernels::class::{Class, Kernel};
use crate::paths::kernels::moments::{Disturbance, HOSTS, Moment, RAILS, moments};
use crate::paths::presence::{Medium, with_neighbours};
use crate::paths::verdict::{Verdict, listed};
use crate::process::Process;
use crate::report::Outcome;
use crate::series::{OURS, spread};

const PROCESSES_EACH: usize = 2;
/// Channels of an association that rows use.
const CHANNELS: [usize; 3] = [1, 8, 64];
/// From one fault to the next, on average; a kernel that is faster is run several times.
const FAULT_EACH: Duration = Duration::from_millis(400);
/// The most milliseconds that a fault shall cost, beyond what a planned drain at the same moment costs.
const FAULT_MS: f64 = 20.0;

/// No kernel takes longer, on however busy a machine.
const LIMIT: Duration = Duration::from_secs(600);

#[derive(Debug, Clone, Copy)]
struct Row {
    kernel: Kernel,
    class: Class,
    medium: Medium,
    channels: usize,
}

fn rows_of(quick: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for (class, medium) in Class::ALL.into_iter().flat_map(|it| Medium::ALL.map(|of| (it, of))) {
        for kernel in Kernel::ALL {
            let all = CHANNELS.map(|channels| Row { kernel, class, medium, channels });
            rows.extend(all.into_iter().filter(|row| !quick || row.is_quick()));
        }
    }
    rows
}

/// The names of all rows, or of those that are measured where it has to be quick.
pub fn rows(quick: bool) -> Vec<String> {
    rows_of(quick).iter().map(Row::name).collect()
}

/// What they measure.
pub fn kin() -> Kin {
    Kin {
        names: "kernels.KERNEL.CLASS.MEDIUM.CHANNELS",
        what: "parallel programs in 4 namespaces with 2 processes each, verified, while rails \
               fail, or are drained at the same moments",
        reach: format!("a fault costs {FAULT_MS} ms beyond a drain"),
    }
}

/// Measures the rows that are wanted.
///
/// # Errors
/// There can be no network namespaces.
pub fn kernels(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    let faults = options.amount(16, 4) as usize;
    for row in rows_of(options.quick).iter().filter(|row| options.wanted(&row.name())) {
        let config = TopologyConfig { hosts: HOSTS, rails: RAILS, ..TopologyConfig::default() };
        let topology = Topology::new(&config)?;
        let reference = row.reference()?;
        let file = reference.as_ref().map(NamedTempFile::path);
        let mut shortest: Option<f64> = None;
        let name = |disturbance: Disturbance| format!("{}: {}", row.name(), disturbance.name());
        let found = alternate(options, options.runs(), &Disturbance::ALL.map(name), |turn, run| {
            let disturbance = Disturbance::ALL[turn];
            let mut crew = row.crew(&topology)?;
            if row.class.wants_warming() {
                row.run(&mut crew, file)?;
            }
            let alone = match shortest {
                Some(seconds) => seconds,
                None => row.run(&mut crew, file)?,
            };
            let span = FAULT_EACH * faults as u32;
            let times = (span.as_secs_f64() / alone).ceil().max(1.0) as usize;
            if shortest.is_none() && (times, disturbance) == (1, Disturbance::Nothing) {
                shortest = Some(alone);
                return Ok(Run { seconds: alone, times, struck: 0 });
            }
            let moments = moments(disturbance, faults, alone * times as f64, run);
            let (all, struck) = row.play(&topology, &mut crew, (times, file), &moments)?;
            let seconds = all / times as f64;
            // Moments of faults have to lie within the time of a fast run.
            shortest = Some(alone.min(seconds));
            Ok(Run { seconds, times, struck })
        });
        for outcome in row.outcomes(&found) {
            emit(&outcome);
        }
    }
    Ok(())
}

/// One run of a kernel.
#[derive(Debug, Clone, Copy)]
struct Run {
    /// Of one of the kernel.
    seconds: f64,
    /// How often the kernel was run.
    times: usize,
    /// Faults, or drains, in all of that.
    struck: usize,
}

impl Run {
    fn faults_each(&self) -> f64 {
        self.struck as f64 / self.times as f64
    }

    /// The milliseconds that a fault of this run costs beyond another run.
    fn each_fault(&self, other: &Run) -> f64 {
        (self.seconds - other.seconds) * 1e3 / self.faults_each().max(1e-9)
    }
}

impl Row {
    fn name(&self) -> String {
        let Row { kernel, class, medium, channels } = self;
        format!("kernels.{}.{}.{}.{channels}", kernel.name(), class.name(), medium.name())
    }

    /// Whether it is measured where it has to be quick.
    fn is_quick(&self) -> bool {
        (self.class, self.medium, self.channels) == (Class::S, Medium::Tcp, 1)
    }

    /// Starts the processes, which know each other then.
    fn crew(&self, topology: &Topology) -> anyhow::Result<Vec<Process>> {
        let start = |rank: usize| {
            let host = topology.host(rank / PROCESSES_EACH);
            let places = with_neighbours(self.medium, self.medium.places(host, RAILS));
            let part = rank::part(self.medium, rank, self.channels, &places);
            Process::start(host.command(std::env::current_exe()?), &part)
        };
        let mut crew =
            (0..HOSTS * PROCESSES_EACH).map(start).collect::<anyhow::Result<Vec<_>>>()?;
        let urls = crew.iter_mut().map(|process| process.hear_word("url"));
        let urls = urls.collect::<anyhow::Result<Vec<_>>>()?.join(" ");
        crew.iter_mut().try_for_each(|process| process.tell(&urls))?;
        crew.iter_mut().try_for_each(|process| process.hear_word("met").map(drop))?;
        Ok(crew)
    }

    /// A file with the result of one process, where the kernel has no published results.
    fn reference(&self) -> anyhow::Result<Option<NamedTempFile>> {
        if self.kernel != Kernel::Lu {
            return Ok(None);
        }
        let file = NamedTempFile::new()?;
        wavefront::Reference::of(self.class).write(file.path())?;
        Ok(Some(file))
    }

    /// Lets the processes run the kernel so many times.
    fn start(&self, crew: &mut [Process], times: usize, file: Option<&Path>) -> anyhow::Result<()> {
        let line = rank::computes(self.kernel, self.class, times, file);
        crew.iter_mut().try_for_each(|process| process.tell(&line))
    }

    /// Waits until all have. Returns the seconds of all runs.
    fn end(&self, crew: &mut [Process]) -> anyhow::Result<f64> {
        let mut longest = 0;
        for process in crew {
            let nanos = process.hear_word_within("ran", LIMIT)?;
            longest = longest.max(nanos.parse::<u64>().context("a rank has a time")?);
        }
        Ok(longest as f64 / 1e9)
    }

    /// Both, once. Returns the seconds.
    fn run(&self, crew: &mut [Process], file: Option<&Path>) -> anyhow::Result<f64> {
        self.start(crew, 1, file)?;
        self.end(crew)
    }

    /// The same, so often, while something happens at these moments. Returns the seconds, and what happened within them.
    fn play(
        &self,
        topology: &Topology,
        crew: &mut [Process],
        (times, file): (usize, Option<&Path>),
        moments: &[Moment],
    ) -> anyhow::Result<(f64, usize)> {
        let faults: Vec<_> = moments.iter().filter_map(|moment| moment.fault).collect();
        let player = topology.play(faults)?;
        self.start(crew, times, file)?;
        let begin = Instant::now();
        for moment in moments.iter().filter(|moment| moment.fault.is_none()) {
            for (at, begins) in [(moment.at, true), (moment.end(), false)] {
                std::thread::sleep((begin + at).saturating_duration_since(Instant::now()));
                for host in moment.hosts.clone() {
                    let processes = crew.iter_mut().skip(host * PROCESSES_EACH);
                    let line = rank::drains(moment.rail, begins);
                    processes.take(PROCESSES_EACH).try_for_each(|process| process.tell(&line))?;
                }
            }
        }
        let seconds = self.end(crew)?;
        player.stop()?;
        let over = Duration::from_secs_f64(seconds);
        Ok((seconds, moments.iter().filter(|moment| moment.at < over).count()))
    }

    fn outcomes(&self, found: &[Vec<Run>]) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for (disturbance, own) in Disturbance::ALL.into_iter().zip(found) {
            if own.is_empty() {
                continue;
            }
            let column = |of: fn(&Run) -> f64| -> Vec<f64> { own.iter().map(of).collect() };
            let seconds = column(|run| run.seconds);
            let mut params = self.params(disturbance, own);
            params.push(("verified", "true".into()));
            let pairs = own.iter().zip(&found[0]);
            let ratios: Vec<f64> = pairs.clone().map(|(a, b)| a.seconds / b.seconds).collect();
            let mut ratio = None;
            if disturbance != Disturbance::Nothing && !ratios.is_empty() {
                let each = pairs.map(|(a, b)| a.each_fault(b)).collect();
                params.push(("ms_each_fault", format!("{:.1}", spread(each).0)));
                ratio = Some((spread(ratios).0, "none"));
            }
            params.push(("trials", listed(&seconds)));
            outcomes.push(self.outcome(self.name(), ("time", "s"), seconds, params, ratio));
        }
        let cost = |(fault, drain): (Disturbance, Disturbance)| {
            let own = &found[fault as usize];
            let pairs = own.iter().zip(&found[drain as usize]);
            // A run that was faster than the drained one costs nothing.
            let each: Vec<f64> = pairs.map(|(a, b)| a.each_fault(b).max(0.0)).collect();
            (!each.is_empty()).then(|| {
                let mut params = self.params(fault, own);
                params.extend(Verdict::at_most(FAULT_MS, "ms", &each).params());
                params.push(("trials", listed(&each)));
                let name = format!("{}.each-fault", self.name());
                self.outcome(name, ("stall", "ms"), each, params, None)
            })
        };
        outcomes.extend(Disturbance::PLANNED.into_iter().filter_map(cost));
        outcomes
    }

    fn params(&self, disturbance: Disturbance, runs: &[Run]) -> Vec<(&'static str, String)> {
        let each = spread(runs.iter().map(Run::faults_each).collect()).0;
        vec![
            ("placement", quoted("namespaces")),
            ("processes", (HOSTS * PROCESSES_EACH).to_string()),
            ("channels", self.channels.to_string()),
            ("rails", RAILS.to_string()),
            ("fault", quoted(disturbance.name())),
            ("faults_each", format!("{each:.2}")),
            ("faults", runs.iter().map(|run| run.struck).sum::<usize>().to_string()),
        ]
    }

    fn outcome(
        &self,
        scenario: String,
        (metric, unit): (&'static str, &'static str),
        values: Vec<f64>,
        params: Vec<(&'static str, String)>,
        ratio: Option<(f64, &'static str)>,
    ) -> Outcome {
        let runs = values.len();
        let (median, min, max) = spread(values);
        Outcome {
            scenario,
            system: OURS,
            version: version(),
            medium: self.medium.name(),
            params,
            metric,
            unit,
            median,
            min,
            max,
            p99: max,
            runs,
            ratio,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quick_rows_have_each_kernel() {
        let wanted = ["kernels.is.s.tcp.1", "kernels.ft.s.tcp.1", "kernels.lu.s.tcp.1"];
        assert_eq!(rows(true), wanted);
        assert_eq!(rows(false).len(), 108);
    }

    #[test]
    fn a_fault_costs_what_its_run_takes_beyond_a_drained_one() {
        let runs = |seconds| vec![Run { seconds, times: 2, struck: 8 }];
        let found = [1.0, 1.01, 1.09, 1.02, 1.0].map(runs);
        let outcomes = rows_of(true)[0].outcomes(&found);
        let each: Vec<_> = outcomes.iter().filter(|one| one.unit == "ms").collect();
        assert_eq!((outcomes.len(), each.len()), (7, 2));
        assert!((each[0].median - 20.0).abs() < 0.01 && each[1].median == 0.0, "{each:?}");
        assert_eq!(each[1].param("verdict"), "reach 20 ms: 0 of 1 above");
    }
}
