//! The bytes of a file: chunks, holes between them.
//!
//! A WRITE that covers a chunk becomes that chunk, buffer and all, and a READ hands the chunk's
//! buffer to the kernel: neither copies.

use std::collections::BTreeMap;
use std::sync::Arc;

use ropewalk_base::pool::{Pool, PoolBuffer};
use ropewalk_mount::Errno;
use ropewalk_mount::reply::Data;

pub const CHUNK_BYTES: u64 = 1 << 20;

#[derive(Default)]
pub struct Contents {
    size: u64,
    /// By number. A chunk may be shorter than `CHUNK_BYTES`: the missing bytes are a hole.
    chunks: BTreeMap<u64, Arc<PoolBuffer>>,
}

impl Contents {
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Units of 512 bytes.
    pub fn blocks(&self) -> u64 {
        self.chunks.values().map(|chunk| (chunk.len() as u64).div_ceil(512)).sum()
    }

    pub fn read(&self, offset: u64, size: u64) -> Data {
        let mut data = Data::new();
        let end = offset.saturating_add(size).min(self.size);
        let mut at = offset;
        while at < end {
            let (number, inside) = (at / CHUNK_BYTES, at % CHUNK_BYTES);
            let len = (CHUNK_BYTES - inside).min(end - at);
            let mut holed = len;
            if let Some(chunk) = self.chunks.get(&number) {
                let stored = (chunk.len() as u64).saturating_sub(inside).min(len);
                if stored > 0 {
                    let start = inside as usize;
                    data.push_shared(chunk.clone(), start..start + stored as usize);
                    holed -= stored;
                }
            }
            data.push_zeros(holed as usize);
            at += len;
        }
        data
    }

    pub fn write(&mut self, pool: &Pool, offset: u64, data: PoolBuffer) -> Result<(), Errno> {
        let end = offset.checked_add(data.len() as u64).ok_or(Errno::EFBIG)?;
        let (number, inside) = (offset / CHUNK_BYTES, (offset % CHUNK_BYTES) as usize);
        let old = self.chunks.get(&number).map_or(0, |chunk| chunk.len());
        if inside == 0 && data.len() as u64 <= CHUNK_BYTES && data.len() >= old {
            self.chunks.insert(number, Arc::new(data));
        } else {
            self.write_parts(pool, offset, &data)?;
        }
        self.size = self.size.max(end);
        Ok(())
    }

    fn write_parts(&mut self, pool: &Pool, offset: u64, mut data: &[u8]) -> Result<(), Errno> {
        let mut at = offset;
        while !data.is_empty() {
            let (number, inside) = (at / CHUNK_BYTES, (at % CHUNK_BYTES) as usize);
            let len = (CHUNK_BYTES as usize - inside).min(data.len());
            let chunk = self.chunk_mut(pool, number, inside + len)?;
            chunk[inside..inside + len].copy_from_slice(&data[..len]);
            data = &data[len..];
            at += len as u64;
        }
        Ok(())
    }

    /// The chunk, at least `len` bytes long, for writing.
    fn chunk_mut(&mut self, pool: &Pool, number: u64, len: usize) -> Result<&mut [u8], Errno> {
        let old = self.chunks.get_mut(&number);
        let fits = old.is_some_and(|chunk| {
            Arc::get_mut(chunk).is_some_and(|own| own.len() >= len || grow(own, len))
        });
        if !fits {
            let old = self.chunks.get(&number);
            let keep = old.map_or(0, |chunk| chunk.len());
            let mut fresh = pool.take(keep.max(len)).ok_or(Errno::ENOSPC)?;
            if let Some(old) = old {
                fresh[..keep].copy_from_slice(old);
            }
            fresh[keep..].fill(0);
            self.chunks.insert(number, Arc::new(fresh));
        }
        let chunk = self.chunks.get_mut(&number).ok_or(Errno::EIO)?;
        Ok(Arc::get_mut(chunk).ok_or(Errno::EIO)?)
    }

    pub fn truncate(&mut self, pool: &Pool, size: u64) -> Result<(), Errno> {
        if size < self.size {
            self.punch(pool, size, u64::MAX)?;
        }
        self.size = size;
        Ok(())
    }

    /// Makes a hole from `start` to `end`; the size stays.
    pub fn punch(&mut self, pool: &Pool, start: u64, end: u64) -> Result<(), Errno> {
        let numbers: Vec<u64> = self.chunks.range(start / CHUNK_BYTES..).map(|c| *c.0).collect();
        for number in numbers {
            let base = number * CHUNK_BYTES;
            let len = self.chunks[&number].len() as u64;
            let from = start.saturating_sub(base).min(len) as usize;
            let to = end.saturating_sub(base).min(len) as usize;
            if from == 0 && to as u64 == len {
                self.chunks.remove(&number);
            } else if from < to {
                self.chunk_mut(pool, number, len as usize)?[from..to].fill(0);
            }
        }
        Ok(())
    }

    pub fn extend(&mut self, size: u64) {
        self.size = self.size.max(size);
    }

    /// The next data or hole at or behind `offset`.
    pub fn seek(&self, offset: u64, data: bool) -> Option<u64> {
        if offset >= self.size {
            return None;
        }
        let mut at = offset;
        while at < self.size {
            let (number, inside) = (at / CHUNK_BYTES, at % CHUNK_BYTES);
            let stored = self.chunks.get(&number).map_or(0, |chunk| chunk.len() as u64);
            let is_data = inside < stored;
            if is_data == data {
                return Some(at);
            }
            at = number * CHUNK_BYTES + if is_data { stored } else { CHUNK_BYTES };
        }
        (!data).then_some(self.size)
    }
}

fn grow(chunk: &mut PoolBuffer, len: usize) -> bool {
    let old = chunk.len();
    if chunk.capacity() < len {
        return false;
    }
    chunk.set_len(len);
    chunk[old..].fill(0);
    true
}
