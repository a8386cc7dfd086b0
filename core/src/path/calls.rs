//! Attempts to reach a peer, and a call of its own that has to wait.

use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;

/// Attempts from this number on insist; see `Core::connect_next`.
pub(crate) const INSIST_FROM: u32 = 1 << 16;

/// How long a greeting, or the answer to one, may take over a rail that loses nothing.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);
/// How long an attempt may take while there are other ways to try, in the first rounds over all of them. Later it has all
/// the time that its rail gives it.
const HURRY: [Duration; 2] = [Duration::from_millis(300), Duration::from_millis(1500)];
/// For how many milliseconds our call gives way to one that proves nothing yet, at least and at most.
const WAY_MILLIS: (u128, u128) = (10, 200);
/// Greetings in a row over a lossy rail before its address counts as dead.
const GREETINGS_MAX: u32 = 10;

/// How far we are in calling a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CallStage {
    /// Nothing to do, or nothing tried.
    Idle,
    /// A link is being made, over this attempt's address.
    Connecting { attempt: u32 },
    /// Our link was refused since theirs shall survive; we try again at this time.
    Yielded { until: Time },
    /// There was no descriptor for a link; tried again at this time.
    Crowded { attempt: u32, until: Time },
}

#[derive(Debug)]
pub(crate) struct Calls {
    stage: CallStage,
    /// A greeting that is not answered by then was in vain; over which link it went, and how many were lost in a row.
    greeted_until: Time,
    greeted_over: Option<LinkId>,
    greetings_lost: u32,
    round: Round,
    /// An endpoint that does not keep to the protocol answered at its address.
    babbled: bool,
    /// Since when there is no descriptor for a link to it; `NEVER`: there is.
    crowded_since: Time,
    /// That was so in the present round of attempts.
    crowded: bool,
    /// A link over which it called before its last frames over the old one were here.
    caller: Option<LinkId>,
    way: Way,
}

/// Whether a call of ours gave way to one of the peer's that proved nothing yet, and then for how many milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Way(u8);

impl Way {
    const OURS: Way = Way(0);
    /// An earlier call did.
    const WAS_GIVEN: Way = Way(u8::MAX);
}

/// One round over all ways to a peer, each of which is given little time while others are left.
#[derive(Debug, Clone, Copy)]
struct Round {
    count: u8,
    /// When the present attempt has had its time.
    until: Time,
    /// An attempt of this round had no more time.
    was_hurried: bool,
    /// The next attempt of a session that has lost its links.
    next: u16,
    /// How many of these were answered by other endpoints.
    strangers: u16,
}

impl Round {
    const FIRST: Round =
        Round { count: 0, until: Time::NEVER, was_hurried: false, next: 0, strangers: 0 };

    fn patience(&self) -> Option<Duration> {
        HURRY.get(usize::from(self.count)).copied()
    }

    /// No way is left.
    fn end(&mut self) -> bool {
        let again = self.was_hurried;
        *self = Round { count: self.count.saturating_add(again.into()), ..Round::FIRST };
        again
    }
}

impl Calls {
    pub const NONE: Calls = Calls {
        stage: CallStage::Idle,
        greeted_until: Time::NEVER,
        greeted_over: None,
        greetings_lost: 0,
        round: Round::FIRST,
        babbled: false,
        crowded_since: Time::NEVER,
        crowded: false,
        caller: None,
        way: Way::OURS,
    };

    pub fn stage(&self) -> CallStage {
        self.stage
    }

    /// Whether we do not call it, nor wait to call it.
    pub fn is_idle(&self) -> bool {
        self.stage == CallStage::Idle
    }

    /// Another attempt begins.
    pub fn begin(&mut self, attempt: u32) {
        self.stage = CallStage::Connecting { attempt };
        (self.greeted_until, self.round.until) = (Time::NEVER, Time::NEVER);
    }

    /// The driver makes the present attempt over the way of this number, beside which there are others. Returns when it
    /// has had its time.
    pub fn hurry(&mut self, way: u32, now: Time) -> Time {
        if let CallStage::Connecting { attempt } = &mut self.stage {
            *attempt = *attempt / INSIST_FROM * INSIST_FROM + way;
        }
        self.round.until = self.round.patience().map_or(Time::NEVER, |patience| now + patience);
        self.round.until
    }

    /// Whether the present attempt has had its time. Then it counts as hurried.
    pub fn is_hurried(&mut self, now: Time) -> bool {
        let is_hurried = self.round.until <= now;
        self.round.was_hurried |= is_hurried;
        is_hurried
    }

    /// No way is left in this round. True if another one follows, in which each has more time.
    pub fn end_round(&mut self) -> bool {
        self.round.end()
    }

    /// A session has lost its links, and is called by the driver's way of this number.
    pub fn retry(&mut self, way: u32, is_alone: bool, now: Time) {
        // Operations wait for it: a call over a broken way must not keep those over others back for long.
        let hurried = self.round.patience().unwrap_or(HURRY[HURRY.len() - 1]);
        let patience = if is_alone { PATIENCE } else { hurried };
        let next = u16::try_from(way + 1).unwrap_or(u16::MAX);
        (self.round.next, self.round.until) = (next, now + patience);
        self.greeted_until = Time::NEVER;
    }

    /// Whether the call of such a session has had its time, or its greeting was lost.
    pub fn is_retried_in_vain(&mut self, now: Time) -> bool {
        self.is_hurried(now) || self.greeted_until <= now
    }

    /// The way by which such a session is to be called next.
    pub fn retries_over(&self) -> u32 {
        self.round.next.into()
    }

    /// Another endpoint answered the call of such a session.
    pub fn note_stranger(&mut self) {
        self.round.strangers = self.round.strangers.saturating_add(1);
    }

    /// Whether other endpoints answered by all ways of this round.
    pub fn has_met_strangers_alone(&self) -> bool {
        self.round.strangers > 0 && self.round.strangers == self.round.next
    }

    /// The peer's own link shall survive: we wait for it until then.
    pub fn yield_until(&mut self, until: Time) {
        self.stage = CallStage::Yielded { until };
    }

    /// There is no room for a link: this attempt is made then.
    pub fn wait_for_room(&mut self, attempt: u32, until: Time) {
        self.stage = CallStage::Crowded { attempt, until };
    }

    /// We call it no more.
    pub fn end(&mut self) {
        (self.stage, self.round) = (CallStage::Idle, Round::FIRST);
    }

    /// When the next attempt is due.
    pub fn due(&self) -> Time {
        match self.stage {
            CallStage::Idle => Time::NEVER,
            CallStage::Connecting { .. } => self.greeted_until.min(self.round.until),
            CallStage::Yielded { until } | CallStage::Crowded { until, .. } => until,
        }
    }

    /// We greeted over a link. Returns the time by which the answer has to be here. `resend_after`: for a rail that
    /// loses frames.
    pub fn greet(&mut self, link: LinkId, now: Time, resend_after: Option<Duration>) -> Time {
        let patience = resend_after.map_or(PATIENCE, |it| it * (8 << self.greetings_lost.min(6)));
        self.greeted_over = Some(link);
        self.greeted_until = now + patience;
        self.greeted_until
    }

    /// The link of our last greeting.
    pub fn greeted_over(&self) -> Option<LinkId> {
        self.greeted_over
    }

    /// A greeting, or its answer, was lost. True if the address is worth another greeting.
    pub fn lose_greeting(&mut self, lossy: bool) -> bool {
        self.greeted_until = Time::NEVER;
        self.greetings_lost += 1;
        lossy && self.greetings_lost < GREETINGS_MAX
    }

    /// An endpoint that does not keep to the protocol answered.
    pub fn note_babble(&mut self) {
        self.babbled = true;
    }

    pub fn has_babbled(&self) -> bool {
        self.babbled
    }

    /// There was no descriptor for a link.
    pub fn note_crowd(&mut self, now: Time) {
        self.crowded = true;
        self.crowded_since = self.crowded_since.min(now);
    }

    /// Since when descriptors are missing, if that made the present round of attempts fail.
    pub fn crowded_since(&self) -> Option<Time> {
        Some(self.crowded_since).filter(|since| self.crowded && *since < Time::NEVER)
    }

    /// Another round of attempts begins.
    pub fn forget_crowd(&mut self) {
        self.crowded = false;
    }

    /// Lets a call of the peer's that proves nothing yet take the place of ours, for as long as its proof may take: twice as
    /// long as our greeting's answer took. False where an earlier call of ours did so.
    pub fn give_way(&mut self, now: Time, lossy: bool) -> bool {
        if self.way != Way::OURS {
            return false;
        }
        let left = if lossy { Duration::ZERO } else { self.greeted_until.since(now) };
        let answered = PATIENCE.saturating_sub(left);
        let millis = (2 * answered).as_millis().clamp(WAY_MILLIS.0, WAY_MILLIS.1);
        self.way = Way(millis as u8);
        true
    }

    /// For how long our next call waits, where this one gave way to such a call.
    pub fn take_way_given(&mut self) -> Option<Duration> {
        if matches!(self.way, Way::OURS | Way::WAS_GIVEN) {
            return None;
        }
        let Way(millis) = std::mem::replace(&mut self.way, Way::WAS_GIVEN);
        Some(Duration::from_millis(millis.into()))
    }

    /// A session began or ended: what went wrong before does not count any more.
    pub fn reset(&mut self) {
        self.way = Way::OURS;
        self.babbled = false;
        (self.crowded, self.crowded_since) = (false, Time::NEVER);
    }

    /// Our greeting was answered, and a session began.
    pub fn succeed(&mut self) {
        self.end();
        self.greetings_lost = 0;
        self.reset();
    }

    /// Keeps a link over which the peer called too early; returns the one that it called over before.
    pub fn keep_caller(&mut self, link: LinkId) -> Option<LinkId> {
        self.caller.replace(link).filter(|before| *before != link)
    }

    pub fn has_caller(&self) -> bool {
        self.caller.is_some()
    }

    pub fn take_caller(&mut self) -> Option<LinkId> {
        self.caller.take()
    }
}
