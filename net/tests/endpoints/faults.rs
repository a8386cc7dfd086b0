//! Peers that break off, flood, lie or come in crowds: they cost their own link and nothing else.

use std::time::Duration;

use crate::common::{Medium, World, check};
use crate::stranger::{Stranger, honest, receive, send};
use ropewalk_base::error::Fault;
use ropewalk_base::limits::QUEUED_FRAMES_MAX;
use ropewalk_base::random::Random;
use ropewalk_net::{Channel, Level, Mode, Oversize};
use ropewalk_rail_sim::Cut;
use ropewalk_wire::frame::{self, Body, CreditBody, Envelope, FragmentBody};

#[test]
fn a_peer_that_ignores_its_credit_is_cut_off_and_harms_nobody() {
    for channel in [0u8, 2] {
        let mut world = World::pair(Medium::Tcp);
        let quiet = honest(&mut world, 300, || {});
        let violations = world.nodes[0].endpoint.counters().0.violations;
        let mut stranger = Stranger::admitted(&mut world, 0xbad);
        let mut alive = true;
        let loud = honest(&mut world, 300, || {
            for _ in 0..20 {
                alive = alive && stranger.eager(channel, &[7; 1000]);
            }
        });
        assert!(loud <= quiet * 3 / 2 + 200, "{loud} passes instead of {quiet}");
        world.until("hang-up", |world| {
            world.nodes[0].endpoint.counters().0.violations == violations + 1
        });
        // Each message counts 1152 bytes; of those that wait for receives a peer is lent 1 MiB.
        let requests = std::iter::from_fn(|| world.nodes[0].endpoint.next_request()).count();
        let kept = world.nodes[0].endpoint.unmatched_count() + requests;
        let most = if channel == 0 { (1 << 20) / 1152 } else { 64 };
        assert!((1..=most).contains(&kept), "{kept} messages were kept");
        world.nodes[0].endpoint.check();
        honest(&mut world, 10, || {});
    }
}

/// Frames that a stranger needs at most until its link breaks: the queue's limit and the frames that the sockets
/// hold, some MiB of frames of 56 bytes at least.
const PROVOKED_MAX: usize = QUEUED_FRAMES_MAX + (32 << 20) / 56;

#[test]
fn a_peer_that_provokes_answers_and_reads_none_is_cut_off() {
    let mut world = World::pair(Medium::Tcp);
    honest(&mut world, 2, || {});
    let mut stranger = Stranger::admitted(&mut world, 0xbad);
    let mut asked = 0;
    while (0..200).all(|_| stranger.ask_in_vain()) {
        asked += 200;
        assert!(asked < PROVOKED_MAX, "{asked} answers wait and nobody minds");
        honest(&mut world, 1, || {});
    }
    assert!(asked > QUEUED_FRAMES_MAX, "cut off after {asked} questions");
    world.nodes[0].endpoint.check();
    honest(&mut world, 10, || {});
}

#[test]
fn a_peer_that_provokes_answers_and_acknowledges_none_is_cut_off() {
    let mut world = World::new(Medium::Tcp);
    world.mode = Mode::Resume;
    world.add();
    world.add();
    honest(&mut world, 2, || {});
    let mut stranger = Stranger::admitted(&mut world, 0xbad);
    let mut asked = 0;
    let mut heard = Vec::new();
    let mut hears = |stranger: &mut Stranger| {
        heard.clear();
        stranger.hear(&mut heard)
    };
    while (0..200).all(|_| stranger.ask_in_vain() && hears(&mut stranger)) {
        asked += 200;
        assert!(asked < 2 * QUEUED_FRAMES_MAX, "{asked} answers are kept and nobody minds");
        honest(&mut world, 1, || {});
    }
    assert!(asked > QUEUED_FRAMES_MAX / 2, "cut off after {asked} questions");
    world.nodes[0].endpoint.check();
    honest(&mut world, 10, || {});
}

#[test]
fn a_frame_that_comes_again_is_not_taken_twice_and_ends_its_link() {
    for channel in [0u8, 2] {
        let mut world = World::pair(Medium::Tcp);
        let violations = world.nodes[0].endpoint.counters().0.violations;
        let mut stranger = Stranger::admitted(&mut world, 0xbad);
        assert!(stranger.eager(channel, b"once"));
        stranger.message -= 1;
        assert!(stranger.eager(channel, b"once"));
        world.until("hang-up", |world| {
            world.nodes[0].endpoint.counters().0.violations == violations + 1
        });
        let requests = std::iter::from_fn(|| world.nodes[0].endpoint.next_request()).count();
        assert_eq!(world.nodes[0].endpoint.unmatched_count() + requests, 1, "channel {channel}");
        world.nodes[0].endpoint.check();
        honest(&mut world, 10, || {});
    }
}

#[test]
fn fragments_that_do_not_fit_together_cost_the_link_and_what_was_begun() {
    let begun = |stranger: &mut Stranger, channel: u8, more: u32, payload: &[u8]| {
        let Body::Eager(mut body) = stranger.eager_body(channel) else { unreachable!() };
        body.more_bytes = more.into();
        stranger.say(Body::Eager(body), payload)
    };
    let further = |stranger: &mut Stranger, message: u64, offset: u64, payload: &[u8]| {
        let (message, offset) = (message.into(), offset.into());
        let body = FragmentBody { message, offset, channel: 0, reserved: [0; 7] };
        stranger.say(Body::Fragment(body), payload)
    };
    let wrong: [&dyn Fn(&mut Stranger); 7] = [
        &|it| assert!(begun(it, 0, 1 << 20, &[1; 1000]), "longer than any"),
        &|it| assert!(begun(it, 0, u32::MAX, &[1; 1000]), "much longer"),
        &|it| assert!(begun(it, 2, 1000, &[1; 1000]), "a request"),
        &|it| assert!(begun(it, 0, 1000, &[]), "nothing at first"),
        &|it| assert!(begun(it, 0, 1000, &[1; 1000]) && further(it, 1, 1001, &[1; 9]), "a gap"),
        &|it| assert!(begun(it, 0, 9, &[1; 1000]) && further(it, 1, 1000, &[1; 10]), "too long"),
        &|it| assert!(begun(it, 0, 9, &[1; 1000]) && further(it, 1, 1000, &[]), "empty"),
    ];
    let mut world = World::new(Medium::Tcp);
    for _ in 0..2 {
        world.add_with(|config| config.core.eager_window_bytes = 8 << 20);
    }
    honest(&mut world, 2, || {});
    for (number, wrong) in wrong.into_iter().enumerate() {
        let violations = world.nodes[0].endpoint.counters().0.violations;
        let mut stranger = Stranger::admitted(&mut world, 0xbad);
        // Of a message that nobody knows of: it goes nowhere.
        assert!(further(&mut stranger, 99, 5, &[2; 100]));
        assert!(stranger.eager(0, b"so far, so good"));
        world
            .until("good message", |world| world.nodes[0].endpoint.unmatched_count() == number + 1);
        wrong(&mut stranger);
        world.until("hang-up", |world| {
            world.nodes[0].endpoint.counters().0.violations == violations + 1
        });
        (0..20).for_each(|_| world.step());
        let kept = world.nodes[0].endpoint.unmatched_count();
        assert_eq!(kept, number + 1, "the message that was begun is gone");
        world.nodes[0].endpoint.check();
        honest(&mut world, 2, || {});
    }
}

#[test]
fn sessions_that_come_and_go_do_not_add_up() {
    let mut world = World::pair(Medium::Tcp);
    for number in 0..300u128 {
        // Each life fills its credit and hangs up: nobody ever receives any of it.
        let mut stranger = Stranger::admitted(&mut world, 0x1000 + number % 7);
        for _ in 0..50 {
            stranger.eager(0, &[1; 1000]);
        }
        for _ in 0..10 {
            world.step();
        }
    }
    world.nodes[0].endpoint.check();
    honest(&mut world, 10, || {});
}

#[test]
fn garbage_of_every_kind_costs_the_link_only() {
    let mut world = World::pair(Medium::Tcp);
    honest(&mut world, 2, || {});
    let mut random = Random::from_seed(5);
    for number in 0..150u64 {
        let mut stranger = Stranger::admitted(&mut world, 0xbad);
        assert!(stranger.eager(0, b"so far, so good"));
        for _ in 0..3 {
            let payload = vec![3u8; random.below(300) as usize];
            let body = Body::Credit(CreditBody {
                eager_limit: u64::MAX.into(),
                request_limit: u64::MAX.into(),
                rts_limit: random.next_u64().into(),
                update_limit: random.next_u64().into(),
                eager_ends: 0,
                rts_long: 0,

                layouts: 0.into(),
                reserved: [0; 4],
            });
            let envelope = Envelope {
                payload_bytes: payload.len() as u32,
                session: if random.below(4) == 0 { 3 } else { stranger.session },
                ..Envelope::default()
            };
            let mut header = frame::encode(envelope, &body).as_bytes().to_vec();
            let length = [24, 48, 48, 16, 40, 16, 24, 16, 24, 64, 0][number as usize % 11] + 40;
            header.resize(length, 0);
            header[0] = 3 + (number % 11) as u8;
            header[1] = length as u8;
            for byte in &mut header[40..] {
                *byte = [0, 1, 0xff, random.next_u64() as u8][random.below(4) as usize];
            }
            if random.below(8) == 0 {
                let at = random.below(length as u64) as usize;
                header[at] ^= 1 << random.below(8);
            }
            header[8..12].fill(0);
            let checksum = ropewalk_base::checksum::crc32c(&header);
            let wrong = u32::from(random.below(10) == 0);
            header[8..12].copy_from_slice(&(checksum ^ wrong).to_le_bytes());
            header.extend_from_slice(&payload);
            stranger.shout(&header);
            world.step();
            world.nodes[0].endpoint.check();
        }
        if random.below(2) == 0 {
            drop(stranger);
        }
        honest(&mut world, 1, || {});
    }
}

#[test]
fn a_thousand_connects_at_once_are_all_served() {
    let mut world = World::new(Medium::Loop);
    let hub = world.add();
    for _ in 0..1000 {
        world.add();
    }
    for node in 1..=1000 {
        let to = world.peer(node, hub);
        let memory = world.memory(8, 0);
        let from = &world.nodes[node];
        let channel = Channel::Request;
        let posted = from.endpoint.post_send(
            &from.context,
            to,
            channel,
            node as u64,
            memory,
            Level::Delivered,
            node as u64,
        );
        world.posted(node, posted);
    }
    let mut seen = std::collections::BTreeSet::new();
    world.until("thousand requests", |world| {
        while let Some(request) = world.nodes[hub].endpoint.next_request() {
            assert!(seen.insert(request.bits), "{} came twice", request.bits);
        }
        seen.len() == 1000
    });
    world.until("thousand sends", |world| {
        world.nodes[1..].iter().all(|node| node.done.iter().all(|done| done.outcome == Ok(())))
            && world.nodes[1..].iter().all(|node| node.done.len() == 1)
    });
    world.nodes[hub].endpoint.check();
}

#[test]
fn a_million_unmatched_messages_wait_at_their_sender() {
    const COUNT: u64 = 1_000_000;
    let mut world = World::pair(Medium::Loop);
    let to = world.peer(0, 1);
    static BYTES: [u8; 1024] = [5; 1024];
    for number in 0..COUNT {
        let memory = ropewalk_base::memory::Memory::constant(&BYTES);
        let node = &world.nodes[0];
        let (channel, level) = (Channel::Tagged, Level::Buffered);
        let posted =
            node.endpoint.post_send(&node.context, to, channel, number, memory, level, number);
        world.posted(0, posted);
        if number % 64 == 0 {
            world.nodes[0].endpoint.progress();
            world.nodes[1].endpoint.progress();
        }
    }
    for _ in 0..100 {
        world.nodes[0].endpoint.progress();
        world.nodes[1].endpoint.progress();
    }
    // 1 MiB of eager messages, and 1024 announces, wait at the receiver; all else at the sender.
    let waiting = world.nodes[1].endpoint.unmatched_count();
    let most = 1024 + (1 << 20) / 1152;
    assert!((1024..=most).contains(&waiting), "{waiting} messages wait at the receiver");
    world.nodes[0].done.clear();
    let mut memory = world.memory(1024, 0);
    for number in 0..COUNT {
        let node = &world.nodes[1];
        let (channel, mask, cut) = (Channel::Tagged, 0, Oversize::Truncate);
        let posted =
            node.endpoint.post_receive(&node.context, channel, None, 0, mask, memory, cut, number);
        let completed = match posted {
            Ok(ropewalk_net::Posted::Done(completed)) => completed,
            Ok(ropewalk_net::Posted::Pending(_)) => loop {
                world.nodes[0].endpoint.progress();
                let node = &world.nodes[1];
                if let Some(completed) = node.endpoint.test(&node.context) {
                    break completed;
                }
            },
            Err((_, fault)) => panic!("{fault}"),
        };
        assert_eq!((completed.bits, completed.outcome), (number, Ok(())));
        memory = completed.memory;
    }
}

/// Whether the payload of a message to a peer from a host with this number has a checksum.
fn has_checksum(same_host_checksum: bool, on_this_host: bool) -> bool {
    let mut world = World::new(Medium::Tcp);
    world.add_with(|config| config.same_host_checksum = same_host_checksum);
    let host = world.nodes[0].endpoint.identity().host;
    let host = if on_this_host { host } else { host ^ 2 };
    let mut stranger = Stranger::admitted_from(&mut world, 99, host);
    receive(&mut world, 0, None, 666, 100, 1);
    assert!(stranger.eager(0, b"who is there"));
    let peer = world.take(0, 1).peer.expect("somebody sent it");
    send(&mut world, 0, peer, 3, 500, 2);
    let mut bytes = Vec::new();
    let mut flag = None;
    world.until("the message", |_| {
        assert!(stranger.hear(&mut bytes), "the endpoint hung up");
        while let Some((header, payload)) = ropewalk_rail::frame_lengths(&bytes)
            && bytes.len() >= header + payload as usize
        {
            let frame: Vec<u8> = bytes.drain(..header + payload as usize).collect();
            let flags = u16::from_le_bytes([frame[2], frame[3]]);
            if payload == 500 {
                flag = Some(flags & frame::FLAG_PAYLOAD_CHECKSUM != 0);
            }
        }
        flag.is_some()
    });
    flag.expect("just found")
}

#[test]
fn payloads_have_checksums_but_on_one_host_where_nobody_wants_them() {
    assert!(has_checksum(true, true) && has_checksum(true, false));
    assert!(has_checksum(false, false), "between hosts there is always one");
    assert!(!has_checksum(false, true));
}

#[test]
fn links_cut_anywhere_fail_each_operation_once() {
    for seed in 0..200u64 {
        let mut world = World::new(Medium::SimStream);
        world.add();
        world.add();
        let to = world.peer(0, 1);
        for number in 0..5 {
            send(&mut world, 0, to, number, 40_000 * number as usize + 10, number);
            receive(&mut world, 1, None, number, 200_000, 100 + number);
        }
        // Frames are under way in halves: some cuts come within a payload.
        for _ in 0..seed {
            world.step();
        }
        let names: Vec<String> =
            world.nodes.iter().map(|node| node.endpoint.addresses().to_string()).collect();
        let name = |index: usize| names[index].strip_prefix("sim://").unwrap().to_string();
        let cut = [Cut::Both, Cut::FirstThenOther(Duration::from_micros(300))][seed as usize % 2];
        let (first, other) = if seed % 3 == 0 { (1, 0) } else { (0, 1) };
        world.network.cut(&name(first), &name(other), cut);
        world.until("sends to end", |world| {
            world.nodes.iter().for_each(|node| node.endpoint.check());
            world.nodes[0].done.len() == 5
        });
        for completed in &world.nodes[0].done {
            let fault = completed.outcome;
            let ended = matches!(fault, Ok(()) | Err(Fault::PeerReset | Fault::Unreachable));
            assert!(ended, "seed {seed}: {fault:?}");
        }
        for completed in std::mem::take(&mut world.nodes[1].done) {
            if completed.outcome.is_ok() {
                check(completed.memory, completed.bytes as usize, completed.bits as u8);
            } else {
                assert_eq!(completed.outcome, Err(Fault::PeerReset), "seed {seed}");
            }
        }
        // Both have noticed by then; messages that were not matched are received from the next session.
        for _ in 0..300 {
            world.step();
        }
        receive(&mut world, 1, None, 77, 10, 500);
        send(&mut world, 0, to, 77, 10, 600);
        assert_eq!(world.take(0, 600).outcome, Ok(()), "seed {seed}");
        assert_eq!(world.take(1, 500).outcome, Ok(()), "seed {seed}");
    }
}

/// A message that was staged outlives its session, and its sender has been told so. Messages are numbered from 0 in each
/// session: the receive that takes the old message must not end a send of the present one.
#[test]
fn a_message_of_an_ended_session_ends_no_send_of_the_next_one() {
    let mut world = World::pair(Medium::SimStream);
    let to = world.peer(0, 1);
    let post = |world: &mut World, user: u64| {
        let (node, out) = (&world.nodes[0], world.memory(100, user as u8));
        node.endpoint
            .post_send(&node.context, to, Channel::Tagged, user, out, Level::Matched, user)
            .expect("there is room");
    };
    post(&mut world, 1);
    world.until("staged message", |world| {
        world.nodes[1].endpoint.counters().0.messages_unmatched == 1
    });
    (0..100).for_each(|_| world.step());
    let name = |world: &World, index: usize| {
        let text = world.nodes[index].endpoint.addresses().to_string();
        text.strip_prefix("sim://").expect("the only scheme").to_string()
    };
    let (near, far) = (name(&world, 0), name(&world, 1));
    world.network.cut(&near, &far, Cut::Both);
    assert_eq!(world.take(0, 1).outcome, Err(Fault::PeerReset));
    post(&mut world, 2);
    world.until("second message", |world| {
        world.nodes[1].endpoint.counters().0.messages_unmatched == 2
    });
    receive(&mut world, 1, None, 1, 100, 10);
    assert_eq!(world.take(1, 10).outcome, Ok(()));
    (0..300).for_each(|_| world.step());
    assert!(world.nodes[0].done.is_empty(), "no receive took the second message");
    receive(&mut world, 1, None, 2, 100, 20);
    assert_eq!(world.take(1, 20).outcome, Ok(()));
    assert_eq!(world.take(0, 2).outcome, Ok(()));
}
