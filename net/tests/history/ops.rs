//! Operations as they were posted and as they ended: what the checks judge.

use ropewalk_net::Fault;

use super::setting::NODES;

/// A moment of a run: each post, and each completion that is seen, has one of its own.
pub type Moment = u64;
pub const NEVER: Moment = Moment::MAX;

/// Puts of a frame with records.
pub const RECORDS_MAX: usize = 3;

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
    /// Puts of whole cells, in one frame.
    Records {
        puts: [Option<(usize, u8)>; RECORDS_MAX],
    },
    /// A put of a whole cell that raises the origin's word at the target as a token does. `applied`: it completes then.
    Notify {
        cell: usize,
        version: u8,
        number: u64,
        applied: bool,
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
    /// A put under the lock, if that is free; else the lock. It writes a cell and shares the lock, or has it alone and writes
    /// the word that the lock protects.
    LockedPut {
        what: UnderLock,
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

/// What a put under a lock writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnderLock {
    Cell { cell: usize, version: u8 },
    Word { value: u64 },
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Got {
    Nothing,
    /// A token: somebody saw this very one.
    Seen,
    /// A put under a lock: the lock was free.
    Put,
    /// It was not, and is the origin's now.
    Lock,
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
        let is_unknown = match self.what {
            What::Notify { applied: false, .. } => self.got != Got::Seen,
            _ => false,
        };
        self.outcome == Some(Ok(())) && !is_unknown
    }

    /// The version of a cell that it puts, or may have put.
    pub fn version_of(&self, cell: usize) -> Option<u8> {
        let is_it = |it: usize, version: u8| (it == cell).then_some(version);
        match self.what {
            What::Put { cell: it, version } | What::Notify { cell: it, version, .. } => {
                is_it(it, version)
            }
            What::Records { puts } => {
                puts.iter().flatten().find_map(|(it, version)| is_it(*it, *version))
            }
            What::LockedPut { what: UnderLock::Cell { cell: it, version } } => {
                is_it(it, version).filter(|_| self.got != Got::Lock)
            }
            _ => None,
        }
    }

    /// The number of the token that it is.
    pub fn token(&self) -> Option<u64> {
        match self.what {
            What::Token { number } | What::Notify { number, .. } => Some(number),
            _ => None,
        }
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
                if op.token().is_some() {
                    let is_told = matches!(op.what, What::Notify { applied: true, .. });
                    let ended = if is_told && op.is_certain() { op.ended } else { NEVER };
                    // One that was told as applied came after all before it, too.
                    seen = seen.min(op.over).min(ended);
                    op.over = seen;
                    continue;
                }
                // Tokens do not wait for those.
                let seen = if let What::LockedPut { .. } = op.what { NEVER } else { seen };
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
    let is_it = |op: &&mut Op| op.is_of(origin, target) && op.token() == Some(number);
    let token = ops.iter_mut().rev().find(is_it);
    let token = token.unwrap_or_else(|| panic!("nobody sent token {number}"));
    token.over = token.over.min(now);
    if let What::Notify { .. } = token.what {
        token.got = Got::Seen;
    }
}
