//! The upper half of the suite: answers a rail's questions and holds it to its promises.
//!
//! Invariants: every broken promise of [`Report`] panics at the moment it is broken, with the event
//! that broke it; memory whose outcome was reported is overwritten before it is freed, so that a
//! rail that still sends from it is found out at the receiver.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use ropewalk_base::error::Fault;
use ropewalk_base::health::Suspicion;
use ropewalk_base::memory::{BufferId, BufferTable, Memory, Slice};
use ropewalk_base::pool::Pool;
use ropewalk_base::verb::{LinkId, Ordered, Placement, RemoteKey, Token};

use crate::Report;

/// The byte that overwrites memory which nobody may use any more.
const POISON: u8 = 0xEE;
/// Tokens of placements, told apart from those of orders.
const PLACEMENT_TOKENS: u64 = 1 << 62;

/// An event that a rail reported; the recorder keeps them in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// `link_up`.
    Up { link: LinkId, accepted: bool },
    /// `link_down`.
    Down { link: LinkId, fault: Fault },
    /// `place`, with the whole header.
    Placed { link: LinkId, header: Vec<u8>, payload_bytes: u32 },
    /// `received`, with the header of the frame and the bytes that arrived.
    Received { link: LinkId, header: Vec<u8>, payload: Vec<u8> },
    /// `done`.
    Done { token: Token },
    /// `failed`.
    Failed { token: Token, fault: Fault },
    /// `suspect`.
    Suspect { link: LinkId, cause: Suspicion },
    /// `revoked`.
    Revoked { link: LinkId, key: RemoteKey },
}

/// The recorder's answer to `place`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// Into one buffer of the payload's length.
    Whole,
    /// Into a slice of this many bytes in the middle of a larger buffer.
    Short(u64),
    /// Into segments of these lengths; at least as many bytes as the payload has.
    Scattered(Vec<usize>),
    /// Nowhere.
    Drop,
    /// A breach of the protocol.
    Violation,
}

#[derive(Debug)]
struct PendingOrder {
    link: LinkId,
    buffer: Option<BufferId>,
}

#[derive(Debug)]
struct PendingPlacement {
    link: LinkId,
    header: Vec<u8>,
    slice: Slice,
}

/// Implements [`Report`]: records, answers, checks.
#[derive(Debug)]
pub struct Recorder {
    /// The memories of this side.
    pub buffers: BufferTable,
    /// Everything that was reported.
    pub events: Vec<Event>,
    /// Answers for the next placements; `Answer::Whole` when it is empty.
    pub script: VecDeque<Answer>,
    pool: Pool,
    orders: BTreeMap<u64, PendingOrder>,
    placements: BTreeMap<u64, PendingPlacement>,
    up: BTreeSet<LinkId>,
    down: BTreeSet<LinkId>,
    /// Places that were given up, or open when their link went down; kept to see that nothing lands late.
    abandoned: Vec<Slice>,
    next_token: u64,
}

impl Default for Recorder {
    fn default() -> Recorder {
        Recorder {
            buffers: BufferTable::with_limit(1 << 20),
            events: Vec::new(),
            script: VecDeque::new(),
            pool: Pool::with_budget(1 << 30),
            orders: BTreeMap::new(),
            placements: BTreeMap::new(),
            up: BTreeSet::new(),
            down: BTreeSet::new(),
            abandoned: Vec::new(),
            next_token: 1,
        }
    }
}

impl Recorder {
    /// A memory of segments of these lengths, filled from `bytes` (or zero where it ends).
    pub fn memory(&mut self, segments: &[usize], bytes: &[u8]) -> BufferId {
        let mut left = bytes;
        let mut pieces = Vec::with_capacity(segments.len());
        for &length in segments {
            let mut piece = self.pool.take(length).expect("the pool of the suite is large enough");
            let (now, later) = left.split_at(length.min(left.len()));
            piece[..now.len()].copy_from_slice(now);
            piece[now.len()..].fill(0);
            left = later;
            pieces.push(piece);
        }
        self.buffers.insert(Memory::many(pieces)).expect("the table of the suite is large enough")
    }

    /// The bytes of a slice.
    pub fn bytes(&self, slice: Slice) -> Vec<u8> {
        let mut bytes = vec![0; slice.len as usize];
        let count = self.buffers.read(slice, &mut bytes);
        assert_eq!(count, bytes.len(), "a slice of the suite lies inside its memory");
        bytes
    }

    /// A token that was never used before.
    pub fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    /// Takes note of an order's first outcome; `buffer` is overwritten and freed at the last one.
    pub fn ordered(
        &mut self,
        link: LinkId,
        token: Token,
        buffer: Option<BufferId>,
        outcome: Ordered,
    ) {
        match outcome {
            Ordered::Pending => {
                let earlier = self.orders.insert(token.0, PendingOrder { link, buffer });
                assert!(earlier.is_none(), "the suite uses a token once");
            }
            Ordered::Released | Ordered::Refused(_) => self.release(buffer),
        }
    }

    /// Takes note that a rail let go of an order's memory, which is overwritten and freed at once; the
    /// outcome comes under `later`, or not at all where that is none.
    pub fn let_go(&mut self, token: Token, later: Option<Token>) {
        let order = self.orders.remove(&token.0).expect("an order of the suite is let go of once");
        self.release(order.buffer);
        if let Some(later) = later {
            self.orders.insert(later.0, PendingOrder { link: order.link, buffer: None });
        }
    }

    /// Takes note that a rail gave a placement up. Its memory is overwritten and watched from now on.
    pub fn unplaced(&mut self, token: Token) {
        let placement =
            self.placements.remove(&token.0).expect("an open placement is given up once");
        self.poison(placement.slice.buffer);
        self.abandoned.push(placement.slice);
    }

    /// Overwrites a memory that nobody may write any more, and watches it from now on.
    pub fn abandon(&mut self, slice: Slice) {
        self.poison(slice.buffer);
        self.abandoned.push(slice);
    }

    /// The tokens of orders on the link without an outcome so far.
    pub fn pending_on(&self, link: LinkId) -> Vec<Token> {
        let on = self.orders.iter().filter(|(_, order)| order.link == link);
        on.map(|(token, _)| Token(*token)).collect()
    }

    /// The tokens of placements on the link whose payload has not landed so far.
    pub fn placements_on(&self, link: LinkId) -> Vec<Token> {
        let on = self.placements.iter().filter(|(_, placement)| placement.link == link);
        on.map(|(token, _)| Token(*token)).collect()
    }

    /// Orders without an outcome so far.
    pub fn pending(&self) -> usize {
        self.orders.len()
    }

    /// Placements on the link whose payload has not landed so far.
    pub fn open_placements(&self, link: LinkId) -> usize {
        self.placements.values().filter(|placement| placement.link == link).count()
    }

    /// Whether the link is up and not down.
    pub fn is_up(&self, link: LinkId) -> bool {
        self.up.contains(&link) && !self.down.contains(&link)
    }

    /// The fault of the link's end, where it ended.
    pub fn fault(&self, link: LinkId) -> Option<Fault> {
        self.events.iter().find_map(|event| match event {
            Event::Down { link: other, fault } if *other == link => Some(*fault),
            _ => None,
        })
    }

    /// Payloads that landed on the link, with their headers, in order.
    pub fn received(&self, link: LinkId) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.events.iter().filter_map(move |event| match event {
            Event::Received { link: other, header, payload } if *other == link => {
                Some((&header[..], &payload[..]))
            }
            _ => None,
        })
    }

    /// Headers of all frames that arrived on the link, in order.
    pub fn placed(&self, link: LinkId) -> impl Iterator<Item = &[u8]> {
        self.events.iter().filter_map(move |event| match event {
            Event::Placed { link: other, header, .. } if *other == link => Some(&header[..]),
            _ => None,
        })
    }

    /// The final check: no late byte landed where a payload or a read was left unfinished.
    pub fn check(&self) {
        for &slice in &self.abandoned {
            let intact = self.bytes(slice).into_iter().all(|byte| byte == POISON);
            assert!(intact, "bytes received in a place that was given up, or whose link was down");
        }
    }

    fn release(&mut self, buffer: Option<BufferId>) {
        let Some(id) = buffer else { return };
        self.poison(id);
        self.buffers.remove(id);
    }

    fn poison(&mut self, id: BufferId) {
        let bytes = self.buffers.get(id).map_or(0, Memory::len);
        let whole = Slice { buffer: id, offset: 0, len: bytes };
        self.buffers.write(whole, &vec![POISON; bytes as usize]);
    }

    fn check_alive(&self, link: LinkId, what: &str) {
        assert!(self.up.contains(&link), "{what} on {link:?}, which never came up");
        assert!(!self.down.contains(&link), "{what} on {link:?} after its link_down");
    }

    fn finish_order(&mut self, token: Token, what: &str) {
        if token == Token::NONE {
            return;
        }
        let order = self.orders.remove(&token.0);
        let order = order.unwrap_or_else(|| panic!("{what} for {token:?}, which is not pending"));
        assert!(!self.down.contains(&order.link), "{what} for {token:?} after link_down");
        self.release(order.buffer);
    }

    fn place_into(
        &mut self,
        link: LinkId,
        header: &[u8],
        segments: &[usize],
        len: u64,
    ) -> Placement {
        let total: usize = segments.iter().sum();
        // The slice lies in the middle of its memory, so that bytes that miss it are seen.
        let mut lengths = vec![3];
        lengths.extend_from_slice(segments);
        lengths.push(5);
        let buffer = self.memory(&lengths, &vec![POISON; total + 8]);
        let slice = Slice { buffer, offset: 3, len };
        self.next_token += 1;
        let token = Token(PLACEMENT_TOKENS | self.next_token);
        let placement = PendingPlacement { link, header: header.to_vec(), slice };
        self.placements.insert(token.0, placement);
        Placement::Into { slice, token }
    }
}

impl Report for Recorder {
    fn buffers(&self) -> &BufferTable {
        &self.buffers
    }

    fn link_up(&mut self, link: LinkId, accepted: bool) {
        assert!(!self.down.contains(&link), "link_up for {link:?}, which is down");
        assert!(self.up.insert(link), "a second link_up for {link:?}");
        self.events.push(Event::Up { link, accepted });
    }

    fn link_down(&mut self, link: LinkId, fault: Fault) {
        assert!(self.down.insert(link), "a second link_down for {link:?}");
        let left = self.orders.values().filter(|order| order.link == link).count();
        assert_eq!(left, 0, "link_down for {link:?} before the outcome of {left} orders");
        let lost: Vec<u64> = self
            .placements
            .iter()
            .filter(|(_, placement)| placement.link == link)
            .map(|(token, _)| *token)
            .collect();
        for token in lost {
            let placement = self.placements.remove(&token).expect("collected just now");
            self.poison(placement.slice.buffer);
            self.abandoned.push(placement.slice);
        }
        self.events.push(Event::Down { link, fault });
    }

    fn place(&mut self, link: LinkId, header: &[u8], payload_bytes: u32) -> Placement {
        self.check_alive(link, "place");
        let lengths = crate::frame_lengths(header);
        assert_eq!(lengths, Some((header.len(), payload_bytes)), "lengths as the header has them");
        self.events.push(Event::Placed { link, header: header.to_vec(), payload_bytes });
        let answer = self.script.pop_front().unwrap_or(Answer::Whole);
        let bytes = payload_bytes as usize;
        match answer {
            Answer::Violation => Placement::Violation("the script of the suite says so"),
            Answer::Drop => Placement::Drop,
            _ if payload_bytes == 0 => Placement::Drop,
            Answer::Whole => self.place_into(link, header, &[bytes], u64::from(payload_bytes)),
            Answer::Short(len) => self.place_into(link, header, &[bytes], len),
            Answer::Scattered(list) => {
                self.place_into(link, header, &list, u64::from(payload_bytes))
            }
        }
    }

    fn received(&mut self, link: LinkId, token: Token) {
        self.check_alive(link, "received");
        let placement = self.placements.remove(&token.0);
        let placement =
            placement.unwrap_or_else(|| panic!("received twice, or never placed: {token:?}"));
        assert_eq!(placement.link, link, "received on the link of its place");
        let slice = placement.slice;
        let memory = self.buffers.get(slice.buffer).expect("held until it arrived");
        let whole = Slice { buffer: slice.buffer, offset: 0, len: memory.len() };
        let bytes = self.bytes(whole);
        let end = (slice.offset + slice.len) as usize;
        let outside = bytes[..3].iter().chain(&bytes[end..]);
        assert!(outside.copied().all(|byte| byte == POISON), "bytes received beside their slice");
        let payload = bytes[3..end].to_vec();
        self.release(Some(slice.buffer));
        self.events.push(Event::Received { link, header: placement.header, payload });
    }

    fn done(&mut self, token: Token) {
        self.finish_order(token, "done");
        self.events.push(Event::Done { token });
    }

    fn failed(&mut self, token: Token, fault: Fault) {
        self.finish_order(token, "failed");
        self.events.push(Event::Failed { token, fault });
    }

    fn suspect(&mut self, link: LinkId, cause: Suspicion) {
        self.check_alive(link, "suspect");
        self.events.push(Event::Suspect { link, cause });
    }

    fn revoked(&mut self, link: LinkId, key: RemoteKey) {
        self.check_alive(link, "revoked");
        self.events.push(Event::Revoked { link, key });
    }
}
