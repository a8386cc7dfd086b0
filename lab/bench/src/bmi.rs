//! The figures of the BMI paper: round trips (its Figure 3), bandwidth of 120 MB (Figure 4), the pattern of a
//! parallel file system (Figure 5), and a sweep of the eager threshold.
//!
//! Ours goes through the C interface in processes of its own; beside it, in turn, bare sockets and what
//! MPIs this machine has. Bandwidths count 10^6 bytes.

use crate::bmi_group::{Group, Point, Shape};
use crate::lab::{Options, hold_dma_latency, version};
use crate::mpi::{Medium, Mpi};
use crate::net::{self, Case};
use crate::report::Outcome;
use crate::series::{OURS, spread};
use crate::{bmi_side, host, raw};

/// What a row measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    RoundTrip {
        spins: bool,
    },
    Bandwidth {
        late: bool,
    },
    Pattern {
        servers: usize,
        clients: usize,
    },
    /// Bandwidth just below and just above the longest message that is sent without asking.
    Threshold {
        eager: usize,
    },
    /// The pattern beside a client that dies and one that comes, and without them.
    Beside,
    /// A server that has nothing to do.
    Idle,
    /// Round trips beside another client's flood of messages that nobody takes, and without it.
    Flood,
    /// Round trips with the other module active, too, and without.
    Modules,
}

/// A row: one launch of each system measures all its sizes.
#[derive(Debug, Clone, PartialEq)]
struct Row {
    name: String,
    kind: Kind,
    medium: &'static str,
    sizes: Vec<usize>,
    /// Of each size: round trips, or bytes in all, or hundredths of a second.
    amount: usize,
}

/// Who takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Party {
    Ours {
        allocates: bool,
    },
    /// With what a row is about: beside a death, or with more modules.
    Changed,
    Raw,
    /// The one of this number.
    Mpi(usize),
}

/// The MPIs of this machine, compiled when a row needs them.
struct Mpis {
    found: Option<(Vec<Mpi>, Option<tempfile::TempDir>)>,
}

impl Mpis {
    fn get(&mut self) -> &[Mpi] {
        let (found, _) = self.found.get_or_insert_with(|| match tempfile::tempdir() {
            Ok(directory) => (Mpi::find(directory.path()), Some(directory)),
            Err(error) => {
                eprintln!("no MPI can be compiled: {error}");
                (Vec::new(), None)
            }
        });
        found
    }
}

impl Party {
    fn system(self, mpis: &[Mpi]) -> &'static str {
        match self {
            Party::Ours { .. } | Party::Changed => OURS,
            Party::Raw => "raw",
            Party::Mpi(number) => mpis[number].name(),
        }
    }

    fn version(self, mpis: &[Mpi]) -> String {
        match self {
            Party::Ours { .. } | Party::Changed => version(),
            Party::Raw => host::kernel(),
            Party::Mpi(number) => mpis[number].version().to_string(),
        }
    }
}

/// Measures everything that is wanted; what cannot be measured is named on stderr.
pub fn bmi(options: &Options, emit: &mut dyn FnMut(&Outcome)) {
    let held = options.hold_dma_latency.then(hold_dma_latency).flatten();
    let dma = if held.is_some() { "\"held\"" } else { "\"default\"" };
    let mut mpis = Mpis { found: None };
    for row in rows_of(options.quick, options.scale) {
        if !options.wanted(&row.name) {
            continue;
        }
        let mpis = if options.peers { mpis.get() } else { &[] };
        let parties = row.parties(options.peers, mpis.len());
        let mut found: Vec<Vec<Vec<Point>>> = vec![Vec::new(); parties.len()];
        let mut failed = vec![false; parties.len()];
        for run in 0..options.runs.unwrap_or(if options.quick { 3 } else { 30 }).max(1) {
            let mut turns: Vec<usize> = (0..parties.len()).collect();
            // Whoever begins has an advantage or a disadvantage: each begins now and then.
            if run % 2 == 1 {
                turns.reverse();
            }
            for turn in turns {
                if failed[turn] || options.is_interrupted() {
                    continue;
                }
                let begin = std::time::Instant::now();
                match row.measure(parties[turn], mpis) {
                    Ok(points) => found[turn].push(points),
                    Err(error) => {
                        let system = parties[turn].system(mpis);
                        eprintln!("{}: {system}: {error:#}", row.name);
                        failed[turn] = true;
                    }
                }
                if options.progress {
                    let (time, system) = (begin.elapsed(), parties[turn].system(mpis));
                    eprintln!("{time:>8.1?} {} {system} run {run}", row.name);
                }
            }
        }
        for outcome in row.outcomes(&parties, mpis, &found, dma) {
            emit(&outcome);
        }
    }
}

/// The names of all rows.
pub fn rows() -> Vec<String> {
    rows_of(false, 1.0).into_iter().map(|row| row.name).collect()
}

fn rows_of(quick: bool, scale: f64) -> Vec<Row> {
    let scaled = |amount: usize| ((amount as f64 * scale) as usize).max(1);
    let mut rows = Vec::new();
    for medium in ["tcp", "shm"] {
        let small: &[usize] =
            if quick { &[24, 400, 1200] } else { &[24, 100, 200, 400, 600, 800, 1000, 1200] };
        for spins in [true, false] {
            let wait = if spins { "spin" } else { "block" };
            let rounds = match (spins, medium) {
                (false, _) => 800,
                (true, "tcp") => 4000,
                (true, _) => 40_000,
            };
            let rounds = if quick { rounds / 2 } else { rounds };
            rows.push(Row {
                name: format!("roundtrip.{medium}.{wait}"),
                kind: Kind::RoundTrip { spins },
                medium,
                sizes: small.to_vec(),
                amount: scaled(rounds),
            });
        }
        let large: Vec<usize> = match quick {
            true => vec![1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20],
            false => (10..=22).map(|power| 1 << power).collect(),
        };
        for late in [false, true] {
            rows.push(Row {
                name: format!("bandwidth.{medium}.{}", if late { "late" } else { "pre" }),
                kind: Kind::Bandwidth { late },
                medium,
                sizes: large.clone(),
                amount: scaled(if quick { 30_000_000 } else { 120_000_000 }),
            });
        }
        let thresholds: &[usize] =
            if quick { &[16 << 10] } else { &[1 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10] };
        for &eager in thresholds {
            rows.push(Row {
                name: format!("threshold.{medium}.{eager}"),
                kind: Kind::Threshold { eager },
                medium,
                sizes: vec![eager, eager + 1],
                amount: scaled(if quick { 30_000_000 } else { 120_000_000 }),
            });
        }
        let mut alone = |name: &str, kind, bytes, amount| {
            let name = format!("{name}.{medium}");
            rows.push(Row { name, kind, medium, sizes: vec![bytes], amount: scaled(amount) });
        };
        if medium == "shm" {
            // Over tcp the second module would carry the messages: both sides share memory.
            alone("modules", Kind::Modules, 24, 40_000);
        }
        alone("flood", Kind::Flood, 24, if quick { 10_000 } else { 40_000 });
        alone("idle", Kind::Idle, 0, if quick { 100 } else { 500 });
        alone("beside", Kind::Beside, bmi_side::PAIR, if quick { 100 } else { 400 });
        let widths: &[usize] = if quick { &[1, 2, 4] } else { &[1, 2, 4, 8] };
        for &servers in widths {
            for &clients in widths.iter().filter(|clients| !quick || **clients == servers) {
                rows.push(Row {
                    name: format!("pattern.{medium}.{servers}x{clients}"),
                    kind: Kind::Pattern { servers, clients },
                    medium,
                    sizes: vec![bmi_side::PAIR],
                    amount: scaled(if quick { 50 } else { 200 }),
                });
            }
        }
    }
    rows
}

impl Row {
    fn parties(&self, peers: bool, mpis: usize) -> Vec<Party> {
        let mut parties = match self.kind {
            // Requests and data of servers are always the library's memory there.
            Kind::Pattern { .. } | Kind::Threshold { .. } | Kind::Idle => {
                vec![Party::Ours { allocates: false }]
            }
            Kind::Beside | Kind::Modules | Kind::Flood => {
                vec![Party::Ours { allocates: false }, Party::Changed]
            }
            _ => vec![Party::Ours { allocates: false }, Party::Ours { allocates: true }],
        };
        let bare = match self.kind {
            Kind::RoundTrip { .. } => self.medium == "tcp",
            Kind::Bandwidth { late } => !late,
            Kind::Pattern { .. } => self.medium == "tcp",
            Kind::Idle => true,
            _ => false,
        };
        if peers && bare {
            parties.push(Party::Raw);
        }
        // An MPI never sleeps.
        let beside_mpi = match self.kind {
            Kind::RoundTrip { spins } => spins,
            Kind::Bandwidth { .. } | Kind::Pattern { .. } => true,
            _ => false,
        };
        if beside_mpi {
            parties.extend((0..mpis).map(Party::Mpi));
        }
        parties
    }

    fn measure(&self, party: Party, mpis: &[Mpi]) -> anyhow::Result<Vec<Point>> {
        match party {
            Party::Mpi(number) => self.measure_mpi(&mpis[number]),
            Party::Ours { allocates } => self.measure_group(false, allocates, false),
            Party::Changed => self.measure_group(false, false, true),
            Party::Raw if matches!(self.kind, Kind::Pattern { .. }) => {
                self.measure_group(true, false, false)
            }
            Party::Raw if self.kind == Kind::Idle => {
                // On a thread of its own, whose processor time is told apart.
                let seconds = self.amount as f64 / 100.0;
                let waited = std::thread::spawn(move || raw::wait_in_vain(seconds)).join();
                let value = waited.map_err(|_| anyhow::anyhow!("the bare wait panicked"))??;
                Ok(vec![Point { bytes: 0, value, p99: 0.0, cpu: 0.0, immediate: 0.0, grown: 0.0 }])
            }
            Party::Raw => self.sizes.iter().map(|bytes| self.measure_raw(*bytes)).collect(),
        }
    }

    fn measure_group(
        &self,
        bare: bool,
        allocates: bool,
        changed: bool,
    ) -> anyhow::Result<Vec<Point>> {
        let (servers, clients) = match self.kind {
            Kind::Pattern { servers, clients } => (servers, clients),
            Kind::Beside => (2, 3),
            Kind::Flood => (1, 2),
            _ => (1, 1),
        };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let spins = match self.kind {
            Kind::RoundTrip { spins } => spins,
            Kind::Bandwidth { .. } | Kind::Threshold { .. } | Kind::Modules => true,
            Kind::Idle | Kind::Flood => false,
            // Spinning steals the core of whoever one waits for.
            Kind::Pattern { .. } | Kind::Beside => servers + clients <= cores,
        };
        let pinned = servers + clients == 2 && cores >= 2;
        let medium = self.medium;
        let eager_bytes = match self.kind {
            Kind::Threshold { eager } => Some(eager),
            _ => None,
        };
        let modules = self.kind == Kind::Idle || (self.kind == Kind::Modules && changed);
        let shape = Shape {
            medium,
            servers,
            clients,
            spins,
            bare,
            allocates,
            pinned,
            eager_bytes,
            modules,
        };
        let mut group = Group::start(&shape)?;
        let measure = |bytes: &usize| match self.kind {
            Kind::RoundTrip { .. } => group.latency(*bytes, self.amount),
            Kind::Bandwidth { late } => group.bandwidth(*bytes, self.count(*bytes), late),
            Kind::Threshold { .. } => group.bandwidth(*bytes, self.count(*bytes), false),
            Kind::Pattern { .. } => group.pattern(self.amount as f64 / 100.0),
            Kind::Modules => group.latency(*bytes, self.amount),
            Kind::Flood => group.flooded(*bytes, self.amount, changed),
            Kind::Idle => group.idle(self.amount as f64 / 100.0),
            Kind::Beside => group.beside(self.amount as f64 / 100.0, changed),
        };
        self.sizes.iter().map(measure).collect()
    }

    fn measure_mpi(&self, mpi: &Mpi) -> anyhow::Result<Vec<Point>> {
        let medium = if self.medium == "tcp" { Medium::Tcp } else { Medium::Shm };
        let (sizes, amount) = (&self.sizes[..], self.amount);
        let seconds = amount as f64 / 100.0;
        let points = match self.kind {
            Kind::RoundTrip { .. } => mpi.latency(medium, amount, sizes)?,
            Kind::Bandwidth { late } => mpi.bandwidth(medium, amount, late, sizes)?,
            Kind::Pattern { servers, clients } => mpi.pattern(medium, servers, clients, seconds)?,
            _ => anyhow::bail!("an MPI takes no part in this"),
        };
        anyhow::ensure!(points.len() == sizes.len(), "it did not tell a figure for each size");
        let point = |(bytes, it): (&usize, crate::mpi::Point)| {
            let crate::mpi::Point { value, p99, cpu, .. } = it;
            Point { bytes: *bytes, value, p99, cpu, immediate: 0.0, grown: 0.0 }
        };
        Ok(sizes.iter().zip(points).map(point).collect())
    }

    /// Messages of this size that make up the amount.
    fn count(&self, bytes: usize) -> usize {
        (self.amount / bytes).max(1)
    }

    fn measure_raw(&self, bytes: usize) -> anyhow::Result<Point> {
        let (wait, rounds, depth) = match self.kind {
            Kind::RoundTrip { spins: true } => ("spin", self.amount, 1),
            Kind::RoundTrip { spins: false } => ("epoll", self.amount, 1),
            // As much memory as ours uses.
            _ => ("block", self.count(bytes), self.count(bytes).max(2)),
        };
        let case = Case {
            system: "raw".into(),
            medium: self.medium.into(),
            wait: wait.into(),
            cores: "two".into(),
            bytes,
            rounds,
            depth,
            checksum: false,
        };
        // On a thread of its own: it stays on one core.
        let measured =
            std::thread::scope(|scope| scope.spawn(|| net::measure_with_cpu(&case)).join());
        let (mut samples, cpu) =
            measured.map_err(|_| anyhow::anyhow!("the bare measurement panicked"))??;
        samples.sort_unstable();
        let at = |part: f64| samples[((samples.len() - 1) as f64 * part) as usize] as f64;
        let total = (bytes * rounds) as f64;
        Ok(match self.kind {
            Kind::RoundTrip { .. } => {
                let messages = 2.0 * (rounds + rounds / 10 + 5) as f64;
                let cpu = cpu as f64 / 1e3 / messages;
                Point {
                    bytes,
                    value: at(0.5) / 1e3,
                    p99: at(0.99) / 1e3,
                    cpu,
                    immediate: 1.0,
                    grown: 0.0,
                }
            }
            _ => {
                let value = total / (at(0.5).max(1.0) / 1e3);
                Point {
                    bytes,
                    value,
                    p99: 0.0,
                    cpu: cpu as f64 / total,
                    immediate: 1.0,
                    grown: 0.0,
                }
            }
        })
    }

    fn outcomes(
        &self,
        parties: &[Party],
        mpis: &[Mpi],
        found: &[Vec<Vec<Point>>],
        dma: &str,
    ) -> Vec<Outcome> {
        let mut outcomes = Vec::new();
        for index in 0..self.sizes.len() {
            let column = |party: usize, value: fn(&Point) -> f64| -> Vec<f64> {
                found[party].iter().map(|points| value(&points[index])).collect()
            };
            for (turn, party) in parties.iter().enumerate().filter(|(it, _)| !found[*it].is_empty())
            {
                let values = column(turn, |point| point.value);
                let (median, low, high) = spread(values.clone());
                let mut params = self.params(*party, self.sizes[index], dma);
                let immediate = spread(column(turn, |point| point.immediate)).0;
                let mut ratio = None;
                if self.kind == Kind::Flood {
                    let grown = spread(column(turn, |point| point.grown)).2;
                    params.push(("server_grew_mib", format!("{grown:.1}")));
                }
                if let Party::Ours { .. } = party {
                    params.push(("immediate", format!("{immediate:.3}")));
                    let peers = parties.iter().enumerate();
                    let peers = peers
                        .filter(|(it, _)| !found[*it].is_empty())
                        .map(|(it, peer)| (*peer, column(it, |point| point.value)));
                    ratio = self.ratios(&values, peers, mpis, &mut params);
                }
                if *party == Party::Changed {
                    let usual = column(0, |point| point.value);
                    let pairs = values.iter().zip(usual).map(|(a, b)| a / b).collect();
                    ratio = Some((interval(pairs).0, "undisturbed"));
                }
                let (metric, unit, cpu_unit) = match self.kind {
                    Kind::RoundTrip { .. } | Kind::Modules | Kind::Flood => {
                        ("latency", "us", "us/message")
                    }
                    Kind::Idle => ("cpu", "%", "%"),
                    _ => ("bandwidth", "MB/s", "s/GB"),
                };
                let main = Outcome {
                    scenario: self.name.clone(),
                    system: party.system(mpis),
                    version: party.version(mpis),
                    medium: self.medium,
                    params,
                    metric,
                    unit,
                    median,
                    min: low,
                    max: high,
                    p99: spread(column(turn, |point| point.p99)).0,
                    runs: values.len(),
                    ratio,
                };
                let (cpu, cpu_low, cpu_high) = spread(column(turn, |point| point.cpu));
                let beside = Outcome {
                    metric: "cpu",
                    unit: cpu_unit,
                    median: cpu,
                    min: cpu_low,
                    max: cpu_high,
                    p99: cpu_high,
                    ratio: None,
                    ..main.clone()
                };
                outcomes.push(main);
                if !matches!(self.kind, Kind::Idle | Kind::Flood) {
                    outcomes.push(beside);
                }
            }
        }
        outcomes
    }

    /// Ours as multiples of what each other one reached, with their intervals; and the one that counts: that
    /// to the bare medium where it was measured, else that to the best of the others.
    fn ratios(
        &self,
        values: &[f64],
        peers: impl Iterator<Item = (Party, Vec<f64>)>,
        mpis: &[Mpi],
        params: &mut Vec<(&'static str, String)>,
    ) -> Option<(f64, &'static str)> {
        let mut ratio: Option<(f64, &str)> = None;
        let others = |peer: &Party| matches!(peer, Party::Raw | Party::Mpi(_));
        for (peer, theirs) in peers.filter(|(peer, _)| others(peer)) {
            let pairs = values.iter().zip(theirs).map(|(a, b)| a / b).collect();
            let (middle, from, to) = interval(pairs);
            let system = peer.system(mpis);
            let worse =
                ratio.is_none_or(|(known, name)| name != "raw" && self.is_better(known, middle));
            if worse {
                ratio = Some((middle, system));
            }
            params.push((ratio_name(system), format!("[{middle:.4},{from:.4},{to:.4}]")));
        }
        ratio
    }

    /// Whether a ratio of ours to another's is better than a second one.
    fn is_better(&self, first: f64, second: f64) -> bool {
        match self.kind {
            Kind::RoundTrip { .. } | Kind::Idle => first < second,
            _ => first > second,
        }
    }

    fn params(&self, party: Party, bytes: usize, dma: &str) -> Vec<(&'static str, String)> {
        let mut params = vec![("bytes", bytes.to_string()), ("placement", "\"processes\"".into())];
        let buffers = match (party, self.kind) {
            (Party::Ours { allocates: true }, _) => "\"allocated\"",
            _ => "\"plain\"",
        };
        match self.kind {
            Kind::RoundTrip { spins } => {
                let wait = if spins { "\"spin\"" } else { "\"block\"" };
                params.push(("wait", wait.into()));
            }
            Kind::Bandwidth { late } => {
                params.push(("posted", if late { "\"late\"" } else { "\"pre\"" }.into()));
            }
            Kind::Threshold { eager } => params.push(("eager", eager.to_string())),
            Kind::Beside => {
                params.extend([("servers", "2".into()), ("clients", "3".into())]);
                params.push(("disturbed", (party == Party::Changed).to_string()));
            }
            Kind::Flood => params.push(("flooded", (party == Party::Changed).to_string())),
            Kind::Idle => params.push(("modules", "2".into())),
            Kind::Modules => {
                let modules = if party == Party::Changed { "2" } else { "1" };
                params.push(("modules", modules.into()));
            }
            Kind::Pattern { servers, clients } => {
                params.push(("servers", servers.to_string()));
                params.push(("clients", clients.to_string()));
            }
        }
        if let Party::Ours { .. } = party {
            params.push(("buffers", buffers.into()));
        }
        params.push(("dma_latency", dma.into()));
        params
    }
}

fn ratio_name(system: &str) -> &'static str {
    match system {
        "openmpi" => "ratio_openmpi",
        "mpich" => "ratio_mpich",
        "intelmpi" => "ratio_intelmpi",
        _ => "ratio_raw",
    }
}

/// The median of independent values, and where that of all such values lies in 95 of 100 cases (by their
/// order alone). Few values do not say it: then it is their whole range.
fn interval(mut values: Vec<f64>) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let count = values.len() as f64;
    let reach = 0.98 * count.sqrt();
    let from = ((count / 2.0 - reach).floor().max(0.0)) as usize;
    let to = ((count / 2.0 + reach).ceil() as usize).min(values.len() - 1);
    (spread(values.clone()).0, values[from], values[to])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_lies_around_the_median() {
        assert_eq!(interval(vec![2.0]), (2.0, 2.0, 2.0));
        let values: Vec<f64> = (1..=30).map(f64::from).collect();
        let (middle, from, to) = interval(values);
        assert_eq!(middle, 15.5);
        assert!((9.0..12.0).contains(&from) && (20.0..=22.0).contains(&to), "{from} {to}");
    }

    #[test]
    fn rows_have_names_of_their_own() {
        for quick in [true, false] {
            let mut names: Vec<String> =
                rows_of(quick, 1.0).into_iter().map(|row| row.name).collect();
            let count = names.len();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), count);
        }
        assert!(rows().contains(&"pattern.shm.8x8".to_string()));
    }
}
