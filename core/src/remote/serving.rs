//! Serves gets of a peer by frames: they become streams.

use ropewalk_base::error::Fault;
use ropewalk_wire::frame::{GetBody, MORE_ASKED, ResultBody, status_to_wire};

use crate::api::*;
use crate::engine::Core;
use crate::streams::{Stream, StreamKind};

impl Core {
    /// A peer asks for bytes.
    pub(crate) fn arrive_get(&mut self, id: PeerId, body: GetBody) {
        let key = self.key_of(body.key_slot, body.key_secret);
        let cookie = body.cookie.get();
        if body.len.get() == 0 {
            return self.emit_result(id, cookie, Err(Fault::Invalid));
        }
        let Some(slice) = self.check_key(id, key, body.offset.get(), body.len.get(), false) else {
            return self.emit_result(id, cookie, Err(Fault::BadKey));
        };
        let Some(session) = self.peers.session_mut(id) else { return };
        if !session.streams.has_room() {
            return self.emit_result(id, cookie, Err(Fault::Busy));
        }
        self.counters.gets_served += 1;
        let asked = body.into_offset.get();
        let (into_offset, is_last) = (asked & !MORE_ASKED, asked & MORE_ASKED == 0);
        let kind = StreamKind::Serve { region: key.slot, cookie, into_offset, is_last };
        session.streams.push(Stream { kind, left: slice });
        if let Some(region) = self.regions.get_mut(key.slot) {
            region.streams += 1;
        }
        self.pump_streams(id);
    }

    /// All bytes of a get, or of a piece of one, are on their way.
    pub(crate) fn served(&mut self, kind: &StreamKind) {
        if let StreamKind::Serve { region, is_last: true, .. } = kind {
            self.note_served(*region, Served::Get);
        }
    }

    pub(crate) fn emit_result(&mut self, id: PeerId, cookie: u64, outcome: Result<(), Fault>) {
        let status = status_to_wire(outcome);
        let body = ResultBody { cookie: cookie.into(), status, note: 0, reserved: [0; 6] };
        self.emit_control(id, body);
    }
}
