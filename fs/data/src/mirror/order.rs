//! The orderer's side: a change that is done here is done at all members before anybody hears that it is.

use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::memory::Memory;
use ropewalk_base::task::{Either, Receiver, join_all, race};
use ropewalk_net::Audience;
use ropewalk_wire::fs::data::{
    BLOCK_BYTES, Bulk, DataRequest, EMBEDDED_BYTES_MAX, FileId, GROUPS_MAX, ObjectRange, Order,
    Source,
};
use ropewalk_wire::fs::encode;
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::meta::Step;
use ropewalk_wire::fs::value::{Bytes, Errno};

use super::Blocks;
use super::locks::Guard;
use super::peers::Sent;
use super::place::Place;
use crate::bulk::Lent;
use crate::config::Defect;
use crate::failure::Failure;
use crate::plan::Chunk;
use crate::server::{Call, Inner};
use crate::write::{Write, object};

/// A member that does not answer for so long is out of step.
const ANSWER_LIMIT: Duration = Duration::from_secs(4);
/// A newcomer that does not answer for so long is brought into step later.
const HEARING_LIMIT: Duration = Duration::from_secs(1);
/// The pause between two looks at the link of a member that has not answered yet.
const LINK_PAUSE: Duration = Duration::from_millis(50);
/// The pause before a buffer is made accessible once more.
const EXPOSE_PAUSE: Duration = Duration::from_millis(20);
/// The pause before the metadata server is told again that a member is out of step.
const REPORT_PAUSE: Duration = Duration::from_millis(200);

/// The servers that a change goes to.
#[derive(Debug, Clone, Copy)]
pub(super) enum To {
    Hearers,
    One(u32),
}

/// Bytes of a change.
pub(crate) enum Held<'a> {
    /// Of a small one: they travel in the calls.
    Small(&'a [u8]),
    Lent(Lent),
}

impl Held<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            Held::Small(bytes) => bytes,
            Held::Lent(lent) => &lent.buffer,
        }
    }
}

/// A change that was done here.
pub(super) struct Change<'a> {
    pub group: Group,
    pub file: FileId,
    pub pieces: &'a [ObjectRange],
    /// None: the ranges read as zeros.
    pub source: Option<Source<'a>>,
    pub checksums: &'a [u8],
}

/// The blocks that a range touches.
pub(crate) fn blocks_of(file: FileId, range: &ObjectRange) -> Blocks {
    let ObjectRange { stripe, offset, len, .. } = *range;
    let end = (u64::from(offset) + u64::from(len)).div_ceil(u64::from(BLOCK_BYTES)) as u32;
    (object(file, stripe), offset / BLOCK_BYTES..end)
}

impl Inner {
    /// The other servers of a group that have to hear of changes. An error: this server does not order it.
    fn hearers(&self, group: Group) -> Result<Vec<u32>, Failure> {
        let groups = self.groups.borrow();
        let Some(membership) = groups.ordered(group) else { return Err(Failure::Superseded) };
        let others: Vec<u32> = membership.holders().filter(|it| *it != self.server).collect();
        drop(groups);
        let hears = |server: &u32| self.place(group, *server) != Place::Outside;
        Ok(others.into_iter().filter(hears).collect())
    }

    /// The other members of groups that this server orders.
    pub(super) fn members(&self, group: Group) -> Vec<u32> {
        let groups = self.groups.borrow();
        let members = groups.ordered(group).map(|it| it.servers.clone()).unwrap_or_default();
        members.into_iter().filter(|server| *server != self.server).collect()
    }

    /// Waits for a server's answer to a call about a group. None: the group does without it. An error: this server does not
    /// order the group any more, and nobody may hear that anything was done.
    pub(super) async fn answer_of(
        &self,
        group: Group,
        server: u32,
        answer: &mut Receiver<Sent>,
    ) -> Result<Option<Vec<u8>>, Failure> {
        let begin = self.world.now();
        let mut refused = None;
        loop {
            let changed = self.mirror.changed.notified();
            if self.stopping.get() {
                return Err(Failure::Superseded);
            }
            let place = self.place(group, server);
            match place {
                Place::Deposed => return Err(Failure::Superseded),
                Place::Outside => return Ok(None),
                Place::Member | Place::Hearing => {}
            }
            let hurries = self.mirror.defect == Some(Defect::EarlyDrop);
            let short = place == Place::Hearing || hurries;
            let limit = if short { HEARING_LIMIT } else { ANSWER_LIMIT };
            let late = self.world.now().since(begin) >= limit;
            if late || refused.is_some() {
                if place == Place::Hearing {
                    self.mirror.break_pass(group, server);
                    continue;
                }
                if self.mirror.defect == Some(Defect::EarlyDrop) {
                    return Ok(None);
                }
                self.tell_of_missing(group, server, refused).await;
                let _ = race(changed, self.world.sleep(REPORT_PAUSE)).await;
                continue;
            }
            let look = self.world.now() + LINK_PAUSE;
            let wait = race(changed, self.world.sleep_until(look.min(begin + limit)));
            match race(&mut *answer, wait).await {
                Either::Left(Some(Sent::Done(body))) => return Ok(Some(body)),
                // The inode is gone for good there, and soon will be here.
                Either::Left(Some(Sent::Refused(Errno::ESTALE))) => return Ok(None),
                Either::Left(Some(Sent::Refused(errno))) => refused = Some(errno),
                Either::Left(Some(Sent::Gone) | None) => refused = Some(Errno::EIO),
                // The map may say soon that it is out of the group.
                Either::Right(Either::Right(())) if self.is_linkless(server) => {
                    self.map_wanted.notify_all();
                }
                Either::Right(_) => {}
            }
        }
    }

    /// Tells the metadata server that a member is out of step.
    async fn tell_of_missing(&self, group: Group, server: u32, why: Option<Errno>) {
        let Some(herald) = &self.herald else { return };
        let how = match why {
            Some(errno) => format!("refuses a change: {errno}"),
            None => "does not answer".to_owned(),
        };
        self.lines
            .say(&format!("data server {server} {how}; its groups go on without it, see its log"));
        self.groups.borrow_mut().report(group, server);
        let map = self.groups.borrow().epoch();
        let groups = Step::numbers(&[group]);
        let groups = Bytes(&groups);
        let step = Step { groups, by: self.server, map, server, in_step: false };
        herald.set_step(step).await;
        self.map_wanted.notify_all();
    }

    /// Has a change done by other servers of its group. Its blocks are locked.
    pub(super) async fn copy(&self, change: &Change<'_>, to: To) -> Result<(), Failure> {
        let hearers = match (to, self.hearers(change.group)?) {
            (To::Hearers, hearers) => hearers,
            (To::One(server), _) => vec![server],
        };
        if hearers.is_empty() {
            self.alone(change.group).await;
            return Ok(());
        }
        let Change { group, file, pieces, source, checksums } = *change;
        let number = self.mirror.begin(group);
        // Before the group is settled, its members may differ in what former orderers did.
        let done = if self.groups.borrow().serves(group) { self.mirror.done(group) } else { 0 };
        let order = Order { number, done };
        let (pieces, checksums) = (pieces.to_vec(), Bytes(checksums));
        let mut body = Vec::new();
        encode(&DataRequest::Copy { file, order, pieces, source, checksums }, &mut body);
        let body: Rc<[u8]> = body.into();
        let sent: Vec<_> = hearers
            .into_iter()
            .map(|server| (server, self.send(group, server, body.clone())))
            .collect();
        if self.mirror.defect == Some(Defect::EarlyReplies) {
            return Ok(());
        }
        let answers = sent.into_iter().map(|(server, mut sent)| async move {
            self.answer_of(group, server, &mut sent).await
        });
        for answer in join_all(answers).await {
            answer?;
        }
        self.alone(group).await;
        self.mirror.end(group, number);
        Ok(())
    }

    /// Writes a chunk of a client's write here and at the other servers of its groups.
    pub(crate) async fn write_mirrored(
        &self,
        call: Call,
        write: &Write,
        chunk: &Chunk,
        held: Held<'_>,
        checksums: &mut &[u32],
    ) -> Result<(), Failure> {
        let range = |part: &crate::plan::Part| ObjectRange {
            stripe: part.stripe,
            group: write.plan.pieces[part.piece].group,
            offset: part.offset,
            len: part.len,
        };
        let pieces: Vec<ObjectRange> = chunk.parts.iter().map(range).collect();
        let _guard = self.lock(write.file, &pieces).await;
        let sums = *checksums;
        if let Err(failure) = self.write_chunk(call, write, chunk, held.bytes(), checksums) {
            // Some of it may have been done.
            self.level_ranges(write.file, &pieces).await?;
            return Err(failure);
        }
        let sums: Vec<u8> =
            sums[..sums.len() - checksums.len()].iter().flat_map(|sum| sum.to_le_bytes()).collect();
        self.copy_bytes(write.file, &pieces, held, &sums, To::Hearers).await
    }

    /// Sends the bytes of ranges, which follow each other, to the other servers of their groups.
    pub(super) async fn copy_bytes(
        &self,
        file: FileId,
        pieces: &[ObjectRange],
        held: Held<'_>,
        sums: &[u8],
        to: To,
    ) -> Result<(), Failure> {
        let Lent { buffer, permit: _permit } = match held {
            Held::Lent(lent) if lent.buffer.len() > EMBEDDED_BYTES_MAX as usize => lent,
            small => {
                let copied = self.copy_runs(file, pieces, sums, to, |bytes| {
                    Source::Embedded(Bytes(&small.bytes()[bytes]))
                });
                return copied.await;
            }
        };
        let mut memory = Memory::pooled(buffer);
        let key = loop {
            match self.endpoint.expose(memory, false, Audience::Everybody) {
                Ok(key) => break key,
                // There are too many regions just now, and the change is done here already.
                Err((back, _)) => memory = back,
            }
            if self.stopping.get() {
                return Err(Failure::Superseded);
            }
            self.world.sleep(EXPOSE_PAUSE).await;
        };
        let copied = self
            .copy_runs(file, pieces, sums, to, |bytes| {
                let offset = bytes.start as u64;
                Source::Bulk(Bulk { key_slot: key.slot.to_u64(), key_secret: key.secret, offset })
            })
            .await;
        // Nobody gets anything from the buffer any more when it goes back to its pool.
        self.endpoint.unexpose(key).await;
        copied
    }

    /// Sends ranges to the other servers of their groups: neighbours of one group together.
    async fn copy_runs<'a>(
        &self,
        file: FileId,
        pieces: &[ObjectRange],
        mut sums: &[u8],
        to: To,
        source: impl Fn(Range<usize>) -> Source<'a>,
    ) -> Result<(), Failure> {
        let (mut at, mut changes) = (0, Vec::new());
        for run in pieces.chunk_by(|a, b| a.group == b.group) {
            let bytes: usize = run.iter().map(|piece| piece.len as usize).sum();
            let blocks: usize = run.iter().map(|piece| blocks_of(file, piece).1.len()).sum();
            let (own, rest) = sums.split_at(4 * blocks);
            sums = rest;
            let source = Some(source(at..at + bytes));
            at += bytes;
            changes.push(Change { group: run[0].group, file, pieces: run, source, checksums: own });
        }
        let copied = changes.iter().map(|change| self.copy(change, to));
        join_all(copied).await.into_iter().collect()
    }

    /// Has ranges read as zeros at the other servers of their groups, as they do here.
    pub(crate) async fn punch_copies(
        &self,
        file: FileId,
        pieces: &[ObjectRange],
    ) -> Result<(), Failure> {
        for run in pieces.chunk_by(|a, b| a.group == b.group) {
            let change =
                Change { group: run[0].group, file, pieces: run, source: None, checksums: &[] };
            self.copy(&change, To::Hearers).await?;
        }
        Ok(())
    }

    /// Has the other servers of groups do what needs no order: the same request to each of them.
    pub(crate) async fn ask_hearers(
        &self,
        groups: &[Group],
        request: impl Fn(Vec<Group>) -> DataRequest<'static>,
    ) -> Result<(), Failure> {
        let mut asked: BTreeMap<u32, Vec<Group>> = BTreeMap::new();
        for group in groups {
            for server in self.hearers(*group)? {
                asked.entry(server).or_default().push(*group);
            }
        }
        let some = asked.iter().flat_map(|(server, groups)| {
            groups.chunks(GROUPS_MAX).map(move |groups| (*server, groups))
        });
        let request = &request;
        let answers = some.map(|(server, groups)| async move {
            let mut groups = groups.to_vec();
            loop {
                // Where one group does without the server, another may need it still.
                groups.retain(|group| self.place(*group, server) != Place::Outside);
                let Some(first) = groups.first().copied() else { return Ok(()) };
                let mut body = Vec::new();
                encode(&request(groups.clone()), &mut body);
                let mut sent = self.send_about(first, groups.clone(), server, body.into());
                let answer = self.answer_of(first, server, &mut sent);
                // It does not listen to a call that names a group of which it is not any more, or which it orders itself.
                let news = race(self.changes_place(&groups, server), answer).await;
                match news {
                    Either::Left(Place::Deposed) => return Err(Failure::Superseded),
                    // The former call must not come after what follows this one.
                    Either::Left(_) => self.ends(&groups, server, sent).await,
                    Either::Right(Err(failure)) => return Err(failure),
                    Either::Right(Ok(Some(_))) => return Ok(()),
                    Either::Right(Ok(None)) => {
                        let is_inside = |it: &Group| self.place(*it, server) != Place::Outside;
                        if groups.iter().all(is_inside) {
                            return Ok(());
                        }
                        self.ends(&groups, server, sent).await;
                    }
                }
            }
        });
        join_all(answers).await.into_iter().collect()
    }

    /// Completes when a call has ended, or all groups do without its server.
    async fn ends(&self, groups: &[Group], server: u32, mut sent: Receiver<Sent>) {
        loop {
            let changed = self.mirror.changed.notified();
            if groups.iter().all(|group| self.place(*group, server) == Place::Outside) {
                return;
            }
            if let Either::Left(_) = race(&mut sent, changed).await {
                return;
            }
        }
    }

    /// Completes when this server does not order one of these groups any more, or one does without the other server.
    async fn changes_place(&self, groups: &[Group], server: u32) -> Place {
        loop {
            let changed = self.mirror.changed.notified();
            let mut places = groups.iter().map(|group| self.place(*group, server));
            let is_over = |place: &Place| matches!(place, Place::Deposed | Place::Outside);
            if let Some(place) = places.find(is_over) {
                return place;
            }
            changed.await;
        }
    }

    /// Whether ranges are in groups of several members.
    pub(crate) fn are_mirrored(&self, pieces: &[ObjectRange]) -> bool {
        self.groups.borrow().are_mirrored(pieces.iter().map(|piece| piece.group))
    }

    /// Locks ranges of a file.
    pub(crate) async fn lock(&self, file: FileId, pieces: &[ObjectRange]) -> Guard {
        let blocks = pieces.iter().map(|piece| blocks_of(file, piece)).collect();
        self.mirror.locks.lock(blocks).await
    }

    /// Begins a cut of a file: one at a time, when all changes before it are at all members. Later ones of its time are refused, since
    /// the file's epoch is another one by now.
    pub(crate) async fn lock_cut(&self, file: FileId) -> Guard {
        let guard = self.mirror.cuts.lock(vec![(object(file, 0), 0..1)]).await;
        self.mirror.locks.free_of(file.inode, file.generation).await;
        guard
    }

    /// Waits until ranges may be read: nothing that is under way there can still come to nothing.
    pub(crate) async fn readable(&self, file: FileId, pieces: &[ObjectRange]) {
        let blocks: Vec<Blocks> = pieces.iter().map(|piece| blocks_of(file, piece)).collect();
        self.mirror.locks.free(&blocks).await;
    }
}
