//! The server's side: calls in, replies out.
//!
//! Invariant: the memory of calls under way is separate for each endpoint, so that nobody gets, holds up or
//! ends the reply to another's call.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ropewalk_base::ids::{EndpointId, Origin};
use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_base::time::Time;
use ropewalk_base::world::World;
use ropewalk_net::local::LocalEndpoint;
use ropewalk_net::{Channel, PeerId, Request};
use ropewalk_wire::fs::head::{CallHead, HEAD_BYTES, ReplyHead, Service, Status, VERSION};
use ropewalk_wire::fs::trust::{Introduction, Member, SEAL_BYTES, Seal};
use ropewalk_wire::fs::{decode, encode};

use crate::trust::{Gate, Proven, Secret};

/// A call as it came in.
#[derive(Debug)]
pub struct Incoming {
    pub peer: PeerId,
    /// The endpoint that sent the call, and its incarnation. The endpoint states both; only its owner can
    /// know them.
    pub origin: Origin,
    /// The member of the cluster that has proven that the call is its own, if one did.
    pub member: Option<Member>,
    pub head: CallHead,
    request: Request,
}

impl Incoming {
    /// The body, to be decoded by the service.
    pub fn body(&self) -> &[u8] {
        let seal = if self.head.sealed { SEAL_BYTES } else { 0 };
        let bytes = self.request.bytes();
        &bytes[self.head.bytes()..bytes.len() - seal]
    }

    /// The memory that the call's message occupies until it is dropped. A handler that keeps calls has to
    /// bound them, since the client may send more once its call was taken.
    pub fn occupied_bytes(&self) -> usize {
        self.request.occupied_bytes()
    }
}

/// The server's boot, era and marks; they go with every reply.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Marks {
    /// New at each start of the server.
    pub boot: u64,
    /// New at each start after which something acknowledged may be lost.
    pub era: u64,
    /// Up to here everything survives the death of the process.
    pub written: u64,
    /// Up to here everything survives a power loss.
    pub durable: u64,
    /// The newest epoch of the map of groups that a data server knows; 0 of other servers.
    pub map: u32,
}

/// The reply to a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Answer {
    pub status: Status,
    pub body: Vec<u8>,
    pub marks: Marks,
}

/// Works on calls. Answers at once, or keeps the responder and answers later.
pub trait Handler {
    /// Takes a call. Dropping the responder without an answer leaves the client waiting until it
    /// sends the call again.
    fn handle(self: Rc<Self>, incoming: Incoming, responder: Responder);

    /// The secret that the members of the cluster share. Without it nobody can prove membership.
    fn secret(&self) -> Option<Secret> {
        None
    }

    /// Somebody calls himself a member and does not know the secret.
    fn saw_pretender(&self, _member: Member, _peer: PeerId) {}
}

/// Calls of sessions that are being worked on, by session, slot and endpoint: the number, and where the
/// reply goes.
type InFlight = Rc<RefCell<BTreeMap<Place, (u64, Rc<Cell<Destination>>)>>>;
type Place = (u64, u16, EndpointId);

#[derive(Debug, Clone, Copy)]
struct Destination {
    peer: PeerId,
    bits: u64,
}

/// The parts of a call's head that its reply needs.
#[derive(Debug, Clone, Copy)]
struct CallNumber {
    session: u64,
    slot: u16,
    sequence: u64,
}

impl CallNumber {
    fn of(head: &CallHead) -> CallNumber {
        CallNumber { session: head.session, slot: head.slot, sequence: head.sequence }
    }
}

/// Sends the answer to one call.
pub struct Responder {
    endpoint: LocalEndpoint,
    pool: Pool,
    call: CallNumber,
    from: EndpointId,
    proven: Option<Proven>,
    destination: Rc<Cell<Destination>>,
    in_flight: InFlight,
    arrived: Option<Time>,
    counted: Option<(u16, Time)>,
}

impl Responder {
    /// Notes that the call came now and waits. Without, it came when its kind was noted: that saves a look at the clock.
    pub fn note_arrival(&mut self, now: Time) {
        self.arrived = Some(now);
    }

    /// Notes the kind of the call, for the count of its duration when it is answered.
    pub fn note_kind(&mut self, kind: u16, now: Time) {
        self.counted = Some((kind, self.arrived.unwrap_or(now)));
    }

    /// The kind that was noted, and when the call came. None: its time does not count.
    pub fn counted(&self) -> Option<(u16, Time)> {
        self.counted
    }

    /// Sends the answer to wherever the call came from last.
    pub fn send(self, answer: Answer) {
        let head = ReplyHead {
            newest: VERSION,
            status: answer.status,
            sealed: self.proven.is_some(),
            slot: self.call.slot,
            sequence: self.call.sequence,
            boot: answer.marks.boot,
            era: answer.marks.era,
            written: answer.marks.written,
            durable: answer.marks.durable,
            map: answer.marks.map,
        };
        let mut bytes = Vec::with_capacity(HEAD_BYTES + answer.body.len());
        head.encode(&mut bytes);
        bytes.extend_from_slice(&answer.body);
        if let Some(Proven { key, counter, .. }) = &self.proven {
            let tag = key.tag_reply(*counter, &bytes);
            bytes.extend_from_slice(&tag);
        }
        let Destination { peer, bits } = self.destination.get();
        // Over budget the reply is lost like one on a cut link: the client asks again.
        if let Some(buffer) = self.pool.copy_of(&bytes) {
            self.endpoint.send_detached(peer, Channel::Tagged, bits, Memory::pooled(buffer));
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        let key = (self.call.session, self.call.slot, self.from);
        let mut in_flight = self.in_flight.borrow_mut();
        let own = in_flight.get(&key).is_some_and(|(_, cell)| Rc::ptr_eq(cell, &self.destination));
        if own {
            in_flight.remove(&key);
        }
    }
}

/// Takes calls from an endpoint.
pub struct Server {
    world: World,
    endpoint: LocalEndpoint,
    pool: Pool,
    in_flight: InFlight,
    gate: Option<Gate>,
}

/// Replies under way, in bytes.
const REPLY_BUDGET: usize = 64 << 20;

impl Server {
    /// Serves calls that arrive at `endpoint` until the executor ends.
    pub fn start<H: Handler + 'static>(world: &World, endpoint: LocalEndpoint, handler: Rc<H>) {
        let identity = endpoint.endpoint().identity();
        let own = Origin { endpoint: identity.endpoint, incarnation: identity.incarnation };
        let random = world.random_u128();
        let gate = handler.secret().map(|secret| Gate::new(secret, own, random));
        let server = Server {
            world: world.clone(),
            endpoint,
            pool: Pool::with_budget(REPLY_BUDGET),
            in_flight: InFlight::default(),
            gate,
        };
        world.spawn(async move {
            loop {
                let request = server.endpoint.request().await;
                server.take(request, &handler);
            }
        });
    }

    fn take<H: Handler>(&self, request: Request, handler: &Rc<H>) {
        let Ok((head, body)) = CallHead::decode(request.bytes()) else {
            // A program of another version hears of it. Else there is nobody to answer: a malformed call has no place for a
            // reply either.
            if let Some((reply, bits)) = CallHead::of_other_version(request.bytes()) {
                self.reply_at_once(&reply, Destination { peer: request.peer, bits }, &[]);
            }
            return;
        };
        let destination = Destination { peer: request.peer, bits: head.reply_bits };
        if head.service == Service::Trust {
            return self.introduce(head, body, &request, handler);
        }
        let proven = match head.sealed.then(|| self.admit(&request, body)) {
            Some(None) => return self.turn_away(head, destination, Status::Unproven, Vec::new()),
            Some(Some(proven)) => Some(proven),
            None => None,
        };
        let from = request.origin.endpoint;
        let cell = Rc::new(Cell::new(destination));
        if head.session != 0 {
            let key = (head.session, head.slot, from);
            let mut in_flight = self.in_flight.borrow_mut();
            match in_flight.get(&key) {
                Some((sequence, cell)) if *sequence == head.sequence => {
                    // It is being worked on: the reply goes to the newest copy's sender.
                    cell.set(destination);
                    return;
                }
                Some((sequence, _)) if *sequence > head.sequence => return,
                _ => {
                    in_flight.insert(key, (head.sequence, cell.clone()));
                }
            }
        }
        let member = proven.as_ref().map(|proven| proven.member);
        let responder = Responder {
            endpoint: self.endpoint.clone(),
            pool: self.pool.clone(),
            call: CallNumber::of(&head),
            from,
            proven,
            destination: cell,
            in_flight: self.in_flight.clone(),
            arrived: None,
            counted: None,
        };
        let Request { peer, origin, .. } = request;
        handler.clone().handle(Incoming { peer, origin, member, head, request }, responder);
    }

    /// A sealed call, if a member made it.
    fn admit(&self, request: &Request, body: &[u8]) -> Option<Proven> {
        let (_, seal) = Seal::split(body).ok()?;
        let bytes = request.bytes();
        let message = &bytes[..bytes.len() - SEAL_BYTES];
        self.gate.as_ref()?.admit(request.origin, message, &seal, self.world.now())
    }

    /// Answers who introduces himself as a member.
    fn introduce<H: Handler>(
        &self,
        head: CallHead,
        body: &[u8],
        request: &Request,
        handler: &Rc<H>,
    ) {
        let destination = Destination { peer: request.peer, bits: head.reply_bits };
        let Ok(word) = decode::<Introduction>(body) else {
            return self.turn_away(head, destination, Status::Malformed, Vec::new());
        };
        let now = self.world.now();
        match self.gate.as_ref().and_then(|gate| gate.accept(request.origin, &word, now)) {
            Some(acceptance) => {
                let mut body = Vec::new();
                encode(&acceptance, &mut body);
                self.turn_away(head, destination, Status::Done, body);
            }
            None => {
                handler.saw_pretender(word.member, request.peer);
                self.turn_away(head, destination, Status::Unproven, Vec::new());
            }
        }
    }

    /// Answers at once, without a mark and without a seal.
    fn turn_away(&self, call: CallHead, to: Destination, status: Status, body: Vec<u8>) {
        let (slot, sequence) = (call.slot, call.sequence);
        self.reply_at_once(&ReplyHead { slot, sequence, ..ReplyHead::of(status) }, to, &body);
    }

    fn reply_at_once(&self, head: &ReplyHead, to: Destination, body: &[u8]) {
        let mut bytes = Vec::with_capacity(HEAD_BYTES + body.len());
        head.encode(&mut bytes);
        bytes.extend_from_slice(body);
        if let Some(buffer) = self.pool.copy_of(&bytes) {
            let memory = Memory::pooled(buffer);
            self.endpoint.send_detached(to.peer, Channel::Tagged, to.bits, memory);
        }
    }
}
