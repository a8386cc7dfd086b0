//! Each bit of each packet that a foreign host sends: the result of its change on the way.

use std::time::Duration;

use ropewalk_transport::mxoe::{MxoeConfig, MxoeCounters};
use ropewalk_wire::mxoe::*;

use crate::room::*;
use crate::world::*;
use Means::*;

/// The meaning of a field to our side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Means {
    /// Our side does not read it.
    Nothing,
    /// With another value the packet is not for us: it is counted as such, and as good as lost.
    Guard(Counter),
    /// Likewise, and the apparent sender gets a nack.
    Refused(Counter),
    /// Another value may be right as well.
    Believed,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Counter {
    Endpoint,
    Session,
    Stranger,
    Malformed,
    /// One of both: a reply to another one, or neither that nor a connect.
    SessionOrMalformed,
    Doubled,
    /// At a place without a piece.
    Misplaced,
    /// Not as long as the piece there, or longer than the packet.
    Piece,
    Unasked,
    /// Of no transfer, or of one of another endpoint.
    Transfer,
}

impl Counter {
    fn of(self, it: MxoeCounters) -> u64 {
        match self {
            Counter::Endpoint => it.wrong_endpoint,
            Counter::Session => it.wrong_session,
            Counter::Stranger => it.strangers,
            Counter::Malformed => it.malformed,
            Counter::SessionOrMalformed => it.wrong_session + it.malformed,
            Counter::Doubled => it.doubled,
            Counter::Misplaced => it.misplaced,
            Counter::Piece => it.misplaced + it.wrong_length,
            Counter::Unasked => it.unasked,
            Counter::Transfer => it.unasked + it.wrong_endpoint,
        }
    }
}

const ENDPOINT_GUARD: Means = Guard(Counter::Endpoint);
const SESSION_GUARD: Means = Guard(Counter::Session);
const MALFORMED: Means = Guard(Counter::Malformed);
const STRANGER: Means = Guard(Counter::Stranger);

/// The fields of a packet behind its type, one after the other: the offset where each ends, counted as in captures.
#[expect(clippy::too_many_lines, reason = "one table for each kind of packet")]
fn fields(kind: Kind, mode: Mode) -> &'static [(usize, Means)] {
    let native = mode == Mode::Native;
    match kind {
        Kind::Tiny | Kind::Small => &[
            (18, ENDPOINT_GUARD),
            (19, Refused(Counter::Stranger)),
            (20, Nothing),
            (22, Believed), // Length: what is longer than the packet is recognised.
            (24, Nothing),
            (36, Believed), // Number, acknowledgement, match bits.
            (40, SESSION_GUARD),
        ],
        Kind::Medium => &[
            (18, ENDPOINT_GUARD),
            (19, Refused(Counter::Stranger)),
            (20, Nothing),
            (36, Believed), // Length, number, acknowledgement, match bits.
            (40, SESSION_GUARD),
            (44, Believed), // Which fragment, and how long it is.
            (48, Nothing),
        ],
        Kind::Rendezvous => &[
            (18, ENDPOINT_GUARD),
            (19, Refused(Counter::Stranger)),
            (24, Nothing),
            (36, Believed),
            (40, SESSION_GUARD),
            (48, Believed), // Length, region.
        ],
        Kind::Pull if native => &[
            (18, ENDPOINT_GUARD),
            (19, Refused(Counter::Stranger)),
            (20, Nothing),
            (24, SESSION_GUARD),
            (28, Nothing),
            (60, Believed), // Region, what names the transfer, which part of it.
        ],
        Kind::Pull => &[
            (18, ENDPOINT_GUARD),
            (19, Refused(Counter::Stranger)),
            (20, Nothing),
            (24, SESSION_GUARD),
            (28, Nothing),
            (48, Believed),
        ],
        Kind::PullReply => &[
            (18, Guard(Counter::Misplaced)),
            (20, Guard(Counter::Piece)),
            (24, Guard(Counter::Misplaced)),
            (28, Guard(Counter::Unasked)),
            (32, Guard(Counter::Transfer)),
        ],
        Kind::Notify => &[
            (18, ENDPOINT_GUARD),
            (19, Refused(Counter::Stranger)),
            (20, Nothing),
            (24, SESSION_GUARD),
            (30, Believed), // Length, region.
            (34, Nothing),
            (38, Believed), // Number, acknowledgement.
            (40, Nothing),
        ],
        Kind::Ack => &[
            (18, ENDPOINT_GUARD),
            (19, STRANGER),
            (24, Nothing),
            (29, MALFORMED), // The session, which is there twice, and the mark of an acknowledgement.
            (30, Nothing),
            (32, Believed),
            (36, MALFORMED),
            (40, Believed),
            (44, Nothing),
        ],
        Kind::Connect => &[
            (18, ENDPOINT_GUARD),
            (19, Believed),
            (26, Nothing),
            (28, Believed), // Our index there: what goes there carries it, and nothing comes of it here.
            (32, Nothing),
            (42, Believed), // Session, key, number.
            (43, Guard(Counter::SessionOrMalformed)),
            (44, Believed),
            (48, Nothing),
        ],
        Kind::ConnectReply => &[
            (18, ENDPOINT_GUARD),
            (19, STRANGER),
            (26, Nothing),
            (28, Believed),
            (32, Nothing),
            (36, SESSION_GUARD),
            (42, Believed), // Session, number.
            (43, Believed), // Not a reply: then a connect.
            (44, Guard(Counter::Doubled)),
            (45, Believed),
            (48, Nothing),
        ],
        Kind::NackLib => &[
            (18, STRANGER),
            (25, Nothing), // Also the reason: we connect, and learn it.
            (26, ENDPOINT_GUARD),
            (28, Nothing),
            (30, Believed),
            (32, Nothing),
        ],
        Kind::NackMcp => &[
            (19, Nothing),
            (20, Believed),
            (24, Nothing),
            (28, Guard(Counter::Unasked)),
            (32, Guard(Counter::Transfer)),
        ],
    }
}

/// The packets of foreign hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Tiny,
    Small,
    Medium,
    Rendezvous,
    Pull,
    PullReply,
    Notify,
    Ack,
    Connect,
    ConnectReply,
    NackLib,
    NackMcp,
}

const KINDS: [Kind; 12] = [
    Kind::Tiny,
    Kind::Small,
    Kind::Medium,
    Kind::Rendezvous,
    Kind::Pull,
    Kind::PullReply,
    Kind::Notify,
    Kind::Ack,
    Kind::Connect,
    Kind::ConnectReply,
    Kind::NackLib,
    Kind::NackMcp,
];

const MOMENT: Duration = Duration::from_millis(1);

/// A dialogue in which a packet is to come next.
struct Dialogue {
    room: Room,
    next: Vec<u8>,
    /// The types of the packets that left so far.
    types: Vec<u8>,
}

fn pieces(id: u64, begin: usize, len: usize) -> Vec<u8> {
    (begin..begin + len).map(|at| pattern(id, at as u64)).collect()
}

impl Dialogue {
    fn new(kind: Kind, dialect: Dialect) -> Dialogue {
        let mut room = Room::new(1, MxoeConfig { dialect, ..config(200) });
        let link = room.let_him_in();
        room.hosts[0].seen.anything = true;
        let next = match kind {
            Kind::Tiny => room.body(&Packet::Tiny(message(1, 16), &pieces(16, 0, 20))),
            Kind::Small => room.body(&Packet::Small(message(1, 16), &pieces(16, 0, 100))),
            Kind::Medium => {
                let unit = dialect.fragment_bytes();
                let (message, total_bytes) = (message(1, 16), unit + 99);
                let piece = |fragment, offset| Fragment { message, total_bytes, fragment, offset };
                room.say(HIS_STATION, &Packet::Medium(piece(0, 0), &pieces(16, 0, unit as usize)));
                room.body(&Packet::Medium(piece(1, unit), &pieces(16, unit as usize, 99)))
            }
            Kind::Rendezvous => room.body(&Packet::Rendezvous(announce(dialect))),
            Kind::PullReply | Kind::NackMcp => {
                room.say(HIS_STATION, &Packet::Rendezvous(announce(dialect)));
                room.read_all();
                let asked = room.next_said(|packet| match packet {
                    Packet::Pull(asked) => Some(*asked),
                    _ => None,
                });
                reply(&mut room, kind, asked)
            }
            Kind::Pull | Kind::Notify => {
                room.hosts[0].send(link, 48, 100_000, true);
                let it = room.next_said(|packet| match packet {
                    Packet::Rendezvous(it) => Some(*it),
                    _ => None,
                });
                room.body(&demand(kind, it, dialect))
            }
            Kind::Ack | Kind::NackLib => {
                room.hosts[0].send(link, 48, 20, true);
                room.run(MOMENT);
                let acknowledged = Sequence(2);
                let ack =
                    Ack { to: ENDPOINT, from: HIS, session: SESSION, acknowledged, number: 1 };
                let (reason, sequence) = (Nack::BadSession, Sequence(1));
                let nack = NackLib { from: HIS, to: ENDPOINT, reason, index: 1, sequence };
                let is_ack = kind == Kind::Ack;
                room.body(&if is_ack { Packet::Ack(ack) } else { Packet::NackLib(nack) })
            }
            Kind::Connect => room.body(&Packet::Connect(connect(2))),
            Kind::ConnectReply => {
                // A key that was right once is not asked for again.
                room.hosts[0].machine.show_key(link, KEY + 1).unwrap();
                let asked = room.next_said(|packet| match packet {
                    Packet::Connect(asked) => Some(*asked),
                    _ => None,
                });
                room.body(&Packet::ConnectReply(ConnectReply {
                    to: ENDPOINT,
                    from: HIS,
                    index: 1,
                    asker: SESSION,
                    session: 77,
                    receive_next: Sequence(1),
                    connect: asked.connect,
                    status: 0,
                }))
            }
        };
        room.others.clear();
        let mut next = next;
        next.resize(next.len().max(FRAME_BYTES_MIN - ETHERNET_BYTES), 0);
        Dialogue { room, next, types: Vec::new() }
    }

    /// A packet comes, and its consequences happen.
    fn hear(&mut self, body: Option<&[u8]>) {
        let now = self.room.now;
        if let Some(body) = body {
            self.room.hosts[0].packet(HIS_STATION, body, now);
        }
        self.room.run(MOMENT);
        self.types.extend(self.room.others.drain(..).map(|(_, body)| body[INDEX_BYTES]));
    }

    /// The outcome of the dialogue, except refusals.
    fn outcome(&self) -> String {
        let seen = &self.room.hosts[0].seen;
        let is_nack = |kind: &&u8| **kind == Type::NackLib as u8 || **kind == Type::NackMcp as u8;
        let said: Vec<&u8> = self.types.iter().filter(|kind| !is_nack(kind)).collect();
        let Seen { told, received, finished, failed, judged, up, down, .. } = seen;
        format!("{told:?} {received:?} {finished:?} {failed:?} {judged:?} {up:?} {down:?} {said:?}")
    }

    fn refusals(&self) -> u64 {
        self.room.counters().nacks_sent
    }
}

/// A message of two pieces.
fn announce(dialect: Dialect) -> Rendezvous {
    Rendezvous {
        message: message(1, 16),
        total_bytes: dialect.reply_bytes() + 1,
        region: 4,
        region_sequence: 23,
        region_offset: 0,
    }
}

/// The last piece that is missing, or a refusal.
fn reply(room: &mut Room, kind: Kind, asked: Pull) -> Vec<u8> {
    let Pull { handle, magic, .. } = asked;
    if kind == Kind::NackMcp {
        let (endpoint, reason) = (HIS, Nack::BadRegion);
        return room.body(&Packet::NackMcp(NackMcp { endpoint, reason, handle, magic }));
    }
    let unit = room.dialect.reply_bytes();
    let second = PullReply { frame: 1, offset: unit, handle, magic };
    room.say(HIS_STATION, &Packet::PullReply(second, &pieces(16, unit as usize, 1)));
    let first = PullReply { frame: 0, offset: 0, handle, magic };
    room.body(&Packet::PullReply(first, &pieces(16, 0, unit as usize)))
}

/// Asks for a message of ours, or says that it is here.
fn demand(kind: Kind, announced: Rendezvous, dialect: Dialect) -> Packet<'static> {
    let Rendezvous { region, region_sequence, .. } = announced;
    if kind == Kind::Notify {
        return Packet::Notify(Notify {
            to: ENDPOINT,
            from: HIS,
            session: SESSION,
            sequence: Sequence(1),
            acknowledged: Sequence(2),
            bytes: 100_000,
            region,
            region_sequence,
        });
    }
    Packet::Pull(Pull {
        to: ENDPOINT,
        from: HIS,
        session: SESSION,
        total_bytes: 100_000,
        region: region.into(),
        region_sequence,
        region_offset: 0,
        handle: 0x23,
        magic: Pull::magic_of(HIS),
        first_offset: 0,
        block_bytes: 2 * dialect.reply_bytes(),
        frame: 1,
    })
}

/// The meaning of the field that holds a byte.
fn field_of(kind: Kind, mode: Mode, at: usize) -> Means {
    match at {
        // The index of the sender in a table of ours, which is never read.
        14..16 => Nothing,
        16 => Believed,
        _ => {
            let fields = fields(kind, mode);
            fields.iter().find(|(end, _)| at < *end).expect("each byte has a meaning").1
        }
    }
}

fn is_as_it_means(kind: Kind, dialect: Dialect, at: usize, bit: u8) {
    let means = field_of(kind, dialect.mode(), at);
    let what = format!("bit {bit} of byte {at} of {kind:?} in {dialect:?}");
    let outcome = |heard: &[Option<&[u8]>]| {
        let mut dialogue = Dialogue::new(kind, dialect);
        heard.iter().for_each(|body| dialogue.hear(*body));
        dialogue
    };
    let good = Dialogue::new(kind, dialect).next;
    let mut bad = good.clone();
    bad[at - ETHERNET_BYTES] ^= 1 << bit;
    let (good, bad) = (Some(&good[..]), Some(&bad[..]));
    let heard = outcome(&[bad]);
    match means {
        Nothing => assert_eq!(heard.outcome(), outcome(&[good]).outcome(), "{what}"),
        Guard(counter) | Refused(counter) => {
            let before = outcome(&[None]);
            assert_eq!(heard.outcome(), before.outcome(), "{what}");
            let [counted, of_nothing] = [&heard, &before].map(|it| counter.of(it.room.counters()));
            assert_eq!(counted, of_nothing + 1, "{what}: {counter:?}");
            let refused = u64::from(means == Refused(counter));
            assert_eq!(heard.refusals(), before.refusals() + refused, "{what}");
            // The packet that was as good as lost comes again.
            let again = outcome(&[bad, good]).outcome();
            assert_eq!(again, outcome(&[None, good]).outcome(), "{what}");
        }
        Believed => {
            // Our side survives any value.
            let mut dialogue = outcome(&[bad, good]);
            dialogue.room.read_all();
            dialogue.room.run(Duration::from_millis(20));
        }
    }
}

#[test]
fn each_bit_means_something_or_nothing_or_is_noticed() {
    let dialects = [
        Dialect::native(1500, Order::Big).unwrap(),
        Dialect::native(9000, Order::Little).unwrap(),
        Dialect::compatible(),
    ];
    for dialect in dialects {
        for kind in KINDS {
            let good = Dialogue::new(kind, dialect).next;
            let (index, packet) = Packet::parse(&good, dialect).expect("it is one");
            let header = packet.emit(index, dialect, &mut [0; HEADER_BYTES_MAX]);
            let (end, _) = *fields(kind, dialect.mode()).last().expect("it has fields");
            assert_eq!(ETHERNET_BYTES + header, end, "all of {kind:?}");
            let taken = |bodies: &[Option<&[u8]>]| {
                let mut dialogue = Dialogue::new(kind, dialect);
                bodies.iter().for_each(|body| dialogue.hear(*body));
                dialogue.outcome()
            };
            assert_ne!(taken(&[Some(&good)]), taken(&[None]), "{kind:?} has an outcome");
            for at in ETHERNET_BYTES..end {
                (0..8).for_each(|bit| is_as_it_means(kind, dialect, at, bit));
            }
        }
    }
}

#[test]
fn packets_that_are_cut_are_counted_as_too_short_and_come_again() {
    for dialect in [Dialect::native(1500, Order::Big).unwrap(), Dialect::compatible()] {
        for kind in KINDS {
            let good = Dialogue::new(kind, dialect).next;
            let (index, packet) = Packet::parse(&good, dialect).expect("it is one");
            let header = packet.emit(index, dialect, &mut [0; HEADER_BYTES_MAX]);
            let mut expected = Dialogue::new(kind, dialect);
            expected.hear(None);
            expected.hear(Some(&good));
            for len in (0..header).chain([header + 18].into_iter().filter(|_| kind == Kind::Tiny)) {
                let mut dialogue = Dialogue::new(kind, dialect);
                dialogue.hear(Some(&good[..len]));
                assert_eq!(dialogue.room.counters().wrong_length, 1, "{len} of {kind:?}");
                dialogue.hear(Some(&good));
                assert_eq!(dialogue.outcome(), expected.outcome(), "{len} of {kind:?}");
            }
        }
    }
}

#[test]
fn types_that_are_none_of_an_endpoints_are_counted() {
    let dialect = Dialect::native(1500, Order::Big).unwrap();
    let mut dialogue = Dialogue::new(Kind::Tiny, dialect);
    for kind in [0, 1, 3, 4, 0x20, 0x22, 0x2e, 0xff] {
        let mut body = dialogue.next.clone();
        body[INDEX_BYTES] = kind;
        let before = dialogue.room.counters().wrong_type;
        dialogue.hear(Some(&body));
        assert_eq!(dialogue.room.counters().wrong_type, before + 1, "{kind:#x}");
    }
}
