//! Gets and puts that a rail does by itself, and what becomes of those that break off.

use ropewalk_base::error::Fault;
use ropewalk_base::verb::{Help, LinkId, Verb};

use crate::api::*;
use crate::engine::Core;
use crate::orders::{Order, Orders};
use crate::session::Session;

impl Core {
    pub(super) fn start_native(&mut self, id: OperationId, link: LinkId, access: Access) {
        let (peer, bytes) = (access.peer, access.local.len);
        let order = Order::Native { operation: id, peer, bytes };
        let token = match self.orders.insert(order, link) {
            Ok(slot) => {
                if let Some(state) = self.access_mut(id) {
                    state.native = Some(slot);
                }
                Orders::token(slot)
            }
            Err(_) => return self.access_ended(id, Err(Fault::Busy)),
        };
        self.retain_memory(id);
        let help = self.access_mut(id).map_or(Help::None, |state| state.help);
        let Access { action, key, remote, local, .. } = access;
        let verb = match action {
            Action::Get => Verb::Read { link, key, remote, local, token, help },
            _ => Verb::Write { link, key, remote, local, token },
        };
        self.outputs.push(Output::Verb(verb));
        let now = self.now;
        if let Some(session) = self.peers.session_mut(peer) {
            let due = session.paths.watch(link, now);
            self.wake_by(peer, due);
        }
    }

    pub(crate) fn native_ended(
        &mut self,
        id: OperationId,
        peer: PeerId,
        link: LinkId,
        bytes: u64,
        outcome: Result<(), Fault>,
    ) {
        if let (Some(state), true) = (self.access_mut(id), outcome.is_ok()) {
            state.moved = bytes;
        }
        // A rail may not know of a region, or know it longer than we; the peer's core judges.
        let is_left = matches!(outcome, Err(Fault::NotPermitted | Fault::BadKey));
        if is_left && self.fall_back(id, peer) {
            return self.release_memory(id);
        }
        let lost = matches!(outcome, Err(Fault::PeerReset | Fault::Closed | Fault::Unreachable));
        if !(lost && self.begin_again(id, peer, link)) {
            self.access_ended(id, outcome);
        }
        self.release_memory(id);
    }

    /// The link went away under a native read of a session that has this path alone, and resumes: the read waits for the
    /// next link. To read the same bytes once more changes nothing.
    fn begin_again(&mut self, id: OperationId, peer: PeerId, lost: LinkId) -> bool {
        let over = self.operations.get(id).is_none_or(|operation| operation.ending.is_some());
        let session = self.peers.session_mut(peer).filter(|it| it.reliable.is_some() && !over);
        let (Some(session), Some(state)) = (session, self.operations.access_mut(id)) else {
            return false;
        };
        session.accesses.under_way.end(state);
        state.waiting = true;
        // Before what was posted later: a token waits for it.
        if let Some(peer) = self.peers.get_mut(peer) {
            self.operations.put_back(&mut peer.waiting.accesses, id);
        }
        if self.peers.session(peer).is_some_and(|session| session.paths.carries(lost)) {
            // It is dead, and its rail will say so; until then nothing is tried over it again.
            self.close_link(lost);
        }
        true
    }

    /// The rail leaves a get or put to frames, which a foreign peer does not understand.
    fn fall_back(&mut self, id: OperationId, peer: PeerId) -> bool {
        if self.peers.session(peer).is_some_and(Session::is_foreign) {
            return false;
        }
        let over = self.operations.get(id).is_none_or(|operation| operation.ending.is_some());
        let Some(state) = self.access_mut(id).filter(|_| !over) else { return false };
        (state.native, state.by_frames) = (None, true);
        if let (Some(session), Some(state)) =
            (self.peers.session_mut(peer), self.operations.access_mut(id))
        {
            session.accesses.under_way.end(state);
            state.waiting = true;
        }
        // Before what was posted later: a token waits for it.
        if let Some(peer) = self.peers.get_mut(peer) {
            self.operations.put_back(&mut peer.waiting.accesses, id);
        }
        self.pump_accesses(peer);
        true
    }
}
