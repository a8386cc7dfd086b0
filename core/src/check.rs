//! The invariants between any two calls, checked in full: for tests, far too slow for anything else.
//!
//! Everything that is counted in one place is recounted from the places that it stands for: holds of
//! memory, frames that rails have, credit, accesses.

use std::collections::BTreeMap;

use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::time::Time;
use ropewalk_base::verb::LinkId;

use crate::api::*;
use crate::credit::charge_bytes;
use crate::engine::Core;
use crate::incoming::{Incoming, IncomingKind};
use crate::matching::Content;
use crate::operation::{Kind, SendStage};
use crate::orders::Order;
use crate::path::{Link, LinkStage, Name, Peer, PeerStage};
use crate::remote::UnderWay;
use crate::session::Session;
use crate::streams::{Stream, StreamKind};

/// Holds as they are recounted.
#[derive(Default)]
struct Holds {
    operations: BTreeMap<OperationId, u32>,
    regions: BTreeMap<SlotId, u32>,
    frames: BTreeMap<PeerId, (u32, u32)>,
}

impl Holds {
    fn order(&mut self, order: &Order) {
        match *order {
            // Counted by the operation's stage, whoever has the frame.
            Order::Eager { .. } => {}
            Order::Fragment { operation, peer } | Order::PutFrame { operation, peer } => {
                *self.operations.entry(operation).or_default() += 1;
                self.bulk(peer);
            }
            Order::ServeFrame { region, peer } => {
                *self.regions.entry(region).or_default() += 1;
                self.bulk(peer);
            }
            Order::Native { operation, .. } => {
                *self.operations.entry(operation).or_default() += 1;
            }
            // What they stand for is kept elsewhere.
            Order::Span { .. } | Order::Shared { .. } => {}
            Order::Detached { peer, bulk } | Order::Kept { peer, bulk, .. } => {
                let counts = self.frames.entry(peer).or_default();
                counts.0 += 1;
                counts.1 += u32::from(bulk);
            }
        }
    }

    fn bulk(&mut self, peer: PeerId) {
        let counts = self.frames.entry(peer).or_default();
        counts.0 += 1;
        counts.1 += 1;
    }

    fn incoming(&mut self, incoming: &Incoming) {
        match incoming.kind {
            IncomingKind::Eager { operation }
            | IncomingKind::Fragment { operation: Some(operation), .. }
            | IncomingKind::Data { operation, .. } => {
                *self.operations.entry(operation).or_default() += 1;
            }
            IncomingKind::Put { region, .. } => *self.regions.entry(region).or_default() += 1,
            _ => {}
        }
    }
}

impl Core {
    /// Panics where an invariant does not hold.
    pub fn check(&self) {
        self.check_holds();
        for (id, peer) in self.peers.iter() {
            self.check_peer(id, peer);
        }
        self.check_links();
        self.check_names();
        let set = self.peers.iter().filter(|(_, peer)| peer.timer.is_set()).count();
        assert_eq!(self.timers.len(), set, "timers of peers that are gone");
        let sessions = self.peers.iter().filter_map(|(_, peer)| peer.session.as_ref());
        let lent: u64 = sessions.map(|session| session.lent.window_and_occupied().0).sum();
        let orphans: u64 = self
            .matching
            .messages()
            .filter(|message| !self.peers.has_session(message.peer, message.session))
            .filter(|message| !matches!(message.content, Content::Rendezvous(..)))
            .map(|message| charge_bytes(message.bytes))
            .sum();
        // Requests of ended sessions, which the driver has, count beside.
        self.pool.check(lent, orphans);
    }

    fn check_names(&self) {
        self.peers.check();
        for (id, peer) in self.peers.iter() {
            for alias in &peer.names.aliases {
                let name = self.peers.get(*alias).expect("a name is there");
                assert_eq!(name.names.alias_of, Some(id), "{alias:?} is a name of {id:?}");
                assert!(name.names.own == Name::Live && name.names.aliases.is_empty());
            }
            if let Some(main) = peer.names.alias_of {
                let main = self.peers.get(main).expect("what a name stands for is there");
                assert!(main.names.aliases.contains(&id), "{id:?} is known as a name");
            }
            let sessionless = peer.names.own == Name::Ended || peer.names.alias_of.is_some();
            assert!(!sessionless || peer.session.is_none(), "{id:?} has ended, or is a name");
        }
    }

    fn check_links(&self) {
        let carrying = |(link, state): &(LinkId, &Link)| {
            let up = state.stage == LinkStage::Up && *link != LOOP_LINK;
            assert_eq!(state.turn.is_some(), up, "{link:?} has a turn where it carries a session");
            up
        };
        let carrying: Vec<_> = self.links.iter().filter(carrying).collect();
        assert_eq!(carrying.len(), self.links.carrying(), "links that carry sessions");
        let closing = carrying.iter().filter(|(_, state)| state.closing_idle).count();
        assert_eq!(carrying.len() - closing, self.links.surplus(0), "links that go on doing so");
        let over = self.links.surplus(self.config.links_max) > 0;
        assert!(!over || self.sweep_at < Time::NEVER, "too many links, and nobody will look again");
    }

    fn check_holds(&self) {
        let mut holds = Holds::default();
        self.orders.iter().for_each(|(_, order)| holds.order(order));
        self.incoming.iter().for_each(|incoming| holds.incoming(incoming));
        for (_, peer) in self.peers.iter() {
            let Some(session) = &peer.session else { continue };
            let Some(reliable) = &session.reliable else { continue };
            reliable.sent.orders().for_each(|order| holds.order(order));
            reliable.window.broken().for_each(|incoming| holds.incoming(incoming));
        }
        let staged = |it: &&Incoming| it.is_copy() && it.slice.buffer != Slice::NONE.buffer;
        let windows =
            self.peers.iter().filter_map(|(_, it)| it.session.as_ref()?.reliable.as_ref());
        let waiting: usize = windows.map(|reliable| reliable.window.waiting_copies()).sum();
        let staged = self.incoming.iter().filter(staged).count() + waiting;
        assert_eq!(self.copies_staged as usize, staged, "copies of spans that are staged");
        for (id, operation) in self.operations.iter() {
            if let Kind::Send(state) = &operation.kind
                && state.stage == SendStage::Eager
            {
                *holds.operations.entry(id).or_default() += 1;
                holds.frames.entry(state.send.peer).or_default().0 += 1;
            }
        }
        for stream in self.streams() {
            if let StreamKind::Message { operation, .. } = stream.kind {
                *holds.operations.entry(operation).or_default() += 1;
            }
        }
        for (slot, region) in self.regions.iter() {
            let held = holds.regions.remove(&slot).unwrap_or(0);
            assert_eq!(region.retained, held, "holds of region {slot:?}");
            let served = self.streams().filter(
                |stream| matches!(stream.kind, StreamKind::Serve { region, .. } if region == slot),
            );
            assert_eq!(region.streams as usize, served.count(), "streams of region {slot:?}");
            if let Some(owner) = region.owner {
                *holds.operations.entry(owner).or_default() += 1;
            }
        }
        assert!(holds.regions.is_empty(), "regions that are gone are held: {:?}", holds.regions);
        for (id, operation) in self.operations.iter() {
            let held = holds.operations.remove(&id).unwrap_or(0);
            assert_eq!(operation.retained, held, "holds of {id:?}: {operation:?}");
            let over = operation.retained == 0 && operation.ending.is_some();
            assert!(!over, "{id:?} should have completed");
        }
        assert!(holds.operations.is_empty(), "ended operations hold: {:?}", holds.operations);
        let awaited = self.operations.iter().map(|(_, operation)| match &operation.kind {
            Kind::Receive(state) => self.matching.awaits(state.receive.into.len),
            _ => 0,
        });
        assert_eq!(
            self.matching.awaited(),
            awaited.sum::<u32>(),
            "receives for announced messages"
        );
        for (id, peer) in self.peers.iter() {
            let counted = holds.frames.remove(&id).unwrap_or_default();
            let noted = peer.in_flight.counts();
            assert_eq!(noted, counted, "frames of {id:?} that rails have");
        }
    }

    fn streams(&self) -> impl Iterator<Item = &Stream> {
        let sessions = self.peers.iter().filter_map(|(_, peer)| peer.session.as_ref());
        sessions.flat_map(|session| session.streams.iter())
    }

    fn check_peer(&self, id: PeerId, peer: &Peer) {
        self.timers.check(id, peer.timer, peer.due());
        let rests = self.evictable.check(id, peer.eviction);
        let idle = matches!(peer.stage, PeerStage::IdleClosed { .. });
        assert!(rests || peer.reachable || !idle, "{id:?} may end where there is no room");
        let fits = match peer.stage {
            PeerStage::Idle => peer.session.is_none(),
            PeerStage::Connecting { .. }
            | PeerStage::Yielded { .. }
            | PeerStage::Crowded { .. }
            | PeerStage::IdleClosed { .. } => {
                let session = peer.session.as_ref();
                session.map_or(!idle, |session| session.idle_since_post().is_some())
            }
            PeerStage::Up { .. } | PeerStage::ClosingIdle { .. } | PeerStage::Suspended { .. } => {
                let session = peer.session.as_ref();
                session.is_some_and(|session| session.idle_since_post().is_none())
            }
        };
        assert!(fits, "{id:?} is {:?} with {:?}", peer.stage, peer.session);
        match &peer.session {
            Some(session) => self.check_session(id, peer, session),
            None => assert_eq!(self.under_way(id), UnderWay::default(), "accesses of {id:?}"),
        }
        for queue in peer.waiting.sends.iter().chain([&peer.waiting.accesses]) {
            for waiting in self.operations.queued(queue) {
                let operation = self.operations.get(waiting).expect("what waits exists");
                assert!(operation.ending.is_none(), "{waiting:?} ended and waits");
            }
        }
    }

    /// Accesses with a peer that have begun.
    fn under_way(&self, id: PeerId) -> UnderWay {
        let under_way = self.operations.iter().filter_map(|(_, operation)| {
            let access = self.operations.access(operation)?;
            let counts = operation.ending.is_none() && !access.waiting && access.access.peer == id;
            counts.then(|| access.segments())
        });
        let mut counted = UnderWay::default();
        under_way.for_each(|segments| counted.begin(segments));
        counted
    }

    fn check_session(&self, id: PeerId, peer: &Peer, session: &Session) {
        let under_way = session.accesses.under_way;
        assert_eq!(under_way, self.under_way(id), "accesses of {id:?} under way");
        let (mut eager, mut announces) = (0, 0);
        let messages = self.matching.messages();
        for message in messages.filter(|it| it.peer == id && session.is_named(it.session)) {
            match message.content {
                Content::Rendezvous(..) => announces += 1,
                _ => eager += charge_bytes(message.bytes),
            }
        }
        if let Some(reliable) = &session.reliable {
            let (held_eager, held_rts) = reliable.held.charges();
            eager += held_eager;
            announces += held_rts;
        }
        session.lent.check(id, eager, announces);
        let closing = matches!(peer.stage, PeerStage::ClosingIdle { .. });
        assert!(closing || session.deferred.is_empty(), "{id:?} has answers that nobody sends");
        if session.idle_since_post().is_some() {
            let quiet =
                peer.in_flight.is_empty() && session.unfinished.is_empty() && announces == 0;
            let calm = under_way == UnderWay::default() && session.reliable.is_none();
            assert!(quiet && calm, "{id:?} is idle-closed with work under way");
        }
        for (fetching, operation) in &session.fetching {
            let known = self.operations.get(*operation).map(|operation| &operation.kind);
            let fetches = matches!(known, Some(Kind::Receive(_)));
            assert!(fetches || self.closing, "{operation:?} gets {fetching:?} and is gone");
        }
    }
}
