//! Sessions whose paths are all gone: they go on when one comes back in time, and end with a word about each path otherwise.

use std::time::Duration;

use crate::common::{Medium, World, check};
use ropewalk_base::error::Fault;
use ropewalk_net::{Channel, Completed, Level, Mode, Oversize, PathCause, PathChange, PeerId};
use ropewalk_rail::Rail;
use ropewalk_rail_sim::{Cut, SimConfig};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// Messages on the way when the paths break, short ones and long ones.
const COUNT: u64 = 24;

/// How the paths break.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Break {
    /// Nothing passes, and links live on.
    Silence,
    /// Links end on both sides, and calls are refused.
    Loss,
}

const BREAKS: [Break; 2] = [Break::Silence, Break::Loss];

struct Pair {
    world: World,
    peer: PeerId,
}

fn name(number: usize, rail: usize) -> String {
    format!("n{number}-{rail}")
}

fn bytes(number: u64) -> usize {
    if number.is_multiple_of(3) { 200_000 } else { 500 * number as usize }
}

impl Pair {
    /// Two endpoints whose session has two paths.
    fn new(path_wait: Option<Duration>) -> Pair {
        let mut world = World::new(Medium::SimStream);
        world.mode = Mode::Resume;
        for number in 0..2 {
            let rail = |rail: usize| -> Box<dyn Rail> {
                Box::new(world.network.rail(&name(number, rail), SimConfig::stream()))
            };
            let rails = vec![rail(0), rail(1)];
            world.add_over_all(rails, |config| {
                (config.core.paths_max, config.core.path_wait) = (2, path_wait);
            });
        }
        let peer = world.peer(0, 1);
        let mut pair = Pair { world, peer };
        pair.send(1000);
        pair.receive(1000);
        for node in 0..2 {
            assert_eq!(pair.world.take(node, 1000).outcome, Ok(()));
        }
        pair.world.until("second paths", |world| {
            world.nodes.iter().all(|node| node.endpoint.counters().0.paths_joined == 1)
        });
        pair
    }

    fn send(&mut self, number: u64) {
        let memory = self.world.memory(bytes(number), number as u8);
        let node = &self.world.nodes[0];
        let (channel, level) = (Channel::Tagged, Level::Delivered);
        let context = &node.context;
        let posted =
            node.endpoint.post_send(context, self.peer, channel, number, memory, level, number);
        self.world.posted(0, posted);
    }

    fn receive(&mut self, number: u64) {
        let memory = self.world.memory(bytes(number), 0);
        let node = &self.world.nodes[1];
        let (channel, mask, cut) = (Channel::Tagged, u64::MAX, Oversize::Truncate);
        let posted = node.endpoint.post_receive(
            &node.context,
            channel,
            None,
            number,
            mask,
            memory,
            cut,
            number,
        );
        self.world.posted(1, posted);
    }

    /// Breaks all between a rail of the first endpoint and the other endpoint, or mends what is between two rails.
    fn set(&mut self, how: Break, rail: usize, is_broken: bool) {
        for other in 0..2 {
            let (from, to) = (name(0, rail), name(1, other));
            if !is_broken && other != rail {
                continue;
            }
            for (from, to) in [(&from, &to), (&to, &from)] {
                self.world.network.change_path(from, to, |path| match how {
                    Break::Silence => path.blocked = is_broken,
                    Break::Loss => path.refuse = is_broken,
                });
            }
        }
        let (near, far) = (name(0, rail), name(1, rail));
        if how == Break::Loss && is_broken {
            self.world.network.cut(&near, &far, Cut::Both);
        }
    }

    /// All messages are posted; then both paths break.
    fn break_off(&mut self, how: Break) {
        (0..COUNT).for_each(|number| self.receive(number));
        (0..COUNT).for_each(|number| self.send(number));
        for _ in 0..20 {
            self.world.step();
        }
        (0..2).for_each(|rail| self.set(how, rail, true));
    }

    /// The events of the first endpoint about having no path.
    fn want_of_paths(&self) -> Vec<PathChange> {
        let events = self.world.nodes[0].endpoint.path_history(0).events;
        let is_such = |change: &PathChange| {
            let is_without = matches!(change, PathChange::NoPath { .. } | PathChange::Ended { .. });
            is_without || matches!(change, PathChange::Resumed { .. })
        };
        events.into_iter().map(|event| event.change).filter(is_such).collect()
    }

    fn take_all(&mut self) -> [Vec<Completed>; 2] {
        [0, 1].map(|node| (0..COUNT).map(|number| self.world.take(node, number)).collect())
    }
}

#[test]
fn paths_that_are_gone_for_ten_seconds_lose_nothing_when_one_is_mended() {
    for how in BREAKS {
        for mended in 0..2 {
            let mut pair = Pair::new(None);
            pair.break_off(how);
            pair.world.pass(10 * SECOND);
            let is_over = |world: &World| world.nodes[0].done.len() as u64 >= COUNT;
            assert!(!is_over(&pair.world), "{how:?}: it was broken off");
            let why = pair.world.nodes[0].endpoint.why_unreachable(pair.peer);
            assert!(why.expect("both paths are gone").matches("rail sim").count() == 2);
            pair.set(how, mended, false);
            let [sent, received] = pair.take_all();
            for (number, completed) in sent.iter().enumerate() {
                assert_eq!(completed.outcome, Ok(()), "{how:?}, rail {mended}: message {number}");
            }
            for (number, completed) in (0..).zip(received) {
                assert_eq!(completed.outcome, Ok(()), "{how:?}, rail {mended}: message {number}");
                check(completed.memory, bytes(number), number as u8);
            }
            let counters = pair.world.nodes[0].endpoint.counters().0;
            assert_eq!((counters.sessions, counters.resets), (1, 0), "{how:?}, rail {mended}");
            // Who looks later sees that there was no path, why, and for how long.
            let want: Vec<_> = pair.want_of_paths();
            let [PathChange::NoPath { cause }, PathChange::Resumed { without }] = want[..] else {
                panic!("{how:?}, rail {mended}: {want:?}");
            };
            let causes = match how {
                Break::Silence => [PathCause::TimeOut, PathCause::Silence],
                Break::Loss => [PathCause::LinkLost; 2],
            };
            assert!(causes.contains(&cause), "{how:?}, rail {mended}: {cause:?}");
            let about = 9900 * MS..=13 * SECOND;
            assert!(about.contains(&without), "{how:?}, rail {mended}: {without:?}");
        }
    }
}

#[test]
fn each_operation_ends_once_when_no_path_comes_back_in_time() {
    for how in BREAKS {
        let mut pair = Pair::new(Some(3 * SECOND));
        pair.break_off(how);
        pair.world.pass(2500 * MS);
        assert!((pair.world.nodes[0].done.len() as u64) < COUNT, "{how:?}: it waits for a path");
        pair.world.pass(2 * SECOND);
        // Every send has ended, and each receive that had begun; the memory of each is back.
        let sent = std::mem::take(&mut pair.world.nodes[0].done);
        assert_eq!(sent.len() as u64, COUNT, "{how:?}");
        let mut users: Vec<u64> = sent.iter().map(|completed| completed.user).collect();
        users.sort_unstable();
        users.dedup();
        assert_eq!(users.len() as u64, COUNT, "{how:?}: each ends once");
        let failed = sent.iter().filter(|completed| completed.outcome.is_err()).count();
        assert!(failed > 0, "{how:?}");
        let outcomes = [Ok(()), Err(Fault::PeerReset), Err(Fault::Unreachable)];
        assert!(sent.iter().all(|completed| outcomes.contains(&completed.outcome)), "{how:?}");
        for (completed, bytes) in sent.into_iter().map(|it| (it.user, it.memory)) {
            check(bytes, self::bytes(completed), completed as u8);
        }
        let why = pair.world.nodes[0].endpoint.why_unreachable(pair.peer);
        let why = why.expect("it was given up");
        println!("{why}");
        let cause = if how == Break::Silence { "no answer for" } else { "the link is lost" };
        let said = format!("no path to sim://{},sim://{}: ", name(1, 0), name(1, 1));
        assert!(why.starts_with(&said), "{why}");
        for rail in 0..2 {
            assert!(why.contains(&format!("rail sim {}: {cause}", name(0, rail))), "{why}");
        }
        let want = pair.want_of_paths();
        assert!(matches!(want[0], PathChange::NoPath { .. }), "{how:?}: {want:?}");
        let events = pair.world.nodes[0].endpoint.path_history(0).events;
        let ended: Vec<_> = events
            .iter()
            .filter_map(|event| match event.change {
                PathChange::Ended { cause, gone } => Some((event.rail.index, cause, gone)),
                _ => None,
            })
            .collect();
        assert_eq!((want.len(), ended.len()), (3, 2), "{how:?}: each path has an end: {want:?}");
        for (rail, (index, cause, gone)) in (0..).zip(ended) {
            let causes = match how {
                Break::Silence => [PathCause::TimeOut, PathCause::Silence],
                Break::Loss => [PathCause::LinkLost; 2],
            };
            assert!(index == rail && causes.contains(&cause), "{how:?}: {index} {cause:?}");
            assert!((2500 * MS..4 * SECOND).contains(&gone), "{how:?}: {gone:?}");
        }
        // What the receiver was given is whole.
        pair.world.pass(5 * SECOND);
        let received = std::mem::take(&mut pair.world.nodes[1].done);
        for completed in received {
            let number = completed.user;
            assert!(outcomes.contains(&completed.outcome), "{how:?}: {number}");
            if completed.outcome == Ok(()) {
                check(completed.memory, bytes(number), number as u8);
            }
        }
        pair.world.nodes.iter().for_each(|node| node.endpoint.check());
        // The next session begins when a path is there.
        (0..2).for_each(|rail| pair.set(how, rail, false));
        pair.receive(2000);
        pair.send(2000);
        assert_eq!(pair.world.take(0, 2000).outcome, Ok(()), "{how:?}");
        assert_eq!(pair.world.take(1, 2000).outcome, Ok(()), "{how:?}");
        assert_eq!(pair.world.nodes[0].endpoint.why_unreachable(pair.peer), None);
    }
}

#[test]
fn a_session_that_waits_for_no_path_ends_with_its_last_link() {
    let mut pair = Pair::new(Some(Duration::ZERO));
    pair.break_off(Break::Loss);
    pair.world.pass(100 * MS);
    assert_eq!(pair.world.nodes[0].done.len() as u64, COUNT);
    // One path of two is enough.
    let mut pair = Pair::new(Some(Duration::ZERO));
    pair.set(Break::Loss, 0, true);
    pair.receive(1);
    pair.send(1);
    for node in 0..2 {
        assert_eq!(pair.world.take(node, 1).outcome, Ok(()));
    }
}
