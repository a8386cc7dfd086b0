//! The table against the three grids of `docs/spec/apm.md`, which were written by hand.

use std::collections::BTreeMap;

use crate::apm::cell::Branch;
use crate::apm::state::{CONNECTIONS, EVENTS, MIGRATION_STATES};
use crate::apm::table::cell;
use crate::apm::{Connection, Event, MigrationState};

const SPECIFICATION: &str = include_str!("../../../../docs/spec/apm.md");

type Key = (String, String, String);

/// The cells of the page, by migration state, event and connection state.
fn read() -> BTreeMap<Key, String> {
    let mut cells = BTreeMap::new();
    let (mut migration, mut columns) = (None, Vec::new());
    for line in SPECIFICATION.lines() {
        if let Some(heading) = line.strip_prefix('#') {
            let name = heading.trim_start_matches('#').trim();
            migration =
                MIGRATION_STATES.map(MigrationState::name).into_iter().find(|it| *it == name);
            continue;
        }
        let (Some(migration), Some(row)) = (migration, line.strip_prefix('|')) else { continue };
        let mut fields = row.trim_end_matches('|').split('|').map(|field| field.trim().to_string());
        let event = fields.next().expect("a row has a first field");
        let fields: Vec<String> = fields.collect();
        match event.as_str() {
            "event" => columns = fields,
            "---" => {}
            _ => {
                assert_eq!(fields.len(), columns.len(), "{migration}, {event}");
                for (column, field) in columns.iter().zip(fields) {
                    let key = (migration.to_string(), event.clone(), column.clone());
                    let twice = cells.insert(key, field);
                    assert_eq!(twice, None, "{migration}, {event}, {column} is there twice");
                }
            }
        }
    }
    cells
}

/// A cell of the code in the page's notation.
fn render(connection: Connection, migration: MigrationState, event: Event) -> String {
    let branch = |branch: &Branch| match branch {
        Branch::Unfit => "unfit",
        Branch::Refuse { rule, .. } => rule.name(),
        Branch::Go { connection: to_connection, migration: to_migration, .. } => {
            let to_connection = to_connection.unwrap_or(connection);
            let to_migration = to_migration.unwrap_or(migration);
            if to_connection != connection {
                to_connection.name()
            } else if to_migration != migration {
                to_migration.name()
            } else {
                "stays"
            }
        }
    };
    cell(connection, migration, event).iter().map(branch).collect::<Vec<_>>().join(" / ")
}

#[test]
fn each_of_the_420_cells_is_the_one_of_the_specification() {
    let mut written = read();
    assert_eq!(written.len(), 420);
    for migration in MIGRATION_STATES {
        for event in EVENTS {
            for connection in CONNECTIONS {
                let key = [migration.name(), event.name(), connection.name()].map(String::from);
                let [migration_name, event_name, connection_name] = key;
                let key = (migration_name, event_name, connection_name);
                let expected = written.remove(&key);
                let actual = render(connection, migration, event);
                assert_eq!(expected.as_ref(), Some(&actual), "{key:?}");
            }
        }
    }
    assert_eq!(written.len(), 0, "the page has cells that the code lacks");
}

#[test]
fn the_lists_have_each_state_and_event_once_and_in_order() {
    for (at, connection) in CONNECTIONS.into_iter().enumerate() {
        assert_eq!(connection as usize, at);
    }
    for (at, migration) in MIGRATION_STATES.into_iter().enumerate() {
        assert_eq!(migration as usize, at);
    }
    for (at, event) in EVENTS.into_iter().enumerate() {
        assert_eq!(event as usize, at);
    }
}
