//! A network of packets in memory, with faults, and the ports on it.
//!
//! Time is virtual, and everything that happens follows from the seed and the calls.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_rail::port::{Port, PortCounters, Received};
use ropewalk_rail_sim::Trace;

/// The scheme of its addresses: `wire://NAME`.
pub const SCHEME: &str = "wire";
const PACKETS_MAX: u32 = 256;
/// Packets that nobody looks at, beyond which a port loses them.
const INBOX_MAX: usize = 1024;
/// Packets wait for a slow way for so long at most; beyond that they are lost.
const QUEUE_MAX: Duration = Duration::from_millis(20);

/// One direction between two ports. Chances are in parts per million of packets.
#[derive(Debug, Clone, Copy)]
pub struct Way {
    pub latency: Duration,
    pub bytes_per_second: u64,
    pub loss: u32,
    pub duplication: u32,
    /// Packets that come up to so much later.
    pub reordering: u32,
    pub reordering_delay: Duration,
    /// Packets with one flipped bit.
    pub corruption: u32,
    pub blocked: bool,
    /// Longer packets are lost.
    pub packet_bytes_max: usize,
}

impl Default for Way {
    fn default() -> Way {
        Way {
            latency: Duration::from_micros(40),
            bytes_per_second: 1_000_000_000,
            loss: 0,
            duplication: 0,
            reordering: 0,
            reordering_delay: Duration::from_micros(500),
            corruption: 0,
            blocked: false,
            packet_bytes_max: usize::MAX,
        }
    }
}

/// Packets that something befell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Befallen {
    pub lost: u64,
    pub doubled: u64,
    pub delayed: u64,
    pub spoiled: u64,
    /// Lost since they were longer than their way allows.
    pub too_long: u64,
    /// Lost on a way that was cut. The cut is the fault, and these are none of their own.
    pub cut_off: u64,
    /// Lost in a full queue, or at a process that is gone.
    pub overrun: u64,
}

impl Befallen {
    /// Packets each of which was chosen by a fault of its own.
    pub fn sum(&self) -> u64 {
        self.lost + self.doubled + self.delayed + self.spoiled + self.too_long
    }
}

#[derive(Debug, Default)]
struct Place {
    /// Whose port it is: that of an earlier life is powerless.
    life: u64,
    alive: bool,
    inbox: VecDeque<(u32, Vec<u8>)>,
}

#[derive(Debug)]
struct Inner {
    now: Time,
    random: Random,
    trace: Trace,
    names: BTreeMap<String, u32>,
    places: Vec<Place>,
    ways: BTreeMap<(u32, u32), Way>,
    /// Until when a direction is busy.
    busy: BTreeMap<(u32, u32), Time>,
    /// By the time of arrival: destination, source, packet.
    flying: BTreeMap<(Time, u64), (u32, u32, Vec<u8>)>,
    flown: u64,
    befallen: Befallen,
}

/// The network; cloning gives another handle.
#[derive(Debug, Clone)]
pub struct Wire(Arc<Mutex<Inner>>);

impl Wire {
    pub fn new(seed: u64) -> Wire {
        Wire(Arc::new(Mutex::new(Inner {
            now: Time::ZERO,
            random: Random::from_seed(seed),
            trace: Trace::new(),
            names: BTreeMap::new(),
            places: Vec::new(),
            ways: BTreeMap::new(),
            busy: BTreeMap::new(),
            flying: BTreeMap::new(),
            flown: 0,
            befallen: Befallen::default(),
        })))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A port for a new process under this name.
    pub fn port(&self, name: &str, packet_bytes: usize) -> WirePort {
        let mut inner = self.inner();
        let place = inner.place(name);
        let state = &mut inner.places[place as usize];
        state.life += 1;
        state.alive = true;
        let life = state.life;
        drop(inner);
        let name = name.to_string();
        WirePort { wire: self.clone(), place, life, name, slot: vec![0; packet_bytes] }
    }

    /// The process behind a name is gone.
    pub fn kill(&self, name: &str) {
        let mut inner = self.inner();
        let place = inner.place(name) as usize;
        inner.places[place].alive = false;
        inner.places[place].inbox.clear();
    }

    /// Changes one direction.
    pub fn change(&self, from: &str, to: &str, change: impl FnOnce(&mut Way)) {
        let mut inner = self.inner();
        let ends = (inner.place(from), inner.place(to));
        change(inner.ways.entry(ends).or_default());
    }

    pub fn set_now(&self, now: Time) {
        let mut inner = self.inner();
        inner.now = now;
        while let Some(entry) = inner.flying.first_entry() {
            if entry.key().0 > now {
                break;
            }
            let ((time, _), (to, from, packet)) = entry.remove_entry();
            inner.trace.mix(time.0);
            inner.trace.mix(u64::from(to));
            let place = &mut inner.places[to as usize];
            match place.alive && place.inbox.len() < INBOX_MAX {
                true => place.inbox.push_back((from, packet)),
                false => inner.befallen.overrun += 1,
            }
        }
    }

    pub fn next_event(&self) -> Option<Time> {
        self.inner().flying.keys().next().map(|(time, _)| *time)
    }

    pub fn trace_hash(&self) -> u64 {
        self.inner().trace.value()
    }

    pub fn befallen(&self) -> Befallen {
        self.inner().befallen
    }
}

impl Inner {
    fn place(&mut self, name: &str) -> u32 {
        if let Some(place) = self.names.get(name) {
            return *place;
        }
        let place = self.places.len() as u32;
        self.places.push(Place::default());
        self.names.insert(name.to_string(), place);
        place
    }

    fn send(&mut self, from: u32, to: u32, mut packet: Vec<u8>) {
        let way = self.ways.get(&(from, to)).copied().unwrap_or_default();
        self.trace.mix_bytes(&packet);
        let fate = match () {
            () if way.blocked => Some(&mut self.befallen.cut_off),
            () if self.random.chance(way.loss) => Some(&mut self.befallen.lost),
            () if packet.len() > way.packet_bytes_max => Some(&mut self.befallen.too_long),
            () => None,
        };
        if let Some(count) = fate {
            *count += 1;
            return;
        }
        let busy = self.busy.entry((from, to)).or_default();
        let begin = self.now.max(*busy);
        if begin.since(self.now) > QUEUE_MAX {
            self.befallen.overrun += 1;
            return;
        }
        let nanos = packet.len() as u64 * 1_000_000_000 / way.bytes_per_second;
        *busy = begin + Duration::from_nanos(nanos);
        let mut at = *busy + way.latency;
        if self.random.chance(way.corruption) {
            self.befallen.spoiled += 1;
            let bit = self.random.below(packet.len() as u64 * 8) as usize;
            packet[bit / 8] ^= 1 << (bit % 8);
        }
        let late = way.reordering_delay.as_nanos() as u64 + 1;
        if self.random.chance(way.duplication) {
            self.befallen.doubled += 1;
            let again = at + Duration::from_nanos(self.random.below(late));
            self.fly(again, to, from, packet.clone());
        }
        if self.random.chance(way.reordering) {
            self.befallen.delayed += 1;
            at = at + Duration::from_nanos(self.random.below(late));
        }
        self.fly(at, to, from, packet);
    }

    fn fly(&mut self, at: Time, to: u32, from: u32, packet: Vec<u8>) {
        self.flown += 1;
        self.flying.insert((at, self.flown), (to, from, packet));
    }
}

/// A port on the network.
#[derive(Debug)]
pub struct WirePort {
    wire: Wire,
    place: u32,
    life: u64,
    name: String,
    slot: Vec<u8>,
}

impl Port for WirePort {
    type Station = u32;

    fn scheme(&self) -> &'static str {
        SCHEME
    }

    fn endpoint(&self) -> u8 {
        1
    }

    fn packet_bytes(&self) -> usize {
        self.slot.len()
    }

    fn packets_max(&self) -> u32 {
        PACKETS_MAX
    }

    fn addresses(&self) -> Vec<String> {
        vec![self.name.clone()]
    }

    fn resolve(&mut self, address: &str) -> Result<(u32, u8), Fault> {
        Ok((self.wire.inner().place(address), 1))
    }

    fn host(&self, station: u32) -> Option<String> {
        let inner = self.wire.inner();
        inner.names.iter().find(|(_, place)| **place == station).map(|(name, _)| name.clone())
    }

    fn receive(&mut self, max: usize, to: &mut dyn FnMut(u32, &[u8])) -> Received {
        let mut shown = Vec::new();
        let mut inner = self.wire.inner();
        let place = &mut inner.places[self.place as usize];
        if place.life == self.life {
            let count = max.min(place.inbox.len());
            shown.extend(place.inbox.drain(..count));
        }
        let empty = place.inbox.is_empty();
        drop(inner);
        shown.iter().for_each(|(from, packet)| to(*from, packet));
        Received { packets: shown.len(), empty }
    }

    fn slot(&mut self) -> Option<&mut [u8]> {
        Some(&mut self.slot)
    }

    fn commit(&mut self, to: u32, bytes: usize) {
        let mut inner = self.wire.inner();
        let place = &inner.places[self.place as usize];
        if place.life == self.life && place.alive {
            inner.send(self.place, to, self.slot[..bytes].to_vec());
        }
    }

    fn flush(&mut self) -> bool {
        true
    }

    fn attach(&mut self, _: BorrowedFd<'_>) -> std::io::Result<()> {
        Ok(())
    }

    fn counters(&self) -> PortCounters {
        PortCounters::default()
    }
}
