//! Appends: the range of the file that each record gets.
//!
//! Invariant: a record that was given its range keeps it until it is written there or fails, however often
//! its transfer begins anew. Otherwise it would be in the file twice, or leave zeros behind. The size follows
//! the bytes, record by record: nobody sees the zeros where a record is still to come. The sole writer sees
//! to that by itself; among several the metadata server does, by the report of each. Therefore a client
//! reports a size only when all its records below are written or given up.

use std::rc::Rc;

use ropewalk_wire::fs::layout::Layout;
use ropewalk_wire::fs::meta::{LeaseMode, MetaReply, MetaRequest};
use ropewalk_wire::fs::value::Errno;

use crate::call::unexpected;
use crate::client::Client;
use crate::inode::Inode;

/// An append under way: the range that its record has, once it has one.
#[derive(Default)]
pub(crate) struct Append {
    claim: Option<Claim>,
}

/// A range at the end of the file. One that only the lease knows goes back with this.
struct Claim {
    inode: Rc<Inode>,
    offset: u64,
    /// A truncation makes another write epoch, and breaks the ground: the range at the old end may belong to
    /// others now. One of the two alone says nothing: a session that gave a change up makes a new epoch, too.
    epoch: u32,
    ground: u64,
    keeper: Keeper,
    /// The tenure of the lease in which the records behind it wait for this one.
    listed: Option<u64>,
}

/// The party that keeps others out of the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeper {
    /// The sole writer's lease, in this tenure. The server is not told before the bytes are there.
    Lease(u64),
    /// The metadata server, which counted the range to the size in this era.
    Server(u64),
}

impl Append {
    /// The record lies in its range, or the lease is about to go: a range that only the lease covers is
    /// the file's then, or nobody's. The records behind it wait no longer.
    pub fn leave_lease(&mut self) {
        self.claim.take_if(|claim| matches!(claim.keeper, Keeper::Lease(_)));
        self.claim.iter_mut().for_each(Claim::unlist);
    }
}

impl Claim {
    fn list(&mut self, end: u64) {
        let mut state = self.inode.state.borrow_mut();
        if self.listed == Some(state.tenure) {
            return;
        }
        self.listed = Some(state.tenure);
        let at = state.claims.partition_point(|claim| claim.0 < self.offset);
        state.claims.insert(at, (self.offset, end));
    }

    fn unlist(&mut self) {
        let mut state = self.inode.state.borrow_mut();
        if self.listed.take() == Some(state.tenure) {
            state.claims.retain(|claim| claim.0 != self.offset);
            drop(state);
            self.inode.placed.notify_all();
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.unlist();
    }
}

impl Inode {
    /// As [`Inode::appended_below`], for a writer without a range of its own: also appends that are about to
    /// get one.
    pub async fn appends_below(&self, end: u64) {
        drop(self.placing.acquire().await);
        self.appended_below(end).await;
    }

    /// Completes when no append of this client is under way that begins below `end`.
    pub async fn appended_below(&self, end: u64) {
        let tenure = self.state.borrow().tenure;
        let waits = || {
            let state = self.state.borrow();
            state.tenure == tenure && state.claims.first().is_some_and(|first| first.0 < end)
        };
        while waits() {
            self.placed.notified().await;
        }
    }
}

impl Client {
    /// The offset of an append's record. The sole writer knows the size; among several the server does.
    pub(crate) async fn place(
        &self,
        inode: &Rc<Inode>,
        append: &mut Append,
        (layout, tenure): (&Layout, u64),
        len: u64,
    ) -> Result<u64, Errno> {
        let era = || Keeper::Server(self.inner.position.get().era);
        let now = || {
            let state = inode.state.borrow();
            (state.epoch, state.ground)
        };
        let (epoch, ground) = now();
        append.claim.take_if(|claim| {
            claim.keeper != era() || (claim.epoch != epoch && claim.ground != ground)
        });
        if let Some(claim) = &mut append.claim {
            claim.list(claim.offset + len);
            return Ok(claim.offset);
        }
        // One at a time: a task that reports a size, or places a record by the lease, knows of all before.
        let _placing = inode.placing.acquire().await;
        if inode.state.borrow().tenure != tenure {
            // The lease went meanwhile: a range would be asked for without one.
            return Err(Errno::ESTALE);
        }
        let (epoch, ground) = now();
        let (offset, keeper) = match claim_here(inode, layout, len)? {
            Some(claimed) => claimed,
            None => {
                // The server gives ranges behind the size that it knows.
                self.try_report(inode).await?;
                (self.reserve(inode, epoch, len).await?, era())
            }
        };
        let mut claim = Claim { inode: inode.clone(), offset, epoch, ground, keeper, listed: None };
        claim.list(offset + len);
        append.claim = Some(claim);
        Ok(offset)
    }

    async fn reserve(&self, inode: &Inode, epoch: u32, len: u64) -> Result<u64, Errno> {
        let request = MetaRequest::ReserveAppend { inode: inode.number, epoch, len };
        self.ask_under_lease(&request, |reply| match reply {
            MetaReply::Written { offset, version, .. } => {
                let mut state = inode.state.borrow_mut();
                state.version = state.version.max(version);
                Ok(offset)
            }
            _ => unexpected(),
        })
        .await
    }
}

/// Takes a range by the sole writer's lease, if there is one.
fn claim_here(inode: &Inode, layout: &Layout, len: u64) -> Result<Option<(u64, Keeper)>, Errno> {
    let state = inode.state.borrow();
    let tenure = state.tenure;
    if state.mode != LeaseMode::Write {
        return Ok(None);
    }
    let Some(size) = state.attributes.map(|known| known.size) else { return Ok(None) };
    // Behind those that are under way.
    let offset = state.claims.last().map_or(size, |last| last.1.max(size));
    let end = offset.checked_add(len).filter(|end| *end <= layout.size_max());
    end.ok_or(Errno::EFBIG)?;
    Ok(Some((offset, Keeper::Lease(tenure))))
}
