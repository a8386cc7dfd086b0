//! What is spoken over packets, and what the layer above is told by whoever speaks it.

use std::hash::{BuildHasher, Hash, RandomState};
use std::sync::LazyLock;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::limits::{EAGER_BYTES_LONG, EAGER_BYTES_SHORT};
use ropewalk_base::memory::{BufferTable, Slice};
use ropewalk_base::shared::Leaving;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{
    Capabilities, ForeignEnd, ForeignMessage, FrameOrder, LinkId, Ordered, Placement, RemoteKey,
    Token, Verb,
};
use ropewalk_core::packets::mxoe::{Foreign, Mxoe, Taken, Who};
use ropewalk_core::packets::{Above, Bytes, Machine};
use ropewalk_rail::{Count, Report};

use crate::narrow::Narrow;

/// How long a name may be looked up.
const LOOK_UP_FOR: Duration = Duration::from_secs(30);

/// A machine that makes links of packets.
pub trait Language<S>: Send {
    /// What its links promise.
    fn capabilities(&self) -> Capabilities;
    /// Begins a link; `query`: what an address says behind a question mark.
    fn connect(&mut self, to: S, endpoint: u8, query: &str, now: Time) -> Result<SlotId, Fault>;
    /// Likewise before it is known where: `nowhere` stands for it until it is [`Language::found`].
    fn connect_later(&mut self, nowhere: S, query: &str, now: Time) -> Result<SlotId, Fault> {
        let _ = (nowhere, query, now);
        Err(Fault::Invalid)
    }
    /// Where a link goes that was to be connected later; `None` where nobody knows.
    fn found(&mut self, link: SlotId, station: Option<(S, u8)>, now: Time) {
        let _ = (link, station, now);
    }
    /// Packets of a link that is being made get through if they are no longer than this.
    fn shorten(&mut self, link: SlotId, packet_bytes: usize) {
        let _ = (link, packet_bytes);
    }
    /// Sends a frame.
    fn send(&mut self, frame: &FrameOrder, memory: &dyn Bytes) -> Ordered;
    /// Carries out another order.
    fn order(&mut self, verb: &Verb, memory: &dyn Bytes) -> Ordered;
    /// A packet came.
    fn packet(&mut self, from: S, body: &[u8], now: Time, above: &mut Upwards<'_>);
    /// There are no more: timers are judged.
    fn drained(&mut self, now: Time, above: &mut Upwards<'_>);
    /// Tells what has happened.
    fn report(&mut self, above: &mut Upwards<'_>);
    /// Writes the next packet, but for what is kept; where it goes and what it is.
    fn next(&mut self, now: Time, memory: &dyn Bytes, out: &mut [u8]) -> Option<(S, Leaving)>;
    /// The port has no room for what there is to send.
    fn held_up(&mut self, now: Time) {
        let _ = now;
    }
    /// Whether there is a packet to send, or something to tell.
    fn has_work(&self) -> bool;
    /// Whether something is to be sent, or acknowledged, before the endpoint may go.
    fn owes(&self) -> bool;
    /// When timers have to be judged.
    fn deadline(&self) -> Time;
    /// Who is at the other end of a link.
    fn station(&self, link: SlotId) -> Option<S>;
    /// Since when it owes an acknowledgement.
    fn owed_since(&self, link: SlotId, message: Option<(u8, u64)>) -> Time;
    /// Shows a key to it.
    fn show_key(&mut self, link: SlotId, key: u32) -> Result<(), Fault> {
        let _ = (link, key);
        Err(Fault::Invalid)
    }
    /// Where it is foreign: its station, its number there, its session.
    fn foreign(&self, link: SlotId) -> Option<(S, u8, u32)> {
        let _ = link;
        None
    }
    /// Its counters, as those of a rail.
    fn counted(&self) -> Counted;
    /// All of them, by the names that people know them by.
    fn counts(&self) -> Vec<Count>;
}

/// What a machine counts.
#[derive(Debug, Clone, Copy, Default)]
pub struct Counted {
    pub frames_sent: u64,
    pub frames_received: u64,
    pub bytes_sent: u64,
    pub bytes_received: u64,
    pub bytes_native: u64,
    /// Payload bytes that were copied between buffers of the machine's.
    pub bytes_copied: u64,
    pub violations: u64,
    /// Packets that are not what was sent, and those from nobody known.
    pub corrupt: u64,
    pub strangers: u64,
}

/// Memory of the table, for the machine.
pub(crate) struct Table<'a>(pub &'a BufferTable);

impl Bytes for Table<'_> {
    fn read(&self, from: Slice, to: &mut [u8]) {
        let read = self.0.read(from, to);
        // What is gone reads as nothing; nobody waits for it any more.
        to[read..].fill(0);
    }

    fn write(&self, to: Slice, from: &[u8]) {
        self.0.write(to, from);
    }
}

/// The layer above, for the machine.
pub struct Upwards<'a> {
    pub(crate) index: u8,
    pub(crate) report: &'a mut dyn Report,
    pub(crate) links_up: &'a mut u64,
    pub(crate) links_down: &'a mut u64,
    pub(crate) narrow: &'a mut Narrow,
    /// Something was reported, which may be all that happened in a pass.
    pub(crate) told: bool,
}

impl Upwards<'_> {
    fn id(&self, slot: SlotId) -> LinkId {
        LinkId { rail: self.index, slot }
    }
}

impl Bytes for Upwards<'_> {
    fn read(&self, from: Slice, to: &mut [u8]) {
        Table(self.report.buffers()).read(from, to);
    }

    fn write(&self, to: Slice, from: &[u8]) {
        Table(self.report.buffers()).write(to, from);
    }
}

impl Above for Upwards<'_> {
    fn link_up(&mut self, link: SlotId, accepted: bool) {
        *self.links_up += 1;
        self.told = true;
        self.report.link_up(self.id(link), accepted);
    }

    fn link_down(&mut self, link: SlotId, fault: Fault) {
        *self.links_down += 1;
        self.told = true;
        let fault = self.narrow.down(link, fault);
        self.report.link_down(self.id(link), fault);
    }

    fn place(&mut self, link: SlotId, header: &[u8], payload_bytes: u32) -> Placement {
        self.report.place(self.id(link), header, payload_bytes)
    }

    fn arrived(&mut self, link: SlotId, header: &[u8], payload: &[u8]) -> bool {
        match self.report.place_whole(self.id(link), header, payload.len() as u32) {
            Placement::Into { slice, token } => {
                self.report.buffers().write(slice, payload);
                self.report.landed(self.id(link), token);
                true
            }
            Placement::Drop => true,
            Placement::Violation(_) => false,
            Placement::Stage { .. } => unreachable!("the layer above turns staging into a place"),
        }
    }

    fn landed(&mut self, link: SlotId, token: Token) {
        self.told = true;
        self.report.landed(self.id(link), token);
    }

    fn ended(&mut self, token: Token, outcome: Result<(), Fault>) {
        self.told = true;
        match self.narrow.ended(token, outcome) {
            Ok(()) => self.report.done(token),
            Err(fault) => self.report.failed(token, fault),
        }
    }

    fn revoked(&mut self, link: SlotId, key: RemoteKey) {
        self.told = true;
        self.report.revoked(self.id(link), key);
    }
}

impl<S: Hash> Foreign<S> for Upwards<'_> {
    fn link_up(&mut self, link: SlotId, who: Who<S>, accepted: bool) {
        *self.links_up += 1;
        self.told = true;
        self.narrow.up(link);
        // The same for the same endpoint, as long as this process lives.
        let Who { station, endpoint, .. } = who;
        let hash = |salt: u8| u128::from(NAMES.hash_one((salt, &station, endpoint)));
        self.report.foreign_up(self.id(link), hash(0) << 64 | hash(1) | 1, accepted);
    }

    fn key_judged(&mut self, link: SlotId, key: u32, right: bool) {
        self.told = true;
        self.report.foreign_key(self.id(link), key, right);
    }

    fn link_down(&mut self, link: SlotId, fault: Fault) {
        Above::link_down(self, link, fault);
    }

    fn message(&mut self, link: SlotId, message: ForeignMessage, whole: bool) -> Taken {
        self.told = true;
        match self.report.foreign_message(self.id(link), message, whole) {
            None => Taken::Later,
            Some(Placement::Into { slice, token }) => Taken::Into { slice, token },
            Some(Placement::Drop | Placement::Violation(_)) => Taken::Nothing,
            Some(Placement::Stage { .. }) => {
                unreachable!("the layer above turns staging into a place")
            }
        }
    }

    fn finished(&mut self, link: SlotId, end: ForeignEnd) {
        self.told = true;
        self.report.foreign_end(self.id(link), end);
    }

    fn landed(&mut self, link: SlotId, token: Token) {
        Above::landed(self, link, token);
    }

    fn ended(&mut self, token: Token, outcome: Result<(), Fault>) {
        Above::ended(self, token, outcome);
    }

    fn revoked(&mut self, link: SlotId, key: RemoteKey) {
        Above::revoked(self, link, key);
    }
}

/// Names of foreign endpoints are made by it.
static NAMES: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// From so many bytes on packets are long: 64 KiB are no more than sixteen of them.
const LONG_PACKET_BYTES: usize = 4096;

const CAPABILITIES: Capabilities = Capabilities {
    reliable: true,
    ordered: true,
    checksummed: true,
    native_read: true,
    native_write: true,
    frame_payload_bytes_max: EAGER_BYTES_LONG,
    // An announced message takes three packets more, each of which costs as much as some thousand bytes.
    eager_bytes: EAGER_BYTES_SHORT,
    preference: 40,
    same_host_only: false,
    foreign: false,
};

/// What the machines have in common, by the names that they have for it.
macro_rules! drives {
    ($machine:ident) => {
        fn send(&mut self, frame: &FrameOrder, memory: &dyn Bytes) -> Ordered {
            $machine::send(self, frame, memory)
        }

        fn order(&mut self, verb: &Verb, memory: &dyn Bytes) -> Ordered {
            $machine::order(self, verb, memory)
        }

        fn packet(&mut self, from: S, body: &[u8], now: Time, above: &mut Upwards<'_>) {
            $machine::packet(self, from, body, now, above);
        }

        fn drained(&mut self, now: Time, above: &mut Upwards<'_>) {
            $machine::drained(self, now, above);
        }

        fn report(&mut self, above: &mut Upwards<'_>) {
            $machine::report(self, above);
        }

        fn next(&mut self, now: Time, memory: &dyn Bytes, out: &mut [u8]) -> Option<(S, Leaving)> {
            $machine::next_apart(self, now, memory, out)
        }

        fn has_work(&self) -> bool {
            $machine::has_work(self)
        }

        fn owes(&self) -> bool {
            $machine::owes(self)
        }

        fn deadline(&self) -> Time {
            $machine::deadline(self)
        }
    };
}

/// What the machines count, by the names that people know it by: what both of them do, and then each its own.
macro_rules! lines {
    (
        $it:ident, messages: $messages_sent:ident, $messages_received:ident;
        $($name:literal: $field:ident,)*
    ) => {
        vec![
            ("packets.sent", $it.sent),
            ("packets.received", $it.received),
            ("bytes.sent", $it.bytes_sent),
            ("bytes.received", $it.bytes_received),
            ("messages.sent", $it.$messages_sent),
            ("messages.received", $it.$messages_received),
            ("bytes.large", $it.bytes_native),
            ("resent", $it.resent),
            ("asked_again", $it.asked_again),
            ("early", $it.early),
            ("doubled", $it.doubled),
            $(($name, $it.$field),)*
            ("dropped.wrong_length", $it.wrong_length),
            ("dropped.wrong_type", $it.wrong_type),
            ("dropped.wrong_endpoint", $it.wrong_endpoint),
            ("dropped.stranger", $it.strangers),
            ("dropped.no_room", $it.beyond),
        ]
    };
}

impl<S: Copy + Eq + Hash + std::fmt::Debug + Send> Language<S> for Machine<S> {
    fn held_up(&mut self, now: Time) {
        Machine::held_up(self, now);
    }

    fn capabilities(&self) -> Capabilities {
        // Where packets are long, those three are many beside the others.
        let is_long = self.packet_bytes() >= LONG_PACKET_BYTES;
        let eager_bytes = if is_long { EAGER_BYTES_LONG } else { EAGER_BYTES_SHORT };
        Capabilities { eager_bytes, ..CAPABILITIES }
    }

    fn connect(&mut self, to: S, endpoint: u8, query: &str, now: Time) -> Result<SlotId, Fault> {
        if !query.is_empty() {
            return Err(Fault::Invalid);
        }
        Machine::connect(self, to, endpoint, now)
    }

    fn connect_later(&mut self, nowhere: S, query: &str, now: Time) -> Result<SlotId, Fault> {
        if !query.is_empty() {
            return Err(Fault::Invalid);
        }
        Machine::connect_later(self, nowhere, LOOK_UP_FOR, now)
    }

    fn found(&mut self, link: SlotId, station: Option<(S, u8)>, now: Time) {
        Machine::found(self, link, station, now);
    }

    fn shorten(&mut self, link: SlotId, packet_bytes: usize) {
        Machine::shorten(self, link, packet_bytes);
    }

    drives!(Machine);

    fn station(&self, link: SlotId) -> Option<S> {
        Machine::station(self, link)
    }

    fn owed_since(&self, link: SlotId, _: Option<(u8, u64)>) -> Time {
        // Its peer acknowledges whatever its program does: who owes anything for long is gone.
        Machine::owed_since(self, link)
    }

    fn counted(&self) -> Counted {
        let it = self.counters();
        Counted {
            frames_sent: it.frames_sent,
            frames_received: it.frames_received,
            bytes_sent: it.bytes_sent,
            bytes_received: it.bytes_received,
            bytes_native: it.bytes_native,
            bytes_copied: it.bytes_copied,
            violations: it.violations,
            corrupt: it.corrupt + it.wrong_type + it.wrong_length,
            strangers: it.strangers + it.wrong_endpoint + it.refused,
        }
    }

    fn counts(&self) -> Vec<Count> {
        let it = self.counters();
        lines! {
            it, messages: frames_sent, frames_received;
            "violations": violations,
            "dropped.checksum": corrupt,
            "dropped.refused_call": refused,
        }
    }
}

impl<S: Copy + Eq + Hash + std::fmt::Debug + Send> Language<S> for Mxoe<S> {
    fn capabilities(&self) -> Capabilities {
        let frame_payload_bytes_max = self.medium_bytes_max().min(EAGER_BYTES_SHORT);
        Capabilities { native_write: false, foreign: true, frame_payload_bytes_max, ..CAPABILITIES }
    }

    fn connect(&mut self, to: S, endpoint: u8, query: &str, now: Time) -> Result<SlotId, Fault> {
        let key = match query.split_once('=') {
            Some(("key", key)) => crate::modules::number(key).ok_or(Fault::Invalid)?,
            None if query.is_empty() => self.key(),
            _ => return Err(Fault::Invalid),
        };
        Mxoe::connect(self, to, endpoint, key, now)
    }

    drives!(Mxoe);

    fn station(&self, link: SlotId) -> Option<S> {
        self.who(link).map(|who| who.station)
    }

    fn owed_since(&self, link: SlotId, message: Option<(u8, u64)>) -> Time {
        Mxoe::owed_since(self, link, message)
    }

    fn show_key(&mut self, link: SlotId, key: u32) -> Result<(), Fault> {
        Mxoe::show_key(self, link, key)
    }

    fn foreign(&self, link: SlotId) -> Option<(S, u8, u32)> {
        self.who(link).map(|who| (who.station, who.endpoint, who.session))
    }

    fn counted(&self) -> Counted {
        let it = self.counters();
        Counted {
            frames_sent: it.messages_sent,
            frames_received: it.messages_received,
            bytes_sent: it.bytes_sent,
            bytes_received: it.bytes_received,
            bytes_native: it.bytes_native,
            bytes_copied: it.bytes_copied,
            violations: 0,
            corrupt: it.malformed + it.misplaced + it.wrong_type + it.wrong_length,
            strangers: it.strangers + it.wrong_endpoint + it.wrong_session + it.unasked,
        }
    }

    fn counts(&self) -> Vec<Count> {
        let it = self.counters();
        lines! {
            it, messages: messages_sent, messages_received;
            "postponed": postponed,
            "half_open": half_open,
            "stuck": stuck,
            "nacks.sent": nacks_sent,
            "nacks.received": nacks_received,
            "throttled.regions": awaited_region,
            "throttled.pulls": awaited_share,
            "throttled.nacks": unanswered,
            "dropped.wrong_field": malformed,
            "dropped.wrong_place": misplaced,
            "dropped.wrong_session": wrong_session,
            "dropped.not_connected": unready,
            "dropped.unasked": unasked,
        }
    }
}
