//! Latency and bandwidth of messages: which cases there are, and how they alternate.

use std::io::{Error, ErrorKind, Result};
use std::process::{Child, Command, Stdio};

use ropewalk_net::PayloadMode;

use crate::lab::{alternate, hold_dma_latency};
use crate::report::Outcome;
use crate::{Options, PART, host, message, raw};

/// Messages of a stream before its time begins; a stream of an MPI has as many.
pub(crate) const WARM: usize = 64;

/// From so many bytes on a row of messages over tcp stands without payload checksums, too: bare sockets have none.
const CHECKSUM_FROM: usize = 8192;

/// One case, the same words for both processes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Case {
    pub system: String,
    pub medium: String,
    pub wait: String,
    /// `two` or `one`: the number of cores for both processes.
    pub cores: String,
    pub bytes: usize,
    pub rounds: usize,
    /// Messages under way; 1: ping and pong.
    pub depth: usize,
    pub checksum: bool,
    /// How payloads are protected.
    pub payload: PayloadMode,
}

impl Case {
    /// One time as the figure that is told.
    fn value(&self, nanos: u64) -> f64 {
        match self.depth {
            1 => nanos as f64 / 2000.0,
            _ => (self.bytes * self.rounds) as f64 / (nanos.max(1) as f64 / 1000.0),
        }
    }

    /// The median of one run.
    fn figure(&self, samples: &[u64]) -> f64 {
        let mut samples = samples.to_vec();
        samples.sort_unstable();
        samples.get(samples.len() / 2).map_or(0.0, |nanos| self.value(*nanos))
    }

    /// By which it can be chosen.
    fn name(&self) -> String {
        let what = if self.depth == 1 { "pingpong" } else { "stream" };
        let Case { medium, wait, cores, bytes, .. } = self;
        format!("{what}.{medium}.{wait}.{cores}.{bytes}")
    }

    fn encode(&self, address: &str) -> String {
        let Case { system, medium, wait, cores, bytes, rounds, depth, checksum, payload } = self;
        let what = format!("{system} {medium} {wait} {cores} {bytes} {rounds} {depth}");
        format!("{what} {checksum} {payload} {address}")
    }

    fn decode(text: &str) -> Option<(Case, &str)> {
        let words: Vec<&str> = text.splitn(10, ' ').collect();
        let [system, medium, wait, cores, bytes, rounds, depth, checksum, payload, address] =
            words[..]
        else {
            return None;
        };
        let case = Case {
            system: system.into(),
            medium: medium.into(),
            wait: wait.into(),
            cores: cores.into(),
            bytes: bytes.parse().ok()?,
            rounds: rounds.parse().ok()?,
            depth: depth.parse().ok()?,
            checksum: checksum.parse().ok()?,
            payload: payload.parse().ok()?,
        };
        Some((case, address))
    }
}

/// The other process of a case.
pub(crate) struct Peer(Child);

impl Peer {
    pub fn start(case: &Case, address: &str) -> Result<Peer> {
        let child = Command::new(std::env::current_exe()?)
            .env(PART, case.encode(address))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        Ok(Peer(child))
    }

    /// Its processor time so far.
    pub fn cpu_nanos(&self) -> u64 {
        host::cpu_nanos(self.0.id())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn serve(part: &str) -> Result<()> {
    let (case, address) = Case::decode(part).ok_or(ErrorKind::InvalidInput)?;
    place(&case, 1)?;
    match case.system.as_str() {
        "raw" => raw::serve(&case, address),
        _ => message::serve(&case, address),
    }
}

/// Keeps a process on its core.
fn place(case: &Case, number: usize) -> Result<()> {
    let mut set = rustix::thread::CpuSet::new();
    // Counting cores would count those of the starting process, which is on one core already.
    set.set(if case.cores == "one" { 0 } else { number });
    // The service thread, too: it starts later and inherits this.
    rustix::thread::sched_setaffinity(None, &set).map_err(Error::from)
}

/// The same of a bare case, with the processor time of both sides.
pub(crate) fn measure_with_cpu(case: &Case) -> Result<(Vec<u64>, u64)> {
    place(case, 0)?;
    raw::measure(case)
}

/// Nanoseconds of each round trip, or of the whole stream.
fn measure(case: &Case) -> Result<Vec<u64>> {
    place(case, 0)?;
    match case.system.as_str() {
        "raw" => raw::measure(case).map(|(samples, _)| samples),
        _ => message::measure(case),
    }
}

/// Measures everything; measurements that fail are named on stderr.
pub fn net(options: &Options, emit: &mut dyn FnMut(&Outcome)) {
    let held = options.hold_dma_latency.then(hold_dma_latency).flatten();
    let dma = if held.is_some() { "\"held\"" } else { "\"default\"" };
    let runs = options.runs();
    for group in cases(options.quick, options.scale) {
        let mut group = group;
        group.retain(|case| options.peers || case.system != "raw");
        if !group.first().is_some_and(|case| options.wanted(&case.name())) {
            continue;
        }
        let names: Vec<String> = group.iter().map(|case| case.encode("")).collect();
        let found = alternate(options, runs, &names, |turn, _| Ok(measure(&group[turn])?));
        let peer = group.iter().zip(&found).next_back().filter(|(case, _)| case.system == "raw");
        let medians = |case: &Case, found: &[Vec<u64>]| -> Vec<f64> {
            found.iter().map(|samples| case.figure(samples)).collect()
        };
        let peer = peer.map(|(case, found)| medians(case, found));
        for (case, found) in group.iter().zip(found).filter(|(_, found)| !found.is_empty()) {
            let ours = medians(case, &found);
            let mut outcome = summary(case, found, dma);
            if let Some(peer) = peer.as_ref().filter(|_| case.system != "raw") {
                let mut ratios: Vec<f64> = ours.iter().zip(peer).map(|(a, b)| a / b).collect();
                ratios.sort_by(f64::total_cmp);
                outcome.ratio = ratios.get(ratios.len() / 2).map(|ratio| (*ratio, "raw"));
            }
            emit(&outcome);
        }
    }
}

/// Lengths of messages, in bytes.
const QUICK_SIZES: &[usize] = &[8, 1024, 65_536, 1 << 20];
const SIZES: &[usize] =
    &[8, 64, 1024, 8192, 16_384, 32_768, 65_536, 131_072, 262_144, 524_288, 1 << 20, 4 << 20];

/// The names of all rows.
pub fn rows() -> Vec<String> {
    cases(false, 1.0).iter().filter_map(|group| group.first()).map(Case::name).collect()
}

fn cases(quick: bool, scale: f64) -> Vec<Vec<Case>> {
    let sizes = if quick { QUICK_SIZES } else { SIZES };
    // Fewer rounds than messages under way would measure nothing.
    let scaled = |rounds: usize| ((rounds as f64 * scale) as usize).max(20);
    let mut groups = Vec::new();
    for medium in ["tcp", "shm"] {
        for (wait, cores) in [("spin", "two"), ("block", "two"), ("block", "one")] {
            for &bytes in sizes {
                let budget = if quick { 3_000_000 } else { 20_000_000 };
                let rounds = scaled((budget / (1000 + bytes)).clamp(20, 20_000));
                let rounds = if wait == "block" { rounds / 4 + 10 } else { rounds };
                let case = |system: &str, wait: &str| Case {
                    system: system.into(),
                    medium: medium.into(),
                    wait: wait.into(),
                    cores: cores.into(),
                    bytes,
                    rounds,
                    depth: 1,
                    checksum: system != "raw",
                    payload: PayloadMode::Crc,
                };
                let mut group = vec![case("ropewalk", wait)];
                if medium == "tcp" && bytes >= CHECKSUM_FROM {
                    group.push(Case { checksum: false, ..case("ropewalk", wait) });
                }
                if (medium, wait) == ("tcp", "spin") {
                    group.extend(protected(&case("ropewalk", wait)));
                }
                match (medium, wait) {
                    ("tcp", "block") => group.extend([case("raw", "block"), case("raw", "epoll")]),
                    ("tcp", _) => group.push(case("raw", wait)),
                    ("shm", "spin") if bytes == 8 => group.push(case("raw", wait)),
                    _ => {}
                }
                groups.push(group);
            }
        }
        for bytes in [65_536, 1 << 20, 4 << 20] {
            let rounds = scaled(if quick { 100_000_000 } else { 1_000_000_000 } / bytes);
            let case = |system: &str, checksum| Case {
                system: system.into(),
                medium: medium.into(),
                wait: if system == "raw" { "block" } else { "spin" }.into(),
                cores: "two".into(),
                bytes,
                rounds,
                depth: 16,
                checksum,
                payload: PayloadMode::Crc,
            };
            let mut group = vec![case("ropewalk", true)];
            if medium == "tcp" {
                group.extend(protected(&case("ropewalk", true)));
                group.extend([case("ropewalk", false), case("raw", false)]);
            } else {
                group.push(case("raw", false));
            }
            groups.push(group);
        }
    }
    groups
}

/// A case in the modes that protect payloads.
fn protected(case: &Case) -> [Case; 2] {
    [PayloadMode::Auth, PayloadMode::Secure].map(|payload| Case { payload, ..case.clone() })
}

fn summary(case: &Case, runs: Vec<Vec<u64>>, dma: &str) -> Outcome {
    let value = |nanos: u64| case.value(nanos);
    let mut medians = Vec::new();
    let mut tails = Vec::new();
    let count = runs.len();
    for mut samples in runs {
        samples.sort_unstable();
        medians.push(value(samples[samples.len() / 2]));
        tails.push(value(samples[(samples.len() - 1) * 99 / 100]));
    }
    medians.sort_by(f64::total_cmp);
    tails.sort_by(f64::total_cmp);
    let system = if case.system == "raw" { "raw" } else { "ropewalk" };
    let latency = case.depth == 1;
    let payload = ("payload", format!("\"{}\"", case.payload));
    let payload = (case.payload > PayloadMode::Crc).then_some(payload);
    let mut outcome = Outcome {
        scenario: if latency { "pingpong" } else { "stream" }.into(),
        system,
        version: if system == "raw" { host::kernel() } else { env!("CARGO_PKG_VERSION").into() },
        medium: if case.medium == "tcp" { "tcp" } else { "shm" },
        params: vec![
            ("bytes", case.bytes.to_string()),
            ("depth", case.depth.to_string()),
            ("wait", format!("\"{}\"", case.wait)),
            ("cores", format!("\"{}{}\"", case.cores, if case.checksum { "" } else { "-nocrc" })),
            ("placement", "\"processes\"".into()),
            ("crc", (case.checksum && case.medium == "tcp").to_string()),
            ("dma_latency", dma.into()),
        ],
        metric: if latency { "latency" } else { "bandwidth" },
        unit: if latency { "us" } else { "MB/s" },
        median: medians[medians.len() / 2],
        min: medians[0],
        max: medians[medians.len() - 1],
        p99: tails[tails.len() / 2],
        runs: count,
        ratio: None,
    };
    outcome.params.extend(payload);
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_crosses_to_the_other_process() {
        for case in cases(true, 1.0).into_iter().flatten() {
            let text = case.encode("tcp://a:1,shm://b");
            assert_eq!(Case::decode(&text), Some((case, "tcp://a:1,shm://b")));
        }
        assert_eq!(Case::decode("ropewalk tcp"), None);
    }
}
