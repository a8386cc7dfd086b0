//! Connections over tcp that are cut at every frame boundary and inside of frames, in both
//! directions: each operation ends once, nothing arrives damaged, and the next message finds a way.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

use crate::common::{Medium, World, check};
use ropewalk_base::error::Fault;
use ropewalk_net::{Channel, Level, Oversize, PeerId};
use ropewalk_rail::address::Address;
use ropewalk_rail::frame_lengths;

/// One way through the proxy: bytes that came, bytes that went on, and the moment of its end.
#[derive(Default)]
struct Way {
    /// All that went through, to find the frames in it.
    passed: Vec<u8>,
    waiting: Vec<u8>,
    limit: Option<usize>,
}

/// Carries one connection between two endpoints at a time; cuts the first one.
struct Proxy {
    listener: TcpListener,
    to: SocketAddr,
    pair: Option<[TcpStream; 2]>,
    ways: [Way; 2],
    cuts: usize,
}

impl Proxy {
    fn new(to: SocketAddr, direction: usize, limit: Option<usize>) -> Proxy {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let mut ways = [Way::default(), Way::default()];
        ways[direction].limit = limit;
        Proxy { listener, to, pair: None, ways, cuts: 0 }
    }

    fn address(&self) -> Address {
        Address::parse(&format!("tcp://{}", self.listener.local_addr().unwrap())).unwrap()
    }

    fn step(&mut self) {
        if self.pair.is_none()
            && let Ok((near, _)) = self.listener.accept()
        {
            let far = TcpStream::connect(self.to).unwrap();
            for socket in [&near, &far] {
                socket.set_nonblocking(true).unwrap();
                socket.set_nodelay(true).unwrap();
            }
            self.pair = Some([near, far]);
        }
        let Some(pair) = &mut self.pair else { return };
        let mut ended = false;
        for (from, way) in self.ways.iter_mut().enumerate() {
            ended |= !carry(pair, from, way);
        }
        if ended {
            // Both ends learn of it: the process between them is gone.
            self.pair = None;
            self.cuts += 1;
            self.ways.iter_mut().for_each(|way| {
                way.waiting.clear();
                way.limit = None;
            });
        }
    }
}

/// Moves the bytes that there are; false if the connection is to end.
fn carry(pair: &mut [TcpStream; 2], from: usize, way: &mut Way) -> bool {
    let mut bytes = [0u8; 16 * 1024];
    match pair[from].read(&mut bytes) {
        Ok(0) => return false,
        Ok(read) => way.waiting.extend_from_slice(&bytes[..read]),
        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
        Err(_) => return false,
    }
    let room = way.limit.map_or(usize::MAX, |limit| limit.saturating_sub(way.passed.len()));
    let goes = room.min(way.waiting.len());
    let went = match pair[1 - from].write(&way.waiting[..goes]) {
        Ok(written) => written,
        Err(error) if error.kind() == ErrorKind::WouldBlock => 0,
        Err(_) => return false,
    };
    way.passed.extend(way.waiting.drain(..went));
    way.limit.is_none_or(|limit| way.passed.len() < limit)
}

/// The bytes after which frames end.
fn boundaries(passed: &[u8]) -> Vec<usize> {
    let mut ends = Vec::new();
    let mut at = 0;
    while at + 8 <= passed.len() {
        let (header, payload) = frame_lengths(&passed[at..]).expect("whole frames");
        at += header + payload as usize;
        ends.push(at);
    }
    ends
}

const LENGTHS: [usize; 4] = [10, 3000, 40_000, 200];

struct Run {
    world: World,
    proxy: Proxy,
    to: PeerId,
}

impl Run {
    fn start(direction: usize, limit: Option<usize>) -> Run {
        let world = World::pair(Medium::Tcp);
        let addresses = world.nodes[1].endpoint.addresses().to_string();
        let first = addresses.split(',').next().unwrap();
        let proxy =
            Proxy::new(first.strip_prefix("tcp://").unwrap().parse().unwrap(), direction, limit);
        let to = world.nodes[0].endpoint.lookup(&proxy.address()).unwrap();
        Run { world, proxy, to }
    }

    fn until(&mut self, what: &str, mut done: impl FnMut(&World) -> bool) {
        let proxy = &mut self.proxy;
        self.world.until(what, |world| {
            proxy.step();
            done(world)
        });
    }

    fn send(&mut self, bits: u64, len: usize) {
        let memory = self.world.memory(len, bits as u8);
        let node = &self.world.nodes[0];
        let (channel, level) = (Channel::Tagged, Level::Matched);
        let posted =
            node.endpoint.post_send(&node.context, self.to, channel, bits, memory, level, bits);
        self.world.posted(0, posted);
    }

    fn receive(&mut self, bits: u64) {
        let memory = self.world.memory(50_000, 0);
        let node = &self.world.nodes[1];
        let (channel, mask, cut) = (Channel::Tagged, u64::MAX, Oversize::Truncate);
        let posted = node.endpoint.post_receive(
            &node.context,
            channel,
            None,
            bits,
            mask,
            memory,
            cut,
            1000 + bits,
        );
        self.world.posted(1, posted);
    }

    /// Messages of several kinds; all sends end, well or not.
    fn exchange(&mut self) {
        for (number, len) in LENGTHS.into_iter().enumerate() {
            self.receive(number as u64);
            self.send(number as u64, len);
        }
        self.until("sends to end", |world| world.nodes[0].done.len() == LENGTHS.len());
        for node in &self.world.nodes {
            node.endpoint.check();
        }
    }

    /// Checks that each message that was received is whole, and that a message after the cut arrives.
    fn finish(mut self, what: &str) {
        for completed in std::mem::take(&mut self.world.nodes[0].done) {
            let fault = completed.outcome;
            let ended = matches!(fault, Ok(()) | Err(Fault::PeerReset | Fault::Unreachable));
            assert!(ended, "{what}: {fault:?}");
        }
        let mut seen = [0; LENGTHS.len()];
        for completed in std::mem::take(&mut self.world.nodes[1].done) {
            seen[completed.user as usize - 1000] += 1;
            match completed.outcome {
                Ok(()) => {
                    assert_eq!(completed.bytes as usize, LENGTHS[completed.bits as usize]);
                    check(completed.memory, completed.bytes as usize, completed.bits as u8);
                }
                fault => assert_eq!(fault, Err(Fault::PeerReset), "{what}"),
            }
        }
        assert!(seen.iter().all(|count| *count <= 1), "{what}: {seen:?}");
        // The receiver has to notice, too, before it lets the sender in anew.
        for _ in 0..2000 {
            self.proxy.step();
            self.world.step();
        }
        self.receive(77);
        self.send(77, 10);
        self.until("message after the cut", |world| {
            let has = |node: usize, user| world.nodes[node].done.iter().any(|d| d.user == user);
            has(0, 77) && has(1, 1077)
        });
        let ends = [(0, 77), (1, 1077)].map(|(node, user)| self.world.take(node, user).outcome);
        assert_eq!(ends, [Ok(()), Ok(())], "{what}");
        self.world.nodes.iter().for_each(|node| node.endpoint.check());
    }
}

#[test]
fn connections_cut_at_and_between_frame_boundaries_fail_each_operation_once() {
    let mut whole = Run::start(0, None);
    whole.exchange();
    assert!(whole.world.nodes[0].done.iter().all(|completed| completed.outcome == Ok(())));
    let (mut runs, mut cuts) = (0, 0);
    for direction in 0..2 {
        let ends = boundaries(&whole.proxy.ways[direction].passed);
        let mut begin = 0;
        let mut limits = Vec::new();
        for end in ends {
            // Within the header, within the payload where there is one, and right behind the frame.
            limits.extend([begin + 4, (begin + end) / 2, end - 1, end]);
            begin = end;
        }
        limits.dedup();
        for limit in limits {
            let mut run = Run::start(direction, Some(limit));
            run.exchange();
            runs += 1;
            cuts += usize::from(run.proxy.cuts > 0);
            run.finish(&format!("direction {direction}, cut after {limit} bytes"));
        }
    }
    assert!(runs >= 40, "{runs} cuts are few: are there frames of both directions?");
    // The last frames of a direction may come after all is done.
    assert!(cuts * 10 >= runs * 9, "{cuts} connections of {runs} were cut");
}
