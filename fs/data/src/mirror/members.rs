//! Members that do not order a group: the reads that they serve, and the news between them and the orderer.
//!
//! Invariants:
//! * such a member gives bytes of which all members have what it has: no change of them is open here;
//! * an orderer that has settled a group tells its members which changes are everywhere, at most ten times a second, and
//!   only where they do not know yet.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::time::Time;
use ropewalk_rpc::Terms;
use ropewalk_store::objects::{GroupTag, ObjectId};
use ropewalk_wire::fs::data::{
    BLOCK_BYTES, DataReply, DataRequest, DataResult, End, FileId, GROUPS_MAX, ObjectName,
    READS_VERSION,
};
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::head::Service;
use ropewalk_wire::fs::{decode, encode};

use super::blocks::Target;
use super::locks::{Blocks, meet};
use super::peers::Sent;
use super::{Mirror, Open};
use crate::config::Defect;
use crate::failure::Failure;
use crate::groups::ELSEWHERE;
use crate::plan::Part;
use crate::read::Read;
use crate::server::{Call, Inner};
use crate::write::object;

/// The pause between two rounds of news of changes that are everywhere.
const NEWS_PAUSE: Duration = Duration::from_millis(100);
/// An orderer is told of damage within this time, or with the next read.
const TELL_LIMIT: Duration = Duration::from_secs(1);
/// The same object is mended once in so long.
const MEND_PAUSE: Duration = Duration::from_secs(5);
/// Objects that are mended at the same time, or were just now.
const MENDS_MAX: usize = 64;
/// An orderer is told of a write epoch within this time, or the reader goes there.
const SEEN_LIMIT: Duration = Duration::from_millis(100);

impl Open {
    /// Whether one of the changes touches these blocks.
    fn has(&self, blocks: &Blocks) -> bool {
        let (object, range) = blocks;
        let mut all = self.changes.values().flatten().chain(&self.inherited);
        all.any(|(other, changed)| other == object && meet(range, changed))
    }

    /// The sender of changes is this one, which says that all of smaller numbers are everywhere. 0: it has not settled the group.
    pub(super) fn hear(&mut self, sender: (u32, u64), done: u64) {
        if self.sender != sender {
            self.sender = sender;
            self.inherited.extend(std::mem::take(&mut self.changes).into_values().flatten());
        }
        if done > 0 {
            // It made equal what its predecessors left open.
            self.inherited.clear();
            self.changes = self.changes.split_off(&done);
        }
    }
}

impl Mirror {
    /// Whether to have an object mended that cannot be read at a member: not, if that is under way, or was just now, or too many are.
    fn begin_mend(&self, object: ObjectId) -> bool {
        let mut unreadable = self.unreadable.borrow_mut();
        unreadable.len() < MENDS_MAX && unreadable.insert(object)
    }

    fn is_open(&self, group: Group, blocks: &Blocks) -> bool {
        let open = self.open.borrow();
        self.defect != Some(Defect::OpenReads) && open.get(&group).is_some_and(|it| it.has(blocks))
    }
}

impl Inner {
    /// Whether a part of a read may be served from here: asked right before it is read, with nothing in between.
    pub(crate) fn check_open(
        &self,
        file: FileId,
        group: Group,
        part: &Part,
    ) -> Result<(), Failure> {
        let end = (u64::from(part.offset) + u64::from(part.len)).div_ceil(u64::from(BLOCK_BYTES));
        let blocks = (object(file, part.stripe), part.offset / BLOCK_BYTES..end as u32);
        let open = self.mirror.is_open(group, &blocks) && self.groups.borrow().follows(group);
        if open { Err(ELSEWHERE) } else { Ok(()) }
    }

    /// Makes sure that the orderers of ranges know the write epoch in which they are read: they refuse late changes of older ones.
    /// Limited sessions may invent epochs.
    pub(crate) async fn check_epoch(&self, call: &Call, read: &Read) -> Result<(), Failure> {
        let unknown: BTreeMap<u32, Group> = {
            let (groups, epochs) = (self.groups.borrow(), self.epochs.borrow());
            let groups =
                read.plan.pieces.iter().map(|it| it.group).filter(|it| groups.follows(*it));
            let orderers = groups.filter_map(|it| Some((self.groups.borrow().orderer(it)?, it)));
            // An orderer of a former version does not wait for the leases of members that leave (rule 20).
            let knows = |orderer| {
                epochs.is_elsewhere(orderer, read.file) && self.speaks(orderer, READS_VERSION)
            };
            orderers.filter(|(orderer, _)| !knows(*orderer)).collect()
        };
        if unknown.keys().any(|orderer| self.is_former(*orderer, READS_VERSION)) {
            return Err(ELSEWHERE);
        }
        if call.limited {
            let speak = unknown.keys().all(|orderer| self.speaks(*orderer, READS_VERSION));
            return if speak { Ok(()) } else { Err(ELSEWHERE) };
        }
        for (orderer, group) in unknown {
            let request = DataRequest::Seen { file: read.file, group };
            if !self.tell_orderer(orderer, &request, SEEN_LIMIT).await {
                return Err(ELSEWHERE);
            }
            self.epochs.borrow_mut().note_elsewhere(orderer, read.file);
        }
        Ok(())
    }

    /// Tells the orderer of a group that an object cannot be read here.
    pub(crate) fn tell_of_unreadable(&self, group: Group, object: ObjectId) {
        let Some(orderer) = self.groups.borrow().orderer(group) else { return };
        let speaks = self.speaks(orderer, READS_VERSION);
        if !speaks || !self.is_of(group, object) || !self.mirror.begin_mend(object) {
            return;
        }
        let inner = self.this();
        self.world.spawn(async move {
            let ObjectId { inode, generation, stripe } = object;
            let name = ObjectName { inode, generation, stripe };
            let request = DataRequest::Unreadable { object: name, group };
            inner.tell_orderer(orderer, &request, TELL_LIMIT).await;
            // It may take a while; more reads meanwhile are no news.
            inner.world.sleep(MEND_PAUSE).await;
            inner.mirror.unreadable.borrow_mut().remove(&object);
        });
    }

    /// Whether an object that is here belongs to a group: callers may say anything.
    fn is_of(&self, group: Group, object: ObjectId) -> bool {
        let info = self.store.info(object).ok().flatten();
        info.is_some_and(|info| info.group == GroupTag::new(group.number()))
    }

    /// A member is asked for bytes of a file in this write epoch.
    fn take_seen(&self, group: Group, file: FileId) -> Result<DataReply<'static>, Failure> {
        if !self.groups.borrow().serves(group) {
            return Err(ELSEWHERE);
        }
        self.epochs.borrow_mut().admit(file, None);
        Ok(DataReply::Done)
    }

    /// Tells another server something; whether it has heard.
    async fn tell_orderer(&self, orderer: u32, request: &DataRequest<'_>, limit: Duration) -> bool {
        let mut body = Vec::new();
        encode(request, &mut body);
        let terms = Terms { map: self.groups.borrow().epoch(), ..Terms::default() };
        let told = async {
            let (_, connection) = self.peer(orderer).await?;
            connection.call_as(terms, Service::Data, &body).await.ok()
        };
        let told = self.world.timeout(limit, told).await.flatten();
        told.is_some_and(|reply| matches!(decode::<DataResult<'_>>(reply.body()), Ok(Ok(_))))
    }

    /// Takes what another server tells, where it tells something.
    pub(super) fn take_news(
        &self,
        call: &Call,
        request: &DataRequest<'_>,
    ) -> Option<Result<DataReply<'static>, Failure>> {
        match request {
            DataRequest::Ended { ends } => self.take_ends(call, ends),
            DataRequest::Seen { file, group } => return Some(self.take_seen(*group, *file)),
            DataRequest::Unreadable { object, group } => {
                let ObjectName { inode, generation, stripe } = *object;
                let object = ObjectId { inode, generation, stripe };
                self.take_unreadable(call.sender?, *group, object);
            }
            _ => return None,
        }
        Some(Ok(DataReply::Done))
    }

    /// A member of a group that this server orders cannot read an object: it is compared as a whole, and mended.
    fn take_unreadable(&self, server: u32, group: Group, object: ObjectId) {
        let serves = self.groups.borrow().serves(group);
        let is_member = self.groups.borrow().has_member(group, server);
        // Without the object here nothing could be compared.
        if !serves || !is_member || !self.is_of(group, object) || !self.mirror.begin_mend(object) {
            return;
        }
        let inner = self.this();
        self.world.spawn(async move {
            let blocks = (inner.store.object_bytes() / u64::from(BLOCK_BYTES)) as u32;
            let guard = inner.mirror.locks.lock(vec![(object, 0..blocks)]).await;
            let target = Target { group, object, server };
            if let Ok(leveled) = inner.level(target, 0..blocks, true).await
                && leveled.changed > 0
            {
                inner.lines.say(&format!(
                    "object {object}: {} blocks of the copy at data server {server} could not be read, \
                     and were written again",
                    leveled.changed
                ));
                inner.activities.mended(leveled.changed, 0);
            }
            drop(guard);
            inner.world.sleep(MEND_PAUSE).await;
            inner.mirror.unreadable.borrow_mut().remove(&object);
        });
    }

    /// Tells members which changes are everywhere, until this server stops.
    pub(crate) async fn tell_of_ends(self: Rc<Self>) {
        while !self.stopping.get() {
            let ended = self.mirror.ended.notified();
            let untold = self.untold();
            if untold.is_empty() {
                ended.await;
            }
            for (server, ends) in untold {
                self.clone().tell_ends(server, ends);
            }
            // Changes come in bursts.
            self.world.sleep(NEWS_PAUSE).await;
        }
    }

    /// The changes of which members do not know that they are everywhere, each group with the epoch of its last change.
    fn untold(&self) -> BTreeMap<u32, Vec<(u32, End)>> {
        let (groups, mirror) = (self.groups.borrow(), &self.mirror);
        let (told, telling) = (mirror.told.borrow(), mirror.telling.borrow());
        let mut untold: BTreeMap<u32, Vec<(u32, End)>> = BTreeMap::new();
        for (group, membership) in groups.served_mirrored() {
            let (since, done) = (membership.since, mirror.done(group));
            // One of a former version serves no such reads, and needs no word of ends.
            let hears = |it: &&u32| **it != self.server && self.speaks(**it, READS_VERSION);
            for server in membership.servers.iter().filter(hears) {
                let known = told.get(&(group, *server)) == Some(&(since, done));
                let ends = untold.entry(*server).or_default();
                if !known && !telling.contains(server) && ends.len() < GROUPS_MAX {
                    ends.push((since, End { group, done }));
                }
            }
        }
        untold.retain(|_, ends| !ends.is_empty());
        untold
    }

    fn tell_ends(self: Rc<Self>, server: u32, ends: Vec<(u32, End)>) {
        self.mirror.telling.borrow_mut().insert(server);
        let request = DataRequest::Ended { ends: ends.iter().map(|(_, end)| *end).collect() };
        let mut body = Vec::new();
        encode(&request, &mut body);
        let sent = self.send(ends[0].1.group, server, body.into());
        self.world.clone().spawn(async move {
            let sent = sent.await;
            let mirror = &self.mirror;
            mirror.telling.borrow_mut().remove(&server);
            if let Some(Sent::Done(_)) = sent {
                let told =
                    ends.into_iter().map(|(since, end)| ((end.group, server), (since, end.done)));
                mirror.told.borrow_mut().extend(told);
            }
            mirror.ended.notify_all();
        });
    }

    /// Notes what the orderer of groups says about its changes. It may have learned of groups that changed since: their next orderer
    /// says it once more.
    fn take_ends(&self, call: &Call, ends: &[End]) {
        let (groups, mut open) = (self.groups.borrow(), self.mirror.open.borrow_mut());
        let Some(number) = call.sender else { return };
        let sender = (number, call.head.session);
        for End { group, done } in ends {
            if groups.judge_copy(number, call.head.map, [*group]).is_ok()
                && let Some(open) = open.get_mut(group)
            {
                open.hear(sender, *done);
            }
        }
    }

    /// Completes when nobody reads any more from a server that has left a group.
    pub(crate) async fn alone(&self, group: Group) {
        let until: Time = self.groups.borrow().alone_from(group);
        if self.world.now() < until {
            self.world.sleep_until(until).await;
        }
    }
}
