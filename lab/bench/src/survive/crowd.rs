//! Clients of a site, each a process: started, counted, stopped, and what they have noted.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use crate::Options;
use crate::order::Order;
use crate::process::Process;
use crate::survive::check::{self, Found};
use crate::survive::client::{INODES_MAX, counted};
use crate::survive::ground::{CLIENTS, Ground};
use crate::survive::names::Kind;
use crate::survive::site::{LIMIT, Site, pause};

/// Clients of each run.
pub const COUNT: usize = 4;
/// Creates that each client has under way.
pub const CREATORS: usize = 4;
/// A client whose creates were acknowledged so often since then goes on.
const GOES_ON: u64 = 20;
const LOOK: Duration = Duration::from_millis(20);

/// An operation that was acknowledged: its kind, when that was, and how long it took (0: nobody noted it).
type Event = (Kind, u64, u64);

/// What a client did.
pub struct Record {
    pub folder: String,
    /// Operations that were acknowledged, those that are counted.
    pub creates: u64,
    events: Vec<Event>,
}

impl Record {
    /// When operations of a kind were acknowledged, in order.
    pub fn times(&self, kind: Kind) -> Vec<u64> {
        let of = |event: &Event| (event.0 == kind).then_some(event.1);
        let mut times: Vec<u64> = self.events.iter().filter_map(of).collect();
        times.sort_unstable();
        times
    }

    /// How long operations of a kind took that were acknowledged in this span.
    pub fn spent(&self, kind: Kind, (from, to): (u64, u64)) -> impl Iterator<Item = u64> {
        let within = move |event: &&Event| event.0 == kind && (from..to).contains(&event.1);
        self.events.iter().filter(within).map(|event| event.2)
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
        let order = Order::new("survive client").with("address", site.address());
        let order = match mix {
            true => order.with("creators", 1).with("inodes_max", INODES_MAX).with("mix", ""),
            false => order.with("creators", CREATORS),
        };
        Crowd::of(order, (folder, site.scratch()), &mut |order| start(ground, site, order))
    }

    /// The same of clients of another kind, of which each has a folder of its own and a file for its times in `scratch`.
    pub fn of(
        order: Order,
        (folder, scratch): (&str, &Path),
        start: &mut dyn FnMut(&Order) -> anyhow::Result<Process>,
    ) -> anyhow::Result<Crowd> {
        let mut clients = Vec::new();
        for number in 0..COUNT {
            let path = format!("/{folder}/c{number}");
            let times = scratch.join(format!("{}.{number}.times", folder.replace('/', ".")));
            let order = order.clone().with("folder", &path).with("times", times.display());
            clients.push((start(&order)?, path, times));
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
    pub fn await_progress(&mut self, options: &Options, since: &[u64]) -> anyhow::Result<()> {
        if !self.goes_on(options, since)? {
            let now = self.counts()?;
            bail!("clients do not go on within {} s: {now:?} operations", LIMIT.as_secs());
        }
        Ok(())
    }

    /// The same; false where they do not within the time limit.
    pub fn goes_on(&mut self, options: &Options, since: &[u64]) -> anyhow::Result<bool> {
        let begin = Instant::now();
        while begin.elapsed() <= LIMIT {
            let now = self.counts()?;
            if now.iter().zip(since).all(|(now, then)| *now >= then + GOES_ON) {
                return Ok(true);
            }
            pause(options, LOOK)?;
        }
        Ok(false)
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
                let mut words = line.split(' ');
                let mut number = || words.next()?.parse::<u64>().ok();
                let (kind, nanos) = (number()?, number()?);
                Some((*Kind::ALL.get(kind as usize)?, nanos, number().unwrap_or(0)))
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
