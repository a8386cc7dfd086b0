//! A caller who knows the packets and keeps to nothing else.

use ropewalk_transport::PacketProtocol;
use std::time::Duration;

use ropewalk_base::limits::REMOTE_SEGMENTS_MAX;
use ropewalk_base::memory::Slice;
use ropewalk_base::random::Random;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{LinkId, Ordered, RemoteKey, Verb};
use ropewalk_wire::packets::{
    self, AckBody, CallBody, GoneBody, Kind, OfferRecord, Packet, PullBody, RecordKind,
    RecordPrefix, Route, StreamBody, TakenRecord,
};
use zerocopy::IntoBytes;

use crate::world::{Node, of};

/// As long as calls are where longer ones are lost.
const PACKET_BYTES: usize = 1452;
const STATION: u32 = 9;
const NOW: Time = Time(1_000_000);

fn call(named: usize, padding: usize) -> Vec<u8> {
    call_of(1, 5, named, padding)
}

/// A call of one of a station's endpoints, with a number.
fn call_of(endpoint: u8, number: u64, named: usize, padding: usize) -> Vec<u8> {
    let body = CallBody {
        version: packets::VERSION.into(),
        packet_bytes: (named as u16).into(),
        tag: 77.into(),
        call: number.into(),
        refusal: 0,
        cookie: [0; 7],
    };
    let mut out = vec![0; named.max(PACKET_BYTES)];
    let route = Route { to: 1, from: endpoint, tag: 0 };
    let len = packets::seal(&mut out, Kind::Call, route, body.as_bytes(), padding, |_| ());
    out.truncate(len);
    out
}

/// The packets that the node sends at a time.
fn said_at(node: &mut Node, now: Time) -> Vec<Vec<u8>> {
    node.machine.drained(now, &mut node.seen);
    let (mut out, mut all) = (vec![0; 9000], Vec::new());
    while let Some((_, len)) = node.machine.next(now, &node.store, &mut out) {
        all.push(out[..len].to_vec());
    }
    node.machine.report(&mut node.seen);
    all
}

/// The next packet of the node.
fn said(node: &mut Node) -> Option<Vec<u8>> {
    let mut out = vec![0; PACKET_BYTES];
    let (_, len) = node.machine.next(NOW, &node.store, &mut out)?;
    out.truncate(len);
    Some(out)
}

#[test]
fn a_call_is_answered_by_no_more_bytes_than_it_has() {
    let mut node = Node::new(&mut Random::from_seed(1), PACKET_BYTES, 64);
    node.machine.packet(STATION, &call(PACKET_BYTES, 0), NOW, &mut node.seen);
    assert!(said(&mut node).is_none(), "it is shorter than it says");
    let honest = call(PACKET_BYTES, PACKET_BYTES - packets::overhead(Kind::Call));
    node.machine.packet(STATION, &honest, NOW, &mut node.seen);
    assert_eq!(said(&mut node).expect("an answer").len(), honest.len());
    // Nor by much more in the time after it, if nobody calls again.
    let mut more = 0;
    for millisecond in 1..10_000 {
        let now = NOW + Duration::from_millis(millisecond);
        more += said_at(&mut node, now).iter().map(Vec::len).sum::<usize>();
    }
    assert!(more < honest.len(), "{more} bytes for {}", honest.len());
}

#[test]
fn an_answer_to_a_longer_call_or_one_that_is_cut_short_makes_no_link() {
    let mut node = Node::new(&mut Random::from_seed(1), 8986, 64);
    let link = node.machine.connect(STATION, 1, NOW).unwrap();
    let (mut now, mut calls) = (NOW, Vec::new());
    while calls.last().is_none_or(|last: &Vec<u8>| last.len() > PACKET_BYTES) {
        calls.extend(said_at(&mut node, now));
        now = now + Duration::from_millis(1);
    }
    let answer = |length, padded| answer_to(&calls[0], length, padded, 0);
    for (answer, makes) in [
        (answer(8986, true), false),
        (answer(PACKET_BYTES, false), false),
        (answer(PACKET_BYTES, true), true),
    ] {
        node.machine.packet(STATION, &answer, now, &mut node.seen);
        said_at(&mut node, now);
        assert_eq!(node.seen.up.contains(&link), makes, "an answer of {} bytes", answer.len());
    }
}

/// An answer to a call, or to another one by `off`, that names a length, and has it where it is padded.
fn answer_to(call: &[u8], length: usize, padded: bool, off: u64) -> Vec<u8> {
    let Packet::Call(call) = packets::open(call).unwrap().packet else { panic!("no call") };
    let (packet_bytes, number) = ((length as u16).into(), (call.call.get() ^ off).into());
    let body = CallBody { tag: 99.into(), packet_bytes, call: number, ..*call };
    let mut out = vec![0; length];
    let route = Route { to: 1, from: 1, tag: call.tag.get() };
    let padding = if padded { length - packets::overhead(Kind::Answer) } else { 0 };
    let len = packets::seal(&mut out, Kind::Answer, route, body.as_bytes(), padding, |_| ());
    out.truncate(len);
    out
}

#[test]
fn who_is_called_says_nothing_else_before_his_answer() {
    let mut node = Node::new(&mut Random::from_seed(1), PACKET_BYTES, 64);
    node.machine.connect(STATION, 1, NOW).unwrap();
    let calls = said_at(&mut node, NOW);
    let Packet::Call(call) = packets::open(&calls[0]).unwrap().packet else { panic!("no call") };
    let body = StreamBody {
        ack: AckBody::new(0, 0, Duration::ZERO, None),
        number: 0.into(),
        record: 0.into(),
        offset: 0.into(),
        secret: 0.into(),
    };
    // A frame, with a header of 17 bytes and no payload.
    let record = [3, 17, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 0];
    let mut out = vec![0; PACKET_BYTES];
    let route = Route { to: 1, from: 1, tag: call.tag.get() };
    let len = packets::seal(&mut out, Kind::Stream, route, body.as_bytes(), record.len(), |rest| {
        rest.copy_from_slice(&record);
    });
    node.machine.packet(STATION, &out[..len], NOW, &mut node.seen);
    assert_eq!(node.machine.counters().strangers, 1);
    assert!(node.seen.up.is_empty() && node.seen.frames.iter().all(Vec::is_empty));
}

#[test]
fn who_is_called_by_one_of_several_addresses_may_answer_from_another() {
    const OTHER: u32 = STATION + 1;
    let mut node = Node::new(&mut Random::from_seed(1), PACKET_BYTES, 64);
    let link = node.machine.connect(STATION, 1, NOW).unwrap();
    let calls = said_at(&mut node, NOW);
    let wrong = answer_to(&calls[0], PACKET_BYTES, true, 1);
    node.machine.packet(OTHER, &wrong, NOW, &mut node.seen);
    assert_eq!(node.machine.station(link), Some(STATION), "he does not know the call");
    let right = answer_to(&calls[0], PACKET_BYTES, true, 0);
    node.machine.packet(OTHER, &right, NOW, &mut node.seen);
    let news = said_at(&mut node, NOW);
    assert!(node.seen.up.contains(&link) && !news.is_empty());
    assert_eq!(node.machine.station(link), Some(OTHER));
    // An eavesdropper on the call comes too late.
    node.machine.packet(STATION + 2, &right, NOW, &mut node.seen);
    assert_eq!(node.machine.station(link), Some(OTHER));
}

/// Calls, and says that the answer came; false if there is none.
fn make_link(node: &mut Node, station: u32, endpoint: u8, number: u64) -> bool {
    let padding = PACKET_BYTES - packets::overhead(Kind::Call);
    let honest = call_of(endpoint, number, PACKET_BYTES, padding);
    node.machine.packet(station, &honest, NOW, &mut node.seen);
    let Some(answer) = said(node) else { return false };
    let Packet::Answer(answer) = packets::open(&answer).unwrap().packet else {
        panic!("no answer")
    };
    let route = Route { to: 1, from: endpoint, tag: answer.tag.get() };
    let ack = AckBody::new(0, 0, Duration::ZERO, None);
    let mut out = vec![0; PACKET_BYTES];
    let len = packets::seal(&mut out, Kind::Ack, route, ack.as_bytes(), 0, |_| ());
    node.machine.packet(station, &out[..len], NOW, &mut node.seen);
    node.machine.report(&mut node.seen);
    true
}

#[test]
fn links_that_wait_for_an_answer_to_their_last_word_keep_nobody_out() {
    let mut node = Node::new(&mut Random::from_seed(1), PACKET_BYTES, 64);
    // Five times as many as there is room for; the layer above closes each, since nobody greets.
    for station in 100..2100 {
        assert!(make_link(&mut node, station, 1, 5), "{station} is kept out");
        let up = node.seen.up.iter().filter(|link| !node.seen.down.contains_key(*link));
        let links: Vec<SlotId> = up.copied().collect();
        let newest = links.into_iter().find(|link| node.machine.station(*link) == Some(station));
        let close = Verb::Close { link: of(newest.expect("it is up")) };
        assert_eq!(node.machine.order(&close, &node.store), Ordered::Released);
        // Its last word, to which there is no answer.
        while said(&mut node).is_some() {}
    }
    assert!(node.seen.down.len() >= 1600, "{} are over", node.seen.down.len());
    assert!(node.machine.connect(STATION, 1, NOW).is_ok());
}

#[test]
fn who_is_gone_is_one_endpoint_of_a_station_and_not_its_neighbour() {
    let mut node = Node::new(&mut Random::from_seed(1), PACKET_BYTES, 64);
    let gone = |endpoint, secret: u32| {
        let mut out = vec![0; PACKET_BYTES];
        let route = Route { to: 1, from: endpoint, tag: 0 };
        // Both chose this name for their links.
        let body = GoneBody { tag: 77.into(), secret: secret.into() };
        let len = packets::seal(&mut out, Kind::Gone, route, body.as_bytes(), 0, |_| ());
        out.truncate(len);
        out
    };
    for endpoint in [1, 2] {
        assert!(make_link(&mut node, STATION, endpoint, endpoint.into()));
    }
    node.machine.report(&mut node.seen);
    let up: Vec<SlotId> = node.seen.up.iter().copied().collect();
    assert_eq!(up.len(), 2);
    // Who has had no packet of the stream does not know its secret, and makes us ask.
    let ask = |node: &mut Node, endpoint| {
        for guess in [0, 1, u32::MAX] {
            node.machine.packet(STATION, &gone(endpoint, guess), NOW, &mut node.seen);
        }
        let said = said_at(node, NOW);
        let mut secrets =
            said.iter().filter_map(|said| match packets::open(said).unwrap().packet {
                Packet::Stream(body, _) => Some(body.secret.get()),
                _ => None,
            });
        let (secret, more) = (secrets.next().expect("a question"), secrets.count());
        assert_eq!((more, node.seen.down.len()), (0, usize::from(endpoint) - 1));
        secret
    };
    let secret = ask(&mut node, 1);
    node.machine.packet(STATION, &gone(2, secret), NOW, &mut node.seen);
    assert!(node.seen.down.is_empty(), "it is another link's");
    node.machine.packet(STATION, &gone(1, secret), NOW, &mut node.seen);
    assert_eq!(node.seen.down.keys().copied().collect::<Vec<_>>(), up[..1]);
    said_at(&mut node, NOW);
    let secret = ask(&mut node, 2);
    node.machine.packet(STATION, &gone(2, secret), NOW, &mut node.seen);
    assert_eq!(node.seen.down.len(), 2);
}

/// Somebody who offers, over a link that is up.
struct Offerer {
    station: u32,
    route: Route,
    packets: u32,
    records: u32,
}

impl Offerer {
    fn new(node: &mut Node, station: u32) -> Offerer {
        let honest = call(PACKET_BYTES, PACKET_BYTES - packets::overhead(Kind::Call));
        node.machine.packet(station, &honest, NOW, &mut node.seen);
        let tag = std::iter::from_fn(|| said(node)).find_map(|said| {
            match packets::open(&said).unwrap().packet {
                Packet::Answer(answer) => Some(answer.tag.get()),
                _ => None,
            }
        });
        let route = Route { to: 1, from: 1, tag: tag.expect("an answer") };
        Offerer { station, route, packets: 0, records: 0 }
    }

    /// Sends offers in one packet: their numbers, and the announced number of followers of each. Returns the number
    /// of bytes of the answer.
    fn offer(&mut self, node: &mut Node, offers: &[(u64, u32)]) -> usize {
        let bytes = size_of::<OfferRecord>();
        let kind = RecordKind::Offer as u8;
        let (flags, payload_bytes) = (0.into(), 0.into());
        let prefix = RecordPrefix { kind, header_bytes: bytes as u8, flags, payload_bytes };
        let ack = AckBody::new(0, 0, Duration::ZERO, None);
        let body = StreamBody {
            ack,
            number: self.packets.into(),
            record: self.records.into(),
            offset: 0.into(),
            secret: 0.into(),
        };
        let fill = |to: &mut [u8]| {
            for (&(offer, following), place) in offers.iter().zip(to.chunks_exact_mut(bytes)) {
                let offer = OfferRecord {
                    prefix,
                    offer: offer.into(),
                    secret: 0.into(),
                    key_slot: 1.into(),
                    key_secret: 1.into(),
                    offset: 0.into(),
                    total_bytes: 8.into(),
                    following: following.into(),
                    reserved: 0.into(),
                };
                place.copy_from_slice(offer.as_bytes());
            }
        };
        let mut out = vec![0; PACKET_BYTES];
        let (body, len) = (body.as_bytes(), offers.len() * bytes);
        let len = packets::seal(&mut out, Kind::Stream, self.route, body, len, fill);
        node.machine.packet(self.station, &out[..len], NOW, &mut node.seen);
        let answered = std::iter::from_fn(|| said(node)).map(|it| it.len()).sum();
        self.packets += 1;
        self.records += offers.len() as u32;
        answered
    }

    /// Sends so many unrelated offers, or until the link is down; the number of offers sent.
    fn flood(&mut self, node: &mut Node, most: u64) -> u64 {
        const OFFERS: u64 = 20;
        let (before, mut sent) = (node.seen.down.len(), 0);
        while sent < most && node.seen.down.len() == before {
            let offers: Vec<(u64, u32)> = (sent..sent + OFFERS).map(|number| (number, 0)).collect();
            self.offer(node, &offers);
            sent += OFFERS;
        }
        sent
    }
}

fn node() -> Node {
    Node::new(&mut Random::from_seed(1), PACKET_BYTES, 64)
}

#[test]
fn offers_of_one_who_reads_no_answers_end_the_link_and_not_the_memory() {
    let mut node = node();
    let sent = Offerer::new(&mut node, STATION).flood(&mut node, 100_000);
    assert!((8192..20_000).contains(&sent), "{sent}: what it is owed has no end");
}

#[test]
fn offers_of_many_who_read_no_answers_are_bounded_over_all_links() {
    let mut node = node();
    let sent: Vec<u64> = (0..150)
        .map(|other| Offerer::new(&mut node, STATION + other).flood(&mut node, 8000))
        .collect();
    assert_eq!(sent[..20], [8000; 20], "a few are no harm");
    // Offers that fit into a window of packets do not wait; a little beyond that is free for all.
    assert!(sent[100..].iter().all(|sent| *sent < 6000), "{sent:?}");
    assert!(node.seen.down.len() >= 50);
    // Lists that are never whole are refused beyond a number over all links, but for a few offers; and end nothing.
    let mut node = self::node();
    let said: Vec<usize> = (0..300)
        .map(|other| {
            let mut offerer = Offerer::new(&mut node, STATION + other);
            let offers: Vec<(u64, u32)> = (1..1001).map(|it| (it, 1024 - it as u32)).collect();
            offers.chunks(20).map(|offers| offerer.offer(&mut node, offers)).sum()
        })
        .collect();
    let ends = 100 * size_of::<TakenRecord>();
    assert!(said[..250].iter().all(|bytes| *bytes < ends), "lists that may be whole yet: {said:?}");
    assert!(said[280..].iter().all(|bytes| *bytes > ends), "lists beyond that: {said:?}");
    assert!(node.seen.down.is_empty());
}

#[test]
fn lists_of_offers_that_are_none_end_the_link() {
    let longest = REMOTE_SEGMENTS_MAX as u32 - 1;
    let mut node = node();
    let mut honest = Offerer::new(&mut node, STATION);
    honest.offer(&mut node, &[(1, 0), (2, 2), (3, 1)]);
    honest.offer(&mut node, &[(4, 0), (5, 1), (6, 0)]);
    honest.offer(&mut node, &[(7, longest)]);
    assert!(node.seen.down.is_empty());
    let wrong: [&[(u64, u32)]; 5] = [
        &[(1, longest + 1)],
        &[(1, u32::MAX)],
        &[(1, 2), (2, 2)],
        &[(1, 2), (2, 0)],
        &[(1, 1), (2, u32::MAX)],
    ];
    for offers in wrong {
        let mut node = self::node();
        Offerer::new(&mut node, STATION).offer(&mut node, offers);
        assert_eq!(node.seen.down.len(), 1, "{offers:?}");
    }
}

#[test]
fn what_comes_before_its_turn_is_bounded_over_all_links() {
    const LONG: usize = 9000;
    const LINKS: u32 = 63;
    let mut node = Node::new(&mut Random::from_seed(1), LONG, 64);
    let send_early = |node: &mut Node, station: u32, numbers: std::ops::Range<u32>| {
        let honest = call(LONG, LONG - packets::overhead(Kind::Call));
        node.machine.packet(STATION + station, &honest, NOW, &mut node.seen);
        let tag_of = |said: Vec<u8>| match packets::open(&said).unwrap().packet {
            Packet::Answer(answer) => Some(answer.tag.get()),
            _ => None,
        };
        let tag = said_at(node, NOW).into_iter().find_map(tag_of).expect("an answer");
        let route = Route { to: 1, from: 1, tag };
        for number in numbers {
            let body = StreamBody {
                ack: AckBody::new(0, 0, Duration::ZERO, None),
                number: number.into(),
                record: number.into(),
                offset: 0.into(),
                secret: 0.into(),
            };
            let mut out = vec![0; LONG];
            let len = LONG - packets::overhead(Kind::Stream);
            packets::seal(&mut out, Kind::Stream, route, body.as_bytes(), len, |to| to.fill(7));
            node.machine.packet(STATION + station, &out, NOW, &mut node.seen);
        }
    };
    (0..LINKS).for_each(|station| send_early(&mut node, station, 1..64));
    let counters = node.machine.counters();
    assert_eq!(counters.early, u64::from(LINKS) * 63);
    assert!(counters.bytes_copied <= (32 << 20) + u64::from(LINKS) * LONG as u64, "{counters:#?}");
    assert!(counters.bytes_copied > 16 << 20 && counters.beyond > 0, "{counters:#?}");
    // One link more, of which a packet is lost: its sender hears of the packets behind it.
    said_at(&mut node, NOW);
    send_early(&mut node, LINKS, 1..4);
    let of = |said: &Vec<u8>| match packets::open(said).unwrap().packet {
        Packet::Ack(ack) => Some((ack.next.get(), ack.early.get())),
        _ => None,
    };
    let acks: Vec<_> = said_at(&mut node, NOW).iter().filter_map(of).collect();
    assert!(acks.contains(&(0, 1)), "{acks:?}");
}

/// A piece that is asked for lies in the region, and its number is none.
#[test]
fn pieces_have_numbers_that_can_be_written() {
    let mut node = Node::new(&mut Random::from_seed(1), PACKET_BYTES, 64);
    let link = node.machine.connect(STATION, 1, NOW).unwrap();
    let calls = said_at(&mut node, NOW);
    let Packet::Call(call) = packets::open(&calls[0]).unwrap().packet else { panic!("no call") };
    let route = Route { to: 1, from: 1, tag: call.tag.get() };
    let answer = answer_to(&calls[0], PACKET_BYTES, true, 0);
    node.machine.packet(STATION, &answer, NOW, &mut node.seen);
    // Nobody reads of it: there is no such memory.
    let held = node.store.add(vec![0; 8]);
    let region = Slice { len: 1 << 33, ..held };
    let key = RemoteKey { slot: SlotId { index: 1, generation: 5 }, secret: 9 };
    let link = LinkId { rail: 0, slot: link };
    let expose = Verb::Expose { link, key, region, writable: false };
    assert_eq!(node.machine.order(&expose, &node.store), Ordered::Released);
    let body = PullBody {
        handle: 1.into(),
        key_slot: key.slot.to_u64().into(),
        key_secret: key.secret.into(),
        offset: 0.into(),
        total_bytes: region.len.into(),
        piece_bytes: 1.into(),
        offered: 0,
        reserved: 0,
        first: u32::MAX.into(),
        pieces: 2.into(),
    };
    let mut out = vec![0; PACKET_BYTES];
    let len = packets::seal(&mut out, Kind::Pull, route, body.as_bytes(), 0, |_| ());
    node.machine.packet(STATION, &out[..len], NOW, &mut node.seen);
    let violations = |node: &Node| node.machine.counters().violations;
    assert_eq!(violations(&node), 1);
    said_at(&mut node, NOW);
}

/// So many calls from false addresses, from this one on.
fn spoof(node: &mut Node, from: u32, calls: u32, at: Time) -> usize {
    let honest = call(PACKET_BYTES, PACKET_BYTES - packets::overhead(Kind::Call));
    let mut said = 0;
    for station in 0..calls {
        node.machine.packet(from + station, &honest, at, &mut node.seen);
        said += said_at(node, at).iter().map(Vec::len).sum::<usize>();
    }
    assert!(said <= calls as usize * honest.len(), "{said} bytes for {calls} calls");
    said
}

#[test]
fn calls_from_false_addresses_keep_no_genuine_one_out() {
    const CALLED: u32 = 8;
    let mut node = Node::new(&mut Random::from_seed(1), PACKET_BYTES, 1000);
    spoof(&mut node, 1000, 1000, NOW);
    let said = spoof(&mut node, 2000, 1000, NOW);
    assert!(said < 1000 * 64, "they are told to call again, and nothing is kept of them");
    let mut caller = Node::new(&mut Random::from_seed(2), PACKET_BYTES, 64);
    let link = caller.machine.connect(CALLED, 1, NOW).unwrap();
    // Between any two packets of the caller's come more false calls than may be half-open.
    let mut now = NOW;
    for _ in 0..4 {
        now = now + Duration::from_micros(100);
        for packet in said_at(&mut caller, now) {
            node.machine.packet(STATION, &packet, now, &mut node.seen);
        }
        let answers = said_at(&mut node, now);
        spoof(&mut node, 3000, 500, now);
        for packet in answers {
            caller.machine.packet(CALLED, &packet, now, &mut caller.seen);
        }
    }
    said_at(&mut caller, now);
    assert!(caller.seen.up.contains(&link), "{:?}", node.machine.counters());
}

#[test]
fn a_cookie_of_another_call_opens_nothing() {
    let mut node = Node::new(&mut Random::from_seed(1), PACKET_BYTES, 1000);
    spoof(&mut node, 1000, 300, NOW);
    let padding = PACKET_BYTES - packets::overhead(Kind::Call);
    let ask = |node: &mut Node, station: u32, number: u64, cookie: [u8; 7]| {
        let asked = call_of(1, number, PACKET_BYTES, padding);
        let Packet::Call(body) = packets::open(&asked).unwrap().packet else { panic!("a call") };
        let body = CallBody { cookie, ..*body };
        let mut out = vec![0; PACKET_BYTES];
        let route = Route { to: 1, from: 1, tag: 0 };
        let len = packets::seal(&mut out, Kind::Call, route, body.as_bytes(), padding, |_| ());
        node.machine.packet(station, &out[..len], NOW, &mut node.seen);
        let said = said_at(node, NOW);
        let mut answers =
            said.iter().filter_map(|said| match packets::open(said).unwrap().packet {
                Packet::Answer(answer) => Some((answer.refusal, answer.cookie)),
                _ => None,
            });
        answers.next_back()
    };
    let (refusal, cookie) = ask(&mut node, 5, 50, [0; 7]).expect("an answer");
    assert_eq!(refusal, packets::REFUSAL_RETRY);
    for (station, number) in [(6, 50), (5, 51)] {
        let told = ask(&mut node, station, number, cookie).expect("an answer");
        assert_eq!(told.0, packets::REFUSAL_RETRY);
    }
    assert_eq!(ask(&mut node, 5, 50, cookie).map(|it| it.0), Some(0));
}

#[test]
fn an_acknowledgement_of_what_was_never_sent_ends_nothing() {
    let mut node = node();
    let offerer = Offerer::new(&mut node, STATION);
    for (next, early) in [(7, 0), (0, 1 << 50), (1 << 30, u64::MAX)] {
        let ack = AckBody::new(next, early, Duration::ZERO, None);
        let mut out = vec![0; PACKET_BYTES];
        let len = packets::seal(&mut out, Kind::Ack, offerer.route, ack.as_bytes(), 0, |_| ());
        node.machine.packet(STATION, &out[..len], NOW, &mut node.seen);
        said_at(&mut node, NOW);
    }
    assert_eq!((node.machine.counters().never_sent, node.seen.down.len()), (3, 0));
}
