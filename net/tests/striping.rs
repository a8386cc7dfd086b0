//! Streams over two paths of a session, in a network whose rates are known: what part of the sum they get, how soon a
//! rail that changes its rate is noticed, and that all arrives once and in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_base::time::Time;
use ropewalk_net::{
    Channel, Completed, Context, Counters, Endpoint, EndpointConfig, Level, Mode, Oversize, PeerId,
    Posted,
};
use ropewalk_rail::Rail;
use ropewalk_rail::address::Address;
use ropewalk_rail_sim::{Release, SimConfig, SimNetwork};

/// The rails of either side.
const NAMES: [[&str; 2]; 2] = [["left", "left-b"], ["right", "right-b"]];
const MS: u64 = 1_000_000;
/// Bytes a second of 1 Gbit/s.
const GIGABIT: u64 = 125_000_000;

struct Node {
    endpoint: Endpoint,
    context: Context,
    peer: PeerId,
    done: Vec<Completed>,
}

struct Sim {
    network: SimNetwork,
    clock: Arc<AtomicU64>,
    nodes: Vec<Node>,
    pool: Pool,
    steps: u64,
}

/// A stream: messages of so many bytes, so many of them at a time.
#[derive(Debug, Clone, Copy)]
struct Stream {
    bytes: usize,
    depth: u64,
}

impl Sim {
    /// Two endpoints over rails of these rates, in bytes a second.
    fn new(seed: u64, rates: &[u64]) -> Sim {
        let mut sim = Sim {
            network: SimNetwork::new(seed),
            clock: Arc::new(AtomicU64::new(0)),
            nodes: Vec::new(),
            pool: Pool::with_budget(1 << 30),
            steps: 0,
        };
        for (rail, rate) in rates.iter().enumerate() {
            sim.set_rate(rail, *rate);
        }
        for number in 0..2 {
            let node = sim.node(number, rates.len());
            sim.nodes.push(node);
        }
        sim
    }

    fn node(&self, number: usize, rails: usize) -> Node {
        // A kernel copies some of the frames, and acknowledges none to us.
        let config =
            SimConfig { release: Release::AtOnce, window_frames: 4, ..SimConfig::stream() };
        let rail = |name: &&str| Box::new(self.network.rail(name, config.clone())) as Box<dyn Rail>;
        let rails: Vec<Box<dyn Rail>> = NAMES[number][..rails].iter().map(rail).collect();
        let mut config = EndpointConfig::new(ClusterId(1));
        config.endpoint = EndpointId(number as u128 + 1);
        config.incarnation = Incarnation(1);
        config.host = 0;
        config.seed = number as u64;
        config.service_thread = false;
        config.core.mode = Mode::Resume;
        config.core.paths_max = rails.len();
        let clock = self.clock.clone();
        config.clock = Arc::new(move || Time(clock.load(Ordering::Relaxed)));
        config.virtual_time = true;
        let endpoint = Endpoint::open(config, rails).unwrap();
        let context = endpoint.context(true).unwrap();
        let address = Address::parse(&format!("sim://{}", NAMES[1 - number][0])).unwrap();
        let peer = endpoint.lookup(&address).unwrap();
        Node { endpoint, context, peer, done: Vec::new() }
    }

    fn set_rate(&self, rail: usize, rate: u64) {
        self.network.change_paths(NAMES[0][rail], NAMES[1][rail], |path| {
            path.bytes_per_second = rate;
        });
    }

    fn step(&mut self) {
        let mut any = false;
        for node in &mut self.nodes {
            any |= node.endpoint.progress();
            while let Some(completed) = node.endpoint.test(&node.context) {
                any = true;
                node.done.push(completed);
            }
            if self.steps.is_multiple_of(64) {
                node.endpoint.check();
            }
        }
        self.steps += 1;
        if !any {
            let now = self.now();
            let deadlines = self.nodes.iter().filter_map(|node| node.endpoint.deadline());
            let next = deadlines.chain(self.network.next_event()).min();
            let next = next.unwrap_or(now + Duration::from_millis(1));
            let next = next.max(now + Duration::from_nanos(1));
            self.clock.store(next.0, Ordering::Relaxed);
            self.network.set_now(next);
        }
    }

    fn now(&self) -> Time {
        Time(self.clock.load(Ordering::Relaxed))
    }

    fn counters(&self, node: usize) -> Counters {
        self.nodes[node].endpoint.counters().0
    }

    /// Steps until the session has two paths.
    fn join(&mut self) {
        self.send(0, Stream { bytes: 10, depth: 1 });
        self.receive(0, Stream { bytes: 10, depth: 1 });
        while self.counters(0).paths_joined == 0 || self.nodes.iter().any(|it| it.done.is_empty()) {
            self.step();
            assert!(self.now().0 < 5_000 * MS, "no path joins");
        }
        self.nodes.iter_mut().for_each(|node| node.done.clear());
    }

    fn send(&mut self, number: u64, stream: Stream) {
        let mut buffer = self.pool.take(stream.bytes).unwrap();
        buffer.fill(number as u8);
        let node = &mut self.nodes[0];
        let (channel, memory) = (Channel::Tagged, Memory::pooled(buffer));
        let posted = node.endpoint.post_send(
            &node.context,
            node.peer,
            channel,
            number,
            memory,
            Level::Buffered,
            number,
        );
        if let Ok(Posted::Done(completed)) = posted {
            node.done.push(completed);
        }
    }

    fn receive(&mut self, number: u64, stream: Stream) {
        let node = &mut self.nodes[1];
        let memory = Memory::pooled(self.pool.take(stream.bytes).unwrap());
        let posted = node.endpoint.post_receive(
            &node.context,
            Channel::Tagged,
            None,
            0,
            0,
            memory,
            Oversize::Truncate,
            number,
        );
        if let Ok(Posted::Done(completed)) = posted {
            node.done.push(completed);
        }
    }

    /// A stream for so long; when each of its messages was there, and all before it. `at`: called with each of them and the time since the
    /// beginning.
    fn pour(
        &mut self,
        stream: Stream,
        time: Duration,
        mut at: impl FnMut(&Sim, Duration),
    ) -> Vec<Time> {
        let begin = self.now();
        let (mut sent, mut freed, mut times) = (0, 0, Vec::new());
        for number in 0..stream.depth {
            self.receive(number, stream);
        }
        let mut posted = stream.depth;
        let mut seen = Vec::new();
        loop {
            seen.resize(posted as usize, false);
            while sent < freed + stream.depth && self.now() < begin + time {
                self.send(sent, stream);
                sent += 1;
            }
            self.step();
            freed += self.nodes[0].done.drain(..).count() as u64;
            for completed in std::mem::take(&mut self.nodes[1].done) {
                // Receives take messages in order; their bytes may come in another one.
                let number = completed.user;
                assert_eq!((completed.outcome, completed.bits), (Ok(()), number));
                assert_eq!(completed.bytes, stream.bytes as u64);
                let is_new = !std::mem::replace(&mut seen[number as usize], true);
                assert!(is_new, "message {number} came twice");
                let bytes = completed.memory.into_pooled().unwrap();
                assert!(bytes.iter().all(|byte| *byte == number as u8), "message {number}");
                drop(bytes);
                // A message counts when all before it are there, too.
                while seen.get(times.len()) == Some(&true) {
                    times.push(self.now());
                }
                self.receive(posted, stream);
                posted += 1;
                at(self, self.now().since(begin));
            }
            let is_over = self.now() >= begin + time && times.len() as u64 == sent;
            if is_over && freed == sent {
                return times;
            }
            assert!(
                self.now() < begin + time + Duration::from_secs(5),
                "the stream is stuck: {sent} sent, {freed} freed, {} came, {:?}",
                times.len(),
                [self.counters(0), self.counters(1)],
            );
        }
    }
}

/// Bytes a second of those of the messages that came in these milliseconds, counted from the first one.
fn goodput(times: &[Time], stream: Stream, from: u64, to: u64) -> f64 {
    let begin = times[0].0;
    let inside = |time: &&Time| (from * MS..to * MS).contains(&(time.0 - begin));
    let count = times.iter().filter(inside).count();
    count as f64 * stream.bytes as f64 * 1e3 / (to - from) as f64
}

/// The longest time without a message, in those milliseconds.
fn gap(times: &[Time], from: u64, to: u64) -> f64 {
    let begin = times[0].0;
    let inside = times.iter().filter(|time| (from * MS..to * MS).contains(&(time.0 - begin)));
    let inside: Vec<u64> = inside.map(|time| time.0).collect();
    inside.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap_or(0) as f64 / MS as f64
}

const SHORT: Stream = Stream { bytes: 64 << 10, depth: 16 };
const LONG: Stream = Stream { bytes: 1 << 20, depth: 8 };

/// The part of the sum of two rails that a stream gets over both, after a while.
fn part_of_sum(rates: [u64; 2], stream: Stream) -> f64 {
    let mut sim = Sim::new(7, &rates);
    sim.join();
    let times = sim.pour(stream, Duration::from_millis(700), |_, _| {});
    let found = goodput(&times, stream, 200, 650);
    let part = found / (rates[0] + rates[1]) as f64;
    let gap = gap(&times, 200, 650);
    println!("{rates:?}, {stream:?}: {:.1} %, gap {gap:.1} ms", 100.0 * part);
    assert_eq!((sim.counters(0).paths_suspected, sim.counters(0).sessions), (0, 1));
    part
}

#[test]
fn rails_of_one_rate_carry_their_sum() {
    for stream in [SHORT, LONG] {
        assert!(part_of_sum([GIGABIT; 2], stream) > 0.97);
    }
    assert!(part_of_sum([GIGABIT / 20; 2], SHORT) > 0.97);
    assert!(part_of_sum([10 * GIGABIT; 2], LONG) > 0.9);
}

#[test]
fn a_slow_rail_adds_what_it_has_to_a_fast_one() {
    for rates in [[GIGABIT, GIGABIT / 10], [GIGABIT / 10, GIGABIT]] {
        for stream in [SHORT, LONG] {
            assert!(part_of_sum(rates, stream) > 0.96);
        }
    }
}

#[test]
fn a_rail_that_slows_down_is_noticed_within_a_tenth_of_a_second() {
    for stream in [SHORT, LONG] {
        let mut sim = Sim::new(3, &[GIGABIT; 2]);
        sim.join();
        let slow = GIGABIT * 3 / 10;
        let times = sim.pour(stream, Duration::from_millis(1400), |sim, since| {
            if since >= Duration::from_millis(400) {
                sim.set_rate(1, slow);
            }
        });
        let found = goodput(&times, stream, 500, 1350) / (GIGABIT + slow) as f64;
        println!("{stream:?}: {:.1} %, gap {:.1} ms", 100.0 * found, gap(&times, 390, 1350));
        assert!(found > 0.94, "{stream:?}: {found}");
        assert!(gap(&times, 390, 1350) < 20.0 + 1e3 * stream.bytes as f64 / slow as f64);
    }
}

/// Cuts a rail in the middle of a stream without a word, and mends it later. Returns the times of its messages.
fn pour_through_a_cut(sim: &mut Sim, stream: Stream) -> Vec<Time> {
    let cut = Duration::from_millis(300)..Duration::from_millis(500);
    sim.pour(stream, Duration::from_millis(900), |sim, since| {
        let blocked = cut.contains(&since);
        for [near, far] in [[NAMES[0][1], NAMES[1][1]], [NAMES[1][1], NAMES[0][1]]] {
            if sim.network.path(near, far).blocked != blocked {
                sim.network.change_path(near, far, |path| path.blocked = blocked);
            }
        }
    })
}

#[test]
fn a_rail_that_falls_silent_holds_little_back() {
    for (seed, stream) in [(1, SHORT), (2, LONG), (3, SHORT)] {
        let mut sim = Sim::new(seed, &[GIGABIT; 2]);
        sim.join();
        let times = pour_through_a_cut(&mut sim, stream);
        let gap = gap(&times, 290, 850);
        let left = goodput(&times, stream, 350, 490) / GIGABIT as f64;
        println!("{stream:?}: gap {gap:.1} ms, {:.1} % of what is left", 100.0 * left);
        assert!(gap < 45.0 && left > 0.95, "{stream:?}: {gap} ms, {left}");
        assert_eq!(sim.counters(0).sessions, 1);
    }
}
