//! Two servers whose witness is a register: answers that are lost, writes of others in between, and promises by each server's own
//! clock.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use ropewalk_election::shared::{Found, Given, Register, SharedVoter, ValueError};
use ropewalk_election::{Answer, Ballot};
use ropewalk_sim::Simulation;
use ropewalk_sim::disk::VirtualDisk;

const LEASE: Duration = Duration::from_secs(1);
const NODE: &str = "node";

/// A register that loses the answers of writes, or of everything.
#[derive(Default)]
struct Kept {
    found: RefCell<(u64, Vec<u8>)>,
    writes: Cell<u64>,
    reads: Cell<u64>,
    loses_answers: Cell<bool>,
    is_down: Cell<bool>,
    complaints: RefCell<Vec<String>>,
}

impl Kept {
    fn now(&self) -> Found {
        let (version, value) = self.found.borrow().clone();
        Found { version, value }
    }
}

struct Handle(Rc<Kept>);

impl Register for Handle {
    fn read(&self) -> Given<Found> {
        self.0.reads.set(self.0.reads.get() + 1);
        let found = (!self.0.is_down.get()).then(|| self.0.now());
        Box::pin(async move { found })
    }

    fn replace(&self, found: &Found, value: Vec<u8>) -> Given<Option<Found>> {
        if self.0.is_down.get() {
            return Box::pin(async { None });
        }
        let is_same = self.0.now() == *found;
        if is_same {
            self.0.writes.set(self.0.writes.get() + 1);
            *self.0.found.borrow_mut() = (self.0.writes.get(), value);
        }
        let written = is_same.then(|| self.0.now());
        let is_lost = self.0.loses_answers.get();
        Box::pin(async move { if is_lost { None } else { Some(written) } })
    }

    fn complain(&self, error: &ValueError) {
        self.0.complaints.borrow_mut().push(error.to_string());
    }
}

struct Pair {
    simulation: Simulation,
    register: Rc<Kept>,
    voters: [Rc<SharedVoter>; 2],
}

impl Pair {
    fn new() -> Pair {
        let mut simulation = Simulation::new(1);
        simulation.add_node(NODE, Arc::new(VirtualDisk::new(1)), |_| ());
        let register = Rc::new(Kept::default());
        let world = simulation.node(NODE).world().clone();
        let voter = |_| {
            let handle = Rc::new(Handle(register.clone()));
            Rc::new(SharedVoter::new(&world, handle, LEASE))
        };
        let voters = [0, 1].map(voter);
        Pair { simulation, register, voters }
    }

    fn ask(&mut self, server: usize, ballot: Ballot) -> Option<Answer> {
        let voter = self.voters[server].clone();
        let asked = async move { voter.answer(&ballot).await };
        self.simulation.block_on(NODE, LEASE, asked).expect("a register answers at once")
    }

    fn claims(&mut self, server: usize, term: u64) -> bool {
        let answer = self.ask(server, Ballot::Claim { term, server: server as u32 });
        answer.is_some_and(|answer| answer.is_granted)
    }

    fn looks(&mut self, server: usize) {
        let voter = self.voters[server].clone();
        let looked = async move { voter.observe().await };
        assert_eq!(self.simulation.block_on(NODE, LEASE, looked), Some(true));
    }

    fn pass(&mut self, milliseconds: u64) {
        self.simulation.run_for(Duration::from_millis(milliseconds));
    }
}

#[test]
fn a_term_is_taken_only_after_a_lease_without_a_write() {
    let mut pair = Pair::new();
    assert!(pair.claims(0, 1) && !pair.claims(1, 1) && !pair.claims(1, 2));
    for _ in 0..8 {
        pair.pass(600);
        assert!(pair.claims(0, 1), "it is renewed");
        assert!(!pair.claims(1, 2), "another server sees that");
    }
    pair.pass(990);
    assert!(!pair.claims(1, 2));
    pair.pass(10);
    assert!(pair.claims(1, 2));
    assert!(!pair.claims(0, 1), "its term is over");
}

#[test]
fn a_server_that_has_just_seen_a_version_for_the_first_time_waits_for_a_whole_lease() {
    let mut pair = Pair::new();
    assert!(pair.claims(0, 1));
    pair.pass(5000);
    assert!(!pair.claims(1, 2), "it does not know for how long that has been so");
    pair.pass(1000);
    assert!(pair.claims(1, 2));
    // One that looks all the time waits no longer than that.
    pair.looks(0);
    pair.pass(1000);
    assert!(pair.claims(0, 3));
}

#[test]
fn an_answer_that_is_lost_counts_for_nobody_and_the_next_one_does() {
    let mut pair = Pair::new();
    assert!(pair.claims(0, 1));
    pair.register.loses_answers.set(true);
    assert_eq!(pair.ask(0, Ballot::Claim { term: 1, server: 0 }), None);
    let writes = pair.register.writes.get();
    assert_eq!(writes, 2, "it was written all the same");
    pair.register.loses_answers.set(false);
    // Its own write is what it did not know of: the ballot is judged once more.
    assert!(pair.claims(0, 1) && pair.register.writes.get() == writes + 1);
    pair.pass(900);
    assert!(!pair.claims(1, 2));
    pair.register.is_down.set(true);
    assert_eq!(pair.ask(0, Ballot::Ask { server: 0 }), None);
}

#[test]
fn a_term_that_was_given_back_is_free_and_a_refusal_is_never_from_memory() {
    let mut pair = Pair::new();
    assert!(pair.claims(0, 1));
    assert!(!pair.claims(1, 2));
    let released = pair.ask(0, Ballot::Release { term: 1, server: 0 });
    assert!(released.expect("it answers").is_granted);
    assert!(pair.claims(1, 2), "it looks again before it refuses");
    let late = pair.ask(0, Ballot::Release { term: 1, server: 0 });
    assert!(!late.expect("it answers").is_granted && !pair.claims(0, 3));
}

#[test]
fn a_value_of_somebody_else_is_told_and_answers_nothing() {
    let mut pair = Pair::new();
    *pair.register.found.borrow_mut() = (9, b"hello".to_vec());
    assert_eq!(pair.ask(0, Ballot::Claim { term: 1, server: 0 }), None);
    assert!(pair.register.complaints.borrow()[0].contains("is no vote"));
    assert_eq!(pair.register.writes.get(), 0);
}
