//! The rows of each table that a dump takes, and whether they make sense.

use ropewalk_wire::fs::orders::Orders;

use crate::exports::Export;
use crate::history::TermRow;
use crate::inode::{Inode, decode_row};
use crate::keys::{self, Table};
use crate::operate::decode_dentry;
use crate::pools::{MAP_VERSION, MEMBER_VERSION, ORDERS_VERSION, decode_band, decode_pool};
use crate::shard::{COUNTERS_VERSION, CUT_VERSION, Cut, OWED_VERSION, REAP_VERSION, is_superblock};

/// The tables of a dump, in the order of their letters, with names for people. It lacks those that belong to
/// sessions: `F` (locks), `R` (replies) and `S` (sessions).
pub const TABLES: &[(u8, &str)] = &[
    (Table::Export as u8, "exports"),
    (Table::Superblock as u8, "superblock"),
    (Table::Counters as u8, "counters"),
    (Table::Dentry as u8, "names"),
    (Table::Owed as u8, "fences to be told"),
    (Table::Reap as u8, "objects to be removed"),
    (Table::Inode as u8, "inodes"),
    (Table::Inline as u8, "contents of small files and links"),
    (Table::Orders as u8, "orders about servers"),
    (Table::Term as u8, "terms"),
    (Table::Member as u8, "data servers"),
    (Table::Map as u8, "bands of groups"),
    (Table::Orphan as u8, "files without a name"),
    (Table::BackPointer as u8, "further names"),
    (Table::Shrink as u8, "unfinished cuts"),
    (Table::Pool as u8, "pools"),
    (Table::Xattr as u8, "extended attributes"),
];

/// The table of a letter, as people call it.
pub fn table_name(letter: u8) -> &'static str {
    TABLES.iter().find(|(other, _)| *other == letter).map_or("of an unknown kind", |(_, name)| name)
}

/// Whether a row of one of the tables of a dump makes sense.
pub fn is_sound(row: &[u8], value: &[u8]) -> bool {
    let Some(letter) = row.first() else { return false };
    let numbers = (row.len() - 1) / 8;
    let is_exact = (row.len() - 1).is_multiple_of(8);
    let has = |counts: &[usize]| is_exact && counts.contains(&numbers);
    let first = keys::number(row, 0).unwrap_or(0);
    match *letter {
        it if it == Table::Export as u8 => has(&[1]) && Export::decode(value).is_ok(),
        it if it == Table::Superblock as u8 => has(&[0]) && is_superblock(value),
        it if it == Table::Counters as u8 => is_counter(row, value),
        it if it == Table::Dentry as u8 => {
            numbers >= 2 && row.len() > 17 && decode_dentry(value).is_ok()
        }
        it if it == Table::Owed as u8 => {
            has(&[2]) && decode_row::<u32>(OWED_VERSION, value).is_ok()
        }
        it if it == Table::Reap as u8 => {
            has(&[2]) && decode_row::<u32>(REAP_VERSION, value).is_ok()
        }
        it if it == Table::Inode as u8 => has(&[1]) && Inode::decode(first, value).is_ok(),
        it if it == Table::Inline as u8 => has(&[1]),
        it if it == Table::Orders as u8 => {
            has(&[0]) && decode_row::<Orders>(ORDERS_VERSION, value).is_ok()
        }
        it if it == Table::Term as u8 => has(&[1]) && TermRow::decode(first, value).is_some(),
        it if it == Table::Member as u8 => {
            has(&[1, 2]) && decode_row::<u128>(MEMBER_VERSION, value).is_ok()
        }
        it if it == Table::Map as u8 => match numbers {
            0 => has(&[0]) && decode_row::<(u32, u32)>(MAP_VERSION, value).is_ok(),
            _ => has(&[1]) && decode_band(value).is_ok_and(|it| u64::from(it.number) == first),
        },
        it if it == Table::Orphan as u8 => has(&[1]),
        it if it == Table::BackPointer as u8 => has(&[3]),
        it if it == Table::Shrink as u8 => {
            has(&[1]) && decode_row::<Cut>(CUT_VERSION, value).is_ok()
        }
        it if it == Table::Pool as u8 => has(&[1]) && decode_pool(value).is_ok(),
        it if it == Table::Xattr as u8 => row.len() > 9,
        _ => false,
    }
}

fn is_counter(row: &[u8], value: &[u8]) -> bool {
    match (row.len(), keys::number(row, 0)) {
        (1, _) => decode_row::<(u64, u64)>(COUNTERS_VERSION, value).is_ok(),
        (9, Some(0 | 2)) => decode_row::<u64>(COUNTERS_VERSION, value).is_ok(),
        (9, Some(1)) => decode_row::<(u32, u32)>(COUNTERS_VERSION, value).is_ok(),
        _ => false,
    }
}
