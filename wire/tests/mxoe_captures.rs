//! Packets of two real Open-MX hosts, read with our decoder.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ropewalk_wire::mxoe::*;

/// A frame as it was captured, filled up with zeroes where only its beginning was kept.
struct Frame {
    micros: u64,
    ethernet: Ethernet,
    body: Vec<u8>,
}

fn capture(name: &str) -> Vec<Frame> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/captures").join(name);
    let bytes = std::fs::read(&path).expect("the capture is in the tree");
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    assert_eq!(number(0), 0xa1b2_c3d4, "microseconds, little endian");
    let (mut at, mut frames) = (24, Vec::new());
    while at < bytes.len() {
        let kept = number(at + 8) as usize;
        let mut frame = bytes[at + 16..at + 16 + kept].to_vec();
        frame.resize(number(at + 12) as usize, 0);
        let (ethernet, body) = Ethernet::split(&frame).expect("an Ethernet header");
        let micros = u64::from(number(at)) * 1_000_000 + u64::from(number(at + 4));
        frames.push(Frame { micros, ethernet, body: body.to_vec() });
        at += 16 + kept;
    }
    frames
}

fn dialect() -> Dialect {
    Dialect::native(1500, Order::Big).unwrap()
}

fn both() -> Vec<Vec<Frame>> {
    ["open-mx-first-host.pcap", "open-mx-second-host.pcap"].map(capture).into_iter().collect()
}

/// Every packet of a capture, with its index and its frame.
fn packets(frames: &[Frame]) -> Vec<(u16, Packet<'_>, &Frame)> {
    let mut all = Vec::new();
    for frame in frames {
        assert_eq!(frame.ethernet.ethertype, ETHERTYPE);
        let (index, packet) = Packet::parse(&frame.body, dialect()).expect("a packet");
        all.push((index, packet, frame));
    }
    all
}

#[test]
fn every_frame_is_read() {
    for (frames, tiny) in both().iter().zip([87, 117]) {
        let mut counts: BTreeMap<u8, usize> = BTreeMap::new();
        for frame in frames {
            *counts.entry(frame.body[INDEX_BYTES]).or_default() += 1;
        }
        assert_eq!(packets(frames).len(), frames.len());
        let expected = [
            (Type::Raw, 17),
            (Type::HostQuery, 2),
            (Type::HostReply, 2),
            (Type::Truc, 14),
            (Type::Connect, 4),
            (Type::Tiny, tiny),
            (Type::Small, 12),
            (Type::Medium, 96),
            (Type::Rendezvous, 15),
            (Type::Pull, 37),
            (Type::PullReply, 829),
            (Type::Notify, 15),
        ];
        let expected: BTreeMap<u8, usize> =
            expected.into_iter().map(|(kind, count)| (kind as u8, count)).collect();
        assert_eq!(counts, expected);
    }
}

#[test]
fn each_frame_is_written_as_it_was_but_for_its_pads() {
    for frames in both() {
        for (index, packet, frame) in packets(&frames) {
            let mut header = [0; HEADER_BYTES_MAX];
            let len = packet.emit(index, dialect(), &mut header);
            let again = Packet::parse(&frame.body, dialect());
            let mut body = header[..len].to_vec();
            body.extend_from_slice(&frame.body[len..]);
            assert_eq!(Packet::parse(&body, dialect()), again);
            // A byte that differs belongs to a pad, in which Open-MX leaves old bytes, or to a checksum that it does
            // not fill in.
            let at = |offset: usize| offset - ETHERNET_BYTES;
            let kind = Type::from_u8(frame.body[INDEX_BYTES]).unwrap();
            for offset in (0..len).filter(|offset| header[*offset] != frame.body[*offset]) {
                let pad = match kind {
                    Type::Tiny | Type::Small => offset == at(22) || offset == at(23),
                    Type::Medium => (at(43)..at(48)).contains(&offset),
                    Type::Pull => (at(33)..at(36)).contains(&offset),
                    Type::Rendezvous => offset == at(22) || offset == at(23),
                    _ => false,
                };
                assert!(pad || offset == at(19), "{kind:?}: byte {}", offset + ETHERNET_BYTES);
            }
        }
    }
}

#[test]
fn beacons_and_names_are_those_of_two_hosts() {
    for frames in both() {
        let mut serials: BTreeMap<Station, u32> = BTreeMap::new();
        let mut names = Vec::new();
        for (_, packet, frame) in packets(&frames) {
            match packet {
                Packet::Raw(rest) => {
                    let beacon = Beacon::parse(rest).expect("all RAW are beacons");
                    assert_eq!(beacon.station, frame.ethernet.source);
                    assert_eq!(beacon.ours, None);
                    assert_eq!(frame.ethernet.destination, Station::BROADCAST);
                    assert_eq!(
                        *serials.entry(beacon.station).or_insert(beacon.serial),
                        beacon.serial
                    );
                    assert_eq!(beacon.emit(), frame.body[..], "byte for byte");
                }
                Packet::HostQuery(query) => assert_eq!(query.magic, HOST_QUERY_MAGIC),
                Packet::HostReply(reply) => {
                    assert_eq!((reply.index, reply.magic), (1, HOST_QUERY_MAGIC));
                    let bytes = FRAME_BYTES_MIN + reply.name.len() + 1;
                    assert_eq!(frame.body.len() + ETHERNET_BYTES, bytes);
                    names.push(String::from_utf8(reply.name.to_vec()).unwrap());
                }
                _ => {}
            }
        }
        names.sort();
        assert_eq!((serials.len(), names), (2, vec!["g1:0".to_string(), "g2:0".to_string()]));
    }
}

#[test]
fn pieces_lie_where_the_dialect_says() {
    for frames in both() {
        let (mut handles, mut blocks) = (Vec::new(), BTreeMap::<u32, Vec<u32>>::new());
        let mut regions = Vec::new();
        for (index, packet, _) in packets(&frames) {
            match packet {
                Packet::Medium(piece, bytes) => {
                    assert_eq!(piece.offset, u32::from(piece.fragment) * 1452);
                    let rest = piece.total_bytes - piece.offset;
                    assert_eq!(bytes.len() as u32, rest.min(dialect().fragment_bytes()));
                    assert_eq!(index, 1, "a host is number 0 in its own table");
                }
                Packet::Rendezvous(announced) => regions.push(announced.region_sequence),
                Packet::Pull(pull) => {
                    assert_eq!(Pull::endpoint_of(pull.magic), Some(pull.from));
                    handles.push(pull.handle);
                    assert_eq!((pull.first_offset, pull.region_offset), (0, 0));
                    blocks.entry(pull.total_bytes).or_default().push(pull.block_bytes);
                }
                Packet::PullReply(reply, _) => {
                    assert_eq!(reply.offset % 1468, 0);
                    assert_eq!(reply.offset / 1468 % 256, reply.frame.into());
                    assert_eq!(index, 0, "it names nobody");
                }
                _ => {}
            }
        }
        assert_eq!(regions[0], REGION_SEQUENCE_FIRST);
        assert!(handles.contains(&0x23) && handles.contains(&0x0040_0023), "{handles:x?}");
        assert_eq!(blocks[&100_000][..3], [46_976, 46_976, 6048]);
    }
}

#[test]
fn acknowledgements_come_late_and_the_first_one_of_one_side_in_vain() {
    let mut late = Vec::new();
    for frames in both() {
        let all = packets(&frames);
        let acks: Vec<Ack> = all
            .iter()
            .filter_map(
                |(_, packet, _)| if let Packet::Ack(ack) = packet { Some(*ack) } else { None },
            )
            .collect();
        assert_eq!(acks[0].session, SESSION_UNKNOWN, "it connected one way only so far");
        assert!(acks[1..].iter().all(|ack| ack.session != SESSION_UNKNOWN));
        assert_eq!(acks[0].number, 1, "numbers begin with 1");
        for (position, (_, packet, frame)) in all.iter().enumerate() {
            let Packet::Ack(ack) = packet else { continue };
            let last = all[..position].iter().rev().find_map(|(_, packet, other)| {
                let sequence = match packet {
                    Packet::Tiny(message, _) | Packet::Small(message, _) => message.sequence,
                    Packet::Notify(notify) => notify.sequence,
                    _ => return None,
                };
                let theirs = other.ethernet.source == frame.ethernet.destination;
                (theirs && ack.acknowledged.ahead_of(sequence) == 1).then_some(other.micros)
            });
            late.extend(last.map(|then| frame.micros - then));
        }
    }
    late.sort_unstable();
    assert!(late.len() >= 10, "{late:?}");
    // Their timer, of 15.6 ms and a tick, runs from the first message that was not acknowledged.
    assert!(*late.last().unwrap() < 20_000 && late[late.len() / 2] > 9_000, "{late:?}");
}
