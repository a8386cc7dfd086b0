//! Keys of the rows: one letter for the table, then big-endian numbers, so that byte order is the
//! order of the numbers. `docs/spec/metadata-rows.md` is the table of them.

/// The tables, by the first byte of their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Table {
    /// The terms of each export but the default one.
    Export = b'A',
    /// One row: format version and name hash key.
    Superblock = b'B',
    /// One row: boot count and next inode range. Another one: number of inodes.
    Counters = b'C',
    Dentry = b'D',
    /// Fences that a data server has yet to be told.
    Owed = b'E',
    Lock = b'F',
    Reap = b'G',
    Inode = b'I',
    Inline = b'J',
    /// One row: the orders about the servers of groups.
    Orders = b'K',
    /// The terms of the history.
    Term = b'L',
    /// The store of each data server's number.
    Member = b'M',
    /// One row: epoch of the map, and the next band. Another one for each band: the servers of its groups.
    Map = b'N',
    Orphan = b'O',
    BackPointer = b'P',
    Reply = b'R',
    Session = b'S',
    Shrink = b'T',
    Pool = b'V',
    Xattr = b'X',
}

/// A key of `table` made of `numbers`, eight bytes each.
pub fn key(table: Table, numbers: &[u64]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + numbers.len() * 8);
    key.push(table as u8);
    for number in numbers {
        key.extend_from_slice(&number.to_be_bytes());
    }
    key
}

/// A key of numbers followed by a name.
pub fn named(table: Table, numbers: &[u64], name: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + numbers.len() * 8 + name.len());
    key.push(table as u8);
    for number in numbers {
        key.extend_from_slice(&number.to_be_bytes());
    }
    key.extend_from_slice(name);
    key
}

/// The first key behind all that begin with `prefix`.
pub fn after(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < 0xff {
            end.push(last + 1);
            return end;
        }
    }
    // Table letters are far from 0xff, so a prefix always has a byte that can grow.
    unreachable!("a key begins with its table's letter")
}

/// The number at place `index` of a key, counted in numbers; None where the key is too short.
pub fn number(key: &[u8], index: usize) -> Option<u64> {
    let at = 1 + index * 8;
    Some(u64::from_be_bytes(key.get(at..at + 8)?.try_into().ok()?))
}

/// The part of a key behind its first `numbers` numbers.
pub fn name(key: &[u8], numbers: usize) -> &[u8] {
    key.get(1 + numbers * 8..).unwrap_or(&[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_order_is_number_order_and_prefixes_end_where_they_should() {
        let small = key(Table::Inode, &[255, 7]);
        let large = key(Table::Inode, &[256, 0]);
        assert!(small < large);
        assert_eq!(
            (number(&small, 0), number(&small, 1), number(&small, 2)),
            (Some(255), Some(7), None)
        );
        let entry = named(Table::Dentry, &[1, 2], b"name");
        assert_eq!(name(&entry, 2), b"name");
        let prefix = key(Table::Dentry, &[u64::MAX]);
        assert!(named(Table::Dentry, &[u64::MAX, u64::MAX], &[0xff; 255]) < after(&prefix));
        assert_eq!(after(&prefix), vec![b'E']);
        assert_eq!(after(&key(Table::Inode, &[1])), key(Table::Inode, &[2]));
    }
}
