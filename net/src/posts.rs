//! Posts: what an operation is, before the engine gives it a number and a place for its memory.

use ropewalk_base::memory::{Memory, Slice};
use ropewalk_core::{
    Access, Action, Channel, Core, Level, OperationId, Oversize, PeerId, Receive, Send, Sending,
};

use crate::context::Completed;

/// The immediate result of a post.
#[derive(Debug)]
pub enum Posted {
    /// It is complete; it will not appear in any test.
    Done(Completed),
    /// It will complete later.
    Pending(OperationId),
}

/// A posted operation, without its memory.
pub(crate) trait What {
    /// Whether its memory is written to.
    fn writes(&self) -> bool;
    /// Gives it to the core.
    fn start(self, core: &mut Core, id: OperationId, slice: Slice) -> Sending;
    /// As a value that can be left for another thread.
    fn left(self) -> Left;
}

#[derive(Debug)]
pub(crate) struct SendPost {
    pub peer: PeerId,
    pub channel: Channel,
    pub bits: u64,
    pub level: Level,
}

#[derive(Debug)]
pub(crate) struct ReceivePost {
    pub channel: Channel,
    pub source: Option<PeerId>,
    pub bits: u64,
    pub mask: u64,
    pub oversize: Oversize,
}

impl What for SendPost {
    #[inline(always)]
    fn writes(&self) -> bool {
        false
    }
    #[inline(always)]
    fn start(self, core: &mut Core, id: OperationId, payload: Slice) -> Sending {
        let SendPost { peer, channel, bits, level } = self;
        core.post_send(id, Send { peer, channel, bits, payload, level })
    }
    fn left(self) -> Left {
        Left::Send(self)
    }
}

impl What for ReceivePost {
    #[inline(always)]
    fn writes(&self) -> bool {
        true
    }
    #[inline(always)]
    fn start(self, core: &mut Core, id: OperationId, into: Slice) -> Sending {
        let ReceivePost { channel, source, bits, mask, oversize } = self;
        core.post_receive(id, Receive { channel, source, bits, mask, into, oversize });
        Sending::Operation
    }
    fn left(self) -> Left {
        Left::Receive(self)
    }
}

impl What for Access {
    fn writes(&self) -> bool {
        matches!(self.action, Action::Get | Action::Update { fetch: true, .. })
    }
    fn start(mut self, core: &mut Core, id: OperationId, local: Slice) -> Sending {
        self.local = local;
        core.post_access(id, self);
        Sending::Operation
    }
    fn left(self) -> Left {
        Left::Access(self)
    }
}

/// A post that found the engine taken.
#[derive(Debug)]
pub(crate) struct Post {
    pub what: Left,
    pub user: u64,
    pub context: u32,
    pub memory: Memory,
}

#[derive(Debug)]
pub(crate) enum Left {
    Send(SendPost),
    Receive(ReceivePost),
    Access(Access),
}
