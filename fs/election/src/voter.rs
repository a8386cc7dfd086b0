//! A voter: it gives each term to one server, and keeps its promises also through restarts.

use std::time::Duration;

use ropewalk_base::time::Time;

use crate::ballot::{Answer, Ballot, Set};

/// The memory of a voter, which outlives it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The highest term, and the server that it was given to; 0 is before the first.
    pub term: u64,
    pub server: u32,
    pub set: Set,
}

/// An answer, and what has to happen before it leaves.
#[derive(Debug, Clone, PartialEq, Eq)]
#[must_use]
pub struct Verdict {
    pub answer: Answer,
    /// The record changed: it has to be durable first.
    pub is_new: bool,
}

/// A voter.
#[derive(Debug)]
pub struct Voter {
    record: Record,
    lease: Duration,
    /// Until then nobody but the record's server gets anything.
    promised: Time,
}

impl Record {
    /// The record of a voter that knows nothing yet.
    pub fn fresh() -> Record {
        Record { term: 0, server: 0, set: Set::first([]) }
    }
}

impl Voter {
    /// A voter that starts now. It does not know its earlier promises, so it waits for a whole lease.
    pub fn new(record: Record, lease: Duration, now: Time) -> Voter {
        let promised = if record.term == 0 { now } else { now + lease };
        Voter { record, lease, promised }
    }

    /// A voter of which it is known until when it has promised.
    pub(crate) fn resumed(record: Record, lease: Duration, promised: Time) -> Voter {
        Voter { record, lease, promised }
    }

    pub fn record(&self) -> &Record {
        &self.record
    }

    /// Answers a ballot.
    pub fn judge(&mut self, ballot: &Ballot, now: Time) -> Verdict {
        let before = self.record.clone();
        let is_granted = match ballot {
            Ballot::Claim { term, server } => self.claim(*term, *server, now),
            Ballot::Change { term, server, set } => {
                let is_granted = self.claim(*term, *server, now);
                if is_granted && *set > self.record.set {
                    self.record.set = set.clone();
                }
                is_granted
            }
            Ballot::Ask { server } => *server == self.record.server || now >= self.promised,
            Ballot::Release { term, server } => {
                let is_known = (*term, *server) == (self.record.term, self.record.server);
                if is_known {
                    self.promised = self.promised.min(now);
                }
                is_known
            }
        };
        let (term, set) = (self.record.term, self.record.set.clone());
        Verdict { answer: Answer { is_granted, term, set }, is_new: self.record != before }
    }

    fn claim(&mut self, term: u64, server: u32, now: Time) -> bool {
        let is_same = server == self.record.server;
        if term < self.record.term
            || (term == self.record.term && !is_same)
            || (!is_same && now < self.promised)
        {
            return false;
        }
        (self.record.term, self.record.server) = (term, server);
        // A late copy of a ballot takes nothing back.
        self.promised = self.promised.max(now + self.lease);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEASE: Duration = Duration::from_secs(1);

    fn at(milliseconds: u64) -> Time {
        Time(0) + Duration::from_millis(milliseconds)
    }

    fn grants(voter: &mut Voter, term: u64, server: u32, now: Time) -> bool {
        voter.judge(&Ballot::Claim { term, server }, now).answer.is_granted
    }

    fn fresh() -> Voter {
        let record = Record { term: 0, server: 0, set: Set::first([1, 2]) };
        Voter::new(record, LEASE, at(0))
    }

    #[test]
    fn a_term_goes_to_one_server_and_a_promise_lasts_for_a_lease() {
        let mut voter = fresh();
        assert!(grants(&mut voter, 1, 1, at(10)));
        assert!(!grants(&mut voter, 1, 2, at(5000)), "the term is given");
        assert!(grants(&mut voter, 1, 1, at(500)), "it is renewed");
        assert!(!grants(&mut voter, 2, 2, at(1499)), "the promise counts from the renewal");
        assert!(grants(&mut voter, 2, 2, at(1500)));
        assert!(!grants(&mut voter, 1, 1, at(9000)), "an older term is over");
        let verdict = voter.judge(&Ballot::Claim { term: 2, server: 2 }, at(9000));
        assert!(verdict.answer.is_granted && !verdict.is_new, "nothing has to be stored again");
    }

    #[test]
    fn a_voter_that_starts_again_waits_for_a_lease() {
        let mut voter = fresh();
        assert!(grants(&mut voter, 1, 1, at(10)));
        let mut again = Voter::new(voter.record().clone(), LEASE, at(20));
        assert!(!grants(&mut again, 2, 2, at(1019)), "it may have promised just before");
        assert!(grants(&mut again, 2, 2, at(1020)));
    }

    #[test]
    fn a_term_that_is_given_back_is_free_and_late_ballots_take_nothing_back() {
        let mut voter = fresh();
        assert!(grants(&mut voter, 1, 1, at(10)));
        let release = |term, server| Ballot::Release { term, server };
        assert!(!voter.judge(&release(1, 2), at(20)).answer.is_granted, "it is not its own");
        assert!(!grants(&mut voter, 2, 2, at(30)));
        assert!(voter.judge(&release(1, 1), at(40)).answer.is_granted);
        assert!(grants(&mut voter, 2, 2, at(40)));
        assert!(!voter.judge(&release(1, 1), at(50)).answer.is_granted, "a late copy");
        assert!(!grants(&mut voter, 3, 1, at(60)));
    }

    #[test]
    fn of_two_sets_the_later_one_counts() {
        let mut voter = fresh();
        let set = |term, number, members: &[u32]| Set {
            term,
            number,
            members: members.iter().copied().collect(),
        };
        let change = |term, server, set| Ballot::Change { term, server, set };
        let first = voter.judge(&change(1, 1, set(1, 1, &[1])), at(10));
        assert!(first.is_new && first.answer.set.members == [1].into());
        let late = voter.judge(&change(1, 1, set(1, 0, &[1, 2])), at(20));
        assert_eq!(late.answer.set, set(1, 1, &[1]), "a late copy of an earlier one");
        let other = voter.judge(&change(2, 2, set(2, 0, &[2])), at(30));
        assert!(!other.answer.is_granted && other.answer.set == set(1, 1, &[1]));
        let next = voter.judge(&change(2, 2, set(2, 0, &[2])), at(2000));
        assert_eq!(next.answer.set, set(2, 0, &[2]), "a later term counts more");
    }
}
