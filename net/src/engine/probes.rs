//! The bytes of long probes, by which a path proves that it passes full frames.

use ropewalk_base::memory::{BufferTable, Memory, Slice};
use ropewalk_wire::frame::PROVE_BYTES_MAX;

/// The payload of long probes, in the table of an endpoint.
pub(crate) fn probe_bytes(buffers: &mut BufferTable) -> Slice {
    static BYTES: [u8; PROVE_BYTES_MAX as usize] = [0x5a; PROVE_BYTES_MAX as usize];
    let buffer = buffers.insert(Memory::constant(&BYTES)).ok();
    buffer.map_or(Slice::NONE, |buffer| Slice { buffer, offset: 0, len: BYTES.len() as u64 })
}
