//! The agreement of all that must have a record.
//!
//! The journal's own files are one of them. Others are members: stores of standby servers, which confirm what they have. The marks
//! of a store are the least of all of them. While there is no member they are those of the journal's files.
//!
//! Invariants
//! * a mark never moves back: it stands until a new member has all that is agreed;
//! * a member holds the marks back until it confirms or is dismissed, whatever becomes of it;
//! * nothing is agreed that the journal's own files lack.

use std::cell::RefCell;
use std::collections::BTreeMap;

use crate::error::StoreError;
use crate::marks::{Mark, Position};

/// The number of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member(pub u32);

/// How far a store has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reach {
    /// Everything up to here survives the death of its process.
    pub written: Position,
    /// Everything up to here survives a power loss.
    pub durable: Position,
}

impl Reach {
    /// As far as both have come.
    fn least(self, other: Reach) -> Reach {
        Reach { written: self.written.min(other.written), durable: self.durable.min(other.durable) }
    }

    /// As far as one of them has come.
    fn most(self, other: Reach) -> Reach {
        Reach { written: self.written.max(other.written), durable: self.durable.max(other.durable) }
    }
}

/// The marks that all agree on.
pub(crate) struct Agreement {
    pub written: Mark,
    pub durable: Mark,
    state: RefCell<State>,
}

struct State {
    own: Reach,
    members: BTreeMap<Member, Reach>,
}

impl Agreement {
    /// One without members: the store has everything up to `last`, durably.
    pub fn new(last: Position) -> Agreement {
        let own = Reach { written: last, durable: last };
        let state = RefCell::new(State { own, members: BTreeMap::new() });
        Agreement { written: Mark::new(last), durable: Mark::new(last), state }
    }

    /// The store's own files have come so far.
    pub fn note_own(&self, reach: Reach) {
        let mut state = self.state.borrow_mut();
        state.own = state.own.most(reach);
        drop(state);
        self.settle();
    }

    /// A member says how far it has come. One that is none is not heard.
    pub fn confirm(&self, member: Member, reach: Reach) {
        let mut state = self.state.borrow_mut();
        let Some(known) = state.members.get_mut(&member) else { return };
        *known = known.most(reach);
        drop(state);
        self.settle();
    }

    /// Makes a store a member. If it lacks something that is agreed, the marks stand until it has that.
    pub fn admit(&self, member: Member, reach: Reach) {
        let mut state = self.state.borrow_mut();
        let known = state.members.entry(member).or_default();
        *known = known.most(reach);
    }

    /// A member begins anew, and says again how far it has come: it may have lost something.
    pub fn begin_anew(&self, member: Member) {
        if let Some(known) = self.state.borrow_mut().members.get_mut(&member) {
            *known = Reach::default();
        }
    }

    /// Whether a store is a member.
    pub fn is_member(&self, member: Member) -> bool {
        self.state.borrow().members.contains_key(&member)
    }

    /// Whether a member has all that is agreed.
    pub fn has_all(&self, member: Member) -> bool {
        self.state.borrow().members.get(&member).is_some_and(|reach| {
            reach.written >= self.written.get() && reach.durable >= self.durable.get()
        })
    }

    /// Goes on without a member.
    pub fn dismiss(&self, member: Member) {
        self.state.borrow_mut().members.remove(&member);
        self.settle();
    }

    /// The members, and how far each has come.
    pub fn members(&self) -> Vec<(Member, Reach)> {
        self.state.borrow().members.iter().map(|(member, reach)| (*member, *reach)).collect()
    }

    pub fn fail(&self, error: &StoreError) {
        self.written.fail(error.stopped());
        self.durable.fail(error.stopped());
    }

    fn settle(&self) {
        let state = self.state.borrow();
        let agreed = state.members.values().fold(state.own, |least, reach| least.least(*reach));
        drop(state);
        self.written.advance(agreed.written);
        self.durable.advance(agreed.durable);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reach(written: u64, durable: u64) -> Reach {
        Reach { written: Position(written), durable: Position(durable) }
    }

    fn marks(agreement: &Agreement) -> (u64, u64) {
        (agreement.written.get().0, agreement.durable.get().0)
    }

    #[test]
    fn marks_are_the_least_of_all_and_never_move_back() {
        let agreement = Agreement::new(Position(4));
        agreement.note_own(reach(9, 6));
        assert_eq!(marks(&agreement), (9, 6), "alone, the own files count");
        let (one, two) = (Member(1), Member(2));
        agreement.admit(one, reach(8, 8));
        assert!(!agreement.has_all(one), "it lacks record 9");
        agreement.note_own(reach(10, 7));
        assert_eq!(marks(&agreement), (9, 7), "they stand until it has all");
        agreement.confirm(one, reach(9, 7));
        agreement.admit(two, reach(9, 6));
        assert!(!agreement.has_all(two), "record 7 would not survive at it");
        agreement.confirm(two, reach(9, 9));
        assert!(agreement.has_all(one) && agreement.has_all(two));
        agreement.note_own(reach(20, 20));
        assert_eq!(marks(&agreement), (9, 8));
        agreement.confirm(one, reach(12, 8));
        assert_eq!(marks(&agreement), (9, 8), "the other one has not moved");
        agreement.confirm(two, reach(30, 12));
        agreement.confirm(one, reach(10, 3));
        assert_eq!(marks(&agreement), (12, 8), "a late word takes nothing back");
        agreement.confirm(one, reach(30, 30));
        assert_eq!(marks(&agreement), (20, 12), "nothing is agreed that the own files lack");
        agreement.begin_anew(one);
        assert!(!agreement.has_all(one));
        agreement.confirm(one, reach(30, 30));
        agreement.dismiss(two);
        assert_eq!(marks(&agreement), (20, 20));
        agreement.confirm(two, reach(1, 1));
        assert_eq!(agreement.members(), [(one, reach(30, 30))], "one that left is not heard");
    }
}
