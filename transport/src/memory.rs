//! The memory of packets: memory that orders name, bytes that are copied once, and buffers that are used again.

use ropewalk_base::memory::Slice;
use ropewalk_base::shared::SharedBytes;

/// Bytes that are not copied into their packet: to name fewer to the kernel takes longer than to copy them.
pub(crate) const APART_BYTES_MIN: usize = 512;

/// Memory that slices name.
pub trait Bytes {
    /// Copies what `from` names; as much as `to` takes.
    fn read(&self, from: Slice, to: &mut [u8]);
    /// Copies to what `to` names, where it is there to be written.
    fn write(&self, to: Slice, from: &[u8]);
    /// As [`Self::read`]. False where some of the memory has gone away from under its slice.
    fn try_read(&self, from: Slice, to: &mut [u8]) -> bool {
        self.read(from, to);
        true
    }
    /// As [`Self::write`]. False where some of the memory has gone away from under its slice.
    fn try_write(&self, to: Slice, from: &[u8]) -> bool {
        self.write(to, from);
        true
    }
}

/// The payload of a message or frame that waits to leave.
#[derive(Debug)]
pub(crate) enum Payload {
    /// Memory of the one who ordered it, held until it was copied.
    Held(Slice),
    Own(Vec<u8>),
}

impl Payload {
    /// Its bytes, copied where they are not its own.
    pub fn into_bytes(self, memory: &dyn Bytes) -> Vec<u8> {
        match self {
            Payload::Own(bytes) => bytes,
            Payload::Held(slice) => {
                let mut bytes = vec![0; slice.len as usize];
                memory.read(slice, &mut bytes);
                bytes
            }
        }
    }

    /// Likewise, to be sent from there; copied into a buffer that nobody else has, where there is one.
    pub fn into_shared(self, spare: Option<SharedBytes>, memory: &dyn Bytes) -> SharedBytes {
        let mut buffer = spare.unwrap_or_default();
        match (self, buffer.alone()) {
            (Payload::Held(slice), Some(bytes)) => {
                bytes.resize(slice.len as usize, 0);
                memory.read(slice, bytes);
                buffer
            }
            (payload, _) => SharedBytes::new(payload.into_bytes(memory)),
        }
    }

    pub fn len(&self) -> u64 {
        match self {
            Payload::Held(slice) => slice.len,
            Payload::Own(bytes) => bytes.len() as u64,
        }
    }
}

/// Buffers of packets that are kept for reuse.
pub(crate) const SPARE_MAX: usize = 256;

/// Keeps a buffer, where there are fewer than so many, and nothing of it is on its way any more.
pub(crate) fn recycle(spare: &mut Vec<SharedBytes>, max: usize, mut buffer: SharedBytes) {
    if spare.len() < max
        && let Some(bytes) = buffer.alone()
    {
        bytes.clear();
        spare.push(buffer);
    }
}
