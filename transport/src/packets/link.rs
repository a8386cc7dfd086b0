//! A link: its making, its end, and its state.

use std::collections::VecDeque;
use std::hash::Hash;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::hash::{HashMap, HashSeed};
use ropewalk_base::shared::SharedBytes;
use ropewalk_base::slots::{SlotId, Slots};
use ropewalk_base::time::Time;
use ropewalk_wire::packets::{
    self, CallBody, GoneBody, Kind, PACKET_BYTES_MIN, REFUSAL_RETRY, Route,
};
use zerocopy::IntoBytes;

use super::cookies::Cookie;
use super::link_seal::LinkSeal;
use super::machine::{Event, Machine, Reply};
use super::outgoing::{Outgoing, Sent};
use super::receiving::Receiving;
use super::remote_writes::{Listed, Offers};
use super::sending::Sending;
use super::stream::{Early, Incoming};
use super::transfers::{Asks, Exposed, Reading, Serving};
use crate::driver::{Driven, Schedule};

/// The most calls or answers, and the shortest and the longest pause between them.
pub(super) const CALLS_MAX: u32 = 10;
const CALL_AGAIN: Duration = Duration::from_millis(20);
const CALL_AGAIN_MAX: Duration = Duration::from_millis(500);
/// Calls at full length before shorter ones are tried.
const CALLS_AT_LENGTH: u32 = 3;
/// The bytes of a packet in a frame of 1,500 bytes behind IPv6 and UDP; and the shortest packets that IPv6 and IPv4
/// carry everywhere.
const USUAL_BYTES: usize = 1452;
const SHORT_BYTES: [usize; 2] = [1232, 512];
/// The longest silence of a link before we ask the peer for a sign of life.
const SILENT_FOR: Duration = Duration::from_secs(5);

/// The pause after so many calls, or answers.
fn call_again(tries: u32) -> Duration {
    (CALL_AGAIN * (1 << tries.min(8))).min(CALL_AGAIN_MAX)
}

/// Whether a call is a probe: the shortest call there is, with a number of its own, to find out whether anybody is
/// there at all. A peer that a probe found is called once more, from the longest call on: it may have begun late, and
/// missed the earlier ones.
fn is_probe(tries: u32, found: bool) -> bool {
    !found && matches!(tries, 8 | 10)
}

/// The length of other calls. It never grows, because the called peer knows only the shortest call of a number.
fn call_bytes(tries: u32, found: bool) -> usize {
    match (found, tries) {
        (_, ..=CALLS_AT_LENGTH) => usize::MAX,
        (false, _) | (true, 4 | 5) => USUAL_BYTES,
        (true, 6) => SHORT_BYTES[0],
        (true, 7 | 8) => SHORT_BYTES[1],
        (true, _) => PACKET_BYTES_MIN,
    }
}

/// The stage of a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// We call, and are not answered yet; `found`: but for a probe, whose number is apart.
    Calling { call: u64, probe: u64, again_at: Time, tries: u32, found: bool },
    /// We were called, and answer until something else comes over the link.
    Answered { call: u64, again_at: Time, tries: u32 },
    /// It carries records.
    Up,
    /// It carries what was ordered before, and then nothing.
    Closing,
}

/// One link.
#[derive(Debug)]
pub(super) struct Link<S> {
    pub station: S,
    /// The other's number at its station.
    pub endpoint: u8,
    /// Our name for it, and theirs; 0 where it is not known yet.
    pub ours: u32,
    pub theirs: u32,
    /// What a peer that does not know the link has to repeat of our packets.
    pub secret: u32,
    pub stage: Stage,
    pub seal: LinkSeal,
    /// Both sides have agreed on none.
    pub is_plain: bool,
    /// The call by which the other began it, if it did.
    pub call: u64,
    pub was_called: bool,
    /// Longest packet, and what it would be where all get through.
    pub packet_bytes: u16,
    pub longest: u16,
    pub schedule: Schedule,
    /// When anything came over it last.
    pub heard_at: Time,
    /// A sign of life is to be asked for.
    pub probes: bool,
    /// Bytes of the stream that the other side has acknowledged; packets that went again, and pieces that were asked for
    /// again.
    pub delivered_bytes: u64,
    pub sent_again: u64,
    /// All packets of the stream that went, and pieces that were asked for.
    pub packets: u64,

    pub sending: Sending<Sent>,
    pub receiving: Receiving,
    /// Records on their way out, whole or in part, and packets that are full.
    pub out: Outgoing,
    /// Packets that came before others, by their numbers.
    pub early: Vec<Early>,
    /// The record that the next byte in order is of, and what there is of it.
    pub record: u32,
    pub incoming: Option<Incoming>,

    pub exposed: HashMap<u64, Exposed>,
    pub offers: Offers,
    /// Offers of the other side that are not pulled yet, or not any more.
    pub listed: Listed,
    /// Offers of the other side that we pull.
    pub takings: HashMap<u64, SlotId>,
    pub asks: Asks,
    pub serving: VecDeque<Serving>,
    pub refusals: VecDeque<(u64, u8)>,
}

impl<S> Link<S> {
    pub fn new(
        station: S,
        endpoint: u8,
        theirs: u32,
        stage: Stage,
        packet_bytes: usize,
        hash: HashSeed,
    ) -> Link<S> {
        Link {
            station,
            endpoint,
            ours: 0,
            theirs,
            secret: 0,
            stage,
            seal: LinkSeal::default(),
            is_plain: false,
            call: 0,
            was_called: false,
            packet_bytes: packet_bytes as u16,
            longest: packet_bytes as u16,
            schedule: Schedule::default(),
            heard_at: Time::NEVER,
            probes: false,
            delivered_bytes: 0,
            sent_again: 0,
            packets: 0,
            sending: Sending::default(),
            receiving: Receiving::default(),
            out: Outgoing::default(),
            early: Vec::new(),
            record: 0,
            incoming: None,
            exposed: HashMap::with_hasher(hash.clone()),
            offers: Offers::new(hash.clone()),
            listed: Listed::default(),
            takings: HashMap::with_hasher(hash),
            asks: Asks::default(),
            serving: VecDeque::new(),
            refusals: VecDeque::new(),
        }
    }

    /// When a link over which nothing comes is asked for a sign of life.
    fn silent_at(&self) -> Time {
        self.heard_at + SILENT_FOR
    }

    /// Whether it takes orders.
    pub fn is_up(&self) -> bool {
        self.stage == Stage::Up
    }

    /// Whether it may have a packet to send.
    #[inline]
    pub fn wants(&self, now: Time) -> bool {
        let opening = matches!(self.stage, Stage::Calling { .. } | Stage::Answered { .. });
        let stream = self.sending.goes_again()
            || (self.sending.has_room() && (self.probes || self.out.is_due(now)));
        opening
            || stream
            || !self.asks.is_empty()
            || !self.serving.is_empty()
            || !self.refusals.is_empty()
            || self.receiving.due() <= now
    }

    /// When something is due.
    pub fn due(&self, readings: &Slots<Reading>) -> Time {
        match self.stage {
            Stage::Calling { again_at, .. } | Stage::Answered { again_at, .. } => again_at,
            Stage::Up | Stage::Closing => {
                let stream = self.sending.due().min(self.receiving.due());
                let silent = if self.sending.is_empty() { self.silent_at() } else { Time::NEVER };
                // An acknowledgement makes room first where there is none.
                let room = self.sending.has_room();
                let patient = if room { self.out.due() } else { Time::NEVER };
                let doubted = self.seal.doubted_until();
                stream.min(silent).min(self.asks.due(readings)).min(patient).min(doubted)
            }
        }
    }

    /// The buffers that it holds, at its end.
    pub fn buffers(&mut self) -> Vec<SharedBytes> {
        let kept = self.sending.drain().map(|sent| sent.bytes);
        kept.chain(self.out.take_buffers()).collect()
    }
}

impl<S: Copy + Eq + Hash + std::fmt::Debug> Machine<S> {
    /// Somebody calls.
    pub(super) fn called(&mut self, from: S, endpoint: u8, body: &CallBody, bytes: usize) {
        let (call, theirs) = (body.call.get(), body.tag.get());
        let packet_bytes = body.packet_bytes.get();
        if !self.config.accepts
            || body.version.get() != packets::VERSION
            || theirs == 0
            || usize::from(packet_bytes) < PACKET_BYTES_MIN
            // The answer is as long as the call says: a short call would make it longer than what a liar
            // about his address has to send.
            || bytes < usize::from(packet_bytes)
        {
            return self.counters.refused += 1;
        }
        let wanted = Stage::Answered { call, again_at: Time::ZERO, tries: 0 };
        if let Some(id) = self.called.get(&(from, call)).copied() {
            // Its answer was lost, or is on its way.
            if let Some(state) = self.links.get_mut(id)
                && matches!(state.stage, Stage::Answered { .. })
            {
                state.stage = wanted;
                state.packet_bytes = state.packet_bytes.min(packet_bytes);
                self.touch(id);
            }
            return;
        }
        let caller = (from, endpoint, call);
        let is_real = body.cookie != Cookie::default()
            && self.cookies.holds(caller, &body.cookie, self.driver.now);
        if !is_real && self.has_many_half_open() {
            // Nothing is kept of the call: it comes again, if its caller hears this.
            let cookie = self.cookies.give(caller, &mut self.random, self.driver.now);
            let reply = Reply::Retry { station: from, endpoint, tag: theirs, call, cookie };
            self.driver.reply(reply);
            return self.counters.retries += 1;
        }
        let Some(id) = self.add_link(from, endpoint, theirs, wanted) else { return };
        if let Some(state) = self.links.get_mut(id) {
            state.packet_bytes = state.packet_bytes.min(packet_bytes);
            (state.call, state.was_called) = (call, true);
        }
        self.called.insert((from, call), id);
        self.by_theirs.insert((from, endpoint, theirs), id);
        if !is_real {
            self.half_open.push_back(id);
        }
        self.touch(id);
    }

    /// Our call is answered, by a packet of so many bytes.
    pub(super) fn answered(
        &mut self,
        id: SlotId,
        (from, endpoint): (S, u8),
        body: &CallBody,
        bytes: usize,
    ) {
        let now = self.driver.now;
        let again = self.random.next_u64();
        let Some(state) = self.links.get_mut(id) else { return };
        let Stage::Calling { probe, found, .. } = state.stage else {
            // The other side does not know yet that we know.
            state.receiving.owe(now);
            return self.touch(id);
        };
        let packet_bytes = usize::from(body.packet_bytes.get());
        let ours = endpoint == state.endpoint;
        let is_version = body.version.get() == packets::VERSION;
        if ours && is_version && body.refusal == REFUSAL_RETRY && body.call.get() != probe {
            let before = self.shown.insert(id, body.cookie);
            if let Stage::Calling { again_at, .. } = &mut state.stage
                && before != Some(body.cookie)
            {
                *again_at = Time::ZERO;
            }
            return self.touch(id);
        }
        let is_retry = body.refusal == REFUSAL_RETRY;
        let legal = is_version && (body.tag.get() != 0 || is_retry);
        if !ours || !legal || packet_bytes < PACKET_BYTES_MIN {
            return self.counters.strangers += 1;
        }
        if body.refusal != 0 && !is_retry {
            return self.end(id, Fault::Unreachable);
        }
        if body.call.get() == probe {
            if !found {
                let (again_at, tries, found) = (Time::ZERO, 0, true);
                state.stage = Stage::Calling { call: again, probe, again_at, tries, found };
                self.touch(id);
            }
            return;
        }
        // One that came again proves no length; one to a longer call is from somebody who does not know yet that ours
        // are shorter. The next call is answered by what counts.
        if bytes < packet_bytes || packet_bytes > usize::from(state.packet_bytes) {
            return self.counters.doubled += 1;
        }
        state.station = from;
        state.theirs = body.tag.get();
        state.packet_bytes = packet_bytes as u16;
        state.stage = Stage::Up;
        state.heard_at = now;
        // The other side counts the link as made when it hears of us again.
        state.receiving.owe(now);
        self.by_theirs.insert((state.station, state.endpoint, state.theirs), id);
        self.driver.tell(Event::Up { link: id, accepted: false });
        self.touch(id);
    }

    /// A packet came over a link whose making is over for the one who sent it.
    pub(super) fn heard(&mut self, id: SlotId) {
        let now = self.driver.now;
        let Some(state) = self.links.get_mut(id) else { return };
        state.heard_at = now;
        if matches!(state.stage, Stage::Answered { .. }) {
            state.stage = Stage::Up;
            self.half_open.retain(|other| *other != id);
            self.driver.tell(Event::Up { link: id, accepted: true });
        }
    }

    /// The other side knows nothing of a link that it is told to have under this name. It repeats the secret of the packet
    /// that told so; one without is asked by a packet that has it, since anybody else may have said so.
    pub(super) fn gone(&mut self, from: S, endpoint: u8, body: &GoneBody) {
        let id = self.by_theirs.get(&(from, endpoint, body.tag.get())).copied();
        let Some((id, state)) = id.and_then(|id| Some((id, self.links.get_mut(id)?))) else {
            return self.counters.strangers += 1;
        };
        if body.secret.get() != state.secret || state.seal.is_readable() {
            self.counters.strangers += 1;
            state.probes = true;
            state.seal.doubt(self.driver.now);
            return self.touch(id);
        }
        let fault = if state.stage == Stage::Closing { Fault::Closed } else { Fault::PeerReset };
        self.end(id, fault);
    }

    /// The next packet of a link that is being made.
    pub(super) fn next_call(&mut self, id: SlotId, out: &mut [u8]) -> Option<usize> {
        let now = self.driver.now;
        let from = self.config.endpoint;
        let state = self.links.get_mut(id)?;
        let mut packet_bytes = usize::from(state.packet_bytes);
        let (kind, call, padded) = match &mut state.stage {
            Stage::Calling { again_at, .. } if *again_at > now => return None,
            Stage::Calling { call, probe, again_at, tries, found } => {
                *again_at = now + call_again(*tries);
                *tries += 1;
                if is_probe(*tries, *found) {
                    packet_bytes = PACKET_BYTES_MIN;
                    (Kind::Call, *probe, true)
                } else {
                    packet_bytes = usize::from(state.longest).min(call_bytes(*tries, *found));
                    state.packet_bytes = packet_bytes as u16;
                    (Kind::Call, *call, true)
                }
            }
            Stage::Answered { again_at, .. } if *again_at > now => return None,
            Stage::Answered { call, again_at, tries } => {
                // Nobody asked for the next ones, who may not be who he says he is: they only tell one who knows of the
                // link to say so.
                let padded = *tries == 0;
                *again_at = now + call_again(*tries);
                *tries += 1;
                (Kind::Answer, *call, padded)
            }
            Stage::Up | Stage::Closing => return None,
        };
        let body = CallBody {
            version: packets::VERSION.into(),
            packet_bytes: (packet_bytes as u16).into(),
            tag: state.ours.into(),
            call: call.into(),
            refusal: 0,
            cookie: self.shown.get(&id).copied().unwrap_or_default(),
        };
        let route = Route { to: state.endpoint, from, tag: state.theirs };
        let padding = if padded { packet_bytes - packets::overhead(kind) } else { 0 };
        Some(packets::seal(out, kind, route, body.as_bytes(), padding, |bytes| bytes.fill(0)))
    }

    /// The time of a link came.
    pub(super) fn judge(&mut self, id: SlotId) {
        let (now, give_up_after) = (self.driver.now, self.config.give_up_after);
        let Some(state) = self.links.get_mut(id) else { return };
        match state.stage {
            Stage::Calling { again_at, tries, .. } | Stage::Answered { again_at, tries, .. } => {
                if again_at <= now && tries >= CALLS_MAX {
                    self.end(id, Fault::Unreachable);
                }
            }
            Stage::Up | Stage::Closing => {
                if state.seal.doubted_until() <= now {
                    // Who does not know the link any more cannot prove that, and is silent.
                    return self.end(id, Fault::PeerReset);
                }
                state.sending.expire(now);
                state.probes = state.silent_at() <= now;
                let owed =
                    state.sending.silent_since().min(state.asks.silent_since(&self.readings));
                let is_silent = owed.max(state.heard_at) + give_up_after <= now;
                // One that is heard all the time and brings nothing of what it owes: long packets do not get
                // through any more. The next call finds the length that does.
                let is_stuck = owed + give_up_after * 2 <= now;
                if is_silent || is_stuck {
                    self.end(id, Fault::PeerReset);
                }
            }
        }
    }
}
