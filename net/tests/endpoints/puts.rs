//! Puts: judged as a whole, applied once, told of, over every medium.

use crate::common::{self, ALL, Medium, World};
use ropewalk_base::error::Fault;
use ropewalk_base::limits::REMOTE_SEGMENTS_MAX;
use ropewalk_base::random::Random;
use ropewalk_base::verb::{RemoteKey, RemoteLayout, RemoteSegment};
use ropewalk_net::{Audience, Direction, Mode, OperationId, PeerId, Posted};
use ropewalk_rail_sim::Path;

const REGION: usize = 2 << 20;

/// Two endpoints, of which the second one exposes a region.
struct Target {
    world: World,
    to: PeerId,
    key: RemoteKey,
}

impl Target {
    fn new(medium: Medium, mode: Mode) -> Target {
        let mut world = World::new(medium);
        world.mode = mode;
        world.add();
        world.add();
        let to = world.peer(0, 1);
        let region = world.memory(REGION, 9);
        let key = world.nodes[1].endpoint.expose(region, true, Audience::Everybody).unwrap();
        Target { world, to, key }
    }

    fn access(
        &mut self,
        direction: Direction,
        remote: RemoteLayout,
        (len, seed): (usize, u8),
        user: u64,
    ) -> Option<OperationId> {
        let memory = self.world.memory(len, seed);
        let node = &self.world.nodes[0];
        let (endpoint, context) = (&node.endpoint, &node.context);
        let posted =
            endpoint.post_access(context, direction, self.to, self.key, remote, memory, user);
        let operation = match &posted {
            Ok(Posted::Pending(operation)) => Some(*operation),
            _ => None,
        };
        self.world.posted(0, posted);
        operation
    }

    fn put(&mut self, at: u64, len: usize, seed: u8, user: u64) -> Option<OperationId> {
        self.access(Direction::Put, RemoteLayout::At(at), (len, seed), user)
    }

    /// The region's bytes from an offset on, as a get has them.
    fn bytes(&mut self, at: u64, len: usize) -> Vec<u8> {
        const USER: u64 = u64::MAX;
        self.access(Direction::Get, RemoteLayout::At(at), (len, 0), USER);
        let got = self.world.take(0, USER);
        assert_eq!(got.outcome, Ok(()), "{:?}", self.world.medium);
        got.memory.into_pooled().unwrap().to_vec()
    }
}

fn pattern(range: std::ops::Range<usize>, seed: u8) -> Vec<u8> {
    range.map(|index| common::pattern(index, seed)).collect()
}

#[test]
fn a_put_of_which_the_last_bytes_lie_outside_has_written_nothing() {
    for medium in ALL {
        for mode in [Mode::Fail, Mode::Resume] {
            let mut target = Target::new(medium, mode);
            let at = (REGION - 700_000 + 5) as u64;
            target.put(at, 700_000, 1, 1);
            assert_eq!(target.world.take(0, 1).outcome, Err(Fault::BadKey), "{medium:?}");
            let before = pattern(REGION - 700_000..REGION, 9);
            assert!(target.bytes(at - 5, 700_000) == before, "{medium:?} {mode:?}: bytes changed");
            // Its number stands in nobody's way.
            for user in 2..1500 {
                target.put(8 * user, 8, user as u8, user);
            }
            (2..1500).for_each(|user| assert_eq!(target.world.take(0, user).outcome, Ok(())));
            target.world.nodes.iter().for_each(|node| node.endpoint.check());
        }
    }
}

/// Each segment of a list is judged alone, since no frame names the whole list.
#[test]
fn a_list_of_which_a_segment_lies_outside_is_refused_and_may_have_written_the_others() {
    for medium in ALL {
        for mode in [Mode::Fail, Mode::Resume] {
            let mut target = Target::new(medium, mode);
            let before = target.bytes(0, REGION);
            let segment = |offset| RemoteSegment { offset, len: 100 };
            let list = [segment(0), segment(REGION as u64 - 99), segment(500)];
            let layout = RemoteLayout::List(list.into_iter().collect());
            target.access(Direction::Put, layout, (300, 1), 1);
            assert_eq!(target.world.take(0, 1).outcome, Err(Fault::BadKey), "{medium:?}");
            target.world.nodes.iter().for_each(|node| node.endpoint.check());
            let after = target.bytes(0, REGION);
            let changes = |range: std::ops::Range<usize>| after[range.clone()] != before[range];
            let inside = [100..500, 600..REGION - 99, REGION - 99..REGION];
            assert!(!inside.into_iter().any(changes), "{medium:?}: bytes of no segment changed");
        }
    }
}

#[test]
fn puts_of_lists_wait_for_numbers_and_all_of_them_arrive() {
    const PUTS: u64 = 6;
    const SEGMENTS: u64 = REMOTE_SEGMENTS_MAX as u64;
    for medium in ALL {
        let mut target = Target::new(medium, Mode::Fail);
        for user in 0..PUTS {
            let segment = |it| RemoteSegment { offset: (it * PUTS + user) * 300, len: it % 290 };
            let list = (0..SEGMENTS).map(segment).collect();
            let len = (0..SEGMENTS).map(|it| it % 290).sum::<u64>() as usize;
            target.access(Direction::Put, RemoteLayout::List(list), (len, user as u8), user);
        }
        for user in 0..PUTS {
            assert_eq!(target.world.take(0, user).outcome, Ok(()), "{medium:?}");
        }
        let all = target.bytes(0, (PUTS * SEGMENTS * 300) as usize);
        for user in 0..PUTS {
            let mut within = 0;
            for it in 0..SEGMENTS {
                let (from, len) = (((it * PUTS + user) * 300) as usize, (it % 290) as usize);
                let expected = pattern(within..within + len, user as u8);
                assert!(all[from..from + len] == expected, "{medium:?}: {it} of {user}");
                within += len;
            }
        }
        target.world.nodes.iter().for_each(|node| node.endpoint.check());
    }
}

#[test]
fn a_short_put_does_not_wait_for_the_bytes_of_a_long_one() {
    for medium in [Medium::Tcp, Medium::SimStream, Medium::SimDatagram, Medium::Udp] {
        for mode in [Mode::Fail, Mode::Resume] {
            let mut target = Target::new(medium, mode);
            target.put(0, 8, 1, 1);
            target.world.take(0, 1);
            target.put(4096, REGION - 4096, 2, 2);
            target.put(8, 8, 3, 3);
            target.world.until("completion", |world| !world.nodes[0].done.is_empty());
            let first = target.world.nodes[0].done[0].user;
            assert_eq!(first, 3, "{medium:?} {mode:?}: the long one came first");
            assert_eq!(target.world.take(0, 2).outcome, Ok(()));
            assert_eq!(target.bytes(0, 16), [pattern(0..8, 1), pattern(0..8, 3)].concat());
        }
    }
}

#[test]
fn cancelled_puts_leave_no_number_open() {
    let mut ended = 0;
    for medium in ALL {
        for seed in 0..4 {
            let mode = if seed % 2 == 0 { Mode::Fail } else { Mode::Resume };
            let mut target = Target::new(medium, mode);
            let mut random = Random::from_seed(seed);
            for user in 0..400 {
                let len = [8, 3000, 100_000, 700_000][random.below(4) as usize];
                let operation = target.put(random.below(1000), len, 5, user);
                (0..random.below(4)).for_each(|_| target.world.step());
                if let Some(operation) = operation.filter(|_| random.below(3) > 0) {
                    target.world.nodes[0].endpoint.cancel(operation);
                    ended += 1;
                }
                target.world.nodes.iter().for_each(|node| node.endpoint.check());
            }
            for user in 0..400 {
                let outcome = target.world.take(0, user).outcome;
                assert!(
                    matches!(outcome, Ok(()) | Err(Fault::Cancelled)),
                    "{medium:?} {outcome:?}"
                );
            }
            // More than a peer keeps apart.
            for user in 1000..3000 {
                target.put(8 * user, 8, user as u8, user);
            }
            for user in 1000..3000 {
                assert_eq!(target.world.take(0, user).outcome, Ok(()), "{medium:?}");
                assert_eq!(target.bytes(8 * user, 8), pattern(0..8, user as u8), "{medium:?}");
            }
        }
    }
    assert!(ended > 5000, "{ended} were cancelled");
}

/// Nobody promises which bytes stay; but nothing was damaged on the way.
#[test]
fn two_who_put_the_same_bytes_at_once_keep_their_sessions() {
    for medium in ALL {
        for mode in [Mode::Fail, Mode::Resume] {
            let mut target = Target::new(medium, mode);
            target.world.add();
            let (to, key) = (target.world.peer(2, 1), target.key);
            for round in 0..20 {
                for user in 0..10 {
                    let len = [8, 3000, 64 << 10, 300_000][(user as usize + round) % 4];
                    // A get meets puts of the other one, too.
                    match user % 3 {
                        2 => target.access(Direction::Get, RemoteLayout::At(64), (len, 0), user),
                        _ => target.put(64, len, 1, user),
                    };
                    let memory = target.world.memory(len, 2);
                    let node = &target.world.nodes[2];
                    let (endpoint, context, at) =
                        (&node.endpoint, &node.context, RemoteLayout::At(64));
                    let put = Direction::Put;
                    let posted = endpoint.post_access(context, put, to, key, at, memory, user);
                    target.world.posted(2, posted);
                }
                for origin in [0, 2] {
                    for user in 0..10 {
                        let outcome = target.world.take(origin, user).outcome;
                        assert_eq!(outcome, Ok(()), "{medium:?} {mode:?} {round}");
                    }
                }
            }
            target.world.nodes.iter().for_each(|node| node.endpoint.check());
        }
    }
}

#[test]
fn a_put_that_is_refused_is_not_taken_for_one_of_those_behind_it() {
    for seed in 0..4 {
        let mut target = Target::new(Medium::SimDatagram, [Mode::Fail, Mode::Resume][seed % 2]);
        // A mark overtakes the refusals before it.
        let path = Path { reordering: 200_000, ..Path::default() };
        target.world.network.set_default_path(path);
        let is_refused = |user: u64| user % 3 == seed as u64 % 3;
        for user in 0..600 {
            let at = if is_refused(user) { REGION as u64 - 3 } else { 8 * user };
            target.put(at, 8, user as u8, user);
            (0..user % 4).for_each(|_| target.world.step());
        }
        for user in 0..600 {
            let expected = if is_refused(user) { Err(Fault::BadKey) } else { Ok(()) };
            assert_eq!(target.world.take(0, user).outcome, expected, "{seed}: {user}");
        }
        target.world.nodes.iter().for_each(|node| node.endpoint.check());
    }
}
