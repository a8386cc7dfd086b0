//! Bytes between a client's memory and the object store.
//!
//! The server moves bulk at its own pace: it gets what is written and puts what is read, in pieces,
//! the next one while the one before is with the store.

use ropewalk_base::checksum::crc32c;
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::PoolBuffer;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{RemoteKey, RemoteLayout};
use ropewalk_net::{Direction, PeerId};
use ropewalk_rpc::Incoming;
use ropewalk_store::objects::{ReadOutcome, WriteEpoch};
use ropewalk_wire::fs::data::{
    BLOCK_BYTES, Bulk, DataReply, DataResult, EMBEDDED_BYTES_MAX, FileId, Found, ObjectRange,
    Source,
};
use ropewalk_wire::fs::encode;
use ropewalk_wire::fs::value::{Bytes, Errno};

use crate::handler::object;
use crate::server::{DataServer, PIECE_BYTES};

/// How many checksums a range has: one for each block that it touches.
fn checksum_count(piece: &ObjectRange) -> usize {
    let first = piece.offset / BLOCK_BYTES;
    let last = (piece.offset + (piece.len - 1)) / BLOCK_BYTES;
    (last - first + 1) as usize
}

/// A part of a range, cut at block borders but for the range's own ends.
struct Step {
    range: ObjectRange,
    /// First byte within the transfer.
    at: usize,
    /// First checksum within the request.
    sums: usize,
}

/// Cuts ranges into steps of at most `PIECE_BYTES`.
fn steps(pieces: &[ObjectRange]) -> Vec<Step> {
    let mut steps = Vec::new();
    let (mut at, mut sums) = (0, 0);
    for piece in pieces {
        let mut rest = *piece;
        while rest.len > 0 {
            let into_block = rest.offset % BLOCK_BYTES;
            let len = rest.len.min(PIECE_BYTES as u32 - into_block);
            let range = ObjectRange { stripe: rest.stripe, offset: rest.offset, len };
            let count = checksum_count(&range);
            steps.push(Step { range, at, sums });
            rest.offset += len;
            rest.len -= len;
            at += len as usize;
            sums += count;
        }
    }
    steps
}

fn key(bulk: Bulk) -> RemoteKey {
    RemoteKey { slot: SlotId::from_u64(bulk.key_slot), secret: bulk.key_secret }
}

impl DataServer {
    pub(crate) async fn write(
        &self,
        incoming: &Incoming,
        file: FileId,
        pieces: &[ObjectRange],
        source: Source<'_>,
        checksums: &[u8],
        by: WriteEpoch,
    ) -> Result<(), Errno> {
        let sums: Vec<u32> = checksums
            .chunks_exact(4)
            .map(|bytes| u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
            .collect();
        let expected: usize = pieces.iter().map(checksum_count).sum();
        let total: usize = pieces.iter().map(|piece| piece.len as usize).sum();
        if checksums.len() % 4 != 0 || sums.len() != expected {
            return Err(Errno::EINVAL);
        }
        let steps = steps(pieces);
        match source {
            Source::Embedded(bytes) => {
                if bytes.0.len() != total {
                    return Err(Errno::EINVAL);
                }
                for step in &steps {
                    let data = &bytes.0[step.at..step.at + step.range.len as usize];
                    self.store_step(file, step, data, &sums, by).await?;
                }
            }
            Source::Bulk(bulk) => {
                // The next step's bytes are on their way while this one's are stored.
                let mut next = match steps.first() {
                    Some(first) => Some(self.fetch(incoming.peer, bulk, first).await?),
                    None => None,
                };
                for (index, step) in steps.iter().enumerate() {
                    let Some((data, permit)) = next.take() else { return Err(Errno::EIO) };
                    let following = async {
                        match steps.get(index + 1) {
                            Some(step) => Some(self.fetch(incoming.peer, bulk, step).await),
                            None => None,
                        }
                    };
                    let stored = async {
                        let stored = self.store_step(file, step, &data, &sums, by).await;
                        drop(permit);
                        stored
                    };
                    let (fetched, stored) = both(following, stored).await;
                    stored?;
                    next = fetched.transpose()?;
                }
            }
        }
        self.count(|counts| counts.bytes_written += total as u64);
        Ok(())
    }

    async fn store_step(
        &self,
        file: FileId,
        step: &Step,
        data: &[u8],
        sums: &[u32],
        by: WriteEpoch,
    ) -> Result<(), Errno> {
        self.make_room().await?;
        let sums = &sums[step.sums..step.sums + checksum_count(&step.range)];
        let id = object(file, step.range.stripe);
        let written = self.store.write(id, u64::from(step.range.offset), &[data], sums, by);
        if matches!(written, Err(ropewalk_store::objects::ObjectError::Checksum { .. })) {
            self.count(|counts| counts.corrupt_arrivals += 1);
        }
        self.judge(written).map(|_| ())
    }

    /// Gets a step's bytes from the client's memory.
    async fn fetch(
        &self,
        peer: PeerId,
        bulk: Bulk,
        step: &Step,
    ) -> Result<(PoolBuffer, ropewalk_base::task::Permit), Errno> {
        let permit = self.room.acquire().await;
        let buffer = self.pool.take(step.range.len as usize).ok_or(Errno::ENOMEM)?;
        let offset = bulk.offset.checked_add(step.at as u64).ok_or(Errno::EINVAL)?;
        let layout = RemoteLayout::At(offset);
        let memory = Memory::pooled(buffer);
        let got = self.endpoint.access(Direction::Get, peer, key(bulk), layout, memory).await;
        match (got.outcome, got.memory.into_pooled()) {
            (Ok(()), Some(buffer)) => Ok((buffer, permit)),
            _ => Err(Errno::EIO),
        }
    }

    /// Serves a read; the encoded result goes to `body`.
    pub(crate) async fn read(
        &self,
        incoming: &Incoming,
        file: FileId,
        pieces: &[ObjectRange],
        bulk: Option<Bulk>,
        body: &mut Vec<u8>,
    ) {
        let mut found = Vec::with_capacity(pieces.len());
        let mut sums = Vec::new();
        let mut embedded = Vec::new();
        let outcome = self
            .read_steps(incoming, file, pieces, bulk, &mut found, &mut sums, &mut embedded)
            .await;
        let sums: Vec<u8> = sums.iter().flat_map(|sum: &u32| sum.to_le_bytes()).collect();
        let result: DataResult<'_> = outcome.map(|()| DataReply::Read {
            found,
            bytes: Bytes(&embedded),
            checksums: Bytes(&sums),
        });
        encode(&result, body);
    }

    #[expect(clippy::too_many_arguments, reason = "what a read asks and what it gathers")]
    async fn read_steps(
        &self,
        incoming: &Incoming,
        file: FileId,
        pieces: &[ObjectRange],
        bulk: Option<Bulk>,
        found: &mut Vec<Found>,
        sums: &mut Vec<u32>,
        embedded: &mut Vec<u8>,
    ) -> Result<(), Errno> {
        self.admit(file, pieces)?;
        let total: usize = pieces.iter().map(|piece| piece.len as usize).sum();
        if bulk.is_none() && total > EMBEDDED_BYTES_MAX as usize {
            return Err(Errno::EINVAL);
        }
        let mut pending = None;
        let mut last_stripe = None;
        for step in steps(pieces) {
            let permit = self.room.acquire().await;
            let mut buffer = self.pool.take(step.range.len as usize).ok_or(Errno::ENOMEM)?;
            let id = object(file, step.range.stripe);
            let offset = u64::from(step.range.offset);
            let there = match self.judge(self.store.read(id, offset, &mut buffer, sums))? {
                ReadOutcome::Present { .. } => Found::Present,
                ReadOutcome::Absent => {
                    buffer.fill(0);
                    zero_checksums(&step.range, sums);
                    Found::Absent
                }
            };
            if last_stripe != Some((step.range.stripe, step.range.offset)) {
                found.push(there);
            }
            last_stripe = Some((step.range.stripe, step.range.offset + step.range.len));
            match bulk {
                None => embedded.extend_from_slice(&buffer),
                Some(bulk) => {
                    let at = bulk.offset.checked_add(step.at as u64).ok_or(Errno::EINVAL)?;
                    let put = self.endpoint.access(
                        Direction::Put,
                        incoming.peer,
                        key(bulk),
                        RemoteLayout::At(at),
                        Memory::pooled(buffer),
                    );
                    // One put is on its way while the next step is read.
                    if let Some((put, permit)) = pending.replace((put, permit)) {
                        finish(put, permit).await?;
                    }
                }
            }
        }
        if let Some((put, permit)) = pending {
            finish(put, permit).await?;
        }
        if found.len() != pieces.len() {
            // Neighbouring pieces of one stripe were taken for one.
            self.spread(pieces, found);
        }
        self.count(|counts| counts.bytes_read += total as u64);
        Ok(())
    }

    fn spread(&self, pieces: &[ObjectRange], found: &mut Vec<Found>) {
        let mut answers = found.iter().copied();
        let mut spread = Vec::with_capacity(pieces.len());
        let mut last: Option<(u32, u32)> = None;
        let mut current = Found::Absent;
        for piece in pieces {
            if last != Some((piece.stripe, piece.offset)) {
                current = answers.next().unwrap_or(Found::Absent);
            }
            spread.push(current);
            last = Some((piece.stripe, piece.offset + piece.len));
        }
        *found = spread;
    }
}

async fn finish(
    put: ropewalk_net::local::Operation,
    permit: ropewalk_base::task::Permit,
) -> Result<(), Errno> {
    let outcome = put.await.outcome;
    drop(permit);
    outcome.map_err(|_| Errno::EIO)
}

/// Checksums of a range of zeros.
fn zero_checksums(range: &ObjectRange, sums: &mut Vec<u32>) {
    static ZEROS: [u8; BLOCK_BYTES as usize] = [0; BLOCK_BYTES as usize];
    let (mut offset, mut left) = (range.offset, range.len);
    while left > 0 {
        let run = left.min(BLOCK_BYTES - offset % BLOCK_BYTES);
        sums.push(crc32c(&ZEROS[..run as usize]));
        offset += run;
        left -= run;
    }
}

/// Both results, worked on at once.
async fn both<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    use std::task::Poll;
    let (mut a, mut b) = (std::pin::pin!(a), std::pin::pin!(b));
    let (mut left, mut right) = (None, None);
    std::future::poll_fn(move |context| {
        if left.is_none() {
            if let Poll::Ready(value) = a.as_mut().poll(context) {
                left = Some(value);
            }
        }
        if right.is_none() {
            if let Poll::Ready(value) = b.as_mut().poll(context) {
                right = Some(value);
            }
        }
        match (left.take(), right.take()) {
            (Some(left), Some(right)) => Poll::Ready((left, right)),
            (l, r) => {
                left = l;
                right = r;
                Poll::Pending
            }
        }
    })
    .await
}
