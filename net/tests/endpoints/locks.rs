//! Locks of regions: one at a time, in turn, and never lost with their owners, over every medium.

use std::time::Duration;

use crate::common::{ALL, Medium, World};
use ropewalk_base::error::Fault;
use ropewalk_base::memory::{Change, Element, Memory, Operator, Update};
use ropewalk_base::random::Random;
use ropewalk_base::verb::{RemoteKey, RemoteLayout};
use ropewalk_net::{Atomic, Audience, Direction, Mode, OperationId, PeerId, Posted};
use ropewalk_rail_sim::Path;

const MODES: [Mode; 2] = [Mode::Fail, Mode::Resume];
const LOCK: u64 = 1 << 40;

/// Endpoints of which the first one exposes a region with a lock; each may want it, the first one included.
struct Owner {
    world: World,
    to: Vec<PeerId>,
    key: RemoteKey,
    context: String,
}

impl Owner {
    fn new(medium: Medium, mode: Mode, others: usize) -> Owner {
        let mut world = World::new(medium);
        world.mode = mode;
        (0..=others).for_each(|_| {
            world.add();
        });
        let own = world.nodes[0].endpoint.own_peer().unwrap();
        let to = (0..=others).map(|it| if it == 0 { own } else { world.peer(it, 0) }).collect();
        let mut region = world.pool.take(4096).unwrap();
        region.fill(0);
        let exposed =
            world.nodes[0].endpoint.expose(Memory::pooled(region), true, Audience::Everybody);
        Owner { world, to, key: exposed.unwrap(), context: format!("{medium:?} {mode:?}") }
    }

    /// Asks for the lock. Its number.
    fn ask(&mut self, from: usize, exclusive: bool) -> OperationId {
        let node = &self.world.nodes[from];
        let (endpoint, context) = (&node.endpoint, &node.context);
        let posted = endpoint.post_lock(context, self.to[from], self.key, exclusive, LOCK);
        let posted = posted.unwrap();
        let id = match &posted {
            Posted::Done(completed) => completed.operation,
            Posted::Pending(id) => *id,
        };
        self.world.posted(from, Ok(posted));
        id
    }

    /// Puts a word under the lock. Its number, if it is not over.
    fn locked_put(&mut self, from: usize, value: u64) -> Option<OperationId> {
        let memory = Memory::pooled(self.world.pool.copy_of(&value.to_le_bytes()).unwrap());
        let node = &self.world.nodes[from];
        let (endpoint, context, to) = (&node.endpoint, &node.context, self.to[from]);
        let posted = endpoint.post_locked_put(context, to, self.key, 8, true, memory, LOCK);
        let id = match &posted {
            Ok(Posted::Pending(id)) => Some(*id),
            _ => None,
        };
        self.world.posted(from, posted);
        id
    }

    /// Whether the lock was taken; true in the second place if its owner died before.
    fn taken(&mut self, from: usize) -> Option<bool> {
        let done = &mut self.world.nodes[from].done;
        let at = done.iter().position(|completed| completed.user == LOCK)?;
        let completed = done.remove(at);
        assert_eq!(completed.outcome, Ok(()), "{}", self.context);
        Some(completed.bits == 1)
    }

    fn take(&mut self, from: usize) -> bool {
        let completed = self.world.take(from, LOCK);
        assert_eq!(completed.outcome, Ok(()), "{} {from}", self.context);
        completed.bits == 1
    }

    fn release(&mut self, from: usize, lock: OperationId) {
        const RELEASE: u64 = LOCK + 1;
        let node = &self.world.nodes[from];
        let (endpoint, context) = (&node.endpoint, &node.context);
        let posted = endpoint.post_unlock(context, self.to[from], self.key, lock, RELEASE);
        self.world.posted(from, posted.map_err(|fault| (Memory::empty(), fault)));
        assert_eq!(self.world.take(from, RELEASE).outcome, Ok(()), "{}", self.context);
    }

    fn access(&mut self, from: usize, way: Direction, memory: Memory, user: u64) {
        let node = &self.world.nodes[from];
        let (endpoint, context, peer) = (&node.endpoint, &node.context, self.to[from]);
        let at = RemoteLayout::At(8);
        let posted = endpoint.post_access(context, way, peer, self.key, at, memory, user);
        self.world.posted(from, posted);
    }

    /// What this one asked for is at the owner, and answered if it could be.
    fn pass_on(&mut self, from: usize) {
        let update = Update::new(Element::U64, Operator::Nothing).unwrap();
        let change = Change::One { update, operand: [0; 8] };
        let look = Atomic { change, fetch: true, token: false };
        let node = &self.world.nodes[from];
        let (endpoint, context) = (&node.endpoint, &node.context);
        // A frame like a request for a lock.
        let posted = endpoint.post_atomic(context, self.to[from], self.key, 0, look, 5);
        self.world.posted(from, posted.map_err(|fault| (Memory::empty(), fault)));
        assert_eq!(self.world.take(from, 5).outcome, Ok(()), "{}", self.context);
        if self.world.simulated() {
            self.world.pass(Duration::from_millis(50));
        }
    }

    /// The word that the lock protects.
    fn read(&mut self, from: usize) -> u64 {
        let memory = self.world.memory(8, 0);
        self.access(from, Direction::Get, memory, 3);
        let got = self.world.take(from, 3);
        assert_eq!(got.outcome, Ok(()), "{}", self.context);
        u64::from_le_bytes(got.memory.into_pooled().unwrap()[..].try_into().unwrap())
    }

    /// Writes it. The put need not be over when that returns.
    fn write(&mut self, from: usize, value: u64) {
        let memory = self.world.pool.copy_of(&value.to_le_bytes()).unwrap();
        self.access(from, Direction::Put, Memory::pooled(memory), 4);
    }
}

#[test]
fn who_has_a_lock_alone_loses_no_change() {
    const ROUNDS: usize = 40;
    for medium in ALL {
        for mode in MODES {
            let mut owner = Owner::new(medium, mode, 3);
            let mut random = Random::from_seed(3);
            let mut wanted: Vec<_> = (0..4).map(|from| Some(owner.ask(from, true))).collect();
            let mut done = 0;
            while done < ROUNDS {
                let mut holder = None;
                while holder.is_none() {
                    owner.world.step();
                    holder = (0..4).find(|from| owner.taken(*from).is_some());
                }
                let holder = holder.unwrap();
                (0..4).filter(|it| *it != holder).for_each(|other| {
                    assert_eq!(owner.taken(other), None, "{}: two holders", owner.context);
                });
                let value = owner.read(holder);
                assert_eq!(value, done as u64, "{}: a change was lost", owner.context);
                owner.write(holder, value + 1);
                // The release does not pass the put, whose end nobody waits for.
                owner.release(holder, wanted[holder].unwrap());
                owner.world.take(holder, 4);
                done += 1;
                (0..random.below(3)).for_each(|_| owner.world.step());
                wanted[holder] = Some(owner.ask(holder, true));
            }
            owner.world.nodes.iter().for_each(|node| node.endpoint.check());
        }
    }
}

#[test]
fn requests_are_served_in_turn_and_readers_together() {
    for medium in ALL {
        for mode in MODES {
            let mut owner = Owner::new(medium, mode, 4);
            let first = owner.ask(1, true);
            owner.take(1);
            // Each request is at the owner before the next one is made.
            let mut waiting = Vec::new();
            for (from, exclusive) in [(2, false), (3, false), (4, true), (0, false)] {
                waiting.push(owner.ask(from, exclusive));
                owner.pass_on(from);
            }
            (0..5).for_each(|it| assert_eq!(owner.taken(it), None, "{}", owner.context));
            owner.release(1, first);
            assert!(!owner.take(2) && !owner.take(3), "{}", owner.context);
            owner.pass_on(0);
            assert_eq!((owner.taken(4), owner.taken(0)), (None, None), "{}", owner.context);
            owner.release(2, waiting[0]);
            owner.release(3, waiting[1]);
            owner.take(4);
            owner.pass_on(0);
            assert_eq!(owner.taken(0), None, "{}: it passed a writer", owner.context);
            owner.release(4, waiting[2]);
            owner.take(0);
            owner.release(0, waiting[3]);
        }
    }
}

#[test]
fn a_release_of_what_one_does_not_hold_gives_nobody_the_lock() {
    for medium in ALL {
        for mode in MODES {
            let mut owner = Owner::new(medium, mode, 3);
            let first = owner.ask(1, true);
            owner.take(1);
            let second = owner.ask(2, true);
            owner.pass_on(2);
            owner.release(1, first);
            owner.take(2);
            let third = owner.ask(3, true);
            owner.pass_on(3);
            // Once more; and requests of others, of which one waits still.
            owner.release(1, first);
            owner.release(0, second);
            owner.release(1, third);
            owner.pass_on(1);
            owner.pass_on(0);
            assert_eq!(owner.taken(3), None, "{}: it is held by another one", owner.context);
            owner.release(2, second);
            owner.take(3);
            owner.release(3, third);
            owner.world.nodes.iter().for_each(|node| node.endpoint.check());
        }
    }
}

#[test]
fn requests_that_are_given_up_leave_the_lock_to_others() {
    for medium in ALL {
        for seed in 0..6 {
            let mut owner = Owner::new(medium, MODES[seed as usize % 2], 3);
            let mut random = Random::from_seed(seed);
            for _ in 0..60 {
                let from = random.below(3) as usize;
                let request = owner.ask(from, random.below(2) == 0);
                (0..random.below(5)).for_each(|_| owner.world.step());
                owner.world.nodes[from].endpoint.cancel(request);
                let completed = owner.world.take(from, LOCK);
                match completed.outcome {
                    Ok(()) => owner.release(from, request),
                    outcome => assert_eq!(outcome, Err(Fault::Cancelled), "{}", owner.context),
                }
            }
            let last = owner.ask(3, true);
            owner.take(3);
            owner.release(3, last);
            owner.world.nodes.iter().for_each(|node| node.endpoint.check());
        }
    }
}

#[test]
fn who_comes_after_an_owner_that_died_is_told() {
    for medium in ALL {
        let mut owner = Owner::new(medium, Mode::Fail, 3);
        owner.ask(1, true);
        owner.take(1);
        let second = owner.ask(2, true);
        owner.pass_on(2);
        let third = owner.ask(3, true);
        owner.pass_on(3);
        assert_eq!((owner.taken(2), owner.taken(3)), (None, None), "{}", owner.context);
        owner.world.nodes.remove(1).endpoint.close();
        owner.to.remove(1);
        // The others have other places now.
        assert!(owner.take(1), "{}: nobody said that the owner died", owner.context);
        owner.release(1, second);
        assert!(!owner.take(2), "{}: it is told once", owner.context);
        owner.release(2, third);
    }
}

#[test]
fn a_region_that_ends_refuses_those_who_wait_and_those_who_come() {
    for medium in ALL {
        let mut owner = Owner::new(medium, Mode::Fail, 2);
        let first = owner.ask(1, true);
        owner.take(1);
        owner.ask(2, false);
        owner.pass_on(2);
        let node = &owner.world.nodes[0];
        node.endpoint.unexpose(owner.key, &node.context, 9).unwrap();
        assert_eq!(owner.world.take(2, LOCK).outcome, Err(Fault::BadKey), "{}", owner.context);
        owner.world.take(0, 9);
        owner.ask(2, false);
        assert_eq!(owner.world.take(2, LOCK).outcome, Err(Fault::BadKey), "{}", owner.context);
        // Its owner gives it back, and nothing comes of that.
        owner.release(1, first);
        owner.world.nodes.iter().for_each(|node| node.endpoint.check());
    }
}

#[test]
fn a_put_goes_with_its_request_for_a_lock_that_is_free_and_waits_for_one_that_is_not() {
    const PUT: u64 = 2;
    for medium in ALL {
        for mode in MODES {
            let mut owner = Owner::new(medium, mode, 2);
            for value in 1..50 {
                owner.locked_put(1, value);
                let done = owner.world.take(1, LOCK);
                assert_eq!((done.outcome, done.bits), (Ok(()), PUT), "{}", owner.context);
                assert_eq!(owner.read(2), value, "{}", owner.context);
            }
            let held = owner.ask(2, true);
            owner.take(2);
            let waits = owner.locked_put(1, 99).expect("the lock is not free");
            owner.pass_on(1);
            assert_eq!(owner.taken(1), None, "{}", owner.context);
            assert_eq!(owner.read(2), 49, "{}: a put without its lock", owner.context);
            owner.release(2, held);
            // It has the lock now, and has put nothing.
            owner.take(1);
            assert_eq!(owner.read(2), 49, "{}", owner.context);
            owner.write(1, 99);
            owner.release(1, waits);
            owner.world.take(1, 4);
            assert_eq!(owner.read(0), 99, "{}", owner.context);
            owner.world.nodes.iter().for_each(|node| node.endpoint.check());
        }
    }
}

#[test]
fn who_has_all_the_requests_that_there_are_for_it_is_refused_and_harms_nobody() {
    /// Requests of one peer, at most: those that have a lock, and those that wait for one.
    const REQUESTS_MAX: usize = 1024;
    /// As many wait; a peer has 256 accesses under way at a time.
    const WAITING: usize = 24;
    const PUT: u64 = 2;
    for medium in ALL {
        for mode in MODES {
            let mut owner = Owner::new(medium, mode, 2);
            let ask = |owner: &mut Owner, count: usize| -> Vec<OperationId> {
                (0..count).map(|_| owner.ask(1, false)).collect()
            };
            let held = ask(&mut owner, REQUESTS_MAX - WAITING);
            held.iter().for_each(|_| assert!(!owner.take(1)));
            let writer = owner.ask(2, true);
            owner.pass_on(2);
            let waiting = ask(&mut owner, WAITING);
            owner.pass_on(1);
            assert_eq!((owner.taken(1), owner.taken(2)), (None, None), "{}", owner.context);
            for _ in 0..3 {
                owner.locked_put(1, 7);
                let refused = owner.world.take(1, LOCK).outcome;
                assert_eq!(refused, Err(Fault::Busy), "{}: a put with its lock", owner.context);
                owner.ask(1, true);
                let refused = owner.world.take(1, LOCK).outcome;
                assert_eq!(refused, Err(Fault::Busy), "{}: a lock", owner.context);
            }
            assert_eq!(owner.read(2), 0, "{}: a put that was refused", owner.context);
            // All others are served in turn.
            held.into_iter().for_each(|lock| owner.release(1, lock));
            owner.take(2);
            owner.pass_on(1);
            assert_eq!(owner.taken(1), None, "{}: it passed a writer", owner.context);
            owner.release(2, writer);
            waiting.iter().for_each(|_| assert!(!owner.take(1)));
            waiting.into_iter().for_each(|lock| owner.release(1, lock));
            owner.locked_put(1, 9);
            let done = owner.world.take(1, LOCK);
            assert_eq!((done.outcome, done.bits), (Ok(()), PUT), "{}", owner.context);
            assert_eq!(owner.read(2), 9, "{}", owner.context);
            owner.world.nodes.iter().for_each(|node| node.endpoint.check());
        }
    }
}

#[test]
fn puts_under_locks_that_are_given_up_leave_the_lock_to_others() {
    for medium in ALL {
        for seed in 0..4 {
            let mut owner = Owner::new(medium, MODES[seed as usize % 2], 3);
            let mut random = Random::from_seed(seed);
            for round in 0..60 {
                let from = random.below(3) as usize;
                let request = owner.locked_put(from, round);
                (0..random.below(5)).for_each(|_| owner.world.step());
                if let Some(request) = request {
                    owner.world.nodes[from].endpoint.cancel(request);
                }
                let completed = owner.world.take(from, LOCK);
                match (completed.outcome, completed.bits) {
                    (Ok(()), 2) | (Err(Fault::Cancelled), _) => {}
                    (Ok(()), _) => owner.release(from, completed.operation),
                    other => panic!("{}: {other:?}", owner.context),
                }
                owner.world.nodes.iter().for_each(|node| node.endpoint.check());
            }
            let last = owner.ask(3, true);
            owner.take(3);
            owner.release(3, last);
        }
    }
}

#[test]
fn a_request_that_comes_after_its_own_end_takes_no_lock() {
    for seed in 0..20 {
        let mut owner = Owner::new(Medium::SimDatagram, Mode::Resume, 2);
        let path = Path { reordering: 300_000, ..Path::default() };
        owner.world.network.set_default_path(path);
        owner.pass_on(1);
        let mut random = Random::from_seed(seed);
        for _ in 0..40 {
            let request = owner.ask(1, random.below(2) == 0);
            owner.world.nodes[1].endpoint.cancel(request);
            if owner.world.take(1, LOCK).outcome.is_ok() {
                owner.release(1, request);
            }
        }
        let last = owner.ask(2, true);
        owner.take(2);
        owner.release(2, last);
        owner.world.nodes.iter().for_each(|node| node.endpoint.check());
    }
}

#[test]
fn who_may_only_read_has_no_lock_alone() {
    for medium in ALL {
        let mut owner = Owner::new(medium, Mode::Fail, 1);
        let memory = Memory::pooled(owner.world.pool.take(64).unwrap());
        let exposed = owner.world.nodes[0].endpoint.expose(memory, false, Audience::Everybody);
        owner.key = exposed.unwrap();
        owner.ask(1, true);
        assert_eq!(owner.world.take(1, LOCK).outcome, Err(Fault::BadKey), "{}", owner.context);
        let lock = owner.ask(1, false);
        owner.take(1);
        owner.release(1, lock);
    }
}
