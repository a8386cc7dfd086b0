//! The demands of requests: what a session has to be allowed, so that it may make them.
//!
//! Invariant: both tables name each request. A new one does not compile before it has chosen.

use ropewalk_wire::fs::meta::{Access, LeaseMode, MetaRequest, Report};

const READS: Access = Access { read: true, write: false };
const WRITES: Access = Access { read: false, write: true };

/// Whether a report tells of bytes that were written, or of what follows from them.
fn tells_of_writes(report: &Report<'_>) -> bool {
    report.size.is_some()
        || report.modified.is_some()
        || !report.written.0.is_empty()
        || !report.punched.0.is_empty()
}

/// Whether a session asks by this request to change files, or to be let to change them.
pub(crate) fn changes(request: &MetaRequest<'_>) -> bool {
    use MetaRequest as M;
    match request {
        M::SetAttributes { .. }
        | M::Create { .. }
        | M::Temporary { .. }
        | M::Make { .. }
        | M::Unlink { .. }
        | M::RemoveDirectory { .. }
        | M::Rename { .. }
        | M::Link { .. }
        | M::SetXattr { .. }
        | M::RemoveXattr { .. }
        | M::RenewEpoch { .. }
        | M::WriteInline { .. }
        | M::LeaveInline { .. }
        | M::ReserveAppend { .. } => true,
        M::Open { access, truncate, .. } => access.write || *truncate,
        M::Acquire { mode, .. } => matches!(mode, LeaseMode::Shared | LeaseMode::Write),
        M::Reclaim { mode, open, .. } => {
            *mode == LeaseMode::Write || open.is_some_and(|open| open.write)
        }
        M::Release { open, .. } => open.is_some_and(|open| open.write),
        M::Report { report, .. } => tells_of_writes(report),
        // Servers and administrators send these, not sessions.
        M::Heartbeat(_)
        | M::Discard { .. }
        | M::Admit { .. }
        | M::Order(_)
        | M::Export(_)
        | M::SetStep(_)
        | M::Vouch { .. }
        | M::Upgrade(_)
        | M::TellGroups(_)
        | M::MayClean { .. } => false,
        M::Lookup { .. }
        | M::GetAttributes { .. }
        | M::ReadDirectory { .. }
        | M::ReadLink { .. }
        | M::GetXattr { .. }
        | M::ListXattr { .. }
        | M::ReclaimDone
        | M::ReadInline { .. }
        | M::SetLock { .. }
        | M::TestLock { .. }
        | M::CancelLock { .. }
        | M::ReleaseOwner { .. }
        | M::ToldUnlocked { .. }
        | M::ToldGrown { .. }
        | M::Allow { .. }
        | M::StatFileSystem
        | M::Sync
        | M::GetPool { .. }
        | M::GetMap { .. }
        | M::ListInodes { .. }
        | M::GetInodes { .. }
        | M::GetPath { .. }
        | M::Status
        | M::ListSessions { .. }
        | M::ListServers { .. }
        | M::Inspect { .. } => false,
    }
}

/// The inodes that a request is about, to be changed. Not the one in `closed`: the session only gives it up.
pub(crate) fn inodes_mut<'r>(request: &'r mut MetaRequest<'_>) -> [Option<&'r mut u64>; 2] {
    use MetaRequest as M;
    match request {
        M::Lookup { parent, .. }
        | M::Create { parent, .. }
        | M::Temporary { parent, .. }
        | M::Make { parent, .. }
        | M::Unlink { parent, .. }
        | M::RemoveDirectory { parent, .. } => [Some(parent), None],
        M::Rename { parent, new_parent, .. } => [Some(parent), Some(new_parent)],
        M::Link { inode, parent, .. } => [Some(inode), Some(parent)],
        M::GetAttributes { inode }
        | M::SetAttributes { inode, .. }
        | M::Open { inode, .. }
        | M::ReadDirectory { inode, .. }
        | M::ReadLink { inode }
        | M::GetXattr { inode, .. }
        | M::ListXattr { inode, .. }
        | M::SetXattr { inode, .. }
        | M::RemoveXattr { inode, .. }
        | M::Acquire { inode, .. }
        | M::Release { inode, .. }
        | M::Report { inode, .. }
        | M::RenewEpoch { inode }
        | M::ReadInline { inode }
        | M::WriteInline { inode, .. }
        | M::Reclaim { inode, .. }
        | M::LeaveInline { inode, .. }
        | M::ReserveAppend { inode, .. }
        | M::SetLock { inode, .. }
        | M::TestLock { inode, .. }
        | M::CancelLock { inode, .. }
        | M::ReleaseOwner { inode, .. }
        | M::ToldUnlocked { inode, .. }
        | M::ToldGrown { inode, .. }
        | M::Allow { inode } => [Some(inode), None],
        // An administrator's numbers are those of the rows.
        M::ListInodes { .. } | M::GetInodes { .. } | M::GetPath { .. } | M::Inspect { .. } => {
            [None, None]
        }
        M::ReclaimDone
        | M::StatFileSystem
        | M::Sync
        | M::GetPool { .. }
        | M::GetMap { .. }
        | M::Heartbeat(_)
        | M::Status
        | M::ListSessions { .. }
        | M::ListServers { .. }
        | M::Discard { .. }
        | M::Admit { .. }
        | M::Order(_)
        | M::Export(_)
        | M::SetStep(_)
        | M::Vouch { .. }
        | M::Upgrade(_)
        | M::TellGroups(_)
        | M::MayClean { .. } => [None, None],
    }
}

/// Whether a request only gives up what the session has, or answers the server. It never has to wait, and it counts
/// for whatever the session has.
pub(crate) fn gives_up(request: &MetaRequest<'_>) -> bool {
    matches!(
        request,
        MetaRequest::CancelLock { .. }
            | MetaRequest::ReleaseOwner { .. }
            | MetaRequest::ToldUnlocked { .. }
            | MetaRequest::ToldGrown { .. }
    )
}

/// The rights to an inode's content that a request needs, beyond those that are judged by who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    Nothing,
    /// To read it, or to write it.
    Either(u64),
    Content(u64, Access),
    /// The same, beyond those that the session has it open with.
    More(u64, Access),
}

fn leased(mode: LeaseMode) -> Access {
    match mode {
        LeaseMode::None => Access::default(),
        LeaseMode::Read => READS,
        LeaseMode::Shared | LeaseMode::Write => WRITES,
    }
}

/// The rights that a request asks for without a word on whose behalf.
pub(crate) fn asks(request: &MetaRequest<'_>) -> Asks {
    use MetaRequest as M;
    match *request {
        M::Acquire { inode, mode, .. } => Asks::Content(inode, leased(mode)),
        M::Reclaim { inode, mode, open } => {
            let (open, leased) = (open.unwrap_or_default(), leased(mode));
            // Readers share a lease with writers.
            let write = open.write || (leased.write && mode == LeaseMode::Write);
            Asks::Content(inode, Access { read: open.read || leased.read, write })
        }
        M::ReadInline { inode } => Asks::Content(inode, READS),
        M::WriteInline { inode, .. }
        | M::LeaveInline { inode, .. }
        | M::ReserveAppend { inode, .. }
        | M::RenewEpoch { inode } => Asks::Content(inode, WRITES),
        M::Report { inode, report } if tells_of_writes(&report) => Asks::Content(inode, WRITES),
        M::SetAttributes { inode, change, .. } if change.through_handle => {
            Asks::Content(inode, WRITES)
        }
        M::Release { inode, open: Some(open), .. } => Asks::More(inode, open),
        M::Report { inode, .. }
        | M::SetLock { inode, .. }
        | M::TestLock { inode, .. }
        | M::Allow { inode } => Asks::Either(inode),
        // They say on whose behalf they are, and were mapped.
        M::Lookup { .. }
        | M::SetAttributes { .. }
        | M::Create { .. }
        | M::Temporary { .. }
        | M::Make { .. }
        | M::Open { .. }
        | M::Unlink { .. }
        | M::RemoveDirectory { .. }
        | M::Rename { .. }
        | M::Link { .. }
        | M::ReadDirectory { .. }
        | M::GetXattr { .. }
        | M::ListXattr { .. }
        | M::SetXattr { .. }
        | M::RemoveXattr { .. } => Asks::Nothing,
        // The number of an inode is enough to see its attributes and where a link leads.
        M::GetAttributes { .. } | M::ReadLink { .. } => Asks::Nothing,
        // They give up what the session has, or answer the server.
        M::Release { open: None, .. }
        | M::ReclaimDone
        | M::CancelLock { .. }
        | M::ReleaseOwner { .. }
        | M::ToldUnlocked { .. }
        | M::ToldGrown { .. }
        | M::Sync => Asks::Nothing,
        // They concern the cluster, and no file.
        M::StatFileSystem | M::GetPool { .. } | M::GetMap { .. } => Asks::Nothing,
        // From servers and administrators, who prove it with each call.
        M::Heartbeat(_)
        | M::ListInodes { .. }
        | M::GetInodes { .. }
        | M::GetPath { .. }
        | M::Status
        | M::ListSessions { .. }
        | M::ListServers { .. }
        | M::Discard { .. }
        | M::Admit { .. }
        | M::Order(_)
        | M::Export(_)
        | M::SetStep(_)
        | M::Vouch { .. }
        | M::Inspect { .. }
        | M::Upgrade(_)
        | M::TellGroups(_)
        | M::MayClean { .. } => Asks::Nothing,
    }
}
