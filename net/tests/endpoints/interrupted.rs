//! Receives that are cancelled in the middle of a message.

use crate::common::{Medium, World};
use crate::stranger::{Stranger, honest};
use ropewalk_base::error::Fault;
use ropewalk_base::pool::PoolBuffer;
use ropewalk_net::{Channel, OperationId, Oversize, Posted};
use ropewalk_wire::frame::{self, Body, DataBody, RtsBody};

/// A receive of node 0 for the stranger's messages.
fn receive_stranger(world: &mut World, user: u64) -> OperationId {
    let memory = world.memory(100_000, 0);
    let node = &world.nodes[0];
    let (channel, mask, cut) = (Channel::Tagged, u64::MAX, Oversize::Truncate);
    let posted =
        node.endpoint.post_receive(&node.context, channel, None, 666, mask, memory, cut, user);
    match posted {
        Ok(Posted::Pending(operation)) => operation,
        other => panic!("{other:?}"),
    }
}

/// Cancels a receive, which ends although its peer does nothing; its memory, overwritten.
fn cancel_receive(world: &mut World, operation: OperationId, user: u64) -> PoolBuffer {
    world.nodes[0].endpoint.cancel(operation);
    let completed = world.take(0, user);
    assert_eq!(completed.outcome, Err(Fault::Cancelled));
    world.nodes[0].endpoint.check();
    let mut buffer = completed.memory.into_pooled().expect("pooled");
    buffer.fill(0xEE);
    buffer
}

/// The stranger's next message arrives, whatever happened to those before.
fn goes_on(world: &mut World, stranger: &mut Stranger, user: u64) {
    assert!(stranger.eager(0, &[9; 8000]));
    let completed = world.take(0, user);
    assert_eq!((completed.outcome, completed.bytes), (Ok(()), 8000));
    let buffer = completed.memory.into_pooled().expect("pooled");
    assert!(buffer[..8000].iter().all(|byte| *byte == 9));
    honest(world, 3, || {});
    assert_eq!(world.nodes[0].endpoint.counters().0.violations, 0);
}

/// So much of a frame is on its way that its payload is being placed.
fn half_arrives(world: &mut World, stranger: &mut Stranger, frame: &[u8]) {
    let received = |world: &World| world.nodes[0].endpoint.counters().1[0].1.bytes_received;
    let before = received(world);
    let half = frame.len() / 2;
    assert!(stranger.shout(&frame[..half]));
    world.until("half a frame", |world| received(world) >= before + half as u64);
}

#[test]
fn a_receive_is_cancelled_in_the_middle_of_a_small_message() {
    let mut world = World::pair(Medium::Tcp);
    honest(&mut world, 2, || {});
    let mut stranger = Stranger::admitted(&mut world, 0xbad);
    let body = stranger.eager_body(0);
    let frame = stranger.frame(body, &[7; 8000]);
    let operation = receive_stranger(&mut world, 1);
    half_arrives(&mut world, &mut stranger, &frame);
    let buffer = cancel_receive(&mut world, operation, 1);
    assert_eq!(world.nodes[0].endpoint.counters().0.places_given_up, 1);
    receive_stranger(&mut world, 2);
    assert!(stranger.shout(&frame[frame.len() / 2..]));
    goes_on(&mut world, &mut stranger, 2);
    assert!(buffer.iter().all(|byte| *byte == 0xEE), "late data received");
}

#[test]
fn a_message_that_a_cancelled_receive_had_claimed_goes_to_the_next_one() {
    let mut world = World::pair(Medium::Tcp);
    honest(&mut world, 2, || {});
    let mut stranger = Stranger::admitted(&mut world, 0xbad);
    let body = stranger.eager_body(0);
    let frame = stranger.frame(body, &[7; 8000]);
    half_arrives(&mut world, &mut stranger, &frame);
    let operation = receive_stranger(&mut world, 1);
    receive_stranger(&mut world, 2);
    let buffer = cancel_receive(&mut world, operation, 1);
    let second = receive_stranger(&mut world, 3);
    receive_stranger(&mut world, 4);
    assert!(stranger.shout(&frame[frame.len() / 2..]));
    let completed = world.take(0, 2);
    assert_eq!((completed.outcome, completed.bytes), (Ok(()), 8000));
    cancel_receive(&mut world, second, 3);
    goes_on(&mut world, &mut stranger, 4);
    assert!(buffer.iter().all(|byte| *byte == 0xEE), "late data received");
}

#[test]
fn a_receive_is_cancelled_in_the_middle_of_a_large_message() {
    const BYTES: usize = 90_000;
    let mut world = World::pair(Medium::Tcp);
    honest(&mut world, 2, || {});
    let mut stranger = Stranger::admitted(&mut world, 0xbad);
    let message = stranger.message;
    stranger.message += 1;
    assert!(stranger.say(
        Body::Rts(RtsBody {
            bits: 666.into(),
            message: message.into(),
            channel: 0,
            alone: 0,
            reserved: [0; 6],
            total_bytes: (BYTES as u64).into(),
            key_slot: 5.into(),
            key_secret: 5.into(),
        }),
        &[],
    ));
    let operation = receive_stranger(&mut world, 1);
    let cookie = stranger.awaits(&mut world, |body| match body {
        Body::Get(get) => Some(get.cookie),
        _ => None,
    });
    let data = Body::Data(DataBody { cookie, offset: 0.into() });
    let frame = stranger.frame(data, &[7; BYTES]);
    half_arrives(&mut world, &mut stranger, &frame);
    let buffer = cancel_receive(&mut world, operation, 1);
    let finished = stranger.awaits(&mut world, |body| match body {
        Body::Fin(finish) => Some((finish.message.get(), finish.status)),
        _ => None,
    });
    assert_eq!(finished, (message, frame::status_to_wire(Err(Fault::Cancelled))));
    receive_stranger(&mut world, 2);
    assert!(stranger.shout(&frame[frame.len() / 2..]));
    goes_on(&mut world, &mut stranger, 2);
    assert!(buffer.iter().all(|byte| *byte == 0xEE), "late data received");
}
