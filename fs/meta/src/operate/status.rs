//! Data servers, pools, free room.

use ropewalk_wire::fs::meta::{MetaReply, ServerInfo};
use ropewalk_wire::fs::value::{Bytes, Errno};

use super::{Operation, Step};
use crate::inode::encode_row;
use crate::keys::{self, Table};
use crate::parking::WaitOn;
use crate::pools::{ADDRESS_BYTES_MAX, POOL_VERSION};
use crate::rows::Rows;

impl<R: Rows> Operation<'_, R> {
    pub fn stat_file_system(&mut self) -> Step<()> {
        let (total_bytes, available_bytes) = self.shard.pools.room();
        let inodes = self.shard.inode_count;
        self.answer(&MetaReply::FileSystem { total_bytes, available_bytes, inodes })
    }

    pub fn heartbeat(
        &mut self,
        server: u32,
        boot: u64,
        total_bytes: u64,
        available_bytes: u64,
        address: &[u8],
    ) -> Step<()> {
        if address.len() > ADDRESS_BYTES_MAX {
            return Err(Errno::EINVAL.into());
        }
        let now = self.now.time;
        let pools = &mut self.shard.pools;
        if !pools.handle_heartbeat(server, boot, total_bytes, available_bytes, address, now) {
            return Err(Errno::ENOSPC.into());
        }
        self.renew_pool();
        self.answer(&MetaReply::Done)
    }

    /// Makes a new pool version where the usable servers are others than those of the newest.
    pub fn renew_pool(&mut self) {
        let silence = self.shard.config.server_silence;
        if self.shard.full {
            return;
        }
        if let Some(pool) = self.shard.pools.successor(self.now.time, silence) {
            let key = keys::key(Table::Pool, &[u64::from(pool.version)]);
            self.batch.put(key, encode_row(POOL_VERSION, &pool));
            self.shard.pools.add(pool);
            self.shard.parking.wake(WaitOn::Pool);
        }
    }

    pub fn get_pool(&mut self, version: u32) -> Step<()> {
        let pool = self.shard.pools.get(version).cloned().ok_or(Errno::ENOENT)?;
        let (now, silence) = (self.now.time, self.shard.config.server_silence);
        let addresses: Vec<Vec<u8>> = pool
            .servers
            .iter()
            .map(|id| self.shard.pools.server(*id).map_or(Vec::new(), |s| s.address.clone()))
            .collect();
        let servers = pool
            .servers
            .iter()
            .zip(&addresses)
            .map(|(id, address)| {
                let server = self.shard.pools.server(*id);
                ServerInfo {
                    server: *id,
                    address: Bytes(address),
                    alive: self.shard.pools.is_alive(*id, now, silence),
                    total_bytes: server.map_or(0, |server| server.total_bytes),
                    available_bytes: server.map_or(0, |server| server.available_bytes),
                }
            })
            .collect();
        self.answer(&MetaReply::Pool { pool, servers })
    }
}
