//! Gets by frames: what is asked for, and what comes back.

use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{LinkId, Placement, RemoteKey, RemoteLayout};
use ropewalk_wire::frame::{DataBody, GetBody, MORE_ASKED, Prefix, key_to_wire};

use crate::api::*;
use crate::engine::Core;
use crate::incoming::IncomingKind;

/// A get of so many bytes may be asked for together with others.
const SHORT_BYTES_MAX: u64 = 4 << 10;

impl Core {
    /// Asks for the bytes of a get, a frame for each remote segment.
    pub(super) fn ask(&mut self, id: OperationId, access: &Access) {
        let (peer, key) = (access.peer, access.key);
        match &access.remote {
            RemoteLayout::At(offset) => {
                self.ask_segment(id, peer, key, (*offset, access.local.len), (0, true));
            }
            RemoteLayout::List(list) => {
                let mut into_offset = 0;
                for segment in list.iter().filter(|segment| segment.len > 0) {
                    let range = (segment.offset, segment.len);
                    let is_last = into_offset + segment.len == access.local.len;
                    self.ask_segment(id, peer, key, range, (into_offset, is_last));
                    into_offset += segment.len;
                }
            }
            RemoteLayout::Strided(_) => unreachable!("it is fetched like elements"),
        }
    }

    /// Asks for so many bytes from an offset in a region on. `is_last`: of those that a get asks for.
    pub(super) fn ask_segment(
        &mut self,
        id: OperationId,
        peer: PeerId,
        key: RemoteKey,
        (offset, len): (u64, u64),
        (into_offset, is_last): (u64, bool),
    ) {
        let (key_slot, key_secret) = key_to_wire(key);
        let into_offset = if is_last { into_offset } else { into_offset | MORE_ASKED };
        let body = GetBody {
            key_slot,
            key_secret,
            offset: offset.into(),
            len: len.into(),
            cookie: id.0.to_u64().into(),
            into_offset: into_offset.into(),
        };
        let several = self.peers.session(peer).is_some_and(|it| it.accesses.are_several());
        self.emit(peer, body, None);
        if several && len <= SHORT_BYTES_MAX {
            self.outputs.last_is_patient();
        }
    }

    /// Bytes that we asked for arrive.
    pub(crate) fn arrive_data(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: DataBody,
    ) -> Placement {
        let bytes = u64::from(prefix.payload_bytes.get());
        let operation = OperationId(SlotId::from_u64(body.cookie.get()));
        let offset = body.offset.get();
        let ended =
            self.operations.get(operation).is_none_or(|operation| operation.ending.is_some());
        let Some(state) = self.access_mut(operation) else { return Placement::Drop };
        let asked = state.access.action == Action::Get && !state.waiting && !state.is_strided();
        if ended || state.access.peer != id || !asked {
            return Placement::Drop;
        }
        let local = state.access.local;
        if offset > local.len || bytes > local.len - offset || bytes == 0 {
            return self.violation("data outside of what was asked for");
        }
        self.retain_memory(operation);
        let kind = IncomingKind::Data { operation, bytes };
        self.place_into(link, Some(id), prefix, local.part(offset, bytes), kind)
    }

    pub(crate) fn data_received(&mut self, id: OperationId, bytes: u64) {
        let state = self.operations.access_mut(id);
        let in_parts = state.and_then(|state| Some((state.access.peer, state.pulled.as_mut()?)));
        let peer = in_parts.map(|(peer, pulled)| {
            if let Some(session) = self.peers.session_mut(peer)
                && let Some(pulling) = &mut session.accesses.pulling
            {
                pulling.frames_came(pulled, bytes);
            }
            peer
        });
        self.bytes_moved(id, bytes);
        self.release_memory(id);
        if let Some(peer) = peer {
            self.pump_pulls(peer);
        }
    }

    /// Bytes of a get are here.
    pub(super) fn bytes_moved(&mut self, id: OperationId, bytes: u64) {
        let Some(state) = self.access_mut(id) else { return };
        state.moved += bytes;
        if state.moved >= state.bytes() {
            match state.tells_after {
                false => self.access_ended(id, Ok(())),
                true => self.put_is_placed(id),
            }
        }
    }
}
