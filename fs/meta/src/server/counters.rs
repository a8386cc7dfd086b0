//! The counters of a server: calls by kind with their durations, and messages to data servers by kind. Always on, a few
//! additions each, and nothing is allocated.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_base::timing::Timer;
use ropewalk_wire::fs::meta::MetaRequest;
use ropewalk_wire::fs::session::SessionRequest;
use ropewalk_wire::fs::status::Activity;
use ropewalk_wire::fs::value::Bytes;

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

/// Names of the kinds, in the order of [`session_kind`] and [`kind`].
pub(super) const KINDS: [&str; 61] = [
    "open session",
    "renew session",
    "close session",
    "lookup",
    "get attributes",
    "set attributes",
    "create",
    "temporary",
    "make",
    "open",
    "unlink",
    "remove directory",
    "rename",
    "link",
    "read directory",
    "read link",
    "get xattr",
    "list xattr",
    "set xattr",
    "remove xattr",
    "acquire",
    "release",
    "report",
    "read inline",
    "write inline",
    "reclaim",
    "reclaim done",
    "leave inline",
    "reserve append",
    "set lock",
    "test lock",
    "cancel lock",
    "release owner",
    "stat file system",
    "sync",
    "get pool",
    "heartbeat",
    "list inodes",
    "get inodes",
    "get path",
    "status",
    "list sessions",
    "list servers",
    "discard",
    "renew epoch",
    "told unlocked",
    "told grown",
    "admit",
    "vouch",
    "inspect",
    "get map",
    "set step",
    "order",
    "export",
    "allow",
    "upgrade",
    "tell groups",
    "may clean",
    "move session",
    "recognise",
    REFUSED,
];
/// The places of kinds that are no metadata requests.
#[cfg(test)]
pub(super) const SESSION_KINDS: [usize; 6] =
    [0, 1, 2, KINDS.len() - 3, KINDS.len() - 2, KINDS.len() - 1];
/// Calls of callers that may not make them, of any kind.
const REFUSED: &str = "refused to strangers";

pub(super) struct Counters {
    calls: [Cell<u64>; KINDS.len()],
    bytes: [Cell<u64>; KINDS.len()],
    times: [Timer; KINDS.len()],
    pub data: RefCell<DataMessages>,
}

impl Default for Counters {
    fn default() -> Counters {
        let zeros = || [const { Cell::new(0) }; KINDS.len()];
        let times = std::array::from_fn(|_| Timer::default());
        Counters { calls: zeros(), bytes: zeros(), times, data: RefCell::default() }
    }
}

impl Counters {
    /// A call of a kind, which moved so many bytes of a file.
    pub fn count(&self, kind: usize, bytes: usize) {
        self.calls[kind].set(self.calls[kind].get() + 1);
        self.bytes[kind].set(self.bytes[kind].get() + bytes as u64);
    }

    /// A call of a kind was answered after so long.
    pub fn took(&self, kind: u16, time: Duration) {
        if let Some(timer) = self.times.get(usize::from(kind)) {
            timer.add(time);
        }
    }

    /// Counts a call of a caller that may not make it. Returns the number of such calls before.
    pub fn refuse(&self) -> u64 {
        let refused = &self.calls[KINDS.len() - 1];
        refused.replace(refused.get() + 1)
    }

    /// The kinds of which something came.
    pub fn activities(&self) -> Vec<Activity<'static>> {
        KINDS
            .iter()
            .zip(self.calls.iter().zip(&self.bytes).zip(&self.times))
            .filter(|(_, ((calls, _), _))| calls.get() > 0)
            .map(|(kind, ((calls, bytes), times))| Activity {
                kind: Bytes(kind.as_bytes()),
                calls: calls.get(),
                bytes: bytes.get(),
                times: times.read().into(),
            })
            .collect()
    }

    pub fn calls(&self) -> BTreeMap<&'static str, u64> {
        let counted = KINDS.iter().zip(&self.calls).filter(|(_, calls)| calls.get() > 0);
        counted.map(|(kind, calls)| (*kind, calls.get())).collect()
    }
}

/// The place of a session request's kind in [`KINDS`].
pub(super) fn session_kind(request: &SessionRequest<'_>) -> usize {
    match request {
        SessionRequest::Open { .. } => 0,
        SessionRequest::Renew { .. } => 1,
        SessionRequest::Close { .. } => 2,
        SessionRequest::Move { .. } => KINDS.len() - 3,
        SessionRequest::Recognise { .. } => KINDS.len() - 2,
    }
}

/// The place of a metadata request's kind in [`KINDS`].
pub(super) fn kind(request: &MetaRequest<'_>) -> usize {
    use MetaRequest as M;
    match request {
        M::Lookup { .. } => 3,
        M::GetAttributes { .. } => 4,
        M::SetAttributes { .. } => 5,
        M::Create { .. } => 6,
        M::Temporary { .. } => 7,
        M::Make { .. } => 8,
        M::Open { .. } => 9,
        M::Unlink { .. } => 10,
        M::RemoveDirectory { .. } => 11,
        M::Rename { .. } => 12,
        M::Link { .. } => 13,
        M::ReadDirectory { .. } => 14,
        M::ReadLink { .. } => 15,
        M::GetXattr { .. } => 16,
        M::ListXattr { .. } => 17,
        M::SetXattr { .. } => 18,
        M::RemoveXattr { .. } => 19,
        M::Acquire { .. } => 20,
        M::Release { .. } => 21,
        M::Report { .. } => 22,
        M::ReadInline { .. } => 23,
        M::WriteInline { .. } => 24,
        M::Reclaim { .. } => 25,
        M::ReclaimDone => 26,
        M::LeaveInline { .. } => 27,
        M::ReserveAppend { .. } => 28,
        M::SetLock { .. } => 29,
        M::TestLock { .. } => 30,
        M::CancelLock { .. } => 31,
        M::ReleaseOwner { .. } => 32,
        M::StatFileSystem => 33,
        M::Sync => 34,
        M::GetPool { .. } => 35,
        M::Heartbeat(_) => 36,
        M::ListInodes { .. } => 37,
        M::GetInodes { .. } => 38,
        M::GetPath { .. } => 39,
        M::Status => 40,
        M::ListSessions { .. } => 41,
        M::ListServers { .. } => 42,
        M::Discard { .. } => 43,
        M::RenewEpoch { .. } => 44,
        M::ToldUnlocked { .. } => 45,
        M::ToldGrown { .. } => 46,
        M::Admit { .. } => 47,
        M::Vouch { .. } => 48,
        M::Inspect { .. } => 49,
        M::GetMap { .. } => 50,
        M::SetStep(_) => 51,
        M::Order(_) => 52,
        M::Export(_) => 53,
        M::Allow { .. } => 54,
        M::Upgrade(_) => 55,
        M::TellGroups(_) => 56,
        M::MayClean { .. } => 57,
    }
}

/// Bytes of a file that the request carries.
pub(super) fn carried(request: &MetaRequest<'_>) -> usize {
    match request {
        MetaRequest::WriteInline { data, .. } => data.0.len(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_where_their_numbers_say() {
        assert_eq!(KINDS[session_kind(&SessionRequest::Close { session: 1 })], "close session");
        assert_eq!(KINDS[kind(&MetaRequest::ReclaimDone)], "reclaim done");
        let last = MetaRequest::MayClean { server: 1, map: 1 };
        assert_eq!((KINDS[kind(&last)], kind(&last)), ("may clean", KINDS.len() - 4));
        let counters = Counters::default();
        counters.count(kind(&MetaRequest::Sync), 0);
        counters.count(kind(&MetaRequest::Sync), 7);
        assert_eq!(counters.calls(), BTreeMap::from([("sync", 2)]));
        counters.took(kind(&MetaRequest::Sync) as u16, Duration::from_micros(40));
        counters.took(u16::MAX, Duration::from_micros(40));
        let activity = counters.activities()[0];
        assert_eq!((activity.kind, activity.calls, activity.bytes), (Bytes(b"sync"), 2, 7));
        assert_eq!((activity.times.micros, activity.times.counts[6]), (40, 1));
    }
}
