//! A metadata server's part in the election: its ballots to the voters, and what they mean for it.
//!
//! Invariant: nothing of a ballot's answer counts for longer than the answer says, by the clock of when the ballot was made.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::random::Random;
use ropewalk_base::task::{Notify, race};
use ropewalk_base::time::Time;
use ropewalk_base::world::World;
use ropewalk_election::shared::{Register, SharedVoter};
use ropewalk_election::{Answer, Ballot, Claimant, Event, Rules, VoteError, VoterKeeper};
use ropewalk_net::PeerId;
use ropewalk_net::local::LocalEndpoint;
use ropewalk_rpc::{Connection, Options, Proof};
use ropewalk_wire::fs::head::Service;
use ropewalk_wire::fs::{decode, election as wire, encode};

/// A server that has lost something leaves the term to others for so many leases.
const LOSERS_WAIT: u32 = 5;

/// The other voters, by number.
pub(super) struct Others {
    pub servers: BTreeMap<u32, PeerId>,
    pub register: Option<(u32, Rc<dyn Register>)>,
}

/// The way to a voter.
enum Way {
    Server(Connection),
    Register(SharedVoter),
}

/// The claimant of a server, and the ways to its voters.
pub(super) struct Candidacy {
    world: World,
    own: u32,
    lease: Duration,
    keeper: Rc<VoterKeeper>,
    claimant: RefCell<Claimant>,
    voters: BTreeMap<u32, Way>,
    won: Cell<Option<u64>>,
    /// The term that its holder gave up last, and when.
    released: Cell<Option<(u64, Time)>>,
    /// Told when the standing changes: won, lost, set stored.
    pub changed: Notify,
    poked: Notify,
    stopped: Cell<bool>,
    /// The node leads or follows: else it stands for no election.
    stands: Cell<bool>,
    /// Why the own voter answers no more.
    failure: RefCell<Option<VoteError>>,
    /// Ballots that are under way.
    asking: Cell<u32>,
    asked: Notify,
    /// A register is being looked at.
    observing: Cell<bool>,
    /// The time of each other voter's last answer.
    heard_of: RefCell<BTreeMap<u32, Time>>,
    /// The era of the server's disk, and when it was started.
    era: u64,
    started: Time,
}

impl Candidacy {
    /// Stands for election. `term` is the highest one that the server's rows know, `era` that of its disk.
    pub fn new(
        (world, endpoint): (&World, &LocalEndpoint),
        proof: &Proof,
        keeper: Rc<VoterKeeper>,
        (own, lease): (u32, Duration),
        (term, era): (u64, u64),
        others: Others,
    ) -> Rc<Candidacy> {
        let Others { servers, register } = others;
        let registers = register.iter().map(|(number, _)| *number);
        let everybody: BTreeSet<u32> =
            servers.keys().copied().chain(registers).chain([own]).collect();
        let rules = Rules { lease, voters: everybody };
        let random = Random::from_seed(world.random_u64());
        let term = term.max(keeper.record().term);
        let claimant = Claimant::new(own, rules, term, world.now(), random);
        let connect = |peer: PeerId| {
            // A ballot that is sent again for longer could reach a voter that has lost its memory meanwhile.
            let (limit, proof) = (lease / 4, Some(proof.clone()));
            let options = Options { limit, proof, ..Options::default() };
            Way::Server(Connection::new(world, endpoint, peer, options))
        };
        let servers = servers.into_iter().map(|(voter, peer)| (voter, connect(peer)));
        let shared = |register| Way::Register(SharedVoter::new(world, register, lease));
        let registers = register.into_iter().map(|(voter, register)| (voter, shared(register)));
        let voters = servers.chain(registers).collect();
        let candidacy = Rc::new(Candidacy {
            world: world.clone(),
            own,
            lease,
            keeper,
            claimant: RefCell::new(claimant),
            voters,
            won: Cell::new(None),
            released: Cell::new(None),
            changed: Notify::new(),
            poked: Notify::new(),
            stopped: Cell::new(false),
            stands: Cell::new(true),
            failure: RefCell::default(),
            asking: Cell::new(0),
            asked: Notify::new(),
            observing: Cell::new(false),
            heard_of: RefCell::default(),
            era,
            started: world.now(),
        });
        world.spawn(candidacy.clone().run());
        candidacy
    }

    /// The other voters, and how long each has been silent, if it ever answered.
    pub fn silences(&self) -> Vec<(u32, Option<Duration>)> {
        let (now, heard) = (self.world.now(), self.heard_of.borrow());
        let silence = |voter: &u32| heard.get(voter).map(|at| now.since(*at));
        self.voters.keys().map(|voter| (*voter, silence(voter))).collect()
    }

    /// The newest term that the own voter knows.
    pub fn newest(&self) -> u64 {
        self.keeper.record().term
    }

    /// The term that this server has won and not lost.
    pub fn won(&self) -> Option<u64> {
        self.won.get()
    }

    /// Whether the own voter cannot store anything any more.
    pub fn has_failed(&self) -> bool {
        self.failure.borrow().is_some()
    }

    /// Why the own voter answers no more, once.
    pub fn take_failure(&self) -> Option<VoteError> {
        self.failure.borrow_mut().take()
    }

    /// Stands for no election any more, and gives back what it won.
    pub fn stand_down(self: &Rc<Self>) {
        self.stands.set(false);
        if self.won.get().is_some() {
            self.release();
        }
    }

    /// Sends no further ballot, and completes when nothing is stored any more. Those that are under way get a moment.
    pub async fn stop(&self) {
        self.stopped.set(true);
        self.poked.notify_all();
        let until = self.world.now() + self.lease / 4;
        while self.asking.get() > 0 && self.world.now() < until {
            let asked = self.asked.notified();
            let _ = race(asked, self.world.sleep_until(until)).await;
        }
        self.keeper.settled().await;
    }

    /// Whether this server may ask for a term. One that has lost something leaves that to the others for a while, of which one
    /// may have all.
    fn may_stand(&self) -> bool {
        let record = self.keeper.record();
        let is_alone = record.set.members.iter().all(|member| *member == self.own);
        let has_waited = || self.world.now().since(self.started) >= self.lease * LOSERS_WAIT;
        self.keeper.whole() == self.era || is_alone || has_waited()
    }

    /// Whether this server may act now.
    pub fn may_act(&self) -> bool {
        self.claimant.borrow().may_act(self.world.now())
    }

    /// The servers that may be elected, as the holder knows it.
    pub fn set(&self) -> BTreeSet<u32> {
        let claimant = self.claimant.borrow();
        claimant.set().map_or_else(BTreeSet::new, |set| set.members.clone())
    }

    /// The servers that may be elected now, also by a proposal that is not stored yet.
    pub fn electable(&self) -> BTreeSet<u32> {
        self.claimant.borrow().electable()
    }

    /// Whether this is the first term of all: no set but that of the file system's maker was ever stored.
    pub fn is_first(&self) -> bool {
        self.claimant.borrow().is_first()
    }

    /// Whether the former holder gave its term up lately.
    pub fn was_handed_over(&self) -> bool {
        self.released.get().is_some_and(|(_, at)| self.world.now().since(at) < self.lease)
    }

    /// Asks the voters to store another set. False: not now.
    pub fn propose(&self, members: BTreeSet<u32>) -> bool {
        let proposed = self.claimant.borrow_mut().propose(members, self.world.now());
        self.poked.notify_all();
        proposed
    }

    /// Gives the term up.
    pub fn release(self: &Rc<Self>) {
        self.claimant.borrow_mut().release(self.world.now());
        self.send_ballots();
        self.poked.notify_all();
    }

    /// The active server was heard of, in this term.
    pub fn heard(&self, term: u64) {
        // Its last words may come after it gave its term up.
        if self.released.get().is_some_and(|(released, _)| term <= released) {
            return;
        }
        self.claimant.borrow_mut().heard(term, self.world.now());
        self.take_events();
    }

    /// Judges another server's ballot; None: this voter has no answer.
    pub async fn judge(&self, ballot: &Ballot) -> Option<Answer> {
        if self.stopped.get() {
            return None;
        }
        let answer = self.keeper.answer(ballot).await.ok()?;
        if let (Ballot::Release { term, .. }, true) = (ballot, answer.is_granted) {
            self.released.set(Some((*term, self.world.now())));
            if self.stands.get() {
                self.claimant.borrow_mut().stand(self.world.now());
                self.poked.notify_all();
            }
        }
        Some(answer)
    }

    /// Sends ballots for as long as the executor runs.
    async fn run(self: Rc<Self>) {
        while !self.stopped.get() {
            let poked = self.poked.notified();
            let mut next = self.world.now() + self.lease / 4;
            if self.won.get().is_some() || (self.stands.get() && self.may_stand()) {
                self.send_ballots();
                next = self.claimant.borrow().deadline();
            }
            if self.won.get().is_none() {
                self.observe_register();
                next = next.min(self.world.now() + self.lease / 4);
            }
            let _ = race(poked, self.world.sleep_until(next)).await;
        }
    }

    /// A server that waits looks at a register all the time: it takes the term only of a version that has stayed for long.
    fn observe_register(self: &Rc<Self>) {
        if self.observing.get() || self.register().is_none() {
            return;
        }
        self.observing.set(true);
        let this = self.clone();
        self.world.spawn(async move {
            if let Some(register) = this.register() {
                let _ = this.world.timeout(this.lease / 4, register.observe()).await;
            }
            this.observing.set(false);
        });
    }

    /// The voter that is a register, if one is.
    fn register(&self) -> Option<&SharedVoter> {
        self.voters.values().find_map(|way| match way {
            Way::Register(shared) => Some(shared),
            Way::Server(_) => None,
        })
    }

    fn send_ballots(self: &Rc<Self>) {
        let ballots = self.claimant.borrow_mut().poll(self.world.now());
        self.take_events();
        for (voter, serial, ballot) in ballots {
            let this = self.clone();
            self.asking.set(self.asking.get() + 1);
            self.world.spawn(async move {
                this.ask(voter, serial, ballot).await;
                this.asking.set(this.asking.get() - 1);
                this.asked.notify_all();
            });
        }
    }

    async fn ask(&self, voter: u32, serial: u64, ballot: Ballot) {
        let answer = if voter == self.own {
            match self.keeper.answer(&ballot).await {
                Ok(answer) => Some(answer),
                Err(error) => {
                    self.failure.borrow_mut().get_or_insert(error);
                    self.changed.notify_all();
                    None
                }
            }
        } else {
            self.ask_other(voter, &ballot).await
        };
        if let Some(answer) = answer {
            let now = self.world.now();
            self.claimant.borrow_mut().answered(voter, serial, &answer, now);
            self.take_events();
            // There may be ballots for others now.
            self.poked.notify_all();
        }
    }

    async fn ask_other(&self, voter: u32, ballot: &Ballot) -> Option<Answer> {
        let limit = self.lease / 4;
        let answer = match self.voters.get(&voter)? {
            Way::Server(connection) => {
                let mut body = Vec::new();
                encode(&wire::Ballot::from(ballot), &mut body);
                let call = connection.call_free(Service::Election, &body);
                let reply = self.world.timeout(limit, call).await?.ok()?;
                decode::<wire::Answer>(reply.body()).ok().map(Answer::from)?
            }
            Way::Register(shared) => self.world.timeout(limit, shared.answer(ballot)).await??,
        };
        self.heard_of.borrow_mut().insert(voter, self.world.now());
        Some(answer)
    }

    fn take_events(&self) {
        let events = self.claimant.borrow_mut().events();
        for event in &events {
            match event {
                Event::Won { term } => self.won.set(Some(*term)),
                Event::Lost => self.won.set(None),
                Event::SetStored => {}
            }
        }
        if !events.is_empty() {
            self.changed.notify_all();
        }
    }
}
