//! The modules called by hand, in legal orders and in others.

use std::time::Duration;

use ropewalk_base::verb::RemoteLayout;
use ropewalk_net::migration::MigrationState::{Armed, Migrated, Rearm};
use ropewalk_net::migration::{
    By, Health, MoveCause, Outcome, PathEnds, PathEntry, PathId, Policy, Role, Rule, Side, Wanted,
    What,
};
use ropewalk_net::{Audience, Direction, Posted};
use ropewalk_rail_sim::Cut;

use crate::world::{FIRST, LEN, Setup, World, name};

/// Loads the alternate of a node by hand, and waits for its end.
fn load(world: &mut World, at: usize) -> Outcome {
    let peer = world.peer(at, 1 - at);
    let mut loads = world.nodes[at].endpoint.load_paths(&[peer], By::Poll);
    world.until("the load", |world| world.nodes[at].endpoint.poll_loads(&mut loads) == 0);
    let (of, end) = loads.ends().next().expect("one peer");
    assert_eq!(of, peer);
    end.expect("it ended")
}

/// The other path of a pair.
fn second(world: &World) -> PathId {
    world.roles(0, 1).iter().map(|(path, _)| *path).find(|path| *path != FIRST).expect("two")
}

#[test]
fn a_path_is_specified_loaded_and_migrated_to_by_hand_under_traffic_both_ways() {
    for seed in 0..8 {
        let mut world = World::met(seed, Setup::pair(Policy::Nothing));
        let other = second(&world);
        let before = (world.known(0, 1), world.known(1, 0));
        let ends = world.nodes[0].endpoint.path_entries(before.0);
        assert_eq!((world.primary(0), world.primary(1), ends.len()), (FIRST, FIRST, 2));
        let region = ropewalk_base::memory::Memory::constant(&[7; LEN]);
        let key = world.nodes[1].endpoint.expose(region, false, Audience::Everybody).unwrap();
        world.traffic(10);
        let mover = seed as usize % 2;
        assert_eq!(world.specify(mover), other);
        assert!(world.both_are(Migrated));
        assert_eq!(load(&mut world, mover), Outcome::Armed { path: other });
        world.until("both armed", |world| world.both_are(Armed));
        world.traffic(10);
        let peer = world.peer(mover, 1 - mover);
        assert_eq!(world.nodes[mover].endpoint.migrate_path(peer), Ok(other));
        assert_eq!(world.primary(mover), other);
        let stall = world.traffic(10);
        assert!(stall < Duration::from_millis(5), "seed {seed}: {stall:?}");
        assert!(world.both_are(Migrated) && world.primary(1 - mover) == other);
        for node in 0..2 {
            let by = if mover == 0 { Side::Lower } else { Side::Higher };
            let cause = if node == mover { MoveCause::Manual } else { MoveCause::Decided(by) };
            let migrated = What::Migrated { from: FIRST, to: other, cause, counter: 1 };
            assert!(world.nodes[node].whats().contains(&migrated), "seed {seed}");
            let armed = What::Armed { path: other };
            assert_eq!(world.nodes[node].count(|what| *what == armed), 1, "seed {seed}");
        }
        // All that goes from now on goes over the second rails.
        let bytes = [world.bytes(0), world.bytes(1)];
        world.traffic(20);
        for (node, bytes) in bytes.iter().enumerate() {
            let after = world.bytes(node);
            assert!(after[0] < bytes[0] + LEN as u64, "seed {seed}: no message goes over it");
            assert!(after[1] >= bytes[1] + 20 * LEN as u64, "seed {seed}");
        }
        // Names and keys are what they were.
        assert_eq!((world.known(0, 1), world.known(1, 0)), before, "seed {seed}");
        let memory = ropewalk_base::memory::Memory::pooled(
            ropewalk_base::pool::Pool::with_budget(1 << 16).take(LEN).unwrap(),
        );
        let node = &world.nodes[0];
        let at = RemoteLayout::At(0);
        let get = Direction::Get;
        let posted =
            node.endpoint.post_access(&node.context, get, before.0, key, at, memory, 99).unwrap();
        assert!(matches!(posted, Posted::Pending(_)));
        world.until("the get", |world| world.nodes[0].done.iter().any(|it| it.user == 99));
        let got = world.nodes[0].done.pop_back().unwrap();
        assert_eq!((got.outcome, got.bytes), (Ok(()), LEN as u64));
        world.verify();
    }
}

/// One thread that drives hundreds of endpoints makes a pass of each now and then. If armings that take longer for that needed
/// more frames, they would take longer yet.
#[test]
fn an_arming_needs_no_more_frames_where_passes_are_rare() {
    // A pass each so many milliseconds; and paths over which nothing goes are looked at each 100 ms, and each second.
    for (every, idle) in [1, 4, 8, 12, 16].into_iter().flat_map(|every| [(every, 30), (every, 600)])
    {
        let mut world = World::met(every, Setup::pair(Policy::Nothing));
        world.wait(Duration::from_millis(idle));
        let peer = world.peer(0, 1);
        let armed = What::Armed { path: world.specify(0) };
        let before = world.frames();
        let mut loads = world.nodes[0].endpoint.load_paths(&[peer], By::Poll);
        let mut passes = 0;
        while world.nodes[0].endpoint.poll_loads(&mut loads) > 0
            || world.nodes[1].count(|what| *what == armed) == 0
        {
            world.step_rarely(Duration::from_millis(every));
            passes += 1;
            assert!(passes < 100, "{every} ms: {:?}", world.roles(0, 1));
        }
        // Two loads, four probes, an answer to each, and the word that all came back.
        let frames = world.frames() - before;
        assert_eq!(frames, 13, "a pass each {every} ms, after {idle} ms");
    }
}

#[test]
fn the_way_back_is_loaded_without_another_choice() {
    let mut world = World::met(1, Setup::pair(Policy::Nothing));
    let other = second(&world);
    world.specify(0);
    for round in 0..6 {
        let (to, from) = if round % 2 == 0 { (other, FIRST) } else { (FIRST, other) };
        assert_eq!(load(&mut world, 0), Outcome::Armed { path: to });
        let peer = world.peer(0, 1);
        assert_eq!(world.nodes[0].endpoint.migrate_path(peer), Ok(to));
        world.traffic(5);
        assert!(world.primary(0) == to && world.primary(1) == to);
        assert!(world.roles(1, 0).contains(&(from, Role::Alternate)));
    }
    assert_eq!((world.nodes[0].migrations(), world.nodes[1].migrations()), (6, 6));
    world.verify();
}

#[test]
fn a_list_of_peers_is_loaded_as_soon_as_they_are_called_and_each_has_an_end_of_its_own() {
    for by in [By::Poll, By::Event] {
        let setup = Setup { nodes: 5, ..Setup::pair(Policy::Nothing) };
        let mut world = World::new(3, setup);
        let peers: Vec<_> = (1..5).map(|other| world.peer(0, other)).collect();
        // Three are called, one is not.
        peers[..3].iter().for_each(|peer| world.nodes[0].endpoint.connect(*peer));
        let mut loads = world.nodes[0].endpoint.load_paths(&peers, by);
        let armed = |outcome: Option<Outcome>| matches!(outcome, Some(Outcome::Armed { .. }));
        if by == By::Poll {
            world.until("the loads", |world| world.nodes[0].endpoint.poll_loads(&mut loads) == 0);
            let ends: Vec<_> = loads.ends().collect();
            assert!(ends.iter().zip(&peers).all(|((of, _), peer)| of == peer));
            assert!(ends[..3].iter().all(|(_, end)| armed(*end)), "{ends:?}");
            assert_eq!(ends[3].1, Some(Outcome::Refused(Rule::NoConnection)));
            continue;
        }
        world.until("four ends", |world| {
            world.nodes[0].count(|what| matches!(what, What::Done { .. })) == 4
        });
        for (place, peer) in peers.iter().enumerate() {
            let ends = world.nodes[0].events.iter().filter(|event| event.peer == *peer);
            let ends: Vec<_> = ends
                .filter_map(|event| match event.what {
                    What::Done { outcome, .. } => Some(outcome),
                    _ => None,
                })
                .collect();
            assert_eq!(ends.len(), 1);
            assert_eq!(armed(Some(ends[0])), place < 3, "{ends:?}");
        }
        world.verify();
    }
}

#[test]
fn a_load_of_a_peer_that_gives_no_second_path_or_is_not_reached_ends_too() {
    let setup = Setup { rails: 1, ..Setup::pair(Policy::Nothing) };
    let mut world = World::new(1, setup);
    let peer = world.peer(0, 1);
    world.nodes[0].endpoint.connect(peer);
    assert_eq!(load(&mut world, 0), Outcome::Refused(Rule::NoAlternate));
    // The same where paths are taken, and there is no rail for another one.
    let mut world = World::new(1, Setup { rails: 2, ..setup });
    world.network.change_path("n0-1", "n1-1", |path| path.refuse = true);
    world.network.change_path("n0-1", "n1-0", |path| path.refuse = true);
    let peer = world.peer(0, 1);
    world.nodes[0].endpoint.connect(peer);
    assert_eq!(load(&mut world, 0), Outcome::Refused(Rule::NoAlternate));
    world.verify();
}

#[test]
fn a_request_out_of_turn_is_refused_by_its_rule_and_changes_nothing() {
    let mut world = World::new(2, Setup::pair(Policy::Nothing));
    let (ours, theirs) = (world.peer(0, 1), world.peer(1, 0));
    let any = Wanted::default();
    let endpoint = world.nodes[0].endpoint.clone();
    let refused = |rule: Rule| {
        assert_eq!(endpoint.specify_path(ours, any), Err(rule));
        assert_eq!(endpoint.migrate_path(ours), Err(rule));
        assert_eq!(endpoint.drain_path(ours, FIRST), Err(rule));
        assert_eq!(endpoint.up_path(ours, FIRST), Err(rule));
        assert_eq!(endpoint.weigh_path(ours, FIRST, 5), Err(rule));
    };
    refused(Rule::NoConnection);
    assert_eq!(load(&mut world, 0), Outcome::Refused(Rule::NoConnection));
    endpoint.connect(ours);
    assert_eq!(endpoint.specify_path(ours, any), Err(Rule::NoRoute), "no path is known yet");
    assert_eq!(endpoint.migrate_path(ours), Err(Rule::NotYet));
    drop(world);

    let mut world = World::met(2, Setup::pair(Policy::Nothing));
    let (endpoint, other) = (world.nodes[0].endpoint.clone(), second(&world));
    let roles = world.roles(0, 1);
    assert_eq!(load(&mut world, 0), Outcome::Refused(Rule::NoAlternate));
    assert_eq!(endpoint.migrate_path(ours), Err(Rule::NotArmed));
    let given = |rail| Wanted { local_rail: Some(rail), ..any };
    assert_eq!(endpoint.specify_path(ours, given(9)), Err(Rule::NoRoute));
    assert_eq!(endpoint.specify_path(ours, given(0)), Err(Rule::IsPrimary));
    let large = Wanted { mtu_bytes_min: u32::MAX, ..any };
    assert_eq!(endpoint.specify_path(ours, large), Err(Rule::Mtu));
    for path in [PathId(8), PathId(u32::MAX)] {
        assert_eq!(endpoint.drain_path(ours, path), Err(Rule::UnknownPath));
        assert_eq!(endpoint.up_path(ours, path), Err(Rule::UnknownPath));
        assert_eq!(endpoint.weigh_path(ours, path, 1), Err(Rule::UnknownPath));
    }
    assert_eq!(endpoint.drain_path(ours, FIRST), Err(Rule::LastPath), "no other one is proven");
    assert_eq!(endpoint.up_path(ours, other), Err(Rule::NotDrained));
    assert_eq!(endpoint.weigh_path(ours, other, 1001), Err(Rule::WeightRange));
    assert_eq!((world.roles(0, 1), world.state(0, 1)), (roles, Migrated));
    endpoint.specify_path(ours, any).unwrap();
    let loads = endpoint.load_paths(&[ours], By::Event);
    assert_eq!((loads.ends().count(), world.state(0, 1)), (1, Rearm));
    assert_eq!(endpoint.specify_path(ours, any), Err(Rule::Loading));
    assert_eq!(endpoint.migrate_path(ours), Err(Rule::NotArmed));
    assert_eq!(load(&mut world, 0), Outcome::Refused(Rule::Loading));
    world.until("both armed", |world| world.both_are(Armed));
    assert_eq!(endpoint.specify_path(ours, any), Err(Rule::Loaded));
    assert_eq!(load(&mut world, 0), Outcome::Refused(Rule::Loaded));
    assert_eq!(world.nodes[1].endpoint.specify_path(theirs, any), Err(Rule::Loaded));
    world.verify();
}

#[test]
fn a_drained_path_carries_no_data_of_either_side_until_it_is_up_again() {
    for seed in 0..4 {
        let mut world = World::met(seed, Setup::pair(Policy::KeepArmed));
        let (other, at) = (second(&world), seed as usize % 2);
        let (peer, endpoint) = (world.peer(at, 1 - at), world.nodes[at].endpoint.clone());
        world.until("both armed", |world| world.both_are(Armed));
        world.traffic(5);
        endpoint.drain_path(peer, FIRST).unwrap();
        let stall = world.traffic(10);
        assert!(stall < Duration::from_millis(5), "seed {seed}: {stall:?}");
        for node in 0..2 {
            assert_eq!(
                world.roles(node, 1 - node),
                [(FIRST, Role::Drained), (other, Role::Primary)]
            );
        }
        let bytes = [world.bytes(0)[0], world.bytes(1)[0]];
        world.traffic(30);
        for (node, bytes) in bytes.iter().enumerate() {
            assert!(world.bytes(node)[0] < bytes + LEN as u64, "seed {seed}: probes alone");
        }
        assert_eq!(endpoint.drain_path(peer, FIRST), Err(Rule::IsDrained));
        assert_eq!(endpoint.drain_path(peer, other), Err(Rule::LastPath));
        endpoint.weigh_path(peer, FIRST, 10).unwrap();
        endpoint.up_path(peer, FIRST).unwrap();
        // The policy loads it, and so the other side knows.
        world.until("both armed", |world| world.both_are(Armed));
        assert!(world.roles(1 - at, at).contains(&(FIRST, Role::Alternate)), "seed {seed}");
        let weight = endpoint.path_entries(peer)[0].0.weight;
        assert_eq!(weight, 10);
        endpoint.migrate_path(peer).unwrap();
        world.traffic(10);
        assert!(world.primary(0) == FIRST && world.primary(1) == FIRST, "seed {seed}");
        world.verify();
    }
}

/// The path over a rail of a node, with its weight and role.
fn over_rail(world: &World, at: usize, rail: u8) -> Option<(PathId, u16, Role)> {
    let entries = world.nodes[at].endpoint.path_entries(world.peer(at, 1 - at));
    let found = entries.iter().find(|(entry, _)| entry.record.local_rail == rail);
    found.map(|(entry, role)| (entry.record.id, entry.weight, *role))
}

#[test]
fn a_drain_stays_with_its_rail_when_all_links_are_lost_and_the_session_goes_on_over_another() {
    for seed in 0..16 {
        let mut world = World::met(seed, Setup::pair(Policy::KeepArmed));
        let (at, drained) = (seed as usize % 2, seed as usize / 2 % 2);
        let (peer, endpoint) = (world.peer(at, 1 - at), world.nodes[at].endpoint.clone());
        world.part_rails();
        world.until("both armed", |world| world.both_are(Armed));
        let (path, ..) = over_rail(&world, at, drained as u8).expect("a path for each rail");
        endpoint.weigh_path(peer, path, 70).unwrap();
        endpoint.drain_path(peer, path).unwrap();
        world.traffic(20);
        // The drained rail goes away, and then the other one breaks off and comes back.
        world.block(drained, true);
        world.network.cut(&name(0, drained), &name(1, drained), Cut::Both);
        world.traffic(20);
        world.network.cut(&name(0, 1 - drained), &name(1, 1 - drained), Cut::Both);
        world.traffic(20);
        let used = over_rail(&world, at, 1 - drained as u8).expect("it carries");
        assert_eq!((used.1, used.2), (1000, Role::Primary), "seed {seed}");
        world.block(drained, false);
        world.until("the path over the drained rail", |world| {
            world.pass(0, 1);
            let is_up = |(entry, _): &(PathEntry, Role)| {
                entry.record.local_rail == drained as u8 && entry.health == Health::Good
            };
            world.nodes[at].endpoint.path_entries(world.peer(at, 1 - at)).iter().any(is_up)
        });
        world.traffic(20);
        let (path, weight, role) = over_rail(&world, at, drained as u8).expect("it joined again");
        assert_eq!((weight, role), (70, Role::Drained), "seed {seed}");
        // At the other end it may be another rail.
        let there = world.roles(1 - at, at);
        assert!(there.contains(&(path, Role::Drained)), "seed {seed}: {there:?}");
        let before = world.bytes(at)[drained];
        world.traffic(30);
        let sent = world.bytes(at)[drained] - before;
        assert!(sent < LEN as u64, "seed {seed}: {sent} bytes, and not only probes");
        endpoint.up_path(peer, path).unwrap();
        world.until("both armed", |world| world.both_are(Armed));
        world.verify();
    }
}

#[test]
fn a_path_that_both_sides_drained_is_armed_again_once_both_brought_it_up() {
    for seed in 0..8 {
        let mut world = World::met(seed, Setup::pair(Policy::KeepArmed));
        let other = second(&world);
        world.until("both armed", |world| world.both_are(Armed));
        let ends = [0, 1].map(|at| (world.nodes[at].endpoint.clone(), world.peer(at, 1 - at)));
        for (endpoint, peer) in &ends {
            endpoint.drain_path(*peer, other).unwrap();
        }
        world.traffic(5);
        // In one turn of the order, and the other.
        for at in [seed as usize % 2, 1 - seed as usize % 2] {
            let (endpoint, peer) = &ends[at];
            assert_eq!(world.roles(0, 1)[1], (other, Role::Drained), "seed {seed}");
            endpoint.up_path(*peer, other).unwrap();
            world.traffic(5);
        }
        world.until("both armed", |world| world.both_are(Armed));
        let told = |at: usize| -> Vec<&'static str> {
            let history = ends[at].0.path_history(0).events;
            let names = history.iter().map(|event| event.change.name());
            names.filter(|name| ["drained", "raised"].contains(name)).collect()
        };
        for at in [0, 1] {
            let mut told = told(at);
            told.sort_unstable();
            assert_eq!(told, ["drained", "drained", "raised", "raised"], "what both did is told");
        }
        world.verify();
    }
}

#[test]
fn an_operator_has_another_path_than_the_armed_one_whichever_side_armed_it() {
    for seed in 0..8 {
        let setup = Setup { rails: 3, ..Setup::pair(Policy::KeepArmed) };
        let (mut world, at) = (World::met(seed, setup), seed as usize % 2);
        world.until("three paths", |world| world.roles(at, 1 - at).len() == 3);
        world.until("both armed", |world| world.both_are(Armed));
        let (peer, endpoint) = (world.peer(at, 1 - at), world.nodes[at].endpoint.clone());
        let of = |world: &World, wanted: Role| {
            let roles = world.roles(at, 1 - at);
            roles.into_iter().find(|(_, role)| *role == wanted).map(|(path, _)| path)
        };
        let member = of(&world, Role::Member).expect("a third path");
        let ends = PathEnds { path: Some(member), ..PathEnds::default() };
        let (path, mut loads) = endpoint.replace_path_by(peer, &ends).expect("it is fit");
        assert_eq!(path, member);
        world.until("the load", |_| endpoint.poll_loads(&mut loads) == 0);
        let end = loads.ends().next().and_then(|(_, end)| end);
        assert_eq!(end, Some(Outcome::Armed { path: member }), "seed {seed}");
        assert_eq!(endpoint.migrate_path(peer), Ok(member));
        world.traffic(10);
        assert!(world.primary(0) == member && world.primary(1) == member, "seed {seed}");
        world.verify();
    }
}

#[test]
fn both_sides_may_load_and_move_at_once_and_end_with_the_same_roles() {
    for seed in 0..20 {
        let setup = Setup { rails: 3, ..Setup::pair(Policy::Nothing) };
        let mut world = World::met(seed, setup);
        let peers = [world.peer(0, 1), world.peer(1, 0)];
        let endpoints = [0, 1].map(|node| world.nodes[node].endpoint.clone());
        for round in 0..4 {
            for (node, (endpoint, peer)) in endpoints.iter().zip(peers).enumerate() {
                // Not the same path on both sides, if there are others.
                let wanted = (0..3u8).map(|rail| (rail + node as u8) % 3);
                let fit = |rail| {
                    let wanted = Wanted { local_rail: Some(rail), ..Wanted::default() };
                    endpoint.specify_path(peer, wanted).ok()
                };
                wanted.into_iter().find_map(fit).expect("one is fit");
            }
            let mut loads = [0, 1].map(|at| endpoints[at].load_paths(&[peers[at]], By::Poll));
            world.until("both loads", |_| {
                let left = [0, 1].map(|at| endpoints[at].poll_loads(&mut loads[at]));
                left == [0, 0]
            });
            world.until("both armed", |world| world.both_are(Armed));
            let moved = [0, 1].map(|at| endpoints[at].migrate_path(peers[at]));
            assert!(moved.iter().all(Result::is_ok), "seed {seed}: {moved:?}");
            world.traffic(5);
            assert!(world.both_are(Migrated), "seed {seed}, round {round}");
            assert_eq!(world.roles(0, 1), world.roles(1, 0), "seed {seed}, round {round}");
        }
        world.verify();
    }
}
