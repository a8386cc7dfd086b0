//! Cancel beside a peer that is stopped: every operation ends, its memory is its owner's at once, and operations
//! that were not cancelled complete when the peer goes on.
//!
//! The peer is a real process: this test's own binary, run again with an environment variable.

mod common;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::time::{Duration, Instant};

use common::{Medium, World, pattern};
use ropewalk_base::error::Fault;
use ropewalk_base::memory::Memory;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{RemoteKey, RemoteLayout};
use ropewalk_net::context::Completed;
use ropewalk_net::{
    Audience, Channel, Direction, EndpointConfig, Level, OperationId, Oversize, PeerId, Posted,
};
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

const PEER: &str = "ROPEWALK_TEST_STOPPED_PEER";
const PATIENCE: Duration = Duration::from_secs(60);
const REGION_BYTES: usize = 8 << 20;
const REGION_SEED: u8 = 77;
/// Small messages: more than rings, sockets and windows take together.
const SMALL: u64 = 220;
const SMALL_BYTES: usize = 16_000;
const LARGE_BYTES: usize = 64 << 20;
/// Too long to leave at once over any medium.
const ANNOUNCED_BYTES: usize = 2_000_000;

/// Credit that outlasts the medium, so that frames wait in the rail; and a name that no other process
/// gives itself.
fn generous(config: &mut EndpointConfig) {
    config.endpoint.0 |= u128::from(std::process::id()) << 64;
    config.core.eager_window_bytes = 4 << 20;
    config.core.eager_window_bytes_max = 8 << 20;
}

fn sum(bytes: &[u8]) -> u32 {
    ropewalk_base::checksum::append(0, bytes)
}

fn sum_of_pattern(len: usize, seed: u8) -> u32 {
    sum(&(0..len).map(|index| pattern(index, seed)).collect::<Vec<u8>>())
}

/// The peer's program: it carries out the operations that it is told, and prints a line for each that ended.
fn play(medium: Medium) {
    let mut world = World::new(medium);
    world.add_with(generous);
    println!("@address {}", world.nodes[0].endpoint.addresses());
    let (lines, commands) = channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lines().map_while(Result::ok) {
            if lines.send(line).is_err() {
                return;
            }
        }
    });
    let mut stop_at = None;
    loop {
        world.step();
        if stop_at.is_some_and(|bytes| bytes_received(&world) >= bytes) {
            stop_at = None;
            kill_process(getpid(), Signal::STOP).expect("a process may stop itself");
        }
        for completed in std::mem::take(&mut world.nodes[0].done) {
            let Completed { user, outcome, bytes, memory, .. } = completed;
            let sum = memory.into_pooled().map_or(0, |buffer| sum(&buffer[..bytes as usize]));
            println!("@done {user} {} {bytes} {sum}", outcome_name(outcome));
        }
        match commands.try_recv() {
            Ok(line) => match line.strip_prefix("stop-after ") {
                Some(more) => {
                    stop_at = Some(bytes_received(&world) + more.parse::<u64>().expect("a number"));
                }
                None => obey(&mut world, &line),
            },
            Err(TryRecvError::Empty) => std::thread::yield_now(),
            Err(TryRecvError::Disconnected) => return,
        }
    }
}

fn bytes_received(world: &World) -> u64 {
    world.nodes[0].endpoint.counters().1[0].1.bytes_received
}

fn outcome_name(outcome: Result<(), Fault>) -> String {
    outcome.map_or_else(|fault| format!("{fault:?}"), |()| "ok".into())
}

fn obey(world: &mut World, line: &str) {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |index: usize| words[index].parse::<u64>().expect("a number");
    match words[0] {
        "receive" => receive(world, number(1), number(2) as usize, number(3)),
        "send" => {
            let address = ropewalk_rail::address::Address::parse(words[1]).expect("an address");
            let to = world.nodes[0].endpoint.lookup(&address).expect("a peer");
            send(world, to, number(2), number(3) as usize, number(4) as u8, number(5));
        }
        "expose" => {
            let memory = world.memory(REGION_BYTES, REGION_SEED);
            let key = world.nodes[0].endpoint.expose(memory, true, Audience::Everybody);
            let RemoteKey { slot, secret } = key.expect("room for a region");
            println!("@key {} {} {secret}", slot.index, slot.generation);
        }
        other => panic!("no such command: {other}"),
    }
}

/// Not a test of its own: the body of the peers, which run this binary with the variable set.
#[test]
fn peer() {
    match std::env::var(PEER).as_deref() {
        Ok("tcp") => play(Medium::Tcp),
        Ok("shm") => play(Medium::Shm),
        Ok("ring") => play(Medium::ShmRing),
        _ => {}
    }
}

fn receive(world: &mut World, bits: u64, len: usize, user: u64) {
    let memory = Memory::pooled(world.pool.take(len).expect("within the budget"));
    let node = &world.nodes[0];
    let (channel, mask, cut) = (Channel::Tagged, u64::MAX, Oversize::Truncate);
    let posted =
        node.endpoint.post_receive(&node.context, channel, None, bits, mask, memory, cut, user);
    world.posted(0, posted);
}

fn send(world: &mut World, to: PeerId, bits: u64, len: usize, seed: u8, user: u64) {
    let memory = world.memory(len, seed);
    let node = &world.nodes[0];
    let (channel, level) = (Channel::Tagged, Level::Buffered);
    let posted = node.endpoint.post_send(&node.context, to, channel, bits, memory, level, user);
    world.posted(0, posted);
}

/// A peer process.
struct Peer {
    process: std::process::Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    address: String,
    /// The outcome and checksum of each operation that it reported as ended, by number.
    done: BTreeMap<u64, (String, u32)>,
}

impl Peer {
    fn start(medium: Medium) -> Peer {
        let binary = std::env::current_exe().expect("this test runs");
        let mut command = Command::new(binary);
        let scheme = match medium {
            Medium::Tcp => "tcp",
            Medium::ShmRing => "ring",
            _ => "shm",
        };
        command.args(["--exact", "peer", "--nocapture"]).env(PEER, scheme);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("this binary can run again");
        let output = process.stdout.take().expect("piped");
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                // The test harness writes to the same lines.
                if let Some((_, line)) = line.split_once('@') {
                    let _ = sender.send(line.to_string());
                }
            }
        });
        let input = process.stdin.take();
        let address = String::new();
        let mut peer = Peer { process, input, lines, address, done: BTreeMap::new() };
        peer.address = peer.answer("address ");
        peer
    }

    fn say(&mut self, line: &str) {
        writeln!(self.input.as_mut().expect("open"), "{line}").expect("the peer lives");
    }

    /// The rest of its next line that begins so; operations that ended before are noted.
    fn answer(&mut self, begin: &str) -> String {
        loop {
            let line = self.lines.recv_timeout(PATIENCE).expect("the peer says something");
            match line.strip_prefix(begin) {
                Some(rest) => return rest.to_string(),
                None => self.note(&line),
            }
        }
    }

    fn note(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        assert_eq!(words[0], "done", "{line}");
        let user = words[1].parse().expect("a number");
        let sum = words[4].parse().expect("a checksum");
        let before = self.done.insert(user, (words[2].to_string(), sum));
        assert!(before.is_none(), "{user} ended twice at the peer");
    }

    fn listen(&mut self) {
        while let Ok(line) = self.lines.try_recv() {
            self.note(&line);
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Whether it has stopped since this was asked last.
    fn has_stopped(&self) -> bool {
        let options = WaitOptions::UNTRACED | WaitOptions::NOHANG;
        let status = waitpid(Some(self.pid()), options).expect("our child");
        status.is_some_and(|(_, status)| status.stopped())
    }

    fn stop(&self) {
        kill_process(self.pid(), Signal::STOP).expect("the peer lives");
        let status = waitpid(Some(self.pid()), WaitOptions::UNTRACED).expect("our child");
        assert!(status.is_some_and(|(_, status)| status.stopped()), "the peer is stopped");
    }

    fn go_on(&self) {
        kill_process(self.pid(), Signal::CONT).expect("the peer lives");
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// This process's side: operations that were posted, operations that ended, memory that came back.
struct Scene {
    world: World,
    peer: Peer,
    to: PeerId,
    operations: BTreeMap<u64, OperationId>,
    ended: BTreeMap<u64, Result<(), Fault>>,
    /// Overwritten at once; nothing may land there.
    reused: Vec<ropewalk_base::pool::PoolBuffer>,
}

impl Scene {
    /// Two endpoints here, and one in a process of its own to which a session runs.
    fn start(medium: Medium) -> Scene {
        let mut peer = Peer::start(medium);
        let mut world = World::new(medium);
        world.add_with(generous);
        world.add_with(generous);
        let address = ropewalk_rail::address::Address::parse(&peer.address).expect("an address");
        let to = world.nodes[0].endpoint.lookup(&address).expect("a peer");
        peer.say("receive 5 100 5");
        let (operations, ended) = (BTreeMap::new(), BTreeMap::new());
        let mut scene = Scene { world, peer, to, operations, ended, reused: Vec::new() };
        scene.send(5, 100, 5);
        scene.until("a session", |scene| scene.peer.done.contains_key(&5));
        scene
    }

    fn posted(&mut self, user: u64, posted: Result<Posted, (Memory, Fault)>) {
        match posted {
            Ok(Posted::Pending(operation)) => drop(self.operations.insert(user, operation)),
            Ok(Posted::Done(completed)) => self.world.nodes[0].done.push(completed),
            Err((_, fault)) => panic!("a post was refused: {fault}"),
        }
    }

    /// A message whose bits are its number, and the seed of its bytes.
    fn send(&mut self, bits: u64, len: usize, user: u64) {
        let memory = self.world.memory(len, bits as u8);
        let node = &self.world.nodes[0];
        let (channel, level) = (Channel::Tagged, Level::Buffered);
        let posted =
            node.endpoint.post_send(&node.context, self.to, channel, bits, memory, level, user);
        self.posted(user, posted);
    }

    fn receive(&mut self, bits: u64, len: usize, user: u64) {
        let memory = self.world.memory(len, 0);
        let node = &self.world.nodes[0];
        let (channel, mask, cut) = (Channel::Tagged, u64::MAX, Oversize::Truncate);
        let posted =
            node.endpoint.post_receive(&node.context, channel, None, bits, mask, memory, cut, user);
        self.posted(user, posted);
    }

    fn access(&mut self, direction: Direction, key: RemoteKey, offset: u64, len: usize, user: u64) {
        let memory = self.world.memory(len, user as u8);
        let (node, remote) = (&self.world.nodes[0], RemoteLayout::At(offset));
        let posted =
            node.endpoint.post_access(&node.context, direction, self.to, key, remote, memory, user);
        self.posted(user, posted);
    }

    fn step(&mut self) {
        self.world.step();
        self.peer.listen();
    }

    fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Scene) -> bool) {
        let begin = Instant::now();
        while !holds(self) {
            self.step();
            assert!(begin.elapsed() < PATIENCE, "{:?}: no {what}", self.world.medium);
        }
    }

    /// Cancels those operations that did not end so far, and waits until they have; their memory is overwritten.
    fn cancel(&mut self, users: &[u64]) {
        for user in users {
            if let Some(operation) = self.operations.get(user) {
                self.world.nodes[0].endpoint.cancel(*operation);
            }
        }
        for &user in users {
            let completed = self.world.take(0, user);
            self.ended.insert(user, completed.outcome);
            let mut buffer = completed.memory.into_pooled().expect("pooled");
            buffer.fill(0xEE);
            self.reused.push(buffer);
        }
    }

    /// Operations within this process proceed while the peer sleeps.
    fn neighbours_are_served(&mut self) {
        let near = self.world.peer(1, 0);
        for (bits, len) in [(900, 100), (901, 2 << 20)] {
            let memory = self.world.memory(len, bits as u8);
            let node = &self.world.nodes[1];
            let (channel, level) = (Channel::Tagged, Level::Buffered);
            let posted =
                node.endpoint.post_send(&node.context, near, channel, bits, memory, level, bits);
            self.world.posted(1, posted);
            receive(&mut self.world, bits, len, bits);
            let completed = self.world.take(0, bits);
            assert_eq!(completed.outcome, Ok(()));
            common::check(completed.memory, len, bits as u8);
            assert_eq!(self.world.take(1, bits).outcome, Ok(()));
        }
    }

    fn finish(mut self) {
        // The session is the same, and works both ways.
        self.peer.say("receive 990 70000 990");
        self.send(990, 70_000, 990);
        self.until("message after all", |scene| scene.peer.done.contains_key(&990));
        assert_eq!(self.peer.done[&990], ("ok".into(), sum_of_pattern(70_000, 990u64 as u8)));
        let (counters, _) = self.world.nodes[0].endpoint.counters();
        assert_eq!((counters.resets, counters.violations), (0, 0));
        self.world.nodes[0].endpoint.check();
        for buffer in &self.reused {
            assert!(buffer.iter().all(|byte| *byte == 0xEE), "late data received");
        }
    }
}

fn even(user: &u64) -> bool {
    user.is_multiple_of(2)
}

/// Numbers of the two sends, puts and gets of which the first is cancelled.
const LARGE: [u64; 2] = [20, 21];
const ANNOUNCED: [u64; 2] = [22, 23];
const PUTS: [u64; 2] = [24, 25];
const GETS: [u64; 2] = [26, 27];

/// Everything that can be under way to a peer, which is stopped in the middle of a large message.
fn busy_with_a_stopped_peer(scene: &mut Scene) -> RemoteKey {
    scene.peer.say("expose");
    let key = scene.peer.answer("key ");
    let words: Vec<u64> = key.split(' ').map(|word| word.parse().expect("a number")).collect();
    let slot = SlotId { index: words[0] as u32, generation: words[1] as u32 };
    let key = RemoteKey { slot, secret: words[2] };
    for small in 100..100 + SMALL {
        scene.peer.say(&format!("receive {small} {SMALL_BYTES} {small}"));
    }
    for user in LARGE.into_iter().chain(ANNOUNCED) {
        scene.peer.say(&format!("receive {user} {LARGE_BYTES} {user}"));
    }
    scene.peer.say("receive 6 100 6");
    scene.send(6, 100, 6);
    scene.until("posted receives", |scene| scene.peer.done.contains_key(&6));
    let tcp = scene.world.medium == Medium::Tcp;
    if tcp {
        // It stops itself: a pass of ours may send all at once, where the peer is fast.
        scene.peer.say("stop-after 2000000");
        scene.peer.say("receive 7 100 7");
        scene.send(7, 100, 7);
        scene.until("the peer's readiness", |scene| scene.peer.done.contains_key(&7));
    }
    for user in LARGE {
        scene.send(user, LARGE_BYTES, user);
    }
    if tcp {
        scene.until("data under way", |scene| scene.peer.has_stopped());
    } else {
        (0..20).for_each(|_| scene.step());
        scene.peer.stop();
    }
    for user in ANNOUNCED {
        scene.send(user, ANNOUNCED_BYTES, user);
    }
    scene.access(Direction::Put, key, 0, 1 << 20, PUTS[0]);
    scene.access(Direction::Put, key, 4 << 20, 1 << 20, PUTS[1]);
    scene.access(Direction::Get, key, 6 << 20, 1 << 20, GETS[0]);
    scene.access(Direction::Get, key, 6 << 20, 1 << 20, GETS[1]);
    for small in 100..100 + SMALL {
        scene.send(small, SMALL_BYTES, small);
    }
    // As much as the medium takes.
    (0..300).for_each(|_| scene.step());
    key
}

fn sends_are_cancelled(medium: Medium) {
    let mut scene = Scene::start(medium);
    let key = busy_with_a_stopped_peer(&mut scene);
    let mut given_up = vec![LARGE[0], ANNOUNCED[0], PUTS[0], GETS[0]];
    given_up.extend((100..100 + SMALL).filter(even));
    scene.cancel(&given_up);
    // All have ended, and the peer still sleeps.
    scene.neighbours_are_served();
    let ended = |user: u64| scene.ended[&user];
    let cancelled = Err(Fault::Cancelled);
    let under_way = (100..100 + SMALL).filter(|&user| even(&user) && ended(user) == cancelled);
    let under_way = under_way.count();
    // The number of cancelled messages depends on the kernel's socket buffers.
    assert!(under_way > 20, "{under_way} small messages were cancelled in the rail");
    assert_eq!(ended(ANNOUNCED[0]), cancelled);
    if medium == Medium::Tcp {
        assert_eq!([LARGE[0], PUTS[0], GETS[0]].map(ended), [cancelled; 3]);
    }
    let counters = scene.world.nodes[0].endpoint.counters().0;
    assert!(counters.frames_detached > 20, "{counters:?}");
    scene.peer.go_on();
    for user in [LARGE[1], ANNOUNCED[1], PUTS[1], GETS[1]] {
        let completed = scene.world.take(0, user);
        assert_eq!(completed.outcome, Ok(()), "{medium:?}: {user}");
        if user == GETS[1] {
            holds_region(completed.memory, 6 << 20);
        }
    }
    let mut kept: Vec<u64> = (100..100 + SMALL).filter(|user| !even(user)).collect();
    kept.extend([LARGE[0], LARGE[1], ANNOUNCED[1]]);
    scene.until("what was not cancelled", |scene| {
        kept.iter().all(|user| scene.peer.done.contains_key(user))
    });
    if scene.ended[&LARGE[0]] == cancelled {
        assert_eq!(scene.peer.done[&LARGE[0]].0, "Cancelled", "the peer is told");
    }
    // Each delivered message is as it was posted, whether its sender gave it up or not.
    for (user, (outcome, sum)) in scene.peer.done.clone() {
        let len = match user {
            100.. => SMALL_BYTES,
            20 | 21 => LARGE_BYTES,
            22 | 23 => ANNOUNCED_BYTES,
            _ => 100,
        };
        let gave_up = outcome == "Cancelled" && (user == LARGE[0] || user == ANNOUNCED[0]);
        assert!(gave_up || outcome == "ok", "{user} ended with {outcome} at the peer");
        assert!(gave_up || sum == sum_of_pattern(len, user as u8), "bytes of {user}");
    }
    scene.access(Direction::Get, key, 4 << 20, 1 << 20, 30);
    let completed = scene.world.take(0, 30);
    assert_eq!(completed.outcome, Ok(()));
    common::check(completed.memory, 1 << 20, PUTS[1] as u8);
    scene.finish();
}

/// The part of the peer's region that begins at `offset`, which nobody wrote.
fn holds_region(memory: Memory, offset: usize) {
    let bytes = memory.into_pooled().expect("pooled");
    let expected = (offset..).map(|index| pattern(index, REGION_SEED));
    assert!(bytes.iter().copied().zip(expected).all(|(byte, expected)| byte == expected));
}

#[test]
fn sends_to_a_stopped_process_are_cancelled_over_tcp() {
    sends_are_cancelled(Medium::Tcp);
}

#[test]
fn sends_to_a_stopped_process_are_cancelled_over_shared_memory() {
    sends_are_cancelled(Medium::Shm);
}

fn receives_are_cancelled(medium: Medium) {
    let mut scene = Scene::start(medium);
    let address = scene.world.nodes[0].endpoint.addresses().to_string();
    for bits in [40, 41] {
        scene.peer.say(&format!("send {address} {bits} {LARGE_BYTES} {bits} {bits}"));
    }
    scene.until("announces", |scene| scene.world.nodes[0].endpoint.unmatched_count() == 2);
    // Otherwise the bytes are read without the peer's help.
    let helped = medium != Medium::Shm;
    if !helped {
        scene.peer.stop();
    }
    scene.receive(40, LARGE_BYTES, 40);
    scene.receive(41, LARGE_BYTES, 41);
    scene.receive(42, 100, 42);
    let moved = |scene: &Scene| {
        let counters = scene.world.nodes[0].endpoint.counters().1[0].1;
        counters.bytes_received + counters.bytes_native
    };
    let before = moved(&scene);
    scene.until("data under way", |scene| moved(scene) > before + (1 << 20));
    if helped {
        scene.peer.stop();
        (0..300).for_each(|_| scene.step());
    }
    scene.cancel(&[40, 42]);
    let cancelled = Err(Fault::Cancelled);
    assert_eq!((scene.ended[&40], scene.ended[&42]), (cancelled, cancelled));
    scene.neighbours_are_served();
    scene.peer.go_on();
    let completed = scene.world.take(0, 41);
    assert_eq!(completed.outcome, Ok(()));
    common::check(completed.memory, LARGE_BYTES, 41);
    scene.until("the peer's sends", |scene| {
        scene.peer.done.contains_key(&40) && scene.peer.done.contains_key(&41)
    });
    assert_eq!((&*scene.peer.done[&40].0, &*scene.peer.done[&41].0), ("Cancelled", "ok"));
    scene.finish();
}

#[test]
fn receives_from_a_stopped_process_are_cancelled_over_tcp() {
    receives_are_cancelled(Medium::Tcp);
}

#[test]
fn receives_from_a_stopped_process_are_cancelled_over_shared_memory() {
    receives_are_cancelled(Medium::Shm);
}

#[test]
fn receives_from_a_stopped_process_are_cancelled_over_the_ring() {
    receives_are_cancelled(Medium::ShmRing);
}
