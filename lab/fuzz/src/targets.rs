//! The targets. A new decoder gets one line in [`TARGETS`], and by that runs everywhere.
//!
//! Each target makes two demands of a decoder. It does not panic on any bytes. Every value that it accepts survives a
//! round trip: encoded and decoded again, the value is the same.

use ropewalk_base::descriptor::{Descriptor, Piece, Run};
use ropewalk_base::limits::{FRAME_PAYLOAD_BYTES_MAX, HEADER_BYTES_MAX};
use ropewalk_base::verb::Header;
use ropewalk_data::attack as notes;
use ropewalk_election::record;
use ropewalk_meta::dump::Parser;
use ropewalk_meta::exports::{DEFAULT_EXPORT, Export};
use ropewalk_meta::history::TermRow;
use ropewalk_meta::inode::Inode;
use ropewalk_meta::pools::{decode_band, decode_pool, encode_band, encode_pool};
use ropewalk_meta::sessions::SessionRow;
use ropewalk_rail::address::Address;
use ropewalk_rail::interfaces::attack;
use ropewalk_rail::{FRAME_PREFIX_BYTES, frame_lengths};
use ropewalk_store::decoders;
use ropewalk_wire::frame;
use ropewalk_wire::fs::data::{DataReply, DataRequest, DataResult};
use ropewalk_wire::fs::election::{Answer, Ballot};
use ropewalk_wire::fs::handover::{self, FrameHead};
use ropewalk_wire::fs::head::{CallHead, ReplyHead};
use ropewalk_wire::fs::layout::{Growth, Layout, Pool};
use ropewalk_wire::fs::map::{Band, Map, News};
use ropewalk_wire::fs::meta::{Callback, MetaReply, MetaRequest, MetaResult};
use ropewalk_wire::fs::orders::Orders;
use ropewalk_wire::fs::session::{SessionRequest, SessionResult};
use ropewalk_wire::fs::standby::{StandbyRequest, StandbyResult};
use ropewalk_wire::fs::trust::{Acceptance, Introduction, SEAL_BYTES, Seal};
use ropewalk_wire::fs::{decode, encode};
use ropewalk_wire::mxoe::{self, Beacon, Dialect, Order, Packet};

use crate::Target;

/// A target for a type of the file system's messages.
macro_rules! message {
    ($type:ty) => {
        |bytes: &[u8]| {
            let Ok(value) = decode::<$type>(bytes) else { return };
            let mut again = Vec::new();
            encode(&value, &mut again);
            assert_eq!(decode::<$type>(&again).as_ref(), Ok(&value), "the journey changes it");
        }
    };
}

/// The messages that members of a cluster exchange before they know each other, and the seal at the end of a call.
fn trust_words(bytes: &[u8]) {
    let Some((choice, body)) = bytes.split_first() else { return };
    let (introduction, acceptance): (Target, Target) =
        (message!(Introduction), message!(Acceptance));
    match choice % 3 {
        0 => introduction(body),
        1 => acceptance(body),
        _ => {
            let Ok((request, seal)) = Seal::split(body) else { return };
            assert_eq!(request.len() + SEAL_BYTES, body.len(), "request and seal are all there is");
            let mut again = request.to_vec();
            seal.encode(&mut again);
            assert_eq!(again, body, "the journey changes it");
        }
    }
}

/// A frame of the hand-over of a mount.
fn handover_frame(bytes: &[u8]) {
    let Some((head, body)) = bytes.split_first_chunk() else { return };
    let Ok(read) = FrameHead::decode(head) else { return };
    assert_eq!(read.encode().as_ref(), Some(head), "the journey changes it");
    if read.is_of(body) {
        assert_eq!(FrameHead::of(read.kind, body), read);
        message!(handover::Facts)(body);
        message!(String)(body);
    }
}

/// Name and function of each target; the name is also that of its corpus folder.
pub const TARGETS: &[(&str, Target)] = &[
    ("call_head", call_head),
    ("reply_head", reply_head),
    ("meta_request", message!(MetaRequest<'_>)),
    ("meta_reply", message!(MetaReply<'_>)),
    ("meta_result", message!(MetaResult<'_>)),
    ("data_request", message!(DataRequest<'_>)),
    ("data_reply", message!(DataReply<'_>)),
    ("data_result", message!(DataResult<'_>)),
    ("callback", message!(Callback)),
    ("session_request", message!(SessionRequest<'_>)),
    ("session_result", message!(SessionResult)),
    ("election_ballot", message!(Ballot)),
    ("election_answer", message!(Answer)),
    ("handover_frame", handover_frame),
    ("handover_state", message!(handover::State)),
    ("standby_request", message!(StandbyRequest)),
    ("standby_result", message!(StandbyResult<'_>)),
    ("trust_words", trust_words),
    ("trust_channel", ropewalk_rpc::trust::attack::channel),
    ("key_handshake", ropewalk_auth::attack::handshake),
    ("key_file", ropewalk_auth::attack::key_file),
    ("sealed_records", ropewalk_seal::attack::records),
    ("frame_header", frame_header),
    ("frame_lengths", lengths),
    ("mxoe_packet", mxoe_packet),
    ("mxoe_beacon", mxoe_beacon),
    ("address", address),
    ("netlink", |bytes| {
        attack::follow(bytes);
    }),
    ("core_frames", crate::protocol::frames),
    ("core_paths", crate::paths::paths),
    ("packet_machine", crate::packets::packets),
    ("mxoe_machine", crate::mxoe::bodies),
    ("disk_superblock", |bytes| {
        let _ = decoders::superblock(bytes);
    }),
    ("disk_journal_segment", |bytes| {
        let _ = decoders::journal_segment(bytes);
    }),
    ("disk_journal_mark", |bytes| {
        let _ = decoders::journal_mark(bytes);
    }),
    ("disk_index_head", |bytes| {
        let _ = decoders::index_head(bytes);
    }),
    ("disk_journal_record", |bytes| {
        let _ = decoders::journal_record(bytes);
    }),
    ("disk_changes", |bytes| {
        let _ = decoders::changes(bytes);
    }),
    ("disk_intent", |bytes| {
        let _ = decoders::intent(bytes);
    }),
    ("disk_object_store", |bytes| {
        let _ = decoders::object_store(bytes);
    }),
    ("disk_marks", |bytes| {
        let _ = decoders::marks(bytes);
    }),
    ("disk_vote", |bytes| {
        let _ = record::accepts(bytes);
    }),
    ("disk_inode", disk_inode),
    ("disk_term", disk_term),
    ("disk_session", disk_session),
    ("disk_export", disk_export),
    ("disk_band", disk_band),
    ("disk_pool", disk_pool),
    ("disk_orders", message!(Orders)),
    ("data_joined", |bytes| {
        let _ = notes::joined(bytes);
    }),
    ("data_map", |bytes| {
        let _ = notes::map(bytes);
    }),
    ("data_told", |bytes| {
        let _ = notes::told(bytes);
    }),
    ("capability", ropewalk_rpc::trust::attack::capability),
    ("map", map),
    ("descriptor", descriptor),
    ("window_message", |bytes| {
        ropewalk_rma::attack::message(bytes);
    }),
    ("meta_dump", meta_dump),
];

/// The target of this name.
pub fn by_name(name: &str) -> Option<Target> {
    TARGETS.iter().find(|(other, _)| *other == name).map(|(_, target)| *target)
}

/// The file of a dump. Both parsers come to an end; what the strict one accepts, the lax one reads alike.
fn meta_dump(bytes: &[u8]) {
    let parse = |mut parser: Parser| {
        let mut items = Vec::new();
        for piece in bytes.chunks(100) {
            parser.push(piece);
            while let Some(item) = parser.next_item().ok()? {
                items.push(item);
            }
        }
        while let Some(item) = parser.last_item().ok()? {
            items.push(item);
        }
        Some(items)
    };
    let lax = parse(Parser::lax());
    if let Some(strict) = parse(Parser::strict()) {
        assert_eq!(lax, Some(strict), "a whole dump has nothing to be passed over");
    }
}

/// Bands as the map's news and rows have them, and a pool: each stripe of a pool that the map covers has a server.
fn map(bytes: &[u8]) {
    let Ok((bands, pool)) = decode::<(Vec<Band>, Pool)>(bytes) else { return };
    let mut news = News::of(&Map::default());
    if news.take(7, bands, true).is_err() || !pool.is_valid() {
        return;
    }
    let map = news.map();
    for growth in [Growth::Fixed(0), Growth::Fixed(3), Growth::Stepped { narrow: 1, wide: 64 }] {
        let (pool_version, stripe_bytes) = (pool.version, 1 << 20);
        let layout = Layout { pool_version, seed: 5, stripe_bytes, growth };
        for stripe in [0, 1, 64, 1000, u32::MAX] {
            let group = layout.group(stripe, &pool);
            let first = map.first(group);
            assert!(first.is_some() || !map.covers(&pool), "{group:?} has no server");
            assert!(first.is_none_or(|first| map.has(&pool, first)));
        }
    }
}

/// A datatype of a peer's. Its pieces lie within its bounds, and are those of its runs, from wherever the walk begins.
fn descriptor(bytes: &[u8]) {
    /// A walk may have more pieces than anybody has time for.
    const PIECES: usize = 300;
    let Ok(shape) = Descriptor::decode(bytes) else { return };
    assert_eq!(Descriptor::decode(&shape.encode()).as_ref(), Ok(&shape), "the journey changes it");
    for count in [1, 3, u64::MAX] {
        let Some(bounds) = shape.bounds(count) else { continue };
        shape.is_plainly_apart(count);
        let all = shape.len() * count;
        for from in [0, 1, all / 2, all.saturating_sub(1), all, u64::MAX] {
            let pieces: Vec<Piece> = shape.pieces(count, from).take(PIECES).collect();
            let lies_inside =
                |it: &Piece| it.offset >= bounds.start && it.offset + it.bytes as i64 <= bounds.end;
            assert!(pieces.iter().all(lies_inside), "{count} from {from}");
            let turn = |run: Run| {
                (0..run.times).map(move |turn| (run.offset + turn as i64 * run.stride, run.bytes))
            };
            let mut runs = shape.runs(count, from).take(PIECES).flat_map(turn);
            for piece in &pieces[..pieces.len().min(PIECES / 2)] {
                let (mut at, end) = (piece.offset, piece.offset + piece.bytes as i64);
                while at < end {
                    // The last run may be cut off by our limit.
                    let Some((offset, bytes)) = runs.next() else { break };
                    assert_eq!(offset, at, "{count} from {from}");
                    at += bytes as i64;
                }
            }
        }
    }
}

/// The row of a band, of each version that there was.
fn disk_band(bytes: &[u8]) {
    let Ok(band) = decode_band(bytes) else { return };
    assert!(decode_band(&encode_band(&band)).is_ok_and(|again| again == band));
}

/// The row of a pool, of each version that there was.
fn disk_pool(bytes: &[u8]) {
    let Ok(pool) = decode_pool(bytes) else { return };
    assert!(decode_pool(&encode_pool(&pool)).is_ok_and(|again| again == pool));
}

/// All three dialects, by the first byte, and the body behind it.
fn mxoe_packet(bytes: &[u8]) {
    let Some((choice, body)) = bytes.split_first() else { return };
    let dialect = match choice % 3 {
        0 => Dialect::native(1500, Order::Big),
        1 => Dialect::native(9000, Order::Little),
        _ => Ok(Dialect::compatible()),
    };
    let Ok(dialect) = dialect else { unreachable!("they are legal") };
    let endpoint = mxoe::endpoint_of(body, dialect.order());
    let Ok((index, packet)) = Packet::parse(body, dialect) else { return };
    let payload: &[u8] = match packet {
        Packet::Raw(bytes)
        | Packet::Tiny(_, bytes)
        | Packet::Small(_, bytes)
        | Packet::Medium(_, bytes)
        | Packet::PullReply(_, bytes) => bytes,
        Packet::HostReply(reply) => &[reply.name, &[0]].concat(),
        _ => &[],
    };
    if let Packet::Medium(piece, bytes) = packet {
        let end = u64::from(piece.offset) + bytes.len() as u64;
        assert!(end <= u64::from(piece.total_bytes), "it lies outside of its message");
        // A piece elsewhere than ours would be is written as ours.
        if piece.offset != u32::from(piece.fragment) * dialect.fragment_bytes() {
            return;
        }
    }
    let mut header = [0; mxoe::HEADER_BYTES_MAX];
    let len = packet.emit(index, dialect, &mut header);
    let again = [&header[..len], payload].concat();
    assert_eq!(Packet::parse(&again, dialect), Ok((index, packet)), "the journey changes it");
    assert_eq!(mxoe::endpoint_of(&again, dialect.order()), endpoint);
}

fn mxoe_beacon(bytes: &[u8]) {
    let Some(beacon) = Beacon::parse(bytes) else { return };
    let again = beacon.emit();
    assert_eq!(Beacon::parse(&again[mxoe::INDEX_BYTES + 1..]), Some(beacon));
}

/// A metadata row: the largest of them, made by the same code as all.
fn disk_inode(bytes: &[u8]) {
    let Ok(inode) = Inode::decode(7, bytes) else { return };
    assert!(Inode::decode(7, &inode.encode()).is_ok_and(|again| again == inode));
}

/// The row of a term, behind the number in its key.
fn term_row(bytes: &[u8]) -> Option<TermRow> {
    let (number, row) = bytes.split_first_chunk()?;
    TermRow::decode(u64::from_be_bytes(*number), row)
}

fn disk_term(bytes: &[u8]) {
    let Some(row) = term_row(bytes) else { return };
    assert_ne!(row.term().number(), 0, "a term that nobody counts");
    assert_eq!(TermRow::decode(row.term().number().into(), &row.encode()), Some(row));
}

/// A session's row. The first format keeps less of it, and always the same.
fn disk_session(bytes: &[u8]) {
    let Ok(row) = SessionRow::decode(bytes) else { return };
    assert!(SessionRow::decode(&row.encode(false)).is_ok_and(|again| again == row));
    if row.owner.export == DEFAULT_EXPORT {
        let first = SessionRow::decode(&row.encode(true)).expect("it was encoded here");
        assert_eq!(first.owner.identity.limit(), row.owner.identity.limit());
        assert_eq!(first.owner.origin(), row.owner.origin());
    }
}

fn disk_export(bytes: &[u8]) {
    let Ok(export) = Export::decode(bytes) else { return };
    assert!(Export::decode(&export.encode()).is_ok_and(|again| again == export));
}

fn call_head(bytes: &[u8]) {
    let Ok((head, body)) = CallHead::decode(bytes) else { return };
    let mut again = Vec::new();
    head.encode(&mut again);
    again.extend_from_slice(body);
    assert_eq!(CallHead::decode(&again), Ok((head, body)));
    assert_eq!(again.len(), bytes.len(), "head and body are all there is");
}

fn reply_head(bytes: &[u8]) {
    let Ok((head, body)) = ReplyHead::decode(bytes) else { return };
    let mut again = Vec::new();
    head.encode(&mut again);
    again.extend_from_slice(body);
    assert_eq!(ReplyHead::decode(&again), Ok((head, body)));
    assert_eq!(again.len(), bytes.len(), "head and body are all there is");
}

fn frame_header(bytes: &[u8]) {
    // Asked of unverified bytes, and must stand them.
    let sealed = frame::verify(bytes);
    if let Some(short) = frame::decode_short(bytes) {
        let (prefix, body) = short.expand();
        let (session, payload_bytes) = (prefix.session.get(), prefix.payload_bytes.get());
        let mut again = Header::EMPTY;
        frame::encode_short(&mut again, session, payload_bytes, &body);
        assert_eq!(again.as_bytes(), bytes);
        assert!(frame::decode(bytes).is_err(), "one of both forms");
    }
    let Ok((prefix, body)) = frame::decode(bytes) else { return };
    assert!(bytes.len() <= HEADER_BYTES_MAX, "a header of {} bytes was accepted", bytes.len());
    let envelope = frame::Envelope {
        flags: prefix.flags.get(),
        payload_bytes: prefix.payload_bytes.get(),
        session: prefix.session.get(),
        attempt: prefix.attempt.get(),
        packet: prefix.packet.get(),
        acknowledged: prefix.acknowledged.get(),
        span: prefix.span.get(),
    };
    if let frame::Arrived::Ack(ack) = body {
        let cumulative = ack.cumulative.get();
        let ranges: Vec<_> = ack.ranges().collect();
        assert!(ranges.len() <= frame::ACK_RUNS_MAX);
        let mut last = cumulative;
        for range in ranges {
            let above = last.checked_add(1).is_some_and(|next| *range.start() > next);
            assert!(above && range.start() <= range.end(), "runs rise, with gaps between");
            last = *range.end();
        }
    }
    // Checksums are sealed.
    let mut expected = bytes.to_vec();
    expected[8..16].fill(0);
    let mut again = frame::encode(envelope, &body.into());
    assert_eq!(again.as_bytes(), expected, "the journey changes the header");
    frame::seal(&mut again, Some(prefix.payload_checksum.get()));
    assert!(frame::verify(again.as_bytes()), "a sealed header verifies (given: {sealed})");
}

fn lengths(bytes: &[u8]) {
    let Some((header, payload)) = frame_lengths(bytes) else { return };
    assert!((FRAME_PREFIX_BYTES..=HEADER_BYTES_MAX).contains(&header), "header {header}");
    assert!(payload <= FRAME_PAYLOAD_BYTES_MAX, "payload {payload}");
    // Only the prefix counts: more bytes say nothing else, fewer say nothing at all.
    assert_eq!(frame_lengths(&bytes[..FRAME_PREFIX_BYTES]), Some((header, payload)));
    assert_eq!(frame_lengths(&bytes[..FRAME_PREFIX_BYTES - 1]), None);
}

fn address(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(address) = Address::parse(text) else { return };
    assert!(address.parts().next().is_some(), "an accepted address has a part");
    assert_eq!(Address::parse(&address.to_string()), Ok(address));
}

#[cfg(test)]
mod tests {
    use super::*;
    use ropewalk_wire::fs::Malformed;

    #[test]
    fn names_are_unique_and_found() {
        for (number, (name, _)) in TARGETS.iter().enumerate() {
            assert!(TARGETS[..number].iter().all(|(other, _)| other != name), "{name} twice");
            assert!(by_name(name).is_some());
        }
        assert!(by_name("no such target").is_none());
    }

    #[test]
    fn a_target_reaches_behind_its_decoder() {
        // Were the accepted inputs refused, every target would pass without having asked anything.
        let mut recall = Vec::new();
        encode(&Callback::LockGranted { inode: 7, owner: 9, start: 0 }, &mut recall);
        assert!(decode::<Callback>(&recall).is_ok());
        assert_eq!(decode::<Callback>(&recall[..recall.len() - 1]), Err(Malformed));
    }

    #[test]
    fn kept_inputs_tell_of_interfaces_and_addresses() {
        let inputs = crate::corpus::read("netlink").expect("the corpus is there");
        let told: Vec<_> = inputs.iter().map(|input| attack::follow(input)).collect();
        assert!(told.iter().any(|(links, addresses)| *links >= 3 && *addresses >= 2), "{told:?}");
    }

    #[test]
    fn kept_inputs_of_disk_bytes_pass_their_checksums() {
        type Accepts = fn(&[u8]) -> bool;
        let decoders: [(&str, Accepts); 20] = [
            ("disk_superblock", decoders::superblock),
            ("disk_journal_segment", decoders::journal_segment),
            ("disk_journal_mark", decoders::journal_mark),
            ("disk_index_head", decoders::index_head),
            ("disk_journal_record", decoders::journal_record),
            ("disk_changes", decoders::changes),
            ("disk_intent", decoders::intent),
            ("disk_object_store", decoders::object_store),
            ("disk_marks", decoders::marks),
            ("disk_vote", record::accepts),
            ("disk_inode", |bytes| Inode::decode(7, bytes).is_ok()),
            ("disk_term", |bytes| term_row(bytes).is_some()),
            ("disk_session", |bytes| SessionRow::decode(bytes).is_ok()),
            ("disk_export", |bytes| Export::decode(bytes).is_ok()),
            ("disk_band", |bytes| decode_band(bytes).is_ok()),
            ("disk_pool", |bytes| decode_pool(bytes).is_ok()),
            ("disk_orders", |bytes| decode::<Orders>(bytes).is_ok()),
            ("data_joined", notes::joined),
            ("data_map", notes::map),
            ("data_told", notes::told),
        ];
        for (name, accepts) in decoders {
            let inputs = crate::corpus::read(name).expect("the corpus is there");
            assert!(!inputs.is_empty(), "{name} has no inputs");
            for (number, input) in inputs.iter().enumerate() {
                assert!(accepts(input), "{name}: input {number} is not accepted");
            }
        }
    }
}
