//! The rows of the table.
//!
//! A row is an event, the connection's states, the migration's states, and their cell. `stay` keeps both states, `to`
//! changes the migration's state, `turn` changes both, `no` refuses; `on` puts a condition before.

use super::cell::Action::*;
use super::cell::Branch::Unfit;
use super::cell::{Action, Branch, Cell, Row, When as W};
use super::state::Connection::*;
use super::state::MigrationState::*;
use super::state::Rule as R;
use super::state::{CONNECTIONS, Connection, Event as E, MIGRATION_STATES, MigrationState};

const fn stay(actions: &'static [Action]) -> Branch {
    Branch::Go { when: W::Always, connection: None, migration: None, actions }
}

const fn to(migration: MigrationState, actions: &'static [Action]) -> Branch {
    Branch::Go { when: W::Always, connection: None, migration: Some(migration), actions }
}

/// The connection changes, and no alternate is loaded any more.
const fn turn(connection: Connection, actions: &'static [Action]) -> Branch {
    Branch::Go { when: W::Always, connection: Some(connection), migration: Some(Migrated), actions }
}

const fn no(rule: R) -> Branch {
    Branch::Refuse { when: W::Always, rule }
}

const fn on(when: W, branch: Branch) -> Branch {
    match branch {
        Branch::Go { connection, migration, actions, .. } => {
            Branch::Go { when, connection, migration, actions }
        }
        Branch::Refuse { rule, .. } => Branch::Refuse { when, rule },
        Unfit => Unfit,
    }
}

const fn row(
    event: E,
    connections: &'static [Connection],
    migrations: &'static [MigrationState],
    cell: Cell,
) -> Row {
    Row { event, connections, migrations, cell }
}

const ANY: &[MigrationState] = &MIGRATION_STATES;
/// No connection, a connection that is being set up, one that carries data.
const NONE: &[Connection] = &[Reset, Error];
const SETUP: &[Connection] = &[Init, Rtr];
const UP: &[Connection] = &[Rts, Sqd];
/// Where an alternate may be specified and loaded, and where a peer's messages are heard.
const ALIVE: &[Connection] = &[Init, Rtr, Rts, Sqd];
const HEARS: &[Connection] = &[Rtr, Rts, Sqd];

pub const ROWS: &[Row] = &[
    // Local requests.
    row(E::Specify, NONE, ANY, &[no(R::NoConnection)]),
    row(E::Specify, ALIVE, &[Migrated], &[Unfit, stay(&[SetAlternate])]),
    row(E::Specify, ALIVE, &[Rearm], &[no(R::Loading)]),
    row(E::Specify, ALIVE, &[Armed], &[no(R::Loaded)]),
    row(E::Specify, &[Pathless], ANY, &[no(R::NoPath)]),
    //
    row(E::Load, NONE, ANY, &[no(R::NoConnection)]),
    row(E::Load, &[Init], &[Migrated], &[Unfit, stay(&[KeepLoad])]),
    row(E::Load, HEARS, &[Migrated], &[Unfit, to(Rearm, &[BeginArming])]),
    row(E::Load, ALIVE, &[Rearm], &[no(R::Loading)]),
    row(E::Load, ALIVE, &[Armed], &[no(R::Loaded)]),
    row(E::Load, &[Pathless], ANY, &[no(R::NoPath)]),
    //
    row(E::Migrate, NONE, ANY, &[no(R::NoConnection)]),
    row(E::Migrate, SETUP, ANY, &[no(R::NotYet)]),
    row(E::Migrate, UP, &[Migrated, Rearm], &[no(R::NotArmed)]),
    row(E::Migrate, UP, &[Armed], &[to(Migrated, &[MoveToAlternate, SendMigrate, TellMigrated])]),
    row(E::Migrate, &[Pathless], ANY, &[no(R::NoPath)]),
    //
    row(E::Drain, NONE, ANY, &[no(R::NoConnection)]),
    row(E::Drain, SETUP, ANY, &[no(R::NotYet)]),
    row(
        E::Drain,
        UP,
        &[Migrated],
        &[
            Unfit,
            on(W::IsOnly, no(R::LastPath)),
            on(
                W::IsPrimary,
                stay(&[MarkDrained, MoveToSpare, SendMigrate, SendWithdraw, TellMigrated]),
            ),
            stay(&[MarkDrained, SendWithdraw]),
        ],
    ),
    row(
        E::Drain,
        UP,
        &[Rearm],
        &[
            Unfit,
            on(W::IsOnly, no(R::LastPath)),
            on(
                W::IsPrimary,
                to(
                    Migrated,
                    &[EndArming, MarkDrained, MoveToSpare, SendMigrate, SendWithdraw, TellMigrated],
                ),
            ),
            on(W::IsAlternate, to(Migrated, &[EndArming, MarkDrained, SendWithdraw])),
            stay(&[MarkDrained, SendWithdraw]),
        ],
    ),
    row(
        E::Drain,
        UP,
        &[Armed],
        &[
            Unfit,
            on(
                W::IsPrimary,
                to(
                    Migrated,
                    &[MarkDrained, MoveToAlternate, SendMigrate, SendWithdraw, TellMigrated],
                ),
            ),
            on(W::IsAlternate, to(Migrated, &[EndArming, MarkDrained, SendWithdraw])),
            stay(&[MarkDrained, SendWithdraw]),
        ],
    ),
    row(E::Drain, &[Pathless], ANY, &[Unfit, stay(&[MarkDrained, SendWithdraw])]),
    //
    row(E::Up, NONE, ANY, &[no(R::NoConnection)]),
    row(E::Up, SETUP, ANY, &[no(R::NotYet)]),
    row(E::Up, UP, ANY, &[Unfit, stay(&[MarkUp, SendWithdraw, TellMended])]),
    row(
        E::Up,
        &[Pathless],
        ANY,
        &[
            Unfit,
            on(W::Usable, turn(Rts, &[MarkUp, MoveToPath, SendMigrate, SendWithdraw, TellResumed])),
            stay(&[MarkUp, SendWithdraw, TellMended]),
        ],
    ),
    //
    row(E::Weight, NONE, ANY, &[no(R::NoConnection)]),
    row(E::Weight, SETUP, ANY, &[no(R::NotYet)]),
    row(E::Weight, &[Rts, Sqd, Pathless], ANY, &[Unfit, stay(&[SetWeight])]),
    // Findings about paths.
    row(E::ProbesGood, NONE, ANY, &[no(R::NoConnection)]),
    row(E::ProbesGood, SETUP, ANY, &[no(R::NotYet)]),
    row(E::ProbesGood, UP, &[Migrated], &[no(R::NotLoading)]),
    row(
        E::ProbesGood,
        UP,
        &[Rearm],
        &[on(W::Stale, no(R::Stale)), on(W::Complete, to(Armed, &[Arm])), stay(&[])],
    ),
    row(E::ProbesGood, UP, &[Armed], &[no(R::Loaded)]),
    row(E::ProbesGood, &[Pathless], ANY, &[no(R::NoPath)]),
    //
    row(E::ProbesSpent, NONE, &[Migrated, Armed], &[no(R::NoConnection)]),
    row(E::ProbesSpent, SETUP, &[Migrated, Armed], &[no(R::NotYet)]),
    row(E::ProbesSpent, UP, &[Migrated], &[no(R::NotLoading)]),
    row(E::ProbesSpent, UP, &[Armed], &[no(R::Loaded)]),
    row(E::ProbesSpent, &[Pathless], &[Migrated, Armed], &[no(R::NoPath)]),
    row(
        E::ProbesSpent,
        &CONNECTIONS,
        &[Rearm],
        &[on(W::Stale, no(R::Stale)), to(Migrated, &[EndArming, SendWithdraw])],
    ),
    //
    row(E::StandbyBad, NONE, &[Migrated, Rearm], &[no(R::NoConnection)]),
    row(E::StandbyBad, SETUP, &[Migrated, Rearm], &[no(R::NotYet)]),
    row(E::StandbyBad, UP, &[Migrated, Rearm], &[no(R::NotArmed)]),
    row(E::StandbyBad, &[Pathless], &[Migrated, Rearm], &[no(R::NoPath)]),
    row(E::StandbyBad, &CONNECTIONS, &[Armed], &[to(Rearm, &[Disarm])]),
    //
    row(E::PrimarySuspect, NONE, ANY, &[no(R::NoConnection)]),
    row(E::PrimarySuspect, SETUP, ANY, &[no(R::NotYet)]),
    row(E::PrimarySuspect, &[Rts], &[Migrated, Rearm], &[no(R::NotArmed)]),
    row(
        E::PrimarySuspect,
        &[Rts],
        &[Armed],
        &[to(Migrated, &[MoveToAlternate, SendMigrate, TellMigrated])],
    ),
    row(E::PrimarySuspect, &[Sqd], ANY, &[no(R::NotSending)]),
    row(E::PrimarySuspect, &[Pathless], ANY, &[no(R::NoPath)]),
    //
    row(E::PrimaryFailed, NONE, ANY, &[no(R::NoConnection)]),
    row(E::PrimaryFailed, SETUP, ANY, &[no(R::NotYet)]),
    row(
        E::PrimaryFailed,
        &[Rts],
        &[Migrated],
        &[on(W::Spare, stay(&[MoveToSpare, SendMigrate, TellMigrated])), no(R::NoSpare)],
    ),
    row(
        E::PrimaryFailed,
        &[Rts],
        &[Rearm],
        &[
            on(W::Complete, to(Armed, &[Arm])),
            on(W::Spare, to(Migrated, &[EndArming, MoveToSpare, SendMigrate, TellMigrated])),
            no(R::NoSpare),
        ],
    ),
    row(
        E::PrimaryFailed,
        &[Rts],
        &[Armed],
        &[to(Migrated, &[MoveToAlternate, SendMigrate, TellMigrated])],
    ),
    row(E::PrimaryFailed, &[Sqd], ANY, &[no(R::NotSending)]),
    row(E::PrimaryFailed, &[Pathless], ANY, &[no(R::NoPath)]),
    //
    row(E::PathMended, NONE, ANY, &[no(R::NoConnection)]),
    row(E::PathMended, SETUP, ANY, &[no(R::NotYet)]),
    row(E::PathMended, UP, ANY, &[stay(&[TellMended])]),
    row(
        E::PathMended,
        &[Pathless],
        ANY,
        &[on(W::Usable, turn(Rts, &[MoveToPath, SendMigrate, TellResumed])), stay(&[TellMended])],
    ),
    //
    row(E::LastPathGone, NONE, ANY, &[no(R::NoConnection)]),
    row(E::LastPathGone, SETUP, ANY, &[no(R::NotYet)]),
    row(E::LastPathGone, UP, &[Migrated], &[turn(Pathless, &[TellNoPath])]),
    row(
        E::LastPathGone,
        UP,
        &[Rearm, Armed],
        &[turn(Pathless, &[EndArming, SendWithdraw, TellNoPath])],
    ),
    row(E::LastPathGone, &[Pathless], ANY, &[no(R::NoPath)]),
    // Messages of the peer.
    row(E::LoadReceived, NONE, ANY, &[no(R::NoConnection)]),
    row(E::LoadReceived, &[Init], ANY, &[no(R::NotYet)]),
    row(
        E::LoadReceived,
        HEARS,
        &[Migrated],
        &[
            on(W::Stale, no(R::Stale)),
            on(W::Unfit, stay(&[AnswerRefused])),
            to(Rearm, &[AdoptArming, AnswerLoaded]),
        ],
    ),
    row(
        E::LoadReceived,
        &[Rtr],
        &[Rearm],
        &[
            on(W::Again, stay(&[AnswerLoaded])),
            on(W::Stale, no(R::Stale)),
            on(W::Unfit, stay(&[AnswerRefused])),
            on(W::Crossed, stay(&[AnswerRefused])),
            to(Rearm, &[AdoptArming, AnswerLoaded]),
        ],
    ),
    row(
        E::LoadReceived,
        UP,
        &[Rearm],
        &[
            on(W::Complete, to(Armed, &[AnswerLoaded, Arm])),
            on(W::Again, stay(&[AnswerLoaded])),
            on(W::Stale, no(R::Stale)),
            on(W::Unfit, stay(&[AnswerRefused])),
            on(W::Crossed, stay(&[AnswerRefused])),
            to(Rearm, &[AdoptArming, AnswerLoaded]),
        ],
    ),
    row(
        E::LoadReceived,
        HEARS,
        &[Armed],
        &[
            on(W::Again, stay(&[AnswerLoaded])),
            on(W::Stale, no(R::Stale)),
            on(W::Unfit, stay(&[AnswerRefused])),
            on(W::Crossed, stay(&[AnswerRefused])),
            to(Rearm, &[AdoptArming, AnswerLoaded]),
        ],
    ),
    row(E::LoadReceived, &[Pathless], ANY, &[no(R::NoPath)]),
    //
    row(E::AnswerReceived, NONE, ANY, &[no(R::NoConnection)]),
    row(E::AnswerReceived, SETUP, ANY, &[no(R::NotYet)]),
    row(E::AnswerReceived, UP, &[Migrated], &[no(R::NotLoading)]),
    row(
        E::AnswerReceived,
        UP,
        &[Rearm],
        &[
            on(W::Stale, no(R::Stale)),
            on(W::Denied, to(Migrated, &[EndArming, SendWithdraw])),
            on(W::Complete, to(Armed, &[Arm])),
            stay(&[]),
        ],
    ),
    row(E::AnswerReceived, UP, &[Armed], &[no(R::Loaded)]),
    row(E::AnswerReceived, &[Pathless], ANY, &[no(R::NoPath)]),
    //
    row(E::MigrateReceived, NONE, ANY, &[no(R::NoConnection)]),
    row(E::MigrateReceived, &[Init], ANY, &[no(R::NotYet)]),
    row(
        E::MigrateReceived,
        HEARS,
        &[Migrated],
        &[on(W::Stale, no(R::Stale)), Unfit, stay(&[Follow, TellMigrated])],
    ),
    row(
        E::MigrateReceived,
        HEARS,
        &[Rearm],
        &[on(W::Stale, no(R::Stale)), Unfit, to(Migrated, &[EndArming, Follow, TellMigrated])],
    ),
    row(
        E::MigrateReceived,
        HEARS,
        &[Armed],
        &[on(W::Stale, no(R::Stale)), Unfit, to(Migrated, &[Follow, TellMigrated])],
    ),
    row(
        E::MigrateReceived,
        &[Pathless],
        ANY,
        &[on(W::Stale, no(R::Stale)), Unfit, to(Migrated, &[Follow, TellMigrated])],
    ),
    //
    row(E::WithdrawReceived, NONE, ANY, &[no(R::NoConnection)]),
    row(E::WithdrawReceived, &[Init], ANY, &[no(R::NotYet)]),
    row(
        E::WithdrawReceived,
        &[Rtr, Rts, Sqd, Pathless],
        &[Migrated],
        &[on(W::Stale, no(R::Stale)), stay(&[])],
    ),
    row(
        E::WithdrawReceived,
        &[Rtr, Rts, Sqd, Pathless],
        &[Rearm, Armed],
        &[on(W::Ends, to(Migrated, &[EndArming])), on(W::Stale, no(R::Stale)), stay(&[])],
    ),
    // Ends of a connection.
    row(E::ConnectionError, NONE, ANY, &[no(R::NoConnection)]),
    row(E::ConnectionError, &[Init, Rtr, Rts, Sqd, Pathless], ANY, &[turn(Error, &[Clear])]),
    row(E::Reset, &CONNECTIONS, ANY, &[turn(Reset, &[Clear])]),
    row(E::NewIncarnation, &[Reset], ANY, &[no(R::NoConnection)]),
    row(E::NewIncarnation, &[Init, Rtr, Rts, Sqd, Pathless, Error], ANY, &[turn(Reset, &[Clear])]),
];
