//! Looks of the rail at links that are one of several paths: whether what they send is acknowledged.

use std::os::fd::AsFd;

use ropewalk_base::health::Suspicion;
use ropewalk_base::verb::LinkId;
use ropewalk_rail::Report;

use crate::health::Info;
use crate::link::State;
use crate::rail::TcpRail;
use crate::stall::Sight;

impl TcpRail {
    /// Looks at the links whose time has come. True where one of them is suspect.
    #[cold]
    pub(crate) fn look_for_stalls(&mut self, report: &mut dyn Report) -> bool {
        let (now, mut any) = (self.now, false);
        while let Some(slot) = self.stalls.take_due(now) {
            let link = self.links.get_mut(slot);
            let Some((stall, socket)) = link.and_then(|link| {
                let socket = link.socket.as_ref().filter(|_| link.state == State::Up)?;
                Some((link.stall.as_mut()?, socket))
            }) else {
                continue;
            };
            self.counters.system_calls += 1;
            self.statistics.stall_looks += 1;
            let Some(info) = Info::of(socket.as_fd()) else {
                stall.end();
                continue;
            };
            stall.measured(info.round_trips());
            if stall.saw(seen(&info), now) {
                any = true;
                let link = LinkId { rail: self.index, slot };
                report.suspect(link, Suspicion::Unacknowledged);
            }
            if let Some(next) = stall.look_at() {
                debug_assert!(next > now, "one look at a link in a pass");
                self.stalls.look_at(slot, next);
            }
        }
        any
    }
}

fn seen(info: &Info) -> Sight {
    let has_none_in_flight = info.segments_in_flight() == 0;
    Sight {
        acknowledged: info.acknowledged(),
        is_all: has_none_in_flight && info.unsent_bytes() == 0,
        heard: info.acknowledgement_age(),
        // What has not left waits for room: in the peer's window, or in the network's.
        is_peer_full: has_none_in_flight || info.is_window_closed(),
    }
}
