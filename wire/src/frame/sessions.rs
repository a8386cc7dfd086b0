//! Bodies of frames that make sessions, keep them and end them.

use std::ops::RangeInclusive;
use std::time::Duration;

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Most runs of spans in an acknowledgement.
pub const ACK_RUNS_MAX: usize = 12;

/// In a greeting's mode: a session goes on after it has lost its link.
pub const MODE_RESUME: u8 = 1;
/// In a greeting's mode: a session that begins over this link may have several paths.
pub const MODE_PATHS: u8 = 2;
/// In a greeting's mode: the sender demands that the link is protected, by tags alone, or by encryption.
pub const MODE_AUTH: u8 = 4;
pub const MODE_SECURE: u8 = 8;
/// In a greeting's mode: the sender can protect the link; and AES is fast at the sender.
pub const MODE_PROTECTS: u8 = 16;
pub const MODE_AES: u8 = 32;

/// Bytes of a key share, and of a proof.
pub const SHARE_BYTES: usize = 16;
pub const PROOF_BYTES: usize = 32;

layouts! {
    /// First frame of a link, both ways.
    HelloBody {
        endpoint: [u8; 16],
        cluster: [u8; 16],
        incarnation: U64,
        /// Identifies host and network namespace; 0 where unknown. A hint, proven by the rail.
        host: U64,
        /// Random; both sides' together make the session tag.
        nonce: U32,
        /// `MODE_RESUME`, `MODE_PATHS`, and those of the protection.
        mode: u8,
        /// Of an answer: 0 accepted, else why not (`Refusal`).
        refusal: u8,
        /// Bytes of the payload that are addresses; the rest is authentication.
        address_bytes: U16,
        /// KiB of tagged and untagged messages that may come before the first `Credit`.
        eager_credit: U16,
        /// The same for requests.
        request_credit: U16,
        /// Announces that may come before the first `Credit`.
        rts_credit: U16,
        /// KiB of the longest message that may come without being announced; 0: 64.
        eager_max: U16,
    } 64
    /// Limits for the receiver of this frame, counted from the session's beginning.
    CreditBody {
        eager_limit: U64,
        request_limit: U64,
        rts_limit: U64,
        /// For the elements of updates, and for the answers.
        update_limit: U64,
        /// 1: no more eager messages before some are received; the rest is to be announced.
        eager_ends: u8,
        /// 1: messages of more than 32 KiB are to be announced: nobody waited for such.
        rts_long: u8,
        /// How many layouts the sender has taken in this session, the freed ones included. It wraps.
        layouts: U16,
        reserved: [u8; 4],
    } 40
    /// Spans that are placed: all up to `cumulative`, and runs above it, the lowest first ([`AckBody::ranges`]).
    AckBody {
        cumulative: U64,
        /// The time that the oldest news in this acknowledgement waited, in microseconds.
        delay: U32,
        /// Runs that are filled in.
        count: u8,
        reserved: [u8; 3],
        runs: [AckRun; ACK_RUNS_MAX],
    } 64
    /// A run of spans that are placed.
    AckRun {
        /// Spans between the run before, or `cumulative`, and this one: at least 1.
        missing: U16,
        /// Spans of this run: at least 1.
        placed: U16,
    } 4
    /// The sender takes further paths: its share of the session's key.
    KeyBody {
        share: [u8; SHARE_BYTES],
        /// 1: the sender knows an address of the receiver, and could add paths.
        calls: u8,
        reserved: [u8; 7],
    } 24
    /// After a greeting with `FLAG_JOIN`: of the accepting side, with its answer; of the connecting side, in place of
    /// `Confirm`. The link becomes a path, or carries the session on; then path and counter are 0, or in a proof over
    /// a link that is to be protected a random number of the accepting side, which the connecting side repeats.
    JoinBody {
        /// The path's number. Its lowest bit is 0 where the side with the lower endpoint id added the path.
        path: U32,
        /// The number of the attempt: grows with each of that side.
        counter: U32,
        /// The sender's rail of this link.
        rail: u8,
        reserved: u8,
        /// Of the connecting side: the source port that its user chose, or 0. A link with one may join beside another one of
        /// the same pair of rails.
        entropy: U16,
        /// Of the connecting side, where the link is to be protected: random, part of the link's keys. Else 0.
        salt: [u8; 4],
        /// Under the session's key, over the session, both greetings' nonces, and what comes before.
        proof: [u8; PROOF_BYTES],
    } 48
    /// Is there anybody? Goes back over the link that it came on.
    ProbeBody {
        /// 1: it is the answer.
        is_answer: u8,
        reserved: [u8; 7],
    } 8
    /// The sender's rail sees that a path of this session is broken. Goes over the other paths, if there are any.
    SuspectBody {
        /// The path's number.
        path: U32,
        /// The cause (`Suspicion::to_wire` of base); receivers take unknown ones for some cause.
        cause: u8,
        reserved: [u8; 3],
        /// The number of a span that came over the path and was spoiled, or 0. It goes again.
        span: U64,
    } 16
}

/// Why an accepting side refuses a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Refusal {
    None = 0,
    /// A link of ours to you survives: wait for it.
    Duplicate = 1,
    /// Another cluster.
    Cluster = 2,
    /// Too many peers.
    Full = 3,
    /// Another version.
    Version = 4,
    /// One side has not proven that it has a key of the other one's cluster.
    Untrusted = 5,
}

impl Refusal {
    /// From its number; unknown ones refuse like `Full`.
    pub fn from_u8(value: u8) -> Refusal {
        match value {
            0 => Refusal::None,
            1 => Refusal::Duplicate,
            2 => Refusal::Cluster,
            4 => Refusal::Version,
            5 => Refusal::Untrusted,
            _ => Refusal::Full,
        }
    }
}

impl AckBody {
    /// Of all spans up to `cumulative`, whose oldest news waited for `delay`.
    pub fn new(cumulative: u64, delay: Duration) -> AckBody {
        AckBody {
            cumulative: cumulative.into(),
            delay: u32::try_from(delay.as_micros()).unwrap_or(u32::MAX).into(),
            count: 0,
            reserved: [0; 3],
            runs: [AckRun { missing: 0.into(), placed: 0.into() }; ACK_RUNS_MAX],
        }
    }

    /// Adds a run above all others, with at least one span between. False where there is no room for it.
    pub fn push(&mut self, missing: u16, placed: u16) -> bool {
        let Some(run) = self.runs.get_mut(usize::from(self.count)) else { return false };
        *run = AckRun { missing: missing.into(), placed: placed.into() };
        self.count += 1;
        true
    }

    /// The runs above `cumulative`, lowest first: those before the first one that is none.
    pub fn ranges(&self) -> impl Iterator<Item = RangeInclusive<u64>> {
        let runs = self.runs.iter().take(self.count.into());
        let mut last = self.cumulative.get();
        runs.map_while(move |run| {
            let (missing, placed) = (u64::from(run.missing.get()), u64::from(run.placed.get()));
            let first = last.checked_add(missing + 1)?;
            last = last.checked_add(missing + placed)?;
            (missing > 0 && placed > 0).then_some(first..=last)
        })
    }
}
