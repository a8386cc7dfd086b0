//! The packet machine, told whatever a peer may seal: every kind of packet over a link that is up, with
//! records, offers, pulls and pieces as the input has them.

use ropewalk_base::error::Fault;
use ropewalk_base::random::Random;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{Help, LinkId, Placement, RemoteKey, RemoteLayout, Token, Verb};
use ropewalk_transport::LinkEvents;
use ropewalk_transport::PacketProtocol;
use ropewalk_transport::packets::{Machine, PacketConfig};
use ropewalk_wire::packets::{self, CallBody, Kind, Route};
use zerocopy::IntoBytes;

use crate::memory::{Nowhere, in_memory};

const PACKET_BYTES: usize = 600;
/// All memory that there is.
const MEMORY: Nowhere = Nowhere::of(10_000);
/// The peer's name for the link, and its station.
const TAG: u32 = 77;
const STATION: u32 = 5;

#[derive(Default)]
struct Seen {
    up: bool,
    down: bool,
    tokens: u64,
}

in_memory!(Seen, MEMORY);

impl LinkEvents<u32> for Seen {
    fn link_up(&mut self, _link: SlotId, _accepted: bool) {
        self.up = true;
    }

    fn link_down(&mut self, _link: SlotId, _fault: Fault) {
        assert!(!self.down, "two last words");
        self.down = true;
    }

    fn place(&mut self, _link: SlotId, header: &[u8], payload_bytes: u32) -> Placement {
        assert!(self.up && !self.down);
        self.tokens += 1;
        match header[2] {
            0 if payload_bytes > 0 => {
                Placement::Into { slice: MEMORY.slice(5000), token: Token(self.tokens) }
            }
            1 => Placement::Violation("the input says so"),
            _ => Placement::Drop,
        }
    }

    fn arrived(&mut self, _link: SlotId, _header: &[u8], _payload: &[u8]) -> bool {
        assert!(self.up && !self.down);
        true
    }

    fn received(&mut self, _link: SlotId, _token: Token) {
        assert!(!self.down);
    }

    fn ended(&mut self, _token: Token, _outcome: Result<(), Fault>) {
        assert!(!self.down);
    }

    fn revoked(&mut self, _link: SlotId, _key: RemoteKey) {}
}

/// Everything that leaves, and moves time on.
fn flush(machine: &mut Machine<u32>, now: Time, seen: &mut Seen, memory: &Nowhere) {
    let mut out = [0; PACKET_BYTES];
    for _ in 0..64 {
        let Some((_, len)) = machine.next(now, memory, &mut out) else { break };
        assert!(packets::open(&out[..len]).is_ok() && len <= PACKET_BYTES);
    }
    machine.drained(now, seen);
}

/// The input: pairs of a kind, a length and so many bytes, each a packet that the peer seals.
pub fn packets(input: &[u8]) {
    let config = PacketConfig {
        endpoint: 1,
        packet_bytes: PACKET_BYTES,
        pieces_max: 16,
        accepts: true,
        links_max: 4,
        give_up_after: std::time::Duration::from_secs(5),
    };
    let mut machine = Machine::<u32>::new(config, Random::from_seed(1));
    let (mut seen, mut now) = (Seen::default(), Time(1_000_000));
    let Ok(slot) = machine.connect(STATION, 9, now) else { return };
    let mut out = [0; PACKET_BYTES];
    let Some((_, len)) = machine.next(now, &MEMORY, &mut out) else { return };
    let Ok(opened) = packets::open(&out[..len]) else { panic!("its own call does not open") };
    let packets::Packet::Call(call) = opened.packet else { panic!("it calls first") };
    let answer = CallBody { tag: TAG.into(), ..*call };
    let route = Route { to: 1, from: 9, tag: call.tag.get() };
    let seal = |kind: u8, bytes: &[u8], now, machine: &mut Machine<u32>, seen: &mut Seen| {
        let mut body = [0; PACKET_BYTES];
        let layout = &bytes[..bytes.len().min(PACKET_BYTES - 32)];
        let kind = match kind % 8 {
            0 => Kind::Call,
            1 => Kind::Answer,
            2 => Kind::Stream,
            3 => Kind::Ack,
            4 => Kind::Pull,
            5 => Kind::Piece,
            6 => Kind::Refusal,
            _ => Kind::Gone,
        };
        // A call is as long as it says, and so is an answer; how long that is stands behind its version.
        let named = match (kind, layout.get(2..4)) {
            (Kind::Call | Kind::Answer, Some(named)) => {
                usize::from(named[0]) | usize::from(named[1]) << 8
            }
            _ => 0,
        };
        let room = PACKET_BYTES - layout.len() - 32;
        let padding = named.saturating_sub(packets::overhead(Kind::Call)).min(room);
        let len = packets::seal(&mut body, kind, route, layout, padding, |rest| rest.fill(0));
        machine.packet(STATION, &body[..len], now, seen);
    };
    seal(1, answer.as_bytes(), now, &mut machine, &mut seen);
    let link = LinkId { rail: 0, slot };
    let key = RemoteKey { slot: SlotId { index: 3, generation: 1 }, secret: 0 };
    let region = MEMORY.slice(u64::MAX);
    machine.order(&Verb::Expose { link, key, region, writable: true }, &MEMORY);
    let remote = RemoteLayout::At(0);
    let (token, help) = (Token(500), Help::None);
    machine.order(&Verb::Read { link, key, remote, local: region, token, help }, &MEMORY);
    let (remote, token) = (RemoteLayout::At(5), Token(501));
    machine.order(&Verb::Write { link, key, remote, local: region, token }, &MEMORY);
    let mut rest = input;
    while let [kind, len, tail @ ..] = rest {
        let (bytes, tail) = tail.split_at(usize::from(*len).min(tail.len()));
        seal(*kind, bytes, now, &mut machine, &mut seen);
        now = now + std::time::Duration::from_micros(u64::from(kind >> 3) * 40);
        flush(&mut machine, now, &mut seen, &MEMORY);
        rest = tail;
    }
}
