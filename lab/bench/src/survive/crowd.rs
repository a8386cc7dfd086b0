//! Clients of a site, each a process: started, counted, stopped, and what they have noted.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::order::Order;
use crate::process::Process;
use crate::survive::check::{self, Found};
use crate::survive::client::{INODES_MAX, counted};
use crate::survive::ground::{CLIENTS, Ground};
use crate::survive::names::Kind;
use crate::survive::site::{LIMIT, Site};

/// Clients of each run.
pub const COUNT: usize = 4;
/// Creates that each client has under way.
pub const CREATORS: usize = 4;
/// A client whose creates were acknowledged so often since then goes on.
const GOES_ON: u64 = 20;
const LOOK: Duration = Duration::from_millis(20);

/// What a client did.
pub struct Record {
    pub folder: String,
    pub creates: u64,
    events: Vec<(Kind, u64)>,
}

impl Record {
    /// When operations of a kind were acknowledged, in order.
    pub fn times(&self, kind: Kind) -> Vec<u64> {
        let of = |event: &(Kind, u64)| (event.0 == kind).then_some(event.1);
        let mut times: Vec<u64> = self.events.iter().filter_map(of).collect();
        times.sort_unstable();
        times
    }
}

/// Clients at work.
pub struct Crowd {
    clients: Vec<(Process, String, PathBuf)>,
}

impl Crowd {
    /// Starts them in folders of their own below `folder`; all work when this returns. `mix`: they do not only create.
    pub fn start(
        ground: &Ground,
        site: &Site<'_>,
        folder: &str,
        mix: bool,
    ) -> anyhow::Result<Crowd> {
        let mut clients = Vec::new();
        for number in 0..COUNT {
            let path = format!("/{folder}/c{number}");
            let times = site.scratch().join(format!("{folder}.{number}.times"));
            let order = Order::new("survive client").with("address", site.address());
            let order = order.with("folder", &path).with("times", times.display());
            let order = match mix {
                true => order.with("creators", 1).with("inodes_max", INODES_MAX).with("mix", ""),
                false => order.with("creators", CREATORS),
            };
            clients.push((start(ground, site, &order)?, path, times));
        }
        for (client, ..) in &mut clients {
            client.hear_word("ready")?;
        }
        for (client, ..) in &mut clients {
            client.tell("go")?;
        }
        Ok(Crowd { clients })
    }

    /// Creates of each client that were acknowledged until now; an error if an operation failed, or was done twice.
    pub fn counts(&mut self) -> anyhow::Result<Vec<u64>> {
        self.clients
            .iter_mut()
            .map(|(client, ..)| {
                client.tell("count")?;
                counted(&client.hear()?)
            })
            .collect()
    }

    /// Waits until creates of all clients are acknowledged again, after there were so many.
    pub fn await_progress(&mut self, site: &Site<'_>, since: &[u64]) -> anyhow::Result<()> {
        let begin = Instant::now();
        loop {
            let now = self.counts()?;
            if now.iter().zip(since).all(|(now, then)| *now >= then + GOES_ON) {
                return Ok(());
            }
            if begin.elapsed() > LIMIT {
                bail!("clients do not go on within {} s: {now:?} creates", LIMIT.as_secs());
            }
            site.pause(LOOK)?;
        }
    }

    /// Stops them; what each has done.
    pub fn stop(mut self) -> anyhow::Result<Vec<Record>> {
        for (client, ..) in &mut self.clients {
            client.tell("stop")?;
        }
        let mut records = Vec::new();
        for (mut client, folder, times) in self.clients {
            let creates = counted(&client.hear()?)?;
            // It closes its session: the next server would wait for one that does not come back.
            client.await_end()?;
            let text =
                std::fs::read_to_string(&times).context("a client did not tell its times")?;
            let _ = std::fs::remove_file(&times);
            let event = |line: &str| {
                let (kind, nanos) = line.split_once(' ')?;
                Some((*Kind::ALL.get(kind.parse::<usize>().ok()?)?, nanos.parse().ok()?))
            };
            let events: Option<Vec<_>> = text.lines().map(event).collect();
            let events = events.context("the times of a client are not as expected")?;
            records.push(Record { folder, creates, events });
        }
        Ok(records)
    }
}

fn start(ground: &Ground, site: &Site<'_>, order: &Order) -> anyhow::Result<Process> {
    let mut command = ground.command(CLIENTS);
    command.stderr(site.client_log()?);
    Process::start(command, &format!("work\n{}", order.encode()))
}

/// What a new client finds in these folders, each with the number of its creates.
pub fn look(ground: &Ground, site: &Site<'_>, folders: &[(String, u64)]) -> anyhow::Result<Found> {
    let mut process = start(ground, site, &check::order(&site.address(), folders))?;
    let answer = process.hear()?;
    process.await_end()?;
    Found::decode(&answer).with_context(|| format!("a client said '{answer}'"))
}
