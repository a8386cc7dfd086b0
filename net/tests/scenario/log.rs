//! What was posted, and how it ended; and whether that may be.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_base::error::Fault;
use ropewalk_net::{Completed, Direction, Level};

use super::plan::SLOT;

/// The number of the operation by which a region comes back.
pub const REGION: u64 = u64::MAX;
const RECEIVES: u64 = 1_000_000;
const GETS: u64 = 2_000_000;
const COUNTS: u64 = 3_000_000;

/// A message.
#[derive(Debug, Clone, Copy)]
pub struct Sent {
    pub side: usize,
    pub channel: usize,
    pub len: usize,
    pub level: Level,
}

#[derive(Debug, Clone, Copy)]
struct Posted {
    side: usize,
    channel: usize,
    len: usize,
    life: u64,
}

#[derive(Debug, Clone, Copy)]
struct Accessed {
    side: usize,
    direction: Direction,
    len: usize,
    place: usize,
    /// The life whose region it is.
    life: u64,
}

/// An addition of one to the counter of a region.
#[derive(Debug, Clone, Copy)]
struct Counted {
    side: usize,
    /// The life whose region it is.
    life: u64,
    /// The counter before it.
    before: Option<u64>,
}

#[derive(Debug, Default)]
pub struct Log {
    sent: BTreeMap<u64, Sent>,
    receives: BTreeMap<u64, Posted>,
    accesses: BTreeMap<u64, Accessed>,
    counts: BTreeMap<u64, Counted>,
    outcomes: BTreeMap<u64, Result<(), Fault>>,
    /// Receives, and the messages that they got.
    got: BTreeMap<u64, u64>,
    requests: [Vec<u64>; 2],
    arrived: BTreeSet<u64>,
    cancelled: BTreeSet<u64>,
    /// Operations whose side is gone, and messages before which one of both sides was restarted.
    gone: BTreeSet<u64>,
    lost: BTreeSet<u64>,
    lasts: BTreeSet<u64>,
    lives: [u64; 2],
    regions: usize,
    writes: usize,
    /// Accesses that a region has slots for, of each direction.
    slots: usize,
}

/// The byte at a place of a message.
pub fn pattern(index: usize, seed: u64) -> u8 {
    (index as u8).wrapping_mul(31).wrapping_add((index >> 8) as u8) ^ (seed as u8).wrapping_mul(7)
}

pub fn fill(bytes: &mut [u8], seed: u64) {
    bytes.iter_mut().enumerate().for_each(|(index, byte)| *byte = pattern(index, seed));
}

fn check(bytes: &[u8], from: usize, seed: u64, what: &str) {
    let wrong =
        bytes.iter().enumerate().find(|(index, byte)| **byte != pattern(from + index, seed));
    assert!(wrong.is_none(), "{what} {seed}: byte {wrong:?} of {}", bytes.len());
}

impl Log {
    pub fn new(slots: usize) -> Log {
        Log { slots, ..Log::default() }
    }

    pub fn send(&mut self, sent: Sent) -> u64 {
        let user = self.sent.len() as u64 + 1;
        self.sent.insert(user, sent);
        user
    }

    pub fn receive(&mut self, side: usize, channel: usize, len: usize, life: u64) -> u64 {
        let user = RECEIVES + self.receives.len() as u64;
        self.receives.insert(user, Posted { side, channel, len, life });
        user
    }

    /// The number of an access, and the offset that it has for itself.
    pub fn access(
        &mut self,
        side: usize,
        direction: Direction,
        len: usize,
        lives: [u64; 2],
    ) -> Option<(u64, usize)> {
        let user = GETS + self.accesses.len() as u64;
        let life = lives[1 - side];
        let such = |it: &&Accessed| (it.side, it.direction, it.life) == (side, direction, life);
        let number = self.accesses.values().filter(such).count();
        // What is read is never written.
        let half = if direction == Direction::Put { self.slots } else { 0 };
        let place = (half + number) * SLOT;
        (number < self.slots).then(|| {
            self.accesses.insert(user, Accessed { side, direction, len, place, life });
            (user, place)
        })
    }

    /// The number of an addition to the counter of the other side's region.
    pub fn count(&mut self, side: usize, lives: [u64; 2]) -> u64 {
        let user = COUNTS + self.counts.len() as u64;
        self.counts.insert(user, Counted { side, life: lives[1 - side], before: None });
        user
    }

    /// The place of the counter, behind all slots.
    pub fn counter(&self) -> usize {
        2 * self.slots * SLOT
    }

    pub fn cancelled(&mut self, user: u64) {
        self.cancelled.insert(user);
    }

    pub fn last(&mut self, user: u64) {
        self.lasts.insert(user);
    }

    pub fn is_receive(&self, user: u64) -> bool {
        self.receives.contains_key(&user)
    }

    pub fn outcome(&self, user: u64) -> Option<Result<(), Fault>> {
        self.outcomes.get(&user).copied()
    }

    /// Whether a message arrived.
    pub fn has(&self, message: u64) -> bool {
        self.arrived.contains(&message)
    }

    pub fn regions(&self) -> usize {
        self.regions
    }

    pub fn has_open_receive(&self, side: usize, channel: usize) -> bool {
        self.receives.iter().any(|(user, posted)| {
            let is_open = !self.outcomes.contains_key(user) && !self.gone.contains(user);
            (posted.side, posted.channel) == (side, channel) && is_open
        })
    }

    /// A side was restarted: what it had posted is gone, and what was on the way may be lost.
    pub fn restarted(&mut self, side: usize) {
        self.lives[side] += 1;
        let sent = self.sent.iter().map(|(user, sent)| (*user, sent.side));
        let receives = self.receives.iter().map(|(user, posted)| (*user, posted.side));
        let accesses = self.accesses.iter().map(|(user, access)| (*user, access.side));
        let counts = self.counts.iter().map(|(user, count)| (*user, count.side));
        let of_side =
            sent.chain(receives).chain(accesses).chain(counts).filter(|(_, of)| *of == side);
        let open = of_side.filter(|(user, _)| !self.outcomes.contains_key(user));
        let open: Vec<u64> = open.map(|(user, _)| user).collect();
        self.gone.extend(open);
        self.lost.extend(self.sent.keys());
    }

    pub fn request(&mut self, side: usize, message: u64, bytes: &[u8]) {
        let sent = self.sent.get(&message).unwrap_or_else(|| panic!("a request of nobody"));
        assert_eq!((sent.side, sent.channel, sent.len), (1 - side, 2, bytes.len()));
        check(bytes, 0, message, "request");
        self.requests[side].push(message);
        assert!(self.arrived.insert(message), "request {message} came twice");
    }

    pub fn end(&mut self, side: usize, completed: Completed) {
        let user = completed.user;
        if user == REGION {
            self.regions += 1;
            return self.check_region(side, completed);
        }
        assert!(!self.gone.contains(&user), "{user} is gone");
        let before = self.outcomes.insert(user, completed.outcome);
        assert!(before.is_none(), "operation {user} ended twice");
        if let Some(posted) = self.receives.get(&user).copied() {
            return self.received(posted, completed);
        }
        if let Some(access) = self.accesses.get(&user).copied() {
            if completed.outcome.is_ok() && access.direction == Direction::Get {
                let bytes = completed.memory.into_pooled().expect("it was pooled");
                assert_eq!(bytes.len(), access.len);
                for (index, byte) in bytes.iter().enumerate() {
                    let want = pattern(access.place + index, 0);
                    assert_eq!(*byte, want, "get {user}: byte {index} of {}", access.len);
                }
            }
            return;
        }
        if let Some(count) = self.counts.get_mut(&user) {
            count.before = completed.outcome.ok().map(|()| completed.bits);
            return;
        }
        let sent = self.sent.get(&user).unwrap_or_else(|| panic!("{user} was never posted"));
        assert_eq!(sent.side, side);
    }

    fn received(&mut self, posted: Posted, completed: Completed) {
        if !matches!(completed.outcome, Ok(()) | Err(Fault::Truncated)) {
            return;
        }
        let (user, message) = (completed.user, completed.bits);
        let sent = self.sent.get(&message).unwrap_or_else(|| panic!("a message of nobody"));
        assert_eq!((sent.side, sent.channel), (1 - posted.side, posted.channel));
        assert_eq!(completed.message_bytes, sent.len as u64, "message {message}");
        assert_eq!(completed.outcome.is_err(), sent.len > posted.len, "message {message}");
        let bytes = completed.memory.into_pooled().expect("it was pooled");
        let len = sent.len.min(posted.len);
        check(&bytes[..len], 0, message, "message");
        let untouched = bytes[len..].iter().all(|byte| *byte == 0xee);
        assert!(untouched, "message {message} wrote beyond its end");
        self.got.insert(user, message);
        assert!(self.arrived.insert(message), "message {message} came twice");
    }

    /// Every put that succeeded is there; nothing else was written but by puts that did not.
    fn check_region(&mut self, side: usize, completed: Completed) {
        let bytes = completed.memory.into_pooled().expect("it was pooled");
        let read = &bytes[..self.slots * SLOT];
        check(read, 0, 0, "what is read is written to");
        for (user, access) in &self.accesses {
            let is_here = access.side != side && access.life == self.lives[side] + 1;
            let done = self.outcomes.get(user) == Some(&Ok(()));
            if is_here && done && access.direction == Direction::Put {
                check(&bytes[access.place..][..access.len], 0, *user, "put");
                self.writes += 1;
            }
        }
        let word = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let (at, mut first) = (self.counter(), [0; 8]);
        first.iter_mut().zip(at..).for_each(|(byte, at)| *byte = pattern(at, 0));
        self.check_counter(side, word(&bytes[at..][..8]).wrapping_sub(word(&first)), word(&first));
    }

    /// Each addition that succeeded was done once, at a place of its own; the others once at most.
    fn check_counter(&self, side: usize, added: u64, first: u64) {
        let life = self.lives[side] + 1;
        let here = self.counts.values().filter(|it| it.side != side && it.life == life);
        let all = here.clone().count() as u64;
        let mut seen: Vec<u64> =
            here.filter_map(|it| it.before).map(|before| before.wrapping_sub(first)).collect();
        seen.sort_unstable();
        let is_once = seen.windows(2).all(|pair| pair[0] < pair[1]);
        let fits = seen.last().is_none_or(|last| *last < added);
        assert!(
            is_once && fits && seen.len() as u64 <= added && added <= all,
            "{added} were added by {all}, of which these succeeded: {seen:?}"
        );
    }

    /// What has not ended.
    pub fn open(&self) -> String {
        let users = self.sent.keys().chain(self.receives.keys()).chain(self.accesses.keys());
        let users = users.chain(self.counts.keys());
        let open = |user: &&u64| !self.outcomes.contains_key(user) && !self.gone.contains(user);
        let open: Vec<u64> = users.filter(open).copied().collect();
        format!("open {open:?}")
    }

    /// Whether all that happened may be. `resets`: sessions may have ended early.
    pub fn verify(&self, seed: u64, resets: bool) {
        for (user, outcome) in &self.outcomes {
            self.verify_outcome(seed, *user, *outcome, resets);
        }
        for side in 0..2 {
            let order = &self.requests[side];
            assert!(order.is_sorted(), "seed {seed}: requests out of order: {order:?}");
            for channel in 0..2 {
                self.verify_order(seed, side, channel);
            }
        }
        for side in 0..2 {
            for channel in 0..3 {
                self.verify_missing(seed, side, channel, resets);
            }
        }
    }

    fn verify_outcome(&self, seed: u64, user: u64, outcome: Result<(), Fault>, resets: bool) {
        match outcome {
            Ok(()) | Err(Fault::Truncated) => {}
            Err(Fault::Cancelled) if self.cancelled.contains(&user) => {}
            // The other side withdrew its part.
            Err(Fault::Cancelled) if !self.cancelled.is_empty() => {
                let is_ones = self.accesses.contains_key(&user) || self.counts.contains_key(&user);
                assert!(!is_ones, "seed {seed}: access {user}");
            }
            Err(Fault::PeerReset | Fault::BadKey | Fault::Unreachable | Fault::Cancelled)
                if resets => {}
            Err(fault) => panic!("seed {seed}: {user} ended with {fault:?}"),
        }
    }

    /// Receives that were cancelled while they had claimed a message, at most.
    fn withdrawn(&self, side: usize, channel: usize) -> usize {
        let such = |(user, posted): &(&u64, &Posted)| {
            let is_of = (posted.side, posted.channel) == (side, channel);
            is_of && matches!(self.outcomes.get(user), Some(Err(_)) | None)
        };
        let failed = self.receives.iter().filter(such);
        failed.filter(|(user, _)| self.outcome(**user) != Some(Err(Fault::Truncated))).count()
    }

    fn verify_order(&self, seed: u64, side: usize, channel: usize) {
        let posted = |user: &u64| self.receives[user];
        let such = |user: &u64| (posted(user).side, posted(user).channel) == (side, channel);
        let order: Vec<u64> =
            self.got.iter().filter(|(user, _)| such(user)).map(|(_, got)| *got).collect();
        let swapped = order.windows(2).filter(|pair| pair[0] > pair[1]).count();
        // A message that a withdrawn receive had claimed goes to the next one.
        let most = self.withdrawn(side, channel);
        assert!(swapped <= most, "seed {seed}: channel {channel} at {side}: {order:?}");
    }

    /// Messages that did not arrive.
    fn verify_missing(&self, seed: u64, side: usize, channel: usize, resets: bool) {
        let of = |sent: &Sent| (sent.side, sent.channel) == (1 - side, channel);
        let missing = self.sent.iter().filter(|(user, sent)| of(sent) && !self.has(**user));
        let missing = missing.filter(|(user, _)| {
            let excused = self.cancelled.contains(user) || self.gone.contains(user);
            !excused && !self.lost.contains(user)
        });
        let missing: Vec<u64> = missing.map(|(user, _)| *user).collect();
        let most = if channel == 2 { 0 } else { self.withdrawn(side, channel) };
        assert!(
            resets || missing.len() <= most,
            "seed {seed}: channel {channel} to {side}: {missing:?} did not arrive, {most} withdrawn"
        );
    }
}
