//! Large messages of a partner: read block by block, and told when they are here.
//!
//! Invariants: a pull writes to its memory until it ends, and never after; replies under way are counted, for
//! each partner and together, until they came, their pull ended, or its partner was silent for too long.

use std::collections::VecDeque;
use std::hash::Hash;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Slice;
use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::time::Time;
use ropewalk_base::verb::{Ordered, RemoteKey, Token};
use ropewalk_wire::mxoe::{Mode, Nack, NackMcp, Packet, Pull as PullPacket, PullReply};

use super::machine::{Event, Mxoe, emit, write};
use crate::driver::Driven;
use crate::protocol::LinkEvents;
use crate::pull::{Ask, Pull};
use crate::round_trip::RoundTrip;

/// Pulls at a time. The layer above never has so many: it reads only messages for which it has room.
pub(super) const PULLS_MAX: usize = 1 << 24;
/// Blocks of one pull that may be under way.
const BLOCKS_AT_ONCE: u32 = 4;
/// Pulls from one partner of which blocks are asked for at a time.
const PULLS_AT_ONCE: usize = 16;

/// The place of a message at the partner, as a key for the layer above.
pub(super) fn key_of(
    number: u64,
    region: u8,
    region_sequence: u8,
    region_offset: u16,
) -> RemoteKey {
    let generation = u32::from(region_offset) << 8 | u32::from(region_sequence);
    RemoteKey { slot: SlotId { index: region.into(), generation }, secret: number }
}

/// A large message on its way to us.
#[derive(Debug)]
pub(super) struct Pulling {
    link: SlotId,
    handle: u32,
    token: Token,
    into: Slice,
    region: u8,
    region_sequence: u8,
    region_offset: u16,
    /// Bytes by which the first frame is shorter.
    lead: u32,
    pull: Pull,
    /// Blocks to ask for, as ranges of frames.
    asks: VecDeque<(u32, u32)>,
    /// Its replies are among those under way: nobody counts on them where the partner is silent.
    counted: bool,
}

/// The pulls from one partner.
#[derive(Debug, Default)]
pub(super) struct Asks {
    active: VecDeque<SlotId>,
    waiting: VecDeque<SlotId>,
    /// When a reply came last, and when the latest one that came was asked for.
    heard_at: Time,
    answered: Time,
}

impl Asks {
    /// Whether nothing is pulled.
    pub fn is_empty(&self) -> bool {
        self.active.is_empty() && self.waiting.is_empty()
    }

    /// When a block has to be asked for again.
    pub fn due(&self, pulls: &Slots<Pulling>, round_trip: &RoundTrip) -> Time {
        if self.active.is_empty() {
            return Time::NEVER;
        }
        let due = |id: &SlotId| pulls.get(*id).map(|it| it.pull.due(round_trip, self.heard_at));
        self.active.iter().filter_map(due).min().unwrap_or(Time::NEVER)
    }

    /// Since when the partner owes replies.
    pub fn silent_since(&self, pulls: &Slots<Pulling>) -> Time {
        let since = |id: &SlotId| pulls.get(*id).map(|it| it.pull.silent_since());
        self.active.iter().filter_map(since).min().unwrap_or(Time::NEVER)
    }
}

impl<S: Copy + Eq + Hash + std::fmt::Debug> Mxoe<S> {
    /// Reads an announced message.
    pub(super) fn pull(
        &mut self,
        id: SlotId,
        key: RemoteKey,
        into: Slice,
        token: Token,
    ) -> Ordered {
        let Some(state) = self.partners.get_mut(id) else {
            return Ordered::Refused(Fault::PeerReset);
        };
        if !state.is_up() {
            return Ordered::Refused(Fault::Closed);
        }
        if into.len == 0 {
            return Ordered::Released;
        }
        let dialect = self.config.dialect;
        let region_offset = (key.slot.generation >> 8) as u16;
        let lead = u32::from(region_offset) % dialect.reply_bytes();
        let per_ask = dialect.replies_per_block();
        let pull = Pull::framed(into.len, dialect.reply_bytes(), lead, per_ask);
        // A stale reply finds another handle.
        let handle = loop {
            let handle = self.random.next_u64() as u32;
            if !self.by_handle.contains_key(&handle) {
                break handle;
            }
        };
        let pulling = Pulling {
            link: id,
            handle,
            token,
            into,
            region: key.slot.index as u8,
            region_sequence: key.slot.generation as u8,
            region_offset,
            lead,
            pull,
            asks: VecDeque::new(),
            counted: true,
        };
        let Ok(slot) = self.pulls.insert(pulling) else { return Ordered::Refused(Fault::Busy) };
        self.by_handle.insert(handle, slot);
        self.by_token.insert(token.0, slot);
        let Some(state) = self.partners.get_mut(id) else { return Ordered::Pending };
        state.asks.waiting.push_back(slot);
        self.touch(id);
        Ordered::Pending
    }

    /// The next block that a partner is asked for.
    pub(super) fn next_pull(&mut self, id: SlotId, out: &mut [u8]) -> Option<usize> {
        let state = self.partners.get_mut(id)?;
        while state.asks.active.len() < PULLS_AT_ONCE
            && let Some(next) = state.asks.waiting.pop_front()
        {
            if self.pulls.get(next).is_some() {
                state.asks.active.push_back(next);
            }
        }
        let mut starved = false;
        for _ in 0..state.asks.active.len() {
            let state = self.partners.get_mut(id)?;
            let slot = state.asks.active.pop_front()?;
            state.asks.active.push_back(slot);
            if let Some(len) = self.next_block(id, slot, &mut starved, out) {
                return Some(len);
            }
        }
        if !starved {
            self.budget.leave(id);
            self.feed();
        }
        None
    }

    fn next_block(
        &mut self,
        id: SlotId,
        slot: SlotId,
        starved: &mut bool,
        out: &mut [u8],
    ) -> Option<usize> {
        let (now, dialect) = (self.driver.now, self.config.dialect);
        let state = self.partners.get_mut(id)?;
        let pulling = self.pulls.get_mut(slot)?;
        if pulling.asks.is_empty()
            && let Some(ask) = pulling.pull.ask_again(now, &state.round_trip, state.asks.heard_at)
        {
            self.counters.asked_again += u64::from(ask.pieces.count_ones());
            if pulling.pull.misses() == 0 {
                state.round_trip.was_lost();
            }
            let whole = dialect.mode() == Mode::Compatible;
            pulling.add_asks(ask, dialect.replies_per_block(), whole);
        }
        if pulling.pull.misses() > 0 && std::mem::take(&mut pulling.counted) {
            // Others do not wait for what does not come.
            self.budget.free(id, pulling.pull.under_way());
            self.feed();
        }
        let pulling = self.pulls.get_mut(slot)?;
        let fresh = pulling.pull.next_fresh();
        let window = BLOCKS_AT_ONCE * dialect.replies_per_block();
        if pulling.asks.is_empty() && fresh > 0 {
            let one = pulling.counted && pulling.pull.under_way() + fresh <= window;
            let waited = self.budget.waits(id);
            if one && self.budget.take(id, fresh) {
                let ask = pulling.pull.ask(now);
                pulling.add_asks(ask, dialect.replies_per_block(), false);
                self.feed();
            } else if one {
                *starved = true;
                self.counters.awaited_share += u64::from(!waited);
            }
        }
        let (state, pulling) = (self.partners.get(id)?, self.pulls.get_mut(slot)?);
        let (first, count) = pulling.asks.pop_front()?;
        let (begin, _) = pulling.pull.place(first);
        let (last, bytes) = pulling.pull.place(first + count - 1);
        let packet = Packet::Pull(PullPacket {
            to: state.endpoint,
            from: self.config.endpoint,
            session: state.session,
            total_bytes: pulling.into.len as u32,
            region: pulling.region.into(),
            region_sequence: pulling.region_sequence,
            region_offset: pulling.region_offset.into(),
            handle: pulling.handle,
            magic: PullPacket::magic_of(self.config.endpoint),
            first_offset: if first == 0 { pulling.lead } else { 0 },
            block_bytes: (last - begin) as u32 + bytes,
            frame: first,
        });
        Some(emit(&packet, state.index, dialect, out))
    }

    /// A piece of a large message.
    pub(super) fn replied(
        &mut self,
        from: S,
        reply: PullReply,
        bytes: &[u8],
        above: &mut dyn LinkEvents<S>,
    ) {
        let now = self.driver.now;
        let Some(slot) = self.pull_of(from, reply.handle, reply.magic) else {
            self.counters.unasked += 1;
            return self.replied_again(from, reply);
        };
        let reply_bytes = self.config.dialect.reply_bytes();
        let Some(pulling) = self.pulls.get_mut(slot) else { return };
        let frame = (u64::from(reply.offset) + u64::from(pulling.lead)) / u64::from(reply_bytes);
        let place = (u64::from(reply.offset), bytes.len() as u32);
        let expected = u32::try_from(frame)
            .ok()
            .filter(|frame| *frame < pulling.pull.pieces() && *frame as u8 == reply.frame)
            .filter(|frame| pulling.pull.place(*frame) == place);
        let under_way = pulling.pull.under_way();
        let Some(frame) = expected else { return self.counters.misplaced += 1 };
        let Some(piece) = pulling.pull.arrived(frame, place.1, now) else {
            self.counters.doubled += 1;
            return self.replied_again(from, reply);
        };
        if let Some(late) = piece.late {
            self.late.came(pulling.link, reply.handle.into(), reply.offset, late);
        }
        if !std::mem::replace(&mut pulling.counted, true) {
            self.budget.take_back(pulling.link, under_way);
        }
        self.budget.free(pulling.link, 1);
        self.counters.bytes_native += bytes.len() as u64;
        write(pulling.into, reply.offset, bytes, above);
        let (link, complete) = (pulling.link, pulling.pull.is_complete());
        if let Some(state) = self.partners.get_mut(link) {
            (state.asks.heard_at, state.heard_at) = (now, now);
            // A piece that was asked for again may be the answer to the first ask.
            if piece.asked_at > state.asks.answered && !piece.again {
                state.asks.answered = piece.asked_at;
                for other in state.asks.active.iter().filter(|other| **other != slot) {
                    if let Some(other) = self.pulls.get_mut(*other) {
                        other.pull.overtaken_by(piece.asked_at, now);
                    }
                }
            }
            if let Some(round_trip) = piece.round_trip {
                state.round_trip.measured(round_trip);
            }
        }
        if complete {
            self.end_pull(slot, Ok(()));
        }
        self.feed();
        self.touch(link);
    }

    /// A piece came that is here, or that nobody waits for.
    #[cold]
    fn replied_again(&mut self, from: S, reply: PullReply) {
        if let Some((link, by)) = self.late.again(reply.handle.into(), reply.offset)
            && let Some(state) = self.partners.get_mut(link).filter(|it| it.station == from)
        {
            state.round_trip.was_late(by);
        }
    }

    /// The pull that a handle names, if its partner is at this station.
    fn pull_of(&self, from: S, handle: u32, magic: u32) -> Option<SlotId> {
        let slot = *self.by_handle.get(&handle)?;
        let pulling = self.pulls.get(slot)?;
        let state = self.partners.get(pulling.link)?;
        let ours = magic == PullPacket::magic_of(self.config.endpoint);
        (ours && state.station == from).then_some(slot)
    }

    /// A partner does not let us read.
    pub(super) fn pull_refused(&mut self, from: S, nack: NackMcp) {
        self.counters.nacks_received += 1;
        let Some(slot) = self.pull_of(from, nack.handle, nack.magic) else {
            return self.counters.unasked += 1;
        };
        if nack.reason == Nack::BadRegion {
            return self.end_pull(slot, Err(Fault::BadKey));
        }
        // The partner knows no such endpoint, or is in another session, or our ask changed on its way. Connecting tells
        // which, and missing pieces are asked for again.
        if let Some(link) = self.pulls.get(slot).map(|pulling| pulling.link) {
            self.ask_who(link);
        }
    }

    /// Takes a pull out: nothing of it is written any more.
    fn take_pull(&mut self, slot: SlotId) -> Option<Pulling> {
        let pulling = self.pulls.remove(slot)?;
        self.by_token.remove(&pulling.token.0);
        self.by_handle.remove(&pulling.handle);
        if pulling.counted {
            self.budget.free(pulling.link, pulling.pull.under_way());
        }
        if let Some(state) = self.partners.get_mut(pulling.link) {
            state.asks.active.retain(|other| *other != slot);
            if state.asks.is_empty() {
                self.budget.leave(pulling.link);
            }
            // Its other pulls may go on, and nothing else tells of that.
            self.touch(pulling.link);
        }
        self.feed();
        Some(pulling)
    }

    /// Fewer packets are under way: the link that has the turn is looked at.
    pub(super) fn feed(&mut self) {
        if let Some(first) = self.budget.turn() {
            self.touch(first);
        }
    }

    fn end_pull(&mut self, slot: SlotId, outcome: Result<(), Fault>) {
        if let Some(pulling) = self.take_pull(slot) {
            self.driver.tell(Event::Ended { token: pulling.token, outcome });
        }
    }

    /// Gives a pull up without a word.
    pub(super) fn stop(&mut self, token: Token) -> Ordered {
        let slot = self.by_token.get(&token.0).copied();
        match slot.and_then(|slot| self.take_pull(slot)) {
            Some(_) => Ordered::Released,
            None => Ordered::Refused(Fault::Invalid),
        }
    }

    /// All pulls from a partner fail.
    pub(super) fn end_pulls(&mut self, id: SlotId, fault: Fault) {
        let of = |(slot, pulling): (SlotId, &Pulling)| (pulling.link == id).then_some(slot);
        let slots: Vec<SlotId> = self.pulls.iter().filter_map(of).collect();
        for slot in slots {
            self.end_pull(slot, Err(fault));
        }
    }
}

impl Pulling {
    /// Adds what is asked for as blocks: runs of frames, or where only whole blocks are answered these.
    fn add_asks(&mut self, ask: Ask, per_block: u32, whole: bool) {
        let mut run: Option<(u32, u32)> = None;
        for frame in ask.iter() {
            let (first, count) = match whole {
                true => {
                    let first = frame / per_block * per_block;
                    (first, per_block.min(self.pull.pieces() - first))
                }
                false => (frame, 1),
            };
            run = match run {
                Some((begin, len)) if begin + len > frame => Some((begin, len)),
                Some((begin, len)) if begin + len == first && len + count <= per_block => {
                    Some((begin, len + count))
                }
                other => {
                    self.asks.extend(other);
                    Some((first, count))
                }
            };
        }
        self.asks.extend(run);
    }
}
