//! Requests that move no bytes: punch, truncate, sync, reap, fence, status.

use std::time::Duration;

use ropewalk_base::task::{join, join_all, race};
use ropewalk_store::objects::{GroupTag, ObjectError, WriteEpoch};
use ropewalk_wire::fs::data::{DataReply, DataRequest, FileId, ObjectRange};
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::value::Errno;

use crate::failure::Failure;
use crate::server::{Call, Inner};
use crate::write::object;

type Outcome = Result<DataReply<'static>, Failure>;

/// Inodes whose removal is under way at a time for one request: they share syncs of the log.
const REAPED_AT_ONCE: usize = 64;
/// Tombstones older than this are forgotten: no request of that time can still be on its way.
const TOMBSTONE_SECONDS: u64 = 24 * 60 * 60;
/// A cut waits so long for the map by which it is wanted.
const MAP_LIMIT: Duration = Duration::from_secs(1);
const SWEEP: Duration = Duration::from_secs(60 * 60);

impl Inner {
    pub(crate) async fn punch(&self, call: Call, file: FileId, pieces: &[ObjectRange]) -> Outcome {
        self.room().await?;
        let mirrored = self.are_mirrored(pieces);
        let _guard = match mirrored {
            true => Some(self.lock(file, pieces).await),
            false => None,
        };
        self.admit_change(call, file, pieces)?;
        let punched = self.punch_here(call, file, pieces);
        if mirrored && punched.is_err() {
            // Some of it may have been done.
            self.level_ranges(file, pieces).await?;
        }
        let empty = punched?;
        if mirrored {
            self.punch_copies(file, pieces).await?;
        }
        self.settle(call).await?;
        Ok(DataReply::Punched { empty })
    }

    /// Punches ranges of this server's objects; the stripes of which nothing is left.
    fn punch_here(
        &self,
        call: Call,
        file: FileId,
        pieces: &[ObjectRange],
    ) -> Result<Vec<u32>, Failure> {
        let mut empty = Vec::new();
        for piece in pieces {
            let (object, by) = (object(file, piece.stripe), call.write_epoch());
            let (offset, len) = (u64::from(piece.offset), u64::from(piece.len));
            let punched = self.store.punch(object, offset, len, by);
            punched.map_err(|error| self.failed("punch", &error))?;
            let is_empty = self.store.is_empty(object);
            if is_empty.map_err(|error| self.failed("punch", &error))? {
                empty.push(piece.stripe);
            }
        }
        Ok(empty)
    }

    /// Cuts a file: objects from `stripe` on go, the one before keeps `offset` bytes where `offset`
    /// is not 0.
    pub(crate) async fn truncate(
        &self,
        call: Call,
        file: FileId,
        (stripe, offset): (u32, u32),
        groups: &[Group],
    ) -> Outcome {
        let free = call.head.session == 0;
        if free {
            self.knows_map_for_cut(call.head.map, groups).await?;
        }
        self.room().await?;
        let mirrored = self.groups.borrow().has_mirrored();
        if !free && mirrored {
            // Such a cut names no group whose order it could be in.
            return Err(Errno::EINVAL.into());
        }
        let _guard = match mirrored {
            true => Some(self.lock_cut(file).await),
            false => None,
        };
        self.admit_change(call, file, &[])?;
        if free {
            // Nothing may have changed before it is done.
            self.groups.borrow().judge_cut(call.head.map, groups).map_err(Failure::Status)?;
        }
        if free && self.epochs.borrow().was_cut(file, (stripe, offset)) {
            // A repeated call: bytes written since the first one must stay.
            return self.settle(call).await;
        }
        self.cut_objects(file, (stripe, offset), call.write_epoch(), None)?;
        let ordered = self.groups.borrow().ordered_mirrored();
        if !ordered.is_empty() {
            let cut = |groups| DataRequest::Truncate { file, stripe, offset, groups };
            self.ask_hearers(&ordered, cut).await?;
        }
        let until = self.groups.borrow().all_alone_from();
        if self.world.now() < until {
            self.world.sleep_until(until).await;
        }
        if free {
            // Not before the others have cut: a repeated call would tell that they have.
            self.epochs.borrow_mut().note_cut(file, (stripe, offset));
        }
        self.settle(call).await
    }

    /// Waits until this server knows the map by which the metadata server has a file cut.
    async fn knows_map_for_cut(&self, map: u32, groups: &[Group]) -> Result<(), Failure> {
        let until = self.world.now() + MAP_LIMIT;
        loop {
            let changed = self.mirror.changed.notified();
            let judged = self.groups.borrow().judge_cut(map, groups);
            if judged.is_ok() || self.groups.borrow().epoch() > map || self.world.now() >= until {
                return judged.map_err(Failure::Status);
            }
            self.map_wanted.notify_all();
            let _ = race(changed, self.world.sleep_until(until)).await;
        }
    }

    /// Cuts a file's objects: those from `stripe` on go, the one before keeps `offset` bytes where `offset` is not 0.
    pub(crate) fn cut_objects(
        &self,
        file: FileId,
        (stripe, offset): (u32, u32),
        by: WriteEpoch,
        of: Option<&dyn Fn(GroupTag) -> bool>,
    ) -> Result<(), Failure> {
        let cut = match (stripe, offset) {
            (stripe, 0) => stripe,
            (0, _) => return Err(Errno::EINVAL.into()),
            (stripe, _) => stripe - 1,
        };
        if u64::from(offset) > self.store.object_bytes() {
            return Err(Errno::EINVAL.into());
        }
        let (inode, generation) = (file.inode, file.generation);
        let cut = (cut, u64::from(offset));
        let done = self.store.truncate_file_in(inode, generation, cut, by, of);
        for object in done.map_err(|error| self.failed("truncate", &error))? {
            self.lines.say(&format!(
                "object {object}: it was truncated within a block that cannot be read; the bytes \
                 of this block before the new end are lost, and reading them fails until they are \
                 overwritten"
            ));
        }
        Ok(())
    }

    /// Ends a change. The metadata server forgets that it wanted one as soon as it is told that it
    /// was made, so its changes are durable by then; clients say when theirs have to be.
    async fn settle(&self, call: Call) -> Outcome {
        if call.head.session == 0 {
            // The log has all of it: no file needs to be synced.
            let synced = self.store.sync(&[]).await;
            synced.map_err(|error| self.failed("sync", &error))?;
        }
        Ok(DataReply::Done)
    }

    /// Makes files durable, also at the other members of these groups.
    pub(crate) async fn sync(&self, files: &[FileId], groups: &[Group]) -> Outcome {
        let everywhere = async {
            match groups {
                [] => Ok(()),
                _ => {
                    let sync = |_| DataRequest::Sync { files: files.to_vec(), groups: Vec::new() };
                    self.ask_hearers(groups, sync).await
                }
            }
        };
        let (here, there) = join(self.sync_here(files), everywhere).await;
        there.and(here)
    }

    /// Makes files durable at this server: all there are, where none is named.
    pub(crate) async fn sync_here(&self, files: &[FileId]) -> Outcome {
        if files.is_empty() {
            let synced = self.store.sync_all().await;
            synced.map_err(|error| self.failed("sync", &error))?;
            return Ok(DataReply::Done);
        }
        let mut known: Vec<_> = files.iter().map(|file| (file.inode, file.generation)).collect();
        known.sort_unstable();
        known.dedup();
        let synced = self.store.sync_files(&known).await;
        synced.map_err(|error| self.failed("sync", &error))?;
        Ok(DataReply::Done)
    }

    /// Removes the objects of inodes; tombstones are durable when it completes.
    pub(crate) async fn reap(&self, inodes: &[(u64, u32)]) -> Outcome {
        self.room().await?;
        let (mark, mut failed) = (self.unix_seconds(), None);
        for some in inodes.chunks(REAPED_AT_ONCE) {
            let removals = some.iter().map(|&(inode, generation)| async move {
                self.store.remove_inode(inode, generation, mark).await
            });
            for (&(inode, generation), removed) in some.iter().zip(join_all(removals).await) {
                match removed {
                    Ok(()) => self.epochs.borrow_mut().forget(inode, generation),
                    // To ask for it again and again would stand in the way of others.
                    Err(error @ ObjectError::Left { .. }) => self.lines.say(&error.to_string()),
                    Err(error) => failed = Some(self.failed("reap", &error)),
                }
            }
        }
        failed.map_or(Ok(DataReply::Done), Err)
    }

    /// Refuses a session's calls below `epoch`; durable when it completes. Calls that are under way
    /// are refused at their next change.
    pub(crate) async fn fence(&self, session: u64, epoch: u32) -> Outcome {
        if session == 0 {
            return Err(Errno::EINVAL.into());
        }
        self.fenced.set(self.world.now());
        let fenced = self.store.fence(session, epoch, self.unix_seconds()).await;
        fenced.map_err(|error| self.failed("fence", &error))?;
        Ok(DataReply::Done)
    }

    pub(crate) fn status(&self) -> Outcome {
        Ok(DataReply::Status(self.report()?))
    }

    /// Forgets old tombstones, from time to time.
    pub(crate) async fn sweep(&self) {
        while !self.stopping.get() {
            self.store.expire(self.unix_seconds().saturating_sub(TOMBSTONE_SECONDS));
            self.world.sleep(SWEEP).await;
        }
    }

    fn unix_seconds(&self) -> u64 {
        u64::try_from(self.world.unix_nanos()).unwrap_or(0) / 1_000_000_000
    }
}
