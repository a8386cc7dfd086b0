//! The counters of a server, by kind of request: always on, a few additions each, and nothing is allocated.

use std::cell::Cell;
use std::time::Duration;

use ropewalk_base::timing::Timer;
use ropewalk_wire::fs::data::DataRequest;
use ropewalk_wire::fs::status::Activity;
use ropewalk_wire::fs::value::Bytes;

/// Names of the kinds, in the order of [`kind`].
const KINDS: [&str; 19] = [
    "write",
    "read",
    "punch",
    "truncate",
    "sync",
    "reap",
    "fence",
    "list",
    "status",
    "examine",
    "copy",
    "settle",
    "table",
    "ended",
    "unreadable",
    "seen",
    "clean",
    "scrub",
    "refused to strangers",
];
const WRITE: usize = 0;
const READ: usize = 1;
const EXAMINE: usize = 9;
const REFUSED: usize = 18;

/// The place of a request's kind in [`KINDS`].
fn kind(request: &DataRequest<'_>) -> usize {
    match request {
        DataRequest::Write { .. } => WRITE,
        DataRequest::Read { .. } => READ,
        DataRequest::Punch { .. } => 2,
        DataRequest::Truncate { .. } => 3,
        DataRequest::Sync { .. } => 4,
        DataRequest::Reap { .. } => 5,
        DataRequest::Fence { .. } => 6,
        DataRequest::List { .. } => 7,
        DataRequest::Status => 8,
        DataRequest::Examine { .. } => EXAMINE,
        DataRequest::Copy { .. } => 10,
        DataRequest::Settle { .. } => 11,
        DataRequest::Table { .. } => 12,
        DataRequest::Ended { .. } => 13,
        DataRequest::Unreadable { .. } => 14,
        DataRequest::Seen { .. } => 15,
        DataRequest::Clean { .. } => 16,
        DataRequest::Scrub { .. } => 17,
    }
}

/// Calls that came in, and file bytes that went to or came from the store.
#[derive(Debug, Default)]
pub(crate) struct Activities {
    calls: [Cell<u64>; KINDS.len()],
    bytes: [Cell<u64>; KINDS.len()],
    times: [Timer; KINDS.len()],
    scrub: Scrubbed,
}

/// Counts of the scrub, and of what reads found.
#[derive(Debug, Default)]
pub(crate) struct Scrubbed {
    pub objects: Cell<u64>,
    pub bytes: Cell<u64>,
    pub rounds: Cell<u64>,
    /// Blocks that were written again from another member.
    pub mended: Cell<u64>,
    /// Damaged blocks that nobody else had, each time they were met.
    pub lost: Cell<u64>,
}

impl Activities {
    /// Counts a call. Returns its kind.
    pub fn count(&self, request: &DataRequest<'_>) -> u16 {
        let kind = kind(request);
        add(&self.calls[kind], 1);
        kind as u16
    }

    /// A call of a kind was answered after so long.
    pub fn took(&self, kind: u16, time: Duration) {
        if let Some(timer) = self.times.get(usize::from(kind)) {
            timer.add(time);
        }
    }

    /// Counts a call of a caller that may not make it. Returns the number of such calls before.
    pub fn refused(&self) -> u64 {
        let before = self.refusals();
        add(&self.calls[REFUSED], 1);
        before
    }

    pub fn refusals(&self) -> u64 {
        self.calls[REFUSED].get()
    }

    pub fn wrote(&self, bytes: u32) {
        add(&self.bytes[WRITE], u64::from(bytes));
    }

    pub fn read(&self, bytes: u32) {
        add(&self.bytes[READ], u64::from(bytes));
    }

    pub fn examined(&self, bytes: u64) {
        add(&self.bytes[EXAMINE], bytes);
    }

    /// The scrub has looked at an object of so many bytes.
    pub fn scrubbed(&self, bytes: u64) {
        add(&self.scrub.objects, 1);
        add(&self.scrub.bytes, bytes);
    }

    /// The scrub has looked at all objects.
    pub fn scrubbed_round(&self) {
        add(&self.scrub.rounds, 1);
    }

    /// Damaged blocks were met.
    pub fn mended(&self, mended: u64, lost: u64) {
        add(&self.scrub.mended, mended);
        add(&self.scrub.lost, lost);
    }

    pub fn scrub(&self) -> &Scrubbed {
        &self.scrub
    }

    /// The kinds of which something came.
    pub fn list(&self) -> Vec<Activity<'static>> {
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
}

fn add(counter: &Cell<u64>, more: u64) {
    counter.set(counter.get() + more);
}
