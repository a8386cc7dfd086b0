//! Paths over which nothing goes: what is known of them before they are needed, and what that costs.

use std::time::Duration;

use crate::common::{Medium, World, check};
use ropewalk_net::{Channel, Level, Mode, Oversize, PeerId};
use ropewalk_rail::Rail;
use ropewalk_rail_sim::SimConfig;

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
/// The hosts of the first endpoint and of all others.
const HOSTS: [u64; 2] = [100, 200];

/// Endpoints with two rails each: the first one, and `others` on another host.
fn world(others: usize) -> World {
    let mut world = World::new(Medium::SimStream);
    world.mode = Mode::Resume;
    for number in 0..=others {
        let rail = |rail: usize| -> Box<dyn Rail> {
            Box::new(world.network.rail(&name(number, rail), SimConfig::stream()))
        };
        let rails = vec![rail(0), rail(1)];
        world.add_over_all(rails, |config| {
            config.core.paths_max = 2;
            config.host = HOSTS[number.min(1)];
        });
    }
    world
}

fn name(number: usize, rail: usize) -> String {
    format!("n{number}-{rail}")
}

/// A message from the first endpoint to another one.
fn pass(world: &mut World, to: usize, peer: PeerId, bits: u64) {
    let (memory, out) = (world.memory(3000, 0), world.memory(3000, bits as u8));
    let (channel, mask, cut) = (Channel::Tagged, u64::MAX, Oversize::Truncate);
    let node = &world.nodes[to];
    let posted =
        node.endpoint.post_receive(&node.context, channel, None, bits, mask, memory, cut, bits);
    world.posted(to, posted);
    let node = &world.nodes[0];
    let level = Level::Delivered;
    let posted = node.endpoint.post_send(&node.context, peer, channel, bits, out, level, bits);
    world.posted(0, posted);
    let got = world.take(to, bits);
    assert_eq!((got.outcome, world.take(0, bits).outcome), (Ok(()), Ok(())));
    check(got.memory, 3000, bits as u8);
}

/// All peers of the first endpoint have two paths.
fn meet(world: &mut World) -> Vec<PeerId> {
    let others = world.nodes.len() - 1;
    let peers: Vec<PeerId> = (1..=others).map(|to| world.peer(0, to)).collect();
    for (to, peer) in peers.iter().enumerate() {
        pass(world, to + 1, *peer, 1);
    }
    world.until("second paths", |world| {
        let joined = |node: usize| world.nodes[node].endpoint.counters().0.paths_joined;
        joined(0) == others as u64 && (1..=others).all(|node| joined(node) == 1)
    });
    peers
}

/// Frames that an endpoint has sent.
fn frames_sent(world: &World, node: usize) -> u64 {
    world.nodes[node].endpoint.counters().1.iter().map(|(_, rail)| rail.frames_sent).sum()
}

fn count(world: &World, node: usize, of: impl Fn(&ropewalk_net::Counters) -> u64) -> u64 {
    of(&world.nodes[node].endpoint.counters().0)
}

fn block(world: &World, number: usize, rail: usize, blocked: bool) {
    let (near, far) = (name(0, rail), name(number, rail));
    world.network.change_path(&near, &far, |path| path.blocked = blocked);
    world.network.change_path(&far, &near, |path| path.blocked = blocked);
}

#[test]
fn an_idle_session_sends_few_frames_a_minute() {
    let mut world = world(1);
    meet(&mut world);
    world.pass(10 * SECOND);
    let before = [0, 1].map(|node| frames_sent(&world, node));
    world.pass(60 * SECOND);
    for (node, before) in before.into_iter().enumerate() {
        // Each side probes both paths six times, and answers as often.
        let sent = frames_sent(&world, node) - before;
        assert!((12..=28).contains(&sent), "endpoint {node} sent {sent} frames");
        assert_eq!(count(&world, node, |it| it.paths_suspected + it.paths_lost), 0);
    }
    // Nor is there more of them where the other path is broken, and where both are.
    block(&world, 1, 1, true);
    world.pass(60 * SECOND);
    let before = [0, 1].map(|node| frames_sent(&world, node));
    world.pass(60 * SECOND);
    for (node, before) in before.into_iter().enumerate() {
        let sent = frames_sent(&world, node) - before;
        assert!(sent <= 200, "endpoint {node} sent {sent} frames");
    }
}

#[test]
fn a_path_that_stands_by_and_dies_is_known_to_be_dead_before_it_is_needed() {
    for is_idle in [false, true] {
        let mut world = world(1);
        let peer = meet(&mut world)[0];
        if is_idle {
            world.pass(30 * SECOND);
        }
        block(&world, 1, 1, true);
        let (mut bits, mut waited) = (2, Duration::ZERO);
        while count(&world, 0, |it| it.paths_dead) == 0 {
            if !is_idle {
                pass(&mut world, 1, peer, bits);
                bits += 1;
            }
            world.pass(MS);
            waited += MS;
        }
        let limit = if is_idle { 11 * SECOND } else { 200 * MS };
        assert!(waited <= limit, "idle {is_idle}: {waited:?}");
        // The carrying path is not suspected.
        assert_eq!(count(&world, 0, |it| it.paths_suspected), 1);
        // It is mended, and comes back.
        let joined = count(&world, 0, |it| it.paths_joined);
        block(&world, 1, 1, false);
        world.pass(3 * SECOND);
        assert_eq!(count(&world, 0, |it| it.paths_joined), joined + 1, "idle {is_idle}");
    }
}

#[test]
fn traffic_after_a_pause_has_the_other_path_probed_at_once() {
    let mut world = world(1);
    let peer = meet(&mut world)[0];
    world.pass(60 * SECOND);
    block(&world, 1, 1, true);
    for bits in 2..100 {
        pass(&mut world, 1, peer, bits);
        world.pass(MS);
    }
    assert_eq!(count(&world, 0, |it| it.paths_suspected), 1);
}

#[test]
fn peers_on_one_host_share_probes_and_what_one_learns() {
    const PEERS: usize = 6;
    let sent_in_a_minute = |others: usize| {
        let mut world = world(others);
        meet(&mut world);
        world.pass(10 * SECOND);
        let before = frames_sent(&world, 0);
        let answers: u64 = (1..=others).map(|node| frames_sent(&world, node)).sum();
        world.pass(60 * SECOND);
        let answers = (1..=others).map(|node| frames_sent(&world, node)).sum::<u64>() - answers;
        (frames_sent(&world, 0) - before, answers)
    };
    let (one, many) = (sent_in_a_minute(1), sent_in_a_minute(PEERS));
    // Its own questions are shared. Those of its peers, of which each is a process of its own, are answered.
    assert!(many.0 <= one.0 / 2 * (PEERS as u64 + 1) + 4, "{one:?}, {many:?}");
    let mut world = world(PEERS);
    meet(&mut world);
    world.pass(30 * SECOND);
    (1..=PEERS).for_each(|number| block(&world, number, 1, true));
    world.until("suspicion", |world| count(world, 0, |it| it.paths_suspected) > 0);
    world.pass(40 * MS);
    assert_eq!(
        count(&world, 0, |it| it.paths_suspected),
        PEERS as u64,
        "all know within a time-out"
    );
    world.pass(200 * MS);
    assert_eq!(count(&world, 0, |it| it.paths_dead), PEERS as u64);
}
