//! The side of servers that do what a group's orderer has done.
//!
//! Invariants:
//! * only the newest life of a sender is listened to, and each of its calls is done once. Of lives of one store the one with the
//!   larger number is newer; of lives of two stores the one that the metadata server knows;
//! * right before each change this server still knows the sender as the group's orderer, by no newer map than the sender's;
//! * a change stays open until its sender says that all members have it.

use std::collections::BTreeSet;
use std::rc::Rc;

use ropewalk_rpc::slots::Verdict;
use ropewalk_rpc::{Incoming, Responder};
use ropewalk_store::objects::{GroupTag, Grouped, ObjectId};
use ropewalk_wire::fs::data::{
    BLOCK_BYTES, DataReply, DataRequest, EMBEDDED_BYTES_MAX, FileId, ObjectName, ObjectRange,
    Order, Source,
};
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::head::Status;
use ropewalk_wire::fs::trust::Role;
use ropewalk_wire::fs::value::{Bytes, Errno};

use super::blocks::{BY, is_head_damage};
use crate::bulk::Region;
use crate::failure::Failure;
use crate::plan::{self, Plan};
use crate::read::Read;
use crate::server::{Call, Inner};
use crate::write::object;

/// Former lives of a server's number that are remembered.
const RETIRED_MAX: usize = 16;

/// A change that a sender has done.
struct Copied {
    file: FileId,
    plan: Plan,
    /// Of the ranges' bytes; None: they read as zeros.
    checksums: Option<Vec<u32>>,
}

/// Whether a call is one of data servers among themselves.
pub(crate) fn is_among_servers(request: &DataRequest<'_>, incoming: &Incoming) -> bool {
    use DataRequest as D;
    let by_server = incoming.member.is_some_and(|member| member.role == Role::Data);
    by_server && incoming.head.session != 0
        || matches!(
            request,
            D::Copy { .. }
                | D::Settle { .. }
                | D::Table { .. }
                | D::Ended { .. }
                | D::Unreadable { .. }
                | D::Seen { .. }
        )
}

impl Inner {
    /// Takes a call of another data server of this cluster.
    pub(crate) fn take_from_server(
        self: Rc<Self>,
        incoming: &Incoming,
        request: DataRequest<'_>,
        responder: Responder,
    ) {
        let head = incoming.head;
        let Some(member) = incoming.member.filter(|member| member.role == Role::Data) else {
            self.activities.refused();
            return self.refuse(responder, Status::Unproven);
        };
        let sender = member.number;
        let peer = incoming.peer;
        self.mirror.callers.borrow_mut().insert(sender, head.newest);
        let call = Call { peer, head, keep: false, limited: false, sender: Some(sender) };
        if let Err(status) = self.judge_sender(&call, &groups_of(&request)) {
            return self.refuse(responder, status);
        }
        match self.judge_slot(&call) {
            Verdict::New => {}
            Verdict::Again(body) => return self.send_body(responder, Status::Done, body),
            Verdict::Stale => return self.refuse(responder, Status::BadSequence),
        }
        let call = Call { keep: true, ..call };
        if let Some(done) = self.take_news(&call, &request) {
            return self.answer(call, responder, done);
        }
        match request {
            DataRequest::Copy { file, order, pieces, source, checksums } => {
                self.take_copy(call, (file, order, pieces, source, checksums), responder);
            }
            DataRequest::Settle { groups } => {
                let objects = self.open_objects(&groups);
                self.answer(call, responder, Ok(DataReply::Settled { objects }));
            }
            DataRequest::Table {
                object: ObjectName { inode, generation, stripe },
                group,
                read,
            } => {
                let object = ObjectId { inode, generation, stripe };
                self.in_own_task(responder, async move |inner, responder| {
                    let table = inner.table_copy(object, group, read).await;
                    let reply = table.as_ref().map_err(|failure| *failure);
                    let reply = reply
                        .map(|table| DataReply::Table { entries: table.as_deref().map(Bytes) });
                    // As it is now: asked again, it is looked up again.
                    inner.answer(Call { keep: false, ..call }, responder, reply);
                });
            }
            DataRequest::Read { file, pieces, bulk: None, .. } => {
                let body = self.read_for_orderer(file, pieces);
                self.answer_body(Call { keep: false, ..call }, responder, body);
            }
            DataRequest::List { after, bytes_max } => {
                self.in_own_task(responder, async move |inner, responder| {
                    let listed = inner.list(after, bytes_max).await;
                    inner.answer(Call { keep: false, ..call }, responder, listed);
                });
            }
            DataRequest::Sync { files, .. } => {
                self.in_own_task(responder, async move |inner, responder| {
                    let synced = inner.sync_here(&files).await;
                    inner.answer(call, responder, synced);
                });
            }
            DataRequest::Truncate { file, stripe, offset, groups } => {
                self.in_own_task(responder, async move |inner, responder| {
                    let cut = inner.cut_copy(&call, file, (stripe, offset), &groups).await;
                    inner.answer(call, responder, cut);
                });
            }
            _ => self.refuse(responder, Status::Malformed),
        }
    }

    fn read_for_orderer(&self, file: FileId, pieces: Vec<ObjectRange>) -> Result<Vec<u8>, Failure> {
        match Plan::new(pieces, self.store.object_bytes()) {
            Ok(plan) if plan.bytes <= EMBEDDED_BYTES_MAX => {
                self.read_embedded(&Read { file, plan, verify: true, for_orderer: true })
            }
            _ => Err(Errno::EINVAL.into()),
        }
    }

    /// The table of an object, as its orderer asks for it. A newcomer throws away an object that is damaged as a whole: it gets all of
    /// it again.
    async fn table_copy(
        &self,
        object: ObjectId,
        group: Group,
        read: bool,
    ) -> Result<Option<Vec<u8>>, Failure> {
        let blocks = 0..(self.store.object_bytes() / u64::from(BLOCK_BYTES)) as u32;
        let mut table = self.table_here(object, blocks.clone(), read).await;
        if let Err(error) = &table
            && is_head_damage(error)
            && self.groups.borrow().is_newcomer(group)
        {
            self.lines.say(&format!("{error}; the object is thrown away, and comes again"));
            self.store.truncate(object, 0, BY).map_err(|error| self.failed("make", &error))?;
            table = self.table_here(object, blocks, read).await;
        }
        let table = table.map_err(|error| self.failed("compare", &error))?;
        Ok(table.map(|table| table.iter().flat_map(|entry| entry.to_le_bytes()).collect()))
    }

    /// Whether to listen to a server about these groups now.
    fn judge_sender(&self, call: &Call, groups: &[Group]) -> Result<(), Status> {
        let Some(sender) = call.sender else { return Err(Status::Unproven) };
        let mut senders = self.mirror.senders.borrow_mut();
        let known = senders.entry(sender).or_default();
        let session = call.head.session;
        if known.retired.contains(&session) {
            return Err(Status::NoSession);
        }
        if session < known.session {
            let is_asked = std::mem::replace(&mut known.asked, true);
            drop(senders);
            if !is_asked {
                self.ask_for_life(sender, session);
            }
            return Err(Status::NoSession);
        }
        if session > known.session {
            let retired = std::mem::take(&mut known.retired);
            *known = super::Sender { session, retired, ..Default::default() };
            self.epochs.borrow_mut().forget_elsewhere();
        }
        drop(senders);
        let judged = self.groups.borrow().judge_copy(sender, call.head.map, groups.iter().copied());
        if judged == Err(Status::Unavailable) {
            self.map_wanted.notify_all();
        }
        judged
    }

    /// A server calls in a life with a smaller number than the one that is known: an old call, or the number has a new
    /// store, which counts from the beginning. The metadata server knows which.
    fn ask_for_life(&self, sender: u32, session: u64) {
        let inner = self.this();
        self.world.spawn(async move {
            let life = match &inner.herald {
                Some(herald) => herald.life_of(sender).await,
                None => None,
            };
            let mut senders = inner.mirror.senders.borrow_mut();
            let known = senders.entry(sender).or_default();
            known.asked = false;
            if life != Some(session) || known.session <= session {
                return;
            }
            let mut retired = std::mem::take(&mut known.retired);
            retired.push(known.session);
            let surplus = retired.len().saturating_sub(RETIRED_MAX);
            retired.drain(..surplus);
            *known = super::Sender { session, retired, ..Default::default() };
            drop(senders);
            inner.epochs.borrow_mut().forget_elsewhere();
        });
    }

    /// Judges a server's call by its number. A later one in its slot says that nobody waits for this one.
    fn judge_slot(&self, call: &Call) -> Verdict {
        let mut senders = self.mirror.senders.borrow_mut();
        match call.sender.and_then(|sender| senders.get_mut(&sender)) {
            Some(sender) => {
                sender.slots.judge(call.head.session, call.head.slot, call.head.sequence)
            }
            None => Verdict::Stale,
        }
    }

    /// Whether a server's change may still be done: asked right before it, with nothing in between.
    fn admit_copy(&self, call: &Call, groups: &[Group]) -> Result<(), Failure> {
        self.judge_sender(call, groups).map_err(Failure::Status)?;
        if self.judge_slot(call) == Verdict::New { Ok(()) } else { Err(Failure::Superseded) }
    }

    fn take_copy(
        self: Rc<Self>,
        call: Call,
        (file, order, pieces, source, checksums): (
            FileId,
            Order,
            Vec<ObjectRange>,
            Option<Source<'_>>,
            Bytes<'_>,
        ),
        responder: Responder,
    ) {
        let invalid = |_| Failure::from(Errno::EINVAL);
        let copied = Plan::new(pieces, self.store.object_bytes()).map_err(invalid);
        let copied = copied.and_then(|plan| {
            let sums = || plan::checksums(checksums.0, plan.checksums).map_err(invalid);
            let sums = source.is_some().then(sums).transpose()?;
            Ok(Copied { file, plan, checksums: sums })
        });
        let copied = match copied {
            Ok(copied) => copied,
            Err(failure) => return self.answer(call, responder, Err(failure)),
        };
        self.note_open(&call, order, &copied);
        let bulk = match source {
            Some(Source::Embedded(Bytes(bytes))) => Err(bytes.to_vec()),
            Some(Source::Bulk(bulk)) => match Region::new(call.peer, bulk, copied.plan.bytes) {
                Some(region) => Ok(region),
                None => return self.answer(call, responder, Err(Errno::EINVAL.into())),
            },
            None => Err(Vec::new()),
        };
        self.in_own_task(responder, async move |inner, responder| {
            let done = match bulk {
                Ok(region) => inner.copy_bulk(&call, &copied, region).await,
                Err(bytes) => inner.copy_bytes_here(&call, &copied, &bytes).await,
            };
            inner.answer(call, responder, done);
        });
    }

    async fn copy_bulk(
        &self,
        call: &Call,
        copied: &Copied,
        region: Region,
    ) -> Result<DataReply<'static>, Failure> {
        let lent = self.mirror.incoming.buffer(copied.plan.bytes).await?;
        let lent = self.mirror.incoming.get(region, 0, lent);
        let lent = self.mirror.incoming.end(lent).await?;
        self.copy_bytes_here(call, copied, &lent.buffer).await
    }

    async fn copy_bytes_here(
        &self,
        call: &Call,
        copied: &Copied,
        bytes: &[u8],
    ) -> Result<DataReply<'static>, Failure> {
        self.room().await?;
        let Copied { file, plan, checksums } = copied;
        let groups: Vec<Group> = plan.pieces.iter().map(|piece| piece.group).collect();
        self.admit_copy(call, &groups)?;
        // A repeated cut has to be done once more.
        self.epochs.borrow_mut().wrote_before_cut(*file);
        self.epochs.borrow_mut().note_elsewhere(call.sender.unwrap_or_default(), *file);
        match checksums {
            Some(checksums) if bytes.len() == plan.bytes as usize => {
                self.store_copy(*file, plan, bytes, checksums)
            }
            Some(_) => Err(Errno::EINVAL.into()),
            None => self.clear_copy(*file, plan),
        }
    }

    fn store_copy(
        &self,
        file: FileId,
        plan: &Plan,
        mut bytes: &[u8],
        mut sums: &[u32],
    ) -> Result<DataReply<'static>, Failure> {
        for piece in &plan.pieces {
            let blocks = super::order::blocks_of(file, piece).1.len();
            let (own, rest) = bytes.split_at(piece.len as usize);
            let (own_sums, more) = sums.split_at(blocks);
            (bytes, sums) = (rest, more);
            let group = GroupTag::new(piece.group.number());
            let object = Grouped { object: object(file, piece.stripe), group };
            let written = self.store.write(object, u64::from(piece.offset), &[own], own_sums, BY);
            written.map_err(|error| self.failed("write", &error))?;
        }
        self.activities.wrote(plan.bytes);
        Ok(DataReply::Written)
    }

    fn clear_copy(&self, file: FileId, plan: &Plan) -> Result<DataReply<'static>, Failure> {
        for piece in &plan.pieces {
            let (offset, len) = (u64::from(piece.offset), u64::from(piece.len));
            let punched = self.store.punch(object(file, piece.stripe), offset, len, BY);
            punched.map_err(|error| self.failed("punch", &error))?;
        }
        Ok(DataReply::Done)
    }

    /// Notes that a change was perhaps done here and not everywhere, and forgets those of which the sender says that they
    /// were.
    fn note_open(&self, call: &Call, order: Order, copied: &Copied) {
        let sender = (call.sender.unwrap_or_default(), call.head.session);
        let mut open = self.mirror.open.borrow_mut();
        for piece in &copied.plan.pieces {
            let open = open.entry(piece.group).or_default();
            open.hear(sender, order.done);
            let changes = open.changes.entry(order.number).or_default();
            changes.push(super::order::blocks_of(copied.file, piece));
        }
    }

    /// The objects of groups with changes that are perhaps not everywhere.
    pub(super) fn open_objects(&self, groups: &[Group]) -> Vec<ObjectName> {
        let open = self.mirror.open.borrow();
        let open = groups.iter().filter_map(|group| open.get(group));
        let changes = open.flat_map(|it| it.changes.values().flatten().chain(&it.inherited));
        let objects: BTreeSet<ObjectId> = changes.map(|(object, _)| *object).collect();
        let name =
            |ObjectId { inode, generation, stripe }| ObjectName { inode, generation, stripe };
        objects.into_iter().map(name).collect()
    }

    /// Cuts the copies of a file, as the orderer of their groups has done it.
    async fn cut_copy(
        &self,
        call: &Call,
        file: FileId,
        cut: (u32, u32),
        groups: &[Group],
    ) -> Result<DataReply<'static>, Failure> {
        self.room().await?;
        self.admit_copy(call, groups)?;
        let is_named = |tag: GroupTag| {
            tag.get().is_some_and(|group| groups.contains(&Group::from_number(group)))
        };
        // Reads of before the cut are refused from now on.
        self.epochs.borrow_mut().admit(file, None);
        self.epochs.borrow_mut().note_elsewhere(call.sender.unwrap_or_default(), file);
        self.cut_objects(file, cut, BY, Some(&is_named))?;
        // The metadata server forgets the cut when it is done.
        let synced = self.store.sync(&[]).await;
        synced.map_err(|error| self.failed("sync", &error))?;
        Ok(DataReply::Done)
    }
}

/// The groups that a server's call is about.
fn groups_of(request: &DataRequest<'_>) -> Vec<Group> {
    match request {
        DataRequest::Copy { pieces, .. } | DataRequest::Read { pieces, .. } => {
            pieces.iter().map(|piece| piece.group).collect()
        }
        DataRequest::Table { group, .. } => vec![*group],
        DataRequest::Settle { groups } | DataRequest::Truncate { groups, .. } => groups.clone(),
        _ => Vec::new(),
    }
}
