//! The election of the active metadata server: terms, a lease that a majority of voters gives, and the set of servers that may be
//! elected.
//!
//! The voters are the metadata servers and a witness. Each server is a [`Claimant`], too: it asks the voters for a term, and renews
//! what they promised. The code here has no clock, no disk and no network: its owner brings the time, stores what a voter must
//! not forget, and carries ballots and answers.
//!
//! Invariants
//! * at no moment two servers may act: a voter that answered a ballot promises nobody else anything for the length of the lease,
//!   from its receipt; who holds the term acts for half of that, from its sending;
//! * no term is used twice: a server asks its own voter first, which stores the term;
//! * only a member of the set may act. The holder changes the set by a majority that stores it; of two sets the one of the later
//!   term counts, then the one with the higher number.

mod ballot;
mod claimant;
mod keeper;
pub mod record;
mod voter;

pub use ballot::{Answer, Ballot, Set};
pub use claimant::{Claimant, Event, Rules};
pub use keeper::VoterKeeper;
pub use record::VoteError;
pub use voter::{Record, Verdict, Voter};
