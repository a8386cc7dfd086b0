//! Gets of a session that may have several paths: in parts, each over the link that finishes it first.
//!
//! Invariants:
//! * a part goes again only after the rail that had it has let go of its memory, and parts that are here stay;
//! * a get is over when all its parts are here. It completes when no rail has any of its memory.

use ropewalk_base::error::Fault;
use ropewalk_base::verb::{LinkId, RemoteLayout, Verb};

use super::pulling::{Next, Part, Pulled};
use crate::api::*;
use crate::engine::Core;
use crate::orders::{Order, Orders};

/// The way of a part, and its bytes.
enum Way {
    Rail(LinkId, u64),
    Frames(u64),
}

impl Core {
    /// Whether gets of a session go in parts: it may have several paths, and one of those that may be used reads natively.
    pub(super) fn pulls_parts(&self, peer: PeerId, bytes: u64) -> bool {
        let Some(session) = self.peers.session(peer) else { return false };
        let may_have_several = session.reliable.is_some() && session.bundle().is_some();
        may_have_several && Part::can_name(bytes) && self.native_links(peer).next().is_some()
    }

    /// The links over which parts may be read now.
    fn native_links(&self, peer: PeerId) -> impl Iterator<Item = LinkId> {
        self.live_links(peer).filter(|link| self.rails.does(*link, Direction::Get))
    }

    fn live_links(&self, peer: PeerId) -> impl Iterator<Item = LinkId> {
        let session = self.peers.session(peer);
        session.into_iter().flat_map(|session| session.paths.usable(|link| self.is_live(link)))
    }

    pub(super) fn start_pulls(&mut self, id: OperationId, peer: PeerId) {
        let links = self.native_links(peer).count();
        let Some(state) = self.access_mut(id) else { return };
        let bytes = state.access.local.len;
        state.pulled = Some(Pulled::new(bytes, links));
        if let Some(session) = self.peers.session_mut(peer) {
            session.accesses.pulling.get_or_insert_default().begin(id, bytes);
        }
        self.pump_pulls(peer);
    }

    /// Asks for parts, as many as have a way.
    pub(crate) fn pump_pulls(&mut self, peer: PeerId) {
        while let Some(next) = self.next_pull(peer) {
            let (Next::Again(id, _) | Next::Fresh(id)) = next;
            let Some(state) = self.operations.access_mut(id) else { return };
            let bytes = state.access.local.len;
            let Some(pulled) = state.pulled.as_mut() else { return };
            let most = match next {
                Next::Again(_, part) => part.bytes.into(),
                Next::Fresh(_) => pulled.next_bytes(bytes),
            };
            let Some(way) = self.way_of_part(peer, most) else { return };
            let pulling = self.peers.session_mut(peer).and_then(|it| it.accesses.pulling.as_mut());
            let pulled = self.operations.access_mut(id).and_then(|state| state.pulled.as_mut());
            let (Some(pulling), Some(pulled)) = (pulling, pulled) else { return };
            let (Way::Rail(_, len) | Way::Frames(len)) = way;
            let part = pulling.take(next, len, pulled, bytes);
            match way {
                Way::Rail(link, _) => self.read_part(id, peer, link, part),
                Way::Frames(_) => self.ask_part(id, peer, part),
            }
        }
    }

    fn next_pull(&self, peer: PeerId) -> Option<Next> {
        self.peers.session(peer)?.accesses.pulling.as_ref()?.next()
    }

    /// The way of a part of at most so many bytes; `None`: it waits.
    fn way_of_part(&mut self, peer: PeerId, bytes: u64) -> Option<Way> {
        let session = self.peers.session_mut(peer)?;
        let mut pulling = session.accesses.pulling.take()?;
        let session = self.peers.session(peer)?;
        pulling.keep_lanes(|link| session.paths.carries(link));
        let way = if self.native_links(peer).next().is_some() {
            let chosen = pulling.choose(self.native_links(peer), bytes);
            chosen.map(|(link, bytes)| Way::Rail(link, bytes))
        } else {
            let is_up = self.live_links(peer).next().is_some();
            (is_up && pulling.has_frame_room(bytes)).then_some(Way::Frames(bytes))
        };
        if let Some(session) = self.peers.session_mut(peer) {
            session.accesses.pulling = Some(pulling);
        }
        way
    }

    fn read_part(&mut self, id: OperationId, peer: PeerId, link: LinkId, part: Part) {
        let Some(state) = self.access_mut(id) else { return };
        let (key, help, whole) = (state.access.key, state.help, state.access.local);
        let remote = part.remote(&state.access.remote, whole.len);
        let local = whole.part(part.offset(), part.bytes.into());
        let order = Order::Part { operation: id, peer, part };
        let Ok(slot) = self.orders.insert(order, link) else {
            return self.access_ended(id, Err(Fault::Busy));
        };
        self.retain_memory(id);
        self.counters.parts_read += 1;
        let token = Orders::token(slot);
        self.outputs.push(Output::Verb(Verb::Read { link, key, remote, local, token, help }));
        let now = self.now;
        if let Some(session) = self.peers.session_mut(peer) {
            if let Some(pulling) = &mut session.accesses.pulling {
                pulling.asked(link, part.bytes.into(), now);
            }
            let due = session.paths.watch(link, now);
            self.wake_by(peer, due);
        }
    }

    /// Asks for a part by frames, one for each of its remote segments. The peer keeps what it sends until we have it, so
    /// that no part of this kind comes back.
    fn ask_part(&mut self, id: OperationId, peer: PeerId, part: Part) {
        let Some(state) = self.operations.access_mut(id) else { return };
        let Some(pulled) = &mut state.pulled else { return };
        if let Some(session) = self.peers.session_mut(peer)
            && let Some(pulling) = &mut session.accesses.pulling
        {
            pulling.asked_by_frames(pulled, part.bytes.into());
        }
        let access = &state.access;
        let bytes = access.local.len;
        let (key, offset, len) = (access.key, part.offset(), u64::from(part.bytes));
        match access.remote.clone() {
            RemoteLayout::At(first) => {
                let is_last = offset + len == bytes;
                self.ask_segment(id, peer, key, (first + offset, len), (offset, is_last));
            }
            RemoteLayout::List(list) => {
                let mut into_offset = offset;
                for segment in part.segments(&list) {
                    let (first, len) = (segment.offset, segment.len);
                    let is_last = into_offset + len == bytes;
                    self.ask_segment(id, peer, key, (first, len), (into_offset, is_last));
                    into_offset += len;
                }
            }
            RemoteLayout::Strided(_) => unreachable!("strided gets have no parts"),
        }
    }

    /// A rail is done with a part.
    pub(crate) fn part_ended(
        &mut self,
        id: OperationId,
        peer: PeerId,
        link: LinkId,
        part: Part,
        outcome: Result<(), Fault>,
    ) {
        self.part_left(peer, link, part, outcome.is_ok());
        if self.is_under_way(id) {
            match outcome {
                Ok(()) => self.bytes_moved(id, part.bytes.into()),
                // The rail leaves it to frames.
                Err(Fault::NotPermitted | Fault::BadKey) => self.ask_part(id, peer, part),
                Err(Fault::PeerReset | Fault::Closed | Fault::Unreachable) => {
                    self.give_part_back(id, peer, part);
                    // Its rail will say that it is down. Nothing is tried over it until then.
                    self.close_link(link);
                }
                Err(fault) => self.access_ended(id, Err(fault)),
            }
        }
        self.release_memory(id);
        self.pump_pulls(peer);
    }

    /// A rail gave a part up as it was told: its path is suspect or closes, or nobody wants the get any more.
    pub(crate) fn part_stopped(&mut self, id: OperationId, peer: PeerId, link: LinkId, part: Part) {
        self.part_left(peer, link, part, false);
        if self.is_under_way(id) {
            self.give_part_back(id, peer, part);
        }
        self.release_memory(id);
        self.pump_pulls(peer);
    }

    pub(super) fn is_under_way(&self, id: OperationId) -> bool {
        self.operations.get(id).is_some_and(|operation| operation.ending.is_none())
    }

    fn part_left(&mut self, peer: PeerId, link: LinkId, part: Part, has_read: bool) {
        let now = self.now;
        let pulling = self.peers.session_mut(peer).and_then(|it| it.accesses.pulling.as_mut());
        if let Some(pulling) = pulling {
            pulling.ended(link, part.bytes.into(), has_read, now);
        }
    }

    fn give_part_back(&mut self, id: OperationId, peer: PeerId, part: Part) {
        self.counters.parts_returned += 1;
        let pulling = self.peers.session_mut(peer).and_then(|it| it.accesses.pulling.as_mut());
        match pulling {
            Some(pulling) => pulling.give_back(id, part),
            None => self.access_ended(id, Err(Fault::PeerReset)),
        }
    }

    /// Has rails give up all parts of a get.
    pub(crate) fn stop_parts(&mut self, id: OperationId) {
        let Some(state) = self.access_mut(id).filter(|state| state.pulled.is_some()) else {
            return;
        };
        let peer = state.access.peer;
        let session = self.peers.session(peer);
        let pulling = session.and_then(|session| session.accesses.pulling.as_ref());
        let mut links: Vec<LinkId> = pulling.into_iter().flat_map(|it| it.links()).collect();
        // Those of a session that has ended.
        links.extend(self.links_with(peer));
        let its =
            |order: &Order| matches!(*order, Order::Part { operation, .. } if operation == id);
        for slot in self.orders.over(&links, its) {
            let Some(entry) = self.orders.get(slot) else { continue };
            let (link, token) = (entry.link, Orders::token(slot));
            self.outputs.push(Output::Verb(Verb::CancelAccess { link, token }));
        }
    }

    /// A get is over: nothing of it is asked for any more, and rails let go of what they still read for it.
    pub(super) fn end_pulls(&mut self, id: OperationId, peer: PeerId, outcome: Result<(), Fault>) {
        let Some(state) = self.operations.access_mut(id) else { return };
        let bytes = state.access.local.len;
        let Some(pulled) = &mut state.pulled else { return };
        if let Some(session) = self.peers.session_mut(peer)
            && let Some(pulling) = &mut session.accesses.pulling
        {
            pulling.end(id, pulled, bytes);
        }
        if outcome.is_err() {
            self.stop_parts(id);
        }
    }

    /// A session has another link: parts that wait may go over it, and those that others read are watched, since they
    /// may be given up from now on.
    pub(crate) fn pull_over(&mut self, peer: PeerId) {
        let now = self.now;
        let Some(session) = self.peers.session_mut(peer) else { return };
        let Some(pulling) = &session.accesses.pulling else { return };
        for link in pulling.links() {
            session.paths.watch(link, now);
        }
        let due = session.due();
        self.wake_by(peer, due);
        self.pump_pulls(peer);
    }
}
