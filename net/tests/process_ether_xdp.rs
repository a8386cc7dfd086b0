//! Frames by AF_XDP, in network namespaces: the suite of all rails; beside endpoints and processes that go by packet
//! sockets; and where it cannot be had.

mod bridge;
mod namespace;

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bridge::Bridge;
use namespace::{Namespace, card, ip, sockets};
use ropewalk_base::error::Fault;
use ropewalk_net::modules::{Listen, Options, open_with};
use ropewalk_rail::conformance::run_all;
use ropewalk_rail::port::Port;
use ropewalk_rail_ether::bare::frames_of;
use ropewalk_rail_ether::{
    AgentSocket, EtherConfig, EtherError, EtherPort, Protocol, SocketKind, Sockets, interfaces,
};
use ropewalk_wire::mxoe::{ETHERTYPE, Order};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, recv, send};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

/// Nothing that is waited for takes longer.
const LIMIT: Duration = Duration::from_secs(40);
/// Says to a process of this test which card it shall take.
const CHILD: &str = "ROPEWALK_XDP_CHILD";

#[test]
fn the_suite_of_all_rails_passes_by_af_xdp() {
    let Some(_namespace) = Namespace::enter() else { return };
    run_all(|| Bridge::new(1500).xdp());
}

#[test]
#[ignore = "for --deep: as the one above, in longer frames, the longest of which go by packet sockets"]
fn the_suite_of_all_rails_passes_by_af_xdp_in_jumbo_frames() {
    let Some(_namespace) = Namespace::enter() else { return };
    run_all(|| Bridge::new(9000).xdp());
}

#[test]
fn the_suite_of_all_rails_passes_over_one_socket_of_af_xdp() {
    let Some(_namespace) = Namespace::enter() else { return };
    run_all(|| Bridge::loopback(1500).xdp());
}

fn try_port(address: &str, kind: SocketKind, protocol: Protocol) -> Result<EtherPort, EtherError> {
    let sockets = Sockets { kind, ..Sockets::default() };
    EtherPort::open(&EtherConfig { sockets, protocol, ..EtherConfig::listening(address)? })
}

fn port(address: &str, kind: SocketKind) -> EtherPort {
    try_port(address, kind, Protocol::Ours).expect("it can be had")
}

fn xdp(address: &str) -> EtherPort {
    let port = port(address, SocketKind::Xdp);
    assert!(port.has_xdp() && port.xdp_refused().is_none());
    port
}

fn packet(address: &str) -> EtherPort {
    let port = port(address, SocketKind::Packet);
    assert!(!port.has_xdp() && port.xdp_refused().is_none());
    port
}

/// Sends so many packets that have a type of ours, and their number behind their endpoint.
fn post(from: &mut EtherPort, to: &str, bytes: usize, numbers: std::ops::Range<u32>) {
    let (station, endpoint) = from.resolve(to).expect("an address");
    let begin = Instant::now();
    for number in numbers {
        while from.slot().is_none() {
            from.flush();
            assert!(begin.elapsed() < LIMIT, "nothing leaves");
        }
        let slot = from.slot().expect("there is one");
        slot[..bytes].fill(number as u8);
        (slot[2], slot[3]) = (0xc1, endpoint);
        slot[4..8].copy_from_slice(&number.to_le_bytes());
        from.commit(station, bytes);
    }
    while !from.flush() {
        assert!(begin.elapsed() < LIMIT, "nothing leaves");
    }
}

/// The numbers of all packets that are there, which are as they were sent.
fn received(port: &mut EtherPort) -> Vec<u32> {
    let mut numbers = Vec::new();
    let mut look = |_, body: &[u8]| {
        let number = u32::from_le_bytes(body[4..8].try_into().expect("four bytes"));
        assert!(body[8..].iter().all(|byte| *byte == number as u8 || body.len() == 46));
        numbers.push(number);
    };
    while !port.receive(64, &mut look).empty {}
    numbers
}

/// Sends until each of these numbers has come, once; a bridge may forward nothing at first, and others tell of themselves.
/// The kernel has a queue for each processor: frames pass others where the sender moves from one to another.
fn carries(from: &mut EtherPort, to: &mut EtherPort, bytes: usize) {
    let address = to.addresses().remove(0);
    let begin = Instant::now();
    while received(to).is_empty() {
        assert!(begin.elapsed() < LIMIT, "nothing comes");
        post(from, &address, bytes, 7..8);
        thread::sleep(Duration::from_millis(1));
    }
    thread::sleep(Duration::from_millis(20));
    received(to);
    post(from, &address, bytes, 0..50);
    let mut came = Vec::new();
    while came.len() < 50 {
        assert!(begin.elapsed() < LIMIT, "all but {came:?} is lost");
        came.extend(received(to));
    }
    came.sort_unstable();
    assert_eq!(came, (0..50).collect::<Vec<_>>());
}

/// Frames that a socket has.
fn count(socket: &OwnedFd) -> usize {
    let mut bytes = [0; 10_000];
    let mut count = 0;
    while recv(socket, &mut bytes[..], RecvFlags::DONTWAIT).is_ok() {
        count += 1;
    }
    count
}

#[test]
fn short_frames_pass_the_packet_layer_by_and_long_ones_do_not() {
    let Some(_namespace) = Namespace::enter() else { return };
    let (here, there) = (card(9000), card(9000));
    let (mut own, mut other) = (xdp(&here), xdp(&there));
    let witness = frames_of(&here, ETHERTYPE).expect("the right to raw frames");
    carries(&mut other, &mut own, 3800);
    carries(&mut own, &mut other, 3800);
    count(&witness);
    let at = own.addresses().remove(0);
    post(&mut other, &at, 60, 0..20);
    post(&mut other, &at, 3800, 20..40);
    assert_eq!(count(&witness), 0, "nobody else sees them");
    post(&mut other, &at, 9000, 40..50);
    assert_eq!(count(&witness), 10, "they do not fit");
    let mut came = received(&mut own);
    came.sort_unstable();
    assert_eq!(came, (0..50).collect::<Vec<_>>());
    assert_eq!(own.counters().drops.no_room, 0);
}

#[test]
fn endpoints_by_packet_sockets_and_others_on_the_interface_are_not_disturbed() {
    let Some(_namespace) = Namespace::enter() else { return };
    let (here, there) = (card(1500), card(1500));
    let mut first = xdp(&here);
    let mut other = packet(&there);
    let mut second = packet(&here);
    assert_eq!(sockets(), 3, "one of each kind");
    // A port of kind `Auto` shares nothing with one of kind `Xdp`; a second one of kind `Xdp` does.
    let third = port(&here, SocketKind::Auto);
    assert!(!third.has_xdp());
    let why = third.xdp_refused().expect("it was wished for");
    assert!(why.contains("ip link show"), "{why}");
    let mut fourth = xdp(&here);
    assert_eq!(sockets(), 4);
    for port in [&mut first, &mut second, &mut fourth] {
        carries(&mut other, port, 1400);
        carries(port, &mut other, 1400);
    }
    // Another protocol; the agent of the interface; another EtherType; an endpoint that has gone.
    let mxoe = Protocol::Mxoe(Order::Big);
    let error = try_port(&here, SocketKind::Xdp, mxoe).expect_err("one owner").to_string();
    assert!(error.contains(&here) && error.contains("socket=packet"), "{error}");
    let stranger = frames_of(&here, 0x88b5).expect("the right to raw frames");
    let tap = frames_of(&here, ETHERTYPE).expect("the right to raw frames");
    let sender = frames_of(&there, ETHERTYPE).expect("the right to raw frames");
    let station = interfaces().into_iter().find(|it| it.name == here).expect("a card").station;
    let tell = |ethertype: u16, kind: u8, endpoint: u8| {
        let mut frame = [0; 60];
        frame[..6].copy_from_slice(&station.0);
        // A bridge forwards nothing that is from nobody.
        frame[6] = 2;
        frame[12..14].copy_from_slice(&ethertype.to_be_bytes());
        (frame[16], frame[17]) = (kind, endpoint);
        assert_eq!(send(&sender, &frame, SendFlags::empty()), Ok(60));
    };
    tell(0x88b5, 0xc1, first.endpoint());
    assert_eq!(count(&stranger), 1);
    tell(ETHERTYPE, 0x25, first.endpoint());
    assert_eq!(count(&tap), 1, "it is none of ours");
    tell(ETHERTYPE, 0xc1, fourth.endpoint());
    assert_eq!(count(&tap), 0);
    let gone = fourth.endpoint();
    drop(fourth);
    tell(ETHERTYPE, 0xc1, gone);
    assert_eq!(count(&tap), 1);
    carries(&mut other, &mut first, 60);
    // The last one gives the interface back.
    drop(first);
    carries(&mut other, &mut second, 60);
    drop(xdp(&here));
}

#[test]
fn an_agent_hears_of_hosts_beside_an_endpoint_of_mxoe_by_af_xdp() {
    let Some(_namespace) = Namespace::enter() else { return };
    let (here, there) = (card(1500), card(1500));
    let interface = interfaces().into_iter().find(|it| it.name == here).expect("a card");
    let own = try_port(&here, SocketKind::Xdp, Protocol::Mxoe(Order::Big)).expect("root");
    assert!(own.has_xdp());
    let mut agent = AgentSocket::open(&interface, Order::Big).expect("root");
    agent.hide([own.endpoint()]).expect("there is memory");
    let tap = frames_of(&here, ETHERTYPE).expect("the right to raw frames");
    let sender = frames_of(&there, ETHERTYPE).expect("the right to raw frames");
    let tell = |kind: u8, endpoint: u8| {
        let mut frame = [0; 60];
        frame[..6].copy_from_slice(&interface.station.0);
        // A bridge forwards nothing that is from nobody.
        frame[6] = 2;
        frame[12..14].copy_from_slice(&ETHERTYPE.to_be_bytes());
        (frame[16], frame[17]) = (kind, endpoint);
        assert_eq!(send(&sender, &frame, SendFlags::empty()), Ok(60));
    };
    let begin = Instant::now();
    while count(&tap) == 0 {
        tell(3, own.endpoint());
        assert!(begin.elapsed() < LIMIT);
    }
    let mut heard = 0;
    while agent.receive().expect("the interface is there").is_some() {
        heard += 1;
    }
    assert!(heard > 0, "it is for the host, whatever stands where others have their endpoint");
    tell(0x25, own.endpoint());
    assert_eq!(count(&tap), 0, "a message goes to its endpoint alone");
    tell(0x25, own.endpoint() + 1);
    assert_eq!(count(&tap), 1);
    assert!(agent.receive().expect("the interface is there").is_some(), "nobody has that one");
}

/// Not a test: the test below starts it.
#[test]
fn child() {
    let Ok(card) = std::env::var(CHILD) else { return };
    let mut own = xdp(&card);
    println!("\nchild {}", own.addresses()[0]);
    loop {
        received(&mut own);
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_interface_is_free_again_when_the_process_that_had_it_is_killed() {
    let Some(_namespace) = Namespace::enter() else { return };
    let (here, there) = (card(1500), card(1500));
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["--exact", "child", "--nocapture"]).env(CHILD, &here).stdout(Stdio::piped());
    let mut child = command.spawn().expect("this program");
    let lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let line = lines.map_while(Result::ok).find(|line| line.starts_with("child "));
    let theirs = line.expect("it has the card").split_off("child ".len());
    // Beside it goes a packet socket, by itself.
    let mut own = port(&here, SocketKind::Auto);
    let mut other = packet(&there);
    assert!(!own.has_xdp() && own.addresses()[0] != theirs);
    carries(&mut other, &mut own, 1400);
    carries(&mut own, &mut other, 1400);
    let tap = frames_of(&here, ETHERTYPE).expect("the right to raw frames");
    post(&mut other, &theirs, 60, 0..20);
    assert_eq!(count(&tap), 0, "they go to the other process");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
    carries(&mut other, &mut own, 1400);
    count(&tap);
    post(&mut other, &theirs, 60, 0..20);
    assert_eq!(count(&tap), 20, "nobody takes them any more");
    let mut next = xdp(&here);
    carries(&mut other, &mut next, 1400);
}

/// Gives rights away, of this thread alone.
fn without(rights: CapabilitySet) {
    let mut held = capabilities(None).expect("this thread");
    held.effective -= rights;
    set_capabilities(None, held).expect("fewer are always allowed");
}

#[test]
fn without_the_right_to_it_packet_sockets_do_where_that_is_allowed() {
    let Some(_namespace) = Namespace::enter() else { return };
    let (here, there) = (card(1500), card(1500));
    let mut other = packet(&there);
    without(CapabilitySet::BPF | CapabilitySet::SYS_ADMIN);
    let error = try_port(&here, SocketKind::Xdp, Protocol::Ours).expect_err("no right").to_string();
    assert!(error.contains("CAP_BPF") && error.contains("socket=packet"), "{error}");
    let mut own = port(&here, SocketKind::Auto);
    assert!(own.xdp_refused().expect("it was wished for").contains("CAP_BPF"));
    carries(&mut other, &mut own, 1400);
    carries(&mut own, &mut other, 1400);
    // The same by addresses and by the environment's word, which an address overrules.
    let open = |address: &str, sockets: &str| {
        let options = Options { sockets: sockets.to_string(), ..Options::default() };
        let rail = open_with("ether", &Listen::At { address, exactly: true }, &options);
        rail.map(drop).map_err(|error| error.to_string())
    };
    assert_eq!(open(&format!("{here}?socket=auto"), ""), Ok(()));
    assert_eq!(open(&format!("{here}?socket=packet"), "socket=xdp"), Ok(()));
    for (address, sockets) in [(format!("{here}/9?socket=xdp"), ""), (here, "socket=xdp")] {
        let error = open(&address, sockets).expect_err("no right");
        assert!(error.contains("CAP_BPF"), "{error}");
    }
    let error = open(&format!("{there}?socket=raw"), "").expect_err("no such thing");
    assert!(error.contains("socket=packet, xdp or auto"), "{error}");
}

#[test]
fn who_gave_the_right_away_takes_nothing_of_those_who_come_after_him() {
    let Some(_namespace) = Namespace::enter() else { return };
    let (here, there) = (card(1500), card(1500));
    let (mut stays, leaves, mut other) = (xdp(&here), xdp(&here), packet(&there));
    carries(&mut other, &mut stays, 1400);
    let endpoint = leaves.endpoint();
    without(CapabilitySet::BPF | CapabilitySet::SYS_ADMIN | CapabilitySet::NET_ADMIN);
    drop(leaves);
    let mut next = packet(&format!("{here}/{endpoint}"));
    carries(&mut other, &mut next, 1400);
    carries(&mut other, &mut stays, 1400);
    carries(&mut stays, &mut other, 1400);
    assert_eq!(stays.counters().drops.strangers, 0);
}

#[test]
fn who_does_without_does_not_wait_long_for_a_queue_of_the_past() {
    let Some(_namespace) = Namespace::enter() else { return };
    let here = card(1500);
    let own = xdp(&here);
    // As a forked process does: it has the socket, and nobody has the name of the interface's program.
    let held = copy_of_sockets_of_xdp();
    assert!(!held.is_empty());
    drop(own);
    let begin = Instant::now();
    let waits = thread::scope(|scope| {
        let insists = scope.spawn(|| try_port(&here, SocketKind::Xdp, Protocol::Ours).map(drop));
        thread::sleep(Duration::from_millis(50));
        let own = port(&here, SocketKind::Auto);
        assert!(!own.has_xdp());
        let waits = !insists.is_finished();
        drop(held);
        insists.join().expect("it is told").expect("it is free now");
        waits
    });
    assert!(waits, "one waited for the other: {:?}", begin.elapsed());
}

/// Copies of all sockets of AF_XDP that this process has.
fn copy_of_sockets_of_xdp() -> Vec<OwnedFd> {
    let own = rustix::process::getpid();
    let pid =
        rustix::process::pidfd_open(own, rustix::process::PidfdFlags::empty()).expect("this one");
    let flags = rustix::process::PidfdGetfdFlags::empty();
    let numbers = std::fs::read_dir("/proc/self/fd").expect("this process").flatten();
    let numbers = numbers.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let copies =
        numbers.filter_map(|number| rustix::process::pidfd_getfd(&pid, number, flags).ok());
    copies
        .filter(|copy| {
            rustix::net::sockopt::socket_domain(copy).is_ok_and(|it| it == AddressFamily::XDP)
        })
        .collect()
}

#[test]
fn a_flood_is_counted_and_what_comes_later_arrives() {
    let Some(_namespace) = Namespace::enter() else { return };
    let (here, there) = (card(1500), card(1500));
    let (mut own, mut other) = (xdp(&here), xdp(&there));
    carries(&mut other, &mut own, 60);
    let slots = own.packets_max();
    let at = own.addresses().remove(0);
    post(&mut other, &at, 60, 0..2 * slots);
    let lost = own.counters().drops.no_room;
    let came = received(&mut own);
    assert!(lost > 0, "{:?}", own.counters());
    assert_eq!(came, (0..came.len() as u32).collect::<Vec<_>>());
    assert_eq!(came.len() as u64 + lost, 2 * u64::from(slots));
    for _ in 0..20 {
        carries(&mut other, &mut own, 1500);
    }
    assert_eq!(own.counters().drops.no_room, lost);
}

#[test]
fn a_card_that_is_polled_busily_loses_nothing() {
    let Some(_namespace) = Namespace::enter() else { return };
    let cards = [card(1500), card(1500)];
    let [mut own, mut other] = cards.map(|card| {
        let sockets = Sockets { kind: SocketKind::Xdp, poll_us: 50, ..Sockets::default() };
        let config = EtherConfig::listening(&card).expect("a name");
        EtherPort::open(&EtherConfig { sockets, ..config }).expect("root")
    });
    assert!(own.has_xdp() && other.has_xdp());
    carries(&mut own, &mut other, 1500);
    carries(&mut other, &mut own, 60);
}

/// Whether a set becomes readable in so many milliseconds.
fn is_readable(set: &OwnedFd, millis: i64) -> bool {
    let limit = Timespec { tv_sec: millis / 1000, tv_nsec: millis % 1000 * 1_000_000 };
    poll(&mut [PollFd::new(set, PollFlags::IN)], Some(&limit)).expect("it is a set") == 1
}

#[test]
fn a_sleeper_is_woken_by_either_socket_and_by_nothing_else() {
    let Some(_namespace) = Namespace::enter() else { return };
    let (here, there) = (card(9000), card(9000));
    let (mut own, mut other) = (xdp(&here), xdp(&there));
    carries(&mut other, &mut own, 60);
    let at = own.addresses().remove(0);
    let set = epoll::create(epoll::CreateFlags::CLOEXEC).expect("there are descriptors");
    own.attach(set.as_fd()).expect("there is memory");
    for round in 0..20 {
        while !own.arm() {
            received(&mut own);
        }
        assert!(!is_readable(&set, 5), "round {round}: there is nothing");
        post(&mut other, &at, if round % 2 == 0 { 60 } else { 9000 }, round..round + 1);
        assert!(is_readable(&set, 30_000), "round {round}: nobody is woken");
        own.disarm();
        assert_eq!(received(&mut own), [round]);
    }
}

#[test]
fn an_interface_that_goes_down_comes_back_and_one_that_is_removed_is_gone() {
    let Some(_namespace) = Namespace::enter() else { return };
    let (here, there) = (card(1500), card(1500));
    let (mut own, mut other) = (xdp(&here), xdp(&there));
    carries(&mut other, &mut own, 60);
    let other_at = other.addresses().remove(0);
    assert!(ip(&format!("link set {here} down")));
    post(&mut own, &other_at, 60, 0..300);
    assert!(own.counters().drops.unsent >= 200, "{:?}", own.counters());
    assert!(ip(&format!("link set {here} up")));
    let begin = Instant::now();
    while received(&mut other).is_empty() {
        post(&mut own, &other_at, 60, 0..1);
        thread::sleep(Duration::from_millis(1));
        assert!(begin.elapsed() < LIMIT, "nothing leaves any more");
    }
    carries(&mut own, &mut other, 60);
    carries(&mut other, &mut own, 60);
    let (station, _) = own.resolve(&other_at).expect("an address");
    assert!(ip(&format!("link del {here}")));
    for _ in 0..3 {
        own.slot().expect("nothing waits").fill(0);
        own.commit(station, 60);
    }
    assert!(own.flush(), "nothing waits for room");
    assert_eq!(own.resolve(&other_at), Err(Fault::Unreachable));
    assert_eq!(received(&mut own), []);
    assert!(own.arm());
    own.disarm();
}

/// Nanoseconds of half a round trip of a port without a protocol: the least, and in the middle.
fn half_round_trips(kind: SocketKind, bytes: usize, mtu: u32) -> Option<(u64, u64)> {
    const ROUNDS: usize = 100_000;
    let _namespace = Namespace::enter()?;
    assert!(ip(&format!("link add near mtu {mtu} type veth peer name far mtu {mtu}")));
    assert!(ip("link set near up") && ip("link set far up"));
    let (mut own, mut other) = (port("near", kind), port("far", kind));
    let (own_at, other_at) = (own.addresses().remove(0), other.addresses().remove(0));
    let (to, back) = (own.resolve(&other_at).ok()?, other.resolve(&own_at).ok()?);
    carries(&mut own, &mut other, 60);
    carries(&mut other, &mut own, 60);
    let pin = |core: usize| {
        let mut set = rustix::thread::CpuSet::new();
        set.set(core);
        rustix::thread::sched_setaffinity(None, &set).expect("two cores");
    };
    let throw = move |port: &mut EtherPort, (station, endpoint)| {
        let slot = port.slot().expect("it is empty");
        slot[..bytes].fill(1);
        (slot[2], slot[3]) = (0xc1, endpoint);
        port.commit(station, bytes);
        assert!(port.flush());
    };
    let catch = |port: &mut EtherPort| while port.receive(1, &mut |_, _| {}).packets == 0 {};
    let mut samples = Vec::with_capacity(ROUNDS);
    thread::scope(|scope| {
        scope.spawn(move || {
            pin(1);
            for _ in 0..ROUNDS {
                catch(&mut other);
                throw(&mut other, back);
            }
        });
        pin(0);
        for _ in 0..ROUNDS {
            let begin = Instant::now();
            throw(&mut own, to);
            catch(&mut own);
            samples.push(begin.elapsed().as_nanos() as u64 / 2);
        }
    });
    samples.sort_unstable();
    Some((samples[0], samples[ROUNDS / 2]))
}

/// A figure, not a promise: cargo test --release -p ropewalk-net --test process_ether_xdp -- --ignored --nocapture
/// figures
#[test]
#[ignore = "a measurement"]
fn figures_of_ports_without_a_protocol() {
    for (bytes, mtu) in [(60, 1500), (1500, 1500), (9000, 9000)] {
        for kind in [SocketKind::Packet, SocketKind::Xdp] {
            let found = (0..5).filter_map(|_| half_round_trips(kind, bytes, mtu));
            let found = found.reduce(|a, b| (a.0.min(b.0), a.1.min(b.1)));
            let Some((least, middle)) = found else { return };
            println!("{kind:?}, {bytes} of {mtu}: least {least} ns, middle {middle} ns");
        }
    }
}
