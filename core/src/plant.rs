//! Bugs for tests of tests: each one is acted on where the rule stands that it breaks.

/// A bug that is planted to see whether it is found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Plant {
    #[default]
    Nothing,
    /// A session that goes on over a new link does not tell what credit came back meanwhile.
    ForgottenCredit,
    /// It numbers its messages from the beginning.
    ForgottenNumbers,
    /// A span that is here takes effect again when it comes again.
    DuplicatesTaken,
    /// One span more is acknowledged than is placed.
    WindowOffByOne,
    /// A span counts as placed when its payload begins to arrive.
    PlacedAtStart,
    /// An order ends when the peer has it, although a rail still has it, too.
    EndsBeforeRelease,
    /// An announce that its sender withdrew before it came is taken for one that stands.
    SkipOmitted,
    /// A frame that names another session than the present one is taken.
    OldSessionTaken,
    /// The core judges before the rails have told all that they have (not in release builds).
    TimeoutBeforeDrain,
    /// The policy does not load an alternate again after traffic has moved.
    RearmForgotten,
    /// A token takes effect before what it follows.
    TokenEarly,
    /// The origin of a token does not wait for its gets, and for what a rail writes by itself.
    TokenPassesGet,
    /// A span of a put that is here is executed when it comes again.
    PutTwice,
    /// A span of an update or an atomic is executed so.
    AtomicTwice,
    /// A put is told as applied when its last bytes begin to arrive.
    AppliedEarly,
    /// A put that goes with a notice is told of when its bytes begin to arrive.
    NoticeEarly,
    /// A span of records that is here is executed when it comes again.
    RecordsTwice,
    /// A put that goes with its request for a lock is stored although others have the lock.
    LockedPutEarly,
    /// The release of a lock is executed twice: whoever has the lock after it loses it.
    UnlockTwice,
    /// An origin lets each operation leave at once, whatever it has to follow.
    OrderLost,
    /// A session with keys begins by a confirmation that proves nothing.
    ProofOmitted,
    /// A session with spans that comes to rest forgets that the peer lacks some of them.
    ForgottenSpans,
}
