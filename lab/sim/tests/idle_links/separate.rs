//! Separate sessions: a client closes its connection and looks its server up again, at any moment and under
//! several names, and nothing of a session that ended reaches the next one.

use std::collections::BTreeSet;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_core::{Channel, Config, Level, PeerId};
use ropewalk_sim::{SimConfig, SimNetwork, seeds};

use crate::node::{Heard, Node};

/// The tag of all answers, where only their bytes say whose they are.
const TAG: u64 = 1 << 20;
/// The client's numbers of its receives begin here.
const RECEIVES: u64 = 1 << 32;
const QUESTIONS: u64 = 40;

/// A client and a server that answers.
struct Pair {
    network: SimNetwork,
    nodes: [Node; 2],
    now: Time,
    random: Random,
    /// Each question has its own tag.
    tags: bool,
    /// Questions that came, with the numbers of those who asked; some are answered late.
    open: Vec<(u64, PeerId)>,
    /// By question: how the question and its answer ended.
    sent: Vec<Option<Result<(), Fault>>>,
    answered: Vec<Option<Result<u64, Fault>>>,
    heard: BTreeSet<u64>,
}

impl Pair {
    fn new(seed: u64) -> Pair {
        let network = SimNetwork::new(seed);
        let mut rail =
            if seed.is_multiple_of(2) { SimConfig::stream() } else { SimConfig::native() };
        rail.capabilities.intact = true;
        let links_max = if seed.is_multiple_of(3) { 0 } else { usize::MAX };
        let config = Config { separate_sessions: true, links_max, ..Config::default() };
        let node = |number| Node::new(&network, number, 1, config, rail.clone());
        let (nodes, random) = ([node(0), node(1)], Random::from_seed(seed));
        let count = QUESTIONS as usize + 1;
        Pair {
            nodes,
            network,
            now: Time(1),
            random,
            tags: false,
            open: Vec::new(),
            sent: vec![None; count],
            answered: vec![None; count],
            heard: BTreeSet::new(),
        }
    }

    fn step(&mut self) {
        self.network.set_now(self.now);
        let mut any = false;
        for number in 0..2 {
            let node = &mut self.nodes[number];
            node.advance(self.now);
            while node.is_ready() {
                any = true;
                node.poll(self.now);
            }
            node.core.check();
            for heard in std::mem::take(&mut node.heard) {
                self.hear(number, heard);
            }
        }
        if !any {
            let cores = self.nodes.iter().filter_map(|node| node.core.deadline());
            let next = cores.chain(self.network.next_event()).min();
            let later = self.now + Duration::from_nanos(1);
            let idle = self.now + Duration::from_millis(1);
            self.now = next.unwrap_or(idle).max(later).min(idle);
        }
    }

    fn hear(&mut self, number: usize, heard: Heard) {
        let number_in = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
        match heard {
            Heard::Request { bytes, peer, session, .. } => {
                let question = number_in(&bytes);
                self.nodes[1].request_taken(peer, session, bytes.len());
                assert!(self.heard.insert(question), "{question} came twice");
                self.open.push((question, peer));
                // One or the other, now or later, and perhaps when its session is over.
                if self.random.below(3) > 0 {
                    self.answer_some();
                }
            }
            Heard::Ended { user, outcome, bytes, .. } if number == 0 => {
                if let Some(question) = user.checked_sub(RECEIVES) {
                    let answer = outcome.map(|()| number_in(&bytes));
                    let before = self.answered[question as usize].replace(answer);
                    assert!(before.is_none(), "the answer to {question} ended twice");
                } else {
                    let before = self.sent[user as usize].replace(outcome);
                    assert!(before.is_none(), "question {user} ended twice");
                }
            }
            Heard::Ended { .. } => {}
        }
    }

    fn answer_some(&mut self) {
        let keep = self.random.below(self.open.len() as u64 + 1) as usize;
        for (question, peer) in self.open.split_off(keep) {
            let (bytes, tag) = (question.to_le_bytes(), self.tag(question));
            self.nodes[1].send_to(peer, Channel::Tagged, tag, &bytes, Level::Buffered, question);
        }
    }

    fn tag(&self, question: u64) -> u64 {
        if self.tags { question } else { TAG }
    }

    fn ask(&mut self, name: PeerId, question: u64) {
        let tag = self.tag(question);
        let client = &mut self.nodes[0];
        client.receive_from(Some(name), tag, u64::MAX, 8, RECEIVES + question);
        let bytes = question.to_le_bytes();
        client.send_to(name, Channel::Request, 0, &bytes, Level::Buffered, question);
    }

    fn run_for(&mut self, time: Duration) {
        let end = self.now + time;
        while self.now < end {
            self.step();
        }
    }

    /// Steps until a question is answered.
    fn settle(&mut self, question: u64) {
        let end = self.now + Duration::from_secs(60);
        while self.answered[question as usize].is_none() {
            self.step();
            self.answer_some();
            assert!(self.now < end, "no answer to {question}: {:?}", self.sent[question as usize]);
        }
    }
}

/// The name under which the last question was asked is forgotten at any moment of its way, and the next
/// one, asked at once under a new name, is never lost and never gets another's answer.
#[test]
fn what_is_asked_after_a_reconnect_arrives_and_gets_its_own_answer() {
    for seed in seeds(0, 60) {
        let mut pair = Pair::new(seed);
        for question in 1..=QUESTIONS {
            let name = pair.nodes[0].peer_again(1);
            pair.ask(name, question);
            let kept = pair.random.below(4) == 0;
            if kept {
                pair.settle(question);
                assert_eq!(pair.answered[question as usize], Some(Ok(question)), "its own");
            } else {
                let micros = pair.random.below(400);
                pair.run_for(Duration::from_micros(micros));
            }
            pair.nodes[0].forget(1);
        }
        let (name, last) = (pair.nodes[0].peer_again(1), 0);
        pair.ask(name, last);
        pair.settle(last);
        assert_eq!(pair.answered[0], Some(Ok(0)), "seed {seed}");
        pair.run_for(Duration::from_millis(20));
        for (question, end) in (0..).zip(&pair.answered) {
            let fine = end.is_some_and(|end| end == Ok(question) || end.is_err());
            assert!(fine, "seed {seed}: {question} ended with {end:?}");
        }
    }
}

/// Of two names of one server each is forgotten alone, in any order and at any moment; requests under the other name
/// are answered.
#[test]
fn a_name_that_is_forgotten_takes_along_what_was_asked_under_it_and_no_more() {
    for seed in seeds(0, 40) {
        let mut pair = Pair::new(seed);
        pair.tags = true;
        let mut names = [pair.nodes[0].peer_again(1), pair.nodes[0].peer_again(1)];
        for question in 1..=QUESTIONS / 2 {
            let turn = pair.random.below(2) as usize;
            pair.ask(names[turn], question);
            let micros = pair.random.below(300);
            pair.run_for(Duration::from_micros(micros));
            // The other one goes, or the one that is asked.
            let gone = pair.random.below(2) as usize;
            let one_of_two = pair.nodes[0].core.names_of(names[gone]).len() > 1;
            if one_of_two {
                pair.nodes[0].forget_name(names[gone]);
            } else {
                pair.nodes[0].core.forget_peer(names[gone]);
            }
            if gone == turn {
                pair.run_for(Duration::from_micros(1));
                let end = pair.answered[question as usize];
                assert!(end.is_some_and(|end| end == Ok(question) || end.is_err()), "{end:?}");
            } else {
                pair.settle(question);
                assert_eq!(pair.answered[question as usize], Some(Ok(question)), "its own");
            }
            names[gone] = pair.nodes[0].peer_again(1);
            let second = QUESTIONS / 2 + question;
            pair.ask(names[turn], second);
            pair.settle(second);
            assert_eq!(pair.answered[second as usize], Some(Ok(second)), "its own");
        }
    }
}
