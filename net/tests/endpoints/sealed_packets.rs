//! Payload modes over packets: somebody on the way changes, repeats and makes up packets, and the session goes on.

use std::cell::RefCell;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex};

use ropewalk_base::memory::Memory;
use ropewalk_base::payload::PayloadMode;
use ropewalk_base::random::Random;
use ropewalk_net::packets::PacketRail;
use ropewalk_net::{Channel, Level};
use ropewalk_rail_udp::{UdpConfig, UdpPort};
use ropewalk_wire::packets::{self, AckBody, GoneBody, Head, Kind, Route};
use zerocopy::{FromBytes, IntoBytes};

use super::common::{Medium, World};
use super::sealed::{PATTERN, demands, links_sealed, talk};
use super::stranger::receive;

/// What becomes of a packet: its number among all of its direction, and its bytes.
type Deed = fn(usize, &[u8]) -> Vec<Vec<u8>>;

/// Somebody on the way, who sees all packets of both directions.
struct Middle {
    front: UdpSocket,
    seen: Arc<Mutex<Vec<u8>>>,
    target: Arc<Mutex<Option<SocketAddr>>>,
}

impl Middle {
    /// `deed`: done to packets of both directions.
    fn new(deed: Deed) -> Middle {
        let [front, back] = [0; 2].map(|_| UdpSocket::bind("127.0.0.1:0").unwrap());
        let (seen, target) = (Arc::<Mutex<Vec<u8>>>::default(), Arc::default());
        let caller = Arc::new(Mutex::new(None));
        let middle = Middle { front: front.try_clone().unwrap(), seen, target };
        let ways =
            [(&front, &back, &caller, &middle.target), (&back, &front, &middle.target, &caller)];
        for (number, (from, to, sender, receiver)) in ways.into_iter().enumerate() {
            let [from, to] = [from, to].map(|it| it.try_clone().unwrap());
            let [sender, receiver] = [sender, receiver].map(Arc::clone);
            let seen = middle.seen.clone();
            std::thread::spawn(move || {
                let (mut buffer, mut count) = ([0; 65_536], 0);
                while let Ok((bytes, address)) = from.recv_from(&mut buffer) {
                    if number == 0 {
                        *sender.lock().unwrap() = Some(address);
                    }
                    seen.lock().unwrap().extend_from_slice(&buffer[..bytes]);
                    let receiver: Option<SocketAddr> = *receiver.lock().unwrap();
                    for packet in deed(count, &buffer[..bytes]) {
                        let _ = receiver.map(|receiver| to.send_to(&packet, receiver));
                    }
                    count += 1;
                }
            });
        }
        middle
    }

    /// A world in which the first endpoint reaches the second one through this one only.
    fn world(&self, mode: PayloadMode) -> World {
        let mut world = World::new(Medium::Udp);
        let address = self.front.local_addr().unwrap();
        for number in 0..2 {
            let config = UdpConfig {
                advertise: (number == 1).then(|| address.to_string()).into_iter().collect(),
                ..UdpConfig::listening("127.0.0.1:0".parse().unwrap())
            };
            let port = UdpPort::open(config).unwrap();
            if number == 1 {
                *self.target.lock().unwrap() = Some(port.local_address());
            }
            let clock = world.config(number).clock;
            let rail = PacketRail::new(port, Random::from_seed(number), clock).unwrap();
            world.add_over(Box::new(rail), demands(mode));
        }
        world
    }
}

/// A counter of both endpoints' rails.
fn counted(world: &World, name: &str) -> u64 {
    let of = |node: usize| {
        let accounts = world.nodes[node].endpoint.accounts();
        let counts = accounts.iter().flat_map(|account| &account.counts);
        counts.filter(|(other, _)| *other == name).map(|(_, count)| count).sum::<u64>()
    };
    of(0) + of(1)
}

fn is_sealed(packet: &[u8]) -> bool {
    packet.get(2) == Some(&(Kind::Sealed as u8))
}

const LENGTHS: [usize; 5] = [0, 100, 5000, 100_000, 2 << 20];

#[test]
fn what_is_secure_is_not_readable_on_the_way() {
    for mode in PayloadMode::ALL {
        let middle = Middle::new(|_, packet| vec![packet.to_vec()]);
        let mut world = middle.world(mode);
        let to = world.peer(0, 1);
        for len in [100, 3000, 300_000] {
            let mut buffer = world.pool.take(len).unwrap();
            buffer.fill(b'-');
            buffer[len - PATTERN.len()..].copy_from_slice(PATTERN);
            receive(&mut world, 1, None, 7, len, 1);
            let (node, memory) = (&world.nodes[0], Memory::pooled(buffer));
            let (channel, level) = (Channel::Tagged, Level::Buffered);
            let posted = node.endpoint.post_send(&node.context, to, channel, 7, memory, level, 2);
            world.posted(0, posted);
            assert_eq!(world.take(0, 2).outcome, Ok(()));
            let received = world.take(1, 1).memory.into_many();
            let received: Vec<u8> = received.iter().flat_map(|it| it.to_vec()).collect();
            assert!(received.ends_with(PATTERN), "{mode}");
        }
        let seen = middle.seen.lock().unwrap();
        let is_readable = seen.windows(PATTERN.len()).any(|window| window == PATTERN);
        assert_eq!(is_readable, mode < PayloadMode::Secure, "{mode}");
    }
}

#[test]
fn packets_that_were_changed_are_dropped_and_go_again() {
    for mode in [PayloadMode::Auth, PayloadMode::Secure] {
        let middle = Middle::new(|number, packet| {
            let mut packet = packet.to_vec();
            if number % 5 == 4 && is_sealed(&packet) {
                let at = 14 + number * 37 % (packet.len() - 14);
                packet[at] ^= 16;
            }
            vec![packet]
        });
        let mut world = middle.world(mode);
        talk(&mut world, &LENGTHS);
        assert!(counted(&world, "dropped.forged") > 0, "{mode}");
        assert_eq!(links_sealed(&world), [1, 1], "{mode}: no link has ended");
    }
}

#[test]
fn packets_that_come_again_count_once() {
    let middle = Middle::new(|_, packet| vec![packet.to_vec(); 2]);
    let mut world = middle.world(PayloadMode::Secure);
    talk(&mut world, &LENGTHS);
    assert!(counted(&world, "dropped.replayed") > 0);
    assert_eq!((counted(&world, "dropped.forged"), links_sealed(&world)), (0, [1, 1]));
}

/// Whoever sees the packets knows the name of the link, and says in its name that all has arrived, that nobody knows the
/// link, and that bytes follow.
#[test]
fn packets_that_are_made_up_end_nothing_and_acknowledge_nothing() {
    let middle = Middle::new(|number, packet| {
        let mut all = vec![packet.to_vec()];
        let head = Head::ref_from_prefix(&packet[2..]).ok().filter(|_| is_sealed(packet));
        if let Some((head, _)) = head.filter(|_| number % 3 == 0) {
            let route = Route { to: head.to, from: head.from, tag: head.tag.get() };
            let mut out = [0; 512];
            let ack = AckBody::new(1000, 0, std::time::Duration::ZERO, None);
            let bytes = packets::seal(&mut out, Kind::Ack, route, ack.as_bytes(), 0, |_| ());
            all.insert(0, out[..bytes].to_vec());
            let gone = GoneBody { tag: head.tag, secret: 1.into() };
            let bytes = packets::seal(&mut out, Kind::Gone, route, gone.as_bytes(), 0, |_| ());
            all.push(out[..bytes].to_vec());
            // A sealed packet with a number of the future, and one of no bytes.
            let mut later = packet.to_vec();
            later[14..22].copy_from_slice(&u64::MAX.to_le_bytes());
            all.push(later);
        }
        all
    });
    let mut world = middle.world(PayloadMode::Secure);
    talk(&mut world, &LENGTHS);
    talk(&mut world, &[100; 100]);
    assert!(counted(&world, "dropped.unprotected") > 0);
    assert!(counted(&world, "dropped.forged") > 0);
    assert_eq!(links_sealed(&world), [1, 1], "no link has ended");
}

/// Lost and overtaken packets around the end of the greeting, and everywhere else.
#[test]
fn lost_and_overtaken_packets_go_again_under_another_number() {
    let middle = Middle::new(|number, packet| {
        // Of each direction.
        thread_local!(static KEPT: RefCell<Option<Vec<u8>>> = const { RefCell::new(None) });
        KEPT.with_borrow_mut(|kept| match number % 7 {
            3 => Vec::new(),
            // It comes behind the next one.
            5 if kept.is_none() && is_sealed(packet) => {
                *kept = Some(packet.to_vec());
                Vec::new()
            }
            _ => std::iter::once(packet.to_vec()).chain(kept.take()).collect(),
        })
    });
    let mut world = middle.world(PayloadMode::Secure);
    talk(&mut world, &[100, 5000, 100_000]);
    assert_eq!((counted(&world, "dropped.forged"), links_sealed(&world)), (0, [1, 1]));
}
