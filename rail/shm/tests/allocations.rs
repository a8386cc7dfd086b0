//! Counts, not seconds: in steady state nothing is allocated and no system call is made for frames.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

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

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

struct Counting;

// SAFETY: everything is handed on to the system's allocator; counting touches a plain thread-local.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promises are those that `System` asks for.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // SAFETY: allocated above by the same allocator with the same layout.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Node {
    buffers: BufferTable,
    memory: Slice,
    up: Option<LinkId>,
    received: u64,
    revoked: u64,
    outcomes: u64,
}

impl Node {
    fn new() -> Node {
        let pool = Pool::with_budget(16 << 20);
        let mut buffers = BufferTable::with_limit(4);
        let pieces = [100_000, 200_000, 300_000].map(|bytes| pool.take(bytes).expect("budget"));
        let buffer = buffers.insert(Memory::many(pieces.into())).expect("within the limit");
        let memory = Slice { buffer, offset: 0, len: 600_000 };
        Node { buffers, memory, up: None, received: 0, revoked: 0, outcomes: 0 }
    }
}

impl Report for Node {
    fn buffers(&self) -> &BufferTable {
        &self.buffers
    }
    fn link_up(&mut self, link: LinkId, _: bool) {
        self.up = Some(link);
    }
    fn link_down(&mut self, _: LinkId, fault: Fault) {
        panic!("the link went down: {fault}");
    }
    fn place(&mut self, _: LinkId, _: &[u8], payload_bytes: u32) -> Placement {
        Placement::Into { slice: self.memory.part(0, payload_bytes.into()), token: Token(1) }
    }
    fn received(&mut self, _: LinkId, _: Token) {
        self.received += 1;
    }
    fn done(&mut self, _: Token) {
        self.outcomes += 1;
    }
    fn failed(&mut self, _: Token, fault: Fault) {
        panic!("an order failed: {fault}");
    }
    fn revoked(&mut self, _: LinkId, _: RemoteKey) {
        self.revoked += 1;
    }
}

/// 40 frames of growing size, more than the ring holds; then a region of three pieces is exposed,
/// read, written and revoked.
fn work(a: &mut (ShmRail, Node), b: &mut (ShmRail, Node), round: u32) {
    let (near, far) = (a.1.up.expect("up"), b.1.up.expect("up"));
    let goal = b.1.received + 40;
    for number in 1..=40u32 {
        let bytes = number * 5000;
        let mut header = [0u8; 64];
        header[1] = 64;
        header[4..8].copy_from_slice(&bytes.to_le_bytes());
        let (header, payload) = (Header::new(&header), a.1.memory.part(0, bytes.into()));
        let urgency = if number % 2 == 0 { Urgency::Urgent } else { Urgency::Bulk };
        let frame = FrameOrder { link: near, header, payload, urgency, token: Token(2) };
        assert!(!matches!(a.0.send(&frame, &a.1.buffers), Ordered::Refused(_)));
    }
    while b.1.received < goal {
        a.0.poll(Time(1), &mut a.1);
        b.0.poll(Time(1), &mut b.1);
    }
    let key = RemoteKey { slot: SlotId { index: 9, generation: 1 + round }, secret: 4 };
    let expose = Verb::Expose { link: far, key, region: b.1.memory, writable: true };
    assert_eq!(b.0.order(&expose, &b.1.buffers), Ordered::Released);
    for write in [false, true] {
        let (local, remote, token) = (a.1.memory, RemoteLayout::At(0), Token(3));
        let verb = if write {
            Verb::Write { link: near, key, remote, local, token }
        } else {
            Verb::Read { link: near, key, remote, local, token, help: Help::None }
        };
        let goal = a.1.outcomes + 1;
        match a.0.order(&verb, &a.1.buffers) {
            Ordered::Pending => {
                while a.1.outcomes < goal {
                    a.0.poll(Time(1), &mut a.1);
                }
            }
            outcome => assert_eq!(outcome, Ordered::Released),
        }
    }
    b.0.order(&Verb::Revoke { link: far, key }, &b.1.buffers);
    let goal = b.1.revoked + 1;
    while b.1.revoked < goal {
        b.0.poll(Time(1), &mut b.1);
    }
}

fn steady_state(config: ShmConfig) {
    let center = ShmRail::open(config).expect("a fresh name");
    let address = center.addresses().remove(0);
    let mut b = (center, Node::new());
    let mut a = (ShmRail::open(ShmConfig::default()).expect("a rail"), Node::new());
    a.0.connect(&address, Time::ZERO).expect("a legal address");
    let mut now = 0;
    while a.1.up.is_none() || b.1.up.is_none() {
        now += 1_000_000;
        a.0.poll(Time(now), &mut a.1);
        b.0.poll(Time(now), &mut b.1);
    }
    for round in 0..20 {
        work(&mut a, &mut b, round);
    }
    let before = ALLOCATIONS.get();
    let calls = a.0.counters().system_calls;
    for round in 20..120 {
        work(&mut a, &mut b, round);
    }
    assert_eq!(ALLOCATIONS.get() - before, 0, "allocations in steady state");
    // Two for each piece of an access, and rare questions to the kernel; none for 4000 frames.
    let calls = a.0.counters().system_calls - calls;
    assert!(calls <= 100 * 12, "{calls} system calls");
}

#[test]
fn nothing_is_allocated_between_processes() {
    steady_state(ShmConfig::named(format!("allocations-{}", std::process::id())));
}

#[test]
fn nothing_is_allocated_within_a_process() {
    steady_state(ShmConfig::within_process("allocations"));
}
