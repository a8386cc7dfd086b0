//! Packets to and from a host with Open-MX of which bits change on the way, behind the checks of the wire.
//!
//! Nothing in such a packet tells that it changed, so that much of it is believed. These guarantees hold all the
//! same:
//!
//! * Nothing breaks. No packet makes ours panic, report an impossible event to the layer above, or write to memory
//!   but that of a message on its way. The state that we keep is bounded, and gone when links are.
//! * A packet whose damage the receiver can recognise is as good as lost, and comes again: a wrong type, length,
//!   endpoint or session, a reply to no pull of ours (`fields.rs` has all of them). Links stay, and all messages
//!   arrive once and in order.
//! * Other damage concerns the message of the packet, and those whose number, region or transfer the packet names
//!   now. All other messages equal the sent ones, if they arrive; as long as no packet that makes a session is
//!   concerned they arrive at most once, and in order. A changed acknowledgement lets messages be lost, and a changed
//!   end lets a large send end early, or wait until the link ends.
//! * A link on which nothing goes on ends with a fault in bounded time, at the side that misses something. Once
//!   packets are left alone, messages flow both ways: over the link that there is, or over another one, for which
//!   no process has to begin anew.
//! * Every packet that came is counted: as one for us, or by the reason for which it is not.
//!
//! The model keeps the defects of Open-MX. It keeps a packet with a changed number for up to 255 messages, and takes
//! it for the right one when its turn comes; ours forgets such a packet after seconds. It never looks at the sequence
//! of a region. And both sides begin with the number that the peer gives them. If that number is too low, their
//! messages are old ones to the other, until the numbers have caught up. So the first messages behind the trouble may
//! be lost, too.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::random::Random;
use ropewalk_base::slots::SlotId;
use ropewalk_sim::open_mx::{EARLY_MAX, Kind, Status};
use ropewalk_sim::seeds;

use crate::foreign::*;
use crate::spoiler::*;
use crate::world::*;
use crate::{EDGES, ROUGH};

/// Messages of these lengths tell whether a link works.
const PROBES: [u64; 5] = [0, 20, 100, 5000, 100_000];
/// The limit of our state, in bytes of its debug output: with a link, and without one.
const SIZE_MAX: usize = 20_000_000;
const SIZE_MAX_UNUSED: usize = 60_000;
/// The time within which a link must report a stall: ours gives up, or they do, and one after the other.
const NOTICED_WITHIN: Duration = GIVE_UP_AFTER.saturating_mul(4);
/// The number of connects that may be needed. The first link may end since the other side notices something, too.
const LINKS_MAX: usize = 3;

struct Case {
    seed: u64,
    scene: Scene,
    spoiler: Rc<RefCell<Spoiler>>,
    /// The messages sent, by number: by us, and by them.
    sent: [BTreeMap<u64, u64>; 2],
    next: u64,
}

/// The outcome of probes.
#[derive(Debug, PartialEq, Eq)]
enum Flow {
    Works,
    /// One of the two sides was told that it does not.
    Told(&'static str),
}

/// By when something was seen.
struct Marks {
    received: usize,
    finished: usize,
    failed: usize,
    events: usize,
}

impl Case {
    fn new(seed: u64, weather: Weather, harm: Harm, rate: u64) -> Case {
        let first = [First::Ours, First::Theirs, First::Both][(seed % 3) as usize];
        let mut scene = Scene::new(seed, weather, first);
        let dialect = scene.world.nodes.0.dialect();
        let random = Random::from_seed(scene.world.random.next_u64());
        let (spoiler, meddler) = Spoiler::new(random, dialect);
        scene.world.air.meddler = Some(meddler);
        {
            let mut spoiler = spoiler.borrow_mut();
            spoiler.harm = harm;
            spoiler.rates = [[rate, rate], [0, rate], [rate, 0]][(seed / 2 % 3) as usize];
        }
        Case { seed, scene, spoiler, sent: Default::default(), next: 1 }
    }

    fn ours(&mut self) -> &mut Ours {
        &mut self.scene.world.nodes.0
    }

    fn theirs(&mut self) -> &mut Theirs {
        &mut self.scene.world.nodes.1
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.scene.world.random.below(limit)
    }

    /// The link with them that ours has, if there is one.
    fn link(&self) -> Option<SlotId> {
        let seen = &self.scene.world.nodes.0.seen;
        let mut up = seen.up.iter().filter(|(link, (who, _))| {
            (who.station, who.endpoint) == (1, THEIRS) && !seen.down.contains_key(link)
        });
        up.next_back().map(|(link, _)| *link)
    }

    fn connect(&mut self) {
        let now = self.scene.world.now;
        self.ours().machine.connect(1, THEIRS, KEY, now).expect("there is room for it");
    }

    /// One of ours goes, and they wait for it. Numbers are far from each other: a bit makes none out of another.
    fn send(&mut self, link: SlotId, len: u64) -> u64 {
        self.next += 1;
        let id = self.next << 4;
        self.sent[0].insert(id, len);
        self.ours().send(link, id, len, true);
        self.theirs().receive(id, room_for(id, len));
        id
    }

    fn send_back(&mut self, len: u64) -> u64 {
        self.next += 1;
        let id = 1 << 40 | self.next << 4;
        self.sent[1].insert(id, len);
        let synchronous = self.below(4) == 0;
        self.theirs().send(id, len, synchronous);
        id
    }

    fn pass(&mut self, time: Duration) {
        let end = self.scene.world.now + time;
        while self.scene.world.now < end {
            self.scene.world.step();
            while self.ours().read() {}
        }
    }

    /// Both talk while their packets are spoiled; and who is told that a link is over makes another.
    fn trouble(&mut self, messages: u64) {
        for _ in 0..messages {
            let edge = self.below(EDGES.len() as u64) as usize;
            let len = EDGES[if edge > 14 && self.below(3) > 0 { edge - 10 } else { edge }];
            match (self.below(2), self.link()) {
                (0, Some(link)) => drop(self.send(link, len)),
                (0, None) => self.connect(),
                _ => drop(self.send_back(len)),
            }
            let steps = self.below(6);
            (0..steps).for_each(|_| self.scene.world.step());
            if self.below(3) == 0 {
                self.ours().read();
            }
            if self.below(20) == 0 {
                let wait = self.below(1500);
                self.pass(Duration::from_millis(wait));
            }
            if self.below(20) == 0 {
                self.theirs().host.connect(ours(), KEY);
            }
        }
    }

    /// From now on packets are left alone, and a side that misses something has the time to notice.
    fn calm(&mut self) {
        self.scene.world.air.weather = Weather::FAIR;
        self.spoiler.borrow_mut().rates = [0; 2];
        self.pass(GIVE_UP_AFTER * 2 + Duration::from_secs(5));
        for _ in 0..EARLY_MAX {
            if let Some(link) = self.link() {
                self.send(link, 1);
            }
            self.send_back(1);
        }
        self.pass(Duration::from_secs(5));
    }

    fn size(&self) -> usize {
        format!("{:?}", self.scene.world.nodes.0.machine).len()
    }

    /// Messages both ways: they come, or somebody is told that they do not.
    fn probe(&mut self) -> Flow {
        let Some(link) = self.link() else { return Flow::Told("there is no link") };
        let seen = &self.scene.world.nodes.0.seen;
        let marks = Marks {
            received: seen.received.len(),
            finished: seen.finished.len(),
            failed: seen.failed.len(),
            events: self.scene.world.nodes.1.events.len(),
        };
        let there: BTreeSet<u64> = PROBES.iter().map(|len| self.send(link, *len)).collect();
        let back: BTreeSet<u64> = PROBES.iter().map(|len| self.send_back(*len)).collect();
        let limit = self.scene.world.now + NOTICED_WITHIN;
        loop {
            self.pass(Duration::from_millis(10));
            if let Some(flow) = self.seen_of(link, &there, &back, &marks) {
                return flow;
            }
            assert!(
                self.scene.world.now < limit,
                "seed {}: it hangs, and nobody knows; {}, {}",
                self.seed,
                self.scene.world.nodes.0.describe(),
                self.scene.world.nodes.1.describe(),
            );
        }
    }

    /// The outcome of messages in both directions, if it is known yet.
    fn seen_of(
        &self,
        link: SlotId,
        there: &BTreeSet<u64>,
        back: &BTreeSet<u64>,
        marks: &Marks,
    ) -> Option<Flow> {
        let (Ours { seen, .. }, theirs) = &self.scene.world.nodes;
        if seen.down.contains_key(&link) {
            return Some(Flow::Told("the link is over"));
        }
        if seen.failed[marks.failed..].iter().any(|(it, _)| back.contains(&it.id)) {
            return Some(Flow::Told("a read failed"));
        }
        let mut ended = 0;
        for event in &theirs.events[marks.events..] {
            let numbers =
                if event.kind == Kind::Receive { &theirs.receives } else { &theirs.sends };
            let is_probe = numbers
                .get(&event.request.0)
                .is_some_and(|id| there.contains(id) || back.contains(id));
            if is_probe && !is_good(event.status) {
                return Some(Flow::Told("a request failed"));
            }
            ended += usize::from(is_probe);
        }
        let here = |it: &&Received| back.contains(&it.id);
        let here = seen.received[marks.received..].iter().filter(here).count();
        let finished = seen.finished.len() - marks.finished;
        let all = (there.len() + back.len(), back.len(), there.len());
        ((ended, here) == (all.0, all.1) && finished >= all.2).then_some(Flow::Works)
    }

    /// Checks that received messages equal the sent ones, except those that the spoiler can have spoiled.
    fn judge(&self) {
        let spoiler = self.spoiler.borrow();
        let suspects = [0, 1].map(|from| spoiler.suspects(from));
        let seed = self.seed;
        let (Ours { seen, .. }, theirs) = &self.scene.world.nodes;
        for it in &seen.received {
            let sent = self.sent[1].get(&it.id) == Some(&it.bytes);
            assert!(it.right && sent || suspects[1].contains(&it.id), "seed {seed}: {it:?}");
        }
        let received = |event: &&_| is_good(event_status(event));
        for event in theirs.ended(Kind::Receive).filter(received) {
            let (id, data) = (event.match_info, &event.data);
            let right = data.iter().enumerate().all(|(at, byte)| *byte == pattern(id, at as u64));
            let whole = self.sent[0].get(&id).is_some_and(|len| {
                u64::from(event.bytes) == *len && data.len() as u64 == room_for(id, *len)
            });
            assert!(right && whole || suspects[0].contains(&id), "seed {seed}: {id}, theirs");
        }
        if spoiler.connects == 0 && seen.down.is_empty() {
            let told: Vec<u64> = seen.told.iter().map(|(_, id)| *id).collect();
            let told: Vec<u64> = told.into_iter().filter(|id| !suspects[1].contains(id)).collect();
            assert!(told.is_sorted_by(|a, b| a < b), "seed {seed}: {told:?}");
        }
    }

    /// Nothing is left of a link that is closed.
    fn close(&mut self) {
        let seen = &self.scene.world.nodes.0.seen;
        let links: Vec<SlotId> =
            seen.up.keys().filter(|link| !seen.down.contains_key(link)).copied().collect();
        links.into_iter().for_each(|link| self.ours().close(link));
        self.pass(Duration::from_secs(3));
        let seed = self.seed;
        let Ours { seen, .. } = &self.scene.world.nodes.0;
        assert!(seen.pending.is_empty(), "seed {seed}: orders without an outcome");
        assert!(seen.reading.is_empty(), "seed {seed}: reads without an end");
        assert!(self.size() < SIZE_MAX_UNUSED, "seed {seed}: {}", self.size());
    }
}

fn is_good(status: Status) -> bool {
    matches!(status, Status::Success | Status::Truncated)
}

fn event_status(event: &ropewalk_sim::open_mx::Event) -> Status {
    event.status
}

#[test]
fn whatever_is_spoiled_nothing_breaks_and_it_goes_on_afterwards() {
    let (mut spoiled, mut suspects, mut sent, mut links) = (0, 0, 0, [0; LINKS_MAX + 1]);
    // The last one: a message that is half here met other messages under its number, since the partner gave up and
    // connected anew each time before we noticed that nothing went on.
    for seed in seeds(0, 300).chain([2083]) {
        let weather = if seed.is_multiple_of(2) { Weather::FAIR } else { ROUGH };
        let rate = [3, 10, 50, 200][(seed / 6 % 4) as usize];
        let mut case = Case::new(seed, weather, Harm::Any, rate);
        case.ours().seen.anything = true;
        let messages = 40 + case.below(200);
        case.trouble(messages);
        assert!(case.size() < SIZE_MAX, "seed {seed}: {}", case.size());
        case.calm();
        let mut told = Vec::new();
        loop {
            match case.probe() {
                Flow::Works => break,
                it => told.push(it),
            }
            assert!(told.len() <= LINKS_MAX, "seed {seed}: {told:?}");
            case.connect();
            case.theirs().host.connect(ours(), KEY);
            case.pass(Duration::from_secs(2));
        }
        case.judge();
        case.close();
        links[told.len()] += 1;
        let spoiler = case.spoiler.borrow();
        spoiled += spoiler.spoiled;
        suspects += spoiler.suspects(0).len() + spoiler.suspects(1).len();
        sent += case.sent[0].len() + case.sent[1].len();
    }
    println!("{spoiled} packets spoiled, {suspects} of {sent} messages suspected");
    println!("links until it worked: {links:?}");
}

#[test]
fn what_is_recognised_is_as_good_as_lost() {
    let mut spoiled = 0;
    for seed in seeds(0, 150) {
        let rate = [20, 100, 200][(seed / 6 % 3) as usize];
        let mut case = Case::new(seed, Weather::FAIR, Harm::Recognisable, rate);
        let count = 10 + case.below(100);
        case.scene.traffic(count);
        case.scene.check();
        spoiled += case.spoiler.borrow().spoiled;
    }
    println!("{spoiled} packets spoiled");
}
