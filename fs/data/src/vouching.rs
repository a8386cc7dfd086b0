//! Questions that only the metadata server can answer: whether a limited session still exists, and which
//! write epoch of a file is right where sessions disagree.
//!
//! A token and a capability prove that the metadata server gave them, not that their session goes on. A session that may act
//! for everybody is not asked for, and pays nothing. A bound one is asked for when it first comes, and again while it
//! goes on: after each end of a bound session, and now and then. The metadata server counts these ends, and tells the
//! count with each answer to a heartbeat. Where it is silent, capabilities end within `KEPT` of their session
//! (`docs/design/127-capabilities.md`).
//!
//! Invariants:
//! * one question is under way at a time, however many calls come;
//! * calls that wait for an answer are bounded in number and bytes; others are told to come again;
//! * an answer counts for no longer than `HEARD` after a later revocation was heard of;
//! * a server without a metadata server vouches for everybody: it is one of a test.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::task::{Notify, race};
use ropewalk_base::time::Time;
use ropewalk_rpc::{Handler, Incoming, Responder};
use ropewalk_wire::fs::head::Status;
use ropewalk_wire::fs::meta::{Clock, VOUCHED_MAX};
use ropewalk_wire::fs::term::Term;
use ropewalk_wire::fs::trust::{CAPABILITY_SECONDS, Capability};

use crate::config::Defect;
use crate::membership::{Herald, Vouched};
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

/// After a revocation was heard of, former answers count so much longer while the question is under way.
const HEARD: Duration = Duration::from_millis(100);
/// A session that called within this time is at work.
const BUSY: Duration = Duration::from_secs(10);
/// A capability says no later end than this beyond its time, however clocks differ.
const SLACK_SECONDS: u64 = 60;

/// The known state of a bound session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Word {
    Lives,
    Gone,
    /// To be asked for.
    Unknown,
}

/// Whether a genuine capability counts now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Worth {
    Counts,
    /// It has expired.
    Old,
    /// The metadata server is to be asked first.
    Unknown,
}

/// An answer about a session.
#[derive(Debug, Clone, Copy)]
struct Known {
    asked: Time,
    exists: bool,
    /// The revocations that the metadata server had counted by then.
    revocations: (Term, u64),
}

/// The answers received, and the questions that are still to be asked.
#[derive(Default)]
pub(crate) struct Vouching {
    /// There is a metadata server to ask.
    pub asks: bool,
    sessions: BTreeMap<u64, Known>,
    /// The metadata server's clock, and when it was asked for.
    clock: Option<(Time, Clock)>,
    /// The term of the metadata server, the revocations that are known of it, and since when.
    revocations: ((Term, u64), Time),
    /// When a bound session called last.
    called: Option<Time>,
    wanted: BTreeSet<u64>,
    disputed: BTreeSet<u64>,
    parked: Vec<(Incoming, Responder)>,
    parked_bytes: usize,
    added: Notify,
    defect: Option<Defect>,
}

impl Vouching {
    /// Nothing known; `asks`: there is a metadata server to ask.
    pub(crate) fn new(asks: bool, defect: Option<Defect>) -> Vouching {
        Vouching { asks, defect, ..Vouching::default() }
    }

    /// The metadata server has told its clock, between these times.
    pub(crate) fn take_clock(&mut self, term: Term, clock: Clock, (asked, now): (Time, Time)) {
        let ((known, count), since) = self.revocations;
        // Answers may come in another order than they were given.
        if known == term && clock.revocations < count {
            return;
        }
        let same = (known, count) == (term, clock.revocations);
        self.revocations = ((term, clock.revocations), if same { since } else { now });
        if self.clock.is_none_or(|(before, _)| before <= asked) {
            self.clock = Some((asked, clock));
        }
    }

    /// Whether bound sessions are at work.
    pub(crate) fn is_busy(&self, now: Time) -> bool {
        self.called.is_some_and(|called| now.since(called) < BUSY)
    }

    /// The known state of a session now, which calls.
    pub(crate) fn session(&mut self, session: u64, now: Time) -> Word {
        if !self.asks {
            return Word::Lives;
        }
        self.called = Some(now);
        let Some(Known { asked, exists, revocations }) = self.sessions.get(&session).copied()
        else {
            self.want(session);
            return Word::Unknown;
        };
        let age = now.since(asked);
        if !exists && age < GONE_KEPT {
            return Word::Gone;
        }
        let (newest, since) = self.revocations;
        let current = revocations == newest;
        if !current || age >= FRESH {
            self.want(session);
        }
        let counts = exists && age < KEPT && (current || now.since(since) < HEARD);
        if counts { Word::Lives } else { Word::Unknown }
    }

    fn want(&mut self, session: u64) {
        if self.wanted.len() < WANTED_MAX {
            self.wanted.insert(session);
            self.added.notify_all();
        }
    }

    /// Whether a capability counts, which the metadata server gave.
    pub(crate) fn judge(&self, capability: &Capability, now: Time) -> Worth {
        if !self.asks || self.defect == Some(Defect::CapabilityWithoutExpiry) {
            return Worth::Counts;
        }
        let Some((told, clock)) = self.clock else { return Worth::Unknown };
        let seconds = u64::from(clock.seconds) + now.since(told).as_secs();
        let latest = seconds + u64::from(CAPABILITY_SECONDS) + SLACK_SECONDS;
        let counts = (seconds + 1..=latest).contains(&u64::from(capability.expires));
        if counts { Worth::Counts } else { Worth::Old }
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

    fn note(&mut self, sessions: &[u64], vouched: &Vouched, asked: Time, now: Time) {
        self.take_clock(vouched.term, vouched.clock, (asked, now));
        let revocations = (vouched.term, vouched.clock.revocations);
        for (session, exists) in sessions.iter().zip(&vouched.sessions) {
            if self.sessions.len() >= SESSIONS_MAX && !self.sessions.contains_key(session) {
                self.sessions.retain(|_, known| asked.since(known.asked) < FRESH);
            }
            if self.sessions.len() >= SESSIONS_MAX {
                self.sessions.pop_first();
            }
            let exists = *exists != 0;
            self.sessions.insert(*session, Known { asked, exists, revocations });
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
                Some(vouched) => {
                    let now = self.world.now();
                    self.vouching.borrow_mut().note(&sessions, &vouched, asked, now);
                    for (inode, told) in inodes.into_iter().zip(vouched.files) {
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

    const TERM: Term = Term(7 << 32);

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    fn vouched(sessions: &[u8], seconds: u32, revocations: u64) -> Vouched {
        let clock = Clock { seconds, revocations };
        Vouched { sessions: sessions.to_vec(), files: Vec::new(), term: TERM, clock }
    }

    #[test]
    fn a_session_counts_for_a_while_and_is_asked_for_before_that_is_over() {
        let mut vouching = Vouching::new(true, None);
        assert_eq!(vouching.session(7, at(0)), Word::Unknown);
        assert_eq!(vouching.question(), (vec![7], vec![]));
        vouching.note(&[7, 8], &vouched(&[1, 0], 1000, 0), at(0), at(0));
        assert_eq!(vouching.session(7, at(29)), Word::Lives);
        assert_eq!(vouching.session(8, at(9)), Word::Gone);
        assert_eq!(vouching.question(), (vec![], vec![]));
        assert_eq!(vouching.session(7, at(59)), Word::Lives);
        assert_eq!(vouching.question(), (vec![7], vec![]));
        assert_eq!(vouching.session(7, at(60)), Word::Unknown);
        assert_eq!(vouching.session(8, at(10)), Word::Unknown);
    }

    #[test]
    fn after_a_revocation_every_session_is_asked_for_again() {
        let mut vouching = Vouching::new(true, None);
        let clock = |seconds, revocations| Clock { seconds, revocations };
        let tell = |vouching: &mut Vouching, term, clock, seconds| {
            vouching.take_clock(term, clock, (at(seconds), at(seconds)));
        };
        vouching.note(&[7], &vouched(&[1], 1000, 4), at(0), at(0));
        tell(&mut vouching, TERM, clock(1001, 4), 1);
        assert_eq!(vouching.session(7, at(1)), Word::Lives);
        tell(&mut vouching, TERM, clock(1002, 5), 2);
        // For a moment, while the question is under way.
        assert_eq!(vouching.session(7, at(2)), Word::Lives);
        assert_eq!(vouching.question(), (vec![7], vec![]));
        assert_eq!(vouching.session(7, at(3)), Word::Unknown);
        // An answer from before that comes late.
        vouching.note(&[7], &vouched(&[1], 1001, 4), at(1), at(3));
        assert_eq!(vouching.session(7, at(3)), Word::Unknown);
        vouching.note(&[7], &vouched(&[1], 1002, 5), at(3), at(3));
        assert_eq!(vouching.session(7, at(3)), Word::Lives);
        // The next metadata server counts anew.
        tell(&mut vouching, Term(8 << 32), clock(1002, 5), 4);
        assert_eq!(vouching.session(7, at(5)), Word::Unknown);
    }

    #[test]
    fn capabilities_end_by_the_clock_of_the_metadata_server() {
        let capability = |expires| Capability { reads: true, writes: false, expires, tag: [0; 16] };
        let mut vouching = Vouching::new(true, None);
        assert_eq!(vouching.judge(&capability(1010), at(50)), Worth::Unknown);
        vouching.note(&[7], &vouched(&[1], 1000, 0), at(50), at(50));
        let judge = |expires, seconds| vouching.judge(&capability(expires), at(seconds));
        assert_eq!(judge(1010, 59), Worth::Counts);
        assert_eq!(judge(1010, 60), Worth::Old);
        assert_eq!(judge(1360, 50), Worth::Counts);
        assert_eq!(judge(1361, 50), Worth::Old, "nobody gives one for so long");
        let planted = Vouching::new(true, Some(Defect::CapabilityWithoutExpiry));
        assert_eq!(planted.judge(&capability(1010), at(99)), Worth::Counts);
    }

    #[test]
    fn what_is_known_and_wanted_is_bounded() {
        let mut vouching = Vouching::new(true, None);
        for session in 0..2 * SESSIONS_MAX as u64 {
            vouching.session(session, Time::ZERO);
            vouching.dispute(session);
            vouching.note(&[session], &vouched(&[1], 0, 0), Time::ZERO, Time::ZERO);
        }
        assert_eq!(vouching.sessions.len(), SESSIONS_MAX);
        assert_eq!((vouching.wanted.len(), vouching.disputed.len()), (WANTED_MAX, WANTED_MAX));
        let (sessions, inodes) = vouching.question();
        assert_eq!((sessions.len(), inodes.len()), (VOUCHED_MAX, VOUCHED_MAX));
    }
}
