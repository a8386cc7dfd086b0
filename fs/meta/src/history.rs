//! The terms of a file system's history: its metadata server's starts, whatever disk they were on.
//!
//! Rows belong to a history, not to a directory: a directory is copied back, and a second server may hold the same
//! rows. So each start is a row as well (`L`). The row says the id of the term, which replies carry as the server's life,
//! and the era that goes on in it.
//!
//! Invariants:
//! * a term has a higher number than all that these rows, or this disk's superblock, know of;
//! * nobody is served in a term before its row is durable;
//! * an era goes on only where the same store served the term before, and its disk lost nothing since.

use std::collections::BTreeMap;

use ropewalk_store::superblock::{Boot, Starts};
use ropewalk_wire::fs::term::Term;
use serde::{Deserialize, Serialize};

use crate::inode::{decode_row, encode_row};
use crate::keys::{self, Table};
use crate::rows::{Batch, Rows, RowsError};

const VERSION: u8 = 1;
/// Terms that are remembered; as many starts as a superblock has.
const TERMS_MAX: usize = 48;

/// The row of a term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct TermRow {
    /// The id of the term, see [`Term`].
    id: u64,
    /// The metadata server that serves.
    server: u32,
    /// The identity of its store.
    store: u128,
    /// The era of its disk, as the superblock counts eras.
    disk_era: u64,
    /// The era of the history: nothing that was acknowledged in it is lost while it lasts.
    era: u64,
}

impl TermRow {
    /// Reads the row of term `number`; None where it is damaged.
    pub fn decode(number: u64, bytes: &[u8]) -> Option<TermRow> {
        let row: TermRow = decode_row(VERSION, bytes).ok()?;
        (number != 0 && u64::from(row.term().number()) == number).then_some(row)
    }

    /// The value of the row.
    pub fn encode(&self) -> Vec<u8> {
        encode_row(VERSION, self)
    }

    /// The id of the term.
    pub fn term(&self) -> Term {
        Term(self.id)
    }

    /// The era of the history.
    pub fn era(&self) -> u64 {
        self.era
    }
}

/// The last terms, by number.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Terms {
    rows: BTreeMap<u64, TermRow>,
}

/// A term that begins.
pub(crate) struct Beginning {
    pub row: TermRow,
    /// Changes acknowledged before it may be lost in part: a new era begins.
    pub forgetful: bool,
    /// The terms and starts of which the history knows, this one included.
    pub starts: Starts,
}

impl Terms {
    pub fn read<R: Rows>(rows: &R) -> Result<Terms, RowsError> {
        let prefix = [Table::Term as u8];
        let (mut found, mut damaged) = (BTreeMap::new(), false);
        rows.scan(&prefix, &keys::after(&prefix), &mut |key, value| {
            let number = keys::number(key, 0).unwrap_or(0);
            match TermRow::decode(number, value) {
                Some(row) => drop(found.insert(number, row)),
                None => damaged = true,
            }
            !damaged
        })?;
        match damaged {
            true => Err(RowsError::Failed("a row of the terms does not decode".to_owned())),
            false => Ok(Terms { rows: found }),
        }
    }

    /// The term of a start of `server`; `starts` are those of its disk.
    pub fn next(&self, boot: &Boot, server: u32, starts: Starts) -> Beginning {
        let before = self.rows.last_key_value();
        let newest = before.map_or(0, |(number, _)| *number);
        // A program that does not know of terms makes starts that only the superblock has.
        let number = u32::try_from(boot.counter.max(newest + 1)).unwrap_or(u32::MAX);
        let own = Term(boot.id);
        let term = if own.number() == number { own } else { Term::new(number, boot.id) };
        let Boot { store, era: disk_era, .. } = *boot;
        let (forgetful, era) = match before.map(|(_, row)| row) {
            // The first term goes on with the era that the disk has.
            None if disk_era != boot.id => (false, disk_era),
            Some(row) if row.store == store && row.disk_era == disk_era => (false, row.era),
            _ => (true, term.0),
        };
        // The starts of another disk are none of this history: it was only copied there.
        let starts = if boot.history == store { starts } else { Starts::default() };
        let known = self.rows.values().fold(starts, |starts, row| starts.with(row.id));
        let row = TermRow { id: term.0, server, store, disk_era, era };
        Beginning { row, forgetful, starts: known.with(row.id) }
    }

    /// Notes a term in a batch, and removes those that are too old.
    pub fn note(&self, row: &TermRow, batch: &mut Batch) {
        let number = u64::from(row.term().number());
        let older = self.rows.keys().filter(|other| **other != number);
        let excess = (older.clone().count() + 1).saturating_sub(TERMS_MAX);
        older.take(excess).for_each(|number| batch.remove(key(*number)));
        batch.put(key(number), row.encode());
    }
}

fn key(number: u64) -> Vec<u8> {
    keys::key(Table::Term, &[number])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::VolatileRows;

    fn boot(counter: u64, era: u64) -> Boot {
        Boot { counter, id: counter << 32 | 9, era, store: 5, history: 5 }
    }

    fn begin(rows: &mut VolatileRows, boot: &Boot, starts: Starts) -> Beginning {
        let terms = Terms::read(rows).unwrap();
        let beginning = terms.next(boot, 3, starts);
        let mut batch = Batch::default();
        terms.note(&beginning.row, &mut batch);
        rows.commit(batch).unwrap();
        beginning
    }

    #[test]
    fn a_lone_server_has_the_terms_and_eras_of_its_disk() {
        let mut rows = VolatileRows::default();
        let mut starts = Starts::default();
        for counter in 7..200 {
            let era = (counter / 10 * 10).max(7) << 32 | 9;
            let boot = boot(counter, era);
            starts = starts.with(boot.id);
            let begun = begin(&mut rows, &boot, starts);
            assert_eq!((begun.row.id, begun.row.era), (boot.id, era), "{counter}");
            assert_eq!(begun.forgetful, boot.id == era, "{counter}");
            assert_eq!(begun.starts, starts, "{counter}");
            let terms = Terms::read(&rows).unwrap();
            assert!(terms.rows.len() <= TERMS_MAX && terms.rows.contains_key(&counter));
        }
        assert_eq!(Terms::read(&rows).unwrap().rows.len(), TERMS_MAX);
    }

    #[test]
    fn the_first_term_goes_on_with_the_era_of_the_disk() {
        let begun = begin(&mut VolatileRows::default(), &boot(7, 77), Starts::default());
        assert!(!begun.forgetful && begun.row.era() == 77);
    }

    #[test]
    fn a_superblock_that_fell_behind_makes_no_term_twice() {
        let mut rows = VolatileRows::default();
        let first = begin(&mut rows, &boot(7, 77), Starts::default()).row;
        let second = begin(&mut rows, &boot(3, 77), Starts::default());
        assert_eq!((second.row.term().number(), second.row.id as u32), (8, 9));
        assert!(first.term().is_behind(second.row.term()) && second.starts.may_have(first.id));
        assert!(!second.starts.may_have(first.id ^ 1) && !second.starts.may_have(9 << 32));
        assert!(!second.forgetful && second.row.era == 77);
    }

    #[test]
    fn starts_of_a_program_without_terms_are_known_and_so_is_their_era() {
        let mut rows = VolatileRows::default();
        let starts = Starts::default().with(7 << 32 | 9).with(8 << 32 | 1).with(9 << 32 | 9);
        begin(&mut rows, &boot(7, 77), Starts::default());
        // Start 8 was such a program's, after a loss of power.
        let begun = begin(&mut rows, &boot(9, 8 << 32 | 1), starts);
        assert!(begun.starts.may_have(8 << 32 | 1) && !begun.starts.may_have(8 << 32 | 2));
        assert!(begun.forgetful && begun.row.era == begun.row.id);
    }

    #[test]
    fn another_disk_of_the_history_begins_an_era_and_its_own_starts_are_no_terms() {
        let mut rows = VolatileRows::default();
        begin(&mut rows, &boot(7, 77), Starts::default());
        let other = Boot { store: 6, ..boot(2, 77) };
        let own = Starts::default().with(1 << 32 | 4).with(2 << 32 | 9);
        let begun = begin(&mut rows, &other, own);
        assert_eq!(begun.row.term().number(), 8);
        assert!(begun.forgetful && begun.row.era == begun.row.id);
        assert!(begun.starts.may_have(7 << 32 | 9) && !begun.starts.may_have(7 << 32 | 8));
        // Back on the first disk: the number that its superblock counts to was a term of the other one.
        let again = begin(&mut rows, &boot(8, 77), Starts::default().with(8 << 32 | 9 << 8));
        assert_eq!(again.row.term().number(), 9);
        assert!(again.starts.may_have(begun.row.id) && !again.starts.may_have(8 << 32 | 9 << 8));
        assert!(again.forgetful);
    }

    #[test]
    fn the_last_number_stays() {
        let mut rows = VolatileRows::default();
        for random in 1..4 {
            let id = u64::from(u32::MAX) << 32 | random;
            let boot = Boot { counter: 1 << 40, id, ..boot(1, 77) };
            let begun = begin(&mut rows, &boot, Starts::default());
            assert_eq!(begun.row.id, id);
        }
        assert_eq!(Terms::read(&rows).unwrap().rows.len(), 1);
    }

    #[test]
    fn damaged_rows_are_refused() {
        let row = TermRow { id: 7 << 32 | 1, server: 3, store: 5, disk_era: 8, era: 9 };
        assert_eq!(TermRow::decode(7, &row.encode()), Some(row));
        assert_eq!(TermRow::decode(8, &row.encode()), None);
        for cut in 0..row.encode().len() {
            assert_eq!(TermRow::decode(7, &row.encode()[..cut]), None);
        }
        let mut rows = VolatileRows::default();
        let mut batch = Batch::default();
        batch.put(key(8), row.encode());
        rows.commit(batch).unwrap();
        assert!(Terms::read(&rows).is_err());
    }
}
