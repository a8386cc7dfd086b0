//! Operations of ours with numbers, until the peer has told that they are applied.

use std::collections::VecDeque;

use super::taken::TOKENS_MAX;
use super::{NUMBERS_MAX, Pieces};
use crate::api::OperationId;

/// Numbers that are open before the peer is asked to tell of operations that nobody waits for.
const UNTOLD_MAX: usize = NUMBERS_MAX as usize / 4;

/// The operation behind a number, or a piece of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Issue {
    pub operation: OperationId,
    pub bytes: u32,
    /// Of an update: where these bytes begin in the whole.
    pub within: u32,
    pub class: Class,
    /// It is over once its own answer is here: a mark may overtake that.
    pub fetches: bool,
    /// The layout that it names.
    pub layout: Option<u8>,
}

impl Issue {
    /// Whether its answer has elements.
    pub fn awaits_elements(&self) -> bool {
        self.fetches && self.bytes > 0
    }

    /// A piece of a put.
    pub fn put(operation: OperationId, bytes: u32) -> Issue {
        Issue { operation, bytes, within: 0, class: Class::Put, fetches: false, layout: None }
    }
}

/// The classes of operations with numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Put,
    /// Updates and atomics take effect in their order: MPI's accumulate family.
    Update,
    Atomic,
    Token,
}

#[derive(Debug, Default)]
pub(crate) struct Issued {
    /// All numbers up to this one are applied, as the peer has told.
    applied: u64,
    /// The operations behind the numbers above. `None`: that one is over.
    open: VecDeque<Option<Issue>>,
    /// Numbers that are applied and whose answers are on their way.
    answered: VecDeque<(u64, Issue)>,
    /// Open updates and atomics. They are all of one class.
    ordered: u32,
    class: Option<Class>,
    /// Open tokens.
    tokens: u32,
    /// [`Plant::OrderLost`](crate::Plant::OrderLost).
    pub is_order_lost: bool,
}

impl Issued {
    /// The number that was given last.
    fn last(&self) -> u64 {
        self.applied + self.open.len() as u64
    }

    /// Whether so many further operations may begin.
    pub fn has_room(&self, count: u64) -> bool {
        self.open.len() as u64 + count <= NUMBERS_MAX
    }

    /// Whether an operation of this class takes effect after all before it that it has to follow. Frames of a class keep
    /// their order where `in_order`.
    pub fn follows(&self, class: Class, in_order: bool) -> bool {
        match class {
            Class::Put => true,
            Class::Token => self.tokens < TOKENS_MAX,
            _ if self.is_order_lost => true,
            class => self.ordered == 0 || (in_order && self.class == Some(class)),
        }
    }

    /// Whether the peer is to be asked what is applied, although nobody waits for it.
    pub fn are_many(&self) -> bool {
        self.open.len() >= UNTOLD_MAX || self.tokens >= TOKENS_MAX / 2
    }

    /// Gives numbers to the pieces of a put. Returns the first one.
    pub fn issue_all(&mut self, operation: OperationId, pieces: Pieces) -> u64 {
        let first = self.last() + 1;
        for piece in pieces {
            self.issue(Issue::put(operation, piece.bytes));
        }
        first
    }

    /// Gives the next number.
    pub fn issue(&mut self, issue: Issue) -> u64 {
        debug_assert!(self.has_room(1), "no peer keeps more numbers apart");
        match issue.class {
            Class::Put => {}
            Class::Token => self.tokens += 1,
            class => (self.ordered, self.class) = (self.ordered + 1, Some(class)),
        }
        self.open.push_back(Some(issue));
        self.last()
    }

    /// Whether the peer can know of this number.
    pub fn was_given(&self, number: u64) -> bool {
        number <= self.last()
    }

    /// All numbers up to this one are applied. The next operation that is over by that, and whether it is the last one.
    pub fn next_applied(&mut self, through: u64) -> Option<(Issue, bool)> {
        while self.applied < through {
            let issue = self.open.pop_front()?;
            self.applied += 1;
            let Some(issue) = issue else { continue };
            self.is_over(issue);
            match issue.fetches {
                true => self.answered.push_back((self.applied, issue)),
                false => return Some((issue, self.applied == through)),
            }
        }
        None
    }

    /// An operation is over before others with lower numbers are. `None` where that was known.
    pub fn end(&mut self, number: u64) -> Option<Issue> {
        let Some(at) = number.checked_sub(self.applied + 1) else {
            let at = self.answered.iter().position(|it| it.0 == number)?;
            return self.answered.remove(at).map(|it| it.1);
        };
        let issue = self.open.get_mut(usize::try_from(at).ok()?)?.take()?;
        self.is_over(issue);
        Some(issue)
    }

    fn is_over(&mut self, issue: Issue) {
        match issue.class {
            Class::Put => {}
            Class::Token => self.tokens -= 1,
            Class::Update | Class::Atomic => self.ordered -= 1,
        }
    }

    /// Gives a number to something that takes effect after all before it, and that nobody waits for.
    pub fn issue_token(&mut self, operation: OperationId) -> u64 {
        self.issue(Issue { class: Class::Token, ..Issue::put(operation, 0) })
    }

    /// The open operation with a number.
    pub fn get(&self, number: u64) -> Option<Issue> {
        let Some(at) = number.checked_sub(self.applied + 1) else {
            return self.answered.iter().find(|it| it.0 == number).map(|it| it.1);
        };
        *self.open.get(usize::try_from(at).ok()?)?
    }

    /// Gives up the numbers of an operation that are not over, from `from` on: the first ones of runs, and their lengths.
    pub fn give_up(&mut self, operation: OperationId, from: u64) -> Vec<(u64, u32)> {
        let mut runs = Vec::<(u64, u32)>::new();
        for (at, issue) in self.open.iter_mut().enumerate() {
            let number = self.applied + 1 + at as u64;
            let issue = issue.as_mut().filter(|it| it.operation == operation && number >= from);
            let Some(issue) = issue else { continue };
            // There may be no answer to it.
            issue.fetches = false;
            match runs.last_mut().filter(|run| run.0 + u64::from(run.1) == number) {
                Some(run) => run.1 += 1,
                None => runs.push((number, 1)),
            }
        }
        runs
    }

    /// Whether the peer has told of all.
    pub fn is_settled(&self) -> bool {
        self.open.is_empty() && self.answered.is_empty()
    }

    /// The operations that are not over, with their bytes.
    pub fn iter(&self) -> impl Iterator<Item = Issue> {
        let answered = self.answered.iter().map(|it| it.1);
        self.open.iter().filter_map(|issue| *issue).chain(answered)
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_base::slots::SlotId;

    use super::*;

    fn issue(operation: u32) -> Issue {
        let operation = OperationId(SlotId { index: operation, generation: 1 });
        Issue::put(operation, 9)
    }

    #[test]
    fn operations_are_over_once_by_a_mark_or_by_a_word_of_their_own() {
        let mut issued = Issued::default();
        assert_eq!([1, 2, 2, 2, 3].map(|it| issued.issue(issue(it))), [1, 2, 3, 4, 5]);
        assert!(issued.was_given(5) && !issued.was_given(6));
        assert_eq!(issued.give_up(issue(2).operation, 0), [(2, 3)]);
        assert_eq!((issued.get(3), issued.get(0), issued.get(6)), (Some(issue(2)), None, None));
        assert_eq!(issued.end(3), Some(issue(2)));
        assert_eq!(issued.give_up(issue(2).operation, 0), [(2, 1), (4, 1)]);
        assert_eq!(issued.give_up(issue(2).operation, 3), [(4, 1)]);
        assert_eq!((issued.end(3), issued.end(0), issued.end(6)), (None, None, None));
        assert_eq!(issued.next_applied(4), Some((issue(1), false)));
        assert_eq!(issued.next_applied(4), Some((issue(2), false)));
        assert_eq!(issued.next_applied(4), Some((issue(2), true)));
        assert_eq!(issued.next_applied(4), None);
        assert_eq!(issued.next_applied(2), None, "an old mark");
        assert_eq!(issued.give_up(issue(2).operation, 0), []);
        assert!(!issued.is_settled());
        assert_eq!(issued.end(5), Some(issue(3)));
        assert_eq!(issued.next_applied(5), None);
        assert!(issued.is_settled());
        assert_eq!(issued.issue(issue(4)), 6);
    }

    #[test]
    fn who_fetches_waits_for_its_own_answer() {
        let of = |fetches| Issue { class: Class::Update, fetches, ..issue(1) };
        let mut issued = Issued::default();
        issued.issue(of(true));
        issued.issue(of(false));
        issued.issue(of(true));
        assert_eq!(issued.next_applied(3), Some((of(false), false)));
        assert_eq!(issued.next_applied(3), None);
        assert!(issued.follows(Class::Atomic, false), "all of them are applied");
        assert_eq!(
            (issued.get(1), issued.get(2), issued.get(3)),
            (Some(of(true)), None, Some(of(true)))
        );
        assert_eq!(
            (issued.end(3), issued.end(3), issued.is_settled()),
            (Some(of(true)), None, false)
        );
        assert_eq!((issued.end(1), issued.is_settled()), (Some(of(true)), true));
    }

    #[test]
    fn updates_and_atomics_follow_each_other_and_tokens_are_few() {
        let of = |class| Issue { class, ..issue(1) };
        let mut issued = Issued::default();
        assert!(issued.follows(Class::Update, false) && issued.follows(Class::Atomic, false));
        issued.issue(of(Class::Update));
        issued.issue(of(Class::Put));
        assert!(issued.follows(Class::Update, true) && !issued.follows(Class::Update, false));
        assert!(!issued.follows(Class::Atomic, true) && issued.follows(Class::Put, false));
        issued.end(1);
        assert!(issued.follows(Class::Atomic, false), "none before it is open");
        for _ in 0..TOKENS_MAX {
            assert!(issued.follows(Class::Token, false));
            issued.issue(of(Class::Token));
        }
        assert!(!issued.follows(Class::Token, true));
        assert!(issued.next_applied(3).is_some() && issued.next_applied(3).is_some());
        assert!(issued.follows(Class::Token, true));
    }

    #[test]
    fn no_more_numbers_are_open_than_a_peer_keeps_apart() {
        let mut issued = Issued::default();
        (0..NUMBERS_MAX).for_each(|it| {
            issued.issue(issue(it as u32));
        });
        assert!(issued.has_room(0) && !issued.has_room(1));
        assert!(issued.end(7).is_some() && !issued.has_room(1), "a lower one lacks");
        assert!(issued.next_applied(1).is_some() && issued.has_room(1) && !issued.has_room(2));
    }
}
