//! Parked sessions and everything that ends them: deaths, restarts, silence, peers that forgot.

use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_core::{Channel, Config, Counters, LOOP_LINK, Level};
use ropewalk_sim::{Cut, Kill, SimConfig, SimNetwork};

use crate::node::{Heard, Node, name};

const LIMIT: Duration = Duration::from_secs(120);
/// The user's numbers of its receives begin here.
const RECEIVES: u64 = 1000;

/// A few endpoints, whose outcomes are kept.
struct Few {
    network: SimNetwork,
    nodes: Vec<Node>,
    now: Time,
    /// By node: number and outcome of ended operations, and the requests.
    ended: Vec<Vec<(u64, Result<(), Fault>)>>,
    requests: Vec<Vec<u64>>,
    /// By node: the numbers of messages that were received.
    received: Vec<Vec<u64>>,
}

fn config() -> Config {
    Config { links_max: 0, ..Config::default() }
}

impl Few {
    fn new(seed: u64, configs: &[(Config, SimConfig)]) -> Few {
        let network = SimNetwork::new(seed);
        let nodes = (0..)
            .zip(configs)
            .map(|(number, (config, rail))| Node::new(&network, number, 1, *config, rail.clone()));
        let nodes: Vec<Node> = nodes.collect();
        let count = nodes.len();
        let (ended, requests) = (vec![Vec::new(); count], vec![Vec::new(); count]);
        let received = vec![Vec::new(); count];
        Few { network, nodes, now: Time(1), ended, requests, received }
    }

    /// Two that park whatever is idle.
    fn pair(seed: u64) -> Few {
        let rail = if seed.is_multiple_of(2) { SimConfig::stream() } else { SimConfig::native() };
        Few::new(seed, &[(config(), checked(rail.clone())), (config(), checked(rail))])
    }

    fn step(&mut self) {
        self.network.set_now(self.now);
        let mut any = false;
        for (number, node) in self.nodes.iter_mut().enumerate() {
            node.advance(self.now);
            while node.is_ready() {
                any = true;
                node.poll(self.now);
            }
            node.core.check();
            for heard in std::mem::take(&mut node.heard) {
                match heard {
                    Heard::Ended { user, outcome, bytes, .. } => {
                        self.ended[number].push((user, outcome));
                        if user >= RECEIVES && outcome.is_ok() {
                            let bytes = bytes[..8].try_into().unwrap();
                            self.received[number].push(u64::from_le_bytes(bytes));
                        }
                    }
                    Heard::Request { bytes, peer, session, .. } => {
                        self.requests[number]
                            .push(u64::from_le_bytes(bytes[..8].try_into().unwrap()));
                        node.request_taken(peer, session, bytes.len());
                    }
                }
            }
        }
        if !any {
            let cores = self.nodes.iter().filter_map(|node| node.core.deadline());
            let next = cores.chain(self.network.next_event()).min();
            let later = self.now + Duration::from_nanos(1);
            let idle = self.now + Duration::from_millis(1);
            self.now = next.unwrap_or(idle).max(later).min(idle);
        }
    }

    fn until(&mut self, what: &str, holds: impl Fn(&Few) -> bool) {
        let end = self.now + LIMIT;
        while !holds(self) {
            self.step();
            assert!(self.now < end, "no {what}: {:?} {:?}", self.ended, self.requests);
        }
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    fn send(&mut self, from: usize, to: usize, number: u64) {
        let bytes = number.to_le_bytes();
        self.nodes[from].send(to, Channel::Tagged, &bytes, Level::Buffered, number);
    }

    fn request(&mut self, from: usize, to: usize, number: u64) {
        let bytes = number.to_le_bytes();
        self.nodes[from].send(to, Channel::Request, &bytes, Level::Delivered, number);
    }

    fn counters(&self, node: usize) -> Counters {
        self.nodes[node].core.counters()
    }

    fn outcome(&self, node: usize, user: u64) -> Option<Result<(), Fault>> {
        let mut of = self.ended[node].iter().filter(|(number, _)| *number == user);
        let outcome = of.next().map(|(_, outcome)| *outcome);
        assert!(of.next().is_none(), "{user} ended twice at {node}");
        outcome
    }

    fn parked(&self, node: usize) -> bool {
        self.nodes[node].core.carrying_links() == (0, 0) && self.nodes[node].rail_links() == 0
    }

    /// A session that is parked at both ends, with a receive posted at the first one.
    fn rest(&mut self) {
        self.request(0, 1, 1);
        self.until("request", |few| few.requests[1] == [1] && few.outcome(0, 1).is_some());
        self.nodes[0].receive(Some(1), 100, RECEIVES);
        self.until("rest", |few| few.parked(0) && few.parked(1));
    }
}

fn checked(mut rail: SimConfig) -> SimConfig {
    rail.capabilities.intact = true;
    rail
}

#[test]
fn a_parked_session_goes_on_from_either_side_and_its_receive_is_still_there() {
    for seed in 0..20 {
        let mut few = Few::pair(seed);
        few.rest();
        few.send(1, 0, 5);
        few.until("message", |few| few.outcome(0, RECEIVES) == Some(Ok(())));
        few.until("rest", |few| few.parked(0) && few.parked(1));
        for number in 0..10 {
            few.request(number as usize % 2, 1 - number as usize % 2, 20 + number);
            few.until("answer", |few| few.outcome(number as usize % 2, 20 + number).is_some());
            few.run_for(Duration::from_millis(number * 50));
        }
        for node in 0..2 {
            let counters = few.counters(node);
            assert_eq!((counters.sessions, counters.resets, counters.violations), (1, 0, 0));
            assert!(counters.sessions_idle_closed > 2 && counters.sessions_resumed > 2);
        }
    }
}

/// Both ask to park, answer and call at the same moments.
#[test]
fn both_sides_may_ask_and_call_at_once_and_every_message_still_comes_once_and_in_order() {
    for seed in 0..300 {
        let mut few = Few::pair(seed);
        let mut random = Random::from_seed(seed);
        const COUNT: u64 = 60;
        let mut sent = [0, 0];
        for number in 0..COUNT {
            for (node, other) in [(0, 1), (1, 0)] {
                if node == 0 {
                    few.nodes[other].receive(None, 100, RECEIVES + number);
                } else {
                    few.nodes[other].receive(Some(node), 100, RECEIVES + number);
                }
            }
        }
        while sent != [COUNT, COUNT] {
            let node = random.below(2) as usize;
            let together = random.below(3) == 0;
            for node in [node, 1 - node].into_iter().take(1 + usize::from(together)) {
                if sent[node] < COUNT {
                    few.send(node, 1 - node, sent[node]);
                    sent[node] += 1;
                }
            }
            // Around the time that a question, its answer and a new link need.
            few.run_for(Duration::from_micros(random.below(700)));
        }
        few.until("end", |few| few.ended.iter().all(|ended| ended.len() as u64 == 2 * COUNT));
        for node in 0..2 {
            assert!(few.ended[node].iter().all(|(_, outcome)| *outcome == Ok(())), "seed {seed}");
            let received = few.ended[node].iter().filter(|(user, _)| *user >= RECEIVES);
            assert!(received.map(|(user, _)| *user).is_sorted(), "seed {seed}");
            let counters = few.counters(node);
            assert_eq!((counters.resets, counters.violations), (0, 0), "seed {seed}");
        }
    }
}

/// As a lost link does without parking: each operation ends once, nothing comes twice or out of order,
/// and the next ones arrive.
#[test]
fn links_that_are_cut_around_a_parking_fail_each_operation_at_most_once() {
    const COUNT: u64 = 30;
    for seed in 0..200 {
        let mut few = Few::pair(seed);
        let mut random = Random::from_seed(seed);
        for number in 0..COUNT {
            let node = random.below(2) as usize;
            few.nodes[1 - node].receive(None, 100, RECEIVES + number);
            few.send(node, 1 - node, number);
            few.run_for(Duration::from_micros(random.below(400)));
            if random.below(3) == 0 {
                let after = Duration::from_micros(random.below(300));
                let cut = [Cut::Both, Cut::FirstThenOther(after)][random.below(2) as usize];
                let first = random.below(2) as usize;
                few.network.cut(&name(first), &name(1 - first), cut);
            }
        }
        few.run_for(Duration::from_secs(1));
        for node in 0..2 {
            let sends = few.ended[node].iter().filter(|(user, _)| *user < RECEIVES);
            let all = COUNT as usize;
            let others = few.ended[1 - node].iter().filter(|(user, _)| *user < RECEIVES);
            assert_eq!(sends.count() + others.count(), all, "seed {seed}: each ends once");
            let received = &few.received[node];
            assert!(received.windows(2).all(|pair| pair[0] < pair[1]), "seed {seed}: {received:?}");
            assert_eq!(few.counters(node).violations, 0, "seed {seed}");
        }
        for node in 0..2 {
            // If one side has not noticed the loss yet, an operation fails once more.
            few.request(node, 1 - node, 100);
            few.until("end", |few| few.outcome(node, 100).is_some());
            few.request(node, 1 - node, 101);
            few.until("next", |few| few.outcome(node, 101) == Some(Ok(())));
        }
    }
}

#[test]
fn a_parked_peer_that_died_fails_its_operations_once_at_the_next_post() {
    for kill in [Kill::Process(Duration::ZERO), Kill::Power] {
        let mut few = Few::pair(0);
        few.rest();
        few.network.kill(&name(1), kill);
        few.run_for(Duration::from_secs(60));
        assert_eq!(few.outcome(0, RECEIVES), None, "nobody asked");
        few.send(0, 1, 7);
        few.until("end", |few| few.ended[0].len() == 3);
        assert_eq!(few.outcome(0, 7), Some(Err(Fault::Unreachable)));
        assert_eq!(few.outcome(0, RECEIVES), Some(Err(Fault::Unreachable)));
        few.nodes[1] = Node::new(&few.network, 1, 2, config(), checked(SimConfig::stream()));
        few.request(0, 1, 8);
        few.until("successor", |few| few.outcome(0, 8) == Some(Ok(())));
        assert_eq!(few.counters(0).resets, 1);
    }
}

#[test]
fn a_parked_peer_that_restarted_fails_operations_once_whoever_calls_first() {
    for calls in [0, 1] {
        let mut few = Few::pair(0);
        few.rest();
        few.network.kill(&name(1), Kill::Power);
        few.nodes[1] = Node::new(&few.network, 1, 2, config(), checked(SimConfig::stream()));
        few.request(calls, 1 - calls, 7);
        few.until("end", |few| few.outcome(0, RECEIVES).is_some());
        few.until("request", |few| few.outcome(calls, 7).is_some());
        assert_eq!(few.outcome(0, RECEIVES), Some(Err(Fault::PeerReset)));
        // A send posted to the peer's former life fails with it; the next one arrives.
        let expected = if calls == 0 { Err(Fault::PeerReset) } else { Ok(()) };
        assert_eq!(few.outcome(calls, 7), Some(expected));
        few.request(0, 1, 8);
        few.until("successor", |few| few.outcome(0, 8) == Some(Ok(())));
        assert_eq!(few.counters(0).resets, 1);
    }
}

#[test]
fn a_peer_that_forgot_a_parked_session_ends_it_once() {
    for calls in [0, 1] {
        let mut few = Few::pair(1);
        // So that the second one has a record to forget.
        few.request(1, 0, 3);
        few.rest();
        few.nodes[1].forget(0);
        few.request(calls, 1 - calls, 7);
        few.until("end", |few| {
            few.outcome(0, RECEIVES).is_some() && few.outcome(calls, 7).is_some()
        });
        assert_eq!(few.outcome(0, RECEIVES), Some(Err(Fault::PeerReset)));
        few.request(0, 1, 8);
        few.until("next", |few| few.outcome(0, 8) == Some(Ok(())));
        assert_eq!(few.counters(0).resets, 1);
    }
}

#[test]
fn another_name_for_a_peer_with_a_parked_session_leaves_the_session_alone() {
    let mut few = Few::pair(0);
    few.rest();
    few.nodes[0].peer_again(1);
    few.request(0, 1, 7);
    few.until("request", |few| few.outcome(0, 7) == Some(Ok(())));
    few.send(1, 0, 9);
    few.until("message", |few| few.outcome(0, RECEIVES) == Some(Ok(())));
    let counters = few.counters(0);
    assert_eq!((counters.sessions, counters.resets), (1, 0));
}

#[test]
fn a_peer_that_does_not_say_whether_a_link_may_go_is_given_up_only_where_it_is_wanted() {
    let mut rail = checked(SimConfig::stream());
    rail.link_timeout = None;
    let quiet = Config { links_max: 1, ..Config::default() };
    let mut few = Few::new(0, &[(config(), rail.clone()), (quiet, rail)]);
    // The question is lost in a partition that the rail does not notice.
    few.request(0, 1, 1);
    few.until("request", |few| few.outcome(0, 1).is_some());
    few.nodes[0].receive(Some(1), 100, RECEIVES);
    few.network.partition(&name(0), &name(1));
    few.run_for(Duration::from_secs(200));
    assert_eq!(few.nodes[0].core.carrying_links(), (1, 1), "it waits for the answer");
    assert_eq!(few.outcome(0, RECEIVES), None, "nobody wants anything");
    few.send(0, 1, 7);
    let posted = few.now;
    few.until("end", |few| few.outcome(0, 7).is_some());
    assert_eq!(few.outcome(0, 7), Some(Err(Fault::PeerReset)));
    assert_eq!(few.outcome(0, RECEIVES), Some(Err(Fault::PeerReset)));
    assert!(few.now.since(posted) < Duration::from_secs(33));
    few.network.heal(&name(0), &name(1));
    few.request(0, 1, 8);
    few.until("next", |few| few.outcome(0, 8) == Some(Ok(())));
}

#[test]
fn who_cannot_be_called_keeps_its_link_and_the_limit_gives_way() {
    let mut rail = checked(SimConfig::stream());
    rail.accepts = false;
    let mut few = Few::new(0, &[(config(), rail), (config(), checked(SimConfig::stream()))]);
    few.request(0, 1, 1);
    few.until("request", |few| few.outcome(0, 1).is_some());
    few.run_for(Duration::from_secs(5));
    for node in 0..2 {
        assert_eq!(few.nodes[node].core.carrying_links(), (1, 0));
        let counters = few.counters(node);
        assert_eq!((counters.sessions_idle_closed, counters.idle_closes_refused), (0, 0));
        assert!(counters.links_over > 0);
    }
}

#[test]
fn strangers_whose_sessions_are_parked_make_room_for_others_the_oldest_first() {
    let server = Config { peers_max: 8, ..config() };
    let rail = checked(SimConfig::stream());
    let mut all = vec![(server, rail.clone())];
    all.extend((0..20).map(|_| (Config::default(), rail.clone())));
    let mut few = Few::new(0, &all);
    for client in 1..=20 {
        few.request(client, 0, client as u64);
        few.until("request", |few| few.outcome(client, client as u64) == Some(Ok(())));
        few.until("rest", |few| few.parked(0));
    }
    // The first one's session ended unseen; the last one's goes on.
    few.request(1, 0, 50);
    few.request(20, 0, 50);
    few.until("ends", |few| few.outcome(1, 50).is_some() && few.outcome(20, 50).is_some());
    assert_eq!(few.outcome(1, 50), Some(Err(Fault::PeerReset)));
    assert_eq!(few.outcome(20, 50), Some(Ok(())));
    few.request(1, 0, 51);
    few.until("next", |few| few.outcome(1, 51) == Some(Ok(())));
}

#[test]
fn a_parked_session_ends_where_the_address_of_its_peer_is_our_own_by_now() {
    let mut few = Few::pair(0);
    few.rest();
    let peer = few.nodes[0].peer(1);
    for _ in 0..2 {
        few.nodes[0].core.connect_to_itself(peer);
        few.run_for(Duration::from_millis(1));
        assert_eq!(few.outcome(0, RECEIVES), Some(Err(Fault::PeerReset)));
        assert_eq!(few.nodes[0].core.peer_endpoint(peer), Some(1));
        assert_eq!((few.counters(0).sessions, few.counters(0).resets), (2, 1));
    }
    // Who was there before is known no more, and gets a record of its own.
    few.request(1, 0, 7);
    few.until("end", |few| few.outcome(1, 7).is_some());
    few.request(1, 0, 8);
    few.until("next", |few| few.outcome(1, 8) == Some(Ok(())));
}

#[test]
fn a_running_session_ends_at_both_ends_where_another_endpoint_has_the_address_by_now() {
    let rail = checked(SimConfig::stream());
    let mut few = Few::new(0, &[(Config::default(), rail.clone()), (Config::default(), rail)]);
    few.request(0, 1, 1);
    few.until("request", |few| few.outcome(0, 1) == Some(Ok(())));
    few.nodes[1].receive(Some(0), 100, RECEIVES);
    few.run_for(Duration::from_millis(10));
    let peer = few.nodes[0].peer(1);
    few.nodes[0].core.connect_to_itself(peer);
    few.until("end", |few| few.outcome(1, RECEIVES).is_some());
    assert_eq!(few.outcome(1, RECEIVES), Some(Err(Fault::PeerReset)));
}

/// At any moment of the call.
#[test]
fn an_endpoint_that_calls_while_another_one_gets_its_record_has_no_session_there() {
    for micros in (0..600).step_by(5) {
        let mut few = Few::pair(0);
        few.request(1, 0, 3);
        few.rest();
        // So that it calls for a new session.
        few.nodes[1].forget(0);
        few.request(1, 0, 7);
        few.run_for(Duration::from_micros(micros));
        let peer = few.nodes[0].peer(1);
        few.nodes[0].core.connect_to_itself(peer);
        few.until("end", |few| few.outcome(1, 7).is_some());
        // It may have to hear that a session which had begun is over.
        few.request(1, 0, 8);
        few.until("end", |few| few.outcome(1, 8).is_some());
        few.request(1, 0, 9);
        few.until("next", |few| few.outcome(1, 9) == Some(Ok(())));
        let core = &few.nodes[0].core;
        assert_eq!((core.peer_endpoint(peer), core.peer_link(peer)), (Some(1), Some(LOOP_LINK)));
    }
}

/// With separate sessions the record of a caller ends with its session.
#[test]
fn a_caller_for_whom_only_its_own_parked_session_can_make_room_is_heard() {
    let client = Config { separate_sessions: true, ..config() };
    // For one session.
    let server = Config { eager_pool_bytes: 150_000, ..client };
    let rail = checked(SimConfig::stream());
    let mut few = Few::new(0, &[(server, rail.clone()), (client, rail)]);
    few.request(1, 0, 1);
    few.until("request", |few| few.outcome(1, 1) == Some(Ok(())));
    few.until("rest", |few| few.parked(0) && few.parked(1));
    few.nodes[1].forget(0);
    few.request(1, 0, 2);
    few.until("next", |few| few.outcome(1, 2) == Some(Ok(())));
    assert_eq!((few.counters(0).sessions, few.counters(0).resets), (2, 1));
}
