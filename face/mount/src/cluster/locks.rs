//! Locks: the metadata server's, by the kernel's owners.

use ropewalk_base::world::World;
use ropewalk_client::{Client, LockKind, LockRange};

use super::ClusterFileSystem;
use super::convert::errno;
use crate::decode::{self, Lock};
use crate::errno::Errno;
use crate::filesystem::{Answer, Context};

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

/// A queued lock whose waiter may go away: then the place in the queue goes, too.
struct Waiting {
    client: Client,
    world: World,
    node: u64,
    range: LockRange,
    over: bool,
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let (client, node, range) = (self.client.clone(), self.node, self.range);
        self.world.spawn(async move {
            // Taken in the very last moment: given back, since nobody knows of it.
            if let Ok(true) = client.cancel_lock(node, range).await {
                let unlock = LockRange { kind: LockKind::Unlock, ..range };
                let _ = client.set_lock(node, unlock, false).await;
            }
        });
    }
}

impl ClusterFileSystem {
    pub(super) async fn test(&self, node: u64, owner: u64, lock: &Lock) -> Answer<Lock> {
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
        node: u64,
        owner: u64,
        lock: &Lock,
        (whole_file, wait): (bool, bool),
    ) -> Answer<()> {
        let mut range = range(lock, owner, whole_file);
        if range.process == 0 {
            range.process = context.pid;
        }
        if range.kind != LockKind::Unlock && !whole_file {
            self.locked.borrow_mut().insert(node);
        }
        if !wait || range.kind == LockKind::Unlock {
            return self.client.set_lock(node, range, false).await.map_err(errno);
        }
        let world = self.client.world();
        let client = self.client.clone();
        let mut waiting = Waiting { client, world, node, range, over: false };
        let taken = self.client.set_lock(node, range, true).await;
        waiting.over = true;
        taken.map_err(errno)
    }

    /// A descriptor was closed: POSIX takes all of its owner's byte-range locks away.
    pub(super) async fn closed(&self, node: u64, owner: u64) -> Answer<()> {
        if !self.locked.borrow().contains(&node) {
            return Ok(());
        }
        self.client.release_owner(node, owner, false).await.map_err(errno)
    }

    pub(super) async fn unlock_whole(&self, node: u64, owner: u64) -> Result<(), Errno> {
        self.client.release_owner(node, owner, true).await.map_err(errno)
    }
}
