//! The processes of a case: each is a rank, on a core in turn.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, anyhow};
use ropewalk_base::ids::ClusterId;
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{Endpoint, EndpointConfig, Group};
use ropewalk_rma::Team;

use super::case::{Case, System};
use super::mail::Mail;
use super::rank::{Rank, exchange};
use super::{Measured, bare, programs};
use crate::host;
use crate::process::Process;

const GROUP_TAG: u64 = 21 << 48;
const TEAM_TAG: u64 = 22 << 48;

/// The processes of a case.
pub struct Job {
    ranks: Vec<Process>,
}

impl Job {
    /// Starts them, and lets them meet.
    pub fn start(case: &Case) -> anyhow::Result<Job> {
        let program = std::env::current_exe()?;
        let start = |rank| {
            let part = format!("rma {rank} {}", case.encode());
            Process::start(Command::new(&program), &part)
        };
        let mut ranks = (0..case.ranks).map(start).collect::<anyhow::Result<Vec<_>>>()?;
        let addresses = ranks.iter_mut().map(|rank| rank.hear_word("address"));
        let addresses = addresses.collect::<anyhow::Result<Vec<_>>>()?.join(" ");
        ranks.iter_mut().try_for_each(|rank| rank.tell(&addresses))?;
        Ok(Job { ranks })
    }

    /// What rank 0 measured, and the processor time of ranks 0 and 1.
    pub fn run(&mut self) -> anyhow::Result<Measured> {
        let samples = self.ranks[0].numbers()?;
        if samples.is_empty() {
            return Err(anyhow!("rank 0 measured nothing"));
        }
        let mut cpu = [0; 2];
        for (rank, nanos) in self.ranks.iter_mut().zip(&mut cpu) {
            *nanos = rank.hear_word("cpu")?.parse()?;
        }
        Ok(Measured { samples, cpu, lo: None })
    }
}

/// Plays a rank.
pub(crate) fn serve(words: &str) -> anyhow::Result<()> {
    let (rank, case) = words.split_once(' ').context("which rank?")?;
    let rank: u32 = rank.parse()?;
    let case = Case::decode(case).with_context(|| format!("'{case}' is no case"))?;
    let anywhere = rustix::thread::sched_getaffinity(None)?;
    let mut core = rustix::thread::CpuSet::new();
    // Counting cores after that would count those of this process.
    core.set(rank as usize % host::cores());
    rustix::thread::sched_setaffinity(None, &core)?;
    if case.system == System::Raw {
        let before = host::own_cpu_nanos();
        let samples = bare::run(&case, rank)?;
        tell(rank, &samples, host::own_cpu_nanos() - before);
        return Ok(());
    }
    let name = format!("rma-bench-{}", std::process::id());
    let address = if case.medium == "shm" { name.as_str() } else { "127.0.0.1:0" };
    let rail = modules::open(case.medium, &Listen::At { address, exactly: true })?;
    let endpoint = Endpoint::open(EndpointConfig::new(ClusterId(78)), vec![rail])?;
    let group = Group::find(&endpoint, rank, GROUP_TAG, |own| {
        let all = exchange(&String::from_utf8_lossy(own)).map_err(Failed)?;
        Ok::<_, Failed>(all.into_iter().map(String::into_bytes).collect())
    })?;
    let team = Team::new(&endpoint, &group, TEAM_TAG)?;
    let has_mail = case.system == System::Sendrecv;
    let mail = has_mail.then(|| Mail::open(&endpoint, &group)).transpose()?;
    let progress = case.system == System::MessagesProgress;
    let own = Rank::new(case, rank, &team, mail)?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if progress {
            scope.spawn(|| {
                // As the threads of MPIs do.
                let _ = rustix::thread::sched_setaffinity(None, &anywhere);
                team.serve_until(|| over.load(Ordering::Relaxed))
            });
        }
        let played = play(&own);
        over.store(true, Ordering::Relaxed);
        // It wakes whoever sleeps in there.
        team.progress();
        played
    })?;
    team.settle(std::time::Duration::from_secs(1));
    Ok(())
}

fn play(own: &Rank) -> anyhow::Result<()> {
    own.team.barrier()?;
    let before = host::own_cpu_nanos();
    let samples = programs::run(own)?;
    let cpu = host::own_cpu_nanos() - before;
    own.team.barrier()?;
    tell(own.rank, &samples, cpu);
    Ok(())
}

fn tell(rank: u32, samples: &[u64], cpu: u64) {
    if rank == 0 {
        let numbers: Vec<String> = samples.iter().map(u64::to_string).collect();
        println!("times {}", numbers.join(" "));
    }
    println!("cpu {cpu}");
}

/// The exchange of addresses failed.
#[derive(Debug)]
struct Failed(anyhow::Error);

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:#}", self.0)
    }
}

impl std::error::Error for Failed {}
