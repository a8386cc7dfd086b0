//! Remote access: regions and their keys, gets and puts, and serving them.
//!
//! On rails with native access the rail does it; on others frames do: a get asks, data frames come
//! back; a put's data frames can each be placed alone. Both users, the application and the
//! rendezvous, go through [`crate::operation::AccessState`].
//!
//! Invariants: a key is checked by slot, generation, secret, audience and range before a byte moves;
//! a region is given back only after no order, placement or rail holds it.

use ropewalk_base::error::Fault;
use ropewalk_base::limits::REMOTE_SEGMENTS_MAX;
use ropewalk_base::memory::Slice;
use ropewalk_base::slots::SlotId;
use ropewalk_base::verb::{Help, LinkId, Placement, RemoteKey, RemoteLayout, Urgency, Verb};
use ropewalk_wire::frame::{
    DataBody, FragmentBody, GetBody, Prefix, PutBody, ResultBody, key_from_wire, key_to_wire,
    status_from_wire, status_to_wire,
};

use crate::api::*;
use crate::engine::{Core, LandingKind, Order, Payload};
use crate::operation::{AccessState, Kind};
use crate::path::{
    BULK_BYTES_PER_PASS, BULK_PENDING_BYTES, BULK_PENDING_MAX, BULK_PENDING_SHORT_MAX,
    FRAMES_PENDING_MAX, Link, LinkStage, PUTS_MAX, STREAMS_MAX, Segments, Stream, StreamKind,
};
use crate::regions::Region;

/// Emptied lists that are kept, so that announced messages allocate nothing.
const SPARE_MAX: usize = 64;

impl Core {
    /// Makes memory accessible. The key is what a peer needs.
    pub fn expose(
        &mut self,
        slice: Slice,
        writable: bool,
        audience: Audience,
    ) -> Result<RemoteKey, Fault> {
        let audience = match audience {
            Audience::One(peer) => Audience::One(self.resolve(peer)),
            Audience::Everybody => Audience::Everybody,
        };
        self.open_region(slice, writable, audience, None)
    }

    fn open_region(
        &mut self,
        slice: Slice,
        writable: bool,
        audience: Audience,
        owner: Option<OperationId>,
    ) -> Result<RemoteKey, Fault> {
        let secret = self.random.next_u64();
        let region = Region {
            secret,
            slice,
            writable,
            audience,
            owner,
            closing: false,
            held: 0,
            streams: 0,
            exposed: self.spare_lists.pop().unwrap_or_default(),
        };
        let slot = self.regions.insert(region).map_err(|_| Fault::Busy)?;
        let key = RemoteKey { slot, secret };
        self.expose_to(audience, key);
        Ok(key)
    }

    /// The one-shot region of an announced send.
    pub(crate) fn expose_for(
        &mut self,
        peer: PeerId,
        slice: Slice,
        owner: OperationId,
    ) -> Option<RemoteKey> {
        let key = self.open_region(slice, false, Audience::One(peer), Some(owner)).ok()?;
        self.hold(owner);
        self.announced += 1;
        Some(key)
    }

    fn is_native(&self, link: LinkId) -> bool {
        self.rails.get(usize::from(link.rail)).is_some_and(|rail| rail.native_read)
    }

    /// Tells of a region on the links with native access whose peers may use it: those that carry a
    /// session, and those whose peers we have greeted already.
    fn expose_to(&mut self, audience: Audience, key: RemoteKey) {
        let up = match audience {
            Audience::One(peer) => self.peers.get(peer.0).and_then(|peer| peer.link()),
            Audience::Everybody => None,
        };
        if let Some(link) = up {
            // The way of every announced message: no list of links is made.
            return self.expose_on(link, key);
        }
        let greeted = |state: &Link| {
            let agreed = state.stage == LinkStage::Agreed && !state.outbound;
            state.peer.is_some() && (agreed || state.stage == LinkStage::Up)
        };
        let links = match audience {
            Audience::One(peer) => self.links.of_peer(peer),
            Audience::Everybody if self.rails.iter().any(|rail| rail.native_read) => {
                let mut links: Vec<LinkId> = self.links.iter().map(|(link, _)| link).collect();
                links.sort_unstable();
                links
            }
            Audience::Everybody => return,
        };
        for link in links {
            if self.links.get(link).is_some_and(greeted) {
                self.expose_on(link, key);
            }
        }
    }

    fn expose_on(&mut self, link: LinkId, key: RemoteKey) {
        if !self.is_native(link) {
            return;
        }
        let Some(region) = self.regions.get_mut(key.slot) else { return };
        region.exposed.push(link);
        let (region, writable) = (region.slice, region.writable);
        let verb = Verb::Expose { link, key, region, writable };
        self.outputs.push(Output::Verb(verb));
    }

    /// A session began: regions that its peer may use are told to its rail.
    pub(crate) fn expose_existing(&mut self, id: PeerId, link: LinkId) {
        if !self.is_native(link) {
            return;
        }
        for slot in self.regions.open_to(id) {
            if let Some(region) = self.regions.get(slot).filter(|region| !region.closing) {
                self.expose_on(link, RemoteKey { slot, secret: region.secret });
            }
        }
    }

    /// Ends a region; `Unexposed` tells when nobody holds it any more.
    pub fn unexpose(&mut self, key: RemoteKey) -> Result<(), Fault> {
        match self.regions.get(key.slot) {
            Some(region) if region.secret == key.secret && !region.closing => {
                self.close_region(key.slot);
                // What a peer has not acknowledged yet will be soon, and would be copied here each time.
                self.take_region_back(key.slot, false);
                Ok(())
            }
            _ => Err(Fault::BadKey),
        }
    }

    pub(crate) fn close_region(&mut self, slot: SlotId) {
        let Some(region) = self.regions.get_mut(slot) else { return };
        if region.closing {
            return;
        }
        region.closing = true;
        let key = RemoteKey { slot, secret: region.secret };
        for &link in &region.exposed {
            self.outputs.push(Output::Verb(Verb::Revoke { link, key }));
        }
        self.drop_streams_of(slot);
        self.try_end_region(slot);
    }

    /// A rail confirms that nobody uses the region over this link any more.
    pub fn revoked(&mut self, link: LinkId, key: RemoteKey) {
        if let Some(region) = self.regions.get_mut(key.slot) {
            region.exposed.retain(|other| *other != link);
        }
        self.try_end_region(key.slot);
    }

    /// A link is gone, and with it what its rail held.
    pub(crate) fn revoked_by_loss(&mut self, link: LinkId, peer: Option<PeerId>) {
        let Some(peer) = peer.filter(|_| self.is_native(link)) else { return };
        for slot in self.regions.open_to(peer) {
            let Some(region) = self.regions.get_mut(slot) else { continue };
            if region.exposed.contains(&link) {
                region.exposed.retain(|other| *other != link);
                self.try_end_region(slot);
            }
        }
    }

    pub(crate) fn region_let_go(&mut self, slot: SlotId) {
        if let Some(region) = self.regions.get_mut(slot) {
            assert!(region.held > 0, "a rail lets go of what it held");
            region.held -= 1;
        }
        self.try_end_region(slot);
    }

    fn try_end_region(&mut self, slot: SlotId) {
        let over = self
            .regions
            .get(slot)
            .is_some_and(|region| region.closing && region.held == 0 && region.exposed.is_empty());
        if !over {
            return;
        }
        let Some(region) = self.regions.remove(slot) else { return };
        if self.spare_lists.len() < SPARE_MAX {
            self.spare_lists.push(region.exposed);
        }
        match region.owner {
            Some(operation) => {
                self.announced -= 1;
                self.let_go(operation);
            }
            None => {
                let key = RemoteKey { slot, secret: region.secret };
                self.outputs.push(Output::Unexposed { key });
            }
        }
    }

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
        let idle = self.peers.get(peer.0).is_some_and(|peer| {
            peer.waiting_accesses.is_empty()
                && peer.link().is_some_and(|link| self.is_live(link))
                && peer.under_way.has_room(segments)
        });
        if idle {
            return self.start_access(id);
        }
        self.queue_access(id, peer);
    }

    fn queue_access(&mut self, id: OperationId, peer: PeerId) {
        if let Some(state) = self.access_mut(id) {
            state.waiting = true;
        }
        if let Some(peer) = self.peers.get_mut(peer.0) {
            self.operations.enqueue(&mut peer.waiting_accesses, id);
        }
    }

    pub(crate) fn access_mut(&mut self, id: OperationId) -> Option<&mut AccessState> {
        self.operations.access_mut(id)
    }

    /// Whether a link carries its session and is not being closed.
    fn is_live(&self, link: LinkId) -> bool {
        self.links.get(link).is_some_and(|state| state.stage == LinkStage::Up)
    }

    pub(crate) fn pump_accesses(&mut self, id: PeerId) {
        while let Some(peer) = self.peers.get(id.0) {
            let Some(first) = self.operations.first_of(&peer.waiting_accesses) else { return };
            let Some(link) = peer.link() else { return };
            let segments = self.operations.access_mut(first).map_or(0, |first| first.segments());
            if !peer.under_way.has_room(segments) || !self.is_live(link) {
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
        let Some(peer) = self.peers.get_mut(access.peer.0) else { return };
        peer.under_way.begin(segments);
        peer.accesses_begun += 1;
        let Some(link) = peer.link() else { return };
        if peer.foreign && self.operations.is_access(id) {
            // It announces what may be read, and knows no other memory.
            return self.access_ended(id, Err(Fault::NotPermitted));
        }
        match access.direction {
            Direction::Get => self.counters.gets += 1,
            Direction::Put => self.counters.puts += 1,
        }
        if self.is_native(link) {
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
                if let Some(peer) = self.peers.get_mut(access.peer.0) {
                    peer.streams.push_back(stream);
                }
                if let Some(state) = self.access_mut(id) {
                    state.streaming = true;
                }
                self.pump_streams(access.peer);
            }
        }
    }

    fn start_native(&mut self, id: OperationId, link: LinkId, access: Access) {
        let (peer, bytes) = (access.peer, access.local.len);
        let order = Order::Native { operation: id, peer, link, bytes };
        let token = match self.orders.insert(order) {
            Ok(slot) => {
                if let Some(state) = self.access_mut(id) {
                    state.native = Some(slot);
                }
                Core::table_token(slot)
            }
            Err(_) => return self.access_ended(id, Err(Fault::Busy)),
        };
        self.hold(id);
        let help = self.access_mut(id).map_or(Help::None, |state| state.help);
        let Access { direction, key, remote, local, .. } = access;
        let verb = match direction {
            Direction::Get => Verb::Read { link, key, remote, local, token, help },
            Direction::Put => Verb::Write { link, key, remote, local, token },
        };
        self.outputs.push(Output::Verb(verb));
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
        if outcome == Err(Fault::NotPermitted) && self.ask_instead(id) {
            return self.let_go(id);
        }
        let lost = matches!(outcome, Err(Fault::PeerReset | Fault::Closed | Fault::Unreachable));
        if !(lost && self.begin_again(id, peer, link)) {
            self.access_ended(id, outcome);
        }
        self.let_go(id);
    }

    /// The link went away under a native access, but its session resumes: the access waits for the
    /// next link. Reading or writing the same bytes once more changes nothing.
    fn begin_again(&mut self, id: OperationId, peer: PeerId, lost: LinkId) -> bool {
        let segments = self.access_mut(id).map_or(0, |access| access.segments());
        let Some(state) = self.peers.get_mut(peer.0) else { return false };
        let over = self.operations.get(id).is_none_or(|operation| operation.ending.is_some());
        if state.reliable.is_none() || over {
            return false;
        }
        state.under_way.end(segments);
        let link = state.link();
        self.queue_access(id, peer);
        if link == Some(lost) {
            // It is dead, and its rail will say so; until then nothing is tried over it again.
            self.close_link(lost);
        }
        true
    }

    /// The rail leaves a get to frames.
    fn ask_instead(&mut self, id: OperationId) -> bool {
        let over = self.operations.get(id).is_none_or(|operation| operation.ending.is_some());
        let get = |state: &&mut AccessState| state.access.direction == Direction::Get && !over;
        let Some(state) = self.access_mut(id).filter(get) else { return false };
        state.native = None;
        let access = state.access.clone();
        self.ask(id, &access);
        true
    }

    /// Asks for the bytes of a get, a frame for each remote segment.
    fn ask(&mut self, id: OperationId, access: &Access) {
        let (key_slot, key_secret) = key_to_wire(access.key);
        let mut into_offset = 0;
        let mut ask_one = |core: &mut Core, offset: u64, len: u64| {
            let body = GetBody {
                key_slot,
                key_secret,
                offset: offset.into(),
                len: len.into(),
                cookie: id.0.to_u64().into(),
                into_offset: into_offset.into(),
            };
            into_offset += len;
            core.emit(access.peer, body, None);
        };
        match &access.remote {
            RemoteLayout::At(offset) => ask_one(self, *offset, access.local.len),
            RemoteLayout::List(list) => {
                for segment in list.iter().filter(|segment| segment.len > 0) {
                    ask_one(self, segment.offset, segment.len);
                }
            }
        }
    }

    /// Checks a key as a peer presents it; the slice of the range where it holds.
    fn check_key(
        &self,
        id: PeerId,
        key: RemoteKey,
        offset: u64,
        len: u64,
        write: bool,
    ) -> Option<Slice> {
        let region = self.regions.get(key.slot)?;
        let audience = match region.audience {
            Audience::Everybody => true,
            Audience::One(peer) => peer == id,
        };
        let holds = region.secret == key.secret
            && !region.closing
            && audience
            && (!write || region.writable)
            && offset <= region.slice.len
            && len <= region.slice.len - offset;
        holds.then(|| region.slice.part(offset, len))
    }

    /// A peer asks for bytes.
    pub(crate) fn arrive_get(&mut self, id: PeerId, body: GetBody) {
        let key = key_from_wire(body.key_slot, body.key_secret);
        let cookie = body.cookie.get();
        if body.len.get() == 0 {
            return self.emit_result(id, cookie, Err(Fault::Invalid));
        }
        let Some(slice) = self.check_key(id, key, body.offset.get(), body.len.get(), false) else {
            return self.emit_result(id, cookie, Err(Fault::BadKey));
        };
        let Some(peer) = self.peers.get_mut(id.0) else { return };
        if peer.streams.len() >= STREAMS_MAX {
            return self.emit_result(id, cookie, Err(Fault::Busy));
        }
        self.counters.gets_served += 1;
        let into_offset = body.into_offset.get();
        let kind = StreamKind::Serve { region: key.slot, cookie, into_offset };
        peer.streams.push_back(Stream { kind, left: slice });
        if let Some(region) = self.regions.get_mut(key.slot) {
            region.streams += 1;
        }
        self.pump_streams(id);
    }

    pub(crate) fn emit_result(&mut self, id: PeerId, cookie: u64, outcome: Result<(), Fault>) {
        let status = status_to_wire(outcome);
        let body = ResultBody { cookie: cookie.into(), status, reserved: [0; 7] };
        self.emit_control(id, body);
    }

    /// Makes data frames, the peer's streams in turn, as many as its link takes.
    pub(crate) fn pump_streams(&mut self, id: PeerId) {
        loop {
            let Some(peer) = self.peers.get_mut(id.0) else { return };
            if peer.link().is_none() {
                return;
            }
            let Some(next) = peer.streams.front().map(|stream| stream.left.len.max(1)) else {
                return;
            };
            let together = (BULK_PENDING_BYTES / next).min(BULK_PENDING_SHORT_MAX) as u32;
            let full = peer.bulk_pending >= together.max(BULK_PENDING_MAX);
            if full || peer.frames_pending >= FRAMES_PENDING_MAX {
                return;
            }
            if self.bulk_left == 0 && !peer.streams.is_empty() {
                // A peer that reads as fast as we send would keep this pass from everybody else.
                if !std::mem::replace(&mut peer.throttled, true) {
                    self.throttled.push_back(id);
                }
                return;
            }
            let Some(mut stream) = peer.streams.pop_front() else { return };
            let max = peer.granted.frame_bytes;
            self.bulk_left = self.bulk_left.saturating_sub(stream.left.len.min(max));
            self.send_part(id, &mut stream, max);
            if stream.left.len == 0 {
                self.stream_ended(&stream.kind);
            } else if let Some(peer) = self.peers.get_mut(id.0) {
                peer.streams.push_back(stream);
            }
        }
    }

    /// A pass begins: data frames have room again, and those who waited for it come in turn.
    pub(crate) fn refill_bulk(&mut self) {
        self.bulk_left = BULK_BYTES_PER_PASS;
        // Those for whom nothing is left stay where they are, and come first in the next pass.
        while self.bulk_left > 0 {
            let Some(id) = self.throttled.pop_front() else { return };
            if let Some(peer) = self.peers.get_mut(id.0) {
                peer.throttled = false;
            }
            self.pump(id);
        }
    }

    /// All data frames of a stream were made, or none are made any more.
    pub(crate) fn stream_ended(&mut self, kind: &StreamKind) {
        match kind {
            StreamKind::Serve { region, .. } => {
                if let Some(region) = self.regions.get_mut(*region) {
                    region.streams -= 1;
                }
            }
            StreamKind::Message { operation, .. } => self.let_go(*operation),
            StreamKind::Put { operation, .. } => {
                if let Some(state) = self.access_mut(*operation) {
                    state.streaming = false;
                }
            }
        }
    }

    fn send_part(&mut self, id: PeerId, stream: &mut Stream, max: u64) {
        let len = stream.left.len.min(max);
        let bulk = |order, left: &mut Slice, len| {
            let slice = left.part(0, len);
            *left = left.part(len, left.len - len);
            Some(Payload { slice, urgency: Urgency::Bulk, order })
        };
        match &mut stream.kind {
            StreamKind::Message { operation, channel, message, offset } => {
                let body = FragmentBody {
                    message: (*message).into(),
                    offset: (*offset).into(),
                    channel: *channel as u8,
                    reserved: [0; 7],
                };
                *offset += len;
                let operation = *operation;
                self.counters.fragments_sent += 1;
                self.hold(operation);
                let order = Order::Fragment { operation, peer: id };
                self.emit(id, body, bulk(order, &mut stream.left, len));
            }
            StreamKind::Serve { region, cookie, into_offset } => {
                if let Some(state) = self.regions.get_mut(*region) {
                    state.held += 1;
                }
                let body = DataBody { cookie: (*cookie).into(), offset: (*into_offset).into() };
                // The peer's own number: it is its affair where this ends.
                *into_offset = into_offset.wrapping_add(len);
                let order = Order::ServeFrame { region: *region, peer: id };
                self.emit(id, body, bulk(order, &mut stream.left, len));
            }
            StreamKind::Put { operation, key, segments, total } => {
                let (offset, here) = segments.next(len);
                let (key_slot, key_secret) = key_to_wire(*key);
                let body = PutBody {
                    key_slot,
                    key_secret,
                    offset: offset.into(),
                    cookie: operation.0.to_u64().into(),
                    total_bytes: (*total).into(),
                };
                let operation = *operation;
                self.hold(operation);
                let order = Order::PutFrame { operation, peer: id };
                self.emit(id, body, bulk(order, &mut stream.left, here));
            }
        }
    }

    fn drop_streams_of(&mut self, slot: SlotId) {
        match self.regions.get(slot).filter(|it| it.streams > 0).map(|region| region.audience) {
            Some(Audience::One(peer)) => self.drop_streams_to(peer, slot),
            Some(Audience::Everybody) => {
                let ids: Vec<PeerId> = self.peers.iter().map(|(slot, _)| PeerId(slot)).collect();
                ids.into_iter().for_each(|id| self.drop_streams_to(id, slot));
            }
            None => {}
        }
    }

    fn drop_streams_to(&mut self, id: PeerId, slot: SlotId) {
        let Some(peer) = self.peers.get_mut(id.0) else { return };
        let mut refused = Vec::new();
        peer.streams.retain(|stream| match stream.kind {
            StreamKind::Serve { region, cookie, .. } if region == slot => {
                refused.push(cookie);
                false
            }
            _ => true,
        });
        if let Some(region) = self.regions.get_mut(slot) {
            region.streams -= refused.len() as u32;
        }
        for cookie in refused {
            self.emit_result(id, cookie, Err(Fault::BadKey));
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
        let asked = state.access.direction == Direction::Get && !state.waiting;
        if ended || state.access.peer != id || !asked {
            return Placement::Drop;
        }
        let local = state.access.local;
        if offset > local.len || bytes > local.len - offset || bytes == 0 {
            return self.violation("data outside of what was asked for");
        }
        self.hold(operation);
        let kind = LandingKind::Data { operation, bytes };
        self.land_into(link, Some(id), prefix, local.part(offset, bytes), kind)
    }

    pub(crate) fn data_landed(&mut self, id: OperationId, bytes: u64) {
        if let Some(state) = self.access_mut(id) {
            state.moved += bytes;
            if state.moved >= state.access.local.len {
                self.access_ended(id, Ok(()));
            }
        }
        self.let_go(id);
    }

    /// Bytes for a region of ours arrive.
    pub(crate) fn arrive_put(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: PutBody,
    ) -> Placement {
        let bytes = u64::from(prefix.payload_bytes.get());
        let key = key_from_wire(body.key_slot, body.key_secret);
        let cookie = body.cookie.get();
        if bytes == 0 {
            return self.violation("a put of nothing");
        }
        let Some(slice) = self.check_key(id, key, body.offset.get(), bytes, true) else {
            self.emit_result(id, cookie, Err(Fault::BadKey));
            return Placement::Drop;
        };
        let total = body.total_bytes.get();
        let Some(region) = self.regions.get_mut(key.slot) else { return Placement::Drop };
        region.held += 1;
        let kind = LandingKind::Put { region: key.slot, cookie, bytes, total };
        self.land_into(link, Some(id), prefix, slice, kind)
    }

    pub(crate) fn put_landed(
        &mut self,
        peer: Option<PeerId>,
        slot: SlotId,
        cookie: u64,
        bytes: u64,
        total: u64,
    ) {
        if let Some((id, peer)) = peer.and_then(|id| Some((id, self.peers.get_mut(id.0)?))) {
            let index = peer.puts.iter().position(|put| put.0 == slot && put.1 == cookie);
            let before = index.map_or(0, |index| peer.puts[index].2);
            if before + bytes >= total {
                if let Some(index) = index {
                    peer.puts.remove(index);
                }
                self.emit_result(id, cookie, Ok(()));
            } else if let Some(index) = index {
                peer.puts[index].2 += bytes;
            } else {
                if peer.puts.len() >= PUTS_MAX {
                    peer.puts.pop_front();
                }
                peer.puts.push_back((slot, cookie, bytes));
            }
        }
        self.region_let_go(slot);
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
        self.let_go(id);
    }

    /// A get or put ended, one way or the other.
    pub(crate) fn access_ended(&mut self, id: OperationId, outcome: Result<(), Fault>) {
        let Some(operation) = self.operations.get(id) else { return };
        if operation.ending.is_some() {
            return;
        }
        let receive = matches!(operation.kind, Kind::Receive(_));
        let Some(state) = self.access_mut(id) else { return };
        let (peer, moved, segments) = (state.access.peer, state.moved, state.segments());
        let streaming = std::mem::take(&mut state.streaming);
        if let Some(peer) = self.peers.get_mut(peer.0) {
            peer.under_way.end(segments);
            if streaming {
                peer.streams.retain(|stream| {
                    !matches!(stream.kind, StreamKind::Put { operation, .. } if operation == id)
                });
            }
        }
        if receive {
            self.fetched(id, outcome);
        } else {
            self.finish(id, outcome, moved);
        }
        self.pump_accesses(peer);
    }

    /// Stops an access before its end: nothing more lands.
    pub(crate) fn stop_access(&mut self, id: OperationId, fault: Fault) {
        let Some(state) = self.access_mut(id) else { return };
        if state.waiting {
            let (peer, segments) = (state.access.peer, state.segments());
            state.waiting = false;
            self.unqueue_access(peer, id);
            if let Some(peer) = self.peers.get_mut(peer.0) {
                // `access_ended` counts it as one that had begun.
                peer.under_way.begin(segments);
            }
        }
        self.access_ended(id, Err(fault));
    }

    fn unqueue_access(&mut self, peer: PeerId, id: OperationId) {
        if let Some(peer) = self.peers.get_mut(peer.0) {
            self.operations.unqueue(&mut peer.waiting_accesses, id);
        }
    }
}

impl Segments {
    /// Where the next bytes go, at most `len`, and how many they are; moves on.
    fn next(&mut self, len: u64) -> (u64, u64) {
        match self {
            Segments::At(offset) => {
                let begin = *offset;
                *offset += len;
                (begin, len)
            }
            Segments::List { list, index, done } => {
                while *done >= list[*index].len {
                    *index += 1;
                    *done = 0;
                }
                let segment = list[*index];
                let here = len.min(segment.len - *done);
                let begin = segment.offset.wrapping_add(*done);
                *done += here;
                (begin, here)
            }
        }
    }
}
