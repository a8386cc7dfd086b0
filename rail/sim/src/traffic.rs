//! The frames of one end of a connection, counted for its health.

use ropewalk_base::time::Time;

/// The frames that an end sent, and the moment at which it heard of its peer last.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Traffic {
    sent_bytes: u64,
    pub delivered_bytes: u64,
    lost_bytes: u64,
    pub frames: u64,
    pub losses: u64,
    pub received: u64,
    pub heard_at: Time,
}

impl Traffic {
    /// A frame of so many bytes is on the wire.
    pub fn sent(&mut self, bytes: u64) {
        self.sent_bytes += bytes;
        self.frames += 1;
    }

    /// Such a frame was lost.
    pub fn lost(&mut self, bytes: u64) {
        self.losses += 1;
        self.lost_bytes += bytes;
    }

    /// So many bytes were acknowledged.
    pub fn acknowledged(&mut self, bytes: u64, now: Time) {
        self.delivered_bytes += bytes;
        self.heard_at = now;
    }

    /// Bytes on the wire. A frame that was doubled arrives twice.
    pub fn unacknowledged_bytes(&self) -> u64 {
        self.sent_bytes.saturating_sub(self.delivered_bytes + self.lost_bytes)
    }
}
