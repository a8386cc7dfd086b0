//! Regions by name, and for groups of peers, over every medium.

use crate::common::{self, ALL, Medium, World};
use ropewalk_base::error::Fault;
use ropewalk_base::memory::{Change, Element, Memory, Operator, Update};
use ropewalk_base::verb::{RemoteKey, RemoteLayout, RemoteSegment};
use ropewalk_net::{
    Atomic, Audience, Completed, Direction, Exposed, Exposing, Member, Mode, Naming, PeerId, Raise,
};

const REGION: usize = 1 << 20;
const MODES: [Mode; 2] = [Mode::Fail, Mode::Resume];

/// Memory of the first endpoint for others.
fn expose(
    world: &World,
    audience: Audience,
    writable: bool,
    naming: Naming,
) -> Result<Exposed, Fault> {
    let terms = Exposing { naming, ..Exposing::to(audience, writable) };
    let memory = world.memory(REGION, 9);
    world.nodes[0].endpoint.expose_as(memory, terms).map_err(|(_, fault)| fault)
}

/// An access of an endpoint, to its end.
fn access(
    world: &mut World,
    from: usize,
    to: PeerId,
    key: RemoteKey,
    (direction, remote, len): (Direction, RemoteLayout, usize),
) -> Completed {
    const USER: u64 = 7000;
    let memory = world.memory(len, 77);
    let node = &world.nodes[from];
    let (endpoint, context) = (&node.endpoint, &node.context);
    let posted = endpoint.post_access(context, direction, to, key, remote, memory, USER);
    world.posted(from, posted);
    world.take(from, USER)
}

fn put(world: &mut World, from: usize, to: PeerId, key: RemoteKey) -> Result<(), Fault> {
    access(world, from, to, key, (Direction::Put, RemoteLayout::At(5), 300)).outcome
}

fn get(world: &mut World, from: usize, to: PeerId, key: RemoteKey) -> Result<(), Fault> {
    access(world, from, to, key, (Direction::Get, RemoteLayout::At(5), 300)).outcome
}

/// The first endpoint, as each one knows it.
fn worlds(medium: Medium, mode: Mode, others: usize) -> (World, Vec<PeerId>) {
    let mut world = World::new(medium);
    world.mode = mode;
    (0..=others).for_each(|_| {
        world.add();
    });
    let own = world.nodes[0].endpoint.own_peer().unwrap();
    let to = (0..=others).map(|it| if it == 0 { own } else { world.peer(it, 0) }).collect();
    (world, to)
}

#[test]
fn a_name_that_nobody_was_told_does_for_every_kind_of_access() {
    const NAME: u64 = 42;
    for medium in ALL {
        for mode in MODES {
            let (mut world, to) = worlds(medium, mode, 1);
            let key = RemoteKey::named(NAME);
            for from in [1, 0] {
                let case = format!("{medium:?} {mode:?} {from}");
                assert_eq!(put(&mut world, from, to[from], key), Err(Fault::BadKey), "{case}");
                let exposed = expose(&world, Audience::Everybody, true, Naming::Given(NAME));
                assert_eq!(exposed.unwrap().name, Some(NAME));
                let long = (Direction::Put, RemoteLayout::At(1000), 700_000);
                assert_eq!(access(&mut world, from, to[from], key, long).outcome, Ok(()), "{case}");
                let segments = [(1000, 10), (500_000, 90_000), (3, 5)];
                let list = segments.map(|(offset, len)| RemoteSegment { offset, len });
                let got = (Direction::Get, RemoteLayout::List(list.into()), 90_015);
                let got = access(&mut world, from, to[from], key, got);
                assert_eq!(got.outcome, Ok(()), "{case}");
                let bytes = got.memory.into_pooled().unwrap();
                let placed = |at: usize| match at {
                    1000.. => common::pattern(at - 1000, 77),
                    _ => common::pattern(at, 9),
                };
                let places = segments.iter().flat_map(|(at, len)| *at..*at + *len);
                let expected = places.map(|at| placed(at as usize));
                assert!(bytes.iter().copied().eq(expected), "{case}: other bytes");
                let beyond = (Direction::Get, RemoteLayout::At(REGION as u64 - 5), 6);
                let beyond = access(&mut world, from, to[from], key, beyond);
                assert_eq!(beyond.outcome, Err(Fault::BadKey), "{case}");
                changes(&mut world, from, to[from], key, &case);
                let node = &world.nodes[0];
                node.endpoint.unexpose(exposed.unwrap().key, &node.context, 50).unwrap();
                assert_eq!(world.take(0, 50).memory.len(), REGION as u64);
                assert_eq!(get(&mut world, from, to[from], key), Err(Fault::BadKey), "{case}");
            }
            world.nodes.iter().for_each(|node| node.endpoint.check());
        }
    }
}

/// Atomics, updates, locks and notices by a key.
fn changes(world: &mut World, from: usize, to: PeerId, key: RemoteKey, case: &str) {
    let update = Update::new(Element::U64, Operator::Sum).unwrap();
    let change = Change::One { update, operand: 5u64.to_le_bytes() };
    let atomic = Atomic { change, fetch: true, token: false };
    let before = |world: &mut World, user| {
        let node = &world.nodes[from];
        let posted = node.endpoint.post_atomic(&node.context, to, key, 64, atomic, user);
        world.posted(from, posted.map_err(|fault| (Memory::empty(), fault)));
        let ended = world.take(from, user);
        assert_eq!(ended.outcome, Ok(()), "{case}");
        ended.bits
    };
    let first = before(world, 1);
    assert_eq!(before(world, 2), first + 5, "{case}");
    let memory = world.memory(4096, 3);
    let node = &world.nodes[from];
    let what = (update, false);
    world.posted(from, node.endpoint.post_update(&node.context, to, key, 4096, what, memory, 3));
    assert_eq!(world.take(from, 3).outcome, Ok(()), "{case}");
    let raise = Raise { word: 0, value: 1, to: false };
    let memory = world.memory(100, 3);
    let node = &world.nodes[from];
    let posted = node.endpoint.post_notify(&node.context, to, key, 0, (raise, true), memory, 4);
    world.posted(from, posted);
    assert_eq!(world.take(from, 4).outcome, Ok(()), "{case}");
    for user in [5, 6] {
        let node = &world.nodes[from];
        let posted = node.endpoint.post_lock(&node.context, to, key, true, user).unwrap();
        let lock = match posted {
            ropewalk_net::Posted::Pending(lock) => {
                assert_eq!(world.take(from, user).outcome, Ok(()), "{case}");
                lock
            }
            ropewalk_net::Posted::Done(completed) => completed.operation,
        };
        let node = &world.nodes[from];
        let posted = node.endpoint.post_unlock(&node.context, to, key, lock, 10 + user);
        world.posted(from, posted.map_err(|fault| (Memory::empty(), fault)));
        assert_eq!(world.take(from, 10 + user).outcome, Ok(()), "{case}");
    }
}

#[test]
fn a_name_is_given_once_and_is_free_when_its_region_ends() {
    let (mut world, to) = worlds(Medium::Loop, Mode::Fail, 1);
    let everybody = Audience::Everybody;
    let first = expose(&world, everybody, true, Naming::Given(0)).unwrap();
    let taken = expose(&world, everybody, true, Naming::Given(0));
    assert_eq!(taken, Err(Fault::NameTaken));
    let chosen: Vec<_> = (0..50)
        .map(|_| expose(&world, everybody, true, Naming::Chosen).unwrap().name.unwrap())
        .collect();
    let mut distinct = chosen.clone();
    distinct.sort_unstable();
    distinct.dedup();
    assert_eq!(distinct.len(), 50);
    assert_eq!(put(&mut world, 1, to[1], RemoteKey::named(chosen[7])), Ok(()));
    let taken = expose(&world, everybody, true, Naming::Given(chosen[7]));
    assert_eq!(taken, Err(Fault::NameTaken));
    let nameless = expose(&world, everybody, true, Naming::Nameless).unwrap();
    assert_eq!(nameless.name, None);
    let node = &world.nodes[0];
    node.endpoint.unexpose(first.key, &node.context, 1).unwrap();
    let again = expose(&world, everybody, false, Naming::Given(0)).unwrap();
    assert_ne!(again.key, first.key);
    // It may be read now, and not be written any more.
    assert_eq!(put(&mut world, 1, to[1], RemoteKey::named(0)), Err(Fault::BadKey));
    assert_eq!(get(&mut world, 1, to[1], RemoteKey::named(0)), Ok(()));
    let node = &world.nodes[0];
    let unnamed = node.endpoint.unexpose(RemoteKey::named(0), &node.context, 2);
    assert_eq!(unnamed, Err(Fault::BadKey), "a name is no key to end a region by");
}

#[test]
fn a_region_of_a_group_is_for_its_members_alone() {
    for medium in ALL {
        for by_number in [true, false] {
            let (mut world, to) = worlds(medium, Mode::Fail, 3);
            let member = |world: &World, it: usize| match by_number {
                true => Member::Endpoint(world.nodes[it].endpoint.identity().endpoint),
                false => Member::Peer(world.peer(0, it)),
            };
            let members = [member(&world, 1), member(&world, 3), member(&world, 1)];
            let group = world.nodes[0].endpoint.add_group(&members).unwrap();
            if !by_number {
                let peers = [1, 3].map(|it| world.peer(0, it));
                world.until("members", |world| {
                    let endpoint = &world.nodes[0].endpoint;
                    peers.iter().all(|peer| endpoint.peer_endpoint(*peer).is_some())
                });
            }
            let exposed = expose(&world, Audience::Group(group), true, Naming::Given(5)).unwrap();
            for key in [exposed.key, RemoteKey::named(5)] {
                for from in [1, 2, 3, 0] {
                    let case = format!("{medium:?} {by_number} {from} {key:?}");
                    let expected = if from % 2 == 1 { Ok(()) } else { Err(Fault::BadKey) };
                    assert_eq!(put(&mut world, from, to[from], key), expected, "{case}");
                    assert_eq!(get(&mut world, from, to[from], key), expected, "{case}");
                }
            }
            // The group goes with its last region.
            let node = &world.nodes[0];
            node.endpoint.drop_group(group);
            let late = expose(&world, Audience::Group(group), true, Naming::Nameless);
            assert_eq!(late, Err(Fault::Invalid));
            assert_eq!(put(&mut world, 3, to[3], exposed.key), Ok(()));
            let node = &world.nodes[0];
            node.endpoint.unexpose(exposed.key, &node.context, 50).unwrap();
            assert_eq!(world.take(0, 50).memory.len(), REGION as u64);
            assert_eq!(put(&mut world, 3, to[3], exposed.key), Err(Fault::BadKey));
            world.nodes.iter().for_each(|node| node.endpoint.check());
        }
    }
}

#[test]
fn a_member_that_had_called_before_its_address_was_looked_up_is_recognized() {
    for medium in ALL {
        let (mut world, to) = worlds(medium, Mode::Fail, 1);
        let open = expose(&world, Audience::Everybody, true, Naming::Nameless).unwrap();
        assert_eq!(put(&mut world, 1, to[1], open.key), Ok(()), "a session runs");
        let member = world.peer(0, 1);
        let group = world.nodes[0].endpoint.add_group(&[Member::Peer(member)]).unwrap();
        let exposed = expose(&world, Audience::Group(group), true, Naming::Given(1)).unwrap();
        let endpoint = world.nodes[1].endpoint.identity().endpoint;
        world.until("recognition", |world| {
            world.nodes[0].endpoint.peer_endpoint(member) == Some(endpoint)
        });
        assert_eq!(put(&mut world, 1, to[1], exposed.key), Ok(()), "{medium:?}");
        assert_eq!(get(&mut world, 1, to[1], exposed.key), Ok(()), "{medium:?}");
    }
}
