//! Peers that are killed at any moment: the survivor learns of it soon, every order gets its outcome,
//! every placement ends, and nothing is left behind.
//!
//! The victims are real processes: this test's own binary, run again with an environment variable.

use std::collections::BTreeSet;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ropewalk_base::error::Fault;
use ropewalk_base::memory::{BufferTable, Memory, Slice};
use ropewalk_base::pool::Pool;
use ropewalk_base::random::Random;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{
    FrameOrder, Header, Help, LinkId, Ordered, Placement, RemoteKey, RemoteLayout, Token, Urgency,
    Verb,
};
use ropewalk_rail::{Rail, Report};
use ropewalk_rail_shm::{ShmConfig, ShmRail};

const PEER: &str = "ROPEWALK_TEST_PEER";
const REGION_BYTES: usize = 4 << 20;
const REGION: RemoteKey = RemoteKey { slot: SlotId { index: 3, generation: 5 }, secret: 77 };

/// The survivor's and the victim's upper layer.
struct Node {
    buffers: BufferTable,
    payload: Slice,
    place: Slice,
    region: Slice,
    up: Option<LinkId>,
    down: Option<Fault>,
    pending: BTreeSet<u64>,
    next_token: u64,
    frames: u64,
    bad: u64,
}

impl Node {
    fn new() -> Node {
        let pool = Pool::with_budget(64 << 20);
        let mut buffers = BufferTable::with_limit(8);
        let mut slice = |bytes: usize, fill: u8| {
            let mut buffer = pool.take(bytes).expect("within the budget");
            buffer.fill(fill);
            let buffer = buffers.insert(Memory::pooled(buffer)).expect("within the limit");
            Slice { buffer, offset: 0, len: bytes as u64 }
        };
        let payload = slice(32 << 10, 0x5A);
        let place = slice(32 << 10, 0);
        let region = slice(REGION_BYTES, 0x77);
        Node {
            buffers,
            payload,
            place,
            region,
            up: None,
            down: None,
            pending: BTreeSet::new(),
            next_token: 1,
            frames: 0,
            bad: 0,
        }
    }

    fn token(&mut self) -> Token {
        self.next_token += 1;
        Token(self.next_token)
    }

    /// Frames and a native access in a random direction, as far as not too much is pending. The
    /// peer's first frame says that its region can be used; until then there are frames alone.
    fn traffic(&mut self, rail: &mut ShmRail, link: LinkId, random: &mut Random) {
        for _ in 0..4 {
            if self.pending.len() > 64 {
                return;
            }
            let token = self.token();
            let answer = match random.below(8) {
                0 if self.frames > 0 => {
                    let local = self.region.part(0, random.below(REGION_BYTES as u64));
                    let (key, remote) = (REGION, RemoteLayout::At(0));
                    let verb = if random.below(2) == 0 {
                        Verb::Read { link, key, remote, local, token, help: Help::None }
                    } else {
                        Verb::Write { link, key, remote, local, token }
                    };
                    rail.order(&verb, &self.buffers)
                }
                _ => {
                    let bytes = random.below(self.payload.len + 1);
                    let mut header = [0u8; 40];
                    header[1] = 40;
                    header[4..8].copy_from_slice(&(bytes as u32).to_le_bytes());
                    let (header, payload) = (Header::new(&header), self.payload.part(0, bytes));
                    let urgency = Urgency::Urgent;
                    rail.send(&FrameOrder { link, header, payload, urgency, token }, &self.buffers)
                }
            };
            match answer {
                Ordered::Pending => assert!(self.pending.insert(token.0)),
                Ordered::Released => {}
                Ordered::Refused(Fault::PeerReset) => return,
                Ordered::Refused(fault) => panic!("refused: {fault}"),
            }
        }
    }
}

impl Report for Node {
    fn buffers(&self) -> &BufferTable {
        &self.buffers
    }
    fn link_up(&mut self, link: LinkId, _accepted: bool) {
        self.up = Some(link);
    }
    fn link_down(&mut self, _link: LinkId, fault: Fault) {
        assert!(self.pending.is_empty(), "orders without an outcome at the end of a link");
        assert!(self.down.replace(fault).is_none(), "two ends of one link");
    }
    fn place(&mut self, _link: LinkId, _header: &[u8], payload_bytes: u32) -> Placement {
        assert!(self.down.is_none(), "a frame after the end");
        self.frames += 1;
        if payload_bytes == 0 {
            return Placement::Drop;
        }
        Placement::Into { slice: self.place.part(0, payload_bytes.into()), token: Token(1) }
    }
    fn received(&mut self, _link: LinkId, _token: Token) {
        let mut first = [0u8; 1];
        self.buffers.read(self.place, &mut first);
        self.bad += u64::from(first[0] != 0x5A);
    }
    fn done(&mut self, token: Token) {
        assert!(self.pending.remove(&token.0), "an outcome without an order");
    }
    fn failed(&mut self, token: Token, fault: Fault) {
        assert_eq!(fault, Fault::PeerReset);
        assert!(self.pending.remove(&token.0), "an outcome without an order");
    }
    fn revoked(&mut self, _link: LinkId, _key: RemoteKey) {}
}

fn expose(rail: &mut ShmRail, node: &Node, link: LinkId) {
    let verb = Verb::Expose { link, key: REGION, region: node.region, writable: true };
    assert_eq!(rail.order(&verb, &node.buffers), Ordered::Released);
}

/// Time since `start`, as rails see it.
fn since(start: Instant) -> Time {
    Time(start.elapsed().as_nanos() as u64)
}

/// The victim: connects and makes traffic until it is killed.
fn victim(address: &str) {
    let start = Instant::now();
    let mut rail = ShmRail::open(ShmConfig::default()).expect("a rail");
    let mut node = Node::new();
    let mut random = Random::from_seed(u64::from(std::process::id()));
    let link = rail.connect(address, since(start)).expect("a legal name");
    let mut ready = false;
    loop {
        rail.poll(since(start), &mut node);
        if node.up.is_some() && !ready {
            expose(&mut rail, &node, link);
            ready = true;
        }
        // The survivor begins: it exposes its region before its first frame.
        if ready && node.frames > 0 {
            node.traffic(&mut rail, link, &mut random);
        }
        if node.down.is_some() || start.elapsed() > Duration::from_secs(20) {
            return;
        }
    }
}

/// Not a test of its own: the body of the victims, which run this binary with the variable set.
#[test]
fn peer() {
    if let Ok(address) = std::env::var(PEER) {
        victim(&address);
    }
}

fn spawn(address: &str) -> Child {
    let binary = std::env::current_exe().expect("this test runs");
    let mut command = Command::new(binary);
    command.args(["--exact", "peer", "--nocapture"]).env(PEER, address);
    command.stdout(Stdio::null()).spawn().expect("this binary can run again")
}

fn open_descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").expect("proc is mounted").count()
}

fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("proc is mounted");
    maps.lines().filter(|line| line.contains("memfd:ropewalk")).count()
}

/// One victim: traffic for a random while, the kill, and the survivor's view. Returns the time
/// from the kill to `link_down`.
fn round(rail: &mut ShmRail, address: &str, random: &mut Random, asleep: bool) -> Duration {
    let start = Instant::now();
    let mut node = Node::new();
    let mut child = spawn(address);
    while node.up.is_none() {
        rail.poll(since(start), &mut node);
        assert!(start.elapsed() < Duration::from_secs(60), "the victim does not come");
    }
    let link = node.up.expect("just seen");
    expose(rail, &node, link);
    let alive = Duration::from_micros(random.below(6000));
    let begin = Instant::now();
    while begin.elapsed() < alive {
        node.traffic(rail, link, random);
        rail.poll(since(start), &mut node);
    }
    child.kill().expect("a child of ours");
    let killed = Instant::now();
    while node.down.is_none() {
        if asleep && rail.arm() {
            let descriptor = rail.descriptor().expect("this rail has one");
            let mut set =
                [rustix::event::PollFd::from_borrowed_fd(descriptor, rustix::event::PollFlags::IN)];
            let timeout = rustix::event::Timespec { tv_sec: 5, tv_nsec: 0 };
            let count = rustix::event::poll(&mut set, Some(&timeout)).expect("poll(2) works");
            assert_eq!(count, 1, "a death that wakes nobody");
            rail.disarm();
        }
        rail.poll(since(start), &mut node);
        assert!(killed.elapsed() < Duration::from_secs(30), "the death is not noticed");
    }
    let noticed = killed.elapsed();
    child.wait().expect("a child of ours");
    assert_eq!(node.down, Some(Fault::PeerReset));
    assert_eq!(node.bad, 0, "payloads arrive whole or not at all");
    assert!(node.pending.is_empty());
    noticed
}

#[test]
fn a_killed_peer_is_noticed_and_leaves_nothing_behind() {
    if std::env::var(PEER).is_ok() {
        return;
    }
    let mut rail = ShmRail::open(ShmConfig::generated()).expect("a rail");
    let address = rail.addresses().remove(0);
    let mut random = Random::from_seed(42);
    round(&mut rail, &address, &mut random, false);
    let before = (open_descriptors(), mappings());
    let mut times: Vec<Duration> =
        (0..200).map(|number| round(&mut rail, &address, &mut random, number % 2 == 1)).collect();
    assert_eq!((open_descriptors(), mappings()), before, "descriptors and mappings are freed");
    times.sort();
    println!("noticed after {:?} (median), {:?} (most)", times[100], times[199]);
    assert_eq!(rail.counters().links_down, 201);
}
