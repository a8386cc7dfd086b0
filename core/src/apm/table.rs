//! The table: 7 states of a connection x 3 states of its migration x 20 events, as data.
//!
//! `rows.rs` is the source for readers: a row gives the same cell to several states. The compiler expands the rows to 420
//! cells and fails if one has no row or two.
//!
//! A cell is a list of branches. The first whose condition holds says the next states and the actions, or the rule that
//! refuses. A refusal changes nothing. The last branch of each cell always holds.

use super::cell::{Branch, Cell};
use super::rows::ROWS;
use super::state::{
    CONNECTIONS, Connection, EVENTS, Event, MIGRATION_STATES, MigrationState, Rule,
};

/// The cell of an event in two states.
pub fn cell(connection: Connection, migration: MigrationState, event: Event) -> Cell {
    let row = CELLS[event as usize][connection as usize][migration as usize];
    ROWS[usize::from(row)].cell
}

/// The rule that refuses an event whatever its data, if one does.
pub fn refusal(connection: Connection, migration: MigrationState, event: Event) -> Option<Rule> {
    match cell(connection, migration, event) {
        [Branch::Refuse { rule, .. }] => Some(*rule),
        _ => None,
    }
}

const NO_ROW: u8 = u8::MAX;
const CELLS: [[[u8; 3]; 7]; 20] = expand();

/// The row of each cell. Evaluated by the compiler, which stops at a gap or at a cell with two rows.
const fn expand() -> [[[u8; 3]; 7]; 20] {
    let mut cells = [[[NO_ROW; 3]; 7]; 20];
    let mut at = 0;
    while at < ROWS.len() {
        let row = &ROWS[at];
        let mut connection = 0;
        while connection < row.connections.len() {
            let mut migration = 0;
            while migration < row.migrations.len() {
                let cell = &mut cells[row.event as usize][row.connections[connection] as usize]
                    [row.migrations[migration] as usize];
                assert!(*cell == NO_ROW, "a cell has two rows");
                *cell = at as u8;
                migration += 1;
            }
            connection += 1;
        }
        at += 1;
    }
    let mut event = 0;
    while event < EVENTS.len() {
        let mut connection = 0;
        while connection < CONNECTIONS.len() {
            let mut migration = 0;
            while migration < MIGRATION_STATES.len() {
                assert!(cells[event][connection][migration] != NO_ROW, "a cell has no row");
                migration += 1;
            }
            connection += 1;
        }
        event += 1;
    }
    cells
}
