//! What a server counts: calls by kind, and messages to data servers by kind.

use std::cell::RefCell;
use std::collections::BTreeMap;

use ropewalk_wire::fs::meta::MetaRequest;
use ropewalk_wire::fs::session::SessionRequest;

/// Messages to data servers. A call that is sent again counts once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DataMessages {
    pub fences: u64,
    pub cuts: u64,
    pub reaps: u64,
}

impl DataMessages {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.fences + self.cuts + self.reaps
    }
}

#[derive(Default)]
pub(super) struct Counters {
    calls: RefCell<BTreeMap<&'static str, u64>>,
    pub data: RefCell<DataMessages>,
}

impl Counters {
    pub fn count(&self, kind: &'static str) {
        *self.calls.borrow_mut().entry(kind).or_default() += 1;
    }

    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        self.calls.borrow().clone()
    }
}

/// The name of a session request's kind.
pub(super) fn session_kind(request: &SessionRequest<'_>) -> &'static str {
    match request {
        SessionRequest::Open { .. } => "open session",
        SessionRequest::Renew { .. } => "renew session",
        SessionRequest::Close { .. } => "close session",
    }
}

/// The name of a metadata request's kind.
pub(super) fn kind(request: &MetaRequest<'_>) -> &'static str {
    use MetaRequest as M;
    match request {
        M::Lookup { .. } => "lookup",
        M::GetAttributes { .. } => "get attributes",
        M::SetAttributes { .. } => "set attributes",
        M::Create { .. } => "create",
        M::Temporary { .. } => "temporary",
        M::Make { .. } => "make",
        M::Open { .. } => "open",
        M::Unlink { .. } => "unlink",
        M::RemoveDirectory { .. } => "remove directory",
        M::Rename { .. } => "rename",
        M::Link { .. } => "link",
        M::ReadDirectory { .. } => "read directory",
        M::ReadLink { .. } => "read link",
        M::GetXattr { .. } => "get xattr",
        M::ListXattr { .. } => "list xattr",
        M::SetXattr { .. } => "set xattr",
        M::RemoveXattr { .. } => "remove xattr",
        M::Acquire { .. } => "acquire",
        M::Release { .. } => "release",
        M::Report { .. } => "report",
        M::ReadInline { .. } => "read inline",
        M::WriteInline { .. } => "write inline",
        M::Reclaim { .. } => "reclaim",
        M::ReclaimDone => "reclaim done",
        M::LeaveInline { .. } => "leave inline",
        M::ReserveAppend { .. } => "reserve append",
        M::SetLock { .. } => "set lock",
        M::TestLock { .. } => "test lock",
        M::CancelLock { .. } => "cancel lock",
        M::ReleaseOwner { .. } => "release owner",
        M::StatFileSystem => "stat file system",
        M::Sync => "sync",
        M::GetPool { .. } => "get pool",
        M::Heartbeat { .. } => "heartbeat",
        M::ListInodes { .. } => "list inodes",
    }
}
