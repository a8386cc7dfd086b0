//! Memory of this process that windows expose, and who executes their accumulates.
//!
//! Each implementation has an executor of its own: the endpoint's, the team's, or the origins under a lock word of the window. Two
//! that change one element do not see each other's stores, so memory has one of them at a time (R12). The process can see that for
//! memory of its own, whichever team exposes it; it cannot see that another process maps the same pages. Two windows whose origins
//! reduce are let through, although each has a lock word: MPI leaves accesses through both at once undefined.

use std::ops::Range;
use std::sync::{Mutex, PoisonError};

use ropewalk_base::memory::Cells;

use crate::error::BadArgument;
use crate::options::Implementation;

static CLAIMED: Mutex<Claimed> = Mutex::new(Claimed { next: 0, claims: Vec::new() });

#[derive(Debug)]
struct Claimed {
    next: u64,
    claims: Vec<(u64, Range<usize>, Executor)>,
}

/// The executor of accumulates on some memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Executor {
    pub implementation: Implementation,
    /// Of the endpoint, or of the team.
    pub number: usize,
}

impl Claimed {
    fn add(&mut self, range: Range<usize>, by: Executor) -> Result<u64, BadArgument> {
        let is_other = |(_, of, other): &&(u64, Range<usize>, Executor)| {
            *other != by && of.start < range.end && range.start < of.end
        };
        if let Some((_, of, other)) = self.claims.iter().find(is_other) {
            let bytes = of.end.min(range.end) - of.start.max(range.start);
            return Err(BadArgument::Regime { bytes, other: other.implementation });
        }
        self.next += 1;
        self.claims.push((self.next, range, by));
        Ok(self.next)
    }
}

/// Memory that a window exposes, until this is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    number: Option<u64>,
}

impl Claim {
    /// For a window with this executor.
    ///
    /// # Errors
    /// A window with another one exposes some of it.
    pub fn new(cells: &Cells, range: &Range<usize>, by: Executor) -> Result<Claim, BadArgument> {
        if range.is_empty() {
            return Ok(Claim { number: None });
        }
        let address = cells.address().addr();
        let range = address + range.start..address + range.end;
        let mut claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Claim { number: Some(claimed.add(range, by)?) })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut claimed = CLAIMED.lock().unwrap_or_else(PoisonError::into_inner);
        claimed.claims.retain(|(number, ..)| Some(*number) != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Implementation::{Direct, DirectAccumulateAtOrigin, Messages};

    #[test]
    fn memory_has_one_executor_at_a_time() {
        let cells = Cells::zeroed(64);
        let claim = |range: Range<usize>, implementation| {
            Claim::new(&cells, &range, Executor { implementation, number: 1 })
        };
        let first = claim(8..32, Direct).expect("nobody has it");
        let second = claim(0..64, Direct).expect("the executor is the same");
        let bytes_of = |range, by| match claim(range, by) {
            Err(BadArgument::Regime { bytes, other: Direct }) => bytes,
            other => panic!("{other:?}"),
        };
        assert_eq!(bytes_of(31..40, DirectAccumulateAtOrigin), 1);
        drop(second);
        assert_eq!(bytes_of(0..9, Messages), 1);
        let behind = claim(32..64, Messages).expect("they lie side by side");
        assert!(claim(20..20, Messages).is_ok(), "it has no bytes");
        let of_another_team = Executor { implementation: Messages, number: 2 };
        assert!(Claim::new(&cells, &(63..64), of_another_team).is_err(), "it has its own hub");
        drop(first);
        assert!(claim(0..32, DirectAccumulateAtOrigin).is_ok() && claim(0..33, Direct).is_err());
        drop(behind);
    }
}
