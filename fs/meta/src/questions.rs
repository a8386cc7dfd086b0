//! Locks that were given up and whose release may still be on its way: the holder of a lock that is in the
//! way is asked before the other request is refused.
//!
//! A program that closes a file does not wait until its client has told of it. Another program, which
//! knows that the file was closed, must find it unlocked.
//!
//! Invariants: one question at a time to a session about an inode; a call is refused only after an
//! answer to a question that was asked when the call was there, or after [`PATIENCE`]; an entry is
//! forgotten once nobody can wait for it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_wire::fs::meta::Callback;

/// The time limit of a session's answer. The locks of a session that stands still, or died, stay.
const PATIENCE: Duration = Duration::from_millis(500);

#[derive(Debug, Clone, Copy)]
struct Question {
    /// The newest call that was there when it was asked.
    number: u64,
    asked: Time,
    /// Calls up to this one know the truth.
    answered: u64,
    pending: bool,
}

/// Questions by inode and session.
#[derive(Debug, Default)]
pub struct Questions {
    questions: BTreeMap<(u64, u64), Question>,
}

impl Questions {
    /// Whether `call` has to wait for an answer of `session`, which holds a lock that is in its way. `newest`
    /// is the newest call that is there.
    pub fn ask(
        &mut self,
        (inode, session): (u64, u64),
        (call, newest): (u64, u64),
        now: Time,
        out: &mut VecDeque<(u64, Callback)>,
    ) -> bool {
        let none = Question { number: 0, asked: now, answered: 0, pending: false };
        let question = self.questions.entry((inode, session)).or_insert(none);
        if question.answered >= call {
            return false;
        }
        if question.pending {
            return now < question.asked + PATIENCE;
        }
        *question = Question { number: newest, asked: now, pending: true, ..*question };
        out.push_back((session, Callback::TellUnlocked { inode, number: newest }));
        true
    }

    /// The session answered a question.
    pub fn told(&mut self, inode: u64, session: u64, number: u64) {
        if let Some(question) = self.questions.get_mut(&(inode, session)) {
            question.answered = question.answered.max(number);
            question.pending &= question.number > number;
        }
    }

    /// Inodes for whose locks some call waited long enough; forgets entries that nobody waits for.
    pub fn overdue(&mut self, now: Time) -> Vec<u64> {
        self.questions.retain(|_, question| {
            // Kept longer than it is waited for: a session that does not answer is not asked anew by
            // each call.
            now < question.asked + PATIENCE * if question.pending { 20 } else { 1 }
        });
        let late = |question: &Question| question.pending && now >= question.asked + PATIENCE;
        let late = self.questions.iter().filter(|(_, question)| late(question));
        late.map(|((inode, _), _)| *inode).collect()
    }

    /// A session ended.
    pub fn forget(&mut self, session: u64) {
        self.questions.retain(|(_, other), _| *other != session);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_waits_for_an_answer_to_a_question_that_came_after_it() {
        let (mut questions, mut out) = (Questions::default(), VecDeque::new());
        let at = |milliseconds| Time::ZERO + Duration::from_millis(milliseconds);
        assert!(questions.ask((9, 1), (5, 5), at(0), &mut out));
        assert_eq!(out.pop_front(), Some((1, Callback::TellUnlocked { inode: 9, number: 5 })));
        // One question at a time.
        assert!(questions.ask((9, 1), (7, 7), at(1), &mut out) && out.is_empty());
        questions.told(9, 1, 5);
        assert!(!questions.ask((9, 1), (5, 7), at(2), &mut out));
        // A call that came after the question asks anew.
        assert!(questions.ask((9, 1), (7, 8), at(2), &mut out));
        assert_eq!(out.pop_front(), Some((1, Callback::TellUnlocked { inode: 9, number: 8 })));
        // A session that does not answer is waited for a moment, once.
        assert!(questions.overdue(at(100)).is_empty());
        assert_eq!(questions.overdue(at(600)), [9]);
        assert!(!questions.ask((9, 1), (7, 8), at(600), &mut out));
        assert!(!questions.ask((9, 1), (9, 9), at(700), &mut out) && out.is_empty());
        questions.forget(1);
        assert!(questions.questions.is_empty());
    }
}
