//! The locks that processes of this host hold through the mount, as far as this mount knows.
//!
//! The kernel names locks by their owners, and says little about their ends:
//! * a POSIX owner (the descriptors of a process) loses all its byte-range locks on an inode with every
//!   close of a descriptor of it: the kernel sends FLUSH with the owner, for each close of each process,
//!   whether it ever locked or not;
//! * an OFD owner and a BSD owner is an open file description: its locks end with the last close, whose
//!   RELEASE names the handle; of OFD locks the kernel says nothing more.
//!
//! Invariants
//! * an owner that is not here holds nothing: neither its FLUSH nor its RELEASE needs a request;
//! * an owner is remembered with each handle through which it locked. When the last of these goes, all
//!   of its locks go. A POSIX owner is no exception: its FLUSH came before, and took it out;
//! * the records are bounded by the kernel's open files: `RANGES_MAX` ranges for each pair of an owner and an
//!   inode, and an entry for each handle through which it locked.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_client::{Errno, LockKind, LockRange, handover};

/// Ranges of one owner on one inode that are told apart; of more it is only known that there are some.
const RANGES_MAX: usize = 64;

/// One owner of locks of one family on one inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Holder {
    pub node: u64,
    /// BSD locks rather than byte ranges: two families with owners of their own.
    pub whole_file: bool,
    pub owner: u64,
}

#[derive(Debug, Default)]
struct Holding {
    /// First and last byte of what it holds, in order, none touching the next.
    ranges: Vec<(u64, u64)>,
    /// It may hold more: a request had no clear end, or there are too many ranges.
    unsure: bool,
    /// Requests under way.
    asking: u32,
    handles: BTreeSet<u64>,
}

/// All owners that hold something, or ask for it.
#[derive(Debug, Default)]
pub(super) struct Held {
    holdings: BTreeMap<Holder, Holding>,
    by_handle: BTreeMap<u64, BTreeSet<Holder>>,
}

impl Held {
    /// All owners that hold something, for another process. Requests under way go along apart from them.
    pub fn to_state(&self) -> Vec<handover::Holder> {
        let holds = self.holdings.iter().filter(|(_, it)| it.unsure || !it.ranges.is_empty());
        let state = holds.map(|(holder, holding)| handover::Holder {
            node: holder.node,
            whole_file: holder.whole_file,
            owner: holder.owner,
            ranges: holding.ranges.clone(),
            unsure: holding.unsure,
            handles: holding.handles.iter().copied().collect(),
        });
        state.collect()
    }

    /// The owners of another process.
    pub fn of_state(state: &[handover::Holder]) -> Held {
        let mut held = Held::default();
        for one in state {
            let handover::Holder { node, whole_file, owner, unsure, .. } = *one;
            let holder = Holder { node, whole_file, owner };
            let handles: BTreeSet<u64> = one.handles.iter().copied().collect();
            for handle in &handles {
                held.by_handle.entry(*handle).or_default().insert(holder);
            }
            let mut holding = Holding { handles, unsure, ..Holding::default() };
            one.ranges.iter().for_each(|range| holding.add(*range));
            held.holdings.insert(holder, holding);
        }
        held
    }

    /// Whether the owner may hold anything.
    pub fn holds(&self, holder: Holder) -> bool {
        self.holdings.contains_key(&holder)
    }

    /// The owner asks for something through a handle.
    pub fn ask(&mut self, holder: Holder, handle: u64) {
        let holding = self.holdings.entry(holder).or_default();
        holding.asking += 1;
        holding.handles.insert(handle);
        self.by_handle.entry(handle).or_default().insert(holder);
    }

    /// Records the answer to a lock request of an owner; `None` if nobody waited for it.
    pub fn answered(
        &mut self,
        holder: Holder,
        range: &LockRange,
        answer: Option<Result<(), Errno>>,
    ) {
        // Its handle may be gone, and the owner with it.
        let Some(holding) = self.holdings.get_mut(&holder) else { return };
        holding.asking = holding.asking.saturating_sub(1);
        let span = if holder.whole_file { (0, u64::MAX) } else { (range.start, range.end) };
        match (range.kind, answer) {
            (LockKind::Unlock, Some(Ok(()))) => holding.remove(span),
            (LockKind::Unlock, _) => {}
            (_, Some(Ok(()))) => holding.add(span),
            // Refused, or given up: the owner still holds the locks that it held before.
            (_, Some(Err(Errno::EAGAIN | Errno::EINTR | Errno::EDEADLK))) => {}
            (_, Some(Err(Errno::ENOLCK | Errno::EINVAL))) => {}
            _ => holding.unsure = true,
        }
        self.forget_empty(holder);
    }

    /// The owner holds nothing any more but what it asks for now.
    pub fn gone(&mut self, holder: Holder) {
        let Some(holding) = self.holdings.get_mut(&holder) else { return };
        holding.ranges.clear();
        holding.unsure = false;
        self.forget_empty(holder);
    }

    /// A handle was released: owners whose locks end with that.
    pub fn released(&mut self, handle: u64) -> Vec<Holder> {
        let holders = self.by_handle.remove(&handle).unwrap_or_default();
        let ends = holders.into_iter().filter(|holder| {
            let Some(holding) = self.holdings.get_mut(holder) else { return false };
            holding.handles.remove(&handle);
            holding.handles.is_empty()
        });
        ends.collect()
    }

    fn forget_empty(&mut self, holder: Holder) {
        let Some(holding) = self.holdings.get(&holder) else { return };
        if holding.asking > 0 || holding.unsure || !holding.ranges.is_empty() {
            return;
        }
        for handle in &holding.handles {
            if let Some(holders) = self.by_handle.get_mut(handle) {
                holders.remove(&holder);
                if holders.is_empty() {
                    self.by_handle.remove(handle);
                }
            }
        }
        self.holdings.remove(&holder);
    }
}

impl Holding {
    fn add(&mut self, (mut first, mut last): (u64, u64)) {
        // Neighbours become one.
        self.ranges.retain(|&(from, to)| {
            let apart = to.saturating_add(1) < first || last.saturating_add(1) < from;
            if !apart {
                (first, last) = (first.min(from), last.max(to));
            }
            apart
        });
        let at = self.ranges.partition_point(|range| range.0 < first);
        self.ranges.insert(at, (first, last));
        self.limit();
    }

    fn remove(&mut self, (first, last): (u64, u64)) {
        if (first, last) == (0, u64::MAX) {
            self.ranges.clear();
            // A request that is under way may still take something.
            self.unsure &= self.asking > 0;
            return;
        }
        let mut left = Vec::with_capacity(self.ranges.len() + 1);
        for &(from, to) in &self.ranges {
            if from < first {
                left.push((from, to.min(first - 1)));
            }
            if to > last {
                left.push((from.max(last + 1), to));
            }
        }
        self.ranges = left;
        self.limit();
    }

    fn limit(&mut self) {
        if self.ranges.len() > RANGES_MAX {
            self.unsure = true;
            self.ranges.truncate(RANGES_MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_base::random::Random;

    use super::*;

    const HOLDER: Holder = Holder { node: 7, whole_file: false, owner: 1 };

    fn range(kind: LockKind, start: u64, end: u64) -> LockRange {
        LockRange { kind, whole_file: false, owner: 1, process: 1, start, end }
    }

    fn done(held: &mut Held, kind: LockKind, start: u64, end: u64) {
        held.ask(HOLDER, 5);
        held.answered(HOLDER, &range(kind, start, end), Some(Ok(())));
    }

    #[test]
    fn random_locks_and_unlocks_leave_what_a_table_of_bytes_says() {
        let mut random = Random::from_seed(1);
        let (mut held, mut bytes) = (Held::default(), [false; 64]);
        for _ in 0..20_000 {
            let first = random.below(60);
            let last = first + random.below(64 - first);
            let takes = random.chance(400_000);
            let kind = if takes { LockKind::Exclusive } else { LockKind::Unlock };
            done(&mut held, kind, first, last);
            bytes[first as usize..=last as usize].fill(takes);
            let known = held.holdings.get(&HOLDER).map_or(&[][..], |holding| &holding.ranges);
            let mut seen = [false; 64];
            for &(from, to) in known {
                seen[from as usize..=to as usize].fill(true);
            }
            assert_eq!(seen, bytes);
            assert!(known.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0));
            assert_eq!(held.holds(HOLDER), bytes.contains(&true));
            assert_eq!(held.by_handle.is_empty(), !held.holds(HOLDER));
        }
    }

    #[test]
    fn refusals_leave_nothing_and_doubt_stays() {
        let mut held = Held::default();
        held.ask(HOLDER, 5);
        assert!(held.holds(HOLDER), "it may get what it asks for at any moment");
        held.answered(HOLDER, &range(LockKind::Shared, 0, 9), Some(Err(Errno::EAGAIN)));
        assert!(!held.holds(HOLDER));
        for answer in [None, Some(Err(Errno::EIO))] {
            held.ask(HOLDER, 5);
            held.answered(HOLDER, &range(LockKind::Shared, 0, 9), answer);
            done(&mut held, LockKind::Unlock, 0, 9);
            assert!(held.holds(HOLDER), "more may have been taken than is known");
            done(&mut held, LockKind::Unlock, 0, u64::MAX);
            assert!(!held.holds(HOLDER));
        }
        for at in 0..=2 * RANGES_MAX as u64 {
            done(&mut held, LockKind::Shared, 3 * at, 3 * at);
        }
        assert_eq!(held.holdings[&HOLDER].ranges.len(), RANGES_MAX);
        done(&mut held, LockKind::Unlock, 0, 3 * RANGES_MAX as u64 * 2);
        assert!(held.holds(HOLDER));
        held.gone(HOLDER);
        assert!(!held.holds(HOLDER) && held.by_handle.is_empty());
    }

    #[test]
    fn another_process_knows_the_same_owners() {
        let mut held = Held::default();
        let other = Holder { owner: 2, whole_file: true, ..HOLDER };
        done(&mut held, LockKind::Exclusive, 0, 9);
        done(&mut held, LockKind::Exclusive, 20, 29);
        held.ask(other, 6);
        let state = held.to_state();
        assert_eq!(state.len(), 1, "a request under way is no lock");
        let mut again = Held::of_state(&state);
        assert_eq!(again.to_state(), state);
        assert!(again.holds(HOLDER) && !again.holds(other));
        assert_eq!(again.released(5), [HOLDER]);
    }

    #[test]
    fn locks_end_with_the_last_handle_through_which_they_were_taken() {
        let mut held = Held::default();
        let other = Holder { owner: 2, ..HOLDER };
        for (holder, handle) in [(HOLDER, 5), (HOLDER, 6), (other, 6)] {
            held.ask(holder, handle);
            held.answered(holder, &range(LockKind::Exclusive, 0, 9), Some(Ok(())));
        }
        assert_eq!(held.released(9), []);
        assert_eq!(held.released(6), [other]);
        held.gone(other);
        assert_eq!(held.released(5), [HOLDER]);
        held.gone(HOLDER);
        assert!(held.holdings.is_empty() && held.by_handle.is_empty());
    }
}
