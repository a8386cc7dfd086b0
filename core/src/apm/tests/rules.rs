//! What holds in every cell, stated apart from the table.

use crate::apm::cell::{Action, Branch, Cell, When};
use crate::apm::state::{CONNECTIONS, EVENTS, MIGRATION_STATES};
use crate::apm::table::{cell, refusal};
use crate::apm::{Connection, Event, MigrationState, Rule};

use Connection::{Error, Init, Pathless, Rtr, Rts, Sqd};
use MigrationState::{Armed, Migrated, Rearm};

/// A branch that changes something, with its next states.
struct Change {
    event: Event,
    from: (Connection, MigrationState),
    to: (Connection, MigrationState),
    when: When,
    actions: &'static [Action],
}

fn cells() -> impl Iterator<Item = (Connection, MigrationState, Event, Cell)> {
    CONNECTIONS.into_iter().flat_map(|connection| {
        MIGRATION_STATES.into_iter().flat_map(move |migration| {
            EVENTS.into_iter().map(move |event| {
                (connection, migration, event, cell(connection, migration, event))
            })
        })
    })
}

fn changes() -> Vec<Change> {
    let mut changes = Vec::new();
    for (from_connection, from_migration, event, cell) in cells() {
        for branch in cell {
            if let Branch::Go { when, connection, migration, actions } = *branch {
                let to =
                    (connection.unwrap_or(from_connection), migration.unwrap_or(from_migration));
                let from = (from_connection, from_migration);
                changes.push(Change { event, from, to, when, actions });
            }
        }
    }
    changes
}

/// Pairs of states that a run can reach, as the specification lists them.
fn is_real(pair: (Connection, MigrationState)) -> bool {
    match pair {
        (Rts | Sqd, _) | (_, Migrated) => true,
        (Rtr, migration) => migration == Rearm,
        _ => false,
    }
}

fn legal(event: Event) -> Vec<(Connection, MigrationState)> {
    cells()
        .filter(|(_, _, of, cell)| {
            *of == event && cell.iter().any(|branch| matches!(branch, Branch::Go { .. }))
        })
        .map(|(connection, migration, ..)| (connection, migration))
        .collect()
}

fn pairs(
    connections: &[Connection],
    migrations: &[MigrationState],
) -> Vec<(Connection, MigrationState)> {
    let of = |connection: &Connection| {
        migrations.iter().map(|migration| (*connection, *migration)).collect::<Vec<_>>()
    };
    connections.iter().flat_map(of).collect()
}

#[test]
fn a_cell_ends_with_a_branch_that_always_holds_and_has_no_condition_twice() {
    for (connection, migration, event, cell) in cells() {
        let place = format!("{connection}, {migration}, {event}");
        let (last, before) = cell.split_last().expect(&place);
        assert_eq!(last.when(), When::Always, "{place}");
        for (at, branch) in before.iter().enumerate() {
            assert_ne!(branch.when(), When::Always, "{place}");
            assert!(before[..at].iter().all(|other| other.when() != branch.when()), "{place}");
        }
    }
}

#[test]
fn the_papers_modules_are_legal_where_the_paper_says() {
    assert_eq!(legal(Event::Specify), pairs(&[Init, Rtr, Rts, Sqd], &[Migrated]));
    assert_eq!(legal(Event::Load), pairs(&[Init, Rtr, Rts, Sqd], &[Migrated]));
    assert_eq!(legal(Event::Migrate), pairs(&[Rts, Sqd], &[Armed]));
    for change in changes().iter().filter(|change| change.event == Event::Load) {
        let kept = change.from.0 == Init;
        assert_eq!(change.to.1, if kept { Migrated } else { Rearm });
        assert_eq!(change.actions, if kept { &[Action::KeepLoad] } else { &[Action::BeginArming] });
    }
    // The user's mistakes have names of their own.
    assert_eq!(refusal(Rts, Migrated, Event::Migrate), Some(Rule::NotArmed));
    assert_eq!(refusal(Rts, Rearm, Event::Migrate), Some(Rule::NotArmed));
    assert_eq!(refusal(Rts, Rearm, Event::Load), Some(Rule::Loading));
    assert_eq!(refusal(Rts, Armed, Event::Load), Some(Rule::Loaded));
}

#[test]
fn armed_is_reached_from_rearm_by_a_complete_proof_only() {
    for change in changes() {
        let enters = change.to.1 == Armed && change.from.1 != Armed;
        assert_eq!(enters, change.when == When::Complete);
        assert_eq!(enters, change.actions.contains(&Action::Arm));
        if enters {
            assert_eq!(change.from.1, Rearm);
            assert!(matches!(change.from.0, Rts | Sqd));
            assert_eq!(change.from.0, change.to.0);
        }
    }
}

#[test]
fn a_connection_that_changes_is_migrated() {
    for change in changes().iter().filter(|change| change.from.0 != change.to.0) {
        assert_eq!(change.to.1, Migrated);
    }
}

#[test]
fn every_end_of_an_arming_is_told_exactly_once() {
    for change in changes() {
        let ends = |action: &&Action| {
            use Action::*;
            matches!(**action, EndArming | Clear)
        };
        let moves = |action: &&Action| {
            use Action::*;
            matches!(**action, MoveToAlternate | MoveToSpare | MoveToPath | Follow)
        };
        let told = change.actions.iter().filter(ends).count();
        let moved = change.actions.iter().filter(moves).count();
        assert!(told <= 1 && moved <= 1);
        if change.from.1 == Rearm && change.to.1 == Migrated && is_real(change.from) {
            assert_eq!(told, 1, "{}", change.event);
        }
        if change.from.1 == Armed && change.to.1 == Migrated && is_real(change.from) {
            assert_eq!(told + moved, 1, "{}", change.event);
        }
        if change.from.1 == Armed && change.to.1 == Rearm {
            use Action::{AdoptArming, Disarm};
            assert!(change.actions.iter().any(|action| matches!(action, Disarm | AdoptArming)));
        }
    }
}

#[test]
fn who_moves_says_so_to_the_peer_and_to_the_user() {
    for change in changes() {
        use Action::*;
        let at = |wanted: Action| change.actions.iter().position(|action| *action == wanted);
        let moved = [MoveToAlternate, MoveToSpare, MoveToPath].into_iter().find_map(at);
        assert_eq!(moved.is_some(), at(SendMigrate).is_some(), "{}", change.event);
        if let Some(moved) = moved {
            assert!(moved < at(SendMigrate).expect("just seen"));
        }
        let told = at(TellMigrated).or(at(TellResumed));
        assert_eq!(moved.or(at(Follow)).is_some(), told.is_some(), "{}", change.event);
        // A follower does not answer with a migration: that would go on for ever.
        assert!(at(Follow).is_none() || at(SendMigrate).is_none());
        assert_eq!(at(Follow).is_some(), change.event == Event::MigrateReceived);
        // A path is drained before a move chooses among those that are not.
        if let (Some(drained), Some(moved)) = (at(MarkDrained), moved) {
            assert!(drained < moved);
        }
    }
}

#[test]
fn the_peer_hears_when_this_side_leaves_an_arming_by_itself() {
    for change in changes() {
        use Action::*;
        let leaves = change.from.1 != Migrated && change.to.1 == Migrated;
        let by_peer = matches!(change.event, Event::MigrateReceived | Event::WithdrawReceived);
        let over = change.actions.contains(&Clear);
        if leaves && !by_peer && !over && is_real(change.from) {
            let says = |action: &Action| matches!(action, SendWithdraw | SendMigrate);
            assert!(change.actions.iter().any(says), "{}", change.event);
        }
    }
}

#[test]
fn pathless_is_left_by_a_path_or_by_the_end_of_the_connection_only() {
    for change in changes().iter().filter(|change| change.from.0 == Pathless) {
        match change.event {
            Event::PathMended | Event::Up => assert!(matches!(change.to.0, Pathless | Rts)),
            Event::ConnectionError => assert_eq!(change.to.0, Error),
            Event::Reset | Event::NewIncarnation => assert_eq!(change.to.0, Connection::Reset),
            _ => assert_eq!(change.to.0, Pathless, "{}", change.event),
        }
    }
    for migration in MIGRATION_STATES {
        for connection in [Rts, Sqd] {
            assert_eq!(refusal(connection, migration, Event::LastPathGone), None);
        }
    }
}

#[test]
fn without_a_connection_nothing_happens_but_its_beginning_again() {
    for (connection, migration, event, _) in cells() {
        let none = matches!(connection, Connection::Reset | Error);
        let again = event == Event::Reset || event == Event::NewIncarnation && connection == Error;
        if none && is_real((connection, migration)) && !again {
            assert_eq!(refusal(connection, migration, event), Some(Rule::NoConnection), "{event}");
        }
    }
}

#[test]
fn a_run_stays_in_the_pairs_that_the_specification_lists() {
    // The set-up, which is no event, is the only other way to change the connection's state.
    let set_up = |(connection, migration)| match connection {
        Connection::Reset => vec![(Init, migration)],
        Init => vec![(Rtr, migration)],
        Rtr => vec![(Rts, migration)],
        Rts => vec![(Sqd, migration)],
        Sqd => vec![(Rts, migration)],
        _ => vec![],
    };
    let changes = changes();
    let mut reached = vec![(Connection::Reset, Migrated)];
    let mut at = 0;
    while at < reached.len() {
        let pair = reached[at];
        let steps = changes.iter().filter(|change| change.from == pair).map(|change| change.to);
        for next in steps.chain(set_up(pair)) {
            if !reached.contains(&next) {
                reached.push(next);
            }
        }
        at += 1;
    }
    for pair in pairs(&CONNECTIONS, &MIGRATION_STATES) {
        assert_eq!(reached.contains(&pair), is_real(pair), "{pair:?}");
    }
    assert_eq!(reached.len(), 12);
}

#[test]
fn from_every_reachable_pair_a_connection_can_be_armed_again() {
    let changes = changes();
    let set_up = [(Connection::Reset, Init), (Init, Rtr), (Rtr, Rts), (Sqd, Rts)];
    let mut good = vec![(Rts, Armed)];
    loop {
        let before = good.len();
        for pair in pairs(&CONNECTIONS, &MIGRATION_STATES) {
            let by_event =
                changes.iter().any(|change| change.from == pair && good.contains(&change.to));
            let by_set_up =
                set_up.iter().any(|(from, to)| *from == pair.0 && good.contains(&(*to, pair.1)));
            if !good.contains(&pair) && (by_event || by_set_up) {
                good.push(pair);
            }
        }
        if good.len() == before {
            break;
        }
    }
    for pair in pairs(&CONNECTIONS, &MIGRATION_STATES).into_iter().filter(|pair| is_real(*pair)) {
        assert!(good.contains(&pair), "{pair:?} is a dead end");
    }
}
