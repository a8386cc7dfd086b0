//! Connects in numbers, names, time limits, and the cost of frames in system calls and copies.

mod common;

use std::net::{TcpListener, TcpStream};
use std::time::Duration;

use common::{Loopback, Raw};
use ropewalk_base::error::Fault;
use ropewalk_base::verb::{Ordered, Urgency};
use ropewalk_rail::Rail;
use ropewalk_rail::conformance::recorder::Event;
use ropewalk_rail::conformance::scene::{Pair, Scene};
use ropewalk_rail_tcp::{TcpConfig, TcpError, TcpRail};

#[test]
fn a_thousand_simultaneous_connects_both_ways() {
    const CONNECTS: u64 = 1000;
    let mut loopback = Loopback::new("127.0.0.1:0");
    let mut scene = Scene::new(&mut loopback, 2);
    for _ in 0..CONNECTS {
        for (from, to) in [(0, 1), (1, 0)] {
            let address = scene.address(to);
            let now = scene.fixture.now();
            scene.rail(from).connect(&address, now).unwrap();
        }
    }
    scene.until("all links are up", |scene| {
        (0..2).all(|node| scene.counters(node).links_up == 2 * CONNECTS)
    });
    scene.settle();
    for node in 0..2 {
        let events = &scene.recorder(node).events;
        let accepted = events.iter().filter(|e| matches!(e, Event::Up { accepted: true, .. }));
        assert_eq!((events.len(), accepted.count()), (2000, 1000), "node {node}");
    }
    // With so many links every one still gets through.
    let pair = scene.link(0, 1);
    scene.send(pair, 1, 1000, Urgency::Urgent);
    scene.arrived(pair, 1);
}

#[test]
fn names_are_looked_up_without_blocking() {
    let connect_timeout = Duration::from_millis(500);
    let mut raw = Raw::open(TcpConfig { connect_timeout, ..TcpConfig::default() });
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let now = raw.now();
    // If localhost has a second address, nobody listens there, and the next one is tried.
    let link = raw.rail.connect(&format!("localhost:{port}"), now).unwrap();
    assert!(raw.rail.arm(), "the answer wakes a sleeper");
    raw.until(|raw| !raw.recorder.events.is_empty());
    assert_eq!(raw.recorder.events, [Event::Up { link, accepted: false }]);
    raw.recorder.events.clear();
    let now = raw.now();
    let link = raw.rail.connect("no-such-host.invalid:7000", now).unwrap();
    raw.until(|raw| !raw.recorder.events.is_empty());
    assert_eq!(raw.recorder.events, [Event::Down { link, fault: Fault::Unreachable }]);
    for wrong in ["", "localhost", "localhost:0", "a b:7", "127.0.0.1"] {
        assert_eq!(raw.rail.connect(wrong, now), Err(Fault::Invalid), "{wrong:?}");
    }
}

#[test]
fn a_connect_without_answer_ends_in_time() {
    let listener = full_listener();
    let connect_timeout = Duration::from_millis(200);
    let mut raw = Raw::open(TcpConfig { connect_timeout, ..TcpConfig::default() });
    let before = raw.now();
    let link = raw.rail.connect(&listener.address, before).unwrap();
    assert_eq!(raw.rail.deadline(), Some(before + connect_timeout));
    raw.until(|raw| !raw.recorder.events.is_empty());
    assert!(raw.now() >= before + connect_timeout, "the listener answered after all");
    assert_eq!(raw.recorder.events, [Event::Down { link, fault: Fault::Unreachable }]);
    assert_eq!(raw.rail.deadline(), None);
}

struct FullListener {
    address: String,
    _streams: Vec<TcpStream>,
    _socket: std::os::fd::OwnedFd,
}

/// A listener whose queue is full: the kernel leaves further connects unanswered.
fn full_listener() -> FullListener {
    use rustix::net::{AddressFamily, SocketType, bind, getsockname, listen, socket};
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None).unwrap();
    bind(&socket, &std::net::SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    listen(&socket, 0).unwrap();
    let address = std::net::SocketAddr::try_from(getsockname(&socket).unwrap()).unwrap();
    let mut streams = Vec::new();
    let patience = Duration::from_millis(200);
    while let Ok(stream) = TcpStream::connect_timeout(&address, patience) {
        streams.push(stream);
    }
    FullListener { address: address.to_string(), _streams: streams, _socket: socket }
}

#[test]
fn a_port_in_use_is_named_with_its_remedy() {
    let first = TcpRail::open(TcpConfig::listening("127.0.0.1:0".parse().unwrap())).unwrap();
    let address = first.local_address().unwrap();
    let error = TcpRail::open(TcpConfig::listening(address)).unwrap_err();
    assert!(matches!(error, TcpError::PortInUse(other) if other == address));
    let text = error.to_string();
    assert!(text.contains(&address.to_string()) && text.contains("choose another port"), "{text}");
    let error = TcpRail::open(TcpConfig::listening("192.0.2.1:0".parse().unwrap())).unwrap_err();
    assert!(matches!(error, TcpError::NoSuchAddress(_)), "{error}");
}

#[test]
fn data_frames_are_not_staged() {
    let mut loopback = Loopback::new("127.0.0.1:0");
    let (mut scene, pair) = Scene::pair(&mut loopback);
    for sequence in 0..4 {
        scene.send(pair, sequence, 256 * 1024, Urgency::Bulk);
    }
    scene.arrived(pair, 4);
    let staged = scene.counters(1).bytes_staged;
    assert!(staged <= 8192, "{staged} bytes of 1 MiB were staged");
}

#[test]
fn a_small_frame_costs_one_system_call_at_each_end() {
    let mut loopback = Loopback::new("127.0.0.1:0");
    let (mut scene, pair) = Scene::pair(&mut loopback);
    for sequence in 0..10 {
        scene.send(pair, sequence, 8, Urgency::Urgent);
        scene.arrived(pair, sequence as usize + 1);
    }
    let (near, far) = (scene.counters(0).system_calls, scene.counters(1).system_calls);
    for sequence in 10..90 {
        assert_eq!(scene.send(pair, sequence, 8, Urgency::Urgent), Ordered::Released);
        while scene.recorder(1).received(pair.far.1).count() as u64 <= sequence {
            scene.poll(1);
        }
    }
    assert_eq!(scene.counters(0).system_calls - near, 80, "one for each order");
    // Every sixteenth pass asks the epoll set, for the sake of the other links.
    let calls = scene.counters(1).system_calls - far;
    assert!((80..=80 + 80 / 8).contains(&calls), "{calls} calls for 80 frames");
}

#[test]
fn queued_small_frames_leave_in_batches() {
    let mut loopback = Loopback::new("127.0.0.1:0");
    let (mut scene, pair) = Scene::pair(&mut loopback);
    let mut count = 0;
    while scene.send(pair, count, 200_000, Urgency::Bulk) == Ordered::Released {
        count += 1;
    }
    for _ in 0..2000 {
        count += 1;
        assert_eq!(scene.send(pair, count, 8, Urgency::Urgent), Ordered::Pending);
    }
    let before = scene.counters(0);
    let orders = scene.recorder(0).pending();
    assert!(orders > 2000);
    scene.arrived(pair, count as usize + 1);
    scene.drained(0);
    let polled = scene.counters(0).system_calls - before.system_calls;
    let empty_polls = scene.counters(1).system_calls;
    assert!(polled < 500 + empty_polls, "{polled} system calls for {orders} frames");
}

#[test]
fn health_tells_a_peer_that_does_not_read_from_one_that_is_gone() {
    let mut loopback = Loopback::new("127.0.0.1:0");
    let (mut scene, pair) = Scene::pair(&mut loopback);
    // Nobody polls the peer.
    let mut number = 0;
    let full = |scene: &mut Scene| {
        let now = scene.fixture.now();
        scene.rail(0).health(pair.near.1, now).expect("the link is up")
    };
    while !full(&mut scene).is_peer_full {
        if scene.nodes[0].recorder.pending() < 4 {
            number += 1;
            scene.send(pair, number, 1 << 18, Urgency::Bulk);
        }
        scene.poll(0);
        assert!(number < 1000, "its window closes some time");
    }
    let health = full(&mut scene);
    assert!(health.unsent_bytes > 0, "{health:?}");
    scene.arrived(pair, number as usize);
    scene.until("all is acknowledged", |scene| {
        let health = full(scene);
        !health.is_peer_full && health.unacknowledged_bytes == 0 && health.unsent_bytes == 0
    });
}

/// Who drives hundreds of endpoints in turn makes one poll of each in a round.
#[test]
fn one_poll_hears_hundreds_of_links_that_have_little_to_say() {
    const LINKS: u64 = 400;
    let mut loopback = Loopback::new("127.0.0.1:0");
    let mut scene = Scene::new(&mut loopback, 2);
    let pairs: Vec<Pair> = (0..LINKS).map(|_| scene.link(0, 1)).collect();
    scene.settle();
    for pair in pairs {
        scene.send(pair, 1, 8, Urgency::Urgent);
    }
    // Over loopback all is here when the calls return.
    let before = scene.counters(1);
    scene.poll(1);
    let after = scene.counters(1);
    assert_eq!(after.frames_received - before.frames_received, LINKS);
    // Each is read once, and asked for together with 63 others.
    assert_eq!(after.system_calls - before.system_calls, LINKS + LINKS.div_ceil(64));
}
