//! Endpoints behind a bridge, or on one interface, for the suite of all rails.
#![allow(dead_code)]

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_net::packets::PacketRail;
use ropewalk_netns::{Direction, Impairment, Wire};
use ropewalk_rail::Rail;
use ropewalk_rail::conformance::Fixture;
use ropewalk_rail::port::Port;
use ropewalk_rail_ether::{EtherConfig, EtherPort, SocketKind, Sockets};

use crate::namespace::{card, ip};

/// Endpoints on cards of their own, behind one bridge, or all of them on one.
pub struct Bridge {
    mtu: u32,
    card: Option<&'static str>,
    socket: SocketKind,
    bonds: Option<Bonds>,
    start: Instant,
}

/// The bonds that join cards and the bridge; frames that others could overtake are counted. A bond has two ways: each
/// keeps the order of its frames, and frames of one overtake those of the other. The kernel's own bonds are a module,
/// which a machine may not have.
struct Bonds {
    late: Arc<AtomicU64>,
    all: RefCell<Vec<Wire>>,
}

impl Bonds {
    /// The slow way has half of the frames, at random, and is slower by this.
    const SLOWER: Duration = Duration::from_micros(100);

    /// Puts one between a card and the bridge.
    fn join(&self, card: &str, mtu: u32) {
        let [plug, near, far] = ["plug", "near", "far"].map(|end| card.replace("card", end));
        assert!(ip(&format!("link set {plug} nomaster")));
        assert!(ip(&format!("link add {near} mtu {mtu} type veth peer name {far} mtu {mtu}")));
        assert!(ip(&format!("link set {far} master bridge up")));
        assert!(ip(&format!("link set {near} up")));
        let bond = Wire::here([&plug, &near]).expect("both are up");
        bond.impair(Direction::Both, Impairment::reorder(500_000, Bonds::SLOWER), 1);
        self.all.borrow_mut().push(bond);
    }
}

impl Drop for Bonds {
    fn drop(&mut self) {
        let late = self.all.borrow().iter().flat_map(Wire::counters).map(|way| way.reordered).sum();
        self.late.fetch_add(late, Ordering::Relaxed);
    }
}

impl Bridge {
    pub fn new(mtu: u32) -> Bridge {
        let socket = SocketKind::Packet;
        Bridge { mtu, card: None, socket, bonds: None, start: Instant::now() }
    }

    /// All endpoints on the loopback interface: one socket.
    pub fn loopback(mtu: u32) -> Bridge {
        assert!(ip(&format!("link set lo mtu {mtu} up")));
        Bridge { card: Some("lo"), ..Bridge::new(mtu) }
    }

    /// Each card behind two ways, so that frames overtake others; those on the slow way are counted.
    pub fn bonded(self, late: &Arc<AtomicU64>) -> Bridge {
        let late = late.clone();
        Bridge { bonds: Some(Bonds { late, all: RefCell::default() }), ..self }
    }

    /// By AF_XDP.
    pub fn xdp(self) -> Bridge {
        Bridge { socket: SocketKind::Xdp, ..self }
    }

    pub fn port(&self) -> EtherPort {
        let card = self.card.map_or_else(|| card(self.mtu), String::from);
        if let Some(bonds) = &self.bonds {
            bonds.join(&card, self.mtu);
        }
        let config = EtherConfig::listening(&card).expect("a name");
        let sockets = Sockets { kind: self.socket, ..Sockets::default() };
        let port = EtherPort::open(&EtherConfig { sockets, ..config }).expect("the card is up");
        assert_eq!(port.has_xdp(), self.socket == SocketKind::Xdp);
        port
    }
}

impl Fixture for Bridge {
    fn rail(&mut self) -> Box<dyn Rail> {
        let port = self.port();
        let start = self.start;
        let clock = Arc::new(move || Time(start.elapsed().as_nanos() as u64));
        let rail = PacketRail::new(port, Random::from_seed(self.now().0), clock);
        Box::new(rail.expect("there are descriptors"))
    }

    fn nowhere(&mut self) -> String {
        "02:de:ad:00:00:01/9".to_string()
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
        let mut stranger = self.port();
        let (station, endpoint) = stranger.resolve(address).expect("an address");
        for part in bytes.chunks(1000) {
            let slot = stranger.slot().expect("it is empty");
            slot[..part.len()].copy_from_slice(part);
            // The bytes that the kernel's filter checks.
            slot[2] |= 0xc0;
            slot[3] = endpoint;
            stranger.commit(station, part.len());
            assert!(stranger.flush());
        }
        true
    }

    fn repeats(&self) -> bool {
        self.bonds.is_some()
    }

    fn native_needs_target_polls(&self) -> bool {
        true
    }

    fn wakes_for_neighbours(&self) -> bool {
        self.card.is_some()
    }
}
