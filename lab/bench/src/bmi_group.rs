//! Servers and clients of the BMI figures, started together and measured from outside.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, bail};

use crate::bmi_side::{CALLS, PAIR, Role};
use crate::host;
use crate::net::WARM;
use crate::process::Process;

/// A flood.
const FLOOD_BYTES: usize = 1024;
const FLOOD_MESSAGES: usize = 1_000_000;

/// The composition of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub medium: &'static str,
    pub servers: usize,
    pub clients: usize,
    pub spins: bool,
    /// Bare sockets instead of our library.
    pub bare: bool,
    /// Clients, too, use buffers of the library.
    pub allocates: bool,
    /// One server and one client stay on a core each.
    pub pinned: bool,
    /// The eager limit in bytes, if it is not the default.
    pub eager_bytes: Option<usize>,
    /// Both modules are active, not only that of the medium.
    pub modules: bool,
}

/// One measurement.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Point {
    pub bytes: usize,
    /// Microseconds of a round trip, or MB/s.
    pub value: f64,
    /// The slowest round trip of a hundred; 0 for bandwidths.
    pub p99: f64,
    /// Processor time of both sides: microseconds a message, or seconds a GB.
    pub cpu: f64,
    pub immediate: Immediate,
    /// MiB by which a server grew.
    pub grown: f64,
}

/// The share of posts that completed immediately; `None` if there were no such posts.
#[derive(Debug, Default, Clone, Copy, PartialEq)]
pub struct Immediate {
    /// Of a client's sends up to 1 KiB.
    pub sends: Option<f64>,
    /// Of receives whose data had arrived.
    pub receives: Option<f64>,
}

impl Immediate {
    /// From what clients tell behind their figures.
    fn of<'a>(told: impl IntoIterator<Item = &'a [u64]>) -> Immediate {
        let mut sums = [0; 4];
        for counts in told {
            for (sum, count) in sums.iter_mut().zip(counts) {
                *sum += count;
            }
        }
        let part = |done, posts| (posts > 0).then(|| done as f64 / posts as f64);
        Immediate { sends: part(sums[0], sums[1]), receives: part(sums[2], sums[3]) }
    }
}

fn start(role: &Role, eager_bytes: Option<usize>) -> anyhow::Result<Process> {
    let mut command = Command::new(std::env::current_exe()?);
    command.envs(eager_bytes.map(|bytes| ("ROPEWALK_BMI_EAGER_BYTES", bytes.to_string())));
    Process::start(command, &role.encode())
}

/// Running servers and clients.
pub struct Group {
    servers: Vec<Process>,
    clients: Vec<Process>,
    /// The role of a client.
    role: Role,
    urls: String,
    eager_bytes: Option<usize>,
}

impl Group {
    /// Starts them and lets them know each other.
    pub fn start(shape: &Shape) -> anyhow::Result<Group> {
        let Shape { medium, spins, bare, allocates, eager_bytes, modules, .. } = *shape;
        let core = |number| shape.pinned.then_some(number);
        let mut servers = Vec::new();
        let mut urls = Vec::new();
        for index in 0..shape.servers {
            let listen = match medium {
                "tcp" => "tcp://127.0.0.1".to_string(),
                other => format!("{other}://bench-{}-{index}", std::process::id()),
            };
            let role = Role { listen, spins, bare, allocates, modules, core: core(1) };
            let mut server = start(&role, eager_bytes)?;
            urls.push(server.hear_word("url")?);
            servers.push(server);
        }
        let role = Role { listen: String::new(), spins, bare, allocates, modules, core: core(0) };
        let urls = urls.join(" ");
        let mut group = Group { servers, clients: Vec::new(), role, urls, eager_bytes };
        for _ in 0..shape.clients {
            group.add_client()?;
        }
        Ok(group)
    }

    /// A client more.
    fn add_client(&mut self) -> anyhow::Result<()> {
        let mut client = start(&self.role, self.eager_bytes)?;
        client.tell(&self.urls)?;
        self.clients.push(client);
        Ok(())
    }

    /// Processor time of all of them so far.
    fn cpu_nanos(&self) -> u64 {
        let all = self.servers.iter().chain(&self.clients);
        all.map(|process| host::cpu_nanos(process.id())).sum()
    }

    /// Lets all clients do this at once; their answers' numbers.
    fn ask(&mut self, line: &str) -> anyhow::Result<(Vec<Vec<u64>>, f64)> {
        let before = self.cpu_nanos();
        for client in &mut self.clients {
            client.tell(line)?;
        }
        let answers = self.clients.iter_mut().map(Process::numbers).collect::<Result<_, _>>()?;
        Ok((answers, (self.cpu_nanos() - before) as f64 / 1e9))
    }

    /// Round trips between the first server and the only client.
    pub fn latency(&mut self, bytes: usize, rounds: usize) -> anyhow::Result<Point> {
        let (answers, cpu) = self.ask(&format!("latency {bytes} {rounds}"))?;
        let [median, p99, ref counts @ ..] = answers[0][..] else { bail!("an answer is short") };
        let messages = 2.0 * (rounds + rounds / 10 + 20) as f64;
        Ok(Point {
            bytes,
            value: median as f64 / 1e3,
            p99: p99 as f64 / 1e3,
            cpu: cpu * 1e6 / messages,
            immediate: Immediate::of([counts]),
            grown: 0.0,
        })
    }

    /// So many messages one way.
    pub fn bandwidth(&mut self, bytes: usize, count: usize, late: bool) -> anyhow::Result<Point> {
        let when = if late { "late" } else { "pre" };
        let (answers, cpu) = self.ask(&format!("bandwidth {bytes} {count} {when}"))?;
        let [nanos, ref counts @ ..] = answers[0][..] else { bail!("an answer is short") };
        let total = (bytes * count) as f64;
        let with_first = total + (bytes * count.min(WARM)) as f64;
        Ok(Point {
            bytes,
            value: total / (nanos.max(1) as f64 / 1e3),
            cpu: cpu / (with_first / 1e9),
            immediate: Immediate::of([counts]),
            ..Point::default()
        })
    }

    /// The parallel-file-system pattern, repeated for at least `seconds`: the median of its repeats.
    pub fn pattern(&mut self, seconds: f64) -> anyhow::Result<Point> {
        let total = (self.servers.len() * self.clients.len() * PAIR) as f64;
        let begin = std::time::Instant::now();
        // The first one connects, and makes memory.
        self.ask("pattern")?;
        let (mut values, mut cpu, mut told) = (Vec::new(), 0.0, Vec::new());
        while values.is_empty() || begin.elapsed().as_secs_f64() < seconds {
            let (answers, used) = self.ask("pattern")?;
            let first = answers.iter().filter_map(|it| it.first()).min();
            let last = answers.iter().filter_map(|it| it.get(1)).max();
            let (Some(first), Some(last)) = (first, last) else { bail!("an answer is short") };
            values.push(total / ((last - first).max(1) as f64 / 1e3));
            cpu += used;
            told.extend(answers);
        }
        values.sort_by(f64::total_cmp);
        let runs = values.len();
        let value = values[runs / 2];
        Ok(Point {
            bytes: PAIR,
            value,
            cpu: cpu / (total * runs as f64 / 1e9),
            immediate: Immediate::of(told.iter().map(|numbers| &numbers[2..])),
            ..Point::default()
        })
    }

    /// All clients do the pattern for so long; the joint result of all but the last one. If it is `disturbed`, the
    /// last client is killed in the middle, and a new one comes.
    pub fn beside(&mut self, seconds: f64, disturbed: bool) -> anyhow::Result<Point> {
        // The first one connects, and makes memory.
        self.ask("pattern")?;
        let before = self.cpu_nanos();
        let line = format!("patterns {}", (seconds * 1e3) as u64);
        for client in &mut self.clients {
            client.tell(&line)?;
        }
        if disturbed {
            std::thread::sleep(Duration::from_secs_f64(seconds / 2.0));
            drop(self.clients.pop());
            self.add_client()?;
            let line = format!("patterns {}", (seconds * 500.0) as u64);
            self.clients.last_mut().context("it was added")?.tell(&line)?;
        }
        let mut values = Vec::new();
        for client in &mut self.clients {
            let [nanos, count, ..] = client.numbers()?[..] else { bail!("an answer is short") };
            let bytes = count as f64 * (self.servers.len() * PAIR) as f64;
            values.push(bytes / (nanos as f64 / 1e3));
        }
        let cpu = self.cpu_nanos().saturating_sub(before) as f64 / 1e9;
        let value = values[..values.len() - 1].iter().sum();
        let total: f64 = values.iter().sum::<f64>() * seconds / 1e3;
        Ok(Point { bytes: PAIR, value, cpu: cpu / total.max(1e-9), ..Point::default() })
    }

    /// Round trips of the first client, where it is `disturbed` beside another one's flood of messages that
    /// nobody takes.
    pub fn flooded(
        &mut self,
        bytes: usize,
        rounds: usize,
        disturbed: bool,
    ) -> anyhow::Result<Point> {
        let line = format!("latency {bytes} {rounds}");
        // The first ones connect.
        self.ask("latency 24 100")?;
        let server = self.servers[0].id();
        let before = host::resident_bytes(server)?;
        let [neighbour, flooder] = &mut self.clients[..] else { bail!("it takes two clients") };
        if disturbed {
            let messages = FLOOD_MESSAGES.min(100 * rounds);
            flooder.tell(&format!("flood {FLOOD_BYTES} {messages}"))?;
        }
        neighbour.tell(&line)?;
        let answer = neighbour.numbers()?;
        if disturbed {
            flooder.hear()?;
        }
        let [median, p99, ref counts @ ..] = answer[..] else { bail!("an answer is short") };
        Ok(Point {
            bytes,
            value: median as f64 / 1e3,
            p99: p99 as f64 / 1e3,
            cpu: 0.0,
            immediate: Immediate::of([counts]),
            grown: host::resident_bytes(server)?.saturating_sub(before) as f64 / 1048576.0,
        })
    }

    /// The part of a processor that a server uses which has a client and nothing to do, in percent.
    pub fn idle(&mut self, seconds: f64) -> anyhow::Result<Point> {
        self.ask("latency 24 10")?;
        let cpu = || host::cpu_nanos(self.servers[0].id());
        let before = cpu();
        std::thread::sleep(Duration::from_secs_f64(seconds));
        let value = (cpu() - before) as f64 / 1e7 / seconds;
        Ok(Point { value, ..Point::default() })
    }

    /// Beside so many receives without a sender: round trips, or, of no bytes, nanoseconds of a test that finds
    /// nothing.
    pub fn crowded(
        &mut self,
        bytes: usize,
        rounds: usize,
        receives: usize,
    ) -> anyhow::Result<Point> {
        // The first ones connect.
        self.ask("latency 24 100")?;
        self.ask(&format!("crowd {receives}"))?;
        if bytes > 0 {
            return self.latency(bytes, rounds);
        }
        let (answers, _) = self.ask(&format!("empty {rounds}"))?;
        let [median, p99, ..] = answers[0][..] else { bail!("an answer is short") };
        let calls = CALLS as f64;
        let (value, p99) = (median as f64 / calls, p99 as f64 / calls);
        Ok(Point { value, p99, ..Point::default() })
    }
}
