//! The Wireshark dissector beside our decoder: MXoE, from real hosts and in every dialect.

mod wireshark_support;

use std::collections::BTreeMap;
use std::path::PathBuf;

use ropewalk_wire::mxoe::*;
use wireshark_support::{Capture, HERE, THERE, tshark};

/// The fields that we ask tshark for. A packet without a field has nothing in its column.
const FIELDS: &[&str] = &[
    "mxoe.index",
    "mxoe.type",
    "mxoe.to",
    "mxoe.from",
    "mxoe.length",
    "mxoe.sequence",
    "mxoe.sequence.session",
    "mxoe.ack",
    "mxoe.ack.session",
    "mxoe.match",
    "mxoe.session",
    "mxoe.total",
    "mxoe.fragment.bytes",
    "mxoe.fragment.number",
    "mxoe.fragment.offset",
    "mxoe.region",
    "mxoe.region.sequence",
    "mxoe.region.offset",
    "mxoe.pull.handle",
    "mxoe.pull.magic",
    "mxoe.pull.endpoint",
    "mxoe.pull.first_offset",
    "mxoe.pull.block_bytes",
    "mxoe.pull.frame",
    "mxoe.reply.frame",
    "mxoe.reply.bytes",
    "mxoe.reply.offset",
    "mxoe.connect.index",
    "mxoe.connect.asker",
    "mxoe.connect.key",
    "mxoe.connect.session",
    "mxoe.connect.receive_next",
    "mxoe.connect.receive_next.session",
    "mxoe.connect.is_reply",
    "mxoe.connect.number",
    "mxoe.connect.status",
    "mxoe.truc.number",
    "mxoe.nack.reason",
    "mxoe.nack.index",
    "mxoe.host.index",
    "mxoe.host.magic",
    "mxoe.host.name",
    "mxoe.beacon.nic",
    "mxoe.beacon.serial",
    "mxoe.beacon.version",
    "mxoe.beacon.features",
    "mxoe.beacon.host",
    "mxoe.beacon.checksum.status",
    "mxoe.data",
];

/// The output of our decoder, in the words of the dissector.
#[derive(Default)]
struct Words(BTreeMap<&'static str, String>);

impl Words {
    fn put(&mut self, field: &'static str, value: impl ToString) {
        assert!(FIELDS.contains(&field), "{field} is not asked for");
        self.0.insert(field, value.to_string());
    }

    fn hex(&mut self, field: &'static str, value: u32) {
        self.put(field, format!("0x{value:08x}"));
    }

    fn data(&mut self, bytes: &[u8]) {
        self.put("mxoe.data", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    }

    fn ends(&mut self, from: u8, to: u8) {
        self.put("mxoe.from", from);
        self.put("mxoe.to", to);
    }

    fn sequence(&mut self, sequence: Sequence) {
        self.put("mxoe.sequence", sequence.number());
        self.put("mxoe.sequence.session", sequence.bits());
    }

    fn acknowledged(&mut self, sequence: Sequence) {
        self.put("mxoe.ack", sequence.number());
        self.put("mxoe.ack.session", sequence.bits());
    }

    fn message(&mut self, message: &Message, len: usize) {
        self.ends(message.from, message.to);
        self.sequence(message.sequence);
        self.acknowledged(message.acknowledged);
        self.put("mxoe.match", format!("0x{:016x}", message.match_info));
        self.hex("mxoe.session", message.session);
        self.put("mxoe.length", len);
    }

    fn handle(&mut self, handle: u32, magic: u32) {
        self.hex("mxoe.pull.handle", handle);
        self.hex("mxoe.pull.magic", magic);
        if let Some(endpoint) = Pull::endpoint_of(magic) {
            self.put("mxoe.pull.endpoint", endpoint);
        }
    }

    fn region(&mut self, region: u32, sequence: u8, offset: Option<u32>) {
        self.put("mxoe.region", region);
        self.put("mxoe.region.sequence", sequence);
        if let Some(offset) = offset {
            self.put("mxoe.region.offset", offset);
        }
    }

    /// `bytes`: whether those of payloads are in the capture.
    fn of(index: u16, kind: u8, packet: &Packet<'_>, bytes: bool) -> Words {
        let mut words = Words::default();
        words.put("mxoe.index", index);
        words.put("mxoe.type", format!("0x{kind:02x}"));
        match packet {
            Packet::Tiny(message, data) | Packet::Small(message, data) => {
                words.message(message, data.len());
                if bytes && !data.is_empty() {
                    words.data(data);
                }
            }
            Packet::Medium(piece, data) => {
                words.message(&piece.message, piece.total_bytes as usize);
                words.put("mxoe.fragment.bytes", data.len());
                words.put("mxoe.fragment.number", piece.fragment);
                words.put("mxoe.fragment.offset", piece.offset);
                if bytes {
                    words.data(data);
                }
            }
            Packet::Rendezvous(it) => {
                words.message(&it.message, 8);
                words.put("mxoe.total", it.total_bytes);
                words.region(it.region.into(), it.region_sequence, Some(it.region_offset.into()));
            }
            Packet::Raw(rest) => match Beacon::parse(rest) {
                Some(beacon) => words.beacon(&beacon),
                None => words.data(rest),
            },
            other => words.others(other, bytes),
        }
        words
    }

    fn others(&mut self, packet: &Packet<'_>, bytes: bool) {
        match packet {
            Packet::Pull(it) => {
                self.ends(it.from, it.to);
                self.hex("mxoe.session", it.session);
                self.put("mxoe.total", it.total_bytes);
                self.region(it.region, it.region_sequence, Some(it.region_offset));
                self.handle(it.handle, it.magic);
                self.put("mxoe.pull.first_offset", it.first_offset);
                self.put("mxoe.pull.block_bytes", it.block_bytes);
                self.put("mxoe.pull.frame", it.frame);
            }
            Packet::PullReply(it, data) => {
                self.put("mxoe.reply.frame", it.frame);
                self.put("mxoe.reply.bytes", data.len());
                self.put("mxoe.reply.offset", it.offset);
                self.handle(it.handle, it.magic);
                if bytes {
                    self.data(data);
                }
            }
            Packet::Notify(it) => {
                self.ends(it.from, it.to);
                self.hex("mxoe.session", it.session);
                self.put("mxoe.length", it.bytes);
                self.region(it.region.into(), it.region_sequence, None);
                self.sequence(it.sequence);
                self.acknowledged(it.acknowledged);
            }
            Packet::Ack(it) => {
                self.ends(it.from, it.to);
                self.hex("mxoe.session", it.session);
                self.acknowledged(it.acknowledged);
                self.put("mxoe.truc.number", it.number);
            }
            Packet::NackLib(it) => {
                self.ends(it.from, it.to);
                self.put("mxoe.nack.reason", it.reason.to_u8());
                self.put("mxoe.nack.index", it.index);
                self.sequence(it.sequence);
            }
            Packet::NackMcp(it) => {
                self.put("mxoe.to", it.endpoint);
                self.put("mxoe.nack.reason", it.reason.to_u8());
                self.handle(it.handle, it.magic);
            }
            Packet::HostQuery(it) => {
                self.put("mxoe.host.index", it.index);
                self.hex("mxoe.host.magic", it.magic);
            }
            Packet::HostReply(it) => {
                self.put("mxoe.host.index", it.index);
                self.hex("mxoe.host.magic", it.magic);
                self.put("mxoe.host.name", String::from_utf8_lossy(it.name));
            }
            connects => self.connects(connects),
        }
    }

    fn connects(&mut self, packet: &Packet<'_>) {
        let (to, from, index, asker, expected, number) = match *packet {
            Packet::Connect(it) => {
                self.hex("mxoe.connect.key", it.key);
                self.put("mxoe.connect.is_reply", 0);
                (it.to, it.from, it.index, it.session, it.receive_next, it.connect)
            }
            Packet::ConnectReply(it) => {
                self.hex("mxoe.connect.session", it.session);
                self.put("mxoe.connect.is_reply", 1);
                self.put("mxoe.connect.status", it.status);
                (it.to, it.from, it.index, it.asker, it.receive_next, it.connect)
            }
            _ => unreachable!("all others were dealt with"),
        };
        self.ends(from, to);
        self.put("mxoe.connect.index", index);
        self.hex("mxoe.connect.asker", asker);
        self.put("mxoe.connect.receive_next", expected.number());
        self.put("mxoe.connect.receive_next.session", expected.bits());
        self.put("mxoe.connect.number", number);
    }

    fn beacon(&mut self, beacon: &Beacon) {
        self.put("mxoe.beacon.nic", beacon.station);
        self.hex("mxoe.beacon.serial", beacon.serial);
        if let Some(ours) = beacon.ours {
            self.put("mxoe.beacon.version", ours.version);
            self.put("mxoe.beacon.features", format!("0x{:04x}", ours.features));
            self.put("mxoe.beacon.host", format!("0x{:016x}", ours.host));
            self.put("mxoe.beacon.checksum.status", 1);
        }
    }

    /// That tshark said this, and nothing else.
    fn check(&self, row: &[String], what: &str) {
        for (field, value) in FIELDS.iter().zip(row) {
            // If a payload was cut off, its remaining bytes do not matter.
            let expected = self.0.get(field).map_or("", String::as_str);
            let cut = *field == "mxoe.data" && !self.0.contains_key(field);
            assert!(value == expected || cut, "{what}: {field} is {value}, not {expected}");
        }
    }
}

#[test]
fn what_real_hosts_said_reads_as_with_our_decoder() {
    for name in ["open-mx-first-host.pcap", "open-mx-second-host.pcap"] {
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/captures").join(name);
        let asked = FIELDS.iter().flat_map(|field| ["-e", *field]);
        let arguments: Vec<&str> =
            ["-T", "fields", "-E", "separator=/t"].into_iter().chain(asked).collect();
        let Some(text) = tshark(&path, &[], &arguments) else { return };
        let bytes = std::fs::read(&path).unwrap();
        let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let (mut at, mut rows) = (24, text.lines());
        while at < bytes.len() {
            let (kept, len) = (number(at + 8) as usize, number(at + 12) as usize);
            let mut frame = bytes[at + 16..at + 16 + kept].to_vec();
            frame.resize(len, 0);
            let (_, body) = Ethernet::split(&frame).unwrap();
            let dialect = Dialect::native(1500, Order::Big).unwrap();
            let (index, packet) = Packet::parse(body, dialect).unwrap();
            let row: Vec<String> = rows.next().unwrap().split('\t').map(str::to_string).collect();
            let words = Words::of(index, body[2], &packet, kept == len);
            words.check(&row, &format!("{name}, {packet:?}"));
            at += 16 + kept;
        }
        assert_eq!(rows.next(), None);
    }
}

/// One of every type, with a value of its own in each field: first what carries messages.
fn one_of_each(dialect: Dialect, data: &[u8]) -> Vec<Packet<'_>> {
    let message = Message {
        to: 3,
        from: 200,
        session: 0xa1b2_c3d4,
        sequence: Sequence::new(2, 16_001),
        acknowledged: Sequence::new(1, 77),
        match_info: 0x0123_4567_89ab_cdef,
    };
    let fragment =
        Fragment { message, total_bytes: 20_000, fragment: 1, offset: dialect.fragment_bytes() };
    let mut all = vec![
        Packet::Tiny(message, &data[..5]),
        Packet::Small(message, &data[..100]),
        Packet::Medium(fragment, &data[..dialect.fragment_bytes() as usize]),
        Packet::Rendezvous(Rendezvous {
            message,
            total_bytes: 3_000_000_000,
            region: 255,
            region_sequence: 24,
            region_offset: 4001,
        }),
        Packet::Pull(pull(dialect)),
        Packet::PullReply(
            PullReply { frame: 200, offset: 66_000, handle: 0x0040_0023, magic: 0xdead_beef },
            &data[..1000],
        ),
    ];
    all.extend(controls());
    all
}

fn pull(dialect: Dialect) -> Pull {
    let compatible = dialect.mode() == Mode::Compatible;
    let wide = |value: u32| if compatible { value & 0xffff } else { value };
    Pull {
        to: 4,
        from: 5,
        session: 0x1122_3344,
        total_bytes: 1_000_000,
        region: if compatible { 250 } else { 100_250 },
        region_sequence: 23,
        region_offset: wide(70_001),
        handle: 0x0040_0023,
        magic: Pull::magic_of(5),
        first_offset: wide(80_002),
        block_bytes: wide(90_003),
        frame: 128,
    }
}

fn controls() -> Vec<Packet<'static>> {
    let (connect, number) = (Sequence::new(3, 9), 12);
    vec![
        Packet::Notify(Notify {
            to: 6,
            from: 7,
            session: 0x5566_7788,
            sequence: Sequence::new(1, 16_383),
            acknowledged: Sequence::new(0, 1),
            bytes: 2_000_000,
            region: 254,
            region_sequence: 25,
        }),
        Packet::Connect(Connect {
            to: 8,
            from: 9,
            index: 1000,
            session: 0x99aa_bbcc,
            key: 0x1234_5678,
            receive_next: connect,
            connect: number,
        }),
        Packet::ConnectReply(ConnectReply {
            to: 9,
            from: 8,
            index: 2000,
            asker: 0x99aa_bbcc,
            session: 0xddee_ff00,
            receive_next: connect,
            connect: number,
            status: 11,
        }),
        Packet::Ack(Ack {
            to: 10,
            from: 11,
            session: 0x0102_0304,
            acknowledged: Sequence::new(3, 5000),
            number: 70_000,
        }),
        Packet::NackLib(NackLib {
            from: 12,
            to: 13,
            reason: Nack::Closed,
            index: 3000,
            sequence: Sequence::new(2, 6000),
        }),
        Packet::NackMcp(NackMcp {
            endpoint: 14,
            reason: Nack::BadRegion,
            handle: 0x0040_0023,
            magic: Pull::magic_of(14),
        }),
        Packet::HostQuery(HostQuery { index: 4000, magic: HOST_QUERY_MAGIC }),
        Packet::HostReply(HostReply { index: 5000, magic: HOST_QUERY_MAGIC, name: b"node7:0" }),
    ]
}

fn body_of(packet: &Packet<'_>, index: u16, dialect: Dialect) -> Vec<u8> {
    let mut header = [0; HEADER_BYTES_MAX];
    let len = packet.emit(index, dialect, &mut header);
    let mut body = header[..len].to_vec();
    match packet {
        Packet::Tiny(_, data)
        | Packet::Small(_, data)
        | Packet::Medium(_, data)
        | Packet::PullReply(_, data) => body.extend_from_slice(data),
        Packet::HostReply(it) => {
            body.extend_from_slice(it.name);
            body.push(0);
        }
        _ => {}
    }
    body
}

/// The preferences of a dialect.
fn preferences(dialect: Dialect) -> [String; 3] {
    let order = if dialect.order() == Order::Big { "big" } else { "little" };
    let mode = if dialect.mode() == Mode::Native { "native" } else { "compatible" };
    [
        format!("mxoe.byte_order:{order}"),
        format!("mxoe.mode:{mode}"),
        format!("mxoe.frame_bytes:{}", dialect.frame_bytes_max()),
    ]
}

#[test]
fn every_type_in_every_dialect_reads_as_it_was_written() {
    let data: Vec<u8> = (0..9000).map(|byte| byte as u8).collect();
    let native = |bytes, order| Dialect::native(bytes, order).unwrap();
    for dialect in [
        native(1500, Order::Big),
        native(9000, Order::Little),
        native(1500, Order::Little),
        Dialect::compatible(),
    ] {
        let mut capture = Capture::new();
        let packets = one_of_each(dialect, &data);
        let mut words = Vec::new();
        for (index, packet) in (7..).zip(&packets) {
            let body = body_of(packet, index, dialect);
            words.push((Words::of(index, body[2], packet, true), body.clone()));
            capture.ethernet(HERE, THERE, &body);
        }
        for ours in [None, Some(Announcement { version: 1, features: 0x8001, host: 77 << 40 })] {
            let beacon = Beacon { station: HERE, serial: 0x327b_23c6, ours };
            let body = beacon.emit();
            let packet = Packet::Raw(&body[3..]);
            words.push((Words::of(0, 1, &packet, true), body.to_vec()));
            capture.ethernet(HERE, Station::BROADCAST, &body);
        }
        let preferences = preferences(dialect);
        let preferences: Vec<&str> = preferences.iter().map(String::as_str).collect();
        let Some(rows) = capture.columns(&preferences, FIELDS) else { return };
        assert_eq!(rows.len(), words.len());
        for (row, (words, body)) in rows.iter().zip(&words) {
            words.check(row, &format!("{dialect:?}, type {:#x}", body[2]));
        }
    }
}

#[test]
fn people_can_read_it_and_questions_find_their_answers() {
    let dialect = Dialect::native(1500, Order::Big).unwrap();
    let data = vec![0; 9000];
    let packets = one_of_each(dialect, &data);
    let mut capture = Capture::new();
    let mut say = |packet: &Packet<'_>, back: bool| {
        let (from, to) = if back { (THERE, HERE) } else { (HERE, THERE) };
        capture.ethernet(from, to, &body_of(packet, 1, dialect));
    };
    say(&packets[0], false);
    say(&packets[0], false);
    say(&packets[4], false);
    let Packet::Pull(pull) = packets[4] else { unreachable!("the fourth is the pull") };
    let reply = PullReply { frame: 128, offset: 0, handle: pull.handle, magic: pull.magic };
    say(&Packet::PullReply(reply, &data[..1468]), true);
    say(&packets[7], false);
    say(&packets[8], true);
    let fields = ["_ws.col.Info", "mxoe.answers", "mxoe.answered", "mxoe.resent"];
    let Some(rows) = capture.columns(&[], &fields) else { return };
    let expected = [
        ["Tiny 200 → 3 seq 16001 ack 77: 5 B, match 0x0123456789abcdef", "", "", ""],
        ["Tiny 200 → 3 seq 16001 ack 77: 5 B, match 0x0123456789abcdef (again)", "", "", "1"],
        [
            "Pull 5 → 4 handle 0x400023: 90003 B from frame 128 on, of 1000000 in region 100250.23",
            "",
            "",
            "",
        ],
        ["Pull reply handle 0x400023: frame 128, 1468 B at 0", "3", "", ""],
        ["Connect 9 → 8: session 0x99aabbcc, key 0x12345678, expects 9", "", "", ""],
        ["Connect answer 8 → 9: session 0xddeeff00, expects 9, wrong key", "5", "", ""],
    ];
    assert_eq!(rows, expected);
    // The second look at a packet knows what came after it.
    let arguments = ["-2", "-T", "fields", "-e", "mxoe.answered", "-e", "mxoe.answers"];
    let text = capture.tshark(&[], &arguments).unwrap();
    assert_eq!(text, "\t\n\t\n4\t\n\t3\n6\t\n\t5\n");
}

#[test]
fn what_is_cut_or_senseless_is_named() {
    let dialect = Dialect::native(1500, Order::Big).unwrap();
    let data = vec![0x55; 9000];
    let mut capture = Capture::new();
    let mut expected = Vec::new();
    for packet in one_of_each(dialect, &data) {
        let body = body_of(&packet, 1, dialect);
        let ethernet = Ethernet { destination: THERE, source: HERE, ethertype: ETHERTYPE };
        let mut frame = ethernet.to_bytes().to_vec();
        frame.extend(&body);
        for len in 15..frame.len().min(80) {
            capture.frame(&frame[..len]);
            expected.push(("The packet ends too early", body[2]));
            capture.cut(&frame, len);
            expected.push(("The rest was not captured", body[2]));
        }
    }
    let mut bad = |kind: usize, at: usize, byte: u8, complaint| {
        let packet = one_of_each(dialect, &data)[kind];
        let mut body = body_of(&packet, 1, dialect);
        body[at] = byte;
        capture.ethernet(HERE, THERE, &body);
        expected.push((complaint, body[2]));
    };
    let (long, field) = (
        "Longer than its type allows, or beyond the end of its message",
        "A field that no sender writes",
    );
    bad(0, 7, 33, long);
    bad(1, 7, 129, long);
    bad(2, 28, 32, long);
    bad(9, 14, 0x56, field);
    bad(9, 18, 0xff, field);
    bad(8, 28, 2, field);
    bad(13, 18, 0, field);
    bad(0, 2, 0x99, "Nobody knows packets of this type");
    let Some(rows) = capture.columns(&[], &["_ws.expert.message"]) else { return };
    assert_eq!(rows.len(), expected.len());
    for (row, (complaint, kind)) in rows.iter().zip(&expected) {
        assert!(row[0].contains(complaint), "{kind:#x}: {complaint}, not {row:?}");
    }
}
