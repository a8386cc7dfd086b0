//! The request of `check --read`: whether all rows that inodes need can be read.
//!
//! Invariants
//! * every row that a request skips as damaged was read, or lies between two that were;
//! * one request reads about [`ROWS_MAX`] rows, whatever a directory has.

use ropewalk_wire::fs::meta::{INODES_DAMAGED_MAX, MetaReply};
use ropewalk_wire::fs::value::Errno;

use super::{Operation, Step, Stop};
use crate::inode::Inode;
use crate::keys::{self, Table};
use crate::rows::{Rows, RowsError};

/// Rows that one request reads, about; the shard does nothing else meanwhile.
const ROWS_MAX: usize = 1024;
/// Inodes that are read at a time, and room for a directory's entries, in bytes.
const INODES_READ: u64 = 256;
const ENTRIES_BYTES: usize = 32 << 10;

/// The next inodes or damage from a number on.
enum Ahead {
    /// Inodes in order. After them the walk goes on from this number.
    Inodes(Vec<Inode>, u64),
    /// The rows of so many numbers cannot be read.
    Lost(u64),
    End,
}

impl<R: Rows> Operation<'_, R> {
    pub fn inspect(&mut self, from: u64, cookie: u64, whole: bool) -> Step<()> {
        let (mut at, mut cookie, mut left) = (from, cookie, ROWS_MAX);
        let mut damaged = Vec::new();
        let next = 'walk: loop {
            if left == 0 || damaged.len() >= INODES_DAMAGED_MAX {
                break Some((at, cookie));
            }
            let (inodes, then) = match self.ahead(at)? {
                Ahead::End => break None,
                Ahead::Lost(count) => {
                    damaged.push((at, count));
                    (at, cookie) = (at.saturating_add(count), 0);
                    // A request that only asks for the next number has its answer.
                    left = if whole { left } else { 0 };
                    continue;
                }
                Ahead::Inodes(inodes, then) => (inodes, then),
            };
            if !whole {
                break Some((inodes.first().map_or(then, |inode| inode.number), 0));
            }
            left = left.saturating_sub(1);
            for inode in inodes {
                if inode.number != at {
                    (at, cookie) = (inode.number, 0);
                }
                if left == 0 || damaged.len() >= INODES_DAMAGED_MAX {
                    break 'walk Some((at, cookie));
                }
                let on = match self.read_rows(&inode, cookie, &mut left) {
                    Ok(on) => on,
                    Err(stop) => {
                        self.note_damage(stop)?;
                        damaged.push((at, 1));
                        None
                    }
                };
                if let Some(cookie) = on {
                    break 'walk Some((at, cookie));
                }
                (at, cookie) = (at.saturating_add(1), 0);
            }
            (at, cookie) = (then, 0);
        };
        self.answer(&MetaReply::Inspected { damaged, next })
    }

    /// Inodes from a number on, where there is damage somewhere behind them.
    pub(super) fn inodes_before_damage(&mut self, from: u64) -> Step<Vec<Inode>> {
        match self.ahead(from)? {
            Ahead::Inodes(inodes, _) => Ok(inodes),
            Ahead::Lost(_) | Ahead::End => Ok(Vec::new()),
        }
    }

    /// Takes note of damage; all else ends the operation.
    pub(super) fn note_damage(&mut self, stop: Stop) -> Step<()> {
        match stop {
            Stop::Rows(RowsError::Damaged(text)) => self.shard.note_damage(text),
            // A row that does not fit its inode, or does not decode.
            Stop::Errno(Errno::EIO) => {}
            stop => return Err(stop),
        }
        Ok(())
    }

    /// The inodes from a number on. Less and less is asked for at once where that cannot be read: a
    /// scan meets the blocks of both its ends.
    fn ahead(&mut self, from: u64) -> Step<Ahead> {
        let unused = self.shard.numbers.first_unused(self.shard.next_range);
        if from >= unused {
            return Ok(Ahead::End);
        }
        let mut span = unused - from;
        while span > 1 {
            match self.inodes_within(from, from + span) {
                Ok((inodes, _)) if inodes.len() as u64 >= INODES_READ => {
                    let then = inodes[inodes.len() - 1].number + 1;
                    return Ok(Ahead::Inodes(inodes, then));
                }
                Ok((inodes, None)) => return Ok(Ahead::Inodes(inodes, from + span)),
                // Those before the damage.
                Ok((inodes, Some(stop))) if !inodes.is_empty() => {
                    self.note_damage(stop)?;
                    let then = inodes[inodes.len() - 1].number + 1;
                    return Ok(Ahead::Inodes(inodes, then));
                }
                Ok((_, Some(stop))) | Err(stop) => self.note_damage(stop)?,
            }
            span /= 16;
        }
        match self.inode(from).cloned() {
            Ok(inode) => Ok(Ahead::Inodes(vec![inode], from + 1)),
            Err(Stop::Errno(Errno::ESTALE)) => Ok(Ahead::Inodes(Vec::new(), from + 1)),
            Err(stop) => {
                self.note_damage(stop)?;
                self.lost_from(from, unused)
            }
        }
    }

    /// Inodes of a range, and why not more of them.
    fn inodes_within(&mut self, from: u64, to: u64) -> Step<(Vec<Inode>, Option<Stop>)> {
        let (first, last) = (keys::key(Table::Inode, &[from]), keys::key(Table::Inode, &[to]));
        let (mut inodes, mut unfit) = (Vec::new(), false);
        let scanned = self.shard.rows.scan(&first, &last, &mut |key, value| {
            let inode = keys::number(key, 0).and_then(|number| Inode::decode(number, value).ok());
            unfit = inode.is_none();
            inodes.extend(inode);
            !unfit && (inodes.len() as u64) < INODES_READ
        });
        let stop = match scanned {
            Err(error) => Some(Stop::Rows(error)),
            Ok(()) => unfit.then_some(Stop::Errno(Errno::EIO)),
        };
        Ok((inodes, stop))
    }

    /// The count of unreadable numbers that begin at this one. The numbers of a damaged block lie next to
    /// each other. So their end is searched in growing steps, and then by bisection.
    fn lost_from(&mut self, from: u64, unused: u64) -> Step<Ahead> {
        let (mut lost, mut step) = (from, 1);
        let mut whole = loop {
            let probe = from.saturating_add(step).min(unused);
            if probe == unused || self.is_readable(probe)? {
                break probe;
            }
            (lost, step) = (probe, step.saturating_mul(2));
        };
        while whole - lost > 1 {
            let middle = lost + (whole - lost) / 2;
            match self.is_readable(middle)? {
                true => whole = middle,
                false => lost = middle,
            }
        }
        Ok(Ahead::Lost(whole - from))
    }

    fn is_readable(&mut self, number: u64) -> Step<bool> {
        match self.shard.rows.get(&keys::key(Table::Inode, &[number])) {
            Ok(row) => Ok(row.is_none_or(|row| Inode::decode(number, &row).is_ok())),
            Err(RowsError::Damaged(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads what an inode has beside its own row, of a directory the entries behind `cookie`; where
    /// it has more of them, the cookie behind which they are.
    fn read_rows(&mut self, inode: &Inode, cookie: u64, left: &mut usize) -> Step<Option<u64>> {
        let number = inode.number;
        let mut count = 1;
        if cookie == 0 {
            self.inline_bytes(number)?;
            let mut tables = Vec::new();
            tables.extend((inode.xattr_bytes > 0).then_some(Table::Xattr));
            tables.extend((inode.links > 1 && !inode.is_directory()).then_some(Table::BackPointer));
            for table in tables {
                let prefix = keys::key(table, &[number]);
                self.shard.rows.scan(&prefix, &keys::after(&prefix), &mut |_, _| {
                    count += 1;
                    true
                })?;
            }
        }
        let mut on = None;
        if inode.is_directory() {
            let (entries, end) = self.entries_after(number, cookie, ENTRIES_BYTES, false)?;
            count += entries.len();
            on = entries.last().filter(|_| !end).map(|last| last.cookie);
        }
        *left = left.saturating_sub(count);
        Ok(on)
    }
}
