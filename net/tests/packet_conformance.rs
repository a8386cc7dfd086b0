//! The suite of all rails, for the packet machine over UDP on this machine's loopback.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Instant;

use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_net::packets::PacketRail;
use ropewalk_rail::Rail;
use ropewalk_rail::conformance::Fixture;
use ropewalk_rail_udp::{UdpConfig, UdpPort};

struct Loopback {
    host: SocketAddr,
    start: Instant,
    offload: bool,
    rails: u64,
}

impl Loopback {
    fn new(host: &str, offload: bool) -> Loopback {
        let host = host.parse().expect("a socket address");
        Loopback { host, start: Instant::now(), offload, rails: 0 }
    }
}

impl Fixture for Loopback {
    fn rail(&mut self) -> Box<dyn Rail> {
        self.rails += 1;
        let config = UdpConfig { offload: self.offload, ..UdpConfig::listening(self.host) };
        let port = UdpPort::open(config).expect("loopback can be listened on");
        let start = self.start;
        let clock = Arc::new(move || Time(start.elapsed().as_nanos() as u64));
        let rail = PacketRail::new(port, Random::from_seed(self.rails), clock);
        Box::new(rail.expect("there are descriptors"))
    }

    fn nowhere(&mut self) -> String {
        let socket = UdpSocket::bind(self.host).expect("loopback can be listened on");
        socket.local_addr().expect("bound").to_string()
    }

    fn now(&self) -> Time {
        Time(self.start.elapsed().as_nanos() as u64)
    }

    fn step(&mut self, busy: bool) {
        if !busy {
            std::thread::yield_now();
        }
    }

    /// Nobody reports a death: missing answers reveal it, as the tests over the simulator show.
    fn kill(&mut self, rail: Box<dyn Rail>) -> bool {
        drop(rail);
        false
    }

    fn garbage(&mut self, address: &str, bytes: &[u8]) -> bool {
        let socket = UdpSocket::bind(self.host).expect("loopback can be listened on");
        bytes.chunks(1000).all(|part| socket.send_to(part, address).is_ok())
    }

    fn native_needs_target_polls(&self) -> bool {
        true
    }
}

ropewalk_rail::conformance!(over_ipv4, Loopback::new("127.0.0.1:0", true));
ropewalk_rail::conformance!(over_ipv6_without_offload, Loopback::new("[::1]:0", false));
