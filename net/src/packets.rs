//! A rail made of a port, which carries packets, and a packet protocol, which makes links of them.
//!
//! Invariants: packets that a port shows are processed in place; packets are written into the port's slots and
//! stamped with the time at which they leave; timers are judged when the port had nothing more, so that no packet in
//! the port counts as lost, or after a time if the port always has more.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::health::Health;
use ropewalk_base::memory::BufferTable;
use ropewalk_base::payload::{Cipher, LinkKeys};
use ropewalk_base::random::Random;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{
    Capabilities, ForeignName, FrameOrder, LinkId, Ordered, PacketDrops, RailCounters, Verb,
};
use ropewalk_rail::foreign::ForeignRail;
use ropewalk_rail::interfaces::{Change, LocalWatch};
use ropewalk_rail::port::{Found, Port};
use ropewalk_rail::{Account, Rail, Report, Sight, is_consistent};
use ropewalk_transport::packets::{Machine, PacketConfig};
use ropewalk_transport::{PacketProtocol, Who};
use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};

use crate::engine::SharedClock;
use crate::mtu::MtuMonitor;
use crate::packet_events::{PacketEvents, Table};
use crate::suspects::Suspects;

/// Packets of one pass.
const PACKETS_PER_PASS: usize = 512;
/// Flushes of one pass: a link that has much to send leaves time for others, and for arriving packets.
const FLUSHES_PER_PASS: usize = 8;
/// The time after which timers are judged even if the port always has more packets. It is shorter than all time-outs
/// for loss. All packets that were queued at the first look have been processed by then.
const JUDGED_AFTER: Duration = Duration::from_millis(1);
/// When a port without room is tried again.
const FULL_FOR: Duration = Duration::from_micros(50);
/// Links of one rail.
const LINKS_MAX: usize = 16_000;
/// The number of times that a rail's clock is compared with the clock of its polls.
const COMPARED_MAX: u32 = 1000;
/// The time limit for the look-up of a name.
const LOOK_UP_FOR: Duration = Duration::from_secs(30);
/// A peer that owes an answer for so long is gone.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);
/// A rail over packets.
pub struct PacketRail<P: Port, L = Machine<<P as Port>::Station>> {
    index: u8,
    port: P,
    machine: L,
    /// A clock, and the offset that makes its time that of the polls.
    clock: SharedClock,
    ahead: u64,
    /// The number of such comparisons so far.
    compared: u32,
    /// The descriptors to sleep on: the port, and a bell for work that orders leave behind.
    epoll: OwnedFd,
    bell: OwnedFd,
    armed: bool,
    rung: bool,
    /// Links to names that are looked up, by their tickets.
    looked_up: Vec<(u64, SlotId)>,
    /// The port had no room, and when it is tried again.
    full_until: Option<Time>,
    full: u64,
    /// The time since which the port has had more each time, or at which timers were judged all the same.
    more_since: Option<Time>,
    links_up: u64,
    links_down: u64,
    mtu: MtuMonitor,
    /// Tells of changes of the interface, where there is one and the kernel tells.
    watch: LocalWatch,
    suspects: Suspects,
}

/// Our own packet protocol, for this port.
pub fn own_protocol<P: Port>(port: &P, random: Random) -> Machine<P::Station> {
    let config = PacketConfig {
        endpoint: port.endpoint(),
        packet_bytes: port.packet_bytes(),
        // The rest is for streams, and for unsolicited packets.
        pieces_max: (port.packets_max() / 2).max(1),
        accepts: !port.addresses().is_empty(),
        links_max: LINKS_MAX,
        give_up_after: GIVE_UP_AFTER,
    };
    Machine::new(config, random)
}

/// A number as people write keys: decimal, or hexadecimal with `0x`.
pub fn parse_key(text: &str) -> Option<u32> {
    match text.strip_prefix("0x") {
        Some(digits) => u32::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

impl<P: Port> PacketRail<P, Machine<P::Station>> {
    /// A rail over `port` that speaks our own packet protocol, as [`PacketRail::speaking`].
    pub fn new(port: P, random: Random, clock: SharedClock) -> std::io::Result<PacketRail<P>> {
        PacketRail::speaking(own_protocol(&port, random), port, clock)
    }
}

impl<P: Port, L: PacketProtocol<P::Station>> PacketRail<P, L> {
    /// A rail over `port` that speaks a protocol. The clock gives the time at which a packet leaves. It may begin with
    /// any value, but runs at the rate of the polls' clock. Fails if there is no descriptor.
    pub fn speaking(machine: L, mut port: P, clock: SharedClock) -> std::io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let bell = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        epoll::add(&epoll, &bell, EventData::new_u64(0), EventFlags::IN)?;
        port.attach(epoll.as_fd())?;
        // Where there is no news of it, it is asked.
        let watch = port.local_side().and_then(|side| LocalWatch::open(&side, epoll.as_fd()).ok());
        let watch = watch.unwrap_or_default();
        let mut mtu = match machine.fixed_packet_bytes() {
            Some(bytes) => MtuMonitor::fixed(bytes),
            None => MtuMonitor::flexible(port.packet_bytes()),
        };
        mtu.set_told(watch.is_open());
        Ok(PacketRail {
            index: 0,
            mtu,
            watch,
            suspects: Suspects::default(),
            port,
            machine,
            clock,
            ahead: 0,
            compared: 0,
            epoll,
            bell,
            armed: false,
            rung: false,
            looked_up: Vec::new(),
            full_until: None,
            full: 0,
            more_since: None,
            links_up: 0,
            links_down: 0,
        })
    }

    /// An order was taken, perhaps while somebody sleeps: if it leaves work for the next poll, it wakes the sleeper.
    fn ring(&mut self) {
        if self.armed && !self.rung && self.machine.has_work() {
            // A counter that is full is as good as rung.
            let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
            self.rung = true;
        }
    }

    /// Now, by the clock of the polls.
    fn time(&self) -> Time {
        Time((self.clock)().0.wrapping_add(self.ahead))
    }

    /// The clock of the polls said so a moment ago: of some such moments the shortest counts.
    #[inline]
    fn set_time(&mut self, now: Time) {
        if self.compared < COMPARED_MAX {
            let ahead = now.0.wrapping_sub((self.clock)().0);
            let nearer = ahead.wrapping_sub(self.ahead) < u64::MAX / 2;
            if self.compared == 0 || nearer {
                self.ahead = ahead;
            }
            self.compared += 1;
        }
    }

    /// Sends the waiting packets, as far as there is room.
    fn leave(&mut self, buffers: &BufferTable) {
        if !self.machine.has_work() && self.full_until.is_none() {
            return;
        }
        let now = self.time();
        for _ in 0..FLUSHES_PER_PASS {
            let mut any = self.full_until.is_some();
            while self.machine.has_work()
                && let Some(slot) = self.port.slot()
            {
                let Some((to, leaving)) = self.machine.next_apart(now, &Table(buffers), slot)
                else {
                    break;
                };
                match leaving.kept {
                    None => self.port.commit(to, leaving.written),
                    Some(_) => self.port.commit_around(to, leaving),
                }
                any = true;
            }
            if !any {
                break;
            }
            let all = self.port.flush();
            while let Some(place) = self.port.too_long() {
                self.end_too_long(place, now, buffers);
            }
            while let Some((station, number)) = self.port.refused() {
                self.suspects.refused(&self.machine, station, number);
            }
            self.full_until = (!all).then(|| now + FULL_FOR);
            if !all {
                self.full += 1;
                self.machine.held_up(now);
            }
            if !all || !self.machine.has_work() {
                break;
            }
        }
    }

    /// Asks the interface how it is, where there is news of it or nobody tells.
    #[inline]
    fn mind_interface(&mut self, news: Option<Change>, now: Time, report: &mut dyn Report) {
        if let Some(change) = news {
            if change.is_last {
                self.mtu.set_told(false);
            }
            self.suspects.changed(&change, &self.machine, &self.port);
        }
        if news.is_some() || self.mtu.is_due(now) {
            self.ask_width(now);
            self.end_stalled(now, report);
        }
    }

    /// Asks how long packets may be by now.
    #[cold]
    fn ask_width(&mut self, now: Time) {
        let bytes = self.port.packet_bytes_now();
        let renamed = self.watch.state().map(|state| state.name);
        let name = renamed.as_ref().map(|name| name.as_str()).or(self.port.interface_name());
        let name = (name, self.port.scheme());
        self.mtu.takes(bytes, name, now);
        match self.port.is_gone() {
            true => self.mtu.gone(name),
            false => self.mtu.set_down(self.port.is_down(), name),
        }
    }

    /// A packet for this place is longer than the interface takes: where nothing makes those of its link shorter, it
    /// ends.
    #[cold]
    fn end_too_long(&mut self, place: (P::Station, u8), now: Time, buffers: &BufferTable) {
        self.ask_width(now);
        let PacketRail { index, machine, mtu, .. } = self;
        let leads_there = |link: &SlotId| {
            let name = machine.foreign(*link);
            name.is_some_and(|who| (who.station, who.endpoint) == place)
        };
        let found: Vec<SlotId> = mtu.links().iter().copied().filter(leads_there).collect();
        for slot in found.into_iter().filter(|slot| mtu.end(*slot)) {
            let link = LinkId { rail: *index, slot };
            machine.order(&Verb::Close { link }, &Table(buffers));
        }
    }

    /// Gives up reads of which nothing comes, as the interface takes no packet of the usual length.
    fn end_stalled(&mut self, now: Time, report: &mut dyn Report) {
        while let Some((slot, token)) = self.mtu.next_stalled(now) {
            let link = LinkId { rail: self.index, slot };
            let stop = Verb::CancelAccess { link, token };
            if self.machine.order(&stop, &Table(report.buffers())) == Ordered::Released {
                report.failed(token, Fault::Unreachable);
            }
        }
    }

    /// Passes on the machine's reports.
    fn tell(&mut self, report: &mut dyn Report) {
        let PacketRail { index, machine, links_up, links_down, mtu, .. } = self;
        let (index, told) = (*index, false);
        machine.report(&mut PacketEvents { index, report, links_up, links_down, mtu, told });
        if !self.suspects.is_empty() {
            self.suspects.tell(&self.machine, index, report);
        }
    }

    /// Names were looked up.
    #[cold]
    fn take_found(&mut self, now: Time) {
        while let Some(Found { ticket, place }) = self.port.found() {
            let index = self.looked_up.iter().position(|(other, _)| *other == ticket);
            if let Some((_, link)) = index.map(|index| self.looked_up.swap_remove(index)) {
                self.machine.found(link, place, now);
                if let Some((station, _)) = place {
                    self.machine.shorten(link, self.port.packet_bytes_to(station));
                }
            }
        }
    }

    /// Whether an order concerns a link of this rail.
    fn is_mine(&self, link: LinkId) -> bool {
        link.rail == self.index
    }
}

impl<P: Port, L: PacketProtocol<P::Station>> Rail for PacketRail<P, L> {
    fn scheme(&self) -> &'static str {
        self.port.scheme()
    }

    fn attach(&mut self, index: u8) {
        self.index = index;
    }

    fn capabilities(&self) -> Capabilities {
        self.machine.capabilities()
    }

    fn addresses(&self) -> Vec<String> {
        self.port.addresses()
    }

    fn bound_to(&self) -> Option<String> {
        self.port.bound_to()
    }

    fn entropy(&self) -> u16 {
        self.port.entropy()
    }

    fn connect(&mut self, address: &str, now: Time) -> Result<LinkId, Fault> {
        self.set_time(now);
        let (address, query) = address.split_once('?').unwrap_or((address, ""));
        let key = match query.split_once('=') {
            Some(("key", key)) => Some(parse_key(key).ok_or(Fault::Invalid)?),
            None if query.is_empty() => None,
            _ => return Err(Fault::Invalid),
        };
        let slot = match self.port.resolve(address) {
            Ok((station, endpoint)) => {
                let slot = self.machine.connect(station, endpoint, key, now)?;
                self.machine.shorten(slot, self.port.packet_bytes_to(station));
                slot
            }
            Err(Fault::Invalid) => {
                if key.is_some() {
                    return Err(Fault::Invalid);
                }
                let (ticket, nowhere) = self.port.look_up(address)?;
                let slot = self.machine.connect_later(nowhere, LOOK_UP_FOR, now)?;
                self.looked_up.push((ticket, slot));
                slot
            }
            Err(fault) => return Err(fault),
        };
        self.ring();
        Ok(LinkId { rail: self.index, slot })
    }

    fn send(&mut self, frame: &FrameOrder, buffers: &BufferTable) -> Ordered {
        let outcome = self.send_followed(frame, buffers);
        self.leave(buffers);
        self.ring();
        outcome
    }

    fn send_followed(&mut self, frame: &FrameOrder, buffers: &BufferTable) -> Ordered {
        if !is_consistent(frame.header.as_bytes(), frame.payload.len) {
            return Ordered::Refused(Fault::Invalid);
        }
        if !self.is_mine(frame.link) {
            return Ordered::Refused(Fault::PeerReset);
        }
        if self.mtu.is_ending(frame.link.slot) {
            return Ordered::Refused(Fault::Unreachable);
        }
        // A sleeper on the rail does not know of deadlines that were set after it fell asleep.
        let urgency = if self.armed { frame.urgency.at_once() } else { frame.urgency };
        self.machine.send(&FrameOrder { urgency, ..*frame }, &Table(buffers))
    }

    fn push(&mut self, report: &mut dyn Report) -> bool {
        let any = self.machine.has_work();
        self.leave(report.buffers());
        self.ring();
        self.tell(report);
        any
    }

    fn order(&mut self, verb: &Verb, buffers: &BufferTable) -> Ordered {
        let outcome = self.order_followed(verb, buffers);
        self.leave(buffers);
        self.ring();
        outcome
    }

    fn order_followed(&mut self, verb: &Verb, buffers: &BufferTable) -> Ordered {
        let answer = self.machine.order(verb, &Table(buffers));
        match (verb, answer) {
            (Verb::Read { link, token, .. }, Ordered::Pending) => {
                self.mtu.read(link.slot, *token);
            }
            // It is over, and nobody says how.
            (Verb::CancelAccess { token, .. }, Ordered::Released) => {
                let _ = self.mtu.ended(*token, Ok(()));
            }
            _ => {}
        }
        answer
    }

    fn poll(&mut self, now: Time, report: &mut dyn Report) -> bool {
        self.set_time(now);
        if !self.looked_up.is_empty() {
            self.take_found(now);
        }
        let news = self.watch.poll(now);
        self.mind_interface(news, now, report);
        let PacketRail { index, port, machine, links_up, links_down, mtu, .. } = self;
        let mut events =
            PacketEvents { index: *index, report, links_up, links_down, mtu, told: false };
        // A short pass has the time of the last whole one, which may be before the packet left that is answered now.
        let mut now = now;
        let mut first = true;
        let received = port.receive(PACKETS_PER_PASS, &mut |from, body| {
            if std::mem::take(&mut first) {
                now = now.max(Time((self.clock)().0.wrapping_add(self.ahead)));
            }
            machine.packet(from, body, now, &mut events);
        });
        let more_since = *self.more_since.get_or_insert(now);
        let overdue = now.since(more_since) >= JUDGED_AFTER;
        if received.empty || overdue {
            self.more_since = (!received.empty).then_some(now);
            machine.drained(now, &mut events);
        }
        // A report counts as work, even if nothing is left to be sent.
        let worked = events.told || machine.has_work();
        self.leave(report.buffers());
        let worked = worked || !self.suspects.is_empty();
        self.tell(report);
        if received.packets > 0 {
            self.watch.note_awake();
            return true;
        }
        let news = self.watch.poll_woken(now, false);
        if news.is_some() {
            self.mind_interface(news, now, report);
            self.tell(report);
        }
        news.is_some() || worked
    }

    fn look(&self) -> Sight {
        if self.machine.has_work() { Sight::Work } else { self.port.look() }
    }

    fn arm(&mut self) -> bool {
        let busy = self.machine.has_work() && self.full_until.is_none();
        let is_told = !busy && self.watch.arm();
        self.armed = is_told && self.port.arm();
        self.armed
    }

    fn disarm(&mut self) {
        self.watch.disarm(!self.armed);
        self.disarm_quiet();
    }

    fn disarm_quiet(&mut self) {
        self.armed = false;
        self.watch.disarm(true);
        if std::mem::take(&mut self.rung) {
            // Nobody else reads it.
            let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        }
        self.port.disarm();
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.epoll.as_fd())
    }

    fn owes(&self) -> bool {
        self.machine.owes()
    }

    fn deadline(&self) -> Option<Time> {
        let due = self.machine.deadline().min(self.mtu.deadline());
        let due = self.full_until.map_or(due, |until| due.min(until));
        (due < Time::NEVER).then_some(due)
    }

    fn counters(&self) -> RailCounters {
        let (machine, port) = (self.machine.counted(), self.port.counters());
        RailCounters {
            frames_sent: machine.frames_sent,
            frames_received: machine.frames_received,
            bytes_sent: machine.bytes_sent,
            bytes_received: machine.bytes_received,
            bytes_staged: 0,
            bytes_copied: machine.bytes_copied + port.bytes_copied,
            bytes_native: machine.bytes_native,
            system_calls: port.system_calls + self.watch.looks(),
            links_up: self.links_up,
            links_down: self.links_down,
            violations: machine.violations,
            doorbells: 0,
            drops: PacketDrops {
                corrupt: machine.corrupt,
                strangers: machine.strangers + port.drops.strangers,
                ..port.drops
            },
        }
    }

    fn account(&self) -> Option<Account> {
        let port = self.port.counters();
        let mut counts = self.machine.counted().by_name();
        counts.extend(self.suspects.counts());
        counts.extend([
            ("links.up", self.links_up),
            ("links.down", self.links_down),
            ("throttled.socket", self.full),
            ("dropped.inbox_full", port.drops.inbox_full),
            ("dropped.unsent", port.drops.unsent),
        ]);
        let socket = vec![
            ("dropped.ring_full", port.drops.no_room),
            ("dropped.no_endpoint", port.drops.strangers),
            ("dropped.wrong_length", port.drops.malformed),
            ("dropped.wrong_type", port.drops.wrong_type),
        ];
        let (scheme, interface) = (self.port.scheme(), self.port.interface());
        Some(Account { scheme, interface, endpoint: self.port.endpoint(), counts, socket })
    }

    fn protects(&self) -> Option<Cipher> {
        self.machine.protects()
    }

    fn seal(&mut self, link: LinkId, keys: &LinkKeys, buffers: &BufferTable) {
        if self.is_mine(link) {
            self.machine.seal(link.slot, keys, &Table(buffers));
        }
    }

    fn abandon(&mut self, link: LinkId) -> bool {
        let ended = self.is_mine(link) && self.machine.abandon(link.slot);
        self.ring();
        ended
    }

    fn health(&mut self, link: LinkId, _: Time) -> Option<Health> {
        if self.is_mine(link) { self.machine.health(link.slot) } else { None }
    }

    fn foreign(&mut self) -> Option<&mut dyn ForeignRail> {
        Some(self)
    }

    fn peer_host(&self, link: LinkId) -> Option<String> {
        self.port.host(self.machine.station(link.slot)?)
    }
}

impl<P: Port, L: PacketProtocol<P::Station>> ForeignRail for PacketRail<P, L> {
    fn name(&self, link: LinkId) -> Option<ForeignName> {
        let Who { station, endpoint, session } = self.machine.foreign(link.slot)?;
        Some(ForeignName { station: self.port.host(station)?, endpoint, session })
    }

    fn show_key(&mut self, link: LinkId, key: u32) -> Result<(), Fault> {
        self.machine.show_key(link.slot, key)?;
        self.ring();
        Ok(())
    }

    fn owed_since(&self, link: LinkId, message: Option<(u8, u64)>) -> Time {
        self.machine.owed_since(link.slot, message)
    }
}
