//! Native access: reads that pull, writes that are offered ([`super::remote_writes`]) and pulled, and regions that
//! serve.
//!
//! Both directions end in a [`Reading`] at the side to which the bytes go. This side asks for no more than its ring can
//! take, and it alone writes. So nothing lands late: a reading that this side ends is over.
//!
//! Invariants:
//! * an access is over when all its readings, or all its offers, are;
//! * a region that was revoked is neither read nor written: its asks and its readings went with it;
//! * pieces under way are counted, for each link and together, until they came or their reading ended.

use std::collections::VecDeque;
use std::hash::Hash;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::limits::REMOTE_SEGMENTS_MAX;
use ropewalk_base::memory::Slice;
use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::time::Time;
use ropewalk_base::verb::{Ordered, RemoteKey, RemoteLayout, RemoteSegment, Token, Verb};
use ropewalk_wire::packets::{self, Kind, PieceBody, PullBody, RefusalBody};
use zerocopy::{FromZeros, IntoBytes};

use super::machine::{Event, Machine};
use super::remote_writes::{BAD_KEY, GIVEN_UP, TAKEN};
use crate::driver::Driven;
use crate::memory::Bytes;
use crate::pull::{Ask, PIECES_PER_ASK, Pull};
use crate::round_trip::RoundTrip;

/// Asks of one link that wait for being served. A correct peer has fewer under way.
const SERVING_MAX: usize = 256;
/// Refusals that wait.
const REFUSALS_MAX: usize = 64;
/// Pieces that one link may have under way: at first, at least and at most. The least still leaves asks
/// behind the one that lost a piece, whose answers tell of the loss long before a time-out does.
const WINDOW_FIRST: u32 = 128;
const WINDOW_MIN: u32 = 3 * PIECES_PER_ASK;
const WINDOW_MAX: u32 = 512;
/// Readings of all links.
pub(super) const READINGS_MAX: usize = 1 << 20;
/// Readings of a link of which pieces are asked for at a time.
const READINGS_AT_ONCE: usize = 16;
/// Of so many asks one is the oldest reading's.
const TURNS_PER_OLDEST: u32 = 4;

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
    handle: u64,
    pub source: Source,
    /// The whole transfer.
    slice: Slice,
    piece_bytes: u32,
    ask: Ask,
}

/// The source of the bytes of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Source {
    pub slot: u64,
    pub secret: u64,
    pub offered: bool,
}

/// A transfer to us.
#[derive(Debug)]
pub(super) struct Reading {
    link: SlotId,
    source: Source,
    offset: u64,
    pull: Pull,
    total_bytes: u64,
    into: Slice,
    purpose: Purpose,
    /// Its pieces under way count in the budget of the ring.
    counted: bool,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Purpose {
    /// A read of ours.
    Read { access: SlotId },
    /// A write of theirs, to this region.
    Take { offer: u64, region: u64 },
}

/// A read or write that was ordered.
#[derive(Debug)]
pub(super) struct Access {
    link: SlotId,
    token: Token,
    /// Segments that are not over.
    pub left: u32,
    /// Its readings, or the numbers of its offers.
    readings: Vec<SlotId>,
    pub offers: Vec<u64>,
}

/// The readings of a link.
#[derive(Debug)]
pub(super) struct Asks {
    active: VecDeque<SlotId>,
    waiting: VecDeque<SlotId>,
    under_way: u32,
    window: u32,
    round_trip: RoundTrip,
    /// When a piece came last, and when the latest one that came was asked for.
    heard_at: Time,
    answered: Time,
    /// The window was narrowed then, and was so wide before.
    narrowed_at: Time,
    window_before: u32,
    /// Asks so far.
    turns: u32,
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
    fn narrow(&mut self, now: Time) {
        if now.since(self.narrowed_at) >= self.round_trip.usual() {
            self.narrowed_at = now;
            self.window_before = self.window;
            self.window = (self.window * 7 / 8).max(WINDOW_MIN);
        }
    }

    /// A piece that was taken for lost was only late, by so much.
    fn was_late(&mut self, by: Duration) {
        self.round_trip.was_late(by);
        self.window = self.window.max(std::mem::take(&mut self.window_before));
    }
}

impl<S: Copy + Eq + Hash + std::fmt::Debug> Machine<S> {
    /// Carries out an order that is no frame, as a rail does.
    pub fn order(&mut self, verb: &Verb, memory: &dyn Bytes) -> Ordered {
        match verb {
            Verb::Read { link, key, remote, local, token, .. } => {
                self.access(link.slot, *key, remote, *local, *token, false)
            }
            Verb::Write { link, key, remote, local, token } => {
                self.access(link.slot, *key, remote, *local, *token, true)
            }
            Verb::Expose { link, key, region, writable } => {
                let Some(state) = self.links.get_mut(link.slot) else {
                    return Ordered::Refused(Fault::PeerReset);
                };
                let (secret, slice, writable) = (key.secret, *region, *writable);
                state.exposed.insert(key.slot.to_u64(), Exposed { secret, slice, writable });
                Ordered::Released
            }
            Verb::Revoke { link, key } => self.revoke(link.slot, *key),
            Verb::Detach { link, token, later } => self.detach(link.slot, *token, *later, memory),
            Verb::Stop { token, .. } => self.stop(*token),
            Verb::Unplace { link, token } => self.unplace(link.slot, *token),
            Verb::Close { link } => self.close(link.slot),
        }
    }

    fn access(
        &mut self,
        id: SlotId,
        key: RemoteKey,
        remote: &RemoteLayout,
        local: Slice,
        token: Token,
        write: bool,
    ) -> Ordered {
        let Some(state) = self.links.get(id) else { return Ordered::Refused(Fault::PeerReset) };
        if !state.is_up() {
            return Ordered::Refused(Fault::Closed);
        }
        let whole;
        let segments: &[RemoteSegment] = match remote {
            RemoteLayout::At(offset) => {
                whole = [RemoteSegment { offset: *offset, len: local.len }];
                &whole
            }
            RemoteLayout::List(list) => list,
        };
        let named = segments.iter().map(|it| it.len).fold(0, u64::saturating_add);
        if named != local.len || segments.len() > REMOTE_SEGMENTS_MAX {
            return Ordered::Refused(Fault::Invalid);
        }
        if local.len == 0 {
            return Ordered::Released;
        }
        let access = Access { link: id, token, left: 0, readings: Vec::new(), offers: Vec::new() };
        let Ok(access) = self.accesses.insert(access) else { return Ordered::Refused(Fault::Busy) };
        self.by_token.insert(token.0, access);
        let mut done = 0;
        let count = segments.iter().filter(|it| it.len > 0).count();
        let parts = segments.iter().filter(|it| it.len > 0).map(|it| {
            done += it.len;
            (it.offset, local.part(done - it.len, it.len))
        });
        if write {
            self.offer(id, access, key, count as u32, parts);
        } else {
            let source = Source { slot: key.slot.to_u64(), secret: key.secret, offered: false };
            for (offset, local) in parts {
                if !self.read(id, source, offset, local, Purpose::Read { access }) {
                    self.end_access(access);
                    return Ordered::Refused(Fault::Busy);
                }
            }
        }
        self.touch(id);
        Ordered::Pending
    }

    /// Begins a transfer to us; false where there are too many.
    pub(super) fn read(
        &mut self,
        id: SlotId,
        source: Source,
        offset: u64,
        into: Slice,
        purpose: Purpose,
    ) -> bool {
        let Some(state) = self.links.get_mut(id) else { return false };
        let piece_bytes = (state.packet_bytes - packets::overhead(Kind::Piece)) as u32;
        let total_bytes = into.len;
        let pull = Pull::new(total_bytes, piece_bytes);
        let counted = true;
        let reading =
            Reading { link: id, source, offset, pull, total_bytes, into, purpose, counted };
        let Ok(reading) = self.readings.insert(reading) else { return false };
        state.asks.waiting.push_back(reading);
        match purpose {
            Purpose::Take { offer, .. } => {
                state.takings.insert(offer, reading);
            }
            Purpose::Read { access } => {
                if let Some(access) = self.accesses.get_mut(access) {
                    access.left += 1;
                    access.readings.push(reading);
                }
            }
        }
        true
    }

    /// A segment of an access is over; with the last one, or one that failed, so is the access.
    pub(super) fn segment_over(&mut self, id: SlotId, outcome: Result<(), Fault>) {
        let Some(access) = self.accesses.get_mut(id) else { return };
        access.left = access.left.saturating_sub(1);
        if outcome.is_ok() && access.left > 0 {
            return;
        }
        let token = access.token;
        self.end_access(id);
        self.driver.tell(Event::Ended { token, outcome });
    }

    /// Takes an access out, with everything that is still under way for it; its offers that the other side pulls.
    fn end_access(&mut self, id: SlotId) -> Vec<u64> {
        let mut pulled = Vec::new();
        let Some(access) = self.accesses.remove(id) else { return pulled };
        self.by_token.remove(&access.token.0);
        for reading in access.readings {
            self.end_reading(reading);
        }
        if let Some(state) = self.links.get_mut(access.link) {
            for offer in access.offers {
                if state.offers.withdraw(offer) {
                    state.serving.retain(|it| !it.source.offered || it.source.slot != offer);
                    pulled.push(offer);
                }
            }
        }
        pulled
    }

    /// Takes a reading out: nothing of it is written any more.
    fn end_reading(&mut self, id: SlotId) -> Option<Reading> {
        let reading = self.readings.remove(id)?;
        let under_way = reading.pull.under_way();
        if reading.counted {
            self.budget.free(reading.link, under_way);
        }
        if let Some(state) = self.links.get_mut(reading.link) {
            state.asks.under_way -= under_way;
            state.asks.active.retain(|other| *other != id);
            if state.asks.is_empty() {
                self.budget.leave(reading.link);
            }
            if let Purpose::Take { offer, .. } = reading.purpose {
                state.takings.remove(&offer);
            }
        }
        self.feed();
        Some(reading)
    }

    /// Takes a reading of what the other side offered out, of which it is not told.
    pub(super) fn end_taking(&mut self, id: SlotId) {
        self.end_reading(id);
    }

    fn stop(&mut self, token: Token) -> Ordered {
        let Some(access) = self.by_token.get(&token.0).copied() else {
            return Ordered::Refused(Fault::Invalid);
        };
        let link = self.accesses.get(access).map(|access| access.link);
        let pulled = self.end_access(access);
        if let Some(link) = link {
            self.withdraw(link, &pulled);
        }
        Ordered::Released
    }

    fn revoke(&mut self, id: SlotId, key: RemoteKey) -> Ordered {
        let slot = key.slot.to_u64();
        let Some(state) = self.links.get_mut(id) else { return Ordered::Refused(Fault::BadKey) };
        if state.exposed.get(&slot).is_none_or(|exposed| exposed.secret != key.secret) {
            return Ordered::Refused(Fault::BadKey);
        }
        state.exposed.remove(&slot);
        state.serving.retain(|it| it.source.offered || it.source.slot != slot);
        let takings: Vec<(u64, SlotId)> =
            state.takings.iter().map(|(offer, id)| (*offer, *id)).collect();
        for (offer, reading) in takings {
            let here =
                |it: &Reading| matches!(it.purpose, Purpose::Take { region, .. } if region == slot);
            if self.readings.get(reading).is_some_and(here) {
                self.end_reading(reading);
                self.take_over(id, offer, BAD_KEY);
            }
        }
        self.driver.tell(Event::Revoked { link: id, key });
        Ordered::Released
    }

    /// Everything that was ordered on a link fails.
    pub(super) fn end_orders(&mut self, id: SlotId, fault: Fault) {
        let Some(state) = self.links.get_mut(id) else { return };
        for token in state.out.take_tokens() {
            self.driver.tell(Event::Ended { token, outcome: Err(fault) });
        }
        let takings: Vec<SlotId> = state.takings.drain().map(|(_, reading)| reading).collect();
        takings.into_iter().for_each(|reading| self.end_taking(reading));
        let accesses = self.accesses.iter().filter(|(_, access)| access.link == id);
        let accesses: Vec<(SlotId, Token)> = accesses.map(|(id, it)| (id, it.token)).collect();
        for (access, token) in accesses {
            self.end_access(access);
            self.driver.tell(Event::Ended { token, outcome: Err(fault) });
        }
    }

    /// The next asks of a link, or a refusal of one of theirs.
    pub(super) fn next_ask(&mut self, id: SlotId, out: &mut [u8]) -> Option<usize> {
        let route = self.route(id)?;
        let state = self.links.get_mut(id)?;
        if let Some((handle, reason)) = state.refusals.pop_front() {
            let body = RefusalBody { handle: handle.into(), reason, reserved: [0; 7] };
            return Some(packets::seal(out, Kind::Refusal, route, body.as_bytes(), 0, |_| ()));
        }
        let packet_bytes = state.packet_bytes;
        let piece_bytes = packet_bytes - packets::overhead(Kind::Piece);
        let more = (packet_bytes - packets::overhead(Kind::Pull)) / size_of::<PullBody>();
        let mut pulls = [PullBody::new_zeroed(); packets::PULLS_MAX];
        let mut count = 0;
        while count < pulls.len().min(1 + more)
            && let Some((reading, ask)) = self.choose(id)
            && let Some(entry) = self.readings.get(reading)
        {
            pulls[count] = PullBody {
                handle: reading.to_u64().into(),
                key_slot: entry.source.slot.into(),
                key_secret: entry.source.secret.into(),
                offset: entry.offset.into(),
                total_bytes: entry.total_bytes.into(),
                piece_bytes: (piece_bytes as u16).into(),
                offered: entry.source.offered.into(),
                reserved: 0,
                first: ask.first.into(),
                pieces: ask.pieces.into(),
            };
            count += 1;
        }
        let pulls = pulls[..count].as_bytes();
        (count > 0).then(|| packets::seal(out, Kind::Pull, route, pulls, 0, |_| ()))
    }

    /// The next ask: for lost pieces, or for new ones if the windows allow it.
    fn choose(&mut self, id: SlotId) -> Option<(SlotId, Ask)> {
        let now = self.driver.now;
        let state = self.links.get_mut(id)?;
        let asks = &mut state.asks;
        if asks.is_empty() {
            // It left the queue with its last reading.
            return None;
        }
        for reading in &asks.active {
            let Some(entry) = self.readings.get_mut(*reading) else { continue };
            if let Some(ask) = entry.pull.ask_again(now, &asks.round_trip, asks.heard_at) {
                let reading = *reading;
                self.counters.asked_again += u64::from(ask.pieces.count_ones());
                asks.narrow(now);
                if entry.pull.misses() == 0 {
                    asks.round_trip.was_lost();
                }
                // Others do not wait for what does not come.
                if entry.pull.misses() > 0 && std::mem::take(&mut entry.counted) {
                    self.budget.free(id, entry.pull.under_way());
                    self.feed();
                }
                return Some((reading, ask));
            }
        }
        while asks.active.len() < READINGS_AT_ONCE
            && let Some(reading) = asks.waiting.pop_front()
        {
            // One that ended before its turn is passed over.
            if self.readings.get(reading).is_some() {
                asks.active.push_back(reading);
            }
        }
        let mut fresh = asks.active.iter().filter_map(|reading| {
            let entry = self.readings.get(*reading).filter(|entry| entry.counted)?;
            let count = entry.pull.next_fresh();
            // If nothing is under way, any ask has room, however narrow the window is.
            let room = asks.under_way + count <= asks.window || asks.under_way == 0;
            (count > 0 && room).then_some((entry.pull.fresh_left(), *reading, count))
        });
        // The reading with the fewest pieces to ask for goes first, so that a long one keeps no short ones waiting.
        // Readings of one length are over one after the other. But now and then the oldest one goes first.
        let next = match asks.turns % TURNS_PER_OLDEST {
            0 => fresh.next(),
            _ => fresh.min_by_key(|(left, ..)| *left),
        };
        let Some((_, reading, count)) = next else {
            self.budget.leave(id);
            self.feed();
            return None;
        };
        if !self.budget.take(id, count) {
            return None;
        }
        asks.under_way += count;
        asks.turns = asks.turns.wrapping_add(1);
        self.feed();
        Some((reading, self.readings.get_mut(reading)?.pull.ask(now)))
    }

    /// There may be room in the ring: the link that has the turn is looked at.
    pub(super) fn feed(&mut self) {
        if let Some(first) = self.budget.turn() {
            self.touch(first);
        }
    }

    /// Pieces of a region are asked for.
    pub(super) fn asked(&mut self, id: SlotId, body: &PullBody) {
        let Some(state) = self.links.get_mut(id) else { return };
        let (handle, slot) = (body.handle.get(), body.key_slot.get());
        let source = Source { slot, secret: body.key_secret.get(), offered: body.offered == 1 };
        let (offset, total) = (body.offset.get(), body.total_bytes.get());
        let region = match source.offered {
            true => state.offers.get(slot).map(|it| (it.secret, it.slice)),
            false => state.exposed.get(&slot).map(|it| (it.secret, it.slice)),
        };
        let end = offset.checked_add(total).filter(|_| total > 0);
        let legal = |(secret, slice): &(u64, Slice)| {
            *secret == source.secret && end.is_some_and(|end| end <= slice.len)
        };
        let Some((_, slice)) = region.filter(legal) else {
            if state.refusals.len() < REFUSALS_MAX {
                state.refusals.push_back((handle, BAD_KEY));
            }
            return;
        };
        let piece_bytes = u32::from(body.piece_bytes.get());
        let longest = state.packet_bytes - packets::overhead(Kind::Piece);
        let ask = Ask { first: body.first.get(), pieces: body.pieces.get() };
        let last = u64::from(ask.first) + u64::from(63 - ask.pieces.leading_zeros().min(63));
        let fits = (1..=longest as u32).contains(&piece_bytes) && ask.pieces != 0;
        if !fits || last >= total.div_ceil(piece_bytes.into()) || last > u32::MAX.into() {
            return self.violated(id);
        }
        if state.serving.len() < SERVING_MAX {
            let slice = slice.part(offset, total);
            state.serving.push_back(Serving { handle, source, slice, piece_bytes, ask });
        }
    }

    /// The next piece of what was asked for.
    pub(super) fn next_piece(
        &mut self,
        id: SlotId,
        memory: &dyn Bytes,
        out: &mut [u8],
    ) -> Option<usize> {
        let route = self.route(id)?;
        let state = self.links.get_mut(id)?;
        let serving = state.serving.front_mut()?;
        let bit = serving.ask.pieces.trailing_zeros();
        serving.ask.pieces &= serving.ask.pieces - 1;
        let piece = serving.ask.first + bit;
        let offset = u64::from(piece) * u64::from(serving.piece_bytes);
        let bytes = (serving.slice.len - offset).min(serving.piece_bytes.into());
        let from = serving.slice.part(offset, bytes);
        let body =
            PieceBody { handle: serving.handle.into(), piece: piece.into(), reserved: 0.into() };
        if serving.ask.pieces == 0 {
            state.serving.pop_front();
        }
        let fill = |to: &mut [u8]| memory.read(from, to);
        Some(packets::seal(out, Kind::Piece, route, body.as_bytes(), bytes as usize, fill))
    }

    /// A piece came.
    pub(super) fn piece(&mut self, id: SlotId, body: &PieceBody, bytes: &[u8], memory: &dyn Bytes) {
        let (handle, number) = (body.handle.get(), body.piece.get());
        let reading = SlotId::from_u64(handle);
        let now = self.driver.now;
        let Some(entry) = self.readings.get_mut(reading).filter(|it| it.link == id) else {
            return self.piece_again(id, handle, number);
        };
        let under_way = entry.pull.under_way();
        let Some(piece) = entry.pull.arrived(number, bytes.len() as u32, now) else {
            return self.piece_again(id, handle, number);
        };
        if let Some(late) = piece.late {
            self.late.came(id, handle, number, late);
        }
        if !std::mem::replace(&mut entry.counted, true) {
            self.budget.take_back(id, under_way);
        }
        memory.write(entry.into.part(piece.offset, piece.bytes.into()), bytes);
        self.budget.free(id, 1);
        let complete = entry.pull.is_complete();
        if let Some(state) = self.links.get_mut(id) {
            let asks = &mut state.asks;
            asks.under_way -= 1;
            asks.heard_at = now;
            // A piece that was asked for again may be the answer to the first ask.
            if piece.asked_at > asks.answered && !piece.again {
                asks.answered = piece.asked_at;
                for other in asks.active.iter().filter(|other| **other != reading) {
                    if let Some(entry) = self.readings.get_mut(*other) {
                        entry.pull.overtaken_by(piece.asked_at, now);
                    }
                }
            }
            if let Some(round_trip) = piece.round_trip {
                asks.round_trip.measured(round_trip);
            }
            if piece.round_trip.is_some() && !piece.again {
                asks.window = (asks.window + 1).min(WINDOW_MAX);
            }
        }
        self.feed();
        if complete {
            self.reading_complete(reading);
        }
    }

    /// A piece came that is here, or that nobody waits for.
    #[cold]
    fn piece_again(&mut self, id: SlotId, handle: u64, piece: u32) {
        self.counters.doubled += 1;
        if let Some((link, by)) = self.late.again(handle, piece)
            && let Some(state) = self.links.get_mut(link).filter(|_| link == id)
        {
            state.asks.was_late(by);
        }
    }

    fn reading_complete(&mut self, id: SlotId) {
        let Some(reading) = self.end_reading(id) else { return };
        self.counters.bytes_native += reading.total_bytes;
        match reading.purpose {
            Purpose::Read { access } => self.segment_over(access, Ok(())),
            Purpose::Take { offer, .. } => self.take_over(reading.link, offer, TAKEN),
        }
    }

    /// A pull of ours is refused.
    pub(super) fn pull_refused(&mut self, id: SlotId, body: &RefusalBody) {
        let reading = SlotId::from_u64(body.handle.get());
        if self.readings.get(reading).is_none_or(|it| it.link != id) {
            return self.counters.doubled += 1;
        }
        let Some(reading) = self.end_reading(reading) else { return };
        match reading.purpose {
            Purpose::Read { access } => self.segment_over(access, Err(Fault::BadKey)),
            // It was given up by the one who offered it.
            Purpose::Take { offer, .. } => self.take_over(reading.link, offer, GIVEN_UP),
        }
    }
}
