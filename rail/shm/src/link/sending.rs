//! Frames to the peer: into the ring, or into a queue where there is no room.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use ropewalk_base::error::Fault;
use ropewalk_base::limits::{FRAME_PAYLOAD_BYTES_MAX, QUEUED_FRAMES_MAX};
use ropewalk_base::memory::{self, BufferTable};
use ropewalk_base::verb::{FrameOrder, Header, Ordered, Token, Urgency};
use ropewalk_rail::{Report, frame_lengths};

use crate::link::{Common, Link, Queued, report_done, report_failed};

impl Link {
    /// Sends a frame or queues it.
    pub fn send(
        &mut self,
        frame: &FrameOrder,
        buffers: &BufferTable,
        common: &mut Common,
    ) -> Ordered {
        let FrameOrder { header, payload, urgency, token, .. } = frame;
        let (payload, urgency, token) = (*payload, urgency.at_once(), *token);
        if let Some(fault) = self.refusal() {
            return Ordered::Refused(fault);
        }
        if payload.len > u64::from(FRAME_PAYLOAD_BYTES_MAX) {
            return Ordered::Refused(Fault::Oversize);
        }
        let lengths = (header.as_bytes().len(), payload.len as u32);
        if frame_lengths(header.as_bytes()) != Some(lengths) {
            return Ordered::Refused(Fault::Invalid);
        }
        let waits = match urgency {
            Urgency::Urgent | Urgency::Patient => !self.queues[0].is_empty(),
            Urgency::Bulk => self.queues.iter().any(|queue| !queue.is_empty()),
        };
        if !waits {
            let segments = buffers.resolve(payload);
            let is_fleeting = buffers.is_fleeting(payload);
            let body = (payload.len as usize, is_fleeting);
            match self.try_send(header, body, segments, common) {
                Ok(true) => {
                    self.wake_peer(common);
                    return Ordered::Released;
                }
                Ok(false) => {}
                Err(fault) => {
                    self.rouse(common);
                    return Ordered::Refused(fault);
                }
            }
        }
        let queue = if urgency == Urgency::Urgent { 0 } else { 1 };
        if queue == 0 && self.queues[0].len() >= QUEUED_FRAMES_MAX {
            // So much waits that the peer cannot be reading.
            self.break_off(Fault::PeerReset);
            self.rouse(common);
            return Ordered::Refused(Fault::PeerReset);
        }
        let first = self.queues.iter().all(VecDeque::is_empty);
        self.queues[queue].push_back(Queued { header: *header, payload, token, copy: None });
        self.parts.segment.wants_room(self.parts.side).store(1, Ordering::Relaxed);
        // Behind another one the peer knows already that room is wanted.
        if first {
            self.rouse(common);
        }
        Ordered::Pending
    }

    /// Writes a frame into the ring; false where there is no room. The payload's memory may go away where it is fleeting: then
    /// nothing was written.
    #[inline(always)]
    fn try_send(
        &mut self,
        header: &Header,
        (payload_bytes, is_fleeting): (usize, bool),
        segments: impl Iterator<Item = memory::Segment>,
        common: &mut Common,
    ) -> Result<bool, Fault> {
        let ring = self.parts.segment.ring(self.parts.side);
        let header = header.as_bytes();
        let body = header.len() + payload_bytes;
        let reserved = match self.tx.reserve(&ring, body) {
            Ok(Some(reserved)) => reserved,
            Ok(None) => return Ok(false),
            Err(_) => {
                self.broken = Some(Fault::Protocol);
                common.counters.violations += 1;
                return Err(Fault::PeerReset);
            }
        };
        // The header last: the consumer watches the line that it lies in.
        let mut to = ring.at(reserved.at + header.len());
        let mut left = payload_bytes;
        if left > 0 {
            for segment in segments {
                // SAFETY: the callers' segments are alive and together at most `payload_bytes` long, so
                // that they end within the reserved room, which is the producer's alone.
                unsafe {
                    if !is_fleeting {
                        std::ptr::copy_nonoverlapping(segment.as_mut_ptr(), to, segment.len());
                    } else if !segment.copy_out(to) {
                        return Err(Fault::BadKey);
                    }
                }
                to = to.wrapping_add(segment.len());
                left -= segment.len();
            }
            if left > 0 {
                return Err(Fault::Invalid);
            }
        }
        let to = ring.at(reserved.at);
        // SAFETY: the reserved room has `body` bytes, of which the header is the first; it is a slice
        // of ours.
        unsafe { std::ptr::copy_nonoverlapping(header.as_ptr(), to, header.len()) };
        self.tx.commit(&ring, reserved);
        common.counters.frames_sent += 1;
        common.counters.bytes_sent += body as u64;
        Ok(true)
    }

    /// Lets go of the payload of a frame that waits; false where none waits under the token.
    pub fn detach(&mut self, token: Token, later: Token, buffers: &BufferTable) -> bool {
        let mut waiting = self.queues.iter_mut().flatten();
        let Some(queued) = waiting.find(|queued| queued.token == token) else { return false };
        if queued.copy.is_none() {
            let mut copy = vec![0; queued.payload.len as usize].into_boxed_slice();
            if buffers.read(queued.payload, &mut copy) < copy.len() {
                return false;
            }
            queued.copy = Some(copy);
        }
        queued.token = later;
        true
    }

    /// Sends the waiting frames, urgent ones first.
    pub(super) fn flush(&mut self, report: &mut dyn Report, common: &mut Common) -> bool {
        let mut sent = 0;
        'queues: for queue in 0..2 {
            while let Some(queued) = self.queues[queue].front_mut() {
                let (header, payload, token) = (queued.header, queued.payload, queued.token);
                let copy = queued.copy.take();
                let outcome = match &copy {
                    None => {
                        let segments = report.buffers().resolve(payload);
                        let is_fleeting = report.buffers().is_fleeting(payload);
                        let body = (payload.len as usize, is_fleeting);
                        self.try_send(&header, body, segments, common)
                    }
                    Some(copy) => {
                        let segment = memory::Segment::new(copy.as_ptr().cast_mut(), copy.len());
                        let body = (copy.len(), false);
                        self.try_send(&header, body, std::iter::once(segment), common)
                    }
                };
                if let (Ok(false), Some(queued)) = (outcome, self.queues[queue].front_mut()) {
                    queued.copy = copy;
                }
                match outcome {
                    Ok(false) => break 'queues,
                    Ok(true) => report_done(report, token),
                    // A broken link fails all that waits when it ends, this frame included.
                    Err(_) if self.broken.is_some() => break 'queues,
                    Err(fault) => report_failed(report, token, fault),
                }
                self.queues[queue].pop_front();
                sent += 1;
            }
        }
        if sent == 0 {
            return false;
        }
        if self.queues.iter().all(VecDeque::is_empty) {
            self.parts.segment.wants_room(self.parts.side).store(0, Ordering::Relaxed);
        }
        self.wake_peer(common);
        true
    }
}
