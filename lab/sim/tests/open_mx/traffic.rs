//! Hosts that send each other messages of all sizes over bad networks, by seeds.

use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_sim::open_mx::{Request, Status};
use ropewalk_sim::seeds;
use ropewalk_wire::mxoe::{Dialect, Order, Type};

use crate::world::*;

/// Sizes at the limits of message classes.
const SIZES: [usize; 14] =
    [0, 1, 32, 33, 128, 129, 1452, 1453, 4096, 4097, 32_768, 32_769, 100_000, 1 << 20];
/// The bits that receives look at; the others number the messages.
const TAG_MASK: u64 = 0xff << 32;

fn dialects() -> [Dialect; 4] {
    [
        Dialect::native(1500, Order::Big).unwrap(),
        Dialect::native(9000, Order::Big).unwrap(),
        Dialect::native(1500, Order::Little).unwrap(),
        Dialect::compatible(),
    ]
}

/// A message that was sent.
#[derive(Debug, Clone, Copy)]
struct Sent {
    from: usize,
    id: u64,
    len: usize,
    large: bool,
    request: Request,
}

/// Messages by receiver and tag, in the order of sending, and receives in that of posting, with their room.
#[derive(Default)]
struct Book {
    sent: BTreeMap<(usize, u64), Vec<Sent>>,
    receives: BTreeMap<(usize, u64), Vec<(Request, usize)>>,
    cancelled: Vec<(usize, Request)>,
    next_id: u64,
}

impl Book {
    fn send(&mut self, world: &mut World, from: usize, to: usize) {
        let len = SIZES[world.below(SIZES.len() as u64) as usize];
        let synchronous = world.below(5) == 0;
        // Between two hosts messages with one tag keep their order, whatever their sizes.
        let tag = from as u64 * 4 + world.below(3);
        self.next_id += 1;
        let id = tag << 32 | self.next_id;
        let address = world.address(to);
        let request = world.hosts[from].send(address, id, pattern(id, len), synchronous);
        let large = synchronous || len > 32_768;
        self.sent.entry((to, tag)).or_default().push(Sent { from, id, len, large, request });
    }

    fn receive(&mut self, world: &mut World, host: usize, tag: u64) {
        let room = match world.below(6) {
            0 => SIZES[world.below(SIZES.len() as u64) as usize],
            _ => 1 << 20,
        };
        let request = world.hosts[host].receive(tag << 32, TAG_MASK, room as u32);
        self.receives.entry((host, tag)).or_default().push((request, room));
    }

    /// Takes a receive back, maybe one that has its message.
    fn cancel(&mut self, world: &mut World, host: usize) {
        let rows: Vec<(usize, u64)> =
            self.receives.keys().copied().filter(|(receiver, _)| *receiver == host).collect();
        if rows.is_empty() {
            return;
        }
        let row = rows[world.below(rows.len() as u64) as usize];
        let receives = self.receives.entry(row).or_default();
        let position = world.below(receives.len().max(1) as u64) as usize;
        if let Some((request, _)) = receives.get(position).copied()
            && world.hosts[host].cancel(request)
        {
            receives.remove(position);
            self.cancelled.push((host, request));
        }
    }

    /// As many receives as there are messages.
    fn complete(&mut self, world: &mut World) {
        let rows: Vec<(usize, u64)> = self.sent.keys().copied().collect();
        for (host, tag) in rows {
            while self.receives.get(&(host, tag)).map_or(0, Vec::len)
                < self.sent[&(host, tag)].len()
            {
                self.receive(world, host, tag);
            }
        }
    }

    fn check(&self, world: &mut World) {
        for ((host, tag), sent) in &self.sent {
            for (message, (request, room)) in sent.iter().zip(&self.receives[&(*host, *tag)]) {
                let event = world.end(*host, *request);
                let taken = message.len.min(*room);
                let cut = taken < message.len;
                let status = if cut { Status::Truncated } else { Status::Success };
                let seen = (event.match_info, event.status, event.bytes, event.transferred);
                assert_eq!(seen, (message.id, status, message.len as u32, taken as u32));
                assert!(event.data == pattern(message.id, message.len)[..taken], "wrong bytes");
                assert_eq!(event.peer, world.address(message.from));
                let told = world.end(message.from, message.request);
                let (status, taken) =
                    if message.large { (status, taken) } else { (Status::Success, message.len) };
                assert_eq!((told.status, told.transferred), (status, taken as u32), "{message:?}");
            }
        }
        world.pass(Duration::from_secs(3));
        for (host, request) in &self.cancelled {
            assert!(!world.ended[*host].contains_key(request), "it was cancelled");
        }
        let posted: usize = self.receives.values().map(Vec::len).sum();
        let sent: usize = self.sent.values().map(Vec::len).sum();
        let ended: usize = world.ended.iter().map(BTreeMap::len).sum();
        assert_eq!(posted, sent);
        let connects = world.hosts.len() * (world.hosts.len() - 1);
        assert_eq!(ended, posted + sent + connects, "nothing comes twice");
    }
}

/// Messages and receives at random, with pauses in which users compute.
fn exchange(world: &mut World, book: &mut Book, steps: u64) {
    let hosts = world.hosts.len();
    for _ in 0..steps {
        let host = world.below(hosts as u64) as usize;
        let other = (host + 1 + world.below(hosts as u64 - 1) as usize) % hosts;
        match world.below(10) {
            0..4 => book.send(world, host, other),
            4..7 => {
                let tag = other as u64 * 4 + world.below(3);
                let row = (host, tag);
                // Not more than there will be messages for.
                if book.receives.get(&row).map_or(0, Vec::len)
                    < book.sent.get(&row).map_or(0, Vec::len) + 2
                {
                    book.receive(world, host, tag);
                }
            }
            7 => book.cancel(world, host),
            8 => {
                let pause = Duration::from_micros(world.below(30_000));
                let end = world.now + pause;
                world.hosts[host].computes_until(end);
            }
            _ => {
                let time = Duration::from_micros(world.below(2000));
                world.pass(time);
            }
        }
    }
    // Receives beyond the messages are taken back, or get one.
    let rows: Vec<(usize, u64)> = book.receives.keys().copied().collect();
    for (host, tag) in rows {
        let missing = |book: &Book| {
            let sent = book.sent.get(&(host, tag)).map_or(0, Vec::len);
            book.receives[&(host, tag)].len() > sent
        };
        while missing(book) {
            let (request, _) = book.receives.get_mut(&(host, tag)).unwrap().pop().unwrap();
            assert!(world.hosts[host].cancel(request), "there is no message for it");
            book.cancelled.push((host, request));
        }
    }
    book.complete(world);
}

#[test]
fn everything_comes_once_in_order_and_as_it_was() {
    for seed in seeds(1, 60) {
        println!("seed {seed}");
        let dialect = dialects()[seed as usize % 4];
        let hosts = 2 + seed as usize % 2;
        let mut world = World::new(seed, hosts, dialect);
        world.weather = Weather::FOUL;
        for (a, b) in [(0, 1), (1, 2), (2, 0)] {
            if a < hosts && b < hosts {
                world.join(a, b);
            }
        }
        let mut book = Book::default();
        exchange(&mut world, &mut book, 150);
        book.check(&mut world);
    }
}

#[test]
fn each_size_goes_as_its_class() {
    for dialect in dialects() {
        let mut world = World::new(1, 2, dialect);
        world.join(0, 1);
        for (synchronous, len) in SIZES.iter().flat_map(|len| [(false, *len), (true, *len)]) {
            let before = world.types[0].clone();
            let address = world.address(1);
            let id = len as u64;
            let sent = world.hosts[0].send(address, id, pattern(id, len), synchronous);
            let got = world.hosts[1].receive(id, ALL, 1 << 20);
            let event = world.end(1, got);
            assert_eq!((event.status, event.data), (Status::Success, pattern(id, len)));
            assert_eq!(world.end(0, sent).transferred, len as u32);
            world.pass(Duration::from_millis(20));
            let count = |kind: Type| {
                let at = |types: &BTreeMap<u8, u64>| types.get(&(kind as u8)).copied().unwrap_or(0);
                at(&world.types[0]) - at(&before)
            };
            let large = synchronous || len > 32_768;
            let fragments = len.div_ceil(dialect.fragment_bytes() as usize) as u64;
            let expected = match len {
                _ if large => [0, 0, 0, 1],
                0..=32 => [1, 0, 0, 0],
                33..=128 => [0, 1, 0, 0],
                _ => [0, 0, fragments, 0],
            };
            let seen = [Type::Tiny, Type::Small, Type::Medium, Type::Rendezvous].map(count);
            assert_eq!(seen, expected, "{len} {synchronous}");
            let replies = if large { len.div_ceil(dialect.reply_bytes() as usize) } else { 0 };
            assert_eq!(count(Type::PullReply), replies as u64);
        }
        let counters = world.hosts.iter().map(|host| host.counters());
        assert!(counters.clone().all(|it| it.resent + it.blocks_again + it.refused == 0));
    }
}

#[test]
fn a_ring_that_is_full_loses_what_comes_and_it_comes_again() {
    let mut world = World::new(1, 2, dialects()[0]);
    world.join(0, 1);
    let busy = world.now + Duration::from_millis(400);
    world.hosts[1].computes_until(busy);
    for id in 0..1200 {
        world.send(0, 1, id, 8);
    }
    world.pass(Duration::from_millis(300));
    assert_eq!(world.hosts[1].counters().ring_full, 1200 - 1024);
    let computed = world.types[1].clone();
    world.pass(Duration::from_secs(2));
    for id in 0..1200 {
        let request = world.hosts[1].receive(0, 0, 8);
        assert_eq!(world.end(1, request).data, pattern(id, 8));
    }
    assert!(world.types[1] != computed, "it acknowledged after that");
    assert!(world.hosts[0].counters().resent >= 1200 - 1024);
}

#[test]
fn more_large_messages_than_regions_and_more_messages_than_numbers_wait() {
    let mut world = World::new(1, 2, dialects()[1]);
    world.join(0, 1);
    let address = world.address(1);
    let large: Vec<_> =
        (0..300).map(|id| world.hosts[0].send(address, id, pattern(id, 40), true)).collect();
    let small: Vec<_> = (300..10_000).map(|id| world.send(0, 1, id, 4)).collect();
    world.pass(Duration::from_millis(100));
    assert_eq!(world.types[0][&(Type::Rendezvous as u8)], 128);
    assert!(!world.types[0].contains_key(&(Type::Tiny as u8)), "they keep their order");
    for id in 0..10_000 {
        let request = world.hosts[1].receive(0, 0, 64);
        assert_eq!(world.end(1, request).match_info, id);
    }
    for request in large.into_iter().chain(small) {
        assert_eq!(world.end(0, request).status, Status::Success);
    }
}

#[test]
fn a_peer_that_restarts_is_a_new_one() {
    for seed in seeds(100, 40) {
        println!("seed {seed}");
        let mut world = World::new(seed, 2, dialects()[seed as usize % 4]);
        world.weather = Weather::FOUL;
        world.join(0, 1);
        let mut first = Book::default();
        for _ in 0..30 {
            let from = world.below(2) as usize;
            first.send(&mut world, from, 1 - from);
            if world.below(2) == 0 {
                let tag = from as u64 * 4 + world.below(3);
                first.receive(&mut world, 1 - from, tag);
            }
            let time = Duration::from_micros(world.below(400));
            world.pass(time);
        }
        world.step();
        world.hosts[1].restart(0x7700_0000 + seed as u32);
        world.ended[1].clear();
        let time = Duration::from_millis(world.below(1500));
        world.pass(time);
        // A restarted host connects first; else its peer would count on from old numbers.
        world.join_anew(1, 0);
        let sends = first.sent.values().flatten().filter(|sent| sent.from == 0);
        for sent in sends {
            let status = world.end(0, sent.request).status;
            let bad = [Status::EndpointUnreachable, Status::BadSession];
            assert!(
                status == Status::Success || status == Status::Truncated || bad.contains(&status)
            );
        }
        // Receives that the old messages left unmatched are cancelled.
        for ((host, _), receives) in &first.receives {
            for (request, _) in receives.iter().filter(|_| *host == 0) {
                assert!(world.hosts[0].cancel(*request) || world.ended[0].contains_key(request));
            }
        }
        world.pass(Duration::from_millis(10));
        world.ended = vec![BTreeMap::new(); 2];
        let mut second = Book { next_id: 1000, ..Book::default() };
        exchange(&mut world, &mut second, 80);
        second.complete(&mut world);
        let now = world.now;
        world.hosts.iter_mut().for_each(|host| host.computes_until(now));
        for ((host, tag), sent) in &second.sent {
            for (message, (request, room)) in sent.iter().zip(&second.receives[&(*host, *tag)]) {
                let event = world.end(*host, *request);
                let taken = message.len.min(*room);
                assert_eq!((event.match_info, event.data.len()), (message.id, taken));
                assert!(event.data == pattern(message.id, message.len)[..taken], "wrong bytes");
            }
        }
    }
}
