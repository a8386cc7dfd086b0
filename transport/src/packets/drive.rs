//! Our protocol as a driven packet protocol: its links in their turns, its capabilities and its counters.

use std::hash::Hash;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::health::Health;
use ropewalk_base::limits::{EAGER_BYTES_LONG, EAGER_BYTES_SHORT};
use ropewalk_base::payload::{Cipher, LinkKeys};
use ropewalk_base::shared::Leaving;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{Capabilities, FrameOrder, Ordered, Verb};
use ropewalk_wire::packets::{
    self, CallBody, GoneBody, Kind, Packet, PacketError, REFUSAL_RETRY, Route,
};
use zerocopy::IntoBytes;

use super::machine::{Event, Machine, Reply};
use crate::driver::{Driven, Driver, Scheduled};
use crate::memory::Bytes;
use crate::protocol::{Counted, LinkEvents, PacketProtocol};

/// From so many bytes on packets are long: 64 KiB are no more than sixteen of them.
const LONG_PACKET_BYTES: usize = 4096;

impl<S: Copy + Eq + Hash + std::fmt::Debug> Driven<S> for Machine<S> {
    type Reply = Reply<S>;
    type Event = Event;

    fn driver(&mut self) -> &mut Driver<Reply<S>, Event> {
        &mut self.driver
    }

    fn schedule(&mut self, id: SlotId) -> Option<Scheduled<'_, Reply<S>, Event>> {
        Some((&mut self.driver, &mut self.links.get_mut(id)?.schedule))
    }

    fn due(&self, id: SlotId) -> Time {
        self.links.get(id).map_or(Time::NEVER, |state| state.due(&self.readings))
    }

    fn wants(&self, id: SlotId) -> bool {
        self.links.get(id).is_some_and(|state| state.wants(self.driver.now))
    }

    fn run_timer(&mut self, id: SlotId) {
        self.judge(id);
    }

    fn write_reply(&mut self, reply: Reply<S>, out: &mut [u8]) -> (S, Leaving) {
        let from = self.config.endpoint;
        match reply {
            Reply::Gone { station, endpoint, tag, secret } => {
                let body = GoneBody { tag: tag.into(), secret: secret.into() };
                let route = Route { to: endpoint, from, tag: 0 };
                let len = packets::seal(out, Kind::Gone, route, body.as_bytes(), 0, |_| ());
                (station, Leaving::whole(len))
            }
            Reply::Retry { station, endpoint, tag, call, cookie } => {
                let body = CallBody {
                    version: packets::VERSION.into(),
                    packet_bytes: (packets::PACKET_BYTES_MIN as u16).into(),
                    tag: 0.into(),
                    call: call.into(),
                    refusal: REFUSAL_RETRY,
                    cookie,
                };
                let route = Route { to: endpoint, from, tag };
                let len = packets::seal(out, Kind::Answer, route, body.as_bytes(), 0, |_| ());
                (station, Leaving::whole(len))
            }
        }
    }

    fn write_next(
        &mut self,
        id: SlotId,
        memory: &dyn Bytes,
        out: &mut [u8],
    ) -> Option<(S, Leaving)> {
        let station = self.links.get(id)?.station;
        self.next_of(id, memory, out).map(|leaving| (station, leaving))
    }

    fn report_event(&mut self, event: Event, above: &mut dyn LinkEvents<S>) {
        match event {
            Event::Up { link, accepted } => above.link_up(link, accepted),
            Event::Down { link, fault } => above.link_down(link, fault),
            Event::Ended { token, outcome } => above.ended(token, outcome),
            Event::Revoked { link, key } => above.revoked(link, key),
        }
    }
}

impl<S: Copy + Eq + Hash + std::fmt::Debug> Machine<S> {
    /// A packet of a link came, and is the peer's as far as can be told.
    fn of_link(&mut self, id: SlotId, packet: Packet<'_>, above: &mut dyn LinkEvents<S>) {
        match packet {
            Packet::Stream(body, bytes) => self.streamed(id, body, bytes, above),
            Packet::Ack(ack) => _ = self.acknowledged(id, ack),
            Packet::Pull(pulls) => pulls.iter().for_each(|pull| self.asked(id, pull)),
            Packet::Piece(piece, bytes) => self.piece(id, piece, bytes, above),
            Packet::Refusal(refusal) => self.pull_refused(id, refusal),
            Packet::Call(_) | Packet::Answer(_) | Packet::Gone(_) | Packet::Sealed(_) => {}
        }
        self.touch_if_wanted(id);
    }
}

impl<S: Copy + Eq + Hash + std::fmt::Debug + Send> PacketProtocol<S> for Machine<S> {
    fn capabilities(&self) -> Capabilities {
        // An announced message takes three packets more, each of which costs as much as some thousand bytes. Where
        // packets are long, those three are many beside the others.
        let is_long = self.packet_bytes() >= LONG_PACKET_BYTES;
        Capabilities {
            reliable: true,
            ordered: true,
            intact: true,
            native_read: true,
            native_write: true,
            frame_payload_bytes_max: EAGER_BYTES_LONG,
            eager_bytes: if is_long { EAGER_BYTES_LONG } else { EAGER_BYTES_SHORT },
            preference: 40,
            same_host_only: false,
            foreign: false,
        }
    }

    fn connect(
        &mut self,
        to: S,
        endpoint: u8,
        key: Option<u32>,
        now: Time,
    ) -> Result<SlotId, Fault> {
        match key {
            None => Machine::connect(self, to, endpoint, now),
            Some(_) => Err(Fault::Invalid),
        }
    }

    fn connect_later(
        &mut self,
        nowhere: S,
        patience: Duration,
        now: Time,
    ) -> Result<SlotId, Fault> {
        Machine::connect_later(self, nowhere, patience, now)
    }

    fn found(&mut self, link: SlotId, station: Option<(S, u8)>, now: Time) {
        Machine::found(self, link, station, now);
    }

    fn shorten(&mut self, link: SlotId, packet_bytes: usize) {
        Machine::shorten(self, link, packet_bytes);
    }

    fn send(&mut self, frame: &FrameOrder, memory: &dyn Bytes) -> Ordered {
        Machine::send(self, frame, memory)
    }

    fn order(&mut self, verb: &Verb, memory: &dyn Bytes) -> Ordered {
        Machine::order(self, verb, memory)
    }

    fn packet(&mut self, from: S, body: &[u8], now: Time, above: &mut dyn LinkEvents<S>) {
        self.driver.advance(now);
        self.report_all(above);
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
            Packet::Gone(body) => {
                self.gone(from, endpoint, body);
                return self.report_all(above);
            }
            _ => {}
        }
        let Some(id) = self.by_tag(tag, from, &opened.packet) else {
            self.counters.strangers += 1;
            match opened.packet {
                Packet::Stream(body, _) => self.send_away(from, endpoint, tag, body.secret.get()),
                Packet::Pull(_) | Packet::Sealed(_) => self.send_away(from, endpoint, tag, 0),
                _ => {}
            }
            return;
        };
        self.ask_seal(id, above);
        match opened.packet {
            Packet::Answer(answer) => {
                let bytes = usize::from(opened.head.bytes.get());
                self.answered(id, (from, endpoint), answer, bytes);
            }
            Packet::Sealed(sealed) => {
                let mut scratch = std::mem::take(&mut self.scratch);
                let whole = &body[..usize::from(opened.head.bytes.get())];
                if let Some(packet) = self.open_packet(id, sealed.number.get(), whole, &mut scratch)
                {
                    self.of_link(id, packet, above);
                }
                self.scratch = scratch;
            }
            packet if self.is_protected(id) => self.hear_plain(id, &packet),
            packet => {
                self.heard(id);
                self.report_all(above);
                self.of_link(id, packet, above);
            }
        }
        self.report_all(above);
    }

    fn drained(&mut self, now: Time, above: &mut dyn LinkEvents<S>) {
        self.driver.advance(now);
        self.run_timers();
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
        let (station, leaving) = self.write_packet(memory, out)?;
        self.counters.sent += 1;
        self.counters.bytes_sent += leaving.bytes() as u64;
        Some((station, leaving))
    }

    fn held_up(&mut self, now: Time) {
        self.hold_up(now);
    }

    fn has_work(&self) -> bool {
        self.driver.has_work()
    }

    fn owes(&self) -> bool {
        let mut links = self.links.iter();
        links.any(|(_, link)| link.is_up() && !(link.sending.is_empty() && link.out.is_empty()))
    }

    fn deadline(&self) -> Time {
        self.driver.deadline()
    }

    fn station(&self, link: SlotId) -> Option<S> {
        self.links.get(link).map(|state| state.station)
    }

    fn owed_since(&self, link: SlotId, _: Option<(u8, u64)>) -> Time {
        // The peer acknowledges even if its program does nothing: a peer that owes anything for long is gone.
        self.links.get(link).map_or(Time::NEVER, |state| state.sending.silent_since())
    }

    fn health(&self, link: SlotId) -> Option<Health> {
        Machine::health(self, link)
    }

    fn protects(&self) -> Option<Cipher> {
        let hardware = ropewalk_seal::hardware_aes();
        Some(if hardware { Cipher::Aes256Gcm } else { Cipher::ChaCha20Poly1305 })
    }

    fn seal(&mut self, link: SlotId, keys: &LinkKeys, memory: &dyn Bytes) {
        Machine::seal(self, link, keys, memory);
    }

    fn abandon(&mut self, link: SlotId) -> bool {
        let is_known = self.links.get(link).is_some();
        self.end(link, Fault::Closed);
        is_known
    }

    fn each_link(&self, to: &mut dyn FnMut(SlotId)) {
        let up = self.links.iter().filter(|(_, link)| link.is_up());
        up.for_each(|(id, _)| to(id));
    }

    fn counted(&self) -> Counted {
        let it = self.counters();
        Counted {
            packets_sent: it.sent,
            packets_received: it.received,
            frames_sent: it.frames_sent,
            frames_received: it.frames_received,
            bytes_sent: it.bytes_sent,
            bytes_received: it.bytes_received,
            bytes_native: it.bytes_native,
            bytes_copied: it.bytes_copied,
            resent: it.resent,
            asked_again: it.asked_again,
            early: it.early,
            doubled: it.doubled,
            violations: it.violations,
            corrupt: it.corrupt + it.wrong_type + it.wrong_length,
            wrong_length: it.wrong_length,
            wrong_type: it.wrong_type,
            wrong_endpoint: it.wrong_endpoint,
            strangers: it.strangers + it.wrong_endpoint + it.refused,
            unknown: it.strangers,
            beyond: it.beyond,
            own: vec![
                ("violations", it.violations),
                ("dropped.checksum", it.corrupt),
                ("dropped.refused_call", it.refused),
                ("dropped.retry", it.retries),
                ("dropped.never_sent", it.never_sent),
                ("dropped.forged", it.forged),
                ("dropped.replayed", it.replayed),
                ("dropped.unprotected", it.unprotected),
                ("dropped.too_early", it.too_early),
            ],
        }
    }
}
