//! Ballots of metadata servers, and the answers of voters: which server may act (`docs/design/114-election.md`).
//!
//! Invariant: a set has at most [`MEMBERS_MAX`] members, each once, in ascending order. A decoder refuses any other one.

use std::fmt;

use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};

/// Most members of a set.
pub const MEMBERS_MAX: usize = 16;

/// The numbers of the servers in a set.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Members(Vec<u32>);

impl Members {
    /// These servers; None where they are too many, or not in ascending order.
    pub fn new(numbers: Vec<u32>) -> Option<Members> {
        let ascend = numbers.windows(2).all(|pair| pair[0] < pair[1]);
        (ascend && numbers.len() <= MEMBERS_MAX).then_some(Members(numbers))
    }

    /// Their numbers, in ascending order.
    pub fn as_slice(&self) -> &[u32] {
        &self.0
    }
}

impl<'de> Deserialize<'de> for Members {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Members, D::Error> {
        deserializer.deserialize_seq(MembersVisitor)
    }
}

/// Takes the members one by one: a long list is refused at its first number too many.
struct MembersVisitor;

impl<'de> Visitor<'de> for MembersVisitor {
    type Value = Members;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "at most {MEMBERS_MAX} servers in ascending order")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Members, A::Error> {
        let mut numbers = Vec::new();
        while let Some(number) = list.next_element()? {
            let ascends = numbers.last().is_none_or(|last| *last < number);
            if !ascends || numbers.len() == MEMBERS_MAX {
                return Err(A::Error::custom("no set of servers"));
            }
            numbers.push(number);
        }
        Ok(Members(numbers))
    }
}

/// The servers of which each has all that was acknowledged.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Set {
    /// The term in which it was made, and its number there.
    pub term: u64,
    pub number: u64,
    /// None: the voter never stored a set.
    pub members: Members,
}

/// A question to a voter. The body of a call of `Service::Election`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
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

/// A voter's answer to a [`Ballot`]. The body of the reply.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    pub is_granted: bool,
    /// The highest term that the voter knows.
    pub term: u64,
    /// The set that the voter knows.
    pub set: Set,
}

impl Ballot {
    /// The server that asks.
    pub fn server(&self) -> u32 {
        match self {
            Ballot::Claim { server, .. }
            | Ballot::Change { server, .. }
            | Ballot::Release { server, .. }
            | Ballot::Ask { server } => *server,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{Malformed, decode, encode};

    fn encoded(numbers: &[u32]) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(&numbers.to_vec(), &mut bytes);
        bytes
    }

    #[test]
    fn ballots_and_answers_survive_the_journey() {
        let members = Members::new(vec![1, 2, 900]).expect("they ascend");
        let set = Set { term: 7, number: 1, members };
        let ballots = [
            Ballot::Claim { term: 7, server: 1 },
            Ballot::Change { term: 7, server: 2, set: set.clone() },
            Ballot::Release { term: u64::MAX, server: 3 },
            Ballot::Ask { server: 4 },
        ];
        for (ballot, server) in ballots.into_iter().zip(1..) {
            let mut bytes = Vec::new();
            encode(&ballot, &mut bytes);
            assert_eq!(decode::<Ballot>(&bytes), Ok(ballot.clone()));
            assert_eq!(decode::<Ballot>(&bytes[..bytes.len() - 1]), Err(Malformed));
            assert_eq!(ballot.server(), server);
        }
        let answer = Answer { is_granted: true, term: 8, set };
        let mut bytes = Vec::new();
        encode(&answer, &mut bytes);
        assert_eq!(decode::<Answer>(&bytes), Ok(answer));
    }

    #[test]
    fn a_set_is_short_and_ascends() {
        let numbers: Vec<u32> = (0..=MEMBERS_MAX as u32).collect();
        let full = &numbers[..MEMBERS_MAX];
        assert_eq!(decode::<Members>(&encoded(full)), Ok(Members(full.to_vec())));
        for refused in [&numbers[..], &[2, 1], &[1, 1]] {
            assert_eq!(decode::<Members>(&encoded(refused)), Err(Malformed), "{refused:?}");
            assert_eq!(Members::new(refused.to_vec()), None);
        }
    }
}
