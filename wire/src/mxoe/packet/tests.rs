//! The example frames of the protocol's description, written and read, and what is refused.

use super::*;
use crate::mxoe::{ETHERNET_BYTES, ETHERTYPE, Ethernet, FRAME_BYTES_MIN, Station};

/// Two hosts: A with endpoint 3 and B with endpoint 0. B is number 1 in A's table, A is 5 in B's.
const A: Station = Station([2, 0, 0, 0, 0, 1]);
const B: Station = Station([2, 0, 0, 0, 0, 2]);
const A_SESSION: u32 = 0xa1b2_c3d4;
const B_SESSION: u32 = 0x1122_3344;
const MATCH: u64 = 0x0123_4567_89ab_cdef;

fn native() -> Dialect {
    Dialect::native(1500, Order::Big).unwrap()
}

fn bytes(hex: &str) -> Vec<u8> {
    hex.split_whitespace().map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

/// The whole frame of a packet: header, payload and padding.
fn frame(from: Station, to: Station, index: u16, packet: &Packet<'_>, dialect: Dialect) -> Vec<u8> {
    let ethernet = Ethernet { destination: to, source: from, ethertype: ETHERTYPE };
    let mut frame = ethernet.to_bytes().to_vec();
    let mut header = [0xee; HEADER_BYTES_MAX];
    let len = packet.emit(index, dialect, &mut header);
    frame.extend_from_slice(&header[..len]);
    match packet {
        Packet::Raw(bytes)
        | Packet::Tiny(_, bytes)
        | Packet::Small(_, bytes)
        | Packet::Medium(_, bytes)
        | Packet::PullReply(_, bytes)
        | Packet::HostReply(HostReply { name: bytes, .. }) => frame.extend_from_slice(bytes),
        _ => {}
    }
    frame.resize(frame.len().max(FRAME_BYTES_MIN), 0);
    frame
}

/// The example frame of this name.
fn example(name: &str) -> Vec<u8> {
    let all = include_str!("../../../tests/mxoe_examples.txt");
    let (_, rest) = all.split_once(&format!("[{name}]\n")).expect("there is an example");
    bytes(rest.split('[').next().unwrap())
}

/// Writes the packet from A to B, or back, as it is in the example, and reads it again.
fn same(from: Station, index: u16, packet: &Packet<'_>, dialect: Dialect, name: &str) {
    reads_as(from, index, packet, dialect, &example(name));
}

/// The same with the beginning of its frame.
fn reads_as(from: Station, index: u16, packet: &Packet<'_>, dialect: Dialect, expected: &[u8]) {
    let to = if from == A { B } else { A };
    let frame = frame(from, to, index, packet, dialect);
    assert_eq!(frame[..expected.len()], *expected, "{packet:?}");
    let (ethernet, body) = Ethernet::split(&frame).unwrap();
    assert_eq!((ethernet.source, ethernet.destination), (from, to));
    assert_eq!(Packet::parse(body, dialect), Ok((index, *packet)));
}

fn message(sequence: u16) -> Message {
    Message {
        to: 0,
        from: 3,
        session: B_SESSION,
        sequence: Sequence(sequence),
        acknowledged: Sequence(1),
        match_info: MATCH,
    }
}

#[test]
fn hosts_ask_for_names() {
    let query = Packet::HostQuery(HostQuery { index: 1, magic: 0x1305_2008 });
    same(A, 0, &query, native(), "host query");
    let reply = HostReply { index: 5, magic: 0x1305_2008, name: b"nodeB:0" };
    same(B, 0, &Packet::HostReply(reply), native(), "host reply");
}

#[test]
fn endpoints_connect() {
    let receive_next = Sequence(1);
    let ask = Connect {
        to: 0,
        from: 3,
        index: 1,
        session: A_SESSION,
        key: 0x1234_5678,
        receive_next,
        connect: 0,
    };
    same(A, 5, &Packet::Connect(ask), native(), "connect");
    let answer = ConnectReply {
        to: 3,
        from: 0,
        index: 5,
        asker: A_SESSION,
        session: B_SESSION,
        receive_next,
        connect: 0,
        status: 0,
    };
    same(B, 1, &Packet::ConnectReply(answer), native(), "connect reply");
}

#[test]
fn small_messages_are_one_packet() {
    same(A, 5, &Packet::Tiny(message(1), b"hello"), native(), "tiny");
    let payload: Vec<u8> = (0x40..0x61).collect();
    same(A, 5, &Packet::Small(message(2), &payload), native(), "small");
}

#[test]
fn medium_messages_are_several() {
    let piece = |total_bytes, fragment, offset| Fragment {
        message: message(3),
        total_bytes,
        fragment,
        offset,
    };
    let first = Packet::Medium(piece(2000, 0, 0), &[0; 1452]);
    same(A, 5, &first, native(), "medium native 0");
    assert_eq!(frame(A, B, 5, &first, native()).len(), 1500);
    let second = Packet::Medium(piece(2000, 1, 1452), &[0; 548]);
    same(A, 5, &second, native(), "medium native 1");
    let compatible = Packet::Medium(piece(5000, 1, 4096), &[0; 904]);
    same(A, 5, &compatible, Dialect::compatible(), "medium compatible 1");
}

fn pull(block_bytes: u32) -> Packet<'static> {
    Packet::Pull(Pull {
        to: 3,
        from: 0,
        session: A_SESSION,
        total_bytes: 100_000,
        region: 0,
        region_sequence: 23,
        region_offset: 0,
        handle: 0x23,
        magic: Pull::magic_of(0),
        first_offset: 0,
        block_bytes,
        frame: 0,
    })
}

#[test]
fn large_messages_are_announced_pulled_and_confirmed() {
    let announced = Packet::Rendezvous(Rendezvous {
        message: message(4),
        total_bytes: 100_000,
        region: 0,
        region_sequence: 23,
        region_offset: 0,
    });
    same(A, 5, &announced, native(), "rendezvous");
    same(B, 1, &pull(46_976), native(), "pull native");
    same(B, 1, &pull(32_768), Dialect::compatible(), "pull compatible");
    let reply = PullReply { frame: 2, offset: 8192, handle: 0x23, magic: Pull::magic_of(0) };
    same(A, 0, &Packet::PullReply(reply, &[0; 4096]), Dialect::compatible(), "pull reply");
    let told = Packet::Notify(Notify {
        to: 3,
        from: 0,
        session: A_SESSION,
        sequence: Sequence(1),
        acknowledged: Sequence(5),
        bytes: 100_000,
        region: 0,
        region_sequence: 23,
    });
    same(B, 1, &told, native(), "notify");
}

#[test]
fn receivers_acknowledge_and_refuse() {
    let acknowledged = Sequence(2);
    let ack = Packet::Ack(Ack { to: 0, from: 3, session: B_SESSION, acknowledged, number: 1 });
    same(A, 5, &ack, native(), "ack");
    let sequence = Sequence(9);
    let refused =
        Packet::NackLib(NackLib { from: 7, to: 3, reason: Nack::BadEndpoint, index: 1, sequence });
    same(B, 1, &refused, native(), "nack lib");
    let (reason, handle) = (Nack::BadSession, 0x23);
    let refused =
        Packet::NackMcp(NackMcp { endpoint: 0, reason, handle, magic: Pull::magic_of(0) });
    same(A, 5, &refused, native(), "nack mcp");
}

#[test]
fn the_other_byte_order_turns_fields_around_and_nothing_else() {
    let dialect = Dialect::native(1500, Order::Little).unwrap();
    let hex = "02 00 00 00 00 02 02 00 00 00 00 01 86 df 05 00
               25 00 03 00 05 00 00 00 01 00 01 00 67 45 23 01
               ef cd ab 89 44 33 22 11 68 65 6c 6c 6f";
    reads_as(A, 5, &Packet::Tiny(message(1), b"hello"), dialect, &bytes(hex));
    let hex = "02 00 00 00 00 01 02 00 00 00 00 02 86 df 01 00
               29 03 00 00 d4 c3 b2 a1 a0 86 01 00 00 00 00 00
               17 00 00 00 00 00 00 00 23 00 00 00 80 19 07 21 00 00 00 00 80 b7 00 00 00 00 00 00";
    reads_as(B, 1, &pull(46_976), dialect, &bytes(hex));
}

#[test]
fn the_endpoint_is_found_where_each_type_has_it() {
    let magic = Pull::magic_of(9);
    let sequence = Sequence(0);
    let packets = [
        (Packet::Tiny(Message { to: 9, ..message(1) }, b"x"), Some(9)),
        (Packet::PullReply(PullReply { frame: 0, offset: 0, handle: 1, magic }, b"x"), Some(9)),
        (Packet::NackMcp(NackMcp { endpoint: 1, reason: Nack::Closed, handle: 1, magic }), Some(9)),
        (
            Packet::NackLib(NackLib { from: 1, to: 9, reason: Nack::Closed, index: 0, sequence }),
            Some(9),
        ),
        (Packet::HostQuery(HostQuery { index: 0, magic: 1 }), None),
    ];
    for order in [Order::Big, Order::Little] {
        let dialect = Dialect::native(1500, order).unwrap();
        for (packet, endpoint) in &packets {
            let frame = frame(A, B, 0, packet, dialect);
            assert_eq!(endpoint_of(&frame[ETHERNET_BYTES..], order), *endpoint, "{packet:?}");
        }
    }
    assert_eq!(endpoint_of(&[0, 0], Order::Big), None);
    assert_eq!((Pull::endpoint_of(magic), Pull::endpoint_of(0)), (Some(9), None));
}

/// Why the packet is refused after a change.
fn refused(
    packet: &Packet<'_>,
    dialect: Dialect,
    change: impl FnOnce(&mut Vec<u8>),
) -> PacketError {
    let mut frame = frame(A, B, 5, packet, dialect);
    change(&mut frame);
    Packet::parse(&frame[ETHERNET_BYTES..], dialect).expect_err("it is refused")
}

#[test]
fn what_cannot_be_is_refused() {
    let tiny = Packet::Tiny(message(1), b"hello");
    assert_eq!(refused(&tiny, native(), |frame| frame[16] = 0x22), PacketError::Type(0x22));
    assert_eq!(refused(&tiny, native(), |frame| frame[21] = 33), PacketError::Long);
    assert_eq!(refused(&tiny, native(), |frame| frame.truncate(44)), PacketError::Short);
    assert_eq!(refused(&tiny, native(), |frame| frame.truncate(39)), PacketError::Short);
    let piece = Fragment { message: message(1), total_bytes: 2000, fragment: 1, offset: 1452 };
    let medium = Packet::Medium(piece, &[0; 548]);
    assert_eq!(refused(&medium, native(), |frame| frame[42] = 2), PacketError::Long);
    assert_eq!(refused(&medium, native(), |frame| frame[42] = 32), PacketError::Long);
    assert_eq!(refused(&medium, native(), |frame| frame[20] = 1), PacketError::Long);
    assert_eq!(refused(&medium, native(), |frame| frame[41] += 1), PacketError::Short);
    let piece = Fragment { message: message(1), total_bytes: 5000, fragment: 1, offset: 4096 };
    let medium = Packet::Medium(piece, &[0; 904]);
    let compatible = Dialect::compatible();
    assert_eq!(refused(&medium, compatible, |frame| frame[43] = 16), PacketError::Field);
    assert_eq!(refused(&medium, compatible, |frame| frame[43] = 13), PacketError::Long);
    let number = 1;
    let acknowledged = Sequence(2);
    let ack = Packet::Ack(Ack { to: 0, from: 3, session: B_SESSION, acknowledged, number });
    assert_eq!(refused(&ack, native(), |frame| frame[28] = 0x54), PacketError::Field);
    assert_eq!(refused(&ack, native(), |frame| frame[35] ^= 1), PacketError::Field);
    let reply = Packet::HostReply(HostReply { index: 5, magic: 1, name: b"nodeB:0" });
    assert_eq!(refused(&reply, native(), |frame| frame[39] = b'x'), PacketError::Field);
    assert_eq!(refused(&reply, native(), |frame| frame[17] = 81), PacketError::Long);
    assert_eq!(refused(&reply, native(), |frame| frame[17] = 0), PacketError::Field);
}

#[test]
fn pads_and_what_follows_a_payload_are_passed_over() {
    let tiny = Packet::Tiny(message(1), b"hello");
    let mut frame = frame(A, B, 5, &tiny, native());
    frame[19] = 0x77;
    frame[22] = 0x77;
    frame[50] = 0x77;
    frame.extend_from_slice(&[1, 2, 3, 4]);
    assert_eq!(Packet::parse(&frame[ETHERNET_BYTES..], native()), Ok((5, tiny)));
}
