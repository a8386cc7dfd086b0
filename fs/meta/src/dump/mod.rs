//! Dumps: the metadata of a file system in a file that another store can be made of.
//!
//! * `format`: the bytes;
//! * `parser`: reads them as they come;
//! * `tables`: what is taken of each table;
//! * `walk`: goes over the rows of a store, and on behind damage;
//! * `dumper`: makes a dump of rows that do not change;
//! * `serving`: the dump that a running server gives;
//! * `offline`: the rows of a store that no server uses;
//! * `restore`: a store of a dump.
//!
//! Invariants:
//! * a dump has the rows of one position of the journal, or says what it lacks;
//! * nothing is believed of a dump whose bytes were not compared with their checksums;
//! * a restored store begins a term that is newer than those of all servers that had these rows.

mod dumper;
mod format;
mod offline;
mod parser;
mod restore;
mod serving;
mod tables;
#[cfg(test)]
mod tests;
mod walk;

pub use dumper::Dumper;
pub use format::{DumpedRow, Head, Lost, Totals};
pub use offline::{OfflineError, StoredRows};
pub use parser::{DumpError, Item, Parser};
pub use restore::{Progress, Restore, RestoreError, Restored, Survey, survey};
pub(crate) use serving::{Dumps, Origin, refusal};
pub use tables::{TABLES, is_sound, table_name};
pub use walk::{Source, Step, Walk};
