//! Exports: the terms under which sessions use the file system. A session has one export for its whole life.
//!
//! Ids that a client says and sees are *outer* ids; those of the rows are *inner* ids. An export maps one to the other.
//! Invariants:
//! * export 0 has no row. It is the whole file system, read and write, without any map: every id is mapped to itself;
//! * no caller gets an inner id that his export does not name;
//! * an inner id that an export has no outer id for is shown as [`NOBODY`];
//! * its clients know the directory at its root as [`ROOT`], and reach nothing that is not below it.

use std::collections::BTreeMap;

use ropewalk_wire::fs::exports::{Asker, ClientRule, ExportTerms};
pub use ropewalk_wire::fs::exports::{IdRange, RANGES_MAX, Rights, Squash};
use ropewalk_wire::fs::meta::ROOT;
use serde::{Deserialize, Serialize};

use crate::inode::{Damaged, decode_row, encode_row};

/// Versions of export rows. The first one has neither a name nor rules for clients.
const FIRST_VERSION: u8 = 1;
const EXPORT_VERSION: u8 = 2;
/// The id of those who have no other, as Linux says it.
pub const NOBODY: u32 = 65534;
/// The export of sessions that name none.
pub const DEFAULT_EXPORT: u32 = 0;
/// The terms of an export.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Export {
    /// Empty in rows of the first version.
    pub name: String,
    /// The clients whose sessions get it.
    pub clients: Vec<ClientRule>,
    /// The directory that its clients see as the root.
    pub root: u64,
    pub rights: Rights,
    pub squash: Squash,
    /// User and group of callers without ids of their own: inner ids.
    pub anonymous: (u32, u32),
    /// No range: each id stands for itself.
    pub users: Vec<IdRange>,
    pub groups: Vec<IdRange>,
}

/// A row of the first version.
#[derive(Serialize, Deserialize)]
struct FirstRow {
    root: u64,
    rights: Rights,
    squash: Squash,
    anonymous: (u32, u32),
    users: Vec<IdRange>,
    groups: Vec<IdRange>,
}

/// The ids of one kind under an export.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ids<'e> {
    ranges: &'e [IdRange],
    squash: Squash,
    anonymous: u32,
}

fn moved(id: u32, from: u32, to: u32, count: u32) -> Option<u32> {
    let offset = id.checked_sub(from).filter(|offset| *offset < count)?;
    to.checked_add(offset)
}

impl Ids<'_> {
    /// The inner id that an outer one stands for, whoever says it.
    pub fn inner(&self, outer: u32) -> Option<u32> {
        if self.ranges.is_empty() {
            return Some(outer);
        }
        self.ranges.iter().find_map(|range| moved(outer, range.outer, range.inner, range.count))
    }

    fn outer(&self, inner: u32) -> Option<u32> {
        if self.ranges.is_empty() {
            return Some(inner);
        }
        self.ranges.iter().find_map(|range| moved(inner, range.inner, range.outer, range.count))
    }

    /// The inner id of a caller who says that he has this outer one.
    pub fn of_caller(&self, outer: u32) -> u32 {
        match (self.squash, self.inner(outer)) {
            (Squash::None, Some(inner)) => inner,
            (Squash::Root, Some(inner)) if outer != 0 && inner != 0 => inner,
            _ => self.anonymous,
        }
    }

    /// The outer id under which a client sees an inner one.
    pub fn shown(&self, inner: u32) -> u32 {
        self.outer(inner).unwrap_or(NOBODY)
    }

    /// Whether some caller can have this inner id.
    pub fn may_name(&self, inner: u32) -> bool {
        let own = self.outer(inner).is_some_and(|outer| self.of_caller(outer) == inner);
        own || (inner == self.anonymous && !self.is_plain())
    }

    fn is_plain(&self) -> bool {
        self.ranges.is_empty() && self.squash == Squash::None
    }
}

impl Export {
    /// Everything, for everybody, as it is.
    pub const WHOLE: Export = Export {
        name: String::new(),
        clients: Vec::new(),
        root: ROOT,
        rights: Rights::ReadWrite,
        squash: Squash::None,
        anonymous: (NOBODY, NOBODY),
        users: Vec::new(),
        groups: Vec::new(),
    };

    pub(crate) fn user_ids(&self) -> Ids<'_> {
        Ids { ranges: &self.users, squash: self.squash, anonymous: self.anonymous.0 }
    }

    pub(crate) fn group_ids(&self) -> Ids<'_> {
        Ids { ranges: &self.groups, squash: self.squash, anonymous: self.anonymous.1 }
    }

    /// Whether it ends at a directory below the root.
    pub fn is_subtree(&self) -> bool {
        self.root != ROOT
    }

    /// The inode that a client means by this number.
    pub fn inner_inode(&self, outer: u64) -> u64 {
        if outer == ROOT { self.root } else { outer }
    }

    /// The number by which a client knows an inode.
    pub fn shown_inode(&self, inner: u64) -> u64 {
        if inner == self.root { ROOT } else { inner }
    }

    /// Whether every id stands for itself.
    pub fn is_plain(&self) -> bool {
        self.user_ids().is_plain() && self.group_ids().is_plain()
    }

    /// The row's value.
    pub fn encode(&self) -> Vec<u8> {
        encode_row(EXPORT_VERSION, self)
    }

    /// An export from its row's value. Terms without sense are damage.
    pub fn decode(bytes: &[u8]) -> Result<Export, Damaged> {
        let export = match decode_row::<FirstRow>(FIRST_VERSION, bytes) {
            Ok(row) => {
                let FirstRow { root, rights, squash, anonymous, users, groups } = row;
                Export { root, rights, squash, anonymous, users, groups, ..Export::WHOLE }
            }
            Err(_) => decode_row(EXPORT_VERSION, bytes)?,
        };
        if export.check().is_ok() { Ok(export) } else { Err(Damaged) }
    }

    /// The export with these terms and this root.
    pub fn new(root: u64, terms: ExportTerms) -> Export {
        let ExportTerms { name, clients, rights, squash, anonymous, users, groups } = terms;
        Export { name, clients, root, rights, squash, anonymous, users, groups }
    }

    /// Whether sessions of both have the same rights: they differ in their clients at most.
    pub fn acts_like(&self, other: &Export) -> bool {
        let clients = other.clients.clone();
        Export { clients, ..self.clone() } == *other
    }

    /// Its terms, but for the root.
    pub fn terms(&self) -> ExportTerms {
        let Export { name, clients, rights, squash, anonymous, users, groups, .. } = self.clone();
        ExportTerms { name, clients, rights, squash, anonymous, users, groups }
    }

    /// Checks the terms; the error is for people.
    pub fn check(&self) -> Result<(), String> {
        let mut terms = self.terms();
        if terms.name.is_empty() {
            // One of the first version.
            terms.name.push('-');
        }
        terms.check()
    }
}

/// All exports of a shard.
#[derive(Debug, Clone, Default)]
pub(crate) struct Exports {
    exports: BTreeMap<u32, Export>,
    /// Counts the changes since they were read.
    changes: u64,
}

impl Exports {
    /// The terms of an export; none where there is no such export.
    pub fn get(&self, number: u32) -> Option<&Export> {
        static WHOLE: Export = Export::WHOLE;
        if number == DEFAULT_EXPORT { Some(&WHOLE) } else { self.exports.get(&number) }
    }

    /// The export for a client: the one whose rule fits it best. None: there are exports, and none is for it.
    pub fn choose(&self, asker: &Asker<'_>) -> Option<u32> {
        if self.exports.is_empty() {
            return Some(DEFAULT_EXPORT);
        }
        let rules = self.exports.iter().flat_map(|(number, export)| {
            export.clients.iter().filter_map(|rule| Some((rule.fits(asker)?, *number)))
        });
        rules.max_by_key(|(fit, _)| *fit).map(|(_, number)| number)
    }

    /// The export of a name, with its number.
    pub fn named(&self, name: &str) -> Option<(u32, &Export)> {
        let named = |(_, export): &(&u32, &Export)| export.name == name;
        self.exports.iter().find(named).map(|(number, export)| (*number, export))
    }

    /// Another export that has one of these rules.
    pub fn rival(&self, name: &str, rules: &[ClientRule]) -> bool {
        let others = self.exports.values().filter(|export| export.name != name);
        others.flat_map(|export| &export.clients).any(|rule| rules.contains(rule))
    }

    /// All that have rows, from this number on.
    pub fn from(&self, number: u32) -> impl Iterator<Item = (u32, &Export)> {
        self.exports.range(number..).map(|(number, export)| (*number, export))
    }

    pub fn len(&self) -> usize {
        self.exports.len()
    }

    /// Counts the changes of exports in this life of the server.
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Puts an export in, or takes it out.
    pub fn set(&mut self, number: u32, export: Option<Export>) {
        self.changes += 1;
        match export {
            Some(export) => drop(self.exports.insert(number, export)),
            None => drop(self.exports.remove(&number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(squash: Squash, ranges: &[(u32, u32, u32)]) -> Export {
        let range = |(outer, inner, count): &(u32, u32, u32)| IdRange {
            outer: *outer,
            inner: *inner,
            count: *count,
        };
        let ranges: Vec<IdRange> = ranges.iter().map(range).collect();
        Export { squash, users: ranges.clone(), groups: ranges, ..Export::WHOLE }
    }

    #[test]
    fn callers_get_ids_by_squash_and_ranges_and_see_them_by_the_inverse() {
        let caller = |export: &Export, id| export.user_ids().of_caller(id);
        assert_eq!(caller(&Export::WHOLE, 0), 0);
        assert_eq!(caller(&export(Squash::Root, &[]), 0), NOBODY);
        assert_eq!(caller(&export(Squash::Root, &[]), 7), 7);
        assert_eq!(caller(&export(Squash::All, &[]), 7), NOBODY);
        let mapped = export(Squash::None, &[(0, 100_000, 1000), (5000, 0, 2)]);
        assert_eq!(caller(&mapped, 0), 100_000);
        assert_eq!(caller(&mapped, 999), 100_999);
        assert_eq!(caller(&mapped, 1000), NOBODY);
        assert_eq!(caller(&mapped, 5000), 0);
        assert_eq!(mapped.user_ids().shown(100_999), 999);
        assert_eq!(mapped.user_ids().shown(1), 5001);
        assert_eq!(mapped.user_ids().shown(77), NOBODY);
        // Nobody comes to be root by a map that leads there.
        let squashed = export(Squash::Root, &[(0, 100_000, 1000), (5000, 0, 2)]);
        assert_eq!(caller(&squashed, 5000), NOBODY);
        assert_eq!(caller(&squashed, 0), NOBODY);
        assert_eq!(caller(&squashed, 5001), 1);
        assert_eq!(export(Squash::All, &[]).user_ids().shown(7), 7);
    }

    #[test]
    fn the_ids_that_callers_may_have_are_those_that_they_get() {
        for squash in [Squash::None, Squash::Root, Squash::All] {
            for ranges in [&[][..], &[(0, 10, 5), (40, 0, 3)], &[(2, 65_533, 2)]] {
                let export = export(squash, ranges);
                let ids = export.user_ids();
                let plain = export.is_plain();
                let mut got: Vec<u32> = (0..70_000).map(|id| ids.of_caller(id)).collect();
                got.sort_unstable();
                got.dedup();
                for inner in 0..70_000 {
                    let has = got.binary_search(&inner).is_ok();
                    assert_eq!(ids.may_name(inner), has, "{squash:?} {ranges:?} {inner} {plain}");
                }
            }
        }
    }

    #[test]
    fn rows_of_both_versions_are_read() {
        let export = export(Squash::Root, &[(0, 10, 5)]);
        let named = Export { name: "n".to_owned(), clients: vec![ClientRule::Local], ..export };
        assert_eq!(Export::decode(&named.encode()), Ok(named.clone()));
        let Export { root, rights, squash, anonymous, users, groups, .. } = named.clone();
        let first = FirstRow { root, rights, squash, anonymous, users, groups };
        let read = Export::decode(&encode_row(FIRST_VERSION, &first)).expect("it is read still");
        let (name, clients) = (String::new(), Vec::new());
        assert_eq!(read, Export { name, clients, ..named });
    }

    #[test]
    fn senseless_terms_are_refused() {
        assert_eq!(Export::WHOLE.check(), Ok(()));
        assert_eq!(export(Squash::Root, &[(0, 10, 5), (5, 20, 5)]).check(), Ok(()));
        assert!(export(Squash::Root, &[(0, 10, 5), (4, 20, 5)]).check().is_err(), "outer overlap");
        assert!(export(Squash::Root, &[(0, 10, 5), (9, 14, 5)]).check().is_err(), "inner overlap");
        assert!(export(Squash::None, &[(0, 10, 0)]).check().is_err(), "an empty range");
        assert!(export(Squash::None, &[(0, u32::MAX - 1, 2)]).check().is_err(), "behind the last");
        assert_eq!(export(Squash::None, &[(0, u32::MAX - 1, 1)]).check(), Ok(()));
        let many: Vec<(u32, u32, u32)> = (0..65).map(|at| (at, at, 1)).collect();
        assert!(export(Squash::None, &many).check().is_err(), "too many");
        let root = Export { anonymous: (0, 1), ..Export::WHOLE };
        assert!(root.check().is_err());
    }
}
