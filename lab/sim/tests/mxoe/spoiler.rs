//! A function on the way that spoils packets behind the checks of their wire, and records the messages that each of
//! them can have spoiled.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use ropewalk_base::random::Random;
use ropewalk_wire::mxoe::*;

use crate::air::Meddler;

/// Bytes of a body that are the same in its frame without the Ethernet header: offsets here are those of captures.
const BODY: usize = ETHERNET_BYTES;

/// The damage to packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Harm {
    /// Any change of bits: in the header, in the payload, at the end.
    Any,
    /// Only changes that the receiver can recognise, or that mean nothing.
    Recognisable,
}

/// See the module. Its book is about messages by their numbers, which are their match bits here.
pub struct Spoiler {
    pub harm: Harm,
    /// Of a thousand packets so many are spoiled, by sender.
    pub rates: [u64; 2],
    pub spoiled: u64,
    /// Connects and their answers among them.
    pub connects: u64,
    random: Random,
    dialect: Dialect,
    last: [Vec<u8>; 2],
    books: [Book; 2],
}

/// The identifiers that one side has sent, and those that may belong to other messages by now.
#[derive(Default)]
struct Book {
    by_sequence: BTreeMap<u16, BTreeSet<u64>>,
    by_region: BTreeMap<(u8, u8), BTreeSet<u64>>,
    /// Regions of the other side, by the handle that they are pulled with.
    by_handle: BTreeMap<u32, BTreeSet<(u8, u8)>>,
    messages: BTreeSet<u64>,
    sequences: BTreeSet<u16>,
    regions: BTreeSet<(u8, u8)>,
    handles: BTreeSet<u32>,
}

impl Spoiler {
    /// It harms nothing as long as its rates are 0. The meddler is for the air between.
    pub fn new(random: Random, dialect: Dialect) -> (Rc<RefCell<Spoiler>>, Meddler) {
        let spoiler = Spoiler {
            harm: Harm::Any,
            rates: [0; 2],
            spoiled: 0,
            connects: 0,
            random,
            dialect,
            last: Default::default(),
            books: Default::default(),
        };
        let spoiler = Rc::new(RefCell::new(spoiler));
        let other = Rc::clone(&spoiler);
        (spoiler, Box::new(move |from, body| other.borrow_mut().meddle(from as usize, body)))
    }

    fn meddle(&mut self, from: usize, body: &mut Vec<u8>) {
        let before = body.clone();
        let parsed = Packet::parse(&before, self.dialect).ok();
        if let Some((_, packet)) = parsed {
            self.note(from, &packet);
        }
        if self.random.below(1000) < self.rates[from] {
            let header = parsed.map_or(before.len(), |(index, packet)| {
                packet.emit(index, self.dialect, &mut [0; HEADER_BYTES_MAX])
            });
            match self.harm {
                Harm::Any => self.spoil(from, header, body),
                Harm::Recognisable => self.spoil_recognisably(from, &before, header, body),
            }
            if *body != before {
                self.spoiled += 1;
                self.charge(from, &before, body);
            }
        }
        self.last[from] = before;
    }

    fn below(&mut self, limit: usize) -> usize {
        self.random.below(limit as u64) as usize
    }

    fn flip(&mut self, body: &mut [u8], begin: usize, end: usize) {
        let at = begin + self.below(end - begin);
        body[at] ^= 1 << self.random.below(8);
    }

    fn spoil(&mut self, from: usize, header: usize, body: &mut Vec<u8>) {
        match self.below(12) {
            0..6 => (0..=self.below(3)).for_each(|_| self.flip(body, 0, header)),
            6 | 7 => {
                // A field, or what is one in another layout.
                let len = 1 << self.below(3);
                let at = self.below(header / len) * len;
                let value = [0, u64::MAX, self.random.next_u64()][self.below(3)].to_le_bytes();
                let end = header.min(at + len);
                body[at..end].copy_from_slice(&value[..end - at]);
            }
            8 => {
                // Stale bytes of the sender's previous packet.
                let begin = self.below(header);
                let end = (begin + 1 + self.below(16)).min(header).min(self.last[from].len());
                if begin < end {
                    body[begin..end].copy_from_slice(&self.last[from][begin..end]);
                }
            }
            9 => body.truncate(self.below(body.len())),
            10 => (0..=self.below(60)).for_each(|_| body.push(self.random.next_u64() as u8)),
            _ => {
                let (begin, end) =
                    if header < body.len() { (header, body.len()) } else { (0, header) };
                self.flip(body, begin, end);
            }
        }
    }

    /// Spoils a field by which the receiver knows that the packet is not for it, or bytes that nobody reads.
    fn spoil_recognisably(
        &mut self,
        from: usize,
        before: &[u8],
        header: usize,
        body: &mut Vec<u8>,
    ) {
        let Some(kind) = Type::from_u8(before[INDEX_BYTES]) else { return };
        let (_, packet) = Packet::parse(before, self.dialect).expect("the sender's is a packet");
        match self.below(6) {
            // Also what fills a frame up means nothing: the cut has to go deeper.
            0 => {
                let payload = match packet {
                    Packet::Tiny(_, bytes)
                    | Packet::Small(_, bytes)
                    | Packet::Medium(_, bytes)
                    | Packet::PullReply(_, bytes) => bytes.len(),
                    _ => 0,
                };
                body.truncate(self.below(header + payload));
            }
            1 => (0..=self.below(60)).for_each(|_| body.push(self.random.next_u64() as u8)),
            // A type that there is not.
            2 => body[INDEX_BYTES] |= 0x40 << self.below(2),
            // The index counts for Open-MX only.
            3 if from == 1 => self.flip(body, 0, INDEX_BYTES),
            3 => body[..INDEX_BYTES].copy_from_slice(&[0x7f, 0x7f]),
            _ => {
                let guards = guards(kind, from == 1);
                if !guards.is_empty() {
                    let (begin, end) = guards[self.below(guards.len())];
                    self.flip(body, begin - BODY, end - BODY);
                }
            }
        }
    }

    /// A packet as it was sent.
    fn note(&mut self, from: usize, packet: &Packet<'_>) {
        let book = &mut self.books[from];
        let mut sent = |message: &Message| {
            let all = book.by_sequence.entry(message.sequence.0).or_default();
            all.insert(message.match_info);
        };
        match packet {
            Packet::Tiny(message, _) | Packet::Small(message, _) => sent(message),
            Packet::Medium(piece, _) => sent(&piece.message),
            Packet::Rendezvous(announced) => {
                sent(&announced.message);
                let region = named(from, announced.region, announced.region_sequence);
                let all = book.by_region.entry(region).or_default();
                all.insert(announced.message.match_info);
            }
            Packet::Pull(pull) => {
                let region = named(1 - from, pull.region as u8, pull.region_sequence);
                book.by_handle.entry(pull.handle).or_default().insert(region);
            }
            _ => {}
        }
    }

    /// A packet became another one: the statements of both may be wrong.
    fn charge(&mut self, from: usize, before: &[u8], after: &[u8]) {
        let [Ok((_, before)), Ok((_, after))] =
            [before, after].map(|body| Packet::parse(body, self.dialect))
        else {
            // It is as good as lost.
            return;
        };
        if before == after {
            return;
        }
        for packet in [before, after] {
            self.connects +=
                u64::from(matches!(packet, Packet::Connect(_) | Packet::ConnectReply(_)));
            let [ours, theirs] = &mut self.books;
            let (book, other) = if from == 0 { (ours, theirs) } else { (theirs, ours) };
            let mut sent = |message: &Message| {
                book.messages.insert(message.match_info);
                book.sequences.insert(message.sequence.0);
            };
            match packet {
                Packet::Tiny(message, _) | Packet::Small(message, _) => sent(&message),
                Packet::Medium(piece, _) => sent(&piece.message),
                Packet::Rendezvous(it) => {
                    sent(&it.message);
                    book.regions.insert(named(from, it.region, it.region_sequence));
                }
                Packet::Notify(it) => {
                    book.sequences.insert(it.sequence.0);
                    other.regions.insert(named(1 - from, it.region, it.region_sequence));
                }
                Packet::Pull(it) => {
                    book.handles.insert(it.handle);
                    other.regions.insert(named(1 - from, it.region as u8, it.region_sequence));
                }
                Packet::PullReply(it, _) => drop(other.handles.insert(it.handle)),
                _ => {}
            }
        }
    }

    /// The messages of one side that need not be what was sent.
    pub fn suspects(&self, from: usize) -> BTreeSet<u64> {
        let (book, other) = (&self.books[from], &self.books[1 - from]);
        let mut all = book.messages.clone();
        let numbered = book.sequences.iter().filter_map(|it| book.by_sequence.get(it));
        all.extend(numbered.flatten());
        let pulled = other.handles.iter().filter_map(|it| other.by_handle.get(it)).flatten();
        let regions = book.regions.iter().chain(pulled);
        all.extend(regions.filter_map(|it| book.by_region.get(it)).flatten());
        if self.connects > 0 {
            // Numbers may have begun anew at one side only, and regions been given up.
            let numbers = book.by_sequence.values().chain(book.by_region.values());
            all.extend(numbers.filter(|messages| messages.len() > 1).flatten());
        }
        all
    }
}

/// A region as its owner tells it from others: Open-MX does not look at the sequence of its use.
fn named(owner: usize, region: u8, sequence: u8) -> (u8, u8) {
    (region, if owner == 0 { sequence } else { 0 })
}

/// The places of the fields, in frames of a type, by which a receiver knows that a packet is for nobody. They are
/// counted as in captures. `to_us`: ours looks at more fields than Open-MX does.
fn guards(kind: Type, to_us: bool) -> &'static [(usize, usize)] {
    match kind {
        Type::Tiny | Type::Small | Type::Medium | Type::Rendezvous => &[(17, 18), (36, 40)],
        Type::Notify => &[(17, 18), (20, 24)],
        Type::Truc => &[(17, 18), (24, 28), (28, 29), (32, 36)],
        Type::Connect => &[(17, 18)],
        Type::Pull => &[(17, 18), (20, 24)],
        Type::PullReply if to_us => &[(18, 20), (20, 24), (28, 32)],
        // It does not look at the length, and not closely at the offset.
        Type::PullReply => &[(28, 32)],
        _ => &[],
    }
}
