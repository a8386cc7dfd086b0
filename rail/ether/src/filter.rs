//! The frames that the kernel lets through, and the endpoint that a frame is for: the same rules in both places.

use ropewalk_wire::mxoe::{self, ETHERNET_BYTES, Order, PULL_MAGIC, Station, Type};
use ropewalk_wire::packets::Kind;

use crate::config::Protocol;
use crate::numbers::Numbers;

/// The offset of a frame's type, and for most frames that of the number of the destination endpoint.
pub const TYPE_AT: u32 = 16;
pub const ENDPOINT_AT: u32 = 17;
/// The endpoint's offset in MXoE's refusals of messages and in answers to a pull, and the mask that hides the latter.
pub const REFUSED_AT: u32 = 25;
pub const MAGIC_AT: u32 = 28;
pub const MAGIC: u32 = PULL_MAGIC & 0xff;
/// Types of our packets have both of these bits, and those of MXoE none.
pub const OURS: u32 = 0xc0;

/// The endpoint that a body is for.
pub fn endpoint_of(body: &[u8], protocol: Protocol) -> Option<u8> {
    let kind = u32::from(*body.get(TYPE_AT as usize - ETHERNET_BYTES)?) & OURS;
    match protocol {
        Protocol::Ours if kind == OURS => body.get(ENDPOINT_AT as usize - ETHERNET_BYTES).copied(),
        Protocol::Mxoe(order) if kind == 0 => mxoe::endpoint_of(body, order),
        _ => None,
    }
}

const WORD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
const HALF: u32 = libc::BPF_LD | libc::BPF_H | libc::BPF_ABS;
const BYTE: u32 = libc::BPF_LD | libc::BPF_B | libc::BPF_ABS;
const NUMBER: u32 = libc::BPF_LD | libc::BPF_IMM;
const TO_X: u32 = libc::BPF_MISC | libc::BPF_TAX;
const AND: u32 = libc::BPF_ALU | libc::BPF_AND | libc::BPF_K;
const SHIFT: u32 = libc::BPF_ALU | libc::BPF_RSH | libc::BPF_K;
const SHIFT_BY_X: u32 = libc::BPF_ALU | libc::BPF_RSH | libc::BPF_X;
const IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
const XOR: u32 = libc::BPF_ALU | libc::BPF_XOR | libc::BPF_K;
const KEEP: u32 = libc::BPF_ST;
const KEPT: u32 = libc::BPF_LD | libc::BPF_MEM;
const ALWAYS: u32 = libc::BPF_JMP | libc::BPF_JA;
const RETURN: u32 = libc::BPF_RET | libc::BPF_K;

/// A program that lets through frames for this station and one of these endpoints of a protocol, and nothing else.
/// The kernel runs it for each frame of our EtherType, however many endpoints there are: their numbers are bits of
/// eight words, one of which is looked at.
pub fn program(
    station: Station,
    protocol: Protocol,
    endpoints: &Numbers,
) -> Vec<libc::sock_filter> {
    let [a, b, c, d, e, f] = station.0;
    let high = u32::from_be_bytes([a, b, c, d]);
    let low = u32::from(u16::from_be_bytes([e, f]));
    let drop = statement(RETURN, 0);
    let mut program = vec![
        statement(WORD, 0),
        equal(high, 1, 0),
        drop,
        statement(HALF, 4),
        equal(low, 1, 0),
        drop,
        statement(BYTE, TYPE_AT),
        statement(AND, OURS),
        equal(if protocol == Protocol::Ours { OURS } else { 0 }, 1, 0),
        drop,
    ];
    program.extend(endpoint_of_frame(protocol));
    program.extend(is_among(endpoints, u32::MAX, 0));
    program
}

/// A program that lets through the frames that the agent of an interface has to see: beacons for everybody;
/// questions and answers of hosts for this station; and frames for this station that can be refused and are for none
/// of these endpoints.
pub fn agent_program(station: Station, hidden: &Numbers) -> Vec<libc::sock_filter> {
    let [a, b, c, d, e, f] = station.0;
    let high = u32::from_be_bytes([a, b, c, d]);
    let low = u32::from(u16::from_be_bytes([e, f]));
    let (drop, pass) = (statement(RETURN, 0), statement(RETURN, u32::MAX));
    let mut program = vec![
        statement(WORD, 0),
        equal(high, 0, 4),
        statement(HALF, 4),
        equal(low, 0, 1),
        statement(ALWAYS, 10),
        drop,
        // For everybody?
        equal(u32::MAX, 1, 0),
        drop,
        statement(HALF, 4),
        equal(0xffff, 1, 0),
        drop,
        statement(BYTE, TYPE_AT),
        equal(Type::Raw as u32, 0, 1),
        pass,
        drop,
        statement(BYTE, TYPE_AT),
    ];
    for kind in [Type::Raw, Type::HostQuery, Type::HostReply] {
        program.extend([equal(kind as u32, 0, 1), pass]);
    }
    let refused = [
        Type::Connect as u32,
        Type::Tiny as u32,
        Type::Small as u32,
        Type::Medium as u32,
        Type::Rendezvous as u32,
        Type::Pull as u32,
        Type::Notify as u32,
        // Our own protocol's way to connect.
        Kind::Call as u32,
    ];
    for (index, kind) in refused.into_iter().enumerate() {
        program.push(equal(kind, (refused.len() - index) as u8, 0));
    }
    program.extend([drop, statement(BYTE, ENDPOINT_AT)]);
    program.extend(is_among(hidden, 0, u32::MAX));
    program
}

/// A program that lets through RAW packets alone: for everybody, and for this station.
pub fn raw_program(station: Station) -> Vec<libc::sock_filter> {
    let [a, b, c, d, e, f] = station.0;
    let high = u32::from_be_bytes([a, b, c, d]);
    let low = u32::from(u16::from_be_bytes([e, f]));
    let (drop, pass) = (statement(RETURN, 0), statement(RETURN, u32::MAX));
    vec![
        statement(WORD, 0),
        equal(high, 0, 2),
        statement(HALF, 4),
        // A frame for another station is then compared with the broadcast address, and does not match.
        equal(low, 4, 0),
        equal(u32::MAX, 1, 0),
        drop,
        statement(HALF, 4),
        equal(0xffff, 0, 2),
        statement(BYTE, TYPE_AT),
        equal(Type::Raw as u32, 1, 0),
        drop,
        pass,
    ]
}

/// Instructions that return one of two values, as the number is in the set or not.
fn is_among(numbers: &Numbers, inside: u32, outside: u32) -> Vec<libc::sock_filter> {
    let (inside, outside) = (statement(RETURN, inside), statement(RETURN, outside));
    let mut program = vec![
        statement(KEEP, 0),
        statement(AND, 31),
        statement(TO_X, 0),
        statement(KEPT, 0),
        statement(SHIFT, 5),
    ];
    for (index, word) in numbers.words().into_iter().enumerate().filter(|(_, word)| *word != 0) {
        program.extend([
            equal(index as u32, 0, 6),
            statement(NUMBER, word),
            statement(SHIFT_BY_X, 0),
            statement(AND, 1),
            equal(1, 0, 1),
            inside,
            outside,
        ]);
    }
    program.push(outside);
    program
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

/// Goes on by so many instructions, where the value is this or another one.
fn equal(k: u32, jt: u8, jf: u8) -> libc::sock_filter {
    libc::sock_filter { code: IF_EQUAL as u16, jt, jf, k }
}

/// Instructions that find the endpoint of a frame.
fn endpoint_of_frame(protocol: Protocol) -> Vec<libc::sock_filter> {
    let order = match protocol {
        Protocol::Ours => return vec![statement(BYTE, ENDPOINT_AT)],
        Protocol::Mxoe(order) => order,
    };
    let magic_at = if order == Order::Big { MAGIC_AT + 3 } else { MAGIC_AT };
    vec![
        statement(BYTE, TYPE_AT),
        equal(Type::PullReply as u32, 2, 0),
        equal(Type::NackMcp as u32, 1, 0),
        equal(Type::NackLib as u32, 3, 5),
        statement(BYTE, magic_at),
        statement(XOR, MAGIC),
        statement(ALWAYS, 3),
        statement(BYTE, REFUSED_AT),
        statement(ALWAYS, 1),
        statement(BYTE, ENDPOINT_AT),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program as the kernel does, for the instructions that are used here.
    fn accepts(program: &[libc::sock_filter], frame: &[u8]) -> bool {
        let (mut at, mut a, mut x, mut kept) = (0, 0u32, 0u32, 0u32);
        loop {
            let it = program[at];
            at += 1;
            let k = it.k as usize;
            match u32::from(it.code) {
                WORD => a = u32::from_be_bytes(frame[k..k + 4].try_into().unwrap()),
                HALF => a = u16::from_be_bytes(frame[k..k + 2].try_into().unwrap()).into(),
                // Behind the end: the kernel drops.
                BYTE => match frame.get(k) {
                    Some(byte) => a = (*byte).into(),
                    None => return false,
                },
                NUMBER => a = it.k,
                TO_X => x = a,
                AND => a &= it.k,
                XOR => a ^= it.k,
                KEEP => kept = a,
                KEPT => a = kept,
                ALWAYS => at += k,
                SHIFT => a >>= it.k,
                SHIFT_BY_X => a >>= x,
                IF_EQUAL => at += usize::from(if a == it.k { it.jt } else { it.jf }),
                RETURN => return it.k != 0,
                other => panic!("instruction {other}"),
            }
        }
    }

    #[test]
    fn exactly_what_is_for_these_endpoints_passes() {
        let station: Station = "02:00:5e:00:00:01".parse().unwrap();
        let sets: [&[u8]; 5] = [&[], &[0], &[7, 8, 254], &[31, 32, 63, 64, 128, 255], &[100]];
        for set in sets.into_iter().map(|set| set.to_vec()).chain([(0..=255).collect()]) {
            let mut numbers = Numbers::default();
            set.iter().for_each(|number| numbers.insert(*number));
            let program = program(station, Protocol::Ours, &numbers);
            for number in 0..=255u8 {
                let mut frame = [0; 60];
                frame[..6].copy_from_slice(&station.0);
                (frame[16], frame[17]) = (0xc1, number);
                assert_eq!(accepts(&program, &frame), set.contains(&number), "{set:?} {number}");
                frame[5] ^= 1;
                assert!(!accepts(&program, &frame), "for another station");
                frame[5] ^= 1;
                frame[0] ^= 1;
                assert!(!accepts(&program, &frame), "for another station");
            }
            assert!(
                !accepts(&program, &[2, 0, 0x5e, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0]),
                "too short"
            );
        }
    }

    #[test]
    fn packets_of_mxoe_are_for_the_endpoint_that_their_layout_says() {
        let station: Station = "02:00:5e:00:00:01".parse().unwrap();
        for order in [Order::Big, Order::Little] {
            let protocol = Protocol::Mxoe(order);
            for (kind, bytes) in (0..=255u8).flat_map(|kind| [60, 20].map(|bytes| (kind, bytes))) {
                let mut frame: Vec<u8> = (0..bytes).map(|at| at as u8 ^ kind).collect();
                frame[..6].copy_from_slice(&station.0);
                frame[16] = kind;
                let endpoint = endpoint_of(&frame[ETHERNET_BYTES..], protocol);
                for number in 0..=255 {
                    let mut numbers = Numbers::default();
                    numbers.insert(number);
                    let passes = accepts(&program(station, protocol, &numbers), &frame);
                    // A packet for the host itself passes with some number, and is dropped afterwards.
                    assert!(passes || endpoint != Some(number), "{kind:#x} {number}");
                    let known = Type::from_u8(kind).is_some() && endpoint.is_some();
                    assert!(!passes || !known || endpoint == Some(number), "{kind:#x} {number}");
                    assert!(!passes || kind & 0xc0 == 0, "{kind:#x} is not MXoE's");
                }
            }
        }
    }

    #[test]
    fn an_agent_sees_hosts_and_what_is_for_endpoints_that_are_not_hidden() {
        let station: Station = "02:00:5e:00:00:01".parse().unwrap();
        let mut hidden = Numbers::default();
        [0, 7, 64, 254].into_iter().for_each(|number| hidden.insert(number));
        let program = agent_program(station, &hidden);
        let mut accepted = 0;
        for kind in 0..=255u8 {
            for number in [0, 1, 7, 8, 64, 65, 254, 255u8] {
                let mut frame = [0; 60];
                (frame[16], frame[17]) = (kind, number);
                let mut passes = |station: Station| {
                    frame[..6].copy_from_slice(&station.0);
                    accepts(&program, &frame)
                };
                let is_host = [1, 3, 4].contains(&kind);
                let is_refused = (0x24..=0x29).contains(&kind) || [0x2b, 0xc0].contains(&kind);
                let expected = is_host || is_refused && !hidden.contains(number);
                assert_eq!(passes(station), expected, "{kind:#x} {number}");
                assert_eq!(passes(Station::BROADCAST), kind == 1, "{kind:#x}");
                assert!(!passes("02:00:5e:00:00:02".parse().unwrap()));
                assert!(!passes("03:00:5e:00:00:01".parse().unwrap()));
                accepted += u32::from(expected);
            }
        }
        assert_eq!(accepted, 3 * 8 + 8 * 4);
        assert!(!accepts(&program, &[2, 0, 0x5e, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]));
    }

    #[test]
    fn a_raw_endpoint_sees_raw_packets_for_its_station_and_for_everybody() {
        let [own, other]: [Station; 2] =
            ["02:00:5e:00:00:01", "02:00:5e:00:00:02"].map(|it| it.parse().unwrap());
        let elsewhere: Station = "ff:ff:ff:ff:00:01".parse().unwrap();
        let program = raw_program(own);
        for kind in 0..=255u8 {
            let mut frame = [0; 60];
            (frame[16], frame[17]) = (kind, 255);
            let passes = [own, Station::BROADCAST, other, elsewhere].map(|station| {
                frame[..6].copy_from_slice(&station.0);
                accepts(&program, &frame)
            });
            assert_eq!(passes, [kind == 1, kind == 1, false, false], "{kind:#x}");
        }
        assert!(!accepts(&program, &[0xff; 16]), "too short");
    }
}
