//! The figures of the BMI paper: round trips (its Figure 3), bandwidth of 120 MB (Figure 4), the pattern of a
//! parallel file system (Figure 5), and a sweep of the eager threshold.
//!
//! Ours goes through the C interface in processes of its own; beside it, in turn, bare sockets and what
//! MPIs this machine has. Bandwidths count 10^6 bytes.

use ropewalk_net::PayloadMode;

use crate::bmi_group::{Group, Point, Shape};
use crate::bmi_rows::{Kind, Row, rows_of};
use crate::lab::{Options, alternate, hold_dma_latency, quoted, version};
use crate::mpi::{Medium, Mpi};
use crate::net::{self, Case};
use crate::report::Outcome;
use crate::series::{OURS, interval, spread};
use crate::{host, raw};

/// The numbers of receives without a sender that are posted beside a measurement.
const FEW: usize = 10;
const MANY: usize = 10_000;

/// A party of a measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Party {
    Ours {
        allocates: bool,
    },
    /// Ours, with the condition that the row examines: beside a death, or many receives, or with more modules.
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
                eprintln!("cannot compile the MPI programs to compare with: {error}");
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

/// Measures everything that is wanted; measurements that fail are named on stderr.
pub fn bmi(options: &Options, emit: &mut dyn FnMut(&Outcome)) {
    let held = options.hold_dma_latency.then(hold_dma_latency).flatten();
    let dma = if held.is_some() { "\"held\"" } else { "\"default\"" };
    let mut mpis = Mpis { found: None };
    for row in rows_of(options.quick, options.scale, host::cores()) {
        if !options.wanted(&row.name) {
            continue;
        }
        let mpis = if options.peers { mpis.get() } else { &[] };
        let parties = row.parties(options.peers, mpis.len());
        let runs = options.runs.unwrap_or(if options.quick { 3 } else { 30 }).max(1);
        let names = parties.iter().map(|party| format!("{}: {}", row.name, party.system(mpis)));
        let names: Vec<String> = names.collect();
        let found = alternate(options, runs, &names, |turn, _| row.measure(parties[turn], mpis));
        for outcome in row.outcomes(&parties, mpis, &found, dma) {
            emit(&outcome);
        }
    }
}

/// The names of all rows.
pub fn rows() -> Vec<String> {
    rows_of(false, 1.0, host::cores()).into_iter().map(|row| row.name).collect()
}

impl Row {
    fn parties(&self, peers: bool, mpis: usize) -> Vec<Party> {
        let mut parties = match self.kind {
            // Requests and data of servers are always the library's memory there.
            Kind::Pattern { .. } | Kind::Threshold { .. } | Kind::Idle => {
                vec![Party::Ours { allocates: false }]
            }
            Kind::Beside | Kind::Modules | Kind::Flood | Kind::Crowd => {
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
                Ok(vec![Point { value, ..Point::default() }])
            }
            Party::Raw => self.sizes.iter().map(|bytes| self.measure_raw(*bytes)).collect(),
        }
    }

    /// Servers and clients.
    fn sides(&self) -> (usize, usize) {
        match self.kind {
            Kind::Pattern { servers, clients } => (servers, clients),
            Kind::Beside => (2, 3),
            Kind::Flood => (1, 2),
            _ => (1, 1),
        }
    }

    /// Whether ours spins: with few cores, spinning takes the core from the awaited process.
    fn spins(&self) -> bool {
        let (servers, clients) = self.sides();
        match self.kind {
            Kind::RoundTrip { spins } => spins,
            Kind::Idle | Kind::Flood => false,
            Kind::Pattern { .. } | Kind::Beside => servers + clients <= host::cores(),
            Kind::Bandwidth { .. } | Kind::Threshold { .. } | Kind::Modules | Kind::Crowd => true,
        }
    }

    /// The waiting mode of a party of the pattern. Ranks of an MPI never sleep.
    fn wait(&self, party: Party) -> &'static str {
        let (servers, clients) = self.sides();
        match party {
            Party::Raw => "block",
            Party::Mpi(_) if servers + clients > host::cores() => "yield",
            Party::Ours { .. } | Party::Changed if !self.spins() => "block",
            _ => "spin",
        }
    }

    fn measure_group(
        &self,
        bare: bool,
        allocates: bool,
        changed: bool,
    ) -> anyhow::Result<Vec<Point>> {
        let (servers, clients) = self.sides();
        let spins = self.spins();
        let pinned = servers + clients == 2 && host::cores() >= 2;
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
            Kind::Crowd => group.crowded(*bytes, self.amount, if changed { MANY } else { FEW }),
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
            Point { bytes: *bytes, value, p99, cpu, ..Point::default() }
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
            payload: PayloadMode::Crc,
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
                let (value, p99) = (at(0.5) / 1e3, at(0.99) / 1e3);
                Point { bytes, value, p99, cpu, ..Point::default() }
            }
            _ => {
                let value = total / (at(0.5).max(1.0) / 1e3);
                Point { bytes, value, cpu: cpu as f64 / total, ..Point::default() }
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
                let mut ratio = None;
                if self.kind == Kind::Flood {
                    let grown = spread(column(turn, |point| point.grown)).2;
                    params.push(("server_grew_mib", format!("{grown:.1}")));
                }
                if let Party::Ours { .. } = party {
                    params.extend(immediate(found[turn].iter().map(|points| &points[index])));
                    let peers = parties.iter().enumerate();
                    let peers = peers
                        .filter(|(it, _)| !found[*it].is_empty())
                        .map(|(it, peer)| (*peer, column(it, |point| point.value)));
                    ratio = self.ratios(&values, peers, mpis, &mut params);
                }
                if *party == Party::Changed {
                    let plain = column(0, |point| point.value);
                    let pairs = values.iter().zip(plain).map(|(a, b)| a / b).collect();
                    let usual = if self.kind == Kind::Crowd { "few" } else { "undisturbed" };
                    ratio = Some((interval(pairs).0, usual));
                }
                let (metric, unit, cpu_unit) = self.units();
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
                if !matches!(unit, "%" | "ns") && self.kind != Kind::Flood {
                    outcomes.push(beside);
                }
            }
        }
        outcomes
    }

    /// The metric, its unit, and that of processor time.
    fn units(&self) -> (&'static str, &'static str, &'static str) {
        match self.kind {
            Kind::Crowd if self.sizes == [0] => ("latency", "ns", "ns"),
            Kind::RoundTrip { .. } | Kind::Modules | Kind::Flood | Kind::Crowd => {
                ("latency", "us", "us/message")
            }
            Kind::Idle => ("cpu", "%", "%"),
            _ => ("bandwidth", "MB/s", "s/GB"),
        }
    }

    /// Ours as multiples of each other party's result, with their intervals; and the main ratio. That is the one to
    /// the bare medium if it was measured, else the one to the best of the others.
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
                params.push(("wait", quoted(self.wait(party))));
                params.push(("servers", servers.to_string()));
                params.push(("clients", clients.to_string()));
            }
            Kind::Crowd => {
                let receives = if party == Party::Changed { MANY } else { FEW };
                params.extend([("peers", "1".into()), ("receives", receives.to_string())]);
            }
        }
        if let Party::Ours { .. } = party {
            params.push(("buffers", buffers.into()));
        }
        params.push(("dma_latency", dma.into()));
        params
    }
}

/// The share of posts that completed immediately, as parameters; none if there were no such posts.
fn immediate<'a>(points: impl Iterator<Item = &'a Point>) -> Vec<(&'static str, String)> {
    let (sends, receives): (Vec<_>, Vec<_>) =
        points.map(|it| (it.immediate.sends, it.immediate.receives)).unzip();
    let mut params = Vec::new();
    for (name, parts) in [("immediate_sends", sends), ("immediate_receives", receives)] {
        let parts: Vec<f64> = parts.into_iter().flatten().collect();
        if !parts.is_empty() {
            params.push((name, format!("{:.3}", spread(parts).0)));
        }
    }
    params
}

fn ratio_name(system: &str) -> &'static str {
    match system {
        "openmpi" => "ratio_openmpi",
        "mpich" => "ratio_mpich",
        "intelmpi" => "ratio_intelmpi",
        _ => "ratio_raw",
    }
}
