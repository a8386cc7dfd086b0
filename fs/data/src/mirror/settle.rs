//! Groups that this server begins to order, and newcomers that it brings into step.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::task::{race, yield_now};
use ropewalk_store::objects::{ObjectError, ObjectId};
use ropewalk_wire::fs::data::{
    DataReply, DataRequest, DataResult, GROUPS_MAX, ObjectInfo, ObjectName,
};
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::head::REPLY_BYTES_MAX;
use ropewalk_wire::fs::meta::Step;
use ropewalk_wire::fs::value::Errno;
use ropewalk_wire::fs::{decode, encode};

use super::Pass;
use super::level::Target;
use super::peers::Sent;
use crate::failure::Failure;
use crate::server::Inner;

/// The pause after something did not work out.
const PAUSE: Duration = Duration::from_millis(200);
/// A newcomer that does not answer for so long is looked for later.
const PROBE_LIMIT: Duration = Duration::from_millis(500);
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
            for some in groups.chunks(GROUPS_MAX) {
                // Another server orders them now, or one cannot be read: looked at again soon.
                if self.settle_some(some, epoch).await.is_err() {
                    self.world.sleep(PAUSE).await;
                }
            }
        }
    }

    /// Makes the objects equal that may differ between the members of groups, and serves the groups.
    async fn settle_some(&self, groups: &[Group], epoch: u32) -> Result<(), Failure> {
        let mut open: BTreeMap<Group, BTreeSet<ObjectName>> = BTreeMap::new();
        for group in groups {
            open.entry(*group).or_default().extend(self.open_objects(&[*group]));
        }
        let mut members: BTreeMap<u32, Vec<Group>> = BTreeMap::new();
        for group in groups {
            for server in self.members(*group) {
                members.entry(server).or_default().push(*group);
            }
        }
        for (server, groups) in &members {
            // A call for each group: a member's objects are made equal in the group of theirs.
            for group in groups {
                let request = DataRequest::Settle { groups: vec![*group] };
                let Some(body) = self.ask_server(*group, *server, &request).await? else {
                    continue;
                };
                match decode::<DataResult<'_>>(&body) {
                    Ok(Ok(DataReply::Settled { objects })) => {
                        open.entry(*group).or_default().extend(objects);
                    }
                    _ => return Err(Errno::EPROTO.into()),
                }
            }
        }
        for (group, objects) in open {
            for ObjectName { inode, generation, stripe } in objects {
                let object = ObjectId { inode, generation, stripe };
                for server in self.members(group) {
                    self.even_out(Target { group, object, server }).await?;
                }
            }
            self.mirror.open.borrow_mut().remove(&group);
            self.groups.borrow_mut().settle(group, epoch);
        }
        self.mirror.changed.notify_all();
        Ok(())
    }

    /// Brings newcomers into step, one at a time, until this server stops.
    pub(crate) async fn bring_newcomers(self: Rc<Self>) {
        while !self.stopping.get() {
            let changed = self.mirror.changed.notified();
            let newcomers = self.groups.borrow().newcomers();
            for (server, groups) in newcomers {
                if !self.is_there(server, groups[0]).await {
                    continue;
                }
                let begun = self.begin_pass(server, &groups);
                if begun.is_empty() {
                    continue;
                }
                if let Err(failure) = self.bring_newcomer(server, &begun).await {
                    self.lines.say(&format!(
                        "data server {server} is not in step yet ({failure:?}); this server tries again"
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
        let mut unreadable = BTreeSet::new();
        let listing = self.store.list(None).map_err(|error| self.failed("list", &error))?;
        for (number, info) in listing.enumerate() {
            if number % BETWEEN_YIELDS == BETWEEN_YIELDS - 1 {
                yield_now().await;
            }
            let info = match info {
                Ok(info) => info,
                Err(error @ (ObjectError::Header { .. } | ObjectError::Older { .. })) => {
                    self.failed("list", &error);
                    continue;
                }
                Err(error) => return Err(self.failed("list", &error)),
            };
            let Some(group) = info.group.get().map(Group::from_number) else { continue };
            let target = Target { group, object: info.object, server };
            if !wanted.contains(&group) || self.has_missed(group, server) {
                continue;
            }
            if !self.even_out(target).await? {
                unreadable.insert(group);
            }
        }
        self.clear_surplus(server, groups, &wanted).await?;
        // All that was made durable here before has to be durable there.
        let request = DataRequest::Sync { files: Vec::new(), groups: Vec::new() };
        for group in groups {
            if self.ask_server(*group, server, &request).await?.is_some() {
                break;
            }
        }
        for group in groups.iter().filter(|group| !unreadable.contains(group)) {
            self.take_in(server, *group, epoch).await;
        }
        self.map_wanted.notify_all();
        Ok(())
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
                let here = self.store.table(object).map_err(|error| self.failed("list", &error))?;
                if here.is_none() && !self.has_missed(group, server) {
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

    /// Asks the metadata server to make a newcomer a member, if it has missed nothing. It counts as one from then on.
    async fn take_in(&self, server: u32, group: Group, epoch: u32) {
        {
            let mut passes = self.mirror.passes.borrow_mut();
            match passes.get_mut(&(group, server)) {
                Some(pass) if !pass.broken => pass.entering = true,
                _ => return,
            }
        }
        let Some(herald) = &self.herald else { return };
        let step = Step { group, by: self.server, map: epoch, server, in_step: true };
        // Whatever the answer is: it counts as a member until this server knows a map that says whether it is one.
        loop {
            let changed = self.mirror.changed.notified();
            let known = self.groups.borrow().ordered(group).is_none_or(|it| it.since > epoch);
            if known || self.stopping.get() {
                return;
            }
            herald.set_step(step).await;
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
