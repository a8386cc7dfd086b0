//! Makes objects at other servers of a group what they are here, by comparing checksums of blocks.

use std::ops::Range;

use ropewalk_store::objects::{ObjectId, ReadOutcome, UNKNOWN};
use ropewalk_wire::fs::data::{
    BLOCK_BYTES, DataReply, DataRequest, DataResult, FileId, ObjectName, ObjectRange,
};
use ropewalk_wire::fs::group::Group;
use ropewalk_wire::fs::value::Errno;
use ropewalk_wire::fs::{decode, encode};

use super::blocks::{Target, range_of, runs};
use super::mend::Own;
use super::order::{Change, Held, To, blocks_of};
use crate::config::Defect;
use crate::failure::Failure;
use crate::server::Inner;
use crate::write::object;

/// The outcome of a comparison with the blocks of another server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Leveled {
    /// Nothing stands against that the blocks are equal: all of them can be read here.
    pub readable: bool,
    /// Blocks that were other ones there.
    pub changed: u64,
}

impl Leveled {
    /// Nothing had to be done.
    const DONE: Leveled = Leveled { readable: true, changed: 0 };
}

/// The form of a block's checksum by which blocks are compared; 0 for a hole.
fn entry(table: &[u32], block: u32) -> u32 {
    table.get(block as usize).copied().unwrap_or(0)
}

impl Inner {
    /// After a change that failed here and may be done in part: these ranges become the same everywhere. They are locked.
    pub(crate) async fn level_ranges(
        &self,
        file: FileId,
        pieces: &[ObjectRange],
    ) -> Result<(), Failure> {
        for piece in pieces {
            let (group, object) = (piece.group, object(file, piece.stripe));
            for server in self.members(group) {
                let target = Target { group, object, server };
                self.level(target, blocks_of(file, piece).1, false).await?;
            }
        }
        Ok(())
    }

    /// Makes an object equal at a server, as far as the server is in the group.
    pub(super) async fn even_out(&self, target: Target) -> Result<Leveled, Failure> {
        let blocks = (self.store.object_bytes() / u64::from(BLOCK_BYTES)) as u32;
        let _guard = self.mirror.locks.lock(vec![(target.object, 0..blocks)]).await;
        self.level(target, 0..blocks, false).await
    }

    /// Makes blocks, which are locked, equal at a server. `read`: the server compares its blocks with their checksums.
    pub(super) async fn level(
        &self,
        target: Target,
        blocks: Range<u32>,
        read: bool,
    ) -> Result<Leveled, Failure> {
        let Some(theirs) = self.table_of(target, read).await? else { return Ok(Leveled::DONE) };
        if theirs.is_some() && self.mirror.defect == Some(Defect::LevelsUnseen) {
            return Ok(Leveled::DONE);
        }
        let own = Own { group: target.group, object: target.object };
        let (own, _) = self.mend(own, blocks.clone(), false).await?;
        let Some(own) = own else {
            // Nothing was written here: there it reads as zeros.
            let end = theirs.as_ref().map_or(0, |theirs| theirs.len() as u32);
            let extra = (blocks.start..blocks.end.min(end))
                .filter(|it| entry(theirs.as_deref().unwrap_or(&[]), *it) != 0);
            let extra: Vec<u32> = extra.collect();
            let changed = extra.len() as u64;
            self.clear(target, extra).await?;
            return Ok(Leveled { changed, ..Leveled::DONE });
        };
        if theirs.is_none() && own.iter().all(|entry| *entry == 0) {
            // It is there without a byte: so it has to be there, too.
            self.bring(target, 0..1).await?;
            self.clear(target, vec![0]).await?;
            return Ok(Leveled::DONE);
        }
        let theirs = theirs.unwrap_or_default();
        let end = blocks.end.min(own.len().max(theirs.len()) as u32);
        let differ = |block: &u32| entry(&own, *block) != entry(&theirs, *block);
        let (mut holes, mut bring, mut readable) = (Vec::new(), Vec::new(), true);
        for block in (blocks.start..end).filter(differ) {
            match entry(&own, block) {
                0 => holes.push(block),
                UNKNOWN => readable = false,
                _ => bring.push(block),
            }
        }
        let mut changed = holes.len() as u64;
        self.clear(target, holes).await?;
        for run in runs(&bring) {
            if self.bring(target, run.clone()).await? {
                changed += run.len() as u64;
                continue;
            }
            readable = false;
            // All but the damaged ones.
            for block in run {
                changed += u64::from(self.bring(target, block..block + 1).await?);
            }
        }
        Ok(Leveled { readable, changed })
    }

    /// The table of an object at a server. None: the group does without the server; within it None: no such object.
    async fn table_of(
        &self,
        target: Target,
        read: bool,
    ) -> Result<Option<Option<Vec<u32>>>, Failure> {
        let Target { group, object, server } = target;
        let ObjectId { inode, generation, stripe } = object;
        let request =
            DataRequest::Table { object: ObjectName { inode, generation, stripe }, group, read };
        let Some(body) = self.ask_server(group, server, &request).await? else { return Ok(None) };
        match decode::<DataResult<'_>>(&body) {
            Ok(Ok(DataReply::Table { entries })) => Ok(Some(entries.map(|entries| {
                let number = |four: &[u8]| u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
                entries.0.chunks_exact(4).map(number).collect()
            }))),
            _ => Err(Errno::EPROTO.into()),
        }
    }

    /// The body of a server's answer; None: the group does without it.
    pub(super) async fn ask_server(
        &self,
        group: Group,
        server: u32,
        request: &DataRequest<'_>,
    ) -> Result<Option<Vec<u8>>, Failure> {
        let mut body = Vec::new();
        encode(request, &mut body);
        let mut sent = self.send(group, server, body.into());
        self.answer_of(group, server, &mut sent).await
    }

    /// Blocks of an object read as zeros at a server.
    async fn clear(&self, target: Target, blocks: Vec<u32>) -> Result<(), Failure> {
        for run in runs(&blocks) {
            let (file, range) = range_of(target, run);
            let pieces = &[range];
            let change = Change { group: target.group, file, pieces, source: None, checksums: &[] };
            self.copy(&change, To::One(target.server)).await?;
        }
        Ok(())
    }

    /// Sends blocks of an object to a server. False where they cannot be read.
    async fn bring(&self, target: Target, blocks: Range<u32>) -> Result<bool, Failure> {
        let (file, range) = range_of(target, blocks);
        let mut lent = self.mirror.outgoing.buffer(range.len).await?;
        let mut sums = Vec::new();
        let read =
            self.store.read(target.object, u64::from(range.offset), &mut lent.buffer, &mut sums);
        match read {
            Ok(ReadOutcome::Present { .. }) => {}
            Ok(ReadOutcome::Absent) => return Ok(true),
            Err(error) => {
                self.failed("copy", &error);
                return Ok(false);
            }
        }
        let sums: Vec<u8> = sums.iter().flat_map(|sum| sum.to_le_bytes()).collect();
        let to = To::One(target.server);
        self.copy_bytes(file, &[range], Held::Lent(lent), &sums, to).await.map(|()| true)
    }
}
