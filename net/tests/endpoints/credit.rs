//! Credit: messages that wait for it move on in the end, no matter whether others wait, were cancelled, or used much.

use std::time::Duration;

use crate::common::{ALL, Medium, World, check};
use ropewalk_base::error::Fault;
use ropewalk_base::random::Random;
use ropewalk_net::packets::PacketRail;
use ropewalk_net::{Channel, EndpointConfig, Level, Mode, OperationId, Oversize, PeerId, Posted};
use ropewalk_rail_udp::{UdpConfig, UdpPort};

/// Posts a buffered message with these bits; its operation where it is not over at once.
fn send(
    world: &mut World,
    (from, to): (usize, PeerId),
    channel: Channel,
    bits: u64,
    len: usize,
) -> Option<OperationId> {
    let memory = world.memory(len, bits as u8);
    let node = &world.nodes[from];
    let posted =
        node.endpoint.post_send(&node.context, to, channel, bits, memory, Level::Buffered, bits);
    let id = match &posted {
        Ok(Posted::Pending(id)) => Some(*id),
        _ => None,
    };
    world.posted(from, posted);
    id
}

fn receive(world: &mut World, at: usize, bits: u64, len: usize) {
    let memory = world.memory(len, 0);
    let node = &world.nodes[at];
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
    world.posted(at, posted);
}

/// Waits for a request and takes it.
fn take_request(world: &mut World, at: usize, bits: u64) {
    let mut request = None;
    world.until(&format!("request {bits}"), |world| {
        request = world.nodes[at].endpoint.next_request();
        request.is_some()
    });
    assert_eq!(request.map(|request| request.bits), Some(bits), "{:?}", world.medium);
}

#[test]
fn when_the_first_of_a_queue_is_cancelled_those_behind_it_go_on() {
    for medium in ALL {
        let mut world = World::new(medium);
        world.add();
        world.add_with(|config| config.core.eager_window_bytes = 100 << 10);
        let way = (0, world.peer(0, 1));
        // Three of these fit the window, which nobody makes free.
        let large: Vec<_> =
            (0..5).map(|bits| send(&mut world, way, Channel::Request, bits, 30_000)).collect();
        (0..3).for_each(|bits| assert_eq!(world.take(0, bits).outcome, Ok(())));
        send(&mut world, way, Channel::Request, 5, 100);
        for bits in [4, 3] {
            world.nodes[0].endpoint.cancel(large[bits].expect("it waits"));
            assert_eq!(world.take(0, bits as u64).outcome, Err(Fault::Cancelled));
        }
        assert_eq!(world.take(0, 5).outcome, Ok(()), "{medium:?}");
        [0, 1, 2, 5].into_iter().for_each(|bits| take_request(&mut world, 1, bits));
        world.nodes.iter().for_each(|node| node.endpoint.check());
    }
}

#[test]
fn when_an_announced_message_or_one_behind_it_is_cancelled_the_others_go_on() {
    for medium in ALL {
        let mut world = World::new(medium);
        world.add();
        world.add_with(|config| config.core.rts_window = 1);
        let way = (0, world.peer(0, 1));
        let long = 100_000;
        let ids: Vec<_> =
            (0..3).map(|bits| send(&mut world, way, Channel::Tagged, bits, long)).collect();
        send(&mut world, way, Channel::Tagged, 3, 100);
        world.until("announce", |world| world.nodes[1].endpoint.unmatched_count() == 1);
        // The second one waits for credit, the third behind it; then the first gives its own back.
        for bits in [1, 0] {
            world.nodes[0].endpoint.cancel(ids[bits].expect("it waits"));
            assert_eq!(world.take(0, bits as u64).outcome, Err(Fault::Cancelled));
        }
        receive(&mut world, 1, 3, 100);
        assert_eq!(world.take(1, 1003).outcome, Ok(()), "{medium:?}");
        receive(&mut world, 1, 2, long);
        assert_eq!(world.take(1, 1002).outcome, Ok(()), "{medium:?}");
        world.nodes.iter().for_each(|node| node.endpoint.check());
    }
}

#[test]
fn the_longest_request_comes_through_the_smallest_window_after_any_others() {
    for medium in ALL {
        for (small, large) in [(3, 16_385), (40, 20_000), (85, 32_768)] {
            let mut world = World::new(medium);
            world.add();
            world.add_with(|config| config.core.eager_window_bytes = 1024);
            let way = (0, world.peer(0, 1));
            for bits in 0..small {
                send(&mut world, way, Channel::Request, bits, 200);
                take_request(&mut world, 1, bits);
            }
            send(&mut world, way, Channel::Request, small, large);
            take_request(&mut world, 1, small);
            world.nodes.iter().for_each(|node| node.endpoint.check());
        }
    }
}

/// Sends many messages that the receiver drops at once; where credit is used up for a moment they are
/// announced, and their sender learns of it.
fn flood(world: &mut World, from: usize, to: PeerId, messages: u64) {
    let pending = (0..messages)
        .filter(|_| send(world, (from, to), Channel::Untagged, 9, 200).is_some())
        .count();
    let mut over = 0;
    world.until("end of a flood", |world| {
        let done = &mut world.nodes[from].done;
        let dropped = |outcome| matches!(outcome, Ok(()) | Err(Fault::Cancelled));
        over += done.drain(..).map(|completed| assert!(dropped(completed.outcome))).count();
        over >= pending
    });
}

#[test]
fn a_newcomer_gets_in_beside_any_number_of_peers_that_were_busy_once() {
    let mut world = World::new(Medium::Loop);
    let hub = world.add_with(|config| config.core.eager_pool_bytes = 8 << 20);
    world.nodes[hub].endpoint.drop_unawaited(Channel::Untagged);
    for _ in 0..24 {
        let peer = world.add();
        let to = world.peer(peer, hub);
        flood(&mut world, peer, to, 8000);
    }
    let newcomer = world.add();
    let to = world.peer(newcomer, hub);
    send(&mut world, (newcomer, to), Channel::Request, 7, 100);
    take_request(&mut world, hub, 7);
    world.nodes[hub].endpoint.check();
}

/// The number of messages that a peer may send before it hears of us again, after it sent many others with `pause`
/// between them.
fn window_after(pause: Duration) -> u64 {
    let mut world = World::pair(Medium::SimStream);
    world.nodes[1].endpoint.drop_unawaited(Channel::Untagged);
    let to = world.peer(0, 1);
    for _ in 0..2000 {
        send(&mut world, (0, to), Channel::Untagged, 9, 200);
        world.pass(pause);
    }
    world.pass(Duration::from_secs(1));
    let sent = |world: &World| world.nodes[0].endpoint.counters().0.messages_eager_sent;
    let before = sent(&world);
    for _ in 0..4000 {
        send(&mut world, (0, to), Channel::Tagged, 8, 200);
    }
    // Frames leave, and nobody takes them.
    world.pass_alone(0, Duration::from_secs(1));
    sent(&world) - before
}

#[test]
fn a_peer_whose_messages_wait_is_lent_more_up_to_the_largest_window() {
    for medium in ALL {
        let mut world = World::pair(medium);
        let to = world.peer(0, 1);
        // Each counts 384 bytes; 1 MiB is the most.
        const FIT: u64 = (1 << 20) / 384;
        for number in 0..FIT + 500 {
            send(&mut world, (0, to), Channel::Tagged, number, 200);
        }
        world.until("all that fit", |world| {
            world.nodes[1].endpoint.counters().0.messages_unmatched >= FIT + 500
        });
        let (counters, _) = world.nodes[0].endpoint.counters();
        let eager = counters.messages_eager_sent;
        assert!((FIT - 1..=FIT).contains(&eager), "{medium:?}: {eager} of {FIT} went at once");
        assert_eq!(counters.messages_announced, FIT + 500 - eager, "{medium:?}");
        world.nodes.iter().for_each(|node| node.endpoint.check());
    }
}

#[test]
fn a_peer_is_lent_more_only_where_it_sends_so_fast_that_it_may_have_waited() {
    let (slow, fast) = (Duration::from_millis(10), Duration::from_millis(1));
    // 64 KiB are 170 times the 384 bytes that a message counts.
    // At least half a window is known to be free.
    let (slow, fast) = (window_after(slow), window_after(fast));
    assert!((85..=170).contains(&slow) && fast >= 170 && fast > slow, "{slow} and {fast}");
}

#[test]
fn requests_that_their_taker_keeps_cost_no_other_peer_its_link() {
    for medium in ALL {
        let mut world = World::new(medium);
        let hub = world.add_with(|config| config.staging_bytes = 1 << 20);
        let (hoarded, newcomer) = (world.add(), world.add());
        let to = world.peer(hoarded, hub);
        // Four times the staging memory.
        let mut kept = Vec::new();
        for bits in 0..128 {
            send(&mut world, (hoarded, to), Channel::Request, bits, 30_000);
            world.until("request", |world| {
                kept.extend(world.nodes[hub].endpoint.next_request());
                kept.len() as u64 > bits
            });
        }
        let to = world.peer(newcomer, hub);
        send(&mut world, (newcomer, to), Channel::Request, 7, 30_000);
        take_request(&mut world, hub, 7);
        let (counters, _) = world.nodes[hub].endpoint.counters();
        assert_eq!((counters.violations, counters.resets), (0, 0), "{medium:?}");
        world.nodes[hub].endpoint.check();
    }
}

#[test]
fn copies_for_peers_that_acknowledge_nothing_leave_room_for_what_others_send() {
    let mut world = World::new(Medium::Tcp);
    let resumes = |config: &mut EndpointConfig| config.core.mode = Mode::Resume;
    let hub = world.add_with(|config| {
        resumes(config);
        config.staging_bytes = 1 << 20;
    });
    let silent: Vec<usize> = (0..16).map(|_| world.add_with(resumes)).collect();
    let to: Vec<PeerId> = silent.iter().map(|silent| world.peer(hub, *silent)).collect();
    for (bits, peer) in to.iter().enumerate() {
        send(&mut world, (hub, *peer), Channel::Tagged, bits as u64, 100);
        assert_eq!(world.take(hub, bits as u64).outcome, Ok(()), "it has a session");
    }
    // From here on only the hub makes passes.
    let mut most = 0;
    for round in 1..5 {
        for (bits, peer) in to.iter().enumerate() {
            send(&mut world, (hub, *peer), Channel::Tagged, 100 * round + bits as u64, 30_000);
            world.nodes[hub].endpoint.progress();
            most = most.max(world.nodes[hub].endpoint.held().2);
        }
    }
    assert!((30_000..=(1 << 20) / 10).contains(&most), "{most} bytes of copies");
}

#[test]
fn small_messages_wait_for_credit_while_it_comes_back_and_are_announced_when_it_does_not() {
    for medium in [Medium::Tcp, Medium::Shm, Medium::ShmRing, Medium::Loop] {
        let mut world = World::pair(medium);
        let way = (0, world.peer(0, 1));
        let announced = |world: &World| world.nodes[0].endpoint.counters().0.messages_announced;
        // Ten times the first window, into receives that are there: each is one frame.
        (0..640).for_each(|bits| receive(&mut world, 1, bits, 1024));
        (0..640).for_each(|bits| {
            send(&mut world, way, Channel::Tagged, bits, 1024);
        });
        (0..640).for_each(|bits| assert_eq!(world.take(1, 1000 + bits).outcome, Ok(())));
        (0..640).for_each(|bits| assert_eq!(world.take(0, bits).outcome, Ok(())));
        // None, but where this thread slept in between.
        assert!(announced(&world) < 64, "{medium:?}");
        // As many that nobody takes, and one behind them that somebody waits for.
        receive(&mut world, 1, 5000, 1024);
        for (channel, count) in [(Channel::Untagged, 900), (Channel::Tagged, 1200)] {
            (0..count).for_each(|_| {
                send(&mut world, way, channel, 4999, 1024);
            });
        }
        send(&mut world, way, Channel::Tagged, 5000, 1024);
        assert_eq!(world.take(1, 6000).outcome, Ok(()), "{medium:?}");
        assert!(announced(&world) > 0, "{medium:?}");
    }
}

/// Messages that may leave at once, behind some that use little credit, arrive where they have receives.
fn all_arrive(world: &mut World, matched: bool) {
    let medium = world.medium;
    let way = (0, world.peer(0, 1));
    for (round, bytes) in [40 << 10, 64 << 10, 20 << 10].into_iter().enumerate() {
        let bits = 10 * (round as u64 + 1);
        for bits in bits..bits + 3 {
            if matched {
                receive(world, 1, bits, 200);
            }
            send(world, way, Channel::Tagged, bits, 200);
            if matched {
                assert_eq!(world.take(1, 1000 + bits).outcome, Ok(()), "{medium:?}");
            }
        }
        receive(world, 1, bits + 9, bytes);
        send(world, way, Channel::Tagged, bits + 9, bytes);
        let completed = world.take(1, 1009 + bits);
        assert_eq!((completed.outcome, completed.bytes), (Ok(()), bytes as u64), "{medium:?}");
    }
}

#[test]
fn whatever_limits_two_sides_have_no_message_waits_for_credit_that_does_not_come_back() {
    let limits = [
        (Medium::Udp, None, Some(16 << 10)),
        (Medium::Udp, None, Some(4 << 10)),
        (Medium::Udp, Some(4 << 10), None),
        (Medium::Tcp, Some(64 << 10), None),
        (Medium::Shm, Some(64 << 10), Some(1 << 10)),
        (Medium::Loop, Some(32 << 10), Some(128)),
    ];
    for (medium, of_sender, of_receiver) in limits {
        let mut world = World::new(medium);
        for limit in [of_sender, of_receiver] {
            world.add_with(|config| config.core.eager_bytes_max = limit);
        }
        all_arrive(&mut world, true);
        let mut world = World::new(medium);
        for limit in [of_sender, of_receiver] {
            world.add_with(|config| config.core.eager_bytes_max = limit);
        }
        all_arrive(&mut world, false);
    }
}

#[test]
fn where_packets_are_long_at_one_side_only_all_messages_arrive() {
    for (first, second) in [(8952, 1452), (1452, 8952)] {
        let mut world = World::new(Medium::Udp);
        for (number, packet_bytes) in [(1, first), (2, second)] {
            let usual = UdpConfig::listening("127.0.0.1:0".parse().unwrap());
            let port = UdpPort::open(UdpConfig { packet_bytes, ..usual }).unwrap();
            let (random, clock) = (Random::from_seed(number), world.config(number).clock);
            world.add_over(Box::new(PacketRail::new(port, random, clock).unwrap()), |_| {});
        }
        all_arrive(&mut world, true);
    }
}

#[test]
fn beside_messages_that_nobody_takes_others_arrive_also_where_little_is_lent() {
    for medium in ALL {
        let mut world = World::new(medium);
        for _ in 0..2 {
            // Enough for the least windows.
            world.add_with(|config| config.core.eager_pool_bytes = 256 << 10);
        }
        all_arrive(&mut world, false);
    }
}

#[test]
fn credit_that_came_back_is_told_when_its_sender_has_used_up_the_rest() {
    for medium in ALL {
        let mut world = World::pair(medium);
        let to = world.peer(0, 1);
        // Little of the window comes back, and little of it waits for receives; but both together are nearly all.
        for (bits, len) in [(1, 16_000), (2, 8_000)] {
            receive(&mut world, 1, bits, len);
            send(&mut world, (0, to), Channel::Tagged, bits, len);
            world.take(1, 1000 + bits);
        }
        for (bits, len) in [(3, 16_000), (4, 8_000)] {
            send(&mut world, (0, to), Channel::Tagged, bits, len);
        }
        receive(&mut world, 1, 5, 16_000);
        send(&mut world, (0, to), Channel::Tagged, 5, 16_000);
        check(world.take(1, 1005).memory, 16_000, 5);
    }
}
