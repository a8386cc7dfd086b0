//! Puts with immediate data, and counters: told once, in order, over every medium.

use std::time::Duration;

use crate::common::{self, ALL, Medium, World};
use ropewalk_base::error::Fault;
use ropewalk_base::memory::{Change, Element, Memory, Operator, Update};
use ropewalk_base::random::Random;
use ropewalk_base::verb::{RemoteKey, RemoteLayout, RemoteSegment};
use ropewalk_core::Holdings;
use ropewalk_net::{
    Access, Action, Atomic, Audience, Direction, Exposing, Mode, Naming, OperationId, PeerId,
    Posted, Raise, Served, Terms, Told, Written,
};
use ropewalk_rail_sim::Path;

const REGION: usize = 4 << 20;
/// The place of each put.
const AREA: usize = 80_000;
const MODES: [Mode; 2] = [Mode::Fail, Mode::Resume];

/// An endpoint with a region of which another one, and itself, is told what is put.
struct Target {
    world: World,
    to: [PeerId; 2],
    key: RemoteKey,
    told: Vec<Written>,
}

impl Target {
    fn new(medium: Medium, mode: Mode) -> Target {
        let mut world = World::new(medium);
        world.mode = mode;
        (0..2).for_each(|_| {
            world.add();
        });
        let to = [world.nodes[0].endpoint.own_peer().unwrap(), world.peer(1, 0)];
        let mut target = Target { world, to, key: RemoteKey::named(0), told: Vec::new() };
        let written = Some(target.world.nodes[0].context.clone());
        target.key = target.expose(true, Told { written, counters: Vec::new() });
        target
    }

    fn expose(&self, writable: bool, told: Told) -> RemoteKey {
        let terms =
            Exposing { naming: Naming::Chosen, ..Exposing::to(Audience::Everybody, writable) };
        let memory = self.world.memory(REGION, 9);
        self.world.nodes[0].endpoint.expose_told(memory, terms, told).unwrap().key
    }

    fn put_data(
        &mut self,
        from: usize,
        remote: RemoteLayout,
        (len, seed): (usize, u8),
        data: u64,
    ) -> Option<OperationId> {
        let memory = self.world.memory(len, seed);
        let node = &self.world.nodes[from];
        let (endpoint, context, to) = (&node.endpoint, &node.context, self.to[from]);
        let posted = endpoint.post_put_data(context, to, self.key, remote, data, memory, data);
        let operation = match &posted {
            Ok(Posted::Pending(operation)) => Some(*operation),
            _ => None,
        };
        self.world.posted(from, posted);
        operation
    }

    fn access(&mut self, from: usize, way: Direction, remote: RemoteLayout, len: usize, user: u64) {
        let memory = self.world.memory(len, 1);
        let node = &self.world.nodes[from];
        let (endpoint, context, to) = (&node.endpoint, &node.context, self.to[from]);
        let posted = endpoint.post_access(context, way, to, self.key, remote, memory, user);
        self.world.posted(from, posted);
    }

    /// The region's bytes, as its owner sees them.
    fn bytes(&mut self, at: usize, len: usize) -> Vec<u8> {
        self.access(0, Direction::Get, RemoteLayout::At(at as u64), len, u64::MAX);
        let got = self.world.take(0, u64::MAX);
        assert_eq!(got.outcome, Ok(()));
        got.memory.into_pooled().unwrap().to_vec()
    }

    /// The next event.
    fn event(&mut self) -> Written {
        let mut next = None;
        self.world.until("event", |world| {
            let node = &world.nodes[0];
            next = node.endpoint.next_written(&node.context);
            next.is_some()
        });
        next.unwrap()
    }

    /// Takes all events that are there.
    fn take_events(&mut self) {
        let node = &self.world.nodes[0];
        while let Some(event) = node.endpoint.next_written(&node.context) {
            self.told.push(event);
        }
    }

    fn settle(&mut self, regions: usize) {
        let nothing = Holdings { regions, ..Holdings::default() };
        self.world.until("quiet", |world| {
            world.nodes[0].endpoint.held().0 == nothing
                && world.nodes[1].endpoint.held().0 == Holdings::default()
        });
        self.world.nodes.iter().for_each(|node| node.endpoint.check());
    }
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|index| common::pattern(index, seed)).collect()
}

fn list(segments: &[(u64, u64)]) -> RemoteLayout {
    let segments = segments.iter().map(|&(offset, len)| RemoteSegment { offset, len });
    RemoteLayout::List(segments.collect())
}

fn in_order(medium: Medium, mode: Mode, path: Option<Path>) {
    const LENGTHS: [usize; 8] = [8, 0, 4096, 4097, 70_000, 1, 30_000, 100];
    let mut target = Target::new(medium, mode);
    if let Some(path) = path {
        target.world.network.set_default_path(path);
    }
    for from in [1, 0] {
        let case = format!("{medium:?} {mode:?} {from}");
        for data in 0..40u64 {
            let (at, len) = (data as usize * AREA, LENGTHS[data as usize % 8]);
            let remote = match data % 5 {
                3 if len > 10 => {
                    let (at, len) = (at as u64, len as u64);
                    list(&[(at, 7), (at + 7, 0), (at + 7, len - 7)])
                }
                _ => RemoteLayout::At(at as u64),
            };
            target.put_data(from, remote, (len, data as u8 + 1), data);
        }
        for data in 0..40u64 {
            let (at, len) = (data as usize * AREA, LENGTHS[data as usize % 8]);
            let event = target.event();
            assert_eq!(event.data, data, "{case}: out of order, or twice");
            assert_eq!(event.bytes, len as u64, "{case}");
            assert_eq!(event.key, target.key);
            let endpoint = &target.world.nodes[0].endpoint;
            let origin = endpoint.peer_endpoint(event.peer);
            assert_eq!(origin, Some(target.world.nodes[from].endpoint.identity().endpoint));
            assert!(target.bytes(at, len.max(1))[..len] == pattern(len, data as u8 + 1), "{case}");
            let done = target.world.take(from, data);
            assert_eq!((done.outcome, done.bytes), (Ok(()), len as u64), "{case}");
        }
        target.take_events();
        assert_eq!(target.told, [], "{case}");
        target.settle(1);
    }
}

#[test]
fn immediate_data_comes_once_in_order_and_after_its_bytes() {
    for medium in ALL {
        for mode in MODES {
            in_order(medium, mode, None);
        }
    }
    for mode in MODES {
        let path = Path { reordering: 200_000, ..Path::default() };
        in_order(Medium::SimDatagram, mode, Some(path));
    }
}

#[test]
fn who_takes_no_events_holds_up_those_who_put_and_nothing_of_them_is_lost() {
    const PUTS: u64 = 3000;
    for medium in ALL {
        let mut target = Target::new(medium, Mode::Fail);
        for data in 0..PUTS {
            target.put_data(1, RemoteLayout::At(8 * data), ([0, 8][data as usize % 2], 3), data);
        }
        // Messages behind them arrive all the same: only accesses are held up.
        let mut calm = 0;
        let mut done = 0;
        target.world.until("stop", |world| {
            let now = world.nodes[1].done.len();
            (calm, done) = if now == done { (calm + 1, done) } else { (0, now) };
            calm > 2000
        });
        assert!((256..1500).contains(&done), "{medium:?}: {done} events are kept");
        target.world.nodes.iter().for_each(|node| node.endpoint.check());
        for data in 0..PUTS {
            assert_eq!(target.event().data, data, "{medium:?}");
        }
        for data in 0..PUTS {
            assert_eq!(target.world.take(1, data).outcome, Ok(()), "{medium:?}");
        }
        target.settle(1);
    }
}

#[test]
fn no_event_comes_of_a_put_that_is_refused() {
    for medium in ALL {
        for mode in MODES {
            let mut target = Target::new(medium, mode);
            let right = target.key;
            let deaf = target.expose(true, Told::default());
            let context = target.world.nodes[0].context.clone();
            let told = Told { written: Some(context), counters: Vec::new() };
            let constant = target.expose(false, told);
            let mut data = 0;
            for len in [0, 8, 5000] {
                let end = REGION as u64;
                for (key, at) in [(deaf, 0), (constant, 0), (right, end - 4), (right, end + 1)] {
                    if key == right && len == 0 && at < end {
                        continue;
                    }
                    target.key = key;
                    data += 1;
                    target.put_data(1, RemoteLayout::At(at), (len, 3), data);
                    let refused = target.world.take(1, data).outcome;
                    assert_eq!(refused, Err(Fault::BadKey), "{medium:?} {mode:?} {len} {at}");
                }
            }
            target.key = right;
            target.put_data(1, RemoteLayout::At(0), (8, 3), 99);
            assert_eq!(target.event().data, 99, "{medium:?} {mode:?}");
            target.world.take(1, 99);
            target.settle(3);
        }
    }
}

#[test]
fn events_of_puts_that_are_cancelled_come_once_or_never() {
    let mut cancelled = 0;
    for medium in ALL {
        for seed in 0..4 {
            let mut target = Target::new(medium, MODES[seed % 2]);
            let mut random = Random::from_seed(seed as u64);
            for data in 0..300 {
                let len = [0, 8, 4096, 5000, 100_000, 700_000][random.below(6) as usize];
                let at = RemoteLayout::At(random.below(1000));
                let operation = target.put_data(1, at, (len, 5), data);
                (0..random.below(4)).for_each(|_| target.world.step());
                if let Some(operation) = operation.filter(|_| random.below(3) > 0) {
                    target.world.nodes[1].endpoint.cancel(operation);
                }
                target.take_events();
                target.world.nodes.iter().for_each(|node| node.endpoint.check());
            }
            target.put_data(1, RemoteLayout::At(0), (8, 5), 300);
            let broken = |target: &Target| {
                let done = target.world.nodes[1].done.iter();
                done.filter(|it| it.outcome.is_err_and(|it| it != Fault::Cancelled)).count()
            };
            let begin = std::time::Instant::now();
            while target.told.last().is_none_or(|event| event.data != 300) {
                target.world.step();
                target.take_events();
                let nodes = &target.world.nodes;
                assert!(
                    begin.elapsed() < Duration::from_secs(60),
                    "{medium:?} {seed}: no last event, {} failed: {:?} {:?} {:?}",
                    broken(&target),
                    target.told.last(),
                    nodes[0].endpoint.held(),
                    nodes[1].endpoint.held()
                );
            }
            assert!(target.told.is_sorted_by(|one, other| one.data < other.data), "{medium:?}");
            let mut told = target.told.iter().map(|event| event.data).peekable();
            for data in 0..=300 {
                let outcome = target.world.take(1, data).outcome;
                let is_told = told.next_if_eq(&data).is_some();
                assert!(is_told || outcome == Err(Fault::Cancelled), "{medium:?} {outcome:?}");
                cancelled += u32::from(outcome.is_err());
            }
            target.settle(1);
        }
    }
    assert!(cancelled > 500, "{cancelled} were cancelled");
}

#[test]
fn counters_of_a_region_count_each_operation_once() {
    for medium in ALL {
        for mode in MODES {
            let mut target = Target::new(medium, mode);
            let counters = [Served::Get, Served::Put, Served::Update];
            let counters =
                counters.map(|it| (it, target.world.nodes[0].endpoint.counter().unwrap()));
            let written = Some(target.world.nodes[0].context.clone());
            let told = Told { written, counters: counters.to_vec() };
            target.key = target.expose(true, told);
            let counts = || counters.each_ref().map(|(_, counter)| counter.value());
            let mut expected = [0; 3];
            for from in [1, 0] {
                let case = format!("{medium:?} {mode:?} {from}");
                for len in [8, 5000, 700_000] {
                    for (at, way) in [Direction::Get, Direction::Put].into_iter().enumerate() {
                        target.access(from, way, RemoteLayout::At(3), len, 1);
                        let segments = [(5, len as u64 - 3), (800_000, 0), (900_000, 3)];
                        target.access(from, way, list(&segments), len, 2);
                        for user in [1, 2] {
                            assert_eq!(target.world.take(from, user).outcome, Ok(()), "{case}");
                        }
                        expected[at] += 2;
                        target.world.until("count", |_| counts() == expected);
                        // None is counted that is refused.
                        target.access(from, way, RemoteLayout::At(REGION as u64 - 4), len, 3);
                        assert_eq!(target.world.take(from, 3).outcome, Err(Fault::BadKey));
                    }
                    target.put_data(from, RemoteLayout::At(0), (len, 3), 4);
                    assert_eq!(target.event().data, 4, "{case}");
                    target.world.take(from, 4);
                    expected[1] += 1;
                    assert_eq!(counts(), expected, "{case} {len}");
                }
                changes(&mut target, from, &case);
                expected[1] += 1;
                expected[2] += 3;
                target.world.until("count", |_| counts() == expected);
            }
            target.settle(2);
            assert_eq!(counts(), expected);
        }
    }
}

/// A long update, two atomics, a put with a notice.
fn changes(target: &mut Target, from: usize, case: &str) {
    let update = Update::new(Element::U64, Operator::Sum).unwrap();
    let (key, to) = (target.key, target.to[from]);
    let memory = target.world.memory(400_000, 3);
    let node = &target.world.nodes[from];
    let (endpoint, context) = (&node.endpoint, &node.context);
    let posted = endpoint.post_update(context, to, key, 0, (update, false), memory, 5);
    target.world.posted(from, posted);
    for fetch in [true, false] {
        let change = Change::One { update, operand: [1; 8] };
        let atomic = Atomic { change, fetch, token: false };
        let node = &target.world.nodes[from];
        let (endpoint, context) = (&node.endpoint, &node.context);
        let posted = endpoint.post_atomic(context, to, key, 8, atomic, 6 + u64::from(fetch));
        target.world.posted(from, posted.map_err(|fault| (Memory::empty(), fault)));
    }
    let raise = (Raise { word: 0, value: 1, to: false }, true);
    let memory = target.world.memory(100, 3);
    let node = &target.world.nodes[from];
    let posted = node.endpoint.post_notify(&node.context, to, key, 0, raise, memory, 8);
    target.world.posted(from, posted);
    (5..9).for_each(|user| {
        assert_eq!(target.world.take(from, user).outcome, Ok(()), "{case} {user}");
    });
}

#[test]
fn completions_are_counted_with_their_errors_and_kept_only_where_wanted() {
    for medium in ALL {
        let mut target = Target::new(medium, Mode::Fail);
        let endpoint = target.world.nodes[1].endpoint.clone();
        let (kept, counter) = (endpoint.counter().unwrap(), endpoint.counter().unwrap());
        let context = target.world.nodes[1].context.clone();
        endpoint.count_completions(&context, &kept).unwrap();
        assert_eq!(endpoint.count_completions(&context, &counter), Err(Fault::Invalid));
        for user in 0..600 {
            let at = if user % 3 == 0 { REGION as u64 - 2 } else { 8 * user };
            let (len, way) = ([8, 9000][user as usize % 2], Direction::Put);
            target.access(1, way, RemoteLayout::At(at), len, user);
            let memory = target.world.memory(len, 1);
            let (at, to) = (RemoteLayout::At(at), target.to[1]);
            let posted =
                endpoint.post_access(counter.context(), way, to, target.key, at, memory, user);
            assert!(posted.is_ok());
        }
        let both = |counter: &ropewalk_net::Counter| (counter.value(), counter.errors());
        target.world.until("counts", |_| both(&counter) == (400, 200));
        (0..600).for_each(|user| {
            target.world.take(1, user);
        });
        assert_eq!(both(&kept), (400, 200), "{medium:?}");
        target.settle(1);
        assert_eq!(both(&counter), (400, 200), "{medium:?}");
        assert!(endpoint.test(counter.context()).is_none(), "they are not kept");
        counter.set(7);
        counter.add(2);
        counter.set_errors(1);
        counter.add_errors(1);
        assert_eq!(both(&counter), (9, 2));
    }
}

#[test]
fn a_sleeper_is_woken_by_the_count_that_it_waits_for_and_by_an_event() {
    const LONG: Duration = Duration::from_secs(60);
    for medium in [Medium::Tcp, Medium::Shm, Medium::Udp] {
        let mut target = Target::new(medium, Mode::Fail);
        let endpoint = target.world.nodes[0].endpoint.clone();
        let counter = endpoint.counter().unwrap();
        let context = endpoint.context(false).unwrap();
        let told =
            Told { written: Some(context.clone()), counters: vec![(Served::Put, counter.clone())] };
        target.key = target.expose(true, told);
        let waiter = std::thread::spawn(move || {
            let counted = endpoint.wait_count(&counter, 20, LONG);
            while !endpoint.has_written(&context) {
                assert!(endpoint.wait(&context, LONG).is_none());
            }
            (counted, endpoint.next_written(&context).unwrap().data)
        });
        for user in 0..20 {
            std::thread::sleep(Duration::from_micros(300));
            target.access(1, Direction::Put, RemoteLayout::At(0), 5000, user);
            let origin = &mut target.world.nodes[1];
            while origin.done.iter().all(|it| it.user != user) {
                origin.done.extend(origin.endpoint.test(&origin.context));
            }
        }
        std::thread::sleep(Duration::from_millis(2));
        target.put_data(1, RemoteLayout::At(0), (8, 1), 77);
        while !waiter.is_finished() {
            target.world.nodes[1].endpoint.progress();
        }
        assert_eq!(waiter.join().unwrap(), (true, 77), "{medium:?}");
        let endpoint = target.world.nodes[1].endpoint.clone();
        let counter = endpoint.counter().unwrap();
        assert!(!endpoint.wait_count(&counter, 1, Duration::from_millis(5)), "nothing comes");
    }
}

#[test]
fn wrong_puts_with_immediate_data_are_refused_at_once() {
    let mut target = Target::new(Medium::Loop, Mode::Fail);
    for (remote, len) in [(list(&[(0, 5)]), 4), (list(&[]), 0), (RemoteLayout::At(u64::MAX), 2)] {
        let memory = target.world.memory(len, 1);
        let node = &target.world.nodes[1];
        let action = Action::Immediate { data: 1 };
        let (peer, key) = (target.to[1], target.key);
        let (local, terms) = (ropewalk_base::memory::Slice::NONE, Terms::default());
        let access = Access { action, peer, key, remote, local, terms };
        let posted = node.endpoint.post_one_sided(&node.context, access, memory, 1);
        target.world.posted(1, posted);
        assert_eq!(target.world.take(1, 1).outcome, Err(Fault::Invalid));
    }
}

#[test]
fn a_token_comes_after_immediate_data_that_waits_for_its_bytes() {
    let replace = Update::new(Element::U64, Operator::Replace).unwrap();
    let change = Change::One { update: replace, operand: 7u64.to_le_bytes() };
    for medium in ALL {
        for mode in MODES {
            let mut target = Target::new(medium, mode);
            // The data of the first one waits until its bytes are applied, and the second one waits behind it.
            target.put_data(1, RemoteLayout::At(0), (30_000, 3), 1);
            target.put_data(1, RemoteLayout::At(100_000), (8, 5), 2);
            let node = &target.world.nodes[1];
            let atomic = Atomic { change, fetch: false, token: true };
            let (endpoint, context, to) = (&node.endpoint, &node.context, target.to[1]);
            let posted = endpoint.post_atomic(context, to, target.key, 200_000, atomic, 3);
            let posted = posted.map_err(|fault| (Memory::empty(), fault));
            target.world.posted(1, posted);
            while target.bytes(200_000, 8) != 7u64.to_le_bytes() {
                target.world.step();
            }
            assert_eq!(target.bytes(100_000, 8), pattern(8, 5), "{medium:?} {mode:?}");
            target.take_events();
            assert_eq!(target.told.len(), 2, "{medium:?} {mode:?}");
            (1..=3).for_each(|user| {
                target.world.take(1, user);
            });
            target.settle(1);
        }
    }
}
