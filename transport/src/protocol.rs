//! The interface of a packet protocol to its driver, and its reports to the layer above.

use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::health::Health;
use ropewalk_base::memory::Slice;
use ropewalk_base::payload::{Cipher, LinkKeys, Sealing};
use ropewalk_base::shared::Leaving;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{
    Capabilities, ForeignEnd, ForeignMessage, FrameOrder, Ordered, Placement, RemoteKey, Token,
    Verb,
};

use crate::memory::Bytes;

/// A protocol that makes links of packets, for an endpoint at a station `S` of a port.
///
/// Orders come as a rail takes them. Each packet that came goes to [`PacketProtocol::packet`]; when the port has no
/// more, [`PacketProtocol::drained`] judges timers and reports what has happened since. [`PacketProtocol::next`]
/// writes one packet after the other, as long as the port has room for them.
pub trait PacketProtocol<S>: Send {
    /// The promises of its links.
    fn capabilities(&self) -> Capabilities;
    /// Begins a link; `key`: the key that the other end wants to be shown, as the address says.
    fn connect(
        &mut self,
        to: S,
        endpoint: u8,
        key: Option<u32>,
        now: Time,
    ) -> Result<SlotId, Fault>;
    /// Likewise before the destination is known: `nowhere` stands for it until it is [`PacketProtocol::found`].
    /// `patience` is the time for that.
    fn connect_later(
        &mut self,
        nowhere: S,
        patience: Duration,
        now: Time,
    ) -> Result<SlotId, Fault> {
        let _ = (nowhere, patience, now);
        Err(Fault::Invalid)
    }
    /// Tells the destination of a link that was to be connected later; `None` if nobody knows it.
    fn found(&mut self, link: SlotId, station: Option<(S, u8)>, now: Time) {
        let _ = (link, station, now);
    }
    /// The length of the longest packet of every link, where no link can do with shorter ones.
    fn fixed_packet_bytes(&self) -> Option<usize> {
        None
    }
    /// Packets of a link that is being made get through if they are no longer than this.
    fn shorten(&mut self, link: SlotId, packet_bytes: usize) {
        let _ = (link, packet_bytes);
    }
    /// Sends a frame.
    fn send(&mut self, frame: &FrameOrder, memory: &dyn Bytes) -> Ordered;
    /// Carries out another order.
    fn order(&mut self, verb: &Verb, memory: &dyn Bytes) -> Ordered;
    /// A packet came from a station. One that is none of the protocol's is counted and passed over.
    fn packet(&mut self, from: S, body: &[u8], now: Time, above: &mut dyn LinkEvents<S>);
    /// The port had nothing more at `now`: timers are judged, and what happened is reported.
    fn drained(&mut self, now: Time, above: &mut dyn LinkEvents<S>);
    /// Reports what has happened since it was asked last.
    fn report(&mut self, above: &mut dyn LinkEvents<S>);
    /// Writes the next packet to `out`, which has room for the longest, but for what is kept until it is acknowledged;
    /// where it goes. `now` is when it leaves.
    fn next_apart(&mut self, now: Time, memory: &dyn Bytes, out: &mut [u8])
    -> Option<(S, Leaving)>;
    /// Likewise the whole packet; its destination and its length.
    fn next(&mut self, now: Time, memory: &dyn Bytes, out: &mut [u8]) -> Option<(S, usize)> {
        let (station, leaving) = self.next_apart(now, memory, out)?;
        Some((station, leaving.join(out)))
    }
    /// The port has no room for what there is to send.
    fn held_up(&mut self, now: Time);
    /// Whether there may be a packet to send, or something to report.
    fn has_work(&self) -> bool;
    /// Whether something is to be sent, or acknowledged, before the endpoint may go.
    fn owes(&self) -> bool;
    /// When timers have to be judged, once there is no packet to send.
    fn deadline(&self) -> Time;
    /// The station at the other end of a link.
    fn station(&self, link: SlotId) -> Option<S>;
    /// Since when the other end of a link owes an acknowledgement; that of the message which is named so, by channel
    /// and number, among them.
    fn owed_since(&self, link: SlotId, message: Option<(u8, u64)>) -> Time;
    /// The health of a link that is up, where the protocol measures it.
    fn health(&self, link: SlotId) -> Option<Health> {
        let _ = link;
        None
    }
    /// The cipher by which it can protect its links fast; `None`: it cannot.
    fn protects(&self) -> Option<Cipher> {
        None
    }
    /// Protects a link with these keys, behind what was ordered before. Only for protocols that protect their links.
    fn seal(&mut self, link: SlotId, keys: &LinkKeys, memory: &dyn Bytes) {
        let _ = memory;
        unreachable!("{link:?}, {}: this protocol protects nothing", keys.mode);
    }
    /// Ends a link at once, and reports that. False where the protocol cannot, or there is no such link.
    fn abandon(&mut self, link: SlotId) -> bool {
        let _ = link;
        false
    }
    /// Names the links that are up, where the protocol tells of their health.
    fn each_link(&self, to: &mut dyn FnMut(SlotId)) {
        let _ = to;
    }
    /// Shows a key to the other end: [`LinkEvents::key_judged`] tells what it says.
    fn show_key(&mut self, link: SlotId, key: u32) -> Result<(), Fault> {
        let _ = (link, key);
        Err(Fault::Invalid)
    }
    /// The peer at the other end of a link, if it is foreign.
    fn foreign(&self, link: SlotId) -> Option<Who<S>> {
        let _ = link;
        None
    }
    /// The counters of the protocol.
    fn counted(&self) -> Counted;
}

/// Somebody at the other end who speaks another protocol than ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Who<S> {
    pub station: S,
    pub endpoint: u8,
    pub session: u32,
}

/// The place for a message of a foreign peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taken {
    /// To `slice`, as much as fits; `received` is told with the token when all of it was written.
    Into { slice: Slice, token: Token },
    /// Nowhere, or there is nothing to be written.
    Nothing,
    /// There is no room yet: it was not seen, and is told again.
    Later,
}

/// The events that a protocol reports when it is asked to, and the memory in which they happened.
pub trait LinkEvents<S>: Bytes {
    /// A link carries frames from now on; `accepted`: the peer began it.
    fn link_up(&mut self, link: SlotId, accepted: bool) {
        let _ = (link, accepted);
    }
    /// A link carries messages with somebody foreign from now on.
    fn foreign_up(&mut self, link: SlotId, who: Who<S>, accepted: bool) {
        let _ = (link, who, accepted);
    }
    /// The last word about a link.
    fn link_down(&mut self, link: SlotId, fault: Fault);
    /// Asks for the place of a payload, which this header describes; as a rail's report.
    fn place(&mut self, link: SlotId, header: &[u8], payload_bytes: u32) -> Placement {
        let _ = (link, header, payload_bytes);
        Placement::Drop
    }
    /// A frame that is here whole. False where it breaks the protocol.
    fn arrived(&mut self, link: SlotId, header: &[u8], payload: &[u8]) -> bool {
        let _ = (link, header, payload);
        true
    }
    /// Whether what follows on a link is sealed, as a rail's report.
    fn sealing(&mut self, link: SlotId) -> Sealing {
        let _ = link;
        Sealing::Plain
    }
    /// The next message of a foreign peer; `whole`: all its bytes are here, and follow at once.
    fn message(&mut self, link: SlotId, message: ForeignMessage, whole: bool) -> Taken {
        let _ = (link, message, whole);
        Taken::Nothing
    }
    /// A message of ours is over: the foreign peer took it.
    fn finished(&mut self, link: SlotId, end: ForeignEnd) {
        let _ = (link, end);
    }
    /// A foreign peer says whether a key that it was shown is right.
    fn key_judged(&mut self, link: SlotId, key: u32, right: bool) {
        let _ = (link, key, right);
    }
    /// All of a payload is at its place.
    fn received(&mut self, link: SlotId, token: Token);
    /// The same, in place of it, where some bytes have no place: see [`Bytes::try_write`].
    fn unplaced(&mut self, link: SlotId, token: Token) {
        unreachable!("{link:?}, {token:?}: whose memory goes away hears of it");
    }
    /// A pending order is done, or failed.
    fn ended(&mut self, token: Token, outcome: Result<(), Fault>);
    /// Nobody uses the region any more.
    fn revoked(&mut self, link: SlotId, key: RemoteKey);
}

/// The counters of a protocol: those that all protocols have as fields, and all of them by their public names.
#[derive(Debug, Clone, Default)]
pub struct Counted {
    pub packets_sent: u64,
    pub packets_received: u64,
    pub frames_sent: u64,
    pub frames_received: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub bytes_native: u64,
    /// Payload bytes that were copied between buffers of the protocol's.
    pub bytes_copied: u64,
    /// Packets that were sent again, and pieces that were asked for again.
    pub resent: u64,
    pub asked_again: u64,
    /// Packets that came before their turn, and packets that were here before.
    pub early: u64,
    pub doubled: u64,
    pub violations: u64,
    /// Packets that are not what was sent.
    pub corrupt: u64,
    pub wrong_length: u64,
    pub wrong_type: u64,
    pub wrong_endpoint: u64,
    /// Packets from nobody known, whatever else was wrong with them.
    pub strangers: u64,
    /// Of those, packets of links that are not there.
    pub unknown: u64,
    /// Packets for which there was no room.
    pub beyond: u64,
    /// Counters that only this protocol has.
    pub own: Vec<(&'static str, u64)>,
}

impl Counted {
    /// All of them by name.
    pub fn by_name(&self) -> Vec<(&'static str, u64)> {
        let mut all = vec![
            ("packets.sent", self.packets_sent),
            ("packets.received", self.packets_received),
            ("bytes.sent", self.bytes_sent),
            ("bytes.received", self.bytes_received),
            ("messages.sent", self.frames_sent),
            ("messages.received", self.frames_received),
            ("bytes.large", self.bytes_native),
            ("resent", self.resent),
            ("asked_again", self.asked_again),
            ("early", self.early),
            ("doubled", self.doubled),
        ];
        all.extend(&self.own);
        all.extend([
            ("dropped.wrong_length", self.wrong_length),
            ("dropped.wrong_type", self.wrong_type),
            ("dropped.wrong_endpoint", self.wrong_endpoint),
            ("dropped.stranger", self.unknown),
            ("dropped.no_room", self.beyond),
        ]);
        all
    }
}
