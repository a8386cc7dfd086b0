//! Endpoints over every medium, driven by one thread, so that each test runs over all of them.
#![allow(dead_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::{Pool, PoolBuffer};
use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_net::context::Completed;
use ropewalk_net::endpoint::SharedClock;
use ropewalk_net::modules::{self, Listen};
use ropewalk_net::packets::PacketRail;
use ropewalk_net::{
    Channel, Context, Endpoint, EndpointConfig, Level, Mode, Oversize, PeerId, Posted, Security,
};
use ropewalk_rail::Rail;
use ropewalk_rail::address::Address;
use ropewalk_rail::port::Port;
use ropewalk_rail_shm::{Attach, ShmConfig, ShmRail};
use ropewalk_rail_sim::{SimConfig, SimNetwork};
use ropewalk_rail_tcp::{TcpConfig, TcpRail};
use ropewalk_rail_udp::{UdpConfig, UdpPort};
use ropewalk_transport::mxoe::{Mxoe, MxoeConfig};
use ropewalk_wire::mxoe::{Dialect, Order};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Medium {
    Tcp,
    Tcp6,
    /// Large messages come by cross-memory attach.
    Shm,
    /// They come through the ring.
    ShmRing,
    Loop,
    SimStream,
    SimNative,
    SimDatagram,
    Udp,
    /// MXoE, whose peers are foreign, behind UDP.
    Mxoe,
}

/// Those that carry everything.
pub const ALL: [Medium; 9] = [
    Medium::Tcp,
    Medium::Tcp6,
    Medium::Shm,
    Medium::ShmRing,
    Medium::Loop,
    Medium::SimStream,
    Medium::SimNative,
    Medium::SimDatagram,
    Medium::Udp,
];

/// Those that carry tagged messages.
pub const WITH_TAGS: [Medium; 10] = [
    Medium::Tcp,
    Medium::Tcp6,
    Medium::Shm,
    Medium::ShmRing,
    Medium::Loop,
    Medium::SimStream,
    Medium::SimNative,
    Medium::SimDatagram,
    Medium::Udp,
    Medium::Mxoe,
];

static NUMBER: AtomicU64 = AtomicU64::new(0);

/// With `ROPEWALK_TEST_KEYS` set to `psk` or `keys`, all endpoints of these tests have keys of one cluster.
fn security(number: u64) -> Security {
    let kind = std::env::var("ROPEWALK_TEST_KEYS").unwrap_or_default();
    keyed(&kind, number)
}

/// The keys of an endpoint: of the kind `psk` or `keys`, or none.
pub fn keyed(kind: &str, number: u64) -> Security {
    use ropewalk_net::auth::{Authority, Keyring, NodeName, PskKeys, Secret};
    match kind {
        "psk" => Security::with(Keyring::Cluster(PskKeys::new(Secret::new([7; 32]), None))),
        "keys" => {
            let name = NodeName::new(&format!("node-{number}")).unwrap();
            let private = ropewalk_net::security::random_secret();
            let authority = Authority::new(Secret::new([7; 32]));
            Security::with(Keyring::Node(authority.sign(name, private, 1, (0, u64::MAX))))
        }
        _ => Security::None,
    }
}

/// Endpoints that one thread drives.
pub struct World {
    pub medium: Medium,
    pub network: SimNetwork,
    pub nodes: Vec<Node>,
    pub pool: Pool,
    pub mode: Mode,
    clock: Arc<AtomicU64>,
    start: Instant,
}

pub struct Node {
    pub endpoint: Endpoint,
    pub context: Context,
    pub done: Vec<Completed>,
}

impl World {
    pub fn new(medium: Medium) -> World {
        World {
            medium,
            network: SimNetwork::new(7),
            nodes: Vec::new(),
            pool: Pool::with_budget(1 << 30),
            mode: Mode::Fail,
            clock: Arc::new(AtomicU64::new(0)),
            start: Instant::now(),
        }
    }

    pub fn pair(medium: Medium) -> World {
        let mut world = World::new(medium);
        world.add();
        world.add();
        world
    }

    pub fn simulated(&self) -> bool {
        matches!(self.medium, Medium::SimStream | Medium::SimNative | Medium::SimDatagram)
    }

    pub fn rail(&self, number: u64) -> Box<dyn Rail> {
        let name = format!("t{}-{number}", std::process::id());
        let listen = |text: &str| TcpConfig::listening(text.parse().unwrap());
        let shm = |name, attach| -> Box<dyn Rail> {
            let config = ShmConfig { attach, ..ShmConfig::named(name) };
            Box::new(ShmRail::open(config).unwrap())
        };
        match self.medium {
            Medium::Tcp => Box::new(TcpRail::open(listen("127.0.0.1:0")).unwrap()),
            Medium::Tcp6 => Box::new(TcpRail::open(listen("[::1]:0")).unwrap()),
            Medium::Shm => shm(name, Attach::Always),
            Medium::ShmRing => shm(name, Attach::Never),
            Medium::Loop => Box::new(ShmRail::open(ShmConfig::within_process(name)).unwrap()),
            Medium::SimStream => Box::new(self.network.rail(&name, SimConfig::stream())),
            Medium::SimNative => Box::new(self.network.rail(&name, SimConfig::native())),
            Medium::SimDatagram => Box::new(self.network.rail(&name, SimConfig::datagram())),
            Medium::Udp => {
                let config = UdpConfig::listening("127.0.0.1:0".parse().unwrap());
                let (random, clock) = (Random::from_seed(number), self.config(number).clock);
                let port = UdpPort::open(config).unwrap();
                Box::new(PacketRail::new(port, random, clock).unwrap())
            }
            Medium::Mxoe => {
                let dialect = Dialect::native(1466, Order::Big).unwrap();
                foreign_rail(dialect, Duration::from_secs(512), number, self.config(number).clock)
            }
        }
    }

    pub fn config(&self, number: u64) -> EndpointConfig {
        let mut config = EndpointConfig::new(ClusterId(1));
        config.endpoint = EndpointId(u128::from(number) + 1);
        config.incarnation = Incarnation(number + 1);
        config.service_thread = false;
        config.core.mode = self.mode;
        // Foreign peers prove nothing.
        if self.medium != Medium::Mxoe {
            config.security = security(number);
        }
        if self.simulated() {
            let clock = self.clock.clone();
            config.clock = Arc::new(move || Time(clock.load(Ordering::Relaxed)));
            config.virtual_time = true;
            config.host = 0;
        }
        config
    }

    /// Adds an endpoint; its index.
    pub fn add(&mut self) -> usize {
        self.add_with(|_| {})
    }

    /// Adds an endpoint with other settings.
    pub fn add_with(&mut self, set: impl FnOnce(&mut EndpointConfig)) -> usize {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut config = self.config(number);
        set(&mut config);
        let endpoint = Endpoint::open(config, vec![self.rail(number)]).unwrap();
        let context = endpoint.context(true).unwrap();
        self.nodes.push(Node { endpoint, context, done: Vec::new() });
        self.nodes.len() - 1
    }

    /// Adds an endpoint over TCP that listens in its own way.
    pub fn add_listening(&mut self, rail: TcpConfig, set: impl FnOnce(&mut EndpointConfig)) {
        self.add_over(Box::new(TcpRail::open(rail).unwrap()), set);
    }

    /// Adds an endpoint over this rail.
    pub fn add_over(&mut self, rail: Box<dyn Rail>, set: impl FnOnce(&mut EndpointConfig)) {
        self.add_over_all(vec![rail], set);
    }

    /// Adds an endpoint over these rails.
    pub fn add_over_all(
        &mut self,
        rails: Vec<Box<dyn Rail>>,
        set: impl FnOnce(&mut EndpointConfig),
    ) {
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let mut config = self.config(number);
        set(&mut config);
        let endpoint = Endpoint::open(config, rails).unwrap();
        let context = endpoint.context(true).unwrap();
        self.nodes.push(Node { endpoint, context, done: Vec::new() });
    }

    /// The peer id of `to` at `from`.
    pub fn peer(&self, from: usize, to: usize) -> PeerId {
        let address = Address::parse(self.nodes[to].endpoint.addresses()).unwrap();
        self.nodes[from].endpoint.lookup(&address).unwrap()
    }

    /// The present simulated time.
    pub fn now(&self) -> Time {
        Time(self.clock.load(Ordering::Relaxed))
    }

    pub fn step(&mut self) {
        let mut any = false;
        for node in &mut self.nodes {
            any |= node.endpoint.progress();
            while let Some(completed) = node.endpoint.test(&node.context) {
                any = true;
                node.done.push(completed);
            }
        }
        if self.simulated() && !any {
            let now = Time(self.clock.load(Ordering::Relaxed));
            let deadlines = self.nodes.iter().filter_map(|node| node.endpoint.deadline());
            let next = deadlines.chain(self.network.next_event()).min();
            let next = next.map_or(now + Duration::from_millis(1), |next| {
                next.max(now + Duration::from_nanos(1))
            });
            self.clock.store(next.0, Ordering::Relaxed);
            self.network.set_now(next);
        }
    }

    /// Lets simulated time pass for one of them, while the others do nothing.
    pub fn pass_alone(&mut self, node: usize, time: Duration) {
        assert!(self.simulated());
        let until = Time(self.clock.load(Ordering::Relaxed)) + time;
        loop {
            self.nodes[node].endpoint.progress();
            let now = Time(self.clock.load(Ordering::Relaxed));
            if now >= until {
                return;
            }
            let next = now + Duration::from_micros(100);
            self.clock.store(next.0, Ordering::Relaxed);
            self.network.set_now(next);
        }
    }

    /// Lets simulated time pass.
    pub fn pass(&mut self, time: Duration) {
        assert!(self.simulated());
        let until = Time(self.clock.load(Ordering::Relaxed)) + time;
        self.until("end of a pause", |world| Time(world.clock.load(Ordering::Relaxed)) >= until);
    }

    /// Steps until `done` says so.
    pub fn until(&mut self, what: &str, mut done: impl FnMut(&mut World) -> bool) {
        let begin = Instant::now();
        while !done(self) {
            self.step();
            assert!(begin.elapsed() < Duration::from_secs(60), "{:?}: no {what}", self.medium);
        }
    }

    pub fn buffer(&self, len: usize, seed: u8) -> PoolBuffer {
        let mut buffer = self.pool.take(len).unwrap();
        for (index, byte) in buffer.iter_mut().enumerate() {
            *byte = pattern(index, seed);
        }
        buffer
    }

    pub fn memory(&self, len: usize, seed: u8) -> Memory {
        Memory::pooled(self.buffer(len, seed))
    }

    /// The completion of `node` with this number, when it is there.
    pub fn take(&mut self, node: usize, user: u64) -> Completed {
        self.until(&format!("completion {user} at {node}"), |world| {
            world.nodes[node].done.iter().any(|completed| completed.user == user)
        });
        let done = &mut self.nodes[node].done;
        let index = done.iter().position(|completed| completed.user == user).unwrap();
        done.remove(index)
    }

    /// Notes a post's immediate completion among the others.
    pub fn posted(
        &mut self,
        node: usize,
        posted: Result<Posted, (Memory, ropewalk_base::error::Fault)>,
    ) {
        match posted {
            Ok(Posted::Done(completed)) => self.nodes[node].done.push(completed),
            Ok(Posted::Pending(_)) => {}
            Err((_, fault)) => panic!("a post was refused: {fault}"),
        }
    }
}

/// Rails over tcp, of which each may fail alone: a session has a path over each.
pub fn bound_rails(count: usize) -> Vec<Box<dyn Rail>> {
    let open = |number: usize| {
        let host = format!("127.0.0.{}", number + 1);
        let address = format!("{host}:0?source={host}");
        let listen = Listen::At { address: &address, exactly: true };
        modules::open("tcp", &listen).expect("the loopback interface has it")
    };
    (0..count).map(open).collect()
}

/// A rail with MXoE behind UDP, whose peers have to give the key 7.
pub fn foreign_rail(
    dialect: Dialect,
    give_up_after: Duration,
    seed: u64,
    clock: SharedClock,
) -> Box<dyn Rail> {
    let port = UdpPort::open(UdpConfig::listening("127.0.0.1:0".parse().unwrap())).unwrap();
    let config = MxoeConfig {
        endpoint: port.endpoint(),
        dialect,
        key: 7,
        accepts: true,
        partners_max: 16_000,
        frames_max: port.packets_max() / 2,
        give_up_after,
        connect_for: give_up_after.min(Duration::from_secs(10)),
    };
    let machine = Mxoe::new(config, Random::from_seed(seed));
    Box::new(PacketRail::speaking(machine, port, clock).unwrap())
}

pub fn pattern(index: usize, seed: u8) -> u8 {
    (index as u8).wrapping_mul(31).wrapping_add((index >> 8) as u8).wrapping_add(seed)
}

pub fn check(memory: Memory, len: usize, seed: u8) {
    let bytes: Vec<u8> = memory.into_many().iter().flat_map(|buffer| buffer.to_vec()).collect();
    assert!(bytes.len() >= len);
    for (index, byte) in bytes[..len].iter().enumerate() {
        assert_eq!(*byte, pattern(index, seed), "byte {index} of {len}");
    }
}

/// One small message from `sender` to memory that `receiver` posted before; both memories come back,
/// the sender's first. A function of its own, so that profilers can find it.
#[inline(never)]
pub fn message(sender: &Node, receiver: &Node, peer: PeerId, memories: [Memory; 2]) -> [Memory; 2] {
    let [out, into] = memories;
    let (channel, mask, cut) = (Channel::Tagged, u64::MAX, Oversize::Truncate);
    let received = receiver
        .endpoint
        .post_receive(&receiver.context, channel, None, 3, mask, into, cut, 1)
        .expect("there is room");
    let sent = sender
        .endpoint
        .post_send(&sender.context, peer, channel, 3, out, Level::Buffered, 2)
        .expect("there is room");
    let sent = ended(sender, receiver, sent);
    let received = ended(receiver, sender, received);
    [sent, received]
}

/// The memory of an operation that ends well; both sides are polled until then.
pub fn ended(own: &Node, other: &Node, posted: Posted) -> Memory {
    let completed = match posted {
        Posted::Done(completed) => completed,
        Posted::Pending(_) => loop {
            if let Some(completed) = own.endpoint.test(&own.context) {
                break completed;
            }
            other.endpoint.progress();
        },
    };
    assert_eq!(completed.outcome, Ok(()));
    completed.memory
}
