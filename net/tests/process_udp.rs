//! Packets behind UDP where paths are narrow and strangers write: a port goes on, and cuts what the kernel can cut.

mod common;
mod namespace;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::{Duration, Instant};

use common::{Medium, World, check, message};
use namespace::{Namespace, ip};
use ropewalk_base::random::Random;
use ropewalk_net::packets::PacketRail;
use ropewalk_rail::port::Port;
use ropewalk_rail_udp::{UdpConfig, UdpPort};
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};

/// Nothing that is waited for takes longer.
const LIMIT: Duration = Duration::from_secs(30);
/// Packets of a burst.
const BURST: usize = 20;
/// The payload of frames of 1,500 and 9,000 bytes behind IPv6 and UDP.
const USUAL: usize = 1452;
const LONG: usize = 8952;

fn port(host: impl Into<IpAddr>) -> UdpPort {
    UdpPort::open(UdpConfig::listening((host.into(), 0).into())).expect("there are descriptors")
}

/// Sends a burst of packets, and shows that each comes; how many system calls that took.
fn burst(from: &mut UdpPort, to: &mut UdpPort, bytes: usize) -> u64 {
    let calls = from.counters().system_calls;
    for number in 0..BURST {
        from.slot().expect("a burst is not that long")[..bytes].fill(number as u8);
        from.commit(to.local_address(), bytes);
    }
    assert!(from.flush());
    let calls = from.counters().system_calls - calls;
    let (mut came, begin) = (Vec::new(), Instant::now());
    while came.len() < BURST {
        assert!(begin.elapsed() < LIMIT, "{came:?}");
        to.receive(64, &mut |_, packet| {
            assert!(packet.len() == bytes && packet.iter().all(|byte| *byte == packet[0]));
            came.push(packet[0]);
        });
    }
    came.sort_unstable();
    assert_eq!(came, (0..BURST as u8).collect::<Vec<_>>());
    calls
}

#[test]
fn a_path_that_takes_less_than_a_packet_takes_bursts() {
    let Some(_namespace) = Namespace::enter() else { return };
    assert!(ip("link set lo mtu 1400 up"));
    let (mut near, mut far) = (port(Ipv4Addr::LOCALHOST), port(Ipv4Addr::LOCALHOST));
    assert_eq!(near.packet_bytes_to(far.local_address()), 1372, "behind IPv4 and UDP");
    burst(&mut near, &mut far, USUAL);
    assert_eq!(near.counters().drops.unsent, 0);
    // Others are reached as before: it is this path that is narrow.
    assert!(ip("link set lo mtu 9000"));
    let mut other = port(Ipv4Addr::new(127, 0, 0, 2));
    assert_eq!(burst(&mut near, &mut other, USUAL), 1, "the kernel cuts what goes there");
}

#[test]
fn long_packets_go_where_the_network_takes_them_and_are_never_split() {
    let Some(_namespace) = Namespace::enter() else { return };
    assert!(ip("link set lo mtu 9000 up"));
    for host in [IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()] {
        assert!(ip("link set lo mtu 9000"));
        let (mut near, mut far) = (port(host), port(host));
        assert_eq!(near.packet_bytes_to(far.local_address()), LONG);
        assert_eq!(burst(&mut near, &mut far, LONG), 1, "the kernel cuts long ones, too");
        assert!(ip("link set lo mtu 1500"));
        let usual = if host.is_ipv4() { 1472 } else { USUAL };
        assert_eq!(near.packet_bytes_to(far.local_address()), usual);
        // A packet whose way has become narrower is lost; this is how its sender learns of that.
        near.slot().expect("there is room").fill(1);
        near.commit(far.local_address(), LONG);
        assert!(near.flush());
        assert_eq!(near.counters().drops.unsent, 1);
        burst(&mut near, &mut far, usual);
    }
}

#[test]
fn who_has_a_small_receive_buffer_has_usual_packets() {
    let small = UdpConfig { receive_buffer_bytes: 200_000, ..UdpConfig::default() };
    assert_eq!(UdpPort::open(small).expect("there are descriptors").packet_bytes(), USUAL);
}

/// Two namespaces with a card each, the other one's of this MTU; this thread is where the first one is.
fn joined(far_mtu: u32) -> Option<[Namespace; 2]> {
    let (far, near) = (Namespace::enter()?, Namespace::enter()?);
    let other = far.name();
    assert!(ip(&format!(
        "link add near mtu 9000 type veth peer name far mtu {far_mtu} netns {other}"
    )));
    assert!(ip("address add 10.9.0.1/24 dev near") && ip("link set near up"));
    assert!(ip(&format!("-n {other} address add 10.9.0.2/24 dev far")));
    assert!(ip(&format!("-n {other} link set far up")));
    Some([near, far])
}

/// Packets that came by the card so far.
fn came() -> u64 {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").expect("the kernel tells");
    let line = table.lines().find(|line| line.trim_start().starts_with("near:")).expect("a card");
    line.split_whitespace().nth(2).and_then(|count| count.parse().ok()).expect("a number")
}

/// Sends a megabyte from the far side to the near one; how many packets that took.
fn megabyte(far: &Namespace) -> u64 {
    const BYTES: usize = 1 << 20;
    let mut world = World::new(Medium::Udp);
    let listening = |host: [u8; 4]| {
        // Packets are counted as they are, not as the kernel joins them.
        let config = UdpConfig::listening((Ipv4Addr::from(host), 0).into());
        UdpPort::open(UdpConfig { offload: false, ..config }).expect("there are descriptors")
    };
    let ports = [listening([10, 9, 0, 1]), far.within(|| listening([10, 9, 0, 2]))];
    for (port, seed) in ports.into_iter().zip(1..) {
        let (random, clock) = (Random::from_seed(seed), world.config(seed).clock);
        let rail = PacketRail::new(port, random, clock).expect("there are descriptors");
        // Nobody is to find a way past the cards.
        world.add_over(Box::new(rail), |config| config.host = seed);
    }
    // The near one calls, since it is in its namespace that this thread asks for the way.
    let (to, back) = (world.peer(0, 1), world.peer(1, 0));
    let mut small = [world.memory(8, 1), world.memory(8, 1)];
    small = message(&world.nodes[0], &world.nodes[1], to, small);
    drop(small);
    let before = came();
    let large = [world.memory(BYTES, 7), world.memory(BYTES, 8)];
    let [_, received] = message(&world.nodes[1], &world.nodes[0], back, large);
    check(received, BYTES, 7);
    came() - before
}

#[test]
fn links_have_the_packets_that_get_through() {
    let Some([_near, far]) = joined(9000) else { return };
    let packets = megabyte(&far);
    assert!((117..300).contains(&packets), "{packets} packets");
}

#[test]
fn long_packets_that_vanish_on_the_way_are_given_up() {
    let Some([_near, far]) = joined(1500) else { return };
    let packets = megabyte(&far);
    assert!((722..1200).contains(&packets), "{packets} packets");
}

#[test]
fn what_cannot_be_answered_does_no_harm() {
    let Some(_namespace) = Namespace::enter() else { return };
    assert!(ip("link set lo up"));
    let (mut near, mut far) = (port(Ipv4Addr::LOCALHOST), port(Ipv4Addr::LOCALHOST));
    // From port 0, which no socket has: 4 bytes behind a header of 8.
    let raw = socket(AddressFamily::INET, SocketType::RAW, Some(ipproto::UDP)).expect("as root");
    let own = far.local_address();
    let [high, low] = own.port().to_be_bytes();
    let datagram = [0, 0, high, low, 0, 12, 0, 0, 1, 2, 3, 4];
    sendto(&raw, &datagram, SendFlags::empty(), &own).expect("the interface is up");
    let (mut shown, begin) = (0, Instant::now());
    while begin.elapsed() < Duration::from_millis(200) {
        far.receive(64, &mut |_, _| shown += 1);
    }
    assert_eq!(shown, 0, "there is nobody behind it");
    // And who is made to send there all the same loses that packet alone.
    let nobody = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let bytes = near.packet_bytes();
    near.commit(nobody, bytes);
    assert!(near.flush());
    assert_eq!(near.counters().drops.unsent, 1);
    assert_eq!(burst(&mut near, &mut far, bytes), 1, "the kernel cuts still");
}
