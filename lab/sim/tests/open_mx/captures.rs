//! The model in the place of a real host: it receives the same packets, its user makes the same calls, and it has to
//! send the same packets.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_sim::open_mx::{Address, Host, HostConfig, Kind, Status};
use ropewalk_wire::mxoe::*;

use crate::recorded::{Frame, capture, dialect, messages, packet};
use crate::world::{KEY, station};

/// Silence that is none of the protocol's.
const PAUSE: Duration = Duration::from_millis(90);

/// Frames that a real host looked at together.
const TOGETHER: Duration = Duration::from_micros(100);

/// A host in the place of a real one.
struct Replay {
    host: Host,
    peer: Address,
    messages: BTreeMap<u16, (u64, Vec<u8>)>,
    /// Messages and connects that the user has begun.
    begun: BTreeSet<(u8, u16)>,
    /// The delay of the model behind the capture: acknowledgements of real hosts go by the ticks of a clock.
    shift: Duration,
    said: Vec<Vec<u8>>,
}

impl Replay {
    fn new(me: usize, endpoints: [u8; 2], sessions: [u32; 2], frames: &[Frame]) -> Replay {
        let other = 1 - me;
        let mut config = HostConfig::new(station(me), endpoints[me], sessions[me], dialect());
        config.peers = vec![station(me), station(other)];
        config.key = KEY;
        config.name = format!("g{}:0", me + 1);
        let mut host = Host::new(config);
        for _ in 0..200 {
            host.receive(0, 0, 1 << 20);
        }
        let peer = Address { station: station(other), endpoint: endpoints[other] };
        Replay {
            host,
            peer,
            messages: messages(frames, station(me)),
            begun: BTreeSet::new(),
            shift: Duration::ZERO,
            said: Vec::new(),
        }
    }

    fn run(&mut self, now: Time) {
        self.host.advance(now);
        while let Some((to, body)) = self.host.next() {
            assert_eq!(to, self.peer.station);
            self.said.push(body);
        }
    }

    /// The real host said this: if it was its user's doing, the model's user does the same.
    fn said(&mut self, frame: &Frame, is_last: bool) {
        self.run(frame.at + self.shift);
        let sequence = match packet(&frame.body).1 {
            Packet::Connect(connect) => {
                if self.begun.insert((Type::Connect as u8, connect.connect.into())) {
                    self.host.connect(self.peer, KEY);
                }
                return self.run(frame.at + self.shift);
            }
            Packet::Tiny(message, _) | Packet::Small(message, _) => message.sequence.0,
            Packet::Medium(piece, _) => piece.message.sequence.0,
            Packet::Rendezvous(announced) => announced.message.sequence.0,
            // The end of the program.
            Packet::Ack(_) if is_last => {
                self.host.close();
                return self.run(frame.at + self.shift);
            }
            Packet::Ack(ack) => return self.acknowledges(ack, frame.at),
            _ => return,
        };
        if self.begun.insert((0, sequence))
            && let Some((match_info, bytes)) = self.messages.get(&sequence).cloned()
        {
            let synchronous = matches!(packet(&frame.body).1, Packet::Rendezvous(_));
            self.host.send(self.peer, match_info, bytes, synchronous);
        }
        self.run(frame.at + self.shift);
    }

    /// Lets so much time pass that it acknowledges as well, if it has not.
    fn acknowledges(&mut self, ack: Ack, at: Time) {
        let said = |body: &Vec<u8>| packet(body).1 == Packet::Ack(ack);
        if self.said.iter().any(said) {
            return;
        }
        let late = self.host.deadline().since(at + self.shift);
        assert!(late < Duration::from_millis(8), "{ack:?} is far away: {late:?}");
        self.shift += late;
        self.run(at + self.shift);
        assert!(self.said.iter().any(said), "{ack:?}");
    }
}

/// Both lists, of which pull replies and names are compared for themselves: those are the driver's, and the
/// library of a real host speaks between them when it gets the processor.
fn compare(model: &[Vec<u8>], real: &[Vec<u8>]) {
    let parts = |bodies: &[Vec<u8>]| {
        let of = |kinds: &[Type]| {
            let named = |body: &&Vec<u8>| {
                let kind = Type::from_u8(body[INDEX_BYTES]).unwrap();
                kinds.contains(&kind)
            };
            bodies.iter().filter(named).cloned().collect::<Vec<_>>()
        };
        [
            of(&[Type::HostReply]),
            of(&[Type::PullReply]),
            of(&[
                Type::Connect,
                Type::Truc,
                Type::Tiny,
                Type::Small,
                Type::Medium,
                Type::Rendezvous,
                Type::Pull,
                Type::Notify,
            ]),
        ]
    };
    for (model, real) in parts(model).iter().zip(parts(real)) {
        for (number, (model, real)) in model.iter().zip(&real).enumerate() {
            assert_eq!(packet(model), packet(real), "number {number}");
            assert_eq!(model.len(), real.len(), "number {number}: {:?}", packet(real));
        }
        assert_eq!(model.len(), real.len());
    }
}

#[test]
fn the_model_says_what_real_hosts_said() {
    let sessions = [0xf499_a5a0, 0x08e3_678b];
    for (me, name, frames_said, ends) in [
        (0, "open-mx-first-host.pcap", 525, (1, 43, 43)),
        (1, "open-mx-second-host.pcap", 535, (1, 43, 43)),
    ] {
        let frames = capture(name);
        let mut replay = Replay::new(me, [3, 0], sessions, &frames);
        let mut real = Vec::new();
        let mine = |frame: &Frame| {
            let kind = Type::from_u8(frame.body[INDEX_BYTES]).unwrap();
            // Beacons are the daemon's, and a table that is given makes no host ask for names.
            let by_others = [Type::Raw, Type::HostQuery].contains(&kind);
            frame.ethernet.source == station(me) && !by_others
        };
        let last = frames.iter().rposition(mine).unwrap();
        for (position, frame) in frames.iter().enumerate() {
            if mine(frame) {
                real.push(frame.body.clone());
                replay.said(frame, position == last);
            } else if frame.ethernet.source != station(me) {
                replay.host.packet(frame.ethernet.source, &frame.body, frame.at + replay.shift);
                // Packets that come together belong to one round: a process does not wake up so fast.
                let next = frames.get(position + 1);
                let together = next.is_some_and(|next| {
                    next.ethernet.source != station(me) && next.at.since(frame.at) < TOGETHER
                });
                if !together {
                    replay.run(frame.at + replay.shift);
                }
            }
            // The user of the host that begins sleeps between sizes, and packets that come then are not acknowledged.
            let next = frames[position + 1..].iter().find(|frame| mine(frame));
            if let Some(next) = next.filter(|next| me == 1 && next.at.since(frame.at) > PAUSE) {
                replay.host.computes_until(next.at + replay.shift);
            }
        }
        compare(&replay.said, &real);
        assert!(replay.shift < Duration::from_millis(100), "{:?}", replay.shift);
        let events = replay.host.take_events();
        assert!(events.iter().all(|event| event.status == Status::Success));
        let count = |kind| events.iter().filter(|event| event.kind == kind).count();
        assert_eq!((count(Kind::Connect), count(Kind::Send), count(Kind::Receive)), ends);
        assert_eq!(real.len(), frames_said);
    }
}
