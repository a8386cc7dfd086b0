//! Links over a limit are closed and made again, over every medium, and nobody notices. Also the behaviour of real
//! sockets in connecting: at the same moment, over several addresses, after deaths.

use crate::common::{Medium, World, bound_rails, check};
use ropewalk_base::error::Fault;
use ropewalk_base::ids::{EndpointId, Incarnation};
use ropewalk_base::random::Random;
use ropewalk_base::verb::RemoteLayout;
use ropewalk_net::{Audience, Channel, Counters, Direction, Level, Oversize, PeerId};
use ropewalk_rail::address::Address;
use ropewalk_rail_tcp::TcpConfig;

fn send(world: &mut World, from: usize, to: PeerId, len: usize, user: u64) {
    let memory = world.memory(len, user as u8);
    let node = &world.nodes[from];
    let (channel, level) = (Channel::Tagged, Level::Buffered);
    let posted = node.endpoint.post_send(&node.context, to, channel, user, memory, level, user);
    world.posted(from, posted);
}

fn receive(world: &mut World, at: usize, source: Option<PeerId>, len: usize, user: u64) {
    let memory = world.memory(len, 0);
    let node = &world.nodes[at];
    let (channel, cut) = (Channel::Tagged, Oversize::Truncate);
    let posted =
        node.endpoint.post_receive(&node.context, channel, source, 0, 0, memory, cut, user);
    world.posted(at, posted);
}

/// Sends a message, and checks the received one.
fn exchange(world: &mut World, from: (usize, PeerId), at: (usize, PeerId), len: usize, user: u64) {
    receive(world, at.0, Some(at.1), len, 1000 + user);
    send(world, from.0, from.1, len, user);
    let received = world.take(at.0, 1000 + user);
    assert_eq!((received.outcome, received.bits), (Ok(()), user));
    check(received.memory, len, user as u8);
    assert_eq!(world.take(from.0, user).outcome, Ok(()));
}

fn links(world: &World, node: usize) -> u64 {
    let rails = world.nodes[node].endpoint.counters().1;
    rails.iter().map(|(_, counters)| counters.links_up - counters.links_down).sum()
}

#[test]
fn an_idle_link_is_closed_and_made_again_over_every_medium_and_nobody_notices() {
    const RELIABLE: [Medium; 7] = [
        Medium::Tcp,
        Medium::Tcp6,
        Medium::Shm,
        Medium::ShmRing,
        Medium::Loop,
        Medium::SimStream,
        Medium::SimNative,
    ];
    for (medium, both) in RELIABLE.into_iter().flat_map(|medium| [(medium, true), (medium, false)])
    {
        let mut world = World::new(medium);
        for limited in [true, both] {
            world.add_with(|config| config.core.links_max = if limited { 0 } else { 100 });
        }
        let peers = [world.peer(0, 1), world.peer(1, 0)];
        let region = world.memory(100_000, 9);
        let key = world.nodes[1].endpoint.expose(region, true, Audience::Everybody).unwrap();
        // Waits through all pauses.
        receive(&mut world, 0, Some(peers[0]), 100, 5000);
        for round in 0..4 {
            exchange(
                &mut world,
                (0, peers[0]),
                (1, peers[1]),
                [10, 200_000][round as usize % 2],
                round,
            );
            world.until("rest", |world| {
                (0..2).all(|node| links(world, node) == 0)
                    && world.nodes[0].endpoint.peer_rail(peers[0]).is_none()
            });
            for (direction, user) in [(Direction::Put, 100 + round), (Direction::Get, 200 + round)]
            {
                let memory = world.memory(50_000, 100 + round as u8);
                let node = &world.nodes[0];
                let at = RemoteLayout::At(7);
                let posted = node.endpoint.post_access(
                    &node.context,
                    direction,
                    peers[0],
                    key,
                    at,
                    memory,
                    user,
                );
                world.posted(0, posted);
                let done = world.take(0, user);
                assert_eq!(done.outcome, Ok(()), "{medium:?} {direction:?}");
                check(done.memory, 50_000, 100 + round as u8);
            }
            world.nodes.iter().for_each(|node| node.endpoint.check());
        }
        send(&mut world, 1, peers[1], 100, 77);
        assert_eq!(world.take(0, 5000).bits, 77);
        for node in &world.nodes {
            let counters = node.endpoint.counters().0;
            assert_eq!((counters.sessions, counters.resets), (1, 0), "{medium:?}");
            assert_eq!(counters.violations, 0, "{medium:?}");
            assert!(counters.sessions_idle_closed >= 4 && counters.sessions_resumed >= 4);
        }
    }
}

#[test]
fn forty_peers_over_eight_sockets() {
    let counters = forty_peers(1);
    assert!(counters.sessions_resumed > 100);
}

#[test]
fn forty_peers_with_two_paths_over_eight_sockets() {
    let counters = forty_peers(2);
    let resumed = counters.sessions_resumed;
    assert!(resumed > 40 && counters.paths_joined > 0, "{counters:?}");
}

/// Messages of a hub and its peers, each over so many rails. The counters of the hub.
fn forty_peers(paths: usize) -> Counters {
    const PEERS: usize = 40;
    const LINKS: u64 = 8;
    let mut world = World::new(Medium::Tcp);
    for node in 0..=PEERS {
        world.add_over_all(bound_rails(paths), |config| {
            config.core.links_max = if node == 0 { LINKS as usize } else { usize::MAX };
        });
    }
    let to: Vec<PeerId> = (1..=PEERS).map(|peer| world.peer(0, peer)).collect();
    let from: Vec<PeerId> = (1..=PEERS).map(|peer| world.peer(peer, 0)).collect();
    let mut random = Random::from_seed(4);
    for round in 0..400 {
        let peer = random.below(PEERS as u64) as usize;
        let len = [10, 3000, 100_000][random.below(3) as usize];
        let (hub, leaf) = ((0, to[peer]), (peer + 1, from[peer]));
        match random.below(2) {
            0 => exchange(&mut world, hub, leaf, len, round),
            _ => exchange(&mut world, leaf, hub, len, round),
        }
    }
    world.until("rest", |world| links(world, 0) <= LINKS);
    for node in &world.nodes {
        let counters = node.endpoint.counters().0;
        assert_eq!((counters.resets, counters.violations), (0, 0));
        node.endpoint.check();
    }
    let counters = world.nodes[0].endpoint.counters().0;
    assert!(counters.sessions <= PEERS as u64);
    counters
}

#[test]
fn two_that_connect_at_the_same_moment_both_complete_their_receives() {
    for medium in [Medium::Tcp, Medium::Shm] {
        for round in 0..40 {
            let mut world = World::pair(medium);
            let peers = [world.peer(0, 1), world.peer(1, 0)];
            for (node, peer) in peers.iter().enumerate() {
                receive(&mut world, node, Some(*peer), 100, 1);
            }
            // One of both goes first, or both do at the same moment.
            for node in (0..2).filter(|node| round % 3 == 2 || round % 3 == *node) {
                send(&mut world, node, peers[node], 100, 2);
                if round % 3 == 2 {
                    continue;
                }
                assert_eq!(world.take(1 - node, 1).outcome, Ok(()));
                send(&mut world, 1 - node, peers[1 - node], 100, 2);
            }
            for node in 0..2 {
                world.until("receive", |world| {
                    world.nodes[node].done.iter().any(|done| done.user == 2)
                });
                assert!(world.nodes[node].done.iter().all(|done| done.outcome == Ok(())));
                let counters = world.nodes[node].endpoint.counters().0;
                assert_eq!((counters.sessions, counters.resets), (1, 0), "round {round}");
            }
            world.until("both receives", |world| {
                let received = world.nodes.iter().map(|node| node.endpoint.counters().0);
                received.map(|counters| counters.messages_received).sum::<u64>() == 2
            });
        }
    }
}

/// A port on which nobody listens.
fn nowhere() -> String {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    format!("tcp://{}", listener.local_addr().unwrap())
}

fn addresses(world: &World, nodes: &[usize]) -> Address {
    let parts: Vec<&str> =
        nodes.iter().map(|node| world.nodes[*node].endpoint.addresses()).collect();
    Address::parse(&parts.join(",")).unwrap()
}

#[test]
fn a_peer_with_two_addresses_is_reached_over_the_second_one() {
    let mut world = World::pair(Medium::Tcp);
    let text = format!("{},{}", nowhere(), world.nodes[1].endpoint.addresses());
    let there = world.nodes[0].endpoint.lookup(&Address::parse(&text).unwrap()).unwrap();
    let back = world.peer(1, 0);
    exchange(&mut world, (0, there), (1, back), 100, 1);
    exchange(&mut world, (1, back), (0, there), 50_000, 2);
}

#[test]
fn after_a_death_operations_fail_once_and_the_next_ones_reach_who_answers_at_the_second_address() {
    for parked in [false, true] {
        let mut world = World::new(Medium::Tcp);
        world.add_with(|config| config.core.links_max = if parked { 0 } else { 100 });
        world.add();
        world.add();
        let both = addresses(&world, &[1, 2]);
        let there = world.nodes[0].endpoint.lookup(&both).unwrap();
        let back = [world.peer(1, 0), world.peer(2, 0)];
        exchange(&mut world, (0, there), (1, back[0]), 100, 1);
        receive(&mut world, 0, Some(there), 100, 2);
        if parked {
            world.until("rest", |world| links(world, 0) == 0);
        }
        let dead = world.nodes.remove(1);
        drop(dead);
        if parked {
            // The next operation notices it.
            send(&mut world, 0, there, 100, 3);
            assert_eq!(world.take(0, 2).outcome, Err(Fault::PeerReset));
            assert_eq!(world.take(0, 3).outcome, Err(Fault::PeerReset));
        } else {
            assert_eq!(world.take(0, 2).outcome, Err(Fault::PeerReset));
        }
        exchange(&mut world, (0, there), (1, back[1]), 100, 4);
        exchange(&mut world, (1, back[1]), (0, there), 100, 5);
        assert!(world.nodes[0].done.is_empty(), "each ended once");
    }
}

#[test]
fn a_restarted_peer_fails_operations_once_and_its_address_stays() {
    for parked in [false, true] {
        let mut world = World::new(Medium::Tcp);
        world.add_with(|config| config.core.links_max = if parked { 0 } else { 100 });
        world.add();
        let there = world.peer(0, 1);
        let back = world.peer(1, 0);
        exchange(&mut world, (0, there), (1, back), 100, 1);
        receive(&mut world, 0, Some(there), 100, 2);
        if parked {
            world.until("rest", |world| links(world, 0) == 0);
        }
        let old = world.nodes.remove(1);
        let identity = old.endpoint.identity();
        let first = old.endpoint.addresses().split(',').next().unwrap().to_string();
        drop(old);
        let port = first.strip_prefix("tcp://").unwrap().parse().unwrap();
        world.add_listening(TcpConfig::listening(port), |config| {
            config.endpoint = EndpointId(identity.endpoint.0);
            config.incarnation = Incarnation(identity.incarnation.0 + 1);
        });
        if parked {
            send(&mut world, 0, there, 100, 3);
            assert_eq!(world.take(0, 3).outcome, Err(Fault::PeerReset));
        }
        assert_eq!(world.take(0, 2).outcome, Err(Fault::PeerReset));
        let back = world.peer(1, 0);
        exchange(&mut world, (0, there), (1, back), 100, 4);
        assert!(world.nodes[0].done.is_empty(), "each ended once");
    }
}

/// One that tells others an address of which nothing can come, but was looked up by a good one.
#[test]
fn a_parked_peer_is_called_by_the_address_that_was_looked_up() {
    let mut world = World::new(Medium::Tcp);
    world.add_with(|config| config.core.links_max = 0);
    let host = std::net::Ipv4Addr::LOCALHOST;
    let port = std::net::TcpListener::bind((host, 0)).unwrap().local_addr().unwrap();
    let advertise = vec![nowhere().trim_start_matches("tcp://").to_string()];
    let rail = TcpConfig { advertise, ..TcpConfig::listening(port) };
    world.add_listening(rail, |_| {});
    let there = world.peer(1, 0);
    send(&mut world, 1, there, 100, 1);
    let address = Address::parse(&format!("tcp://{port}")).unwrap();
    world.until("session", |world| world.nodes[0].endpoint.unmatched_count() == 1);
    let back = world.nodes[0].endpoint.lookup(&address).unwrap();
    receive(&mut world, 0, Some(back), 100, 2);
    assert_eq!(world.take(0, 2).outcome, Ok(()));
    for round in 0..3 {
        world.until("rest", |world| links(world, 0) == 0);
        exchange(&mut world, (0, back), (1, there), 100, 10 + round);
    }
    assert_eq!(world.nodes[0].endpoint.counters().0.resets, 0);
}

#[test]
fn strangers_with_half_a_greeting_or_garbage_keep_nobody_out() {
    use std::io::Write;
    let mut world = World::pair(Medium::Tcp);
    let address = world.nodes[1].endpoint.addresses().split(',').next().unwrap().to_string();
    let address = address.strip_prefix("tcp://").unwrap();
    let strangers: Vec<std::net::TcpStream> = (0..60)
        .map(|number: usize| {
            let mut stranger = std::net::TcpStream::connect(address).unwrap();
            // Nothing at all, half a header, or an HTTP request.
            let bytes = [&b""[..], &[1, 104, 0, 0, 0][..], b"GET / HTTP/1.1\r\n\r\n"][number % 3];
            let _ = stranger.write_all(bytes);
            stranger
        })
        .collect();
    let peers = [world.peer(0, 1), world.peer(1, 0)];
    for round in 0..20 {
        exchange(&mut world, (0, peers[0]), (1, peers[1]), 1000, round);
        exchange(&mut world, (1, peers[1]), (0, peers[0]), 1000, 100 + round);
    }
    world.until("hang-ups of garbage", |world| {
        world.nodes[1].endpoint.counters().1[0].1.violations >= 20
    });
    assert_eq!(world.nodes[1].endpoint.counters().0.sessions, 1);
    drop(strangers);
}
