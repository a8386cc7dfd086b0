//! One call to the metadata server, from request to reply.

use ropewalk_rpc::{CallError, Reply, Terms};
use ropewalk_wire::fs::head::{ReplyHead, Service};
use ropewalk_wire::fs::meta::{MetaReply, MetaRequest, MetaResult};
use ropewalk_wire::fs::value::Errno;
use ropewalk_wire::fs::{decode, encode};

use crate::client::Client;
use crate::inode::{Inode, Position};

/// Room for a directory listing in a reply.
pub(crate) const LISTING_BYTES: usize = 128 * 1024;

impl Client {
    /// Asks the metadata server; `read` sees the reply while it is borrowed.
    pub(crate) async fn ask<T>(
        &self,
        request: &MetaRequest<'_>,
        read: impl FnOnce(MetaReply<'_>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.ask_again(request, true, read).await
    }

    /// As [`Client::ask`], for a request that a lease of this session allows, or that would be executed
    /// beside others' leases: in another session it is not sent again (`ESTALE`).
    pub(crate) async fn ask_under_lease<T>(
        &self,
        request: &MetaRequest<'_>,
        read: impl FnOnce(MetaReply<'_>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.ask_again(request, false, read).await
    }

    async fn ask_again<T>(
        &self,
        request: &MetaRequest<'_>,
        in_next_session: bool,
        read: impl FnOnce(MetaReply<'_>) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let mut body = Vec::with_capacity(128);
        encode(request, &mut body);
        let listing =
            matches!(request, MetaRequest::ReadDirectory { .. } | MetaRequest::ListInodes { .. });
        let reply = self.send(&body, listing, in_next_session).await?;
        match decode::<MetaResult<'_>>(reply.body()) {
            Ok(Ok(reply)) => read(reply),
            Ok(Err(errno)) => Err(errno),
            Err(_) => Err(Errno::EPROTO),
        }
    }

    /// Notes how far the server's history has come.
    pub(crate) fn saw_marks(&self, head: &ReplyHead) {
        let before = self.inner.position.get();
        let (era, position) = (head.era, head.written);
        if before.era != era {
            self.inner.inodes.borrow().values().for_each(|inode| inode.doubt());
        }
        if before.era != era || before.position < position {
            self.inner.position.set(Position { era, position });
        }
        let mut eras = self.inner.durable.borrow_mut();
        let durable = eras.entry(era).or_default();
        *durable = head.durable.max(*durable);
    }

    /// A reply told of a change of the inode, which is not known to be durable.
    pub(crate) fn note_change(&self, inode: &Inode) {
        let before = inode.changed.replace(Some(self.inner.position.get()));
        if before.is_some_and(|before| !self.is_kept(before)) {
            // The change that is noted now must not hide that one.
            inode.state.borrow_mut().losses.add();
        }
    }

    /// Whether a change outlived everything that happened to the server since.
    pub(crate) fn is_kept(&self, changed: Position) -> bool {
        let durable = self.inner.durable.borrow().get(&changed.era).copied();
        changed.era == self.inner.position.get().era || durable >= Some(changed.position)
    }

    async fn send(
        &self,
        body: &[u8],
        listing: bool,
        in_next_session: bool,
    ) -> Result<Reply, Errno> {
        let mut renewed = false;
        loop {
            self.count(|counts| counts.meta_calls += 1);
            let meta = &self.inner.meta;
            let session = meta.session();
            let outcome = if listing {
                meta.call_with(Service::Meta, body, LISTING_BYTES + 4096).await
            } else if !in_next_session {
                let terms = Terms { session: Some(session), ..Terms::default() };
                meta.call_as(terms, Service::Meta, body).await
            } else {
                meta.call(Service::Meta, body).await
            };
            match outcome {
                Ok(reply) => {
                    self.saw_marks(&reply.head);
                    self.saw_boot(reply.head.boot);
                    return Ok(reply);
                }
                Err(CallError::NoSession | CallError::Fenced) if !renewed => {
                    // The session's leases and locks are gone; the present request is sent anew.
                    renewed = true;
                    self.lost_session(session).await?;
                    if !in_next_session {
                        return Err(Errno::ESTALE);
                    }
                }
                Err(error) => return Err(self.gave_up(error)),
            }
        }
    }

    /// Notes that a call has no reply. Returns the error that a program sees.
    pub(crate) fn gave_up(&self, error: CallError) -> Errno {
        if error == CallError::TimedOut {
            self.inner.unanswered.set(self.inner.unanswered.get() + 1);
        }
        errno_of(error)
    }

    /// Calls that no server answered in time. While there are none, an `EIO` is about the file that it was
    /// told for, and the next file may be sound.
    pub fn unanswered(&self) -> u64 {
        self.inner.unanswered.get()
    }
}

/// The error that a program sees for a call without a reply.
pub(crate) fn errno_of(error: CallError) -> Errno {
    match error {
        CallError::NoMemory => Errno::ENOMEM,
        CallError::TooLong => Errno::E2BIG,
        CallError::Malformed | CallError::BadSequence => Errno::EPROTO,
        _ => Errno::EIO,
    }
}

/// A reply of another kind than the request has.
pub(crate) fn unexpected<T>() -> Result<T, Errno> {
    Err(Errno::EPROTO)
}
