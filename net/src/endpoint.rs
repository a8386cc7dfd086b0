//! Endpoints: opening, addressing, posting, testing; `waiting` has the rest.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use ropewalk_auth::Untrusted;
use ropewalk_base::error::Fault;
use ropewalk_base::ids::{ClusterId, EndpointId, Incarnation};
use ropewalk_base::memory::{BufferTable, Memory, Slice};
use ropewalk_base::pool::Pool;
use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{RailCounters, RemoteKey, RemoteLayout};
use ropewalk_core::{
    Access, Audience, Channel, Config, Core, Counters, Direction, Exposing, Holdings, Identity,
    Level, OperationId, Oversize, PeerId, RailProtection, Terms,
};
use ropewalk_rail::{Account, Rail, RailOption};

use crate::context::{Completed, Context};
use crate::engine::{Command, Engine, EngineSetup};
pub use crate::engine::{PeerEvent, SharedClock};
use crate::on_demand::OnDemandRails;
use crate::paths;
use crate::payload::{PayloadError, PayloadModes};
pub use crate::posts::Posted;
use crate::posts::{Post, ReceivePost, SendPost, What};
use crate::security::{Security, with_chance};
use crate::service;
use crate::shared::{Held, Shared, order_write_before_look};
use crate::teller::{Door, StartTeller};

/// The configuration of an endpoint, apart from its rails.
pub struct EndpointConfig {
    pub endpoint: EndpointId,
    pub incarnation: Incarnation,
    pub cluster: ClusterId,
    /// Identifies the host, see [`crate::host::host_number`]; 0: never look for shared memory.
    pub host: u64,
    /// Sizes and times of the protocol.
    pub core: Config,
    /// Checksums over payloads on rails that need them. Headers always have one there.
    pub payload_checksum: bool,
    /// The same between processes of one host, whose bytes do not leave its memory: without, as over shared memory.
    pub same_host_checksum: bool,
    /// Bytes for messages that arrive before their receives, over all peers.
    pub staging_bytes: usize,
    /// A thread that makes progress while nobody else does. Not for endpoints of an executor.
    pub service_thread: bool,
    /// Tells other processes what the rails count; `None`: nobody does. Needs a service thread.
    pub teller: Option<StartTeller>,
    /// The clock of deadlines.
    pub clock: SharedClock,
    /// The clock is one of virtual time: the endpoint looks at no other one, so that a run can be repeated.
    pub virtual_time: bool,
    /// Seeds the order of hashes, and in virtual time keys and nonces: else these come from the operating system.
    pub seed: u64,
    /// Who may talk to it.
    pub security: Security,
    /// How payloads are protected on the way.
    pub payload: PayloadModes,
}

impl EndpointConfig {
    /// A fresh endpoint of this cluster with the host's clock and randomness.
    pub fn new(cluster: ClusterId) -> EndpointConfig {
        let seed = crate::host::random_seed();
        let mut random = Random::from_seed(seed);
        let start = std::time::Instant::now();
        let unix = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        EndpointConfig {
            endpoint: EndpointId(random.next_u128()),
            incarnation: Incarnation(unix.map_or(1, |unix| unix.as_nanos() as u64)),
            cluster,
            host: crate::host::host_number(),
            core: Config::default(),
            payload_checksum: true,
            same_host_checksum: false,
            staging_bytes: 320 << 20,
            service_thread: true,
            teller: None,
            clock: Arc::new(move || Time(start.elapsed().as_nanos() as u64)),
            virtual_time: false,
            // Of its own: the endpoint's id is in each greeting, and tells its seed.
            seed: crate::host::random_seed(),
            security: Security::None,
            payload: PayloadModes::default(),
        }
    }

    /// The limits of the core: buffers that are lent to peers fit into the staging memory, with room for greetings.
    fn limits(&self, rails: &[Box<dyn Rail>]) -> Config {
        let paths_max = paths::most(self.core.paths_max, rails.iter().map(|rail| &**rail));
        let pool_bytes = (self.staging_bytes - self.staging_bytes / 5) as u64;
        let eager_pool_bytes = self.core.eager_pool_bytes.min(pool_bytes);
        let path_wait = self.core.path_wait.or_else(paths::wait);
        Config { eager_pool_bytes, paths_max, path_wait, ..self.core }
    }

    /// Room for everything that the limits allow at once, so that an operation always finds some.
    fn buffers_max(&self) -> usize {
        let staged = self.staging_bytes / STAGED_BYTES_MIN;
        self.core.operations_max + self.core.regions_max + staged + 16
    }
}

/// A process's presence on the network. Cloning gives another handle.
#[derive(Clone)]
pub struct Endpoint {
    pub(crate) shared: Arc<Shared>,
}

/// Commands that wait for the holder of the engine, at most.
const COMMANDS_MAX: usize = 8192;
/// Between two looks at rails that settle.
const SETTLE_LOOK: Duration = Duration::from_micros(50);
/// The smallest buffer that a staged message takes.
const STAGED_BYTES_MIN: usize = 256;

/// Numbers the rails, and has their descriptors watched; the addresses of all of them.
fn attach(rails: &mut [Box<dyn Rail>], watch: BorrowedFd<'_>) -> std::io::Result<String> {
    use rustix::event::epoll;
    let mut addresses = Vec::new();
    for (index, rail) in rails.iter_mut().enumerate() {
        rail.attach(index as u8);
        let own = rail.addresses();
        addresses.extend(own.iter().map(|address| format!("{}://{address}", rail.scheme())));
        if let Some(descriptor) = rail.descriptor() {
            let data = epoll::EventData::new_u64(index as u64);
            epoll::add(watch, descriptor, data, epoll::EventFlags::IN)?;
        }
    }
    Ok(addresses.join(","))
}

fn invalid(error: PayloadError) -> std::io::Error {
    std::io::Error::new(std::io::ErrorKind::InvalidInput, error)
}

impl EndpointConfig {
    /// The protection that links of these rails are to have.
    fn protections(&self, rails: &[Box<dyn Rail>]) -> std::io::Result<Vec<RailProtection>> {
        let of = |rail: &dyn Rail| self.payload.protection(&self.security, rail);
        rails.iter().map(|rail| of(&**rail).map_err(invalid)).collect()
    }

    fn identity(&self) -> Identity {
        let EndpointConfig { endpoint, incarnation, cluster, host, .. } = *self;
        Identity { endpoint, incarnation, cluster, host }
    }
}

impl Endpoint {
    /// Opens an endpoint on these rails.
    pub fn open(
        config: EndpointConfig,
        mut rails: Vec<Box<dyn Rail>>,
    ) -> std::io::Result<Endpoint> {
        use rustix::event::{EventfdFlags, epoll, eventfd};
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let nudge = eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?;
        epoll::add(&epoll, &nudge, epoll::EventData::new_u64(u64::MAX), epoll::EventFlags::IN)?;
        let protections = config.protections(&rails)?;
        let addresses = attach(&mut rails, epoll.as_fd())?;
        let mut buffers = BufferTable::with_limit(config.buffers_max());
        let greeting = Self::greeting(&mut buffers, &addresses);
        let identity = config.identity();
        let capabilities = rails.iter().map(|rail| rail.capabilities()).collect();
        let random = Random::from_seed(config.seed);
        let schemes = rails.iter().map(|rail| rail.scheme()).collect();
        let mut core = Core::new(config.limits(&rails), identity, capabilities, greeting, random)
            .with_schemes(schemes)
            .with_probe_bytes(crate::engine::probe_bytes(&mut buffers));
        core.protect_rails(protections);
        let pool = Pool::with_budget(config.staging_bytes);
        let engine = Engine::new(EngineSetup {
            core: config.security.applied_to(with_chance(core, config.virtual_time), &addresses),
            rails,
            buffers,
            pool,
            payload_checksum: config.payload_checksum,
            same_host_checksum: config.same_host_checksum,
            clock: config.clock.clone(),
            virtual_time: config.virtual_time,
            operations_max: config.core.operations_max,
        });
        let shared = Arc::new(Shared {
            signals: engine.signals.clone(),
            requests: engine.requests.clone(),
            long_rest: AtomicBool::new(false),
            passes_over: AtomicBool::new(false),
            engine: Mutex::new(engine),
            commands: Mutex::new(VecDeque::new()),
            command_count: AtomicU32::new(0),
            reserve: Mutex::new(Vec::new()),
            epoll,
            nudge,
            nudged: AtomicBool::new(false),
            armed: AtomicU32::new(0),
            sleep_until: AtomicU64::new(u64::MAX),
            passes: AtomicU64::new(0),
            sleepers: AtomicU32::new(0),
            exposures: AtomicU32::new(0),
            served_apart: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            clock: config.clock,
            paths_wanted: config.core.paths_max,
            identity,
            protection: (config.payload, config.security),
            addresses,
            service: Mutex::new(None),
            teller: Mutex::new(None),
            start_teller: config.teller,
            door: Mutex::new(None),
            on_demand: OnDemandRails::default(),
        });
        let endpoint = Endpoint { shared };
        endpoint.fill_reserve(&mut endpoint.locked());
        if config.service_thread {
            endpoint.start_service()?;
        }
        Ok(endpoint)
    }

    fn start_service(&self) -> std::io::Result<()> {
        let counts = self.locked().rails.iter().any(|rail| rail.account().is_some());
        self.shared.set_teller(self.shared.start_teller.filter(|_| counts).and_then(|it| it()));
        let service = service::start(&self.shared)?;
        *self.shared.service.lock().expect("set once") = Some(service);
        Ok(())
    }

    fn greeting(buffers: &mut BufferTable, addresses: &str) -> Slice {
        if addresses.is_empty() {
            return Slice::NONE;
        }
        let pool = Pool::with_budget(1 << 16);
        let copy = pool.copy_of(addresses.as_bytes()).expect("addresses fit a frame");
        let len = copy.len() as u64;
        match buffers.insert(Memory::shared(Arc::new(copy))) {
            Ok(buffer) => Slice { buffer, offset: 0, len },
            Err(_) => unreachable!("an empty table has room"),
        }
    }

    /// The identity of this endpoint.
    pub fn identity(&self) -> Identity {
        Identity { cluster: self.locked().core.cluster(), ..self.shared.identity }
    }

    /// Why a peer was not believed last, if one was not. The peer is not told it.
    pub fn last_untrusted(&self) -> Option<Untrusted> {
        self.locked().core.last_untrusted()
    }

    /// The addresses under which peers reach this endpoint.
    pub fn addresses(&self) -> &str {
        &self.shared.addresses
    }

    /// A new queue of completions. `wants_requests`: arriving requests wake it, too.
    pub fn context(&self, wants_requests: bool) -> std::io::Result<Context> {
        let queue = self.locked().contexts.add(wants_requests)?;
        Ok(Context { queue })
    }

    /// A context that nobody uses any more: its completions are dropped, those of operations that are
    /// still under way when they come.
    pub fn retire(&self, context: &Context) {
        // Their peers get their credit back.
        while self.next_written(context).is_some() {}
        self.locked().contexts.retire(&context.queue);
    }

    /// One more rail, which connects; the addresses that peers were told stay as they are.
    pub fn add_rail(&self, mut rail: Box<dyn Rail>) -> std::io::Result<()> {
        use rustix::event::epoll;
        let mut engine = self.locked();
        let index = u8::try_from(engine.rails.len()).ok().filter(|index| *index < u8::MAX);
        let Some(index) = index else { return Err(std::io::ErrorKind::OutOfMemory.into()) };
        let (payload, security) = &self.shared.protection;
        let protection = payload.protection(security, &*rail).map_err(invalid)?;
        rail.attach(index);
        if let Some(descriptor) = rail.descriptor() {
            let data = epoll::EventData::new_u64(index.into());
            epoll::add(&self.shared.epoll, descriptor, data, epoll::EventFlags::IN)?;
        }
        engine.disarm();
        let counts = rail.account().is_some();
        engine.add_rail(rail, protection);
        let paths_max = paths::most(self.shared.paths_wanted, engine.rails.iter());
        engine.core.set_paths_max(paths_max);
        drop(engine);
        self.tell_counts(counts);
        self.wake_service();
        self.shared.nudge();
        Ok(())
    }

    /// Starts the teller, if there are counters and a thread to answer.
    fn tell_counts(&self, any: bool) {
        let serves = self.shared.service.lock().expect("set once").is_some();
        if any && serves && self.shared.teller().is_none() {
            self.shared.set_teller(self.shared.start_teller.and_then(|start| start()));
        }
    }

    /// Sets an option of the rails of a scheme; false where none of them has it.
    pub fn set_option(&self, scheme: &str, option: RailOption) -> bool {
        self.locked().rails.set_option(scheme, option)
    }

    /// Posts a message.
    #[expect(clippy::too_many_arguments, reason = "what a message is")]
    pub fn post_send(
        &self,
        context: &Context,
        peer: PeerId,
        channel: Channel,
        bits: u64,
        memory: Memory,
        level: Level,
        user: u64,
    ) -> Result<Posted, (Memory, Fault)> {
        let what = SendPost { peer, channel, bits, level };
        self.post(context, what, memory, user)
    }

    /// Posts a receive. One from a peer that was looked up and has no session calls it, and fails where it cannot
    /// be reached.
    #[expect(clippy::too_many_arguments, reason = "what a receive is")]
    pub fn post_receive(
        &self,
        context: &Context,
        channel: Channel,
        source: Option<PeerId>,
        bits: u64,
        mask: u64,
        memory: Memory,
        oversize: Oversize,
        user: u64,
    ) -> Result<Posted, (Memory, Fault)> {
        let what = ReceivePost { channel, source, bits, mask, oversize };
        self.post(context, what, memory, user)
    }

    /// Starts a get or put between `memory` and a peer's region. The peer judges each segment of a list alone: a put to a list
    /// that is refused may have written those of its segments that lie in the region. All else is judged as a whole.
    #[expect(clippy::too_many_arguments, reason = "what an access is")]
    pub fn post_access(
        &self,
        context: &Context,
        direction: Direction,
        peer: PeerId,
        key: RemoteKey,
        remote: RemoteLayout,
        memory: Memory,
        user: u64,
    ) -> Result<Posted, (Memory, Fault)> {
        let action = direction.into();
        let access =
            Access { action, peer, key, remote, local: Slice::NONE, terms: Terms::default() };
        self.post(context, access, memory, user)
    }

    #[inline(always)]
    pub(crate) fn post(
        &self,
        context: &Context,
        what: impl What,
        memory: Memory,
        user: u64,
    ) -> Result<Posted, (Memory, Fault)> {
        let queue = &context.queue;
        let context = queue.number;
        let Some(mut engine) = self.try_lock() else {
            return self.post_beside(Post { what: what.left(), user, context, memory });
        };
        // The commands that this thread left for a former holder run before the new post.
        if self.shared.command_count.load(Ordering::SeqCst) > 0 {
            self.shared.run_commands(&mut engine);
        }
        let posted = engine.post(context, what, memory, user);
        let awaited = engine.core.awaited();
        if awaited > 0 {
            engine.signals.set_awaited(awaited);
        }
        let needs_us = awaited > 0 || engine.core.announced() > 0;
        self.unlock(engine);
        let long_rest = &self.shared.long_rest;
        if needs_us && long_rest.load(Ordering::Relaxed) && long_rest.swap(false, Ordering::Relaxed)
        {
            self.wake_service();
        }
        if let Ok(Posted::Done(completed)) = &posted {
            queue.count(completed);
        }
        posted.map_err(|memory| (memory, Fault::Busy))
    }

    /// Another thread has the engine: the post is left to it.
    #[cold]
    fn post_beside(&self, post: Post) -> Result<Posted, (Memory, Fault)> {
        let taken = self.shared.reserve.lock().expect("never left half-changed").pop();
        let Some(id) = taken else {
            // The reserve is small; a thread that outruns it waits for the holder, as for a full queue.
            let mut engine = self.locked();
            let Some(id) = engine.allocate() else { return Err((post.memory, Fault::Busy)) };
            engine.command(Command::Post(id, post));
            return Ok(Posted::Pending(id));
        };
        self.leave(Command::Post(id, post));
        Ok(Posted::Pending(id))
    }

    /// Ends an operation early. Its completion comes in any case, with `Cancelled` where this was
    /// in time.
    pub fn cancel(&self, id: OperationId) {
        self.leave(Command::Cancel(id));
    }

    /// Makes memory accessible to peers that are told the key.
    pub fn expose(
        &self,
        memory: Memory,
        writable: bool,
        audience: Audience,
    ) -> Result<RemoteKey, (Memory, Fault)> {
        let exposed = self.expose_as(memory, Exposing::to(audience, writable))?;
        Ok(exposed.key)
    }

    /// There is memory that peers may use: it has to be served.
    pub(crate) fn exposed(&self) {
        self.shared.exposures.fetch_add(1, Ordering::Relaxed);
        self.wake_service();
    }

    /// Ends an exposure. The memory comes back through `context` with `user` when no peer and no
    /// rail holds it any more.
    pub fn unexpose(&self, key: RemoteKey, context: &Context, user: u64) -> Result<(), Fault> {
        let mut engine = self.locked();
        engine.unexpose(key, context.queue.clone(), user)?;
        self.shared.exposures.fetch_sub(1, Ordering::Relaxed);
        Ok(())
    }

    /// From now on messages of `channel` that no posted receive accepts are dropped: for users who
    /// post a receive before they make anybody send, such as callers of remote procedures.
    pub fn drop_unawaited(&self, channel: Channel) {
        self.locked().core.drop_unawaited(channel);
    }

    /// Whether an operation is under way in this context. False for a number that never was one, and
    /// for one that has ended, whose completion may wait to be taken.
    pub fn is_pending(&self, id: OperationId, context: &Context) -> bool {
        let mut engine = self.locked();
        self.shared.run_commands(&mut engine);
        engine.pending_in(id) == Some(context.queue.number)
    }

    /// One completion that waits, without a pass.
    #[inline]
    pub fn take(&self, context: &Context) -> Option<Completed> {
        context.queue.pop()
    }

    /// One completion of the context, after a pass where none was there.
    pub fn test(&self, context: &Context) -> Option<Completed> {
        if let Some(completed) = context.queue.pop() {
            return Some(completed);
        }
        self.count_pass();
        let Some(mut engine) = self.try_lock() else { return context.queue.pop() };
        engine.await_next(context.queue.number);
        self.shared.pass(&mut engine);
        if let Some(completed) = engine.take_answer() {
            self.unlock(engine);
            context.queue.count(&completed);
            return Some(completed);
        }
        self.unlock(engine);
        context.queue.pop()
    }

    /// One pass over the rails. False where nothing happened, or another thread is making one.
    pub fn progress(&self) -> bool {
        self.count_pass();
        let Some(mut engine) = self.try_lock() else { return false };
        let any = self.shared.pass(&mut engine);
        self.unlock(engine);
        any
    }

    #[inline]
    fn count_pass(&self) {
        // A pass that two threads count as one is still a change.
        let passes = self.shared.passes.load(Ordering::Relaxed);
        self.shared.passes.store(passes.wrapping_add(1), Ordering::Relaxed);
    }

    /// The descriptor that is readable while armed rails have work; for reactors.
    pub fn descriptor(&self) -> std::os::fd::BorrowedFd<'_> {
        self.shared.epoll.as_fd()
    }

    /// Prepares the rails for a sleep of a reactor that owns this endpoint; false where there is
    /// work. With it, when the next pass is due.
    pub fn arm_rails(&self) -> (bool, Option<Time>) {
        match self.try_lock() {
            Some(mut engine) => {
                let answer = (engine.arm(), engine.deadline());
                self.unlock(engine);
                answer
            }
            None => (false, None),
        }
    }

    /// The sleep is over.
    pub fn disarm_rails(&self) {
        if let Some(mut engine) = self.try_lock() {
            self.shared.stand_up(&mut engine);
            self.unlock(engine);
        }
    }

    /// Passes over the rails so far, by any thread.
    pub fn passes(&self) -> u64 {
        self.locked().passes()
    }

    /// When a pass has to be made at the latest.
    pub fn deadline(&self) -> Option<Time> {
        let engine = self.try_lock()?;
        let deadline = engine.deadline();
        self.unlock(engine);
        deadline
    }

    /// All that its rails of packets count.
    pub fn accounts(&self) -> Vec<Account> {
        self.locked().rails.iter().filter_map(|rail| rail.account()).collect()
    }

    /// Counters of the protocol and of each rail.
    pub fn counters(&self) -> (Counters, Vec<(&'static str, RailCounters)>) {
        let engine = self.locked();
        let rails = engine.rails.iter().map(|rail| (rail.scheme(), rail.counters())).collect();
        (engine.core.counters(), rails)
    }

    /// Accesses of peers to memory of ours that were served while the application made no calls; all of them are
    /// [`Counters::accesses_served`].
    pub fn accesses_served_apart(&self) -> u64 {
        self.shared.served_apart.load(Ordering::Relaxed)
    }

    /// Bytes of messages that were copied within this process, in both directions. Copies by the kernel do not
    /// count. Nor do fragments of MXoE that wait for an earlier one that is missing.
    pub fn bytes_copied(&self) -> u64 {
        let engine = self.locked();
        let rails = engine.rails.iter().map(|rail| rail.counters().bytes_copied);
        engine.buffers.bytes_copied() + rails.sum::<u64>()
    }

    /// Messages that wait for a receive.
    pub fn unmatched_count(&self) -> usize {
        self.locked().core.unmatched_count()
    }

    /// What the protocol has and will give back, the buffers that the endpoint has for it, and the bytes that it has lent
    /// of its own memory. For tests.
    pub fn held(&self) -> (Holdings, usize, usize) {
        let engine = self.locked();
        (engine.core.held(), engine.buffers.len(), engine.pool.lent_bytes())
    }

    /// Recounts everything that the protocol counts and panics where it disagrees. For tests.
    pub fn check(&self) {
        self.locked().core.check();
    }

    /// Waits, at most `limit`, until everything that left is at its peers: before a close, where sends that
    /// were reported as complete must not be lost.
    pub fn settle(&self, limit: Duration) {
        let deadline = (self.shared.clock)() + limit;
        loop {
            self.progress();
            let engine = self.locked();
            let owes = engine.rails.owe() || engine.core.owes();
            drop(engine);
            if !owes || (self.shared.clock)() >= deadline {
                return;
            }
            std::thread::sleep(SETTLE_LOOK);
        }
    }

    /// Has the service thread sleep at a door, in place of another one, until the endpoint is closed. False if the endpoint has
    /// no such thread, or is closed.
    pub fn attend(&self, door: Arc<dyn Door>) -> bool {
        let service = self.shared.service.lock().expect("set once");
        let Some(service) = service.as_ref() else { return false };
        self.shared.set_door(Some(door));
        service.nudge();
        true
    }

    /// Closes the endpoint: operations fail with `Closed`, peers are told. Where frames wait for room at a peer, it is told
    /// behind them: within ten seconds by a thread of the endpoint, if it has a service thread, else by its user's passes.
    /// Dropped earlier, the endpoint hangs up.
    pub fn close(&self) {
        if self.shared.closing.swap(true, Ordering::SeqCst) {
            return;
        }
        let service = self.shared.service.lock().expect("set once").take();
        let is_served = service.is_some();
        if let Some(service) = service {
            service.stop();
        }
        self.shared.set_teller(None);
        self.shared.set_door(None);
        let mut engine = self.locked();
        engine.core.close();
        engine.drain();
        self.shared.pass(&mut engine);
        // Every sleeper learns that no completion will come any more.
        engine.contexts.ring_all();
        let owes = engine.rails.owe();
        drop(engine);
        if is_served && owes {
            // Without a thread the peers are told when the endpoint is dropped.
            let _ = crate::service::finish(&self.shared);
        }
        self.shared.nudge();
    }

    /// Wakes all who sleep, to look whether the endpoint is closed.
    pub fn wake_sleepers(&self) {
        self.locked().contexts.ring_all();
        self.shared.nudge();
    }

    /// Whether it was closed.
    pub fn is_closed(&self) -> bool {
        self.shared.closing.load(Ordering::SeqCst)
    }

    pub(crate) fn wake_service(&self) {
        if let Some(service) = &*self.shared.service.lock().expect("set once") {
            service.nudge();
        }
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, Engine>> {
        self.shared.try_lock()
    }

    /// For calls that are rare and need an answer: waits for the engine.
    pub(crate) fn locked(&self) -> Held<'_> {
        self.shared.locked()
    }

    pub(crate) fn unlock(&self, engine: MutexGuard<'_, Engine>) {
        self.shared.unlock(engine);
    }

    fn fill_reserve(&self, engine: &mut Engine) {
        self.shared.fill_reserve(engine);
    }

    /// Leaves a command for the holder of the engine, or carries it out.
    pub(crate) fn leave(&self, command: Command) {
        let mut command = Some(command);
        loop {
            {
                let mut commands = self.shared.commands.lock().expect("never left half-changed");
                if commands.len() < COMMANDS_MAX
                    && let Some(command) = command.take()
                {
                    commands.push_back(command);
                    self.shared.command_count.fetch_add(1, Ordering::SeqCst);
                }
            }
            // Either we get the engine and carry commands out, or its holder sees the count: of two threads that
            // each write first and then look at the other's write, one sees it.
            order_write_before_look();
            if let Some(engine) = self.try_lock() {
                self.unlock(engine);
            }
            if command.is_none() {
                return;
            }
            std::thread::yield_now();
        }
    }
}
