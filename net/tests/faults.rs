//! Peers that break off, flood, lie or come in crowds: they cost their own link and nothing else.

mod common;

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use common::{Medium, World, check};
use ropewalk_base::error::Fault;
use ropewalk_base::limits::QUEUED_FRAMES_MAX;
use ropewalk_base::pool::PoolBuffer;
use ropewalk_base::random::Random;
use ropewalk_net::{Channel, Level, Mode, OperationId, Oversize, PeerId, Posted};
use ropewalk_rail_sim::Cut;
use ropewalk_wire::frame::{
    self, AnnounceBody, Body, CreditBody, DataBody, EagerBody, Envelope, FragmentBody, GetBody,
    HelloBody,
};

fn send(world: &mut World, from: usize, to: PeerId, bits: u64, len: usize, user: u64) {
    let memory = world.memory(len, bits as u8);
    let node = &world.nodes[from];
    let (channel, level) = (Channel::Tagged, Level::Buffered);
    let posted = node.endpoint.post_send(&node.context, to, channel, bits, memory, level, user);
    world.posted(from, posted);
}

fn receive(world: &mut World, at: usize, source: Option<PeerId>, bits: u64, len: usize, user: u64) {
    let memory = world.memory(len, 0);
    let node = &world.nodes[at];
    let (channel, mask, cut) = (Channel::Tagged, u64::MAX, Oversize::Truncate);
    let posted =
        node.endpoint.post_receive(&node.context, channel, source, bits, mask, memory, cut, user);
    world.posted(at, posted);
}

/// A peer made by hand, over a bare socket.
struct Stranger {
    socket: TcpStream,
    session: u32,
    message: u64,
    /// Mode `Resume`: the number of its next frame.
    span: Option<u64>,
}

impl Stranger {
    /// Greets the first endpoint of the world and is let in.
    fn admitted(world: &mut World, endpoint: u128) -> Stranger {
        Stranger::admitted_from(world, endpoint, 0)
    }

    /// The same, from a host of this number.
    fn admitted_from(world: &mut World, endpoint: u128, host: u64) -> Stranger {
        let addresses = world.nodes[0].endpoint.addresses().to_string();
        let address = addresses.split(',').next().unwrap().strip_prefix("tcp://").unwrap();
        let socket = TcpStream::connect(address).unwrap();
        socket.set_nodelay(true).unwrap();
        socket.set_nonblocking(true).unwrap();
        let mut stranger = Stranger { socket, session: 0, message: 0, span: None };
        let hello = Body::Hello(HelloBody {
            endpoint: endpoint.to_le_bytes(),
            cluster: 1u128.to_le_bytes(),
            incarnation: 1.into(),
            host: host.into(),
            nonce: 40.into(),
            mode: u8::from(world.mode == Mode::Resume),
            refusal: 0,
            address_bytes: 0.into(),
            eager_credit: 64.into(),
            request_credit: 64.into(),
            announce_credit: 64.into(),
            eager_max: 0.into(),
        });
        assert!(stranger.say(hello, &[]));
        let mut answer = Vec::new();
        world.until("greeting", |_| {
            stranger.hear(&mut answer);
            answer.len() >= 104
        });
        let (_, body) = frame::decode(&answer[..104]).unwrap();
        let frame::Arrived::Hello(hello) = body else { panic!("no greeting: {body:?}") };
        assert_eq!(hello.refusal, 0, "the stranger is not refused");
        let session = hello.nonce.get().wrapping_add(40) | 1;
        assert!(stranger.say(Body::Confirm, &[]));
        stranger.session = session;
        stranger.span = (world.mode == Mode::Resume).then_some(1);
        stranger
    }

    fn hear(&mut self, into: &mut Vec<u8>) -> bool {
        let mut bytes = [0u8; 4096];
        match self.socket.read(&mut bytes) {
            Ok(0) => false,
            Ok(read) => {
                into.extend_from_slice(&bytes[..read]);
                true
            }
            Err(error) => error.kind() == ErrorKind::WouldBlock,
        }
    }

    /// False where the connection is gone or full.
    fn say(&mut self, body: Body, payload: &[u8]) -> bool {
        let bytes = self.frame(body, payload);
        self.shout(&bytes)
    }

    /// The bytes of its next frame.
    fn frame(&mut self, body: Body, payload: &[u8]) -> Vec<u8> {
        let payload_bytes = payload.len() as u32;
        let span = self.span.unwrap_or(0);
        self.span = self.span.map(|span| span + 1);
        let session = self.session;
        let envelope = Envelope { payload_bytes, session, span, ..Envelope::default() };
        let mut header = frame::encode(envelope, &body);
        frame::seal(&mut header, None);
        let mut bytes = header.as_bytes().to_vec();
        bytes.extend_from_slice(payload);
        bytes
    }

    fn shout(&mut self, mut bytes: &[u8]) -> bool {
        while !bytes.is_empty() {
            match self.socket.write(bytes) {
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                Err(_) => return false,
            }
        }
        true
    }

    /// Asks for bytes under a key that opens nothing.
    fn ask_in_vain(&mut self) -> bool {
        let body = Body::Get(GetBody {
            key_slot: 7.into(),
            key_secret: 7.into(),
            offset: 0.into(),
            len: 1.into(),
            cookie: 0.into(),
            into_offset: 0.into(),
        });
        self.say(body, &[])
    }

    fn eager(&mut self, channel: u8, payload: &[u8]) -> bool {
        let body = self.eager_body(channel);
        self.say(body, payload)
    }

    fn eager_body(&mut self, channel: u8) -> Body {
        let message = self.message;
        self.message += 1;
        Body::Eager(EagerBody::whole(666, message, channel, 0))
    }

    /// Waits for a frame that the endpoint makes; its content.
    fn awaits<T>(&mut self, world: &mut World, wanted: impl Fn(&Body) -> Option<T>) -> T {
        let mut bytes = Vec::new();
        let mut found = None;
        world.until("frame", |_| {
            assert!(self.hear(&mut bytes), "the endpoint hung up");
            while let Some((header, payload)) = ropewalk_rail::frame_lengths(&bytes)
                && bytes.len() >= header + payload as usize
            {
                let frame: Vec<u8> = bytes.drain(..header + payload as usize).collect();
                let (_, body) = frame::decode(&frame[..header]).expect("a legal frame");
                found = found.take().or_else(|| wanted(&body.into()));
            }
            found.is_some()
        });
        found.expect("just found")
    }
}

/// Messages that both endpoints exchange in turns; the passes that this took.
fn honest(world: &mut World, rounds: u64, mut meanwhile: impl FnMut()) -> u64 {
    let to = world.peer(1, 0);
    let before = world.nodes[0].endpoint.passes();
    for round in 0..rounds {
        receive(world, 0, None, 1, 100, 1000 + round);
        send(world, 1, to, 1, 100, round);
        meanwhile();
        let received = world.take(0, 1000 + round);
        assert_eq!(received.outcome, Ok(()));
        check(received.memory, 100, 1);
        assert_eq!(world.take(1, round).outcome, Ok(()));
    }
    world.nodes[0].endpoint.passes() - before
}

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
                announce_limit: random.next_u64().into(),
                eager_ends: 0,
                announce_long: 0,

                reserved: [0; 6],
            });
            let envelope = Envelope {
                payload_bytes: payload.len() as u32,
                session: if random.below(4) == 0 { 3 } else { stranger.session },
                ..Envelope::default()
            };
            let mut header = frame::encode(envelope, &body).as_bytes().to_vec();
            let length = [24, 48, 48, 16, 40, 16, 24, 16, 24, 16, 0][number as usize % 11] + 40;
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
    assert!(buffer.iter().all(|byte| *byte == 0xEE), "late data landed");
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
    assert!(buffer.iter().all(|byte| *byte == 0xEE), "late data landed");
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
        Body::Announce(AnnounceBody {
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
        Body::Finish(finish) => Some((finish.message.get(), finish.status)),
        _ => None,
    });
    assert_eq!(finished, (message, frame::status_to_wire(Err(Fault::Cancelled))));
    receive_stranger(&mut world, 2);
    assert!(stranger.shout(&frame[frame.len() / 2..]));
    goes_on(&mut world, &mut stranger, 2);
    assert!(buffer.iter().all(|byte| *byte == 0xEE), "late data landed");
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
