//! Ballots of claimants, and the answers of voters.

use std::collections::BTreeSet;

/// The servers of which each has all that was acknowledged. The order of sets is that of their making.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Set {
    /// The term in which it was made, and its number there.
    pub term: u64,
    pub number: u64,
    pub members: BTreeSet<u32>,
}

impl Set {
    /// The set of a new file system.
    pub fn first(members: impl IntoIterator<Item = u32>) -> Set {
        Set { term: 0, number: 0, members: members.into_iter().collect() }
    }
}

/// A question to a voter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ballot {
    /// A server wants this term, or holds it and wants it for longer.
    Claim { term: u64, server: u32 },
    /// The same, and from now on this is the set.
    Change { term: u64, server: u32, set: Set },
    /// A server gives its term up.
    Release { term: u64, server: u32 },
}

/// A voter's answer to a ballot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub is_granted: bool,
    /// The highest term that the voter knows.
    pub term: u64,
    /// The set that the voter knows.
    pub set: Set,
}
