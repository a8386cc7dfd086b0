//! The server's side: calls in, replies out.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;

use ropewalk_base::memory::Memory;
use ropewalk_base::pool::Pool;
use ropewalk_base::world::World;
use ropewalk_net::local::LocalEndpoint;
use ropewalk_net::{Channel, PeerId, Request};
use ropewalk_wire::fs::head::{CallHead, HEAD_BYTES, ReplyHead, Status};

/// A call as it came in.
#[derive(Debug)]
pub struct Incoming {
    pub peer: PeerId,
    pub head: CallHead,
    request: Request,
}

impl Incoming {
    /// The body, to be decoded by the service.
    pub fn body(&self) -> &[u8] {
        &self.request.bytes()[HEAD_BYTES..]
    }

    /// The memory that the call's message occupies until it is dropped: whoever keeps calls has to bound
    /// what they keep, since the client may send more once its call was taken.
    pub fn occupied_bytes(&self) -> usize {
        self.request.occupied_bytes()
    }
}

/// How far the server's state is kept; goes with every reply.
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
}

/// What a call is answered with.
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
}

type InFlight = Rc<RefCell<BTreeMap<(u64, u16), (u64, Rc<Cell<Destination>>)>>>;

#[derive(Debug, Clone, Copy)]
struct Destination {
    peer: PeerId,
    bits: u64,
}

/// Sends the answer to one call.
pub struct Responder {
    endpoint: LocalEndpoint,
    pool: Pool,
    head: CallHead,
    destination: Rc<Cell<Destination>>,
    in_flight: InFlight,
}

impl Responder {
    /// Sends the answer to wherever the call came from last.
    pub fn send(self, answer: Answer) {
        let head = ReplyHead {
            status: answer.status,
            slot: self.head.slot,
            sequence: self.head.sequence,
            boot: answer.marks.boot,
            era: answer.marks.era,
            written: answer.marks.written,
            durable: answer.marks.durable,
        };
        let mut bytes = Vec::with_capacity(HEAD_BYTES + answer.body.len());
        head.encode(&mut bytes);
        bytes.extend_from_slice(&answer.body);
        let Destination { peer, bits } = self.destination.get();
        // Over budget the reply is lost like one on a cut link: the client asks again.
        if let Some(buffer) = self.pool.copy_of(&bytes) {
            self.endpoint.send_detached(peer, Channel::Tagged, bits, Memory::pooled(buffer));
        }
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        let key = (self.head.session, self.head.slot);
        let mut in_flight = self.in_flight.borrow_mut();
        let own = in_flight.get(&key).is_some_and(|(_, cell)| Rc::ptr_eq(cell, &self.destination));
        if own {
            in_flight.remove(&key);
        }
    }
}

/// Takes calls from an endpoint.
pub struct Server {
    endpoint: LocalEndpoint,
    pool: Pool,
    in_flight: InFlight,
}

/// Replies under way, in bytes.
const REPLY_BUDGET: usize = 64 << 20;

impl Server {
    /// Serves calls that arrive at `endpoint` until the executor ends.
    pub fn start<H: Handler + 'static>(world: &World, endpoint: LocalEndpoint, handler: Rc<H>) {
        let server = Server {
            endpoint,
            pool: Pool::with_budget(REPLY_BUDGET),
            in_flight: InFlight::default(),
        };
        world.spawn(async move {
            loop {
                let request = server.endpoint.request().await;
                server.take(request, &handler);
            }
        });
    }

    fn take<H: Handler>(&self, request: Request, handler: &Rc<H>) {
        let Ok((head, _)) = CallHead::decode(request.bytes()) else {
            // Nobody to answer: what is malformed has no place for a reply either.
            return;
        };
        let destination = Destination { peer: request.peer, bits: head.reply_bits };
        let cell = Rc::new(Cell::new(destination));
        if head.session != 0 {
            let key = (head.session, head.slot);
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
        let responder = Responder {
            endpoint: self.endpoint.clone(),
            pool: self.pool.clone(),
            head,
            destination: cell,
            in_flight: self.in_flight.clone(),
        };
        let incoming = Incoming { peer: request.peer, head, request };
        handler.clone().handle(incoming, responder);
    }
}
