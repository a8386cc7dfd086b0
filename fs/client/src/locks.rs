//! Locks: taking them and giving them back, and the fate of those that went with a session.
//!
//! A client that stood still for too long loses its session, and others get its locks. Its programs believe
//! that they hold them. So a program that held one may neither read nor write the file until it has unlocked
//! or closed it: every request of such a holder is refused with `EIO`, those too that waited in the kernel
//! meanwhile.
//!
//! Invariants: `held` has every lock that the server may have given to this session and that was not
//! given back; a lock is lost only with the session; a holder of a lost lock gets no other one on the
//! file before it has given that one up. A lock that was taken when nobody waited for it any more
//! ([`Abandoned`]) is not in `held`: the server is told what was there before.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::time::Duration;

use ropewalk_base::abandon::Abandoned;
use ropewalk_base::task::{Either, race};
use ropewalk_wire::fs::meta::{LockKind, LockRange, MetaReply, MetaRequest};
use ropewalk_wire::fs::value::Errno;

use crate::call::unexpected;
use crate::client::Client;
use crate::file::File;

/// A queued lock is asked for again after so long, also without a callback.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// Whether read-ahead is over is looked at so often, and waited for so long.
const LOOK_AGAIN: Duration = Duration::from_micros(500);
const READ_AHEAD_WITHIN: Duration = Duration::from_millis(200);
/// Owners of one open file before those without a lock are forgotten.
const OWNERS_LOOKED_AT: usize = 64;

/// The path of the bytes of a kernel request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// Between a program and the server: no page keeps them.
    Direct,
    /// Through pages of the kernel, which keep them.
    Pages,
    /// From pages that programs changed in their memory.
    WriteBack,
}

/// The program that reads or writes, as the kernel tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Actor {
    /// The owner of its byte-range locks, where it is told.
    pub owner: Option<u64>,
    /// The thread; 0 where it is not known.
    pub thread: u32,
    pub path: Path,
}

impl Actor {
    /// A program that uses the library: all that is locked in its client, it has locked.
    pub const OWN: Actor = Actor { owner: None, thread: 0, path: Path::Direct };
}

#[derive(Debug, Clone, Copy)]
struct Held {
    range: LockRange,
    lost: bool,
}

impl Held {
    fn is_of(&self, owner: u64, whole_file: bool) -> bool {
        self.range.owner == owner && self.range.whole_file == whole_file
    }
}

/// Locks of this client's programs, by inode.
#[derive(Debug, Default)]
pub(crate) struct Locks {
    files: RefCell<BTreeMap<u64, Vec<Held>>>,
    /// The number of lost locks among them.
    lost: Cell<usize>,
}

impl Locks {
    /// Notes that the range has another lock, or none. The server may have lost some of the locks given up
    /// here already.
    fn note(&self, inode: u64, range: &LockRange) {
        let mut files = self.files.borrow_mut();
        let held = files.entry(inode).or_default();
        let (start, end) = if range.whole_file { (0, u64::MAX) } else { (range.start, range.end) };
        let mut left = Vec::with_capacity(held.len() + 1);
        for one in held.drain(..) {
            let apart = end < one.range.start || one.range.end < start;
            if !one.is_of(range.owner, range.whole_file) || apart {
                left.push(one);
                continue;
            }
            let mut keep = |start, end| {
                let range = LockRange { start, end, ..one.range };
                left.push(Held { range, ..one });
            };
            if one.range.start < start {
                keep(one.range.start, start - 1);
            }
            if one.range.end > end {
                keep(end + 1, one.range.end);
            }
        }
        if range.kind != LockKind::Unlock {
            left.push(Held { range: LockRange { start, end, ..*range }, lost: false });
        }
        *held = left;
        if held.is_empty() {
            files.remove(&inode);
        }
        drop(files);
        self.count();
    }

    fn retain(&self, inode: u64, keep: impl Fn(&Held) -> bool) {
        let mut files = self.files.borrow_mut();
        if let Some(held) = files.get_mut(&inode) {
            held.retain(keep);
            if held.is_empty() {
                files.remove(&inode);
            }
        }
        drop(files);
        self.count();
    }

    fn count(&self) {
        if self.lost.get() > 0 {
            let files = self.files.borrow();
            self.lost.set(files.values().flatten().filter(|held| held.lost).count());
        }
    }

    /// The locks that an owner holds within a range, as requests that would bring them about.
    fn pieces(&self, inode: u64, range: &LockRange) -> Vec<LockRange> {
        let (start, end) = if range.whole_file { (0, u64::MAX) } else { (range.start, range.end) };
        let files = self.files.borrow();
        let held = files.get(&inode).map_or(&[][..], Vec::as_slice);
        let mut own: Vec<LockRange> = held
            .iter()
            .filter(|one| one.is_of(range.owner, range.whole_file) && !one.lost)
            .map(|one| one.range)
            .filter(|one| one.start <= end && start <= one.end)
            .map(|one| LockRange { start: one.start.max(start), end: one.end.min(end), ..one })
            .collect();
        own.sort_unstable_by_key(|one| one.start);
        let none = LockRange { kind: LockKind::Unlock, ..*range };
        let (mut pieces, mut next) = (Vec::with_capacity(2 * own.len() + 1), Some(start));
        for one in own {
            if let Some(from) = next.filter(|from| *from < one.start) {
                pieces.push(LockRange { start: from, end: one.start - 1, ..none });
            }
            next = one.end.checked_add(1);
            pieces.push(one);
        }
        if let Some(from) = next.filter(|from| *from <= end) {
            pieces.push(LockRange { start: from, end, ..none });
        }
        pieces
    }

    /// Everything that is held is lost. The inodes and the processes concerned.
    pub fn lose_all(&self) -> Vec<(u64, u32)> {
        let mut files = self.files.borrow_mut();
        let mut concerned = Vec::new();
        for (inode, held) in files.iter_mut() {
            for one in held.iter_mut().filter(|one| !one.lost) {
                one.lost = true;
                concerned.push((*inode, one.range.process));
            }
        }
        self.lost.set(files.values().map(Vec::len).sum());
        concerned.dedup();
        concerned
    }

    /// All locks: inode, range, and whether it is lost.
    pub fn to_state(&self) -> Vec<(u64, LockRange, bool)> {
        let files = self.files.borrow();
        let all = files.iter().flat_map(|(inode, held)| held.iter().map(move |it| (*inode, it)));
        all.map(|(inode, held)| (inode, held.range, held.lost)).collect()
    }

    pub fn take_state(&self, locks: &[(u64, LockRange, bool)]) {
        let mut files = self.files.borrow_mut();
        for &(inode, range, lost) in locks {
            files.entry(inode).or_default().push(Held { range, lost });
        }
        self.lost.set(locks.iter().filter(|(.., lost)| *lost).count());
    }

    fn has_lost(&self, inode: u64, is: impl Fn(&LockRange) -> bool) -> bool {
        self.lost.get() > 0
            && self
                .files
                .borrow()
                .get(&inode)
                .is_some_and(|held| held.iter().any(|held| held.lost && is(&held.range)))
    }
}

impl Client {
    /// Whether a lock on the inode was lost that nobody gave up yet: no request on it may be answered without
    /// a look at the caller.
    pub fn has_lost_locks(&self, inode: u64) -> bool {
        self.inner.locks.has_lost(inode, |_| true)
    }

    /// `EIO` where a lock was lost under which this would be done: one that was taken through this open
    /// file, or a byte-range lock of this process.
    pub fn check_locks(&self, file: &File, actor: &Actor) -> Result<(), Errno> {
        let number = file.number();
        if !self.has_lost_locks(number) {
            return Ok(());
        }
        let owners = file.lock_owners.borrow();
        let process = self.process_of(actor.thread);
        let concerned = |lost: &LockRange| {
            // Nobody knows who changed these pages.
            actor.path == Path::WriteBack
                || *actor == Actor::OWN
                || owners.contains(&lost.owner)
                || actor.owner == Some(lost.owner)
                || (!lost.whole_file && process == Some(lost.process))
        };
        match self.inner.locks.has_lost(number, concerned) {
            true => Err(Errno::EIO),
            false => Ok(()),
        }
    }

    /// As [`Client::check_locks`], for changes to a file by name.
    pub fn check_locks_of_thread(&self, inode: u64, thread: u32) -> Result<(), Errno> {
        if !self.has_lost_locks(inode) {
            return Ok(());
        }
        let process = self.process_of(thread);
        let concerned = |lost: &LockRange| !lost.whole_file && process == Some(lost.process);
        match self.inner.locks.has_lost(inode, concerned) {
            true => Err(Errno::EIO),
            false => Ok(()),
        }
    }

    fn process_of(&self, thread: u32) -> Option<u32> {
        let processes = self.inner.processes.borrow().clone();
        (thread != 0).then(|| processes(thread))
    }

    /// Sets the function that tells the process of a thread; otherwise each thread is one process.
    pub fn set_processes(&self, of: std::rc::Rc<dyn Fn(u32) -> u32>) {
        *self.inner.processes.borrow_mut() = of;
    }

    /// The locks of a session that ended are others' now, or will be.
    pub(crate) fn lose_locks(&self) {
        for (inode, process) in self.inner.locks.lose_all() {
            self.inner.lines.say(&format!(
                "inode {inode}: process {process} lost a lock, because the session with the \
                 metadata server ended; its reads and writes of this file fail (EIO) until it \
                 unlocks or closes the file"
            ));
        }
    }

    /// Takes or gives back a lock. With `wait`, completes when it was taken; dropping the future
    /// before leaves the lock queued. Where this is abandoned, the lock is not taken (`EINTR`).
    pub async fn set_lock(&self, number: u64, range: LockRange, wait: bool) -> Result<(), Errno> {
        self.lock_unless(number, range, wait, &Abandoned::new()).await
    }

    /// As [`Client::set_lock`] with `wait`, until `left` is set: then the place in the queue is given
    /// up, and it is `EINTR`, unless the lock was taken in that very moment.
    pub async fn await_lock(
        &self,
        number: u64,
        range: LockRange,
        left: &Abandoned,
    ) -> Result<(), Errno> {
        self.lock_unless(number, range, true, left).await
    }

    async fn lock_unless(
        &self,
        number: u64,
        range: LockRange,
        mut wait: bool,
        left: &Abandoned,
    ) -> Result<(), Errno> {
        let unlocks = range.kind == LockKind::Unlock;
        if unlocks {
            // Also where the server cannot be told: the program has given up locks that are lost then.
            self.inner.locks.note(number, &range);
        } else if self.inner.locks.has_lost(number, |lost| lost.owner == range.owner) {
            return Err(Errno::EIO);
        }
        loop {
            let request = MetaRequest::SetLock { inode: number, range, wait };
            let granted = self.inner.granted_notify.notified();
            let session = self.inner.meta.session();
            let queued = self
                .ask(&request, |reply| match reply {
                    MetaReply::Done => Ok(false),
                    MetaReply::Queued => Ok(true),
                    MetaReply::Refused => Err(Errno::EAGAIN),
                    _ => unexpected(),
                })
                .await;
            if queued == Err(Errno::EAGAIN) && range.whole_file {
                // A conversion that is refused has given up its old lock.
                self.inner.locks.note(number, &LockRange { kind: LockKind::Unlock, ..range });
            }
            let queued = match queued {
                // Asked for once more when nobody waited any more, see below.
                Err(Errno::EAGAIN) if left.is_set() => Err(Errno::EINTR),
                queued => queued,
            }?;
            if !queued && !unlocks && self.inner.meta.session() != session {
                // It may have been taken in a session that is gone: asking again is harmless.
                continue;
            }
            if !queued && !unlocks && Abandoned::is_current() {
                self.put_back(number, &range).await;
                return Err(Errno::EINTR);
            }
            if !queued {
                self.inner.locks.note(number, &range);
                return Ok(());
            }
            if range.whole_file {
                // A conversion that waits has given up its old lock.
                self.inner.locks.note(number, &LockRange { kind: LockKind::Unlock, ..range });
            }
            let key = (number, range.owner, range.start);
            // Asking again is harmless: also without a callback the answer comes within a second.
            let pause = self.inner.world.sleep(ASK_AGAIN);
            let waited = race(race(granted, pause), left.wait()).await;
            self.inner.granted.borrow_mut().retain(|other| *other != key);
            if let Either::Right(()) = waited {
                if !self.cancel_lock(number, range).await {
                    return Err(Errno::EINTR);
                }
                if Abandoned::is_current() {
                    self.put_back(number, &range).await;
                    return Err(Errno::EINTR);
                }
                // Taken in the very last moment, or forgotten with the queue: the server knows.
                wait = false;
            }
        }
    }

    /// Gives up a queued lock, however long the server is away; true where it is not queued: it may
    /// have been taken.
    async fn cancel_lock(&self, number: u64, range: LockRange) -> bool {
        let request = MetaRequest::CancelLock { inode: number, range };
        loop {
            match self.ask(&request, |_| Ok(())).await {
                Ok(()) => return false,
                Err(Errno::EIO) if !self.is_stopped() => self.inner.world.sleep(ASK_AGAIN).await,
                Err(_) => return true,
            }
        }
    }

    /// A lock was taken, or may have been, and nobody learns of it: the range is again as the owner
    /// knows it, however long the server is away.
    async fn put_back(&self, number: u64, range: &LockRange) {
        loop {
            // The owner may go meanwhile.
            let pieces = self.inner.locks.pieces(number, range);
            let mut told = Ok(());
            for &range in &pieces {
                let request = MetaRequest::SetLock { inode: number, range, wait: false };
                told = self.ask(&request, |_| Ok(())).await;
                if told == Err(Errno::EIO) {
                    break;
                }
            }
            if self.is_stopped() {
                return;
            }
            if told == Err(Errno::EIO) {
                self.inner.world.sleep(ASK_AGAIN).await;
            } else if pieces == self.inner.locks.pieces(number, range) {
                return;
            }
        }
    }

    /// The first lock that conflicts.
    pub async fn test_lock(
        &self,
        number: u64,
        range: LockRange,
    ) -> Result<Option<LockRange>, Errno> {
        let request = MetaRequest::TestLock { inode: number, range };
        self.ask(&request, |reply| match reply {
            MetaReply::Lock { conflict } => Ok(conflict),
            _ => unexpected(),
        })
        .await
    }

    /// All locks of an owner on the inode fall.
    pub async fn release_owner(
        &self,
        number: u64,
        owner: u64,
        whole_file: bool,
    ) -> Result<(), Errno> {
        self.inner.locks.retain(number, |held| !held.is_of(owner, whole_file));
        let request = MetaRequest::ReleaseOwner { inode: number, owner, whole_file };
        self.ask(&request, |_| Ok(())).await
    }

    /// An open file is closed for good: locks that were lost and that were taken through it concern
    /// nobody any more.
    pub fn forget_lost_locks(&self, file: &File) {
        let owners = file.lock_owners.borrow();
        self.inner
            .locks
            .retain(file.number(), |held| !(held.lost && owners.contains(&held.range.owner)));
    }

    /// Somebody wants a lock that is in this client's name, and asks whether it still is. Locks that were
    /// given up are told of first.
    pub(crate) async fn tell_unlocked(&self, inode: u64, number: u64) {
        let unlocks = self.inner.unlocks.borrow().clone();
        unlocks(inode).await;
        let known = self.inner.inodes.borrow().get(&inode).cloned();
        if let Some(known) = known.filter(|known| known.pages_coming.get() > 0) {
            // The kernel keeps a file that was closed until its read-ahead is there.
            let come = async {
                while known.pages_coming.get() > 0 {
                    self.inner.world.sleep(LOOK_AGAIN).await;
                }
            };
            race(come, self.inner.world.sleep(READ_AHEAD_WITHIN)).await;
            unlocks(inode).await;
        }
        let request = MetaRequest::ToldUnlocked { inode, number };
        // The caller that asked does not wait for long.
        let _ = self.ask(&request, |_| Ok(())).await;
    }

    /// Sets the function that knows of closed files whose locks the server was not told of yet. Its future
    /// completes when the server was told of all that are closed by now.
    pub fn set_unlocks(&self, told: std::rc::Rc<dyn Fn(u64) -> crate::client::LocalFuture>) {
        *self.inner.unlocks.borrow_mut() = told;
    }
}

impl File {
    /// A lock of this owner is taken through this open file.
    pub fn locked_by(&self, owner: u64) {
        let mut owners = self.lock_owners.borrow_mut();
        if owners.contains(&owner) {
            return;
        }
        if owners.len() >= OWNERS_LOOKED_AT {
            // Of processes that came and went, mostly.
            let files = self.client().inner.locks.files.borrow();
            let held = files.get(&self.number()).map_or(&[][..], Vec::as_slice);
            owners.retain(|owner| held.iter().any(|held| held.range.owner == *owner));
        }
        owners.push(owner);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(kind: LockKind, owner: u64, start: u64, end: u64) -> LockRange {
        LockRange { kind, whole_file: false, owner, process: 7, start, end }
    }

    #[test]
    fn a_lost_lock_concerns_its_owner_until_all_of_it_is_given_up() {
        let locks = Locks::default();
        locks.note(1, &range(LockKind::Exclusive, 5, 0, 99));
        locks.note(1, &range(LockKind::Shared, 6, 200, 300));
        assert!(!locks.has_lost(1, |_| true));
        assert_eq!(locks.lose_all(), [(1, 7)]);
        let lost = |owner| locks.has_lost(1, |lost| lost.owner == owner);
        assert!(lost(5) && lost(6) && !locks.has_lost(2, |_| true));
        // A hole in the middle leaves both ends.
        locks.note(1, &range(LockKind::Unlock, 5, 10, 20));
        assert!(lost(5));
        locks.note(1, &range(LockKind::Unlock, 5, 0, 9));
        locks.note(1, &range(LockKind::Unlock, 5, 21, u64::MAX));
        assert!(!lost(5) && lost(6));
        // The other family is another lock.
        locks.retain(1, |held| !held.is_of(6, true));
        assert!(lost(6));
        locks.retain(1, |held| !held.is_of(6, false));
        assert!(!lost(6) && locks.files.borrow().is_empty() && locks.lost.get() == 0);
    }
}
