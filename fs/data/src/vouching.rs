//! Questions that only the metadata server can answer: whether a limited session still exists, and which
//! write epoch of a file is right where sessions disagree.
//!
//! A token and a right prove that the metadata server gave them, not that their session goes on. A session
//! that may act for everybody is not asked for, and pays nothing. A limited one is asked for when it first
//! comes, and again while it goes on. Its rights end within `KEPT` of its end, whatever happened to fences
//! and servers meanwhile.
//!
//! Invariants:
//! * one question is under way at a time, however many calls come;
//! * calls that wait for an answer are bounded in number and bytes; others are told to come again;
//! * a server without a metadata server vouches for everybody: it is one of a test.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::task::{Notify, race};
use ropewalk_base::time::Time;
use ropewalk_rpc::{Handler, Incoming, Responder};
use ropewalk_wire::fs::head::Status;
use ropewalk_wire::fs::meta::VOUCHED_MAX;

use crate::membership::Herald;
use crate::server::Inner;

/// The lifetime of an answer; no less than a session's term, through which clients go on by themselves.
const KEPT: Duration = Duration::from_secs(60);
/// The age at which it is asked for anew, without anybody waiting for it.
const FRESH: Duration = Duration::from_secs(30);
/// The time for which a session that does not exist is known as such.
const GONE_KEPT: Duration = Duration::from_secs(10);
/// Sessions that are known: as many as the metadata server has.
const SESSIONS_MAX: usize = 16 * 1024;
/// Questions that wait for the one under way.
const WANTED_MAX: usize = 8 * VOUCHED_MAX;
/// Calls that wait for an answer, and their bytes.
const PARKED_MAX: usize = 1024;
const PARKED_BYTES_MAX: usize = 8 << 20;
/// The pause after a question that got no answer.
const PAUSE: Duration = Duration::from_millis(500);

/// The known state of a limited session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    Lives,
    Gone,
    /// To be asked for.
    Unknown,
}

/// The answers received, and the questions that are still to be asked.
#[derive(Default)]
pub(crate) struct Vouching {
    /// There is a metadata server to ask.
    pub asks: bool,
    /// When each session was last asked for, and whether it was there.
    sessions: BTreeMap<u64, (Time, bool)>,
    wanted: BTreeSet<u64>,
    disputed: BTreeSet<u64>,
    parked: Vec<(Incoming, Responder)>,
    parked_bytes: usize,
    added: Notify,
}

impl Vouching {
    /// Nothing known; `asks`: there is a metadata server to ask.
    pub(crate) fn new(asks: bool) -> Vouching {
        Vouching { asks, ..Vouching::default() }
    }

    /// The known state of a session now.
    pub(crate) fn session(&mut self, session: u64, now: Time) -> Word {
        if !self.asks {
            return Word::Lives;
        }
        let known = self.sessions.get(&session).map(|(asked, lives)| (now.since(*asked), *lives));
        let word = match known {
            Some((age, true)) if age < KEPT => Word::Lives,
            Some((age, false)) if age < GONE_KEPT => Word::Gone,
            _ => Word::Unknown,
        };
        let fresh = known.is_some_and(|(age, _)| age < FRESH);
        if !(fresh || word == Word::Gone) && self.wanted.len() < WANTED_MAX {
            self.wanted.insert(session);
            self.added.notify_all();
        }
        word
    }

    /// Somebody disputes a session's claim about an inode.
    pub(crate) fn dispute(&mut self, inode: u64) {
        if self.disputed.len() < WANTED_MAX {
            self.disputed.insert(inode);
            self.added.notify_all();
        }
    }

    /// The next question: sessions and inodes.
    fn question(&mut self) -> (Vec<u64>, Vec<u64>) {
        let take = |from: &mut BTreeSet<u64>| -> Vec<u64> {
            std::iter::from_fn(|| from.pop_first()).take(VOUCHED_MAX).collect()
        };
        (take(&mut self.wanted), take(&mut self.disputed))
    }

    fn note(&mut self, sessions: &[u64], lives: &[u8], asked: Time) {
        for (session, lives) in sessions.iter().zip(lives) {
            if self.sessions.len() >= SESSIONS_MAX && !self.sessions.contains_key(session) {
                self.sessions.retain(|_, (before, _)| asked.since(*before) < FRESH);
            }
            if self.sessions.len() >= SESSIONS_MAX {
                self.sessions.pop_first();
            }
            self.sessions.insert(*session, (asked, *lives != 0));
        }
    }
}

impl Inner {
    /// Lets a call wait for the metadata server's word.
    pub(crate) fn park(&self, incoming: Incoming, responder: Responder) {
        let mut vouching = self.vouching.borrow_mut();
        let bytes = vouching.parked_bytes + incoming.occupied_bytes();
        if vouching.parked.len() >= PARKED_MAX || bytes > PARKED_BYTES_MAX {
            drop(vouching);
            return self.refuse(responder, Status::Unavailable);
        }
        vouching.parked_bytes = bytes;
        vouching.parked.push((incoming, responder));
    }

    /// Asks the metadata server the pending questions, until the server stops.
    pub(crate) async fn vouch(self: Rc<Self>, herald: Rc<Herald>) {
        while !self.stopping.get() {
            let added = self.vouching.borrow().added.notified();
            let (sessions, inodes) = self.vouching.borrow_mut().question();
            if sessions.is_empty() && inodes.is_empty() {
                let _ = race(added, self.world.sleep(KEPT)).await;
                continue;
            }
            let asked = self.world.now();
            match herald.vouched(&sessions, &inodes).await {
                Some((lives, files)) => {
                    self.vouching.borrow_mut().note(&sessions, &lives, asked);
                    for (inode, told) in inodes.into_iter().zip(files) {
                        self.epochs.borrow_mut().settle(inode, told);
                    }
                }
                None => self.world.sleep(PAUSE).await,
            }
            let mut vouching = self.vouching.borrow_mut();
            vouching.parked_bytes = 0;
            let parked = std::mem::take(&mut vouching.parked);
            drop(vouching);
            for (incoming, responder) in parked {
                self.clone().handle(incoming, responder);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_counts_for_a_while_and_is_asked_for_before_that_is_over() {
        let mut vouching = Vouching::new(true);
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        assert_eq!(vouching.session(7, at(0)), Word::Unknown);
        assert_eq!(vouching.question(), (vec![7], vec![]));
        vouching.note(&[7, 8], &[1, 0], at(0));
        assert_eq!(vouching.session(7, at(29)), Word::Lives);
        assert_eq!(vouching.session(8, at(9)), Word::Gone);
        assert_eq!(vouching.question(), (vec![], vec![]));
        assert_eq!(vouching.session(7, at(59)), Word::Lives);
        assert_eq!(vouching.question(), (vec![7], vec![]));
        assert_eq!(vouching.session(7, at(60)), Word::Unknown);
        assert_eq!(vouching.session(8, at(10)), Word::Unknown);
    }

    #[test]
    fn what_is_known_and_wanted_is_bounded() {
        let mut vouching = Vouching::new(true);
        for session in 0..2 * SESSIONS_MAX as u64 {
            vouching.session(session, Time::ZERO);
            vouching.dispute(session);
            vouching.note(&[session], &[1], Time::ZERO);
        }
        assert_eq!(vouching.sessions.len(), SESSIONS_MAX);
        assert_eq!((vouching.wanted.len(), vouching.disputed.len()), (WANTED_MAX, WANTED_MAX));
        let (sessions, inodes) = vouching.question();
        assert_eq!((sessions.len(), inodes.len()), (VOUCHED_MAX, VOUCHED_MAX));
    }
}
