//! Random operations of several sessions and users, against the reference tree: the same errors, the
//! same attributes, the same listings and contents, and sound rows after every step.

use std::collections::BTreeMap;

use crate::common::reference::{Kind, Node as Plain, Tree, User};
use crate::common::*;
use ropewalk_base::random::Random;
use ropewalk_meta::Config;
use ropewalk_wire::fs::attributes::InodeKind;
use ropewalk_wire::fs::meta::*;
use ropewalk_wire::fs::value::{Bytes, Errno, Timestamp};

const SEEDS: u64 = 320;
const STEPS: usize = 250;
const NAMES: [&[u8]; 7] = [b"a", b"b", b"c", b"dd", b"ee", b"f", b"a longer name"];
const XATTRS: [&[u8]; 5] =
    [b"user.one", b"user.two", b"trusted.t", b"security.capability", b"system.posix_acl_access"];

struct Run {
    random: Random,
    cluster: Cluster,
    tree: Tree,
    users: Vec<User>,
    /// Reference nodes to inodes. Nodes that are gone stay, to be asked for.
    inodes: BTreeMap<usize, u64>,
}

impl Run {
    fn new(seed: u64) -> Run {
        // Few hash bits, so that names collide; few links, so that EMLINK is met.
        // The reference destroys what nobody uses at once.
        let moment = std::time::Duration::ZERO;
        let config =
            Config { hash_bits: 2, links_max: 4, inode_range: 8, moment, ..Config::default() };
        let users = vec![
            User { uid: 0, gid: 0, groups: vec![] },
            User { uid: 10, gid: 20, groups: vec![30] },
            User { uid: 11, gid: 20, groups: vec![] },
            User { uid: 12, gid: 21, groups: vec![20, 31] },
        ];
        let random = Random::from_seed(seed);
        let mut cluster = Cluster::new(2 + (seed % 2) as usize, config, seed);
        let mut tree = Tree::new(cluster.now as i64, 4);
        // A world-writable root, so that users get anywhere.
        let change = AttributeChange { mode: Some(0o777), ..AttributeChange::default() };
        let request = MetaRequest::SetAttributes { who: Who::ROOT, inode: ROOT, change };
        cluster.call(0, request).ok();
        tree.chmod(1, &users[0], 0o777).expect("root may");
        Run { random, cluster, tree, users, inodes: BTreeMap::from([(1, ROOT)]) }
    }

    fn pick(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    /// A node, mostly one that is there.
    fn node(&mut self) -> usize {
        if self.random.chance(30_000) {
            return 1 + self.pick(self.tree.next - 1);
        }
        let at = self.pick(self.tree.nodes.len());
        *self.tree.nodes.keys().nth(at).expect("below the count")
    }

    /// A directory, mostly.
    fn dir(&mut self) -> usize {
        for _ in 0..8 {
            let node = self.node();
            if self.tree.nodes.get(&node).is_some_and(|node| node.kind == Kind::Dir) {
                return node;
            }
        }
        1
    }

    fn name(&mut self) -> &'static [u8] {
        const LONG: [u8; 256] = [b'x'; 256];
        match self.pick(60) {
            0 => &LONG,
            1 => &LONG[..255],
            2 => b"",
            other => NAMES[other % NAMES.len()],
        }
    }

    fn mode(&mut self) -> u16 {
        const MODES: [u16; 9] = [0o644, 0o600, 0o777, 0o755, 0o1777, 0o2775, 0o4755, 0o6711, 0o070];
        let at = self.pick(MODES.len());
        MODES[at]
    }

    fn compare(&mut self, what: &str, answer: &Answer, expected: Result<(), Errno>) {
        let found = answer.get().map(|_| ());
        assert_eq!(found, expected, "{what}");
    }

    /// Notes a node that was made on both sides.
    fn made(&mut self, what: &str, answer: &Answer, expected: Result<usize, Errno>) {
        self.compare(what, answer, expected.map(|_| ()));
        if let Ok(id) = expected {
            let before = self.inodes.insert(id, answer.inode());
            assert!(before.is_none_or(|before| before == answer.inode()), "{what}");
        }
    }

    fn step(&mut self) {
        self.cluster.pass(1_000_000);
        self.tree.now = self.cluster.now as i64;
        let client = self.pick(self.cluster.clients.len());
        let user = self.pick(4);
        let user = self.users[user].clone();
        let groups: Vec<u8> = user.groups.iter().flat_map(|group| group.to_le_bytes()).collect();
        let who =
            Who { user: user.uid, group: user.gid, groups: Bytes(&groups), judge: Judge::Server };
        match self.pick(100) {
            0..40 => self.step_names(client, &user, who),
            40..55 => self.step_removal(client, &user, who),
            55..68 => self.step_rename(client, &user, who),
            68..84 => self.step_attributes(client, &user, who),
            84..93 => self.step_content(client, &user, who),
            _ => self.step_xattr(client, &user, who),
        }
    }

    fn step_names(&mut self, client: usize, user: &User, who: Who<'_>) {
        let (dir, name, mode) = (self.dir(), self.name(), self.mode());
        let parent = self.inodes[&dir];
        match self.pick(7) {
            0 | 1 => {
                let (write, truncate) = (self.random.chance(700_000), self.random.chance(200_000));
                let exclusive = self.random.chance(300_000);
                let request = MetaRequest::Create {
                    who,
                    parent,
                    name: Bytes(name),
                    mode,
                    access: Access { read: true, write },
                    exclusive,
                    truncate,
                };
                let answer = self.cluster.call(client, request);
                let mode = u32::from(mode);
                let expected =
                    self.tree.create(client, dir, user, name, mode, write, exclusive, truncate);
                self.made("create", &answer, expected);
            }
            2 => {
                let access = WRITE;
                let request = MetaRequest::Temporary { who, parent, mode, access };
                let answer = self.cluster.call(client, request);
                let expected = self.tree.tmpfile(client, dir, user, mode.into());
                self.made("tmpfile", &answer, expected);
            }
            3 => {
                let node = self.node();
                let inode = self.inodes[&node];
                let request = MetaRequest::Link { who, inode, parent, name: Bytes(name) };
                let answer = self.cluster.call(client, request);
                let expected = self.tree.link(node, user, dir, name);
                self.compare("link", &answer, expected);
            }
            4 => {
                let request = MetaRequest::Lookup { who, parent, name: Bytes(name) };
                let answer = self.cluster.call(client, request);
                match (answer.get(), self.tree.lookup(dir, user, name)) {
                    (Ok(MetaReply::Missing { .. }), Err(Errno::ENOENT)) => {}
                    (Ok(MetaReply::Entry(entry)), Ok(id)) => {
                        assert_eq!(entry.attributes.inode, self.inodes[&id]);
                    }
                    (found, expected) => {
                        assert_eq!(found.map(|_| ()), expected.map(|_| ()), "lookup");
                    }
                }
            }
            _ => {
                let (kind, node) = match self.pick(8) {
                    0..5 => (Kind::Dir, Node::Directory),
                    5 => (Kind::Link, Node::Symlink { target: Bytes(b"else/where") }),
                    6 => (Kind::Fifo, Node::Fifo),
                    _ => (Kind::Device, Node::CharacterDevice(0x0103)),
                };
                let request = MetaRequest::Make { who, parent, name: Bytes(name), mode, node };
                let answer = self.cluster.call(client, request);
                let expected = self.tree.make(dir, user, name, kind, mode.into(), b"else/where");
                self.made("make", &answer, expected);
            }
        }
    }

    /// The inode behind a name if this client has it not open, as a client knows from its cache.
    fn closed(&self, client: usize, dir: usize, name: &[u8]) -> u64 {
        let node = self.tree.nodes.get(&dir).and_then(|node| node.entries.get(name));
        let Some(id) = node else { return 0 };
        if self.tree.nodes[id].users.contains(&client) { 0 } else { self.inodes[id] }
    }

    fn step_removal(&mut self, client: usize, user: &User, who: Who<'_>) {
        let (dir, name) = (self.dir(), self.name());
        let (parent, closed) = (self.inodes[&dir], self.closed(client, dir, name));
        match self.pick(4) {
            0 | 1 => {
                let request = MetaRequest::Unlink { who, parent, name: Bytes(name), closed };
                let answer = self.cluster.call(client, request);
                let expected = self.tree.unlink(dir, user, name);
                self.compare("unlink", &answer, expected);
            }
            2 => {
                let request =
                    MetaRequest::RemoveDirectory { who, parent, name: Bytes(name), closed };
                let answer = self.cluster.call(client, request);
                let expected = self.tree.rmdir(dir, user, name);
                self.compare("rmdir", &answer, expected);
            }
            _ => {
                let open: Vec<usize> = self
                    .tree
                    .nodes
                    .iter()
                    .filter(|(_, node)| node.users.contains(&client))
                    .map(|(id, _)| *id)
                    .collect();
                if !open.is_empty() {
                    let id = open[self.pick(open.len())];
                    // A file without names is of no use any more: its lease goes too.
                    if self.tree.nodes[&id].nlink == 0 {
                        self.cluster.clients[client].grants.remove(&self.inodes[&id]);
                    }
                    self.cluster.close(client, self.inodes[&id]);
                    self.tree.close(client, id);
                }
            }
        }
    }

    fn step_rename(&mut self, client: usize, user: &User, who: Who<'_>) {
        let (dir, name, new_dir, new_name) = (self.dir(), self.name(), self.dir(), self.name());
        let mode = match self.pick(4) {
            0 => RenameMode::NoReplace,
            1 => RenameMode::Exchange,
            _ => RenameMode::Replace,
        };
        let closed = self.closed(client, new_dir, new_name);
        let request = MetaRequest::Rename {
            who,
            parent: self.inodes[&dir],
            name: Bytes(name),
            new_parent: self.inodes[&new_dir],
            new_name: Bytes(new_name),
            mode,
            closed,
        };
        let answer = self.cluster.call(client, request);
        let expected = self.tree.rename(
            user,
            (dir, name),
            (new_dir, new_name),
            mode == RenameMode::NoReplace,
            mode == RenameMode::Exchange,
        );
        self.compare(&format!("rename {mode:?}"), &answer, expected);
    }

    fn step_attributes(&mut self, client: usize, user: &User, who: Who<'_>) {
        let node = self.node();
        let mut change = AttributeChange::default();
        let expected = match self.pick(5) {
            0 | 1 => {
                let mode = self.mode();
                change.mode = Some(mode);
                self.tree.chmod(node, user, mode.into())
            }
            2 => {
                change.user = [None, Some(10), Some(11)][self.pick(3)];
                change.group = [None, Some(20), Some(30)][self.pick(3)];
                self.tree.chown(node, user, change.user, change.group)
            }
            3 => {
                let size = self.pick(300);
                change.size = Some(size as u64);
                self.tree.truncate(node, user, size)
            }
            _ => {
                let at = self.random.chance(500_000).then(|| self.random.below(1 << 40) as i64);
                let time = at.map_or(TimeChange::Now, |at| TimeChange::At(stamp(at)));
                (change.accessed, change.modified) = (time, time);
                self.tree.utimens(node, user, at.map(|at| (at, at)))
            }
        };
        let expected = match expected {
            // A change of nothing is one all the same: the change time moves.
            Ok(()) => Ok(()),
            Err(errno) => Err(errno),
        };
        let inode = self.inodes[&node];
        let answer = self.cluster.call(client, MetaRequest::SetAttributes { who, inode, change });
        self.compare(&format!("{change:?}"), &answer, expected);
    }

    fn step_content(&mut self, client: usize, user: &User, who: Who<'_>) {
        let node = self.node();
        let inode = self.inodes[&node];
        let is_file = self.tree.nodes.get(&node).is_some_and(|node| node.kind == Kind::File);
        match self.pick(3) {
            0 => {
                let (write, truncate) = (self.random.chance(500_000), self.random.chance(200_000));
                let access = Access { read: true, write };
                let answer = self.cluster.call(
                    client,
                    MetaRequest::Open { who, inode, access, truncate, execute: false },
                );
                let expected = self.tree.open(client, node, user, write, truncate);
                self.compare("open", &answer, expected);
            }
            _ if is_file => {
                let request =
                    MetaRequest::Acquire { inode, mode: LeaseMode::Shared, insist: false };
                let epoch = self.cluster.call(client, request).grant().expect("granted").epoch;
                let data: Vec<u8> = (0..1 + self.pick(100)).map(|at| at as u8 ^ 0x5a).collect();
                let append = self.random.chance(400_000);
                let offset = self.pick(300);
                let request = MetaRequest::WriteInline {
                    inode,
                    epoch,
                    offset: offset as u64,
                    data: Bytes(&data),
                    append,
                    kill_privileges: false,
                };
                let answer = self.cluster.call(client, request);
                let expected = self.tree.write(node, (!append).then_some(offset), &data);
                self.compare("write", &answer, expected);
                if !self.cluster.clients[client].open.contains_key(&inode) {
                    self.cluster.close(client, inode);
                }
            }
            _ => {}
        }
    }

    fn step_xattr(&mut self, client: usize, user: &User, who: Who<'_>) {
        let (node, name) = (self.node(), XATTRS[self.pick(XATTRS.len())]);
        let inode = self.inodes[&node];
        let (name, value) = (Bytes(name), Bytes(&b"a value"[..self.random.below(8) as usize]));
        match self.pick(4) {
            0 | 1 => {
                let (create, replace) = (false, false);
                let request = MetaRequest::SetXattr { who, inode, name, value, create, replace };
                let answer = self.cluster.call(client, request);
                let expected = self.tree.set_xattr(node, user, name.0, value.0);
                self.compare("setxattr", &answer, expected);
            }
            2 => {
                let answer = self.cluster.call(client, MetaRequest::GetXattr { who, inode, name });
                match (answer.get(), self.tree.get_xattr(node, user, name.0)) {
                    (Ok(MetaReply::Content { bytes }), Ok(value)) => assert_eq!(bytes.0, value),
                    (found, expected) => {
                        assert_eq!(found.map(|_| ()), expected.map(|_| ()), "getxattr");
                    }
                }
            }
            _ => {
                let request = MetaRequest::RemoveXattr { who, inode, name };
                let answer = self.cluster.call(client, request);
                let expected = self.tree.remove_xattr(node, user, name.0);
                self.compare("removexattr", &answer, expected);
            }
        }
    }

    /// Every node as both sides show it.
    fn compare_all(&mut self) {
        let ids: Vec<(usize, u64)> = self.inodes.iter().map(|(id, inode)| (*id, *inode)).collect();
        for (id, inode) in ids {
            let client = self.pick(self.cluster.clients.len());
            let answer = self.cluster.attributes(client, inode);
            let Some(node) = self.tree.nodes.get(&id).cloned() else {
                assert_eq!(answer.errno(), Errno::ESTALE, "a node that is gone");
                continue;
            };
            compare_attributes(&answer, &node);
            let root = self.users[0].clone();
            match node.kind {
                Kind::Dir if node.nlink == 0 => {
                    let (who, bytes_max) = (Who::ROOT, 900);
                    let request = MetaRequest::ReadDirectory {
                        who,
                        inode,
                        cookie: 0,
                        bytes_max,
                        attributes: true,
                    };
                    let answer = self.cluster.call(client, request);
                    assert_eq!(answer.errno(), Errno::ENOENT, "it was removed");
                }
                Kind::Dir => {
                    let expected = self.tree.list(id, &root).expect("root lists");
                    let listed = self.list(client, inode);
                    let expected: BTreeMap<Vec<u8>, u64> =
                        expected.into_iter().map(|(name, id)| (name, self.inodes[&id])).collect();
                    assert_eq!(listed, expected);
                }
                Kind::File => {
                    let answer = self.cluster.call(client, MetaRequest::ReadInline { inode });
                    let MetaReply::Inline { bytes, .. } = answer.ok() else { panic!("no content") };
                    let mut bytes = bytes.0.to_vec();
                    bytes.resize(node.data.len(), 0);
                    assert_eq!(bytes, node.data);
                }
                Kind::Link => {
                    let answer = self.cluster.call(client, MetaRequest::ReadLink { inode });
                    assert_eq!(answer.ok(), MetaReply::Content { bytes: Bytes(&node.data) });
                }
                Kind::Fifo | Kind::Device => {}
            }
            let answer =
                self.cluster.call(client, MetaRequest::ListXattr { who: Who::ROOT, inode });
            let names: Vec<u8> =
                node.xattrs.keys().flat_map(|name| name.iter().copied().chain([0])).collect();
            assert_eq!(answer.ok(), MetaReply::Content { bytes: Bytes(&names) });
        }
    }

    fn list(&mut self, client: usize, inode: u64) -> BTreeMap<Vec<u8>, u64> {
        let (mut listed, mut cookie) = (BTreeMap::new(), 0);
        loop {
            let attributes = self.random.chance(500_000);
            let request = MetaRequest::ReadDirectory {
                who: Who::ROOT,
                inode,
                cookie,
                bytes_max: 900,
                attributes,
            };
            let answer = self.cluster.call(client, request);
            let MetaReply::Directory { entries, end, .. } = answer.ok() else { panic!("no list") };
            for entry in entries {
                assert!(entry.cookie > cookie, "cookies grow");
                cookie = entry.cookie;
                assert!(listed.insert(entry.name.0.to_vec(), entry.inode).is_none());
            }
            if end {
                return listed;
            }
        }
    }
}

fn stamp(nanos: i64) -> Timestamp {
    Timestamp::from_unix_nanos(1_700_000_000_000_000_000 + nanos)
}

fn compare_attributes(answer: &Answer, node: &Plain) {
    let found = answer.attributes();
    let kind = match node.kind {
        Kind::File => InodeKind::File,
        Kind::Dir => InodeKind::Directory,
        Kind::Link => InodeKind::Symlink,
        Kind::Fifo => InodeKind::Fifo,
        Kind::Device => InodeKind::CharacterDevice,
    };
    let size = if node.kind == Kind::Dir { node.entries.len() } else { node.data.len() };
    assert_eq!(found.kind, kind);
    assert_eq!(u32::from(found.mode), node.mode, "{node:?}");
    assert_eq!((found.user, found.group), (node.uid, node.gid), "{node:?}");
    assert_eq!(found.link_count, node.nlink, "{node:?}");
    assert_eq!(found.size, size as u64, "{node:?}");
    assert_eq!(found.accessed, stamp(node.atime), "{node:?}");
    assert_eq!(found.modified, stamp(node.mtime), "{node:?}");
    assert_eq!(found.changed, stamp(node.ctime), "{node:?}");
}

fn run(seed: u64, restarts: bool) {
    let mut run = Run::new(seed);
    for step in 0..STEPS {
        run.step();
        if restarts && run.random.chance(40_000) {
            run.cluster.restart();
        }
        invariants::check(run.cluster.shard.as_ref().expect("the shard runs"));
        if step % 50 == 49 {
            run.compare_all();
        }
    }
}

#[test]
fn random_operations_agree_with_the_reference() {
    for seed in 0..SEEDS {
        println!("seed {seed}");
        run(seed, false);
    }
}

#[test]
fn random_operations_agree_across_restarts() {
    for seed in 1000..1000 + SEEDS / 4 {
        println!("seed {seed}");
        run(seed, true);
    }
}
