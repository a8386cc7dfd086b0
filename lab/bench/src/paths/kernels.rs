//! Kernels of parallel programs in four namespaces with two processes each, undisturbed and while rails fail.
//!
//! * [`sort`], [`fourier`], [`wavefront`]: the kernels IS, FT, and one like LU; [`class`]: their sizes; [`random`];
//! * [`group`]: messages and operations of all; [`rank`]: the processes.
//!
//! Each result is verified in the processes: against published values, and the wavefront bit by bit against one process.

mod class;
mod fourier;
mod group;
mod random;
pub(super) mod rank;
mod sort;
mod wavefront;

use std::time::Duration;

use anyhow::Context;
use ropewalk_base::random::Random;
use ropewalk_netns::{Fault, FaultKind, Topology, TopologyConfig};

use crate::lab::{Options, alternate, quoted, version};
use crate::paths::kernels::class::{Class, Kernel};
use crate::paths::presence::{Medium, with_neighbours};
use crate::process::Process;
use crate::report::Outcome;
use crate::series::{OURS, spread};

const HOSTS: usize = 4;
const PROCESSES_EACH: usize = 2;
/// Channels of an association that rows use.
const CHANNELS: [usize; 3] = [1, 8, 64];
/// From one fault to the next, on average; a kernel that is faster is run several times.
const FAULT_EACH: Duration = Duration::from_millis(400);
/// How long a fault lasts.
const LASTS_MS: std::ops::Range<u64> = 20..60;
/// Moments and places of faults follow from it, and from the number of the run.
const SEED: u64 = 0x0A17_EF1A;

/// What happens while a kernel runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Disturbance {
    Nothing,
    /// One host after the other is cut off, silently.
    Cuts,
    /// The switch dies under all hosts, and comes back.
    Switch,
}

impl Disturbance {
    const ALL: [Disturbance; 3] = [Disturbance::Nothing, Disturbance::Cuts, Disturbance::Switch];

    fn name(self) -> &'static str {
        match self {
            Disturbance::Nothing => "none",
            Disturbance::Cuts => "cuts",
            Disturbance::Switch => "switch",
        }
    }
}

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

/// Measures the rows that are wanted.
///
/// # Errors
/// There can be no network namespaces.
pub fn kernels(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    let faults = options.amount(16, 4) as usize;
    for row in rows_of(options.quick).iter().filter(|row| options.wanted(&row.name())) {
        let config = TopologyConfig { hosts: HOSTS, rails: 1, ..TopologyConfig::default() };
        let topology = Topology::new(&config)?;
        let mut shortest: Option<f64> = None;
        let name = |disturbance: Disturbance| format!("{}: {}", row.name(), disturbance.name());
        let found = alternate(options, options.runs(), &Disturbance::ALL.map(name), |turn, run| {
            let mut crew = row.crew(&topology)?;
            // The first run of a kernel also finds its neighbours' addresses and warms caches.
            row.run(&mut crew, 1)?;
            let alone = match shortest {
                Some(seconds) => seconds,
                None => row.run(&mut crew, 1)?,
            };
            let span = FAULT_EACH * faults as u32;
            let times = (span.as_secs_f64() / alone).ceil().max(1.0) as usize;
            let planned = plan(Disturbance::ALL[turn], faults, alone * times as f64, run);
            let player = topology.play(planned)?;
            let seconds = row.run(&mut crew, times)? / times as f64;
            let struck = player.stop()?.len();
            // Moments of faults have to lie within the time of a fast run.
            shortest = Some(alone.min(seconds));
            Ok(Run { seconds, faults: struck as f64 / times as f64, struck })
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
    faults: f64,
    /// Of all.
    struck: usize,
}

/// So many faults at random moments within the time in seconds, none of which overlap.
fn plan(disturbance: Disturbance, count: usize, seconds: f64, run: usize) -> Vec<Fault> {
    let kind = match disturbance {
        Disturbance::Nothing => return Vec::new(),
        Disturbance::Cuts => FaultKind::Cut,
        Disturbance::Switch => FaultKind::SwitchDeath { silently: true },
    };
    let mut random = Random::from_seed(SEED + run as u64);
    let slot = Duration::from_secs_f64(seconds / count as f64);
    let mut fault = |number: usize| {
        let lasts = LASTS_MS.start + random.below(LASTS_MS.end - LASTS_MS.start);
        let lasts = Duration::from_millis(lasts).min(slot / 2);
        let room = (slot - lasts).as_nanos() as u64 / 2;
        let at = slot * number as u32 + Duration::from_nanos(random.below(room + 1));
        let host = random.below(HOSTS as u64) as usize;
        Fault { at, lasts, ..Fault::new(kind, host, 0).seeded(random.next_u64()) }
    };
    (0..count).map(&mut fault).collect()
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
            let places = with_neighbours(self.medium, self.medium.places(host, 1));
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

    /// Lets the processes run the kernel so many times. Returns the seconds of all.
    fn run(&self, crew: &mut [Process], times: usize) -> anyhow::Result<f64> {
        let line = format!("{} {} {times}", self.kernel.name(), self.class.name());
        crew.iter_mut().try_for_each(|process| process.tell(&line))?;
        let mut longest = 0;
        for process in crew {
            let nanos = process.hear_word("ran")?;
            longest = longest.max(nanos.parse::<u64>().context("a rank has a time")?);
        }
        Ok(longest as f64 / 1e9)
    }

    fn outcomes(&self, found: &[Vec<Run>]) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for (disturbance, own) in Disturbance::ALL.into_iter().zip(found) {
            if own.is_empty() {
                continue;
            }
            let column = |of: fn(&Run) -> f64| -> Vec<f64> { own.iter().map(of).collect() };
            let (median, min, max) = spread(column(|run| run.seconds));
            let faults = spread(column(|run| run.faults)).0;
            let mut params = vec![
                ("placement", quoted("namespaces")),
                ("processes", (HOSTS * PROCESSES_EACH).to_string()),
                ("channels", self.channels.to_string()),
                ("fault", quoted(disturbance.name())),
                ("faults_each", format!("{faults:.2}")),
                ("faults", own.iter().map(|run| run.struck).sum::<usize>().to_string()),
                ("verified", "true".into()),
            ];
            let pairs = own.iter().zip(&found[0]);
            let ratios: Vec<f64> = pairs.clone().map(|(a, b)| a.seconds / b.seconds).collect();
            let mut ratio = None;
            if disturbance != Disturbance::Nothing && !ratios.is_empty() {
                let each = pairs.map(|(a, b)| (a.seconds - b.seconds) * 1e3 / a.faults.max(1e-9));
                params.push(("ms_each_fault", format!("{:.1}", spread(each.collect()).0)));
                ratio = Some((spread(ratios).0, "none"));
            }
            outcomes.push(Outcome {
                scenario: self.name(),
                system: OURS,
                version: version(),
                medium: self.medium.name(),
                params,
                metric: "time",
                unit: "s",
                median,
                min,
                max,
                p99: max,
                runs: own.len(),
                ratio,
            });
        }
        outcomes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_seeded_and_do_not_overlap() {
        for disturbance in [Disturbance::Cuts, Disturbance::Switch] {
            let faults = plan(disturbance, 16, 3.0, 1);
            assert_eq!(faults, plan(disturbance, 16, 3.0, 1));
            assert_ne!(faults, plan(disturbance, 16, 3.0, 2));
            assert!(faults.windows(2).all(|pair| pair[0].end() < pair[1].at), "{faults:?}");
            assert!(faults.iter().all(|fault| fault.end() < Duration::from_secs(3)));
        }
        assert!(plan(Disturbance::Nothing, 16, 3.0, 1).is_empty());
    }

    #[test]
    fn quick_rows_have_each_kernel() {
        let wanted = ["kernels.is.s.tcp.1", "kernels.ft.s.tcp.1", "kernels.lu.s.tcp.1"];
        assert_eq!(rows(true), wanted);
        assert_eq!(rows(false).len(), 81);
    }
}
