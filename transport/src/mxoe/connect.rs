//! Sessions: the meeting of partners, and the effects of a restart on sessions.
//!
//! An endpoint that opens takes a session. Everything that is sent to the endpoint names this session. An endpoint that
//! connects says its own session, and which number it expects next; the answer says the same of the other side. Each
//! side connects by itself: Open-MX does not know the session of a partner that it only answered.
//!
//! Invariants: nothing of ours has a number before the partner has heard our session. A partner that has heard it and
//! is asked something goes on getting messages meanwhile: it answers when its program calls, and the program may wait
//! for these messages. The numbers of a partner's messages count on as long as both sessions are the same, also over a
//! link that was closed between.

use std::hash::Hash;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::Ordered;
use ropewalk_wire::mxoe::{
    Connect, ConnectReply, INDEX_UNKNOWN, Nack, NackLib, Packet, SESSION_UNKNOWN, Sequence,
};

use super::closed_peers::ClosedPeer;
use super::machine::{Event, Mxoe, Partner, emit};
use super::sending::Sending;
use crate::driver::Driven;

/// When an attempt is made again: at first, and at most.
const AGAIN: Duration = Duration::from_millis(20);
const AGAIN_MAX: Duration = Duration::from_millis(500);
/// For how long copies of an attempt may come.
const COPY_LIFE: Duration = Duration::from_secs(1);
/// The time that a closed link has to send the messages that it accepted before.
const LINGER: Duration = Duration::from_secs(1);
/// Attempts of a partner's that wait for their answers.
const ANSWERS_MAX: usize = 4;
/// Keys that wait for being shown to a partner.
const SHOWN_MAX: usize = 64;
/// The status of an answer: connected, or refused for the key.
const CONNECTED: u8 = 0;
const BAD_KEY: u8 = 11;

/// The stage of a link to a partner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    /// We connect; nothing was heard of its session, or only that it connects, too: that may be news of a former life.
    Connecting,
    Up,
    /// The link sends the messages under way, and then nothing.
    Closing {
        until: Time,
    },
}

/// An attempt of ours.
#[derive(Debug, Clone, Copy)]
pub(super) struct Introduction {
    pub connect: u8,
    pub key: u32,
    pub begun: Time,
    pub again_at: Time,
    pub tries: u32,
    /// The number that we expect next, as its latest packet said: a partner that did not know us begins with it.
    receive_next: Sequence,
    /// The partner may have begun anew, so that all packets of it say the same number.
    pub fixed: bool,
    /// Why it is made.
    purpose: Purpose,
    /// Messages wait for the answer: the partner may not know our session.
    pub holds: bool,
    /// An attempt was refused, perhaps one before this.
    pub refused: bool,
}

/// The numbers to expect next that our attempts named to a partner. Copies of attempts may still be on their way, also
/// of an answered one. A partner that begins anew begins with the first number that it hears.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Numbers {
    latest: Option<(Sequence, Time)>,
    /// Another one, and when it was named last.
    before: Option<(Sequence, Time)>,
}

impl Numbers {
    fn note(&mut self, number: Sequence, now: Time) {
        if self.latest.is_some_and(|(latest, _)| latest != number) {
            self.before = self.latest;
        }
        self.latest = Some((number, now));
    }

    /// The one that may be heard yet.
    fn latest(&self, now: Time) -> Option<Sequence> {
        self.latest.filter(|(_, at)| now.since(*at) < COPY_LIFE).map(|(number, _)| number)
    }

    /// Whether another one may be heard yet, or was heard before the latest.
    fn are_several(&self, now: Time) -> bool {
        self.before.is_some_and(|(_, at)| now.since(at) < COPY_LIFE)
    }
}

/// The purpose of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The user wants to know whether the key is right.
    Asked,
    /// The partner is to hear our session; the key is the one that it named, and need not be its own.
    Return,
    /// We want to know whether the partner, which knew our session, is still there.
    Probe,
}

impl<S: Copy + Eq + Hash + std::fmt::Debug> Mxoe<S> {
    /// Begins a link; `Up` or `Down` is reported later. Where there is one with this partner it is the same.
    pub fn connect(
        &mut self,
        station: S,
        endpoint: u8,
        key: u32,
        now: Time,
    ) -> Result<SlotId, Fault> {
        self.driver.now = self.driver.now.max(now);
        if let Some(id) = self.by_name.get(&(station, endpoint)).copied() {
            let closing = |state: &Partner<S>| matches!(state.stage, Stage::Closing { .. });
            if !self.partners.get(id).is_some_and(closing) {
                if !self.is_up(id) {
                    self.want(id, key)?;
                }
                return Ok(id);
            }
            // This link was closed: a new one replaces it. It continues with the same numbers if all our messages
            // arrived.
            self.leave(id);
        }
        let former = self.former(station, endpoint);
        let next = former.map_or(Sequence::new(0, 1), |former| former.receive_next);
        let id = self.add(station, endpoint, next).ok_or(Fault::Busy)?;
        self.introduce(id, key, Purpose::Asked);
        Ok(id)
    }

    /// Shows a key to the partner of a link; `key_judged` tells what it says.
    pub fn show_key(&mut self, link: SlotId, key: u32) -> Result<(), Fault> {
        self.want(link, key)?;
        self.show_next(link);
        Ok(())
    }

    fn is_up(&self, id: SlotId) -> bool {
        self.partners.get(id).is_some_and(Partner::is_up)
    }

    /// Notes a key that is to be shown, once.
    fn want(&mut self, id: SlotId, key: u32) -> Result<(), Fault> {
        let Some(state) = self.partners.get_mut(id) else { return Err(Fault::PeerReset) };
        let asked = |it: Introduction| it.purpose == Purpose::Asked && it.key == key;
        if state.introduction.is_some_and(asked) || state.wanted.contains(&key) {
            return Ok(());
        }
        if state.wanted.len() >= SHOWN_MAX {
            return Err(Fault::Busy);
        }
        state.wanted.push_back(key);
        Ok(())
    }

    /// Shows the next key, where no attempt is under way.
    fn show_next(&mut self, id: SlotId) {
        let Some(state) = self.partners.get_mut(id) else { return };
        if state.introduction.is_some() {
            return;
        }
        let Some(key) = state.wanted.pop_front() else { return };
        self.begin(id, key, Purpose::Asked);
    }

    fn add(&mut self, station: S, endpoint: u8, receive_next: Sequence) -> Option<SlotId> {
        let former = self.former(station, endpoint);
        let own = former.map_or(self.session, |former| former.own);
        let hash = self.by_name.hasher().clone();
        let partner = Partner::new(station, endpoint, own, receive_next, hash);
        if self.by_name.len() >= self.config.partners_max {
            self.make_room();
        }
        let id = self.partners.insert(partner).ok()?;
        let connects = former.map(|former| former.connects);
        let connects = connects.unwrap_or(self.random.next_u64() as u8);
        let state = self.partners.get_mut(id)?;
        state.connects = connects;
        state.acks_sent = former.map_or(0, |former| former.acks_sent);
        if former.is_some_and(|former| former.is_renewed) {
            // A copy of an attempt in the session before may come after those in this one: then it hears of this one
            // once more.
            state.insist_at = self.driver.now + COPY_LIFE;
        }
        self.by_name.insert((station, endpoint), id);
        Some(id)
    }

    /// Ends the partner that connected first and of whom nothing else was heard: anybody can say that much.
    fn make_room(&mut self) {
        self.trim_half_open();
        if let Some(id) = self.half_open.pop_front() {
            self.counters.half_open += 1;
            self.end(id, Fault::Unreachable);
        }
    }

    /// Lets go of those at the head who have said more, or are gone.
    pub(super) fn trim_half_open(&mut self) {
        let Mxoe { half_open, partners, .. } = self;
        let is_half_open = |id: SlotId| partners.get(id).is_some_and(|state| !state.is_proven);
        while half_open.pop_front_if(|id| !is_half_open(*id)).is_some() {}
    }

    /// Notes somebody who has only connected so far.
    fn note_half_open(&mut self, id: SlotId) {
        if self.half_open.len() >= 2 * self.config.partners_max {
            let Mxoe { half_open, partners, .. } = self;
            half_open.retain(|id| partners.get(*id).is_some_and(|state| !state.is_proven));
        }
        self.half_open.push_back(id);
    }

    /// Connects from our side.
    pub(super) fn introduce(&mut self, id: SlotId, key: u32, purpose: Purpose) {
        let Some(state) = self.partners.get_mut(id) else { return };
        state.key = key;
        self.begin(id, key, purpose);
    }

    fn begin(&mut self, id: SlotId, key: u32, purpose: Purpose) {
        let now = self.driver.now;
        let Some(state) = self.partners.get_mut(id) else { return };
        state.connects = state.connects.wrapping_add(1);
        let connect = state.connects;
        let receive_next = state.receiving.acknowledged();
        let is_known = state.is_up() && state.is_proven;
        state.introduction = Some(Introduction {
            connect,
            key,
            begun: now,
            again_at: Time::ZERO,
            tries: 0,
            receive_next,
            fixed: false,
            purpose,
            holds: !is_known || purpose == Purpose::Return,
            refused: false,
        });
        self.touch(id);
    }

    /// Somebody connects.
    pub(super) fn asked_to_connect(&mut self, from: S, connect: Connect) {
        let known = self.by_name.get(&(from, connect.from)).copied();
        if connect.session == SESSION_UNKNOWN {
            return self.counters.malformed += 1;
        }
        if !self.config.accepts && known.is_none() {
            let nack = NackLib {
                from: self.config.endpoint,
                to: connect.from,
                reason: Nack::Closed,
                index: INDEX_UNKNOWN,
                sequence: Sequence::new(0, 0),
            };
            return self.refuse(from, connect.index, Packet::NackLib(nack));
        }
        let welcome = self.is_welcome(known, &connect);
        if !welcome && known.is_none_or(|id| !self.is_known(id, connect.session)) {
            if let Some(id) = known {
                self.began_anew(id, connect.session);
            }
            return self.refuse_key(from, &connect);
        }
        let id = match known {
            Some(id) => match self.heard_again(id, &connect) {
                Some(id) => id,
                None => return,
            },
            None => {
                let Some(id) = self.met(from, &connect) else { return };
                id
            }
        };
        let Some(state) = self.partners.get_mut(id) else { return };
        state.index = connect.index;
        if state.answers.len() < ANSWERS_MAX {
            state.answers.push_back((connect.connect, if welcome { CONNECTED } else { BAD_KEY }));
        }
        self.touch(id);
    }

    /// Whether a key that somebody names is good enough. A partner that answers our connecting with its own names the
    /// key that we named.
    fn is_welcome(&self, known: Option<SlotId>, connect: &Connect) -> bool {
        let returns = |state: &Partner<S>| {
            if state.session != connect.session {
                return state.introduction.is_some_and(|it| it.key == connect.key);
            }
            let first = |heard: u8| connect.connect.wrapping_sub(heard) as i8 <= 0;
            connect.key == state.key && state.heard_connect.is_none_or(first)
        };
        let known = known.and_then(|id| self.partners.get(id));
        connect.key == self.config.key || known.is_some_and(returns)
    }

    /// Whether a partner speaks in this session, or did.
    fn is_known(&self, id: SlotId, session: u32) -> bool {
        let is = |state: &Partner<S>| state.session == session || state.former == session;
        self.partners.get(id).is_some_and(is)
    }

    /// A partner says, under a key that is wrong, that it is in another session: then it is not in the one
    /// that we know.
    fn began_anew(&mut self, id: SlotId, session: u32) {
        let Some(state) = self.partners.get(id) else { return };
        let name = (state.station, state.endpoint);
        let is_old = self.former(name.0, name.1).is_some_and(|it| it.session == session);
        if state.session != SESSION_UNKNOWN && !is_old {
            self.abandon(id, Fault::PeerReset);
        }
    }

    fn refuse_key(&mut self, from: S, connect: &Connect) {
        // A refused partner gets no place in the table.
        let index = INDEX_UNKNOWN;
        let reply = ConnectReply {
            to: connect.from,
            from: self.config.endpoint,
            index,
            asker: connect.session,
            session: self.former(from, connect.from).map_or(self.session, |it| it.own),
            receive_next: Sequence::new(0, 1),
            connect: connect.connect,
            status: BAD_KEY,
        };
        self.refuse(from, connect.index, Packet::ConnectReply(reply));
    }

    /// A new partner connects to us, and we to it.
    fn met(&mut self, from: S, connect: &Connect) -> Option<SlotId> {
        let next = match self.former(from, connect.from) {
            Some(former) if former.session == connect.session => former.receive_next,
            // Packets of its former life name our session, too: other session bits tell them apart.
            Some(former) => Sequence::new((former.receive_next.bits() + 1) % 4, 1),
            None => Sequence::new(0, 1),
        };
        let id = self.add(from, connect.from, next)?;
        let state = self.partners.get_mut(id)?;
        state.session = connect.session;
        state.stage = Stage::Up;
        state.heard_connect = Some(connect.connect);
        state.sending = Sending::new(connect.receive_next);
        self.driver.tell(Event::Up { link: id, accepted: true });
        self.introduce(id, connect.key, Purpose::Return);
        self.note_half_open(id);
        Some(id)
    }

    /// A partner connects once more; under which link it goes on. `None` where it means nothing.
    fn heard_again(&mut self, id: SlotId, connect: &Connect) -> Option<SlotId> {
        let now = self.driver.now;
        let state = self.partners.get_mut(id)?;
        if state.session == connect.session {
            let newer = |heard: u8| (connect.connect.wrapping_sub(heard) as i8) > 0;
            // An attempt that was heard before may be late: its content is old.
            if state.heard_connect.is_none_or(newer) {
                let is_same = state.sending.is_in_bits_of(connect.receive_next);
                if !is_same && (state.sending.has_heard() || state.receiving.has_told()) {
                    // The partner gave us up: it failed everything under way both ways, and numbers our messages anew.
                    let station = state.station;
                    self.end(id, Fault::PeerReset);
                    return self.met(station, connect);
                }
                state.heard_connect = Some(connect.connect);
                let (next, round_trip) = (connect.receive_next, state.round_trip);
                let done = state.sending.expected(next, true, &round_trip, now);
                self.have_arrived(id, done);
                if !is_same {
                    // It forgot our session, too, if it knew it.
                    self.ask_who(id);
                }
            }
            return Some(id);
        }
        if state.former == connect.session {
            self.counters.wrong_session += 1;
            return None;
        }
        if state.stage == Stage::Connecting {
            // Both connect at once. This is the partner's session, unless it is late news of a former one; packets that
            // name our session will tell. The partner's answer tells us about the key with which we connect. Nothing of
            // ours goes before that answer.
            state.session = connect.session;
            state.heard_connect = Some(connect.connect);
            state.sending.restart(connect.receive_next);
            return Some(id);
        }
        // It began anew, and knows nothing of us; but an attempt of ours that is under way, or a copy of one, may be
        // there first, and then decides where its numbers begin.
        let (station, former) = (state.station, state.session);
        let is_doubtful = state.named.are_several(now);
        let named = state.named.latest(now).filter(|_| !is_doubtful);
        if self.former(station, connect.from).is_some_and(|it| it.session == connect.session) {
            self.counters.wrong_session += 1;
            return None;
        }
        if !self.config.accepts {
            self.end(id, Fault::PeerReset);
            return None;
        }
        self.end(id, Fault::PeerReset);
        if is_doubtful {
            // Two attempts named two numbers: nobody knows which one it heard, so it hears another session of ours, in
            // which both begin anew.
            self.renew((station, connect.from));
        }
        let id = self.met(station, connect)?;
        let state = self.partners.get_mut(id)?;
        state.former = former;
        if let Some(named) = named {
            state.receiving.may_begin(named, now);
        }
        Some(id)
    }

    /// Our attempt is answered.
    pub(super) fn connect_answered(&mut self, from: S, reply: ConnectReply) {
        let now = self.driver.now;
        let id = self.by_name.get(&(from, reply.from)).copied();
        let own = id.and_then(|id| self.partners.get(id)).map_or(self.session, |it| it.own);
        if reply.asker != own {
            return self.counters.wrong_session += 1;
        }
        let Some(id) = id else { return self.counters.strangers += 1 };
        let Some(state) = self.partners.get_mut(id) else { return };
        let Some(introduction) = state.introduction.filter(|it| it.connect == reply.connect) else {
            return self.counters.doubled += 1;
        };
        if reply.session == SESSION_UNKNOWN || reply.session == state.former {
            return self.counters.wrong_session += 1;
        }
        let connecting = state.stage == Stage::Connecting;
        if state.session != SESSION_UNKNOWN && state.session != reply.session && !connecting {
            let (name, session, connects) = ((from, reply.from), reply.session, state.connects);
            let (receive_next, acks_sent) = (introduction.receive_next, state.acks_sent);
            let former = self.closed_peers.get(&name).copied().filter(|it| it.session == session);
            if let Some(former) = former {
                // It never was in the session that it seemed to begin.
                self.end(id, Fault::PeerReset);
                self.remember_as(name, ClosedPeer { connects, acks_sent, ..former });
                return self.renew(name);
            }
            // It began anew, and has just learned from us where its numbers begin.
            let is_renewed = false;
            let former = ClosedPeer { session, own, is_renewed, receive_next, connects, acks_sent };
            let is_doubtful = state.named.are_several(now);
            self.end(id, Fault::PeerReset);
            self.remember_as(name, former);
            if is_doubtful {
                // Or from a copy of an attempt that named another number: in another session of ours both begin anew.
                self.renew(name);
            }
            return;
        }
        state.index = reply.index;
        state.introduction = None;
        if introduction.tries == 1 {
            state.round_trip.measured(now.since(introduction.begun));
        }
        let right = reply.status == CONNECTED;
        if !right && connecting {
            return self.not_let_in(id, introduction.key);
        }
        (state.is_proven, state.heard_at) = (true, now);
        let mut done = Vec::new();
        if state.session != reply.session {
            state.session = reply.session;
            state.sending.restart(reply.receive_next);
        } else {
            let round_trip = state.round_trip;
            done = state.sending.expected(reply.receive_next, introduction.holds, &round_trip, now);
        }
        if connecting {
            state.stage = Stage::Up;
            self.driver.tell(Event::Up { link: id, accepted: false });
        }
        if introduction.purpose == Purpose::Asked {
            self.driver.tell(Event::Judged { link: id, key: introduction.key, right });
        }
        self.have_arrived(id, done);
        self.show_next(id);
        self.touch(id);
    }

    /// The key with which we connect is wrong: another one may be right, or the partner may have connected by
    /// itself, with a key that is.
    fn not_let_in(&mut self, id: SlotId, key: u32) {
        let own = self.config.key;
        let Some(state) = self.partners.get_mut(id) else { return };
        let judged = Event::Judged { link: id, key, right: false };
        if let Some(next) = state.wanted.pop_front() {
            self.driver.tell(judged);
            return self.introduce(id, next, Purpose::Asked);
        }
        if state.heard_connect.is_none() {
            return self.end(id, Fault::NotPermitted);
        }
        state.stage = Stage::Up;
        state.is_proven = true;
        self.driver.tell(Event::Up { link: id, accepted: false });
        self.driver.tell(judged);
        self.introduce(id, own, Purpose::Return);
    }

    /// The next packet that makes a session.
    pub(super) fn next_connect(&mut self, id: SlotId, out: &mut [u8]) -> Option<usize> {
        let (now, from) = (self.driver.now, self.config.endpoint);
        let state = self.partners.get(id)?;
        let session = state.own;
        if state.answers.is_empty() && state.introduction.is_none() {
            return None;
        }
        let station = state.station;
        let place = self.place_of(station);
        let dialect = self.config.dialect;
        let state = self.partners.get_mut(id)?;
        let receive_next = state.receiving.acknowledged();
        if let Some((connect, status)) = state.answers.pop_front() {
            let reply = ConnectReply {
                to: state.endpoint,
                from,
                index: place,
                asker: state.session,
                session,
                receive_next,
                connect,
                status,
            };
            return Some(emit(&Packet::ConnectReply(reply), state.index, dialect, out));
        }
        let introduction = state.introduction.as_mut().filter(|it| it.again_at <= now)?;
        introduction.again_at = now + (AGAIN * (1 << introduction.tries.min(8))).min(AGAIN_MAX);
        introduction.tries += 1;
        if state.is_proven && !introduction.fixed {
            // It knows us, and would take an old number for one with which we began anew.
            introduction.receive_next = receive_next;
        }
        let number = introduction.receive_next;
        state.named.note(number, now);
        let introduction = state.introduction?;
        let connect = Connect {
            to: state.endpoint,
            from,
            index: place,
            session,
            key: introduction.key,
            receive_next: introduction.receive_next,
            connect: introduction.connect,
        };
        Some(emit(&Packet::Connect(connect), state.index, dialect, out))
    }

    /// Closes a link: the messages that it accepted before leave within a moment.
    pub(super) fn close(&mut self, id: SlotId) -> Ordered {
        let until = self.driver.now + LINGER;
        let Some(state) = self.partners.get_mut(id) else {
            return Ordered::Refused(Fault::PeerReset);
        };
        state.stage = match state.stage {
            Stage::Up => Stage::Closing { until },
            Stage::Connecting => Stage::Closing { until: self.driver.now },
            closing => closing,
        };
        if state.stage == (Stage::Closing { until: self.driver.now }) {
            self.end(id, Fault::Closed);
        } else {
            self.touch(id);
        }
        Ordered::Released
    }
}
