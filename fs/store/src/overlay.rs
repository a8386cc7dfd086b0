//! Recent changes in memory, over the index: a put or a delete per key.

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::batch::Change;
use crate::meta_store::{KeyRange, Value};

/// Memory of a tree entry beside its key and value, roughly.
const ENTRY_BYTES: usize = 64;

/// The newest change of each key; `None` stands for a delete.
#[derive(Default)]
pub(crate) struct Overlay {
    rows: BTreeMap<Box<[u8]>, Option<Value>>,
    bytes: usize,
}

impl Overlay {
    pub(crate) fn apply(&mut self, change: Change<'_>) {
        let (key, value) = match change {
            Change::Put { key, value } => (key, Some(Value::from(value))),
            Change::Delete { key } => (key, None),
        };
        let added = value.as_ref().map_or(0, |value| value.len());
        match self.rows.get_mut(key) {
            Some(old) => {
                self.bytes -= old.as_ref().map_or(0, |value| value.len());
                *old = value;
            }
            None => {
                self.rows.insert(key.into(), value);
                self.bytes += key.len() + ENTRY_BYTES;
            }
        }
        self.bytes += added;
    }

    /// Memory in use, roughly.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// The known state of a key: nothing, or its newest change.
    pub(crate) fn get(&self, key: &[u8]) -> Option<&Option<Value>> {
        self.rows.get(key)
    }

    /// The changes in a range, forward or backward.
    pub(crate) fn range<'a>(&'a self, range: &KeyRange<'a>) -> Rows<'a> {
        let bounds: (Bound<&[u8]>, Bound<&[u8]>) = (range.start, range.end);
        self.rows.range::<[u8], _>(bounds)
    }
}

/// See [`Overlay::range`].
pub(crate) type Rows<'a> = std::collections::btree_map::Range<'a, Box<[u8]>, Option<Value>>;
