//! Endpoints with keys: sessions begin with peers that prove themselves, and with nobody else.

use std::sync::Arc;
use std::time::Duration;

use ropewalk_core::Plant;
use ropewalk_net::auth::{
    Authority, Guard, Keyring, NodeName, PskKeys, Secret, Untrusted, World as Surroundings,
};
use ropewalk_net::security::random_secret;
use ropewalk_net::{Fault, PayloadMode, PayloadModes, Security};

use ropewalk_wire::frame::{self, Body, Envelope, HelloBody, JoinBody, Refusal};
use zerocopy::IntoBytes;

use super::common::{Medium, World, bound_rails, keyed};
use super::stranger::{Stranger, honest, receive, send};

/// Media over which greetings go. A rail that loses frames is among them.
const MEDIA: [Medium; 6] = [
    Medium::Tcp,
    Medium::Shm,
    Medium::SimStream,
    Medium::SimNative,
    Medium::SimDatagram,
    Medium::Udp,
];

pub fn cluster(byte: u8) -> PskKeys {
    PskKeys::new(Secret::new([byte; 32]), None)
}

pub fn member(byte: u8) -> Security {
    Security::with(Keyring::Cluster(cluster(byte)))
}

pub fn name(text: &str) -> NodeName {
    NodeName::new(text).unwrap()
}

pub fn derived(byte: u8, node: &str) -> Security {
    Security::with(Keyring::Derived(cluster(byte).derive(&name(node)), name(node)))
}

/// A world of two endpoints: the first one calls.
pub fn pair(medium: Medium, securities: [Security; 2]) -> World {
    let mut world = World::new(medium);
    for security in securities {
        world.add_with(|config| config.security = security);
    }
    world
}

/// Sends a message from the first endpoint to the second one; how that ended.
pub fn try_message(world: &mut World) -> Result<(), Fault> {
    let to = world.peer(0, 1);
    receive(world, 1, None, 7, 100, 1);
    send(world, 0, to, 7, 100, 2);
    let ended = world.take(0, 2).outcome;
    if ended.is_ok() {
        assert_eq!(world.take(1, 1).outcome, Ok(()));
    }
    ended
}

fn refused(world: &World) -> [u64; 2] {
    [0, 1].map(|node| world.nodes[node].endpoint.counters().0.untrusted)
}

#[test]
fn peers_with_keys_of_one_cluster_talk_over_every_medium() {
    for medium in MEDIA {
        for kind in ["psk", "keys"] {
            let mut world = pair(medium, [keyed(kind, 1), keyed(kind, 2)]);
            assert_eq!(try_message(&mut world), Ok(()), "{medium:?} {kind}");
            assert_eq!(refused(&world), [0, 0], "{medium:?} {kind}");
        }
        let mut world = pair(medium, [derived(7, "n1"), member(7)]);
        assert_eq!(try_message(&mut world), Ok(()), "{medium:?}");
    }
}

#[test]
fn a_peer_with_another_key_or_none_is_refused_and_both_sides_say_so() {
    let own = |byte: u8| {
        let authority = Authority::new(Secret::new([byte; 32]));
        let keys = authority.sign(name("n1"), random_secret(), 1, (0, u64::MAX));
        Security::with(Keyring::Node(keys))
    };
    for medium in MEDIA {
        let cases = [
            ([member(1), member(2)], Some(Untrusted::WrongKey)),
            ([own(1), own(2)], Some(Untrusted::WrongKey)),
            ([own(1), member(1)], Some(Untrusted::WrongKey)),
            ([derived(1, "n1"), derived(1, "n2")], Some(Untrusted::WrongKey)),
            ([Security::None, member(1)], Some(Untrusted::NoKeys)),
            ([member(1), Security::None], None),
        ];
        for (securities, why) in cases {
            let shown = format!("{medium:?} {securities:?}");
            let mut world = pair(medium, securities);
            assert_eq!(try_message(&mut world), Err(Fault::Untrusted), "{shown}");
            assert!(refused(&world)[1] >= 1, "{shown}");
            assert_eq!(world.nodes[1].endpoint.last_untrusted(), why, "{shown}");
            assert_eq!(world.nodes[1].endpoint.counters().0.sessions, 0, "{shown}");
        }
    }
}

/// A clock that is wrong, or right.
struct At(u64);

impl Surroundings for At {
    fn chance(&self) -> Secret {
        random_secret()
    }

    fn unix_seconds(&self) -> u64 {
        self.0
    }
}

#[test]
fn expired_and_revoked_nodes_are_refused_by_whoever_knows_it() {
    let authority = Authority::new(Secret::new([7; 32]));
    let sign = |node, epoch| authority.sign(name(node), random_secret(), epoch, (1000, 2000));
    let at = |now, ring| Security::Keys(Arc::new(Guard::new(ring, Box::new(At(now)))));
    let node = |epoch| Keyring::Node(sign("n1", epoch));
    let server = |epoch| Keyring::Node(sign("server", 9).refusing_below(epoch));
    let cases = [
        (at(1500, node(9)), at(1500, server(9)), None),
        (at(1500, node(9)), at(9000, server(9)), Some(Untrusted::Expired)),
        (at(1500, node(9)), at(0, server(9)), Some(Untrusted::Early)),
        (at(1500, node(8)), at(1500, server(9)), Some(Untrusted::Revoked)),
    ];
    for (caller, other, why) in cases {
        let mut world = pair(Medium::Tcp, [caller, other]);
        let expected = if why.is_some() { Err(Fault::Untrusted) } else { Ok(()) };
        assert_eq!(try_message(&mut world), expected);
        assert_eq!(world.nodes[1].endpoint.last_untrusted(), why);
    }
    // The calling side judges as well.
    let mut world = pair(Medium::Tcp, [at(9000, server(9)), at(1500, node(9))]);
    assert_eq!(try_message(&mut world), Err(Fault::Untrusted));
    assert_eq!(world.nodes[0].endpoint.last_untrusted(), Some(Untrusted::Expired));
}

#[test]
fn a_session_with_keys_begins_with_as_many_frames_as_one_without() {
    let counted = |kind: &str| {
        let mut world = pair(Medium::SimStream, [keyed(kind, 1), keyed(kind, 2)]);
        assert_eq!(try_message(&mut world), Ok(()));
        let sent = world.nodes.iter().map(|node| node.endpoint.counters().1[0].1.frames_sent);
        (sent.collect::<Vec<u64>>(), world.now())
    };
    let (plain, at) = counted("");
    for kind in ["psk", "keys"] {
        let (with, later) = counted(kind);
        assert_eq!(plain, with, "{kind}");
        // By the simulator's clock there are as many rounds; longer frames take a little longer.
        assert!(later.since(at) < Duration::from_millis(1), "{kind}: {:?}", later.since(at));
    }
}

#[test]
fn keys_change_while_sessions_run_and_begin() {
    let old = cluster(1);
    let both = old.rotate(Secret::new([2; 32]));
    let guards: Vec<Arc<Guard>> =
        (0..3).map(|_| guard_of(Security::with(Keyring::Cluster(old.clone())))).collect();
    let mut world = World::new(Medium::SimStream);
    for guard in &guards {
        world.add_with(|config| config.security = Security::Keys(guard.clone()));
    }
    let steps = [both.swapped(), both.clone(), cluster(2)];
    let mut sent = 0;
    for (round, step) in steps.iter().enumerate() {
        for guard in &guards {
            guard.replace(Keyring::Cluster(step.clone()));
            // One session goes on, and each round begins another one: no message fails.
            for (from, to) in [(0, 1), (round % 3, (round + 1) % 3)] {
                let peer = world.peer(from, to);
                sent += 2;
                receive(&mut world, to, None, 7, 100, sent);
                send(&mut world, from, peer, 7, 100, sent + 1);
                assert_eq!(world.take(from, sent + 1).outcome, Ok(()));
                assert_eq!(world.take(to, sent).outcome, Ok(()));
            }
        }
    }
    assert_eq!(refused(&world), [0, 0]);
    assert_eq!(world.nodes[2].endpoint.counters().0.untrusted, 0);
}

/// A greeting of a caller with this nonce that has no addresses.
pub fn greeting(endpoint: u128, nonce: u32) -> HelloBody {
    HelloBody {
        endpoint: endpoint.to_le_bytes(),
        cluster: 1u128.to_le_bytes(),
        incarnation: 1.into(),
        host: 0.into(),
        nonce: nonce.into(),
        // As an endpoint says that protects its links.
        mode: frame::MODE_SECURE | frame::MODE_PROTECTS,
        refusal: 0,
        address_bytes: 0.into(),
        eager_credit: 64.into(),
        request_credit: 64.into(),
        rts_credit: 64.into(),
        eager_max: 0.into(),
    }
}

/// What its block is about: no flags, no session, the greeting, no addresses.
pub fn said(hello: &HelloBody) -> Vec<u8> {
    [&[0; 6][..], hello.as_bytes()].concat()
}

/// Says a greeting with this block to the first endpoint; the connection, and why it is refused.
pub fn greet(world: &mut World, hello: HelloBody, block: &[u8]) -> (Stranger, Refusal) {
    let mut stranger = connect(world);
    let envelope = Envelope { payload_bytes: block.len() as u32, ..Envelope::default() };
    let mut header = frame::encode(envelope, &Body::Hello(hello));
    frame::seal(&mut header, None);
    assert!(stranger.shout(&[header.as_bytes(), block].concat()));
    let refusal = stranger.awaits(world, |body| match body {
        Body::Hello(hello) => Some(Refusal::from_u8(hello.refusal)),
        _ => None,
    });
    (stranger, refusal)
}

pub fn connect(world: &World) -> Stranger {
    let addresses = world.nodes[0].endpoint.addresses();
    let address = addresses.split(',').next().unwrap().strip_prefix("tcp://").unwrap();
    let socket = std::net::TcpStream::connect(address).unwrap();
    socket.set_nonblocking(true).unwrap();
    Stranger { socket, session: 0, message: 0, span: None }
}

pub fn hangs_up(world: &mut World, mut stranger: Stranger) {
    let mut bytes = Vec::new();
    world.until("end of the link", |_| !stranger.hear(&mut bytes));
}

/// Says an old greeting again, and follows it by each kind of confirmation; the sessions that begin.
fn old_greetings(plant: Plant) -> u64 {
    let mut world = World::new(Medium::Tcp);
    for _ in 0..2 {
        world.add_with(|config| {
            (config.security, config.core.plant) = (member(1), plant);
            // Without a proof no link is protected, so that protection would hide what is planted.
            config.payload = PayloadModes::all(PayloadMode::Crc);
        });
    }
    let guard = guard_of(member(1));
    let hello = HelloBody { mode: 0, ..greeting(77, 40) };
    let (block, _) = guard.call(None, &said(&hello)).unwrap();
    let join = JoinBody {
        path: 0.into(),
        counter: 0.into(),
        rail: 0,
        reserved: 0,
        entropy: 0.into(),
        salt: [0; 4],
        proof: [7; 32],
    };
    let begun = |world: &World| world.nodes[0].endpoint.counters().0.sessions;
    let mut open = Vec::new();
    for round in 0..4 {
        // It was heard on its way, and is said again: it is answered, and no more.
        let (mut stranger, refusal) = greet(&mut world, hello, &block);
        assert_eq!(refusal, Refusal::None);
        assert!(match round {
            0 => stranger.say(Body::Confirm, &[]),
            1 => stranger.say(Body::Join(join), &[]),
            2 => stranger.eager(0, b"no session"),
            _ => true,
        });
        if plant != Plant::Nothing {
            world.until("session", |world| begun(world) > 0);
            return begun(&world);
        }
        match round {
            0 | 1 => hangs_up(&mut world, stranger),
            _ => open.push(stranger),
        }
    }
    let before = begun(&world);
    assert_eq!(try_message(&mut world), Ok(()));
    before
}

pub fn guard_of(security: Security) -> Arc<Guard> {
    match security {
        Security::Keys(guard) => guard,
        Security::None => unreachable!("it has keys"),
    }
}

#[test]
fn an_old_greeting_begins_no_session_nor_does_any_confirmation() {
    assert_eq!(old_greetings(Plant::Nothing), 0);
    assert!(old_greetings(Plant::ProofOmitted) > 0, "a planted bug is not found");
}

#[test]
fn further_paths_join_under_the_key_of_the_handshake() {
    for kind in ["psk", "keys"] {
        let mut world = World::new(Medium::Tcp);
        for number in 0..2 {
            world.add_over_all(bound_rails(2), |config| config.security = keyed(kind, number));
        }
        assert_eq!(try_message(&mut world), Ok(()));
        world.until("second path", |world| {
            world.nodes.iter().all(|node| node.endpoint.counters().0.paths_joined > 0)
        });
        for node in &world.nodes {
            let counters = node.endpoint.counters().0;
            assert_eq!((counters.untrusted, counters.joins_refused), (0, 0), "{kind}");
        }
        assert_eq!(try_message(&mut world), Ok(()));
    }
}

#[test]
fn forged_greetings_are_refused_and_keep_nothing() {
    let mut world = pair(Medium::Tcp, [member(1), member(1)]);
    let guard = guard_of(member(1));
    honest(&mut world, 1, || ());
    let hello = greeting(77, 40);
    let (block, _) = guard.call(None, &said(&hello)).unwrap();
    let mut refused = 0;
    let mut refuse = |world: &mut World, hello: HelloBody, block: &[u8]| {
        let (stranger, refusal) = greet(world, hello, block);
        assert_eq!(refusal, Refusal::Untrusted);
        hangs_up(world, stranger);
        refused += 1;
        assert_eq!(world.nodes[0].endpoint.counters().0.untrusted, refused);
    };
    // Its block is good for its greeting, and for no other one.
    refuse(&mut world, greeting(78, 40), &block);
    refuse(&mut world, greeting(77, 41), &block);
    refuse(&mut world, HelloBody { mode: 3, ..hello }, &block);
    refuse(&mut world, hello, &[]);
    refuse(&mut world, hello, &vec![1; 4000]);
    for byte in 0..block.len() {
        let mut spoiled = block.clone();
        spoiled[byte] ^= 1 << (byte % 8);
        refuse(&mut world, hello, &spoiled);
    }
    // Greetings of ever new endpoints leave no record: there is one peer.
    for endpoint in 0..200 {
        refuse(&mut world, greeting(1000 + endpoint, 1), &block);
    }
    assert_eq!(world.nodes[0].endpoint.counters().0.sessions, 1);
    honest(&mut world, 10, || ());
}

#[test]
fn a_node_does_not_take_the_place_of_another_one() {
    let mut world = World::new(Medium::Tcp);
    let number = |world: &World| world.nodes[1].endpoint.identity();
    world.add_with(|config| config.security = member(1));
    world.add_with(|config| config.security = derived(1, "n1"));
    assert_eq!(try_message_to_member(&mut world, 1), Ok(()));
    let first = number(&world);
    // Another node of the cluster says that it is this endpoint, begun anew.
    world.add_with(|config| {
        config.security = derived(1, "n2");
        config.endpoint = first.endpoint;
    });
    assert_eq!(try_message_to_member(&mut world, 2), Err(Fault::Untrusted));
    assert_eq!(try_message_to_member(&mut world, 1), Ok(()));
}

/// Sends a message to the first endpoint.
fn try_message_to_member(world: &mut World, from: usize) -> Result<(), Fault> {
    let to = world.peer(from, 0);
    receive(world, 0, None, 7, 100, 1);
    send(world, from, to, 7, 100, 2);
    let ended = world.take(from, 2).outcome;
    if ended.is_ok() {
        assert_eq!(world.take(0, 1).outcome, Ok(()));
    }
    ended
}
