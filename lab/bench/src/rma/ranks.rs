//! The processes of a case: each is a rank, on a core in turn.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, anyhow, ensure};
use ropewalk_base::ids::ClusterId;
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::{Endpoint, EndpointConfig, Group};
use ropewalk_netns::Topology;
use ropewalk_rma::Team;

use super::case::{Case, Program, System};
use super::cost::Cost;
use super::mail::Mail;
use super::place::{self, Place};
use super::rank::{Rank, exchange};
use super::{Measured, bare, programs};
use crate::host;
use crate::process::Process;

const GROUP_TAG: u64 = 21 << 48;
const TEAM_TAG: u64 = 22 << 48;

/// The processes of a case.
pub struct Job {
    case: Case,
    ranks: Vec<Process>,
}

impl Job {
    /// Starts them, each at its host of the network if there is one, and lets them meet.
    pub fn start(case: &Case, network: Option<&Topology>) -> anyhow::Result<Job> {
        let program = std::env::current_exe()?;
        let start = |rank: u32| {
            let host = network.map(|network| network.host(rank as usize));
            let (command, place) = match host {
                Some(host) => (host.command(&program), Place::at(case.medium, host)),
                None => (Command::new(&program), Place::here(case.medium)),
            };
            let part = format!("rma {rank} {} {}", place.encode(), case.encode());
            Process::start(command, &part)
        };
        let mut ranks = (0..case.ranks).map(start).collect::<anyhow::Result<Vec<_>>>()?;
        let addresses = ranks.iter_mut().map(|rank| rank.hear_word("address"));
        let addresses = addresses.collect::<anyhow::Result<Vec<_>>>()?.join(" ");
        ranks.iter_mut().try_for_each(|rank| rank.tell(&addresses))?;
        Ok(Job { case: case.clone(), ranks })
    }

    /// The times that rank 0 measured, and the costs of all ranks.
    ///
    /// # Errors
    /// Ranks failed; or fewer bytes crossed the wire between them than they moved.
    pub fn run(&mut self) -> anyhow::Result<Measured> {
        let samples = self.ranks[0].numbers()?;
        if samples.is_empty() {
            return Err(anyhow!("rank 0 measured nothing"));
        }
        let costs = self.ranks.iter_mut().map(|rank| {
            let told = rank.hear_word("cost")?;
            Cost::decode(&told).with_context(|| format!("a process told no cost: '{told}'"))
        });
        let costs = costs.collect::<anyhow::Result<Vec<Cost>>>()?;
        let both = [costs[0], costs[1]];
        let mut measured = Measured { samples, cpu: both.map(|it| it.cpu), ..Measured::default() };
        let case = &self.case;
        if case.system != System::Raw {
            measured.costs = Some(both);
        }
        if place::is_apart(case.medium) {
            let wire: u64 = costs.iter().map(|it| it.wire).sum();
            let moved = case.moved_in_all();
            ensure!(
                wire >= moved,
                "{wire} bytes crossed the wire, and ranks moved at least {moved}"
            );
            measured.wire = Some(wire);
        }
        Ok(measured)
    }
}

/// Plays a rank.
pub(crate) fn serve(words: &str) -> anyhow::Result<()> {
    let mut words = words.splitn(4, ' ');
    let mut word = || words.next().context("which rank of which case?");
    let rank: u32 = word()?.parse()?;
    let place = Place::decode(word()?, word()?);
    let case = word()?;
    let case = Case::decode(case).with_context(|| format!("'{case}' is no case"))?;
    let anywhere = rustix::thread::sched_getaffinity(None)?;
    let mut core = rustix::thread::CpuSet::new();
    // Counting cores after that would count those of this process.
    core.set(rank as usize % host::cores());
    rustix::thread::sched_setaffinity(None, &core)?;
    if case.system == System::Raw {
        let before = Cost::so_far(&place, None)?;
        let samples = bare::run(&case, rank, &place)?;
        tell(rank, &samples, Cost::so_far(&place, None)?.since(before));
        return Ok(());
    }
    let endpoint = open(&case, &place)?;
    let group = Group::find(&endpoint, rank, GROUP_TAG, |own| {
        let all = exchange(&String::from_utf8_lossy(own)).map_err(Failed)?;
        Ok::<_, Failed>(all.into_iter().map(String::into_bytes).collect())
    })?;
    let team = Team::new(&endpoint, &group, TEAM_TAG)?;
    let has_mail = case.system == System::Sendrecv || case.program == Program::Polling;
    let mail = has_mail.then(|| Mail::open(&endpoint, &group)).transpose()?;
    let progress = case.system == System::MessagesProgress;
    // Where the time of who serves is counted, it comes from the core of who computes.
    let wanders = !matches!(case.program, Program::Served(_));
    let own = Rank::new(case, rank, &team, mail)?;
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        if progress {
            scope.spawn(|| {
                if wanders {
                    // As the threads of MPIs do.
                    let _ = rustix::thread::sched_setaffinity(None, &anywhere);
                }
                team.serve_until(|| over.load(Ordering::Relaxed))
            });
        }
        let played = play(&own, &endpoint, &place);
        over.store(true, Ordering::Relaxed);
        // It wakes whoever sleeps in there.
        team.progress();
        played
    })?;
    team.settle(std::time::Duration::from_secs(1));
    Ok(())
}

/// The endpoint of a rank. In a namespace of its own it has no other machine's memory, and checks what comes, as between
/// machines.
fn open(case: &Case, place: &Place) -> anyhow::Result<Endpoint> {
    let name = format!("rma-bench-{}", std::process::id());
    let address = if place.address.is_empty() { &name } else { &place.address };
    let scheme = place::scheme(case.medium);
    let rail = modules::open(scheme, &Listen::At { address, exactly: true })
        .with_context(|| format!("cannot listen at {scheme}://{address}"))?;
    let mut config = EndpointConfig::new(ClusterId(78));
    if place.interface.is_some() {
        config.host = host::network();
    }
    Ok(Endpoint::open(config, vec![rail])?)
}

fn play(own: &Rank, endpoint: &Endpoint, place: &Place) -> anyhow::Result<()> {
    let so_far = || Cost::so_far(place, Some((endpoint, &own.team)));
    own.team.barrier()?;
    let before = so_far()?;
    let samples = programs::run(own)?;
    let cost = so_far()?.since(before);
    own.team.barrier()?;
    tell(own.rank, &samples, cost);
    Ok(())
}

fn tell(rank: u32, samples: &[u64], cost: Cost) {
    if rank == 0 {
        let numbers: Vec<String> = samples.iter().map(u64::to_string).collect();
        println!("times {}", numbers.join(" "));
    }
    println!("cost {}", cost.encode());
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
