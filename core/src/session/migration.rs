//! The migration of a session that has several paths: its machine, the proof of an arming, and paths that rest.
//!
//! It is made when a session gets its second path, and lasts as long as the session. A session with one path has none.
//!
//! Invariants: a proof is under way in REARM alone; a path that rests is told to be good in its time.

use std::time::Duration;

use ropewalk_base::time::Time;

use crate::api::PeerId;
use crate::apm::cause::ProbeFault;
use crate::apm::load::ArmingId;
use crate::apm::{Connection, Migration, MigrationState, PathId, Side};
use crate::path::Waking;

/// Probes of an arming, all of which have to be answered, and the time between two. The last of them is long. The load that
/// goes over the path is the first one of the first round, and its answer that one's.
pub(crate) const PROBES: u8 = 5;
const BETWEEN: Duration = Duration::from_millis(2);
/// After a probe that left late the next one follows sooner, so that five take as long as they should.
const BETWEEN_MIN: Duration = Duration::from_millis(1);
/// The side that began an arming probes, and tells the other one that all were answered. If for this time neither such a word
/// came nor a probe, that side probes, too: armings that take long, since there are many, need no more frames for that.
const OWN_PROBES_AFTER: Duration = Duration::from_millis(30);
/// How long the answers of a round of probes may take, before the next round.
const ROUND: Duration = Duration::from_millis(100);
/// After what time without an answer a load is asked for again, and how often that is looked at before the arming has
/// failed. Looks are counted, not time: a thread that computes for long says nothing about a path.
const LOOK_EVERY: Duration = Duration::from_millis(20);
const LOOKS: u8 = 50;
/// How long a path rests whose arming failed; twice as long each time, up to a minute.
const REST: Duration = Duration::from_millis(250);
const REST_DOUBLINGS: u32 = 8;

#[derive(Debug)]
pub(crate) struct Migrating {
    pub machine: Migration,
    pub proof: Option<Proof>,
    rests: Vec<Rest>,
    /// The path that traffic left last since it was bad.
    pub left: Option<Left>,
    /// A load that waits for a path that rests.
    pub waking: Option<Waking>,
}

/// What traffic left, and at what cost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Left {
    pub path: PathId,
    /// For how long it had delivered nothing.
    pub silent_for: Duration,
    pub resent_bytes: u64,
}

/// A path whose arming failed.
#[derive(Debug, Clone, Copy)]
struct Rest {
    path: PathId,
    /// How often in a row.
    count: u32,
    until: Time,
}

/// The proof of an arming, as far as it is the driver's.
#[derive(Debug)]
pub(crate) struct Proof {
    pub arming: ArmingId,
    pub path: PathId,
    /// The spans up to this one were sent before the arming; `None` once the peer has them all.
    pub old_spans: Option<u64>,
    /// The peer began the arming, and probes.
    is_theirs: bool,
    /// The number of the round, of probes sent in it, and those answered, by bit.
    round: u8,
    sent: u8,
    answered: u8,
    is_good: bool,
    /// The load is the first probe of the first round.
    load_probes: bool,
    /// Something of any round was answered, or all of one but the long probe.
    any_answered: bool,
    short_answered: bool,
    /// A probe of the peer's came over the path, and a long one.
    heard: bool,
    heard_long: bool,
    /// When the first probe of the round left, and the next one is due.
    round_at: Time,
    next_at: Time,
    /// Looks so far, and the next one.
    looks: u8,
    look_at: Time,
}

/// What is to be done for a proof now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send this probe, of this round.
    Probe { number: u8, round: u8, is_long: bool },
    /// Ask for the load again, over those of the two paths that it was not answered over.
    LoadAgain,
    /// The budget is spent.
    Spent(ProbeFault),
}

impl Migrating {
    /// Of a session in which data flows, over paths that are to be added.
    pub fn new(peer: PeerId, side: Side) -> Migrating {
        let mut machine = Migration::new(peer, side);
        for connection in [Connection::Init, Connection::Rtr, Connection::Rts] {
            machine.set_connection(connection).expect("the order of a set-up");
        }
        Migrating { machine, proof: None, rests: Vec::new(), left: None, waking: None }
    }

    /// A path is to be proven. `old_spans`: the last span that was sent before, if the peer lacks one of those.
    pub fn begin_proof(
        &mut self,
        arming: ArmingId,
        path: PathId,
        old_spans: Option<u64>,
        now: Time,
    ) {
        let is_ours = arming.by == self.machine.side();
        let loading = self.machine.arming().filter(|it| is_ours && it.id == arming);
        let load_probes = loading.is_some_and(|it| !it.heard_on_alternate);
        let first_at = if is_ours { now } else { now + OWN_PROBES_AFTER };
        self.proof = Some(Proof {
            arming,
            path,
            old_spans,
            is_theirs: !is_ours,
            round: 0,
            sent: u8::from(load_probes),
            answered: 0,
            is_good: false,
            load_probes,
            any_answered: false,
            short_answered: false,
            heard: false,
            heard_long: false,
            round_at: now,
            next_at: if load_probes { now + BETWEEN } else { first_at },
            looks: 0,
            look_at: now + LOOK_EVERY,
        });
    }

    /// Ends the proof where its arming is over, or complete.
    pub fn end_proof(&mut self) {
        let arming = self.machine.arming().map(|arming| arming.id);
        let goes_on = self.machine.state() == MigrationState::Rearm;
        self.proof.take_if(|proof| !goes_on || Some(proof.arming) != arming);
    }

    /// The arming of a path failed: it rests.
    pub fn rest(&mut self, path: PathId, now: Time) {
        let before = self.rests.iter().position(|rest| rest.path == path);
        let count = before.map_or(0, |at| self.rests.swap_remove(at).count);
        let until = now + REST * (1 << count.min(REST_DOUBLINGS));
        self.rests.push(Rest { path, count: count + 1, until });
    }

    /// A path is armed, or no more.
    pub fn forget_rest(&mut self, path: PathId) {
        self.rests.retain(|rest| rest.path != path);
    }

    /// A path that has rested for long enough.
    pub fn take_rested(&mut self, now: Time) -> Option<PathId> {
        let rest = self.rests.iter_mut().find(|rest| rest.until <= now)?;
        rest.until = Time::NEVER;
        Some(rest.path)
    }

    /// When something is due.
    pub fn due(&self) -> Time {
        let proof = self.proof.as_ref().map_or(Time::NEVER, Proof::due);
        let first = proof.min(self.waking.as_ref().map_or(Time::NEVER, Waking::due));
        self.rests.iter().map(|rest| rest.until).fold(first, Time::min)
    }

    /// What is to be done now; to be asked until there is nothing more.
    pub fn next_step(&mut self, now: Time) -> Option<Step> {
        let side = self.machine.arming().map(|arming| arming.id.by);
        let is_ours = side.is_some_and(|side| side == self.machine.side());
        self.proof.as_mut()?.next_step(now, is_ours)
    }
}

impl Proof {
    fn due(&self) -> Time {
        let next = if self.is_good { Time::NEVER } else { self.next_at };
        next.min(self.look_at)
    }

    fn next_step(&mut self, now: Time, is_ours: bool) -> Option<Step> {
        if self.look_at <= now {
            self.looks += 1;
            self.look_at = now + LOOK_EVERY;
            if self.looks == LOOKS {
                self.look_at = Time::NEVER;
                return Some(Step::Spent(self.fault()));
            }
            if is_ours {
                return Some(Step::LoadAgain);
            }
        }
        if self.is_good || self.next_at > now {
            return None;
        }
        if self.sent == PROBES {
            (self.round, self.sent, self.answered) = (self.round.saturating_add(1), 0, 0);
        }
        let number = self.sent;
        if number == 0 {
            self.round_at = now;
        }
        self.sent += 1;
        let is_long = self.sent == PROBES;
        self.next_at = match is_long {
            true => now + ROUND,
            false => (self.round_at + BETWEEN * self.sent.into()).max(now + BETWEEN_MIN),
        };
        Some(Step::Probe { number, round: self.round, is_long })
    }

    /// A probe was answered. `is_long`: by an answer of full length. True if that was the last one.
    pub fn answered(&mut self, number: u8, round: u8, is_long: bool) -> bool {
        let is_fit = number < PROBES - 1 || is_long;
        if !self.has_asked(number, round) || self.is_good || !is_fit {
            return false;
        }
        self.any_answered = true;
        self.answered |= 1 << number;
        let short = (1 << (PROBES - 1)) - 1;
        self.short_answered |= self.answered & short == short;
        self.is_good = self.answered == (1 << PROBES) - 1;
        self.is_good
    }

    /// The load was answered over the path. True if that was the last answer.
    pub fn load_answered(&mut self) -> bool {
        self.load_probes && self.answered(0, 0, false)
    }

    /// A probe of the peer's came over the path.
    pub fn hear(&mut self, is_long: bool, now: Time) {
        self.heard = true;
        self.heard_long |= is_long;
        // The peer is at it.
        if self.is_theirs && (self.round, self.sent) == (0, 0) {
            self.next_at = self.next_at.max(now + OWN_PROBES_AFTER);
        }
    }

    /// Whether an answer is one to a probe of this round.
    pub fn has_asked(&self, number: u8, round: u8) -> bool {
        round == self.round && number < self.sent
    }

    /// The peer says that all of its probes were answered, so both directions are good. It counts if a long one came here.
    /// True if that is news.
    pub fn told_good(&mut self) -> bool {
        self.heard_long && !std::mem::replace(&mut self.is_good, true)
    }

    fn fault(&self) -> ProbeFault {
        if self.short_answered && !self.is_good {
            return ProbeFault::Mtu;
        }
        match (self.is_good || self.any_answered, self.heard) {
            (true, _) => ProbeFault::Loss,
            // The peer's probes come, and nothing comes back of ours.
            (false, true) => ProbeFault::OneWayOut,
            (false, false) => ProbeFault::NoRoute,
        }
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_base::slots::SlotId;

    use super::*;

    const PATH: PathId = PathId(2);

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn proving() -> Migrating {
        let peer = PeerId(SlotId { index: 1, generation: 1 });
        let mut migrating = Migrating::new(peer, Side::Lower);
        migrating.begin_proof(ArmingId { by: Side::Lower, number: 1 }, PATH, None, at(0));
        migrating
    }

    #[test]
    fn an_answer_to_a_probe_of_a_number_that_there_is_not_is_none() {
        let mut migrating = Migrating::new(PeerId(SlotId { index: 1, generation: 1 }), Side::Lower);
        migrating.begin_proof(ArmingId { by: Side::Lower, number: 1 }, PATH, None, at(0));
        let proof = migrating.proof.as_mut().expect("it began");
        for number in [PROBES, 127, u8::MAX] {
            assert!(!proof.answered(number, 0, false) && !proof.answered(number, 0, true));
        }
    }

    #[test]
    fn five_probes_go_two_milliseconds_apart_and_all_have_to_come_back() {
        let mut migrating = proving();
        for number in 0..PROBES {
            assert_eq!(migrating.due(), at(2 * u64::from(number)));
            let is_long = number == PROBES - 1;
            let step = Step::Probe { number, round: 0, is_long };
            assert_eq!(migrating.next_step(migrating.due()), Some(step));
            let proof = migrating.proof.as_mut().unwrap();
            assert!(
                !is_long || !proof.answered(number, 0, false),
                "a short answer to a long probe"
            );
            assert_eq!(proof.answered(number, 0, is_long), is_long);
        }
        assert_eq!(migrating.due(), at(20), "the rest of the proof is awaited");
        assert_eq!(migrating.next_step(at(500)), None, "its load is the other side's");
        assert_eq!(migrating.due(), at(520), "a look that comes late is one look");
    }

    #[test]
    fn a_round_with_a_probe_that_is_lost_counts_for_nothing_and_the_budget_ends() {
        let mut migrating = proving();
        let mut probes = 0;
        let fault = loop {
            let now = migrating.due();
            match migrating.next_step(now) {
                Some(Step::Probe { number, round, is_long }) => {
                    probes += 1;
                    let proof = migrating.proof.as_mut().unwrap();
                    assert!(number == 3 || !proof.answered(number, round, is_long));
                    assert!(!proof.answered(3, round.wrapping_sub(1), false), "an old answer");
                }
                Some(Step::Spent(fault)) => break fault,
                Some(Step::LoadAgain) | None => {}
            }
        };
        assert_eq!((probes, fault), (50, ProbeFault::Loss));
        let spent = |migrating: &mut Migrating| {
            let mut steps = std::iter::repeat_with(|| {
                let now = migrating.due();
                migrating.next_step(now)
            });
            steps.find(|step| matches!(step, Some(Step::Spent(_)))).flatten()
        };
        assert_eq!(spent(&mut proving()), Some(Step::Spent(ProbeFault::NoRoute)));
        let mut deaf = proving();
        deaf.proof.as_mut().unwrap().hear(false, at(0));
        assert_eq!(spent(&mut deaf), Some(Step::Spent(ProbeFault::OneWayOut)));
    }

    #[test]
    fn a_probe_that_left_late_is_followed_soon_and_so_five_take_as_long_as_they_should() {
        let mut migrating = proving();
        let mut left = Vec::new();
        for late in [0, 5, 0, 0, 0] {
            let now = migrating.due() + Duration::from_millis(late);
            assert!(matches!(migrating.next_step(now), Some(Step::Probe { .. })));
            left.push(now);
        }
        assert_eq!(left, [0, 7, 8, 9, 10].map(at));
    }

    #[test]
    fn a_path_over_which_no_long_probe_comes_is_too_narrow() {
        let mut migrating = proving();
        let fault = loop {
            match migrating.next_step(migrating.due()) {
                Some(Step::Probe { number, round, is_long: false }) => {
                    assert!(!migrating.proof.as_mut().unwrap().answered(number, round, false));
                }
                Some(Step::Spent(fault)) => break fault,
                _ => {}
            }
        };
        assert_eq!(fault, ProbeFault::Mtu);
    }

    #[test]
    fn the_other_side_of_an_arming_probes_only_if_it_is_told_nothing() {
        let mut migrating = proving();
        let theirs = ArmingId { by: Side::Higher, number: 1 };
        migrating.begin_proof(theirs, PATH, None, at(0));
        assert_eq!((migrating.due(), migrating.next_step(at(19))), (at(20), None));
        let proof = migrating.proof.as_mut().unwrap();
        assert!(!proof.told_good(), "no long probe came");
        proof.hear(false, at(0));
        assert!(!proof.told_good());
        proof.hear(true, at(0));
        assert!(proof.told_good() && !proof.told_good());
        assert_eq!(migrating.next_step(at(100)), None);
        migrating.begin_proof(theirs, PATH, None, at(0));
        assert_eq!(migrating.next_step(at(20)), None);
        let first = Step::Probe { number: 0, round: 0, is_long: false };
        assert_eq!((migrating.due(), migrating.next_step(at(30))), (at(30), Some(first)));
    }

    #[test]
    fn the_other_side_of_an_arming_waits_as_long_as_probes_come() {
        let mut migrating = proving();
        let theirs = ArmingId { by: Side::Higher, number: 1 };
        migrating.begin_proof(theirs, PATH, None, at(0));
        for millis in [20, 40, 60, 80] {
            assert_eq!(migrating.next_step(at(millis)), None);
            migrating.proof.as_mut().unwrap().hear(false, at(millis));
        }
        assert_eq!(migrating.next_step(at(109)), None);
        let probe = |number| Step::Probe { number, round: 0, is_long: false };
        assert_eq!(migrating.next_step(at(110)), Some(probe(0)));
        // Its own ones, once begun, go on.
        migrating.proof.as_mut().unwrap().hear(false, at(111));
        assert_eq!(migrating.next_step(at(112)), Some(probe(1)));
    }

    #[test]
    fn a_path_that_fails_again_rests_for_longer() {
        let mut migrating = proving();
        migrating.proof = None;
        let mut rests = Vec::new();
        for _ in 0..3 {
            migrating.rest(PATH, at(0));
            rests.push(migrating.due().since(Time::ZERO).as_millis());
            assert_eq!(migrating.take_rested(migrating.due()), Some(PATH));
            assert_eq!((migrating.take_rested(at(9000)), migrating.due()), (None, Time::NEVER));
        }
        assert_eq!(rests, [250, 500, 1000]);
        migrating.forget_rest(PATH);
        migrating.rest(PATH, at(0));
        assert_eq!(migrating.due(), at(250));
    }
}
