//! Native access over a link, in both directions: reads and writes of ours, and regions that the peer may access.

use std::sync::atomic::Ordering;

use ropewalk_base::error::Fault;
use ropewalk_base::memory::{BufferTable, Slice};
use ropewalk_base::verb::{Help, Ordered, RemoteKey, Token};
use ropewalk_rail::Report;

use crate::attach::Attach;
use crate::link::{Common, Link, Parts, report_done, report_failed};
use crate::native::{Access, Origin};
use crate::segment::EXPOSURES_MAX;

impl Link {
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
            Help::PreferPush => attach != Attach::Always && (mapped || !attach.pays()),
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

    /// Gives an access up: between two polls none of it is in the middle of a piece.
    pub fn stop(&mut self, token: Token) -> bool {
        let position = self.accesses.iter().position(|access| access.token == token);
        position.and_then(|position| self.accesses.remove(position)).is_some()
    }

    /// Moves the next pieces of accesses under way.
    pub(super) fn continue_accesses(
        &mut self,
        report: &mut dyn Report,
        common: &mut Common,
    ) -> bool {
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
}
