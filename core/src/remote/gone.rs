//! Memory that has gone away under an access: a peer's access is refused, and our own fails.
//!
//! Bytes that the driver copied before that stay. So a put of which the last byte is gone has been written in part.

use ropewalk_base::error::Fault;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::Token;

use crate::api::{OperationId, PeerId};
use crate::engine::Core;
use crate::incoming::{IncomingKind, OF_PUT, OF_RECEIVE};
use crate::operation::Ending;
use crate::streams::StreamKind;

/// Peers and callers hear this: the memory is not there.
const GONE: Fault = Fault::BadKey;

impl Core {
    /// A payload arrived, but some of its place is not there: called in place of [`Core::received`].
    #[cold]
    pub fn unplaced(&mut self, token: Token) {
        if token == OF_PUT {
            if let Some((id, put, _)) = self.put_here.take() {
                self.put_unplaced(id, put);
            }
            return;
        }
        if token.0 & OF_RECEIVE != 0 {
            let receive = OperationId(SlotId::from_u64(token.0 & !OF_RECEIVE));
            if let Some(operation) = self.operations.get_mut(receive) {
                operation.ending.get_or_insert(Ending { outcome: Err(GONE), bytes: 0 });
            }
            return self.receive_done(receive);
        }
        let Some(incoming) = self.incoming.remove(SlotId::from_u64(token.0)) else { return };
        let runs = |id: &PeerId| self.peers.has_session(*id, incoming.session);
        let Some(id) = incoming.peer.filter(runs) else {
            return self.incoming_lost(incoming, Fault::PeerReset);
        };
        // The peer need not send it again.
        if incoming.span != 0 {
            self.span_placed(id, incoming.span);
        }
        match incoming.kind {
            IncomingKind::Put(put) => self.put_unplaced(id, put),
            IncomingKind::LockedPut { .. } | IncomingKind::Eager { .. } => {}
            // Memory of our own. Its sender may wait for an answer that there is not.
            _ => self.close_link(incoming.link),
        }
        self.incoming_lost(incoming, GONE);
    }

    /// An operation of a peer's is over, its frames that are still to come, too: its memory is gone.
    pub(super) fn refuse_gone(&mut self, id: PeerId, number: u64) {
        self.operation_over(id, number, Err(GONE), true);
    }

    /// The memory behind a frame that serves a get is not there: the get is refused, and no frame of it follows.
    #[cold]
    pub(crate) fn serve_gone(&mut self, id: PeerId, slot: SlotId, cookie: u64) {
        let Some(session) = self.peers.session_mut(id) else { return };
        let mut dropped = 0;
        session.streams.retain(|stream| match stream.kind {
            StreamKind::Serve { region, cookie: other, .. }
                if region == slot && other == cookie =>
            {
                dropped += 1;
                false
            }
            _ => true,
        });
        if let Some(region) = self.regions.get_mut(slot) {
            region.streams -= dropped;
        }
        self.emit_result(id, cookie, Err(GONE));
    }
}
