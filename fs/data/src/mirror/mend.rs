//! Blocks that cannot be read here are written again from another member.
//!
//! Acknowledged writes are at all members, and the blocks are locked: another member has the right bytes. A crash in
//! between leaves either the damaged block or the right one.

use std::ops::Range;
use std::time::Duration;

use ropewalk_base::task::yield_now;
use ropewalk_store::objects::{GroupTag, Grouped, ObjectError, ObjectId, UNKNOWN};
use ropewalk_wire::fs::data::{
    BLOCK_BYTES, DataReply, DataRequest, DataResult, EMBEDDED_BYTES_MAX, FileId, Found, ObjectRange,
};
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::head::Status;
use ropewalk_wire::fs::value::Errno;
use ropewalk_wire::fs::{decode, encode};

use super::blocks::{BY, Target, is_head_damage, range_of, runs};
use super::order::blocks_of;
use super::peers::Sent;
use crate::failure::Failure;
use crate::plan::{self, CHUNK_BYTES};
use crate::server::Inner;

/// A member that does not answer for so long is not asked for further bytes.
const FETCH_LIMIT: Duration = Duration::from_secs(1);
/// Blocks that are fetched together: they travel in the reply.
const FETCHED_BLOCKS: usize = (EMBEDDED_BYTES_MAX / BLOCK_BYTES) as usize;

/// An object here, and the group that it belongs to.
#[derive(Debug, Clone, Copy)]
pub(super) struct Own {
    pub group: Group,
    pub object: ObjectId,
}

/// The fate of blocks that another member was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fetched {
    Written,
    /// All members answered, and none has them.
    Nowhere,
    /// A member did not answer, or another server orders the group by now.
    Unknown,
}

/// The caller comes again, and soon.
const LATER: Failure = Failure::Status(Status::Unavailable);

/// The blocks of an object that were damaged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Mended {
    /// Written again.
    pub mended: u64,
    /// No member gave them.
    pub lost: u64,
}

impl Inner {
    /// Writes blocks of ranges again that cannot be read here. True where there were some and none is left: then it is worth to
    /// read once more. An error: this server gives up the group, in which it has lost an object.
    pub(crate) async fn mend_ranges(
        &self,
        file: FileId,
        pieces: &[ObjectRange],
    ) -> Result<bool, Failure> {
        let mirrored = pieces.iter().any(|piece| !self.members(piece.group).is_empty());
        if !mirrored {
            return Ok(false);
        }
        let _guard = self.lock(file, pieces).await;
        if !pieces.iter().all(|piece| self.groups.borrow().serves(piece.group)) {
            return Err(LATER);
        }
        let mut all = Mended::default();
        for piece in pieces {
            let (object, blocks) = blocks_of(file, piece);
            let own = Own { group: piece.group, object };
            let Mended { mended, lost } = self.mend(own, blocks, true).await?.1;
            (all.mended, all.lost) = (all.mended + mended, all.lost + lost);
        }
        Ok(all.mended > 0 && all.lost == 0)
    }

    /// The table of an object after damaged blocks among these, which are locked, were fetched from other members. `read`: each block
    /// is read, and compared with its checksum. `None` in it: there is no such object.
    pub(super) async fn mend(
        &self,
        own: Own,
        blocks: Range<u32>,
        read: bool,
    ) -> Result<(Option<Vec<u32>>, Mended), Failure> {
        let table = match self.table_here(own.object, blocks.clone(), read).await {
            Ok(table) => table,
            Err(error) if is_head_damage(&error) && !self.members(own.group).is_empty() => {
                return Err(self.step_down(own.group, &error));
            }
            Err(error) => return Err(self.failed("compare", &error)),
        };
        let Some(mut table) = table else { return Ok((None, Mended::default())) };
        let end = blocks.end.min(table.len() as u32);
        let unknown = |it: &u32| table[*it as usize] == UNKNOWN;
        let damaged: Vec<u32> = (blocks.start.min(end)..end).filter(unknown).collect();
        let mut found = Mended::default();
        let ObjectId { inode, generation, .. } = own.object;
        let cut = (ObjectId { inode, generation, stripe: 0 }, 0..1);
        if !damaged.is_empty() && !self.mirror.cuts.are_free(&[cut]) {
            // The other members may still have what is being cut away.
            return Err(LATER);
        }
        for run in runs(&damaged) {
            for some in run.clone().collect::<Vec<_>>().chunks(FETCHED_BLOCKS) {
                let some = some[0]..some[some.len() - 1] + 1;
                match self.fetch(own, some.clone()).await {
                    Fetched::Written => found.mended += some.len() as u64,
                    Fetched::Nowhere => found.lost += some.len() as u64,
                    Fetched::Unknown => return Err(LATER),
                }
            }
        }
        if found.mended > 0 {
            let again = self.store.table(own.object);
            let again = again.map_err(|error| self.failed("compare", &error))?.unwrap_or_default();
            for block in damaged {
                table[block as usize] = again.get(block as usize).copied().unwrap_or(UNKNOWN);
            }
            let Own { object, .. } = own;
            self.lines.say(&format!(
                "object {object}: {} damaged blocks were written again from another data server",
                found.mended
            ));
        }
        if found.lost > 0 {
            let Own { object, .. } = own;
            self.lines.say(&format!(
                "object {object}: {} damaged blocks are lost, since no other data server has them: \
                 restore the file from a backup, and check the disk",
                found.lost
            ));
        }
        self.activities.mended(found.mended, found.lost);
        Ok((Some(table), found))
    }

    /// The table of an object. `read`: blocks of the range that do not match their checksums are [`UNKNOWN`] in it, too.
    pub(super) async fn table_here(
        &self,
        object: ObjectId,
        blocks: Range<u32>,
        read: bool,
    ) -> Result<Option<Vec<u32>>, ObjectError> {
        let Some(mut table) = self.store.table(object)? else { return Ok(None) };
        if !read {
            return Ok(Some(table));
        }
        let (mut at, end) = (blocks.start, blocks.end.min(table.len() as u32));
        let mut most = CHUNK_BYTES / BLOCK_BYTES;
        while at < end {
            let some = most.min(end - at);
            let mut bytes = self.scratch.take();
            bytes.resize((some * BLOCK_BYTES) as usize, 0);
            let offset = u64::from(at) * u64::from(BLOCK_BYTES);
            let found = self.store.read(object, offset, &mut bytes, &mut Vec::new());
            self.scratch.replace(bytes);
            match found {
                Ok(_) => {
                    at += some;
                    most = CHUNK_BYTES / BLOCK_BYTES;
                }
                Err(error) if is_head_damage(&error) => return Err(error),
                // Which of them it is, is found one by one.
                Err(_) if some > 1 => most = 1,
                Err(_) => {
                    table[at as usize] = UNKNOWN;
                    at += 1;
                }
            }
            yield_now().await;
        }
        Ok(Some(table))
    }

    /// Gets a few blocks from another member and writes them here.
    async fn fetch(&self, own: Own, blocks: Range<u32>) -> Fetched {
        let target = Target { group: own.group, object: own.object, server: 0 };
        let (file, range) = range_of(target, blocks);
        let request = DataRequest::Read { file, pieces: vec![range], bulk: None, verify: true };
        let mut body = Vec::new();
        encode(&request, &mut body);
        // Another orderer, in between, may have written newer bytes here.
        let since = || self.groups.borrow().ordered(own.group).map(|it| it.since);
        let begun = since();
        for server in self.members(own.group) {
            let asked = self.send(own.group, server, body.clone().into());
            let body = match self.world.timeout(FETCH_LIMIT, asked).await {
                Some(Some(Sent::Done(body))) => body,
                // It has the object, and cannot read it.
                Some(Some(Sent::Refused(Errno::EIO))) => continue,
                _ => return Fetched::Unknown,
            };
            let Ok(Ok(DataReply::Read { found, bytes, checksums })) =
                decode::<DataResult<'_>>(&body)
            else {
                continue;
            };
            let count = (range.len / BLOCK_BYTES) as usize;
            let Ok(sums) = plan::checksums(checksums.0, count) else { continue };
            if found != [Found::Present] || bytes.0.len() != range.len as usize {
                continue;
            }
            if since() != begun {
                return Fetched::Unknown;
            }
            let group = GroupTag::new(own.group.number());
            let object = Grouped { object: own.object, group };
            match self.store.write(object, u64::from(range.offset), &[bytes.0], &sums, BY) {
                Ok(_) => return Fetched::Written,
                Err(error) => drop(self.failed("mend", &error)),
            }
        }
        Fetched::Nowhere
    }

    /// Leaves a group of which this server has lost an object as a whole: as a newcomer it gets all of it again.
    fn step_down(&self, group: Group, error: &ObjectError) -> Failure {
        self.lines.say(&format!(
            "{error}; the other data servers of its group go on, and this one gets the object again"
        ));
        // The caller has locks: nobody waits for the metadata server under them.
        let inner = self.this();
        self.world.spawn(async move { inner.leave_groups(&[group]).await });
        // Whoever asked comes again, and soon knows where to.
        LATER
    }
}
