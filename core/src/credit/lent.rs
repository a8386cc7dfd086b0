//! The credit that we lent a peer: what it used, what came back, what it was told.

use std::time::Duration;

use ropewalk_base::limits::{EAGER_BYTES, UPDATE_BYTES_MAX};
use ropewalk_base::time::Time;
use ropewalk_wire::frame::CreditBody;

use super::{Charge, Pool, TRAFFIC_WINDOW_MAX, UPDATE_WINDOW, Windows, charge_bytes};
use crate::api::{Channel, PeerId};

/// A peer that uses half its window within this time may have waited for credit, and is lent more: it uses a window
/// up once a round trip, however long that is. A receiver cannot see whether the sender waited, since it does not see
/// frames on their way. A slower peer did not wait.
const BUSY_WITHIN: Duration = Duration::from_millis(100);

/// Longest pieces of updates for which a peer is lent room that uses layouts: its bytes come in few frames.
const UPDATES_LENT: u64 = 4;

/// Long messages in a row that find their receives, after which they need not be announced any more.
const AWAITED_LONG: u32 = 4;

/// The credit that we lent the peer, its use of it, and the part that we freed again.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Lent {
    eager: Account,
    request: Account,
    announce: Account,
    update: Account,
    /// The eager limit at which there is no more for now.
    eager_ended: u64,
    /// Nobody waited for a long message: the peer announces such until so many in a row have found their receives.
    rts_long: bool,
    awaited_long: u32,
}

/// Whether somebody waits for a peer's long messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Awaited {
    /// The peer may send them at once.
    Always,
    /// The peer announces them, and goes on to do so.
    Seldom,
    /// The peer announced them; it is to be told that it may send them at once.
    Again,
}

/// One kind of credit, on the receiving side.
#[derive(Debug, Clone, Copy)]
struct Account {
    /// May be outstanding at a time. Windows are far shorter than 4 GiB.
    window: u32,
    /// Arrived.
    arrived: u64,
    /// Arrived and freed again.
    freed: u64,
    /// The limit that the peer was told last, and when.
    told: u64,
    told_at: Time,
    /// The most that one message counts. Where there is less room the peer may be waiting.
    largest: u32,
}

impl Account {
    fn begin(window: u64, largest: u64, now: Time) -> Account {
        let told = window;
        // Nobody waits for longer ones ([`Granted::comes_back`]). An endpoint that takes less than usual may have peers
        // that do not.
        let usual = charge_bytes(u64::from(EAGER_BYTES));
        let largest = if largest < usual { window / 2 } else { largest.min(window / 2) };
        let narrow = |bytes: u64| u32::try_from(bytes).unwrap_or(u32::MAX);
        let (window, largest) = (narrow(window), narrow(largest));
        Account { window, arrived: 0, freed: 0, told, told_at: now, largest }
    }

    #[inline]
    fn window(&self) -> u64 {
        self.window.into()
    }

    fn grow(&mut self, more: u64) {
        self.window = self.window.saturating_add(u32::try_from(more).unwrap_or(u32::MAX));
    }

    /// Whether what the peer was not told of yet is half the window, or it may be waiting for it.
    #[inline]
    fn has_news(&self) -> bool {
        let news = self.freed + self.window() - self.told;
        2 * news >= self.window().max(1) || (news > 0 && self.is_scarce())
    }

    /// Whether there may be no room for another message.
    #[inline]
    fn is_scarce(&self) -> bool {
        // Foreign peers may be beyond it.
        self.told.saturating_sub(self.arrived) < u64::from(self.largest)
    }

    /// Whether nothing of it is here any more.
    fn is_clear(&self) -> bool {
        self.freed == self.arrived
    }

    /// By how much the window grows at a time, up to `max`: to twice its size.
    fn more_up_to(&self, max: u64) -> u64 {
        self.window().min(max.saturating_sub(self.window()))
    }

    fn is_busy(&self, now: Time) -> bool {
        self.has_news() && now.since(self.told_at) <= BUSY_WITHIN
    }

    /// The limit that the peer is told now.
    fn tell(&mut self, now: Time) -> u64 {
        let limit = self.freed + self.window();
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
    fn has_room(&self, payload_bytes: u64) -> bool {
        self.arrived + charge_bytes(payload_bytes) <= self.told
    }

    /// A message came and went to its receive in one go; true where the peer should be told.
    #[inline]
    fn pass(&mut self, payload_bytes: u64) -> bool {
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

impl Lent {
    /// The first windows of a session. `largest`: the most that a message counts against either.
    pub fn begin(windows: Windows, announces: u64, largest: Windows, now: Time) -> Lent {
        Lent {
            eager: Account::begin(windows.eager, largest.eager, now),
            request: Account::begin(windows.request, largest.request, now),
            announce: Account::begin(announces, 1, now),
            update: Account::begin(UPDATE_WINDOW, UPDATE_WINDOW / 2, now),
            eager_ended: 0,
            rts_long: false,
            awaited_long: 0,
        }
    }

    /// Bytes of all windows, and bytes that messages occupy here.
    pub fn window_and_occupied(&self) -> (u64, u64) {
        let accounts = [&self.eager, &self.request, &self.update];
        accounts.iter().fold((0, 0), |(window, occupied), account| {
            (window + account.window(), occupied + account.arrived - account.freed)
        })
    }

    /// Whether an eager message with so many bytes may come.
    #[inline]
    pub fn has_eager_room(&self, payload_bytes: u64) -> bool {
        self.eager.has_room(payload_bytes)
    }

    /// An eager message came and went to its receive in one go; true if the peer should be told.
    #[inline]
    pub fn pass_eager(&mut self, payload_bytes: u64) -> bool {
        self.eager.pass(payload_bytes)
    }

    /// Frees the charge of a message; true if the peer should be told.
    #[inline]
    pub fn free(&mut self, charge: Charge) -> bool {
        let (account, amount) = self.account(charge);
        account.free(amount)
    }

    /// Whether no rendezvous of the peer is under way here.
    pub fn has_no_rendezvous(&self) -> bool {
        self.announce.is_clear()
    }

    /// Lends a peer more that uses its windows up fast, up to `max` bytes each.
    pub fn grow_busy(&mut self, max: u64, pool: &mut Pool, now: Time) {
        for account in [&mut self.eager, &mut self.request, &mut self.update] {
            let more = account.more_up_to(max);
            if account.is_busy(now) && pool.has_room(more) {
                account.grow(more);
                pool.lend(more);
            }
        }
    }

    /// Lends room for some long pieces of updates, up to `max` bytes, where there is room.
    pub fn grow_update(&mut self, max: u64, pool: &mut Pool) {
        let wanted = (UPDATES_LENT * charge_bytes(u64::from(UPDATE_BYTES_MAX))).min(max);
        let more = wanted.saturating_sub(self.update.window());
        if pool.has_room(more) {
            self.update.grow(more);
            pool.lend(more);
        }
    }

    /// Whether unmatched messages fill half of the eager window, and the peer has to be lent more or to be told that
    /// there is no more.
    #[inline]
    pub fn is_filling(&self, max: u64, pool: &Pool) -> bool {
        let fills = 2 * (self.eager.arrived - self.eager.freed) >= self.eager.window();
        fills && (self.eager.is_scarce() || self.eager_more(max, pool) > 0)
    }

    /// By how much the eager window may grow.
    fn eager_more(&self, max: u64, pool: &Pool) -> u64 {
        let more = self.eager.more_up_to(max);
        if pool.has_room(more) { more } else { 0 }
    }

    /// Lets the eager window grow where there is room; true if the peer should be told.
    pub fn grow_eager(&mut self, max: u64, pool: &mut Pool) -> bool {
        let more = self.eager_more(max, pool);
        self.eager.grow(more);
        pool.lend(more);
        more > 0 || self.eager.has_news() || self.eager_ended != self.eager.told
    }

    /// Lets the eager window grow for messages of this length that find their receives; true if it grew.
    pub fn grow_for(&mut self, payload_bytes: u64, max: u64, pool: &mut Pool) -> bool {
        let charge = charge_bytes(payload_bytes);
        let wanted = (2 * charge).max((8 * charge).min(TRAFFIC_WINDOW_MAX));
        let more = wanted.saturating_sub(self.eager.window());
        if more == 0 || wanted > max || !pool.has_room(more) {
            return false;
        }
        self.eager.grow(more);
        pool.lend(more);
        true
    }

    /// Nobody waited for a long message. True if the peer has to be told that it announces such from now on.
    pub fn refuse_long(&mut self) -> bool {
        self.awaited_long = 0;
        !std::mem::replace(&mut self.rts_long, true)
    }

    /// Somebody waited for a long message that was announced.
    pub fn await_long(&mut self) -> Awaited {
        if !self.rts_long {
            return Awaited::Always;
        }
        self.awaited_long += 1;
        if self.awaited_long < AWAITED_LONG {
            return Awaited::Seldom;
        }
        self.rts_long = false;
        Awaited::Again
    }

    /// The news for the peer, which count as told. `max`: of the eager window.
    pub fn tell(&mut self, max: u64, pool: &Pool, now: Time) -> CreditBody {
        let grows = self.eager_more(max, pool) > 0;
        let limit = self.eager.tell(now);
        let ends = self.eager.is_scarce() && !grows;
        if ends {
            self.eager_ended = limit;
        }
        CreditBody {
            eager_limit: limit.into(),
            eager_ends: u8::from(ends),
            rts_long: u8::from(self.rts_long),
            layouts: 0.into(),
            reserved: [0; 4],
            request_limit: self.request.tell(now).into(),
            rts_limit: self.announce.tell(now).into(),
            update_limit: self.update.tell(now).into(),
        }
    }

    /// Asserts that what is outstanding is what is here: bytes of eager messages, and rendezvous.
    pub fn check(&self, id: PeerId, eager: u64, announces: u64) {
        let Lent { eager: lent, request, announce, update, .. } = self;
        assert_eq!(lent.arrived - lent.freed, eager, "eager credit of {id:?}");
        assert_eq!(announce.arrived - announce.freed, announces, "announce credit of {id:?}");
        assert!(request.freed <= request.arrived);
        assert!(update.freed <= update.arrived);
        for account in [lent, request, announce, update] {
            assert!(account.arrived <= account.told, "{id:?} was let over its limit");
            assert!(account.told <= account.freed + account.window());
        }
    }

    /// The account that a message counts against, and how much.
    #[inline]
    fn account(&mut self, charge: Charge) -> (&mut Account, u64) {
        match charge {
            Charge::Eager { channel: Channel::Request, payload_bytes } => {
                (&mut self.request, charge_bytes(payload_bytes))
            }
            Charge::Eager { payload_bytes, .. } => (&mut self.eager, charge_bytes(payload_bytes)),
            Charge::Rendezvous => (&mut self.announce, 1),
            Charge::Update { payload_bytes } => (&mut self.update, charge_bytes(payload_bytes)),
        }
    }

    /// Whether the peer should be told of what came back.
    pub fn has_news(&self) -> bool {
        self.accounts().iter().any(|account| account.has_news())
    }

    /// Whether nothing of the peer is here any more.
    pub fn is_clear(&self) -> bool {
        self.accounts().iter().all(|account| account.is_clear())
    }

    fn accounts(&self) -> [&Account; 4] {
        [&self.eager, &self.request, &self.announce, &self.update]
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
