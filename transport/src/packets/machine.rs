//! The packet machine: links, frames and native access over a port that carries packets.
//!
//! Orders come to it as to a rail; [`PacketProtocol`](crate::PacketProtocol) tells how it is driven.
//!
//! Invariants:
//! * what a peer sends is believed after its checksum, and only where it names a link of its station, or answers
//!   the call that makes it;
//! * a peer can make the machine keep no more than its window of early packets, the asks for as many pieces
//!   as may be under way, and a bounded number of offers;
//! * an order that was answered with `Pending` is reported exactly once, before its link's last word.

use std::collections::VecDeque;
use std::hash::Hash;
use std::time::Duration;

use ropewalk_base::cipher_random::CipherRandom;
use ropewalk_base::error::Fault;
use ropewalk_base::hash::{HashMap, HashSeed};
use ropewalk_base::random::Random;
use ropewalk_base::shared::{Leaving, SharedBytes};
use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::time::Time;
use ropewalk_base::verb::{RemoteKey, Token};
use ropewalk_wire::packets::{self, AckBody, Kind, PACKET_BYTES_MIN, Packet, Route};
use zerocopy::IntoBytes;

use super::cookies::{Cookie, Cookies};
use super::link::{CALLS_MAX, Link, Stage};
use super::transfers::{Access, READINGS_MAX, Reading};
use crate::driver::{Driven, Driver};
use crate::late::Late;
use crate::memory::{Bytes, SPARE_MAX, recycle};
use crate::pull::PIECES_PER_ASK;
use crate::pull_budget::PullBudget;

/// Settings of a machine.
#[derive(Debug, Clone)]
pub struct PacketConfig {
    /// The number of this endpoint at its station.
    pub endpoint: u8,
    /// Longest packet that the port carries, in bytes from the index on.
    pub packet_bytes: usize,
    /// Pieces of reads that may be under way to us together: those that the port's ring can take beside the rest.
    pub pieces_max: u32,
    /// Whether peers may call.
    pub accepts: bool,
    /// Links at a time.
    pub links_max: usize,
    /// A peer that owes an answer for so long is gone.
    pub give_up_after: Duration,
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
    /// Calls that were told to come again with a cookie; acknowledgements of what was never sent.
    pub retries: u64,
    pub never_sent: u64,
    /// Packets of protected links: that somebody made up or changed, that came before, that are in clear, and that overtook
    /// the end of the greeting.
    pub forged: u64,
    pub replayed: u64,
    pub unprotected: u64,
    pub too_early: u64,
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
pub(crate) enum Event {
    Up { link: SlotId, accepted: bool },
    Down { link: SlotId, fault: Fault },
    Ended { token: Token, outcome: Result<(), Fault> },
    Revoked { link: SlotId, key: RemoteKey },
}

/// A reply to somebody of whom nothing is kept.
#[derive(Debug)]
pub(crate) enum Reply<S> {
    /// To the sender of a packet for a link that is not here.
    Gone { station: S, endpoint: u8, tag: u32, secret: u32 },
    /// To a caller, who is to call again with the cookie. `tag`: its name for the link.
    Retry { station: S, endpoint: u8, tag: u32, call: u64, cookie: Cookie },
}

/// Links that were answered and not heard of since, of callers who showed no cookie; no more than half of all links.
const HALF_OPEN_MAX: usize = 256;
/// Bits of a tag that are the link's slot; the others are random.
const TAG_SLOT_BITS: u32 = 14;
/// Links of any machine.
pub const LINKS_MAX: usize = 1 << TAG_SLOT_BITS;

/// The packet machine of one endpoint on one port.
#[derive(Debug)]
pub struct Machine<S> {
    pub(super) config: PacketConfig,
    pub(super) random: CipherRandom,
    pub(super) driver: Driver<Reply<S>, Event>,
    pub(super) links: Slots<Link<S>>,
    /// Links by who is at the other end: its station and number, and its name for them.
    pub(super) by_theirs: HashMap<(S, u8, u32), SlotId>,
    /// Links that peers began, by station and the number of the call.
    pub(super) called: HashMap<(S, u64), SlotId>,
    pub(super) half_open: VecDeque<SlotId>,
    pub(super) cookies: Cookies,
    /// Cookies that our own calls show, since they were asked to.
    pub(super) shown: HashMap<SlotId, Cookie>,
    /// The secret in the packet of a stream that is being taken.
    pub(super) their_secret: u32,
    /// Links whose last word is on its way, the oldest first, and some that are over.
    pub(super) closing: VecDeque<SlotId>,
    pub(super) readings: Slots<Reading>,
    pub(super) accesses: Slots<Access>,
    pub(super) by_token: HashMap<u64, SlotId>,
    /// Pieces that are asked for and not here, of all links.
    pub(super) budget: PullBudget,
    /// Pieces that were asked for again and came.
    pub(super) late: Late,
    /// Bytes of early packets, of all links.
    pub(super) early_bytes: usize,
    /// Offers of lists that are not whole, and ends of offers that were not sent, of all links.
    pub(super) listed_all: usize,
    pub(super) untold_all: usize,
    pub(super) spare: Vec<SharedBytes>,
    /// Where sealed packets are opened.
    pub(super) scratch: Vec<u8>,
    pub(super) counters: PacketCounters,
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
            budget: PullBudget::new(config.pieces_max, PIECES_PER_ASK),
            config,
            random: CipherRandom::peek(&random),
            driver: Driver::new(),
            by_theirs: HashMap::with_hasher(hash.clone()),
            called: HashMap::with_hasher(hash.clone()),
            half_open: VecDeque::new(),
            cookies: Cookies::default(),
            shown: HashMap::with_hasher(HashSeed::OWN_KEYS),
            their_secret: 0,
            closing: VecDeque::new(),
            readings: Slots::with_limit(READINGS_MAX),
            accesses: Slots::with_limit(1 << 20),
            by_token: HashMap::with_hasher(HashSeed::OWN_KEYS),
            late: Late::default(),
            early_bytes: 0,
            listed_all: 0,
            untold_all: 0,
            spare: Vec::new(),
            scratch: Vec::new(),
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

    /// Begins a link; `Up` or `Down` is reported later.
    pub fn connect(&mut self, station: S, endpoint: u8, now: Time) -> Result<SlotId, Fault> {
        self.driver.advance(now);
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
        self.driver.advance(now);
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

    /// Longer packets do not get through to the destination of a link that is being made. Whether packets of this
    /// length do shows when the link is made.
    pub fn shorten(&mut self, link: SlotId, packet_bytes: usize) {
        let Some(state) = self.links.get_mut(link) else { return };
        if matches!(state.stage, Stage::Calling { .. }) {
            let longest = usize::from(state.longest).min(packet_bytes.max(PACKET_BYTES_MIN));
            state.longest = longest as u16;
            state.packet_bytes = state.packet_bytes.min(state.longest);
        }
    }

    /// Tells the destination of a link that was to be connected later; `None` if it cannot be known.
    pub fn found(&mut self, link: SlotId, station: Option<(S, u8)>, now: Time) {
        self.driver.advance(now);
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
        let drawn = self.random.next_u64();
        let random = (drawn as u32) << TAG_SLOT_BITS;
        let state = self.links.get_mut(id)?;
        // Never 0, which stands for a link that is not known yet.
        state.ours = random | id.index | 1 << 31;
        // Never 0, which no packet of the stream tells.
        state.secret = (drawn >> 32) as u32 | 1;
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

    /// The link that a tag names, if the packet comes from the right place. While we call, that is an answer only. A
    /// peer that is called by one of several addresses may answer from another: nobody else can know the content of the
    /// call.
    pub(super) fn by_tag(&self, tag: u32, from: S, packet: &Packet<'_>) -> Option<SlotId> {
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

    /// Tells the sender of a packet that its link is not here. `secret`: the one that the packet told.
    pub(super) fn send_away(&mut self, station: S, endpoint: u8, tag: u32, secret: u32) {
        // More would be answers to a flood.
        self.driver.reply(Reply::Gone { station, endpoint, tag, secret });
    }

    /// The next packet of a link: lost packets first, then the stream, then an acknowledgement alone, then asks and
    /// pieces. Pieces may be many, and a peer that waits for the others would take its packets for lost.
    pub(super) fn next_of(
        &mut self,
        id: SlotId,
        memory: &dyn Bytes,
        out: &mut [u8],
    ) -> Option<Leaving> {
        let state = self.links.get_mut(id)?;
        if matches!(state.stage, Stage::Calling { .. } | Stage::Answered { .. }) {
            return self.next_call(id, out).map(Leaving::whole);
        }
        if let Some((leaving, is_plain)) = self.next_stream(id, memory, out) {
            return Some(if is_plain { leaving } else { self.sealed_packet(id, leaving, out) });
        }
        let other = self.next_ack(id, out).or_else(|| self.next_ask(id, out));
        let other = other.or_else(|| self.next_piece(id, memory, out)).map(Leaving::whole)?;
        Some(self.sealed_packet(id, other, out))
    }

    /// The acknowledgement of packets that arrived, if it is due.
    fn next_ack(&mut self, id: SlotId, out: &mut [u8]) -> Option<usize> {
        let now = self.driver.now;
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

    /// Whether so many links were answered and not heard of since that callers have to show a cookie.
    pub(super) fn has_many_half_open(&mut self) -> bool {
        let Machine { half_open, links, .. } = self;
        let waits = |state: &Link<S>| matches!(state.stage, Stage::Answered { .. });
        let is_over = |id: &mut SlotId| !links.get(*id).is_some_and(waits);
        while half_open.pop_front_if(is_over).is_some() {}
        half_open.len() >= HALF_OPEN_MAX.min(self.config.links_max / 2)
    }

    /// Ends a link: its orders under way fail, and its last word is told, if anybody knows of it.
    pub(super) fn end(&mut self, id: SlotId, fault: Fault) {
        self.end_orders(id, fault);
        let Some(state) = self.links.get(id) else { return };
        let known = !matches!(state.stage, Stage::Answered { .. });
        self.forget(id);
        if known {
            self.driver.tell(Event::Down { link: id, fault });
        }
    }

    fn forget(&mut self, id: SlotId) {
        self.budget.leave(id);
        self.feed();
        let Some(mut state) = self.links.remove(id) else { return };
        self.driver.forget(id, &state.schedule);
        self.shown.remove(&id);
        self.early_bytes -= state.early_bytes();
        self.listed_all -= state.listed.records.len();
        self.untold_all -= state.listed.untold;
        let name = (state.station, state.endpoint, state.theirs);
        if self.by_theirs.get(&name) == Some(&id) {
            self.by_theirs.remove(&name);
        }
        if let (true, call) = (state.was_called, state.call) {
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
