//! A thousand endpoints whose links are capped: sessions are parked and go on, and nobody notices.

mod ends;
mod node;
mod separate;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use node::{Heard, Node};
use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_core::{Channel, Config, Level, Plant};
use ropewalk_sim::{SimConfig, SimNetwork, seeds};

const LINKS_MAX: usize = 64;
/// Endpoints that everybody talks to.
const HUBS: usize = 3;
/// A pass over all endpoints that have something to do, at the most so often.
const QUANTUM: Duration = Duration::from_micros(100);
const LIMIT: Duration = Duration::from_secs(20);
const LEN_MAX: usize = 4000;

enum Action {
    Send { from: usize, to: usize, channel: Channel, len: usize, level: Level, number: u64 },
    Receive { at: usize, from: usize, number: u64 },
}

/// The messages in flight, and the deliveries seen so far.
#[derive(Default)]
struct Ledger {
    /// By receiver, sender and channel: the next number.
    next: BTreeMap<(usize, usize, bool), u64>,
    sends: u64,
    received: u64,
}

struct World {
    network: SimNetwork,
    nodes: Vec<Node>,
    now: Time,
    actions: BTreeMap<(Time, u64), Action>,
    /// Requests whose credit is given back later.
    taken: VecDeque<(Time, usize, ropewalk_core::PeerId, u32, usize)>,
    random: Random,
    ledger: Ledger,
    checks: u64,
    rail_links_max: u64,
}

fn config(plant: Plant) -> Config {
    Config { links_max: LINKS_MAX, eager_bytes_max: Some(1024), plant, ..Config::default() }
}

fn rail(kind: u64) -> SimConfig {
    let mut rail = if kind == 0 { SimConfig::stream() } else { SimConfig::native() };
    rail.capabilities.intact = true;
    rail
}

fn text(from: usize, to: usize, number: u64, len: usize) -> Vec<u8> {
    let seed = (from * 31 + to * 17) as u64 + number;
    let mut bytes: Vec<u8> = (0..len as u64).map(|at| (at * 7 + seed) as u8).collect();
    bytes[..8].copy_from_slice(&number.to_le_bytes());
    bytes
}

impl World {
    fn new(seed: u64, nodes: usize, plant: Plant) -> World {
        let network = SimNetwork::new(seed);
        let nodes = (0..nodes)
            .map(|number| Node::new(&network, number, 1, config(plant), rail(seed % 2)))
            .collect();
        World {
            network,
            nodes,
            now: Time(1),
            actions: BTreeMap::new(),
            taken: VecDeque::new(),
            random: Random::from_seed(seed),
            ledger: Ledger::default(),
            checks: 0,
            rail_links_max: 0,
        }
    }

    fn at(&mut self, time: Time, action: Action) {
        self.actions.insert((time, self.actions.len() as u64), action);
    }

    fn moment(&mut self, within: Duration) -> Time {
        Time(1) + Duration::from_nanos(self.random.below(within.as_nanos() as u64))
    }

    fn level(&mut self) -> Level {
        [Level::Buffered, Level::Buffered, Level::Delivered, Level::Matched]
            [self.random.below(4) as usize]
    }

    /// A short conversation between two, with pauses that are long enough for the link to be wanted by
    /// others: messages both ways, receives before and long after them, bursts of requests.
    fn plan(&mut self, a: usize, b: usize, within: Duration) {
        for (from, to) in [(a, b), (b, a)] {
            let mut times: Vec<Time> =
                (0..self.random.below(3)).map(|_| self.moment(within)).collect();
            times.sort_unstable();
            for (number, time) in (0..).zip(times) {
                let len =
                    8 + self.random.below([60, 1000, LEN_MAX as u64 - 8][number as usize % 3]);
                let (channel, level, len) = (Channel::Tagged, self.level(), len as usize);
                self.at(time, Action::Send { from, to, channel, len, level, number });
                // In the order of the numbers: the first receive gets the first message.
                let early = Time(1 + self.random.below(time.0));
                let late = time + Duration::from_nanos(self.random.below(within.as_nanos() as u64));
                // A session with a send that waits for a receive is not idle: only small messages wait long for
                // theirs.
                let waits = level == Level::Matched || len > 1024;
                let time = if waits || self.random.below(2) == 0 { early } else { late };
                self.at(time, Action::Receive { at: to, from, number });
            }
            if self.random.below(4) == 0 {
                // The initial credit is as much as four of these.
                let bursts = 1 + self.random.below(3);
                for burst in 0..bursts {
                    let time = Time(1) + within / 3 * burst as u32;
                    let time = time
                        + Duration::from_nanos(self.random.below(within.as_nanos() as u64 / 4));
                    for number in 0..4 {
                        let (channel, level) = (Channel::Request, self.level());
                        let number = burst * 4 + number;
                        self.at(
                            time,
                            Action::Send { from, to, channel, len: 12_000, level, number },
                        );
                    }
                }
            }
        }
    }

    fn act(&mut self, action: Action) {
        match action {
            Action::Send { from, to, channel, len, level, number } => {
                self.ledger.sends += 1;
                let bytes = text(from, to, number, len);
                self.nodes[from].send(to, channel, &bytes, level, number);
            }
            Action::Receive { at, from, number } => {
                self.nodes[at].receive(Some(from), LEN_MAX, 1 << 32 | number);
            }
        }
    }

    /// One moment: everything that is due, by everybody.
    fn step(&mut self) {
        while let Some(entry) = self.actions.first_entry().filter(|entry| entry.key().0 <= self.now)
        {
            let action = entry.remove();
            self.act(action);
        }
        while self.taken.front().is_some_and(|taken| taken.0 <= self.now) {
            let Some((_, node, peer, session, bytes)) = self.taken.pop_front() else { break };
            self.nodes[node].request_taken(peer, session, bytes);
        }
        self.network.set_now(self.now);
        for number in 0..self.nodes.len() {
            let node = &mut self.nodes[number];
            node.advance(self.now);
            while node.is_ready() {
                node.poll(self.now);
            }
            if !node.heard.is_empty() {
                self.hear(number);
            }
        }
        for hub in 0..HUBS.min(self.nodes.len()) {
            let (carrying, parking) = self.nodes[hub].core.carrying_links();
            assert!(carrying - parking <= LINKS_MAX, "{carrying} links carry sessions");
            self.rail_links_max = self.rail_links_max.max(self.nodes[hub].rail_links());
        }
        self.checks += 1;
        if self.checks.is_multiple_of(512) {
            self.nodes.iter().for_each(|node| node.core.check());
        }
    }

    fn hear(&mut self, number: usize) {
        for heard in std::mem::take(&mut self.nodes[number].heard) {
            match heard {
                Heard::Ended { user, outcome, bytes, from } => {
                    assert_eq!(outcome, Ok(()), "{user:x} at {number}");
                    if user >> 32 != 0 {
                        let from = from.expect("somebody sent it");
                        self.arrived(number, from, false, &bytes);
                        self.ledger.received += 1;
                    }
                }
                Heard::Request { from, bytes, peer, session } => {
                    self.arrived(number, from, true, &bytes);
                    self.ledger.received += 1;
                    let later = self.now + Duration::from_millis(30);
                    self.taken.push_back((later, number, peer, session, bytes.len()));
                }
            }
        }
    }

    fn arrived(&mut self, at: usize, from: usize, request: bool, bytes: &[u8]) {
        let next = self.ledger.next.entry((at, from, request)).or_default();
        let number = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert_eq!(number, *next, "the order of messages from {from} at {at}");
        assert_eq!(bytes, text(from, at, number, bytes.len()), "{number} from {from} at {at}");
        *next += 1;
    }

    fn next_moment(&self) -> Time {
        let soon = self.now + QUANTUM;
        let action = self.actions.first_key_value().map(|(key, _)| key.0);
        let taken = self.taken.front().map(|taken| taken.0);
        let cores = self.nodes.iter().filter_map(|node| node.core.deadline()).min();
        let next = [action, taken, cores, self.network.next_event()].into_iter().flatten().min();
        next.unwrap_or(soon).max(soon)
    }

    fn run_until(&mut self, what: &str, done: impl Fn(&World) -> bool) {
        let end = self.now + LIMIT;
        while !done(self) {
            self.step();
            self.now = self.next_moment();
            let Ledger { sends, received, .. } = &self.ledger;
            assert!(self.now < end, "{what} does not come: {received} of {sends} messages");
        }
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
            self.now = self.next_moment().min(end);
        }
    }
}

/// Random traffic between the hubs and everybody; the hash of all that the network did.
fn traffic(seed: u64, nodes: usize, plant: Plant) -> u64 {
    let mut world = World::new(seed, nodes, plant);
    let within = Duration::from_millis(400);
    for node in HUBS..nodes {
        let hub = world.random.below(HUBS as u64) as usize;
        world.plan(hub, node, within);
        if world.random.below(4) == 0 {
            world.plan((hub + 1) % HUBS, node, within);
        }
    }
    for (a, b) in [(0, 1), (1, 2), (0, 2)] {
        world.plan(a, b, within);
    }
    world.run_until("all messages", |world| {
        let over = world.actions.is_empty() && world.taken.is_empty();
        over && world.ledger.sends == world.ledger.received
    });
    world.run_for(Duration::from_secs(8));
    let count = |of: fn(&ropewalk_core::Counters) -> u64| -> u64 {
        world.nodes.iter().map(|node| of(&node.core.counters())).sum()
    };
    assert_eq!((count(|it| it.violations), count(|it| it.resets)), (0, 0));
    assert!(count(|it| it.sessions_idle_closed) > 0 && count(|it| it.sessions_resumed) > 0);
    for hub in 0..HUBS {
        let open = world.nodes[hub].rail_links();
        assert!(open <= LINKS_MAX as u64, "{open} links are open at rest");
        assert_eq!(world.nodes[hub].core.unmatched_count(), 0);
    }
    if std::env::var("ROPEWALK_TRACE").is_ok() {
        println!(
            "seed {seed}: {} messages, {} sessions, {} parked, {} resumed, {} refused, {} over, {} links at most",
            world.ledger.sends,
            count(|it| it.sessions) / 2,
            count(|it| it.sessions_idle_closed),
            count(|it| it.sessions_resumed),
            count(|it| it.idle_closes_refused),
            count(|it| it.links_over),
            world.rail_links_max,
        );
    }
    world.nodes.iter().for_each(|node| node.core.check());
    world.network.trace_hash()
}

#[test]
fn a_thousand_peers_over_64_links_get_every_message_once_and_in_order() {
    for seed in seeds(0, 12) {
        let trace = traffic(seed, 1000 + HUBS, Plant::Nothing);
        if seed % 20 == 0 {
            let again = traffic(seed, 1000 + HUBS, Plant::Nothing);
            assert_eq!(trace, again, "seed {seed} does not reproduce its run");
        }
    }
}

/// Panics of a run with a planted bug that is found are not failures.
fn finds(plant: Plant) {
    const SEEDS: u64 = 20;
    let found = (0..SEEDS)
        .find(|seed| std::panic::catch_unwind(|| traffic(*seed, 200 + HUBS, plant)).is_err());
    let found = found.unwrap_or_else(|| panic!("{plant:?} is not found within {SEEDS} seeds"));
    println!("{plant:?} is found by seed {found}");
}

#[test]
fn credit_that_is_forgotten_at_a_resumption_is_found() {
    finds(Plant::ForgottenCredit);
}

#[test]
fn numbers_that_are_forgotten_at_a_resumption_are_found() {
    finds(Plant::ForgottenNumbers);
}

#[test]
fn without_a_planted_bug_the_smaller_runs_pass() {
    for seed in 0..20 {
        traffic(seed, 200 + HUBS, Plant::Nothing);
    }
}
