//! A process that runs out of descriptors parks idle links, no matter which side connects.

mod common;

use std::os::fd::AsRawFd;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use common::{Medium, World, bound_rails};
use ropewalk_base::ids::EndpointId;
use ropewalk_net::{Channel, Level, Oversize, PeerId};
use ropewalk_rail::address::Address;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const CHILD: &str = "ROPEWALK_TEST_SCARCE_CHILD";
/// Endpoints that the child connects to, and as many that connect to it.
const PEERS: usize = 12;
/// Links for which the child has descriptors.
const ROOM: u64 = 5;
const ROUNDS: u64 = 3;
const LIMIT: Duration = Duration::from_secs(60);

fn send(world: &mut World, from: usize, to: PeerId, channel: Channel, user: u64) {
    let memory = world.memory(100, user as u8);
    let node = &world.nodes[from];
    let level = Level::Buffered;
    let posted = node.endpoint.post_send(&node.context, to, channel, user, memory, level, user);
    world.posted(from, posted);
}

fn receive(world: &mut World, at: usize, source: Option<PeerId>, user: u64) {
    let memory = world.memory(100, 0);
    let node = &world.nodes[at];
    let (channel, cut) = (Channel::Tagged, Oversize::Truncate);
    let posted =
        node.endpoint.post_receive(&node.context, channel, source, 0, 0, memory, cut, user);
    world.posted(at, posted);
}

/// Not a test of its own: the child process of the next test runs it.
#[test]
fn scarce_child() {
    let Ok(given) = std::env::var(CHILD) else { return };
    let (paths, given) = given.split_once(' ').unwrap();
    let (path, addresses) = given.split_once(' ').unwrap();
    let mut world = World::new(Medium::Tcp);
    // Its numbers begin where its parent's do.
    world.add_over_all(bound_rails(paths.parse().unwrap()), |config| {
        config.endpoint = EndpointId(1 << 32);
    });
    let own = world.nodes[0].endpoint.addresses().to_string();
    std::fs::write(format!("{path}.ready"), own).unwrap();
    std::fs::rename(format!("{path}.ready"), path).unwrap();
    // Later there is no descriptor to write it with.
    std::fs::write(format!("{path}.first"), "").unwrap();
    let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd() as u64;
    let before = getrlimit(Resource::Nofile);
    let scarce = Rlimit { current: Some(next + ROOM), maximum: before.maximum };
    setrlimit(Resource::Nofile, scarce).unwrap();
    let lookup =
        |text: &str| world.nodes[0].endpoint.lookup(&Address::parse(text).unwrap()).unwrap();
    let peers: Vec<PeerId> = addresses.split(' ').map(lookup).collect();
    assert_eq!(peers.len(), PEERS);
    for round in 0..ROUNDS {
        for (number, peer) in (0..).zip(&peers) {
            // All at once: there are not enough descriptors for it.
            receive(&mut world, 0, Some(*peer), 1000 + round * 100 + number);
            send(&mut world, 0, *peer, Channel::Request, round * 100 + number);
        }
        for number in 0..PEERS as u64 {
            let received = world.take(0, 1000 + round * 100 + number);
            assert_eq!((received.outcome, received.bits), (Ok(()), round * 100 + number));
            assert_eq!(world.take(0, round * 100 + number).outcome, Ok(()));
        }
    }
    std::fs::rename(format!("{path}.first"), format!("{path}.half")).unwrap();
    let (begin, mut answered) = (Instant::now(), 0);
    while answered < ROUNDS * PEERS as u64 || !world.nodes[0].done.is_empty() {
        world.step();
        world.nodes[0].done.retain(|done| done.outcome != Ok(()));
        let request = world.nodes[0].endpoint.next_request();
        if let Some(request) = request {
            send(&mut world, 0, request.peer, Channel::Tagged, request.bits);
            answered += 1;
        }
        assert!(begin.elapsed() < LIMIT, "{answered} requests, {:?}", world.nodes[0].done);
    }
    while !std::fs::exists(format!("{path}.over")).unwrap() && begin.elapsed() < LIMIT {
        world.step();
    }
    let (core, rails) = world.nodes[0].endpoint.counters();
    assert_eq!((core.resets, core.violations), (0, 0));
    assert!(core.sessions_idle_closed > 2 * PEERS as u64 - ROOM);
    let links = rails.iter().map(|(_, counters)| counters.links_up - counters.links_down);
    assert!(links.sum::<u64>() <= ROOM);
}

struct Reaped(Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Answers requests at all endpoints but the first ones.
fn answer(world: &mut World) {
    for node in 0..PEERS {
        while let Some(request) = world.nodes[node].endpoint.next_request() {
            send(world, node, request.peer, Channel::Tagged, request.bits);
        }
    }
    world.step();
}

#[test]
fn a_process_without_descriptors_still_speaks_with_everybody() {
    speak_with_everybody(1);
}

#[test]
fn a_process_without_descriptors_still_speaks_with_peers_that_may_have_two_paths() {
    speak_with_everybody(2);
}

/// `paths`: how many each peer may have.
fn speak_with_everybody(paths: usize) {
    let mut world = World::new(Medium::Tcp);
    for _ in 0..2 * PEERS {
        world.add_over_all(bound_rails(paths), |_| {});
    }
    let addresses: Vec<&str> =
        world.nodes[..PEERS].iter().map(|node| node.endpoint.addresses()).collect();
    let addresses = addresses.join(" ");
    let name = format!("ropewalk-scarce-{paths}-{}", std::process::id());
    let path = std::env::temp_dir().join(name).to_str().unwrap().to_string();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "scarce_child", "--test-threads", "1"])
        .env(CHILD, format!("{paths} {path} {addresses}"))
        .spawn()
        .unwrap();
    let mut child = Reaped(child);
    let begin = Instant::now();
    while !std::fs::exists(format!("{path}.half")).unwrap() {
        answer(&mut world);
        assert!(begin.elapsed() < LIMIT, "the child does not reach its peers");
        assert!(child.0.try_wait().unwrap().is_none(), "the child ended");
    }
    let child_address = Address::parse(&std::fs::read_to_string(&path).unwrap()).unwrap();
    for round in 0..ROUNDS {
        for node in PEERS..2 * PEERS {
            let child = world.nodes[node].endpoint.lookup(&child_address).unwrap();
            receive(&mut world, node, None, 1000 + round);
            send(&mut world, node, child, Channel::Request, round);
        }
        for node in PEERS..2 * PEERS {
            while !world.nodes[node].done.iter().any(|done| done.user == 1000 + round) {
                answer(&mut world);
                assert!(begin.elapsed() < LIMIT, "the child does not answer {node}");
            }
            assert!(world.nodes[node].done.iter().all(|done| done.outcome == Ok(())));
        }
    }
    std::fs::write(format!("{path}.over"), "").unwrap();
    let ended = loop {
        answer(&mut world);
        if let Some(status) = child.0.try_wait().unwrap() {
            break status;
        }
        assert!(begin.elapsed() < LIMIT, "the child does not end");
    };
    assert!(ended.success());
    for node in &world.nodes[..2 * PEERS] {
        assert_eq!(node.endpoint.counters().0.violations, 0);
    }
    for end in ["", ".half", ".over"] {
        let _ = std::fs::remove_file(format!("{path}{end}"));
    }
}
