//! MXoE as a driven packet protocol: its links in their turns, its capabilities and its counters.

use std::hash::Hash;

use ropewalk_base::error::Fault;
use ropewalk_base::limits::EAGER_BYTES_SHORT;
use ropewalk_base::shared::Leaving;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{Capabilities, FrameOrder, Ordered, Verb};
use ropewalk_wire::mxoe::{self, Fragment, Message, Packet, PacketError};

use super::machine::{Event, Mxoe, Partner, Reply, emit};
use super::receiving::Part;
use super::sending::Named;
use crate::driver::{Driven, Driver, Scheduled};
use crate::memory::Bytes;
use crate::protocol::{Counted, LinkEvents, PacketProtocol, Who};

/// Shortest body: frames are filled up to 60 bytes, which Open-MX counts on.
const BODY_BYTES_MIN: usize = mxoe::FRAME_BYTES_MIN - mxoe::ETHERNET_BYTES;

/// Messages that are told in one pass after the layer above had no room.
const RETRIES_PER_PASS: usize = 64;

impl<S: Copy + Eq + Hash + std::fmt::Debug> Driven<S> for Mxoe<S> {
    type Reply = Reply<S>;
    type Event = Event;

    fn driver(&mut self) -> &mut Driver<Reply<S>, Event> {
        &mut self.driver
    }

    fn schedule(&mut self, id: SlotId) -> Option<Scheduled<'_, Reply<S>, Event>> {
        Some((&mut self.driver, &mut self.partners.get_mut(id)?.schedule))
    }

    fn due(&self, id: SlotId) -> Time {
        let probed_after = self.probed_after();
        let state = self.partners.get(id);
        state.map_or(Time::NEVER, |state| state.due(&self.pulls, probed_after))
    }

    fn wants(&self, id: SlotId) -> bool {
        self.partners.get(id).is_some_and(|state| state.wants(self.driver.now))
    }

    fn run_timer(&mut self, id: SlotId) {
        self.judge(id);
    }

    fn write_reply(&mut self, reply: Reply<S>, out: &mut [u8]) -> (S, Leaving) {
        let Reply { station, index, packet } = reply;
        (station, Leaving::whole(emit(&packet, index, self.config.dialect, out)))
    }

    fn write_next(
        &mut self,
        id: SlotId,
        memory: &dyn Bytes,
        out: &mut [u8],
    ) -> Option<(S, Leaving)> {
        let station = self.partners.get(id)?.station;
        self.next_of(id, memory, out).map(|leaving| (station, leaving))
    }

    fn report_event(&mut self, event: Event, above: &mut dyn LinkEvents<S>) {
        match event {
            Event::Up { link, accepted } => {
                if let Some(who) = self.who(link) {
                    above.foreign_up(link, who, accepted);
                }
            }
            Event::Judged { link, key, right } => above.key_judged(link, key, right),
            Event::Down { link, fault } => above.link_down(link, fault),
            Event::Finished { link, end } => above.finished(link, end),
            Event::Ended { token, outcome } => above.ended(token, outcome),
            Event::Revoked { link, key } => above.revoked(link, key),
        }
    }
}

impl<S: Copy + Eq + Hash + std::fmt::Debug + Send> PacketProtocol<S> for Mxoe<S> {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            reliable: true,
            ordered: true,
            intact: true,
            native_read: true,
            native_write: false,
            frame_payload_bytes_max: self.medium_bytes_max().min(EAGER_BYTES_SHORT),
            eager_bytes: EAGER_BYTES_SHORT,
            preference: 40,
            same_host_only: false,
            foreign: true,
        }
    }

    fn connect(
        &mut self,
        to: S,
        endpoint: u8,
        key: Option<u32>,
        now: Time,
    ) -> Result<SlotId, Fault> {
        let key = key.unwrap_or(self.key());
        Mxoe::connect(self, to, endpoint, key, now)
    }

    fn send(&mut self, frame: &FrameOrder, memory: &dyn Bytes) -> Ordered {
        Mxoe::send(self, frame, memory)
    }

    fn order(&mut self, verb: &Verb, memory: &dyn Bytes) -> Ordered {
        Mxoe::order(self, verb, memory)
    }

    fn packet(&mut self, from: S, body: &[u8], now: Time, above: &mut dyn LinkEvents<S>) {
        self.driver.advance(now);
        self.report_all(above);
        let dialect = self.config.dialect;
        match mxoe::endpoint_of(body, dialect.order()) {
            Some(endpoint) if endpoint == self.config.endpoint => {}
            Some(_) => return self.counters.wrong_endpoint += 1,
            None => return self.counts_for_none(body),
        }
        let packet = match Packet::parse(body, dialect) {
            Ok((_, packet)) => packet,
            Err(PacketError::Short | PacketError::Long) => return self.counters.wrong_length += 1,
            Err(PacketError::Type(_)) => return self.counters.wrong_type += 1,
            Err(PacketError::Field) => return self.counters.malformed += 1,
        };
        self.counters.received += 1;
        self.counters.bytes_received += body.len() as u64;
        match packet {
            Packet::Connect(connect) => self.asked_to_connect(from, connect),
            Packet::ConnectReply(reply) => self.connect_answered(from, reply),
            Packet::Tiny(message, bytes) | Packet::Small(message, bytes) => {
                let (total, bits) = (bytes.len() as u32, message.match_info);
                let part = Part::Eager { bits, total, fragment: 0, offset: 0, bytes };
                self.arrived(from, &message, part, above);
            }
            Packet::Medium(Fragment { message, total_bytes, fragment, offset }, bytes) => {
                let bits = message.match_info;
                let part = Part::Eager { bits, total: total_bytes, fragment, offset, bytes };
                self.arrived(from, &message, part, above);
            }
            Packet::Rendezvous(it) => {
                let part = Part::Announce {
                    bits: it.message.match_info,
                    bytes: it.total_bytes,
                    region: it.region,
                    region_sequence: it.region_sequence,
                    region_offset: it.region_offset,
                };
                self.arrived(from, &it.message, part, above);
            }
            Packet::Notify(it) => {
                let message = Message {
                    to: it.to,
                    from: it.from,
                    session: it.session,
                    sequence: it.sequence,
                    acknowledged: it.acknowledged,
                    match_info: 0,
                };
                let (bytes, region, region_sequence) = (it.bytes, it.region, it.region_sequence);
                self.arrived(
                    from,
                    &message,
                    Part::Notify { bytes, region, region_sequence },
                    above,
                );
            }
            Packet::Ack(ack) => self.told(from, ack),
            Packet::Pull(pull) => self.asked(from, pull),
            Packet::PullReply(reply, bytes) => self.replied(from, reply, bytes, above),
            Packet::NackLib(nack) => self.refused(from, nack),
            Packet::NackMcp(nack) => self.pull_refused(from, nack),
            // They are an agent's.
            Packet::Raw(_) | Packet::HostQuery(_) | Packet::HostReply(_) => {
                self.counters.wrong_type += 1;
            }
        }
        self.report_all(above);
    }

    fn drained(&mut self, now: Time, above: &mut dyn LinkEvents<S>) {
        self.driver.advance(now);
        self.run_timers();
        self.report_all(above);
        for id in std::mem::take(&mut self.retries) {
            let Some(state) = self.partners.get_mut(id) else { continue };
            state.retry = false;
            if self.tell_early(id, RETRIES_PER_PASS, above) {
                self.has_room(id);
            }
            self.touch(id);
        }
        self.report_all(above);
    }

    fn report(&mut self, above: &mut dyn LinkEvents<S>) {
        self.report_all(above);
    }

    fn next_apart(
        &mut self,
        now: Time,
        memory: &dyn Bytes,
        out: &mut [u8],
    ) -> Option<(S, Leaving)> {
        self.driver.advance(now);
        let (station, mut leaving) = self.write_packet(memory, out)?;
        self.counters.sent += 1;
        self.counters.bytes_sent += leaving.bytes() as u64;
        if leaving.kept.is_none() {
            let written = leaving.written;
            leaving.written = written.max(BODY_BYTES_MIN);
            out[written..leaving.written].fill(0);
        }
        Some((station, leaving))
    }

    fn fixed_packet_bytes(&self) -> Option<usize> {
        Some(self.config.dialect.body_bytes_max())
    }

    fn held_up(&mut self, now: Time) {
        self.hold_up(now);
    }

    fn has_work(&self) -> bool {
        self.driver.has_work() || !self.retries.is_empty()
    }

    fn owes(&self) -> bool {
        let owes = |state: &Partner<S>| !state.sending.is_done() || !state.serving.is_empty();
        self.driver.has_replies() || self.partners.iter().any(|(_, state)| owes(state))
    }

    fn deadline(&self) -> Time {
        self.driver.deadline()
    }

    fn station(&self, link: SlotId) -> Option<S> {
        self.who(link).map(|who| who.station)
    }

    /// `ZERO` where the message that is named has not left.
    fn owed_since(&self, link: SlotId, message: Option<(u8, u64)>) -> Time {
        let Some(state) = self.partners.get(link) else { return Time::NEVER };
        let Some((channel, number)) = message else { return state.sending.silent_since() };
        let named = |region: u8| self.regions[usize::from(region)].named();
        state.sending.owed_since(Named { channel, number }, named)
    }

    fn show_key(&mut self, link: SlotId, key: u32) -> Result<(), Fault> {
        Mxoe::show_key(self, link, key)
    }

    fn foreign(&self, link: SlotId) -> Option<Who<S>> {
        self.who(link)
    }

    fn counted(&self) -> Counted {
        let it = self.counters();
        Counted {
            packets_sent: it.sent,
            packets_received: it.received,
            frames_sent: it.messages_sent,
            frames_received: it.messages_received,
            bytes_sent: it.bytes_sent,
            bytes_received: it.bytes_received,
            bytes_native: it.bytes_native,
            bytes_copied: it.bytes_copied,
            resent: it.resent,
            asked_again: it.asked_again,
            early: it.early,
            doubled: it.doubled,
            violations: 0,
            corrupt: it.malformed + it.misplaced + it.wrong_type + it.wrong_length,
            wrong_length: it.wrong_length,
            wrong_type: it.wrong_type,
            wrong_endpoint: it.wrong_endpoint,
            strangers: it.strangers + it.wrong_endpoint + it.wrong_session + it.unasked,
            unknown: it.strangers,
            beyond: it.beyond,
            own: vec![
                ("postponed", it.postponed),
                ("half_open", it.half_open),
                ("stuck", it.stuck),
                ("nacks.sent", it.nacks_sent),
                ("nacks.received", it.nacks_received),
                ("throttled.regions", it.awaited_region),
                ("throttled.pulls", it.awaited_share),
                ("throttled.nacks", it.unanswered),
                ("dropped.wrong_field", it.malformed),
                ("dropped.wrong_place", it.misplaced),
                ("dropped.wrong_session", it.wrong_session),
                ("dropped.not_connected", it.unready),
                ("dropped.unasked", it.unasked),
            ],
        }
    }
}
