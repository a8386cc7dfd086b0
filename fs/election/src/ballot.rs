//! Ballots of claimants, and the answers of voters.

use std::collections::BTreeSet;

use ropewalk_wire::fs::election as wire;

/// The servers of which each has all that was acknowledged. The order of sets is that of their making.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Set {
    /// The term in which it was made, and its number there.
    pub term: u64,
    pub number: u64,
    /// At most 16. None: the voter never stored a set.
    pub members: BTreeSet<u32>,
}

impl Set {
    /// The set of a new file system.
    pub fn first(members: impl IntoIterator<Item = u32>) -> Set {
        Set { term: 0, number: 0, members: members.into_iter().collect() }
    }

    /// Whether its voter never stored a set: it is new, or has lost its memory.
    pub fn is_fresh(&self) -> bool {
        self.members.is_empty()
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
    /// Would the voter give this server a further term? It promises nothing.
    Ask { server: u32 },
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

impl From<wire::Set> for Set {
    fn from(set: wire::Set) -> Set {
        let wire::Set { term, number, members } = set;
        Set { term, number, members: members.as_slice().iter().copied().collect() }
    }
}

impl From<&Set> for wire::Set {
    /// # Panics
    /// The set has more than 16 members.
    fn from(set: &Set) -> wire::Set {
        let members = wire::Members::new(set.members.iter().copied().collect());
        let members = members.expect("a set has at most 16 members");
        wire::Set { term: set.term, number: set.number, members }
    }
}

impl From<wire::Ballot> for Ballot {
    fn from(ballot: wire::Ballot) -> Ballot {
        match ballot {
            wire::Ballot::Claim { term, server } => Ballot::Claim { term, server },
            wire::Ballot::Change { term, server, set } => {
                Ballot::Change { term, server, set: set.into() }
            }
            wire::Ballot::Release { term, server } => Ballot::Release { term, server },
            wire::Ballot::Ask { server } => Ballot::Ask { server },
        }
    }
}

impl From<&Ballot> for wire::Ballot {
    fn from(ballot: &Ballot) -> wire::Ballot {
        match ballot {
            Ballot::Claim { term, server } => wire::Ballot::Claim { term: *term, server: *server },
            Ballot::Change { term, server, set } => {
                wire::Ballot::Change { term: *term, server: *server, set: set.into() }
            }
            Ballot::Release { term, server } => {
                wire::Ballot::Release { term: *term, server: *server }
            }
            Ballot::Ask { server } => wire::Ballot::Ask { server: *server },
        }
    }
}

impl From<wire::Answer> for Answer {
    fn from(answer: wire::Answer) -> Answer {
        let wire::Answer { is_granted, term, set } = answer;
        Answer { is_granted, term, set: set.into() }
    }
}

impl From<&Answer> for wire::Answer {
    fn from(answer: &Answer) -> wire::Answer {
        let Answer { is_granted, term, set } = answer;
        wire::Answer { is_granted: *is_granted, term: *term, set: set.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ballots_and_answers_have_a_wire_form_each() {
        let set = Set { term: 3, number: 1, members: [2, 9].into() };
        for ballot in [
            Ballot::Claim { term: 4, server: 2 },
            Ballot::Change { term: 4, server: 2, set: set.clone() },
            Ballot::Release { term: 4, server: 2 },
            Ballot::Ask { server: 2 },
        ] {
            assert_eq!(Ballot::from(wire::Ballot::from(&ballot)), ballot);
        }
        let answer = Answer { is_granted: true, term: 4, set };
        assert_eq!(Answer::from(wire::Answer::from(&answer)), answer);
    }
}
