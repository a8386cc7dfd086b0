//! The Wireshark dissector and our own packets: tshark prints the values that were put in.

mod wireshark_support;

use std::time::Duration;

use ropewalk_base::verb::Header;
use ropewalk_wire::frame::{self, Body, Envelope, FLAG_ANSWER};
use ropewalk_wire::packets::*;
use wireshark_support::{Capture, HERE, THERE};
use zerocopy::IntoBytes;

const OURS: u32 = 0xabcd_ef01;
const THEIRS: u32 = 0x1357_9bdf;

/// A packet as it is sent: of HERE's endpoint 3 to THERE's 9, or back.
fn packet(kind: Kind, tag: u32, layout: &[u8], payload: &[u8]) -> Vec<u8> {
    let route = Route { to: 9, from: 3, tag };
    let mut out = vec![0; overhead(kind) + payload.len()];
    let len = seal(&mut out, kind, route, layout, payload.len(), |to| to.copy_from_slice(payload));
    out.truncate(len);
    out
}

fn call(kind: Kind, tag: u32, own: u32) -> Vec<u8> {
    let body = CallBody {
        version: VERSION.into(),
        packet_bytes: 1452.into(),
        tag: own.into(),
        call: 0x0102_0304_0506_0708.into(),
        refusal: 0,
        cookie: [0; 7],
    };
    packet(kind, tag, body.as_bytes(), &[0; 200])
}

fn ack(next: u32, early: u64) -> AckBody {
    AckBody::new(next, early, Duration::from_micros(250), Some(7))
}

fn stream(number: u32, record: u32, offset: u32, records: &[u8]) -> Vec<u8> {
    let body = StreamBody {
        ack: ack(12, 0),
        number: number.into(),
        record: record.into(),
        offset: offset.into(),
        secret: 0.into(),
    };
    packet(Kind::Stream, THEIRS, body.as_bytes(), records)
}

fn pull() -> PullBody {
    PullBody {
        handle: 0x77.into(),
        key_slot: 0x0000_0005_0000_0006.into(),
        key_secret: u64::MAX.into(),
        offset: 4096.into(),
        total_bytes: 5_000_000_000u64.into(),
        piece_bytes: 1400.into(),
        offered: 1,
        reserved: 0,
        first: 64.into(),
        pieces: 0x8000_0001_0000_000f.into(),
    }
}

fn piece(number: u32, bytes: &[u8]) -> Vec<u8> {
    let body = PieceBody { handle: 0x77.into(), piece: number.into(), reserved: 0.into() };
    packet(Kind::Piece, OURS, body.as_bytes(), bytes)
}

fn prefix(kind: RecordKind, bytes: usize) -> RecordPrefix {
    RecordPrefix {
        kind: kind as u8,
        header_bytes: bytes as u8,
        flags: 0.into(),
        payload_bytes: 0.into(),
    }
}

/// A frame of the core, sealed, with a payload.
fn record(body: &Body, payload: &[u8]) -> Vec<u8> {
    let flags = if let Body::Hello(_) = body { FLAG_ANSWER } else { 0 };
    let payload_bytes = payload.len() as u32;
    let envelope = Envelope {
        flags,
        payload_bytes,
        session: 0x5e55,
        attempt: 11,
        packet: 9,
        acknowledged: 12,
        span: 10,
    };
    let mut header = frame::encode(envelope, body);
    frame::seal(&mut header, None);
    [header.as_bytes(), payload].concat()
}

fn eager(channel: u8) -> frame::EagerBody {
    frame::EagerBody::whole(0x0102_0304_0506_0708, 17, channel, 2)
}

/// One row of tshark's: a field, and what it is.
type Said<'a> = &'a [(&'static str, &'static str)];

/// Packets and what tshark has to say of each.
struct Script {
    capture: Capture,
    said: Vec<Vec<(&'static str, &'static str)>>,
}

impl Script {
    fn new() -> Script {
        Script { capture: Capture::new(), said: Vec::new() }
    }

    fn here(&mut self, body: &[u8], said: Said<'_>) {
        self.capture.ethernet(HERE, THERE, body);
        self.said.push(said.to_vec());
    }

    fn there(&mut self, body: &[u8], said: Said<'_>) {
        self.capture.ethernet(THERE, HERE, body);
        self.said.push(said.to_vec());
    }

    /// A record in a packet of the stream.
    fn record(&mut self, record: Vec<u8>, said: Said<'_>) {
        let number = self.said.len() as u32;
        self.here(&stream(number, number, 0, &record), said);
    }

    fn udp(&mut self, body: &[u8], said: Said<'_>) {
        self.capture.udp(40_000, 50_000, body);
        self.said.push(said.to_vec());
    }

    /// Everything is as it was said.
    fn play(self) {
        let mut fields: Vec<&str> =
            self.said.iter().flat_map(|said| said.iter().map(|it| it.0)).collect();
        fields.sort_unstable();
        fields.dedup();
        let Some(rows) = self.capture.columns(&[], &fields) else { return };
        assert_eq!(rows.len(), self.said.len());
        for (number, (row, said)) in (1..).zip(rows.iter().zip(&self.said)) {
            for (field, value) in said {
                let at = fields.binary_search(field).expect("it is asked for");
                assert_eq!(row[at], *value, "packet {number}, {field}");
            }
        }
    }
}

#[test]
fn links_are_made_and_ended() {
    let mut script = Script::new();
    script.here(
        &call(Kind::Call, 0, OURS),
        &[
            ("_ws.col.Protocol", "Ropewalk"),
            ("_ws.col.Info", "Call 3 → 9: link 0xabcdef01, packets of 1452 B"),
            ("ropewalk.type", "0xc0"),
            ("ropewalk.to", "9"),
            ("ropewalk.from", "3"),
            ("ropewalk.bytes", "242"),
            ("ropewalk.tag", "0x00000000"),
            ("ropewalk.call.version", "6"),
            ("_ws.expert.message", ""),
            ("ropewalk.call.packet_bytes", "1452"),
            ("ropewalk.call.tag", "0xabcdef01"),
            ("ropewalk.call.id", "0x0102030405060708"),
            ("ropewalk.call.refusal", "0"),
            ("ropewalk.checksum.status", "1"),
            ("ropewalk.link", "0"),
            ("ropewalk.answers", ""),
        ],
    );
    script.there(
        &call(Kind::Answer, OURS, THEIRS),
        &[
            ("_ws.col.Info", "Answer 3 → 9: link 0x13579bdf, packets of 1452 B"),
            ("ropewalk.tag", "0xabcdef01"),
            ("ropewalk.answers", "1"),
            ("ropewalk.link", "0"),
        ],
    );
    let body = ack(12, 0b1011);
    script.here(
        &packet(Kind::Ack, THEIRS, body.as_bytes(), &[]),
        &[
            ("_ws.col.Info", "Ack 12 and 13-14, 16"),
            ("ropewalk.ack.next", "12"),
            ("ropewalk.ack.delay", "250"),
            ("ropewalk.ack.again", "8"),
            ("ropewalk.ack.early", "0x000000000000000b"),
            ("ropewalk.link", "0"),
            ("ropewalk.checksum.status", "1"),
        ],
    );
    script.there(
        &packet(
            Kind::Gone,
            0,
            GoneBody { tag: OURS.into(), secret: 0x1234_5679.into() }.as_bytes(),
            &[],
        ),
        &[
            ("_ws.col.Info", "Gone: link 0xabcdef01 is unknown"),
            ("ropewalk.gone.tag", "0xabcdef01"),
            ("ropewalk.gone.secret", "0x12345679"),
            ("ropewalk.checksum.status", "1"),
            ("_ws.expert.message", ""),
        ],
    );
    script.play();
}

#[test]
fn pieces_are_pulled() {
    let mut script = Script::new();
    script.here(
        &packet(Kind::Pull, THEIRS, pull().as_bytes(), &[]),
        &[
            (
                "_ws.col.Info",
                "Pull 0x77: pieces 64-67, 96, 127, 1400 B each, of 5000000000 B that were offered",
            ),
            ("ropewalk.handle", "0x0000000000000077"),
            ("ropewalk.key.slot", "0x0000000500000006"),
            ("ropewalk.key.secret", "0xffffffffffffffff"),
            ("ropewalk.offset", "4096"),
            ("ropewalk.total_bytes", "5000000000"),
            ("ropewalk.pull.piece_bytes", "1400"),
            ("ropewalk.pull.offered", "1"),
            ("ropewalk.pull.first", "64"),
            ("ropewalk.pull.pieces", "0x800000010000000f"),
        ],
    );
    // Several at a time.
    let other = PullBody { handle: 0x78.into(), pieces: 1.into(), ..pull() };
    script.here(
        &packet(Kind::Pull, THEIRS, other.as_bytes(), other.as_bytes()),
        &[
            (
                "_ws.col.Info",
                "Pull 0x78: pieces 64, 1400 B each, of 5000000000 B that were offered, and 1 more",
            ),
            ("ropewalk.handle", "0x0000000000000078,0x0000000000000078"),
        ],
    );
    script.there(
        &piece(65, b"hello"),
        &[
            ("_ws.col.Info", "Piece 65 of 0x77: 5 B"),
            ("ropewalk.piece.number", "65"),
            ("ropewalk.piece.data", "68656c6c6f"),
            ("ropewalk.answers", "1"),
        ],
    );
    let refusal = RefusalBody { handle: 0x77.into(), reason: 1, reserved: [0; 7] };
    script.there(
        &packet(Kind::Refusal, OURS, refusal.as_bytes(), &[]),
        &[
            ("_ws.col.Info", "Refusal of 0x77: bad key"),
            ("ropewalk.refusal.reason", "1"),
            ("ropewalk.answers", "1"),
            ("_ws.expert.message", "A pull is refused"),
        ],
    );
    script.play();
}

#[test]
fn records_share_packets() {
    let mut script = Script::new();
    let mut short = Header::EMPTY;
    frame::encode_short(&mut short, 0x5e55, 4, &eager(2));
    let finish = frame::FinBody {
        message: 17.into(),
        channel: 0,
        status: 3,
        reserved: [0; 6],
        bytes: 100.into(),
    };
    let first = [
        record(&Body::Eager(eager(0)), b"0123456789012345678901234567890123"),
        [short.as_bytes(), b"four"].concat(),
        record(&Body::Fin(finish), &[]),
        prefix(RecordKind::Bye, 8).as_bytes().to_vec(),
    ];
    script.here(
        &stream(17, 5, 0, &first.concat()),
        &[
            (
                "_ws.col.Info",
                "Stream 17 ack 12: Frame Eager tagged 34 B, Frame Eager (short) request 4 B, \
             Frame FIN tagged truncated, Bye",
            ),
            ("ropewalk.stream.number", "17"),
            ("ropewalk.stream.record", "5"),
            ("ropewalk.stream.offset", "0"),
            ("ropewalk.record", "5,6,7,8"),
            ("ropewalk.record.kind", "3,14,9,194"),
            ("ropewalk.record.header_bytes", "64,32,64,8"),
            ("ropewalk.record.payload_bytes", "34,4,0,0"),
            ("ropewalk.frame.session", "0x00005e55,0x00005e55,0x00005e55"),
            ("ropewalk.frame.channel", "0,2,0"),
            ("ropewalk.frame.tag", "0x0102030405060708,0x0102030405060708"),
            ("ropewalk.frame.message", "17,17,17"),
            ("ropewalk.frame.acknowledge", "2,2"),
            ("ropewalk.frame.version", "6,6"),
            ("ropewalk.frame.attempt", "11,11"),
            ("ropewalk.frame.acknowledged", "12,12"),
            ("ropewalk.frame.packet", "9,9"),
            ("ropewalk.frame.span", "10,10"),
            ("ropewalk.frame.status", "3"),
            ("ropewalk.frame.bytes", "100"),
            ("ropewalk.frame.header_checksum.status", "1,1"),
            ("ropewalk.checksum.status", "1"),
            ("_ws.expert.message", ""),
        ],
    );
    script.play();
}

#[test]
fn records_go_on_in_other_packets() {
    let mut script = Script::new();
    // 64 bytes of header and 1,000 of payload, in three parts; a whole record behind the last one.
    let long = record(&Body::Eager(eager(1)), &[0x55; 1000]);
    let begin = ("_ws.col.Info", "Stream 18 ack 12: Frame Eager untagged 1000 B");
    script.here(&stream(18, 9, 0, &long[..600]), &[begin, ("ropewalk.record.begins", "")]);
    script.here(
        &stream(19, 9, 600, &long[600..900]),
        &[
            (
                "_ws.col.Info",
                "Stream 19 ack 12: 300 B at 600 of 1064 of Frame Eager untagged 1000 B",
            ),
            ("ropewalk.record.begins", "1"),
        ],
    );
    let rest = [&long[900..], &record(&Body::Goodbye, &[])].concat();
    let last =
        "Stream 20 ack 12: 164 B at 900 of 1064 of Frame Eager untagged 1000 B, Frame Goodbye";
    script.here(
        &stream(20, 9, 900, &rest),
        &[
            ("_ws.col.Info", last),
            ("ropewalk.record", "9,10"),
            ("ropewalk.record.begins", "1"),
            ("ropewalk.resent", ""),
        ],
    );
    script.here(
        &stream(19, 9, 600, &long[600..900]),
        &[
            (
                "_ws.col.Info",
                "Stream 19 ack 12 (again): 300 B at 600 of 1064 of Frame Eager untagged 1000 B",
            ),
            ("ropewalk.resent", "2"),
            ("_ws.expert.message", "Sent again"),
        ],
    );
    script.here(
        &stream(30, 77, 40, &[1; 50]),
        &[
            ("_ws.col.Info", "Stream 30 ack 12: 50 B at 40 of record 77"),
            ("ropewalk.record.begins", ""),
        ],
    );
    script.here(&stream(31, 78, 0, &[]), &[("_ws.col.Info", "Stream 31 ack 12: nothing")]);
    script.play();
}

#[test]
fn hellos_have_their_fields() {
    let mut script = Script::new();
    let hello = frame::HelloBody {
        endpoint: [0x11; 16],
        cluster: [0x22; 16],
        incarnation: 3.into(),
        host: 4.into(),
        nonce: 5.into(),
        mode: 1,
        refusal: 2,
        address_bytes: 17.into(),
        eager_credit: 7.into(),
        request_credit: 8.into(),
        rts_credit: 9.into(),
        eager_max: 1024.into(),
    };
    script.record(
        record(&Body::Hello(hello), b"udp://10.0.0.1:70rest"),
        &[
            ("_ws.col.Info", "Stream 0 ack 12: Frame Hello refused: other cluster 21 B"),
            ("ropewalk.hello.endpoint", "11111111111111111111111111111111"),
            ("ropewalk.hello.cluster", "22222222222222222222222222222222"),
            ("ropewalk.hello.incarnation", "0x0000000000000003"),
            ("ropewalk.hello.host", "0x0000000000000004"),
            ("ropewalk.hello.nonce", "0x00000005"),
            ("ropewalk.hello.mode", "1"),
            ("ropewalk.hello.refusal", "2"),
            ("ropewalk.hello.eager_credit", "7"),
            ("ropewalk.hello.request_credit", "8"),
            ("ropewalk.hello.rts_credit", "9"),
            ("ropewalk.hello.eager_max", "1024"),
            ("ropewalk.hello.addresses", "udp://10.0.0.1:70"),
            ("ropewalk.record.flags.answer", "1"),
            ("ropewalk.record.flags.insist", "0"),
        ],
    );
    script.play();
}

#[test]
fn messages_and_accesses_have_their_fields() {
    let key = (1.into(), 2.into());
    let mut script = Script::new();
    let announce = frame::RtsBody {
        bits: 1.into(),
        message: 2.into(),
        channel: 0,
        alone: 1,
        reserved: [0; 6],
        total_bytes: 70_000.into(),
        key_slot: key.0,
        key_secret: key.1,
    };
    script.record(
        record(&Body::Rts(announce), &[]),
        &[
            ("_ws.col.Info", "Stream 0 ack 12: Frame RTS tagged of 70000 B"),
            ("ropewalk.frame.alone", "1"),
            ("ropewalk.frame.total_bytes", "70000"),
            ("ropewalk.key.slot", "0x0000000000000001"),
            ("ropewalk.key.secret", "0x0000000000000002"),
        ],
    );
    let get = frame::GetBody {
        key_slot: key.0,
        key_secret: key.1,
        offset: 3.into(),
        len: 4.into(),
        cookie: 5.into(),
        into_offset: 6.into(),
    };
    script.record(
        record(&Body::Get(get), &[]),
        &[
            ("_ws.col.Info", "Stream 1 ack 12: Frame Get of 4 B"),
            ("ropewalk.offset", "3"),
            ("ropewalk.frame.len", "4"),
            ("ropewalk.frame.cookie", "0x0000000000000005"),
            ("ropewalk.frame.into_offset", "6"),
        ],
    );
    let data = frame::DataBody { cookie: 5.into(), offset: 7.into() };
    script.record(
        record(&Body::Data(data), b"xyz"),
        &[
            ("_ws.col.Info", "Stream 2 ack 12: Frame Data 3 B"),
            ("ropewalk.offset", "7"),
            ("ropewalk.record.payload", "78797a"),
        ],
    );
    let put = frame::PutBody {
        key_slot: key.0,
        key_secret: key.1,
        offset: 3.into(),
        number: 5.into(),
        total_bytes: 9.into(),
        within: 6.into(),
        flags: frame::TELL.into(),
        reserved: [0; 6],
    };
    script.record(
        record(&Body::Put(put), b"xyz"),
        &[
            ("_ws.col.Info", "Stream 3 ack 12: Frame Put of 9 B 3 B"),
            ("ropewalk.frame.number", "5"),
            ("ropewalk.frame.whole_bytes", "9"),
            ("ropewalk.frame.within", "6"),
            ("ropewalk.frame.tell", "1"),
        ],
    );
    script.play();
}

#[test]
fn answers_and_limits_have_their_fields() {
    let mut script = Script::new();
    let result = frame::ResultBody { cookie: 5.into(), status: 4, note: 0, reserved: [0; 6] };
    script.record(
        record(&Body::Result(result), &[]),
        &[
            ("_ws.col.Info", "Stream 0 ack 12: Frame Result bad key"),
            ("ropewalk.frame.status", "4"),
        ],
    );
    let abort = frame::AbortBody { message: 8.into(), channel: 2, reserved: [0; 7] };
    script.record(
        record(&Body::Abort(abort), &[]),
        &[
            ("_ws.col.Info", "Stream 1 ack 12: Frame Abort request"),
            ("ropewalk.frame.message", "8"),
        ],
    );
    let credit = frame::CreditBody {
        eager_limit: 1.into(),
        request_limit: 2.into(),
        rts_limit: 3.into(),
        update_limit: 4.into(),
        eager_ends: 1,
        rts_long: 1,
        layouts: 5.into(),
        reserved: [0; 4],
    };
    script.record(
        record(&Body::Credit(credit), &[]),
        &[
            ("_ws.col.Info", "Stream 2 ack 12: Frame Credit"),
            ("ropewalk.frame.eager_limit", "1"),
            ("ropewalk.frame.request_limit", "2"),
            ("ropewalk.frame.rts_limit", "3"),
            ("ropewalk.frame.update_limit", "4"),
            ("ropewalk.frame.eager_ends", "1"),
            ("ropewalk.frame.rts_long", "1"),
            ("ropewalk.frame.layouts", "5"),
        ],
    );
    let mut ack = frame::AckBody::new(44, Duration::from_micros(250));
    assert!(ack.push(2, 3));
    script.record(
        record(&Body::Ack(ack), &[]),
        &[
            ("_ws.col.Info", "Stream 3 ack 12: Frame Ack"),
            ("ropewalk.frame.cumulative", "44"),
            ("ropewalk.frame.delay", "250"),
            ("ropewalk.frame.runs", "1"),
            ("ropewalk.frame.run.missing", "2,0,0,0,0,0,0,0,0,0,0,0"),
            ("ropewalk.frame.run.placed", "3,0,0,0,0,0,0,0,0,0,0,0"),
        ],
    );
    let probe = frame::ProbeBody { is_answer: 0, reserved: [0; 7] };
    let key = frame::KeyBody { share: [1; 16], calls: 1, reserved: [0; 7] };
    for (body, info) in [
        (Body::Confirm, &[("_ws.col.Info", "Stream 4 ack 12: Frame Confirm")]),
        (Body::CloseIdle, &[("_ws.col.Info", "Stream 5 ack 12: Frame CloseIdle")]),
        (Body::KeepOpen, &[("_ws.col.Info", "Stream 6 ack 12: Frame KeepOpen")]),
        (Body::Probe(probe), &[("_ws.col.Info", "Stream 7 ack 12: Frame Probe")]),
        (Body::Key(key), &[("_ws.col.Info", "Stream 8 ack 12: Frame Key")]),
    ] {
        script.record(record(&body, &[]), info);
    }
    script.play();
}

#[test]
fn words_about_numbers_have_their_fields() {
    let mut script = Script::new();
    let value = 9u64.to_le_bytes();
    let (number, applied) = (6.into(), 3.into());
    let reply = frame::ReplyBody { number, applied, value, status: 4, reserved: [0; 7] };
    script.record(
        record(&Body::Reply(reply), &[]),
        &[
            ("_ws.col.Info", "Stream 0 ack 12: Frame Reply bad key"),
            ("ropewalk.frame.number", "6"),
            ("ropewalk.frame.applied", "3"),
            ("ropewalk.frame.value", "0x0000000000000009"),
        ],
    );
    let applied = frame::AppliedBody { applied: 7.into() };
    script.record(
        record(&Body::Applied(applied), &[]),
        &[("_ws.col.Info", "Stream 1 ack 12: Frame Applied"), ("ropewalk.frame.applied", "7")],
    );
    let give_up = frame::GiveUpBody { number: 6.into(), count: 2.into(), reserved: [0; 4] };
    script.record(
        record(&Body::GiveUp(give_up), &[]),
        &[
            ("_ws.col.Info", "Stream 2 ack 12: Frame GiveUp"),
            ("ropewalk.frame.number", "6"),
            ("ropewalk.frame.count", "2"),
        ],
    );
    script.play();
}

#[test]
fn updates_atomics_and_locks_have_their_fields() {
    let (key_slot, key_secret) = (1.into(), 2.into());
    let mut script = Script::new();
    let update = frame::UpdateBody {
        key_slot,
        key_secret,
        offset: 3.into(),
        number: 5.into(),
        total: 9.into(),
        within: 6.into(),
        count: 3.into(),
        operator: 1,
        element: 2,
        flags: (frame::TELL | frame::FETCH).into(),
    };
    script.record(
        record(&Body::Update(update), b"xyz"),
        &[
            ("_ws.col.Info", "Stream 0 ack 12: Frame Update 3 B"),
            ("ropewalk.frame.elements", "9"),
            ("ropewalk.frame.within", "6"),
            ("ropewalk.frame.elements_here", "3"),
            ("ropewalk.frame.operator", "1"),
            ("ropewalk.frame.element", "2"),
            ("ropewalk.frame.operation_flags", "0x0003"),
        ],
    );
    let atomic = frame::AtomicBody {
        key_slot,
        key_secret,
        offset: 3.into(),
        number: 7.into(),
        operand: 8u64.to_le_bytes(),
        compare: 9u64.to_le_bytes(),
        operator: frame::COMPARE_SWAP,
        element: 8,
        flags: frame::FETCH.into(),
        reserved: [0; 4],
    };
    script.record(
        record(&Body::Atomic(atomic), &[]),
        &[
            ("_ws.col.Info", "Stream 1 ack 12: Frame Atomic"),
            ("ropewalk.frame.number", "7"),
            ("ropewalk.frame.operand", "0x0000000000000008"),
            ("ropewalk.frame.compare", "0x0000000000000009"),
            ("ropewalk.frame.operator", "255"),
        ],
    );
    let (cookie, number, action) = (5.into(), 8.into(), frame::LOCK_RELEASE);
    let reserved = [0; 7];
    let offset = 3.into();
    let lock = frame::LockBody { key_slot, key_secret, cookie, number, offset, action, reserved };
    script.record(
        record(&Body::Lock(lock), b"xyz"),
        &[
            ("_ws.col.Info", "Stream 2 ack 12: Frame Lock 3 B"),
            ("ropewalk.offset", "3"),
            ("ropewalk.frame.cookie", "0x0000000000000005"),
            ("ropewalk.frame.lock", "3"),
        ],
    );
    script.play();
}

#[test]
fn notices_and_immediate_data_have_their_fields() {
    let (key_slot, key_secret) = (1.into(), 2.into());
    let mut script = Script::new();
    let offset = 3.into();
    let (number, value, word) = (9.into(), 10.into(), 11.into());
    let (flags, reserved) = (frame::RAISE_TO.into(), [0; 2]);
    let notify =
        frame::NotifyBody { key_slot, key_secret, offset, number, value, word, flags, reserved };
    script.record(
        record(&Body::Notify(notify), b"xyz"),
        &[
            ("_ws.col.Info", "Stream 0 ack 12: Frame Notify 3 B"),
            ("ropewalk.offset", "3"),
            ("ropewalk.frame.operand", "0x000000000000000a"),
            ("ropewalk.frame.word", "11"),
            ("ropewalk.frame.operation_flags", "0x0008"),
        ],
    );
    let immediate = frame::ImmediateBody {
        key_slot,
        key_secret,
        offset,
        number,
        data: 12.into(),
        len: 5000.into(),
        flags: frame::TELL.into(),
        reserved: [0; 6],
    };
    script.record(
        record(&Body::Immediate(immediate), &[]),
        &[
            ("_ws.col.Info", "Stream 1 ack 12: Frame Immediate of 5000 B"),
            ("ropewalk.offset", "3"),
            ("ropewalk.frame.operand", "0x000000000000000c"),
            ("ropewalk.frame.len", "5000"),
            ("ropewalk.frame.operation_flags", "0x0001"),
        ],
    );
    script.play();
}

#[test]
fn layouts_and_what_goes_by_them_have_their_fields() {
    let (key_slot, key_secret) = (1.into(), 2.into());
    let mut script = Script::new();
    let layout = frame::LayoutBody {
        extent: (-7).into(),
        place: frame::LayoutBody::placed(3, 9, 4),
        nodes: [[1; frame::NODE_BYTES], [2; frame::NODE_BYTES]],
    };
    assert_eq!(layout.place(), [3, 9, 4]);
    script.record(
        record(&Body::Layout(layout), &[]),
        &[
            ("_ws.col.Info", "Stream 0 ack 12: Frame Layout"),
            ("ropewalk.frame.extent", "-7"),
            ("ropewalk.frame.layout_place", "0x00400903"),
        ],
    );
    let strided = frame::StridedBody {
        key_slot,
        key_secret,
        address: (-3).into(),
        number: 5.into(),
        instances: 6.into(),
        from: 7.into(),
        count: 3.into(),
        operator: 13,
        element: 14,
        flags: frame::TELL.into(),
        layout: 3,
        reserved: [0; 7],
    };
    script.record(
        record(&Body::Strided(strided), b"xyz"),
        &[
            ("_ws.col.Info", "Stream 1 ack 12: Frame Strided 3 B"),
            ("ropewalk.frame.address", "-3"),
            ("ropewalk.frame.number", "5"),
            ("ropewalk.frame.instances", "6"),
            ("ropewalk.frame.from", "7"),
            ("ropewalk.frame.elements_here", "3"),
            ("ropewalk.frame.operator", "13"),
            ("ropewalk.frame.element", "14"),
            ("ropewalk.frame.layout", "3"),
        ],
    );
    script.play();
}

#[test]
fn offers_have_their_fields() {
    let key = (1.into(), 2.into());
    let mut script = Script::new();
    let offer = OfferRecord {
        prefix: prefix(RecordKind::Offer, size_of::<OfferRecord>()),
        offer: 6.into(),
        secret: 7.into(),
        key_slot: key.0,
        key_secret: key.1,
        offset: 8.into(),
        total_bytes: 9.into(),
        following: 3.into(),
        reserved: 0.into(),
    };
    script.record(
        offer.as_bytes().to_vec(),
        &[
            ("_ws.col.Info", "Stream 0 ack 12: Offer of 9 B"),
            ("ropewalk.offer", "0x0000000000000006"),
            ("ropewalk.offer.secret", "0x0000000000000007"),
            ("ropewalk.total_bytes", "9"),
            ("ropewalk.offer.following", "3"),
        ],
    );
    let taken = TakenRecord {
        prefix: prefix(RecordKind::Taken, size_of::<TakenRecord>()),
        offer: 6.into(),
        status: 0,
        reserved: [0; 7],
    };
    script.record(
        taken.as_bytes().to_vec(),
        &[
            ("_ws.col.Info", "Stream 1 ack 12: Taken: all of it is there"),
            ("ropewalk.taken.status", "0"),
            ("_ws.expert.message", ""),
        ],
    );
    let withdrawn = WithdrawnRecord {
        prefix: prefix(RecordKind::Withdrawn, size_of::<WithdrawnRecord>()),
        offer: 6.into(),
    };
    script.record(
        withdrawn.as_bytes().to_vec(),
        &[
            ("_ws.col.Info", "Stream 2 ack 12: Withdrawn"),
            ("ropewalk.offer", "0x0000000000000006"),
            ("_ws.expert.message", ""),
        ],
    );
    script.play();
}

#[test]
fn packets_behind_udp_are_known_by_their_look_one_or_several_in_a_datagram() {
    let mut script = Script::new();
    let one = stream(1, 1, 0, &record(&Body::Confirm, &[]));
    script.udp(
        &one,
        &[
            ("_ws.col.Protocol", "Ropewalk"),
            ("_ws.col.Info", "Stream 1 ack 12: Frame Confirm"),
            ("udp.dstport", "50000"),
            ("ropewalk.checksum.status", "1"),
        ],
    );
    let two = [stream(2, 2, 0, &record(&Body::CloseIdle, &[])), piece(4, b"ab")].concat();
    script.udp(
        &two,
        &[
            ("_ws.col.Info", "Stream 2 ack 12: Frame CloseIdle | Piece 4 of 0x77: 2 B"),
            ("ropewalk.checksum.status", "1,1"),
        ],
    );
    let mut other = one.clone();
    other[0] = 1;
    script.udp(&other, &[("_ws.col.Protocol", "UDP")]);
    script.udp(b"something else", &[("_ws.col.Protocol", "UDP")]);
    script.play();
}

#[test]
fn what_was_corrupted_or_cut_is_named_and_nothing_fails() {
    let mut script = Script::new();
    let good = stream(1, 1, 0, &record(&Body::Eager(eager(0)), b"payload"));
    let mut bad = good.clone();
    let middle = bad.len() / 2;
    bad[middle] ^= 1;
    let wrong = "The checksum is wrong: the packet is thrown away";
    script.here(&bad, &[("ropewalk.checksum.status", "0")]);
    let refused = "A length that its kind does not have";
    script.here(&packet(Kind::Ack, 1, &[0; 16], &[0]), &[("_ws.expert.message", refused)]);
    script.here(&packet(Kind::Pull, 1, &[0; 55], &[]), &[("_ws.expert.message", refused)]);
    let mut short = good.clone();
    short[6] = 200;
    script.here(&short, &[("_ws.expert.message", refused)]);
    let lengths = "No record has a header or a payload of this length";
    script
        .here(&stream(1, 2, 0, &[3, 104, 0, 0, 0, 0, 0, 0, 0]), &[("_ws.expert.message", lengths)]);
    script.here(&stream(2, 3, 0, &[3, 7, 0, 0, 0, 0, 0, 0]), &[("_ws.expert.message", lengths)]);
    script.here(&stream(3, 4, 0, &[3, 8, 0]), &[("_ws.expert.message", refused)]);
    let capture = &script.capture;
    let arguments =
        ["-o", "ropewalk.check:FALSE", "-T", "fields", "-e", "ropewalk.checksum.status"];
    let Some(text) = capture.tshark(&[], &["-T", "fields", "-e", "_ws.expert.message"]) else {
        return;
    };
    assert!(text.contains(wrong), "{text}");
    assert!(capture.tshark(&[], &arguments).unwrap().starts_with("2\n"), "it is not checked");
    script.play();
    // Everything, cut at every length, on the wire or by the capture, and with each byte changed.
    let mut capture = Capture::new();
    let all = [
        call(Kind::Call, 0, OURS),
        good,
        packet(Kind::Pull, THEIRS, pull().as_bytes(), &[]),
        piece(1, b"abc"),
        packet(Kind::Ack, OURS, ack(1, 1).as_bytes(), &[]),
    ];
    for body in &all {
        let mut frame = vec![2; 12];
        frame.extend([0x86, 0xdf]);
        frame.extend(body);
        for len in 14..frame.len() {
            capture.frame(&frame[..len]);
            capture.cut(&frame, len);
            let mut changed = frame.clone();
            changed[len] = changed[len].wrapping_mul(7).wrapping_add(0x93);
            capture.frame(&changed);
        }
        for len in 1..body.len() {
            capture.udp(1, 2, &body[..len]);
        }
    }
    // tshark fails the test where the dissector does.
    let text = capture.tshark(&[], &["-V"]).expect("it was there before");
    assert!(
        text.contains("The packet ends too early") && text.contains("The rest was not captured")
    );
}
