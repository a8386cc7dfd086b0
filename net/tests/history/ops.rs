//! Operations as they were posted and as they ended: what the checks judge.

use ropewalk_net::Fault;

use super::setting::NODES;

/// A moment of a run: each post, and each completion that is seen, has one of its own.
pub type Moment = u64;
pub const NEVER: Moment = Moment::MAX;

/// What an operation does at its target.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// All of a cell; versions count from 1 in each.
    Put {
        cell: usize,
        version: u8,
    },
    Get {
        cell: usize,
    },
    /// Adds its own bit to elements of an area.
    Add {
        area: usize,
        first: u32,
        count: u32,
        bit: u8,
        fetch: bool,
    },
    /// Reads elements.
    Look {
        area: usize,
        first: u32,
        count: u32,
    },
    /// Replaces a word by a value of its own, if it is what is expected; or reads it, as one of the family.
    Chain {
        word: usize,
        value: Option<u64>,
        expected: Option<u64>,
    },
    /// Raises the origin's word at the target.
    Token {
        number: u64,
    },
    /// Reads all such words.
    Tokens,
    Lock {
        exclusive: bool,
    },
    Unlock,
    /// The word that the lock protects.
    ReadLocked,
    WriteLocked,
    /// Answered after what was asked for before.
    Probe,
    /// Lies outside, or has another key.
    Refused,
    /// Of the region that ends.
    Ending,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Got {
    Nothing,
    /// Of a cell: bit n is set where some byte is of version n.
    Versions([u64; 4]),
    Words(Vec<u64>),
}

#[derive(Debug)]
pub struct Op {
    pub origin: usize,
    pub target: usize,
    pub what: What,
    pub posted: Moment,
    pub ended: Moment,
    pub outcome: Option<Result<(), Fault>>,
    pub cancelled: bool,
    pub got: Got,
    /// Its effect is over by then, as its end or a token that followed it shows.
    pub over: Moment,
}

impl Op {
    /// It took effect.
    pub fn is_certain(&self) -> bool {
        self.outcome == Some(Ok(()))
    }

    /// It is over for sure before something was begun.
    pub fn precedes(&self, other: &Op) -> bool {
        self.over < other.posted
    }

    pub fn is_of(&self, origin: usize, target: usize) -> bool {
        (self.origin, self.target) == (origin, target)
    }

    pub fn words(&self) -> &[u64] {
        match &self.got {
            Got::Words(words) if self.is_certain() => words,
            _ => &[],
        }
    }
}

/// Finds out when each operation was over: at its end; when somebody saw a token that was posted after it; and one that failed
/// with its session when a later session of the two did something.
/// `writes`: a rail writes by itself, and goes on with what was given up: nobody knows for how long.
pub fn judge_ends(ops: &mut [Op], writes: bool) {
    for origin in 0..NODES {
        for target in 0..NODES {
            // From the last one on: the earliest end of what follows.
            let mut seen = NEVER;
            let mut later_answers: Vec<(Moment, Moment)> = Vec::new();
            for op in ops.iter_mut().rev().filter(|op| op.is_of(origin, target)) {
                let is_sent_only = matches!(op.what, What::Token { .. } | What::Unlock);
                if let What::Token { .. } = op.what {
                    seen = seen.min(op.over);
                    continue;
                }
                let goes_on = writes && op.cancelled && matches!(op.what, What::Put { .. });
                op.over = if goes_on { NEVER } else { seen };
                if op.is_certain() && !is_sent_only {
                    op.over = op.over.min(op.ended);
                    later_answers.push((op.posted, op.ended));
                } else if matches!(op.outcome, Some(Err(fault)) if fault != Fault::Cancelled) {
                    let later = later_answers.iter().filter(|it| it.0 > op.ended);
                    op.over = op.over.min(later.map(|it| it.1).min().unwrap_or(NEVER));
                }
            }
        }
    }
}

/// Somebody saw what a token told: it is among the operations.
pub fn see_token(ops: &mut [Op], origin: usize, target: usize, number: u64, now: Moment) {
    let token = ops
        .iter_mut()
        .rev()
        .find(|op| op.is_of(origin, target) && op.what == What::Token { number });
    let token = token.unwrap_or_else(|| panic!("nobody sent token {number}"));
    token.over = token.over.min(now);
}
