//! Bytes of groups that went elsewhere are given up, by an order of a person (docs/design/124-moving-groups.md).
//!
//! Invariants:
//! * nothing is given up by a map that is not noted durably here: metadata that know an older one are refused from then on;
//! * nothing is given up unless the metadata server says, by the same map, that all groups have all their members;
//! * right before an object is given up this server is neither a member of its group nor a newcomer;
//! * blocks that are given up are lost, and no holes: if somebody looks for them after all, he gets an error or another copy;
//! * an object that does not say its group, or cannot be read, stays.

use std::time::Duration;

use ropewalk_base::level::Level;
use ropewalk_base::task::yield_now;
use ropewalk_store::objects::{ObjectError, ObjectId, ObjectInfo};
use ropewalk_wire::fs::data::{Cleaned, DataReply};
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::head::Status;
use ropewalk_wire::fs::value::Errno;

use crate::failure::Failure;
use crate::mirror::BY;
use crate::server::Inner;

/// Objects that one request looks at.
const SEEN_MAX: u64 = 4096;
/// Objects that one request gives up.
const REMOVED_MAX: usize = 256;
/// A request is answered after so long.
const TIME_MAX: Duration = Duration::from_millis(500);
/// Objects that are looked at, or given up, before other tasks run.
const BETWEEN_YIELDS: u64 = 8;

/// The order of a person.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    /// The map that he knows.
    pub map: u32,
    /// Else the objects are counted only.
    pub remove: bool,
    /// He knows that the metadata were restored.
    pub restored: bool,
}

/// The place of an object.
enum Standing {
    /// This server is in its group, or nothing was ever written.
    Stays,
    /// It was given up before.
    Empty,
    /// Nobody looks for it here.
    Left,
    /// Nobody knows the group.
    Unclear,
}

impl Inner {
    /// Goes through some objects after `after`, and gives those up whose groups are elsewhere.
    pub(crate) async fn clean(
        &self,
        wanted: Wanted,
        after: Option<(u64, u32, u32)>,
    ) -> Result<DataReply<'static>, Failure> {
        let map = self.may_clean(wanted).await?;
        let (mut cleaned, mut given_up) = (Cleaned { after, ..Cleaned::default() }, Vec::new());
        let looked = self.clean_some(wanted, map, (&mut cleaned, &mut given_up)).await;
        // Also after an error: those before it are given up.
        let freed = self.store.free_given_up(&given_up).await;
        freed.map_err(|error| self.failed("give up", &error))?;
        let is_end = looked?;
        self.tell_cleaned(wanted, after.is_none(), is_end, &cleaned);
        if !is_end && cleaned.seen == 0 {
            // Else it would look like the end.
            return Err(Failure::Status(Status::Unavailable));
        }
        if is_end {
            cleaned.after = None;
            if wanted.remove && wanted.restored {
                // All that the restored map did not know is gone.
                self.map_note.forget_leap(&self.world).await.map_err(|_| Errno::EIO)?;
            }
        }
        Ok(DataReply::Cleaned(cleaned))
    }

    /// Tells the log when bytes begin to go, and what has gone at the end.
    fn tell_cleaned(&self, wanted: Wanted, is_begin: bool, is_end: bool, some: &Cleaned) {
        if !wanted.remove {
            return;
        }
        let note = Level::Note.mark();
        if is_begin {
            self.freed.set((0, 0));
            let how = if wanted.restored { ", also after a restore of the metadata" } else { "" };
            self.lines.say(&format!(
                "{note}an administrator has the bytes of groups freed that this server gave away{how}"
            ));
        }
        let (objects, bytes) = self.freed.get();
        let (objects, bytes) = (objects + some.objects, bytes + some.bytes);
        self.freed.set((objects, bytes));
        if is_end {
            self.lines.say(&format!("{note}freed {bytes} bytes of {objects} objects"));
        }
    }

    /// Whether this server and the metadata server know by the same map that nothing is missing. Returns its epoch.
    async fn may_clean(&self, wanted: Wanted) -> Result<u32, Failure> {
        let (Some(herald), map) = (&self.herald, self.groups.borrow().epoch()) else {
            return Err(Errno::EOPNOTSUPP.into());
        };
        let is_told = self.telling.reported.get() == herald.met();
        let has_left = self.groups.borrow().has_left_first_format();
        if map != 0 && !has_left {
            return Err(Errno::EOPNOTSUPP.into());
        }
        if map < wanted.map || !is_told {
            self.map_wanted.notify_all();
            return Err(Failure::Status(Status::Unavailable));
        }
        match herald.may_clean(map).await {
            Some(Ok(())) => {}
            Some(Err(Errno::EAGAIN)) | None => {
                self.map_wanted.notify_all();
                return Err(Failure::Status(Status::Unavailable));
            }
            Some(Err(errno)) => return Err(errno.into()),
        }
        self.note_map().await.map_err(|_| Errno::EIO)?;
        if wanted.remove {
            self.room().await?;
        }
        if self.map_note.noted().leap != 0 && !wanted.restored {
            // The map of a dump does not know the groups that came here after it was made.
            return Err(Errno::ESTALE.into());
        }
        Ok(map)
    }

    /// Looks at objects until it is enough for one request; whether there are no further ones.
    async fn clean_some(
        &self,
        wanted: Wanted,
        map: u32,
        (cleaned, given_up): (&mut Cleaned, &mut Vec<ObjectId>),
    ) -> Result<bool, Failure> {
        let begin = self.world.now();
        let after = cleaned.after;
        let after = after.map(|(inode, generation, stripe)| ObjectId { inode, generation, stripe });
        let listing = self.store.list(after).map_err(|error| self.failed("list", &error))?;
        for info in listing {
            if self.groups.borrow().epoch() != map {
                // The next request asks anew.
                return Ok(false);
            }
            let object = match info {
                Ok(info) => {
                    self.clean_object(wanted, &info, (&mut *cleaned, &mut *given_up))?;
                    info.object
                }
                Err(
                    ref
                    error @ (ObjectError::Header { object } | ObjectError::Older { object, .. }),
                ) => {
                    self.failed("list", error);
                    cleaned.unclear += 1;
                    object
                }
                Err(error) => return Err(self.failed("list", &error)),
            };
            cleaned.seen += 1;
            cleaned.after = Some((object.inode, object.generation, object.stripe));
            let late = self.world.now().since(begin) >= TIME_MAX;
            if cleaned.seen >= SEEN_MAX || given_up.len() >= REMOVED_MAX || late {
                return Ok(false);
            }
            if cleaned.seen % BETWEEN_YIELDS == 0 {
                yield_now().await;
            }
        }
        Ok(true)
    }

    /// One object, with nothing in between the judgement and the end of its bytes.
    fn clean_object(
        &self,
        wanted: Wanted,
        info: &ObjectInfo,
        (cleaned, given_up): (&mut Cleaned, &mut Vec<ObjectId>),
    ) -> Result<(), Failure> {
        match self.standing(info) {
            Standing::Stays => return Ok(()),
            Standing::Empty => {
                // Its room may not be free yet.
                if wanted.remove {
                    given_up.push(info.object);
                }
                return Ok(());
            }
            Standing::Unclear => {
                cleaned.unclear += 1;
                return Ok(());
            }
            Standing::Left => {}
        }
        if wanted.remove {
            let lost = self.store.give_up(info.object, BY);
            lost.map_err(|error| self.failed("give up", &error))?;
            given_up.push(info.object);
        }
        cleaned.objects += 1;
        cleaned.bytes += info.bytes;
        Ok(())
    }

    fn standing(&self, info: &ObjectInfo) -> Standing {
        if info.end == 0 {
            return Standing::Stays;
        }
        match info.group.get().map(Group::from_number) {
            Some(group) if self.groups.borrow().is_in(group) => Standing::Stays,
            Some(group) if group.band().is_some() && info.bytes == 0 => Standing::Empty,
            Some(group) if group.band().is_some() => Standing::Left,
            _ if info.bytes == 0 => Standing::Stays,
            _ => Standing::Unclear,
        }
    }
}
