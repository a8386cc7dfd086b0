//! One native read or write, and how far it has come.

use ropewalk_base::memory::Slice;
use ropewalk_base::verb::{Help, RemoteKey, RemoteLayout, Token};

/// A native read or write under way.
#[derive(Debug)]
pub struct Access {
    pub key: RemoteKey,
    pub remote: RemoteLayout,
    pub local: Slice,
    pub token: Token,
    pub write: bool,
    /// The help that the target would give, if it were asked by frames.
    pub help: Help,
    pub(super) done: u64,
    /// For lists: the segment that comes next, and how much of it is done.
    pub(super) segment: usize,
    pub(super) within: u64,
}

impl Access {
    /// An access that has not begun.
    pub fn new(
        key: RemoteKey,
        remote: RemoteLayout,
        local: Slice,
        token: Token,
        write: bool,
    ) -> Access {
        let (done, segment, within, help) = (0, 0, 0, Help::None);
        Access { key, remote, local, token, write, help, done, segment, within }
    }

    /// Whether the layout has as many bytes as the local slice.
    pub fn is_consistent(&self) -> bool {
        match &self.remote {
            RemoteLayout::At(_) => true,
            RemoteLayout::List(list) => {
                let sum = list.iter().try_fold(0u64, |sum, part| sum.checked_add(part.len));
                sum == Some(self.local.len)
            }
            RemoteLayout::Strided(_) => false,
        }
    }

    /// Whether all bytes were moved.
    pub fn is_done(&self) -> bool {
        self.done == self.local.len
    }

    /// Whether all of it lies within a region of `bytes` bytes.
    pub(super) fn fits(&self, bytes: u64) -> bool {
        let inside =
            |offset: u64, len: u64| offset.checked_add(len).is_some_and(|end| end <= bytes);
        match &self.remote {
            RemoteLayout::At(offset) => inside(*offset, self.local.len),
            RemoteLayout::List(list) => list.iter().all(|part| inside(part.offset, part.len)),
            RemoteLayout::Strided(_) => false,
        }
    }

    pub(super) fn advance(&mut self, mut bytes: u64) {
        self.done += bytes;
        let RemoteLayout::List(list) = &self.remote else { return };
        while let Some(part) = list.get(self.segment) {
            let left = part.len - self.within;
            if bytes < left {
                self.within += bytes;
                return;
            }
            bytes -= left;
            self.segment += 1;
            self.within = 0;
        }
    }
}
