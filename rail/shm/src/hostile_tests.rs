//! Peers that write anything into shared memory: the worst possible effect is the end of the link, with a bounded
//! amount of work.

use ropewalk_base::error::Fault;
use ropewalk_base::limits::{FRAME_PAYLOAD_BYTES_MAX, HEADER_BYTES_MAX, QUEUED_FRAMES_MAX};
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

use crate::segment::{RING_BYTES, SEGMENT_BYTES, Segment, Side};
use crate::{ShmConfig, ShmRail};

struct Node {
    buffers: BufferTable,
    memory: Slice,
    up: Option<LinkId>,
    down: Option<Fault>,
    outcomes: u64,
    revoked: Vec<RemoteKey>,
}

impl Node {
    fn new() -> Node {
        let pool = Pool::with_budget(4 << 20);
        let mut buffers = BufferTable::with_limit(2);
        let buffer = pool.take(FRAME_PAYLOAD_BYTES_MAX as usize).expect("within the budget");
        let buffer = buffers.insert(Memory::pooled(buffer)).expect("within the limit");
        let memory = Slice { buffer, offset: 0, len: u64::from(FRAME_PAYLOAD_BYTES_MAX) };
        Node { buffers, memory, up: None, down: None, outcomes: 0, revoked: Vec::new() }
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
        assert!(self.down.replace(fault).is_none());
    }
    fn place(&mut self, _: LinkId, header: &[u8], payload_bytes: u32) -> Placement {
        assert!((8..=HEADER_BYTES_MAX).contains(&header.len()));
        assert!(payload_bytes <= FRAME_PAYLOAD_BYTES_MAX);
        if payload_bytes == 0 {
            return Placement::Drop;
        }
        Placement::Into { slice: self.memory, token: Token(1) }
    }
    fn received(&mut self, _: LinkId, _: Token) {}
    fn done(&mut self, _: Token) {
        self.outcomes += 1;
    }
    fn failed(&mut self, _: Token, _: Fault) {
        self.outcomes += 1;
    }
    fn revoked(&mut self, _: LinkId, key: RemoteKey) {
        self.revoked.push(key);
    }
}

fn linked(number: u64) -> [(ShmRail, Node); 2] {
    let config = ShmConfig::within_process(format!("hostile-{number}"));
    let far = ShmRail::open(config).expect("a fresh name");
    let mut near = ShmRail::open(ShmConfig::default()).expect("a rail");
    near.connect(&far.addresses()[0], Time::ZERO).expect("a legal address");
    let mut pair = [(near, Node::new()), (far, Node::new())];
    while pair.iter().any(|(_, node)| node.up.is_none()) {
        for (rail, node) in &mut pair {
            rail.poll(Time::ZERO, node);
        }
    }
    pair
}

/// The form between processes, within one.
fn linked_by_name(name: &str) -> [(ShmRail, Node); 2] {
    let name = format!("{name}-{}", std::process::id());
    let mut far = (ShmRail::open(ShmConfig::named(&name)).expect("a fresh name"), Node::new());
    let mut near = (ShmRail::open(ShmConfig::default()).expect("a rail"), Node::new());
    near.0.connect(&name, Time::ZERO).expect("a legal name");
    let mut now = 0;
    while near.1.up.is_none() || far.1.up.is_none() {
        now += 1_000_000;
        near.0.poll(Time(now), &mut near.1);
        far.0.poll(Time(now), &mut far.1);
    }
    [near, far]
}

/// Something of everything, so that every field in shared memory is used.
fn traffic((rail, node): &mut (ShmRail, Node), random: &mut Random) {
    let Some(link) = node.up else { return };
    let key = RemoteKey { slot: SlotId { index: 1, generation: 1 }, secret: 1 };
    let bytes = random.below(5000) as u32;
    let mut header = [0u8; 24];
    header[1] = 24;
    header[4..8].copy_from_slice(&bytes.to_le_bytes());
    let payload = node.memory.part(0, bytes.into());
    let (urgency, token, writable) = (Urgency::Urgent, Token(1), true);
    let header = Header::new(&header);
    let verb = match random.below(6) {
        0 => Verb::Expose { link, key, region: node.memory, writable },
        1 => Verb::Revoke { link, key },
        _ => {
            rail.send(&FrameOrder { link, header, payload, urgency, token }, &node.buffers);
            return;
        }
    };
    rail.order(&verb, &node.buffers);
}

/// Overwrites a word somewhere in the memory of the link: mostly where indices and lengths lie.
/// The tables are left out here: in the loop form their addresses are trusted, as all of the process
/// is; `any_table_is_survived` has the form between processes.
fn scribble(segment: &Segment, random: &mut Random) {
    let ring = 4096 + random.below(2) * RING_BYTES as u64;
    let at = match random.below(4) {
        // The lines of both sides, word by word, at their beginnings.
        0 => 1024 + random.below(16) * 128 + random.below(2) * 8,
        // The offsets at which records begin under light traffic.
        1 | 2 => ring + random.below(RING_BYTES as u64 / 8 / 64) * 64,
        _ => ring + random.below(RING_BYTES as u64),
    } as usize
        & !7;
    let value = match random.below(5) {
        0 => u64::MAX,
        1 => (1 << 63) | random.below(70),
        2 => (3 << 62) | random.below(2 * RING_BYTES as u64),
        3 => random.below(RING_BYTES as u64),
        _ => random.next_u64(),
    };
    assert!(at + 8 <= SEGMENT_BYTES);
    segment.0.u64(at).store(value, std::sync::atomic::Ordering::SeqCst);
}

#[test]
fn any_scribbling_ends_the_link_at_most() {
    let mut broken = 0;
    for seed in 0..150 {
        let mut random = Random::from_seed(seed);
        let mut pair = linked(seed);
        let segment = pair[0].0.segment_of(pair[0].1.up.expect("up"));
        for round in 0..400u64 {
            for side in &mut pair {
                traffic(side, &mut random);
            }
            if round > 20 && random.below(8) == 0 {
                for _ in 0..random.below(200) {
                    scribble(&segment, &mut random);
                }
            }
            for (rail, node) in &mut pair {
                rail.poll(Time(round * 1_000_000), node);
                rail.arm();
                rail.disarm();
            }
        }
        // A broken link ends within its patience, even if the peer claims to hold a region.
        for late in 0..10u64 {
            for (rail, node) in &mut pair {
                rail.poll(Time((late + 1) * 2_000_000_000), node);
            }
        }
        broken += pair.iter().filter(|(_, node)| node.down == Some(Fault::Protocol)).count();
        let violations = pair.iter().map(|(rail, _)| rail.counters().violations).sum::<u64>();
        assert!(violations <= 2, "a link is broken once by each side");
    }
    assert!(broken > 50, "the scribbling was noticed {broken} times only");
}

#[test]
fn any_table_is_survived() {
    let mut random = Random::from_seed(9);
    let [mut near, mut far] = linked_by_name("table");
    let (link, far_link) = (near.1.up.expect("up"), far.1.up.expect("up"));
    let segment = near.0.segment_of(link);
    let key = RemoteKey { slot: SlotId { index: 5, generation: 1 }, secret: 1 };
    let region = far.1.memory;
    far.0.order(&Verb::Expose { link: far_link, key, region, writable: true }, &far.1.buffers);
    let entry = segment.entry(Side(1), 5);
    let mut orders = 0;
    for _ in 0..2000 {
        // Reads only: a write to an address that the peer made up would hit this very process.
        let field = [entry.address(), entry.bytes(), entry.pieces()][random.below(3) as usize];
        let value = [0, 1, 100, u64::MAX, 1 << 47, 9000, random.next_u64()];
        field.store(value[random.below(7) as usize], std::sync::atomic::Ordering::SeqCst);
        let (remote, local) = (RemoteLayout::At(random.below(1 << 20)), near.1.memory);
        near.0.order(
            &Verb::Read { link, key, remote, local, token: Token(1), help: Help::None },
            &near.1.buffers,
        );
        near.0.poll(Time(1), &mut near.1);
        orders += 1;
    }
    assert_eq!(orders, 2000);
    assert!(near.1.down.is_none(), "a bad table costs accesses, not the link");
}

#[test]
fn a_peer_that_reads_nothing_costs_its_link_and_a_bounded_queue() {
    let [(mut rail, mut node), _far] = linked(1000);
    let link = node.up.expect("up");
    let mut header = [0u8; 24];
    header[1] = 24;
    let header = Header::new(&header);
    let (payload, urgency, token) = (Slice::NONE, Urgency::Urgent, Token(1));
    let frame = FrameOrder { link, header, payload, urgency, token };
    let mut queued = 0;
    for _ in 0..4 * QUEUED_FRAMES_MAX {
        match rail.send(&frame, &node.buffers) {
            Ordered::Released => assert_eq!(queued, 0, "nothing overtakes what waits"),
            Ordered::Pending => queued += 1,
            Ordered::Refused(fault) => assert_eq!(fault, Fault::PeerReset),
        }
    }
    assert_eq!(queued, QUEUED_FRAMES_MAX);
    rail.poll(Time(1), &mut node);
    assert_eq!((node.down, node.outcomes), (Some(Fault::PeerReset), queued as u64));
}

#[test]
fn a_closing_link_gives_a_region_back_when_its_peer_has_left_it() {
    let ([_near, (mut rail, mut node)], link, key) = visited(1001);
    let segment = rail.segment_of(link);
    let accessing = segment.accessing(Side(0));
    rail.order(&Verb::Close { link }, &node.buffers);
    rail.poll(Time(1), &mut node);
    assert_eq!(rail.order(&Verb::Revoke { link, key }, &node.buffers), Ordered::Released);
    for now in 2..10 {
        rail.poll(Time(now), &mut node);
        assert!(node.revoked.is_empty() && node.down.is_none());
    }
    accessing.store(0, std::sync::atomic::Ordering::SeqCst);
    rail.poll(Time(10), &mut node);
    assert_eq!((&node.revoked[..], node.down), (&[key][..], Some(Fault::Closed)));
}

#[test]
fn read_only_memory_is_neither_written_nor_offered_for_writing() {
    static CONSTANT: [u8; 64] = [7; 64];
    let [(mut near, mut near_node), (mut far, mut far_node)] = linked(1002);
    let (link, far_link) = (near_node.up.expect("up"), far_node.up.expect("up"));
    let key = RemoteKey { slot: SlotId { index: 1, generation: 1 }, secret: 1 };
    let whole = |buffer| Slice { buffer, offset: 0, len: 64 };
    let constant = whole(far_node.buffers.insert(Memory::constant(&CONSTANT)).expect("room"));
    let verb = Verb::Expose { link: far_link, key, region: constant, writable: true };
    assert_eq!(far.order(&verb, &far_node.buffers), Ordered::Refused(Fault::Invalid));
    let verb = Verb::Expose { link: far_link, key, region: far_node.memory, writable: false };
    assert_eq!(far.order(&verb, &far_node.buffers), Ordered::Released);
    far.poll(Time(1), &mut far_node);
    near.poll(Time(1), &mut near_node);
    let local = whole(near_node.buffers.insert(Memory::constant(&CONSTANT)).expect("room"));
    let (remote, token) = (RemoteLayout::At(0), Token(1));
    let verb = Verb::Read { link, key, remote, local, token, help: Help::None };
    assert!(matches!(near.order(&verb, &near_node.buffers), Ordered::Refused(_)));
    assert_eq!(CONSTANT, [7; 64]);
}

#[test]
fn whoever_has_the_number_of_a_dead_peer_is_not_accessed() {
    let [mut near, mut far] = linked_by_name("number");
    let (link, far_link) = (near.1.up.expect("up"), far.1.up.expect("up"));
    let key = RemoteKey { slot: SlotId { index: 5, generation: 1 }, secret: 1 };
    let region = far.1.memory;
    far.0.order(&Verb::Expose { link: far_link, key, region, writable: true }, &far.1.buffers);
    let local = near.1.memory.part(0, 100);
    let access = |rail: &mut ShmRail, node: &Node, write| {
        let (remote, token) = (RemoteLayout::At(0), Token(1));
        let verb = match write {
            true => Verb::Write { link, key, remote, local, token },
            false => Verb::Read { link, key, remote, local, token, help: Help::None },
        };
        rail.order(&verb, &node.buffers)
    };
    assert_eq!(access(&mut near.0, &near.1, true), Ordered::Released);
    // From now on the peer is a process that is dead, whose number is this process's.
    let mut child = std::process::Command::new("true").spawn().expect("a shell's tool");
    let pid = rustix::process::Pid::from_child(&child);
    let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
    child.wait().expect("it ends");
    near.0.mistake_peer(link, process.expect("a kernel that knows these"));
    for write in [true, false] {
        assert_eq!(access(&mut near.0, &near.1, write), Ordered::Refused(Fault::PeerReset));
    }
}

/// A rail, its report and a region of it that is exposed to a peer, which says that it is in the middle
/// of a piece.
fn visited(number: u64) -> ([(ShmRail, Node); 2], LinkId, RemoteKey) {
    let [near, (mut rail, node)] = linked(number);
    let link = node.up.expect("up");
    let key = RemoteKey { slot: SlotId { index: 1, generation: 1 }, secret: 1 };
    let verb = Verb::Expose { link, key, region: node.memory, writable: true };
    assert_eq!(rail.order(&verb, &node.buffers), Ordered::Released);
    let segment = rail.segment_of(link);
    let index = u64::from(key.slot.index);
    segment.accessing(Side(0)).store(index + 1, std::sync::atomic::Ordering::SeqCst);
    ([near, (rail, node)], link, key)
}

#[test]
fn no_revocation_waits_for_a_reader_that_is_stopped() {
    let [_near, (mut rail, mut node)] = linked_by_name("reader");
    let link = node.up.expect("up");
    let segment = rail.segment_of(link);
    for (index, writable) in [(3, false), (4, true)] {
        let key = RemoteKey { slot: SlotId { index, generation: 1 }, secret: 1 };
        let verb = Verb::Expose { link, key, region: node.memory, writable };
        assert_eq!(rail.order(&verb, &node.buffers), Ordered::Released);
        let accessing = segment.accessing(Side(0));
        accessing.store(u64::from(index) + 1, std::sync::atomic::Ordering::SeqCst);
        assert_eq!(rail.order(&Verb::Revoke { link, key }, &node.buffers), Ordered::Released);
        rail.poll(Time(u64::from(index)), &mut node);
        let left = !node.revoked.contains(&key);
        assert_eq!(left, writable, "one that may be writing is waited for");
    }
}

#[test]
fn a_region_that_was_left_is_work_also_behind_a_full_ring() {
    let ([_near, (mut rail, mut node)], link, key) = visited(1003);
    let mut header = [0u8; 24];
    header[1] = 24;
    header[4..8].copy_from_slice(&(node.memory.len as u32).to_le_bytes());
    let (urgency, header) = (Urgency::Bulk, Header::new(&header));
    let frame = FrameOrder { link, header, payload: node.memory, urgency, token: Token(1) };
    while rail.send(&frame, &node.buffers) == Ordered::Released {}
    rail.order(&Verb::Revoke { link, key }, &node.buffers);
    rail.poll(Time(1), &mut node);
    assert!(rail.arm(), "the peer neither reads nor leaves");
    rail.disarm();
    rail.poll(Time(2), &mut node);
    let segment = rail.segment_of(link);
    segment.accessing(Side(0)).store(0, std::sync::atomic::Ordering::SeqCst);
    assert!(!rail.arm(), "it has left, and rings for nobody that is awake");
    rail.poll(Time(3), &mut node);
    assert_eq!(node.revoked, [key]);
}

#[test]
fn a_rail_rings_for_itself_once_in_a_sleep_and_never_awake() {
    let [_near, (mut rail, mut node)] = linked(1004);
    let link = node.up.expect("up");
    let expose_and_revoke = |rail: &mut ShmRail, node: &Node| {
        for index in 1..10 {
            let key = RemoteKey { slot: SlotId { index, generation: 1 }, secret: 1 };
            let (region, writable) = (node.memory, true);
            rail.order(&Verb::Expose { link, key, region, writable }, &node.buffers);
            rail.order(&Verb::Revoke { link, key }, &node.buffers);
        }
    };
    let calls = rail.counters().system_calls;
    expose_and_revoke(&mut rail, &node);
    assert_eq!(rail.counters().system_calls, calls);
    for sleep in 0..3 {
        while !rail.arm() {
            rail.poll(Time(sleep), &mut node);
        }
        let calls = rail.counters().system_calls;
        expose_and_revoke(&mut rail, &node);
        assert_eq!(rail.counters().system_calls, calls + 1);
        rail.disarm();
        rail.poll(Time(sleep), &mut node);
    }
    assert_eq!(node.revoked.len(), 4 * 9);
}
