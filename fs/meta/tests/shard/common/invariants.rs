//! The invariants between the rows of a shard after every request.

use std::collections::{BTreeMap, BTreeSet};

use ropewalk_meta::inode::{Inode, decode_row};
use ropewalk_meta::{Rows as _, Shard, VolatileRows, keys};
use ropewalk_wire::fs::attributes::InodeKind;
use ropewalk_wire::fs::meta::ROOT;

#[derive(Default)]
struct Rows {
    inodes: BTreeMap<u64, Inode>,
    /// Inode to the places that name it.
    names: BTreeMap<u64, BTreeSet<(u64, u64)>>,
    cookies: BTreeSet<(u64, u64)>,
    entries: BTreeMap<u64, u64>,
    subdirectories: BTreeMap<u64, u32>,
    back: BTreeMap<u64, BTreeSet<(u64, u64)>>,
    inline: BTreeMap<u64, usize>,
    xattr_bytes: BTreeMap<u64, usize>,
    orphans: BTreeSet<u64>,
    locks: BTreeSet<u64>,
}

fn read(rows: &VolatileRows) -> Rows {
    let mut found = Rows::default();
    for (key, value) in rows.iter() {
        let number = |index| keys::number(key, index).expect("keys are long enough");
        match key[0] {
            b'I' => {
                let inode = Inode::decode(number(0), value).expect("inode rows decode");
                found.inodes.insert(number(0), inode);
            }
            b'D' => {
                let (parent, cookie) = (number(0), number(1));
                let (inode, kind): (u64, InodeKind) = decode_row(1, value).expect("dentry");
                assert!(found.cookies.insert((parent, cookie)), "a cookie names one entry");
                found.names.entry(inode).or_default().insert((parent, cookie));
                *found.entries.entry(parent).or_default() += 1;
                if kind == InodeKind::Directory {
                    *found.subdirectories.entry(parent).or_default() += 1;
                }
            }
            b'P' => {
                let new = found.back.entry(number(0)).or_default().insert((number(1), number(2)));
                assert!(new);
            }
            b'J' => drop(found.inline.insert(number(0), value.len())),
            b'X' => *found.xattr_bytes.entry(number(0)).or_default() += key.len() - 9 + 1,
            b'O' => drop(found.orphans.insert(number(0))),
            b'F' => drop(found.locks.insert(number(0))),
            _ => {}
        }
    }
    found
}

/// Checks all rows, leases and locks; panics with what is wrong.
pub fn check(shard: &Shard<VolatileRows>) {
    let rows = read(shard.rows());
    let count = shard.rows().get(&keys::key(keys::Table::Counters, &[0])).expect("rows in memory");
    let count: u64 = decode_row(1, &count.expect("it is always there")).expect("it decodes");
    assert_eq!(count, rows.inodes.len() as u64, "the row that counts inodes");
    for (number, inode) in &rows.inodes {
        let names = rows.names.get(number).cloned().unwrap_or_default();
        if *number == ROOT {
            assert!(names.is_empty(), "nothing names the root");
        } else {
            let mut back = rows.back.get(number).cloned().unwrap_or_default();
            if inode.parent != 0 {
                assert!(back.insert((inode.parent, inode.cookie)), "a back pointer is there once");
            }
            assert_eq!(back, names, "back pointers of {inode:?}");
            assert_eq!(inode.parent != 0, !names.is_empty(), "its row names one entry: {inode:?}");
        }
        if inode.is_directory() {
            let children = rows.subdirectories.get(number).copied().unwrap_or(0);
            let named = *number == ROOT || !names.is_empty();
            assert_eq!(inode.links, if named { 2 + children } else { 0 }, "{inode:?}");
            assert_eq!(inode.size, rows.entries.get(number).copied().unwrap_or(0), "{inode:?}");
        } else {
            assert_eq!(inode.links as usize, names.len(), "links of {inode:?}");
        }
        let orphan = rows.orphans.contains(number);
        assert_eq!(inode.links == 0, orphan, "orphans have no link: {inode:?}");
        if orphan && !shard.is_in_grace() {
            let used = shard.leases().is_used(*number) || shard.keeps(*number);
            assert!(used, "an orphan without a user: {inode:?}");
        }
        let inline = rows.inline.get(number).copied().unwrap_or(0);
        assert_eq!(inode.inline_bytes as usize, inline, "inline row of {inode:?}");
        assert!(u64::from(inode.inline_bytes) <= inode.size || inode.is_directory());
        let xattrs = rows.xattr_bytes.get(number).copied().unwrap_or(0);
        assert_eq!(inode.xattr_bytes as usize, xattrs, "attributes of {inode:?}");
    }
    let exists = |number: &u64| rows.inodes.contains_key(number);
    assert!(rows.names.keys().all(exists), "an entry names an inode that is not there");
    assert!(rows.entries.keys().all(exists), "an entry is in a directory that is not there");
    assert!(rows.back.keys().all(exists) && rows.inline.keys().all(exists));
    assert!(rows.xattr_bytes.keys().all(exists) && rows.orphans.iter().all(exists));
    assert!(rows.locks.iter().all(exists), "a lock on an inode that is not there");
    assert_eq!(shard.leases().check(), Ok(()));
    assert_eq!(shard.locks().check(), Ok(()));
}
