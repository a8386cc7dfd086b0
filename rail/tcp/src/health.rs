//! The health of a link, as the kernel's TCP measures it.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::Duration;

use ropewalk_base::health::{Health, RoundTrips};
use ropewalk_base::time::Time;

use crate::link::Link;
use crate::socket;

/// Bytes of `struct tcp_info` that are read. Older kernels give fewer: the others stay zero.
const INFO_BYTES: usize = 240;

/// Offsets in `struct tcp_info` (linux/tcp.h), where they will stay: it only grows.
mod at {
    pub const SEND_SEGMENT_BYTES: usize = 16;
    pub const SEGMENTS_IN_FLIGHT: usize = 24;
    pub const LAST_DATA_RECEIVED_MS: usize = 52;
    pub const LAST_ACK_RECEIVED_MS: usize = 56;
    pub const ROUND_TRIP_US: usize = 68;
    pub const VARIATION_US: usize = 72;
    pub const SENT_AGAIN: usize = 100;
    pub const BYTES_ACKNOWLEDGED: usize = 120;
    pub const SEGMENTS_RECEIVED: usize = 140;
    pub const UNSENT_BYTES: usize = 144;
    pub const LEAST_ROUND_TRIP_US: usize = 148;
    pub const DATA_SEGMENTS_SENT: usize = 156;
    pub const DELIVERED: usize = 192;
    pub const SENT_TWICE: usize = 216;
    pub const SEND_WINDOW_BYTES: usize = 228;
}

/// The kernel's account of a connection.
pub struct Info {
    bytes: [u8; INFO_BYTES],
    told: usize,
}

impl Info {
    pub fn of(socket: BorrowedFd<'_>) -> Option<Info> {
        let mut info = Info { bytes: [0; INFO_BYTES], told: 0 };
        let mut told = INFO_BYTES as libc::socklen_t;
        // SAFETY: the kernel writes at most `told` bytes, which the array has, and their number to `told`; both live
        // until the call returns.
        let asked = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::IPPROTO_TCP,
                libc::TCP_INFO,
                info.bytes.as_mut_ptr().cast(),
                &raw mut told,
            )
        };
        info.told = told as usize;
        (asked == 0 && info.told >= at::SENT_AGAIN + 4).then_some(info)
    }

    fn word(&self, at: usize) -> u32 {
        u32::from_ne_bytes(*self.bytes[at..].first_chunk().expect("it lies within the account"))
    }

    fn long(&self, at: usize) -> u64 {
        u64::from_ne_bytes(*self.bytes[at..].first_chunk().expect("it lies within the account"))
    }

    fn micros(&self, at: usize) -> Duration {
        Duration::from_micros(self.word(at).into())
    }

    /// Round trips, as far as any was measured. The kernel keeps their mean and their mean deviation, by which nineteen of
    /// twenty are estimated: the mean and twice the deviation, as of a normal distribution.
    pub fn round_trips(&self) -> Option<RoundTrips> {
        let (smoothed, variation) = (self.micros(at::ROUND_TRIP_US), self.micros(at::VARIATION_US));
        let (least, p95) = (self.micros(at::LEAST_ROUND_TRIP_US), Some(smoothed + 2 * variation));
        (smoothed > Duration::ZERO).then_some(RoundTrips { smoothed, variation, least, p95 })
    }

    /// Segments with data that were sent, and those of them that went again since the first ones were lost: not those of
    /// which the other end says that it had them, as far as this kernel tells. The first number is 0 where it does not count.
    pub fn sent_and_lost(&self) -> (u64, u64) {
        let known = |at: usize| if self.told >= at + 4 { self.word(at) } else { 0 };
        let lost = self.word(at::SENT_AGAIN).saturating_sub(known(at::SENT_TWICE));
        (known(at::DATA_SEGMENTS_SENT).into(), lost.into())
    }

    /// Segments that left and are not acknowledged.
    pub fn segments_in_flight(&self) -> u32 {
        self.word(at::SEGMENTS_IN_FLIGHT)
    }

    /// Bytes that have not left.
    pub fn unsent_bytes(&self) -> u64 {
        self.word(at::UNSENT_BYTES).into()
    }

    /// How long ago the last acknowledgement came, as the kernel tells it: in ticks of some milliseconds.
    pub fn acknowledgement_age(&self) -> Duration {
        Duration::from_millis(self.word(at::LAST_ACK_RECEIVED_MS).into())
    }

    /// A number that changes whenever the peer's machine acknowledges something new, beyond a hole, too.
    pub fn acknowledged(&self) -> (u64, u32) {
        let beyond = if self.told >= at::DELIVERED + 4 { self.word(at::DELIVERED) } else { 0 };
        (self.long(at::BYTES_ACKNOWLEDGED), beyond)
    }

    /// The peer's window has no room for a segment, as far as this kernel tells.
    pub fn is_window_closed(&self) -> bool {
        let window = self.word(at::SEND_WINDOW_BYTES);
        self.told >= at::SEND_WINDOW_BYTES + 4 && window < self.word(at::SEND_SEGMENT_BYTES)
    }
}

/// The health of a link that is up, by two system calls.
pub fn of(link: &Link, now: Time) -> Option<Health> {
    let socket = link.socket()?;
    let info = Info::of(socket)?;
    let unsent = info.unsent_bytes();
    let silent_ms = info.word(at::LAST_DATA_RECEIVED_MS).min(info.word(at::LAST_ACK_RECEIVED_MS));
    let silent = Duration::from_millis(silent_ms.into());
    let (packets, losses) = info.sent_and_lost();
    let queued: usize = link.outbound.frames().map(|frame| frame.left()).sum();
    Some(Health {
        round_trips: info.round_trips(),
        delivered_bytes: info.long(at::BYTES_ACKNOWLEDGED),
        unacknowledged_bytes: socket::queued_bytes(socket).saturating_sub(unsent),
        unsent_bytes: unsent + queued as u64,
        packets,
        losses,
        received: info.word(at::SEGMENTS_RECEIVED).into(),
        corrupt: 0,
        heard_at: Time(now.0.saturating_sub(silent.as_nanos() as u64)),
        is_peer_full: info.is_window_closed(),
        silence_tells: true,
    })
}
