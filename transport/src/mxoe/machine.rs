//! Partners, the reports about them, and the packets that leave.
//!
//! Orders come to it as to a rail; [`PacketProtocol`](crate::PacketProtocol) tells how it is driven.
//!
//! Invariants:
//! * a partner is a station and an endpoint of it, and one link as long as its session lasts;
//! * a packet of a partner is believed if it names our session and comes from the partner's station: the index in a
//!   packet's head is for Open-MX's tables, and never read;
//! * a message is told once, in order, and acknowledged when it is here whole; a message for which the layer above has
//!   no room was never seen;
//! * an order that was answered with `Pending` is reported exactly once, before its link's last word.

use std::collections::VecDeque;
use std::hash::Hash;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::hash::{HashMap, HashSeed};
use ropewalk_base::memory::Slice;
use ropewalk_base::random::Random;
use ropewalk_base::shared::SharedBytes;
use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::time::Time;
use ropewalk_base::verb::{ForeignEnd, RemoteKey, Token};
use ropewalk_wire::mxoe::{
    self, Dialect, INDEX_UNKNOWN, Nack, NackMcp, Packet, PacketError, SESSION_UNKNOWN, Sequence,
};

use super::closed_peers::ClosedPeer;
use super::connect::{Introduction, Numbers, Purpose, Stage};
use super::pulling::{Asks, Pulling};
use super::receiving::Receiving;
use super::regions::{Region, Serving};
use super::sending::{Sending, Waiting};
use crate::driver::{Driver, Schedule};
use crate::late::Late;
use crate::memory::Bytes;
use crate::protocol::Who;
use crate::pull_budget::PullBudget;
use crate::round_trip::RoundTrip;

/// Settings of a machine.
#[derive(Debug, Clone)]
pub struct MxoeConfig {
    /// The number of this endpoint at its station.
    pub endpoint: u8,
    /// The dialect on the wire. Both ends have to agree, and nothing checks it.
    pub dialect: Dialect,
    /// The key that others have to name to connect.
    pub key: u32,
    /// Whether others may connect.
    pub accepts: bool,
    /// Partners at a time.
    pub partners_max: usize,
    /// Replies to pulls that may be under way to us together: those that the port's ring can take beside the rest.
    pub frames_max: u32,
    /// A partner that owes an answer for so long is gone.
    pub give_up_after: Duration,
    /// So is one that does not answer our connecting.
    pub connect_for: Duration,
}

/// Always-on counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MxoeCounters {
    pub sent: u64,
    pub received: u64,
    pub messages_sent: u64,
    pub messages_received: u64,
    /// Messages that went again, and pieces that were asked for again.
    pub resent: u64,
    pub asked_again: u64,
    pub doubled: u64,
    pub early: u64,
    /// Messages that there was no room for, here or above, or that are too far ahead.
    pub beyond: u64,
    pub postponed: u64,
    /// Of a length that their type has not, of a type that no endpoint is told, with fields that make no sense.
    pub wrong_length: u64,
    pub wrong_type: u64,
    pub malformed: u64,
    /// Fragments, pieces and pulls of messages that we know, which lie otherwise than frames as long as ours have
    /// them: that host has another frame length, or bits changed on the way.
    pub misplaced: u64,
    /// Packets for another endpoint, of another session, or from nobody known.
    pub wrong_endpoint: u64,
    pub wrong_session: u64,
    pub strangers: u64,
    /// From a partner to whom we are not connected yet, or not any more.
    pub unready: u64,
    /// Replies to pulls that nobody waits for.
    pub unasked: u64,
    /// Partners of whom nothing was heard but that they connect, and that made room for others.
    pub half_open: u64,
    /// Links that ended since their partner went on without what was missing.
    pub stuck: u64,
    pub nacks_sent: u64,
    pub nacks_received: u64,
    /// Refusals and answers that were not given, since too many wait.
    pub unanswered: u64,
    /// The number of waits of messages for a region, and of pulls for their share of the packets under way.
    pub awaited_region: u64,
    pub awaited_share: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    /// Bytes of large messages, in both directions.
    pub bytes_native: u64,
    /// Payload bytes that were copied between buffers of the machine's.
    pub bytes_copied: u64,
}

/// Something to report when it is asked for.
#[derive(Debug)]
pub(crate) enum Event {
    Up { link: SlotId, accepted: bool },
    Judged { link: SlotId, key: u32, right: bool },
    Down { link: SlotId, fault: Fault },
    Finished { link: SlotId, end: ForeignEnd },
    Ended { token: Token, outcome: Result<(), Fault> },
    Revoked { link: SlotId, key: RemoteKey },
}

/// A reply to a sender that is no partner.
#[derive(Debug)]
pub(crate) struct Reply<S> {
    pub station: S,
    pub index: u16,
    pub packet: Packet<'static>,
}

/// The other end of a link.
#[derive(Debug)]
pub(super) struct Partner<S> {
    pub station: S,
    pub endpoint: u8,
    pub session: u32,
    /// Ours, as it knows it: the endpoint's, or one that it takes for a restart of ours.
    pub own: u32,
    /// The session before this one: its packets may still be on their way.
    pub former: u32,
    /// Ours in the table of its host.
    pub index: u16,
    pub stage: Stage,
    /// The key with which we connect.
    pub key: u32,
    /// Keys that it is to be shown.
    pub wanted: VecDeque<u32>,
    /// The number of our attempts to connect.
    pub connects: u8,
    /// We connect, and are not answered yet.
    pub introduction: Option<Introduction>,
    /// The numbers that our latest attempts named as the next to expect.
    pub named: Numbers,
    /// When it is told once more in which session we are.
    pub insist_at: Time,
    /// The latest attempt of the partner's to connect.
    pub heard_connect: Option<u8>,
    /// Its attempts that are to be answered, and with which status.
    pub answers: VecDeque<(u8, u8)>,
    /// It named our session: it has heard us, and is where it says that it is.
    pub is_proven: bool,
    /// When it was heard last in this session.
    pub heard_at: Time,
    pub schedule: Schedule,
    pub round_trip: RoundTrip,
    pub sending: Sending,
    pub receiving: Receiving,
    /// Numbers of acknowledgements that went by themselves, and came.
    pub acks_sent: u32,
    pub acks_heard: u32,
    /// The layer above has room again, perhaps: it is in `retries`.
    pub retry: bool,
    /// A message of ours waits for a region: it is in `awaiting_region`.
    pub awaits_region: bool,
    /// Announces of the partner's that were told and are not over: their regions.
    pub announced: HashMap<u64, (u8, u8)>,
    /// Numbers of regions that our announces to it have: it owes their ends.
    pub regions: u32,
    /// The memory that it may read.
    pub exposed: HashMap<u64, (u64, Slice)>,
    pub asks: Asks,
    pub serving: VecDeque<Serving>,
}

impl<S> Partner<S> {
    pub fn new(
        station: S,
        endpoint: u8,
        own: u32,
        receive_next: Sequence,
        hash: HashSeed,
    ) -> Partner<S> {
        Partner {
            station,
            endpoint,
            session: SESSION_UNKNOWN,
            own,
            former: SESSION_UNKNOWN,
            index: INDEX_UNKNOWN,
            stage: Stage::Connecting,
            key: 0,
            wanted: VecDeque::new(),
            connects: 0,
            introduction: None,
            named: Numbers::default(),
            insist_at: Time::NEVER,
            heard_connect: None,
            answers: VecDeque::new(),
            is_proven: false,
            heard_at: Time::ZERO,
            schedule: Schedule::default(),
            round_trip: RoundTrip::default(),
            sending: Sending::new(Sequence::new(0, 1)),
            receiving: Receiving::new(receive_next),
            acks_sent: 0,
            acks_heard: 0,
            retry: false,
            awaits_region: false,
            announced: HashMap::with_hasher(hash.clone()),
            regions: 0,
            exposed: HashMap::with_hasher(hash),
            asks: Asks::default(),
            serving: VecDeque::new(),
        }
    }

    /// Whether messages wait until it has heard our session.
    pub fn is_held(&self) -> bool {
        self.introduction.as_ref().is_some_and(|it| it.holds)
    }

    /// Whether it takes orders.
    pub fn is_up(&self) -> bool {
        self.stage == Stage::Up
    }

    /// Whether it may have a packet to send.
    #[inline]
    pub fn wants(&self, now: Time) -> bool {
        // Closing, it ends when it was asked and had nothing.
        self.stage != Stage::Up
            || !self.answers.is_empty()
            || self.introduction.is_some()
            || self.sending.wants()
            || !self.asks.is_empty()
            || !self.serving.is_empty()
            || self.receiving.due() <= now
    }

    /// When something is due.
    pub fn due(&self, pulls: &Slots<Pulling>, probed_after: Duration) -> Time {
        let introduction = self.introduction.as_ref().map_or(Time::NEVER, |it| it.again_at);
        let ends = if let Stage::Closing { until } = self.stage { until } else { Time::NEVER };
        let messages = self.sending.due().min(self.receiving.due());
        let probed = if self.is_probed() { self.heard_at + probed_after } else { Time::NEVER };
        let asks = self.asks.due(pulls, &self.round_trip);
        let insists = if self.introduction.is_none() { self.insist_at } else { Time::NEVER };
        introduction.min(ends).min(messages).min(asks).min(probed).min(insists)
    }

    /// Whether we ask a partner that is silent for long who it is. Everything else that it owes goes again, and is that
    /// question.
    fn is_probed(&self) -> bool {
        self.regions > 0 && self.is_up() && self.introduction.is_none()
    }
}

/// The MXoE machine of one endpoint on one port.
#[derive(Debug)]
pub struct Mxoe<S> {
    pub(super) config: MxoeConfig,
    pub(super) random: Random,
    pub(super) driver: Driver<Reply<S>, Event>,
    /// Ours, as long as the endpoint is open.
    pub(super) session: u32,
    pub(super) partners: Slots<Partner<S>>,
    pub(super) by_name: HashMap<(S, u8), SlotId>,
    /// Records of partners that were let go, by name; and the names of these partners, the oldest first.
    pub(super) closed_peers: HashMap<(S, u8), ClosedPeer>,
    pub(super) closed_names: VecDeque<(S, u8)>,
    /// Partners that connected, the first one first; some may have said more by now, or be gone.
    pub(super) half_open: VecDeque<SlotId>,
    /// Hosts in the order in which they were met. Their place here is the index that we tell them.
    table: HashMap<S, u16>,
    /// Buffers for messages that are kept.
    pub(super) spare: Vec<SharedBytes>,
    pub(super) pulls: Slots<Pulling>,
    pub(super) by_token: HashMap<u64, SlotId>,
    pub(super) by_handle: HashMap<u32, SlotId>,
    /// Replies that are asked for and not here, of all pulls.
    pub(super) budget: PullBudget,
    pub(super) regions: Vec<Region>,
    pub(super) awaiting_region: Vec<SlotId>,
    /// Partners of which messages may find room above by now.
    pub(super) retries: Vec<SlotId>,
    /// Bytes of what came before its turn, of all partners.
    pub(super) early_bytes: usize,
    /// Replies that were asked for again and came.
    pub(super) late: Late,
    pub(super) counters: MxoeCounters,
}

impl<S: Copy + Eq + Hash + std::fmt::Debug> Mxoe<S> {
    /// A machine without partners, in a session of its own.
    pub fn new(config: MxoeConfig, mut random: Random) -> Mxoe<S> {
        let session = any_session(&mut random);
        Mxoe::in_session(config, random, session)
    }

    /// The same in this session, which is neither 0 nor [`SESSION_UNKNOWN`], and which no other opening of the
    /// endpoint has had.
    pub fn in_session(config: MxoeConfig, random: Random, session: u32) -> Mxoe<S> {
        let hash = HashSeed::peek(&random);
        Mxoe {
            partners: Slots::with_limit(config.partners_max),
            budget: PullBudget::new(config.frames_max, config.dialect.replies_per_block()),
            config,
            random,
            driver: Driver::new(),
            session,
            by_name: HashMap::with_hasher(hash.clone()),
            closed_peers: HashMap::with_hasher(hash.clone()),
            closed_names: VecDeque::new(),
            half_open: VecDeque::new(),
            table: HashMap::with_hasher(hash),
            spare: Vec::new(),
            pulls: Slots::with_limit(super::pulling::PULLS_MAX),
            by_token: HashMap::with_hasher(HashSeed::OWN_KEYS),
            by_handle: HashMap::with_hasher(HashSeed::OWN_KEYS),
            regions: super::regions::table(),
            awaiting_region: Vec::new(),
            retries: Vec::new(),
            early_bytes: 0,
            late: Late::default(),
            counters: MxoeCounters::default(),
        }
    }

    /// Its counters.
    pub fn counters(&self) -> MxoeCounters {
        self.counters
    }

    /// Longest message that goes in fragments, in bytes.
    pub fn medium_bytes_max(&self) -> u32 {
        self.config.dialect.medium_bytes_max()
    }

    /// The key that others have to name to connect.
    pub fn key(&self) -> u32 {
        self.config.key
    }

    /// The session of this endpoint. A partner that was given up knows it by another one afterwards.
    pub fn session(&self) -> u32 {
        self.session
    }

    /// The peer at the other end of a link.
    pub fn who(&self, link: SlotId) -> Option<Who<S>> {
        let Partner { station, endpoint, session, .. } = *self.partners.get(link)?;
        Some(Who { station, endpoint, session })
    }

    /// A host's place in our table.
    pub(super) fn place_of(&mut self, station: S) -> u16 {
        if let Some(place) = self.table.get(&station) {
            return *place;
        }
        // The first place is ours. If there is no more room, all others share a place.
        let last = INDEX_UNKNOWN - 1;
        let next = (self.table.len() + 1).min(usize::from(last)) as u16;
        if next < last {
            self.table.insert(station, next);
        }
        next
    }

    /// The layer above may have room for what waits.
    pub(super) fn has_room(&mut self, id: SlotId) {
        let Some(state) = self.partners.get_mut(id) else { return };
        if !std::mem::replace(&mut state.retry, true) {
            self.retries.push(id);
        }
    }

    /// A body names no endpoint: it ends before that, or its type is none that endpoints are told.
    #[cold]
    pub(super) fn counts_for_none(&mut self, body: &[u8]) {
        match Packet::parse(body, self.config.dialect) {
            Err(PacketError::Short) => self.counters.wrong_length += 1,
            _ => self.counters.wrong_type += 1,
        }
    }

    /// Tells somebody who is no partner, or speaks of a session that is over.
    pub(super) fn refuse(&mut self, station: S, index: u16, packet: Packet<'static>) {
        match self.driver.reply(Reply { station, index, packet }) {
            true => self.counters.nacks_sent += 1,
            false => self.counters.unanswered += 1,
        }
    }

    /// A partner that has messages of ours, and neither takes them nor is heard, is asked after so long.
    pub(super) fn probed_after(&self) -> Duration {
        self.config.give_up_after / 16
    }

    pub(super) fn judge(&mut self, id: SlotId) {
        let (now, give_up_after) = (self.driver.now, self.config.give_up_after);
        let (connect_for, probed_after) = (self.config.connect_for, self.probed_after());
        let Some(state) = self.partners.get_mut(id) else { return };
        if matches!(state.stage, Stage::Closing { until } if until <= now) {
            return self.leave(id);
        }
        // One that we know may be computing, and answers when it is done.
        let is_known = state.is_up() && state.is_proven;
        let (heard_at, patience) =
            if is_known { (state.heard_at, give_up_after) } else { (Time::ZERO, connect_for) };
        if state.introduction.as_ref().is_some_and(|it| it.begun.max(heard_at) + patience <= now) {
            return match state.is_up() {
                true => self.abandon(id, Fault::Unreachable),
                false => self.end(id, Fault::Unreachable),
            };
        }
        self.counters.resent += state.sending.expire(&state.round_trip, now);
        let owed = state.sending.silent_since().min(state.asks.silent_since(&self.pulls));
        if owed + give_up_after <= now {
            return self.abandon(id, Fault::Unreachable);
        }
        let insists = state.insist_at <= now && state.introduction.is_none();
        if insists {
            state.insist_at = Time::NEVER;
        }
        if insists || state.is_probed() && state.heard_at + probed_after <= now {
            let key = state.key;
            self.introduce(id, key, Purpose::Probe);
        }
    }

    /// Ends a link: its orders under way fail, and its last word is told.
    pub(super) fn end(&mut self, id: SlotId, fault: Fault) {
        self.end_pulls(id, fault);
        self.forget_regions(id);
        self.budget.leave(id);
        self.feed();
        let Some(state) = self.partners.remove(id) else { return };
        self.trim_half_open();
        self.driver.forget(id, &state.schedule);
        self.by_name.remove(&(state.station, state.endpoint));
        self.early_bytes -= state.receiving.early_bytes();
        for waiting in &state.sending.waiting {
            if let Waiting::Eager { token, .. } = waiting
                && *token != Token::NONE
            {
                self.driver.tell(Event::Ended { token: *token, outcome: Err(fault) });
            }
        }
        self.remember(&state);
        self.driver.tell(Event::Down { link: id, fault });
    }
}

/// A session that is known, which no other was in all likelihood.
pub(super) fn any_session(random: &mut Random) -> u32 {
    loop {
        match random.next_u64() as u32 {
            SESSION_UNKNOWN | 0 => {}
            session => break session,
        }
    }
}

/// Writes a header to the beginning of `out`; the header's length.
pub(super) fn emit(packet: &Packet<'_>, index: u16, dialect: Dialect, out: &mut [u8]) -> usize {
    let mut header = [0; mxoe::HEADER_BYTES_MAX];
    let len = packet.emit(index, dialect, &mut header);
    out[..len].copy_from_slice(&header[..len]);
    len
}

/// Writes bytes to where they belong in a message's place, as far as it reaches.
pub(super) fn write(slice: Slice, offset: u32, bytes: &[u8], memory: &(impl Bytes + ?Sized)) {
    let at = u64::from(offset).min(slice.len);
    let fits = (slice.len - at).min(bytes.len() as u64);
    if fits > 0 {
        memory.write(slice.part(at, fits), &bytes[..fits as usize]);
    }
}

/// A refusal of a pull.
pub(super) fn nack_of(pull: &mxoe::Pull, reason: Nack) -> Packet<'static> {
    let (handle, magic) = (pull.handle, pull.magic);
    Packet::NackMcp(NackMcp { endpoint: pull.from, reason, handle, magic })
}
