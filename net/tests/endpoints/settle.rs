//! Messages that were reported as sent arrive, if their endpoint settles before it is closed.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{Medium, World, check};
use ropewalk_base::verb::RemoteLayout;
use ropewalk_net::{Address, Audience, Channel, Direction, Level, Oversize};

const COUNT: u64 = 60;
const BYTES: usize = 5_000;

/// A wire between its caller and `to`, which loses every third datagram on the way there while told so.
fn lossy_wire(to: SocketAddr, loses: Arc<AtomicBool>) -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").expect("a port");
    let own = socket.local_addr().expect("it is bound");
    std::thread::spawn(move || {
        let (mut bytes, mut caller, mut count) = ([0; 65_536], None, 0u32);
        while let Ok((len, from)) = socket.recv_from(&mut bytes) {
            if from == to {
                // A datagram that cannot be delivered is lost.
                let _ = caller.map(|caller: SocketAddr| socket.send_to(&bytes[..len], caller));
                continue;
            }
            caller = Some(from);
            count += 1;
            if count % 3 != 0 || !loses.load(Ordering::SeqCst) {
                let _ = socket.send_to(&bytes[..len], to);
            }
        }
    });
    own
}

#[test]
fn an_endpoint_that_settled_loses_nothing_when_it_is_closed() {
    let mut world = World::new(Medium::Udp);
    world.add();
    world.add_with(|config| {
        config.service_thread = true;
        config.core.eager_window_bytes = 1 << 20;
    });
    let receiver = world.nodes[1].endpoint.addresses();
    let receiver = receiver.strip_prefix("udp://").expect("its scheme").parse().expect("numbers");
    let loses = Arc::new(AtomicBool::new(false));
    let wire = lossy_wire(receiver, loses.clone());
    let address = Address::parse(&format!("udp://{wire}")).expect("a URL");
    let to = world.nodes[0].endpoint.lookup(&address).expect("there is room");
    let send = |world: &mut World, bits: u64| {
        let (memory, level) = (world.memory(BYTES, bits as u8), Level::Buffered);
        let node = &world.nodes[0];
        let (channel, context) = (Channel::Tagged, &node.context);
        let posted = node.endpoint.post_send(context, to, channel, bits, memory, level, bits);
        world.posted(0, posted);
    };
    // The first one makes the session, with the credit for the others.
    send(&mut world, 0);
    world.take(0, 0);
    loses.store(true, Ordering::SeqCst);
    (1..COUNT).for_each(|bits| send(&mut world, bits));
    world.until("completion of all", |world| world.nodes[0].done.len() as u64 == COUNT - 1);
    let sender = world.nodes.remove(0);
    sender.endpoint.settle(Duration::from_secs(30));
    sender.endpoint.close();
    drop(sender);
    for bits in 0..COUNT {
        let (memory, cut) = (world.memory(BYTES, 0), Oversize::Truncate);
        let node = &world.nodes[0];
        let (channel, mask) = (Channel::Tagged, u64::MAX);
        let posted =
            node.endpoint.post_receive(&node.context, channel, None, bits, mask, memory, cut, bits);
        world.posted(0, posted);
        let got = world.take(0, bits);
        assert_eq!(got.outcome, Ok(()), "{bits}");
        check(got.memory, BYTES, bits as u8);
    }
}

/// Its last word waits behind bytes for which the peer has no room, and nobody makes passes with the closed endpoint.
#[test]
fn a_peer_learns_of_a_close_behind_frames_that_wait_for_room() {
    const LONG: usize = 64 << 20;
    let mut world = World::new(Medium::Tcp);
    world.add_with(|config| config.service_thread = true);
    world.add();
    let memory = world.memory(LONG, 3);
    let closing = world.nodes[0].endpoint.clone();
    let key = closing.expose(memory, true, Audience::Everybody).expect("there is room");
    let to = world.peer(1, 0);
    let get = |world: &mut World, bytes: usize, user: u64| {
        let (memory, node) = (world.memory(bytes, 0), &world.nodes[1]);
        let (way, remote) = (Direction::Get, RemoteLayout::At(0));
        let posted = node.endpoint.post_access(&node.context, way, to, key, remote, memory, user);
        world.posted(1, posted);
    };
    get(&mut world, 8, 1);
    assert_eq!(world.take(1, 1).outcome, Ok(()));
    get(&mut world, LONG, 2);
    // The request leaves; then this side takes nothing in for a while.
    world.nodes[1].endpoint.progress();
    while closing.counters().0.gets_served < 2 {
        std::thread::yield_now();
    }
    // As much leaves as sockets have room for.
    std::thread::sleep(Duration::from_millis(200));
    closing.close();
    let node = &world.nodes[1];
    let ended = node.endpoint.wait(&node.context, Duration::from_secs(30));
    assert!(ended.is_some_and(|ended| ended.outcome.is_err()), "nobody told of the close");
}
