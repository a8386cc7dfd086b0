//! Processes that do the work of a benchmark, from both sides: started and told to go, or going.
//!
//! Invariants
//! * A worker is this program, started again; it prepares, says `ready`, and begins at a word, so
//!   that several begin together and preparing is not measured.
//! * Times are the machine's monotonic clock, so that the span of several workers is one span.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::counters::{Served, Share, Watched};
use crate::histogram::Histogram;
use crate::host;
use crate::order::Order;
use crate::{ORPHAN, PART};

/// No worker takes longer: one that does hangs.
const LIMIT: Duration = Duration::from_secs(180);

/// The result of some work.
#[derive(Debug, Clone, Default)]
pub struct Work {
    pub begin_nanos: u64,
    pub end_nanos: u64,
    pub operations: u64,
    pub bytes: u64,
    /// Processor time of the workers, and of all processes that served them.
    pub cpu_nanos: u64,
    pub times: Histogram,
    /// Operations under way at a time.
    pub lanes: u64,
    /// A figure of its own that the worker found, if there is one.
    pub extra: u64,
    /// The part of the servers in it, where they have pages of metrics.
    pub served: Option<Served>,
}

impl Work {
    /// Begins to measure.
    pub fn begin() -> Work {
        Work {
            cpu_nanos: host::own_cpu_nanos(),
            begin_nanos: host::monotonic_nanos(),
            lanes: 1,
            ..Work::default()
        }
    }

    /// Ends the measured span.
    pub fn end(&mut self) {
        self.end_nanos = host::monotonic_nanos();
        self.cpu_nanos = host::own_cpu_nanos() - self.cpu_nanos;
    }

    /// One operation of so many bytes that began then.
    pub fn note(&mut self, begin: Instant, bytes: usize) {
        self.times.note(begin.elapsed().as_nanos() as u64);
        self.operations += 1;
        self.bytes += bytes as u64;
    }

    /// The measured span.
    pub fn seconds(&self) -> f64 {
        (self.end_nanos.saturating_sub(self.begin_nanos)).max(1) as f64 / 1e9
    }

    /// Adds the part of the processes that served it.
    pub fn add(&mut self, share: &Share) {
        self.cpu_nanos += share.cpu_nanos;
        self.served = share.served;
    }

    fn encode(&self) -> String {
        let Work {
            begin_nanos, end_nanos, operations, bytes, cpu_nanos, lanes, extra, times, ..
        } = self;
        let (span, times) = (format!("{begin_nanos} {end_nanos}"), times.encode());
        format!("done {span} {operations} {bytes} {cpu_nanos} {lanes} {extra} {times}")
    }

    fn decode(line: &str) -> Option<Work> {
        let mut words = line.strip_prefix("done ")?.splitn(8, ' ');
        let mut number = || words.next()?.parse::<u64>().ok();
        Some(Work {
            begin_nanos: number()?,
            end_nanos: number()?,
            operations: number()?,
            bytes: number()?,
            cpu_nanos: number()?,
            lanes: number()?,
            extra: number()?,
            times: Histogram::decode(words.next()?)?,
            served: None,
        })
    }

    /// Several workers' spans as one.
    fn merge(&mut self, other: &Work) {
        self.begin_nanos = self.begin_nanos.min(other.begin_nanos);
        self.end_nanos = self.end_nanos.max(other.end_nanos);
        self.operations += other.operations;
        self.bytes += other.bytes;
        self.cpu_nanos += other.cpu_nanos;
        self.lanes += other.lanes;
        self.extra += other.extra;
        self.times.merge(&other.times);
    }
}

/// A started worker.
pub struct Worker {
    child: Child,
    input: ChildStdin,
    lines: Receiver<String>,
    what: String,
}

impl Worker {
    /// Starts a worker, and waits until it is ready.
    pub fn start(order: &Order) -> anyhow::Result<Worker> {
        Worker::start_by(Command::new(std::env::current_exe()?), order)
    }

    /// The same by a command that starts this program.
    pub fn start_by(mut command: Command, order: &Order) -> anyhow::Result<Worker> {
        let mut child = command
            .env(PART, format!("work\n{}", order.encode()))
            .env(ORPHAN, "ends")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a worker of the benchmark")?;
        let input = child.stdin.take().expect("it was asked for");
        let lines = lines(child.stdout.take().expect("it was asked for"));
        let mut worker = Worker { child, input, lines, what: order.kind.clone() };
        let line = worker.line()?;
        if line != "ready" {
            bail!("the worker '{}' said '{line}' instead of being ready", worker.what);
        }
        Ok(worker)
    }

    fn line(&mut self) -> anyhow::Result<String> {
        match self.lines.recv_timeout(LIMIT) {
            Ok(line) => Ok(line),
            Err(_) => bail!("the worker '{}' failed or does not answer", self.what),
        }
    }

    /// Lets it begin.
    pub fn go(&mut self) -> anyhow::Result<()> {
        writeln!(self.input, "go").context("a worker of the benchmark has ended")
    }

    /// Waits for its end.
    pub fn finish(mut self) -> anyhow::Result<Work> {
        let work = self.await_result()?;
        self.await_end()?;
        Ok(work)
    }

    /// Waits for the end of its work: it has something to put in order still.
    pub fn await_result(&mut self) -> anyhow::Result<Work> {
        let line = self.line()?;
        let what = &self.what;
        Work::decode(&line).with_context(|| format!("'{what}' ended with '{line}'"))
    }

    /// Waits for its end.
    pub fn await_end(mut self) -> anyhow::Result<()> {
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The lines of a child, read on a thread of their own: waiting for one has a limit.
pub fn lines(output: impl std::io::Read + Send + 'static) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            // The receiver may be gone: then nobody needs the line.
            let _ = sender.send(line);
        }
    });
    receiver
}

/// Runs these orders at once; their joint result, with what the processes `serving` did meanwhile.
pub fn run(orders: &[Order], serving: &Watched) -> anyhow::Result<Work> {
    let mut workers = orders.iter().map(Worker::start).collect::<anyhow::Result<Vec<_>>>()?;
    let before = serving.begin()?;
    for worker in &mut workers {
        worker.go()?;
    }
    let mut all: Option<Work> = None;
    for worker in workers {
        let work = worker.finish()?;
        match &mut all {
            Some(all) => all.merge(&work),
            None => all = Some(work),
        }
    }
    let mut all = all.context("there was nothing to do")?;
    all.add(&serving.end(&before)?);
    Ok(all)
}

/// The worker's side: it reports that it is ready, waits for the word, works, and prints its result.
pub fn serve(work: impl FnOnce() -> anyhow::Result<Work>) -> anyhow::Result<()> {
    println!("ready");
    let mut word = String::new();
    std::io::stdin().read_line(&mut word)?;
    if word.trim() != "go" {
        bail!("nobody waits for this worker");
    }
    let work = work()?;
    println!("{}", work.encode());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_crosses_to_another_process_and_adds_up() {
        let mut work = Work { begin_nanos: 5, end_nanos: 10, extra: 3, ..Work::default() };
        work.note(Instant::now(), 100);
        let mut again = Work::decode(&work.encode()).expect("it is work");
        assert_eq!((again.operations, again.bytes, again.times.count()), (1, 100, 1));
        work.begin_nanos = 2;
        again.merge(&work);
        assert_eq!((again.begin_nanos, again.end_nanos, again.bytes), (2, 10, 200));
        assert!(Work::decode("done 1 2").is_none() && Work::decode("panic").is_none());
    }
}
