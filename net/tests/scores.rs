//! Paths that lose some of their packets, and are up by all other signs: packets of our protocol over a simulated network of
//! two rails, of which one, or both, go bad and are mended.

#[allow(dead_code)]
#[path = "scenario/wire.rs"]
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_net::packets::PacketRail;
use ropewalk_net::path_status::{PathGrade, PathQuality, PathStatus};
use ropewalk_net::{
    Channel, Context, Endpoint, EndpointConfig, Level, LinkState, Mode, Oversize, PathChange,
    PeerId, Posted,
};
use ropewalk_rail::Rail;
use ropewalk_rail::address::Address;
use wire::{SCHEME, Wire};

const SIDES: [&str; 2] = ["left", "right"];
const RAILS: usize = 2;
const PACKET_BYTES: usize = 1500;
const SECOND: Duration = Duration::from_secs(1);
/// Between two messages.
const PAUSE: Duration = Duration::from_micros(500);
/// Every so many messages one is long.
const LONG_EVERY: u64 = 50;
const LENGTHS: [usize; 2] = [1000, 200_000];

struct Node {
    endpoint: Endpoint,
    context: Context,
    peer: PeerId,
}

/// Two endpoints, of which the first one sends a message to the other each `PAUSE`.
struct Sim {
    wire: Wire,
    clock: Arc<AtomicU64>,
    nodes: Vec<Node>,
    pool: Pool,
    /// Messages that were sent, and what of them was sent and received; each is two operations.
    sent: u64,
    done: u64,
    send_at: Time,
    sends_long: bool,
}

fn name(side: usize, rail: usize) -> String {
    format!("{}-{rail}", SIDES[side])
}

impl Node {
    fn open(wire: &Wire, clock: &Arc<AtomicU64>, side: usize) -> Node {
        let clock = clock.clone();
        let clock: ropewalk_net::endpoint::SharedClock =
            Arc::new(move || Time(clock.load(Ordering::Relaxed)));
        let rail = |rail: usize| -> Box<dyn Rail> {
            let port = wire.port(&name(side, rail), PACKET_BYTES);
            let random = Random::from_seed((side * RAILS + rail) as u64);
            Box::new(PacketRail::new(port, random, clock.clone()).expect("there are descriptors"))
        };
        let rails = (0..RAILS).map(rail).collect();
        let mut config = EndpointConfig::new(ClusterId(1));
        config.endpoint = EndpointId(side as u128 + 1);
        config.incarnation = Incarnation(1);
        config.host = side as u64 + 100;
        config.seed = side as u64;
        config.service_thread = false;
        config.core.mode = Mode::Resume;
        config.core.paths_max = RAILS;
        config.clock = clock;
        config.virtual_time = true;
        let endpoint = Endpoint::open(config, rails).expect("it opens");
        let context = endpoint.context(true).expect("there are descriptors");
        let address = Address::parse(&format!("{SCHEME}://{}", name(1 - side, 0)));
        let peer = endpoint.lookup(&address.expect("it is an address")).expect("it is known");
        Node { endpoint, context, peer }
    }
}

impl Sim {
    fn new(seed: u64) -> Sim {
        let (wire, clock) = (Wire::new(seed), Arc::new(AtomicU64::new(0)));
        // The first rails reach each other, and the second ones.
        for (left, right) in [(0, 1), (1, 0)] {
            let ends = [name(0, left), name(1, right)];
            wire.change(&ends[0], &ends[1], |way| way.blocked = true);
            wire.change(&ends[1], &ends[0], |way| way.blocked = true);
        }
        let nodes = (0..2).map(|side| Node::open(&wire, &clock, side)).collect();
        let pool = Pool::with_budget(1 << 30);
        let (sent, done, send_at, sends_long) = (0, 0, Time::ZERO, false);
        let mut sim = Sim { wire, clock, nodes, pool, sent, done, send_at, sends_long };
        sim.run(2 * SECOND);
        assert_eq!(sim.statuses().len(), RAILS, "the second path joined");
        assert_eq!(sim.graded(), [], "all is well");
        assert!(sim.statuses().iter().all(|path| quality(path).score == 1000));
        sim
    }

    fn now(&self) -> Time {
        Time(self.clock.load(Ordering::Relaxed))
    }

    /// So many of a million packets of a rail are lost from now on, in both directions.
    fn lose(&self, rail: usize, loss: u32) {
        for side in 0..2 {
            let ends = [name(side, rail), name(1 - side, rail)];
            self.wire.change(&ends[0], &ends[1], |way| way.loss = loss);
        }
    }

    fn step(&mut self) {
        let now = self.now();
        if self.send_at <= now {
            self.send_at = now + PAUSE;
            self.post();
        }
        let mut any = false;
        for node in &mut self.nodes {
            any |= node.endpoint.progress();
            while let Some(completed) = node.endpoint.test(&node.context) {
                assert_eq!(completed.outcome, Ok(()));
                any = true;
                self.done += 1;
            }
        }
        if !any {
            let deadlines = self.nodes.iter().filter_map(|node| node.endpoint.deadline());
            let events = deadlines.chain(self.wire.next_event()).chain([self.send_at]);
            let next = events.min().unwrap_or(now).max(now + Duration::from_nanos(1));
            self.clock.store(next.0, Ordering::Relaxed);
            self.wire.set_now(next);
        }
    }

    fn post(&mut self) {
        self.sent += 1;
        let is_long = self.sends_long && self.sent.is_multiple_of(LONG_EVERY);
        let bytes = LENGTHS[usize::from(is_long)];
        let [memory, room] = [(); 2].map(|()| Memory::pooled(self.pool.take(bytes).unwrap()));
        let [from, to] = &self.nodes[..] else { unreachable!("two") };
        let (channel, level, cut) = (Channel::Tagged, Level::Delivered, Oversize::Truncate);
        let receive =
            to.endpoint.post_receive(&to.context, channel, None, 0, 0, room, cut, 0).unwrap();
        let send = from
            .endpoint
            .post_send(&from.context, from.peer, channel, 0, memory, level, 0)
            .unwrap();
        self.done +=
            [receive, send].iter().filter(|it| matches!(it, Posted::Done(_))).count() as u64;
    }

    /// Messages go for so long.
    fn run(&mut self, time: Duration) {
        let until = self.now() + time;
        while self.now() < until {
            self.step();
        }
        let behind = 2 * self.sent - self.done;
        assert!(behind < 2000, "{behind} of {} operations are not over", 2 * self.sent);
        self.nodes.iter().for_each(|node| node.endpoint.check());
    }

    /// Until the route of a path has this grade, but no longer than so long.
    fn until(&mut self, path: u32, grade: PathGrade, limit: Duration) -> Duration {
        let begin = self.now();
        while quality(&self.path(path)).grade != grade {
            let took = self.now().since(begin);
            assert!(took < limit, "{:?}, {:?}", self.path(path), self.graded());
            (0..20).for_each(|_| self.step());
        }
        self.now().since(begin)
    }

    fn statuses(&self) -> Vec<PathStatus> {
        let views = self.nodes[0].endpoint.path_status().paths;
        views.into_iter().map(|view| view.status).collect()
    }

    fn path(&self, path: u32) -> PathStatus {
        self.statuses().into_iter().find(|status| status.path == path).expect("it is there")
    }

    /// The second path's number.
    fn second(&self) -> u32 {
        self.statuses().iter().map(|status| status.path).max().expect("two")
    }

    /// What the history has of grades: the paths, and the names.
    fn graded(&self) -> Vec<(u32, &'static str)> {
        let events = self.nodes[0].endpoint.path_history(0).events;
        let graded = |change: &PathChange| matches!(change, PathChange::Graded(_));
        let graded = events.iter().filter(|event| graded(&event.change));
        graded.map(|event| (event.path, event.change.name())).collect()
    }

    /// Frames that messages cost a path in the next while.
    fn frames_in(&mut self, path: u32, time: Duration) -> u64 {
        let before = self.path(path).tally.frames;
        self.run(time);
        self.path(path).tally.frames - before
    }
}

fn quality(status: &PathStatus) -> PathQuality {
    status.quality.expect("one of two paths has one")
}

#[test]
fn short_messages_leave_a_rail_that_loses_three_of_a_hundred_until_it_is_well_for_ten_seconds() {
    for seed in 1..=3 {
        let mut sim = Sim::new(seed);
        let second = sim.second();
        assert!(sim.path(0).is_used && sim.frames_in(0, SECOND) > 1000);
        sim.lose(0, 30_000);
        let took = sim.until(0, PathGrade::Degraded, 3 * SECOND);
        assert!(took > Duration::from_millis(100), "not for a packet or two: {took:?}");
        let found = quality(&sim.path(0));
        assert!((101..=500).contains(&found.score), "{found:?}");
        assert!((10_000..100_000).contains(&found.loss_ppm.expect("it is known")), "{found:?}");
        sim.run(SECOND / 10);
        assert!(sim.path(second).is_used && !sim.path(0).is_used);
        let [left, taken] = [0, second].map(|path| sim.frames_in(path, SECOND));
        assert!(left < 20 && taken > 1000, "seed {seed}: {left} and {taken} frames");
        // It does not come and go, although next to nothing goes over it.
        sim.run(20 * SECOND);
        assert_eq!(sim.graded(), [(0, "degraded")], "seed {seed}");
        assert!(!sim.path(0).is_used && sim.path(0).link.is_some());

        sim.lose(0, 0);
        sim.run(9 * SECOND);
        assert_eq!(sim.graded(), [(0, "degraded")], "seed {seed}: too soon");
        sim.until(0, PathGrade::Good, 3 * SECOND);
        sim.run(SECOND / 10);
        assert_eq!(sim.graded(), [(0, "degraded"), (0, "recovered")], "seed {seed}");
        assert_eq!(quality(&sim.path(0)).score, 1000);
        // The other one was made the primary one meanwhile, and stays it until it fails.
        sim.lose(1, 1_000_000);
        sim.run(SECOND);
        assert!(sim.path(0).is_used && sim.frames_in(0, SECOND) > 1000, "seed {seed}");
    }
}

#[test]
fn a_rail_that_loses_every_seventh_packet_stands_by_and_the_session_goes_on() {
    for seed in 1..=3 {
        let mut sim = Sim::new(seed);
        let second = sim.second();
        sim.sends_long = true;
        sim.lose(0, 150_000);
        sim.until(0, PathGrade::Standby, 30 * SECOND);
        assert!(quality(&sim.path(0)).score <= 100);
        sim.run(SECOND);
        let probes = sim.path(0).tally.probes_sent;
        let [left, taken] = [0, second].map(|path| sim.frames_in(path, 3 * SECOND));
        assert!(left == 0 && taken > 3000, "seed {seed}: {left} and {taken} frames");
        let status = sim.path(0);
        assert!(status.tally.probes_sent > probes + 100, "it is probed");
        assert!(!matches!(status.state, LinkState::Lost { .. }), "it stays: {status:?}");
        // And it comes back.
        sim.lose(0, 0);
        sim.run(9 * SECOND);
        assert_eq!(quality(&sim.path(0)).grade, PathGrade::Standby, "seed {seed}: too soon");
        sim.until(0, PathGrade::Good, 4 * SECOND);
        sim.lose(1, 1_000_000);
        sim.run(SECOND);
        assert!(sim.path(0).is_used && sim.frames_in(0, SECOND) > 1000, "seed {seed}");
    }
}

#[test]
fn rails_that_are_both_bad_are_used_and_so_is_one_that_is_left() {
    let mut sim = Sim::new(4);
    sim.sends_long = true;
    let second = sim.second();
    (0..RAILS).for_each(|rail| sim.lose(rail, 150_000));
    for path in [0, second] {
        sim.until(path, PathGrade::Standby, 30 * SECOND);
    }
    let before = sim.done;
    sim.run(2 * SECOND);
    assert!(sim.done > before + 4000, "{} operations", sim.done - before);
    // The worse one is cut: the other one carries, however bad.
    sim.lose(0, 1_000_000);
    sim.run(SECOND);
    let before = sim.done;
    sim.run(2 * SECOND);
    assert!(sim.done > before + 4000 && sim.path(second).is_used, "{}", sim.done - before);
}
