//! Which node a peer is: addresses that name one, nodes that are revoked, and greetings that somebody repeats.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use ropewalk_base::ids::EndpointId;
use ropewalk_base::time::Time;
use ropewalk_net::auth::{
    Authority, Guard, Keyring, NodeKeys, Secret, Untrusted, World as Surroundings,
};
use ropewalk_net::security::random_secret;
use ropewalk_net::{Address, Fault, PeerId, Security};
use ropewalk_wire::frame::{self, Body, Envelope, Refusal};

use super::common::{Medium, World, bound_rails};
use super::keys::{
    connect, derived, greet, greeting, guard_of, hangs_up, member, name, pair, said, try_message,
};
use super::stranger::{receive, send};

/// The keys of a node in a cluster with a signing key.
fn signed(node: &str, epoch: u32) -> NodeKeys {
    let authority = Authority::new(Secret::new([7; 32]));
    authority.sign(name(node), random_secret(), epoch, (0, 5000))
}

fn own(node: &str) -> Security {
    let clock = Arc::new(AtomicU64::new(1000));
    guarded(signed(node, 1), &clock)
}

/// A clock that the test sets.
struct Clock(Arc<AtomicU64>);

impl Surroundings for Clock {
    fn chance(&self) -> Secret {
        random_secret()
    }

    fn unix_seconds(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

fn guarded(keys: NodeKeys, clock: &Arc<AtomicU64>) -> Security {
    Security::Keys(Arc::new(Guard::new(Keyring::Node(keys), Box::new(Clock(clock.clone())))))
}

/// The peer at the address of a node's endpoint, at which this node has to answer.
fn peer_named(world: &World, from: usize, to: usize, node: &str) -> PeerId {
    let address = Address::parse(world.nodes[to].endpoint.addresses()).unwrap();
    world.nodes[from].endpoint.lookup(&address.of_node(node).unwrap()).unwrap()
}

/// Sends a message to this peer of the first endpoint, which is the second one; how that ended.
fn try_to(world: &mut World, to: PeerId) -> Result<(), Fault> {
    receive(world, 1, None, 7, 100, 1);
    send(world, 0, to, 7, 100, 2);
    let ended = world.take(0, 2).outcome;
    if ended.is_ok() {
        assert_eq!(world.take(1, 1).outcome, Ok(()));
    }
    ended
}

fn sessions(world: &World) -> [u64; 2] {
    [0, 1].map(|node| world.nodes[node].endpoint.counters().0.sessions)
}

#[test]
fn at_an_address_that_names_a_node_no_other_one_is_let_in() {
    type Case = ([Security; 2], &'static str, Option<Untrusted>);
    for medium in [Medium::Tcp, Medium::Shm, Medium::Udp, Medium::SimStream, Medium::SimDatagram] {
        let cases: [Case; 7] = [
            ([own("n1"), own("server")], "server", None),
            ([own("n1"), own("n2")], "server", Some(Untrusted::OtherNode)),
            ([own("n1"), own("n1")], "server", Some(Untrusted::OtherNode)),
            // A member calls a node with a derived key by its name.
            ([member(1), derived(1, "n1")], "n1", None),
            ([derived(1, "n1"), member(1)], "server", Some(Untrusted::OtherNode)),
            ([Security::None, Security::None], "server", None),
            ([member(1), member(1)], "server", None),
        ];
        for (number, (securities, node, why)) in cases.into_iter().enumerate() {
            let shown = format!("{medium:?} {number}");
            let mut world = pair(medium, securities);
            let peer = peer_named(&world, 0, 1, node);
            let is_good = matches!(number, 0 | 3);
            let expected = if is_good { Ok(()) } else { Err(Fault::Untrusted) };
            assert_eq!(try_to(&mut world, peer), expected, "{shown}");
            assert_eq!(world.nodes[0].endpoint.last_untrusted(), why, "{shown}");
            let begun = u64::from(is_good);
            assert_eq!(sessions(&world), [begun; 2], "{shown}");
            let proven = world.nodes[0].endpoint.peer_node(peer);
            assert_eq!(proven, is_good.then(|| node.to_string()), "{shown}");
        }
    }
}

#[test]
fn another_name_of_a_peer_that_names_another_node_leads_nowhere() {
    let mut world = pair(Medium::SimStream, [own("n1"), own("server")]);
    assert_eq!(try_message(&mut world), Ok(()));
    let other = peer_named(&world, 0, 1, "other");
    receive(&mut world, 1, None, 7, 100, 1);
    send(&mut world, 0, other, 7, 100, 3);
    assert_eq!(world.take(0, 3).outcome, Err(Fault::Untrusted));
    // The session goes on, and the right name leads to it.
    let right = peer_named(&world, 0, 1, "server");
    send(&mut world, 0, right, 7, 100, 4);
    assert_eq!(world.take(0, 4).outcome, Ok(()));
    assert_eq!(world.take(1, 1).outcome, Ok(()));
    assert_eq!(sessions(&world), [1, 1]);
}

#[test]
fn an_endpoint_s_own_address_leads_to_itself_under_its_own_node_s_name_alone() {
    let mut world = pair(Medium::SimStream, [own("n1"), own("server")]);
    for (node, expected) in [("server", Err(Fault::Untrusted)), ("n1", Ok(()))] {
        let peer = peer_named(&world, 0, 0, node);
        receive(&mut world, 0, None, 7, 100, 1);
        send(&mut world, 0, peer, 7, 100, 2);
        assert_eq!(world.take(0, 2).outcome, expected, "{node}");
    }
}

/// Two endpoints with a session; the guard of the second one, and its clock.
fn with_session(medium: Medium) -> (World, Arc<Guard>, Arc<AtomicU64>) {
    let clock = Arc::new(AtomicU64::new(1000));
    let security = guarded(signed("server", 9).refusing_below(1), &clock);
    let guard = guard_of(security.clone());
    let mut world = pair(medium, [own("n1"), security]);
    assert_eq!(try_message(&mut world), Ok(()));
    (world, guard, clock)
}

/// For how long the second endpoint's sessions still run.
fn runs_for(world: &mut World, at_most: Duration) -> Option<Duration> {
    let since = world.now();
    let resets = |world: &World| world.nodes[1].endpoint.counters().0.resets;
    world.until("end of the session or the time", |world| {
        resets(world) > 0 || world.now().since(since) > at_most
    });
    (resets(world) > 0).then(|| world.now().since(since))
}

#[test]
fn the_session_of_a_node_that_is_revoked_ends_soon() {
    for medium in [Medium::SimStream, Medium::SimDatagram] {
        let (mut world, guard, _) = with_session(medium);
        guard.replace(Keyring::Node(signed("server", 9).refusing_below(1)));
        assert_eq!(runs_for(&mut world, Duration::from_secs(20)), None, "it stays");
        guard.replace(Keyring::Node(signed("server", 9).refusing_below(2)));
        let ended = runs_for(&mut world, Duration::from_secs(20)).expect("it ends");
        assert!(ended <= Duration::from_secs(6), "{ended:?}");
        assert_eq!(world.nodes[1].endpoint.last_untrusted(), Some(Untrusted::Revoked));
        assert_eq!(try_message(&mut world), Err(Fault::Untrusted));
        // Signed anew it comes back.
        guard.replace(Keyring::Node(signed("server", 9).refusing_below(1)));
        assert_eq!(try_message(&mut world), Ok(()));
    }
}

#[test]
fn a_session_ends_when_the_certificate_of_its_peer_has_expired() {
    let (mut world, guard, clock) = with_session(Medium::SimStream);
    // The certificates hold until 5000; clocks may be 300 s apart.
    clock.store(5300, Ordering::Relaxed);
    assert_eq!(runs_for(&mut world, Duration::from_secs(20)), None);
    clock.store(5301, Ordering::Relaxed);
    let ended = runs_for(&mut world, Duration::from_secs(20)).expect("it ends");
    assert!(ended <= Duration::from_secs(6), "{ended:?}");
    assert_eq!(guard.refused().1, Some(Untrusted::Expired));
}

#[test]
fn a_revoked_node_adds_no_path_to_its_session() {
    for revoked in [false, true] {
        let clock = Arc::new(AtomicU64::new(1000));
        let security = guarded(signed("server", 9).refusing_below(1), &clock);
        let guard = guard_of(security.clone());
        let mut world = World::new(Medium::Tcp);
        for security in [own("n1"), security] {
            world.add_over_all(bound_rails(2), |config| config.security = security);
        }
        let peer = world.peer(0, 1);
        world.nodes[0].endpoint.connect(peer);
        world.until("session", |world| sessions(world)[1] == 1);
        if revoked {
            guard.replace(Keyring::Node(signed("server", 9).refusing_below(2)));
        }
        let joined = |world: &World| world.nodes[1].endpoint.counters().0.paths_joined;
        let resets = |world: &World| world.nodes[1].endpoint.counters().0.resets;
        world.until("end", |world| joined(world) > 0 || resets(world) > 0);
        assert_eq!((joined(&world) > 0, resets(&world) > 0), (!revoked, revoked));
    }
}

#[test]
fn a_greeting_without_its_end_is_not_waited_for_forever() {
    let mut world = World::new(Medium::Tcp);
    let (clock, start) = (Arc::new(AtomicU64::new(0)), Instant::now());
    let jumps = clock.clone();
    world.add_with(|config| {
        config.clock = Arc::new(move || {
            Time(start.elapsed().as_nanos() as u64 + jumps.load(Ordering::Relaxed))
        });
    });
    let heads = [vec![], vec![0; 30], {
        let envelope = Envelope { payload_bytes: 100, ..Envelope::default() };
        let mut header = frame::encode(envelope, &Body::Hello(greeting(77, 40)));
        frame::seal(&mut header, None);
        [header.as_bytes(), &[1; 50]].concat()
    }];
    let mut strangers = Vec::new();
    for head in heads {
        let mut stranger = connect(&world);
        assert!(stranger.shout(&head));
        strangers.push(stranger);
    }
    let up = |world: &World| world.nodes[0].endpoint.counters().1[0].1.links_up;
    world.until("links", |world| up(world) == 3);
    for _ in 0..100 {
        world.step();
    }
    clock.store(11_000_000_000, Ordering::Relaxed);
    for stranger in strangers {
        hangs_up(&mut world, stranger);
    }
}

#[test]
fn a_repeated_greeting_does_not_delay_our_own_call() {
    let mut world = World::new(Medium::Tcp);
    // The caller's own link gives way to those of a lower endpoint.
    let lower = 50;
    for endpoint in [1 << 100, lower] {
        world.add_with(|config| {
            (config.security, config.endpoint) = (member(1), EndpointId(endpoint));
        });
    }
    let guard = guard_of(member(1));
    let hello = greeting(lower, 40);
    let (block, _) = guard.call(None, &said(&hello)).unwrap();
    let mut open = Vec::new();
    for _ in 0..3 {
        let (stranger, refusal) = greet(&mut world, hello, &block);
        assert_eq!(refusal, Refusal::None);
        open.push(stranger);
    }
    let since = Instant::now();
    assert_eq!(try_message(&mut world), Ok(()));
    assert!(since.elapsed() < Duration::from_secs(2), "{:?}", since.elapsed());
}

#[test]
fn repeated_greetings_are_answered_at_a_bounded_rate() {
    let mut world = pair(Medium::Tcp, [member(1), member(1)]);
    let guard = guard_of(member(1));
    let hello = greeting(77, 40);
    let (block, _) = guard.call(None, &said(&hello)).unwrap();
    let since = Instant::now();
    let mut answered = 0;
    for _ in 0..3000 {
        let (_, refusal) = greet(&mut world, hello, &block);
        answered += u32::from(refusal == Refusal::None);
        assert!(matches!(refusal, Refusal::None | Refusal::Duplicate));
    }
    let most = 1024 + 128 * (since.elapsed().as_secs() as u32 + 1);
    assert!(answered <= most, "{answered} answers, over {most}");
    assert_eq!(world.nodes[0].endpoint.last_untrusted(), Some(Untrusted::TooMany));
    // A peer of the same host has to wait its turn, and gets in.
    let to = world.peer(1, 0);
    receive(&mut world, 0, None, 7, 100, 1);
    send(&mut world, 1, to, 7, 100, 2);
    assert_eq!(world.take(1, 2).outcome, Ok(()));
}
