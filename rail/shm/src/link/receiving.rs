//! Frames from the peer: out of the ring, and up.

use std::sync::atomic::Ordering;

use ropewalk_base::error::Fault;
use ropewalk_base::limits::HEADER_BYTES_MAX;
use ropewalk_base::memory;
use ropewalk_base::verb::LinkId;
use ropewalk_rail::{FRAME_PREFIX_BYTES, Report, frame_lengths};

use crate::link::{Common, Link};
use crate::ring::Front;
use crate::segment::{RING_BYTES, Ring};

/// Frames and bytes that one poll takes from one link, so that all are served in turn.
const FRAMES_PER_POLL: usize = 64;
const BYTES_PER_POLL: usize = 512 * 1024;
/// Consumed bytes after which the producer gets its room back, even in the middle of a poll.
const PUBLISH_BYTES: u64 = RING_BYTES as u64 / 8;

impl Link {
    /// Takes frames out of the ring.
    #[inline(never)]
    pub(super) fn receive(&mut self, report: &mut dyn Report, common: &mut Common) -> bool {
        let Link { id, rx, parts, broken, gone, .. } = self;
        let other = parts.side.other();
        let ring = parts.segment.ring(other);
        let (mut frames, mut bytes) = (0, 0);
        while frames < FRAMES_PER_POLL && bytes < BYTES_PER_POLL {
            let front = match rx.front(&ring) {
                Ok(Some(front)) => front,
                Ok(None) => break,
                Err(_) => {
                    *broken = Some(Fault::Protocol);
                    break;
                }
            };
            frames += 1;
            bytes += front.body;
            if !deliver(*id, &front, ring.at(front.at), report) {
                *broken = Some(Fault::Protocol);
                break;
            }
            rx.pop::<Ring<'_>>(front);
            if rx.unpublished() >= PUBLISH_BYTES {
                rx.publish(&ring);
            }
        }
        common.counters.violations += u64::from(broken.is_some());
        common.counters.frames_received += frames as u64;
        common.counters.bytes_received += bytes as u64;
        if frames > 0 {
            rx.publish(&ring);
            parts.barrier();
            let wants = parts.segment.wants_room(other).load(Ordering::Relaxed);
            if wants != 0 && !*gone {
                self.wake_peer(common);
            }
        }
        frames > 0
    }
}

/// The bytes that most headers have after their prefix: those of small messages.
const SHORT_REST: usize = 32 - FRAME_PREFIX_BYTES;

/// Hands a frame up; false where it breaks the framing or the protocol.
#[inline(always)]
fn deliver(link: LinkId, front: &Front, body: *mut u8, report: &mut dyn Report) -> bool {
    if front.body < FRAME_PREFIX_BYTES {
        return false;
    }
    // Everything is copied out before it is looked at, since the peer could change it meanwhile.
    let mut header = [0u8; HEADER_BYTES_MAX];
    // SAFETY: the body has `front.body` bytes within the ring, at least a prefix; both sides of
    // the copies are apart.
    unsafe { std::ptr::copy_nonoverlapping(body, header.as_mut_ptr(), FRAME_PREFIX_BYTES) };
    let Some((header_bytes, payload_bytes)) = frame_lengths(&header) else { return false };
    if header_bytes + payload_bytes as usize != front.body {
        return false;
    }
    let from = body.wrapping_add(FRAME_PREFIX_BYTES);
    let rest = header_bytes - FRAME_PREFIX_BYTES;
    // SAFETY: as above; `frame_lengths` bounds the header by `HEADER_BYTES_MAX`. The length of most
    // headers is spelled out, so that no function is called for it.
    unsafe {
        let to = header.as_mut_ptr().add(FRAME_PREFIX_BYTES);
        match rest {
            SHORT_REST => std::ptr::copy_nonoverlapping(from, to, SHORT_REST),
            _ => std::ptr::copy_nonoverlapping(from, to, rest),
        }
    }
    let payload = memory::Segment::new(body.wrapping_add(header_bytes), payload_bytes as usize);
    // SAFETY: the payload is the rest of the body within the ring, which is no memory of a table.
    unsafe { report.arrived(link, &header[..header_bytes], payload) }
}
