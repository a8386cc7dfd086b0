//! The packets that partners send: messages in order, fragments of them, acknowledgements, refusals.

use std::hash::Hash;

use ropewalk_base::error::Fault;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{ForeignEnd, ForeignMessage};
use ropewalk_wire::mxoe::{
    self, INDEX_UNKNOWN, Message, Nack, NackLib, Packet, SESSION_UNKNOWN, Sequence,
};

use super::connect::{Purpose, Stage};
use super::machine::{Event, Mxoe, write};
use super::receiving::{Arrival, Early, Part, Partial};
use super::sending::{Kept, Named};
use crate::driver::Driven;
use crate::memory::recycle;
use crate::protocol::{LinkEvents, Taken};

/// Buffers of messages that were sent, which wait for the next ones: a mebibyte of the longest.
const SPARE_MAX: usize = 32;

/// Bytes of what came before its turn, of all partners; and what each one may have beside the others.
const EARLY_BYTES_MAX: usize = 32 << 20;
const EARLY_BYTES_EACH: usize = 4 << 10;

impl<S: Copy + Eq + Hash + std::fmt::Debug> Mxoe<S> {
    /// The partner that a packet is from, where it names our session.
    pub(super) fn partner_of(&mut self, from: S, endpoint: u8, session: u32) -> Option<SlotId> {
        let id = self.by_name.get(&(from, endpoint)).copied();
        let state = id.and_then(|id| self.partners.get_mut(id));
        if session != state.as_ref().map_or(self.session, |state| state.own) {
            self.counters.wrong_session += 1;
            return None;
        }
        match state {
            Some(state) => (state.is_proven, state.heard_at) = (true, self.driver.now),
            None => self.counters.strangers += 1,
        }
        id
    }

    /// Whether the sender is told that a session is not ours. A partner is not: it hears so from our connecting.
    /// Otherwise a packet has changed on its way. Such a packet comes again unless it is refused. A refused message
    /// ends there, and we would wait in vain for the messages that follow it.
    pub(super) fn is_refused(&self, from: S, endpoint: u8, session: u32) -> bool {
        session != SESSION_UNKNOWN && !self.by_name.contains_key(&(from, endpoint))
    }

    /// A message, or a fragment of one.
    pub(super) fn arrived(
        &mut self,
        from: S,
        message: &Message,
        part: Part<&[u8]>,
        above: &mut dyn LinkEvents<S>,
    ) {
        let Some(id) = self.partner_of(from, message.from, message.session) else {
            if self.is_refused(from, message.from, message.session) {
                let nack = NackLib {
                    from: self.config.endpoint,
                    to: message.from,
                    reason: Nack::BadSession,
                    index: INDEX_UNKNOWN,
                    sequence: message.sequence,
                };
                self.refuse(from, INDEX_UNKNOWN, Packet::NackLib(nack));
            }
            return;
        };
        let Some(state) = self.partners.get_mut(id) else { return };
        if state.stage == Stage::Connecting && state.heard_connect.is_some() {
            // It connected, too, and has heard us: the session that it named then is its own.
            state.stage = Stage::Up;
            self.driver.tell(Event::Up { link: id, accepted: false });
        } else if !state.is_up() {
            // A session that has not begun, or is over: the message comes again.
            self.counters.unready += 1;
            if matches!(state.stage, Stage::Closing { .. }) {
                self.acknowledged(id, message.acknowledged);
                self.touch_if_wanted(id);
            }
            return;
        }
        self.acknowledged(id, message.acknowledged);
        self.report_all(above);
        self.receive(id, message.sequence, part, above);
        self.touch_if_wanted(id);
    }

    pub(super) fn receive(
        &mut self,
        id: SlotId,
        sequence: Sequence,
        part: Part<&[u8]>,
        above: &mut dyn LinkEvents<S>,
    ) {
        let now = self.driver.now;
        let Some(state) = self.partners.get_mut(id) else { return };
        match state.receiving.look(sequence, now) {
            Arrival::Next => {
                let number = state.receiving.next();
                if self.tell(id, number, &part, above) {
                    self.tell_early(id, usize::MAX, above);
                } else {
                    if let Some(state) = self.partners.get_mut(id) {
                        state.receiving.goes_on();
                    }
                    self.counters.postponed += 1;
                    self.keep(id, number, part);
                }
            }
            Arrival::Partial(number) => {
                if !self.fill(id, number, &part, above) {
                    self.is_stuck(id);
                }
            }
            Arrival::Early(number) => {
                self.counters.early += 1;
                match part {
                    // Messages that wait for room must not make those wait who have to tell of their ends.
                    Part::Notify { bytes, region, region_sequence } => {
                        let before = state.receiving.early_bytes();
                        let is_news = state.receiving.done_early(number, now);
                        self.early_bytes =
                            self.early_bytes + state.receiving.early_bytes() - before;
                        if is_news {
                            self.notified(id, bytes, region, region_sequence);
                        }
                    }
                    part => self.keep(id, number, part),
                }
                self.is_stuck(id);
            }
            Arrival::Again => {
                self.counters.doubled += 1;
                state.receiving.owe_at_once(now);
            }
            Arrival::Beyond => {
                self.counters.beyond += 1;
                self.is_stuck(id);
            }
        }
    }

    /// Something came from a partner that is not what is missing. One that goes on without that for almost as long as it
    /// may be silent never sends it. We notice before the partner gives up: it would connect anew, and its next messages
    /// would meet the same gap, or the same message that is half here under their number.
    fn is_stuck(&mut self, id: SlotId) {
        let (now, give_up_after) = (self.driver.now, self.config.give_up_after);
        let Some(state) = self.partners.get_mut(id) else { return };
        if state.receiving.is_stuck_for(now) >= give_up_after * 3 / 4 {
            self.counters.stuck += 1;
            self.abandon(id, Fault::Unreachable);
        }
    }

    /// Keeps what came before its turn, where there is room: for a few packets of each partner always, and for more
    /// as long as all together do not have too many.
    fn keep(&mut self, id: SlotId, number: u64, part: Part<&[u8]>) {
        let Some(state) = self.partners.get_mut(id) else { return };
        let before = state.receiving.early_bytes();
        let (now, all) = (self.driver.now, self.early_bytes);
        let crowded = all >= EARLY_BYTES_MAX && before >= EARLY_BYTES_EACH;
        if crowded || !state.receiving.keep(number, part, now) {
            self.counters.beyond += 1;
        }
        self.early_bytes = self.early_bytes + state.receiving.early_bytes() - before;
    }

    /// Tells the next message; false where there is no room for it above.
    fn tell(
        &mut self,
        id: SlotId,
        number: u64,
        part: &Part<&[u8]>,
        above: &mut dyn LinkEvents<S>,
    ) -> bool {
        let now = self.driver.now;
        match *part {
            Part::Notify { bytes, region, region_sequence } => {
                self.notified(id, bytes, region, region_sequence);
                if let Some(state) = self.partners.get_mut(id) {
                    state.receiving.told(None, now);
                }
            }
            Part::Announce { bits, bytes, region, region_sequence, region_offset } => {
                let key = super::pulling::key_of(number, region, region_sequence, region_offset);
                let message = ForeignMessage { number, bits, bytes: bytes.into(), key: Some(key) };
                // This comes before the report: a layer above that tells the end at once names the message.
                let Some(state) = self.partners.get_mut(id) else { return true };
                state.announced.insert(number, (region, region_sequence));
                if above.message(id, message, true) == Taken::Later {
                    let Some(state) = self.partners.get_mut(id) else { return true };
                    state.announced.remove(&number);
                    return false;
                }
                self.counters.messages_received += 1;
                if let Some(state) = self.partners.get_mut(id) {
                    state.receiving.told(None, now);
                }
            }
            Part::Eager { bits, total, fragment, offset, bytes } => {
                let whole = bytes.len() == total as usize;
                let len = bytes.len() as u32;
                let partial = if whole { None } else { Partial::new(total, fragment, offset, len) };
                if !whole && partial.is_none() {
                    self.counters.malformed += 1;
                    return true;
                }
                let message = ForeignMessage { number, bits, bytes: total.into(), key: None };
                let place = match above.message(id, message, whole) {
                    Taken::Later => return false,
                    Taken::Into { slice, token } => Some((slice, token)),
                    Taken::Nothing => None,
                };
                self.counters.messages_received += 1;
                if let Some((slice, token)) = place.filter(|_| whole) {
                    write(slice, 0, bytes, above);
                    above.received(id, token);
                }
                let partial = partial.map(|partial| partial.at(place));
                let Some(state) = self.partners.get_mut(id) else { return true };
                state.receiving.told(partial, now);
                if !whole {
                    self.fill(id, number, part, above);
                }
            }
        }
        true
    }

    /// A fragment of a message that was told; whether it is one that was missing.
    fn fill(
        &mut self,
        id: SlotId,
        number: u64,
        part: &Part<&[u8]>,
        above: &mut dyn LinkEvents<S>,
    ) -> bool {
        let now = self.driver.now;
        let Some(state) = self.partners.get_mut(id) else { return false };
        let Some(partial) = state.receiving.partial(number) else { return false };
        let Part::Eager { total, fragment, offset, bytes, .. } = *part else {
            self.counters.malformed += 1;
            return false;
        };
        if total != partial.total {
            self.counters.malformed += 1;
            return false;
        }
        if !partial.fits(fragment, offset, bytes.len() as u32) {
            self.counters.misplaced += 1;
            return false;
        }
        let Some(whole) = partial.arrived(fragment, offset, bytes.len() as u32) else {
            self.counters.doubled += 1;
            return false;
        };
        let place = partial.place;
        if let Some((slice, _)) = place {
            write(slice, offset, bytes, above);
        }
        if whole {
            state.receiving.whole(number, now);
            if let Some((_, token)) = place {
                above.received(id, token);
            }
        }
        true
    }

    /// Tells early messages that are next in order, as far as there is room above, and takes at most `most` early
    /// parts. True if it took so many: more may wait.
    pub(super) fn tell_early(
        &mut self,
        id: SlotId,
        most: usize,
        above: &mut dyn LinkEvents<S>,
    ) -> bool {
        let now = self.driver.now;
        for _ in 0..most {
            let Some(state) = self.partners.get_mut(id) else { return false };
            let next = state.receiving.next();
            let before = state.receiving.early_bytes();
            let taken = state.receiving.take_early(now);
            self.early_bytes -= before - state.receiving.early_bytes();
            let Some((number, early)) = taken else { return false };
            match early {
                Early::Done if number == next => state.receiving.told(None, now),
                Early::Part(part) if number == next => {
                    if !self.tell(id, number, &part.borrowed(), above) {
                        self.keep(id, number, part.borrowed());
                        return false;
                    }
                }
                Early::Part(part) => drop(self.fill(id, number, &part.borrowed(), above)),
                Early::Done => {}
            }
        }
        true
    }

    /// Everything before a number has arrived there.
    fn acknowledged(&mut self, id: SlotId, sequence: Sequence) {
        let now = self.driver.now;
        let Some(state) = self.partners.get_mut(id) else { return };
        let done = state.sending.acknowledge(sequence, &state.round_trip, now);
        self.have_arrived(id, done);
    }

    /// Messages of ours are at the partner.
    pub(super) fn have_arrived(&mut self, id: SlotId, done: Vec<Kept>) {
        for kept in done {
            let Kept::Eager { bytes, told, .. } = kept else { continue };
            if let Some(Named { channel, number }) = told {
                let end = ForeignEnd { channel, number, bytes: bytes.len() as u64 };
                self.driver.tell(Event::Finished { link: id, end });
            }
            recycle(&mut self.spare, SPARE_MAX, bytes);
        }
    }

    /// An acknowledgement by itself.
    pub(super) fn told(&mut self, from: S, ack: mxoe::Ack) {
        let Some(id) = self.partner_of(from, ack.from, ack.session) else { return };
        let Some(state) = self.partners.get_mut(id) else { return };
        if ack.number.wrapping_sub(state.acks_heard) as i32 <= 0 {
            return self.counters.doubled += 1;
        }
        state.acks_heard = ack.number;
        self.acknowledged(id, ack.acknowledged);
        self.touch_if_wanted(id);
    }

    /// The partner's host, or its endpoint, does not take a packet of ours.
    pub(super) fn refused(&mut self, from: S, nack: NackLib) {
        self.counters.nacks_received += 1;
        let Some(id) = self.by_name.get(&(from, nack.from)).copied() else {
            return self.counters.strangers += 1;
        };
        let Some(state) = self.partners.get_mut(id) else { return };
        if let Some(introduction) = &mut state.introduction {
            if state.sending.is_under_way(nack.sequence) {
                // A message, which may have the number 0 as well. Perhaps the partner does not know our session any
                // longer.
                if !introduction.holds {
                    self.ask_who(id);
                }
            } else if nack.sequence.number() == 0 {
                // One that connects is refused under the number 0.
                let is_news = !std::mem::replace(&mut introduction.refused, true);
                match state.stage {
                    Stage::Connecting => self.end(id, Fault::Closed),
                    // It was there before. The refusal may be a late one, of an attempt before it was.
                    _ if is_news => {
                        introduction.again_at = Time::ZERO;
                        self.touch(id);
                    }
                    _ => self.abandon(id, Fault::Closed),
                }
            }
        } else if state.sending.is_under_way(nack.sequence) {
            // A refusal names no session: it may come from before a restart. Connecting tells more.
            self.ask_who(id);
        }
    }

    /// Connects to a partner that refused something, and has perhaps begun anew, if that is not being done. Messages
    /// wait for its answer.
    pub(super) fn ask_who(&mut self, id: SlotId) {
        let Some(state) = self.partners.get_mut(id) else { return };
        if state.introduction.is_none() {
            let key = state.key;
            self.introduce(id, key, Purpose::Return);
        }
        let state = self.partners.get_mut(id);
        if let Some(introduction) = state.and_then(|state| state.introduction.as_mut()) {
            (introduction.holds, introduction.fixed) = (true, true);
        }
    }
}
