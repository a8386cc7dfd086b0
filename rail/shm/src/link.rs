//! One link: its rings, queues, accesses and exposures, and its end.
//!
//! Invariants:
//! * an order is either done at once, or waits in exactly one queue of the link; orders that still wait at
//!   the end are failed, then the link is forgotten;
//! * a link ends only when the peer holds no region of ours any more, or is gone itself;
//! * frames that arrived before the peer left are delivered before the end is reported;
//! * all that a peer can do to a link by scribbling in the segment is to break that link.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::limits::{FRAME_PAYLOAD_BYTES_MAX, HEADER_BYTES_MAX, QUEUED_FRAMES_MAX};
use ropewalk_base::memory::{self, BufferTable, Slice};
use ropewalk_base::time::Time;
use ropewalk_base::verb::{
    FrameOrder, Header, Help, LinkId, Ordered, RailCounters, RemoteKey, Token, Urgency,
};
use ropewalk_rail::{FRAME_PREFIX_BYTES, Report, frame_lengths};

use crate::attach::Attach;
use crate::barrier;
use crate::local::{Letter, Peer, ring};
use crate::native::{Access, Exposures, Origin, PeerMemory, RegionList, Scratch, is_readable};
use crate::rest::Rest;
use crate::ring::{Consumer, Front, Producer};
use crate::segment::{Board, EXPOSURES_MAX, RING_BYTES, Ring, Segment, Side};
use crate::sleep::{Sleeper, Waker};
use crate::views::Views;

/// Frames and bytes that one poll takes from one link, so that all are served in turn.
const FRAMES_PER_POLL: usize = 64;
const BYTES_PER_POLL: usize = 512 * 1024;
/// Consumed bytes after which the producer gets its room back, even in the middle of a poll.
const PUBLISH_BYTES: u64 = RING_BYTES as u64 / 8;
/// The time for which a peer that broke the protocol may claim to hold a region of ours.
const BROKEN_PATIENCE: Duration = Duration::from_secs(1);

/// The means by which a side learns the end of its peer, and tells its own.
#[derive(Debug)]
pub enum Presence {
    /// By the socket between two processes, and the peer's process where the kernel lets us watch it
    /// (a child of the peer may hold its end of the socket open).
    Socket { socket: OwnedFd, process: Option<OwnedFd> },
    /// By letters within one process.
    Local(Peer),
}

impl Presence {
    /// The descriptor that becomes readable once the peer has ended.
    fn watched(&self) -> Option<&OwnedFd> {
        match self {
            Presence::Socket { socket, process } => Some(process.as_ref().unwrap_or(socket)),
            Presence::Local(_) => None,
        }
    }

    /// The peer's process, where it is another one that the kernel lets us watch.
    fn process(&self) -> Option<&OwnedFd> {
        match self {
            Presence::Socket { process, .. } => process.as_ref(),
            Presence::Local(_) => None,
        }
    }
}

/// The parts of a link.
pub struct Parts {
    pub segment: Arc<Segment>,
    pub side: Side,
    pub board: Arc<Board>,
    /// Rings at the peer.
    pub bell: Arc<OwnedFd>,
    /// Rings here.
    pub own_bell: Arc<OwnedFd>,
    /// Both sides registered for the asymmetric barrier.
    pub asymmetric: bool,
    pub memory: PeerMemory,
    pub presence: Presence,
}

impl Parts {
    /// Between the publication of work and a look at whether the peer sleeps.
    #[inline]
    fn barrier(&self) {
        // The flag is read after everything was published: see `barrier`.
        std::sync::atomic::compiler_fence(Ordering::SeqCst);
        barrier::light(self.asymmetric && self.board.fenced().load(Ordering::Relaxed) == 0);
    }
}

/// A frame that waits for room.
#[derive(Debug)]
struct Queued {
    header: Header,
    payload: Slice,
    token: Token,
    /// The payload, once its owner wanted its memory back: the slice names nothing then.
    copy: Option<Box<[u8]>>,
}

/// The state that all links of a rail share.
pub struct Common {
    pub counters: RailCounters,
    pub scratch: Scratch,
    /// Bytes that native accesses may still move before the next poll.
    pub native_budget: u64,
    pub rest: Rest,
    pub attach: Attach,
}

/// A link that is up.
pub struct Link {
    id: LinkId,
    tx: Producer,
    rx: Consumer,
    parts: Parts,
    /// For the peer's rail while that sleeps, and for its end of this link while that rests.
    waker: Waker,
    rest_waker: Waker,
    /// Nobody looks at this link; see `attention`.
    rest: Sleeper,
    /// When something came last.
    active: Time,
    queues: [VecDeque<Queued>; 2],
    accesses: VecDeque<Access>,
    list: RegionList,
    views: Views,
    exposures: Exposures,
    /// Revocations that were complete at once, to be reported.
    revoked: VecDeque<RemoteKey>,
    closing: bool,
    gone: bool,
    broken: Option<Fault>,
    /// When the link began to end: its exposures are withdrawn since then.
    ending: Option<Time>,
}

impl Link {
    /// A link over fresh rings.
    pub fn new(id: LinkId, parts: Parts) -> Link {
        let exposures = Exposures::to(parts.memory);
        Link {
            id,
            tx: Producer::default(),
            rx: Consumer::default(),
            parts,
            waker: Waker::default(),
            rest_waker: Waker::default(),
            rest: Sleeper::default(),
            active: Time::ZERO,
            queues: [VecDeque::new(), VecDeque::new()],
            accesses: VecDeque::new(),
            list: RegionList::default(),
            views: Views::default(),
            exposures,
            revoked: VecDeque::new(),
            closing: false,
            gone: false,
            broken: None,
            ending: None,
        }
    }

    /// The parts of the link.
    pub fn parts(&self) -> &Parts {
        &self.parts
    }

    #[cfg(test)]
    pub(crate) fn mistake_peer(&mut self, other: OwnedFd) {
        let Presence::Socket { process, .. } = &mut self.parts.presence else {
            panic!("a link between processes")
        };
        *process = Some(other);
    }

    /// The reason why no order is taken any more, if so.
    fn refusal(&self) -> Option<Fault> {
        if self.closing {
            Some(Fault::Closed)
        } else if self.gone || self.broken.is_some() {
            Some(Fault::PeerReset)
        } else {
            None
        }
    }

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
            match self.try_send(header, payload.len as usize, segments, common) {
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

    /// Writes a frame into the ring; false where there is no room.
    #[inline(always)]
    fn try_send(
        &mut self,
        header: &Header,
        payload_bytes: usize,
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
                unsafe { std::ptr::copy_nonoverlapping(segment.as_mut_ptr(), to, segment.len()) };
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

    /// Rings where the peer sleeps, or rests from this link, and has not been rung for that yet.
    fn wake_peer(&mut self, common: &mut Common) {
        self.parts.barrier();
        let resting = self.parts.segment.resting(self.parts.side.other());
        if self.waker.due(&*self.parts.board) | self.rest_waker.due(&resting) {
            common.counters.doorbells += 1;
            common.counters.system_calls += 1;
            ring(&self.parts.bell);
        }
    }

    /// From now on nobody looks at this link, and its peer rings. A barrier and a look must follow.
    pub fn begin_rest(&mut self) {
        self.rest.fall_asleep(&self.parts.segment.resting(self.parts.side));
    }

    /// It is looked at again.
    pub fn end_rest(&mut self) {
        self.rest.wake_up(&self.parts.segment.resting(self.parts.side));
    }

    /// Whether nobody looks at it.
    pub fn is_resting(&self) -> bool {
        self.rest.is_asleep()
    }

    /// When something came last.
    pub fn active(&self) -> Time {
        self.active
    }

    /// Something came, or it is looked at again.
    #[inline]
    pub fn note_active(&mut self, now: Time) {
        self.active = now;
    }

    /// Begins a native access; moves as many bytes as the budget allows at once.
    pub fn access(
        &mut self,
        mut access: Access,
        buffers: &BufferTable,
        common: &mut Common,
    ) -> Ordered {
        if let Some(fault) = self.refusal() {
            return Ordered::Refused(fault);
        }
        if !access.is_consistent() {
            return Ordered::Refused(Fault::Invalid);
        }
        if self.leaves_to_frames(&access, common.attach) {
            return Ordered::Refused(Fault::NotPermitted);
        }
        while self.accesses.is_empty() && common.native_budget > 0 {
            match self.step(&mut access, buffers, common) {
                Ok(true) => return Ordered::Released,
                Ok(false) => {}
                Err(fault) => return Ordered::Refused(fault),
            }
        }
        self.accesses.push_back(access);
        self.rouse(common);
        Ordered::Pending
    }

    /// Whether the peer is another process.
    pub fn is_far(&self) -> bool {
        matches!(self.parts.memory, PeerMemory::Process(_))
    }

    /// Whether frames are cheaper. The ring is filled by the peer's processor while ours empties it: faster
    /// than to copy alone, where the peer has the time. Where the kernel has to copy, it is in any case where
    /// that was measured.
    fn leaves_to_frames(&self, access: &Access, attach: Attach) -> bool {
        let index = access.key.slot.index;
        let Parts { segment, side, .. } = &self.parts;
        let arena = || segment.entry(side.other(), index).arena().load(Ordering::Relaxed) != 0;
        let mapped = index < EXPOSURES_MAX && arena();
        let frames = match access.help {
            Help::None => false,
            Help::Possible => !mapped && !attach.pays(),
            Help::Gladly => attach != Attach::Always && (mapped || !attach.pays()),
        };
        frames && self.is_far()
    }

    /// Moves a piece of an access; true where it is complete.
    fn step(
        &mut self,
        access: &mut Access,
        buffers: &BufferTable,
        common: &mut Common,
    ) -> Result<bool, Fault> {
        let side = self.parts.side;
        let mut origin = Origin {
            segment: &self.parts.segment,
            side,
            memory: self.parts.memory,
            watched: self.parts.presence.watched(),
            process: self.parts.presence.process(),
            views: &mut self.views,
            list: &mut self.list,
            scratch: &mut common.scratch,
            system_calls: &mut common.counters.system_calls,
        };
        let result = origin.step(access, buffers, common.native_budget);
        // The owner may be asleep until we leave its region.
        std::sync::atomic::fence(Ordering::SeqCst);
        if self.parts.segment.revoking(side.other()).load(Ordering::Relaxed) != 0 {
            self.wake_peer(common);
        }
        let bytes = result?;
        common.counters.bytes_native += bytes;
        common.native_budget = common.native_budget.saturating_sub(bytes);
        Ok(access.is_done())
    }

    /// Makes a region accessible to the peer.
    pub fn expose(
        &mut self,
        key: RemoteKey,
        region: Slice,
        writable: bool,
        buffers: &BufferTable,
    ) -> Ordered {
        if let Some(fault) = self.refusal() {
            return Ordered::Refused(fault);
        }
        let Parts { segment, side, .. } = &self.parts;
        match self.exposures.expose(segment, *side, key, region, writable, buffers) {
            Ok(()) => Ordered::Released,
            Err(fault) => Ordered::Refused(fault),
        }
    }

    /// Ends an exposure that `expose` began.
    pub fn revoke(&mut self, key: RemoteKey, common: &mut Common) -> Ordered {
        match self.exposures.revoke(&self.parts.segment, self.parts.side, key) {
            Ok(true) => self.revoked.push_back(key),
            Ok(false) => {}
            Err(fault) => return Ordered::Refused(fault),
        }
        self.rouse(common);
        Ordered::Released
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

    /// Gives an access up: between two polls none of it is in the middle of a piece.
    pub fn stop(&mut self, token: Token) -> bool {
        let position = self.accesses.iter().position(|access| access.token == token);
        position.and_then(|position| self.accesses.remove(position)).is_some()
    }

    /// No more orders; the link ends when all earlier orders are sent.
    pub fn close(&mut self, common: &mut Common) {
        self.closing = true;
        self.rouse(common);
    }

    /// An order may have left work for a poll: see `rest`.
    #[cold]
    fn rouse(&mut self, common: &mut Common) {
        common.rest.rouse(&mut common.counters, || self.has_work());
    }

    /// The peer has left or died.
    pub fn peer_gone(&mut self) {
        self.gone = true;
    }

    /// The peer broke the protocol, by an action or by an omission.
    pub fn break_off(&mut self, fault: Fault) {
        self.broken.get_or_insert(fault);
    }

    /// Whether a poll would find something to do; for the moment before sleep.
    pub fn has_work(&mut self) -> bool {
        let Parts { segment, side, .. } = &self.parts;
        let side = *side;
        if self.gone || self.broken.is_some() || !self.revoked.is_empty() {
            return true;
        }
        if !self.rx.is_empty(&segment.ring(side.other())) || !self.accesses.is_empty() {
            return true;
        }
        if self.exposures.is_revoking() && self.exposures.has_settled(segment, side) {
            return true;
        }
        let next = self.queues.iter().find_map(VecDeque::front);
        if let Some(queued) = next {
            // A closing link ends when this has left.
            let body = queued.header.as_bytes().len() + queued.payload.len as usize;
            return self.tx.has_room(&segment.ring(side), body);
        }
        self.closing && (self.ending.is_none() || !self.exposures.is_held(segment, side))
    }

    /// Whether something came.
    #[inline]
    pub fn has_frames(&self) -> bool {
        !self.rx.is_empty(&self.parts.segment.ring(self.parts.side.other()))
    }

    /// Whether nothing waits on this side: frames may come, and that is all.
    #[inline]
    pub fn is_quiet(&self) -> bool {
        self.queues[0].is_empty()
            && self.queues[1].is_empty()
            && self.accesses.is_empty()
            && self.revoked.is_empty()
            && !self.exposures.is_revoking()
            && !(self.closing || self.gone || self.broken.is_some())
    }

    /// Takes the frames that arrived.
    #[inline]
    pub fn poll(&mut self, report: &mut dyn Report, common: &mut Common) -> bool {
        self.has_frames() && self.broken.is_none() && self.receive(report, common)
    }

    /// Continues the waiting work of this side, if it is not quiet.
    #[inline(never)]
    pub fn work(&mut self, report: &mut dyn Report, common: &mut Common) -> bool {
        let mut worked = false;
        if self.broken.is_none() && !self.gone {
            worked |= self.flush(report, common);
            worked |= self.continue_accesses(report, common);
        }
        while let Some(key) = self.revoked.pop_front() {
            report.revoked(self.id, key);
            worked = true;
        }
        if self.exposures.is_revoking() {
            let Parts { segment, side, .. } = &self.parts;
            while let Some(key) = self.exposures.settled(segment, *side) {
                report.revoked(self.id, key);
                worked = true;
            }
        }
        worked
    }

    /// Takes frames out of the ring.
    #[inline(never)]
    fn receive(&mut self, report: &mut dyn Report, common: &mut Common) -> bool {
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

    /// Sends the waiting frames, urgent ones first.
    fn flush(&mut self, report: &mut dyn Report, common: &mut Common) -> bool {
        let mut sent = 0;
        'queues: for queue in 0..2 {
            while let Some(queued) = self.queues[queue].front_mut() {
                let (header, payload, token) = (queued.header, queued.payload, queued.token);
                let copy = queued.copy.take();
                let outcome = match &copy {
                    None => {
                        let segments = report.buffers().resolve(payload);
                        self.try_send(&header, payload.len as usize, segments, common)
                    }
                    Some(copy) => {
                        let segment = memory::Segment::new(copy.as_ptr().cast_mut(), copy.len());
                        self.try_send(&header, copy.len(), std::iter::once(segment), common)
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

    /// Moves the next pieces of accesses under way.
    fn continue_accesses(&mut self, report: &mut dyn Report, common: &mut Common) -> bool {
        let mut worked = false;
        while common.native_budget > 0 {
            let Some(mut access) = self.accesses.pop_front() else { break };
            worked = true;
            match self.step(&mut access, report.buffers(), common) {
                Ok(true) => report_done(report, access.token),
                Ok(false) => self.accesses.push_front(access),
                Err(fault) => report_failed(report, access.token, fault),
            }
        }
        worked
    }

    /// Whether `ended` has to be asked.
    #[inline]
    pub fn is_ending(&self) -> bool {
        self.closing || self.gone || self.broken.is_some()
    }

    /// The reason why the link is over, as soon as it is.
    #[cold]
    pub fn ended(&mut self, now: Time) -> Option<Fault> {
        let Parts { segment, side, .. } = &self.parts;
        let fault = if let Some(fault) = self.broken {
            fault
        } else if self.gone {
            // Frames that the peer sent before it left still count.
            if !self.rx.is_empty(&segment.ring(side.other())) {
                return None;
            }
            if self.closing { Fault::Closed } else { Fault::PeerReset }
        } else if self.closing {
            if !self.accesses.is_empty() || self.queues.iter().any(|queue| !queue.is_empty()) {
                return None;
            }
            Fault::Closed
        } else {
            return None;
        };
        let since = *self.ending.get_or_insert_with(|| {
            segment.left(*side).store(1, Ordering::Relaxed);
            self.exposures.withdraw(segment, *side);
            now
        });
        let patience = self.broken.is_none() || now.since(since) < BROKEN_PATIENCE;
        let held = !self.gone && patience && self.exposures.is_held(segment, *side);
        (!held).then_some(fault)
    }

    /// When `ended` has to be asked again although nothing happens.
    pub fn deadline(&self) -> Option<Time> {
        self.ending.filter(|_| self.broken.is_some()).map(|since| since + BROKEN_PATIENCE)
    }

    /// Fails the waiting orders; nothing of the link may be used after that but its parts.
    pub fn fail_all(&mut self, report: &mut dyn Report) {
        for queued in self.queues.iter_mut().flat_map(|queue| queue.drain(..)) {
            report_failed(report, queued.token, Fault::PeerReset);
        }
        for access in self.accesses.drain(..) {
            report_failed(report, access.token, Fault::PeerReset);
        }
        for key in self.revoked.drain(..) {
            report.revoked(self.id, key);
        }
        while let Some(key) = self.exposures.released() {
            report.revoked(self.id, key);
        }
    }

    /// The rail itself ends: lets the peer finish a copy that is under way, so that our memory may
    /// be freed after this. A peer needs microseconds for that unless it is dead or stopped.
    pub fn abandon(&mut self) {
        let Parts { segment, side, .. } = &self.parts;
        segment.left(*side).store(1, Ordering::Relaxed);
        self.exposures.withdraw(segment, *side);
        const YIELDS_MAX: usize = 1_000_000;
        let mut yields = 0;
        while !self.gone && self.exposures.is_held(segment, *side) && yields < YIELDS_MAX {
            yields += 1;
            let process = match &self.parts.presence {
                Presence::Socket { process, .. } if yields % 1000 == 0 => process.as_ref(),
                _ => None,
            };
            self.gone = process.is_some_and(is_readable);
            std::thread::yield_now();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Presence::Local(peer) = &self.parts.presence {
            peer.inbox.post(Letter::Gone { link: peer.link });
        }
    }
}

/// The bytes that most headers have after their prefix: those of small messages.
const SHORT_REST: usize = 32 - FRAME_PREFIX_BYTES;

/// Hands a frame up; false where it breaks the framing or the protocol.
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

fn report_done(report: &mut dyn Report, token: Token) {
    if token != Token::NONE {
        report.done(token);
    }
}

fn report_failed(report: &mut dyn Report, token: Token, fault: Fault) {
    if token != Token::NONE {
        report.failed(token, fault);
    }
}
