//! Packets between endpoints of ours, over rails that carry packets (docs/design/090-packets.md).
//!
//! A packet is a body as MXoE's ([`crate::mxoe`]): two bytes that MXoE gives a meaning and we leave zero,
//! then one of these layouts, with the type in the first byte, in values that hosts with Open-MX drop. It
//! ends in a CRC32C over everything before. All numbers are little endian.
//!
//! Invariants: [`open`] believes nothing before the checksum holds; a sealed packet opens.

use std::time::Duration;

use ropewalk_base::checksum::{append, crc32c};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Version of everything in this file.
pub const VERSION: u16 = 6;
/// Bytes before a layout: MXoE's index.
const INDEX_BYTES: usize = crate::mxoe::INDEX_BYTES;
/// Bytes of the checksum at the end.
const CHECKSUM_BYTES: usize = 4;
/// Bytes of a packet behind its payload.
pub const TAIL_BYTES: usize = CHECKSUM_BYTES;
/// Bytes of a packet besides its layout's rest and its payload.
const FRAME_BYTES: usize = INDEX_BYTES + size_of::<Head>() + CHECKSUM_BYTES;
/// Shortest and longest packet that a link can be made for.
pub const PACKET_BYTES_MIN: usize = 256;
pub const PACKET_BYTES_MAX: usize = 65_000;

macro_rules! layouts {
    ($($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* } $bytes:literal)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
            #[repr(C)]
            pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }
            const _: () = assert!(size_of::<$name>() == $bytes);
        )*
    };
}

layouts! {
    /// The beginning of every packet.
    Head {
        kind: u8,
        /// The endpoint that it is for, where MXoE has it, and the one that it comes from.
        to: u8,
        from: u8,
        flags: u8,
        /// Bytes of the whole packet, index and checksum included; a frame may be padded behind it.
        bytes: U16,
        reserved: U16,
        /// The receiver's name for the link; 0 in a call.
        tag: U32,
    } 12
    /// Asks for a link, and answers.
    CallBody {
        version: U16,
        /// Longest packet that the sender takes and sends.
        packet_bytes: U16,
        /// The sender's name for the link.
        tag: U32,
        /// Chosen by the caller for this call; an answer repeats it.
        call: U64,
        /// Of an answer: 0, [`REFUSAL_NOBODY`] or [`REFUSAL_RETRY`].
        refusal: u8,
        /// Of an answer that asks to call again: what that call has to say here. 0 in others.
        cookie: [u8; COOKIE_BYTES],
    } 24
    /// The acknowledgement of packets that arrived; every packet of the stream carries one.
    AckBody {
        /// The first packet that is missing.
        next: U32,
        /// The time that the oldest news in this acknowledgement waited, in microseconds ([`AckBody::delay`]).
        delay: [u8; 3],
        /// The packet that came again since the last acknowledgement ([`came_again`]); 0: none.
        again: u8,
        /// Bit n: packet `next + 1 + n` is here.
        early: U64,
    } 16
    /// A packet of the stream; bytes of records follow.
    StreamBody {
        ack: AckBody,
        number: U32,
        /// The record that the first byte is of, and that byte's place in it.
        record: U32,
        offset: U32,
        /// The sender's secret of this link: who never had it a packet cannot tell it that the link is gone.
        secret: U32,
    } 32
    /// The link is unknown to the receiver of a packet.
    GoneBody {
        /// The tag of that packet.
        tag: U32,
        /// The secret that it told; 0 where it is no packet of the stream.
        secret: U32,
    } 8
    /// Asks for pieces of a region, or of what was offered. Others may follow in the same packet.
    PullBody {
        /// The asker's name for the transfer.
        handle: U64,
        key_slot: U64,
        key_secret: U64,
        /// The beginning of the transfer in the region, and its length.
        offset: U64,
        total_bytes: U64,
        piece_bytes: U16,
        /// 1: the key is that of an offer.
        offered: u8,
        reserved: u8,
        /// The first piece that is asked for; the others by the bitmap.
        first: U32,
        pieces: U64,
    } 56
    /// A piece; its bytes follow.
    PieceBody {
        handle: U64,
        piece: U32,
        reserved: U32,
    } 16
    /// A pull is refused.
    RefusalBody {
        handle: U64,
        reason: u8,
        reserved: [u8; 7],
    } 16
    /// A packet of a protected link: its kind and its layout follow, sealed, and then the tag.
    SealedBody {
        /// Counted by the sender, from 0 on; the number under which it is sealed. Each counts once.
        number: U64,
    } 8
    /// Record: bytes for a region of the receiver, who is to pull them. Begins like a frame. A list is as many
    /// records behind each other, of which either all are taken or none.
    OfferRecord {
        prefix: RecordPrefix,
        offer: U64,
        secret: U64,
        key_slot: U64,
        key_secret: U64,
        offset: U64,
        total_bytes: U64,
        /// The number of offers of the same list that follow.
        following: U32,
        reserved: U32,
    } 64
    /// Record: the end of an offer.
    TakenRecord {
        prefix: RecordPrefix,
        offer: U64,
        /// 0: all of it is in the region; else why not.
        status: u8,
        reserved: [u8; 7],
    } 24
    /// Record: an offer that is not to be pulled any further, before anything that was ordered after that.
    WithdrawnRecord {
        prefix: RecordPrefix,
        offer: U64,
    } 16
    /// The first bytes of every record: as those of a frame, in which they mean the same.
    RecordPrefix {
        kind: u8,
        header_bytes: u8,
        flags: U16,
        payload_bytes: U32,
    } 8
}

/// Types of packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    Call = 0xc0,
    Answer = 0xc1,
    Stream = 0xc2,
    Ack = 0xc3,
    Pull = 0xc4,
    Piece = 0xc5,
    Refusal = 0xc6,
    Gone = 0xc7,
    Sealed = 0xc8,
}

/// Kinds of records that are no frames of the core.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RecordKind {
    Offer = 0xc0,
    Taken = 0xc1,
    /// The sender closes the link: nothing comes after it.
    Bye = 0xc2,
    Withdrawn = 0xc3,
}

impl RecordKind {
    /// From a record's first byte; `None` for frames.
    pub fn from_u8(value: u8) -> Option<RecordKind> {
        let all = [RecordKind::Offer, RecordKind::Taken, RecordKind::Bye, RecordKind::Withdrawn];
        all.into_iter().find(|it| *it as u8 == value)
    }
}

/// A packet that was opened: its head, and what lies between head and checksum.
#[derive(Debug, Clone, Copy)]
pub struct Opened<'a> {
    pub head: &'a Head,
    pub packet: Packet<'a>,
}

/// The content of a packet.
#[derive(Debug, Clone, Copy)]
pub enum Packet<'a> {
    Call(&'a CallBody),
    Answer(&'a CallBody),
    Stream(&'a StreamBody, &'a [u8]),
    Ack(&'a AckBody),
    /// At least one, and at most [`PULLS_MAX`].
    Pull(&'a [PullBody]),
    Piece(&'a PieceBody, &'a [u8]),
    Refusal(&'a RefusalBody),
    Gone(&'a GoneBody),
    /// Not opened yet: [`parse_enclosed`] says what is in it.
    Sealed(&'a SealedBody),
}

/// Why bytes are no packet of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum PacketError {
    #[error("the packet is none of ours")]
    Foreign,
    #[error("the packet's length or layout is none")]
    Shape,
    #[error("the packet's checksum does not hold")]
    Checksum,
}

/// Bytes of a sealed packet that are readable.
pub const SEALED_HEAD_BYTES: usize = INDEX_BYTES + size_of::<Head>() + size_of::<SealedBody>();
const SEAL_TAG_BYTES: usize = 16;
/// Bytes by which a sealed packet is longer than one in clear: the number, the place of its kind, and the tag in place of the
/// checksum.
pub const SEAL_BYTES: usize = size_of::<SealedBody>() + 1 + SEAL_TAG_BYTES - CHECKSUM_BYTES;

/// Of an answer: nobody has the endpoint.
pub const REFUSAL_NOBODY: u8 = 1;
/// Of an answer: the call is to come again, under the same number and with the cookie of the answer. No link is made before.
pub const REFUSAL_RETRY: u8 = 2;
/// Bytes of a cookie.
pub const COOKIE_BYTES: usize = 7;

/// Pulls in one packet.
pub const PULLS_MAX: usize = 8;

/// Bytes of a packet of a kind besides its payload, and besides further pulls.
pub const fn overhead(kind: Kind) -> usize {
    FRAME_BYTES
        + match kind {
            Kind::Call | Kind::Answer => size_of::<CallBody>(),
            Kind::Stream => size_of::<StreamBody>(),
            Kind::Ack => size_of::<AckBody>(),
            Kind::Pull => size_of::<PullBody>(),
            Kind::Piece => size_of::<PieceBody>(),
            Kind::Refusal => size_of::<RefusalBody>(),
            Kind::Gone => size_of::<GoneBody>(),
            Kind::Sealed => size_of::<SealedBody>(),
        }
}

/// The value of [`AckBody::again`] for a packet of this number. It tells the packet from 254 others beside it.
pub fn came_again(number: u32) -> u8 {
    1 + (number % 255) as u8
}

impl AckBody {
    /// Everything before `next`, and beyond it what the bitmap says; `delay` as long as it fits, half a minute at most.
    pub fn new(next: u32, early: u64, delay: Duration, again: Option<u32>) -> AckBody {
        let micros = delay.as_micros().min((1 << 24) - 1) as u32;
        let [a, b, c, _] = micros.to_le_bytes();
        let again = again.map_or(0, came_again);
        AckBody { next: next.into(), delay: [a, b, c], again, early: early.into() }
    }

    /// The time that the oldest news in this acknowledgement waited.
    pub fn delay(&self) -> Duration {
        let [a, b, c] = self.delay;
        Duration::from_micros(u32::from_le_bytes([a, b, c, 0]).into())
    }
}

/// Whether a body is one of ours, by its type alone.
pub fn is_ours(body: &[u8]) -> bool {
    body.get(INDEX_BYTES).is_some_and(|kind| (Kind::Call as u8..=Kind::Sealed as u8).contains(kind))
}

/// Checks a body and says what it is.
pub fn open(body: &[u8]) -> Result<Opened<'_>, PacketError> {
    if !is_ours(body) {
        return Err(PacketError::Foreign);
    }
    let (head, _) = Head::ref_from_prefix(&body[INDEX_BYTES..]).map_err(|_| PacketError::Shape)?;
    let whole = body.get(..usize::from(head.bytes.get())).ok_or(PacketError::Shape)?;
    if head.kind == Kind::Sealed as u8 {
        // Its tag stands for the checksum.
        let shortest = SEALED_HEAD_BYTES + 1 + SEAL_TAG_BYTES;
        let body = whole.get(SEALED_HEAD_BYTES - size_of::<SealedBody>()..);
        let body = body.and_then(|body| SealedBody::ref_from_prefix(body).ok());
        let (body, _) = body.filter(|_| whole.len() >= shortest).ok_or(PacketError::Shape)?;
        return Ok(Opened { head, packet: Packet::Sealed(body) });
    }
    let (sealed, checksum) = whole.split_last_chunk::<4>().ok_or(PacketError::Shape)?;
    if crc32c(sealed) != u32::from_le_bytes(*checksum) {
        return Err(PacketError::Checksum);
    }
    let rest = sealed.get(INDEX_BYTES + size_of::<Head>()..).ok_or(PacketError::Shape)?;
    let packet = parse(head.kind, rest).ok_or(PacketError::Shape)?;
    Ok(Opened { head, packet })
}

fn parse(kind: u8, rest: &[u8]) -> Option<Packet<'_>> {
    fn exact<T: FromBytes + KnownLayout + Immutable + Unaligned>(rest: &[u8]) -> Option<&T> {
        T::ref_from_bytes(rest).ok()
    }
    Some(match kind {
        // Both are padded, so that they are as long as the longest packet.
        kind if kind == Kind::Call as u8 => Packet::Call(CallBody::ref_from_prefix(rest).ok()?.0),
        kind if kind == Kind::Answer as u8 => {
            Packet::Answer(CallBody::ref_from_prefix(rest).ok()?.0)
        }
        kind if kind == Kind::Stream as u8 => {
            let (body, bytes) = StreamBody::ref_from_prefix(rest).ok()?;
            Packet::Stream(body, bytes)
        }
        kind if kind == Kind::Ack as u8 => Packet::Ack(exact(rest)?),
        kind if kind == Kind::Pull as u8 => {
            let pulls = <[PullBody]>::ref_from_bytes(rest).ok();
            Packet::Pull(pulls.filter(|pulls| (1..=PULLS_MAX).contains(&pulls.len()))?)
        }
        kind if kind == Kind::Piece as u8 => {
            let (body, bytes) = PieceBody::ref_from_prefix(rest).ok()?;
            Packet::Piece(body, bytes)
        }
        kind if kind == Kind::Refusal as u8 => Packet::Refusal(exact(rest)?),
        _ => Packet::Gone(exact(rest)?),
    })
}

/// The content of a sealed packet that was opened. No call, and nothing that is about a link that is not there, is in one.
pub fn parse_enclosed(text: &[u8]) -> Option<Packet<'_>> {
    let (kind, rest) = text.split_first()?;
    let within = [Kind::Stream, Kind::Ack, Kind::Pull, Kind::Piece, Kind::Refusal];
    within.iter().any(|it| *it as u8 == *kind).then(|| parse(*kind, rest))?
}

/// Makes the packet of `len` bytes in `out`, which was written as for a link that is not protected, the text of a sealed one:
/// all but its tag, before it is encrypted; the length of that. There is room for it and the tag.
pub fn enclose(out: &mut [u8], len: usize, number: u64) -> usize {
    let begin = INDEX_BYTES + size_of::<Head>();
    let end = len - CHECKSUM_BYTES + size_of::<SealedBody>() + 1;
    out.copy_within(begin..len - CHECKSUM_BYTES, SEALED_HEAD_BYTES + 1);
    out[SEALED_HEAD_BYTES] = out[INDEX_BYTES];
    out[INDEX_BYTES] = Kind::Sealed as u8;
    let bytes = (end + SEAL_TAG_BYTES) as u16;
    out[INDEX_BYTES + 4..INDEX_BYTES + 6].copy_from_slice(&bytes.to_le_bytes());
    out[begin..SEALED_HEAD_BYTES].copy_from_slice(&number.to_le_bytes());
    end
}

/// The receiver and the sender of a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Route {
    pub to: u8,
    pub from: u8,
    pub tag: u32,
}

/// Writes a packet into `out`, its payload by `payload`, which fills exactly the bytes that it is given; the
/// packet's length. There is room for it.
pub fn seal(
    out: &mut [u8],
    kind: Kind,
    route: Route,
    layout: &[u8],
    payload_bytes: usize,
    payload: impl FnOnce(&mut [u8]),
) -> usize {
    let begin = write_head(out, kind, route, layout, payload_bytes);
    let end = begin + payload_bytes;
    payload(&mut out[begin..end]);
    let checksum = crc32c(&out[..end]);
    out[end..end + CHECKSUM_BYTES].copy_from_slice(&checksum.to_le_bytes());
    end + CHECKSUM_BYTES
}

/// Likewise around a payload that is not written. The bytes after it, which are [`TAIL_BYTES`], follow at once those
/// before it. The result is the length of both together.
pub fn seal_around(
    out: &mut [u8],
    kind: Kind,
    route: Route,
    layout: &[u8],
    payload: &[u8],
) -> usize {
    let begin = write_head(out, kind, route, layout, payload.len());
    let checksum = append(crc32c(&out[..begin]), payload);
    out[begin..begin + TAIL_BYTES].copy_from_slice(&checksum.to_le_bytes());
    begin + TAIL_BYTES
}

/// Writes everything before a payload of so many bytes; the length of that.
fn write_head(
    out: &mut [u8],
    kind: Kind,
    route: Route,
    layout: &[u8],
    payload_bytes: usize,
) -> usize {
    let begin = INDEX_BYTES + size_of::<Head>();
    let end = begin + layout.len();
    let head = Head {
        kind: kind as u8,
        to: route.to,
        from: route.from,
        flags: 0,
        bytes: ((end + payload_bytes + CHECKSUM_BYTES) as u16).into(),
        reserved: 0.into(),
        tag: route.tag.into(),
    };
    out[..INDEX_BYTES].fill(0);
    out[INDEX_BYTES..begin].copy_from_slice(head.as_bytes());
    out[begin..end].copy_from_slice(layout);
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUTE: Route = Route { to: 3, from: 9, tag: 0xabcd_ef01 };

    fn piece() -> Vec<u8> {
        let body = PieceBody { handle: 7.into(), piece: 2.into(), reserved: 0.into() };
        let mut out = vec![0xee; 200];
        let fill = |bytes: &mut [u8]| bytes.fill(0x55);
        let len = seal(&mut out, Kind::Piece, ROUTE, body.as_bytes(), 100, fill);
        assert_eq!(len, overhead(Kind::Piece) + 100);
        out
    }

    #[test]
    fn what_is_sealed_around_a_payload_is_what_is_sealed_with_it() {
        let body = PieceBody { handle: 7.into(), piece: 2.into(), reserved: 0.into() };
        let mut out = [0xee; 200];
        let written = seal_around(&mut out, Kind::Piece, ROUTE, body.as_bytes(), &[0x55; 100]);
        let (head, tail) = out[..written].split_at(written - TAIL_BYTES);
        let mut whole = piece();
        whole.truncate(overhead(Kind::Piece) + 100);
        assert_eq!([head, &[0x55; 100], tail].concat(), whole);
    }

    #[test]
    fn what_was_sealed_opens_also_where_a_frame_is_padded() {
        let bytes = piece();
        let opened = open(&bytes).unwrap();
        assert_eq!((opened.head.to, opened.head.from), (3, 9));
        assert_eq!(opened.head.tag.get(), ROUTE.tag);
        let Packet::Piece(body, payload) = opened.packet else { panic!("{opened:?}") };
        assert_eq!((body.handle.get(), body.piece.get()), (7, 2));
        assert_eq!(payload, [0x55; 100]);
        assert_eq!(crate::mxoe::endpoint_of(&bytes, crate::mxoe::Order::Big), None);
    }

    #[test]
    fn a_bit_that_flipped_anywhere_is_found() {
        let bytes = piece();
        let len = overhead(Kind::Piece) + 100;
        for bit in 16..len * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(open(&bad).is_err(), "bit {bit}");
        }
        for end in 0..len {
            assert!(open(&bytes[..end]).is_err(), "{end} bytes");
        }
    }

    #[test]
    fn layouts_have_their_length() {
        let mut out = vec![0; 200];
        for (kind, bytes) in
            [(Kind::Ack, 15), (Kind::Pull, 57), (Kind::Gone, 4), (Kind::Stream, 31)]
        {
            seal(&mut out, kind, ROUTE, &[], bytes, |_| ());
            assert_eq!(open(&out).err(), Some(PacketError::Shape), "{kind:?}");
        }
        let mut out = vec![0; 1000];
        for (count, good) in [(0, false), (1, true), (PULLS_MAX, true), (PULLS_MAX + 1, false)] {
            let bytes = count * size_of::<PullBody>();
            seal(&mut out, Kind::Pull, ROUTE, &[], bytes, |rest| rest.fill(0));
            let pulls = open(&out).map(|opened| match opened.packet {
                Packet::Pull(pulls) => pulls.len(),
                _ => 0,
            });
            let wanted = if good { Ok(count) } else { Err(PacketError::Shape) };
            assert_eq!(pulls, wanted, "{count} pulls");
        }
        assert_eq!(open(&[0, 0, 0x25]).err(), Some(PacketError::Foreign));
    }
}
