//! One run of a cut row: streams, and a fault in them.

use std::time::Duration;

use anyhow::{Context, bail};
use ropewalk_netns::{Topology, TopologyConfig};

use crate::host::monotonic_nanos;
use crate::lab::Options;
use crate::paths::bare::{join_rails, tune};
use crate::paths::cut::party::{Party, RAILS};
use crate::paths::cut::row::{Kind, Look, Row};
use crate::paths::side::System;
use crate::paths::stream::Arrivals;
use crate::paths::trace::Trace;
use crate::process::Process;

/// From so many runs on they are short: 200 take five minutes. A peer whose stall is longer than the fault is not seen
/// in full then.
const MANY_RUNS: usize = 20;

/// The times of a stream.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    warm: Duration,
    pub control: Duration,
    pub outage: Duration,
    after: Duration,
    /// Commands that inject a fault take their time, too.
    slack: Duration,
    pub is_short: bool,
}

impl Times {
    pub fn new(look: Look, options: &Options) -> Times {
        let ms = Duration::from_millis;
        let scaled = |full, quick, least| ms(options.amount(full, quick).max(least));
        let is_short = look == Look::Return || options.runs() >= MANY_RUNS;
        let times = match is_short {
            true => Times {
                warm: ms(150),
                control: ms(300),
                outage: ms(500),
                after: ms(250),
                slack: ms(100),
                is_short,
            },
            false => Times {
                warm: scaled(300, 200, 200),
                control: scaled(1000, 300, 300),
                outage: scaled(1000, 300, 200),
                after: scaled(2000, 700, 600),
                slack: ms(200),
                is_short,
            },
        };
        let (none, long) = (Duration::ZERO, ms(2500));
        match look {
            Look::Fault => times,
            Look::Return => Times { after: long, ..times },
            // Streams end with the outage.
            Look::Death => Times { outage: long, after: none, slack: none, ..times },
        }
    }
}

/// What came of one of the streams.
pub struct Stream {
    pub sent: u64,
    /// Frames that our protocol sent again.
    pub re_sent: u64,
    pub arrivals: Arrivals,
    pub trace: Trace,
}

/// What came of all.
pub struct Trial {
    pub streams: Vec<Stream>,
}

impl Trial {
    /// What must not happen, in words.
    pub fn damage(&self) -> Option<String> {
        let said: Vec<String> = self.streams.iter().filter_map(Stream::damage).collect();
        (!said.is_empty()).then(|| said.join(", "))
    }

    /// The largest of a figure of the streams.
    pub fn most(&self, of: impl Fn(&Trace) -> f64) -> f64 {
        self.streams.iter().map(|stream| of(&stream.trace)).fold(0.0, f64::max)
    }

    /// The messages of all streams as those of one.
    pub fn together(&self) -> Trace {
        let times = self.streams.iter().flat_map(|stream| stream.trace.times.iter().copied());
        let mut times: Vec<u64> = times.collect();
        times.sort_unstable();
        Trace { times, ..self.streams[0].trace.clone() }
    }

    pub fn stall(&self) -> f64 {
        self.most(Trace::stall)
    }

    pub fn control_gap(&self) -> f64 {
        self.most(Trace::control_gap)
    }

    pub fn outage(&self) -> f64 {
        self.most(Trace::outage)
    }

    pub fn goodput(&self) -> f64 {
        self.together().goodput()
    }

    /// Frames that were sent again, for each message.
    pub fn re_sent(&self) -> f64 {
        let sum = |of: fn(&Stream) -> u64| self.streams.iter().map(of).sum::<u64>() as f64;
        sum(|stream| stream.re_sent) / sum(|stream| stream.sent).max(1.0)
    }
}

impl Stream {
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
    pub fn network(&self, party: &Party) -> anyhow::Result<Topology> {
        let config = TopologyConfig {
            hosts: self.hosts(),
            rails: RAILS,
            rate_kbit: self.rate.kbit(),
            wires: self.kind == Kind::Corrupt,
            ..Default::default()
        };
        let topology = Topology::new(&config)?;
        if party.system == System::Many {
            join_rails(&topology)?;
        }
        if party.tuned {
            tune(&topology)?;
        }
        Ok(topology)
    }

    /// One run.
    pub fn trial(
        &self,
        party: &Party,
        topology: &Topology,
        times: &Times,
        run: usize,
    ) -> anyhow::Result<Trial> {
        let mut pairs = (0..self.streams())
            .map(|stream| pair(party, topology, 2 * (stream / 2)))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let Times { warm, control, outage, after, slack, .. } = *times;
        let start = monotonic_nanos();
        let nanos = |time: Duration| time.as_nanos() as u64;
        let begin = start + nanos(warm);
        let until = begin + nanos(control + outage + after + slack);
        pairs.iter_mut().try_for_each(|(sender, _)| sender.tell(&until.to_string()))?;
        std::thread::sleep(warm + control);
        let cut = monotonic_nanos();
        let injected = topology.inject(&self.fault(run))?;
        std::thread::sleep(outage.saturating_sub(Duration::from_nanos(monotonic_nanos() - cut)));
        injected.mend()?;
        let mended = monotonic_nanos();
        let end = (mended + nanos(after)).min(until);
        let streams = pairs.iter_mut().map(|(sender, receiver)| {
            let counts = sender.numbers()?;
            let [sent, re_sent] = counts[..] else { bail!("a sender said {counts:?}") };
            let came = receiver.hear_word("came")?;
            let arrivals = Arrivals::decode(&came).context("a receiver does not say what came")?;
            let trace = Trace { times: arrivals.times.clone(), begin, cut, mended, end };
            Ok(Stream { sent, re_sent, arrivals, trace })
        });
        Ok(Trial { streams: streams.collect::<anyhow::Result<_>>()? })
    }
}

/// A sender at this host and a receiver at the next one, which have met.
fn pair(party: &Party, topology: &Topology, host: usize) -> anyhow::Result<(Process, Process)> {
    let start = |side: usize| {
        let host = topology.host(host + side);
        let places = match party.system {
            System::Ours(medium) => medium.places(host, party.rails),
            System::Tcp | System::Many => host.address(0).to_string(),
        };
        Process::start(host.command(std::env::current_exe()?), &party.system.part(side, &places))
    };
    let (mut sender, mut receiver) = (start(0)?, start(1)?);
    let (near, far) = (sender.hear_word("url")?, receiver.hear_word("url")?);
    receiver.tell(&near)?;
    sender.tell(&far)?;
    sender.hear_word("met")?;
    receiver.hear_word("met")?;
    Ok((sender, receiver))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damage_is_told_in_words() {
        let trace = Trace { times: Vec::new(), begin: 0, cut: 0, mended: 0, end: 0 };
        let mut stream = Stream { sent: 2, re_sent: 0, arrivals: Arrivals::default(), trace };
        stream.arrivals.times = vec![1, 2];
        assert_eq!(stream.damage(), None);
        stream.arrivals.times.pop();
        stream.arrivals.doubled = 1;
        let said = "1 of 2 messages were lost, 1 of 2 messages were doubled";
        assert_eq!(stream.damage().as_deref(), Some(said));
        assert_eq!(Trial { streams: vec![stream] }.damage().as_deref(), Some(said));
    }

    #[test]
    fn streams_add_up_and_the_longest_gap_counts() {
        const MS: u64 = 1_000_000;
        let stream = |gap: u64| {
            let times = (0..100).map(|ms| (ms + if ms < 50 { 0 } else { gap }) * MS).collect();
            let trace = Trace { times, begin: 0, cut: 40 * MS, mended: 60 * MS, end: 90 * MS };
            Stream { sent: 100, re_sent: 25, arrivals: Arrivals::default(), trace }
        };
        let trial = Trial { streams: vec![stream(0), stream(9)] };
        assert_eq!((trial.stall(), trial.control_gap(), trial.re_sent()), (10.0, 1.0, 0.25));
        let alone = trial.streams[0].trace.goodput();
        assert!((trial.goodput() - 2.0 * alone).abs() < 1e-9);
        assert_eq!(trial.together().timeline(10 * MS).len(), 9);
    }
}
