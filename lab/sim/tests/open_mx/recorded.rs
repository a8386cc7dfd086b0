//! The packets of two real hosts with Open-MX, frame by frame.

use std::collections::BTreeMap;
use std::path::PathBuf;

use ropewalk_base::time::Time;
use ropewalk_wire::mxoe::*;

/// A frame, filled up with zeroes where only its beginning was kept.
pub struct Frame {
    pub at: Time,
    pub ethernet: Ethernet,
    pub body: Vec<u8>,
}

pub fn capture(name: &str) -> Vec<Frame> {
    let room = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../wire/tests/captures");
    let bytes = std::fs::read(room.join(name)).expect("the capture is in the tree");
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let (mut at, mut frames) = (24, Vec::new());
    while at < bytes.len() {
        let kept = number(at + 8) as usize;
        let mut frame = bytes[at + 16..at + 16 + kept].to_vec();
        frame.resize(number(at + 12) as usize, 0);
        let (ethernet, body) = Ethernet::split(&frame).expect("an Ethernet header");
        let micros = u64::from(number(at)) * 1_000_000 + u64::from(number(at + 4));
        frames.push(Frame { at: Time(micros * 1000), ethernet, body: body.to_vec() });
        at += 16 + kept;
    }
    // Frames of a host to itself do not belong to the dialogue.
    frames.retain(|frame| frame.ethernet.source != frame.ethernet.destination);
    frames
}

pub fn dialect() -> Dialect {
    Dialect::native(1500, Order::Big).unwrap()
}

pub fn packet(body: &[u8]) -> (u16, Packet<'_>) {
    Packet::parse(body, dialect()).expect("a packet")
}

/// The messages that the user of a station sent: by number, with the match bits.
pub fn messages(frames: &[Frame], from: Station) -> BTreeMap<u16, (u64, Vec<u8>)> {
    let mut all: BTreeMap<u16, (u64, Vec<u8>)> = BTreeMap::new();
    // Large ones are found by the use of region 0, which is the only one that they had, and by handles.
    let (mut uses, mut handles) = (BTreeMap::new(), BTreeMap::new());
    for frame in frames {
        let mine = frame.ethernet.source == from;
        match packet(&frame.body).1 {
            Packet::Tiny(message, bytes) | Packet::Small(message, bytes) if mine => {
                all.insert(message.sequence.0, (message.match_info, bytes.to_vec()));
            }
            Packet::Medium(piece, bytes) if mine => {
                let empty = (piece.message.match_info, vec![0; piece.total_bytes as usize]);
                let (_, data) = all.entry(piece.message.sequence.0).or_insert(empty);
                data[piece.offset as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            Packet::Rendezvous(announced) if mine => {
                let empty = (announced.message.match_info, vec![0; announced.total_bytes as usize]);
                all.entry(announced.message.sequence.0).or_insert(empty);
                uses.insert(announced.region_sequence, announced.message.sequence.0);
            }
            Packet::Pull(pull) if !mine => {
                handles.insert(pull.handle, uses[&pull.region_sequence]);
            }
            Packet::PullReply(reply, bytes) if mine => {
                let (_, data) = all.get_mut(&handles[&reply.handle]).unwrap();
                data[reply.offset as usize..][..bytes.len()].copy_from_slice(bytes);
            }
            _ => {}
        }
    }
    all
}
