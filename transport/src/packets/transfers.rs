//! The state of native access: what was ordered, transfers to us and from us, memory that peers may access.

use std::collections::VecDeque;
use std::time::Duration;

use ropewalk_base::memory::Slice;
use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::time::Time;
use ropewalk_base::verb::Token;

use crate::pull::{Ask, PIECES_PER_ASK, Pull};
use crate::round_trip::RoundTrip;

/// Memory that the other side of a link may access.
#[derive(Debug)]
pub(super) struct Exposed {
    pub secret: u64,
    pub slice: Slice,
    pub writable: bool,
}

/// Pieces to be sent.
#[derive(Debug)]
pub(super) struct Serving {
    pub(super) handle: u64,
    pub source: Source,
    /// The whole transfer.
    pub(super) slice: Slice,
    pub(super) piece_bytes: u32,
    pub(super) ask: Ask,
}

/// The source of the bytes of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Source {
    pub slot: u64,
    pub secret: u64,
    pub offered: bool,
}

/// Pieces that one link may have under way: at first, at least and at most. The least still leaves asks
/// behind the one that lost a piece, whose answers tell of the loss long before a time-out does.
pub(super) const WINDOW_FIRST: u32 = 128;
pub(super) const WINDOW_MIN: u32 = 3 * PIECES_PER_ASK;
pub(super) const WINDOW_MAX: u32 = 512;
/// Readings of all links.
pub(super) const READINGS_MAX: usize = 1 << 20;

/// A transfer to us.
#[derive(Debug)]
pub(super) struct Reading {
    pub(super) link: SlotId,
    pub(super) source: Source,
    pub(super) offset: u64,
    pub(super) pull: Pull,
    pub(super) total_bytes: u64,
    pub(super) into: Slice,
    pub(super) purpose: Purpose,
    /// Its pieces under way count in the budget of the ring.
    pub(super) counted: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose {
    /// A read of ours.
    Read { access: SlotId },
    /// A write of theirs, to this region.
    Take { offer: u64, region: u64 },
}

/// The readings of a link.
#[derive(Debug)]
pub(super) struct Asks {
    pub(super) active: VecDeque<SlotId>,
    pub(super) waiting: VecDeque<SlotId>,
    pub(super) under_way: u32,
    pub(super) window: u32,
    pub(super) round_trip: RoundTrip,
    /// When a piece came last, and when the latest one that came was asked for.
    pub(super) heard_at: Time,
    pub(super) answered: Time,
    /// The window was narrowed then, and was so wide before.
    pub(super) narrowed_at: Time,
    window_before: u32,
    /// Asks so far.
    pub(super) turns: u32,
}

impl Default for Asks {
    fn default() -> Asks {
        Asks {
            active: VecDeque::new(),
            waiting: VecDeque::new(),
            under_way: 0,
            window: WINDOW_FIRST,
            round_trip: RoundTrip::default(),
            heard_at: Time::ZERO,
            answered: Time::ZERO,
            narrowed_at: Time::ZERO,
            window_before: 0,
            turns: 0,
        }
    }
}

impl Asks {
    /// Whether nothing is pulled.
    pub fn is_empty(&self) -> bool {
        self.active.is_empty() && self.waiting.is_empty()
    }

    /// When a piece has to be asked for again.
    pub fn due(&self, readings: &Slots<Reading>) -> Time {
        if self.active.is_empty() {
            return Time::NEVER;
        }
        let due =
            |id: &SlotId| readings.get(*id).map(|it| it.pull.due(&self.round_trip, self.heard_at));
        self.active.iter().filter_map(due).min().unwrap_or(Time::NEVER)
    }

    /// Since when the other side owes pieces.
    pub fn silent_since(&self, readings: &Slots<Reading>) -> Time {
        let since = |id: &SlotId| readings.get(*id).map(|it| it.pull.silent_since());
        self.active.iter().filter_map(since).min().unwrap_or(Time::NEVER)
    }

    /// Something was lost.
    pub(super) fn narrow(&mut self, now: Time) {
        if now.since(self.narrowed_at) >= self.round_trip.usual() {
            self.narrowed_at = now;
            self.window_before = self.window;
            self.window = (self.window * 7 / 8).max(WINDOW_MIN);
        }
    }

    /// A piece that was taken for lost was only late, by so much.
    pub(super) fn was_late(&mut self, by: Duration) {
        self.round_trip.was_late(by);
        self.window = self.window.max(std::mem::take(&mut self.window_before));
    }
}

/// A read or write that was ordered.
#[derive(Debug)]
pub(super) struct Access {
    pub(super) link: SlotId,
    pub(super) token: Token,
    /// Segments that are not over.
    pub left: u32,
    /// Its readings, or the numbers of its offers.
    pub(super) readings: Vec<SlotId>,
    pub offers: Vec<u64>,
}
