//! Links of a packet rail whose path is suspect, on their way to the layer above.
//!
//! Invariant: no link is named that is not up, or whose last word was said.

use ropewalk_base::health::{Suspicion, SuspicionCounts};
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::LinkId;
use ropewalk_rail::Report;
use ropewalk_rail::interfaces::Change;
use ropewalk_rail::port::Port;
use ropewalk_transport::PacketProtocol;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Suspects {
    waiting: Vec<(SlotId, Suspicion)>,
    /// Links whose peers had no route when that was asked last.
    routeless: Vec<SlotId>,
    counts: SuspicionCounts,
}

impl Suspects {
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The local side has changed.
    #[cold]
    pub fn changed<P: Port>(
        &mut self,
        change: &Change,
        machine: &impl PacketProtocol<P::Station>,
        port: &P,
    ) {
        if let Some(cause) = change.suspicion {
            machine.each_link(&mut |link| self.waiting.push((link, cause)));
        }
        if change.may_lack_routes {
            let mut routeless = Vec::new();
            machine.each_link(&mut |link| {
                if machine.station(link).is_some_and(|station| !port.has_route(station)) {
                    routeless.push(link);
                }
            });
            let new = routeless.iter().filter(|link| !self.routeless.contains(link));
            self.waiting.extend(new.map(|link| (*link, Suspicion::RouteGone)));
            self.routeless = routeless;
        }
    }

    /// The kernel refused to send to a station.
    #[cold]
    pub fn refused<S: PartialEq>(
        &mut self,
        machine: &impl PacketProtocol<S>,
        station: S,
        number: i32,
    ) {
        machine.each_link(&mut |link| {
            let suspect = (link, Suspicion::SendError(number));
            if machine.station(link).is_some_and(|other| other == station)
                && !self.waiting.contains(&suspect)
            {
                self.waiting.push(suspect);
            }
        });
    }

    /// Tells of all of them, after the machine has reported.
    #[cold]
    pub fn tell<S>(
        &mut self,
        machine: &impl PacketProtocol<S>,
        index: u8,
        report: &mut dyn Report,
    ) {
        for (slot, cause) in self.waiting.drain(..) {
            if machine.health(slot).is_some() {
                self.counts.note(cause);
                report.suspect(LinkId { rail: index, slot }, cause);
            }
        }
    }

    /// Suspicions that were told, by cause.
    pub fn counts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        self.counts.by_name()
    }
}
