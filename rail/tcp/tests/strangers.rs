//! The effects of raw sockets on the rail: they cut frames anywhere, dribble, stay silent, flood.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::Duration;

use common::{Loopback, Raw};
use ropewalk_base::error::Fault;
use ropewalk_base::limits::QUEUED_FRAMES_MAX;
use ropewalk_base::memory::Slice;
use ropewalk_base::verb::{FrameOrder, LinkId, Ordered, Urgency};
use ropewalk_rail::Rail;
use ropewalk_rail::conformance::recorder::Event;
use ropewalk_rail::conformance::scene::{HEADER_BYTES, Pair, Scene, header, pattern};
use ropewalk_rail_tcp::TcpConfig;

const PAYLOAD_BYTES: usize = 300;

fn frame() -> Vec<u8> {
    let mut bytes = header(HEADER_BYTES, 7, PAYLOAD_BYTES).as_bytes().to_vec();
    bytes.extend(pattern(7, PAYLOAD_BYTES));
    bytes
}

/// Ends a connection with a reset instead of a farewell.
fn reset(stream: TcpStream) {
    rustix::net::sockopt::set_socket_linger(&stream, Some(Duration::ZERO)).expect("linger");
    drop(stream);
}

/// The events of one link whose peer sent the first `cut` bytes of a frame and went away.
fn expect_cut(events: &[Event], link: LinkId, accepted: bool, cut: usize) {
    let frame = frame();
    let mut expected = vec![Event::Up { link, accepted }];
    let head = frame[..HEADER_BYTES].to_vec();
    if cut >= HEADER_BYTES {
        let payload_bytes = PAYLOAD_BYTES as u32;
        expected.push(Event::Placed { link, header: head.clone(), payload_bytes });
    }
    if cut == frame.len() {
        let payload = frame[HEADER_BYTES..].to_vec();
        expected.push(Event::Received { link, header: head, payload });
    }
    expected.push(Event::Down { link, fault: Fault::PeerReset });
    assert_eq!(events, expected, "cut after {cut} bytes");
}

#[test]
fn an_accepted_link_may_be_cut_after_any_byte() {
    let frame = frame();
    for by_reset in [false, true] {
        let mut raw = Raw::open(TcpConfig::listening("127.0.0.1:0".parse().unwrap()));
        let address = raw.rail.local_address().unwrap();
        for cut in 0..=frame.len() {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(&frame[..cut]).unwrap();
            if by_reset {
                raw.until(|raw| !raw.recorder.events.is_empty());
                reset(stream);
            } else {
                drop(stream);
            }
            raw.until(|raw| matches!(raw.recorder.events.last(), Some(Event::Down { .. })));
            let events = std::mem::take(&mut raw.recorder.events);
            let Some(Event::Up { link, .. }) = events.first() else { panic!("{events:?}") };
            expect_cut(&events, *link, true, cut);
        }
        raw.recorder.check();
    }
}

#[test]
fn a_connected_link_may_be_cut_after_any_byte() {
    let frame = frame();
    let listener = TcpListener::bind("[::1]:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut raw = Raw::open(TcpConfig::default());
    for cut in 0..=frame.len() {
        let now = raw.now();
        let link = raw.rail.connect(&address, now).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&frame[..cut]).unwrap();
        drop(stream);
        raw.until(|raw| matches!(raw.recorder.events.last(), Some(Event::Down { .. })));
        let events = std::mem::take(&mut raw.recorder.events);
        expect_cut(&events, link, false, cut);
    }
    raw.recorder.check();
}

#[test]
fn a_receiver_that_goes_away_fails_what_is_pending() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut loopback = Loopback::new("127.0.0.1:0");
    let cuts = [0, 1, 7, 8, 39, 40, 41, 4096, 262_144, 262_183, 262_184, 1_000_000];
    for (number, cut) in (0..).zip(cuts) {
        let mut scene = Scene::new(&mut loopback, 1);
        let now = scene.fixture.now();
        let link = scene.rail(0).connect(&address, now).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        scene.until("the link is up", |scene| scene.recorder(0).is_up(link));
        let pair = Pair { near: (0, link), far: (0, link) };
        for sequence in 0..64 {
            scene.send(pair, sequence, 256 * 1024, Urgency::Bulk);
        }
        stream.set_nonblocking(true).unwrap();
        let mut left = cut;
        scene.until("the receiver has read its part", |_| {
            let mut buffer = vec![0; left.min(65_536)];
            left -= if left == 0 { 0 } else { stream.read(&mut buffer).unwrap_or(0) };
            left == 0
        });
        assert!(scene.recorder(0).pending() > 0, "more was ordered than buffers hold");
        if number % 2 == 0 {
            reset(stream)
        } else {
            drop(stream)
        }
        // The recorder checks that each pending order failed, once, before the last word.
        scene.until("the cut is seen", |scene| scene.recorder(0).fault(link).is_some());
        assert_eq!(scene.recorder(0).fault(link), Some(Fault::PeerReset));
        assert_eq!(scene.recorder(0).pending(), 0);
    }
}

#[test]
fn frames_may_come_in_pieces_of_any_length() {
    let mut raw = Raw::open(TcpConfig::listening("127.0.0.1:0".parse().unwrap()));
    let mut stream = TcpStream::connect(raw.rail.local_address().unwrap()).unwrap();
    stream.set_nodelay(true).unwrap();
    let frame = frame();
    for (count, piece) in (1..frame.len()).step_by(3).enumerate() {
        for bytes in frame.chunks(piece) {
            stream.write_all(bytes).unwrap();
            raw.poll();
        }
        let received = |event: &&Event| matches!(event, Event::Received { .. });
        raw.until(|raw| raw.recorder.events.iter().filter(received).count() > count);
        let Some(Event::Received { payload, .. }) = raw.recorder.events.last() else {
            panic!("the last event is that of the payload")
        };
        assert_eq!(*payload, pattern(7, PAYLOAD_BYTES), "in pieces of {piece} bytes");
    }
}

#[test]
fn whoever_says_nothing_is_hung_up() {
    let listen = Some("127.0.0.1:0".parse().unwrap());
    let greeting_timeout = Duration::from_millis(150);
    let mut raw = Raw::open(TcpConfig { listen, greeting_timeout, ..TcpConfig::default() });
    let address = raw.rail.local_address().unwrap();
    let mut silent: Vec<TcpStream> =
        (0..20).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut honest = TcpStream::connect(address).unwrap();
    honest.write_all(&frame()).unwrap();
    raw.until(|raw| raw.rail.counters().links_up == 21);
    assert!(raw.rail.deadline().is_some(), "a sleeper has to wake for the timeout");
    let mut dribble = frame()[..HEADER_BYTES - 1].to_vec().into_iter();
    raw.until(|raw| {
        // A header that never ends is no greeting.
        if let Some(byte) = dribble.next() {
            silent[0].write_all(&[byte]).unwrap();
        }
        raw.rail.counters().links_down == 20
    });
    assert_eq!(raw.rail.statistics().silent_links, 20);
    let faults = raw.recorder.events.iter().filter_map(|event| match event {
        Event::Down { fault, .. } => Some(*fault),
        _ => None,
    });
    assert!(faults.eq([Fault::Protocol; 20]));
    raw.settle(greeting_timeout);
    assert_eq!(raw.rail.counters().links_down, 20, "whoever greeted stays");
    silent.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
}

#[test]
fn more_links_than_allowed_are_hung_up() {
    let listen = Some("127.0.0.1:0".parse().unwrap());
    let mut raw = Raw::open(TcpConfig { listen, links_max: 3, ..TcpConfig::default() });
    let address = raw.rail.local_address().unwrap();
    let mut streams: Vec<TcpStream> =
        (0..5).map(|_| TcpStream::connect(address).unwrap()).collect();
    raw.until(|raw| raw.rail.statistics().accepts_refused == 2);
    assert_eq!(raw.rail.counters().links_up, 3);
    assert_eq!(streams[4].read(&mut [0; 1]).unwrap_or(0), 0, "hung up");
    let now = raw.now();
    assert_eq!(raw.rail.connect(&address.to_string(), now), Err(Fault::Busy));
}

#[test]
fn whoever_reads_nothing_costs_its_link_and_a_bounded_queue() {
    let mut raw = Raw::open(TcpConfig::listening("127.0.0.1:0".parse().unwrap()));
    let address = raw.rail.local_address().unwrap();
    let mut streams = [0, 1].map(|_| TcpStream::connect(address).unwrap());
    streams.iter_mut().for_each(|stream| stream.write_all(&frame()).unwrap());
    let received = |event: &&Event| matches!(event, Event::Received { .. });
    raw.until(|raw| raw.recorder.events.iter().filter(received).count() == 2);
    let Some(Event::Up { link, .. }) = raw.recorder.events.first() else { panic!("no link") };
    let link = *link;
    let frames = |raw: &mut Raw, count: usize| -> Vec<Ordered> {
        let order = |number| {
            let (header, payload) = (header(HEADER_BYTES, number as u64, 0), Slice::NONE);
            let (urgency, token) = (Urgency::Urgent, raw.recorder.token());
            let frame = FrameOrder { link, header, payload, urgency, token };
            let outcome = raw.rail.send(&frame, &raw.recorder.buffers);
            raw.recorder.ordered(link, token, None, outcome);
            outcome
        };
        (0..count).map(order).collect()
    };
    while frames(&mut raw, 1)[0] == Ordered::Released {}
    let outcomes = frames(&mut raw, 2 * QUEUED_FRAMES_MAX);
    let queued = 1 + outcomes.iter().filter(|outcome| **outcome == Ordered::Pending).count();
    assert_eq!(queued, QUEUED_FRAMES_MAX);
    assert_eq!(outcomes.last(), Some(&Ordered::Refused(Fault::PeerReset)));
    assert!(!raw.rail.arm(), "there is an end to be told");
    // The recorder checks that each order failed, once, before the last word.
    raw.until(|raw| raw.recorder.fault(link).is_some());
    assert_eq!(raw.recorder.fault(link), Some(Fault::PeerReset));
    assert_eq!((raw.rail.statistics().unread_links, raw.recorder.pending()), (1, 0));
    assert_eq!(raw.rail.counters().links_down, 1, "the other link stays");
    streams[1].write_all(&frame()).unwrap();
    raw.until(|raw| raw.recorder.events.iter().filter(received).count() == 3);
}

/// A poll reads the link that is busy, and asks the kernel for others now and then only.
#[test]
fn who_drains_hears_the_links_that_a_poll_passes_over() {
    let mut raw = Raw::open(TcpConfig::listening("127.0.0.1:0".parse().unwrap()));
    let address = raw.rail.local_address().unwrap();
    let [mut busy, mut quiet] = [0, 1].map(|_| TcpStream::connect(address).unwrap());
    let (frame, received) = (frame(), |event: &&Event| matches!(event, Event::Received { .. }));
    let heard = |raw: &Raw| raw.recorder.events.iter().filter(received).count();
    for count in 1..=20 {
        busy.write_all(&frame).unwrap();
        raw.until(|raw| heard(raw) == count);
    }
    let mut passed_over = 0;
    for count in 1..=100 {
        quiet.write_all(&frame).unwrap();
        // Over loopback it is here when the call returns.
        raw.poll();
        passed_over += usize::from(heard(&raw) < 20 + count);
        let now = raw.now();
        raw.rail.drain(now, &mut raw.recorder);
        assert_eq!(heard(&raw), 20 + count);
        for _ in 0..3 {
            busy.write_all(&frame).unwrap();
            raw.until(|raw| heard(raw) > 20 + count);
            raw.recorder.events.pop();
        }
    }
    assert!(passed_over > 0, "a usual poll passes links over");
}
