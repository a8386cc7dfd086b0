//! What a session needs to get further paths: its key, and the attempts of the side that adds them.
//!
//! One attempt is under way at a time. A round tries each way once; rounds follow each other after 100 ms at first, and
//! after twice the time whenever one adds nothing. A lost path begins a round anew. For ten seconds a call gets 100 ms, and the
//! next one follows at once: the kernel of a tcp rail repeats its call after a second only, when the path may have been mended for
//! long. Later a lost path is sought twice a second at least. Each fourth call gets longer, for paths that are slow to answer.

use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;

use super::SessionId;
use super::key::{Key, Share};
use super::migration::Migrating;
use super::paths::PathId;
use super::promise::Promise;
use super::sought::{CallFault, Sought};
use super::standing::Standing;
use crate::apm::MigrationState;

/// Between two rounds, at first and at most.
const WAIT: Duration = Duration::from_millis(100);
const WAIT_MAX: Duration = Duration::from_secs(10);
/// Lost paths are sought hastily for so long: calls follow each other after [`WAIT`]. Where a side may lack links they are
/// not: a process without descriptors would have them taken by further paths again and again.
const HASTE: Duration = Duration::from_secs(10);
/// Between two rounds at most, afterwards.
const WAIT_LOST_MAX: Duration = Duration::from_millis(500);
/// How long a call may take to be answered, and the peer's answer to our proof.
const PATIENCE: Duration = Duration::from_secs(1);
/// Such a call while a path is lost, and each fourth one: in haste, and afterwards.
const PATIENCE_HASTY: [Duration; 2] = [WAIT, Duration::from_millis(300)];
const PATIENCE_LOST: [Duration; 2] = [Duration::from_millis(200), PATIENCE];
/// How long its paths answer no probe before a new life of the peer is believed.
const DOUBT: Duration = Duration::from_secs(2);

#[derive(Debug)]
pub(crate) struct Bundle {
    /// Our share of the key.
    pub share: Share,
    /// We have told the peer that we can call for further paths.
    pub offers: bool,
    /// By how much the peer delays acknowledgements.
    pub promised: Promise,
    /// When its paths are looked at although nothing goes over them.
    pub standing: Standing,
    /// Once it has, or had, several paths.
    pub migrating: Option<Box<Migrating>>,
    /// When it ends, since all its paths are silent and it owes something.
    pub silent_until: Option<Time>,
    /// Rails over which it never had a path.
    pub sought: Sought,
    /// That time is a short one, since paths rest by which the peer can be called.
    pub silent_briefly: bool,
    key: Option<Key>,
    /// The span that tells our share.
    told_by: Option<u64>,
    /// When the session's only path is looked at, as long as the peer may not have the key.
    unshared_at: Time,
    /// Since when a caller who proves nothing would take its place, and no path has answered a probe.
    doubted_since: Option<Time>,
    adds: bool,
    is_lower: bool,
    /// Paths that we have named, and one of them that was none on our side: the peer may have it, as one without a link.
    named: u32,
    unused: Option<PathId>,
    /// The driver looks for a way.
    is_asked: bool,
    /// How often we have begun to join a path, and how often the peer has, as far as it has proven that.
    begun: u32,
    heard: u32,
    attempt: Option<Attempt>,
    /// The way that is tried next, and when.
    way: u32,
    next_at: Time,
    wait: Duration,
    /// The present round has added a path.
    has_added: bool,
    /// When the last call of the present round began.
    called_at: Option<Time>,
    /// When a path was lost, and none added since.
    lost_at: Option<Time>,
    /// Nothing is sought hastily before: the peer is there, and does without the path. It may lack links.
    calm_until: Time,
    /// Paths rest while another one stays, and none is sought: the traffic by then.
    narrowed_at: Option<u64>,
}

/// A path that we are about to add.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Attempt {
    pub link: LinkId,
    /// The number of this attempt.
    pub counter: u32,
    /// The number that it has given a new path.
    named: Option<PathId>,
    way: u32,
    until: Time,
    /// The link is there: the peer's answer is awaited.
    is_up: bool,
}

impl Bundle {
    pub fn new(share: Share) -> Bundle {
        Bundle {
            share,
            offers: false,
            promised: Promise::default(),
            standing: Standing::new(),
            migrating: None,
            silent_until: None,
            sought: Sought::default(),
            silent_briefly: false,
            key: None,
            told_by: None,
            unshared_at: Time::NEVER,
            doubted_since: None,
            adds: false,
            is_lower: false,
            named: 0,
            unused: None,
            is_asked: false,
            begun: 0,
            heard: 0,
            attempt: None,
            way: 0,
            next_at: Time::NEVER,
            wait: WAIT,
            has_added: false,
            called_at: None,
            lost_at: None,
            calm_until: Time::ZERO,
            narrowed_at: None,
        }
    }

    /// The peer told its share. `is_lower`: our endpoint id is the lower one. `adds`: we add the paths.
    pub fn agree(
        &mut self,
        session: SessionId,
        theirs: &Share,
        is_lower: bool,
        adds: bool,
        now: Time,
    ) {
        let (lower, higher) = if is_lower { (&self.share, theirs) } else { (theirs, &self.share) };
        self.key = Some(Key::agreed(session, lower, higher));
        (self.adds, self.is_lower) = (adds, is_lower);
        (self.way, self.next_at) = (0, now);
    }

    /// The key, once both sides have told their shares.
    pub fn key(&self) -> Option<&Key> {
        self.key.as_ref()
    }

    /// Our share goes with this span. Until the peer is known to have the key the only path is looked at from `look_at` on.
    pub fn tell_by(&mut self, span: u64, look_at: Time) {
        (self.told_by, self.unshared_at) = (Some(span), look_at);
    }

    /// Whether it is time for a look at the only path of a session whose key is not shared. The next one comes at `next`.
    pub fn takes_early_look(&mut self, now: Time, next: Time) -> bool {
        let is_due = self.unshared_at <= now;
        if is_due {
            self.unshared_at = next;
        }
        is_due
    }

    /// Whether the peer is known to have the key, too. `answered`: it has all spans up to this one.
    pub fn is_shared(&self, answered: u64) -> bool {
        self.key.is_some() && self.told_by.is_some_and(|span| span <= answered)
    }

    /// A caller who proves nothing would take its place. True where its paths are to be probed.
    pub fn doubt(&mut self, now: Time) -> bool {
        let is_new = self.doubted_since.is_none();
        self.doubted_since.get_or_insert(now);
        is_new
    }

    /// Whether no path has answered since that began, for so long that such a caller is believed.
    pub fn is_doubtful(&self, now: Time) -> bool {
        self.doubted_since.is_some_and(|since| now.since(since) >= DOUBT)
    }

    /// The peer was heard.
    pub fn end_doubt(&mut self) {
        self.doubted_since = None;
    }

    /// When [`Bundle::next_way`] or [`Bundle::is_late`] is to be asked, or its migration has something to do.
    pub fn due(&self) -> Time {
        let joins = match &self.attempt {
            Some(attempt) => attempt.until,
            None if self.adds && !self.is_asked && self.narrowed_at.is_none() => self.next_at,
            None => Time::NEVER,
        };
        joins.min(self.migrating.as_ref().map_or(Time::NEVER, |it| it.due()))
    }

    /// Whether our endpoint id is the lower one.
    pub fn is_lower(&self) -> bool {
        self.is_lower
    }

    /// When its paths are to be looked at, or it ends.
    pub fn looks_at(&self) -> Time {
        let ends = self.silent_until.unwrap_or(Time::NEVER);
        self.standing.due().min(ends).min(self.unshared_at)
    }

    /// The way that is to be tried now.
    pub fn next_way(&self, now: Time) -> Option<u32> {
        let is_free = self.attempt.is_none() && !self.is_asked;
        let is_due = self.adds && is_free && self.narrowed_at.is_none() && self.next_at <= now;
        is_due.then_some(self.way)
    }

    /// The link of the attempt, where that takes too long.
    pub fn is_late(&self, now: Time) -> Option<LinkId> {
        self.attempt.filter(|attempt| attempt.until <= now).map(|attempt| attempt.link)
    }

    /// The driver is asked for a way: [`Bundle::begin`] or [`Bundle::end_round`] follows.
    pub fn ask(&mut self) {
        self.is_asked = true;
    }

    /// A number for the path of the attempt under way: that of an earlier one which came to nothing, or a new one.
    pub fn name_path(&mut self) -> PathId {
        let path = self.unused.take().unwrap_or_else(|| {
            self.named += 1;
            PathId::of(self.named, self.is_lower)
        });
        self.attempt.iter_mut().for_each(|attempt| attempt.named = Some(path));
        path
    }

    /// An attempt begins.
    pub fn begin(&mut self, link: LinkId, way: u32, now: Time) {
        self.is_asked = false;
        self.begun += 1;
        self.called_at = Some(now);
        let [usual, fourth] = match self.lost_at {
            Some(_) if self.is_hasty(now) => PATIENCE_HASTY,
            Some(_) => PATIENCE_LOST,
            None => [PATIENCE; 2],
        };
        let patience = if self.begun.is_multiple_of(4) { fourth } else { usual };
        let (counter, until) = (self.begun, now + patience);
        self.attempt = Some(Attempt { link, counter, named: None, way, until, is_up: false });
        self.sought.begin(link.rail, way, now);
    }

    /// The link of an attempt is there: the peer has this long to answer.
    pub fn note_up(&mut self, link: LinkId, now: Time) {
        if let Some(attempt) = self.attempt.as_mut().filter(|attempt| attempt.link == link) {
            (attempt.is_up, attempt.until) = (true, now + PATIENCE);
        }
    }

    /// The link of the attempt, if there is one.
    pub fn attempt_link(&self) -> Option<LinkId> {
        self.attempt.map(|attempt| attempt.link)
    }

    /// The attempt over a link, if there is one.
    pub fn attempt_over(&self, link: LinkId) -> Option<Attempt> {
        self.attempt.filter(|attempt| attempt.link == link)
    }

    /// The attempt over a link is over, if there is one: the next way is tried at once.
    pub fn end(&mut self, link: LinkId, has_joined: bool, now: Time) {
        let Some(attempt) = self.attempt.take_if(|attempt| attempt.link == link) else { return };
        self.unused = self.unused.or(attempt.named.filter(|_| !has_joined));
        if has_joined {
            self.sought.forget(link.rail);
        }
        self.has_added |= has_joined;
        self.lost_at = self.lost_at.filter(|_| !has_joined);
        self.way = attempt.way + 1;
        self.next_at = now;
    }

    /// The attempt over a link, if there is one, came to nothing: the next way is tried at once.
    pub fn fail(&mut self, link: LinkId, fault: CallFault, now: Time) {
        if self.attempt_over(link).is_some() {
            let is_there = self.attempt.is_some_and(|attempt| attempt.is_up);
            if is_there && fault == CallFault::NoAnswer {
                self.calm(now);
            }
            self.sought.fail(link.rail, fault);
            self.end(link, false, now);
        }
    }

    /// Either side may lack links: others need them more.
    pub fn calm(&mut self, now: Time) {
        self.calm_until = now + HASTE;
    }

    /// No way is left in this round.
    pub fn end_round(&mut self, now: Time) {
        self.is_asked = false;
        self.way = 0;
        let called_at = self.called_at.take();
        let has_added = std::mem::take(&mut self.has_added);
        if self.is_hasty(now) {
            self.next_at = now.max(called_at.unwrap_or(now) + WAIT);
            return;
        }
        let max = if self.has_lost() { WAIT_LOST_MAX } else { WAIT_MAX };
        self.wait = if has_added { WAIT } else { (self.wait * 2).min(max) };
        self.next_at = now + self.wait;
    }

    /// Whether a path was lost just now.
    fn is_hasty(&self, now: Time) -> bool {
        now >= self.calm_until && self.lost_at.is_some_and(|lost_at| now.since(lost_at) < HASTE)
    }

    /// A path was lost: the next round begins soon, and each after it in its time.
    pub fn lose_path(&mut self, now: Time) {
        (self.wait, self.lost_at, self.narrowed_at) = (WAIT, Some(now), None);
        if self.key.is_some() {
            self.way = 0;
            self.next_at = self.next_at.min(now + WAIT);
        }
    }

    /// A path rests, since all is idle and there are too many links: none is sought until there is more traffic than this.
    pub fn narrow(&mut self, traffic: u64) {
        self.narrowed_at.get_or_insert(traffic);
    }

    /// Whether there is more traffic than when paths came to rest. Then they are sought from now on.
    pub fn widens(&mut self, traffic: u64, now: Time) -> bool {
        let widens = self.narrowed_at.take_if(|before| *before != traffic).is_some();
        if widens {
            (self.way, self.wait, self.next_at) = (0, WAIT, now);
        }
        widens
    }

    /// Paths that rest are wanted, whatever the traffic: they are sought from now on.
    pub fn seek(&mut self, now: Time) {
        if self.narrowed_at.take().is_some() {
            (self.way, self.wait, self.next_at) = (0, WAIT, now);
        }
    }

    /// Whether this side adds the paths.
    pub fn adds(&self) -> bool {
        self.adds
    }

    /// Whether a path was lost, and this side has added none since.
    pub fn has_lost(&self) -> bool {
        self.lost_at.is_some()
    }

    /// Whether nothing is under way with its key, its paths and their migration.
    pub fn is_calm(&self) -> bool {
        let migrates = |it: &Migrating| {
            let proves = it.proof.is_some() || it.machine.state() == MigrationState::Rearm;
            proves || it.waking.is_some()
        };
        self.key.is_some()
            && self.attempt.is_none()
            && !self.is_asked
            && self.silent_until.is_none()
            && self.doubted_since.is_none()
            && !self.migrating.as_deref().is_some_and(migrates)
    }

    /// Whether an attempt of the peer's is newer than all that it has proven before. It counts as proven from now on.
    pub fn is_newer(&mut self, counter: u32) -> bool {
        let is_newer = counter > self.heard;
        self.heard = self.heard.max(counter);
        is_newer
    }
}

#[cfg(test)]
mod tests {
    use ropewalk_base::slots::SlotId;

    use super::*;

    fn link(index: u32) -> LinkId {
        LinkId { rail: 1, slot: SlotId { index, generation: 1 } }
    }

    fn at(millis: u64) -> Time {
        Time::ZERO + Duration::from_millis(millis)
    }

    fn agreed(adds: bool) -> Bundle {
        let mut bundle = Bundle::new([1; 16]);
        assert_eq!((bundle.due(), bundle.next_way(at(9))), (Time::NEVER, None));
        bundle.agree(SessionId::own(5), &[2; 16], true, adds, at(0));
        bundle
    }

    #[test]
    fn ways_are_tried_one_after_another_and_rounds_ever_more_rarely() {
        let mut bundle = agreed(true);
        assert_eq!((bundle.due(), bundle.next_way(at(0))), (at(0), Some(0)));
        bundle.begin(link(1), 2, at(0));
        assert_eq!((bundle.due(), bundle.next_way(at(0))), (at(1000), None));
        // The end of another link is none of this attempt.
        bundle.end(link(2), true, at(1));
        assert_eq!(bundle.attempt_over(link(1)).map(|it| it.counter), Some(1));
        bundle.end(link(1), false, at(3));
        assert_eq!(bundle.next_way(at(3)), Some(3));
        let mut now = 3;
        for wait in [200, 400, 800, 1600, 3200, 6400, 10000, 10000] {
            bundle.end_round(at(now));
            now += wait;
            assert_eq!((bundle.due(), bundle.next_way(at(now - 1))), (at(now), None));
            assert_eq!(bundle.next_way(at(now)), Some(0));
        }
        bundle.begin(link(4), 0, at(now));
        bundle.end(link(4), true, at(now));
        bundle.end_round(at(now));
        assert_eq!(bundle.due(), at(now + 100));
    }

    #[test]
    fn a_lost_path_is_sought_soon() {
        let mut bundle = agreed(true);
        (0..9).for_each(|_| bundle.end_round(at(0)));
        bundle.lose_path(at(50));
        assert_eq!(bundle.due(), at(150));
        bundle.lose_path(at(60));
        assert_eq!(bundle.due(), at(150));
        bundle.end_round(at(200));
        assert_eq!(bundle.due(), at(300), "no way could be called");
        let late = |bundle: &mut Bundle, now| {
            [1, 2, 3, 4, 5].map(|number| {
                bundle.begin(link(number), 0, at(now));
                let due = bundle.due();
                bundle.end(link(number), false, due);
                due.since(at(now)).as_millis()
            })
        };
        assert_eq!(late(&mut bundle, 700), [100, 100, 100, 300, 100]);
        bundle.end_round(at(800));
        assert_eq!(bundle.due(), at(800), "the last call was long enough ago");
        bundle.begin(link(6), 0, at(800));
        bundle.end(link(6), false, at(801));
        bundle.end_round(at(801));
        assert_eq!(bundle.due(), at(900), "a call that was refused at once");
        (0..9).for_each(|_| bundle.end_round(at(10060)));
        assert_eq!(bundle.due(), at(10560), "twice a second, however long it takes");
        (7..9).for_each(|number| bundle.begin(link(number), 0, at(10600)));
        assert_eq!(late(&mut bundle, 10600), [200, 200, 200, 1000, 200]);
        bundle.begin(link(7), 0, at(11200));
        bundle.end(link(7), true, at(11201));
        (0..9).for_each(|_| bundle.end_round(at(11201)));
        assert_eq!(bundle.due(), at(21201));
        let mut bundle = Bundle::new([1; 16]);
        bundle.lose_path(at(5));
        assert_eq!(bundle.due(), Time::NEVER);
    }

    #[test]
    fn a_peer_that_may_lack_links_is_sought_without_haste() {
        let sought_at = |act: &dyn Fn(&mut Bundle)| {
            let mut bundle = agreed(true);
            bundle.lose_path(at(50));
            act(&mut bundle);
            (0..2).for_each(|_| bundle.end_round(at(1000)));
            bundle.due()
        };
        let call = |bundle: &mut Bundle, is_up: bool, fault| {
            bundle.begin(link(1), 0, at(100));
            if is_up {
                bundle.note_up(link(1), at(110));
            }
            bundle.fail(link(1), fault, at(900));
        };
        let hasty = at(1100);
        assert_eq!(sought_at(&|_| {}), hasty);
        assert_eq!(sought_at(&|it| call(it, false, CallFault::Refused)), hasty);
        assert_eq!(sought_at(&|it| call(it, false, CallFault::NoAnswer)), hasty);
        assert!(sought_at(&|it| call(it, true, CallFault::NoAnswer)) > hasty);
        // It has not seen yet that the path is lost.
        assert_eq!(sought_at(&|it| call(it, true, CallFault::TurnedDown)), hasty);
        assert!(sought_at(&|it| it.calm(at(60))) > hasty);
    }

    #[test]
    fn the_number_of_an_attempt_that_came_to_nothing_is_given_again() {
        let mut bundle = agreed(true);
        let mut attempt = |number: u32, has_joined| {
            bundle.begin(link(number), 0, at(0));
            let path = bundle.name_path();
            bundle.end(link(number), has_joined, at(0));
            path
        };
        let first = attempt(1, false);
        assert_eq!((attempt(2, false), attempt(3, true)), (first, first));
        let second = attempt(4, false);
        assert!(second != first && attempt(5, true) == second && attempt(6, true) != second);
    }

    #[test]
    fn the_time_for_an_answer_runs_from_when_its_link_is_there() {
        let mut bundle = agreed(true);
        bundle.begin(link(1), 0, at(0));
        bundle.note_up(link(2), at(500));
        bundle.note_up(link(1), at(900));
        assert_eq!((bundle.is_late(at(1899)), bundle.is_late(at(1900))), (None, Some(link(1))));
    }

    #[test]
    fn an_attempt_that_takes_too_long_is_named() {
        let mut bundle = agreed(true);
        bundle.begin(link(1), 0, at(0));
        assert_eq!((bundle.is_late(at(999)), bundle.is_late(at(1000))), (None, Some(link(1))));
    }

    #[test]
    fn the_side_that_adds_no_paths_is_never_due() {
        let bundle = agreed(false);
        assert_eq!((bundle.due(), bundle.next_way(at(0))), (Time::NEVER, None));
        assert!(bundle.key().is_some());
    }

    #[test]
    fn both_sides_make_one_key() {
        let (mut low, mut high) = (Bundle::new([1; 16]), Bundle::new([2; 16]));
        low.agree(SessionId::own(5), &[2; 16], true, true, at(0));
        high.agree(SessionId::own(5), &[1; 16], false, false, at(0));
        let claim = super::super::key::Claim {
            prover: super::super::key::Prover::Caller,
            session: SessionId::own(5),
            caller_nonce: 1,
            acceptor_nonce: 2,
            path: 2,
            counter: 1,
            rail: 0,
            entropy: 0,
            modes: [0; 2],
        };
        let proof = low.key().unwrap().prove(&claim);
        assert!(high.key().unwrap().holds(&claim, &proof));
    }

    #[test]
    fn paths_that_rest_are_sought_with_the_next_traffic_or_the_next_loss() {
        let mut bundle = agreed(true);
        bundle.narrow(7);
        bundle.narrow(8);
        assert!(!bundle.widens(7, at(1)));
        assert_eq!((bundle.due(), bundle.next_way(at(5))), (Time::NEVER, None));
        assert!(bundle.widens(8, at(6)) && !bundle.widens(9, at(7)));
        assert_eq!((bundle.due(), bundle.next_way(at(6))), (at(6), Some(0)));
        bundle.narrow(9);
        bundle.lose_path(at(10));
        assert_eq!(bundle.due(), at(6));
    }

    #[test]
    fn an_older_attempt_of_the_peer_is_refused() {
        let mut bundle = agreed(false);
        assert!(bundle.is_newer(1) && !bundle.is_newer(1) && bundle.is_newer(3));
        assert!(!bundle.is_newer(2) && !bundle.is_newer(0));
    }
}
