//! Jobs: programs that run as several ranks, started by `ropewalk run`, and how these ranks find each other.
//!
//! * [`Job`]: the side of a rank: its number, how many there are, and an exchange among all of them;
//! * [`Launch`]: the launcher. It starts an *agent* for each place: this host, a network namespace, another host;
//! * [`agent()`], [`rank()`]: the parts that the launcher's program plays as an agent, and as a rank before it becomes the user's
//!   program.
//!
//! The launcher talks to an agent over the agent's standard input and output, so that a remote shell carries all that there
//! is. A rank talks to its agent over a local socket. The design note 101 has the reasons.
//!
//! Invariants
//! * no rank survives: an agent that hears no launcher any more kills its ranks; the kernel kills a rank whose agent is gone;
//! * a round of the exchange ends when all ranks have given their part, or the job ends;
//! * what a peer of a socket says is bounded, and a stranger is not heard.
#![forbid(unsafe_code)]

mod agent;
mod exchange;
mod frame;
mod launch;
mod member;
mod output;
mod place;
mod ranks;

pub use agent::agent;
pub use exchange::PART_BYTES_MAX;
pub use launch::{Launch, RunError};
pub use member::{Job, JobError};
pub use place::{Place, PlaceError};
pub use ranks::rank;

/// Ranks of a job at most.
pub const RANKS_MAX: u32 = 1024;

/// The number of a rank, from 0 on.
pub const RANK_VARIABLE: &str = "ROPEWALK_RANK";
/// How many ranks the job has.
pub const SIZE_VARIABLE: &str = "ROPEWALK_SIZE";
/// The name of the agent's socket, in the abstract name space.
pub const JOB_VARIABLE: &str = "ROPEWALK_JOB";
/// The key that a rank shows there.
pub const KEY_VARIABLE: &str = "ROPEWALK_JOB_KEY";
