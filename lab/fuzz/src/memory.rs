//! Memory for the machines that are fuzzed. It has no bytes: it only checks that no access goes outside of it.

use ropewalk_base::memory::{BufferId, Slice};
use ropewalk_base::slots::SlotId;
use ropewalk_transport::Bytes;

/// See the module. All of it is one buffer.
pub struct Nowhere {
    bytes: u64,
}

impl Nowhere {
    /// Memory of so many bytes.
    pub const fn of(bytes: u64) -> Nowhere {
        Nowhere { bytes }
    }

    /// The first bytes of it, or all if there are no more.
    pub fn slice(&self, len: u64) -> Slice {
        let buffer = BufferId(SlotId { index: 1, generation: 1 });
        Slice { buffer, offset: 0, len: len.min(self.bytes) }
    }
}

impl Bytes for Nowhere {
    fn read(&self, from: Slice, to: &mut [u8]) {
        assert!(from.offset + to.len() as u64 <= self.bytes, "it reads past the end");
        to.fill(0);
    }

    fn write(&self, to: Slice, from: &[u8]) {
        assert!(from.len() as u64 <= to.len, "more than the slice has");
        assert!(to.offset + to.len <= self.bytes, "it writes past the end");
    }
}

/// Gives the type that receives a machine's completions access to the machine's memory.
macro_rules! in_memory {
    ($seen:ty, $memory:expr) => {
        impl ropewalk_transport::Bytes for $seen {
            fn read(&self, from: ropewalk_base::memory::Slice, to: &mut [u8]) {
                $memory.read(from, to);
            }

            fn write(&self, to: ropewalk_base::memory::Slice, from: &[u8]) {
                $memory.write(to, from);
            }
        }
    };
}
pub(crate) use in_memory;
