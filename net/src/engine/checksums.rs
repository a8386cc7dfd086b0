//! The checksums that frames carry: decided by the rail, the peer and the endpoint's configuration.

use ropewalk_base::memory::BufferTable;
use ropewalk_base::verb::{FrameOrder, LinkId};
use ropewalk_rail::Rail;
use ropewalk_wire::frame;

pub(crate) struct Checksums {
    /// Payloads have them, too, where headers do.
    payload: bool,
    /// Also between processes of one host.
    same_host: bool,
    /// By rail: frames carry checksums.
    sealed: Vec<bool>,
}

/// The checksums of one frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Checked {
    Nothing,
    Header,
    HeaderAndPayload,
}

impl Checksums {
    pub fn new(payload: bool, same_host: bool) -> Checksums {
        Checksums { payload, same_host, sealed: Vec::new() }
    }

    /// The next rail.
    pub fn add_rail(&mut self, rail: &dyn Rail) {
        self.sealed.push(!rail.capabilities().intact);
    }

    /// The checksums of a link's frames. `is_same_host`: whether the peer shares this host's memory.
    #[inline]
    pub fn of(&self, link: LinkId, is_same_host: impl FnOnce() -> bool) -> Checked {
        if !self.sealed.get(usize::from(link.rail)).is_some_and(|sealed| *sealed) {
            return Checked::Nothing;
        }
        let wanted = self.same_host || !is_same_host();
        if self.payload && wanted { Checked::HeaderAndPayload } else { Checked::Header }
    }
}

impl Checked {
    /// Writes the checksums into a frame.
    #[inline(always)]
    pub fn seal(self, frame: &mut FrameOrder, buffers: &BufferTable) {
        if self != Checked::Nothing {
            let payload = self == Checked::HeaderAndPayload && frame.payload.len > 0;
            let checksum = payload.then(|| buffers.crc32c(frame.payload));
            frame::seal(&mut frame.header, checksum);
        }
    }
}
