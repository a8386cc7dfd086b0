//! Calls as they come in: judged, checked, answered at once where nothing waits, or handed to a task.
//!
//! The rules (`docs/design/071-trust.md`): a session's calls come from the endpoint to which the metadata
//! server gave it. Calls that belong to no session come from members of the cluster that have proven their
//! membership, except the request for the server's status.

use std::pin::pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use ropewalk_net::PeerId;
use ropewalk_net::peers::PeerUser;
use ropewalk_rpc::slots::{Owned, Verdict};
use ropewalk_rpc::{Handler, Incoming, Responder, Secret};
use ropewalk_wire::fs::data::{
    DataRequest, EMBEDDED_BYTES_MAX, FileId, GROUPS_MAX, ObjectRange, Source,
};
use ropewalk_wire::fs::decode;
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::head::{CallHead, Service, Status};
use ropewalk_wire::fs::term::Term;
use ropewalk_wire::fs::trust::{Member, Role};
use ropewalk_wire::fs::value::{Bytes, Errno};

use crate::bulk::Region;
use crate::clean::Wanted;
use crate::config::Defect;
use crate::epochs::Standing;
use crate::failure::Failure;
use crate::membership::Herald;
use crate::mirror::is_among_servers;
use crate::plan::{self, Plan};
use crate::read::Read;
use crate::server::{Call, Inner, body_of};
use crate::vouching::{Word, Worth};
use crate::witness::ballot_of;
use crate::write::Write;

impl Handler for Inner {
    fn secret(&self) -> Option<Secret> {
        Some(self.secret.clone())
    }

    fn saw_pretender(&self, member: Member, _peer: PeerId) {
        self.activities.refused();
        let Member { role, number } = member;
        self.lines.say(&format!(
            "refused a caller that claims to be {role:?} server {number} of this cluster and does \
             not know its secret"
        ));
    }

    fn handle(self: Rc<Self>, incoming: Incoming, mut responder: Responder) {
        self.requests.set(self.requests.get() + 1);
        let head = incoming.head;
        let (peer, keep, limited, sender) = (incoming.peer, false, false, None);
        let mut call = Call { peer, head, keep, limited, sender };
        if self.stopping.get() {
            return self.refuse(responder, Status::Unavailable);
        }
        if head.service == Service::Election {
            return self.vote(incoming, responder);
        }
        let request = match decode::<DataRequest<'_>>(incoming.body()) {
            Ok(request) if head.service == Service::Data => request,
            _ => return self.refuse(responder, Status::Malformed),
        };
        if is_among_servers(&request, &incoming) {
            self.activities.count(&request);
            return self.take_from_server(&incoming, request, responder);
        }
        let admitted = self.admit(&incoming, &request);
        if admitted == Err(Failure::Unvouched) {
            self.requests.set(self.requests.get() - 1);
            responder.note_arrival(self.world.now());
            return self.park(incoming, responder);
        }
        if admitted.is_ok() && is_order(&head, &request) {
            match self.judge_order(&head) {
                Ok(None) => {}
                Ok(Some(herald)) => {
                    self.requests.set(self.requests.get() - 1);
                    responder.note_arrival(self.world.now());
                    return self.take_when_noted(herald, incoming, responder);
                }
                Err(status) => return self.refuse(responder, status),
            }
        }
        responder.note_kind(self.activities.count(&request), self.world.now());
        match admitted {
            Ok(limited) => call.limited = limited,
            Err(failure) => return self.answer(call, responder, Err(failure)),
        }
        if head.session != 0 {
            if head.epoch < self.store.minimum_epoch(head.session) {
                return self.refuse(responder, Status::Fenced);
            }
            if changes(&request) && !self.has_fences() {
                return self.refuse(responder, Status::Unavailable);
            }
            let verdict = self.slots.borrow_mut().judge(head.session, head.slot, head.sequence);
            match verdict {
                Verdict::New => call.keep = !matches!(request, DataRequest::Read { .. }),
                Verdict::Again(body) => return self.send_body(responder, Status::Done, body),
                Verdict::Stale => return self.refuse(responder, Status::BadSequence),
            }
            let groups = groups_of(&request);
            let judged = match &request {
                DataRequest::Read { .. } => self.check_readable(&head, groups),
                DataRequest::Sync { groups, .. } if groups.is_empty() => {
                    self.groups.borrow().judge_sync(head.map).map_err(Failure::Status)
                }
                _ => self.check_groups(&head, groups, changes(&request)).map_err(Failure::Status),
            };
            if let Err(failure) = judged {
                return self.answer(Call { keep: false, ..call }, responder, Err(failure));
            }
        }
        self.take(call, request, responder);
    }
}

/// Whether a request that is admitted comes from a metadata server, and does something in the name of the history.
fn is_order(head: &CallHead, request: &DataRequest<'_>) -> bool {
    use DataRequest as D;
    head.session == 0 && !operates(request) && !matches!(request, D::Status)
}

/// Whether only those who look after the cluster may ask for it.
fn operates(request: &DataRequest<'_>) -> bool {
    use DataRequest as D;
    matches!(request, D::List { .. } | D::Examine { .. } | D::Clean { .. } | D::Scrub { .. })
}

/// Whether a request of a session changes objects.
fn changes(request: &DataRequest<'_>) -> bool {
    use DataRequest as D;
    matches!(request, D::Write { .. } | D::Punch { .. } | D::Truncate { .. })
}

/// The groups that a client's request is about.
fn groups_of<'a>(request: &'a DataRequest<'_>) -> impl Iterator<Item = Group> + use<'a> {
    use DataRequest as D;
    let (pieces, groups): (&[ObjectRange], &[Group]) = match request {
        D::Write { pieces, .. } | D::Read { pieces, .. } | D::Punch { pieces, .. } => (pieces, &[]),
        D::Sync { groups, .. } => (&[], groups),
        _ => (&[], &[]),
    };
    pieces.iter().map(|piece| piece.group).chain(groups.iter().copied())
}

impl Inner {
    /// Answers a ballot, where this server is a witness.
    fn vote(self: Rc<Self>, incoming: Incoming, responder: Responder) {
        let Some(witness) = self.witness.clone() else {
            return self.refuse(responder, Status::Malformed);
        };
        match ballot_of(&incoming) {
            Ok(ballot) => self.in_task(responder, async move |inner, responder| {
                let answer = witness.answer(&ballot).await;
                match answer.filter(|_| inner.refusal.borrow().is_none()) {
                    Some(body) => inner.send_body(responder, Status::Done, body),
                    None => inner.refuse(responder, Status::Unavailable),
                }
            }),
            Err(Status::Unproven) => {
                self.stranger(Failure::Status(Status::Unproven));
                self.refuse(responder, Status::Unproven);
            }
            Err(status) => self.refuse(responder, status),
        }
    }

    /// Whether this server is in the groups of these ranges, as far as the caller could know. Where the caller knows a
    /// newer map, this server asks for it at once.
    pub(crate) fn check_groups(
        &self,
        head: &CallHead,
        groups: impl IntoIterator<Item = Group>,
        writes: bool,
    ) -> Result<(), Status> {
        let now = self.world.now();
        let judged = self.groups.borrow().judge(head.map, groups, writes, now);
        if judged == Err(Status::Unavailable) {
            self.map_wanted.notify_all();
        }
        judged
    }

    /// As [`Inner::check_groups`], of ranges that are read: any member in step may serve them.
    pub(crate) fn check_readable(
        &self,
        head: &CallHead,
        groups: impl IntoIterator<Item = Group>,
    ) -> Result<(), Failure> {
        let now = self.world.now();
        let judged = self.groups.borrow().judge_read(head.map, groups, now);
        if judged == Err(Failure::Status(Status::Unavailable)) {
            self.map_wanted.notify_all();
        }
        judged
    }

    /// Whether a metadata server of this term has a say here.
    pub(crate) fn is_heard(&self, term: Term) -> bool {
        let believes = self.mirror.defect == Some(Defect::AnyTerm);
        self.herald.as_ref().is_none_or(|herald| believes || herald.is_heard(term))
    }

    /// Whether a metadata server has a say here. Returns the herald that has to note its term before that.
    fn judge_order(&self, head: &CallHead) -> Result<Option<Rc<Herald>>, Status> {
        let term = Term(head.term);
        if !self.is_heard(term) {
            return Err(Status::OlderTerm);
        }
        let Some(herald) = &self.herald else { return Ok(None) };
        // Calls of a former version name no map.
        if head.map != 0 && self.is_older_copy(herald.history(), head.map, term) {
            // The next heartbeat tells the metadata server, and people.
            self.map_wanted.notify_all();
            return Err(Status::Unavailable);
        }
        let believes = self.mirror.defect == Some(Defect::AnyTerm);
        Ok(Some(herald.clone()).filter(|_| !believes && !herald.is_noted(term)))
    }

    /// Whether who sent a call may ask for that at all; and if he may, whether his session is limited.
    fn admit(&self, incoming: &Incoming, request: &DataRequest<'_>) -> Result<bool, Failure> {
        use DataRequest as D;
        let (head, role) = (incoming.head, incoming.member.map(|member| member.role));
        if head.session == 0 {
            return match request {
                D::Status => Ok(false),
                _ if operates(request) && self.is_administrator(incoming) => Ok(false),
                D::Reap { .. } | D::Fence { .. } | D::Truncate { .. } | D::Punch { .. }
                    if role == Some(Role::Metadata) =>
                {
                    Ok(false)
                }
                // Outside of a session nobody could tell a late copy of it.
                D::Write { .. } | D::Read { .. } => Err(Failure::Status(Status::NoSession)),
                _ => Err(self.stranger(Failure::Status(Status::Unproven))),
            };
        }
        let owner = Owned::checked(&head, incoming.origin, &self.grantor, &self.slots.borrow());
        if owner.is_some_and(|(owner, _)| owner.limited) {
            match self.vouching.borrow_mut().session(head.session, self.world.now()) {
                Word::Lives => {}
                Word::Gone => return Err(self.stranger(Failure::Status(Status::NoSession))),
                Word::Unknown => return Err(Failure::Unvouched),
            }
        }
        if let Some((owner, false)) = owner {
            self.slots.borrow_mut().own(head.session, owner);
        }
        match (owner.map(|(owner, _)| owner.limited), request) {
            (None, _) => Err(self.stranger(Failure::Status(Status::NoSession))),
            (
                Some(_),
                D::List { .. }
                | D::Examine { .. }
                | D::Reap { .. }
                | D::Fence { .. }
                | D::Copy { .. }
                | D::Settle { .. }
                | D::Table { .. }
                | D::Ended { .. }
                | D::Unreadable { .. }
                | D::Seen { .. }
                | D::Clean { .. }
                | D::Scrub { .. },
            ) => Err(self.stranger(Failure::Status(Status::Unproven))),
            (Some(false), _) => Ok(false),
            (Some(true), D::Sync { .. } | D::Status) => Ok(true),
            (Some(true), D::Read { file, .. }) => {
                self.check_capability(&head, file, false).map(|()| true)
            }
            (
                Some(true),
                D::Write { file, .. } | D::Punch { file, .. } | D::Truncate { file, .. },
            ) => self.check_capability(&head, file, true).map(|()| true),
        }
    }

    /// Whether somebody looks after the cluster: a member of it, or a user of this host who could read
    /// the store, too.
    fn is_administrator(&self, incoming: &Incoming) -> bool {
        let own = || self.endpoint.endpoint().peer_user(incoming.peer) == PeerUser::Own;
        incoming.member.is_some() || own()
    }

    /// A bound session changes or reads only the files for which the metadata server gave it a capability. One of another
    /// generation of the file looks like one that nobody gave: both are old.
    fn check_capability(
        &self,
        head: &CallHead,
        file: &FileId,
        writes: bool,
    ) -> Result<(), Failure> {
        let old = Failure::Status(Status::OldCapability);
        let capability = head.capability.ok_or(old)?;
        let of = (file.inode, file.generation);
        if !self.grantor.check_capability(head.session, of, &capability) {
            return Err(old);
        }
        let worth = self.vouching.borrow_mut().judge(&capability, self.world.now());
        match worth {
            Worth::Old => return Err(old),
            Worth::Unknown => return Err(Failure::Unvouched),
            Worth::Counts => {}
        }
        match if writes { capability.writes } else { capability.reads } {
            true => Ok(()),
            false => Err(self.stranger(Errno::EACCES.into())),
        }
    }

    /// Counts a call of a caller that may not make it.
    fn stranger(&self, failure: Failure) -> Failure {
        if self.activities.refused() == 0 {
            self.lines.say(
                "refused calls of programs that are not servers of this cluster: 'ropewalk status \
                 --json' counts them",
            );
        }
        failure
    }

    /// Checks a request and answers it, now or from a task.
    fn take(self: Rc<Self>, call: Call, request: DataRequest<'_>, responder: Responder) {
        match request {
            DataRequest::Write { file, pieces, source, checksums } => {
                let write = self.check_write(&call, file, pieces, checksums);
                match write {
                    Ok(write) => self.take_write(call, write, source, responder),
                    Err(failure) => self.answer(call, responder, Err(failure)),
                }
            }
            DataRequest::Read { file, pieces, bulk, verify } => {
                let current = match call.limited {
                    true => self.judged(file, self.epochs.borrow().standing(file)),
                    false => self.check_file(&call, file),
                };
                let read = current.and_then(|()| {
                    let plan = Plan::new(pieces, self.store.object_bytes());
                    plan.map_err(|_| Errno::EINVAL.into())
                });
                match (read, bulk) {
                    (Err(failure), _) => self.answer(call, responder, Err(failure)),
                    (Ok(plan), None) if plan.bytes > EMBEDDED_BYTES_MAX => {
                        self.answer(call, responder, Err(Errno::EINVAL.into()));
                    }
                    (Ok(plan), None) if self.are_mirrored(&plan.pieces) => {
                        let read = Read { file, plan, verify, for_orderer: false };
                        self.start(call, responder, async move |inner| {
                            inner.read_copied(call, &read).await
                        });
                    }
                    (Ok(plan), None) => {
                        let body =
                            self.read_embedded(&Read { file, plan, verify, for_orderer: false });
                        self.answer_body(call, responder, body);
                    }
                    (Ok(plan), Some(bulk)) => match Region::new(call.peer, bulk, plan.bytes) {
                        None => self.answer(call, responder, Err(Errno::EINVAL.into())),
                        Some(region) => self.start(call, responder, async move |inner| {
                            inner
                                .read_bulk(
                                    call,
                                    &Read { file, plan, verify, for_orderer: false },
                                    region,
                                )
                                .await
                        }),
                    },
                }
            }
            DataRequest::Status => {
                let status = self.status();
                self.answer(call, responder, status);
            }
            other => self.take_change(call, other, responder),
        }
    }

    /// Requests that move no bytes and wait for the disk.
    fn take_change(self: Rc<Self>, call: Call, request: DataRequest<'_>, responder: Responder) {
        match request {
            DataRequest::Punch { file, pieces } => {
                let checked = self.check_file(&call, file).and_then(|()| {
                    let checked = plan::check(&pieces, self.store.object_bytes());
                    checked.map_err(|_| Errno::EINVAL.into())
                });
                match checked {
                    Ok(()) => self.start(call, responder, async move |inner| {
                        body_of(inner.punch(call, file, &pieces).await)
                    }),
                    Err(failure) => self.answer(call, responder, Err(failure)),
                }
            }
            DataRequest::Truncate { file, stripe, offset, groups } => {
                if groups.len() > GROUPS_MAX {
                    return self.answer(call, responder, Err(Errno::EINVAL.into()));
                }
                match self.check_file(&call, file) {
                    Ok(()) => self.start(call, responder, async move |inner| {
                        body_of(inner.truncate(call, file, (stripe, offset), &groups).await)
                    }),
                    Err(failure) => self.answer(call, responder, Err(failure)),
                }
            }
            DataRequest::Sync { files, groups } => {
                if files.is_empty() || groups.len() > GROUPS_MAX {
                    return self.answer(call, responder, Err(Errno::EINVAL.into()));
                }
                self.start(call, responder, async move |inner| {
                    body_of(inner.sync(&files, &groups).await)
                })
            }
            DataRequest::Reap { inodes } => {
                self.start(call, responder, async move |inner| body_of(inner.reap(&inodes).await))
            }
            DataRequest::Fence { session, epoch } => {
                self.start(call, responder, async move |inner| {
                    body_of(inner.fence(session, epoch).await)
                });
            }
            DataRequest::List { after, bytes_max } => {
                self.start(call, responder, async move |inner| {
                    body_of(inner.list(after, bytes_max).await)
                });
            }
            DataRequest::Examine { objects, read } => {
                self.start(call, responder, async move |inner| {
                    body_of(inner.examine(&objects, read).await)
                });
            }
            DataRequest::Clean { map, after, remove, restored } => {
                let wanted = Wanted { map, remove, restored };
                self.start(call, responder, async move |inner| {
                    body_of(inner.clean(wanted, after).await)
                });
            }
            DataRequest::Scrub { after, bytes_max } => {
                self.start(call, responder, async move |inner| {
                    body_of(inner.scrub_some(after, bytes_max).await)
                });
            }
            _ => unreachable!("the other requests were taken before"),
        }
    }

    fn take_write(
        self: Rc<Self>,
        call: Call,
        write: Write,
        source: Source<'_>,
        responder: Responder,
    ) {
        match source {
            Source::Embedded(Bytes(bytes)) => {
                let fits = bytes.len() as u64 == u64::from(write.plan.bytes);
                if !fits || write.plan.bytes > EMBEDDED_BYTES_MAX {
                    return self.answer(call, responder, Err(Errno::EINVAL.into()));
                }
                if self.are_mirrored(&write.plan.pieces) {
                    let bytes = bytes.to_vec();
                    return self.start(call, responder, async move |inner| {
                        body_of(inner.write_copied(call, &write, &bytes).await)
                    });
                }
                if let Some(room) = at_once(self.room()) {
                    let done = room.and_then(|()| self.write_bytes(call, &write, bytes));
                    return self.answer(call, responder, done);
                }
                let bytes = bytes.to_vec();
                self.start(call, responder, async move |inner| {
                    body_of(inner.write_later(call, &write, &bytes).await)
                });
            }
            Source::Bulk(bulk) => match Region::new(call.peer, bulk, write.plan.bytes) {
                None => self.answer(call, responder, Err(Errno::EINVAL.into())),
                Some(region) => self.start(call, responder, async move |inner| {
                    body_of(inner.write_bulk(call, &write, region).await)
                }),
            },
        }
    }

    fn check_write(
        &self,
        call: &Call,
        file: FileId,
        pieces: Vec<ObjectRange>,
        checksums: Bytes<'_>,
    ) -> Result<Write, Failure> {
        self.check_file(call, file)?;
        let plan = Plan::new(pieces, self.store.object_bytes());
        let plan = plan.map_err(|_| Errno::EINVAL)?;
        let checksums = plan::checksums(checksums.0, plan.checksums).map_err(|_| Errno::EINVAL)?;
        Ok(Write { file, plan, checksums })
    }

    /// Refuses a file's older write epochs.
    pub(crate) fn check_file(&self, call: &Call, file: FileId) -> Result<(), Failure> {
        let limited = call.limited.then_some(call.head.session);
        let standing = self.epochs.borrow_mut().admit(file, limited);
        self.judged(file, standing)
    }

    fn judged(&self, file: FileId, standing: Standing) -> Result<(), Failure> {
        let mut vouching = self.vouching.borrow_mut();
        match standing {
            Standing::Current => Ok(()),
            Standing::Disputed if vouching.asks => {
                vouching.dispute(file.inode);
                Err(Failure::Status(Status::Unavailable))
            }
            Standing::Stale | Standing::Disputed => Err(Errno::ESTALE.into()),
        }
    }
}

/// A future's result, where it is there without waiting; the future is given up otherwise.
fn at_once<T>(future: impl Future<Output = T>) -> Option<T> {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(value) => Some(value),
        Poll::Pending => None,
    }
}
