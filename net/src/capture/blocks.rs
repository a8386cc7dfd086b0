//! Blocks of a pcapng file, with nanoseconds.
//!
//! Invariant: a block is whole, and a multiple of four bytes long.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;

/// Options of blocks.
const USER_PROGRAM: u16 = 4;
const NAME: u16 = 2;
const RESOLUTION: u16 = 9;
const FLAGS: u16 = 2;
const RECEIVED: u16 = 4;
const DROPPED: u16 = 5;

/// The direction of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    In = 1,
    Out = 2,
}

/// A block of this kind, its body by `fill`.
fn block(out: &mut Vec<u8>, kind: u32, fill: impl FnOnce(&mut Vec<u8>)) {
    let begin = out.len();
    out.extend(kind.to_le_bytes());
    out.extend([0; 4]);
    fill(out);
    pad(out, begin);
    let bytes = (out.len() - begin + 4) as u32;
    out.extend(bytes.to_le_bytes());
    out[begin + 4..begin + 8].copy_from_slice(&bytes.to_le_bytes());
}

fn pad(out: &mut Vec<u8>, begin: usize) {
    let bytes = (out.len() - begin).next_multiple_of(4);
    out.resize(begin + bytes, 0);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    let begin = out.len();
    out.extend(value);
    pad(out, begin);
}

fn no_more_options(out: &mut Vec<u8>) {
    out.extend([0; 4]);
}

/// Writes the beginning of a file: one interface, with frames of this type.
pub fn begin(out: &mut Vec<u8>, link_type: u16, interface: &str) {
    block(out, SECTION, |out| {
        out.extend(0x1a2b_3c4d_u32.to_le_bytes());
        out.extend([1, 0, 0, 0]);
        // Its length is not known yet.
        out.extend(u64::MAX.to_le_bytes());
        option(out, USER_PROGRAM, concat!("Ropewalk ", env!("CARGO_PKG_VERSION")).as_bytes());
        no_more_options(out);
    });
    block(out, INTERFACE, |out| {
        out.extend(link_type.to_le_bytes());
        out.extend([0; 2]);
        // Whole packets.
        out.extend(0u32.to_le_bytes());
        option(out, NAME, interface.as_bytes());
        option(out, RESOLUTION, &[9]);
        no_more_options(out);
    });
}

fn time(out: &mut Vec<u8>, now: SystemTime) {
    let nanoseconds = now.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_nanos() as u64;
    out.extend(((nanoseconds >> 32) as u32).to_le_bytes());
    out.extend((nanoseconds as u32).to_le_bytes());
}

/// A packet, which `frame` writes.
pub fn packet(out: &mut Vec<u8>, now: SystemTime, way: Way, frame: impl FnOnce(&mut Vec<u8>)) {
    block(out, PACKET, |out| {
        out.extend(0u32.to_le_bytes());
        time(out, now);
        let lengths = out.len();
        out.extend([0; 8]);
        let begin = out.len();
        frame(out);
        let bytes = ((out.len() - begin) as u32).to_le_bytes();
        out[lengths..lengths + 4].copy_from_slice(&bytes);
        out[lengths + 4..lengths + 8].copy_from_slice(&bytes);
        pad(out, begin);
        option(out, FLAGS, &(way as u32).to_le_bytes());
        no_more_options(out);
    });
}

/// Writes the number of packets, and the number of those that are not in the file.
pub fn statistics(out: &mut Vec<u8>, now: SystemTime, packets: u64, dropped: u64) {
    block(out, STATISTICS, |out| {
        out.extend(0u32.to_le_bytes());
        time(out, now);
        option(out, RECEIVED, &packets.to_le_bytes());
        option(out, DROPPED, &dropped.to_le_bytes());
        no_more_options(out);
    });
}

/// The number of the first bytes that are whole blocks.
pub fn whole(blocks: &[u8], bytes: usize) -> usize {
    let mut at = 0;
    while let Some(length) = blocks.get(at + 4..at + 8) {
        let end = at + u32::from_le_bytes([length[0], length[1], length[2], length[3]]) as usize;
        if end > bytes {
            break;
        }
        at = end;
    }
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_whole_or_left_out() {
        let mut out = Vec::new();
        begin(&mut out, 1, "ether/3");
        let (section, first) = (out[4] as usize, out.len());
        packet(&mut out, UNIX_EPOCH + Duration::new(5, 7), Way::Out, |out| out.extend(b"frame"));
        let second = out.len();
        assert_eq!((first % 4, second - first), (0, 28 + 8 + 12 + 4));
        assert_eq!(out[first + 12..first + 20], [1, 0, 0, 0, 7, 242, 5, 42]);
        let ends =
            [(0, 0), (first - 1, section), (first, first), (second - 1, first), (second, second)];
        for (bytes, expected) in ends {
            assert_eq!(whole(&out, bytes), expected, "{bytes} of {second}");
        }
    }
}
