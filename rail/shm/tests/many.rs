//! A rail with many links looks at the active ones; the others ring for the frames that they
//! send, and nothing is missed.

use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::{BufferTable, Memory, Slice};
use ropewalk_base::pool::Pool;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{
    FrameOrder, Header, LinkId, Ordered, Placement, RemoteKey, Token, Urgency, Verb,
};
use ropewalk_rail::{Rail, Report, Sight};
use ropewalk_rail_shm::{ShmConfig, ShmRail};
use rustix::event::{PollFd, PollFlags, Timespec};

const SPOKES: usize = 40;

struct Notes {
    buffers: BufferTable,
    memory: Slice,
    up: Vec<LinkId>,
    down: Vec<(LinkId, Fault)>,
    frames: Vec<LinkId>,
    done: usize,
    revoked: Vec<RemoteKey>,
}

impl Notes {
    fn new() -> Notes {
        let mut buffers = BufferTable::with_limit(1);
        let buffer = Pool::with_budget(1 << 20).take(100_000).expect("within the budget");
        let buffer = buffers.insert(Memory::pooled(buffer)).expect("within the limit");
        let memory = Slice { buffer, offset: 0, len: 100_000 };
        let (up, down, frames, revoked) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Notes { buffers, memory, up, down, frames, done: 0, revoked }
    }
}

impl Report for Notes {
    fn buffers(&self) -> &BufferTable {
        &self.buffers
    }
    fn link_up(&mut self, link: LinkId, _: bool) {
        self.up.push(link);
    }
    fn link_down(&mut self, link: LinkId, fault: Fault) {
        self.down.push((link, fault));
    }
    fn place(&mut self, link: LinkId, _: &[u8], _: u32) -> Placement {
        self.frames.push(link);
        Placement::Drop
    }
    fn received(&mut self, _: LinkId, _: Token) {}
    fn done(&mut self, _: Token) {
        self.done += 1;
    }
    fn failed(&mut self, _: Token, _: Fault) {}
    fn revoked(&mut self, _: LinkId, key: RemoteKey) {
        self.revoked.push(key);
    }
}

type Node = (ShmRail, Notes);

fn node(config: ShmConfig) -> Node {
    (ShmRail::open(config).expect("a fresh name"), Notes::new())
}

/// A rail and its peers, at a time.
struct Wheel {
    hub: Node,
    spokes: Vec<Node>,
    now: Time,
}

impl Wheel {
    fn new(config: ShmConfig) -> Wheel {
        let hub = node(config);
        let address = hub.0.addresses().remove(0);
        let mut wheel = Wheel { hub, spokes: Vec::new(), now: Time::ZERO };
        for _ in 0..SPOKES {
            let mut spoke = node(ShmConfig::default());
            spoke.0.connect(&address, wheel.now).expect("a legal address");
            while spoke.1.up.is_empty() {
                wheel.pass(Duration::from_millis(1));
                spoke.0.poll(wheel.now, &mut spoke.1);
            }
            wheel.spokes.push(spoke);
        }
        while wheel.hub.1.up.len() < SPOKES {
            wheel.pass(Duration::from_millis(1));
        }
        wheel.rest();
        wheel
    }

    /// One poll of the hub, later.
    fn pass(&mut self, later: Duration) {
        self.now = self.now + later;
        self.hub.0.poll(self.now, &mut self.hub.1);
    }

    /// Lets so much time pass that idle links rest.
    fn rest(&mut self) {
        (0..400).for_each(|_| self.pass(Duration::from_millis(1)));
    }

    /// Sends a frame from a spoke; whether the spoke rang.
    fn send(&mut self, spoke: usize) -> bool {
        let (rail, notes) = &mut self.spokes[spoke];
        let before = rail.counters().doorbells;
        assert_eq!(send(rail, notes, notes.up[0], 0), Ordered::Released);
        rail.counters().doorbells > before
    }
}

fn send(rail: &mut ShmRail, notes: &Notes, link: LinkId, bytes: u32) -> Ordered {
    let mut header = [0u8; 16];
    header[1] = 16;
    header[4..8].copy_from_slice(&bytes.to_le_bytes());
    let (header, payload) = (Header::new(&header), notes.memory.part(0, bytes.into()));
    let frame = FrameOrder { link, header, payload, urgency: Urgency::Urgent, token: Token(5) };
    rail.send(&frame, &notes.buffers)
}

fn configs() -> [ShmConfig; 2] {
    let name = format!("many-{}-{:?}", std::process::id(), std::thread::current().id());
    [ShmConfig::within_process(&name), ShmConfig::named(name)]
}

#[test]
fn idle_links_ring_for_their_frames_and_busy_ones_do_not() {
    for config in configs() {
        let mut wheel = Wheel::new(config);
        let rang = (0..SPOKES).filter(|spoke| wheel.send(*spoke)).count();
        assert_eq!(rang, SPOKES - 1, "one link is always looked at");
        // The kernel is asked for bells every few microseconds of polling.
        (0..3).for_each(|_| wheel.pass(Duration::from_micros(20)));
        assert_eq!(wheel.hub.1.frames.len(), SPOKES);
        let rang = (0..SPOKES).filter(|spoke| wheel.send(*spoke)).count();
        assert_eq!(rang, 0, "all have just been busy");
        assert_eq!(wheel.hub.0.look(), Sight::Work);
        wheel.pass(Duration::from_nanos(1));
        assert_eq!(wheel.hub.1.frames.len(), 2 * SPOKES);
        wheel.rest();
        let rang = (0..SPOKES).filter(|spoke| wheel.send(*spoke)).count();
        assert_eq!(rang, SPOKES - 1, "they rest again");
        (0..3).for_each(|_| wheel.pass(Duration::from_micros(20)));
        assert_eq!(wheel.hub.1.frames.len(), 3 * SPOKES);
    }
}

#[test]
fn a_sleeper_is_woken_by_a_link_that_rests() {
    for config in configs() {
        let mut wheel = Wheel::new(config);
        for spoke in 0..SPOKES {
            while !wheel.hub.0.arm() {
                wheel.pass(Duration::from_micros(20));
            }
            assert!(wheel.send(spoke), "whoever sends to a sleeper rings");
            let descriptor = wheel.hub.0.descriptor().expect("a rail with one");
            let mut polled = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
            let limit = Timespec { tv_sec: 30, tv_nsec: 0 };
            let ready = rustix::event::poll(&mut polled, Some(&limit));
            assert_eq!(ready, Ok(1), "the bell of spoke {spoke} is heard");
            wheel.hub.0.disarm();
            wheel.pass(Duration::from_nanos(1));
            assert_eq!(wheel.hub.1.frames.len(), spoke + 1);
            wheel.rest();
        }
    }
}

#[test]
fn what_is_ordered_over_a_link_that_rests_goes_on() {
    for config in configs() {
        let mut wheel = Wheel::new(config);
        for number in 0..SPOKES {
            let Wheel { hub: (rail, notes), spokes, now } = &mut wheel;
            let link = notes.up[number];
            let mut pending = 0;
            while send(rail, notes, link, 100_000) == Ordered::Released {}
            while pending < 3 {
                assert_eq!(send(rail, notes, link, 100_000), Ordered::Pending);
                pending += 1;
            }
            // The other end by its own number: both were made one after the other.
            let (spoke, far) = &mut spokes[number];
            for _ in 0..4 {
                spoke.poll(*now, far);
                rail.poll(*now, notes);
            }
            assert_eq!(notes.done, 1 + pending, "what waited has left, with the first of them");
            notes.done = 0;
            let key = RemoteKey { slot: SlotId { index: 3, generation: 1 }, secret: 9 };
            let region = notes.memory;
            let expose = Verb::Expose { link, key, region, writable: true };
            assert_eq!(rail.order(&expose, &notes.buffers), Ordered::Released);
            wheel.rest();
            let (rail, notes) = &mut wheel.hub;
            rail.order(&Verb::Revoke { link, key }, &notes.buffers);
            wheel.pass(Duration::from_nanos(1));
            assert_eq!(wheel.hub.1.revoked.pop(), Some(key));
            wheel.rest();
        }
        for number in 0..SPOKES / 2 {
            let (rail, notes) = &mut wheel.hub;
            let link = notes.up[number];
            assert_eq!(rail.order(&Verb::Close { link }, &notes.buffers), Ordered::Released);
            wheel.pass(Duration::from_nanos(1));
            assert_eq!(wheel.hub.1.down.pop(), Some((link, Fault::Closed)));
        }
        wheel.spokes.truncate(SPOKES / 2);
        (0..400).for_each(|_| wheel.pass(Duration::from_millis(1)));
        assert_eq!(wheel.hub.1.down.len(), SPOKES / 2, "the ends of links that rest are noticed");
        assert!(wheel.hub.1.down.iter().all(|(_, fault)| *fault == Fault::PeerReset));
    }
}
