//! The checking mode of a window: operations of one epoch that get into each other's way, and assertions that are untrue, as far
//! as one rank can know. No input, no output.
//!
//! Each operation is kept until it is complete: its bytes at the target, and those of this rank's memory that it reads or
//! writes. A new one is compared with all that are kept.
//!
//! Invariants
//! * No operation is reported that MPI allows: bytes are compared piece by piece.
//! * Bounded memory: at most 4,096 operations are kept, with 65,536 pieces. The oldest ones go first, and those with too many
//!   pieces are never kept. They are counted.

use std::collections::VecDeque;
use std::ops::Range;

use ropewalk_base::descriptor::Piece;
use ropewalk_base::memory::{Element, Operator};

use crate::asserts::Asserts;
use crate::conflict::{Clash, Conflict, Described, Kind};
use crate::epochs::Call;
use crate::operation::{Bytes, Operation, Verb};

const OPERATIONS_MAX: usize = 4096;
const PIECES_MAX: usize = 1 << 16;
/// Of one operation.
const PIECES_EACH: usize = 4096;

/// Bytes, sorted and apart.
#[derive(Debug, Default)]
struct Spans(Vec<Range<i64>>);

impl Spans {
    /// Those of pieces that count from an address; `None`: they are too many.
    fn new(base: i64, pieces: impl Iterator<Item = Piece>) -> Option<Spans> {
        let mut spans: Vec<Range<i64>> = Vec::new();
        let mut sorted = true;
        for piece in pieces {
            let start = base.wrapping_add(piece.offset);
            let span = start..start.saturating_add(piece.bytes as i64);
            match spans.last_mut() {
                Some(last) if last.end == span.start => last.end = span.end,
                last => {
                    sorted &= last.is_none_or(|last| last.end < span.start);
                    if spans.len() == PIECES_EACH {
                        return None;
                    }
                    spans.push(span);
                }
            }
        }
        if !sorted {
            spans.sort_unstable_by_key(|span| span.start);
            spans.dedup_by(|next, last| {
                let joins = next.start <= last.end;
                if joins {
                    last.end = last.end.max(next.end);
                }
                joins
            });
        }
        Some(Spans(spans))
    }

    fn all(&self) -> Range<i64> {
        let end = |it: Option<&Range<i64>>| it.cloned().unwrap_or(0..0);
        end(self.0.first()).start..end(self.0.last()).end
    }

    /// The first bytes that both have.
    fn common(&self, other: &Spans) -> Option<Range<i64>> {
        let (own, its) = (self.all(), other.all());
        if own.start >= its.end || its.start >= own.end {
            return None;
        }
        let (mut one, mut two) = (self.0.iter().peekable(), other.0.iter().peekable());
        loop {
            let (a, b) = (one.peek()?, two.peek()?);
            let both = a.start.max(b.start)..a.end.min(b.end);
            if both.start < both.end {
                return Some(both);
            }
            if a.end <= b.end {
                one.next();
            } else {
                two.next();
            }
        }
    }
}

/// An operation that is not complete.
#[derive(Debug)]
struct Kept {
    number: u64,
    kind: Kind,
    rank: u32,
    target: Spans,
    /// The memory of this rank that it reads, and that it writes. Empty, when it is complete here.
    reads: Spans,
    writes: Spans,
}

impl Kept {
    /// `None`: it has too many pieces.
    fn new(number: u64, operation: &Operation<'_>) -> Option<Kept> {
        let target = Spans::new(operation.address, operation.pieces())?;
        let nothing = Some(Spans::default());
        let (kind, source, result) = match operation.verb {
            Verb::Put(source) => (Kind::Put, Some(source), None),
            Verb::Get(result) => (Kind::Get, None, Some(result)),
            Verb::Update { update, element, source, result } => {
                let operator = update.operator();
                let kind = Kind::Update { element, operator, fetches: result.is_some() };
                (kind, Some(source).filter(|_| operator != Operator::Nothing), result)
            }
            Verb::Swap { element, result, .. } => (Kind::Swap { element }, None, Some(result)),
        };
        let reads = match source.map(|it| (it, it.bytes)) {
            Some((source, Bytes::Cells(cells, at))) => {
                Spans::new(address(cells.address(), at), source.pieces())
            }
            _ => nothing,
        };
        let writes = match result {
            Some(to) => Spans::new(address(to.cells.address(), to.at), to.pieces()),
            None => Some(Spans::default()),
        };
        Some(Kept { number, kind, rank: operation.rank, target, reads: reads?, writes: writes? })
    }

    fn described(&self) -> Described {
        Described { kind: self.kind, rank: self.rank, bytes: self.target.all() }
    }

    fn pieces(&self) -> usize {
        self.target.0.len() + self.reads.0.len() + self.writes.0.len()
    }

    /// What this one and an earlier one do to each other, and at which bytes.
    fn clash(&self, earlier: &Kept, same_op: bool) -> Option<(Clash, Range<i64>)> {
        let own = [
            (&self.writes, &earlier.reads),
            (&self.writes, &earlier.writes),
            (&self.reads, &earlier.writes),
        ];
        if let Some(bytes) = own.iter().find_map(|(one, other)| one.common(other)) {
            return Some((Clash::Local, bytes));
        }
        if self.rank != earlier.rank {
            return None;
        }
        let bytes = self.target.common(&earlier.target)?;
        let clash = match (self.kind.reduces(), earlier.kind.reduces()) {
            _ if self.kind.only_reads() && earlier.kind.only_reads() => return None,
            (Some((element, operator)), Some((its_element, its_operator))) => {
                let starts = self.target.all().start - earlier.target.all().start;
                let is_one = self.target.0.len() == 1 && earlier.target.0.len() == 1;
                let is_read = |it| it == Some(Operator::Nothing);
                if element != its_element {
                    Clash::Types
                } else if is_one && starts % element.shape().extent as i64 != 0 {
                    Clash::Parts
                } else if same_op
                    && operator != its_operator
                    && !is_read(operator)
                    && !is_read(its_operator)
                {
                    Clash::Operators
                } else {
                    return None;
                }
            }
            _ => Clash::Target,
        };
        Some((clash, bytes))
    }
}

impl Kind {
    /// The element and the operator of an accumulate; a swap has one of its own.
    fn reduces(self) -> Option<(Element, Option<Operator>)> {
        match self {
            Kind::Update { element, operator, .. } => Some((element, Some(operator))),
            Kind::Swap { element } => Some((element, None)),
            Kind::Put | Kind::Get => None,
        }
    }

    fn only_reads(self) -> bool {
        matches!(self, Kind::Get | Kind::Update { operator: Operator::Nothing, .. })
    }
}

fn address(base: *mut u8, at: usize) -> i64 {
    (base.addr() as i64).wrapping_add(at as i64)
}

/// The checks of one window at one rank.
#[derive(Debug)]
pub(crate) struct Checks {
    rank: u32,
    same_op: bool,
    kept: VecDeque<Kept>,
    pieces: usize,
    next: u64,
    /// Operations that were not compared with all that they might clash with.
    unchecked: u64,
    /// What the last fence said, and the last post.
    no_succeed: bool,
    fence_no_put: bool,
    post_no_put: bool,
}

impl Checks {
    pub fn new(rank: u32, same_op: bool) -> Checks {
        Checks {
            rank,
            same_op,
            kept: VecDeque::new(),
            pieces: 0,
            next: 0,
            unchecked: 0,
            no_succeed: false,
            fence_no_put: false,
            post_no_put: false,
        }
    }

    /// From now on all accumulates at a place use one operator, or not.
    pub fn set_same_op(&mut self, same_op: bool) {
        self.same_op = same_op;
    }

    /// Looks at an operation, and keeps it. Gives its number.
    ///
    /// # Errors
    /// It goes not together with another one, or an assertion is untrue. It is not kept.
    pub fn operate(&mut self, operation: &Operation<'_>) -> Result<u64, Conflict> {
        let number = self.next;
        self.next += 1;
        let Some(new) = Kept::new(number, operation) else {
            self.unchecked += 1;
            return Ok(number);
        };
        let is_denied = self.fence_no_put || self.post_no_put;
        if is_denied && new.rank == self.rank && !new.kind.only_reads() {
            return Err(Conflict::WritesHere(new.described()));
        }
        for earlier in &self.kept {
            if let Some((clash, bytes)) = new.clash(earlier, self.same_op) {
                let (earlier, later) = (earlier.described(), new.described());
                return Err(Conflict::Operations { clash, earlier, later, bytes });
            }
        }
        self.pieces += new.pieces();
        self.kept.push_back(new);
        while self.kept.len() > OPERATIONS_MAX || self.pieces > PIECES_MAX {
            let oldest = self.kept.pop_front();
            self.pieces -= oldest.map_or(0, |it| it.pieces());
            self.unchecked += 1;
        }
        Ok(number)
    }

    /// An operation without an epoch: whether the last fence said that none comes.
    pub fn succeeds(&self, operation: &Operation<'_>) -> Option<Conflict> {
        let new = Kept::new(0, operation).filter(|_| self.no_succeed)?;
        Some(Conflict::Succeeds(new.described()))
    }

    /// Operations on a rank, or on all, are complete here, and with `at_target` there, too.
    pub fn complete(&mut self, rank: Option<u32>, at_target: bool) {
        let is_of = |it: &Kept| rank.is_none_or(|rank| rank == it.rank);
        if at_target {
            self.kept.retain(|it| !is_of(it));
        } else {
            self.kept.iter_mut().filter(|it| is_of(it)).for_each(Kept::end_here);
        }
        self.pieces = self.kept.iter().map(Kept::pieces).sum();
    }

    /// One operation is complete here.
    pub fn complete_one(&mut self, number: u64) {
        if let Some(it) = self.kept.iter_mut().find(|it| it.number == number) {
            let before = it.pieces();
            it.end_here();
            self.pieces -= before - it.pieces();
        }
    }

    /// A fence is over.
    pub fn fenced(&mut self, asserts: Asserts) {
        self.complete(None, true);
        self.no_succeed = asserts.has(Asserts::NO_SUCCEED);
        self.fence_no_put = asserts.has(Asserts::NO_PUT);
    }

    /// An epoch of another kind begins.
    pub fn begin(&mut self) {
        (self.no_succeed, self.fence_no_put) = (false, false);
    }

    /// This rank is exposed.
    pub fn posted(&mut self, asserts: Asserts) {
        self.post_no_put = asserts.has(Asserts::NO_PUT);
    }

    /// It is not any more.
    pub fn waited(&mut self) {
        self.post_no_put = false;
    }

    /// The window is freed within an epoch.
    pub fn freed(&self, open: Call, ranks: Vec<u32>) -> Conflict {
        let (pending, last) = (self.kept.len(), self.kept.back().map(Kept::described));
        Conflict::Free { open, ranks, pending, last }
    }

    /// See [`Window::unchecked`](crate::Window::unchecked).
    pub fn unchecked(&self) -> u64 {
        self.unchecked
    }
}

impl Kept {
    fn end_here(&mut self) {
        // A result that is here was read there.
        if self.kind == Kind::Get {
            self.target = Spans::default();
        }
        (self.reads, self.writes) = (Spans::default(), Spans::default());
    }
}

#[cfg(test)]
mod tests;
