//! The side that gets and puts: accesses wait for their turn, begin, and end once.

use ropewalk_base::error::Fault;
use ropewalk_base::limits::REMOTE_SEGMENTS_MAX;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{Help, LinkId, RemoteLayout};
use ropewalk_wire::frame::{ResultBody, status_from_wire};

use crate::api::*;
use crate::engine::Core;
use crate::operation::{AccessState, Kind};
use crate::path::LinkStage;
use crate::streams::{Segments, Stream, StreamKind};

impl Core {
    /// Starts a get or put. It may complete within this call.
    pub fn post_access(&mut self, id: OperationId, mut access: Access) {
        let name = access.peer;
        let (peer, barred) = self.meant(name);
        access.peer = peer;
        let legal = match &access.remote {
            RemoteLayout::At(offset) => offset.checked_add(access.local.len).is_some(),
            RemoteLayout::List(list) => {
                let sum = list.iter().try_fold(0u64, |sum, segment| sum.checked_add(segment.len));
                list.len() <= REMOTE_SEGMENTS_MAX && sum == Some(access.local.len)
            }
        };
        let empty = access.local.len == 0;
        let access = self.operations.add_access(access, Help::None);
        self.operations.insert(id, Kind::Access(access));
        if barred != Some(Fault::Invalid) {
            self.operations.own_as(id, peer, name);
        }
        if !legal || barred.is_some() || self.closing {
            let fault = if self.closing { Fault::Closed } else { barred.unwrap_or(Fault::Invalid) };
            return self.finish(id, Err(fault), 0);
        }
        if empty {
            return self.finish(id, Ok(()), 0);
        }
        self.begin_access(id);
        self.want_session(peer);
    }

    /// Queues or starts the access of an operation.
    pub(crate) fn begin_access(&mut self, id: OperationId) {
        let Some(state) = self.access_mut(id) else { return };
        let (peer, segments) = (state.access.peer, state.segments());
        let has_room = self.peers.get(peer).is_some_and(|peer| {
            let session = peer.session.as_ref();
            peer.waiting.accesses.is_empty()
                && session.is_some_and(|session| session.accesses.under_way.has_room(segments))
                && peer.link().is_some_and(|link| self.is_live(link))
        });
        if has_room {
            return self.start_access(id);
        }
        self.queue_access(id, peer);
    }

    pub(super) fn queue_access(&mut self, id: OperationId, peer: PeerId) {
        if let Some(state) = self.access_mut(id) {
            state.waiting = true;
        }
        if let Some(peer) = self.peers.get_mut(peer) {
            self.operations.enqueue(&mut peer.waiting.accesses, id);
        }
    }

    pub(crate) fn access_mut(&mut self, id: OperationId) -> Option<&mut AccessState> {
        self.operations.access_mut(id)
    }

    /// Whether a link carries its session and is not being closed.
    pub(super) fn is_live(&self, link: LinkId) -> bool {
        self.links.get(link).is_some_and(|state| state.stage == LinkStage::Up)
    }

    pub(crate) fn pump_accesses(&mut self, id: PeerId) {
        while let Some(peer) = self.peers.get(id) {
            let Some(first) = self.operations.first_of(&peer.waiting.accesses) else { return };
            let (Some(link), Some(session)) = (peer.link(), peer.session.as_ref()) else { return };
            let segments = self.operations.access_mut(first).map_or(0, |first| first.segments());
            if !session.accesses.under_way.has_room(segments) || !self.is_live(link) {
                return;
            }
            self.unqueue_access(id, first);
            if let Some(state) = self.access_mut(first) {
                state.waiting = false;
            }
            self.start_access(first);
        }
    }

    fn start_access(&mut self, id: OperationId) {
        let Some(state) = self.access_mut(id) else { return };
        let (access, segments) = (state.access.clone(), state.segments());
        let Some(peer) = self.peers.get_mut(access.peer) else { return };
        let Some(link) = peer.link() else { return };
        let Some(session) = peer.session.as_mut() else { return };
        session.accesses.begin(segments);
        if session.is_foreign() && self.operations.is_access(id) {
            // It announces what may be read, and knows no other memory.
            return self.access_ended(id, Err(Fault::NotPermitted));
        }
        match access.direction {
            Direction::Get => self.counters.gets += 1,
            Direction::Put => self.counters.puts += 1,
        }
        let is_get = access.direction == Direction::Get;
        if is_get && self.pulls_parts(access.peer, access.local.len) {
            return self.start_pulls(id, access.peer);
        }
        // A rail's write that breaks off with its link may have happened; frames of a session that goes on happen once.
        let outlives = self.peers.session(access.peer).is_some_and(|it| it.reliable.is_some());
        if self.is_native(link) && (is_get || !outlives) {
            return self.start_native(id, link, access);
        }
        match access.direction {
            Direction::Get => self.ask(id, &access),
            Direction::Put => {
                let total = access.local.len;
                let segments = match access.remote {
                    RemoteLayout::At(offset) => Segments::At(offset),
                    RemoteLayout::List(list) => Segments::List { list, index: 0, done: 0 },
                };
                let kind = StreamKind::Put { operation: id, key: access.key, segments, total };
                let stream = Stream { kind, left: access.local };
                if let Some(session) = self.peers.session_mut(access.peer) {
                    session.streams.push(stream);
                }
                if let Some(state) = self.access_mut(id) {
                    state.streaming = true;
                }
                self.pump_streams(access.peer);
            }
        }
    }

    /// The peer tells how a get or put of ours ended.
    pub(crate) fn arrive_result(&mut self, id: PeerId, body: ResultBody) {
        let operation = OperationId(SlotId::from_u64(body.cookie.get()));
        let outcome = status_from_wire(body.status);
        let Some(state) = self.access_mut(operation) else { return };
        if state.access.peer != id || state.waiting {
            return;
        }
        if outcome.is_ok() {
            if state.access.direction == Direction::Get {
                return;
            }
            state.moved = state.access.local.len;
        }
        self.access_ended(operation, outcome);
    }

    /// A put's data frame was released by the rail; the peer's result is still awaited.
    pub(crate) fn put_frame_released(&mut self, id: OperationId, outcome: Result<(), Fault>) {
        if let Err(fault) = outcome {
            self.access_ended(id, Err(fault));
        }
        self.release_memory(id);
    }

    /// A get or put ended, one way or the other; nothing more lands.
    pub(crate) fn access_ended(&mut self, id: OperationId, outcome: Result<(), Fault>) {
        let Some(operation) = self.operations.get(id) else { return };
        if operation.ending.is_some() {
            return;
        }
        let receive = matches!(operation.kind, Kind::Receive(_));
        let Some(state) = self.access_mut(id) else { return };
        let (peer, moved, segments) = (state.access.peer, state.moved, state.segments());
        let streaming = std::mem::take(&mut state.streaming);
        if std::mem::take(&mut state.waiting) {
            self.unqueue_access(peer, id);
        } else if let Some(session) = self.peers.session_mut(peer) {
            session.accesses.under_way.end(segments);
            if streaming {
                session.streams.retain(|stream| {
                    !matches!(stream.kind, StreamKind::Put { operation, .. } if operation == id)
                });
            }
        }
        self.end_pulls(id, peer, outcome);
        if receive {
            self.fetched(id, outcome);
        } else {
            self.finish(id, outcome, moved);
        }
        self.pump_accesses(peer);
    }

    fn unqueue_access(&mut self, peer: PeerId, id: OperationId) {
        if let Some(peer) = self.peers.get_mut(peer) {
            self.operations.unqueue(&mut peer.waiting.accesses, id);
        }
    }
}
