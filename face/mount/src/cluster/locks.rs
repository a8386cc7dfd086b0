//! Locks: the metadata server's, by the kernel's owners.
//!
//! Invariants
//! * an end of locks that the kernel reported is carried to the server, whatever happens to the process that
//!   reported it: if the server does not answer, it is tried again until the server answers;
//! * nothing is locked on an inode while ends of locks on it are on their way: owners are addresses of
//!   the kernel, and the next one may have the name of the one that ends;
//! * a request for a lock whose caller got a signal is such an end, too: the caller may ask again at once, and
//!   messages about the first request come before that.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use ropewalk_base::abandon::Abandoned;
use ropewalk_base::task::{Either, Notify, join_all, race};
use ropewalk_client::{Client, LockKind, LockRange, handover};

use super::ClusterFileSystem;
use super::convert::errno;
use super::held::{Held, Holder};
use crate::abi::Opcode;
use crate::decode::{self, Lock};
use crate::errno::Errno;
use crate::filesystem::{Answer, Context, Interrupts, usual_interrupts};

/// Between two tries to tell the server of an end of locks.
const TRY_AGAIN: Duration = Duration::from_secs(1);

/// The points at which callers are let go. A waiting lock is not dropped: it looks at its caller's signals
/// itself, and the loop answers only if the server is away.
pub(super) fn interrupts(opcode: Opcode) -> Interrupts {
    match opcode {
        Opcode::SetLockWait => Interrupts::AfterPatience,
        _ => usual_interrupts(opcode),
    }
}

fn range(lock: &Lock, owner: u64, whole_file: bool) -> LockRange {
    LockRange {
        kind: match lock.kind {
            decode::LockKind::Read => LockKind::Shared,
            decode::LockKind::Write => LockKind::Exclusive,
            decode::LockKind::Unlock => LockKind::Unlock,
        },
        whole_file,
        owner,
        process: lock.pid,
        start: if whole_file { 0 } else { lock.start },
        // The kernel's end of all files is the protocol's.
        end: if whole_file || lock.end >= i64::MAX as u64 { u64::MAX } else { lock.end },
    }
}

/// The mount's knowledge of its processes' locks.
pub(super) struct Locks {
    client: Client,
    held: RefCell<Held>,
    /// Ends of locks under way, by inode.
    ending: RefCell<BTreeMap<u64, u32>>,
    ended: Notify,
}

/// An end of locks under way.
struct Ending {
    locks: Rc<Locks>,
    node: u64,
}

impl Ending {
    fn new(locks: &Rc<Locks>, node: u64) -> Ending {
        *locks.ending.borrow_mut().entry(node).or_default() += 1;
        Ending { locks: locks.clone(), node }
    }
}

impl Drop for Ending {
    fn drop(&mut self) {
        let mut ending = self.locks.ending.borrow_mut();
        if let Some(count) = ending.get_mut(&self.node) {
            *count -= 1;
            if *count == 0 {
                ending.remove(&self.node);
            }
        }
        drop(ending);
        self.locks.ended.notify_all();
    }
}

/// A request under way that locks or unlocks.
struct Asking {
    locks: Rc<Locks>,
    holder: Holder,
    range: LockRange,
    answer: Option<Result<(), ropewalk_client::Errno>>,
}

impl Asking {
    fn new(locks: &Rc<Locks>, holder: Holder, handle: u64, range: LockRange) -> Asking {
        locks.held.borrow_mut().ask(holder, handle);
        Asking { locks: locks.clone(), holder, range, answer: None }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.locks.held.borrow_mut().answered(self.holder, &self.range, self.answer);
    }
}

impl Locks {
    pub fn new(client: Client) -> Rc<Locks> {
        let (held, ending) = (RefCell::new(Held::default()), RefCell::new(BTreeMap::new()));
        Rc::new(Locks { client, held, ending, ended: Notify::new() })
    }

    /// Whether no end of locks is under way.
    pub(super) fn is_quiet(&self) -> bool {
        self.ending.borrow().is_empty()
    }

    /// What is held, for another process.
    pub(super) fn to_state(&self) -> Vec<handover::Holder> {
        self.held.borrow().to_state()
    }

    pub(super) fn take_state(&self, state: &[handover::Holder]) {
        *self.held.borrow_mut() = Held::of_state(state);
    }

    /// Completes when no end of locks on the inode is under way.
    pub(super) async fn settled(&self, node: u64) {
        loop {
            let ended = self.ended.notified();
            if !self.ending.borrow().contains_key(&node) {
                return;
            }
            ended.await;
        }
    }

    /// All locks of an owner on an inode end, sooner or later; an error where it is later.
    async fn end(self: Rc<Locks>, holder: Holder) -> Answer<()> {
        let ending = Ending::new(&self, holder.node);
        let failed = match self.tell(holder).await {
            Ok(()) => return Ok(()),
            Err(failed) => failed,
        };
        let world = self.client.world();
        world.clone().spawn(async move {
            while !self.client.is_stopped() {
                world.sleep(TRY_AGAIN).await;
                if self.tell(holder).await.is_ok() {
                    break;
                }
            }
            drop(ending);
        });
        Err(errno(failed))
    }

    async fn tell(&self, holder: Holder) -> Result<(), ropewalk_client::Errno> {
        let Holder { node, owner, whole_file } = holder;
        self.client.release_owner(node, owner, whole_file).await?;
        self.held.borrow_mut().gone(holder);
        Ok(())
    }
}

impl ClusterFileSystem {
    pub(super) async fn test(&self, node: u64, owner: u64, lock: &Lock) -> Answer<Lock> {
        self.locks.settled(node).await;
        let conflict = self.client.test_lock(node, range(lock, owner, false)).await;
        Ok(match conflict.map_err(errno)? {
            None => Lock { kind: decode::LockKind::Unlock, ..*lock },
            Some(found) => Lock {
                start: found.start,
                end: found.end.min(i64::MAX as u64),
                kind: match found.kind {
                    LockKind::Shared => decode::LockKind::Read,
                    _ => decode::LockKind::Write,
                },
                pid: found.process,
            },
        })
    }

    pub(super) async fn lock(
        &self,
        context: &Context,
        (node, handle): (u64, u64),
        owner: u64,
        lock: &Lock,
        (whole_file, wait): (bool, bool),
    ) -> Answer<()> {
        let mut range = range(lock, owner, whole_file);
        if range.process == 0 {
            range.process = context.pid;
        }
        if range.kind != LockKind::Unlock {
            self.handles.borrow().file(handle)?.locked_by(owner);
        }
        let holder = Holder { node, whole_file, owner };
        let unlocks = range.kind == LockKind::Unlock;
        if unlocks && !self.locks.held.borrow().holds(holder) {
            return Ok(());
        }
        self.locks.settled(node).await;
        if !unlocks && Abandoned::is_current() {
            // The owner may be gone, and nobody would end what it gets now.
            return Err(Errno::EINTR);
        }
        let mut asking = Asking::new(&self.locks, holder, handle, range);
        let answer = if unlocks {
            self.client.set_lock(node, range, false).await
        } else {
            self.take(context, node, range, wait).await
        };
        asking.answer = Some(answer);
        drop(asking);
        answer.map_err(errno)
    }

    /// Takes a lock for a caller who may be gone before it is there. The future goes on in any case: a
    /// lock that is taken when nobody waits any more has to be given back.
    async fn take(
        &self,
        context: &Context,
        node: u64,
        range: LockRange,
        wait: bool,
    ) -> Result<(), ropewalk_client::Errno> {
        let left = Abandoned::new();
        let taken = async {
            match wait {
                true => self.client.await_lock(node, range, &left).await,
                false => self.client.set_lock(node, range, false).await,
            }
        };
        let mut taken = pin!(taken);
        let leaves = if wait { context.interrupted() } else { context.killed() };
        match race(taken.as_mut(), leaves).await {
            Either::Left(taken) => taken,
            Either::Right(()) => {
                let _ending = Ending::new(&self.locks, node);
                left.set();
                taken.await
            }
        }
    }

    /// A descriptor was closed: POSIX takes all of its owner's byte-range locks away.
    pub(super) async fn closed(&self, node: u64, owner: u64) -> Answer<()> {
        let holder = Holder { node, whole_file: false, owner };
        if !self.locks.held.borrow().holds(holder) {
            return Ok(());
        }
        self.locks.clone().end(holder).await
    }

    /// The last descriptor of an open file description was closed: the locks that it owned end, byte
    /// ranges (`F_OFD_SETLK`) and the whole file (`flock`).
    pub(super) async fn let_go(&self, handle: u64) -> Answer<()> {
        let ends = self.locks.held.borrow_mut().released(handle);
        if ends.is_empty() {
            return Ok(());
        }
        let told = join_all(ends.into_iter().map(|holder| self.locks.clone().end(holder))).await;
        told.into_iter().collect()
    }
}
