//! Figures of the shared-memory rail beside what the machine can do: `cargo run --release -p
//! ropewalk-rail-shm --example pingpong`. Both ends are processes; `loop` as argument measures the
//! loop form between threads instead.
//!
//! * `raw ring`: a minimal slot ring, spinning: the least that a message between two cores costs;
//! * `rail`: the same message through `order` and `poll`;
//! * `read`: native reads beside bare cross-memory reads of the same memory;
//! * `one core`: both ends on one core, sleeping between messages.

use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::{BufferTable, Memory, Slice};
use ropewalk_base::pool::Pool;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{
    FrameOrder, Header, Help, LinkId, Ordered, Placement, RemoteKey, RemoteLayout, Token, Urgency,
    Verb,
};
use ropewalk_rail::{Rail, Report};
use ropewalk_rail_shm::{ShmConfig, ShmRail};

const KEY: RemoteKey = RemoteKey { slot: SlotId { index: 1, generation: 1 }, secret: 1 };
const REGION_BYTES: usize = 4 << 20;
const HEADER_BYTES: usize = 40;
/// The request of a frame to the echoing side: in byte 2 of the header.
const ECHO: u8 = 0;
const COUNT: u8 = 1;
const SLEEP: u8 = 2;
const REPORT: u8 = 3;

struct Node {
    buffers: BufferTable,
    memory: Slice,
    up: Option<LinkId>,
    down: bool,
    arrived: u64,
    last: (u8, u32),
    pending: u64,
}

impl Node {
    fn new() -> Node {
        let pool = Pool::with_budget(64 << 20);
        let mut buffers = BufferTable::with_limit(4);
        let buffer = pool.take(REGION_BYTES).expect("within the budget");
        let buffer = buffers.insert(Memory::pooled(buffer)).expect("within the limit");
        let memory = Slice { buffer, offset: 0, len: REGION_BYTES as u64 };
        let last = (ECHO, 0);
        Node { buffers, memory, up: None, down: false, arrived: 0, last, pending: 0 }
    }

    fn send(&mut self, rail: &mut ShmRail, link: LinkId, what: u8, bytes: u32) {
        let mut header = [0u8; HEADER_BYTES];
        header[1] = HEADER_BYTES as u8;
        header[2] = what;
        header[4..8].copy_from_slice(&bytes.to_le_bytes());
        let payload = self.memory.part(0, bytes.into());
        let header = Header::new(&header);
        let frame = FrameOrder { link, header, payload, urgency: Urgency::Urgent, token: Token(1) };
        match rail.send(&frame, &self.buffers) {
            Ordered::Released => {}
            Ordered::Pending => self.pending += 1,
            Ordered::Refused(fault) => assert!(self.down, "refused: {fault}"),
        }
    }

    fn wait(&mut self, rail: &mut ShmRail, clock: &Clock, arrived: u64) {
        while self.arrived < arrived && !self.down {
            rail.poll(clock.now(), self);
        }
    }
}

impl Report for Node {
    fn buffers(&self) -> &BufferTable {
        &self.buffers
    }
    fn link_up(&mut self, link: LinkId, _: bool) {
        self.up = Some(link);
    }
    fn link_down(&mut self, _: LinkId, _: Fault) {
        self.down = true;
    }
    fn place(&mut self, _: LinkId, header: &[u8], payload_bytes: u32) -> Placement {
        self.arrived += 1;
        self.last = (header[2], payload_bytes);
        match payload_bytes {
            0 => Placement::Drop,
            bytes => {
                let slice = self.memory.part((REGION_BYTES / 2) as u64, bytes.into());
                Placement::Into { slice, token: Token(2) }
            }
        }
    }
    fn received(&mut self, _: LinkId, _: Token) {}
    fn done(&mut self, _: Token) {
        self.pending -= 1;
    }
    fn failed(&mut self, _: Token, _: Fault) {
        self.pending -= 1;
    }
    fn revoked(&mut self, _: LinkId, _: RemoteKey) {}
}

/// A clock as an engine reads it: now and then, not for every poll.
struct Clock {
    start: Instant,
    reads: std::cell::Cell<(u32, Time)>,
}

impl Clock {
    fn new() -> Clock {
        Clock { start: Instant::now(), reads: Default::default() }
    }

    fn now(&self) -> Time {
        let (reads, mut time) = self.reads.get();
        if reads.is_multiple_of(64) {
            time = Time(self.start.elapsed().as_nanos() as u64);
        }
        self.reads.set((reads.wrapping_add(1), time));
        time
    }
}

fn pin(core: usize) {
    // SAFETY: the set is a plain local of the size that the call is told; 0 is the calling thread.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(core, &mut set);
        libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set);
    }
}

/// Sleeps on the rail's descriptor where it has nothing to do.
fn sleep(rail: &mut ShmRail) {
    if rail.arm() {
        let descriptor = rail.descriptor().expect("this rail has one");
        let flags = rustix::event::PollFlags::IN;
        let mut set = [rustix::event::PollFd::from_borrowed_fd(descriptor, flags)];
        let _ = rustix::event::poll(&mut set, None);
        rail.disarm();
    }
}

/// The other side: exposes its memory and answers requests, until the link ends.
fn echo(address: &str) {
    pin(1);
    let clock = Clock::new();
    let mut rail = ShmRail::open(ShmConfig::default()).expect("a rail");
    let mut node = Node::new();
    let link = rail.connect(address, clock.now()).expect("a legal address");
    while node.up.is_none() && !node.down {
        rail.poll(clock.now(), &mut node);
    }
    let (region, writable) = (node.memory, true);
    rail.order(&Verb::Expose { link, key: KEY, region, writable }, &node.buffers);
    node.send(&mut rail, link, ECHO, 0);
    let (mut answered, mut sleeps) = (0, false);
    while !node.down {
        let worked = rail.poll(clock.now(), &mut node);
        while answered < node.arrived {
            answered += 1;
            match node.last {
                (COUNT, _) => {}
                (REPORT, _) if answered < node.arrived => {}
                (SLEEP, bytes) => {
                    pin(0);
                    sleeps = true;
                    node.send(&mut rail, link, ECHO, bytes);
                }
                (_, bytes) => node.send(&mut rail, link, ECHO, bytes),
            }
        }
        if sleeps && !worked {
            sleep(&mut rail);
        }
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn repeat(times: usize, mut measure: impl FnMut() -> f64) -> f64 {
    median((0..times).map(|_| measure()).collect())
}

/// Half round trips in us: least and median of many short batches. On a busy machine only the batches
/// during which both cores were ours say anything, and the least is one of them.
struct Times {
    least: f64,
    median: f64,
}

impl std::fmt::Display for Times {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.3} us least, {:.3} us median (half round trip)", self.least, self.median)
    }
}

fn batches(count: usize, mut round: impl FnMut()) -> Times {
    const ROUNDS: usize = 200;
    let mut times: Vec<f64> = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            round();
        }
        times.push(start.elapsed().as_secs_f64() * 1e6 / ROUNDS as f64 / 2.0);
    }
    let least = times.iter().copied().fold(f64::INFINITY, f64::min);
    Times { least, median: median(times) }
}

/// One slot, one flag, each way, between two threads.
fn raw_ring(bytes: usize) -> Times {
    #[repr(align(128))]
    struct Slot {
        data: std::cell::UnsafeCell<[u8; 1024]>,
        flag: AtomicU64,
    }
    // SAFETY: the data is written before the flag is raised and read after it was seen.
    unsafe impl Sync for Slot {}
    const ROUNDS: u64 = 200_000;
    let slot = || Slot { data: std::cell::UnsafeCell::new([0; 1024]), flag: AtomicU64::new(0) };
    let (ping, pong) = (slot(), slot());
    let put = |slot: &Slot, value: u64| {
        let source = [value as u8; 1024];
        // SAFETY: until the flag is raised the slot is the writer's.
        unsafe { std::ptr::copy_nonoverlapping(source.as_ptr(), slot.data.get().cast(), bytes) };
        slot.flag.store(value, Ordering::Release);
    };
    let take = |slot: &Slot, value: u64| {
        while slot.flag.load(Ordering::Acquire) != value {
            std::hint::spin_loop();
        }
        let mut target = [0u8; 1024];
        // SAFETY: the flag says that the writer is done.
        unsafe {
            std::ptr::copy_nonoverlapping(slot.data.get().cast(), target.as_mut_ptr(), bytes)
        };
        std::hint::black_box(&target);
    };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            pin(1);
            for value in 1..=ROUNDS {
                take(&ping, value);
                put(&pong, value);
            }
        });
        pin(0);
        let mut value = 0;
        batches((ROUNDS / 200) as usize, || {
            value += 1;
            put(&ping, value);
            take(&pong, value);
        })
    })
}

/// Bare reads of the child's memory: GB/s.
fn bare_read(pid: i32, from: usize, node: &Node, bytes: usize) -> f64 {
    let to = node.buffers.resolve(node.memory).next().expect("one segment").as_mut_ptr();
    let local = libc::iovec { iov_base: to.cast(), iov_len: bytes };
    let remote =
        libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(from), iov_len: bytes };
    let rounds = (256 << 20) / bytes;
    let start = Instant::now();
    for _ in 0..rounds {
        // SAFETY: the local vector names memory of ours that nobody else uses.
        let read = unsafe { libc::process_vm_readv(pid, &local, 1, &remote, 1, 0) };
        assert_eq!(read as usize, bytes);
    }
    (rounds * bytes) as f64 / start.elapsed().as_secs_f64() / 1e9
}

fn native_read(
    rail: &mut ShmRail,
    node: &mut Node,
    clock: &Clock,
    link: LinkId,
    bytes: usize,
) -> f64 {
    let rounds = (256 << 20) / bytes;
    let start = Instant::now();
    for _ in 0..rounds {
        let (remote, local) = (RemoteLayout::At(0), node.memory.part(0, bytes as u64));
        let verb = Verb::Read { link, key: KEY, remote, local, token: Token(3), help: Help::None };
        match rail.order(&verb, &node.buffers) {
            Ordered::Released => {}
            Ordered::Pending => node.pending += 1,
            Ordered::Refused(fault) => panic!("refused: {fault}"),
        }
        // An engine polls after an order; so the budget of accesses is refilled.
        rail.poll(clock.now(), node);
        while node.pending > 0 {
            rail.poll(clock.now(), node);
        }
    }
    (rounds * bytes) as f64 / start.elapsed().as_secs_f64() / 1e9
}

fn latency(rail: &mut ShmRail, node: &mut Node, clock: &Clock, link: LinkId, bytes: u32) -> Times {
    batches(1000, || {
        node.send(rail, link, ECHO, bytes);
        node.wait(rail, clock, node.arrived + 1);
    })
}

/// Frames one way, then one answer: frames a second.
fn stream(rail: &mut ShmRail, node: &mut Node, clock: &Clock, link: LinkId, bytes: u32) -> f64 {
    let frames = if bytes > 4096 { 20_000 } else { 500_000 };
    let start = Instant::now();
    for _ in 0..frames {
        node.send(rail, link, COUNT, bytes);
        while node.pending > 8 {
            rail.poll(clock.now(), node);
        }
    }
    node.send(rail, link, REPORT, 0);
    node.wait(rail, clock, node.arrived + 1);
    f64::from(frames) / start.elapsed().as_secs_f64()
}

fn one_core(rail: &mut ShmRail, node: &mut Node, clock: &Clock, link: LinkId) -> f64 {
    const ROUNDS: u64 = 20_000;
    let start = Instant::now();
    for _ in 0..ROUNDS {
        let goal = node.arrived + 1;
        node.send(rail, link, SLEEP, 8);
        while node.arrived < goal {
            if !rail.poll(clock.now(), node) {
                sleep(rail);
            }
        }
    }
    start.elapsed().as_secs_f64() * 1e6 / ROUNDS as f64 / 2.0
}

/// Expose and revoke of a one-shot region: ns for both.
fn one_shot(rail: &mut ShmRail, node: &mut Node, clock: &Clock, link: LinkId) -> f64 {
    const ROUNDS: u32 = 200_000;
    let mut spent = 0;
    for round in 0..ROUNDS {
        let slot = SlotId { index: 7 + round % 8, generation: 1 + round };
        let (key, region) = (RemoteKey { slot, secret: 9 }, node.memory);
        let start = Instant::now();
        rail.order(&Verb::Expose { link, key, region, writable: true }, &node.buffers);
        rail.order(&Verb::Revoke { link, key }, &node.buffers);
        spent += start.elapsed().as_nanos() as u64;
        rail.poll(clock.now(), node);
    }
    spent as f64 / f64::from(ROUNDS)
}

/// A poll of a rail with many links on which nothing happens: ns.
fn idle_poll(links: usize) -> f64 {
    const ROUNDS: u32 = 20_000;
    let clock = Clock::new();
    let mut center = ShmRail::open(ShmConfig::within_process("center")).expect("a free name");
    let mut rim = ShmRail::open(ShmConfig::default()).expect("a rail");
    let mut node = Node::new();
    for _ in 0..links {
        rim.connect("loop/center", clock.now()).expect("a legal address");
    }
    for _ in 0..10 {
        center.poll(clock.now(), &mut node);
        rim.poll(clock.now(), &mut node);
    }
    assert_eq!(center.counters().links_up, links as u64);
    let start = Instant::now();
    for _ in 0..ROUNDS {
        center.poll(clock.now(), &mut node);
    }
    start.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let [_, command, address] = &arguments[..]
        && command == "echo"
    {
        return echo(address);
    }
    let within_process = arguments.get(1).is_some_and(|form| form == "loop");
    pin(0);
    for bytes in [8, 1024] {
        println!("raw ring     {bytes} B {}", raw_ring(bytes));
    }
    let config =
        if within_process { ShmConfig::within_process("pingpong") } else { ShmConfig::generated() };
    let clock = Clock::new();
    let mut rail = ShmRail::open(config).expect("a rail");
    let address = rail.addresses().remove(0);
    let child = if within_process {
        std::thread::spawn(move || echo(&address));
        None
    } else {
        let binary = std::env::current_exe().expect("this program runs");
        Some(Command::new(binary).args(["echo", &address]).spawn().expect("it runs again"))
    };
    let mut node = Node::new();
    node.wait(&mut rail, &clock, 1);
    let link = node.up.expect("a frame came over it");
    measure(&mut rail, &mut node, &clock, link, child.as_ref().map(|child| child.id() as i32));
    drop(rail);
    if let Some(mut child) = child {
        child.wait().expect("a child of ours");
    }
    for links in [1, 64, 1000] {
        println!("idle poll    {links} links {:.0} ns", repeat(5, || idle_poll(links)));
    }
}

fn measure(rail: &mut ShmRail, node: &mut Node, clock: &Clock, link: LinkId, child: Option<i32>) {
    for bytes in [8, 1024, 4096, 32 << 10] {
        println!("rail         {bytes} B {}", latency(rail, node, clock, link, bytes));
    }
    for bytes in [8, 1024, 4096, 32 << 10, 256 << 10] {
        let rate = repeat(5, || stream(rail, node, clock, link, bytes));
        println!(
            "stream       {bytes} B {:.2} M/s, {:.2} GB/s",
            rate / 1e6,
            rate * f64::from(bytes) / 1e9
        );
    }
    println!("one-shot     expose and revoke {:.0} ns", one_shot(rail, node, clock, link));
    for bytes in [64 << 10, 1 << 20, 4 << 20] {
        let rate = repeat(5, || native_read(rail, node, clock, link, bytes));
        println!("read         {} KiB {rate:.2} GB/s", bytes >> 10);
    }
    // The region lies in the only large private mapping of the child.
    let from = child.and_then(|pid| Some((pid, big_mapping(pid)?)));
    for bytes in [64 << 10, 1 << 20, 4 << 20] {
        let Some((pid, from)) = from else { continue };
        let rate = repeat(5, || bare_read(pid, from, node, bytes));
        println!("bare read    {} KiB {rate:.2} GB/s", bytes >> 10);
    }
    println!(
        "one core     8 B {:.2} us (half round trip, sleeping)",
        repeat(5, || one_core(rail, node, clock, link))
    );
    println!("{:?}", rail.counters());
}

/// The address of the child's region: its only private mapping of that size.
fn big_mapping(pid: i32) -> Option<usize> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).ok()?;
    maps.lines().find_map(|line| {
        let (range, rest) = line.split_once(' ')?;
        let (from, to) = range.split_once('-')?;
        let from = usize::from_str_radix(from, 16).ok()?;
        let to = usize::from_str_radix(to, 16).ok()?;
        let private = rest.starts_with("rw-p") && rest.ends_with(" 0 ");
        (to - from >= REGION_BYTES && (private || rest.starts_with("rw-p"))).then_some(from + 8192)
    })
}
