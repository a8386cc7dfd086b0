//! One link: its rings, queues, accesses and exposures, and its end.
//!
//! Invariants:
//! * an order is either done at once, or waits in exactly one queue of the link; orders that still wait at
//!   the end are failed, then the link is forgotten;
//! * a link ends only when the peer holds no region of ours any more, or is gone itself;
//! * frames that arrived before the peer left are delivered before the end is reported;
//! * all that a peer can do to a link by scribbling in the segment is to break that link.

mod accesses;
mod ending;
mod parts;
mod receiving;
mod sending;

use std::collections::VecDeque;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::Slice;
use ropewalk_base::time::Time;
use ropewalk_base::verb::{Header, LinkId, RailCounters, RemoteKey, Token};
use ropewalk_rail::Report;

use crate::attach::Attach;
use crate::local::{Letter, ring};
use crate::native::{Access, Exposures, PeerMemory, RegionList, Scratch};
use crate::rest::Rest;
use crate::ring::{Consumer, Producer};
use crate::sleep::{Sleeper, Waker};
use crate::views::Views;

pub use parts::{Parts, Presence};

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
    pub(crate) fn mistake_peer(&mut self, other: std::os::fd::OwnedFd) {
        let Presence::Socket { process, .. } = &mut self.parts.presence else {
            panic!("a link between processes")
        };
        *process = Some(other);
    }

    /// Whether the peer is another process.
    pub fn is_far(&self) -> bool {
        matches!(self.parts.memory, PeerMemory::Process(_))
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

    /// An order may have left work for a poll: see `rest`.
    #[cold]
    fn rouse(&mut self, common: &mut Common) {
        common.rest.rouse(&mut common.counters, || self.has_work());
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
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Presence::Local(peer) = &self.parts.presence {
            peer.inbox.post(Letter::Gone { link: peer.link });
        }
    }
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
