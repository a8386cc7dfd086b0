//! Payload modes: what somebody on the way can read, change, repeat and make up.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ropewalk_base::payload::PayloadMode;
use ropewalk_base::verb::RemoteLayout;
use ropewalk_net::auth::Untrusted;
use ropewalk_net::payload::PayloadModes;
use ropewalk_net::{Audience, Direction, Endpoint, EndpointConfig, Fault, Security};
use ropewalk_rail::Rail;
use ropewalk_rail_tcp::{TcpConfig, TcpRail};

use super::common::{Medium, World, check, keyed};
use super::keys::member;
use super::stranger::{receive, send};

/// Bytes of a message that no header and no key has.
pub const PATTERN: &[u8] = b"a text that nobody on the way is to read";
const LENGTHS: [usize; 9] = [0, 1, 100, 4000, 16_384, 40_000, 65_536, 1 << 20, 5 << 20];

pub fn demands(mode: PayloadMode) -> impl FnMut(&mut EndpointConfig) {
    move |config| {
        config.security = member(7);
        config.payload = PayloadModes::all(mode);
    }
}

fn pair(medium: Medium, modes: [PayloadMode; 2]) -> World {
    let mut world = World::new(medium);
    for mode in modes {
        world.add_with(demands(mode));
    }
    world
}

pub fn links_sealed(world: &World) -> [u64; 2] {
    [0, 1].map(|node| world.nodes[node].endpoint.counters().0.links_sealed)
}

/// Messages of all lengths both ways.
pub fn talk(world: &mut World, lengths: &[usize]) {
    let peers = [world.peer(0, 1), world.peer(1, 0)];
    for (number, len) in lengths.iter().enumerate() {
        for (from, peer) in peers.into_iter().enumerate() {
            let (to, number) = (1 - from, number as u64);
            receive(world, to, None, number, *len, 1000);
            send(world, from, peer, number, *len, 2000);
            assert_eq!(world.take(from, 2000).outcome, Ok(()), "{len} bytes");
            let received = world.take(to, 1000);
            assert_eq!((received.outcome, received.bytes), (Ok(()), *len as u64));
            check(received.memory, *len, number as u8);
        }
    }
}

#[test]
fn messages_of_all_lengths_pass_in_every_mode() {
    for medium in [Medium::Tcp, Medium::Tcp6, Medium::Udp] {
        for mode in PayloadMode::ALL {
            let mut world = pair(medium, [mode, mode]);
            talk(&mut world, &LENGTHS);
            let expected = u64::from(mode > PayloadMode::Crc);
            assert_eq!(links_sealed(&world), [expected; 2], "{medium:?} {mode}");
        }
    }
}

#[test]
fn many_messages_at_once_wait_for_a_slow_receiver_and_arrive() {
    for mode in [PayloadMode::Auth, PayloadMode::Secure] {
        for medium in [Medium::Tcp, Medium::Udp] {
            let mut world = pair(medium, [mode, mode]);
            let to = world.peer(0, 1);
            for number in 0..200 {
                receive(&mut world, 1, None, number, 300_000, number);
                let len = 1 + (number as usize * 7919) % 300_000;
                send(&mut world, 0, to, number, len, 1000 + number);
            }
            for number in 0..200 {
                let len = 1 + (number as usize * 7919) % 300_000;
                assert_eq!(world.take(0, 1000 + number).outcome, Ok(()));
                check(world.take(1, number).memory, len, number as u8);
            }
        }
    }
}

#[test]
fn puts_gets_and_updates_pass_in_every_mode() {
    for medium in [Medium::Tcp, Medium::Udp] {
        for mode in PayloadMode::ALL {
            let mut world = pair(medium, [mode, mode]);
            let to = world.peer(0, 1);
            let region = world.memory(3 << 20, 9);
            let key = world.nodes[1].endpoint.expose(region, true, Audience::Everybody).unwrap();
            for (user, len) in [1, 5000, 700_000].into_iter().enumerate() {
                for direction in [Direction::Put, Direction::Get] {
                    let memory = world.memory(len, 40 + user as u8);
                    let node = &world.nodes[0];
                    let (at, user) = (RemoteLayout::At(1000), user as u64);
                    let context = &node.context;
                    let posted =
                        node.endpoint.post_access(context, direction, to, key, at, memory, user);
                    world.posted(0, posted);
                    let done = world.take(0, user);
                    assert_eq!(done.outcome, Ok(()), "{medium:?} {mode} {direction:?} {len}");
                    check(done.memory, len, 40 + user as u8);
                }
            }
        }
    }
}

#[test]
fn the_stronger_demand_counts() {
    use PayloadMode::*;
    for (modes, sealed) in
        [([Crc, Secure], 1), ([Secure, Crc], 1), ([Auth, Crc], 1), ([Crc, Crc], 0)]
    {
        let mut world = pair(Medium::Tcp, modes);
        talk(&mut world, &[100]);
        assert_eq!(links_sealed(&world), [sealed; 2], "{modes:?}");
    }
}

#[test]
fn with_keys_payloads_are_secure_by_default() {
    for kind in ["psk", "keys"] {
        let mut world = World::new(Medium::Tcp);
        for number in 0..2 {
            world.add_with(|config| config.security = keyed(kind, number));
        }
        talk(&mut world, &[100]);
        assert_eq!(links_sealed(&world), [1, 1], "{kind}");
    }
}

#[test]
fn memory_of_one_host_needs_no_cipher() {
    for medium in [Medium::Shm, Medium::Loop] {
        let mut world = pair(medium, [PayloadMode::Secure; 2]);
        talk(&mut world, &[100, 1 << 20]);
        assert_eq!(links_sealed(&world), [0, 0], "{medium:?}");
    }
}

#[test]
fn a_mode_that_cannot_be_had_is_refused_when_the_endpoint_is_opened() {
    let open = |medium, security: Security| {
        let world = World::new(medium);
        let config = EndpointConfig {
            security,
            payload: PayloadModes::all(PayloadMode::Secure),
            ..world.config(1)
        };
        let opened = Endpoint::open(config, vec![world.rail(1)]);
        opened.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let error = open(Medium::Tcp, Security::None);
    assert!(error.contains("secure over tcp:// needs keys"), "{error}");
    let error = open(Medium::SimStream, member(7));
    assert!(error.contains("secure is not there for sim://"), "{error}");
}

#[test]
fn a_protected_link_costs_as_many_frames_and_one_record_each() {
    let costs = [PayloadMode::Crc, PayloadMode::Secure].map(|mode| {
        let mut world = pair(Medium::Tcp, [mode, mode]);
        talk(&mut world, &[100; 3]);
        let count = |world: &World| world.nodes[0].endpoint.counters().1[0].1;
        let before = count(&world);
        talk(&mut world, &[100; 50]);
        let after = count(&world);
        (after.frames_sent - before.frames_sent, after.bytes_sent - before.bytes_sent)
    });
    let [(frames, bytes), (sealed_frames, sealed_bytes)] = costs;
    assert_eq!(frames, sealed_frames);
    // A length and a tag for each record, of which each of these messages has one. A frame that waits for others may be
    // counted before its record is.
    let records = (sealed_bytes - bytes) / 18;
    assert!(records.abs_diff(frames) <= 4, "{records} records for {frames} frames");
}

/// What somebody on the way does with the bytes of one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Attack {
    /// Changes this byte.
    Flip(usize),
    /// Says the piece again in which this byte lies.
    Repeat(usize),
    /// Leaves this byte out.
    Leave(usize),
    /// Says these bytes before this one.
    Insert(usize, &'static [u8]),
}

/// Somebody on the way, who sees all that both sides say, and may change what one of them says over his first link.
struct Middle {
    address: SocketAddr,
    target: Arc<Mutex<Option<SocketAddr>>>,
    seen: Arc<Mutex<Vec<u8>>>,
}

impl Middle {
    /// `attack`: for the calling side (0) or the accepting one (1).
    fn new(attack: Option<(usize, Attack)>) -> Middle {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let middle = Middle {
            address: listener.local_addr().unwrap(),
            target: Arc::default(),
            seen: Arc::default(),
        };
        let (target, seen) = (middle.target.clone(), middle.seen.clone());
        std::thread::spawn(move || {
            let mut attack = attack;
            for caller in listener.incoming() {
                let Ok(caller) = caller else { return };
                let target = target.lock().unwrap().unwrap();
                let Ok(called) = TcpStream::connect(target) else { continue };
                let ends = [caller, called];
                for side in 0..2 {
                    let [from, to] = [side, 1 - side].map(|end| ends[end].try_clone().unwrap());
                    let seen = seen.clone();
                    let attack = attack.filter(|(whose, _)| *whose == side).map(|it| it.1);
                    std::thread::spawn(move || pass_on(from, to, attack, &seen));
                }
                attack = None;
            }
        });
        middle
    }

    /// A world in which the first endpoint reaches the second one through this one only.
    fn world(&self, modes: [PayloadMode; 2]) -> World {
        let mut world = World::new(Medium::Tcp);
        world.add_listening(TcpConfig::default(), demands(modes[0]));
        let rail = TcpRail::open(TcpConfig {
            advertise: vec![self.address.to_string()],
            ..TcpConfig::listening("127.0.0.1:0".parse().unwrap())
        });
        let rail = rail.unwrap();
        *self.target.lock().unwrap() = rail.local_address();
        world.add_over(Box::new(rail) as Box<dyn Rail>, demands(modes[1]));
        world
    }

    fn has_seen(&self, bytes: &[u8]) -> bool {
        self.seen.lock().unwrap().windows(bytes.len()).any(|window| window == bytes)
    }
}

fn pass_on(
    mut from: TcpStream,
    mut to: TcpStream,
    mut attack: Option<Attack>,
    seen: &Mutex<Vec<u8>>,
) {
    let (mut buffer, mut passed) = ([0; 65_536], 0);
    loop {
        let read = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        seen.lock().unwrap().extend_from_slice(&buffer[..read]);
        let mut piece = buffer[..read].to_vec();
        let here = passed..passed + read;
        passed += read;
        let at = |byte: usize| here.contains(&byte).then(|| byte - here.start);
        let done = match attack {
            Some(Attack::Flip(byte)) => at(byte).map(|at| piece[at] ^= 4),
            Some(Attack::Repeat(byte)) => at(byte).map(|_| piece.extend_from_within(..)),
            Some(Attack::Leave(byte)) => at(byte).map(|at| drop(piece.drain(at..=at))),
            Some(Attack::Insert(byte, bytes)) => {
                at(byte).map(|at| drop(piece.splice(at..at, bytes.iter().copied())))
            }
            None => None,
        };
        if done.is_some() {
            attack = None;
        }
        if to.write_all(&piece).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}

/// One message with the text, from the first endpoint to the second one, and one back; how the sends ended. Bytes that arrive
/// are the right ones.
fn exchange(world: &mut World, round: u64, len: usize) -> Result<(), Fault> {
    let to = world.peer(0, 1);
    receive(world, 1, None, round, len, 1000 + round);
    send(world, 0, to, round, len, 2000 + round);
    let (mut sent, mut received) = (None, None);
    let begin = std::time::Instant::now();
    while (sent.is_none() || received.is_none()) && begin.elapsed() < Duration::from_secs(2) {
        world.step();
        let mut take = |node: usize, user: u64| {
            let done = &mut world.nodes[node].done;
            let at = done.iter().position(|completed| completed.user == user)?;
            Some(done.remove(at))
        };
        sent = sent.or_else(|| take(0, 2000 + round));
        received = received.or_else(|| take(1, 1000 + round));
        if sent.as_ref().is_some_and(|sent| sent.outcome.is_err()) {
            break;
        }
    }
    let outcome = sent.map_or(Err(Fault::PeerReset), |sent| sent.outcome);
    match received {
        Some(received) if received.outcome.is_ok() => {
            check(received.memory, len, round as u8);
            outcome
        }
        _ => Err(outcome.err().unwrap_or(Fault::PeerReset)),
    }
}

#[test]
fn what_is_secure_is_not_readable_on_the_way() {
    for mode in PayloadMode::ALL {
        let middle = Middle::new(None);
        let mut world = middle.world([mode, mode]);
        let to = world.peer(0, 1);
        for (number, len) in [100, 3000, 300_000].into_iter().enumerate() {
            let mut buffer = world.pool.take(len).unwrap();
            buffer.fill(b'-');
            buffer[len - PATTERN.len()..].copy_from_slice(PATTERN);
            receive(&mut world, 1, None, 7, len, 1);
            let (node, memory) = (&world.nodes[0], ropewalk_base::memory::Memory::pooled(buffer));
            let (channel, level) = (ropewalk_net::Channel::Tagged, ropewalk_net::Level::Buffered);
            let posted = node.endpoint.post_send(&node.context, to, channel, 7, memory, level, 2);
            world.posted(0, posted);
            assert_eq!(world.take(0, 2).outcome, Ok(()));
            let received = world.take(1, 1).memory.into_many();
            let received: Vec<u8> = received.iter().flat_map(|it| it.to_vec()).collect();
            assert!(received.ends_with(PATTERN), "{mode}, message {number}");
        }
        assert_eq!(middle.has_seen(PATTERN), mode < PayloadMode::Secure, "{mode}");
        // In clear each frame of a session names it in one place; nothing is left of that either.
        let runs = middle.has_seen(&[b'-'; 64]);
        assert_eq!(runs, mode < PayloadMode::Secure, "{mode}");
    }
}

/// The bytes that each side says in its greeting, its proof and a first message are known from a link that nobody attacks; from
/// there on every byte is tried.
#[test]
fn nothing_that_was_changed_on_the_way_is_delivered_and_the_next_link_works() {
    for mode in [PayloadMode::Auth, PayloadMode::Secure] {
        let places = (300..1000).step_by(97).chain([3000, 70_000]);
        for byte in places {
            let attacks = [
                Attack::Flip(byte),
                Attack::Repeat(byte),
                Attack::Leave(byte),
                Attack::Insert(byte, &[0; 1]),
            ];
            let attack = attacks[byte % 4];
            let middle = Middle::new(Some((0, attack)));
            let mut world = middle.world([mode, mode]);
            let mut faults = 0;
            for round in 0..4 {
                faults += u32::from(exchange(&mut world, round, 30_000).is_err());
            }
            let ended = exchange(&mut world, 9, 50_000);
            assert_eq!(ended, Ok(()), "{mode} {attack:?}: {faults} messages failed before");
            assert!(faults <= 2, "{mode} {attack:?}");
        }
    }
}

#[test]
fn answers_that_were_changed_on_the_way_are_not_believed() {
    for byte in [320, 350, 400, 470] {
        let middle = Middle::new(Some((1, Attack::Flip(byte))));
        let mut world = middle.world([PayloadMode::Secure; 2]);
        for round in 0..20 {
            let _ = exchange(&mut world, round, 1000);
        }
        assert_eq!(exchange(&mut world, 99, 1000), Ok(()), "byte {byte}");
    }
}

/// Whoever answers a call, or confirms it, adds a frame in clear behind that: it is not heard.
#[test]
fn frames_in_clear_behind_the_greetings_are_not_heard() {
    use ropewalk_wire::frame::{self, Body, Envelope};
    let header = frame::encode(Envelope::default(), &Body::Confirm);
    let mut header = header;
    frame::seal(&mut header, None);
    let frame: &'static [u8] = Box::leak(header.as_bytes().to_vec().into_boxed_slice());
    for side in [0, 1] {
        // Behind the greeting, and behind the proof.
        for byte in [200, 216, 250, 300, 320] {
            let middle = Middle::new(Some((side, Attack::Insert(byte, frame))));
            let mut world = middle.world([PayloadMode::Secure; 2]);
            for round in 0..3 {
                let _ = exchange(&mut world, round, 100);
            }
            assert_eq!(exchange(&mut world, 9, 100), Ok(()), "side {side}, byte {byte}");
        }
    }
}

#[test]
fn nobody_on_the_way_makes_a_link_weaker() {
    use ropewalk_wire::frame::{MODE_AES, MODE_AUTH, MODE_PROTECTS, MODE_SECURE};
    assert_eq!(MODE_AUTH | MODE_SECURE | MODE_PROTECTS | MODE_AES, 60, "what is taken away below");
    for side in [0, 1] {
        let middle = Middle::new(None);
        let mut world = middle.world([PayloadMode::Crc, PayloadMode::Secure]);
        let target = weakened(&middle, side);
        *middle.target.lock().unwrap() = Some(target);
        let _ = exchange(&mut world, 1, 100);
        let untrusted = [0, 1].map(|node| world.nodes[node].endpoint.last_untrusted());
        assert!(
            untrusted.iter().any(|why| matches!(
                why,
                Some(Untrusted::WrongKey | Untrusted::Unprotected | Untrusted::Malformed)
            )),
            "side {side}: {untrusted:?}"
        );
        assert!(!middle.has_seen(&[3; 40]), "no message has passed");
        assert_eq!(world.nodes[1].endpoint.counters().0.messages_received, 0);
    }
}

/// The place of the mode in the frame of a greeting.
const MODE_AT: usize = 40 + 52;

/// Somebody behind the one in the middle who takes the protection out of the first greeting of a side.
fn weakened(middle: &Middle, side: usize) -> SocketAddr {
    use ropewalk_base::verb::Header;
    use ropewalk_wire::frame::{self, Arrived};
    let target = middle.target.lock().unwrap().unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for caller in listener.incoming() {
            let (Ok(caller), Ok(called)) = (caller, TcpStream::connect(target)) else { return };
            let ends = [caller, called];
            for from in 0..2 {
                let [mut from_end, mut to_end] =
                    [from, 1 - from].map(|end| ends[end].try_clone().unwrap());
                std::thread::spawn(move || {
                    let mut header = [0; 104];
                    if from == side && from_end.read_exact(&mut header).is_ok() {
                        let (_, body) = frame::decode(&header).unwrap();
                        let Arrived::Hello(hello) = body else { panic!("a greeting comes first") };
                        assert_eq!(header[MODE_AT], hello.mode, "where the mode lies");
                        header[MODE_AT] &= !60;
                        let mut changed = Header::new(&header);
                        frame::seal(&mut changed, None);
                        let _ = to_end.write_all(changed.as_bytes());
                    }
                    pass_on(from_end, to_end, None, &Mutex::default());
                });
            }
        }
    });
    address
}
