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
use crate::orders::{Entry, Order};
use crate::path::{Link, LinkStage, Name, Peer};
use crate::remote::UnderWay;
use crate::session::{PathId, Session};
use crate::streams::{Stream, StreamKind};

/// Holds as they are recounted.
#[derive(Default)]
struct Holds {
    operations: BTreeMap<OperationId, u32>,
    regions: BTreeMap<SlotId, u32>,
    /// Frames that rails have, by link, and data frames among them; spans that peers have not acknowledged.
    frames: BTreeMap<LinkId, (u32, u32)>,
    spans: BTreeMap<(PeerId, u32), (u32, u32)>,
}

impl Holds {
    fn entry(&mut self, entry: &Entry) {
        let Entry { order, link } = entry;
        self.order(order);
        // Eager ones are counted by their operations' stages, whoever has the frames.
        let uncounted = order.is_native()
            || matches!(order, Order::Span { .. } | Order::Shared { .. } | Order::Greeting { .. });
        if !uncounted && !matches!(order, Order::Eager { .. }) {
            count(self.frames.entry(*link).or_default(), order.is_bulk());
        }
    }

    fn span(&mut self, peer: PeerId, order: &Order, path: PathId) {
        self.order(order);
        count(self.spans.entry((peer, path.name())).or_default(), order.is_bulk());
    }

    fn order(&mut self, order: &Order) {
        match *order {
            Order::Fragment { operation, .. }
            | Order::PutFrame { operation, .. }
            | Order::Native { operation, .. }
            | Order::Part { operation, .. } => {
                *self.operations.entry(operation).or_default() += 1;
            }
            Order::Answer { .. } => {}
            Order::ServeFrame { region, .. } => *self.regions.entry(region).or_default() += 1,
            Order::Eager { .. }
            | Order::Span { .. }
            | Order::Shared { .. }
            | Order::Detached { .. }
            | Order::Greeting { .. }
            | Order::Kept { .. } => {}
        }
    }

    fn incoming(&mut self, incoming: &Incoming) {
        match incoming.kind {
            IncomingKind::Eager { operation, .. }
            | IncomingKind::Fragment { operation: Some(operation), .. }
            | IncomingKind::Elements { operation, .. }
            | IncomingKind::Data { operation, .. } => {
                *self.operations.entry(operation).or_default() += 1;
            }
            IncomingKind::LockedPut { region, .. } => {
                *self.regions.entry(region).or_default() += 1;
            }
            IncomingKind::Put(put) => *self.regions.entry(put.region).or_default() += 1,
            _ => {}
        }
    }
}

fn count(counts: &mut (u32, u32), bulk: bool) {
    counts.0 += 1;
    counts.1 += u32::from(bulk);
}

/// Things that an endpoint has and will give back: none, once all is quiet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Holdings {
    pub operations: usize,
    pub regions: usize,
    /// Orders that rails have not finished, and payloads on their way to their places.
    pub orders: usize,
    pub incoming: usize,
    /// Messages that wait for a receive, or for their turn.
    pub messages: usize,
    /// Spans that peers have not acknowledged, or that rails have.
    pub spans: usize,
    /// Copies of spans that are staged.
    pub copies: usize,
}

impl Core {
    /// The things that it has and will give back.
    pub fn held(&self) -> Holdings {
        let sessions = self.peers.iter().filter_map(|(_, peer)| peer.session.as_ref());
        let mut held = Holdings {
            operations: self.operations.iter().count(),
            regions: self.regions.iter().count(),
            orders: self.orders.iter().count(),
            incoming: self.incoming.iter().count(),
            messages: self.matching.message_count(),
            copies: self.copies_staged as usize,
            ..Holdings::default()
        };
        for reliable in sessions.filter_map(|session| session.reliable.as_ref()) {
            held.messages += reliable.held.len();
            held.spans += reliable.sent.len();
        }
        held
    }

    /// Panics where an invariant does not hold.
    pub fn check(&self) {
        self.check_holds();
        for (id, peer) in self.peers.iter() {
            self.check_peer(id, peer);
        }
        self.check_links();
        self.check_names();
        let paths = self.peers.iter().filter_map(|(_, peer)| peer.session.as_ref());
        let paths = paths.flat_map(|session| session.paths.iter());
        self.routes.controllers.check(paths.filter_map(|path| path.part()));
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
            let session = state.peer.and_then(|peer| self.peers.session(self.resolve(peer)));
            let known = session.is_some_and(|session| session.paths.carries(*link));
            assert!(known || !up || self.is_foreign(*link), "{link:?} carries a session");
            up
        };
        let carrying: Vec<_> = self.links.iter().filter(carrying).collect();
        assert_eq!(carrying.len(), self.links.carrying(), "links that carry sessions");
        let closing = carrying.iter().filter(|(_, state)| state.closing_idle).count();
        assert_eq!(carrying.len() - closing, self.links.surplus(0), "links that go on doing so");
        let over = self.links.surplus(self.config.links_max) > 0;
        let looks = self.sweep_at < Time::NEVER || self.links.are_fixed();
        assert!(!over || looks, "too many links, and nobody will look again");
    }

    fn check_staged(&self) {
        let staged = |it: &&Incoming| it.is_copy() && it.slice.buffer != Slice::NONE.buffer;
        let windows =
            self.peers.iter().filter_map(|(_, it)| it.session.as_ref()?.reliable.as_ref());
        let waiting: usize = windows.map(|reliable| reliable.window.waiting_copies()).sum();
        let staged = self.incoming.iter().filter(staged).count() + waiting;
        assert_eq!(self.copies_staged as usize, staged, "copies of spans that are staged");
        assert!(u64::from(self.copies_staged) <= self.copies_max(), "{staged} copies are staged");
        let apart = |it: &&Incoming| matches!(it.kind, IncomingKind::Apart { .. });
        let apart = self.incoming.iter().filter(apart).map(|it| u64::from(it.payload_bytes));
        assert_eq!(self.apart_bytes, apart.sum::<u64>(), "bytes that are verified apart");
    }

    fn check_holds(&self) {
        let mut holds = Holds::default();
        self.orders.iter().for_each(|(_, entry)| holds.entry(entry));
        self.incoming.iter().for_each(|incoming| holds.incoming(incoming));
        for (id, peer) in self.peers.iter() {
            let Some(session) = &peer.session else { continue };
            let Some(reliable) = &session.reliable else { continue };
            reliable.sent.orders().for_each(|(order, path)| holds.span(id, order, path));
            reliable.window.broken().for_each(|incoming| holds.incoming(incoming));
        }
        self.check_staged();
        for (id, operation) in self.operations.iter() {
            if let Kind::Send(state) = &operation.kind
                && let SendStage::Eager { link } = state.stage
            {
                *holds.operations.entry(id).or_default() += 1;
                count(holds.frames.entry(link).or_default(), false);
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
            let Some(session) = &peer.session else { continue };
            for path in session.paths.iter() {
                let noted = path.in_flight().counts();
                let counted = match session.reliable.is_some() {
                    true => holds.spans.get(&(id, path.id().name())).copied(),
                    false => path.link().and_then(|link| holds.frames.get(&link).copied()),
                };
                assert_eq!(noted, counted.unwrap_or_default(), "frames of {id:?}: {path:?}");
            }
        }
    }

    fn streams(&self) -> impl Iterator<Item = &Stream> {
        let sessions = self.peers.iter().filter_map(|(_, peer)| peer.session.as_ref());
        sessions.flat_map(|session| session.streams.iter())
    }

    fn check_peer(&self, id: PeerId, peer: &Peer) {
        self.timers.check(id, peer.timer, peer.due());
        let rests = self.evictable.check(id, peer.eviction);
        let idle = peer.resting_since().is_some();
        assert!(rests || peer.reachable || !idle, "{id:?} may end where there is no room");
        let rests = peer.session.as_ref().is_none_or(|session| session.paths.is_resting());
        assert!(rests || peer.calls.is_idle(), "{id:?} is called, and has {:?}", peer.session);
        match &peer.session {
            Some(session) => self.check_session(id, session),
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
            counts.then_some(access)
        });
        let mut counted = UnderWay::default();
        under_way.for_each(|access| counted.begin(access));
        counted
    }

    /// Every byte of a get in parts is in one place.
    fn check_pulls(&self, id: PeerId, session: &Session) {
        let Some(pulling) = &session.accesses.pulling else { return };
        let parts = || {
            self.orders.iter().filter_map(|(_, entry)| match entry.order {
                Order::Part { operation, part, .. } => Some((entry.link, operation, part)),
                _ => None,
            })
        };
        for link in pulling.links() {
            let over = parts().filter(|part| part.0 == link).map(|part| u64::from(part.2.bytes));
            assert_eq!(pulling.counts(Some(link), None)[0], over.sum(), "parts over {link:?}");
        }
        let [mut by_frames, mut left] = [0; 2];
        for (operation, state) in self.operations.iter() {
            let access = self.operations.access(state).filter(|it| it.access.peer == id);
            let Some(access) = access.filter(|_| state.ending.is_none()) else { continue };
            let (Some(pulled), bytes) = (access.pulled, access.access.local.len) else { continue };
            let own = parts().filter(|part| part.1 == operation);
            let read: u64 = own.map(|part| u64::from(part.2.bytes)).sum();
            let again = pulling.counts(None, Some(operation))[1];
            let all = access.moved + read + pulled.by_frames + again + pulled.left(bytes);
            assert_eq!(all, bytes, "{operation:?} in parts: {pulled:?}");
            by_frames += pulled.by_frames;
            left += again + pulled.left(bytes);
        }
        assert_eq!(pulling.counts(None, None)[2..], [by_frames, left], "gets in parts of {id:?}");
    }

    /// Every byte of a put or an update by frames is applied, or has an open number, or is still to have one.
    fn check_numbers(&self, id: PeerId, session: &Session) {
        let Some(one_sided) = &session.one_sided else { return };
        let due = self.marks.iter().any(|due| self.resolve(due) == id) || !one_sided.taken.is_due();
        assert!(due, "{id:?} is to be told what is applied, and nobody will");
        let mut open = BTreeMap::<OperationId, u64>::new();
        for issue in one_sided.issued.iter() {
            *open.entry(issue.operation).or_default() += u64::from(issue.bytes);
        }
        for (operation, bytes) in open {
            let state = self.operations.get(operation).filter(|state| state.ending.is_none());
            let Some(access) = state.and_then(|state| self.operations.access(state)) else {
                continue;
            };
            let unmade = one_sided.updates.left(operation, access);
            let all = access.moved + bytes + unmade;
            assert_eq!(all, access.bytes(), "{operation:?} is applied or has numbers");
        }
    }

    fn check_session(&self, id: PeerId, session: &Session) {
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
        self.check_pulls(id, session);
        self.check_numbers(id, session);
        for link in session.paths.links() {
            let state = self.links.get(link).expect("a link of a session is there");
            let carries = matches!(state.stage, LinkStage::Up | LinkStage::Closing);
            assert!(carries && state.peer.map(|peer| self.resolve(peer)) == Some(id), "{link:?}");
            let others = session.paths.links().filter(|other| *other == link).count();
            assert_eq!(others, 1, "paths of {id:?} with one link");
        }
        for path in session.paths.iter() {
            if let (Some(part), Some(reliable)) = (path.part(), &session.reliable) {
                let counted = path.link().map_or(0, |link| reliable.sent.bytes_over(link));
                assert_eq!(part.in_flight(), counted, "bytes of {id:?} in flight: {path:?}");
            }
        }
        if session.paths.is_resting() {
            let quiet = session.paths.is_settled() && session.unfinished.is_empty();
            let quiet = quiet && announces == 0;
            let calm = under_way == UnderWay::default() && !session.is_awaited();
            assert!(quiet && calm, "{id:?} is idle-closed with work under way");
        }
        for (fetching, operation) in &session.fetching {
            let known = self.operations.get(*operation).map(|operation| &operation.kind);
            let fetches = matches!(known, Some(Kind::Receive(_)));
            assert!(fetches || self.closing, "{operation:?} gets {fetching:?} and is gone");
        }
    }
}
