//! The launcher: begins the agents, brings their ranks together, and ends them all.

use std::collections::BTreeSet;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;
use thiserror::Error;

use crate::RANKS_MAX;
use crate::agent::{Spec, drawn};
use crate::exchange::Exchange;
use crate::frame::{Frame, Kind};
use crate::output::Lines;
use crate::place::{Place, PlaceError, of_ranks};
use crate::ranks::{BY_SIGNAL, adopt, sweep};

/// Our own variables begin so; ranks of other hosts have them, too.
const OWN_VARIABLES: &str = "ROPEWALK_";
/// Signals that ask for an end after which the launcher ends at once, whatever it waits for.
const ENDING_MAX: u32 = 3;
/// What agents are given to end, once nothing is left for them to do.
const AGENT_END: Duration = Duration::from_secs(5);
/// Things that have happened and were not looked at, at most: then agents wait.
const EVENTS_MAX: usize = 1024;
/// Signals that are passed on to ranks.
const PASSED_ON: [i32; 6] = [SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2];

/// A job to run.
#[derive(Debug, Clone)]
pub struct Launch {
    /// How many ranks.
    pub size: u32,
    /// Where they run: neighbours share a place.
    pub places: Vec<Place>,
    /// The program and its arguments.
    pub program: Vec<String>,
    /// Variables of its environment beside those that are there.
    pub variables: Vec<(String, String)>,
    /// The remote shell and its options.
    pub shell: Vec<String>,
    /// The launcher's program as it is called on other hosts; this one's path where it is `None`.
    pub remote_program: Option<PathBuf>,
    /// Whether each line of output begins with its rank.
    pub tells_ranks: bool,
    /// The time for ranks to end by themselves when the job ends.
    pub grace: Duration,
    /// The words by which this program plays an agent, and a rank.
    pub agent_words: &'static [&'static str],
}

/// Why a job does not begin.
#[derive(Debug, Error)]
pub enum RunError {
    #[error("a job has 1 to {RANKS_MAX} ranks, and not {0}")]
    Size(u32),
    #[error("there is no program to run")]
    Program,
    #[error(transparent)]
    Place(#[from] PlaceError),
    #[error("cannot start '{0}': {1}")]
    Start(String, io::Error),
    #[error("{0}")]
    Host(String),
}

enum Event {
    Told { agent: usize, frame: Frame },
    Gone { agent: usize },
    Signal(i32),
}

/// An agent, and the ranks that it has not told the end of.
struct Helper {
    name: String,
    child: Child,
    /// `None`: it was told to end.
    input: Option<ChildStdin>,
    ranks: BTreeSet<u32>,
}

/// A job that runs.
struct Running<'a> {
    helpers: Vec<Helper>,
    exchange: Exchange,
    /// Ranks that have ended.
    ended: BTreeSet<u32>,
    output: Lines,
    errors: Lines,
    out: &'a mut dyn Write,
    err: &'a mut dyn Write,
    /// What the launcher ends with, once something went wrong or somebody asked.
    status: Option<u8>,
    /// When ranks are killed that have not ended.
    kill_at: Option<Instant>,
    grace: Duration,
}

impl Launch {
    /// Runs the job, in a process that has no other children; what ranks write goes to `out` and `err`. Returns the status to end with: 0 where all ranks ended with 0,
    /// else that of the first one that did not.
    ///
    /// # Errors
    /// The job did not begin.
    pub fn run(&self, out: &mut dyn Write, err: &mut dyn Write) -> Result<u8, RunError> {
        if !(1..=RANKS_MAX).contains(&self.size) {
            return Err(RunError::Size(self.size));
        }
        if self.program.is_empty() {
            return Err(RunError::Program);
        }
        // An agent of this host that is killed leaves its ranks.
        adopt().map_err(|error| RunError::Host(error.to_string()))?;
        let (events, happened) = sync_channel(EVENTS_MAX);
        let mut signals =
            Signals::new(PASSED_ON).map_err(|error| RunError::Host(error.to_string()))?;
        let passing = signals.handle();
        let bell = events.clone();
        let watcher = std::thread::spawn(move || {
            let mut ending = 0;
            signals.forever().all(|number| {
                ending += u32::from(asks_for_end(number));
                if ending >= ENDING_MAX {
                    // The reader of the output has stopped, and the launcher waits for it. Agents kill their ranks when the
                    // launcher is gone.
                    std::process::exit(128 + number);
                }
                bell.send(Event::Signal(number)).is_ok()
            })
        });
        let mut running = Running {
            helpers: Vec::new(),
            exchange: Exchange::new(self.size),
            ended: BTreeSet::new(),
            output: Lines::new(self.size, self.tells_ranks),
            errors: Lines::new(self.size, self.tells_ranks),
            out,
            err,
            status: None,
            kill_at: None,
            grace: self.grace,
        };
        let begun = self.begin(&mut running, &events);
        drop(events);
        let status = begun.map(|()| running.attend(&happened));
        running.end(&happened);
        sweep();
        passing.close();
        drop(happened);
        let _ = watcher.join();
        status
    }

    /// The variables that an agent adds: of another host also our own ones of this environment.
    fn variables(&self, remote: bool) -> Vec<(String, String)> {
        let own = std::env::vars_os().filter(|_| remote);
        let own = own.filter_map(|(name, value)| {
            let name = name.into_string().ok().filter(|name| name.starts_with(OWN_VARIABLES));
            Some((name?, value.into_string().ok()?))
        });
        // The user's own come last, and count.
        own.chain(self.variables.iter().cloned()).collect()
    }

    /// Begins the agents, and tells each what to run.
    fn begin(&self, running: &mut Running<'_>, events: &SyncSender<Event>) -> Result<(), RunError> {
        let program = std::env::current_exe().map_err(|error| RunError::Host(error.to_string()))?;
        let key = drawn().map_err(RunError::Host)?;
        let place_of = of_ranks(self.places.len(), self.size);
        for (at, place) in self.places.iter().enumerate() {
            let ranks = (0..self.size).filter(|rank| place_of[*rank as usize] == at);
            let ranks: Vec<u32> = ranks.collect();
            if ranks.is_empty() {
                continue;
            }
            let remote = matches!(place, Place::Host(_));
            let path = self.remote_program.as_ref().filter(|_| remote).unwrap_or(&program);
            let command = place.command(path, self.agent_words, &self.shell)?;
            let spec = Spec {
                size: self.size,
                ranks: ranks.clone(),
                namespace: match place {
                    Place::Namespace(name) => Some(name.clone()),
                    Place::Here | Place::Host(_) => None,
                },
                // A remote shell begins elsewhere.
                directory: std::env::current_dir().ok().filter(|_| remote),
                program: self.program.clone(),
                variables: self.variables(remote),
                key: key.clone(),
            };
            let agent = running.helpers.len();
            let (helper, told) = start(place, command, ranks)?;
            running.helpers.push(helper);
            let events = events.clone();
            std::thread::spawn(move || listen(agent, told, &events));
            let spec = serde_json::to_vec(&spec).map_err(|it| RunError::Host(it.to_string()))?;
            // One that does not take it is gone, which its listener tells.
            running.helpers[agent].tell(&Frame::new(Kind::Spec, 0, spec));
        }
        Ok(())
    }
}

/// Whether a signal that is passed on asks ranks to end.
fn asks_for_end(number: i32) -> bool {
    !matches!(number, SIGUSR1 | SIGUSR2)
}

/// Starts an agent. A signal of the terminal goes to the launcher, and not to it.
fn start(
    place: &Place,
    mut command: Command,
    ranks: Vec<u32>,
) -> Result<(Helper, ChildStdout), RunError> {
    let name = match place {
        Place::Here => "this host".to_string(),
        Place::Namespace(name) => format!("network namespace '{name}'"),
        Place::Host(name) => format!("host '{name}'"),
    };
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
    let what = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().map_err(|error| RunError::Start(what, error))?;
    let told = child.stdout.take().expect("it was asked for");
    let input = child.stdin.take();
    Ok((Helper { name, child, input, ranks: ranks.into_iter().collect() }, told))
}

/// Passes on what an agent tells, until it is gone.
fn listen(agent: usize, mut told: ChildStdout, events: &SyncSender<Event>) {
    while let Ok(Some(frame)) = Frame::read(&mut told) {
        if events.send(Event::Told { agent, frame }).is_err() {
            return;
        }
    }
    let _ = events.send(Event::Gone { agent });
}

impl Helper {
    fn tell(&mut self, frame: &Frame) {
        if let Some(input) = &mut self.input
            && frame.write(input).is_err()
        {
            self.input = None;
        }
    }
}

impl Running<'_> {
    /// Looks after the ranks until all have ended; returns the status of the job.
    fn attend(&mut self, happened: &Receiver<Event>) -> u8 {
        while self.helpers.iter().any(|helper| !helper.ranks.is_empty()) {
            let wait = self.kill_at.map(|at| at.saturating_duration_since(Instant::now()));
            let event = match wait {
                Some(wait) => happened.recv_timeout(wait),
                None => happened.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match event {
                Ok(Event::Told { agent, frame }) => self.hear(agent, frame),
                Ok(Event::Gone { agent }) => self.lose(agent),
                Ok(Event::Signal(number)) => self.pass_on(number),
                Err(RecvTimeoutError::Timeout) => self.kill(),
                Err(RecvTimeoutError::Disconnected) => break,
            }
        }
        self.status.unwrap_or(0)
    }

    fn hear(&mut self, agent: usize, frame: Frame) {
        let rank = frame.rank;
        let written = match frame.kind {
            Kind::Output => self.output.add(rank, &frame.bytes, self.out),
            Kind::Errors => self.errors.add(rank, &frame.bytes, self.err),
            Kind::Part => {
                match self.exchange.give(rank, frame.bytes) {
                    Ok(None) => self.miss(),
                    Ok(Some(all)) => {
                        let parts = Frame::new(Kind::Parts, 0, all);
                        self.helpers.iter_mut().for_each(|helper| helper.tell(&parts));
                    }
                    Err(why) => self.fail(1, &format!("rank {rank} breaks the exchange: {why}")),
                }
                Ok(())
            }
            Kind::Abort => {
                let (status, why) = frame.bytes.split_first().unwrap_or((&1, &[]));
                let why = String::from_utf8_lossy(why);
                self.fail(*status, &format!("rank {rank} ends the job: {why}"));
                Ok(())
            }
            Kind::Ended => {
                let status = frame.number().unwrap_or(1);
                let ends = [self.output.end(rank, self.out), self.errors.end(rank, self.err)];
                self.helpers[agent].ranks.remove(&rank);
                self.rank_ended(rank, status);
                ends.into_iter().collect()
            }
            Kind::Failed => {
                let why = format!("{}: {}", self.helpers[agent].name, frame.text());
                self.helpers[agent].ranks.clear();
                self.fail(1, &why);
                Ok(())
            }
            _ => {
                self.lose(agent);
                Ok(())
            }
        };
        if written.is_err() {
            // Whoever read the output is gone.
            self.fail(128 + 13, "nobody reads the output any more");
        }
    }

    fn rank_ended(&mut self, rank: u32, status: u32) {
        self.ended.insert(rank);
        if status == 0 {
            return self.miss();
        }
        let (status, how) = match status.checked_sub(BY_SIGNAL) {
            Some(signal) => (128 + signal, format!("was ended by signal {signal}")),
            None => (status, format!("ended with status {status}")),
        };
        self.fail(status.min(255) as u8, &format!("rank {rank} {how}"));
    }

    /// An exchange that waits for a rank that has ended waits for ever.
    fn miss(&mut self) {
        if let Some(rank) = self.ended.iter().find(|rank| self.exchange.is_awaited(**rank)) {
            let why = format!("rank {rank} ended, and others wait for it in an exchange");
            self.fail(1, &why);
        }
    }

    /// The first thing that goes wrong ends the job, and is told.
    fn fail(&mut self, status: u8, why: &str) {
        if self.status.is_some() {
            return;
        }
        let others = self.helpers.iter().map(|helper| helper.ranks.len()).sum::<usize>();
        let rest =
            if others > 0 { format!("; the other {others} are ended") } else { String::new() };
        let _ = writeln!(self.err, "ropewalk run: {why}{rest}");
        self.status = Some(status);
        self.signal(SIGTERM);
        self.kill_at = Some(Instant::now() + self.grace);
    }

    /// A user's signal goes to all ranks. One that asks for an end is the job's status; a second one kills.
    fn pass_on(&mut self, number: i32) {
        self.signal(number);
        if !asks_for_end(number) {
            return;
        }
        if self.kill_at.is_some() {
            return self.kill();
        }
        self.status = self.status.or(Some(128 + number as u8));
        self.kill_at = Some(Instant::now() + self.grace);
    }

    fn signal(&mut self, number: i32) {
        let frame = Frame::new(Kind::Signal, 0, number.to_le_bytes());
        self.helpers.iter_mut().for_each(|helper| helper.tell(&frame));
    }

    /// An agent that hears nobody kills its ranks.
    fn kill(&mut self) {
        self.kill_at = None;
        for helper in &mut self.helpers {
            helper.input = None;
        }
    }

    /// An agent is gone, and its ranks with it.
    fn lose(&mut self, agent: usize) {
        let helper = &mut self.helpers[agent];
        helper.input = None;
        let ranks = std::mem::take(&mut helper.ranks);
        if let Some(rank) = ranks.first() {
            let why = format!("{} is lost, and rank {rank} with it", helper.name);
            self.fail(1, &why);
        }
    }

    /// Ends the agents.
    fn end(&mut self, happened: &Receiver<Event>) {
        self.kill();
        let until = Instant::now() + AGENT_END;
        for helper in &mut self.helpers {
            while let Ok(None) = helper.child.try_wait() {
                if Instant::now() >= until {
                    let _ = helper.child.kill();
                    let _ = helper.child.wait();
                }
                // They may still have something to tell, and wait until it is heard.
                let _ = happened.recv_timeout(Duration::from_millis(5));
            }
        }
    }
}
