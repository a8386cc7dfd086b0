//! Several endpoints of a process on one interface: one socket, and nobody harms his neighbours.

mod common;
mod namespace;

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use common::{Node, message};
use namespace::{Namespace, card, ip, sockets};
use ropewalk_base::error::Fault;
use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_net::context::Completed;
use ropewalk_net::modules::{Listen, open};
use ropewalk_net::{Channel, Endpoint, EndpointConfig, Level, Oversize, PeerId, Posted};
use ropewalk_rail::address::Address;
use ropewalk_rail::port::Port;
use ropewalk_rail_ether::{AgentSocket, EtherConfig, EtherPort};
use ropewalk_wire::mxoe::Order;
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};

/// Nothing that is waited for takes longer.
const LIMIT: Duration = Duration::from_secs(40);

/// An endpoint at an address like `card0/3`.
fn node(address: &str, service_thread: bool) -> Node {
    static NUMBER: AtomicU64 = AtomicU64::new(1);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let mut config = EndpointConfig::new(ClusterId(1));
    config.endpoint = EndpointId(number.into());
    config.incarnation = Incarnation(number);
    // Nobody is to find a way past the cards.
    config.host = 0;
    config.service_thread = service_thread;
    let rail = open("ether", &Listen::At { address, exactly: true }).expect("the card is up");
    let endpoint = Endpoint::open(config, vec![rail]).expect("there are descriptors");
    let context = endpoint.context(true).expect("there are descriptors");
    Node { endpoint, context, done: Vec::new() }
}

fn port(address: &str) -> EtherPort {
    EtherPort::open(&EtherConfig::listening(address).expect("an address")).expect("the card is up")
}

fn peer(of: &Node, other: &Node) -> PeerId {
    let address = Address::parse(other.endpoint.addresses()).expect("it listens");
    of.endpoint.lookup(&address).expect("an address of its rail")
}

fn memories(pool: &Pool, bytes: usize) -> [Memory; 2] {
    [(); 2].map(|()| Memory::pooled(pool.take(bytes).expect("the pool is large")))
}

/// There and back.
fn round_trip(a: (&Node, PeerId), b: (&Node, PeerId), held: [Memory; 2]) -> [Memory; 2] {
    let held = message(a.0, b.0, a.1, held);
    message(b.0, a.0, b.1, held)
}

#[test]
fn all_endpoints_share_a_socket_that_ends_with_the_last() {
    let Some(_namespace) = Namespace::enter() else { return };
    let (here, there) = (card(1500), card(1500));
    let pool = Pool::with_budget(1 << 20);
    let other = node(&there, false);
    assert_eq!(sockets(), 1);
    let mut nodes: Vec<Node> = (0..64).map(|_| node(&here, false)).collect();
    assert_eq!(sockets(), 2, "one for each interface");
    let mut held = memories(&pool, 700);
    let mut talk = |node: &Node| {
        let (to, back) = (peer(node, &other), peer(&other, node));
        let memories = std::mem::replace(&mut held, [Memory::constant(b""), Memory::constant(b"")]);
        held = round_trip((node, to), (&other, back), memories);
    };
    nodes.iter().for_each(&mut talk);
    // Some go, others come, and the remaining ones go on.
    nodes.drain(3..40);
    nodes.extend((0..10).map(|_| node(&here, false)));
    nodes.iter().for_each(&mut talk);
    nodes.truncate(1);
    talk(&nodes[0]);
    assert_eq!(sockets(), 2);
    nodes.clear();
    assert_eq!(sockets(), 1, "the last one closes it");
    talk(&node(&here, false));
}

/// Echoes until it is told to stop. Between a request and its echo it waits for `held_up`, if there is one.
fn echo(own: &Node, back: PeerId, stop: &AtomicBool, mut held_up: impl FnMut()) {
    let (tagged, cut) = (Channel::Tagged, Oversize::Truncate);
    let pool = Pool::with_budget(1 << 20);
    let finish = |posted| match posted {
        Posted::Done(completed) => Some(completed),
        Posted::Pending(_) => loop {
            match own.endpoint.wait(&own.context, Duration::from_secs(1)) {
                Some(completed) => break Some(completed),
                None if stop.load(Ordering::Relaxed) => break None,
                None => {}
            }
        },
    };
    loop {
        let into = Memory::pooled(pool.take(8).expect("the pool is large"));
        let posted =
            own.endpoint.post_receive(&own.context, tagged, None, 7, u64::MAX, into, cut, 1);
        let Some(Completed { memory, .. }) = finish(posted.expect("there is room")) else { return };
        held_up();
        let sent =
            own.endpoint.post_send(&own.context, back, tagged, 8, memory, Level::Buffered, 2);
        assert_eq!(finish(sent.expect("there is room")).map(|sent| sent.outcome), Some(Ok(())));
    }
}

/// Calls a node that echoes.
fn call(own: &Node, to: PeerId, number: u64) {
    let (tagged, cut) = (Channel::Tagged, Oversize::Truncate);
    let pool = Pool::with_budget(1 << 20);
    let into = Memory::pooled(pool.take(8).expect("the pool is large"));
    let mut pending = 2;
    let received = own.endpoint.post_receive(&own.context, tagged, None, 8, u64::MAX, into, cut, 1);
    pending -= usize::from(matches!(received, Ok(Posted::Done(_))));
    let mut out = pool.take(8).expect("the pool is large");
    out.copy_from_slice(&number.to_le_bytes());
    let sent = own.endpoint.post_send(
        &own.context,
        to,
        tagged,
        7,
        Memory::pooled(out),
        Level::Buffered,
        2,
    );
    pending -= usize::from(matches!(sent, Ok(Posted::Done(_))));
    let begin = Instant::now();
    while pending > 0 {
        if let Some(completed) = own.endpoint.wait(&own.context, Duration::from_secs(1)) {
            assert_eq!(completed.outcome, Ok(()));
            pending -= 1;
        }
        assert!(begin.elapsed() < LIMIT, "call {number} is not answered");
    }
}

#[test]
fn sleepers_on_one_socket_are_woken_also_beside_one_who_does_not_look() {
    let Some(_namespace) = Namespace::enter() else { return };
    let (here, there) = (card(1500), card(1500));
    let (first, second, other) = (node(&here, false), node(&here, false), node(&there, false));
    assert_eq!(sockets(), 2);
    let stop = AtomicBool::new(false);
    let (go, gate) = mpsc::channel::<()>();
    let holds = AtomicBool::new(false);
    thread::scope(|scope| {
        let backs = [peer(&first, &other), peer(&second, &other)];
        let (tos, stop) = ([peer(&other, &first), peer(&other, &second)], &stop);
        let (first, second, holds) = (&first, &second, &holds);
        scope.spawn(move || {
            echo(first, backs[0], stop, || {
                if holds.load(Ordering::SeqCst) {
                    gate.recv().expect("somebody lets it go on");
                }
            });
        });
        scope.spawn(move || echo(second, backs[1], stop, || {}));
        for number in 0..200 {
            call(&other, tos[number as usize % 2], number);
        }
        // The first one wakes up and then does something else for a long time.
        holds.store(true, Ordering::SeqCst);
        let tagged = Channel::Tagged;
        let bytes = Memory::constant(b"wait for");
        let sent =
            other.endpoint.post_send(&other.context, tos[0], tagged, 7, bytes, Level::Buffered, 3);
        if matches!(sent, Ok(Posted::Pending(_))) {
            assert!(other.endpoint.wait(&other.context, LIMIT).is_some());
        }
        for number in 0..50 {
            call(&other, tos[1], number);
        }
        holds.store(false, Ordering::SeqCst);
        go.send(()).expect("it waits");
        let pool = Pool::with_budget(1 << 20);
        let into = Memory::pooled(pool.take(8).expect("the pool is large"));
        let cut = Oversize::Truncate;
        let answer =
            other.endpoint.post_receive(&other.context, tagged, None, 8, u64::MAX, into, cut, 1);
        if matches!(answer, Ok(Posted::Pending(_))) {
            assert!(other.endpoint.wait(&other.context, LIMIT).is_some());
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// Sends so many packets that have a type of ours and their endpoint where the filters look, and their number
/// behind them.
fn send(from: &mut EtherPort, to: &str, bytes: usize, numbers: std::ops::Range<u32>) {
    let (station, endpoint) = from.resolve(to).expect("an address");
    for number in numbers {
        let slot = loop {
            if from.slot().is_some() {
                break from.slot().expect("there is one");
            }
            from.flush();
        };
        slot[..bytes].fill(0);
        (slot[2], slot[3]) = (0xc1, endpoint);
        slot[4..8].copy_from_slice(&number.to_le_bytes());
        from.commit(station, bytes);
    }
    while !from.flush() {
        thread::yield_now();
    }
}

/// The numbers of all packets that are there.
fn received(port: &mut EtherPort) -> Vec<u32> {
    let mut numbers = Vec::new();
    while !port
        .receive(64, &mut |_, body| {
            numbers.push(u32::from_le_bytes(body[4..8].try_into().expect("four bytes")));
        })
        .empty
    {}
    numbers
}

#[test]
fn a_flooded_endpoint_that_never_looks_harms_nobody() {
    let Some(_namespace) = Namespace::enter() else { return };
    assert!(ip("link set lo mtu 1500 up"));
    let (mut flooded, mut neighbour, mut sender) = (port("lo/1"), port("lo/2"), port("lo/3"));
    assert_eq!(sockets(), 1);
    let (flooded_at, neighbour_at) =
        (flooded.addresses().remove(0), neighbour.addresses().remove(0));
    const ROUNDS: u32 = 400;
    for round in 0..ROUNDS {
        send(&mut sender, &flooded_at, 1400, round * 48..round * 48 + 48);
        send(&mut sender, &neighbour_at, 1400, round * 16..round * 16 + 16);
        let came = received(&mut neighbour);
        assert_eq!(came, (round * 16..round * 16 + 16).collect::<Vec<_>>());
    }
    let kept = (4 << 20) / 1400;
    let drops = flooded.counters().drops;
    assert_eq!((drops.inbox_full, drops.no_room), (u64::from(ROUNDS * 48 - kept), 0));
    assert_eq!(neighbour.counters().drops.inbox_full, 0);
    // It has the oldest packets, and goes on with the packets that come from now on.
    assert_eq!(received(&mut flooded), (0..kept).collect::<Vec<_>>());
    send(&mut sender, &flooded_at, 1400, 7..8);
    assert_eq!(received(&mut flooded), [7]);
}

#[test]
fn who_stays_loses_nothing_while_others_come_and_go() {
    let Some(_namespace) = Namespace::enter() else { return };
    let (here, there) = (card(1500), card(1500));
    let (mut stays, mut sender) = (port(&here), port(&there));
    let address = stays.addresses().remove(0);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let goer = scope.spawn(|| {
            let mut count = 0;
            while !done.load(Ordering::Relaxed) || count < 100 {
                let (one, other) = (port(&here), port(&here));
                assert_ne!(one.endpoint(), other.endpoint());
                drop(one);
                count += 1;
            }
            count
        });
        for round in 0..2000u32 {
            let wanted: Vec<u32> = (round * 32..round * 32 + 32).collect();
            send(&mut sender, &address, 60, round * 32..round * 32 + 32);
            let mut came = Vec::new();
            let begin = Instant::now();
            while came.len() < wanted.len() {
                came.extend(received(&mut stays));
                assert!(begin.elapsed() < LIMIT, "round {round}: lost all but {came:?}");
            }
            assert_eq!(came, wanted);
        }
        done.store(true, Ordering::Relaxed);
        println!("{} came and went", 2 * goer.join().expect("it opens what it wants"));
    });
    assert_eq!(sockets(), 2);
}

/// Whether a set becomes readable in so many milliseconds.
fn is_readable(set: &OwnedFd, millis: i64) -> bool {
    let limit = Timespec { tv_sec: millis / 1000, tv_nsec: millis % 1000 * 1_000_000 };
    poll(&mut [PollFd::new(set, PollFlags::IN)], Some(&limit)).expect("it is a set") == 1
}

/// Sleeps and looks, as long as something wakes it at once; how often.
fn wakes(port: &mut EtherPort, set: &OwnedFd) -> usize {
    for count in 0..1000 {
        while !port.arm() {
            received(port);
        }
        let woken = is_readable(set, 50);
        port.disarm();
        received(port);
        if !woken {
            return count;
        }
    }
    panic!("it never sleeps");
}

#[test]
fn an_interface_that_goes_down_or_away_is_no_work() {
    let Some(_namespace) = Namespace::enter() else { return };
    let (here, there) = (card(1500), card(1500));
    let (mut own, mut other) = (port(&here), port(&there));
    let (own_at, other_at) = (own.addresses().remove(0), other.addresses().remove(0));
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("there are descriptors");
    own.attach(set.as_fd()).expect("there is memory");
    assert!(wakes(&mut own, &set) < 20);
    assert!(ip(&format!("link set {here} down")));
    assert!(wakes(&mut own, &set) < 20, "the kernel's news are taken");
    send(&mut own, &other_at, 60, 0..3);
    assert!(own.counters().drops.unsent >= 2, "{:?}", own.counters());
    // Up again: everything goes on, without anybody's help.
    assert!(ip(&format!("link set {here} up")));
    let begin = Instant::now();
    let mut number = 0;
    while received(&mut own).is_empty() {
        send(&mut other, &own_at, 60, number..number + 1);
        number += 1;
        assert!(begin.elapsed() < LIMIT, "nothing comes any more");
    }
    while received(&mut other).is_empty() {
        send(&mut own, &other_at, 60, number..number + 1);
        assert!(begin.elapsed() < LIMIT, "nothing leaves any more");
    }
    // Gone.
    assert!(ip(&format!("link del {here}")));
    assert!(wakes(&mut own, &set) < 20);
    let unsent = own.counters().drops.unsent;
    let (station, _) = other.resolve(&other_at).expect("an address");
    assert!(own.slot().is_some());
    own.commit(station, 60);
    assert!(own.flush(), "nothing waits for room");
    assert_eq!(own.counters().drops.unsent, unsent + 1);
    assert_eq!(own.resolve(&other_at), Err(Fault::Unreachable));
    assert_eq!(received(&mut own), []);
}

#[test]
fn a_link_pauses_while_its_interface_is_down() {
    let Some(_namespace) = Namespace::enter() else { return };
    let (here, there) = (card(1500), card(1500));
    let (own, other) = (node(&here, false), node(&there, false));
    let pool = Pool::with_budget(1 << 22);
    let (to, back) = (peer(&own, &other), peer(&other, &own));
    let held = round_trip((&own, to), (&other, back), memories(&pool, 100));
    let downs = || own.endpoint.counters().1[0].1.links_down;
    // Two who call each other have two links at first.
    let before = downs();
    assert!(ip(&format!("link set {here} down")));
    let cable = here.clone();
    let namespace = std::fs::File::open("/proc/thread-self/ns/net").expect("its name");
    let helper = thread::spawn(move || {
        let kind = rustix::thread::LinkNameSpaceType::Network;
        rustix::thread::move_into_link_name_space(namespace.as_fd(), Some(kind)).expect("root");
        thread::sleep(Duration::from_millis(300));
        assert!(ip(&format!("link set {cable} up")));
    });
    // Ordered while it is down.
    let held = round_trip((&own, to), (&other, back), held);
    helper.join().expect("the card comes up again");
    drop(round_trip((&own, to), (&other, back), held));
    assert_eq!(downs(), before, "the link has lived on");
}

#[test]
fn what_is_dropped_is_counted_by_its_reason() {
    let Some(_namespace) = Namespace::enter() else { return };
    assert!(ip("link set lo mtu 4000 up"));
    // It takes frames of its own time only.
    let small = card(1500);
    let rail = node(&small, false);
    let mut plain = port("lo/1");
    let mut sender = port("lo/2");
    let address = plain.addresses().remove(0);
    // For an endpoint that has just left: the packet lies in the ring, and nobody is there.
    let leaver = port("lo/9");
    let leaver_at = leaver.addresses().remove(0);
    send(&mut sender, &leaver_at, 60, 0..5);
    drop(leaver);
    // Longer than the ring's slots.
    assert!(ip("link set lo mtu 9000 up"));
    let mut giant = port("lo/3");
    assert!(giant.packet_bytes() < 9000, "the hub was made for less");
    assert_eq!(received(&mut plain), []);
    assert_eq!(plain.counters().drops.strangers, 5);
    assert_eq!(giant.counters().drops.strangers, 5, "of all together");
    // More than the ring has room for, at once.
    let slots = plain.packets_max();
    send(&mut sender, &address, 60, 0..2 * slots + 10_000);
    assert!(!received(&mut plain).is_empty());
    let drops = plain.counters().drops;
    assert!(drops.no_room > 0 && drops.inbox_full == 0, "{drops:?}");
    assert_eq!(received(&mut giant), []);
    // A packet that the receiving machine rejects as corrupt.
    let mut liar = port(&card(1500));
    let at = rail.endpoint.addresses().trim_start_matches("ether://").to_string();
    let at = at.split(',').next().expect("one at least").trim_end_matches('/').to_string();
    let (station, endpoint) = liar.resolve(&at).expect("an address");
    let slot = liar.slot().expect("it is empty");
    slot[..60].fill(0);
    (slot[2], slot[3]) = (0xc1, endpoint);
    let of = || rail.endpoint.counters().1[0].1.drops;
    assert_eq!(of().corrupt, 0);
    liar.commit(station, 60);
    assert!(liar.flush());
    let begin = Instant::now();
    while of().corrupt == 0 {
        rail.endpoint.progress();
        assert!(begin.elapsed() < LIMIT, "{:?}", of());
    }
}

/// Microseconds of a round trip beside so many neighbours, in the middle of some; the peer has its own card.
fn round_trip_beside(neighbours: usize, threads: bool) -> f64 {
    let Some(_namespace) = Namespace::enter() else { return 1.0 };
    let (here, there) = (card(1500), card(1500));
    let (own, other) = (node(&here, true), node(&there, true));
    let _neighbours: Vec<Node> = (0..neighbours).map(|_| node(&here, true)).collect();
    let pool = Pool::with_budget(1 << 20);
    let (to, back) = (peer(&own, &other), peer(&other, &own));
    let mut held = memories(&pool, 8);
    let mut samples = Vec::new();
    if threads {
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let (other, stop) = (&other, &stop);
            scope.spawn(move || echo(other, back, stop, || {}));
            for number in 0..6000 {
                let begin = Instant::now();
                call(&own, to, number);
                samples.push(begin.elapsed());
            }
            stop.store(true, Ordering::Relaxed);
        });
    } else {
        for _ in 0..20_000 {
            let begin = Instant::now();
            held = round_trip((&own, to), (&other, back), held);
            samples.push(begin.elapsed());
        }
    }
    samples.drain(..samples.len() / 5);
    samples.sort();
    samples[samples.len() / 2].as_nanos() as f64 / 1000.0
}

/// A figure, not a promise: cargo test --profile deep -p ropewalk-net --test process_ether_hub --
/// --ignored --nocapture
#[test]
#[ignore = "a measurement"]
fn a_small_message_beside_63_neighbours_costs_what_it_costs_alone() {
    for threads in [false, true] {
        let mut ratios = Vec::new();
        for _ in 0..7 {
            let alone = round_trip_beside(0, threads);
            let beside = round_trip_beside(63, threads);
            println!("threads {threads}: alone {alone:.2} us, beside 63 {beside:.2} us");
            ratios.push(beside / alone);
        }
        ratios.sort_by(f64::total_cmp);
        println!("threads {threads}: ratio {:.3} in the middle of {ratios:.3?}", ratios[3]);
    }
}

#[test]
fn a_frame_that_nobody_takes_does_not_hold_up_the_others() {
    let Some(_namespace) = Namespace::enter() else { return };
    let (here, there) = (card(9000), card(9000));
    let (mut own, mut other) = (port(&here), port(&there));
    let at = other.addresses().remove(0);
    let begin = Instant::now();
    while received(&mut other).is_empty() {
        send(&mut own, &at, 60, 7..8);
        assert!(begin.elapsed() < LIMIT, "the bridge forwards nothing");
    }
    // The other end of this wire takes usual frames only from now on.
    assert!(ip(&format!("link set {} mtu 1500", here.replace("card", "plug"))));
    let (station, endpoint) = own.resolve(&at).expect("an address");
    for (number, bytes) in [(1, 9000), (2, 60), (3, 9000), (4, 1500)] {
        let slot = own.slot().expect("nothing waits");
        slot[..bytes].fill(0);
        (slot[2], slot[3], slot[4]) = (0xc1, endpoint, number);
        own.commit(station, bytes);
    }
    let begin = Instant::now();
    while !own.flush() {
        assert!(begin.elapsed() < LIMIT, "what follows never leaves");
    }
    assert_eq!(received(&mut other), [2, 4]);
    assert_eq!(own.counters().drops.unsent, 2);
}

#[test]
fn an_interface_that_is_taken_down_before_it_is_removed_is_gone() {
    let Some(_namespace) = Namespace::enter() else { return };
    let (here, there) = (card(1500), card(1500));
    let (mut own, other) = (port(&here), port(&there));
    let at = other.addresses().remove(0);
    let interface = own.interface().clone();
    let mut agent = AgentSocket::open(&interface, Order::Big).expect("root");
    assert!(ip(&format!("link set {here} down")));
    assert!(own.resolve(&at).is_ok(), "it may come up again");
    let begin = Instant::now();
    while !agent.is_down() {
        agent.receive().expect("it is there");
        assert!(begin.elapsed() < LIMIT);
    }
    assert!(ip(&format!("link set {here} up")) && ip(&format!("link set {here} down")));
    assert!(agent.receive().expect("it is there").is_none());
    assert!(ip(&format!("link del {here}")));
    assert_eq!(own.resolve(&at), Err(Fault::Unreachable));
    assert!(
        agent.receive().is_err() || agent.receive().is_err(),
        "there is nothing to hear any more"
    );
}

/// Packets that a port shows within a moment.
fn shown(port: &mut EtherPort) -> usize {
    let mut packets = 0;
    for _ in 0..200 {
        packets += port.receive(usize::MAX, &mut |_, _| ()).packets;
        thread::sleep(Duration::from_millis(1));
    }
    packets
}

#[test]
fn a_promiscuous_interface_brings_nothing_that_is_for_others() {
    let Some(_namespace) = Namespace::enter() else { return };
    // A bridge that remembers nobody shows everything to everybody, as a hub does.
    assert!(ip("link set bridge type bridge ageing_time 0"));
    let (here, there, third) = (card(1500), card(1500), card(1500));
    assert!(ip(&format!("link set {third} promisc on")));
    let pool = Pool::with_budget(1 << 20);
    // The same number at another station.
    let mut listener = port(&format!("{third}/2"));
    let seen = || {
        let table = std::fs::read_to_string("/proc/thread-self/net/dev").expect("the kernel tells");
        let line = table.lines().find_map(|line| line.trim().strip_prefix(&format!("{third}:")));
        // Bytes, and then packets.
        let packets = line.expect("its line").split_whitespace().nth(1).expect("a number");
        packets.parse::<u64>().expect("a number")
    };
    let before = seen();
    let (one, other) = (node(&format!("{here}/1"), false), node(&format!("{there}/2"), false));
    let (to, back) = (peer(&one, &other), peer(&other, &one));
    let mut held = memories(&pool, 700);
    for _ in 0..50 {
        held = round_trip((&one, to), (&other, back), held);
    }
    assert!(seen() - before >= 100, "the card shows what is for others");
    assert_eq!(shown(&mut listener), 0);
    let counted = listener.counters();
    assert_eq!(counted.drops, Default::default(), "nor does it count what the filter kept out");
    // Packets for its station arrive.
    let mut sender = port(&format!("{here}/3"));
    let (station, endpoint) = sender.resolve(&listener.addresses()[0]).expect("an address");
    let slot = sender.slot().expect("it is empty");
    slot[..64].fill(0);
    slot[2] |= 0xc0;
    slot[3] = endpoint;
    sender.commit(station, 64);
    assert!(sender.flush());
    assert_eq!(shown(&mut listener), 1);
}

#[test]
fn a_peer_is_found_behind_whichever_interface_it_is() {
    let Some(_namespace) = Namespace::enter() else { return };
    let (first, second, there) = (card(1500), card(1500), card(1500));
    // A network of its own for the last two.
    assert!(ip("link add other type bridge mcast_snooping 0") && ip("link set other up"));
    for card in [&second, &there] {
        assert!(ip(&format!("link set {} master other", card.replace("card", "plug"))));
    }
    let pool = Pool::with_budget(1 << 20);
    let rails = [&first, &second].map(|card| {
        let address = format!("{card}/1");
        open("ether", &Listen::At { address: &address, exactly: true }).expect("the card is up")
    });
    let mut config = EndpointConfig::new(ClusterId(1));
    (config.endpoint, config.incarnation, config.host) = (EndpointId(9000), Incarnation(9000), 0);
    let endpoint = Endpoint::open(config, rails.into()).expect("there are descriptors");
    let context = endpoint.context(true).expect("there are descriptors");
    let own = Node { endpoint, context, done: Vec::new() };
    let other = node(&format!("{there}/1"), false);
    let to = peer(&own, &other);
    let held = message(&own, &other, to, memories(&pool, 700));
    // It calls back by all addresses that it was told, of which it reaches the second one.
    let back = peer(&other, &own);
    message(&other, &own, back, held);
}
