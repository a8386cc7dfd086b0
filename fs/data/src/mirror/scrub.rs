//! The scrub: reads what lies on the disk, at a bounded rate, before somebody needs it.
//!
//! A server looks at the objects of groups that it orders, and at those that are here alone. Blocks that do not match their
//! checksums are written again from another member; so are those of the other members, and blocks in which the members
//! differ. One round ends where it began; the next one begins after a pause.

use std::rc::Rc;
use std::time::Duration;

use ropewalk_store::objects::{ObjectError, ObjectId, ObjectInfo, UNKNOWN};
use ropewalk_wire::fs::data::{BLOCK_BYTES, DataReply, Scrubbed};
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::head::Status;

use super::blocks::Target;
use super::mend::{Mended, Own};
use crate::config::Scrub;
use crate::failure::Failure;
use crate::server::Inner;

/// An administrator's request is answered after so long.
const TIME_MAX: Duration = Duration::from_millis(500);

/// The least pause between two rounds, for a server with little to read.
const PAUSE_MIN: Duration = Duration::from_millis(500);

impl Inner {
    /// Scrubs until this server stops.
    pub(crate) async fn scrub(self: Rc<Self>, scrub: Scrub) {
        // From anywhere: a server that is started again and again comes to all objects nevertheless.
        let inode = self.world.random_u64();
        let anywhere = ObjectId { inode, generation: 0, stripe: 0 };
        let mut from = Some(anywhere);
        while !self.stopping.get() {
            if self.groups.borrow().epoch() == 0 {
                // Nobody knows yet which groups have other members.
                self.world.sleep(PAUSE_MIN).await;
                continue;
            }
            self.scrub_from(from, scrub).await;
            if from.take().is_none() {
                self.activities.scrubbed_round();
                self.world.sleep(scrub.pause.max(PAUSE_MIN)).await;
            }
        }
    }

    /// Scrubs the objects that come after one, to the end.
    async fn scrub_from(&self, after: Option<ObjectId>, scrub: Scrub) {
        let listing = match self.store.list(after) {
            Ok(listing) => listing,
            Err(error) => {
                self.failed("list", &error);
                return;
            }
        };
        for info in listing {
            if self.stopping.get() {
                return;
            }
            let begin = self.world.now();
            let bytes = match info {
                // An object that cannot be compared now is met again in the next round.
                Ok(info) => self.scrub_object(&info).await.map_or(0, |(bytes, _)| bytes),
                Err(error) => {
                    // Nobody knows its group here. The orderer misses it when it compares the copies.
                    self.failed("scrub", &error);
                    0
                }
            };
            self.activities.scrubbed(bytes);
            let share = bytes.max(u64::from(BLOCK_BYTES)) * 1_000_000 / scrub.bytes_per_second;
            self.world.sleep_until(begin + Duration::from_micros(share)).await;
        }
    }

    /// Scrubs some objects after one, as fast as they are read, for an administrator who asks for the next ones then.
    pub(crate) async fn scrub_some(
        &self,
        after: Option<(u64, u32, u32)>,
        bytes_max: u64,
    ) -> Result<DataReply<'static>, Failure> {
        if self.groups.borrow().epoch() == 0 {
            return Err(Failure::Status(Status::Unavailable));
        }
        let begin = self.world.now();
        let mut all = Scrubbed { after, ..Scrubbed::default() };
        let from = after.map(|(inode, generation, stripe)| ObjectId { inode, generation, stripe });
        let listing = self.store.list(from).map_err(|error| self.failed("list", &error))?;
        for info in listing {
            let object = match info {
                Ok(info) => {
                    match self.scrub_object(&info).await {
                        Ok((bytes, Mended { mended, lost })) => {
                            self.activities.scrubbed(bytes);
                            all.bytes += bytes;
                            all.mended += mended;
                            all.lost += lost;
                        }
                        Err(_) => all.passed += 1,
                    }
                    info.object
                }
                Err(
                    ref
                    error @ (ObjectError::Header { object } | ObjectError::Older { object, .. }),
                ) => {
                    self.failed("scrub", error);
                    all.passed += 1;
                    object
                }
                Err(error) => return Err(self.failed("list", &error)),
            };
            all.seen += 1;
            all.after = Some((object.inode, object.generation, object.stripe));
            let late = self.world.now().since(begin) >= TIME_MAX;
            if late || all.bytes >= bytes_max || self.stopping.get() {
                return Ok(DataReply::Scrubbed(all));
            }
        }
        Ok(DataReply::Scrubbed(Scrubbed { after: None, ..all }))
    }

    /// Compares an object with its checksums, and with the other members' copies. Returns the bytes that were read here, and the
    /// blocks that were damaged.
    async fn scrub_object(&self, info: &ObjectInfo) -> Result<(u64, Mended), Failure> {
        let object = info.object;
        let blocks = (self.store.object_bytes() / u64::from(BLOCK_BYTES)) as u32;
        let Some(group) = info.group.get().map(Group::from_number) else {
            return self.look_for_damage(info, blocks).await;
        };
        let (serves, mirrored) = {
            let groups = self.groups.borrow();
            (groups.serves(group), groups.are_mirrored([group]))
        };
        match (serves, mirrored) {
            (true, true) => {}
            // The orderer has it done.
            (false, true) => return Ok((0, Mended::default())),
            (_, false) if group.band().is_none() || self.groups.borrow().serves(group) => {
                return self.look_for_damage(info, blocks).await;
            }
            // Of a group that is elsewhere by now.
            (_, false) => return Ok((0, Mended::default())),
        }
        let _guard = self.mirror.locks.lock(vec![(object, 0..blocks)]).await;
        if !self.groups.borrow().serves(group) {
            return Err(Failure::Superseded);
        }
        let (_, mut found) = self.mend(Own { group, object }, 0..blocks, true).await?;
        for server in self.members(group) {
            let target = Target { group, object, server };
            let leveled = self.level(target, 0..blocks, true).await?;
            if leveled.changed > 0 {
                self.lines.say(&format!(
                    "object {object}: {} blocks of the copy at data server {server} were damaged or \
                     others, and were written again",
                    leveled.changed
                ));
                self.activities.mended(leveled.changed, 0);
                found.mended += leveled.changed;
            }
        }
        Ok((info.bytes, found))
    }

    /// Reads an object of which there is one copy.
    async fn look_for_damage(
        &self,
        info: &ObjectInfo,
        blocks: u32,
    ) -> Result<(u64, Mended), Failure> {
        let object = info.object;
        let table = self.table_here(object, 0..blocks, true).await;
        let table = table.map_err(|error| self.failed("scrub", &error))?.unwrap_or_default();
        let lost = table.iter().filter(|it| **it == UNKNOWN).count() as u64;
        if lost > 0 {
            self.lines.say(&format!(
                "object {object}: {lost} blocks are damaged, and there is no other copy: restore the \
                 file from a backup, and check the disk; 'ropewalk check --read' names it"
            ));
            self.activities.mended(0, lost);
        }
        Ok((info.bytes, Mended { mended: 0, lost }))
    }
}
