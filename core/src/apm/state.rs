//! The words of the table: states of a connection, states of its migration, events, and rules that refuse.

use std::fmt;

use thiserror::Error;

/// How far a connection is. The first five and the last are InfiniBand's; a peer of ours has `Pathless` besides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Connection {
    /// Nobody calls yet.
    Reset,
    /// A call is under way.
    Init,
    /// Ready to receive: the greetings agree, and the other side does not know it yet.
    Rtr,
    /// Ready to send: both sides exchange data.
    Rts,
    /// The send queue is drained: data that is under way ends, and no new data leaves.
    Sqd,
    /// No path is usable. Operations wait for one, or for the end of `path_wait`.
    Pathless,
    /// The connection failed. Only a reset, or a new life of the peer, leads out.
    Error,
}

/// How far the migration of a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum MigrationState {
    /// No alternate is loaded: a fresh connection, and one that has migrated.
    Migrated,
    /// The alternate is being loaded and probed.
    Rearm,
    /// The alternate is proven, and traffic may move to it at any time.
    Armed,
}

/// What happens to a connection. The first six are local requests, then come seven findings about paths, four messages
/// of the peer, and three ends of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Event {
    Specify,
    Load,
    Migrate,
    Drain,
    Up,
    Weight,
    ProbesGood,
    ProbesSpent,
    StandbyBad,
    PrimarySuspect,
    PrimaryFailed,
    PathMended,
    LastPathGone,
    LoadReceived,
    /// `LOADED` or `REFUSED`.
    AnswerReceived,
    MigrateReceived,
    WithdrawReceived,
    /// In [`Connection::Pathless`] this is the end of `path_wait`.
    ConnectionError,
    Reset,
    /// The peer was started again.
    NewIncarnation,
}

pub const CONNECTIONS: [Connection; 7] = {
    use Connection::*;
    [Reset, Init, Rtr, Rts, Sqd, Pathless, Error]
};

pub const MIGRATION_STATES: [MigrationState; 3] = {
    use MigrationState::*;
    [Migrated, Rearm, Armed]
};

pub const EVENTS: [Event; 20] = {
    use Event::*;
    [
        Specify,
        Load,
        Migrate,
        Drain,
        Up,
        Weight,
        ProbesGood,
        ProbesSpent,
        StandbyBad,
        PrimarySuspect,
        PrimaryFailed,
        PathMended,
        LastPathGone,
        LoadReceived,
        AnswerReceived,
        MigrateReceived,
        WithdrawReceived,
        ConnectionError,
        Reset,
        NewIncarnation,
    ]
};

/// Why a request, a finding or a message changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Error)]
pub enum Rule {
    #[error("the peer has no connection: connect first")]
    NoConnection,
    #[error("the connection is not set up yet: wait until it is")]
    NotYet,
    #[error("the connection has no usable path: wait until one is mended, or bring one up")]
    NoPath,
    #[error("the connection does not send now: repeat it when it does")]
    NotSending,
    #[error("an alternate path is being loaded: wait for its end, or drain it")]
    Loading,
    #[error("an alternate path is loaded: migrate to it, or drain it, before you load another")]
    Loaded,
    #[error("no alternate path is armed: specify one, or wait until one is")]
    NotArmed,
    #[error("no alternate path is being loaded")]
    NotLoading,
    #[error("no alternate path is specified: specify one before you load it")]
    NoAlternate,
    #[error("the specified alternate path has failed: mend it, or specify another")]
    AlternateFailed,
    #[error(
        "the path carries the connection and no other can: bring another up before you drain it"
    )]
    LastPath,
    #[error("no other proven path can carry the connection")]
    NoSpare,
    #[error("the path is not drained")]
    NotDrained,
    #[error("the message is older than what is known")]
    Stale,
    #[error("both sides loaded at once, and the load of the lower endpoint id counts")]
    Crossed,
    #[error("the connection has no such path")]
    UnknownPath,
    #[error("the path is the primary one and carries already: name another")]
    IsPrimary,
    #[error("the path is drained: bring it up first")]
    IsDrained,
    #[error(
        "the path shares a failure domain with the primary one: name another, or do not ask for strict disjointness"
    )]
    SameFailureDomain,
    #[error("no route leads over that rail to that address: check both")]
    NoRoute,
    #[error("the path's packets are too short: raise its MTU, or name another path")]
    Mtu,
    #[error("the path has another address family than was asked for")]
    Family,
    #[error("a weight is 0 to 1000")]
    WeightRange,
}

macro_rules! names {
    ($type:ident { $($value:ident => $name:literal),* $(,)? }) => {
        impl $type {
            /// The name in documents, logs and commands.
            pub const fn name(self) -> &'static str {
                match self { $($type::$value => $name),* }
            }
        }
    };
}

macro_rules! displayed {
    ($($type:ident),*) => {$(
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.name())
            }
        }
    )*};
}
displayed!(Connection, MigrationState, Event);

names!(Connection {
    Reset => "RESET",
    Init => "INIT",
    Rtr => "RTR",
    Rts => "RTS",
    Sqd => "SQD",
    Pathless => "PATHLESS",
    Error => "ERROR",
});

names!(MigrationState { Migrated => "MIGRATED", Rearm => "REARM", Armed => "ARMED" });

names!(Event {
    Specify => "specify",
    Load => "load",
    Migrate => "migrate",
    Drain => "drain",
    Up => "up",
    Weight => "weight",
    ProbesGood => "probes good",
    ProbesSpent => "probes spent",
    StandbyBad => "standby bad",
    PrimarySuspect => "primary suspect",
    PrimaryFailed => "primary failed",
    PathMended => "path mended",
    LastPathGone => "last path gone",
    LoadReceived => "LOAD",
    AnswerReceived => "LOADED or REFUSED",
    MigrateReceived => "MIGRATE",
    WithdrawReceived => "WITHDRAW",
    ConnectionError => "connection error",
    Reset => "reset",
    NewIncarnation => "new incarnation",
});

names!(Rule {
    NoConnection => "no-connection",
    NotYet => "not-yet",
    NoPath => "no-path",
    NotSending => "not-sending",
    Loading => "loading",
    Loaded => "loaded",
    NotArmed => "not-armed",
    NotLoading => "not-loading",
    NoAlternate => "no-alternate",
    AlternateFailed => "alternate-failed",
    LastPath => "last-path",
    NoSpare => "no-spare",
    NotDrained => "not-drained",
    Stale => "stale",
    Crossed => "crossed",
    UnknownPath => "unknown-path",
    IsPrimary => "is-primary",
    IsDrained => "is-drained",
    SameFailureDomain => "same-failure-domain",
    NoRoute => "no-route",
    Mtu => "mtu",
    Family => "family",
    WeightRange => "weight-range",
});
