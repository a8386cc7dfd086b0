//! The election of the active metadata server: terms, a lease that a majority of voters gives, and the set of servers that may be
//! elected.
//!
//! The voters are the metadata servers and a witness. Each metadata server is a [`Claimant`], too: it asks the voters for a term,
//! and renews what they promised. [`Claimant`] and [`Voter`] have no clock, no disk and no network: their owner brings the time, and
//! carries ballots and answers. [`VoterKeeper`] stores what a voter must not forget. The witness may be a value in a store of
//! others: [`shared`].
//!
//! Invariants
//! * at no moment two servers may act: a voter that answered a ballot promises nobody else anything for the length of the lease,
//!   from its receipt; who holds the term acts for half of that, from its sending;
//! * no term is used twice: a server asks its own voter first, which stores the term;
//! * only a member of the set may act. The holder changes the set by a majority that stores it; of two sets the one of the later
//!   term counts, then the one with the higher number;
//! * a voter that lost its memory is like one that is new: it elects nobody that its forgotten promises could have ruled out.

mod ballot;
mod claimant;
mod keeper;
pub mod record;
pub mod shared;
mod voter;

pub use ballot::{Answer, Ballot, Set};
pub use claimant::{Claimant, Event, Rules};
pub use keeper::VoterKeeper;
pub use record::VoteError;
pub use voter::{Record, Verdict, Voter};
