//! Start and end of a data server, its tasks, and the replies.
//!
//! Invariant: at most `TASKS_MAX` requests wait or work at a time.

use std::cell::{Cell, RefCell};
use std::io;
use std::path::Path;
use std::rc::{Rc, Weak};
use std::time::Duration;

use ropewalk_base::disk::{Disk, Open};
use ropewalk_base::level::Level;
use ropewalk_base::task::Notify;
use ropewalk_base::time::Time;
use ropewalk_base::world::World;
use ropewalk_net::PeerId;
use ropewalk_net::local::LocalEndpoint;
use ropewalk_rpc::slots::{SlotTable, Verdict};
use ropewalk_rpc::{Answer, Grantor, Handler, Incoming, Marks, Responder, Secret, Server};
use ropewalk_store::objects::{Config as Objects, ObjectError, ObjectId, ObjectStore, Recovery};
use ropewalk_store::superblock::{self, ClaimedDirectory, Expect, Identity, Keeper, Role};
use ropewalk_wire::fs::data::{DataReply, DataResult, FileId, ObjectRange};
use ropewalk_wire::fs::encode;
use ropewalk_wire::fs::head::{CallHead, Status};
use ropewalk_wire::fs::status::DataStatus;
use ropewalk_wire::fs::term::Term;

use crate::bulk::Transfers;
use crate::config::{DataConfig, DataError};
use crate::counters::Activities;
use crate::epochs::FileEpochs;
use crate::failure::{Failure, of_object};
use crate::groups::Groups;
use crate::map_note::{self, MapNote};
use crate::membership::{self, Herald, Life, Refusal};
use crate::mirror::Mirror;
use crate::told::Progress;
use crate::vouching::Vouching;
use crate::witness::{Door, Witness};
use ropewalk_rpc::lines::Lines;

/// Requests that wait or work at a time; further ones are told to come again later.
const TASKS_MAX: usize = 4096;
/// The time a start waits for fences from the metadata server before it takes changes.
const FENCES_LIMIT: Duration = Duration::from_secs(5);
/// The folder of the objects within the server's directory.
const OBJECTS: &str = "objects";
/// The file in that folder that names the owner of the objects.
const DESCRIPTION: &str = "objects/store";
/// Lines about the damage that a start found.
const DAMAGE_LINES_MAX: usize = 50;
/// Says that the objects had a folder once: if its description is missing later, data is gone.
const MADE: &str = "objects.made";

/// A data server at work. Dropping it changes nothing: its tasks run until [`DataServer::stop`].
pub struct DataServer {
    inner: Rc<Inner>,
    recovery: Recovery,
}

/// The counters of a server since its start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counters {
    pub requests: u64,
    /// Pieces whose bytes did not match the client's checksums, and were not stored.
    pub checksum_errors: u64,
    /// Requests that were told to come again because too many were under way.
    pub turned_away: u64,
    /// Calls in sessions that were not the caller's, and calls for members only that came from others.
    pub strangers: u64,
    /// Requests that wait or work now.
    pub under_way: usize,
}

pub(crate) struct Inner {
    pub world: World,
    pub endpoint: LocalEndpoint,
    pub store: ObjectStore,
    pub transfers: Transfers,
    pub lines: Lines,
    pub slots: RefCell<SlotTable>,
    pub epochs: RefCell<FileEpochs>,
    pub groups: RefCell<Groups>,
    pub mirror: Mirror,
    this: Weak<Inner>,
    /// Somebody knows a newer map than this server.
    pub map_wanted: Notify,
    pub telling: Progress,
    pub map_note: MapNote,
    /// Objects and bytes that the cleaning under way has freed.
    pub freed: Cell<(u64, u64)>,
    pub vouching: RefCell<Vouching>,
    /// Knows the newest term of the metadata server, where there is one.
    pub herald: Option<Rc<Herald>>,
    pub scratch: RefCell<Vec<u8>>,
    pub requests: Cell<u64>,
    pub activities: Activities,
    /// The server's number within the cluster.
    pub server: u32,
    /// This life of it.
    pub boot: u64,
    pub started: Time,
    pub stopping: Cell<bool>,
    /// The start, or the last fence after it.
    pub fenced: Cell<Time>,
    /// The metadata server has taken a heartbeat.
    pub joined: Cell<bool>,
    pub joining: Notify,
    /// Why the metadata server does not take it any more; nobody is served then.
    pub refusal: RefCell<Option<Refusal>>,
    pub refused: Notify,
    pub secret: Secret,
    pub grantor: Grantor,
    checksum_errors: Cell<u64>,
    turned_away: Cell<u64>,
    tasks: Cell<usize>,
    task_ended: Notify,
    /// The voter, where this server is a witness.
    pub witness: Option<Rc<Witness>>,
    keeper: Keeper,
    _claim: ClaimedDirectory,
}

/// A call as the requests need to know it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub peer: PeerId,
    pub head: CallHead,
    /// Its reply is kept for a retry.
    pub keep: bool,
    /// Of a session that is limited to the rights of one user.
    pub limited: bool,
    /// The data server that makes it, where one does.
    pub sender: Option<u32>,
}

impl DataServer {
    /// Claims the directory, opens the objects in it, and serves calls that come to `endpoint`,
    /// which must have no other user.
    pub async fn start(
        world: &World,
        endpoint: LocalEndpoint,
        config: DataConfig,
    ) -> Result<Rc<DataServer>, DataError> {
        let (claim, life) = claim(world, &config).await?;
        // Before there is an active metadata server, a witness votes for one.
        let door = Door::open(world, &endpoint, &config, claim.boot).await?;
        let started = DataServer::start_behind(world, endpoint, config, (claim, life), &door).await;
        if started.is_err()
            && let Some(door) = door
        {
            door.close().await;
        }
        started
    }

    /// Starts the rest, behind a door that may be there already.
    async fn start_behind(
        world: &World,
        endpoint: LocalEndpoint,
        config: DataConfig,
        (claim, life): (ClaimedDirectory, Life),
        door: &Option<Rc<Door>>,
    ) -> Result<Rc<DataServer>, DataError> {
        let replace = config.expect == Expect::Replace;
        let joined = join(world, &endpoint, &config, life, door).await?;
        let directory = config.directory.join(OBJECTS);
        let objects = Objects { era: claim.boot.era, ..config.objects.clone() };
        let (store, recovery) = ObjectStore::open(&directory, objects, world).await?;
        mark_made(world, &config).await?;
        let keeper = bind(world, &config, claim.keeper()).await?;
        tell_of_damage(&config, &recovery);
        let groups = Groups::new(config.server.0).with(config.defect);
        let groups = if joined.is_some() { groups } else { groups.alone() };
        let inner = Rc::new_cyclic(|this| Inner {
            world: world.clone(),
            endpoint: endpoint.clone(),
            store,
            transfers: Transfers::new(world, &endpoint, config.transfer_bytes),
            lines: Lines::new(world, config.log.clone()),
            slots: RefCell::default(),
            epochs: RefCell::default(),
            groups: RefCell::new(groups),
            mirror: Mirror::new(world, &endpoint, config.defect),
            this: this.clone(),
            map_wanted: Notify::new(),
            telling: Progress::new(&config.directory),
            map_note: MapNote::new(&config.directory, life.map),
            freed: Cell::default(),
            vouching: RefCell::new(Vouching::new(joined.is_some(), config.defect)),
            herald: joined.as_ref().map(|(herald, _)| herald.clone()),
            scratch: RefCell::default(),
            requests: Cell::new(0),
            activities: Activities::default(),
            server: config.server.0,
            boot: claim.boot.id,
            started: world.now(),
            stopping: Cell::new(false),
            fenced: Cell::new(world.now()),
            joined: Cell::new(false),
            joining: Notify::new(),
            refusal: RefCell::default(),
            refused: Notify::new(),
            secret: config.secret.clone(),
            grantor: Grantor::new(&config.secret),
            checksum_errors: Cell::new(0),
            turned_away: Cell::new(0),
            tasks: Cell::new(0),
            task_ended: Notify::new(),
            witness: door.as_ref().map(|door| door.witness().clone()),
            keeper,
            _claim: claim,
        });
        match door {
            Some(door) => door.hand_over(inner.clone()),
            None => Server::start(world, endpoint, inner.clone()),
        }
        let sweeper = inner.clone();
        world.spawn(async move { sweeper.sweep().await });
        if let Some((herald, history)) = joined {
            world.spawn(inner.clone().vouch(herald.clone()));
            world.spawn(inner.clone().heartbeat(herald, history, replace));
            world.spawn(inner.clone().keep_map_noted());
            world.spawn(inner.clone().settle_groups());
            world.spawn(inner.clone().bring_newcomers());
            world.spawn(inner.clone().let_groups_go());
            world.spawn(inner.clone().tell_of_ends());
            if let Some(scrub) = config.scrub {
                world.spawn(inner.clone().scrub(scrub));
            }
        }
        Ok(Rc::new(DataServer { inner, recovery }))
    }

    /// This life of the server, as replies and heartbeats carry it.
    pub fn boot(&self) -> u64 {
        self.inner.boot
    }

    /// Other than in the former life where something acknowledged may be lost.
    pub fn era(&self) -> u64 {
        self.inner.store.era()
    }

    /// The findings and repairs of the start.
    pub fn recovery(&self) -> &Recovery {
        &self.recovery
    }

    /// The objects, for status displays and `check`.
    pub fn store(&self) -> &ObjectStore {
        &self.inner.store
    }

    /// The counters since the start.
    pub fn counters(&self) -> Counters {
        self.inner.counters()
    }

    /// The server's report on itself. None: its disk does not tell how much room there is.
    pub fn report(&self) -> Option<DataStatus<'static>> {
        self.inner.report().ok()
    }

    /// Completes once the metadata server knows this life of the server: new files may go to it.
    /// Never, where there is no metadata server to tell.
    pub async fn joined(&self) {
        loop {
            let joining = self.inner.joining.notified();
            if self.inner.joined.get() {
                return;
            }
            joining.await;
        }
    }

    /// Completes when the metadata server refuses this server: it serves nobody any more, and can only
    /// be stopped.
    pub async fn refused(&self) -> Refusal {
        loop {
            let refused = self.inner.refused.notified();
            if let Some(refusal) = self.inner.refusal.borrow().clone() {
                return refusal;
            }
            refused.await;
        }
    }

    /// Leaves all groups of several members: for a server that stops while the others go on. They need not notice it then.
    /// Where the whole cluster stops, its groups stay as they are without this.
    pub async fn leave(&self) {
        self.inner.leave_all().await;
    }

    /// Takes no calls any more, waits for those under way, and makes everything durable.
    pub async fn stop(&self) -> Result<(), DataError> {
        self.inner.stopping.set(true);
        loop {
            let ended = self.inner.task_ended.notified();
            if self.inner.tasks.get() == 0 {
                break;
            }
            ended.await;
        }
        self.inner.store.close().await?;
        let (disk, mut keeper) = (self.inner.world.disk(), self.inner.keeper.clone());
        let ended = self.inner.world.offload(move || keeper.end(&*disk));
        Ok(ended.await.ok_or(DataError::Closed)??)
    }
}

/// The history of the cluster that this server is in; None: there is no metadata server. A new server joins first.
async fn join(
    world: &World,
    endpoint: &LocalEndpoint,
    config: &DataConfig,
    life: Life,
    door: &Option<Rc<Door>>,
) -> Result<Option<(Rc<Herald>, u128)>, DataError> {
    if config.meta.is_empty() {
        return Ok(None);
    }
    let herald = Herald::new(world, endpoint, config, life);
    let history = match life.joined {
        Some((history, _)) => history,
        None => match herald.join(config.expect == Expect::Replace).await {
            Ok(history) => history,
            Err(error) => {
                // The directory is cleared only if no vote is on its way into it.
                if let Some(door) = door {
                    door.close().await;
                }
                if let DataError::Refused(_) = error {
                    herald.leave().await?;
                }
                return Err(error);
            }
        },
    };
    Ok(Some((Rc::new(herald), history)))
}

/// Claims the directory, and makes sure that its objects are still there.
async fn claim(world: &World, config: &DataConfig) -> Result<(ClaimedDirectory, Life), DataError> {
    let random = (world.random_u64(), world.random_u128());
    let DataConfig { directory, cluster, server, expect, .. } = config.clone();
    let identity = Identity { cluster, server, role: Role::Data };
    let disk = world.disk();
    let claimed = world.offload(move || {
        let claimed = superblock::claim(&*disk, &directory, identity, expect, random)?;
        let noted = is_there(&*disk, &directory, MADE)?;
        let described = is_there(&*disk, &directory, DESCRIPTION)?;
        if expect != Expect::Replace && noted && !described {
            return Err(DataError::ObjectsGone { path: directory, server });
        }
        let joined = membership::read(&*disk, &directory)?;
        let untouched = joined.is_none() && !noted && !described;
        let mut map = map_note::read(&*disk, &directory);
        if let (Some((history, met)), 0) = (joined, map.epoch) {
            // A former program noted the term only.
            (map.history, map.term) = (history, Term(met));
        }
        let ClaimedDirectory { boot, starts, made, .. } = claimed;
        Ok((claimed, Life { boot, starts, joined, untouched, made, map }))
    });
    let claimed = claimed.await.unwrap_or(Err(DataError::Closed))?;
    if let Some(note) = claimed.0.note() {
        (config.log)(&note);
    }
    Ok(claimed)
}

/// Tells the objects whose they are, where nobody has yet.
async fn bind(world: &World, config: &DataConfig, mut keeper: Keeper) -> Result<Keeper, DataError> {
    let disk = world.disk();
    let bound = world.offload(move || keeper.bind(&*disk).map(|note| (keeper, note)));
    let (keeper, note) = bound.await.ok_or(DataError::Closed)??;
    if let Some(note) = note {
        (config.log)(&note);
    }
    Ok(keeper)
}

/// Tells of the damage to objects that was found: `check --read` finds it again.
fn tell_of_damage(config: &DataConfig, recovery: &Recovery) {
    let error = Level::Error.mark();
    for line in recovery.damage.iter().take(DAMAGE_LINES_MAX) {
        (config.log)(line);
    }
    let mut objects: Vec<_> = recovery.damaged.iter().map(|(object, _)| *object).collect();
    objects.dedup();
    for object in objects.iter().take(DAMAGE_LINES_MAX) {
        let blocks = recovery.damaged.iter().filter(|(damaged, _)| damaged == object).count();
        let ObjectId { inode, generation, stripe } = object;
        (config.log)(&format!(
            "{error}inode {inode}, generation {generation}, stripe {stripe}: {blocks} blocks of 4096 bytes \
             are lost; reading them is an error, 'ropewalk check --read' names the file"
        ));
    }
    if objects.len() > DAMAGE_LINES_MAX || recovery.damaged_blocks > recovery.damaged.len() as u64 {
        let count = recovery.damaged_blocks;
        (config.log)(&format!(
            "{error}{count} blocks are lost in all; 'ropewalk check --read' names them"
        ));
    }
}

fn is_full(cause: &io::Error) -> bool {
    matches!(cause.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

fn is_there(disk: &dyn Disk, directory: &Path, name: &str) -> Result<bool, DataError> {
    let path = directory.join(name);
    let kind = disk.kind(&path);
    let kind = kind.map_err(|cause| DataError::Io { doing: "look for", path, cause })?;
    Ok(kind.is_some())
}

/// Notes, durably, that the folder of objects exists. On a full disk that has to wait: the objects in the
/// folder must be reached all the same.
async fn mark_made(world: &World, config: &DataConfig) -> Result<(), DataError> {
    let (disk, directory) = (world.disk(), config.directory.clone());
    let made = world.offload(move || {
        let path = directory.join(MADE);
        let mark = || {
            // The folder's name first: the note must not survive a power loss without it.
            disk.sync_directory(&directory)?;
            disk.open(&path, Open::Create)?.sync_data()?;
            disk.sync_directory(&directory)
        };
        match mark() {
            Err(cause) if is_full(&cause) => Ok(()),
            done => done.map_err(|cause| DataError::Io { doing: "write", path, cause }),
        }
    });
    made.await.unwrap_or(Err(DataError::Closed))
}

impl Inner {
    /// Whether a call may still change its file: asked right before each change. Fences are the
    /// store's affair.
    pub(crate) fn admit_change(
        &self,
        call: Call,
        file: FileId,
        pieces: &[ObjectRange],
    ) -> Result<(), Failure> {
        let head = call.head;
        if head.session != 0 {
            let verdict = self.slots.borrow_mut().judge(head.session, head.slot, head.sequence);
            if verdict != Verdict::New {
                return Err(Failure::Superseded);
            }
            let groups = pieces.iter().map(|piece| piece.group);
            self.check_groups(&head, groups, true).map_err(Failure::Status)?;
        } else if !self.is_heard(Term(head.term)) {
            return Err(Failure::Status(Status::OlderTerm));
        }
        self.check_file(&call, file)
    }

    /// Whether sessions may change something. Fences of sessions that ended while this server was down
    /// come before the answer to its first heartbeat. Where nobody answers for long, those who have leases go
    /// on nevertheless.
    pub(crate) fn has_fences(&self) -> bool {
        let waited = || self.world.now().since(self.fenced.get()) >= FENCES_LIMIT;
        self.herald.is_none() || self.joined.get() || waited()
    }

    /// This server, for tasks of its own.
    pub(crate) fn this(&self) -> Rc<Inner> {
        self.this.upgrade().expect("it is borrowed")
    }

    /// Waits until the store has room for a change.
    pub(crate) async fn room(&self) -> Result<(), Failure> {
        self.store.room().await.map_err(|error| self.failed("make room", &error))
    }

    pub(crate) fn counters(&self) -> Counters {
        let early = self.witness.as_ref().map_or(0, |witness| witness.strangers());
        Counters {
            requests: self.requests.get(),
            checksum_errors: self.checksum_errors.get(),
            turned_away: self.turned_away.get(),
            strangers: self.activities.refusals() + early,
            under_way: self.tasks.get(),
        }
    }

    /// Notes an error of the store and returns the failure of its request.
    pub(crate) fn failed(&self, doing: &str, error: &ObjectError) -> Failure {
        if let ObjectError::Checksum { .. } = error {
            self.checksum_errors.set(self.checksum_errors.get() + 1);
        }
        let (failure, tell) = of_object(error);
        if tell {
            self.lines.say(&format!("cannot {doing}: {error}"));
        }
        failure
    }

    /// Works on a request in a task of its own; the task's result is the body of the reply.
    pub(crate) fn start(
        self: Rc<Self>,
        call: Call,
        responder: Responder,
        work: impl AsyncFnOnce(&Inner) -> Result<Vec<u8>, Failure> + 'static,
    ) {
        self.in_task(responder, async move |inner, responder| {
            let body = work(&inner).await;
            inner.answer_body(call, responder, body);
        });
    }

    /// Starts a task, if there are not too many; else the call is refused.
    pub(crate) fn in_task(
        self: Rc<Self>,
        responder: Responder,
        work: impl AsyncFnOnce(Rc<Inner>, Responder) + 'static,
    ) {
        if self.tasks.get() >= TASKS_MAX {
            self.turned_away.set(self.turned_away.get() + 1);
            return self.refuse(responder, Status::Unavailable);
        }
        self.in_own_task(responder, work);
    }

    /// Starts a task for a call of another server. They are few, and clients' calls may wait for them.
    pub(crate) fn in_own_task(
        self: Rc<Self>,
        responder: Responder,
        work: impl AsyncFnOnce(Rc<Inner>, Responder) + 'static,
    ) {
        self.tasks.set(self.tasks.get() + 1);
        let world = self.world.clone();
        world.spawn(async move {
            work(self.clone(), responder).await;
            self.tasks.set(self.tasks.get() - 1);
            self.task_ended.notify_all();
        });
    }

    /// Takes a metadata server's call of a newer term, once the term is noted.
    pub(crate) fn take_when_noted(
        self: Rc<Self>,
        herald: Rc<Herald>,
        incoming: Incoming,
        responder: Responder,
    ) {
        self.in_task(responder, async move |inner, responder| {
            match herald.note_term(Term(incoming.head.term)).await {
                Ok(()) => inner.handle(incoming, responder),
                Err(error) => {
                    inner.lines.say(&error.to_string());
                    inner.refuse(responder, Status::Unavailable);
                }
            }
        });
    }

    pub(crate) fn answer(
        &self,
        call: Call,
        responder: Responder,
        done: Result<DataReply<'_>, Failure>,
    ) {
        self.answer_body(call, responder, body_of(done));
    }

    /// Sends a reply, and keeps it for retries where it is the outcome of the request.
    pub(crate) fn answer_body(
        &self,
        call: Call,
        responder: Responder,
        body: Result<Vec<u8>, Failure>,
    ) {
        let body = match body {
            Ok(body) => body,
            Err(Failure::Errno(errno)) => {
                let mut body = Vec::new();
                let result: DataResult<'_> = Err(errno);
                encode(&result, &mut body);
                body
            }
            Err(Failure::Status(status)) => return self.refuse(responder, status),
            Err(Failure::Unvouched) => return self.refuse(responder, Status::Unavailable),
            // Dropping the responder tells nobody: there is nobody to tell.
            Err(Failure::Superseded) => return,
        };
        if call.keep {
            let CallHead { session, slot, sequence, .. } = call.head;
            match call.sender {
                None => self.slots.borrow_mut().store(session, slot, sequence, &body),
                Some(sender) => self.mirror.keep_reply(sender, &call.head, &body),
            }
        }
        self.send_body(responder, Status::Done, body);
    }

    pub(crate) fn refuse(&self, responder: Responder, status: Status) {
        self.send_body(responder, status, Vec::new());
    }

    pub(crate) fn send_body(&self, responder: Responder, status: Status, body: Vec<u8>) {
        // The log's durable end says nothing of blocks written in place: only a sync does, so no position is
        // ever called durable here.
        let (boot, era) = (self.boot, self.store.era());
        if let Some((kind, began)) = responder.counted() {
            self.activities.took(kind, self.world.now().since(began));
        }
        let map = self.groups.borrow().epoch();
        let marks = Marks { boot, era, written: self.store.log_end(), durable: 0, map };
        responder.send(Answer { status, body, marks });
    }
}

/// The body of a short reply.
pub(crate) fn body_of(done: Result<DataReply<'_>, Failure>) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    let result: DataResult<'_> = Ok(done?);
    encode(&result, &mut body);
    Ok(body)
}
