//! A scan over overlay, frozen overlay and index as one sorted sequence.
//!
//! Invariant: of a key's changes the newest counts; a delete hides what lies below it.

use std::cmp::Ordering;
use std::iter::Peekable;

use crate::error::StoreError;
use crate::index::IndexReader;
use crate::meta_store::{KeyRange, Order, Row, Value};
use crate::overlay::{Overlay, Rows};

/// A range of an overlay, in the order of the scan.
struct Changes<'a> {
    rows: Rows<'a>,
    order: Order,
}

impl<'a> Iterator for Changes<'a> {
    type Item = (&'a [u8], Option<&'a Value>);

    fn next(&mut self) -> Option<Self::Item> {
        let row = match self.order {
            Order::Forward => self.rows.next(),
            Order::Backward => self.rows.next_back(),
        };
        row.map(|(key, value)| (&**key, value.as_ref()))
    }
}

/// Two overlays as one: where both know a key, the newer one counts.
struct Layers<'a> {
    newer: Peekable<Changes<'a>>,
    older: Option<Peekable<Changes<'a>>>,
    order: Order,
}

impl<'a> Layers<'a> {
    fn peek(&mut self) -> Option<(&'a [u8], Option<&'a Value>)> {
        let newer = self.newer.peek().copied();
        let older = self.older.as_mut().and_then(|older| older.peek().copied());
        match (newer, older) {
            (Some(newer), Some(older)) => match compare(newer.0, older.0, self.order) {
                Ordering::Greater => Some(older),
                _ => Some(newer),
            },
            (newer, older) => newer.or(older),
        }
    }

    /// Leaves the key that `peek` showed.
    fn skip(&mut self, key: &[u8]) {
        self.newer.next_if(|row| row.0 == key);
        if let Some(older) = &mut self.older {
            older.next_if(|row| row.0 == key);
        }
    }
}

fn compare(a: &[u8], b: &[u8], order: Order) -> Ordering {
    match order {
        Order::Forward => a.cmp(b),
        Order::Backward => b.cmp(a),
    }
}

/// Up to `limit` rows of a non-empty range.
pub(super) fn merged(
    active: &Overlay,
    frozen: Option<&Overlay>,
    reader: &IndexReader,
    range: KeyRange<'_>,
    order: Order,
    limit: usize,
) -> Result<Vec<Row>, StoreError> {
    let mut rows = Vec::new();
    merge((active, frozen), reader, (range, order, limit), &mut rows)?;
    Ok(rows)
}

/// As `merged`. Rows in front of an error are there, too.
pub(super) fn merge(
    (active, frozen): (&Overlay, Option<&Overlay>),
    reader: &IndexReader,
    (range, order, limit): (KeyRange<'_>, Order, usize),
    rows: &mut Vec<Row>,
) -> Result<(), StoreError> {
    let mut layers = Layers {
        newer: Changes { rows: active.range(&range), order }.peekable(),
        older: frozen.map(|frozen| Changes { rows: frozen.range(&range), order }.peekable()),
        order,
    };
    reader.scan(range, order == Order::Backward, &mut |key, value| {
        while rows.len() < limit
            && let Some((changed, new)) = layers.peek()
        {
            match compare(changed, key, order) {
                Ordering::Greater => break,
                place => {
                    layers.skip(changed);
                    rows.extend(new.map(|new| (changed.to_vec(), new.clone())));
                    if place == Ordering::Equal {
                        return rows.len() < limit;
                    }
                }
            }
        }
        if rows.len() < limit {
            rows.push((key.to_vec(), Value::from(value)));
        }
        rows.len() < limit
    })?;
    while rows.len() < limit
        && let Some((changed, new)) = layers.peek()
    {
        layers.skip(changed);
        rows.extend(new.map(|new| (changed.to_vec(), new.clone())));
    }
    Ok(())
}
