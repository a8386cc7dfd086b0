//! The end of a link: by an order, by the death of the peer, or by a breach of the protocol.

use std::sync::atomic::Ordering;
use std::time::Duration;

use ropewalk_base::error::Fault;
use ropewalk_base::time::Time;
use ropewalk_rail::Report;

use crate::link::{Common, Link, Parts, Presence, report_failed};
use crate::native::is_readable;

/// The time for which a peer that broke the protocol may claim to hold a region of ours.
const BROKEN_PATIENCE: Duration = Duration::from_secs(1);

impl Link {
    /// No more orders; the link ends when all earlier orders are sent.
    pub fn close(&mut self, common: &mut Common) {
        self.closing = true;
        self.rouse(common);
    }

    /// The peer has left or died.
    pub fn peer_gone(&mut self) {
        self.gone = true;
    }

    /// The peer broke the protocol, by an action or by an omission.
    pub fn break_off(&mut self, fault: Fault) {
        self.broken.get_or_insert(fault);
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
