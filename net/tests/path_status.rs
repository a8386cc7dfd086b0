//! What an operator sees of paths: a simulated network breaks one of two, and their states and history tell how that
//! was found out, how long it took, and what went again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_base::time::Time;
use ropewalk_net::path_status::{CallFault, NotUsed, PathEventView, PathStatus, PathView};
use ropewalk_net::{
    Channel, Context, Endpoint, EndpointConfig, Level, LinkState, Mode, Oversize, PathCause,
    PathChange, PeerId,
};
use ropewalk_rail::Rail;
use ropewalk_rail::address::Address;
use ropewalk_rail_sim::{Cut, SimConfig, SimNetwork};

const NAMES: [&str; 2] = ["left", "right"];
const SECOND: [&str; 2] = ["left-b", "right-b"];
const BYTES: usize = 1000;
/// Between two messages.
const PAUSE: Duration = Duration::from_micros(500);
const LIMIT: Duration = Duration::from_secs(20);

struct Node {
    endpoint: Endpoint,
    context: Context,
    peer: PeerId,
    done: u64,
}

/// Two endpoints, of which the first one sends a message to the other each `PAUSE`.
struct Sim {
    network: SimNetwork,
    clock: Arc<AtomicU64>,
    nodes: Vec<Node>,
    pool: Pool,
    sent: u64,
    send_at: Time,
}

impl Sim {
    fn new(seed: u64, rails: usize) -> Sim {
        let (network, clock) = (SimNetwork::new(seed), Arc::new(AtomicU64::new(0)));
        let nodes = (0..2).map(|number| Node::open(&network, &clock, number, rails)).collect();
        let pool = Pool::with_budget(1 << 28);
        Sim { network, clock, nodes, pool, sent: 0, send_at: Time::ZERO }
    }

    fn now(&self) -> Time {
        Time(self.clock.load(Ordering::Relaxed))
    }

    fn step(&mut self) {
        let now = self.now();
        if self.send_at <= now {
            self.send_at = now + PAUSE;
            self.sent += 1;
            self.post();
        }
        let mut any = false;
        for node in &mut self.nodes {
            any |= node.endpoint.progress();
            while let Some(completed) = node.endpoint.test(&node.context) {
                assert_eq!(completed.outcome, Ok(()));
                any = true;
                node.done += 1;
            }
        }
        if !any {
            let deadlines = self.nodes.iter().filter_map(|node| node.endpoint.deadline());
            let events = deadlines.chain(self.network.next_event()).chain([self.send_at]);
            let next = events.min().unwrap_or(now).max(now + Duration::from_nanos(1));
            self.clock.store(next.0, Ordering::Relaxed);
            self.network.set_now(next);
        }
    }

    fn post(&mut self) {
        let (memory, room) = (self.pool.take(BYTES).unwrap(), self.pool.take(BYTES).unwrap());
        let [from, to] = &mut self.nodes[..] else { unreachable!("two") };
        let posted = to.endpoint.post_receive(
            &to.context,
            Channel::Tagged,
            None,
            0,
            0,
            Memory::pooled(room),
            Oversize::Truncate,
            0,
        );
        to.done += u64::from(matches!(posted.unwrap(), ropewalk_net::Posted::Done(_)));
        let (channel, memory, level) = (Channel::Tagged, Memory::pooled(memory), Level::Delivered);
        let posted =
            from.endpoint.post_send(&from.context, from.peer, channel, 0, memory, level, 0);
        from.done += u64::from(matches!(posted.unwrap(), ropewalk_net::Posted::Done(_)));
    }

    /// Steps until the first endpoint has such an event behind this number.
    fn until(&mut self, after: u64, is_such: impl Fn(&PathChange) -> bool) -> PathEventView {
        let limit = self.now() + LIMIT;
        loop {
            let events = self.nodes[0].endpoint.path_history(after).events;
            if let Some(found) = events.into_iter().find(|event| is_such(&event.change)) {
                return found;
            }
            self.step();
            let history = || self.nodes[0].endpoint.path_history(0);
            assert!(self.now() < limit, "such an event does not come: {:?}", history());
        }
    }

    fn view(&self, path: u32) -> PathView {
        let mut views = self.nodes[0].endpoint.path_status().paths.into_iter();
        views.find(|view| view.status.path == path).expect("a path of this number")
    }

    fn path(&self, path: u32) -> PathStatus {
        self.view(path).status
    }

    fn joined(&mut self) -> PathEventView {
        let joined = self.until(0, |change| matches!(change, PathChange::Joined));
        for _ in 0..2000 {
            self.step();
        }
        joined
    }
}

impl Node {
    fn open(network: &SimNetwork, clock: &Arc<AtomicU64>, number: usize, rails: usize) -> Node {
        let names = [NAMES[number], SECOND[number]].into_iter().take(rails);
        let rail = |name| Box::new(network.rail(name, SimConfig::stream())) as Box<dyn Rail>;
        let mut config = EndpointConfig::new(ClusterId(1));
        config.endpoint = EndpointId(number as u128 + 1);
        config.incarnation = Incarnation(1);
        config.host = 0;
        config.seed = number as u64;
        config.service_thread = false;
        config.core.mode = Mode::Resume;
        config.core.paths_max = rails;
        let clock = clock.clone();
        config.clock = Arc::new(move || Time(clock.load(Ordering::Relaxed)));
        config.virtual_time = true;
        let endpoint = Endpoint::open(config, names.map(rail).collect()).unwrap();
        let context = endpoint.context(true).unwrap();
        let address = Address::parse(&format!("sim://{}", NAMES[1 - number])).unwrap();
        let peer = endpoint.lookup(&address).unwrap();
        Node { endpoint, context, peer, done: 0 }
    }
}

#[test]
fn the_history_of_a_silent_path_says_how_it_was_found_out_and_what_went_again() {
    for seed in 1..40 {
        let mut sim = Sim::new(seed, 2);
        let joined = sim.joined();
        assert_eq!((joined.rail.index, joined.peer.endpoint), (1, EndpointId(2)));
        assert_eq!(joined.peer.address.as_deref(), Some("sim://right"));
        let (first, second) = (sim.path(0), sim.path(joined.path));
        assert_eq!((first.state, first.is_used), (LinkState::Up, true), "seed {seed}");
        assert_eq!((second.state, second.is_used), (LinkState::Up, false), "seed {seed}");
        assert!(first.is_bundle && first.tally.frames > 10 && second.tally.frames == 0);
        let (round_trip, _) = first.round_trip.expect("it was measured");
        assert!(round_trip < Duration::from_millis(3), "{round_trip:?}");

        sim.network.partition(NAMES[0], NAMES[1]);
        let cut_at = sim.now();
        let (sent_before, done_before) = (sim.sent, sim.nodes[0].done);
        let suspected = sim.until(joined.number, |it| matches!(it, PathChange::Suspected { .. }));
        let waiting = sim.sent - sent_before;
        let PathChange::Suspected { cause, detection: Some(detection) } = suspected.change else {
            panic!("seed {seed}: {suspected:?}");
        };
        // Either side may find out first, and tell the other one.
        let name = match cause {
            PathCause::TimeOut => "time_out",
            PathCause::Peer => "peer_told",
            other => panic!("seed {seed}: {other:?}"),
        };
        let first_cause = cause;
        assert_eq!((suspected.path, suspected.rail.index), (0, 0));
        // The last delivery was before the cut; its acknowledgement may have come later, over the other path.
        let since = Time(suspected.at.0 - detection.as_nanos() as u64);
        assert!(since + Duration::from_millis(4) > cut_at, "seed {seed}: {detection:?}");
        // An acknowledgement that came by the other path since is no delivery of this one.
        assert!(detection >= Duration::from_millis(1), "seed {seed}: {detection:?}, {cause:?}");
        // It may have rested after that delivery.
        let delivered_at = sim.path(0).delivered_at.expect("it delivered");
        assert!(delivered_at <= since, "seed {seed}: {delivered_at:?}, {since:?}");
        let state = sim.path(0).state;
        assert_eq!(state, LinkState::Suspect { since: suspected.at }, "seed {seed}");

        let moved = sim.until(suspected.number, |it| matches!(it, PathChange::Redirected { .. }));
        let PathChange::Redirected { to, cause, detection: again, stall, spans, bytes } =
            moved.change
        else {
            unreachable!("it was looked for");
        };
        assert_eq!((to, cause, again), (joined.path, first_cause, Some(detection)));
        assert_eq!(stall, moved.at.since(suspected.at), "seed {seed}");
        assert!(stall > Duration::ZERO && stall < Duration::from_millis(5), "{stall:?}");
        let messages = bytes / BYTES as u64;
        assert!(bytes.is_multiple_of(BYTES as u64) && spans >= messages, "{spans}, {bytes}");
        // All that was sent since the cut, and at most what was not acknowledged before.
        let most = sent_before - done_before + waiting;
        assert!(
            (waiting..=most).contains(&messages),
            "seed {seed}: {messages} of {waiting}..{most}"
        );
        let (failed, taker) = (sim.path(0).tally, sim.path(to).tally);
        assert_eq!((taker.frames_re_sent, taker.bytes_re_sent), (spans, bytes), "seed {seed}");
        assert_eq!((failed.stalls, failed.stalled), (1, stall));
        let counted: Vec<_> = failed.suspected().filter(|(_, count)| *count > 0).collect();
        assert_eq!(counted, [(name, 1)]);

        let dead = sim.until(moved.number, |it| matches!(it, PathChange::Dead { .. }));
        let PathChange::Dead { suspect } = dead.change else { unreachable!("looked for") };
        assert_eq!(suspect, dead.at.since(suspected.at));
        assert_eq!(sim.path(0).state, LinkState::Lost { since: dead.at });
        sim.network.heal(NAMES[0], NAMES[1]);
        let held = sim.until(dead.number, |it| matches!(it, PathChange::Held { .. }));
        let PathChange::Held { until } = held.change else { unreachable!("looked for") };
        assert_eq!(sim.path(0).state, LinkState::HeldBack { until });
        let mended = sim.until(held.number, |it| matches!(it, PathChange::Mended));
        assert!((mended.path, mended.at >= until) == (0, true));
        assert_eq!(sim.path(0).state, LinkState::Up);
        let tally = sim.path(0).tally;
        assert_eq!((tally.dead, tally.lost, tally.joined), (1, 0, 1));
        assert!(tally.probes_sent >= 4 && tally.probes_answered < tally.probes_sent);
    }
}

#[test]
fn a_path_that_answers_again_and_one_that_loses_its_link_are_told_apart() {
    let mut sim = Sim::new(7, 2);
    let joined = sim.joined();
    sim.network.partition(NAMES[0], NAMES[1]);
    let suspected = sim.until(joined.number, |it| matches!(it, PathChange::Suspected { .. }));
    sim.network.heal(NAMES[0], NAMES[1]);
    let answered = sim.until(suspected.number, |it| matches!(it, PathChange::Answered { .. }));
    let PathChange::Answered { suspect } = answered.change else { unreachable!("looked for") };
    assert_eq!((answered.path, suspect), (0, answered.at.since(suspected.at)));
    assert_eq!(sim.path(0).state, LinkState::Up);

    sim.network.cut(NAMES[0], NAMES[1], Cut::Both);
    let lost = sim.until(answered.number, |it| matches!(it, PathChange::Lost));
    assert_eq!((lost.path, sim.path(0).tally.lost), (0, 1));
    let held = sim.until(lost.number, |it| matches!(it, PathChange::Held { .. }));
    assert_eq!(held.path, 0, "it keeps its number");
    let told = |event: &PathEventView| match event.change {
        PathChange::Redirected { cause, .. } => Some(cause),
        _ => None,
    };
    let events = sim.nodes[0].endpoint.path_history(lost.number - 1).events;
    let causes: Vec<_> = events.iter().filter_map(told).collect();
    assert!(causes.iter().all(|cause| *cause == PathCause::LinkLost), "{causes:?}");
}

#[test]
fn a_session_with_one_path_counts_nothing_until_it_loses_that() {
    let mut sim = Sim::new(9, 1);
    for _ in 0..3000 {
        sim.step();
    }
    assert!(sim.nodes[1].done > 10 && sim.nodes[0].endpoint.path_history(0).events.is_empty());
    let only = sim.path(0);
    assert_eq!((only.state, only.is_used, only.is_bundle), (LinkState::Up, true, false));
    assert_eq!((only.tally, only.round_trip), (Default::default(), None));
    assert_eq!(sim.view(0).rail.scheme, "sim");
    sim.network.cut(NAMES[0], NAMES[1], Cut::Both);
    let lost = sim.until(0, |it| matches!(it, PathChange::Lost));
    let mended = sim.until(lost.number, |it| matches!(it, PathChange::Mended));
    let moved = sim.until(lost.number, |it| matches!(it, PathChange::Redirected { .. }));
    let PathChange::Redirected { stall, cause, .. } = moved.change else { unreachable!("so") };
    assert_eq!((stall, cause), (moved.at.since(lost.at), PathCause::LinkLost));
    assert!(mended.at <= moved.at);
}

#[test]
fn a_path_that_never_came_up_is_shown_with_its_cause_until_it_does() {
    // All calls over the second rail are refused, or nobody answers them.
    for (seed, is_refused) in [(3, true), (4, false)] {
        let mut sim = Sim::new(seed, 2);
        let set = |sim: &Sim, is_broken: bool| {
            for other in [NAMES[1], SECOND[1]] {
                for (from, to) in [(SECOND[0], other), (other, SECOND[0])] {
                    sim.network.change_path(from, to, |path| match is_refused {
                        true => path.refuse = is_broken,
                        false => path.blocked = is_broken,
                    });
                }
            }
        };
        set(&sim, true);
        let never = |sim: &Sim, at: usize| -> Vec<PathView> {
            let views = sim.nodes[at].endpoint.path_status().paths.into_iter();
            views.filter(|view| view.status.path == PathStatus::NEVER).collect()
        };
        let run = |sim: &mut Sim, time: Duration| {
            let end = sim.now() + time;
            while sim.now() < end {
                sim.step();
            }
        };
        let pass = |sim: &mut Sim| {
            let begin = sim.now();
            while never(sim, 0).is_empty() {
                sim.step();
                assert!(sim.now() < begin + LIMIT, "it is shown");
            }
            sim.now()
        };
        let begun = pass(&mut sim);
        let [view] = &never(&sim, 0)[..] else { panic!("one rail is without a path") };
        assert_eq!((view.rail.index, view.status.cause, view.status.link), (1, None, None));
        assert!(matches!(view.status.state, LinkState::Joining { .. }));
        run(&mut sim, Duration::from_secs(6));
        let [view] = &never(&sim, 0)[..] else { panic!("one rail is without a path") };
        let fault = if is_refused { CallFault::Refused } else { CallFault::NoAnswer };
        assert_eq!(view.status.cause, Some(NotUsed::Call(fault)));
        let LinkState::Down { since } = view.status.state else { panic!("{:?}", view.status) };
        assert!(since <= begun && view.status.tally == Default::default());
        assert!(!view.status.is_used && view.status.is_bundle);
        let remote = view.remote.as_deref().expect("where it was called");
        assert!([NAMES[1], SECOND[1]].contains(&remote), "{remote}");
        // The side that is called knows nothing of it.
        assert_eq!((never(&sim, 1).len(), sim.path(0).state), (0, LinkState::Up));
        set(&sim, false);
        let joined = sim.joined();
        assert!(never(&sim, 0).is_empty() && sim.path(joined.path).state == LinkState::Up);
    }
}
