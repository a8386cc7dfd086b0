//! Readings: transfers to this side, which pulls them piece by piece.
//!
//! Invariant: pieces under way are counted, for each link and together, until they came or their reading ended.

use std::hash::Hash;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_wire::packets::{self, Kind, PieceBody, PullBody, RefusalBody};
use zerocopy::{FromZeros, IntoBytes};

use super::machine::Machine;
use super::remote_writes::{BAD_KEY, GIVEN_UP, TAKEN};
use super::transfers::{Purpose, Reading, Source, WINDOW_MAX};
use crate::driver::Driven;
use crate::memory::Bytes;
use crate::pull::{Ask, Pull};

/// Readings of a link of which pieces are asked for at a time.
const READINGS_AT_ONCE: usize = 16;
/// Of so many asks one is the oldest reading's.
const TURNS_PER_OLDEST: u32 = 4;

impl<S: Copy + Eq + Hash + std::fmt::Debug> Machine<S> {
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
        let piece_bytes = (usize::from(state.packet_bytes) - packets::overhead(Kind::Piece)) as u32;
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

    /// Takes a reading out: nothing of it is written any more.
    pub(super) fn end_reading(&mut self, id: SlotId) -> Option<Reading> {
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

    /// The next asks of a link, or a refusal of one of theirs.
    pub(super) fn next_ask(&mut self, id: SlotId, out: &mut [u8]) -> Option<usize> {
        let route = self.route(id)?;
        let state = self.links.get_mut(id)?;
        if let Some((handle, reason)) = state.refusals.pop_front() {
            let body = RefusalBody { handle: handle.into(), reason, reserved: [0; 7] };
            return Some(packets::seal(out, Kind::Refusal, route, body.as_bytes(), 0, |_| ()));
        }
        let packet_bytes = usize::from(state.packet_bytes);
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
                let pieces = u64::from(ask.pieces.count_ones());
                self.counters.asked_again += pieces;
                state.sent_again += pieces;
                state.packets += pieces;
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
        state.packets += u64::from(count);
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
        let into = entry.into.part(piece.offset, piece.bytes.into());
        let is_there = memory.try_write(into, bytes);
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
        match is_there {
            false => self.reading_gone(reading),
            true if complete => self.reading_complete(reading),
            true => {}
        }
    }

    /// The memory that a reading goes to is not there (any more).
    #[cold]
    fn reading_gone(&mut self, id: SlotId) {
        let Some(reading) = self.end_reading(id) else { return };
        match reading.purpose {
            Purpose::Read { access } => self.segment_over(access, Err(Fault::BadKey)),
            Purpose::Take { offer, .. } => self.take_over(reading.link, offer, BAD_KEY),
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
