//! Credit: how many eager bytes, requests and announces a peer may send.
//!
//! Limits are absolute (counted from the session's beginning), so a `Credit` frame that comes twice
//! or late does no harm. All that the peers of an endpoint may have sent unmatched is lent from one
//! pool: an idle peer holds the first window only, a busy one is lent more, out of half the pool. The
//! other half is for first windows, since nothing that was lent comes back before its session ends: with
//! the usual sizes 1337 newcomers find room, however busy others have been, and 1008 over packets.

use std::time::Duration;

use ropewalk_base::limits::{EAGER_BYTES, EAGER_BYTES_LONG, EAGER_BYTES_SHORT, REQUEST_BYTES_MAX};
use ropewalk_base::time::Time;
use ropewalk_wire::frame::{Content, CreditBody};

use crate::api::{Channel, PeerId};
use crate::engine::Core;

/// Bytes that a message counts beside its payload: what we keep to remember it.
const OVERHEAD_BYTES: u64 = 128;
/// The least that a message with a payload occupies.
const BUFFER_BYTES_MIN: u64 = 256;

/// A peer that uses half its window within this time may have waited for credit, and is lent more: it uses a window
/// up once a round trip, however long that is. A receiver cannot see whether the sender waited, since it does not see
/// frames on their way. A slower peer did not wait.
const BUSY_WITHIN: Duration = Duration::from_millis(100);

/// The largest window that traffic alone makes, in bytes. More under way would only leave the processors'
/// caches; what waits for receives is another matter.
const TRAFFIC_WINDOW_MAX: u64 = 1 << 20;

/// Long messages in a row that find their receives, after which they need not be announced any more.
const AWAITED_LONG: u32 = 4;

/// The charge of an eager message. Both sides count the buffer that it may occupy, whose size is a power of two, so
/// that a peer never uses more than it was lent.
#[inline]
pub(crate) fn charge_bytes(payload_bytes: u64) -> u64 {
    let buffer = match payload_bytes {
        0 => 0,
        bytes => bytes.next_power_of_two().max(BUFFER_BYTES_MIN),
    };
    buffer + OVERHEAD_BYTES
}

/// The smallest window with which a sender of messages of up to `bytes_max` bytes never gets stuck: the
/// receiver tells news of half a window, so that one message has to fit into the other half.
fn window_min(bytes_max: u32) -> u64 {
    (2 * charge_bytes(u64::from(bytes_max))).next_multiple_of(1024)
}

/// The windows for bytes, one for each account.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Windows {
    pub eager: u64,
    pub request: u64,
}

impl Windows {
    fn sum(self) -> u64 {
        self.eager + self.request
    }
}

/// The credit that the peer granted us, and our use of it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Granted {
    pub eager_limit: u64,
    pub eager_used: u64,
    pub request_limit: u64,
    pub request_used: u64,
    pub announce_limit: u64,
    pub announce_used: u64,
    /// There is no more for eager messages before some are received.
    pub eager_ends: bool,
    /// The least that may be outstanding of eager messages.
    pub eager_window: u64,
    /// The longest message that leaves at once over the present link, and the longest payload of a frame there.
    pub eager_bytes: u64,
    pub frame_bytes: u64,
    /// The first of these where nobody waits for long messages, and where somebody does.
    pub short_bytes: u64,
    pub long_bytes: u64,
    /// Nobody waited for long ones.
    pub announce_long: bool,
}

/// The credit that we granted the peer, its use of it, and the part that we freed again.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Received {
    pub eager: Account,
    pub request: Account,
    pub announce: Account,
    /// Nobody waited for a long message: the peer announces such until so many in a row have found their receives.
    announce_long: bool,
    awaited_long: u32,
}

/// One kind of credit, on the receiving side.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Account {
    /// May be outstanding at a time.
    pub window: u64,
    /// Arrived.
    pub arrived: u64,
    /// Arrived and freed again.
    pub freed: u64,
    /// The limit that the peer was told last, and when.
    pub told: u64,
    told_at: Time,
    /// The most that one message counts. Where there is less room the peer may be waiting.
    largest: u64,
    /// The limit at which there is no more for now.
    ended: u64,
}

impl Account {
    fn begin(window: u64, largest: u64, now: Time) -> Account {
        let told = window;
        // For longer ones nobody waits ([`Granted::comes_back`]). Who takes less than is usual may have peers that do not.
        let usual = charge_bytes(u64::from(EAGER_BYTES));
        let largest = if largest < usual { window / 2 } else { largest.min(window / 2) };
        Account { window, arrived: 0, freed: 0, told, told_at: now, largest, ended: 0 }
    }

    /// Whether what the peer was not told of yet is half the window, or it may be waiting for it.
    #[inline]
    fn has_news(&self) -> bool {
        let news = self.freed + self.window - self.told;
        2 * news >= self.window.max(1) || (news > 0 && self.is_scarce())
    }

    /// Whether there may be no room for another message.
    #[inline]
    fn is_scarce(&self) -> bool {
        // Foreign peers may be beyond it.
        self.told.saturating_sub(self.arrived) < self.largest
    }

    /// Whether nothing of it is here any more.
    pub fn is_clear(&self) -> bool {
        self.freed == self.arrived
    }

    fn is_busy(&self, now: Time) -> bool {
        self.has_news() && now.since(self.told_at) <= BUSY_WITHIN
    }

    /// The limit that the peer is told now.
    fn tell(&mut self, now: Time) -> u64 {
        let limit = self.freed + self.window;
        if limit > self.told {
            (self.told, self.told_at) = (limit, now);
        }
        self.told
    }

    #[inline]
    fn arrive(&mut self, amount: u64) -> bool {
        let allowed = self.arrived + amount <= self.told;
        if allowed {
            self.arrived += amount;
        }
        allowed
    }

    /// Whether a message with so many bytes may come.
    #[inline]
    pub fn has_room(&self, payload_bytes: u64) -> bool {
        self.arrived + charge_bytes(payload_bytes) <= self.told
    }

    /// A message came and went to its receive in one go; true where the peer should be told.
    #[inline]
    pub fn pass(&mut self, payload_bytes: u64) -> bool {
        let amount = charge_bytes(payload_bytes);
        self.arrived += amount;
        self.free(amount)
    }

    /// Frees some of it; true where the peer should be told.
    #[inline]
    fn free(&mut self, amount: u64) -> bool {
        self.freed += amount;
        debug_assert!(self.freed <= self.arrived, "what is freed has arrived");
        self.has_news()
    }
}

impl Received {
    /// The account that a message counts against, and how much.
    #[inline]
    fn account(&mut self, charge: Charge) -> (&mut Account, u64) {
        match charge {
            Charge::Eager { channel: Channel::Request, payload_bytes } => {
                (&mut self.request, charge_bytes(payload_bytes))
            }
            Charge::Eager { payload_bytes, .. } => (&mut self.eager, charge_bytes(payload_bytes)),
            Charge::Announce => (&mut self.announce, 1),
        }
    }

    /// Whether the peer should be told of what came back.
    pub fn has_news(&self) -> bool {
        [&self.eager, &self.request, &self.announce].iter().any(|account| account.has_news())
    }

    /// Whether nothing of the peer is here any more.
    pub fn is_clear(&self) -> bool {
        [&self.eager, &self.request, &self.announce].iter().all(|account| account.is_clear())
    }

    /// Counts the arrival of a message from somebody who knows nothing of credit; false where there is no
    /// room for it. There is for one that somebody takes at once, and for a single one of any length.
    pub fn arrive_foreign(&mut self, charge: Charge, taken: bool) -> bool {
        let (account, amount) = self.account(charge);
        let allowed = taken || account.is_clear() || account.arrived + amount <= account.told;
        if allowed {
            account.arrived += amount;
        }
        allowed
    }

    /// Counts the arrival of a message; false where the peer was not allowed to send it.
    #[inline]
    #[must_use]
    pub fn arrive(&mut self, charge: Charge) -> bool {
        let (account, amount) = self.account(charge);
        account.arrive(amount)
    }
}

impl Granted {
    /// The link tells how long messages and frames may be.
    pub fn limit(&mut self, eager_bytes: u64, frame_bytes: u64) {
        self.frame_bytes = frame_bytes;
        self.long_bytes = eager_bytes;
        self.short_bytes = eager_bytes.min(EAGER_BYTES_SHORT.into());
        self.choose();
    }

    fn choose(&mut self) {
        self.eager_bytes = if self.announce_long { self.short_bytes } else { self.long_bytes };
    }

    /// Takes credit for an eager message, where there is enough.
    #[inline]
    pub fn take_eager(&mut self, channel: Channel, payload_bytes: u64) -> bool {
        let (limit, used) = match channel {
            Channel::Request => (self.request_limit, &mut self.request_used),
            _ => (self.eager_limit, &mut self.eager_used),
        };
        let charge = charge_bytes(payload_bytes);
        if *used + charge > limit {
            return false;
        }
        *used += charge;
        true
    }

    /// Whether credit for an eager message comes back without being asked for: both sides may reckon with other limits,
    /// and who was sent little tells of it when it is half of the window, or where no message of its own limit has room.
    pub fn comes_back(&self, payload_bytes: u64) -> bool {
        !self.eager_ends && 2 * charge_bytes(payload_bytes) <= self.eager_window
    }

    /// Takes credit for an announce, where there is some.
    pub fn take_announce(&mut self) -> bool {
        if self.announce_used >= self.announce_limit {
            return false;
        }
        self.announce_used += 1;
        true
    }
}

/// The account that a message is charged to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Charge {
    Eager { channel: Channel, payload_bytes: u64 },
    Announce,
}

impl Core {
    /// Counts the arrival of a message; false where the peer ignored its credits.
    #[must_use]
    pub(crate) fn charge(&mut self, peer: PeerId, charge: Charge) -> bool {
        let Some(peer) = self.peers.get_mut(peer.0) else { return false };
        peer.received.arrive(charge)
    }

    /// Gives credit of this session back: the message does not occupy us any more.
    #[inline(always)]
    pub(crate) fn free_charge(&mut self, id: PeerId, session: u32, charge: Charge) {
        let Some(peer) = self.peers.get_mut(id.0).filter(|peer| peer.session == session) else {
            if let Charge::Eager { payload_bytes, .. } = charge {
                self.orphan_bytes -= charge_bytes(payload_bytes);
            }
            return;
        };
        let (account, amount) = peer.received.account(charge);
        // While its link is lost, a session that resumes keeps the news for the next one.
        if account.free(amount) && (peer.link().is_some() || peer.reliable.is_some()) {
            self.tell_credit(id);
        }
    }

    #[cold]
    pub(crate) fn tell_credit(&mut self, id: PeerId) {
        let max = u64::from(self.config.eager_window_bytes_max).min(TRAFFIC_WINDOW_MAX);
        let now = self.now;
        let Some(peer) = self.peers.get_mut(id.0) else { return };
        let Received { eager, request, .. } = &mut peer.received;
        for account in [&mut *eager, &mut *request] {
            let more = account.window.min(max.saturating_sub(account.window));
            let lent = self.lent_bytes + self.orphan_bytes + more;
            if account.is_busy(now) && lent <= self.config.eager_pool_bytes / 2 {
                account.window += more;
                self.lent_bytes += more;
            }
        }
        self.say_credit(id);
    }

    /// A message waits for its receive. A peer whose messages fill half of what they may is lent more, before
    /// it waits for it: programs send before they receive, and count on it. Where there is no more to lend it
    /// is told, and announces the others.
    #[inline]
    pub(crate) fn lend_to_waiting(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get(id.0) else { return };
        let eager = &peer.received.eager;
        let fills = 2 * (eager.arrived - eager.freed) >= eager.window;
        if fills && (eager.is_scarce() || self.may_lend(eager)) {
            self.lend(id);
        }
    }

    fn may_lend(&self, eager: &Account) -> bool {
        self.more_for(eager) > 0
    }

    /// By how much the window of an account may grow.
    fn more_for(&self, eager: &Account) -> u64 {
        let max = u64::from(self.config.eager_window_bytes_max);
        let more = eager.window.min(max.saturating_sub(eager.window));
        let lent = self.lent_bytes + self.orphan_bytes + more;
        if lent <= self.config.eager_pool_bytes / 2 { more } else { 0 }
    }

    /// The longest message that a peer may send at once as far as its credit reaches, where that is a long one.
    fn long_bytes_of(&self, id: PeerId) -> Option<u64> {
        let peer = self.peers.get(id.0).filter(|it| !it.foreign && it.reliable.is_none())?;
        let bytes = self.eager_bytes_over(peer.link()?, false);
        (bytes > u64::from(EAGER_BYTES_LONG)).then_some(bytes)
    }

    /// A message came for which nobody waits. To stage a long one costs more than to announce it: the peer is told.
    #[inline]
    pub(crate) fn note_unmatched(&mut self, id: PeerId, payload_bytes: u64) {
        if payload_bytes > u64::from(EAGER_BYTES_SHORT) {
            self.refuse_long(id);
        }
    }

    #[cold]
    fn refuse_long(&mut self, id: PeerId) {
        let applies = self.long_bytes_of(id).is_some();
        let Some(peer) = self.peers.get_mut(id.0).filter(|_| applies) else { return };
        peer.received.awaited_long = 0;
        if !std::mem::replace(&mut peer.received.announce_long, true) {
            self.say_credit(id);
        }
    }

    /// A message was announced for which somebody waits: where it is one of those that come at once as far as credit
    /// reaches, the next one of its length has room.
    pub(crate) fn lend_for(&mut self, id: PeerId, payload_bytes: u64) {
        if self.long_bytes_of(id).is_none_or(|most| payload_bytes > most) {
            return;
        }
        let Some(peer) = self.peers.get_mut(id.0) else { return };
        let received = &mut peer.received;
        if received.announce_long {
            received.awaited_long += 1;
            if received.awaited_long < AWAITED_LONG {
                return;
            }
            received.announce_long = false;
            self.say_credit(id);
        }
        let Some(peer) = self.peers.get(id.0) else { return };
        let charge = charge_bytes(payload_bytes);
        let wanted = (2 * charge).max((8 * charge).min(TRAFFIC_WINDOW_MAX));
        let more = wanted.saturating_sub(peer.received.eager.window);
        let lent = self.lent_bytes + self.orphan_bytes + more;
        let allowed = wanted <= u64::from(self.config.eager_window_bytes_posted)
            && lent <= self.config.eager_pool_bytes / 2;
        if more == 0 || !allowed {
            return;
        }
        if let Some(peer) = self.peers.get_mut(id.0) {
            peer.received.eager.window += more;
        }
        self.lent_bytes += more;
        self.say_credit(id);
    }

    #[cold]
    fn lend(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get(id.0) else { return };
        let more = self.more_for(&peer.received.eager);
        let Some(peer) = self.peers.get_mut(id.0) else { return };
        let eager = &mut peer.received.eager;
        eager.window += more;
        let news = more > 0 || eager.has_news() || eager.ended != eager.told;
        self.lent_bytes += more;
        if news {
            self.say_credit(id);
        }
    }

    fn say_credit(&mut self, id: PeerId) {
        let now = self.now;
        let Some(peer) = self.peers.get(id.0) else { return };
        let grows = self.may_lend(&peer.received.eager);
        let Some(peer) = self.peers.get_mut(id.0) else { return };
        let Received { eager, request, announce, announce_long, .. } = &mut peer.received;
        let limit = eager.tell(now);
        let ends = eager.is_scarce() && !grows;
        if ends {
            eager.ended = limit;
        }
        let body = CreditBody {
            eager_limit: limit.into(),
            eager_ends: u8::from(ends),
            announce_long: u8::from(*announce_long),
            reserved: [0; 6],
            request_limit: request.tell(now).into(),
            announce_limit: announce.tell(now).into(),
        };
        self.emit_control(id, body);
    }

    /// The first windows of a new session; `None` where the pool has none left. Once half the pool is
    /// lent, which is all that windows grow from, newcomers get the least that works.
    pub(crate) fn first_windows(&self) -> Option<Windows> {
        let (least, bytes) = (self.least_windows(), u64::from(self.config.eager_window_bytes));
        let usual = bytes.next_multiple_of(1024);
        let eager = usual.max(window_min(self.eager_bytes_sure()));
        let usual = Windows { eager, request: usual.max(least.request) };
        let used = self.lent_bytes + self.orphan_bytes;
        let pool = self.config.eager_pool_bytes;
        match used {
            used if used + usual.sum() <= pool / 2 => Some(usual),
            used if used + least.sum() <= pool => Some(least),
            _ => None,
        }
    }

    /// The smallest windows with which nothing gets stuck. A message that is too long for them may
    /// be announced, a longer request may not.
    pub(crate) fn least_windows(&self) -> Windows {
        let eager = self.eager_bytes_sure().min(EAGER_BYTES_SHORT);
        Windows { eager: window_min(eager), request: window_min(REQUEST_BYTES_MAX) }
    }

    /// The session begins: the first windows, of which the peer was told, are lent.
    pub(crate) fn begin_credit(&mut self, id: PeerId, windows: Windows) {
        let announces = u64::from(self.config.announce_window);
        self.lent_bytes += windows.sum();
        let now = self.now;
        let eager = charge_bytes(u64::from(self.eager_bytes_sure()));
        let request = charge_bytes(u64::from(REQUEST_BYTES_MAX));
        let Some(peer) = self.peers.get_mut(id.0) else { return };
        peer.received.eager = Account::begin(windows.eager, eager, now);
        peer.received.request = Account::begin(windows.request, request, now);
        peer.received.announce = Account::begin(announces, 1, now);
    }

    /// The session ended: what was lent comes back, but for messages that are still here.
    pub(crate) fn end_credit(&mut self, id: PeerId) {
        let Some(peer) = self.peers.get_mut(id.0) else { return };
        for account in [&peer.received.eager, &peer.received.request] {
            self.lent_bytes -= account.window;
            self.orphan_bytes += account.arrived - account.freed;
        }
        peer.received = Received::default();
        peer.granted = Granted::default();
    }

    /// The peer allows us more.
    pub(crate) fn arrive_credit(&mut self, id: PeerId, body: CreditBody) {
        let Some(peer) = self.peers.get_mut(id.0) else { return };
        let granted = &mut peer.granted;
        if body.eager_limit.get() >= granted.eager_limit {
            granted.eager_limit = body.eager_limit.get();
            granted.eager_ends = body.eager_ends == 1;
            granted.announce_long = body.announce_long == 1;
            granted.choose();
        }
        granted.request_limit = granted.request_limit.max(body.request_limit.get());
        granted.announce_limit = granted.announce_limit.max(body.announce_limit.get());
        self.pump(id);
    }

    /// Whether a small message without credit waits for some: a receiver that takes messages gives it back
    /// within a round trip, one that does not lends more, and a message costs one frame then instead of four.
    /// A receiver without more to lend says so: it may be waiting for a message behind.
    pub(crate) fn awaits_credit(&self, id: PeerId, payload_bytes: u64) -> bool {
        self.peers.get(id.0).is_some_and(|peer| peer.granted.comes_back(payload_bytes))
    }

    /// A control frame to a peer whose session runs.
    pub(crate) fn emit_control<B: Content>(&mut self, id: PeerId, body: B) {
        self.emit(id, body, None);
    }
}
