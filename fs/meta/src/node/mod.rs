//! A metadata server that is one of several: a voter, and the active server or a standby of it.
//!
//! * `candidacy`: its part in the election;
//! * `feed`: what it gives to standby servers while it is the active one;
//! * `following`: how it follows the active one;
//! * `leading`: a term of its own, from its victory to its end;
//! * `telling`: what people are told of it;
//! * this file: start, stop, and the calls that it gets.
//!
//! Invariants:
//! * the store has one user: the follower, or the active server. Each of them closes it at its end;
//! * calls of clients and data servers reach the active server only, and nothing leaves that once its time is over;
//! * a store that holds nothing is led only in the first term of all: its data would else be lost.

mod candidacy;
mod feed;
mod following;
mod leading;
mod telling;

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::level::Level;
use ropewalk_base::task::Notify;
use ropewalk_base::world::World;
use ropewalk_election::shared::Register;
use ropewalk_election::{Ballot, Record, Set, VoterKeeper};
use ropewalk_net::PeerId;
use ropewalk_net::local::LocalEndpoint;
use ropewalk_net::peers::PeerUser;
use ropewalk_rpc::lines::Lines;
use ropewalk_rpc::{
    Answer, Connection, Handler, Incoming, Marks, Options, Proof, Responder, Secret,
};
use ropewalk_store::superblock::{Boot, ClaimedDirectory};
use ropewalk_store::{FoundStore, JournaledStore, StoreError};
use ropewalk_wire::fs::head::{Service, Status};
use ropewalk_wire::fs::standby::{
    NodeRole, REGISTER_WITNESS, StandbyReply, StandbyRequest, StandbyResult,
};
use ropewalk_wire::fs::trust::{Member, Role};
use ropewalk_wire::fs::value::Errno;
use ropewalk_wire::fs::{decode, election as wire, encode};

use crate::dump::{Dumps, Origin};
use crate::history::Terms;
use crate::server::{MetaConfig, MetaError, MetaServer, claim_directory};
use candidacy::{Candidacy, Others};
use feed::Feed;

/// The bit of a voter's number that says that it is the witness.
const WITNESS: u32 = 1 << 31;

/// The servers among which one is the active one.
#[derive(Clone)]
pub struct NodeConfig {
    /// The other metadata servers, by number.
    pub others: BTreeMap<u32, PeerId>,
    /// The voter beside the metadata servers.
    pub witness: Option<Witness>,
    /// The time for which a voter promises; the active server acts for half of it without hearing of the voters.
    pub lease: Duration,
    /// Whether the active server goes on when no standby follows. Otherwise it waits for one.
    pub alone: bool,
    /// Whether this server makes a new file system in an empty directory. Of one cluster only one does.
    pub founds: bool,
}

impl NodeConfig {
    /// The other voters, by number.
    fn voters(&self) -> Others {
        let (mut servers, mut register) = (self.others.clone(), None);
        match &self.witness {
            Some(Witness::Server(number, peer)) => {
                servers.insert(WITNESS | number, *peer);
            }
            Some(Witness::Register(shared)) => {
                register = Some((WITNESS | REGISTER_WITNESS, shared.clone()));
            }
            None => {}
        }
        Others { servers, register }
    }
}

/// A voter that is no metadata server.
#[derive(Clone)]
pub enum Witness {
    /// A data server, by number.
    Server(u32, PeerId),
    /// A value in a store that all metadata servers use, such as etcd.
    Register(Rc<dyn Register>),
}

/// One of several metadata servers.
pub struct MetaNode {
    world: World,
    endpoint: LocalEndpoint,
    config: MetaConfig,
    node: NodeConfig,
    boot: Cell<Boot>,
    claimed: RefCell<Option<ClaimedDirectory>>,
    keeper: Rc<VoterKeeper>,
    candidacy: Rc<Candidacy>,
    /// Connections to the other metadata servers.
    others: BTreeMap<u32, Connection>,
    /// The store of a follower.
    stored: RefCell<Option<JournaledStore>>,
    feed: RefCell<Option<Rc<Feed>>>,
    active: RefCell<Option<Rc<MetaServer>>>,
    /// The term in which this server follows, and how.
    follows: Cell<Option<(u64, NodeRole)>>,
    dumps: Rc<Dumps>,
    /// The active server has begun, and may be asked.
    serves: Cell<bool>,
    /// An administrator wants the standby to serve.
    switch: Cell<bool>,
    switched: Notify,
    failure: RefCell<Option<String>>,
    stopping: Cell<bool>,
    has_ended: Cell<bool>,
    stopped: Notify,
    lines: Lines,
}

impl MetaNode {
    /// Claims the directory, takes the voter up, and follows or serves from then on.
    pub async fn start(
        world: &World,
        endpoint: LocalEndpoint,
        config: MetaConfig,
        node: NodeConfig,
    ) -> Result<Rc<MetaNode>, MetaError> {
        let claimed = claim_directory(world, &config).await?;
        let (own, boot) = (config.server.0, claimed.boot);
        let terms = match find(world, &config, boot).await {
            Ok(found) => terms_of(&found, &config)?,
            Err(StoreError::Unfinished { .. }) => Terms::default(),
            Err(error) => return Err(error.into()),
        };
        let newest = terms.newest();
        // The only server so far, or the maker of the file system, may be elected in the first election. Any other one has to hear of
        // a set first: its voter may have lost one.
        let is_founder = if newest == 0 { node.founds } else { !terms.had_election() };
        let set = Set::first(is_founder.then_some(own));
        let first = Record { term: 0, server: 0, set };
        let keeper = VoterKeeper::open(world, config.directory.clone(), node.lease, first).await?;
        let proof = proof_of(&config);
        let (voters, known) = (node.voters(), (newest, boot.era));
        let candidacy = Candidacy::new(
            (world, &endpoint),
            &proof,
            keeper.clone(),
            (own, node.lease),
            known,
            voters,
        );
        let connect = |peer: PeerId| {
            let (limit, proof) = (node.lease, Some(proof.clone()));
            let options = Options { limit, proof, ..Options::default() };
            Connection::new(world, &endpoint, peer, options)
        };
        let others = node.others.iter().map(|(number, peer)| (*number, connect(*peer))).collect();
        let lines = Lines::new(world, config.log.clone());
        let started = Rc::new(MetaNode {
            world: world.clone(),
            endpoint: endpoint.clone(),
            config,
            node,
            boot: Cell::new(boot),
            claimed: RefCell::new(Some(claimed)),
            keeper,
            candidacy,
            others,
            stored: RefCell::default(),
            feed: RefCell::default(),
            active: RefCell::default(),
            follows: Cell::new(None),
            dumps: Rc::default(),
            serves: Cell::new(false),
            switch: Cell::new(false),
            switched: Notify::new(),
            failure: RefCell::default(),
            stopping: Cell::new(false),
            has_ended: Cell::new(false),
            stopped: Notify::new(),
            lines,
        });
        world.spawn(started.clone().run());
        ropewalk_rpc::Server::start(world, endpoint, started.clone());
        Ok(started)
    }

    /// The server, while it is the active one.
    pub fn active(&self) -> Option<Rc<MetaServer>> {
        self.active.borrow().clone().filter(|_| self.serves.get() && self.candidacy.may_act())
    }

    /// Why this server neither serves nor follows any more.
    pub fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }

    /// Completes when this server neither serves nor follows any more: the reason.
    pub async fn failed(&self) -> String {
        loop {
            let stopped = self.stopped.notified();
            if let Some(failure) = self.failure() {
                return failure;
            }
            stopped.await;
        }
    }

    /// Whether another server has all that is acknowledged, so that it may take over.
    pub fn has_standby(&self) -> bool {
        self.active().is_some() && self.candidacy.set().len() > 1
    }

    /// Has a standby serve, and follows it. False: this server does not serve, or no standby has all that it has.
    pub fn switch(&self) -> bool {
        let may = self.has_standby();
        self.switch.set(self.switch.get() || may);
        self.switched.notify_all();
        may
    }

    /// Follows, or serves, in turn.
    async fn run(self: Rc<Self>) {
        while !self.stopping.get() && self.failure.borrow().is_none() {
            let done = match self.candidacy.won() {
                Some(term) => self.lead(term).await,
                None => self.follow().await,
            };
            let failed = done.err().or_else(|| self.candidacy.take_failure().map(MetaError::Vote));
            if let Some(error) = failed {
                self.fail(&error);
            }
        }
        self.candidacy.stand_down();
        if let Err(error) = self.close().await {
            self.lines.say(&error.to_string());
        }
        self.candidacy.stop().await;
        self.has_ended.set(true);
        self.stopped.notify_all();
    }

    /// Lets go of the follower's store.
    async fn close(&self) -> Result<(), StoreError> {
        let stored = self.stored.borrow_mut().take();
        self.dumps.end();
        match stored {
            Some(store) => store.close().await,
            None => Ok(()),
        }
    }

    /// Stops well: gives the term up, so that another server goes on at once.
    pub async fn stop(&self) -> Result<(), MetaError> {
        let stopped = self.stopped.notified();
        self.stopping.set(true);
        self.switch.set(true);
        self.switched.notify_all();
        self.candidacy.changed.notify_all();
        if !self.has_ended.get() {
            stopped.await;
        }
        let Some(claimed) = self.claimed.borrow_mut().take() else { return Ok(()) };
        let (disk, mut keeper) = (self.world.disk(), claimed.keeper());
        let ended = self.world.offload(move || keeper.end(&*disk)).await;
        drop(claimed);
        Ok(ended.ok_or(MetaError::ShuttingDown)??)
    }

    fn fail(&self, error: &MetaError) {
        (self.config.log)(&format!(
            "{}the metadata server in {} neither serves nor follows any more: {error}; restart it",
            Level::Error.mark(),
            self.config.directory.display()
        ));
        *self.failure.borrow_mut() = Some(error.to_string());
    }

    fn send(responder: Responder, status: Status, body: Vec<u8>) {
        responder.send(Answer { status, body, marks: Marks::default() });
    }

    /// A metadata server asks this one for its vote.
    fn vote(self: Rc<Self>, incoming: &Incoming, responder: Responder) {
        let Ok(ballot) = decode::<wire::Ballot>(incoming.body()) else {
            return Self::send(responder, Status::Malformed, Vec::new());
        };
        if incoming.member != Some(meta_member(ballot.server())) {
            return Self::send(responder, Status::Unproven, Vec::new());
        }
        let (world, ballot) = (self.world.clone(), Ballot::from(ballot));
        world.spawn(async move {
            match self.candidacy.judge(&ballot).await {
                Some(answer) => {
                    let mut body = Vec::new();
                    encode(&wire::Answer::from(&answer), &mut body);
                    Self::send(responder, Status::Done, body);
                }
                None => Self::send(responder, Status::Unavailable, Vec::new()),
            }
        });
    }

    /// A standby wants records, or an administrator wants it to serve.
    fn feed(self: Rc<Self>, incoming: &Incoming, responder: Responder) {
        let Ok(request) = decode::<StandbyRequest>(incoming.body()) else {
            return Self::send(responder, Status::Malformed, Vec::new());
        };
        if request == StandbyRequest::Switch {
            return self.order_switch(incoming, responder);
        }
        if request == StandbyRequest::State {
            let (state, mut body): (StandbyResult<'_>, _) =
                (Ok(StandbyReply::State(self.state())), Vec::new());
            encode(&state, &mut body);
            return Self::send(responder, Status::Done, body);
        }
        if matches!(request, StandbyRequest::Dump | StandbyRequest::DumpPart { .. }) {
            return self.dump(&request, incoming, responder);
        }
        let server = match incoming.member {
            Some(Member { role: Role::Metadata, number }) if self.others.contains_key(&number) => {
                number
            }
            _ => return Self::send(responder, Status::Unproven, Vec::new()),
        };
        let Some(feed) = self.feed.borrow().clone() else {
            return Self::send(responder, Status::Unavailable, Vec::new());
        };
        let world = self.world.clone();
        world.spawn(async move {
            let body = feed.answer(server, request).await;
            Self::send(responder, Status::Done, body);
        });
    }

    /// Whether somebody looks after the cluster.
    fn is_administrator(&self, incoming: &Incoming) -> bool {
        let own = || self.endpoint.endpoint().peer_user(incoming.peer) == PeerUser::Own;
        incoming.member.is_some() || own()
    }

    /// An administrator wants all metadata, of the active server or of a standby.
    fn dump(self: Rc<Self>, request: &StandbyRequest, incoming: &Incoming, responder: Responder) {
        if !self.is_administrator(incoming) {
            return Self::send(responder, Status::Unproven, Vec::new());
        }
        let world = self.world.clone();
        if let StandbyRequest::DumpPart { dump, part } = *request {
            let body = self.dumps.part(&world, dump, part);
            return Self::send(responder, Status::Done, body);
        }
        let led = self.feed.borrow().as_ref().map(|feed| feed.store().clone());
        let Some(store) = led.or_else(|| self.stored.borrow().clone()) else {
            return Self::send(responder, Status::Unavailable, Vec::new());
        };
        let (cluster, server) = (self.config.cluster.0, self.config.server.0);
        let origin = Origin { cluster, server, history: self.boot.get().history };
        let dumps = self.dumps.clone();
        world.clone().spawn(async move {
            let body = dumps.begin(&world, store, origin).await;
            Self::send(responder, Status::Done, body);
        });
    }

    fn order_switch(self: Rc<Self>, incoming: &Incoming, responder: Responder) {
        if !self.is_administrator(incoming) {
            return Self::send(responder, Status::Unproven, Vec::new());
        }
        if self.active().is_none() {
            return Self::send(responder, Status::Unavailable, Vec::new());
        }
        let result: StandbyResult<'_> = match self.switch() {
            true => Ok(StandbyReply::Done),
            false => Err(Errno::ENODEV),
        };
        let mut body = Vec::new();
        encode(&result, &mut body);
        Self::send(responder, Status::Done, body);
    }
}

impl Handler for MetaNode {
    fn secret(&self) -> Option<Secret> {
        Some(self.config.secret.clone())
    }

    fn saw_pretender(&self, member: Member, peer: PeerId) {
        match self.active.borrow().clone() {
            Some(server) => server.saw_pretender(member, peer),
            None => self.lines.say("refused a caller that does not know this cluster's secret"),
        }
    }

    fn handle(self: Rc<Self>, incoming: Incoming, responder: Responder) {
        match incoming.head.service {
            Service::Election => self.vote(&incoming, responder),
            Service::Standby => self.feed(&incoming, responder),
            _ => match self.active() {
                Some(server) => server.handle(incoming, responder),
                None => Self::send(responder, Status::Unavailable, Vec::new()),
            },
        }
    }
}

fn meta_member(number: u32) -> Member {
    Member { role: Role::Metadata, number }
}

fn proof_of(config: &MetaConfig) -> Proof {
    Proof { secret: config.secret.clone(), member: meta_member(config.server.0) }
}

/// Reads the store; nothing is written.
async fn find(world: &World, config: &MetaConfig, boot: Boot) -> Result<FoundStore, StoreError> {
    JournaledStore::find(world, &config.directory, boot, config.store, config.accept_loss).await
}

/// The terms in the rows of a store; none where it holds no file system.
fn terms_of(found: &FoundStore, config: &MetaConfig) -> Result<Terms, MetaError> {
    let fail = |cause| MetaError::Rows { path: config.directory.clone(), cause };
    Terms::found(found).map_err(fail)
}
