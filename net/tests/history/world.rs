//! Endpoints over a simulated network, in simulated time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::{Pool, PoolBuffer};
use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_base::verb::RemoteKey;
use ropewalk_core::Plant;
use ropewalk_net::{Audience, Completed, Context, Endpoint, EndpointConfig, PeerId};
use ropewalk_rail::Rail;
use ropewalk_rail::address::Address;
use ropewalk_rail_sim::{Cut, SimNetwork};

use super::cells::fill;
use super::setting::{CELLS, NODES, REGION, SMALL, Setting};

/// Simulated time that a run may take.
const LIMIT: Time = Time(600_000_000_000);

pub struct Node {
    pub endpoint: Endpoint,
    pub context: Context,
    /// All of them, itself included.
    pub to: Vec<PeerId>,
    pub key: RemoteKey,
    /// Of memory that may be read only, and of a region that ends early.
    pub fixed: RemoteKey,
    pub ending: RemoteKey,
    /// Tokens of which it knows.
    pub raises: u64,
}

pub struct World {
    pub seed: u64,
    pub setting: Setting,
    pub network: SimNetwork,
    clock: Arc<AtomicU64>,
    pub nodes: Vec<Node>,
    pub pool: Pool,
    pub random: Random,
    steps: u64,
    tells: bool,
    /// How often links of two of them were cut.
    cuts: [[u64; NODES]; NODES],
}

fn name(node: usize, rail: usize) -> String {
    format!("node{node}-{rail}")
}

impl World {
    pub fn new(seed: u64, plant: Plant) -> World {
        let mut world = World {
            seed,
            setting: Setting::of(seed),
            network: SimNetwork::new(seed),
            clock: Arc::new(AtomicU64::new(0)),
            nodes: Vec::new(),
            pool: Pool::with_budget(1 << 30),
            random: Random::from_seed(seed),
            steps: 0,
            tells: std::env::var_os("ROPEWALK_TELL").is_some(),
            cuts: [[0; NODES]; NODES],
        };
        world.network.set_default_path(world.setting.path());
        for node in 0..NODES {
            let node = world.node(node, plant);
            world.nodes.push(node);
        }
        world
    }

    fn node(&self, number: usize, plant: Plant) -> Node {
        let rails = (0..self.setting.rails).map(|rail| {
            Box::new(self.network.rail(&name(number, rail), self.setting.rail())) as Box<dyn Rail>
        });
        let mut config = EndpointConfig::new(ClusterId(1));
        config.endpoint = EndpointId(number as u128 + 1);
        config.incarnation = Incarnation(1);
        config.host = 0;
        config.seed = self.seed * 1000 + number as u64;
        config.service_thread = false;
        config.core.mode = self.setting.mode;
        config.core.paths_max = self.setting.rails;
        config.core.links_max = if self.setting.parks { 0 } else { usize::MAX };
        config.core.operations_max = 4096;
        config.core.regions_max = 1024;
        config.core.plant = plant;
        let clock = self.clock.clone();
        config.clock = Arc::new(move || Time(clock.load(Ordering::Relaxed)));
        config.virtual_time = true;
        let endpoint = Endpoint::open(config, rails.collect()).expect("it opens");
        let context = endpoint.context(true).expect("there are descriptors");
        let to = (0..NODES).map(|other| {
            let address = Address::parse(&format!("sim://{}", name(other, 0)));
            match other == number {
                true => endpoint.own_peer().expect("there is room"),
                false => endpoint.lookup(&address.expect("it is one")).expect("there is room"),
            }
        });
        let to = to.collect();
        let expose = |memory: PoolBuffer, writable| {
            let memory = Memory::pooled(memory);
            endpoint.expose(memory, writable, Audience::Everybody).expect("there is room")
        };
        let key = expose(self.region(), true);
        let fixed = expose(self.filled(SMALL, 9), false);
        let ending = expose(self.filled(SMALL, 8), true);
        Node { endpoint, context, to, key, fixed, ending, raises: 0 }
    }

    pub fn filled(&self, len: usize, version: u8) -> PoolBuffer {
        let mut buffer = self.pool.take(len).expect("there is room");
        fill(&mut buffer, version);
        buffer
    }

    pub fn words(&self, words: impl IntoIterator<Item = u64>) -> PoolBuffer {
        let bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
        self.pool.copy_of(&bytes).expect("there is room")
    }

    fn region(&self) -> PoolBuffer {
        let mut buffer = self.pool.take(REGION).expect("there is room");
        buffer.fill(0);
        for (at, len) in CELLS {
            fill(&mut buffer[at as usize..at as usize + len], 0);
        }
        buffer
    }

    /// One pass of each; time passes if nobody had work. Whose operations ended.
    pub fn step(&mut self) -> Vec<(usize, Completed)> {
        let (mut any, mut ended) = (false, Vec::new());
        for (number, node) in self.nodes.iter().enumerate() {
            any |= node.endpoint.progress();
            while let Some(completed) = node.endpoint.test(&node.context) {
                any = true;
                ended.push((number, completed));
            }
            // To recount everything costs a hundred times as much as a step.
            if self.steps.is_multiple_of(128) {
                node.endpoint.check();
            }
        }
        self.steps += 1;
        if !any {
            let deadlines = self.nodes.iter().filter_map(|node| node.endpoint.deadline());
            let next = deadlines.chain(self.network.next_event()).min();
            let next = next.unwrap_or(self.now() + Duration::from_millis(1));
            let next = next.max(self.now() + Duration::from_nanos(1));
            self.clock.store(next.0, Ordering::Relaxed);
            self.network.set_now(next);
        }
        ended
    }

    pub fn now(&self) -> Time {
        Time(self.clock.load(Ordering::Relaxed))
    }

    pub fn is_late(&self) -> bool {
        self.now() > LIMIT || self.steps > 2_000_000
    }

    /// Whether some peer lacks frames, or has not said that it has them.
    pub fn awaits(&self) -> bool {
        let held = |node: &Node| node.endpoint.held().0;
        self.nodes.iter().map(held).any(|held| held.spans > 0 || held.orders > 0)
    }

    /// Nothing is held but what an endpoint has for itself.
    pub fn is_quiet(&self) -> bool {
        self.nodes.iter().all(|node| {
            let (held, buffers, bytes) = node.endpoint.held();
            held == Default::default() && buffers <= 2 && bytes == 0
        })
    }

    pub fn cut(&mut self) {
        let first = self.random.below(NODES as u64) as usize;
        let other = (first + 1 + self.random.below(NODES as u64 - 1) as usize) % NODES;
        let late = Duration::from_micros(self.random.below(3000));
        let cut = match self.random.below(8) {
            0 => Cut::Silent,
            1 | 2 => Cut::FirstThenOther(late),
            _ => Cut::Both,
        };
        let both = self.random.below(3) > 0;
        let one = self.random.below(2) as usize;
        for rail in (0..self.setting.rails).filter(|rail| both || *rail == one % self.setting.rails)
        {
            self.network.cut(&name(first, rail), &name(other, rail), cut);
        }
        self.tell(|| format!("cuts {first} from {other}: {cut:?}"));
        self.cuts[first][other] += 1;
        self.cuts[other][first] += 1;
    }

    /// Prints what happens, for a person who looks at one seed (`ROPEWALK_TELL=1`).
    pub fn tell(&self, what: impl FnOnce() -> String) {
        if self.tells {
            eprintln!("{:>12} {}", self.now().0, what());
        }
    }

    pub fn cuts_between(&self, one: usize, other: usize) -> u64 {
        self.cuts[one][other]
    }
}
