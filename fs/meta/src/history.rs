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
use ropewalk_store::{FoundStore, KeyRange};
use ropewalk_wire::fs::term::Term;
use serde::{Deserialize, Serialize};

use crate::inode::{decode_row, encode_row};
use crate::keys::{self, Table};
use crate::rows::{Batch, Rows, RowsError};

const VERSION: u8 = 2;
/// Of rows that do not say where their term begins.
const FIRST_VERSION: u8 = 1;
/// Terms that are remembered; as many starts as a superblock has.
const TERMS_MAX: usize = 48;
/// Terms that a restore passes over: [`Term::is_restored_since`] knows it by that.
const RESTORE_STEP: u64 = 1 << 16;

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
    /// The record that begins the term, this row's own; 0 where that is not known.
    begin: u64,
    /// The server was elected; else there was one only.
    is_elected: bool,
}

/// The row of a program that did not note where its term begins.
#[derive(Serialize, Deserialize)]
struct FirstRow {
    id: u64,
    server: u32,
    store: u128,
    disk_era: u64,
    era: u64,
}

impl TermRow {
    /// Reads the row of term `number`; None where it is damaged.
    pub fn decode(number: u64, bytes: &[u8]) -> Option<TermRow> {
        let row: TermRow = match bytes.first() {
            Some(&FIRST_VERSION) => {
                let row: FirstRow = decode_row(FIRST_VERSION, bytes).ok()?;
                let FirstRow { id, server, store, disk_era, era } = row;
                TermRow { id, server, store, disk_era, era, begin: 0, is_elected: false }
            }
            _ => decode_row(VERSION, bytes).ok()?,
        };
        (number != 0 && u64::from(row.term().number()) == number).then_some(row)
    }

    /// The value of the row.
    pub fn encode(&self) -> Vec<u8> {
        encode_row(VERSION, self)
    }

    /// The term that a restore notes. Its number is above those that the former servers of the history can have had
    /// since the newest one in the dump, and no store has it. None: there are no numbers left.
    pub fn restored(newest: u64, server: u32, random: u64) -> Option<TermRow> {
        let number = u32::try_from(newest.checked_add(RESTORE_STEP)?).ok()?;
        let id = Term::new(number, random).0;
        let (store, disk_era, era, begin) = (0, 0, 0, 0);
        Some(TermRow { id, server, store, disk_era, era, begin, is_elected: false })
    }

    /// Whether a restore has noted the term.
    fn is_restored(&self) -> bool {
        (self.store, self.disk_era, self.era, self.begin) == (0, 0, 0, 0)
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

/// How a start begins its term.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Start {
    /// The number that an election gave to the term; None where there is one metadata server.
    pub elected: Option<u32>,
    /// The era of the disk in which its store had all that was acknowledged; 0 where that is not known.
    pub whole: u64,
    /// The record that begins the term.
    pub begin: u64,
}

/// A term, as two stores of a history compare it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KnownTerm {
    pub id: u64,
    pub begin: u64,
}

/// The last record that two stores have in common, of which each knows these terms and has records up to the position beside
/// them. None where no term says.
pub fn common(
    (own, own_last): (&[KnownTerm], u64),
    (other, other_last): (&[KnownTerm], u64),
) -> Option<u64> {
    let end = |terms: &[KnownTerm], at: usize, last: u64| {
        terms.get(at + 1).map_or(last, |next| next.begin.saturating_sub(1))
    };
    let found = own.iter().enumerate().rev().find_map(|(at, term)| {
        let other_at = other.iter().position(|it| it == term)?;
        Some((at, other_at))
    });
    let (at, other_at) = found?;
    Some(end(own, at, own_last).min(end(other, other_at, other_last)))
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
    /// The rows come from a dump, and this is their first term.
    pub restored: bool,
    /// The terms and starts of which the history knows, this one included.
    pub starts: Starts,
}

impl Terms {
    pub fn read<R: Rows>(rows: &R) -> Result<Terms, RowsError> {
        let prefix = [Table::Term as u8];
        let (mut found, mut is_damaged) = (BTreeMap::new(), false);
        rows.scan(&prefix, &keys::after(&prefix), &mut |key, value| {
            let number = keys::number(key, 0).unwrap_or(0);
            match TermRow::decode(number, value) {
                Some(row) => drop(found.insert(number, row)),
                None => is_damaged = true,
            }
            !is_damaged
        })?;
        match is_damaged {
            true => Err(damaged()),
            false => Ok(Terms { rows: found }),
        }
    }

    /// The terms in the rows of a store that was only read.
    pub fn found(store: &FoundStore) -> Result<Terms, RowsError> {
        let prefix = [Table::Term as u8];
        let range = KeyRange::between(&prefix, &[Table::Term as u8 + 1]);
        let mut found = BTreeMap::new();
        for (key, value) in store.scan(range, 2 * TERMS_MAX)? {
            let number = keys::number(&key, 0).unwrap_or(0);
            let row = TermRow::decode(number, &value).ok_or_else(damaged)?;
            found.insert(number, row);
        }
        Ok(Terms { rows: found })
    }

    /// The term of a start of `server`; `starts` are those of its disk.
    pub fn next(&self, boot: &Boot, server: u32, starts: Starts, start: Start) -> Beginning {
        let before = self.rows.last_key_value();
        let newest = before.map_or(0, |(number, _)| *number);
        // A program that does not know of terms makes starts that only the superblock has.
        let counted = u32::try_from(boot.counter.max(newest + 1)).unwrap_or(u32::MAX);
        let number = start.elected.unwrap_or(counted);
        let own = Term(boot.id);
        let term = if own.number() == number { own } else { Term::new(number, boot.id) };
        let Boot { store, era: disk_era, .. } = *boot;
        let (forgetful, era) = match before.map(|(_, row)| row) {
            // The first term goes on with the era that the disk has.
            None if disk_era != boot.id => (false, disk_era),
            Some(row) if row.store == store && row.disk_era == disk_era => (false, row.era),
            Some(row) if start.whole == disk_era => (false, row.era),
            _ => (true, term.0),
        };
        // The starts of another disk are none of this history: it was only copied there.
        let starts = if boot.history == store { starts } else { Starts::default() };
        let restored = before.is_some_and(|(_, row)| row.is_restored());
        let known = self.rows.values().fold(starts, |starts, row| starts.with(row.id));
        let (begin, is_elected) = (start.begin, start.elected.is_some());
        let row = TermRow { id: term.0, server, store, disk_era, era, begin, is_elected };
        Beginning { row, forgetful, restored, starts: known.with(row.id) }
    }

    /// The highest number of a term.
    pub fn newest(&self) -> u64 {
        self.rows.last_key_value().map_or(0, |(number, _)| *number)
    }

    /// The id of the newest term; 0 where there is none.
    pub fn newest_id(&self) -> u64 {
        self.rows.last_key_value().map_or(0, |(_, row)| row.id)
    }

    /// Whether a server of this history was ever elected, as far as these rows go back.
    pub fn had_election(&self) -> bool {
        self.rows.values().any(|row| row.is_elected)
    }

    /// The terms whose beginnings are known, the oldest first.
    pub fn known(&self) -> Vec<KnownTerm> {
        let known = self.rows.values().filter(|row| row.begin != 0);
        known.map(|row| KnownTerm { id: row.id, begin: row.begin }).collect()
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

fn damaged() -> RowsError {
    RowsError::Failed("a row of the terms does not decode".to_owned())
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
        let beginning = terms.next(boot, 3, starts, Start { begin: 5, ..Start::default() });
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
    fn an_elected_server_has_the_number_of_the_election_and_the_era_of_what_it_has() {
        let mut rows = VolatileRows::default();
        begin(&mut rows, &boot(7, 77), Starts::default());
        let other = Boot { store: 6, ..boot(2, 55) };
        for (whole, forgetful) in [(55, false), (54, true), (0, true)] {
            let start = Start { elected: Some(30), whole, begin: 9 };
            let terms = Terms::read(&rows).unwrap();
            let begun = terms.next(&other, 3, Starts::default(), start);
            assert_eq!(begun.row.term().number(), 30);
            assert_eq!((begun.forgetful, begun.row.begin), (forgetful, 9), "{whole}");
            assert_eq!(begun.row.era, if forgetful { begun.row.id } else { 77 });
        }
    }

    #[test]
    fn two_stores_have_in_common_all_up_to_the_end_of_the_last_term_that_both_know() {
        let term = |id, begin| KnownTerm { id, begin };
        let [one, two, three, other] = [term(1, 1), term(2, 10), term(3, 20), term(4, 20)];
        for (own, other, last) in [
            ((&[one, two][..], 15), (&[one, two][..], 15), Some(15)),
            ((&[one, two], 15), (&[one, two], 18), Some(15)),
            ((&[one, two], 25), (&[one, two, three], 30), Some(19)),
            ((&[one, two, other], 25), (&[one, two, three], 30), Some(19)),
            ((&[one], 12), (&[one, two, three], 30), Some(9)),
            ((&[one], 5), (&[one, two, three], 30), Some(5)),
            ((&[three], 25), (&[two, three], 30), Some(25)),
            ((&[other], 25), (&[one, two, three], 30), None),
            ((&[], 25), (&[one], 30), None),
        ] {
            assert_eq!(common(own, other), last, "{own:?} {other:?}");
            assert_eq!(common(other, own), last, "{other:?} {own:?}");
        }
    }

    #[test]
    fn damaged_rows_are_refused() {
        let row = TermRow {
            id: 7 << 32 | 1,
            server: 3,
            store: 5,
            disk_era: 8,
            era: 9,
            begin: 4,
            is_elected: true,
        };
        assert_eq!(TermRow::decode(7, &row.encode()), Some(row));
        assert_eq!(TermRow::decode(8, &row.encode()), None);
        let first = FirstRow { id: row.id, server: 3, store: 5, disk_era: 8, era: 9 };
        let old = encode_row(FIRST_VERSION, &first);
        assert_eq!(TermRow::decode(7, &old), Some(TermRow { begin: 0, is_elected: false, ..row }));
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
