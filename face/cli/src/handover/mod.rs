//! The hand-over of a mount from process to process, over a Unix socket. `docs/spec/handover.md` has the frames,
//! `docs/design/126-handover.md` the reasons.
//!
//! * [`door`]: the process that serves a mount, and whoever asks for it;
//! * [`ask`]: the process that takes a mount over;
//! * [`desk`]: the way of orders from the door to the mount's thread;
//! * [`frames`]: frames on the socket.
//!
//! Invariants
//! * a process hands its mount over to root and to its own user, and to nobody else;
//! * until the new process serves, the old one goes on if the new one ends;
//! * one hand-over at a time.

pub mod ask;
pub mod desk;
pub mod door;
mod frames;

use rustix::time::{ClockId, clock_gettime};

/// The beginning of the sockets' names in the network namespace; the device of the mount follows, and a number
/// that is drawn.
const NAME: &str = "ropewalk/mount/";

/// Now, in nanoseconds of the host's monotonic clock.
pub fn host_clock() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    let nanos = now.tv_sec.saturating_mul(1_000_000_000).saturating_add(now.tv_nsec);
    u64::try_from(nanos).unwrap_or(0)
}
