//! A rail between the endpoints of one thread. It copies each frame in and out, makes no system call, and allocates
//! nothing once it has its buffers: what is counted over it is the cost of `core` and `net`.
#![allow(dead_code)]

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use ropewalk_base::error::Fault;
use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::limits::EAGER_BYTES;
use ropewalk_base::memory::BufferTable;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{
    Capabilities, FrameOrder, Header, LinkId, Ordered, Placement, RailCounters, Verb,
};
use ropewalk_net::{Endpoint, EndpointConfig, Mode, PeerId};
use ropewalk_rail::address::Address;
use ropewalk_rail::{Rail, Report};

use crate::common::Node;

/// Simulated time from one message to the next.
pub const STEP_NS: u64 = 10_000;
const POLL_ITEMS_MAX: usize = 64;

#[derive(Debug)]
enum Item {
    Up { link: u32, accepted: bool },
    Down { link: u32 },
    Frame { link: u32, header: Header, payload: Vec<u8> },
}

#[derive(Debug, Default)]
struct Place {
    name: String,
    refuses: bool,
    inbox: VecDeque<Item>,
    /// The other place of each link, and the link's number there.
    links: Vec<(usize, u32)>,
    spare: Vec<Vec<u8>>,
    counters: RailCounters,
}

/// The rails that reach each other; cloning gives another handle.
#[derive(Debug, Clone, Default)]
pub struct Hub(Arc<Mutex<Vec<Place>>>);

impl Hub {
    fn places(&self) -> MutexGuard<'_, Vec<Place>> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A rail under this name. `refuses`: it takes no calls.
    pub fn rail(&self, name: &str, refuses: bool) -> PipeRail {
        let mut places = self.places();
        places.push(Place { name: name.to_string(), refuses, ..Place::default() });
        PipeRail { hub: self.clone(), place: places.len() - 1, index: 0 }
    }
}

#[derive(Debug)]
pub struct PipeRail {
    hub: Hub,
    place: usize,
    index: u8,
}

impl PipeRail {
    fn link(&self, number: u32) -> LinkId {
        LinkId { rail: self.index, slot: SlotId { index: number, generation: 1 } }
    }

    fn report(&self, item: Item, report: &mut dyn Report) {
        match item {
            Item::Up { link, accepted } => report.link_up(self.link(link), accepted),
            Item::Down { link } => report.link_down(self.link(link), Fault::Closed),
            Item::Frame { link, header, payload } => {
                let link = self.link(link);
                let bytes = payload.len() as u32;
                match report.place_whole(link, header.as_bytes(), bytes) {
                    Placement::Into { slice, token } => {
                        report.buffers().write(slice, &payload);
                        report.received(link, token);
                    }
                    Placement::Drop => {}
                    other => panic!("{other:?}"),
                }
                self.hub.places()[self.place].spare.push(payload);
            }
        }
    }
}

impl Rail for PipeRail {
    fn scheme(&self) -> &'static str {
        "pipe"
    }

    fn attach(&mut self, index: u8) {
        self.index = index;
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities {
            reliable: true,
            ordered: true,
            intact: true,
            native_read: false,
            native_write: false,
            frame_payload_bytes_max: 256 << 10,
            eager_bytes: EAGER_BYTES,
            preference: 1,
            same_host_only: false,
            foreign: false,
        }
    }

    fn addresses(&self) -> Vec<String> {
        vec![self.hub.places()[self.place].name.clone()]
    }

    fn connect(&mut self, address: &str, _: Time) -> Result<LinkId, Fault> {
        let mut places = self.hub.places();
        let other = places.iter().position(|place| place.name == address && !place.refuses);
        let other = other.ok_or(Fault::Unreachable)?;
        let numbers = [self.place, other].map(|place| places[place].links.len() as u32);
        for (own, far, accepted) in [(0, 1, false), (1, 0, true)] {
            let ends = [self.place, other];
            places[ends[own]].links.push((ends[far], numbers[far]));
            places[ends[own]].inbox.push_back(Item::Up { link: numbers[own], accepted });
        }
        drop(places);
        Ok(self.link(numbers[0]))
    }

    fn send(&mut self, frame: &FrameOrder, buffers: &BufferTable) -> Ordered {
        let mut places = self.hub.places();
        let (other, link) = places[self.place].links[frame.link.slot.index as usize];
        let mut payload = places[other].spare.pop().unwrap_or_default();
        payload.resize(frame.payload.len as usize, 0);
        buffers.read(frame.payload, &mut payload);
        places[self.place].counters.frames_sent += 1;
        places[other].inbox.push_back(Item::Frame { link, header: frame.header, payload });
        Ordered::Released
    }

    fn order(&mut self, verb: &Verb, _: &BufferTable) -> Ordered {
        let Verb::Close { link } = verb else { return Ordered::Refused(Fault::Invalid) };
        let mut places = self.hub.places();
        let own = link.slot.index;
        let (other, number) = places[self.place].links[own as usize];
        places[self.place].inbox.push_back(Item::Down { link: own });
        places[other].inbox.push_back(Item::Down { link: number });
        Ordered::Released
    }

    fn poll(&mut self, _: Time, report: &mut dyn Report) -> bool {
        let mut any = false;
        for _ in 0..POLL_ITEMS_MAX {
            let item = self.hub.places()[self.place].inbox.pop_front();
            let Some(item) = item else { break };
            any = true;
            self.report(item, report);
        }
        any
    }

    fn arm(&mut self) -> bool {
        self.hub.places()[self.place].inbox.is_empty()
    }

    fn disarm(&mut self) {}

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn deadline(&self) -> Option<Time> {
        None
    }

    fn counters(&self) -> RailCounters {
        self.hub.places()[self.place].counters
    }
}

/// Two endpoints with two rails each.
pub struct Pair {
    pub nodes: Vec<Node>,
    pub peers: [PeerId; 2],
    pub clock: Arc<AtomicU64>,
}

/// The session of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// One path for good, which numbers nothing.
    Plain,
    /// It may have two paths, and has one: the second rails take no calls.
    One,
    Two,
}

impl Pair {
    pub fn new(kind: Kind) -> Pair {
        let (hub, clock) = (Hub::default(), Arc::new(AtomicU64::new(1)));
        let mut nodes = Vec::new();
        for side in 0..2 {
            let rail = |number: usize| -> Box<dyn Rail> {
                Box::new(hub.rail(&format!("{side}{number}"), number > 0 && kind != Kind::Two))
            };
            let mut config = EndpointConfig::new(ClusterId(1));
            config.endpoint = EndpointId(side as u128 + 1);
            config.incarnation = Incarnation(1);
            config.host = 0;
            config.seed = side as u64;
            config.service_thread = false;
            config.core.mode = Mode::Fail;
            config.core.paths_max = if kind == Kind::Plain { 1 } else { 2 };
            let clock = clock.clone();
            config.clock = Arc::new(move || Time(clock.load(Ordering::Relaxed)));
            let endpoint = Endpoint::open(config, vec![rail(0), rail(1)]).expect("it opens");
            let context = endpoint.context(true).expect("there are descriptors");
            nodes.push(Node { endpoint, context, done: Vec::new() });
        }
        let peer = |side: usize| {
            let address = Address::parse(&format!("pipe://{}0", 1 - side)).expect("an address");
            nodes[side].endpoint.lookup(&address).expect("an address")
        };
        let peers = [peer(0), peer(1)];
        Pair { nodes, peers, clock }
    }

    /// Time passes.
    pub fn step(&self) {
        self.clock.fetch_add(STEP_NS, Ordering::Relaxed);
    }
}
