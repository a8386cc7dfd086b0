//! `fcntl` and `flock`, between the requests and the lock table.

use ropewalk_wire::fs::meta::{Callback, LockKind, LockRange, MetaReply};
use ropewalk_wire::fs::value::Errno;

use super::{Operation, Step, Stop};
use crate::inode::{Damaged, decode_row, encode_row};
use crate::keys::{self, Table};
use crate::locks::{Effects, Lock, Owner, RowChange, Taken};
use crate::parking::WaitOn;
use crate::rows::Rows;

const VERSION: u8 = 1;

/// The key of a held lock's row.
fn lock_key(inode: u64, lock: &Lock) -> Vec<u8> {
    let family = u64::from(lock.whole_file);
    let owner = lock.owner;
    keys::key(Table::Lock, &[inode, family, owner.session, owner.owner, lock.start])
}

/// A held lock from its row: inode and lock.
pub(crate) fn decode_lock(key: &[u8], value: &[u8]) -> Result<(u64, Lock), Damaged> {
    let number = |index| keys::number(key, index).ok_or(Damaged);
    let (end, exclusive, process) = decode_row(VERSION, value)?;
    let owner = Owner { session: number(2)?, owner: number(3)? };
    let (whole_file, start) = (number(1)? == 1, number(4)?);
    Ok((number(0)?, Lock { owner, whole_file, exclusive, process, start, end }))
}

impl<R: Rows> Operation<'_, R> {
    pub fn set_lock(&mut self, inode: u64, range: &LockRange, wait: bool) -> Step<()> {
        let lock = self.lock(inode, range)?;
        if range.kind != LockKind::Unlock && !wait {
            self.ask_holders(inode, &lock)?;
        }
        let mut effects = Effects::default();
        let taken = if range.kind == LockKind::Unlock {
            self.shard.locks.release(inode, lock, &mut effects)
        } else {
            self.shard.locks.take(inode, lock, wait, &mut effects)
        };
        let changed = !effects.rows.is_empty();
        self.apply_locks(effects);
        match taken {
            Taken::Done => self.answer(&MetaReply::Done),
            Taken::Queued => self.answer(&MetaReply::Queued),
            Taken::Conflict if changed => self.answer(&MetaReply::Refused),
            Taken::Conflict => Err(Errno::EAGAIN.into()),
            Taken::Deadlock => Err(Errno::EDEADLK.into()),
            Taken::TooMany => Err(Errno::ENOLCK.into()),
        }
    }

    pub fn test_lock(&mut self, inode: u64, range: &LockRange) -> Step<()> {
        let lock = self.lock(inode, range)?;
        self.ask_holders(inode, &lock)?;
        let conflict = self.shard.locks.conflict(inode, &lock).map(|lock| lock.range());
        self.answer(&MetaReply::Lock { conflict })
    }

    /// Asks the sessions that hold locks in the way of `lock`: they may have given them up already, and not
    /// told yet.
    fn ask_holders(&mut self, inode: u64, lock: &Lock) -> Step<()> {
        let shard = &mut *self.shard;
        let call = (self.ticket, shard.parking.newest());
        let mut waits = false;
        for session in shard.locks.in_the_way(inode, lock) {
            let of = (inode, session);
            waits |= shard.questions.ask(of, call, self.now.time, &mut shard.callbacks);
        }
        match waits {
            true => Err(Stop::Wait { on: vec![WaitOn::Locks(inode)] }),
            false => Ok(()),
        }
    }

    pub fn told_unlocked(&mut self, inode: u64, number: u64) -> Step<()> {
        self.shard.questions.told(inode, self.session, number);
        self.shard.parking.wake(WaitOn::Locks(inode));
        self.answer(&MetaReply::Done)
    }

    pub fn cancel_lock(&mut self, inode: u64, range: &LockRange) -> Step<()> {
        let lock = Lock::new(self.session, range);
        let mut effects = Effects::default();
        let removed = self.shard.locks.cancel(inode, &lock, &mut effects);
        self.apply_locks(effects);
        if removed { self.answer(&MetaReply::Done) } else { Err(Errno::ENOENT.into()) }
    }

    pub fn release_owner(&mut self, inode: u64, owner: u64, whole_file: bool) -> Step<()> {
        let owner = Owner { session: self.session, owner };
        let mut effects = Effects::default();
        self.shard.locks.release_owner(inode, owner, whole_file, &mut effects);
        self.apply_locks(effects);
        self.answer(&MetaReply::Done)
    }

    fn lock(&mut self, inode: u64, range: &LockRange) -> Step<Lock> {
        self.inode(inode)?;
        if range.start > range.end && !range.whole_file {
            return Err(Errno::EINVAL.into());
        }
        Ok(Lock::new(self.session, range))
    }

    /// Writes the changes of the lock table, and tells those whose turn came.
    pub fn apply_locks(&mut self, effects: Effects) {
        for change in effects.rows {
            match change {
                RowChange::Put(inode, lock) => {
                    let value = encode_row(VERSION, &(lock.end, lock.exclusive, lock.process));
                    self.batch.put(lock_key(inode, &lock), value);
                }
                RowChange::Remove(inode, lock) => self.batch.remove(lock_key(inode, &lock)),
            }
        }
        for (inode, lock) in effects.granted {
            let Owner { session, owner } = lock.owner;
            let granted = Callback::LockGranted { inode, owner, start: lock.start };
            self.shard.callbacks.push_back((session, granted));
        }
    }
}
