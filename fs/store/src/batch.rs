//! A batch of changes, in the bytes in which it goes to the journal.
//!
//! Per change: 1 byte kind (1 put, 2 delete), 4 bytes key length, 4 bytes value length (absent in
//! a delete), key, value; little-endian. Changes are made in order, the last of a key wins.

use std::path::Path;

use crate::error::StoreError;

/// Longest key, in bytes.
pub const KEY_BYTES_MAX: usize = 1024;
/// Longest value, in bytes.
pub const VALUE_BYTES_MAX: usize = 1 << 20;
const PUT: u8 = 1;
const DELETE: u8 = 2;

/// Puts and deletes that take effect together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    bytes: Vec<u8>,
    changes: usize,
    key_bytes_max: usize,
    value_bytes_max: usize,
}

/// One change of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change<'a> {
    Put { key: &'a [u8], value: &'a [u8] },
    Delete { key: &'a [u8] },
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Batch {
        Batch::default()
    }

    /// Adds: `key` gets `value`. Keys over 1024 bytes and values over 1 MiB are refused at commit.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> &mut Batch {
        self.bytes.push(PUT);
        self.bytes.extend_from_slice(&(key.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        self.count(key.len(), value.len());
        self
    }

    /// Adds: `key` is no more.
    pub fn delete(&mut self, key: &[u8]) -> &mut Batch {
        self.bytes.push(DELETE);
        self.bytes.extend_from_slice(&(key.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(key);
        self.count(key.len(), 0);
        self
    }

    fn count(&mut self, key: usize, value: usize) {
        self.changes += 1;
        self.key_bytes_max = self.key_bytes_max.max(key);
        self.value_bytes_max = self.value_bytes_max.max(value);
    }

    /// Changes in the batch.
    pub fn len(&self) -> usize {
        self.changes
    }

    /// Whether there is no change.
    pub fn is_empty(&self) -> bool {
        self.changes == 0
    }

    /// The bytes that go to the journal.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Whether keys and values keep their limits.
    pub(crate) fn check(&self) -> Result<(), StoreError> {
        for (what, bytes, limit) in [
            ("a key", self.key_bytes_max, KEY_BYTES_MAX),
            ("a value", self.value_bytes_max, VALUE_BYTES_MAX),
        ] {
            if bytes > limit {
                return Err(StoreError::TooLarge { what, bytes, limit });
            }
        }
        Ok(())
    }
}

/// The changes in the bytes of a batch, in order; `None` where the bytes make no sense.
pub(crate) fn changes(mut bytes: &[u8]) -> impl Iterator<Item = Option<Change<'_>>> {
    std::iter::from_fn(move || {
        if bytes.is_empty() {
            return None;
        }
        let change = take_change(&mut bytes);
        if change.is_none() {
            bytes = &[];
        }
        Some(change)
    })
}

/// The same for bytes that come from the disk: an error names the file.
pub(crate) fn stored_changes<'a>(
    bytes: &'a [u8],
    path: &'a Path,
) -> impl Iterator<Item = Result<Change<'a>, StoreError>> {
    changes(bytes).map(move |change| {
        change.ok_or_else(|| StoreError::Damaged {
            path: path.to_path_buf(),
            what: "a record holds no batch although its checksum fits".to_owned(),
        })
    })
}

fn take<'a>(bytes: &mut &'a [u8], len: usize) -> Option<&'a [u8]> {
    let (head, rest) = bytes.split_at_checked(len)?;
    *bytes = rest;
    Some(head)
}

fn take_len(bytes: &mut &[u8]) -> Option<usize> {
    let head = take(bytes, 4)?;
    Some(u32::from_le_bytes(head.try_into().ok()?) as usize)
}

fn take_change<'a>(bytes: &mut &'a [u8]) -> Option<Change<'a>> {
    match take(bytes, 1)?[0] {
        PUT => {
            let (key, value) = (take_len(bytes)?, take_len(bytes)?);
            let key = take(bytes, key)?;
            Some(Change::Put { key, value: take(bytes, value)? })
        }
        DELETE => {
            let key = take_len(bytes)?;
            Some(Change::Delete { key: take(bytes, key)? })
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_back_in_order_and_cut_bytes_are_refused() {
        let mut batch = Batch::new();
        batch.put(b"a", b"1").delete(b"bb").put(b"", b"");
        let read: Vec<_> = changes(batch.bytes()).collect();
        assert_eq!(
            read,
            [
                Some(Change::Put { key: b"a", value: b"1" }),
                Some(Change::Delete { key: b"bb" }),
                Some(Change::Put { key: b"", value: b"" }),
            ]
        );
        assert_eq!(batch.len(), 3);
        let whole = batch.bytes().len();
        let ends: Vec<usize> = (1..whole)
            .filter(|end| changes(&batch.bytes()[..*end]).all(|one| one.is_some()))
            .collect();
        // Only cuts between changes go unseen here; the checksum of the record sees those.
        assert_eq!(ends, [11, 18]);
        assert_eq!(changes(&[9, 0, 0]).collect::<Vec<_>>(), [None]);
    }

    #[test]
    fn limits_are_checked() {
        let mut batch = Batch::new();
        batch.put(&[0; KEY_BYTES_MAX], b"");
        assert!(batch.check().is_ok());
        batch.delete(&[0; KEY_BYTES_MAX + 1]);
        assert!(matches!(batch.check(), Err(StoreError::TooLarge { what: "a key", .. })));
    }
}
