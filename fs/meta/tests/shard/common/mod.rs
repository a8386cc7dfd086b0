//! The common parts of the shard's tests: clients that answer recalls, and the checks of all rows.

pub mod invariants;
pub mod reference;

use std::collections::BTreeMap;

use ropewalk_base::random::Random;
use ropewalk_base::time::Time;
use ropewalk_meta::sessions::SessionOwner;
use ropewalk_meta::{Call, Completed, Config, Moment, Outcome, Shard, VolatileRows};
use ropewalk_wire::fs::attributes::Attributes;
use ropewalk_wire::fs::meta::*;
use ropewalk_wire::fs::status::Room;
use ropewalk_wire::fs::value::{Bytes, Errno, Timestamp};
use ropewalk_wire::fs::{decode, encode};

pub const READ: Access = Access { read: true, write: false };
pub const WRITE: Access = Access { read: true, write: true };
pub const GIB: u64 = 1 << 30;

/// An encoded result, as it goes to a client.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer(pub Vec<u8>);

impl Answer {
    pub fn get(&self) -> MetaResult<'_> {
        decode(&self.0).expect("replies decode")
    }

    #[track_caller]
    pub fn ok(&self) -> MetaReply<'_> {
        self.get().expect("the request succeeds")
    }

    #[track_caller]
    pub fn errno(&self) -> Errno {
        self.get().expect_err("the request fails")
    }

    /// Attributes in whichever reply has them.
    #[track_caller]
    pub fn attributes(&self) -> Attributes {
        match self.ok() {
            MetaReply::Entry(entry) | MetaReply::Opened { entry, .. } => entry.attributes,
            MetaReply::Attributes { attributes, .. } | MetaReply::Removed { attributes, .. } => {
                attributes
            }
            other => panic!("no attributes in {other:?}"),
        }
    }

    #[track_caller]
    pub fn inode(&self) -> u64 {
        self.attributes().inode
    }

    pub fn grant(&self) -> Option<Grant> {
        match self.get() {
            Ok(MetaReply::Entry(entry) | MetaReply::Opened { entry, .. }) => entry.grant,
            Ok(MetaReply::Attributes { grant, .. } | MetaReply::Directory { grant, .. }) => grant,
            _ => None,
        }
    }
}

/// A client: its session, sequence numbers, and what it has open and holds.
#[derive(Debug, Clone, Default)]
pub struct Client {
    pub session: u64,
    pub sequences: BTreeMap<u16, u64>,
    pub open: BTreeMap<u64, Access>,
    pub grants: BTreeMap<u64, Grant>,
    /// Leaves recalls unanswered.
    pub silent: bool,
}

pub struct Cluster {
    pub shard: Option<Shard<VolatileRows>>,
    pub config: Config,
    pub clients: Vec<Client>,
    /// Nanoseconds.
    pub now: u64,
    pub completed: Vec<Completed>,
    /// Callbacks that clients got: client and callback.
    pub heard: Vec<(usize, Callback)>,
    /// Cuts stay undone.
    pub hold_cuts: bool,
    pub seed: u64,
}

impl Cluster {
    pub fn new(clients: usize, config: Config, seed: u64) -> Cluster {
        let mut cluster = Cluster {
            shard: None,
            config,
            clients: Vec::new(),
            now: 1_000_000_000,
            completed: Vec::new(),
            heard: Vec::new(),
            hold_cuts: false,
            seed,
        };
        cluster.start(VolatileRows::default());
        cluster.heartbeat();
        for client in 0..clients {
            let moment = cluster.moment();
            let opening =
                cluster.shard().open_session(client as u128 + 1, SessionOwner::default(), moment);
            let session = opening.expect("rows in memory do not fail").session;
            cluster.clients.push(Client { session, ..Client::default() });
        }
        cluster
    }

    pub fn shard(&mut self) -> &mut Shard<VolatileRows> {
        self.shard.as_mut().expect("the shard runs")
    }

    pub fn start(&mut self, rows: VolatileRows) {
        self.seed += 1;
        let random = Random::from_seed(self.seed);
        let shard = Shard::open(rows, self.config, random, self.moment());
        self.shard = Some(shard.expect("the rows make a shard"));
    }

    /// Kills the server and starts it from its rows; clients reclaim what they hold.
    pub fn restart(&mut self) {
        let rows = self.shard.take().expect("the shard runs").into_rows();
        self.start(rows);
        self.heartbeat();
        for client in 0..self.clients.len() {
            if !self.clients[client].silent {
                self.reclaim(client);
            }
        }
    }

    pub fn reclaim(&mut self, client: usize) {
        let mut inodes: Vec<u64> = self.clients[client].open.keys().copied().collect();
        inodes.extend(self.clients[client].grants.keys());
        inodes.sort_unstable();
        inodes.dedup();
        for inode in inodes {
            let open = self.clients[client].open.get(&inode).copied();
            let held = self.clients[client].grants.remove(&inode);
            let mode = held.map_or(LeaseMode::None, |grant| grant.mode);
            let answer = self.call(client, MetaRequest::Reclaim { inode, mode, open });
            if let Some(grant) = answer.grant() {
                assert_eq!(grant.mode, mode);
            }
        }
        self.call(client, MetaRequest::ReclaimDone).ok();
    }

    pub fn heartbeat(&mut self) {
        self.heartbeat_of(1);
    }

    /// A data server is heard, which joins if it did not.
    pub fn heartbeat_of(&mut self, server: u32) {
        let request = MetaRequest::Heartbeat(Heartbeat {
            server,
            boot: 1,
            era: 1,
            store: 6 + u128::from(server),
            history: 0,
            met: 0,
            known_by: 0,
            replace: false,
            admit: true,
            room: Room {
                total_bytes: 100 * GIB,
                free_bytes: 50 * GIB,
                available_bytes: 50 * GIB,
                file_system: 0,
            },
            address: Bytes(b"tcp://one"),
            domain: Bytes(b""),
        });
        let now = self.moment();
        let call = Call { session: 0, slot: 0, sequence: 0, request, now };
        assert!(matches!(self.shard().execute(call), Outcome::Reply(_)));
    }

    pub fn moment(&self) -> Moment {
        Moment {
            time: Time(self.now),
            calendar: Timestamp::from_unix_nanos(1_700_000_000_000_000_000 + self.now as i64),
        }
    }

    pub fn pass(&mut self, nanos: u64) {
        self.now += nanos;
    }

    /// Sends a call in a slot without waiting for its end.
    pub fn send(
        &mut self,
        client: usize,
        slot: u16,
        sequence: u64,
        request: MetaRequest<'_>,
    ) -> Outcome {
        let (session, now) = (self.clients[client].session, self.moment());
        self.shard().execute(Call { session, slot, sequence, request, now })
    }

    pub fn next_sequence(&mut self, client: usize, slot: u16) -> u64 {
        let sequence = self.clients[client].sequences.entry(slot).or_default();
        *sequence += 1;
        *sequence
    }

    /// A call from its beginning to its reply; recalls are answered meanwhile.
    #[track_caller]
    pub fn call(&mut self, client: usize, request: MetaRequest<'_>) -> Answer {
        let sequence = self.next_sequence(client, 0);
        let outcome = self.send(client, 0, sequence, request);
        let answer = self.wait(outcome);
        self.learn(client, &request, &answer);
        answer
    }

    #[track_caller]
    pub fn wait(&mut self, outcome: Outcome) -> Answer {
        match outcome {
            Outcome::Reply(reply) => Answer(reply.bytes),
            Outcome::Refused(status) => panic!("the call was refused: {status:?}"),
            Outcome::Denied(errno) => {
                let (result, mut bytes): (MetaResult<'_>, _) = (Err(errno), Vec::new());
                encode(&result, &mut bytes);
                Answer(bytes)
            }
            Outcome::Wait(ticket) => {
                self.pump();
                let at = self.completed.iter().position(|done| done.ticket == ticket);
                let done = self.completed.remove(at.expect("the call ends when all answered"));
                match done.outcome {
                    Outcome::Reply(reply) => Answer(reply.bytes),
                    other => panic!("a call that waited ended with {other:?}"),
                }
            }
        }
    }

    /// Answers everything that comes out of the shard until nothing does.
    pub fn pump(&mut self) {
        loop {
            let mut quiet = true;
            while let Some(done) = self.shard().poll_reply() {
                self.completed.push(done);
            }
            while let Some((session, callback)) = self.shard().poll_callback() {
                let client = self.clients.iter().position(|client| client.session == session);
                let Some(client) = client else { continue };
                self.heard.push((client, callback.clone()));
                if let Callback::Recall { inode, number, keep } = callback
                    && !self.clients[client].silent
                {
                    quiet = false;
                    self.answer_recall(client, inode, number, keep);
                }
                if let Callback::TellUnlocked { inode, number } = callback
                    && !self.clients[client].silent
                {
                    quiet = false;
                    let sequence = self.next_sequence(client, 62);
                    let told = MetaRequest::ToldUnlocked { inode, number };
                    self.send(client, 62, sequence, told);
                }
                if let Callback::Grown { inode, number, .. } = callback
                    && !self.clients[client].silent
                {
                    quiet = false;
                    let sequence = self.next_sequence(client, 62);
                    self.send(client, 62, sequence, MetaRequest::ToldGrown { inode, number });
                }
            }
            while let Some(cut) = self.shard().poll_cut().filter(|_| !self.hold_cuts) {
                quiet = false;
                let now = self.moment();
                self.shard().handle_cut(cut, true, now);
            }
            if quiet {
                break;
            }
        }
        while let Some(done) = self.shard().poll_reply() {
            self.completed.push(done);
        }
    }

    pub fn answer_recall(&mut self, client: usize, inode: u64, number: u64, keep: LeaseMode) {
        let open = self.clients[client].open.get(&inode).copied();
        let keep = if keep == LeaseMode::Shared && open.is_none() { LeaseMode::None } else { keep };
        let request = MetaRequest::Release { inode, number, keep, open };
        let sequence = self.next_sequence(client, 63);
        let outcome = self.send(client, 63, sequence, request);
        let Outcome::Reply(reply) = outcome else { panic!("a release never waits") };
        let answer = Answer(reply.bytes);
        self.clients[client].grants.remove(&inode);
        self.learn(client, &request, &answer);
    }

    /// Closes an inode; the lease stays.
    pub fn close(&mut self, client: usize, inode: u64) {
        let grant = self.clients[client].grants.get(&inode).copied();
        let number = grant.map_or(u64::MAX, |grant| grant.number);
        let keep = match grant.map(|grant| grant.mode) {
            Some(mode) if mode >= LeaseMode::Read => mode,
            _ => LeaseMode::None,
        };
        if keep == LeaseMode::None {
            self.clients[client].grants.remove(&inode);
        }
        self.clients[client].open.remove(&inode);
        self.call(client, MetaRequest::Release { inode, number, keep, open: None });
    }

    /// Notes the facts of a reply that a client remembers.
    fn learn(&mut self, client: usize, request: &MetaRequest<'_>, answer: &Answer) {
        let state = &mut self.clients[client];
        let access = match request {
            MetaRequest::Create { access, .. }
            | MetaRequest::Temporary { access, .. }
            | MetaRequest::Open { access, .. } => Some(*access),
            _ => None,
        };
        if let MetaRequest::Unlink { closed, .. }
        | MetaRequest::RemoveDirectory { closed, .. }
        | MetaRequest::Rename { closed, .. } = request
        {
            state.grants.remove(closed);
        }
        if let Ok(MetaReply::Directory { entries, grant, .. }) = answer.get() {
            if let (Some(grant), MetaRequest::ReadDirectory { inode, .. }) = (grant, request) {
                state.grants.insert(*inode, grant);
            }
            for entry in entries {
                if let Some(grant) = entry.grant {
                    state.grants.insert(entry.inode, grant);
                }
            }
            return;
        }
        if let Some(grant) = answer.grant() {
            state.grants.insert(answer.inode(), grant);
        }
        if let (Some(access), Ok(_)) = (access, answer.get()) {
            let open = state.open.entry(answer.inode()).or_default();
            open.read |= access.read;
            open.write |= access.write;
        }
    }

    pub fn attributes(&mut self, client: usize, inode: u64) -> Answer {
        self.call(client, MetaRequest::GetAttributes { inode })
    }

    #[track_caller]
    pub fn create(&mut self, client: usize, name: &[u8]) -> u64 {
        self.call(client, create(ROOT, name)).inode()
    }
}

/// A request that creates a file as root.
pub fn create(parent: u64, name: &[u8]) -> MetaRequest<'_> {
    MetaRequest::Create {
        who: Who::ROOT,
        parent,
        name: Bytes(name),
        mode: 0o644,
        access: WRITE,
        exclusive: true,
        truncate: false,
    }
}

pub fn make<'a>(parent: u64, name: &'a [u8], node: Node<'a>) -> MetaRequest<'a> {
    MetaRequest::Make { who: Who::ROOT, parent, name: Bytes(name), mode: 0o755, node }
}

pub fn unlink(parent: u64, name: &[u8]) -> MetaRequest<'_> {
    MetaRequest::Unlink { who: Who::ROOT, parent, name: Bytes(name), closed: 0 }
}

pub fn lookup(parent: u64, name: &[u8]) -> MetaRequest<'_> {
    MetaRequest::Lookup { who: Who::ROOT, parent, name: Bytes(name) }
}

pub fn open(inode: u64, access: Access) -> MetaRequest<'static> {
    MetaRequest::Open { who: Who::ROOT, inode, access, truncate: false, execute: false }
}

pub fn write(inode: u64, epoch: u32, offset: u64, data: &[u8]) -> MetaRequest<'_> {
    let data = Bytes(data);
    MetaRequest::WriteInline { inode, epoch, offset, data, append: false, kill_privileges: false }
}

pub fn resize(inode: u64, size: u64) -> MetaRequest<'static> {
    let change = AttributeChange { size: Some(size), ..AttributeChange::default() };
    MetaRequest::SetAttributes { who: Who::ROOT, inode, change }
}

pub fn report(epoch: u32, size: u64, written: &[u8]) -> Report<'_> {
    Report {
        epoch,
        size: Some(size),
        modified: None,
        accessed: None,
        written: Bytes(written),
        punched: Bytes(&[]),
    }
}

/// Runs of stripes as reports carry them.
pub fn runs(runs: &[(u32, u32)]) -> Vec<u8> {
    runs.iter()
        .flat_map(|(first, count)| [first.to_le_bytes(), count.to_le_bytes()])
        .flatten()
        .collect()
}

/// Encodes a request, to keep it beyond its borrows.
pub fn encoded(request: &MetaRequest<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    encode(request, &mut bytes);
    bytes
}
