//! Each kind of request whose reply is lost: on a cut link, or with the server that executed it.
//! The client sends it again; it must get the first result, and there must be one effect.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use crate::meta_cluster::client::{self, Client, WRITE, create, lookup, make, rename, unlink};
use crate::meta_cluster::{LIMIT, META, Meta, config, data_server, endpoint};
use ropewalk_base::random::Random;
use ropewalk_sim::disk::VirtualDisk;
use ropewalk_sim::{Cut, Kill, Simulation, run_seeds};
use ropewalk_wire::fs::meta::*;
use ropewalk_wire::fs::value::{Bytes, Errno};

/// One client whose replies get lost.
struct Trial<'a> {
    simulation: &'a mut Simulation,
    meta: Meta,
    client: Rc<Client>,
    random: Random,
    /// Requests that were executed, or looked up, more than once.
    repeated: u64,
}

impl Trial<'_> {
    fn start(simulation: &mut Simulation) -> Trial<'_> {
        let meta = Meta::add(simulation, config());
        data_server::add(simulation, 1);
        let place: Rc<RefCell<Option<Rc<Client>>>> = Rc::default();
        let started = place.clone();
        simulation.add_node("a", Arc::new(VirtualDisk::new(0)), move |node| {
            let (endpoint, node, place) = (endpoint(node), node.clone(), place.clone());
            node.world().clone().spawn(async move {
                *place.borrow_mut() = Some(Client::start(&node, endpoint).await);
            });
        });
        assert!(simulation.run_until(LIMIT, |_| started.borrow().is_some()), "no session");
        let client = started.borrow().clone().expect("just seen");
        let random = simulation.fork_random();
        Trial { simulation, meta, client, random, repeated: 0 }
    }

    /// A call in peace.
    fn call(&mut self, request: MetaRequest<'static>) -> client::Result {
        let client = self.client.clone();
        let call = async move { client.call(&request).await };
        self.simulation.block_on("a", LIMIT, call).expect("the call ends")
    }

    fn calls(&self, kind: &str) -> u64 {
        if !self.meta.is_started() {
            return 0;
        }
        self.meta.server().calls().get(kind).copied().unwrap_or(0)
    }

    /// A call whose reply is lost, mostly, after the server has begun with it.
    fn disturbed(&mut self, kind: &str, request: MetaRequest<'static>) -> client::Result {
        let result = Rc::new(RefCell::new(None));
        let (client, place) = (self.client.clone(), result.clone());
        self.simulation.node("a").world().spawn(async move {
            let value = client.call(&request).await;
            *place.borrow_mut() = Some(value);
        });
        let (before, seen) = (self.calls(kind), Cell::new(false));
        let meta = self.meta.clone();
        self.simulation.run_until(LIMIT, |_| {
            let calls = meta.server().calls().get(kind).copied().unwrap_or(0);
            seen.set(calls > before);
            seen.get()
        });
        assert!(seen.get(), "{kind} never came");
        self.simulation.run_steps(self.random.below(12));
        self.fault();
        let done = self.simulation.run_until(LIMIT, |_| result.borrow().is_some());
        assert!(done, "{kind} has no end");
        self.meta.await_start(self.simulation);
        self.repeated += u64::from(self.calls(kind) != before + 1);
        // The client notices a restart and reclaims.
        self.simulation.run_for(Duration::from_secs(3));
        let result = result.borrow_mut().take();
        result.expect("just seen")
    }

    fn fault(&mut self) {
        match self.random.below(4) {
            0 => drop(self.simulation.network().cut(META, "a", Cut::Both)),
            1 => {
                let later = Cut::FirstThenOther(Duration::from_millis(30));
                self.simulation.network().cut("a", META, later);
            }
            kind => {
                if kind == 2 {
                    self.meta.disk.halt_after(1 + self.random.below(2));
                    self.simulation.run_for(Duration::from_millis(5));
                }
                self.meta.kill(self.simulation, Kill::Process(Duration::from_micros(50)));
                self.simulation.run_for(Duration::from_millis(20));
                self.meta.restart(self.simulation);
            }
        }
    }

    fn names(&mut self) -> Vec<String> {
        let client = self.client.clone();
        let list = async move { client.list(ROOT).await };
        let list = self.simulation.block_on("a", LIMIT, list).expect("a list");
        list.into_keys().map(|name| String::from_utf8(name).expect("our names")).collect()
    }

    fn size(&mut self, inode: u64) -> u64 {
        self.call(MetaRequest::GetAttributes { inode }).attributes().size
    }

    /// Requests that make, move and remove names.
    fn names_change_once(&mut self) {
        let created = self.disturbed("create", create(ROOT, b"f", 0o600));
        assert!(matches!(created.ok(), MetaReply::Opened { created: true, .. }), "{created:?}");
        let inode = created.inode();
        self.disturbed("make", make(ROOT, b"d", 0o700, client::Node_::Directory)).ok();
        let target = client::Node_::Symlink { target: Bytes(b"f") };
        self.disturbed("make", make(ROOT, b"s", 0o777, target)).ok();
        let (who, parent) = (Who::ROOT, ROOT);
        let link = MetaRequest::Link { who, inode, parent, name: Bytes(b"l") };
        assert_eq!(self.disturbed("link", link).attributes().link_count, 2);
        self.disturbed("rename", rename(ROOT, b"l", b"m")).ok();
        assert_eq!(self.names(), ["d", "f", "m", "s"]);
        let swap = MetaRequest::Rename {
            who,
            parent,
            name: Bytes(b"m"),
            new_parent: ROOT,
            new_name: Bytes(b"s"),
            mode: RenameMode::Exchange,
            closed: 0,
        };
        self.disturbed("rename", swap).ok();
        assert_eq!(self.call(lookup(ROOT, b"s")).inode(), inode, "swapped once");
        assert_eq!(self.disturbed("unlink", unlink(ROOT, b"s")).attributes().link_count, 1);
        let name = Bytes(b"d");
        let remove = MetaRequest::RemoveDirectory { who, parent, name, closed: 0 };
        self.disturbed("remove directory", remove).ok();
        assert_eq!(self.names(), ["f", "m"]);
        let temporary = MetaRequest::Temporary { who, parent, mode: 0o600, access: WRITE };
        let temporary = self.disturbed("temporary", temporary);
        assert_eq!(temporary.attributes().link_count, 0);
        assert_eq!(self.size(temporary.inode()), 0, "it is open");
    }

    /// Requests that change what an inode holds.
    fn inodes_change_once(&mut self) {
        let inode = self.call(lookup(ROOT, b"f")).inode();
        // The lease that the create granted is gone where the server died before it was told.
        self.call(MetaRequest::Acquire { inode, mode: LeaseMode::Write, insist: false }).ok();
        let epoch = self.client.epoch(inode);
        let write = MetaRequest::WriteInline {
            inode,
            epoch,
            offset: 0,
            data: Bytes(b"twelve bytes"),
            append: true,
            kill_privileges: false,
        };
        let written = self.disturbed("write inline", write);
        assert!(
            matches!(written.ok(), MetaReply::Written { offset, size, .. } if (offset, size) == (0, 12))
        );
        assert_eq!(self.size(inode), 12, "appended once");
        let reserve = MetaRequest::ReserveAppend { inode, epoch, len: 8 };
        let reserved = self.disturbed("reserve append", reserve);
        assert!(
            matches!(reserved.ok(), MetaReply::Written { offset, size, .. } if (offset, size) == (12, 20))
        );
        assert_eq!(self.size(inode), 20, "reserved once");
        let who = Who::ROOT;
        let change = AttributeChange { size: Some(30), mode: Some(0o644), ..Default::default() };
        let set = MetaRequest::SetAttributes { who, inode, change };
        assert_eq!(self.disturbed("set attributes", set).attributes().size, 30);
        let (name, value) = (Bytes(b"user.a"), Bytes(b"1"));
        let set = MetaRequest::SetXattr { who, inode, name, value, create: true, replace: false };
        self.disturbed("set xattr", set).ok();
        self.disturbed("remove xattr", MetaRequest::RemoveXattr { who, inode, name }).ok();
        let get = self.call(MetaRequest::GetXattr { who, inode, name });
        assert_eq!(get.get(), Err(Errno::ENODATA));
        let report = Report {
            epoch,
            size: Some(100),
            modified: None,
            accessed: None,
            written: Bytes(&[]),
            punched: Bytes(&[]),
        };
        let told = self.disturbed("report", MetaRequest::Report { inode, report });
        assert_eq!(told.attributes().size, 100);
        self.disturbed("renew epoch", MetaRequest::RenewEpoch { inode }).ok();
        let late = self.call(MetaRequest::Report { inode, report });
        assert_eq!(late.get(), Err(Errno::ESTALE), "it is of the former epoch");
        // Once: the next epoch is the next number.
        let report = Report { epoch: epoch + 1, ..report };
        self.call(MetaRequest::Report { inode, report }).ok();
        let version = self.call(MetaRequest::GetAttributes { inode }).attributes().version;
        let leave = MetaRequest::LeaveInline { inode, version, report };
        self.disturbed("leave inline", leave).ok();
        let again = self.call(leave);
        assert_eq!(again.get(), Err(Errno::ESTALE), "it left once, and under its old epoch");
        let open = MetaRequest::Open { who, inode, access: WRITE, truncate: true, execute: false };
        let opened = self.disturbed("open", open);
        let (size, generation) = (opened.attributes().size, opened.attributes().object_generation);
        assert!(size == 0 && generation > 0, "{size} bytes of generation {generation}");
        let now = self.call(MetaRequest::GetAttributes { inode }).attributes();
        assert_eq!((now.size, now.object_generation), (0, generation), "cut off once");
    }

    fn locks_change_once(&mut self) {
        let inode = self.call(lookup(ROOT, b"f")).inode();
        let range = |kind, owner| LockRange {
            kind,
            whole_file: false,
            owner,
            process: 7,
            start: 5,
            end: 9,
        };
        let held = range(LockKind::Exclusive, 1);
        let take = MetaRequest::SetLock { inode, range: held, wait: false };
        assert_eq!(self.disturbed("set lock", take).ok(), MetaReply::Done);
        let test = MetaRequest::TestLock { inode, range: range(LockKind::Shared, 2) };
        let conflict = Some(held);
        assert_eq!(self.disturbed("test lock", test).ok(), MetaReply::Lock { conflict });
        let release = MetaRequest::ReleaseOwner { inode, owner: 1, whole_file: false };
        self.disturbed("release owner", release).ok();
        assert_eq!(self.call(test).ok(), MetaReply::Lock { conflict: None });
        let number = u64::MAX;
        let (keep, open) = (LeaseMode::None, None);
        let release = MetaRequest::Release { inode, number, keep, open };
        self.disturbed("release", release).ok();
        let acquire = MetaRequest::Acquire { inode, mode: LeaseMode::Read, insist: false };
        self.disturbed("acquire", acquire).ok();
        self.disturbed("sync", MetaRequest::Sync).ok();
    }
}

#[test]
fn a_request_whose_reply_is_lost_has_its_first_result_and_one_effect() {
    let repeated = Cell::new(0);
    run_seeds(0..30, |simulation| {
        let mut trial = Trial::start(simulation);
        trial.names_change_once();
        trial.inodes_change_once();
        trial.locks_change_once();
        repeated.set(repeated.get() + trial.repeated);
    });
    assert!(repeated.get() > 100, "only {} replies were lost", repeated.get());
}
