//! The metadata server under kill -9 and power cuts at arbitrary points, against a model.
//!
//! Two clients change directories of their own, look at each other's, and sometimes sync. The model
//! is the list of changes that each has made to its directory.
//! * The process of the server dies (or its disk stops first): clients go on where they were; every
//!   operation has the outcome that it has when it is done once, and the directory is as all of them
//!   left it.
//! * The power fails: the clients die, too. The next ones find the directory as it was after some
//!   number of operations, at least as many as a sync had covered.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::meta_cluster::client::{self, Client, create, make, rename, unlink};
use crate::meta_cluster::{LIMIT, META, Meta, config, data_server, endpoint};
use ropewalk_base::random::Random;
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_sim::{Cut, Kill, Node, Simulation, run_seeds, seeds};
use ropewalk_wire::fs::meta::*;
use ropewalk_wire::fs::value::{Bytes, Errno};

const CLIENTS: [&str; 2] = ["a", "b"];
const NAMES: u64 = 10;

/// A change that a client made to its directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Deed {
    Create(u64, u16),
    MakeDirectory(u64, u16),
    Remove(u64),
    Rename(u64, u64),
    Link(u64, u64),
    Mode(u64, u16),
    /// Another directory is looked at; nothing changes.
    Look,
}

/// A directory: the entry under each name, and its permission bits.
#[derive(Debug, Clone, Default)]
struct State {
    names: BTreeMap<u64, u64>,
    /// By number: permission bits, and whether it is a directory.
    objects: BTreeMap<u64, (u16, bool)>,
    count: u64,
}

impl State {
    fn add(&mut self, name: u64, mode: u16, directory: bool) {
        self.count += 1;
        self.names.insert(name, self.count);
        self.objects.insert(self.count, (mode, directory));
    }

    fn apply(&mut self, deed: Deed) {
        match deed {
            Deed::Create(name, mode) => self.add(name, mode, false),
            Deed::MakeDirectory(name, mode) => self.add(name, mode, true),
            Deed::Remove(name) => drop(self.names.remove(&name)),
            Deed::Rename(name, new) => {
                let object = self.names.remove(&name).expect("chosen among what is there");
                self.names.insert(new, object);
            }
            Deed::Link(name, new) => drop(self.names.insert(new, self.names[&name])),
            Deed::Mode(name, mode) => {
                let object = self.names[&name];
                self.objects.get_mut(&object).expect("a name has an object").0 = mode;
            }
            Deed::Look => {}
        }
    }

    fn is_directory(&self, name: u64) -> bool {
        self.objects[&self.names[&name]].1
    }

    /// Name, kind and permission bits, with names of one object grouped.
    fn listing(&self) -> BTreeMap<Vec<u8>, (u64, u16)> {
        let bits = |(mode, directory)| mode | if directory { client::DIRECTORY } else { 0 };
        let listed = self.names.iter();
        listed.map(|(name, object)| (text(*name), (*object, bits(self.objects[object])))).collect()
    }
}

fn text(name: u64) -> Vec<u8> {
    format!("name-{name}").into_bytes()
}

/// Whether two listings are equal up to the numbers of inodes.
fn same(a: &BTreeMap<Vec<u8>, (u64, u16)>, b: &BTreeMap<Vec<u8>, (u64, u16)>) -> bool {
    let mut pairs = BTreeSet::new();
    let alike = a.len() == b.len()
        && a.iter().zip(b).all(|((name, (one, mode)), (other, (two, bits)))| {
            pairs.insert((*one, *two));
            name == other && mode == bits
        });
    let distinct = |pick: fn(&(u64, u64)) -> u64| pairs.iter().map(pick).collect::<BTreeSet<_>>();
    alike
        && distinct(|pair| pair.0).len() == pairs.len()
        && distinct(|pair| pair.1).len() == pairs.len()
}

/// The known state of one client's directory, over the client's lives.
#[derive(Debug, Default)]
struct Model {
    /// The directory exists for sure.
    durable: bool,
    base: State,
    deeds: Vec<Deed>,
    /// So many deeds were acknowledged.
    acknowledged: usize,
    /// So many were covered by a sync.
    synced: usize,
    done: u64,
    checks: u64,
    stop: bool,
    stopped: bool,
}

impl Model {
    fn state(&self, deeds: usize) -> State {
        let mut state = self.base.clone();
        self.deeds[..deeds].iter().for_each(|deed| state.apply(*deed));
        state
    }

    fn acknowledge(&mut self) {
        self.acknowledged += 1;
        self.done += 1;
    }

    /// A new life sees this after a power cut: it must be the outcome of enough deeds.
    fn adopt(&mut self, seen: &BTreeMap<Vec<u8>, (u64, u16)>) {
        let fits = (self.synced..=self.deeds.len())
            .rev()
            .find(|deeds| same(&self.state(*deeds).listing(), seen));
        let Some(fits) = fits else {
            panic!("{seen:?} is no outcome of {self:?}, of which {} were synced", self.synced);
        };
        self.base = self.state(fits);
        self.deeds.clear();
        (self.acknowledged, self.synced) = (0, 0);
    }
}

type Models = Rc<[RefCell<Model>; 2]>;

fn choose(state: &State, random: &mut Random) -> Deed {
    let (name, other) = (random.below(NAMES), random.below(NAMES));
    let mode = random.below(512) as u16;
    let there = state.names.contains_key(&name);
    let free = !state.names.contains_key(&other);
    match (there, random.below(8)) {
        (false, 0..=2) => Deed::Create(name, mode),
        (false, 3) => Deed::MakeDirectory(name, mode),
        (true, 0..=1) => Deed::Remove(name),
        (true, 2..=4) if free => Deed::Rename(name, other),
        (true, 5) if free && !state.is_directory(name) => Deed::Link(name, other),
        (true, 6) => Deed::Mode(name, mode),
        _ => Deed::Look,
    }
}

/// One life of a client: takes over what is there, then works.
struct Worker {
    client: Rc<Client>,
    models: Models,
    me: usize,
    directory: u64,
    inodes: BTreeMap<u64, u64>,
    random: Random,
}

impl Worker {
    async fn run(node: Node, models: Models, me: usize) {
        let client = Client::start(&node, endpoint(&node)).await;
        let name = CLIENTS[me].as_bytes();
        let made = client.call(&make(ROOT, name, 0o755, client::Node_::Directory)).await;
        let directory = match made.get() {
            Ok(_) => {
                assert!(!models[me].borrow().durable, "a synced directory is gone");
                made.inode()
            }
            Err(errno) => {
                assert_eq!(errno, Errno::EEXIST);
                client.call(&client::lookup(ROOT, name)).await.inode()
            }
        };
        if !models[me].borrow().durable {
            client.call(&MetaRequest::Sync).await.ok();
            models[me].borrow_mut().durable = true;
        }
        let random = Random::from_seed(client.world.random_u64());
        let (seen, inodes) = (client.list(directory).await, BTreeMap::new());
        models[me].borrow_mut().adopt(&seen);
        let mut worker = Worker { client, models, me, directory, inodes, random };
        worker.note_inodes(&seen);
        worker.work().await;
    }

    fn note_inodes(&mut self, seen: &BTreeMap<Vec<u8>, (u64, u16)>) {
        let names = (0..NAMES).filter_map(|name| Some((name, seen.get(&text(name))?.0)));
        self.inodes = names.collect();
    }

    async fn work(&mut self) {
        loop {
            let stop = self.models[self.me].borrow().stop;
            if stop || self.random.below(12) == 0 {
                self.check().await;
            }
            if stop {
                break;
            }
            if self.random.below(10) == 0 {
                let acknowledged = self.models[self.me].borrow().acknowledged;
                self.client.call(&MetaRequest::Sync).await.ok();
                self.models[self.me].borrow_mut().synced = acknowledged;
            }
            let deed = {
                let mut model = self.models[self.me].borrow_mut();
                let deed = choose(&model.state(model.deeds.len()), &mut self.random);
                model.deeds.push(deed);
                deed
            };
            self.perform(deed).await;
            self.models[self.me].borrow_mut().acknowledge();
            if self.random.below(4) == 0 {
                let pause = Duration::from_micros(self.random.below(3000));
                self.client.world.sleep(pause).await;
            }
        }
        self.models[self.me].borrow_mut().stopped = true;
    }

    /// The directory is as all acknowledged deeds left it.
    async fn check(&mut self) {
        let seen = self.client.list(self.directory).await;
        let mut model = self.models[self.me].borrow_mut();
        let expected = model.state(model.deeds.len()).listing();
        assert!(same(&expected, &seen), "{}: {seen:?} is not {expected:?}", CLIENTS[self.me]);
        model.checks += 1;
    }

    async fn perform(&mut self, deed: Deed) {
        let (client, directory) = (self.client.clone(), self.directory);
        let state = {
            let model = self.models[self.me].borrow();
            model.state(model.deeds.len() - 1)
        };
        match deed {
            Deed::Create(name, mode) => {
                let created = client.call(&create(directory, &text(name), mode)).await;
                self.inodes.insert(name, created.inode());
                if self.random.below(3) > 0 {
                    client.close(created.inode()).await;
                }
            }
            Deed::MakeDirectory(name, mode) => {
                let node = client::Node_::Directory;
                let made = client.call(&make(directory, &text(name), mode, node)).await;
                self.inodes.insert(name, made.inode());
            }
            Deed::Remove(name) => {
                let name_text = text(name);
                let (who, parent, at) = (Who::ROOT, directory, Bytes(&name_text));
                let request = match state.is_directory(name) {
                    true => MetaRequest::RemoveDirectory { who, parent, name: at, closed: 0 },
                    false => unlink(directory, &name_text),
                };
                client.call(&request).await.ok();
                self.inodes.remove(&name);
            }
            Deed::Rename(name, new) => {
                client.call(&rename(directory, &text(name), &text(new))).await.ok();
                let inode = self.inodes.remove(&name).expect("a name has an inode");
                self.inodes.insert(new, inode);
            }
            Deed::Link(name, new) => {
                let (inode, new_text) = (self.inodes[&name], text(new));
                let (who, name) = (Who::ROOT, Bytes(&new_text));
                let link = MetaRequest::Link { who, inode, parent: directory, name };
                client.call(&link).await.ok();
                self.inodes.insert(new, inode);
            }
            Deed::Mode(name, mode) => {
                let change = AttributeChange { mode: Some(mode), ..AttributeChange::default() };
                let (who, inode) = (Who::ROOT, self.inodes[&name]);
                client.call(&MetaRequest::SetAttributes { who, inode, change }).await.ok();
            }
            Deed::Look => {
                let other = CLIENTS[1 - self.me].as_bytes();
                let found = client.call(&client::lookup(ROOT, other)).await;
                if let Ok(MetaReply::Entry(entry)) = found.get() {
                    client.list(entry.attributes.inode).await;
                }
            }
        }
    }
}

fn add_worker(simulation: &mut Simulation, models: &Models, me: usize) {
    let models = models.clone();
    simulation.add_node(CLIENTS[me], Arc::new(VirtualDisk::new(0)), move |node| {
        node.world().spawn(Worker::run(node.clone(), models.clone(), me));
    });
}

/// One of the things that end a server, and its next start.
fn misfortune(simulation: &mut Simulation, meta: &Meta, random: &mut Random) {
    simulation.run_steps(random.below(1500));
    let kind = random.below(6);
    if kind < 2 {
        // The disk stops in the middle of some call; the process goes on for a while.
        meta.disk.halt_after(1 + random.below(6));
        simulation.run_for(Duration::from_micros(random.below(20_000)));
    }
    if kind == 5 {
        simulation.network().cut(META, CLIENTS[random.below(2) as usize], Cut::Both);
        return;
    }
    let power = kind % 2 == 1;
    let kill = if power { Kill::Power } else { Kill::Process(Duration::from_micros(100)) };
    meta.kill(simulation, kill);
    if power {
        CLIENTS.iter().for_each(|name| simulation.kill(name, Kill::Power));
    }
    simulation.run_for(Duration::from_micros(random.below(500_000)));
    meta.restart(simulation);
    if power {
        CLIENTS.iter().for_each(|name| simulation.restart(name));
    }
    if random.below(4) == 0 {
        // Dies again while it starts.
        simulation.run_steps(random.below(60));
        meta.kill(simulation, Kill::Process(Duration::from_micros(100)));
        meta.restart(simulation);
    }
}

fn scenario(simulation: &mut Simulation, reply_before_written: bool) {
    let mut config = config();
    config.reply_before_written = reply_before_written;
    let meta = Meta::add(simulation, config);
    data_server::add(simulation, 1);
    let models = Models::default();
    (0..CLIENTS.len()).for_each(|me| add_worker(simulation, &models, me));
    let mut random = simulation.fork_random();
    let done = |models: &Models| models.iter().map(|model| model.borrow().done).sum::<u64>();
    for round in 0..5 {
        let goal = done(&models) + 40;
        assert!(simulation.run_until(LIMIT, |_| done(&models) >= goal), "stuck in round {round}");
        misfortune(simulation, &meta, &mut random);
    }
    for model in models.iter() {
        model.borrow_mut().stop = true;
    }
    let end = |model: &RefCell<Model>| model.borrow().stopped;
    assert!(simulation.run_until(LIMIT, |_| models.iter().all(end)), "no end");
    assert!(models.iter().all(|model| model.borrow().checks > 0));
    let server = meta.server();
    assert_eq!(server.failure(), None);
    let messages = server.messages_to_data_servers();
    assert_eq!((messages.cuts, messages.reaps), (0, 0), "no file has any objects");
}

#[test]
fn acknowledged_operations_survive_kills_and_synced_ones_power_cuts() {
    run_seeds(seeds(0, 100), |simulation| scenario(simulation, false));
}

#[test]
fn replies_that_do_not_wait_for_the_journal_are_found_out() {
    let found = (0..40).any(|seed| {
        let run = || scenario(&mut Simulation::new(seed), true);
        catch_unwind(AssertUnwindSafe(run)).is_err()
    });
    assert!(found, "the planted bug went unseen over 40 seeds");
}
