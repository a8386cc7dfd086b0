//! The metadata server: a shard, its store, and the calls that go through both.
//!
//! * `serving`: calls in, to the shard, replies out when a mark of the store covers them;
//! * `admission`: the requests that each caller may make;
//! * `backlog`: calls that wait for room in the store;
//! * `callbacks`: recalls and granted locks, to clients;
//! * `status`: the server's report on itself;
//! * `members`: the process that is the data server of a number;
//! * `data_servers`: fences, cuts and reaps, to data servers;
//! * `links`: data servers that have no link any more;
//! * `standby`: calls about standbys and dumps, where there is one metadata server;
//! * `tasks`: the tasks, which end with the server;
//! * this file: start, stop, and the tasks in between.
//!
//! Invariants:
//! * nothing that the store might forget at the death of the process leaves it: replies, granted
//!   locks and fences wait for `written`;
//! * nothing is destroyed at a data server before the row that says so is durable: after a power
//!   loss the file might be back;
//! * no call of a client waits for a data server, except one that shrinks a striped file, and calls that wait
//!   for a session that is being fenced;
//! * after the first failure of store or shard every call is answered `Unavailable`, until a restart.

mod admission;
mod backlog;
mod callbacks;
mod config;
mod counters;
mod data_servers;
mod events;
mod links;
#[cfg(test)]
mod matrix;
mod members;
mod release;
mod serving;
mod standby;
mod status;
mod tasks;

use std::cell::{Cell, RefCell, RefMut};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::level::Level;
use ropewalk_base::random::Random;
use ropewalk_base::task::Notify;
use ropewalk_base::time::Time;
use ropewalk_base::world::World;
use ropewalk_net::local::LocalEndpoint;
use ropewalk_rpc::lines::Lines;
use ropewalk_rpc::{Grantor, Marks};
use ropewalk_store::marks::Position;
use ropewalk_store::superblock::{
    Boot, ClaimedDirectory, Expect, Identity, Keeper, Role, Starts, claim,
};
use ropewalk_store::{JournaledStore, MetaStore};
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::head::Status;
use ropewalk_wire::fs::map::Map;
use ropewalk_wire::fs::value::Timestamp;

use crate::dump::Dumps;
use crate::exports::Export;
use crate::history::{Start, TermRow};
use crate::shard::{Admission, Moment, Shard};
use crate::store_rows::StoreRows;
use admission::Groups;
use backlog::Backlog;
use callbacks::Clients;
use counters::Counters;
use data_servers::DataServers;
use release::{Held, Releases};
use serving::{Arrived, Openings, Waiting};
use tasks::Tasks;

pub use config::{MetaConfig, MetaError};
pub use counters::DataMessages;

/// A server that was late by so much was stopped, or its machine stood still.
const STOOD_STILL: Duration = Duration::from_secs(1);
/// Places of damage that people are told of, at most.
const DAMAGE_TOLD_MAX: usize = 64;

/// A metadata server. Runs as tasks of its world's executor.
pub struct MetaServer {
    world: World,
    endpoint: LocalEndpoint,
    config: MetaConfig,
    store: JournaledStore,
    /// The term of the history that this server serves.
    term: TermRow,
    /// Gone once the server was stopped.
    shard: RefCell<Option<Shard<StoreRows<JournaledStore>>>>,
    claim: RefCell<Option<ClaimedDirectory>>,
    started: Time,
    /// Sessions are served, see [`MetaServer::is_confirmed`].
    confirmed: Cell<bool>,
    failure: RefCell<Option<String>>,
    damage_told: RefCell<BTreeSet<String>>,
    /// The changes that the store admits.
    admission: Cell<Admission>,
    /// Calls that came while the store had no room.
    backlog: RefCell<Backlog<Arrived>>,
    backlog_added: Notify,
    /// Calls that the shard lets wait.
    waiting: RefCell<Waiting>,
    openings: RefCell<Openings>,
    until_written: Releases,
    until_durable: Releases,
    /// The durable mark of which the shard knows.
    durable_seen: Cell<u64>,
    clients: Clients,
    data_servers: DataServers,
    counters: Counters,
    grantor: Grantor,
    groups: RefCell<Groups>,
    /// Takes lines whose causes strangers can provoke.
    lines: Lines,
    seen: RefCell<events::Seen>,
    tasks: Tasks,
    dumps: Rc<Dumps>,
    may_act: Rc<dyn Fn() -> bool>,
}

/// The right to serve, and the store to serve from.
pub(crate) struct Seat {
    pub store: JournaledStore,
    /// This life of the directory.
    pub boot: Boot,
    pub starts: Starts,
    pub start: Start,
    /// Whether the server may still act. Asked right before anything leaves it.
    pub may_act: Rc<dyn Fn() -> bool>,
    /// Nobody has to confirm that the store is the newest one.
    pub confirmed: bool,
}

impl Seat {
    /// That of the only metadata server.
    fn alone(claimed: &ClaimedDirectory, store: JournaledStore) -> Seat {
        Seat {
            store,
            boot: claimed.boot,
            starts: claimed.starts,
            start: Start::default(),
            may_act: Rc::new(|| true),
            confirmed: false,
        }
    }
}

impl MetaServer {
    /// Claims the directory, opens the store, takes the shard up, and serves calls that arrive at
    /// `endpoint` until the executor ends or [`MetaServer::stop`].
    pub async fn start(
        world: &World,
        endpoint: LocalEndpoint,
        mut config: MetaConfig,
    ) -> Result<Rc<MetaServer>, MetaError> {
        let (claimed, store) = open(world, &config).await?;
        let seat = Seat::alone(&claimed, store);
        config.shard.format = config.expect != Expect::Existing;
        let server = MetaServer::begin(world, endpoint.clone(), config, seat).await?;
        bind(world, claimed.keeper(), &server.config).await?;
        *server.claim.borrow_mut() = Some(claimed);
        ropewalk_rpc::Server::start(world, endpoint, server.clone());
        Ok(server)
    }

    /// Takes the shard up, and serves the calls that it is handed until the executor ends, or [`MetaServer::stop`] or
    /// [`MetaServer::retire`].
    pub(crate) async fn begin(
        world: &World,
        endpoint: LocalEndpoint,
        mut config: MetaConfig,
        seat: Seat,
    ) -> Result<Rc<MetaServer>, MetaError> {
        let mut shard = take_up(world, &mut config, &seat).await?;
        let grantor = Grantor::new(&config.secret);
        shard.set_grantor(grantor.clone());
        let lines = Lines::new(world, config.log.clone());
        let seen = events::Seen::new(world, config.log.clone());
        let data_servers = DataServers::default();
        data_servers
            .expect(&shard, world.now())
            .map_err(|cause| MetaError::Rows { path: config.directory.clone(), cause })?;
        let term = *shard.term();
        let Seat { store, may_act, confirmed, .. } = seat;
        let durable_seen = Cell::new(store.durable().0);
        let server = Rc::new(MetaServer {
            world: world.clone(),
            endpoint,
            config,
            store,
            term,
            shard: RefCell::new(Some(shard)),
            claim: RefCell::default(),
            started: world.now(),
            confirmed: Cell::new(confirmed),
            failure: RefCell::default(),
            damage_told: RefCell::default(),
            admission: Cell::new(Admission::All),
            backlog: RefCell::default(),
            backlog_added: Notify::new(),
            waiting: RefCell::default(),
            openings: RefCell::default(),
            until_written: Releases::default(),
            until_durable: Releases::default(),
            durable_seen,
            clients: Clients::default(),
            data_servers,
            counters: Counters::default(),
            grantor,
            groups: RefCell::default(),
            lines,
            seen: RefCell::new(seen),
            tasks: Tasks::default(),
            dumps: Rc::default(),
            may_act,
        });
        server.task(server.clone().serve_backlog());
        server.task(server.clone().release_written());
        server.task(server.clone().release_durable());
        server.task(server.clone().keep_time());
        server.task(server.clone().watch_links());
        server.task(server.clone().collect_garbage());
        server.drain();
        Ok(server)
    }

    /// Makes an empty file system in the directory, where there is none yet.
    pub async fn format(world: &World, mut config: MetaConfig) -> Result<(), MetaError> {
        let (claimed, store) = open(world, &config).await?;
        let seat = Seat::alone(&claimed, store.clone());
        config.shard.format = config.expect != Expect::Existing;
        take_up(world, &mut config, &seat).await?;
        bind(world, claimed.keeper(), &config).await?;
        Ok(store.checkpoint().await?)
    }

    /// Ends at once. Changes that were not acknowledged may be given up. Clients that wait are told to come again, and nothing holds the
    /// store any more when the executor had its turn.
    pub(crate) fn retire(&self) {
        drop(self.shard.borrow_mut().take());
        self.tasks.end();
        let mut responders: Vec<_> = self.waiting.borrow_mut().take_all().collect();
        for releases in [&self.until_written, &self.until_durable] {
            let held = releases.take_through(u64::MAX);
            responders.extend(held.filter_map(|held| match held {
                Held::Reply { responder, .. } => Some(responder),
                _ => None,
            }));
        }
        while let Some(arrived) = self.backlog.borrow_mut().pop() {
            responders.push(arrived.responder);
        }
        for responder in responders {
            self.send(responder, Status::Unavailable, Vec::new());
        }
    }

    /// Starts a task that ends with the server.
    fn task(&self, future: impl Future<Output = ()> + 'static) {
        self.tasks.spawn(&self.world, future);
    }

    /// Whether this server may act now.
    fn may_act(&self) -> bool {
        (self.may_act)()
    }

    /// Stops well: all that was told is durable, the index holds everything, so that the next start has
    /// nothing to replay, and the directory is free. Clients that call wait for that start.
    pub async fn stop(&self) -> Result<(), MetaError> {
        drop(self.shard.borrow_mut().take());
        self.dumps.end();
        self.store.wait_durable(self.store.position()).await?;
        self.store.checkpoint().await?;
        let Some(claimed) = self.claim.borrow_mut().take() else { return Ok(()) };
        let (disk, mut keeper) = (self.world.disk(), claimed.keeper());
        let ended = self.world.offload(move || keeper.end(&*disk)).await;
        drop(claimed);
        Ok(ended.ok_or(MetaError::ShuttingDown)??)
    }

    /// Why the server serves no more, if store or shard failed.
    pub fn failure(&self) -> Option<String> {
        self.failure.borrow().clone()
    }

    /// Calls by kind, since the start.
    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.counters.calls()
    }

    /// Messages sent to data servers, since the start.
    pub fn messages_to_data_servers(&self) -> DataMessages {
        *self.counters.data.borrow()
    }

    /// The marks of the server's state, as replies carry them.
    pub fn marks(&self) -> Marks {
        Marks {
            boot: self.term.term().0,
            era: self.term.era(),
            written: self.store.written().0,
            durable: self.store.durable().0,
            map: 0,
        }
    }

    /// Whether sessions may still reclaim, and nothing else is served.
    pub fn is_in_grace(&self) -> bool {
        self.shard.borrow().as_ref().is_some_and(Shard::is_in_grace)
    }

    /// The servers of all groups, as the metadata server knows them now.
    pub fn map(&self) -> Option<Map> {
        self.shard().map(|shard| shard.pools.map().clone())
    }

    /// Gives a group of the map these servers, durably. They have its bytes, and those that had them before are told by the
    /// answers to their heartbeats: this is one step of a move. False for a group that is not in the map.
    pub async fn set_group(&self, group: Group, servers: &[u32]) -> bool {
        self.set_groups(&[(group, servers.to_vec())]).await
    }

    /// As [`MetaServer::set_group`], of several groups.
    pub async fn set_groups(&self, groups: &[(Group, Vec<u32>)]) -> bool {
        let set = self.shard().map(|mut shard| (shard.set_groups(groups), shard.position()));
        match set {
            Some((Ok(true), position)) => self.store.wait_durable(Position(position)).await.is_ok(),
            _ => false,
        }
    }

    /// Makes an export, changes its terms, or takes it away (`None`), durably. Its sessions have the new terms from then
    /// on; those of an export that is gone are answered `EACCES`. False where the terms make no sense
    /// ([`Shard::set_export`]).
    pub async fn set_export(&self, number: u32, export: Option<Export>) -> bool {
        let set =
            self.shard().map(|mut shard| (shard.set_export(number, export), shard.position()));
        match set {
            Some((Ok(true), position)) => self.store.wait_durable(Position(position)).await.is_ok(),
            _ => false,
        }
    }

    /// The shard; None once the server was stopped.
    fn shard(&self) -> Option<RefMut<'_, Shard<StoreRows<JournaledStore>>>> {
        RefMut::filter_map(self.shard.borrow_mut(), Option::as_mut).ok()
    }

    fn now(&self) -> Moment {
        moment(&self.world)
    }

    /// Notes the first failure, for people and for every later call.
    fn fail(&self, error: &dyn std::fmt::Display) {
        let mut failure = self.failure.borrow_mut();
        if failure.is_none() {
            let text = error.to_string();
            (self.config.log)(&format!(
                "{}the metadata server in {} has stopped serving: {text}; restart it",
                Level::Error.mark(),
                self.config.directory.display()
            ));
            *failure = Some(text);
        }
    }

    /// Takes everything out of the shard that it wants done.
    fn drain(self: &Rc<Self>) {
        loop {
            let Some(mut shard) = self.shard() else { return };
            if let Some(done) = shard.poll_reply() {
                drop(shard);
                self.complete(done);
                continue;
            }
            if let Some((session, callback)) = shard.poll_callback() {
                let position = shard.position();
                drop(shard);
                self.when_written(position, Held::Callback { session, callback });
                continue;
            }
            if let Some((session, epoch)) = shard.poll_fence() {
                let position = shard.position();
                drop(shard);
                self.refuse_waiting(session, Status::Fenced);
                self.when_written(position, Held::Fence { session, epoch });
                continue;
            }
            if let Some(session) = shard.poll_ended() {
                drop(shard);
                self.refuse_waiting(session, Status::NoSession);
                self.forget_session(session);
                continue;
            }
            if self.data_servers.may_cut()
                && let Some(cut) = shard.poll_cut()
            {
                drop(shard);
                self.start_cut(cut);
                continue;
            }
            while let Some(text) = shard.poll_damage() {
                self.tell_damage(text);
            }
            if let Some(error) = shard.failure() {
                self.fail(error);
            }
            return;
        }
    }

    /// Tells people of damage, of each place once.
    fn tell_damage(&self, text: String) {
        let mut told = self.damage_told.borrow_mut();
        if told.len() < DAMAGE_TOLD_MAX && !told.contains(&text) {
            let error = Level::Error.mark();
            (self.config.log)(&format!("{error}{text}; operations that need it fail with EIO"));
            told.insert(text);
        }
    }

    /// Does something once the store has written `position`.
    fn when_written(self: &Rc<Self>, position: u64, held: Held) {
        if position <= self.store.written().0 || self.config.reply_before_written {
            self.let_go(held);
        } else {
            self.until_written.hold(position, held);
        }
    }

    fn let_go(self: &Rc<Self>, held: Held) {
        match held {
            Held::Reply { responder, body } => self.send(responder, Status::Done, body),
            Held::Callback { session, callback } => self.call_back(session, &callback),
            Held::Fence { session, epoch } => self.start_fence(session, epoch),
        }
    }

    /// The store failed: clients that wait for it are told to come again.
    fn let_fall(&self, releases: &Releases, error: &dyn std::fmt::Display) {
        self.fail(error);
        for held in releases.take_through(u64::MAX) {
            if let Held::Reply { responder, .. } = held {
                self.send(responder, Status::Unavailable, Vec::new());
            }
        }
    }

    async fn release_written(self: Rc<Self>) {
        loop {
            let added = self.until_written.added.notified();
            let Some(position) = self.until_written.first() else {
                added.await;
                continue;
            };
            match self.store.wait_written(Position(position)).await {
                Ok(()) => {
                    for held in self.until_written.take_through(self.store.written().0) {
                        self.let_go(held);
                    }
                }
                Err(error) => self.let_fall(&self.until_written, &error),
            }
        }
    }

    async fn release_durable(self: Rc<Self>) {
        loop {
            let added = self.until_durable.added.notified();
            let Some(position) = self.until_durable.first() else {
                added.await;
                continue;
            };
            match self.store.wait_durable(Position(position)).await {
                Ok(()) => {
                    for held in self.until_durable.take_through(self.store.durable().0) {
                        self.let_go(held);
                    }
                    self.follow_durable();
                }
                Err(error) => self.let_fall(&self.until_durable, &error),
            }
        }
    }

    /// Terms, grace period, heartbeats, and the durable mark, which the journal moves by itself
    /// within its sync interval.
    async fn keep_time(self: Rc<Self>) {
        let mut last = self.world.now();
        loop {
            self.world.sleep(self.config.tick).await;
            self.store.look();
            let room = self.store.ready().await;
            self.note_room(room.err().as_ref());
            let now = self.now();
            let stood_still = now.time.since(last).saturating_sub(self.config.tick);
            last = now.time;
            let Some(mut shard) = self.shard() else { return };
            if stood_still >= STOOD_STILL {
                self.lines.say(&format!(
                    "this server did not run for {:.1} s: clients get as much more time to renew \
                     their sessions",
                    stood_still.as_secs_f64()
                ));
                shard.postpone(stood_still);
                self.data_servers.postpone(stood_still);
            }
            shard.tick(now);
            drop(shard);
            self.tell_events();
            self.follow_durable();
            self.drain();
        }
    }

    /// Tells the shard that the durable mark moved.
    fn follow_durable(self: &Rc<Self>) {
        let durable = self.store.durable().0;
        if durable > self.durable_seen.replace(durable) {
            let now = self.now();
            if let Some(mut shard) = self.shard() {
                shard.handle_durable(now);
            }
            self.drain();
        }
    }
}

/// Claims the directory, and opens the store.
async fn open(
    world: &World,
    config: &MetaConfig,
) -> Result<(ClaimedDirectory, JournaledStore), MetaError> {
    let claimed = claim_directory(world, config).await?;
    let (directory, boot) = (&config.directory, claimed.boot);
    let store =
        JournaledStore::open(world, directory, boot, config.store, config.accept_loss).await?;
    if let Some((from, through)) = store.recovery().lost {
        (config.log)(&format!(
            "records {from} to {through} of the journal in {} are given up, as --accept-loss \
             orders: their changes are lost",
            config.directory.display()
        ));
    }
    Ok((claimed, store))
}

/// Claims the directory of a metadata server.
pub(crate) async fn claim_directory(
    world: &World,
    config: &MetaConfig,
) -> Result<ClaimedDirectory, MetaError> {
    let MetaConfig { cluster, server, expect, .. } = *config;
    let identity = Identity { cluster, server, role: Role::Metadata };
    let random = (world.random_u64(), world.random_u128());
    let (disk, path) = (world.disk(), config.directory.clone());
    let claimed = world
        .offload(move || claim(&*disk, &path, identity, expect, random))
        .await
        .ok_or(MetaError::ShuttingDown)??;
    if let Some(note) = claimed.note() {
        (config.log)(&note);
    }
    Ok(claimed)
}

/// Takes the shard up from its rows, in a term that begins now.
async fn take_up(
    world: &World,
    config: &mut MetaConfig,
    seat: &Seat,
) -> Result<Shard<StoreRows<JournaledStore>>, MetaError> {
    let Seat { store, boot, starts, start, .. } = seat;
    store.ready().await?;
    let shard = &mut config.shard;
    (shard.server, shard.boot, shard.starts) = (config.server.0, *boot, *starts);
    shard.start = Start { begin: store.position().0 + 1, ..*start };
    let random = Random::from_seed(world.random_u64());
    let rows = StoreRows::new(store.clone());
    let mut shard = Shard::open(rows, config.shard, random, moment(world))
        .map_err(|cause| MetaError::Rows { path: config.directory.clone(), cause })?;
    // Inode numbers of this life are given out, and its term is told, only once their rows are durable.
    store.wait_durable(Position(shard.position())).await?;
    shard.handle_durable(moment(world));
    Ok(shard)
}

/// Tells the journal whose it is. Not before there was a file system: in its place there may be an empty store.
pub(crate) async fn bind(
    world: &World,
    mut keeper: Keeper,
    config: &MetaConfig,
) -> Result<(), MetaError> {
    let disk = world.disk();
    let bound = world.offload(move || keeper.bind(&*disk)).await;
    if let Some(note) = bound.ok_or(MetaError::ShuttingDown)?? {
        (config.log)(&note);
    }
    Ok(())
}

fn moment(world: &World) -> Moment {
    Moment { time: world.now(), calendar: Timestamp::from_unix_nanos(world.unix_nanos()) }
}
