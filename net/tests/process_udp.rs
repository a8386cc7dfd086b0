//! Packets behind UDP where paths are narrow and strangers write: a port goes on, and cuts what the kernel can cut.

mod namespace;

use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use namespace::{Namespace, ip};
use ropewalk_rail::port::Port;
use ropewalk_rail_udp::{UdpConfig, UdpPort};
use rustix::net::{AddressFamily, SendFlags, SocketType, ipproto, sendto, socket};

/// Nothing that is waited for takes longer.
const LIMIT: Duration = Duration::from_secs(30);
/// Packets of a burst.
const BURST: usize = 20;

fn port(host: Ipv4Addr) -> UdpPort {
    UdpPort::open(UdpConfig::listening((host, 0).into())).expect("there are descriptors")
}

/// Sends a burst of full packets, and shows that each comes; how many system calls that took.
fn burst(from: &mut UdpPort, to: &mut UdpPort) -> u64 {
    let calls = from.counters().system_calls;
    let bytes = from.packet_bytes();
    for number in 0..BURST {
        from.slot().expect("a burst is not that long").fill(number as u8);
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
    burst(&mut near, &mut far);
    assert_eq!(near.counters().drops.unsent, 0);
    // Others are reached as before: it is this path that is narrow.
    assert!(ip("link set lo mtu 9000"));
    let mut other = port(Ipv4Addr::new(127, 0, 0, 2));
    assert_eq!(burst(&mut near, &mut other), 1, "the kernel cuts what goes there");
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
    assert_eq!(burst(&mut near, &mut far), 1, "the kernel cuts still");
}
