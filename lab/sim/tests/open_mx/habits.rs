//! Timers, windows and limits, as they are with Open-MX.

use std::time::Duration;

use ropewalk_sim::open_mx::*;
use ropewalk_wire::mxoe::{Dialect, Order, Type};

use crate::world::*;

fn world(seed: u64) -> World {
    let mut world = World::new(seed, 2, Dialect::native(1500, Order::Big).unwrap());
    world.join(0, 1);
    world
}

fn count(world: &World, host: usize, kind: Type) -> u64 {
    world.types[host].get(&(kind as u8)).copied().unwrap_or(0)
}

/// Lets everything that is sent now get lost.
fn lose(world: &mut World, what: impl FnOnce(&mut World)) {
    world.weather.loss = 1000;
    what(world);
    world.pass(Duration::from_micros(1));
    world.weather.loss = 0;
}

#[test]
fn acknowledgements_are_late_unless_four_are_owed() {
    let mut world = world(1);
    world.send(0, 1, 1, 10);
    world.pass(ACK_AFTER);
    assert_eq!(count(&world, 1, Type::Truc), 0);
    world.pass(Duration::from_millis(1));
    assert_eq!(count(&world, 1, Type::Truc), 1);
    (0..3).for_each(|id| {
        _ = world.send(0, 1, id, 10);
    });
    world.pass(Duration::from_millis(1));
    assert_eq!(count(&world, 1, Type::Truc), 1);
    world.send(0, 1, 3, 10);
    world.pass(Duration::from_millis(1));
    assert_eq!(count(&world, 1, Type::Truc), 2);
    // Packets that go there anyway carry the acknowledgement.
    world.send(0, 1, 4, 10);
    world.pass(Duration::from_millis(1));
    world.send(1, 0, 5, 10);
    world.pass(Duration::from_millis(30));
    assert_eq!((count(&world, 1, Type::Truc), count(&world, 0, Type::Truc)), (2, 1));
}

#[test]
fn a_message_comes_again_whole_after_half_a_second() {
    let mut world = world(2);
    let got = world.hosts[1].receive(0, 0, 10_000);
    lose(&mut world, |world| {
        _ = world.send(0, 1, 1, 10_000);
    });
    assert_eq!(count(&world, 0, Type::Medium), 7);
    world.pass(RESEND_AFTER - Duration::from_millis(1));
    assert_eq!(count(&world, 0, Type::Medium), 7);
    world.pass(Duration::from_millis(2));
    assert_eq!(world.ended[1][&got].data, pattern(1, 10_000));
    assert_eq!(count(&world, 0, Type::Medium), 14);
    // An acknowledgement that got lost is repeated as soon as the message comes again.
    world.weather.loss = 1000;
    world.pass(Duration::from_millis(20));
    world.weather.loss = 0;
    let acks = count(&world, 1, Type::Truc);
    world.pass(Duration::from_secs(2));
    assert_eq!(count(&world, 1, Type::Truc), acks + 1);
    assert_eq!(count(&world, 0, Type::Medium), 21);
}

#[test]
fn so_many_messages_wait_for_one_that_is_missing() {
    let mut world = world(3);
    lose(&mut world, |world| {
        _ = world.send(0, 1, 0, 10);
    });
    (1..300).for_each(|id| {
        _ = world.send(0, 1, id, 10);
    });
    world.pass(Duration::from_millis(100));
    assert_eq!(world.hosts[1].counters().obsolete, 299 - u64::from(EARLY_MAX));
    assert_eq!(count(&world, 1, Type::Truc), 0);
    world.pass(Duration::from_secs(1));
    for id in 0..300 {
        let got = world.hosts[1].receive(0, 0, 10);
        assert_eq!(world.end(1, got).match_info, id);
    }
}

#[test]
fn no_more_numbers_are_given_than_half_of_them() {
    let mut world = world(4);
    let (mut sends, mut early) = (Vec::new(), 0);
    lose(&mut world, |world| sends = (0..9000).map(|id| world.send(0, 1, id, 10)).collect());
    assert_eq!(count(&world, 0, Type::Tiny), u64::from(UNACKED_MAX));
    for request in &sends {
        early += u32::from(world.ended[0].contains_key(request));
    }
    assert_eq!(early, ZOMBIES_MAX, "the others are not reported before they are acknowledged");
}

#[test]
fn pulls_are_repeated_after_a_second_while_the_user_computes() {
    let mut world = world(5);
    let got = world.hosts[1].receive(0, 0, 1 << 20);
    world.send(0, 1, 1, 1 << 20);
    world.until("four blocks", |world| count(world, 1, Type::Pull) == 4);
    lose(&mut world, |world| world.pass(Duration::from_millis(1)));
    let later = world.now + Duration::from_secs(3);
    world.hosts[0].computes_until(later);
    world.hosts[1].computes_until(later);
    let (pulls, begin) = (count(&world, 1, Type::Pull), world.now);
    world.until("pulls again", |world| count(world, 1, Type::Pull) > pulls);
    assert!(world.now.since(begin) > PULL_AFTER - Duration::from_millis(2));
    assert!(count(&world, 1, Type::Pull) <= pulls + BLOCKS_MAX as u64);
    world.pass(Duration::from_secs(1));
    assert_eq!(count(&world, 0, Type::PullReply) % 715, count(&world, 0, Type::PullReply) - 715);
    assert_eq!(count(&world, 1, Type::Notify), 0, "that waits for the user");
    assert_eq!(world.end(1, got).data, pattern(1, 1 << 20));
    assert!(world.now >= later);
}

#[test]
fn a_large_message_waits_for_its_acknowledgement_behind_an_incomplete_one() {
    let mut world = world(6);
    world.lost_fragment = Some(3);
    (0..2).for_each(|_| _ = world.hosts[1].receive(0, 0, 100_000));
    world.send(0, 1, 1, 10_000);
    let large = world.send(0, 1, 2, 100_000);
    world.pass(Duration::from_millis(200));
    assert_eq!(world.ended[1].len(), 2, "a connect, and the large message");
    assert_eq!(count(&world, 1, Type::Notify), 1);
    assert!(!world.ended[0].contains_key(&large));
    world.lost_fragment = None;
    world.pass(Duration::from_secs(1));
    assert_eq!(count(&world, 0, Type::Rendezvous), 2);
    assert_eq!(world.ended[0][&large].status, Status::Success);
}

#[test]
fn what_is_only_late_does_not_go_again() {
    for seed in 0..20 {
        let mut world = world(seed);
        world.weather.lateness = 300;
        for id in 0..40 {
            let (len, from) = ([10, 100, 5000, 32_768][id as usize % 4], id as usize % 2);
            world.hosts[1 - from].receive(0, 0, 1 << 20);
            world.send(from, 1 - from, id, len);
        }
        world.pass(Duration::from_secs(2));
        for host in &world.hosts {
            assert_eq!((host.counters().resent, host.counters().obsolete), (0, 0), "seed {seed}");
        }
        assert!(world.ended.iter().all(|ended| ended.len() == 41));
    }
}
