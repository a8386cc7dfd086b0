//! Two metadata servers and a witness, over random networks, with clocks that run apart: kills, pauses, partitions, and in most
//! histories one that loses its directory while it is down.
//!
//! In half of the histories the witness is a register: it keeps a value and no time, and each server judges its ballots by it.
//!
//! At first server 1 has the file system, and the others know nothing. Each server has a log of operations. The active one appends, sends its log to the other one, and acknowledges an operation once
//! all that it waits for have it and it may act. A server stands for election only if it was told that it is whole: that it was
//! taken in with the directory that it has. Checked:
//! * no two servers may act at one moment;
//! * who acknowledges has all that was acknowledged before, in the same order;
//! * once faults are over, operations are acknowledged within seconds; unless no whole server is in the newest set that a voter
//!   knows, or a majority of the voters knows no set. Then all that is left cannot be told from too little.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;

use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_election::shared::{self, Found, Judged, Observer};
use ropewalk_election::{Answer, Ballot, Claimant, Event, Record, Rules, Set, Voter};

const LEASE: Duration = Duration::from_secs(1);
const SERVERS: [u32; 2] = [1, 2];
const ALL: [u32; 3] = [1, 2, 3];
const MILLISECOND: u64 = 1_000_000;
/// Faults end here, and the history a while later.
const FAULTS: u64 = 40_000 * MILLISECOND;
const END: u64 = 50_000 * MILLISECOND;

/// A bug on purpose.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Plant {
    None,
    /// The holder counts two leases where voters count one.
    CountsLong,
    /// A server that is not in the set is elected.
    AnySet,
    /// The active server goes on alone before a majority stored that.
    DropsEarly,
    /// The vote of a voter that lost its memory counts like any other one.
    CountsFresh,
    /// A server that lost its log, and not its vote, takes itself for whole.
    StandsEmptied,
    /// A server takes the term of another one from a register that it has just seen for the first time.
    TakesUnseen,
    /// A register is replaced whatever it holds by then.
    ReplacesAny,
}

#[derive(Debug, Clone)]
enum Message {
    Ballot(u64, Ballot),
    Answer(u64, Answer),
    /// To a register, with the number of a ballot, and its replies.
    Read(u64),
    Found(u64, Found),
    Replace(u64, u64, Vec<u8>),
    /// The new content; none where another one was there.
    Replaced(u64, Option<Found>),
    /// The active server's term and log, and the receiver's directory that was taken in.
    Log(u64, Vec<u64>, Option<u64>),
    /// The term in which the log came, and how much of it is there.
    Have {
        term: u64,
        len: usize,
        directory: u64,
        is_whole: bool,
    },
}

/// A server that has to have a record, beside the active one.
#[derive(Default)]
struct Member {
    has: usize,
    /// The directory that was taken in; None: its server has not been heard of in this term.
    directory: Option<u64>,
    /// It is another one now, so that the server has to be left out first.
    is_gone: bool,
}

#[derive(Debug, Clone)]
enum What {
    Tick(u64),
    Arrives { from: u32, message: Message },
    Restarts,
    Wakes,
}

/// An event, by its moment, then by the order of its making.
struct Due {
    at: u64,
    order: u64,
    node: u32,
    what: What,
}

impl PartialEq for Due {
    fn eq(&self, other: &Due) -> bool {
        (self.at, self.order) == (other.at, other.order)
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Due) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Due) -> std::cmp::Ordering {
        (self.at, self.order).cmp(&(other.at, other.order))
    }
}

struct Server {
    claimant: Claimant,
    members: BTreeMap<u32, Member>,
    acknowledged: usize,
    /// The other one's last confirmation.
    heard: u64,
    /// Of a register.
    observer: Observer,
    known: Option<Found>,
    /// Ballots to it that are under way, and answers that count once they are stored.
    judging: BTreeMap<u64, (Ballot, Option<Answer>)>,
    looked: u64,
}

struct Node {
    voter: Voter,
    /// It is a register, with this content.
    register: Option<Found>,
    server: Option<Server>,
    log: Vec<u64>,
    /// The term of the log that came last.
    log_term: u64,
    /// The number of its directory: another one once it was emptied.
    directory: u64,
    /// It was taken in with this directory.
    is_whole: bool,
    /// Its clock: so many thousandths of the true speed, from somewhere.
    speed: u64,
    begin: u64,
    is_up: bool,
    is_paused: bool,
    kept: Vec<What>,
    life: u64,
}

struct World {
    random: Random,
    plant: Plant,
    now: u64,
    order: u64,
    due: BinaryHeap<Reverse<Due>>,
    nodes: BTreeMap<u32, Node>,
    /// Pairs that do not hear each other, until then.
    cut: BTreeMap<(u32, u32), u64>,
    acknowledged: Vec<u64>,
    terms: BTreeSet<(u64, u32)>,
    next_operation: u64,
    /// Writes of a register.
    writes: u64,
    takeovers: u64,
    last_term: u64,
    last_progress: u64,
    /// A voter was emptied in this history.
    was_emptied: bool,
    /// Nothing can be acknowledged any more.
    is_stuck: bool,
}

impl Server {
    fn may_act(&self, plant: Plant, now: Time) -> bool {
        let late = if plant == Plant::CountsLong { 3 * LEASE / 2 } else { Duration::ZERO };
        self.claimant.may_act(now - late)
    }
}

/// The witness of every other history.
fn is_register(seed: u64, number: u32) -> bool {
    seed % 2 == 1 && !SERVERS.contains(&number)
}

fn nothing() -> Found {
    Found { version: 0, value: Vec::new() }
}

fn first_record(number: u32) -> Record {
    if number == 1 { Record { term: 0, server: 0, set: Set::first([1]) } } else { Record::fresh() }
}

impl World {
    fn new(seed: u64, plant: Plant) -> World {
        let mut random = Random::from_seed(seed);
        let mut world = World {
            plant,
            now: 0,
            order: 0,
            due: BinaryHeap::new(),
            nodes: BTreeMap::new(),
            cut: BTreeMap::new(),
            acknowledged: Vec::new(),
            terms: BTreeSet::new(),
            next_operation: 1,
            writes: 0,
            takeovers: 0,
            last_term: 0,
            last_progress: 0,
            was_emptied: false,
            is_stuck: false,
            random: random.fork(),
        };
        for number in ALL {
            let (speed, begin) = (900 + random.below(200), random.below(1 << 40));
            let node = Node {
                voter: Voter::new(first_record(number), LEASE, Time(begin)),
                register: is_register(seed, number).then(nothing),
                server: None,
                log: Vec::new(),
                log_term: 0,
                directory: 0,
                is_whole: number == 1,
                speed,
                begin,
                is_up: true,
                is_paused: false,
                kept: Vec::new(),
                life: 0,
            };
            world.nodes.insert(number, node);
            world.start(number);
        }
        world
    }

    fn clock(&self, number: u32) -> Time {
        let node = &self.nodes[&number];
        Time(node.begin + self.now / 1000 * node.speed)
    }

    fn push(&mut self, after: u64, node: u32, what: What) {
        self.order += 1;
        self.due.push(Reverse(Due { at: self.now + after, order: self.order, node, what }));
    }

    fn start(&mut self, number: u32) {
        let (now, random) = (self.clock(number), self.random.fork());
        let node = self.nodes.get_mut(&number).expect("it is there");
        let record = node.voter.record().clone();
        let term = record.term;
        node.voter = Voter::new(record, LEASE, now);
        (node.is_up, node.life) = (true, node.life + 1);
        if SERVERS.contains(&number) {
            let rules = Rules { lease: LEASE, voters: ALL.into_iter().collect() };
            let claimant = Claimant::new(number, rules, term, now, random);
            let members = BTreeMap::new();
            let observer = Observer::new(LEASE);
            let (known, judging) = (None, BTreeMap::new());
            let (acknowledged, heard, looked) = (0, 0, 0);
            node.server = Some(Server {
                claimant,
                members,
                acknowledged,
                heard,
                observer,
                known,
                judging,
                looked,
            });
        }
        let life = node.life;
        self.push(0, number, What::Tick(life));
    }

    fn send(&mut self, from: u32, to: u32, message: Message) {
        let pair = (from.min(to), from.max(to));
        let is_cut = self.cut.get(&pair).is_some_and(|until| self.now < *until);
        if from != to && (is_cut || (self.now < FAULTS && self.random.below(20) == 0)) {
            return;
        }
        let slow = if self.random.below(30) == 0 { 300 } else { 3 };
        let delay = if from == to { 1 } else { 1 + self.random.below(slow * MILLISECOND) };
        self.push(delay, to, What::Arrives { from, message });
    }

    fn run(&mut self) -> Result<(), String> {
        let mut next_fault = 3000 * MILLISECOND;
        while let Some(Reverse(due)) = self.due.pop() {
            self.now = due.at;
            if self.now > END {
                break;
            }
            if self.now > next_fault && self.now < FAULTS {
                next_fault = self.now + self.random.below(4000) * MILLISECOND;
                self.fault();
            }
            self.happens(due.node, due.what)?;
        }
        let silence = END - self.last_progress;
        self.is_stuck = self.is_beyond_help();
        if silence > 2000 * MILLISECOND && !self.is_stuck {
            return Err(format!("nothing is acknowledged for {} ms", silence / MILLISECOND));
        }
        Ok(())
    }

    /// Whether nobody can know that what is left is all.
    fn is_beyond_help(&self) -> bool {
        let set = |node: &Node| match &node.register {
            None => node.voter.record().set.clone(),
            Some(found) if found.version == 0 => Record::fresh().set,
            Some(found) => shared::decode(&found.value).expect("a server wrote it").0.set,
        };
        let sets: Vec<Set> = self.nodes.values().map(set).collect();
        let newest = sets.iter().max().expect("there are voters");
        let is_left = newest.members.iter().any(|it| self.nodes[it].is_whole);
        !is_left || sets.iter().filter(|set| set.is_fresh()).count() > 1
    }

    /// A server that is down loses its directory: votes, log, and the word that it is whole.
    fn empty(&mut self, number: u32) {
        let (now, keeps) = (self.clock(number), self.plant == Plant::StandsEmptied);
        let node = self.nodes.get_mut(&number).expect("it is there");
        (node.log, node.log_term, node.directory) = (Vec::new(), 0, node.directory + 1);
        if let Some(found) = &mut node.register {
            *found = nothing();
        } else if !keeps {
            node.voter = Voter::new(Record::fresh(), LEASE, now);
            node.is_whole = false;
        }
        self.was_emptied = true;
    }

    fn fault(&mut self) {
        let number = ALL[self.random.below(3) as usize];
        // Many are short: nobody notices them in time.
        let most = if self.random.below(2) == 0 { 200 } else { 4000 };
        let time = (20 + self.random.below(most)) * MILLISECOND;
        match self.random.below(3) {
            0 => {
                let node = self.nodes.get_mut(&number).expect("it is there");
                if std::mem::replace(&mut node.is_up, false) {
                    (node.server, node.is_paused) = (None, false);
                    node.kept.clear();
                    self.push(time, number, What::Restarts);
                    // Rather while the other two do not hear each other: then it alone knows what both have to know.
                    let pair = ALL.into_iter().filter(|it| *it != number).collect::<Vec<_>>();
                    let until = self.cut.entry((pair[0], pair[1])).or_insert(0);
                    let is_needed = *until > self.now;
                    if is_needed && !self.was_emptied {
                        *until += 4000 * MILLISECOND;
                    }
                    let of = if is_needed { 1 } else { 10 };
                    if !self.was_emptied && self.random.below(of) == 0 {
                        self.empty(number);
                    }
                }
            }
            1 => {
                let node = self.nodes.get_mut(&number).expect("it is there");
                if node.is_up && !node.is_paused {
                    node.is_paused = true;
                    self.push(time, number, What::Wakes);
                }
            }
            _ => {
                for other in ALL.into_iter().filter(|it| *it != number) {
                    if self.random.below(3) > 0 {
                        let pair = (number.min(other), number.max(other));
                        self.cut.insert(pair, self.now + time);
                    }
                }
            }
        }
    }

    fn happens(&mut self, number: u32, what: What) -> Result<(), String> {
        let node = self.nodes.get_mut(&number).expect("it is there");
        match what {
            What::Restarts => {
                self.start(number);
                return Ok(());
            }
            What::Wakes => {
                node.is_paused = false;
                for what in std::mem::take(&mut node.kept) {
                    self.happens(number, what)?;
                }
                return Ok(());
            }
            _ if !node.is_up => return Ok(()),
            what if node.is_paused => {
                node.kept.push(what);
                return Ok(());
            }
            What::Tick(life) => {
                if life != node.life {
                    return Ok(());
                }
                self.push(10 * MILLISECOND, number, What::Tick(life));
                self.looks(number);
                self.works(number);
            }
            What::Arrives { from, message } => self.arrives(number, from, message),
        }
        self.acts(number)
    }

    fn arrives(&mut self, number: u32, from: u32, message: Message) {
        let (now, true_now) = (self.clock(number), self.now);
        let node = self.nodes.get_mut(&number).expect("it is there");
        match message {
            Message::Ballot(serial, ballot) => {
                let verdict = node.voter.judge(&ballot, now);
                self.send(number, from, Message::Answer(serial, verdict.answer));
            }
            Message::Answer(serial, mut answer) => {
                if self.plant == Plant::AnySet {
                    answer.set.members.extend(SERVERS);
                }
                if let Some(server) = &mut node.server {
                    let is_vote = server.claimant.held_term().is_none();
                    if self.plant == Plant::CountsFresh && is_vote && answer.set.is_fresh() {
                        answer.set = Set::first([0]);
                    }
                    server.claimant.answered(from, serial, &answer, now);
                }
            }
            Message::Read(_)
            | Message::Found(..)
            | Message::Replace(..)
            | Message::Replaced(..) => {
                self.of_register(number, from, message);
            }
            Message::Log(term, log, taken_in) => {
                if term < node.log_term {
                    return;
                }
                let Some(server) = &mut node.server else { return };
                server.claimant.heard(term, now);
                if server.claimant.held_term().is_some() {
                    return;
                }
                if node.log_term == term && log.len() < node.log.len() {
                    return;
                }
                (node.log, node.log_term) = (log, term);
                node.is_whole |= taken_in == Some(node.directory);
                let (len, directory, is_whole) = (node.log.len(), node.directory, node.is_whole);
                self.send(number, from, Message::Have { term, len, directory, is_whole });
            }
            Message::Have { term, len, directory, is_whole } => {
                let has_all = len == node.log.len();
                let Some(server) = &mut node.server else { return };
                if server.claimant.held_term() != Some(term) {
                    return;
                }
                server.heard = true_now;
                if let Some(member) = server.members.get_mut(&from) {
                    if is_whole && member.directory.is_none() {
                        member.directory = Some(directory);
                    }
                    member.is_gone |= member.directory != Some(directory);
                    if !member.is_gone {
                        member.has = member.has.max(len);
                    }
                } else if has_all
                    && server.may_act(self.plant, now)
                    && server.claimant.propose(SERVERS.into_iter().collect(), now)
                {
                    // It has all: from now on it is waited for, and as soon as that is stored it may be elected.
                    let directory = Some(directory);
                    server.members.insert(from, Member { has: len, directory, is_gone: false });
                }
            }
        }
    }

    /// A register's part, and what its replies mean for a server.
    fn of_register(&mut self, number: u32, from: u32, message: Message) {
        let now = self.clock(number);
        let node = self.nodes.get_mut(&number).expect("it is there");
        match message {
            Message::Read(serial) => {
                let found = node.register.clone().expect("it is a register");
                self.send(number, from, Message::Found(serial, found));
            }
            Message::Replace(serial, version, value) => {
                let held = node.register.as_mut().expect("it is a register");
                let is_same = held.version == version || self.plant == Plant::ReplacesAny;
                let found = is_same.then(|| {
                    // As in etcd: numbers go on, also where something was lost.
                    self.writes += 1;
                    *held = Found { version: self.writes, value };
                    held.clone()
                });
                self.send(number, from, Message::Replaced(serial, found));
            }
            Message::Found(serial, found) => self.found(number, from, serial, found),
            Message::Replaced(serial, replaced) => {
                let Some(server) = &mut node.server else { return };
                let Some(found) = replaced else {
                    return self.send(number, from, Message::Read(serial));
                };
                server.observer.observe(found.version, now);
                server.known = Some(found);
                if let Some((_, Some(answer))) = server.judging.remove(&serial) {
                    server.claimant.answered(from, serial, &answer, now);
                }
            }
            _ => unreachable!("it is no message of a register"),
        }
    }

    /// A register told its content: a ballot is judged by it.
    fn found(&mut self, number: u32, from: u32, serial: u64, found: Found) {
        let (now, plant) = (self.clock(number), self.plant);
        let node = self.nodes.get_mut(&number).expect("it is there");
        let Some(server) = &mut node.server else { return };
        server.observer.observe(found.version, now);
        server.known = Some(found.clone());
        let Some((ballot, _)) = server.judging.get(&serial).cloned() else { return };
        let mut observer = match plant {
            Plant::TakesUnseen => Observer::new(Duration::ZERO),
            _ => std::mem::replace(&mut server.observer, Observer::new(LEASE)),
        };
        let judged = observer.judge(&found, &ballot, now).expect("a server wrote it");
        if plant != Plant::TakesUnseen {
            server.observer = observer;
        }
        let Judged { answer, value } = judged;
        match value {
            Some(value) => {
                server.judging.insert(serial, (ballot, Some(answer)));
                self.send(number, from, Message::Replace(serial, found.version, value));
            }
            None => {
                server.judging.remove(&serial);
                server.claimant.answered(from, serial, &answer, now);
            }
        }
    }

    /// Sends a ballot to a voter. One for a register is judged by what the server knows of that, or is about to know.
    fn asks(&mut self, number: u32, to: u32, serial: u64, ballot: Ballot) {
        if self.nodes[&to].register.is_none() {
            return self.send(number, to, Message::Ballot(serial, ballot));
        }
        let node = self.nodes.get_mut(&number).expect("it is there");
        let server = node.server.as_mut().expect("it sends ballots");
        let known = server.known.clone().filter(|_| !matches!(ballot, Ballot::Ask { .. }));
        server.judging.insert(serial, (ballot.clone(), None));
        let now = self.clock(number);
        let node = self.nodes.get_mut(&number).expect("it is there");
        let server = node.server.as_mut().expect("it sends ballots");
        let judged = known.and_then(|found| {
            let judged = server.observer.judge(&found, &ballot, now).expect("a server wrote it");
            Some((found.version, judged.answer, judged.value?))
        });
        match judged {
            Some((version, answer, value)) => {
                server.judging.insert(serial, (ballot, Some(answer)));
                self.send(number, to, Message::Replace(serial, version, value));
            }
            None => self.send(number, to, Message::Read(serial)),
        }
    }

    /// A server that waits looks at a register four times in a lease.
    fn looks(&mut self, number: u32) {
        let true_now = self.now;
        let Some(register) = ALL.into_iter().find(|it| self.nodes[it].register.is_some()) else {
            return;
        };
        let node = self.nodes.get_mut(&number).expect("it is there");
        let Some(server) = &mut node.server else { return };
        if server.claimant.held_term().is_none() && true_now - server.looked > 250 * MILLISECOND {
            server.looked = true_now;
            self.send(number, register, Message::Read(u64::MAX));
        }
    }

    /// The active server takes an operation, now and then, and sends its log. It goes on without the other one if that is silent.
    fn works(&mut self, number: u32) {
        let (now, plant, true_now) = (self.clock(number), self.plant, self.now);
        let other = 3 - number;
        let node = self.nodes.get_mut(&number).expect("it is there");
        let Some(server) = &mut node.server else { return };
        let Some(term) = server.claimant.held_term().filter(|_| server.may_act(plant, now)) else {
            return;
        };
        if self.random.below(2) == 0 && node.log.len() < server.acknowledged + 20 {
            node.log.push(self.next_operation);
            self.next_operation += 1;
        }
        let is_silent = true_now - server.heard > 300 * MILLISECOND;
        let member = server.members.get(&other);
        if member.is_some_and(|member| is_silent || member.is_gone) {
            if plant == Plant::DropsEarly {
                server.members.remove(&other);
            }
            server.claimant.propose([number].into(), now);
        }
        let is_in = server.claimant.set().is_some_and(|set| set.members.contains(&other));
        let member = server.members.get(&other).filter(|member| is_in && !member.is_gone);
        let taken_in = member.and_then(|member| member.directory);
        let log = node.log.clone();
        self.send(number, other, Message::Log(term, log, taken_in));
    }

    /// A server asks its voters, and takes what became of that.
    fn acts(&mut self, number: u32) -> Result<(), String> {
        let now = self.clock(number);
        let true_now = self.now;
        let node = self.nodes.get_mut(&number).expect("it is there");
        let Some(server) = &mut node.server else { return Ok(()) };
        let ballots = if node.is_whole { server.claimant.poll(now) } else { Vec::new() };
        let mut won = None;
        for event in server.claimant.events() {
            match event {
                Event::Won { term } => {
                    let set = &server.claimant.set().expect("it has the term").members;
                    let others = set.iter().filter(|it| **it != number);
                    server.members = others.map(|it| (*it, Member::default())).collect();
                    (server.acknowledged, server.heard, node.log_term) = (0, true_now, term);
                    won = Some(term);
                }
                Event::SetStored => {
                    let set = &server.claimant.set().expect("it has the term").members;
                    server.members.retain(|it, _| set.contains(it));
                }
                Event::Lost => {}
            }
        }
        for (to, serial, ballot) in ballots {
            self.asks(number, to, serial, ballot);
        }
        if let Some(term) = won {
            self.takeovers += u64::from(self.last_term != term);
            self.last_term = term;
            if !self.terms.insert((term, number))
                || self.terms.iter().filter(|it| it.0 == term).count() > 1
            {
                return Err(format!("term {term} was won twice"));
            }
        }
        self.check(number)
    }

    /// Acknowledges what may be acknowledged, and checks it.
    fn check(&mut self, number: u32) -> Result<(), String> {
        let actors = SERVERS.into_iter().filter(|it| {
            let server = self.nodes[it].server.as_ref();
            server.is_some_and(|server| server.may_act(self.plant, self.clock(*it)))
        });
        if actors.count() > 1 {
            return Err(format!("two servers may act at {} ms", self.now / MILLISECOND));
        }
        let now = self.clock(number);
        let node = self.nodes.get_mut(&number).expect("it is there");
        let Some(server) = &mut node.server else { return Ok(()) };
        if !server.may_act(self.plant, now) {
            return Ok(());
        }
        let agreed = server.members.values().map(|it| it.has).fold(node.log.len(), usize::min);
        // A member that has less than the active server at its beginning is waited for.
        if agreed <= server.acknowledged {
            return Ok(());
        }
        server.acknowledged = agreed;
        let known = self.acknowledged.len();
        if node.log.len() < known || node.log[..known] != self.acknowledged[..] {
            return Err(format!("server {number} lacks acknowledged operations"));
        }
        if agreed > known {
            self.acknowledged = node.log[..agreed].to_vec();
            self.last_progress = self.now;
        }
        Ok(())
    }
}

fn history(seed: u64, plant: Plant) -> Result<World, String> {
    let mut world = World::new(seed, plant);
    world.run().map(|()| world)
}

fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().and_then(|it| it.parse::<u64>().ok());
    match number("ROPEWALK_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("ROPEWALK_SEEDS").unwrap_or(usual),
    }
}

#[test]
fn one_server_acts_and_has_all_that_was_acknowledged() {
    let (mut takeovers, mut operations, mut emptied, mut stuck) = (0, 0, 0, 0);
    let seeds = seeds(100);
    for seed in seeds.clone() {
        match history(seed, Plant::None) {
            Ok(world) => {
                takeovers += world.takeovers;
                operations += world.acknowledged.len();
                emptied += u64::from(world.was_emptied);
                stuck += u64::from(world.is_stuck);
            }
            Err(error) => panic!("ROPEWALK_SEED={seed}: {error}"),
        }
    }
    let told =
        format!("{takeovers} terms, {operations} operations, {emptied} emptied, {stuck} stuck");
    println!("{told}");
    let count = seeds.end - seeds.start;
    if count >= 100 {
        assert!(takeovers > 3 * count && operations > 100 * count as usize, "{told}");
        assert!(emptied > count / 3 && stuck < count / 5, "{told}");
    }
}

#[test]
fn planted_bugs_are_found() {
    let plants = [
        Plant::CountsLong,
        Plant::AnySet,
        Plant::DropsEarly,
        Plant::CountsFresh,
        Plant::StandsEmptied,
        Plant::TakesUnseen,
        Plant::ReplacesAny,
    ];
    for plant in plants {
        // Silence is not what they are looked for.
        let breaks =
            |seed| history(seed, plant).err().filter(|error| !error.starts_with("nothing"));
        let found = (0..1000).find_map(|seed| breaks(seed).map(|error| (seed, error)));
        println!("{plant:?}: {found:?}");
        assert!(found.is_some(), "{plant:?} is not found");
    }
}
