//! Bodies of frames about the paths of a session.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Flags of `Load`, `Migrate` and `Withdraw`: what is filled in.
pub const PATHS_MIGRATED: u8 = 1;
pub const PATHS_ALTERNATE: u8 = 2;
pub const PATHS_ARMING: u8 = 4;
pub const PATHS_DRAINED: u8 = 8;
pub const PATHS_RAISED: u8 = 16;
pub const PATHS_REPLACES: u8 = 32;

layouts! {
    /// Load a path as the alternate. Goes over that path and over the primary one, and is lost with them.
    LoadBody {
        /// The arming's number: grows with each of the side that began it.
        arming: U32,
        path: U32,
        /// The sender's newest migration, as in `Migrate`.
        counter: U32,
        primary: U32,
        alternate: U32,
        /// 1: the side with the higher endpoint id began the arming; the same of the migration.
        arming_by: u8,
        decided_by: u8,
        /// `PATHS_MIGRATED`, `PATHS_ALTERNATE`.
        flags: u8,
        reserved: u8,
    } 24
    /// The answer to `Load`, over the path that it took.
    LoadAnswerBody {
        arming: U32,
        arming_by: u8,
        /// 0: the path is loaded, else the number of the rule that refuses.
        refused: u8,
        reserved: U16,
    } 8
    /// The sender moved to another primary path. A span.
    MigrateBody {
        /// The larger one counts; of equal ones that of the lower endpoint id.
        counter: U32,
        primary: U32,
        alternate: U32,
        decided_by: u8,
        /// `PATHS_ALTERNATE`.
        flags: u8,
        reserved: U16,
    } 16
    /// An arming is over, or the sender's operator drains a path or brings it up again, or both. A span.
    WithdrawBody {
        arming: U32,
        path: U32,
        arming_by: u8,
        /// `PATHS_ARMING`; `PATHS_DRAINED` or `PATHS_RAISED`.
        flags: u8,
        /// Counts the sender's orders about the path; it wraps.
        order: U16,
    } 12
    /// A probe of an arming. Its answer goes back over the link that it came on, with a payload as long.
    ProveBody {
        arming: U32,
        arming_by: u8,
        /// Which one of the arming's probes it is.
        number: u8,
        /// 1: it is the answer; 2: all probes of the round were answered.
        is_answer: u8,
        /// The round of probes.
        round: u8,
    } 8
}
