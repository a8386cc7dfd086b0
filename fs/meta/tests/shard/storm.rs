//! Several sessions with several calls under way each, and recalls that are answered late and in any
//! order: no call waits for ever, and nobody caches what another was told had changed.

use std::collections::BTreeMap;

use crate::common::*;
use ropewalk_base::random::Random;
use ropewalk_meta::inode::Inode;
use ropewalk_meta::keys::{Table, key};
use ropewalk_meta::sessions::SessionOwner;
use ropewalk_meta::{Config, Outcome, Rows};
use ropewalk_wire::fs::decode;
use ropewalk_wire::fs::meta::*;
use ropewalk_wire::fs::value::Bytes;

const CLIENTS: usize = 4;
const SLOTS: u16 = 4;
const NAMES: [&[u8]; 4] = [b"a", b"b", b"c", b"d"];

struct Storm {
    cluster: Cluster,
    random: Random,
    /// Calls that wait: ticket to client, slot and request.
    under_way: BTreeMap<u64, (usize, u16, Vec<u8>)>,
    /// Recalls that are not answered yet.
    recalls: Vec<(usize, u64, u64, LeaseMode)>,
    /// Per client: versions of inodes that it caches under a lease, as the shard told it.
    caches: Vec<BTreeMap<u64, u64>>,
    directories: Vec<u64>,
    files: Vec<u64>,
    finished: usize,
}

impl Storm {
    fn new(seed: u64) -> Storm {
        let mut cluster = Cluster::new(CLIENTS, Config::default(), seed);
        let mut directories = vec![ROOT];
        for name in [&b"one"[..], b"two"] {
            directories.push(cluster.call(0, make(ROOT, name, Node::Directory)).inode());
        }
        cluster.clients[0].grants.clear();
        let session = cluster.clients[0].session;
        let now = cluster.moment();
        cluster.shard().close_session(session, now);
        let opening =
            cluster.shard().open_session(99, SessionOwner::default(), now).expect("rows in memory");
        cluster.clients[0] = Client { session: opening.session, ..Client::default() };
        Storm {
            cluster,
            random: Random::from_seed(seed),
            under_way: BTreeMap::new(),
            recalls: Vec::new(),
            caches: vec![BTreeMap::new(); CLIENTS],
            directories,
            files: Vec::new(),
            finished: 0,
        }
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.random.below(from.len() as u64) as usize]
    }

    fn request(&mut self) -> Vec<u8> {
        let directories = self.directories.clone();
        let (parent, new_parent) = (self.pick(&directories), self.pick(&directories));
        let (name, new_name) = (self.pick(&NAMES), self.pick(&NAMES));
        let files = self.files.clone();
        let file = if files.is_empty() { ROOT } else { self.pick(&files) };
        let change = AttributeChange { mode: Some(0o640), ..AttributeChange::default() };
        let size = AttributeChange { size: Some(self.random.below(9)), ..change };
        let (who, name, new_name) = (Who::ROOT, Bytes(name), Bytes(new_name));
        let create = MetaRequest::Create {
            who,
            parent,
            name,
            mode: 0o644,
            access: WRITE,
            exclusive: false,
            truncate: false,
        };
        encoded(&match self.random.below(12) {
            0 | 1 => create,
            2 => unlink(parent, name.0),
            3 => MetaRequest::Rename {
                who,
                parent,
                name,
                new_parent,
                new_name,
                mode: RenameMode::Replace,
                closed: 0,
            },
            4 => MetaRequest::GetAttributes { inode: parent },
            5 => MetaRequest::SetAttributes { who, inode: file, change },
            6 if file != ROOT => MetaRequest::SetAttributes { who, inode: file, change: size },
            7 => lookup(parent, name.0),
            8 => open(file, READ),
            9 if file != ROOT => open(file, WRITE),
            10 => MetaRequest::ReadDirectory {
                who,
                inode: parent,
                cookie: 0,
                bytes_max: 9000,
                attributes: true,
            },
            _ => MetaRequest::GetAttributes { inode: file },
        })
    }

    fn begin(&mut self) {
        let client = self.random.below(CLIENTS as u64) as usize;
        let slot = self.random.below(u64::from(SLOTS)) as u16;
        let busy = self.under_way.values().any(|call| (call.0, call.1) == (client, slot));
        if busy {
            return;
        }
        let bytes = self.request();
        let sequence = self.cluster.next_sequence(client, slot);
        let request = decode(&bytes).expect("encoded above");
        match self.cluster.send(client, slot, sequence, request) {
            Outcome::Reply(reply) => self.end(client, &bytes, Answer(reply.bytes)),
            Outcome::Wait(ticket) => drop(self.under_way.insert(ticket, (client, slot, bytes))),
            refused => panic!("{refused:?}"),
        }
    }

    /// A reply came: the client caches what it was granted, and forgets what it changed itself.
    fn end(&mut self, client: usize, request: &[u8], answer: Answer) {
        self.finished += 1;
        let request: MetaRequest<'_> = decode(request).expect("encoded before");
        let Ok(reply) = answer.get() else { return };
        let state = &mut self.cluster.clients[client];
        let cache = &mut self.caches[client];
        let mut learn = |attributes: ropewalk_wire::fs::attributes::Attributes,
                         grant: Option<Grant>| {
            match grant {
                Some(grant) if grant.mode >= LeaseMode::Read => {
                    cache.insert(attributes.inode, attributes.version)
                }
                _ => cache.remove(&attributes.inode),
            };
        };
        match reply {
            MetaReply::Opened { entry, created, .. } => {
                learn(entry.attributes, entry.grant);
                state.open.insert(entry.attributes.inode, WRITE);
                if created {
                    self.files.push(entry.attributes.inode);
                }
            }
            MetaReply::Entry(entry) => learn(entry.attributes, entry.grant),
            MetaReply::Attributes { attributes, grant } => learn(attributes, grant),
            MetaReply::Removed { attributes, .. } => learn(attributes, None),
            MetaReply::Directory { entries, .. } => {
                for entry in entries {
                    entry.attributes.into_iter().for_each(|found| learn(found, entry.grant));
                }
            }
            _ => {}
        }
        match request {
            MetaRequest::Create { parent, .. } | MetaRequest::Unlink { parent, .. } => {
                cache.remove(&parent);
            }
            // It moved a file, and the client does not know which.
            MetaRequest::Rename { .. } => cache.clear(),
            _ => {}
        }
    }

    fn collect(&mut self) {
        while let Some((session, callback)) = self.cluster.shard().poll_callback() {
            let client = self.cluster.clients.iter().position(|known| known.session == session);
            match (client, callback) {
                (Some(client), Callback::Recall { inode, number, keep }) => {
                    self.recalls.push((client, inode, number, keep));
                }
                (Some(client), Callback::Grown { inode, number, .. }) => {
                    let sequence = self.cluster.next_sequence(client, 62);
                    let told = MetaRequest::ToldGrown { inode, number };
                    self.cluster.send(client, 62, sequence, told);
                }
                _ => {}
            }
        }
        while let Some(done) = self.cluster.shard().poll_reply() {
            let (client, _, request) = self.under_way.remove(&done.ticket).expect("it waited");
            let Outcome::Reply(reply) = done.outcome else { panic!("{:?}", done.outcome) };
            self.end(client, &request, Answer(reply.bytes));
        }
    }

    fn answer_one(&mut self) {
        if !self.recalls.is_empty() {
            let at = self.random.below(self.recalls.len() as u64) as usize;
            let (client, inode, number, keep) = self.recalls.swap_remove(at);
            if self.random.chance(300_000) {
                self.cluster.clients[client].open.remove(&inode);
            }
            if keep < LeaseMode::Read {
                self.caches[client].remove(&inode);
            }
            self.cluster.answer_recall(client, inode, number, keep);
        }
    }

    /// A client that caches an inode has its present version.
    fn check(&mut self) {
        let shard = self.cluster.shard.as_ref().expect("the shard runs");
        for (client, cache) in self.caches.iter().enumerate() {
            let session = self.cluster.clients[client].session;
            for (inode, version) in cache {
                if shard.leases().mode(*inode, session) < LeaseMode::Read {
                    continue;
                }
                let row = shard.rows().get(&key(Table::Inode, &[*inode])).expect("memory");
                let found = row.map(|row| Inode::decode(*inode, &row).expect("decodes").version);
                assert_eq!(found, Some(*version), "client {client} caches inode {inode}");
            }
        }
        invariants::check(shard);
    }
}

#[test]
fn calls_under_way_end_and_caches_are_never_stale() {
    for seed in 0..300 {
        let mut storm = Storm::new(seed);
        let mut waited = 0;
        for _ in 0..400 {
            storm.cluster.pass(20_000_000);
            if storm.random.chance(600_000) {
                storm.begin();
            } else {
                storm.answer_one();
            }
            storm.collect();
            storm.check();
            waited += storm.under_way.len();
        }
        while !storm.recalls.is_empty() {
            storm.answer_one();
            storm.collect();
            storm.check();
        }
        assert_eq!(storm.cluster.shard().waiting(), 0, "seed {seed}: a call waits for ever");
        assert!(storm.under_way.is_empty());
        assert!(waited > 100 && storm.finished > 100, "seed {seed}: too little happened");
    }
}
