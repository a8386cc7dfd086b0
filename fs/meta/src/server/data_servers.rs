//! Messages to data servers: fences before leases go to others, cuts, and reaps of garbage.
//!
//! Invariants:
//! * a session's fence is up at every data server that lives before the session is taken apart; one
//!   that was silent for too long gets it as soon as it is heard again, of whatever life of ours: a row
//!   remembers it. So does one that cannot keep the fence, whose log failed: as long as it lives it refuses
//!   the session nevertheless;
//! * cuts and reaps leave only when their rows are durable, and are given back to the shard as done
//!   only when every server that can hold objects of the file has answered. A data server answers
//!   them, and fences, when its own record of them is durable;
//! * all of them may be sent more than once.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::task::join_all;
use ropewalk_base::text::printable;
use ropewalk_base::time::Time;
use ropewalk_net::{Address, PeerId};
use ropewalk_rpc::{CallError, Connection, Options, Proof};
use ropewalk_store::marks::Position;
use ropewalk_store::{JournaledStore, MetaStore};
use ropewalk_wire::fs::data::{DataRequest, DataResult, FileId, GROUPS_MAX};
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::head::Service;
use ropewalk_wire::fs::layout::{Layout, Members, Pool};
use ropewalk_wire::fs::map::{Band, Map};
use ropewalk_wire::fs::trust::{Member, Role};
use ropewalk_wire::fs::value::Errno;
use ropewalk_wire::fs::{decode, encode};

use super::{DataMessages, MetaServer};
use crate::pools::ADDRESS_BYTES_MAX;
use crate::rows::RowsError;
use crate::shard::{Cut, Reap, Shard};
use crate::store_rows::StoreRows;

/// The time limit of a data server's answer.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);
/// The pause before a fence is sent again.
const FENCE_RETRY: Duration = Duration::from_millis(200);
/// Fences that a server is told together: they share a sync of its log.
const FENCES_AT_ONCE: usize = 64;
/// The pause before a cut that failed is tried again.
const CUT_RETRY: Duration = Duration::from_millis(500);
/// The pause before reaps that failed are tried again.
const REAP_RETRY: Duration = Duration::from_secs(5);
/// Files that are being cut at a time.
const CUTS_MAX: usize = 256;
/// Inodes of one `Reap`: fits a call with room to spare.
const REAP_BATCH: usize = 512;
/// Confirmed reaps that are committed without asking the store for room.
const REAPS_PER_TURN: usize = 64;
/// Fences that are kept for a silent server; beyond that the oldest are forgotten, of whose sessions no
/// message can be under way any more.
const OWED_MAX: usize = 1 << 16;

/// Servers that asked to join and are remembered, the latest.
const ASKERS_MAX: usize = 64;

/// The data servers that were heard of, or that a pool version names.
#[derive(Default)]
pub(super) struct DataServers {
    pub servers: RefCell<BTreeMap<u32, DataServer>>,
    /// Those that asked to join under a number that the cluster does not have: when, and from where.
    askers: RefCell<BTreeMap<u32, (Time, Vec<u8>)>>,
    cuts: Cell<usize>,
    /// Cuts that a server refused, and people were told: inode, epoch, server.
    cuts_told: RefCell<BTreeSet<(u64, u32, u32)>>,
}

pub(super) struct DataServer {
    pub address: Vec<u8>,
    /// The life that was heard last; 0: none in this life of ours.
    pub boot: u64,
    /// None before its first heartbeat in this life of ours.
    pub connection: Option<Connection>,
    heard: Time,
    /// The sender of that heartbeat.
    caller: Option<PeerId>,
    /// Fences that it has not confirmed.
    owed: Owed,
    /// A task brings it the fences.
    delivering: bool,
    /// The life that has the fences which were owed to former ones.
    fenced: u64,
}

/// Fences that a server was not told, by session.
#[derive(Default)]
struct Owed {
    /// The epoch, and which of all it was: numbers of sessions say nothing about their age.
    fences: BTreeMap<u64, (u32, u64)>,
    count: u64,
}

impl Owed {
    /// Notes a fence; the session whose fence is forgotten for that.
    fn add(&mut self, session: u64, epoch: u32) -> Option<u64> {
        self.count += 1;
        self.fences.insert(session, (epoch, self.count));
        if self.fences.len() <= OWED_MAX {
            return None;
        }
        let oldest =
            self.fences.iter().min_by_key(|(_, (_, at))| *at).map(|(session, _)| *session)?;
        self.fences.remove(&oldest);
        Some(oldest)
    }
}

impl DataServer {
    fn new(now: Time) -> DataServer {
        let (connection, owed) = (None, Owed::default());
        let (delivering, fenced) = (false, 0);
        DataServer {
            address: Vec::new(),
            boot: 0,
            connection,
            heard: now,
            caller: None,
            owed,
            delivering,
            fenced,
        }
    }
}

impl DataServers {
    /// Counts the servers that any pool version names as alive, until they were silent for long
    /// enough, and takes up which fences they have yet to be told.
    pub fn expect(
        &self,
        shard: &Shard<StoreRows<JournaledStore>>,
        now: Time,
    ) -> Result<(), RowsError> {
        let mut servers = self.servers.borrow_mut();
        for server in shard.pools.known(0) {
            servers.insert(server, DataServer::new(now));
        }
        for (server, session, epoch) in shard.fences_owed()? {
            if shard.pools.member(server).is_none() {
                continue;
            }
            let server = servers.entry(server).or_insert_with(|| DataServer::new(now));
            server.owed.add(session, epoch);
        }
        Ok(())
    }

    /// The servers that were not told of the session's fence.
    fn that_owe(&self, session: u64) -> Vec<u32> {
        let servers = self.servers.borrow();
        let owing = servers.iter().filter(|(_, server)| server.owed.fences.contains_key(&session));
        owing.map(|(id, _)| *id).collect()
    }

    /// The number of fences that a server has yet to be told.
    pub fn owed(&self, server: u32) -> usize {
        self.servers.borrow().get(&server).map_or(0, |server| server.owed.fences.len())
    }

    /// A server asked to join, and was refused. People are shown who did.
    pub fn note_asker(&self, server: u32, address: &[u8], now: Time) {
        let mut askers = self.askers.borrow_mut();
        askers.insert(server, (now, address[..address.len().min(ADDRESS_BYTES_MAX)].to_vec()));
        if askers.len() > ASKERS_MAX {
            let oldest = askers.iter().min_by_key(|(_, (asked, _))| *asked).map(|(id, _)| *id);
            oldest.map(|id| askers.remove(&id));
        }
    }

    /// The number need not be asked for (any more).
    pub fn forget_asker(&self, server: u32) {
        self.askers.borrow_mut().remove(&server);
    }

    /// Servers from this number on that asked to join: number, when, and address.
    pub fn askers(&self, from: u32) -> Vec<(u32, Time, Vec<u8>)> {
        let askers = self.askers.borrow();
        let found = askers.range(from..);
        found.map(|(id, (asked, address))| (*id, *asked, address.clone())).collect()
    }

    /// A store has joined that is to get these fences.
    pub fn owe(&self, server: u32, fences: Vec<(u64, u32)>, now: Time) {
        let mut servers = self.servers.borrow_mut();
        let server = servers.entry(server).or_insert_with(|| DataServer::new(now));
        for (session, epoch) in fences {
            server.owed.add(session, epoch);
        }
    }

    /// A task is about to bring a server its fences; false where another one does.
    pub fn begin_delivery(&self, server: u32) -> bool {
        let mut servers = self.servers.borrow_mut();
        servers.get_mut(&server).is_some_and(|it| !std::mem::replace(&mut it.delivering, true))
    }

    /// Whether this life of a server is to get fences before it is told that it may serve.
    pub fn is_unfenced(&self, server: u32, boot: u64) -> bool {
        let mut servers = self.servers.borrow_mut();
        let Some(server) = servers.get_mut(&server) else { return false };
        if server.owed.fences.is_empty() {
            server.fenced = boot;
        }
        server.fenced != boot
    }

    /// This life of a server has got its fences.
    pub fn note_fenced(&self, server: u32, boot: u64) {
        if let Some(server) = self.servers.borrow_mut().get_mut(&server) {
            server.fenced = boot;
        }
    }

    /// Nobody was listened to for so long: servers were not silent.
    pub fn postpone(&self, by: Duration) {
        for server in self.servers.borrow_mut().values_mut() {
            server.heard = server.heard + by;
        }
    }

    /// The servers that were heard in this life of ours: number, when, and who called.
    pub fn callers(&self) -> Vec<(u32, Time, PeerId)> {
        let servers = self.servers.borrow();
        let caller = |(id, server): (&u32, &DataServer)| Some((*id, server.heard, server.caller?));
        servers.iter().filter_map(caller).collect()
    }

    /// Whether another cut may be started.
    pub fn may_cut(&self) -> bool {
        self.cuts.get() < CUTS_MAX
    }
}

impl MetaServer {
    /// A heartbeat of a data server was taken.
    pub(super) fn saw_data_server(
        self: &Rc<Self>,
        (id, boot): (u32, u64),
        caller: PeerId,
        address: &[u8],
    ) {
        let now = self.world.now();
        let mut servers = self.data_servers.servers.borrow_mut();
        let server = servers.entry(id).or_insert_with(|| DataServer::new(now));
        (server.heard, server.caller) = (now, Some(caller));
        server.boot = boot;
        if server.connection.is_none() || server.address != address {
            server.address = address.to_vec();
            server.connection = self.connect(id, address);
        }
        let owes = !server.owed.fences.is_empty() && !server.delivering && server.fenced == boot;
        if owes {
            server.delivering = true;
        }
        drop(servers);
        if owes {
            let this = self.clone();
            self.task(async move {
                this.deliver_owed(id).await;
            });
        }
    }

    fn connect(&self, id: u32, address: &[u8]) -> Option<Connection> {
        let name = format!("data server {id}");
        let text = String::from_utf8_lossy(address);
        let peer = Address::parse(&text).map_err(|error| error.to_string()).and_then(|address| {
            self.endpoint.endpoint().lookup(&address).map_err(|fault| fault.to_string())
        });
        match peer {
            Ok(peer) => {
                let (proof, term) = (Some(self.proof()), self.term.term());
                let limit = ANSWER_LIMIT;
                let options = Options { limit, name, proof, term, ..Options::default() };
                Some(Connection::new(&self.world, &self.endpoint, peer, options))
            }
            Err(error) => {
                (self.config.log)(&no_address(&name, address, &error));
                None
            }
        }
    }

    /// The proof by which data servers know this server.
    pub(super) fn proof(&self) -> Proof {
        let member = Member { role: Role::Metadata, number: self.config.server.0 };
        Proof { secret: self.config.secret.clone(), member }
    }

    /// Sends a request to a data server and returns its answer. `None` where it gives none.
    async fn ask(
        &self,
        server: u32,
        body: &[u8],
        count: impl FnOnce(&mut DataMessages) -> &mut u64,
    ) -> Option<Result<(), Errno>> {
        if !self.may_act() {
            return None;
        }
        let connection = {
            let servers = self.data_servers.servers.borrow();
            servers.get(&server).and_then(|server| server.connection.clone())
        };
        let connection = connection?;
        *count(&mut self.counters.data.borrow_mut()) += 1;
        let map = self.shard()?.pools.map().epoch;
        let reply = match connection.call_free_by(map, Service::Data, body).await {
            Err(CallError::OlderTerm) => {
                self.fail(&format!(
                    "data server {server} has met a metadata server that began to serve later"
                ));
                return None;
            }
            reply => reply.ok()?,
        };
        let result = decode::<DataResult<'_>>(reply.body()).ok()?;
        Some(result.map(drop))
    }

    pub(super) fn is_silent(&self, server: u32) -> bool {
        let silence = self.config.shard.server_silence;
        let servers = self.data_servers.servers.borrow();
        servers.get(&server).is_none_or(|server| self.world.now().since(server.heard) >= silence)
    }

    pub(super) fn start_fence(self: &Rc<Self>, session: u64, epoch: u32) {
        let server = self.clone();
        self.task(async move { server.fence(session, epoch).await });
    }

    async fn fence(self: Rc<Self>, session: u64, epoch: u32) {
        let (mut asked, mut forgotten) = (BTreeSet::new(), Vec::new());
        self.tell_end(session);
        if let Some(shard) = self.shard() {
            // Those that were removed are asked nothing.
            let is_member = |id: &u32| shard.pools.member(*id).is_some();
            self.data_servers.servers.borrow_mut().retain(|id, _| is_member(id));
        }
        loop {
            let mut ids = Vec::new();
            for (id, server) in self.data_servers.servers.borrow_mut().iter_mut() {
                if asked.insert((*id, server.boot)) {
                    ids.push(*id);
                    forgotten.extend(server.owed.add(session, epoch).map(|it| (*id, it)));
                }
            }
            join_all(ids.into_iter().map(|id| self.fence_at(id, session, epoch))).await;
            if !self.wait_for_room().await {
                return;
            }
            // One may have joined meanwhile, also with another store under a number that was asked.
            let servers = self.data_servers.servers.borrow();
            if servers.iter().all(|(id, server)| asked.contains(&(*id, server.boot))) {
                break;
            }
        }
        let now = self.now();
        let silent = self.data_servers.that_owe(session);
        if let Some(mut shard) = self.shard() {
            shard.owe_fence(&silent, session, epoch);
            for (server, session) in forgotten {
                shard.handle_fence_paid(server, session);
            }
            shard.handle_fenced(session, now);
        }
        self.forget_session(session);
        self.drain();
    }

    /// Brings a fence to one server; gives up where that was silent, or could not keep it, for too long.
    async fn fence_at(&self, id: u32, session: u64, epoch: u32) {
        let until = self.world.now() + self.config.shard.server_silence;
        loop {
            match self.deliver(id, session, epoch).await {
                Some(Ok(())) => return,
                Some(Err(errno)) if self.world.now() >= until => {
                    return (self.config.log)(&format!(
                        "data server {id} cannot record that session {session} has ended: {errno}; \
                         other clients get the leases and locks of the session, and this server \
                         tells it again; see the log of the data server"
                    ));
                }
                _ if self.is_silent(id) => return,
                _ => self.world.sleep(FENCE_RETRY).await,
            }
        }
    }

    /// Sends a fence to a server and returns its answer.
    async fn deliver(&self, id: u32, session: u64, epoch: u32) -> Option<Result<(), Errno>> {
        let mut body = Vec::new();
        encode(&DataRequest::Fence { session, epoch }, &mut body);
        let answer = self.ask(id, &body, |messages| &mut messages.fences).await;
        if answer == Some(Ok(())) {
            let mut servers = self.data_servers.servers.borrow_mut();
            if let Some(server) = servers.get_mut(&id) {
                server.owed.fences.remove(&session);
            }
            drop(servers);
            if let Some(mut shard) = self.shard() {
                shard.handle_fence_paid(id, session);
            }
        }
        answer
    }

    /// A server was heard that has fences to get; whether it has all of them.
    pub(super) async fn deliver_owed(self: &Rc<Self>, id: u32) -> bool {
        let owed = {
            let servers = self.data_servers.servers.borrow();
            servers.get(&id).map_or_else(BTreeMap::new, |server| server.owed.fences.clone())
        };
        let owed: Vec<(u64, u32)> =
            owed.into_iter().map(|(session, (epoch, _))| (session, epoch)).collect();
        let mut all = true;
        for some in owed.chunks(FENCES_AT_ONCE) {
            let sent = some.iter().map(|(session, epoch)| self.deliver(id, *session, *epoch));
            // One that cannot keep them refuses the sessions nevertheless as long as it lives.
            all = join_all(sent).await.iter().all(Option::is_some);
            if !all {
                break;
            }
        }
        if let Some(server) = self.data_servers.servers.borrow_mut().get_mut(&id) {
            server.delivering = false;
        }
        all
    }

    pub(super) fn start_cut(self: &Rc<Self>, cut: Cut) {
        let cuts = &self.data_servers.cuts;
        cuts.set(cuts.get() + 1);
        let server = self.clone();
        self.task(async move { server.cut(cut).await });
    }

    async fn cut(self: Rc<Self>, cut: Cut) {
        let done = self.cut_everywhere(cut).await;
        if !done {
            self.world.sleep(CUT_RETRY).await;
        }
        if !self.wait_for_room().await {
            return;
        }
        let DataServers { cuts, cuts_told, .. } = &self.data_servers;
        cuts.set(cuts.get() - 1);
        if done {
            cuts_told.borrow_mut().retain(|(inode, ..)| *inode != cut.inode);
        }
        let now = self.now();
        if let Some(mut shard) = self.shard() {
            shard.handle_cut(cut, done, now);
        }
        self.drain();
    }

    async fn cut_everywhere(&self, cut: Cut) -> bool {
        let places = || {
            let shard = self.shard()?;
            let (pool, map) = (shard.pools.get(cut.layout.pool_version)?, shard.pools.map());
            Some((shard.position(), Asked::of(&cut.layout, pool, map)))
        };
        let Some((position, before)) = places() else { return false };
        let servers = &before.servers;
        if self.store.wait_durable(Position(position)).await.is_err() {
            return false;
        }
        let file = FileId { inode: cut.inode, generation: cut.generation, epoch: cut.epoch };
        let (stripe, offset) = (cut.stripe, cut.offset);
        // Too many: all of them.
        let few = before.groups.len() <= GROUPS_MAX;
        let groups = if few { before.groups.clone() } else { Vec::new() };
        let request = DataRequest::Truncate { file, stripe, offset, groups };
        let mut body = Vec::new();
        encode(&request, &mut body);
        let asked = servers.iter().map(|id| self.ask(*id, &body, |count| &mut count.cuts));
        let answers = join_all(asked).await;
        for (id, answer) in servers.iter().zip(&answers) {
            if let Some(Err(errno)) = answer {
                self.tell_of_cut(&cut, *id, *errno);
            }
        }
        // A group that has another member by now may have it from before the cut.
        answers.into_iter().all(|answer| answer == Some(Ok(())))
            && places().is_some_and(|(_, now)| now == before)
    }

    /// A data server that answers has already discarded damaged data. A cut that it refuses it will do when
    /// its device is well. Before that the cut bytes could come back, so the file waits, and people hear of
    /// it.
    fn tell_of_cut(&self, cut: &Cut, server: u32, errno: Errno) {
        let mut told = self.data_servers.cuts_told.borrow_mut();
        if told.len() >= CUTS_MAX {
            told.clear();
        }
        if told.insert((cut.inode, cut.epoch, server)) {
            let Cut { inode, .. } = cut;
            (self.config.log)(&format!(
                "inode {inode} is not truncated yet: data server {server} reports {errno}; the \
                 file waits until that succeeds; see the log of the data server"
            ));
        }
    }

    /// Collects the objects that deleted files left at data servers, some of them at a time.
    pub(super) async fn collect_garbage(self: Rc<Self>) {
        let mut postponed: Vec<(Time, Reap)> = Vec::new();
        loop {
            self.world.sleep(self.config.tick).await;
            let now = self.world.now();
            postponed.retain(|(until, reap)| {
                let due = *until <= now;
                if due && let Some(mut shard) = self.shard() {
                    shard.handle_reaped(*reap, false);
                }
                !due
            });
            loop {
                let reaps = self.next_reaps();
                if reaps.is_empty() || self.failure.borrow().is_some() {
                    break;
                }
                let failed = self.reap(&reaps).await;
                let until = self.world.now() + REAP_RETRY;
                postponed.extend(failed.into_iter().map(|reap| (until, reap)));
            }
        }
    }

    fn next_reaps(&self) -> Vec<Reap> {
        let Some(mut shard) = self.shard() else { return Vec::new() };
        let mut reaps = Vec::new();
        while reaps.len() < REAP_BATCH {
            match shard.poll_reap() {
                Ok(Some(reap)) => reaps.push(reap),
                Ok(None) => break,
                Err(error) => {
                    self.fail(&error);
                    return Vec::new();
                }
            }
        }
        reaps
    }

    /// Has objects removed; the reaps that have to be tried again.
    async fn reap(self: &Rc<Self>, reaps: &[Reap]) -> Vec<Reap> {
        let Some(position) = self.shard().map(|shard| shard.position()) else { return Vec::new() };
        if self.store.wait_durable(Position(position)).await.is_err() {
            return reaps.to_vec();
        }
        let (mut failed, mut by_server) = (BTreeSet::new(), BTreeMap::<u32, BTreeSet<Reap>>::new());
        for reap in reaps {
            match self.reapers(reap) {
                Some(servers) => {
                    for server in servers {
                        by_server.entry(server).or_default().insert(*reap);
                    }
                }
                None => drop(failed.insert(*reap)),
            }
        }
        let asked = by_server.iter().map(|(id, reaps)| async move {
            let inodes = reaps.iter().map(|reap| (reap.inode, reap.generation)).collect();
            let mut body = Vec::new();
            encode(&DataRequest::Reap { inodes }, &mut body);
            !self.is_silent(*id)
                && self.ask(*id, &body, |count| &mut count.reaps).await == Some(Ok(()))
        });
        let answers = join_all(asked).await;
        for (reaps, _) in by_server.values().zip(answers).filter(|(_, done)| !done) {
            failed.extend(reaps.iter().copied());
        }
        // A server that came into a group meanwhile may have got an object before the others removed it.
        let missed = |reap: &&Reap| {
            let asked = |server: &u32| by_server.get(server).is_some_and(|it| it.contains(*reap));
            self.reapers(reap).is_none_or(|all| !all.iter().all(asked))
        };
        failed.extend(reaps.iter().filter(missed).copied());
        for (number, reap) in reaps.iter().enumerate() {
            if failed.contains(reap) {
                continue;
            }
            if number.is_multiple_of(REAPS_PER_TURN) && !self.wait_for_room().await {
                break;
            }
            if let Some(mut shard) = self.shard() {
                shard.handle_reaped(*reap, true);
            }
        }
        self.drain();
        failed.into_iter().collect()
    }
}

impl MetaServer {
    /// The servers that may have objects of a removed file; None where its pool is not known.
    fn reapers(&self, reap: &Reap) -> Option<Vec<u32>> {
        let shard = self.shard()?;
        let (pool, map) = (shard.pools.get(reap.pool_version)?, shard.pools.map());
        let members = map.servers_of(pool);
        // A server that is down, and no member of anything, gets what it lacks when it comes back.
        let asked = |id: &u32| members.contains(id) || !self.is_silent(*id);
        Some(map.holders_of(pool).into_iter().filter(asked).collect())
    }
}

/// The line for people about a server with an invalid address. The error quotes from it.
fn no_address(name: &str, address: &[u8], error: &str) -> String {
    let address = printable(address, ADDRESS_BYTES_MAX);
    let error = printable(error.as_bytes(), 2 * ADDRESS_BYTES_MAX);
    format!("{name} says that its address is '{address}': {error}")
}

/// The servers whose word is needed that stripes of a file are cut: those tell newcomers.
#[derive(Debug, PartialEq, Eq)]
struct Asked {
    groups: Vec<Group>,
    servers: BTreeSet<u32>,
    /// The epoch of the last change of the file's groups.
    since: u32,
}

impl Asked {
    fn of(layout: &Layout, pool: &Pool, map: &Map) -> Asked {
        let Some(groups) = layout.groups(pool) else {
            let bands = match &pool.members {
                Members::Bands(bands) => &bands[..],
                Members::Servers(_) => &[],
            };
            let bands = bands.iter().filter_map(|band| map.band(*band));
            let servers = map.servers_of(pool).into_iter().collect();
            let since = bands.clone().map(Band::since).max().unwrap_or(0);
            let groups = bands.flat_map(Band::groups).map(|(group, _)| group).collect();
            return Asked { groups, servers, since };
        };
        let since = |group: &Group| map.membership(*group).map_or(0, |it| it.since);
        let servers = groups.iter().flat_map(|group| map.members(*group)).collect();
        let since = groups.iter().map(since).max().unwrap_or(0);
        Asked { groups, servers, since }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_that_is_none_steers_no_terminal() {
        let address = "no\u{1b}[2J\u{202e}scheme";
        let error = Address::parse(address).expect_err("it is none").to_string();
        let said = no_address("data server 3", address.as_bytes(), &error);
        assert!(said.contains("'no\\x1b[2J") && said.matches("\\u{202e}").count() >= 2, "{said}");
        assert!(!said.contains(|letter: char| letter.is_control() || letter == '\u{202e}'));
    }

    #[test]
    fn of_too_many_owed_fences_the_oldest_is_forgotten() {
        let mut owed = Owed::default();
        // The youngest sessions have the smallest numbers.
        let sessions = (0..=OWED_MAX as u64).rev();
        let forgotten: Vec<_> = sessions.filter_map(|session| owed.add(session, 1)).collect();
        assert_eq!(forgotten, [OWED_MAX as u64]);
        assert_eq!(owed.add(5, 2), None, "one that is there already takes no place");
        assert_eq!(owed.fences.len(), OWED_MAX);
    }
}
