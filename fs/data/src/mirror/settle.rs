//! Groups that this server begins to order, and newcomers that it brings into step.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::task::{join_all, race, yield_now};
use ropewalk_base::time::Time;
use ropewalk_store::objects::{ObjectError, ObjectId};
use ropewalk_wire::fs::data::{
    BLOCK_BYTES, DataReply, DataRequest, DataResult, ObjectInfo, ObjectName,
};
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::head::REPLY_BYTES_MAX;
use ropewalk_wire::fs::meta::{STEP_GROUPS_MAX, Step};
use ropewalk_wire::fs::value::{Bytes, Errno};
use ropewalk_wire::fs::{decode, encode};

use super::Pass;
use super::blocks::Target;
use super::peers::Sent;
use crate::failure::Failure;
use crate::server::Inner;

/// The pause after something did not work out.
const PAUSE: Duration = Duration::from_millis(200);
/// The longest pause between two passes that fail.
const REST_MAX: Duration = Duration::from_secs(30);
/// A newcomer that does not answer for so long is looked for later.
const PROBE_LIMIT: Duration = Duration::from_millis(500);
/// A newcomer that is not taken in for so long is brought into step once more.
const TAKE_IN_LIMIT: Duration = Duration::from_secs(4);
/// A newcomer makes all that it got durable within this time.
const SYNC_LIMIT: Duration = Duration::from_secs(60);
/// Groups that are settled at a time.
const SETTLED_AT_ONCE: usize = 64;
/// Objects of a pass that are made equal at a time.
const EVENED_AT_ONCE: usize = 8;
/// Objects that are looked at before other tasks run.
const BETWEEN_YIELDS: usize = 16;

impl Inner {
    /// Settles groups that this server begins to order, until it stops.
    pub(crate) async fn settle_groups(self: Rc<Self>) {
        while !self.stopping.get() {
            let changed = self.mirror.changed.notified();
            let (groups, epoch) = {
                let groups = self.groups.borrow();
                (groups.unsettled(), groups.epoch())
            };
            if groups.is_empty() {
                changed.await;
                continue;
            }
            let mut left = false;
            for some in groups.chunks(SETTLED_AT_ONCE) {
                let settled = some.iter().map(|group| self.settle_group(*group, epoch));
                left |= join_all(settled).await.iter().any(Result::is_err);
            }
            self.mirror.changed.notify_all();
            if left {
                // Another server orders some of them now, or a member is silent: looked at again soon.
                self.world.sleep(PAUSE).await;
            }
        }
    }

    /// Makes the objects equal that may differ between the members of a group, and serves the group.
    async fn settle_group(&self, group: Group, epoch: u32) -> Result<(), Failure> {
        let mut open: BTreeSet<ObjectName> = self.open_objects(&[group]).into_iter().collect();
        for server in self.members(group) {
            let request = DataRequest::Settle { groups: vec![group] };
            let Some(body) = self.ask_server(group, server, &request).await? else { continue };
            match decode::<DataResult<'_>>(&body) {
                Ok(Ok(DataReply::Settled { objects })) => open.extend(objects),
                _ => return Err(Errno::EPROTO.into()),
            }
        }
        for ObjectName { inode, generation, stripe } in open {
            let object = ObjectId { inode, generation, stripe };
            for server in self.members(group) {
                self.even_out(Target { group, object, server }).await?;
            }
        }
        self.mirror.open.borrow_mut().remove(&group);
        self.groups.borrow_mut().settle(group, epoch);
        self.mirror.ended.notify_all();
        Ok(())
    }

    /// Brings newcomers into step, one at a time, until this server stops.
    pub(crate) async fn bring_newcomers(self: Rc<Self>) {
        // Of newcomers whose passes fail: when the next one may begin, and the pause after that.
        let mut failing: BTreeMap<u32, (Time, Duration)> = BTreeMap::new();
        while !self.stopping.get() {
            let changed = self.mirror.changed.notified();
            let newcomers = self.groups.borrow().newcomers();
            failing.retain(|server, _| newcomers.contains_key(server));
            for (server, groups) in newcomers {
                let rests =
                    failing.get(&server).is_some_and(|(until, _)| self.world.now() < *until);
                if rests || !self.is_there(server, groups[0]).await {
                    continue;
                }
                let begun = self.begin_pass(server, &groups);
                if begun.is_empty() {
                    continue;
                }
                let brought = self.bring_newcomer(server, &begun).await;
                let missed = begun.iter().any(|group| self.has_missed(*group, server));
                match brought.is_err() || missed {
                    true => {
                        // A full disk, for one, does not change from one moment to the next.
                        let pause = failing.get(&server).map_or(PAUSE, |(_, pause)| 2 * *pause);
                        let pause = pause.min(REST_MAX);
                        failing.insert(server, (self.world.now() + pause, pause));
                    }
                    false => drop(failing.remove(&server)),
                }
                if let Err(Failure::Errno(errno)) = brought {
                    self.lines.say(&format!(
                        "data server {server} is not in step yet: {errno}; this server tries again. If \
                         this is said for long, see the logs of both servers"
                    ));
                }
                self.end_pass(server, &begun);
            }
            let _ = race(changed, self.world.sleep(PAUSE)).await;
            // News come in bursts.
            self.world.sleep(PAUSE).await;
        }
    }

    /// Whether a newcomer answers, and knows that it is one. Writes do not wait for one that does not.
    async fn is_there(&self, server: u32, group: Group) -> bool {
        if self.mirror.outstanding.borrow().contains_key(&(group, server)) {
            return false;
        }
        let mut body = Vec::new();
        encode(&DataRequest::Settle { groups: vec![group] }, &mut body);
        let asked = self.send(group, server, body.into());
        matches!(self.world.timeout(PROBE_LIMIT, asked).await, Some(Some(Sent::Done(_))))
    }

    /// From now on a newcomer hears of the changes of these groups, but for those of which a call to it is without an answer.
    fn begin_pass(&self, server: u32, groups: &[Group]) -> Vec<Group> {
        let outstanding = self.mirror.outstanding.borrow();
        let mut passes = self.mirror.passes.borrow_mut();
        let quiet = groups.iter().filter(|group| !outstanding.contains_key(&(**group, server)));
        let begun: Vec<Group> = quiet.copied().collect();
        for group in &begun {
            passes.insert((*group, server), Pass::default());
        }
        begun
    }

    fn end_pass(&self, server: u32, groups: &[Group]) {
        let mut passes = self.mirror.passes.borrow_mut();
        for group in groups {
            passes.remove(&(*group, server));
        }
        drop(passes);
        self.mirror.changed.notify_all();
    }

    /// Makes a newcomer's objects equal, and has it taken in.
    async fn bring_newcomer(&self, server: u32, groups: &[Group]) -> Result<(), Failure> {
        let epoch = self.groups.borrow().epoch();
        let wanted: BTreeSet<Group> = groups.iter().copied().collect();
        let (mut unreadable, mut some) = (BTreeSet::new(), Vec::new());
        let listing = self.store.list(None).map_err(|error| self.failed("list", &error))?;
        for (number, info) in listing.enumerate() {
            if number % BETWEEN_YIELDS == BETWEEN_YIELDS - 1 {
                yield_now().await;
            }
            let info = match info {
                Ok(info) => info,
                Err(error @ (ObjectError::Header { .. } | ObjectError::Older { .. })) => {
                    // Nobody knows whose group it is: none may get a member that lacks it.
                    self.failed("list", &error);
                    unreadable.extend(groups);
                    continue;
                }
                Err(error) => return Err(self.failed("list", &error)),
            };
            let group = info.group.get().map(Group::from_number);
            let Some(group) = group.filter(|group| group.server().is_none()) else {
                // It does not know its group of now yet (telling.rs); or a former program wrote it, or a cut has made its head anew.
                let table = self.store.table(info.object);
                let is_empty = |table: Vec<u32>| table.iter().all(|entry| *entry == 0);
                if !table.is_ok_and(|table| table.is_none_or(is_empty)) {
                    if unreadable.is_empty() {
                        self.lines.say(&format!(
                            "object {} does not say its group: no server is brought into step \
                             until such files are written anew",
                            info.object
                        ));
                    }
                    unreadable.extend(groups);
                }
                continue;
            };
            let target = Target { group, object: info.object, server };
            if !wanted.contains(&group) || self.has_missed(group, server) {
                continue;
            }
            some.push(target);
            if some.len() == EVENED_AT_ONCE {
                self.even_out_some(&std::mem::take(&mut some), &mut unreadable).await?;
            }
        }
        self.even_out_some(&some, &mut unreadable).await?;
        self.clear_surplus(server, groups, &wanted).await?;
        self.make_durable(server, groups).await?;
        let readable = groups.iter().filter(|group| !unreadable.contains(group));
        let readable: Vec<Group> = readable.copied().collect();
        for some in readable.chunks(STEP_GROUPS_MAX) {
            self.take_in(server, some, epoch).await;
        }
        self.map_wanted.notify_all();
        Ok(())
    }

    /// All that was made durable here before has to be durable at a newcomer. Nobody waits for it meanwhile.
    async fn make_durable(&self, server: u32, groups: &[Group]) -> Result<(), Failure> {
        let mut body = Vec::new();
        encode(&DataRequest::Sync { files: Vec::new(), groups: Vec::new() }, &mut body);
        let body: Rc<[u8]> = body.into();
        for group in groups {
            let synced = self.send(*group, server, body.clone());
            match self.world.timeout(SYNC_LIMIT, synced).await {
                Some(Some(Sent::Done(_))) => return Ok(()),
                Some(Some(Sent::Gone)) => {}
                Some(Some(Sent::Refused(errno))) => return Err(errno.into()),
                Some(None) | None => return Err(Errno::ETIMEDOUT.into()),
            }
        }
        Ok(())
    }

    /// Makes a few objects equal at a newcomer, at the same time. Notes the groups of those that cannot be read.
    async fn even_out_some(
        &self,
        some: &[Target],
        unreadable: &mut BTreeSet<Group>,
    ) -> Result<(), Failure> {
        let leveled = join_all(some.iter().map(|target| self.even_out(*target))).await;
        let mut changed = 0;
        for (target, leveled) in some.iter().zip(leveled) {
            let leveled = leveled?;
            changed += leveled.changed;
            if !leveled.readable {
                unreadable.insert(target.group);
            }
        }
        self.keep_pace(changed).await;
        Ok(())
    }

    /// Waits as long as the wanted pace of moves says after so many blocks.
    async fn keep_pace(&self, blocks: u64) {
        let pace = self.mirror.pace.get();
        if pace > 0 && blocks > 0 {
            let bytes = blocks * u64::from(BLOCK_BYTES);
            self.world.sleep(Duration::from_micros(bytes * 1_000_000 / pace)).await;
        }
    }

    /// Empties objects of a newcomer that are not here.
    async fn clear_surplus(
        &self,
        server: u32,
        groups: &[Group],
        wanted: &BTreeSet<Group>,
    ) -> Result<(), Failure> {
        let mut after = None;
        loop {
            let request = DataRequest::List { after, bytes_max: REPLY_BYTES_MAX as u32 };
            let mut body = None;
            for group in groups {
                body = self.ask_server(*group, server, &request).await?;
                if body.is_some() {
                    break;
                }
            }
            let Some(body) = body else { return Ok(()) };
            let Ok(Ok(DataReply::Objects { objects, end })) = decode::<DataResult<'_>>(&body)
            else {
                return Err(Errno::EPROTO.into());
            };
            for ObjectInfo { inode, generation, stripe, group, .. } in &objects {
                let object = ObjectId { inode: *inode, generation: *generation, stripe: *stripe };
                let Some(group) = group.filter(|group| wanted.contains(group)) else { continue };
                let here = self.store.info(object).map_err(|error| self.failed("list", &error))?;
                let seen = here.is_some_and(|here| here.group.get().is_some());
                if !seen && !self.has_missed(group, server) {
                    self.even_out(Target { group, object, server }).await?;
                }
            }
            let last = objects.last();
            after = last.map(|last| (last.inode, last.generation, last.stripe));
            if end || after.is_none() {
                return Ok(());
            }
        }
    }

    /// Asks the metadata server to make a newcomer a member of the groups of which it has missed nothing. It counts as one
    /// from then on.
    async fn take_in(&self, server: u32, groups: &[Group], epoch: u32) {
        let mut entering = Vec::new();
        for group in groups {
            match self.mirror.passes.borrow_mut().get_mut(&(*group, server)) {
                Some(pass) if !pass.broken => pass.entering = true,
                _ => continue,
            }
            entering.push(*group);
        }
        let Some(herald) = &self.herald else { return };
        let begin = self.world.now();
        // It counts as a member until this server knows a map that says whether it is one, also after a refusal.
        loop {
            let changed = self.mirror.changed.notified();
            entering.retain(|group| {
                self.groups.borrow().ordered(*group).is_some_and(|it| it.since <= epoch)
            });
            if entering.is_empty() || self.stopping.get() {
                return;
            }
            // One that fell silent meanwhile is not taken in: that it is out of step makes the request void.
            let in_step = self.world.now().since(begin) < TAKE_IN_LIMIT;
            let numbers = Step::numbers(&entering);
            let (groups, by) = (Bytes(&numbers), self.server);
            herald.set_step(Step { groups, by, map: epoch, server, in_step }).await;
            self.map_wanted.notify_all();
            let _ = race(changed, self.world.sleep(PAUSE)).await;
        }
    }

    /// Whether a newcomer has missed a change, or is none any more.
    fn has_missed(&self, group: Group, server: u32) -> bool {
        let passes = self.mirror.passes.borrow();
        passes.get(&(group, server)).is_none_or(|pass| pass.broken)
    }
}
