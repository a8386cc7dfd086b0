//! Groups of several members: the first one orders the writes, the others do what it has done.
//!
//! The rules are in docs/design/116-mirrored-groups.md. [`order`] has the side of the orderer, [`copies`] that of the
//! others, [`members`] the reads that they serve, [`level`] makes objects equal, [`mend`] and [`scrub`] heal damaged blocks, and [`settle`] uses that for a group that this server begins to order, and
//! for its newcomers.

mod blocks;
mod copies;
mod leave;
mod level;
mod locks;
mod members;
mod mend;
mod order;
mod peers;
mod place;
mod scrub;
mod settle;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use ropewalk_base::task::Notify;
use ropewalk_base::world::World;
use ropewalk_net::local::LocalEndpoint;
use ropewalk_rpc::slots::SlotTable;
use ropewalk_store::objects::ObjectId;
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::head::CallHead;

use crate::bulk::Transfers;
use crate::config::Defect;
use locks::Locks;
use peers::Peer;

use locks::Blocks;

pub(crate) use blocks::BY;
pub(crate) use copies::is_among_servers;
pub(crate) use order::Held;

/// Memory for copies that come in, and for objects that are made equal: apart from that of clients' transfers, and from
/// each other, since each may wait for the next one at another server.
const TRANSFER_BYTES: usize = 8 << 20;

/// This server's part in groups of several members.
pub(crate) struct Mirror {
    pub locks: Locks,
    /// Files that are being cut.
    cuts: Locks,
    incoming: Transfers,
    outgoing: Transfers,
    peers: RefCell<BTreeMap<u32, Peer>>,
    /// The newest version that each server spoke when it last called.
    callers: RefCell<BTreeMap<u32, u16>>,
    senders: RefCell<BTreeMap<u32, Sender>>,
    /// Of groups that this server orders.
    numbers: RefCell<BTreeMap<Group, Numbers>>,
    /// Of groups that others order.
    open: RefCell<BTreeMap<Group, Open>>,
    /// Calls without an answer, also those that nobody waits for any more.
    outstanding: RefCell<BTreeMap<(Group, u32), usize>>,
    /// The changes that are known to be everywhere: by member, each with the epoch of the group's last change.
    told: RefCell<BTreeMap<(Group, u32), (u32, u64)>>,
    /// Servers that are being told.
    telling: RefCell<BTreeSet<u32>>,
    /// Changes are everywhere of which members do not know it, or this server orders other groups.
    pub ended: Notify,
    /// Objects that are being mended since they could not be read at a member, or were just now.
    unreadable: RefCell<BTreeSet<ObjectId>>,
    /// The newcomers that are being brought into step.
    passes: RefCell<BTreeMap<(Group, u32), Pass>>,
    /// The map, a pass or the number of outstanding calls is another.
    pub changed: Notify,
    /// Bytes a second that newcomers are sent at most; 0: no limit.
    pub pace: Cell<u64>,
    pub(crate) defect: Option<Defect>,
}

/// The numbers of a group's changes.
#[derive(Debug, Default)]
struct Numbers {
    last: u64,
    under_way: BTreeSet<u64>,
}

/// A server whose changes come in.
#[derive(Debug, Default)]
struct Sender {
    /// Of its newest life; older ones are refused.
    session: u64,
    /// Lives of stores that the number had before, the latest ones.
    retired: Vec<u64>,
    /// The metadata server is being asked for its life.
    asked: bool,
    slots: SlotTable,
}

/// Changes of a group that were done here, and perhaps not everywhere.
#[derive(Debug, Default)]
struct Open {
    sender: (u32, u64),
    /// Of the sender, by number.
    changes: BTreeMap<u64, Vec<Blocks>>,
    /// Of former senders, until the present one has settled the group.
    inherited: Vec<Blocks>,
}

/// A newcomer hears of each change.
#[derive(Debug, Default)]
struct Pass {
    /// It missed one.
    broken: bool,
    /// The metadata server is asked to take it in: it counts as a member.
    entering: bool,
}

impl Mirror {
    pub(crate) fn new(world: &World, endpoint: &LocalEndpoint, defect: Option<Defect>) -> Mirror {
        Mirror {
            locks: Locks::default(),
            cuts: Locks::default(),
            incoming: Transfers::new(world, endpoint, TRANSFER_BYTES),
            outgoing: Transfers::new(world, endpoint, TRANSFER_BYTES),
            peers: RefCell::default(),
            callers: RefCell::default(),
            senders: RefCell::default(),
            numbers: RefCell::default(),
            open: RefCell::default(),
            outstanding: RefCell::default(),
            told: RefCell::default(),
            telling: RefCell::default(),
            ended: Notify::new(),
            unreadable: RefCell::default(),
            passes: RefCell::default(),
            changed: Notify::new(),
            pace: Cell::new(0),
            defect,
        }
    }

    /// The number of a change that begins.
    fn begin(&self, group: Group) -> u64 {
        let mut numbers = self.numbers.borrow_mut();
        let numbers = numbers.entry(group).or_default();
        numbers.last += 1;
        numbers.under_way.insert(numbers.last);
        numbers.last
    }

    /// All members have a change.
    fn end(&self, group: Group, number: u64) {
        if let Some(numbers) = self.numbers.borrow_mut().get_mut(&group) {
            numbers.under_way.remove(&number);
        }
        self.ended.notify_all();
    }

    /// The number below which all changes of a group are at all members.
    fn done(&self, group: Group) -> u64 {
        let numbers = self.numbers.borrow();
        let numbers = numbers.get(&group);
        numbers.map_or(1, |it| it.under_way.first().copied().unwrap_or(it.last + 1))
    }

    /// Keeps the reply to a server's call, which may come again.
    pub(crate) fn keep_reply(&self, sender: u32, head: &CallHead, body: &[u8]) {
        let mut senders = self.senders.borrow_mut();
        let sender = senders.get_mut(&sender).filter(|sender| sender.session == head.session);
        if let Some(sender) = sender {
            sender.slots.store(head.session, head.slot, head.sequence, body);
        }
    }

    /// A newcomer missed a change: this pass does not bring it into step.
    fn break_pass(&self, group: Group, server: u32) {
        if let Some(pass) = self.passes.borrow_mut().get_mut(&(group, server)) {
            pass.broken = true;
        }
        self.changed.notify_all();
    }

    /// Forgets what belongs to groups that this server does not order any more.
    pub(crate) fn leave(&self, orders: impl Fn(Group) -> bool) {
        // Numbers go on: members may still have changes of an earlier time under theirs.
        for (_, numbers) in self.numbers.borrow_mut().iter_mut().filter(|(it, _)| !orders(**it)) {
            numbers.under_way.clear();
        }
        self.told.borrow_mut().retain(|(group, _), _| orders(*group));
        self.passes.borrow_mut().retain(|(group, _), _| orders(*group));
        self.changed.notify_all();
        self.ended.notify_all();
    }
}
