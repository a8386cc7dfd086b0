//! A server that wants to act: it waits, asks, holds.
//!
//! Invariants
//! * the votes of voters that never stored a set elect a server only while its own voter has stored no set of a term: a voter that
//!   lost its memory is like a new one, and may have promised its vote to others;
//! * a set is stored at the server's own voter last, and counts only once it is there: its own voter has a set of a term exactly if
//!   another one has one, too;
//! * a server asks for a term only where a majority says before that it would get it: else it would end a term that goes well;
//! * a voter without a set renews nothing. It gets the set while a majority of the others lets this server act;
//! * a term that was given back is not asked for again: a late copy of that word takes nothing back.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ropewalk_base::random::Random;
use ropewalk_base::time::Time;

use crate::ballot::{Answer, Ballot, Set};

/// Ballots without an answer that are remembered.
const SENT_MAX: usize = 64;

/// The terms of an election, the same at all servers.
#[derive(Debug, Clone)]
pub struct Rules {
    /// For how long a voter promises.
    pub lease: Duration,
    /// The metadata servers and the witness.
    pub voters: BTreeSet<u32>,
}

impl Rules {
    fn majority(&self) -> usize {
        self.voters.len() / 2 + 1
    }
}

/// A change of this server's standing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// It has the term and the set is stored: it may act.
    Won { term: u64 },
    /// Another server has a later term.
    Lost,
    /// The proposed set is stored.
    SetStored,
}

#[derive(Debug)]
enum State {
    /// Another server may act; at this time it has not been heard of for too long.
    Waits {
        until: Time,
    },
    /// Asks the voters whether they would give it a term: those that would.
    Probes {
        willing: BTreeSet<u32>,
        until: Time,
    },
    /// Asks for a term: what each voter that granted it knows as the set, and when it was asked.
    Asks {
        term: u64,
        granted: BTreeMap<u32, (Set, Time)>,
        until: Time,
    },
    Holds(Holding),
}

#[derive(Debug)]
struct Holding {
    term: u64,
    /// Of each voter: when its newest granted ballot was sent.
    renewed: BTreeMap<u32, Time>,
    /// Of each voter: the set that it told last.
    told: BTreeMap<u32, Set>,
    /// The set that a majority stored; in the first moments that of an earlier term.
    set: Set,
    proposed: Option<(Set, BTreeSet<u32>)>,
    /// A set of this term was stored.
    is_ready: bool,
    /// No holder of an earlier term has stored a set.
    is_first: bool,
    next: Time,
}

/// A ballot that was sent.
#[derive(Debug)]
struct Sent {
    to: u32,
    at: Time,
    /// None: the voter was only asked whether it would give one.
    term: Option<u64>,
    /// The number of the set that it carries.
    set: Option<u64>,
}

/// A server that may act, or wants to.
#[derive(Debug)]
pub struct Claimant {
    own: u32,
    rules: Rules,
    state: State,
    /// The highest term heard of.
    term: u64,
    serial: u64,
    sent: BTreeMap<u64, Sent>,
    outgoing: Vec<(u32, u64, Ballot)>,
    events: Vec<Event>,
    random: Random,
    /// The active server gave its term up a moment ago. Other voters may hear that a little later: they are asked often until then.
    hasty_until: Time,
}

impl Claimant {
    /// A server that starts now. `term`: the one in the record of its own voter.
    ///
    /// # Panics
    /// The server is no voter.
    pub fn new(own: u32, rules: Rules, term: u64, now: Time, random: Random) -> Claimant {
        assert!(rules.voters.contains(&own), "server {own} is no voter");
        let mut claimant = Claimant {
            own,
            rules,
            state: State::Waits { until: now },
            term,
            serial: 0,
            sent: BTreeMap::new(),
            outgoing: Vec::new(),
            events: Vec::new(),
            random,
            hasty_until: Time::ZERO,
        };
        let until = now + claimant.some_of(claimant.rules.lease / 4);
        claimant.state = State::Waits { until };
        claimant
    }

    /// Whether this server may act now. To be asked after a record is written, before each reply leaves.
    pub fn may_act(&self, now: Time) -> bool {
        match &self.state {
            State::Holds(holding) => holding.is_ready && now < self.held_until(holding),
            _ => false,
        }
    }

    /// The term that this server has.
    pub fn held_term(&self) -> Option<u64> {
        match &self.state {
            State::Holds(holding) => Some(holding.term),
            _ => None,
        }
    }

    /// The set that counts, for the server that has the term.
    pub fn set(&self) -> Option<&Set> {
        match &self.state {
            State::Holds(holding) => Some(&holding.set),
            _ => None,
        }
    }

    /// The servers that may be elected now: those of the set, and of the one that is proposed. A proposal cannot be taken back.
    pub fn electable(&self) -> BTreeSet<u32> {
        let State::Holds(holding) = &self.state else { return BTreeSet::new() };
        let proposed = holding.proposed.iter().flat_map(|(set, _)| &set.members);
        holding.set.members.iter().chain(proposed).copied().collect()
    }

    /// Whether this server has the first term of all: no holder of an earlier one has stored a set.
    pub fn is_first(&self) -> bool {
        matches!(&self.state, State::Holds(holding) if holding.is_first)
    }

    /// Wants another set, and asks the voters to store it. False: this server does not have the term, or another set is on its way.
    ///
    /// A new member has to have all that is acknowledged, and to be waited for from now on. One that leaves is waited for until
    /// [`Event::SetStored`].
    ///
    /// # Panics
    /// This server is not in the set.
    pub fn propose(&mut self, members: BTreeSet<u32>, now: Time) -> bool {
        assert!(members.contains(&self.own), "the active server is in its set");
        let State::Holds(holding) = &mut self.state else { return false };
        if !holding.is_ready || holding.proposed.is_some() {
            return false;
        }
        let number = holding.set.number + 1;
        holding.propose(Set { term: holding.term, number, members });
        holding.next = now;
        true
    }

    /// The active server was heard of, in this term: this one waits.
    pub fn heard(&mut self, term: u64, now: Time) {
        if term < self.term {
            return;
        }
        self.saw_term(term, now);
        if !matches!(self.state, State::Holds(_)) {
            // Voters that promised just before would say no, and no harm is done by asking them a little early.
            let until = now + self.rules.lease * 7 / 8 + self.some_of(self.rules.lease / 16);
            self.state = State::Waits { until };
        }
    }

    /// Asks for the term at the next poll: the active server gave it up, or is known to be dead.
    pub fn stand(&mut self, now: Time) {
        if matches!(self.state, State::Waits { .. } | State::Probes { .. }) {
            self.state = State::Waits { until: now };
            self.hasty_until = now + self.rules.lease / 4;
        }
    }

    /// Gives the term up: another server gets it at once. This one waits for two leases.
    pub fn release(&mut self, now: Time) {
        let State::Holds(holding) = &self.state else { return };
        self.give_back(holding.term, now);
        self.lose(now, 2 * self.rules.lease);
    }

    /// Ballots for voters, each with a number that its answer brings back. The own voter is one of them.
    pub fn poll(&mut self, now: Time) -> Vec<(u32, u64, Ballot)> {
        match &self.state {
            State::Waits { until } if now >= *until => self.probe(now),
            State::Probes { until, .. } if now >= *until => self.probe(now),
            State::Asks { term, until, .. } if now >= *until => {
                self.abandon(*term, now, Duration::ZERO);
            }
            // It does not act yet, and nobody has to be told that it does not.
            State::Holds(holding) if !holding.is_ready && now >= self.held_until(holding) => {
                self.abandon(holding.term, now, Duration::ZERO);
            }
            State::Holds(holding) if now >= holding.next => self.renew(now),
            _ => {}
        }
        std::mem::take(&mut self.outgoing)
    }

    /// The time of the next [`Self::poll`], if nothing comes before.
    pub fn deadline(&self) -> Time {
        match &self.state {
            State::Waits { until } | State::Probes { until, .. } | State::Asks { until, .. } => {
                *until
            }
            State::Holds(holding) => holding.next,
        }
    }

    /// Events since the last call.
    pub fn events(&mut self) -> Vec<Event> {
        std::mem::take(&mut self.events)
    }

    /// A voter answers.
    pub fn answered(&mut self, from: u32, serial: u64, answer: &Answer, now: Time) {
        let Some(sent) = self.sent.remove(&serial).filter(|sent| sent.to == from) else { return };
        let Some(sent_term) = sent.term else { return self.probed(from, answer, now) };
        if answer.is_granted {
            self.term = self.term.max(sent_term);
        } else {
            self.saw_term(answer.term, now);
        }
        match &mut self.state {
            State::Asks { term, granted, .. } if *term == sent_term && answer.is_granted => {
                let is_first = granted.get(&self.own).is_none_or(|(set, _)| set.term == 0);
                if is_first || !answer.set.is_fresh() {
                    granted.insert(from, (answer.set.clone(), sent.at));
                    self.count_votes(now);
                }
            }
            State::Holds(holding) if holding.term == sent_term && answer.is_granted => {
                holding.told.insert(from, answer.set.clone());
                if !answer.set.is_fresh() {
                    let renewed = holding.renewed.entry(from).or_insert(sent.at);
                    *renewed = (*renewed).max(sent.at);
                }
                if let Some((set, stored)) = &mut holding.proposed
                    && sent.set == Some(set.number)
                    && stored.insert(from)
                    && !stored.contains(&self.own)
                {
                    // Perhaps it is the own voter's turn.
                    holding.next = now;
                }
                self.count_stored();
            }
            _ => {}
        }
    }

    /// Asks whether a majority would give it a term. Nothing changes by that.
    fn probe(&mut self, now: Time) {
        let pause = match now < self.hasty_until {
            true => self.rules.lease / 128,
            false => self.rules.lease / 16 + self.some_of(self.rules.lease / 16),
        };
        self.state = State::Probes { willing: BTreeSet::new(), until: now + pause };
        for voter in self.rules.voters.clone() {
            self.send(voter, Ballot::Ask { server: self.own }, now);
        }
    }

    /// A voter says whether it would give a term.
    fn probed(&mut self, from: u32, answer: &Answer, now: Time) {
        let (own, majority) = (self.own, self.rules.majority());
        let State::Probes { willing, .. } = &mut self.state else { return };
        // The term that is asked for is one that nobody had.
        self.term = self.term.max(answer.term);
        if from == own && answer.set.is_fresh() {
            // This server has nothing that was acknowledged.
            return self.wait(now, self.rules.lease);
        }
        if answer.is_granted {
            willing.insert(from);
            if willing.len() >= majority && willing.contains(&own) {
                self.ask(now);
            }
        }
    }

    /// Asks for the next term: the own voter first, which stores it.
    fn ask(&mut self, now: Time) {
        let term = self.term + 1;
        let until = now + self.rules.lease / 4 + self.some_of(self.rules.lease / 4);
        self.state = State::Asks { term, granted: BTreeMap::new(), until };
        self.send(self.own, Ballot::Claim { term, server: self.own }, now);
    }

    fn count_votes(&mut self, now: Time) {
        let (own, majority) = (self.own, self.rules.majority());
        let State::Asks { term, granted, .. } = &self.state else { return };
        let term = *term;
        let Some((own_set, _)) = granted.get(&own) else { return };
        if own_set.is_fresh() {
            // This server has nothing that was acknowledged.
            return self.abandon(term, now, self.rules.lease);
        }
        if granted.len() == 1 && majority > 1 {
            let others: Vec<u32> =
                self.rules.voters.iter().copied().filter(|it| *it != own).collect();
            for voter in others {
                self.send(voter, Ballot::Claim { term, server: own }, now);
            }
            return;
        }
        if granted.len() < majority {
            return;
        }
        let set = granted.values().map(|(set, _)| set).max().expect("there are some").clone();
        if !set.members.contains(&own) {
            // Others have records that this server lacks. They get their chance at once.
            return self.abandon(term, now, self.rules.lease);
        }
        let mut holding = Holding {
            term,
            renewed: granted.iter().map(|(voter, (_, at))| (*voter, *at)).collect(),
            told: BTreeMap::new(),
            set: set.clone(),
            proposed: None,
            is_ready: false,
            is_first: set.term == 0,
            next: now,
        };
        // Sets of earlier terms that few voters know count no more once this one is stored.
        holding.propose(Set { term, number: 0, members: set.members });
        self.state = State::Holds(holding);
        self.renew(now);
    }

    fn count_stored(&mut self) {
        let (own, majority) = (self.own, self.rules.majority());
        let State::Holds(holding) = &mut self.state else { return };
        let is_stored = |stored: &BTreeSet<u32>| stored.len() >= majority && stored.contains(&own);
        let Some((set, _)) = holding.proposed.take_if(|(_, stored)| is_stored(stored)) else {
            return;
        };
        holding.set = set;
        let event =
            if holding.is_ready { Event::SetStored } else { Event::Won { term: holding.term } };
        holding.is_ready = true;
        self.events.push(event);
    }

    fn renew(&mut self, now: Time) {
        let (own, term, majority) = (self.own, self.held_term(), self.rules.majority());
        let (Some(term), State::Holds(holding)) = (term, &self.state) else { return };
        let has_time = now < self.held_until(holding);
        let mut ballots = Vec::new();
        for voter in &self.rules.voters {
            let told = holding.told.get(voter);
            let ballot = if has_time {
                holding.ballot_for(*voter, own, majority)
            } else if told.is_some_and(Set::is_fresh) {
                // It does not know whether it gave a later term to somebody else.
                continue;
            } else {
                Ballot::Claim { term, server: own }
            };
            ballots.push((*voter, ballot));
        }
        for (voter, ballot) in ballots {
            self.send(voter, ballot, now);
        }
        let next = now + self.rules.lease / 8;
        if let State::Holds(holding) = &mut self.state {
            holding.next = next;
        }
    }

    fn send(&mut self, to: u32, ballot: Ballot, now: Time) {
        self.serial += 1;
        let sent = match &ballot {
            Ballot::Change { term, set, .. } => Some((Some(*term), Some(set.number))),
            Ballot::Claim { term, .. } => Some((Some(*term), None)),
            Ballot::Ask { .. } => Some((None, None)),
            // Its answer says nothing.
            Ballot::Release { .. } => None,
        };
        if let Some((term, set)) = sent {
            self.sent.insert(self.serial, Sent { to, at: now, term, set });
        }
        if self.sent.len() > SENT_MAX {
            self.sent.pop_first();
        }
        self.outgoing.push((to, self.serial, ballot));
    }

    /// Gives up a term in which this server never acted.
    fn abandon(&mut self, term: u64, now: Time, rest: Duration) {
        self.give_back(term, now);
        self.wait(now, rest);
    }

    /// The term is not asked for again: its release may arrive late.
    fn give_back(&mut self, term: u64, now: Time) {
        self.term = self.term.max(term);
        for voter in self.rules.voters.clone() {
            self.send(voter, Ballot::Release { term, server: self.own }, now);
        }
    }

    /// Half a lease from the time at which the last of a majority was asked.
    fn held_until(&self, holding: &Holding) -> Time {
        let (renewed, majority) = (&holding.renewed, self.rules.majority());
        // Asked before each reply: voters are few, and nothing is allocated for it.
        let by_majority = |at: &&Time| renewed.values().filter(|it| it >= at).count() >= majority;
        let asked = renewed.values().filter(by_majority).max();
        asked.map_or(Time(0), |asked| *asked + self.rules.lease / 2)
    }

    /// Another server's term ends what this one has.
    fn saw_term(&mut self, term: u64, now: Time) {
        if term <= self.term {
            return;
        }
        self.term = term;
        match &self.state {
            State::Holds(_) => self.lose(now, self.rules.lease),
            // It asked for too early a term.
            State::Asks { term, .. } => self.abandon(*term, now, self.rules.lease / 8),
            State::Waits { .. } | State::Probes { .. } => {}
        }
    }

    fn lose(&mut self, now: Time, rest: Duration) {
        if let State::Holds(holding) = &self.state
            && holding.is_ready
        {
            self.events.push(Event::Lost);
        }
        self.wait(now, rest);
    }

    fn wait(&mut self, now: Time, rest: Duration) {
        let until = now + rest + self.some_of(self.rules.lease / 4);
        self.state = State::Waits { until };
    }

    /// A random part of a duration: two servers do not ask at the same time for ever.
    fn some_of(&mut self, most: Duration) -> Duration {
        let nanos = u64::try_from(most.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(self.random.below(nanos.max(1)))
    }
}

impl Holding {
    fn propose(&mut self, set: Set) {
        self.proposed = Some((set, BTreeSet::new()));
    }

    /// The next ballot for a voter. One that lacks the set gets it, the own one last.
    fn ballot_for(&self, voter: u32, own: u32, majority: usize) -> Ballot {
        let claim = Ballot::Claim { term: self.term, server: own };
        let (set, is_early) = match &self.proposed {
            Some((set, stored)) => (set, voter == own && stored.len() + 1 < majority),
            None => (&self.set, false),
        };
        let has = self.told.get(&voter).is_some_and(|told| told >= set);
        if is_early || has {
            return claim;
        }
        Ballot::Change { term: self.term, server: own, set: set.clone() }
    }
}

#[cfg(test)]
mod tests;
