//! The packet machine: links, frames and native access over a port that carries packets.
//!
//! It is driven like this, by whoever owns machine and port:
//! * [`Machine::connect`], [`Machine::send`] and [`Machine::order`] take orders, as a rail does;
//! * each body that came goes to [`Machine::packet`]; when the port has no more, [`Machine::drained`] judges
//!   timers and reports what has happened since;
//! * [`Machine::next`] writes one packet after the other, as long as the port has room for them.
//!
//! Invariants:
//! * what a peer sends is believed after its checksum, and only where it names a link of its station, or answers
//!   the call that makes it;
//! * a peer can make the machine keep no more than its window of early packets, the asks for as many pieces
//!   as may be under way, and a bounded number of offers;
//! * an order that was answered with `Pending` is reported exactly once, before its link's last word.

use std::collections::{BTreeSet, VecDeque};
use std::hash::Hash;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::hash::{HashMap, HashSeed};
use ropewalk_base::memory::Slice;
use ropewalk_base::random::Random;
use ropewalk_base::shared::{Leaving, SharedBytes};
use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::time::Time;
use ropewalk_base::verb::{Placement, RemoteKey, Token};
use ropewalk_wire::packets::{self, AckBody, Kind, PACKET_BYTES_MIN, Packet, PacketError, Route};
use zerocopy::IntoBytes;

use super::access::{Access, READINGS_MAX, Reading};
use super::late::Late;
use super::link::{CALLS_MAX, Link, Stage};
use super::pull::PIECES_PER_ASK;
use super::share::Share;

/// Settings of a machine.
#[derive(Debug, Clone)]
pub struct PacketConfig {
    /// The number of this endpoint at its station.
    pub endpoint: u8,
    /// Longest packet that the port carries, in bytes from the index on.
    pub packet_bytes: usize,
    /// Pieces of reads that may be under way to us together: what the port's ring can take beside the rest.
    pub pieces_max: u32,
    /// Whether peers may call.
    pub accepts: bool,
    /// Links at a time.
    pub links_max: usize,
    /// A peer that owes an answer for so long is gone.
    pub give_up_after: Duration,
}

/// What happened, told when the machine is asked to; and the memory in which it happened.
pub trait Above: Bytes {
    /// A link carries frames from now on; `accepted`: the peer began it.
    fn link_up(&mut self, link: SlotId, accepted: bool);
    /// The last word about a link.
    fn link_down(&mut self, link: SlotId, fault: Fault);
    /// Where a payload belongs of which this header says more; as a rail's report.
    fn place(&mut self, link: SlotId, header: &[u8], payload_bytes: u32) -> Placement;
    /// A frame that is here whole. False where it breaks the protocol.
    fn arrived(&mut self, link: SlotId, header: &[u8], payload: &[u8]) -> bool;
    /// All of a payload is at its place.
    fn landed(&mut self, link: SlotId, token: Token);
    /// A pending order is done, or failed.
    fn ended(&mut self, token: Token, outcome: Result<(), Fault>);
    /// Nobody writes to the region any more.
    fn revoked(&mut self, link: SlotId, key: RemoteKey);
}

/// Memory that slices name.
pub trait Bytes {
    /// Copies what `from` names; as much as `to` takes.
    fn read(&self, from: Slice, to: &mut [u8]);
    /// Copies to what `to` names, where it is there to be written.
    fn write(&self, to: Slice, from: &[u8]);
}

/// Always-on counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PacketCounters {
    pub sent: u64,
    pub received: u64,
    /// Packets of the stream that went again, and pieces that were asked for again.
    pub resent: u64,
    pub asked_again: u64,
    /// Packets that were here before, that were early, and that there was no room for.
    pub doubled: u64,
    pub early: u64,
    pub beyond: u64,
    /// Bodies of which the length or layout, the type, or the checksum does not hold.
    pub wrong_length: u64,
    pub wrong_type: u64,
    pub corrupt: u64,
    /// Packets for another endpoint, and for links that are not there, or from another station.
    pub wrong_endpoint: u64,
    pub strangers: u64,
    /// Calls of those who may not call, or call as no link of ours does.
    pub refused: u64,
    /// Links that a peer's breach of the protocol ended.
    pub violations: u64,
    pub frames_sent: u64,
    pub frames_received: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Bytes that reads and writes moved here.
    pub bytes_native: u64,
    /// Payload bytes that were copied between buffers of the machine's.
    pub bytes_copied: u64,
}

/// Something to report when it is asked for.
#[derive(Debug)]
pub(super) enum Event {
    Up { link: SlotId, accepted: bool },
    Down { link: SlotId, fault: Fault },
    Ended { token: Token, outcome: Result<(), Fault> },
    Revoked { link: SlotId, key: RemoteKey },
}

/// A packet that belongs to no link of ours.
#[derive(Debug)]
pub(super) struct Stateless<S> {
    pub station: S,
    pub endpoint: u8,
    pub tag: u32,
}

/// Answers to strangers that wait; more are not given.
const STATELESS_MAX: usize = 64;
/// How often a link that waits for room in the port is looked at.
const HELD_UP_FOR: Duration = Duration::from_millis(1);
/// Links that were answered and not heard of since.
const HALF_OPEN_MAX: usize = 256;
/// Bits of a tag that are the link's slot; the others are random.
const TAG_SLOT_BITS: u32 = 14;
/// Links of any machine.
pub const LINKS_MAX: usize = 1 << TAG_SLOT_BITS;

/// The packet machine of one endpoint on one port.
#[derive(Debug)]
pub struct Machine<S> {
    pub(super) config: PacketConfig,
    pub(super) random: Random,
    pub(super) now: Time,
    pub(super) links: Slots<Link<S>>,
    /// Links by who is at the other end: its station and number, and its name for them.
    pub(super) by_theirs: HashMap<(S, u8, u32), SlotId>,
    /// Links that peers began, by station and the number of the call.
    pub(super) called: HashMap<(S, u64), SlotId>,
    pub(super) half_open: VecDeque<SlotId>,
    /// Links whose last word is on its way, the oldest first, and some that are over.
    pub(super) closing: VecDeque<SlotId>,
    /// Links that may have something to send, in turn.
    pub(super) ready: VecDeque<SlotId>,
    pub(super) stateless: VecDeque<Stateless<S>>,
    pub(super) timers: BTreeSet<(Time, SlotId)>,
    pub(super) readings: Slots<Reading>,
    pub(super) accesses: Slots<Access>,
    pub(super) by_token: HashMap<u64, SlotId>,
    /// Pieces that are asked for and not here, of all links.
    pub(super) share: Share,
    /// Pieces that were asked for again and came.
    pub(super) late: Late,
    /// Bytes of early packets, of all links.
    pub(super) early_bytes: usize,
    /// Offers of lists that are not whole, and ends of offers that were not sent, of all links.
    pub(super) listed_all: usize,
    pub(super) untold_all: usize,
    pub(super) events: VecDeque<Event>,
    pub(super) spare: Vec<SharedBytes>,
    pub(super) counters: PacketCounters,
}

/// Buffers of packets that are kept for reuse.
pub(super) const SPARE_MAX: usize = 256;

/// Keeps a buffer, where there are fewer than so many, and nothing of it is on its way any more.
pub(super) fn recycle(spare: &mut Vec<SharedBytes>, max: usize, mut buffer: SharedBytes) {
    if spare.len() < max
        && let Some(bytes) = buffer.alone()
    {
        bytes.clear();
        spare.push(buffer);
    }
}

impl<S: Copy + Eq + Hash + std::fmt::Debug> Machine<S> {
    /// A machine without links.
    pub fn new(config: PacketConfig, random: Random) -> Machine<S> {
        assert!(config.links_max <= LINKS_MAX, "a tag has no bits for more links");
        let lengths = packets::PACKET_BYTES_MIN..=packets::PACKET_BYTES_MAX;
        assert!(lengths.contains(&config.packet_bytes), "no packet is so long");
        let hash = HashSeed::peek(&random);
        Machine {
            links: Slots::with_limit(config.links_max),
            share: Share::new(config.pieces_max, PIECES_PER_ASK),
            config,
            random,
            now: Time::ZERO,
            by_theirs: HashMap::with_hasher(hash.clone()),
            called: HashMap::with_hasher(hash.clone()),
            half_open: VecDeque::new(),
            closing: VecDeque::new(),
            ready: VecDeque::new(),
            stateless: VecDeque::new(),
            timers: BTreeSet::new(),
            readings: Slots::with_limit(READINGS_MAX),
            accesses: Slots::with_limit(1 << 20),
            by_token: HashMap::with_hasher(HashSeed::OWN_KEYS),
            late: Late::default(),
            early_bytes: 0,
            listed_all: 0,
            untold_all: 0,
            events: VecDeque::new(),
            spare: Vec::new(),
            counters: PacketCounters::default(),
        }
    }

    /// Longest packet, in bytes.
    pub fn packet_bytes(&self) -> usize {
        self.config.packet_bytes
    }

    /// Its counters.
    pub fn counters(&self) -> PacketCounters {
        self.counters
    }

    /// When [`Machine::drained`] has something to do at the latest, once [`Machine::next`] has nothing more.
    pub fn deadline(&self) -> Time {
        self.timers.first().map_or(Time::NEVER, |(at, _)| *at)
    }

    /// Whether [`Machine::next`] may have a packet, or [`Machine::drained`] something to report.
    pub fn has_work(&self) -> bool {
        !self.ready.is_empty() || !self.stateless.is_empty() || !self.events.is_empty()
    }

    /// Whether any link has something that its peer has not acknowledged.
    pub fn owes(&self) -> bool {
        let mut links = self.links.iter();
        links.any(|(_, link)| link.is_up() && !(link.sending.is_empty() && link.out.is_empty()))
    }

    /// Since when the other end of a link owes an acknowledgement.
    pub fn owed_since(&self, link: SlotId) -> Time {
        self.links.get(link).map_or(Time::NEVER, |state| state.sending.silent_since())
    }

    /// The station at the other end of a link.
    pub fn station(&self, link: SlotId) -> Option<S> {
        self.links.get(link).map(|state| state.station)
    }

    /// Begins a link; `Up` or `Down` is reported later.
    pub fn connect(&mut self, station: S, endpoint: u8, now: Time) -> Result<SlotId, Fault> {
        self.now = self.now.max(now);
        let (call, probe) = (self.random.next_u64(), self.random.next_u64());
        let stage = Stage::Calling { call, probe, again_at: Time::ZERO, tries: 0, found: false };
        self.add_link(station, endpoint, 0, stage).ok_or(Fault::Busy)
    }

    /// Likewise before it is known where: `nowhere` stands for it, and nothing is sent until it is
    /// [`Machine::found`], for which there is so much time.
    pub fn connect_later(
        &mut self,
        nowhere: S,
        patience: Duration,
        now: Time,
    ) -> Result<SlotId, Fault> {
        self.now = self.now.max(now);
        let (call, probe) = (self.random.next_u64(), self.random.next_u64());
        // As if it had been called often enough: where nothing is found by then it ends, uncalled.
        let stage = Stage::Calling {
            call,
            probe,
            again_at: now + patience,
            tries: CALLS_MAX,
            found: false,
        };
        self.add_link(nowhere, 0, 0, stage).ok_or(Fault::Busy)
    }

    /// Longer packets do not get through to where a link goes that is being made. Whether these do shows when it is made.
    pub fn shorten(&mut self, link: SlotId, packet_bytes: usize) {
        let Some(state) = self.links.get_mut(link) else { return };
        if matches!(state.stage, Stage::Calling { .. }) {
            state.longest = state.longest.min(packet_bytes.max(PACKET_BYTES_MIN));
            state.packet_bytes = state.packet_bytes.min(state.longest);
        }
    }

    /// Where a link goes that was to be connected later; `None` where that cannot be known.
    pub fn found(&mut self, link: SlotId, station: Option<(S, u8)>, now: Time) {
        self.now = self.now.max(now);
        let Some(state) = self.links.get_mut(link) else { return };
        let Stage::Calling { again_at, tries, .. } = &mut state.stage else { return };
        let Some((station, endpoint)) = station else {
            return self.end(link, Fault::Unreachable);
        };
        (*again_at, *tries) = (Time::ZERO, 0);
        (state.station, state.endpoint) = (station, endpoint);
        self.touch(link);
    }

    pub(super) fn add_link(
        &mut self,
        station: S,
        endpoint: u8,
        theirs: u32,
        stage: Stage,
    ) -> Option<SlotId> {
        let packet_bytes = self.config.packet_bytes;
        let hash = self.by_theirs.hasher().clone();
        let link = Link::new(station, endpoint, theirs, stage, packet_bytes, hash);
        let id = match self.links.insert(link) {
            Ok(id) => id,
            Err(link) => {
                self.end_oldest_closing();
                self.links.insert(link).ok()?
            }
        };
        let random = (self.random.next_u64() as u32) << TAG_SLOT_BITS;
        let state = self.links.get_mut(id)?;
        // Never 0, which stands for a link that is not known yet.
        state.ours = random | id.index | 1 << 31;
        self.touch(id);
        Some(id)
    }

    /// Links that wait for the answer to their last word leave their places to others, where there are no more.
    #[cold]
    fn end_oldest_closing(&mut self) {
        while let Some(id) = self.closing.pop_front() {
            if self.is_closing(id) {
                return self.end(id, Fault::Closed);
            }
        }
    }

    fn is_closing(&self, id: SlotId) -> bool {
        self.links.get(id).is_some_and(|state| state.stage == Stage::Closing)
    }

    /// The last word of a link is on its way.
    pub(super) fn note_closing(&mut self, id: SlotId) {
        self.closing.push_back(id);
        if self.closing.len() > 2 * self.links.len() {
            let mut closing = std::mem::take(&mut self.closing);
            closing.retain(|id| self.is_closing(*id));
            self.closing = closing;
        }
    }

    /// The link that a tag names, if the packet comes from the right place. While we call that is an answer only; who
    /// is called by one of several addresses may answer from another, since nobody else can know what the call said.
    fn by_tag(&self, tag: u32, from: S, packet: &Packet<'_>) -> Option<SlotId> {
        let id = self.links.id_at(tag & (LINKS_MAX as u32 - 1))?;
        let state = self.links.get(id)?;
        let right = match (packet, &state.stage) {
            (Packet::Answer(answer), Stage::Calling { call, probe, .. }) => {
                [*call, *probe].contains(&answer.call.get())
            }
            (_, Stage::Calling { .. }) => false,
            _ => state.station == from,
        };
        (state.ours == tag && right).then_some(id)
    }

    /// The link may have something to send. When it has been asked, its timer is set.
    pub(super) fn touch(&mut self, id: SlotId) {
        let Some(state) = self.links.get_mut(id) else { return };
        if !std::mem::replace(&mut state.is_ready, true) {
            self.ready.push_back(id);
        }
    }

    /// Likewise after something that may have left nothing to be sent.
    fn touch_if_wanted(&mut self, id: SlotId) {
        let wants = self.links.get(id).is_some_and(|state| state.wants(self.now));
        if wants { self.touch(id) } else { self.wake(id) }
    }

    /// Makes sure that the link is looked at in time. What is due later by then is not taken back.
    pub(super) fn wake(&mut self, id: SlotId) {
        let Some(state) = self.links.get_mut(id) else { return };
        let due = state.due(&self.readings);
        if due < state.timer {
            if state.timer < Time::NEVER {
                self.timers.remove(&(state.timer, id));
            }
            state.timer = due;
            self.timers.insert((due, id));
        }
    }

    /// A body came from a station. One that is no packet of ours is counted and passed over.
    pub fn packet(&mut self, from: S, body: &[u8], now: Time, above: &mut dyn Above) {
        self.now = self.now.max(now);
        self.report(above);
        let opened = match packets::open(body) {
            Ok(opened) if opened.head.to == self.config.endpoint => opened,
            Ok(_) => return self.counters.wrong_endpoint += 1,
            Err(PacketError::Foreign) => return self.counters.wrong_type += 1,
            Err(PacketError::Shape) => return self.counters.wrong_length += 1,
            Err(PacketError::Checksum) => return self.counters.corrupt += 1,
        };
        self.counters.received += 1;
        self.counters.bytes_received += u64::from(opened.head.bytes.get());
        let (tag, endpoint) = (opened.head.tag.get(), opened.head.from);
        match opened.packet {
            Packet::Call(call) => {
                let bytes = usize::from(opened.head.bytes.get());
                return self.called(from, endpoint, call, bytes);
            }
            Packet::Gone(tag) => {
                self.gone(from, endpoint, tag);
                return self.report(above);
            }
            _ => {}
        }
        let Some(id) = self.by_tag(tag, from, &opened.packet) else {
            self.counters.strangers += 1;
            if let Packet::Stream(..) | Packet::Pull(_) = opened.packet {
                self.send_away(from, endpoint, tag);
            }
            return;
        };
        match opened.packet {
            Packet::Answer(answer) => {
                let bytes = usize::from(opened.head.bytes.get());
                self.answered(id, (from, endpoint), answer, bytes);
            }
            packet => {
                self.heard(id);
                self.report(above);
                match packet {
                    Packet::Stream(body, bytes) => self.streamed(id, body, bytes, above),
                    Packet::Ack(ack) => self.acknowledged(id, ack),
                    Packet::Pull(pulls) => pulls.iter().for_each(|pull| self.asked(id, pull)),
                    Packet::Piece(piece, bytes) => self.piece(id, piece, bytes, above),
                    Packet::Refusal(refusal) => self.pull_refused(id, refusal),
                    Packet::Call(_) | Packet::Answer(_) | Packet::Gone(_) => {}
                }
                self.touch_if_wanted(id);
            }
        }
        self.report(above);
    }

    /// Tells somebody who speaks of a link that is not here.
    pub(super) fn send_away(&mut self, station: S, endpoint: u8, tag: u32) {
        if self.stateless.len() < STATELESS_MAX {
            self.stateless.push_back(Stateless { station, endpoint, tag });
        }
    }

    /// The port had nothing more at `now`: timers are judged, and what happened is reported.
    pub fn drained(&mut self, now: Time, above: &mut dyn Above) {
        self.now = self.now.max(now);
        // Each once: what is due is not over before a packet has left.
        let mut due = Vec::new();
        while let Some(&(at, id)) = self.timers.first().filter(|(at, _)| *at <= self.now) {
            self.timers.remove(&(at, id));
            due.push(id);
        }
        for id in due {
            let Some(state) = self.links.get_mut(id) else { continue };
            state.timer = Time::NEVER;
            self.run_timer(id);
            self.touch(id);
        }
        self.report(above);
    }

    /// The port has no room for more: links that wait for it are looked at all the same, and given up in time.
    pub fn held_up(&mut self, now: Time) {
        let (links, readings) = (&mut self.links, &self.readings);
        for id in &self.ready {
            if let Some(state) = links.get_mut(*id).filter(|state| state.timer == Time::NEVER) {
                state.timer = state.due(readings).max(now + HELD_UP_FOR);
                self.timers.insert((state.timer, *id));
            }
        }
    }

    /// Reports what has happened since it was asked last.
    pub fn report(&mut self, above: &mut dyn Above) {
        while let Some(event) = self.events.pop_front() {
            match event {
                Event::Up { link, accepted } => above.link_up(link, accepted),
                Event::Down { link, fault } => above.link_down(link, fault),
                Event::Ended { token, outcome } => above.ended(token, outcome),
                Event::Revoked { link, key } => above.revoked(link, key),
            }
        }
    }

    /// Writes the next packet to `out`, which has room for the longest; where it goes and how long it is.
    /// `now` is when it leaves.
    pub fn next(&mut self, now: Time, memory: &dyn Bytes, out: &mut [u8]) -> Option<(S, usize)> {
        let (station, leaving) = self.next_apart(now, memory, out)?;
        Some((station, leaving.join(out)))
    }

    /// Likewise; what is kept until it is acknowledged is not written.
    pub fn next_apart(
        &mut self,
        now: Time,
        memory: &dyn Bytes,
        out: &mut [u8],
    ) -> Option<(S, Leaving)> {
        self.now = self.now.max(now);
        let (station, leaving) = self.write_next(memory, out)?;
        self.counters.sent += 1;
        self.counters.bytes_sent += leaving.bytes() as u64;
        Some((station, leaving))
    }

    fn write_next(&mut self, memory: &dyn Bytes, out: &mut [u8]) -> Option<(S, Leaving)> {
        if let Some(Stateless { station, endpoint, tag }) = self.stateless.pop_front() {
            let route = Route { to: endpoint, from: self.config.endpoint, tag: 0 };
            let len = packets::seal(out, Kind::Gone, route, &tag.to_le_bytes(), 0, |_| ());
            return Some((station, Leaving::whole(len)));
        }
        while let Some(id) = self.ready.pop_front() {
            let Some(state) = self.links.get_mut(id) else { continue };
            state.is_ready = false;
            let station = state.station;
            if let Some(leaving) = self.next_of(id, memory, out) {
                // It had something, and may have more.
                self.touch_if_wanted(id);
                return Some((station, leaving));
            }
            self.wake(id);
        }
        None
    }

    /// The next packet of a link: what was lost, then the stream, then what is only to be acknowledged, then asks and
    /// pieces: pieces may be many, and whoever waits for the other would take its packets for lost.
    fn next_of(&mut self, id: SlotId, memory: &dyn Bytes, out: &mut [u8]) -> Option<Leaving> {
        let state = self.links.get_mut(id)?;
        if matches!(state.stage, Stage::Calling { .. } | Stage::Answered { .. }) {
            return self.next_call(id, out).map(Leaving::whole);
        }
        if let Some(leaving) = self.next_stream(id, memory, out) {
            return Some(leaving);
        }
        let other = self.next_ack(id, out).or_else(|| self.next_ask(id, out));
        other.or_else(|| self.next_piece(id, memory, out)).map(Leaving::whole)
    }

    /// What arrived, where it is time to tell.
    fn next_ack(&mut self, id: SlotId, out: &mut [u8]) -> Option<usize> {
        let now = self.now;
        let state = self.links.get_mut(id)?;
        if state.receiving.due() > now {
            return None;
        }
        let ack = AckBody::from(state.receiving.tell(now));
        Some(packets::seal(out, Kind::Ack, self.route(id)?, ack.as_bytes(), 0, |_| ()))
    }

    pub(super) fn route(&self, id: SlotId) -> Option<Route> {
        let state = self.links.get(id)?;
        Some(Route { to: state.endpoint, from: self.config.endpoint, tag: state.theirs })
    }

    /// A link was answered and has to be heard of; the one that waits longest goes where there are too many.
    pub(super) fn note_half_open(&mut self, id: SlotId) {
        self.half_open.push_back(id);
        while self.half_open.len() > HALF_OPEN_MAX {
            let Some(oldest) = self.half_open.pop_front() else { break };
            let waits = |state: &Link<S>| matches!(state.stage, Stage::Answered { .. });
            if self.links.get(oldest).is_some_and(waits) {
                self.forget(oldest);
            }
        }
    }

    /// Ends a link: what was under way fails, and its last word is told, if anybody knows of it.
    pub(super) fn end(&mut self, id: SlotId, fault: Fault) {
        self.end_orders(id, fault);
        let Some(state) = self.links.get(id) else { return };
        let known = !matches!(state.stage, Stage::Answered { .. });
        self.forget(id);
        if known {
            self.events.push_back(Event::Down { link: id, fault });
        }
    }

    fn forget(&mut self, id: SlotId) {
        self.share.leave(id);
        self.feed();
        let Some(mut state) = self.links.remove(id) else { return };
        self.timers.remove(&(state.timer, id));
        self.early_bytes -= state.early_bytes();
        self.listed_all -= state.listed.records.len();
        self.untold_all -= state.listed.untold;
        let name = (state.station, state.endpoint, state.theirs);
        if self.by_theirs.get(&name) == Some(&id) {
            self.by_theirs.remove(&name);
        }
        if let Some(call) = state.call {
            self.called.remove(&(state.station, call));
        }
        for buffer in state.buffers() {
            self.recycle(buffer);
        }
    }

    /// The peer broke the protocol.
    pub(super) fn violated(&mut self, id: SlotId) {
        self.counters.violations += 1;
        self.end(id, Fault::Protocol);
    }

    /// A buffer for a packet's bytes.
    pub(super) fn buffer(&mut self) -> SharedBytes {
        self.spare.pop().unwrap_or_default()
    }

    pub(super) fn recycle(&mut self, buffer: SharedBytes) {
        recycle(&mut self.spare, SPARE_MAX, buffer);
    }
}
