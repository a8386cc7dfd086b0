//! A network that loses, doubles, delays and corrupts packets, and memory that slices name.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::memory::{BufferId, Slice};
use ropewalk_base::random::Random;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_transport::Bytes;

/// Of the network, in parts of a thousand where nothing else is said.
#[derive(Debug, Clone, Copy)]
pub struct Weather {
    pub loss: u64,
    pub doubling: u64,
    pub corruption: u64,
    /// Microseconds that a packet may be late.
    pub lateness: u64,
    /// Microseconds by which every second packet is later than the others, as over the two cards of a bond.
    pub apart: u64,
    /// Microseconds that the wire takes for a packet; the next one waits for so long.
    pub spacing: u64,
    /// Packets that some others overtake, at most by [`HELD_FOR`]. One of each sender at a time.
    pub held: u64,
    /// Longer packets do not get through.
    pub longest: usize,
}

impl Weather {
    pub const FAIR: Weather = Weather {
        loss: 0,
        doubling: 0,
        corruption: 0,
        lateness: 0,
        apart: 0,
        spacing: 0,
        held: 0,
        longest: usize::MAX,
    };
}

/// A function on the way that may change packets of a sender; it chooses the packets and the changes itself.
pub type Meddler = Box<dyn FnMut(u32, &mut Vec<u8>)>;

/// The minimum latency of a packet.
const LATENCY: Duration = Duration::from_micros(15);
/// The longest time for which a packet is held so that others overtake it, and the chance that it goes on behind the
/// next one, in parts of a thousand.
const HELD_FOR: Duration = Duration::from_micros(150);
const GOES_ON: u64 = 300;
/// Packets on their way.
pub struct Air {
    pub weather: Weather,
    pub meddler: Option<Meddler>,
    random: Random,
    /// By time and number, to whom and from whom.
    packets: BTreeMap<(Time, u64), (u32, u32, Vec<u8>)>,
    count: u64,
    /// By sender: until when the wire is busy, and the packet that is held.
    busy: BTreeMap<u32, Time>,
    held: BTreeMap<u32, (Time, u64)>,
}

impl Air {
    pub fn new(seed: u64) -> Air {
        let random = Random::from_seed(seed);
        Air {
            weather: Weather::FAIR,
            meddler: None,
            random,
            packets: BTreeMap::new(),
            count: 0,
            busy: BTreeMap::new(),
            held: BTreeMap::new(),
        }
    }

    /// When the next packet is there.
    pub fn due(&self) -> Time {
        self.packets.keys().next().map_or(Time::NEVER, |(at, _)| *at)
    }

    /// A packet that is there now: to whom and from whom.
    pub fn next(&mut self, now: Time) -> Option<(u32, u32, Vec<u8>)> {
        let entry = self.packets.first_entry().filter(|entry| entry.key().0 <= now)?;
        Some(entry.remove())
    }

    fn chance(&mut self, thousandths: u64) -> bool {
        self.random.below(1000) < thousandths
    }

    pub fn fly(&mut self, from: u32, to: u32, bytes: Vec<u8>, now: Time) {
        if self.chance(self.weather.loss) || bytes.len() > self.weather.longest {
            return;
        }
        let copies = if self.chance(self.weather.doubling) { 2 } else { 1 };
        for _ in 0..copies {
            let mut bytes = bytes.clone();
            if self.chance(self.weather.corruption) {
                let at = self.random.below(bytes.len() as u64) as usize;
                bytes[at] ^= 1 << self.random.below(8);
            }
            if self.chance(self.weather.corruption / 2) {
                bytes.truncate(self.random.below(bytes.len() as u64) as usize);
            }
            if let Some(meddler) = &mut self.meddler {
                meddler(from, &mut bytes);
            }
            let late = Duration::from_micros(self.random.below(self.weather.lateness + 1));
            let late = late + Duration::from_micros(self.weather.apart * (self.count % 2));
            self.count += 1;
            let wire = self.busy.entry(from).or_insert(now);
            *wire = (*wire).max(now) + Duration::from_micros(self.weather.spacing);
            let at = *wire + LATENCY + late;
            if self.weather.held > 0 && self.hold(from, to, &bytes, at) {
                continue;
            }
            self.packets.insert((at, self.count), (to, from, bytes));
        }
    }

    /// Whether a packet that would be there then is held for others; one that was may go on behind it.
    fn hold(&mut self, from: u32, to: u32, bytes: &[u8], at: Time) -> bool {
        let before = self.held.get(&from).copied().filter(|key| self.packets.contains_key(key));
        if let Some(key) = before {
            if self.chance(GOES_ON)
                && let Some(packet) = self.packets.remove(&key)
            {
                self.held.remove(&from);
                self.packets.insert((at + Duration::from_nanos(1), key.1), packet);
            }
            return false;
        }
        let holds = self.chance(self.weather.held);
        if holds {
            let key = (at + HELD_FOR, self.count);
            self.held.insert(from, key);
            self.packets.insert(key, (to, from, bytes.to_vec()));
        }
        holds
    }
}

/// The byte at each offset of memory that belongs to a message or region of this number.
pub fn pattern(id: u64, at: u64) -> u8 {
    (id.wrapping_mul(37) + at * 11 + at / 251) as u8
}

/// Memory by the index of its buffer.
#[derive(Debug, Clone, Default)]
pub struct Store(Rc<RefCell<Vec<Vec<u8>>>>);

impl Store {
    pub fn add(&self, bytes: Vec<u8>) -> Slice {
        let mut buffers = self.0.borrow_mut();
        let buffer = BufferId(SlotId { index: buffers.len() as u32, generation: 1 });
        let len = bytes.len() as u64;
        buffers.push(bytes);
        Slice { buffer, offset: 0, len }
    }

    pub fn patterned(&self, id: u64, len: u64) -> Slice {
        self.add((0..len).map(|at| pattern(id, at)).collect())
    }

    pub fn bytes(&self, slice: Slice) -> Vec<u8> {
        let mut bytes = vec![0; slice.len as usize];
        self.read(slice, &mut bytes);
        bytes
    }

    /// Nobody may read or write it any more.
    pub fn poison(&self, slice: Slice) {
        self.write(slice, &vec![0xEE; slice.len as usize]);
    }
}

impl Bytes for Store {
    fn read(&self, from: Slice, to: &mut [u8]) {
        if to.is_empty() {
            return;
        }
        let buffers = self.0.borrow();
        let begin = from.offset as usize;
        to.copy_from_slice(&buffers[from.buffer.0.index as usize][begin..begin + to.len()]);
    }

    fn write(&self, to: Slice, from: &[u8]) {
        if from.is_empty() {
            return;
        }
        let mut buffers = self.0.borrow_mut();
        let begin = to.offset as usize;
        assert!(from.len() as u64 <= to.len, "more than the slice has");
        buffers[to.buffer.0.index as usize][begin..begin + from.len()].copy_from_slice(from);
    }
}

/// A trace that has taken one more packet in. Not by its CRC: packets end with theirs, so that one is the
/// same for all.
pub fn traced(trace: u64, packet: &[u8]) -> u64 {
    packet
        .iter()
        .fold(trace, |trace, byte| (trace ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}
