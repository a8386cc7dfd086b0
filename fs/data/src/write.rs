//! Writes: bytes come with the request or are got from the client, and go to the store.

use ropewalk_store::objects::{GroupTag, Grouped, ObjectId, WriteEpoch};
use ropewalk_wire::fs::data::{DataReply, FileId};

use crate::bulk::{Moving, Region};
use crate::failure::Failure;
use crate::mirror::Held;
use crate::plan::{Chunk, Plan};
use crate::server::{Call, Inner};

/// A write that was checked.
pub(crate) struct Write {
    pub file: FileId,
    pub plan: Plan,
    pub checksums: Vec<u32>,
}

pub(crate) fn object(file: FileId, stripe: u32) -> ObjectId {
    ObjectId { inode: file.inode, generation: file.generation, stripe }
}

impl Inner {
    /// A write whose bytes are here, where the store has room.
    pub(crate) fn write_bytes(
        &self,
        call: Call,
        write: &Write,
        bytes: &[u8],
    ) -> Result<DataReply<'static>, Failure> {
        let mut checksums = &write.checksums[..];
        for chunk in write.plan.chunks() {
            let bytes = &bytes[chunk.start as usize..][..chunk.len as usize];
            self.write_chunk(call, write, &chunk, bytes, &mut checksums)?;
        }
        Ok(DataReply::Written)
    }

    /// A write to groups of several members whose bytes came with the call.
    pub(crate) async fn write_copied(
        &self,
        call: Call,
        write: &Write,
        bytes: &[u8],
    ) -> Result<DataReply<'static>, Failure> {
        let mut checksums = &write.checksums[..];
        for chunk in write.plan.chunks() {
            let held = Held::Small(&bytes[chunk.start as usize..][..chunk.len as usize]);
            self.room().await?;
            self.write_mirrored(call, write, &chunk, held, &mut checksums).await?;
        }
        Ok(DataReply::Written)
    }

    /// A write whose bytes are here, when the store has room.
    pub(crate) async fn write_later(
        &self,
        call: Call,
        write: &Write,
        bytes: &[u8],
    ) -> Result<DataReply<'static>, Failure> {
        self.room().await?;
        self.write_bytes(call, write, bytes)
    }

    /// A write whose bytes are at the client. The next chunk is under way while one is written.
    pub(crate) async fn write_bulk(
        &self,
        call: Call,
        write: &Write,
        region: Region,
    ) -> Result<DataReply<'static>, Failure> {
        let chunks = write.plan.chunks();
        let mirrored = self.are_mirrored(&write.plan.pieces);
        let mut checksums = &write.checksums[..];
        let mut ahead: Option<Moving> = None;
        for (index, chunk) in chunks.iter().enumerate() {
            let moving = match ahead.take() {
                Some(moving) => moving,
                None => {
                    let lent = self.transfers.buffer(chunk.len).await?;
                    self.transfers.get(region, chunk.start, lent)
                }
            };
            if let Some(next) = chunks.get(index + 1) {
                let lent = self.transfers.spare_buffer(next.len);
                ahead = lent.map(|lent| self.transfers.get(region, next.start, lent));
            }
            let lent = self.transfers.end(moving).await?;
            self.room().await?;
            if mirrored {
                let held = Held::Lent(lent);
                self.write_mirrored(call, write, chunk, held, &mut checksums).await?;
            } else {
                self.write_chunk(call, write, chunk, &lent.buffer, &mut checksums)?;
            }
        }
        Ok(DataReply::Written)
    }

    /// Writes the bytes of one chunk, if the call may still do that. The store compares them with
    /// their checksums first, part by part.
    pub(crate) fn write_chunk(
        &self,
        call: Call,
        write: &Write,
        chunk: &Chunk,
        mut bytes: &[u8],
        checksums: &mut &[u32],
    ) -> Result<(), Failure> {
        self.admit_change(call, write.file, &write.plan.pieces)?;
        let by = call.write_epoch();
        for part in &chunk.parts {
            let (own, rest) = bytes.split_at(part.len as usize);
            let (sums, more) = checksums.split_at(part.blocks());
            (bytes, *checksums) = (rest, more);
            let group = GroupTag::new(write.plan.pieces[part.piece].group.number());
            let object = Grouped { object: object(write.file, part.stripe), group };
            let written = self.store.write(object, u64::from(part.offset), &[own], sums, by);
            written.map_err(|error| self.failed("write", &error))?;
        }
        self.activities.wrote(chunk.len);
        Ok(())
    }
}

impl Call {
    /// The session and epoch in whose name the store is changed.
    pub(crate) fn write_epoch(&self) -> WriteEpoch {
        WriteEpoch { session: self.head.session, epoch: self.head.epoch }
    }
}
