//! Windows: the figures of "High Performance MPI-2 One-Sided Communication over InfiniBand", and rows beyond them.
//!
//! Each row has the same program for every implementation: windows by remote access, and by messages that the target
//! executes within its calls, which is the paper's yardstick; and for the MPIs of this machine. Ranks are processes; the
//! measuring one is rank 0.
//!
//! * [`case`]: what is measured; [`mod@rows`]: the rows; [`place`]: media and network namespaces;
//! * [`ranks`]: the processes; [`programs`]: what a [`rank`] does; [`cost`]: what that costs beside time;
//! * [`bare`], [`mail`]: bare sockets, and messages without a window; [`peers`]: MPIs;
//! * [`told`]: figures, ratios and pictures; [`mod@guide`]: what rows are there.

mod bare;
mod case;
mod cost;
mod guide;
mod mail;
mod peers;
mod place;
mod programs;
mod rank;
mod ranks;
mod rows;
mod told;

use anyhow::Context;

pub use guide::guide;
pub(crate) use ranks::serve;
pub use told::figures;

use crate::Options;
use crate::lab::{alternate, hold_dma_latency};
use crate::report::Outcome;
use case::Case;
use cost::Cost;
use peers::{Peer, Peers};
use place::Networks;
use ranks::Job;
use rows::cases;
use told::Run;

/// Pairs of runs of each two parties, unless the options say a number.
const PAIRS: usize = 30;

/// The results of a run of a party.
#[derive(Debug, Clone, Default)]
struct Measured {
    /// Nanoseconds of each round.
    samples: Vec<u64>,
    /// Processor time of ranks 0 and 1, in nanoseconds.
    cpu: [u64; 2],
    /// All that ranks 0 and 1 spent, of ours.
    costs: Option<[Cost; 2]>,
    /// Bytes that left by the interfaces of all ranks, where each has one.
    wire: Option<u64>,
    /// Of an MPI: bytes of rank 0's interface, and segments of TCP.
    interface: Option<[u64; 2]>,
}

/// A party of a row.
#[derive(Debug, Clone)]
enum Party {
    Ours(Case),
    Mpi(Peer),
}

impl Party {
    fn name(&self) -> &'static str {
        match self {
            Party::Ours(case) => case.system.name(),
            Party::Mpi(peer) => peer.name,
        }
    }
}

/// Measures everything that is wanted; measurements that fail are named on stderr.
pub fn rma(options: &Options, emit: &mut dyn FnMut(&Outcome)) {
    let _held = options.hold_dma_latency.then(hold_dma_latency).flatten();
    let (mut peers, mut networks) = (Peers::default(), Networks::default());
    for group in cases(options) {
        let Some(case) = group.first().filter(|case| options.wanted(&case.name())) else {
            continue;
        };
        let network = if place::is_apart(case.medium) {
            let Some(network) = networks.of(case.ranks) else { continue };
            Some(network)
        } else {
            None
        };
        let mut parties: Vec<Party> = group.iter().cloned().map(Party::Ours).collect();
        parties.extend(peers.of(options, case).into_iter().map(Party::Mpi));
        let name = |party: &Party| format!("{}: {}", case.name(), party.name());
        let names: Vec<String> = parties.iter().map(name).collect();
        let found =
            alternate(options, options.runs_or(PAIRS), &names, |turn, _| match &parties[turn] {
                Party::Ours(case) => {
                    let mut job =
                        Job::start(case, network).context("ranks of the benchmark do not start")?;
                    job.run()
                }
                Party::Mpi(peer) => peers.measure(peer, case, network),
            });
        if options.is_interrupted() {
            break;
        }
        let run = |(party, found)| Run::new(case, party, found, (&mut peers, network));
        let runs: Vec<Run> = parties.into_iter().zip(found).filter_map(run).collect();
        for outcome in told::outcomes(case, &runs, &mut peers) {
            emit(&outcome);
        }
    }
}

/// The names of all rows.
pub fn rows(quick: bool) -> Vec<String> {
    let options = Options { quick, ..Options::default() };
    cases(&options).iter().filter_map(|group| group.first()).map(Case::name).collect()
}
