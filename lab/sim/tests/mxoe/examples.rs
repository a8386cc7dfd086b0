//! Our packets, byte by byte, as in the examples of the protocol's description.

use ropewalk_transport::PacketProtocol;
use std::collections::BTreeMap;

use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_wire::mxoe::*;

use crate::world::*;

/// The two hosts of the examples.
const ENDPOINTS: [u8; 2] = [3, 0];
const SESSIONS: [u32; 2] = [0xa1b2_c3d4, 0x1122_3344];
const MATCH: u64 = 0x0123_4567_89ab_cdef;
/// Behind the Ethernet header.
const AT: fn(usize) -> usize = |offset| offset - ETHERNET_BYTES;

/// The body of the example of this name.
fn example(name: &str) -> Vec<u8> {
    let all = include_str!("../../../../wire/tests/mxoe_examples.txt");
    let (_, rest) = all.split_once(&format!("[{name}]\n")).expect("there is an example");
    let bytes = rest.split('[').next().unwrap().split_whitespace();
    bytes.skip(ETHERNET_BYTES).map(|byte| u8::from_str_radix(byte, 16).unwrap()).collect()
}

/// The fields of a frame that have a byte order: offset and length.
fn fields(kind: u8) -> &'static [(usize, usize)] {
    match Type::from_u8(kind).unwrap() {
        Type::Connect => &[(14, 2), (24, 2), (26, 2), (32, 4), (36, 4), (40, 2)],
        Type::Tiny | Type::Small => {
            &[(14, 2), (20, 2), (24, 2), (26, 2), (28, 4), (32, 4), (36, 4)]
        }
        Type::Medium => &[(14, 2), (20, 4), (24, 2), (26, 2), (28, 4), (32, 4), (36, 4), (40, 2)],
        Type::Rendezvous => {
            &[(14, 2), (20, 2), (24, 2), (26, 2), (28, 4), (32, 4), (36, 4), (40, 4), (46, 2)]
        }
        Type::Pull => &[
            (14, 2),
            (20, 4),
            (24, 4),
            (28, 4),
            (36, 4),
            (40, 4),
            (44, 4),
            (48, 4),
            (52, 4),
            (56, 4),
        ],
        Type::PullReply => &[(14, 2), (18, 2), (20, 4), (24, 4), (28, 4)],
        Type::Notify => &[(14, 2), (20, 4), (24, 4), (34, 2), (36, 2)],
        Type::Truc => &[(14, 2), (24, 4), (30, 2), (32, 4), (36, 4), (40, 2)],
        Type::NackLib => &[(14, 2), (26, 2), (28, 2)],
        Type::NackMcp => &[(14, 2), (24, 4), (28, 4)],
        other => panic!("nobody says {other:?} here"),
    }
}

/// The same in another byte order.
fn ordered(mut body: Vec<u8>, order: Order) -> Vec<u8> {
    if order == Order::Little {
        for (offset, len) in fields(body[INDEX_BYTES]) {
            body[AT(*offset)..][..*len].reverse();
        }
    }
    body
}

/// Somebody with one of the sessions; the number of its first attempt to connect is 0, as in the examples.
fn host(host: usize, endpoint: u8, dialect: Dialect) -> Ours {
    for seed in 0.. {
        let random = || Random::from_seed(seed);
        let mut ours = Ours::in_session(&mut random(), endpoint, dialect, SESSIONS[host]);
        ours.machine.connect(9, 9, KEY, Time(1)).unwrap();
        let mut out = [0; 200];
        ours.machine.next(Time(1), &ours.store, &mut out).unwrap();
        if out[AT(43)] == 0 {
            return Ours::in_session(&mut random(), endpoint, dialect, SESSIONS[host]);
        }
    }
    unreachable!("one of 256 begins with 0")
}

/// Every packet of a dialogue, by who sent it, its type, and its fragment or frame.
type Said = BTreeMap<(usize, u8, u8), Vec<u8>>;

/// The two hosts, and their packets: each packet arrives at once.
struct Dialogue {
    hosts: [Ours; 2],
    now: Time,
    said: Said,
}

impl Dialogue {
    fn new(dialect: Dialect) -> Dialogue {
        let hosts = [host(0, ENDPOINTS[0], dialect), host(1, ENDPOINTS[1], dialect)];
        let mut dialogue = Dialogue { hosts, now: Time(1_000_000), said: Said::new() };
        // B knows four hosts by then, so that A is the fifth in its table.
        for station in 11..15 {
            let stranger = Packet::Connect(Connect {
                to: ENDPOINTS[1],
                from: 1,
                index: 1,
                session: 5,
                key: KEY,
                receive_next: Sequence(1),
                connect: 0,
            });
            let mut body = [0; HEADER_BYTES_MAX];
            let len = stranger.emit(0, dialect, &mut body);
            dialogue.hosts[1].packet(station, &body[..len], dialogue.now);
        }
        dialogue
    }

    fn run(&mut self) {
        for _ in 0..200 {
            for host in 0..2 {
                for (to, body) in self.hosts[host].pass(self.now, 1000) {
                    if to > 1 {
                        continue;
                    }
                    let number = match Type::from_u8(body[INDEX_BYTES]).unwrap() {
                        Type::Medium => body[AT(42)],
                        Type::PullReply => body[AT(17)],
                        Type::Connect => body[AT(42)],
                        _ => 0,
                    };
                    let key = (host, body[INDEX_BYTES], number);
                    self.said.entry(key).or_insert_with(|| body.clone());
                    self.hosts[1 - host].packet(host as u32, &body, self.now);
                }
            }
            self.now = self.now + std::time::Duration::from_micros(100);
        }
    }

    /// All packets of the dialogue.
    fn speak(mut self, medium: u64) -> Said {
        self.hosts[1].seen.anything = true;
        let now = self.now;
        let a = self.hosts[0].machine.connect(1, ENDPOINTS[1], KEY, now).unwrap();
        self.run();
        let links = &self.hosts[1].seen.up;
        let (b, _) = links.iter().find(|(_, (who, _))| who.station == 0).expect("a link with A");
        let b = *b;
        assert_eq!((self.hosts[0].seen.up.len(), links.len()), (1, 5));
        let small: Vec<u8> = (0x40..0x61).collect();
        for bytes in [b"hello".to_vec(), small, vec![0; medium as usize], vec![0; 100_000]] {
            self.hosts[0].send_bytes(a, MATCH, bytes);
        }
        self.run();
        let announced = self.hosts[1].seen.announced.pop_front().expect("it is announced");
        let token = self.hosts[1].read_into_nothing(b, announced.1);
        self.run();
        assert!(!self.hosts[1].seen.pending.contains(&token), "it is here");
        self.hosts[1].tell_end(b, announced.1);
        self.run();
        assert_eq!(self.hosts[0].seen.finished.len(), 1);
        self.said
    }
}

/// Compares a body with an example in which some fields have other values: from an offset on, these bytes.
fn same(said: &[u8], name: &str, order: Order, other: &[(usize, &[u8])]) {
    let mut expected = example(name);
    for (offset, bytes) in other {
        expected[AT(*offset)..][..bytes.len()].copy_from_slice(bytes);
    }
    let expected = ordered(expected, order);
    assert_eq!(said[..expected.len()], expected, "{name}");
}

fn dialects() -> [Dialect; 3] {
    let native = |order| Dialect::native(1500, order).unwrap();
    [native(Order::Big), native(Order::Little), Dialect::compatible()]
}

#[test]
fn a_dialogue_has_the_bytes_of_the_examples() {
    for dialect in dialects() {
        let (order, native) = (dialect.order(), dialect.mode() == Mode::Native);
        let said = Dialogue::new(dialect).speak(if native { 2000 } else { 5000 });
        let find = |host: usize, kind: Type, number: u8| {
            said.get(&(host, kind as u8, number)).unwrap_or_else(|| panic!("{kind:?} {number}"))
        };
        let (a, b) = (0, 1);
        // Nobody asked for names, by which hosts learn what they are in the table of the other.
        let unknown: &[(usize, &[u8])] = &[(14, &[0xff, 0xff])];
        same(find(a, Type::Connect, 0), "connect", order, unknown);
        same(find(b, Type::Connect, 1), "connect reply", order, &[]);
        same(find(a, Type::Tiny, 0), "tiny", order, &[]);
        same(find(a, Type::Small, 0), "small", order, &[]);
        if native {
            same(find(a, Type::Medium, 0), "medium native 0", order, &[]);
            same(find(a, Type::Medium, 1), "medium native 1", order, &[]);
            assert_eq!(find(a, Type::Medium, 0).len() + ETHERNET_BYTES, 1500);
            assert_eq!(find(a, Type::Medium, 1).len() + ETHERNET_BYTES, 596);
        } else {
            same(find(a, Type::Medium, 1), "medium compatible 1", order, &[]);
            assert_eq!(find(a, Type::Medium, 1).len() + ETHERNET_BYTES, 952);
        }
        same(find(a, Type::Rendezvous, 0), "rendezvous", order, &[]);
        // The handle is the asker's to choose.
        let (name, at) = if native { ("pull native", 40) } else { ("pull compatible", 32) };
        let pull = find(b, Type::Pull, 0);
        let mut handle = pull[AT(at)..][..4].to_vec();
        if order == Order::Little {
            handle.reverse();
        }
        same(pull, name, order, &[(at, &handle)]);
        if native {
            let reply: &[(usize, &[u8])] =
                &[(18, &1468u16.to_be_bytes()), (20, &2936u32.to_be_bytes()), (24, &handle)];
            same(find(a, Type::PullReply, 2), "pull reply", order, reply);
            assert_eq!(find(a, Type::PullReply, 2).len() + ETHERNET_BYTES, 1500);
        } else {
            same(find(a, Type::PullReply, 2), "pull reply", order, &[(24, &handle)]);
            assert_eq!(find(a, Type::PullReply, 2).len() + ETHERNET_BYTES, 4128);
        }
        same(find(b, Type::Notify, 0), "notify", order, &[]);
        same(find(a, Type::Truc, 0), "ack", order, &[]);
    }
}

#[test]
fn refusals_have_the_bytes_of_the_examples() {
    for dialect in dialects() {
        let order = dialect.order();
        let say = |ours: &mut Ours, from: u32, packet: Packet<'_>| {
            let mut body = [0; HEADER_BYTES_MAX];
            let len = packet.emit(5, dialect, &mut body);
            ours.packet(from, &body[..len], Time(1));
            let mut said = ours.pass(Time(1), 10);
            assert_eq!(said.len(), 1, "{packet:?}");
            said.remove(0).1
        };
        // They know nobody: the receiver of a refusal looks for the host that it came from.
        let unknown: &[u8] = &[0xff, 0xff];
        let stale = Message {
            to: 7,
            from: 3,
            session: 4711,
            sequence: Sequence(9),
            acknowledged: Sequence(1),
            match_info: MATCH,
        };
        let nack = say(&mut host(1, 7, dialect), 0, Packet::Tiny(stale, &[]));
        let other: &[(usize, &[u8])] = &[(14, unknown), (19, &[3]), (26, unknown)];
        same(&nack, "nack lib", order, other);
        let pull = Pull {
            to: 3,
            from: 0,
            session: 4711,
            total_bytes: 100_000,
            region: 0,
            region_sequence: 23,
            region_offset: 0,
            handle: 0x23,
            magic: Pull::magic_of(0),
            first_offset: 0,
            block_bytes: 1000,
            frame: 0,
        };
        let nack = say(&mut host(0, 3, dialect), 1, Packet::Pull(pull));
        same(&nack, "nack mcp", order, &[(14, unknown)]);
    }
}
