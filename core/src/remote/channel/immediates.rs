//! Puts with immediate data: the data leaves after its put, in the order of the posts, and becomes an event at the peer.
//!
//! * Short puts are one frame with their data. Longer ones are puts by frames first; when all is at its place, a frame without payload has
//!   the data.
//! * Either frame is a token: it takes effect once all operations with lower numbers are over.
//! * An event counts as a request without bytes, against the credit that the peer lent: it comes back when its user has taken the
//!   event. Without credit the data waits here.

use ropewalk_base::error::Fault;
use ropewalk_base::limits::LOCKED_PUT_BYTES_MAX;
use ropewalk_base::verb::{LinkId, Placement, RemoteKey, RemoteLayout, Urgency};
use ropewalk_wire::frame::{ImmediateBody, Prefix, TELL, key_to_wire};

use super::issued::{Class, Issue};
use super::puts::PutFrame;
use super::taken::{Effect, Held, Notice};
use crate::api::*;
use crate::credit::Charge;
use crate::engine::Core;
use crate::orders::{Order, Payload};

/// The charge of an event.
const CHARGE: Charge = Charge::Eager { channel: Channel::Request, payload_bytes: 0 };

impl Core {
    /// A put with immediate data begins: its bytes leave, or wait for their turn with their data.
    #[cold]
    pub(in crate::remote) fn start_immediate(&mut self, id: OperationId) {
        let Core { operations, peers, .. } = self;
        let Some(state) = operations.access_mut(id) else { return };
        let Some(session) = peers.session_mut(state.access.peer) else { return };
        state.tells_after = state.puts_first();
        state.unnumbered = false;
        session.accesses.begin(state);
        if session.is_foreign() {
            return self.access_ended(id, Err(Fault::NotPermitted));
        }
        session.one_sided().immediates.push_back(id);
        self.counters.puts += 1;
        match state.tells_after {
            true => self.start_put(id),
            false => {
                let peer = state.access.peer;
                self.pump_immediates(peer);
            }
        }
    }

    /// The bytes of a put with immediate data are at their place; the data follows.
    #[cold]
    pub(in crate::remote) fn put_is_placed(&mut self, id: OperationId) {
        let Some(state) = self.operations.access_mut(id) else { return };
        state.tells_after = false;
        let peer = state.access.peer;
        self.pump(peer);
    }

    /// A put with immediate data is over; its data does not leave any more, if it has not left.
    #[cold]
    pub(in crate::remote) fn immediate_ended(&mut self, id: OperationId, peer: PeerId) {
        let session = self.peers.session_mut(peer);
        let Some(one_sided) = session.and_then(|it| it.one_sided.as_mut()) else { return };
        one_sided.immediates.retain(|other| *other != id);
        self.pump_immediates(peer);
    }

    /// Immediate data leaves, for which it is time.
    pub(crate) fn pump_immediates(&mut self, peer: PeerId) {
        while let Some(id) = self.next_immediate(peer) {
            self.send_immediate(id, peer);
        }
    }

    fn next_immediate(&mut self, peer: PeerId) -> Option<OperationId> {
        let session = self.peers.session_mut(peer)?;
        let one_sided = session.one_sided.as_ref()?;
        let first = *one_sided.immediates.front()?;
        let state = self.operations.access_mut(first)?;
        let is_up = session.reliable.is_some() || session.paths.control().is_some();
        let has_room = one_sided.issued.has_room(1) && one_sided.issued.follows(Class::Token, true);
        if state.tells_after || !is_up || !has_room {
            return None;
        }
        if !session.granted.take_eager(Channel::Request, 0) {
            return None;
        }
        session.one_sided().immediates.pop_front()
    }

    fn send_immediate(&mut self, id: OperationId, peer: PeerId) {
        let Some(state) = self.operations.access_mut(id) else { return };
        let Action::Immediate { data } = state.access.action else { return };
        let (rides, access) = (!state.puts_first(), state.access.clone());
        let offset = match &access.remote {
            RemoteLayout::At(offset) => *offset,
            RemoteLayout::List(list) => list.first().map_or(0, |segment| segment.offset),
            RemoteLayout::Strided(_) => return,
        };
        let len = access.local.len;
        let Some(session) = self.peers.session_mut(peer) else { return };
        let bytes = if rides { len as u32 } else { 0 };
        let issue = Issue { class: Class::Token, ..Issue::put(id, bytes) };
        let number = session.one_sided().issued.issue(issue);
        let (key_slot, key_secret) = key_to_wire(access.key);
        let body = ImmediateBody {
            key_slot,
            key_secret,
            offset: offset.into(),
            number: number.into(),
            data: data.into(),
            len: len.into(),
            flags: TELL.into(),
            reserved: [0; 6],
        };
        if bytes == 0 {
            return self.emit_control(peer, body);
        }
        self.retain_memory(id);
        let order = Order::PutFrame { operation: id, peer, bulk: false };
        let payload = Payload { slice: access.local, urgency: Urgency::Urgent, order };
        self.emit(peer, body, Some(payload));
    }

    /// Immediate data of a peer's arrives, with the bytes of its put or after them.
    pub(crate) fn arrive_immediate(
        &mut self,
        link: LinkId,
        id: PeerId,
        prefix: &Prefix,
        body: &ImmediateBody,
    ) -> Placement {
        let (total, number) = (prefix.payload_bytes.get(), body.number.get());
        let (offset, bytes) = (body.offset.get(), body.len.get());
        if total > 0 && (u64::from(total) != bytes || total > LOCKED_PUT_BYTES_MAX) {
            return self.violation("immediate data with other bytes than it says");
        }
        if let Err(placement) = self.is_to_come(id, number) {
            return placement;
        }
        let key = self.key_of(body.key_slot, body.key_secret);
        let slice = self.check_key(id, key, offset, total.into(), true);
        // Bytes that are applied are the peer's word; not more than there are.
        let takes_events = self
            .regions
            .get(key.slot)
            .is_some_and(|region| region.events && bytes <= region.slice.len);
        let Some(slice) = slice.filter(|_| takes_events) else {
            self.refuse_immediate(id, number, Fault::BadKey);
            return Placement::Drop;
        };
        let tells = body.flags.get() & TELL != 0;
        let data = body.data.get();
        if total > 0 {
            let put = PutFrame::with_data(key.slot, number, data, body.flags.get());
            return self.place_put(link, id, prefix, slice, put);
        }
        let effect = Effect::Event { data, bytes };
        let notice = Notice { region: key.slot, number, tells, is_refused: false, effect };
        if !self.take_token(id, Held::Notice(notice)) {
            return self.violation("more immediate data than may wait");
        }
        Placement::Drop
    }

    /// Nobody hears of it. Its credit goes back at once.
    pub(super) fn refuse_immediate(&mut self, id: PeerId, number: u64, fault: Fault) {
        let name = self.peers.session(id).map(|session| session.name());
        if let Some(session) = name
            && self.charge(id, CHARGE)
        {
            self.free_charge(id, session, CHARGE);
        }
        self.operation_over(id, number, Err(fault), true);
    }

    /// A put is at its place, and all before it: whoever takes the events of its region is told.
    pub(super) fn event_ready(&mut self, id: PeerId, notice: &Notice) {
        let Notice { region: slot, number, tells, effect, .. } = *notice;
        let Effect::Event { data, bytes } = effect else { return };
        let region = self.regions.get(slot).filter(|it| !it.closing && it.events);
        let (Some(region), Some(session)) = (region, self.peers.session(id)) else {
            return self.refuse_immediate(id, number, Fault::BadKey);
        };
        let (key, session) = (RemoteKey { slot, secret: region.secret }, session.name());
        if !self.charge(id, CHARGE) {
            // It had no credit for it: what it may cost us is bounded.
            self.counters.violations += 1;
            return self.operation_over(id, number, Err(Fault::Busy), true);
        }
        self.counters.events += 1;
        self.note_served(slot, Served::Put);
        self.outputs.push(Output::Written { peer: id, session, key, bytes, data });
        self.operation_over(id, number, Ok(()), tells);
    }

    /// The driver's user took an event of this session: its credit goes back.
    pub fn event_taken(&mut self, peer: PeerId, session: u32) {
        self.request_taken(peer, session, 0);
    }
}
