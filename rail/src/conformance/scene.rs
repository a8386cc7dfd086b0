//! A stage for properties: rails with their recorders, polled in turn until something holds.
//!
//! Invariants: every rail of a scene is polled once a round, in the order in which it was added; a
//! wait that takes longer than the fixture's patience panics and shows what each side saw last.

use ropewalk_base::limits::HEADER_BYTES_MAX;
use ropewalk_base::memory::{BufferId, Slice};
use ropewalk_base::verb::{
    Capabilities, FrameOrder, Header, LinkId, Ordered, RailCounters, Token, Urgency, Verb,
};

use super::Fixture;
use super::recorder::{Event, Recorder};
use crate::Rail;

/// The index under which the suite attaches its rails; links have to carry it.
pub const RAIL_INDEX: u8 = 5;
/// Header length that most frames of the suite have.
pub const HEADER_BYTES: usize = 40;

/// One side: a rail and the layer above it.
pub struct Node {
    rail: Option<Box<dyn Rail>>,
    /// The events that the rail reported to this side.
    pub recorder: Recorder,
}

/// A link as both sides name it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    /// Node and link that connected.
    pub near: (usize, LinkId),
    /// Node and link that accepted.
    pub far: (usize, LinkId),
}

impl Pair {
    /// The same link from the other side.
    pub fn turned(self) -> Pair {
        Pair { near: self.far, far: self.near }
    }
}

/// Several rails and the world between them.
pub struct Scene<'f> {
    /// The surroundings.
    pub fixture: &'f mut dyn Fixture,
    /// All sides.
    pub nodes: Vec<Node>,
    /// Frames are sent as ones that others follow; [`Scene::push`] is called behind the last.
    pub follows: bool,
}

impl<'f> Scene<'f> {
    /// A scene with `count` fresh rails.
    pub fn new(fixture: &'f mut dyn Fixture, count: usize) -> Scene<'f> {
        let mut scene = Scene { fixture, nodes: Vec::new(), follows: false };
        for _ in 0..count {
            scene.add();
        }
        scene
    }

    /// Two rails and a link from the first to the second.
    pub fn pair(fixture: &'f mut dyn Fixture) -> (Scene<'f>, Pair) {
        let mut scene = Scene::new(fixture, 2);
        let pair = scene.link(0, 1);
        (scene, pair)
    }

    /// Adds a fresh rail; its number.
    pub fn add(&mut self) -> usize {
        let mut rail = self.fixture.rail();
        rail.attach(RAIL_INDEX);
        self.nodes.push(Node { rail: Some(rail), recorder: Recorder::default() });
        self.nodes.len() - 1
    }

    /// The rail of a node that lives.
    pub fn rail(&mut self, node: usize) -> &mut dyn Rail {
        self.nodes[node].rail.as_deref_mut().expect("the node lives")
    }

    /// The capabilities that the rail of a node claims.
    pub fn capabilities(&mut self, node: usize) -> Capabilities {
        self.rail(node).capabilities()
    }

    /// The counters of a node.
    pub fn counters(&mut self, node: usize) -> RailCounters {
        self.rail(node).counters()
    }

    /// The recorder of a node.
    pub fn recorder(&mut self, node: usize) -> &mut Recorder {
        &mut self.nodes[node].recorder
    }

    /// Takes the rail of a node away as the death of its process would; false where the medium
    /// cannot show that.
    pub fn kill(&mut self, node: usize) -> bool {
        let rail = self.nodes[node].rail.take().expect("the node lives");
        self.fixture.kill(rail)
    }

    /// The address of a node.
    pub fn address(&mut self, node: usize) -> String {
        let rail = self.nodes[node].rail.as_deref().expect("the node lives");
        self.fixture.address(rail)
    }

    /// Polls one node.
    pub fn poll(&mut self, node: usize) -> bool {
        let now = self.fixture.now();
        let node = &mut self.nodes[node];
        let before = node.recorder.events.len();
        let any = node.rail.as_mut().is_some_and(|rail| rail.poll(now, &mut node.recorder));
        let after = node.recorder.events.len();
        assert!(
            any || after == before,
            "a poll that reports something says that there was something"
        );
        any
    }

    /// Sends the frames that a rail kept back for frames behind them.
    pub fn push(&mut self, node: usize) {
        let Node { rail, recorder } = &mut self.nodes[node];
        rail.as_mut().expect("the node lives").push(recorder);
    }

    /// One round: polls every node, then lets time pass.
    pub fn round(&mut self) -> bool {
        let mut busy = false;
        for node in 0..self.nodes.len() {
            busy |= self.poll(node);
        }
        self.fixture.step(busy);
        busy
    }

    /// Rounds until `holds`; panics when patience ends.
    pub fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Scene) -> bool) {
        let end = self.fixture.now() + self.fixture.patience();
        while !holds(self) {
            if self.fixture.now() > end {
                panic!("gave up waiting: {what}\n{}", self.last_events());
            }
            self.round();
        }
    }

    /// Rounds for the fixture's quiet time, to see that nothing more happens.
    pub fn settle(&mut self) {
        let end = self.fixture.now() + self.fixture.quiet();
        while self.fixture.now() < end {
            self.round();
        }
        for node in &self.nodes {
            node.recorder.check();
        }
    }

    /// Links `from` to `to` and waits until both sides know.
    pub fn link(&mut self, from: usize, to: usize) -> Pair {
        let address = self.address(to);
        let accepted = |scene: &Scene, node: usize| -> Vec<LinkId> {
            let events = &scene.nodes[node].recorder.events;
            let up = events.iter().filter_map(|event| match event {
                Event::Up { link, accepted: true } => Some(*link),
                _ => None,
            });
            up.collect()
        };
        let before = accepted(self, to).len();
        let now = self.fixture.now();
        let near = self.rail(from).connect(&address, now).expect("the address is well formed");
        self.until("both sides of a new link are up", |scene| {
            scene.nodes[from].recorder.is_up(near) && accepted(scene, to).len() > before
        });
        let far = accepted(self, to)[before];
        assert_eq!((near.rail, far.rail), (RAIL_INDEX, RAIL_INDEX), "links carry the rail's index");
        Pair { near: (from, near), far: (to, far) }
    }

    /// Sends a frame and takes note of its outcome.
    pub fn send_frame(
        &mut self,
        node: usize,
        frame: &FrameOrder,
        buffer: Option<BufferId>,
    ) -> Ordered {
        let Node { rail, recorder } = &mut self.nodes[node];
        let rail = rail.as_mut().expect("the node lives");
        let outcome = match self.follows {
            true => rail.send_followed(frame, &recorder.buffers),
            false => rail.send(frame, &recorder.buffers),
        };
        if frame.token != Token::NONE {
            recorder.ordered(frame.link, frame.token, buffer, outcome);
        }
        outcome
    }

    /// Gives another order and takes note of its outcome.
    pub fn order(&mut self, node: usize, verb: Verb, buffer: Option<BufferId>) -> Ordered {
        let Node { rail, recorder } = &mut self.nodes[node];
        let rail = rail.as_mut().expect("the node lives");
        let note = match &verb {
            Verb::Read { link, token, .. } | Verb::Write { link, token, .. } => {
                Some((*link, *token))
            }
            _ => None,
        };
        let outcome = rail.order(&verb, &recorder.buffers);
        // Nobody waits for the outcome of an order without a token; a rail may report it or not.
        if let Some((link, token)) = note.filter(|(_, token)| *token != Token::NONE) {
            recorder.ordered(link, token, buffer, outcome);
        }
        outcome
    }

    /// Sends `slice` from the near side; the buffer is overwritten at the order's end.
    pub fn send_slice(
        &mut self,
        pair: Pair,
        header: Header,
        payload: Slice,
        urgency: Urgency,
    ) -> Ordered {
        let (node, link) = pair.near;
        let token = self.recorder(node).token();
        let buffer = (payload != Slice::NONE).then_some(payload.buffer);
        self.send_frame(node, &FrameOrder { link, header, payload, urgency, token }, buffer)
    }

    /// Sends the frame number `sequence` from the near side, with the suite's pattern as payload.
    pub fn send(
        &mut self,
        pair: Pair,
        sequence: u64,
        payload_bytes: usize,
        urgency: Urgency,
    ) -> Ordered {
        let header = header(HEADER_BYTES, sequence, payload_bytes);
        let payload = if payload_bytes == 0 {
            Slice::NONE
        } else {
            let bytes = pattern(sequence, payload_bytes);
            let buffer = self.recorder(pair.near.0).memory(&[payload_bytes], &bytes);
            Slice { buffer, offset: 0, len: payload_bytes as u64 }
        };
        self.send_slice(pair, header, payload, urgency)
    }

    /// Waits until `count` frames were placed at the far side, and every payload of its link landed.
    pub fn arrived(&mut self, pair: Pair, count: usize) {
        let (node, link) = pair.far;
        self.until("frames arrive", |scene| {
            let recorder = &scene.nodes[node].recorder;
            recorder.placed(link).count() >= count && recorder.open_placements(link) == 0
        });
    }

    /// Waits until no order of the node is pending.
    pub fn drained(&mut self, node: usize) {
        self.until("every order has its outcome", |scene| {
            scene.nodes[node].recorder.pending() == 0
        });
    }

    fn last_events(&self) -> String {
        let mut text = String::new();
        for (number, node) in self.nodes.iter().enumerate() {
            let events = &node.recorder.events;
            let counters = node.rail.as_ref().map(|rail| rail.counters());
            text += &format!(
                "node {number}: {} events, {} orders pending, {counters:?}\n",
                events.len(),
                node.recorder.pending()
            );
            for event in events.iter().rev().take(5).rev() {
                let line = format!("{event:?}");
                text += &format!("    {}\n", line.chars().take(240).collect::<String>());
            }
        }
        text
    }
}

/// A header of `header_bytes` bytes with the lengths where every rail reads them; from 16 bytes on it
/// carries `sequence`.
pub fn header(header_bytes: usize, sequence: u64, payload_bytes: usize) -> Header {
    assert!((8..=HEADER_BYTES_MAX).contains(&header_bytes), "a legal header length");
    let mut bytes = [0u8; HEADER_BYTES_MAX];
    for (offset, byte) in bytes.iter_mut().enumerate().skip(16) {
        *byte = (sequence as u8).wrapping_mul(7).wrapping_add(offset as u8);
    }
    bytes[1] = header_bytes as u8;
    bytes[4..8].copy_from_slice(&(payload_bytes as u32).to_le_bytes());
    bytes[8..16].copy_from_slice(&sequence.to_le_bytes());
    Header::new(&bytes[..header_bytes])
}

/// The sequence number of a header of at least 16 bytes.
pub fn sequence_of(header: &[u8]) -> u64 {
    u64::from_le_bytes(header[8..16].try_into().expect("headers of the suite have a sequence"))
}

/// The payload of the frame number `sequence`.
pub fn pattern(sequence: u64, bytes: usize) -> Vec<u8> {
    let start = sequence.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
    (0..bytes as u64).map(|offset| (start + offset + (offset >> 8) * 3) as u8).collect()
}
