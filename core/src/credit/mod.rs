//! Credit: how many eager bytes, requests and RTSs a peer may send. [`Lent`]: what we lent a peer; [`Granted`]: what a
//! peer granted us; [`Pool`]: all that is lent; [`telling`]: when a peer is told.
//!
//! Limits are absolute (counted from the session's beginning), so a `Credit` frame that comes twice
//! or late does no harm. All that the peers of an endpoint may have sent unmatched is lent from one
//! pool: an idle peer holds the first window only, a busy one is lent more, out of half the pool. The
//! other half is for first windows, since nothing that was lent comes back before its session ends: with
//! the usual sizes 1000 newcomers find room, however busy others have been, and 804 over packets.

mod granted;
mod lent;
mod pool;
mod telling;

pub(crate) use granted::Granted;
pub(crate) use lent::Lent;
pub(crate) use pool::Pool;

use ropewalk_base::limits::RECORDS_BYTES_MAX;

use crate::api::Channel;

/// Bytes that a message counts beside its payload: what we keep to remember it.
const OVERHEAD_BYTES: u64 = 128;
/// The least that a message with a payload occupies.
const BUFFER_BYTES_MIN: u64 = 256;

/// The largest window that traffic alone makes, in bytes. More under way would only leave the processors'
/// caches; what waits for receives is another matter.
const TRAFFIC_WINDOW_MAX: u64 = 1 << 20;

/// The charge of an eager message. Both sides count the buffer that it may occupy, whose size is a power of two, so
/// that a peer never uses more than it was lent.
#[inline]
pub(crate) const fn charge_bytes(payload_bytes: u64) -> u64 {
    let buffer = match payload_bytes {
        0 => 0,
        1..BUFFER_BYTES_MIN => BUFFER_BYTES_MIN,
        bytes => bytes.next_power_of_two(),
    };
    buffer + OVERHEAD_BYTES
}

/// The smallest window with which a sender of messages of up to `bytes_max` bytes never gets stuck: the
/// receiver tells news of half a window, so that one message has to fit into the other half.
fn window_min(bytes_max: u32) -> u64 {
    (2 * charge_bytes(u64::from(bytes_max))).next_multiple_of(1024)
}

/// The windows for bytes, one for each account.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Windows {
    pub eager: u64,
    pub request: u64,
}

impl Windows {
    fn sum(self) -> u64 {
        self.eager + self.request + UPDATE_WINDOW
    }
}

/// The first window for elements of updates, in bytes: every peer has it, and none is told. Two frames of records fit in
/// it, so that one can be on its way while the other is executed.
const UPDATE_WINDOW: u64 = (2 * charge_bytes(RECORDS_BYTES_MAX as u64)).next_multiple_of(1024);

/// The charges of an update with so many bytes of elements: for these, where it takes any, and for as many in its answer,
/// where it fetches.
pub(crate) fn update_charges(bytes: u64, takes: bool, fetches: bool) -> [Option<Charge>; 2] {
    let charge = Charge::Update { payload_bytes: bytes };
    [takes.then_some(charge), fetches.then_some(charge)]
}

/// Their sum, in bytes: as the origin counts it.
pub(crate) fn update_charge(bytes: u64, takes: bool, fetches: bool) -> u64 {
    charge_bytes(bytes) * update_charges(bytes, takes, fetches).into_iter().flatten().count() as u64
}

/// The account that a message is charged to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Charge {
    Eager {
        channel: Channel,
        payload_bytes: u64,
    },
    /// The elements of an update, or those of the answer.
    Update {
        payload_bytes: u64,
    },
    Rendezvous,
}
