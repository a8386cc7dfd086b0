//! Compares inodes with objects, in both directions, on a cluster that is in use.
//!
//! Objects are listed by each data server, and the metadata server is asked about their inodes. Inodes are
//! listed by the metadata server, and data servers are asked for the objects that their maps of written
//! stripes name. Nothing is sorted and nothing is remembered beyond a page.
//!
//! Two lists that were read one after the other differ by the changes in between. So every mismatch is a
//! suspect, and is asked for again: the inode, then the object, then the inode. It counts if all three
//! answers agree and the inode's version is the same before and after. This is proof, since
//! * the numbers of inodes and generations of objects never come again, and the row that queues a removed
//!   file's objects is written together with the removal;
//! * a stripe is taken out of an inode's map before its object goes, and comes into it after its object was
//!   written;
//! * objects that a client may have written and not told of yet (it holds a lease for writing) are no
//!   suspects;
//! * whether a server is a member of a group is asked anew for a suspect, also between the two answers about the inode.
//!
//! A suspect that keeps changing is asked for again after a pause, a few times, and then counted as
//! unsettled.
//!
//! An inode whose rows the metadata server cannot read is a finding, and the check goes on with the others.
//! Objects of such an inode are not judged.

mod metadata;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use ropewalk_base::task::join_all;
use ropewalk_wire::fs::data::{Condition, DataReply, DataRequest, EXAMINED_MAX, ObjectName};
use ropewalk_wire::fs::meta::{
    DISCARDED_MAX, INODES_ASKED_MAX, InodeFate, InodeInfo, MetaReply, MetaRequest,
};
use ropewalk_wire::fs::value::Bytes;

pub use super::judge::Problem;
use super::judge::{is_expected, judge, layout, problem_of};
use super::status::ClusterState;
use super::{Operator, OperatorError, PAGE_BYTES};

/// The number of times that a suspect is asked for before it counts as unsettled, and the pause in between.
const ROUNDS: u32 = 6;
const PAUSE: Duration = Duration::from_millis(400);
/// Within so long data servers find their metadata server after its start, and tell where they are.
const HEARTBEATS: Duration = Duration::from_secs(5);
/// Bytes of a page of objects: few enough that a slow disk tells them within seconds.
const OBJECTS_BYTES: u32 = 32 << 10;

/// The actions of a check beside the comparison.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CheckOptions {
    /// Read every object that a file needs, and compare its blocks with their checksums.
    pub read: bool,
    /// Have garbage removed.
    pub repair: bool,
    /// Wait this long after each page, for the sake of servers that have other work.
    pub pause: Duration,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    pub problem: Problem,
    /// The data server. Where the problem is one of metadata, only the inode and its path mean something.
    pub server: u32,
    pub inode: u64,
    pub generation: u32,
    pub stripe: u32,
    /// Bytes of the object, where it is there.
    pub bytes: u64,
    /// One of the inode's paths, where it has any.
    pub path: Option<Vec<u8>>,
}

/// The numbers of inodes and objects checked so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Looked {
    pub inodes: u64,
    pub objects: u64,
    /// Objects that were looked for because a file needs them.
    pub needed: u64,
}

/// Told by a check on its way.
#[derive(Debug)]
pub enum Event<'a> {
    /// The approximate numbers of inodes and objects to check.
    Begin(Looked),
    Found(&'a Finding),
    Progress(Looked),
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct CheckSummary {
    pub looked: Looked,
    /// The count of each problem, by its name.
    pub found: BTreeMap<&'static str, u64>,
    /// Objects about which nothing can be said: they kept changing.
    pub unsettled: u64,
    /// Garbage whose removal was ordered.
    pub discarded: u64,
    /// Data servers that were not compared to the end, and why.
    pub unreached: BTreeMap<u32, String>,
}

impl CheckSummary {
    /// The number of problems found.
    pub fn problems(&self) -> u64 {
        self.found.values().sum()
    }
}

/// A check under way.
struct Check<'a> {
    operator: &'a Operator,
    options: CheckOptions,
    tell: &'a dyn Fn(Event<'_>),
    summary: RefCell<CheckSummary>,
    /// Runs of inodes, the first and how many, that were found damaged.
    damaged: RefCell<BTreeMap<u64, u64>>,
    /// Inodes of objects about which the metadata server could not say anything.
    unread: RefCell<BTreeSet<u64>>,
}

/// An object that looks wrong.
#[derive(Debug, Clone, Copy)]
struct Suspect {
    name: ObjectName,
    problem: Problem,
    bytes: u64,
    /// Of the inode when it was judged.
    version: Option<u64>,
}

type Fates = BTreeMap<u64, InodeFate>;

impl Operator {
    /// Compares all inodes with all objects. `tell` hears of every finding, and of progress.
    ///
    /// Fails where the metadata server cannot be asked; data servers that cannot are named in the
    /// summary.
    pub async fn check(
        &self,
        options: CheckOptions,
        tell: &dyn Fn(Event<'_>),
    ) -> Result<CheckSummary, OperatorError> {
        let (damaged, unread) = (RefCell::default(), RefCell::default());
        let check =
            Check { operator: self, options, tell, summary: RefCell::default(), damaged, unread };
        let servers = check.begin().await?;
        for listed in join_all(servers.iter().map(|server| check.objects_of(*server))).await {
            listed?;
        }
        check.inodes().await?;
        if options.read {
            check.rows().await?;
        }
        let unread = check.unread.take();
        for inode in unread {
            check.damaged(&[(inode, 1)]).await?;
        }
        Ok(check.summary.into_inner())
    }

    /// The fates of some inodes. Those whose rows cannot be read are left out.
    async fn fates(&self, inodes: &BTreeSet<u64>) -> Result<Fates, OperatorError> {
        let mut fates = Fates::new();
        let numbers: Vec<u64> = inodes.iter().copied().collect();
        let (mut rest, mut most) = (&numbers[..], INODES_ASKED_MAX);
        while !rest.is_empty() {
            let some = &rest[..rest.len().min(most)];
            let bytes: Vec<u8> = some.iter().flat_map(|number| number.to_le_bytes()).collect();
            let request = MetaRequest::GetInodes { inodes: Bytes(&bytes), bytes_max: PAGE_BYTES };
            let page = self.ask_meta(&request, |reply, _| match reply {
                MetaReply::Fates { fates } => (!fates.is_empty()).then_some(fates),
                _ => None,
            });
            match page.await {
                Ok(page) => {
                    let told = page.len().min(some.len());
                    fates.extend(some.iter().copied().zip(page));
                    rest = &rest[told..];
                    most = (most * 2).min(INODES_ASKED_MAX);
                }
                // The one of them that it is, is met alone in the end.
                Err(error) if error.is_damage() && some.len() > 1 => most = some.len() / 2,
                Err(error) if error.is_damage() => rest = &rest[1..],
                Err(error) => return Err(error),
            }
        }
        Ok(fates)
    }

    /// The conditions of objects at a server, in order.
    async fn examine(
        &self,
        server: u32,
        names: &[ObjectName],
        read: bool,
    ) -> Result<Vec<Condition>, OperatorError> {
        let mut all = Vec::with_capacity(names.len());
        while all.len() < names.len() {
            let rest = &names[all.len()..];
            let objects = rest[..rest.len().min(EXAMINED_MAX)].to_vec();
            let most = objects.len();
            let request = DataRequest::Examine { objects, read };
            let page = self.ask_data(server, &request, |reply, _| match reply {
                DataReply::Examined { conditions } => {
                    (!conditions.is_empty() && conditions.len() <= most).then_some(conditions)
                }
                _ => None,
            });
            all.extend(page.await?);
        }
        Ok(all)
    }
}

impl Check<'_> {
    /// The servers that live. Those that do not are not waited for again.
    async fn begin(&self) -> Result<Vec<u32>, OperatorError> {
        let state = self.heard().await?;
        let mut expected = Looked { inodes: state.meta.inodes, ..Looked::default() };
        let mut living = Vec::new();
        for known in state.servers {
            let (server, address) = (known.server, known.address);
            match known.answer {
                Some(answer) => {
                    expected.objects += answer.objects;
                    living.push(server);
                }
                None => {
                    let error = if address.is_empty() {
                        OperatorError::Unheard { server }
                    } else {
                        let server = format!("data server {server} at {address}");
                        OperatorError::Silent { server }
                    };
                    self.unreached(server, &error);
                }
            }
        }
        (self.tell)(Event::Begin(expected));
        Ok(living)
    }

    /// The servers, when each of them was heard of. Where the metadata server has just been started,
    /// it does not know yet where they are.
    async fn heard(&self) -> Result<ClusterState, OperatorError> {
        let world = &self.operator.world;
        let begin = world.now();
        loop {
            let state = self.operator.status().await?;
            let unheard = state.servers.iter().any(|known| known.address.is_empty());
            if !unheard || world.now().since(begin) >= HEARTBEATS.min(self.operator.patience) {
                return Ok(state);
            }
            world.sleep(PAUSE).await;
        }
    }

    /// Compares the objects of one server with the inodes. Fails where the metadata server does.
    async fn objects_of(&self, server: u32) -> Result<(), OperatorError> {
        let mut after = None;
        loop {
            let request = DataRequest::List { after, bytes_max: OBJECTS_BYTES };
            let page = self.operator.ask_data(server, &request, |reply, _| match reply {
                DataReply::Objects { objects, end } => Some((objects, end)),
                _ => None,
            });
            let (objects, end) = match page.await {
                Ok(page) => page,
                Err(error) => {
                    self.unreached(server, &error);
                    return Ok(());
                }
            };
            let listed: Vec<(ObjectName, u64)> = objects
                .iter()
                .map(|object| {
                    let (inode, generation, stripe) =
                        (object.inode, object.generation, object.stripe);
                    (ObjectName { inode, generation, stripe }, object.bytes)
                })
                .collect();
            self.pause().await;
            let inodes = listed.iter().map(|(name, _)| name.inode).collect();
            let suspects = self.suspects(server, &listed, &inodes).await?;
            self.settle_present(server, suspects).await?;
            self.progress(|looked| looked.objects += listed.len() as u64);
            after = listed.last().map(|(name, _)| (name.inode, name.generation, name.stripe));
            if end || after.is_none() {
                return Ok(());
            }
        }
    }

    /// Those of a server's objects that do not fit their inodes.
    async fn suspects(
        &self,
        server: u32,
        objects: &[(ObjectName, u64)],
        inodes: &BTreeSet<u64>,
    ) -> Result<Vec<Suspect>, OperatorError> {
        let fates = self.fates(inodes).await?;
        let mut suspects = Vec::new();
        for (name, bytes) in objects {
            let Some(fate) = fates.get(&name.inode) else { continue };
            let homes = match fate.inode.as_ref().and_then(layout) {
                Some(layout) => Some(self.operator.places(layout).await?.holders(name.stripe)),
                None => None,
            };
            if let Some(problem) = judge(server, (name, *bytes), fate, homes.as_deref()) {
                let version = version_of(fate);
                suspects.push(Suspect { name: *name, problem, bytes: *bytes, version });
            }
        }
        Ok(suspects)
    }

    /// Asks again for objects that should not be there, until each is gone, explained or certain.
    async fn settle_present(
        &self,
        server: u32,
        mut suspects: Vec<Suspect>,
    ) -> Result<(), OperatorError> {
        for round in 0..ROUNDS {
            if suspects.is_empty() {
                return Ok(());
            }
            if round > 0 {
                self.operator.world.sleep(PAUSE).await;
            }
            self.operator.learn_map().await?;
            let names: Vec<ObjectName> = suspects.iter().map(|suspect| suspect.name).collect();
            let conditions = match self.operator.examine(server, &names, false).await {
                Ok(conditions) => conditions,
                Err(error) => {
                    self.unreached(server, &error);
                    return Ok(());
                }
            };
            let still: Vec<(ObjectName, u64)> = suspects
                .iter()
                .zip(conditions)
                .filter_map(|(suspect, condition)| match condition {
                    Condition::Absent => None,
                    Condition::Present { bytes } => Some((suspect.name, bytes)),
                    _ => Some((suspect.name, suspect.bytes)),
                })
                .collect();
            let inodes = still.iter().map(|(name, _)| name.inode).collect();
            let before: BTreeMap<ObjectName, Suspect> =
                suspects.into_iter().map(|suspect| (suspect.name, suspect)).collect();
            let again = self.suspects(server, &still, &inodes).await?;
            let (certain, open): (Vec<_>, Vec<_>) = again.into_iter().partition(|suspect| {
                let before = &before[&suspect.name];
                (before.problem, before.version) == (suspect.problem, suspect.version)
            });
            self.found(server, &certain).await?;
            suspects = open;
        }
        self.summary.borrow_mut().unsettled += suspects.len() as u64;
        Ok(())
    }

    /// Looks for the objects that inodes need.
    async fn inodes(&self) -> Result<(), OperatorError> {
        let mut from = 0;
        loop {
            let request = MetaRequest::ListInodes { from, bytes_max: PAGE_BYTES };
            let page = self.operator.ask_meta(&request, |reply, _| match reply {
                MetaReply::Inodes { inodes, end } => Some((inodes, end)),
                _ => None,
            });
            let (inodes, end) = match page.await {
                Ok(page) => page,
                Err(error) if error.is_damage() => match self.inspect((from, 0), false).await? {
                    Some((next, _)) => {
                        from = next;
                        continue;
                    }
                    None => return Ok(()),
                },
                Err(error) => return Err(error),
            };
            self.pause().await;
            self.look_for(&inodes).await?;
            self.progress(|looked| looked.inodes += inodes.len() as u64);
            let next = inodes.last().and_then(|last| last.attributes.inode.checked_add(1));
            match next {
                Some(next) if !end => from = next,
                _ => return Ok(()),
            }
        }
    }

    /// Looks for the objects that some inodes need, some of each server's at a time.
    async fn look_for(&self, inodes: &[InodeInfo]) -> Result<(), OperatorError> {
        let mut wanted: BTreeMap<u32, Vec<ObjectName>> = BTreeMap::new();
        for info in inodes {
            let Some(layout) = layout(info) else { continue };
            let places = self.operator.places(layout).await?;
            let (inode, generation) = (info.attributes.inode, info.attributes.object_generation);
            for (first, count) in &info.written {
                for stripe in *first..first.saturating_add(*count) {
                    let mut full = false;
                    for server in places.members(stripe) {
                        let names = wanted.entry(server).or_default();
                        names.push(ObjectName { inode, generation, stripe });
                        full |= names.len() == EXAMINED_MAX;
                    }
                    // One server's turn has come: all have theirs.
                    if full {
                        self.look_at(std::mem::take(&mut wanted)).await?;
                    }
                }
            }
        }
        self.look_at(wanted).await
    }

    async fn look_at(&self, wanted: BTreeMap<u32, Vec<ObjectName>>) -> Result<(), OperatorError> {
        let each = wanted.iter().map(|(server, names)| self.look_at_one(*server, names));
        join_all(each).await.into_iter().collect()
    }

    async fn look_at_one(&self, server: u32, names: &[ObjectName]) -> Result<(), OperatorError> {
        if self.summary.borrow().unreached.contains_key(&server) {
            return Ok(());
        }
        let conditions = match self.operator.examine(server, names, self.options.read).await {
            Ok(conditions) => conditions,
            Err(error) => {
                self.unreached(server, &error);
                return Ok(());
            }
        };
        self.progress(|looked| looked.needed += names.len() as u64);
        let bad = names.iter().zip(conditions).filter(|(_, found)| problem_of(*found).is_some());
        self.settle_absent(server, bad.map(|(name, _)| *name).collect()).await
    }

    /// Asks again for objects that are not there or not well, until each is there, not needed any
    /// more, or certain.
    async fn settle_absent(
        &self,
        server: u32,
        mut names: Vec<ObjectName>,
    ) -> Result<(), OperatorError> {
        for round in 0..ROUNDS {
            if names.is_empty() {
                return Ok(());
            }
            if round > 0 {
                self.operator.world.sleep(PAUSE).await;
            }
            let inodes: BTreeSet<u64> = names.iter().map(|name| name.inode).collect();
            let before = self.fates(&inodes).await?;
            names
                .retain(|name| before.get(&name.inode).is_some_and(|fate| is_expected(name, fate)));
            self.operator.learn_map().await?;
            let mut since = Vec::with_capacity(names.len());
            for name in &names {
                since.push(self.member_since(server, name, &before).await?);
            }
            let conditions = match self.operator.examine(server, &names, self.options.read).await {
                Ok(conditions) => conditions,
                Err(error) => {
                    self.unreached(server, &error);
                    return Ok(());
                }
            };
            let after = self.fates(&inodes).await?;
            self.operator.learn_map().await?;
            let (mut certain, mut open) = (Vec::new(), Vec::new());
            for ((name, condition), since) in names.into_iter().zip(conditions).zip(since) {
                let Some(problem) = problem_of(condition) else { continue };
                let still = self.member_since(server, &name, &after).await?;
                if still.is_none() {
                    continue;
                }
                if still != since {
                    // It left its group and came back, or something else changed there.
                    open.push(name);
                    continue;
                }
                let version = after.get(&name.inode).and_then(version_of);
                if version == before.get(&name.inode).and_then(version_of) {
                    certain.push(Suspect { name, problem, bytes: 0, version });
                } else {
                    open.push(name);
                }
            }
            self.found(server, &certain).await?;
            names = open;
        }
        self.summary.borrow_mut().unsettled += names.len() as u64;
        Ok(())
    }

    /// The epoch of the last change of an object's group, if a server has to have the object, by the newest map that is known.
    async fn member_since(
        &self,
        server: u32,
        name: &ObjectName,
        fates: &Fates,
    ) -> Result<Option<u32>, OperatorError> {
        let inode = fates.get(&name.inode).and_then(|fate| fate.inode.as_ref());
        let Some(layout) = inode.and_then(layout) else { return Ok(None) };
        Ok(self.operator.places(layout).await?.member_since(name.stripe, server))
    }

    /// Reports the certain problems, and has garbage removed where that is wished.
    async fn found(&self, server: u32, certain: &[Suspect]) -> Result<(), OperatorError> {
        for suspect in certain {
            let ObjectName { inode, generation, stripe } = suspect.name;
            let path = match suspect.version {
                Some(_) => self.operator.path_of(inode).await?,
                None => None,
            };
            let Suspect { problem, bytes, .. } = *suspect;
            let finding = Finding { problem, server, inode, generation, stripe, bytes, path };
            self.tell(&finding);
        }
        if !self.options.repair {
            return Ok(());
        }
        let garbage: BTreeSet<(u64, u32)> = certain
            .iter()
            .filter(|suspect| suspect.problem.is_garbage())
            .map(|suspect| (suspect.name.inode, suspect.name.generation))
            .collect();
        let garbage: Vec<(u64, u32)> = garbage.into_iter().collect();
        for some in garbage.chunks(DISCARDED_MAX) {
            self.discard(server, some).await?;
        }
        Ok(())
    }

    fn tell(&self, finding: &Finding) {
        let name = finding.problem.name();
        *self.summary.borrow_mut().found.entry(name).or_default() += 1;
        (self.tell)(Event::Found(finding));
    }

    async fn discard(&self, server: u32, objects: &[(u64, u32)]) -> Result<(), OperatorError> {
        let mut bytes = Vec::with_capacity(objects.len() * 12);
        for (inode, generation) in objects {
            bytes.extend_from_slice(&inode.to_le_bytes());
            bytes.extend_from_slice(&generation.to_le_bytes());
        }
        let request = MetaRequest::Discard { server, objects: Bytes(&bytes) };
        let ordered = self.operator.ask_meta(&request, |reply, _| match reply {
            MetaReply::Discarded { count } => Some(count),
            _ => None,
        });
        let ordered = ordered.await?;
        self.summary.borrow_mut().discarded += u64::from(ordered);
        Ok(())
    }

    async fn pause(&self) {
        if !self.options.pause.is_zero() {
            self.operator.world.sleep(self.options.pause).await;
        }
    }

    fn unreached(&self, server: u32, error: &OperatorError) {
        self.summary.borrow_mut().unreached.entry(server).or_insert_with(|| error.to_string());
    }

    fn progress(&self, count: impl FnOnce(&mut Looked)) {
        let looked = {
            let mut summary = self.summary.borrow_mut();
            count(&mut summary.looked);
            summary.looked
        };
        (self.tell)(Event::Progress(looked));
    }
}

fn version_of(fate: &InodeFate) -> Option<u64> {
    fate.inode.as_ref().map(|inode| inode.attributes.version)
}
