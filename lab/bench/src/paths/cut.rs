//! Streams between two hosts, of which a rail is cut and mended: ours beside TCP, and TCP over several paths.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, bail};
use ropewalk_netns::{Direction, Fault, FaultKind, Flap, Topology, TopologyConfig};

use crate::host::{self, monotonic_nanos};
use crate::lab::{Options, alternate, quoted, version};
use crate::paths::bare::{join_rails, tune};
use crate::paths::presence::Medium;
use crate::paths::side::System;
use crate::paths::stream::{Arrivals, MESSAGE_BYTES};
use crate::paths::trace::Trace;
use crate::process::Process;
use crate::report::Outcome;
use crate::series::{OURS, spread};

/// Rails between the hosts.
const RAILS: usize = 2;
/// The rails that ours uses: one carries, the other stands by.
const RAILS_OF_OURS: usize = 2;
/// The mean time between two changes of a flapping rail.
const FLAP: Duration = Duration::from_millis(30);

/// How the first rail is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// A host's interface loses its carrier.
    Carrier,
    /// No frame passes, and carriers stay.
    Silent,
    /// The same of frames from the sender to the receiver, and of those back.
    Data,
    Acks,
    /// Silent cuts that come and go.
    Flap,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Carrier, Kind::Silent, Kind::Data, Kind::Acks, Kind::Flap];

    fn name(self) -> &'static str {
        match self {
            Kind::Carrier => "carrier",
            Kind::Silent => "silent",
            Kind::Data => "data",
            Kind::Acks => "acks",
            Kind::Flap => "flap",
        }
    }

    /// The fault, at the sender's end (0) or the receiver's (1).
    fn fault(self, host: usize) -> Fault {
        let kind = match self {
            Kind::Carrier => FaultKind::CarrierLoss,
            Kind::Silent | Kind::Data | Kind::Acks => FaultKind::Cut,
            Kind::Flap => FaultKind::Flapping { flap: Flap::Silent, mean: FLAP },
        };
        let direction = match (self, host) {
            (Kind::Data, 0) | (Kind::Acks, 1) => Direction::From,
            (Kind::Data | Kind::Acks, _) => Direction::To,
            _ => Direction::Both,
        };
        Fault::new(kind, host, 0).directed(direction)
    }
}

/// The rate of each rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rate {
    Slow,
    Usual,
    Unlimited,
}

impl Rate {
    const ALL: [Rate; 3] = [Rate::Usual, Rate::Slow, Rate::Unlimited];

    fn name(self) -> &'static str {
        match self {
            Rate::Slow => "50m",
            Rate::Usual => "1g",
            Rate::Unlimited => "unlimited",
        }
    }

    fn kbit(self) -> Option<u64> {
        match self {
            Rate::Slow => Some(50_000),
            Rate::Usual => Some(1_000_000),
            Rate::Unlimited => None,
        }
    }

    /// Nanoseconds of a bin of a timeline, and of a window in which goodput is judged: of some messages at least.
    fn bin_and_window(self) -> (u64, u64) {
        match self {
            Rate::Slow => (50_000_000, 250_000_000),
            Rate::Usual | Rate::Unlimited => (5_000_000, 50_000_000),
        }
    }
}

/// A system in a row, and how it is set up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Party {
    name: &'static str,
    system: System,
    rails: usize,
    tuned: bool,
}

/// A row: what happens to which network, and what carries ours.
#[derive(Debug, Clone, Copy)]
struct Row {
    kind: Kind,
    rate: Rate,
    medium: Medium,
}

/// The times of a stream.
#[derive(Debug, Clone, Copy)]
struct Times {
    warm: Duration,
    control: Duration,
    outage: Duration,
    after: Duration,
}

impl Times {
    fn new(options: &Options) -> Times {
        let ms = |full, quick, least| Duration::from_millis(options.amount(full, quick).max(least));
        Times {
            warm: ms(300, 200, 200),
            control: ms(1000, 300, 300),
            outage: ms(1000, 300, 200),
            after: ms(2000, 700, 600),
        }
    }
}

fn rows_of(quick: bool) -> Vec<Row> {
    let mut rows = Vec::new();
    for rate in Rate::ALL {
        for medium in Medium::ALL {
            let all = Kind::ALL.into_iter().map(|kind| Row { kind, rate, medium });
            rows.extend(all.filter(|row| !quick || row.is_quick()));
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
/// There can be no network namespaces; or a message was lost, doubled, reordered or changed.
pub fn cut(options: &Options, emit: &mut dyn FnMut(&Outcome)) -> anyhow::Result<()> {
    let times = Times::new(options);
    let mut damage = Vec::new();
    for row in rows_of(options.quick).iter().filter(|row| options.wanted(&row.name())) {
        let parties = row.parties(options.peers);
        let names: Vec<String> =
            parties.iter().map(|party| format!("{}: {}", row.name(), party.name)).collect();
        let mut networks: BTreeMap<usize, Topology> = BTreeMap::new();
        for (turn, party) in parties.iter().enumerate() {
            networks.insert(turn, row.network(party)?);
        }
        let found = alternate(options, options.runs(), &names, |turn, run| {
            let trial = row.trial(&parties[turn], &networks[&turn], &times, run)?;
            if let Some(said) = trial.damage() {
                damage.push(format!("{}: {said}", names[turn]));
                bail!("{said}");
            }
            Ok(trial)
        });
        drop(networks);
        for outcome in row.outcomes(&parties, &found) {
            emit(&outcome);
        }
    }
    if damage.is_empty() { Ok(()) } else { bail!("{}", damage.join("; ")) }
}

/// What came of a stream.
struct Trial {
    sent: u64,
    /// Frames that our protocol sent again.
    re_sent: u64,
    arrivals: Arrivals,
    trace: Trace,
}

impl Trial {
    /// What must not happen, in words.
    fn damage(&self) -> Option<String> {
        let Arrivals { times, doubled, reordered, corrupt, .. } = &self.arrivals;
        let lost = self.sent.saturating_sub(times.len() as u64);
        let counts = [(lost, "lost"), (*doubled, "doubled"), (*reordered, "out of order")];
        let counts = counts.into_iter().chain([(*corrupt, "damaged")]);
        let said: Vec<String> = counts
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} of {} messages were {what}", self.sent))
            .collect();
        (!said.is_empty()).then(|| said.join(", "))
    }
}

impl Row {
    fn name(&self) -> String {
        format!("cut.{}.{}.{}", self.kind.name(), self.rate.name(), self.medium.name())
    }

    /// Whether it is measured where it has to be quick.
    fn is_quick(&self) -> bool {
        let Row { kind, rate, medium } = *self;
        rate == Rate::Usual
            && (kind == Kind::Silent || (kind, medium) == (Kind::Carrier, Medium::Tcp))
    }

    fn parties(&self, peers: bool) -> Vec<Party> {
        let ours = Party {
            name: OURS,
            system: System::Ours(self.medium),
            rails: RAILS_OF_OURS,
            tuned: false,
        };
        let bare = |name, system, rails, tuned| Party { name, system, rails, tuned };
        let mut all = vec![ours];
        if peers {
            all.push(bare("tcp", System::Tcp, 1, false));
            all.push(bare("mptcp", System::Many, RAILS, false));
            all.push(bare("mptcp-tuned", System::Many, RAILS, true));
        }
        all
    }

    fn network(&self, party: &Party) -> anyhow::Result<Topology> {
        let config =
            TopologyConfig { rails: RAILS, rate_kbit: self.rate.kbit(), ..Default::default() };
        let topology = Topology::new(&config)?;
        if party.system == System::Many {
            join_rails(&topology)?;
        }
        if party.tuned {
            tune(&topology)?;
        }
        Ok(topology)
    }

    /// One stream, of which the fault is at the sender's end in every other run.
    fn trial(
        &self,
        party: &Party,
        topology: &Topology,
        times: &Times,
        run: usize,
    ) -> anyhow::Result<Trial> {
        let start = |side: usize| {
            let host = topology.host(side);
            let places = match party.system {
                System::Ours(medium) => medium.places(host, party.rails),
                System::Tcp | System::Many => host.address(0).to_string(),
            };
            Process::start(
                host.command(std::env::current_exe()?),
                &party.system.part(side, &places),
            )
        };
        let (mut sender, mut receiver) = (start(0)?, start(1)?);
        let (near, far) = (sender.hear_word("url")?, receiver.hear_word("url")?);
        receiver.tell(&near)?;
        sender.tell(&far)?;
        sender.hear_word("met")?;
        receiver.hear_word("met")?;
        let Times { warm, control, outage, after } = *times;
        let start = monotonic_nanos();
        let nanos = |time: Duration| time.as_nanos() as u64;
        let begin = start + nanos(warm);
        // Commands that inject a fault take their time, too.
        let slack = Duration::from_millis(200);
        let until = begin + nanos(control + outage + after + slack);
        sender.tell(&until.to_string())?;
        std::thread::sleep(warm + control);
        let cut = monotonic_nanos();
        let injected = topology.inject(&self.kind.fault(run % 2).seeded(run as u64))?;
        std::thread::sleep(outage.saturating_sub(Duration::from_nanos(monotonic_nanos() - cut)));
        injected.mend()?;
        let mended = monotonic_nanos();
        let counts = sender.numbers()?;
        let [sent, re_sent] = counts[..] else { bail!("a sender said {counts:?}") };
        let came = receiver.hear_word("came")?;
        let arrivals = Arrivals::decode(&came).context("a receiver does not say what came")?;
        let end = (mended + nanos(after)).min(until);
        let trace = Trace { times: arrivals.times.clone(), begin, cut, mended, end };
        Ok(Trial { sent, re_sent, arrivals, trace })
    }

    /// The longest stall in ms, beyond that of the undisturbed stream, that several paths shall have.
    fn target(&self) -> f64 {
        match (self.kind, self.medium, self.rate) {
            (Kind::Carrier, Medium::Tcp, _) => 10.0,
            (Kind::Carrier, ..) => 5.0,
            (Kind::Silent | Kind::Data | Kind::Acks, Medium::Tcp, Rate::Slow) => 60.0,
            (Kind::Silent, Medium::Tcp, _) => 30.0,
            (Kind::Silent, ..) => 15.0,
            (Kind::Data | Kind::Acks, Medium::Tcp, _) => 35.0,
            (Kind::Data | Kind::Acks | Kind::Flap, ..) => 20.0,
        }
    }

    /// Of each figure that of each party.
    fn outcomes(&self, parties: &[Party], found: &[Vec<Trial>]) -> Vec<Outcome> {
        let figures = [Figure::Stall, Figure::Failover, Figure::Back, Figure::Goodput];
        let mut outcomes = Vec::new();
        for figure in figures {
            let values = |turn: usize| -> Vec<f64> {
                found[turn]
                    .iter()
                    .map(|one| self.judge(figure, &parties[turn], &one.trace).0)
                    .collect()
            };
            let rival = parties.iter().position(|party| party.name == "mptcp");
            for (turn, party) in parties.iter().enumerate() {
                let own = values(turn);
                // One rail leaves nothing to fail over to.
                if own.is_empty() || (figure == Figure::Failover && party.rails == 1) {
                    continue;
                }
                let rival = rival.filter(|_| party.name == OURS && figure != Figure::Failover);
                let ratios = rival.map_or(Vec::new(), |rival| {
                    own.iter().zip(values(rival)).map(|(a, b)| a / b).collect()
                });
                let ratio = (!ratios.is_empty()).then(|| (spread(ratios).0, "mptcp"));
                let (median, min, max) = spread(own.clone());
                let (metric, unit) = figure.metric();
                outcomes.push(Outcome {
                    scenario: format!("{}.{}", self.name(), figure.name()),
                    system: party.name,
                    version: if party.name == OURS { version() } else { host::kernel() },
                    medium: if party.name == OURS { self.medium.name() } else { "tcp" },
                    params: self.params(figure, party, &found[turn]),
                    metric,
                    unit,
                    median,
                    min,
                    max,
                    p99: tail(own),
                    runs: found[turn].len(),
                    ratio: ratio.filter(|(ratio, _)| ratio.is_finite()),
                });
            }
        }
        outcomes
    }

    /// The figure, and whether what it waits for came.
    fn judge(&self, figure: Figure, party: &Party, trace: &Trace) -> (f64, bool) {
        let (_, window) = self.rate.bin_and_window();
        match figure {
            Figure::Stall => (trace.stall(), true),
            Figure::Failover => {
                trace.failover((party.rails - 1) as f64 / party.rails as f64, window)
            }
            Figure::Back => trace.back(window),
            Figure::Goodput => (trace.goodput(), true),
        }
    }

    fn params(
        &self,
        figure: Figure,
        party: &Party,
        trials: &[Trial],
    ) -> Vec<(&'static str, String)> {
        let traces: Vec<&Trace> = trials.iter().map(|trial| &trial.trace).collect();
        let column = |of: fn(&Trace) -> f64| spread(traces.iter().map(|it| of(it)).collect());
        let mut params = vec![
            ("bytes", MESSAGE_BYTES.to_string()),
            ("placement", quoted("namespaces")),
            ("rate", quoted(self.rate.name())),
            ("rails", party.rails.to_string()),
            ("fault", quoted(self.kind.name())),
            ("outage_ms", format!("{:.0}", column(Trace::outage).0)),
        ];
        let late = traces.iter().filter(|trace| !self.judge(figure, party, trace).1).count();
        match figure {
            Figure::Stall => {
                params.push(("control_gap_ms", format!("{:.2}", column(Trace::control_gap).2)));
                let target = self.target();
                let is_above = |trace: &&&Trace| trace.stall() > target + trace.control_gap();
                params.push(("target_ms", target.to_string()));
                params.push(("above_target", traces.iter().filter(is_above).count().to_string()));
                // Anything else fails the row.
                params.extend(["lost", "doubled", "reordered"].map(|name| (name, "0".into())));
                if party.name == OURS {
                    let each = |trial: &Trial| trial.re_sent as f64 / trial.sent as f64;
                    let each = spread(trials.iter().map(each).collect()).0;
                    params.push(("re_sent_per_message", format!("{each:.2}")));
                }
                params.extend(self.timeline(&traces));
            }
            Figure::Failover | Figure::Back => params.push(("not_back", late.to_string())),
            Figure::Goodput => {}
        }
        params
    }

    /// The goodput over time of the run with the middle stall.
    fn timeline(&self, traces: &[&Trace]) -> Vec<(&'static str, String)> {
        let (bin, _) = self.rate.bin_and_window();
        let mut order = traces.to_vec();
        order.sort_by(|a, b| a.stall().total_cmp(&b.stall()));
        let trace = order[order.len() / 2];
        let from = trace.begin as f64 - trace.cut as f64;
        let bins: Vec<String> =
            trace.timeline(bin).iter().map(|rate| format!("{rate:.1}")).collect();
        vec![
            ("timeline_from_ms", format!("{:.1}", from / 1e6)),
            ("timeline_bin_ms", (bin / 1_000_000).to_string()),
            ("timeline_mended_ms", format!("{:.1}", trace.outage())),
            ("timeline_mbs", format!("[{}]", bins.join(","))),
        ]
    }
}

/// A figure of a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Figure {
    Stall,
    Failover,
    Back,
    Goodput,
}

impl Figure {
    fn name(self) -> &'static str {
        match self {
            Figure::Stall => "stall",
            Figure::Failover => "failover",
            Figure::Back => "back",
            Figure::Goodput => "goodput",
        }
    }

    fn metric(self) -> (&'static str, &'static str) {
        match self {
            Figure::Goodput => ("bandwidth", "MB/s"),
            _ => ("stall", "ms"),
        }
    }
}

/// The value that one of a hundred is above.
fn tail(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[(values.len() * 99).div_ceil(100) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_one_way_cut_has_the_same_direction_from_either_end() {
        let directions = |kind: Kind| [kind.fault(0).direction, kind.fault(1).direction];
        assert_eq!(directions(Kind::Data), [Direction::From, Direction::To]);
        assert_eq!(directions(Kind::Acks), [Direction::To, Direction::From]);
        assert_eq!(directions(Kind::Silent), [Direction::Both; 2]);
    }

    #[test]
    fn quick_rows_are_among_all() {
        let (all, quick) = (rows(false), rows(true));
        assert_eq!((all.len(), quick.len()), (45, 4));
        assert!(quick.iter().all(|name| all.contains(name)));
        assert!(quick.contains(&"cut.silent.1g.tcp".to_string()));
    }

    #[test]
    fn damage_is_told_in_words() {
        let trace = Trace { times: Vec::new(), begin: 0, cut: 0, mended: 0, end: 0 };
        let mut trial = Trial { sent: 2, re_sent: 0, arrivals: Arrivals::default(), trace };
        trial.arrivals.times = vec![1, 2];
        assert_eq!(trial.damage(), None);
        trial.arrivals.times.pop();
        trial.arrivals.doubled = 1;
        let said = "1 of 2 messages were lost, 1 of 2 messages were doubled";
        assert_eq!(trial.damage().as_deref(), Some(said));
        assert_eq!(tail((1..=200).map(f64::from).collect()), 198.0);
        assert_eq!(tail(vec![3.0, 1.0]), 3.0);
    }
}
