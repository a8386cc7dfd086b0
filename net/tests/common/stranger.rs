//! A peer made by hand that says what no endpoint of ours would say, beside endpoints that go on.
#![allow(dead_code)]

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;

use ropewalk_net::{Channel, Level, Mode, Oversize, PeerId};
use ropewalk_wire::frame::{self, Body, EagerBody, Envelope, GetBody, HelloBody};

use crate::common::{World, check};

/// Posts a message with the pattern of its bits.
pub fn send(world: &mut World, from: usize, to: PeerId, bits: u64, len: usize, user: u64) {
    let memory = world.memory(len, bits as u8);
    let node = &world.nodes[from];
    let (channel, level) = (Channel::Tagged, Level::Buffered);
    let posted = node.endpoint.post_send(&node.context, to, channel, bits, memory, level, user);
    world.posted(from, posted);
}

/// Posts a receive for a message with these bits.
pub fn receive(
    world: &mut World,
    at: usize,
    source: Option<PeerId>,
    bits: u64,
    len: usize,
    user: u64,
) {
    let memory = world.memory(len, 0);
    let node = &world.nodes[at];
    let (channel, mask, cut) = (Channel::Tagged, u64::MAX, Oversize::Truncate);
    let posted =
        node.endpoint.post_receive(&node.context, channel, source, bits, mask, memory, cut, user);
    world.posted(at, posted);
}

/// A peer made by hand, over a bare socket.
pub struct Stranger {
    pub socket: TcpStream,
    pub session: u32,
    pub message: u64,
    /// Mode `Resume`: the number of its next frame.
    pub span: Option<u64>,
}

impl Stranger {
    /// Greets the first endpoint of the world and is let in.
    pub fn admitted(world: &mut World, endpoint: u128) -> Stranger {
        Stranger::admitted_from(world, endpoint, 0)
    }

    /// The same, from a host of this number.
    pub fn admitted_from(world: &mut World, endpoint: u128, host: u64) -> Stranger {
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
            rts_credit: 64.into(),
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

    pub fn hear(&mut self, into: &mut Vec<u8>) -> bool {
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
    pub fn say(&mut self, body: Body, payload: &[u8]) -> bool {
        let bytes = self.frame(body, payload);
        self.shout(&bytes)
    }

    /// The bytes of its next frame.
    pub fn frame(&mut self, body: Body, payload: &[u8]) -> Vec<u8> {
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

    pub fn shout(&mut self, mut bytes: &[u8]) -> bool {
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
    pub fn ask_in_vain(&mut self) -> bool {
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

    pub fn eager(&mut self, channel: u8, payload: &[u8]) -> bool {
        let body = self.eager_body(channel);
        self.say(body, payload)
    }

    pub fn eager_body(&mut self, channel: u8) -> Body {
        let message = self.message;
        self.message += 1;
        Body::Eager(EagerBody::whole(666, message, channel, 0))
    }

    /// Waits for a frame that the endpoint makes; its content.
    pub fn awaits<T>(&mut self, world: &mut World, wanted: impl Fn(&Body) -> Option<T>) -> T {
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
pub fn honest(world: &mut World, rounds: u64, mut meanwhile: impl FnMut()) -> u64 {
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
