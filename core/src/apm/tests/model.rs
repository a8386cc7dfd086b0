//! Two machines and the network between them, in all interleavings of a bounded number of requests and faults.
//!
//! Each path is a queue of messages in each direction. `LOAD` and its answers are lost with their path. `MIGRATE` and
//! `WITHDRAW` are spans: they wait, and leave over another path; so they are late and out of order, and never lost.

use std::collections::VecDeque;
use std::hash::BuildHasher;

use ropewalk_base::hash::{HashSeed, HashSet};

use super::*;
use crate::apm::cause::ProbeFault;
use crate::apm::path::Health;

const SIDES: [usize; 2] = [0, 1];

/// What may still happen, each at any time.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Budget {
    loads: [u8; 2],
    migrates: [u8; 2],
    drains: [u8; 2],
    /// Probes of an arming are spent without a fault.
    spent: u8,
    cuts: u8,
    mends: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct World {
    machines: [Migration; 2],
    paths: Vec<PathId>,
    up: Vec<bool>,
    /// By sender and path.
    wires: [Vec<VecDeque<Message>>; 2],
    /// Spans that found no path, by sender.
    held: [VecDeque<Message>; 2],
    budget: Budget,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Choice {
    Deliver {
        from: usize,
        path: usize,
    },
    Load(usize),
    Migrate(usize),
    Drain(usize, usize),
    ProbesGood(usize),
    ProbesSpent(usize),
    Acknowledged(usize),
    Cut(usize),
    Mend(usize),
    /// A side learns of a cut or a mending.
    Learn {
        side: usize,
        path: usize,
    },
}

fn is_span(message: &Message) -> bool {
    matches!(message, Message::Migrate(_) | Message::Withdraw { .. })
}

impl World {
    fn new(paths: &[PathId], budget: Budget) -> World {
        // The sides specify different alternates if there are several.
        let machine = |side| {
            let mut machine = connected(side, paths);
            let last = match side {
                Side::Lower => paths[1],
                Side::Higher => paths[paths.len() - 1],
            };
            let wanted = Wanted { local_rail: Some(last.0 as u8), ..Wanted::default() };
            ask(&mut machine, Request::Specify(wanted));
            machine
        };
        let wires = || vec![VecDeque::new(); paths.len()];
        World {
            machines: [machine(Side::Lower), machine(Side::Higher)],
            paths: paths.to_vec(),
            up: vec![true; paths.len()],
            wires: [wires(), wires()],
            held: [VecDeque::new(), VecDeque::new()],
            budget,
        }
    }

    fn index(&self, path: PathId) -> usize {
        self.paths.iter().position(|other| *other == path).expect("a path of the model")
    }

    fn is_quiet(&self) -> bool {
        self.wires.iter().flatten().chain(&self.held).all(VecDeque::is_empty)
    }

    /// What may happen now.
    fn choices(&self) -> Vec<Choice> {
        let mut choices = self.network_choices();
        for side in SIDES {
            let machine = &self.machines[side];
            let budget = &self.budget;
            let state = machine.state();
            if budget.loads[side] > 0 && state == MigrationState::Migrated {
                choices.push(Choice::Load(side));
            }
            if budget.migrates[side] > 0 && state == MigrationState::Armed {
                choices.push(Choice::Migrate(side));
            }
            if budget.drains[side] > 0 {
                choices.extend((0..self.paths.len()).map(|path| Choice::Drain(side, path)));
            }
        }
        if self.budget.cuts > 0 {
            let up = (0..self.paths.len()).filter(|path| self.up[*path]);
            choices.extend(up.map(Choice::Cut));
        }
        if self.budget.mends > 0 {
            let down = (0..self.paths.len()).filter(|path| !self.up[*path]);
            choices.extend(down.map(Choice::Mend));
        }
        choices
    }

    /// What happens by itself in time.
    fn network_choices(&self) -> Vec<Choice> {
        let mut choices = Vec::new();
        for side in SIDES {
            for path in 0..self.paths.len() {
                if self.up[path] && !self.wires[side][path].is_empty() {
                    choices.push(Choice::Deliver { from: side, path });
                }
                let knows_up =
                    self.machines[side].roles().health(self.paths[path]) == Some(Health::Good);
                if knows_up != self.up[path] {
                    choices.push(Choice::Learn { side, path });
                }
            }
            if let Some(arming) = self.machines[side].arming() {
                let up = self.up[self.index(arming.path)];
                if !arming.probes_good && up {
                    choices.push(Choice::ProbesGood(side));
                }
                let rearm = self.machines[side].state() == MigrationState::Rearm;
                if rearm && (!up || self.budget.spent > 0) {
                    choices.push(Choice::ProbesSpent(side));
                }
                if !arming.acknowledged {
                    choices.push(Choice::Acknowledged(side));
                }
            }
        }
        choices
    }

    fn take(&mut self, choice: Choice) {
        // A refusal is an ordinary answer here: messages are late, and requests come at any time.
        match choice {
            Choice::Deliver { from, path } => {
                let message = self.wires[from][path].pop_front().expect("it was there");
                let _ = self.machines[1 - from].handle_message(self.paths[path], message);
            }
            Choice::Load(side) => {
                self.budget.loads[side] -= 1;
                self.machines[side].request(Request::Load, By::Event);
            }
            Choice::Migrate(side) => {
                self.budget.migrates[side] -= 1;
                self.machines[side].request(Request::Migrate, By::Event);
            }
            Choice::Drain(side, path) => {
                self.budget.drains[side] -= 1;
                self.machines[side].request(Request::Drain(self.paths[path]), By::Event);
            }
            Choice::ProbesGood(side) => {
                let arming = self.machines[side].arming().expect("it was there").id;
                let _ = self.machines[side].handle_probes(arming, Ok(()));
            }
            Choice::ProbesSpent(side) => {
                let arming = self.machines[side].arming().expect("it was there");
                if self.up[self.index(arming.path)] {
                    self.budget.spent -= 1;
                }
                let _ = self.machines[side].handle_probes(arming.id, Err(ProbeFault::Loss));
            }
            Choice::Acknowledged(side) => {
                let arming = self.machines[side].arming().expect("it was there").id;
                let _ = self.machines[side].handle_acknowledged(arming);
            }
            Choice::Cut(path) => {
                self.budget.cuts -= 1;
                self.cut(path);
            }
            Choice::Mend(path) => {
                self.budget.mends -= 1;
                self.mend(path);
            }
            Choice::Learn { side, path } => {
                let id = self.paths[path];
                let _ = match self.up[path] {
                    true => self.machines[side].handle_mended(id),
                    false => self.machines[side].handle_failed(id),
                };
            }
        }
        self.collect();
    }

    fn cut(&mut self, path: usize) {
        self.up[path] = false;
        for side in SIDES {
            let lost = std::mem::take(&mut self.wires[side][path]);
            for span in lost.into_iter().filter(is_span) {
                self.send_span(side, span);
            }
        }
    }

    fn mend(&mut self, path: usize) {
        self.up[path] = true;
        for side in SIDES {
            let held = std::mem::take(&mut self.held[side]);
            self.wires[side][path].extend(held);
        }
    }

    fn send_span(&mut self, from: usize, span: Message) {
        let chosen = self.machines[from].roles().sending().map(|path| self.index(path));
        let any_up = (0..self.paths.len()).find(|path| self.up[*path]);
        match chosen.filter(|path| self.up[*path]).or(any_up) {
            Some(path) => self.wires[from][path].push_back(span),
            None => self.held[from].push_back(span),
        }
    }

    /// Puts what the machines send on the wires.
    fn collect(&mut self) {
        for side in SIDES {
            while let Some(output) = self.machines[side].next_output() {
                match output {
                    Output::Send { message, over: Some(path) } => {
                        let path = self.index(path);
                        if self.up[path] {
                            self.wires[side][path].push_back(message);
                        }
                    }
                    Output::Send { message, over: None } => self.send_span(side, message),
                    _ => {}
                }
            }
        }
    }

    /// What holds always.
    fn check(&self) {
        for machine in &self.machines {
            let armed_or_loading = machine.state() != MigrationState::Migrated;
            assert_eq!(machine.arming().is_some(), armed_or_loading, "{self:#?}");
            if let Some(arming) = machine.arming() {
                assert_eq!(machine.roles().alternate(), Some(arming.path), "{self:#?}");
            }
            if machine.connection() == Connection::Pathless {
                assert!(!armed_or_loading);
            }
        }
        if self.is_quiet() {
            self.check_agreement();
        }
    }

    /// Without messages under way both sides have the same newest migration, and an armed side has a partner.
    fn check_agreement(&self) {
        let [lower, higher] = &self.machines;
        assert_eq!(lower.newest(), higher.newest(), "{self:#?}");
        assert_eq!(lower.roles().primary(), higher.roles().primary(), "{self:#?}");
        if lower.newest().is_some() {
            // Before the first migration a side may have specified what it never loaded.
            assert_eq!(lower.roles().alternate(), higher.roles().alternate(), "{self:#?}");
        }
        for (one, other) in [(lower, higher), (higher, lower)] {
            if one.state() == MigrationState::Armed {
                let arming = |machine: &Migration| machine.arming().map(|it| (it.id, it.path));
                assert_eq!(arming(one), arming(other), "{self:#?}");
            }
        }
    }

    /// Lets the network do what it does, with all paths up: everything arrives, probes end.
    fn settle(&mut self) {
        for path in 0..self.paths.len() {
            if !self.up[path] {
                self.mend(path);
            }
        }
        self.budget.spent = 0;
        for _ in 0..200 {
            match self.network_choices().first() {
                Some(choice) => self.take(*choice),
                None => return,
            }
            self.check();
        }
        panic!("the network does not come to rest: {self:#?}");
    }

    /// From here, with the default policy on both sides and no further fault, both are armed in the same roles.
    fn check_recovery(mut self) {
        self.settle();
        for _ in 0..4 {
            for side in SIDES {
                if self.machines[side].arming().is_some() {
                    continue;
                }
                for path in self.paths.clone() {
                    let _ = self.machines[side].handle_mended(path);
                }
                for request in Policy::default().requests(&What::Mended { path: FIRST }) {
                    self.machines[side].request(*request, By::Event);
                }
                self.collect();
            }
            // An arming whose messages were lost ends by its probes' budget.
            self.settle();
            for side in SIDES {
                if self.machines[side].state() == MigrationState::Rearm {
                    self.budget.spent = 1;
                    self.take(Choice::ProbesSpent(side));
                    self.settle();
                }
            }
        }
        for machine in &self.machines {
            assert_eq!(machine.connection(), Connection::Rts, "{self:#?}");
            assert_eq!(machine.state(), MigrationState::Armed, "{self:#?}");
        }
        let [lower, higher] = &self.machines;
        for path in &self.paths {
            assert_eq!(lower.roles().role(*path), higher.roles().role(*path), "{self:#?}");
        }
    }
}

/// All worlds that are reachable, each looked at once. Returns their number.
fn explore(world: World, recovers: bool) -> usize {
    // Two worlds of one hash are taken for one: of 10^5 worlds that is one chance in 10^9.
    let mut seen = HashSet::with_hasher(HashSeed::OWN_KEYS);
    seen.insert(HashSeed::OWN_KEYS.hash_one(&world));
    let mut open = vec![world];
    while let Some(world) = open.pop() {
        world.check();
        let choices = world.choices();
        if choices.is_empty() && recovers {
            world.clone().check_recovery();
        }
        for choice in choices {
            let mut next = world.clone();
            next.take(choice);
            if seen.insert(HashSeed::OWN_KEYS.hash_one(&next)) {
                open.push(next);
            }
        }
    }
    seen.len()
}

const NOTHING: Budget =
    Budget { loads: [0, 0], migrates: [0, 0], drains: [0, 0], spent: 0, cuts: 0, mends: 0 };

#[test]
fn crossing_loads_and_migrations_end_in_the_same_roles() {
    let budget = Budget { loads: [1, 1], migrates: [1, 1], spent: 1, ..NOTHING };
    let worlds = explore(World::new(&[FIRST, SECOND], budget), true);
    println!("{worlds} worlds");
    assert!(worlds > 1000);
}

#[test]
fn a_path_that_is_cut_and_mended_at_any_time_ends_in_the_same_roles() {
    let budget = Budget { loads: [1, 1], migrates: [1, 0], cuts: 1, mends: 1, ..NOTHING };
    let worlds = explore(World::new(&[FIRST, SECOND], budget), true);
    println!("{worlds} worlds");
    assert!(worlds > 1000);
}

#[test]
fn three_paths_with_different_alternates_end_in_the_same_roles() {
    let budget = Budget { loads: [1, 1], migrates: [1, 1], cuts: 1, ..NOTHING };
    let worlds = explore(World::new(&[FIRST, SECOND, THIRD], budget), true);
    println!("{worlds} worlds");
    assert!(worlds > 1000);
}

#[test]
fn both_paths_may_be_cut_at_any_time() {
    let budget = Budget { loads: [1, 0], migrates: [1, 1], cuts: 2, mends: 2, ..NOTHING };
    let worlds = explore(World::new(&[FIRST, SECOND], budget), true);
    println!("{worlds} worlds");
    assert!(worlds > 1000);
}

#[test]
fn drains_cross_migrations_and_both_sides_agree() {
    let budget = Budget { loads: [1, 1], migrates: [1, 1], drains: [1, 1], ..NOTHING };
    let worlds = explore(World::new(&[FIRST, SECOND, THIRD], budget), false);
    println!("{worlds} worlds");
    assert!(worlds > 1000);
}
