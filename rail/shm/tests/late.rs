//! Late data never lands: after `revoked` no write of a peer reaches the region, and no read returns data that
//! entered it later, however the two race. And names: the holder of a name keeps it.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use ropewalk_base::error::Fault;
use ropewalk_base::memory::{BufferTable, Memory, Segment, Slice};
use ropewalk_base::pool::Pool;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{
    Capabilities, Help, LinkId, Ordered, Placement, RemoteKey, RemoteLayout, Token, Verb,
};
use ropewalk_rail::{Rail, Report};
use ropewalk_rail_shm::{Attach, ShmConfig, ShmError, ShmRail, arena};

const BYTES: usize = 3 << 20;
const MARK: u8 = 0xEE;
/// The bytes of one read: all of it within one look at the key.
const READ_BYTES: u64 = 512 * 1024;

struct Node {
    buffers: BufferTable,
    memory: Slice,
    up: Option<LinkId>,
    down: bool,
    revoked: u32,
    outcome: Option<Result<(), Fault>>,
}

impl Node {
    fn new(fill: u8) -> Node {
        let pool = Pool::with_budget(16 << 20);
        let mut buffers = BufferTable::with_limit(4);
        let mut buffer = pool.take(BYTES).expect("within the budget");
        buffer.fill(fill);
        let buffer = buffers.insert(Memory::pooled(buffer)).expect("within the limit");
        let memory = Slice { buffer, offset: 0, len: BYTES as u64 };
        Node { buffers, memory, up: None, down: false, revoked: 0, outcome: None }
    }

    /// The same with memory that peers map.
    fn in_arena() -> Node {
        let address = arena::allocate(BYTES).expect("room").as_ptr();
        // SAFETY: it has as many bytes, and is never given back.
        let memory = unsafe { Memory::from_raw(&[Segment::new(address, BYTES)], true) };
        let mut buffers = BufferTable::with_limit(4);
        let buffer = buffers.insert(memory).expect("within the limit");
        let memory = Slice { buffer, offset: 0, len: BYTES as u64 };
        Node { buffers, memory, up: None, down: false, revoked: 0, outcome: None }
    }

    fn fill(&self, byte: u8) {
        self.buffers.write(self.memory, &vec![byte; self.memory.len as usize]);
    }

    fn holds_only(&self, byte: u8) -> bool {
        let mut bytes = vec![0; self.memory.len as usize];
        self.buffers.read(self.memory, &mut bytes);
        bytes.iter().all(|found| *found == byte)
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
    fn place(&mut self, _: LinkId, _: &[u8], _: u32) -> Placement {
        Placement::Drop
    }
    fn received(&mut self, _: LinkId, _: Token) {}
    fn done(&mut self, _: Token) {
        self.outcome = Some(Ok(()));
    }
    fn failed(&mut self, _: Token, fault: Fault) {
        self.outcome = Some(Err(fault));
    }
    fn revoked(&mut self, _: LinkId, _: RemoteKey) {
        self.revoked += 1;
    }
}

/// Whether reads of a node's memory need no system call.
fn arena_of(node: &Node) -> bool {
    let piece = node.buffers.resolve(node.memory).next().expect("it has bytes");
    arena::find(piece.address() as u64, piece.len() as u64).is_some()
}

fn key(generation: u32) -> RemoteKey {
    RemoteKey { slot: SlotId { index: 2, generation }, secret: u64::from(generation) }
}

/// The origin: writes or reads under the newest key it knows, without pause. Returns how often it succeeded and how
/// often the key was gone, before or in the middle, and the kernel's part in it. The bytes that it reads have to be
/// those that the key was given out for.
///
/// Memory that is mapped is read even where frames would do and the kernel's way is never taken.
fn origin(
    address: &str,
    newest: &AtomicU32,
    stop: &AtomicBool,
    write: bool,
    mapped: bool,
) -> (u32, u32, u64) {
    let start = Instant::now();
    let now = || Time(start.elapsed().as_nanos() as u64);
    let attach = if mapped { Attach::Never } else { Attach::Always };
    let mut rail = ShmRail::open(ShmConfig { attach, ..ShmConfig::default() }).expect("a rail");
    let mut node = Node::new(0x11);
    if !write {
        node.memory = node.memory.part(0, READ_BYTES);
    }
    let link = rail.connect(address, now()).expect("a legal address");
    let (mut good, mut bad, mut calls) = (0, 0, 0);
    while !stop.load(Ordering::Relaxed) {
        rail.poll(now(), &mut node);
        if node.up.is_none() {
            continue;
        }
        let generation = newest.load(Ordering::Relaxed).max(1);
        let key = key(generation);
        let (remote, local, token) = (RemoteLayout::At(0), node.memory, Token(1));
        let verb = match write {
            true => Verb::Write { link, key, remote, local, token },
            false => Verb::Read { link, key, remote, local, token, help: Help::Possible },
        };
        if mapped {
            // A peer that has nobody else to send to fills the ring meanwhile.
            let (remote, help) = (RemoteLayout::At(0), Help::PreferPush);
            let gladly = Verb::Read { link, key, remote, local, token, help };
            let answer = rail.order(&gladly, &node.buffers);
            assert_eq!(answer, Ordered::Refused(Fault::NotPermitted));
        }
        let before = rail.counters().system_calls;
        node.outcome = match rail.order(&verb, &node.buffers) {
            Ordered::Released => Some(Ok(())),
            Ordered::Refused(fault) => Some(Err(fault)),
            Ordered::Pending => None,
        };
        calls += rail.counters().system_calls - before;
        while node.outcome.is_none() {
            rail.poll(now(), &mut node);
        }
        match node.outcome.take() {
            Some(Ok(())) => {
                good += 1;
                assert!(write || node.holds_only(generation as u8), "bytes of another time");
            }
            Some(Err(Fault::BadKey)) => bad += 1,
            // Nothing is exposed yet.
            Some(Err(Fault::NotPermitted)) if mapped && good == 0 => {}
            other => panic!("{other:?}"),
        }
    }
    (good, bad, calls)
}

fn race(config: ShmConfig, write: bool, mut node: Node) {
    let mapped = arena_of(&node);
    let start = Instant::now();
    let now = || Time(start.elapsed().as_nanos() as u64);
    let mut rail = ShmRail::open(config).expect("a fresh name");
    let address = rail.addresses().remove(0);
    let (newest, stop) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let origin = scope.spawn(|| origin(&address, &newest, &stop, write, mapped));
        if !write {
            node.memory = node.memory.part(0, READ_BYTES);
        }
        // A reader in the middle of its copy meets the end of this first.
        let end = node.memory.part(node.memory.len - 4096, 4096);
        while node.up.is_none() {
            rail.poll(now(), &mut node);
        }
        let link = node.up.expect("just seen");
        for generation in 1..=if write { 150 } else { 500 } {
            let (region, writable) = (node.memory, write);
            node.fill(generation as u8);
            let verb = Verb::Expose { link, key: key(generation), region, writable };
            assert_eq!(rail.order(&verb, &node.buffers), Ordered::Released);
            newest.store(generation, Ordering::Relaxed);
            let until = Instant::now() + Duration::from_micros(u64::from(generation % 13) * 100);
            while Instant::now() < until {
                rail.poll(now(), &mut node);
            }
            rail.order(&Verb::Revoke { link, key: key(generation) }, &node.buffers);
            while node.revoked < generation {
                rail.poll(now(), &mut node);
            }
            node.buffers.write(end, &[MARK; 4096]);
            node.fill(MARK);
            std::thread::yield_now();
            assert!(node.holds_only(MARK), "a write received after revocation {generation}");
        }
        stop.store(true, Ordering::Relaxed);
        let (good, bad, calls) = origin.join().expect("the origin does not panic");
        println!("{good} accesses, {bad} refused, {calls} system calls");
        assert!(bad > 0, "the race never happened");
        assert!(!mapped || write || calls == 0, "what is mapped is read without the kernel");
    });
}

#[test]
fn nothing_lands_after_a_revocation_between_processes() {
    race(ShmConfig::generated(), true, Node::new(0));
}

#[test]
fn nothing_is_read_of_what_comes_after_a_revocation() {
    race(ShmConfig::generated(), false, Node::new(0));
    race(ShmConfig::within_process("later"), false, Node::new(0));
    race(ShmConfig::generated(), false, Node::in_arena());
}

#[test]
fn nothing_lands_after_a_revocation_within_a_process() {
    race(ShmConfig::within_process("late"), true, Node::new(0));
    race(ShmConfig::generated(), true, Node::in_arena());
}

#[test]
fn a_name_has_one_owner_and_is_free_after_it() {
    let name = format!("owner-{}", std::process::id());
    for within_process in [false, true] {
        let config = ShmConfig { within_process, ..ShmConfig::named(&name) };
        let first = ShmRail::open(config.clone()).expect("a fresh name");
        let second = ShmRail::open(config.clone()).map(|_| ()).expect_err("the name is taken");
        assert!(matches!(&second, ShmError::NameInUse { name: taken } if *taken == name));
        assert!(second.to_string().contains(&name));
        drop(first);
        ShmRail::open(config).expect("free again");
    }
    for bad in ["", "a/b", "a b", "a,b"] {
        let config = ShmConfig::named(bad);
        assert!(matches!(ShmRail::open(config), Err(ShmError::BadName { .. })), "{bad:?}");
    }
    let Capabilities { same_host_only, native_read, .. } =
        ShmRail::open(ShmConfig::default()).expect("a rail").capabilities();
    assert!(same_host_only && native_read);
}
