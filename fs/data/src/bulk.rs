//! The buffers through which bytes travel, and the gets and puts that fill and empty them.
//!
//! Invariants
//! * buffers are lent in turn: the request that asked first gets the next one that comes back;
//! * a request waits for a buffer only while it holds none, so requests never wait for each other
//!   in a circle; a second one, to move one chunk while another is worked on, is taken only where
//!   it is free at once;
//! * a client that never lets a transfer end holds its buffer for `LIMIT`, not longer.

use std::time::Duration;

use ropewalk_base::memory::Memory;
use ropewalk_base::pool::{Pool, PoolBuffer};
use ropewalk_base::slots::SlotId;
use ropewalk_base::task::{Permit, Semaphore};
use ropewalk_base::verb::{RemoteKey, RemoteLayout};
use ropewalk_base::world::World;
use ropewalk_net::local::{LocalEndpoint, Operation};
use ropewalk_net::{Direction, PeerId};
use ropewalk_wire::fs::data::Bulk;
use ropewalk_wire::fs::head::Status;

use crate::failure::{Failure, of_fault};
use crate::plan::CHUNK_BYTES;

/// The time limit of one get or put.
const LIMIT: Duration = Duration::from_secs(30);
/// Buffers there are at the least.
const BUFFERS_MIN: usize = 2;

/// A region of a client.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Region {
    peer: PeerId,
    key: RemoteKey,
    offset: u64,
}

impl Region {
    /// The region behind `bulk`, where `bytes` bytes do not reach beyond any address.
    pub(crate) fn new(peer: PeerId, bulk: Bulk, bytes: u32) -> Option<Region> {
        bulk.offset.checked_add(u64::from(bytes))?;
        let key = RemoteKey { slot: SlotId::from_u64(bulk.key_slot), secret: bulk.key_secret };
        Some(Region { peer, key, offset: bulk.offset })
    }
}

/// A buffer, and the turn that it is used in.
pub(crate) struct Lent {
    pub(crate) buffer: PoolBuffer,
    pub(crate) permit: Permit,
}

/// A get or put under way.
pub(crate) struct Moving {
    operation: Operation,
    permit: Permit,
    bytes: u64,
}

/// Buffers for transfers.
pub(crate) struct Transfers {
    world: World,
    endpoint: LocalEndpoint,
    pool: Pool,
    turns: Semaphore,
}

impl Transfers {
    /// With buffers of `bytes` bytes together.
    pub(crate) fn new(world: &World, endpoint: &LocalEndpoint, bytes: usize) -> Transfers {
        let buffers = (bytes / CHUNK_BYTES as usize).max(BUFFERS_MIN);
        // A transfer that was given up keeps its buffer until it has ended: some more for those.
        let budget = (buffers + buffers / 4 + 1) * CHUNK_BYTES as usize;
        Transfers {
            world: world.clone(),
            endpoint: endpoint.clone(),
            pool: Pool::with_budget(budget),
            turns: Semaphore::new(buffers),
        }
    }

    /// A buffer of `bytes` bytes, in turn. A task that holds one must not await another.
    pub(crate) async fn buffer(&self, bytes: u32) -> Result<Lent, Failure> {
        let permit = self.turns.acquire().await;
        let buffer = self.pool.take(bytes as usize);
        let buffer = buffer.ok_or(Failure::Status(Status::Unavailable))?;
        Ok(Lent { buffer, permit })
    }

    /// A buffer of `bytes` bytes where one is free and nobody waits.
    pub(crate) fn spare_buffer(&self, bytes: u32) -> Option<Lent> {
        let permit = self.turns.try_acquire()?;
        Some(Lent { buffer: self.pool.take(bytes as usize)?, permit })
    }

    /// Starts to fill the buffer from the region, `start` bytes in.
    pub(crate) fn get(&self, region: Region, start: u64, lent: Lent) -> Moving {
        self.start(Direction::Get, region, start, lent)
    }

    /// Starts to write the buffer to the region, `start` bytes in.
    pub(crate) fn put(&self, region: Region, start: u64, lent: Lent) -> Moving {
        self.start(Direction::Put, region, start, lent)
    }

    fn start(&self, direction: Direction, region: Region, start: u64, lent: Lent) -> Moving {
        let Lent { buffer, permit } = lent;
        let bytes = buffer.len() as u64;
        let Region { peer, key, offset } = region;
        let remote = RemoteLayout::At(offset + start);
        let memory = Memory::pooled(buffer);
        let operation = self.endpoint.access(direction, peer, key, remote, memory);
        Moving { operation, permit, bytes }
    }

    /// Waits until the bytes have arrived, and gives the buffer back.
    pub(crate) async fn end(&self, moving: Moving) -> Result<Lent, Failure> {
        let Moving { operation, permit, bytes } = moving;
        let unavailable = Failure::Status(Status::Unavailable);
        let completed = self.world.timeout(LIMIT, operation).await.ok_or(unavailable)?;
        completed.outcome.map_err(of_fault)?;
        if completed.bytes != bytes {
            return Err(unavailable);
        }
        let buffer = completed.memory.into_pooled().ok_or(unavailable)?;
        Ok(Lent { buffer, permit })
    }
}
