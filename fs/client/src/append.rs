//! Appends: which range of the file a record has.
//!
//! Invariant: a record that was given its range keeps it until it is written there or fails, however
//! often its transfer begins anew. Otherwise it would be in the file twice, or leave zeros behind.

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

/// A range at the end of the file. One that only the lease knows goes back when it was not written.
struct Claim {
    inode: Rc<Inode>,
    offset: u64,
    end: u64,
    /// A truncation makes another: what lay at the end then may be others' now.
    epoch: u32,
    keeper: Keeper,
    written: bool,
}

/// Who keeps others out of the range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Keeper {
    /// The sole writer's lease, in this tenure. The server is not told before the bytes are there.
    Lease(u64),
    /// The metadata server, which counted the range to the size in this era.
    Server(u64),
}

impl Append {
    /// The record lies in its range.
    pub fn written(&mut self) {
        if let Some(claim) = &mut self.claim {
            claim.written = true;
        }
    }

    /// The lease is about to go: a range that only it covers is nobody's then.
    pub fn leave_lease(&mut self) {
        self.claim.take_if(|claim| matches!(claim.keeper, Keeper::Lease(_)));
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        let mut state = self.inode.state.borrow_mut();
        let unwritten = !self.written && self.keeper == Keeper::Lease(state.tenure);
        if let Some(attributes) = &mut state.attributes
            && unwritten
            && attributes.size == self.end
        {
            // Nobody came behind it.
            attributes.size = self.offset;
        }
    }
}

impl Client {
    /// Where the record of an append goes. The sole writer knows the size; among several the server
    /// does.
    pub(crate) async fn place(
        &self,
        inode: &Rc<Inode>,
        append: &mut Append,
        layout: &Layout,
        len: u64,
    ) -> Result<u64, Errno> {
        let era = || Keeper::Server(self.inner.position.get().era);
        let epoch = inode.state.borrow().epoch;
        append.claim.take_if(|claim| (claim.keeper, claim.epoch) != (era(), epoch));
        if let Some(claim) = &append.claim {
            return Ok(claim.offset);
        }
        let (offset, keeper) = match claim_here(inode, layout, len)? {
            Some(claimed) => claimed,
            None => (self.reserve(inode, epoch, len).await?, era()),
        };
        let (inode, end) = (inode.clone(), offset + len);
        append.claim = Some(Claim { inode, offset, end, epoch, keeper, written: false });
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
    let mut state = inode.state.borrow_mut();
    let tenure = state.tenure;
    if state.mode != LeaseMode::Write {
        return Ok(None);
    }
    let Some(attributes) = &mut state.attributes else { return Ok(None) };
    let offset = attributes.size;
    let end = offset.checked_add(len).filter(|end| *end <= layout.size_max());
    // Taken at once: the next append goes behind this one.
    attributes.size = end.ok_or(Errno::EFBIG)?;
    Ok(Some((offset, Keeper::Lease(tenure))))
}
