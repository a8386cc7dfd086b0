//! Deaths of every role alone and of all at once, at random moments and at chosen calls: acknowledged
//! operations are there afterwards, and everybody goes on.
//!
//! A worker (a process of its own) performs operations and tells this one which of them were acknowledged. This
//! process keeps a model, kills, starts again, and compares with the view of a client without any cache. Each
//! round has a directory of its own; at the end all of them are compared once more.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::RwLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use support::library;
use support::model::{Found, Loss, Model, Syncs};
use support::operation::{Operation, Random};
use support::servers::{Servers, kill};
use support::shim::{KillAt, kills_usable};
use support::worker::{Ended, Worker};
use support::{PROGRAM, Process, mounts_usable};

/// Not a test of its own: the work of the worker's process.
#[test]
fn worker() {
    support::worker::work();
}

/// The processes that die.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Role {
    Meta,
    Data,
    Mount,
    Library,
    All,
}

impl Role {
    /// Whether the worker's own way to the files dies.
    fn takes_client(self) -> bool {
        matches!(self, Role::Mount | Role::Library | Role::All)
    }

    /// The kinds of calls at which it is killed.
    fn kinds(self) -> &'static [&'static str] {
        match self {
            Role::Mount | Role::Library => &["send"],
            _ => &["sync", "write", "send"],
        }
    }
}

/// The time at which a victim dies.
#[derive(Debug, Clone)]
enum Plan {
    After(Duration),
    At(KillAt),
}

/// Operations of one round, after which its victim is killed at the latest.
const OPERATIONS_MAX: usize = 250;
/// Operations after the victim is back.
const OPERATIONS_AFTER: usize = 5;

/// The processes of one run.
struct Stage {
    role: Role,
    servers: Servers,
    path: PathBuf,
    mounted: Option<Process>,
}

impl Stage {
    fn pids(&self) -> Vec<rustix::process::Pid> {
        let meta = self.servers.meta.iter();
        let one = match self.role {
            Role::Meta => meta.map(Process::pid).collect(),
            Role::Data => self.servers.data[0].iter().map(Process::pid).collect(),
            Role::Mount => self.mounted.iter().map(Process::pid).collect(),
            Role::Library => Vec::new(),
            Role::All => {
                let data = self.servers.data.iter().flatten();
                meta.chain(data).chain(&self.mounted).map(Process::pid).collect()
            }
        };
        assert!(self.role == Role::Library || !one.is_empty(), "the victim lives");
        one
    }

    fn is_victim_over(&mut self) -> bool {
        let over = |process: &mut Option<Process>| process.as_mut().is_some_and(Process::is_over);
        match self.role {
            Role::Meta => over(&mut self.servers.meta),
            Role::Data => over(&mut self.servers.data[0]),
            Role::Mount => over(&mut self.mounted),
            Role::Library => false,
            Role::All => over(&mut self.servers.meta) || over(&mut self.mounted),
        }
    }

    /// Ends the victim in good order, and starts it again, to die at `kill`. False where it died while
    /// it started; then it was started once more and lives.
    fn doom(&mut self, kill: &KillAt) -> bool {
        let servers = &mut self.servers;
        match self.role {
            Role::Meta => servers.meta.as_mut().expect("it lives").stop(),
            Role::Data => servers.data[0].as_mut().expect("it lives").stop(),
            Role::Mount => self.mounted.as_mut().expect("it lives").stop(),
            Role::Library => {}
            Role::All => {
                self.mounted.as_mut().expect("it lives").stop();
                servers.data.iter_mut().flatten().for_each(Process::stop);
                servers.meta.as_mut().expect("it lives").stop();
            }
        }
        let lived = self.revive(Some(kill));
        lived || {
            assert!(self.revive(None), "without a kill it starts");
            false
        }
    }

    fn revive(&mut self, next: Option<&KillAt>) -> bool {
        match self.role {
            Role::Meta => {
                self.servers.meta = None;
                self.servers.start_meta(next)
            }
            Role::Data => {
                self.servers.data[0] = None;
                self.servers.start_data(0, next)
            }
            Role::Mount => {
                self.mounted = None;
                self.mounted = self.servers.mount(&self.path, next);
                self.mounted.is_some()
            }
            Role::Library => true,
            Role::All => {
                self.servers.kill_group();
                self.mounted = None;
                self.servers.lead();
                let started = self.servers.start_meta(next)
                    && (0..2).all(|server| self.servers.start_data(server, next));
                if started {
                    self.mounted = self.servers.mount(&self.path, next);
                }
                started && self.mounted.is_some()
            }
        }
    }

    fn way(&self) -> String {
        match self.role {
            Role::Library => format!("library {}", self.servers.address()),
            _ => format!("mount {}", self.path.display()),
        }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.mounted = None;
        // A mount that is in good order or gone needs nothing.
        let _ = Command::new(PROGRAM).args(["umount", "--lazy"]).arg(&self.path).output();
    }
}

/// The counts of a run.
#[derive(Debug, Default)]
struct Figures {
    kills: usize,
    /// Of those at chosen calls: so many while the victim was still starting.
    starting: usize,
    /// The chosen call never came, and the victim was killed at the end of the round.
    plainly: usize,
    operations: usize,
}

/// One run: a role, its processes, and everything that was settled.
struct Run {
    stage: Stage,
    worker: Option<Worker>,
    random: Random,
    settled: Vec<(String, Model)>,
    figures: Figures,
}

/// The results of the operations of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Work {
    /// All were acknowledged.
    Whole,
    /// The client died; this one may not have taken effect.
    CutOff(Operation),
}

/// Flags between the one who works and the one who kills.
#[derive(Default)]
struct Flags {
    /// Held by each operation, and against all of them while the mount is made again: nothing must
    /// reach the bare directory.
    gate: RwLock<()>,
    dead: AtomicBool,
    back: AtomicBool,
    /// There were enough operations.
    enough: AtomicBool,
}

impl Run {
    fn round(&mut self, number: usize, plan: Plan) {
        let plan = match plan {
            // One that dies while it starts dies once more while it works.
            Plan::At(kill) if !self.stage.doom(&kill) => {
                self.figures.kills += 1;
                self.figures.starting += 1;
                Plan::After(Duration::from_millis(10))
            }
            plan => plan,
        };
        let directory = format!("round{number}");
        let mut model = Model::new(&directory, (number as u64) << 32);
        let mut worker = self.worker.take().unwrap_or_else(|| {
            let kill = match &plan {
                Plan::At(kill) if self.stage.role == Role::Library => Some(kill),
                _ => None,
            };
            Worker::start(&self.stage.way(), kill)
        });
        let flags = Flags::default();
        let (role, own) = (self.stage.role, worker.pid());
        let work = std::thread::scope(|scope| {
            let tender = scope.spawn(|| tend(&mut self.stage, &plan, &flags, own));
            let random = &mut self.random;
            let work =
                work(role, &mut worker, &directory, &mut model, random, &flags, &mut self.figures);
            flags.enough.store(true, Ordering::SeqCst);
            let plainly = tender.join().expect("whoever kills goes on");
            let chosen = plainly && (role != Role::Library || work == Work::Whole);
            self.figures.plainly += usize::from(chosen);
            work
        });
        self.figures.kills += 1;
        if role == Role::Library {
            drop(worker);
        } else {
            // Its open file belongs to a mount that is gone, or to this round.
            worker.must(&Operation::Close);
            self.worker = Some(worker);
        }
        let loss = if role.takes_client() { Loss::Client } else { Loss::Nothing };
        let found = look(&self.stage.servers, &directory);
        let under_way = match &work {
            Work::Whole => None,
            Work::CutOff(operation) => Some(operation),
        };
        let settled = model.settle(&found, loss, under_way, &Syncs::default());
        settled.unwrap_or_else(|error| {
            panic!("{role:?}, round {number}, {plan:?}, {work:?}: {error}");
        });
        self.settled.push((directory, model));
    }

    /// Everything once more, after everybody was started again.
    fn finish(mut self) -> Figures {
        drop(self.worker.take());
        // In good order, so that nobody waits for its session.
        self.stage.mounted.iter_mut().for_each(Process::stop);
        self.stage.mounted = None;
        self.stage.servers.kill_group();
        self.stage.servers.start();
        let mut witness = library::Library::connect(&self.stage.servers.address());
        for (directory, model) in &mut self.settled {
            if let Ok(found) = witness.look(directory) {
                let same = model.settle(&found, Loss::Nothing, None, &Syncs::default());
                same.unwrap_or_else(|error| panic!("at the end: {directory}: {error}"));
            }
        }
        witness.leave();
        self.figures
    }
}

fn look(servers: &Servers, directory: &str) -> Found {
    match library::look(&servers.address(), directory) {
        Ok(found) => found,
        // The directory itself was what was under way.
        Err(error) if error.contains("ENOENT") => Found::new(),
        Err(error) => panic!("{error}"),
    }
}

/// Performs operations until the victim is back, or the worker's way to the files is gone.
fn work(
    role: Role,
    worker: &mut Worker,
    directory: &str,
    model: &mut Model,
    random: &mut Random,
    flags: &Flags,
    figures: &mut Figures,
) -> Work {
    let mut after = 0;
    for count in 0.. {
        if flags.back.load(Ordering::SeqCst) {
            after += 1;
        }
        if after > OPERATIONS_AFTER {
            return Work::Whole;
        }
        if count >= OPERATIONS_MAX {
            flags.enough.store(true, Ordering::SeqCst);
        }
        let operation = match count {
            0 => Operation::Directory(directory.to_string()),
            _ => model.choose(random),
        };
        let gate = role.takes_client().then(|| flags.gate.read().expect("nobody panics with it"));
        if gate.is_some() && flags.dead.load(Ordering::SeqCst) {
            return Work::Whole;
        }
        let ended = worker.perform(&operation);
        figures.operations += 1;
        match ended {
            Ended::Done => model.done(&operation),
            Ended::Failed(error) if role.takes_client() && is_cut_off(&error) => {
                model.maybe(&operation);
                return Work::CutOff(operation);
            }
            Ended::Died if role == Role::Library => {
                model.maybe(&operation);
                return Work::CutOff(operation);
            }
            ended => panic!("{role:?}: '{operation}': {ended:?}"),
        }
    }
    unreachable!("the count has no end")
}

/// The kernel's error for a mount whose process is dead: not connected, connection aborted, or connection
/// refused. The last one comes if the process died within its first answer.
fn is_cut_off(error: &str) -> bool {
    ["os error 107", "os error 103", "os error 111"].iter().any(|dead| error.contains(dead))
}

/// Kills, or sees the victim die, and starts it again. Whether it had to be killed plainly.
fn tend(stage: &mut Stage, plan: &Plan, flags: &Flags, worker: rustix::process::Pid) -> bool {
    let mut plainly = false;
    match plan {
        Plan::After(pause) => {
            std::thread::sleep(*pause);
            if stage.role == Role::Library {
                kill(worker);
                return plainly;
            }
            stage.pids().into_iter().for_each(kill);
        }
        Plan::At(_) => {
            while !stage.is_victim_over() && !plainly {
                plainly = flags.enough.load(Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(1));
            }
            if stage.role == Role::Library {
                // The one who works has seen it, or it never came to that call.
                kill(worker);
                return plainly;
            }
            if plainly {
                stage.pids().into_iter().for_each(kill);
            }
        }
    }
    let begin = Instant::now();
    while !stage.is_victim_over() {
        assert!(begin.elapsed() < Duration::from_secs(30), "a killed process ends");
        std::thread::sleep(Duration::from_millis(1));
    }
    flags.dead.store(true, Ordering::SeqCst);
    let _gate = stage.role.takes_client().then(|| flags.gate.write().expect("nobody panics"));
    assert!(stage.revive(None), "without a kill it starts");
    flags.back.store(true, Ordering::SeqCst);
    plainly
}

/// The times at which the victims of a run die: every second time at a chosen call.
fn plans(role: Role, rounds: usize, random: &mut Random) -> Vec<Plan> {
    // Counted from the start or from when it serves. In a long run each has its turn.
    const NUMBERS: [u64; 10] = [1, 2, 3, 4, 6, 9, 13, 19, 28, 41];
    let kinds = role.kinds();
    let plan = |round: usize| {
        if round.is_multiple_of(2) {
            return Plan::After(Duration::from_micros(random.below(100_000)));
        }
        let turn = round / 2;
        let serving = !turn.is_multiple_of(4);
        let (kind, turn) = (kinds[turn % kinds.len()], turn / kinds.len());
        let number = if rounds <= 60 { NUMBERS[turn % NUMBERS.len()] } else { 1 + turn as u64 };
        let how = ["torn", "before", "after"][(turn + round) % 3];
        let sockets = turn % 2 == 1;
        Plan::At(KillAt { kind, number, serving, how, group: role == Role::All, sockets })
    };
    (0..rounds).map(plan).collect()
}

fn run(role: Role, rounds: usize, place: &Path) {
    let begin = Instant::now();
    let path = place.join("mount");
    std::fs::create_dir(&path).unwrap();
    // If the client dies, everybody waits until its session ends.
    let term = if role.takes_client() { "1" } else { "10" };
    let servers = Servers::new(&place.join("cluster"), 2, term);
    let mut stage = Stage { role, servers, path, mounted: None };
    if role == Role::All {
        stage.servers.lead();
    }
    stage.servers.start();
    if role != Role::Library {
        stage.mounted = stage.servers.mount(&stage.path, None);
    }
    let mut random = Random::new(role as u64 + 1);
    let plans = plans(role, rounds, &mut random);
    let (settled, figures) = (Vec::new(), Figures::default());
    let mut run = Run { stage, worker: None, random, settled, figures };
    for (number, plan) in plans.into_iter().enumerate() {
        if std::env::var_os("ROPEWALK_ROLE").is_some() {
            eprintln!("{:.2} round {number}: {plan:?}", begin.elapsed().as_secs_f64());
        }
        run.round(number, plan);
    }
    let figures = run.finish();
    println!("{role:?}: {figures:?} in {:.1} s", begin.elapsed().as_secs_f64());
    assert!(figures.kills >= rounds);
}

/// Kills of each role: a long run has as many as it is told.
fn rounds() -> usize {
    if std::env::var_os("ROPEWALK_SEEDS").is_some() { 400 } else { 40 }
}

#[test]
fn acknowledged_work_survives_the_death_of_any_role() {
    if !mounts_usable() || !kills_usable() {
        return;
    }
    let roles = [Role::Meta, Role::Data, Role::Mount, Role::Library, Role::All];
    let only = std::env::var("ROPEWALK_ROLE").unwrap_or_default();
    let chosen = |role: &Role| only.is_empty() || format!("{role:?}") == only;
    // At a time: where a session has to end, the others have the machine.
    std::thread::scope(|scope| {
        for role in roles.into_iter().filter(chosen) {
            scope.spawn(move || {
                let place = tempfile::tempdir().unwrap();
                run(role, rounds(), place.path());
            });
        }
    });
}
